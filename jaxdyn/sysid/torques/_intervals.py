"""Confidence intervals of identified parameters, and the share of the prior in their variance."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn._errors import DataError


class Intervals(NamedTuple):
    """Parameters, or combinations of them, with their uncertainty; the arrays are `[k]`."""

    names: tuple[str, ...]
    value: np.ndarray
    standard_error: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    prior_share: np.ndarray
    """The variance divided by that of the prior alone: 1 where only the prior determines the value, 0 where only the
    data do (as in linear least squares, which has no prior)."""
    level: float

    def decided_by_prior(self, share: float = 0.9) -> tuple[str, ...]:
        """The names whose `prior_share` exceeds `share`: the data hardly reduce the prior's variance."""
        return tuple(name for name, x in zip(self.names, self.prior_share, strict=True) if x > share)

    def table(self) -> str:
        """The intervals as text, one line each."""
        width = max(len(x) for x in self.names)
        head = f"{'':{width}} {'value':>12} {'std. error':>12} {f'{100 * self.level:g} % interval':>27} {'prior':>7}"
        rows = zip(*self[:6], strict=True)
        return "\n".join(
            [head, *(f"{n:{width}} {x:12.5g} {s:12.2g} [{a:12.5g}, {b:11.5g}] {p:7.1%}" for n, x, s, a, b, p in rows)]
        )


def quantile(level: float) -> float:
    """The half-width of a normal interval, in standard deviations. **Raises** `DataError` for a level not in 0 to 1."""
    if not 0 < level < 1:
        raise DataError(f"the level of an interval is {level}; a number between 0 and 1 is needed")
    return NormalDist().inv_cdf(0.5 + 0.5 * level)


def normal_intervals(
    names: Sequence[str],
    value: np.ndarray,
    error: np.ndarray,
    share,
    level: float,
    positive: np.ndarray | None = None,
) -> Intervals:
    """Intervals about values `[k]` with normally distributed errors. Of the values that `positive` marks, the
    logarithms have them, so that no interval reaches below zero."""
    half = quantile(level) * error
    lower, upper = value - half, value + half
    if positive is not None:
        factor = np.exp(np.minimum(half[positive] / value[positive], 700.0))
        lower[positive], upper[positive] = value[positive] / factor, value[positive] * factor
    return Intervals(tuple(names), value, error, lower, upper, share, level)


def with_draws(intervals: Intervals, draws: np.ndarray) -> Intervals:
    """The same with standard errors over draws `[draws, k]`, and intervals between their quantiles."""
    lower, upper = np.quantile(draws, [(1 - intervals.level) / 2, (1 + intervals.level) / 2], axis=0)
    return intervals._replace(standard_error=draws.std(axis=0, ddof=1), lower=lower, upper=upper)


def posterior_intervals(
    names: Sequence[str],
    value: np.ndarray,
    slope: np.ndarray,
    precision_factor: np.ndarray,
    prior_factor: np.ndarray,
    level: float,
    inflation: float = 1.0,
    positive: np.ndarray | None = None,
) -> Intervals:
    """Intervals of values `[k]` with the derivative `slope` `[k, size]` with respect to coordinates whose inverse
    covariance is `L L^T`, with lower factors `L` for data and prior together, and for the prior alone; `positive` as in
    `normal_intervals`."""
    variance, prior = (
        np.sum(solve_triangular(L, slope.T, lower=True) ** 2, axis=0) for L in (precision_factor, prior_factor)
    )
    return normal_intervals(names, value, np.sqrt(inflation * variance), variance / prior, level, positive)
