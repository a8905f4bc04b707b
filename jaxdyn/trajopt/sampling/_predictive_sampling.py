"""Predictive sampling: the best of noisy splines about the best so far."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax

from jaxdyn._types import ArrayLike
from jaxdyn.trajopt._solution import Solution
from jaxdyn.trajopt.problem._problem import Problem
from jaxdyn.trajopt.sampling._sampling import AbstractSamplingOptions, Spline


class PredictiveSamplingOptions(AbstractSamplingOptions):
    """How `predictive_sampling` goes about it."""

    samples: int = eqx.field(default=64, static=True)
    """Trajectories in each iteration."""
    iterations: Any = 200
    """At most."""
    sigma: Any = None
    """Standard deviation of the noise on the knots, in the units of the controls: a number, or `[nu]`; by default a
    quarter of the width of the controls' bounds, 1 where there are none."""
    penalty: Any = 1e3
    """Of half the squared violations of constraints; bounds on controls always hold."""
    constraint_tolerance: Any = 1e-3
    """Of the largest violation of a constraint."""
    tolerance: Any = 1e-4
    """An improvement of the cost counts if it is more than this, relative to `1 + |cost|`."""
    patience: Any = 30
    """Iterations without an improvement that counts, after which the solve ends."""
    knots: int | None = eqx.field(default=8, static=True)
    """Of the splines of controls that are drawn; None for a control of its own at each stage."""
    spline: Spline = eqx.field(default="cubic", static=True)
    """`"zero"` (steps), `"linear"` or `"cubic"`, from the first stage to the last."""

    def first(self, mean, sigma):
        return sigma

    def draw(self, state, noise, best):
        return best + state * noise

    def learn(self, state, tried, costs):
        return state

    def mean(self, state, best):
        return best


def predictive_sampling(
    problem: Problem, us: ArrayLike | None = None, *, key: Any = None, options: PredictiveSamplingOptions | None = None
) -> Solution:
    """Solve a problem by predictive sampling: splines about the best so far are drawn, and the best of them is next
    (Howell, Gileadi, Tunyasuvunakool, Zakka, Erez & Tassa, Predictive sampling: Real-time behavior synthesis with
    MuJoCo, 2022, algorithm 1).

    `us`: `[horizon, nu]`, `[nu]` or a number, zeros where not given; where there are knots, the nearest spline stands
    for it. `key`: of the random numbers, `jax.random.key(0)` where None is given; the same key gives the same solution.
    Needs values of costs and steps, no derivatives.

    Returns the best trajectory seen, a roll-out within the bounds on controls. Its status: converged where `patience`
    iterations brought no improvement that counts and constraints hold, stalled where they do not hold; stationarity is
    not measured (NaN), and more samples may find better. Diverged: no trajectory had a finite cost.

    **Raises** `ModelError`, `ShapeError`.
    """
    options = PredictiveSamplingOptions() if options is None else options
    return options.as_arrays().solve(problem, us, jax.random.key(0) if key is None else key)
