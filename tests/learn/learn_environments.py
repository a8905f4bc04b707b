"""A small environment for tests: a box with a hinged arm and a motor falls on a plane, and must not turn over."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn import State, World, load_world
from jaxdyn.learn import AbstractTask, Environment

SCENE = """
<mujoco><option timestep="0.004" integrator="implicitfast" tolerance="1e-14" iterations="200"/>
<worldbody><geom type="plane" size="5 5 .1"/>
<body name="trunk" pos="0 0 .15"><freejoint/><geom type="sphere" size=".1" friction=".8"/>
<body name="arm" pos=".12 0 0"><joint name="j" axis="0 1 0" damping=".05"/><geom type="capsule" fromto="0 0 0 .2 0 0"
 size=".03"/></body></body></worldbody>
<actuator><motor joint="j" gear="2" ctrlrange="-1 1" ctrllimited="true"/>
<general joint="j" gainprm=".5" dyntype="filter" dynprm=".1" ctrlrange="-2 1" ctrllimited="true"/></actuator></mujoco>
"""


class Roll(AbstractTask):
    """The trunk rolls along x at a speed that each episode draws, and ends it where the arm is far from its middle."""

    dictionary: bool = eqx.field(static=True, default=False)
    """Whether observations are dictionaries."""

    def start(self, world: World, key: Any) -> State:
        keys = jax.random.split(key)
        v = 0.5 * jax.random.normal(keys[0], world.model.nv, world.start.dtype)
        return State(world.start, v, 0.1 * jax.random.normal(keys[1], (world.na,), world.start.dtype))

    def remember(self, world: World, key: Any) -> dict[str, Any]:
        return {"command": jax.random.uniform(key, (), world.start.dtype), "noise": key}

    def observe(self, world: World, state: State, memory: dict[str, Any]) -> Any:
        seen = jnp.concatenate([state.q[2:], state.v, memory["command"][None]])
        return {"state": seen, "privileged_state": jnp.append(seen, state.activation)} if self.dictionary else seen

    def disturb(self, world: World, state: State, memory: dict[str, Any]) -> State:
        pushed = (state.time > 0.05) & (state.time < 0.06)
        return eqx.tree_at(lambda x: x.v, state, state.v.at[1].add(0.3 * pushed))

    def reads(self) -> tuple[str, ...]:
        return ("actuator_torque",)

    def reward(self, world: World, step: Any, memory: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        speed = (step.after.q[0] - step.before.q[0]) / step.dt
        effort = jnp.sum(step.control**2) + jnp.sum(step.readings["actuator_torque"] ** 2)
        return speed * memory["command"] - 0.1 * effort + step.after.v @ step.after.v, {"speed": speed}

    def ended(self, world: World, state: State, memory: dict[str, Any]) -> Any:
        return jnp.abs(state.q[7]) > 0.6


def rolling(dtype: Any = jnp.float64, dictionary: bool = False) -> Environment:
    """The environment in a precision."""
    return Environment(load_world(SCENE).astype(dtype), Roll(dictionary), substeps=2, scene=SCENE)
