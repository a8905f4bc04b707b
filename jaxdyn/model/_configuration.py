"""The configuration manifold: integrate and difference on rows `[nq, *batch]` and `[nv, *batch]`, neutral, random."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.model._topology import Topology
from jaxdyn.spatial import Quaternion, Vec3, so3_left_jacobian_apply, so3_left_jacobian_solve
from jaxdyn.tree._walks import take_rows

# Compiled by themselves, for eager use; inside a user's `jit` they are inlined.
_compiled = functools.partial(jax.jit, static_argnums=0, inline=True)


def _split(topology: Topology):
    """The first rows in `q` and `v` of vector coordinates, of ball nodes and of free nodes."""
    kinds, q, v = topology.blocks
    return [(q[mask], v[mask]) for mask in (np.isin(kinds, list("RPH")), kinds == "B", kinds == "F")]


def _rows(x, starts: np.ndarray, offset: int, count: int) -> list:
    return [take_rows(x, starts + offset + k) for k in range(count)]


def _assemble(parts: list[tuple[np.ndarray, jax.Array]], size: int):
    """Rows `[size, *batch]` from pairs of row numbers and rows."""
    parts = [(index, rows) for index, rows in parts if len(index)]
    order = np.argsort(np.concatenate([index for index, _ in parts]))
    assert len(order) == size
    return take_rows(jnp.concatenate([rows for _, rows in parts]), order)


@_compiled
def integrate(topology: Topology, q, dv):
    """`q (+) dv`: displacement by the body twist `dv` over unit time (the exponential of each joint's group)."""
    (sq, sv), (bq, bv), (fq, fv) = _split(topology)
    parts = [(sq, take_rows(q, sq) + take_rows(dv, sv))]
    parts += _turned(q, dv, bq, bv) + _turned(q, dv, fq + 3, fv + 3)
    if len(fq):
        R = Quaternion(*_rows(q, fq, 3, 4)).to_rotation()
        shift = so3_left_jacobian_apply(Vec3(*_rows(dv, fv, 3, 3)), Vec3(*_rows(dv, fv, 0, 3)))
        p = Vec3(*_rows(q, fq, 0, 3)) + R.apply(shift)
        parts += [(fq + k, c) for k, c in enumerate((p.x, p.y, p.z))]
    return _assemble(parts, topology.nq)


@_compiled
def difference(topology: Topology, q0, q1):
    """The `dv`, with rotations of at most half a turn, for which `integrate(q0, dv)` is `q1`."""
    (sq, sv), (bq, bv), (fq, fv) = _split(topology)
    parts = [(sv, take_rows(q1, sq) - take_rows(q0, sq))]
    for start_q, start_v, free in ((bq, bv, False), (fq + 3, fv + 3, True)):
        if not len(start_q):
            continue
        w = _rotation_vector(q0, q1, start_q)
        parts += [(start_v + k, c) for k, c in enumerate((w.x, w.y, w.z))]
        if free:
            shift = Vec3(*_rows(q1, fq, 0, 3)) - Vec3(*_rows(q0, fq, 0, 3))
            R = Quaternion(*_rows(q0, fq, 3, 4)).to_rotation()
            u = so3_left_jacobian_solve(w, R.apply_transpose(shift))
            parts += [(fv + k, c) for k, c in enumerate((u.x, u.y, u.z))]
    return _assemble(parts, topology.nv)


@_compiled
def chart_point(topology: Topology, q0, x):
    """The configuration with the coordinates `x` (rows `[nv]`) of the chart around `q0`: sums for vector coordinates
    and positions (in the axes of the parent), `exp` for rotations. Its origin is `q0`."""
    (sq, sv), (bq, bv), (fq, fv) = _split(topology)
    parts = [(sq, take_rows(q0, sq) + take_rows(x, sv))]
    parts += [(fq + k, take_rows(q0, fq + k) + take_rows(x, fv + k)) for k in range(3)]
    parts += _turned(q0, x, bq, bv) + _turned(q0, x, fq + 3, fv + 3)
    return _assemble(parts, topology.nq)


@_compiled
def chart_rate(topology: Topology, q, x, v):
    """The rate of the chart coordinates `x` of `q` under the velocity `v`: `v` for vector coordinates, `R v` for
    positions, and for rotations the inverse of the right Jacobian of SO(3) at `x` times the body's angular velocity
    (Munthe-Kaas 1999)."""
    (_, sv), (_, bv), (fq, fv) = _split(topology)
    parts = [(sv, take_rows(v, sv))]
    for start in (bv, fv + 3):
        if len(start):
            # The right Jacobian at x is the left one at -x.
            theta, w = Vec3(*_rows(x, start, 0, 3)), Vec3(*_rows(v, start, 0, 3))
            rate = so3_left_jacobian_solve(-theta, w)
            parts += [(start + k, c) for k, c in enumerate((rate.x, rate.y, rate.z))]
    if len(fq):
        R = Quaternion(*_rows(q, fq, 3, 4)).to_rotation()
        u = R.apply(Vec3(*_rows(v, fv, 0, 3)))
        parts += [(fv + k, c) for k, c in enumerate((u.x, u.y, u.z))]
    return _assemble(parts, topology.nv)


def coordinate_cotangent(topology: Topology, q, g):
    """Rows `[nq]`: the derivative by the coordinates of `q` from that by the tangent space, `g`, rows `[nv]`.

    A quaternion stands for its direction, and turns by the body's angular velocity `w` at the rate `q (0, w) / 2`.
    """
    (_, sv), (bq, bv), (fq, fv) = _split(topology)
    if not len(bq) and not len(fq):
        return g
    parts = [(_split(topology)[0][0], take_rows(g, sv))]
    for start_q, start_v, free in ((bq, bv, False), (fq + 3, fv + 3, True)):
        if not len(start_q):
            continue
        a = Quaternion(*_rows(q, start_q, 0, 4))
        norm = a.squared_norm()
        x, y, z = (row * (2 / norm) for row in _rows(g, start_v, 0, 3))
        turned = a.multiply(Quaternion(jnp.zeros_like(x), x, y, z))
        parts += [(start_q + k, c) for k, c in enumerate((turned.w, turned.x, turned.y, turned.z))]
        if free:
            shift = a.to_rotation().apply(Vec3(*_rows(g, fv, 0, 3)))
            parts += [(fq + k, c) for k, c in enumerate((shift.x, shift.y, shift.z))]
    batch = jnp.broadcast_shapes(*(rows.shape[1:] for _, rows in parts))
    return _assemble([(i, jnp.broadcast_to(rows, (rows.shape[0], *batch))) for i, rows in parts], topology.nq)


def _turned(q, dv, start_q: np.ndarray, start_v: np.ndarray) -> list[tuple[np.ndarray, jax.Array]]:
    """The quaternions at `start_q` times the exponentials of the rotation vectors at `start_v`."""
    if not len(start_q):
        return []
    q0 = Quaternion(*_rows(q, start_q, 0, 4))
    q1 = q0.multiply(Quaternion.exp(Vec3(*_rows(dv, start_v, 0, 3)))).normalized()
    return [(start_q + k, c) for k, c in enumerate((q1.w, q1.x, q1.y, q1.z))]


@_compiled
def spring_torque(topology: Topology, stiffness, q0, q):
    """Rows `[nv]`: the gradient, with respect to the motion of `v`, of `spring_energy`.

    `k (q - q0)` for vector coordinates; for a rotation with the vector `x` from `q0` the transposed inverse of its
    right Jacobian, which is the inverse of the left one, times `k x`; for a free joint's position in body axes.
    """
    (sq, sv), (bq, bv), (fq, fv) = _split(topology)
    parts = [(sv, take_rows(stiffness, sv) * (take_rows(q, sq) - take_rows(q0, sq)))]
    for start_q, start_v, free in ((bq, bv, False), (fq + 3, fv + 3, True)):
        if not len(start_q):
            continue
        x = _rotation_vector(q0, q, start_q)
        kx = Vec3(*(k * c for k, c in zip(_rows(stiffness, start_v, 0, 3), (x.x, x.y, x.z), strict=True)))
        torque = so3_left_jacobian_solve(x, kx)
        parts += [(start_v + k, c) for k, c in enumerate((torque.x, torque.y, torque.z))]
        if free:
            shift = [a - b for a, b in zip(_rows(q, fq, 0, 3), _rows(q0, fq, 0, 3), strict=True)]
            force = Vec3(*(k * c for k, c in zip(_rows(stiffness, fv, 0, 3), shift, strict=True)))
            force = Quaternion(*_rows(q, fq, 3, 4)).to_rotation().apply_transpose(force)
            parts += [(fv + k, c) for k, c in enumerate((force.x, force.y, force.z))]
    return _assemble(parts, topology.nv)


@_compiled
def spring_energy(topology: Topology, stiffness, q0, q):
    """`[*batch]`: half of `k` times the square of the displacement from `q0`, over all degrees of freedom; that of a
    rotation is its rotation vector."""
    (sq, sv), (bq, bv), (fq, fv) = _split(topology)
    pairs = [(take_rows(stiffness, sv), take_rows(q, sq) - take_rows(q0, sq))]
    for k in range(3):
        pairs.append((take_rows(stiffness, fv + k), take_rows(q, fq + k) - take_rows(q0, fq + k)))
    for start_q, start_v in ((bq, bv), (fq + 3, fv + 3)):
        if len(start_q):
            x = _rotation_vector(q0, q, start_q)
            pairs += zip(_rows(stiffness, start_v, 0, 3), (x.x, x.y, x.z), strict=True)
    return functools.reduce(jnp.add, (0.5 * (k * x * x).sum(axis=0) for k, x in pairs))


def _rotation_vector(q0, q1, start_q: np.ndarray) -> Vec3:
    """Of the turn from the quaternions in `q0` to those in `q1`."""
    a, b = Quaternion(*_rows(q0, start_q, 0, 4)), Quaternion(*_rows(q1, start_q, 0, 4))
    return a.conjugate().multiply(b).log()


def quaternion_starts(topology: Topology) -> np.ndarray:
    """The first rows in `q` of all quaternions."""
    _, (bq, _), (fq, _) = _split(topology)
    return np.sort(np.concatenate([bq, fq + 3]))


def neutral(topology: Topology) -> np.ndarray:
    q = np.zeros(topology.nq)
    q[quaternion_starts(topology)] = 1.0
    return q


def random_configuration(topology: Topology, key, lower, upper, shape: tuple[int, ...]):
    """`[*shape, nq]`: uniform between finite limits, else angles in [-pi, pi] and shifts in [-1, 1] m; rotations are
    uniform over the sphere of quaternions."""
    kinds, starts_q, _ = topology.blocks
    reach = np.ones(topology.nq)
    angular = starts_q[np.isin(kinds, ["R", "H"])]
    reach[angular] = np.pi
    below, above = jnp.isfinite(lower), jnp.isfinite(upper)
    # One limit alone keeps the length of the range: it starts, or ends, there.
    low = jnp.where(below, lower, jnp.where(above, upper - 2 * reach, -reach))
    high = jnp.where(above, upper, jnp.where(below, lower + 2 * reach, reach))
    key_vector, key_quaternion = jax.random.split(key)
    u = jax.random.uniform(key_vector, (*shape, topology.nq), lower.dtype)
    q = low + (high - low) * u
    starts = quaternion_starts(topology)
    if len(starts):
        # Normalized Gaussian vectors are uniform on the sphere.
        raw = jax.random.normal(key_quaternion, (*shape, len(starts), 4), lower.dtype)
        unit = raw / jnp.linalg.norm(raw, axis=-1, keepdims=True)
        q = q.at[..., (starts[:, None] + np.arange(4)).reshape(-1)].set(unit.reshape((*shape, -1)))
    return q
