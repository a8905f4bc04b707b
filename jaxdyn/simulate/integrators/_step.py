"""The integrators by name, and single steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp
from jax import lax

from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError, ShapeError, require_last_axes
from jaxdyn._types import Velocity
from jaxdyn.algorithms.recursions._algorithm import model_batch
from jaxdyn.model import Model
from jaxdyn.simulate._state import State
from jaxdyn.simulate.integrators._explicit_euler import euler_step
from jaxdyn.simulate.integrators._implicit_velocity import implicit_velocity_step
from jaxdyn.simulate.integrators._runge_kutta import rk4_step
from jaxdyn.simulate.integrators._semi_implicit_euler import semi_implicit_euler_step
from jaxdyn.simulate.integrators._variational_midpoint import midpoint_step

type Integrator = Literal["euler", "semi_implicit_euler", "implicit_velocity", "midpoint", "rk4"]

STEPS: dict[str, Callable[..., State]] = {
    "euler": euler_step,
    "semi_implicit_euler": semi_implicit_euler_step,
    "implicit_velocity": implicit_velocity_step,
    "midpoint": midpoint_step,
    "rk4": rk4_step,
}


@compiled("integrator", "substeps")
def step(
    model: Model,
    state: State,
    tau: Velocity,
    dt: float,
    *,
    integrator: Integrator = "semi_implicit_euler",
    substeps: int = 1,
    actuator_damping: Velocity | None = None,
) -> State:
    """The state after a time `dt` (s) under constant actuator torques `tau` `[*batch, nv]`.

    **Arguments**

    - `state`: `q` `[*batch, nq]`, `v` `[*batch, nv]`; batch axes broadcast.
    - `integrator`: `"euler"`, explicit; `"semi_implicit_euler"`; `"implicit_velocity"`, Euler, implicit in damping;
      `"midpoint"`, variational; `"rk4"`, Runge-Kutta. Of orders 1, 1, 1, 2 and 4; all stay on the manifold.
    - `substeps`: equal steps of the integrator in `dt`.
    - `actuator_damping` `[*batch, nv]`, N m s/rad or N s/m: by how much the actuators' torques fall with the velocity;
      `tau` is what they are at `state`, and `"implicit_velocity"`, which alone takes it, corrects them to the end of
      the step.

    **Raises** `ModelError` for another integrator or number of substeps, `ShapeError` where a shape does not fit.
    """
    checked_scheme(integrator, substeps, actuator_damping is not None)
    h = checked_dt(dt)
    q, v, tau = (jnp.asarray(x) for x in (state.q, state.v, tau))
    arrays = [("state.q", q, "nq"), ("state.v", v, "nv"), ("tau", tau, "nv")]
    if actuator_damping is not None:
        actuator_damping = jnp.asarray(actuator_damping)
        arrays.append(("actuator_damping", actuator_damping, "nv"))
    for name, x, size in arrays:
        require_last_axes(x, (getattr(model, size),), name, f"{size} = {getattr(model, size)} for this model")
    batch = common_batch(model, **{name: x.shape[:-1] for name, x, _ in arrays})
    dtype = jnp.result_type(model.dtype, q, v, tau)
    start = State(*(jnp.broadcast_to(x, (*batch, x.shape[-1])).astype(dtype) for x in (q, v)))
    return advance(model, start, tau.astype(dtype), h.astype(dtype), integrator, substeps, actuator_damping)


def advance(model: Model, state: State, tau, dt, integrator: str, substeps: int, actuator_damping: Any) -> State:
    """`step` without checks, for states that have all batch axes."""
    options = () if actuator_damping is None else (actuator_damping,)
    one = STEPS[integrator]
    if substeps == 1:
        return one(model, state, tau, dt, *options)

    def sub(state: State, _):
        return one(model, state, tau, dt / substeps, *options), None

    return lax.scan(sub, state, length=substeps)[0]


def checked_scheme(integrator: str, substeps: int, actuator_damping: bool) -> None:
    """**Raises** `ModelError` for what is no scheme."""
    if integrator not in STEPS:
        raise ModelError(f"no integrator named {integrator!r}; known: {', '.join(STEPS)}")
    positive(substeps, "substeps")
    if actuator_damping and integrator != "implicit_velocity":
        raise ModelError(f"{integrator!r} takes no actuator_damping; use integrator='implicit_velocity'")


def positive(number, name: str) -> int:
    """**Raises** `ModelError` unless it is a positive whole number, known while tracing."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ModelError(f"{name} is {number!r}; a positive int is needed, known while tracing")
    return number


def checked_dt(dt):
    """As an array. **Raises** `ShapeError` unless it is one number."""
    dt = jnp.asarray(dt)
    if dt.shape != ():
        raise ShapeError(f"dt has shape {dt.shape}, but all elements of a batch share one step: give a number (s)")
    return dt if jnp.issubdtype(dt.dtype, jnp.floating) else dt.astype(jnp.result_type(float))


def common_batch(model: Model, **batches: tuple[int, ...]) -> tuple[int, ...]:
    """The batch axes of everything. **Raises** `ShapeError`, which names all of them, where they do not broadcast."""
    every: dict[str, tuple[int, ...]] = {**batches, "model": model_batch(model)}
    try:
        return jnp.broadcast_shapes(*every.values())
    except ValueError:
        shown = ", ".join(f"{name} {list(shape)}" for name, shape in every.items())
        raise ShapeError(f"the leading batch axes do not broadcast: {shown}") from None
