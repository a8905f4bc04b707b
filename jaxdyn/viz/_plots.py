"""Plots of trajectories and of identified models, as matplotlib figures that belong to the caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxdyn._errors import DataError, naming_arguments, require_shape
from jaxdyn._extras import import_extra
from jaxdyn._types import ArrayLike
from jaxdyn.model import Model
from jaxdyn.simulate import Trajectory
from jaxdyn.worlds import World

COLORS = ("tab:orange", "tab:blue", "tab:red", "tab:green", "tab:purple")
_DRAWN = 4000
"""The most points of a curve."""
_ROUNDING = 1e-9
"""The part of the largest mass below which a mass is rounding."""
# Predictions may lie upon one another.
_STYLES = ("-", "--", ":", "-.")


def figure_class() -> Any:
    """Return `matplotlib.figure.Figure`, which needs no screen. **Raises** `ImportError` if it is not installed."""
    return import_extra("matplotlib.figure", "draw plots").Figure


@naming_arguments
def plot_torques(
    model: Model,
    t: ArrayLike,
    measured: ArrayLike,
    predicted: Mapping[str, ArrayLike],
    *,
    raw: ArrayLike | None = None,
    title: str = "",
) -> Any:
    """Plot measured and predicted torques over time, a panel for each degree of freedom, and below it the errors of the
    predictions. Returns a `matplotlib.figure.Figure`.

    `t` `[n]` in s; `measured`, each of `predicted` (by name) and `raw` (the measurement before a filter, in gray)
    `[n, nv]` in N m or N. The measurement and the last prediction set the scale of torques, unless that prediction is
    far off, and the last prediction sets that of errors. At most 4000 points of a curve are drawn. **Raises**
    `ShapeError`; `ImportError` without matplotlib.
    """
    figure_type = figure_class()
    t = np.asarray(t, np.float64)
    curves = {"measured, raw": raw, "measured": measured, **predicted}
    torques = {name: np.asarray(x, np.float64) for name, x in curves.items() if x is not None}
    for name, x in torques.items():
        require_shape(x, (len(t), model.nv), name, f"nv = {model.nv} torques for each of {len(t)} times")
    styles: dict[str, Any] = {"measured, raw": {"color": "0.75", "lw": 0.8}, "measured": {"color": "black", "lw": 1.2}}
    for k, name in enumerate(predicted):
        styles[name] = {"color": COLORS[k % len(COLORS)], "ls": _STYLES[k % len(_STYLES)], "lw": 1.0}
    some = slice(None, None, max(1, len(t) // _DRAWN))
    rows = 2 if predicted else 1
    figure = figure_type(figsize=(10, (1.5 * rows + 0.2) * model.nv + 0.8), layout="constrained")
    panels = np.atleast_1d(figure.subplots(rows * model.nv, 1, sharex=True, height_ratios=[2, 1][:rows] * model.nv))
    for panel in panels[1::2] if predicted else ():
        panel.axhline(0, color="black", lw=0.6)
    for j, (panel, label) in enumerate(zip(panels[::rows], model.topology.dof_names, strict=True)):
        for name, x in torques.items():
            if name in predicted:
                panels[2 * j + 1].plot(t[some], (x - torques["measured"])[some, j], **styles[name])
            panel.plot(t[some], x[some, j], label=name, **styles[name])
        reference = torques["measured" if raw is None else "measured, raw"][:, j]
        low, high = reference.min(), reference.max()
        room = 0.3 * (high - low) or 1.0
        last = list(torques.values())[-1][:, j]
        least, most = max(last.min(), low - 3 * room), min(last.max(), high + 3 * room)
        panel.set_ylim(min(low, least) - room, max(high, most) + room)
        panel.set_ylabel(f"{label}\n{_units(model, 'N m', 'N')[j]}", fontsize=8)
        panel.tick_params(labelsize=8)
        if predicted:
            worst = float(np.abs(list(torques.values())[-1] - torques["measured"])[:, j].max())
            panels[2 * j + 1].set_ylim(*(1.2 * worst * np.array([-1, 1]) if worst > 0 else (-1, 1)))
            panels[2 * j + 1].set_ylabel("error", fontsize=8)
            panels[2 * j + 1].tick_params(labelsize=8)
    panels[0].legend(ncol=len(torques), fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.0), frameon=False)
    panels[-1].set_xlabel("time, s")
    figure.suptitle(title) if title else None
    return figure


@naming_arguments
def plot_masses(
    model: Model, masses: Mapping[str, ArrayLike], intervals: Mapping[str, tuple[ArrayLike, ArrayLike]] | None = None
) -> Any:
    """Plot masses of the bodies on a logarithmic axis, side by side for several models. Returns a
    `matplotlib.figure.Figure`.

    `masses`, by name, `[nb]` in kg; `intervals`, of some of them, lower and upper bounds `[nb]`. Masses that are not
    positive, or that are rounding beside the largest, which least squares may have, are crosses at the lower edge.
    **Raises** `ShapeError`; `ImportError` without matplotlib.
    """
    figure = figure_class()(figsize=(10, 3.2), layout="constrained")
    panel = figure.subplots()
    centers, width = np.arange(model.nb), 0.6 / len(masses)
    panel.set_yscale("log")
    for k, (name, values) in enumerate(masses.items()):
        values = np.asarray(values, np.float64)
        require_shape(values, (model.nb,), name, f"a mass for each of nb = {model.nb} bodies")
        lower = upper = values
        if intervals is not None and name in intervals:
            lower, upper = (np.asarray(x, np.float64) for x in intervals[name])
        place, color = centers + (k - 0.5 * (len(masses) - 1)) * width, COLORS[k % len(COLORS)]
        good = values > _ROUNDING * np.abs(values).max()
        errors = np.stack([values - np.maximum(lower, 1e-6 * np.abs(values)), upper - values])[:, good]
        panel.errorbar(place[good], values[good], yerr=errors, fmt="o", color=color, label=name, capsize=2, ms=4)
        edge = panel.get_xaxis_transform()
        panel.plot(place[~good], 0.03 + 0 * place[~good], "x", color=color, transform=edge)
    panel.set_xticks(centers, model.body_names, fontsize=8, rotation=0 if model.nb <= 10 else 60)
    panel.set_ylabel("mass, kg")
    panel.legend(fontsize=8, frameon=False)
    return figure


@naming_arguments
def plot_trajectory(
    model: Model | World,
    t: ArrayLike | Trajectory,
    q: ArrayLike | None = None,
    v: ArrayLike | None = None,
    tau: ArrayLike | None = None,
    *,
    control: ArrayLike | None = None,
    compare: Mapping[str, Trajectory | Sequence[ArrayLike | None]] | None = None,
    joints: Sequence[str] | None = None,
    title: str = "",
) -> Any:
    """Plot coordinates, velocities, torques and controls over time, a row for each. Returns a
    `matplotlib.figure.Figure`.

    **Arguments**

    - `model`: a model, or a world, whose controls can be drawn.
    - `t`: `[n]`, s. `q`: `[n, nq]`. `v`: `[n, nv]`. `tau`: `[n, nv]`, or `[n - 1, nv]`, held constant over each step;
      so `control`, with the controls of a world. A column is drawn for each that is given. Or `t` is a `Trajectory`
      without batch axes, which has all of them. Limits of the model are dashed where they are near.
    - `compare`: by name, other trajectories, or `(q, v, tau, control)`, at the same times; shorter tuples are allowed,
      and None.
    - `joints`: names of the joints to draw; by default all that have coordinates.
    - `title`: above all.

    **Raises** `ShapeError`; `UnknownNameError` for `joints`; `DataError` without joints or without `q`; `ImportError`
    without matplotlib.
    """
    figure_type = figure_class()
    world, model = (model, model.model) if isinstance(model, World) else (None, model)
    given = q, v, tau, control
    if isinstance(t, Trajectory):
        given, t = _parts_of(t), t.t
    if given[0] is None:
        raise DataError("there are no coordinates to draw; give q, or a Trajectory in the place of t")
    t, topology = np.asarray(t, np.float64), model.topology
    everything = [i for i in range(model.nb) if i not in topology.leaders]
    chosen = everything if joints is None else [topology.joint(x) for x in joints]
    if not chosen:
        raise DataError("there is no joint to draw; name some in joints=[...]")
    curves = {"": given, **{name: _parts_of(x) for name, x in (compare or {}).items()}}
    columns = [c for c in _columns(model, chosen, world) if given[c.part] is not None]
    rows = max(len(column.rows) for column in columns)
    figure = figure_type(figsize=(4.2 * len(columns), 1.25 * rows + 0.9), layout="constrained")
    panels = figure.subplots(rows, len(columns), sharex=True, squeeze=False)
    for c, column in enumerate(columns):
        for panel, row in zip(panels[:, c], column.rows, strict=False):
            for k, (name, parts) in enumerate(curves.items()):
                if column.part < len(parts) and parts[column.part] is not None:
                    _draw(panel, t, parts[column.part], row, column, name, k)
            for bound in (column.lower[row], column.upper[row]):
                low, high = panel.get_ylim()
                if np.isfinite(bound) and low - 0.5 * (high - low) < bound < high + 0.5 * (high - low):
                    panel.axhline(bound, color="0.5", lw=0.8, ls="--")
            panel.set_ylabel(f"{column.labels[row]}\n{column.units[row]}", fontsize=7)
            panel.tick_params(labelsize=7)
        for panel in panels[len(column.rows) :, c]:
            panel.set_visible(False)
        panels[0, c].set_title(column.title, fontsize=9)
        panels[len(column.rows) - 1, c].set_xlabel("time, s", fontsize=8)
        panels[len(column.rows) - 1, c].tick_params(labelbottom=True)
    if len(curves) > 1:
        panels[0, 0].legend(fontsize=7, frameon=False)
    figure.suptitle(title) if title else None
    return figure


class _Column(NamedTuple):
    """A column of panels: coordinates, velocities or torques."""

    part: int
    """The index of the quantity in `(q, v, tau, control)`."""
    title: str
    rows: list[int]
    """The coordinates (or degrees of freedom) to draw, of all those that the other fields are for."""
    labels: tuple[str, ...]
    units: list[str]
    lower: np.ndarray
    upper: np.ndarray


def _parts_of(trajectory: Any) -> Sequence[Any]:
    """Return `(q, v, tau, control)` of a trajectory; a tuple of these is returned as it is."""
    if not isinstance(trajectory, Trajectory):
        return trajectory
    return tuple(getattr(trajectory, name) for name in ("q", "v", "tau", "control"))


def _columns(model: Model, joints: list[int], world: World | None) -> list[_Column]:
    topology = model.topology
    starts = (topology.q_starts, topology.v_starts, topology.v_starts)
    labels = (topology.coordinate_names, topology.dof_names, topology.dof_names)
    rows = [[n for i in joints for n in range(s[i], s[i + 1])] for s in starts]
    units = (topology.coordinate_units.tolist(), _units(model, "rad/s", "m/s"), _units(model, "N m", "N"))
    lower = (model.position_lower, -model.velocity_limit, -model.effort_limit)
    upper = (model.position_upper, model.velocity_limit, model.effort_limit)
    limits = [[np.asarray(x, np.float64) for x in pair] for pair in zip(lower, upper, strict=True)]
    titles = ("coordinates", "velocities", "torques")
    columns = [_Column(k, titles[k], rows[k], labels[k], units[k], *limits[k]) for k in range(3)]
    if world is not None and world.nu:
        bounds = np.asarray(world.parts.actuators.control_range, np.float64)
        names, everything = world.actuator_names, list(range(world.nu))
        columns.append(_Column(3, "controls", everything, names, [""] * world.nu, *bounds.T))
    return columns


def _draw(panel, t: np.ndarray, x: ArrayLike, row: int, column: _Column, name: str, k: int) -> None:
    """Draw curve `k` of a panel. Torques and controls may be held over each step."""
    x, size = np.asarray(x, np.float64), len(column.lower)
    steps = len(t) - 1 if column.title in ("torques", "controls") and len(x) == len(t) - 1 else len(t)
    require_shape(x, (steps, size), f"{column.title} {name}".strip(), f"{size} numbers for each of {len(t)} times")
    style = {"color": "black" if k == 0 else COLORS[(k - 1) % len(COLORS)], "lw": 1.0 if k == 0 else 0.9}
    some = slice(None, None, max(1, len(t) // _DRAWN))
    if steps < len(t):
        panel.step(t, [*x[:, row], x[-1, row]], where="post", label=name or "trajectory", **style)
    else:
        panel.plot(t[some], x[some, row], label=name or "trajectory", **style)


def _units(model: Model, turning: str, sliding: str) -> list[str]:
    """Return the unit of each degree of freedom."""
    return [turning if unit == "rad" else sliding for unit in model.topology.dof_units]
