"""Closed loops in the DeNOC form, with multipliers, and on the null space of their Jacobian, against the recursions."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder, ModelError
from tests.loop_robots import LEGS, admissible_velocity, bias, bricard, close_four_bar, closed_forest, four_bar


def near(model, spread: float):
    """A closed configuration near the neutral one."""
    guess = model.integrate(model.neutral(), spread * np.random.default_rng(0).normal(size=model.nv))
    found = jaxdyn.project_configuration(model, guess)
    assert found.status == jaxdyn.Status.CONVERGED
    return np.asarray(found.q)


@functools.cache
def floating_five_bar() -> jaxdyn.Model:
    base = ModelBuilder().add_body("base", joint=Joint("free"), inertia=BodyInertia.box(3.0, (0.3, 0.2, 0.1)))
    return base.build().with_attached(jaxdyn.samples.five_bar(), "base", (0.1, 0, 0.2))


def case(name: str):
    """A robot at a closed configuration, with joints whose velocities determine those of the others."""
    if name.startswith("four-bar"):
        return four_bar("revolute" if "revolute" in name else "connect"), close_four_bar(0.7), ("a",)
    if name == "bricard":
        return *bricard(), ("hinge0",)
    if name == "forest":
        model, q, *_ = closed_forest(redundant=True)
        return model, q, None
    model, spread, joints = {
        "five-bar": (jaxdyn.samples.five_bar(), 0.3, ("left", "right")),
        "floating": (floating_five_bar(), 0.3, ("base_joint", "left", "right")),
        "stewart": (jaxdyn.samples.stewart_platform(), 0.1, LEGS),
    }[name]
    return model, near(model, spread), joints


SLOW = ("four-bar revolute", "five-bar", "bricard", "stewart", "forest")


@pytest.mark.parametrize("name", ["four-bar", *(pytest.param(x, marks=pytest.mark.slow) for x in ("floating", *SLOW))])
def test_formulations_agree(name):
    model, q, joints = case(name)
    rng = np.random.default_rng(1)
    J = np.asarray(jaxdyn.constraint_jacobian(model, q))
    n = model.nv - np.linalg.matrix_rank(J, tol=1e-9)
    v = admissible_velocity(model, q, rng.normal(size=model.nv))
    tau, f_ext = 10 * rng.normal(size=model.nv), rng.normal(size=(model.nb, 6))

    @jax.jit
    def evaluate(model, q, v, tau, f_ext):
        state = (model, q, v, tau, f_ext)
        minimal = functools.partial(jaxdyn.minimal_equations, *state)
        return {
            "recursions": (jaxdyn.aba(*state), jaxdyn.constraint_forces(*state)),
            "cut": jaxdyn.cut_joints(model, q, v),
            "complement": jaxdyn.denoc(model, q, v),
            "augmented": jaxdyn.augmented_equations(*state),
            "minimal": [minimal(independent=x) for x in (n, joints) if x is not None],
            "wrong": [minimal(independent=x) for x in (n - 1, n + 1) if model.nv - model.topology.nc <= x],
        }

    ours = jax.tree.map(np.asarray, evaluate(model, q, v, tau, f_ext))
    (a, f), cut, augmented = ours["recursions"], ours["cut"], ours["augmented"]

    def equal(x, expected):
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-9 * max(1.0, np.abs(expected).max()))

    equal(cut.J, J)
    equal(cut.gamma, bias(model, q, v)[: len(J)])
    equal(cut.A @ ours["complement"].twist, (cut.J - cut.P) @ v)
    for x in (augmented, *ours["minimal"]):
        equal(x.a, a)
    # Where equations say the same twice, only what the forces do to the robot is determined.
    equal(J.T @ augmented.f, J.T @ f)
    equal(augmented.M @ a - J.T @ augmented.f, augmented.force)
    for x in ours["minimal"]:
        assert x.constraint_rank == model.nv - n
        equal(J @ x.N, 0)
        equal(x.N @ x.y, v)
        equal(x.N @ x.y_rate + x.N_dot_y, a)
        equal(x.inertia @ x.y_rate, x.force)
    equal(ours["minimal"][0].N.T @ ours["minimal"][0].N, np.eye(n))
    if joints is not None:
        rows = np.concatenate([np.arange(model.nv)[model.v_index(joint)] for joint in joints])
        equal(ours["minimal"][1].N[rows], np.eye(n))
    for x in ours["wrong"]:
        assert x.constraint_rank == model.nv - n
        assert np.isnan(x.a).all()
        assert np.isnan(x.N).all()


def test_what_cannot_be_independent():
    model, q = four_bar(), close_four_bar(0.7)
    state = model, q, *np.zeros((2, 3))
    for independent, error in (
        (4, r"independent is 4, but 3 equations on 3 degrees of freedom leave from 0 to 3"),
        (1.5, "the number of degrees of freedom or names of joints, not 1.5"),
        (("a", "a"), "names a joint twice"),
        ("x", "no joint named 'x'"),
        (("a", "b", "c", "x"), "no joint named 'x'"),
    ):
        with pytest.raises((ModelError, jaxdyn.UnknownNameError), match=error):
            jaxdyn.minimal_equations(*state, independent=independent)


@pytest.mark.slow
def test_joints_that_do_not_determine_the_motion():
    """In a batch: where the crank and the coupler of a four-bar are on one line, its rocker turns back, and does not
    determine the other velocities."""
    model = four_bar()
    # The pin is at 0.4 + 1 m from the crank's joint, on circles of 0.7 m and 0.9 m apart.
    angle = np.arccos((1.4**2 + 0.9**2 - 0.7**2) / (2 * 1.4 * 0.9))
    q = np.stack([close_four_bar(-angle), close_four_bar(0.7)])
    found = jaxdyn.minimal_equations(model, q, *np.zeros((2, 3)), independent="c")
    assert (found.constraint_rank == 2).all()
    assert np.isnan(found.a[0]).all()
    np.testing.assert_allclose(found.a[1], jaxdyn.aba(model, q[1], *np.zeros((2, 3))), atol=1e-9)


@pytest.mark.slow
def test_models_without_loops_and_with_followers():
    builder, inertia = ModelBuilder(), BodyInertia.box(1.0, (0.1, 0.2, 0.3), (0.1, 0, 0))
    builder.add_body("a", "world", Joint(name="a", axis=(0, 1, 0.2)), inertia=inertia)
    builder.add_body(
        "b", "a", Joint(name="b", axis=(0, 1, 0), mimic=jaxdyn.Mimic("a", -0.6, 0.1)), (0.3, 0, 0), inertia
    )
    builder.add_body("c", "world", Joint("ball", name="c"), (0.8, 0, 0), inertia)
    tree = builder.build()
    q, (v, tau) = np.array([0.3, 0.8, 0.6, 0, 0]), np.random.default_rng(0).normal(size=(2, 4))
    for model in (tree, tree.with_loop("rod", "distance", "b", "c", (0.2, 0.1, 0), (0, 0, 0.3), length=0.6)):
        a = jaxdyn.aba(model, q, v, tau)
        n = model.nv - model.topology.nc
        np.testing.assert_allclose(jaxdyn.cut_joints(model, q, v).J, jaxdyn.constraint_jacobian(model, q), atol=1e-12)
        np.testing.assert_allclose(jaxdyn.augmented_equations(model, q, v, tau).a, a, atol=1e-9)
        admissible = jaxdyn.minimal_equations(model, q, v, tau, independent=n)
        np.testing.assert_allclose(admissible.a, a, atol=1e-9)


@pytest.mark.slow
def test_derivatives_are_those_of_the_recursions():
    """By the state, the torques, and the places of the joints and of the pin, forward and reverse."""
    model, q, _ = case("four-bar")
    rng = np.random.default_rng(2)
    v, (tau, weights) = admissible_velocity(model, q, rng.normal(size=3)), rng.normal(size=(2, 3))
    names = ("joint_placement", "loop_placement1", "inertial_parameters")
    point = ({name: getattr(model, name) for name in names}, q, v, tau)
    forms = {
        "recursions": jaxdyn.aba,
        "augmented": lambda *x: jaxdyn.augmented_equations(*x).a,
        "null space": lambda *x: jaxdyn.minimal_equations(*x, independent=1).a,
        "partition": lambda *x: jaxdyn.minimal_equations(*x, independent="a").a,
    }

    def value(form, arrays, q, v, tau):
        return weights @ form(dataclasses.replace(model, **arrays), q, v, tau)

    functions = {name: functools.partial(value, form) for name, form in forms.items()}
    found = jax.jit(lambda *x: {name: jax.grad(f, (0, 1, 2, 3))(*x) for name, f in functions.items()})(*point)

    def in_plane(x, name):
        """A direction in which the equations across the plane stay what they are."""
        out = rng.normal(size=np.shape(x))
        if "placement" in name:
            out[..., [1, 3, 4, 5, 6]] = 0
        return out

    directions = ({name: in_plane(x, name) for name, x in point[0].items()}, *rng.normal(size=(3, 3)))
    forward = jax.jit(lambda *x: {name: jax.jvp(f, point, x)[1] for name, f in functions.items()})(*directions)
    for name in forms:
        backward = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, found[name], directions)))
        np.testing.assert_allclose(forward[name], backward, rtol=1e-8)
        np.testing.assert_allclose(forward[name], forward["recursions"], rtol=1e-7)
