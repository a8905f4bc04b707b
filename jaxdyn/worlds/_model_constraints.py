"""The constraints of a world that is made of a model, under MuJoCo's law: contacts, limits, and dry friction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError
from jaxdyn._types import float_leaf
from jaxdyn.contact import ContactShape, Member, MujocoLaw, chosen_pairs
from jaxdyn.geometry import (
    AbstractSurface,
    Box,
    Capsule,
    Cylinder,
    Ellipsoid,
    Plane,
    Points,
    ShapeKind,
    Sphere,
    is_built,
)
from jaxdyn.io.mjcf import SMALLEST_FRICTION
from jaxdyn.model import Model, pose_in_body
from jaxdyn.spatial import IDENTITY_POSE, compose_poses, pose_array
from jaxdyn.worlds._constraints import Constraints
from jaxdyn.worlds._contact_rows import Contacts, Pairs
from jaxdyn.worlds._equalities import Equalities
from jaxdyn.worlds._inertia_constants import InverseWeights
from jaxdyn.worlds._limits import FrictionLosses, Limits
from jaxdyn.worlds._parts import Places, stacked

_ORDER: tuple[ShapeKind, ...] = (Plane, Sphere, Capsule, Ellipsoid, Cylinder, Box)
"""The classes of shapes that have contacts, in the order in which a pair has them."""


class Touching(NamedTuple):
    """The arguments of `World` about contacts."""

    shapes: Sequence[ContactShape]
    surface: Any
    pairs: Any
    apart: Any


class _Geom(NamedTuple):
    """A shape as MuJoCo has it; a plane, the surface, is fixed in the world."""

    kind: ShapeKind
    link: str
    body: int
    pose: Any
    sizes: Any


def constraints_of(
    model: Model, touching: Touching, law: MujocoLaw, limits: MujocoLaw | None, weights: InverseWeights
) -> Constraints:
    """Return the constraints of a model. **Raises** as `World`."""
    own = MujocoLaw()
    dofs = _with_friction(model)
    losses = FrictionLosses.without(
        dofs=tuple(dofs),
        solref=stacked([own.solref] * len(dofs), (2,)),
        solimp=stacked([own.solimp] * len(dofs), (5,)),
        weight=weights.dofs[..., np.array(dofs, int)],
    )
    stops = Limits.without() if limits is None else _limits(model, limits, weights)
    return Constraints(Equalities.without(), losses, stops, _contacts(model, touching, law, weights), safe=True)


def _with_friction(model: Model) -> list[int]:
    """Return the degrees of freedom with dry friction; where this is traced, all that may have some."""
    ours = [k for k, kind in enumerate(model.topology.row_joints["v"]) if model.topology.joint_types[kind] != "free"]
    if isinstance(model.friction, Tracer):
        return ours
    rubbing = np.asarray(model.friction).reshape(-1, model.nv).any(axis=0)
    return np.flatnonzero(rubbing).tolist()


def _limits(model: Model, law: MujocoLaw, weights: InverseWeights) -> Limits:
    """Return the limits of the coordinates that have some; where these are traced, of all that are numbers."""
    coordinates, dofs = model.topology.scalar_coordinates
    bounds = model.position_lower, model.position_upper
    if not any(isinstance(x, Tracer) for x in bounds):
        limited = [np.isfinite(x).reshape(-1, model.nq).any(axis=0)[coordinates] for x in bounds]
        coordinates, dofs = (x[limited[0] | limited[1]] for x in (coordinates, dofs))
    count = len(dofs)
    return Limits.without(
        joints=tuple(zip(coordinates.tolist(), dofs.tolist(), strict=True)),
        margin=stacked([law.margin] * count),
        solref=stacked([law.solref] * count, (2,)),
        solimp=stacked([law.solimp] * count, (5,)),
        weight=weights.dofs[..., dofs],
    )


def _contacts(model: Model, touching: Touching, law: MujocoLaw, weights: InverseWeights) -> Contacts:
    """Return the contacts of shapes with the surface, and of pairs of shapes."""
    geoms: list[_Geom] = []
    of_shape: list[list[int]] = []
    members = []
    for k, shape in enumerate(touching.shapes):
        found = _geoms(model, shape)
        of_shape.append(list(range(len(geoms), len(geoms) + len(found))))
        geoms += found
        members.append(Member(0, k, found[0].body, shape))
    chosen, apart = chosen_pairs(model, members, touching.pairs, touching.apart)
    pairs = [(of_shape[a.index], of_shape[b.index], own) for a, b, own in chosen]
    standing = [m for m in members if m.body >= 0 and m.shape.on_surface]
    if touching.surface is not None and standing:
        geoms.append(_plane(touching.surface, model.dtype))
        pairs += [([len(geoms) - 1], of_shape[m.index], m.shape.law) for m in standing]
        apart = apart | {(0, m.index) for m in standing}
    used = {m.index for pair in chosen for m in pair[:2]} | {index for _, index in apart}
    if idle := [m for m in members if m.index not in used]:
        kind, link = type(idle[0].shape.shape).__name__, idle[0].shape.link
        raise ModelError(f"the {kind} on {link!r} touches nothing: there is no surface for it, and no pair has it")
    by_types: dict[tuple[ShapeKind, ShapeKind], list[tuple[int, int, MujocoLaw]]] = {}
    for ones, twos, own in pairs:
        for one, two in ((i, j) for i in ones for j in twos):
            first, second = sorted((one, two), key=lambda g: _ORDER.index(geoms[g].kind))
            types = geoms[first].kind, geoms[second].kind
            if not is_built(*types):
                raise ModelError(f"contacts of a {types[0].__name__} with a {types[1].__name__} are not built")
            by_types.setdefault(types, []).append((first, second, _common(own, law)))
    bodies = [geom.body for geom in geoms]
    dofs = tuple(int(model.topology.body_dofs[body]) if body >= 0 else -1 for body in bodies)
    return Contacts(
        numbers=tuple(range(len(geoms))),
        names=_names(geoms),
        bodies=tuple(body + 1 for body in bodies),
        geoms=Places(dofs, stacked([geom.pose for geom in geoms], (7,))),
        sizes=stacked([geom.sizes for geom in geoms], (3,)),
        pairs=tuple(_pairs(types, own, geoms, weights) for types, own in by_types.items()),
        elliptic=law.cone == "elliptic",
        impratio=float_leaf(law.impratio),
    ).listed_if_many(len(np.unique(model.topology.reference_dof)))


def _names(geoms: Sequence[_Geom]) -> tuple[str, ...]:
    """Return names of shapes: those of their links, numbered where a link has several, and `ground` for a plane."""
    links = [g.link for g in geoms]
    return tuple(x if links.count(x) == 1 else f"{x}[{links[:i].count(x)}]" for i, x in enumerate(links))


def _common(own: Any, law: MujocoLaw) -> MujocoLaw:
    """Return the law of a pair, which must have the cone of all."""
    if own is None:
        return law
    if not isinstance(own, MujocoLaw):
        raise ModelError(f"a contact has a {type(own).__name__} in a world with MuJoCo's law; give it a MujocoLaw")
    same = own.impratio is law.impratio or isinstance(own.impratio, Tracer) or isinstance(law.impratio, Tracer)
    if own.cone != law.cone or not (same or np.array_equal(own.impratio, law.impratio)):
        raise ModelError(
            "all contacts of a world have one `cone` and one `impratio`: give each MujocoLaw those of `law`"
        )
    return own


def _geoms(model: Model, shape: ContactShape) -> list[_Geom]:
    """Return a shape as MuJoCo has it, points as one sphere each."""
    kind = type(shape.shape)
    if kind is not Points and kind not in _ORDER:
        raise ModelError(f"the {kind.__name__} on {shape.link!r} has no contacts with MuJoCo's law; use a ContactLaw")
    body, pose = pose_in_body(model, shape.link, shape.placement, f"placement of the {kind.__name__} on {shape.link!r}")
    sizes: Any = shape.shape.sizes
    if kind is Points:
        placed = [sizes[..., k : k + 3] for k in range(0, sizes.shape[-1], 3)]
        poses = [compose_poses(pose, pose_array(x, jnp.asarray(IDENTITY_POSE[3:], pose.dtype))) for x in placed]
        return [_Geom(Sphere, shape.link, body, p, np.zeros(3)) for p in poses]
    lib: Any = jnp if isinstance(sizes, Tracer) else np
    padding = lib.zeros((*sizes.shape[:-1], 3 - sizes.shape[-1]), sizes.dtype)
    return [_Geom(kind, shape.link, body, pose, lib.concatenate([lib.asarray(sizes), padding], axis=-1))]


def _plane(surface: AbstractSurface | str, dtype: Any) -> _Geom:
    """Return the surface as MuJoCo has it, a plane with its normal along z."""
    plane = Plane() if isinstance(surface, str) and surface == "ground" else surface
    if not isinstance(plane, Plane):
        what = repr(plane) if isinstance(plane, str) else type(plane).__name__
        raise ModelError(f"surface is {what}; with MuJoCo's law a jaxdyn.Plane, 'ground' or None is needed")
    n = jnp.asarray(plane.normal, dtype)
    n = n / jnp.linalg.norm(n, axis=-1, keepdims=True)
    x, y, z = (n[..., k] for k in range(3))
    # The shortest turn from z to the normal; half a turn about x for the opposite direction, where it is not unique.
    up = z > -1
    turn = jnp.stack([jnp.where(up, 1 + z, 0.0), jnp.where(up, -y, 1.0), jnp.where(up, x, 0.0), jnp.zeros_like(z)], -1)
    turn = turn / jnp.linalg.norm(turn, axis=-1, keepdims=True)
    position = n * jnp.asarray(plane.offset, dtype)[..., None]
    return _Geom(Plane, "ground", -1, pose_array(position, turn), np.zeros(3))


def _pairs(
    types: tuple[ShapeKind, ShapeKind],
    members: Sequence[tuple[int, int, MujocoLaw]],
    geoms: Sequence[_Geom],
    weights: InverseWeights,
) -> Pairs:
    """Return pairs of shapes of two types."""
    laws = [law for *_, law in members]
    first, second = tuple(one for one, _, _ in members), tuple(two for _, two, _ in members)
    friction = jnp.maximum(stacked([law.friction for law in laws], (3,)), SMALLEST_FRICTION)
    bodies = np.array([[geoms[g].body + 1 for g in side] for side in (first, second)])
    return Pairs.without(
        types=types,
        first=first,
        second=second,
        dims=tuple(law.condim for law in laws),
        # Each pair has its own friction.
        deciders=(((), (), ()),) * len(laws),
        structures=(None, None),
        points="mujoco",
        margin=stacked([law.margin for law in laws]),
        gap=float_leaf(np.zeros(len(laws))),
        solref=stacked([law.solref for law in laws], (2,)),
        solreffriction=stacked([law.solreffriction for law in laws], (2,)),
        solimp=stacked([law.solimp for law in laws], (5,)),
        friction=jnp.repeat(friction, np.array([2, 1, 2]), axis=-1),
        weight=jax.tree.reduce(jnp.add, [weights.shifts[..., side] for side in bodies]),
    )
