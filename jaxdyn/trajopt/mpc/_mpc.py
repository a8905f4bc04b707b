"""Model predictive control: a problem solved from each measured state, with the shifted last plan as the guess."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxdyn import _printing as printing
from jaxdyn._errors import ModelError, naming_arguments
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.trajopt._solution import Multipliers, Solution, Status
from jaxdyn.trajopt.ddp import DDPOptions, constraint_multipliers, ddp, host_microseconds, microseconds
from jaxdyn.trajopt.problem import (
    Problem,
    SoftConstraintCost,
    TimeVarying,
    bound_excess,
    with_disturbance,
    with_leaves,
)
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
        current = (self.problem if problem is None else problem).starting_at(x)
        current.require_fixed_start("an MPC, which begins at measured states,")
        current = eqx.tree_at(lambda p: p.dynamics.t0, current, plan.t.astype(current.dynamics.t0.dtype))
        if self.at_time is not None:
            current = self.at_time(current, plan.t)
        nominal, disturbance = current.dynamics, plan.disturbance
        if self.disturbance_gain is not None:
            error = nominal.difference(plan.nominal, x) - disturbance
            disturbance = disturbance + jnp.where(jnp.isfinite(error).all(), self.disturbance_gain * error, 0)
            current = with_leaves(current, dynamics=with_disturbance(nominal, disturbance))
        key, solver_key = jax.random.split(plan.key)
        solution = self._solve(current, plan, solver_key, began)
        good = jnp.isfinite(x).all() & jnp.isfinite(solution.xs).all() & jnp.isfinite(solution.us).all()
        status = jnp.where(good, solution.status, Status.DIVERGED)
        solution = eqx.tree_at(lambda s: s.status, solution, status)
        xs, us = jnp.where(good, solution.xs, plan.xs), jnp.where(good, solution.us, plan.us)
        last = current.step(xs[-1], us[-1], current.horizon - 1)
        stage, terminal = _next_multipliers(plan.multipliers, solution.multipliers, good)
        after = Plan(
            xs=jnp.concatenate([xs[1:], last[None]]),
            us=jnp.concatenate([us[1:], us[-1:]]),
            multipliers=Multipliers(None, jnp.concatenate([stage[1:], stage[-1:]]), terminal),
            t=plan.t + current.dynamics.dt.astype(plan.t.dtype),
            key=key,
            disturbance=disturbance,
            nominal=nominal.step(x.astype(current.dtype), us[0], 0),
            reserve=plan.reserve,
        )
        return us[0], after, solution

    def _solve(self, problem: Problem, plan: Plan, key, began) -> Solution:
        if isinstance(self.solver, DDPOptions):
            return _with_least_violation(problem, plan, self.solver, began)
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


ALLOWED = 1e-3
"""Violation of a constraint, relative to one plus the size of its bound, from which on a step whose solve has not
converged looks for a smaller one."""
WEIGHT = 1e4
"""Weight of the squared violations, relative to one plus the cost, of the problem in which they have a price."""
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


def _with_least_violation(problem: Problem, plan: Plan, options: DDPOptions, began) -> Solution:
    """The solution of the problem from the plan. Where it violates constraints, which a plant may do that is not as its
    model, the violations have a price instead, and the trajectory with the smaller violation is returned. With a time
    limit from the time `began`, if known, the first solve has half of the time, and the other one what remains, if this
    is enough for an iteration."""
    constrained = bool(problem.stage_constraints or problem.terminal_constraints)
    limit, first = options.time_limit, options
    if limit is not None:
        limit = limit - plan.reserve
        now = microseconds(plan.us.sum())
        began = now if began is None else began
        share = 0.5 if constrained else 1.0
        first = dataclasses.replace(options, time_limit=share * (limit - 1e-6 * (now - began)))
    solution = ddp(problem, plan.us, plan.xs, multipliers=plan.multipliers, options=first)
    if not constrained:
        return solution
    in_time = jnp.array(True)
    if limit is not None:
        after = microseconds(solution.xs.sum())
        remains = limit - 1e-6 * (after - began)
        in_time = remains > 1e-6 * (after - now) / solution.iterations
        options = dataclasses.replace(options, time_limit=remains)

    def violation(xs, us):
        r, lower, upper = problem.constraints(xs, us)
        excess = bound_excess(r, lower, upper)
        bound = jnp.abs(jnp.where(excess > 0, upper, lower))
        return (jnp.abs(excess) / (1 + jnp.where(excess == 0, 0.0, bound))).max(initial=0.0)

    def distance(xs, us):
        return jnp.maximum(violation(xs, us), jnp.abs(problem.gaps(xs, us)).max() / (1 + jnp.abs(xs).max()))

    def relaxed():
        priced = _with_prices(problem, WEIGHT * (1 + jnp.abs(solution.cost)))
        found = ddp(priced, plan.us, plan.xs, options=options)
        return found.xs, found.us

    given = solution.xs, solution.us
    before = distance(*given)
    leaves = ~solution.success & ~(before <= ALLOWED) & in_time
    xs, us = lax.cond(leaves, relaxed, lambda: given)
    better = ~(distance(xs, us) >= before)
    xs, us = (jnp.where(better, a, b) for a, b in zip((xs, us), given, strict=True))
    residuals = solution.residuals
    residuals = dataclasses.replace(
        residuals,
        violation=jnp.where(better, problem.violation(xs, us), residuals.violation),
        gap=jnp.where(better, jnp.abs(problem.gaps(xs, us)).max(), residuals.gap),
    )
    cost = jnp.where(better, problem.total_cost(xs, us), solution.cost)
    violated = leaves & ~(violation(xs, us) <= ALLOWED)
    status = jnp.where(violated, Status.LEAST_VIOLATION, solution.status).astype(jnp.int32)
    return dataclasses.replace(solution, xs=xs, us=us, cost=cost, status=status, residuals=residuals)


def _with_prices(problem: Problem, weight) -> Problem:
    """The problem in which squared violations of constraints have a weight."""

    def price(term) -> Any:
        if isinstance(term, TimeVarying):
            return TimeVarying(SoftConstraintCost(term.term, weight=jnp.full(problem.horizon, weight)))
        return SoftConstraintCost(term, weight=weight)

    bounds = (problem.control_lower, problem.control_upper) if problem.bounded else (None, None)
    return Problem(
        problem.dynamics,
        problem.x0,
        problem.horizon,
        stage_costs=[*problem.stage_costs, *map(price, problem.stage_constraints)],
        terminal_costs=[*problem.terminal_costs, *map(price, problem.terminal_constraints)],
        control_lower=bounds[0],
        control_upper=bounds[1],
    )


def _next_multipliers(old: Multipliers, new: Multipliers | None, good) -> list[Array]:
    """The multipliers of the constraints of stages and of the end: the new ones if they are finite, else the old."""
    new = Multipliers() if new is None else new
    pairs: Any = (old.stage, new.stage), (old.terminal, new.terminal)
    return [old if new is None else jnp.where(good & jnp.isfinite(new).all(), new, old) for old, new in pairs]
