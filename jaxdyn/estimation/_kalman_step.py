"""One step of an extended Kalman filter whose errors are displacements on a manifold."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import naming_arguments, require_kind, require_positive_integer
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.estimation._covariances import covariance_matrix, symmetric
from jaxdyn.estimation._state_space import StateSpaceModel
from jaxdyn.trajopt import AbstractDynamics


class Update(NamedTuple):
    """The result of the update of an estimate by a reading."""

    mean: Float[Array, "nx"]
    covariance: Float[Array, "ndx ndx"]
    innovation: Float[Array, "m"]
    """The displacement from the predicted reading to the reading; zero where it is not observed."""
    innovation_covariance: Float[Array, "m m"]
    """The covariance of the innovation; that of the identity for components that are not observed."""
    log_likelihood: Float[Array, ""]
    """The logarithm of the probability density of what is observed, given all readings before."""


@naming_arguments
def predict(
    model: StateSpaceModel,
    x: Float[Array | np.ndarray, "nx"],
    P: ArrayLike,
    u: ArrayLike | None = None,
    k: ArrayLike = 0,
) -> tuple[Float[Array, "nx"], Float[Array, "ndx ndx"]]:
    """The mean and the covariance after step `k` from those before it, `x` and `P`. Compiled once.

    Arguments are those of `filter`, for one step. **Raises** `ShapeError`, `ModelError`.
    """
    require_kind(model, StateSpaceModel, "the model")
    x, P = model.prior(x, P)
    return _propagate_once(model, x, P, model.control(u, x.dtype), jnp.asarray(k))


@naming_arguments
def update(
    model: StateSpaceModel,
    x: Float[Array | np.ndarray, "nx"],
    P: ArrayLike,
    y: Any,
    u: ArrayLike | None = None,
    k: ArrayLike = 0,
    *,
    observed: ArrayLike | None = None,
    iterations: int = 1,
) -> Update:
    """The estimate after a reading `y` `[ny]` at stage `k`, where the control is `u`. Compiled once.

    `y`, `observed` and `iterations` are those of `filter`, for one reading. The covariance is that of displacements of
    the new mean. **Raises** `ShapeError`, `ModelError`; `DataError` for an observed reading that is not finite.
    """
    require_kind(model, StateSpaceModel, "the model")
    require_positive_integer(iterations, "iterations")
    x, P = model.prior(x, P)
    y, seen = model.join_reading(y, observed)
    u = model.control(u, x.dtype)
    return _correct_once(model, x, P, y.astype(x.dtype), seen, u, jnp.asarray(k), int(iterations))


def propagate(model: StateSpaceModel, x, P, u, k) -> tuple[Float[Array, "nx"], Float[Array, "ndx ndx"]]:
    """The mean and the covariance after a step; see `predict`."""
    after = model.dynamics.step(x, u, k)
    A, B = model.dynamics.linearize(x, u, k, after)
    return after, symmetric(A @ P @ A.T + model.noise_of_steps(B))


def correct(model: StateSpaceModel, x, P, y, seen, u, k, iterations: int) -> Update:
    """The update by a reading whose shapes are checked; see `update`.

    It has Joseph's form, whose covariance is a sum of squares (Bar-Shalom, Li & Kirubarajan, Estimation with
    applications to tracking and navigation, 2001, section 5.2.6), and the iterations are those of Gauss and Newton
    in the tangent space of the mean before (Bell & Cathey, IEEE Trans. Automatic Control 1993)."""
    d = model.dynamics
    R = covariance_matrix(model.measurement_noise, model.m, x.dtype)
    R = jnp.where(seen[:, None] & seen, R, jnp.eye(model.m, dtype=x.dtype))
    # What is not observed may be NaN: the predicted reading stands in its place.
    y = jnp.where(model.seen_readings(seen), y, model.measure(x, u, k))

    def gauss_newton(delta, first: bool):
        at = x if first else d.integrate(x, delta)
        e, H = model.linearize(at, u, k, y)
        e, H = jnp.where(seen, e, 0), jnp.where(seen[:, None], H, 0)
        if not first and not d.euclidean:
            H = H @ displacement_rate(d, x, at)
        S = symmetric(H @ P @ H.T + R)
        factor = jnp.linalg.cholesky(S)
        K = jax.scipy.linalg.cho_solve((factor, True), H @ P).T
        return K @ (e + H @ delta), (H, K, e, S, factor)

    delta, (H, K, e, S, factor) = gauss_newton(jnp.zeros(d.ndx, x.dtype), True)
    if iterations > 1:
        delta, rest = jax.lax.scan(lambda delta, _: gauss_newton(delta, False), delta, length=iterations - 1)
        H, K = (a[-1] for a in rest[:2])
    keep = jnp.eye(d.ndx, dtype=x.dtype) - K @ H
    after = d.integrate(x, delta)
    P = keep @ P @ keep.T + K @ R @ K.T
    if not d.euclidean:
        G = displacement_rate(d, x, after)
        P = G @ P @ G.T
    white = jax.scipy.linalg.solve_triangular(factor, e, lower=True)
    count = seen.sum().astype(x.dtype)
    density = -0.5 * (white @ white + count * math.log(2 * math.pi)) - jnp.log(jnp.diagonal(factor)).sum()
    return Update(after, symmetric(P), e, S, density)


_propagate_once, _correct_once = eqx.filter_jit(propagate), eqx.filter_jit(correct)


def displacement_rate(dynamics: AbstractDynamics, x, at) -> Float[Array, "ndx ndx"]:
    """The derivative of the displacement of `at` by that in the tangent space of `x` that leads to `at`."""
    return jnp.linalg.inv(dynamics.difference_jacobian(x, at))
