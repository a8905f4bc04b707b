"""Dynamics whose states are those of several, and one sequence of controls for all of them: robust motions."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.core import Tracer

from jaxdyn._errors import ShapeError, naming_arguments, require_positive
from jaxdyn._types import Array, ArrayLike, Float, float_leaf, leaf_of
from jaxdyn.trajopt.problem._costs import AbstractCost, Quadratic
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics
from jaxdyn.trajopt.problem._residuals import AbstractResidual, Linear
from jaxdyn.trajopt.problem._wrapped_dynamics import DynamicsAround, find_dynamics, require_same_sizes


class StackedDynamics(DynamicsAround):
    """Dynamics whose states are those of several dynamics like the inner ones, one after the other."""

    @property
    @abc.abstractmethod
    def members(self) -> int:
        """The number of states in one."""

    @property
    def nx(self) -> int:
        """Length of a state, `members inner.nx`."""
        return self.members * self.inner.nx

    @property
    def ndx(self) -> int:
        """Length of a displacement of the state, `members inner.ndx`."""
        return self.members * self.inner.ndx

    def of_members(self, function: Callable, *states) -> Any:
        """The results of `function(dynamics, *states)` for each member, with a leading axis of members; `states` are
        states or displacements of all."""
        parts = [x.reshape(self.members, -1) for x in states]
        return jax.vmap(lambda *parts: function(self.inner, *parts))(*parts)

    def free_at_start(self):
        return np.tile(self.inner.free_at_start(), self.members)

    def neutral(self):
        return jnp.tile(self.inner.neutral(), self.members)

    def integrate(self, x, dx):
        return self.of_members(lambda d, x, dx: d.integrate(x, dx), x, dx).ravel()

    def difference(self, x0, x1):
        return self.of_members(lambda d, x0, x1: d.difference(x0, x1), x0, x1).ravel()

    def integrate_jacobian(self, x, dx):
        return _block_diagonal(self.of_members(lambda d, x, dx: d.integrate_jacobian(x, dx), x, dx))

    def difference_jacobian(self, x0, x1):
        return _block_diagonal(self.of_members(lambda d, x0, x1: d.difference_jacobian(x0, x1), x0, x1))

    def displacement_rates(self, x):
        return _block_diagonal(self.of_members(lambda d, x: d.displacement_rates(x), x))


class EnsembleDynamics(StackedDynamics):
    """Several dynamics that get the same controls: the dynamics `inner` with each of several parameters, such as masses
    that are not known well. States `[members nx_inner]` are those of all members, one after the other.

    ```python
    def with_mass(dynamics, mass):
        return equinox.tree_at(lambda d: d.model, dynamics, model.scaled(mass=mass))

    dynamics = EnsembleDynamics(ModelDynamics(model, 0.02), with_mass, [0.8, 1.0, 1.2])
    problem = Problem(
        dynamics,
        dynamics.join(x0),
        horizon,
        stage_costs=[QuadraticCost(ControlResidual(), 1e-2)],
        terminal_costs=[EnsembleCost(QuadraticCost(StateResidual(goal)))],
    )
    ```

    `EnsembleCost` is the mean or the worst of a cost over the members, and `EnsembleResidual` has a residual of all of
    them, for constraints that each has to meet. A solve takes about as long as one of each member.
    """

    inner: AbstractDynamics
    parameters: Float[Array, "members ..."]
    arrays: Any
    static: Any = eqx.field(static=True)
    stacked: ClassVar[bool] = True

    @naming_arguments
    def __init__(
        self, inner: AbstractDynamics, function: Callable[[Any, Any], AbstractDynamics], parameters: ArrayLike
    ):
        """
        - `function`: called as `function(inner, p)` with each of the `parameters`; returns the dynamics of a member. It
          may be a module that holds arrays.
        - `parameters` `[members, ...]`.

        **Raises** `ShapeError` for parameters without an axis of members, `ModelError` for a function that returns
        something else than dynamics with the same states and controls."""
        self.inner, self.parameters = inner, float_leaf(parameters)
        if not self.parameters.ndim or not self.parameters.size:
            raise ShapeError(f"the parameters have shape {self.parameters.shape}; [members, ...] is needed")
        self.arrays, self.static = eqx.partition(function, eqx.is_array)
        require_same_sizes(inner, lambda: self.member(self.parameters[0]), "EnsembleDynamics")

    robot = property(lambda self: None)
    """None, because there are several: residuals of robots stand in an `EnsembleResidual` or `EnsembleCost`."""

    @property
    def members(self) -> int:
        """The number of members."""
        return len(self.parameters)

    @naming_arguments
    def join(self, x: ArrayLike) -> Float[Array, "*batch nx"]:
        """The states `[*batch, nx]` in which all members have the state `x` `[*batch, nx_inner]`."""
        return jnp.tile(float_leaf(x), self.members)

    @naming_arguments
    def states_of(self, xs: Float[Array, "*batch nx"]) -> Float[Array, "*batch members nx_inner"]:
        """The states of each member."""
        xs = float_leaf(xs)
        return xs.reshape(*xs.shape[:-1], self.members, self.inner.nx)

    def member(self, parameters: Float[Array, "..."]) -> AbstractDynamics:
        """The dynamics of a member with parameters."""
        return eqx.combine(self.arrays, self.static)(self.inner, parameters)

    def of_members(self, function: Callable, *states) -> Any:
        parts = [x.reshape(self.members, -1) for x in states]
        return jax.vmap(lambda p, *parts: function(self.member(p), *parts))(self.parameters, *parts)

    def require_start(self, x0):
        for x in self.states_of(x0):
            self.inner.require_start(x)

    def start_directions(self, free):
        return scipy.linalg.block_diag(*map(self.inner.start_directions, np.split(free, self.members)))

    def step(self, x, u, k):
        return self.of_members(lambda d, x: d.step(x, u, k), x).ravel()

    def linearize(self, x, u, k, after):
        A, B = self.of_members(lambda d, x, after: d.linearize(x, u, k, after), x, after)
        return _block_diagonal(A), B.reshape(-1, self.nu)


class EnsembleResidual(AbstractResidual):
    """A residual of all members of `EnsembleDynamics`, `[members m]`, member after member: in a `Constraint`, each of
    them has to meet the bounds."""

    residual: AbstractResidual

    @property
    def of_state(self) -> bool:
        return self.residual.of_state

    def __call__(self, dynamics, x, u, k):
        outer = find_dynamics(dynamics, EnsembleDynamics, "an EnsembleResidual")
        return outer.of_members(lambda d, x: self.residual(d, x, u, k), x).ravel()

    def linearize(self, dynamics, x, u, k):
        outer = find_dynamics(dynamics, EnsembleDynamics, "an EnsembleResidual")
        r, by_x, by_u = outer.of_members(lambda d, x: self.residual.linearize(d, x, u, k), x)
        rows = None if by_u is None else by_u.reshape(r.size, -1)
        return Linear(r.ravel(), None if by_x is None else _block_diagonal(by_x), rows)


class EnsembleCost(AbstractCost):
    """The mean over the members of `EnsembleDynamics` of a cost at a stage or at the end; with a `width`, the cost of
    the worst member.

    The worst is `width log(mean(exp(cost / width)))`, which is smooth, and below the largest cost by at most `width`
    times the logarithm of the number of members. Of a sum over stages it is the worst at each stage: for the worst of a
    whole motion, constrain an `EnsembleResidual`. **Raises** `ModelError` for a width that is not positive."""

    cost: AbstractCost
    width: Float[Array, ""] | None = eqx.field(default=None, converter=leaf_of("EnsembleCost: `width`", optional=True))

    def __check_init__(self):
        if self.width is not None and not isinstance(self.width, Tracer):
            require_positive(self.width, "the width of an EnsembleCost")

    def value(self, dynamics, x, u, k):
        return self._weights(self._members(dynamics, x, lambda d, x: self.cost.value(d, x, u, k)))[0]

    def gauss_newton(self, dynamics, x, u, k):
        value, by_x, by_u, xx, ux, uu = self._members(dynamics, x, lambda d, x: self.cost.gauss_newton(d, x, u, k))
        total, p = self._weights(value)
        n, m = by_x.size, by_u.shape[1]
        ux = jnp.moveaxis(p[:, None, None] * ux, 0, 1).reshape(m, n)
        weighted = _block_diagonal(p[:, None, None] * xx), ux, jnp.tensordot(p, uu, 1)
        out = Quadratic(total, (p[:, None] * by_x).ravel(), p @ by_u, *weighted)
        if self.width is None:
            return out
        # The second derivative by the members' costs: a matrix of covariances, so no eigenvalue is negative.
        spread = (jnp.diag(p) - jnp.outer(p, p)) / self.width.astype(p.dtype)
        apart = _block_diagonal(by_x[:, None, :])
        return out._replace(
            xx=out.xx + apart.T @ spread @ apart, ux=ux + by_u.T @ spread @ apart, uu=out.uu + by_u.T @ spread @ by_u
        )

    def _members(self, dynamics, x, function: Callable):
        return find_dynamics(dynamics, EnsembleDynamics, "an EnsembleCost").of_members(function, x)

    def _weights(self, costs) -> tuple[Array, Array]:
        """The cost, and its derivatives by those of the members."""
        if self.width is None:
            return costs.mean(), jnp.full_like(costs, 1 / len(costs))
        scaled = costs / self.width.astype(costs.dtype)
        worst = self.width.astype(costs.dtype) * (jax.nn.logsumexp(scaled) - np.log(len(costs)))
        return worst, jax.nn.softmax(scaled)


def _block_diagonal(matrices):
    """The matrix with the matrices `[members, m, n]` on its diagonal."""
    return jax.scipy.linalg.block_diag(*matrices)
