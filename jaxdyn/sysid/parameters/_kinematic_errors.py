"""Errors of a robot's geometry as free numbers: its mounting, encoder offsets, axes of joints, and frames."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, look_up
from jaxdyn.model import Model, plane_axes
from jaxdyn.spatial import Quaternion, Vec3, compose_poses
from jaxdyn.sysid.parameters import _leaves as leaves
from jaxdyn.sysid.parameters._leaves import model_of
from jaxdyn.sysid.parameters._parametrization import AbstractBlock, AbstractChoice

_ONE_DOF = ("revolute", "continuous", "prismatic", "helical")
# Steps of Newton's method that invert the map; errors of geometry are small, so that each doubles the digits.
_NEWTON_STEPS = 6


@dataclasses.dataclass(frozen=True)
class KinematicErrors(AbstractChoice):
    """Errors of a robot's geometry are free, as many as poses can show and no more.

    The line of a joint's axis has four numbers, two tilts about and two shifts along the directions across it, and the
    direction of a prismatic joint has two tilts, about the reference. A shift along an axis is none: it commutes with
    the joint's motion, so it counts as one of the next joint or of a frame. This is complete and regular for any
    directions of axes, also parallel ones, where Denavit-Hartenberg parameters are not.

    Base, offsets and frames repeat what axes can do: `calibrate` holds the numbers that its data cannot tell apart.

    Sources: Hollerbach & Wampler, The calibration index and taxonomy for robot kinematic calibration methods, IJRR
    1996; He, Zhao, Yang & Yang, Kinematic-parameter identification for serial-robot calibration based on POE formula,
    T-RO 2010.
    """

    base: bool = True
    """The mounting of the robot in the world: the first joints of all trees move together, by shifts along and a
    rotation vector in the world's axes, about the first of these joints."""
    offsets: bool | Sequence[str] = True
    """Joints with one coordinate whose encoder has a wrong zero."""
    axes: bool | Sequence[str] = True
    """Joints with one coordinate whose axis is elsewhere in the body before it."""
    frames: Sequence[str] = ()
    """Frames, such as a tool's, that are elsewhere in their bodies."""
    held: Sequence[str] = ()
    """Names of numbers (`Parametrization.names`) that are not free."""
    rough: float = 0.1
    """Expected error of base, offsets and frames, m and rad; the unit of their numbers."""
    fine: float = 0.01
    """Expected error of axes, m and rad; the unit of their numbers."""

    def bind(self, tree: Any) -> AbstractBlock:
        model = model_of(tree)
        if not (0 < self.rough < np.inf and 0 < self.fine < np.inf):
            raise ModelError(f"KinematicErrors: rough {self.rough} and fine {self.fine} must be positive")
        numbers = [*self._frame_numbers(model), *self._joint_numbers(model)]
        base = [f"base {x}" for x in ("x", "y", "z", "rx", "ry", "rz")] if self.base else []
        for name in self.held:
            look_up(name, (*base, *(name for name, *_ in numbers)), "number of KinematicErrors")
        kept = [x for x in numbers if x[0] not in self.held]
        moved = tuple(k for k, name in enumerate(base) if name not in self.held)
        if not (kept or moved):
            raise ModelError("KinematicErrors: nothing is free; choose base, offsets, axes or frames")
        roots = tuple(i for i, parent in enumerate(model.topology.parents) if parent < 0) if moved else ()
        # The columns of placements that change: positions, rotations or both.
        columns = {row: [True, True] for row in roots}
        for _, row, direction, _ in kept:
            changed = columns.setdefault(row, [False, False])
            changed[:] = [old or bool(x.any()) for old, x in zip(changed, np.split(direction, 2), strict=True)]
        leaf = [leaves.number_of(tree, x) for x in ("joint_placement", "frame_placement")]
        claims = {
            (leaf[row >= model.nb], 7 * (row - model.nb * (row >= model.nb)) + k)
            for row, changed in columns.items()
            for k in range(7)
            if changed[k >= 3]
        }
        return _KinematicErrors(
            names=tuple(base[k] for k in moved) + tuple(name for name, *_ in kept),
            claims=frozenset(claims),
            base=moved,
            roots=roots,
            rows=tuple(row for _, row, _, _ in kept),
            moved=tuple((row, shifts, turns) for row, (shifts, turns) in sorted(columns.items())),
            units=(self.rough,) * len(moved) + tuple(unit for *_, unit in kept),
            directions=jnp.asarray(np.reshape([d for _, _, d, _ in kept], (-1, 6)), model.dtype),
        )

    def _frame_numbers(self, model: Model) -> list[tuple[str, int, np.ndarray, float]]:
        """Return the names of numbers, their rows among the placements of joints and then of frames, directions `[6]`
        of shift and rotation, and units. **Raises** `ModelError`, `UnknownNameError`."""
        out = []
        for name in self.frames:
            row = look_up(name, model.topology.frame_names, "frame")
            if row < model.nb:
                raise ModelError(
                    f"KinematicErrors: the frame {name!r} is that of a body, which only its joint places; leave it "
                    "out, or take a frame that is fixed in the body"
                )
            labels = ("x", "y", "z", "rx", "ry", "rz")
            out += [(f"{name}: {x}", model.nb + row, d, self.rough) for x, d in zip(labels, np.eye(6), strict=True)]
        return out

    def _joint_numbers(self, model: Model) -> list[tuple[str, int, np.ndarray, float]]:
        """Return those of joints, offsets first; see `_frame_numbers`."""
        offsets, axes = (self._joints(model, getattr(self, x), x) for x in ("offsets", "axes"))
        owners, zero, out = model.topology.row_joints["axis"], np.zeros(3), []
        for i in sorted({*offsets, *axes}):
            name, prismatic = model.joint_names[i], model.topology.joint_types[i] == "prismatic"
            axis = np.asarray(model.joint_axis, np.float64)[np.flatnonzero(owners == i)[0]]
            axis = axis / np.linalg.norm(axis)
            if i in offsets:
                along = np.concatenate([axis, zero] if prismatic else [zero, axis])
                out.append((0, (f"offset of {name}", i, along, self.rough)))
            if i in axes:
                across = [(_label(d, k), d) for k, d in enumerate(_across(axis))]
                tilts = [(f"axis of {name}: tilt about {x}", i, np.r_[zero, d], self.fine) for x, d in across]
                shifts = [(f"axis of {name}: shift along {x}", i, np.r_[d, zero], self.fine) for x, d in across]
                out += [(1, x) for x in tilts + ([] if prismatic else shifts)]
        return [x for _, x in sorted(out, key=lambda y: y[0])]

    def _joints(self, model: Model, chosen: bool | Sequence[str], what: str) -> list[int]:
        """Return the numbers of chosen joints. **Raises** `ModelError`, `UnknownNameError`."""
        topology = model.topology
        single = [i for i, kind in enumerate(topology.joint_types) if kind in _ONE_DOF]
        if what == "offsets":
            single = [i for i in single if i not in topology.leaders]
        if isinstance(chosen, bool):
            return single if chosen else []
        found = leaves.chosen_names(chosen, model.joint_names, "joint", f"KinematicErrors: {what}") if chosen else ()
        if wrong := [model.joint_names[i] for i in found if i not in single]:
            raise ModelError(
                f"KinematicErrors: {what} of {', '.join(wrong)}, which has not one coordinate of its own; take "
                "Placement"
            )
        return list(found)


def _across(axis: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return two unit vectors across a unit vector: those of the frame, if it is one of the frame's axes."""
    k = int(np.argmax(np.abs(axis)))
    if np.abs(axis[k]) > 1 - 1e-12:
        return tuple(np.delete(np.eye(3), k, axis=0))
    return plane_axes(axis)


def _label(direction: np.ndarray, number: int) -> str:
    return "xyz"[int(np.argmax(direction))] if direction.max() == 1 else "uv"[number]


def _displacement(twist: jax.Array) -> jax.Array:
    """Return the poses `[..., 7]` after shifts and rotation vectors `[..., 6]`."""
    turn = Quaternion.exp(Vec3.from_array(twist[..., 3:])).to_array()
    return jnp.concatenate([twist[..., :3], turn], axis=-1)


class _KinematicErrors(AbstractBlock):
    base: tuple[int, ...] = eqx.field(static=True)
    """The numbers, of the six of the mounting, that are free; they come first."""
    roots: tuple[int, ...] = eqx.field(static=True)
    """The first joints of all trees."""
    rows: tuple[int, ...] = eqx.field(static=True)
    """The row, among the placements of joints and then of frames, that each other number moves."""
    moved: tuple[tuple[int, bool, bool], ...] = eqx.field(static=True)
    """The rows that change, ascending, and whether their positions and their rotations do."""
    units: tuple[float, ...] = eqx.field(static=True)
    """m or rad for each number."""
    directions: jax.Array
    """`[k, 6]`: shift and rotation vector, in the frame that moves, of each other number."""

    def _tables(self, tree: Any) -> jax.Array:
        model = model_of(tree)
        return jnp.concatenate([model.joint_placement, model.frame_placement])

    @property
    def _moved(self) -> np.ndarray:
        """The rows that change."""
        return np.array([row for row, *_ in self.moved])

    @property
    def _changed(self) -> np.ndarray:
        """`[rows, 7]` of bool: their columns that change."""
        return np.array([[shifts] * 3 + [turns] * 4 for _, shifts, turns in self.moved])

    def _placements(self, reference: Any, x: jax.Array) -> jax.Array:
        """Return the placements `[rows, 7]` that change."""
        before, rows = self._tables(reference), self._moved
        x = x * np.asarray(self.units, before.dtype)
        twist = jnp.zeros((len(rows), 6), x.dtype)
        twist = twist.at[np.searchsorted(rows, self.rows)].add(x[len(self.base) :, None] * self.directions)
        placements = compose_poses(before[rows], _displacement(twist))
        if not self.base:
            return placements
        mount = _displacement(jnp.zeros(6, x.dtype).at[np.array(self.base)].set(x[: len(self.base)]))
        pivot = jnp.zeros(7, x.dtype).at[:3].set(before[self.roots[0], :3])
        turned = compose_poses(mount, placements - pivot) + pivot
        return jnp.where(np.isin(rows, self.roots)[:, None], turned, placements)

    def apply(self, reference: Any, tree: Any, x: jax.Array) -> Any:
        model = model_of(tree)
        old, rows = self._tables(tree), self._moved
        new = old.at[rows].set(jnp.where(self._changed, self._placements(reference, x), old[rows]))
        changed = dataclasses.replace(model, joint_placement=new[: model.nb], frame_placement=new[model.nb :])
        return leaves.with_model(tree, changed)

    def coordinates(self, reference: Any, tree: Any) -> jax.Array:
        target, units = self._tables(tree)[self._moved], np.asarray(self.units)

        def error(x: jax.Array) -> jax.Array:
            now = self._placements(reference, x)
            turn = Quaternion.from_array(now[:, 3:]).conjugate().multiply(Quaternion.from_array(target[:, 3:]))
            apart = jnp.concatenate([target[:, :3] - now[:, :3], turn.log().to_array()], axis=-1)
            return jnp.where(self._changed[:, :6], apart, 0).reshape(-1)

        def step(_: int, x: jax.Array) -> jax.Array:
            J = jax.jacfwd(error)(x) / units.astype(x.dtype)
            return x - jnp.linalg.pinv(J) @ error(x) / units.astype(x.dtype)

        return jax.lax.fori_loop(0, _NEWTON_STEPS, step, jnp.zeros(self.size, target.dtype))
