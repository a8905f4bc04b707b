"""The iterations for problems with constraints: a primal-dual barrier method whose steps are Riccati recursions.

Every iteration takes one Newton step for states, controls and all multipliers together. The dynamics are constraints as
others, so the states move by the linear model and their gaps close as the iterations converge (direct multiple
shooting). The barrier falls, and the multipliers of inequalities are updated, only when the problem with the present
barrier is solved: see `_barrier_update`. A solve in which no step is acceptable begins anew at most three times: see
`_restarts`. See `_barrier` for the barrier and `_step_search` for the search. A guess with multipliers needs no barrier
at first: see `_active_set`.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array
from jaxdyn.trajopt._history import History, IterationRecord, report_iteration
from jaxdyn.trajopt._solution import Multipliers, Solution, Status
from jaxdyn.trajopt.ddp._active_set import after_iterate, with_active_set
from jaxdyn.trajopt.ddp._barrier import (
    RowState,
    Sides,
    box_barrier,
    constraint_multipliers,
    inside_box,
)
from jaxdyn.trajopt.ddp._barrier_update import BARRIER, updated
from jaxdyn.trajopt.ddp._clock import iterated
from jaxdyn.trajopt.ddp._constrained_solution import constrained_solution
from jaxdyn.trajopt.ddp._constrained_state import (
    ActiveSet,
    BarrierProblem,
    Beginning,
    Best,
    ConstrainedState,
    Errors,
    LastStep,
    PrimalDualIterate,
    Scale,
    Watch,
    control_width,
    cost_scale,
    guess_cost_scale,
    least_regularization,
    measure_errors,
    number_of_bounds,
    relative_gap,
    row_scale,
)
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._endings import (
    HOPELESS,
    Contradiction,
    all_finite,
    contradict,
    falls_endlessly,
    relative_violation,
    status_after,
)
from jaxdyn.trajopt.ddp._expansion import ConstraintComponents, Expansion, Stationarity, expand, without_fixed_controls
from jaxdyn.trajopt.ddp._newton_step import newton_policy, take_step
from jaxdyn.trajopt.ddp._restarts import BARRIERS_ANEW, DEPARTURES, INSIDE, SOFTNESS, begun_anew, with_barrier
from jaxdyn.trajopt.ddp._riccati import AffinePolicy
from jaxdyn.trajopt.problem import Problem, bound_excess, join_rows

TRIED = 1.0
"""Largest relative violation of a guess with multipliers from which steps with an active set are tried."""


def run_constrained(problem: Problem, us, xs, multipliers: Multipliers | None, options: DDPOptions) -> Solution:
    """Solve a problem with constraints from a guess."""
    start = _initial_state(problem, options, us, xs, multipliers)
    iterate = functools.partial(_iterate, problem, options, None if multipliers is None else start)
    return constrained_solution(problem, options, iterated(iterate, start, lambda s: s.at.xs.sum(), options.time_limit))


def _initial_state(problem: Problem, options: DDPOptions, us, xs, multipliers) -> ConstrainedState:
    dtype, ndx = problem.dtype, problem.dynamics.ndx
    xs, us = problem.guess(us, xs)
    # A guess that comes with multipliers may be near a solution, with controls at their bounds.
    us = inside_box(us, problem.control_box, INSIDE if multipliers is None else 1e-5)
    given = constraint_multipliers(problem, multipliers)
    given = join_rows(given.stage, given.terminal)
    shift = Sides(jnp.maximum(-given, 0.0), jnp.maximum(given, 0.0))
    zeros, infinity, zero = jnp.zeros_like(given), jnp.asarray(jnp.inf, dtype), jnp.zeros((), jnp.int32)
    start = PrimalDualIterate(
        xs=xs,
        us=us,
        gaps=problem.gaps(xs, us),
        rows=RowState(given, shift, Sides(zeros, zeros), jnp.ones_like(given)),
        box=Sides(jnp.zeros_like(us), jnp.zeros_like(us)),
        toward=jnp.zeros((problem.horizon + 1, ndx), dtype),
    )
    one, none, no = jnp.ones((), dtype), jnp.zeros((), dtype), jnp.array(False)
    slopes, errors = jnp.zeros(problem.dynamics.nu, dtype), Errors(infinity, infinity, infinity, infinity)
    policy = AffinePolicy.zeros(problem.horizon, ndx, problem.dynamics.nu, dtype)
    return ConstrainedState(
        at=start,
        watch=Watch(start, infinity, infinity, zero),
        phase=BarrierProblem(barrier=one, tolerance=one, violation=infinity, waited=zero, updates=zero),
        last=LastStep(policy, promised=infinity, regularization=none),
        beginning=Beginning(us, zero, zero, Contradiction.none(dtype)),
        scale=Scale(infinity, infinity, zeros, slopes, infinity, barrier=infinity, displacement=none),
        errors=errors,
        best=Best(start.xs, start.us, start.gaps, errors, infinity),
        checks=no,
        active=None if multipliers is None else ActiveSet(jnp.array(True), infinity, zero),
        status=zero,
        iterations=zero,
        history=History.empty(options.history, dtype) if options.history else None,
    )


def _begin(problem: Problem, s: ConstrainedState, e: Expansion, rows: ConstraintComponents) -> ConstrainedState:
    """The state before the first iteration, with the scales, the barrier, `delta`, and the multipliers."""
    station, _ = Stationarity.of(e, e.stage.x, (e.stage.u,), e.terminal.x)
    width = control_width(problem, s.at.us)
    cost = guess_cost_scale(problem, s, e, station.slopes, width)
    rows_scale = row_scale(problem, rows, e, s.at.xs, width)
    equal = rows.lower == rows.upper
    distance = jnp.where(equal, rows.value - jnp.where(equal, rows.lower, 0.0), 0.0)
    infeasibility = jnp.abs(s.at.gaps).sum() + jnp.abs(distance / rows_scale).sum()
    barrier = BARRIER * cost / number_of_bounds(problem, rows)
    # Costates of a guess that diverges are no measure either: with them, any slope would be small.
    largest = (cost / width).min(axis=0)
    # Slopes of rounding, as where only constraints matter, are no measure, either.
    known = station.size > 100 * jnp.finfo(problem.dtype).eps * largest
    slopes = jnp.where(known, jnp.minimum(station.size, largest), largest)
    first_cost = e.stage.value.sum() + e.terminal.value
    s = s._replace(scale=Scale(cost, first_cost, rows_scale, slopes, infeasibility, barrier, s.scale.displacement))
    s = with_barrier(problem, s, barrier, rows[:3], SOFTNESS)
    if s.active is None:
        return s
    violation = jnp.abs(bound_excess(rows.value, rows.lower, rows.upper)) / rows_scale
    distance = jnp.maximum(violation.max(initial=0.0), relative_gap(problem, s))
    by_x, by_u, by_end = rows.slopes(*problem.split_rows(s.at.rows.equality))
    station, _ = Stationarity.of(e, e.stage.x + by_x, (e.stage.u, by_u), e.terminal.x + by_end)
    active = s.active._replace(on=s.active.on & (distance <= TRIED))
    exact = with_active_set(problem, s, station.slopes)
    return jax.tree.map(lambda a, b: jnp.where(active.on, a, b), exact, s)._replace(active=active)


def _iterate(
    problem: Problem, options: DDPOptions, guess: ConstrainedState | None, s: ConstrainedState, late: Callable
) -> ConstrainedState:
    """One Newton step, with an update of the barrier before it where that is due. `guess` is the first state of a guess
    with multipliers, or None: there the barrier method begins if steps with an active set have failed. `late` as in
    `iterated`."""
    e, rows = expand(problem, s.at.xs, s.at.us, s.at.gaps)
    e, rows = without_fixed_controls(problem, e), rows.without_fixed_controls(problem)
    first = jnp.isinf(s.scale.cost)
    s = jax.tree.map(lambda a, b: jnp.where(first, a, b), _begin(problem, s, e, rows), s)
    exact, bounds = s.by_active_set, (rows.lower, rows.upper)
    barrier = s.barrier_at(rows.value, *bounds)
    errors, toward, equality = measure_errors(problem, s, e, rows, barrier)
    best = s.best.or_better(s, errors, e.stage.value.sum() + e.terminal.value)
    s = s.moved(toward=jnp.where(first, toward, s.at.toward))._replace(errors=errors, best=best)
    stationary = errors.within(options) | s.checks
    phase = updated(problem, options, s, e, rows, barrier, equality)
    s = jax.tree.map(lambda a, b: jnp.where(stationary | exact, a, b), s, phase)
    barrier = s.barrier_at(rows.value, *bounds)
    barrier_box = jnp.where(exact, 0.0, box_barrier(s.at.us, problem.control_box))
    policy, active, regularization, minimal = newton_policy(problem, options, s, e, rows, barrier, late)
    after, alpha, multipliers = take_step(problem, s, e, rows, barrier, policy, active)
    promised = jnp.abs(policy.slope + 0.5 * policy.curvature)
    grown = jnp.maximum(100 * regularization, least_regularization(s))
    cost = e.stage.value.sum() + e.terminal.value
    finite = jnp.isfinite(cost + barrier.value + barrier_box) & jnp.isfinite(e.A).all() & jnp.isfinite(s.at.xs).all()
    sound = all_finite(e, rows.by_x, rows.by_u, rows.end_by_x)
    change = multipliers - s.at.rows.known_multipliers(rows.lower == rows.upper)
    proof = contradict(problem, s.at.us, e, rows, change) & (errors.violation > options.constraint_tolerance) & ~exact
    contradiction = s.beginning.contradiction.after(proof, relative_violation(rows, s.scale.rows))
    endless = falls_endlessly(s.scale.first_cost, s.scale.cost, cost, cost_scale(problem, s, e))
    last = s.iterations + 1 >= options.max_iterations
    blocked = (alpha == 0) & (grown > options.max_regularization * s.scale.cost) & ~exact
    hopeless = contradiction.iterations >= HOPELESS
    again, status = _verdict(s, stationary, minimal, finite, sound, endless, blocked, hopeless, proof, last)
    record = _record(s, errors, rows, cost, alpha, regularization)
    report_iteration(options.progress, s.iterations, record, status)
    # The iterate that meets the tolerances is the solution, not the one after it.
    after = after._replace(beginning=after.beginning._replace(contradiction=contradiction))
    stays = stationary | (status == Status.DIVERGED) | (status == Status.INFEASIBLE)
    after = jax.tree.map(lambda a, b: jnp.where(stays, a, b), s, after)
    after = lax.cond(again, lambda: begun_anew(problem, after, e, policy, s.checks & ~minimal), lambda: after)
    step = LastStep(
        # A check says nothing about a step.
        policy=jax.tree.map(lambda a, b: jnp.where(s.checks, a, b), s.last.policy, policy),
        promised=jnp.where(again, jnp.inf, jnp.where(s.checks, s.last.promised, promised)),
        regularization=jnp.where((alpha == 0) & ~again & ~stationary, grown, 0.0),
    )
    after = after._replace(
        last=step,
        checks=stationary & ~s.checks,
        status=status,
        iterations=s.iterations + 1,
        history=None if s.history is None else s.history.stored(s.iterations, record),
    )
    if guess is None or s.active is None:
        return after
    error = errors.largest(number_of_bounds(problem, rows))
    unproven = s.checks & ~minimal
    return after_iterate(s.active, guess, after, error, finite & (alpha > 0), stationary, unproven, last)


def _record(s: ConstrainedState, errors, rows: ConstraintComponents, cost, alpha, regularization) -> IterationRecord:
    """The row of the history for an iteration from the state `s`."""
    return IterationRecord(
        cost=cost,
        violation=jnp.abs(bound_excess(rows.value, rows.lower, rows.upper)).max(initial=0.0),
        gap=jnp.abs(s.at.gaps).max(),
        stationarity=errors.stationarity,
        complementarity=errors.complementarity,
        step_length=alpha,
        regularization=regularization,
        barrier=jnp.where(s.by_active_set, 0.0, s.phase.barrier),
    )


def _verdict(
    s: ConstrainedState, stationary, minimal, finite, sound, endless, blocked, hopeless, proof, last
) -> tuple[Array, Array]:
    """Whether the solve begins anew, and its status. No step is possible where it is `blocked`, or where derivatives
    are not `sound`; `proof` says that constraints contradict each other, and `hopeless` that they have for long."""
    anew, leaves = s.beginning.restarts < len(BARRIERS_ANEW), s.checks & ~minimal & ~s.by_active_set
    # Where only derivatives are not finite, another beginning may lead elsewhere.
    diverged = ~finite | (~sound & (~anew | last))
    again = (blocked | hopeless | ~sound) & anew & ~stationary
    again = (again | (leaves & (s.beginning.departures < DEPARTURES))) & finite & ~endless & ~last
    stuck = blocked & ~anew & ~stationary
    infeasible = (hopeless & (~anew | last)) | (stuck & proof)
    no_minimum = leaves & ~again & ~last
    return again, status_after(diverged, stationary & minimal, endless, no_minimum, infeasible, stuck, last)
