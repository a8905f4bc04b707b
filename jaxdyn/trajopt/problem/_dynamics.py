"""Discrete-time dynamics: a robot's model with an integrator, or functions of the user."""

import abc
from collections.abc import Callable, Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import (
    ModelError,
    ShapeError,
    naming_arguments,
    require_choice,
    require_positive_integer,
    require_shape,
    require_time_step,
)
from jaxdyn._types import Array, ArrayLike, Float, float_leaf
from jaxdyn.model import Model
from jaxdyn.simulate import State, coordinate_rate, step_derivatives
from jaxdyn.simulate import step as model_step
from jaxdyn.simulate.integrators import (
    RUNGE_KUTTA_STEPS,
    Integrator,
    require_closed,
    warn_of_long_step,
)


class AbstractDynamics(eqx.Module):
    """The step `x_(k+1) = f(x_k, u_k, k)` of states `[nx]` on a manifold, and that manifold. Displacements are arrays
    `[ndx]` in the tangent space. Methods take one state; map over more with `jax.vmap`."""

    nx: eqx.AbstractVar[int]
    """Length of a state."""
    ndx: eqx.AbstractVar[int]
    """Length of a displacement of the state."""
    nu: eqx.AbstractVar[int]
    """Length of a control."""
    dt: eqx.AbstractVar[Float[Array, ""]]
    """Length of a step, s."""
    t0: eqx.AbstractVar[Float[Array, ""]]
    """Time of stage 0, s."""

    @abc.abstractmethod
    def step(self, x: Float[Array, "nx"], u: Float[Array, "nu"], k) -> Float[Array, "nx"]:
        """The state at stage `k + 1`."""

    @abc.abstractmethod
    def neutral(self) -> Float[Array, "nx"]:
        """The state of zeros (and identity rotations), the default of guesses and targets."""

    def integrate(self, x: Float[Array, "nx"], dx: Float[Array, "ndx"]) -> Float[Array, "nx"]:
        """`x` displaced by `dx`."""
        return x + dx

    def difference(self, x0: Float[Array, "nx"], x1: Float[Array, "nx"]) -> Float[Array, "ndx"]:
        """The `dx` for which `integrate(x0, dx)` is `x1`."""
        return x1 - x0

    def integrate_jacobian(self, x: Float[Array, "nx"], dx: Float[Array, "ndx"]) -> Float[Array, "ndx ndx"]:
        """The derivative of the displacement of `integrate(x, dx)` by the displacement of `x`."""
        if self.euclidean:
            return jnp.eye(self.ndx, dtype=x.dtype)
        end = self.integrate(x, dx)
        return jax.jacfwd(lambda d: self.difference(end, self.integrate(self.integrate(x, d), dx)))(jnp.zeros_like(dx))

    def difference_jacobian(self, x0: Float[Array, "nx"], x1: Float[Array, "nx"]) -> Float[Array, "ndx ndx"]:
        """The derivative of `difference(x0, x1)` by the displacement of `x1`."""
        if self.euclidean:
            return jnp.eye(self.ndx, dtype=x1.dtype)
        return jax.jacfwd(lambda d: self.difference(x0, self.integrate(x1, d)))(jnp.zeros(self.ndx, x1.dtype))

    def displacement_rates(self, x: Float[Array, "nx"]) -> Float[Array, "nx ndx"]:
        """The derivative of `integrate(x, dx)` by `dx` at zero."""
        if self.euclidean:
            return jnp.eye(self.ndx, dtype=x.dtype)
        return jax.jacfwd(lambda d: self.integrate(x, d))(jnp.zeros(self.ndx, x.dtype))

    def require_horizon(self, horizon: int) -> None:
        """Raise `ShapeError` if arrays with a row per stage do not have `horizon` rows."""

    def require_start(self, x0) -> None:
        """Raise `ModelError` if a motion cannot begin at a state with values."""

    def free_at_start(self) -> np.ndarray:
        """The components `[ndx]` of the initial state that are unknowns unless a problem says otherwise."""
        return np.zeros(self.ndx, bool)

    def start_directions(self, free: np.ndarray) -> np.ndarray:
        """The displacements of the initial state by one unit of each unknown, `[ndx, unknowns]`, where the components
        `free` `[ndx]` are unknown. **Raises** `ModelError` for components that cannot be free alone."""
        return np.eye(self.ndx)[:, free]

    @property
    def robot(self) -> Model | None:
        """The robot's model, if the state is `[q, v]` of a robot."""
        return None

    @property
    def euclidean(self) -> bool:
        """Whether states are plain vectors, displaced by addition."""
        return self.nx == self.ndx

    def time(self, k) -> Float[Array, ""]:
        """The time of stage `k`, s."""
        return self.t0 + self.dt * k

    def step_length(self, k) -> Float[Array, ""]:
        """The length of stage `k`, s: `dt`, unless stages differ."""
        del k
        return self.dt

    def solution_at(self, x, u, k, *, derivatives: bool) -> Any:
        """The solution of what the step and residuals at a stage share, also with its derivatives; None without such
        equations."""
        del x, u, k, derivatives
        return None

    def with_solution(self, solution: Any) -> "AbstractDynamics":
        """The dynamics at the stage of a solution, which they do not compute again."""
        del solution
        return self

    def linearize(self, x, u, k, after) -> tuple[Float[Array, "ndx ndx"], Float[Array, "ndx nu"]]:
        """The derivatives of the displacement of the next state, which is `after`, by that of `x` and by `u`."""

        def displacement(dx, du):
            return self.difference(after, self.step(self.integrate(x, dx), u + du, k))

        return jax.jacfwd(displacement, (0, 1))(jnp.zeros(self.ndx, x.dtype), jnp.zeros_like(u))


class AbstractRobotDynamics(AbstractDynamics):
    """Dynamics of a robot: states begin with `[q, v]`, and what follows is a vector."""

    model: eqx.AbstractVar[Model]

    robot = property(lambda self: self.model)

    def split(self, x) -> State:
        """`q` and `v` of a state `[..., nx]`, and what its actuators have."""
        nq, nv = self.model.nq, self.model.nv
        rest = {} if self.nx == nq + nv else {"activation": x[..., nq + nv :]}
        return State(x[..., :nq], x[..., nq : nq + nv], **rest)

    def neutral(self):
        return jnp.concatenate([self.model.neutral(), jnp.zeros(self.nx - self.model.nq, self.model.dtype)])

    def integrate(self, x, dx):
        if self.euclidean:
            return x + dx
        nq, nv = self.model.nq, self.model.nv
        return jnp.concatenate([self.model.integrate(x[:nq], dx[:nv]), x[nq:] + dx[nv:]])

    def difference(self, x0, x1):
        nq = self.model.nq
        return jnp.concatenate([self.model.difference(x0[:nq], x1[:nq]), x1[nq:] - x0[nq:]])

    def integrate_jacobian(self, x, dx):
        if self.euclidean:
            return super().integrate_jacobian(x, dx)
        nq, nv = self.model.nq, self.model.nv
        return self._with_vectors(self.model.integrate_jacobians(x[:nq], dx[:nv])[0])

    def difference_jacobian(self, x0, x1):
        if self.euclidean:
            return super().difference_jacobian(x0, x1)
        nq = self.model.nq
        return self._with_vectors(self.model.difference_jacobians(x0[:nq], x1[:nq])[1])

    def displacement_rates(self, x):
        if self.euclidean:
            return super().displacement_rates(x)
        # Row j of the rates of coordinates belongs to the unit velocity e_j.
        eye = jnp.eye(self.model.nv, dtype=x.dtype)
        return self._with_vectors(coordinate_rate(self.model, x[: self.model.nq], eye).T)

    def require_start(self, x0):
        require_closed(self.model, self.split(x0))

    def start_directions(self, free):
        # A part of a rotation's components leads out of the rotations that the other components allow.
        for joint, _, v in self.model.topology.blocks:
            turns = free[v : v + joint.nv]
            if joint.quaternion is not None and turns.any() and not turns.all():
                raise ModelError(
                    f"of the {joint.nv} components of the initial state from {v} on, which are those of one joint with "
                    "a quaternion, some are free and some are not: free all of them, and hold those that are known by "
                    "initial_constraints"
                )
        return super().start_directions(free)

    def _with_vectors(self, matrix):
        """A matrix of configurations as one of states, whose other parts are vectors."""
        return jax.scipy.linalg.block_diag(matrix, jnp.eye(self.ndx - self.model.nv, dtype=matrix.dtype))


class TorqueDynamics(AbstractRobotDynamics):
    """Dynamics of a robot under torques that are held during each step: `x = [q, v]`, displacements `[dq, dv]` of
    length `2 nv`."""

    actuation: eqx.AbstractVar[Float[Array, "nv nu"] | None]
    f_ext: eqx.AbstractVar[Float[Array, "*horizon nb 6"] | None]

    def _set_robot(self, model: Model, t0: ArrayLike, actuation, f_ext) -> None:
        """Set the fields that a subclass has for the robot, its actuation and the wrenches on it. **Raises**
        `ModelError`, `ShapeError`, `UnknownNameError`."""
        if not isinstance(model, Model):
            raise ModelError(f"the first argument must be a jaxdyn.Model, not {type(model).__name__}")
        values: dict[str, Any] = {"model": model, "t0": seconds(t0, "t0", model.dtype)}
        values |= {"nx": model.nq + model.nv, "ndx": 2 * model.nv}
        values["f_ext"] = f_ext = None if f_ext is None else jnp.asarray(f_ext, model.dtype)
        if f_ext is not None and (f_ext.ndim not in (2, 3) or f_ext.shape[-2:] != (model.nb, 6)):
            raise ShapeError(
                f"f_ext has shape {f_ext.shape}, but [{model.nb}, 6] or [horizon, {model.nb}, 6] is needed: a "
                f"wrench for each of the bodies {', '.join(model.body_names)}"
            )
        if actuation is None:
            values |= {"actuation": None, "nu": model.nv}
        else:
            names = [x for x in actuation if isinstance(x, str)] if isinstance(actuation, list | tuple) else []
            named = isinstance(actuation, list | tuple) and len(names) == len(actuation)
            matrix = jnp.asarray(_unit_torques(model, names) if named else actuation, model.dtype)
            if matrix.ndim != 2 or matrix.shape[0] != model.nv:
                raise ShapeError(
                    f"the actuation has shape {matrix.shape}, but [{model.nv}, nu] is needed: a row for each "
                    f"degree of freedom of {', '.join(model.joint_names)}"
                )
            values |= {"actuation": matrix, "nu": matrix.shape[1]}
        for name, value in values.items():
            setattr(self, name, value)

    def torque(self, x: Float[Array, "nx"], u: Float[Array, "nu"]) -> Float[Array, "nv"]:
        """The joints' torques under the control `u`."""
        del x
        return u if self.actuation is None else (self.actuation * u).sum(axis=-1)

    def require_horizon(self, horizon):
        if self.f_ext is not None and self.f_ext.ndim == 3 and len(self.f_ext) != horizon:
            raise ShapeError(f"f_ext has {len(self.f_ext)} rows, but the horizon has {horizon} stages")

    def _wrenches(self, k):
        """The external wrenches of stage `k`, or None."""
        return self.f_ext[k] if self.f_ext is not None and self.f_ext.ndim == 3 else self.f_ext

    def _with_actuation(self, by_x, by_tau):
        """The derivatives by the state and the control from those by the state and the torques."""
        return by_x, by_tau if self.actuation is None else by_tau @ self.actuation


class ModelDynamics(TorqueDynamics):
    """A robot under torques that are held during each step: `x = [q, v]`, displacements `[dq, dv]` of length `2 nv`.

    Continuous joints differ by at most half a turn, so that whole turns of them neither cost nor violate anything.
    Derivatives of steps are those of `jaxdyn.simulate.step_derivatives`. A robot with contacts or actuators has
    `WorldDynamics`.
    """

    model: Model
    dt: Float[Array, ""]
    t0: Float[Array, ""]
    actuation: Float[Array, "nv nu"] | None
    f_ext: Float[Array, "*horizon nb 6"] | None
    integrator: Integrator = eqx.field(static=True)
    substeps: int = eqx.field(static=True)
    nx: int = eqx.field(static=True)
    ndx: int = eqx.field(static=True)
    nu: int = eqx.field(static=True)

    @naming_arguments
    def __init__(
        self,
        model: Model,
        dt: ArrayLike,
        *,
        integrator: Integrator = "semi_implicit_euler",
        actuation: Float[Array | np.ndarray, "nv nu"] | Sequence[str] | None = None,
        substeps: int = 1,
        t0: ArrayLike = 0.0,
        f_ext: Float[Array | np.ndarray, "*horizon nb 6"] | None = None,
    ):
        """
        - `dt`: the step, s. `integrator` and `substeps` as in `jaxdyn.step`. The default is explicit in
          friction: of 16 motions of the sample arm with Coulomb friction in its joints, `ddp` finds 9 with it, and 1
          with `"implicit_velocity"`.
        - `actuation`: the matrix `B` of `tau = B u`, `[nv, nu]`, or the names of the joints whose torques are `u`; None
          where `u` is the torques of all joints.
        - `f_ext`: external wrenches `[force(3), moment(3)]` on the bodies, N and N m, world axes, acting at the body
          origins: `[nb, 6]`, or `[horizon, nb, 6]` with a row for each stage.

        **Raises** `ModelError`, `ShapeError`. **Warns** `DivergenceWarning` of a `dt` with which friction or springs of
        joints are unstable, where it and the model have values: shorten it, add `substeps`, widen
        `Model.friction_velocity`, or choose `"implicit_velocity"`.
        """
        self._set_robot(model, t0, actuation, f_ext)
        self.dt, self.integrator, self.substeps = seconds(dt, "dt", model.dtype), integrator, substeps
        x, u = (jax.ShapeDtypeStruct((n,), model.dtype) for n in (self.nx, self.nu))
        # Raises errors of the integrator's name and of substeps here, not inside a solver.
        eqx.filter_eval_shape(lambda d, x, u: d.step(x, u, 0), self, x, u)
        warn_of_long_step(model, self.dt, integrator, substeps)

    def _step_options(self, k, after=None) -> dict[str, Any]:
        options = {"integrator": self.integrator, "substeps": self.substeps, "f_ext": self._wrenches(k)}
        return options | ({} if after is None else {"after": self.split(after)})

    def step(self, x, u, k):
        after = model_step(*self._stage(x, u), **self._step_options(k))
        return jnp.concatenate([after.q, after.v])

    def linearize(self, x, u, k, after):
        return self._with_actuation(*step_derivatives(*self._stage(x, u), **self._step_options(k, after)))

    def _stage(self, x, u) -> tuple[Model, State, Any, Any]:
        return self.model, self.split(x), self.torque(x, u), self.dt


def _unit_torques(model: Model, joints: Sequence[str]) -> np.ndarray:
    """Return the matrix `[nv, nu]` of the torques of joints, all degrees of freedom of each. **Raises**
    `UnknownNameError`; `ModelError` for a joint that mimics another."""
    dofs = [i for name in joints for i in range(model.nv)[model.v_index(name)]]
    return np.eye(model.nv)[:, dofs]


class _FunctionDynamics(AbstractDynamics):
    """Dynamics of plain vectors by a user's function `f(x, u, t, params)`."""

    params: Any
    arrays: Any
    static: Any = eqx.field(static=True)
    nx: int = eqx.field(static=True)
    ndx: int = eqx.field(static=True)
    nu: int = eqx.field(static=True)
    dt: Float[Array, ""]
    t0: Float[Array, ""]

    @naming_arguments
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
        require_positive_integer(nx, "nx")
        require_positive_integer(nu, "nu")
        self.params, self.nx, self.ndx, self.nu = params, nx, nx, nu
        # The function may be a module that holds arrays.
        self.arrays, self.static = eqx.partition(function, eqx.is_array)
        self.dt, self.t0 = seconds(dt, "dt"), seconds(t0, "t0")
        x, u = (jax.ShapeDtypeStruct((n,), self.dt.dtype) for n in (nx, nu))
        value = eqx.filter_eval_shape(lambda d, x, u: d.call(x, u, d.t0), self, x, u)
        if getattr(value, "shape", None) != (nx,):
            shape = getattr(value, "shape", type(value).__name__)
            raise ShapeError(f"the dynamics return {shape} for a state [{nx}] and a control [{nu}]; [{nx}] is needed")

    def call(self, x, u, t):
        return eqx.combine(self.arrays, self.static)(x, u, t, self.params)

    def neutral(self):
        return jnp.zeros(self.nx, self.dt.dtype)


class DiscreteDynamics(_FunctionDynamics):
    """`x_(k+1) = f(x_k, u_k, t_k, params)` for any function on vectors; `params` is any pytree of arrays."""

    def step(self, x, u, k):
        return self.call(x, u, self.time(k))


class ContinuousDynamics(_FunctionDynamics):
    """`dx/dt = f(x, u, t, params)` on vectors, with `u` held during each step; `params` is any pytree of arrays."""

    integrator: str = eqx.field(static=True)
    substeps: int = eqx.field(static=True)

    @naming_arguments
    def __init__(
        self,
        function: Callable[[Any, Any, Any, Any], Any],
        nx: int,
        nu: int,
        params: Any = None,
        *,
        dt: ArrayLike,
        integrator: Literal["euler", "rk2", "rk4"] = "rk4",
        substeps: int = 1,
        t0: ArrayLike = 0.0,
    ):
        """`integrator`: `"euler"`, or a Runge-Kutta method: `"rk2"` (the explicit midpoint rule) or the classical
        `"rk4"`, in `substeps` equal parts of the step. **Raises** `ModelError`; `ShapeError` unless the function
        returns `[nx]`."""
        require_choice(integrator, RUNGE_KUTTA_STEPS, "integrator")
        require_positive_integer(substeps, "substeps")
        self.integrator, self.substeps = integrator, substeps
        super().__init__(function, nx, nu, params, dt=dt, t0=t0)

    def step(self, x, u, k):
        advance, h, t = RUNGE_KUTTA_STEPS[self.integrator], self.dt / self.substeps, self.time(k)

        def field(x, t):
            return self.call(x, u, t)

        if self.substeps == 1:
            return advance(field, x, t, h)
        return jax.lax.scan(lambda x, i: (advance(field, x, t + i * h, h), None), x, jnp.arange(self.substeps))[0]


def seconds(x, name: str, dtype=None) -> Array:
    if name == "dt":
        require_time_step(x)
    x = float_leaf(x, name)
    require_shape(x, (), name, "one number (s)")
    return x if dtype is None else x.astype(dtype)
