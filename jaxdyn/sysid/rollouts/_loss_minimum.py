"""The minimum of a mean loss over recordings, and its confidence intervals, from differences of losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError, ModelError, naming_arguments, require_positive_integer
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.sysid.torques import Intervals, intervals

# Half the distance over which losses are compared, in standard errors of the minimum along that direction; more where
# the second difference of the mean loss is not this many times its own standard error.
_WIDTH, _SIGNIFICANT = 3.0, 3.0
# How often the distances are adapted, by how much at once, how much they may grow in all, and what is close enough.
_SCANS, _FACTOR, _LARGEST, _CLOSE = 5, 4.0, 30.0, 1.7

# Curvatures below this part of the largest one are rounding.
_ROUNDING = 1e-10

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
    moved: float
    """Length of the last step, in standard errors, of the number for which it is longest. Above about 1 the start was
    far off, and the intervals are too narrow: begin nearer, or take more `rounds`."""

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
        facts["last step"] = f"{self.moved:.2g} standard errors"
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
    compared over distances of about three standard errors of the result to either side, which are found on the way,
    along the principal directions of the mean loss.

    With `A` the second differences of the mean loss, and `B` the covariance over the recordings of their first
    differences, the step is `-A^-1` times the mean first difference, shortened until the loss does not rise, and the
    covariance is `A^-1 B A^-1 / n` (Huber, The behavior of maximum likelihood estimates under nonstandard conditions,
    1967; by differences: Newey & McFadden, Large sample estimation and hypothesis testing, 1994, section 7). It assumes
    that recordings are independent draws of one kind, and that the mean loss is a parabola over these distances. It
    does not assume that errors within a recording are independent, nor that the model is right: for a wrong model, it
    is that of the numbers for which the loss is least over all recordings of this kind.

    **Arguments**

    - `losses`: a function of the numbers `[P]` that returns the loss of each recording, `[recordings]`. It is called
      about `P^2 + 12 P` times in a round.
    - `start`: numbers near the minimum, as an optimizer finds them.
    - `width`: the distance to begin with, one or `[P]`. It may be far off the standard errors.
    - `rounds`: how often a step is taken. The covariance is that of the last round.

    **Raises** `DataError` for fewer than `P + 2` recordings, and where a loss is not finite; `ModelError` for a `width`
    or `rounds` that are not positive.
    """
    require_positive_integer(rounds, "rounds")
    x = np.asarray(start, np.float64)
    width = np.broadcast_to(np.asarray(width, np.float64), x.shape)
    if x.ndim != 1 or not np.all(np.isfinite(width) & (width > 0)):
        raise ModelError(f"start has shape {x.shape} and width is {width}; `[P]` and positive numbers are needed")

    def evaluate(x: np.ndarray) -> np.ndarray:
        out = np.asarray(losses(x), np.float64)
        if out.ndim != 1 or len(out) < len(x) + 2 or not np.isfinite(out).all():
            raise DataError(
                f"losses has shape {out.shape} and {np.isfinite(out).sum()} finite entries at {x}; one finite loss for "
                f"each of at least {len(x) + 2} recordings is needed. Begin nearer to the minimum, or with less width"
            )
        return out

    here = evaluate(x)
    first, covariance, moved, directions = here.mean(), np.zeros((len(x), len(x))), 0.0, np.diag(width)
    for _ in range(rounds):
        surface = _surface(evaluate, x, here, directions).principal()
        # Where numbers act alike, differences along each alone say little of what they do together.
        surface = _surface(evaluate, x, here, surface.directions * surface.lengths())
        directions = surface.directions
        step, covariance = surface.minimum()
        error = np.sqrt(np.diagonal(covariance))
        moved = float(np.max(np.abs(step) / np.where(error > 0, error, np.inf)))
        x, here = _descend(evaluate, x, here, step)
    return LossMinimum(x, covariance, float(here.mean()), float(first), len(here), moved)


class _Surface(NamedTuple):
    """The differences of the losses along some directions, in units of the distances over which they were compared."""

    directions: np.ndarray
    """`[P, P]`, in columns, as long as those distances."""
    slopes: np.ndarray
    """`[n, P]`: the first differences of each loss."""
    bends: np.ndarray
    """`[n, P, P]`: the second differences of each loss."""

    def principal(self) -> _Surface:
        """Return the surface along directions in which the second differences of the mean loss do not couple."""
        _, V = np.linalg.eigh(self.bends.mean(axis=0))
        bends = np.einsum("nij,ik,jk->nk", self.bends, V, V)
        return _Surface(self.directions @ V, self.slopes @ V, bends[..., None] * np.eye(len(V)))

    def curvature(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the second difference of the mean loss along each direction, `[P]`, and its standard error."""
        bends = np.diagonal(self.bends, axis1=1, axis2=2)
        return bends.mean(axis=0), bends.std(axis=0) / np.sqrt(len(bends))

    def lengths(self) -> np.ndarray:
        """Return the lengths `[P]` over which to compare losses instead, of a few standard errors of the minimum with
        the others held, and longer where the curvature is hardly known."""
        bend, doubt = self.curvature()
        known = bend > 0
        bend = np.where(known, bend, 1.0)
        error = self.slopes.std(axis=0) / np.sqrt(len(self.slopes)) / bend
        # Where losses change in steps, second differences over a distance d are known to a part of d^-1.5.
        wanted = np.maximum(_WIDTH * error, (_SIGNIFICANT * doubt / bend) ** (2 / 3))
        return np.clip(np.where(known, wanted, np.inf), 1 / _FACTOR, _FACTOR)

    def minimum(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the way `[P]` to the minimum of the parabola, along no direction farther than was compared, and the
        covariance `[P, P]` of the minimum."""
        here = self.principal()
        n, P = here.slopes.shape
        # A curvature that is less than its error is not known to be less than that.
        curvature = np.maximum(*here.curvature())
        known = curvature > _ROUNDING * curvature.max()
        U, slopes, curvature = here.directions[:, known], here.slopes[:, known], curvature[known]
        scores = (slopes - slopes.mean(axis=0)) / curvature
        covariance = U @ (scores.T @ scores / (n * (n - P))) @ U.T
        whole = np.linalg.norm(here.directions, axis=1, keepdims=True)
        open_ = (np.abs(here.directions[:, ~known]) > np.sqrt(_ROUNDING) * whole).any(axis=1)
        covariance[np.diag_indices(P)] = np.where(open_, np.inf, np.diagonal(covariance))
        return -U @ np.clip(slopes.mean(axis=0) / curvature, -1.0, 1.0), covariance


def _surface(evaluate: Losses, x: np.ndarray, here: np.ndarray, directions: np.ndarray) -> _Surface:
    """Return the differences of the losses about `x` along directions `[P, P]`, with their lengths adapted."""
    P, grown, todo = len(x), np.ones(len(x)), np.arange(len(x))
    ahead, behind = np.zeros((2, len(here), P))
    for scan in range(_SCANS):
        for j in todo:
            ahead[:, j], behind[:, j] = evaluate(x + directions[:, j]), evaluate(x - directions[:, j])
        bends = (ahead + behind - 2 * here[:, None])[..., None] * np.eye(P)
        surface = _Surface(directions, (ahead - behind) / 2, bends)
        factor = np.minimum(grown * surface.lengths(), _LARGEST) / grown
        factor = np.where(np.abs(np.log(factor)) > np.log(_CLOSE), factor, 1.0)
        todo = np.flatnonzero(factor != 1.0)
        if scan == _SCANS - 1 or not len(todo):
            break
        directions, grown = directions * factor, grown * factor
    for j in range(P):
        for k in range(j):
            both = evaluate(x + directions[:, j] + directions[:, k])
            surface.bends[:, j, k] = surface.bends[:, k, j] = both - ahead[:, j] - ahead[:, k] + here
    return surface


def _descend(evaluate: Losses, x: np.ndarray, here: np.ndarray, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers after as much of the step as does not raise the mean loss, and their losses."""
    for part in (1.0, 0.5, 0.25):
        there = evaluate(x + part * step)
        if there.mean() <= here.mean():
            return x + part * step, there
    return x, here
