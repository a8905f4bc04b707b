"""What solvers by random samples share: splines of controls, roll-outs of many, and the loop around them."""

from __future__ import annotations

import abc
from typing import Any, Literal, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn._types import Array, Float
from jaxdyn.trajopt._solution import Residuals, Solution, Status
from jaxdyn.trajopt.problem._constraints import outside
from jaxdyn.trajopt.problem._problem import Problem

type Spline = Literal["zero", "linear", "cubic"]


class AbstractSamplingOptions(eqx.Module):
    """What all solvers by samples can be told, and the method itself: how it draws, and what it learns from the costs.

    Numbers are leaves: other values do not compile again.
    """

    samples: eqx.AbstractVar[int]
    iterations: eqx.AbstractVar[Any]
    sigma: eqx.AbstractVar[Any]
    knots: eqx.AbstractVar[int | None]
    spline: eqx.AbstractVar[Spline]
    penalty: eqx.AbstractVar[Any]
    constraint_tolerance: eqx.AbstractVar[Any]
    tolerance: eqx.AbstractVar[Any]
    patience: eqx.AbstractVar[Any]

    @abc.abstractmethod
    def first(self, mean: Float[Array, "knots nu"], sigma: Float[Array, "nu"]) -> Any:
        """What the method knows before it has drawn."""

    @abc.abstractmethod
    def draw(self, state: Any, noise: Float[Array, "samples knots nu"], best: Float[Array, "knots nu"]) -> Array:
        """Knots to try, from standard normal noise."""

    @abc.abstractmethod
    def learn(self, state: Any, tried: Float[Array, "samples knots nu"], costs: Float[Array, "samples"]) -> Any:
        """What it knows after. Samples that are no trajectory cost infinity; one at least does not."""

    @abc.abstractmethod
    def mean(self, state: Any, best: Float[Array, "knots nu"]) -> Float[Array, "knots nu"]:
        """What is tried beside the samples, without noise."""

    def __check_init__(self):
        if isinstance(self.samples, bool) or not isinstance(self.samples, int) or self.samples < 2:
            raise ModelError(f"samples is {self.samples!r}; an int of at least 2 is needed")
        if self.spline not in _DEGREES:
            raise ModelError(f"spline is {self.spline!r}; known: {', '.join(_DEGREES)}")
        if self.knots is not None and self.knots <= _DEGREES[self.spline]:
            raise ModelError(f"knots is {self.knots}, but a {self.spline} spline needs {_DEGREES[self.spline] + 1}")

    def solve(self, problem: Problem, us, key) -> Solution:
        return sample(problem, us, key, self)

    def as_arrays(self) -> Self:
        return jax.tree.map(jnp.asarray, self)


_DEGREES = {"zero": 0, "linear": 1, "cubic": 3}


def spline_matrix(horizon: int, knots: int | None, spline: Spline) -> np.ndarray:
    """`[horizon, knots]`: the controls of all stages from values at knots that are spread evenly from the first stage
    to the last; the identity without knots. `"cubic"`: the natural spline."""
    if knots is None:
        return np.eye(horizon)
    if knots > horizon:
        raise ModelError(f"{knots} knots are more than the horizon's {horizon} stages")
    at, eye = np.linspace(0, knots - 1, horizon), np.eye(knots)
    if spline == "zero":
        return eye[np.minimum(np.arange(horizon) * knots // horizon, knots - 1)]
    low = np.minimum(at.astype(int), knots - 2)
    b = (at - low)[:, None]
    linear = (1 - b) * eye[low] + b * eye[low + 1]
    if spline == "linear":
        return linear
    # Second derivatives at the knots: M_(i-1) + 4 M_i + M_(i+1) = 6 (y_(i-1) - 2 y_i + y_(i+1)), zero at both ends.
    second = np.zeros((knots, knots))
    inner = 4 * np.eye(knots - 2) + np.eye(knots - 2, k=1) + np.eye(knots - 2, k=-1)
    second[1:-1] = np.linalg.solve(inner, 6 * (eye[:-2] - 2 * eye[1:-1] + eye[2:]))
    a = 1 - b
    return linear + ((a**3 - a) * second[low] + (b**3 - b) * second[low + 1]) / 6


class Score(NamedTuple):
    penalized: Array
    """The cost with the penalties of constraints, by which samples are compared; infinite where it is not finite."""
    cost: Array
    violation: Array


def score(problem: Problem, us, penalty) -> Score:
    """Of the roll-out of `us`: one pass, no trajectory is kept."""

    def of(constraint):
        off = jnp.abs(outside(*constraint))
        return 0.5 * penalty * (off * off).sum(), off.max(initial=0.0)

    def stage(carry, at):
        x, cost, extra, worst = carry
        u, k = at
        more, off = of(problem.stage_constraint(x, u, k))
        cost = cost + problem.stage_cost(x, u, k)
        return (problem.step(x, u, k), cost, extra + more, jnp.maximum(worst, off)), None

    zero = jnp.zeros((), problem.dtype)
    start = (problem.x0.astype(problem.dtype), zero, zero, zero)
    (x, cost, extra, worst), _ = lax.scan(stage, start, (us, problem.stages))
    more, off = of(problem.terminal_constraint(x))
    cost = cost + problem.terminal_cost(x)
    total = cost + extra + more
    return Score(jnp.where(jnp.isfinite(total), total, jnp.inf), cost, jnp.maximum(worst, off))


class _Loop(NamedTuple):
    state: Any
    knots: Array
    """Of the best trajectory, and its score."""
    best: Score
    key: Any
    iterations: Array
    idle: Array
    """Iterations without an improvement that counts."""
    status: Array


@eqx.filter_jit
def sample(problem: Problem, us, key, options: AbstractSamplingOptions) -> Solution:
    """Draw, roll out, learn, as often as the budget says; the best trajectory that was seen."""
    dtype = problem.dtype
    low, high = problem.control_box
    us = problem.guess(us, rolled_out=False)[1]
    matrix = jnp.asarray(spline_matrix(problem.horizon, options.knots, options.spline), dtype)
    start = us if options.knots is None else jnp.linalg.lstsq(matrix, us)[0]
    sigma = _sigma(problem, options)
    penalty = jnp.asarray(options.penalty, dtype)
    tolerance, violation = jnp.asarray(options.tolerance, dtype), jnp.asarray(options.constraint_tolerance, dtype)

    def controls(knots):
        return jnp.clip(matrix @ knots, low, high)

    scored = jax.vmap(lambda knots: score(problem, controls(knots), penalty))

    def iterate(s: _Loop) -> _Loop:
        key, own = jax.random.split(s.key)
        noise = jax.random.normal(own, (options.samples - 1, *start.shape), dtype)
        tried = options.draw(s.state, noise, s.knots)
        tried = jnp.concatenate([options.mean(s.state, s.knots)[None], tried])
        if options.knots is None:
            # What a bound cuts off must not count in means and spreads.
            tried = jnp.clip(tried, low, high)
        scores = scored(tried)
        any_finite = jnp.isfinite(scores.penalized).any()
        learned = options.learn(s.state, tried, scores.penalized)
        state = jax.tree.map(lambda new, old: jnp.where(any_finite, new, old), learned, s.state)
        i = jnp.argmin(scores.penalized)
        better = scores.penalized[i] < s.best.penalized
        knots, best = jax.tree.map(
            lambda all_, old: jnp.where(better, all_[i], old), (tried, scores), (s.knots, s.best)
        )
        # Infinity less infinity is no improvement.
        gained = s.best.penalized - best.penalized > tolerance * (1 + jnp.abs(best.penalized))
        idle = jnp.where(gained, 0, s.idle + 1)
        waited, n = idle >= options.patience, s.iterations + 1
        ended = waited | (n >= options.iterations)
        status = jnp.select(
            [
                ended & ~jnp.isfinite(best.penalized),
                waited & (best.violation <= violation),
                waited,
                ended,
            ],
            [Status.DIVERGED, Status.CONVERGED, Status.STALLED, Status.OUT_OF_ITERATIONS],
            Status.RUNNING,
        )
        return _Loop(state, knots, best, key, n, idle, status.astype(jnp.int32))

    whole = jnp.zeros((), jnp.int32)
    begin = score(problem, controls(start), penalty)
    s = _Loop(options.first(start, sigma), start, begin, key, whole, whole, whole)
    s = lax.while_loop(lambda s: s.status == Status.RUNNING, iterate, s)
    us = controls(s.knots)
    nan = jnp.asarray(jnp.nan, dtype)
    return Solution(
        xs=problem.rollout(us),
        us=us,
        cost=s.best.cost,
        status=s.status,
        iterations=s.iterations,
        residuals=Residuals(jnp.zeros((), dtype), nan, s.best.violation),
        aux={"knots": s.knots, "state": s.state},
    )


def _sigma(problem: Problem, options: AbstractSamplingOptions):
    nu = problem.dynamics.nu
    if options.sigma is not None:
        sigma = jnp.asarray(options.sigma, problem.dtype)
        if sigma.shape not in ((), (nu,)):
            raise ShapeError(f"sigma has shape {sigma.shape}; a number or [{nu}] is needed, one for each control")
        return jnp.broadcast_to(sigma, (nu,))
    low, high = problem.control_box
    width = (high - low).max(axis=0)
    # A quarter of the box; 1 where there is none.
    return jnp.where(jnp.isfinite(width), 0.25 * width, 1.0)
