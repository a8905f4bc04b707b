"""How a tree is walked: every recursion of the library is one of the five functions at the end of this file.

Data are pytrees of arrays `[slots, *batch]` in the slot order of a `Tree` (see `_schedule.py`); arrays of one call may
have batch axes of length 1 that broadcast. Slots of padding hold whatever the caller put there; they are walked like
the others, pass zero to no one who minds, and are dropped by `from_slots`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn.model._schedule import Run, Tree
from jaxdyn.spatial import Pose

# Up to this many elements of the batch, a level inside a scan fetches its parents by `where` over the level's slots,
# beyond it by gather: inside a scan on a CPU a gather of a few numbers costs ten times a `where`, while in large
# batches `where` over the slots costs two to three times a gather once it is differentiated.
SELECT_BATCH_LIMIT = 8
# A static selection of rows that falls into at most this many contiguous pieces is made by slices.
MAX_PIECES = 8


def take_rows(x, rows: np.ndarray):
    """`x[rows]` along the first axis of every leaf, with zero where `rows` is -1; `rows` is static."""
    rows = np.asarray(rows)
    return jax.tree.map(lambda a: _take_rows(jnp.asarray(a), rows), x)


def _take_rows(a: jax.Array, rows: np.ndarray) -> jax.Array:
    if len(rows) == a.shape[0] and (rows == np.arange(len(rows))).all():
        return a
    if not len(rows):
        return a[:0]
    pieces = _pieces(rows)
    if len(pieces) > MAX_PIECES:
        taken = a[np.maximum(rows, 0)]
        if (rows >= 0).all():
            return taken
        return jnp.where((rows >= 0).reshape((-1,) + (1,) * (a.ndim - 1)), taken, jnp.zeros((), a.dtype))
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


def sum_rows(x, targets: np.ndarray, size: int):
    """Sums rows of every leaf into `size` rows: row `i` goes to `targets[i]`, or nowhere where that is -1."""
    targets = np.asarray(targets)
    return jax.tree.map(lambda a: _sum_rows(jnp.asarray(a), targets, size), x)


def _sum_rows(a: jax.Array, targets: np.ndarray, size: int) -> jax.Array:
    if len(targets) == size and (targets == np.arange(size)).all():
        return a
    used = np.flatnonzero(targets >= 0)
    targets = targets[used]
    a = _take_rows(a, used)
    counts = np.bincount(targets, minlength=size)
    ascending = bool((np.diff(targets) >= 0).all())
    # Stretches of rows that are copied, groups that are summed, and gaps.
    groups: list[list[int]] = []
    for c in counts:
        if groups and c < 2 and groups[-1][0] == c:
            groups[-1][1] += 1
        else:
            groups.append([int(c), 1])
    if not ascending or len(groups) > MAX_PIECES:
        return jnp.zeros((size, *a.shape[1:]), a.dtype).at[targets].add(a)
    parts, at = [], 0
    for count, rows in groups:
        if count == 0:
            parts.append(jnp.zeros((rows, *a.shape[1:]), a.dtype))
        elif count == 1:
            parts.append(lax.slice_in_dim(a, at, at + rows))
            at += rows
        else:
            parts.append(lax.slice_in_dim(a, at, at + count).sum(axis=0, keepdims=True))
            at += count
    return jnp.concatenate(parts) if len(parts) != 1 else parts[0]


def to_slots(tree: Tree, x):
    """From node order `[size, ...]` to slot order, zero in the padding."""
    return take_rows(x, tree.node_of_slot)


def from_slots(tree: Tree, x):
    """From slot order to node order."""
    return take_rows(x, tree.slot_of_node)


def scan_down(tree: Tree, f: Callable, root, xs):
    """From the roots to the leaves: `carry, y = f(parent's carry, x)` at every node; returns the stacked `y`.

    `root` is the carry of the world; its leaves broadcast against the batch.
    """
    batch, dtype = _batch_and_dtype((root, xs))
    outputs, carry = [], root
    for number, run in enumerate(tree.runs):
        if number == 0:
            carry = jax.tree.map(lambda r, run=run: jnp.broadcast_to(jnp.asarray(r, dtype), (run.width, *batch)), root)
        else:
            carry = take_rows(carry, run.parents[0])

        def step(carry, x, run=run):
            x, parents = x
            return f(_fetch(carry, parents), x)

        carry, y = _scan(step, carry, (_rectangle(xs, run), _inner_parents(run)), run)
        outputs.append(y)
    return _join(outputs)


def scan_up(tree: Tree, f: Callable, zero, xs):
    """From the leaves to the roots: `passed, y = f(sum of what the children passed, x)`; returns the stacked `y`.

    `zero` is the sum over no children; its leaves broadcast against the batch.
    """
    batch, dtype = _batch_and_dtype((zero, xs))
    outputs, carry = [], None
    for number in reversed(range(len(tree.runs))):
        run = tree.runs[number]
        if carry is None:
            carry = jax.tree.map(lambda z, run=run: jnp.broadcast_to(jnp.asarray(z, dtype), (run.width, *batch)), zero)
        else:
            carry = sum_rows(carry, tree.runs[number + 1].parents[0], run.width)

        def step(carry, x, run=run):
            x, parents = x
            passed, y = f(carry, x)
            return _collect(passed, parents), y

        carry, y = _scan(step, carry, (_rectangle(xs, run), _inner_parents(run)), run, reverse=True)
        outputs.append(y)
    return _join(outputs[::-1])


def compose_down(tree: Tree, local: Pose) -> Pose:
    """The poses of all nodes in the world, from their poses in their parents."""

    def f(parent: Pose, local: Pose):
        pose = parent.compose(local)
        return pose, pose

    return scan_down(tree, f, Pose.identity(), local)


def sum_down(tree: Tree, x):
    """At every node the sum of `x` over the node and its ancestors."""

    def f(parent, x):
        total = jax.tree.map(jnp.add, parent, x)
        return total, total

    return scan_down(tree, f, jax.tree.map(lambda _: 0.0, x), x)


def sum_up(tree: Tree, x):
    """At every node the sum of `x` over its subtree."""

    def f(children, x):
        total = jax.tree.map(jnp.add, children, x)
        return total, total

    return scan_up(tree, f, jax.tree.map(lambda _: 0.0, x), x)


def _batch_and_dtype(x):
    leaves = jax.tree.leaves(x)
    shapes = [leaf.shape[1:] for leaf in leaves if jnp.ndim(leaf) > 0]
    return jnp.broadcast_shapes(*shapes), jnp.result_type(*leaves)


def _rectangle(x, run: Run):
    return jax.tree.map(
        lambda a: lax.slice_in_dim(a, run.start, run.stop).reshape((run.length, run.width, *a.shape[1:])), x
    )


def _inner_parents(run: Run):
    """Indices for the scan; the first level's parents were fetched outside."""
    if run.straight:
        return None
    return jnp.asarray(np.concatenate([np.arange(run.width)[None], run.parents[1:]]))


def _scan(step, carry, xs, run: Run, reverse: bool = False):
    if run.length == 1:
        carry, y = step(carry, jax.tree.map(lambda a: a[0], xs))
        return carry, y
    carry, y = lax.scan(step, carry, xs, reverse=reverse)
    return carry, jax.tree.map(lambda a: a.reshape((run.length * run.width, *a.shape[2:])), y)


def _join(outputs):
    if len(outputs) == 1:
        return outputs[0]
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), *outputs)


def _selects(a) -> bool:
    return math.prod(a.shape[1:]) <= SELECT_BATCH_LIMIT


def _fetch(carry, parents):
    """Every slot's parent's carry, inside a level scan."""
    if parents is None:
        return carry

    def fetch(a):
        if not _selects(a):
            return a[parents]
        index = parents.reshape((-1,) + (1,) * (a.ndim - 1))
        out = jnp.broadcast_to(a[0], a.shape)
        for w in range(1, a.shape[0]):
            out = jnp.where(index == w, a[w], out)
        return out

    return jax.tree.map(fetch, carry)


def _collect(passed, parents):
    """The sums over the children of every slot of the level above, inside a level scan."""
    if parents is None:
        return passed

    def collect(a):
        if not _selects(a):
            return jnp.zeros_like(a).at[parents].add(a)
        slots = jnp.arange(a.shape[0]).reshape((-1,) + (1,) * (a.ndim - 1))
        return sum(jnp.where(slots == parents[w], a[w], jnp.zeros((), a.dtype)) for w in range(a.shape[0]))

    return jax.tree.map(collect, passed)
