"""Contacts of a robot: shapes on its links, the surface of the world, and the laws between them."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn._types import Array, Float
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.contact._law import ContactLaw, LawRows
from jaxdyn.contact._options import ContactOptions
from jaxdyn.geometry import AbstractShape, AbstractSurface, Plane, Witness, surface_witnesses
from jaxdyn.model import Model, Placement, pose_in_body
from jaxdyn.spatial import Pose
from jaxdyn.tree import packed_rows, rows_of, take_rows


class ContactShape(NamedTuple):
    """A shape that is fixed on a link and touches the world."""

    link: str
    """A body, a merged link, or a frame."""
    shape: AbstractShape
    placement: Placement = None
    """The pose of the shape in the link: an `SE3`, position (m) and quaternion `w x y z`, a position, or None for the
    identity."""
    law: ContactLaw | None = None
    """The law of its contacts; None for the one that `Contacts` has for all others."""


class _Group(eqx.Module):
    """The shapes of one class and number of sizes."""

    kind: type[AbstractShape] = eqx.field(static=True)
    links: tuple[str, ...] = eqx.field(static=True)
    bodies: tuple[int, ...] = eqx.field(static=True)
    laws: tuple[int, ...] = eqx.field(static=True)
    sizes: Float[Array, "*batch n k"]
    placement: Float[Array, "*batch n 7"]
    """The poses in the frames of the bodies."""

    def of_each(self) -> int:
        """Return the number of contacts of each shape."""
        return self.kind.witness_count(self.sizes.shape[-1])


class Contacts(eqx.Module):
    """The contacts of a robot with the world, for `step` and `rollout`.

    Sizes and placements of shapes, the surface, and the numbers of the laws are arrays: gradients reach them, new
    values do not compile again, and they may have leading batch axes.
    """

    groups: tuple[_Group, ...]
    surface: AbstractSurface
    laws: ContactLaw
    """The laws, `[*batch, n]` each."""
    limits: ContactLaw | None
    """The law of the joints' stops; None for joints without."""
    names: tuple[str, ...] = eqx.field(static=True)
    """The link of each contact, in the order of all results."""
    options: ContactOptions = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        shapes: Sequence[ContactShape],
        surface: AbstractSurface | None = None,
        law: ContactLaw | None = None,
        limits: ContactLaw | None = None,
        options: ContactOptions | None = None,
    ):
        """The contacts of these shapes on links of the model with a surface, by default the plane `z = 0`, under `law`
        where a shape has none of its own. `options` say how a step is solved.

        With `limits`, joints have stops at their limits (`Model.position_lower`, `position_upper`), for each of their
        coordinates that is a length or an angle: normal forces of this law, in N m/rad and s/rad where the coordinate
        is an angle. Without, they pass their limits.

        **Raises** `ModelError` without shapes, for a shape on a link that is fixed in the world, and for a placement
        that is not a pose; `UnknownNameError` for a link; `ShapeError`.
        """
        if not shapes:
            raise ModelError("Contacts needs at least one ContactShape; leave contacts=None for a step without contact")
        laws: list[ContactLaw] = []
        members: dict[tuple[type, int], list[tuple[str, int, int, Any, Any]]] = {}
        for number, each in enumerate(shapes):
            if not isinstance(each, ContactShape):
                raise ModelError(
                    f"shapes[{number}] is {type(each).__name__}; jaxdyn.ContactShape(link, shape) is needed"
                )
            what = f"placement of the {type(each.shape).__name__} on {each.link!r}"
            body, pose = pose_in_body(model, each.link, each.placement, what)
            if body < 0:
                raise ModelError(f"link {each.link!r} is fixed in the world, so it cannot touch the world's surface")
            own = each.law if each.law is not None else law if law is not None else ContactLaw()
            place = next((i for i, x in enumerate(laws) if x is own), len(laws))
            if place == len(laws):
                laws.append(own)
                law = own if each.law is None else law
            sizes = each.shape.sizes
            members.setdefault((type(each.shape), sizes.shape[-1]), []).append((each.link, body, place, sizes, pose))
        groups, names = [], []
        for (kind, size), rows in members.items():
            links, bodies, places, sizes, poses = zip(*rows, strict=True)
            groups.append(_Group(kind, links, bodies, places, _stacked(model, sizes), _stacked(model, poses)))
            names += [link for link in links for _ in range(kind.witness_count(size))]
        self.groups, self.names = tuple(groups), tuple(names)
        self.surface = Plane() if surface is None else surface
        self.limits = limits
        self.options = ContactOptions() if options is None else options
        self.laws = jax.tree.map(lambda *x: jnp.stack(jnp.broadcast_arrays(*x), axis=-1), *laws)

    @property
    def bodies(self) -> np.ndarray:
        """`[nc]`: the body of each contact."""
        return self._of_contacts("bodies")

    def _of_contacts(self, name: str) -> np.ndarray:
        """Return `[nc]` from what a group has for each of its shapes."""
        return np.concatenate([np.repeat(getattr(g, name), g.of_each()) for g in self.groups])

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
            for name, hint in _axes_of_fields(type(self.surface)).items()
            for own in jax.tree.leaves(getattr(self.surface, name))
        ]
        limits = [0] * len(jax.tree.leaves(self.limits))
        return [2, 2] * len(self.groups) + surface + [1] * len(jax.tree.leaves(self.laws)) + limits


class ContactRows:
    """Contacts as a step sees them: rows with the contact first and the batch last."""

    def __init__(self, contacts: Contacts, robot: Robot):
        self.contacts, self.robot = contacts, robot
        self.dofs = robot.topology.body_dofs[contacts.bodies]
        """The degree of freedom that carries the body of each contact."""

    @functools.cached_property
    def law(self) -> LawRows:
        """The numbers of the law of each contact."""
        laws, which = self.contacts.laws, self.contacts._of_contacts("laws")
        return LawRows(*(take_rows(rows_of(getattr(laws, name), self.robot.rank), which) for name in LawRows._fields))

    @functools.cached_property
    def stop_law(self) -> LawRows:
        """The numbers of the law of the joints' stops, `[1, *batch]`."""
        limits, rank = self.contacts.limits, self.robot.rank
        return LawRows(*(rows_of(getattr(limits, name)[..., None], rank) for name in LawRows._fields))

    def witnesses(self, world: Pose) -> Witness:
        """Return the contacts, from the poses in the world of the frames behind the degrees of freedom."""
        found, rank = [], self.robot.rank
        for group in self.contacts.groups:
            body = take_rows(world, self.robot.topology.body_dofs[np.array(group.bodies)])
            placement = jax.tree.map(lambda x: rows_of(x, rank), Pose.from_vector(group.placement))
            pose = jax.tree.map(self.robot.broadcast, body.compose(placement))
            found.append(surface_witnesses(group.kind, packed_rows(group.sizes, rank), pose, self.contacts.surface))
        found = [jax.tree.map(lambda x: self.robot.broadcast(jnp.asarray(x)), w) for w in found]
        return jax.tree.map(lambda *x: jnp.concatenate(x), *found)


@functools.cache
def _axes_of_fields(surface: type[AbstractSurface]) -> dict[str, int | None]:
    """Return for each field with arrays the number of axes that are not batch axes; None for arrays without batch."""
    hints = typing.get_type_hints(surface)
    fields = [f.name for f in dataclasses.fields(surface) if not f.metadata.get("static")]
    return {n: len(hints[n].dim_str.split()) - 1 if hasattr(hints[n], "dim_str") else None for n in fields}


def _stacked(model: Model, arrays: Sequence[Any]):
    return jnp.stack(jnp.broadcast_arrays(*(jnp.asarray(x, model.dtype) for x in arrays)), axis=-2)
