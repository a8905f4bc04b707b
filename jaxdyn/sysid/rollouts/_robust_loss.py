"""Robust losses of residuals: outliers count less than their squares."""

from __future__ import annotations

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp

type LossName = Literal["squared", "huber", "cauchy"]


class RobustLoss(eqx.Module):
    """A smooth loss `rho(r)` of a residual `r`, which is `r^2` where `r` is small against the scale `c`.

    `"huber"` is the pseudo-Huber loss `2 c^2 (sqrt(1 + (r/c)^2) - 1)`, `"cauchy"` is `c^2 log(1 + (r/c)^2)`.
    """

    name: LossName = eqx.field(static=True)
    scale: jax.Array
    """`c`, in the unit of the residuals."""

    def residual(self, r: jax.Array) -> jax.Array:
        """Return the root of the loss with the sign of `r`."""
        if self.name == "squared":
            return r
        u = (r / self.scale) ** 2
        if self.name == "huber":
            return r * jnp.sqrt(2 / (1 + jnp.sqrt(1 + u)))
        small = u < 1e-4
        far = jnp.where(small, 1.0, u)
        return r * jnp.sqrt(jnp.where(small, 1 - u / 2 + u * u / 3, jnp.log1p(far) / far))

    def weight(self, r: jax.Array) -> jax.Array:
        """Return the `w` of re-weighted least squares: `(w r)^2`, with `w` held, has the slope of the loss."""
        if self.name == "squared":
            return jnp.ones_like(r)
        return (1 + (r / self.scale) ** 2) ** (-0.25 if self.name == "huber" else -0.5)

    def curvature(self, r: jax.Array) -> jax.Array:
        """Return half of the second derivative of the loss."""
        if self.name == "squared":
            return jnp.ones_like(r)
        u = (r / self.scale) ** 2
        return (1 + u) ** -1.5 if self.name == "huber" else (1 - u) / (1 + u) ** 2
