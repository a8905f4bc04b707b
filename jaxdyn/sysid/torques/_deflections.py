"""Links that stand behind their motors, where encoders are: by the flexibility and the backlash of joints."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import signals
from jaxdyn.sysid.torques._effects import JointEffects, frictionless_torque

SLOW = 0.25
"""The part of the cutoff below which deflections count: noise of the positions grows with the fourth power of the
frequency in them."""
# The largest deflection of the differences that give the torque's derivatives, rad or m.
_STEP = 1e-3
# A backlash changes its side while the torque is below this part of its root mean square.
_SIDE = 0.05

DEFLECTED = ("compliance", "backlash")
"""The kinds of parameters of deflections."""


def require_simple_joints(model: Model, effects: JointEffects, transmission: np.ndarray | None) -> None:
    """Raise `DataError` for deflections of joints in loops, behind a transmission, or with several coordinates."""
    chosen = [x for x in ("flexibility", "backlash") if effects.dofs(x, model).any()]
    if chosen and (model.topology.has_loops or transmission is not None or model.nq != model.nv):
        raise DataError(
            f"effects: {', '.join(chosen)} is for trees whose joints have one coordinate and a motor each; leave it out"
        )


def deflection_torque(model: Model, t, motion: tuple[Any, ...], compliance, backlash, cutoff: float) -> np.ndarray:
    """The change `[n, nv]` of the torque by deflections in a motion `q, v, a` of the motors, to first order."""
    flexible, loose = _ways(model, t, motion, cutoff)
    return _slope(model, motion, compliance * flexible + backlash * loose)


def deflection_slopes(
    model: Model, t, motion: tuple[Any, ...], cutoff: float, joints: dict[str, list[int]]
) -> dict[tuple[str, int], np.ndarray]:
    """The derivatives `[n, nv]` of the torque of all joints with respect to the compliance (rad/(N m)) and the backlash
    (rad) of the `joints`."""
    out = {}
    for kind, way in zip(DEFLECTED, _ways(model, t, motion, cutoff), strict=True):
        for j in joints.get(kind, ()):
            alone = np.zeros(model.nv)
            alone[j] = 1.0
            out[kind, j] = _slope(model, motion, way * alone)
    return out


def _ways(model: Model, t, motion: tuple[Any, ...], cutoff: float) -> tuple[np.ndarray, np.ndarray]:
    """The deflections of the links with their first and second derivatives, `[3, n, nv]`, for a unit of compliance, and
    for one of backlash, whose jumps have none."""
    load = _rigid(model, motion)
    rate = (len(t) - 1) / float(t[-1] - t[0])
    if cutoff < 0.4 * rate and len(t) > signals.padding(4):
        load = signals.low_pass(load, rate, cutoff, 4)
    slope = np.gradient(load, t, axis=0)
    side = np.tanh(load / np.maximum(_SIDE * np.sqrt(np.mean(load**2, axis=0)), 1e-300))
    zero = np.zeros_like(side)
    return -np.stack([load, slope, np.gradient(slope, t, axis=0)]), -0.5 * np.stack([side, zero, zero])


def _slope(model: Model, motion: tuple[Any, ...], way: np.ndarray) -> np.ndarray:
    """The derivative `[n, nv]` of the torque along a way `[3, n, nv]` of the motion."""
    step = _STEP / max(float(np.abs(way[0]).max()), 1e-300)
    above, below = (_rigid(model, tuple(x + s * step * y for x, y in zip(motion, way, strict=True))) for s in (1, -1))
    return (above - below) / (2 * step)


def _rigid(model: Model, motion: tuple[Any, ...]) -> np.ndarray:
    """The torque of the links: rotors move with the motors."""
    links = dataclasses.replace(model, armature=jnp.zeros_like(model.armature))
    return frictionless_torque(links, *motion)
