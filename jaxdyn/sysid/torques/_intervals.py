"""How certain identified parameters are: confidence intervals, and what the prior alone decides."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from jaxdyn._errors import DataError


class Intervals(NamedTuple):
    """Parameters, or combinations of them, with their uncertainty; the arrays are `[k]`."""

    names: tuple[str, ...]
    value: np.ndarray
    standard_error: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    prior_share: np.ndarray
    """The variance over that of the prior alone: 1 where the data say nothing, 0 where they say everything (and for
    linear least squares, which has no prior)."""
    level: float

    def decided_by_prior(self, share: float = 0.9) -> tuple[str, ...]:
        """The names of what the prior alone decides: the data take away less than `1 - share` of its variance."""
        return tuple(name for name, x in zip(self.names, self.prior_share, strict=True) if x > share)

    def table(self) -> str:
        """In words, a line each."""
        width = max(len(x) for x in self.names)
        head = f"{'':{width}} {'value':>12} {'std. error':>12} {f'{100 * self.level:g} % interval':>27} {'prior':>7}"
        rows = zip(*self[:6], strict=True)
        return "\n".join(
            [head, *(f"{n:{width}} {x:12.5g} {s:12.2g} [{a:12.5g}, {b:11.5g}] {p:7.1%}" for n, x, s, a, b, p in rows)]
        )


def quantile(level: float) -> float:
    if not 0 < level < 1:
        raise DataError(f"the level of an interval is {level}; a number between 0 and 1 is needed")
    return NormalDist().inv_cdf(0.5 + 0.5 * level)
