"""Runners in a vertical plane: the hopper, the half cheetah and the walker of Gymnasium.

Source: `hopper_v5.py`, `half_cheetah_v5.py` and `walker2d_v5.py` of Gymnasium 1.3.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._types import Array, Float
from jaxdyn.learn._environment import Environment
from jaxdyn.learn.tasks._runner import AbstractFallingRunner, AbstractRunner, gymnasium_environment
from jaxdyn.simulate import State
from jaxdyn.worlds import World

_FASTEST = 10.0
"""The bound of the velocities that hopper and walker observe, m/s and rad/s."""


def _inside(x: Any, bounds: tuple[float, float]) -> Array:
    """Return whether all numbers are between the bounds."""
    lower, upper = bounds
    return jnp.all((lower < x) & (x < upper))


class HalfCheetah(AbstractRunner):
    """Gymnasium's `HalfCheetah-v5`: a cheetah with six motors runs in a plane. No state ends an episode."""

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.1
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = eqx.field(static=True, default=True)

    def healthy(self, world: World, state: State) -> Array:
        """Return True: nothing counts as a fall."""
        return jnp.ones((), bool)

    def velocity_noise(self, world: World, key: Array) -> Float[Array, "nv"]:
        """Draw the noise of the velocities at the start, of scale 1."""
        return jax.random.normal(key, (world.model.nv,), world.start.dtype)

    def observe(self, world: World, state: State, memory: dict[str, Any]) -> Float[Array, "n"]:
        """Return the coordinates, by default without the position along x, and the velocities."""
        return jnp.concatenate([state.q[int(self.exclude_current_positions_from_observation) :], state.v])


class Hopper(AbstractFallingRunner):
    """Gymnasium's `Hopper-v5`: one leg with three motors hops in a plane. An episode ends when the torso leaves the
    healthy ranges of height and pitch."""

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 1e-3
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = eqx.field(static=True, default=True)
    healthy_state_range: tuple[float, float] = (-100.0, 100.0)
    healthy_z_range: tuple[float, float] = (0.7, float("inf"))
    healthy_angle_range: tuple[float, float] = (-0.2, 0.2)
    reset_noise_scale: float = 5e-3
    exclude_current_positions_from_observation: bool = eqx.field(static=True, default=True)

    def healthy(self, world: World, state: State) -> Array:
        """Return whether height, pitch, and all other coordinates and velocities are in their ranges."""
        others = jnp.concatenate([state.q[2:], state.v])
        upright = _inside(state.q[1], self.healthy_z_range) & _inside(state.q[2], self.healthy_angle_range)
        return upright & _inside(others, self.healthy_state_range)

    def observe(self, world: World, state: State, memory: dict[str, Any]) -> Float[Array, "n"]:
        """Return the coordinates, by default without the position along x, and the velocities cut to -10 to 10."""
        v = jnp.clip(state.v, -_FASTEST, _FASTEST)
        return jnp.concatenate([state.q[int(self.exclude_current_positions_from_observation) :], v])


class Walker(AbstractFallingRunner):
    """Gymnasium's `Walker2d-v5`: two legs with six motors walk in a plane. An episode ends when the torso leaves the
    healthy ranges of height and pitch."""

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 1e-3
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = eqx.field(static=True, default=True)
    healthy_z_range: tuple[float, float] = (0.8, 2.0)
    healthy_angle_range: tuple[float, float] = (-1.0, 1.0)
    reset_noise_scale: float = 5e-3
    exclude_current_positions_from_observation: bool = eqx.field(static=True, default=True)

    def healthy(self, world: World, state: State) -> Array:
        """Return whether height and pitch are in their ranges."""
        return _inside(state.q[1], self.healthy_z_range) & _inside(state.q[2], self.healthy_angle_range)

    def observe(self, world: World, state: State, memory: dict[str, Any]) -> Float[Array, "n"]:
        """Return the coordinates, by default without the position along x, and the velocities cut to -10 to 10."""
        v = jnp.clip(state.v, -_FASTEST, _FASTEST)
        return jnp.concatenate([state.q[int(self.exclude_current_positions_from_observation) :], v])


def half_cheetah(**options: Any) -> Environment:
    """Return the environment of `HalfCheetah`."""
    return gymnasium_environment(HalfCheetah, "half_cheetah.xml", 5, options)


def hopper(**options: Any) -> Environment:
    """Return the environment of `Hopper`."""
    return gymnasium_environment(Hopper, "hopper.xml", 4, options)


def walker(**options: Any) -> Environment:
    """Return the environment of `Walker`."""
    return gymnasium_environment(Walker, "walker2d_v5.xml", 4, options)
