"""Blocks on the ways of controls and forces of a world's actuators: equal blocks stacked, and evaluated on rows."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.simulate import AbstractDriveBlock, ActuatorState
from jaxdyn.tree import rows_of, take_rows
from jaxdyn.worlds._parts import Part, bounded, stacked, sums


class StackedBlocks(Part):
    """Equal blocks of some actuators, whose numbers are stacked."""

    numbers: tuple[int, ...] = eqx.field(static=True)
    """The numbers of the actuators."""
    first: int = eqx.field(static=True)
    """The first of the activations that they remember: number after number, with an entry for each actuator."""
    block: AbstractDriveBlock
    """Its arrays are `[*batch, n]`."""

    @property
    def remembered(self) -> int:
        """The number of activations that they remember."""
        return len(self.numbers) * len(self.block.start())

    def axes(self) -> list[int]:
        return [1] * len(jax.tree.leaves(self.block))

    def on_rows(self, robot: Robot) -> Any:
        return dataclasses.replace(self, block=jax.tree.map(lambda x: rows_of(x, robot.rank), self.block))


type Path = Sequence[AbstractDriveBlock]
"""The blocks on the way of a signal of one actuator, in their order."""
type Paths = Mapping[str, Path]
"""Those of actuators, by their names."""


def stacked_paths(names: Sequence[str], paths: Sequence[Path], first: int, what: str) -> tuple[StackedBlocks, ...]:
    """Return the blocks on the ways of a signal of all actuators, equal ones as one, in an order that is right for each
    actuator. `first`: the number of activations in front of theirs; `what` names the argument.

    **Raises** `ModelError` for what is no block, and for joint effects on the ways of controls.
    """
    for name, path in zip(names, paths, strict=True):
        for block in path:
            found = f"actuator {name!r}: {what} has {type(block).__name__!r}"
            if not isinstance(block, AbstractDriveBlock):
                raise ModelError(f"{found}; a block such as Delay or DCMotorLimits is needed")
            if block.beyond_limits and what == "control_path":
                raise ModelError(f"{found}, which adds a force and belongs to force_path")
    out = []
    for level in itertools.zip_longest(*paths):
        groups: dict[Any, list[int]] = {}
        for i, block in enumerate(level):
            if block is not None:
                groups.setdefault(jax.tree.structure(block), []).append(i)
        for structure, numbers in groups.items():
            leaves = zip(*(jax.tree.leaves(level[i]) for i in numbers), strict=True)
            block = jax.tree.unflatten(structure, [bounded(stacked(x)) for x in leaves])
            out.append(StackedBlocks(tuple(numbers), first, block))
            first += out[-1].remembered
    return tuple(out)


def starts(paths: Sequence[StackedBlocks], dtype: Any) -> list[Any]:
    """Return what blocks remember at the start, `[*batch, n]` each, in the order of the activations."""
    return [
        jnp.broadcast_to(jnp.asarray(x, dtype), (*np.shape(x)[:-1], len(path.numbers)))
        for path in paths
        for x in path.block.start()
    ]


def passed(
    robot: Robot, paths: Sequence[StackedBlocks], signal: Any, slope: Any, at: ActuatorState, activation: Any
) -> tuple[Any, Any, dict[int, Any]]:
    """Return a signal `[nu, *batch]` behind blocks, its derivative by the velocity of its actuator, and the rates at
    which what the blocks remember changes over a time step, by the first of the activations that these are."""
    rates: dict[int, Any] = {}
    for path in paths:
        numbers, count = np.array(path.numbers), len(path.numbers)
        size = len(path.block.start())
        memory = tuple(activation[path.first + k * count : path.first + (k + 1) * count] for k in range(size))
        u, du, length, velocity = (robot.broadcast(take_rows(x, numbers)) for x in (signal, slope, *at[:2]))

        through = functools.partial(_advanced, path.block, length, at.dt, memory)
        out, by_velocity, after = jax.jvp(through, (u, velocity), (du, jnp.ones_like(velocity)), has_aux=True)
        signal, slope = (_put(x, numbers, y) for x, y in ((signal, out), (slope, by_velocity)))
        if memory:
            changed = [(robot.broadcast(new) - old) / at.dt for new, old in zip(after, memory, strict=True)]
            rates[path.first] = jnp.concatenate(changed)
    return signal, slope, rates


def _advanced(block: AbstractDriveBlock, length: Any, dt: Any, memory: Any, u: Any, velocity: Any) -> Any:
    return block.advance(u, ActuatorState(length, velocity, dt), memory)


def _put(x: Any, numbers: np.ndarray, values: Any) -> Any:
    """Return rows with others at their numbers."""
    if len(numbers) == x.shape[0]:
        return take_rows(values, np.argsort(numbers))
    keep = np.ones(x.shape[0])
    keep[numbers] = 0
    return x * jnp.asarray(keep, x.dtype).reshape((-1,) + (1,) * (x.ndim - 1)) + sums(values, numbers, x.shape[0])
