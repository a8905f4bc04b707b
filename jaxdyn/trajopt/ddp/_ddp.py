"""Differential dynamic programming, and its constrained form: Newton steps by Riccati recursions."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, NotConvergedWarning, naming_arguments, require_positive_integer, warn
from jaxdyn._types import ArrayLike
from jaxdyn._waits import saying
from jaxdyn.trajopt._solution import Multipliers, Solution, Status
from jaxdyn.trajopt._solution_report import values_not_finite
from jaxdyn.trajopt.ddp._batches import one_by_one_on_cpu
from jaxdyn.trajopt.ddp._constrained import run_constrained
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._iteration import run_unconstrained
from jaxdyn.trajopt.ddp._solution_derivatives import Optimum, optimum_tangent
from jaxdyn.trajopt.ddp._starts import best_solution, several_guesses
from jaxdyn.trajopt.problem import Problem, join_rows


@naming_arguments
def ddp(
    problem: Problem,
    us: ArrayLike | None = None,
    xs: ArrayLike | None = None,
    *,
    multipliers: Multipliers | None = None,
    options: DDPOptions | None = None,
    starts: int = 1,
) -> Solution:
    """Solve a problem by differential dynamic programming from a guess of controls, or of states and controls.

    Without constraints, FDDP of Mastalli et al. (Crocoddyl: An efficient and versatile framework for multi-contact
    optimal control, ICRA 2020): each iteration expands costs and dynamics about the trajectory, solves the
    linear-quadratic problem by a Riccati recursion, and rolls its policy out with the largest step length that
    decreases the cost enough. If the states are not a roll-out, an iteration first tries the whole step of the linear
    model, as in direct multiple shooting (Giftthaler et al., A family of iterative Gauss-Newton shooting methods for
    nonlinear optimal control, IROS 2018), so gaps close over the iterations. Bounds on controls hold in every iterate
    (Mastalli et al., A feasibility-driven approach to control-limited DDP, 2022), by Newton steps on an active set of
    the whole horizon.

    With constraints, a primal-dual barrier method on the same recursion. States, controls and multipliers take one
    Newton step, with the dynamics as constraints of their own, and a filter of infeasibility and cost decides how much
    of it (Wächter & Biegler, On the implementation of an interior-point filter line-search algorithm, Math. Program.
    2006). Bounds on controls hold in every iterate. Constraints may be violated on the way: their barriers are smooth
    on both sides of a bound, by a proximal term with multipliers, which are updated only when the problem with the
    present barrier is solved. Where no step is acceptable, or only tiny ones are, the solve begins anew from `x0`
    repeated, at most three times. Where every beginning ends at a point at which the linear models of the constraints
    contradict each other, by the lemma of Farkas, the status is infeasible; it is about that point, and another guess
    may lead elsewhere. Where the cost has fallen by 1e10 times its scale and is not flat, the status is unbounded.

    Free components of the initial state (`Problem.free_x0`) are unknowns as the controls: the value function at stage 0
    gives their step, and all that is said of derivatives by controls holds for them.

    The status is converged only if the derivative of the Lagrangian by the controls, the violation, the gaps, and the
    products of multipliers and distances are within the tolerances of `options`, each relative to its size; and if no
    curvature with all second derivatives is negative there. A solve leaves a maximum or a saddle along a direction of
    negative curvature; the status is `NO_MINIMUM` if it does not get away.

    **Arguments**

    - `us` `[horizon, nu]`: zeros by default; clipped to their bounds.
    - `xs` `[horizon + 1, nx]`: by default the roll-out of `us`, or `x0` repeated where the roll-out diverges, costs
      more, or violates constraints that `x0` meets.
    - `multipliers`: those of a solution nearby (`solution.multipliers`). With constraints, each step solves the
      linear-quadratic problem with all inequalities for its active set (sequential quadratic programming, Nocedal &
      Wright, Numerical Optimization, 2006, section 18.1). Where this fails, or the guess violates a constraint by more
      than its size, the barrier method begins at the guess. Second derivatives are taken from the first step on
      with an active set, without constraints, and near a solution with `backward="associative"`, unless
      `options.hessian` leaves them out.
    - `starts`: number of guesses from which the problem is solved; the converged solution with the lowest cost is
      returned, or what the first guess has led to if none has converged. After the given guess come its controls with
      `x0` repeated, controls of zero, and constant controls: problems with obstacles or swing-ups have several minima.
      Solves take much less time than their compilation, which is the same for all.

    Derivatives of the solution's trajectory, cost and multipliers with respect to all arrays of the problem come from
    the implicit function theorem, in both modes: exact at a solution, so converge tightly. They are NaN where the
    status is not `CONVERGED`, because the theorem holds at solutions only, and where a solution is not unique. Gains,
    status and residuals have no derivatives, and the guess does not change them.

    Compiled as a whole. Under `jax.vmap` the problems of a batch are solved one after the other on a CPU, each until it
    ends, and in lock step elsewhere, where elements that have ended do not change.

    **Raises** `ShapeError`; `ModelError` for several starts with multipliers, and where a cost, a constraint or the
    dynamics are not finite at the guess though its states are. **Warns** `NotConvergedWarning` where a value or a
    derivative at the last iterate is not finite (both are checked only outside of transformations), and at run time
    where derivatives are NaN because a solve has not converged or its solution is not unique.
    """
    # As arrays, so that other numbers do not compile again.
    numbers: DDPOptions = jax.tree.map(jnp.asarray, DDPOptions() if options is None else options)
    us, xs = (None if x is None else jnp.asarray(x, problem.dtype) for x in (us, xs))
    require_positive_integer(starts, "starts")
    if starts > 1 and multipliers is not None:
        raise ModelError(f"starts is {starts}, but multipliers belong to a single guess: leave one of them out")
    with saying("solving a problem of optimal control"):
        solution = _jitted_solve(problem, (us, xs, multipliers, starts), numbers)
        if not isinstance(solution.status, Tracer):
            # The status is known when the solve has ended.
            _require_finite_guess(problem, solution)
    return solution


@eqx.filter_custom_jvp
def _differentiable_solve(problem: Problem, guess: tuple[Any, Any, Any, int], options: DDPOptions) -> Solution:
    us, xs, multipliers, starts = guess
    if starts == 1:
        return _traced_once(problem, (us, xs, multipliers), options)
    guesses = several_guesses(problem, us, xs, starts)
    return best_solution(jax.vmap(lambda us, xs: _traced_once(problem, (us, xs, None), options))(*guesses))


@eqx.filter_jit
def _traced_once(problem: Problem, guess: tuple[Any, Any, Any], options: DDPOptions) -> Solution:
    """The solution, by a function that is traced once for a program with derivatives, whose rule calls it again."""
    arrays, static = eqx.partition((problem, guess, options), eqx.is_array)
    return one_by_one_on_cpu(lambda arrays: _solve(*eqx.combine(arrays, static)), in_programs=True)(arrays)


def _solve(problem: Problem, guess: tuple[Any, Any, Any], options: DDPOptions) -> Solution:
    us, xs, multipliers = guess
    options = options.with_defaults(problem.dtype, robot=problem.of_robot)
    if problem.stage_constraints or problem.terminal_constraints:
        return run_constrained(problem, us, xs, multipliers, options)
    if options.backward == "associative" and problem.bounded:
        raise ModelError(
            "backward='associative' solves problems without bounds on controls: use backward='scan', or give the "
            "bounds as a Constraint on a ControlResidual"
        )
    # Plans of a controller have no multipliers of the steps: with few iterations, second derivatives do not pay.
    near = multipliers is not None and multipliers.dynamics is not None
    return run_unconstrained(problem, us, xs, options, near)


@_differentiable_solve.def_jvp
def _solution_tangent(primals, tangents):
    """The implicit function theorem; guess and options do not change a solution. Without convergence, or where the
    solution is not unique, it does not hold, and the derivatives are NaN."""
    problem, tangent = primals[0], tangents[0]
    solution = _differentiable_solve(*primals)
    rows = join_rows(solution.multipliers.stage, solution.multipliers.terminal)
    optimum = Optimum(solution.xs, solution.us, rows)
    d, costates, unique = optimum_tangent(problem, tangent, optimum)
    jax.debug.callback(_warn_without_derivatives, solution.status, unique)
    cost = eqx.filter_jvp(
        lambda p, xs, us: p.total_cost(xs, us), (problem, solution.xs, solution.us), (tangent, d.xs, d.us)
    )[1]

    def differentiable(s: Solution):
        return s.xs, s.us, s.cost, s.multipliers.dynamics, s.multipliers.stage, s.multipliers.terminal  # type: ignore

    constant = jax.tree.map(lambda _: None, solution)
    parts = d.xs, d.us, cost, costates, *problem.split_rows(d.multipliers)
    known = jnp.where(solution.success & unique, 1.0, jnp.nan)
    parts = tuple(known.astype(part.dtype) * part for part in parts)
    return solution, eqx.tree_at(differentiable, constant, parts, is_leaf=lambda x: x is None)


def _warn_without_derivatives(status, unique) -> None:
    """Warn on the host that derivatives are NaN; Python shows the same warning once."""
    if int(status) != Status.CONVERGED:
        warn(
            f"derivatives of a solution of ddp are NaN, because it has not converged ({Status(int(status)).text}): "
            "raise max_iterations, loosen the tolerances in DDPOptions, or start from a better guess",
            NotConvergedWarning,
        )
    elif not unique:
        warn(
            "derivatives of a solution of ddp are NaN, because it is not unique: along some direction of the controls "
            "the cost does not change, to second order; give all controls a cost, if a small one",
            NotConvergedWarning,
        )


_jitted_solve = eqx.filter_jit(_differentiable_solve)


def _require_finite_guess(problem: Problem, solution: Solution) -> None:
    """Raise `ModelError` where a cost, a constraint or the dynamics are not finite at finite states of the guess: a
    mistake, not a divergence. Warn where values or derivatives at the last iterate are not finite."""
    if int(solution.status) != Status.DIVERGED:
        return
    xs, us = np.asarray(solution.xs), np.asarray(solution.us)
    if not (np.isfinite(xs).all() and np.isfinite(us).all()):
        return
    places = values_not_finite(problem, solution.xs, solution.us)
    if not places:
        return
    text = (
        f"{'; '.join(places)}, where states and controls are: look for a division by zero, a logarithm, or a square "
        "root or norm of zero, whose derivative is not finite, or start from another guess"
    )
    if int(solution.iterations) == 1 and any(place.startswith("the value") for place in places):
        raise ModelError(f"at the guess {text}")
    warn(f"the solve ended because {text}", NotConvergedWarning)
