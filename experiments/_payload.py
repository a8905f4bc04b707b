"""A payload that an arm's controller does not know, and its identification from a recorded motion."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from experiments._motion_tasks import HOME
from experiments._plants import plant_of
from jaxdyn import BodyInertia, Model, crba, generalized_gravity, rnea, torque_regressor, with_payload
from jaxdyn.sysid import Recording, nearest_physical

FRAME = "link7"
_OFFSET = (0.05, 0.0, 0.157)
"""Offset of the payload's center from the frame's origin, m."""


class IdentifiedPayload(NamedTuple):
    """The result of an identification."""

    model: Model
    """The nominal model with the identified payload."""
    numbers: dict[str, Any]
    report: str


def with_cube(model: Model, mass: float) -> Model:
    """Return the arm with a cube of `mass` kg and 10 cm at its flange, off the axis."""
    return with_payload(model, FRAME, BodyInertia.box(mass, (0.1, 0.1, 0.1), _OFFSET))


def identify_payload(nominal: Model, robot: Model, engine: str, seed: int, seconds: float = 6.0) -> IdentifiedPayload:
    """Move `robot` for a while, and fit the ten parameters of a payload to the difference of its torques from those of
    `nominal`.

    Ordinary least squares on the regressor of the link that holds the payload (Atkeson, An & Hollerbach, Estimation of
    inertial parameters of manipulator loads and links, IJRR 1986), then the nearest inertia that a body can have.
    """
    recording = _record(nominal, robot, engine, seed, seconds).filtered(10.0).differentiated()
    q, v, a = (jnp.asarray(x) for x in (recording.q, recording.v, recording.a))
    body = nominal.body_names.index(FRAME)
    Y = np.asarray(torque_regressor(nominal, q, v, a))[..., 10 * body : 10 * body + 10]
    difference = np.asarray(recording.tau) - np.asarray(rnea(nominal, q, v, a))
    fit, *_ = np.linalg.lstsq(Y.reshape(-1, 10), difference.reshape(-1), rcond=None)
    fit = np.asarray(nearest_physical(jnp.asarray(fit)))
    true = np.asarray(robot.inertial_parameters[body] - nominal.inertial_parameters[body])
    numbers = {"identified": fit.tolist(), "true": true.tolist()}
    report = (
        f"payload from {recording.t[-1] - recording.t[0]:.1f} s of motion: {fit[0]:.4f} kg (true {true[0]:.4f}), "
        f"center at {np.round(fit[1:4] / fit[0], 4).tolist()} m (true {np.round(true[1:4] / true[0], 4).tolist()})"
    )
    return IdentifiedPayload(with_payload(nominal, FRAME, jnp.asarray(fit)), numbers, report)


def _record(nominal: Model, robot: Model, engine: str, seed: int, seconds: float, rate: float = 500.0) -> Recording:
    """Record random waves about `HOME`, under torques of the nominal model and feedback, with noise."""
    rng = np.random.default_rng(seed)
    dt, steps = 1 / rate, round(seconds * rate)
    t = dt * np.arange(steps)
    w = 2 * np.pi / seconds * np.arange(1, 7)
    phases, sizes = rng.uniform(0, 2 * np.pi, (6, 7)), rng.uniform(0.05, 0.12, (6, 7))
    wave = np.sin(w[:, None] * t[:, None, None] + phases)
    # The waves grow in the first second, from rest at HOME.
    grow = np.minimum(t, 1.0)[:, None]
    target = HOME + grow * (sizes * wave).sum(axis=1)
    rates = np.gradient(target, dt, axis=0)
    plant = plant_of(engine, robot, dt)
    hold = np.asarray(generalized_gravity(nominal, jnp.asarray(target)))
    # The feedback makes every joint a critically damped oscillator of 20 rad/s while the other joints are free. With
    # gains for locked joints the loop, which holds each torque for a period, would be unstable.
    inertia = 1 / np.diagonal(np.linalg.inv(np.asarray(crba(nominal, jnp.asarray(HOME)))))
    stiff, damp = 400 * inertia, 40 * inertia
    x = np.concatenate([HOME, np.zeros(7)])
    xs, taus = np.empty((steps, 14)), np.empty((steps, 7))
    for k in range(steps):
        xs[k] = x
        taus[k] = hold[k] + stiff * (target[k] - x[:7]) + damp * (rates[k] - x[7:])
        x = plant(x, taus[k])
    noise = rng.standard_normal((3, steps, 7)) * np.array([1e-5, 1e-3, 0.05])[:, None, None]
    return Recording(t, xs[:, :7] + noise[0], xs[:, 7:] + noise[1], None, taus + noise[2])
