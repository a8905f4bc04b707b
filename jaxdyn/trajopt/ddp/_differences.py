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
from jaxdyn.trajopt.problem import Problem, Quadratic, function_of_displacement


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

    def of_stage(x, u, k, costate):
        def lagrangian(x, u):
            at = problem.with_solution(dynamics.solution_at(x, u, k, derivatives=False))
            reached = at.dynamics.step(x, u, k)
            # On a group the derivatives are about where the displaced steps lead. That the costates are about another
            # point adds an antisymmetric part only.
            return at.stage_cost(x, u, k) + costate @ dynamics.difference(lax.stop_gradient(reached), reached)

        return jax.grad(function_of_displacement(lagrangian, dynamics, x, u))(jnp.zeros(n + m, x.dtype))

    def of_end(x):
        cost = function_of_displacement(lambda x, _: problem.terminal_cost(x), dynamics, x, None)
        return jax.grad(cost)(jnp.zeros(n, x.dtype))

    def slopes(displacement):
        x, u = jax.vmap(lambda x: dynamics.integrate(x, displacement[:n]))(xs), us + displacement[n:]
        # One reverse pass for all costs and the step takes a fraction of the time of matrices.
        stage = problem.over_stages(of_stage, one_by_one=True)(x[:-1], u, problem.stages, costates[1:])
        end = problem.stage_function(of_end)(x[-1])
        # Products with the matrices of constraints, because those that do not count may have no finite derivative.
        by_x, by_u, by_end = expand_terms(problem, x, u)[2].slopes(*problem.split_rows(multipliers))
        return stage + jnp.concatenate([by_x, by_u], axis=1), end + by_end

    stage, end = lax.map(slopes, jnp.concatenate([jnp.zeros((1, n + m), xs.dtype), jnp.diag(steps)]))
    matrices = jnp.moveaxis((stage[1:] - stage[0]) / steps[:, None, None], 0, 1)
    matrices = 0.5 * (matrices + jnp.swapaxes(matrices, 1, 2))
    last = (end[1 : n + 1] - end[0]) / steps[:n, None]
    xx, ux, uu = matrices[:, :n, :n], matrices[:, n:, :n], matrices[:, n:, n:]
    return e.stage._replace(xx=xx, ux=ux, uu=uu), e.terminal._replace(xx=0.5 * (last + last.T))
