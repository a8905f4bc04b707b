"""The actuators of an MJCF file as a block."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn._types import Array, ArrayLike, Float, float_leaf
from jaxdyn.io import MjcfActuator
from jaxdyn.joints import Topology, apply_to_rows, difference
from jaxdyn.model import Model
from jaxdyn.simulate._state import State
from jaxdyn.simulate.actuators._actuator import AbstractActuator, require_values, signal


class MjcfActuators(AbstractActuator):
    """The actuators of an MJCF file: from their controls `[*batch, n]`, MuJoCo's `ctrl`, to the torques of all joints.

        actuators = load_mjcf_actuators("robot.xml")
        motors = Actuation(MjcfActuators(model, actuators, dt), EffortLimits(model.effort_limit))
        policy = motors.driven_by(controls)

    The equation of each is that of `MjcfActuator`. The state of an actuator with dynamics is MuJoCo's `act`, zero at
    the start; the torque of a step takes the state before the step, as MuJoCo does without `actearly`. The limits of
    joints (`actuatorfrcrange`) are `Model.effort_limit`: let `EffortLimits` follow, as above. Gains are held over a
    step, as by MuJoCo's integrator `Euler`.
    """

    gear: Float[Array, "n nv"]
    gain: Float[Array, "*#batch n 3"]
    """Factors of the control or state: a constant, of the length, and of its rate; zero where the type has none."""
    bias: Float[Array, "*#batch n 3"]
    """Terms without a control: a constant, of the length, and of its rate."""
    control_range: Float[Array, "n 2"]
    force_range: Float[Array, "n 2"]
    activation_range: Float[Array, "n 2"]
    time_constant: Float[Array, "*#batch n"]
    """Time constants of the filters, s."""
    dt: Float[Array, ""]
    names: tuple[str, ...] = eqx.field(static=True)
    dynamics: tuple[str, ...] = eqx.field(static=True)
    """The kind of each: `"none"`, `"integrator"`, `"filter"` or `"filterexact"`."""
    topology: Topology = eqx.field(static=True)

    def __init__(self, model: Model, actuators: Sequence[MjcfActuator], dt: ArrayLike):
        """`actuators`: the result of `load_mjcf_actuators`, or some of it, whose order is that of the controls; `dt`:
        the time step of the roll-out, s.

        **Raises** `UnknownNameError` for a joint that the model does not have; `ModelError` for one that mimics another
        or has another number of velocities than in the file, and unless `dt` is positive."""
        self.names = tuple(a.name for a in actuators)
        self.dynamics = tuple(a.dynamics_type for a in actuators)
        self.topology = model.topology
        gear = np.zeros((len(actuators), model.nv))
        for row, a in zip(gear, actuators, strict=True):
            place = model.v_index(a.joint)
            if len(row[place]) != len(a.gear):
                raise ModelError(
                    f"actuator {a.name!r} has {len(a.gear)} gears, but joint {a.joint!r} of the model has "
                    f"{len(row[place])} velocities: is the model from another file?"
                )
            row[place] = a.gear
        self.gear = float_leaf(gear)
        self.gain = float_leaf([_affine(a.gain, a.gain_type == "affine", 1) for a in actuators])
        self.bias = float_leaf([_affine(a.bias, a.bias_type == "affine", 0) for a in actuators])
        self.control_range = float_leaf([a.control_range for a in actuators])
        self.force_range = float_leaf([a.force_range for a in actuators])
        self.activation_range = float_leaf([a.activation_range for a in actuators])
        self.time_constant = float_leaf([a.dynamics[0] for a in actuators])
        self.dt = float_leaf(dt)
        require_values(lambda x: x > 0, self.dt, "dt", "positive")

    def init(self, command: Any, state: State) -> Float[Array, "*batch n"] | None:
        """MuJoCo's `act` at the start, with a number that is not used for an actuator without dynamics; None if no
        actuator has any."""
        if all(x == "none" for x in self.dynamics):
            return None
        batch = jnp.broadcast_shapes(state.v.shape[:-1], command.shape[:-1], self.time_constant.shape[:-1])
        return jnp.zeros((*batch, len(self.names)), state.v.dtype)

    def __call__(self, carry: Any, command: Any, state: State, t: Any) -> tuple[Any, Float[Array, "*batch nv"]]:
        dtype = state.v.dtype
        u = signal(command, len(self.names), "MjcfActuators", "the controls of " + ", ".join(self.names), state)
        gear, gain, bias, *ranges = (
            x.astype(dtype)
            for x in (self.gear, self.gain, self.bias, self.control_range, self.force_range, self.activation_range)
        )
        control, force, activation = (tuple(x.T) for x in ranges)
        u = jnp.clip(u, *control)
        stateful = np.array(self.dynamics) != "none"
        w = u if carry is None else jnp.where(stateful, carry, u)
        length, rate = self._displacements(state.q) @ gear.T, state.v @ gear.T
        terms = jnp.stack([jnp.ones_like(length), length, rate], axis=-1)
        forces = jnp.clip(jnp.sum(gain * terms, -1) * w + jnp.sum(bias * terms, -1), *force)
        if carry is not None:
            carry = jnp.clip(carry + self._change(carry, u), *activation)
        return carry, forces @ gear

    def _displacements(self, q: jax.Array) -> jax.Array:
        """Coordinates as they are, without wrapping, and rotation vectors in place of quaternions `[*batch, nv]`."""
        if self.topology.nq == self.topology.nv:
            return q
        coordinates, dofs = self.topology.scalar_coordinates
        neutral = jnp.zeros(self.topology.nq, q.dtype).at[self.topology.quaternion_starts].set(1)
        out = apply_to_rows(difference, self.topology, neutral, q)
        return out.at[..., dofs].set(q[..., coordinates])

    def _change(self, act: jax.Array, u: jax.Array) -> jax.Array:
        """The change of the states over a step (MuJoCo's manual, chapter Computation, Actuation model)."""
        dt, T = self.dt.astype(act.dtype), self.time_constant.astype(act.dtype)
        kinds = np.array(self.dynamics)
        ratio = dt / jnp.maximum(T, 1e-15)
        share = jnp.where(kinds == "filterexact", -jnp.expm1(-ratio), ratio)
        return jnp.where(kinds == "integrator", dt * u, share * (u - act))


def _affine(parameters: Sequence[float], affine: bool, constants: int) -> list[float]:
    """The three parameters of a gain or bias, without those that its type does not use."""
    return [x if affine or i < constants else 0.0 for i, x in enumerate(parameters[:3])]
