"""Environments for the training loops of other libraries. Each is imported when its adapter is first made."""

from __future__ import annotations

from typing import Any

from jaxdyn._errors import naming_arguments
from jaxdyn.learn._environment import AbstractEnvironment


@naming_arguments
def as_brax(env: AbstractEnvironment) -> Any:
    """Return the environment as a `brax.envs.Env`, for Brax's trainers and the wrappers of MuJoCo Playground.

    An `Environment` itself has what Brax's wrappers and its PPO ask for. This is needed by trainers that require the
    class (SAC and APG without `wrap_env_fn`), and for randomization: a `randomization_fn` of Brax or Playground is a
    function `(world, rng) -> (batched world, in_axes)`, whose worlds the wrappers put into the environment by its
    attribute `sys` or `mjx_model`. Time limits and new starts are those of the wrappers, so `Episodes` is not needed.

    **Raises** `ImportError` without Brax.
    """
    from jaxdyn.learn._brax import BraxEnvironment

    return BraxEnvironment(env)


@naming_arguments
def as_gymnasium(
    env: AbstractEnvironment, num_envs: int | None = None, *, autoreset_mode: str | Any = "NextStep"
) -> Any:
    """Return a `gymnasium.vector.VectorEnv` of `num_envs` environments, or without a number one `gymnasium.Env`.

    Observations, rewards and ends are NumPy arrays. Actions are in -1 to 1. The time limit of `Episodes` is a
    truncation, which excludes a termination in the same step; an `Environment` has no time limit. `infos` has the
    metrics of the task by name. The step of all environments is one compiled call.

    `autoreset_mode` is Gymnasium's: with `"NextStep"` the step after an end ignores the action and starts an episode,
    with `"SameStep"` the step that ends an episode starts the next one, and its last observation and metrics are
    `infos["final_obs"]` and `["final_info"]`, and with `"Disabled"` `reset(options={"reset_mask": ended})` starts it.
    `reset(seed=s)` gives environment `i` the seed `s + i`, with which the single environment moves alike.

    **Raises** `ImportError` without Gymnasium, and `ModelError` for a number of environments that is not positive and
    for another mode. Steps raise `ShapeError`, and Gymnasium's `ResetNeeded` after an end without a reset.
    """
    from jaxdyn.learn._gymnasium import GymnasiumEnvironment, GymnasiumVectorEnvironment

    if num_envs is None:
        return GymnasiumEnvironment(env)
    return GymnasiumVectorEnvironment(env, num_envs, autoreset_mode)


@naming_arguments
def as_torch(env: AbstractEnvironment) -> Any:
    """Return the environment with steps that PyTorch differentiates: see `TorchEnvironment`.

    **Raises** `ImportError` without PyTorch.
    """
    from jaxdyn.learn._torch import TorchEnvironment

    return TorchEnvironment(env)
