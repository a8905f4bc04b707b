"""The linear-quadratic problem about a trajectory, solved before its initial state is known."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._expansion import Expansion, cost_spread, expand, matvec
from jaxdyn.trajopt.ddp._riccati import (
    AffinePolicy,
    CurvatureShift,
    backward,
    backward_in_box,
    linear_roll_out,
    units_of_regularization,
)
from jaxdyn.trajopt.problem import Problem


def linear_quadratic_policy(problem: Problem, xs, us, options: DDPOptions) -> tuple[Expansion, AffinePolicy]:
    """The Gauss-Newton expansion about a trajectory that begins at `xs[0]`, whatever the problem's `x0` is, and the
    policy of its linear-quadratic problem, for a problem without constraints but for bounds on controls. Regularization
    grows tenfold until every curvature is positive definite; the policy is not `ok` where none is enough."""
    options = options.with_defaults(problem.dtype, robot=problem.of_robot)
    gaps = problem.gaps(xs, us).at[0].set(0)
    e, _ = expand(problem, xs, us, gaps)
    units = units_of_regularization(e, cost_spread(problem, e, xs, us, 1.0))
    low, high = problem.control_box

    def attempt(state):
        _, regularization = state
        damping = CurvatureShift(*(regularization * unit for unit in units))
        policy = backward_in_box(e, damping, low - us, high - us) if problem.bounded else backward(e, damping)
        return policy, 10 * regularization

    def goes_on(state):
        return ~state[0].ok & (state[1] <= options.max_regularization)

    none = AffinePolicy.zeros(problem.horizon, problem.dynamics.ndx, problem.dynamics.nu, problem.dtype, False)
    policy, _ = lax.while_loop(goes_on, attempt, (none, options.regularization))
    return e, policy


def linear_quadratic_step(
    problem: Problem, xs, us, e: Expansion, policy: AffinePolicy, gap: Float[Array, "ndx"]
) -> tuple[Array, Array, Any]:
    """The states and controls after the whole step of a policy from the state at the displacement `gap` of `xs[0]`, and
    the cost of the quadratic model there. Controls stay within their bounds."""
    low, high = problem.control_box
    e = e._replace(gaps=e.gaps.at[0].set(gap))
    dxs, dus = linear_roll_out(e, policy, cut=(low - us, high - us) if problem.bounded else None)

    def cost(l, dx, du):
        value = l.value + (l.x * dx).sum(axis=-1) + 0.5 * (dx * matvec(l.xx, dx)).sum(axis=-1)
        if du is None:
            return value
        return (value + (du * (l.u + matvec(l.ux, dx) + 0.5 * matvec(l.uu, du))).sum(axis=-1)).sum()

    end = jax.tree.map(lambda a: a[None], e.terminal)
    total = cost(e.stage, dxs[:-1], dus) + cost(end, dxs[-1:], None).sum()
    return jax.vmap(problem.dynamics.integrate)(xs, dxs), jnp.clip(us + dus, low, high), total
