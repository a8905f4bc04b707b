"""Reports of fits to torques and to roll-outs: tables for the terminal, and pages of HTML that need no other file."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._durable_files import write_durably
from jaxdyn._errors import DataError, naming_arguments
from jaxdyn._printing import percent
from jaxdyn.model import Model, rotational_about_center
from jaxdyn.sysid.parameters import is_physical, leaves
from jaxdyn.sysid.recordings import Recording, Recordings, as_recordings
from jaxdyn.sysid.rollouts import Quantities, RolloutBootstrap, RolloutErrors, RolloutFit
from jaxdyn.sysid.torques import BaseParameters, Bootstrap, Intervals, InverseDynamicsFit

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; color: #1c1c1c;
  background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.87rem; margin: 0.8rem 0; }
caption { text-align: left; color: #555; padding-bottom: 0.3rem; }
th, td { padding: 0.15rem 0.7rem; text-align: right; border-bottom: 1px solid #eee; }
th { border-bottom: 1px solid #999; font-weight: 600; } th:first-child, td:first-child { text-align: left; }
tr.weak td { color: #999; } td.bad { color: #b00020; font-weight: 600; }
.scroll { overflow-x: auto; } img { max-width: 100%; height: auto; } p.note { color: #555; }
"""
_ROUNDING = 1e-9
"""The part of a robot's largest mass below which a mass is rounding."""
_WEAK = 0.9
"""Values that keep more than this part of the prior's variance are gray: the data hardly determine them."""
_UNITS_CAPTION = (
    "In SI, inertias about the origin of each body's frame. Prior: the variance divided by that of the prior alone; "
    "gray where the data hardly determine the value"
)


def quality_table(fits: Mapping[str, InverseDynamicsFit], recordings: Recordings, title: str) -> str:
    """The root mean square torque errors (N m or N) of fits on recordings, each joint's and all, as text."""
    rows = [row[:-1] for row in _quality_rows(fits, recordings)]
    width = max(len(row[0]) for row in rows) + 2
    lines = [title, f"{'joint':{width}}" + "".join(f"{name:>16}" for name in fits)]
    lines += [f"{row[0]:{width}}" + "".join(f"{cell:>16}" for cell in row[1:]) for row in rows]
    return "\n".join(lines)


@naming_arguments
def write_report(
    path: str | Path,
    fits: Mapping[str, InverseDynamicsFit],
    train: Recordings,
    test: Recordings | None = None,
    *,
    title: str = "Identification",
    notes: Sequence[str] = (),
    level: float = 0.95,
    bootstrap: Bootstrap | None = None,
) -> None:
    """Write a page about fits of one model: the identified parameters, their uncertainty, and the torque errors.

    The page is one HTML file without links or scripts. It has the errors of each joint on the data of the fit and on
    held-out data, parameters before and after with confidence intervals, masses, centers of mass and principal moments
    of links, the combinations of parameters that the data determine, the parameters that only the prior determines, and
    plots of torques and masses (by matplotlib; without it the page says so).

    **Arguments**

    - `fits`: by name, in the order of columns; the page is about the last one. `InverseDynamicsFit.unfitted(model)`
      as the first compares with the model before the fit.
    - `train`, `test`: recordings, one or several; the plots show the first of `test`, or else of `train`.
    - `notes`: sentences at the top. `level`: the level of the intervals.
    - `bootstrap`: the last fit's `bootstrap(fit, train)`; its intervals are shown beside the others.

    **Raises** `DataError` for no fits, fits of different models, and recordings that do not fit them.
    """
    if not fits:
        raise DataError("there is nothing to report: give at least one fit")
    name, fit = list(fits.items())[-1]
    if any(x.model.joint_names != fit.model.joint_names for x in fits.values()):
        raise DataError("the fits are of models with different joints; a report is about one robot")
    parts = [_fit_paragraph(name, fit), "<h2>Torque errors</h2>"]
    for data, recordings in (("the data of the fit", train), ("held-out data", test)):
        if recordings is not None:
            caption = f"Root mean square error on {data}, N m or N; R² of {name}"
            parts.append(_table(["joint", *fits, "R²"], _quality_rows(fits, recordings), caption))
    parts += [
        _plots_section(lambda: _torque_figures(fits, as_recordings(train if test is None else test)[0])),
        _links_section({name: x.model for name, x in fits.items()}),
        _parameters_section(name, fit, level, bootstrap),
        _identifiability_section(name, fit, level, bootstrap),
    ]
    _write_page(path, title, notes, parts)


def _quality_rows(fits: Mapping[str, InverseDynamicsFit], recordings: Recordings) -> list[list[str]]:
    """Rows of a joint's name, its error with each fit, and its R² with the last."""
    evaluations = [fit.evaluate(recordings) for fit in fits.values()]
    columns = [_format_numbers(np.append(x.rms_error, x.total_rms), ".4f") for x in evaluations]
    columns.append(_format_numbers(np.append(evaluations[-1].r2, np.nan), ".4f"))
    names = (*next(iter(fits.values())).model.topology.dof_names, "all joints")
    return [list(row) for row in zip(names, *columns, strict=True)]


def _fit_paragraph(name: str, fit: InverseDynamicsFit) -> str:
    bad = [body for body, ok in zip(fit.model.body_names, fit.physical, strict=True) if not ok]
    links = f"not physical: {', '.join(bad)}" if bad else "every link is physical"
    return (
        f"<p><b>{escape(name)}</b>: {escape(fit.message)}. {fit.iterations} steps in {fit.rounds} rounds "
        f"of re-weighting, {fit.samples} equations; {escape(links)}.</p>"
    )


def _parameters_section(name: str, fit: InverseDynamicsFit, level: float, bootstrap: Bootstrap | None) -> str:
    title = f"<h2>Parameters of {escape(name)}</h2>"
    if not fit.prior_weight:
        return title + "<p class='note'>Linear least squares determines combinations only; see below.</p>"
    caption = f"{_UNITS_CAPTION}; {percent(level)} intervals. Where the data push a positive parameter to "
    caption += "zero, its interval is short, and its standard error is that of values halfway to the start"
    if bootstrap is not None:
        caption += (
            f". The first interval holds for noise with the spectra of the residuals, or noise that differs from block "
            f"to block; that of {bootstrap.blocks} blocks comes from fits to re-sampled blocks, with the prior fixed, "
            f"and does not show what only the prior knows"
        )
    return title + _uncertainty_table(fit, None, bootstrap, level, caption)


def _identifiability_section(name: str, fit: InverseDynamicsFit, level: float, bootstrap: Bootstrap | None) -> str:
    base = fit.base_parameters()
    lines = [
        f"{base.rank} of {len(base.names)} parameters are independent in the data of {name}; condition number of their "
        f"columns {base.condition_number:.3g}, gap to the other pivots {base.gap:.2g}."
    ]
    if base.unidentifiable:
        nothing = sorted(base.unidentifiable, key=base.names.index)
        lines.append(f"No torque of these motions depends on {', '.join(nothing)}.")
    if fit.prior_weight:
        decided = fit.decided_by_start(_WEAK)
        lines.append(f"Decided by the start and its prior alone: {', '.join(decided) or 'none'}.")
    text = "".join(f"<p>{escape(line)}</p>" for line in lines)
    caption = f"Combinations that the data determine, {percent(level)} intervals"
    return f"<h2>Identifiability</h2>{text}" + _uncertainty_table(fit, base, bootstrap, level, caption)


def _uncertainty_table(
    fit: InverseDynamicsFit, base: BaseParameters | None, bootstrap: Bootstrap | None, level: float, caption: str
) -> str:
    """A table of the parameters, or of the combinations `base`, with standard errors and intervals."""
    x = fit.intervals(base, level=level)
    columns = {} if base is not None else {"before": _format_numbers(fit.parameters_of(fit.before))}
    columns |= {
        "after" if base is None else "value": _format_numbers(x.value),
        "std. error": _format_numbers(x.standard_error, ".2g"),
        "lower": _format_numbers(x.lower),
        "upper": _format_numbers(x.upper),
    }
    if bootstrap is not None:
        y = bootstrap.intervals(fit, base, level=level)
        columns |= {f"{end}, {bootstrap.blocks} blocks": _format_numbers(getattr(y, end)) for end in ("lower", "upper")}
    return _interval_table("parameter" if base is None else "combination", x, columns, caption)


def _torque_figures(fits: Mapping[str, InverseDynamicsFit], recording: Recording) -> dict[str, Any]:
    # The import stands here so that `import jaxdyn` loads no plotting.
    from jaxdyn.viz import plot_masses, plot_torques

    model = next(iter(fits.values())).model
    masses = {name: fit.model.mass for name, fit in fits.items()}
    intervals = {name: fit.intervals() for name, fit in fits.items() if fit.prior_weight}
    ends = slice(0, 10 * model.nb, 10)
    found = {name: fit.evaluate(recording) for name, fit in fits.items()}
    (t,), (measured,) = next((x.t, x.torque) for x in found.values())
    torques = plot_torques(model, t, measured, {name: measured + x.residual[0] for name, x in found.items()})
    below = f" below {recording.cutoff:.3g} Hz" if recording.cutoff else ""
    bars = plot_masses(model, masses, {name: (x.lower[ends], x.upper[ends]) for name, x in intervals.items()})
    return {
        f"measured and predicted torques{below}, {recording.name}": torques,
        "masses of the links, with 95 % intervals": bars,
    }


@naming_arguments
def write_rollout_report(
    path: str | Path,
    fit: RolloutFit,
    errors: Mapping[str, Mapping[str, RolloutErrors]],
    *,
    quantities: Quantities | None = None,
    bootstrap: RolloutBootstrap | None = None,
    title: str = "Identification from roll-outs",
    notes: Sequence[str] = (),
    level: float = 0.95,
) -> None:
    """Write a page about a fit to roll-outs: its errors, the identified quantities, and their uncertainty.

    The page is one HTML file without links or scripts. It has the errors of roll-outs, the free quantities before and
    after with confidence intervals, those that only the prior determines, masses, centers of mass and principal moments
    of links, and plots of the errors over time and of the segments' residuals (by matplotlib; without it the page says
    so).

    **Arguments**

    - `errors`: `rollout_errors` by the name of the data and the name of the robot:
      `{"held out": {"before": ..., "identified": ...}}`.
    - `quantities`: functions of the robot, by name, such as what the motion determines, for a table of their own.
    - `bootstrap`: `fit.bootstrap()`; its intervals are shown beside the others.
    - `notes`: sentences at the top. `level`: the level of the intervals.

    **Raises** `DataError` for no errors.
    """
    if not errors or not all(errors.values()):
        raise DataError("there is nothing to report: give the roll-out errors of at least one robot on some data")
    zeros = fit.zeros[np.any(fit.zeros != 0, axis=1)]
    offsets = f"; the sensors' zeros of {len(zeros)} recordings were identified too" if len(zeros) else ""
    head = (
        f"<p><b>{escape(fit.message[:1].upper() + fit.message[1:])}</b> after {fit.iterations} steps; "
        f"{len(fit.free)} free numbers, {len(fit.segment_times)} segments of "
        f"{len(np.unique(fit.segment_recordings))} recordings{offsets}.</p>"
    )
    parts = [head, "<h2>Roll-out errors</h2>"]
    for data, by_robot in errors.items():
        longest = next(iter(by_robot.values())).horizon[-1]
        rows = []
        for h in (0.5 * longest, longest):
            quartiles = (np.percentile(e.rmse(h), [25, 50, 75]) for e in by_robot.values())
            rows.append([f"{h:g} s", *(" / ".join(f"{x:.4f}" for x in q) for q in quartiles)])
        caption = f"Root mean square error of positions up to a horizon, rad or m, {data}: quartiles over roll-outs"
        parts.append(_table(["horizon", *by_robot], rows, caption))
    parts.append(_plots_section(lambda: _rollout_figures(fit, errors)))
    parts.append(_links_section({"before": leaves.model_of(fit.before), "identified": leaves.model_of(fit.robot)}))
    if quantities is not None:
        parts += ["<h2>Combinations</h2>", _quantity_table(fit, quantities, bootstrap, level)]
    decided = fit.intervals(level=level).decided_by_prior(_WEAK)
    parts += [
        "<h2>Free quantities</h2>",
        f"<p>Decided by the prior alone: {escape(', '.join(decided) or 'none')}.</p>",
        _quantity_table(fit, None, bootstrap, level),
    ]
    _write_page(path, title, notes, parts)


def _quantity_table(
    fit: RolloutFit, quantities: Quantities | None, bootstrap: RolloutBootstrap | None, level: float
) -> str:
    plain = fit.intervals(quantities, level=level)
    functions = [fit.free_entries] if quantities is None else list(quantities.values())
    before = np.concatenate([np.ravel(np.asarray(f(fit.before), np.float64)) for f in functions])
    intervals = {
        f"{percent(level)}, independent samples": plain,
        f"{percent(level)}, independent segments": fit.intervals(quantities, level=level, clustered=True),
    }
    caption = _UNITS_CAPTION
    if bootstrap is not None:
        drawn = bootstrap.intervals(quantities, level=level)
        intervals[f"{percent(level)}, bootstrap of {bootstrap.blocks} blocks"] = drawn
        caption += ". The bootstrap keeps the prior fixed, so values that the prior determines hardly scatter"
    columns = {"before": _format_numbers(before), "after": _format_numbers(plain.value)}
    for name, x in intervals.items():
        columns[name] = [f"{a:.5g} … {b:.5g}" for a, b in zip(x.lower, x.upper, strict=True)]
    return _interval_table("quantity", plain, columns, caption)


def _rollout_figures(fit: RolloutFit, errors: Mapping[str, Mapping[str, RolloutErrors]]) -> dict[str, Any]:
    # The import stands here so that `import jaxdyn` loads no plotting.
    from jaxdyn.viz import COLORS, figure_class

    figure = figure_class()(figsize=(10, 3.2), layout="constrained")
    for panel, (data, by_robot) in zip(figure.subplots(1, len(errors), squeeze=False)[0], errors.items(), strict=True):
        for k, (name, e) in enumerate(by_robot.items()):
            low, middle, high = np.percentile(e.curves(), [25, 50, 75], axis=0)
            color = COLORS[k % len(COLORS)]
            panel.plot(e.horizon[1:], middle, color=color, label=name)
            panel.fill_between(e.horizon[1:], low, high, color=color, alpha=0.2, lw=0)
        panel.set(title=data, xlabel="horizon, s", ylabel="RMSE, rad or m: median, quartiles", yscale="log")
        panel.legend(fontsize=8)
    segments = figure_class()(figsize=(10, 2.6), layout="constrained")
    panel = segments.subplots()
    for k, recording in enumerate(np.unique(fit.segment_recordings)):
        mine = fit.segment_recordings == recording
        color = COLORS[k % len(COLORS)]
        panel.plot(
            fit.segment_times[mine], fit.segment_residuals[mine], ".-", color=color, lw=0.8, label=f"{recording}"
        )
    panel.set(xlabel="time, s", ylabel="residual / noise")
    panel.legend(title="recording", fontsize=8, ncol=4)
    return {
        "errors of roll-outs up to a horizon": figure,
        "residuals of the segments of the fit, after the loss": segments,
    }


def _write_page(path: str | Path, title: str, notes: Sequence[str], parts: Sequence[str]) -> None:
    """Write a page with sentences at its top and then parts that are HTML."""
    body = "\n".join([*(f"<p>{escape(note)}</p>" for note in notes), *parts])
    page = (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{escape(title)}</title><style>{_STYLE}</style>"
        f"</head><body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )
    write_durably(Path(path), lambda temporary: temporary.write_text(page, encoding="utf-8"))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, weak: Sequence[bool] | None = None) -> str:
    """A table; rows that are `weak` are gray, and cells with `NO` stand out."""
    cells = "".join(f"<th>{escape(x)}</th>" for x in head)
    lines = []
    for k, row in enumerate(rows):
        kind = " class='weak'" if weak and weak[k] else ""
        inner = "".join(f"<td{' class=bad' if x == 'NO' else ''}>{escape(x)}</td>" for x in row)
        lines.append(f"<tr{kind}>{inner}</tr>")
    body = "\n".join(lines)
    return (
        f"<div class='scroll'><table><caption>{escape(caption)}</caption><thead><tr>{cells}</tr></thead>"
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _interval_table(kind: str, intervals: Intervals, columns: Mapping[str, Sequence[str]], caption: str) -> str:
    """A table of the names of intervals, further columns, and the prior's share."""
    share = intervals.prior_share
    columns = {kind: intervals.names, **columns, "prior": [percent(round(x, 3)) for x in share]}
    return _table(list(columns), list(zip(*columns.values(), strict=True)), caption, [x > _WEAK for x in share])


def _format_numbers(values: np.ndarray, form: str = ".5g") -> list[str]:
    """Numbers as text, empty where they are NaN."""
    return ["" if np.isnan(x) else f"{x:{form}}" for x in values]


def _links_section(models: Mapping[str, Model]) -> str:
    """The masses, centers of mass and principal moments of the links of models of one robot."""
    parameters = {name: np.asarray(model.inertial_parameters, np.float64) for name, model in models.items()}
    rows = []
    for i, body in enumerate(next(iter(models.values())).body_names):
        for name, x in parameters.items():
            p, com, moments = x[i], "", ""
            # A mass that is rounding has no center.
            if abs(p[0]) > _ROUNDING * np.abs(x[:, 0]).max():
                com = " ".join(f"{x:.4f}" for x in p[1:4] / p[0])
                moments = " ".join(f"{x:.4g}" for x in np.linalg.eigvalsh(rotational_about_center(p)))
            rows.append([body, name, f"{p[0]:.4f}", com, moments, "yes" if is_physical(p) else "NO"])
    caption = "Mass, kg; center of mass, m; principal moments of inertia about it, kg m²"
    head = ["link", "of", "mass", "center of mass", "principal moments", "physical"]
    return "<h2>Links</h2>" + _table(head, rows, caption)


def _plots_section(draw: Callable[[], Mapping[str, Any]]) -> str:
    """The figures that `draw` returns, by their captions; a note where it finds no matplotlib."""
    try:
        figures = draw()
    except ImportError as error:
        return f"<p class='note'>No plots: {escape(str(error))}.</p>"
    out = "<h2>Plots</h2>"
    for caption, figure in figures.items():
        data, text = io.BytesIO(), escape(caption[:1].upper() + caption[1:])
        figure.savefig(data, format="png", dpi=110)
        source = f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
        out += f"<figure><img alt='{text}' src='{source}'><figcaption>{text}</figcaption></figure>"
    return out
