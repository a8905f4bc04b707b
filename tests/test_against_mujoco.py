"""Dynamics against MuJoCo, on models written as MJCF."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import MujocoOracle, relative_error

import jaxdyn

STATES = 20
KINDS = ("free", "revolute", "prismatic", "universal", "continuous", "cylindrical", "planar", "ball")


def with_plain_free_joint(model):
    """MuJoCo has a free joint in the world whatever its placement, with its armature and damping in world axes."""
    free = np.array([t == "free" for t in model.topology.joint_types])
    mask = np.repeat(~free, np.diff(model.topology.v_starts)).astype(float)
    placement = np.where(free[:, None], [0.0, 0, 0, 1, 0, 0, 0], model.joint_placement)
    return eqx.tree_at(
        lambda m: (m.armature, m.damping, m.friction, m.joint_placement),
        model,
        (model.armature * mask, model.damping * mask, model.friction * 0, jnp.asarray(placement)),
    )


def with_springs(model):
    """One stiffness a joint; the references of ball and free joints are their origins, as MuJoCo's are."""
    topology, rng = model.topology, np.random.default_rng(3)
    stiffness = np.concatenate([np.full(n, rng.uniform(1, 5)) for n in np.diff(topology.v_starts)])
    reference = np.array(model.neutral())
    for i, kind in enumerate(topology.joint_types):
        if kind not in ("ball", "free"):
            reference[topology.q_starts[i] : topology.q_starts[i + 1]] = rng.uniform(-1, 1)
    where, leaves = lambda m: (m.stiffness, m.spring_reference), (jnp.asarray(stiffness), jnp.asarray(reference))
    return eqx.tree_at(where, model, leaves, is_leaf=lambda x: x is None)


MODELS = {
    "springs": lambda: with_springs(
        with_plain_free_joint(
            jaxdyn.samples.random_tree(jax.random.key(6), 4, ("free", "ball", "revolute", "prismatic"))
        )
    ),
    "arm": lambda: jaxdyn.samples.arm(),
    "quadruped": lambda: jaxdyn.samples.quadruped(),
    "tree": lambda: with_plain_free_joint(jaxdyn.samples.random_tree(jax.random.key(5), 11, KINDS)),
}


@pytest.fixture(params=MODELS, scope="module")
def robot(request):
    model = MODELS[request.param]()
    q = model.random_configuration(jax.random.key(1), (STATES,))
    v, x = jax.random.normal(jax.random.key(2), (2, STATES, model.nv))
    return model, MujocoOracle(model), np.asarray(q), np.asarray(v), np.asarray(x)


def test_mass_matrix(robot):
    model, oracle, q, _, _ = robot
    assert relative_error(jaxdyn.crba(model, q), [oracle.crba(x) for x in q]) < 1e-10


def test_forward_dynamics_with_damping(robot):
    model, oracle, q, v, tau = robot
    expected = [oracle.aba(*s) for s in zip(q, v, tau, strict=True)]
    assert relative_error(jaxdyn.aba(model, q, v, tau), expected) < 1e-10


def test_inverse_dynamics_with_damping(robot):
    model, oracle, q, v, a = robot
    expected = [oracle.rnea(*s) for s in zip(q, v, a, strict=True)]
    assert relative_error(jaxdyn.rnea(model, q, v, a), expected) < 1e-10
