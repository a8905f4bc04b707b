"""A recording of a robot that does not exist: a model with changed parameters, excited, simulated, and measured."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.algorithms import aba, crba, rnea
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
    """How the recording is made."""

    seed: int = 0
    """Of the changed parameters, the excitation and the noise."""
    duration: float = 20.0
    """Length in s, one period of the excitation."""
    timestep: float = 0.001
    """Of the simulation and of the samples, s."""
    engine: Literal["auto", "mujoco", "jaxdyn"] = "auto"
    """`auto`: MuJoCo where it is installed, otherwise this library."""
    change: float = 0.25
    """Size of the random changes of masses, centers of mass and inertias: 0.25 is about 25 %."""
    harmonics: int = 8
    """Of the Fourier series of every joint."""
    noise_position: float = 1e-5
    """Standard deviation, rad."""
    noise_velocity: float = 1e-3
    """rad/s."""
    noise_torque: float = 1e-3
    """As a part of the joint's effort limit."""


class Simulated(NamedTuple):
    measured: Recording
    """With noise, without accelerations."""
    exact: Recording
    """The same without noise."""
    truth: Model
    offset: np.ndarray
    engine: str


def simulate(nominal: Model, config: Simulation, friction_velocity: float) -> Simulated:
    """Track a random band-limited motion with computed torques of the nominal model and feedback, and record it."""
    if config.duration <= 0 or config.timestep <= 0 or config.harmonics < 1:
        raise DataError("simulation: duration, timestep and harmonics must be positive")
    rng = np.random.default_rng(config.seed)
    truth, offset = _changed(nominal, config.change, friction_velocity, rng)
    q, v, a = _excitation(nominal, config, rng)
    feedforward = np.asarray(rnea(nominal, jnp.asarray(q), jnp.asarray(v), jnp.asarray(a)))
    # Feedback as of a unit-mass oscillator of 20 rad/s, critically damped, at every joint.
    inertia = np.diagonal(np.asarray(crba(truth, jnp.asarray(q[0]))))
    plan = _Plan(q, v, feedforward, 400 * inertia, 40 * inertia, config.timestep)
    engine = _engine(config.engine)
    motion = _in_mujoco(truth, plan) if engine == "MuJoCo" else _in_jaxdyn(truth, plan)
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
    return Simulated(measured, exact, truth, offset, engine)


class _Plan(NamedTuple):
    q: np.ndarray
    v: np.ndarray
    feedforward: np.ndarray
    stiffness: np.ndarray
    damping: np.ndarray
    timestep: float


def _changed(nominal: Model, change: float, friction_velocity: float, rng) -> tuple[Model, np.ndarray]:
    # A random log-Cholesky factor about the body's own pseudo-inertia: half the change in alpha, since the mass is
    # exp(2 alpha). Whatever is drawn is physical.
    x = 0.5 * change * rng.uniform(-1, 1, (nominal.nb, 10))
    x[:, 1:] *= 2
    U0 = log_cholesky_factor(log_cholesky_from_inertial_parameters(nominal.inertial_parameters))
    U = U0 @ log_cholesky_factor(jnp.asarray(x, U0.dtype))
    inertial = inertial_parameters_from_pseudo_inertia(U @ jnp.swapaxes(U, -1, -2))
    size = np.asarray(nominal.effort_limit) / 100
    armature, damping, friction = (
        size * rng.uniform(low, high, nominal.nv) for low, high in ((0.1, 0.4), (0.5, 2), (1, 4))
    )
    leaves = (inertial, *(jnp.asarray(x, nominal.dtype) for x in (armature, damping, friction)))
    truth = eqx.tree_at(lambda m: (m.inertial_parameters, m.armature, m.damping, m.friction), nominal, leaves)
    truth = eqx.tree_at(lambda m: m.friction_velocity, truth, jnp.full_like(truth.friction_velocity, friction_velocity))
    return truth, size * rng.uniform(-1, 1, nominal.nv)


def _excitation(model: Model, config: Simulation, rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A Fourier series for each joint (Swevers et al. 1997), scaled into 70 % of its range and half its top speed."""
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


def _engine(wanted: str) -> str:
    if wanted == "jaxdyn":
        return "jaxdyn"
    try:
        import mujoco  # noqa: F401
    except ImportError:
        if wanted == "mujoco":
            raise DataError(
                "simulation.engine is 'mujoco', which is not installed: pip install 'jaxdyn[mjcf]'"
            ) from None
        return "jaxdyn"
    return "MuJoCo"


def _frictionless(model: Model) -> Model:
    """Friction is applied as a torque, as identification models it: MuJoCo's Coulomb friction is a constraint, and its
    viscous one is integrated implicitly."""
    zero = jnp.zeros_like(model.damping)
    return eqx.tree_at(lambda m: (m.damping, m.friction), model, (zero, zero))


def _in_mujoco(truth: Model, plan: _Plan):
    import mujoco

    engine = mujoco.MjModel.from_xml_string(to_mjcf(_frictionless(truth), plan.timestep))  # type: ignore[attr-defined]
    data = mujoco.MjData(engine)  # type: ignore[attr-defined]
    damping, friction, scale = (np.asarray(x) for x in (truth.damping, truth.friction, truth.friction_velocity))
    data.qpos[:], data.qvel[:] = plan.q[0], plan.v[0]
    q, v, a, tau = (np.zeros_like(plan.q) for _ in range(4))
    for k in range(len(plan.q)):
        q[k], v[k] = data.qpos, data.qvel
        tau[k] = plan.feedforward[k] + plan.stiffness * (plan.q[k] - q[k]) + plan.damping * (plan.v[k] - v[k])
        data.qfrc_applied[:] = tau[k] - damping * v[k] - friction * np.tanh(v[k] / scale)
        mujoco.mj_step(engine, data)  # type: ignore[attr-defined]
        a[k] = data.qacc
    return q, v, a, tau


def _in_jaxdyn(truth: Model, plan: _Plan):
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
