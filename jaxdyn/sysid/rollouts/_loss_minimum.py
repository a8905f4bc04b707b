"""The minimum of a mean loss over recordings, and its confidence intervals, from differences of losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError, ModelError, naming_arguments, require_positive_integer
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.sysid.torques import Intervals, intervals

# Half the distance over which losses are compared, in standard errors of the minimum along that direction.
_WIDTH = 2.0
# How often the distances are adapted, by how much at once and in all, and from which logarithm of a factor on.
_SCANS, _FACTOR, _LARGEST, _CLOSE = 4, 4.0, 100.0, 0.5
# A number is open if this part of its movement is along a direction without a minimum.
_MOVES = 1e-2

type Losses = Callable[[np.ndarray], np.ndarray]


class LossMinimum(NamedTuple):
    """The minimum of a mean loss over recordings, from `loss_minimum`."""

    free: np.ndarray
    """`[P]`"""
    covariance: np.ndarray
    """`[P, P]`: of `free`, if the recordings are independent of each other; infinite variances of numbers that the
    losses leave open."""
    loss: float
    """Mean loss at `free`."""
    start_loss: float
    """Mean loss at the start."""
    recordings: int

    @property
    def standard_errors(self) -> np.ndarray:
        """Standard errors of `free`, `[P]`."""
        return np.sqrt(np.diagonal(self.covariance))

    def intervals(self, names: Sequence[str], *, level: float = 0.95) -> Intervals:
        """Return the confidence intervals of `free`, which have these names. There is no prior, so `prior_share` is 0.

        **Raises** `DataError` for another number of names, and for a level not between 0 and 1.
        """
        if len(names) != len(self.free):
            raise DataError(f"names has {len(names)} entries, and there are {len(self.free)} numbers")
        share = np.zeros(len(self.free))
        return intervals.normal_intervals(names, self.free, self.standard_errors, share, level)

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        facts = {"free numbers": printing.numbers(self.free), "standard errors": printing.numbers(self.standard_errors)}
        return f"mean loss {self.loss:.6g} over {self.recordings} recordings", facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


@naming_arguments
def loss_minimum(
    losses: Callable[[np.ndarray], Any],
    start: Float[Array | np.ndarray, "P"],
    *,
    width: ArrayLike = 0.05,
    rounds: int = 1,
) -> LossMinimum:
    """Return the minimum near `start` of the mean loss over independent recordings, with its covariance.

    For losses with many small steps, such as errors of whole roll-outs through impacts: a toss that ends on another
    face for a slightly different friction has a derivative that says nothing about larger changes. Losses are therefore
    compared over distances of two standard errors of the result to either side, which are found on the way, along the
    principal directions of the mean loss.

    With `A` the second differences of the mean loss, and `B` the covariance over the recordings of their first
    differences, the step is `-A^-1` times the mean first difference, shortened until the loss does not rise, and the
    covariance is `A^-1 B A^-1 / n` (Huber, The behavior of maximum likelihood estimates under nonstandard conditions,
    1967; by differences: Newey & McFadden, Large sample estimation and hypothesis testing, 1994, section 7). It assumes
    that recordings are independent draws of one kind, and that the mean loss is a parabola over these distances. It
    does not assume that errors within a recording are independent, nor that the model is right: for a wrong model, it
    is that of the numbers for which the loss is least over all recordings of this kind.

    **Arguments**

    - `losses`: a function of the numbers `[P]` that returns the loss of each recording, `[recordings]`. It is called
      about `P^2 / 2 + 16 P` times in a round.
    - `start`: numbers near the minimum, as an optimizer finds them.
    - `width`: the distance to begin with, one or `[P]`. It may be far off the standard errors.
    - `rounds`: how often a step is taken. The covariance is that of the last round.

    **Raises** `DataError` for fewer than `P + 2` recordings, and where the loss is not finite at the start.
    """
    require_positive_integer(rounds, "rounds")
    x = np.asarray(start, np.float64)
    width = np.broadcast_to(np.asarray(width, np.float64), x.shape)
    if x.ndim != 1 or not np.all(np.isfinite(width) & (width > 0)):
        raise ModelError(f"start has shape {x.shape} and width is {width}; `[P]` and positive numbers are needed")

    def evaluate(x: np.ndarray) -> np.ndarray:
        return np.asarray(losses(x), np.float64)

    here = evaluate(x)
    if here.ndim != 1 or len(here) < len(x) + 2 or not np.isfinite(here).all():
        raise DataError(
            f"losses returned {here.shape} numbers, {np.isfinite(here).sum()} of them finite; one finite loss for each "
            f"of at least {len(x) + 2} recordings is needed to tell {len(x)} numbers"
        )
    first, covariance, directions = here.mean(), np.zeros((len(x), len(x))), np.diag(width)
    for _ in range(rounds):
        surface = _surface(evaluate, x, here, directions)
        # Where numbers act alike, differences along each alone say little of what they do together.
        surface = _surface(evaluate, x, here, surface.principal())
        covariance, directions = surface.covariance(), surface.directions
        x, here = _descend(evaluate, x, here, surface.step())
    return LossMinimum(x, covariance, float(here.mean()), float(first), len(here))


class _Surface(NamedTuple):
    """What the losses do along some directions, in units of the distances over which they were compared."""

    directions: np.ndarray
    """`[P, P]`, in columns, as long as those distances."""
    slopes: np.ndarray
    """`[n, P]`: the first differences of each loss."""
    curvature: np.ndarray
    """`[P, P]`: the second differences of the mean loss."""

    def errors(self, slopes: np.ndarray, curvature: np.ndarray) -> np.ndarray:
        """Return the standard errors of the minimum along directions with these slopes `[n, k]` and curvatures `[k]`,
        the others held; infinite without a minimum."""
        spread = slopes.std(axis=0) / np.sqrt(len(slopes))
        return np.where(curvature > 0, spread / np.where(curvature > 0, curvature, 1.0), np.inf)

    def principal(self) -> np.ndarray:
        """Return directions `[P, P]` along which the second differences do not couple, of the length to compare at."""
        size, V = np.linalg.eigh(self.curvature)
        length = _WIDTH * self.errors(self.slopes @ V, size)
        return self.directions @ V * np.clip(length, 1 / _FACTOR, _FACTOR)

    def covariance(self) -> np.ndarray:
        """Return the covariance `[P, P]` of the minimum."""
        n, P = self.slopes.shape
        size, V = np.linalg.eigh(self.curvature)
        U, slopes, known = self.directions @ V, (self.slopes - self.slopes.mean(axis=0)) @ V, size > 0
        scores = slopes[:, known] / size[known]
        out = U[:, known] @ (scores.T @ scores / (n * (n - P))) @ U[:, known].T
        # What moves along a direction without a minimum is open.
        whole = np.linalg.norm(U, axis=1, keepdims=True)
        open_ = (np.abs(U[:, ~known]) > _MOVES * whole).any(axis=1)
        out[open_, :] = out[:, open_] = 0.0
        out[np.diag_indices(P)] = np.where(open_, np.inf, np.diagonal(out))
        return out

    def step(self) -> np.ndarray:
        """Return the way `[P]` to the minimum of the parabola, along no direction farther than was compared."""
        size, V = np.linalg.eigh(self.curvature)
        known = size > 0
        way = (self.slopes.mean(axis=0) @ V)[known] / size[known]
        return -self.directions @ V[:, known] @ np.clip(way, -1.0, 1.0)


def _surface(evaluate: Losses, x: np.ndarray, here: np.ndarray, directions: np.ndarray) -> _Surface:
    """Return the differences of the losses about `x` along directions `[P, P]`, whose lengths are adapted to two
    standard errors."""
    P, grown, todo = len(x), np.ones(len(x)), np.arange(len(x))
    ahead, behind = np.zeros((2, len(here), P))
    surface = _Surface(directions, ahead, np.zeros((P, P)))
    for scan in range(_SCANS):
        for j in todo:
            ahead[:, j], behind[:, j] = evaluate(x + directions[:, j]), evaluate(x - directions[:, j])
        bend = (ahead + behind - 2 * here[:, None]).mean(axis=0)
        surface = _Surface(directions, (ahead - behind) / 2, np.diag(bend))
        wanted = grown * np.clip(_WIDTH * surface.errors(surface.slopes, bend), 1 / _FACTOR, _FACTOR)
        factor = np.clip(wanted, 1 / _LARGEST, _LARGEST) / grown
        todo = np.flatnonzero(np.abs(np.log(factor)) > _CLOSE)
        if scan == _SCANS - 1 or not len(todo):
            break
        directions, grown = directions.copy(), grown.copy()
        directions[:, todo] *= factor[todo]
        grown[todo] *= factor[todo]
    for j in range(P):
        for k in range(j):
            both = evaluate(x + directions[:, j] + directions[:, k]) - ahead[:, j] - ahead[:, k] + here
            surface.curvature[j, k] = surface.curvature[k, j] = both.mean()
    return surface


def _descend(evaluate: Losses, x: np.ndarray, here: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers after as much of the step as does not raise the mean loss, and their losses."""
    for part in (1.0, 0.5, 0.25):
        there = evaluate(x + part * step)
        if there.mean() <= here.mean():
            return x + part * step, there
    return x, here
