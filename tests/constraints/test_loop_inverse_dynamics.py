"""Inverse dynamics of closed loops with named actuated joints, motions from some joints, and operational-space inertia,
against forward dynamics and dense linear algebra."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import null_space

import jaxdyn
from jaxdyn import BodyInertia, Joint, Mimic, ModelBuilder, ModelError, Status
from jaxdyn.spatial import compose_poses
from jaxdyn.trajopt import ControlResidual, ModelDynamics, Problem, QuadraticCost, static_guess
from tests.loop_robots import DRIVES, LEGS, close_four_bar, five_bar, four_bar


def columns(model: jaxdyn.Model, joints) -> np.ndarray:
    return np.concatenate([np.arange(model.nv)[model.v_index(x)] for x in joints])


def states(model: jaxdyn.Model, guess, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random closed states near a guess."""
    rng = np.random.default_rng(0)
    q = model.integrate(np.asarray(guess), 0.05 * rng.normal(size=(count, model.nv)))
    found = jaxdyn.project_configuration(model, q)
    assert (found.status == Status.CONVERGED).all()
    return np.asarray(found.q), np.asarray(jaxdyn.project_velocity(model, found.q, rng.normal(size=(count, model.nv))))


@functools.partial(jax.jit, static_argnums=4)
def both(model: jaxdyn.Model, q, v, tau, actuated: tuple[str, ...]):
    """Accelerations, the torques and motions that belong to them, and the forces of the loops."""
    a = jaxdyn.aba(model, q, v, tau)
    found = jaxdyn.constrained_inverse_dynamics(model, q, v, a, actuated=actuated)
    completed = jaxdyn.complete_motion(model, q, v, a, actuated)
    return a, found, completed, jaxdyn.constraint_forces(model, q, v, tau)


def round_trip(model: jaxdyn.Model, guess, actuated) -> None:
    """Torques of `aba` are found again, with the forces of the loops, for a batch of states."""
    q, v = states(model, guess, 5)
    rng, driven = np.random.default_rng(1), columns(model, actuated)
    tau = np.zeros((5, model.nv))
    tau[:, driven] = 10 * rng.normal(size=(5, len(driven)))

    a, found, completed, forces = jax.tree.map(np.asarray, both(model, q, v, tau, tuple(actuated)))
    scale = np.abs(a).max()
    np.testing.assert_allclose(found.tau, tau, rtol=0, atol=1e-9)
    np.testing.assert_allclose(found.forces, forces, rtol=0, atol=1e-9 * max(1, np.abs(forces).max()))
    np.testing.assert_allclose(found.residual, 0, atol=1e-9 * scale)
    np.testing.assert_allclose(completed.v, v, rtol=0, atol=1e-9)
    np.testing.assert_allclose(completed.a, a, rtol=0, atol=1e-9 * scale)


@pytest.mark.slow
def test_four_bar():
    round_trip(four_bar("revolute"), close_four_bar(0.7), ("a",))


@pytest.mark.slow
def test_five_bar():
    round_trip(five_bar(), np.zeros(4), DRIVES)


@pytest.mark.slow
def test_a_plane_that_is_oblique():
    """The equation across the plane has rows of rounding errors there, which are not to become motion."""
    model, turn = five_bar(), np.array([0.5, -0.3, 0.7, 0.2])
    turn = np.array([0.0, 0.0, 0.0, *(turn / np.linalg.norm(turn))])
    placement = np.array(model.joint_placement)
    for body in ("left_upper", "right_upper"):
        i = model.body_names.index(body)
        placement[i] = compose_poses(turn, placement[i])
    oblique = dataclasses.replace(model, joint_placement=jnp.asarray(placement))
    round_trip(oblique, np.zeros(4), DRIVES)


@pytest.mark.slow
def test_stewart_platform():
    model = jaxdyn.samples.stewart_platform()
    round_trip(model, model.neutral(), LEGS)
    q, _ = states(model, model.neutral(), 1)
    matrix = np.asarray(jaxdyn.operational_space_inertia(model, q[0], "platform"))
    Minv = projected_inverse(model, q[0])
    J = np.asarray(jaxdyn.frame_jacobian(model, q[0], "platform", "local_world_aligned"))
    np.testing.assert_allclose(matrix, np.linalg.inv(J @ Minv @ J.T), rtol=1e-9)


def test_too_many_and_too_few_actuated_joints():
    """Three joints of a five-bar have torques of least norm; one leaves a residual, and accelerations that the loops do
    not allow are replaced by the nearest."""
    model, y = five_bar(), np.array([0.4, -0.3])
    q, v = (x[0] for x in states(model, np.zeros(4), 1))
    a = np.asarray(jaxdyn.aba(model, q, v, np.array([3.0, 0, -2.0, 0])))
    J, M = np.asarray(jaxdyn.constraint_jacobian(model, q)), np.asarray(jaxdyn.crba(model, q))
    N, tree = null_space(J, rcond=1e-9), np.asarray(jaxdyn.rnea(model, q, v, a))
    three = ("left", "left_elbow", "right")
    off = np.linalg.solve(M, J.T @ np.array([*y, 0.0]))

    @jax.jit
    def solve(a):
        found = {
            k: jaxdyn.constrained_inverse_dynamics(model, q, v, a, actuated=x)
            for k, x in enumerate((three, None, ("left",)))
        }
        return found, jaxdyn.motion_map(model, q, three)

    found, E = solve(a)
    S = np.eye(4)[:, [0, 1, 2]]
    np.testing.assert_allclose(found[0].tau, S @ np.linalg.pinv(N.T @ S) @ (N.T @ tree), atol=1e-10)
    np.testing.assert_allclose(found[1].tau, N @ (N.T @ tree), atol=1e-10)
    np.testing.assert_allclose(E, N @ np.linalg.pinv(S.T @ N) @ S.T, atol=1e-10)
    assert np.abs(found[0].residual).max() < 1e-10
    assert np.abs(found[2].residual).max() > 0.1
    other, _ = solve(a + off)
    np.testing.assert_allclose(other[0].tau, found[0].tau, atol=1e-9)
    np.testing.assert_allclose(other[0].residual, off, atol=1e-9)


@pytest.mark.slow
def test_derivatives_of_redundant_torques():
    """By the state, the accelerations and a leaf of the model: forward, reverse, and differences."""
    model = five_bar()
    q, v = (x[0] for x in states(model, np.zeros(4), 1))
    a = np.array([1.0, -2.0, 0.5, 1.0])

    def torques(x):
        longer = dataclasses.replace(model, loop_placement1=model.loop_placement1.at[0, 0].add(x[-1]))
        found = jaxdyn.constrained_inverse_dynamics(
            longer, x[:4], x[4:8], x[8:12], actuated=("left", "left_elbow", "right")
        )
        return jnp.concatenate([found.tau, found.forces[::2]])

    x, rng = jnp.concatenate([q, v, a, jnp.zeros(1)]), np.random.default_rng(0)
    direction, weights, h = rng.normal(size=13), rng.normal(size=6), 1e-5

    @jax.jit
    def run(x):
        value, forward = jax.jvp(torques, (x,), (jnp.asarray(direction),))
        return value, forward, jax.grad(lambda x: (weights * torques(x)).sum())(x)

    _, forward, reverse = run(x)
    np.testing.assert_allclose(reverse @ direction, weights @ forward, rtol=1e-8)
    differences = (run(x + h * direction)[0] - run(x - h * direction)[0]) / (2 * h)
    np.testing.assert_allclose(forward, differences, atol=1e-6 * np.abs(forward).max())


@pytest.mark.slow
def test_controls_that_hold_a_closed_loop():
    """A guess for optimal control has the torques of the driven joints, not those of the tree."""
    model, drives = five_bar(), DRIVES
    (q,), _ = states(model, np.zeros(4), 1)
    dynamics = ModelDynamics(model, 0.02, actuation=drives)
    guess = static_guess(
        Problem(dynamics, np.concatenate([q, np.zeros(4)]), 2, stage_costs=[QuadraticCost(ControlResidual(), 1.0)])
    )
    still = jaxdyn.constrained_inverse_dynamics(model, q, np.zeros(4), np.zeros(4), actuated=drives)
    np.testing.assert_allclose(guess.us[0], np.asarray(still.tau)[[0, 2]], atol=1e-8)


def test_what_is_said_about_actuated_joints():
    model = jaxdyn.samples.stewart_platform()
    q, zero = np.asarray(model.neutral()), np.zeros(model.nv)
    ask = functools.partial(jaxdyn.constrained_inverse_dynamics, model, q, zero, zero)
    with pytest.raises(ModelError, match=r"4 degrees of freedom are actuated, but the robot has at least 6.*2 more"):
        ask(actuated=LEGS[:4])
    with pytest.raises(jaxdyn.UnknownNameError, match="leg7"):
        ask(actuated=("leg7",))
    with pytest.raises(ModelError, match="names no joint"):
        ask(actuated=())


@pytest.mark.slow
def test_joints_that_mimic_others():
    """A planar chain on the ground at both ends, whose second joint follows the first: the torque of the first joint
    is that of the tree in which a coupling holds the second one."""
    builders = {mimic: ModelBuilder() for mimic in (None, Mimic("a", -0.6, 0.1))}
    for mimic, builder in builders.items():
        parent, x = "world", 0.0
        for name in "abcd":
            joint = Joint(name=name, axis=(0, 1, 0), mimic=mimic if name == "b" else None)
            builder.add_body(name, parent, joint, (x, 0, 0), BodyInertia.box(1.0, (0.3, 0.1, 0.05), (0.15, 0, 0.02)))
            parent, x = name, 0.3
        builder.add_loop("pin", "connect", "d", "world", (0.3, 0, 0), (0.6, 0, 0.3))
    tree, model = (b.build() for b in builders.values())
    tree = tree.with_coupling("b follows a", "b", "a", (0.1, -0.6))
    q, v = (x[0] for x in states(tree, [0.3, -0.1, -1.0, -1.4], 1))
    a = np.asarray(jaxdyn.aba(tree, q, v, np.array([2.0, 0, 0, 0])))
    own = [0, 2, 3]
    found = jaxdyn.constrained_inverse_dynamics(model, q[own], v[own], a[own], actuated=("a",))
    np.testing.assert_allclose(found.tau, [2.0, 0, 0], atol=1e-9)
    np.testing.assert_allclose(found.residual, 0, atol=1e-9)
    np.testing.assert_allclose(jaxdyn.complete_motion(model, q[own], v[own], a[own], ["c"]).a, a[own], atol=1e-8)
    with pytest.raises(ModelError, match="joint 'b' mimics another"):
        jaxdyn.motion_map(model, q[own], ["b"])


def tethered() -> jaxdyn.Model:
    """A free body on a rod without mass."""
    builder = ModelBuilder()
    builder.add_body("body", "world", Joint("free"), inertia=BodyInertia.box(2.0, (0.3, 0.2, 0.1)))
    return builder.add_loop("rod", "distance", "world", "body", None, (0.1, 0.05, 0.0), length=0.5).build()


def projected_inverse(model: jaxdyn.Model, q) -> np.ndarray:
    M, J = np.asarray(jaxdyn.crba(model, q)), np.asarray(jaxdyn.constraint_jacobian(model, q))
    Y = np.linalg.solve(M, J.T)
    return np.linalg.inv(M) - Y @ np.linalg.pinv(J @ Y, rcond=1e-10) @ Y.T


@pytest.mark.slow
def test_operational_space_inertia_of_a_constrained_body():
    model = tethered()
    q = np.asarray(jaxdyn.project_configuration(model, model.random_configuration(jax.random.key(0))).q)
    found = jaxdyn.operational_space_inertia(model, q, "body", part="linear")
    J = np.asarray(jaxdyn.frame_jacobian(model, q, "body", "local_world_aligned"))[:3]
    np.testing.assert_allclose(found, np.linalg.inv(J @ projected_inverse(model, q) @ J.T), rtol=1e-9)
    free = jaxdyn.operational_space_inertia(model.without_loops(), q, "body", part="linear")
    assert np.abs(np.asarray(found) - np.asarray(free)).max() > 0.1


@pytest.mark.slow
def test_kept_joints_stay_where_they_are():
    model = four_bar()
    guess = np.stack([close_four_bar(x) for x in (0.4, 1.1)])
    guess[:, 1:] += 0.1
    found = jax.jit(lambda q: jaxdyn.project_configuration(model, q, kept=("a",)))(guess)
    assert (found.status == Status.CONVERGED).all()
    np.testing.assert_allclose(found.q, [close_four_bar(x) for x in (0.4, 1.1)], atol=1e-11)
    by_q = jax.jit(jax.jacrev(lambda q: jaxdyn.project_configuration(model, q, kept=("a",)).q))(guess[0])
    h = 1e-5
    slope = (close_four_bar(0.4 + h) - close_four_bar(0.4 - h)) / (2 * h)
    np.testing.assert_allclose(by_q, np.outer(slope, [1, 0, 0]), atol=1e-8)
