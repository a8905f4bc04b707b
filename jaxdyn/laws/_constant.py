"""Forces that do not depend on what follows from them."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxdyn.laws._abstract_law import AbstractLaw, Curvature, parts_of


class ConstantForce(AbstractLaw):
    """Forces at a state that push whatever the accelerations are."""

    directions: int = eqx.field(static=True)
    push: Any
    """`[directions n, *batch]`"""

    def force(self, x):
        return self.push

    def curvature(self, x) -> Curvature:
        zero = jnp.zeros_like(parts_of(x, self.directions)[0])
        return [[zero if i == k else None for k in range(self.directions)] for i in range(self.directions)]
