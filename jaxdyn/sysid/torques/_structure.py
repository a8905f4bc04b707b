"""Structure that is left in residuals: what changes with time, position, direction, velocity, or with other joints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.polynomial import legendre

from jaxdyn.friction import JointFriction
from jaxdyn.sysid.torques._torque_model import Samples

STRUCTURES = {
    "time": "a change with time, as of joints that warm up",
    "position": "a dependence on the joint's position",
    "direction": "a dependence on the way since the last reversal, as of friction before sliding",
    "velocity": "a dependence on velocity that the friction model lacks",
    "other joints": "a dependence on the motion of other joints, as of coupled drives",
}
"""The kinds of structure, and what they mean."""
# Ways since a reversal over which friction may change, as parts of the joint's range, and velocities, as parts of its
# largest one, over which it may.
_WAYS, _VELOCITIES = (0.01, 0.05), (0.03, 0.15)


class Structure(NamedTuple):
    """The structure of one kind in the residuals of one joint."""

    name: str
    joint: int
    """The degree of freedom."""
    size: int
    """The number of columns that describe it."""
    part: float
    """The part of the joint's sum of squares that they explain, with all parameters of the fit at their best."""


def structures(samples: Samples, rest: np.ndarray, scale: np.ndarray, known: np.ndarray) -> Iterator[Structure]:
    """Yield the structure in residuals `rest` `[n, nv]`, each joint's divided by its `scale`, that are orthogonal to an
    orthonormal basis `known` `[n, nv, k]`."""
    for name, j, columns in _columns(samples):
        Z = samples.low_passed(columns) * samples.valid[:, j, None] / scale[j]
        Z = Z / np.maximum(np.linalg.norm(Z, axis=0), 1e-300)
        C = known[:, j].T @ Z
        # The columns less what the fit explains of them have these products with each other and with the residuals.
        size, directions = np.linalg.eigh(Z.T @ Z - C.T @ C)
        kept = size > 1e-6
        weights = directions[:, kept] @ (directions[:, kept].T @ (Z.T @ rest[:, j]) / size[kept])
        left = rest[:, j] - Z @ weights + known[:, j] @ (C @ weights)
        part = 1 - float(left @ left) / max(float(rest[:, j] @ rest[:, j]), 1e-300)
        yield Structure(name, j, int(kept.sum()), max(part, 0.0))


def _columns(samples: Samples) -> Iterator[tuple[str, int, np.ndarray]]:
    """Yield kinds, degrees of freedom, and columns `[samples, k]` of the joint's torque that describe the kind."""
    model, v = samples.before, samples.u
    _, sign = JointFriction(1.0, 1.0, samples.shape.friction_velocity).columns(v)
    top = np.maximum(np.abs(v).max(axis=0), 1e-300)
    v, a = v / top, samples.a / np.maximum(np.abs(samples.a).max(axis=0), 1e-300)
    time = legendre.legvander(np.linspace(-1, 1, len(v)), 3)[:, 1:]
    coordinates = dict(zip(*(x.tolist() for x in model.topology.scalar_coordinates[::-1]), strict=True))
    for j in np.flatnonzero(samples.driven & (np.ptp(samples.u, axis=0) > 0)).tolist():
        s, x, speed = sign[:, j, None], v[:, j, None], np.abs(v[:, j, None])
        yield "time", j, np.concatenate([time, time[:, :2] * s, time[:, :2] * x], axis=1)
        widths = [s * np.exp(-speed / w) for w in _VELOCITIES]
        yield "velocity", j, np.concatenate([x * speed, speed, x**2, *widths], axis=1)
        others = np.delete(np.arange(model.nv), j)
        yield "other joints", j, np.concatenate([sign[:, others], v[:, others], a[:, others]], axis=1)
        if j in coordinates:
            q = samples.q[:, coordinates[j]]
            width = max(float(np.ptp(q)), 1e-300)
            powers = legendre.legvander(2 * (q - q.min()) / width - 1, 4)[:, 1:]
            yield "position", j, np.concatenate([powers, powers[:, :2] * s], axis=1)
            way = _way(samples, q)[:, None]
            yield "direction", j, np.concatenate([s * np.exp(-way / (x * width)) for x in _WAYS], axis=1)


def _way(samples: Samples, q: np.ndarray) -> np.ndarray:
    """The distance `[n]` of positions from that of the last reversal in their recording, or from its start."""
    out = np.empty_like(q)
    for start, end in zip(samples.starts, samples.starts[1:], strict=False):
        x = q[start:end]
        forward = np.diff(x, prepend=x[0]) > 0
        turned = np.flatnonzero(np.diff(forward, prepend=forward[0]))
        last = np.zeros(len(x), int)
        last[turned] = turned
        out[start:end] = np.abs(x - x[np.maximum.accumulate(last)])
    return out
