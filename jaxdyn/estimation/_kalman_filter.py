"""An extended Kalman filter over a recording, and the smoother of Rauch, Tung and Striebel."""

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import ShapeError, naming_arguments, require_kind, require_positive_integer
from jaxdyn._types import Array, ArrayLike, Bool, Float, float_leaf
from jaxdyn.estimation._covariances import solve_covariance, symmetric
from jaxdyn.estimation._kalman_step import correct, displacement_rate, propagate
from jaxdyn.estimation._state_space import StateSpaceModel


class StateEstimates(eqx.Module):
    """Means and covariances of the states of a recording."""

    means: Float[Array, "*batch samples nx"]
    covariances: Float[Array, "*batch samples ndx ndx"]
    """Covariances of displacements of the means."""

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        deviations = np.sqrt(np.diagonal(self.covariances, axis1=-2, axis2=-1))
        facts = {"last mean": printing.numbers(self.means[..., -1, :])}
        return f"{self.means.shape[-2]} samples", facts | {"standard deviations": printing.number(deviations)}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table

    def normalized_errors(self, model: StateSpaceModel, xs: Float[Array, "samples nx"]) -> Float[Array, "samples"]:
        """The squared distances of true states `xs` from the means, in units of the covariances (NEES).

        Over many runs of an estimator that is consistent, each has the mean `ndx` (Bar-Shalom, Li & Kirubarajan, 2001,
        section 5.4), less the number of components that are known exactly."""

        def one(mean, P, x):
            e = model.dynamics.difference(mean, x)
            return e @ solve_covariance(P, e[:, None])[:, 0]

        return jax.vmap(one)(self.means, self.covariances, jnp.asarray(xs))


class FilterEstimates(StateEstimates):
    """The estimates of a filter: each by the readings up to its sample."""

    predicted_means: Float[Array, "*batch samples nx"]
    """The means before the reading of each sample."""
    predicted_covariances: Float[Array, "*batch samples ndx ndx"]
    innovations: Float[Array, "*batch samples m"]
    """The displacements from predicted readings to readings; zero where nothing is observed."""
    innovation_covariances: Float[Array, "*batch samples m m"]
    """The covariances of innovations; those of the identity where nothing is observed."""
    observed: Bool[Array, "*batch samples m"]
    """Whether each component of the innovations is observed."""
    log_likelihoods: Float[Array, "*batch samples"]
    """The log likelihood of each reading, given those before."""

    @property
    def log_likelihood(self) -> Float[Array, "*batch"]:
        """The log likelihood of all readings: its gradient fits noise and parameters."""
        return self.log_likelihoods.sum(axis=-1)

    @property
    def normalized_innovations(self) -> Float[Array, "*batch samples"]:
        """The squared innovations in units of their covariances (NIS): of mean `observed.sum(-1)`, if consistent."""
        solved = jnp.linalg.solve(self.innovation_covariances, self.innovations[..., None])[..., 0]
        return (self.innovations * solved).sum(axis=-1)


@naming_arguments
def filter(
    model: StateSpaceModel,
    us: Float[Array | np.ndarray, "controls nu"] | None,
    ys: Any,
    x0: Float[Array | np.ndarray, "nx"],
    P0: ArrayLike,
    *,
    observed: ArrayLike | None = None,
    iterations: int = 1,
) -> FilterEstimates:
    """The estimates of an extended Kalman filter whose errors are displacements on the manifold.

    - `us`: a control for each reading, `[samples, nu]`: that of the step after it, and that in which it is read. The
      last one may be missing; the last reading then has the control of the last step. None without controls.
    - `ys`: the readings, `[samples, ny]`, the first of them at the start; or for several measurements a list with an
      array `[samples, n]` for each, None for readings of zero.
    - `x0`, `P0`: the mean and the covariance (a number, variances `[ndx]`, or a matrix) before the first reading.
    - `observed`: which readings there are, for all measurements `[samples]`, for each of them `[samples, measurements]`
      (feet in contact, slow sensors), or for each component `[samples, ny]`. Readings that are not observed may be NaN;
      others may not. All are observed by default. A pose, and a measurement with quaternions, is observed as a whole.
    - `iterations`: linearizations of each update; more than one help where measurements are nonlinear within the
      uncertainty of the prediction.

    Use `jax.vmap` over recordings, priors and models. **Raises** `ShapeError`, `ModelError`; `DataError` for an
    observed reading that is not finite (where it is traced, estimates are not finite).
    """
    require_kind(model, StateSpaceModel, "the model")
    require_positive_integer(iterations, "iterations")
    x0, P0 = model.prior(x0, P0)
    ys, seen = model.join_readings(ys, observed)
    us = controls_of_readings(model, us, len(ys)).astype(x0.dtype)
    return _filter(model, us, ys.astype(x0.dtype), seen, x0, P0, int(iterations))


@eqx.filter_jit
def _filter(model: StateSpaceModel, us, ys, seen, x0, P0, iterations: int) -> FilterEstimates:
    def advance(state, stage):
        x, P = state
        y, s, u, k = stage
        found = correct(model, x, P, y, s, u, k, iterations)
        return propagate(model, found.mean, found.covariance, u, k), (x, P, found)

    stages = ys, seen, us, jnp.arange(len(ys))
    _, (xs, Ps, found) = jax.lax.scan(advance, (x0, P0), stages)
    return FilterEstimates(found.mean, found.covariance, xs, Ps, *found[2:4], seen, found.log_likelihood)


@naming_arguments
def smooth(
    model: StateSpaceModel,
    us: Float[Array | np.ndarray, "controls nu"] | None,
    estimates: FilterEstimates,
) -> StateEstimates:
    """The estimates by all readings, before and after each sample, from those of `filter` with the same `us`.

    The covariances are sums of squares, as those of the filter. Rauch, Tung & Striebel, AIAA Journal 1965, in the
    tangent spaces of the filter's means. **Raises** `ShapeError`.
    """
    require_kind(model, StateSpaceModel, "the model")
    us = controls_of_readings(model, us, len(estimates.means)).astype(estimates.means.dtype)
    return _smooth(model, us, estimates)


@eqx.filter_jit
def _smooth(model: StateSpaceModel, us, estimates: FilterEstimates) -> StateEstimates:
    d = model.dynamics

    def go_back(later, stage):
        x_later, P_later = later
        x, P, x_next, P_next, u, k = stage
        A, B = d.linearize(x, u, k, x_next)
        C = solve_covariance(P_next, A @ P).T
        D = d.difference_jacobian(x_next, x_later)
        keep = jnp.eye(d.ndx, dtype=x.dtype) - C @ A
        P = keep @ P @ keep.T + C @ (D @ P_later @ D.T + model.noise_of_steps(B)) @ C.T
        smoothed = d.integrate(x, C @ d.difference(x_next, x_later))
        G = displacement_rate(d, x, smoothed)
        out = smoothed, symmetric(G @ P @ G.T)
        return out, out

    e, last = estimates, (estimates.means[-1], estimates.covariances[-1])
    nexts = e.predicted_means[1:], e.predicted_covariances[1:]
    stages = e.means[:-1], e.covariances[:-1], *nexts, us[:-1], jnp.arange(len(us) - 1)
    before = jax.lax.scan(go_back, last, stages, reverse=True)[1]
    return StateEstimates(*(jnp.concatenate([a, b[None]]) for a, b in zip(before, last, strict=True)))


def controls_of_readings(model: StateSpaceModel, given: Any, samples: int) -> Float[Array, "samples nu"]:
    """A control for each reading; the last one is that of the last step where it is missing. **Raises**
    `ShapeError`."""
    nu = model.dynamics.nu
    if nu == 0 and given is None:
        given = jnp.zeros((samples, 0), model.dtype)
    us = float_leaf(cast(Any, given), "us")
    if us.shape == (samples - 1, nu) and samples > 1:
        return jnp.concatenate([us, us[-1:]])
    if us.shape != (samples, nu):
        raise ShapeError(f"us has shape {us.shape}, but [{samples}, {nu}] or [{samples - 1}, {nu}] is needed")
    return us
