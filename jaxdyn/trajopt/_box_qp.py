"""Small quadratic programs in a box, by projected Newton steps."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy.linalg import cho_solve

from jaxdyn._types import Array, Float

ITERATIONS = 20
_STEPS = 8


class BoxStep(NamedTuple):
    """The minimiser, which of its components are free, and the Cholesky factor of their part of the matrix (with ones
    on the diagonal of the others); NaN where the matrix is not positive definite."""

    step: Float[Array, "nu"]
    free: Float[Array, "nu"]
    factor: Float[Array, "nu nu"]


def masked(H, free):
    """`H` with the rows and columns of the others those of the identity."""
    both = free[:, None] * free[None, :]
    return H * both + jnp.diag(1 - free)


def box_qp(H: Float[Array, "nu nu"], g: Float[Array, "nu"], lower, upper) -> BoxStep:
    """Minimise `1/2 x^T H x + g^T x` for `lower <= x <= upper`.

    Projected Newton steps on the components that do not press against a bound, with a search along the projected arc
    over several step lengths at once (Bertsekas 1982; Tassa, Mansard & Todorov, ICRA 2014, algorithm 1).
    """
    n = g.shape[0]
    if n == 1:
        x = jnp.clip(-g / H[0], lower, upper)
        free = ((-g / H[0] >= lower) & (-g / H[0] <= upper)).astype(g.dtype)
        return BoxStep(x, free, jnp.sqrt(jnp.where(free, H[0], jnp.where(H[0] > 0, 1.0, jnp.nan)))[None])
    lengths = 0.5 ** jnp.arange(_STEPS, dtype=g.dtype)

    def value(x):
        return 0.5 * x @ (H @ x) + g @ x

    def pressed(x, gradient):
        return ((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0))

    def improve(state):
        x, _, i = state
        gradient = H @ x + g
        free = (~pressed(x, gradient)).astype(g.dtype)
        factor = jnp.linalg.cholesky(masked(H, free))
        newton = -cho_solve((factor, True), gradient * free)
        candidates = jnp.clip(x + lengths[:, None] * newton, lower, upper)
        values = jax.vmap(value)(candidates)
        expected = (candidates - x) @ gradient
        good = values - value(x) <= 0.1 * expected
        best = jnp.argmax(good)
        moved = jnp.where(good.any(), candidates[best], x)
        # A full step with no bound in the way solves the problem on its face.
        done = ~good.any() | (jnp.abs(moved - x).max() <= 1e-12 * (1 + jnp.abs(x).max()))
        done = done | ~jnp.isfinite(newton).all()
        return moved, done, i + 1

    start = jnp.clip(jnp.zeros_like(g), lower, upper)
    x, _, _ = lax.while_loop(lambda s: ~s[1] & (s[2] < ITERATIONS), improve, (start, jnp.array(False), 0))
    free = (~pressed(x, H @ x + g)).astype(g.dtype)
    return BoxStep(x, free, jnp.linalg.cholesky(masked(H, free)))
