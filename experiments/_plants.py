"""Simulators in place of the real robot in closed loops: MuJoCo, or this library with finer steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import DataError, Model, State, step, to_mjcf

type Plant = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Returns the next state for the state `[q, v]` and the joints' torques, which are held for one period."""


def mujoco_plant(model: Model, dt: float, substeps: int = 10) -> Plant:
    """Return MuJoCo with `substeps` in a period of `dt` s, for joints whose velocities are the rates of coordinates.

    Viscous damping is MuJoCo's; Coulomb friction is applied as the smooth torque of `model`, since MuJoCo's is a
    constraint. **Raises** `DataError` where MuJoCo is not installed.
    """
    try:
        import mujoco
    except ImportError:
        raise DataError("MuJoCo is not installed: pip install 'jaxdyn[mjcf]', or take another engine") from None
    if model.nq != model.nv:
        raise DataError("this plant is for joints of one degree of freedom each")
    friction, scale = np.asarray(model.friction), np.asarray(model.friction_velocity)
    frictionless = dataclasses.replace(model, friction=jnp.zeros_like(model.friction))
    engine = mujoco.MjModel.from_xml_string(to_mjcf(frictionless, dt / substeps, limits=False, actuators=(), shapes=()))  # type: ignore[attr-defined]
    data = mujoco.MjData(engine)  # type: ignore[attr-defined]
    nq = model.nq

    def advance(x: np.ndarray, tau: np.ndarray) -> np.ndarray:
        data.qpos[:], data.qvel[:] = x[:nq], x[nq:]
        for _ in range(substeps):
            data.qfrc_applied[:] = tau - friction * np.tanh(data.qvel / scale)
            mujoco.mj_step(engine, data)  # type: ignore[attr-defined]
        return np.concatenate([data.qpos, data.qvel])

    return advance


@jax.jit
def _runge_kutta(model: Model, x, tau, dt):
    state = step(model, State(x[: model.nq], x[model.nq :]), tau, dt, integrator="rk4", substeps=4)
    return jnp.concatenate([state.q, state.v])


def jaxdyn_plant(model: Model, dt: float) -> Plant:
    """Return this library with four steps of the Runge-Kutta method in a period."""
    return lambda x, tau: np.asarray(_runge_kutta(model, x, tau, dt))


def plant_of(engine: str, model: Model, dt: float) -> Plant:
    """Return the plant of an engine, `mujoco` or `jaxdyn`."""
    return mujoco_plant(model, dt) if engine == "mujoco" else jaxdyn_plant(model, dt)


def drive(plant: Plant, actuation: np.ndarray | None) -> Plant:
    """Return the plant as a function of the controls `u` of `tau = B u`."""
    return plant if actuation is None else lambda x, u: plant(x, actuation @ u)


def wrong_masses(model: Model, size: float, rng: np.random.Generator) -> Model:
    """Return a model whose bodies are heavier or lighter by the part `size`, at random, with their inertias."""
    factor = 1 + size * rng.choice([-1.0, 1.0], (model.nb, 1))
    return dataclasses.replace(model, inertial_parameters=model.inertial_parameters * factor)
