"""Reports of fits to roll-outs, as pages of HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import DataError, naming_arguments
from jaxdyn._printing import percent
from jaxdyn.sysid.parameters import leaves
from jaxdyn.sysid.reports import _html as html
from jaxdyn.sysid.rollouts import Quantities, RolloutBootstrap, RolloutErrors, RolloutFit


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
