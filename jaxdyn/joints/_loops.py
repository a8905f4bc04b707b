"""Constraints beside the tree: loops between two bodies and couplings of two joints; their errors, and the forces that
close loops.

The formulas use component classes (`Vec3`, `Mat3`), so they hold for rows with any batch axes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn.spatial import Force, Mat3, Vec3, so3_log


class Loop(NamedTuple):
    """A constraint between a frame in one body and a frame in another (-1: the world)."""

    name: str
    kind: str
    """A key of `LOOP_ROWS`."""
    body1: int
    body2: int


class Coupling(NamedTuple):
    """A joint whose coordinate is a polynomial of another's, or is held (`joint2` is -1). Both have one coordinate."""

    name: str
    joint1: int
    joint2: int


LOOP_ROWS = {"connect": 3, "weld": 6, "revolute": 5, "cylindrical": 4, "distance": 1}
"""The number of equations of each kind of loop."""
POSITION_ROWS = {"connect": 3, "weld": 3, "revolute": 3, "cylindrical": 2, "distance": 1}
"""The number of those, the first ones, whose errors are lengths."""
FREE_ROWS = {"connect": 0, "weld": 0, "revolute": 0, "cylindrical": 1, "distance": 3}
"""The number of `free_forces`."""


class LoopFrames(NamedTuple):
    """The two frames of loops in the world, rows `[n, *batch]`."""

    R1: Mat3
    R2: Mat3
    d: Vec3
    """From the origin of the first to that of the second."""
    length: Any
    """The distance that loops of the kind `distance` hold."""


def rotation_sines(R: Mat3) -> Vec3:
    """The rotation vector of `so3_log` with the sine of the angle as its length; beyond a quarter turn one for each
    component. It takes 12 operations instead of 108."""
    far = R.x.x + R.y.y + R.z.z < 1
    return Vec3(*(jnp.where(far, 1.0, 0.5 * x) for x in (R.y.z - R.z.y, R.z.x - R.x.z, R.x.y - R.y.x)))


def loop_errors(kind: str, frames: LoopFrames, rotation_error: Callable[[Mat3], Vec3] = so3_log) -> list:
    """Return the errors of the equations of one kind of loop, in the order of `loop_forces`.

    The position of the second frame in the axes of the first; for `weld` the rotation vector of the second frame in the
    first, or another `rotation_error`; for axes z the components of the second along x and y of the first; for
    `distance` `(d . d - length^2) / (2 length)`.
    """
    R1, R2, d, length = frames
    if kind == "distance":
        return [(d.squared_norm() - length * length) / (2 * length)]
    position = [R1.x.dot(d), R1.y.dot(d), R1.z.dot(d)]
    if kind == "connect":
        return position
    if kind == "weld":
        r = rotation_error(R1.T.compose(R2))
        return [*position, r.x, r.y, r.z]
    axis = [R1.x.dot(R2.z), R1.y.dot(R2.z)]
    return position[:2] + axis if kind == "cylindrical" else position + axis


def loop_forces(kind: str, frames: LoopFrames) -> list[Force]:
    """Return for each equation the force, about the origin of the second frame, on the second body, opposite on the
    first, whose power is the rate of the equation's error.

    For the rotation of `weld` this holds where the loop is closed; the rates of all other errors are exact everywhere.
    """
    R1, R2, d, length = frames
    zero = Vec3(*(jnp.zeros_like(d.x) for _ in range(3)))
    if kind == "distance":
        return [Force(zero, d * (1 / length))]
    position = [Force(zero, axis) for axis in (R1.x, R1.y, R1.z)]
    if kind == "connect":
        return position
    if kind == "weld":
        return position + [Force(axis, zero) for axis in (R1.x, R1.y, R1.z)]
    axis = [Force(R2.z.cross(R1.x), zero), Force(R2.z.cross(R1.y), zero)]
    return position[:2] + axis if kind == "cylindrical" else position + axis


def free_forces(kind: str, frames: LoopFrames) -> list[Force]:
    """Return forces like those of `loop_forces` along the directions in which a loop lets the second origin move; for
    `distance` along all directions."""
    R1, _, d, _ = frames
    zero = Vec3(*(jnp.zeros_like(d.x) for _ in range(3)))
    axes = [R1.z, R1.x, R1.y]
    return [Force(zero, axis) for axis in axes[: FREE_ROWS[kind]]]


def loop_force_rates(kind: str, frames: LoopFrames, w1: Vec3, w2: Vec3, d_rate: Vec3) -> list[Force]:
    """Return the rates of `loop_forces`, with the angular velocities of the bodies and the rate of `d`."""
    R1, R2, _d, length = frames
    rates = LoopFrames(_turned(w1, R1), _turned(w2, R2), d_rate, jnp.zeros_like(length))
    return jax.jvp(lambda frames: loop_forces(kind, frames), (frames,), (rates,))[1]


def _turned(w: Vec3, R: Mat3) -> Mat3:
    return Mat3(w.cross(R.x), w.cross(R.y), w.cross(R.z))
