"""The iterations for problems with constraints: a primal-dual barrier method whose steps are Riccati recursions.

Every iteration takes one Newton step for states, controls and all multipliers together. The dynamics are constraints as
others, so the states move by the linear model and their gaps close as the iterations converge (direct multiple
shooting). The barrier falls, and the multipliers of inequalities are updated, only when the problem with the present
barrier is solved to a tolerance that falls along with it. See `_barrier` for the barrier and `_filter` for the search.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.trajopt._history import History, IterationRecord, report_iteration
from jaxdyn.trajopt._solution import Gains, Multipliers, Residuals, Solution, Status
from jaxdyn.trajopt.ddp._barrier import (
    RowBarrier,
    RowState,
    Sides,
    box_barrier,
    constraint_multipliers,
    inside_box,
    inverse_distances,
    row_barrier,
)
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._differences import differenced_costs
from jaxdyn.trajopt.ddp._expansion import Expansion, Rows, Stationarity, expand, matvec, second_order_costs
from jaxdyn.trajopt.ddp._filter import Filter, Point, search
from jaxdyn.trajopt.ddp._riccati import HeldControls, Policy, backward, backward_associative, linear_roll_out
from jaxdyn.trajopt.problem import Problem, bound_excess, join_rows

BARRIER = 0.1
"""The first barrier, as a part of the cost's scale for each bound."""
BARRIER_FACTOR, BARRIER_POWER = 0.2, 1.5
"""The next barrier is the smaller of this part of the last one and its power, relative to the cost's scale."""
TOLERANCE_FACTOR = 0.5
"""The next tolerance of a problem with a fixed barrier, as a part of the last one, which starts at 1."""
SOFTNESS = 100.0
"""The first `delta` of inequalities, as a part of the square of their size divided by the cost's scale."""
DELTA_FACTOR, DELTA_STEP = 0.5, 0.1
"""Factors of `delta` with every update, and where an update has not reduced the violation to a quarter."""
DECREMENT = 0.1
"""Promised decrease, as a part of the barrier for each bound, below which a problem with a fixed barrier is solved."""
PATIENCE = 10
"""Number of iterations after which a large violation of an inequality meets a larger penalty."""
RESTARTS = 2
"""Number of times that a solve begins anew where no step is acceptable."""
NEAREST = 0.99
"""Part of the distance from a control's bound that a step may take."""
JAMMED = 0.1
"""Part of a step below which single controls are cut at their bounds, instead of the whole step."""


class Scale(NamedTuple):
    """The sizes of a problem's quantities at the guess, to which tolerances are relative."""

    cost: Float[Array, ""]
    rows: Float[Array, "rows"]
    slopes: Float[Array, "nu"]
    infeasibility: Float[Array, ""]
    barrier: Float[Array, ""]


class Errors(NamedTuple):
    """The distances from the conditions of optimality, each relative to its scale."""

    stationarity: Any
    violation: Any
    gap: Any
    complementarity: Any
    """Largest product of a multiplier and the distance from its bound, relative to the cost and one bound's share."""


class ConstrainedState(NamedTuple):
    """The state of a solve between two iterations."""

    xs: Array
    us: Array
    gaps: Array
    rows: RowState
    box: Sides
    """Multipliers of the controls' bounds, both positive."""
    toward: Array
    """Multipliers of the steps."""
    barrier: Array
    regularization: Array
    filter: Filter
    tolerance: Array
    violation: Array
    """Largest relative violation at the last update of the barrier."""
    scale: Scale
    policy: Policy
    promised: Array
    errors: Errors
    status: Array
    iterations: Array
    updates: Array
    waited: Array
    """Iterations since the last change of the penalty or update of the barrier."""
    last_regularization: Array
    """The last one that was needed; zero where none was."""
    restarts: Array
    """Number of times that a stuck solve began anew."""
    history: History | None


def run_constrained(problem: Problem, us, xs, multipliers: Multipliers | None, options: DDPOptions) -> Solution:
    """Solve a problem with constraints from a guess."""
    start = _initial_state(problem, options, us, xs, multipliers)
    iterate = functools.partial(_iterate, problem, options, multipliers is not None)
    return _solution(problem, lax.while_loop(lambda s: s.status == Status.RUNNING, iterate, start))


def _initial_state(problem: Problem, options: DDPOptions, us, xs, multipliers) -> ConstrainedState:
    dtype, ndx = problem.dtype, problem.dynamics.ndx
    xs, us = problem.guess(us, xs)
    # A guess that comes with multipliers may be near a solution, with controls at their bounds.
    us = inside_box(us, problem.control_box, 1e-2 if multipliers is None else 1e-5)
    given = constraint_multipliers(problem, multipliers)
    given = join_rows(given.stage, given.terminal)
    shift = Sides(jnp.maximum(-given, 0.0), jnp.maximum(given, 0.0))
    zeros, infinity, zero = jnp.zeros_like(given), jnp.asarray(jnp.inf, dtype), jnp.zeros((), jnp.int32)
    return ConstrainedState(
        xs=xs,
        us=us,
        gaps=problem.gaps(xs, us),
        rows=RowState(given, shift, Sides(zeros, zeros), jnp.ones_like(given)),
        box=Sides(jnp.zeros_like(us), jnp.zeros_like(us)),
        toward=jnp.zeros((problem.horizon + 1, ndx), dtype),
        barrier=jnp.ones((), dtype),
        regularization=jnp.zeros((), dtype),
        filter=Filter.empty(dtype),
        tolerance=jnp.ones((), dtype),
        violation=infinity,
        scale=Scale(infinity, zeros, jnp.zeros(problem.dynamics.nu, dtype), infinity, infinity),
        policy=Policy.zeros(problem.horizon, ndx, problem.dynamics.nu, dtype),
        promised=infinity,
        errors=Errors(infinity, infinity, infinity, infinity),
        status=zero,
        iterations=zero,
        updates=zero,
        waited=zero,
        last_regularization=jnp.zeros((), dtype),
        restarts=zero,
        history=History.empty(options.history, dtype) if options.history else None,
    )


def _number_of_bounds(problem: Problem, rows: Rows):
    """The number of inequalities: finite bounds of components and of controls that differ."""
    pairs = ((rows.lower, rows.upper), problem.control_box)
    finite = [jnp.isfinite(b) & (low != high) for low, high in pairs for b in (low, high)]
    return jnp.maximum(sum(f.sum() for f in finite), 1).astype(problem.dtype)


def _begin(problem: Problem, s: ConstrainedState, e: Expansion, rows: Rows, near: bool) -> ConstrainedState:
    """The state before the first iteration, with the scales, the barrier, `delta`, and the multipliers."""
    eps = jnp.finfo(problem.dtype).eps
    low, high = problem.control_box
    cost = e.stage.value.sum() + e.terminal.value
    # How much the cost can change by the controls, to second order: the cost itself may be zero at the guess.
    station, _ = Stationarity.of(e, e.stage.x, (e.stage.u,), e.terminal.x)
    width = jnp.where(jnp.isfinite(high - low), high - low, 1 + jnp.abs(s.us))
    curvature = jnp.abs(jnp.diagonal(e.stage.uu, axis1=1, axis2=2))
    change = (jnp.abs(station.slopes) * width + 0.5 * curvature * width**2).sum()
    cost = jnp.maximum(jnp.abs(cost), 0.01 * change)
    cost = jnp.clip(jnp.nan_to_num(cost, posinf=jnp.inf), eps, eps**-0.6)
    rows_scale = _row_scale(problem, rows)
    equal = rows.lower == rows.upper
    distance = jnp.where(equal, rows.value - jnp.where(equal, rows.lower, 0.0), 0.0)
    infeasibility = jnp.abs(s.gaps).sum() + jnp.abs(distance).sum()
    barrier = BARRIER * cost / _number_of_bounds(problem, rows)
    if near:
        # The nearer to a solution, the smaller the barrier that keeps the iterates near it.
        violation = jnp.abs(bound_excess(rows.value, rows.lower, rows.upper)) / rows_scale
        distance = jnp.maximum(violation.max(initial=0.0), _relative_gap(problem, s))
        barrier = barrier * jnp.clip(distance, 1e-6, 1.0)
    soft = SOFTNESS * jnp.maximum(rows_scale, 0.1 * rows_scale.max(initial=0.0)) ** 2
    delta = jnp.where(equal, eps**0.5, soft) / cost
    state = s.rows._replace(delta=delta, dual=Sides(jnp.full_like(delta, jnp.inf), jnp.full_like(delta, jnp.inf)))
    dual = row_barrier(rows.value, rows.lower, rows.upper, barrier, state).multipliers
    inverse = inverse_distances(s.us, problem.control_box)
    return s._replace(
        scale=Scale(cost, rows_scale, station.size, infeasibility, barrier),
        barrier=barrier,
        rows=state._replace(dual=dual),
        box=Sides(barrier * inverse.lower, barrier * inverse.upper),
    )


def _row_scale(problem: Problem, rows: Rows) -> Float[Array, "rows"]:
    """The size of each component of the constraints: of its values and finite bounds, over all stages."""
    size = jnp.abs(rows.value)
    for bound in (rows.lower, rows.upper):
        size = jnp.maximum(size, jnp.where(jnp.isfinite(bound), jnp.abs(bound), 0.0))
    has = jnp.isfinite(rows.lower) | jnp.isfinite(rows.upper)
    stage, end = problem.split_rows(jnp.where(has, size, 0.0))
    size = join_rows(jnp.broadcast_to(stage.max(axis=0, initial=0.0), stage.shape), end)
    largest = size.max(initial=0.0)
    return jnp.where(largest > 0, jnp.maximum(size, 1e-3 * largest), 1.0)


def _relative_gap(problem: Problem, s: ConstrainedState) -> Float[Array, ""]:
    """The largest gap, relative to how far its component moves."""
    moved = jax.vmap(problem.dynamics.difference, in_axes=(None, 0))(s.xs[0], s.xs)
    span = jnp.maximum(jnp.abs(moved).max(axis=0), jnp.abs(s.gaps).max(axis=0))
    span = jnp.maximum(jnp.maximum(span, 1e-3 * span.max()), jnp.finfo(span.dtype).tiny)
    return (jnp.abs(s.gaps) / span).max()


def _errors(problem: Problem, s: ConstrainedState, e: Expansion, rows: Rows, barrier: RowBarrier):
    """The errors with the present multipliers, the costates, the largest deviation of a product of a control's
    multiplier and distance from the barrier, and the relative violation of equalities."""
    equal = rows.lower == rows.upper
    multipliers = problem.split_rows(jnp.where(equal, s.rows.equality, barrier.slope))
    by_x, by_u, by_end = rows.slopes(*multipliers)
    u_terms = e.stage.u, by_u, s.box.upper - s.box.lower
    station, toward = Stationarity.of(e, e.stage.x + by_x, u_terms, e.terminal.x + by_end)
    excess = jnp.abs(bound_excess(rows.value, rows.lower, rows.upper)) / s.scale.rows

    def products(multiplier, distance, bound):
        return jnp.where(jnp.isfinite(bound) & ~equal, multiplier * jnp.abs(distance), 0.0).max(initial=0.0)

    of_rows = jnp.maximum(
        products(barrier.multipliers.lower, rows.value - rows.lower, rows.lower),
        products(barrier.multipliers.upper, rows.upper - rows.value, rows.upper),
    )
    inverse = inverse_distances(s.us, problem.control_box)
    of_box = [jnp.where(i > 0, z / jnp.where(i > 0, i, 1.0), jnp.nan) for z, i in zip(s.box, inverse, strict=True)]
    largest = jnp.nanmax(jnp.stack([jnp.nan_to_num(p) for p in of_box]), initial=0.0)
    deviation = jnp.nanmax(jnp.stack([jnp.nan_to_num(jnp.abs(p - s.barrier)) for p in of_box]), initial=0.0)
    share = _cost_scale(s, e) / _number_of_bounds(problem, rows)
    errors = Errors(
        station.relative_to(s.scale.slopes),
        excess.max(initial=0.0),
        _relative_gap(problem, s),
        jnp.maximum(of_rows, largest) / share,
    )
    return errors, toward, deviation, jnp.where(equal, excess, 0.0).max(initial=0.0)


def _cost_scale(s: ConstrainedState, e: Expansion):
    return jnp.maximum(jnp.abs(e.stage.value.sum() + e.terminal.value), 1e-6 * s.scale.cost)


def _updated(problem: Problem, options: DDPOptions, s: ConstrainedState, e, rows: Rows, barrier, deviation, equality):
    """The state with a smaller barrier and new multipliers of the inequalities, where the problem with the present
    barrier is solved to its tolerance."""
    share = _cost_scale(s, e) / _number_of_bounds(problem, rows)
    least = options.complementarity_tolerance * share
    near = jnp.maximum(0.1 * s.tolerance, options.constraint_tolerance)
    # A decrease that is small against the barrier itself is as good as a small slope.
    promised = s.promised * (1 + jnp.abs(e.stage.value.sum() + e.terminal.value))
    settled = promised < DECREMENT * s.barrier * _number_of_bounds(problem, rows)
    solved = ((s.errors.stationarity < s.tolerance) | settled) & (s.errors.gap < near) & (equality < near)
    solved = solved & (deviation <= 10 * s.barrier)
    smaller = jnp.minimum(BARRIER_FACTOR * s.barrier, (s.barrier / share) ** BARRIER_POWER * share)
    equal = rows.lower == rows.upper
    excess = jnp.abs(bound_excess(rows.value, rows.lower, rows.upper)) / s.scale.rows
    violation = jnp.where(equal, 0.0, excess).max(initial=0.0)
    slow = (violation > 0.25 * s.violation) & (violation > options.constraint_tolerance)
    factor = jnp.where(slow, DELTA_STEP, DELTA_FACTOR)
    least_delta = jnp.finfo(problem.dtype).eps ** 0.5 / s.scale.cost
    delta = jnp.where(equal, s.rows.delta, jnp.maximum(factor * s.rows.delta, least_delta))
    # While inequalities are violated by more than the barrier explains, their multipliers change and the barrier waits.
    waits = violation > jnp.maximum(options.constraint_tolerance, 0.1 * jnp.sqrt(s.barrier / share))
    # A violation that stays meets a larger penalty; multipliers change in solved problems only.
    patient = (s.waited < PATIENCE) | (violation <= 1e-2) | solved
    harder = s._replace(
        rows=s.rows._replace(delta=jnp.where(equal, s.rows.delta, jnp.maximum(DELTA_STEP * s.rows.delta, least_delta))),
        filter=Filter.empty(problem.dtype),
        waited=jnp.zeros_like(s.waited),
    )
    s = jax.tree.map(lambda a, b: jnp.where(patient, a, b), s._replace(waited=s.waited + 1), harder)
    after = s._replace(
        waited=jnp.zeros_like(s.waited),
        barrier=jnp.where(waits, s.barrier, jnp.maximum(smaller, least)),
        rows=s.rows._replace(shift=barrier.multipliers, delta=delta),
        tolerance=jnp.maximum(TOLERANCE_FACTOR * s.tolerance, 0.5 * options.tolerance),
        violation=violation,
        filter=Filter.empty(problem.dtype),
        updates=s.updates + 1,
    )
    return jax.tree.map(lambda a, b: jnp.where(solved, a, b), after, s)


def _iterate(problem: Problem, options: DDPOptions, near: bool, s: ConstrainedState) -> ConstrainedState:
    """One Newton step, with an update of the barrier before it where that is due."""
    e, rows = expand(problem, s.xs, s.us, s.gaps)
    first = s.iterations == 0
    s = jax.tree.map(lambda a, b: jnp.where(first, a, b), _begin(problem, s, e, rows, near), s)
    bounds = rows.lower, rows.upper
    barrier = row_barrier(rows.value, *bounds, s.barrier, s.rows)
    errors, toward, deviation, equality = _errors(problem, s, e, rows, barrier)
    s = s._replace(errors=errors, toward=jnp.where(first, toward, s.toward))
    converged = (
        (errors.stationarity <= options.tolerance)
        & (errors.violation <= options.constraint_tolerance)
        & (errors.gap <= options.constraint_tolerance)
        & (errors.complementarity <= 10 * options.complementarity_tolerance)
    )
    updated = _updated(problem, options, s, e, rows, barrier, deviation, equality)
    s = jax.tree.map(lambda a, b: jnp.where(converged, a, b), s, updated)
    barrier = row_barrier(rows.value, *bounds, s.barrier, s.rows)
    barrier_box = box_barrier(s.us, problem.control_box)
    policy, regularization = _newton_policy(problem, options, s, e, rows, barrier)
    after, alpha = _take_step(problem, s, e, rows, barrier, policy)
    grown = jnp.maximum(100 * regularization, _least_regularization(s))
    cost = e.stage.value.sum() + e.terminal.value
    finite = jnp.isfinite(cost + barrier.value + barrier_box) & jnp.isfinite(e.A).all() & jnp.isfinite(s.xs).all()
    blocked = (alpha == 0) & (grown > options.max_regularization * s.scale.cost)
    stuck = blocked & (s.restarts >= RESTARTS)
    status = jnp.select(
        [~finite, converged, stuck, s.iterations + 1 >= options.max_iterations],
        [Status.DIVERGED, Status.CONVERGED, Status.STALLED, Status.OUT_OF_ITERATIONS],
        Status.RUNNING,
    ).astype(jnp.int32)
    violation = jnp.abs(bound_excess(rows.value, *bounds)).max(initial=0.0)
    record = IterationRecord(
        cost=cost,
        violation=violation,
        gap=jnp.abs(s.gaps).max(),
        stationarity=errors.stationarity,
        complementarity=errors.complementarity,
        step_length=alpha,
        regularization=regularization,
        barrier=s.barrier,
    )
    report_iteration(options.progress, s.iterations, record, status)
    # The iterate that meets the tolerances is the solution, not the one after it.
    after = jax.tree.map(lambda a, b: jnp.where(converged | ~finite, a, b), s, after)
    after = jax.tree.map(lambda a, b: jnp.where(blocked, a, b), _begun_anew(problem, after), after)
    return after._replace(
        regularization=jnp.where(blocked, 0.0, jnp.where(alpha == 0, grown, 0.0)),
        last_regularization=jnp.where(regularization > 0, regularization, s.last_regularization),
        policy=policy,
        promised=jnp.abs(policy.slope + 0.5 * policy.curvature) / (1 + jnp.abs(cost)),
        status=status,
        iterations=s.iterations + 1,
        history=None if s.history is None else s.history.stored(s.iterations, record),
    )


def _begun_anew(problem: Problem, s: ConstrainedState) -> ConstrainedState:
    """The state with an empty filter, a larger barrier, and inequalities without multipliers."""
    barrier = jnp.maximum(s.barrier, 0.1 * s.scale.barrier)
    inverse = inverse_distances(s.us, problem.control_box)
    nothing = jax.tree.map(jnp.zeros_like, s.rows.shift)
    return s._replace(
        barrier=barrier,
        rows=s.rows._replace(shift=nothing),
        box=Sides(barrier * inverse.lower, barrier * inverse.upper),
        filter=Filter.empty(problem.dtype),
        tolerance=jnp.ones_like(s.tolerance),
        restarts=s.restarts + 1,
    )


def _least_regularization(s: ConstrainedState):
    """The smallest regularization that is not zero."""
    return 1e-6 * s.scale.cost


def _newton_policy(problem: Problem, options: DDPOptions, s, e: Expansion, rows: Rows, barrier: RowBarrier):
    """The policy of the Newton step, and the regularization with which its curvatures are positive definite."""
    second = jnp.asarray(options.hessian == "full")
    if options.drops_second_order:
        second = s.promised < options.second_order_below
    stage, end = e.stage, e.terminal
    if options.hessian != "gauss_newton":
        multipliers = jnp.where(rows.lower == rows.upper, s.rows.equality, barrier.slope)
        derivatives = differenced_costs if options.hessian == "finishing" else second_order_costs
        stage, end = lax.cond(
            second,
            lambda: derivatives(problem, s.xs, s.us, e, s.toward, multipliers),
            lambda: (e.stage, e.terminal),
        )
    stage, end = rows.add_to(stage, end, problem.split_rows(barrier.slope), problem.split_rows(barrier.curvature))
    inverse = inverse_distances(s.us, problem.control_box)
    curvature = s.box.lower * inverse.lower + s.box.upper * inverse.upper
    stage = stage._replace(
        u=stage.u + s.barrier * (inverse.upper - inverse.lower), uu=stage.uu + jax.vmap(jnp.diag)(curvature)
    )
    system = e._replace(stage=stage, terminal=end)
    low, high = problem.control_box
    held = HeldControls((low < high).astype(problem.dtype), jnp.zeros_like(low)) if problem.bounded else None

    def attempt(state):
        _, regularization = state
        if options.backward == "associative":
            policy = backward_associative(system, regularization)
        else:
            policy = backward(system, regularization, held)
        first = jnp.where(s.last_regularization > 0, s.last_regularization / 3, _least_regularization(s))
        more = jnp.where(regularization > 0, 8 * regularization, first)
        return policy, jnp.where(policy.ok, regularization, more)

    state = jax.tree.map(jnp.zeros_like, s.policy), s.regularization
    limit = options.max_regularization * s.scale.cost
    return lax.while_loop(lambda state: ~state[0].ok & (state[1] <= limit), attempt, state)


def _take_step(problem: Problem, s: ConstrainedState, e: Expansion, rows: Rows, barrier: RowBarrier, policy: Policy):
    """The state after the longest acceptable part of the policy's step, and that part; zero where none is."""
    box = problem.control_box
    dxs, dus = linear_roll_out(e, policy)
    inverse = inverse_distances(s.us, box)
    near = Sides(
        jnp.where(inverse.lower > 0, -NEAREST / jnp.where(inverse.lower > 0, inverse.lower, 1.0), -jnp.inf),
        jnp.where(inverse.upper > 0, NEAREST / jnp.where(inverse.upper > 0, inverse.upper, 1.0), jnp.inf),
    )
    longest = _part_of_step(jnp.maximum(dus / near.lower, dus / near.upper), 1.0)
    jammed = longest < JAMMED
    cut = jax.tree.map(lambda b, free: jnp.where(jammed, b, free), near, Sides(-jnp.inf, jnp.inf))
    gradient = s.barrier * (inverse.upper - inverse.lower)
    signed = barrier.multipliers.upper - barrier.multipliers.lower

    def judged(xs, us, gaps):
        value, lower, upper = problem.constraints(xs, us)
        at = row_barrier(value, lower, upper, s.barrier, s.rows)
        infeasibility = jnp.abs(gaps).sum() + jnp.abs(at.equality_distance).sum()
        objective = problem.total_cost(xs, us) + at.value + s.barrier * box_barrier(us, box)
        return Point(xs, us, gaps, infeasibility, objective)

    def step(alpha):
        dxs, dus = _linear_step(e, policy, alpha, cut)
        xs, us = jax.vmap(problem.dynamics.integrate)(s.xs, dxs), s.us + dus
        predicted = (e.stage.x * dxs[:-1]).sum() + ((e.stage.u + gradient) * dus).sum() + e.terminal.x @ dxs[-1]
        return judged(xs, us, problem.gaps(xs, us)), predicted + signed @ rows.change(dxs, dus)

    cost = e.stage.value.sum() + e.terminal.value
    infeasibility = jnp.abs(s.gaps).sum() + jnp.abs(barrier.equality_distance).sum()
    objective = cost + barrier.value + s.barrier * box_barrier(s.us, box)
    start = Point(s.xs, s.us, s.gaps, infeasibility, objective)
    longest = jnp.where(jammed, 1.0, longest)
    # A feasible guess has no infeasibility to compare with; steps of some length have.
    reference = jnp.maximum(s.scale.infeasibility, 1e-2 * jnp.abs(dxs).sum())
    trial = search(start, s.filter, reference, step, longest, policy.ok, jnp.abs(cost))
    alpha = jnp.where(trial.accepted, trial.alpha, 0.0)
    change = rows.change(dxs, dus)
    dual = Sides(
        barrier.multipliers.lower - alpha * barrier.curvatures.lower * change,
        barrier.multipliers.upper + alpha * barrier.curvatures.upper * change,
    )
    costates = policy.Vx + matvec(policy.Vxx, dxs - s.gaps)
    after = s._replace(
        xs=trial.point.xs,
        us=trial.point.us,
        gaps=trial.point.gaps,
        rows=s.rows._replace(
            equality=s.rows.equality
            + alpha * (barrier.equality_distance + jnp.where(rows.lower == rows.upper, change, 0.0)) / s.rows.delta,
            dual=dual,
        ),
        box=_next_box(s, inverse, dus, trial.point.us, box, trial.accepted),
        toward=s.toward + jnp.where(s.iterations == 0, (alpha > 0) * 1.0, alpha) * (costates - s.toward),
        filter=trial.filter,
        scale=s.scale._replace(infeasibility=reference),
    )
    return after, alpha


def _part_of_step(ratios, whole) -> Array:
    """The largest part of a step with the given ratios of its components to their limits."""
    largest = jnp.where(jnp.isfinite(ratios), ratios, 0.0).max(initial=0.0)
    return jnp.minimum(whole, 1 / jnp.maximum(largest, 1e-30))


def _linear_step(e: Expansion, policy: Policy, alpha, cut: Sides):
    """The displacements of states and controls by a part of the policy's step, by the linear dynamics; controls are cut
    at the displacements `cut`, and those after them make up for it by feedback."""

    def advance(dx, stage):
        A, B, gap, k, K, low, high = stage
        du = jnp.clip(alpha * k + K @ dx, low, high)
        return A @ dx + B @ du + alpha * gap, (dx, du)

    bounds = (jnp.broadcast_to(b, policy.k.shape) for b in cut)
    last, (dxs, dus) = lax.scan(advance, alpha * e.gaps[0], (e.A, e.B, e.gaps[1:], policy.k, policy.K, *bounds))
    return jnp.concatenate([dxs, last[None]]), dus


def _next_box(s: ConstrainedState, inverse: Sides, dus, us, box, accepted) -> Sides:
    """The multipliers of the controls' bounds after a step: as far along their own step as they stay positive, and
    near the barrier's (Wächter & Biegler, equations 14-16)."""
    steps = Sides(
        s.barrier * inverse.lower - s.box.lower * inverse.lower * dus - s.box.lower,
        s.barrier * inverse.upper + s.box.upper * inverse.upper * dus - s.box.upper,
    )
    shrink = [-d / jnp.where(z > 0, NEAREST * z, jnp.inf) for z, d in zip(s.box, steps, strict=True)]
    part = jnp.where(accepted, _part_of_step(jnp.stack(shrink), 1.0), 0.0)
    after = inverse_distances(us, box)

    def safe(z, d, i):
        return jnp.clip(z + part * d, s.barrier * i * 1e-10, s.barrier * i * 1e10)

    return Sides(*(safe(z, d, i) for z, d, i in zip(s.box, steps, after, strict=True)))


def _solution(problem: Problem, s: ConstrainedState) -> Solution:
    low, high = problem.control_box
    rows = problem.constraints(s.xs, s.us)
    value, lower, upper = rows
    equal = lower == upper
    sides = row_barrier(value, lower, upper, s.barrier, s.rows).multipliers
    # Of two factors with a tiny product, the larger one, each relative to its scale, is the one that is not zero.
    distance = jnp.minimum(value - lower, upper - value) / s.scale.rows
    signed = sides.upper - sides.lower
    active = equal | (jnp.abs(signed) * s.scale.rows / s.scale.cost > distance)
    multipliers = jnp.where(active, jnp.where(equal, s.rows.equality, signed), 0.0)
    width = jnp.where(jnp.isfinite(high - low), high - low, 1 + jnp.abs(s.us))
    converged = s.status == Status.CONVERGED
    at_low = converged & (s.box.lower * width / s.scale.cost > (s.us - low) / width)
    at_high = converged & (s.box.upper * width / s.scale.cost > (high - s.us) / width)
    us = jnp.where(at_low, low, jnp.where(at_high, high, s.us))
    violation = jnp.abs(bound_excess(*rows)).max(initial=0.0)
    return Solution(
        xs=s.xs,
        us=us,
        cost=problem.total_cost(s.xs, us),
        status=s.status,
        iterations=s.iterations,
        residuals=Residuals(jnp.abs(s.gaps).max(), s.errors.stationarity, violation, s.errors.complementarity),
        gains=Gains(-s.policy.K, s.policy.k),
        multipliers=Multipliers(s.toward, *problem.split_rows(multipliers)),
        aux={"updates": s.updates, "barrier": s.barrier},
        history=s.history,
    )
