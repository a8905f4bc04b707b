"""The forward pass: a roll-out of the policy that closes gaps by the step length, and the search over step lengths."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._types import Array, Float
from jaxdyn.trajopt.ddp._augmented_lagrangian import Bounds, Evaluation, Penalties, evaluate
from jaxdyn.trajopt.ddp._riccati import Policy
from jaxdyn.trajopt.problem._problem import Problem


class Trial(NamedTuple):
    """The outcome of a search."""

    accepted: Array
    alpha: Float[Array, ""]
    xs: Float[Array, "stages nx"]
    us: Float[Array, "horizon nu"]
    at: Evaluation


def roll(problem: Problem, xs, us, policy: Policy, gaps, alpha, box):
    """States, controls, and the displacements of the states, of the policy with the step length `alpha`.

    Gaps shrink by `1 - alpha` (Giftthaler et al., A family of iterative Gauss-Newton shooting methods, IROS 2018).
    """
    dynamics = problem.dynamics

    def displaced(reached, old, gap):
        # A state stays behind the point that the step before reaches by what is left of the gap.
        x = dynamics.integrate(reached, (alpha - 1) * gap)
        return x, dynamics.difference(old, x)

    def stage(reached, at):
        old, u, k, K, gap, number, *bounds = at
        x, dx = displaced(reached, old, gap)
        u = u + alpha * k + K @ dx
        if bounds:
            u = jnp.clip(u, *bounds)
        return problem.step(x, u, number), (x, u, dx)

    bounds = box if problem.bounded else ()
    stages = (xs[:-1], us, policy.k, policy.K, gaps[:-1], problem.stages, *bounds)
    reached, (new_xs, new_us, dxs) = lax.scan(stage, problem.x0.astype(xs.dtype), stages)
    x, dx = displaced(reached, xs[-1], gaps[-1])
    return jnp.concatenate([new_xs, x[None]]), new_us, jnp.concatenate([dxs, dx[None]])


def search(
    problem: Problem,
    xs,
    us,
    at: Evaluation,
    policy: Policy,
    gaps,
    bounds: Bounds,
    penalties: Penalties,
    box,
    alphas: Float[Array, "groups together"],
    sufficient: Float[Array, ""],
) -> Trial:
    """The first of the step lengths `alphas` that is good enough; all of a group are tried at once, the next group
    where none is. Nothing is tried where the policy is none.

    Good enough is the part `sufficient` of the expected decrease `alpha (d0 + alpha d1 / 2)`, in which what gaps add
    depends on the trial; where the expectation is an increase, because gaps close, at most twice that (Mastalli et al.,
    Crocoddyl, ICRA 2020, section III-C).
    """
    value = bounds.value(at, penalties)
    noise = 10 * jnp.finfo(value.dtype).eps * jnp.abs(value)

    def one(alpha):
        new_xs, new_us, dxs = roll(problem, xs, us, policy, gaps, alpha, box)
        new = evaluate(problem, new_xs, new_us)
        new_value = bounds.value(new, penalties)
        of_gaps = ((policy.Vxx @ gaps[..., None])[..., 0] * dxs).sum()
        slope, curvature = policy.slope + of_gaps, policy.curvature - 2 * of_gaps
        expected = alpha * (slope + 0.5 * alpha * curvature)
        decrease = value - new_value
        good = jnp.where(expected >= 0, decrease >= sufficient * expected - noise, decrease > 2 * expected)
        finite = jnp.isfinite(new_value) & jnp.isfinite(new_xs).all() & jnp.isfinite(new_us).all()
        return Trial(good & finite, alpha, new_xs, new_us, new)

    def group(state):
        _, g = state
        trials = jax.vmap(one)(alphas[g])
        best = jnp.argmax(trials.accepted)
        return jax.tree.map(lambda a: a[best], trials), g + 1

    nothing = Trial(~policy.ok, jnp.zeros_like(value), xs, us, at)
    trial, _ = lax.while_loop(lambda s: ~s[0].accepted & (s[1] < alphas.shape[0]), group, (nothing, 0))
    accepted = trial.accepted & policy.ok
    nothing = nothing._replace(accepted=accepted)
    return jax.tree.map(lambda new, old: jnp.where(accepted, new, old), trial, nothing)
