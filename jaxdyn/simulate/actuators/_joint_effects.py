"""Friction and soft limits of actuators, which their motors do not produce."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from jaxdyn._types import Array, Float, leaf_of
from jaxdyn.friction import Dahl, FrictionSum, Stribeck, Viscous
from jaxdyn.model import FRICTION_VELOCITY
from jaxdyn.simulate.actuators._drive_block import (
    AbstractDriveBlock,
    AbstractJointEffect,
    ActuatorState,
    require_values,
)


class StribeckFriction(AbstractJointEffect):
    """Coulomb, Stribeck and viscous friction of an actuator:

        f = -[F_c + (F_s - F_c) exp(-(v / v_s)^2)] tanh(v / w) - d v

    The friction falls from `F_s`, at break-away, to `F_c` over the Stribeck velocity `v_s`, and rises again with the
    viscous part. With `F_s = F_c` it is Coulomb's, which like viscous friction is also the model's (`Model.friction`,
    `Model.damping`). Sources: see `jaxdyn.friction.Stribeck` (Olsson et al., European Journal of Control 1998).
    """

    coulomb: Float[Array, "*batch"] = eqx.field(converter=leaf_of("StribeckFriction: `coulomb`"))
    """`F_c`, N m or N."""
    static: Float[Array, "*batch"] = eqx.field(converter=leaf_of("StribeckFriction: `static`"))
    """`F_s`, N m or N."""
    stribeck_velocity: Float[Array, "*batch"] = eqx.field(converter=leaf_of("StribeckFriction: `stribeck_velocity`"))
    """`v_s`, rad/s or m/s."""
    damping: Float[Array, "*batch"] = eqx.field(converter=leaf_of("StribeckFriction: `damping`"), default=0.0)
    """`d`, N m s/rad or N s/m."""
    friction_velocity: Float[Array, "*batch"] = eqx.field(
        converter=leaf_of("StribeckFriction: `friction_velocity`"), default=FRICTION_VELOCITY
    )
    """`w`, rad/s or m/s."""

    def __check_init__(self):
        for name in ("stribeck_velocity", "friction_velocity"):
            words = f"the {name.replace('_', ' ')}".replace("stribeck", "Stribeck")
            require_values(lambda x: x > 0, getattr(self, name), words, "positive")

    def torque(self, at: ActuatorState) -> Any:
        stribeck = Stribeck(self.coulomb, self.static, self.stribeck_velocity, self.friction_velocity)
        return -FrictionSum(stribeck, Viscous(self.damping)).torque(at.velocity)


class DahlFriction(AbstractDriveBlock):
    """Coulomb friction of an actuator that builds up over a distance after each reversal, like a spring before it
    slides: `jaxdyn.friction.Dahl`, whose state is among the activations of a world's `State`."""

    beyond_limits: ClassVar[bool] = True

    coulomb: Float[Array, "*batch"] = eqx.field(converter=leaf_of("DahlFriction: `coulomb`"))
    """N m or N."""
    distance: Float[Array, "*batch"] = eqx.field(converter=leaf_of("DahlFriction: `distance`"))
    """The presliding distance, rad or m."""
    initial: Float[Array, "*batch"] = eqx.field(converter=leaf_of("DahlFriction: `initial`"), default=0.0)
    """The state before the first step, from -1 to 1."""
    friction_velocity: Float[Array, "*batch"] = eqx.field(
        converter=leaf_of("DahlFriction: `friction_velocity`"), default=0.0
    )
    """The velocity over which steady friction changes its sign, rad/s or m/s; 0 for the exact sign."""

    def __check_init__(self):
        require_values(lambda x: x > 0, self.distance, "the presliding distance", "positive")

    def start(self) -> tuple[Any, ...]:
        return (self.initial,)

    def advance(self, signal: Any, at: ActuatorState, memory: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        torque, z = Dahl(self.coulomb, self.distance, self.friction_velocity).step(memory[0], at.velocity, at.dt)
        return signal - torque, (z,)


class SoftLimits(AbstractJointEffect):
    """Limits of an actuator's length as one-sided springs and dampers, which push back and never pull:

        f = -max(0, k s(l - upper) + c s'(l - upper) v) + max(0, k s(lower - l) - c s'(lower - l) v)

    with the ramp `s(x) = 0` for `x <= 0`, `x^2 / (2 w)` up to the width `w`, `x - w / 2` beyond: the force is zero
    inside the limits and continuous, the spring's with its derivative. It is evaluated at the start of a step; stops
    that may be stiff are `World(..., limits=True)`. **Raises** `ModelError` for a width that is not positive.
    """

    lower: Float[Array, "*batch"] = eqx.field(converter=leaf_of("SoftLimits: `lower`"))
    """rad or m; infinite without a limit."""
    upper: Float[Array, "*batch"] = eqx.field(converter=leaf_of("SoftLimits: `upper`"))
    stiffness: Float[Array, "*batch"] = eqx.field(converter=leaf_of("SoftLimits: `stiffness`"))
    """`k`, N m/rad or N/m."""
    damping: Float[Array, "*batch"] = eqx.field(converter=leaf_of("SoftLimits: `damping`"))
    """`c`, N m s/rad or N s/m."""
    width: Float[Array, "*batch"] = eqx.field(converter=leaf_of("SoftLimits: `width`"), default=0.01)
    """`w`, rad or m."""

    def __check_init__(self):
        require_values(lambda x: x > 0, self.width, "the width", "positive")

    def torque(self, at: ActuatorState) -> Any:
        k, c, w = self.stiffness, self.damping, self.width

        def push(depth, speed):
            # Far from a limit both parts are zero, with zero derivatives.
            inside_ramp = jnp.clip(depth, 0, w)
            s = inside_ramp**2 / (2 * w) + jnp.maximum(depth - w, 0)
            return jnp.maximum(k * s + c * (inside_ramp / w) * speed, 0)

        return push(self.lower - at.length, -at.velocity) - push(at.length - self.upper, at.velocity)
