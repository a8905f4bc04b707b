"""The solution that solvers return: a trajectory, its status, residuals, gains and multipliers."""

from typing import Any

import equinox as eqx
import numpy as np
from jax.core import Tracer

from jaxdyn import _printing as printing
from jaxdyn._errors import ModelError
from jaxdyn._printing import is_concrete
from jaxdyn._status import Status
from jaxdyn._types import Array, Float
from jaxdyn.trajopt._history import History
from jaxdyn.trajopt._solution_report import describe, multiplier_lines, number_lines
from jaxdyn.trajopt.problem import Problem


class Residuals(eqx.Module):
    """The distances of an iterate from a solution."""

    gap: Float[Array, "*batch"]
    """Largest component of the difference between a state and the step that should lead to it."""
    stationarity: Float[Array, "*batch"]
    """Largest derivative of the Lagrangian by a control that is free to move, or by a free component of the initial
    state, relative to the size of the terms that cancel in it; NaN if the solver does not measure it."""
    violation: Float[Array, "*batch"]
    """Largest violation of a constraint or of a control's bounds."""
    complementarity: Any = None
    """Sum of the products of multipliers and distances from their bounds, at most and relative to the cost's scale,
    which a constant in the cost does not change; None if the solver does not measure it."""


class Multipliers(eqx.Module):
    """Multipliers of dynamics and constraints; None where a solver does not compute them."""

    dynamics: Float[Array, "*batch stages ndx"] | None = None
    """Derivative of the optimal cost by a displacement of each state, `horizon + 1` of them."""
    stage: Float[Array, "*batch horizon m"] | None = None
    """Multipliers of the stage constraints, in their order: positive at an upper bound, negative at a lower one."""
    terminal: Float[Array, "*batch m_end"] | None = None


class Gains(eqx.Module):
    """The locally optimal feedback `u = us - K (x (-) xs)`."""

    feedback: Float[Array, "*batch horizon nu ndx"]
    """Gain matrices `K`."""
    feedforward: Float[Array, "*batch horizon nu"]
    """Step that the controls would take next; zero at a solution."""


class Solution(eqx.Module):
    """A trajectory and how it was found. Batch axes come first, as from `jax.vmap`. `print(solution)` shows the status
    and the errors, and `print(solution.describe(problem))` also what limits the trajectory."""

    xs: Float[Array, "*batch stages nx"]
    """The `horizon + 1` states."""
    us: Float[Array, "*batch horizon nu"]
    cost: Float[Array, "*batch"]
    status: Any
    """A `Status`, as an integer."""
    iterations: Any
    """Number of iterations."""
    residuals: Residuals
    gains: Gains | None = None
    multipliers: Multipliers | None = None
    aux: Any = None
    """Further results, which depend on the solver."""
    history: History | None = None
    """The iterations, if the solver records them."""

    @property
    def success(self):
        """Whether it converged, `[*batch]`."""
        return self.status == Status.CONVERGED

    @property
    def message(self) -> str:
        """The status in words, with the remaining errors unless it converged; for a batch the number of elements with
        each status. For concrete values, not under transformations."""
        if isinstance(self.status, Tracer):
            return "the status is traced"
        if np.ndim(self.status):
            return count_statuses(np.asarray(self.status))
        violation, gap = float(self.residuals.violation), float(self.residuals.gap)
        text = _describe(self.status, violation > 0)
        if self.status == Status.CONVERGED:
            return text
        named = {Status.DIVERGED: "the terms that are not finite", Status.INFEASIBLE: "the constraints that remain"}
        if (what := named.get(Status(int(self.status)))) is not None:
            text = f"{text} (describe(problem) names {what}, and their stages)"
        return f"{text}; the largest violation of a constraint is {violation:.2g}, the largest gap {gap:.2g}"

    def describe(self, problem: Problem) -> str:
        """The text of the solution with what limits it: the constraint, stage and component of the largest violation
        and of the largest multiplier, the other constraints that are violated, the stage of the largest gap, the terms
        that are not finite where a solve has diverged, and the controls that stand at their bounds.

        `problem` is the one that was solved. For concrete values. **Raises** `ModelError` for a batch.
        """
        if not is_concrete(self.status) or np.ndim(self.status):
            raise ModelError(
                "describe needs one solution with values; jax.tree.map(lambda a: a[i], solution) is the one of element "
                "i of a batch"
            )
        limits = describe(self, problem) or ["  nothing"]
        return "\n".join([self.message, *number_lines(self), "limited by", *limits])

    def printed(self) -> printing.Facts:
        """The facts that `repr` shows."""
        if np.ndim(self.status):
            return printing.status(self.status), {}
        status = Status(int(self.status)).name.lower().replace("_", " ")
        return f"{status}, cost {float(self.cost):.6g}, {int(self.iterations)} iterations", {}

    __repr__ = printing.one_line

    def __str__(self) -> str:
        try:
            return "\n".join([self.message, *number_lines(self), *multiplier_lines(self)])
        except Exception:
            # JAX prints solutions without values, or with other objects in their place, in its errors.
            return repr(self)

    def _repr_html_(self) -> str:
        return printing.lines_as_table(repr(self), str(self).splitlines())


def count_statuses(statuses: np.ndarray, noun: str = "") -> str:
    """A line for each status that occurs: how many of the elements have it, and its text."""
    codes, counts = np.unique(statuses, return_counts=True)
    return "\n".join(f"{n} of {statuses.size} {noun}{_describe(code)}" for code, n in zip(codes, counts, strict=True))


def _describe(code, violated: bool = True) -> str:
    status = Status(int(code))
    if status == Status.STALLED and violated:
        return f"{status.text} (where the constraints stay violated they may contradict each other)"
    return status.text
