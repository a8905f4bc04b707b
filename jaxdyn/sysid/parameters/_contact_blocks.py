"""Free numbers of contacts: their laws, the shapes that touch, and the plane that they touch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, look_up, require_positive
from jaxdyn.geometry import Plane
from jaxdyn.sysid.parameters import _leaves as leaves
from jaxdyn.sysid.parameters._leaf_blocks import Additive, placement_block, scaled_numbers
from jaxdyn.sysid.parameters._parametrization import AbstractBlock, AbstractChoice, JoinedBlocks
from jaxdyn.sysid.parameters._touching_arrays import law_numbers, links_of_law, shape_labels, shape_sizes
from jaxdyn.sysid.parameters._world_arrays import contact_numbers, geom_sizes
from jaxdyn.worlds import World

COMPLIANCES = ("stiffness", "damping")
"""The numbers of MuJoCo's law that `solref` stands for, in either of its forms."""
LAW_NUMBERS = ("stiffness", "dissipation", "friction", "stiction_velocity", "width")


@dataclasses.dataclass(frozen=True)
class ContactNumbers(AbstractChoice):
    """Numbers of the laws of contact are free: the reference's are multiplied by `e^x`, as in `Positive`. Contacts that
    share a `ContactLaw` share its numbers.

    A world with MuJoCo's law has `"friction"` (of sliding), `"torsion"`, `"rolling"`, `"solref"` and `"solimp"`, one
    number for each geom and column. MuJoCo gives a pair the friction of the geom with the higher priority, or else the
    larger one, when it loads a file; the friction of a geom here is that of the pairs that took it from there, or from
    two geoms with the same, and changes with no regard to the other geom's. To write what was found into a file, name
    the pair there. `"solref"` and `"solimp"` of a geom are those of all its contacts. `"stiffness"` and `"damping"` are
    the numbers for which `solref` stands: a stiffness with a damping that stays, and the other way around, both in the
    form that the file has (time constant and damping ratio, or negative numbers).

    The world of an MJCF file with a `ContactLaw` has the numbers of that law, which all contacts share, and the
    friction of geoms.

    What roll-outs do not tell: forces are known relative to the mass only, so of a free body the stiffness and all
    inertias together have no scale; friction needs contacts that slide, the stiction velocity such that slide slowly,
    and the dissipation impacts.
    """

    names: Sequence[str] | None = None
    """Names of numbers of the law, those of the reference positive. None: all of a `ContactLaw` but its `width`, the
    friction with MuJoCo's law, and of geoms."""
    links: Sequence[str] | None = None
    """Links whose contacts have these laws; None: all laws."""
    geoms: Sequence[str | tuple[str, str]] | None = None
    """Geoms of files and with MuJoCo's law, or pairs of them, which mean the contacts between both; None: all."""

    def bind(self, tree: Any) -> AbstractBlock:
        what = type(self).__name__
        as_mujoco = _moves_as_mujoco(self, tree, what)
        of_geoms = as_mujoco and (tree.parts.constraints.compliance is None or self.geoms is not None)
        names = self.names or (("friction",) if of_geoms else LAW_NUMBERS[:-1])
        if isinstance(names, str) or len(set(names)) < len(names):
            raise ModelError(f"{what}: names is {names!r}; a sequence of different names is needed")
        if as_mujoco:
            compliant = [x for x in names if x in COMPLIANCES and tree.parts.constraints.compliance is None]
            others = [x for x in names if x not in compliant]
            numbers = [x for name in others for x in contact_numbers(tree, name, self.geoms, what)]
            blocks = [_compliances(tree, compliant, self.geoms, what)] if compliant else []
            blocks += [scaled_numbers(what, tree, numbers)] if numbers else []
            if not any(x.size for x in blocks):
                raise ModelError(f"{what}: no geoms of the world have contacts with {', '.join(names)}")
            return blocks[0] if len(blocks) == 1 else JoinedBlocks.of(blocks)
        touching = tree.parts.touching
        for name in names:
            look_up(name, LAW_NUMBERS, "number of a contact law")
        laws = list(range(touching.laws.stiffness.shape[-1]))
        if self.links is not None:
            links = _chosen_links(tree, self.links, what)
            laws = [k for k in laws if set(links_of_law(touching, k)) & links]
            for k in laws:
                if others := set(links_of_law(touching, k)) - links:
                    raise ModelError(
                        f"{what}: contacts on {', '.join(sorted(others))} have the same law as those on "
                        f"{', '.join(sorted(links))}; name them too, or give them a ContactLaw of their own"
                    )
        return scaled_numbers(what, tree, law_numbers(tree, names, laws))


class _Compliances(AbstractBlock):
    """Entries of `solref`, whose logarithms are linear in those of stiffness and damping."""

    places: tuple[tuple[int, int], ...] = eqx.field(static=True)
    exponents: tuple[tuple[float, ...], ...] = eqx.field(static=True)
    """`[places, size]`: entries are those of the reference times `exp(exponents x)`."""
    named: tuple[str | None, ...] = eqx.field(static=True)
    """The names of the entries; None for those that repeat another."""

    def labels(self) -> dict[tuple[int, int], str | None]:
        return dict(zip(self.places, self.named, strict=True))

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        factors = jnp.exp(jnp.asarray(self.exponents, x.dtype) @ x)
        for (leaf, place), factor in zip(self.places, factors, strict=True):
            flat = np.array([place])
            tree = leaves.with_entries(tree, leaf, flat, leaves.entries(reference, leaf, flat) * factor)
        return tree

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        pairs = [[leaves.entries(x, leaf, np.array([i]))[0] for x in (tree, reference)] for leaf, i in self.places]
        ratio = jnp.stack([jnp.log(now / before) for now, before in pairs])
        return jnp.asarray(np.linalg.pinv(np.array(self.exponents)), ratio.dtype) @ ratio


def _compliances(
    world: World, names: Sequence[str], geoms: Sequence[str | tuple[str, str]] | None, what: str
) -> _Compliances:
    """Return the block of stiffnesses and dampings of contacts under MuJoCo's law.

    A contact with the time constant `t` and the damping ratio `r` has a stiffness in proportion to `1 / (t r)^2` and a
    damping in proportion to `1 / t` (MuJoCo's documentation, Modeling, "Solver parameters"); negative numbers are both
    of them.
    """
    entries = contact_numbers(world, "solref", geoms, what)
    owners = list(dict.fromkeys(x.owner for x in entries))
    labels = [(name, owner) for name in names for owner in owners]
    rows: dict[tuple[int, int], list[float]] = {}
    for x in entries:
        column = int(x.label[len("solref[")])
        for leaf, place in x.entries:
            value = leaves.known_entries(world, leaf, np.array([place]))
            if value is None:
                raise ModelError(f"{what}: the form of solref depends on its sign, which is traced; bind it outside")
            form = _DIRECT if value[0] < 0 else _BY_TIME
            rows[leaf, place] = [form[column].get(name, 0.0) * (owner == x.owner) for name, owner in labels]
    titles = tuple(f"log {name} of {owner}" for name, owner in labels)
    named = {place: x.label if k == 0 else None for x in entries for k, place in enumerate(x.entries)}
    exponents = tuple(map(tuple, rows.values()))
    return _Compliances(titles, frozenset(rows), tuple(rows), exponents, tuple(named[x] for x in rows))


# The exponents of stiffness and damping in both numbers of solref.
_BY_TIME = {"damping": -1.0}, {"stiffness": -0.5, "damping": 1.0}
_DIRECT = {"stiffness": 1.0}, {"damping": 1.0}


@dataclasses.dataclass(frozen=True)
class ContactSizes(AbstractChoice):
    """The sizes of contact shapes are free: the reference's are multiplied by `e^x`, one number for each of
    `shape.sizes`, and one for all of a shape of `Points`. The pull toward the reference is as in `Positive`."""

    links: Sequence[str] | None = None
    """Links whose shapes these are; None: all."""
    shared: bool = False
    """One number for all of them."""
    geoms: Sequence[str] | None = None
    """With MuJoCo's law geoms, one number for each of their sizes; None: all that have some."""

    def bind(self, tree: Any) -> AbstractBlock:
        what = type(self).__name__
        if _moves_as_mujoco(self, tree, what):
            return scaled_numbers(what, tree, geom_sizes(tree, self.geoms, what), self.shared)
        links = _chosen_links(tree, self.links, what)
        return scaled_numbers(what, tree, shape_sizes(tree, links.__contains__), self.shared)


@dataclasses.dataclass(frozen=True)
class ContactPlacement(AbstractChoice):
    """The placements of contact shapes on their links are free, as those of joints in `Placement`, in the axes of the
    body that carries the link."""

    links: Sequence[str] | None = None
    """Links whose shapes these are; None: all."""
    position: bool = True
    rotation: bool = False
    length: float = 0.01
    """Expected error of positions, m; the unit of their numbers."""
    angle: float = 0.1
    """Expected error of rotations, rad; the unit of their numbers."""
    geoms: Sequence[str] | None = None
    """With MuJoCo's law geoms; None: all that may touch."""

    def bind(self, tree: Any) -> AbstractBlock:
        what = type(self).__name__
        if _moves_as_mujoco(self, tree, what):
            names = tree.parts.constraints.contacts.names
            leaf = leaves.number_of(tree, lambda world: world.parts.constraints.contacts.geoms.placement)
            rows = leaves.chosen_names(self.geoms, names, "geom", what)
            return placement_block(self, leaf, {row: names[row] for row in rows})
        links, blocks = _chosen_links(tree, self.links, what), []
        for number, labels in enumerate(shape_labels(tree.parts.touching)):
            group = tree.parts.touching.groups[number]
            if rows := {row: labels[row] for row, link in enumerate(group.links) if link in links}:
                where = lambda world, number=number: world.parts.touching.groups[number].placement  # noqa: E731
                blocks.append(placement_block(self, leaves.number_of(tree, where), rows))
        return JoinedBlocks.of(blocks)


@dataclasses.dataclass(frozen=True)
class ContactPlane(AbstractChoice):
    """The plane that contacts touch is free: its offset from the world's origin along its normal, and its tilt. The
    pull toward the reference is half of the sum of the squares of the shift over `length` and of the tilts over
    `angle`."""

    height: bool = True
    tilt: bool = True
    length: float = 0.01
    """Expected error of the offset, m; the unit of its number."""
    angle: float = 0.02
    """Expected error of the normal, rad; the unit of the two numbers of the tilt, which are tangents of angles."""

    def bind(self, tree: Any) -> AbstractBlock:
        what = type(self).__name__
        if _moves_as_mujoco(self, tree, what):
            raise ModelError(f"{what}: with MuJoCo's law surfaces are geoms; take ContactPlacement(geoms=[...])")
        surface = tree.parts.touching.surface
        if not isinstance(surface, Plane):
            raise ModelError(
                f"{what}: the surface of the contacts is {type(surface).__name__}, no Plane; take Additive or Positive "
                "with a function that picks an array, such as lambda world: world.parts.touching.surface.heights"
            )
        if not (self.height or self.tilt):
            raise ModelError(f"{what}: neither height nor tilt is free; choose one of them")
        require_positive(self.length, f"{what}: length (m)")
        require_positive(self.angle, f"{what}: angle (rad)")
        blocks: list[AbstractBlock] = []
        if self.height:
            blocks.append(Additive(lambda world: world.parts.touching.surface.offset, self.length).bind(tree))
        if self.tilt:
            leaf = leaves.number_of(tree, lambda world: world.parts.touching.surface.normal)
            claims = frozenset((leaf, k) for k in range(3))
            along = self.angle * _tangents(jnp.asarray(surface.normal))
            blocks.append(_Tilt(("tilt of the plane: 0", "tilt of the plane: 1"), claims, leaf, along))
        return JoinedBlocks.of(blocks)


class _Tilt(AbstractBlock):
    leaf: int = eqx.field(static=True)
    along: jax.Array
    """`[2, 3]`: the changes of the normal for each number, at right angles to that of the first reference."""

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        flat = np.arange(3)
        return leaves.with_entries(tree, self.leaf, flat, leaves.entries(reference, self.leaf, flat) + x @ self.along)

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        before, now = (leaves.entries(t, self.leaf, np.arange(3)) for t in (reference, tree))
        return self.along @ (now - before) / jnp.sum(self.along**2, axis=1)


def _tangents(normal: jax.Array) -> jax.Array:
    """Return two vectors `[2, 3]` at right angles to a normal and to each other, as long as the normal."""
    length = jnp.linalg.norm(normal)
    unit = normal / length
    first = jnp.eye(3, dtype=normal.dtype)[jnp.argmin(jnp.abs(unit))]
    first = first - (first @ unit) * unit
    first = first / jnp.linalg.norm(first)
    return length * jnp.stack([first, jnp.cross(unit, first)])


def _moves_as_mujoco(choice: Any, tree: Any, what: str) -> bool:
    """Return whether the contacts are those of MuJoCo's law. **Raises** `ModelError` for a robot without contacts, for
    contacts with batch axes, and for links of a world of geoms and geoms of one of links."""
    if not isinstance(tree, World) or not tree.contact_names:
        raise ModelError(f"{what}: the reference has no contacts; give the parametrization World(model, contacts)")
    as_mujoco, touching = tree.parts.as_mujoco, tree.parts.touching
    wrong, right = ("links", "geoms") if as_mujoco else ("geoms", "links")
    if getattr(choice, wrong, None) is not None:
        raise ModelError(f"{what}: the contacts of this world belong to {right}; choose them with {right}=[...]")
    if touching is not None:
        arrays = zip(jax.tree.leaves(touching), touching.axes(), strict=True)
        if any(np.ndim(x) > axes for x, axes in arrays):
            raise ModelError("the contacts have batch axes; a fit takes those of one robot")
    return as_mujoco


def _chosen_links(tree: World, links: Sequence[str] | None, what: str) -> set[str]:
    """Return the names of links with shapes, all for None. **Raises** `ModelError`, `UnknownNameError`."""
    touching: Any = tree.parts.touching
    known = list(dict.fromkeys(link for group in touching.groups for link in group.links))
    return {known[i] for i in leaves.chosen_names(links, known, "link", what)}
