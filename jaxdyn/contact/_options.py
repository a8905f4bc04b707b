"""How the convex problem of a step is solved."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from jaxdyn._errors import require_positive, require_positive_integer


@dataclasses.dataclass(frozen=True)
class ContactOptions:
    """How the convex problem of a step is solved.

    **Raises** `ModelError` for a number of iterations below one, and a tolerance that is negative.
    """

    iterations: int = 30
    """The most steps of Newton's method."""
    tolerance: float | None = None
    """Newton's method ends where the relative error was at most this before its last step, after which it is far
    smaller; None for 1e-8 in double and 1e-4 in single precision. With 0 all `iterations` are done, in a loop of fixed
    length."""

    def __post_init__(self) -> None:
        require_positive_integer(self.iterations, "ContactOptions: iterations")
        if self.tolerance is not None:
            require_positive(self.tolerance, "ContactOptions: tolerance", zero=True)

    def tolerance_of(self, dtype) -> float:
        """Return the tolerance in a precision."""
        if self.tolerance is not None:
            return self.tolerance
        return 1e-8 if dtype == jnp.float64 else 1e-4
