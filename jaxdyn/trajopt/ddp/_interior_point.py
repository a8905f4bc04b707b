"""The active set of a linear-quadratic problem with inequalities, by an interior-point method.

A primal-dual method with infeasible slacks (Nocedal & Wright, Numerical Optimization, 2006, section 16.6), whose
Newton steps are Riccati recursions (Rao, Wright & Rawlings, Application of interior-point methods to model predictive
control, JOTA 1998). Its slacks and multipliers stay positive, so it does not guess which inequalities hold with
equality until it is done, and finds active sets also where guesses of them cycle.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._barrier import Sides
from jaxdyn.trajopt.ddp._expansion import ConstraintComponents, Expansion
from jaxdyn.trajopt.ddp._riccati import HeldControls, backward, linear_roll_out
from jaxdyn.trajopt.problem import Problem

FIRST = 1e-3
"""The least first slacks, relative to the inequalities' sizes, and the least first products of slacks and multipliers,
relative to the cost's part of each inequality."""
CENTERING = 0.1
"""The products after a whole step, as a part of those before. After a short step it is more."""
WITHIN = 0.995
"""Part of the way to the nearest zero of a slack or a multiplier that a step may take."""
WHOLE = 0.9
"""The part of the last step from which on slacks and multipliers tell which inequalities are active."""
LAST_POWER = 0.9
"""The products are small enough at this power of the rounding unit, relative to the cost's part."""
MOST_STEPS = 40
"""Most Newton steps."""


class Bounded(NamedTuple):
    """A quantity of each inequality."""

    rows: Sides
    """For the bounds of the components of constraints."""
    box: Sides
    """For the bounds of the controls."""


class _State(NamedTuple):
    """What a Newton step changes; arrays have a number for each inequality."""

    slacks: Float[Array, "n"]
    multipliers: Float[Array, "n"]
    product: Float[Array, ""]
    """The mean product of a slack and its multiplier."""
    part: Float[Array, ""]
    """The part of the last step that was taken."""
    active: Array
    """Whether the last step made an inequality's slack smaller than its multiplier, relative to what they were."""
    ok: Array
    steps: Array


def interior_point_sets(
    problem: Problem,
    e: Expansion,
    rows: ConstraintComponents,
    us,
    multipliers: Bounded,
    sizes: Bounded,
    scale,
    regularization,
) -> Bounded:
    """The inequalities that hold with equality in the solution of a linear-quadratic problem.

    - `e`: the expansion of all but the inequalities; `rows`: the components of constraints, with their linear models.
    - `us`: the controls `[horizon, nu]`, whose bounds are those of the problem.
    - `multipliers`, `sizes`: guesses of the inequalities' multipliers, and the sizes of what they bound.
    - `scale`: the size of the cost; `regularization`: as in `backward`."""
    low, high = problem.control_box
    equal, fixed = rows.lower == rows.upper, low == high
    has, _ = ravel_pytree(
        Bounded(
            Sides(jnp.isfinite(rows.lower) & ~equal, jnp.isfinite(rows.upper) & ~equal),
            Sides(jnp.isfinite(low) & ~fixed, jnp.isfinite(high) & ~fixed),
        )
    )
    number = jnp.maximum(has.sum(), 1).astype(us.dtype)
    (known, unravel), (size, _) = ravel_pytree(multipliers), ravel_pytree(sizes)
    held = HeldControls((~fixed).astype(us.dtype), jnp.zeros_like(us)) if problem.bounded else None

    def distances(change, dus):
        """The distances from the bounds after a step, by the linear models; 1 where there is no bound."""
        of_rows = Sides(rows.value - rows.lower + change, rows.upper - rows.value - change)
        flat, _ = ravel_pytree(Bounded(of_rows, Sides(us - low + dus, high - us - dus)))
        return jnp.where(has, flat, 1.0)

    here = distances(jnp.zeros_like(rows.value), jnp.zeros_like(us))

    def solved(slope, weight):
        """The distances in the solution of the problem in which a change `c` of each distance costs
        `weight c^2 / 2 - slope c`, and whether there is a solution."""
        slope, weight = unravel(slope), unravel(weight)
        slopes, weights = (problem.split_rows(x) for x in (slope.rows.upper - slope.rows.lower, sum(weight.rows)))
        stage, end = rows.add_to(e.stage, e.terminal, slopes, weights)
        u, uu = stage.u + slope.box.upper - slope.box.lower, stage.uu + jax.vmap(jnp.diag)(sum(weight.box))
        system = e._replace(stage=stage._replace(u=u, uu=uu), terminal=end)
        policy = backward(system, regularization, held)
        dxs, dus = linear_roll_out(e, policy)
        return distances(rows.change(dxs, dus), dus), policy.ok

    def step(s: _State) -> _State:
        # The linear models of `slack = distance` and `slack multiplier = target` give the next multipliers
        # `target / slack + multiplier - weight distance`, which enter the conditions of optimality.
        target = jnp.maximum(CENTERING, (1 - s.part) ** 2) * s.product
        weight = s.multipliers / s.slacks
        most = jnp.where(has, target / s.slacks + s.multipliers, 0.0)
        slacks, ok = solved(jnp.where(has, most - weight * here, 0.0), weight)
        multipliers = jnp.where(has, most - weight * slacks, 0.0)
        part = jnp.minimum(_longest(s.slacks, slacks), _longest(s.multipliers, multipliers))
        slacks, multipliers = (a + part * (b - a) for a, b in ((s.slacks, slacks), (s.multipliers, multipliers)))
        product = jnp.where(has, slacks * multipliers, 0.0).sum() / number
        active = has & (multipliers * s.slacks > slacks * s.multipliers)
        return _State(slacks, multipliers, product, part, active, ok, s.steps + 1)

    share, least = scale / number, jnp.finfo(us.dtype).eps ** LAST_POWER
    slacks = jnp.where(has, jnp.maximum(here, FIRST * size), 1.0)
    first = jnp.where(has, jnp.maximum(known, FIRST * share / slacks), 0.0)
    product = (first * slacks).sum() / number
    start = _State(slacks, first, product, jnp.ones_like(number), has, jnp.array(True), jnp.zeros((), jnp.int32))

    def goes_on(s: _State):
        return s.ok & (s.steps < MOST_STEPS) & ((s.product > least * share) | (s.part < WHOLE))

    active = lax.while_loop(goes_on, step, start).active
    return jax.tree.map(lambda x: x > 0, unravel(active.astype(us.dtype)))


def _longest(before, after):
    """The largest part of a step with which all numbers stay positive."""
    falls = after < before
    parts = jnp.where(falls, before / jnp.where(falls, before - after, 1.0), jnp.inf)
    return jnp.minimum(1.0, WITHIN * parts.min(initial=jnp.inf))
