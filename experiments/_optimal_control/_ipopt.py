"""The same problems for IPOPT: multiple shooting with the same steps, costs and constraints, through CasADi."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import casadi
import jax
import jax.numpy as jnp
import numpy as np

from experiments._optimal_control._jaxpr_to_casadi import column, symbols, translate
from jaxdyn.trajopt import Problem, TimeVarying


class Found(NamedTuple):
    """The solution that IPOPT found from a guess."""

    xs: np.ndarray
    us: np.ndarray
    cost: float
    success: bool
    status: str
    """IPOPT's return status."""
    iterations: int
    seconds: float
    """CPU time."""


OPTIONS: dict[str, Any] = {
    "print_level": 0,
    "sb": "yes",
    "tol": 1e-10,
    "constr_viol_tol": 1e-9,
    "acceptable_iter": 0,
    "bound_relax_factor": 0.0,
    "max_iter": 1000,
}


class Ipopt:
    """A problem compiled for IPOPT, which is called with guesses.

    The variables are all states but the first, component by component, and all controls. States of robots with
    quaternions are variables with as many components as they have: a step keeps their norms.
    """

    def __init__(self, problem: Problem, **options):
        """`options` are IPOPT's, beside `OPTIONS`. **Raises** `UnreadableError` for a function with an operation that
        is not translated."""
        self.problem, n = problem, problem.horizon
        nx, nu = problem.dynamics.nx, problem.dynamics.nu
        stage, end = _expressions(problem)
        states, us = casadi.MX.sym("x", nx, n), casadi.MX.sym("u", nu, n)
        x0 = casadi.DM(np.asarray(problem.x0, float))
        xs = casadi.horzcat(x0, states)
        after, costs, of_stage = stage.map(n)(xs[:, :-1], us, np.arange(n)[None].astype(float), _varying(problem).T)
        end_cost, of_end = end(states[:, -1])
        rows = casadi.vertcat(casadi.vec(of_stage), of_end)
        low, high = (np.asarray(b, float) for b in problem.constraints(*problem.guess(rolled_out=False))[1:])
        self.bounded = np.flatnonzero(np.isfinite(low) | np.isfinite(high))
        gaps = casadi.vec(after - states)
        g = casadi.vertcat(gaps, rows[self.bounded.tolist()] if len(self.bounded) else casadi.MX(0, 1))
        zeros = np.zeros(nx * n)
        self.limits = {
            "lbg": np.concatenate([zeros, low[self.bounded]]),
            "ubg": np.concatenate([zeros, high[self.bounded]]),
        }
        box = [np.asarray(b, float).ravel() for b in problem.control_box]
        free = np.full(nx * n, np.inf)
        self.limits |= {"lbx": np.concatenate([-free, box[0]]), "ubx": np.concatenate([free, box[1]])}
        nlp = {
            "x": casadi.vertcat(casadi.vec(states), casadi.vec(us)),
            "f": casadi.sum2(costs) + end_cost,
            "g": g,
        }
        settings = {"print_time": False, "ipopt": {**OPTIONS, **options}, "error_on_fail": False}
        self.solver = casadi.nlpsol("problem", "ipopt", nlp, settings)

    def __call__(self, us=None, xs=None) -> Found:
        """Solve from a guess like that of `jaxdyn.trajopt.ddp`."""
        problem = self.problem
        nx, n = problem.dynamics.nx, problem.horizon
        low, high = problem.control_box
        us = np.clip(np.asarray(problem.guess(us, rolled_out=False)[1]), low, high)
        states = np.asarray(problem.guess(us, xs)[0])
        began = time.process_time()
        out = self.solver(x0=np.concatenate([states[1:].ravel(), us.ravel()]), **self.limits)
        seconds = time.process_time() - began
        z, stats = out["x"].full().ravel(), self.solver.stats()
        xs = np.concatenate([np.asarray(problem.x0)[None], z[: nx * n].reshape(n, nx)])
        us, cost = z[nx * n :].reshape(n, -1), float(out["f"])
        status = stats["return_status"]
        return Found(xs, us, cost, status == "Solve_Succeeded", status, int(stats["iter_count"]), seconds)


def _varying_leaves(problem: Problem) -> list:
    """Return the arrays of all terms that differ between stages, each with an axis for the stages."""
    terms = [*problem.stage_costs, *problem.stage_constraints]
    return [leaf for term in terms if isinstance(term, TimeVarying) for leaf in jax.tree.leaves(term)]


def _varying(problem: Problem) -> np.ndarray:
    """Return the numbers `[horizon, m]` of all terms that differ between stages."""
    rows = [np.asarray(leaf, float).reshape(problem.horizon, -1) for leaf in _varying_leaves(problem)]
    return np.concatenate([*rows, np.zeros((problem.horizon, 0))], axis=1)


def _expressions(problem: Problem) -> tuple[casadi.Function, casadi.Function]:
    """Return CasADi's functions of a stage and of the end: from state, control, number of the stage and the numbers
    that differ between stages to the next state, the cost and the constraints' residuals."""
    shapes = [np.shape(leaf)[1:] for leaf in _varying_leaves(problem)]

    def fixed(terms, rows):
        return [
            jax.tree.map(lambda _: rows.pop(0), term.term) if isinstance(term, TimeVarying) else term for term in terms
        ]

    def of_stage(x, u, k, numbers):
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
        rows = [part.reshape(shape) for part, shape in zip(jnp.split(numbers, ends[:-1]), shapes, strict=False)]
        dynamics = problem.dynamics
        cost = sum((term.value(dynamics, x, u, k) for term in fixed(problem.stage_costs, rows)), jnp.zeros(()))
        residuals = [term.residual(dynamics, x, u, k) for term in fixed(problem.stage_constraints, rows)]
        return dynamics.step(x, u, k), cost, jnp.concatenate([*residuals, jnp.zeros(0)])

    def of_end(x):
        return problem.terminal_cost(x), problem.terminal_constraint(x)[0]

    sizes = problem.dynamics.nx, problem.dynamics.nu, 1, _varying(problem).shape[1]
    (x, xs), (u, us), (k, ks), (p, ps) = (symbols(*pair) for pair in zip("xukp", sizes, strict=True))
    out = translate(of_stage, [xs, us, ks.reshape(()), ps], [float, float, int, float])
    stage = casadi.Function("stage", [x, u, k, p], [column(part) for part in out])
    out = translate(of_end, [xs], [float])
    return stage, casadi.Function("end", [x], [column(part) for part in out])
