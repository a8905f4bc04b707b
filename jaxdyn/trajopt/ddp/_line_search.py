"""The forward pass: a roll-out of the policy that closes gaps by the step length, with the search over step lengths; or
the step of the linear model, whose gaps are what the model leaves."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._expansion import Expansion, matvec
from jaxdyn.trajopt.ddp._riccati import AffinePolicy, linear_roll_out
from jaxdyn.trajopt.problem import Problem

FEWER = 0.9
"""A step of the linear model that leaves at most this part of the gaps is taken whatever it costs."""


class TrajectoryIterate(NamedTuple):
    """A trajectory of the solve; its first cost is evaluated in the first iteration."""

    xs: Float[Array, "stages nx"]
    us: Float[Array, "horizon nu"]
    gaps: Float[Array, "stages ndx"]
    cost: Float[Array, ""]


class LineSearchResult(NamedTuple):
    """The outcome of a search."""

    accepted: Array
    alpha: Float[Array, ""]
    iterate: TrajectoryIterate


def roll_out(problem: Problem, iterate: TrajectoryIterate, policy: AffinePolicy, alpha, box):
    """States, controls, and the displacements of the states, under the policy with the step length `alpha`.

    Gaps shrink by `1 - alpha` (Giftthaler et al., A family of iterative Gauss-Newton shooting methods, IROS 2018). A
    free initial state has none: its fixed components are those of `x0` from the guess on.
    Controls are cut at the bounds `box`, a pair of arrays `[horizon, nu]`, or empty for none."""
    dynamics = problem.dynamics
    xs, us, gaps, _ = iterate

    def displace(after, old, gap):
        # A state stays behind the point to which the step before leads by what remains of the gap.
        x = dynamics.integrate(after, (alpha - 1) * gap)
        return x, dynamics.difference(old, x)

    def step(after, stage):
        old, u, k, K, gap, number, *bounds = stage
        x, dx = displace(after, old, gap)
        u = u + alpha * k + K @ dx
        u = jnp.clip(u, *bounds) if bounds else u
        return problem.step(x, u, number), (x, u, dx)

    stages = (xs[:-1], us, policy.k, policy.K, gaps[:-1], problem.stages, *box)
    first = problem.x0.astype(xs.dtype) if policy.start is None else dynamics.integrate(xs[0], alpha * policy.start)
    after, (new_xs, new_us, dxs) = lax.scan(step, first, stages)
    x, dx = displace(after, xs[-1], gaps[-1])
    return jnp.concatenate([new_xs, x[None]]), new_us, jnp.concatenate([dxs, dx[None]])


def no_step(iterate: TrajectoryIterate) -> LineSearchResult:
    """The trial that stays at the iterate."""
    return LineSearchResult(jnp.array(False), jnp.zeros_like(iterate.cost), iterate)


def linear_step(problem: Problem, iterate: TrajectoryIterate, e: Expansion, policy: AffinePolicy) -> LineSearchResult:
    """The whole step of the linear model, as in direct multiple shooting (Giftthaler et al., IROS 2018).

    It is accepted if it lessens the gaps, or else the cost and the price of the gaps: their absolute values, weighted
    by the costates that the step leads to (Nocedal & Wright, Numerical Optimization, 2006, section 15.4)."""
    xs, us, gaps, value = iterate
    dxs, dus = linear_roll_out(e, policy)
    new_xs = jax.vmap(problem.dynamics.integrate)(xs, dxs)
    new_us = jnp.clip(us + dus, *problem.control_box)
    new_gaps, new_value = problem.gaps(new_xs, new_us), problem.total_cost(new_xs, new_us)
    price = jnp.abs(policy.Vx + matvec(policy.Vxx, dxs - gaps))
    size, new_size = jnp.abs(gaps), jnp.abs(new_gaps)
    good = new_value + (price * new_size).sum() < value + (price * size).sum()
    good = policy.ok & (good | (new_size.sum() <= FEWER * size.sum()))
    finite = jnp.isfinite(new_value) & jnp.isfinite(new_xs).all() & jnp.isfinite(new_gaps).all()
    return LineSearchResult(good & finite, jnp.ones_like(value), TrajectoryIterate(new_xs, new_us, new_gaps, new_value))


def search(
    problem: Problem, options: DDPOptions, iterate: TrajectoryIterate, policy: AffinePolicy, first: LineSearchResult
) -> LineSearchResult:
    """Search for the first of the step lengths that is good enough, unless the `first` trial is accepted; a group is
    tried at once, and the next group where none of it is. Nothing is tried unless the policy is `ok`.

    Good enough is the part `sufficient_decrease` of the expected decrease `alpha (d0 + alpha d1 / 2)`, in which what
    gaps add depends on the trial; where an increase is expected, because gaps close, at most twice that (Mastalli et
    al., Crocoddyl, ICRA 2020, section III-C)."""
    alphas = jnp.asarray(options.step_lengths, problem.dtype).reshape(-1, options.step_lengths_at_once)
    value = iterate.cost
    noise = 10 * jnp.finfo(value.dtype).eps * jnp.abs(value)
    gaps, box = iterate.gaps, problem.control_box if problem.bounded else ()

    def attempt(alpha):
        xs, us, dxs = roll_out(problem, iterate, policy, alpha, box)
        new_value = problem.total_cost(xs, us)
        by_gaps = ((policy.Vxx @ gaps[..., None])[..., 0] * dxs).sum()
        slope, curvature = policy.slope + by_gaps, policy.curvature - 2 * by_gaps
        expected = alpha * (slope + 0.5 * alpha * curvature)
        decrease = value - new_value
        enough = decrease >= options.sufficient_decrease * expected - noise
        good = jnp.where(expected >= 0, enough, decrease > 2 * expected)
        finite = jnp.isfinite(new_value) & jnp.isfinite(xs).all() & jnp.isfinite(us).all()
        return LineSearchResult(good & finite, alpha, TrajectoryIterate(xs, us, (1 - alpha) * gaps, new_value))

    def attempt_group(state):
        _, g = state
        trials = jax.vmap(attempt)(alphas[g])
        best = jnp.argmax(trials.accepted)
        return jax.tree.map(lambda a: a[best], trials), g + 1

    first = first._replace(accepted=first.accepted | ~policy.ok)
    trial, _ = lax.while_loop(lambda s: ~s[0].accepted & (s[1] < len(alphas)), attempt_group, (first, 0))
    accepted = trial.accepted & policy.ok
    none = no_step(iterate)._replace(accepted=accepted)
    return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), trial, none)
