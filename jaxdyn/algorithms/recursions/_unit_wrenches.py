"""Momenta and wrenches of bodies for a unit of each inertial parameter: the columns of the regressors.

With `I(p)` the inertia of the ten parameters `p` of a body, about its origin in its axes, momentum and inertial force
are linear in `p` (Atkeson, An & Hollerbach, Estimation of inertial parameters of manipulator loads and links, 1986,
section 3).
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jaxdyn._compile import once
from jaxdyn.algorithms.recursions._body_frames import components, force_from, motion_in, row_vectors
from jaxdyn.algorithms.recursions._dof_matrices import DofMatrices
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.spatial import Force, Motion, Pose, Vec3
from jaxdyn.tree import take_rows


def bodies_axes(robot: Robot, poses: Pose, *motions: Motion) -> tuple:
    """Return the poses of the bodies, then the motions in the bodies' axes at their origins, rows `[nb]`, from rows
    `[nv]`."""
    poses, motions = take_rows((poses, motions), robot.topology.body_dofs)
    return poses, *(motion_in(poses, x) for x in motions)


def unit_momenta(v: Motion) -> list[Force]:
    """Return `I(e_k) v` for the ten unit vectors `e_k`: the force is `m u - h x w`, the moment `h x u + J w`."""
    w, u = v.angular, v.linear
    zero = _zero(w.x)
    first = zip(_cross_columns(-u), _cross_columns(w), strict=True)
    return [Force(zero, u), *(Force(n, f) for n, f in first), *(Force(n, zero) for n in _inertia_columns(w))]


def unit_wrenches(v: Motion, v_r: Motion, a_r: Motion) -> list[Force]:
    """Return `I(e_k) a_r + B(e_k, v) v_r` for the ten unit vectors `e_k`, with `B v = v x* I v` and, as in
    `coriolis_matrix`, `B = 1/2 [(v x*) I - I (v x) + (I v) xbar*]`.

    Written out, with `v = (w, u)`, `v_r = (w_r, u_r)`, `a_r = (dw, du)` and `c = du + w_r x u`:

        force  = m c + dw x h + w_r x (w x h)
        moment = h x c + J dw + 1/2 [w x J w_r + w_r x J w - J (w x w_r)]
    """
    w, u, w_r, dw = v.angular, v.linear, v_r.angular, a_r.angular
    zero = _zero(dw.x)
    c = a_r.linear + w_r.cross(u)
    forces = (x + w_r.cross(y) for x, y in zip(_cross_columns(dw), _cross_columns(w), strict=True))
    first = zip(_cross_columns(-c), forces, strict=True)
    columns = (_inertia_columns(x) for x in (dw - w.cross(w_r) * 0.5, w_r * 0.5, w * 0.5))
    moments = (x + w.cross(y) + w_r.cross(z) for x, y, z in zip(*columns, strict=True))
    return [Force(zero, c), *(Force(n, f) for n, f in first), *(Force(n, zero) for n in moments)]


def _zero(like) -> Vec3:
    zero = jnp.zeros_like(like)
    return Vec3(zero, zero, zero)


def _cross_columns(w: Vec3) -> tuple[Vec3, Vec3, Vec3]:
    """Return the columns of `[w x]`."""
    zero = jnp.zeros_like(w.x)
    return Vec3(zero, w.z, -w.y), Vec3(-w.z, zero, w.x), Vec3(w.y, -w.x, zero)


def _inertia_columns(w: Vec3) -> tuple[Vec3, ...]:
    """Return `J w` for the units of `Jxx, Jxy, Jyy, Jxz, Jyz, Jzz`."""
    zero = jnp.zeros_like(w.x)
    return (
        Vec3(w.x, zero, zero),
        Vec3(w.y, w.x, zero),
        Vec3(zero, w.y, zero),
        Vec3(w.z, zero, w.x),
        Vec3(zero, w.z, w.y),
        Vec3(zero, zero, w.z),
    )


def project_on_dofs(robot: Robot, S: Motion, poses: Pose, wrenches: list[Force]):
    """Return the generalized forces `[nv, 10 nb]` of the ten wrenches on each body, which are in its axes."""

    def side_by_side(*rows):
        rows = jnp.stack(jnp.broadcast_arrays(*rows), axis=1)
        return rows.reshape((-1, *rows.shape[2:]))

    wrenches = [force_from(poses, wrench) for wrench in wrenches]
    fx, fy, fz, nx, ny, nz = (side_by_side(*rows) for rows in zip(*map(components, wrenches), strict=True))
    columns = once(Force(Vec3(nx, ny, nz), Vec3(fx, fy, fz)))
    pairs = DofMatrices(robot)
    moves = np.repeat(robot.topology.moves_body.T, 10, axis=1)
    return pairs.result(pairs.where(moves, pairs.products(S, columns)))


def wrenches_by_body(robot: Robot, wrenches: list[Force]):
    """Return `[nb, 6, 10, *batch]`, `[force, moment]` by parameter, from ten wrenches of rows `[nb]`."""
    return jnp.stack([row_vectors(robot, wrench) for wrench in wrenches], axis=2)
