"""Dynamics around other dynamics: displaced by a disturbance, with the control before in the state, and with the length
of steps as a control."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jax.core import Tracer

from jaxdyn._errors import (
    ModelError,
    ShapeError,
    naming_arguments,
    require_positive,
)
from jaxdyn._types import Array, ArrayLike, Float, float_leaf, leaf_of
from jaxdyn.trajopt.problem._costs import AbstractCost, Quadratic
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics
from jaxdyn.trajopt.problem._residuals import AbstractResidual, Linear


class DynamicsAround(AbstractDynamics):
    """Dynamics around other dynamics, with their manifold and times."""

    inner: eqx.AbstractVar[AbstractDynamics]
    stacked: ClassVar[bool] = False
    """Whether states are those of several inner dynamics, so that residuals of these cannot take them."""

    # The inner dynamics' own arrays, so a change of the time or of the step reaches them.
    @property
    def dt(self) -> Any:
        """Length of a step, s."""
        return self.inner.dt

    @property
    def t0(self) -> Any:
        """Time of stage 0, s."""
        return self.inner.t0

    @property
    def nx(self) -> int:
        """Length of a state."""
        return self.inner.nx

    @property
    def ndx(self) -> int:
        """Length of a displacement of the state."""
        return self.inner.ndx

    @property
    def nu(self) -> int:
        """Length of a control."""
        return self.inner.nu

    robot = property(lambda self: self.inner.robot)
    euclidean = property(lambda self: self.inner.euclidean)

    def time(self, k):
        return self.inner.time(k)

    def step_length(self, k):
        return self.inner.step_length(k)

    def neutral(self):
        return self.inner.neutral()

    def integrate(self, x, dx):
        return self.inner.integrate(x, dx)

    def difference(self, x0, x1):
        return self.inner.difference(x0, x1)

    def integrate_jacobian(self, x, dx):
        return self.inner.integrate_jacobian(x, dx)

    def difference_jacobian(self, x0, x1):
        return self.inner.difference_jacobian(x0, x1)

    def displacement_rates(self, x):
        return self.inner.displacement_rates(x)

    def require_horizon(self, horizon):
        self.inner.require_horizon(horizon)

    def require_start(self, x0):
        self.inner.require_start(x0[: self.inner.nx])

    def free_at_start(self):
        return np.concatenate([self.inner.free_at_start(), np.zeros(self.ndx - self.inner.ndx, bool)])

    def start_directions(self, free):
        n = self.inner.ndx
        inner, others = self.inner.start_directions(free[:n]), np.eye(self.ndx - n)[:, free[n:]]
        return scipy.linalg.block_diag(inner, others)


class _DisturbedDynamics(DynamicsAround):
    """The dynamics `inner`, whose every step is displaced by `disturbance`."""

    inner: AbstractDynamics
    disturbance: Float[Array, "ndx"]

    def step(self, x, u, k):
        return self.integrate(self.inner.step(x, u, k), self.disturbance)

    def linearize(self, x, u, k, after):
        if self.euclidean:
            return self.inner.linearize(x, u, k, after - self.disturbance)
        before = self.inner.step(x, u, k)
        A, B = self.inner.linearize(x, u, k, before)
        by_before = self.integrate_jacobian(before, self.disturbance)
        return by_before @ A, by_before @ B


def with_disturbance(dynamics: AbstractDynamics, disturbance: Float[Array, "ndx"]) -> AbstractDynamics:
    """The dynamics with every step displaced by `disturbance`, the constant state disturbance that offset-free control
    assumes (Pannocchia & Rawlings, Disturbance models for offset-free model-predictive control, AIChE J. 2003)."""
    # Sizes and times are properties of the class, but type checkers take them for arguments.
    return _DisturbedDynamics(dynamics, disturbance)  # pyright: ignore[reportCallIssue]


class WrappedDynamics(DynamicsAround):
    """Dynamics around other dynamics, whose state comes first in the state and whose control comes first in the
    control."""

    state_changes_inner: ClassVar[bool] = False
    """Whether the inner dynamics depend on what follows their state in the state."""

    @abc.abstractmethod
    def inner_at(self, x: Float[Array, "nx"], u: Float[Array, "nu"] | None, k) -> AbstractDynamics:
        """The inner dynamics as they are at the state `x` of stage `k` with the control `u`, which is None at the end
        of the horizon."""

    def inner_state(self, x: Float[Array, "*batch nx"]) -> Float[Array, "*batch nx_inner"]:
        """The state of the inner dynamics."""
        return x[..., : self.inner.nx]

    def inner_control(self, u: Float[Array, "*batch nu"]) -> Float[Array, "*batch nu_inner"]:
        """The control of the inner dynamics."""
        return u[..., : self.inner.nu]

    def outer_controls(self, us: Float[Array, "*batch nu_inner"]) -> Float[Array, "*batch nu"]:
        """Controls from those of the inner dynamics, the others with their neutral values."""
        return us

    def outer_states(self, xs: Float[Array, "stages nx"], us: Float[Array, "horizon nu"]) -> Float[Array, "stages nx"]:
        """The states of a trajectory, in which what the inner dynamics do not have follows from the controls."""
        return xs


class ExtendedDynamics(WrappedDynamics):
    """Dynamics around other dynamics, whose states end with a vector."""

    @property
    @abc.abstractmethod
    def extra(self) -> int:
        """Length of the vector."""

    @property
    def nx(self) -> int:
        """Length of a state."""
        return self.inner.nx + self.extra

    @property
    def ndx(self) -> int:
        """Length of a displacement of the state."""
        return self.inner.ndx + self.extra

    def integrate(self, x, dx):
        n, m = self.inner.nx, self.inner.ndx
        return jnp.concatenate([self.inner.integrate(x[:n], dx[:m]), x[n:] + dx[m:]])

    def difference(self, x0, x1):
        n = self.inner.nx
        return jnp.concatenate([self.inner.difference(x0[:n], x1[:n]), x1[n:] - x0[n:]])

    def integrate_jacobian(self, x, dx):
        return self._with_vector(self.inner.integrate_jacobian(self.inner_state(x), dx[: self.inner.ndx]))

    def difference_jacobian(self, x0, x1):
        return self._with_vector(self.inner.difference_jacobian(self.inner_state(x0), self.inner_state(x1)))

    def displacement_rates(self, x):
        return self._with_vector(self.inner.displacement_rates(self.inner_state(x)))

    def _with_vector(self, matrix):
        """A matrix of inner states as one of states."""
        return jax.scipy.linalg.block_diag(matrix, jnp.eye(self.extra, dtype=matrix.dtype))


class PreviousControlDynamics(ExtendedDynamics):
    """The dynamics `inner` with the state `[x, u_before]`, which ends with the control of the stage before: for costs
    and bounds on how fast controls change (`ControlRateResidual`), also from one period of an MPC to the next.

    States have the length `inner.nx + inner.nu`; `join` makes them. Residuals of robots take them as they are, and
    `InnerResidual` gives any other residual the inner state, so that its target has the inner length.
    """

    inner: AbstractDynamics

    @property
    def extra(self) -> int:
        """Length of the control before, `inner.nu`."""
        return self.inner.nu

    @naming_arguments
    def join(self, x: ArrayLike, u_before: ArrayLike | None = None) -> Float[Array, "*batch nx"]:
        """The state `[*batch, nx]` from one of the inner dynamics and the control before it, zeros by default."""
        x = float_leaf(x)
        shape = (*x.shape[:-1], self.nu)
        before = jnp.zeros(shape, x.dtype) if u_before is None else jnp.broadcast_to(float_leaf(u_before), shape)
        return jnp.concatenate([x, before], axis=-1)

    def previous_control(self, x: Float[Array, "*batch nx"]) -> Float[Array, "*batch nu"]:
        """The control of the stage before the state `x`."""
        return x[..., self.inner.nx :]

    def inner_at(self, x, u, k):
        return self.inner

    def outer_states(self, xs, us):
        return xs.at[1:, self.inner.nx :].set(us)

    def neutral(self):
        return self.join(self.inner.neutral())

    def step(self, x, u, k):
        after = self.inner.step(self.inner_state(x), u, k)
        return jnp.concatenate([after, u.astype(after.dtype)])

    def linearize(self, x, u, k, after):
        A, B = self.inner.linearize(self.inner_state(x), u, k, self.inner_state(after))
        A = jnp.pad(A, (0, self.nu))
        return A, jnp.concatenate([B, jnp.eye(self.nu, dtype=B.dtype)])


class FreeTimeDynamics(WrappedDynamics):
    """The dynamics `inner` with the control `[u, s]`, whose last entry scales the length of the step: `dt_k = s_k dt`.

    The duration of a motion is then free: `DurationCost` counts it, and `control_box` bounds the step lengths. Give the
    inner dynamics a `dt` near the step that you expect, so that `s` is near 1. Start from `interpolated_guess` or
    `static_guess`, whose steps have the nominal length: with controls of zero no time passes.

    For equal steps, put `PreviousControlDynamics` around it and constrain the last component of a
    `ControlRateResidual` to zero from stage 1 on. Functions of time get the nominal time `t0 + k dt`: dynamics and
    terms must not depend on the time, unless the time is a part of their state. Residuals within an `InnerResidual`
    see the true step length as `dynamics.dt`. The period of an MPC stays `dt`: there, bound the `s` of stage 0 to 1.
    """

    inner: AbstractDynamics

    @property
    def nu(self) -> int:
        """Length of a control, `inner.nu + 1`."""
        return self.inner.nu + 1

    @naming_arguments
    def join(self, us: ArrayLike, scale: ArrayLike = 1.0) -> Float[Array, "*batch nu"]:
        """The controls `[*batch, nu]` from those of the inner dynamics and the scale `s`, `[]` or `[*batch]`."""
        us = float_leaf(us)
        last = jnp.broadcast_to(jnp.asarray(scale, us.dtype), us.shape[:-1])
        return jnp.concatenate([us, last[..., None]], axis=-1)

    @naming_arguments
    def control_box(
        self,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        *,
        shortest: ArrayLike = 0.1,
        longest: ArrayLike = 10.0,
    ) -> tuple[Float[Array, "*horizon nu"], Float[Array, "*horizon nu"]]:
        """The bounds `control_lower` and `control_upper` of a problem, from those of the inner controls (numbers,
        `[nu - 1]` or `[horizon, nu - 1]`; None for no bound) and those of the scale `s`. **Raises** `ModelError` unless
        `shortest` is positive, `ShapeError` for bounds of another length."""
        for name, value in (("shortest", shortest), ("longest", longest)):
            if not isinstance(value, Tracer):
                require_positive(value, name)
        box = []
        for bound, free, scale in ((lower, -jnp.inf, shortest), (upper, jnp.inf, longest)):
            bound = float_leaf(free if bound is None else bound)
            bound = jnp.broadcast_to(bound, (self.inner.nu,)) if bound.ndim == 0 else bound
            if bound.shape[-1] != self.inner.nu:
                raise ShapeError(
                    f"a bound of the inner controls has shape {bound.shape}; {self.inner.nu} numbers are needed"
                )
            box.append(self.join(bound, scale))
        return box[0], box[1]

    def step_lengths(self, us: Float[Array, "*batch horizon nu"]) -> Float[Array, "*batch horizon"]:
        """The lengths of the steps with the controls `us` of all stages, s. **Raises** `ShapeError` for controls
        without an axis of stages, whose lengths may differ."""
        if jnp.ndim(us) < 2:
            raise ShapeError(f"us has shape {jnp.shape(us)}, but [horizon, {self.nu}] is needed: stages have lengths")
        return jax.vmap(self.inner.step_length)(jnp.arange(us.shape[-2])) * us[..., -1]

    def times(self, us: Float[Array, "horizon nu"]) -> Float[Array, "stages"]:
        """The times of the `horizon + 1` states under the controls `us`, s."""
        lengths = self.step_lengths(us)
        return self.t0 + jnp.concatenate([jnp.zeros(1, lengths.dtype), jnp.cumsum(lengths)])

    def inner_at(self, x, u, k):
        if u is None:
            return self.inner
        scaled = eqx.tree_at(lambda d: d.dt, self.inner, (self.dt * u[-1]).astype(self.dt.dtype))
        # Stage k keeps its nominal time: the state does not have the lengths of the steps before.
        t0 = (self.t0 + self.time(k) - scaled.time(k)).astype(self.t0.dtype)
        return eqx.tree_at(lambda d: d.t0, scaled, t0)

    def outer_controls(self, us):
        return self.join(us)

    def step(self, x, u, k):
        return self.inner_at(x, u, k).step(x, self.inner_control(u), k)

    def linearize(self, x, u, k, after):
        A, B = self.inner_at(x, u, k).linearize(x, self.inner_control(u), k, after)

        def displacement(scale):
            return self.difference(after, self.step(x, u.at[-1].set(scale), k))

        return A, jnp.concatenate([B, jax.jacfwd(displacement)(u[-1])[:, None]], axis=1)


def require_same_sizes(inner: AbstractDynamics, make: Callable[[], Any], user: str) -> None:
    """Raise `ModelError` unless `make()`, which a user's function has made of `inner`, are dynamics with as many states
    and controls."""
    found = eqx.filter_eval_shape(make)
    if not isinstance(found, AbstractDynamics) or (found.nx, found.ndx, found.nu) != (inner.nx, inner.ndx, inner.nu):
        raise ModelError(
            f"the function of {user} returns {type(found).__name__}, but {type(inner).__name__} with as many states "
            "and controls as the inner dynamics is needed"
        )


def find_dynamics[D: AbstractDynamics](dynamics: AbstractDynamics, kind: type[D], user: str) -> D:
    """The outermost dynamics of a kind among `dynamics` and those inside of them. **Raises** `ModelError`."""
    found: Any = dynamics
    while found is not None and not isinstance(found, kind):
        found = None if getattr(found, "stacked", False) else getattr(found, "inner", None)
    if found is None:
        raise ModelError(f"{user} needs {kind.__name__}, but the dynamics are {type(dynamics).__name__}")
    return found


class InnerResidual(AbstractResidual):
    """A residual of the dynamics inside of `PreviousControlDynamics`, `FreeTimeDynamics`, `ParameterDynamics` or
    `FirstStateDynamics`: it gets their state and control, so its targets have their lengths, and the dynamics with
    their step or parameters. Put one around the other where dynamics are wrapped twice."""

    residual: AbstractResidual

    @property
    def of_state(self) -> bool:
        return self.residual.of_state

    def __call__(self, dynamics, x, u, k):
        outer = self._wrapper(dynamics)
        return self.residual(
            outer.inner_at(x, u, k), outer.inner_state(x), None if u is None else outer.inner_control(u), k
        )

    def linearize(self, dynamics, x, u, k):
        outer = self._wrapper(dynamics)
        inner_u = None if u is None else outer.inner_control(u)
        r, by_x, by_u = self.residual.linearize(outer.inner_at(x, u, k), outer.inner_state(x), inner_u, k)
        if outer.state_changes_inner:
            n = outer.inner.nx
            by_x = jnp.zeros((len(r), outer.inner.ndx), r.dtype) if by_x is None else by_x
            by_extra = jax.jacfwd(lambda extra: self(outer, jnp.concatenate([x[:n], extra]), u, k))(x[n:])
            by_x = jnp.concatenate([by_x, by_extra], axis=1)
        elif by_x is not None:
            by_x = jnp.pad(by_x, ((0, 0), (0, outer.ndx - by_x.shape[1])))
        if u is None or self.of_state or outer.nu == outer.inner.nu:
            return Linear(r, by_x, by_u)
        n = outer.inner.nu
        by_u = jnp.zeros((len(r), n), r.dtype) if by_u is None else by_u
        by_others = jax.jacfwd(lambda others: self(outer, x, jnp.concatenate([u[:n], others]), k))(u[n:])
        return Linear(r, by_x, jnp.concatenate([by_u, by_others], axis=1))

    def _wrapper(self, dynamics: AbstractDynamics) -> WrappedDynamics:
        return find_dynamics(dynamics, WrappedDynamics, f"InnerResidual of {type(self.residual).__name__}")


class ControlRateResidual(AbstractResidual):
    """The rate of the controls, `(u_k - u_(k-1)) / dt` `[nu]`, per second (N m/s for torques), of
    `PreviousControlDynamics`. In a cost it makes controls smooth; in a constraint it bounds how fast they change. At
    stage 0 the control before is the one in `x0`."""

    def __call__(self, dynamics, x, u, k):
        return (u - self._of(dynamics, u).previous_control(x)) / dynamics.dt.astype(x.dtype)

    def linearize(self, dynamics, x, u, k):
        outer = self._of(dynamics, u)
        by_u = jnp.eye(outer.nu, dtype=x.dtype) / dynamics.dt.astype(x.dtype)
        return Linear(self(dynamics, x, u, k), jnp.pad(-by_u, ((0, 0), (outer.inner.ndx, 0))), by_u)

    def _of(self, dynamics, u) -> PreviousControlDynamics:
        outer = find_dynamics(dynamics, PreviousControlDynamics, "a ControlRateResidual")
        if u is None:
            raise ModelError("a ControlRateResidual cannot stand at the end of the horizon, which has no control")
        if outer.nu != dynamics.nu:
            raise ModelError(
                f"the controls of {type(dynamics).__name__} are more than the {outer.nu} whose rate is known; put the "
                "ControlRateResidual into an InnerResidual"
            )
        return outer


class StepLengthResidual(AbstractResidual):
    """The length of the step `[1]`, s, of `FreeTimeDynamics`, minus `target` (0 by default)."""

    target: Float[Array, ""] = eqx.field(default=0.0, converter=leaf_of("StepLengthResidual: `target`"))

    def __call__(self, dynamics, x, u, k):
        return _step_length(dynamics, u, k, "a StepLengthResidual")[None] - self.target.astype(u.dtype)

    def linearize(self, dynamics, x, u, k):
        by_u = jnp.zeros((1, dynamics.nu), u.dtype).at[0, -1].set(dynamics.step_length(k).astype(u.dtype))
        return Linear(self(dynamics, x, u, k), None, by_u)


class DurationCost(AbstractCost):
    """`weight` times the length of the step (s) of `FreeTimeDynamics`: at all stages, `weight` times the duration."""

    weight: Float[Array, ""] = eqx.field(default=1.0, converter=leaf_of("DurationCost: `weight`"))

    def value(self, dynamics, x, u, k):
        return self.weight.astype(x.dtype) * _step_length(dynamics, u, k, "a DurationCost")

    def gauss_newton(self, dynamics, x, u, k):
        slope = (self.weight * dynamics.step_length(k)).astype(x.dtype)
        flat = Quadratic.zero(dynamics.ndx, dynamics.nu, x.dtype)
        return flat._replace(value=self.value(dynamics, x, u, k), u=flat.u.at[-1].set(slope))

    def full(self, dynamics, x, u, k):
        return self.gauss_newton(dynamics, x, u, k)


def _step_length(dynamics: AbstractDynamics, u, k, user: str):
    outer = find_dynamics(dynamics, FreeTimeDynamics, user)
    if u is None:
        raise ModelError(f"{user} cannot stand at the end of the horizon, which has no step")
    return outer.step_length(k) * u[-1]
