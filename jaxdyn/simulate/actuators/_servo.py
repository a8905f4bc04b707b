"""Servos: torques in proportion to the errors of positions and velocities."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import naming_arguments
from jaxdyn._types import Array, ArrayLike, Float, float_leaf
from jaxdyn.joints import Topology, apply_to_rows, difference
from jaxdyn.model import Model
from jaxdyn.simulate._state import State
from jaxdyn.simulate.actuators._actuator import AbstractMemorylessActuator, signal
from jaxdyn.simulate.actuators._motor import dof_indices


class ServoCommand(eqx.Module):
    """The command of a `PositionServo`. In a roll-out its arrays have an axis of steps before the last."""

    position: Float[Array, "*#batch nq"]
    """Configuration of the servo's joints."""
    velocity: Float[Array, "*#batch nv"] | None = None
    """Zero where it is None."""
    effort: Float[Array, "*#batch nv"] | None = None
    """Feed-forward torque, N m or N; zero where it is None."""


class PositionServo(AbstractMemorylessActuator):
    """Proportional-derivative position servos with feed-forward, one for each degree of freedom:

        tau = effort + kp (q_d (-) q) + kd (v_d - v)

    `(-)` is `Model.difference`, for joints with a quaternion the rotation vector in the moving body's axes from where
    it is to where it should be, at most half a turn; an angle is not wrapped. The gains are in N m/rad and N m s/rad,
    or N/m and N s/m. The command is a `ServoCommand`, or its `position` alone. Joints that are not named get no torque
    from the servo.

    The torque is held over a step, which is stable if it is shorter than about `2 m / kd` and `2 (m / kp)^(1/2)` for
    the inertia `m = 1 / (M^-1)_ii`. For larger dampings use `rollout(..., integrator="implicit_velocity",
    options=RolloutOptions(actuator_damping=servo.kd))`, which takes them at the end of the step."""

    kp: Float[Array, "*#batch #nv"]
    kd: Float[Array, "*#batch #nv"]
    topology: Topology = eqx.field(static=True)
    q_indices: tuple[int, ...] | None = eqx.field(static=True)
    v_indices: tuple[int, ...] | None = eqx.field(static=True)

    @naming_arguments
    def __init__(self, model: Model, kp: ArrayLike, kd: ArrayLike, *, joints: Sequence[str] | None = None):
        """Gains of one number, or of one for each of the model's `nv` degrees of freedom; `joints`: names of those that
        have a servo, whose order is the order in commands; all where it is None.

        **Raises** `UnknownNameError`; `ModelError` for a joint that mimics another."""
        self.kp, self.kd, self.topology = float_leaf(kp), float_leaf(kd), model.topology
        self.q_indices = self.v_indices = None
        if joints is not None:
            self.v_indices = dof_indices(model, joints)
            self.q_indices = tuple(i for name in joints for i in range(model.nq)[model.q_index(name)])

    def apply(self, command: Any, state: State) -> Float[Array, "*batch nv"]:
        if not isinstance(command, ServoCommand):
            command = ServoCommand(command)
        n = self.topology.nv
        kp, kd = self.gains(n, state, "kp", "kd")
        q = _with_part(state.q, command.position, self.q_indices, "position", state)
        at_rest = jnp.zeros(n if self.v_indices is None else len(self.v_indices), state.v.dtype)
        velocity = at_rest if command.velocity is None else command.velocity
        v = _with_part(state.v, velocity, self.v_indices, "velocity", state)
        # Without the model: the servo carries none of its arrays.
        vectors = self.topology.nq == n
        error = q - state.q if vectors else apply_to_rows(difference, self.topology, state.q, q)
        tau = kp * error + kd * (v - state.v)
        if command.effort is not None:
            tau = tau + _with_part(jnp.zeros_like(state.v), command.effort, self.v_indices, "effort", state)
        return tau


class VelocityServo(AbstractMemorylessActuator):
    """Velocity servos, one for each degree of freedom: `tau = kv (v_d - v)`, with `kv` in N m s/rad or N s/m.

    The command is `v_d` `[*batch, nv]`, or its part for the named joints; the others get no torque.
    """

    kv: Float[Array, "*#batch #nv"]
    v_indices: tuple[int, ...] | None = eqx.field(static=True)

    @naming_arguments
    def __init__(self, model: Model, kv: ArrayLike, *, joints: Sequence[str] | None = None):
        """`joints`: names of those that have a servo, as for `PositionServo`."""
        self.kv = float_leaf(kv)
        self.v_indices = None if joints is None else dof_indices(model, joints)

    def apply(self, command: Any, state: State) -> Float[Array, "*batch nv"]:
        (kv,) = self.gains(state.v.shape[-1], state, "kv")
        return kv * (_with_part(state.v, command, self.v_indices, "velocity", state) - state.v)


def _with_part(present: jax.Array, part: Any, indices: tuple[int, ...] | None, name: str, state: State) -> jax.Array:
    """`present` with `part` at `indices`, or just `part` if `indices` is None."""
    n = present.shape[-1] if indices is None else len(indices)
    part = signal(part, n, "a servo", f"its {name}, in the order of the model or of the servo's joints", state)
    if indices is None:
        return part
    batch = jnp.broadcast_shapes(present.shape[:-1], part.shape[:-1])
    return jnp.broadcast_to(present, (*batch, present.shape[-1])).at[..., jnp.asarray(indices, int)].set(part)
