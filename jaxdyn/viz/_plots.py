"""Plots of trajectories and of identified models, as matplotlib figures that belong to the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxdyn._errors import DataError, require_shape
from jaxdyn._types import ArrayLike
from jaxdyn.model import Model

COLORS = ("tab:orange", "tab:blue", "tab:red", "tab:green", "tab:purple")
_DRAWN = 4000
"""Points of a curve, at most."""
# Predictions may lie upon one another.
_STYLES = ("-", "--", ":", "-.")


def figure_class() -> Any:
    """`matplotlib.figure.Figure`, which needs no screen. **Raises** `ImportError` that says how to install it."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        reason = "matplotlib is not installed, which draws plots"
        raise ImportError(f"{reason}: pip install 'jaxdyn[viz]'") from error
    return Figure


def plot_torques(
    model: Model,
    t: ArrayLike,
    measured: ArrayLike,
    predicted: Mapping[str, ArrayLike],
    *,
    raw: ArrayLike | None = None,
    title: str = "",
) -> Any:
    """Measured and predicted torques over time, a panel for each degree of freedom: a `matplotlib.figure.Figure`.

    `t` `[n]` in s; `measured`, each of `predicted` (by name) and `raw` (the measurement before a filter, in gray)
    `[n, nv]` in N m or N. The scale is that of the measurement, as predictions may be far off. At most 4000 points of a
    curve are drawn. **Raises** `ShapeError`; `ImportError` without matplotlib.
    """
    figure_type = figure_class()
    t = np.asarray(t, np.float64)
    curves = {"measured": measured, **predicted} | ({} if raw is None else {"as measured": raw})
    known = {name: np.asarray(x, np.float64) for name, x in curves.items()}
    for name, x in known.items():
        require_shape(x, (len(t), model.nv), name, f"nv = {model.nv} torques for each of {len(t)} times")
    some = slice(None, None, max(1, len(t) // _DRAWN))
    figure = figure_type(figsize=(10, 1.7 * model.nv + 0.8), layout="constrained")
    panels = np.atleast_1d(figure.subplots(model.nv, 1, sharex=True))
    for j, (panel, label) in enumerate(zip(panels, _labels(model, model.topology.v_starts), strict=True)):
        if raw is not None:
            panel.plot(t[some], known["as measured"][some, j], color="0.75", lw=0.8, label="as measured")
        panel.plot(t[some], known["measured"][some, j], color="black", lw=1.2, label="measured")
        for k, name in enumerate(predicted):
            style = _STYLES[k % len(_STYLES)]
            panel.plot(t[some], known[name][some, j], style, color=COLORS[k % len(COLORS)], lw=1.0, label=name)
        reference = known["measured" if raw is None else "as measured"][:, j]
        low, high = reference.min(), reference.max()
        room = 0.3 * (high - low) or 1.0
        panel.set_ylim(low - room, high + room)
        panel.set_ylabel(f"{label}\n{_units(model, 'N m', 'N')[j]}", fontsize=8)
        panel.tick_params(labelsize=8)
    panels[0].legend(ncol=len(known), fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    panels[-1].set_xlabel("time, s")
    figure.suptitle(title) if title else None
    return figure


def plot_masses(
    model: Model,
    masses: Mapping[str, ArrayLike],
    intervals: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None,
) -> Any:
    """Masses of the bodies as bars, side by side for several models: a `matplotlib.figure.Figure`.

    `masses`, by name, `[nb]` in kg; `intervals`, of some of them, lower and upper bounds `[nb]`. **Raises**
    `ShapeError`; `ImportError` without matplotlib.
    """
    figure = figure_class()(figsize=(10, 3.2), layout="constrained")
    panel = figure.subplots()
    at, width = np.arange(model.nb), 0.8 / len(masses)
    for k, (name, values) in enumerate(masses.items()):
        values = np.asarray(values, np.float64)
        require_shape(values, (model.nb,), name, f"a mass for each of nb = {model.nb} bodies")
        errors = None
        if intervals is not None and name in intervals:
            lower, upper = (np.asarray(x, np.float64) for x in intervals[name])
            errors = np.stack([values - lower, upper - values])
        place = at + (k - 0.5 * (len(masses) - 1)) * width
        panel.bar(place, values, width, yerr=errors, color=COLORS[k % len(COLORS)], label=name, capsize=2)
    panel.set_xticks(at, model.body_names, fontsize=8, rotation=0 if model.nb <= 10 else 60)
    panel.axhline(0, color="black", lw=0.6)
    panel.set_ylabel("mass, kg")
    panel.legend(fontsize=8, frameon=False)
    return figure


def plot_trajectory(
    model: Model,
    t: ArrayLike,
    q: ArrayLike,
    v: ArrayLike | None = None,
    tau: ArrayLike | None = None,
    *,
    compare: Mapping[str, Sequence[ArrayLike | None]] | None = None,
    joints: Sequence[str] | None = None,
    title: str = "",
) -> Any:
    """Coordinates, velocities and torques over time, a row for each of them: a `matplotlib.figure.Figure`.

    **Arguments**

    - `t`: `[n]`, s. `q`: `[n, nq]`. `v`: `[n, nv]`. `tau`: `[n, nv]`, or `[n - 1, nv]`, held constant over each step.
      A column is drawn for each that is given. Limits of the model are dashed where they are near.
    - `compare`: by name, other trajectories `(q, v, tau)` at the same times, as many of them as wanted, None between.
    - `joints`: names of the joints to draw; by default all that have coordinates.
    - `title`: above all.

    **Raises** `ShapeError`; `UnknownNameError` for `joints`; `DataError` if none is left; `ImportError` without
    matplotlib.
    """
    figure_type = figure_class()
    t = np.asarray(t, np.float64)
    topology = model.topology
    chosen = (
        [topology.joint(x) for x in joints]
        if joints is not None
        else [i for i in range(model.nb) if i not in topology.leaders]
    )
    if not chosen:
        raise DataError("there is no joint to draw; name some in joints=[...]")
    effort = np.asarray(model.effort_limit, np.float64)
    speed = np.asarray(model.velocity_limit, np.float64)
    limits = [
        (np.asarray(model.position_lower, np.float64), np.asarray(model.position_upper, np.float64)),
        (-speed, speed),
        (-effort, effort),
    ]
    given = {"": (q, v, tau), **({} if compare is None else compare)}
    columns = [k for k in range(3) if (q, v, tau)[k] is not None]
    starts = [topology.q_starts, topology.v_starts, topology.v_starts]
    heads = ["coordinates", "velocities", "torques"]
    sizes = [range(s[i], s[i + 1]) for s in starts[:2] for i in chosen]
    rows = max(sum(len(x) for x in sizes[: len(chosen)]) if 0 in columns else 0, sum(map(len, sizes[len(chosen) :])))
    figure = figure_type(figsize=(4.2 * len(columns), 1.25 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, len(columns), sharex=True, squeeze=False)
    for c, column in enumerate(columns):
        numbers = [n for i in chosen for n in range(starts[column][i], starts[column][i + 1])]
        labels = _labels(model, starts[column])
        units = (_coordinate_units(model), _units(model, "rad/s", "m/s"), _units(model, "N m", "N"))[column]
        for row, n in enumerate(numbers):
            panel = panels[row, c]
            for k, (name, parts) in enumerate(given.items()):
                x = parts[column] if column < len(parts) else None
                if x is not None:
                    _draw(panel, t, x, n, len(limits[column][0]), name, k, heads[column], held=column == 2)
            for bound in (limits[column][0][n], limits[column][1][n]):
                low, high = panel.get_ylim()
                if np.isfinite(bound) and low - 0.5 * (high - low) < bound < high + 0.5 * (high - low):
                    panel.axhline(bound, color="0.5", lw=0.8, ls="--")
            panel.set_ylabel(f"{labels[n]}\n{units[n]}", fontsize=7)
            panel.tick_params(labelsize=7)
        for panel in panels[len(numbers) :, c]:
            panel.set_visible(False)
        panels[0, c].set_title(heads[column], fontsize=9)
        panels[len(numbers) - 1, c].set_xlabel("time, s", fontsize=8)
        panels[len(numbers) - 1, c].tick_params(labelbottom=True)
    if len(given) > 1:
        panels[0, 0].legend(fontsize=7, frameon=False)
    figure.suptitle(title) if title else None
    return figure


def _draw(panel, t: np.ndarray, x: ArrayLike, n: int, size: int, name: str, k: int, what: str, *, held: bool) -> None:
    x = np.asarray(x, np.float64)
    steps = len(t) - 1 if held and len(x) == len(t) - 1 else len(t)
    require_shape(x, (steps, size), f"{what} {name}".strip(), f"{size} numbers for each of {len(t)} times")
    style = {"color": "black" if k == 0 else COLORS[(k - 1) % len(COLORS)], "lw": 1.0 if k == 0 else 0.9}
    some = slice(None, None, max(1, len(t) // _DRAWN))
    if steps < len(t):
        panel.step(t, [*x[:, n], x[-1, n]], where="post", label=name or "trajectory", **style)
    else:
        panel.plot(t[some], x[some, n], label=name or "trajectory", **style)


def _labels(model: Model, starts: Sequence[int]) -> list[str]:
    """For each coordinate (or velocity): the joint's name, with a number where it has several."""
    out = []
    for i, joint in enumerate(model.joint_names):
        n = starts[i + 1] - starts[i]
        out += [joint] if n == 1 else [f"{joint}[{k}]" for k in range(n)]
    return out


def _units(model: Model, turning: str, sliding: str) -> list[str]:
    """`[nv]`"""
    out = []
    for kind in model.topology.blocks[0]:
        out += {"P": [sliding], "B": [turning] * 3, "F": [sliding] * 3 + [turning] * 3}.get(str(kind), [turning])
    return out


def _coordinate_units(model: Model) -> list[str]:
    """`[nq]`"""
    out = []
    for kind in model.topology.blocks[0]:
        out += {"P": ["m"], "B": ["1"] * 4, "F": ["m"] * 3 + ["1"] * 4}.get(str(kind), ["rad"])
    return out
