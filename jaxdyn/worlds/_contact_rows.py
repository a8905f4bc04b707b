"""Contacts of a world, as rows of constraints: candidates of all pairs of geoms, and the cones of those with friction.

Source: MuJoCo's manual, chapter Computation, Contact; `engine_core_constraint.c` of MuJoCo 4.0.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.geometry import (
    FAR,
    Candidates,
    Hull,
    Hulls,
    PointChoice,
    Points,
    ShapeKind,
    candidate_count,
    candidates,
    may_be_deep,
    shallow_depth,
)
from jaxdyn.io.mjcf import GeomPair, GeomType, enum_name, hulls_of_geoms, object_name, shapes_of_pair
from jaxdyn.laws import EllipticCone, PyramidalCone, SoftInequality
from jaxdyn.rows import AbstractRows, Ends, MatrixRows, PointRows
from jaxdyn.solve import ListedTerm, Term
from jaxdyn.tree import take_rows
from jaxdyn.worlds._contact_search import ListedContacts, list_shapes, listed_contacts, lists_of
from jaxdyn.worlds._parts import Instant, Located, Part, PartRows, Places
from jaxdyn.worlds._rows import Timing, arm_of, coherent, regularization, soft_term, softness
from jaxdyn.worlds._transmission import ContactNormals

MOST_CANDIDATES = 200
"""The most candidates that have rows of their own. In one run each, a step took with these and with lists: 6 and 12 us
for Gymnasium's ant with 25 candidates, which are eliminated along the tree; 2.4 and 2.8 us for dm_control's cheetah
with 54; 65 and 53 us for Gymnasium's humanoid with 190, whose gradient took 160 and 600 us."""

RESTING = 8
"""The contacts for which each tree should find room: those of a box that lies in a corner of floor and wall."""


class Pairs(Part):
    """Pairs of geoms of the same two classes of shapes."""

    types: tuple[ShapeKind, ShapeKind] = eqx.field(static=True)
    first: tuple[int, ...] = eqx.field(static=True)
    """The rows of the geoms in `Contacts`."""
    second: tuple[int, ...] = eqx.field(static=True)
    dims: tuple[int, ...] = eqx.field(static=True)
    """The number of directions of the contacts of each pair (`condim`)."""
    deciders: tuple[tuple[tuple[int, ...], ...], ...] = eqx.field(static=True)
    """The rows of the geoms whose friction each pair has: for sliding, torsion and rolling (`GeomPair.deciders`)."""
    structures: tuple[Hashable, Hashable] = eqx.field(static=True)
    """The grid of the first geom where it is a height field, and the convex hulls of geoms that are meshes."""
    heights: Float[Array, "*batch h"] | None
    """The sizes and elevations of this field, which all pairs share."""
    margin: Float[Array, "*batch n"]
    gap: Float[Array, "*batch n"]
    solref: Float[Array, "*batch n 2"]
    solreffriction: Float[Array, "*batch n 2"]
    solimp: Float[Array, "*batch n 5"]
    friction: Float[Array, "*batch n 5"]
    weight: Float[Array, "*batch n"]
    """The sum of the inverse masses of both bodies, as their points show at rest (`body_invweight0`)."""
    points: PointChoice = eqx.field(static=True, default="mujoco")
    """How the places of contacts are chosen."""

    def count(self) -> int:
        """Return the number of candidates of each pair."""
        return candidate_count(*self.types, self.structures, self.points)


class Contacts(Part):
    """The contacts of a world: a fixed number of candidates for each pair of geoms that can touch."""

    numbers: tuple[int, ...] = eqx.field(static=True)
    """The geoms in MuJoCo's numbers."""
    names: tuple[str, ...] = eqx.field(static=True)
    bodies: tuple[int, ...] = eqx.field(static=True)
    """MuJoCo's number of the body of each."""
    geoms: Places
    sizes: Float[Array, "*batch n 3"]
    pairs: tuple[Pairs, ...]
    elliptic: bool = eqx.field(static=True)
    impratio: Float[Array, "*batch"]
    """The ratio of the stiffness of friction to that of the normal direction (`impratio`)."""
    listed: bool = eqx.field(static=True, default=False)
    """Whether contacts are searched for, and rows are made of the lists of those that are found (`found_contacts`),
    instead of all candidates."""
    vertices: Float[Array, "*batch hulls k"] | None = None
    """The coordinates of the vertices of the convex hulls of all geoms that are meshes."""

    def directions(self) -> list[tuple[int, int]]:
        """Return each number of directions that contacts have, and the number of such candidates."""
        counts: dict[int, int] = {}
        for pairs in self.pairs:
            count = pairs.count()
            for dim in pairs.dims:
                counts[dim] = counts.get(dim, 0) + count
        return sorted(counts.items())

    def candidate_geoms(self) -> list[tuple[int, int]]:
        """Return the rows of both geoms of each candidate, in the order of the rows: by the number of directions."""
        out = []
        for dim, _ in self.directions():
            for pairs in self.pairs:
                count = pairs.count()
                for one, two, own in zip(pairs.first, pairs.second, pairs.dims, strict=True):
                    out += [(one, two)] * (count if own == dim else 0)
        return out

    def candidate_names(self) -> tuple[str, ...]:
        """Return the names of `candidate_geoms`."""
        return tuple(f"{self.names[one]}, {self.names[two]}" for one, two in self.candidate_geoms())

    @classmethod
    def of(cls, m, found: Sequence[GeomPair]) -> Self:
        """Return the contacts of an `mjModel` with these pairs of geoms."""
        numbers = sorted({g for pair in found for g in (pair.geom1, pair.geom2)})
        by_shapes: dict[tuple[int, int, Hashable], list[GeomPair]] = {}
        for pair in found:
            grid = shapes_of_pair(m, pair)[0][0]
            by_shapes.setdefault((int(pair.type1), int(pair.type2), grid), []).append(pair)
        meshes = [g for g in numbers if m.geom_type[g] == GeomType.MESH]
        (hulls,), positions = hulls_of_geoms(m, meshes)
        assert hulls is not None
        hull_of = dict(zip(meshes, hulls.members, strict=True))
        pairs = tuple(_pairs(m, members, numbers, hulls.hulls, hull_of) for members in by_shapes.values())
        sizes = float_leaf(np.array(m.geom_size[numbers], float).reshape(-1, 3))
        elliptic = enum_name("mjtCone", m.opt.cone) == "elliptic"
        places = Places.of(m, "geom", numbers)
        bodies = tuple(m.geom_bodyid[numbers].tolist())
        names = tuple(object_name(m, "geom", g) for g in numbers)
        impratio = float_leaf(float(m.opt.impratio))
        vertices = float_leaf(positions) if len(positions) else None
        contacts = cls(tuple(numbers), names, bodies, places, sizes, pairs, elliptic, impratio, vertices=vertices)
        # Sweeps against slip go over all candidates in MuJoCo's order.
        return contacts if m.opt.noslip_iterations > 0 else contacts.listed_if_many(int(m.ntree))

    def listed_if_many(self, trees: int) -> Self:
        """Return the contacts in a world with so many trees. They are searched for where there are many candidates, or
        meshes, and the lists have room for all, or for each tree to rest on `RESTING` of them, unless there are height
        fields."""
        many = self.vertices is not None or sum(count for _, count in self.directions()) > MOST_CANDIDATES
        if not many or any(pairs.heights is not None for pairs in self.pairs):
            return self
        if any(shape.room < min(shape.candidates, trees * RESTING) for shape in list_shapes(self)):
            return self
        return dataclasses.replace(self, listed=True)


def _pairs(m, members: list[GeomPair], numbers: list[int], hulls: tuple[Hull, ...], hull_of: dict[int, int]) -> Pairs:
    place = {g: i for i, g in enumerate(numbers)}
    bodies = m.geom_bodyid[[[pair.geom1, pair.geom2] for pair in members]]
    weight = m.body_invweight0.reshape(-1, 2)[bodies, 0].sum(axis=1)
    names = ("margin", "gap", "solref", "solreffriction", "solimp", "friction")
    arrays = {name: np.array([getattr(pair, name) for pair in members], float) for name in names}
    arrays["solref"] = coherent(arrays["solref"])
    arrays["solreffriction"] = coherent(arrays["solreffriction"], (0.0, 0.0))
    first, second = (tuple(place[getattr(pair, side)] for pair in members) for side in ("geom1", "geom2"))
    dims = tuple(pair.condim for pair in members)
    deciders = tuple(tuple(tuple(place[g] for g in geoms) for geoms in pair.deciders) for pair in members)
    kind1, kind2 = members[0].kinds
    # Pairs of other types are refused before.
    assert kind1 is not None
    assert kind2 is not None
    (grid, numbers_of_grid), _ = shapes_of_pair(m, members[0])
    heights = None if grid is None else float_leaf(numbers_of_grid)
    sides = [[getattr(x, side) for x in members] for side in ("geom1", "geom2")]
    hulls1, hulls2 = (
        Hulls(hulls, tuple(hull_of[g] for g in geoms)) if kind is Points else None
        for kind, geoms in zip((kind1, kind2), sides, strict=True)
    )
    numbers_of_law = {name: float_leaf(x) for name, x in arrays.items()}
    return Pairs(
        *((kind1, kind2), first, second, dims, deciders, (grid or hulls1, hulls2), heights),
        **numbers_of_law,
        weight=float_leaf(weight),
        points="mujoco",
    )


class _Touching(NamedTuple):
    """Candidates with what their rows need, `[n, *batch]`."""

    candidates: Candidates
    margin: Any
    solref: Any
    solreffriction: Any
    solimp: Any
    friction: Any
    weight: Any


class TouchingBodies(NamedTuple):
    """The candidates of a world by the number of directions of their contacts, and in which bodies they are."""

    dims: np.ndarray
    """`[n]`"""
    bodies: np.ndarray
    """`[n, 2]`: MuJoCo's numbers of the bodies."""
    first: Located
    second: Located
    touching: _Touching

    def motions(self, robot: Robot, dim: int, at: Instant) -> AbstractRows:
        """Return the motions that the rows measure."""
        frame, position = self.touching.candidates.frame, self.touching.candidates.position
        arms = [arm_of(at, side.dofs, position) for side in (self.first, self.second)]
        ends = Ends.of(self.first.dofs, arms[0], self.second.dofs, arms[1], shared=True)
        axes = frame.x, frame.y, frame.z
        return PointRows(ends, axes[:dim], axes[: max(dim - 3, 0)])


class FoundBodies(NamedTuple):
    """The same of contacts that were searched for, of which the bodies are not known before."""

    dims: np.ndarray
    bodies: tuple[Any, Any]
    """MuJoCo's numbers of both bodies, `[n, *batch]`."""
    touching: _Touching
    signs: Any
    """As in `ListedContacts`."""
    numbers: Any
    """As in `ListedContacts`."""

    def motions(self, robot: Robot, dim: int, at: Instant) -> AbstractRows:
        """Return the motions that the rows measure."""
        frame, position = self.touching.candidates.frame, self.touching.candidates.position
        # The points from the point of reference of the tree of each degree of freedom.
        reference = np.broadcast_to(robot.topology.reference_dof, robot.nv)
        arms = arm_of(at, reference, jax.tree.map(lambda x: x[:, None], position))
        moved = jax.tree.map(lambda x: robot.broadcast(x)[None], at.at.S).at(arms)
        axes = [jax.tree.map(lambda x: x[:, None], axis) for axis in (frame.x, frame.y, frame.z)]
        J = [moved.linear.dot(axis) for axis in axes[:dim]]
        J += [moved.angular.dot(axis) for axis in axes[: max(dim - 3, 0)]]
        J = jnp.concatenate([x * self.signs for x in J])
        return MatrixRows.of(J, np.ones(J.shape[:2], bool))


def touching(robot: Robot, contacts: PartRows, at: Instant) -> TouchingBodies | None:
    """Return all candidates at a state; None without any."""
    if not contacts.numbers:
        return None
    geoms = Places.located(contacts.geoms, at)
    parts, dims, ends = [], [], ([], [])
    for pairs in contacts.pairs:
        count = pairs.part.count()
        places = [geoms.take(rows) for rows in (pairs.first, pairs.second)]
        sizes = [robot.broadcast(take_rows(contacts.sizes, np.array(rows))) for rows in (pairs.first, pairs.second)]
        if pairs.heights is not None:
            sizes[0] = pairs.heights[None]
        for side, structure in enumerate(pairs.structures):
            if isinstance(structure, Hulls):
                assert contacts.vertices is not None
                sizes[side] = contacts.vertices
        (type1, type2), (size1, size2), (pose1, pose2) = pairs.types, sizes, [x.pose for x in places]
        reach = pairs.margin + pairs.gap
        found = candidates(type1, size1, pose1, type2, size2, pose2, reach, pairs.structures, pairs.points)
        owners = np.repeat(np.arange(len(pairs.dims)), count)
        numbers = (pairs.margin, pairs.solref, pairs.solreffriction, pairs.solimp, pairs.friction, pairs.weight)
        parts.append(jax.tree.map(robot.broadcast, _Touching(found, *take_rows(numbers, owners))))
        dims += np.array(pairs.dims)[owners].tolist()
        for rows, side in zip((pairs.first, pairs.second), ends, strict=True):
            side += np.array(rows)[owners].tolist()
    together = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    bodies = np.array(contacts.bodies)[np.array(ends, int).T]
    return TouchingBodies(np.array(dims), bodies, geoms.take(ends[0]), geoms.take(ends[1]), together)


def contact_terms(robot: Robot, contacts: PartRows, at: Instant, timing: Timing) -> list[Term | ListedTerm]:
    """Return the rows of the contacts at a state, those without friction first."""

    # Rows of parts are made where they are first read, which must not be inside of a loop.
    cones = _Cones(contacts.elliptic, contacts.impratio)

    def term(own: TouchingBodies | FoundBodies, dim: int) -> Term:
        return _smooth(robot, own, at, timing) if dim == 1 else _cone(robot, cones, own, dim, at, timing)

    if at.found is None:
        return [term(own, dim) for dim, own in by_directions(robot, contacts, at)]
    out = []
    for shape, count, blocks in lists_of(robot, contacts.part, at.found):

        def of_contact(block, dim=shape.dim):
            return term(_found(dim, listed_contacts(block[None])), dim)

        out.append(ListedTerm.of(robot, of_contact, jnp.minimum(count, float(shape.room)), blocks, shape.dim))
    return out


def by_directions(robot: Robot, contacts: PartRows, at: Instant) -> list[tuple[int, TouchingBodies | FoundBodies]]:
    """Return the candidates at a state by the number of directions of their contacts, in the order of the rows."""
    if at.found is not None:
        lists = lists_of(robot, contacts.part, at.found)
        return [(own.shape.dim, _found(own.shape.dim, listed_contacts(own.blocks))) for own in lists]
    everything = touching(robot, contacts, at)
    if everything is None:
        return []
    out = []
    for dim in sorted(set(everything.dims.tolist())):
        which = np.flatnonzero(everything.dims == dim)
        sides = everything.first.take(which), everything.second.take(which)
        found = jax.tree.map(lambda x, which=which: take_rows(x, which), everything.touching)
        out.append((dim, TouchingBodies(everything.dims[which], everything.bodies[which], *sides, found)))
    return out


def _found(dim: int, own: ListedContacts) -> FoundBodies:
    """Return contacts of lists, which have so many directions."""
    touch = _Touching(Candidates(own.distance, own.position, own.frame), **own.law)
    return FoundBodies(np.full(len(own.distance), dim), own.bodies, touch, own.signs, own.number)


def contact_normals(robot: Robot, contacts: PartRows, at: Instant) -> list[ContactNormals]:
    """Return the normals of the contacts at a state."""
    out = []
    for _, own in by_directions(robot, contacts, at):
        ends = own.bodies if isinstance(own, FoundBodies) else (own.bodies[:, 0], own.bodies[:, 1])
        J = robot.broadcast(own.motions(robot, 1, at).jacobian(robot, at.at.S))
        out.append(ContactNormals(ends, J, jnp.where(own.touching.candidates.distance < 0.5 * FAR, 1.0, 0.0)))
    return out


def deep_contacts(robot: Robot, world: PartRows, at: Instant):
    """Return how many contacts overlap so deeply that MuJoCo's may differ from them, `[1, *batch]`."""
    contacts, total = world.constraints.contacts, robot.broadcast(robot.zeros()[:1])
    if not any(may_be_deep(*pairs.types) for pairs in contacts.part.pairs):
        return total
    if at.found is not None:
        for each in lists_of(robot, contacts.part, at.found):
            own = listed_contacts(each.blocks)
            total = total + jnp.where(own.distance < -own.shallow, 1.0, 0.0).sum(axis=0)
        return total
    everything = touching(robot, contacts, at)
    assert everything is not None
    start = 0
    for pairs in contacts.pairs:
        count = pairs.part.count()
        if may_be_deep(*pairs.types):
            owners = np.repeat(np.arange(len(pairs.dims)), count)
            sizes = [take_rows(contacts.sizes, np.array(rows)[owners]) for rows in (pairs.first, pairs.second)]
            shallow = shallow_depth(pairs.types[0], sizes[0], pairs.types[1], sizes[1])
            distance = everything.touching.candidates.distance[start : start + len(owners)]
            total = total + jnp.where(distance < -shallow, 1.0, 0.0).sum(axis=0)
        start += count * len(pairs.dims)
    return total


def _normal(own: TouchingBodies | FoundBodies, timing: Timing):
    """Return the distances beyond the margin, finite for candidates that do not act, which act, and the softness."""
    touch = own.touching
    beyond = touch.candidates.distance - touch.margin
    acts = beyond < 0
    beyond = jnp.where(acts, beyond, jnp.zeros((), beyond.dtype))
    return beyond, acts, softness(touch.solref, touch.solimp, beyond, timing)


def _smooth(robot: Robot, own: TouchingBodies | FoundBodies, at: Instant, timing: Timing) -> Term:
    motions = own.motions(robot, 1, at)
    beyond, acts, soft = _normal(own, timing)
    aref = -soft.damping * motions.rates(robot, at.velocity, at.v) - soft.stiffness * beyond
    return soft_term(robot, SoftInequality, motions, aref, regularization(soft.share, own.touching.weight), acts)


class _Cones(NamedTuple):
    """What the cones of all contacts have in common: see `Contacts`."""

    elliptic: bool
    impratio: Any


def _cone(
    robot: Robot, cones: _Cones, own: TouchingBodies | FoundBodies, dim: int, at: Instant, timing: Timing
) -> Term:
    touch = own.touching
    motions = own.motions(robot, dim, at)
    rates = jnp.split(motions.rates(robot, at.velocity, at.v), dim)
    beyond, acts, soft = _normal(own, timing)
    friction = [touch.friction[:, k] for k in range(dim - 1)]
    # The friction of the cone that is round after the regularization of its directions.
    mu = robot.broadcast(friction[0] / jnp.sqrt(cones.impratio))
    if cones.elliptic:
        given = (touch.solreffriction != 0).any(axis=1)
        rubbing = jnp.where(given[:, None], touch.solreffriction, touch.solref)
        damping = softness(rubbing, touch.solimp, beyond, timing).damping
        normal = regularization(soft.share, touch.weight)
        first = normal / cones.impratio
        R = [normal, *(first * (friction[0] / f) ** 2 for f in friction)]
    else:
        damping = soft.damping
        normal = regularization(soft.share, touch.weight * (1 + friction[0] * friction[0]))
        R = [2 * mu * mu * normal] * dim
    aref = [-soft.damping * rates[0] - soft.stiffness * beyond]
    aref += [-damping * rate for rate in rates[1:]]
    aref, R, acts = (jnp.concatenate([robot.broadcast(x) for x in many]) for many in (aref, R, [acts] * dim))
    rubbing = jnp.concatenate([robot.broadcast(f) for f in friction])
    law = functools.partial(EllipticCone if cones.elliptic else PyramidalCone, dim, friction=rubbing, mu=mu)
    return soft_term(robot, law, motions, aref, R, acts)
