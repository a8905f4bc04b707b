"""Dynamics whose states carry what is chosen once for all stages: parameters, and the first state of a periodic
motion."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, ShapeError, naming_arguments, require_shape
from jaxdyn._types import Array, ArrayLike, Float, float_leaf, leaf_of
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics
from jaxdyn.trajopt.problem._ensembles import StackedDynamics
from jaxdyn.trajopt.problem._residuals import Linear, StateOnlyResidual
from jaxdyn.trajopt.problem._wrapped_dynamics import (
    ExtendedDynamics,
    WrappedDynamics,
    find_dynamics,
    require_same_sizes,
)


class ParameterDynamics(ExtendedDynamics):
    """The dynamics `inner` with parameters that a solver chooses once for all stages: lengths, masses, stiffnesses, a
    time step, or any other arrays. The state is `[x, p]`; the parameters `p` `[parameters]` do not change along a
    motion, and are free at its start.

    ```python
    def with_length(dynamics, p):
        return equinox.tree_at(lambda d: d.params, dynamics, p[0])

    dynamics = ParameterDynamics(inner, with_length, [0.5])
    problem = Problem(dynamics, dynamics.join(x0), horizon, stage_costs=[...])
    length = dynamics.parameters_of(ddp(problem).xs)[0]
    ```

    A `ParameterResidual` in one of the `initial_costs` or `initial_constraints` is a price or a bound of parameters.
    Functions of the state get `[x, p]`. Residuals of robots stand in an `InnerResidual`, which gives them the robot
    with the parameters and the inner state; so do other residuals whose targets have inner lengths. Functions of time
    get the time with the inner dynamics' own step.
    """

    inner: AbstractDynamics
    initial: Float[Array, "parameters"]
    arrays: Any
    static: Any = eqx.field(static=True)
    state_changes_inner: ClassVar[bool] = True

    @naming_arguments
    def __init__(
        self,
        inner: AbstractDynamics,
        function: Callable[[Any, Any], AbstractDynamics],
        parameters: ArrayLike,
    ):
        """
        - `function`: called as `function(inner, p)`; returns the inner dynamics with the parameters `p`. It may be a
          module that holds arrays. For a robot, `jaxdyn.sysid.Parametrization` has physically possible parameters:
          `lambda d, p: equinox.tree_at(lambda d: d.model, d, lengths.about(d.model).model(p))`.
        - `parameters` `[parameters]`: values from which guesses begin.

        **Raises** `ShapeError` for parameters that are not a vector, `ModelError` for a function that returns something
        else than dynamics with the same states and controls."""
        self.inner, self.initial = inner, float_leaf(parameters)
        if self.initial.ndim != 1 or not self.initial.size:
            raise ShapeError(f"the parameters have shape {self.initial.shape}; a vector [parameters] is needed")
        # The function may be a module that holds arrays.
        self.arrays, self.static = eqx.partition(function, eqx.is_array)
        require_same_sizes(inner, lambda: self.with_parameters(self.initial), "ParameterDynamics")

    robot = property(lambda self: None)
    """None, because the robot depends on the state: residuals of robots stand in an `InnerResidual`."""

    @property
    def extra(self) -> int:
        """The number of parameters."""
        return self.initial.size

    @naming_arguments
    def join(self, x: ArrayLike, parameters: ArrayLike | None = None) -> Float[Array, "*batch nx"]:
        """The states `[*batch, nx]` from those of the inner dynamics and the parameters, by default the first ones."""
        x = float_leaf(x)
        p = self.initial if parameters is None else float_leaf(parameters)
        return jnp.concatenate([x, jnp.broadcast_to(p, (*x.shape[:-1], self.extra)).astype(x.dtype)], axis=-1)

    @naming_arguments
    def parameters_of(self, xs: Float[Array, "*batch nx"]) -> Float[Array, "*batch parameters"]:
        """The parameters of states; those of a trajectory `[stages, nx]` are the same at all stages."""
        return xs[..., self.inner.nx :]

    def with_parameters(self, parameters: Float[Array, "parameters"]) -> AbstractDynamics:
        """The inner dynamics with parameters."""
        return eqx.combine(self.arrays, self.static)(self.inner, parameters)

    def inner_at(self, x, u, k):
        return self.with_parameters(x[self.inner.nx :])

    def free_at_start(self):
        return np.concatenate([self.inner.free_at_start(), np.ones(self.extra, bool)])

    def outer_states(self, xs, us):
        return xs.at[1:, self.inner.nx :].set(xs[0, self.inner.nx :])

    def neutral(self):
        return self.join(self.inner.neutral())

    def step(self, x, u, k):
        after = self.inner_at(x, u, k).step(self.inner_state(x), u, k)
        return jnp.concatenate([after, x[self.inner.nx :].astype(after.dtype)])

    def linearize(self, x, u, k, after):
        n, inner_x, inner_after = self.inner.ndx, self.inner_state(x), self.inner_state(after)
        A, B = self.inner_at(x, u, k).linearize(inner_x, u, k, inner_after)

        def displacement(p):
            return self.inner.difference(inner_after, self.with_parameters(p).step(inner_x, u, k))

        by_p = jax.jacfwd(displacement)(x[self.inner.nx :])
        below = jnp.eye(self.ndx, dtype=A.dtype)[n:]
        return jnp.concatenate([jnp.concatenate([A, by_p], axis=1), below]), jnp.pad(B, ((0, self.extra), (0, 0)))


class ParameterResidual(StateOnlyResidual):
    """The parameters `[parameters]` of `ParameterDynamics` minus `target`, 0 by default."""

    target: Float[Array, "..."] = eqx.field(default=0.0, converter=leaf_of("ParameterResidual: `target`"))

    def __call__(self, dynamics, x, u, k):
        outer = find_dynamics(dynamics, ParameterDynamics, "a ParameterResidual")
        if self.target.shape not in ((), (outer.extra,)):
            raise ShapeError(
                f"the target of a ParameterResidual has shape {self.target.shape}; [] or [{outer.extra}] is needed"
            )
        return outer.parameters_of(x[: outer.nx]) - self.target.astype(x.dtype)

    def linearize(self, dynamics, x, u, k):
        outer = find_dynamics(dynamics, ParameterDynamics, "a ParameterResidual")
        by_x = jnp.eye(outer.ndx, dynamics.ndx, dtype=x.dtype)[outer.inner.ndx :]
        return Linear(self(dynamics, x, u, k), by_x, None)


class FirstStateDynamics(StackedDynamics, WrappedDynamics):
    """The dynamics `inner` with the state `[x, x_first]`, which carries the first state of a motion to its end: for
    motions that end as they began, from an initial state that is free (`PeriodicResidual`).

    ```python
    dynamics = FirstStateDynamics(inner)
    problem = Problem(
        dynamics,
        dynamics.join(x0),
        horizon,
        free_x0=True,
        terminal_constraints=[Constraint(PeriodicResidual())],
        stage_costs=[...],
    )
    ```

    Residuals of robots take states as they are, and `InnerResidual` gives any other residual the inner state. Where the
    length of steps or another parameter is chosen too, `ParameterDynamics` go around these dynamics.
    """

    inner: AbstractDynamics

    @property
    def members(self) -> int:
        """2, the state and the first state."""
        return 2

    @naming_arguments
    def join(self, x: ArrayLike, first: ArrayLike | None = None) -> Float[Array, "*batch nx"]:
        """The states `[*batch, nx]` from those of the inner dynamics and the first state, by default `x` itself."""
        x = float_leaf(x)
        first = x if first is None else jnp.broadcast_to(float_leaf(first), x.shape)
        return jnp.concatenate([x, first], axis=-1)

    def first_state(self, x: Float[Array, "*batch nx"]) -> Float[Array, "*batch nx_inner"]:
        """The first state of the motion."""
        return x[..., self.inner.nx :]

    def require_start(self, x0):
        super().require_start(x0)
        if not np.array_equal(self.inner_state(x0), self.first_state(x0)):
            raise ModelError("the two halves of x0 differ, but the first state is the first state: give join(x0)")

    def start_directions(self, free):
        inner = self.inner.start_directions(free[: self.inner.ndx])
        return np.concatenate([inner, inner])

    def inner_at(self, x, u, k):
        return self.inner

    def outer_states(self, xs, us):
        return xs.at[:, self.inner.nx :].set(xs[0, : self.inner.nx])

    def step(self, x, u, k):
        after = self.inner.step(self.inner_state(x), u, k)
        return jnp.concatenate([after, self.first_state(x).astype(after.dtype)])

    def linearize(self, x, u, k, after):
        A, B = self.inner.linearize(self.inner_state(x), u, k, self.inner_state(after))
        n = self.inner.ndx
        return jax.scipy.linalg.block_diag(A, jnp.eye(n, dtype=A.dtype)), jnp.pad(B, ((0, n), (0, 0)))


class PeriodicResidual(StateOnlyResidual):
    """The displacement `[ndx_inner]` from where a period should lead, `mirror x_first + travel`, to the state, for
    `FirstStateDynamics`. As a terminal constraint it makes a motion periodic."""

    mirror: Float[Array, "nx_inner nx_inner"] | None
    travel: Float[Array, "nx_inner"]
    free: tuple[int, ...] = eqx.field(static=True)

    @naming_arguments
    def __init__(self, *, travel: ArrayLike = 0.0, free: Sequence[int] = (), mirror: ArrayLike | None = None):
        """
        - `travel`: what a period adds to the entries of the state, a number or `[nx_inner]`: the length of a stride in
          the entry of the base's position.
        - `free`: indices in the state of the entries that may end anywhere. Their values do not matter.
        - `mirror`: the matrix `[nx_inner, nx_inner]` by which the first state is multiplied: half of a symmetric stride
          ends in the mirror image of how it began. A quaternion `w x y z` is mirrored in the plane of x and z by the
          signs `1, -1, 1, -1`."""
        self.travel, self.free = float_leaf(travel), tuple(int(i) for i in free)
        self.mirror = None if mirror is None else float_leaf(mirror)

    def __call__(self, dynamics, x, u, k):
        outer = find_dynamics(dynamics, FirstStateDynamics, "a PeriodicResidual")
        n, x = outer.inner.nx, x[: outer.nx]
        if self.mirror is not None:
            require_shape(self.mirror, (n, n), "mirror of a PeriodicResidual", "a matrix for the inner state")
        if self.travel.shape not in ((), (n,)):
            raise ShapeError(f"travel has shape {self.travel.shape}, but [] or [{n}] is needed")
        if any(not 0 <= i < n for i in self.free):
            raise ModelError(f"free has the indices {self.free}, but the inner state has {n} entries")
        last, target = outer.inner_state(x), outer.first_state(x)
        target = target if self.mirror is None else self.mirror.astype(x.dtype) @ target
        target = target + self.travel.astype(x.dtype)
        chosen = np.isin(np.arange(n), self.free)
        away = outer.inner.difference(jnp.where(chosen, last, target), last)
        # The rows of free entries are zero; where states are vectors, they are the entries' own.
        return away[~chosen] if outer.inner.euclidean else away
