"""Accelerations under constraints, by Lagrange multipliers."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax

STEPS = 4
"""The number of proximal steps. With three steps and mu of 1e-8, accelerations of a quadruped with two welded feet in
random postures differed from Pinocchio's by up to 1.1e-5; with four and 3e-10, by 2e-11, and the forces by 1.6e-9 of
the largest."""


def project_accelerations(C, Y, a):
    """Return `a - Y l` with `C (a - Y l) = 0`, for rows `C` `[*batch, m, nv]`, `Y = M^-1 C^T` `[*batch, nv, m]` and
    accelerations `a` `[*batch, nv, k]`.

    The multipliers are `l = (C M^-1 C^T)^-1 C a` (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 8.2).
    """
    factor = jnp.linalg.cholesky(_product(C, Y))
    return a - _product(Y, jax.scipy.linalg.cho_solve((factor, True), _product(C, a)))


def proximal_solve(A, B):
    """Return `X` with `A X = B` for symmetric positive semidefinite `A` `[*batch, m, m]` and `B` `[*batch, m, k]` in
    its range: the solution of least norm, in equations scaled to a unit diagonal.

    Four proximal steps `X <- X + (A + mu 1)^-1 (B - A X)` (Carpentier, Budhiraja & Mansard, Proximal and sparse
    resolution of constrained dynamic equations, RSS 2021): on the range of `A` an error falls by `mu / (mu + s)` a
    step, with `s` the least eigenvalue there, and the null space, which redundant equations have, is left alone.
    Derivatives of every order are those of the linear equation.
    """
    frozen = lax.stop_gradient(A)
    return lax.custom_linear_solve(
        functools.partial(_product, A), B, lambda _, B: proximal_steps(frozen, B), symmetric=True
    )


def scale_of_equations(squares):
    """Return the factors `[*batch, m]` that scale equations with these squares of their sizes to one; zero for an
    equation that nothing can change, which has zeros or their rounding errors, those of arithmetic or of the numbers in
    a file: scaled to one, it would hold what it should not, and turn the rounding error of its right side into
    motion. Rounded to six digits, the joints in the plane of Cassie's foot have an equation across it of 1e-8 of the
    others."""
    double = squares.dtype == jnp.float64
    part = 1e-12 if double else jnp.finfo(squares.dtype).eps ** 1.5
    least = part * squares.max(axis=-1, keepdims=True) + jnp.finfo(squares.dtype).tiny
    return jnp.where(squares > least, lax.rsqrt(jnp.maximum(squares, least)), 0.0)


def proximal_steps(A, B):
    """Return `proximal_solve(A, B)`, whose derivatives are not to be taken."""
    double = A.dtype == jnp.float64
    mu = 3e-10 if double else 1e-5
    eye = jnp.eye(A.shape[-1], dtype=A.dtype)
    scale = scale_of_equations((A * eye).sum(axis=-1))[..., None]
    A, B = A * scale * jnp.swapaxes(scale, -1, -2), B * scale
    factor = jnp.linalg.cholesky(A + mu * eye)
    X = jnp.zeros_like(B)
    for _ in range(STEPS):
        X = X + jax.scipy.linalg.cho_solve((factor, True), B - _product(A, X))
    return X * scale


def _product(x, y):
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)
