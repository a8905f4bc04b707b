"""Other starts for segments that a fit leaves far from their samples: along impacts, residuals have several minima in
the state at the start of a segment, and steps end in the nearest."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxdyn.simulate import State
from jaxdyn.sysid.rollouts._shooting import ShootingProblem, ShootingState, evaluate, residuals_and_motion

# A root mean square over a whole segment that no noise reaches, in units of the noise and of the median segment's.
_FAR = 3.0


def far_segments(rms):
    """Return which segments have residuals, root mean squares in units of the noise, far beyond those of the others."""
    return rms > _FAR * jnp.maximum(1.0, jnp.median(rms))


def other_starts(problem: ShootingProblem, state: ShootingState, first: ShootingState) -> list[ShootingState]:
    """Return the states in which far segments start where they were measured, and where the segments before them end.

    `first` is the state at which the fit started.
    """
    r, motion = residuals_and_motion(problem, state)
    data, weight = r.after(problem.loss).data, problem.segments.weight
    count = weight.sum(axis=-1) * (data.shape[-1] / weight.shape[-1])
    far = far_segments(jnp.sqrt(jnp.sum(data**2, axis=-1) / jnp.maximum(count, 1)))
    linked = jnp.roll(problem.segments.linked, 1) > 0
    before = State(*(jnp.roll(x, 1, axis=0) for x in (motion.final.q, motion.final.v)))
    out = []
    for chosen, start in ((far, State(first.q, first.v)), (far & linked, before)):
        q, v = (jnp.where(chosen[:, None], x, y) for x, y in ((start.q, state.q), (start.v, state.v)))
        new = evaluate(problem, dataclasses.replace(state, q=q, v=v))
        # Where no segment is far, or the new cost is not finite, the state is that of before, which has converged.
        tried = jnp.any(chosen) & jnp.isfinite(new.cost)
        out.append(jax.tree.map(lambda x, y, tried=tried: jnp.where(tried, x, y), new, state))
    return out
