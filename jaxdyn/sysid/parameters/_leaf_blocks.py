"""Free entries of any arrays of a robot: positive ones by their logarithm, others as they are, lengths, placements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, UnknownNameError, look_up, require_positive
from jaxdyn.model import LEAVES, Model
from jaxdyn.spatial import Quaternion, Vec3
from jaxdyn.sysid.parameters import _leaves as leaves
from jaxdyn.sysid.parameters import _world_arrays as world_arrays
from jaxdyn.sysid.parameters._leaves import Place, chosen_places, leaf_name, model_of, place_label
from jaxdyn.sysid.parameters._parametrization import AbstractBlock, AbstractChoice, JoinedBlocks, ScaledEntries
from jaxdyn.sysid.parameters._touching_arrays import entry_name
from jaxdyn.sysid.parameters._world_arrays import Owned
from jaxdyn.worlds import World

type Where = str | Callable[[Any], Any]
"""The name of a field of the model, or of an attribute that joints, actuators or tendons of a world have in its file;
or a function that picks one array of the robot, as in `equinox.tree_at`."""

# The fields of its model that a world's motion depends on, besides what has an attribute in its file.
_OF_WORLDS = ("gravity", "joint_placement", "joint_axis", "inertial_parameters")


@dataclasses.dataclass(frozen=True)
class Positive(AbstractChoice):
    """Entries that stay positive are free: friction, damping, armature, stiffness, gears.

    The reference's entries are multiplied by `r = e^x`. The pull toward them is `r - log r - 1` for each entry.

    Numbers of a `World` have the names of their file's attributes: `"damping"`, `"armature"`, `"stiffness"`,
    `"frictionloss"`, `"range"`, `"solreflimit"`, `"solimplimit"` of joints; `"gear"`, `"kp"`, `"kv"`, `"gain"`,
    `"bias"`, `"dynprm"` (time constants), `"forcerange"`, `"ctrlrange"`, `"armature"` (of its joint) and the fields of
    blocks, such as `"stall_torque"`, of actuators; `"damping"`, `"stiffness"`, `"frictionloss"`, `"springlength"`,
    `"range"` of tendons. They keep their signs, and `"kp"` and `"kv"` change all
    numbers of the actuator that have them.
    """

    where: Where
    joints: Sequence[str] | None = None
    """Names of joints, for numbers that belong to joints; None: all."""
    at: Any = None
    """An index of entries of the array, such as `0`, `slice(2)` or a mask; None: all."""
    shared: bool = False
    """One number for all of the entries."""
    actuators: Sequence[str] | None = None
    """Names of actuators of a world, for numbers that belong to actuators; None: all."""
    tendons: Sequence[str] | None = None
    """Names of tendons of a world, whose numbers these are."""

    def bind(self, tree: Any) -> AbstractBlock:
        numbers = _of_world(self, tree)
        if numbers is None:
            leaf, flat, names = _select(self, tree)
            require_logarithms("Positive", names, leaves.known_entries(tree, leaf, flat))
            numbers = [Owned(x, x, ((leaf, int(i)),), apart=True) for x, i in zip(names, flat, strict=True)]
        return scaled_numbers(type(self).__name__, tree, numbers, self.shared)


@dataclasses.dataclass(frozen=True)
class Additive(AbstractChoice):
    """Entries that may have any value are free: gravity, offsets, spring references.

    `scale x` is added to the reference's entries. The pull toward the reference is half of the square of `x`, so
    `scale`, in the unit of the entries, says how far from it they are expected. Inertias and placements have choices of
    their own, which keep them valid; only the direction of a joint's axis counts.
    """

    where: Where
    scale: float = 1.0
    joints: Sequence[str] | None = None
    """Names of joints, for numbers that belong to joints; None: all."""
    at: Any = None
    """An index of entries of the array, such as `0`, `slice(2)` or a mask; None: all."""
    actuators: Sequence[str] | None = None
    """Names of actuators of a world, as in `Positive`, which has the names of a world's numbers; None: all."""
    tendons: Sequence[str] | None = None
    """Names of tendons of a world, whose numbers these are."""

    def bind(self, tree: Any) -> AbstractBlock:
        require_positive(self.scale, "Additive: scale, in the unit of the entries,")
        numbers = _of_world(self, tree)
        if numbers is not None:
            if several := [x.label for x in numbers if len(x.entries) > 1]:
                raise ModelError(f"Additive: {', '.join(several)} stands in several arrays; take Positive")
            entries = [(x.label, *x.entries[0]) for x in numbers]
            return JoinedBlocks.of(
                [_ShiftedEntries((x,), frozenset({(leaf, i)}), leaf, (i,), self.scale) for x, leaf, i in entries]
            )
        leaf, flat, names = _select(self, tree)
        return _ShiftedEntries(names, frozenset((leaf, int(i)) for i in flat), leaf, tuple(flat.tolist()), self.scale)


@dataclasses.dataclass(frozen=True)
class LinkLength(AbstractChoice):
    """The distance of joints from the joint before them is free: the reference's positions in `joint_placement` are
    multiplied by `e^x`. The pull toward the reference is as in `Positive`, once for each number.

    A loop's name frees the distances of its two frames from the joints of their bodies: the lengths of the links that
    the loop joins."""

    joints: Sequence[str] | None = None
    """Names of joints, and of loops; None: all joints."""
    shared: bool = False
    """One number for all of them."""

    def bind(self, tree: Any) -> AbstractBlock:
        model = model_of(tree)
        chosen = _places(model, self.joints, "LinkLength")
        zero = [
            name
            for (leaf, i), name in chosen.items()
            if not isinstance(x := getattr(model, leaf), Tracer) and not np.any(np.asarray(x)[i, :3])
        ]
        if zero:
            raise ModelError(
                f"LinkLength: {', '.join(zero)} stands where the joint before it does, and no factor changes a "
                "distance of zero; leave it out with joints=[...], or take Placement"
            )
        names = tuple(f"log length to {name}" for name in chosen.values())
        numbers = {leaf: leaves.number_of(tree, leaf) for leaf, _ in chosen}
        entries = [(numbers[leaf], 7 * i + c, k) for k, (leaf, i) in enumerate(chosen) for c in range(3)]
        if self.shared:
            return ScaledEntries(("log length",), [(leaf, entry, 0) for leaf, entry, _ in entries])
        return ScaledEntries(names, entries)


@dataclasses.dataclass(frozen=True)
class Placement(AbstractChoice):
    """The placement of joints in the body before them is free: shifts of their positions, in its axes, and rotation
    vectors of less than half a turn from the reference's rotations, in the axes of the joint. A loop's name frees the
    placements of its two frames in their bodies.

    The pull toward the reference is half of the sum of the squares of the shifts over `length` and of the rotation
    vectors over `angle`.
    """

    joints: Sequence[str] | None = None
    """Names of joints, and of loops; None: all joints."""
    position: bool = True
    rotation: bool = True
    length: float = 0.1
    """Expected error of positions, m; the unit of their numbers."""
    angle: float = 0.1
    """Expected error of rotations, rad; the unit of their numbers."""

    def bind(self, tree: Any) -> AbstractBlock:
        model = model_of(tree)
        chosen = _places(model, self.joints, "Placement")
        rows = {
            leaf: {i: name for (x, i), name in chosen.items() if x == leaf}
            for leaf in dict.fromkeys(x for x, _ in chosen)
        }
        blocks = [placement_block(self, leaves.number_of(tree, leaf), of_leaf) for leaf, of_leaf in rows.items()]
        return blocks[0] if len(blocks) == 1 else JoinedBlocks.of(blocks)


def _places(model: Model, names: Sequence[str] | None, what: str) -> dict[Place, str]:
    """Return the places of joints and loops, all joints for None, with their labels. **Raises** `ModelError`,
    `UnknownNameError`."""
    known = (*model.joint_names, *(loop.name for loop in model.topology.loops))
    numbers = leaves.chosen_names(model.joint_names if names is None else names, known, "joint", what)
    return {x: place_label(model, x) for i in numbers for x in chosen_places(model, [known[i]])}


def placement_block(choice: Any, leaf: int, rows: dict[int, str]) -> AbstractBlock:
    """Return the block of named rows of a leaf of placements `[n, 7]`, for a choice with the fields of `Placement`.
    **Raises** `ModelError`."""
    what = type(choice).__name__
    if not (choice.position or choice.rotation):
        raise ModelError(f"{what}: neither position nor rotation is free; choose one of them")
    if not (0 < choice.length < np.inf and 0 < choice.angle < np.inf):
        raise ModelError(f"{what}: length {choice.length} and angle {choice.angle} must be positive")
    names = [*(("x", "y", "z") if choice.position else ()), *(("rx", "ry", "rz") if choice.rotation else ())]
    columns = range(0 if choice.position else 3, 7 if choice.rotation else 3)
    return _Placements(
        names=tuple(f"placement of {row}: {name}" for row in rows.values() for name in names),
        claims=frozenset((leaf, 7 * i + k) for i in rows for k in columns),
        leaf=leaf,
        rows=tuple(rows),
        **{name: getattr(choice, name) for name in ("position", "rotation", "length", "angle")},
    )


def scaled_numbers(what: str, tree: Any, numbers: Sequence[Owned], shared: bool = False) -> ScaledEntries:
    """Return the block of numbers that are multiplied by `e^x`. **Raises** `ModelError` for zeros."""

    def is_zero(entry: tuple[int, int]) -> bool:
        value = leaves.known_entries(tree, entry[0], np.array([entry[1]]))
        return value is not None and value[0] == 0

    if zero := [x.label for x in numbers if all(map(is_zero, x.entries))]:
        raise ModelError(
            f"{what}: {', '.join(zero)} of the reference is zero, which no factor changes; choose others by their "
            "names (joints=[...], actuators=[...], tendons=[...], geoms=[...] or links=[...]), give the reference a "
            "value of the size that is expected, or take Additive"
        )
    places = [(leaf, i, 0 if shared else k) for k, x in enumerate(numbers) for leaf, i in x.entries]
    owned = [x for x in numbers if not x.apart]
    named = [(entry, x.label if k == 0 else None) for x in owned for k, entry in enumerate(x.entries)]
    if shared:
        more = f" and {len(numbers) - 1} more" if len(numbers) > 1 else ""
        return ScaledEntries((f"log {numbers[0].label}{more}",), places, float(len(numbers)), named)
    return ScaledEntries(tuple(f"log {x.label}" for x in numbers), places, 1.0, named)


def _of_world(choice: Positive | Additive, tree: Any) -> list[Owned] | None:
    """Return the numbers of a world that a choice names; None where it does not name any by an attribute. **Raises**
    `ModelError`, `UnknownNameError`."""
    what, where = type(choice).__name__, choice.where
    names = {kind: getattr(choice, f"{kind}s") for kind in ("joint", "actuator", "tendon")}
    attribute = where if isinstance(tree, World) and isinstance(where, str) else None
    attribute = attribute if attribute is not None and attribute in world_arrays.attributes(tree) else None
    if attribute is None:
        if choice.actuators is not None or choice.tendons is not None:
            raise ModelError(f"{what}: {where!r} belongs to no actuators or tendons of a world; choose entries with at")
        if isinstance(tree, World) and isinstance(where, str):
            look_up(where, (*world_arrays.attributes(tree), *_OF_WORLDS), "number of a world")
        return None
    if choice.at is not None:
        raise ModelError(f"{what}: {attribute} of a world is chosen by the names of its owners, and not by at")
    return world_arrays.chosen_numbers(tree, attribute, names, what)


def require_logarithms(what: str, names: Sequence[str], values: np.ndarray | None) -> None:
    """Raise `ModelError` for entries that are not positive, where their values are known."""
    if values is None or np.all(values > 0):
        return
    bad = [name for name, x in zip(names, values, strict=True) if not x > 0]
    raise ModelError(
        f"{what}: {', '.join(bad)} of the reference is not positive and has no logarithm; give the reference a "
        "positive value of the size that is expected (model.with_joint_friction, with_armature, ContactLaw), leave it "
        "out with joints=[...], at=... or names=[...], or take Additive"
    )


class _ShiftedEntries(AbstractBlock):
    leaf: int = eqx.field(static=True)
    flat: tuple[int, ...] = eqx.field(static=True)
    scale: float = eqx.field(static=True)

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        flat = np.array(self.flat)
        return leaves.with_entries(tree, self.leaf, flat, leaves.entries(reference, self.leaf, flat) + self.scale * x)

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        before, now = (leaves.entries(t, self.leaf, np.array(self.flat)) for t in (reference, tree))
        return (now - before) / self.scale


class _Placements(AbstractBlock):
    leaf: int = eqx.field(static=True)
    rows: tuple[int, ...] = eqx.field(static=True)
    position: bool = eqx.field(static=True)
    rotation: bool = eqx.field(static=True)
    length: float = eqx.field(static=True)
    angle: float = eqx.field(static=True)

    def _entries(self, columns: range) -> np.ndarray:
        return (7 * np.array(self.rows)[:, None] + np.array(columns)).reshape(-1)

    def _placements(self, tree: Any) -> tuple[jax.Array, Quaternion]:
        """Return the positions `[rows, 3]` and the rotations of a robot's placements."""
        rows = leaves.entries(tree, self.leaf, self._entries(range(7))).reshape(-1, 7)
        return rows[:, :3], Quaternion.from_array(rows[:, 3:])

    def _motion(self, x: jax.Array) -> tuple[jax.Array, Quaternion]:
        """Return the shifts `[rows, 3]`, in their unit, and the turns; zero where they are not free."""
        rows = x.reshape(len(self.rows), -1)
        rows = jnp.pad(rows, ((0, 0), (0 if self.position else 3, 0 if self.rotation else 3)))
        return rows[:, :3], Quaternion.exp(Vec3.from_array(self.angle * rows[:, 3:]))

    def _numbers(self, shift: jax.Array, turn: Quaternion) -> jax.Array:
        """Return the free numbers of a `_motion`."""
        rows = jnp.concatenate([shift, turn.log().to_array() / self.angle], axis=-1)
        return rows[:, 0 if self.position else 3 : 6 if self.rotation else 3].reshape(-1)

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        (position, rotation), (shift, turn) = self._placements(reference), self._motion(x)
        new = jnp.concatenate([position + self.length * shift, rotation.multiply(turn).to_array()], axis=-1)
        columns = range(0 if self.position else 3, 7 if self.rotation else 3)
        return leaves.with_entries(tree, self.leaf, self._entries(columns), new[:, np.array(columns)].reshape(-1))

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        (before, turned), (now, rotation) = self._placements(reference), self._placements(tree)
        return self._numbers((now - before) / self.length, turned.conjugate().multiply(rotation))

    def moved(self, x: jax.Array, step: jax.Array) -> jax.Array:
        (shift, turn), (more, turn_more) = self._motion(x), self._motion(step)
        return self._numbers(shift + more, turn.multiply(turn_more))


def _select(choice: Positive | Additive, tree: Any) -> tuple[int, np.ndarray, tuple[str, ...]]:
    """Return the leaf, its chosen entries, and their names. **Raises** `ModelError`, `UnknownNameError`."""
    what, model, where = type(choice).__name__, model_of(tree), choice.where
    if isinstance(where, str):
        look_up(where, LEAVES, "array of a model")
        if getattr(model, where) is None:
            raise ModelError(f"{what}: the reference has no {where}; give it one, also if it is zero")
    leaf = leaves.number_of(tree, where, what)
    name = leaf_name(tree, leaf)
    field = name.removeprefix("model.")
    columns = LEAVES[field].columns if field in LEAVES else None
    if columns == 10:
        raise ModelError(
            f"{what}: the entries of {field} depend on each other, since no body has just any of them; take "
            "LogCholesky, FixedMass, InertiaScale or Payload"
        )
    if columns == 7 and choice.at is None:
        raise ModelError(
            f"{what}: {field} has unit quaternions; take Placement or LinkLength, or choose positions with at=..., "
            "such as (joint, slice(3))"
        )
    array = jax.tree.leaves(tree)[leaf]
    places = np.arange(array.size).reshape(array.shape)
    if choice.joints is not None:
        if choice.at is not None:
            raise ModelError(f"{what}: both joints and at are given; one of them says which entries are free")
        places = places[_rows_of_joints(model, field, choice.joints, what)]
    elif choice.at is not None:
        try:
            places = places[choice.at]
        except IndexError as error:
            raise ModelError(f"{what}: at={choice.at!r} does not fit {name} of shape {array.shape}: {error}") from None
    flat = np.atleast_1d(places).reshape(-1)
    if not len(flat) or len(set(flat.tolist())) < len(flat):
        raise ModelError(
            f"{what}: of {name} the entries {flat.tolist()} are chosen; at least one, each once, is needed"
        )
    return (
        leaf,
        flat,
        tuple(entry_name(tree, leaf, int(i)) or _entry_name(model, field, name, int(i), array.shape) for i in flat),
    )


def _rows_of_joints(model: Model, field: str, joints: Sequence[str], what: str) -> np.ndarray:
    """Return the rows of a field that belong to joints. **Raises** `ModelError`, `UnknownNameError`."""
    topology = model.topology
    rows = LEAVES[field].rows if field in LEAVES else None
    if isinstance(joints, str):
        raise ModelError(f"{what}: joints is the string {joints!r}, but a sequence of names is needed: [{joints!r}]")
    if rows in ("q", "v"):
        return np.r_[*((model.q_index if rows == "q" else model.v_index)(name) for name in joints)]
    if rows == "joint":
        return np.array([topology.joint(name) for name in joints], int)
    if rows == "mimic":
        followers = [topology.joint_names[i] for i, _ in topology.mimics]
        return np.array([look_up(name, followers, "joint that mimics another") for name in joints], int)
    if rows not in ("axis", "pitch"):
        raise ModelError(f"{what}: {field} does not belong to joints; choose its entries with at=...")
    dofs, starts = topology.axis_dofs if rows == "axis" else topology.helical_dofs, topology.spanning.v_starts
    out: list[int] = []
    for name in joints:
        i = topology.joint(name)
        of_joint = np.flatnonzero((dofs >= starts[i]) & (dofs < starts[i + 1])).tolist()
        if not of_joint:
            raise UnknownNameError(f"{what}: joint {name!r} ({topology.joint_types[i]}) has no {field}")
        out += of_joint
    return np.array(out, int)


def _entry_name(model: Model, field: str, name: str, flat: int, shape: tuple[int, ...]) -> str:
    rows = LEAVES[field].rows if field in LEAVES else None
    if rows in ("q", "v"):
        names = model.topology.coordinate_names if rows == "q" else model.topology.dof_names
        return f"{field} of {names[flat]}"
    place = np.unravel_index(flat, shape) if shape else ()
    return name + (f"[{', '.join(str(int(i)) for i in place)}]" if place else "")
