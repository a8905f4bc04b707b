"""Linear least squares with the arrow structure of multiple shooting: elimination at a cost linear in the segments."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax


class ArrowSystem(NamedTuple):
    """A linear least-squares problem in the states `z_s` `[n]` of the segments and the parameters `x` `[P]` that all
    share: `1/2 (sum_s |A_s z_s + B_s x + r_s|^2 + sum_s |C_s z_s + E_s z_(s+1) + D_s x + c_s|^2 + |K x + k|^2)`."""

    data: jax.Array
    """`[S, m, n + P + 1]`: `A, B, r`."""
    match: jax.Array
    """`[S, n, 2 n + P + 1]`: `C, E, D, c`; zero where no segment follows."""
    border: jax.Array
    """`[k, P + 1]`: `K, k`."""


class ArrowResiduals(NamedTuple):
    """Vectors with the rows of an `ArrowSystem`: `[S, m]`, `[S, n]`, `[k]`."""

    data: jax.Array
    match: jax.Array
    border: jax.Array


class ArrowFactor(NamedTuple):
    """The system after elimination, triangular: `R_s z_s + Q_s z_(s+1) + T_s x + d_s` and, in the border, `R x + d`.

    `R`, `Q` `[S, n, n]`, `T` `[S, n, P]`, `d` `[S, n]`, `border` `[P, P + 1]`.
    """

    R: jax.Array
    Q: jax.Array
    T: jax.Array
    d: jax.Array
    border: jax.Array

    @property
    def decrease(self) -> jax.Array:
        """Decrease of the cost from `z = 0, x = 0` to the minimum."""
        return 0.5 * (jnp.sum(self.d**2) + jnp.sum(self.border[:, -1] ** 2))


def compress(system: ArrowSystem) -> ArrowSystem:
    """Return the same problem with at most `n + P + 1` rows of data in each segment."""
    if system.data.shape[-2] <= system.data.shape[-1]:
        return system
    return system._replace(data=triangle(system.data))


def column_norms(system: ArrowSystem) -> tuple[jax.Array, jax.Array]:
    """Return the norms of the columns of every `z_s`, `[S, n]`, and of `x`, `[P]`."""
    n = system.match.shape[1]
    data, match, border = (jnp.sum(x**2, axis=-2) for x in system)
    states = (data[:, :n] + match[:, :n]).at[1:].add(match[:-1, n : 2 * n])
    shared = jnp.sum(data[:, n:-1], axis=0) + jnp.sum(match[:, 2 * n : -1], axis=0) + border[:-1]
    return jnp.sqrt(states), jnp.sqrt(shared)


def product(system: ArrowSystem, z: jax.Array, x: jax.Array) -> ArrowResiduals:
    """Return the matrix of the system times `z` `[S, n]` and `x` `[P]`."""
    n, ahead = z.shape[1], jnp.roll(z, -1, axis=0)
    states = jnp.concatenate([z, ahead], axis=1)
    data = jnp.einsum("smn,sn->sm", system.data[..., :n], z) + system.data[..., n:-1] @ x
    match = jnp.einsum("smn,sn->sm", system.match[..., : 2 * n], states) + system.match[..., 2 * n : -1] @ x
    return ArrowResiduals(data, match, system.border[:, :-1] @ x)


def gradient(system: ArrowSystem, r: ArrowResiduals) -> tuple[jax.Array, jax.Array]:
    """Return the transposed matrix of the system times `r`: `[S, n]` and `[P]`."""
    n = system.match.shape[1]
    data = jnp.einsum("smn,sm->sn", system.data[..., :-1], r.data)
    match = jnp.einsum("smn,sm->sn", system.match[..., :-1], r.match)
    states = (data[:, :n] + match[:, :n]).at[1:].add(match[:-1, n : 2 * n])
    return states, data[:, n:].sum(axis=0) + match[:, 2 * n :].sum(axis=0) + system.border[:, :-1].T @ r.border


def eliminate_states(system: ArrowSystem, damping_z: jax.Array, damping_x: jax.Array) -> ArrowFactor:
    """Return the triangular factor of the problem with `1/2 |damping_z z|^2 + 1/2 |damping_x x|^2` added.

    Orthogonal transformations only (a square-root information filter: Bierman, Factorization methods for discrete
    sequential estimation, 1977, chapter V). From the first segment on, the information about `z_s` from all earlier
    segments, its data and the match with `z_(s+1)` are rows of one small matrix, whose QR factor eliminates `z_s` and
    leaves the information about `z_(s+1)` and `x`.
    """
    n = system.match.shape[1]
    P = system.border.shape[-1] - 1

    def eliminate_state(prior, segment):
        data, match, damping = segment
        # Columns z_s, z_(s+1), x, and the constants.
        blocks = [
            *(jnp.concatenate([y[:, :n], jnp.pad(y[:, n:], ((0, 0), (n, 0)))], axis=-1) for y in (prior, data)),
            match,
            jnp.pad(jnp.diag(damping), ((0, 0), (0, n + P + 1))),
        ]
        T = triangle(jnp.concatenate(blocks))
        return T[n:, n:], (T[:n, :n], T[:n, n : 2 * n], T[:n, 2 * n : -1], T[:n, -1])

    prior = jnp.zeros((n + P + 1, n + P + 1), system.match.dtype)
    prior, (R, Q, T, d) = lax.scan(eliminate_state, prior, (system.data, system.match, damping_z))
    # No segment follows the last: its rows of `match` are zero, and so are the columns of z_S.
    last = jnp.concatenate([prior[:, n:], system.border, jnp.pad(jnp.diag(damping_x), ((0, 0), (0, 1)))])
    return ArrowFactor(R, Q, T, d, triangle(last)[:P])


def solution(factor: ArrowFactor) -> tuple[jax.Array, jax.Array]:
    """Return the minimum, `z` `[S, n]` and `x` `[P]`."""
    R, d = factor.border[:, :-1], factor.border[:, -1]
    x = -jax.scipy.linalg.solve_triangular(R, d)
    return substitute_back(factor, x, factor.d), x


def solve_normal(factor: ArrowFactor, z: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return minus the inverse of the normal matrix of the factor times `z` `[S, n]` and `x` `[P]`."""

    def substitute(carry, segment):
        before, coupling = carry
        R, Q, right = segment
        y = jax.scipy.linalg.solve_triangular(R, right - coupling.T @ before, trans="T")
        return (y, Q), y

    first = jnp.zeros_like(z[0]), jnp.zeros_like(factor.Q[0])
    d = lax.scan(substitute, first, (factor.R, factor.Q, z))[1]
    R = factor.border[:, :-1]
    d_x = jax.scipy.linalg.solve_triangular(R, x - jnp.einsum("snp,sn->p", factor.T, d), trans="T")
    x = -jax.scipy.linalg.solve_triangular(R, d_x)
    return substitute_back(factor, x, d), x


def substitute_back(factor: ArrowFactor, x: jax.Array, d: jax.Array) -> jax.Array:
    """Return the `z` `[S, n]` for which `R_s z_s + Q_s z_(s+1) + T_s x + d_s` is zero."""

    def substitute(next_z, segment):
        R, Q, T, d = segment
        z = -jax.scipy.linalg.solve_triangular(R, Q @ next_z + T @ x + d)
        return z, z

    return lax.scan(substitute, jnp.zeros_like(d[0]), (factor.R, factor.Q, factor.T, d), reverse=True)[1]


def influence(factor: ArrowFactor) -> tuple[jax.Array, jax.Array]:
    """Return the columns of `x` in the inverse of the normal matrix, `[S, n, P]` and `[P, P]` (its covariance)."""
    R = factor.border[:, :-1]
    P = R.shape[0]
    inverse = jax.scipy.linalg.solve_triangular(R, jnp.eye(P, dtype=R.dtype))
    covariance = inverse @ inverse.T
    z = jax.vmap(lambda x: substitute_back(factor, x, jnp.zeros_like(factor.d)), in_axes=1, out_axes=2)(covariance)
    return z, covariance


def triangle(A: jax.Array) -> jax.Array:
    """Return the upper-triangular `R` `[..., k, k]` with `R^T R = A^T A` of `A` `[..., m, k]`, also for `m < k`."""
    m, k = A.shape[-2:]
    if m < k:
        A = jnp.concatenate([A, jnp.zeros((*A.shape[:-2], k - m, k), A.dtype)], axis=-2)
    return jnp.linalg.qr(A, mode="r")
