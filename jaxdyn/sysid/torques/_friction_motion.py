"""The motions that friction depends on, and the torque's derivatives by the numbers in which it is not linear."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jaxdyn.model import Model
from jaxdyn.sysid.torques._effect_values import (
    EffectShape,
    FrictionMotion,
    JointEffectValues,
    change_signal,
    drive_positions,
    friction_directions,
)
from jaxdyn.sysid.torques._effects import JointEffects, delay_signal
from jaxdyn.sysid.torques._layout import DELAYS, SCALES

# The step of differences, as a part of the positive numbers, and in s of delays.
_STEP = 1e-4


def friction_motion(samples: Any, shape: EffectShape, effects: JointEffects) -> FrictionMotion:
    """The motion of `Samples` that friction depends on, but for the load, for numbers of the shape and effects."""
    _, v, a = samples.drive_motion
    u = samples.on_recordings(lambda t, x: delay_signal(t, v[x], a[x], shape.friction_delay))
    direction = samples.on_recordings(lambda t, x: friction_directions(t, u[x], shape))
    position = drive_positions(samples.model, samples.q, samples.transmission)
    change, start, reference = np.zeros_like(u), samples.clock_start, samples.reference_temperature
    if effects.warm_up:
        recorded = samples.temperature
        change = samples.on_recordings(
            lambda t, x: change_signal(t, shape.warm_up, start, None if recorded is None else recorded[x], reference)
        )
    return FrictionMotion(u, direction, np.zeros_like(u), position, change)


def shape_slopes(samples: Any, model: Model, values: JointEffectValues | None) -> dict[str, np.ndarray]:
    """The derivatives `[n, nv]` of the torque with respect to the numbers of the shape that are parameters, by kind,
    for the model and values at which the samples were linearized; zero before."""
    kinds = {kind for kind in (*SCALES, *DELAYS) if samples.layout.dofs(kind)}
    if values is None:
        return {kind: np.zeros_like(samples.u) for kind in kinds}
    damping, coulomb = (np.asarray(x, np.float64) for x in (model.damping, model.friction))

    def friction(shape: EffectShape) -> np.ndarray:
        at = dataclasses.replace(values, stribeck_velocity=shape.stribeck_velocity)
        motion = friction_motion(samples, shape, samples.effects)._replace(load=samples.transmitted)
        return at.friction(damping, coulomb, motion).torque(motion.velocity)

    out = {}
    for kind, name, x in zip((*SCALES, *DELAYS), EffectShape._fields, samples.shape, strict=True):
        if kind == "torque delay" and kind in kinds:
            torque = samples.transmitted + friction(samples.shape)
            out[kind] = -samples.on_recordings(lambda t, part, y=torque: np.gradient(y[part], t, axis=0))
        elif kind in kinds:
            step = _STEP * (1.0 if kind in DELAYS else x)
            above, below = (friction(samples.shape._replace(**{name: x + s * step})) for s in (1, -1))
            out[kind] = (above - below) / np.maximum(2 * step, 1e-300)
    return out
