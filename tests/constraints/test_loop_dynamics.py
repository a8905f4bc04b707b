"""Forward dynamics with closed loops, against Pinocchio, published solutions, and dense linear algebra."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

import jaxdyn
from experiments.benchmark_loops import standing_quadruped
from jaxdyn.native._specialize import specialize
from jaxdyn.spatial import compose_poses, quaternion_to_rotation
from tests.constraints import squeezer as andrews
from tests.loop_robots import (
    admissible_velocity,
    bias,
    biped,
    bricard,
    close_four_bar,
    closed_forest,
    dense_dynamics,
    four_bar,
    parallel_cranks,
    pose_of,
    sarrus,
)
from tests.oracles import PinocchioOracle, motion_to_se3, to_pinocchio


@functools.cache
def standing() -> tuple[jaxdyn.Model, np.ndarray, np.ndarray, np.ndarray]:
    """A quadruped with two feet welded to the world where they are, at as many states as its placements have rows."""
    quadruped = jaxdyn.samples.quadruped().with_joint_friction(damping=0.0, friction=0.0)
    q = np.asarray(quadruped.random_configuration(jax.random.key(1), (100,)))
    model = quadruped
    for foot in ("FL_FOOT", "HR_FOOT"):
        model = model.with_loop(foot, "weld", "world", foot, pose_of(quadruped, q, foot))
    v = np.asarray(jax.random.normal(jax.random.key(2), (100, model.nv)))
    v = np.stack([admissible_velocity(at(model, k), q[k], v[k]) for k in range(100)])
    return model, q, v, np.asarray(jax.random.normal(jax.random.key(3), (100, model.nv)))


def at(model: jaxdyn.Model, k: int) -> jaxdyn.Model:
    """The model with the placements of one state."""
    return (
        dataclasses.replace(model, loop_placement1=model.loop_placement1[k])
        if model.loop_placement1.ndim == 3
        else model
    )


def four_bars() -> tuple[jaxdyn.Model, np.ndarray, np.ndarray, np.ndarray]:
    model, rng = four_bar().with_joint_friction(damping=0.0), np.random.default_rng(0)
    q = np.stack([close_four_bar(theta) for theta in rng.uniform(-np.pi, np.pi, 100)])
    v = np.stack([admissible_velocity(model, x, y) for x, y in zip(q, rng.normal(size=(100, 3)), strict=True)])
    return model, q, v, rng.normal(size=(100, 3))


class Pinocchio:
    """Pinocchio's dynamics under the loops of a model, which are of the kinds `connect` and `weld`."""

    def __init__(self, model: jaxdyn.Model):
        self.oracle = PinocchioOracle(model, to_pinocchio(model))
        self.model, topology, tree = model, model.topology, self.oracle.pin_model
        self.constraints, self.data = pin.StdVec_RigidConstraintModel(), pin.StdVec_RigidConstraintData()
        for loop, *poses in zip(topology.loops, model.loop_placement1, model.loop_placement2, strict=True):
            kind = {"connect": pin.ContactType.CONTACT_3D, "weld": pin.ContactType.CONTACT_6D}[loop.kind]
            ends = []
            for body, pose in zip(loop[2:], poses, strict=True):
                name = topology.body_names[body]
                ends += [0 if body < 0 else tree.frames[tree.getFrameId(name)].parentJoint, motion_to_se3(pose)]
            self.constraints.append(pin.RigidConstraintModel(kind, tree, *ends, pin.ReferenceFrame.LOCAL))
        for constraint in self.constraints:
            self.data.append(constraint.createData())

    def derivatives(self, q, v, tau) -> list[np.ndarray]:
        """The derivatives of the accelerations by the tangent space of `q`, by `v` and by the torques."""
        o, tree = self.oracle, self.oracle.pin_model
        data, settings = tree.createData(), pin.ProximalSettings(1e-14, 1e-14, 1e-10, 100)
        pin.initConstraintDynamics(tree, data, self.constraints, self.data)
        pin.constraintDynamics(tree, data, o.q(q), o.v(v), o.v(tau), self.constraints, self.data, settings)
        pin.computeConstraintDynamicsDerivatives(tree, data, self.constraints, self.data, settings)
        rows = np.ix_(o.v_rows, o.v_rows)
        return [np.array(x)[rows] for x in (data.ddq_dq, data.ddq_dv, data.ddq_dtau)]

    def dynamics(self, q, v, tau, mu: float = 1e-10) -> tuple[np.ndarray, np.ndarray]:
        """Accelerations, and forces on the first bodies."""
        o, tree = self.oracle, self.oracle.pin_model
        data, settings = tree.createData(), pin.ProximalSettings(1e-14, 1e-14, mu, 100)
        pin.initConstraintDynamics(tree, data, self.constraints, self.data)
        state = (o.q(q), o.v(v), o.v(tau))
        a = pin.constraintDynamics(tree, data, *state, self.constraints, self.data, settings)
        return a[o.v_rows].copy(), data.lambda_c.copy()


@pytest.mark.parametrize("robot", [four_bars, pytest.param(standing, marks=pytest.mark.slow)])
def test_accelerations_and_forces_are_those_of_pinocchio(robot):
    model, q, v, tau = robot()
    a = np.asarray(jaxdyn.aba(model, q, v, tau))
    f = np.asarray(jaxdyn.constraint_forces(model, q, v, tau))
    for k in range(100):
        expected_a, expected_f = Pinocchio(at(model, k)).dynamics(q[k], v[k], tau[k])
        np.testing.assert_allclose(a[k], expected_a, rtol=0, atol=1e-9 * max(1.0, np.abs(expected_a).max()))
        np.testing.assert_allclose(-f[k], expected_f, rtol=0, atol=1e-8 * max(1.0, np.abs(expected_f).max()))


def solved(K: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The solution of linear equations in extended precision, by Gauss's elimination with pivots."""
    K = np.column_stack([K, y]).astype(np.longdouble)
    for i in range(len(K)):
        pivot = i + np.argmax(np.abs(K[i:, i]))
        K[[i, pivot]] = K[[pivot, i]]
        K[i] /= K[i, i]
        others = np.arange(len(K)) != i
        K[others] -= np.outer(K[others, i], K[i])
    return K[:, -1].astype(float)


@pytest.mark.slow
@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no extended precision")
def test_forces_of_nearly_straight_legs():
    """Ten of 1000 random postures, in which the least eigenvalue of the scaled equations is down to 2e-10."""
    quadruped = jaxdyn.samples.quadruped().with_joint_friction(damping=0.0, friction=0.0)
    q = np.asarray(quadruped.random_configuration(jax.random.key(11), (1000,)))
    model = quadruped
    for foot in ("FL_FOOT", "HR_FOOT"):
        model = model.with_loop(foot, "weld", "world", foot, pose_of(quadruped, q, foot))
    v, tau = (np.asarray(jax.random.normal(jax.random.key(k), (1000, model.nv))) for k in (12, 13))
    J, M = (np.asarray(f(model, q)) for f in (jaxdyn.constraint_jacobian, jaxdyn.crba))
    v = v - np.einsum("kij,kj->ki", np.linalg.pinv(J, rcond=1e-10) @ J, v)
    h, gamma = np.asarray(jaxdyn.rnea(model, q, v, np.zeros(model.nv))), bias(model, q, v)
    a, f = (np.asarray(x(model, q, v, tau)) for x in (jaxdyn.aba, jaxdyn.constraint_forces))
    straight = np.argsort(np.linalg.cond(J))[-10:]
    assert np.linalg.cond(J[straight]).max() > 1e4
    for k in straight:
        K = np.block([[M[k], J[k].T], [J[k], np.zeros((12, 12))]])
        expected = solved(K, np.concatenate([tau[k] - h[k], -gamma[k]]))
        np.testing.assert_allclose(a[k], expected[:18], rtol=0, atol=1e-10 * np.abs(expected[:18]).max())
        np.testing.assert_allclose(-f[k], expected[18:], rtol=0, atol=1e-8 * np.abs(expected[18:]).max())


@pytest.mark.slow
def test_forces_across_the_plane_of_a_mechanism_are_no_rounding_errors():
    """A four-bar whose plane is oblique, with gravity turned along, has the forces of the upright one."""
    model, q, v, tau = four_bars()
    oblique = np.asarray(jaxdyn.SE3.from_rpy(np.array([0.3, -0.5, 0.8]), np.array([0.2, 0.1, -0.3])).to_vector())
    placement = np.array(model.joint_placement)
    placement[[0, 2]] = [compose_poses(oblique, placement[i]) for i in (0, 2)]
    gravity = quaternion_to_rotation(oblique[3:]) @ np.asarray(model.gravity)
    turned = dataclasses.replace(model, joint_placement=jnp.asarray(placement), gravity=jnp.asarray(gravity))
    assert np.abs(np.asarray(jaxdyn.constraint_jacobian(turned, q))[:, 1]).max() > 0
    expected = np.asarray(jaxdyn.constraint_forces(model, q, v, tau))
    f = np.asarray(jaxdyn.constraint_forces(turned, q, v, tau))
    np.testing.assert_allclose(f, expected, rtol=0, atol=1e-9 * np.abs(expected).max())
    closed = jaxdyn.project_configuration(turned, q + 1e-3 * v)
    assert (closed.status == jaxdyn.Status.CONVERGED).all()


@pytest.mark.slow
def test_a_biped_with_rod_loops_as_in_pinocchio():
    """From random guesses; and what the equations across the planes of the legs, which are rounding errors, do not
    do."""
    model, rng = biped(), np.random.default_rng(0)
    guess = model.integrate(model.neutral(), 0.1 * rng.normal(size=(100, model.nv)))
    closed = jaxdyn.project_configuration(model, guess)
    assert (closed.status == jaxdyn.Status.CONVERGED).all()
    v, tau = rng.normal(size=(2, 100, model.nv))
    q, v = np.asarray(closed.q), np.asarray(jaxdyn.project_velocity(model, closed.q, v))
    a, f = (np.asarray(x(model, q, v, tau)) for x in (jaxdyn.aba, jaxdyn.constraint_forces))
    J, oracle = np.asarray(jaxdyn.constraint_jacobian(model, q)), Pinocchio(model)
    across = np.linalg.norm(J, axis=-1) < 1e-12
    assert across.any(axis=0).tolist() == [False] * 4 + [True] + [False] * 5 + [True, False]
    assert not f[across].any()
    for k in range(100):
        expected_a, expected_f = oracle.dynamics(q[k], v[k], tau[k])
        np.testing.assert_allclose(a[k], expected_a, rtol=0, atol=1e-9 * np.abs(expected_a).max())
        here = ~across[k]
        np.testing.assert_allclose(-f[k, here], expected_f[here], rtol=0, atol=1e-8 * np.abs(expected_f).max())


@pytest.mark.slow
def test_derivatives_are_those_of_pinocchio():
    """For feet welded to the world, in postures whose legs are not nearly straight.

    For loops between joints Pinocchio's rates of the equations are in other axes. They differ where the velocity is not
    one that the loops allow, and so do derivatives in such directions.
    """
    model, q, v, tau = standing()
    bent = np.flatnonzero(np.linalg.cond(np.asarray(jaxdyn.constraint_jacobian(model, q))) < 100)
    assert len(bent) > 20
    for k in bent[:20]:
        found = jaxdyn.aba_derivatives(at(model, k), q[k], v[k], tau[k])
        for value, expected in zip(found, Pinocchio(at(model, k)).derivatives(q[k], v[k], tau[k]), strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=1e-8 * np.abs(expected).max())


@pytest.mark.slow
@pytest.mark.parametrize("redundant", [False, True])
def test_all_kinds_as_one_dense_system(redundant):
    model, q, v, tau = closed_forest(redundant)
    J = np.asarray(jaxdyn.constraint_jacobian(model, q))
    rank = np.linalg.matrix_rank(J, tol=1e-9)
    assert len(J) == 20 * (1 + redundant)
    assert 15 < rank < model.nv
    expected = dense_dynamics(model, q, v, tau)
    a = jaxdyn.aba(model, q, v, tau)
    np.testing.assert_allclose(a, expected.a, atol=1e-8 * np.abs(expected.a).max())
    f = np.asarray(jaxdyn.constraint_forces(model, q, v, tau))
    np.testing.assert_allclose(J.T @ f, expected.torque, atol=1e-8 * np.abs(expected.torque).max())
    # The response to torques is that of the mass matrix on what the constraints allow.
    M, N = np.asarray(jaxdyn.crba(model, q)), np.linalg.svd(J)[2][rank:].T
    allowed = N @ np.linalg.solve(N.T @ M @ N, N.T)
    tolerance = 1e-9 * np.abs(allowed).max()
    np.testing.assert_allclose(jaxdyn.solve_mass_matrix(model, q, tau), allowed @ tau, atol=tolerance)
    if not redundant:
        np.testing.assert_allclose(jaxdyn.inverse_mass_matrix(model, q), allowed, atol=tolerance)


def test_squeezer():
    """The accelerations and multipliers of the test set for initial value problems."""
    model = andrews.squeezer()
    q, v = np.zeros((2, 7))
    q[andrews.ORDER] = andrews.Q0
    arguments = q, v, andrews.torque(model), andrews.spring(model, jnp.asarray(q))
    a = np.asarray(jaxdyn.aba(model, *arguments))[andrews.ORDER]
    np.testing.assert_allclose(a, andrews.A0, atol=1e-9 * andrews.A0[0])
    multipliers = andrews.in_world(jaxdyn.constraint_forces(model, *arguments), q)
    np.testing.assert_allclose(multipliers, andrews.FORCES0, atol=1e-9 * andrews.FORCES0[0])


@pytest.mark.slow
def test_followers_and_loops_together():
    """A four-bar whose coupler follows its crank and a rod: the model, and its spanning tree with a coupling."""
    builder, inertia = jaxdyn.ModelBuilder(), jaxdyn.BodyInertia.box(1.0, (0.1, 0.2, 0.3))
    other = jaxdyn.ModelBuilder()
    for b, mimic in ((builder, jaxdyn.Mimic("a", -0.6, 0.1)), (other, None)):
        b.add_body("a", "world", jaxdyn.Joint(name="a", axis=(0, 1, 0.2)), inertia=inertia)
        b.add_body("b", "a", jaxdyn.Joint(name="b", axis=(0, 1, 0), mimic=mimic), (0.3, 0, 0), inertia)
        b.add_body("c", "world", jaxdyn.Joint("ball", name="c"), (0.8, 0, 0), inertia)
        b.add_loop("rod", "distance", "b", "c", (0.2, 0.1, 0), (0, 0, 0.3), length=0.6)
    model, tree = builder.build(), other.add_coupling("mimic", "b", "a", (0.1, -0.6)).build()
    q = np.array([0.3, 0.8, 0.6, 0, 0])
    G = np.insert(np.eye(4), 1, [-0.6, 0, 0, 0], axis=0)
    v, tau = np.random.default_rng(0).normal(size=(2, 4))
    on_tree = np.insert(tau, 1, 0.0)
    expected = jaxdyn.aba(tree, model.spanning_configuration(q), G @ v, on_tree)
    np.testing.assert_allclose(G @ jaxdyn.aba(model, q, v, tau), expected, atol=1e-10)
    forces = jaxdyn.constraint_forces(tree, model.spanning_configuration(q), G @ v, on_tree)
    np.testing.assert_allclose(jaxdyn.constraint_forces(model, q, v, tau), forces[:1], atol=1e-10)


@pytest.mark.slow
def test_native_code_honors_loops():
    from jaxdyn.native import disabled, enabled

    model, q, v, tau = four_bars()
    a = jaxdyn.aba(model, q, v, tau)
    with disabled():
        np.testing.assert_allclose(a, jaxdyn.aba(model, q, v, tau), rtol=1e-9, atol=1e-9)
    text = jax.jit(jaxdyn.aba).lower(model, q, v, tau).as_text()
    assert ("jaxdyn_" in text) == enabled()


@pytest.mark.slow
def test_single_precision():
    for robot in (four_bars, standing):
        model, q, v, tau = robot()
        expected = np.asarray(jaxdyn.aba(model, q, v, tau))
        single = [np.asarray(x, np.float32) for x in (q, v, tau)]
        a = np.asarray(jaxdyn.aba(model.astype(jnp.float32), *single))
        assert a.dtype == np.float32
        error = np.abs(a - expected).max(axis=1) / np.maximum(np.abs(expected).max(axis=1), 1)
        # The legs of some postures are nearly straight.
        assert np.median(error) < 1e-5
        assert np.quantile(error, 0.9) < 1e-2


REDUNDANT = {
    "cranks": parallel_cranks,
    "cranks with revolute pins": lambda: parallel_cranks("revolute"),
    "cranks with cylindrical pins": lambda: parallel_cranks("cylindrical"),
    "Sarrus": sarrus,
    "Bricard": bricard,
}


def in_motion(name: str) -> tuple[jaxdyn.Model, np.ndarray, np.ndarray]:
    """A mechanism of one degree of freedom with redundant equations, and a state whose loops are closed."""
    model, guess = REDUNDANT[name]()
    v = jaxdyn.project_velocity(model, guess, np.ones(model.nv))
    q = jaxdyn.project_configuration(model, guess + 0.2 * v / np.abs(v).max()).q
    v = np.asarray(jaxdyn.project_velocity(model, q, v))
    assert np.abs(jaxdyn.constraint_error(model, q)).max() < 1e-12
    return model, np.asarray(q), v / np.abs(v).max()


@pytest.mark.parametrize("name", REDUNDANT)
def test_redundant_equations_do_not_lock_loops_that_are_a_little_open(name):
    """Rows of loops that are open are independent where those of closed ones are not. Velocities and accelerations, and
    the response to torques, differ by parts of the order of the opening from those of the closed mechanism."""
    model, q, v = in_motion(name)
    openings = np.array([0.0, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3])[:, None, None]
    x = q + openings * np.random.default_rng(0).uniform(-0.5, 0.5, (4, model.nv))
    w = np.asarray(jaxdyn.project_velocity(model, x, v))
    a = np.asarray(jaxdyn.aba(model, x, w, np.zeros(model.nv)))
    inverse = np.asarray(jaxdyn.inverse_mass_matrix(model, x))
    for found, closed in ((w, v), (a, a[0, 0]), (inverse.reshape(7, 4, -1), inverse[0, 0].ravel())):
        assert (np.abs(found - closed) < 1e-9 + 30 * openings * (1 + np.abs(closed).max())).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", REDUNDANT)
def test_runge_kutta_steps_of_redundant_loops_keep_the_energy(name):
    """The stages of a step are open by the square of its displacement."""
    model, q, v = in_motion(name)
    start, lost = jaxdyn.State(q, 4 * v), []
    for dt in (1e-2, 5e-3):
        run = jaxdyn.rollout(model, start, np.zeros((round(1 / dt), model.nv)), dt, integrator="rk4")
        energy = np.asarray(jaxdyn.mechanical_energy(model, run.q, run.v))
        lost.append(np.abs(energy - energy[0]).max() / jaxdyn.kinetic_energy(model, start.q, start.v))
        assert np.abs(run.q[-1] - q).max() > 0.1
    assert lost[0] < 1e-3
    assert lost[1] < lost[0] / 8


def test_loops_do_not_triple_the_operations_of_forward_dynamics():
    """Of a quadruped on two welded feet. Those that only open loops need are few, too."""
    model = standing_quadruped().astype(jnp.float32)
    shapes = [jax.ShapeDtypeStruct((n,), "float32") for n in (model.nq, model.nv, model.nv)]

    def operations(model) -> int:
        return len(specialize(lambda q, v, tau: jaxdyn.aba(model, q, v, tau), shapes, [False] * 3, 32).nodes)

    assert operations(model) < 3 * operations(model.without_loops())
