"""Dynamics, Jacobians and energies against Pinocchio, on robots from files and on random trees of all joint types."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest
from oracles import PinocchioOracle, relative_error, to_pinocchio
from robots import robot_path

import jaxdyn
from jaxdyn.io import load_urdf

STATES = 20
TOLERANCE = 1e-10
ROBOTS = {
    "panda": False,
    "ur5": False,
    "kinova": False,
    "solo12": True,
    "anymal": True,
    "talos_reduced": True,
}
TREES = {"tree of all joints": (0, 14, 3), "chain of all joints": (1, 9, 1)}
REFERENCES = {
    "local": pin.LOCAL,
    "world": pin.WORLD,
    "local_world_aligned": pin.LOCAL_WORLD_ALIGNED,
}


@functools.cache
def case(name: str):
    """A model, Pinocchio's, and random states."""
    if name in ROBOTS:
        path, free = str(robot_path(name)), ROBOTS[name]
        # Pinocchio drops <mimic> unless asked.
        model = load_urdf(path, free_base=free, mimic="independent")
        pin_model = pin.buildModelFromUrdf(path, pin.JointModelFreeFlyer()) if free else pin.buildModelFromUrdf(path)
    else:
        seed, n, branching = TREES[name]
        model = jaxdyn.samples.random_tree(jax.random.key(seed), n, branching=branching)
        pin_model = to_pinocchio(model)
    q = model.random_configuration(jax.random.key(7), (STATES,))
    v, x = jax.random.normal(jax.random.key(8), (2, STATES, model.nv))
    return model, PinocchioOracle(model, pin_model), np.asarray(q), np.asarray(v), np.asarray(x)


@pytest.fixture(params=[*ROBOTS, *TREES], scope="module")
def robot(request):
    return case(request.param)


@pytest.fixture(params=["panda", "talos_reduced", *TREES], scope="module")
def some(request):
    """For what is made of the same parts as the rest: a fixed and a free base, and all joint types."""
    return case(request.param)


def test_rnea(robot):
    model, oracle, q, v, a = robot
    tau = jaxdyn.rnea(model, q, v, a, joint_friction=False)
    assert relative_error(tau, [oracle.rnea(*s) for s in zip(q, v, a, strict=True)]) < TOLERANCE


def test_aba(robot):
    model, oracle, q, v, tau = robot
    a = jaxdyn.aba(model, q, v, 10 * tau, joint_friction=False)
    assert relative_error(a, [oracle.aba(*s) for s in zip(q, v, 10 * tau, strict=True)]) < TOLERANCE


def test_crba(robot):
    model, oracle, q, _, _ = robot
    M = np.asarray(jaxdyn.crba(model, q))
    assert relative_error(M, [oracle.crba(x) for x in q]) < TOLERANCE
    assert (np.swapaxes(M, -1, -2) == M).all()


def test_nonlinear_effects_and_gravity(some):
    model, oracle, q, v, _ = some
    h = jaxdyn.nonlinear_effects(model, q, v)
    assert relative_error(h, [oracle.nonlinear_effects(*s) for s in zip(q, v, strict=True)]) < TOLERANCE
    g = jaxdyn.generalized_gravity(model, q)
    assert relative_error(g, [oracle.nonlinear_effects(x, 0 * v[0]) for x in q]) < TOLERANCE


@pytest.mark.parametrize("reference", REFERENCES)
def test_frame_jacobian(some, reference):
    model, oracle, q, _, _ = some
    frame = model.topology.frame_names[-1]
    J = jaxdyn.frame_jacobian(model, q, frame, reference)
    assert relative_error(J, [oracle.frame_jacobian(x, frame, REFERENCES[reference]) for x in q]) < TOLERANCE


def test_frame_pose_and_velocity(some):
    model, oracle, q, v, _ = some
    frame = model.topology.frame_names[-1]
    pose = jaxdyn.frame_pose(model, q, frame)
    assert relative_error(pose.as_matrix(), [oracle.frame_placement(x, frame).homogeneous for x in q]) < TOLERANCE
    velocity = jaxdyn.frame_velocity(model, q, v, frame)
    expected = [oracle.frame_jacobian(x, frame, pin.LOCAL_WORLD_ALIGNED) @ y for x, y in zip(q, v, strict=True)]
    assert relative_error(velocity, expected) < TOLERANCE


def test_center_of_mass_and_energies(some):
    model, oracle, q, v, _ = some
    moving = model.body_names[-1]
    poses = jaxdyn.forward_kinematics(model, q)
    expected = [oracle.frame_placement(x, moving).translation for x in q]
    assert relative_error(poses.translation[:, -1], expected) < TOLERANCE
    assert float(model.mass.sum()) == pytest.approx(pin.computeTotalMass(oracle.pin_model))
    com = jaxdyn.center_of_mass(model, q)
    assert relative_error(com, [oracle.center_of_mass(x) for x in q]) < TOLERANCE
    potential = jaxdyn.potential_energy(model, q)
    expected = np.array([oracle.potential_energy(x) for x in q])
    assert relative_error(potential, expected) < TOLERANCE
    kinetic = jaxdyn.kinetic_energy(model, q, v)
    # Pinocchio 4.1 leaves the armature of unaligned joints out of its kinetic energy.
    expected = [0.5 * x @ oracle.crba(y) @ x for x, y in zip(v, q, strict=True)]
    assert relative_error(kinetic, expected) < TOLERANCE


@pytest.mark.parametrize("name", ["solo12", "chain of all joints"])
def test_external_wrenches(name):
    model, oracle, q, v, a = case(name)
    f_ext = np.asarray(jax.random.normal(jax.random.key(3), (STATES, model.nb, 6)))
    tau = jaxdyn.rnea(model, q, v, a, f_ext, joint_friction=False)
    difference = jaxdyn.rnea(model, q, v, a, joint_friction=False) - tau
    expected = np.zeros((STATES, model.nv))
    for i, body in enumerate(model.body_names):
        J = np.array([oracle.frame_jacobian(x, body, pin.LOCAL_WORLD_ALIGNED) for x in q])
        expected += np.einsum("bij,bi->bj", J, f_ext[:, i])
    assert relative_error(difference, expected) < TOLERANCE
    assert relative_error(jaxdyn.aba(model, q, v, tau, f_ext, joint_friction=False), a) < 1e-9


class TestSinglePrecision:
    """Against our own double precision; the tolerances are those of the project, not of an algorithm."""

    @pytest.mark.parametrize("far", [0.0, 1000.0], ids=["near", "1 km from the origin"])
    def test_dynamics(self, some, far):
        model, _, q, v, x = some
        if far:
            model, q = moved(model, q.copy(), far)
        v, x = v.astype(np.float32), x.astype(np.float32)
        # The same numbers in both precisions: what is compared is the arithmetic, not the rounding of the input.
        q = q.astype(np.float32)
        single = model.astype(jnp.float32)
        double = single.astype(jnp.float64)
        wide = [y.astype(np.float64) for y in (q, v, x)]
        for function, tolerance in ((jaxdyn.rnea, 1e-5), (jaxdyn.aba, 1e-4)):
            value = function(single, q, v, x, joint_friction=False)
            assert value.dtype == jnp.float32
            assert relative_error(value, function(double, *wide, joint_friction=False)) < tolerance


def moved(model, q, distance: float):
    """The robot with its base `distance` away along (1, -1, 1)."""
    shift = distance * np.array([1.0, -1.0, 1.0]) / np.sqrt(3)
    if model.topology.joint_types[0] == "free":
        q[:, :3] += shift
        return model, q
    roots = np.array([i for i, p in enumerate(model.topology.parents) if p < 0])
    return eqx.tree_at(lambda m: m.joint_placement, model, model.joint_placement.at[roots, :3].add(shift)), q
