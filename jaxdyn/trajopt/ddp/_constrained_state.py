"""The state of a solve with constraints between two iterations, its scales, and its errors."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn._types import Array, Float
from jaxdyn.trajopt._history import History
from jaxdyn.trajopt.ddp._barrier import RowBarrier, RowState, Sides, inverse_distances, present_multipliers, row_barrier
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._endings import Contradiction
from jaxdyn.trajopt.ddp._expansion import (
    ConstraintComponents,
    Expansion,
    Stationarity,
    cost_spread,
    matvec,
    motion,
    start_unknowns,
    start_widths,
    vecmat,
)
from jaxdyn.trajopt.ddp._filter import Filter
from jaxdyn.trajopt.ddp._riccati import AffinePolicy
from jaxdyn.trajopt.problem import Problem, bound_excess, join_rows

EXACTNESS = 0.58
"""Power of the rounding unit that is the `delta` of equalities, and the least one of inequalities, in the units of
`ConstrainedState.unit_of_delta`."""
PATIENCE = 10
"""Number of iterations with one barrier and penalty after which a large violation of an inequality meets a larger
penalty, and steps of `"finishing"` take all second derivatives, because Gauss-Newton does not see what slows it."""

PRICE = 100.0
"""Price of a relative violation or gap of an iterate of a solve that has not converged: one of 1 % counts as much as
the cost's scale."""
LONG_PATIENCE = 25
"""The same number for second derivatives of `"adaptive"`."""

UNSTABLE = 100.0
"""Largest scale of a cost that is zero at the guess, as a multiple of what it changes by along the states' way."""
FAR = 1e-3
"""Size of a constraint's component, relative to the largest one, below which both are taken to have different units."""


class Scale(NamedTuple):
    """The sizes of a problem's quantities at the guess, to which tolerances are relative."""

    cost: Float[Array, ""]
    first_cost: Float[Array, ""]
    """The cost itself, with its constant."""
    rows: Float[Array, "rows"]
    slopes: tuple[Array, Any]
    """For the controls, `[nu]`, and for the unknowns of the initial state; None where there are none."""
    infeasibility: Float[Array, ""]
    barrier: Float[Array, ""]
    displacement: Float[Array, ""]
    """A hundredth of the sum of all displacements of states by the first step, or by a larger one since; zero before
    the first."""

    @staticmethod
    def unknown(problem: Problem, rows) -> "Scale":
        """The scales before the first iteration, for constraints with zeros `rows`."""
        start, dtype = start_unknowns(problem), problem.dtype
        slopes = jnp.zeros(problem.dynamics.nu, dtype), None if start is None else start.curvature
        infinity, zero = jnp.asarray(jnp.inf, dtype), jnp.zeros((), dtype)
        return Scale(infinity, infinity, rows, slopes, infinity, infinity, zero)


class Errors(NamedTuple):
    """The distances from the conditions of optimality, each relative to its scale."""

    stationarity: Any
    violation: Any
    gap: Any
    complementarity: Any
    """Largest product of a multiplier and the distance from its bound, times their number, relative to the cost's scale
    at this iterate."""

    def largest(self, number) -> Array:
        """The largest error, with products for each of a number of bounds."""
        return jnp.stack(self._replace(complementarity=self.complementarity / number)).max()

    def within(self, options: DDPOptions) -> Array:
        """Whether all errors are within their tolerances."""
        return (
            (self.stationarity <= options.tolerance)
            & (self.gap <= options.constraint_tolerance)
            & self.constraints_within(options)
        )

    def constraints_within(self, options: DDPOptions) -> Array:
        """Whether the violation and the products of multipliers and distances are within their tolerances."""
        complementary = self.complementarity <= options.complementarity_tolerance
        return (self.violation <= options.constraint_tolerance) & complementary


class Watched(NamedTuple):
    """The part of the state that a step changes, before the first step that the filter refused."""

    xs: Array
    us: Array
    gaps: Array
    rows: RowState
    box: Sides
    toward: Array
    filter: Filter


class Watch(NamedTuple):
    """The iterate that a search goes back to if steps that the filter refused lead nowhere."""

    before: Watched
    steps: Array
    """Number of steps since that iterate; zero where none is watched, and -1 where the filter has the last word."""


class ActiveSet(NamedTuple):
    """Whether steps solve for an active set, and how far they have come."""

    on: Array
    error: Array
    """The largest error of the last iterate."""
    growths: Array
    """Number of iterates at which it was not smaller than before."""


class Best(NamedTuple):
    """The best iterate so far, which a solve returns that ends before it has converged."""

    xs: Array
    us: Array
    gaps: Array
    errors: Errors
    merit: Array
    """Cost, relative to its scale, and the price of the largest relative violation and gap."""

    def or_better(self, s: "ConstrainedState", errors: Errors, cost) -> "Best":
        """The better one of this iterate and that of a state with these errors and this cost."""
        merit = cost / s.scale.cost + PRICE * jnp.maximum(errors.violation, errors.gap)
        here = Best(s.xs, s.us, s.gaps, errors, merit)
        return jax.tree.map(lambda a, b: jnp.where(merit < self.merit, a, b), here, self)


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
    policy: AffinePolicy
    promised: Array
    regularized: Array
    """Whether the step that promised this had a regularization."""
    errors: Errors
    status: Array
    iterations: Array
    updates: Array
    near: Array
    """Whether the guess was near a solution, so that all steps take second derivatives."""
    waited: Array
    """Iterations since the last change of the penalty or update of the barrier."""
    last_regularization: Array
    """The last one that was needed; zero where none was."""
    watch: Watch
    restarts: Array
    """Number of times that a stuck solve began anew."""
    rolls_out: Array
    """Whether steps are roll-outs of the policy, and not those of the linear model."""
    mean_step_length: Array
    """Moving average of the step lengths."""
    contradiction: Contradiction
    first_us: Array
    """The controls of the guess."""
    history: History | None
    checks: Array
    """Whether the iterate is stationary, and the next backward pass is to show whether it is a minimum."""
    departures: Array
    """Number of times that the solve left a stationary point that was none."""
    best: Best
    active: ActiveSet | None
    """None where the guess has no multipliers, and with a parallel scan."""

    @property
    def by_active_set(self) -> Array:
        """Whether steps solve for an active set, without a barrier."""
        return jnp.array(False) if self.active is None else self.active.on

    def barrier_at(self, value, lower, upper) -> RowBarrier:
        """The barrier of the constraints, for their values and bounds. Where steps solve for an active set, the
        multipliers of inequalities are unknowns of their own."""
        barrier = row_barrier(value, lower, upper, self.barrier, self.rows)
        if self.active is None:
            return barrier
        on, shift = self.active.on, self.rows.shift
        slope = jnp.where(lower == upper, barrier.slope, shift.upper - shift.lower)
        known = barrier._replace(multipliers=shift, slope=slope)
        return jax.tree.map(lambda a, b: jnp.where(on, a, b), known, barrier)

    def unit_of_delta(self, cost=None) -> Float[Array, "rows"]:
        """The squares of the sizes of the constraints' components, divided by a size of the cost, by default its scale.
        Sizes that differ little are at least a tenth of the largest one."""
        size = self.scale.rows
        largest = size.max(initial=0.0)
        # Components about which nothing is known have `FAR` of the largest size, up to rounding.
        unit = jnp.where(size > 0.99 * FAR * largest, jnp.maximum(size, 0.1 * largest), size)
        return unit**2 / (self.scale.cost if cost is None else cost)

    def with_best(self, problem: Problem, wanted) -> "ConstrainedState":
        """The state at the best iterate, if `wanted`; the last one has not been measured before."""
        excess = jnp.abs(bound_excess(*problem.constraints(self.xs, self.us))) / self.scale.rows
        last = self.errors._replace(violation=excess.max(initial=0.0), gap=relative_gap(problem, self))
        best = self.best.or_better(self, last, problem.total_cost(self.xs, self.us))
        chosen = self._replace(xs=best.xs, us=best.us, gaps=best.gaps, errors=best.errors)
        return jax.tree.map(lambda a, b: jnp.where(wanted, a, b), chosen, self)

    def with_empty_filter(self) -> "ConstrainedState":
        """The state whose filter has forgotten all, because what it compares has changed."""
        watch = self.watch._replace(steps=jnp.zeros_like(self.watch.steps))
        return self._replace(filter=Filter.empty(self.xs.dtype), watch=watch)


def number_of_bounds(problem: Problem, rows: ConstraintComponents):
    """The number of inequalities: finite bounds of components and of controls that differ."""
    pairs = ((rows.lower, rows.upper), problem.control_box)
    finite = [jnp.isfinite(b) & (low != high) for low, high in pairs for b in (low, high)]
    return jnp.maximum(sum(f.sum() for f in finite), 1).astype(problem.dtype)


def control_width(problem: Problem, us) -> Float[Array, "horizon nu"]:
    """The ranges of the controls; one plus their size where there is no range."""
    low, high = problem.control_box
    return jnp.where(jnp.isfinite(high - low), high - low, 1 + jnp.abs(us))


def guess_cost_scale(problem: Problem, s: ConstrainedState, e: Expansion, slopes, width) -> Float[Array, ""]:
    """The size of the cost: its spread at the guess, or how much it can change from there, to second order. A constant
    in the cost changes neither.

    `slopes` `[horizon, nu]` are its derivatives by the controls, which change by their `width`."""
    eps = jnp.finfo(problem.dtype).eps

    def change(slopes, curvatures, sizes):
        diagonals = jnp.diagonal(curvatures, axis1=-2, axis2=-1)
        return (jnp.abs(slopes) * sizes + 0.5 * jnp.abs(diagonals) * sizes**2).sum()

    # The guess may be at rest, so the states move by at least one.
    cost = jnp.maximum(cost_spread(problem, e, s.xs, s.us, 1.0), 0.01 * change(e.stage.u, e.stage.uu, width))
    # Where the motion is unstable, slopes along it are larger than anything that can be reached. So a bound comes from
    # the way of the states: the motion of the guess, its gaps, and one, because the guess may be at rest.
    most, way = 0.01 * change(slopes, e.stage.uu, width), 1 + motion(problem, s.xs) + jnp.abs(s.gaps).sum(axis=0)
    along = change(e.stage.x, e.stage.xx, way) + change(e.terminal.x, e.terminal.xx, way)
    most = jnp.where(along > 0, jnp.minimum(most, UNSTABLE * along), most)
    # Without a cost on controls, one of the states may be at its least value at the guess.
    most = jnp.where(most > eps**2 * along, most, 0.01 * along)
    cost = jnp.where(cost > eps**2 * most, cost, most)
    # A cost that does not change has no scale but its value, or one.
    value = jnp.abs(e.stage.value.sum() + e.terminal.value)
    cost = jnp.where(cost > 100 * eps * value, cost, jnp.where(value > 0, value, 1.0))
    return jnp.clip(jnp.nan_to_num(cost, posinf=jnp.inf), eps, eps**-0.6)


def slope_scales(problem: Problem, s: ConstrainedState, station: Stationarity, cost, width) -> tuple[Array, Any]:
    """The scales of the slopes by the controls, and by the unknowns of the initial state, from their sizes at the
    guess, for a scale of the cost and the `width` of the controls."""

    def scale(size, width):
        # Costates of a guess that diverges are no measure: with them, any slope would be small.
        largest = (cost / width).min(axis=0)
        # Slopes of rounding, as where only constraints matter, are no measure, either.
        known = size > 100 * jnp.finfo(size.dtype).eps * largest
        return jnp.where(known, jnp.minimum(size, largest), largest)

    widths = width, None if problem.free_x0 is None else start_widths(problem, s.xs[0])[None]
    return jax.tree.map(scale, station.sizes, widths)


def row_scale(problem: Problem, rows: ConstraintComponents, e: Expansion, xs, width) -> Float[Array, "rows"]:
    """The size of each component of the constraints, over all stages: of its values and finite bounds, and for an
    equality, which the guess may meet already, of what the motion of the guess changes it by.

    A component much smaller than the largest one either has another unit, or is zero at the guess by chance. Its size
    is at least what motion or a step or two with controls that change by their `width` change it by, and at most `FAR`
    of the largest one."""
    size = jnp.abs(rows.value)
    for bound in (rows.lower, rows.upper):
        size = jnp.maximum(size, jnp.where(jnp.isfinite(bound), jnp.abs(bound), 0.0))
    span = motion(problem, xs)
    change = join_rows(jnp.abs(rows.by_x) @ span, jnp.abs(rows.end_by_x) @ span)
    size = jnp.maximum(size, jnp.where(rows.lower == rows.upper, change, 0.0))
    pushed = matvec(jnp.abs(e.B), width).max(axis=0)
    pushed = jnp.maximum(pushed, (jnp.abs(e.A) @ pushed).max(axis=0))
    at_stages = jnp.abs(rows.by_x) @ pushed + matvec(jnp.abs(rows.by_u), width)
    least = jnp.maximum(change, join_rows(at_stages, jnp.abs(rows.end_by_x) @ pushed))
    has = jnp.isfinite(rows.lower) | jnp.isfinite(rows.upper)

    def over_stages(size):
        stage, end = problem.split_rows(jnp.where(has, size, 0.0))
        return join_rows(jnp.broadcast_to(stage.max(axis=0, initial=0.0), stage.shape), end)

    size, least = over_stages(size), over_stages(least)
    largest = size.max(initial=0.0)
    far = FAR * largest
    small = jnp.minimum(jnp.maximum(size, least), far)
    # What is zero but for rounding says nothing of a component's unit.
    size = jnp.maximum(size, jnp.where(small > jnp.finfo(size.dtype).eps ** 0.75 * largest, small, far))
    return jnp.where(size > 0, size, 1.0)


def relative_gap(problem: Problem, s: ConstrainedState) -> Float[Array, ""]:
    """The largest gap, relative to how far its component moves."""
    span = jnp.maximum(motion(problem, s.xs), jnp.abs(s.gaps).max(axis=0))
    span = jnp.maximum(jnp.maximum(span, 1e-3 * span.max()), jnp.finfo(span.dtype).tiny)
    return (jnp.abs(s.gaps) / span).max()


def measure_errors(
    problem: Problem, s: ConstrainedState, e: Expansion, rows: ConstraintComponents, barrier: RowBarrier
):
    """The errors with the present multipliers, the costates, the largest deviation of a product of a control's
    multiplier and distance from the barrier, and the relative violation of equalities."""
    equal = rows.lower == rows.upper
    multipliers = problem.split_rows(present_multipliers(barrier, s.rows, equal))
    by_x, by_u, by_end = rows.slopes(*multipliers)
    u_terms = e.stage.u, by_u, s.box.upper - s.box.lower
    station, toward = Stationarity.of(e, e.stage.x + by_x, u_terms, e.terminal.x + by_end)
    by_controls = Stationarity.at_costates(e, s.toward, e.stage.x + by_x, u_terms)
    before = jnp.concatenate([vecmat(s.toward[2:], e.A[1:]), jnp.zeros_like(s.toward[:1])])
    x_terms = [jnp.concatenate([x[1:], end[None]]) for x, end in ((e.stage.x, e.terminal.x), (by_x, by_end))]
    by_states = Stationarity.of_terms(before, -s.toward[1:], *x_terms)
    # Costates amplify rounding where the motion is unstable. The multipliers of the steps, which are unknowns of their
    # own, do not: where no decrease above rounding is left, they show as well that the conditions are met.
    of_costates = station.relative_to(s.scale.slopes)
    held = jnp.maximum(by_controls.relative_to(s.scale.slopes), by_states.relative_to((jnp.zeros_like(by_end), None)))
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
    scale = cost_scale(problem, s, e)
    # A cost is known up to the rounding of its value, with its constant.
    rounding = 1e3 * jnp.finfo(problem.dtype).eps * (scale + jnp.abs(e.stage.value.sum() + e.terminal.value))
    share = scale / number_of_bounds(problem, rows)
    errors = Errors(
        jnp.where(s.promised < rounding, jnp.fmin(of_costates, held), of_costates),
        excess.max(initial=0.0),
        relative_gap(problem, s),
        jnp.maximum(of_rows, largest) / share,
    )
    return errors, toward, deviation, jnp.where(equal, excess, 0.0).max(initial=0.0)


def cost_scale(problem: Problem, s: ConstrainedState, e: Expansion):
    """The scale of the cost at the present iterate, to which products of multipliers and distances are relative."""
    spread = cost_spread(problem, e, s.xs, s.us)
    # A cost that does not change, as where only constraints matter, says nothing.
    rounding = 100 * jnp.finfo(problem.dtype).eps * jnp.abs(e.stage.value.sum() + e.terminal.value)
    return jnp.where(spread > rounding, jnp.maximum(spread, 1e-6 * s.scale.cost), s.scale.cost)


def least_regularization(s: ConstrainedState):
    """The smallest regularization that is not zero."""
    return 1e-6 * s.scale.cost
