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

from jaxdyn import _printing as printing
from jaxdyn._errors import ModelError
from jaxdyn._types import Array, Float
from jaxdyn.algorithms.recursions import Robot, body_poses
from jaxdyn.contact._law import ContactLaw
from jaxdyn.contact._pairs import ContactPair, ContactShape, Member, PairGroup, chosen_pairs, grouped_pairs
from jaxdyn.geometry import AbstractShape, AbstractSurface, Plane, Witness, pair_witnesses, surface_witnesses
from jaxdyn.laws import LawRows
from jaxdyn.model import Model, pose_in_body
from jaxdyn.solve import SolverOptions
from jaxdyn.spatial import Pose
from jaxdyn.tree import packed_rows, rows_of, take_rows


class _Group(eqx.Module):
    """The shapes of one class and number of sizes."""

    kind: type[AbstractShape] = eqx.field(static=True)
    links: tuple[str, ...] = eqx.field(static=True)
    bodies: tuple[int, ...] = eqx.field(static=True)
    """The body of each shape; -1 for the world."""
    laws: tuple[int, ...] = eqx.field(static=True)
    """The law of each shape's contacts with the surface."""
    on_surface: tuple[bool, ...] = eqx.field(static=True)
    """Whether each shape touches the surface: those that move, unless they only have contacts in pairs."""
    sizes: Float[Array, "*batch n k"]
    placement: Float[Array, "*batch n 7"]
    """The poses in the frames of the bodies."""

    def of_each(self) -> int:
        """Return the number of contacts of each shape with the surface."""
        return self.kind.witness_count(self.sizes.shape[-1])

    def kind_and_size(self) -> tuple[type[AbstractShape], int]:
        """Return the class of the shapes and the number of their sizes."""
        return self.kind, self.sizes.shape[-1]


class _Touching(NamedTuple):
    """The bodies, laws and names of contacts, `[nc]` each, in the order of all results."""

    bodies1: np.ndarray
    """The body, or -1, whose surface is touched."""
    bodies2: np.ndarray
    """The body on which the force acts."""
    laws: np.ndarray
    names: tuple[str, ...]


class ShapeContacts(eqx.Module):
    """The contacts of the shapes of a `World` with its surface and with each other under a `ContactLaw`, and the stops
    of its joints.

    Sizes and placements of shapes, the surface, and the numbers of the laws are arrays: gradients reach them, new
    values do not compile again, and they may have leading batch axes.
    """

    groups: tuple[_Group, ...]
    surface: AbstractSurface | None
    laws: ContactLaw
    """The laws, `[*batch, n]` each."""
    limits: ContactLaw | None
    """The law of the joints' stops; None for joints without."""
    pairs: tuple[PairGroup, ...] = eqx.field(static=True)
    options: SolverOptions = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        shapes: Sequence[ContactShape],
        surface: AbstractSurface | Literal["ground"] | None = "ground",
        law: ContactLaw | None = None,
        limits: ContactLaw | None = None,
        options: SolverOptions | None = None,
        pairs: Sequence[ContactPair | tuple[str, str]] | Literal["all"] = (),
        apart: Sequence[str | tuple[str, str]] = (),
    ):
        """See `World` for the arguments, and for what is raised."""
        table = _Laws(law)
        self.groups, members = _grouped(model, shapes, table)
        self.surface = _surface(surface)
        chosen, apart_from_others = chosen_pairs(model, members, pairs, apart)
        self.pairs = grouped_pairs(chosen, lambda g: self.groups[g].kind_and_size(), table.place)
        self.limits = limits
        self.options = options or SolverOptions()
        laws = table.laws or [table.common]
        self.laws = jax.tree.map(lambda *x: _stacked(x, jnp.result_type(*x), -1), *laws)
        if shapes:
            self._require_use(apart_from_others)

    def _require_use(self, apart: set[tuple[int, int]]) -> None:
        """Raise `ModelError` for shapes that touch nothing, other than those that are kept apart."""
        paired = {(g, i) for pair in self.pairs for g, rows in zip(pair.groups, pair.shapes, strict=True) for i in rows}
        for g, group in enumerate(self.groups):
            for i, (link, body, free) in enumerate(zip(group.links, group.bodies, group.on_surface, strict=True)):
                if (self.surface is None or not free) and (g, i) not in paired | apart:
                    reason = "it is fixed in the world" if body < 0 else "it does not touch the surface"
                    reason = "there is no surface" if self.surface is None and body >= 0 else reason
                    kind = group.kind.__name__
                    raise ModelError(f"the {kind} on {link!r} touches nothing: {reason}, and it is in none of `pairs`")
        if not any(any(g.on_surface) for g in self.groups if self.surface is not None) and not self.pairs:
            raise ModelError("nothing is left that can touch: there is no surface, and `apart` leaves out all pairs")

    @property
    def touching(self) -> _Touching:
        """The bodies, laws and names of the contacts, which are static."""
        groups = tuple((g.links, g.bodies, g.laws, g.on_surface, g.of_each()) for g in self.groups)
        return _touching(groups, self.pairs, self.surface is not None)

    @property
    def names(self) -> tuple[str, ...]:
        """The link of each contact, or both links of a pair, in the order of all results."""
        return self.touching.names

    def facts(self) -> dict[str, str]:
        """Return the facts that `print` shows of a world."""
        stops = {} if self.limits is None else {"limits": "stops of joints"}
        if not self.groups:
            return stops
        shapes = [f"{len(x.links)} {x.kind.__name__}" for x in self.groups]
        facts = {"shapes": ", ".join(shapes), "surface": type(self.surface).__name__ if self.surface else "none"}
        links = dict.fromkeys(link for x in self.groups for link in x.links)
        facts |= {"links": printing.names(tuple(links))}
        if self.pairs:
            facts["pairs"] = str(len(self.pairs))
        for field, unit in (("stiffness", "N/m"), ("dissipation", "s/m"), ("friction", "")):
            facts[field] = printing.number(getattr(self.laws, field), unit)
        return facts | stops

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

    def __init__(self, contacts: ShapeContacts, robot: Robot):
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
            if contacts.surface is not None and len(where := np.flatnonzero(group.on_surface)):
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

    def place(self, own: Any) -> int:
        """Return the number of a law, or of the common one."""
        law = self.common if own is None else own
        if not isinstance(law, ContactLaw):
            needed = "a jaxdyn.ContactLaw is needed; World(law=MujocoLaw()) has contacts with MuJoCo's law"
            raise ModelError(f"World: a law is a {type(law).__name__}; {needed}")
        place = next((i for i, x in enumerate(self.laws) if x is law), len(self.laws))
        self.laws += [law] if place == len(self.laws) else []
        return place


def _surface(surface: Any) -> AbstractSurface | None:
    if surface is None or isinstance(surface, AbstractSurface):
        return surface
    if not isinstance(surface, str) or surface != "ground":
        raise ModelError(f"surface is {surface!r}; a surface such as jaxdyn.Plane(), 'ground' or None is needed")
    return Plane()


def _grouped(model: Model, shapes: Sequence[ContactShape], table: _Laws) -> tuple[tuple[_Group, ...], list[Member]]:
    """Return the shapes in groups that are computed together, and their places there in the order of the shapes."""
    rows: dict[tuple[type, int], list[tuple[str, int, int, bool, Any, Any]]] = {}
    members = []
    for number, each in enumerate(shapes):
        if not isinstance(each, ContactShape):
            raise ModelError(f"contacts[{number}] is {type(each).__name__}; jaxdyn.ContactShape(link, shape) is needed")
        what = f"placement of the {type(each.shape).__name__} on {each.link!r}"
        body, pose = pose_in_body(model, each.link, each.placement, what)
        sizes = each.shape.sizes
        key = type(each.shape), sizes.shape[-1]
        own = rows.setdefault(key, [])
        members.append(Member(list(rows).index(key), len(own), body, each))
        own.append((each.link, body, table.place(each.law), body >= 0 and each.on_surface, sizes, pose))
    groups = []
    for (kind, _), own in rows.items():
        links, bodies, laws, on_surface, *arrays = zip(*own, strict=True)
        groups.append(_Group(kind, links, bodies, laws, on_surface, *(_stacked(x, model.dtype, -2) for x in arrays)))
    return tuple(groups), members


@functools.cache
def _touching(groups: tuple, pairs: tuple[PairGroup, ...], on_surface: bool) -> _Touching:
    """Return the bodies, laws and names of the contacts of groups, each of which is given by its links, bodies, laws,
    shapes on the surface, and number of contacts of a shape."""
    rows: list[tuple[int, int, int, str]] = []
    for links, bodies, laws, touches, count in groups if on_surface else ():
        for link, body, law, free in zip(links, bodies, laws, touches, strict=True):
            rows += [(-1, body, law, link)] * (count if free else 0)
    for pair in pairs:
        one, two = (groups[g] for g in pair.groups)
        for i, j, law in zip(*pair.shapes, pair.laws, strict=True):
            rows += [(one[1][i], two[1][j], law, f"{one[0][i]}, {two[0][j]}")] * pair.of_each
    bodies1, bodies2, laws, names = zip(*rows, strict=True) if rows else ((), (), (), ())
    return _Touching(np.array(bodies1, int), np.array(bodies2, int), np.array(laws, int), names)


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
