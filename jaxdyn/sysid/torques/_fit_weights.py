"""The weights of a fit: of joints and samples, estimated between its rounds, and of the prior, by cross-validation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn._errors import DataError, require_choice
from jaxdyn._types import ArrayLike
from jaxdyn.sysid.torques._base_parameters import BaseParameters, base_parameters_of
from jaxdyn.sysid.torques._physical_fit import Physical, minimize, start_at
from jaxdyn.sysid.torques._recorded_motions import TorqueData
from jaxdyn.sysid.torques._torque_model import Samples, with_parameters

type Loss = Literal["squared", "huber", "cauchy"]

# No sensor is better than this part of the torque's size; without the floor, weights of exact data would overflow.
_SIGMA_FLOOR = 1e-6
# Rounds of re-weighting end when the noise of every joint changes by less than this part.
_SIGMA_TOLERANCE = 1e-3
# The same beside unknown forces, as a part of the noise's own standard error.
_OF_ERROR = 0.1
# A part of a joint's noise in an equation that counts as no less.
_LEAST_SHARE = 1e-4
# Tuning constants of 95 % efficiency for normal noise (Holland & Welsch 1977), and the ratio of a normal distribution's
# standard deviation to its median absolute value.
_HUBER, _CAUCHY, _MEDIAN = 1.345, 2.385, 1.4826


class Reweighting:
    """The weights of joints and samples, estimated from the residuals after each round."""

    def __init__(self, samples: Samples, loss: Loss, before: Reweighting | None = None):
        """`before`: the weights to begin with, of other samples of the same recordings."""
        require_choice(loss, ("squared", "huber", "cauchy"), "loss", error=DataError)
        self.samples, self.loss, self.settled = samples, loss, False
        self.noise: np.ndarray = samples.torque_scale if before is None else before.sigma
        """`[nv]`: the noise of each joint as estimated."""
        self.sigma = self.noise
        """`[nv]`: the same with a floor, by which the next round weights the joints."""
        self.weights = None if before is None else before.weights
        """`[n, nv]`: the weights of the samples' squares for a robust loss, from the second round on."""
        self._at: np.ndarray | None = None
        self._data: TorqueData | None = None

    @property
    def data(self) -> TorqueData:
        """The samples with their present weights."""
        if self._data is None:
            (self._data,) = self.samples.compressed(self.weights)
        return self._data

    def update(self, parameters: np.ndarray, gain: np.ndarray | float = 1.0) -> None:
        """Estimate all weights from the residuals at the parameters `[P]` and the drive gains `[nv]`."""
        samples = self.samples
        floor = _SIGMA_FLOOR * samples.torque_scale
        if samples.layout.nonlinear:
            self.linearize(parameters)
        if self.loss == "squared":
            self.noise = self.data.residual_rms(parameters, gain)
        else:
            # Where contacts take most of a joint's noise, the rest says little.
            share = np.sqrt(np.maximum(samples.noise_share, _LEAST_SHARE))
            residual = np.abs(samples.residuals(parameters, gain)) / share
            self.noise = _MEDIAN * np.nanmedian(np.where(samples.valid, residual, np.nan), axis=0)
            x = residual / np.maximum(self.noise, floor)
            self.weights = 1 / np.maximum(1, x / _HUBER) if self.loss == "huber" else 1 / (1 + (x / _CAUCHY) ** 2)
        sigma = samples.next_noise(self.sigma, np.maximum(self.noise, floor))
        tolerance = _SIGMA_TOLERANCE
        if samples.forces is not None:
            # Noise of which little is left beside unknown forces is hardly known, and found slowly.
            tolerance = np.maximum(tolerance, _OF_ERROR / np.sqrt(2 * self.data.samples))
        self.settled = bool(np.all(np.abs(sigma / self.sigma - 1) < tolerance))
        self.sigma = sigma
        if samples.take_noise(sigma):
            self._data = None
        if samples.layout.by_load and not samples.layout.nonlinear:
            self.linearize(parameters)
        if self.weights is not None:
            self._data = None

    def linearize(self, parameters: np.ndarray) -> None:
        """Take the columns that depend on parameters at these."""
        layout = self.samples.layout
        changed = self._at is None or not np.array_equal(parameters, self._at)
        if (layout.by_load or layout.nonlinear) and changed:
            self.samples.linearize(*with_parameters(self.samples, parameters, np.ones(layout.nv)))
            self._at, self._data = parameters, None


def first_noise(samples: Samples) -> np.ndarray:
    """A first estimate of the joints' noise `[nv]`, by linear least squares, for weights that no fit has found yet."""
    (data,), sigma = samples.compressed(), samples.torque_scale
    for _ in range(3):
        if samples.take_noise(sigma):
            (data,) = samples.compressed()
        parameters, _ = least_norm_solution(samples, data.weighted(sigma))
        sigma = samples.next_noise(
            sigma, np.maximum(data.residual_rms(parameters), _SIGMA_FLOOR * samples.torque_scale)
        )
    return sigma


def least_norm_solution(
    samples: Samples, rows: np.ndarray, threshold: float | None = None
) -> tuple[np.ndarray, BaseParameters]:
    """Solve weighted rows `[k, P + 1]`: of all parameters `[P]` with the best base parameters, return those of least
    norm in columns of unit length, and the base parameters."""
    A, b = rows[:, :-1], rows[:, -1]
    base = base_parameters_of(A, samples.names, threshold)
    Q, T = np.linalg.qr(A[:, base.independent])
    best = solve_triangular(T, Q.T @ b)
    length = np.linalg.norm(A, axis=0)
    length = np.where(length > 0, length, 1.0)
    # matrix @ (x / length) = best, with rows scaled to the length of their own column.
    M = base.matrix / length * length[base.independent][:, None]
    return np.linalg.lstsq(M, best * length[base.independent], rcond=None)[0] / length, base


PRIOR_WEIGHTS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""The default candidates."""
# Fits end within about a tenth of a standard error of their minimum, which changes predictions by nothing that counts.
_STEPS, _TOLERANCE = 100, 0.01


@dataclasses.dataclass(frozen=True)
class CandidateWeights:
    """Positive prior weights from which cross-validation chooses. **Raises** `DataError` for others, or one fold."""

    weights: tuple[float, ...] = PRIOR_WEIGHTS
    folds: int = 5
    """The number of parts of the recordings, each predicted by a fit to the others."""

    def __post_init__(self):
        if self.folds < 2 or not len(self.weights) or not np.all(np.asarray(self.weights) > 0):
            raise DataError(
                f"cross-validation with {self.folds} folds and the weights {list(self.weights)}: give two folds or "
                "more, and positive weights"
            )


class CrossValidation(NamedTuple):
    """The errors of fits with several prior weights on held-out data."""

    prior_weights: np.ndarray
    """`[k]`, increasing."""
    errors: np.ndarray
    """`[folds, k]`: mean square of the held-out residuals, each joint's divided by its `sigma^2`."""
    folds: int

    @property
    def best(self) -> float:
        """The weight with the smallest mean error."""
        return float(self.prior_weights[np.argmin(self.errors.mean(axis=0))])

    @property
    def largest_within_one_standard_error(self) -> float:
        """The largest weight whose error is within one standard error of the best (Breiman et al. 1984): a choice for
        robots whose later motions differ from the recordings."""
        mean = self.errors.mean(axis=0)
        k = int(np.argmin(mean))
        # The standard error of differences: a part that is hard to predict is so for all weights.
        excess = self.errors - self.errors[:, [k]]
        error = excess.std(axis=0, ddof=1) / np.sqrt(len(self.errors))
        return float(self.prior_weights[np.flatnonzero(excess.mean(axis=0) <= error)[-1]])


def choose_weight(samples: Samples, effects_weight: float, candidates: CandidateWeights) -> CrossValidation:
    """See `cross_validate`. The parts are weighted by the same noise in all fits."""
    weights = np.sort(np.asarray(candidates.weights, np.float64))
    errors, _ = held_out_errors(samples, first_noise(samples), weights, candidates.folds, effects_weight)
    return CrossValidation(weights, errors, len(errors))


def held_out_errors(
    samples: Samples,
    sigma: np.ndarray,
    weights: ArrayLike,
    folds: int,
    effects_weight: float = 0.1,
    near: Sequence[Physical] = (),
) -> tuple[np.ndarray, list[Physical]]:
    """The errors `[folds, k]` of fits with increasing prior weights `[k]` on held-out parts, each of motions that the
    other parts do not have (`alike_blocks`): mean squares of residuals, each joint's divided by `sigma^2`. The samples
    are compressed once. Also returns the fits with the least weight, to all parts and without each. `near`: those to
    these samples, perhaps with other effects, to start from."""
    weights = np.asarray(weights, np.float64)
    samples.take_noise(sigma)
    parts, layout = samples.compressed(groups=samples.alike_blocks(folds)), samples.layout
    errors = np.zeros((len(parts), len(weights)))
    empty = start_at(samples.model, samples, 1.0, effects_weight)
    used = [parts, *(parts[:i] + parts[i + 1 :] for i in range(len(parts)))]
    problems = [empty.with_data(TorqueData.join(x), sigma, layout) for x in used]
    points = [empty.prior._replace(U=x.U) for x in near]
    # From the largest weight on, each solution is a good start for the next, and at first the fit to all parts, which
    # is close to the fits to all but one, for these.
    for k in reversed(range(len(weights))):
        for i, problem in enumerate(problems):
            start = points[i] if i < len(points) else points[0] if points else empty.prior
            if i and near:
                start = points[0]._replace(U=start.U)
            problem = problem._replace(weight=float(weights[k]))
            found = minimize(problem, start, _STEPS, tolerance=_TOLERANCE).point
            points[i : i + 1] = [found]
            if i:
                rms = parts[i - 1].residual_rms(found.parameters(), layout.drive_gains(found.scale))
                errors[i - 1, k] = np.sum(parts[i - 1].samples * (rms / sigma) ** 2) / np.sum(parts[i - 1].samples)
    return errors, points
