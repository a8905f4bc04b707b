"""Environments as Brax has them."""

from __future__ import annotations

from typing import Any

import equinox as eqx

from jaxdyn._extras import import_extra
from jaxdyn.learn._environment import AbstractEnvironment, EnvironmentState
from jaxdyn.worlds import World

_envs = import_extra("brax.envs", "train with Brax", "brax")


class BraxEnvironment(_envs.Env):
    """An environment whose world can be replaced, as the wrappers do that randomize it."""

    def __init__(self, env: AbstractEnvironment):
        self._env = env

    def reset(self, rng: Any) -> EnvironmentState:
        """Return the start of an episode."""
        return self._env.reset(rng)

    def step(self, state: EnvironmentState, action: Any) -> EnvironmentState:
        """Return what follows when an action is held."""
        return self._env.step(state, action)

    @property
    def observation_size(self) -> Any:
        """The number of observations, or for a dictionary of observations those of its parts."""
        return self._env.observation_size

    @property
    def action_size(self) -> int:
        """The number of actions."""
        return self._env.action_size

    @property
    def backend(self) -> str:
        """The name of the simulator."""
        return self._env.backend

    @property
    def sys(self) -> World:
        """The world."""
        return self._env.unwrapped.world

    @sys.setter
    def sys(self, world: World) -> None:
        self._env = eqx.tree_at(lambda env: env.unwrapped.world, self._env, world)

    # The names that the wrappers of MuJoCo Playground read and set.
    mjx_model = _mjx_model = sys

    def __getattr__(self, name: str) -> Any:
        # Copies ask for attributes before there is an environment.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._env, name)
