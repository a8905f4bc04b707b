"""Worlds as roll-outs see them."""

import abc
from typing import Any, NamedTuple, Self

import equinox as eqx

from jaxdyn.model import Model
from jaxdyn.simulate._state import State
from jaxdyn.solve import SolverReport


class Advance(NamedTuple):
    """Time steps of a world in which all else is held."""

    state: State
    """The state at its end."""
    readings: Any
    """The values of the world's sensors at its start by their names, or None."""
    report: SolverReport
    """How well the constraints were solved: the largest error, and the sum of all iterations."""


class AbstractWorld(eqx.Module):
    """A model and all that is attached to it, with a time step of its own: what roll-outs need of it. It stands below
    `worlds`, so that roll-outs do not know what can be attached."""

    model: eqx.AbstractVar[Model]

    @property
    @abc.abstractmethod
    def nu(self) -> int:
        """The number of controls."""

    @property
    @abc.abstractmethod
    def na(self) -> int:
        """The number of activations."""

    @property
    @abc.abstractmethod
    def control_bounds(self) -> tuple[Any, Any]:
        """The least and the greatest controls `[*batch, nu]`; infinite where there is no bound."""

    @property
    @abc.abstractmethod
    def body_names(self) -> tuple[str, ...]:
        """The bodies on which wrenches act."""

    @property
    @abc.abstractmethod
    def timestep(self) -> Any:
        """The time step, s."""

    @abc.abstractmethod
    def with_timestep(self, dt: Any) -> Self:
        """The world with another time step, s."""

    @abc.abstractmethod
    def rate(self, t: Any, state: State, control: Any = None) -> State:
        """The rate of a state, as a state."""

    @abc.abstractmethod
    def axes(self) -> list[int]:
        """For each array, in the order of the leaves, the number of axes that are not batch axes."""

    @abc.abstractmethod
    def start_of(self, state: State, arrays: dict[str, tuple[Any, int]]) -> State:
        """The state with nothing missing and with all batch axes, those of the world and of further arrays included.
        These come with the number of their axes that are not batch axes. **Raises** `ShapeError`."""

    @abc.abstractmethod
    def advance(
        self, state: State, control: Any, torque: Any, wrenches: Any, *, sensed: bool = False, substeps: int = 1
    ) -> Advance:
        """Some time steps from a state with nothing missing; with `sensed` also the readings of the sensors at their
        start, from the same solution of the constraints."""

    @abc.abstractmethod
    def no_report(self, state: State) -> SolverReport:
        """The report of no step."""
