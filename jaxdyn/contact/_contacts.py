"""Contacts of a robot: shapes on its links, the surface of the world, pairs of links, and the laws between them."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError
from jaxdyn._types import Array, Float
from jaxdyn.algorithms.recursions import Robot, body_poses
from jaxdyn.contact._law import ContactLaw, LawRows
from jaxdyn.contact._options import ContactOptions
from jaxdyn.geometry import (
    AbstractShape,
    AbstractSurface,
    Plane,
    Witness,
    pair_witness_count,
    pair_witnesses,
    surface_witnesses,
)
from jaxdyn.model import Model, Placement, pose_in_body
from jaxdyn.spatial import Pose
from jaxdyn.tree import packed_rows, rows_of, take_rows


class ContactShape(NamedTuple):
    """A shape that is fixed on a link and touches the world."""

    link: str
    """A body, a merged link, a frame, or `"world"`."""
    shape: AbstractShape
    placement: Placement = None
    """The pose of the shape in the link: an `SE3`, position (m) and quaternion `w x y z`, a position, or None for the
    identity."""
    law: ContactLaw | None = None
    """The law of its contacts; None for the one that `Contacts` has for all others."""


class ContactPair(NamedTuple):
    """Two links whose shapes touch each other."""

    link1: str
    """The link of shapes, as `ContactShape.link` has it; one of the two may be fixed in the world."""
    link2: str
    law: ContactLaw | None = None
    """The law of its contacts; None for the one that `Contacts` has for all others."""


class _Group(eqx.Module):
    """The shapes of one class and number of sizes."""

    kind: type[AbstractShape] = eqx.field(static=True)
    links: tuple[str, ...] = eqx.field(static=True)
    bodies: tuple[int, ...] = eqx.field(static=True)
    """The body of each shape; -1 for the world."""
    laws: tuple[int, ...] = eqx.field(static=True)
    """The law of each shape's contacts with the surface."""
    sizes: Float[Array, "*batch n k"]
    placement: Float[Array, "*batch n 7"]
    """The poses in the frames of the bodies."""

    def of_each(self) -> int:
        """Return the number of contacts of each shape with the surface."""
        return self.kind.witness_count(self.sizes.shape[-1])

    def moving(self) -> np.ndarray:
        """Return the shapes that move."""
        return np.flatnonzero(np.array(self.bodies) >= 0)


class _PairGroup(NamedTuple):
    """The pairs of shapes of two groups; the second shape of each moves."""

    groups: tuple[int, int]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    laws: tuple[int, ...]
    of_each: int
    """The number of contacts of each pair."""


class _Touching(NamedTuple):
    """The bodies, laws and names of contacts, `[nc]` each, in the order of all results."""

    bodies1: np.ndarray
    """The body, or -1, whose surface is touched."""
    bodies2: np.ndarray
    """The body on which the force acts."""
    laws: np.ndarray
    names: tuple[str, ...]


class Contacts(eqx.Module):
    """The contacts of a robot with the world and of its links with each other, for `step` and `rollout`.

    Sizes and placements of shapes, the surface, and the numbers of the laws are arrays: gradients reach them, new
    values do not compile again, and they may have leading batch axes.
    """

    groups: tuple[_Group, ...]
    surface: AbstractSurface | None
    laws: ContactLaw
    """The laws, `[*batch, n]` each."""
    limits: ContactLaw | None
    """The law of the joints' stops; None for joints without."""
    pairs: tuple[_PairGroup, ...] = eqx.field(static=True)
    options: ContactOptions = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        shapes: Sequence[ContactShape],
        surface: AbstractSurface | Literal["ground"] | None = "ground",
        law: ContactLaw | None = None,
        limits: ContactLaw | None = None,
        options: ContactOptions | None = None,
        pairs: Sequence[ContactPair | tuple[str, str]] | Literal["all"] = (),
    ):
        """The contacts of these shapes on links of the model with a surface, `"ground"` for the plane `z = 0` or None
        for no surface, under `law` where a shape has none of its own. `options` say how a step is solved.

        With `pairs`, the shapes of two links touch each other: a `ContactPair` for each two links, or their names;
        `"all"` for all shapes on different bodies that no joint connects with each other. Shapes that are fixed in the
        world, such as a table, touch the shapes that they have pairs with, and not the surface.

        With `limits`, joints have stops at their limits (`Model.position_lower`, `position_upper`), for each of their
        coordinates that is a length or an angle: normal forces of this law, in N m/rad and s/rad where the coordinate
        is an angle. Without, they pass their limits.

        **Raises** `ModelError` without shapes or contacts, for a shape on a link that is fixed in the world and in no
        pair, for a pair without shapes, of one body, of two fixed links, or of shapes that have no pairs, and for a
        placement that is not a pose; `UnknownNameError` for a link; `ShapeError`.
        """
        if not shapes:
            raise ModelError("Contacts needs at least one ContactShape; leave contacts=None for a step without contact")
        table = _Laws(law)
        self.groups = _grouped(model, shapes, table)
        self.surface = _surface(surface)
        self.pairs = _grouped_pairs(model, self.groups, pairs, table)
        self.limits = limits
        self.options = ContactOptions() if options is None else options
        self.laws = jax.tree.map(lambda *x: _stacked(x, jnp.result_type(*x), -1), *table.laws)
        self._require_use()

    def _require_use(self) -> None:
        """Raise `ModelError` for shapes that touch nothing."""
        paired = {(g, i) for pair in self.pairs for g, rows in zip(pair.groups, pair.shapes, strict=True) for i in rows}
        for g, group in enumerate(self.groups):
            for i, (link, body) in enumerate(zip(group.links, group.bodies, strict=True)):
                if (self.surface is None or body < 0) and (g, i) not in paired:
                    reason = "there is no surface" if body >= 0 else "it is fixed in the world"
                    kind = group.kind.__name__
                    raise ModelError(f"the {kind} on {link!r} touches nothing: {reason}, and it is in none of `pairs`")

    @property
    def touching(self) -> _Touching:
        """The bodies, laws and names of the contacts, which are static."""
        groups = tuple((g.links, g.bodies, g.laws, g.of_each()) for g in self.groups)
        return _touching(groups, self.pairs, self.surface is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """The link of each contact, or both links of a pair, in the order of all results."""
        return self.touching.names

    def on_rows(self, robot: Robot) -> ContactRows:
        """Return the contacts as a step sees them."""
        return ContactRows(self, robot)

    def leaves_of_model(self) -> tuple[str, ...]:
        """Return the names of the model's arrays that the contacts need, besides those of the dynamics."""
        return () if self.limits is None else ("position_lower", "position_upper")

    def axes(self) -> list[int]:
        """Return for each array, in the order of the leaves, the number of axes that are not batch axes."""
        surface = [
            len(own.shape) if hint is None else hint
            for name, hint in ({} if self.surface is None else _axes_of_fields(type(self.surface))).items()
            for own in jax.tree.leaves(getattr(self.surface, name))
        ]
        limits = [0] * len(jax.tree.leaves(self.limits))
        return [2, 2] * len(self.groups) + surface + [1] * len(jax.tree.leaves(self.laws)) + limits


class ContactRows:
    """Contacts as a step sees them: rows with the contact first and the batch last."""

    def __init__(self, contacts: Contacts, robot: Robot):
        self.contacts, self.robot = contacts, robot
        touching = contacts.touching
        self.dofs = robot.topology.body_dofs[touching.bodies2]
        """The degree of freedom that carries the body on which the force of each contact acts."""
        self.other_dofs = None
        """With pairs, the degree of freedom that carries the first body, -1 for the world."""
        self.paired = np.flatnonzero(touching.bodies1 >= 0)
        """The contacts of two moving bodies."""
        if len(self.paired):
            self.other_dofs = np.where(touching.bodies1 >= 0, robot.topology.body_dofs[touching.bodies1], -1)

    @functools.cached_property
    def law(self) -> LawRows:
        """The numbers of the law of each contact."""
        laws, which = self.contacts.laws, self.contacts.touching.laws
        return LawRows(*(take_rows(rows_of(getattr(laws, name), self.robot.rank), which) for name in LawRows._fields))

    @functools.cached_property
    def stop_law(self) -> LawRows:
        """The numbers of the law of the joints' stops, `[1, *batch]`."""
        limits, rank = self.contacts.limits, self.robot.rank
        return LawRows(*(rows_of(getattr(limits, name)[..., None], rank) for name in LawRows._fields))

    def witnesses(self, world: Pose) -> Witness:
        """Return the contacts, from the poses in the world of the frames behind the degrees of freedom."""
        contacts, rank = self.contacts, self.robot.rank
        sizes = [packed_rows(group.sizes, rank) for group in contacts.groups]
        poses = [self._poses(group, world) for group in contacts.groups]
        found = []
        for group, size, pose in zip(contacts.groups, sizes, poses, strict=True):
            if contacts.surface is not None and len(where := group.moving()):
                size, pose = take_rows((size, pose), where)
                found.append(surface_witnesses(group.kind, size, pose, contacts.surface))
        for pair in contacts.pairs:
            (g1, g2), (rows1, rows2) = pair.groups, pair.shapes
            size1, pose1 = take_rows((sizes[g1], poses[g1]), np.array(rows1))
            size2, pose2 = take_rows((sizes[g2], poses[g2]), np.array(rows2))
            kind1, kind2 = (contacts.groups[g].kind for g in pair.groups)
            found.append(pair_witnesses(kind1, size1, pose1, kind2, size2, pose2))
        found = [jax.tree.map(lambda x: self.robot.broadcast(jnp.asarray(x)), w) for w in found]
        return jax.tree.map(lambda *x: jnp.concatenate(x), *found)

    def _poses(self, group: _Group, world: Pose) -> Pose:
        """Return the poses of the shapes of a group in the world."""
        placement = jax.tree.map(lambda x: rows_of(x, self.robot.rank), Pose.from_vector(group.placement))
        poses = body_poses(self.robot, world, np.array(group.bodies)).compose(placement)
        return jax.tree.map(self.robot.broadcast, poses)


class _Laws:
    """The different laws of some contacts, in the order of their first use."""

    def __init__(self, common: ContactLaw | None):
        self.laws: list[ContactLaw] = []
        self.common = ContactLaw() if common is None else common

    def place(self, own: ContactLaw | None) -> int:
        """Return the number of a law, or of the common one."""
        law = self.common if own is None else own
        place = next((i for i, x in enumerate(self.laws) if x is law), len(self.laws))
        self.laws += [law] if place == len(self.laws) else []
        return place


def _surface(surface: Any) -> AbstractSurface | None:
    if surface is None or isinstance(surface, AbstractSurface):
        return surface
    if not isinstance(surface, str) or surface != "ground":
        raise ModelError(f"surface is {surface!r}; a surface such as jaxdyn.Plane(), 'ground' or None is needed")
    return Plane()


def _grouped(model: Model, shapes: Sequence[ContactShape], table: _Laws) -> tuple[_Group, ...]:
    """Return the shapes in groups that are computed together."""
    members: dict[tuple[type, int], list[tuple[str, int, int, Any, Any]]] = {}
    for number, each in enumerate(shapes):
        if not isinstance(each, ContactShape):
            raise ModelError(f"shapes[{number}] is {type(each).__name__}; jaxdyn.ContactShape(link, shape) is needed")
        what = f"placement of the {type(each.shape).__name__} on {each.link!r}"
        body, pose = pose_in_body(model, each.link, each.placement, what)
        sizes = each.shape.sizes
        row = each.link, body, table.place(each.law), sizes, pose
        members.setdefault((type(each.shape), sizes.shape[-1]), []).append(row)
    groups = []
    for (kind, _), rows in members.items():
        links, bodies, laws, sizes, poses = zip(*rows, strict=True)
        groups.append(_Group(kind, links, bodies, laws, *(_stacked(x, model.dtype, -2) for x in (sizes, poses))))
    return tuple(groups)


def _grouped_pairs(model: Model, groups: Sequence[_Group], pairs: Any, table: _Laws) -> tuple[_PairGroup, ...]:
    """Return the pairs of shapes in groups that are computed together."""
    shapes = [(g, i, group.links[i], body) for g, group in enumerate(groups) for i, body in enumerate(group.bodies)]
    members: dict[tuple[int, int], list[tuple[int, int, int]]] = {}

    def add(one, two, law: ContactLaw | None) -> None:
        if two[3] < 0:
            one, two = two, one
        members.setdefault((one[0], two[0]), []).append((one[1], two[1], table.place(law)))

    if isinstance(pairs, str):
        if pairs != "all":
            raise ModelError(f"pairs is {pairs!r}; 'all', or pairs of the names of links, are needed")
        for k, one in enumerate(shapes):
            for two in shapes[k + 1 :]:
                if not _joined(model, one[3], two[3]):
                    add(one, two, None)
    else:
        for number, pair in enumerate(pairs):
            for one, two in _shapes_of_pair(shapes, pair, number):
                add(one, two, ContactPair(*pair).law)
    out = []
    for (g1, g2), rows in members.items():
        rows1, rows2, laws = zip(*rows, strict=True)
        kinds = [(groups[g].kind, groups[g].sizes.shape[-1]) for g in (g1, g2)]
        out.append(_PairGroup((g1, g2), (rows1, rows2), laws, pair_witness_count(*kinds[0], *kinds[1])))
    return tuple(out)


def _joined(model: Model, body1: int, body2: int) -> bool:
    """Whether two bodies are one, or joined by a joint; -1 is the world, to which no joint counts."""
    parents = model.topology.parents
    return body1 == body2 or (min(body1, body2) >= 0 and (parents[body1] == body2 or parents[body2] == body1))


def _shapes_of_pair(shapes: list, pair: Any, number: int) -> list:
    """Return the pairs of shapes of two links."""
    if isinstance(pair, str) or not 2 <= len(pair) <= 3:
        raise ModelError(f"pairs[{number}] is {pair!r}; jaxdyn.ContactPair(link1, link2) is needed")
    one, two = ([shape for shape in shapes if shape[2] == link] for link in pair[:2])
    for link, found in zip(pair[:2], (one, two), strict=True):
        if not found:
            known = ", ".join(dict.fromkeys(shape[2] for shape in shapes))
            raise ModelError(f"pairs[{number}]: no shape is on {link!r}; the shapes are on {known}")
    if one[0][3] == two[0][3]:
        reason = "one body" if one[0][3] >= 0 else "the world, where both are fixed"
        raise ModelError(f"pairs[{number}]: {pair[0]!r} and {pair[1]!r} belong to {reason}, so they cannot touch")
    return [(a, b) for a in one for b in two]


@functools.cache
def _touching(groups: tuple, pairs: tuple[_PairGroup, ...], on_surface: bool) -> _Touching:
    """Return the bodies, laws and names of the contacts of groups, each of which is given by its links, bodies, laws
    and number of contacts of a shape."""
    rows: list[tuple[int, int, int, str]] = []
    for links, bodies, laws, count in groups if on_surface else ():
        for link, body, law in zip(links, bodies, laws, strict=True):
            rows += [(-1, body, law, link)] * (count if body >= 0 else 0)
    for pair in pairs:
        one, two = (groups[g] for g in pair.groups)
        for i, j, law in zip(*pair.shapes, pair.laws, strict=True):
            rows += [(one[1][i], two[1][j], law, f"{one[0][i]}, {two[0][j]}")] * pair.of_each
    bodies1, bodies2, laws, names = zip(*rows, strict=True)
    return _Touching(np.array(bodies1), np.array(bodies2), np.array(laws), names)


@functools.cache
def _axes_of_fields(surface: type[AbstractSurface]) -> dict[str, int | None]:
    """Return for each field with arrays the number of axes that are not batch axes; None for arrays without batch."""
    hints = typing.get_type_hints(surface)
    fields = [f.name for f in dataclasses.fields(surface) if not f.metadata.get("static")]
    return {n: len(hints[n].dim_str.split()) - 1 if hasattr(hints[n], "dim_str") else None for n in fields}


def _stacked(arrays: Sequence[Any], dtype, axis: int) -> Any:
    """Return arrays along a new axis; their batch axes broadcast. NumPy stacks what is not traced, because JAX would
    compile several programs for each number of arrays."""
    lib = jnp if any(isinstance(x, Tracer) for x in arrays) else np
    stack = lib.stack(lib.broadcast_arrays(*(lib.asarray(x, dtype) for x in arrays)), axis=axis)
    return jnp.asarray(stack, dtype)
