"""`Problem`: an optimal control problem, for every solver."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxdyn import _printing as printing
from jaxdyn import native
from jaxdyn._errors import (
    ModelError,
    ShapeError,
    naming_arguments,
    require_finite,
    require_positive_integer,
    require_shape,
)
from jaxdyn._types import Array, ArrayLike, Float, float_leaf
from jaxdyn.native import natively
from jaxdyn.trajopt.problem._bounded_residuals import Constraint, bound_excess, join_constraints, require_box
from jaxdyn.trajopt.problem._costs import AbstractCost, TimeVarying, term_at_stage
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics
from jaxdyn.trajopt.problem._initial_terms import InitialConstraint, InitialCost
from jaxdyn.trajopt.problem._model_limits import effort_bounds, limit_constraints

type Costs = Sequence[AbstractCost | TimeVarying[Any]]
type Constraints = Sequence[Constraint | TimeVarying[Any]]


class Problem(eqx.Module):
    """Minimize `sum_k stage_costs(x_k, u_k) + terminal_costs(x_N)` subject to `x_(k+1) = f(x_k, u_k)`, the initial
    state `x_0`, bounds on the controls, and constraints. The initial state, or some of its components, may be unknowns
    as well.

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
    free_x0: tuple[bool, ...] | None = eqx.field(static=True)
    """Whether each component `[ndx]` of the initial state is an unknown; None where none is."""

    @naming_arguments
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
        free_x0: bool | Sequence[bool] | np.ndarray | None = None,
        initial_costs: Sequence[AbstractCost] = (),
        initial_constraints: Sequence[Constraint] = (),
    ):
        """
        - `x0` `[nx]`: the state at stage 0 (for a robot `[q, v]`). Where it is free, the state from which guesses
          begin.
        - `horizon`: the number of controls.
        - `control_lower`, `control_upper`: `[nu]`, or `[horizon, nu]`; a number for all controls; None for no bound.
        - `free_x0`: True where the solver chooses the initial state, or `[ndx]`, True for each component of its
          displacement that the solver chooses; by default the parameters of `ParameterDynamics`. Costs and constraints
          of stages act on a free initial state as on others.
        - `initial_costs`, `initial_constraints`: terms of stage 0 alone, such as an arrival cost or bounds on a free
          initial state; they become the last of the terms of stages.

        **Raises** `ShapeError` where a shape does not fit, `ModelError` for a horizon below 1, for bounds that
        contradict each other, for initial constraints on a fixed state, and for values that are not finite (traced
        values are not checked).
        """
        if not isinstance(dynamics, AbstractDynamics):
            raise ModelError(
                f"the dynamics are {type(dynamics).__name__}; give ModelDynamics, ContinuousDynamics or "
                "DiscreteDynamics"
            )
        require_positive_integer(horizon, "the horizon")
        self.dynamics, self.horizon = dynamics, int(horizon)
        dynamics.require_horizon(self.horizon)
        self.x0 = self._initial_state(x0)
        if not isinstance(self.x0, Tracer):
            require_finite(self.x0, "x0")
            dynamics.require_start(self.x0)
        self.free_x0 = self._free_components(free_x0)
        self.stage_costs = _terms(stage_costs, AbstractCost, "stage_costs", self.horizon)
        self.stage_costs += tuple(map(InitialCost, _terms(initial_costs, AbstractCost, "initial_costs", None)))
        self.terminal_costs = _terms(terminal_costs, AbstractCost, "terminal_costs", None)
        self.stage_constraints = _terms(stage_constraints, Constraint, "stage_constraints", self.horizon)
        initial = _terms(initial_constraints, Constraint, "initial_constraints", None)
        if self.free_x0 is None and any(constraint.of_state for constraint in initial):
            raise ModelError("initial_constraints bound the state at stage 0, which is fixed at x0: set free_x0")
        self.stage_constraints += tuple(map(InitialConstraint.of, initial))
        self.terminal_constraints = _terms(terminal_constraints, Constraint, "terminal_constraints", None)
        if not self.stage_costs and not self.terminal_costs:
            raise ModelError("the problem has no costs: give stage_costs or terminal_costs")
        self.bounded = control_lower is not None or control_upper is not None
        self.control_lower = self._control_bound(control_lower, -jnp.inf, "control_lower")
        self.control_upper = self._control_bound(control_upper, jnp.inf, "control_upper")
        require_box(self.control_lower, self.control_upper, "the box of the controls")
        # Shapes of costs, residuals, weights and bounds are checked here, not inside a solver.
        self._shapes(lambda p, x, u: (p.stage_cost(x, u, 0), p.terminal_cost(x)))
        self._shapes(lambda p, x, u: (p.stage_constraint(x, u, 0), p.terminal_constraint(x)))

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        dynamics = self.dynamics
        facts = {"dynamics": f"{type(dynamics).__name__}, steps of {printing.number(dynamics.dt, 's')}"}
        for name in ("stage_costs", "terminal_costs", "stage_constraints", "terminal_constraints"):
            terms = [getattr(x, "term", x) for x in getattr(self, name)]
            if terms:
                shown = printing.kinds(getattr(x, "residual", x) for x in terms)
                facts[name.replace("_", " ")] = shown
        facts["controls"] = "bounded" if self.bounded else "without bounds"
        if self.free_x0 is not None:
            facts["initial state"] = f"{sum(self.free_x0)} of {dynamics.ndx} components are free"
        return f"{self.horizon} stages, nx = {dynamics.nx}, nu = {dynamics.nu}", facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table

    def _shapes(self, function: Callable):
        """The shapes of the results of `function(problem, x, u)`."""
        x, u = (jax.ShapeDtypeStruct((n,), self.dtype) for n in (self.dynamics.nx, self.dynamics.nu))
        return eqx.filter_eval_shape(function, self, x, u)

    def _initial_state(self, x0):
        x0 = float_leaf(x0)
        require_shape(x0, (self.dynamics.nx,), "x0", f"nx = {self.dynamics.nx} for these dynamics")
        return x0

    def _free_components(self, free) -> tuple[bool, ...] | None:
        """`free_x0` in full, with the defaults of the dynamics; None where nothing is free."""
        ndx = self.dynamics.ndx
        free = self.dynamics.free_at_start() if free is None else np.asarray(free)
        if free.dtype != bool:
            raise ModelError(f"free_x0 has entries of type {free.dtype}, but True or False is needed for each")
        if free.shape not in ((), (ndx,)):
            raise ShapeError(f"free_x0 has shape {free.shape}, but [] or [{ndx}] is needed: one for each component")
        free = np.broadcast_to(free, (ndx,))
        # Raises errors of components that cannot be free alone.
        self.dynamics.start_directions(free)
        return tuple(free.tolist()) if free.any() else None

    @property
    def start_directions(self) -> np.ndarray | None:
        """The displacements of the initial state by its unknowns, `[ndx, unknowns]`; None where it is fixed."""
        return None if self.free_x0 is None else self.dynamics.start_directions(np.asarray(self.free_x0))

    def free_part(self, dx: Float[Array, "ndx"]) -> Float[Array, "ndx"]:
        """The part of a displacement of the initial state that its unknowns can make."""
        directions = self.start_directions
        if directions is None:
            return jnp.zeros_like(dx)
        # Directions are orthogonal to each other.
        return jnp.asarray(directions @ (directions / (directions**2).sum(axis=0)).T, dx.dtype) @ dx

    def possible_start(self, x) -> Float[Array, "nx"]:
        """The state nearest to `x` at which a motion may begin: `x0`, with its free components as those of `x`."""
        x0 = self.x0.astype(self.dtype)
        if self.free_x0 is None:
            return x0
        # A constant, so that the derivative by `x` is that of the components that are not free: zero.
        shift = lax.stop_gradient(self.free_part(self.dynamics.difference(x0, x)))
        return self.dynamics.integrate(x0, shift)

    def require_fixed_start(self, user: str) -> None:
        """Raise `ModelError` where the initial state has free components, for a method that cannot choose them."""
        if self.free_x0 is not None:
            raise ModelError(
                f"{user} chooses controls only, but {sum(self.free_x0)} components of the initial state are free "
                "(free_x0, or parameters of ParameterDynamics): use ddp, or a problem with a fixed x0"
            )

    @property
    def of_robot(self) -> bool:
        """Whether the innermost dynamics are those of a robot."""
        core: Any = self.dynamics
        while hasattr(core, "inner"):
            core = core.inner
        return core.robot is not None

    def _control_bound(self, bound, default, name: str):
        nu = self.dynamics.nu
        bound = jnp.full(nu, default, self.dtype) if bound is None else float_leaf(bound)
        bound = jnp.broadcast_to(bound, (nu,)) if bound.shape == () else bound
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
        """The stages' numbers, `[horizon]`."""
        return jnp.arange(self.horizon)

    @naming_arguments
    def starting_at(self, x0: Float[Array | np.ndarray, "nx"]) -> "Problem":
        """The same problem from another state."""
        return with_leaves(self, x0=self._initial_state(x0))

    def with_model_limits(
        self, *, positions: bool = True, velocities: bool = True, efforts: bool = True, margin: float = 0.0
    ) -> "Problem":
        """The problem with the limits of the robot's model: constraints on coordinates and velocities at all stages and
        at the end (`limit_constraints`, which has the `margin`), and bounds on the controls (`effort_bounds`) where
        those of the problem are wider. **Raises** `ModelError` as these functions, and where bounds contradict."""
        limits = limit_constraints(self.dynamics, positions=positions, velocities=velocities, margin=margin)
        lower, upper = (self.control_lower, self.control_upper) if self.bounded else (None, None)
        if efforts:
            low, high = effort_bounds(self.dynamics)
            if isinstance(high, Tracer) or np.isfinite(np.asarray(high)).any():
                lower, upper = jnp.maximum(self.control_lower, low), jnp.minimum(self.control_upper, high)
        return Problem(
            self.dynamics,
            self.x0,
            self.horizon,
            stage_costs=self.stage_costs,
            terminal_costs=self.terminal_costs,
            control_lower=lower,
            control_upper=upper,
            stage_constraints=(*self.stage_constraints, *limits),
            terminal_constraints=(*self.terminal_constraints, *limits),
            free_x0=False if self.free_x0 is None else self.free_x0,
        )

    def stage_function(self, function: Callable, *, one_by_one: bool = False) -> Callable:
        """A function of one stage as a single call, whose native program has all that the user's functions compute. The
        functions of a robot have programs of their own. Where there is no native program, XLA's on a CPU takes many
        stages at once, or `one_by_one`: derivatives then compile in half the time, and run about as fast."""
        if native.enabled() and self.of_robot:
            return function
        return natively(function, one_by_one=one_by_one)

    def over_stages(self, function: Callable, *, one_by_one: bool = False) -> Callable:
        """A function of one stage, mapped over leading axes of its arguments: `jax.vmap` of `stage_function`."""
        return jax.vmap(self.stage_function(function, one_by_one=one_by_one))

    def step(self, x, u, k) -> Float[Array, "nx"]:
        """The state after stage `k`."""
        return self.stage_function(self.dynamics.step)(x, u, k)

    def stage_cost(self, x, u, k) -> Float[Array, ""]:
        """The cost of stage `k`."""
        return self._sum_costs(self.stage_costs, x, u, k)

    def terminal_cost(self, x) -> Float[Array, ""]:
        """The cost of the last state."""
        return self._sum_costs(self.terminal_costs, x, None, self.horizon)

    def _sum_costs(self, terms, x, u, k):
        values = [term_at_stage(term, k).value(self.dynamics, x, u, k) for term in terms]
        return sum(values, jnp.zeros((), self.dtype))

    @naming_arguments
    def total_cost(self, xs: Float[Array, "stages nx"], us: Float[Array, "horizon nu"]) -> Float[Array, ""]:
        """The cost of a trajectory."""
        stages = self.over_stages(self.stage_cost)(xs[:-1], us, self.stages)
        return stages.sum() + self.stage_function(self.terminal_cost)(xs[-1])

    def stage_constraint(self, x, u, k) -> tuple[Float[Array, "m"], Float[Array, "m"], Float[Array, "m"]]:
        """The residuals of all constraints of stage `k`, and their lower and upper bounds, which are infinite where a
        constraint on the state alone would act on a fixed `x0`."""
        return self._evaluate_constraints(self.stage_constraints, x, u, k)

    def terminal_constraint(self, x) -> tuple[Float[Array, "m"], Float[Array, "m"], Float[Array, "m"]]:
        """The residuals of all constraints of the last state, and their bounds."""
        return self._evaluate_constraints(self.terminal_constraints, x, None, self.horizon)

    def _evaluate_constraints(self, terms, x, u, k):
        free = self.free_x0 is not None
        parts = [term_at_stage(term, k).evaluate(self.dynamics, x, u, k, free) for term in terms]
        return join_constraints(parts, self.dtype)

    @naming_arguments
    def constraints(
        self, xs: Float[Array, "stages nx"], us: Float[Array, "horizon nu"]
    ) -> tuple[Float[Array, "rows"], Float[Array, "rows"], Float[Array, "rows"]]:
        """The residuals of all constraints of a trajectory, and their bounds: stage by stage, then the end's."""
        stage = self.over_stages(self.stage_constraint)(xs[:-1], us, self.stages)
        r, low, high = map(join_rows, stage, self.stage_function(self.terminal_constraint)(xs[-1]))
        return r, low, high

    def split_rows(self, rows) -> tuple[Float[Array, "horizon m"], Float[Array, "m_end"]]:
        """The parts of the stages and of the end, from an array with a row for each of `constraints`."""
        stage, terminal = self.constraint_sizes
        if stage and terminal:
            first, last = rows[:-terminal], rows[-terminal:]
        else:
            # In programs with empty parts of arrays, XLA (JAX 0.12) may lose the interface of native calls.
            empty = jnp.zeros(0, rows.dtype)
            first, last = (rows, empty) if stage else (empty, rows)
        return first.reshape(self.horizon, stage), last

    @property
    def constraint_sizes(self) -> tuple[int, int]:
        """The numbers of components of the constraints at a stage and at the end."""
        stage, terminal = self._shapes(lambda p, x, u: (p.stage_constraint(x, u, 0)[0], p.terminal_constraint(x)[0]))
        return stage.shape[0], terminal.shape[0]

    @naming_arguments
    def rollout(self, us: Float[Array, "horizon nu"]) -> Float[Array, "stages nx"]:
        """The states under the controls `us` from `x0`."""

        def advance(x, stage):
            after = self.step(x, *stage)
            return after, after

        x0 = self.x0.astype(self.dtype)
        return jnp.concatenate([x0[None], lax.scan(advance, x0, (us, self.stages))[1]])

    @naming_arguments
    def gaps(self, xs: Float[Array, "stages nx"], us: Float[Array, "horizon nu"]) -> Float[Array, "stages ndx"]:
        """The displacements from each state to where it should be: `x0`, or where the step before leads. Free
        components of the initial state have none."""
        reached = self.over_stages(self.dynamics.step, one_by_one=True)(xs[:-1], us, self.stages)
        return self.gaps_before(xs, reached)

    def gaps_before(self, xs, reached) -> Float[Array, "stages ndx"]:
        """The displacements from each state to where it should be, from the states `reached` by the steps before."""
        difference = self.dynamics.difference
        if self.free_x0 is not None:
            gap = difference(xs[0], self.possible_start(xs[0]))
            return jnp.concatenate([(gap - self.free_part(gap))[None], jax.vmap(difference)(xs[1:], reached)])
        reached = jnp.concatenate([self.x0.astype(reached.dtype)[None], reached])
        return jax.vmap(difference)(xs, reached)

    @naming_arguments
    def violation(self, xs: Float[Array, "stages nx"], us: Float[Array, "horizon nu"]) -> Float[Array, ""]:
        """The largest violation of a constraint or of a control's bounds."""
        excess = bound_excess(*self.constraints(xs, us)), bound_excess(us, *self.control_box).ravel()
        return jnp.abs(jnp.concatenate(excess)).max(initial=0.0)

    @naming_arguments
    def guess(self, us: ArrayLike | None = None, xs: ArrayLike | None = None, *, rolled_out: bool | None = None):
        """The pair `(xs, us)` in full from which solvers start. Controls are zeros by default; a single control `[nu]`
        or a number is repeated; all are clipped to their bounds. States are by default the roll-out
        (`rolled_out=True`), `x0` repeated (False), or the better of both: the roll-out unless it diverges, costs more,
        or violates constraints that `x0` meets. Where a part of the initial state is free, the other part of a guess's
        first state is that of `x0`. **Raises** `ShapeError`."""
        shape = (self.horizon, self.dynamics.nu)
        us = jnp.zeros(shape, self.dtype) if us is None else jnp.asarray(us, self.dtype)
        if us.ndim < 2 and us.shape in ((), shape[1:]):
            us = jnp.broadcast_to(us, shape)
        require_shape(us, shape, "us", "[horizon, nu], a control for each stage")
        us = jnp.clip(us, *self.control_box)
        if xs is not None:
            xs = jnp.asarray(xs, self.dtype)
            require_shape(
                xs, (self.horizon + 1, self.dynamics.nx), "xs", "[horizon + 1, nx], a state more than controls"
            )
            if self.free_x0 is not None:
                xs = xs.at[0].set(self.possible_start(xs[0]))
            return xs, us
        still = jnp.broadcast_to(self.x0, (self.horizon + 1, self.dynamics.nx)).astype(self.dtype)
        if rolled_out is False:
            return still, us
        moving = self.rollout(us).astype(self.dtype)
        if rolled_out:
            return moving, us

        def judge(xs):
            return self.total_cost(xs, us), self.violation(xs, us)

        (cost, violation), (still_cost, still_violation) = judge(moving), judge(still)
        better = jnp.isfinite(moving).all() & (cost <= still_cost)
        better = better & (violation <= jnp.maximum(10 * still_violation, 1))
        return jnp.where(better, moving, still), us


def join_rows(stage, terminal) -> Array:
    """One vector of an array `[horizon, m]` for the stages and an array `[m]` for the end."""
    parts = [part for part in (stage.ravel(), terminal) if part.size]
    return jnp.concatenate(parts) if parts else terminal


def with_leaves(problem: Problem, **changes) -> Problem:
    """The problem with some leaves replaced, without the checks of its constructor."""
    names = tuple(changes)
    return eqx.tree_at(lambda p: [getattr(p, name) for name in names], problem, list(changes.values()))


def _terms(terms, kind: type, name: str, horizon: int | None) -> tuple:
    """The terms as a tuple. **Raises** `ModelError` or `ShapeError` for terms that cannot stand there."""
    if isinstance(terms, kind | TimeVarying):
        raise ModelError(f"{name} is a single {type(terms).__name__}; give a sequence of them")
    terms = tuple(terms)
    for i, term in enumerate(terms):
        varying = isinstance(term, TimeVarying)
        if varying and horizon is None:
            raise ModelError(f"{name}[{i}] is TimeVarying, but {name.replace('_', ' ')} stand at a single stage")
        if not isinstance(term.term if varying else term, kind):
            raise ModelError(f"{name}[{i}] is {type(term).__name__}; {kind.__name__} is needed")
        for path, leaf in jax.tree_util.tree_leaves_with_path(term):
            place = f"{name}[{i}]{jax.tree_util.keystr(path)}"
            if varying and jnp.shape(leaf)[:1] != (horizon,):
                raise ShapeError(
                    f"{place} has shape {jnp.shape(leaf)}, but every leaf of a TimeVarying term has a first axis of "
                    f"length {horizon}, the horizon"
                )
            if not isinstance(leaf, Tracer) and np.isnan(np.asarray(leaf)).any():
                raise ModelError(f"{place} has NaN")
    return terms
