"""Accelerations under constraints, by Lagrange multipliers."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

STEPS = 3
"""The number of steps. In 1000 random postures of a quadruped with two welded feet, some with nearly straight legs, the
forces differed by up to 3e-10 of the largest from those of the same equations in extended precision; with four plain
proximal steps, which the least eigenvalues (2e-10) slow down, by up to 0.17."""


def project_accelerations(C, Y, a):
    """Return `a - Y l` with `C (a - Y l) = 0`, for rows `C` `[*batch, m, nv]`, `Y = M^-1 C^T` `[*batch, nv, m]` and
    accelerations `a` `[*batch, nv, k]`.

    The multipliers are `l = (C M^-1 C^T)^-1 C a` (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 8.2).
    """
    factor = jnp.linalg.cholesky(_product(C, Y))
    return a - _product(Y, jax.scipy.linalg.cho_solve((factor, True), _product(C, a)))


ACCELERATIONS, CORRECTIONS = 1e-5, 1e-4
"""The `mu` of proximal steps in single precision, for accelerations and for corrections of configurations. A greater
one takes less notice of rounding errors, and leaves more of an error where equations are nearly dependent; corrections
are repeated."""


def proximal_solve(A, B, sizes=None, opening=None):
    """Return `X` with `A X = B` for symmetric positive semidefinite `A` `[*batch, m, m]` and `B` `[*batch, m, k]` in
    its range: the solution of least norm, in equations scaled to a unit diagonal.

    Steps `(A + mu 1)^-1 R` for the residual `R` (proximal ones: Carpentier, Budhiraja & Mansard, Proximal and sparse
    resolution of constrained dynamic equations, RSS 2021), combined as in the method of conjugate residuals (Saad,
    Iterative Methods for Sparse Linear Systems, 2003, section 6.8). By itself a step leaves `mu / (mu + s)` of an error
    on an eigenvector of the eigenvalue `s`; combined, few small eigenvalues cost no accuracy. The null space, which
    redundant equations have, is left alone.
    `sizes` and `opening` as for `proximal_steps`. Derivatives of every order are those of the linear equation.
    """
    frozen = lax.stop_gradient(A)
    return lax.custom_linear_solve(
        functools.partial(_product, A), B, lambda _, B: proximal_steps(frozen, B, sizes, opening), symmetric=True
    )


FILTERED = 1e-2
"""The greatest opening of loops, as in `ConstraintRows.opening`, at which combinations of equations are left out that
the closed mechanism may not have."""
_SHARE = 50.0
"""The square, about, of the singular value of a combination that is half left out, in units of the opening. Where loops
are open by `d`, the rows differ by about `d` of their sizes from those of the closed mechanism, and so do singular
values."""
_CLEAR = 1e5
"""The least pivot of the factor, in units of `OpeningFilter.nu`, from which on the filter is left out. The least
eigenvalue may be a tenth of it, where the filter differs from 1 by 3e-14."""


def least_opening(dtype) -> float:
    """Return the least opening that counts, with which combinations of equations are left out whose singular values are
    rounding, and no others. It stands for that of contacts, whose equations may contradict each other: those of several
    points of one body have right sides that no motion meets. With the combinations, a contradiction of 1 mm/s gave
    impulses of 1e6 N s on 10 kg."""
    return 2 * _floors(dtype)[1]


def _floors(dtype) -> tuple[float, float]:
    """Return the least `OpeningFilter.nu`, which is above the rounding errors of scaled matrices, and the greatest
    opening that is negligible, which is above the rounding errors of closed loops."""
    return (2e-13, 1e-12) if dtype == jnp.float64 else (2e-6, 1e-5)


class OpeningFilter(NamedTuple):
    """The linear function of right sides `b` of scaled equations `A l = b` that takes from them what belongs to
    eigenvalues of `A` that may be zero once loops are closed that are open: redundant equations become independent on
    open loops, and would lock the mechanism.

    With `G = nu (A + nu)^-1` it is `(1 - G)^8 (1 + 8 G + 36 G^2 + 120 G^3)`, where the second factor begins the series
    of `(1 - G)^-8`. It has the eigenvalue 6e-7 where that of `A` is a tenth of `nu`, and differs from 1 by 3e-6 at a
    hundred times `nu`, by 3e-10 at a thousand times. So it is smooth in the opening.

    What remains of right sides that contradict each other is their part in the range of `A`, so the solution is that of
    least squares, and of least norm."""

    A: Any
    nu: Any
    """`[*batch, 1, 1]`"""
    open: Any
    """Whether there is anything to take, `[*batch, 1, 1]`."""

    @classmethod
    def of(cls, A, opening, pivots) -> OpeningFilter:
        """Return the filter for loops that are open by `opening` `[*batch]`, from the least of the `pivots` `[*batch]`
        of a factorization of `A`."""
        floor, negligible = _floors(A.dtype)
        d = opening[..., None, None]
        nu = jnp.maximum(_SHARE * d**2, floor)
        return cls(A, nu, (d > negligible) & (d <= FILTERED) & (pivots[..., None, None] < _CLEAR * nu))

    def __call__(self, b):
        """Return the filtered right sides `[*batch, m, k]`."""

        # A loop of one round in place of a choice: native programs compute both sides of a choice for all lanes, but
        # of a loop only the rounds that a lane needs. They carry floats alone, and write out loops of known length.
        def filtered(carry):
            _, needed = carry
            eye = jnp.eye(self.A.shape[-1], dtype=b.dtype)
            factor = lax.linalg.cholesky(self.A + self.nu * eye, symmetrize_input=False)

            def further(carry):
                y, left = carry
                G = self.nu * jax.scipy.linalg.cho_solve((factor, True), y)
                # Three rounds of Horner's method for the series, and eight for the power.
                series = jnp.where(left > 10, 36.0 * b + 120.0 * G, jnp.where(left > 9, 8.0, 1.0) * b + G)
                return jnp.where(left > 8, series, y - G), left - 1

            y, left = lax.while_loop(lambda carry: carry[1] > 0, further, (b, 11.0 * needed))
            return jnp.where(self.open, y, b), left

        needed = self.open.any().astype(b.dtype)
        return lax.while_loop(lambda carry: carry[1] > 0, filtered, (b, needed))[0]


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


class ProximalFactors(NamedTuple):
    """The matrix `A` of proximal steps, and its factors, which all right sides share."""

    A: Any
    scale: Any
    """The factors `[*batch, m, 1]` of the equations."""
    factor: Any
    """The Cholesky factor of the scaled matrix, with `mu` added to its diagonal."""
    longest: float
    """The greatest factor by which a step is lengthened."""
    filter: OpeningFilter | None

    @classmethod
    def of(cls, A, sizes=None, opening=None, single: float = ACCELERATIONS) -> ProximalFactors:
        """Return the factors; `single` is the `mu` in single precision, and the other arguments are those of
        `proximal_steps`."""
        double = A.dtype == jnp.float64
        mu = 1e-9 if double else single
        eye = jnp.eye(A.shape[-1], dtype=A.dtype)
        scale = scale_of_equations((A * eye).sum(axis=-1))
        longest = jnp.inf
        if sizes is not None:
            # A step `k` times as long is one with a `k`-th of `mu` on small eigenvalues.
            longest = 100.0 if double else 1.0
            scale = jnp.where(scale > 0, lax.rsqrt(jnp.maximum(sizes, jnp.finfo(A.dtype).tiny)), 0.0)
        scale = scale[..., None]
        scaled = A * scale * jnp.swapaxes(scale, -1, -2)
        factor, filter = lax.linalg.cholesky(scaled + mu * eye, symmetrize_input=False), None
        if opening is not None:
            pivots = jnp.where(scale[..., 0] > 0, (factor * eye).sum(axis=-1) ** 2 - mu, jnp.inf)
            filter = OpeningFilter.of(scaled, opening, pivots.min(axis=-1))
        return cls(A, scale, factor, longest, filter)

    def steps(self, B, product=None):
        """Return `X` with `A X = B`. `product` returns `A X`, by default from `A`: two products with a root of `A` keep
        more digits of what small eigenvalues leave of it."""
        scale, product = self.scale, functools.partial(_product, self.A) if product is None else product
        R, X, before = B * scale, 0.0, None
        R = R if self.filter is None else self.filter(R)
        for k in range(STEPS):
            U = jax.scipy.linalg.cho_solve((self.factor, True), R)
            W = scale * product(scale * U)
            fall = (R * W).sum(axis=-2, keepdims=True)
            if before is not None:
                u, w, other = before
                share = _ratio(fall, other, 0.0)
                U, W = U + share * u, W + share * w
            length = jnp.minimum(_ratio(fall, (W * W).sum(axis=-2, keepdims=True), 1.0), self.longest)
            X = X + length * U
            if k < STEPS - 1:
                R, before = R - length * W, (U, W, fall)
        return X * scale


def proximal_steps(A, B, sizes=None, opening=None):
    """Return `proximal_solve(A, B)`, whose derivatives are not to be taken.

    With `sizes` `[*batch, m]`, equations are scaled by the roots of these instead of those of the diagonal of `A`, and
    steps are lengthened to a bound only, in single precision not at all. Then an equation, or a combination of some,
    that is small beside its size is hardly felt, instead of turning rounding errors into motion: of chains of four-bars
    in their singular configurations, these made any energy. With the `opening` of loops `[*batch]`, combinations that
    the closed mechanism may not have are left out."""
    return ProximalFactors.of(A, sizes, opening).steps(B)


def _ratio(x, y, otherwise: float):
    """Return `x / y`, or another number where `y` is so small that it may have lost digits."""
    numbers = jnp.finfo(y.dtype)
    known = y > numbers.tiny / numbers.eps**2
    return jnp.where(known, x / jnp.where(known, y, 1.0), otherwise)


def _product(x, y):
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)
