"""The line search of problems with constraints: a filter of infeasibility and objective.

A step is accepted if it reduces the infeasibility or the objective enough, against the present iterate and against all
that the filter remembers; where the iterate is nearly feasible and the step promises a decrease of the objective, only
such a decrease counts (Fletcher & Leyffer, Nonlinear programming without a penalty function, Math. Program. 2002;
Wächter & Biegler, Math. Program. 2006, section 2.3, with its constants).

A step that increases the infeasibility has to be worth it besides: the objective has to fall by more than what the
infeasibility costs, at the multipliers that the step leads to. This cost is the term of the Lagrangian (Ulbrich, On the
superlinear local convergence of a filter-SQP method, Math. Program. 2004), which cuts no step near a solution, or that
of an exact penalty on absolute values; a decrease of either sum is enough. The Lagrangian may have no lower bound far
from where the constraints are met. So it counts only where the infeasibility is at most that of the guess or of a step
of common length, and no step may increase the infeasibility far beyond that. The gaps of a roll-out shrink whatever it
costs, so a roll-out has to be worth it even where it decreases the infeasibility.

Whole steps along curved constraints may increase both the infeasibility and the objective, although the next step would
take it back (the effect of Maratos; Nocedal & Wright, Numerical Optimization, 2006, section 15.4). So a whole step that
the filter refuses is taken if the Lagrangian decreases enough and the infeasibility stays moderate. If none of the next
iterates improves upon the filter, the search goes back (the watchdog technique, ibid., section 15.5)."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float

LENGTH = 40
"""Number of points that a filter remembers; a newer one replaces the oldest."""
STEPS = 14
"""Number of step lengths that are tried, each half of the one before."""
_GAMMA = 1e-5
_LARGEST_INFEASIBILITY = 3.0
"""Largest infeasibility of an iterate, relative to the larger of the guess's infeasibility and a step's common size."""
_TRUSTED_INFEASIBILITY = 1.0
"""Largest infeasibility, relative to the same size, at which the Lagrangian tells what a step is worth."""
_SMALL_INFEASIBILITY = 1e-4
_MODERATE_INFEASIBILITY = 0.1


class Filter(NamedTuple):
    """Pairs of infeasibility and objective that later iterates have to improve upon."""

    infeasibility: Float[Array, "length"]
    objective: Float[Array, "length"]
    count: Array

    @staticmethod
    def empty(dtype) -> "Filter":
        """A filter that accepts everything."""
        return Filter(*(jnp.full(LENGTH, jnp.inf, dtype) for _ in range(2)), count=jnp.zeros((), jnp.int32))

    def accepts(self, infeasibility, objective, noise):
        """Whether the pair improves upon every point."""
        better = infeasibility <= (1 - _GAMMA) * self.infeasibility
        return (better | (objective <= self.objective - _GAMMA * self.infeasibility + noise)).all()

    def with_point(self, point: "Point") -> "Filter":
        """The filter with one point more, which later iterates have to improve upon by a small part of it."""
        i, theta = self.count % LENGTH, point.infeasibility
        infeasibility = self.infeasibility.at[i].set((1 - _GAMMA) * theta)
        return Filter(infeasibility, self.objective.at[i].set(point.objective - _GAMMA * theta), self.count + 1)


class Point(NamedTuple):
    """A trajectory with what a search compares."""

    xs: Any
    us: Any
    gaps: Any
    infeasibility: Any
    objective: Any
    merits: Any
    """The objective plus the price of the infeasibility, as in a Lagrangian and as in an exact penalty."""


class Trial(NamedTuple):
    """The outcome of a search."""

    accepted: Array
    alpha: Float[Array, ""]
    point: Point
    filter: Filter
    by_lagrangian: Array
    """Whether the filter refused the step and the Lagrangian alone accepted it."""


def search(
    start: Point, filter: Filter, reference, step: Callable, longest, ok, cost_scale, *, watched, priced, forced
) -> Trial:
    """Search for the first acceptable step length among halves of `longest`; none is tried unless `ok`.

    `step(alpha)` returns a `Point` and the change of the objective that its linear model predicts;
    `reference` is an infeasibility of a common size; `watched` tells whether the Lagrangian alone may accept the
    longest step, `priced` whether a step that reduces the infeasibility has to be worth it, too, and `forced` whether
    the longest step is taken whatever it leads to."""
    noise = 10 * jnp.finfo(start.objective.dtype).eps * (cost_scale + jnp.abs(start.objective))

    def attempt(state):
        _, i = state
        alpha = longest * 0.5**i
        point, predicted = step(alpha)
        theta, phi = point.infeasibility, point.objective
        rate = jnp.abs(predicted) / jnp.maximum(alpha, jnp.finfo(alpha.dtype).tiny)
        nearly = start.infeasibility <= _SMALL_INFEASIBILITY * reference
        descends = (predicted < 0) & (alpha * rate**2.3 > start.infeasibility**1.1) & nearly
        decreases = phi <= start.objective + 1e-4 * predicted + noise
        improves = (theta <= (1 - _GAMMA) * start.infeasibility) | (
            phi <= start.objective - _GAMMA * start.infeasibility + noise
        )
        good = jnp.where(descends, decreases, improves) & filter.accepts(theta, phi, noise)
        by_linear, by_absolute = point.merits <= start.merits + noise
        by_linear &= theta <= _TRUSTED_INFEASIBILITY * reference
        worth = ((theta <= start.infeasibility) & ~priced) | by_linear | by_absolute
        good = good & worth & (theta <= jnp.maximum(_LARGEST_INFEASIBILITY * reference, start.infeasibility))
        finite = jnp.isfinite(phi) & jnp.isfinite(theta) & jnp.isfinite(point.xs).all()
        # A decrease by the model alone needs no memory.
        kept = jax.tree.map(lambda a, b: jnp.where(descends & decreases, a, b), filter, filter.with_point(start))
        by_lagrangian = (i == 0) & watched & ~good & (theta <= _MODERATE_INFEASIBILITY * reference)
        by_lagrangian &= (predicted < 0) & (point.merits[0] <= start.merits[0] + 1e-4 * predicted)
        kept = jax.tree.map(lambda a, b: jnp.where(by_lagrangian, a, b), Filter.empty(theta.dtype), kept)
        return Trial((good | by_lagrangian | forced) & finite, alpha, point, kept, by_lagrangian), i + 1

    none = Trial(~ok, jnp.zeros_like(longest), start, filter, jnp.array(False))
    trial, _ = lax.while_loop(lambda s: ~s[0].accepted & (s[1] < STEPS), attempt, (none, 0))
    accepted = trial.accepted & ok
    none = none._replace(accepted=accepted)
    return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), trial, none)
