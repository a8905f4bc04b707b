"""The highest cutoff at which noise in accelerations does not bias inertias."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np

from jaxdyn.model import Model
from jaxdyn.sysid.recordings import Recording, signals
from jaxdyn.sysid.torques._base_parameters import base_covariance_root
from jaxdyn.sysid.torques._torque_fit import ordinary_least_squares
from jaxdyn.sysid.torques._torque_model import EffectShape, Samples

# The part of its standard error by which noise in accelerations may bias a base parameter, the number of times that the
# cutoff is lowered to reach it, and the least part of the first cutoff that it may get to.
_BIAS, _LOWERINGS, _LOWEST = 0.5, 3, 0.25


def without_bias(
    model: Model, measured: tuple[Recording, ...], prepared: list[Recording], cutoff: float, friction_velocity
) -> tuple[float, list[Recording], list[str]]:
    """Lower the cutoff until noise in accelerations biases no base parameter by more than half of a standard error."""
    if model.nq != model.nv and measured[0].joints is None:
        return cutoff, prepared, ["Noise in accelerations was not looked at: some positions are quaternions."]
    # Jumps of wrapped angles are no noise.
    measured = tuple(
        dataclasses.replace(x, q=signals.continuous_coordinates(x.t, x.q, model, x.joints, x.name)) for x in measured
    )
    first, lowered = cutoff, 0
    ratio = _bias(model, measured, prepared, cutoff, friction_velocity)
    while ratio > _BIAS and lowered < _LOWERINGS and cutoff > _LOWEST * first:
        # The noise's variance below the cutoff grows with its fifth power if positions are differentiated twice.
        power = 5 if measured[0].v is None else 3
        cutoff, lowered = max(0.8 * cutoff * (_BIAS / ratio) ** (1 / power), _LOWEST * first), lowered + 1
        prepared = [x.prepared(cutoff, model=model) for x in measured]
        ratio = _bias(model, measured, prepared, cutoff, friction_velocity)
    if not lowered:
        return cutoff, prepared, []
    note = (
        f"Torques were compared below {cutoff:.3g} Hz instead of {first:g} Hz, since noise in the accelerations biases "
        f"inertias; the largest bias is about {ratio:.2g} standard errors now."
    )
    return cutoff, prepared, [note]


def _bias(
    model: Model, measured: tuple[Recording, ...], prepared: list[Recording], cutoff: float, friction_velocity
) -> float:
    """The largest bias of a base parameter, in standard errors, that noise in the accelerations causes in least
    squares: `H^-1 N^T N p` for the regressor `N` of accelerations that are only noise."""
    fit = ordinary_least_squares(model, prepared, friction_velocity=friction_velocity)
    rng, noise = np.random.default_rng(0), []
    for raw, x in zip(measured, prepared, strict=True):
        drawn = {
            name: rng.normal(size=y.shape) * signals.noise_level(raw.t, y)
            for name, y in (("q", raw.q), ("v", raw.v))
            if y is not None
        }
        (a,) = dataclasses.replace(raw, **drawn, a=None).prepared(cutoff).require("a")
        noise.append(dataclasses.replace(x, v=np.zeros_like(a), a=a))
    weightless = dataclasses.replace(model, gravity=jnp.zeros_like(model.gravity))
    samples = Samples(weightless, noise, fit.effects, EffectShape.default(fit.shape.friction_velocity))
    P = len(fit.parameters)
    N = np.concatenate([B[..., :P] for _, B in samples.chunks()]) / np.maximum(fit.sigma, 1e-300)[:, None]
    # Offsets have a column without any motion.
    N[..., P - len(fit.layout.offsets) :] = 0.0
    N = N.reshape(-1, P)
    base = fit.base_parameters()
    root = base_covariance_root(fit.triangle, base)
    bias = root @ root.T @ (N[:, base.independent].T @ (N @ fit.parameters))
    return float(np.max(np.abs(bias) / fit.intervals(base).standard_error))
