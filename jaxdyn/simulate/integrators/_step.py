"""Single steps by the name of an integrator, and the checks that steps and roll-outs share."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, Literal, cast

import jax.numpy as jnp
from jax import lax

from jaxdyn._compile import compiled
from jaxdyn._errors import (
    broadcast_batches,
    require_choice,
    require_last_axes,
    require_positive_integer,
    require_shape,
    require_time_step,
)
from jaxdyn._types import Velocity, Wrenches
from jaxdyn.algorithms.recursions import model_batch
from jaxdyn.model import Model
from jaxdyn.simulate._state import State, with_velocity
from jaxdyn.simulate.integrators._closed_loops import closed, require_closed
from jaxdyn.simulate.integrators._long_steps import warn_of_long_step
from jaxdyn.simulate.integrators._one_step import (
    euler_step,
    semi_implicit_euler_step,
    velocity_implicit_euler_step,
)
from jaxdyn.simulate.integrators._runge_kutta import rk4_step
from jaxdyn.simulate.integrators._variational_midpoint import variational_midpoint_step

type Integrator = Literal["euler", "semi_implicit_euler", "implicit_velocity", "midpoint", "rk4"]

INTEGRATORS: dict[str, Callable[..., State]] = {
    "euler": euler_step,
    "semi_implicit_euler": semi_implicit_euler_step,
    "implicit_velocity": velocity_implicit_euler_step,
    "midpoint": variational_midpoint_step,
    "rk4": rk4_step,
}
"""Functions `(model, state, tau, dt, f_ext) -> state`; the states must have all batch axes."""


def require_integrator(integrator: str, substeps: int = 1) -> None:
    """Raise `ModelError` for an unknown integrator or number of substeps."""
    require_choice(integrator, INTEGRATORS, "integrator")
    require_positive_integer(substeps, "substeps")


def with_time_step[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """A function of a model, a state, torques and `dt` that checks the value of `dt` where it is known, and warns of a
    long one."""

    default = inspect.signature(function).parameters["integrator"].default

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if len(args) > 3 or "dt" in kwargs:
            dt: Any = args[3] if len(args) > 3 else kwargs["dt"]
            require_time_step(dt)
            scheme: Any = {"integrator": default, "substeps": 1} | kwargs
            model: Any = args[0] if args else kwargs.get("model")
            out = function(*args, **kwargs)
            warn_of_long_step(model, dt, scheme["integrator"], scheme["substeps"])
            return out
        return function(*args, **kwargs)

    return call


def from_closed_loops[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """A function of a model and a state that refuses a state whose loops are open, where it has values."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        out = function(*args, **kwargs)
        model, state = (args[k] if len(args) > k else kwargs[name] for k, name in enumerate(("model", "state")))
        require_closed(cast("Model", model), cast("State", state))
        return out

    return call


@from_closed_loops
@with_time_step
@compiled("integrator", "substeps")
def step(
    model: Model,
    state: State,
    tau: Velocity,
    dt: float,
    *,
    integrator: Integrator = "implicit_velocity",
    substeps: int = 1,
    f_ext: Wrenches | None = None,
) -> State:
    """The state after a time `dt` (s) under constant actuator torques `tau` `[*batch, nv]`; a robot with contacts or
    servos is a `World`.

    **Arguments**

    - `state`: `q` `[*batch, nq]`, `v` `[*batch, nv]`; batch axes broadcast.
    - `integrator`: `"implicit_velocity"`, semi-implicit Euler, implicit in joint friction, too; `"euler"`, explicit;
      `"semi_implicit_euler"`; `"midpoint"`, variational; `"rk4"`, Runge-Kutta. Their orders are 1, 1, 1, 2 and 4; all
      stay on the manifold. Without friction the first is the same as `"semi_implicit_euler"`.
    - `substeps`: equal steps of the integrator in `dt`.
    - `f_ext` `[*batch, nb, 6]`: external wrenches `[force, moment]` on the bodies in N and N m, in world axes, acting
      at the origin of each body's frame; constant over the step while the origins move.

    Where the model has loops or couplings, impulses within the step close them at its end and keep `v` on them, and the
    energy does not drift while `dt |v|` is below about 0.1 rad; `"rk4"` and `"euler"` end with a projection instead:
    `q` is moved to close them, and `v` to keep them closed, both by the least change in the metric of the mass matrix.
    Begin at closed loops, as `project_configuration` and `project_velocity` have them.

    **Raises** `ModelError` for another integrator or number of substeps, for a `dt` that is not positive and finite
    (inside `jit`, where its value is not known, it is not checked), and for a state whose loops are open by more than
    1e-3 of the levers of their joints (not inside `jit`); `ShapeError` where a shape does not fit. **Warns**
    `DivergenceWarning` of a `dt` with which friction or springs of joints are unstable (`Model.summary` has the longest
    ones), where it and the model have values.
    """
    require_integrator(integrator, substeps)
    inputs = {"tau": (tau, (model.nv,)), "f_ext": (f_ext, (model.nb, 6))}
    start, (tau, f_ext) = common_form(model, state, inputs)
    return advance(model, start, tau, time_step(dt, start), f_ext, integrator, substeps)


def advance(
    model: Model,
    state: State,
    tau,
    dt,
    f_ext,
    integrator: str,
    substeps: int = 1,
) -> State:
    """`step` without checks, for a state that has all batch axes."""

    def substep(state: State, _):
        end = INTEGRATORS[integrator](model, state, tau, dt / substeps, f_ext)
        # The other steps close the loops themselves: a projection would spoil their momenta.
        return (closed(model, end) if integrator in ("euler", "rk4") else end), None

    return substep(state, None)[0] if substeps == 1 else lax.scan(substep, state, length=substeps)[0]


def common_form(model: Model, state: State, inputs: dict[str, tuple[Any, tuple[int, ...]]]) -> tuple[State, list[Any]]:
    """The state with all batch axes, and the inputs, as arrays in the precision of the dynamics.

    `inputs` has for each name an array, or None, and the shape of its axes that are not batch axes. **Raises**
    `ShapeError` if an array has other axes, or if the batch axes do not broadcast."""
    state = with_velocity(model, state)
    arguments = {"state.q": (state.q, (model.nq,)), "state.v": (state.v, (model.nv,)), **inputs}
    sizes = f"nq = {model.nq}, nv = {model.nv}, nb = {model.nb} for this model"
    arrays, batches = {}, {"model": model_batch(model)}
    for name, (value, axes) in arguments.items():
        if value is not None:
            arrays[name] = x = jnp.asarray(value)
            require_last_axes(x, axes, name, sizes)
            batches[name] = x.shape[: x.ndim - len(axes)]
    batch, dtype = broadcast_batches(batches), jnp.result_type(model.dtype, *arrays.values())
    arrays = {name: x.astype(dtype) for name, x in arrays.items()}
    start = State(*(jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in (arrays["state.q"], arrays["state.v"])))
    return start, [arrays.get(name) for name in inputs]


def time_step(dt, state: State):
    """`dt` as an array in the precision of `state`. **Raises** `ShapeError` unless it is one number, and `ModelError`
    for one that is known and not positive."""
    require_time_step(dt)
    require_shape(jnp.asarray(dt), (), "dt", "all elements of a batch share one step (s)")
    return jnp.asarray(dt, state.v.dtype)
