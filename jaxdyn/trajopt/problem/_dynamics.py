"""What a control does to a state in one step: a robot's model with an integrator, or functions of the user."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.algorithms import aba, aba_derivatives
from jaxdyn.model import Model
from jaxdyn.simulate import AbstractMemorylessActuator, State
from jaxdyn.simulate import step as model_step

type Scheme = Literal["euler", "midpoint", "rk4"]


class AbstractDynamics(eqx.Module):
    """The step `x_(k+1) = f(x_k, u_k, k)` of states on a manifold, and that manifold.

    States are arrays `[nx]`; their displacements are arrays `[ndx]` in the tangent space. Methods are for one state;
    map over more with `jax.vmap`.
    """

    dt: eqx.AbstractVar[Float[Array, ""]]
    """The length of a step, s."""
    t0: eqx.AbstractVar[Float[Array, ""]]
    """The time of stage 0, s."""

    @property
    @abc.abstractmethod
    def nx(self) -> int:
        """Length of a state."""

    @property
    @abc.abstractmethod
    def ndx(self) -> int:
        """Length of a displacement of the state."""

    @property
    @abc.abstractmethod
    def nu(self) -> int:
        """Length of a control."""

    @abc.abstractmethod
    def step(self, x: Float[Array, "nx"], u: Float[Array, "nu"], k) -> Float[Array, "nx"]:
        """The state at stage `k + 1`."""

    @abc.abstractmethod
    def neutral(self) -> Float[Array, "nx"]:
        """The state of zeros (and identity rotations), which guesses and targets that are not given mean."""

    def integrate(self, x: Float[Array, "nx"], dx: Float[Array, "ndx"]) -> Float[Array, "nx"]:
        """`x` displaced by `dx`."""
        return x + dx

    def difference(self, x0: Float[Array, "nx"], x1: Float[Array, "nx"]) -> Float[Array, "ndx"]:
        """The `dx` for which `integrate(x0, dx)` is `x1`."""
        return x1 - x0

    def rate(self, x: Float[Array, "nx"], u: Float[Array, "nu"], t) -> Float[Array, "ndx"]:
        """The rate of the state in its tangent space at the time `t` (s), for methods that discretize by themselves.

        **Raises** `ModelError` where only a step is known.
        """
        raise ModelError(f"{type(self).__name__} knows a step, but no rate of the state; give ContinuousDynamics")

    @property
    def euclidean(self) -> bool:
        """Whether states are plain vectors, displaced by addition."""
        return self.nx == self.ndx

    def time(self, k) -> Float[Array, ""]:
        """The time of stage `k`, s."""
        return self.t0 + self.dt * k

    def linearize(self, x, u, k, after) -> tuple[Float[Array, "ndx ndx"], Float[Array, "ndx nu"]]:
        """The derivatives of the displacement of the next state, `after`, by that of `x` and by `u`."""

        def displaced(dx, du):
            return self.difference(after, self.step(self.integrate(x, dx), u + du, k))

        return jax.jacfwd(displaced, (0, 1))(jnp.zeros(self.ndx, x.dtype), jnp.zeros_like(u))


class ModelDynamics(AbstractDynamics):
    """A robot under torques that are held during each step: `x = [q, v]`, displacements `[dq, dv]` of length `2 nv`.

    Derivatives of the Euler steps are analytic, through `aba_derivatives`.
    """

    model: Model
    dt: Float[Array, ""]
    t0: Float[Array, ""]
    actuation: Float[Array, "nv nu"] | AbstractMemorylessActuator | None
    integrator: str = eqx.field(static=True)
    substeps: int = eqx.field(static=True)
    controls: int = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        dt: ArrayLike,
        *,
        integrator: Literal["euler", "semi_implicit_euler", "implicit_velocity", "midpoint", "rk4"] = (
            "semi_implicit_euler"
        ),
        actuation: Float[Array | np.ndarray, "nv nu"] | AbstractMemorylessActuator | None = None,
        controls: int | None = None,
        substeps: int = 1,
        t0: ArrayLike = 0.0,
    ):
        """
        - `dt`: the step, s. `integrator` and `substeps` as in `jaxdyn.step`.
        - `actuation`: the matrix `B` of `tau = B u` (`[nv, nu]`; a `Transmission`'s for named joints), or an actuator
          without memory, of `controls` commands; None where `u` is the torques themselves.

        **Raises** `ModelError`, `ShapeError`.
        """
        if not isinstance(model, Model):
            raise ModelError(f"the first argument must be a jaxdyn.Model, not {type(model).__name__}")
        self.model, self.dt, self.t0 = model, _number(dt, "dt", model.dtype), _number(t0, "t0", model.dtype)
        self.integrator, self.substeps = integrator, substeps
        self.actuation = jnp.asarray(actuation, model.dtype) if isinstance(actuation, np.ndarray) else actuation
        if actuation is None:
            self.controls = model.nv
        elif isinstance(actuation, AbstractMemorylessActuator):
            if controls is None:
                raise ModelError("controls, the number of commands of the actuation, is needed beside an actuator")
            self.controls = controls
        else:
            self.actuation = jnp.asarray(actuation, model.dtype)
            if self.actuation.ndim != 2 or self.actuation.shape[0] != model.nv:
                raise ShapeError(
                    f"the actuation has shape {self.actuation.shape}, but [{model.nv}, nu] is needed: a row for each "
                    f"degree of freedom of {', '.join(model.joint_names)}"
                )
            self.controls = self.actuation.shape[1]
        if controls is not None and controls != self.controls:
            raise ModelError(f"controls is {controls}, but the actuation has {self.controls}")
        x, u = (jax.ShapeDtypeStruct((n,), model.dtype) for n in (self.nx, self.nu))
        # Errors of the integrator's name, of substeps and of an actuator's shapes show here, not inside a solver.
        eqx.filter_eval_shape(lambda d, x, u: d.step(x, u, 0), self, x, u)

    @property
    def nx(self) -> int:
        return self.model.nq + self.model.nv

    @property
    def ndx(self) -> int:
        return 2 * self.model.nv

    @property
    def nu(self) -> int:
        return self.controls

    def split(self, x) -> State:
        """`q` and `v` of a state `[..., nx]`."""
        return State(x[..., : self.model.nq], x[..., self.model.nq :])

    def torque(self, x: Float[Array, "nx"], u: Float[Array, "nu"]) -> Float[Array, "nv"]:
        """The joints' torques under the control `u`."""
        if self.actuation is None:
            return u
        if isinstance(self.actuation, AbstractMemorylessActuator):
            return self.actuation.apply(u, self.split(x))
        return (self.actuation * u).sum(axis=-1)

    def step(self, x, u, k):
        after = model_step(
            self.model,
            self.split(x),
            self.torque(x, u),
            self.dt,  # type: ignore[arg-type]
            integrator=self.integrator,  # type: ignore[arg-type]
            substeps=self.substeps,
        )
        return jnp.concatenate([after.q, after.v])

    def neutral(self):
        return jnp.concatenate([self.model.neutral(), jnp.zeros(self.model.nv, self.model.dtype)])

    def integrate(self, x, dx):
        if self.euclidean:
            return x + dx
        nq, nv = self.model.nq, self.model.nv
        return jnp.concatenate([self.model.integrate(x[:nq], dx[:nv]), x[nq:] + dx[nv:]])

    def difference(self, x0, x1):
        if self.euclidean:
            return x1 - x0
        nq = self.model.nq
        return jnp.concatenate([self.model.difference(x0[:nq], x1[:nq]), x1[nq:] - x0[nq:]])

    def rate(self, x, u, t):
        del t
        state = self.split(x)
        return jnp.concatenate([state.v, aba(self.model, state.q, state.v, self.torque(x, u))])

    def linearize(self, x, u, k, after):
        if self.integrator not in ("euler", "semi_implicit_euler") or self.substeps != 1:
            return super().linearize(x, u, k, after)
        nv, dt, model = self.model.nv, self.dt, self.model
        state, reached = self.split(x), self.split(after)
        by_q, by_v, Minv = aba_derivatives(model, state.q, state.v, self.torque(x, u))
        if self.actuation is None:
            by_u = Minv
        elif isinstance(self.actuation, AbstractMemorylessActuator):
            at_zero = jnp.zeros(self.ndx, x.dtype), jnp.zeros_like(u)
            by_x, by_u = jax.jacfwd(lambda dx, du: self.torque(self.integrate(x, dx), u + du), (0, 1))(*at_zero)
            by_q, by_v, by_u = by_q + Minv @ by_x[:, :nv], by_v + Minv @ by_x[:, nv:], Minv @ by_u
        else:
            by_u = Minv @ self.actuation
        # v1 = v + dt a
        eye = jnp.eye(nv, dtype=x.dtype)
        dv, dv_u = jnp.concatenate([dt * by_q, eye + dt * by_v], axis=1), dt * by_u
        # q1 = q (+) w, where w is dt v or dt v1
        if self.integrator == "euler":
            w = dt * state.v
            dw, dw_u = jnp.concatenate([jnp.zeros_like(eye), dt * eye], axis=1), jnp.zeros_like(by_u)
        else:
            w, dw, dw_u = dt * reached.v, dt * dv, dt * dv_u
        if self.euclidean:
            dq, dq_u = dw.at[:, :nv].add(eye), dw_u
        else:

            def moved(dq, dw):
                return model.difference(reached.q, model.integrate(model.integrate(state.q, dq), w + dw))

            zero = jnp.zeros(nv, x.dtype)
            by_start, by_move = jax.jacfwd(moved, (0, 1))(zero, zero)
            dq, dq_u = (by_move @ dw).at[:, :nv].add(by_start), by_move @ dw_u
        return jnp.concatenate([dq, dv]), jnp.concatenate([dq_u, dv_u])


class _FunctionDynamics(AbstractDynamics):
    """A function `f(x, u, t, params)` of the user on plain vectors."""

    params: Any
    arrays: Any
    rest: Any = eqx.field(static=True)
    sizes: tuple[int, int] = eqx.field(static=True)
    dt: Float[Array, ""]
    t0: Float[Array, ""]

    def _set(self, function, nx: int, nu: int, params, dt, t0) -> None:
        for n, name in ((nx, "nx"), (nu, "nu")):
            if isinstance(n, bool) or not isinstance(n, int) or n < 1:
                raise ModelError(f"{name} is {n!r}; a positive int is needed")
        self.params, self.sizes = params, (nx, nu)
        # A function may be a module with arrays of its own.
        self.arrays, self.rest = eqx.partition(function, eqx.is_array)
        self.dt, self.t0 = _number(dt, "dt"), _number(t0, "t0")
        x, u = jax.ShapeDtypeStruct((nx,), self.dt.dtype), jax.ShapeDtypeStruct((nu,), self.dt.dtype)
        out = eqx.filter_eval_shape(lambda d, x, u: d.call(x, u, d.t0), self, x, u)
        if getattr(out, "shape", None) != (nx,):
            shape = getattr(out, "shape", type(out).__name__)
            raise ShapeError(f"the dynamics return {shape} for a state [{nx}] and a control [{nu}]; [{nx}] is needed")

    def call(self, x, u, t):
        return eqx.combine(self.arrays, self.rest)(x, u, t, self.params)

    @property
    def nx(self) -> int:
        return self.sizes[0]

    @property
    def ndx(self) -> int:
        return self.sizes[0]

    @property
    def nu(self) -> int:
        return self.sizes[1]

    def neutral(self):
        return jnp.zeros(self.nx, self.dt.dtype)


class DiscreteDynamics(_FunctionDynamics):
    """`x_(k+1) = f(x_k, u_k, t_k, params)` for any function on vectors; `params` is any pytree of arrays."""

    def __init__(
        self,
        function: Callable[[Any, Any, Any, Any], Any],
        nx: int,
        nu: int,
        params: Any = None,
        *,
        dt: ArrayLike = 1.0,
        t0: ArrayLike = 0.0,
    ):
        """`t_k = t0 + k dt`. **Raises** `ModelError`; `ShapeError` unless the function returns `[nx]`."""
        self._set(function, nx, nu, params, dt, t0)

    def step(self, x, u, k):
        return self.call(x, u, self.time(k))


class ContinuousDynamics(_FunctionDynamics):
    """`dx/dt = f(x, u, t, params)` on vectors, with `u` held during each step; `params` is any pytree of arrays."""

    scheme: str = eqx.field(static=True)
    substeps: int = eqx.field(static=True)

    def __init__(
        self,
        function: Callable[[Any, Any, Any, Any], Any],
        nx: int,
        nu: int,
        params: Any = None,
        *,
        dt: ArrayLike,
        integrator: Scheme = "rk4",
        substeps: int = 1,
        t0: ArrayLike = 0.0,
    ):
        """`integrator`: `"euler"`, the explicit `"midpoint"` rule, or the classical Runge-Kutta method `"rk4"`, in
        `substeps` equal parts of the step. **Raises** `ModelError`; `ShapeError` unless the function returns `[nx]`."""
        if integrator not in _SCHEMES:
            raise ModelError(f"no integrator named {integrator!r}; known: {', '.join(_SCHEMES)}")
        if isinstance(substeps, bool) or not isinstance(substeps, int) or substeps < 1:
            raise ModelError(f"substeps is {substeps!r}; a positive int is needed")
        self.scheme, self.substeps = integrator, substeps
        self._set(function, nx, nu, params, dt, t0)

    def step(self, x, u, k):
        one, h, t = _SCHEMES[self.scheme], self.dt / self.substeps, self.time(k)

        def field(x, t):
            return self.call(x, u, t)

        if self.substeps == 1:
            return one(field, x, t, h)
        return jax.lax.scan(lambda x, i: (one(field, x, t + i * h, h), None), x, jnp.arange(self.substeps))[0]

    def rate(self, x, u, t):
        return self.call(x, u, t)


def _euler(f, x, t, h):
    return x + h * f(x, t)


def _midpoint(f, x, t, h):
    return x + h * f(x + 0.5 * h * f(x, t), t + 0.5 * h)


def _rk4(f, x, t, h):
    k1 = f(x, t)
    k2 = f(x + 0.5 * h * k1, t + 0.5 * h)
    k3 = f(x + 0.5 * h * k2, t + 0.5 * h)
    k4 = f(x + h * k3, t + h)
    return x + (h / 6) * (k1 + 2 * k2 + 2 * k3 + k4)


_SCHEMES = {"euler": _euler, "midpoint": _midpoint, "rk4": _rk4}


def _number(x, name: str, dtype=None) -> Array:
    x = jnp.asarray(x)
    if x.shape != ():
        raise ShapeError(f"{name} has shape {x.shape}; one number (s) is needed")
    if dtype is None:
        dtype = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(float)
    return x.astype(dtype)
