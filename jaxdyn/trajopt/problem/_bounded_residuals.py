"""Constraints: residuals between bounds."""

from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn._types import Array, Float, leaf_of
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics
from jaxdyn.trajopt.problem._residuals import AbstractResidual


class Constraint(eqx.Module):
    """`lower <= residual <= upper`, component by component, at every stage, or at the end of the horizon as one of
    `terminal_constraints`. Equal bounds make an equality, infinite bounds none.

    Bounds are numbers or `[m]`; both are 0 by default, an equality. A constraint whose residual depends on the state
    alone acts on stage 0 only if the initial state is free. **Raises** `ModelError` where a lower bound is above the
    upper one, or a bound is NaN.
    """

    residual: AbstractResidual
    lower: Float[Array, "..."] = eqx.field(default=0.0, converter=leaf_of("Constraint: `lower`"))
    upper: Float[Array, "..."] = eqx.field(default=0.0, converter=leaf_of("Constraint: `upper`"))

    def __check_init__(self):
        if not isinstance(self.residual, AbstractResidual):
            raise ModelError(f"a Constraint bounds a residual, not {type(self.residual).__name__}")
        require_box(self.lower, self.upper, f"the constraint on {type(self.residual).__name__}")

    @property
    def of_state(self) -> bool:
        """Whether the residual is known not to depend on the control."""
        return self.residual.of_state

    def bounds(self, r, stage=None, free_start: bool = False) -> tuple[Float[Array, "m"], Float[Array, "m"]]:
        """Lower and upper bounds for the residual `r`, at stage 0 infinite if it depends on the state alone and that is
        not free. **Raises** `ShapeError`."""
        for bound in (self.lower, self.upper):
            if bound.shape not in ((), r.shape):
                raise ShapeError(
                    f"a bound on {type(self.residual).__name__} has shape {bound.shape}, but the residual has "
                    f"{r.shape[0]} components: [] or [{r.shape[0]}] is needed"
                )
        low, high = (jnp.broadcast_to(b, r.shape).astype(r.dtype) for b in (self.lower, self.upper))
        if stage is None or free_start or not self.of_state:
            return low, high
        return jnp.where(stage == 0, -jnp.inf, low), jnp.where(stage == 0, jnp.inf, high)

    def evaluate(self, dynamics: AbstractDynamics, x, u, k, free_start: bool = False):
        """The residual with its lower and upper bounds, each `[m]`, at stage `k`, or at the end, where `u` is None."""
        r = self.residual(dynamics, x, u, k)
        return r, *self.bounds(r, None if u is None else k, free_start)


def require_box(lower, upper, what: str) -> None:
    """Raise `ModelError` unless `lower <= upper`; traced values pass."""
    if isinstance(lower, Tracer) or isinstance(upper, Tracer):
        return
    try:
        low, high = np.broadcast_arrays(np.asarray(lower), np.asarray(upper))
    except ValueError:
        shapes = f"{np.shape(lower)} and {np.shape(upper)}"
        raise ShapeError(f"the bounds of {what} have shapes {shapes}, which do not fit together") from None
    bad = np.argwhere(~(low <= high) | (low == np.inf) | (high == -np.inf))
    if len(bad):
        index = tuple(int(i) for i in bad[0])
        place = f" at {list(index)}" if index else ""
        raise ModelError(
            f"{what} is infeasible or NaN: lower {low[index]:g}, upper {high[index]:g}{place}; "
            "lower <= upper is needed (equal for an equality, infinite for no bound)"
        )


def bound_excess(r, lower, upper):
    """The signed distance by which `r` leaves its bounds; zero within them."""
    return r - jnp.clip(r, lower, upper)


def join_constraints(parts: Sequence[tuple[Array, Array, Array]], dtype) -> tuple[Array, Array, Array]:
    """The residuals and the bounds of several constraints, from those of each."""
    r, low, high = map(jnp.concatenate, zip(*(parts or [(jnp.zeros(0, dtype),) * 3]), strict=True))
    return r, low, high
