"""Sample robots: `jaxdyn.samples.arm()` and others, each with published parameters and their source."""

from jaxdyn.model._samples import (
    acrobot,
    arm,
    cartpole,
    chain,
    double_pendulum,
    pendulum,
    quadruped,
    random_tree,
)

__all__ = ["acrobot", "arm", "cartpole", "chain", "double_pendulum", "pendulum", "quadruped", "random_tree"]
