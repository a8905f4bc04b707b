"""Common parts of the runners of Gymnasium: the scene's file, starts, and rewards of speed."""

from __future__ import annotations

import abc
import warnings
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import RobotFileError, require_arguments
from jaxdyn._extras import import_extra
from jaxdyn._types import Array, Float
from jaxdyn.algorithms import center_of_mass
from jaxdyn.learn._environment import AbstractTask, Environment, Transition
from jaxdyn.simulate import State
from jaxdyn.worlds import World, load_world


def gymnasium_scene(file: str) -> Path:
    """Return the path of a scene of the installed package `gymnasium`.

    **Raises** `ImportError` without Gymnasium, `RobotFileError` without the scene.
    """
    package = import_extra("gymnasium", f"read the scene {file}", "learn")
    path = Path(package.__file__).parent / "envs" / "mujoco" / "assets" / file
    if not path.exists():
        raise RobotFileError(f"{path} does not exist; Gymnasium 1.0 and later have it: pip install 'gymnasium>=1.0'")
    return path


def gymnasium_environment(task: type[AbstractTask], file: str, substeps: int, options: dict[str, Any]) -> Environment:
    """Return the environment of a task with options in a scene of Gymnasium. **Raises** `ArgumentError` for an option
    that the task does not have; as `gymnasium_scene` does."""
    require_arguments(task, (), options)
    path = gymnasium_scene(file)
    with warnings.catch_warnings():
        # The half cheetah's file has an attribute that MuJoCo wants to drop; it still reads it.
        warnings.filterwarnings("ignore", message=".*settotalmass.*deprecated")
        world = load_world(path)
    return Environment(world, task(**options), substeps=substeps, scene=path)


class AbstractRunner(AbstractTask):
    """A robot that is rewarded for speed along x, as in Gymnasium. The fields have Gymnasium's names and defaults."""

    forward_reward_weight: eqx.AbstractVar[float]
    ctrl_cost_weight: eqx.AbstractVar[float]
    reset_noise_scale: eqx.AbstractVar[float]
    exclude_current_positions_from_observation: eqx.AbstractVar[bool]

    @abc.abstractmethod
    def healthy(self, world: World, state: State) -> Array:
        """Return whether a state is not a fall."""

    def velocity_noise(self, world: World, key: Array) -> Float[Array, "nv"]:
        """Draw the noise of the velocities at the start, of scale 1."""
        return jax.random.uniform(key, (world.model.nv,), world.start.dtype, -1, 1)

    def start(self, world: World, key: Array) -> State:
        """Draw a state about the scene's own, with noise in all coordinates and velocities."""
        of_q, of_v = jax.random.split(key)
        noise = jax.random.uniform(of_q, world.start.shape, world.start.dtype, -1, 1)
        q = world.start + self.reset_noise_scale * noise
        return world.state(q, world.from_qvel(q, self.reset_noise_scale * self.velocity_noise(world, of_v)))

    def speed(self, world: World, step: Transition, memory: dict[str, Any]) -> Float[Array, ""]:
        """Return the mean speed along x over a step, m/s."""
        return (step.after.q[0] - step.before.q[0]) / step.dt

    def costs(self, world: World, step: Transition, memory: dict[str, Any]) -> dict[str, Any]:
        """Return the parts of the reward besides that of the speed."""
        return {"reward_ctrl": -self.ctrl_cost_weight * jnp.sum(step.control**2)}

    def reward(self, world: World, step: Transition, memory: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the weighted speed less the costs, and these parts."""
        parts = {"reward_forward": self.forward_reward_weight * self.speed(world, step, memory)}
        parts |= self.costs(world, step, memory)
        parts = {name: jnp.asarray(x, step.after.q.dtype) for name, x in parts.items()}
        return sum(parts.values()), parts


class AbstractFallingRunner(AbstractRunner):
    """A runner that can fall: it has a reward for every step without a fall, and a fall ends the episode."""

    healthy_reward: eqx.AbstractVar[float]
    terminate_when_unhealthy: eqx.AbstractVar[bool]

    def costs(self, world: World, step: Transition, memory: dict[str, Any]) -> dict[str, Any]:
        """Return the parts of the reward besides that of the speed."""
        parts = super().costs(world, step, memory)
        return parts | {"reward_survive": jnp.where(self.healthy(world, step.after), self.healthy_reward, 0.0)}

    def ended(self, world: World, state: State, memory: dict[str, Any]) -> Array:
        """Return whether the robot fell."""
        return ~self.healthy(world, state) if self.terminate_when_unhealthy else jnp.zeros((), bool)


class AbstractSpatialRunner(AbstractFallingRunner):
    """A runner that moves in space. Gymnasium measures its speed and its forces where MuJoCo computed them last, at the
    last stage of RK4 and not at the end of the step. So does this: `memory["lag"]` is how far that is ahead of the end,
    m, and forces are those of the last solution of the constraints."""

    @abc.abstractmethod
    def position(self, world: World, q: Float[Array, "nq"]) -> Float[Array, ""]:
        """Return the position along x by which the speed is measured, m."""

    def reads(self) -> tuple[str, ...]:
        """Return what is read in a step."""
        return "q", "v", "actuator_torque", "body_wrenches"

    def remember(self, world: World, key: Array) -> dict[str, Any]:
        """Return the memory of the start."""
        return {"lag": jnp.zeros((), world.start.dtype)}

    def after_step(self, world: World, step: Transition, memory: dict[str, Any]) -> dict[str, Any]:
        """Return the memory after a step."""
        return {"lag": self._lag(world, step)}

    def _lag(self, world: World, step: Transition) -> Float[Array, ""]:
        return self.position(world, step.readings["q"]) - self.position(world, step.after.q)

    def speed(self, world: World, step: Transition, memory: dict[str, Any]) -> Float[Array, ""]:
        """Return the mean speed along x over a step, m/s."""
        shift = self.position(world, step.after.q) - self.position(world, step.before.q)
        return (shift + self._lag(world, step) - memory["lag"]) / step.dt


def external_forces(world: World, readings: dict[str, Any]) -> Float[Array, "n 6"]:
    """Return the moments about the common center of mass and the forces of contacts on all bodies but the world:
    MuJoCo's `cfrc_ext[1:]` for one robot, N m and N."""
    wrench = readings["body_wrenches"]
    center = world.body_motion(State(readings["q"], readings["v"])).center
    arm = center - center_of_mass(world.model, readings["q"])
    moment = wrench[:, 3:] + jnp.cross(arm, wrench[:, :3])
    return jnp.concatenate([moment, wrench[:, :3]], axis=1)[1:]
