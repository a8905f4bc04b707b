"""Smooth joint motions that are linear in their coefficients, their limits, and random motions within the limits."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.interpolate import BSpline
from scipy.linalg import block_diag, null_space

from jaxdyn._errors import DataError, naming_arguments, require_numbers, require_positive, require_positive_integer
from jaxdyn._types import ArrayLike
from jaxdyn.algorithms import rnea
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import Recording

type Kind = Literal["fourier", "spline"]

_DEGREE = 5
# The part of every limit that is kept free, for what happens between the points of the grid.
_RESERVE = 1e-3


@dataclasses.dataclass(frozen=True)
class JointTrajectory:
    """`q(t) = B(t) coefficients`, with velocity and acceleration zero at its start.

    - `"fourier"`: a constant and `size` harmonics of `1 / duration` (Swevers et al., Optimal robot excitation and
      identification, IEEE T-RA 1997), periodic, so that it may be repeated to average measurements;
    - `"spline"`: a quintic spline of `size` equal pieces, which also ends at rest.
    """

    kind: Kind
    duration: float
    """s."""
    size: int
    """The number of harmonics or pieces."""
    coefficients: np.ndarray
    """`[K, nv]`, rad or m."""

    @naming_arguments
    def __call__(self, t: ArrayLike) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`q, v, a`, each `[n, nv]`, at the times `t` `[n]`, s. **Raises** `DataError` for a spline beyond its ends."""
        q, v, a = (B @ self.coefficients for B in basis(self.kind, self.duration, self.size, np.atleast_1d(t)))
        return q, v, a

    @naming_arguments
    def sampled(self, rate: float, periods: int = 1) -> Recording:
        """A recording without torques, with `rate` samples per second, of one period or, for a Fourier series, several.
        **Raises** `DataError` for several periods of a spline."""
        require_positive(rate, "rate (1/s)", error=DataError)
        require_positive_integer(periods, "periods", error=DataError)
        if periods > 1 and self.kind != "fourier":
            raise DataError(f"{periods} periods of a {self.kind} trajectory; only a Fourier series can be repeated")
        t = np.arange(round(self.duration * rate) * periods + 1) / rate
        return Recording(t, *self(np.minimum(t, self.duration * periods)), name="excitation")


def basis(kind: Kind, duration: float, size: int, t: np.ndarray) -> tuple[np.ndarray, ...]:
    """The matrices `[n, K]` that take coefficients to positions, velocities and accelerations at times `t` `[n]`."""
    t = np.asarray(t, np.float64)
    if kind == "fourier":
        # The scale makes equal coefficients equal velocities.
        k = np.arange(1, size + 1)
        w = 2 * np.pi / duration * k
        s, c = np.sin(np.outer(t, w)), np.cos(np.outer(t, w))
        parts = ((s / k, c / k), (w * c / k, -w * s / k), (-(w**2) * s / k, -(w**2) * c / k))
        # The motion starts at rest: the sines' velocities and the cosines' accelerations vanish at t = 0.
        sines, cosines = null_space(np.ones((1, size))), null_space(1.0 * k[None])
        moving = [np.concatenate([x @ sines, y @ cosines], axis=-1) for x, y in parts]
        constant = np.zeros((len(t), 1))
        return tuple(np.concatenate([constant + (order == 0), x], axis=-1) for order, x in enumerate(moving))
    if t.size and (t.min() < -1e-12 or t.max() > duration * (1 + 1e-12)):
        raise DataError(f"the spline trajectory lasts from 0 to {duration:g} s; asked for {t.min():g} to {t.max():g} s")
    knots = np.concatenate([np.zeros(_DEGREE), np.linspace(0, duration, size + 1), np.full(_DEGREE, duration)])
    # The motion is at rest where three control points coincide.
    control_points = block_diag(np.ones((3, 1)), np.eye(size + _DEGREE - 6), np.ones((3, 1)))
    spline = BSpline(knots, control_points, _DEGREE)
    return tuple(spline(np.clip(t, 0.0, duration), order) for order in range(3))


def least_size(kind: Kind) -> int:
    """The smallest `size` for which motions differ."""
    return 2 if kind == "fourier" else 3


def stationary(kind: Kind, coefficients: np.ndarray) -> np.ndarray:
    """The coefficients `[..., K, nv]` of the posture in the middle of a trajectory."""
    if kind == "spline":
        return np.broadcast_to(coefficients.mean(axis=-2, keepdims=True), coefficients.shape).copy()
    return coefficients * (np.arange(coefficients.shape[-2]) == 0)[:, None]


@dataclasses.dataclass(frozen=True)
class MotionLimits:
    """Limits of a motion: scalars or `[nv]`, infinite for no limit. None stands for the model's limit."""

    position: tuple[ArrayLike, ArrayLike] | None = None
    """The lower and the upper limit, rad or m. Every joint needs them, continuous ones too."""
    velocity: ArrayLike | None = None
    """rad/s or m/s."""
    acceleration: ArrayLike | None = None
    """rad/s^2 or m/s^2; models have no such limit."""
    torque: ArrayLike | None = None
    """N m or N."""

    def of(self, model: Model) -> LimitArrays:
        """The limits of each degree of freedom. **Raises** `DataError` for missing and impossible limits."""
        position = (model.position_lower, model.position_upper) if self.position is None else self.position
        if not isinstance(position, tuple | list) or len(position) != 2:
            raise DataError("limits.position is a pair of limits, lower and upper")
        limits = {
            "position": position,
            "velocity": (model.velocity_limit if self.velocity is None else self.velocity,),
            "acceleration": (np.inf if self.acceleration is None else self.acceleration,),
            "torque": (model.effort_limit if self.torque is None else self.torque,),
        }
        arrays = []
        for name, x in ((name, x) for name, pair in limits.items() for x in pair):
            require_numbers(x, f"MotionLimits: {name}")
            x = np.asarray(x, np.float64)
            if x.shape not in ((), (model.nv,)) or np.isnan(x).any():
                needed = f"a number or [{model.nv}] of them are needed"
                raise DataError(f"limits.{name} has shape {x.shape} or is NaN; {needed}")
            arrays.append(np.broadcast_to(x, (model.nv,)))
        out = LimitArrays(*arrays)
        names = np.array(model.topology.dof_names)
        for wrong, what in (
            (~np.isfinite(out.span) | (out.span <= 0), "no range of positions: give limits.position"),
            (out.velocity <= 0, "a velocity limit that is not positive: give limits.velocity"),
            (out.acceleration <= 0, "an acceleration limit that is not positive"),
            (out.torque <= 0, "an effort limit that is not positive: give limits.torque"),
            (~np.isfinite(out[2:]).any(axis=0), "no limit but of its positions: give limits.velocity"),
        ):
            if wrong.any():
                raise DataError(f"joints {', '.join(names[wrong])}: {what}")
        return out


class LimitArrays(NamedTuple):
    """Limits of each degree of freedom, `[nv]` each; infinite for no limit. JAX arrays in compiled programs."""

    lower: Any
    upper: Any
    velocity: Any
    acceleration: Any
    torque: Any

    @property
    def span(self) -> Any:
        return self.upper - self.lower

    def excess(self, q: Any, v: Any, a: Any, tau: Any) -> tuple[Any, ...]:
        """The excess of motions `[..., nv]` over each limit, as a part of it (for positions, of the range)."""
        rates = zip((v, a, tau), self[2:], strict=True)
        return (q - self.upper) / self.span, (self.lower - q) / self.span, *(abs(x) / limit - 1 for x, limit in rates)

    def tighten(self, margin: float) -> LimitArrays:
        """The limits reduced by a part `margin`."""
        free = margin * self.span
        return LimitArrays(self.lower + free, self.upper - free, *((1 - margin) * x for x in self[2:]))


class FeasibleMotions:
    """Motions within limits, checked on a grid of times."""

    def __init__(self, model: Model, kind: Kind, limits: LimitArrays, grid: tuple[np.ndarray, ...]):
        self.model, self.limits, self.grid = model, limits, grid
        self.kind: Kind = kind

    def margins(self, c: np.ndarray) -> dict[str, np.ndarray]:
        """The distance of the motions with coefficients `[starts, K, nv]` from each limit, as a part of the limit (for
        positions, of the range), `[starts, nv]`. Negative where a limit is exceeded."""
        q, v, a = (B @ c for B in self.grid)
        dtype = jnp.result_type(self.model.dtype, jnp.zeros(()))
        tau = np.asarray(rnea(self.model, *(jnp.asarray(x, dtype) for x in (q, v, a))), np.float64)
        above, below, *rates = (-x.max(axis=-2) for x in self.limits.excess(q, v, a, tau))
        # A division by an infinite limit leaves 1 - 0.
        rates = [np.where(np.isfinite(limit), x, np.inf) for x, limit in zip(rates, self.limits[2:], strict=True)]
        return {"position": np.minimum(above, below), **dict(zip(self.limits._fields[2:], rates, strict=True))}

    def keep_limits(self, c: np.ndarray) -> np.ndarray:
        """Whether each motion keeps all limits, `[starts]` of bool."""
        return np.min([x.min(axis=-1) for x in self.margins(c).values()], axis=0) >= _RESERVE

    def random(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Coefficients `[count, K, nv]` of random motions about random postures: each joint as far as its own limits
        allow, then all together reduced until the torques keep theirs."""
        limits = self.limits
        shape = (4 * count, self.grid[0].shape[1], self.model.nv)
        moving = rng.standard_normal(shape)
        moving -= stationary(self.kind, moving)
        center = 0.5 * (limits.lower + limits.upper)
        center = center + 0.15 * limits.span * rng.uniform(-1, 1, (shape[0], 1, shape[2]))
        posture = stationary(self.kind, np.broadcast_to(center, shape).copy())
        rooms = (np.minimum(center - limits.lower, limits.upper - center)[:, 0], limits.velocity, limits.acceleration)
        reach = np.min([x / np.abs(B @ moving).max(axis=1) for x, B in zip(rooms, self.grid, strict=True)], axis=0)
        usable = np.flatnonzero(self.keep_limits(posture))[:count]
        if len(usable) < count:
            raise DataError(
                f"only {len(usable)} of {shape[0]} random postures at rest, of {count} that are needed, can be held "
                "within the limits of the torques; give wider limits, or another gravity"
            )
        return self.shrink((posture + 0.95 * reach[:, None] * moving)[usable])

    def shrink(self, c: np.ndarray) -> np.ndarray:
        """Move each motion toward its middle posture, inside the limits of positions, until it keeps all limits."""
        inside = 0.02 * self.limits.span
        middle = self.grid[0][:1] @ stationary(self.kind, c)
        middle = np.clip(middle, self.limits.lower + inside, self.limits.upper - inside)
        posture = stationary(self.kind, np.broadcast_to(middle, c.shape).copy())
        low, high = np.zeros(len(c)), np.ones(len(c))
        feasible = self.keep_limits(c)
        for _ in range(20):
            part = 0.5 * (low + high)
            keep = self.keep_limits(posture + part[:, None, None] * (c - posture))
            low, high = np.where(keep, part, low), np.where(keep, high, part)
        return np.where(feasible[:, None, None], c, posture + low[:, None, None] * (c - posture))
