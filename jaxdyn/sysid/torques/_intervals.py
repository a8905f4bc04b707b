"""Confidence intervals of identified parameters, and the share of the prior in their variance."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError

# exp() of more than this overflows.
_LARGEST_LOGARITHM = 700.0


class Intervals(NamedTuple):
    """Parameters, or combinations of them, with their uncertainty; the arrays are `[k]`."""

    names: tuple[str, ...]
    value: np.ndarray
    standard_error: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    prior_share: np.ndarray
    """The variance divided by that of the prior alone, at most 1: 1 where only the prior determines the value, 0 where
    only the data do (as in linear least squares, which has no prior)."""
    level: float

    def decided_by_prior(self, share: float = 0.9) -> tuple[str, ...]:
        """The names whose `prior_share` exceeds `share`: the data hardly reduce the prior's variance."""
        return tuple(name for name, x in zip(self.names, self.prior_share, strict=True) if x > share)

    def table(self) -> str:
        """The intervals as text, one line each."""
        width = max(len(x) for x in self.names)
        interval = f"{printing.percent(self.level)} interval"
        head = f"{'':{width}} {'value':>12} {'std. error':>12} {interval:>27} {'prior':>7}"
        rows = (
            f"{n:{width}} {x:12.5g} {s:12.2g} [{a:12.5g}, {b:11.5g}] {100 * p:5.1f} %"
            for n, x, s, a, b, p in zip(*self[:6], strict=True)
        )
        return "\n".join([head, *rows])

    def printed(self) -> printing.Facts:
        """The facts that `print` shows; `table` has all of them."""
        first = f"{len(self.names)} values with intervals of {printing.percent(self.level)}; table() has all"
        return first, printing.intervals(self, 10)

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


def quantile(level: float) -> float:
    """The half-width of a normal interval, in standard deviations. **Raises** `DataError` for a level not in 0 to 1."""
    if not 0 < level < 1:
        raise DataError(f"the level of an interval is {level}; a number between 0 and 1 is needed")
    return NormalDist().inv_cdf(0.5 + 0.5 * level)


def normal_intervals(
    names: Sequence[str],
    value: np.ndarray,
    error: np.ndarray,
    share: np.ndarray,
    level: float,
    *,
    positive: np.ndarray | bool = False,
    reference: np.ndarray | None = None,
) -> Intervals:
    """Intervals about values `[k]` with normally distributed errors, and `_positive_ends` of those that are `positive`;
    `reference` are the values at which the prior has the curvature that `share` is of, by default `value`."""
    half = quantile(level) * error
    lower, upper = value - half, value + half
    at = np.asarray(positive) & (value > 0) & (error > 0)
    if at.any():
        reference = value if reference is None else reference
        weight = share[at] * (reference[at] / error[at]) ** 2
        precision = (1 - share[at]) / error[at] ** 2
        lower[at], upper[at] = _positive_ends(value[at], precision, weight, quantile(level))
    return Intervals(tuple(names), value, error, lower, upper, share, level)


def _positive_ends(value: np.ndarray, precision: np.ndarray, weight: np.ndarray, z: float) -> np.ndarray:
    """The ends `[2, k]` of intervals of positive values, at which the cost has risen by `z^2 / 2`.

    With all else at its best, the cost at `x` exceeds that at the minimum `value` by
    `precision (x - value)^2 / 2 + weight (x / value - log(x / value) - 1)`: the data's parabola and the prior's
    logarithm. Well determined values get symmetric ends, values that only the prior knows those of a logarithm, and
    none is below zero.
    """
    precision, weight = (np.maximum(x, 0.0) for x in (precision, weight))
    # Without a prior a positive value has the interval of its logarithm, to first order.
    alone = weight < 1e-12 * precision * value**2
    ends = np.log(value) + np.outer([-1, 1], z / np.sqrt(np.maximum(precision, 1e-300)) / value)
    ends = np.exp(np.clip(ends, -_LARGEST_LOGARITHM, _LARGEST_LOGARITHM))
    near, far = np.zeros((2, len(value))), np.outer([-1, 1], np.full(len(value), 2 * _LARGEST_LOGARITHM))
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(80):
            middle = 0.5 * (near + far)
            ratio = np.exp(middle)
            rise = 0.5 * precision * (value * (ratio - 1)) ** 2 + weight * (ratio - 1 - middle)
            near, far = np.where(rise < 0.5 * z**2, middle, near), np.where(rise < 0.5 * z**2, far, middle)
    return np.where(alone, ends, value * np.exp(np.clip(near, -_LARGEST_LOGARITHM, _LARGEST_LOGARITHM)))


def around_draws(intervals: Intervals, draws: np.ndarray, positive: np.ndarray | bool = False) -> Intervals:
    """The same with standard errors over draws `[draws, k]`, and with the distances between the draws' median and
    their quantiles about the values: of the logarithms for those that are `positive`, so that no end is below zero.

    The draws of a re-sampled fit lie about the fit as the fit lies about the truth, apart from a shift that comes from
    the re-sampling itself. Distances from the median do not have it, and the value is always between the ends.
    """
    logarithmic = np.asarray(positive) & (intervals.value > 0) & (draws > 0).all(axis=0)
    x, value = (np.where(logarithmic, np.log(np.where(logarithmic, y, 1.0)), y) for y in (draws, intervals.value))
    tail = (1 - intervals.level) / 2
    low, middle, high = np.quantile(x, [tail, 0.5, 1 - tail], axis=0)
    ends = value + (low - middle), value + (high - middle)
    lower, upper = (np.where(logarithmic, np.exp(np.where(logarithmic, y, 0.0)), y) for y in ends)
    return intervals._replace(standard_error=draws.std(axis=0, ddof=1), lower=lower, upper=upper)


class Posterior(NamedTuple):
    """The covariance of a solution, in coordinates of which there are `size`, by the factors of its parts."""

    tangent: np.ndarray
    """`[k, size]`: the derivative of the parameters, and then of the logarithms of unknown inverse gains, by the
    coordinates."""
    precision_factor: np.ndarray
    """`[size, size]`, lower `L`: `L L^T` is the second derivative of the cost, of data and prior."""
    prior_factor: np.ndarray | None = None
    """`[size, size]`: the same for the prior alone; None without one, as in linear least squares, whose coordinates are
    the base parameters."""
    reference: np.ndarray | None = None
    """`[P]`: the parameters at which the prior's curvature is taken; None without one."""

    def covariance_root(self) -> np.ndarray:
        """`W` `[k, size]` for which `W W^T` is the covariance of parameters and logarithms, for independent residuals
        whose variance is that of the weights."""
        return solve_triangular(self.precision_factor, self.tangent.T, lower=True).T

    def errors(self, B: np.ndarray, score_factors: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Standard errors of combinations `B` `[m, P]` of the parameters, and their variance divided by that of the
        prior alone.

        `score_factors` `[n, k]` each are estimates `K` for which `K^T K` is the covariance of the slope of the data's
        cost with respect to what `tangent` has; the one that gives a value the larger error counts.
        """
        slope = (B @ self.tangent[: B.shape[1]]).T
        half = solve_triangular(self.precision_factor, slope, lower=True)
        # H^-1 (K^T K + G) H^-1, for H of both and G of the prior.
        weights = solve_triangular(self.precision_factor.T, half)
        variance = np.max([np.sum((K @ (self.tangent @ weights)) ** 2, axis=0) for K in score_factors], axis=0)
        if self.prior_factor is None:
            return np.sqrt(variance), np.zeros(len(variance))
        variance = variance + np.sum((self.prior_factor.T @ weights) ** 2, axis=0)
        prior = np.sum(solve_triangular(self.prior_factor, slope, lower=True) ** 2, axis=0)
        return np.sqrt(variance), np.minimum(variance / prior, 1.0)
