"""The iterations of differential dynamic programming."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._errors import ModelError
from jaxdyn._types import Array
from jaxdyn.trajopt._solution import Gains, Multipliers, Residuals, Solution, Status
from jaxdyn.trajopt.ddp import _augmented_lagrangian as augmented
from jaxdyn.trajopt.ddp._augmented_lagrangian import Evaluation, Penalties
from jaxdyn.trajopt.ddp._ddp_options import DDPOptions
from jaxdyn.trajopt.ddp._expansion import Expansion, expand, second_order_costs
from jaxdyn.trajopt.ddp._line_search import Iterate, search
from jaxdyn.trajopt.ddp._riccati import Policy, backward, backward_associative, backward_in_box
from jaxdyn.trajopt.problem import Problem, bound_excess, join_rows


class DDPState(NamedTuple):
    """The state of a solve between two iterations."""

    iterate: Iterate
    feasible: Array
    """Whether the states are the controls' roll-out."""
    regularization: Array
    penalties: Penalties
    violation: Array
    """Largest violation at the last update of the multipliers."""
    intermediate_tolerance: Array
    intermediate_iterations: Array
    """Iterations since the last update of the multipliers."""
    policy: Policy
    promised: Array
    """Decrease that the last policy expected."""
    status: Array
    iterations: Array
    updates: Array
    """Number of updates of the multipliers."""


def run_iterations(problem: Problem, us, xs, multipliers: Multipliers | None, options: DDPOptions) -> Solution:
    """Solve the problem from a guess."""
    if options.backward == "associative" and problem.bounded:
        raise ModelError(
            "backward='associative' solves problems without bounds on controls: use backward='scan', or give the "
            "bounds as a Constraint on a ControlResidual"
        )
    options = options.with_defaults(problem.dtype, robot=problem.dynamics.robot is not None)
    start = _initial_state(problem, options, us, xs, multipliers)
    iterate = functools.partial(_iterate, problem, options)
    return _solution(problem, lax.while_loop(lambda s: s.status == Status.RUNNING, iterate, start))


def _initial_state(problem: Problem, options: DDPOptions, us, xs, multipliers: Multipliers | None) -> DDPState:
    dtype = problem.dtype
    feasible = xs is None
    us = jnp.clip(problem.guess(us, rolled_out=False)[1], *problem.control_box)
    xs, us = problem.guess(us, xs)
    shape = problem.horizon + 1, problem.dynamics.ndx
    gaps = jnp.zeros(shape, dtype) if feasible else problem.gaps(xs, us)
    multipliers = augmented.constraint_multipliers(problem, multipliers)
    penalties = Penalties(join_rows(multipliers.stage, multipliers.terminal), options.penalty)
    zero, infinity = jnp.zeros((), jnp.int32), jnp.asarray(jnp.inf, dtype)
    evaluation = Evaluation(infinity, infinity, infinity, penalties.multipliers)
    return DDPState(
        iterate=Iterate(xs, us, gaps, evaluation),
        feasible=jnp.asarray(feasible),
        regularization=options.regularization,
        penalties=penalties,
        violation=infinity,
        intermediate_tolerance=options.intermediate_tolerance,
        intermediate_iterations=zero,
        policy=Policy.zeros(problem.horizon, problem.dynamics.ndx, problem.dynamics.nu, dtype),
        promised=infinity,
        status=zero,
        iterations=zero,
        updates=zero,
    )


def _iterate(problem: Problem, options: DDPOptions, s: DDPState) -> DDPState:
    """One backward pass, one line search, and where it is time an update of the multipliers."""
    xs, us, gaps, _ = s.iterate
    e, evaluation = expand(problem, xs, us, gaps, s.penalties)
    value = evaluation.augmented_lagrangian
    scale = 1 + jnp.abs(value)
    policy, regularization = _regularized_policy(problem, options, s, e, scale)
    # Regularization hides a part of the decrease, which counts, too.
    promised = jnp.abs(policy.slope + 0.5 * policy.curvature) / jnp.maximum(policy.undamped, 1e-12)
    promised = jnp.where(policy.ok, promised, jnp.inf)
    trial = search(problem, options, s.iterate._replace(evaluation=evaluation), policy, s.penalties)
    regularization, stuck = _next_regularization(options, regularization, trial)
    after = s._replace(
        iterate=trial.iterate,
        feasible=s.feasible | (trial.accepted & (trial.alpha == 1)),
        regularization=regularization,
        intermediate_iterations=s.intermediate_iterations + 1,
        policy=policy,
        promised=promised,
        iterations=s.iterations + 1,
    )
    solved = s.feasible & (promised < options.tolerance * scale)
    if s.penalties.multipliers.size:
        stationary = solved
        due = s.feasible & (promised < s.intermediate_tolerance * scale)
        late = after.feasible & (after.intermediate_iterations >= options.intermediate_iterations)
        update = due | stuck | late
        after = _update_multipliers(options, after, update)
        solved = stationary & (after.iterate.evaluation.violation <= options.constraint_tolerance)
        # Larger penalties may still help.
        stuck = (stuck | update & stationary) & (s.penalties.weight >= options.max_penalty)
    diverged = ~jnp.isfinite(value) | ~jnp.isfinite(xs).all() | ~jnp.isfinite(e.A).all()
    status = jnp.select(
        [diverged, solved, stuck, after.iterations >= options.max_iterations],
        [Status.DIVERGED, Status.CONVERGED, Status.STALLED, Status.OUT_OF_ITERATIONS],
        Status.RUNNING,
    )
    return after._replace(status=status.astype(jnp.int32))


def _regularized_policy(
    problem: Problem, options: DDPOptions, s: DDPState, e: Expansion, scale
) -> tuple[Policy, Array]:
    """The policy by a backward pass, and the regularization that it took. If the last step promised little,
    `"adaptive"` tries all second derivatives, and drops those that Gauss-Newton leaves out before it regularizes."""
    (low, high), (xs, us, *_) = problem.control_box, s.iterate
    step_box = low - us, high - us
    adaptive, second = options.hessian == "adaptive", jnp.asarray(options.hessian == "full")
    costs = full = e.stage, e.terminal
    if adaptive:
        second = s.promised < options.second_order_below * scale
    if options.hessian != "gauss_newton":
        full = lax.cond(second, lambda: second_order_costs(problem, xs, us, s.penalties, e), lambda: costs)

    def attempt(state):
        _, regularization, second = state
        stage, terminal = jax.tree.map(lambda a, b: jnp.where(second, a, b), full, costs)
        chosen = e._replace(stage=stage, terminal=terminal)
        if options.backward == "associative":
            policy = backward_associative(chosen, regularization)
        elif problem.bounded:
            policy = backward_in_box(chosen, regularization, *step_box)
        else:
            policy = backward(chosen, regularization)
        drop = second & adaptive
        more = jnp.maximum(10 * regularization, options.regularization)
        return policy, jnp.where(policy.ok | drop, regularization, more), second & ~drop | policy.ok

    state = jax.tree.map(jnp.zeros_like, s.policy), s.regularization, second
    return lax.while_loop(lambda s: ~s[0].ok & (s[1] <= options.max_regularization), attempt, state)[:2]


def _next_regularization(options: DDPOptions, regularization, trial) -> tuple[Array, Array]:
    """The regularization of the next iteration, and whether it would have to be above its limit."""
    less = jnp.maximum(regularization / 10, options.regularization)
    more = jnp.maximum(regularization * 10, options.regularization)
    short = trial.alpha <= options.regularize_below
    regularization = jnp.where(trial.alpha > 0.5, less, jnp.where(short, more, regularization))
    stuck = ~trial.accepted & (regularization > options.max_regularization)
    return jnp.minimum(regularization, options.max_regularization), stuck


def _update_multipliers(options: DDPOptions, s: DDPState, update) -> DDPState:
    """The state with new multipliers, penalty and intermediate tolerance, where `update` is true."""
    weight, evaluation = s.penalties.weight, s.iterate.evaluation
    slow = evaluation.violation > jnp.maximum(0.5 * s.violation, options.constraint_tolerance)
    larger = jnp.minimum(weight * options.penalty_growth, options.max_penalty)
    after = s._replace(
        penalties=Penalties(evaluation.next_multipliers, jnp.where(slow, larger, weight)),
        violation=evaluation.violation,
        intermediate_tolerance=jnp.maximum(s.intermediate_tolerance * 0.25, options.least_intermediate_tolerance),
        intermediate_iterations=jnp.zeros_like(s.intermediate_iterations),
        updates=s.updates + 1,
    )
    return jax.tree.map(lambda a, b: jnp.where(update, a, b), after, s)


def _solution(problem: Problem, s: DDPState) -> Solution:
    (low, high), (xs, us, gaps, evaluation) = problem.control_box, s.iterate
    violation = jnp.maximum(evaluation.violation, jnp.abs(bound_excess(us, low, high)).max())
    free = (us > low) & (us < high)
    return Solution(
        xs=xs,
        us=us,
        cost=evaluation.cost,
        status=s.status,
        iterations=s.iterations,
        residuals=Residuals(jnp.abs(gaps).max(), jnp.abs(jnp.where(free, s.policy.Qu, 0)).max(), violation),
        gains=Gains(-s.policy.K, s.policy.k),
        multipliers=Multipliers(s.policy.Vx, *problem.split_rows(s.penalties.multipliers)),
        aux={"updates": s.updates, "penalty": s.penalties.weight, "promised": s.promised},
    )
