"""Calibration of a robot's geometry, and what the measurements say about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chi2
from scipy.stats import t as t_distribution

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError, ModelError, naming_arguments
from jaxdyn._status import Status
from jaxdyn._types import ArrayLike
from jaxdyn._waits import saying
from jaxdyn.algorithms import frame_pose
from jaxdyn.model import Model
from jaxdyn.sysid.calibration._geometry_fit import (
    UNKNOWN_UNIT,
    GeometryProblem,
    Solution,
    determined_numbers,
    distinct,
    estimated_noise,
    solve,
)
from jaxdyn.sysid.calibration._geometry_measurements import AbstractGeometryMeasurement
from jaxdyn.sysid.calibration._near_start import near_start
from jaxdyn.sysid.calibration._residual_tests import GeometryCause, Outlier, geometry_causes, outliers
from jaxdyn.sysid.parameters import KinematicErrors, Parametrization, blocks
from jaxdyn.sysid.recordings import array_checks
from jaxdyn.sysid.torques import Intervals

FIRST_NOISE = 1e-3
"""The noise that a first solution assumes where none is stated, m and rad, and that is estimated after each."""
# Solutions until the noise changes by less than 1 % and the same numbers are determined.
_ROUNDS, _SETTLED = 12, 0.01
# Stated noise is said to be too small if chance leaves such residuals with less than this probability.
_MISFIT = 1e-3
# A relation between numbers is said if at least this part of a number's effect comes by it, and is a sum or a
# difference if its coefficient is one up to this part.
_RELATION = 0.01
# Sentences list at most so many things.
_LISTED = 6


@dataclasses.dataclass(frozen=True)
class Calibration:
    """A calibrated robot, how well its geometry is known, and what the residuals say. `print` shows the verdict."""

    model: Model
    """The calibrated robot."""
    start: Model
    """The robot that the numbers are about: the one that was given, or one with another mounting, and with turned
    frames, where those were farther off than half a radian or half a meter."""
    parametrization: Parametrization
    """All numbers that were free, about `start`."""
    numbers: np.ndarray
    """Their values, for which `parametrization.model` is the calibrated robot; zero for those that are held."""
    intervals: Intervals
    """The numbers that are determined, in m and rad (those of other choices than `KinematicErrors` in their units),
    with intervals. Where a number counts only together with others that are held, so does its interval."""
    covariance: np.ndarray
    """`[k, k]`: the covariance of the numbers in `intervals`, in their units."""
    relations: dict[str, dict[str, float]]
    """For each number that is held, the determined numbers that have its effect, with coefficients in m or rad for m or
    rad: the data determine `number + coefficient * held`. The strongest effect comes first. None of them where the
    measurements do not depend on the held number."""
    residuals: tuple[np.ndarray, ...]
    """For each measurement `[n, d]`: the calibrated model's values less the measured ones, m and rad; NaN where not
    measured."""
    noise: dict[str, float]
    """The standard deviation of each kind of residual, m or rad: stated or estimated."""
    degrees_of_freedom: int
    """The number of residuals less that of determined numbers."""
    outliers: tuple[Outlier, ...]
    """Measurements that the others contradict, the worst first."""
    causes: tuple[GeometryCause, ...]
    """Effects that the residuals may come from, the most convincing one first."""
    misfit: float
    """The root mean square of the residuals over the noise that was stated; 1 where none was stated."""
    status: Status
    message: str

    def position_error(self, q: ArrayLike, frame: str) -> np.ndarray:
        """The standard error `[n]` of positions of a frame at configurations `[n, nq]`, m: the root of the mean square
        of the distance from the true position, as far as noise causes it."""
        q = jnp.atleast_2d(jnp.asarray(q, self.model.dtype))
        p, determined = self.parametrization, self.intervals.names
        x = jnp.asarray(self.numbers, self.model.dtype)
        J = jax.jacfwd(lambda y: frame_pose(p.model(y), q, frame).translation)(x)
        J = np.asarray(J, np.float64) / _units(p)
        of_model = np.array([name in p.names for name in determined])
        J = J[..., [p.names.index(name) for name in determined if name in p.names]]
        return np.sqrt(np.einsum("nij,jk,nik->n", J, self.covariance[np.ix_(of_model, of_model)], J))

    def verdict(self) -> list[str]:
        """Sentences: how the fit ended, what the measurements determine, and what the residuals point to."""
        return [self.message, *self._noise_sentences(), *self._relation_sentences(), *self._residual_sentences()]

    def _noise_sentences(self) -> list[str]:
        sizes = [
            f"{x:.3g} {'rad' if 'rotation' in name or 'angle' in name or 'direction' in name else 'm'} ({name})"
            for name, x in self.noise.items()
        ]
        out = [f"The standard deviations of the residuals are {'; '.join(sizes)}."]
        if self.misfit > 1:
            out.append(
                f"The residuals are {self.misfit:.3g} times the noise that was stated, which chance does not explain: "
                "intervals are too narrow, and the model lacks something or the noise is larger."
            )
        return out

    def _relation_sentences(self) -> list[str]:
        pairs, shared, none = [], [], []
        for name, others in self.relations.items():
            other, coefficient = next(iter(others.items()), ("", 0.0))
            if not others:
                none.append(name)
            elif len(others) == 1 and abs(abs(coefficient) - 1) < _RELATION:
                pairs.append(f"{other} and {name} only as a {'sum' if coefficient > 0 else 'difference'}")
            else:
                shared.append(name)
        out = [f"The measurements determine {x}; the second is held." for x in pairs]
        if shared:
            out.append(
                f"Others together have the effect of {_listed(shared)}, which are held (`relations` has the others)."
            )
        if none:
            out.append(f"The measurements do not determine {_listed(none)}, which are held.")
        return out

    def _residual_sentences(self) -> list[str]:
        out = [x.sentence() for x in self.outliers]
        if self.outliers:
            out.append(
                "These measurements are in the fit and spoil it: look at them, set their rows to NaN if they are "
                "wrong, and calibrate again."
            )
        evident = [x for x in self.causes if x.evident]
        out += [x.sentence() for x in evident[:1]]
        if not self.outliers and not evident:
            out.append(
                "No measurement contradicts the others, and the residuals show no flexible joints, wrong gear "
                "ratios or eccentric encoders."
            )
        return out

    def __str__(self) -> str:
        return "\n".join(f"- {x}" for x in self.verdict())

    def printed(self) -> printing.Facts:
        """The facts that `repr` shows; `print` has the verdict."""
        return self.message, {}

    __repr__ = printing.one_line

    def _repr_html_(self) -> str:
        return printing.lines_as_table("Calibration", self.verdict())


@naming_arguments
@saying("calibrating")
def calibrate(
    model: Model,
    q: ArrayLike,
    measurements: AbstractGeometryMeasurement | Sequence[AbstractGeometryMeasurement],
    *,
    free: blocks.AbstractChoice | Sequence[blocks.AbstractChoice] | None = None,
    level: float = 0.95,
) -> Calibration:
    """Find the geometry of a robot from measurements in several postures, and say what they determine.

    Minimizes the squares of the residuals over their noise by Levenberg-Marquardt steps. Of the numbers that are free,
    those count that the measurements determine better than their expected error, each after those before it: mounting,
    frames and offsets before axes. The others are held at their start, and `Calibration.relations` has what they
    repeat. So the numbers are minimal, and regular for any directions of axes (`KinematicErrors`).

    **Arguments**

    - `model`: the start, without batch axes. Its inertias do not matter.
    - `q` `[n, nq]`: the configurations as the encoders read them, rad or m.
    - `measurements`: one or several of `MeasuredPoses`, `MeasuredPositions`, `FixedPoint`, `ClosedLoops`,
      `MeasuredGravity`.
    - `free`: one or several choices of what is free, as in `Parametrization`; by default `KinematicErrors` with the
      mounting, all offsets and axes, and those measured frames that are not frames of bodies.
    - `level`: of the intervals.

    Precision follows the model's: in single precision positions have an error of about 1e-6 m.

    **Returns** a `Calibration`; print it. **Raises** `DataError` where measurements do not fit the model or are too
    few, `ModelError`, `UnknownNameError` for choices.

    Source: Hollerbach, Khalil & Gautier, Model identification, Springer Handbook of Robotics, 2016, chapter 6.
    """
    if not 0 < level < 1:
        raise DataError(f"the level of an interval is {level}; a number between 0 and 1 is needed")
    q, measurements = checked_measurements(model, q, measurements)
    choices = chosen_numbers(model, measurements, free)
    start = near_start(model, q, measurements, choices)
    p, measurements = Parametrization(start, *choices), tuple(x.started(start, q) for x in measurements)
    problem = GeometryProblem(start, blocks.JoinedBlocks.of(p.blocks), measurements, q)
    found = _solution(problem)
    units = np.concatenate([np.full(len(problem.unknowns), UNKNOWN_UNIT), _units(p)])
    zero = np.concatenate([*(x.start() for x in measurements), np.zeros(p.size)])
    r, J = found.whitened(problem.rows)
    free_count, stated = int(found.determined.sum()), all(x.noise is not None for x in problem.rows.parts)
    left = len(r) - free_count
    if left < 1 and not stated:
        raise DataError(
            f"{len(r)} measured numbers for {free_count} that are free leave nothing to estimate the noise from: "
            "measure more postures, free less, or state the noise"
        )
    misfit = _misfit(problem, found, left) if stated else 1.0
    R = np.linalg.qr(J, mode="r")
    root = np.linalg.inv(R) * units[found.determined][:, None]
    covariance = root @ root.T
    names = tuple(np.array(problem.names)[found.determined].tolist())
    error, value = np.sqrt(np.diagonal(covariance)), (zero + found.x * units)[found.determined]
    half = error * t_distribution.ppf(0.5 + 0.5 * level, np.inf if stated else left)
    return Calibration(
        model=problem.model(found.x),
        start=start,
        parametrization=p,
        numbers=found.x[len(problem.unknowns) :],
        intervals=Intervals(names, value, error, value - half, value + half, np.zeros(free_count), level),
        covariance=covariance,
        relations=_relations(problem, found, units),
        residuals=problem.by_measurement(found.residuals),
        noise=dict(zip(distinct([x.name for x in problem.rows.parts]), found.sigma.tolist(), strict=True)),
        degrees_of_freedom=left,
        outliers=outliers(problem, found),
        causes=geometry_causes(problem, found),
        misfit=misfit,
        status=found.status,
        message=f"{found.status.text}; {free_count} of {len(problem.names)} numbers are determined by {len(r)} "
        f"measured ones in {len(q)} postures, after {found.iterations} steps",
    )


def checked_measurements(model: Model, q, measurements) -> tuple[np.ndarray, tuple[AbstractGeometryMeasurement, ...]]:
    """Return configurations and measurements. **Raises** `DataError`, `ModelError` where they do not fit."""
    if model.joint_placement.ndim != 2:
        raise ModelError(f"the model has batch axes {list(model.joint_placement.shape[:-2])}: take one element first")
    q = array_checks.real_numbers(q, "q")
    if q.ndim != 2 or q.shape[1] != model.nq or not np.isfinite(q).all():
        raise DataError(f"q has shape {q.shape}; finite configurations [n, {model.nq}] of the model are needed")
    measurements = (measurements,) if isinstance(measurements, AbstractGeometryMeasurement) else tuple(measurements)
    if not measurements or not all(isinstance(x, AbstractGeometryMeasurement) for x in measurements):
        kinds = ", ".join(type(x).__name__ for x in measurements) or "none"
        raise DataError(f"measurements are {kinds}; give MeasuredPoses(frame, poses), for instance")
    return q, tuple(x.checked(model, len(q)) for x in measurements)


def chosen_numbers(model: Model, measurements, free) -> tuple[blocks.AbstractChoice, ...]:
    if free is not None:
        return (free,) if isinstance(free, blocks.AbstractChoice) else tuple(free)
    frames = dict.fromkeys(name for x in measurements for name in x.frames)
    return (KinematicErrors(frames=[x for x in frames if model.topology.frame(x) >= model.nb]),)


def _units(p: Parametrization) -> np.ndarray:
    """The units of the numbers of a parametrization, m or rad; 1 for those of other choices."""
    return np.concatenate([np.ones(x.size) * getattr(x, "units", 1.0) for x in p.blocks])


def _solution(problem: GeometryProblem) -> Solution:
    """Alternate between the numbers for a noise, and the noise and the numbers that are determined."""
    rows, x = problem.rows, np.zeros(len(problem.names))
    precision = float(np.finfo(problem.reference.dtype).eps)
    sigma = np.array([FIRST_NOISE if part.noise is None else part.noise for part in rows.parts])
    _, J = problem.linearized(x)
    free, iterations = determined_numbers(J / sigma[rows.part][:, None], precision), 0
    for number in range(_ROUNDS):
        if not free.any():
            raise DataError(
                "the measurements determine none of the numbers that are free; look at the noise and at free"
            )
        point = solve(problem, x, sigma, free)
        iterations += point.iteration
        estimate = estimated_noise(problem, point, sigma, free)
        determined = determined_numbers(point.slopes / estimate[rows.part][:, None], precision, free)
        settled = np.all(np.abs(estimate / sigma - 1) < _SETTLED) and np.array_equal(determined, free)
        if settled or number == _ROUNDS - 1:
            break
        sigma, free, x = estimate, determined, np.where(determined, point.x, 0.0)
    status = Status(int(point.status)) if settled else Status.OUT_OF_ITERATIONS
    return Solution(point.x, free, point.residuals, point.slopes, sigma, status, iterations)


def _misfit(problem: GeometryProblem, found: Solution, left: int) -> float:
    """Return the root mean square of whitened residuals if chance does not explain it, and 1 otherwise."""
    square = float(np.sum((found.residuals / found.sigma[problem.rows.part]) ** 2))
    return (square / left) ** 0.5 if left > 0 and chi2.sf(square, left) < _MISFIT else 1.0


def _relations(problem: GeometryProblem, found: Solution, units: np.ndarray) -> dict[str, dict[str, float]]:
    """Return `Calibration.relations`."""
    A = found.slopes / found.sigma[problem.rows.part][:, None]
    kept, out = np.flatnonzero(found.determined), {}
    length = np.linalg.norm(A, axis=0)
    for k in np.flatnonzero(~found.determined):
        c = np.linalg.lstsq(A[:, kept], A[:, k])[0]
        effect = np.abs(c) * length[kept]
        order = [i for i in np.argsort(-effect, kind="stable") if effect[i] >= _RELATION * length[k]]
        names = {problem.names[kept[i]]: float(c[i] * units[kept[i]] / units[k]) for i in order}
        out[problem.names[k]] = names if length[k] > 1 else {}
    return out


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
