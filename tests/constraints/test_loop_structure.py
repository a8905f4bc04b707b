"""Models with loops and couplings: building, edits, summary, and what refuses them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder, ModelError
from jaxdyn.io import to_urdf
from jaxdyn.joints import Coupling, Loop
from tests.loop_robots import close_four_bar, forest_with_loops, four_bar
from tests.same_model import assert_same

BOX = BodyInertia.box(1.0, (0.1, 0.2, 0.3))


def pair() -> ModelBuilder:
    builder = ModelBuilder().add_body("a", joint=Joint(name="ja"), inertia=BOX)
    builder.add_body("b", joint=Joint("prismatic", name="jb"), placement=(1, 0, 0), inertia=BOX)
    return builder.add_frame("tip", "b", (0, 0, 0.5))


def test_builder_and_model_add_the_same():
    builder = pair().add_loop("rod", "distance", "a", "tip", (0.1, 0, 0), length=0.9)
    builder.add_loop("pin", "connect", "world", "b", (1, 0, 0)).add_coupling("c", "ja", "jb", (0, 2, 1), (0.1, 0))
    model = builder.build()
    other = pair().build().with_loop("rod", "distance", "a", "tip", (0.1, 0, 0), length=0.9)
    other = other.with_loop("pin", "connect", "world", "b", (1, 0, 0)).with_coupling(
        "c", "ja", "jb", (0, 2, 1), (0.1, 0)
    )
    assert_same(model, other)
    assert model.topology.loops == (Loop("rod", "distance", 0, 1), Loop("pin", "connect", -1, 1))
    assert model.topology.couplings == (Coupling("c", 0, 1),)
    assert model.topology.nc == 5
    np.testing.assert_allclose(model.loop_placement2[0], [0, 0, 0.5, 1, 0, 0, 0])
    np.testing.assert_allclose(model.loop_length, [0.9, 0.0])
    np.testing.assert_allclose(model.coupling_coefficients, [[0, 2, 1, 0, 0]])
    assert_same(model.without_loops(), pair().build())
    assert_same(model.without_loops(["rod", "c"]), pair().build().with_loop("pin", "connect", "world", "b", (1, 0, 0)))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("pin", "hinge", "a", "b"), "the kind of loop 'pin' is 'hinge'"),
        (("pin", "connect", "a", "a"), "are both fixed in body 'a'"),
        (("pin", "connect", "b", "tip"), "are both fixed in body 'b'"),
        (("pin", "distance", "a", "b"), "length .m. belongs"),
        (("pin", "connect", "a", "b", None, None, 1.0), "length .m. belongs"),
        (("pin", "distance", "a", "b", None, None, -1.0), "a positive number"),
        (("rod", "connect", "a", "b"), "'rod'"),
        (("pin", "connect", "a", "b", (0, 0, 0, 2, 0, 0, 0)), "unit quaternion"),
        (("pin", "connect", "a", "c"), "no frame named 'c'"),
    ],
)
def test_wrong_loops_are_refused(arguments, error):
    model = pair().build().with_loop("rod", "distance", "a", "b", length=1.0)
    with pytest.raises(jaxdyn.JaxdynError, match=error):
        model.with_loop(*arguments)


def test_wrong_couplings_are_refused():
    model = pair().add_body("d", "b", Joint("ball", name="jd"), inertia=BOX).build()
    for arguments, error in (
        (("c", "jd", "ja"), "'jd' is ball"),
        (("c", "ja", "ja"), "with itself"),
        (("c", "ja", "x"), "no joint named 'x'"),
        (("c", "ja", "jb", np.ones(6)), "one to five"),
    ):
        with pytest.raises(jaxdyn.JaxdynError, match=error):
            model.with_coupling(*arguments)
    with pytest.raises(ModelError, match="already a loop or coupling"):
        pair().add_coupling("c", "ja").add_coupling("c", "jb")
    with pytest.raises(jaxdyn.UnknownNameError, match="no link for loop 'l' named 'x'"):
        pair().add_loop("l", "connect", "a", "x")
    with pytest.raises(jaxdyn.UnknownNameError, match="loop or coupling named 'x'"):
        model.without_loops(["x"])


@pytest.mark.slow
def test_attached_models_keep_their_loops():
    """The errors of both are those that each has alone, with the second mounted on a moving body."""
    first, second = four_bar(), forest_with_loops()
    both = first.with_attached(second, "rocker", (0.1, 0.2, 0.3), prefix="more_")
    alone = second.without_loops([x.name for x in second.topology.loops if "world" in x.name])
    assert [x.name for x in both.topology.loops][:2] == ["pin", "more_connect within"]
    q = both.neutral()
    q2 = second.random_configuration(jax.random.key(0))
    for name in second.joint_names:
        q = q.at[both.q_index("more_" + name)].set(q2[second.q_index(name)])
    errors = dict(zip(equation_names(both), np.asarray(jaxdyn.constraint_error(both, q)), strict=True))
    for name, x in zip(equation_names(alone), np.asarray(jaxdyn.constraint_error(alone, q2)), strict=True):
        assert errors[f"more_{name}"] == pytest.approx(x, abs=1e-12)
    # Loops to their world go to the body that carries it.
    body = both.topology.body("rocker")
    assert body in {x.body1 for x in both.topology.loops if x.name == "more_connect world"}
    with pytest.raises(ModelError, match="a loop or coupling of the attached model"):
        four_bar().with_attached(pair().add_loop("pin", "connect", "a", "b").build(), "world")


def equation_names(model):
    topology = model.topology
    counts = np.diff(topology.loop_starts)
    names = [f"{x.name}/{k}" for x, n in zip(topology.loops, counts, strict=True) for k in range(n)]
    return names + [x.name for x in topology.couplings]


@pytest.mark.slow
def test_locked_joints_carry_loops_along():
    model = forest_with_loops()
    q = model.random_configuration(jax.random.key(1))
    single = [n for n in model.joint_names if model.q_index(n).stop == model.q_index(n).start + 1]
    free = {model.joint_names[j] for x in model.topology.couplings for j in x[1:] if j >= 0}
    joint = [n for n in single if n not in free][-1]
    # A loop between the bodies that the joint separates would hold nothing more.
    bodies = {model.joint_names.index(joint), model.topology.parents[model.joint_names.index(joint)]}
    model = model.without_loops([x.name for x in model.topology.loops if {x.body1, x.body2} == bodies])
    locked = model.with_locked_joints({joint: q[model.q_index(joint)]})
    rest = np.delete(np.asarray(q), model.q_index(joint).start)
    np.testing.assert_allclose(jaxdyn.constraint_error(locked, rest), jaxdyn.constraint_error(model, q), atol=1e-12)
    with pytest.raises(ModelError, match="belongs to the coupling"):
        model.with_locked_joints({next(iter(free)): 0.0})
    two, close = four_bar().with_attached(pair().build(), "world"), dict(zip("abc", close_four_bar(0.5), strict=True))
    with pytest.raises(ModelError, match="both frames of loop 'pin' would be fixed in the world"):
        two.with_locked_joints(close)


def test_scaled_loops():
    model = pair().add_loop("rod", "distance", "a", "tip", (0.1, 0, 0), length=0.9)
    model = (
        model.add_coupling("c", "ja", "jb", (0.1, 2, 1, 3, 4), (0.1, 0.2))
        .add_coupling("d", "jb", "ja", (0.1, 2))
        .build()
    )
    big, s = model.scaled(length=2.0, mass=3.0), np.array([1.0, 2.0])
    q = np.array([0.4, 0.3])
    error = np.asarray(jaxdyn.constraint_error(model, q))
    # A length, an angle and a length.
    np.testing.assert_allclose(jaxdyn.constraint_error(big, q * s), error * [2, 1, 2], atol=1e-12)


def test_batches_and_traced_values():
    model = four_bar()

    def error(x):
        changed = model.without_loops().with_loop(
            "pin", "connect", "coupler", "rocker", jnp.stack([x, 0.0, 0.0]), (0.7, 0, 0)
        )
        return jaxdyn.constraint_error(changed, close_four_bar(0.5))

    values = jax.vmap(error)(jnp.array([1.0, 1.1]))
    np.testing.assert_allclose(values[0], 0, atol=1e-12)
    assert jax.jacfwd(error)(1.0).shape == (3,)
    batched = dataclasses.replace(model, loop_placement1=jnp.broadcast_to(model.loop_placement1, (2, 1, 7)))
    assert jaxdyn.aba(batched, close_four_bar(0.5), np.zeros(3), np.zeros(3)).shape == (2, 3)


def test_summary_says_the_mobility():
    text = four_bar("revolute").summary()
    assert "loop pin: revolute between coupler and rocker, 5 equations" in text
    assert (
        "5 equations, 3 of which say what others do: they leave 1 degree of freedom of 3 where the loops close" in text
    )
    held = pair().add_coupling("held", "jb", None, (0.3,)).build().summary()
    assert "coupling held: q(jb)" in held
    coupled = pair().add_coupling("c", "ja", "jb", (0.0, 2.0)).build().summary()
    assert "coupling c: q(ja) - 0 = 0 + 2 (q(jb) - 0)" in coupled
    assert "1 equation: they leave 1 degree of freedom of 2 at the neutral configuration" in coupled


def test_what_does_not_take_loops_says_so():
    model = four_bar()
    for function in (
        lambda: to_urdf(model),
        lambda: jaxdyn.mass_matrix_ltdl(model, np.zeros(3)),
        lambda: jaxdyn.articulated_bodies(model, *np.zeros((3, 3))),
        lambda: jaxdyn.joint_reactions(model, *np.zeros((2, 3)), tau=np.zeros(3)),
        lambda: jaxdyn.sysid.base_parameters(model),
        lambda: jaxdyn.sysid.optimize_excitation(model),
    ):
        with pytest.raises(ModelError, match="does not take closed loops yet, and the model has 'pin'"):
            function()
