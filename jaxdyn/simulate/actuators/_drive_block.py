"""The interface of the blocks on the way from the control of an actuator to its joint.

A world stacks equal blocks of several actuators and calls them once, on arrays with an entry for each. All methods work
element by element, so that a block holds the numbers of one actuator, `[*batch]` each, and its methods also take those
of many. Blocks are equinox modules whose numbers are array leaves: gradients reach them, and new values compile nothing
again.
"""

import abc
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError

UNLIMITED = 1e29
"""Limits beyond are none: worlds have 1e30 in the place of infinite ones, which native programs take for errors."""


class ActuatorState(NamedTuple):
    """The state of actuators as their blocks see it."""

    length: Any
    """The coordinate of the joint times the gear, for actuators on joints with one axis, rad or m."""
    velocity: Any
    """Its rate, rad/s or m/s."""
    dt: Any
    """The time step, s."""


class AbstractDriveBlock(eqx.Module):
    """A block on the way of a signal: of a control to an actuator (`Actuator.control_path`), or of the actuator's force
    to its limits (`Actuator.force_path`)."""

    beyond_limits: ClassVar[bool] = False
    """Whether what the block adds to a force is not the motor's, so that limits of forces and joints do not hold it."""

    def start(self) -> tuple[Any, ...]:
        """The numbers that the block remembers, at the start; none by default. They are part of `State.activation`."""
        return ()

    @abc.abstractmethod
    def advance(self, signal: Any, at: ActuatorState, memory: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        """The output of the block for a `signal` that is held over the time step, and what it remembers after that."""


class AbstractMemorylessBlock(AbstractDriveBlock):
    """A block whose output depends on the present signal and state alone."""

    @abc.abstractmethod
    def apply(self, signal: Any, at: ActuatorState) -> Any:
        """The output of the block."""

    def advance(self, signal: Any, at: ActuatorState, memory: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        return self.apply(signal, at), ()


class AbstractJointEffect(AbstractMemorylessBlock):
    """A block that adds a force which the motor does not produce, such as friction: limits do not hold it."""

    beyond_limits: ClassVar[bool] = True

    @abc.abstractmethod
    def torque(self, at: ActuatorState) -> Any:
        """The force that the effect adds, N m or N."""

    def apply(self, signal: Any, at: ActuatorState) -> Any:
        return signal + self.torque(at)


def require_values(ok: Callable[[np.ndarray], Any], x: Any, name: str, needed: str) -> None:
    """Raise `ModelError` unless all of `x` is `ok`. Under a JAX transformation values are unknown and not checked."""
    if not isinstance(x, Tracer) and not np.all(ok(np.asarray(x))):
        raise ModelError(f"{name} is {np.array2string(np.asarray(x), threshold=8)}, but it must be {needed}")
