"""Model predictive control: a problem solved again from every measured state, from the plan before, shifted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.trajopt._solution import Multipliers, Solution, Status
from jaxdyn.trajopt.ddp._ddp import DDPOptions, ddp
from jaxdyn.trajopt.problem._disturbance import disturbed
from jaxdyn.trajopt.problem._problem import Problem, with_leaves
from jaxdyn.trajopt.problem._residuals import require
from jaxdyn.trajopt.sampling._sampling import AbstractSamplingOptions

type Solver = Callable[[Problem, Any, Any, Multipliers, Any], Solution]

traces = 0
"""How often a step was traced in this process: what `closed_loop` counts."""


class Plan(eqx.Module):
    """What a controller carries from one step to the next: the warm start, and the time."""

    xs: Float[Array, "stages nx"]
    us: Float[Array, "horizon nu"]
    multipliers: Multipliers
    t: Float[Array, ""]
    """Of the step that comes, s."""
    key: Any
    """Of the random numbers of solvers that draw some."""
    disturbance: Float[Array, "ndx"]
    """By which a step arrives elsewhere than the model says, as measured so far."""
    nominal: Float[Array, "nx"]
    """Where the last step should have led to by the model alone; NaN before the first."""


class MPC(eqx.Module):
    """A controller that solves `problem` from the measured state, applies the first control, and shifts the rest.

    Pure functions of arrays, compiled once: `plan = mpc.start(x0)`, then at every period
    `u, plan, solution = mpc.step(plan, x)`. All numbers of the problem are leaves, so other weights, targets, masses or
    bounds (`mpc.step(plan, x, problem=other)`) do not compile again. The period is the problem's `dt`. Works under
    `jit`, `scan` and `vmap`.

    **References that move.** The dynamics' `t0` is the time of the step, so a `FunctionCost` or `FunctionResidual` sees
    the true time at every stage. Targets that are leaves move by `at_time(problem, t)`, which returns the problem at
    the time `t`, of the same structure; or give each step its problem.
    """

    problem: Problem
    solver: Any
    disturbance_gain: Any
    at_time: Callable[[Problem, Any], Problem] | None = eqx.field(static=True)

    def __init__(
        self,
        problem: Problem,
        solver: DDPOptions | AbstractSamplingOptions | Solver | None = None,
        *,
        at_time: Callable[[Problem, Any], Problem] | None = None,
        disturbance_gain: ArrayLike | None = None,
    ):
        """
        - `solver`: the options of a solver, with its budget of iterations: `DDPOptions`, `MPPIOptions`, `CEMOptions`,
          `PredictiveSamplingOptions`; `DDPOptions(max_iterations=5)` where none is given. Or any function
          `(problem, us, xs, multipliers, key) -> Solution`, compiled with the rest.
        - `disturbance_gain`: in (0, 1], of the estimate of a constant displacement of each step, by which predictions
          are corrected (offset-free control: with a wrong mass the goal is not missed at rest). None for no estimate.

        **Raises** `ModelError`.
        """
        if not isinstance(problem, Problem):
            raise ModelError(f"an MPC needs a Problem, not {type(problem).__name__}")
        solver = DDPOptions(max_iterations=5) if solver is None else solver
        if not callable(solver) and not isinstance(solver, DDPOptions | AbstractSamplingOptions):
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

    def start(
        self,
        x0: Float[Array, "nx"],
        us: ArrayLike | None = None,
        xs: ArrayLike | None = None,
        *,
        multipliers: Multipliers | None = None,
        t: ArrayLike = 0.0,
        key: Any = None,
    ) -> Plan:
        """The plan before the first step: a guess as for the solvers, or what a solver found (`solution.us`,
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
        n_stage, n_terminal = problem.constraint_sizes
        zero = jnp.zeros((problem.horizon, n_stage), problem.dtype), jnp.zeros(n_terminal, problem.dtype)
        given = Multipliers() if multipliers is None else multipliers
        stage, terminal = (z if g is None else g for g, z in zip((given.stage, given.terminal), zero, strict=True))
        for got, shape, name in ((stage, zero[0].shape, "stage"), (terminal, zero[1].shape, "terminal")):
            require(got, shape, f"the {name} multipliers", "as many as constraints")
        return Plan(
            xs=xs,
            us=us,
            multipliers=Multipliers(None, stage.astype(problem.dtype), terminal.astype(problem.dtype)),
            t=t.astype(problem.dtype),
            key=key,
            disturbance=jnp.zeros(problem.dynamics.ndx, problem.dtype),
            nominal=jnp.full(problem.dynamics.nx, jnp.nan, problem.dtype),
        )

    @eqx.filter_jit
    def step(
        self, plan: Plan, x: Float[Array | np.ndarray, "nx"], problem: Problem | None = None
    ) -> tuple[Float[Array, "nu"], Plan, Solution]:
        """The control to apply at the state `x`, the plan for the next step, and the solution.

        Where the state or the solver's trajectory is not finite, the status is `DIVERGED` and the plan before is
        followed.

        **Raises** `ShapeError`.
        """
        global traces
        traces += 1
        x = jnp.asarray(x)
        given = (self.problem if problem is None else problem).starting_at(x)
        now: Problem = eqx.tree_at(lambda p: p.dynamics.t0, given, plan.t.astype(given.dynamics.t0.dtype))
        if self.at_time is not None:
            now = self.at_time(now, plan.t)
        nominal, disturbance = now.dynamics, plan.disturbance
        if self.disturbance_gain is not None:
            off = nominal.difference(plan.nominal, x) - disturbance
            known = jnp.isfinite(off).all()
            disturbance = disturbance + jnp.where(known, self.disturbance_gain * off, 0)
            now = with_leaves(now, dynamics=disturbed(nominal, disturbance))
        key, own = jax.random.split(plan.key)
        solution = self._solve(now, plan, own)
        good = jnp.isfinite(x).all() & jnp.isfinite(solution.xs).all() & jnp.isfinite(solution.us).all()
        status = jnp.where(good, solution.status, Status.DIVERGED)
        solution = eqx.tree_at(lambda s: s.status, solution, status)
        xs, us = jnp.where(good, solution.xs, plan.xs), jnp.where(good, solution.us, plan.us)
        last = now.step(xs[-1], us[-1], now.horizon - 1)
        found = Multipliers() if solution.multipliers is None else solution.multipliers

        def kept(new, old):
            return old if new is None else jnp.where(good & jnp.isfinite(new).all(), new, old)

        stage = kept(found.stage, plan.multipliers.stage)
        assert stage is not None  # A plan has the multipliers of all constraints.
        after = Plan(
            xs=jnp.concatenate([xs[1:], last[None]]),
            us=jnp.concatenate([us[1:], us[-1:]]),
            multipliers=Multipliers(
                None, jnp.concatenate([stage[1:], stage[-1:]]), kept(found.terminal, plan.multipliers.terminal)
            ),
            t=plan.t + now.dynamics.dt.astype(plan.t.dtype),
            key=key,
            disturbance=disturbance,
            nominal=nominal.step(x.astype(now.dtype), us[0], 0),
        )
        return us[0], after, solution

    def _solve(self, problem: Problem, plan: Plan, key) -> Solution:
        if isinstance(self.solver, DDPOptions):
            return ddp(problem, plan.us, plan.xs, multipliers=plan.multipliers, options=self.solver)
        if isinstance(self.solver, AbstractSamplingOptions):
            return self.solver.solve(problem, plan.us, key)
        return self.solver(problem, plan.us, plan.xs, plan.multipliers, key)
