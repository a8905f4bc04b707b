"""A pole on a cart that swings up."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxdyn._errors import require_arguments
from jaxdyn._types import Array, Float
from jaxdyn.learn._environment import AbstractTask, Environment, Transition
from jaxdyn.simulate import State
from jaxdyn.worlds import World, load_world

# The masses, the length of the pole and the limit of the force are those of Barto, Sutton and Anderson, Neuronlike
# adaptive elements that can solve difficult learning control problems, IEEE SMC 1983; the rail ends at 1.8 m.
_SCENE = """
<mujoco model="cart-pole">
  <option timestep="0.01" integrator="implicitfast"/>
  <default>
    <geom contype="0" conaffinity="0"/>
  </default>
  <worldbody>
    <geom name="rail" type="capsule" fromto="-2 0 0 2 0 0" size="0.02" rgba="0.5 0.5 0.5 1"/>
    <body name="cart">
      <joint name="slider" type="slide" axis="1 0 0" limited="true" range="-1.8 1.8" damping="0.0005"/>
      <geom type="box" size="0.2 0.1 0.1" mass="1" rgba="0.2 0.4 0.8 1"/>
      <body name="pole">
        <joint name="hinge" type="hinge" axis="0 1 0" damping="2e-6"/>
        <geom type="capsule" fromto="0 0 0 0 0 1" size="0.045" mass="0.1" rgba="0.9 0.5 0.2 1"/>
      </body>
    </body>
  </worldbody>
  <actuator>
    <motor name="force" joint="slider" gear="10" ctrllimited="true" ctrlrange="-1 1"/>
  </actuator>
</mujoco>
"""


class CartPoleSwingUp(AbstractTask):
    """A pole hangs on a cart, whose motor swings it up and holds it. `q = (position, angle)`, upright at 0.

    The reward is the height of the pole's tip, from -1 to 1, less squares of the position, the velocities and the
    control; it is smooth everywhere. No state ends an episode.
    """

    position_weight: float = 0.1
    velocity_weight: float = 0.01
    control_weight: float = 0.01
    start_range: float = 0.2
    """How far all coordinates and velocities at the start are at most from hanging at rest in the middle, m, rad."""

    def start(self, world: World, key: Array) -> State:
        """Draw a state about hanging at rest."""
        noise = self.start_range * jax.random.uniform(key, (4,), world.start.dtype, -1, 1)
        return world.state(noise[:2] + jnp.array([0, jnp.pi], noise.dtype), noise[2:])

    def observe(self, world: World, state: State, memory: dict[str, Any]) -> Float[Array, "5"]:
        """Return the position, the cosine and the sine of the angle, and the velocities."""
        position, angle = state.q
        return jnp.stack([position, jnp.cos(angle), jnp.sin(angle), *state.v])

    def reward(self, world: World, step: Transition, memory: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the height of the tip less the costs, and these parts."""
        position, angle = step.after.q
        parts = {
            "reward_upright": jnp.cos(angle),
            "reward_position": -self.position_weight * position**2,
            "reward_velocity": -self.velocity_weight * jnp.sum(step.after.v**2),
            "reward_ctrl": -self.control_weight * jnp.sum(step.control**2),
        }
        return sum(parts.values()), parts


def cartpole_swingup(**options: Any) -> Environment:
    """Return the environment of `CartPoleSwingUp`."""
    require_arguments(CartPoleSwingUp, (), options)
    return Environment(load_world(_SCENE), CartPoleSwingUp(**options), substeps=2, scene=_SCENE)
