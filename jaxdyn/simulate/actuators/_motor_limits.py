"""Limits of motors."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import ModelError, require_choice
from jaxdyn._types import Array, Float, leaf_of
from jaxdyn.simulate.actuators._drive_block import UNLIMITED, AbstractMemorylessBlock, ActuatorState, require_values

type Saturation = Literal["clip", "tanh", "softclip"]
_SATURATIONS = ("clip", "tanh", "softclip")


class _Saturation(AbstractMemorylessBlock):
    """A block that keeps its signal between limits."""

    kind: Saturation = eqx.field(default="clip", kw_only=True, static=True)
    width: Float[Array, "*batch"] | None = eqx.field(
        default=None, kw_only=True, converter=leaf_of("a saturation: `width`", optional=True)
    )
    """Only for `"softclip"`."""

    def __check_init__(self):
        require_choice(self.kind, _SATURATIONS, "the kind of saturation")
        if (self.kind == "softclip") != (self.width is not None):
            raise ModelError("a width belongs to the saturation 'softclip', and only to it")
        if self.width is not None:
            require_values(lambda x: x > 0, self.width, "the width of a softclip", "positive")

    def saturate(self, u: Any, lower: Any, upper: Any) -> Any:
        """`u` between `lower` and `upper`; see `EffortLimits`."""
        if self.kind == "clip":
            return jnp.clip(u, lower, upper)
        if self.kind == "tanh":
            limit = jnp.where(u < 0, -lower, upper)
            # Both a limit of zero and one that is none would give 0 times infinity, here or in the derivative.
            usable = (limit > 0) & (limit < UNLIMITED)
            scale = jnp.where(usable, limit, 1.0)
            return jnp.where(usable, scale * jnp.tanh(u / scale), jnp.where(limit > 0, u, 0.0))

        width = self.width
        assert width is not None

        def excess(x, limit):
            """The smooth positive part of `x - limit`."""
            there = limit < UNLIMITED
            return jnp.where(there, width * jax.nn.softplus((x - jnp.where(there, limit, 0.0)) / width), 0.0)

        return u - excess(u, upper) + excess(-u, -lower)


class EffortLimits(_Saturation):
    """Limits of torque or force, in N m or N: `lower <= f <= upper`. Exact ones are also `Actuator.force_range`.

    `kind`:

    - `"clip"`: exact. Beyond a limit the derivative by the command is zero, so no gradient leads back.
    - `"tanh"`: `limit tanh(u / limit)` on either side of zero, with a slope of 1 there; it deviates by 4 % at a third
      of the limit and by 24 % at the limit, and a gradient always remains. Needs `lower <= 0 <= upper`.
    - `"softclip"`: `u - w softplus((u - upper) / w) + w softplus((lower - u) / w)`, which is the clip with its
      corners rounded over a few `width` (`w`, N m or N).

    Infinite limits have no effect. **Raises** `ModelError`.
    """

    upper: Float[Array, "*batch"] = eqx.field(converter=leaf_of("EffortLimits: `upper`"))
    lower: Float[Array, "*batch"] = eqx.field(default=None, converter=leaf_of("EffortLimits: `lower`", optional=True))
    """`-upper` where it is not given."""

    def __post_init__(self):
        self.lower = -self.upper if self.lower is None else self.lower

    def __check_init__(self):
        require_values(lambda x: x >= 0, self.upper - self.lower, "upper - lower", "zero or positive")
        if self.kind == "tanh":
            require_values(lambda x: x >= 0, self.upper, "the upper limit of a tanh", "zero or positive")
            require_values(lambda x: x <= 0, self.lower, "the lower limit of a tanh", "zero or negative")

    def apply(self, signal: Any, at: ActuatorState) -> Any:
        return self.saturate(signal, self.lower, self.upper)


class DCMotorLimits(_Saturation):
    """The torque-speed curve of a DC motor at a limited voltage, with a limited current.

    `-m(-v) <= f <= m(v)` with `m(v) = clip(stall_torque (1 - v / no_load_speed), 0, peak_torque)`: the torque that a
    motor can add falls with its speed, to zero at the speed at which it runs without load; braking, it has all of its
    peak torque. Quantities of the motor, in front of the actuator's gear. (Spong, Hutchinson & Vidyasagar, Robot
    Modeling and Control, 2006, section 6.1, for the motor's equations.) `kind` as in `EffortLimits`. **Raises**
    `ModelError`.
    """

    stall_torque: Float[Array, "*batch"] = eqx.field(converter=leaf_of("DCMotorLimits: `stall_torque`"))
    """N m or N."""
    no_load_speed: Float[Array, "*batch"] = eqx.field(converter=leaf_of("DCMotorLimits: `no_load_speed`"))
    """rad/s or m/s; infinite where speed does not matter."""
    peak_torque: Float[Array, "*batch"] = eqx.field(
        default=None, converter=leaf_of("DCMotorLimits: `peak_torque`", optional=True)
    )
    """The torque at the largest current, N m or N; `stall_torque` where it is not given."""

    def __post_init__(self):
        self.peak_torque = self.stall_torque if self.peak_torque is None else self.peak_torque

    def __check_init__(self):
        require_values(lambda x: x > 0, self.no_load_speed, "the no-load speed", "positive")
        require_values(lambda x: x >= 0, self.stall_torque, "the stall torque", "zero or positive")
        require_values(lambda x: x >= 0, self.peak_torque, "the peak torque", "zero or positive")

    def apply(self, signal: Any, at: ActuatorState) -> Any:
        stall, peak, ratio = self.stall_torque, self.peak_torque, at.velocity / self.no_load_speed
        upper, lower = jnp.clip(stall * (1 - ratio), 0, peak), -jnp.clip(stall * (1 + ratio), 0, peak)
        return self.saturate(signal, lower, upper)
