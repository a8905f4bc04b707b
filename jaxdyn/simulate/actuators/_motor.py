"""The parts of a drive: gears, transmissions, limits, lag, delay."""

from collections.abc import Sequence
from typing import Any, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._errors import ModelError, ShapeError, naming_arguments, require_choice, require_positive_integer
from jaxdyn._types import Array, ArrayLike, Float, float_leaf, leaf_of
from jaxdyn.model import Model
from jaxdyn.simulate._state import State
from jaxdyn.simulate.actuators._actuator import (
    AbstractActuator,
    AbstractMemorylessActuator,
    require_values,
    signal,
)

type Saturation = Literal["clip", "tanh", "softclip"]
_SATURATIONS = ("clip", "tanh", "softclip")


class Gear(AbstractMemorylessActuator):
    """A gear at each joint: `tau = ratio efficiency tau_motor`.

    The efficiency is that of a motor that drives its load; a load that drives the motor back would divide by it. Where
    that matters, leave it at 1 and give the loss as friction. The rotor's inertia `ratio^2 J` is `Model.armature`.
    """

    ratio: Float[Array, "*#batch #nu"] = eqx.field(converter=leaf_of("Gear: `ratio`"))
    efficiency: Float[Array, "*#batch #nu"] = eqx.field(converter=leaf_of("Gear: `efficiency`"), default=1.0)
    """Between 0 and 1."""

    def __check_init__(self):
        require_values(lambda x: (x > 0) & (x <= 1), self.efficiency, "the efficiency", "between 0 and 1")

    def apply(self, command: Any, state: State) -> Float[Array, "*batch nu"]:
        u = signal(command, None, "Gear", "motor torques in N m", state)
        ratio, efficiency = self.gains(u.shape[-1], state, "ratio", "efficiency")
        return ratio * efficiency * u


class Transmission(AbstractMemorylessActuator):
    """Actuators that drive several degrees of freedom, or not all of them: `tau = B u`, with `B` `[*batch, nv, nu]`.

    The mechanical power of both sides is the same where the actuators' velocities are `B^T v`. **Raises** `ShapeError`.
    """

    matrix: Float[Array, "*#batch nv nu"] = eqx.field(converter=leaf_of("Transmission: `matrix`"))

    def __check_init__(self):
        if self.matrix.ndim < 2:
            raise ShapeError(
                f"the matrix of a transmission has shape {self.matrix.shape}, but [..., nv, nu] is needed: a column "
                "for each actuator"
            )

    @classmethod
    @naming_arguments
    def to_joints(cls, model: Model, joints: Sequence[str], ratio: ArrayLike = 1.0) -> Self:
        """An actuator for each degree of freedom of the named joints, in their order, with a gear of `ratio` each.

        **Raises** `UnknownNameError`; `ModelError` for a joint that mimics another; `ShapeError` for the ratio.
        """
        rows = dof_indices(model, joints)
        ratio = float_leaf(ratio)
        if ratio.shape not in ((), (len(rows),)):
            raise ShapeError(
                f"the ratio has shape {ratio.shape}, but [] or [{len(rows)}] is needed: one for each of the "
                f"{len(rows)} degrees of freedom of {', '.join(joints)}"
            )
        column = jnp.broadcast_to(ratio, (len(rows),))
        matrix = jnp.zeros((model.nv, len(rows)), column.dtype)
        return cls(matrix.at[jnp.asarray(rows, int), jnp.arange(len(rows))].set(column))

    def apply(self, command: Any, state: State) -> Float[Array, "*batch nv"]:
        nv, nu = self.matrix.shape[-2:]
        if nv != state.v.shape[-1]:
            raise ShapeError(
                f"the matrix of a transmission has shape {self.matrix.shape}, but [..., {state.v.shape[-1]}, nu] is "
                "needed: a row for each degree of freedom"
            )
        u = signal(command, nu, "Transmission", f"efforts of {nu} actuators", state)
        return (self.matrix.astype(u.dtype) * u[..., None, :]).sum(axis=-1)


class _Saturation(AbstractMemorylessActuator):
    """A block that keeps its command between limits."""

    kind: Saturation = eqx.field(default="clip", kw_only=True, static=True)
    width: Float[Array, "*#batch #nu"] | None = eqx.field(
        default=None, kw_only=True, converter=leaf_of("a saturation: `width`", optional=True)
    )
    """Only for `"softclip"`."""

    def __check_init__(self):
        require_choice(self.kind, _SATURATIONS, "the kind of saturation")
        if (self.kind == "softclip") != (self.width is not None):
            raise ModelError("a width belongs to the saturation 'softclip', and only to it")
        if self.width is not None:
            require_values(lambda x: x > 0, self.width, "the width of a softclip", "positive")

    def saturate(self, u: jax.Array, lower: jax.Array, upper: jax.Array, state: State) -> jax.Array:
        """`u` between `lower` and `upper`; see `EffortLimits`."""
        if self.kind == "clip":
            return jnp.clip(u, lower, upper)
        if self.kind == "tanh":
            limit = jnp.where(u < 0, -lower, upper)
            # Both a limit of zero and an infinite one would give 0 times infinity, here or in the derivative.
            usable = (limit > 0) & jnp.isfinite(limit)
            scale = jnp.where(usable, limit, 1.0)
            return jnp.where(usable, scale * jnp.tanh(u / scale), jnp.where(limit > 0, u, 0.0))
        (width,) = self.gains(u.shape[-1], state, "width")

        def excess(x, limit):
            """The smooth positive part of `x - limit`."""
            finite = jnp.isfinite(limit)
            return jnp.where(finite, width * jax.nn.softplus((x - jnp.where(finite, limit, 0.0)) / width), 0.0)

        return u - excess(u, upper) + excess(-u, -lower)


class EffortLimits(_Saturation):
    """Limits of torque or force, in N m or N: `lower <= tau <= upper`.

    `kind`:

    - `"clip"`: exact. Beyond a limit the derivative by the command is zero, so no gradient leads back.
    - `"tanh"`: `limit tanh(u / limit)` on either side of zero, with a slope of 1 there; it deviates by 4 % at a third
      of the limit and by 24 % at the limit, and a gradient always remains. Needs `lower <= 0 <= upper`.
    - `"softclip"`: `u - w softplus((u - upper) / w) + w softplus((lower - u) / w)`, which is the clip with its
      corners rounded over a few `width` (`w`, N m or N).

    Infinite limits have no effect. `EffortLimits(model.effort_limit)` has the limits of the model. **Raises**
    `ModelError`.
    """

    upper: Float[Array, "*#batch #nu"] = eqx.field(converter=leaf_of("EffortLimits: `upper`"))
    lower: Float[Array, "*#batch #nu"] = eqx.field(
        default=None, converter=leaf_of("EffortLimits: `lower`", optional=True)
    )
    """`-upper` where it is not given."""

    def __post_init__(self):
        self.lower = -self.upper if self.lower is None else self.lower

    def __check_init__(self):
        require_values(lambda x: x >= 0, self.upper - self.lower, "upper - lower", "zero or positive")
        if self.kind == "tanh":
            require_values(lambda x: x >= 0, self.upper, "the upper limit of a tanh", "zero or positive")
            require_values(lambda x: x <= 0, self.lower, "the lower limit of a tanh", "zero or negative")

    def apply(self, command: Any, state: State) -> Float[Array, "*batch nu"]:
        u = signal(command, None, "EffortLimits", "efforts", state)
        lower, upper = self.gains(u.shape[-1], state, "lower", "upper")
        return self.saturate(u, lower, upper, state)


class DCMotorLimits(_Saturation):
    """The torque-speed curve of a DC motor at a limited voltage, with a limited current.

    `-m(-v) <= tau <= m(v)` with `m(v) = clip(stall_torque (1 - v / no_load_speed), 0, peak_torque)`: the torque that a
    motor can add falls with its speed, to zero at the speed at which it runs without load; braking, it has all of its
    peak torque. Quantities at the joint, behind the gear: torques times the ratio, speeds by it. (Spong, Hutchinson &
    Vidyasagar, Robot Modeling and Control, 2006, section 6.1, for the motor's equations.)

    Acts on all degrees of freedom `[*batch, nv]`, so it stands behind a `Transmission`. `kind` as in `EffortLimits`.
    **Raises** `ModelError`.
    """

    stall_torque: Float[Array, "*#batch #nv"] = eqx.field(converter=leaf_of("DCMotorLimits: `stall_torque`"))
    """N m or N."""
    no_load_speed: Float[Array, "*#batch #nv"] = eqx.field(converter=leaf_of("DCMotorLimits: `no_load_speed`"))
    """rad/s or m/s; infinite where speed does not matter."""
    peak_torque: Float[Array, "*#batch #nv"] = eqx.field(
        default=None, converter=leaf_of("DCMotorLimits: `peak_torque`", optional=True)
    )
    """The torque at the largest current, N m or N; `stall_torque` where it is not given."""

    def __post_init__(self):
        self.peak_torque = self.stall_torque if self.peak_torque is None else self.peak_torque

    def __check_init__(self):
        require_values(lambda x: x > 0, self.no_load_speed, "the no-load speed", "positive")
        require_values(lambda x: x >= 0, self.stall_torque, "the stall torque", "zero or positive")
        require_values(lambda x: x >= 0, self.peak_torque, "the peak torque", "zero or positive")

    def apply(self, command: Any, state: State) -> Float[Array, "*batch nv"]:
        n = state.v.shape[-1]
        u = signal(command, n, "DCMotorLimits", f"torques at the nv = {n} degrees of freedom", state)
        stall, peak, speed = self.gains(n, state, "stall_torque", "peak_torque", "no_load_speed")
        ratio = state.v / speed
        upper, lower = jnp.clip(stall * (1 - ratio), 0, peak), -jnp.clip(stall * (1 + ratio), 0, peak)
        return self.saturate(u, lower, upper, state)


class FirstOrderLag(AbstractActuator):
    """A drive that follows its command with a first-order lag: `T dy/dt = u - y`, solved exactly for a held command:

        y_k = y_(k-1) + (1 - exp(-dt / T)) (u_k - y_(k-1))

    The output is the value at the step's end, so a time constant of zero has no effect (MuJoCo: `filterexact` with
    `actearly`)."""

    time_constant: Float[Array, "*#batch #nu"] = eqx.field(converter=leaf_of("FirstOrderLag: `time_constant`"))
    """`T`, s."""
    dt: Float[Array, ""] = eqx.field(converter=leaf_of("FirstOrderLag: `dt`"))
    """The time between evaluations, the time step of the roll-out, s."""
    initial: Float[Array, "*#batch #nu"] = eqx.field(converter=leaf_of("FirstOrderLag: `initial`"), default=0.0)
    """`y` before the first step."""

    def __check_init__(self):
        require_values(lambda x: x >= 0, self.time_constant, "the time constant", "zero or positive")
        require_values(lambda x: x > 0, self.dt, "dt", "positive")

    def init(self, command: Any, state: State) -> Float[Array, "*batch nu"]:
        return _first_output(self, command, state, self.time_constant, self.dt[..., None])

    def __call__(self, carry: Any, command: Any, state: State, t: Any) -> tuple[Any, Float[Array, "*batch nu"]]:
        u = signal(command, carry.shape[-1], "FirstOrderLag", "efforts, as many as at the start", state)
        (T,) = self.gains(u.shape[-1], state, "time_constant")
        dt = self.dt.astype(u.dtype)[..., None]
        # The derivative of exp(-dt / T) at T = 0 is 0, but its factors are 0 and infinity.
        kept = jnp.where(T > 0, jnp.exp(-dt / jnp.where(T > 0, T, 1.0)), 0.0)
        y = u + kept * (carry - u)
        return y, y


class Delay(AbstractActuator):
    """A dead time of a whole number of steps: `y_k = u_(k - steps)`, and `initial` before the first command arrives.

    `steps` is static: another number compiles another program. **Raises** `ModelError` unless it is an integer >= 0."""

    steps: int = eqx.field(static=True)
    initial: Float[Array, "*#batch #nu"] = eqx.field(converter=leaf_of("Delay: `initial`"), default=0.0)

    def __check_init__(self):
        require_positive_integer(self.steps, "the number of steps of a delay", least=0)

    def init(self, command: Any, state: State) -> Any:
        """A ring of the last commands `[*batch, steps, nu]`, and the index of the oldest."""
        if not self.steps:
            return None
        initial = _first_output(self, command, state)
        return jnp.repeat(initial[..., None, :], self.steps, axis=-2), jnp.zeros((), jnp.int32)

    def __call__(self, carry: Any, command: Any, state: State, t: Any) -> tuple[Any, Float[Array, "*batch nu"]]:
        if not self.steps:
            return carry, signal(command, None, "Delay", "efforts", state)
        ring, oldest = carry
        u = signal(command, ring.shape[-1], "Delay", "efforts, as many as at the start", state)
        y = lax.dynamic_index_in_dim(ring, oldest, -2, keepdims=False)
        u = jnp.broadcast_to(u, y.shape)
        ring = lax.dynamic_update_index_in_dim(ring, u, oldest, -2)
        return (ring, (oldest + 1) % self.steps), y


def dof_indices(model: Model, joints: Sequence[str]) -> tuple[int, ...]:
    """The indices of the named joints in `v`. **Raises** `UnknownNameError`, `ModelError`."""
    if isinstance(joints, str):
        raise ModelError(f"joints is the string {joints!r}, but a sequence of names is needed: [{joints!r}]")
    return tuple(i for name in joints for i in range(model.nv)[model.v_index(name)])


def _first_output(block: FirstOrderLag | Delay, command: Any, state: State, *gains: jax.Array) -> jax.Array:
    """The output before the first step, with the batch axes of the command, the state and the gains."""
    shape = getattr(command, "shape", type(command).__name__)
    if not shape or isinstance(shape, str):
        name, got = type(block).__name__, shape or "a single number"
        raise ShapeError(f"the command of {name} is {got}, but an array [..., nu] is needed")
    batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in (state.v, command, block.initial, *gains)))
    (initial,) = block.gains(shape[-1], state, "initial")
    return jnp.broadcast_to(initial, (*batch, shape[-1]))
