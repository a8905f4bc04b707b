"""The ant of Gymnasium. Source: `ant_v5.py` of Gymnasium 1.3."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._types import Array, Float
from jaxdyn.learn._environment import Environment
from jaxdyn.learn.tasks._runner import AbstractWalkingRunner, gymnasium_environment
from jaxdyn.simulate import State
from jaxdyn.worlds import World


class Ant(AbstractWalkingRunner):
    """Gymnasium's `Ant-v5`: four legs with eight motors run along x. An episode ends when the torso's height leaves its
    range."""

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.5
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = eqx.field(static=True, default=True)
    healthy_z_range: tuple[float, float] = (0.2, 1.0)
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = eqx.field(static=True, default=True)

    def healthy(self, world: World, state: State) -> Array:
        """Return whether the height is in its range and the state is finite."""
        lower, upper = self.healthy_z_range
        finite = jnp.isfinite(state.q).all() & jnp.isfinite(state.v).all()
        return finite & (lower <= state.q[2]) & (state.q[2] <= upper)

    def velocity_noise(self, world: World, key: Array) -> Float[Array, "nv"]:
        """Draw the noise of the velocities at the start, of scale 1."""
        return jax.random.normal(key, (world.model.nv,), world.start.dtype)

    def observe(self, world: World, state: State, memory: dict[str, Any]) -> Float[Array, "n"]:
        """Return the coordinates, by default without the positions along x and y, and the velocities."""
        q = state.q[2 * self.exclude_current_positions_from_observation :]
        return jnp.concatenate([q, world.to_qvel(state.q, state.v)])


def ant(**options: Any) -> Environment:
    """Return the environment of `Ant`."""
    return gymnasium_environment(Ant, "ant.xml", 5, options)
