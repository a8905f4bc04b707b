"""Friction before sliding."""

from typing import Any

import equinox as eqx
import numpy as np

from jaxdyn.friction._abstract_friction import Values, array_module

# Ways in units of the presliding distance, which decay by more than double precision can tell: a block of such a way is
# summed at once.
_LONG = 500.0


class Dahl(eqx.Module):
    """Coulomb friction that builds up over a distance after each reversal, like a spring before it slides.

    The torque is `friction z`. The state `z`, the direction of friction, follows the motion `x` by

        dz/dx = sign(v) (s(v) - z) / distance,  s(v) = tanh(v / friction_velocity)

    so that steady motion has the smooth `Coulomb` friction, and the law becomes that one as the distance goes to zero.
    With `friction_velocity = 0`, `s` is the exact sign, and the law is Dahl's with the exponent 1, in which the
    velocity does not count.

    Sources: Dahl, A solid friction model, Aerospace Corporation TOR-0158(3107-18)-1, 1968. Canudas de Wit, Olsson,
    Astrom & Lischinsky, A new model for control of systems with friction, IEEE TAC 1995, has steady friction that
    depends on the velocity, and a micro-viscosity, which is zero here.
    """

    friction: Values
    """N m or N."""
    distance: Values
    """The presliding distance, rad or m; positive."""
    friction_velocity: Values = 0.0
    """The velocity over which steady friction changes its sign, rad/s or m/s; zero for the exact sign."""

    def step(self, z: Values, v: Values, dt: Values) -> tuple[Any, Any]:
        """The torque that opposes the velocity `v` at the end of a step of `dt` s, and the state there, from the state
        `z` before. It is exact for a constant velocity."""
        xp = array_module(z, v, dt, self.distance)
        way = abs(v) * dt / self.distance
        # (1 - exp(-x)) / x is 1 - x / 2 near zero, to double precision; neither branch may divide by zero.
        small = way < 1e-8
        divisor = xp.where(small, 1, way)
        built_up = xp.where(small, 1 - way / 2, -xp.expm1(-divisor) / divisor)
        z = z * xp.exp(-way) + self._level(v) * built_up * v * dt / self.distance
        return self.friction * z, z

    def along(self, v: np.ndarray, dt: np.ndarray, start: Values = 0.0) -> np.ndarray:
        """The states `[n + 1, k]` before and after steps of `dt` `[n]` s with velocities `v` `[n, k]`, from `start` on;
        NumPy's."""
        way = np.minimum(abs(v) * dt[:, None] / self.distance, _LONG)
        added = -np.expm1(-way) * self._level(v) * np.sign(v)
        distance, block = np.cumsum(way, axis=0), 0
        out = np.empty((len(v) + 1, v.shape[1]))
        out[0] = start
        while block < len(v):
            # exp(distance) of a block does not overflow. The last terms of a sum are the largest, so that no digit is
            # lost.
            before = distance[block] - way[block]
            end = int(np.searchsorted((distance - before).max(axis=1), _LONG, side="right"))
            rows = slice(block, max(end, block + 1))
            grown = np.exp(distance[rows] - before)
            out[1:][rows] = (out[block] + np.cumsum(added[rows] * grown, axis=0)) / grown
            block = rows.stop
        return out

    def _level(self, v: Values):
        """The steady direction of friction, without its sign."""
        xp = array_module(v, self.friction_velocity)
        smooth = xp.asarray(self.friction_velocity) > 0
        return xp.where(smooth, xp.tanh(abs(v) / xp.where(smooth, self.friction_velocity, 1)), 1)
