"""A simulated recording: a model with changed parameters is excited, simulated, and measured with noise."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, require_positive
from jaxdyn.algorithms import aba, crba, rnea
from jaxdyn.friction import JointFriction
from jaxdyn.io import to_mjcf
from jaxdyn.model import Model
from jaxdyn.sysid import (
    Recording,
    inertial_parameters_from_pseudo_inertia,
    log_cholesky_factor,
    log_cholesky_from_inertial_parameters,
)


@dataclasses.dataclass(frozen=True)
class Simulation:
    """Settings of the simulated recording."""

    seed: int = 0
    """Seed of the changed parameters, the excitation and the noise."""
    duration: float = 20.0
    """Length in s, one period of the excitation."""
    timestep: float = 0.001
    """Time between steps of the simulation and between samples, s."""
    engine: Literal["auto", "mujoco", "jaxdyn"] = "auto"
    """Simulator; `auto` is MuJoCo where it is installed, otherwise this library."""
    change: float = 0.25
    """Size of the random changes of masses, centers of mass and inertias: 0.25 is about 25 %."""
    harmonics: int = 8
    """Number of harmonics in the Fourier series of every joint."""
    noise_position: float = 1e-5
    """Standard deviation of the noise of positions, rad."""
    noise_velocity: float = 1e-3
    """The same for velocities, rad/s."""
    noise_torque: float = 1e-3
    """The same for torques, as a part of the joint's effort limit."""


class SimulatedRecording(NamedTuple):
    """A simulated recording and its truth."""

    measured: Recording
    """With noise, without accelerations."""
    exact: Recording
    """The same without noise."""
    truth: Model
    """The model that was simulated."""
    offset: np.ndarray
    """Constant torques that were added to the measured ones, `[nv]`."""
    engine: str


def simulate_recording(nominal: Model, config: Simulation, friction_velocity: float) -> SimulatedRecording:
    """Track a random band-limited motion with computed torques of the nominal model and feedback, and record it."""
    for name in ("duration", "timestep", "harmonics"):
        require_positive(getattr(config, name), f"simulation.{name}", error=DataError)
    installed = importlib.util.find_spec("mujoco") is not None
    if config.engine == "mujoco" and not installed:
        raise DataError("simulation.engine is 'mujoco', which is not installed: pip install 'jaxdyn[mjcf]'")
    engine = "MuJoCo" if installed and config.engine != "jaxdyn" else "jaxdyn"
    rng = np.random.default_rng(config.seed)
    truth, offset = _change_parameters(nominal, config.change, friction_velocity, rng)
    q, v, a = _excitation(nominal, config, rng)
    plan = q, v, np.asarray(rnea(nominal, jnp.asarray(q), jnp.asarray(v), jnp.asarray(a)))
    inertia = np.diagonal(np.asarray(crba(truth, jnp.asarray(q[0]))))

    def control(q, v, planned):
        # At every joint, feedback like that of a critically damped oscillator of 20 rad/s.
        q_planned, v_planned, feedforward = planned
        return feedforward + 400 * inertia * (q_planned - q) + 40 * inertia * (v_planned - v)

    simulate = _simulate_in_mujoco if engine == "MuJoCo" else _simulate_in_jaxdyn
    q, v, a, motor = (np.asarray(x, np.float64) for x in simulate(truth, plan, control, config.timestep))
    if not np.isfinite(q).all():
        raise DataError("simulation: the motion diverged; take a smaller timestep or change")
    exact = Recording(np.arange(len(q)) * config.timestep, q, v, a, motor + offset)
    noise = config.noise_torque * np.asarray(nominal.effort_limit)
    measured = Recording(
        exact.t,
        q + config.noise_position * rng.standard_normal(q.shape),
        v + config.noise_velocity * rng.standard_normal(v.shape),
        None,
        motor + offset + noise * rng.standard_normal(q.shape),
    )
    return SimulatedRecording(measured, exact, truth, offset, engine)


def _change_parameters(nominal: Model, change: float, friction_velocity: float, rng) -> tuple[Model, np.ndarray]:
    # A random log-Cholesky factor about the body's pseudo-inertia, so every draw is physical; half the change in alpha,
    # since the mass is exp(2 alpha).
    x = 0.5 * change * rng.uniform(-1, 1, (nominal.nb, 10))
    x[:, 1:] *= 2
    U0 = log_cholesky_factor(log_cholesky_from_inertial_parameters(nominal.inertial_parameters))
    U = U0 @ log_cholesky_factor(jnp.asarray(x, U0.dtype))
    inertial = inertial_parameters_from_pseudo_inertia(U @ jnp.swapaxes(U, -1, -2))
    size = np.asarray(nominal.effort_limit) / 100
    armature, damping, friction = (
        size * rng.uniform(low, high, nominal.nv) for low, high in ((0.1, 0.4), (0.5, 2), (1, 4))
    )
    joints = {"armature": armature, "damping": damping, "friction": friction}
    joints["friction_velocity"] = np.full(nominal.nv, friction_velocity)
    leaves = {name: jnp.asarray(x, nominal.dtype) for name, x in joints.items()}
    truth = dataclasses.replace(nominal, inertial_parameters=inertial, **leaves)
    return truth, size * rng.uniform(-1, 1, nominal.nv)


def _excitation(model: Model, config: Simulation, rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw a Fourier series for each joint (Swevers et al. 1997), within 70 % of its range and half its top speed."""
    lower, upper = np.asarray(model.position_lower), np.asarray(model.position_upper)
    speed = np.asarray(model.velocity_limit)
    t = np.arange(round(config.duration / config.timestep)) * config.timestep
    w = 2 * np.pi / config.duration * np.arange(1, config.harmonics + 1)
    amplitude = rng.standard_normal((2, config.harmonics, model.nv)) / np.sqrt(w)[:, None]
    s, c = np.sin(np.outer(t, w)), np.cos(np.outer(t, w))
    q = s @ amplitude[0] + c @ amplitude[1]
    v = c @ (w[:, None] * amplitude[0]) - s @ (w[:, None] * amplitude[1])
    a = -s @ (w[:, None] ** 2 * amplitude[0]) - c @ (w[:, None] ** 2 * amplitude[1])
    scale = np.minimum(0.35 * (upper - lower) / np.abs(q).max(axis=0), 0.5 * speed / np.abs(v).max(axis=0))
    return 0.5 * (lower + upper) + scale * q, scale * v, scale * a


def _leapfrog(acceleration: Callable, control: Callable, timestep: float) -> Callable:
    """Return a step `((q, v, a), planned) -> next, (q, v, a, tau)` under `control(q, v, planned)`.

    The state has the velocity half a step before `q`, and the acceleration a step before. What is recorded belongs to
    one time, to second order in the timestep: a velocity half a step behind would look like friction that is not there.
    """

    def step(state, planned):
        q, before, a = state
        v = before + 0.5 * timestep * a
        tau = control(q, v, planned)
        a = acceleration(q, v, tau)
        after = before + timestep * a
        return (q + timestep * after, after, a), (q, v, a, tau)

    return step


def _simulate_in_mujoco(truth: Model, plan: tuple[np.ndarray, ...], control: Callable, timestep: float):
    """Return `q`, `v`, accelerations and torques, each `[n, nv]`, under `control(q, v, planned)`."""
    import mujoco

    # Friction is applied as a torque, as identification models it: MuJoCo's Coulomb friction is a constraint, and its
    # viscous friction is integrated implicitly.
    zero = jnp.zeros_like(truth.damping)
    frictionless = dataclasses.replace(truth, damping=zero, friction=zero)
    engine = mujoco.MjModel.from_xml_string(to_mjcf(frictionless, timestep, limits=False, actuators=(), shapes=()))  # type: ignore[attr-defined]
    data = mujoco.MjData(engine)  # type: ignore[attr-defined]
    law = JointFriction(*(np.asarray(x) for x in (truth.damping, truth.friction, truth.friction_velocity)))

    def acceleration(q, v, tau):
        data.qpos[:], data.qvel[:], data.qfrc_applied[:] = q, v, tau - law.torque(v)
        mujoco.mj_forward(engine, data)  # type: ignore[attr-defined]
        return data.qacc.copy()

    step, state, rows = _leapfrog(acceleration, control, timestep), (plan[0][0], plan[1][0], 0 * plan[1][0]), []
    for planned in zip(*plan, strict=True):
        state, row = step(state, planned)
        rows.append(row)
    return (np.stack(x) for x in zip(*rows, strict=True))


def _simulate_in_jaxdyn(truth: Model, plan: tuple[np.ndarray, ...], control: Callable, timestep: float):
    """Return the same as `_simulate_in_mujoco`."""
    step = _leapfrog(lambda q, v, tau: aba(truth, q, v, tau), control, timestep)
    plan = jax.tree.map(jnp.asarray, plan)
    return jax.jit(lambda x0, xs: jax.lax.scan(step, x0, xs))((plan[0][0], plan[1][0], 0 * plan[1][0]), plan)[1]
