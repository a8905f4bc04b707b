"""Passive effects at the joints: friction and soft limits, as blocks that add their torque.

A block sees the state at the start of a step, and its torque is held over the step, substeps included. This explicit
treatment limits the step (docs/actuators.md has the limits); beyond it velocities chatter or grow, and only a shorter
`dt` helps. `Model.damping`, `Model.friction` and `Model.stiffness` are evaluated by the dynamics in every substep, and
the integrator `"implicit_velocity"` takes damping and friction implicitly: prefer them where they describe the effect.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, naming_arguments, require_last_axes
from jaxdyn._types import Array, ArrayLike, Float, float_leaf, leaf_of
from jaxdyn.friction import AbstractFriction, Coulomb, FrictionSum, Stribeck, Viscous
from jaxdyn.model import FRICTION_VELOCITY, Model
from jaxdyn.simulate._state import State
from jaxdyn.simulate.actuators._actuator import AbstractMemorylessActuator, require_values, signal


class AbstractJointEffect(AbstractMemorylessActuator):
    """A block that adds a torque to the torque of the drive."""

    @abc.abstractmethod
    def torque(self, state: State) -> Float[Array, "*batch nv"]:
        """The torque that the effect adds, N m or N."""

    def apply(self, command: Any, state: State) -> Float[Array, "*batch nv"]:
        n = state.v.shape[-1]
        u = signal(command, n, type(self).__name__, f"torques at the nv = {n} degrees of freedom", state)
        return u + self.torque(state)


class _FrictionEffect(AbstractJointEffect):
    """A block with a friction law of `jaxdyn.friction`, whose parameters are the fields of the block."""

    law: ClassVar[Callable[..., AbstractFriction]]

    def __check_init__(self):
        velocities = {"stribeck_velocity": "the Stribeck velocity", "friction_velocity": "the friction velocity"}
        for name, words in velocities.items():
            if hasattr(self, name):
                require_values(lambda x: x > 0, getattr(self, name), words, "positive")

    def torque(self, state: State) -> Float[Array, "*batch nv"]:
        names = [field.name for field in dataclasses.fields(self)]
        return -self.law(*self.gains(state.v.shape[-1], state, *names)).torque(state.v)


class ViscousFriction(_FrictionEffect):
    """`tau = -d v`. The model has the same in `Model.damping`, evaluated in every substep."""

    damping: Float[Array, "*#batch #nv"] = eqx.field(converter=leaf_of("ViscousFriction: `damping`"))
    """`d`, N m s/rad or N s/m."""
    law: ClassVar = Viscous


class CoulombFriction(_FrictionEffect):
    """`tau = -F tanh(v / w)`: Coulomb's law, smooth within the transition velocity `w`, so that at rest a joint creeps.

    The model has the same in `Model.friction` and `Model.friction_velocity`, evaluated in every substep.
    """

    friction: Float[Array, "*#batch #nv"] = eqx.field(converter=leaf_of("CoulombFriction: `friction`"))
    """`F`, N m or N."""
    friction_velocity: Float[Array, "*#batch #nv"] = eqx.field(
        converter=leaf_of("CoulombFriction: `friction_velocity`"), default=FRICTION_VELOCITY
    )
    """`w`, rad/s or m/s."""
    law: ClassVar = Coulomb


class StribeckFriction(_FrictionEffect):
    """Coulomb, Stribeck and viscous friction:

        tau = -[F_c + (F_s - F_c) exp(-(v / v_s)^2)] tanh(v / w) - d v

    The friction falls from `F_s`, at break-away, to `F_c` over the Stribeck velocity `v_s`, and rises again with the
    viscous part. Sources: see `jaxdyn.friction.Stribeck` (Olsson et al., European Journal of Control 1998).
    """

    coulomb: Float[Array, "*#batch #nv"] = eqx.field(converter=leaf_of("StribeckFriction: `coulomb`"))
    """`F_c`, N m or N."""
    static: Float[Array, "*#batch #nv"] = eqx.field(converter=leaf_of("StribeckFriction: `static`"))
    """`F_s`, N m or N."""
    stribeck_velocity: Float[Array, "*#batch #nv"] = eqx.field(
        converter=leaf_of("StribeckFriction: `stribeck_velocity`")
    )
    """`v_s`, rad/s or m/s."""
    damping: Float[Array, "*#batch #nv"] = eqx.field(converter=leaf_of("StribeckFriction: `damping`"), default=0.0)
    """`d`, N m s/rad or N s/m."""
    friction_velocity: Float[Array, "*#batch #nv"] = eqx.field(
        converter=leaf_of("StribeckFriction: `friction_velocity`"), default=FRICTION_VELOCITY
    )
    """`w`, rad/s or m/s."""

    @staticmethod
    def law(coulomb, static, stribeck_velocity, damping, friction_velocity) -> FrictionSum:
        """The friction law with these parameters, the fields of the block."""
        return FrictionSum(Stribeck(coulomb, static, stribeck_velocity, friction_velocity), Viscous(damping))


class SoftLimits(AbstractJointEffect):
    """Position limits as one-sided springs and dampers, which push a joint back and never pull it:

        tau = -max(0, k s(q - upper) + c s'(q - upper) v) + max(0, k s(lower - q) - c s'(lower - q) v)

    with the ramp `s(x) = 0` for `x <= 0`, `x^2 / (2 w)` up to the width `w`, `x - w / 2` beyond: the torque is zero
    inside the limits and continuous, the spring's with its derivative. Only joints whose coordinates are angles or
    lengths have such limits, not ball and free joints. Infinite limits have no effect.
    """

    lower: Float[Array, "*#batch nv"]
    upper: Float[Array, "*#batch nv"]
    stiffness: Float[Array, "*#batch #nv"]
    """`k`, N m/rad or N/m."""
    damping: Float[Array, "*#batch #nv"]
    """`c`, N m s/rad or N s/m."""
    width: Float[Array, "*#batch #nv"]
    """`w`, rad or m."""
    q_indices: tuple[int, ...] = eqx.field(static=True)

    @naming_arguments
    def __init__(
        self,
        model: Model,
        stiffness: ArrayLike,
        damping: ArrayLike,
        width: ArrayLike = 0.01,
        *,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ):
        """`lower` and `upper` `[*batch, nq]` are the model's where they are not given. **Raises** `ShapeError`;
        `ModelError` for a width that is not positive, and for a finite limit of a ball or free joint's coordinate."""
        scalar_q, scalar_v = model.topology.scalar_coordinates
        # Degrees of freedom without an angle or a length get any coordinate, and infinite limits.
        indices = np.zeros(model.nv, int)
        indices[scalar_v] = scalar_q
        limited = np.isin(np.arange(model.nv), scalar_v)
        unlimited = np.setdiff1d(np.arange(model.nq), scalar_q)
        ends = []
        for end, name, none in (
            (model.position_lower if lower is None else lower, "lower", -np.inf),
            (model.position_upper if upper is None else upper, "upper", np.inf),
        ):
            end = float_leaf(end)
            require_last_axes(end, (model.nq,), f"the {name} limit", f"nq = {model.nq} for this model")
            if not isinstance(end, Tracer) and np.isfinite(np.asarray(end)[..., unlimited]).any():
                raise ModelError(
                    f"the {name} limit is finite for a coordinate of a ball or free joint, among "
                    f"q{unlimited.tolist()}; soft limits are for angles and lengths: make it infinite"
                )
            ends.append(jnp.where(jnp.asarray(limited), end[..., indices], none))
        self.lower, self.upper = ends
        self.stiffness, self.damping, self.width = float_leaf(stiffness), float_leaf(damping), float_leaf(width)
        self.q_indices = tuple(indices.tolist())
        require_values(lambda x: x > 0, self.width, "the width", "positive")

    def torque(self, state: State) -> Float[Array, "*batch nv"]:
        n, v = len(self.q_indices), state.v
        q = state.q[..., np.array(self.q_indices)]
        lower, upper, k, c, w = self.gains(n, state, "lower", "upper", "stiffness", "damping", "width")

        def push(depth, speed):
            # Infinitely far from a limit both parts are zero, with zero derivatives, and no infinity is multiplied.
            inside_ramp = jnp.clip(depth, 0, w)
            s = inside_ramp**2 / (2 * w) + jnp.maximum(depth - w, 0)
            return jnp.maximum(k * s + c * (inside_ramp / w) * speed, 0)

        return push(lower - q, -v) - push(q - upper, v)
