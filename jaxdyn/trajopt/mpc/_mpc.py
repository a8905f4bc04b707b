"""Model predictive control: a problem solved from each measured state, with the shifted last plan as the guess."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn import _printing as printing
from jaxdyn._errors import ModelError, naming_arguments
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.trajopt._solution import Gains, Multipliers, Residuals, Solution, Status
from jaxdyn.trajopt.ddp import (
    AffinePolicy,
    DDPOptions,
    Expansion,
    constraint_multipliers,
    ddp,
    host_microseconds,
    linear_quadratic_policy,
    linear_quadratic_step,
    microseconds,
)
from jaxdyn.trajopt.mpc._least_violation import with_least_violation
from jaxdyn.trajopt.problem import AbstractDynamics, Problem, with_disturbance, with_leaves
from jaxdyn.trajopt.sampling import SamplingOptions, solve_by_samples

type Solver = Callable[[Problem, Any, Any, Multipliers, Any], Solution]


class Plan(eqx.Module):
    """The state of a controller between two steps: the warm start, the time, and the estimate of a disturbance."""

    xs: Float[Array, "stages nx"]
    us: Float[Array, "horizon nu"]
    multipliers: Multipliers
    t: Float[Array, ""]
    """Time of the next step, s."""
    key: Any
    """Key for solvers that draw random numbers."""
    disturbance: Float[Array, "ndx"]
    """Estimated displacement of each step from where the model leads."""
    nominal: Float[Array, "nx"]
    """State to which the last step should have led by the model alone; NaN before the first step."""
    reserve: Float[Array, ""]
    """Part of a time limit that the step keeps for what comes after its last look at the clock, s."""

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        facts = {"next control": printing.numbers(self.us[0]), "planned end": printing.numbers(self.xs[-1])}
        return f"{len(self.us)} controls from t = {float(self.t):g} s", facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


class MPC(eqx.Module):
    """A controller that solves `problem` from the measured state, applies the first control, and shifts the others.

    Pure functions of arrays, compiled once: `plan = mpc.start(x0)`, then at every period
    `u, plan, solution = mpc.step(plan, x)`. All numbers of the problem are leaves, so other weights, targets, masses or
    bounds (`mpc.step(plan, x, problem=other)`) do not compile again. The period is the problem's `dt`. Works under
    `jit`, `scan` and `vmap`.

    **Moving references.** The dynamics' `t0` is the time of the step, so a `FunctionCost` or `FunctionResidual` sees
    the true time at every stage. Targets that are leaves move by `at_time(problem, t)`, which returns the problem at
    the time `t`, of the same structure; or pass each step its problem.
    """

    problem: Problem
    solver: Any
    disturbance_gain: Any
    at_time: Callable[[Problem, Any], Problem] | None = eqx.field(static=True)

    @naming_arguments
    def __init__(
        self,
        problem: Problem,
        solver: DDPOptions | SamplingOptions | Solver | None = None,
        *,
        at_time: Callable[[Problem, Any], Problem] | None = None,
        disturbance_gain: ArrayLike | None = None,
    ):
        """
        - `solver`: the options of a solver, with its budget of iterations, or of time (`DDPOptions.time_limit`):
          `DDPOptions`, `MPPIOptions`, `CEMOptions`, `PredictiveSamplingOptions`; by default
          `DDPOptions(max_iterations=5)`. Or any function `(problem, us, xs, multipliers, key) -> Solution`, compiled
          with the step.
        - `disturbance_gain`: gain, in (0, 1], of the estimate of a constant displacement of each step that corrects the
          predictions (offset-free control: a wrong mass does not move the resting point). None for no estimate.

        **Raises** `ModelError`."""
        if not isinstance(problem, Problem):
            raise ModelError(f"an MPC needs a Problem, not {type(problem).__name__}")
        problem.require_fixed_start("an MPC, which begins at measured states,")
        solver = DDPOptions(max_iterations=5) if solver is None else solver
        if not callable(solver) and not isinstance(solver, DDPOptions | SamplingOptions):
            raise ModelError(
                f"the solver is {type(solver).__name__}; give DDPOptions, options of a sampling solver, or a function"
            )
        if disturbance_gain is not None:
            disturbance_gain = jnp.asarray(disturbance_gain, problem.dtype)
            if not isinstance(disturbance_gain, Tracer) and not 0 < float(disturbance_gain) <= 1:
                raise ModelError(f"disturbance_gain is {float(disturbance_gain):g}, but it must be in (0, 1]")
        self.problem, self.at_time, self.disturbance_gain = problem, at_time, disturbance_gain
        # As arrays, so that other numbers do not compile again.
        self.solver = jax.tree.map(jnp.asarray, solver) if isinstance(solver, eqx.Module) else solver

    @naming_arguments
    def start(
        self,
        x0: Float[Array | np.ndarray, "nx"],
        us: ArrayLike | None = None,
        xs: ArrayLike | None = None,
        *,
        multipliers: Multipliers | None = None,
        t: ArrayLike = 0.0,
        key: Any = None,
    ) -> Plan:
        """The plan before the first step, from a guess as for the solvers, or from a solution (`solution.us`,
        `solution.xs`, `solution.multipliers`).

        - `t`: the time of the first step, s. `key`: for solvers that draw random numbers; `jax.random.key(0)` if None.
        """
        us, xs = (None if a is None else jnp.asarray(a, self.problem.dtype) for a in (us, xs))
        key = jax.random.key(0) if key is None else key
        return self._start(jnp.asarray(x0), us, xs, multipliers, jnp.asarray(t), key)

    @eqx.filter_jit
    def _start(self, x0, us, xs, multipliers, t, key) -> Plan:
        problem = self.problem.starting_at(x0)
        xs, us = problem.guess(us, xs)
        return Plan(
            xs=xs,
            us=us,
            multipliers=constraint_multipliers(problem, multipliers),
            t=t.astype(problem.dtype),
            key=key,
            disturbance=jnp.zeros(problem.dynamics.ndx, problem.dtype),
            nominal=jnp.full(problem.dynamics.nx, jnp.nan, problem.dtype),
            reserve=jnp.zeros((), problem.dtype),
        )

    @naming_arguments
    def step(
        self, plan: Plan, x: Float[Array | np.ndarray, "nx"], problem: Problem | None = None
    ) -> tuple[Float[Array, "nu"], Plan, Solution]:
        """The control to apply at the state `x`, the plan for the next step, and the solution. Where the state or the
        trajectory is not finite, the status is `DIVERGED` and the step follows `plan`. With `DDPOptions`, a step whose
        solve does not converge and violates constraints also solves the problem in which violations have a price, and
        follows the trajectory with the smaller violation; if that violates constraints as well, the status is
        `LEAST_VIOLATION`. `DDPOptions.time_limit` is that of the whole step, whose call it counts from outside of
        transformations, where it also waits for the control; by how much the last steps have ended late, the next ones
        aim to end earlier (`Plan.reserve`). **Raises** `ShapeError`."""
        began = host_microseconds()
        limit = self.solver.time_limit if isinstance(self.solver, DDPOptions) else None
        if limit is None or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((self, plan, x, problem))):
            return self._step(plan, jnp.asarray(x), problem, None)
        u, after, solution = jax.block_until_ready(self._step(plan, jnp.asarray(x), problem, began))
        reserve = _next_reserve(float(plan.reserve), float(limit), 1e-6 * float(host_microseconds() - began))
        return u, dataclasses.replace(after, reserve=jnp.asarray(reserve, plan.reserve.dtype)), solution

    @eqx.filter_jit
    def _step(self, plan: Plan, x, problem: Problem | None, began) -> tuple[Float[Array, "nu"], Plan, Solution]:
        nominal, disturbance = self._problem_at(plan, x, problem), self._next_disturbance(plan, x, problem)
        current = self._with_disturbance(nominal, disturbance)
        key, solver_key = jax.random.split(plan.key)
        solution = self._solve(current, plan, solver_key, began)
        plan = dataclasses.replace(plan, key=key, disturbance=disturbance)
        return _apply(current, nominal, plan, x, solution)

    def _problem_at(self, plan: Plan, x, problem: Problem | None) -> Problem:
        """The problem from the state `x` at the time of a plan, without the disturbance."""
        current = (self.problem if problem is None else problem).starting_at(x)
        current.require_fixed_start("an MPC, which begins at measured states,")
        current = eqx.tree_at(lambda p: p.dynamics.t0, current, plan.t.astype(current.dynamics.t0.dtype))
        return current if self.at_time is None else self.at_time(current, plan.t)

    def _next_disturbance(self, plan: Plan, x, problem: Problem | None) -> Array:
        """The estimate of the disturbance after the state `x`."""
        if self.disturbance_gain is None:
            return plan.disturbance
        dynamics = (self.problem if problem is None else problem).dynamics
        error = dynamics.difference(plan.nominal, x) - plan.disturbance
        return plan.disturbance + jnp.where(jnp.isfinite(error).all(), self.disturbance_gain * error, 0)

    def _with_disturbance(self, problem: Problem, disturbance) -> Problem:
        if self.disturbance_gain is None:
            return problem
        return with_leaves(problem, dynamics=with_disturbance(problem.dynamics, disturbance))

    @naming_arguments
    def prepare(self, plan: Plan, problem: Problem | None = None) -> "Preparation":
        """All of the next step that does not need the measured state: the first part of a real-time iteration (Diehl,
        Bock & Schlöder, A real-time iteration scheme for nonlinear optimization in optimal feedback control, SIAM J.
        Control Optim. 2005). Call it as soon as a control has been sent, and `feedback` when the state is measured.

        The problem is linearized about the plan, which begins at the predicted state, and its linear-quadratic problem
        is solved for all initial states. With `DDPOptions(max_iterations=n)`, `n - 1` iterations from the predicted
        state come before; `max_iterations=1` is the scheme of the article, without a line search, and compiles in less
        time. `time_limit` is that of the preparation, as for `step`. Second derivatives are used by the iterations
        before at most.

        **Raises** `ModelError` for other solvers than `DDPOptions` and for constraints, whose active set is not known
        before the state is: give violations a price (`SoftConstraintCost`), or use `step`. Bounds on controls hold.
        """
        began = host_microseconds()
        options = self._real_time_options(problem)
        most, limit = options.max_iterations, options.time_limit
        improves = isinstance(most, Tracer) or int(most) > 1
        if limit is None or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((self, plan, problem))):
            return self._prepare(plan, problem, None, improves)
        prepared = jax.block_until_ready(self._prepare(plan, problem, began, improves))
        reserve = _next_reserve(float(plan.reserve), float(limit), 1e-6 * float(host_microseconds() - began))
        return eqx.tree_at(lambda p: p.plan.reserve, prepared, jnp.asarray(reserve, plan.reserve.dtype))

    def _real_time_options(self, problem: Problem | None) -> DDPOptions:
        current = self.problem if problem is None else problem
        if not isinstance(self.solver, DDPOptions):
            raise ModelError(f"prepare needs DDPOptions as the solver of the MPC, not {type(self.solver).__name__}")
        if current.stage_constraints or current.terminal_constraints:
            raise ModelError(
                "prepare needs a problem without constraints, but for bounds on controls: give violations a price by a "
                "SoftConstraintCost, or use MPC.step"
            )
        return self.solver

    @eqx.filter_jit
    def _prepare(self, plan: Plan, problem: Problem | None, began, improves: bool) -> "Preparation":
        nominal = self._problem_at(plan, plan.xs[0], problem)
        current, options = self._with_disturbance(nominal, plan.disturbance), self.solver
        if improves:
            limit = options.time_limit
            if limit is not None:
                spent = 0 if began is None else 1e-6 * (microseconds(plan.us.sum()) - began)
                limit = limit - plan.reserve - spent
            most = jnp.maximum(options.max_iterations - 1, 1)
            before = ddp(
                current, plan.us, plan.xs, options=dataclasses.replace(options, max_iterations=most, time_limit=limit)
            )
            good = jnp.isfinite(before.xs).all() & jnp.isfinite(before.us).all() & (options.max_iterations > 1)
            xs, us = jnp.where(good, before.xs, plan.xs), jnp.where(good, before.us, plan.us)
            plan = dataclasses.replace(plan, xs=xs, us=us)
        expansion, policy = linear_quadratic_policy(current, plan.xs, plan.us, options)
        return Preparation(plan, nominal, expansion, policy)

    @naming_arguments
    def feedback(
        self, prepared: "Preparation", x: Float[Array | np.ndarray, "nx"]
    ) -> tuple[Float[Array, "nu"], Plan, Solution]:
        """The control to apply at the state `x`, the plan for the next `prepare`, and the solution: the second part of
        a real-time iteration, in a small part of the time of the first. The whole step of the linear-quadratic problem
        is taken, so to first order in the distance of `x` from the predicted state it is a full iteration from `x`.

        `solution.cost` is that of the quadratic model, and the largest gap that of the plan before the step. The
        feedback `u = us[0] - K (x (-) xs)` with `solution.gains` serves between two steps, with `xs` between
        `solution.xs[0]` and `solution.xs[1]`. Where the state or the policy is not finite, the status is `DIVERGED`,
        the plan is followed, and gains are zero. **Raises** `ShapeError`."""
        return self._feedback(prepared, jnp.asarray(x))

    @eqx.filter_jit
    def _feedback(self, prepared: "Preparation", x) -> tuple[Float[Array, "nu"], Plan, Solution]:
        plan, nominal, policy = prepared.plan, prepared.problem, prepared.policy
        current = self._with_disturbance(nominal.starting_at(x), plan.disturbance)
        x = current.x0.astype(current.dtype)
        gap = current.dynamics.difference(plan.xs[0], x)
        xs, us, cost = linear_quadratic_step(current, plan.xs, plan.us, prepared.expansion, policy, gap)
        good = policy.ok & jnp.isfinite(xs).all() & jnp.isfinite(us).all()
        pairs = (xs.at[0].set(x), plan.xs), (us, plan.us), (-policy.K, 0.0), (policy.k, 0.0)
        xs, us, feedback, feedforward = (jnp.where(good, new, old) for new, old in pairs)
        nothing, unknown = jnp.zeros((), current.dtype), jnp.full((), jnp.nan, current.dtype)
        solution = Solution(
            xs=xs,
            us=us,
            cost=cost,
            status=jnp.where(good, Status.OUT_OF_ITERATIONS, Status.DIVERGED).astype(jnp.int32),
            iterations=jnp.ones((), jnp.int32),
            residuals=Residuals(jnp.abs(prepared.expansion.gaps).max(), unknown, nothing),
            gains=Gains(feedback, feedforward),
        )
        plan = dataclasses.replace(plan, disturbance=self._next_disturbance(plan, x, nominal))
        return _apply(current, nominal, plan, x, solution)

    @naming_arguments
    def track(self, solution: Solution, x: Float[Array | np.ndarray, "nx"], elapsed: ArrayLike) -> Float[Array, "nu"]:
        """The control for a state `x` between two steps, `elapsed` s after the last one: by the gains of the first
        stage, from the state on the way from `xs[0]` to `xs[1]` of its solution, and within the bounds of the controls.
        Takes little time beside a step. **Raises** `ModelError` for solutions without gains; `ShapeError`."""
        if solution.gains is None:
            raise ModelError("track needs a solution with gains, as DDPOptions give; sampling solvers have none")
        problem = self.problem
        bounds = problem.control_lower, problem.control_upper
        return _track(problem.dynamics, bounds, solution.xs, solution.us, solution.gains.feedback, x, elapsed)

    def _solve(self, problem: Problem, plan: Plan, key, began) -> Solution:
        if isinstance(self.solver, DDPOptions):
            return with_least_violation(problem, plan, self.solver, began)
        if isinstance(self.solver, SamplingOptions):
            return solve_by_samples(problem, plan.us, key, self.solver)
        return self.solver(problem, plan.us, plan.xs, plan.multipliers, key)

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        dynamics, solver = self.problem.dynamics, self.solver
        kind = type(solver).__name__ if isinstance(solver, eqx.Module) else getattr(solver, "__name__", "a function")
        facts = {"solver": kind, "period": f"{float(dynamics.dt):g} s", "controls": str(dynamics.nu)}
        most = getattr(solver, "max_iterations", None)
        if most is not None:
            facts["iterations"] = f"at most {int(most)} a step"
        return f"a horizon of {self.problem.horizon} steps", facts | {"states": str(dynamics.nx)}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


class Preparation(eqx.Module):
    """A step of an `MPC` that waits for the measured state; see `MPC.prepare`."""

    plan: Plan
    problem: Problem
    """The problem at the time of the plan."""
    expansion: Expansion
    policy: AffinePolicy


@eqx.filter_jit
def _track(dynamics: AbstractDynamics, bounds, xs, us, gains, x, elapsed) -> Float[Array, "nu"]:
    """See `MPC.track`. Rows are taken in the program: on the host that would take longer than all else."""
    x = jnp.asarray(x, xs.dtype)
    share = (jnp.asarray(elapsed) / dynamics.step_length(0)).astype(xs.dtype)
    reference = dynamics.integrate(xs[0], share * dynamics.difference(xs[0], xs[1]))
    low, high = (bound.astype(us.dtype) if bound.ndim < 2 else bound[0].astype(us.dtype) for bound in bounds)
    return jnp.clip(us[0] - gains[0] @ dynamics.difference(reference, x), low, high)


def _apply(
    current: Problem, nominal: Problem, plan: Plan, x, solution: Solution
) -> tuple[Float[Array, "nu"], Plan, Solution]:
    """The control, the next plan and the solution of a step from the state `x`: the solution of the problem `current`,
    or where this or the state is not finite, the plan. `nominal` is the problem without the disturbance."""
    good = jnp.isfinite(x).all() & jnp.isfinite(solution.xs).all() & jnp.isfinite(solution.us).all()
    solution = eqx.tree_at(lambda s: s.status, solution, jnp.where(good, solution.status, Status.DIVERGED))
    xs, us = jnp.where(good, solution.xs, plan.xs), jnp.where(good, solution.us, plan.us)
    last = current.step(xs[-1], us[-1], current.horizon - 1)
    stage, terminal = _next_multipliers(plan.multipliers, solution.multipliers, good)
    after = dataclasses.replace(
        plan,
        xs=jnp.concatenate([xs[1:], last[None]]),
        us=jnp.concatenate([us[1:], us[-1:]]),
        multipliers=Multipliers(None, jnp.concatenate([stage[1:], stage[-1:]]), terminal),
        t=plan.t + current.dynamics.dt.astype(plan.t.dtype),
        nominal=nominal.dynamics.step(x.astype(current.dtype), us[0], 0),
    )
    return us[0], after, solution


OUTSIDE = 1e-3
"""The time of a call of a step before the first look at the clock and after the last one, s. It has been measured as
0.4 and 0.5 ms of Python on a server's core."""
FORGETTING = 0.995
"""Factor of the reserve of time in each step. The largest of some hundred steps counts, because the limit is to hold
for 99 of 100."""
GROWTH = 0.05
"""The most that a step adds to the reserve, as a part of the limit: compilation and pauses of the computer, which are
rare and long, take little time from the steps that follow."""


def _next_reserve(reserve: float, limit: float, seconds: float) -> float:
    """The time that the next step keeps of its limit, after a step that has taken some seconds and should have ended
    after the limit less `reserve`. What comes after the last look at the clock cannot be foreseen in a step: the end of
    an iteration whose search was stopped, the first iteration with prices, the solution's evaluation, and the way back
    to the host."""
    beyond = seconds + OUTSIDE - (limit - reserve)
    return max(min(beyond, reserve + GROWTH * limit), FORGETTING * reserve)


def _next_multipliers(old: Multipliers, new: Multipliers | None, good) -> list[Array]:
    """The multipliers of the constraints of stages and of the end: the new ones if they are finite, else the old."""
    new = Multipliers() if new is None else new
    pairs: Any = (old.stage, new.stage), (old.terminal, new.terminal)
    return [old if new is None else jnp.where(good & jnp.isfinite(new).all(), new, old) for old, new in pairs]
