"""One compiled program of what a model computes at a batch of states, shared by the tests that compare it.

The model is an argument, so models with the same tree and the same shape of states share the program. Other processes
of a run take it from the cache of compiled programs (`conftest.py`).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jaxdyn
from tests import draws

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


QUANTITIES = {
    "rnea": lambda m, q, v, x, f_ext: jaxdyn.rnea(m, q, v, x, joint_friction=False),
    "rnea with friction": lambda m, q, v, x, f_ext: jaxdyn.rnea(m, q, v, x),
    "rnea with wrenches": lambda m, q, v, x, f_ext: jaxdyn.rnea(m, q, v, x, f_ext, joint_friction=False),
    "aba": lambda m, q, v, x, f_ext: jaxdyn.aba(m, q, v, 10 * x, joint_friction=False),
    "aba with friction": lambda m, q, v, x, f_ext: jaxdyn.aba(m, q, v, x),
    "aba with wrenches": lambda m, q, v, x, f_ext: jaxdyn.aba(
        m, q, v, jaxdyn.rnea(m, q, v, x, f_ext, joint_friction=False), f_ext, joint_friction=False
    ),
    "crba": lambda m, q, v, x, f_ext: jaxdyn.crba(m, q),
    "nonlinear effects": lambda m, q, v, x, f_ext: jaxdyn.nonlinear_effects(m, q, v),
    "gravity": lambda m, q, v, x, f_ext: jaxdyn.generalized_gravity(m, q),
    "frame jacobian": lambda m, q, v, x, f_ext: {
        name: jaxdyn.frame_jacobian(m, q, last_frame(m), name) for name in REFERENCES
    },
    "frame pose": lambda m, q, v, x, f_ext: jaxdyn.frame_pose(m, q, last_frame(m)).as_matrix(),
    "frame velocity": lambda m, q, v, x, f_ext: jaxdyn.frame_velocity(m, q, v, last_frame(m)),
    "body positions": lambda m, q, v, x, f_ext: jaxdyn.forward_kinematics(m, q).translation,
    "center of mass": lambda m, q, v, x, f_ext: jaxdyn.center_of_mass(m, q),
    "potential energy": lambda m, q, v, x, f_ext: jaxdyn.potential_energy(m, q),
    "kinetic energy": lambda m, q, v, x, f_ext: jaxdyn.kinetic_energy(m, q, v),
}
"""The dynamics with and without joint friction and with wrenches, the kinematics of the last frame, and energies."""


def last_frame(model: jaxdyn.Model) -> str:
    return model.topology.frame_names[-1]


@functools.partial(jax.jit, static_argnames="names")
def evaluate(model: jaxdyn.Model, q, v, x, f_ext, names: tuple[str, ...] = tuple(QUANTITIES)) -> dict:
    """Compute those of `QUANTITIES` that are named."""
    return {name: QUANTITIES[name](model, q, v, x, f_ext) for name in names}


def evaluated(model: jaxdyn.Model, states: States, names: tuple[str, ...] = tuple(QUANTITIES)) -> dict:
    """The values of `evaluate`, in NumPy arrays. Each quantity has native code of its own, which takes long to make for
    a model of many bodies, so only what is compared is named."""
    return jax.tree.map(np.asarray, evaluate(model, *states, names=names))
