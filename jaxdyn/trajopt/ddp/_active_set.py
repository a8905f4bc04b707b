"""Steps with an active set, for guesses near a solution.

Near a solution, most of the inequalities that hold with equality are known. So each iteration solves its whole
linear-quadratic problem, with the linear models of all inequalities, and takes the whole step, as in sequential
quadratic programming (Nocedal & Wright, Numerical Optimization, 2006, section 18.1). A few Riccati recursions find the
active set of that problem, and cost little beside the derivatives. The iterates converge quadratically, where those of
a barrier method have to follow a barrier that falls.

Where these recursions do not find it, because sets that follow each other cycle, they begin again with the set that an
interior-point method finds (`_interior_point`). Where second derivatives are not positive definite in the free
directions, so that there is no set, a regularization is added to them.

Such steps need not converge from afar. Where no active set is found, or the largest error has not become smaller for
the fifth time, the barrier method begins at the guess.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array
from jaxdyn.trajopt.ddp._barrier import Sides, inside_box
from jaxdyn.trajopt.ddp._constrained_state import EXACTNESS, ActiveSet, ConstrainedState, control_width, cost_scale
from jaxdyn.trajopt.ddp._expansion import ConstraintComponents, Expansion
from jaxdyn.trajopt.ddp._interior_point import Bounded, interior_point_sets
from jaxdyn.trajopt.ddp._riccati import AffinePolicy, backward_with_active_set, control_slopes
from jaxdyn.trajopt.problem import Problem

AT_BOUND = 2e-5
"""Distance from a bound, relative to its size and range, up to which a control may be held there at first. It is larger
than the distance to which a guess's controls are moved."""
SMALLER, GROWTHS = 0.9, 4
"""An error above this part of the last one is not smaller, and the number of times that this may happen."""


def with_active_set(problem: Problem, s: ConstrainedState, slopes) -> ConstrainedState:
    """The state before the first step with an active set, from the derivatives by the controls of the Lagrangian that
    has the guess's multipliers of constraints."""
    delta = _rounding(s) * s.unit_of_delta()
    return s._replace(rows=s.rows._replace(delta=delta), box=_box_multipliers(problem, s.us, slopes))


def _rounding(s: ConstrainedState) -> float:
    """The relative size below which distances are rounding."""
    return float(jnp.finfo(s.xs.dtype).eps) ** EXACTNESS


def _box_multipliers(problem: Problem, us, slopes) -> Sides:
    """The multipliers of the controls' bounds: the slopes of the controls that they press against a bound."""
    inside = inside_box(us, problem.control_box, AT_BOUND)
    return Sides(
        jnp.where(us < inside, jnp.maximum(slopes, 0.0), 0.0),
        jnp.where(us > inside, jnp.maximum(-slopes, 0.0), 0.0),
    )


def _beyond(rows: ConstraintComponents, dxs, dus) -> Sides:
    """How far a step leads the components beyond their bounds, by their linear models. The present distances come
    first: added to a value, a change as small as `delta` would be lost."""
    change = rows.change(dxs, dus)
    return Sides(rows.lower - rows.value - change, rows.value - rows.upper + change)


def active_set_policy(
    problem: Problem, s: ConstrainedState, e: Expansion, rows: ConstraintComponents, regularization
) -> tuple[AffinePolicy, Sides]:
    """The policy of the step that solves the linear-quadratic problem with all inequalities, and their active set; not
    `ok` where none is found. `regularization` is added as in `backward`."""
    low, high = problem.control_box
    equal = rows.lower == rows.upper
    finite = Sides(*(jnp.isfinite(bound) & ~equal for bound in (rows.lower, rows.upper)))

    def system(active: Sides) -> Expansion:
        held = active.lower | active.upper | equal
        bound = jnp.where(active.upper, rows.upper, rows.lower)
        distance = jnp.where(held, rows.value - jnp.where(held, bound, 0.0), 0.0)
        multiplier = jnp.where(equal, s.rows.equality, s.rows.shift.upper - s.rows.shift.lower)
        slope = jnp.where(held, multiplier + distance / s.rows.delta, 0.0)
        curvature = jnp.where(held, 1 / s.rows.delta, 0.0)
        stage, end = rows.add_to(e.stage, e.terminal, problem.split_rows(slope), problem.split_rows(curvature))
        return e._replace(stage=stage, terminal=end)

    def next_active(dxs, dus, active: Sides) -> Sides:
        # Those that are held stay while their multiplier is positive.
        sides = zip(active, _beyond(rows, dxs, dus), s.rows.shift, finite, strict=True)
        least = _rounding(s) * s.scale.rows
        return Sides(
            *(
                has & jnp.where(held, excess + s.rows.delta * multiplier > 0, excess > least)
                for held, excess, multiplier, has in sides
            )
        )

    box, none, fixed = (low - s.us, high - s.us), jnp.zeros_like(equal), low == high

    def given():
        return (s.box.lower > 0) | fixed, s.box.upper > 0, Sides(*(multiplier > 0 for multiplier in s.rows.shift))

    def of_interior_points():
        width = control_width(problem, s.us)
        sizes, known = Bounded(Sides(s.scale.rows, s.scale.rows), Sides(width, width)), Bounded(s.rows.shift, s.box)
        equalities = system(Sides(none, none))
        found = interior_point_sets(
            problem, equalities, rows, s.us, known, sizes, cost_scale(problem, s, e), regularization
        )
        return found.box.lower | fixed, found.box.upper, found.rows

    def search(state):
        _, tries = state
        at_low, at_high, of_rows = lax.cond(tries == 0, given, of_interior_points)
        start = (at_low, at_high), of_rows
        return backward_with_active_set(system, next_active, regularization, box, start), tries + 1

    def goes_on(state):
        (policy, _, settled), tries = state
        return ~(policy.ok & settled) & (tries < 2)

    start = jax.tree.map(jnp.zeros_like, s.policy), Sides(none, none), jnp.array(False)
    (policy, active, settled), _ = lax.while_loop(goes_on, search, (start, jnp.zeros((), jnp.int32)))
    return policy._replace(ok=policy.ok & settled), active


def after_active_set_step(
    problem: Problem,
    s: ConstrainedState,
    after: ConstrainedState,
    rows: ConstraintComponents,
    policy: AffinePolicy,
    active: Sides,
    dxs,
    dus,
) -> ConstrainedState:
    """The state `after` the whole step of a policy from the state `s`, with the multipliers that belong to the step."""
    sides = zip(active, _beyond(rows, dxs, dus), s.rows.shift, strict=True)
    shift = (jnp.where(held, multiplier + excess / s.rows.delta, 0.0) for held, excess, multiplier in sides)
    return after._replace(
        rows=after.rows._replace(shift=Sides(*shift)),
        box=_box_multipliers(problem, after.us, control_slopes(policy, dxs, dus)),
    )


def next_active_set(before: ActiveSet, error, possible) -> tuple[ActiveSet, Array]:
    """The progress of steps with an active set after an iterate with a largest error, and whether they have failed,
    as they have where the step is not `possible`."""
    growths = before.growths + (error > SMALLER * before.error)
    return ActiveSet(before.on, error, growths), before.on & (~possible | (growths > GROWTHS))


def after_iterate(
    before: ActiveSet, guess: ConstrainedState, after: ConstrainedState, error, possible, stationary, unproven, last
) -> ConstrainedState:
    """The state `after` an iterate with a largest error, or the `guess` without an active set where such steps have
    failed: where the step is not `possible`, and where a check of a stationary iterate is `unproven`."""
    progress, failed = next_active_set(before, error, possible)
    failed = jnp.where(stationary, before.on & unproven, failed) & ~last
    after = after._replace(active=progress)
    off = progress._replace(on=jnp.array(False))
    again = guess._replace(iterations=after.iterations, history=after.history, best=after.best, active=off)
    return jax.tree.map(lambda a, b: jnp.where(failed, a, b), again, after)
