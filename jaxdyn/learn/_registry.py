"""Environments by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from jaxdyn._errors import look_up
from jaxdyn.learn import tasks
from jaxdyn.learn._environment import Environment

_ENVIRONMENTS: dict[str, Callable[..., Environment]] = {
    "cartpole_swingup": tasks.cartpole_swingup,
    "hopper": tasks.hopper,
    "half_cheetah": tasks.half_cheetah,
    "walker": tasks.walker,
    "ant": tasks.ant,
    "humanoid": tasks.humanoid,
    "quadruped": tasks.quadruped,
}


def environments() -> tuple[str, ...]:
    """Return the names that `environment` knows."""
    return tuple(_ENVIRONMENTS)


def environment(name: str, *, dtype: Any = jnp.float32, **options: Any) -> Environment:
    """Return the environment with one of the names of `environments`.

    **Arguments**

    - `dtype`: the precision of the world and of all that the environment returns.
    - `options`: those of its task, such as `environment("ant", ctrl_cost_weight=0.1)`.

    **Raises** `UnknownNameError`, with the nearest names, for one that it does not know; `ArgumentError` for an option
    that the task does not have; `ImportError`, which says what to install, without a package that has the robot's file.
    """
    look_up(name, _ENVIRONMENTS, "environment")
    env = _ENVIRONMENTS[name](**options)
    return Environment(env.world.astype(dtype), env.task, substeps=env.n_substeps, scene=env.scene)
