"""The iterations for problems with constraints: a primal-dual barrier method whose steps are Riccati recursions.

Every iteration takes one Newton step for states, controls and all multipliers together. The dynamics are constraints as
others, so the states move by the linear model and their gaps close as the iterations converge (direct multiple
shooting). The barrier falls, and the multipliers of inequalities are updated, only when the problem with the present
barrier is solved to a tolerance that falls along with it. Besides, the barrier follows a cost that has become much
smaller than that of the guess. A solve in which no step is acceptable, or only tiny ones are, begins anew at most three
times: from states at rest and controls well inside of their bounds, with another barrier, other penalties of
inequalities, and softened equalities. The last time, states are rolled out at first. See `_barrier` for the barrier and
`_filter` for the search. A guess with multipliers needs no barrier at first: see `_active_set`.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn.trajopt._history import History, IterationRecord, report_iteration
from jaxdyn.trajopt._solution import Multipliers, Solution, Status
from jaxdyn.trajopt.ddp._active_set import after_iterate, with_active_set
from jaxdyn.trajopt.ddp._barrier import (
    RowState,
    Sides,
    box_barrier,
    constraint_multipliers,
    inside_box,
    inverse_distances,
    present_multipliers,
    row_barrier,
)
from jaxdyn.trajopt.ddp._clock import iterated
from jaxdyn.trajopt.ddp._constrained_solution import constrained_solution
from jaxdyn.trajopt.ddp._constrained_state import (
    EXACTNESS,
    PATIENCE,
    ActiveSet,
    Best,
    ConstrainedState,
    Errors,
    Scale,
    Watch,
    Watched,
    control_width,
    cost_scale,
    guess_cost_scale,
    least_regularization,
    measure_errors,
    number_of_bounds,
    relative_gap,
    row_scale,
    slope_scales,
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
from jaxdyn.trajopt.ddp._expansion import (
    ConstraintComponents,
    Expansion,
    Stationarity,
    expand,
    without_fixed_controls,
)
from jaxdyn.trajopt.ddp._filter import Filter
from jaxdyn.trajopt.ddp._minimality import leaving_policy
from jaxdyn.trajopt.ddp._newton_step import newton_policy, take_step
from jaxdyn.trajopt.ddp._riccati import AffinePolicy, linear_roll_out
from jaxdyn.trajopt.problem import Problem, bound_excess, join_rows

BARRIER = 2.0
"""The first barrier of each bound, as a multiple of the cost's scale divided by the number of bounds."""
BARRIERS_ANEW = 30.0, 900.0, 1e-2
"""The barriers of new beginnings, as multiples of the first one. With the last one, steps are roll-outs of the policy
until the problem with this barrier is solved."""
SOFTNESS, SOFTNESS_NEAR = 30.0, 1e-4
"""The first `delta` of inequalities, as a part of the square of their size divided by the cost's scale, and the one
near a solution."""
SOFTNESS_ANEW = 1e2, 1e-2, 1.0
"""The same numbers of new beginnings. They differ because some problems are solved with soft inequalities only, and
some with hard ones."""
INSIDE, INSIDE_ANEW = 1e-2, 0.25
"""Smallest distance of the guess's controls from their bounds, relative to their size and range, and the one where a
solve begins anew."""
NEAR, NEARNESS = 0.1, 3.0
"""Largest relative violation of a guess with multipliers that counts as near a solution where steps have no active set,
and the power of this violation that the first barrier is then a multiple of."""
TRIED = 1.0
"""Largest relative violation of a guess with multipliers from which steps with an active set are tried."""
LEAVING, DEPARTURES = 0.1, 2
"""The decrease that a step away from a stationary point that is no minimum promises, relative to the cost, and how
often a solve takes one: to both sides."""
BARRIER_FACTOR, BARRIER_POWER = 0.2, 1.5
"""The next barrier is the smaller of this part of the last one and its power, relative to the cost's scale."""
TOLERANCE_FACTOR = 0.5
"""The next tolerance of a problem with a fixed barrier, as a part of the last one, which starts at 1."""
HARDEST = 1.0
"""The least `delta` that an inequality gets because its violation stays while a problem is not solved, in the units of
`SOFTNESS`."""
DELTA_FACTOR, DELTA_STEP = 0.5, 0.1
"""Factors of `delta` with every update, and with one after which the violation is more than a quarter of what it was
or the barrier has its least value."""
DECREMENT = 0.1
"""Promised decrease, as a part of the barrier for each bound, below which a problem with a fixed barrier is solved."""
SOFT_STEP, SOFT_LIMIT = 0.1, 1e-2
"""Factor of the `delta` of softened equalities with every update, and the relative distance from which on equalities
are not softened any more."""
CREEPING, MEMORY = 1e-2, 0.9
"""Moving average of the step lengths below which a solve begins anew, and the share of the past in it."""
STILL, FEASIBLE = 1e-3, 1e-2
"""A step that displaces the states by less than this part of the largest displacement counts as none, as long as the
relative violation or gap is larger than the second number: a large regularization makes whole steps tiny."""


def run_constrained(problem: Problem, us, xs, multipliers: Multipliers | None, options: DDPOptions) -> Solution:
    """Solve a problem with constraints from a guess."""
    start = _initial_state(problem, options, us, xs, multipliers)
    iterate = functools.partial(_iterate, problem, options, None if multipliers is None else start)
    return constrained_solution(problem, options, iterated(iterate, start, lambda s: s.xs.sum(), options.time_limit))


def _initial_state(problem: Problem, options: DDPOptions, us, xs, multipliers) -> ConstrainedState:
    dtype, ndx = problem.dtype, problem.dynamics.ndx
    xs, us = problem.guess(us, xs)
    # A guess that comes with multipliers may be near a solution, with controls at their bounds.
    us = inside_box(us, problem.control_box, INSIDE if multipliers is None else 1e-5)
    given = constraint_multipliers(problem, multipliers)
    given = join_rows(given.stage, given.terminal)
    shift = Sides(jnp.maximum(-given, 0.0), jnp.maximum(given, 0.0))
    zeros, infinity, zero = jnp.zeros_like(given), jnp.asarray(jnp.inf, dtype), jnp.zeros((), jnp.int32)
    # The parallel scan has no recursion with controls that are held.
    active_set = multipliers is not None and options.backward == "scan"
    start = Watched(
        xs=xs,
        us=us,
        gaps=problem.gaps(xs, us),
        rows=RowState(given, shift, Sides(zeros, zeros), jnp.ones_like(given), jnp.array(False)),
        box=Sides(jnp.zeros_like(us), jnp.zeros_like(us)),
        toward=jnp.zeros((problem.horizon + 1, ndx), dtype),
        filter=Filter.empty(dtype),
    )
    return ConstrainedState(
        **start._asdict(),
        watch=Watch(start, zero),
        barrier=jnp.ones((), dtype),
        regularization=jnp.zeros((), dtype),
        tolerance=jnp.ones((), dtype),
        violation=infinity,
        scale=Scale.unknown(problem, zeros),
        policy=AffinePolicy.zeros(problem.horizon, ndx, problem.dynamics.nu, dtype, problem.free_x0 is not None),
        promised=infinity,
        regularized=jnp.array(False),
        errors=Errors(infinity, infinity, infinity, infinity),
        status=zero,
        iterations=zero,
        updates=zero,
        near=jnp.array(False),
        waited=zero,
        last_regularization=jnp.zeros((), dtype),
        restarts=zero,
        rolls_out=jnp.array(False),
        mean_step_length=jnp.ones((), dtype),
        contradiction=Contradiction.none(dtype),
        first_us=us,
        history=History.empty(options.history, dtype) if options.history else None,
        checks=jnp.array(False),
        departures=zero,
        best=Best(start.xs, start.us, start.gaps, Errors(infinity, infinity, infinity, infinity), infinity),
        active=ActiveSet(jnp.array(True), infinity, zero) if active_set else None,
    )


def _begin(
    problem: Problem, s: ConstrainedState, e: Expansion, rows: ConstraintComponents, warm: bool
) -> ConstrainedState:
    """The state before the first iteration, with the scales, the barrier, `delta`, and the multipliers."""
    station, _ = Stationarity.of(e, e.stage.x, (e.stage.u,), e.terminal.x)
    width = control_width(problem, s.us)
    cost = guess_cost_scale(problem, s, e, station.slopes, width)
    rows_scale = row_scale(problem, rows, e, s.xs, width)
    equal = rows.lower == rows.upper
    distance = jnp.where(equal, rows.value - jnp.where(equal, rows.lower, 0.0), 0.0)
    infeasibility = jnp.abs(s.gaps).sum() + jnp.abs(distance / rows_scale).sum()
    barrier, softness = BARRIER * cost / number_of_bounds(problem, rows), SOFTNESS
    if warm:
        violation = jnp.abs(bound_excess(rows.value, rows.lower, rows.upper)) / rows_scale
        distance = jnp.maximum(violation.max(initial=0.0), relative_gap(problem, s))
        if s.active is None:
            # The nearer to a solution, the smaller the barrier that keeps the iterates near it.
            barrier = barrier * jnp.clip(distance**NEARNESS, 1e-6, 1.0)
            s = s._replace(near=distance <= NEAR)
            softness = jnp.where(s.near, SOFTNESS_NEAR, SOFTNESS)
    slopes = slope_scales(problem, s, station, cost, width)
    first_cost = e.stage.value.sum() + e.terminal.value
    s = s._replace(scale=Scale(cost, first_cost, rows_scale, slopes, infeasibility, barrier, s.scale.displacement))
    s = _with_barrier(problem, s, barrier, rows[:3], softness)
    if not warm:
        return s
    by_x, by_u, by_end = rows.slopes(*problem.split_rows(s.rows.equality))
    station, _ = Stationarity.of(e, e.stage.x + by_x, (e.stage.u, by_u), e.terminal.x + by_end)
    if s.active is None:
        missing = _missing_multipliers(problem, s, station.slopes, barrier / width)
        return s._replace(box=jax.tree.map(lambda a, b: jnp.where(s.near, a, b), missing, s.box))
    active = s.active._replace(on=s.active.on & (distance <= TRIED))
    exact = with_active_set(problem, s, station.slopes)
    return jax.tree.map(lambda a, b: jnp.where(active.on, a, b), exact, s)._replace(active=active)


def _missing_multipliers(problem: Problem, s: ConstrainedState, slopes, least) -> Sides:
    """The multipliers of the controls' bounds with which a guess that has all others is stationary; at least `least`.

    If they came from the barrier and the guess's distances instead, a control that is much nearer to its bound than the
    barrier allows would only double its distance with each step. With these it goes all the way at once."""
    inverse = inverse_distances(s.us, problem.control_box)
    return Sides(
        *(jnp.where(i > 0, jnp.maximum(z, least), 0.0) for i, z in zip(inverse, (slopes, -slopes), strict=True))
    )


def _with_barrier(problem: Problem, s: ConstrainedState, barrier, rows, softness, softened=False):
    """The state with a barrier, and with the penalties and the multipliers in the curvature that belong to it, at
    constraints with the values and bounds `rows`."""
    value, lower, upper = rows
    eps, equal = jnp.finfo(problem.dtype).eps, lower == upper
    of_equality = jnp.where(softened, s.scale.rows**2 / s.scale.cost, eps**EXACTNESS * s.unit_of_delta())
    delta = jnp.where(equal, of_equality, softness * s.unit_of_delta())
    infinity = jnp.full_like(delta, jnp.inf)
    state = s.rows._replace(delta=delta, dual=Sides(infinity, infinity), softened=jnp.asarray(softened))
    dual = row_barrier(value, lower, upper, barrier, state).multipliers
    inverse = inverse_distances(s.us, problem.control_box)
    return s._replace(
        barrier=barrier,
        rows=state._replace(dual=dual),
        box=Sides(barrier * inverse.lower, barrier * inverse.upper),
    )


def _updated(
    problem: Problem,
    options: DDPOptions,
    s: ConstrainedState,
    e,
    rows: ConstraintComponents,
    barrier,
    deviation,
    equality,
):
    """The state with a smaller barrier and new multipliers of the inequalities, where the problem with the present
    barrier is solved to its tolerance."""
    scale = cost_scale(problem, s, e)
    share = scale / number_of_bounds(problem, rows)
    least = 0.1 * options.complementarity_tolerance * share
    near = jnp.maximum(0.1 * s.tolerance, options.constraint_tolerance)
    # A decrease that is small against the barrier itself is as good as a small slope, unless regularization made it so.
    settled = (s.promised < DECREMENT * s.barrier * number_of_bounds(problem, rows)) & ~s.regularized
    # A small barrier around a point that is far from stationary would leave no curvature along its bounds.
    fine = jnp.maximum(jnp.minimum(s.tolerance, jnp.sqrt(s.barrier / share)), 0.5 * options.tolerance)
    solved = ((s.errors.stationarity < fine) | settled) & (s.errors.gap < near)
    solved = solved & (s.rows.softened | (equality < near)) & (deviation <= 10 * s.barrier)
    # Multipliers and barriers that are good enough stay: new ones would only change the slopes again.
    solved = solved & ~s.errors.constraints_within(options)
    smaller = jnp.minimum(BARRIER_FACTOR * s.barrier, (s.barrier / share) ** BARRIER_POWER * share)
    equal = rows.lower == rows.upper
    excess = jnp.abs(bound_excess(rows.value, rows.lower, rows.upper)) / s.scale.rows
    violation = jnp.where(equal, 0.0, excess).max(initial=0.0)
    slow = (violation > 0.25 * s.violation) & (violation > options.constraint_tolerance)
    # Once the barrier is at its least, only the multipliers have to converge, the faster the smaller `delta` is.
    factor = jnp.where(slow | (s.barrier <= 1.01 * least), DELTA_STEP, DELTA_FACTOR)
    # Smaller ones would amplify the rounding of constraints into that of the slopes.
    eps, unit = jnp.finfo(problem.dtype).eps, s.unit_of_delta(scale)
    least_delta = jnp.maximum(eps**EXACTNESS, eps / options.tolerance) * unit
    softened, exact = s.rows.softened & (equality > SOFT_LIMIT), eps**EXACTNESS * unit
    of_equality = jnp.where(softened, jnp.maximum(SOFT_STEP * s.rows.delta, exact), exact)
    delta = jnp.where(equal, of_equality, jnp.maximum(factor * s.rows.delta, least_delta))
    # While inequalities are violated by more than the barrier explains, their multipliers change and the barrier waits.
    waits = violation > jnp.maximum(options.constraint_tolerance, 0.1 * jnp.sqrt(s.barrier / share))
    # A violation that stays meets a larger penalty, unless that is large already; multipliers change in solved problems
    # only.
    hardest = jnp.minimum(jnp.maximum(HARDEST * s.unit_of_delta(), least_delta), s.rows.delta)
    harder_delta = jnp.where(equal, s.rows.delta, jnp.maximum(DELTA_STEP * s.rows.delta, hardest))
    patient = (s.waited < PATIENCE) | (violation <= 1e-2) | solved | (harder_delta == s.rows.delta).all()
    harder = s.with_empty_filter()._replace(
        rows=s.rows._replace(delta=harder_delta),
        waited=jnp.zeros_like(s.waited),
    )
    s = jax.tree.map(lambda a, b: jnp.where(patient, a, b), s._replace(waited=s.waited + 1), harder)
    # The guess may cost much more than a solution; the barrier is a part of what the cost is now.
    fitting = BARRIER * jnp.maximum(share, 1e-3 * s.scale.cost / number_of_bounds(problem, rows))
    lower = (fitting < 0.5 * s.barrier) & (s.errors.gap < 0.1) & (equality < 0.1) & ~solved
    fitted = s.with_empty_filter()._replace(barrier=fitting)
    s = jax.tree.map(lambda a, b: jnp.where(lower, a, b), fitted, s)
    after = s.with_empty_filter()._replace(
        waited=jnp.zeros_like(s.waited),
        barrier=jnp.where(waits | softened, s.barrier, jnp.maximum(smaller, least)),
        rows=s.rows._replace(
            equality=present_multipliers(barrier, s.rows, equal),
            shift=barrier.multipliers,
            delta=delta,
            softened=softened,
        ),
        tolerance=jnp.maximum(TOLERANCE_FACTOR * s.tolerance, 0.5 * options.tolerance),
        violation=violation,
        rolls_out=jnp.array(False),
        updates=s.updates + 1,
    )
    return jax.tree.map(lambda a, b: jnp.where(solved, a, b), after, s)


def _iterate(
    problem: Problem, options: DDPOptions, guess: ConstrainedState | None, s: ConstrainedState, late: Callable
) -> ConstrainedState:
    """One Newton step, with an update of the barrier before it where that is due. `guess` is the first state of a guess
    with multipliers, or None: there the barrier method begins if steps with an active set have failed. `late` as in
    `iterated`."""
    e, rows = expand(problem, s.xs, s.us, s.gaps)
    e, rows = without_fixed_controls(problem, e), rows.without_fixed_controls(problem)
    first = jnp.isinf(s.scale.cost)
    s = jax.tree.map(lambda a, b: jnp.where(first, a, b), _begin(problem, s, e, rows, guess is not None), s)
    exact, bounds = s.by_active_set, (rows.lower, rows.upper)
    barrier = s.barrier_at(rows.value, *bounds)
    errors, toward, deviation, equality = measure_errors(problem, s, e, rows, barrier)
    best = s.best.or_better(s, errors, e.stage.value.sum() + e.terminal.value)
    s = s._replace(errors=errors, toward=jnp.where(first, toward, s.toward), best=best)
    stationary = errors.within(options) | s.checks
    updated = _updated(problem, options, s, e, rows, barrier, deviation, equality)
    s = jax.tree.map(lambda a, b: jnp.where(stationary | exact, a, b), s, updated)
    barrier = s.barrier_at(rows.value, *bounds)
    barrier_box = jnp.where(exact, 0.0, box_barrier(s.us, problem.control_box))
    policy, active, regularization, minimal = newton_policy(problem, options, s, e, rows, barrier, late)
    converged, leaves = stationary & minimal, s.checks & ~minimal & ~exact
    after, alpha, displacement, multipliers = take_step(problem, s, e, rows, barrier, policy, active)
    promised = jnp.abs(policy.slope + 0.5 * policy.curvature)
    grown = jnp.maximum(100 * regularization, least_regularization(s))
    cost = e.stage.value.sum() + e.terminal.value
    finite = jnp.isfinite(cost + barrier.value + barrier_box) & jnp.isfinite(e.A).all() & jnp.isfinite(s.xs).all()
    # Where only derivatives are not finite, no step is possible, and another beginning may lead elsewhere.
    sound = all_finite(e, rows.by_x, rows.by_u, rows.end_by_x)
    still = displacement < STILL * after.scale.displacement
    length = jnp.where(still & (jnp.maximum(errors.violation, errors.gap) > FEASIBLE), 0.0, alpha)
    mean_step_length = MEMORY * s.mean_step_length + (1 - MEMORY) * length
    blocked = (alpha == 0) & (grown > options.max_regularization * s.scale.cost)
    blocked, last = blocked & ~exact, s.iterations + 1 >= options.max_iterations
    change = multipliers - s.rows.known_multipliers(rows.lower == rows.upper)
    proof = contradict(problem, s, e, rows, change) & (errors.violation > options.constraint_tolerance) & ~exact
    contradiction = s.contradiction.after(proof, relative_violation(rows, s.scale.rows))
    hopeless = contradiction.iterations >= HOPELESS
    endless = falls_endlessly(s.scale.first_cost, s.scale.cost, cost, cost_scale(problem, s, e))
    anew = s.restarts < len(BARRIERS_ANEW)
    diverged = ~finite | (~sound & (~anew | last))
    again = (blocked | hopeless | ~sound | (mean_step_length < CREEPING)) & anew & ~stationary
    again = (again | (leaves & (s.departures < DEPARTURES))) & finite & ~endless & ~last
    stuck = blocked & ~anew & ~stationary
    infeasible = (hopeless & (~anew | last)) | (stuck & proof)
    no_minimum = leaves & ~again & ~last
    status = status_after(diverged, converged, endless, no_minimum, infeasible, stuck, last)
    record = IterationRecord(
        cost=cost,
        violation=jnp.abs(bound_excess(rows.value, *bounds)).max(initial=0.0),
        gap=jnp.abs(s.gaps).max(),
        stationarity=errors.stationarity,
        complementarity=errors.complementarity,
        step_length=alpha,
        regularization=regularization,
        barrier=jnp.where(exact, 0.0, s.barrier),
    )
    report_iteration(options.progress, s.iterations, record, status)
    # The iterate that meets the tolerances is the solution, not the one after it.
    after = after._replace(mean_step_length=mean_step_length, contradiction=contradiction)
    stays = stationary | diverged | (status == Status.INFEASIBLE)
    after = jax.tree.map(lambda a, b: jnp.where(stays, a, b), s, after)
    after = lax.cond(again, lambda: _begun_anew(problem, after, e, policy, leaves), lambda: after)
    after = after._replace(
        regularization=jnp.where((alpha == 0) & ~again & ~stationary, grown, 0.0),
        # What blocked a solve says nothing about the one that begins anew.
        last_regularization=jnp.where(again, 0.0, jnp.where(regularization > 0, regularization, s.last_regularization)),
        # A check says nothing about a step.
        policy=jax.tree.map(lambda a, b: jnp.where(s.checks, a, b), s.policy, policy),
        promised=jnp.where(again, jnp.inf, jnp.where(s.checks, s.promised, promised)),
        checks=stationary & ~s.checks,
        regularized=regularization > 0,
        rolls_out=after.rolls_out & (status == Status.RUNNING),
        status=status,
        iterations=s.iterations + 1,
        history=None if s.history is None else s.history.stored(s.iterations, record),
    )
    if guess is None or s.active is None:
        return after
    error = errors.largest(number_of_bounds(problem, rows))
    unproven = s.checks & ~converged
    return after_iterate(s.active, guess, after, error, finite & (alpha > 0), stationary, unproven, last)


def _begun_anew(problem: Problem, s: ConstrainedState, e: Expansion, policy: AffinePolicy, leaves) -> ConstrainedState:
    """The state with states at rest, the guess's controls farther from their bounds, no multipliers, another barrier,
    other penalties of inequalities, softened equalities, and an empty filter; the last time, steps are roll-outs.

    Where the solve `leaves` a stationary point from which a backward pass has failed, it begins beside it, with the
    first barrier and penalties."""
    xs = jnp.broadcast_to(problem.x0.astype(s.xs.dtype), s.xs.shape)
    us = inside_box(s.first_us, problem.control_box, INSIDE_ANEW)
    beside = _beside(problem, s, e, policy)
    xs, us = jax.tree.map(lambda a, b: jnp.where(leaves, a, b), beside, (xs, us))
    gaps = problem.gaps(xs, us)
    rows = s.rows._replace(equality=jnp.zeros_like(s.rows.equality), shift=jax.tree.map(jnp.zeros_like, s.rows.shift))
    anew = s.with_empty_filter()._replace(
        xs=xs,
        us=us,
        gaps=gaps,
        rows=rows,
        toward=jnp.zeros_like(s.toward),
        tolerance=jnp.ones_like(s.tolerance),
        violation=jnp.full_like(s.violation, jnp.inf),
        scale=s.scale._replace(infeasibility=jnp.abs(gaps).sum(), displacement=jnp.zeros_like(s.scale.displacement)),
        waited=jnp.zeros_like(s.waited),
        near=jnp.array(False),
        restarts=s.restarts + ~leaves,
        departures=s.departures + leaves,
        rolls_out=~leaves & (s.restarts + 1 == len(BARRIERS_ANEW)),
        mean_step_length=jnp.ones_like(s.mean_step_length),
        contradiction=Contradiction.none(s.xs.dtype),
    )
    of_restart = jnp.asarray((BARRIERS_ANEW, SOFTNESS_ANEW), problem.dtype)[:, s.restarts]
    factor, softness = jnp.where(leaves, jnp.asarray((1.0, SOFTNESS), problem.dtype), of_restart)
    return _with_barrier(problem, anew, factor * s.scale.barrier, problem.constraints(xs, us), softness, ~leaves)


def _beside(problem: Problem, s: ConstrainedState, e: Expansion, policy: AffinePolicy):
    """States and controls along the direction of negative curvature that a failed backward pass has found."""
    low, high = problem.control_box
    free = (low < high).astype(problem.dtype)
    size = jnp.maximum(s.scale.cost, jnp.abs(e.stage.value.sum() + e.terminal.value))
    along = leaving_policy(policy, free, s.departures + 1, LEAVING * size, e.start)
    dxs, dus = linear_roll_out(e._replace(gaps=jnp.zeros_like(e.gaps)), along)
    xs = jax.vmap(problem.dynamics.integrate)(s.xs, dxs)
    return xs, inside_box(s.us + dus, problem.control_box, INSIDE)
