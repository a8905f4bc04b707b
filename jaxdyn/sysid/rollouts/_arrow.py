"""Linear least squares with the arrow structure of multiple shooting: elimination at a cost linear in the segments."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class Rows(NamedTuple):
    """`1/2 (sum_s |A_s z_s + B_s x + r_s|^2 + sum_s |C_s z_s + E_s z_(s+1) + D_s x + c_s|^2 + |K x + k|^2)`, in the
    states `z_s` `[n]` of the segments and the parameters `x` `[P]` that all share."""

    data: jax.Array
    """`[S, m, n + P + 1]`: `A, B, r`."""
    match: jax.Array
    """`[S, n, 2 n + P + 1]`: `C, E, D, c`; zero where no segment follows."""
    border: jax.Array
    """`[k, P + 1]`: `K, k`."""


class Factor(NamedTuple):
    """The rows after elimination, triangular: `R_s z_s + Q_s z_(s+1) + T_s x + d_s` and `R x + d`."""

    R: jax.Array
    """`[S, n, n]`, upper triangular."""
    Q: jax.Array
    """`[S, n, n]`."""
    T: jax.Array
    """`[S, n, P]`."""
    d: jax.Array
    """`[S, n]`."""
    border: jax.Array
    """`[P, P + 1]`: `R, d`."""

    @property
    def decrease(self) -> jax.Array:
        """By how much the cost falls from `z = 0, x = 0` to the minimum."""
        return 0.5 * (jnp.sum(self.d**2) + jnp.sum(self.border[:, -1] ** 2))


def compressed(rows: Rows) -> Rows:
    """The same problem with at most `n + P + 1` rows of data a segment: `|A z + B x + r|^2` needs no more."""
    if rows.data.shape[-2] <= rows.data.shape[-1]:
        return rows
    return rows._replace(data=_triangle(rows.data))


def column_norms(rows: Rows) -> tuple[jax.Array, jax.Array]:
    """Of the columns of every `z_s`, `[S, n]`, and of `x`, `[P]`."""
    S, n = rows.match.shape[:2]
    P = rows.border.shape[-1] - 1
    own = jnp.sum(rows.data[..., :n] ** 2, axis=-2) + jnp.sum(rows.match[..., :n] ** 2, axis=-2)
    from_before = jnp.sum(rows.match[..., n : 2 * n] ** 2, axis=-2)
    own = own.at[1:].add(from_before[: S - 1])
    shared = jnp.sum(rows.data[..., n : n + P] ** 2, axis=(0, 1)) + jnp.sum(rows.border[:, :P] ** 2, axis=0)
    shared += jnp.sum(rows.match[..., 2 * n : 2 * n + P] ** 2, axis=(0, 1))
    return jnp.sqrt(own), jnp.sqrt(shared)


def eliminated(rows: Rows, damping_z: jax.Array, damping_x: jax.Array) -> Factor:
    """The triangular factor of the problem with `1/2 |damping_z z|^2 + 1/2 |damping_x x|^2` more.

    Orthogonal transformations only (a square-root information filter: Bierman, Factorization methods for discrete
    sequential estimation, 1977, chapter V): from the first segment on, what is known of `z_s` from all before it, its
    data and the match with `z_(s+1)` are rows of one small matrix, whose QR factor has the elimination of `z_s` and
    what is left to be known of `z_(s+1)` and `x`.
    """
    n = rows.match.shape[1]
    P = rows.border.shape[-1] - 1
    dtype = rows.match.dtype
    left = n + P + 1

    def eliminate(known, segment):
        data, match, damping = segment
        between = ((0, 0), (n, 0))
        # Columns z_s, z_(s+1), x, and the constants.
        blocks = [
            *(jnp.concatenate([y[:, :n], jnp.pad(y[:, n:], between)], axis=-1) for y in (known, data)),
            match,
            jnp.pad(jnp.diag(damping), ((0, 0), (0, n + P + 1))),
        ]
        T = _triangle(jnp.concatenate(blocks))
        return T[n:, n:], (T[:n, :n], T[:n, n : 2 * n], T[:n, 2 * n : -1], T[:n, -1])

    known = jnp.zeros((left, left), dtype)
    known, (R, Q, T, d) = lax.scan(eliminate, known, (rows.data, rows.match, damping_z))
    # No segment follows the last: its rows of `match` are zero, and so are the columns of z_S.
    last = jnp.concatenate([known[:, n:], rows.border, jnp.pad(jnp.diag(damping_x), ((0, 0), (0, 1)))])
    return Factor(R, Q, T, d, _triangle(last)[:P])


def solution(factor: Factor) -> tuple[jax.Array, jax.Array]:
    """The minimum: `z` `[S, n]` and `x` `[P]`."""
    R, d = factor.border[:, :-1], factor.border[:, -1]
    x = -jax.scipy.linalg.solve_triangular(R, d)
    return substituted(factor, x, factor.d), x


def substituted(factor: Factor, x: jax.Array, d: jax.Array) -> jax.Array:
    """The `z` `[S, n]` that make `R_s z_s + Q_s z_(s+1) + T_s x + d_s` zero."""

    def substitute(following, segment):
        R, Q, T, d = segment
        z = -jax.scipy.linalg.solve_triangular(R, Q @ following + T @ x + d)
        return z, z

    none = jnp.zeros_like(d[0])
    _, z = lax.scan(substitute, none, (factor.R, factor.Q, factor.T, d), reverse=True)
    return z


def influence(factor: Factor) -> tuple[jax.Array, jax.Array]:
    """The columns of `x` in the inverse of the normal matrix: `[S, n, P]` and `[P, P]`. The latter is the covariance
    of `x` for rows of unit variance."""
    R = factor.border[:, :-1]
    P = R.shape[0]
    inverse = jax.scipy.linalg.solve_triangular(R, jnp.eye(P, dtype=R.dtype))
    covariance = inverse @ inverse.T
    z = jax.vmap(lambda x: substituted(factor, x, jnp.zeros_like(factor.d)), in_axes=1, out_axes=2)(covariance)
    return z, covariance


def _triangle(A: jax.Array) -> jax.Array:
    """`[..., k, k]`, upper triangular, with `R^T R = A^T A`, for `A` `[..., m, k]`; zero rows where `m < k`."""
    m, k = A.shape[-2:]
    if m < k:
        A = jnp.concatenate([A, jnp.zeros((*A.shape[:-2], k - m, k), A.dtype)], axis=-2)
    return jnp.linalg.qr(A, mode="r")
