"""Reports of fits to torques and to roll-outs: tables for the terminal, and pages of HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import DataError, naming_arguments
from jaxdyn._printing import percent
from jaxdyn.sysid.parameters import leaves
from jaxdyn.sysid.recordings import Recording, Recordings, as_recordings
from jaxdyn.sysid.reports import _html as html
from jaxdyn.sysid.rollouts import Quantities, RolloutBootstrap, RolloutErrors, RolloutFit
from jaxdyn.sysid.torques import BaseParameters, Bootstrap, InverseDynamicsFit


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
            parts.append(html.table(["joint", *fits, "R²"], _quality_rows(fits, recordings), caption))
    parts += [
        html.plots_section(lambda: _torque_figures(fits, as_recordings(train if test is None else test)[0])),
        html.links_section({name: x.model for name, x in fits.items()}),
        _parameters_section(name, fit, level, bootstrap),
        _identifiability_section(name, fit, level, bootstrap),
    ]
    html.write_page(path, title, notes, parts)


def _quality_rows(fits: Mapping[str, InverseDynamicsFit], recordings: Recordings) -> list[list[str]]:
    """Rows of a joint's name, its error with each fit, and its R² with the last."""
    evaluations = [fit.evaluate(recordings) for fit in fits.values()]
    columns = [html.format_numbers(np.append(x.rms_error, x.total_rms), ".4f") for x in evaluations]
    columns.append(html.format_numbers(np.append(evaluations[-1].r2, np.nan), ".4f"))
    names = (*next(iter(fits.values())).model.topology.dof_names, "all joints")
    return [list(row) for row in zip(names, *columns, strict=True)]


def _fit_paragraph(name: str, fit: InverseDynamicsFit) -> str:
    bad = [body for body, ok in zip(fit.model.body_names, fit.physical, strict=True) if not ok]
    links = f"not physical: {', '.join(bad)}" if bad else "every link is physical"
    return (
        f"<p><b>{html.escape(name)}</b>: {html.escape(fit.message)}. {fit.iterations} steps in {fit.rounds} rounds "
        f"of re-weighting, {fit.samples} equations; {html.escape(links)}.</p>"
    )


def _parameters_section(name: str, fit: InverseDynamicsFit, level: float, bootstrap: Bootstrap | None) -> str:
    title = f"<h2>Parameters of {html.escape(name)}</h2>"
    if not fit.prior_weight:
        return title + "<p class='note'>Linear least squares determines combinations only; see below.</p>"
    intervals = fit.intervals(level=level)
    columns = {
        "before": html.format_numbers(fit.parameters_of(fit.before)),
        "after": html.format_numbers(intervals.value),
    }
    caption = f"{html.UNITS_CAPTION}; {percent(level)} intervals. Where the data push a positive parameter to "
    caption += "zero, its interval is short, and its standard error is that of values halfway to the start"
    if bootstrap is not None:
        caption += (
            f". The first interval holds for noise with the spectra of the residuals, or noise that differs from block "
            f"to block; that of {bootstrap.blocks} blocks comes from fits to re-sampled blocks, with the prior fixed, "
            f"and does not show what only the prior knows"
        )
    return title + html.interval_table(
        "parameter", intervals, columns | _uncertainty_columns(fit, bootstrap, None, level), caption
    )


def _identifiability_section(name: str, fit: InverseDynamicsFit, level: float, bootstrap: Bootstrap | None) -> str:
    base = fit.base_parameters()
    intervals = fit.intervals(base, level=level)
    lines = [
        f"{base.rank} of {len(base.names)} parameters are independent in the data of {name}; condition number of their "
        f"columns {base.condition_number:.3g}, gap to the other pivots {base.gap:.2g}."
    ]
    if base.unidentifiable:
        nothing = sorted(base.unidentifiable, key=base.names.index)
        lines.append(f"No torque of these motions depends on {', '.join(nothing)}.")
    if fit.prior_weight:
        decided = fit.decided_by_start(html.WEAK)
        lines.append(f"Decided by the start and its prior alone: {', '.join(decided) or 'none'}.")
    text = "".join(f"<p>{html.escape(line)}</p>" for line in lines)
    columns = {"value": html.format_numbers(intervals.value)} | _uncertainty_columns(fit, bootstrap, base, level)
    caption = f"Combinations that the data determine, {percent(level)} intervals"
    return f"<h2>Identifiability</h2>{text}" + html.interval_table("combination", intervals, columns, caption)


def _uncertainty_columns(
    fit: InverseDynamicsFit, bootstrap: Bootstrap | None, base: BaseParameters | None, level: float
) -> dict[str, list[str]]:
    """Columns with standard errors and intervals, by their heads."""
    x = fit.intervals(base, level=level)
    out = {
        "std. error": html.format_numbers(x.standard_error, ".2g"),
        "lower": html.format_numbers(x.lower),
        "upper": html.format_numbers(x.upper),
    }
    if bootstrap is not None:
        x = bootstrap.intervals(fit, base, level=level)
        out |= {f"{end}, {bootstrap.blocks} blocks": html.format_numbers(getattr(x, end)) for end in ("lower", "upper")}
    return out


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
        f"<p><b>{html.escape(fit.message[:1].upper() + fit.message[1:])}</b> after {fit.iterations} steps; "
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
        parts.append(html.table(["horizon", *by_robot], rows, caption))
    parts.append(html.plots_section(lambda: _rollout_figures(fit, errors)))
    parts.append(html.links_section({"before": leaves.model_of(fit.before), "identified": leaves.model_of(fit.robot)}))
    if quantities is not None:
        parts += ["<h2>Combinations</h2>", _quantity_table(fit, quantities, bootstrap, level)]
    decided = fit.intervals(level=level).decided_by_prior(html.WEAK)
    parts += [
        "<h2>Free quantities</h2>",
        f"<p>Decided by the prior alone: {html.escape(', '.join(decided) or 'none')}.</p>",
        _quantity_table(fit, None, bootstrap, level),
    ]
    html.write_page(path, title, notes, parts)


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
    caption = html.UNITS_CAPTION
    if bootstrap is not None:
        drawn = bootstrap.intervals(quantities, level=level)
        intervals[f"{percent(level)}, bootstrap of {bootstrap.blocks} blocks"] = drawn
        caption += ". The bootstrap keeps the prior fixed, so values that the prior determines hardly scatter"
    columns = {"before": html.format_numbers(before), "after": html.format_numbers(plain.value)}
    for name, x in intervals.items():
        columns[name] = [f"{a:.5g} … {b:.5g}" for a, b in zip(x.lower, x.upper, strict=True)]
    return html.interval_table("quantity", plain, columns, caption)


def _rollout_figures(fit: RolloutFit, errors: Mapping[str, Mapping[str, RolloutErrors]]) -> dict[str, Any]:
    # The import stands here so that `import jaxdyn` loads no plotting.
    from jaxdyn.viz import COLORS, figure_class

    figure_type = figure_class()
    figure = figure_type(figsize=(10, 3.2), layout="constrained")
    for panel, (data, by_robot) in zip(figure.subplots(1, len(errors), squeeze=False)[0], errors.items(), strict=True):
        for k, (name, e) in enumerate(by_robot.items()):
            low, middle, high = np.percentile(e.curves(), [25, 50, 75], axis=0)
            color = COLORS[k % len(COLORS)]
            panel.plot(e.horizon[1:], middle, color=color, label=name)
            panel.fill_between(e.horizon[1:], low, high, color=color, alpha=0.2, lw=0)
        panel.set(title=data, xlabel="horizon, s", ylabel="RMSE, rad or m: median, quartiles", yscale="log")
        panel.legend(fontsize=8)
    segments = figure_type(figsize=(10, 2.6), layout="constrained")
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
