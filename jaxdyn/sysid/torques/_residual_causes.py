"""Causes of the residuals of a fit: wrong lengths, a tilted mount, gains, delays, effects that the model lacks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxdyn.friction import LoadProportional, Stribeck
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import Recordings
from jaxdyn.sysid.torques import _lengths as lengths
from jaxdyn.sysid.torques._effects import frictionless_torque
from jaxdyn.sysid.torques._fit_result import InverseDynamicsFit
from jaxdyn.sysid.torques._residual_noise import independent_share
from jaxdyn.sysid.torques._torque_model import Samples

LEAST_PART = 0.1
"""A cause is named if it explains at least this part of what is left, and by a statistic that chance hardly reaches."""
_STATISTIC = 10.0
# Columns of residuals smaller than this part of the torque are rounding.
_EXACT = 1e-7


class Cause(NamedTuple):
    """Something that residuals may come from, and the evidence for it."""

    name: str
    """Such as `"lengths"`, `"tilt"`, `"gain"`, `"torque delay"`, `"load friction"`."""
    part: float
    """The part of the residuals' sum of squares that the cause would explain, to first order, with all parameters of
    the fit at their best."""
    statistic: float
    """The F statistic of that part, with as many residuals as are independent; by chance it is about 1."""
    joints: tuple[str, ...]
    """The joints at which the residuals fall most, those with half of the decrease."""
    parameters: np.ndarray
    """`[k]`: the cause's own parameters that would explain it, to first order: of the three axes of each joint's
    placement, and of the first and the second frame of each closed loop, in m, of gravity along the two axes of
    `horizontal_axes` in m/s^2, or one for each degree of freedom."""

    @property
    def evident(self) -> bool:
        """Whether the evidence is strong: at least a tenth of what is left, and a statistic above 10."""
        return self.part > LEAST_PART and self.statistic > _STATISTIC


def residual_causes(fit: InverseDynamicsFit, recordings: Recordings) -> tuple[Cause, ...]:
    """Return what the residuals of a fit on its own recordings may come from, the most convincing cause first.

    For each cause, the residuals are regressed on the torque's derivatives with respect to the cause's parameters,
    after all parameters of the fit (a score test: Rao 1948). A cause that explains much shows that *something like it*
    is missing; causes that look alike in a recording explain the same part.
    """
    samples = Samples(fit.before, recordings, fit.effects, fit.shape, fit.refined)
    samples.linearize(fit.model, fit.values)
    residual = samples.residuals(fit.parameters, fit.values.gain)
    scale = np.maximum(fit.sigma, _EXACT * samples.torque_scale)
    rest = residual / scale
    if not np.any(np.abs(residual) > _EXACT * samples.torque_scale):
        return ()
    X = np.concatenate([B[..., :-2] for _, B in samples.chunks()]) / (fit.values.gain * scale)[:, None]
    known, _ = _orthonormal(X.reshape(-1, X.shape[-1]), fit)
    rest = rest.ravel() - known @ (known.T @ rest.ravel())
    total = float(rest @ rest)
    shape = residual.shape
    count = len(residual) * float(np.sum([independent_share(x) for x in residual.T[samples.driven]]))
    out = []
    for name, columns in _columns(fit, samples):
        Z = samples.low_passed(columns) * samples.valid[..., None] / scale[:, None]
        Z = Z.reshape(len(rest), -1)
        length = np.linalg.norm(Z, axis=0)
        # Columns far shorter than the others are rounding.
        length = np.where(length > 1e-9 * length.max(), length, np.inf)
        free = Z / length
        free = free - known @ (known.T @ free)
        U, size, V = np.linalg.svd(free, full_matrices=False)
        kept = size > 1e-6
        weights = U[:, kept].T @ rest
        decrease, k = float(weights @ weights), int(kept.sum())
        if not k or count <= known.shape[1] + k + 1:
            continue
        left = max(total - decrease, 1e-12 * total) / (count - known.shape[1] - k)
        squares = (np.sum(x.reshape(shape) ** 2, axis=0) for x in (rest, rest - U[:, kept] @ weights))
        by_joint = np.subtract(*squares)
        values = -(V[kept].T @ (weights / size[kept])) / length
        out.append(Cause(name, decrease / total, decrease / k / left, _most(fit, by_joint), values))
    # A cause with few parameters convinces more than one with many that explains as much (Schwarz 1978).
    penalty = np.array([len(x.parameters) * np.log(count) for x in out])
    gain = np.array([count * np.log(1 / max(1 - x.part, 1e-12)) for x in out])
    return tuple(out[i] for i in np.argsort(penalty - gain))


def horizontal_axes(model: Model) -> np.ndarray:
    """Two unit vectors `[2, 3]` that are perpendicular to the model's gravity; x and y for gravity along z."""
    g = np.asarray(model.gravity, np.float64)
    axes = np.delete(np.eye(3), np.argmax(np.abs(g)), axis=0)
    axes = axes - np.outer(axes @ g, g) / max(float(g @ g), 1e-300)
    first = axes[0] / np.linalg.norm(axes[0])
    second = axes[1] - first * (axes[1] @ first)
    return np.stack([first, second / np.linalg.norm(second)])


def _orthonormal(X: np.ndarray, fit: InverseDynamicsFit) -> tuple[np.ndarray, np.ndarray]:
    """An orthonormal basis of the columns that the fit's base parameters have, and their numbers."""
    independent = fit.base_parameters().independent
    Q, _ = np.linalg.qr(X[:, independent] / np.maximum(np.linalg.norm(X[:, independent], axis=0), 1e-300))
    return Q, independent


def _most(fit: InverseDynamicsFit, decrease: np.ndarray) -> tuple[str, ...]:
    order = np.argsort(-decrease)
    share = np.cumsum(decrease[order]) / max(float(decrease.sum()), 1e-300)
    names = fit.model.topology.dof_names
    return tuple(names[j] for j in order[: int(np.argmax(share >= 0.5)) + 1])


def _columns(fit: InverseDynamicsFit, samples: Samples) -> Iterator[tuple[str, np.ndarray]]:
    """Yield causes and the derivatives `[n, nv, k]` of the recorded torque with respect to their parameters."""
    model, gain, v = fit.model, fit.values.gain, samples.v
    motion = samples.q, samples.v, samples.a

    def each(x: np.ndarray) -> np.ndarray:
        return samples.on_drives(slice(None), x[..., None] * np.eye(model.nv))

    if not fit.layout.places:
        places = lengths.freed_places(model, True)
        yield "lengths", lengths.length_slopes(model, places, motion, samples.joints) / gain[:, None]
    axes = [("gravity", (slice(None),), e) for e in horizontal_axes(model)]
    tilted = lengths.torque_slopes(model, axes, lambda x: frictionless_torque(x, *motion, samples.joints))
    yield "tilt", tilted / gain[:, None]
    chosen = {name: fit.effects.dofs(name, model) for name in ("gain", "torque_delay", "stribeck", "load", "spring")}
    law = Stribeck(1.0, 1.0, 0.1 * np.abs(v).max(axis=0) + 1e-12, np.asarray(model.friction_velocity, np.float64))
    (by_load,) = LoadProportional(1.0, samples.load, law.friction_velocity).columns(samples.u)
    recordings = [dataclasses.replace(x, cutoff=None) for x in samples.recordings]
    predicted = [fit.predict(x) for x in recordings]
    rate = np.concatenate([np.gradient(tau, x.t, axis=0) for tau, x in zip(predicted, recordings, strict=True)])
    candidates = {
        "gain": ("gain", np.concatenate(predicted)),
        "torque_delay": ("torque delay", -rate),
        "load": ("load friction", by_load),
        "stribeck": ("Stribeck friction", law.columns(samples.u)[1]),
    }
    for name, (words, x) in candidates.items():
        if not chosen[name].any():
            yield words, each(np.asarray(x, np.float64))
    if not chosen["spring"].any() and model.nq == model.nv:
        yield "springs", each(samples.q - samples.q.mean(axis=0))
