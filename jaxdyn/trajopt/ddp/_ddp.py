"""Differential dynamic programming with multiple shooting, control boxes, and an augmented Lagrangian."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn._types import ArrayLike
from jaxdyn.trajopt._solution import Gains, Multipliers, Residuals, Solution, Status
from jaxdyn.trajopt.ddp._augmented_lagrangian import (
    Bounds,
    Curvature,
    Evaluation,
    Expansion,
    Penalties,
    expand,
    full_curvature,
    with_curvature,
)
from jaxdyn.trajopt.ddp._control_box import backward_in_box
from jaxdyn.trajopt.ddp._line_search import search
from jaxdyn.trajopt.ddp._riccati import Policy, backward, without_bounds
from jaxdyn.trajopt.ddp._solution_derivatives import Optimum, optimum_tangent
from jaxdyn.trajopt.problem._constraints import outside
from jaxdyn.trajopt.problem._dynamics import ModelDynamics
from jaxdyn.trajopt.problem._problem import Problem

type Hessian = Literal["gauss_newton", "full", "adaptive"]


class DDPOptions(eqx.Module):
    """How `ddp` goes about it. Numbers are leaves: other values do not recompile.

    **Raises** `ModelError` for options that mean nothing.
    """

    max_iterations: Any = 300
    """Backward passes in all, over all updates of the multipliers."""
    tolerance: Any = None
    """Of the decrease that a step still promises, relative to `1 + |cost|`: below it the iterate is stationary. By
    default 1e-9 in double and 1e-6 in single precision."""
    constraint_tolerance: Any = None
    """Of the largest violation of a constraint: 1e-7 in double and 1e-4 in single precision by default."""
    penalty: Any = 100.0
    """Of constraints, at the start."""
    penalty_growth: Any = 5.0
    """The factor of the penalty where an update of the multipliers has not reduced the violation to a half."""
    max_penalty: Any = 1e8
    regularization: Any = 1e-9
    """At the start, and at least."""
    max_regularization: Any = 1e9
    regularise_below: Any = None
    """Regularization grows tenfold where the step length is no longer than this. None: 0.01, as Crocoddyl has it; for
    `"adaptive"` and `"full"` 0.3."""
    sufficient_decrease: Any = None
    """The part of the expected decrease that a step has to reach. None: 0.1, as Crocoddyl has it; for `"adaptive"` and
    `"full"` 1e-4."""
    intermediate_tolerance: Any = 0.05
    """Of the decrease a step promises before the first updates of the multipliers."""
    least_intermediate_tolerance: Any = 1e-6
    """It falls to a quarter with each update, to this at least."""
    intermediate_iterations: Any = 10
    """At most so many between updates of the multipliers."""
    second_order_below: Any = 0.2
    """The decrease that a step promises, relative to `1 + |cost|`, below which `"adaptive"` takes all second
    derivatives."""
    hessian: Hessian | None = eqx.field(default=None, static=True)
    """`"gauss_newton"`: second derivatives of costs' residuals and of the dynamics are left out (iLQR); `"full"`: none
    is (DDP); `"adaptive"`: none is near a solution and where the curvature is positive, which takes fewer iterations
    and a longer compilation than the first. None: the first for robots, the last for functions."""
    backward: Literal["scan", "associative"] = eqx.field(default="scan", static=True)
    """`"associative"`: a parallel scan, for problems without bounds on controls, on devices where a short program
    counts more than few operations; on a CPU it is several times slower."""
    step_lengths: tuple[float, ...] = eqx.field(default=tuple(0.5**i for i in range(10)), static=True)
    step_lengths_at_once: int = eqx.field(default=1, static=True)
    """How many step lengths the line search tries in one batch: more on devices where a few take no longer than one; on
    a CPU, two take three times as long."""

    def resolved(self, dtype, second_order: bool) -> DDPOptions:
        """With the defaults of a precision and of a kind of `hessian`, all numbers in it."""
        below = (0.3 if second_order else 0.01) if self.regularise_below is None else self.regularise_below
        decrease = (1e-4 if second_order else 0.1) if self.sufficient_decrease is None else self.sufficient_decrease
        single = float(jnp.finfo(dtype).eps) > 1e-10
        tolerance = (1e-6 if single else 1e-9) if self.tolerance is None else self.tolerance
        violation = (1e-4 if single else 1e-7) if self.constraint_tolerance is None else self.constraint_tolerance
        whole = jnp.asarray(self.max_iterations), jnp.asarray(self.intermediate_iterations)
        real = eqx.tree_at(
            lambda o: (o.tolerance, o.constraint_tolerance, o.regularise_below, o.sufficient_decrease),
            self,
            (tolerance, violation, below, decrease),
            is_leaf=lambda x: x is None,
        )
        real = jax.tree.map(lambda x: jnp.asarray(x, dtype), real)
        return eqx.tree_at(lambda o: (o.max_iterations, o.intermediate_iterations), real, whole)

    def __check_init__(self):
        if self.hessian not in (None, "gauss_newton", "full", "adaptive"):
            raise ModelError(f"hessian is {self.hessian!r}; 'gauss_newton', 'full' or 'adaptive' is needed")
        if self.backward not in ("scan", "associative"):
            raise ModelError(f"backward is {self.backward!r}; 'scan' or 'associative' is needed")
        n = self.step_lengths_at_once
        if not self.step_lengths or n < 1 or len(self.step_lengths) % n:
            raise ModelError(
                f"step_lengths_at_once is {n}, but it must divide the number of step lengths, {len(self.step_lengths)}"
            )


class _State(NamedTuple):
    xs: Any
    us: Any
    at: Evaluation
    """Of the trajectory; known after the first iteration."""
    feasible: Any
    """Whether the states are the controls' roll-out."""
    gaps: Any
    regularization: Any
    penalties: Penalties
    violation: Any
    """The largest when the multipliers were updated last."""
    inner_tolerance: Any
    inner: Any
    """Iterations since the last update of the multipliers."""
    policy: Policy
    promised: Any
    """The decrease that the last policy expected."""
    status: Any
    iterations: Any
    updates: Any


def ddp(
    problem: Problem,
    us: ArrayLike | None = None,
    xs: ArrayLike | None = None,
    *,
    multipliers: Multipliers | None = None,
    options: DDPOptions | None = None,
) -> Solution:
    """Solve a problem by differential dynamic programming from a guess of controls, or of states and controls.

    FDDP of Mastalli et al. (Crocoddyl: An efficient and versatile framework for multi-contact optimal control, ICRA
    2020): each iteration expands costs and dynamics about the trajectory, solves the linear-quadratic problem by a
    Riccati recursion, and rolls its policy out with the largest step length that decreases the cost enough. Gaps of a
    guess `xs` that is no roll-out are closed by and by. Bounds on controls hold in every iterate (Mastalli et al., A
    feasibility-driven approach to control-limited DDP, 2022), by Newton steps on an active set of the whole horizon.
    Other constraints act through an augmented Lagrangian whose multipliers are updated whenever the iterate is
    stationary enough (Howell, Jackson & Manchester, ALTRO, IROS 2019).

    **Arguments**

    - `us` `[horizon, nu]`: zeros where not given; clipped to their bounds.
    - `xs` `[horizon + 1, nx]`: the roll-out of `us` where not given.
    - `multipliers`: of the constraints, from a solution nearby.

    Derivatives of the solution's trajectory, cost and multipliers with respect to all arrays of the problem are those
    of the implicit function theorem (`_implicit.py`), in both modes: exact at a solution, so converge tightly. Gains,
    status and residuals have none, nor has the guess.

    Compiled as a whole; under `jax.vmap` elements that have ended do not change. **Raises** `ShapeError`; `ModelError`
    where the cost of the guess is NaN though its states are finite (looked at only outside of transformations).
    """
    # As arrays, so that other numbers do not recompile.
    numbers: DDPOptions = jax.tree.map(jnp.asarray, DDPOptions() if options is None else options)
    us, xs = (None if x is None else jnp.asarray(x, problem.dtype) for x in (us, xs))
    solution = _compiled(problem, us, xs, multipliers, numbers)
    if not isinstance(solution.status, Tracer):
        _refuse_nan(problem, solution)
    return solution


@eqx.filter_jit
def _compiled(problem: Problem, us, xs, multipliers, options: DDPOptions) -> Solution:
    return _solve(problem, (us, xs, multipliers), options)  # type: ignore[call-arg]


@eqx.filter_custom_jvp
def _solve(problem: Problem, guess, options: DDPOptions) -> Solution:
    us, xs, multipliers = guess
    return _iterated(problem, us, xs, multipliers, options)


@_solve.def_jvp
def _solve_jvp(primals, tangents):
    """By the implicit function theorem; a guess and options have no influence on a solution."""
    problem, tangent = primals[0], tangents[0]
    solution = _solve(*primals)
    multipliers = solution.multipliers
    assert multipliers is not None
    at = Optimum(solution.xs, solution.us, multipliers.stage, multipliers.terminal)  # type: ignore[arg-type]
    moved, costates = optimum_tangent(problem, tangent, at)
    trajectory = solution.xs, solution.us
    cost = eqx.filter_jvp(
        lambda p, xs, us: p.total_cost(xs, us), (problem, *trajectory), (tangent, moved.xs, moved.us)
    )[1]
    still = jax.tree.map(lambda _: None, solution)

    def parts(s: Solution):
        return s.xs, s.us, s.cost, s.multipliers.dynamics, s.multipliers.stage, s.multipliers.terminal  # type: ignore

    given = moved.xs, moved.us, cost, costates, moved.stage, moved.terminal
    return solution, eqx.tree_at(parts, still, given, is_leaf=lambda x: x is None)


def _iterated(problem: Problem, us, xs, multipliers, options: DDPOptions) -> Solution:
    dtype = problem.dtype
    hessian = options.hessian or ("gauss_newton" if isinstance(problem.dynamics, ModelDynamics) else "adaptive")
    second_order = hessian != "gauss_newton"
    options = options.resolved(dtype, second_order)
    low, high = box = problem.control_box
    feasible = xs is None
    us = problem.guess(us, rolled_out=False)[1]
    us = jnp.clip(us, low, high) if problem.bounded else us
    xs, us = problem.guess(us, xs)
    n_stage, n_terminal = problem.constraint_sizes
    constrained = n_stage + n_terminal > 0
    bounds = Bounds.of(problem)
    alphas = jnp.asarray(options.step_lengths, dtype).reshape(-1, options.step_lengths_at_once)
    parallel = options.backward == "associative"
    if parallel and problem.bounded:
        raise ModelError(
            "backward='associative' solves problems without bounds on controls: use backward='scan', or give the "
            "bounds as a Constraint on a ControlResidual"
        )
    riccati = without_bounds if parallel else backward_in_box if problem.bounded else backward
    adaptive = hessian == "adaptive"
    least, most = options.regularization, options.max_regularization
    none = Policy.zeros(problem.horizon, problem.dynamics.ndx, problem.dynamics.nu, dtype)

    def policy_of(e: Expansion, curvature: Curvature, near, us, regularization):
        """The backward pass, with as much regularization as it needs; before more of it, without the second derivatives
        that Gauss-Newton leaves out, unless they are asked for."""
        of_box = (low - us, high - us) if problem.bounded else ()
        rough = Curvature.of(e)

        def attempt(state):
            _, r, second = state
            chosen = jax.tree.map(lambda a, b: jnp.where(second, a, b), curvature, rough)
            policy = riccati(with_curvature(e, chosen), r, *of_box)
            drop = second & adaptive
            return policy, jnp.where(policy.ok | drop, r, jnp.maximum(10 * r, least)), second & ~drop | policy.ok

        state = none, regularization, near
        return lax.while_loop(lambda s: ~s[0].ok & (s[1] <= most), attempt, state)[:2]

    def iterate(s: _State) -> _State:
        e, at = expand(problem, s.xs, s.us, s.gaps, s.penalties)
        near = jnp.asarray(hessian == "full")
        curvature = Curvature.of(e)
        if second_order:
            if adaptive:
                near = s.promised < options.second_order_below * (1 + jnp.abs(bounds.value(at, s.penalties)))
            curvature = lax.cond(
                near, lambda: full_curvature(problem, s.xs, s.us, s.penalties, e), lambda: Curvature.of(e)
            )
        policy, regularization = policy_of(e, curvature, near, s.us, s.regularization)
        scale = 1 + jnp.abs(bounds.value(at, s.penalties))
        # What regularization hides of the decrease counts, too.
        promised = jnp.abs(policy.slope + 0.5 * policy.curvature) / jnp.maximum(policy.damped, 1e-12)
        promised = jnp.where(policy.ok, promised, jnp.inf)
        trial = search(
            problem, s.xs, s.us, at, policy, e.gaps, bounds, s.penalties, box, alphas, options.sufficient_decrease
        )
        less = jnp.maximum(regularization / 10, least)
        more = jnp.maximum(regularization * 10, least)
        short = trial.alpha <= options.regularise_below
        regularization = jnp.where(trial.alpha > 0.5, less, jnp.where(short, more, regularization))
        stuck = ~trial.accepted & (regularization > most)
        now = s._replace(
            xs=trial.xs,
            us=trial.us,
            at=trial.at,
            feasible=s.feasible | (trial.accepted & (trial.alpha == 1)),
            gaps=(1 - trial.alpha) * s.gaps,
            regularization=jnp.minimum(regularization, most),
            policy=policy,
            promised=promised,
            iterations=s.iterations + 1,
            inner=s.inner + 1,
        )
        stationary = s.feasible & (promised < options.tolerance * scale)
        if constrained:
            enough = s.feasible & (promised < s.inner_tolerance * scale)
            update = enough | stuck | (now.feasible & (now.inner >= options.intermediate_iterations))
            now = _updated(now, update, bounds, options)
            solved = stationary & (bounds.violation(now.at) <= options.constraint_tolerance)
            # Larger penalties may still help.
            stuck = (stuck | update & stationary) & (s.penalties.weight >= options.max_penalty)
        else:
            solved = stationary
        broken = ~jnp.isfinite(bounds.value(at, s.penalties)) | ~jnp.isfinite(s.xs).all() | ~jnp.isfinite(e.A).all()
        status = jnp.select(
            [broken, solved, stuck, now.iterations >= options.max_iterations],
            [Status.DIVERGED, Status.CONVERGED, Status.STALLED, Status.OUT_OF_ITERATIONS],
            Status.RUNNING,
        )
        return now._replace(status=status.astype(jnp.int32))

    penalties = _penalties(problem, multipliers, options, n_stage, n_terminal)
    gaps = jnp.zeros((problem.horizon + 1, problem.dynamics.ndx), dtype) if feasible else problem.gaps(xs, us)
    whole = jnp.zeros((), jnp.int32)
    start = _State(
        xs=xs,
        us=us,
        at=jax.tree.map(jnp.zeros_like, Evaluation(options.tolerance, penalties.stage, penalties.terminal)),
        feasible=jnp.asarray(feasible),
        gaps=gaps,
        regularization=least,
        penalties=penalties,
        violation=jnp.asarray(jnp.inf, dtype),
        inner_tolerance=options.intermediate_tolerance,
        inner=whole,
        policy=none,
        promised=jnp.asarray(jnp.inf, dtype),
        status=whole,
        iterations=whole,
        updates=whole,
    )
    s = lax.while_loop(lambda s: s.status == Status.RUNNING, iterate, start)
    violation = jnp.maximum(bounds.violation(s.at), jnp.abs(outside(s.us, low, high)).max())
    free = (s.us > low) & (s.us < high)
    return Solution(
        xs=s.xs,
        us=s.us,
        cost=s.at.cost,
        status=s.status,
        iterations=s.iterations,
        residuals=Residuals(jnp.abs(s.gaps).max(), jnp.abs(jnp.where(free, s.policy.Qu, 0)).max(), violation),
        gains=Gains(-s.policy.K, s.policy.k),
        multipliers=Multipliers(s.policy.Vx, s.penalties.stage, s.penalties.terminal),
        aux={"updates": s.updates, "penalty": s.penalties.weight, "promised": s.promised},
    )


def _updated(s: _State, update, bounds: Bounds, options: DDPOptions) -> _State:
    """With new multipliers, a new penalty and a new intermediate tolerance, where `update` says so."""
    weight = s.penalties.weight
    new = bounds.next_multipliers(s.at, s.penalties)
    violation = bounds.violation(s.at)
    slow = violation > jnp.maximum(0.5 * s.violation, options.constraint_tolerance)
    grown = jnp.minimum(weight * options.penalty_growth, options.max_penalty)
    after = s._replace(
        penalties=new._replace(weight=jnp.where(slow, grown, weight)),
        violation=violation,
        inner_tolerance=jnp.maximum(s.inner_tolerance * 0.25, options.least_intermediate_tolerance),
        inner=jnp.zeros_like(s.inner),
        updates=s.updates + 1,
    )
    return jax.tree.map(lambda a, b: jnp.where(update, a, b), after, s)


def _penalties(problem: Problem, multipliers: Multipliers | None, options: DDPOptions, n_stage: int, n_terminal: int):
    dtype = problem.dtype
    stage, terminal = jnp.zeros((problem.horizon, n_stage), dtype), jnp.zeros(n_terminal, dtype)
    if multipliers is not None:
        for given, shape, name in (
            (multipliers.stage, stage.shape, "stage"),
            (multipliers.terminal, terminal.shape, "terminal"),
        ):
            if given is not None and given.shape != shape:
                raise ShapeError(f"the {name} multipliers have shape {given.shape}, but {shape} is needed")
        stage = stage if multipliers.stage is None else multipliers.stage.astype(dtype)
        terminal = terminal if multipliers.terminal is None else multipliers.terminal.astype(dtype)
    return Penalties(stage, terminal, options.penalty)


def _refuse_nan(problem: Problem, solution: Solution) -> None:
    """**Raises** `ModelError` where a cost is NaN at finite states: a mistake, not a divergence."""
    if int(solution.status) != Status.DIVERGED or int(solution.iterations) != 1:
        return
    xs, us = np.asarray(solution.xs), np.asarray(solution.us)
    if not (np.isfinite(xs).all() and np.isfinite(us).all()):
        return
    stages = np.asarray(jax.vmap(problem.stage_cost)(solution.xs[:-1], solution.us, problem.stages))
    bad = np.flatnonzero(~np.isfinite(stages))
    where = f"stage {bad[0]} ({len(bad)} stages)" if len(bad) else "the end of the horizon"
    raise ModelError(
        f"the cost of the guess is not finite at {where}, where states and controls are: look for a division by zero, "
        "a square root or a logarithm in a cost or constraint, or start from another guess"
    )
