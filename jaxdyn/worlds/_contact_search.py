"""The contacts of worlds with many pairs of geoms: a search for those that there are, of which a fixed number is handed
on.

In a world of few pairs each candidate has its own rows in the program of a step, whether it touches or not. Such a
program grows with the number of pairs: one with 133 pairs took 94 s to compile. Here all pairs of two classes of shapes
are one function, called in a loop over tables; pairs whose bounds are apart cost a test. What is found goes to a list
for each number of directions, with room for `ROOM` contacts. The equations have a loop over the contacts of each
list that there are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxdyn._batched_functions import Collected, Plain
from jaxdyn._batching import call
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.geometry import FAR, Hulls, ShapeKind, candidates, may_be_deep, may_touch, shallow_depth
from jaxdyn.native import Collection, Searched
from jaxdyn.spatial import Mat3, Vec3
from jaxdyn.tree import to_leading
from jaxdyn.worlds._hull_contacts import FOUND, HullPairs, HullSearch, HullVertices, joined_lists, pose_of, taken_rows
from jaxdyn.worlds._parts import PartRows, Places, instant

if TYPE_CHECKING:
    from jaxdyn.worlds._states import Given

type Contacts = Any
"""The `Contacts` of a world, whose module stands above this one."""

ROWS = 288
"""About how many rows all lists have room for, each as many. Only those that there are cost operations, but all go
through memory: a step of Go1 took 50 us with 168 rows, and 72 us with 596. With 288, three lists of up to six
directions have room for two trees at rest."""
ROOM = 8, 64
"""The fewest and the most contacts that a list of many candidates has room for. Go1 and G1, dropped in random
attitudes, had up to 17 contacts of three directions at once and up to 30, where their lists have room for 32 and
64."""
LAW = ("margin", "solref", "solreffriction", "solimp", "friction", "weight")
"""The numbers of pairs that their rows need, in their order in lists."""
LAW_SIZES = (1, 2, 2, 5, 5, 1)


class ListShape(NamedTuple):
    """The list of the contacts with one number of directions."""

    dim: int
    room: int
    candidates: int
    """The number of candidates."""


class ListedContacts(NamedTuple):
    """The contacts of a list as functions of rows see them, `[room, *batch]`."""

    distance: Any
    position: Vec3
    frame: Mat3
    number: Any
    """Their numbers among the candidates with as many directions."""
    law: dict[str, Any]
    """Their numbers by the names in `LAW`."""
    shallow: Any
    """The depth up to which they are MuJoCo's."""
    bodies: tuple[Any, Any]
    """MuJoCo's numbers of both bodies."""
    signs: Any
    """`[room, nv, *batch]`: the signs with which degrees of freedom move the second body against the first."""


def list_shapes(contacts: Contacts) -> list[ListShape]:
    """Return the lists of a world, in the order of the rows."""
    directions = contacts.directions()
    rooms = (min(max(ROWS // (len(directions) * dim), ROOM[0]), ROOM[1]) for dim, _ in directions)
    return [ListShape(dim, min(room, count), count) for room, (dim, count) in zip(rooms, directions, strict=True)]


@dataclasses.dataclass(frozen=True)
class _PairOfGeoms:
    """The candidates of a pair as a function of arrays `[k, *rest]`: poses, sizes, the distance within which contacts
    are reported. Returns `[candidates, FOUND, *rest]`."""

    kinds: tuple[ShapeKind, ShapeKind]
    tested: bool
    """Whether bounds are tested first, which has no reverse derivative."""

    def __call__(self, pose1, sizes1, pose2, sizes2, reach):
        poses, sizes = [pose_of(x[None]) for x in (pose1, pose2)], [x[None] for x in (sizes1, sizes2)]
        (kind1, kind2), reach = self.kinds, reach[None, 0]

        def found():
            out = candidates(kind1, sizes[0], poses[0], kind2, sizes[1], poses[1], reach)
            return jnp.stack(jnp.broadcast_arrays(*jax.tree.leaves((*out[:2], out.frame.x, out.frame.y))), axis=1)

        near = may_touch(kind1, sizes[0], poses[0], kind2, sizes[1], poses[1], reach) if self.tested else None
        if near is None:
            return found()
        shape = jax.eval_shape(found)
        absent = jnp.zeros(shape.shape, shape.dtype).at[:, 0].set(FAR)
        # A loop of at most one round, so that a native program skips what no element of a vector needs.
        begin = jnp.where(near, 1.0, 0.0).astype(shape.dtype), absent

        def once_more(at):
            waits, out = at
            return jnp.zeros_like(waits), jnp.where((waits > 0)[:, None], found(), out)

        return lax.while_loop(lambda at: (at[0] > 0).any(), once_more, begin)[1]


@dataclasses.dataclass(frozen=True)
class _PairOfArrays:
    """The same of arrays with leading batch axes, without a test."""

    of: _PairOfGeoms

    def __call__(self, *operands):
        out = self.of(*(jnp.moveaxis(x, -1, 0) for x in operands))
        return jnp.moveaxis(out, (0, 1), (-2, -1))


def _geom_poses(robot: Robot, world: PartRows, q):
    """Return the poses of all geoms, `[12 n, *batch]`: the columns of their rotations and their places."""
    at = instant(robot, q, robot.broadcast(robot.zeros()))
    pose = Places.located(world.constraints.contacts.geoms, at).pose
    rotation, place = pose.rotation, pose.translation
    leaves = [c for v in (rotation.x, rotation.y, rotation.z, place) for c in (v.x, v.y, v.z)]
    out = jnp.stack([robot.broadcast(x) for x in leaves], axis=1)
    return out.reshape(-1, *out.shape[2:])


class _ContactSearch(NamedTuple):
    """How the contacts of a world are found."""

    collection: Collection
    """The search for all but those of hulls."""
    hulls: HullSearch
    owners: list[np.ndarray]
    """For each list the pair of each candidate."""
    of_hulls: np.ndarray
    """The numbers of the pairs with hulls."""


def _searched(contacts: Contacts) -> _ContactSearch:
    """Return the search of a world."""
    shapes = list_shapes(contacts)
    place_of = {shape.dim: k for k, shape in enumerate(shapes)}
    owners: list[Any] = [[] for _ in shapes]
    searched, hulls, of_hulls, pair = [], [], [], 0
    for pairs in contacts.pairs:
        count, start = pairs.count(), pair
        rows, lists, firsts = [], [], []
        for one, two, dim in zip(pairs.first, pairs.second, pairs.dims, strict=True):
            own = owners[place_of[dim]]
            rows.append((one, one, two, two, pair))
            lists.append(place_of[dim])
            firsts.append(len(own))
            own += [pair] * count
            pair += 1
        if any(isinstance(x, Hulls) for x in pairs.structures):
            ends = pairs.first, pairs.second
            hulls.append(HullPairs(pairs.types, pairs.structures, *ends, tuple(lists), tuple(firsts)))
            of_hulls += range(start, pair)
            continue
        tables = tuple(rows), tuple(lists), tuple(firsts)
        searched.append(Searched(_PairOfGeoms(pairs.types, True), _SOURCES, *tables, count))
    room = tuple(shape.room for shape in shapes)
    collection = Collection(tuple(searched), room, FOUND, 0.5 * FAR, FAR)
    owners = [np.array(x) for x in owners]
    return _ContactSearch(collection, HullSearch(tuple(hulls), room), owners, np.array(of_hulls))


_SOURCES = (0, 12), (1, 3), (0, 12), (1, 3), (2, 1)
"""The operands of `_PairOfGeoms`: rows of the poses and sizes of geoms, and of the reaches of pairs."""


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _lists(search: Collection, *operands) -> list:
    """Return the lists of what is found."""
    return call(Collected.of(search, len(operands)), *operands)


@functools.partial(_lists.defjvp, symbolic_zeros=True)
def _lists_jvp(search: Collection, primals, tangents):
    lists = _lists(search, *primals)
    numbers = [_blocks_of(x, FOUND + 1)[..., FOUND] for x in map(lax.stop_gradient, lists)]

    moving = [k for k, dot in enumerate(tangents) if not isinstance(dot, SymbolicZero)]

    def again(*moved):
        operands = list(primals)
        for k, x in zip(moving, moved, strict=True):
            operands[k] = x
        return [_recomputed(search, k, number, operands) for k, number in enumerate(numbers)]

    return lists, jax.jvp(again, [primals[k] for k in moving], [tangents[k] for k in moving])[1]


def _blocks_of(x, width: int):
    """Return the numbers `[*batch, room, width]` of a list's contacts."""
    return x[..., 1:].reshape(*x.shape[:-1], -1, width)


def _recomputed(search: Collection, which: int, number, operands: Sequence) -> Any:
    """Return the list `which` of the candidates with these numbers `[*batch, room]`, by functions with derivatives."""
    total = jnp.zeros((*number.shape, FOUND), number.dtype)
    for searched in search.searched:
        things = np.flatnonzero(np.array(searched.lists) == which)
        if not len(things):
            continue
        first = np.array(searched.numbers)[things]
        # The thing whose candidates begin last before a number.
        number_of_list = number.astype(jnp.int32)
        at = jnp.searchsorted(first, number_of_list, side="right") - 1
        own = number_of_list - jnp.asarray(first)[jnp.maximum(at, 0)]
        mine = (at >= 0) & (own < searched.candidates)
        at = jnp.where(mine, at, 0)
        rows = np.array(searched.rows)[things]
        taken = [
            taken_rows(operands[k], length, jnp.asarray(rows[:, j])[at])
            for j, (k, length) in enumerate(searched.sources)
        ]
        function: Any = searched.function
        plain = Plain(
            _PairOfArrays(dataclasses.replace(function, tested=False)),
            (1,) * len(taken),
            ((searched.candidates, FOUND),),
        )
        found = call(plain, *taken)[0]
        chosen = jnp.where(mine, own, 0)[..., None, None]
        found = jnp.take_along_axis(found, chosen, axis=-2)[..., 0, :]
        total = jnp.where(mine[..., None], found, total)
    return jnp.concatenate([jnp.zeros_like(number[..., :1]), _joined(total, number)], axis=-1)


def _joined(found, number):
    """Return the numbers of contacts behind each other, each with its own number, which has no derivative."""
    both = jnp.concatenate([found, jnp.zeros_like(number)[..., None]], axis=-1)
    return both.reshape(*number.shape[:-1], -1)


def found_contacts(given: Given) -> Any:
    """Return the lists of the contacts of a state in one array `[*batch, n]`; see `listed_contacts`."""
    world, q = given.world, given.on_tree()["q"]
    contacts, dtype = world.parts.constraints.contacts, q.dtype
    bound, operands = given.bound()
    search = _searched(contacts)
    poses = bound.call(_geom_poses, operands, q=q)
    sizes = jnp.asarray(contacts.sizes, dtype)
    reach = _side_by_side([pairs.margin + pairs.gap for pairs in contacts.pairs], dtype, 1)
    flat = sizes.reshape(*sizes.shape[:-2], -1)
    lists = _lists(search.collection, poses, flat, reach) if search.collection.searched else None
    if search.hulls.pairs:
        found = search.hulls.lists(poses, flat, reach[..., search.of_hulls], HullVertices.of(contacts.vertices, dtype))
        joined = zip(lists or found, found, search.hulls.room, strict=True)
        lists = found if lists is None else [joined_lists(*x) for x in joined]
    assert lists is not None
    law, fixed = _numbers_of_pairs(contacts, sizes, dtype), _fixed_numbers(world, dtype)
    out = []
    for found, owner in zip(lists, search.owners, strict=True):
        blocks = _blocks_of(found, FOUND + 1)
        pair = jnp.asarray(owner)[lax.stop_gradient(blocks[..., FOUND]).astype(jnp.int32)]
        width = law.shape[-1]
        of_law = taken_rows(law.reshape(*law.shape[:-2], -1), width, pair)
        whole = jnp.concatenate([blocks, jnp.broadcast_to(of_law, (*pair.shape, width)), jnp.asarray(fixed)[pair]], -1)
        out += [found[..., :1], whole.reshape(*whole.shape[:-2], -1)]
    return jnp.concatenate(out, axis=-1)


def _side_by_side(arrays: Sequence, dtype, core: int):
    """Return arrays `[*batch, n, ...]` with `core` axes that are not batch axes one after the other along the first of
    these."""
    arrays = [jnp.asarray(x, dtype) for x in arrays]
    batch = jnp.broadcast_shapes(*(x.shape[: x.ndim - core] for x in arrays))
    return jnp.concatenate([jnp.broadcast_to(x, (*batch, *x.shape[x.ndim - core :])) for x in arrays], axis=-core)


def _numbers_of_pairs(contacts: Contacts, sizes, dtype):
    """Return the numbers of the laws of all pairs, and the depth up to which they are MuJoCo's, `[*batch, n, k]`."""
    out = []
    for pairs in contacts.pairs:
        given = zip(LAW, LAW_SIZES, strict=True)
        columns = [getattr(pairs, name)[..., None] if size == 1 else getattr(pairs, name) for name, size in given]
        shallow = jnp.full((len(pairs.first), 1), FAR, dtype)
        if may_be_deep(*pairs.types):
            ends = [
                jnp.moveaxis(sizes[..., np.array(rows), :], (-2, -1), (0, 1)) for rows in (pairs.first, pairs.second)
            ]
            shallow = to_leading(shallow_depth(pairs.types[0], ends[0], pairs.types[1], ends[1]))[..., None]
        columns = [jnp.asarray(x, dtype) for x in (*columns, shallow)]
        batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in columns))
        out.append(jnp.concatenate([jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in columns], axis=-1))
    return _side_by_side(out, dtype, 2)


def _fixed_numbers(world: Any, dtype) -> np.ndarray:
    """Return for all pairs the bodies, and the signs with which degrees of freedom move them."""
    contacts, topology = world.parts.constraints.contacts, world.model.topology
    ends = [np.concatenate([np.array(getattr(p, side)) for p in contacts.pairs]) for side in ("first", "second")]
    dofs = np.array(contacts.geoms.dofs)
    bodies = np.array(contacts.bodies)
    moves1, moves2 = (_moves(topology, dofs[rows]) for rows in ends)
    columns = [bodies[ends[0]][:, None], bodies[ends[1]][:, None], moves2.astype(float) - moves1]
    return np.concatenate(columns, axis=1).astype(dtype)


def _moves(topology, dofs: np.ndarray) -> np.ndarray:
    return np.where((dofs >= 0)[:, None], topology.dof_ancestors[np.maximum(dofs, 0)], False)


class ListRows(NamedTuple):
    """The list of a state, as rows."""

    shape: ListShape
    count: Any
    """`[1, *batch]`: the number of contacts, also of those that the list has no room for."""
    blocks: Any
    """`[room, width, *batch]`: the numbers of all contacts."""


def lists_of(robot: Robot, contacts: Contacts, found) -> list[ListRows]:
    """Return all lists from the rows of `found_contacts`."""
    width, out, start = FOUND + 1 + sum(LAW_SIZES) + 1 + 2 + robot.nv, [], 0
    for shape in list_shapes(contacts):
        count, end = found[start : start + 1], start + 1 + shape.room * width
        out.append(ListRows(shape, count, found[start + 1 : end].reshape(shape.room, width, *found.shape[1:])))
        start = end
    return out


def listed_contacts(x) -> ListedContacts:
    """Return contacts from their numbers `[n, width, *batch]`."""
    normal, tangent = (Vec3(*(x[:, k + i] for i in range(3))) for k in (4, 7))
    frame = Mat3(normal, tangent, normal.cross(tangent))
    law, at = {}, FOUND + 1
    for name, size in zip(LAW, LAW_SIZES, strict=True):
        law[name] = x[:, at] if size == 1 else x[:, at : at + size]
        at += size
    position = Vec3(*(x[:, 1 + i] for i in range(3)))
    more = x[:, FOUND], law, x[:, at], (x[:, at + 1], x[:, at + 2]), x[:, at + 3 :]
    return ListedContacts(x[:, 0], position, frame, *more)


def among_candidates(contacts: Contacts, found, table):
    """Return rows of lists `[*batch, rooms]` in a pytree as those of all candidates, in the order of
    `Contacts.candidate_names`. The first leaf is `FAR` where nothing was found, the others zero."""
    shapes = list_shapes(contacts)
    width = (found.shape[-1] - len(shapes)) // sum(shape.room for shape in shapes)
    places, start, first = [], 0, 0
    for shape in shapes:
        blocks = found[..., start + 1 : start + 1 + shape.room * width].reshape(*found.shape[:-1], shape.room, width)
        there = jnp.arange(shape.room) < found[..., start, None]
        # What is not there goes behind the end, and is dropped.
        beyond = sum(shape.candidates for shape in shapes)
        places.append(jnp.where(there, first + blocks[..., FOUND].astype(jnp.int32), beyond))
        start, first = start + 1 + shape.room * width, first + shape.candidates
    place = jnp.concatenate(places, axis=-1)

    def spread(x, fill: float):
        empty = jnp.full((*x.shape[:-1], first), fill, x.dtype)
        put = jnp.vectorize(lambda e, p, x: e.at[p].set(x, mode="drop"), signature="(n),(k),(k)->(n)")
        return put(empty, place, x)

    leaves, structure = jax.tree.flatten(table)
    return jax.tree.unflatten(structure, [spread(x, FAR if k == 0 else 0.0) for k, x in enumerate(leaves)])


def left_out(contacts: Contacts, found) -> Any:
    """Return how many contacts lists have no room for, `[*batch]`."""
    total, start = jnp.zeros_like(found[..., 0]), 0
    width = (found.shape[-1] - len(list_shapes(contacts))) // sum(shape.room for shape in list_shapes(contacts))
    for shape in list_shapes(contacts):
        total = total + jnp.maximum(found[..., start] - shape.room, 0)
        start += 1 + shape.room * width
    return total
