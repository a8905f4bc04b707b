"""Limits of motions, and random motions that keep them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn._types import ArrayLike
from jaxdyn.algorithms import rnea
from jaxdyn.model import Model
from jaxdyn.sysid.excitation._joint_motions import Kind, stationary

# The part of every limit that is kept free, for what happens between the points of the grid.
_RESERVE = 1e-3


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
        limits = {
            "position": position,
            "velocity": (model.velocity_limit if self.velocity is None else self.velocity,),
            "acceleration": (np.inf if self.acceleration is None else self.acceleration,),
            "torque": (model.effort_limit if self.torque is None else self.torque,),
        }
        arrays = []
        for name, x in ((name, np.asarray(x, np.float64)) for name, pair in limits.items() for x in pair):
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
        """The range of positions."""
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
