"""Algorithms that train policies by gradients through the simulation, as settings of one loop."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp

from jaxdyn._errors import ModelError, require_positive_integer
from jaxdyn._types import Array
from jaxdyn.learn._environment import AbstractEnvironment


class AbstractAlgorithm(eqx.Module):
    """Settings of a training. `actors` environments run for `rollout` steps, the policy takes a step along its
    gradient, critics are fitted to what was seen, and the environments go on from where they are.

    **Raises** `ModelError` for settings that do not fit.
    """

    actors: int = eqx.field(static=True, default=64)
    """The number of environments side by side."""
    rollout: int = eqx.field(static=True, default=32)
    """The steps of each environment in an update."""
    horizon: float = 32
    """The steps over which gradients are carried back. Beyond them the value of the critics counts."""
    discount_time: float = 2.5
    """The time after which a reward counts less by a factor e, s; it may be infinite. A time and not a number of steps,
    because a robot needs as long to fall, whatever the steps of its environment."""
    policy_lambda: float = 1.0
    """The largest lambda of the returns whose gradient the policy follows, with which a training begins: the value
    after each step counts with `1 - lambda`, what the simulation says about later steps with `lambda`. 1 uses the
    values at the horizon alone."""
    least_lambda: float = 0.5
    """The least of these lambdas, where they are adapted."""
    lambda_rate: float = 0.01
    """How fast that lambda is adapted to the growth of gradients; 0 leaves it."""
    critic_lambda: float = 0.95
    """The lambda of the TD(lambda) returns to which critics are fitted."""
    policy_rate: float = 2e-3
    """The learning rate of the policy at the start. It falls linearly to almost nothing."""
    last_exploration: float = 0.1
    """The part of the policy's standard deviation with which it explores at the end. That part falls linearly from 1,
    so that critics come to know the policy that is used, which does not explore."""
    average: float = 0.97
    """The part of the mean policy, which a training returns, that is left after an update; the rest is that of the
    policy. An episode of 1000 steps lasts for 31 updates, and no single policy has seen one of its own."""
    critic_rate: float = 2e-3
    """The same of the critics."""
    critics: int = eqx.field(static=True, default=1)
    """The number of critics, the least of whose values counts. With 0, what comes after the horizon is left out."""
    kept: int = eqx.field(static=True, default=8)
    """The number of the last roll-outs to which critics are fitted. One alone has a small part of an episode."""
    critic_passes: int = eqx.field(static=True, default=1)
    """The passes of an update over what is kept, or the most of them with `until_converged`."""
    until_converged: bool = eqx.field(static=True, default=False)
    """Whether the passes of an update end when one lowers the loss by less than a part `critic_tolerance`."""
    critic_tolerance: float = 0.01
    """See `until_converged`."""
    minibatches: int = eqx.field(static=True, default=4)
    """The steps of the critics' optimizer in a pass for each roll-out that is kept; they share its times."""
    target_share: float = 0.2
    """The part of the target critics that is left after an update; the rest is that of the critics."""
    clip: float = 1.0
    """The largest norm of a gradient with respect to the weights of a network."""
    gradient_limit: float = 10.0
    """How often its usual size, the geometric mean over the last updates, the gradient with respect to a state may
    have; a larger one, as of a hard contact, is scaled down before it goes on to the step before."""
    growth_limit: float = 3.0
    """The growth of gradients over the horizon that is wanted, where lambda or the horizon is adapted."""
    horizon_rate: float = 0.0
    """How fast the horizon is adapted; 0 leaves it."""
    policy_widths: tuple[int, ...] = eqx.field(static=True, default=(128, 64, 32))
    """The widths of the policy's hidden layers."""
    critic_widths: tuple[int, ...] = eqx.field(static=True, default=(64, 64))
    """The widths of the critics' hidden layers."""

    def __check_init__(self):
        for name in ("actors", "rollout", "minibatches", "kept"):
            require_positive_integer(getattr(self, name), f"{type(self).__name__}: {name}")
        for name in ("critics", "critic_passes"):
            require_positive_integer(getattr(self, name), f"{type(self).__name__}: {name}", least=0)
        if self.rollout % self.minibatches:
            raise ModelError(
                f"{type(self).__name__}: {self.minibatches} minibatches cannot share a rollout of {self.rollout} steps "
                "evenly; take a divisor"
            )

    def discount(self, episodes: AbstractEnvironment) -> Array:
        """Return the factor by which a reward counts less a step later."""
        return jnp.exp(-jnp.asarray(episodes.dt) / self.discount_time)

    @property
    def samples(self) -> int:
        """The steps of all environments in an update."""
        return self.actors * self.rollout


class SHAC(AbstractAlgorithm):
    """Short-horizon actor-critic (Xu et al., Accelerated policy learning with parallel differentiable simulation, ICLR
    2022), with the paper's settings for locomotion, and with four differences: lambda is adapted to how much gradients
    grow, exploration fades, critics are fitted to the last eight roll-outs with half as many steps of their optimizer,
    and the mean of the last policies is returned."""


class AHAC(AbstractAlgorithm):
    """Adaptive-horizon actor-critic (Georgiev et al., Adaptive horizon actor-critic for policy learning in contact-rich
    differentiable simulation, ICML 2024): two critics that are fitted until they converge, and a horizon that a
    multiplier adapts. The paper bounds the norm of the simulation's Jacobian; here the bound is on what comes of it,
    the growth of gradients over the horizon, which the roll-out gives without a further computation."""

    critics: int = eqx.field(static=True, default=2)
    until_converged: bool = eqx.field(static=True, default=True)
    critic_passes: int = eqx.field(static=True, default=2)
    policy_lambda: float = 0.95
    lambda_rate: float = 0.0
    horizon_rate: float = 0.01


class APG(AbstractAlgorithm):
    """Analytic policy gradients: back-propagation through roll-outs, without critics. What comes after a roll-out is
    left out, so it must be long enough for what matters."""

    critics: int = eqx.field(static=True, default=0)
    lambda_rate: float = 0.0
