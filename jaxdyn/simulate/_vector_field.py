"""The equations of motion for solvers of ordinary differential equations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import require_last_axes
from jaxdyn._types import Array, Float, Velocity
from jaxdyn.algorithms import aba
from jaxdyn.model import Model
from jaxdyn.simulate._state import State
from jaxdyn.spatial import Quaternion, Vec3


class VectorField(eqx.Module):
    """`field(t, state, args)`: the rate of a state, as a `State`. A pytree, so that solvers differentiate in it."""

    model: Model
    control: Any

    def __call__(self, t, state: State, args: Any = None) -> State:
        tau: Any = self.control
        if callable(tau):
            tau = tau(t, state, args)
        a = aba(self.model, state.q, state.v, tau)
        return State(coordinate_rate(self.model, state.q, state.v), a)


def vector_field(
    model: Model, control: Velocity | Callable[[Any, State, Any], Any] | None = None
) -> Callable[[Any, State, Any], State]:
    """The equations of motion in coordinates, `(t, state, args) -> rate of the state`, for adaptive and stiff solvers.

    For `diffrax` (the extra `ode`): `diffrax.ODETerm(vector_field(model, control))` with a `State` for `y0`; its
    adjoints differentiate in the state, the model, and the arrays of the control.

    **Arguments**

    - `control`: actuator torques `[*batch, nv]`, or a function `(t, state, args)` that gives them; none by default.

    A quaternion follows `q (0, w) / 2`, which keeps its norm but for the solver's error; the library takes it for its
    direction, and `normalized` makes it unit again. **Raises** `ShapeError` where torques do not fit.
    """
    if control is None:
        control = jnp.zeros(model.nv, model.dtype)
    if not callable(control):
        control = jnp.asarray(control)
        require_last_axes(control, (model.nv,), "control", f"[*batch, nv] with nv = {model.nv}")
    return VectorField(model, control)


def coordinate_rate(model: Model, q, v) -> Float[Array, "*batch nq"]:
    """The time derivative of the coordinates `q` under the velocity `v`: `v` for vector coordinates, `R v` for a free
    joint's position, `q (0, w) / 2` for a quaternion `q` and the body's angular velocity `w` (also where `q` is not
    unit). Batch axes broadcast.

    `q` is `[*batch, nq]`, `v` `[*batch, nv]`.
    """
    q, v = jnp.asarray(q), jnp.asarray(v)
    require_last_axes(q, (model.nq,), "q", f"nq = {model.nq} for this model")
    require_last_axes(v, (model.nv,), "v", f"nv = {model.nv} for this model")
    batch = jnp.broadcast_shapes(q.shape[:-1], v.shape[:-1])
    kinds, at_q, at_v = model.topology.blocks
    vector, ball, free = (np.isin(kinds, list(letters)) for letters in ("RPH", "B", "F"))
    out = jnp.zeros((*batch, model.nq), jnp.result_type(q, v))
    out = out.at[..., at_q[vector]].set(v[..., at_v[vector]])
    for start_q, start_v in ((at_q[ball], at_v[ball]), (at_q[free] + 3, at_v[free] + 3)):
        if not len(start_q):
            continue
        turn = Quaternion(*(q[..., start_q + k] for k in range(4)))
        x, y, z = (0.5 * v[..., start_v + k] for k in range(3))
        rate = turn.multiply(Quaternion(jnp.zeros_like(x), x, y, z))
        for k, part in enumerate((rate.w, rate.x, rate.y, rate.z)):
            out = out.at[..., start_q + k].set(part)
    if free.any():
        R = Quaternion(*(q[..., at_q[free] + 3 + k] for k in range(4))).to_rotation()
        shift = R.apply(Vec3(*(v[..., at_v[free] + k] for k in range(3))))
        for k, part in enumerate((shift.x, shift.y, shift.z)):
            out = out.at[..., at_q[free] + k].set(part)
    return out


def normalized(model: Model, state: State) -> State:
    """`state` with unit quaternions, as the solvers of other libraries may leave them otherwise."""
    return State(model.integrate(state.q, jnp.zeros_like(state.v)), state.v)
