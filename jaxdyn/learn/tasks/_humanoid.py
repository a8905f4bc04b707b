"""The humanoid of Gymnasium. Source: `humanoid_v5.py` of Gymnasium 1.3."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms import center_of_mass
from jaxdyn.io.mjcf import compile_mjcf
from jaxdyn.learn._environment import Environment, Transition
from jaxdyn.learn.tasks._runner import (
    AbstractSpatialRunner,
    external_forces,
    gymnasium_environment,
    gymnasium_scene,
)
from jaxdyn.simulate import State
from jaxdyn.worlds import World

_SCENE = "humanoid.xml"
_ROOT = 6
"""The degrees of freedom of the free joint, on which no actuator acts."""


class Humanoid(AbstractSpatialRunner):
    """Gymnasium's `Humanoid-v5`: seventeen motors run along x. An episode ends when the torso's height leaves its
    range.

    By default only coordinates and velocities are observed, 45 numbers, in difference to Gymnasium, which adds 303 that
    follow from them or are mostly zero: inertias and velocities of bodies about the common center of mass (`cinert`,
    `cvel`), forces of actuators, and of contacts. With `include_cinert_in_observation` inertias are those of the file.
    """

    forward_reward_weight: float = 1.25
    ctrl_cost_weight: float = 0.1
    contact_cost_weight: float = 5e-7
    contact_cost_range: tuple[float, float] = (-float("inf"), 10.0)
    healthy_reward: float = 5.0
    terminate_when_unhealthy: bool = eqx.field(static=True, default=True)
    healthy_z_range: tuple[float, float] = (1.0, 2.0)
    reset_noise_scale: float = 1e-2
    exclude_current_positions_from_observation: bool = eqx.field(static=True, default=True)
    include_cinert_in_observation: bool = eqx.field(static=True, default=False)
    include_cvel_in_observation: bool = eqx.field(static=True, default=False)
    include_qfrc_actuator_in_observation: bool = eqx.field(static=True, default=False)
    include_cfrc_ext_in_observation: bool = eqx.field(static=True, default=False)
    masses: Float[Array, "nbody"] = eqx.field(converter=float_leaf, default=())
    moments: Float[Array, "nbody 3"] = eqx.field(converter=float_leaf, default=())
    """The masses and principal moments of inertia of the bodies in the file, for `cinert`."""

    def healthy(self, world: World, state: State) -> Array:
        """Return whether the height is in its range."""
        lower, upper = self.healthy_z_range
        return (lower < state.q[2]) & (state.q[2] < upper)

    def position(self, world: World, q: Float[Array, "nq"]) -> Float[Array, ""]:
        """Return the position of the center of mass along x, m."""
        return center_of_mass(world.model, q)[0]

    def costs(self, world: World, step: Transition, memory: dict[str, Any]) -> dict[str, Any]:
        """Return the parts of the reward besides that of the speed."""
        squares = jnp.sum(external_forces(world, step.readings) ** 2)
        contact = -jnp.clip(self.contact_cost_weight * squares, *self.contact_cost_range)
        return super().costs(world, step, memory) | {"reward_contact": contact}

    def remember(self, world: World, key: Array) -> dict[str, Any]:
        """Return the memory of the start."""
        rest = State(world.start, jnp.zeros(world.model.nv, world.start.dtype))
        wrenches = jnp.zeros((len(world.body_names), 6), rest.q.dtype)
        none = {"q": rest.q, "v": rest.v, "actuator_torque": rest.v, "body_wrenches": wrenches}
        return super().remember(world, key) | self._seen(world, rest, none)

    def after_step(self, world: World, step: Transition, memory: dict[str, Any]) -> dict[str, Any]:
        """Return the memory after a step."""
        return super().after_step(world, step, memory) | self._seen(world, step.after, step.readings)

    def _seen(self, world: World, state: State, readings: dict[str, Any]) -> dict[str, Any]:
        """Return what the observation of a state takes from the last solution of the constraints."""
        seen = {}
        if self.include_cinert_in_observation or self.include_cvel_in_observation:
            # How far that is from the state, as `memory["lag"]`.
            seen |= {"ahead_q": readings["q"] - state.q, "ahead_v": readings["v"] - state.v}
        if self.include_qfrc_actuator_in_observation:
            seen["torque"] = readings["actuator_torque"][_ROOT:]
        if self.include_cfrc_ext_in_observation:
            seen["forces"] = external_forces(world, readings)
        return seen

    def observe(self, world: World, state: State, memory: dict[str, Any]) -> Float[Array, "n"]:
        """Return the coordinates, by default without the positions along x and y, the velocities, and what the options
        add, in Gymnasium's order."""
        q = state.q[2 * self.exclude_current_positions_from_observation :]
        parts = [q, world.to_qvel(state.q, state.v)]
        if self.include_cinert_in_observation or self.include_cvel_in_observation:
            inertia, velocity = self._about_center(world, state.q + memory["ahead_q"], state.v + memory["ahead_v"])
            parts += [inertia] if self.include_cinert_in_observation else []
            parts += [velocity] if self.include_cvel_in_observation else []
        parts += [memory["torque"]] if self.include_qfrc_actuator_in_observation else []
        parts += [memory["forces"].ravel()] if self.include_cfrc_ext_in_observation else []
        return jnp.concatenate(parts)

    def _about_center(self, world: World, q: Any, v: Any) -> tuple[Array, Array]:
        """Return the inertias and the velocities of all bodies but the world about the common center of mass, along
        axes of the world: MuJoCo's `cinert` and `cvel`, flat."""
        motion = world.body_motion(State(q, v))
        arm = (motion.center - center_of_mass(world.model, q))[1:]
        axes, velocity = motion.axes[1:], motion.velocity[1:]
        mass, moments = (jnp.asarray(x, q.dtype)[1:] for x in (self.masses, self.moments))
        about = jnp.einsum("nij,nj,nkj->nik", axes, moments, axes)
        square = jnp.sum(arm**2, axis=1)[:, None, None] * jnp.eye(3, dtype=q.dtype)
        about += mass[:, None, None] * (square - arm[:, :, None] * arm[:, None, :])
        i, j = np.array([0, 1, 2, 0, 0, 1]), np.array([0, 1, 2, 1, 2, 2])
        inertia = jnp.concatenate([about[:, i, j], mass[:, None] * arm, mass[:, None]], axis=1)
        linear = velocity[:, :3] - jnp.cross(velocity[:, 3:], arm)
        return inertia.ravel(), jnp.concatenate([velocity[:, 3:], linear], axis=1).ravel()


def humanoid(**options: Any) -> Environment:
    """Return the environment of `Humanoid`."""
    m, _ = compile_mjcf(gymnasium_scene(_SCENE))
    own = {"masses": np.array(m.body_mass), "moments": np.array(m.body_inertia)}
    return gymnasium_environment(Humanoid, _SCENE, 5, own | options)
