"""One compiled program of everything that a model computes at a batch of states, shared by the files that compare it.

The model is an argument, so models with the same tree and the same shape of states share the program. Other processes
of a run take it from the cache of compiled programs (`conftest.py`).
"""

import functools
from typing import NamedTuple

import draws
import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn

STATES = 20
REFERENCES = ("local", "world", "local_world_aligned")
MODELS = {
    "tree": lambda: jaxdyn.samples.random_tree(jax.random.key(0), 10, branching=3),
    "quadruped": jaxdyn.samples.quadruped,
    "arm": jaxdyn.samples.arm,
}
"""A tree of all types of joints, a floating robot, and a robot with a fixed base."""


class States(NamedTuple):
    """Random states, accelerations (or torques) and wrenches, in NumPy arrays `[STATES, ...]`."""

    q: np.ndarray
    v: np.ndarray
    x: np.ndarray
    f_ext: np.ndarray


@functools.cache
def model_named(name: str) -> jaxdyn.Model:
    """The model of `MODELS`, with all arrays of one type that is not weak."""
    return MODELS[name]().astype(jnp.float64)


def states_of(model: jaxdyn.Model) -> States:
    """The states at which the programs are evaluated."""
    return States(*draws.states(model, 7, STATES))


@jax.jit
def evaluate(model: jaxdyn.Model, q, v, x, f_ext) -> dict:
    """Compute the dynamics with and without joint friction and with wrenches, the kinematics of the last frame, and the
    energies."""
    frame = model.topology.frame_names[-1]
    with_wrenches = jaxdyn.rnea(model, q, v, x, f_ext, joint_friction=False)
    return {
        "rnea": jaxdyn.rnea(model, q, v, x, joint_friction=False),
        "rnea with friction": jaxdyn.rnea(model, q, v, x),
        "rnea with wrenches": with_wrenches,
        "aba": jaxdyn.aba(model, q, v, 10 * x, joint_friction=False),
        "aba with friction": jaxdyn.aba(model, q, v, x),
        "aba with wrenches": jaxdyn.aba(model, q, v, with_wrenches, f_ext, joint_friction=False),
        "crba": jaxdyn.crba(model, q),
        "nonlinear effects": jaxdyn.nonlinear_effects(model, q, v),
        "gravity": jaxdyn.generalized_gravity(model, q),
        "frame jacobian": {name: jaxdyn.frame_jacobian(model, q, frame, name) for name in REFERENCES},
        "frame pose": jaxdyn.frame_pose(model, q, frame).as_matrix(),
        "frame velocity": jaxdyn.frame_velocity(model, q, v, frame),
        "body positions": jaxdyn.forward_kinematics(model, q).translation,
        "center of mass": jaxdyn.center_of_mass(model, q),
        "potential energy": jaxdyn.potential_energy(model, q),
        "kinetic energy": jaxdyn.kinetic_energy(model, q, v),
    }


def evaluated(model: jaxdyn.Model, states: States) -> dict:
    """The values of `evaluate`, in NumPy arrays."""
    return jax.tree.map(np.asarray, evaluate(model, *states))
