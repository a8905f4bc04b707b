"""Velocities with the linear parts of free joints along the axes of the world, as MuJoCo has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxdyn.contact import with_vector
from jaxdyn.model import Topology
from jaxdyn.spatial import Mat3, Quaternion, Vec3, so3_left_jacobian_solve


def world_velocity(topology: Topology, q: Any, v: Any) -> Any:
    """Return velocities or accelerations `[*batch, nv]` whose linear parts of free joints are in body axes with these
    along the axes of the world."""
    return _turned(topology, q, v, lambda R, u: R.apply(u))


def body_velocity(topology: Topology, q: Any, v: Any) -> Any:
    """Return the inverse of `world_velocity`."""
    return _turned(topology, q, v, lambda R, u: R.apply_transpose(u))


def _turned(topology: Topology, q: Any, v: Any, turn: Callable[[Mat3, Vec3], Vec3]) -> Any:
    for i, kind in enumerate(topology.joint_types):
        if kind == "free":
            first, start = topology.q_starts[i], topology.v_starts[i]
            R = Quaternion.from_array(q[..., first + 3 : first + 7]).to_rotation()
            linear = turn(R, Vec3.from_array(v[..., start : start + 3]))
            v = with_vector(v, start, linear)
    return v


def rates_of_rotation_vectors(topology: Topology, displacement: Any, v: Any) -> Any:
    """Return velocities `[*batch, nv]` with the angular velocities of ball and free joints, in body axes, as the rates
    of the rotation vectors in `displacement` by which they have turned from the start; of those of more than half a
    turn that of the shorter way to the same rotation, as MuJoCo 4.0 has it."""
    for i, kind in enumerate(topology.joint_types):
        if kind in ("free", "ball"):
            start = topology.v_starts[i] + (3 if kind == "free" else 0)
            turned, angular = (Vec3.from_array(x[..., start : start + 3]) for x in (displacement, v))
            rate = so3_left_jacobian_solve(-_shorter(turned), angular)
            v = with_vector(v, start, rate)
    return v


def _shorter(turned: Vec3) -> Vec3:
    """Return rotation vectors without the whole turns that they have beyond half a turn."""
    square = turned.squared_norm()
    far = square > jnp.pi**2
    angle = jnp.sqrt(jnp.where(far, square, 1.0))
    whole = 2 * jnp.pi * jnp.floor(angle / (2 * jnp.pi) + 0.5)
    return turned * jnp.where(far, (angle - whole) / angle, 1.0)
