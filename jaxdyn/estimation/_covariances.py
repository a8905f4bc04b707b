"""Covariances: a number, variances `[n]`, or a matrix `[n, n]`; their square roots and solutions."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn._printing import is_concrete
from jaxdyn._types import Array, Float, float_leaf


def covariance_leaf(value, n: int, what: str, *, positive: bool = False) -> Array:
    """The covariance as an array. **Raises** `ShapeError`, and `ModelError` for what is not symmetric and positive
    semidefinite, with `positive` also for variances of zero, where values are known."""
    C = float_leaf(value, what)
    if C.shape not in ((), (n,), (n, n)):
        raise ShapeError(f"{what} has shape {C.shape}, but a number, variances [{n}] or a matrix [{n}, {n}] is needed")
    if not is_concrete(C):
        return C
    numbers = np.asarray(C, float)
    # A matrix computed in the precision of `C` is symmetric and semidefinite up to the rounding of its products.
    rounding = 100 * max(n, 1) * float(jnp.finfo(C.dtype).eps) * np.abs(numbers).max(initial=0.0)
    matrix = numbers.ndim == 2
    if matrix and np.abs(numbers - numbers.T).max(initial=0.0) > rounding:
        raise ModelError(f"{what} is not symmetric")
    variances = np.linalg.eigvalsh(numbers) if matrix and np.isfinite(numbers).all() else numbers
    if not (np.isfinite(numbers).all() and variances.min(initial=0.0) >= -(rounding if matrix else 0.0)):
        raise ModelError(f"{what} is no covariance: its numbers must be finite, and its variances zero or positive")
    if positive and not variances.min(initial=1.0) > 0:
        raise ModelError(f"{what} must have positive variances: a reading without noise determines the state exactly")
    return C


def covariance_matrix(C: Float[Array, "..."] | None, n: int, dtype) -> Float[Array, "n n"]:
    """The matrix of a covariance; None is zero."""
    if C is None:
        return jnp.zeros((n, n), dtype)
    C = C.astype(dtype)
    return 0.5 * (C + C.T) if C.ndim == 2 else jnp.diag(jnp.broadcast_to(C, (n,)))


def symmetric(P):
    """The symmetric part of a matrix that is symmetric but for rounding."""
    return 0.5 * (P + P.T)


def square_root(P: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The lower triangular `L` of `P = L L^T`, also for a singular covariance; variances of zero have rows of zeros."""
    scale, _, L = _factor(P)
    return scale[:, None] * L


def solve_covariance(P: Float[Array, "n n"], right: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`P^-1 right`, also for a singular `P` in whose range the columns of `right` are."""
    _, inverse, L = _factor(P)
    return inverse[:, None] * jax.scipy.linalg.cho_solve((L, True), inverse[:, None] * right)


def inverse_root(P: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The `W` for which `W e` has independent components of variance one, where `P` is the covariance of `e`."""
    return jax.scipy.linalg.solve_triangular(square_root(P), jnp.eye(len(P), dtype=P.dtype), lower=True)


def _factor(P):
    """The standard deviations `[n]`, their inverses, which are zero for those of zero, and the Cholesky factor of the
    correlations."""
    n, variances = len(P), jnp.diagonal(P)
    some = variances > 0
    # The inner `where` keeps the derivative of the root finite where the variance is zero.
    scale = jnp.where(some, jnp.sqrt(jnp.where(some, variances, 1)), 0)
    inverse = jnp.where(some, 1 / jnp.where(some, scale, 1), 0)
    correlations = inverse[:, None] * P * inverse + jnp.diag(jnp.where(some, 0, 1).astype(P.dtype))
    # The factor of singular correlations exists if they are raised by the rounding of the sums that make them.
    raised = correlations + 4 * n * float(jnp.finfo(P.dtype).eps) * jnp.eye(n, dtype=P.dtype)
    return scale, inverse, jnp.linalg.cholesky(raised)
