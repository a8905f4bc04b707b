"""Measurements that calibrate a robot's geometry: poses, positions, contacts at a fixed point, loops, gravity."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, look_up, require_positive
from jaxdyn._types import ArrayLike
from jaxdyn.algorithms import constraint_error, frame_pose
from jaxdyn.joints import LOOP_ROWS, POSITION_ROWS
from jaxdyn.model import Model, plane_axes
from jaxdyn.spatial import SE3, Quaternion, multiply_quaternions, rotation_to_quaternion
from jaxdyn.sysid.recordings import array_checks

# Rotations that are given as quaternions or matrices need to be unit to this part.
_UNIT = 1e-3
# Fields whose rows are postures.
_ROWS = {"rows": True}


class MeasuredPart(NamedTuple):
    """Components of a measurement that have one unit and one noise."""

    name: str
    unit: str
    """`"m"` or `"rad"`."""
    columns: tuple[int, ...]
    noise: float | None
    """Standard deviation of each component; None where it is to be estimated."""


class AbstractGeometryMeasurement(eqx.Module):
    """One quantity that was measured in several postures. Subclasses add the measured arrays, a row for each posture;
    rows with NaN were not measured."""

    postures: eqx.AbstractVar[tuple[int, ...] | None]
    """The rows of the configurations in which it was measured; None: all."""

    @property
    @abc.abstractmethod
    def parts(self) -> tuple[MeasuredPart, ...]:
        """The components of the residuals."""

    @property
    def frames(self) -> tuple[str, ...]:
        """The names of the frames that were measured."""
        return ()

    @property
    def unknowns(self) -> tuple[str, ...]:
        """Names of numbers, in m, that the measurement depends on and the model does not have."""
        return ()

    @abc.abstractmethod
    def residuals(self, model: Model, q: jax.Array, unknowns: jax.Array) -> jax.Array:
        """Return the model's values less the measured ones, `[n, d]` in the units of `parts`."""

    def checked(self, model: Model, count: int) -> Self:
        """Return the measurement for a model and a number of configurations. **Raises** `DataError`,
        `UnknownNameError` where it does not fit."""
        for name in self.frames:
            look_up(name, model.topology.frame_names, "frame")
        rows, name = self.rows(count), type(self).__name__
        if len(rows) and (rows.min() < 0 or rows.max() >= count):
            raise DataError(f"{name}: postures are 0 to {count - 1}, and {rows.min()} to {rows.max()} were named")
        for field in dataclasses.fields(self):
            x = getattr(self, field.name)
            if field.metadata.get("rows") and len(x) != len(rows):
                raise DataError(f"{name}: {field.name} has {len(x)} rows, but there are {len(rows)} postures")
        return self

    def rows(self, count: int) -> np.ndarray:
        """The rows of the configurations, of which there are so many."""
        return np.arange(count) if self.postures is None else np.array(self.postures, int)

    def started(self, model: Model, q: np.ndarray) -> Self:
        """Return the measurement with a start of its unknown numbers for a model and all configurations."""
        return self

    def start(self) -> np.ndarray:
        """The values at which the search for its unknown numbers begins, m."""
        return np.zeros(len(self.unknowns))

    def points(self) -> tuple[str, np.ndarray] | None:
        """The frame, and its measured positions `[n, 3]` in the world, where these were measured."""
        return None


def _numbers(value: ArrayLike, columns: Sequence[int], what: str) -> np.ndarray:
    """Return an array `[n, ...]` whose other axes are the last of `columns` long. **Raises** `DataError`."""
    array = array_checks.real_numbers(value, what)
    if array.ndim != 1 + len(columns) or any(n not in (0, x) for n, x in zip(columns, array.shape[1:], strict=True)):
        raise DataError(f"{what} has shape {array.shape}; [n, {', '.join(str(n or 'm') for n in columns)}] is needed")
    if np.isinf(array).any():
        raise DataError(f"{what} is infinite somewhere; rows that were not measured are NaN")
    return array


def _noise(value: float | None, what: str) -> float | None:
    """**Raises** `DataError` for a noise that is not positive."""
    if value is not None:
        require_positive(value, what, error=DataError)
    return None if value is None else float(value)


def _numbered(postures: Sequence[int] | np.ndarray | None) -> tuple[int, ...] | None:
    return None if postures is None else tuple(int(x) for x in np.ravel(np.asarray(postures)))


class MeasuredPoses(AbstractGeometryMeasurement):
    """Poses of a frame in the world, which is the frame of the tracker or camera.

    - `frame`: the name of a frame; poses `[n, 7]`: position (m) and unit quaternion `w x y z`, or an `SE3` with a batch
      axis;
    - `position_noise` (m), `rotation_noise` (rad): standard deviation of each component; estimated where not given;
    - `postures`: the rows of the configurations; by default all.

    **Raises** `DataError` for arrays of another shape, and quaternions that are not unit.
    """

    frame: str = eqx.field(static=True)
    poses: Any = eqx.field(metadata=_ROWS)
    position_noise: float | None = eqx.field(static=True)
    rotation_noise: float | None = eqx.field(static=True)
    postures: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        frame: str,
        poses: ArrayLike | SE3,
        *,
        position_noise: float | None = None,
        rotation_noise: float | None = None,
        postures: Sequence[int] | np.ndarray | None = None,
    ):
        self.frame, what = frame, f"poses of {frame}"
        self.poses = _numbers(poses.to_vector() if isinstance(poses, SE3) else poses, (7,), what)
        length = np.linalg.norm(self.poses[:, 3:], axis=-1)
        if (np.abs(length - 1) > _UNIT).any():
            k = int(np.nanargmax(np.abs(length - 1)))
            raise DataError(
                f"{what}: the quaternion of row {k} has the length {length[k]:.4g}; it must be unit, w first"
            )
        self.position_noise = _noise(position_noise, f"{what}: position_noise")
        self.rotation_noise = _noise(rotation_noise, f"{what}: rotation_noise")
        self.postures = _numbered(postures)

    @property
    def parts(self) -> tuple[MeasuredPart, ...]:
        position = MeasuredPart(f"position of {self.frame}", "m", (0, 1, 2), self.position_noise)
        return position, MeasuredPart(f"rotation of {self.frame}", "rad", (3, 4, 5), self.rotation_noise)

    @property
    def frames(self) -> tuple[str, ...]:
        return (self.frame,)

    def residuals(self, model: Model, q: jax.Array, unknowns: jax.Array) -> jax.Array:
        found = frame_pose(model, q, self.frame)
        back = self.poses[:, 3:] * jnp.array([1, -1, -1, -1], self.poses.dtype)
        turn = Quaternion.from_array(multiply_quaternions(back, rotation_to_quaternion(found.rotation)))
        return jnp.concatenate([found.translation - self.poses[:, :3], turn.log().to_array()], axis=-1)

    def points(self) -> tuple[str, np.ndarray]:
        return self.frame, np.asarray(self.poses)[:, :3]


class MeasuredPositions(AbstractGeometryMeasurement):
    """Positions of points of a frame in the world, which is the frame of the tracker or camera.

    - `frame`: the name of a frame; `positions` `[n, 3]` of its origin, or `[n, m, 3]` of several markers, m;
    - `points` `[m, 3]`: where the markers are in the frame, m; unknown numbers where not given;
    - `noise`: standard deviation of each coordinate, m; estimated where not given;
    - `postures`: the rows of the configurations; by default all.

    A marker that was out of sight is NaN. **Raises** `DataError` for arrays of another shape.
    """

    frame: str = eqx.field(static=True)
    positions: Any = eqx.field(metadata=_ROWS)
    markers: Any
    """`[m, 3]`: where the markers are in the frame, or zero if that is unknown."""
    unknown: bool = eqx.field(static=True)
    noise: float | None = eqx.field(static=True)
    postures: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        frame: str,
        positions: ArrayLike,
        points: ArrayLike | None = None,
        *,
        noise: float | None = None,
        postures: Sequence[int] | np.ndarray | None = None,
    ):
        self.frame, what = frame, f"positions of {frame}"
        several = np.ndim(positions) == 3
        self.positions = _numbers(positions, (0, 3) if several else (3,), what)
        if not several:
            self.positions = self.positions[:, None]
        count, self.unknown = self.positions.shape[1], several and points is None
        self.markers = np.zeros((count, 3)) if points is None else _numbers(np.atleast_2d(points), (3,), "points")
        if len(self.markers) != count:
            raise DataError(f"{what}: there are {count} markers, but points has {len(self.markers)} rows")
        self.noise, self.postures = _noise(noise, f"{what}: noise"), _numbered(postures)

    @property
    def parts(self) -> tuple[MeasuredPart, ...]:
        what = f"position of {self.frame}" if len(self.markers) == 1 else f"positions of markers on {self.frame}"
        return (MeasuredPart(what, "m", tuple(range(3 * len(self.markers))), self.noise),)

    @property
    def frames(self) -> tuple[str, ...]:
        return (self.frame,)

    @property
    def unknowns(self) -> tuple[str, ...]:
        numbers = range(len(self.markers)) if self.unknown else ()
        return tuple(f"marker {k} on {self.frame}: {x}" for k in numbers for x in "xyz")

    def residuals(self, model: Model, q: jax.Array, unknowns: jax.Array) -> jax.Array:
        found = frame_pose(model, q, self.frame)
        markers = self.markers + unknowns.reshape(-1, 3) if self.unknown else self.markers
        placed = found.translation[:, None] + jnp.einsum("nij,mj->nmi", found.rotation, markers)
        return (placed - self.positions).reshape(len(q), -1)

    def points(self) -> tuple[str, np.ndarray]:
        # Markers lie about the frame; a start of the mounting needs no more.
        return self.frame, np.asarray(self.positions).mean(axis=1)


class FixedPoint(AbstractGeometryMeasurement):
    """A frame's origin that was at one point of the world in several postures, as a tool's tip in a hole or a ball.

    - `frame`: the name of the frame; `postures`: the rows of the configurations in which it was there, by default all;
    - `point` `[3]`: where that is, m; unknown by default;
    - `noise`: standard deviation of each coordinate, m; estimated where not given.

    Several points are a `FixedPoint` each. With unknown points alone, all lengths are known only up to one factor.
    """

    frame: str = eqx.field(static=True)
    point: Any
    """`[3]`, where the point is, or where a search for it begins."""
    unknown: bool = eqx.field(static=True)
    noise: float | None = eqx.field(static=True)
    postures: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        frame: str,
        postures: Sequence[int] | np.ndarray | None = None,
        *,
        point: ArrayLike | None = None,
        noise: float | None = None,
    ):
        self.frame, self.unknown = frame, point is None
        self.point = np.zeros(3) if point is None else _numbers(np.atleast_2d(point), (3,), "point")[0]
        self.noise, self.postures = _noise(noise, f"fixed point of {frame}: noise"), _numbered(postures)

    @property
    def parts(self) -> tuple[MeasuredPart, ...]:
        return (MeasuredPart(f"distance of {self.frame} from its fixed point", "m", (0, 1, 2), self.noise),)

    @property
    def frames(self) -> tuple[str, ...]:
        return (self.frame,)

    @property
    def unknowns(self) -> tuple[str, ...]:
        return tuple(f"fixed point of {self.frame}: {x}" for x in "xyz") if self.unknown else ()

    def started(self, model: Model, q: np.ndarray) -> Self:
        if not self.unknown:
            return self
        reached = frame_pose(model, jnp.asarray(q[self.rows(len(q))], model.dtype), self.frame).translation
        return eqx.tree_at(lambda m: m.point, self, np.asarray(reached, np.float64).mean(axis=0))

    def start(self) -> np.ndarray:
        return np.asarray(self.point) if self.unknown else np.zeros(0)

    def residuals(self, model: Model, q: jax.Array, unknowns: jax.Array) -> jax.Array:
        point = self.point + unknowns if self.unknown else self.point
        return frame_pose(model, q, self.frame).translation - point


class ClosedLoops(AbstractGeometryMeasurement):
    """The loops and couplings of the model, which close in all postures, where all joints have encoders.

    `position_noise` (m) and `rotation_noise` (rad): standard deviation of each error of `constraint_error`, which
    encoders and clearances cause; estimated where not given. `postures`: the rows of the configurations; by default
    all.
    """

    position_noise: float | None = eqx.field(static=True)
    rotation_noise: float | None = eqx.field(static=True)
    postures: tuple[int, ...] | None = eqx.field(static=True)
    columns: tuple[tuple[int, ...], tuple[int, ...]] = eqx.field(static=True)
    """The errors that are lengths, and those that are angles, once the model is known (`checked`)."""

    def __init__(
        self,
        *,
        position_noise: float | None = None,
        rotation_noise: float | None = None,
        postures: Sequence[int] | np.ndarray | None = None,
    ):
        self.position_noise = _noise(position_noise, "ClosedLoops: position_noise")
        self.rotation_noise = _noise(rotation_noise, "ClosedLoops: rotation_noise")
        self.postures, self.columns = _numbered(postures), ((), ())

    def checked(self, model: Model, count: int) -> Self:
        super().checked(model, count)
        topology = model.topology
        if not topology.has_loops:
            raise DataError("ClosedLoops: the model has no loops and no couplings; add them by jaxdyn.with_loop")
        is_length = [k < POSITION_ROWS[x.kind] for x in topology.loops for k in range(LOOP_ROWS[x.kind])]
        is_length += [topology.joint_types[x.joint1] == "prismatic" for x in topology.couplings]
        out = type(self)(position_noise=self.position_noise, rotation_noise=self.rotation_noise, postures=self.postures)
        columns = tuple(tuple(np.flatnonzero(x).tolist()) for x in (is_length, np.logical_not(is_length)))
        object.__setattr__(out, "columns", columns)
        return out

    @property
    def parts(self) -> tuple[MeasuredPart, ...]:
        lengths, angles = self.columns
        both = (
            MeasuredPart("gaps of loops", "m", lengths, self.position_noise),
            MeasuredPart("angles of loops", "rad", angles, self.rotation_noise),
        )
        return tuple(part for part in both if part.columns)

    def residuals(self, model: Model, q: jax.Array, unknowns: jax.Array) -> jax.Array:
        return constraint_error(model, q)


class MeasuredGravity(AbstractGeometryMeasurement):
    """Readings of an accelerometer that is fixed in a frame, while the robot is at rest.

    - `frame`: the name of the frame, with the axes of the accelerometer; `readings` `[n, 3]`: its values, which point
      up, in any unit. Only their direction counts, so biases of the sensor must be removed before;
    - `noise`: standard deviation of the direction about each of two axes across it, rad; estimated where not given;
    - `postures`: the rows of the configurations; by default all.

    **Raises** `DataError` for arrays of another shape, and readings of zero.
    """

    frame: str = eqx.field(static=True)
    readings: Any = eqx.field(metadata=_ROWS)
    """`[n, 3]`: unit vectors."""
    across: Any = eqx.field(metadata=_ROWS)
    """`[n, 2, 3]`: two unit vectors across each reading."""
    noise: float | None = eqx.field(static=True)
    postures: tuple[int, ...] | None = eqx.field(static=True)

    def __init__(
        self,
        frame: str,
        readings: ArrayLike,
        *,
        noise: float | None = None,
        postures: Sequence[int] | np.ndarray | None = None,
    ):
        self.frame, what = frame, f"readings in {frame}"
        values = _numbers(readings, (3,), what)
        length = np.linalg.norm(values, axis=-1, keepdims=True)
        if (length == 0).any():
            raise DataError(f"{what}: row {int(np.argmin(length))} is zero and has no direction")
        self.readings = values / length
        self.across = np.stack([plane_axes(x) for x in self.readings])
        self.noise, self.postures = _noise(noise, f"{what}: noise"), _numbered(postures)

    @property
    def parts(self) -> tuple[MeasuredPart, ...]:
        return (MeasuredPart(f"direction of gravity in {self.frame}", "rad", (0, 1), self.noise),)

    @property
    def frames(self) -> tuple[str, ...]:
        return (self.frame,)

    def residuals(self, model: Model, q: jax.Array, unknowns: jax.Array) -> jax.Array:
        up = -model.gravity / jnp.linalg.norm(model.gravity)
        found = jnp.einsum("nji,j->ni", frame_pose(model, q, self.frame).rotation, up)
        # The tangent of half the angle, doubled: the angle where it is small, and infinite for opposite directions.
        return (
            2 * jnp.einsum("nki,ni->nk", self.across, found) / (1 + jnp.sum(found * self.readings, -1, keepdims=True))
        )
