"""Second derivatives of the Lagrangian by differences of first derivatives.

Derivatives of a robot's accelerations are cheap to compile, their derivatives are not. Stages depend on their own state
and control only, so a displacement of one component at all stages at once gives a column for each stage. The error of
one-sided differences, some 1e-8 of the scale in double precision, still lets each of Newton's steps gain many digits;
central ones would take twice the time.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn.trajopt.ddp._expansion import Expansion, expand_terms, motion, start_widths
from jaxdyn.trajopt.problem import Problem, Quadratic


def differenced_costs(problem: Problem, xs, us, e: Expansion, costates, multipliers) -> tuple[Quadratic, Quadratic]:
    """The costs of stages and of the end with the second derivatives of the Lagrangian: costates multiply the steps,
    and `multipliers` `[rows]` the constraints."""
    n, m = e.A.shape[-1], e.B.shape[-1]
    dynamics = problem.dynamics
    of_states = motion(problem, xs)
    if e.start is not None:
        # What is chosen once for all stages does not move.
        of_states = jnp.maximum(of_states, jnp.abs(e.start.directions) @ start_widths(problem, xs[0]))
    sizes = jnp.concatenate([of_states, jnp.abs(us).max(axis=0)])
    steps = jnp.finfo(xs.dtype).eps ** 0.5 * jnp.maximum(sizes, 1e-2)

    def slopes(displacement):
        x, u = jax.vmap(lambda x: dynamics.integrate(x, displacement[:n]))(xs), us + displacement[n:]
        # On a group the derivatives are about where the displaced steps lead. That the costates are about another point
        # adds an antisymmetric part only.
        after = x[1:] + e.gaps[1:] if dynamics.euclidean else jax.vmap(problem.step)(x[:-1], u, problem.stages)
        stages = x[:-1], u, problem.stages, after, costates[1:]
        of_x, of_u = problem.over_stages(dynamics.pull_back, one_by_one=True)(*stages)
        stage, end, rows = expand_terms(problem, x, u)
        by_x, by_u, by_end = rows.slopes(*problem.split_rows(multipliers))
        slope_x, slope_u = stage.x + of_x + by_x, stage.u + of_u + by_u
        return jnp.concatenate([slope_x, slope_u], axis=1), end.x + by_end

    stage, end = lax.map(slopes, jnp.concatenate([jnp.zeros((1, n + m), xs.dtype), jnp.diag(steps)]))
    matrices = jnp.moveaxis((stage[1:] - stage[0]) / steps[:, None, None], 0, 1)
    matrices = 0.5 * (matrices + jnp.swapaxes(matrices, 1, 2))
    last = (end[1 : n + 1] - end[0]) / steps[:n, None]
    xx, ux, uu = matrices[:, :n, :n], matrices[:, n:, :n], matrices[:, n:, n:]
    return e.stage._replace(xx=xx, ux=ux, uu=uu), e.terminal._replace(xx=0.5 * (last + last.T))
