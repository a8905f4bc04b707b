"""Motions that nothing with inertia resists are found and named when a model is built, and in its summary."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, Mimic, Model, ModelBuilder, PhysicalityWarning, samples
from jaxdyn.io import load_urdf
from jaxdyn.model import _singular_motions as singular
from jaxdyn.model import spanning_coordinates
from tests.urdf_texts import joint, link, robot

BALL, POINT = BodyInertia.sphere(1.0, 0.1), BodyInertia(1.0)


def chain(*joints: Joint, massive: tuple[int, ...] = (-1,), placements: dict[int, tuple] | None = None) -> ModelBuilder:
    """Return a chain of bodies `b0, b1, ...` with joints `j0, j1, ...`, of which some have inertia."""
    builder, last = ModelBuilder(), len(joints) - 1
    for k, each in enumerate(joints):
        named = Joint(**(vars(each) | {"name": f"j{k}"}))
        inertia = BALL if k in massive or (k == last and -1 in massive) else None
        placement = (placements or {}).get(k, (0, 0, 0.2))
        builder.add_body(f"b{k}", f"b{k - 1}" if k else "world", named, placement, inertia)
    return builder


def x(**options) -> Joint:
    return Joint("revolute", (1, 0, 0), **options)


def y(**options) -> Joint:
    return Joint("revolute", (0, 1, 0), **options)


def z(**options) -> Joint:
    return Joint("revolute", (0, 0, 1), **options)


def found(builder: ModelBuilder) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = builder.build()
    texts = [str(w.message) for w in caught if w.category is PhysicalityWarning]
    assert [line for line in model.summary().splitlines() if "singular" in line] == [f"warning: {t}" for t in texts]
    return texts


CASES = {
    "coaxial": (
        chain(y(), z(), z(), massive=(0, 2)),
        ["'j1' and 'j2' turn about the same axis, and body 'b1' between"],
    ),
    "coaxial, two bodies between": (
        chain(z(), z(), z()),
        ["'j1' and 'j2' turn about the same axis", "'j0' and 'j2'", "'b0', 'b1' between them", "every configuration"],
    ),
    "opposite axes": (chain(z(), Joint("revolute", (0, 0, -1))), ["turn about the same axis"]),
    "slides": (
        chain(Joint("prismatic", (0, 1, 1)), Joint("prismatic", (0, 1, 1)), placements={1: (5, 0, 0)}),
        ["shift along the same direction"],
    ),
    "four hinges at one point": (
        chain(z(), y(), x(), z(), placements=dict.fromkeys(range(4), (0, 0, 0))),
        ["joints 'j0', 'j1', 'j2' and 'j3' can move together", "every configuration tried"],
    ),
    "a wrist that is straight": (
        chain(z(), y(), z()),
        ["'j0' and 'j2' turn about the same axis", "at the neutral configuration, though not at others"],
    ),
    "a point on the axis": (
        ModelBuilder()
        .add_body("a", joint=z(name="j0"))
        .add_body("b", "a", Joint("prismatic", (0, 0, 1), name="j1"), inertia=POINT),
        ["joint 'j0' can move without moving anything that has inertia"],
    ),
    "a follower that turns back": (
        chain(z(), z(mimic=Mimic("j0", -1.0))),
        ["joint 'j0' can move without moving anything that has inertia"],
    ),
}


@pytest.mark.parametrize("what", CASES)
def test_motions_without_resistance_are_named(what):
    builder, fragments = CASES[what]
    texts = " | ".join(found(builder))
    for fragment in (*fragments, "the mass matrix is singular", "armature"):
        assert fragment in texts


@pytest.mark.parametrize(
    "builder",
    [
        chain(y(), z(armature=0.1), z(), massive=(0, 2)),
        chain(y(), z(), z(armature=0.1), massive=(0, 2)),
        chain(y(), z(), y(), massive=(0, 2)),
        chain(z(), z(), massive=(0, 1)),
        chain(z(), z(), placements={1: (1, 0, 0)}),
        chain(z(), z(mimic=Mimic("j0", -0.5))),
        chain(x(), y(), z(), placements=dict.fromkeys(range(3), (0, 0, 0))),
        chain(*[Joint("free"), z(), y()], massive=(0, 2)),
        chain(Joint("planar"), Joint("helical", pitch=0.1)),
        chain(*[y() for _ in range(150)], massive=(*range(5), *range(6, 150))),
    ],
)
def test_no_false_alarm(builder):
    assert found(builder) == []


def test_all_joint_types_without_mass_between():
    """The matrix that is checked is that of the algorithm, for all joints, trees, and joints that mimic."""
    tree = samples.random_tree(jax.random.key(0), 14)
    coupled = chain(y(), z(mimic=Mimic("j0", 0.7)), Joint("prismatic"), x(mimic=Mimic("j2", -2.0)), massive=range(4))
    for model in (tree, coupled.build().with_armature(0.1)):
        numbers: Model = jax.tree.map(np.asarray, model)
        q = singular.configurations(numbers)
        spanning = np.asarray(spanning_coordinates(numbers, q, velocity=False))
        columns = singular._columns(model.topology.spanning, numbers, spanning)
        expected = np.asarray(jaxdyn.crba(model, jnp.asarray(q)))
        tolerance = 1e-12 * np.abs(expected).max()
        np.testing.assert_allclose(singular._mass_matrices(numbers, columns), expected, rtol=0, atol=tolerance)


def test_accelerations_are_not_finite_where_warned_of():
    """What the warning says is so: accelerations grow without bound as an armature goes to zero."""
    builder, _ = CASES["coaxial"]
    with pytest.warns(PhysicalityWarning):
        model = builder.build()
    q, tau = jnp.array([0.1, 0.2, 0.3]), jnp.array([0.0, 1.0, -1.0])
    peaks = [np.abs(jaxdyn.aba(model.with_armature({"j1": J}), q, 0 * q, tau)).max() for J in (1e-3, 1e-6)]
    assert peaks[1] > 500 * peaks[0]


def test_files_are_named():
    text = robot(link("a"), link("b", ""), link("c"), joint("j", "a", "b"), joint("k", "b", "c"))
    with pytest.warns(PhysicalityWarning, match="joints 'j' and 'k' turn about the same axis, and body 'b'") as caught:
        load_urdf(text)
    assert caught[0].filename == __file__


def test_single_precision_and_batches():
    builder, _ = CASES["coaxial"]
    with pytest.warns(PhysicalityWarning):
        model = builder.build()
    assert "turn about the same axis" in model.astype(jnp.float32).summary()
    # What is not known is not judged.
    assert "singular" not in jax.tree.map(lambda a: jnp.stack([a, a]), model).summary()


def test_robots_without_inertias_are_not_judged():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = chain(z(), z(), massive=()).build(kinematics_only=True)
    assert "singular" not in model.summary()


def edited(change) -> list[str]:
    """Return the warnings of an edit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        change()
    assert all(w.category is PhysicalityWarning for w in caught)
    return [str(w.message) for w in caught]


def turntable() -> Model:
    """Return a joint about z that carries a massless body, which an armature makes regular."""
    return chain(z(armature=0.1)).build().with_link_parameters("b0", np.zeros(10))


EDITS = {
    "a link becomes massless": lambda: chain(z(), z(), massive=(0, 1)).build().with_link_parameters("b0", np.zeros(10)),
    "an armature goes": lambda: chain(z(armature=0.1), z()).build().with_armature(0.0),
    "a joint between is locked": lambda: (
        chain(x(), z(), y(armature=0.1), z(), massive=(0, 3)).build().with_locked_joints({"j2": 0.0})
    ),
    "single precision": lambda: (
        chain(z(), z(), massive=(0, 1)).build().astype(jnp.float32).with_link_parameters("b0", np.zeros(10))
    ),
}


@pytest.mark.parametrize("what", EDITS)
def test_edits_that_take_the_resistance_away_say_so(what):
    text = edited(EDITS[what])[-1]
    assert "turn about the same axis" in text
    assert "the mass matrix is singular at every configuration tried" in text


def test_an_edit_says_only_what_it_did():
    with pytest.warns(PhysicalityWarning):
        model = CASES["coaxial"][0].build()
    assert edited(lambda: model.with_link_parameters("b0", BALL)) == []
    assert edited(lambda: model.with_link_parameters("b1", BALL)) == []
    assert edited(lambda: turntable().with_attached(chain(y()).build(), "b0", prefix="arm_")) == []
    batch = jnp.zeros((2, 10))
    assert edited(lambda: chain(z(), z(), massive=(0, 1)).build().with_link_parameters("b0", batch)) == []
    assert edited(lambda: jax.jit(lambda p: turntable().with_link_parameters("b0", p))(batch[0])) == []
