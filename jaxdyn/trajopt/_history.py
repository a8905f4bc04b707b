"""The iterations of a solve: their record, its table and plot, and a line of progress while the solve runs."""

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._durable_files import write_durably
from jaxdyn._errors import ModelError, require_positive_integer, require_suffix
from jaxdyn._printing import is_concrete
from jaxdyn._status import Status
from jaxdyn._types import Array, Float

type Progress = Callable[[Any, "IterationRecord", Any], Any]
"""Called on the host as `progress(iteration, record, status)`, with NumPy numbers."""


class IterationRecord(NamedTuple):
    """The numbers of an iteration: of the iterate from which it starts, and of the step that it takes. NaN where a
    solver does not have one."""

    cost: Any = jnp.nan
    violation: Any = jnp.nan
    """Largest violation of a constraint or of a control's bounds."""
    gap: Any = jnp.nan
    """Largest component of the difference between a state and the step that should lead to it."""
    stationarity: Any = jnp.nan
    """Largest derivative of the Lagrangian, relative to the size of its terms."""
    complementarity: Any = jnp.nan
    """Largest product of a multiplier and the distance from its bound."""
    step_length: Any = jnp.nan
    """Part of the step that was taken, from 0 (none) to 1."""
    regularization: Any = jnp.nan
    barrier: Any = jnp.nan
    """Parameter of the barrier of an interior point method; zero where a step has found an active set instead."""


_COLUMNS = {
    "cost": ("cost", 13, ".5e"),
    "violation": ("violation", 11, ".2e"),
    "gap": ("gap", 11, ".2e"),
    "stationarity": ("stationary", 11, ".2e"),
    "complementarity": ("complement", 11, ".2e"),
    "step_length": ("step", 9, ".4f"),
    "regularization": ("regular.", 10, ".1e"),
    "barrier": ("barrier", 10, ".1e"),
}
"""The title, width and format of each column of the table."""


class History(eqx.Module):
    """The iterations of a solve, a row for each; NaN after the last one and where a solver does not have a number.

    Row `i` has the iterate from which iteration `i` starts and the step that it takes, so the errors after the last
    step are those of the solution. `print(history)` shows a table. Batch axes come first.
    """

    cost: Float[Array, "*batch length"]
    violation: Float[Array, "*batch length"]
    gap: Float[Array, "*batch length"]
    stationarity: Float[Array, "*batch length"]
    complementarity: Float[Array, "*batch length"]
    step_length: Float[Array, "*batch length"]
    regularization: Float[Array, "*batch length"]
    barrier: Float[Array, "*batch length"]
    iterations: Any
    """Number of iterations, of which those beyond the length have no row."""

    @staticmethod
    def empty(length: int, dtype: Any = float) -> "History":
        """A history without iterations, with space for `length` of them. **Raises** `ModelError`."""
        require_positive_integer(length, "the length of a history")
        rows = {name: jnp.full(length, jnp.nan, dtype) for name in IterationRecord._fields}
        return History(**rows, iterations=jnp.zeros((), jnp.int32))

    def stored(self, i, record: IterationRecord) -> "History":
        """The history with a record in row `i`, also under transformations; a row beyond the length is left out."""
        rows = {
            name: getattr(self, name).at[i].set(jnp.asarray(value, self.cost.dtype), mode="drop")
            for name, value in record._asdict().items()
        }
        return History(**rows, iterations=jnp.asarray(i + 1, jnp.int32))

    def record(self, i: int) -> IterationRecord:
        """The record of iteration `i`; for a batch with its axes."""
        return IterationRecord(*(getattr(self, name)[..., i] for name in IterationRecord._fields))

    def __repr__(self) -> str:
        if not is_concrete(self.iterations):
            return "History(without values)"
        shown = np.asarray(self.iterations).tolist() if np.ndim(self.iterations) < 2 else "a batch of"
        return f"History({shown} iterations)"

    def __str__(self) -> str:
        if not is_concrete(self.iterations):
            return repr(self)
        if np.ndim(self.iterations):
            return f"{self!r}; jax.tree.map(lambda a: a[i], history) is the one of element i"
        rows = self._rows()
        columns = [name for name in _COLUMNS if np.isfinite(getattr(rows, name)).any()]
        lines = [_header(columns)]
        lines += [_row(i, IterationRecord(*values), columns) for i, values in enumerate(zip(*rows, strict=True))]
        lost = int(self.iterations) - len(rows.cost)
        return "\n".join([*lines, f"and {lost} more iterations, which are not recorded"] if lost else lines)

    def _rows(self) -> IterationRecord:
        """The iterations that took place. **Raises** `ModelError` for a batch."""
        if np.ndim(self.iterations):
            raise ModelError(
                f"this history is that of a batch of {np.shape(self.iterations)} solves; take one by "
                "jax.tree.map(lambda a: a[i], history)"
            )
        n = int(self.iterations)
        return IterationRecord(*(np.asarray(getattr(self, name))[:n] for name in IterationRecord._fields))

    def plot(self, path: str | Path | None = None) -> Any:
        """Plot the iterations: the cost, the errors, step lengths, and regularization and barrier, on logarithmic axes
        where numbers span orders of magnitude. Returns a `matplotlib.figure.Figure`, and writes it to `path`.

        The path ends with .png, .svg, .pdf, .jpg, .jpeg or .webp.

        Zeros, which a logarithmic axis cannot show, are crosses at its lower edge. **Raises** `ModelError` for a batch
        or without iterations; `DataError` for another path; `ImportError` without matplotlib.
        """
        # Imported late: plots are an extra.
        from jaxdyn.viz import COLORS, figure_class

        if path is not None:
            path = require_suffix(path, (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp"), "the plot")
        figure_type, rows = figure_class(), self._rows()
        if not len(rows.cost):
            raise ModelError("the history has no iterations to plot")
        panels = [(label, [n for n in names if np.isfinite(getattr(rows, n)).any()]) for label, names in _PANELS]
        panels = [(label, names) for label, names in panels if names]
        figure = figure_type(figsize=(8, 1.9 * len(panels) + 0.6), layout="constrained")
        axes = np.atleast_1d(figure.subplots(len(panels), 1, sharex=True))
        for axis, (label, names) in zip(axes, panels, strict=True):
            for name, color in zip(names, COLORS, strict=False):
                _draw(axis, getattr(rows, name), name.replace("_", " "), color, log=_is_log(rows, names))
            axis.set_ylabel(label, fontsize=8)
            axis.tick_params(which="both", labelsize=8)
            axis.grid(alpha=0.3)
            if len(axis.get_legend_handles_labels()[1]) > 1:
                axis.legend(fontsize=8, frameon=False)
        axes[-1].set_xlabel("iteration")
        axes[-1].xaxis.get_major_locator().set_params(integer=True)
        if path is not None:
            write_durably(path, lambda temporary: figure.savefig(temporary, dpi=110))
        return figure


_PANELS = (
    ("cost", ["cost"]),
    ("violation and gap,\nunits of the residuals", ["violation", "gap"]),
    ("errors of optimality", ["stationarity", "complementarity"]),
    ("step length", ["step_length"]),
    ("regularization\nand barrier", ["regularization", "barrier"]),
)


def _is_log(rows: IterationRecord, names: list[str]) -> bool:
    """Whether the curves of a panel need a logarithmic axis: none is negative, and they span two orders."""
    values = np.concatenate([getattr(rows, name) for name in names])
    values = values[np.isfinite(values)]
    positive = values[values > 0]
    spread = len(positive) > 0 and (names != ["cost"] or positive.max() > 100 * positive.min())
    return bool(spread and (values >= 0).all())


def _draw(axis, values: np.ndarray, label: str, color: str, *, log: bool) -> None:
    numbers = np.arange(len(values))
    shown = np.isfinite(values) & ((values > 0) | (not log))
    if log:
        axis.set_yscale("log")
    axis.plot(numbers, np.where(shown, values, np.nan), ".-", color=color, label=label, lw=1.0, ms=4)
    edge = axis.get_xaxis_transform()
    hidden = {"zero": ("x", 0.03, (values == 0) & log), "infinite": ("^", 0.97, np.isposinf(values))}
    for what, (marker, height, where) in hidden.items():
        if where.any():
            heights = np.full(where.sum(), height)
            axis.plot(numbers[where], heights, marker, color=color, transform=edge, ms=4, label=f"{label}: {what}")


def _header(columns: list[str]) -> str:
    return "iter" + "".join(f"{title:>{width}}" for title, width, _ in (_COLUMNS[name] for name in columns))


def _row(i: int, record: IterationRecord, columns: list[str]) -> str:
    cells = []
    for name in columns:
        _, width, form = _COLUMNS[name]
        value = float(getattr(record, name))
        cells.append(f"{'-' if np.isnan(value) else format(value, form):>{width}}")
    return f"{i:4d}" + "".join(cells)


_SECONDS_BETWEEN_ROWS = 10.0
_row_written = -math.inf
"""When the last row of progress was written, s of the monotonic clock."""


def progress_line(iteration: Any, record: IterationRecord, status: Any) -> None:
    """Print the numbers of an iteration to stderr, for solvers that take a function to follow their progress.

    In a terminal this is one line that is drawn anew. Elsewhere, such as in the log of a job, it is a table with rows
    of the first iteration, of one every ten seconds, and of the last. At the end the status follows in words. In a
    batch of solves the lines of the elements mix.
    """
    global _row_written
    stream, i = sys.stderr, int(iteration)
    ended = int(status) != Status.RUNNING
    if stream.isatty():
        known = [f"{name.replace('_', ' ')} {x:.3g}" for name, x in _known(record).items()]
        # To the start of the line, which is erased to its end.
        stream.write(f"\r\x1b[K{i}: {', '.join(known)}" + ("\n" if ended else ""))
    elif (now := time.monotonic()) - _row_written >= _SECONDS_BETWEEN_ROWS or i == 0 or ended:
        _row_written = now
        columns = list(_COLUMNS)
        lines = [_header(columns)] if i == 0 else []
        stream.write("\n".join([*lines, _row(i, record, columns)]) + "\n")
    if ended:
        stream.write(f"{Status(int(status)).text}\n")
    stream.flush()


def _known(record: IterationRecord) -> dict[str, float]:
    numbers = {name: float(x) for name, x in record._asdict().items()}
    return {name: x for name, x in numbers.items() if not np.isnan(x)}


def report_iteration(progress: Progress | None, iteration, record: IterationRecord, status, running=True) -> None:
    """Call `progress` on the host at each iteration of a compiled solve; nothing is compiled for None.

    - `status`: after the iteration. `running`: whether the solve had not ended before it; in a batch, the elements that
      have ended go through further iterations, which are not reported.
    """
    if progress is None:
        return

    def call(iteration, record, status, running):
        if running:
            progress(iteration, record, status)

    jax.debug.callback(call, *jax.tree.map(jnp.asarray, (iteration, record, status, running)))
