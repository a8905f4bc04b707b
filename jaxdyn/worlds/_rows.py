"""Rows of constraints: from their distances and parameters the accelerations that they ask for and
their regularization.

With the impedance `d`, a row asks for the acceleration `aref = -B J v - K d (position - margin)`, and has the
regularization `R = (1 - d) / d` times an estimate of the diagonal of `J M^-1 J^T`. Source: MuJoCo's manual, chapter
Modeling, Solver parameters, and chapter Computation, Parameters; `engine_core_constraint.c` of MuJoCo 4.0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn.laws import AbstractLaw
from jaxdyn.rows import AbstractRows
from jaxdyn.solve import Term
from jaxdyn.spatial import Vec3
from jaxdyn.tree import columns_of, take_rows
from jaxdyn.worlds._parts import SMALL, Instant

MOST, LEAST = 0.9999, 0.0001
"""The bounds of impedances (mjMAXIMP, mjMINIMP)."""
DEFAULT_REFERENCE = 0.02, 1.0
"""The `solref` that replaces one whose numbers differ in sign."""


class SoftRows(NamedTuple):
    """Rows of constraints of one kind."""

    rows: AbstractRows
    aref: Any
    """`[n, *batch]`"""
    R: Any
    """`[n, *batch]`"""
    acts: Any = None
    """`[n, *batch]`: which rows act; None for all."""

    @property
    def D(self):
        """The stiffness of the rows, zero for those that do not act."""
        D = 1 / self.R
        return D if self.acts is None else jnp.where(self.acts, D, jnp.zeros((), D.dtype))

    def term(self, law: AbstractLaw) -> Term:
        """Return the rows with their law, which has their stiffness."""
        return Term(self.rows, law, -self.aref)


class Softness(NamedTuple):
    """The spring and the damper of rows."""

    stiffness: Any
    """`K d`"""
    damping: Any
    """`B`"""
    share: Any
    """`(1 - d) / d`"""


class Timing(NamedTuple):
    """The numbers of a world that all rows share."""

    dt: Any
    """The time step, `[1, *batch]`."""
    safe: bool
    """Whether time constants are at least two time steps."""


def softness(solref, solimp, distance, timing: Timing) -> Softness:
    """Return the softness of rows at their distances `[n, *batch]` from the margin.

    `solref`: `[n, 2, *batch]`; `solimp`: `[n, 5, *batch]`.
    """
    first, second, width, middle, power = columns_of(solimp)
    first, second, middle = (jnp.clip(x, LEAST, MOST) for x in (first, second, middle))
    d = _impedance(first, second, width, middle, jnp.maximum(power, 1.0), distance)
    stiffness, damping = _spring(solref, second, timing)
    return Softness(stiffness * d, damping, (1 - d) / d)


def _impedance(first, second, width, middle, power, distance):
    flat = (first == second) | (width <= SMALL)
    x = jnp.abs(distance) / jnp.where(width > SMALL, width, 1.0)
    inside = (x < 1) & (x > 0)
    safe = jnp.where(inside, x, 0.5)
    low = safe <= middle
    # a x^p below the middle, and 1 - b (1 - x)^p above.
    base, part = jnp.where(low, safe, 1 - safe), jnp.where(low, middle, 1 - middle)
    rise = part * _power(base / part, power)
    y = jnp.where(inside, jnp.where(low, rise, 1 - rise), jnp.where(x >= 1, 1.0, 0.0))
    return jnp.where(flat, 0.5 * (first + second), first + y * (second - first))


def _power(x, p):
    """Return `x^p`, exactly for the powers 1 and 2."""
    return jnp.where(p == 2, x * x, jnp.where(p == 1, x, x**p))


def _spring(solref, second, timing: Timing) -> tuple[Any, Any]:
    """Return `K` and `B` from a time constant and a damping ratio, or from minus a stiffness and minus a damping."""
    a, b = columns_of(solref)
    timed = a > 0
    constant = jnp.where(timed, a, 1.0)
    if timing.safe:
        constant = jnp.maximum(constant, 2 * timing.dt)
    ratio = jnp.where(timed, b, 1.0)
    stiffness = 1 / jnp.maximum(second * second * constant * constant * ratio * ratio, SMALL)
    damping = 2 / jnp.maximum(second * constant, SMALL)
    return (
        jnp.where(timed, stiffness, -a / jnp.maximum(second * second, SMALL)),
        jnp.where(timed, damping, -b / jnp.maximum(second, SMALL)),
    )


def regularization(share, weight):
    """Return `R`."""
    return jnp.maximum(share * weight, SMALL)


def coherent(solref: np.ndarray, default=DEFAULT_REFERENCE) -> np.ndarray:
    """Return `solref` `[n, 2]`, with the default where one number is positive and the other is not."""
    solref = np.array(solref, float).reshape(-1, 2)
    mixed = (solref[:, 0] > 0) != (solref[:, 1] > 0)
    solref[mixed] = default
    return solref


def arm_of(at: Instant, dofs: np.ndarray, point: Vec3) -> Vec3:
    """Return points of the world from the points of reference of the trees of bodies."""
    world, reference = take_rows((at.world.translation, at.at.poses.translation), dofs)
    return point - world + reference
