"""Dynamics equal MuJoCo's, on models written as MJCF."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from tests import programs
from tests.oracles import MujocoOracle, relative_error

KINDS = ("free", "revolute", "prismatic", "universal", "continuous", "cylindrical", "planar", "ball")


def with_plain_free_joint(model):
    """Return the model without friction, and with free joints at the world's origin without armature and damping.

    MuJoCo ignores the placement of a free joint, and has its armature and damping in world axes."""
    free = np.array([t == "free" for t in model.topology.joint_types])
    mask = np.repeat(~free, np.diff(model.topology.v_starts)).astype(float)
    placement = np.where(free[:, None], [0.0, 0, 0, 1, 0, 0, 0], model.joint_placement)
    return eqx.tree_at(
        lambda m: (m.armature, m.damping, m.friction, m.joint_placement),
        model,
        (model.armature * mask, model.damping * mask, model.friction * 0, jnp.asarray(placement)),
    )


def with_springs(model):
    """Return the model with one stiffness a joint; the references of ball and free joints are their origins, as in
    MuJoCo."""
    topology, rng = model.topology, np.random.default_rng(3)
    stiffness = np.concatenate([np.full(n, rng.uniform(1, 5)) for n in np.diff(topology.v_starts)])
    reference = np.array(model.neutral())
    for i, kind in enumerate(topology.joint_types):
        if kind not in ("ball", "free"):
            reference[topology.q_starts[i] : topology.q_starts[i + 1]] = rng.uniform(-1, 1)
    where, leaves = lambda m: (m.stiffness, m.spring_reference), (jnp.asarray(stiffness), jnp.asarray(reference))
    return eqx.tree_at(where, model, leaves, is_leaf=lambda x: x is None)


MODELS = {
    "tree": lambda: with_springs(with_plain_free_joint(jaxdyn.samples.random_tree(jax.random.key(5), 11, KINDS))),
    "quadruped": lambda: programs.model_named("quadruped"),
    "arm": lambda: programs.model_named("arm"),
}

COMPARED = ("crba", "aba with friction", "rnea with friction")


@pytest.fixture(
    params=["quadruped", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tree", "arm"))], scope="module"
)
def robot(request):
    model = MODELS[request.param]().astype(jnp.float64)
    states = programs.states_of(model)
    return MujocoOracle(model), states, programs.evaluated(model, states, COMPARED)


def test_mass_matrix(robot):
    oracle, states, ours = robot
    assert relative_error(ours["crba"], [oracle.crba(q) for q in states.q]) < 1e-10


def test_forward_dynamics_with_damping(robot):
    oracle, (q, v, tau, _), ours = robot
    expected = [oracle.aba(*s) for s in zip(q, v, tau, strict=True)]
    assert relative_error(ours["aba with friction"], expected) < 1e-10


def test_inverse_dynamics_with_damping(robot):
    oracle, (q, v, a, _), ours = robot
    expected = [oracle.rnea(*s) for s in zip(q, v, a, strict=True)]
    assert relative_error(ours["rnea with friction"], expected) < 1e-10
