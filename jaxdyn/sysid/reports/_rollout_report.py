"""What a fit to roll-outs found, as a page of HTML that needs no other file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.sysid.parameters._block import model_of
from jaxdyn.sysid.reports._report import WEAK, escaped, image, links_section, page, table
from jaxdyn.sysid.rollouts._actuated_robot import RolloutErrors
from jaxdyn.sysid.rollouts._rollout_result import Quantities, RolloutBootstrap, RolloutFit
from jaxdyn.sysid.torques._fit_result import InverseDynamicsFit


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
    """Write a page about a fit to roll-outs: how well it predicts, what was identified, how certain that is.

    One file of HTML without links, scripts or other files. It has the errors of roll-outs, what is free before and
    after with confidence intervals, what the prior alone decides, links with their masses, centers of mass and
    principal moments, and plots of the errors over time and of the segments' residuals (by matplotlib; without it the
    page says so).

    **Arguments**

    - `errors`: by the name of the data and that of the robot, `rollout_errors` of each:
      `{"held out": {"before": ..., "identified": ...}}`.
    - `quantities`: of the robot, by name, which have a table of their own, such as combinations that the motion shows.
    - `bootstrap`: `fit.bootstrap()`, whose intervals stand beside the others.
    - `notes`: sentences at the top.
    - `level`: of the intervals.

    **Raises** `DataError` for no errors.
    """
    if not errors or not all(errors.values()):
        raise DataError("there is nothing to report: give the roll-out errors of at least one robot on some data")
    zeros = fit.zeros[np.any(fit.zeros != 0, axis=1)]
    found = f"; zeros of {len(zeros)} recordings were found, too" if len(zeros) else ""
    head = (
        f"<p><b>{escaped(fit.status[:1].upper() + fit.status[1:])}</b> after {fit.iterations} steps; "
        f"{len(fit.free)} free numbers, {len(fit.segment_times)} segments of "
        f"{len(np.unique(fit.segment_recordings))} recordings{found}.</p>"
    )
    parts = [*(f"<p>{escaped(note)}</p>" for note in notes), head, "<h2>Roll-out errors</h2>"]
    for data, by_robot in errors.items():
        longest = next(iter(by_robot.values())).horizon[-1]
        rows = [
            [f"{h:g} s", *(" / ".join(f"{x:.4f}" for x in np.percentile(e.rmse(h), [25, 50, 75])) for e in robots)]
            for h in (0.5 * longest, longest)
            for robots in (by_robot.values(),)
        ]
        caption = f"Root mean square error of positions up to a horizon, rad or m, {data}: quartiles over roll-outs"
        parts.append(table(["horizon", *by_robot], rows, caption))
    parts.append(_figures(fit, errors))
    models = {
        name: InverseDynamicsFit.unfitted(model_of(x))
        for name, x in (("before", fit.before), ("identified", fit.robot))
    }
    parts.append(links_section(models))
    if quantities is not None:
        parts += ["<h2>Combinations</h2>", _intervals(fit, quantities, bootstrap, level)]
    decided = fit.intervals(level=level).decided_by_prior(WEAK)
    parts += [
        "<h2>What was free</h2>",
        f"<p>Decided by the prior alone, one by one: {escaped(', '.join(decided) or 'none')}.</p>",
        _intervals(fit, None, bootstrap, level),
    ]
    Path(path).write_text(page(title, parts), encoding="utf-8")


def _intervals(fit: RolloutFit, quantities: Quantities | None, bootstrap: RolloutBootstrap | None, level: float) -> str:
    plain = fit.intervals(quantities, level=level)
    columns = {
        f"{level:.0%}, independent samples": plain,
        f"{level:.0%}, independent segments": fit.intervals(quantities, level=level, clustered=True),
    }
    if bootstrap is not None:
        columns[f"{level:.0%}, bootstrap of {bootstrap.blocks} blocks"] = bootstrap.intervals(quantities, level=level)
    functions = [fit.free_entries] if quantities is None else list(quantities.values())
    before = np.concatenate([np.ravel(np.asarray(f(fit.before), np.float64)) for f in functions])
    rows = [
        [name, f"{before[k]:.5g}", f"{plain.value[k]:.5g}"]
        + [f"{x.lower[k]:.5g} … {x.upper[k]:.5g}" for x in columns.values()]
        + [f"{plain.prior_share[k]:.0%}"]
        for k, name in enumerate(plain.names)
    ]
    caption = (
        "In SI, inertias about the origin of each body's frame. Prior: variance over that of the prior alone; gray "
        "where the data say next to nothing"
    )
    if bootstrap is not None:
        caption += ". The bootstrap holds the prior where it is, so that what this decides hardly scatters"
    weak = [bool(x > WEAK) for x in plain.prior_share]
    return table(["quantity", "before", "after", *columns, "prior"], rows, caption, weak)


def _figures(fit: RolloutFit, errors: Mapping[str, Mapping[str, RolloutErrors]]) -> str:
    # `import jaxdyn` does without pictures.
    from jaxdyn.viz._plots import COLORS, figure_class

    try:
        figure_type = figure_class()
    except ImportError as error:
        return f"<p class='note'>No plots: {escaped(str(error))}.</p>"
    figure = figure_type(figsize=(10, 3.2), layout="constrained")
    for panel, (data, by_robot) in zip(figure.subplots(1, len(errors), squeeze=False)[0], errors.items(), strict=True):
        for k, (name, e) in enumerate(by_robot.items()):
            sums = np.cumsum(np.mean(e.position[:, 1:] ** 2, axis=2), axis=1)
            low, middle, high = np.percentile(np.sqrt(sums / np.arange(1, sums.shape[1] + 1)), [25, 50, 75], axis=0)
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
    shown = image(figure, "errors of roll-outs up to a horizon")
    return f"<h2>Plots</h2>{shown}{image(segments, 'residuals of the segments of the fit, after the loss')}"
