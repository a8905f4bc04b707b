"""What a solver hands back."""

from __future__ import annotations

import enum
from typing import Any

import equinox as eqx
import numpy as np
from jax.core import Tracer

from jaxdyn._types import Array, Float


class Status(enum.IntEnum):
    """How a solve ended; `words` says it in a sentence."""

    RUNNING = 0
    CONVERGED = 1
    STALLED = 2
    DIVERGED = 3
    OUT_OF_ITERATIONS = 4

    @property
    def words(self) -> str:
        """The status as a sentence."""
        return _WORDS[self]


_WORDS = {
    Status.RUNNING: "still running",
    Status.CONVERGED: "converged: the tolerances of stationarity, gaps and constraints are met",
    Status.STALLED: "stalled: no step improves the iterate, but the tolerances are not met (where the constraints stay "
    "violated they may contradict each other)",
    Status.DIVERGED: "diverged: costs or states stopped being finite; the iterate is the best until then",
    Status.OUT_OF_ITERATIONS: "out of iterations: the tolerances are not met yet",
}


class Residuals(eqx.Module):
    """How far from a solution an iterate is."""

    gap: Float[Array, "*batch"]
    """The largest component of a difference between a state and the step that should lead to it."""
    stationarity: Float[Array, "*batch"]
    """The largest derivative of the Lagrangian by a control that is free to move; NaN where a solver has none."""
    violation: Float[Array, "*batch"]
    """The largest violation of a constraint or a control's bounds."""


class Multipliers(eqx.Module):
    """Of the constraints; what a solver does not have is None."""

    dynamics: Float[Array, "*batch stages ndx"] | None = None
    """The derivative of the optimal cost by a displacement of each state, `horizon + 1` of them."""
    stage: Float[Array, "*batch horizon m"] | None = None
    """Of the stage constraints, in their order: positive at an upper bound, negative at a lower one."""
    terminal: Float[Array, "*batch m"] | None = None


class Gains(eqx.Module):
    """Of the locally optimal feedback `u = us - K (x (-) xs)`."""

    feedback: Float[Array, "*batch horizon nu ndx"]
    """`K`."""
    feedforward: Float[Array, "*batch horizon nu"]
    """The step that the controls would take next; zero at a solution."""


class Solution(eqx.Module):
    """A trajectory and how it was found. Batch axes come first, as from `jax.vmap`."""

    xs: Float[Array, "*batch stages nx"]
    """The `horizon + 1` states."""
    us: Float[Array, "*batch horizon nu"]
    cost: Float[Array, "*batch"]
    status: Any
    """A `Status`, as an integer."""
    iterations: Any
    """How many iterations it took, an integer."""
    residuals: Residuals
    gains: Gains | None = None
    multipliers: Multipliers | None = None
    aux: Any = None
    """What else a solver has to say; see the solver."""

    @property
    def success(self):
        """Whether it converged, `[*batch]`."""
        return self.status == Status.CONVERGED

    @property
    def message(self) -> str:
        """The status in words, and how far an iterate that is no solution is from one; for a batch, how many elements
        ended how. For values, not under transformations."""
        if isinstance(self.status, Tracer):
            return "a status that is being traced"
        status = np.asarray(self.status)
        if status.ndim == 0:
            words = Status(int(status)).words
            if status == Status.CONVERGED:
                return words
            violation, gap = float(self.residuals.violation), float(self.residuals.gap)
            return f"{words}; the largest violation of a constraint is {violation:.2g}, the largest gap {gap:.2g}"
        numbers, counts = np.unique(status, return_counts=True)
        return "\n".join(f"{c} of {status.size} {Status(int(n)).words}" for n, c in zip(numbers, counts, strict=True))
