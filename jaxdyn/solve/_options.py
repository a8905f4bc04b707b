"""How problems are solved, and how well they were."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp

from jaxdyn._errors import require_positive, require_positive_integer
from jaxdyn._types import Array, Float


@dataclasses.dataclass(frozen=True)
class SolverOptions:
    """How contacts and other constraints are solved, in a step or in a state.

    **Raises** `ModelError` for a number of iterations below one, and a tolerance that is negative.
    """

    iterations: int = 50
    """The most steps of Newton's method."""
    tolerance: float | None = None
    """Newton's method ends where the relative error was at most this before its last step, after which it is far
    smaller; None for 1e-9 in double and 1e-4 in single precision. With 0 all `iterations` are done, unless a step is
    exact."""
    searches: int = 40
    """The most steps of the search along the line of each."""

    def __post_init__(self) -> None:
        require_positive_integer(self.iterations, "SolverOptions: iterations")
        require_positive_integer(self.searches, "SolverOptions: searches")
        if self.tolerance is not None:
            require_positive(self.tolerance, "SolverOptions: tolerance", zero=True)

    def tolerance_of(self, dtype) -> float:
        """Return the tolerance in a precision."""
        if self.tolerance is not None:
            return self.tolerance
        return 1e-9 if dtype == jnp.float64 else 1e-4


class SolverReport(eqx.Module):
    """How well the contacts and other constraints of steps or states were solved."""

    error: Float[Array, "*batch"]
    """The relative error of the accelerations before the last step of Newton's method: their distance to the solution,
    to first order, over the larger of the accelerations with and without constraints, in the metric of the mass
    matrix; zero where that step was exact. The error after that step is smaller."""
    iterations: Float[Array, "*batch"]
    """The steps of Newton's method."""
    tolerance: float = eqx.field(static=True)
    deep: Float[Array, "*batch"] | None = None
    """In a world of an MJCF file, the number of contacts that overlap so deeply that their places and directions may
    not be those of MuJoCo, of pairs of types for which it has only its general routine: by more than the smallest half
    size of their ellipsoids, cylinders and boxes, or half of it for cylinders with ellipsoids, cylinders and boxes."""
    crowded: Float[Array, "*batch"] | None = None
    """In a world of many pairs of geoms, the number of contacts for which its lists had no room. Where it is not zero,
    accelerations are not numbers, because those without these contacts would be wrong."""

    @property
    def converged(self) -> Any:
        """Whether the error was at most the tolerance; false where it is not a number."""
        return self.error <= self.tolerance
