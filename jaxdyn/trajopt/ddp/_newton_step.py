"""The Newton step of a problem with constraints: its policy, the search along it, and the next multipliers."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array
from jaxdyn.trajopt.ddp._active_set import active_set_policy, after_active_set_step
from jaxdyn.trajopt.ddp._barrier import (
    RowBarrier,
    Sides,
    box_barrier,
    inverse_distances,
    present_multipliers,
    row_barrier,
)
from jaxdyn.trajopt.ddp._batches import where_needed
from jaxdyn.trajopt.ddp._constrained_state import (
    LONG_PATIENCE,
    PATIENCE,
    ConstrainedState,
    Watch,
    Watched,
    control_width,
    cost_scale,
    least_regularization,
    number_of_bounds,
)
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._differences import differenced_costs
from jaxdyn.trajopt.ddp._expansion import (
    ConstraintComponents,
    Expansion,
    matvec,
    second_order_costs,
    start_widths,
    without_fixed_controls,
)
from jaxdyn.trajopt.ddp._filter import Point, Trial, search
from jaxdyn.trajopt.ddp._line_search import TrajectoryIterate, roll_out
from jaxdyn.trajopt.ddp._minimality import curvature_terms, start_terms
from jaxdyn.trajopt.ddp._riccati import AffinePolicy, HeldControls, backward, backward_associative, linear_roll_out
from jaxdyn.trajopt.problem import Problem

NEAREST = 0.99
"""Part of the distance from a control's bound that a step may take."""

LESS, LESS_WITH_ACTIVE_SET = 3.0, 10.0
"""The last regularization that was needed, divided by the first one of the next step that needs one."""

DAMPING = 1.0
"""Largest regularization of steps with an active set, relative to the cost's scale."""

JAMMED = 0.1
"""Part of a step below which single controls are cut at their bounds, instead of the whole step."""

COSTLESS = 1e-6
"""Change of the cost by its own curvature over the whole range of a control, relative to the cost's scale, below which
there is no cost on the control."""

WATCHED = 8
"""Number of steps after which the search goes back if it has not improved upon its filter."""


def newton_policy(
    problem: Problem,
    options: DDPOptions,
    s,
    e: Expansion,
    rows: ConstraintComponents,
    barrier: RowBarrier,
    late: Callable,
):
    """The policy of the step; the active set of inequalities that it was found with, which is None where steps never
    have one; the regularization with which the curvatures are positive definite; and whether that shows that the
    iterate, if stationary, is a minimum.

    The policy is not `ok` where no active set is found with any regularization that is tried before it is `late` (see
    `iterated`). If the state is one that `checks`, there are all second derivatives and no regularization."""
    second = jnp.asarray(options.hessian == "full")
    if options.drops_second_order:
        patience = PATIENCE if options.hessian == "finishing" else LONG_PATIENCE
        little = s.promised < options.second_order_below * cost_scale(problem, s, e)
        second = little | (s.waited >= patience) | s.near | s.by_active_set
    second = second | s.checks
    multipliers = present_multipliers(barrier, s.rows, rows.lower == rows.upper)
    derivatives = second_order_costs if options.hessian in ("full", "adaptive") else differenced_costs
    slopes, curvatures = problem.split_rows(barrier.slope), problem.split_rows(barrier.curvature)
    inverse = inverse_distances(s.us, problem.control_box)
    of_box = s.box.lower * inverse.lower + s.box.upper * inverse.upper
    low, high = problem.control_box
    held = HeldControls((low < high).astype(problem.dtype), jnp.zeros_like(low)) if problem.bounded else None

    added = jnp.where(s.checks, _zero_curvature(problem, s, e), _proximal_curvature(problem, s, e, rows))
    added = jax.vmap(jnp.diag)(added)
    if e.start is not None:
        e = e._replace(start=e.start._replace(curvature=_added_start_curvature(problem, s, e, rows)))

    def system(stage, end) -> Expansion:
        stage, end = rows.add_to(stage, end, slopes, curvatures)
        u, uu = stage.u + s.barrier * (inverse.upper - inverse.lower), stage.uu + jax.vmap(jnp.diag)(of_box)
        # Second derivatives have come with all controls.
        return without_fixed_controls(problem, e._replace(stage=stage._replace(u=u, uu=uu), terminal=end))

    none = None if s.active is None else Sides(*(jnp.zeros(len(rows.value), bool) for _ in range(2)))

    def attempt(state):
        _, _, regularization, wanted, second, costs, _ = state
        active = None
        costs = lax.cond(
            wanted & ~second,
            lambda: derivatives(problem, s.xs, s.us, e, s.toward, multipliers),
            lambda: costs,
        )
        tried = costs[0]._replace(uu=costs[0].uu + added), costs[1]

        def in_sequence():
            return backward(system(*tried), regularization, held)

        def with_active_set():
            stage, end = jax.tree.map(lambda a, b: jnp.where(wanted, a, b), tried, (e.stage, e.terminal))
            return active_set_policy(problem, s, e._replace(stage=stage, terminal=end), rows, regularization)

        if options.backward == "associative":
            in_parallel = functools.partial(backward_associative, system(*tried), regularization)
            policy = lax.cond(s.checks, in_sequence, in_parallel)
        elif s.active is None:
            policy = in_sequence()
        else:
            policy, active = lax.cond(s.active.on, with_active_set, lambda: (in_sequence(), none))
        less = jnp.where(s.by_active_set, LESS_WITH_ACTIVE_SET, LESS)
        first = jnp.where(s.last_regularization > 0, s.last_regularization / less, least_regularization(s))
        more = jnp.where(s.checks, jnp.inf, jnp.where(regularization > 0, 8 * regularization, first))
        # Where Gauss-Newton has no positive curvature, as for a cost of the last state alone, all second derivatives
        # say how long a step should be, and a regularization does not.
        other = ~policy.ok & options.drops_second_order & ~wanted & ~s.by_active_set
        regularization = jnp.where(policy.ok | other, regularization, more)
        return policy, active, regularization, wanted ^ other, second | wanted, costs, late(policy.slope)

    start = jax.tree.map(jnp.zeros_like, s.policy), none, s.regularization
    limit = jnp.where(s.by_active_set, DAMPING, options.max_regularization) * s.scale.cost
    state = *start, second, jnp.array(False), (e.stage, e.terminal), jnp.array(False)
    out = lax.while_loop(lambda s: ~s[0].ok & (s[2] <= limit) & ~s[-1], attempt, state)
    policy, active, regularization, exact, *_ = out
    return policy, active, jnp.where(s.checks, 0.0, regularization), policy.ok & exact & (regularization == 0)


def _proximal_curvature(problem: Problem, s: ConstrainedState, e: Expansion, rows: ConstraintComponents) -> Array:
    """The curvature of a proximal term, `[horizon, nu]`, for controls on which there is no cost: without any curvature,
    a step to a distant point is as good as one to a near point. A control that moves by its range pays as much as all
    barriers together, or as the decrease that the last step promised if that is less. So the term counts little against
    the cost, and vanishes at a solution. It changes steps, and not where they lead to."""
    width = _free_width(problem, s) ** 2
    own = (jnp.abs(jnp.diagonal(e.stage.uu, axis1=1, axis2=2)) * width).max(axis=0)
    # Near a solution the last step promised little, and so Newton's steps converge as fast as without the term.
    weight = jnp.minimum(s.barrier * number_of_bounds(problem, rows), s.promised)
    return jnp.where((own < COSTLESS * s.scale.cost) & ~s.by_active_set, weight / width, 0.0)


def _added_start_curvature(problem: Problem, s: ConstrainedState, e: Expansion, rows: ConstraintComponents) -> Array:
    """The curvature that is added for each unknown of the initial state: that of a proximal term, or the one that
    counts as zero, as for controls. Costs of an initial state alone are initial costs or those of stage 0."""
    assert e.start is not None
    width = start_widths(problem, s.xs[0]) ** 2
    own = jnp.abs(jnp.diagonal(e.start.directions.T @ e.stage.xx[0] @ e.start.directions)) * width
    weight = jnp.minimum(s.barrier * number_of_bounds(problem, rows), s.promised)
    proximal = jnp.where((own < COSTLESS * s.scale.cost) & ~s.by_active_set, weight / width, 0.0)
    eps = jnp.finfo(problem.dtype).eps
    zero = eps ** (1 / 3) * s.scale.cost / width + 100 * eps * start_terms(s.policy, e.A, e.start)
    return jnp.where(s.checks, zero, proximal)


def _zero_curvature(problem: Problem, s: ConstrainedState, e: Expansion) -> Array:
    """The curvature by each control that counts as zero, `[horizon, nu]`: one with which the whole range of a control
    changes the cost by a small part, or that is rounding beside the curvature of the constraints."""
    eps = jnp.finfo(problem.dtype).eps
    rounding = 100 * eps * curvature_terms(s.policy, e.B).max(axis=0)
    return eps ** (1 / 3) * s.scale.cost / _free_width(problem, s) ** 2 + rounding


def _free_width(problem: Problem, s: ConstrainedState) -> Array:
    """The ranges of the controls, `[horizon, nu]`; one for controls that equal bounds fix."""
    width = control_width(problem, s.us)
    return jnp.where(width > 0, width, 1.0)


def take_step(
    problem: Problem,
    s: ConstrainedState,
    e: Expansion,
    rows: ConstraintComponents,
    barrier: RowBarrier,
    policy: AffinePolicy,
    active,
):
    """The state after the longest acceptable part of the policy's step; that part, which is zero where none is; the
    displacement of the states by it, in the units of `Scale.displacement`; and the constraints' multipliers `[rows]`
    after the whole step."""
    box = problem.control_box
    dxs, dus = linear_roll_out(e, policy)
    exact = s.by_active_set
    inverse = jax.tree.map(lambda i: jnp.where(exact, 0.0, i), inverse_distances(s.us, box))
    near, cut, longest, jammed = _step_limits(problem, s, inverse, dus)
    gradient = s.barrier * (inverse.upper - inverse.lower)
    equal = rows.lower == rows.upper
    signed = jnp.where(equal & ~s.rows.softened, 0.0, barrier.slope)
    cost = e.stage.value.sum() + e.terminal.value
    change = rows.change(dxs, dus)
    closed = barrier.infeasibility + jnp.where(equal & ~s.rows.softened, change, 0.0)
    equality, costates = closed / s.rows.delta, policy.Vx + matvec(policy.Vxx, dxs - s.gaps)

    def point(xs, us, gaps, cost, at: RowBarrier):
        infeasibility = jnp.abs(gaps).sum() + jnp.abs(at.infeasibility / s.scale.rows).sum()
        objective = cost + at.value + jnp.where(exact, 0.0, s.barrier * box_barrier(us, box))
        prices = _prices(gaps, at.infeasibility, costates, s.rows.equality + equality)
        return Point(xs, us, gaps, infeasibility, objective, objective + prices)

    def judged(xs, us, gaps):
        at = row_barrier(*problem.constraints(xs, us), s.barrier, s.rows)
        return point(xs, us, gaps, problem.total_cost(xs, us), at)

    def linear(alpha):
        dxs, dus = linear_roll_out(e, policy, alpha, cut)
        return jax.vmap(problem.dynamics.integrate)(s.xs, dxs), jnp.clip(s.us + dus, *box), dxs, dus

    def rolled(alpha):
        bounds = s.us + near.lower, s.us + near.upper
        xs, us, dxs = roll_out(problem, TrajectoryIterate(s.xs, s.us, s.gaps, cost), policy, alpha, bounds)
        return xs, us, dxs, us - s.us

    def step(alpha):
        xs, us, dxs, dus = where_needed(s.rolls_out, lambda: rolled(alpha), linear(alpha))
        predicted = (e.stage.x * dxs[:-1]).sum() + ((e.stage.u + gradient) * dus).sum() + e.terminal.x @ dxs[-1]
        return judged(xs, us, problem.gaps(xs, us)), predicted + signed @ rows.change(dxs, dus)

    start = point(s.xs, s.us, s.gaps, cost, barrier)
    # A roll-out cuts single controls, and feedback makes up for it.
    longest = jnp.where(jammed | s.rolls_out, 1.0, longest)
    # A feasible guess has no infeasibility to compare with; steps of some length have.
    displacement = 1e-2 * jnp.abs(dxs).sum()
    of_steps = jnp.where(s.scale.displacement > 0, s.scale.displacement, displacement)
    reference = jnp.maximum(s.scale.infeasibility, of_steps)
    rules = {"watched": s.watch.steps >= 0, "priced": s.rolls_out, "forced": exact}
    trial = search(start, s.filter, reference, step, longest, policy.ok, jnp.abs(cost), **rules)
    alpha = jnp.where(trial.accepted, trial.alpha, 0.0)
    # Only steps that are taken count: an infeasibility may be as large as a step only if that step was acceptable.
    taken = jnp.where(alpha > 0, jnp.maximum(of_steps, alpha * displacement), s.scale.displacement)
    dual = Sides(
        barrier.multipliers.lower - alpha * barrier.curvatures.lower * change,
        barrier.multipliers.upper + alpha * barrier.curvatures.upper * change,
    )
    after = s._replace(
        xs=trial.point.xs,
        us=trial.point.us,
        gaps=trial.point.gaps,
        rows=s.rows._replace(equality=s.rows.equality + alpha * equality, dual=dual),
        box=_next_box(s, inverse, dus, trial.point.us, box, trial.accepted),
        toward=s.toward + jnp.where(s.iterations == 0, (alpha > 0) * 1.0, alpha) * (costates - s.toward),
        filter=trial.filter,
        scale=s.scale._replace(displacement=taken),
    )
    after, alpha = _watched(s, start, trial, after, alpha)
    if s.active is not None:
        stepped = after_active_set_step(problem, s, after, rows, policy, active, dxs, dus)
        after = jax.tree.map(lambda a, b: jnp.where(exact & (alpha > 0), a, b), stepped, after)
    return after, alpha, jnp.where(alpha > 0, alpha * displacement, 0.0), barrier.slope + barrier.curvature * change


def _step_limits(problem: Problem, s: ConstrainedState, inverse: Sides, dus):
    """The displacements of the controls that are near their bounds; those at which single controls are cut; the largest
    part of a step that stays within the first; and whether that is so little that controls are cut instead."""
    near = Sides(
        jnp.where(inverse.lower > 0, -NEAREST / jnp.where(inverse.lower > 0, inverse.lower, 1.0), -jnp.inf),
        jnp.where(inverse.upper > 0, NEAREST / jnp.where(inverse.upper > 0, inverse.upper, 1.0), jnp.inf),
    )
    longest = _part_of_step(jnp.maximum(dus / near.lower, dus / near.upper), 1.0)
    # After a refused step the whole step is cut: where single controls are cut, it misses the equalities.
    jammed = (longest < JAMMED) & (s.regularization == 0)
    bounds = (
        jnp.where(s.by_active_set, bound - s.us, free)
        for bound, free in zip(problem.control_box, (-jnp.inf, jnp.inf), strict=True)
    )
    cut = Sides(*(jnp.where(jammed, limit, bound) for limit, bound in zip(near, bounds, strict=True)))
    return near, cut, longest, jammed


def _watched(s: ConstrainedState, start: Point, trial: Trial, after: ConstrainedState, alpha):
    """The state after a step, and the step's length.

    If the steps since the first one that the filter refused have not improved upon the filter, the search goes back to
    the state before them with a step of length zero, and what the filter refuses is final until the barrier changes."""
    begins = trial.accepted & trial.by_lagrangian & (s.watch.steps == 0)
    here = Watched(s.xs, s.us, s.gaps, s.rows, s.box, s.toward, s.filter.with_point(start))
    before = jax.tree.map(lambda a, b: jnp.where(begins, a, b), here, s.watch.before)
    watching = begins | (s.watch.steps > 0)
    steps = s.watch.steps + watching
    improved = trial.accepted & before.filter.accepts(trial.point.infeasibility, trial.point.objective, 0.0)
    ended, failed = watching & improved, watching & ~improved & ((steps >= WATCHED) | ~trial.accepted)
    filter = jax.tree.map(lambda a, b: jnp.where(ended, a, b), before.filter, after.filter)
    after = after._replace(filter=filter)
    after = jax.tree.map(lambda a, b: jnp.where(failed, a, b), after._replace(**before._asdict()), after)
    steps = jnp.select([ended, failed], [0, -1], steps)
    return after._replace(watch=Watch(before, steps)), jnp.where(failed, 0.0, alpha)


def _prices(gaps, distances, costates, equality) -> Array:
    """The prices of gaps and of the equalities' distances: at their multipliers, and of absolute values, each gap at
    the largest multiplier of its component."""
    linear = (costates * gaps).sum() + equality @ distances
    absolute = (jnp.abs(costates).max(axis=0) * jnp.abs(gaps)).sum() + jnp.abs(equality) @ jnp.abs(distances)
    return jnp.stack([linear, absolute])


def _part_of_step(ratios, whole) -> Array:
    """The largest part of a step with the given ratios of its components to their limits."""
    largest = jnp.where(jnp.isfinite(ratios), ratios, 0.0).max(initial=0.0)
    return jnp.minimum(whole, 1 / jnp.maximum(largest, 1e-30))


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
