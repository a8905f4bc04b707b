"""Velocities with the linear parts of free joints along the axes of the world, as MuJoCo has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jaxdyn.model import Model
from jaxdyn.spatial import Mat3, Quaternion, Vec3


def world_velocity(model: Model, q: Any, v: Any) -> Any:
    """Return velocities or accelerations `[*batch, nv]` whose linear parts of free joints are in body axes with these
    along the axes of the world."""
    return _turned(model, q, v, lambda R, u: R.apply(u))


def body_velocity(model: Model, q: Any, v: Any) -> Any:
    """Return the inverse of `world_velocity`."""
    return _turned(model, q, v, lambda R, u: R.apply_transpose(u))


def _turned(model: Model, q: Any, v: Any, turn: Callable[[Mat3, Vec3], Vec3]) -> Any:
    topology = model.topology
    for i, kind in enumerate(topology.joint_types):
        if kind == "free":
            first, start = topology.q_starts[i], topology.v_starts[i]
            R = Quaternion.from_array(q[..., first + 3 : first + 7]).to_rotation()
            linear = turn(R, Vec3.from_array(v[..., start : start + 3]))
            v = v.at[..., start : start + 3].set(linear.to_array())
    return v
