"""The numbers of a world by the attributes and the elements of its file that own them: damping of a joint, gear of an
actuator, friction of a geom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, look_up
from jaxdyn.geometry import Box, Capsule, Cylinder, Ellipsoid, Sphere
from jaxdyn.model import mimic_coordinates
from jaxdyn.sysid.parameters._leaves import chosen_names
from jaxdyn.worlds import World


class Owned(NamedTuple):
    """A number of a world, and all entries that are this number, up to a constant factor."""

    owner: str
    label: str
    entries: tuple[tuple[int, int], ...]
    """Leaves and places in them; the first entry is shown as the number."""
    apart: bool = False
    """Whether each entry is shown as a number instead."""


def paths(world: World) -> dict[str, int]:
    """Return the numbers of all leaves of a world by their paths, such as `"model.gravity"`."""
    found = jax.tree_util.tree_leaves_with_path(world)
    return {jax.tree_util.keystr(path).removeprefix("."): i for i, (path, _) in enumerate(found)}


class Arrays:
    """The arrays of a world by the paths of their leaves."""

    def __init__(self, world: World):
        self.numbers, self.arrays = paths(world), jax.tree.leaves(world)

    def entry(self, path: str, row: int, column: int = 0) -> tuple[int, int]:
        """Return the leaf and the place of a number in a row of its array."""
        number = self.numbers[path]
        shape = np.shape(self.arrays[number])
        return number, row * (shape[1] if len(shape) > 1 else 1) + column

    def values(self, path: str) -> np.ndarray:
        """Return an array. **Raises** `ModelError` while tracing."""
        array = self.arrays[self.numbers[path]]
        if isinstance(array, Tracer):
            raise ModelError(
                f"which numbers of {path} are free depends on their values, which are traced; make the parametrization "
                "of one world outside of jit and vmap, and take Parametrization.about(world) inside"
            )
        return np.asarray(array)


def elements(world: World) -> dict[str, tuple[str, ...]]:
    """Return the names of the elements of each kind that own numbers."""
    contacts, tendons = world.parts.constraints.contacts, world.parts.tendons
    return {
        "joint": world.model.joint_names,
        "actuator": world.actuator_names,
        "tendon": tendons.names,
        "geom": contacts.names,
    }


def numbers_of(world: World, kind: str, attribute: str) -> list[Owned] | None:
    """Return the numbers that elements of a kind have under an attribute; None for attributes that they lack."""
    table = _ATTRIBUTES.get((kind, attribute))
    if table is None and kind == "actuator" and attribute in _fields_of_blocks(world):
        table = _of_blocks(attribute)
    if table is None:
        return None
    found: dict[tuple[str, str], list[tuple[int, int]]] = {}
    arrays = Arrays(world)
    for owner, suffix, entry in table(world, arrays):
        found.setdefault((owner, suffix), []).append(entry)
    of = "tendon " if kind == "tendon" else ""
    return [Owned(owner, f"{attribute}{suffix} of {of}{owner}", tuple(x)) for (owner, suffix), x in found.items()]


def attributes(world: World, kind: str | None = None) -> tuple[str, ...]:
    """Return the names of the attributes of a kind of element; of all for None."""
    blocks = _fields_of_blocks(world) if kind in (None, "actuator") else ()
    return tuple(dict.fromkeys([*(name for k, name in _ATTRIBUTES if kind in (None, k)), *blocks]))


def chosen_numbers(world: World, attribute: str, names: dict[str, Sequence[str] | None], what: str) -> list[Owned]:
    """Return the numbers of an attribute of the elements with these names, by their kinds; of all elements of the first
    kind that has it if no names are given. **Raises** `ModelError`, `UnknownNameError`."""
    given = {kind: x for kind, x in names.items() if x is not None}
    if len(given) > 1:
        raise ModelError(f"{what}: names of {' and '.join(given)} are given; one choice frees what one kind owns")
    kind = next(iter(given), next((kind for kind, name in _ATTRIBUTES if name == attribute), "actuator"))
    numbers = numbers_of(world, kind, attribute)
    if numbers is None:
        raise ModelError(f"{what}: {attribute} belongs to no {kind}; a {kind} has {', '.join(attributes(world, kind))}")
    known = elements(world)[kind]
    if kind in given:
        wanted = {known[i] for i in chosen_names(given[kind], known, kind, what)}
        if lacking := sorted(wanted - {x.owner for x in numbers}):
            raise ModelError(f"{what}: the world has no {attribute} of {kind} {', '.join(lacking)}")
        numbers = [x for x in numbers if x.owner in wanted]
    if not numbers:
        raise ModelError(f"{what}: no {kind} of the world has {attribute}")
    return numbers


type _Entries = Iterable[tuple[str, str, tuple[int, int]]]
"""Owners, what stands behind the attribute's name in labels, and entries."""


def _joint_of_dof(world: World) -> list[tuple[str, str]]:
    """Return for each degree of freedom its joint, and a suffix where the joint has several."""
    # Joints that mimic others have no degrees of freedom.
    widths = np.diff(world.model.topology.v_starts).tolist()
    owners = zip(world.model.joint_names, widths, strict=True)
    return [(name, f"[{k}]" if width > 1 else "") for name, width in owners for k in range(width)]


def _of_dofs(path: str, of_model: str) -> Callable[[World, Arrays], _Entries]:
    """Return the table of an array with a row for each degree of freedom, whose first column is the number; worlds that
    are made of models have it in the model."""

    def table(world: World, arrays: Arrays) -> _Entries:
        where = f"model.{of_model}" if world.parts.of_model else path
        return [(*owner, arrays.entry(where, row)) for row, owner in enumerate(_joint_of_dof(world))]

    return table


def _springs_of_model(world: World, arrays: Arrays, field: str) -> _Entries:
    """Yield the numbers of the springs of a world that is made of a model."""
    joints, (coordinates, dofs) = _joint_of_dof(world), world.model.topology.scalar_coordinates
    for coordinate, dof in zip(coordinates, dofs, strict=True) if world.model.stiffness is not None else ():
        yield joints[dof][0], "", arrays.entry(f"model.{field}", int(dof if field == "stiffness" else coordinate))


def _own(world: World, *, velocity: bool) -> dict[int, int]:
    """Return the numbers that degrees of freedom, or coordinates, of the tree of all joints have in the model."""
    own = mimic_coordinates(world.model.topology, velocity=velocity).own
    return {number: k for k, number in enumerate(own.tolist())}


def _springs(world: World, arrays: Arrays) -> _Entries:
    passive, joints = world.parts.passive, _joint_of_dof(world)
    if world.parts.of_model:
        yield from _springs_of_model(world, arrays, "stiffness")
        dofs = _own(world, velocity=True)
        for _, first in passive.balls:
            # One number for all three axes.
            for k in range(3):
                yield joints[dofs[first]][0], "", arrays.entry("model.stiffness", dofs[first] + k)
        return
    rows = [("stiffness", list(passive.spring_dofs))]
    rows += [("ball_stiffness", [dof for _, dof in passive.balls])]
    rows += [("shift_stiffness", [dof for _, dof in passive.shifts])]
    for name, dofs in rows:
        for row, dof in enumerate(dofs):
            yield joints[dof][0], "", arrays.entry(f"parts.passive.{name}", row)


def _spring_references(world: World, arrays: Arrays) -> _Entries:
    if world.parts.of_model:
        yield from _springs_of_model(world, arrays, "spring_reference")
        return
    joints = _joint_of_dof(world)
    for row, dof in enumerate(world.parts.passive.spring_dofs):
        yield joints[dof][0], "", arrays.entry("parts.passive.reference", row)


def _losses(world: World, arrays: Arrays) -> _Entries:
    joints, losses, of_model = _joint_of_dof(world), world.parts.constraints.losses, world.parts.of_model
    dofs = _own(world, velocity=True)
    for row, dof in enumerate([dofs[x] for x in losses.dofs] if world.parts.as_mujoco else range(world.model.nv)):
        yield *joints[dof], arrays.entry(*(("model.friction", dof) if of_model else (_LOSS, row)))


_LOSS = "parts.constraints.losses.loss"


def _losses_of_tendons(world: World, arrays: Arrays) -> _Entries:
    losses = world.parts.constraints.losses
    for row, tendon in enumerate(losses.tendons, len(losses.dofs)):
        yield world.parts.tendons.names[tendon], "", arrays.entry("parts.constraints.losses.loss", row)


def _inertias_of_tendons(world: World, arrays: Arrays) -> _Entries:
    # Inertia along other tendons has no part in the equations.
    for tendon in world.parts.tendons.heavy:
        yield world.parts.tendons.names[tendon], "", arrays.entry("parts.tendons.armature", tendon)


def _of_limits(name: str, kind: str) -> Callable[[World, Arrays], _Entries]:
    """Return the table of an array with a row for each limit."""
    path = f"parts.constraints.limits.{name}"

    def table(world: World, arrays: Arrays) -> _Entries:
        limits, joints = world.parts.constraints.limits, _joint_of_dof(world)
        coordinates, dofs = (_own(world, velocity=x) for x in (False, True))
        if world.parts.of_model and name == "range":
            for coordinate, dof in limits.joints if kind == "joint" else ():
                for k, bound in enumerate(("position_lower", "position_upper")):
                    yield joints[dofs[dof]][0], f"[{k}]", arrays.entry(f"model.{bound}", coordinates[coordinate])
            return
        owners = [joints[dofs[dof]][0] for _, dof in (*limits.joints, *limits.balls)]
        first = 0 if kind == "joint" else len(owners)
        owners = owners if kind == "joint" else [world.parts.tendons.names[i] for i in limits.tendons]
        for row, owner in enumerate(owners, first):
            for k in range(arrays.values(path).shape[1]):
                yield owner, f"[{k}]", arrays.entry(path, row, k)

    return table


def _of_actuators(name: str) -> Callable[[World, Arrays], _Entries]:
    """Return the table of an array with a row for each actuator: its numbers but for zeros, which have no effect, and
    for bounds that stand for none."""
    path = f"parts.actuators.{name}"

    def table(world: World, arrays: Arrays) -> _Entries:
        values = arrays.values(path)
        for row, owner in enumerate(world.actuator_names):
            columns = np.flatnonzero((values[row] != 0) & (np.abs(values[row]) < _UNBOUNDED))
            if name == "gear" and row not in world.parts.actuators.coupled:
                columns = columns[columns == 0]
            for k in columns.tolist():
                yield owner, f"[{k}]" if len(columns) > 1 else "", arrays.entry(path, row, k)

    return table


def _fields_of_blocks(world: World) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """Return for each name of an array of blocks of actuators the paths of its leaves, and the actuators of each."""
    out: dict[str, list[tuple[str, tuple[int, ...]]]] = {}
    for way in ("control_path", "force_path"):
        for k, blocks in enumerate(getattr(world.parts.actuators, way)):
            leaves, _ = jax.tree_util.tree_flatten_with_path(blocks.block)
            for key, _ in leaves:
                name = jax.tree_util.keystr(key)
                path = f"parts.actuators.{way}[{k}].block{name}"
                out.setdefault(name.removeprefix("."), []).append((path, blocks.numbers))
    return out


def _of_blocks(name: str) -> Callable[[World, Arrays], _Entries]:
    """Return the table of an array of blocks of actuators: its numbers but for zeros and bounds that stand for none."""

    def table(world: World, arrays: Arrays) -> _Entries:
        found: dict[int, list[tuple[int, int]]] = {}
        for path, numbers in _fields_of_blocks(world)[name]:
            values = arrays.values(path)
            for row, number in enumerate(numbers):
                if values[row] != 0 and np.abs(values[row]) < _UNBOUNDED:
                    found.setdefault(number, []).append(arrays.entry(path, row))
        for number, entries in sorted(found.items()):
            for k, entry in enumerate(entries):
                # Several blocks of an actuator may have the name: those on the way of the control come first.
                yield world.actuator_names[number], f"[{k}]" if len(entries) > 1 else "", entry

    return table


def _rotors(world: World, arrays: Arrays) -> _Entries:
    """Yield the armature of the joints that actuators drive."""
    model = world.model
    # Joints of the tree of all joints, in which actuators count degrees of freedom.
    joints = np.repeat(model.joint_names, np.diff(model.topology.spanning.v_starts)).tolist()
    for number, _, dof in world.parts.actuators.axes_of_joints:
        row = range(model.nv)[model.v_index(joints[dof])][0]
        yield world.actuator_names[number], "", arrays.entry("model.armature", row)


# The world's bounds that stand for infinite ones are 1e30.
_UNBOUNDED = 1e29


def _servos(world: World, arrays: Arrays, which: str) -> _Entries:
    """Return the gains of servos: that of a position servo stands in its gain and, negative, in its bias, as that of a
    velocity servo does; a position servo may have one of the velocity besides."""
    actuators, gain, bias = (world.parts.actuators, *(arrays.values(f"parts.actuators.{x}") for x in ("gain", "bias")))
    for row, owner in enumerate(world.actuator_names):
        # Worlds of models have affine gains, whose other terms are zero where the gain is fixed.
        fixed = actuators.gains[row] == "fixed" or (actuators.gains[row] == "affine" and not gain[row, 1:].any())
        if not fixed or actuators.biases[row] != "affine" or gain[row, 0] == 0:
            continue
        position, velocity = (bias[row, k] == -gain[row, 0] for k in (1, 2))
        both = [("gain", 0), ("bias", 1 if which == "kp" else 2)]
        if which == "kv" and position and bias[row, 2] != 0:
            both = [("bias", 2)]
        elif not (position if which == "kp" else velocity and bias[row, 1] == 0):
            continue
        for name, column in both:
            yield owner, "", arrays.entry(f"parts.actuators.{name}", row, column)


def _of_tendons(name: str, columns: int = 1) -> Callable[[World, Arrays], _Entries]:
    def table(world: World, arrays: Arrays) -> _Entries:
        for row, owner in enumerate(world.parts.tendons.names):
            for k in range(columns):
                yield owner, f"[{k}]" if columns > 1 else "", arrays.entry(f"parts.passive.{name}", row, k)

    return table


_ATTRIBUTES: dict[tuple[str, str], Callable[[World, Arrays], _Entries]] = {
    ("joint", "damping"): _of_dofs("parts.passive.damping", "damping"),
    ("joint", "armature"): _of_dofs("model.armature", "armature"),
    ("joint", "stiffness"): _springs,
    ("joint", "springref"): _spring_references,
    ("joint", "frictionloss"): _losses,
    ("joint", "range"): _of_limits("range", "joint"),
    ("joint", "solreflimit"): _of_limits("solref", "joint"),
    ("joint", "solimplimit"): _of_limits("solimp", "joint"),
    ("actuator", "armature"): _rotors,
    ("actuator", "gear"): _of_actuators("gear"),
    ("actuator", "gain"): _of_actuators("gain"),
    ("actuator", "bias"): _of_actuators("bias"),
    ("actuator", "kp"): lambda world, arrays: _servos(world, arrays, "kp"),
    ("actuator", "kv"): lambda world, arrays: _servos(world, arrays, "kv"),
    ("actuator", "dynprm"): _of_actuators("time"),
    ("actuator", "forcerange"): _of_actuators("force_range"),
    ("actuator", "ctrlrange"): _of_actuators("control_range"),
    ("tendon", "damping"): _of_tendons("tendon_damping"),
    ("tendon", "stiffness"): _of_tendons("tendon_stiffness"),
    ("tendon", "springlength"): _of_tendons("tendon_rest", 2),
    ("tendon", "frictionloss"): _losses_of_tendons,
    ("tendon", "armature"): _inertias_of_tendons,
    ("tendon", "range"): _of_limits("range", "tendon"),
}
"""The attributes that name numbers, as MJCF has them; `dynprm` are time constants."""


def entry_labels(world: World) -> dict[tuple[int, int], str]:
    """Return the names of all entries that elements own, apart from those of contacts."""
    # Armature belongs to joints, and to actuators by another name.
    named = [x for x in _ATTRIBUTES if x != ("actuator", "armature")]
    named += [("actuator", x) for x in _fields_of_blocks(world)]
    numbers = [x for kind, attribute in named for x in numbers_of(world, kind, attribute) or ()]
    return {entry: x.label for x in numbers for entry in x.entries}


# Contacts

LAW = {"friction": (0, 1), "torsion": (2,), "rolling": (3, 4), "solref": (0, 1), "solimp": (0, 1, 2, 3, 4)}
"""The numbers of MuJoCo's law of contact: columns of the pairs' arrays; the first three are kinds of `friction`, which
have one number in all their columns."""
COMPLIANCE = ("stiffness", "dissipation", "stiction_velocity", "width")
"""The numbers that all contacts of a file share under a `ContactLaw`; friction is that of the geoms."""
_FRICTIONS = ("friction", "torsion", "rolling")
# How many sizes shapes have.
_SIZES = {Sphere: 1, Capsule: 2, Ellipsoid: 3, Cylinder: 2, Box: 3}
# The least number of directions of a contact that has each kind of friction (`condim`).
_DIRECTIONS = (3, 4, 6)


def contact_numbers(world: World, name: str, geoms: Sequence[str | tuple[str, str]] | None, what: str) -> list[Owned]:
    """Return a number of the law of contact for each geom, or pair of geoms: all entries of the pairs that have it.

    MuJoCo takes a pair's friction from the geom with the higher priority, or else the larger of both, when it loads a
    file (`GeomPair.deciders`), so a geom's friction is that of the pairs that took it. A pair of names means the
    contacts of both, whoever decides. **Raises** `ModelError`, `UnknownNameError`.
    """
    contacts, arrays = world.parts.constraints.contacts, Arrays(world)
    if world.parts.constraints.compliance is None:
        look_up(name, LAW, "number of MuJoCo's law of contact")
    elif look_up(name, ("friction", *COMPLIANCE), "number of a ContactLaw") > 0:
        if geoms is not None:
            raise ModelError(f"{what}: all geoms of a file share the {name} of its ContactLaw; leave out geoms")
        return [Owned("contacts", f"{name} of contacts", (arrays.entry(f"parts.constraints.compliance.{name}", 0),))]
    if isinstance(geoms, str):
        raise ModelError(f"{what}: geoms is the string {geoms!r}, but a sequence of names is needed: [{geoms!r}]")
    kind = _FRICTIONS.index(name) if name in _FRICTIONS else None
    out, taken = [], {}
    for geom in contacts.names if geoms is None else geoms:
        ends = (geom,) if isinstance(geom, str) else tuple(geom)
        title, rows = " and ".join(ends), {look_up(x, contacts.names, "geom that can touch another") for x in ends}
        touching = [
            (group, i, contacts.pairs[group].deciders[i])
            for group, i, pair in _pairs(contacts)
            if rows <= pair and (kind is None or contacts.pairs[group].dims[i] >= _DIRECTIONS[kind])
        ]
        reached = [(g, i) for g, i, by in touching if kind is None or len(ends) == 2 or rows & set(by[kind])]
        if not reached and geoms is not None:
            raise ModelError(f"{what}: {_why_none(contacts, name, title, [by for *_, by in touching])}")
        for pair in reached:
            if title != taken.setdefault(pair, title):
                raise ModelError(
                    f"{what}: the contacts of {taken[pair]} with {title} have the {name} of both; choose one of them "
                    "with geoms=[...]"
                )
        path = "parts.constraints.contacts.pairs[{}]." + ("friction" if kind is not None else name)
        for k, columns in enumerate([LAW[name]] if kind is not None else [(c,) for c in LAW[name]]):
            entries = tuple(arrays.entry(path.format(g), i, c) for g, i in reached for c in columns)
            suffix = "" if kind is not None else f"[{k}]"
            out += [Owned(title, f"{name}{suffix} of {title}", entries)] if entries else []
    return out


def geom_sizes(world: World, geoms: Sequence[str] | None, what: str) -> list[Owned]:
    """Return the sizes of geoms, of all that have some for None. **Raises** `ModelError`, `UnknownNameError`."""
    contacts, arrays = world.parts.constraints.contacts, Arrays(world)
    types = {}
    for pairs in contacts.pairs:
        for kind, rows in zip(pairs.types, (pairs.first, pairs.second), strict=True):
            types |= dict.fromkeys(rows, kind)
    sized = {row: _SIZES[kind] for row, kind in types.items() if kind in _SIZES}
    rows = sorted(sized) if geoms is None else chosen_names(geoms, contacts.names, "geom", what)
    if bad := [contacts.names[row] for row in rows if row not in sized]:
        raise ModelError(f"{what}: {', '.join(bad)} is a plane, a mesh or a height field, which has no sizes here")
    path = "parts.constraints.contacts.sizes"
    return [
        Owned(contacts.names[row], f"size[{k}] of {contacts.names[row]}", (arrays.entry(path, row, k),))
        for row in rows
        for k in range(sized[row])
    ]


def _pairs(contacts: Any) -> Iterator[tuple[int, int, set[int]]]:
    """Yield groups of pairs, the rows of pairs in them, and both geoms."""
    for group, pairs in enumerate(contacts.pairs):
        for i, ends in enumerate(zip(pairs.first, pairs.second, strict=True)):
            yield group, i, set(ends)


def _why_none(contacts: Any, name: str, title: str, deciders: list) -> str:
    if not deciders:
        return f"no contact of {title} has {name}"
    others = sorted({contacts.names[x] for by in deciders for x in by[_FRICTIONS.index(name)]})
    if not others:
        return f"the contacts of {title} have a {name} of their own; give pairs of geoms: geoms=[({title!r}, ...)]"
    return (
        f"all contacts of {title} have the {name} of {', '.join(others)}, whose friction is larger or which have a "
        f"higher priority, so that of {title} has no effect; choose those, or pairs of geoms: "
        f"geoms=[({title!r}, {others[0]!r})]"
    )
