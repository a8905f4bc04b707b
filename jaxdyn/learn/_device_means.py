"""Sums and means over the environments of all devices."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclasses.dataclass(frozen=True)
class DeviceMeans:
    """Sums and means over all devices, which `jax.shard_map` names by `axis`; without an axis there is one device."""

    axis: str | None = None

    def total(self, x: Any, axes: Any = None) -> Any:
        """Return the sum of an array over `axes` (all by default) and over the devices."""
        x = jnp.sum(x, axes)
        return x if self.axis is None else lax.psum(x, self.axis)

    def mean(self, tree: Any) -> Any:
        """Return the mean of a pytree over the devices, each of which has equally many environments."""
        return tree if self.axis is None else lax.pmean(tree, self.axis)

    def mean_of(self, x: Any) -> Any:
        """Return the mean of all numbers of an array on all devices."""
        return self.mean(jax.numpy.mean(x))
