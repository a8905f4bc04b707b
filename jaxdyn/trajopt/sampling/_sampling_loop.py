"""Solvers by samples: their options, and the loop that draws, rolls out and updates."""

import abc
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy.interpolate import make_interp_spline

from jaxdyn._errors import ModelError, ShapeError, require_choice, require_positive_integer
from jaxdyn._types import Array, Float
from jaxdyn.trajopt._solution import Residuals, Solution, Status
from jaxdyn.trajopt.problem import Problem, bound_excess

type Spline = Literal["zero", "linear", "cubic"]

SPLINE_DEGREES = {"zero": 0, "linear": 1, "cubic": 3}


class Gaussian(NamedTuple):
    """A normal distribution of knots with independent components."""

    mean: Float[Array, "knots nu"]
    sigma: Float[Array, "*knots nu"]
    """Standard deviations."""


type SamplingMethod = Callable[[Gaussian, Array, Array, Array], Gaussian]
"""Called as `method(gaussian, samples, costs, best)` with `samples` `[samples, knots, nu]`, their costs, of which at
least one is finite, infinite where a trajectory is not, and the `best` knots `[knots, nu]` so far; returns the
distribution of the next samples."""


class SamplingOptions(eqx.Module):
    """The options that all solvers by samples share. Numbers are leaves: other values do not compile again. **Raises**
    `ModelError` for options that contradict each other."""

    samples: int = eqx.field(default=256, static=True)
    """Number of trajectories in each iteration."""
    max_iterations: Any = 100
    sigma: Any = None
    """Standard deviation of the first samples (of the knots where there are some), in the units of the controls: a
    number, or `[nu]`; by default a quarter of the width of the controls' bounds, 1 where there are none."""
    penalty: Any = 1e3
    """Weight of half the squared violations of constraints; bounds on controls always hold."""
    constraint_tolerance: Any = 1e-3
    """Largest violation of a constraint with which a solve may converge."""
    tolerance: Any = 1e-4
    """An improvement of the cost counts if it is more than this, relative to `1 + |cost|`."""
    patience: Any = 20
    """Iterations without an improvement that counts after which the solve ends."""
    knots: int | None = eqx.field(default=None, static=True)
    """Number of knots of the splines that are drawn; None draws the control of each stage."""
    spline: Spline = eqx.field(default="linear", static=True)
    """`"zero"` (steps), `"linear"` or `"cubic"`, from the first stage to the last."""

    def __check_init__(self):
        require_positive_integer(self.samples, "samples", least=2)
        require_choice(self.spline, SPLINE_DEGREES, "spline")
        degree = SPLINE_DEGREES[self.spline]
        if self.knots is not None and self.knots <= degree:
            raise ModelError(f"knots is {self.knots}, but a {self.spline} spline needs {degree + 1}")

    @abc.abstractmethod
    def method(self, sigma: Float[Array, "nu"]) -> SamplingMethod:
        """The method with these options, for samples that begin with the standard deviation `sigma`."""


def spline_matrix(horizon: int, knots: int | None, spline: Spline) -> np.ndarray:
    """The matrix `[horizon, knots]` from values at knots to the controls of all stages; the identity without knots.

    Knots are spread evenly from the first stage to the last. `"cubic"` is the natural spline."""
    if knots is None:
        return np.eye(horizon)
    if knots > horizon:
        raise ModelError(f"{knots} knots are more than the horizon's {horizon} stages")
    if spline == "zero":
        return np.eye(knots)[np.minimum(np.arange(horizon) * knots // horizon, knots - 1)]
    ends = "natural" if spline == "cubic" else None
    interpolant = make_interp_spline(np.arange(knots), np.eye(knots), SPLINE_DEGREES[spline], bc_type=ends)
    return interpolant(np.linspace(0, knots - 1, horizon))


class Score(NamedTuple):
    """The costs of a roll-out."""

    penalized: Array
    """Cost with the penalties of constraints, by which samples are compared; infinite where it is not finite."""
    cost: Array
    violation: Array


def score(problem: Problem, us, weight) -> Score:
    """The costs of the roll-out of `us`, in one pass that keeps no trajectory; violations have a `weight`."""

    def penalize(constraint):
        excess = jnp.abs(bound_excess(*constraint))
        return 0.5 * weight * (excess * excess).sum(), excess.max(initial=0.0)

    @problem.stage_function
    def evaluate(x, u, k):
        after, cost = problem.dynamics.step(x, u, k), problem.stage_cost(x, u, k)
        return after, cost, *penalize(problem.stage_constraint(x, u, k))

    def stage(carry, inputs):
        x, cost, penalties, violation = carry
        after, added, penalty, excess = evaluate(x, *inputs)
        return (after, cost + added, penalties + penalty, jnp.maximum(violation, excess)), None

    zero = jnp.zeros((), problem.dtype)
    start = (problem.x0.astype(problem.dtype), zero, zero, zero)
    (x, cost, penalties, violation), _ = lax.scan(stage, start, (us, problem.stages))
    penalty, excess = penalize(problem.terminal_constraint(x))
    cost = cost + problem.terminal_cost(x)
    total = cost + penalties + penalty
    return Score(jnp.where(jnp.isfinite(total), total, jnp.inf), cost, jnp.maximum(violation, excess))


class SamplingState(NamedTuple):
    """The state of the loop."""

    gaussian: Gaussian
    knots: Array
    """Knots of the best trajectory so far."""
    best: Score
    """Score of the best trajectory so far."""
    key: Any
    iterations: Array
    idle: Array
    """Iterations since the last improvement that counts."""
    status: Array


def solve_by_samples(problem: Problem, us, key, options: SamplingOptions) -> Solution:
    """Draw, roll out and update until the options end it; return the best trajectory that was seen. **Raises**
    `ModelError` for problems with a free initial state."""
    problem.require_fixed_start("a solver by samples")
    # As arrays, so that other numbers do not compile again.
    return _solve(problem, us, jax.random.key(0) if key is None else key, jax.tree.map(jnp.asarray, options))


@eqx.filter_jit
def _solve(problem: Problem, us, key, options: SamplingOptions) -> Solution:
    dtype = problem.dtype
    us = problem.guess(us, rolled_out=False)[1]
    matrix = jnp.asarray(spline_matrix(problem.horizon, options.knots, options.spline), dtype)
    knots = us if options.knots is None else jnp.linalg.lstsq(matrix, us)[0]
    sigma = _first_sigma(problem, options)
    method, box = options.method(sigma), problem.control_box

    def controls(knots):
        return jnp.clip(matrix @ knots, *box)

    def score_of(knots):
        return score(problem, controls(knots), options.penalty.astype(dtype))

    def iterate(state: SamplingState) -> SamplingState:
        key, noise_key = jax.random.split(state.key)
        mean, sigma = state.gaussian
        noise = jax.random.normal(noise_key, (options.samples - 1, *knots.shape), dtype)
        samples = jnp.concatenate([mean[None], mean + sigma * noise])
        if options.knots is None:
            # What a bound cuts off must not count in means and spreads.
            samples = jnp.clip(samples, *box)
        state = _update(state._replace(key=key), method, samples, jax.vmap(score_of)(samples), options)
        return state._replace(status=_status(state, options))

    zero = jnp.zeros((), jnp.int32)
    gaussian = Gaussian(knots, jnp.broadcast_to(sigma, knots.shape))
    state = SamplingState(gaussian, knots, score_of(knots), key, zero, zero, zero)
    state = lax.while_loop(lambda state: state.status == Status.RUNNING, iterate, state)
    us = controls(state.knots)
    return Solution(
        xs=problem.rollout(us),
        us=us,
        cost=state.best.cost,
        status=state.status,
        iterations=state.iterations,
        residuals=Residuals(jnp.zeros((), dtype), jnp.asarray(jnp.nan, dtype), state.best.violation),
        aux={"knots": state.knots, "gaussian": state.gaussian},
    )


def _update(state: SamplingState, method, samples, scores: Score, options: SamplingOptions) -> SamplingState:
    """The state with the best sample and the next distribution, from the scores of the samples."""
    costs = scores.penalized
    i = jnp.argmin(costs)
    better = costs[i] < state.best.penalized
    knots, best = jax.tree.map(
        lambda new, old: jnp.where(better, new[i], old), (samples, scores), (state.knots, state.best)
    )
    updated = method(state.gaussian, samples, costs, knots)
    any_finite = jnp.isfinite(costs).any()
    gaussian = jax.tree.map(lambda new, old: jnp.where(any_finite, new, old), updated, state.gaussian)
    # Infinity minus infinity is NaN, so it is not an improvement.
    tolerance = options.tolerance.astype(costs.dtype)
    improved = state.best.penalized - best.penalized > tolerance * (1 + jnp.abs(best.penalized))
    idle = jnp.where(improved, 0, state.idle + 1)
    return state._replace(gaussian=gaussian, knots=knots, best=best, idle=idle, iterations=state.iterations + 1)


def _status(state: SamplingState, options: SamplingOptions):
    waited = state.idle >= options.patience
    ended = waited | (state.iterations >= options.max_iterations)
    feasible = state.best.violation <= options.constraint_tolerance.astype(state.best.violation.dtype)
    status = jnp.select(
        [ended & ~jnp.isfinite(state.best.penalized), waited & feasible, waited, ended],
        [Status.DIVERGED, Status.CONVERGED, Status.STALLED, Status.OUT_OF_ITERATIONS],
        Status.RUNNING,
    )
    return status.astype(jnp.int32)


def _first_sigma(problem: Problem, options: SamplingOptions):
    """The standard deviation of the first samples, `[nu]`."""
    nu = problem.dynamics.nu
    if options.sigma is not None:
        sigma = jnp.asarray(options.sigma, problem.dtype)
        if sigma.shape not in ((), (nu,)):
            raise ShapeError(f"sigma has shape {sigma.shape}; a number or [{nu}] is needed, one for each control")
        return jnp.broadcast_to(sigma, (nu,))
    low, high = problem.control_box
    width = (high - low).max(axis=0)
    return jnp.where(jnp.isfinite(width), 0.25 * width, 1.0)
