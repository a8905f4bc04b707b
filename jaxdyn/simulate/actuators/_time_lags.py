"""Delays and lags of signals."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxdyn._errors import require_positive_integer
from jaxdyn._types import Array, Float, leaf_of
from jaxdyn.simulate.actuators._drive_block import AbstractDriveBlock, ActuatorState, require_values


class FirstOrderLag(AbstractDriveBlock):
    """A first-order lag `T dy/dt = u - y`, solved exactly for a signal that is held over a time step:

        y_k = y_(k-1) + (1 - exp(-dt / T)) (u_k - y_(k-1))

    The output is the value at the step's end, so a time constant of zero has no effect. On the way of a control it is
    MuJoCo's `filterexact` with `actearly`."""

    time_constant: Float[Array, "*batch"] = eqx.field(converter=leaf_of("FirstOrderLag: `time_constant`"))
    """`T`, s."""
    initial: Float[Array, "*batch"] = eqx.field(converter=leaf_of("FirstOrderLag: `initial`"), default=0.0)
    """`y` before the first step."""

    def __check_init__(self):
        require_values(lambda x: x >= 0, self.time_constant, "the time constant", "zero or positive")

    def start(self) -> tuple[Any, ...]:
        return (self.initial,)

    def advance(self, signal: Any, at: ActuatorState, memory: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        T = self.time_constant
        # The derivative of exp(-dt / T) at T = 0 is 0, but its factors are 0 and infinity.
        kept = jnp.where(T > 0, jnp.exp(-at.dt / jnp.where(T > 0, T, 1.0)), 0.0)
        y = signal + kept * (memory[0] - signal)
        return y, (y,)


class Delay(AbstractDriveBlock):
    """A dead time of a whole number of time steps: `y_k = u_(k - steps)`, and `initial` before the first signal
    arrives.

    `steps` is static: another number compiles another program. **Raises** `ModelError` unless it is an integer >= 0."""

    steps: int = eqx.field(static=True)
    initial: Float[Array, "*batch"] = eqx.field(converter=leaf_of("Delay: `initial`"), default=0.0)

    def __check_init__(self):
        require_positive_integer(self.steps, "the number of steps of a delay", least=0)

    def start(self) -> tuple[Any, ...]:
        return (self.initial,) * self.steps

    def advance(self, signal: Any, at: ActuatorState, memory: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        oldest, *later = *memory, signal
        return oldest, tuple(later)
