"""Locking and attaching as operations on the rows of a model's leaves.

Every leaf is a table whose rows belong to joints, coordinates, frames and so on; another structure is another selection
of rows, with placements composed and inertias added where bodies merge. Everything is vectorized over rows and leading
batch axes, in few operations.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._types import Array
from jaxdyn.model._configuration import neutral
from jaxdyn.model._fields import ModelFields
from jaxdyn.model._topology import PRIMITIVES, Topology

# Of which thing the rows of every leaf are, and how many axes a leaf has without batch axes.
ROWS: dict[str, tuple[str | None, int]] = {
    "joint_placement": ("joint", 2),
    "joint_axis": ("axis", 2),
    "joint_pitch": ("pitch", 1),
    "inertial_parameters": ("joint", 2),
    "armature": ("v", 1),
    "damping": ("v", 1),
    "friction": ("v", 1),
    "friction_velocity": ("v", 1),
    "gravity": (None, 1),
    "frame_placement": ("frame", 2),
    "attached_parameters": ("link", 2),
    "position_lower": ("q", 1),
    "position_upper": ("q", 1),
    "velocity_limit": ("v", 1),
    "effort_limit": ("v", 1),
    "mimic_multiplier": ("mimic", 1),
    "mimic_offset": ("mimic", 1),
    "stiffness": ("v", 1),
    "spring_reference": ("q", 1),
}
IDENTITY = np.array([0.0, 0, 0, 1, 0, 0, 0])


def in_numpy_if_known[**P, R](*static: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """The decorator of functions of a model, arrays, and static arguments by name, which return arrays or a model.

    An edit happens once, and for each structure anew, so compiling it would be most of the time: where all numbers are
    known NumPy computes it, in double precision. While tracing the same text runs on traced arrays. (The components of
    `jaxdyn.spatial` are many operations: locking three joints of a quadruped took 15 s to compile with them, and takes
    1 s with arrays.)
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        plain: Callable[..., R] = function
        traced: Callable[..., R] = jax.jit(function, static_argnames=static, inline=True)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            if any(isinstance(x, Tracer) for x in jax.tree.leaves((args, kwargs))):
                return traced(*args, **kwargs)
            dtype = args[0].dtype  # type: ignore[reportAttributeAccessIssue]
            known, options = jax.tree.map(lambda x: np.asarray(x, np.float64) if _is_array(x) else x, (args, kwargs))
            return jax.tree.map(lambda x: jnp.asarray(x, dtype), plain(*known, **options))

        return wrapper

    return decorate


def _is_array(x) -> bool:
    return isinstance(x, jax.Array | np.ndarray | np.generic)


def library(*arrays) -> Any:
    """NumPy for its own arrays, else `jax.numpy`."""
    return np if all(isinstance(x, np.ndarray | np.generic) for x in arrays) else jnp


# Rows, and the joints that they belong to


def owners(topology: Topology) -> dict[str, np.ndarray]:
    """For every kind of row that belongs to joints: the joint of each."""
    numbers = np.arange(topology.nb)
    words = [PRIMITIVES[t] for t in topology.joint_types]
    return {
        "joint": numbers,
        "axis": np.repeat(numbers, [sum(k in "RPH" for k in word) for word in words]),
        "pitch": np.repeat(numbers, [word.count("H") for word in words]),
        "q": np.repeat(numbers, np.diff(topology.q_starts)),
        "v": np.repeat(numbers, np.diff(topology.v_starts)),
    }


def of_joints(owner: np.ndarray, joints: Sequence[int]) -> np.ndarray:
    """The rows of joints, in the order of the joints."""
    return np.concatenate([np.zeros(0, int), *(np.flatnonzero(owner == j) for j in joints)]).astype(int)


def take(x, rows, core: int):
    """Rows of `[*batch, n]` (core 1) or `[*batch, n, k]` (core 2)."""
    rows = np.asarray(rows, int)
    first = int(rows[0]) if len(rows) else 0
    if np.array_equal(rows, np.arange(first, first + len(rows))):
        # A selection costs the compiler more than a slice does, most of all its derivative.
        return x[..., first : first + len(rows)] if core == 1 else x[..., first : first + len(rows), :]
    return x[..., rows] if core == 1 else x[..., rows, :]


def join(parts: Sequence[Any], core: int):
    """Tables one after the other; batch axes broadcast."""
    batch = np.broadcast_shapes(*(x.shape[: x.ndim - core] for x in parts))
    lib = library(*parts)
    return lib.concatenate([lib.broadcast_to(x, (*batch, *x.shape[x.ndim - core :])) for x in parts], axis=-core)


def append(table, row):
    """`[*batch, n + 1, k]` from `[*batch, n, k]` and `[*batch, k]`."""
    return join([table, row[..., None, :]], 2)


def add_rows(table, index: Sequence[int], rows):
    """`[*batch, n, k]` with `rows` `[*batch, m, k]` added at `index` `[m]`, but not where that is negative."""
    at = np.flatnonzero(np.asarray(index, int) >= 0)
    if not len(at):
        return table
    rows, to = take(rows, at, 2), np.asarray(index, int)[at]
    table = _widened(table, rows.shape[:-2])
    if library(table, rows) is np:
        out = table.copy()
        for k, i in enumerate(to):
            out[..., i, :] += rows[..., k, :]
        return out
    return jnp.asarray(table).at[..., to, :].add(rows)


def set_row(table, i: int, row):
    """`[*batch, n, k]` with row `i` replaced by `[*batch, k]`."""
    table = _widened(table, row.shape[:-1])
    if library(table, row) is np:
        out = table.copy()
        out[..., i, :] = row
        return out
    return jnp.asarray(table).at[..., i, :].set(row)


def _widened(table, batch: tuple[int, ...]):
    batch = np.broadcast_shapes(table.shape[:-2], batch)
    return library(table).broadcast_to(table, (*batch, *table.shape[-2:]))


def constant(value: np.ndarray, like):
    return library(like).asarray(value, like.dtype)


# Poses and inertias as rows

# `[v x]_ij = sum_k _SKEW[i, j, k] v_k`; for quaternions `(a b)_i = sum_jk _PRODUCT[i, j, k] a_j b_k`, and the rotation
# of a unit one is `R_ij = sum_kl _TURN[i, j, k, l] q_k q_l`. `_MATRIX` `[3, 3, 6]` makes a symmetric matrix of its
# elements xx, xy, yy, xz, yz, zz, `_ELEMENTS` `[6, 3, 3]` takes them from it.
_SKEW = np.zeros((3, 3, 3))
for _i, _j, _k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
    _SKEW[_i, _k, _j], _SKEW[_k, _i, _j] = 1, -1
_PRODUCT = np.zeros((4, 4, 4))
_PRODUCT[0] = np.diag([1, -1, -1, -1])
_PRODUCT[1:, 0, 1:] = _PRODUCT[1:, 1:, 0] = np.eye(3)
_PRODUCT[1:, 1:, 1:] = _SKEW.swapaxes(1, 2)
# From `R = (w^2 - u.u) 1 + 2 u u^T + 2 w [u x]`.
_TURN = np.zeros((3, 3, 4, 4))
_TURN[..., 0, 0] = np.eye(3)
_TURN[..., 1:, 1:] = -np.eye(3)[:, :, None, None] * np.eye(3)
_TURN[..., 0, 1:] = 2 * _SKEW
for _i in range(3):
    for _j in range(3):
        _TURN[_i, _j, 1 + _i, 1 + _j] += 2
_MATRIX, _ELEMENTS = np.zeros((3, 3, 6)), np.zeros((6, 3, 3))
for _k, (_i, _j) in enumerate([(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2)]):
    _MATRIX[_i, _j, _k] = _MATRIX[_j, _i, _k] = _ELEMENTS[_k, _i, _j] = 1


def compose(a, b):
    """The poses `a b`, all `[*batch, 7]`."""
    p, q = a[..., 3:], b[..., 3:]
    turn = _contract(_PRODUCT, p[..., None, :, None] * q[..., None, None, :], 2)
    return _side_by_side(a[..., :3] + _times(_rotation(p), b[..., :3]), turn)


def moved(parameters, placement):
    """Ten parameters in a frame, `[*batch, 10]`, as seen from where `placement` `[*batch, 7]` puts the frame.

    With `h` the rotated first moment, the rotational inertia grows by `-([p x][h x] + [h x][p x] + m [p x][p x])`: the
    parallel-axis theorem, as in `jaxdyn.spatial.Inertia.moved`.
    """
    m, p, R = parameters[..., :1], placement[..., :3], _rotation(placement[..., 3:])
    h, J = _times(R, parameters[..., 1:4]), _contract(_MATRIX, parameters[..., None, None, 4:], 1)
    P, H = _contract(_SKEW, p[..., None, None, :], 1), _contract(_SKEW, h[..., None, None, :], 1)
    J = _product(_product(R, J), R.swapaxes(-1, -2)) - _product(P, H + m[..., None] * P) - _product(H, P)
    return _side_by_side(m, h + m * p, _contract(_ELEMENTS, J[..., None, :, :], 2))


def joint_pose(kind: str, axes, pitch, q):
    """`[*batch, 7]`: the pose of a joint's moving frame in its fixed one. `axes` `[*batch, n, 3]` are those of its
    primitive motions but ball and free, `pitch` `[*batch, n]` of the helical ones, `q` `[*batch, nqj]`."""
    word, lib = PRIMITIVES[kind], library(q)
    if word in ("B", "F"):
        turn = q[..., -4:] / lib.sqrt(_dot(q[..., -4:], q[..., -4:]))
        return _side_by_side(q[..., :3] if word == "F" else 0 * turn[..., 1:], turn)
    out = None
    for i, primitive in enumerate(word):
        # The direction of an axis is what counts, as in the algorithms.
        axis, x = axes[..., i, :], q[..., i : i + 1]
        axis = axis / library(axis).sqrt(_dot(axis, axis))
        half = 0 * x if primitive == "P" else 0.5 * x
        advance = {"P": x, "R": 0 * x, "H": x * pitch if primitive == "H" else x}[primitive]
        step = _side_by_side(advance * axis, lib.cos(half), lib.sin(half) * axis)
        out = step if out is None else compose(out, step)
    return out


def _rotation(q):
    """`[*batch, 3, 3]` of quaternions, whose directions count."""
    squares = q[..., :, None] * q[..., None, :] / _dot(q, q)[..., None]
    return _contract(_TURN, squares[..., None, None, :, :], 2)


# Sums of products are written out: they are one operation to the compiler, and no library's matrix product rounds them
# to less than their precision.


def _contract(table: np.ndarray, x, axes: int):
    """`table`'s last axes with those of `x`."""
    return (constant(table, x) * x).sum(axis=tuple(range(-axes, 0)))


def _product(A, B):
    return (A[..., :, :, None] * B[..., None, :, :]).sum(axis=-2)


def _times(A, b):
    return (A * b[..., None, :]).sum(axis=-1)


def _dot(a, b):
    """`[*batch, 1]`"""
    return (a * b).sum(axis=-1, keepdims=True)


def _side_by_side(*parts):
    """Along the last axis; batch axes broadcast."""
    batch, lib = np.broadcast_shapes(*(x.shape[:-1] for x in parts)), library(*parts)
    return lib.concatenate([lib.broadcast_to(x, (*batch, x.shape[-1])) for x in parts], axis=-1)


# Locking


@in_numpy_if_known()
def locked[M: ModelFields](model: M, values: dict[int, Array]) -> M:
    """The model with joints fixed at coordinates `[*batch, nqj]`; those that mimic one of them follow."""
    topology = model.topology
    values = dict(values)
    for k, (joint, leader) in enumerate(topology.mimics):
        if leader in values:
            multiplier, offset = (x[..., k : k + 1] for x in (model.mimic_multiplier, model.mimic_offset))
            values[joint] = multiplier * values[leader] + offset
    gone = sorted(values)
    kept = [i for i in range(topology.nb) if i not in values]
    owner = owners(topology)

    # The poses of locked bodies in what carries them, which is the nearest body above that moves, or the world.
    number = {body: k for k, body in enumerate(gone)}
    carrier: dict[int, int] = {}
    poses: list[Any] = []
    for body in gone:
        axes = take(model.joint_axis, of_joints(owner["axis"], [body]), 2)
        pitch = take(model.joint_pitch, of_joints(owner["pitch"], [body]), 1)
        placed = joint_pose(topology.joint_types[body], axes, pitch, values[body])
        pose = compose(model.joint_placement[..., body, :], placed)
        parent = topology.parents[body]
        poses.append(compose(poses[number[parent]], pose) if parent in number else pose)
        carrier[body] = carrier.get(parent, parent)
    table = join([*(x[..., None, :] for x in poses), constant(IDENTITY, model.joint_placement)[None]], 2)

    def shift(bodies: Sequence[int]):
        """The poses of bodies in what carries them: the last row, the identity, for those that move."""
        return take(table, [number.get(b, len(gone)) for b in bodies], 2)

    place = {body: k for k, body in enumerate(kept)} | {-1: -1}

    def carried_by(bodies: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[carrier.get(b, b)] for b in bodies)

    # What a locked body is without the links merged into it becomes a link like them.
    whole = take(model.inertial_parameters, gone, 2)
    own = add_rows(whole, [number.get(b, -1) for b in topology.attached_bodies], -model.attached_parameters)
    joint_frames = [i for i in gone if topology.joint_names[i] not in topology.frame_names]
    frames = [*kept, *range(topology.nb, len(topology.frame_names)), *gone]
    of_body = [*(topology.frame_bodies[i] for i in frames), *joint_frames]
    mimics = [k for k, (joint, _) in enumerate(topology.mimics) if joint not in values]
    new = dataclasses.replace(
        topology,
        body_names=tuple(topology.body_names[i] for i in kept),
        joint_names=tuple(topology.joint_names[i] for i in kept),
        joint_types=tuple(topology.joint_types[i] for i in kept),
        parents=carried_by([topology.parents[i] for i in kept]),
        frame_names=(*(topology.frame_names[i] for i in frames), *(topology.joint_names[i] for i in joint_frames)),
        frame_bodies=carried_by(of_body),
        attached_links=(*topology.attached_links, *(topology.body_names[i] for i in gone)),
        attached_bodies=carried_by([*topology.attached_bodies, *gone]),
        mimics=tuple((place[a], place[b]) for a, b in (topology.mimics[k] for k in mimics)),
    )
    changed = {}
    for field, (kind, core) in ROWS.items():
        value = getattr(model, field)
        if kind in owner and value is not None:
            changed[field] = take(value, of_joints(owner[kind], kept), core)
        elif kind == "mimic":
            changed[field] = take(value, mimics, core)
    # Placements, and inertias, together: the fewer operations. A joint's frame is that of its body.
    local = [changed["joint_placement"], take(model.frame_placement, [*frames, *joint_frames], 2)]
    placements = compose(shift([*(topology.parents[i] for i in kept), *of_body]), join(local, 2))
    inertias = [whole, own, model.attached_parameters]
    seen = moved(join(inertias, 2), shift([*gone, *gone, *topology.attached_bodies]))
    n, links = len(gone), len(topology.attached_links)
    changed |= {
        "joint_placement": placements[..., : len(kept), :],
        "frame_placement": placements[..., len(kept) :, :],
        "inertial_parameters": add_rows(changed["inertial_parameters"], carried_by(gone), seen[..., :n, :]),
        "attached_parameters": take(seen, [*range(2 * n, 2 * n + links), *range(n, 2 * n)], 2),
    }
    return dataclasses.replace(model, topology=new, **changed)


# Attaching


@in_numpy_if_known("frame")
def attached[M: ModelFields](model: M, other: ModelFields, frame: int, placement) -> M:
    """The model with the world of `other` placed in one of its frames (by number; -1: the world)."""
    ours, theirs = model.topology, other.topology
    n, body = ours.nb, -1 if frame < 0 else ours.frame_bodies[frame]
    mount = constant(IDENTITY, model.joint_placement) if frame < 0 else model.frame_placement[..., frame, :]
    if placement is not None:
        mount = compose(mount, placement)
    # Their bodies, numbered from `n` on, are put behind all that the body carries; `place` says where each body goes.
    order = _depth_first(ours.parents, body, theirs.nb)
    place = {one: k for k, one in enumerate(order)} | {-1: -1}

    def our(bodies: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[b] for b in bodies)

    def their(bodies: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[b + n] if b >= 0 else place[body] for b in bodies)

    def mounted(bodies: Sequence[int]):
        """The mount for what was fixed in their world, the identity for the rest."""
        table = append(constant(IDENTITY, model.joint_placement)[None], mount)
        return take(table, [int(b < 0) for b in bodies], 2)

    count, their_count = len(ours.frame_names), len(theirs.frame_names)
    of_bodies = [i if i < n else count + i - n for i in order]
    frames = [*of_bodies, *range(n, count), *range(count + theirs.nb, count + their_count)]
    followers = [*our([a for a, _ in ours.mimics]), *their([a for a, _ in theirs.mimics])]
    leaders = [*our([b for _, b in ours.mimics]), *their([b for _, b in theirs.mimics])]
    mimics = sorted(range(len(followers)), key=lambda k: followers[k])

    def both(field: str, rows: Sequence[int]) -> tuple:
        values = [*getattr(ours, field), *getattr(theirs, field)]
        return tuple(values[i] for i in rows)

    parents = (*our(ours.parents), *their(theirs.parents))
    frame_bodies = (*our(ours.frame_bodies), *their(theirs.frame_bodies))
    new = dataclasses.replace(
        ours,
        body_names=both("body_names", order),
        joint_names=both("joint_names", order),
        joint_types=both("joint_types", order),
        parents=tuple(parents[i] for i in order),
        frame_names=both("frame_names", frames),
        frame_bodies=tuple(frame_bodies[i] for i in frames),
        attached_links=(*ours.attached_links, *theirs.attached_links),
        attached_bodies=(*our(ours.attached_bodies), *their(theirs.attached_bodies)),
        mimics=tuple((followers[k], leaders[k]) for k in mimics),
    )
    links = moved(other.attached_parameters, mounted(theirs.attached_bodies))
    other = dataclasses.replace(
        other,
        joint_placement=compose(mounted(theirs.parents), other.joint_placement),
        frame_placement=compose(mounted(theirs.frame_bodies), other.frame_placement),
        attached_parameters=links,
    )
    our_owner, their_owner = owners(ours), owners(theirs)
    changed: dict[str, Any] = {}
    for field, (kind, core) in ROWS.items():
        if kind is None or (getattr(model, field) is None and getattr(other, field) is None):
            continue
        one, two = _with_springs(model, field), _with_springs(other, field)
        if kind in our_owner:
            rows = of_joints(np.concatenate([our_owner[kind], n + their_owner[kind]]), order)
        else:
            rows = {"frame": frames, "mimic": mimics}.get(kind, range(one.shape[-core] + two.shape[-core]))
        changed[field] = take(join([one, two], core), list(rows), core)
    # What was fixed in their world has an effect now.
    fixed = [place[body] if b < 0 else -1 for b in theirs.attached_bodies]
    changed["inertial_parameters"] = add_rows(changed["inertial_parameters"], fixed, links)
    return dataclasses.replace(model, topology=new, **changed)


def _depth_first(parents: Sequence[int], body: int, count: int) -> list[int]:
    """The bodies, and `count` more behind all that `body` carries, by number."""
    below = {body}
    for i, parent in enumerate(parents):
        if parent in below:
            below.add(i)
    n, last = len(parents), max(below, default=-1)
    return [*range(last + 1), *range(n, n + count), *range(last + 1, n)]


def _with_springs(model: ModelFields, field: str):
    """A leaf; for springs that a model does not have: no stiffness, at the neutral configuration."""
    value, topology = getattr(model, field), model.topology
    if value is not None:
        return value
    nothing = {"stiffness": np.zeros(topology.nv), "spring_reference": neutral(topology)}
    return constant(nothing[field], model.armature)
