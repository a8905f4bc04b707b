"""Log-Cholesky coordinates of inertial parameters: ten unconstrained numbers for what a rigid body can have."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, require_last_axes
from jaxdyn._types import Array, ArrayLike, Float

_MEANING = "m, mcx, mcy, mcz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz of a body about the origin of its frame"


def pseudo_inertia(parameters: ArrayLike) -> Float[Array, "*batch 4 4"]:
    """The pseudo-inertia `J = [[Sigma, h], [h^T, m]]` of inertial parameters `[*batch, 10]`.

    `h` is the first moment (kg m) and `Sigma = 1/2 tr(I) 1 - I` the second moment of the mass (kg m^2), both about the
    origin of the body's frame. A distribution of mass that is not confined to a plane has these parameters exactly if
    `J` is positive definite (Wensing, Kim & Slotine, Linear matrix inequalities for physically consistent inertial
    parameter identification, RA-L 2018, section III). **Raises** `ShapeError` unless the last axis has length 10.
    """
    p = _ten(parameters)
    m, hx, hy, hz, xx, xy, yy, xz, yz, zz = (p[..., i] for i in range(10))
    half_trace = 0.5 * (xx + yy + zz)
    rows = (
        (half_trace - xx, -xy, -xz, hx),
        (-xy, half_trace - yy, -yz, hy),
        (-xz, -yz, half_trace - zz, hz),
        (hx, hy, hz, m),
    )
    return jnp.stack([jnp.stack(row, axis=-1) for row in rows], axis=-2)


def inertial_parameters_from_pseudo_inertia(J: ArrayLike) -> Float[Array, "*batch 10"]:
    """The inertial parameters `[*batch, 10]` of a pseudo-inertia `[*batch, 4, 4]`: `I = tr(Sigma) 1 - Sigma`."""
    J = jnp.asarray(J)
    require_last_axes(J, (4, 4), "J", "a pseudo-inertia [[Sigma, h], [h^T, m]]")
    return parameters_of(J, jnp)


def parameters_of(J: Any, xp: Any) -> Any:
    """`inertial_parameters_from_pseudo_inertia` by the functions of `xp`: `numpy` or `jax.numpy`."""
    xx, yy, zz = J[..., 0, 0], J[..., 1, 1], J[..., 2, 2]
    parts = (
        *(J[..., 3, 3], J[..., 0, 3], J[..., 1, 3], J[..., 2, 3]),
        *(yy + zz, -J[..., 0, 1], xx + zz, -J[..., 0, 2], -J[..., 1, 2], xx + yy),
    )
    return xp.stack(parts, axis=-1)


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
    return factor_of_coordinates(theta, jnp)


def factor_of_coordinates(theta: Any, xp: Any) -> Any:
    """`log_cholesky_factor` by the functions of `xp`: `numpy` or `jax.numpy`."""
    alpha, d1, d2, d3, s12, s23, s13, t1, t2, t3 = (theta[..., i] for i in range(10))
    zero, one = xp.zeros_like(alpha), xp.ones_like(alpha)
    rows = (
        (xp.exp(d1), s12, s13, t1),
        (zero, xp.exp(d2), s23, t2),
        (zero, zero, xp.exp(d3), t3),
        (zero, zero, zero, one),
    )
    U = xp.stack([xp.stack(row, axis=-1) for row in rows], axis=-2)
    return xp.exp(alpha)[..., None, None] * U


def inertial_parameters_from_log_cholesky(theta: ArrayLike) -> Float[Array, "*batch 10"]:
    """The inertial parameters `[*batch, 10]` of log-Cholesky coordinates `theta` `[*batch, 10]`.

    Smooth and one-to-one from all of R^10 onto the physical parameters (those with a positive definite
    `pseudo_inertia`), so that an unconstrained search stays physical. `theta` as in `log_cholesky_factor`: `alpha` and
    `d` are logarithms, `s` and `t` lengths in m.
    """
    U = log_cholesky_factor(theta)
    return inertial_parameters_from_pseudo_inertia(U @ jnp.swapaxes(U, -1, -2))


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
    J = pseudo_inertia(p)
    m, t = J[..., 3, 3], J[..., :3, 3] / J[..., 3, 3, None]
    covariance = J[..., :3, :3] / m[..., None, None] - t[..., :, None] * t[..., None, :]
    # An upper factor is the lower one of the matrix with both axes reversed.
    L = jnp.linalg.cholesky(covariance[..., ::-1, ::-1])
    U = L[..., ::-1, ::-1]
    diagonal = (jnp.log(U[..., i, i]) for i in range(3))
    parts = (0.5 * jnp.log(m), *diagonal, U[..., 0, 1], U[..., 1, 2], U[..., 0, 2], *(t[..., i] for i in range(3)))
    return jnp.stack(parts, axis=-1)


def is_physical(parameters: ArrayLike) -> Float[Array, "*batch"]:
    """Whether a body (not confined to a plane) can have inertial parameters `[*batch, 10]`: `[*batch]` of bool.

    All eigenvalues of the `pseudo_inertia` are positive: a positive mass, positive principal moments, and each less
    than the sum of the others. NaN is not physical.
    """
    J = pseudo_inertia(parameters)
    diagonal = jnp.diagonal(J, axis1=-2, axis2=-1)
    # The signs of eigenvalues survive a congruence (Sylvester). A unit diagonal spares the small second moments of a
    # heavy body from drowning in the rounding of its mass.
    positive = jnp.all(diagonal > 0, axis=-1)
    scale = jax.lax.rsqrt(jnp.where(positive[..., None], diagonal, 1.0))
    scaled = J * scale[..., :, None] * scale[..., None, :]
    finite = jnp.isfinite(scaled).all(axis=(-2, -1))
    eigenvalues = jnp.linalg.eigvalsh(jnp.where(finite[..., None, None], scaled, jnp.eye(4, dtype=J.dtype)))
    return positive & finite & (eigenvalues[..., 0] > 0)


def nearest_physical(parameters: ArrayLike, margin: float = 0.01, minimum_mass: float = 1e-3) -> Float[Array, "*b 10"]:
    """Physical inertial parameters near `[*batch, 10]` that need not be: a point from which a fit can start.

    The mass is raised to `minimum_mass` (kg) and the center of mass kept; the second moment of the mass about it gets
    its eigenvalues raised to `mass margin^2`, the nearest matrix (Frobenius norm) with that floor: along every axis
    the mass then spreads by a standard deviation of at least `margin` (m). Parameters that already are within the
    floors come back as they are.
    """
    p = _ten(parameters)
    m, h = p[..., 0], p[..., 1:4]
    mass = jnp.maximum(m, minimum_mass)
    # A center of mass exists only where there is mass.
    c = jnp.where((m >= minimum_mass)[..., None], h / mass[..., None], 0.0)
    mcc = mass[..., None, None] * c[..., :, None] * c[..., None, :]
    values, vectors = jnp.linalg.eigh(pseudo_inertia(p)[..., :3, :3] - mcc)
    floor = mass[..., None] * margin**2
    raised = jnp.maximum(values, floor)
    Sigma = (vectors * raised[..., None, :]) @ jnp.swapaxes(vectors, -1, -2) + mcc
    J = jnp.concatenate(
        [
            jnp.concatenate([Sigma, (mass[..., None] * c)[..., :, None]], axis=-1),
            jnp.concatenate([mass[..., None] * c, mass[..., None]], axis=-1)[..., None, :],
        ],
        axis=-2,
    )
    within = (m >= minimum_mass) & jnp.all(values >= floor, axis=-1)
    return jnp.where(within[..., None], p, inertial_parameters_from_pseudo_inertia(J))


def _ten(parameters: ArrayLike) -> jax.Array:
    p = jnp.asarray(parameters)
    require_last_axes(p, (10,), "parameters", _MEANING)
    return p if jnp.issubdtype(p.dtype, jnp.floating) else p.astype(jnp.result_type(float))
