"""Least squares for the geometry of a robot: residuals, their derivatives, and the numbers that are determined."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn._least_squares import Damping, damped_step
from jaxdyn._status import Status
from jaxdyn.model import Model
from jaxdyn.sysid.calibration._geometry_measurements import AbstractGeometryMeasurement, MeasuredPart
from jaxdyn.sysid.parameters import blocks

# Damping counts in expected errors over the noise, which are far apart: the first steps are nearly those of Gauss and
# Newton. A step that promises less than one of 1 % of a standard error has converged.
_DAMPING = Damping(first=1e-6, most=1e12)
_CONVERGED = 0.5 * 0.01**2
MAX_ITERATIONS = 100
"""Steps of one solution; a start within half a radian takes about five."""
# A number is determined if its data alone tell it better than its expected error, which its unit is, after all numbers
# before it; and if what is left of its derivative is more than this many roundings.
_ROUNDINGS = 64
# The parts of columns that are left, in the order in which numbers count (see `determined_numbers`); numbers that were
# determined before need to have the last part but one.
_PARTS = (0.1, 0.03, 0.01, 0.0)
UNKNOWN_UNIT = 0.1
"""Expected size of the numbers that the model does not have, m; their unit."""


class Rows(NamedTuple):
    """The residuals that were measured, `R` in all."""

    kept: np.ndarray
    """`[all]` of bool: which residuals were measured."""
    part: np.ndarray
    """`[R]`: the number of the part of each."""
    posture: np.ndarray
    """`[R]`: the number of its posture."""
    group: np.ndarray
    """`[R]`: the number of its measurement and posture, counted together."""
    parts: tuple[MeasuredPart, ...]
    owners: tuple[int, ...]
    """The number of the measurement of each part."""

    @classmethod
    def of(
        cls, measurements: Sequence[AbstractGeometryMeasurement], shapes: Sequence[tuple[int, int]], count: int
    ) -> Self:
        """The rows of measurements with residuals of these shapes, none of which is left out yet."""
        part, posture, group, parts, owners = [], [], [], [], []
        for number, (measurement, (n, d)) in enumerate(zip(measurements, shapes, strict=True)):
            of_column = np.zeros(d, int)
            for x in measurement.parts:
                of_column[list(x.columns)] = len(parts)
                parts.append(x)
                owners.append(number)
            rows = measurement.rows(count)
            part.append(np.tile(of_column, n))
            posture.append(np.repeat(rows, d))
            group.append(np.repeat(number * count + rows, d))
        part, posture, group = (np.concatenate(x) for x in (part, posture, group))
        return cls(np.full(len(part), True), part, posture, group, tuple(parts), tuple(owners))

    def only(self, kept: np.ndarray) -> Self:
        return self._replace(kept=kept, part=self.part[kept], posture=self.posture[kept], group=self.group[kept])


def distinct(names: Sequence[str]) -> list[str]:
    """Return names, with numbers where several measurements have the same."""
    return [f"{x} ({names[: k + 1].count(x)})" if names.count(x) > 1 else x for k, x in enumerate(names)]


class GeometryProblem:
    """The residuals of measurements as functions of all numbers, those of the measurements and then of the blocks."""

    def __init__(
        self,
        reference: Model,
        block: blocks.JoinedBlocks,
        measurements: Sequence[AbstractGeometryMeasurement],
        q: np.ndarray,
    ):
        self.reference, self.block, self.measurements, self.q = reference, block, tuple(measurements), q
        self._shapes = [(len(x.rows(len(q))), sum(len(p.columns) for p in x.parts)) for x in self.measurements]
        self.unknowns = tuple(distinct([name for x in self.measurements for name in x.unknowns]))
        self.names = (*self.unknowns, *block.names)
        self.rows = every = Rows.of(self.measurements, self._shapes, len(q))
        residuals, *_ = self._linearized(np.zeros(len(self.names)))
        self.rows = every.only(np.isfinite(residuals))
        if not len(self.rows.part):
            raise DataError("no posture was measured: all rows of the measurements are NaN")

    def _linearized(self, x: np.ndarray) -> tuple[np.ndarray, ...]:
        dtype = self.reference.dtype
        measured = jax.tree.map(lambda y: jnp.asarray(y, dtype), self.measurements)
        q = tuple(jnp.asarray(self.q[m.rows(len(self.q))], dtype) for m in self.measurements)
        found = _linearized(self.reference, self.block, measured, q, jnp.asarray(x, dtype))
        return tuple(np.asarray(y, np.float64)[self.rows.kept] for y in found)

    def linearized(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The residuals `[R]` in m and rad for the numbers `x` `[P]`, and their derivative `[R, P]`."""
        r, J, _ = self._linearized(x)
        return r, J

    def joint_slopes(self, x: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
        """The joints with one coordinate, and the derivative `[R, k]` of the residuals by their coordinates."""
        names = self.reference.joint_names
        return tuple(names[i] for i in _scalar_joints(self.reference)), self._linearized(x)[2]

    def by_measurement(self, residuals: np.ndarray) -> tuple[np.ndarray, ...]:
        """Residuals `[R]` as an array `[n, d]` for each measurement, with NaN for those that were not measured."""
        every = np.full(len(self.rows.kept), np.nan)
        every[self.rows.kept] = residuals
        parts = np.split(every, np.cumsum([n * d for n, d in self._shapes])[:-1])
        return tuple(x.reshape(shape) for x, shape in zip(parts, self._shapes, strict=True))

    def model(self, x: np.ndarray) -> Model:
        """The model for the numbers."""
        return _model(self.reference, self.block, jnp.asarray(x, self.reference.dtype))


def _scalar_joints(model: Model) -> list[int]:
    """The joints with one coordinate of their own."""
    topology = model.topology
    starts = zip(np.diff(topology.q_starts), np.diff(topology.v_starts), strict=True)
    return [i for i, (nq, nv) in enumerate(starts) if nq == nv == 1]


@eqx.filter_jit
def _linearized(reference: Model, block: blocks.JoinedBlocks, measurements, q, x):
    """Return the residuals, and their derivatives by the numbers and by the coordinates of `_scalar_joints`."""
    columns = np.array([reference.topology.q_starts[i] for i in _scalar_joints(reference)], int)

    def residuals(y: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
        model, out, start = block.apply(reference, reference, y[len(y) - block.size :]), [], 0
        for measurement, rows in zip(measurements, q, strict=True):
            stop = start + len(measurement.unknowns)
            moved = rows.at[:, columns].add(shift)
            out.append(measurement.residuals(model, moved, UNKNOWN_UNIT * y[start:stop]).reshape(-1))
            start = stop
        r = jnp.concatenate(out)
        return r, r

    slopes, r = jax.jacfwd(residuals, argnums=(0, 1), has_aux=True)(x, jnp.zeros(len(columns), x.dtype))
    return r, *slopes


@eqx.filter_jit
def _model(reference: Model, block: blocks.JoinedBlocks, x: jax.Array) -> Model:
    return block.apply(reference, reference, x[len(x) - block.size :])


@dataclasses.dataclass
class _Point:
    """A state of the search."""

    x: np.ndarray
    residuals: np.ndarray
    slopes: np.ndarray
    cost: np.float64
    expected: np.float64
    damping: np.float64
    iteration: int
    status: np.int64


class Solution(NamedTuple):
    """The numbers that fit the measurements best."""

    x: np.ndarray
    """`[P]`, zero where they are not determined."""
    determined: np.ndarray
    """`[P]` of bool."""
    residuals: np.ndarray
    """`[R]`, m and rad."""
    slopes: np.ndarray
    """`[R, P]`"""
    sigma: np.ndarray
    """`[parts]`: the noise, m and rad."""
    status: Status
    iterations: int

    def whitened(self, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
        """Residuals `[R]` and the derivatives `[R, k]` by the determined numbers, over the noise."""
        s = self.sigma[rows.part]
        return self.residuals / s, self.slopes[:, self.determined] / s[:, None]


def determined_numbers(slopes: np.ndarray, precision: float, before: np.ndarray | None = None) -> np.ndarray:
    """Return which numbers `[P]` are determined by whitened derivatives `[R, P]`; those that were determined `before`
    come first, and then they count in their order.

    Each column is compared with those that count already (Gram and Schmidt, twice for rounding): a number counts if
    what is left of its column is longer than 1, so that its standard error is less than its unit. Numbers of which a
    small part is left, as of offsets about nearly parallel axes, come after all of which a larger part is.
    """
    basis, out = np.zeros((len(slopes), 0)), np.zeros(slopes.shape[1], bool)
    length = np.linalg.norm(slopes, axis=0)
    first = np.zeros_like(out) if before is None else before
    for part, order in [(_PARTS[-2], np.flatnonzero(first)), *((x, np.arange(len(out))) for x in _PARTS)]:
        for k in order[~out[order]]:
            left = slopes[:, k] - basis @ (basis.T @ slopes[:, k])
            left = left - basis @ (basis.T @ left)
            size = float(np.linalg.norm(left))
            if size > max(1.0, max(part, _ROUNDINGS * precision) * length[k]):
                out[k] = True
                basis = np.column_stack([basis, left / size])
    return out


def solve(problem: GeometryProblem, x: np.ndarray, sigma: np.ndarray, free: np.ndarray) -> _Point:
    """Minimize the squares of the residuals over `sigma` `[parts]` by the numbers that are `free` `[P]`, from `x`."""
    scale = sigma[problem.rows.part]

    def evaluate(y: np.ndarray, **fields) -> _Point:
        r, J = problem.linearized(y)
        cost = 0.5 * float(np.sum((r / scale) ** 2))
        return _Point(y, r, J, np.float64(cost if np.isfinite(cost) else np.inf), **fields)

    def trial(damping: np.float64) -> _Point:
        J, r = point.slopes[:, free] / scale[:, None], point.residuals / scale
        augmented = np.vstack([J, np.sqrt(damping) * np.eye(J.shape[1])])
        step = np.linalg.lstsq(augmented, np.append(-r, np.zeros(J.shape[1])))[0]
        y = point.x.copy()
        y[free] += step
        expected = 0.5 * float(r @ r - np.sum((r + J @ step) ** 2))
        state = {"damping": damping, "iteration": point.iteration, "status": point.status}
        return evaluate(y, expected=np.float64(max(expected, 0.0)), **state)

    first = {"damping": np.float64(_DAMPING.first), "iteration": 0, "status": np.int64(Status.RUNNING)}
    point = evaluate(x, expected=np.float64(np.inf), **first)
    if not np.isfinite(point.cost):
        raise DataError("the residuals are not finite at the start: look at the configurations and the model")
    precision = float(np.finfo(problem.reference.dtype).eps)
    while point.status == Status.RUNNING:
        limits = {"relative": precision, "absolute": _CONVERGED, "max_iterations": MAX_ITERATIONS}
        point = damped_step(point, trial, _DAMPING, **limits)
    return point


def estimated_noise(problem: GeometryProblem, point: _Point, sigma: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Return the noise `[parts]`: what was stated, or the root mean square of the residuals for the degrees of freedom
    that are left, by the share of the numbers that the part determines (the trace of its part of the hat matrix)."""
    rows, out = problem.rows, sigma.copy()
    Q, _ = np.linalg.qr(point.slopes[:, free] / sigma[rows.part][:, None])
    used = np.sum(Q**2, axis=1)
    # Below this the residuals are rounding of positions of about 1 m and of rotations.
    least = _ROUNDINGS * float(np.finfo(problem.reference.dtype).eps)
    for k, part in enumerate(rows.parts):
        mine = rows.part == k
        left = float(mine.sum() - used[mine].sum())
        if part.noise is not None:
            out[k] = part.noise
        elif left > 1e-6 * mine.sum():
            out[k] = max(float(np.sqrt(np.sum(point.residuals[mine] ** 2) / left)), least)
    return out
