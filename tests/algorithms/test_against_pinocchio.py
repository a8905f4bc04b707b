"""Dynamics, Jacobians and energies equal Pinocchio's, on robots from files and on random trees of all joint types."""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pinocchio as pin
import pytest

import jaxdyn
from jaxdyn.io import load_urdf
from tests import programs
from tests.oracles import PinocchioOracle, relative_error, to_pinocchio
from tests.programs import States
from tests.robots import robot_path

TOLERANCE = 1e-10
ROBOTS = {
    "panda": False,
    "ur5": False,
    "kinova": False,
    "solo12": True,
    "anymal": True,
    "talos_reduced": True,
}
NAMES = ("tree", *(pytest.param(name, marks=pytest.mark.slow) for name in ("arm", "quadruped", "chain", *ROBOTS)))
"""Of the floating quadruped, MuJoCo's answers are compared by default."""
REFERENCES = {
    "local": pin.LOCAL,
    "world": pin.WORLD,
    "local_world_aligned": pin.LOCAL_WORLD_ALIGNED,
}
# Pinocchio has no smooth friction.
COMPARED = tuple(name for name in programs.QUANTITIES if not name.endswith("with friction"))


class Case(NamedTuple):
    model: jaxdyn.Model
    oracle: PinocchioOracle
    states: States
    ours: dict


@functools.cache
def case(name: str) -> Case:
    """Return a model, Pinocchio's model, random states, and the values of our algorithms at these states."""
    if name in ROBOTS:
        path, free = str(robot_path(name)), ROBOTS[name]
        # Pinocchio ignores <mimic> by default.
        model = load_urdf(path, free_base=free, mimic="independent").astype(jnp.float64)
        pin_model = pin.buildModelFromUrdf(path, pin.JointModelFreeFlyer()) if free else pin.buildModelFromUrdf(path)
    else:
        chain = name == "chain"
        model = jaxdyn.samples.random_tree(jax.random.key(1), 9, branching=1) if chain else programs.model_named(name)
        pin_model = to_pinocchio(model)
    states = programs.states_of(model)
    return Case(model, PinocchioOracle(model, pin_model), states, programs.evaluated(model, states, COMPARED))


@pytest.fixture(params=NAMES, scope="module")
def robot(request):
    return case(request.param)


def test_rnea(robot):
    _, oracle, (q, v, a, _), ours = robot
    assert relative_error(ours["rnea"], [oracle.rnea(*s) for s in zip(q, v, a, strict=True)]) < TOLERANCE


def test_aba(robot):
    _, oracle, (q, v, x, _), ours = robot
    assert relative_error(ours["aba"], [oracle.aba(*s) for s in zip(q, v, 10 * x, strict=True)]) < TOLERANCE


def test_crba(robot):
    _, oracle, (q, *_), ours = robot
    M = ours["crba"]
    assert relative_error(M, [oracle.crba(x) for x in q]) < TOLERANCE
    assert (np.swapaxes(M, -1, -2) == M).all()


def test_nonlinear_effects_and_gravity(robot):
    _, oracle, (q, v, *_), ours = robot
    expected = [oracle.nonlinear_effects(*s) for s in zip(q, v, strict=True)]
    assert relative_error(ours["nonlinear effects"], expected) < TOLERANCE
    assert relative_error(ours["gravity"], [oracle.nonlinear_effects(x, 0 * v[0]) for x in q]) < TOLERANCE


@pytest.mark.parametrize("reference", REFERENCES)
def test_frame_jacobian(robot, reference):
    model, oracle, (q, *_), ours = robot
    expected = [oracle.frame_jacobian(x, model.topology.frame_names[-1], REFERENCES[reference]) for x in q]
    assert relative_error(ours["frame jacobian"][reference], expected) < TOLERANCE


def test_frame_pose_and_velocity(robot):
    model, oracle, (q, v, *_), ours = robot
    frame = model.topology.frame_names[-1]
    assert relative_error(ours["frame pose"], [oracle.frame_placement(x, frame).homogeneous for x in q]) < TOLERANCE
    expected = [oracle.frame_jacobian(x, frame, pin.LOCAL_WORLD_ALIGNED) @ y for x, y in zip(q, v, strict=True)]
    assert relative_error(ours["frame velocity"], expected) < TOLERANCE


def test_center_of_mass_and_energies(robot):
    model, oracle, (q, v, *_), ours = robot
    expected = [oracle.frame_placement(x, model.body_names[-1]).translation for x in q]
    assert relative_error(ours["body positions"][:, -1], expected) < TOLERANCE
    assert float(model.mass.sum()) == pytest.approx(pin.computeTotalMass(oracle.pin_model))
    assert relative_error(ours["center of mass"], [oracle.center_of_mass(x) for x in q]) < TOLERANCE
    expected = np.array([oracle.potential_energy(x) for x in q])
    assert relative_error(ours["potential energy"], expected) < TOLERANCE
    # Pinocchio 4.1 leaves the armature of unaligned joints out of its kinetic energy.
    expected = [0.5 * x @ oracle.crba(y) @ x for x, y in zip(v, q, strict=True)]
    assert relative_error(ours["kinetic energy"], expected) < TOLERANCE


def test_external_wrenches(robot):
    model, oracle, (q, _, a, f_ext), ours = robot
    expected = np.zeros_like(a)
    for i, body in enumerate(model.body_names):
        J = np.array([oracle.frame_jacobian(x, body, pin.LOCAL_WORLD_ALIGNED) for x in q])
        expected += np.einsum("bij,bi->bj", J, f_ext[:, i])
    assert relative_error(ours["rnea"] - ours["rnea with wrenches"], expected) < TOLERANCE
    assert relative_error(ours["aba with wrenches"], a) < 1e-9


@jax.jit
def dynamics(model, q, v, x):
    return [f(model, q, v, x, joint_friction=False) for f in (jaxdyn.rnea, jaxdyn.aba)]


class TestSinglePrecision:
    """Comparison with our double precision, with the project's tolerances for all algorithms."""

    @pytest.mark.parametrize("far", [0.0, 1000.0], ids=["near", "1 km from the origin"])
    @pytest.mark.parametrize(
        "name", [pytest.param(n, marks=() if n == "tree" else pytest.mark.slow) for n in ("tree", "chain", *ROBOTS)]
    )
    def test_dynamics(self, name, far):
        model, _, (q, v, x, _), _ = case(name)
        if far:
            model, q = moved(model, q.copy(), far)
        v, x = v.astype(np.float32), x.astype(np.float32)
        # The inputs are the same numbers in both precisions, so the test compares the arithmetic, not input rounding.
        q = q.astype(np.float32)
        single = model.astype(jnp.float32)
        double = single.astype(jnp.float64)
        values = dynamics(single, q, v, x)
        expected = dynamics(double, *(y.astype(np.float64) for y in (q, v, x)))
        for value, other, tolerance in zip(values, expected, (1e-5, 1e-4), strict=True):
            assert value.dtype == jnp.float32
            assert relative_error(value, other) < tolerance


def moved(model, q, distance: float):
    """The robot with its base `distance` away along (1, -1, 1)."""
    shift = distance * np.array([1.0, -1.0, 1.0]) / np.sqrt(3)
    if model.topology.joint_types[0] == "free":
        q[:, :3] += shift
        return model, q
    roots = np.array([i for i, p in enumerate(model.topology.parents) if p < 0])
    return eqx.tree_at(lambda m: m.joint_placement, model, model.joint_placement.at[roots, :3].add(shift)), q
