"""`Problem`: what trajectory optimization is asked, for every solver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.trajopt.problem._constraints import Constraint, outside, require_box
from jaxdyn.trajopt.problem._costs import AbstractCost, TimeVarying, at_stage
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics
from jaxdyn.trajopt.problem._residuals import as_leaf, require

type Costs = Sequence[AbstractCost | TimeVarying[Any]]
type Constraints = Sequence[Constraint | TimeVarying[Any]]


class Problem(eqx.Module):
    """Minimize `sum_k stage_costs(x_k, u_k) + terminal_costs(x_N)` subject to `x_(k+1) = f(x_k, u_k)`, the given `x_0`,
    bounds on the controls, and constraints.

    A pytree: everything but the structure (horizon, kinds of terms, names of frames, functions) is an array leaf, so
    `jax.vmap` maps over any of it and `jax.grad` of a solution reaches all of it. Costs of stages are summed as they
    are; multiply weights by the time step where the sum stands for an integral.
    """

    dynamics: AbstractDynamics
    x0: Float[Array, "nx"]
    stage_costs: tuple[Any, ...]
    terminal_costs: tuple[AbstractCost, ...]
    control_lower: Float[Array, "*horizon nu"]
    control_upper: Float[Array, "*horizon nu"]
    stage_constraints: tuple[Any, ...]
    terminal_constraints: tuple[Constraint, ...]
    horizon: int = eqx.field(static=True)
    bounded: bool = eqx.field(static=True)
    """Whether controls have bounds."""

    def __init__(
        self,
        dynamics: AbstractDynamics,
        x0: Float[Array | np.ndarray, "nx"],
        horizon: int,
        *,
        stage_costs: Costs = (),
        terminal_costs: Sequence[AbstractCost] = (),
        control_lower: ArrayLike | None = None,
        control_upper: ArrayLike | None = None,
        stage_constraints: Constraints = (),
        terminal_constraints: Sequence[Constraint] = (),
    ):
        """
        - `x0` `[nx]`: the state at stage 0 (for a robot `[q, v]`).
        - `horizon`: the number of controls.
        - `control_lower`, `control_upper`: `[nu]`, or `[horizon, nu]`; a number for all controls; None for no bound.

        **Raises** `ShapeError` where a shape does not fit, `ModelError` for a horizon below 1, for bounds that
        contradict each other, and for values that are not finite where they are known.
        """
        if not isinstance(dynamics, AbstractDynamics):
            raise ModelError(
                f"the dynamics are {type(dynamics).__name__}; give ModelDynamics, ContinuousDynamics or "
                "DiscreteDynamics"
            )
        if isinstance(horizon, bool) or not isinstance(horizon, int | np.integer) or horizon < 1:
            raise ModelError(f"the horizon is {horizon!r}; a number of stages of at least 1 is needed")
        self.dynamics, self.horizon = dynamics, int(horizon)
        self.x0 = as_leaf(x0)
        require(self.x0, (dynamics.nx,), "x0", f"nx = {dynamics.nx} for these dynamics")
        _require_finite(self.x0, "x0")
        self.stage_costs = _terms(stage_costs, AbstractCost, "stage_costs", self.horizon)
        self.terminal_costs = _terms(terminal_costs, AbstractCost, "terminal_costs", None)
        self.stage_constraints = _terms(stage_constraints, Constraint, "stage_constraints", self.horizon)
        self.terminal_constraints = _terms(terminal_constraints, Constraint, "terminal_constraints", None)
        if not self.stage_costs and not self.terminal_costs:
            raise ModelError("the problem has no costs: give stage_costs or terminal_costs")
        self.bounded = control_lower is not None or control_upper is not None
        self.control_lower = self._control_bound(control_lower, -jnp.inf, "control_lower")
        self.control_upper = self._control_bound(control_upper, jnp.inf, "control_upper")
        require_box(self.control_lower, self.control_upper, "the box of the controls")
        u = jax.ShapeDtypeStruct((dynamics.nu,), self.dtype)
        x = jax.ShapeDtypeStruct((dynamics.nx,), self.dtype)
        # All shapes of costs, residuals, weights and bounds are tried here, not inside a solver.
        eqx.filter_eval_shape(lambda p, x, u: (p.stage_cost(x, u, 0), p.stage_constraint(x, u, 0)), self, x, u)
        eqx.filter_eval_shape(lambda p, x: (p.terminal_cost(x), p.terminal_constraint(x)), self, x)

    def _control_bound(self, bound, default, name: str):
        nu = self.dynamics.nu
        bound = jnp.full(nu, default, self.dtype) if bound is None else as_leaf(bound)
        if bound.shape == ():
            bound = jnp.broadcast_to(bound, (nu,))
        if bound.shape not in ((nu,), (self.horizon, nu)):
            raise ShapeError(
                f"{name} has shape {bound.shape}, but [{nu}] or [{self.horizon}, {nu}] is needed: [nu] or [horizon, nu]"
            )
        return bound

    @property
    def dtype(self):
        """The precision of the solve: that of `x0` and the dynamics together."""
        return jnp.result_type(self.x0, self.dynamics.neutral())

    @property
    def control_box(self) -> tuple[Float[Array, "horizon nu"], Float[Array, "horizon nu"]]:
        """Lower and upper bounds of all controls; infinite where there are none."""
        shape = (self.horizon, self.dynamics.nu)
        low, high = (jnp.broadcast_to(b, shape).astype(self.dtype) for b in (self.control_lower, self.control_upper))
        return low, high

    @property
    def stages(self):
        """The numbers of the stages, `[horizon]`."""
        return jnp.arange(self.horizon)

    def starting_at(self, x0: Float[Array | np.ndarray, "nx"]) -> Problem:
        """The same problem from another state."""
        x0 = as_leaf(x0)
        require(x0, (self.dynamics.nx,), "x0", f"nx = {self.dynamics.nx} for these dynamics")
        return with_leaves(self, x0=x0)

    def step(self, x, u, k) -> Float[Array, "nx"]:
        """The state after stage `k`."""
        return self.dynamics.step(x, u, k)

    def stage_cost(self, x, u, k) -> Float[Array, ""]:
        """The cost of stage `k`."""
        values = [at_stage(term, k).value(self.dynamics, x, u, k) for term in self.stage_costs]
        return sum(values, jnp.zeros((), self.dtype))

    def terminal_cost(self, x) -> Float[Array, ""]:
        """The cost of the last state."""
        values = [term.value(self.dynamics, x, None, self.horizon) for term in self.terminal_costs]
        return sum(values, jnp.zeros((), self.dtype))

    def total_cost(self, xs: Float[Array, "stages nx"], us: Float[Array, "horizon nu"]) -> Float[Array, ""]:
        """The cost of a trajectory."""
        stages = jax.vmap(self.stage_cost)(xs[:-1], us, self.stages)
        return stages.sum() + self.terminal_cost(xs[-1])

    def stage_constraint(self, x, u, k) -> tuple[Float[Array, "m"], Float[Array, "m"], Float[Array, "m"]]:
        """The residuals of all constraints of stage `k`, and their lower and upper bounds, which are infinite where a
        constraint of the state alone would act on the given `x0`."""
        parts = []
        for term in self.stage_constraints:
            term = at_stage(term, k)
            r = term.residual(self.dynamics, x, u, k)
            low, high = term.bounds(r)
            if term.of_state:
                low, high = jnp.where(k == 0, -jnp.inf, low), jnp.where(k == 0, jnp.inf, high)
            parts.append((r, low, high))
        return _joined(parts, self.dtype)

    def terminal_constraint(self, x) -> tuple[Float[Array, "m"], Float[Array, "m"], Float[Array, "m"]]:
        """The residuals of all constraints of the last state, and their bounds."""
        parts = []
        for term in self.terminal_constraints:
            r = term.residual(self.dynamics, x, None, self.horizon)
            parts.append((r, *term.bounds(r)))
        return _joined(parts, self.dtype)

    @property
    def constraint_sizes(self) -> tuple[int, int]:
        """How many components the constraints of a stage, and those of the end, have."""
        x = jax.ShapeDtypeStruct((self.dynamics.nx,), self.dtype)
        u = jax.ShapeDtypeStruct((self.dynamics.nu,), self.dtype)
        stage = eqx.filter_eval_shape(lambda p, x, u: p.stage_constraint(x, u, 0)[0], self, x, u)
        terminal = eqx.filter_eval_shape(lambda p, x: p.terminal_constraint(x)[0], self, x)
        return stage.shape[0], terminal.shape[0]

    def rollout(self, us: Float[Array, "horizon nu"]) -> Float[Array, "stages nx"]:
        """The states under the controls `us` from `x0`."""

        def one(x, stage):
            after = self.step(x, *stage)
            return after, after

        x0 = self.x0.astype(self.dtype)
        return jnp.concatenate([x0[None], lax.scan(one, x0, (us, self.stages))[1]])

    def gaps(self, xs: Float[Array, "stages nx"], us: Float[Array, "horizon nu"]) -> Float[Array, "stages ndx"]:
        """By how much each state must be displaced to be where it should: `x0` for the first, and where the step before
        leads to for the others."""
        # One after another: half the compilation of all at once, for what is done once.
        reached = lax.map(lambda stage: self.step(*stage), (xs[:-1], us, self.stages))
        reached = jnp.concatenate([self.x0.astype(reached.dtype)[None], reached])
        return jax.vmap(self.dynamics.difference)(xs, reached)

    def violation(self, xs: Float[Array, "stages nx"], us: Float[Array, "horizon nu"]) -> Float[Array, ""]:
        """The largest violation of a constraint or of a control's bounds."""
        stage = jax.vmap(lambda x, u, k: outside(*self.stage_constraint(x, u, k)))(xs[:-1], us, self.stages)
        every = (stage, outside(*self.terminal_constraint(xs[-1])), outside(us, *self.control_box))
        return jnp.concatenate([jnp.abs(part).ravel() for part in every]).max(initial=0.0)

    def guess(self, us: ArrayLike | None = None, xs: ArrayLike | None = None, *, rolled_out: bool = True):
        """The pair `(xs, us)` in full that solvers start from: controls of zeros where none are given, a single control
        `[nu]` or a number repeated; where no states are given, the roll-out, or `x0` repeated. Not clipped to bounds.

        **Raises** `ShapeError`.
        """
        shape = (self.horizon, self.dynamics.nu)
        us = jnp.zeros(shape, self.dtype) if us is None else jnp.asarray(us, self.dtype)
        if us.ndim < 2 and us.shape in ((), shape[1:]):
            us = jnp.broadcast_to(us, shape)
        require(us, shape, "us", "[horizon, nu], a control for each stage")
        if xs is None:
            states = self.rollout(us) if rolled_out else jnp.broadcast_to(self.x0, (self.horizon + 1, self.dynamics.nx))
            return states.astype(self.dtype), us
        xs = jnp.asarray(xs, self.dtype)
        require(xs, (self.horizon + 1, self.dynamics.nx), "xs", "[horizon + 1, nx], a state more than controls")
        return xs, us


def with_leaves(problem: Problem, **changes) -> Problem:
    """`problem` with other leaves, without the checks of its constructor."""
    names = tuple(changes)
    return eqx.tree_at(lambda p: [getattr(p, name) for name in names], problem, list(changes.values()))


def _terms(terms, kind: type, name: str, horizon: int | None) -> tuple:
    if isinstance(terms, kind | TimeVarying):
        raise ModelError(f"{name} is a single {type(terms).__name__}; give a sequence of them")
    terms = tuple(terms)
    for i, term in enumerate(terms):
        varying = isinstance(term, TimeVarying)
        if varying and horizon is None:
            raise ModelError(f"{name}[{i}] is TimeVarying, but there is one end of the horizon only")
        if not isinstance(term.term if varying else term, kind):
            raise ModelError(f"{name}[{i}] is {type(term).__name__}; {kind.__name__} is needed")
        for path, leaf in jax.tree_util.tree_leaves_with_path(term):
            where = f"{name}[{i}]{jax.tree_util.keystr(path)}"
            if varying and jnp.shape(leaf)[:1] != (horizon,):
                raise ShapeError(
                    f"{where} has shape {jnp.shape(leaf)}, but every leaf of a TimeVarying term has a first axis of "
                    f"length {horizon}, the horizon"
                )
            _require_no_nan(leaf, where)
    return terms


def _require_finite(x, what: str) -> None:
    if not isinstance(x, Tracer) and not np.isfinite(np.asarray(x)).all():
        raise ModelError(f"{what} has values that are not finite: {np.asarray(x)}")


def _require_no_nan(x, what: str) -> None:
    if not isinstance(x, Tracer) and np.isnan(np.asarray(x)).any():
        raise ModelError(f"{what} has NaN")


def _joined(parts, dtype):
    empty = jnp.zeros(0, dtype)
    if not parts:
        return empty, empty, empty
    r, low, high = (jnp.concatenate(columns) for columns in zip(*parts, strict=True))
    return r, low, high
