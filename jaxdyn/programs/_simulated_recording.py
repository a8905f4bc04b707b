"""A simulated recording: a model with changed parameters is excited, simulated, and measured with noise."""

from __future__ import annotations

import dataclasses
import importlib.util
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
    rng = np.random.default_rng(config.seed)
    truth, offset = _change_parameters(nominal, config.change, friction_velocity, rng)
    q, v, a = _excitation(nominal, config, rng)
    feedforward = np.asarray(rnea(nominal, jnp.asarray(q), jnp.asarray(v), jnp.asarray(a)))
    # At every joint, feedback like that of a critically damped oscillator of 20 rad/s.
    inertia = np.diagonal(np.asarray(crba(truth, jnp.asarray(q[0]))))
    plan = _Plan(q, v, feedforward, 400 * inertia, 40 * inertia, config.timestep)
    engine = _installed_engine(config.engine)
    motion = _simulate_in_mujoco(truth, plan) if engine == "MuJoCo" else _simulate_in_jaxdyn(truth, plan)
    q, v, a, motor = (np.asarray(x, np.float64) for x in motion)
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


class _Plan(NamedTuple):
    """The motion to track, the torques for it, and the gains of the feedback."""

    q: np.ndarray
    v: np.ndarray
    feedforward: np.ndarray
    stiffness: np.ndarray
    damping: np.ndarray
    timestep: float


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


def _installed_engine(engine: str) -> str:
    installed = importlib.util.find_spec("mujoco") is not None
    if engine == "mujoco" and not installed:
        raise DataError("simulation.engine is 'mujoco', which is not installed: pip install 'jaxdyn[mjcf]'")
    return "MuJoCo" if installed and engine != "jaxdyn" else "jaxdyn"


def _simulate_in_mujoco(truth: Model, plan: _Plan):
    import mujoco

    # Friction is applied as a torque, as identification models it: MuJoCo's Coulomb friction is a constraint, and its
    # viscous friction is integrated implicitly.
    zero = jnp.zeros_like(truth.damping)
    frictionless = dataclasses.replace(truth, damping=zero, friction=zero)
    engine = mujoco.MjModel.from_xml_string(to_mjcf(frictionless, plan.timestep))  # type: ignore[attr-defined]
    data = mujoco.MjData(engine)  # type: ignore[attr-defined]
    law = JointFriction(*(np.asarray(x) for x in (truth.damping, truth.friction, truth.friction_velocity)))
    data.qpos[:], data.qvel[:] = plan.q[0], plan.v[0]
    q, v, a, tau = (np.zeros_like(plan.q) for _ in range(4))
    for k in range(len(plan.q)):
        q[k], v[k] = data.qpos, data.qvel
        tau[k] = plan.feedforward[k] + plan.stiffness * (plan.q[k] - q[k]) + plan.damping * (plan.v[k] - v[k])
        data.qfrc_applied[:] = tau[k] - law.torque(v[k])
        mujoco.mj_step(engine, data)  # type: ignore[attr-defined]
        a[k] = data.qacc
    return q, v, a, tau


def _simulate_in_jaxdyn(truth: Model, plan: _Plan):
    def step(state, reference):
        q, v = state
        q_ref, v_ref, feedforward = reference
        tau = feedforward + plan.stiffness * (q_ref - q) + plan.damping * (v_ref - v)
        a = aba(truth, q, v, tau)
        new_v = v + plan.timestep * a
        return (q + plan.timestep * new_v, new_v), (q, v, a, tau)

    references = tuple(jnp.asarray(x) for x in (plan.q, plan.v, plan.feedforward))
    _, motion = jax.jit(lambda x0, xs: jax.lax.scan(step, x0, xs))((references[0][0], references[1][0]), references)
    return motion
