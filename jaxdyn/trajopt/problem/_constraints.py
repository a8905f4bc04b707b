"""Constraints: residuals between bounds."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.trajopt.problem._residuals import AbstractResidual, as_leaf


class Constraint(eqx.Module):
    """`lower <= residual <= upper`, component by component; equal bounds are an equality, infinite ones none.

    At a stage, or, as one of `terminal_constraints`, at the end. One whose residual is of the state alone does not act
    on stage 0, where the state is given.
    """

    residual: AbstractResidual
    lower: Float[Array, "..."]
    upper: Float[Array, "..."]

    def __init__(self, residual: AbstractResidual, lower: ArrayLike = 0.0, upper: ArrayLike = 0.0):
        """Bounds are numbers or `[m]`; both are 0 by default, an equality. **Raises** `ModelError` where a lower bound
        is above the upper, or one is NaN."""
        if not isinstance(residual, AbstractResidual):
            raise ModelError(f"a Constraint is on a residual, not on {type(residual).__name__}")
        self.residual, self.lower, self.upper = residual, as_leaf(lower), as_leaf(upper)
        require_box(self.lower, self.upper, f"the constraint on {type(residual).__name__}")

    @property
    def of_state(self) -> bool:
        """Whether its residual is known not to depend on the control."""
        return self.residual.of_state

    def bounds(self, r) -> tuple[Float[Array, "m"], Float[Array, "m"]]:
        """Lower and upper bounds for the residual `r`.

        **Raises** `ShapeError`.
        """
        for bound in (self.lower, self.upper):
            if bound.shape not in ((), r.shape):
                raise ShapeError(
                    f"a bound on {type(self.residual).__name__} has shape {bound.shape}, but the residual has "
                    f"{r.shape[0]} components: [] or [{r.shape[0]}] is needed"
                )
        return tuple(jnp.broadcast_to(b, r.shape).astype(r.dtype) for b in (self.lower, self.upper))  # type: ignore


def require_box(lower, upper, what: str) -> None:
    """**Raises** `ModelError` where `lower <= upper` does not hold and both are known."""
    if isinstance(lower, Tracer) or isinstance(upper, Tracer):
        return
    try:
        low, high = np.broadcast_arrays(np.asarray(lower), np.asarray(upper))
    except ValueError:
        shapes = f"{np.shape(lower)} and {np.shape(upper)}"
        raise ShapeError(f"the bounds of {what} have shapes {shapes}, which do not fit together") from None
    bad = np.argwhere(~(low <= high) | (low == np.inf) | (high == -np.inf))
    if len(bad):
        at = tuple(int(i) for i in bad[0])
        raise ModelError(
            f"{what} is infeasible or NaN: lower {low[at]:g}, upper {high[at]:g}{f' at {list(at)}' if at else ''}; "
            "lower <= upper is needed (equal for an equality, infinite for no bound)"
        )


def outside(r, lower, upper):
    """By how much `r` leaves its bounds, with its sign."""
    return r - jnp.clip(r, lower, upper)
