"""The equations of motion for solvers of ordinary differential equations."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxdyn import joints
from jaxdyn._errors import ModelError, naming_arguments, require_last_axes
from jaxdyn._types import Array, Float, Velocity, Wrenches
from jaxdyn.algorithms import aba
from jaxdyn.model import Model
from jaxdyn.simulate._state import State, with_velocity
from jaxdyn.simulate._systems import AbstractWorld
from jaxdyn.simulate.integrators import closed


class VectorField(eqx.Module):
    """`field(t, state, args)`: the rate of a state, as a `State`. A pytree, so that solvers differentiate in it."""

    model: Model | AbstractWorld
    control: Any
    f_ext: Any

    def __call__(self, t, state: State, args: Any = None) -> State:
        tau: Any = self.control(t, state, args) if callable(self.control) else self.control
        if isinstance(self.model, AbstractWorld):
            return self.model.rate(t, state, tau)
        f_ext: Any = self.f_ext(t, state, args) if callable(self.f_ext) else self.f_ext
        a = aba(self.model, state.q, state.v, tau, f_ext)
        return State(coordinate_rate(self.model, state.q, state.v), a)


@naming_arguments
def vector_field(
    model: Model | AbstractWorld,
    control: Velocity | Callable[[Any, State, Any], Any] | None = None,
    f_ext: Wrenches | Callable[[Any, State, Any], Any] | None = None,
) -> Callable[[Any, State, Any], State]:
    """The equations of motion in coordinates, `(t, state, args) -> rate of the state`, for adaptive and stiff solvers.

    For `diffrax` (the extra `ode`): `diffrax.ODETerm(vector_field(model, control))` with a `State` for `y0`; its
    adjoints differentiate in the state, the model, and the arrays of the control and the wrenches.

    **Arguments**

    - `model`: a model, or a world, with all that is attached to it (`World.rate`); begin with `World.state`.
    - `control`: actuator torques `[*batch, nv]`, N m or N, of a world its controls `[*batch, nu]`; or a function `(t,
      state, args)` that returns them; zero by default.
    - `f_ext`: external wrenches `[*batch, nb, 6]` as in `step`, or a function `(t, state, args)` that returns them.

    A quaternion follows `q (0, w) / 2`, which keeps its norm but for the solver's error; the library takes it for its
    direction, and `normalized` makes it unit again. Accelerations honor closed loops, but the solver's errors open
    them: begin with a state that closes them, and let `normalized` close those that are saved. **Raises** `ShapeError`
    where torques or wrenches do not fit, `ModelError` for wrenches on a world.
    """
    world = model if isinstance(model, AbstractWorld) else None
    size, n = ("nv", model.nv) if isinstance(model, Model) else ("nu", model.nu)
    if world is not None and f_ext is not None:
        raise ModelError("the vector field of a world takes no f_ext; only that of a model does")
    if control is None:
        control = jnp.zeros(n, model.dtype if isinstance(model, Model) else model.model.dtype)
    if not callable(control):
        control = jnp.asarray(control)
        require_last_axes(control, (n,), "control", f"[*batch, {size}] with {size} = {n}")
    if world is not None:
        return VectorField(world, control, None)
    assert isinstance(model, Model)
    if f_ext is not None and not callable(f_ext):
        f_ext = jnp.asarray(f_ext)
        require_last_axes(f_ext, (model.nb, 6), "f_ext", f"[*batch, nb, 6] with nb = {model.nb}")
    return VectorField(model, control, f_ext)


@naming_arguments
def coordinate_rate(model: Model, q, v) -> Float[Array, "*batch nq"]:
    """The time derivative of the coordinates `q` `[*batch, nq]` under the velocity `v` `[*batch, nv]`: `v` for vector
    coordinates, `R v` for a free joint's position, `q (0, w) / 2` for a quaternion `q` and the body's angular velocity
    `w` (also where `q` is not unit). Batch axes broadcast."""
    q, v = jnp.asarray(q), jnp.asarray(v)
    require_last_axes(q, (model.nq,), "q", f"nq = {model.nq} for this model")
    require_last_axes(v, (model.nv,), "v", f"nv = {model.nv} for this model")
    return joints.apply_to_rows(joints.coordinate_rate, model.topology, q, v)


@naming_arguments
def normalized(model: Model, state: State) -> State:
    """`state` with unit quaternions, whose norm solvers of other libraries may change, and with closed loops.

    Loops that errors of a solver have opened are closed as at the end of a `step`: by two Gauss-Newton steps of `q` and
    one change of `v`, the least ones in the metric of the mass matrix.
    """
    state = with_velocity(model, state)
    return closed(model, State(model.integrate(state.q, jnp.zeros_like(state.v)), state.v))
