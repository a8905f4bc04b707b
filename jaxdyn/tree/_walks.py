"""Walks over a tree: every recursion of the library is `scan_down`, `scan_up`, `sum_down`, `sum_up` or `compose_down`.

Data are pytrees of arrays `[size, *batch]` with a row for each node of a `Tree`; batch axes of length 1 broadcast. A
walk is a scan over the nodes in topological order. It carries one array with all components, of which a step reads and
writes rows at indices that are the same for the whole batch: nothing is padded or gathered. For sums and poses that
array is the result. In the scans, the value that a node leaves for its children, or collects from them, waits in one of
a few places (`Tree.places`); a chain needs none.

The two sums are one JAX primitive, by which JAX knows that each is linear and that the other is its transpose. Neither
direction of differentiation then goes through the scan and its indices: `jax.custom_jvp` would leave the transposition
to the scan, and `jax.custom_vjp` has no forward mode.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from jaxdyn._compile import once
from jaxdyn.native import expand
from jaxdyn.spatial import Mat3, Motion, Pose, Vec3
from jaxdyn.tree._tree import Tree

MAX_PIECES = 8
"""The most contiguous pieces of a static selection of rows for which it is made of slices."""


def take_rows(x, rows: np.ndarray):
    """`x[rows]` along the first axis of every leaf, with zero where `rows` is -1; `rows` is static."""
    rows = np.asarray(rows)
    return jax.tree.map(lambda a: _take(jnp.asarray(a), rows), x)


def _take(a: jax.Array, rows: np.ndarray) -> jax.Array:
    if len(rows) == a.shape[0] and (rows == np.arange(len(rows))).all():
        return a
    if not len(rows):
        return a[:0]
    pieces = _pieces(rows)
    if len(pieces) > MAX_PIECES:
        selected = a[np.maximum(rows, 0)]
        if (rows >= 0).all():
            return selected
        return jnp.where((rows >= 0).reshape((-1,) + (1,) * (a.ndim - 1)), selected, jnp.zeros((), a.dtype))
    parts = []
    for first, count, step in pieces:
        if first < 0:
            parts.append(jnp.zeros((count, *a.shape[1:]), a.dtype))
        elif step == 0 and count > 1:
            parts.append(jnp.broadcast_to(a[first], (count, *a.shape[1:])))
        else:
            parts.append(lax.slice_in_dim(a, first, first + count))
    return jnp.concatenate(parts) if len(parts) != 1 else parts[0]


def _pieces(rows: np.ndarray) -> list[tuple[int, int, int]]:
    """Maximal stretches `(first, count, step)` of rows that ascend by one or repeat (as padding does)."""
    out: list[tuple[int, int, int]] = []
    for r in (int(r) for r in rows):
        if out:
            first, count, step = out[-1]
            if count == 1 and (r == first or (first >= 0 and r == first + 1)):
                out[-1] = (first, 2, r - first)
                continue
            if count > 1 and r == first + step * count:
                out[-1] = (first, count + 1, step)
                continue
        out.append((r, 1, 0))
    return out


def scan_down(tree: Tree, f: Callable, root, xs):
    """Compute `carry, y = f(parent's carry, x)` at every node, roots first, and return the stacked `y`.

    `root` is the carry of the world; its leaves broadcast against the batch. Not meant to be differentiated.
    """
    return _scan(tree, f, root, xs, up=False)


def scan_up(tree: Tree, f: Callable, zero, xs):
    """Compute `value, y = f(sum of the children's values, x)` at every node, leaves first; return the stacked `y`.

    `zero` is the sum over no children; its leaves broadcast against the batch. Not meant to be differentiated.
    """
    return _scan(tree, f, zero, xs, up=True)


def _scan(tree: Tree, f: Callable, start, xs, *, up: bool):
    start, unpack, f, unpack_y = _packed(f, start, xs)
    if tree.is_chain:
        return unpack_y(lax.scan(lambda carry, x: f(unpack(carry), x), start, xs, reverse=up)[1])
    parents, places = np.array(tree.parents), tree.places
    count = int(places.max(initial=-1)) + 1
    places_of_parents = np.where(parents >= 0, places[parents], -1)
    read, write = (places, places_of_parents) if up else (places_of_parents, places)
    # Two rows follow the places: one that stays `start`, and one that no step reads.
    read, write = np.where(read >= 0, read, count), np.where(write >= 0, write, count + 1)

    def step(state, x):
        x, read, write, *first = x
        value, y = f(unpack(_row(state, read)), x)
        if up:
            # The last child comes first, when the place still holds a value of another node.
            value = jnp.where(first[0], value, value + _row(state, write))
        return lax.dynamic_update_index_in_dim(state, value, write, 0), y

    state = jnp.broadcast_to(start, (count + 2, *start.shape))
    indices = tuple(jnp.asarray(i) for i in ((read, write, tree.last_child) if up else (read, write)))
    return unpack_y(lax.scan(step, state, (xs, *indices), reverse=up)[1])


def _row(state, index):
    return lax.dynamic_index_in_dim(state, index, 0, keepdims=False)


def _packed(f: Callable, start, xs):
    """Return `start` as one array `[leaves, *batch]`, its inverse, `f` with both results packed in the same way, and
    the inverse for the stacked second results."""
    leaves = jax.tree.leaves(xs)
    batch = jnp.broadcast_shapes(*(leaf.shape[1:] for leaf in leaves))
    dtype = jnp.result_type(*leaves)
    structures = {}

    def pack(name: str, x):
        leaves, structures[name] = jax.tree.flatten(x)
        return jnp.stack([jnp.broadcast_to(jnp.asarray(leaf, dtype), batch) for leaf in leaves])

    def packed_f(carry, x):
        carry, y = f(carry, x)
        return pack("carry", carry), pack("y", y)

    packed = pack("carry", jax.tree.map(lambda a: jnp.reshape(a, jnp.shape(a)[1:]), start))

    def unpack(x):
        return jax.tree.unflatten(structures["carry"], list(x))

    def unpack_y(ys):
        return jax.tree.unflatten(structures["y"], [ys[:, i] for i in range(ys.shape[1])])

    return packed, unpack, packed_f, unpack_y


def sum_down(tree: Tree, x):
    """At every node the sum of `x` over the node and its ancestors."""
    return _sum(tree, x, up=False)


def sum_up(tree: Tree, x):
    """At every node the sum of `x` over its subtree."""
    return _sum(tree, x, up=True)


_sum_p = core.Primitive("tree_sum")


def _sum(tree: Tree, x, *, up: bool):
    table, unpack = _table(tree, x)
    return unpack(_sum_p.bind(table, tree=tree, up=up))


def _table(tree: Tree, x):
    """Return all leaves of `x` in one array `[size, leaves, *batch]`, and the inverse."""
    leaves, structure = jax.tree.flatten(x)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    batch = jnp.broadcast_shapes(*(leaf.shape[1:] for leaf in leaves))
    table = jnp.stack([jnp.broadcast_to(leaf, (tree.size, *batch)) for leaf in leaves], axis=1)
    return table, lambda t: jax.tree.unflatten(structure, [t[:, i] for i in range(t.shape[1])])


def _walk(tree: Tree, f: Callable, table, *, up: bool = False):
    """Replace, node by node but for the roots, the node's row by `f(parent's row, row)`; on the way up the parent's."""
    nodes = np.flatnonzero(np.array(tree.parents) >= 0)
    parents = np.array(tree.parents)[nodes]

    def step(table, index):
        node, parent = index
        row = once(f(_row(table, parent), _row(table, node)))
        return lax.dynamic_update_index_in_dim(table, row, parent if up else node, 0), None

    return lax.scan(step, table, (jnp.asarray(nodes), jnp.asarray(parents)), reverse=up)[0]


@_sum_p.def_impl
def _sum_by_walk(table, *, tree: Tree, up: bool):
    return _walk(tree, jnp.add, table, up=up)


def _sum_batch(args, dims, **params):
    # The new axis goes last, where the recursions have their batch.
    table = jnp.moveaxis(args[0], dims[0], -1)
    return _sum_p.bind(table, **params), table.ndim - 1


_sum_p.def_abstract_eval(lambda table, **_: table)
ad.deflinear2(_sum_p, lambda cotangent, _, *, tree, up: [_sum_p.bind(cotangent, tree=tree, up=not up)])
batching.primitive_batchers[_sum_p] = _sum_batch
mlir.register_lowering(_sum_p, mlir.lower_fun(_sum_by_walk, multiple_results=False))
expand(_sum_p, _sum_by_walk)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def compose_down(tree: Tree, local: Pose) -> Pose:
    """The poses of all nodes in the world, from their poses in their parents."""
    table, unpack = _table(tree, local)
    structure = jax.tree.structure(local)

    def compose(parent, local):
        parent, local = (jax.tree.unflatten(structure, list(x)) for x in (parent, local))
        return jnp.stack(jax.tree.leaves(parent.compose(local)))

    return unpack(_walk(tree, compose, table))


@compose_down.defjvp
def _compose_down_jvp(tree: Tree, primals, tangents):
    (local,), (local_dot,) = primals, tangents
    poses = compose_down(tree, local)
    # The motion of each joint is a twist in the world's axes, and twists add up down the tree. Their reference point is
    # the origin of the tree's root, so that no digits are lost far from the world's.
    origin = lax.stop_gradient(take_rows(poses.translation, tree.roots))
    R, p = poses.rotation, poses.translation - origin
    turn = R.apply(_vee(local.rotation, local_dot.rotation))
    shift = R.apply(local.rotation.apply_transpose(local_dot.translation))
    twist = sum_down(tree, Motion(turn, shift + p.cross(turn)))
    w = twist.angular
    rotation_dot = Mat3(w.cross(R.x), w.cross(R.y), w.cross(R.z))
    return poses, Pose(rotation_dot, twist.linear + w.cross(p))


def _vee(R: Mat3, R_dot: Mat3) -> Vec3:
    """The `w` with `R^T R_dot = [w x]`."""
    half = 0.5
    return Vec3(
        half * (R.z.dot(R_dot.y) - R.y.dot(R_dot.z)),
        half * (R.x.dot(R_dot.z) - R.z.dot(R_dot.x)),
        half * (R.y.dot(R_dot.x) - R.x.dot(R_dot.y)),
    )
