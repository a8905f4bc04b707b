"""The ant of Gymnasium. Source: `ant_v5.py` of Gymnasium 1.3."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._types import Array, Float
from jaxdyn.learn._environment import Environment, Transition
from jaxdyn.learn.tasks._runner import AbstractSpatialRunner, external_forces, gymnasium_environment
from jaxdyn.simulate import State
from jaxdyn.worlds import World


class Ant(AbstractSpatialRunner):
    """Gymnasium's `Ant-v5`: four legs with eight motors run along x. An episode ends when the torso's height leaves its
    range.

    By default the forces of contacts are not observed, in difference to Gymnasium: 78 numbers, most of them zero, which
    a policy for one scene does not need. They do count in the reward.
    """

    forward_reward_weight: float = 1.0
    ctrl_cost_weight: float = 0.5
    contact_cost_weight: float = 5e-4
    healthy_reward: float = 1.0
    terminate_when_unhealthy: bool = eqx.field(static=True, default=True)
    healthy_z_range: tuple[float, float] = (0.2, 1.0)
    contact_force_range: tuple[float, float] = (-1.0, 1.0)
    reset_noise_scale: float = 0.1
    exclude_current_positions_from_observation: bool = eqx.field(static=True, default=True)
    include_cfrc_ext_in_observation: bool = eqx.field(static=True, default=False)

    def healthy(self, world: World, state: State) -> Array:
        """Return whether the height is in its range and the state is finite."""
        lower, upper = self.healthy_z_range
        finite = jnp.isfinite(state.q).all() & jnp.isfinite(state.v).all()
        return finite & (lower <= state.q[2]) & (state.q[2] <= upper)

    def velocity_noise(self, world: World, key: Array) -> Float[Array, "nv"]:
        """Draw the noise of the velocities at the start, of scale 1."""
        return jax.random.normal(key, (world.model.nv,), world.start.dtype)

    def position(self, world: World, q: Float[Array, "nq"]) -> Float[Array, ""]:
        """Return the position of the torso along x, m."""
        return q[0]

    def _forces(self, world: World, step: Transition) -> Float[Array, "n 6"]:
        return jnp.clip(external_forces(world, step.readings), *self.contact_force_range)

    def costs(self, world: World, step: Transition, memory: dict[str, Any]) -> dict[str, Any]:
        """Return the parts of the reward besides that of the speed."""
        contact = -self.contact_cost_weight * jnp.sum(self._forces(world, step) ** 2)
        return super().costs(world, step, memory) | {"reward_contact": contact}

    def remember(self, world: World, key: Array) -> dict[str, Any]:
        """Return the memory of the start."""
        forces = jnp.zeros((len(world.body_names) - 1, 6), world.start.dtype)
        seen = {"forces": forces} if self.include_cfrc_ext_in_observation else {}
        return super().remember(world, key) | seen

    def after_step(self, world: World, step: Transition, memory: dict[str, Any]) -> dict[str, Any]:
        """Return the memory after a step."""
        seen = {"forces": self._forces(world, step)} if self.include_cfrc_ext_in_observation else {}
        return super().after_step(world, step, memory) | seen

    def observe(self, world: World, state: State, memory: dict[str, Any]) -> Float[Array, "n"]:
        """Return the coordinates, by default without the positions along x and y, the velocities, and by option the
        forces of contacts on all bodies."""
        seen = [memory["forces"].ravel()] if self.include_cfrc_ext_in_observation else []
        q = state.q[2 * self.exclude_current_positions_from_observation :]
        return jnp.concatenate([q, world.to_qvel(state.q, state.v), *seen])


def ant(**options: Any) -> Environment:
    """Return the environment of `Ant`."""
    return gymnasium_environment(Ant, "ant.xml", 5, options)
