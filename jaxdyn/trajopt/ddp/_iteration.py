"""The iterations for problems without constraints: differential dynamic programming, with bounds on controls.

While the states are not the controls' roll-out, a step of the linear model is tried first, and a roll-out of the policy
where that is not good enough. Where such steps have led to an iterate that no step improves, the solve begins again at
the guess, with roll-outs only.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array
from jaxdyn.trajopt._history import History, IterationRecord, report_iteration
from jaxdyn.trajopt._solution import Gains, Multipliers, Residuals, Solution
from jaxdyn.trajopt.ddp._batches import where_needed
from jaxdyn.trajopt.ddp._clock import iterated
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._differences import differenced_costs
from jaxdyn.trajopt.ddp._endings import all_finite, falls_endlessly, status_after
from jaxdyn.trajopt.ddp._expansion import (
    Expansion,
    Stationarity,
    cost_spread,
    costates,
    expand,
    second_order_costs,
    start_unknowns,
)
from jaxdyn.trajopt.ddp._line_search import TrajectoryIterate, linear_step, no_step, search
from jaxdyn.trajopt.ddp._minimality import (
    ATTEMPTS,
    curvature_tolerance,
    free_controls,
    leaving_policy,
    start_tolerance,
)
from jaxdyn.trajopt.ddp._riccati import (
    AffinePolicy,
    CurvatureShift,
    HeldControls,
    backward,
    backward_associative,
    backward_in_box,
    units_of_regularization,
)
from jaxdyn.trajopt.problem import Problem, bound_excess

SMALL = 0.25
"""Power of the rounding unit that is the largest size of gaps, relative to that of the states, that a roll-out closes
without a trial of the linear model, whose step would leave their squares."""

WITH_GAPS = 0.01
"""Step length up to which regularization grows while gaps are open, as in Crocoddyl."""

LEAST_SCALE = 1e-6
"""The least scale of the cost, as a part of that at the guess, because the cost may be zero at a solution."""


class GuessSizes(NamedTuple):
    """The sizes of a problem's quantities at the guess."""

    slopes: tuple[Array, Any]
    """Sizes of the derivatives by the controls, and by the unknowns of the initial state."""
    scale: Array
    """The scale of the cost."""
    cost: Array
    units: CurvatureShift
    """The units of the regularization."""

    @staticmethod
    def of(problem: Problem, e: Expansion, station: Stationarity, xs, us, cost) -> "GuessSizes":
        """The sizes at a guess with an expansion and a cost."""
        scale = cost_spread(problem, e, xs, us, 1.0)
        return GuessSizes(station.sizes, scale, cost, units_of_regularization(e, scale))


class DDPState(NamedTuple):
    """The state of a solve between two iterations."""

    iterate: TrajectoryIterate
    feasible: Array
    """Whether the states are the controls' roll-out."""
    linear_steps: Array
    """Number of steps of the linear model; -1 where none is tried any more."""
    regularization: Array
    policy: AffinePolicy
    toward: Array
    """Costates."""
    promised: Array
    """Decrease that the last policy expected."""
    first: GuessSizes
    stationarity: Array
    checks: Array
    """Number of the check whether the iterate is a minimum; zero where none is due."""
    status: Array
    iterations: Array
    history: History | None


def run_unconstrained(problem: Problem, us, xs, options: DDPOptions, near: bool) -> Solution:
    """Solve a problem without constraints, but for bounds on controls, from a guess."""
    start = _initial_state(problem, options, us, xs, near)
    iterate = functools.partial(_iterate, problem, options, start)
    return _solution(problem, iterated(iterate, start, lambda s: s.iterate.xs.sum(), options.time_limit))


def _initial_state(problem: Problem, options: DDPOptions, us, xs, near: bool) -> DDPState:
    dtype = problem.dtype
    xs, us = problem.guess(us, xs)
    gaps = problem.gaps(xs, us)
    zero, infinity = jnp.zeros((), jnp.int32), jnp.asarray(jnp.inf, dtype)
    start = start_unknowns(problem)
    return DDPState(
        iterate=TrajectoryIterate(xs, us, gaps, infinity),
        feasible=_is_rounding(gaps, xs),
        linear_steps=zero,
        regularization=options.regularization,
        policy=AffinePolicy.zeros(problem.horizon, problem.dynamics.ndx, problem.dynamics.nu, dtype, start is not None),
        toward=jnp.zeros_like(gaps),
        # Near a solution the first step takes second derivatives, as if the last one had promised little.
        promised=jnp.asarray(0.0 if near else jnp.inf, dtype),
        first=GuessSizes(
            (jnp.zeros(problem.dynamics.nu, dtype), None if start is None else start.curvature),
            infinity,
            infinity,
            CurvatureShift(infinity, infinity),
        ),
        stationarity=infinity,
        checks=zero,
        status=zero,
        iterations=zero,
        history=History.empty(options.history, dtype) if options.history else None,
    )


def _within(share, gaps, xs):
    """Whether all gaps are at most this share of the size of the states."""
    return jnp.abs(gaps).max() <= share * jnp.abs(xs).max()


def _is_rounding(gaps, xs):
    """Whether all gaps are as small as rounding."""
    return _within(100 * jnp.finfo(gaps.dtype).eps, gaps, xs)


def _iterate(problem: Problem, options: DDPOptions, guess: DDPState, s: DDPState, late: Callable) -> DDPState:
    """One backward pass and one line search; `guess` is the first state, `late` as in `iterated`. Where the last
    iteration has found the iterate stationary, the pass checks whether it is a minimum, and the search tries to leave
    it if it is none."""
    xs, us, gaps, _ = s.iterate
    e, _ = expand(problem, xs, us, gaps)
    station, toward = Stationarity.of(e, e.stage.x, (e.stage.u,), e.terminal.x)
    value = e.stage.value.sum() + e.terminal.value
    # A constant in the cost, and its unit, change nothing.
    sizes = GuessSizes.of(problem, e, station, xs, us, value)
    first = jax.tree.map(lambda a, b: jnp.where(s.iterations == 0, a, b), sizes, s.first)
    scale = jnp.maximum(cost_spread(problem, e, xs, us), LEAST_SCALE * first.scale)
    s = s._replace(first=first)
    free = free_controls(problem.control_box, us, station, options.tolerance)
    policy, regularization, minimal = _regularized_policy(problem, options, s, e, scale, free, late)
    here = s.iterate._replace(cost=value)
    size = jnp.maximum(jnp.maximum(scale, first.scale), jnp.abs(value))
    trial, linear_steps = _search(problem, options, s, e, here, policy, free, jnp.where(size > 0, size, 1.0))
    next_regularization, stuck = _next_regularization(options, regularization, trial, s.feasible)
    station = station._replace(slopes=_free_slopes(problem, us, station.slopes))
    stationarity, promised = station.relative_to(first.slopes), _promised(policy)
    # Where derivatives are not finite after steps of the linear model, roll-outs may lead elsewhere.
    sound = all_finite(e)
    diverged = ~all_finite(value, e.A, xs) | (~sound & (s.linear_steps <= 0))
    endless = falls_endlessly(first.cost, first.scale, value, scale)
    verdict = _judge(options, s, minimal, policy.ok, promised, stationarity, here, trial, scale)
    last, stays = s.iterations + 1 >= options.max_iterations, verdict.solved | verdict.checked
    stuck = stuck & ~stays & (s.checks == 0)
    again = (stuck | ~sound) & (linear_steps > 0) & ~stays & ~diverged & ~endless & ~last
    status = status_after(diverged, verdict.solved, endless, verdict.no_minimum, False, stuck & ~again, last)
    record = IterationRecord(
        cost=value,
        violation=jnp.abs(bound_excess(us, *problem.control_box)).max(),
        gap=jnp.abs(gaps).max(),
        stationarity=stationarity,
        step_length=trial.alpha,
        regularization=regularization,
    )
    report_iteration(options.progress, s.iterations, record, status)
    # A check says how the iterate was left, not how it was reached.
    policy, promised, next_regularization = jax.tree.map(
        lambda a, b: jnp.where(s.checks > 0, a, b),
        (s.policy, jnp.where(verdict.left, jnp.inf, s.promised), s.regularization),
        (policy, promised, next_regularization),
    )
    after = DDPState(
        # The iterate that meets the tolerances is the solution, not the one after it.
        iterate=jax.tree.map(lambda a, b: jnp.where(stays, a, b), here, trial.iterate),
        feasible=s.feasible | (trial.accepted & _is_rounding(trial.iterate.gaps, trial.iterate.xs)),
        linear_steps=linear_steps,
        regularization=next_regularization,
        policy=policy,
        toward=toward,
        promised=promised,
        first=first,
        stationarity=stationarity,
        checks=jnp.where(verdict.checked, s.checks + 1, 0),
        status=status,
        iterations=s.iterations + 1,
        history=None if s.history is None else s.history.stored(s.iterations, record),
    )
    begun = guess._replace(
        linear_steps=jnp.full_like(linear_steps, -1),
        first=first,
        iterations=after.iterations,
        history=after.history,
    )
    return jax.tree.map(lambda a, b: jnp.where(again, a, b), begun, after)


class _Verdict(NamedTuple):
    """The verdict on an iterate."""

    solved: Array
    checked: Array
    """Whether the next iteration checks, or tries to leave, the same iterate."""
    left: Array
    """Whether a check has found a lower cost."""
    no_minimum: Array
    """Whether the iterate is stationary and no minimum, and could not be left."""


def _judge(
    options: DDPOptions, s: DDPState, minimal, ok, promised, stationarity, here: TrajectoryIterate, trial, scale
) -> _Verdict:
    """Return the verdict on the iterate `here`. `minimal` says whether the backward pass has shown that it would be a
    minimum if it were stationary, and `ok` whether the pass has succeeded."""
    eps, checks = jnp.finfo(here.cost.dtype).eps, s.checks > 0
    rounding = 10 * eps * (scale + jnp.abs(here.cost))
    # Where no decrease above rounding is left, more iterations would not make the slopes smaller.
    attainable = jnp.where(promised < rounding, jnp.maximum(options.tolerance, eps**0.4), options.tolerance)
    stationary = s.feasible & (promised <= options.decrease_tolerance * scale) & (stationarity <= attainable) & ~checks
    # A decrease that does not count would be found again and again.
    counts = jnp.maximum(options.decrease_tolerance * scale, rounding)
    left = checks & ~ok & trial.accepted & (here.cost - trial.iterate.cost > counts)
    fails = checks & ~ok & ~left
    no_minimum = fails & (s.checks >= ATTEMPTS)
    return _Verdict((stationary & minimal) | (checks & ok), (stationary & ~minimal) | fails, left, no_minimum)


def _promised(policy: AffinePolicy) -> Array:
    """The decrease that a policy promises, and infinity without one. Regularization hides a part of it, which counts,
    too."""
    promised = jnp.abs(policy.slope + 0.5 * policy.curvature) / jnp.maximum(policy.undamped, 1e-12)
    return jnp.where(policy.ok, promised, jnp.inf)


def _search(
    problem: Problem,
    options: DDPOptions,
    s: DDPState,
    e: Expansion,
    here: TrajectoryIterate,
    policy: AffinePolicy,
    free,
    size,
):
    """The search along the policy, or if the iterate is checked away from it, unless it is a minimum, with steps that
    promise a decrease of at most `size`; and the number of steps of the linear model."""
    checks = s.checks > 0
    leaves, stays = checks & ~policy.ok, policy._replace(ok=policy.ok & ~checks)
    along = lax.cond(leaves, lambda: leaving_policy(policy, free, s.checks, size, e.start), lambda: stays)
    tried = (s.linear_steps >= 0) & ~_within(jnp.finfo(problem.dtype).eps ** SMALL, here.gaps, here.xs)
    linear = where_needed(tried, lambda: linear_step(problem, here, e, along), no_step(here))
    return search(problem, options, here, along, linear), s.linear_steps + linear.accepted


def _free_slopes(problem: Problem, us, slopes):
    """The derivatives by the controls, zero where they press a control against the bound at which it is."""
    low, high = problem.control_box
    return jnp.where(((us <= low) & (slopes > 0)) | ((us >= high) & (slopes < 0)), 0.0, slopes)


def _regularized_policy(
    problem: Problem, options: DDPOptions, s: DDPState, e: Expansion, scale, free, late: Callable
) -> tuple[AffinePolicy, Array, Array]:
    """The policy by a backward pass, the regularization that it took, and whether the pass shows that a stationary
    iterate is a minimum. If the last step promised little, `"adaptive"` and `"finishing"` try all second derivatives,
    and drop those that Gauss-Newton leaves out before they regularize. A check has them and no regularization."""
    (low, high), (xs, us, *_) = problem.control_box, s.iterate
    step_box, checks = (low - us, high - us), s.checks > 0
    adaptive, second, costs = options.drops_second_order & ~checks, checks, (e.stage, e.terminal)
    if options.drops_second_order:
        second = second | (s.promised < options.second_order_below * scale)
    second = second | (options.hessian == "full")
    derivatives = second_order_costs if options.hessian in ("full", "adaptive") else differenced_costs
    toward, none = costates(e.A, e.stage.x, e.terminal.x), jnp.zeros(0, problem.dtype)
    full = lax.cond(second, lambda: derivatives(problem, xs, us, e, toward, none), lambda: costs)
    zero = jnp.diag(jnp.where(checks, curvature_tolerance(s.policy, e.B), 0.0))
    if e.start is not None:
        e = e._replace(start=e.start._replace(curvature=jnp.where(checks, start_tolerance(s.policy, e), 0.0)))

    def attempt(state):
        _, regularization, second, *_ = state
        stage, terminal = jax.tree.map(lambda a, b: jnp.where(second, a, b), full, costs)
        chosen = e._replace(stage=stage._replace(uu=stage.uu + zero), terminal=terminal)
        damping = CurvatureShift(*(regularization * unit for unit in s.first.units))
        if options.backward == "scan" and not problem.bounded:
            policy = backward(chosen, CurvatureShift(*(jnp.where(checks, 0.0, d) for d in damping)))
        else:
            usual = functools.partial(backward_in_box, chosen, damping, *step_box)
            if options.backward == "associative":
                usual = functools.partial(backward_associative, chosen, damping)
            held = HeldControls(free, jnp.zeros_like(us)) if problem.bounded else None
            policy = lax.cond(checks, lambda: backward(chosen, 0.0, held), usual)
        drop = second & adaptive
        more = jnp.where(checks, jnp.inf, jnp.maximum(10 * regularization, options.regularization))
        regularization = jnp.where(policy.ok | drop, regularization, more)
        return policy, regularization, second & ~drop | policy.ok, second, late(policy.slope)

    def goes_on(state):
        return ~state[0].ok & (state[1] <= options.max_regularization) & ~state[-1]

    start = jax.tree.map(jnp.zeros_like, s.policy), s.regularization, second, second, jnp.array(False)
    policy, regularization, _, exact, _ = lax.while_loop(goes_on, attempt, start)
    regularization = jnp.where(checks, 0.0, regularization)
    settled = (regularization * s.first.units.u <= curvature_tolerance(policy, e.B)).all()
    if e.start is not None:
        settled = settled & (regularization * s.first.units.x <= start_tolerance(policy, e)).all()
    # Controls that nothing presses against their bounds are held by a backward pass in a box.
    idle = (free > 0) & ((us <= low) | (us >= high))
    return policy, regularization, policy.ok & exact & settled & ~idle.any()


def _next_regularization(options: DDPOptions, regularization, trial, feasible) -> tuple[Array, Array]:
    """The regularization of the next iteration, and whether it would have to be above its limit."""
    less = jnp.maximum(regularization / 10, options.regularization)
    more = jnp.maximum(regularization * 10, options.regularization)
    # Steps that close a robot's gaps may be short although their direction is right.
    of_gaps = options.regularize_below if options.hessian in ("full", "adaptive") else WITH_GAPS
    short = trial.alpha <= jnp.where(feasible, options.regularize_below, of_gaps)
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
