"""Costs of the violation of constraints."""

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import (
    ModelError,
    ShapeError,
    naming_arguments,
    require_positive,
)
from jaxdyn._types import Array, ArrayLike, Float, float_leaf
from jaxdyn.trajopt.problem._bounded_residuals import Constraint, bound_excess
from jaxdyn.trajopt.problem._costs import ResidualCost, cast_weight
from jaxdyn.trajopt.problem._residuals import AbstractResidual


class SoftConstraintCost(ResidualCost):
    """A cost of the excess `e`, by which a residual leaves its bounds: a constraint that may be violated at a price.

    Without a `width` it is `1/2 sum_i weight_i e_i^2`: a violation remains that is inversely proportional to the
    weight. With one it is Huber's function, `weight_i e_i^2 / (2 width_i)` up to the width and
    `weight_i (|e_i| - width_i / 2)` beyond it. Its slope is at most the weight; where that is more than the multiplier
    that the hard constraint would have, the violation stays below the width (an exact penalty, smoothed: Nocedal &
    Wright, Numerical Optimization, 2006, section 17.2).
    """

    residual: AbstractResidual
    lower: Float[Array, "..."]
    upper: Float[Array, "..."]
    weight: Float[Array, "..."]
    width: Float[Array, "..."] | None

    @naming_arguments
    def __init__(
        self,
        residual: AbstractResidual | Constraint,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        *,
        weight: ArrayLike = 1.0,
        width: ArrayLike | None = None,
    ):
        """
        - `residual`: a residual, with its bounds `lower` and `upper`, numbers or `[m]`, of which one may be left out;
          or a `Constraint`, which has bounds of its own.
        - `weight`: a number or `[m]`. `width`: the same, positive, in the units of the residual.

        **Raises** `ModelError` for bounds that contradict each other, or stand beside a constraint's own, or are both
        missing, and for weights that are negative or widths that are not positive; `ShapeError`, when the cost is
        evaluated, for arrays that do not fit the residual.
        """
        if isinstance(residual, Constraint):
            if lower is not None or upper is not None:
                raise ModelError("a SoftConstraintCost of a Constraint has its bounds; leave lower and upper out")
            constraint = residual
        elif lower is None and upper is None:
            raise ModelError("a SoftConstraintCost needs lower, upper, or both (0 and 0 for an equality)")
        else:
            low, high = -np.inf if lower is None else lower, np.inf if upper is None else upper
            constraint = Constraint(residual, low, high)
        self.residual, self.lower, self.upper = constraint.residual, constraint.lower, constraint.upper
        self.weight = float_leaf(weight, "SoftConstraintCost: `weight`")
        self.width = None if width is None else float_leaf(width, "SoftConstraintCost: `width`")
        if not isinstance(self.weight, Tracer):
            require_positive(self.weight, "the weight of a SoftConstraintCost", zero=True)
        if self.width is not None and not isinstance(self.width, Tracer):
            require_positive(self.width, "the width of a SoftConstraintCost")

    @property
    def constraint(self) -> Constraint:
        """The constraint whose violation costs."""
        return Constraint(self.residual, self.lower, self.upper)

    def penalty(self, r):
        w = self._per_component(self.weight, r, "weight")
        e = bound_excess(r, *self.constraint.bounds(r))
        beyond = (e != 0).astype(r.dtype)
        if self.width is None:
            return 0.5 * (w * e * e).sum(), w * e, w * beyond
        width = self._per_component(self.width, r, "width")
        size = jnp.abs(e)
        value = jnp.where(size <= width, 0.5 * e * e / width, size - 0.5 * width)
        # Beyond the width the second derivative is zero. The slope divided by the excess is the curvature of the
        # parabola that touches the function there and lies above it, so Gauss-Newton steps do not overshoot.
        curvature = beyond / jnp.maximum(size, width)
        return (w * value).sum(), w * jnp.clip(e / width, -1, 1), w * curvature

    def _per_component(self, a, r, name: str):
        if a.ndim > 1:
            raise ShapeError(f"the {name} of a SoftConstraintCost has shape {a.shape}; a number or [m] is needed")
        return jnp.broadcast_to(cast_weight(a, r, self.residual), r.shape)


class RelaxedBarrierCost(SoftConstraintCost):
    """A cost of nearness to bounds: `sum_i -weight_i log(z_i / width_i)` for the distance `z` of a residual inside of a
    bound, and where that is below the width, or the bound is violated, the parabola with the same value, slope and
    curvature there (Hauser & Saccon, A barrier function method for the optimization of trajectory functionals with
    constraints, CDC 2006).

    Unlike `SoftConstraintCost`, it has a curvature inside of the bounds, so one iteration knows of them before they are
    violated: for controllers that have time for no more, see `MPC.prepare`. It keeps a distance from bounds and does
    not hold them exactly; a smaller weight keeps a smaller distance, and a smaller width a smaller violation.
    """

    @naming_arguments
    def __init__(
        self,
        residual: AbstractResidual | Constraint,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
        *,
        weight: ArrayLike = 1.0,
        width: ArrayLike,
    ):
        """The arguments are those of `SoftConstraintCost`, with a width."""
        super().__init__(residual, lower, upper, weight=weight, width=width)

    def penalty(self, r):
        w = self._per_component(self.weight, r, "weight")
        width = self._per_component(self.width, r, "width")
        low, high = self.constraint.bounds(r)
        value, slope, curvature = (jnp.zeros_like(r) for _ in range(3))
        for side, bound in ((1.0, low), (-1.0, high)):
            has = jnp.isfinite(bound)
            z = jnp.where(has, side * (r - jnp.where(has, bound, 0.0)), width) / width
            inside = jnp.maximum(z, 1.0)
            near, use = z < 1.0, has.astype(r.dtype)
            value = value + use * jnp.where(near, 0.5 * ((z - 2.0) ** 2 - 1.0), -jnp.log(inside))
            slope = slope + use * side * jnp.where(near, z - 2.0, -1 / inside) / width
            curvature = curvature + use * jnp.where(near, 1.0, inside**-2) / width**2
        return (w * value).sum(), w * slope, w * curvature
