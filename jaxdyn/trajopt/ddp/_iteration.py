"""The iterations for problems without constraints: differential dynamic programming, with bounds on controls.

While the states are not the controls' roll-out, a step of the linear model is tried first, and a roll-out of the policy
where that is not good enough. Where such steps have led to an iterate that no step improves, the solve begins again at
the guess, with roll-outs only.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array
from jaxdyn.trajopt._history import History, IterationRecord, report_iteration
from jaxdyn.trajopt._solution import Gains, Multipliers, Residuals, Solution, Status
from jaxdyn.trajopt.ddp._batches import where_needed
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._differences import differenced_costs
from jaxdyn.trajopt.ddp._endings import all_finite, falls_endlessly, status_after
from jaxdyn.trajopt.ddp._expansion import Expansion, Stationarity, cost_spread, costates, expand, second_order_costs
from jaxdyn.trajopt.ddp._line_search import Iterate, linear_step, no_step, search
from jaxdyn.trajopt.ddp._riccati import Policy, backward, backward_associative, backward_in_box
from jaxdyn.trajopt.problem import Problem, bound_excess

SMALL = 0.25
"""Power of the rounding unit that is the largest size of gaps, relative to that of the states, that a roll-out closes
without a trial of the linear model, whose step would leave their squares."""

LEAST_SCALE = 1e-6
"""The least scale of the cost, as a part of that at the guess, because the cost may be zero at a solution."""


class DDPState(NamedTuple):
    """The state of a solve between two iterations."""

    iterate: Iterate
    feasible: Array
    """Whether the states are the controls' roll-out."""
    linear_steps: Array
    """Number of steps of the linear model; -1 where none is tried any more."""
    regularization: Array
    policy: Policy
    toward: Array
    """Costates."""
    promised: Array
    """Decrease that the last policy expected."""
    first_size: Array
    """Size of the derivatives by the controls at the guess."""
    first_scale: Array
    """Scale of the cost at the guess."""
    first_cost: Array
    stationarity: Array
    status: Array
    iterations: Array
    history: History | None


def run_unconstrained(problem: Problem, us, xs, options: DDPOptions, near: bool) -> Solution:
    """Solve a problem without constraints, but for bounds on controls, from a guess."""
    start = _initial_state(problem, options, us, xs, near)
    iterate = functools.partial(_iterate, problem, options, start)
    return _solution(problem, lax.while_loop(lambda s: s.status == Status.RUNNING, iterate, start))


def _initial_state(problem: Problem, options: DDPOptions, us, xs, near: bool) -> DDPState:
    dtype = problem.dtype
    xs, us = problem.guess(us, xs)
    gaps = problem.gaps(xs, us)
    zero, infinity = jnp.zeros((), jnp.int32), jnp.asarray(jnp.inf, dtype)
    return DDPState(
        iterate=Iterate(xs, us, gaps, infinity),
        feasible=_is_rounding(gaps, xs),
        linear_steps=zero,
        regularization=options.regularization,
        policy=Policy.zeros(problem.horizon, problem.dynamics.ndx, problem.dynamics.nu, dtype),
        toward=jnp.zeros_like(gaps),
        # Near a solution the first step takes second derivatives, as if the last one had promised little.
        promised=jnp.asarray(0.0 if near else jnp.inf, dtype),
        first_size=jnp.zeros(problem.dynamics.nu, dtype),
        first_scale=infinity,
        first_cost=infinity,
        stationarity=infinity,
        status=zero,
        iterations=zero,
        history=History.empty(options.history, dtype) if options.history else None,
    )


def _within(share, gaps, xs):
    """Whether all gaps are at most this share of the size of the states."""
    return jnp.abs(gaps).max() <= share * (1 + jnp.abs(xs).max())


def _is_rounding(gaps, xs):
    """Whether all gaps are as small as rounding."""
    return _within(100 * jnp.finfo(gaps.dtype).eps, gaps, xs)


def _iterate(problem: Problem, options: DDPOptions, guess: DDPState, s: DDPState) -> DDPState:
    """One backward pass and one line search; `guess` is the first state."""
    xs, us, gaps, _ = s.iterate
    e, _ = expand(problem, xs, us, gaps)
    station, toward = Stationarity.of(e, e.stage.x, (e.stage.u,), e.terminal.x)
    value = e.stage.value.sum() + e.terminal.value
    # A constant in the cost, and its unit, change nothing.
    first_scale = jnp.where(s.iterations == 0, cost_spread(problem, e, xs, us, 1.0), s.first_scale)
    scale = jnp.maximum(cost_spread(problem, e, xs, us), LEAST_SCALE * first_scale)
    policy, regularization = _regularized_policy(problem, options, s, e, scale)
    # Regularization hides a part of the decrease, which counts, too.
    promised = jnp.abs(policy.slope + 0.5 * policy.curvature) / jnp.maximum(policy.undamped, 1e-12)
    promised = jnp.where(policy.ok, promised, jnp.inf)
    here = s.iterate._replace(cost=value)
    eps = jnp.finfo(problem.dtype).eps
    tried = (s.linear_steps >= 0) & ~_within(eps**SMALL, gaps, xs)
    linear = where_needed(tried, lambda: linear_step(problem, here, e, policy), no_step(here))
    trial = search(problem, options, here, policy, linear)
    linear_steps = s.linear_steps + linear.accepted
    next_regularization, stuck = _next_regularization(options, regularization, trial)
    first_size = jnp.where(s.iterations == 0, station.size, s.first_size)
    station = station._replace(slopes=_free_slopes(problem, us, station.slopes))
    stationarity = station.relative_to(first_size)
    # Where no decrease above rounding is left, more iterations would not make the slopes smaller.
    rounding = 10 * eps * (scale + jnp.abs(value))
    attainable = jnp.where(promised < rounding, jnp.maximum(options.tolerance, eps**0.4), options.tolerance)
    solved = s.feasible & (promised <= options.decrease_tolerance * scale) & (stationarity <= attainable)
    # Where derivatives are not finite after steps of the linear model, roll-outs may lead elsewhere.
    sound = all_finite(e)
    diverged = ~all_finite(value, e.A, xs) | (~sound & (s.linear_steps <= 0))
    first_cost = jnp.where(s.iterations == 0, value, s.first_cost)
    endless = falls_endlessly(first_cost, first_scale, value, scale)
    last = s.iterations + 1 >= options.max_iterations
    again = (stuck | ~sound) & (linear_steps > 0) & ~solved & ~diverged & ~endless & ~last
    status = status_after(diverged, solved, endless, False, stuck & ~again, last)
    record = IterationRecord(
        cost=value,
        violation=jnp.abs(bound_excess(us, *problem.control_box)).max(),
        gap=jnp.abs(gaps).max(),
        stationarity=stationarity,
        step_length=trial.alpha,
        regularization=regularization,
    )
    report_iteration(options.progress, s.iterations, record, status)
    after = DDPState(
        # The iterate that meets the tolerances is the solution, not the one after it.
        iterate=jax.tree.map(lambda a, b: jnp.where(solved, a, b), here, trial.iterate),
        feasible=s.feasible | (trial.accepted & _is_rounding(trial.iterate.gaps, trial.iterate.xs)),
        linear_steps=linear_steps,
        regularization=next_regularization,
        policy=policy,
        toward=toward,
        promised=promised,
        first_size=first_size,
        first_scale=first_scale,
        first_cost=first_cost,
        stationarity=stationarity,
        status=status,
        iterations=s.iterations + 1,
        history=None if s.history is None else s.history.stored(s.iterations, record),
    )
    begun = guess._replace(
        linear_steps=jnp.full_like(linear_steps, -1),
        first_size=first_size,
        first_scale=first_scale,
        first_cost=first_cost,
        iterations=after.iterations,
        history=after.history,
    )
    return jax.tree.map(lambda a, b: jnp.where(again, a, b), begun, after)


def _free_slopes(problem: Problem, us, slopes):
    """The derivatives by the controls, zero where they press a control against the bound at which it is."""
    low, high = problem.control_box
    return jnp.where(((us <= low) & (slopes > 0)) | ((us >= high) & (slopes < 0)), 0.0, slopes)


def _regularized_policy(
    problem: Problem, options: DDPOptions, s: DDPState, e: Expansion, scale
) -> tuple[Policy, Array]:
    """The policy by a backward pass, and the regularization that it took. If the last step promised little,
    `"adaptive"` and `"finishing"` try all second derivatives, and drop those that Gauss-Newton leaves out before they
    regularize."""
    (low, high), (xs, us, *_) = problem.control_box, s.iterate
    step_box = low - us, high - us
    adaptive, second = options.drops_second_order, jnp.asarray(options.hessian == "full")
    costs = full = e.stage, e.terminal
    if adaptive:
        second = s.promised < options.second_order_below * scale
    if options.hessian != "gauss_newton":
        derivatives = differenced_costs if options.hessian == "finishing" else second_order_costs
        toward, none = costates(e.A, e.stage.x, e.terminal.x), jnp.zeros(0, problem.dtype)
        full = lax.cond(second, lambda: derivatives(problem, xs, us, e, toward, none), lambda: costs)

    def attempt(state):
        _, regularization, second = state
        stage, terminal = jax.tree.map(lambda a, b: jnp.where(second, a, b), full, costs)
        chosen = e._replace(stage=stage, terminal=terminal)
        if options.backward == "associative":
            policy = backward_associative(chosen, regularization)
        elif problem.bounded:
            policy = backward_in_box(chosen, regularization, *step_box)
        else:
            policy = backward(chosen, regularization)
        drop = second & adaptive
        more = jnp.maximum(10 * regularization, options.regularization)
        return policy, jnp.where(policy.ok | drop, regularization, more), second & ~drop | policy.ok

    state = jax.tree.map(jnp.zeros_like, s.policy), s.regularization, second
    return lax.while_loop(lambda s: ~s[0].ok & (s[1] <= options.max_regularization), attempt, state)[:2]


def _next_regularization(options: DDPOptions, regularization, trial) -> tuple[Array, Array]:
    """The regularization of the next iteration, and whether it would have to be above its limit."""
    less = jnp.maximum(regularization / 10, options.regularization)
    more = jnp.maximum(regularization * 10, options.regularization)
    short = trial.alpha <= options.regularize_below
    regularization = jnp.where(trial.alpha > 0.5, less, jnp.where(short, more, regularization))
    stuck = ~trial.accepted & (regularization > options.max_regularization)
    return jnp.minimum(regularization, options.max_regularization), stuck


def _solution(problem: Problem, s: DDPState) -> Solution:
    xs, us, gaps, cost = s.iterate
    violation = jnp.abs(bound_excess(us, *problem.control_box)).max()
    residuals = Residuals(jnp.abs(gaps).max(), s.stationarity, violation, jnp.zeros_like(violation))
    none = jnp.zeros((problem.horizon, 0), problem.dtype), jnp.zeros(0, problem.dtype)
    return Solution(
        xs=xs,
        us=us,
        cost=cost,
        status=s.status,
        iterations=s.iterations,
        residuals=residuals,
        gains=Gains(-s.policy.K, s.policy.k),
        multipliers=Multipliers(s.toward, *none),
        aux={"promised": s.promised},
        history=s.history,
    )
