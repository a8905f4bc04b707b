"""Networks: a policy from observations to actions, and a critic from observations to values."""

from __future__ import annotations

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._errors import ShapeError
from jaxdyn._types import Array, Float
from jaxdyn.learn._environment import Observation

_INITIAL_LOG_STD = -1.0
"""The exploration at the start: a standard deviation of 0.37 before the squashing, as in SHAC's published settings."""
_LARGEST = 10.0
"""Normalized observations beyond this many standard deviations are cut: a contact's first spike would saturate the
network. The value is that of OpenAI's baselines (`VecNormalize`)."""


class RunningNormalization(eqx.Module):
    """The mean and the variance of all observations so far, by which an observation is shifted and scaled."""

    mean: Float[Array, "n"]
    variance: Float[Array, "n"]
    count: Float[Array, ""]

    @classmethod
    def zeros(cls, size: int, dtype: Any) -> Self:
        """Return the normalization that has seen nothing and changes nothing."""
        return cls(jnp.zeros(size, dtype), jnp.ones(size, dtype), jnp.zeros((), dtype))

    def __call__(self, x: Float[Array, "n"]) -> Float[Array, "n"]:
        # No gradient trains these numbers. The offset keeps constant observations finite, and is small beside the
        # variance of anything that moves.
        mean, variance = lax.stop_gradient((self.mean, self.variance))
        scaled = (x - mean) / jnp.sqrt(variance + 1e-5)
        return jnp.clip(scaled, -_LARGEST, _LARGEST)

    def seen(self, mean: Array, variance: Array, count: Any) -> Self:
        """Return the normalization after `count` further observations with this mean and variance (Chan, Golub,
        LeVeque: Updating formulae and a pairwise algorithm for computing sample variances, 1979)."""
        total = self.count + count
        share, shift = count / total, mean - self.mean
        spread = (1 - share) * self.variance + share * variance + share * (1 - share) * shift**2
        # Nothing is known of the variance before the first observation. After this many the oldest, which a bad policy
        # saw, count less and less; single precision could not count forever, either.
        return type(self)(
            self.mean + share * shift,
            jnp.where(self.count > 0, spread, variance),
            jnp.minimum(total, _MOST_COUNTED),
        )


_MOST_COUNTED = 1e6


class _Perceptron(eqx.Module):
    """Linear layers, each with ELU and then a layer normalization, but for the last one: SHAC's network."""

    layers: tuple[eqx.nn.Linear, ...]
    norms: tuple[eqx.nn.LayerNorm, ...]

    def __init__(self, sizes: tuple[int, ...], last_gain: float, dtype: Any, key: Array):
        keys = jax.random.split(key, len(sizes) - 1)
        # Orthogonal weights with a gain of sqrt(2) and zero offsets, as SHAC has them.
        gains = [2**0.5] * (len(sizes) - 2) + [last_gain]
        self.layers = tuple(
            _orthogonal(*shape, gain, dtype, k)
            for *shape, gain, k in zip(sizes[:-1], sizes[1:], gains, keys, strict=True)
        )
        self.norms = tuple(eqx.nn.LayerNorm(n, dtype=dtype) for n in sizes[1:-1])

    def __call__(self, x: Array) -> Array:
        for layer, norm in zip(self.layers[:-1], self.norms, strict=True):
            x = norm(jax.nn.elu(layer(x)))
        return self.layers[-1](x)


def _orthogonal(n: int, m: int, gain: float, dtype: Any, key: Array) -> eqx.nn.Linear:
    layer = eqx.nn.Linear(n, m, dtype=dtype, key=key)
    weight = jax.nn.initializers.orthogonal(gain)(key, (m, n), dtype)
    return eqx.tree_at(lambda x: (x.weight, x.bias), layer, (weight, jnp.zeros(m, dtype)))


class Policy(eqx.Module):
    """A policy of one environment: `policy(obs)` is the action `[nu]` in -1 to 1, and `policy(obs, key)` a random one
    around it. It carries the normalization of its observations. In a dictionary of
    observations it sees `"state"`."""

    normalization: RunningNormalization
    network: _Perceptron
    log_std: Float[Array, "nu"]
    """The logarithm of the standard deviation of actions before they are squashed."""

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        *,
        widths: tuple[int, ...] = (128, 64, 32),
        dtype: Any = jnp.float32,
        key: Array,
    ):
        """A new policy. `widths` are those of the hidden layers; the default is SHAC's for locomotion."""
        self.normalization = RunningNormalization.zeros(observation_size, dtype)
        # Small actions at the start: the last layer's gain is that of Andrychowicz et al., What matters in on-policy
        # reinforcement learning, ICLR 2021.
        self.network = _Perceptron((observation_size, *widths, action_size), 0.01, dtype, key)
        self.log_std = jnp.full(action_size, _INITIAL_LOG_STD, dtype)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of observations, of the units of each hidden layer, and of actions."""
        layers = self.network.layers
        return (self.normalization.mean.shape[0], *(layer.bias.shape[0] for layer in layers if layer.bias is not None))

    def __call__(self, obs: Observation, key: Array | None = None) -> Float[Array, "nu"]:
        """Return the action. **Raises** `ShapeError` for another number of observations."""
        seen = policy_sees(obs)
        size = self.normalization.mean.shape[0]
        if jnp.shape(seen) != (size,):
            raise ShapeError(f"obs has shape {jnp.shape(seen)}, but [{size}] is needed; jax.vmap(policy) takes a batch")
        action = self.network(self.normalization(seen))
        if key is not None:
            action = action + jnp.exp(self.log_std) * jax.random.normal(key, action.shape, action.dtype)
        return jnp.tanh(action)


class Critic(eqx.Module):
    """The value of an observation, or of the `"privileged_state"` in a dictionary of observations."""

    normalization: RunningNormalization
    network: _Perceptron
    center: Float[Array, ""]
    scale: Float[Array, ""]
    """Values are `center + scale` times what the network returns."""

    def __init__(self, observation_size: int, *, widths: tuple[int, ...] = (64, 64), dtype: Any, key: Array):
        self.normalization = RunningNormalization.zeros(observation_size, dtype)
        self.network = _Perceptron((observation_size, *widths, 1), 1.0, dtype, key)
        self.center, self.scale = jnp.zeros((), dtype), jnp.ones((), dtype)

    def __call__(self, obs: Observation) -> Float[Array, ""]:
        return self.center + self.scale * self.normalized(obs)

    def normalized(self, obs: Observation) -> Float[Array, ""]:
        """Return the value in units of the targets: less their mean, over their standard deviation."""
        return self.network(self.normalization(critic_sees(obs)))[0]

    def rescaled(self, center: Array, scale: Array) -> Self:
        """Return the critic with the same values, but with another center and scale (PopArt: van Hasselt et al.,
        Learning values across many orders of magnitude, NeurIPS 2016)."""
        last = self.network.layers[-1]
        assert last.bias is not None
        ratio = self.scale / scale
        weight, bias = ratio * last.weight, ratio * last.bias + (self.center - center) / scale

        def places(x):
            return x.network.layers[-1].weight, x.network.layers[-1].bias, x.center, x.scale

        return eqx.tree_at(places, self, (weight, bias, center, scale))


def critic_sees(obs: Observation) -> Array:
    """Return what a critic sees of an observation."""
    return obs.get("privileged_state", obs["state"]) if isinstance(obs, dict) else obs


def policy_sees(obs: Observation) -> Array:
    """Return what a policy sees of an observation."""
    return obs["state"] if isinstance(obs, dict) else obs
