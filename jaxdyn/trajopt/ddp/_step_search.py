"""The line search of problems with constraints, by infeasibility and objective.

A step is accepted if it reduces the infeasibility or the objective enough against the present iterate (Fletcher &
Leyffer, Nonlinear programming without a penalty function, Math. Program. 2002; Wächter & Biegler, Math. Program. 2006,
equation 18, with its constants; the memory of their filter saved no run of the benchmark).

A step that increases the infeasibility has to be worth it besides: the objective has to fall by more than what the
infeasibility costs, at the multipliers that the step leads to. This cost is the term of the Lagrangian (Ulbrich, On the
superlinear local convergence of a filter-SQP method, Math. Program. 2004), which cuts no step near a solution, or that
of an exact penalty on absolute values; a decrease of either sum is enough. Without it, the benchmark's arm past a
sphere takes two and a half times the iterations. The Lagrangian may have no lower bound far from where the constraints
are met. So it counts only where the infeasibility is at most that of the guess or of a step of common length, and no
step may increase the infeasibility far beyond that.

Whole steps along curved constraints may increase both the infeasibility and the objective: see `_watchdog`."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float

STEPS = 14
"""Number of step lengths that are tried, each half of the one before."""
_GAMMA = 1e-5
_LARGEST_INFEASIBILITY = 3.0
"""Largest infeasibility of an iterate, relative to the larger of the guess's infeasibility and a step's common size."""
_MODERATE_INFEASIBILITY = 0.1
"""Largest infeasibility, relative to the same size, at which the Lagrangian alone accepts a step."""


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
    by_lagrangian: Array
    """Whether the Lagrangian alone accepted the step."""


def improves(infeasibility, objective, start_infeasibility, start_objective, noise=0.0) -> Array:
    """Whether the infeasibility or the objective is smaller than at the start, by a small part of the infeasibility."""
    less = infeasibility <= (1 - _GAMMA) * start_infeasibility
    return less | (objective <= start_objective - _GAMMA * start_infeasibility + noise)


def search(start: Point, reference, step: Callable, longest, ok, cost_scale, *, watched, forced) -> Trial:
    """Search for the first acceptable step length among halves of `longest`; none is tried unless `ok`.

    `step(alpha)` returns a `Point` and the change of the objective that its linear model predicts;
    `reference` is an infeasibility of a common size; `watched` tells whether the Lagrangian alone may accept the
    longest step, and `forced` whether the longest step is taken whatever it leads to."""
    noise = 10 * jnp.finfo(start.objective.dtype).eps * (cost_scale + jnp.abs(start.objective))

    def attempt(state):
        _, i = state
        alpha = longest * 0.5**i
        point, predicted = step(alpha)
        theta, phi = point.infeasibility, point.objective
        by_linear, by_absolute = point.merits <= start.merits + noise
        worth = (theta <= start.infeasibility) | (by_linear & (theta <= reference)) | by_absolute
        good = improves(theta, phi, start.infeasibility, start.objective, noise) & worth
        good = good & (theta <= jnp.maximum(_LARGEST_INFEASIBILITY * reference, start.infeasibility))
        finite = jnp.isfinite(phi) & jnp.isfinite(theta) & jnp.isfinite(point.xs).all()
        by_lagrangian = (i == 0) & watched & ~good & (theta <= _MODERATE_INFEASIBILITY * reference)
        by_lagrangian &= (predicted < 0) & (point.merits[0] <= start.merits[0] + 1e-4 * predicted)
        return Trial((good | by_lagrangian | forced) & finite, alpha, point, by_lagrangian), i + 1

    none = Trial(~ok, jnp.zeros_like(longest), start, jnp.array(False))
    trial, _ = lax.while_loop(lambda s: ~s[0].accepted & (s[1] < STEPS), attempt, (none, 0))
    accepted = trial.accepted & ok
    none = none._replace(accepted=accepted)
    return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), trial, none)
