"""Log-Cholesky coordinates of inertial parameters: ten unconstrained numbers for what a rigid body can have."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, naming_arguments, require_last_axes
from jaxdyn._types import Array, ArrayLike, Bool, Float

_MEANING = "m, mcx, mcy, mcz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz of a body about the origin of its frame"


@naming_arguments
def pseudo_inertia(parameters: ArrayLike) -> Float[Array, "*batch 4 4"]:
    """The pseudo-inertia `J = [[Sigma, h], [h^T, m]]` of inertial parameters `[*batch, 10]`.

    `h` is the first moment (kg m) and `Sigma = 1/2 tr(I) 1 - I` the second moment of the mass (kg m^2), both about the
    origin of the body's frame. A distribution of mass that is not confined to a plane has these parameters exactly if
    `J` is positive definite (Wensing, Kim & Slotine, Linear matrix inequalities for physically consistent inertial
    parameter identification, RA-L 2018, section III). **Raises** `ShapeError` unless the last axis has length 10.
    """
    return _compiled(_pseudo_inertia)(_ten(parameters))


def _pseudo_inertia(p: Any) -> Any:
    m, hx, hy, hz, xx, xy, yy, xz, yz, zz = (p[..., i] for i in range(10))
    half_trace = 0.5 * (xx + yy + zz)
    rows = (
        (half_trace - xx, -xy, -xz, hx),
        (-xy, half_trace - yy, -yz, hy),
        (-xz, -yz, half_trace - zz, hz),
        (hx, hy, hz, m),
    )
    return _stack([_stack(row) for row in rows], axis=-2)


@naming_arguments
def inertial_parameters_from_pseudo_inertia(J: ArrayLike) -> Float[Array, "*batch 10"]:
    """The inertial parameters `[*batch, 10]` of a pseudo-inertia `[*batch, 4, 4]`: `I = tr(Sigma) 1 - Sigma`."""
    J = jnp.asarray(J)
    require_last_axes(J, (4, 4), "J", "a pseudo-inertia [[Sigma, h], [h^T, m]]")
    return _compiled(parameters_from_pseudo_inertia)(J)


@naming_arguments
def log_cholesky_factor(theta: ArrayLike) -> Float[Array, "*batch 4 4"]:
    """The upper-triangular `U` with `J = U U^T`, of `theta = alpha, d1, d2, d3, s12, s23, s13, t1, t2, t3`.

    Rucker & Wensing, Smooth parameterization of rigid-body inertia, RA-L 2022, section III:

        U = e^alpha [[e^d1, s12,  s13,  t1],
                     [0,    e^d2, s23,  t2],
                     [0,    0,    e^d3, t3],
                     [0,    0,    0,    1 ]]

    so that `m = e^(2 alpha)` and the center of mass is `t`.
    """
    theta = jnp.asarray(theta)
    require_last_axes(theta, (10,), "theta", "log-Cholesky coordinates alpha, d1, d2, d3, s12, s23, s13, t1, t2, t3")
    return _compiled(factor_from_coordinates)(theta)


@naming_arguments
def inertial_parameters_from_log_cholesky(theta: ArrayLike) -> Float[Array, "*batch 10"]:
    """The inertial parameters `[*batch, 10]` of log-Cholesky coordinates `theta` `[*batch, 10]`.

    Smooth and one-to-one from all of R^10 onto the physical parameters (those with a positive definite
    `pseudo_inertia`), so that an unconstrained search stays physical. `theta` as in `log_cholesky_factor`: `alpha` and
    `d` are logarithms, `s` and `t` lengths in m.
    """
    U = log_cholesky_factor(theta)
    return _compiled(_parameters_from_factor)(U)


def _parameters_from_factor(U: jax.Array) -> jax.Array:
    return parameters_from_pseudo_inertia(U @ jnp.swapaxes(U, -1, -2))


@naming_arguments
def log_cholesky_from_inertial_parameters(parameters: ArrayLike) -> Float[Array, "*batch 10"]:
    """The inverse of `inertial_parameters_from_log_cholesky`, for physical parameters `[*batch, 10]`.

    **Raises** `ModelError` for parameters that are not physical (see `nearest_physical`); under a JAX transformation,
    where values are not known, their coordinates are NaN instead.
    """
    p = _ten(parameters)
    physical = is_physical(p)
    # Within `jax.jit` even what is computed from constants has no values yet.
    if not isinstance(physical, Tracer):
        bad = np.argwhere(~np.asarray(physical))
        if len(bad):
            where = "" if p.ndim == 1 else f" at {', '.join(str(tuple(i.tolist())) for i in bad[:5])}"
            raise ModelError(
                f"inertial parameters{where}: no body has them (the pseudo-inertia is not positive definite), so they "
                "have no log-Cholesky coordinates; take nearest_physical(parameters) if an approximation will do"
            )
    return _compiled(_coordinates)(p)


def _coordinates(p: jax.Array) -> jax.Array:
    return coordinates_from_factor(pseudo_factor(p))


@naming_arguments
def is_physical(parameters: ArrayLike) -> Bool[Array, "*batch"]:
    """Whether a body (not confined to a plane) can have inertial parameters `[*batch, 10]`: `[*batch]` of bool.

    All eigenvalues of the `pseudo_inertia` are positive: a positive mass, positive principal moments, and each less
    than the sum of the others. NaN is not physical.
    """
    return _compiled(_is_physical)(_ten(parameters))


def _is_physical(p: jax.Array) -> jax.Array:
    J = _pseudo_inertia(p)
    diagonal = jnp.diagonal(J, axis1=-2, axis2=-1)
    # The signs of eigenvalues survive a congruence (Sylvester). A unit diagonal spares the small second moments of a
    # heavy body from drowning in the rounding of its mass.
    positive = jnp.all(diagonal > 0, axis=-1)
    scale = jax.lax.rsqrt(jnp.where(positive[..., None], diagonal, 1.0))
    scaled = J * scale[..., :, None] * scale[..., None, :]
    finite = jnp.isfinite(scaled).all(axis=(-2, -1))
    eigenvalues = jnp.linalg.eigvalsh(jnp.where(finite[..., None, None], scaled, jnp.eye(4, dtype=J.dtype)))
    return positive & finite & (eigenvalues[..., 0] > 0)


@naming_arguments
def nearest_physical(parameters: ArrayLike, margin: float = 0.01, minimum_mass: float = 1e-3) -> Float[Array, "*b 10"]:
    """Physical inertial parameters near `[*batch, 10]` that need not be: a point from which a fit can start.

    The mass is raised to `minimum_mass` (kg) and the center of mass kept; the second moment of the mass about it gets
    its eigenvalues raised to `mass margin^2`, the nearest matrix (Frobenius norm) with that floor: along every axis
    the mass then spreads by a standard deviation of at least `margin` (m). Parameters that already are within the
    floors come back as they are.
    """
    return _compiled(_nearest_physical)(_ten(parameters), margin, minimum_mass)


def _nearest_physical(p: jax.Array, margin: float, minimum_mass: float) -> jax.Array:
    m, h = p[..., 0], p[..., 1:4]
    mass = jnp.maximum(m, minimum_mass)
    # A center of mass exists only where there is mass.
    c = jnp.where((m >= minimum_mass)[..., None], h / mass[..., None], 0.0)
    mcc = mass[..., None, None] * c[..., :, None] * c[..., None, :]
    values, vectors = jnp.linalg.eigh(_pseudo_inertia(p)[..., :3, :3] - mcc)
    floor = mass[..., None] * margin**2
    raised = jnp.maximum(values, floor)
    Sigma = (vectors * raised[..., None, :]) @ jnp.swapaxes(vectors, -1, -2) + mcc
    h = (mass[..., None] * c)[..., :, None]
    J = jnp.block([[Sigma, h], [jnp.swapaxes(h, -1, -2), mass[..., None, None]]])
    within = (m >= minimum_mass) & jnp.all(values >= floor, axis=-1)
    return jnp.where(within[..., None], p, parameters_from_pseudo_inertia(J))


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as one program: outside of `jax.jit` each of its many operations would be compiled by itself."""
    return jax.jit(function, inline=True)


def _ten(parameters: ArrayLike) -> jax.Array:
    p = jnp.asarray(parameters)
    require_last_axes(p, (10,), "parameters", _MEANING)
    return p if jnp.issubdtype(p.dtype, jnp.floating) else p.astype(jnp.result_type(float))


# The same on NumPy or JAX arrays, without checks. About a reference with the factor `U0`, the coordinates `theta` stand
# for the pseudo-inertia `U0 U(theta) U(theta)^T U0^T`: upper-triangular matrices with a positive diagonal are a group.

FACTOR_TANGENT = np.zeros((10, 4, 4))
"""The derivative of `log_cholesky_factor` at zero."""
FACTOR_TANGENT[0] = np.eye(4)
for _k, _entry in enumerate([(0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (0, 2), (0, 3), (1, 3), (2, 3)], 1):
    FACTOR_TANGENT[(_k, *_entry)] = 1.0


def _stack(parts: Any, axis: int = -1) -> Any:
    return (np if isinstance(parts[0], np.ndarray) else jnp).stack(parts, axis=axis)


# The map below as a matrix: NumPy takes longer to stack ten small arrays than to multiply by it.
_TEN_OF_SIXTEEN = np.zeros((4, 4, 10))
for _k, _entry in enumerate([(3, 3), (0, 3), (1, 3), (2, 3), (1, 1), (0, 1), (0, 0), (0, 2), (1, 2), (0, 0)]):
    _TEN_OF_SIXTEEN[(*_entry, _k)] = -1.0 if _k in (5, 7, 8) else 1.0
for _k, _i in ((4, 2), (6, 2), (9, 1)):
    _TEN_OF_SIXTEEN[_i, _i, _k] = 1.0
_TEN_OF_SIXTEEN = _TEN_OF_SIXTEEN.reshape(16, 10)


def parameters_from_pseudo_inertia(J: Any) -> Any:
    """The inertial parameters of `J` `[*batch, 4, 4]`, linear in it, `[*batch, 10]`."""
    if isinstance(J, np.ndarray):
        return J.reshape(*J.shape[:-2], 16) @ _TEN_OF_SIXTEEN
    xx, yy, zz = J[..., 0, 0], J[..., 1, 1], J[..., 2, 2]
    parts = (
        *(J[..., 3, 3], J[..., 0, 3], J[..., 1, 3], J[..., 2, 3]),
        *(yy + zz, -J[..., 0, 1], xx + zz, -J[..., 0, 2], -J[..., 1, 2], xx + yy),
    )
    return _stack(parts)


def factor_from_coordinates(theta: Any) -> Any:
    """`log_cholesky_factor`."""
    if isinstance(theta, np.ndarray):
        out = np.tensordot(theta, FACTOR_TANGENT, 1)
        out[..., range(3), range(3)] = np.exp(theta[..., 1:4])
        out[..., 3, 3] = 1.0
        return np.exp(theta[..., :1, None]) * out
    alpha, d1, d2, d3, s12, s23, s13, t1, t2, t3 = (theta[..., i] for i in range(10))
    zero, one = jnp.zeros_like(alpha), jnp.ones_like(alpha)
    rows = (
        (jnp.exp(d1), s12, s13, t1),
        (zero, jnp.exp(d2), s23, t2),
        (zero, zero, jnp.exp(d3), t3),
        (zero, zero, zero, one),
    )
    return jnp.exp(alpha)[..., None, None] * _stack([_stack(row) for row in rows], axis=-2)


def coordinates_from_factor(U: Any) -> Any:
    """The inverse of `log_cholesky_factor`, for upper-triangular `[*batch, 4, 4]` with a positive diagonal."""
    scale = U[..., 3, 3]
    V = U / scale[..., None, None]
    parts = [jnp.log(scale), *(jnp.log(V[..., i, i]) for i in range(3))]
    return jnp.stack([*parts, *(V[..., i, j] for i, j in ((0, 1), (1, 2), (0, 2), (0, 3), (1, 3), (2, 3)))], axis=-1)


def pseudo_factor(parameters: Any) -> Any:
    """The upper-triangular `U` `[*batch, 4, 4]` of the pseudo-inertia `U U^T`; NaN or an error if it has none."""
    xp = np if isinstance(parameters, np.ndarray) else jnp
    # An upper factor is the lower one of the matrix with both axes reversed.
    return xp.linalg.cholesky(_pseudo_inertia(parameters)[..., ::-1, ::-1])[..., ::-1, ::-1]


def divergence_of_factor(W: np.ndarray) -> np.ndarray:
    """The divergence `tr(W W^T) - log det(W W^T) - 4` of the pseudo-inertia with the factor `U0 W` from the one with
    `U0`, `[*batch]`: the Bregman divergence of `-log det` (Lee, Wensing & Park, T-RO 2020, section IV)."""
    log_det = 2 * np.log(np.diagonal(W, axis1=-2, axis2=-1)).sum(axis=-1)
    return np.sum(W**2, axis=(-2, -1)) - log_det - 4


def divergence_slope(W: np.ndarray) -> np.ndarray:
    """The derivative of `divergence_of_factor(W U(theta))` with respect to `theta` at zero, `[*batch, 10]`."""
    log_det = 2 * np.trace(FACTOR_TANGENT, axis1=-2, axis2=-1)
    return 2 * np.einsum("...ij,kij->...k", W.swapaxes(-1, -2) @ W, FACTOR_TANGENT) - log_det


def divergence_metric() -> np.ndarray:
    """The second derivative of the divergence with respect to the pseudo-inertia, in the coordinates about any point,
    `[10, 10]`: `tr(J^-1 dJ J^-1 dJ) = |E + E^T|^2` for `dJ = U (E + E^T) U^T`, the same everywhere."""
    symmetric = (FACTOR_TANGENT + FACTOR_TANGENT.swapaxes(-1, -2)).reshape(10, 16)
    return symmetric @ symmetric.T


def root_of_divergence(x: jax.Array) -> jax.Array:
    """Return `r` with `r^2 = e^x - x - 1`, the divergence of the positive number `e^x` from 1, and the sign of `x`."""
    small = jnp.abs(x) < 0.03
    y = jnp.where(small, 1.0, x)
    # (e^x - x - 1) / x^2 by its series near zero, where the difference has no digits.
    series = 1 / 2 + x * (1 / 6 + x * (1 / 24 + x * (1 / 120 + x * (1 / 720 + x * (1 / 5040 + x / 40320)))))
    return x * jnp.sqrt(jnp.where(small, series, (jnp.expm1(y) - y) / y**2))


def pull_of_coordinates(theta: jax.Array) -> jax.Array:
    """Return terms whose squares sum to `divergence_of_factor(log_cholesky_factor(theta))`, `[*batch, 10]`.

    Each element `e^z` of the factor's diagonal has the term `e^(2z) - 2z - 1`, those above it have their squares.
    """
    alpha = theta[..., :1]
    diagonal = jnp.concatenate([alpha, alpha + theta[..., 1:4]], axis=-1)
    return jnp.concatenate([root_of_divergence(2 * diagonal), jnp.exp(alpha) * theta[..., 4:]], axis=-1)
