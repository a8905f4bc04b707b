"""What an identification found, as tables in the terminal and as a page of HTML that needs no other file."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.model import Model
from jaxdyn.model._inertia import rotational_about_center
from jaxdyn.sysid.parameters._base_parameters import BaseParameters
from jaxdyn.sysid.recordings._recording import Recording, as_recordings
from jaxdyn.sysid.torques._bootstrap import Bootstrap
from jaxdyn.sysid.torques._fit_result import Evaluation, InverseDynamicsFit
from jaxdyn.sysid.torques._torque_fit import Recordings
from jaxdyn.sysid.torques._torque_model import dof_names

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; color: #1c1c1c;
  background: #fff; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; border-bottom: 1px solid #ddd; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.87rem; margin: 0.8rem 0; }
caption { text-align: left; color: #555; padding-bottom: 0.3rem; white-space: nowrap; }
th, td { padding: 0.15rem 0.7rem; text-align: right; border-bottom: 1px solid #eee; }
th { border-bottom: 1px solid #999; font-weight: 600; } th:first-child, td:first-child { text-align: left; }
tr.weak td { color: #999; } td.bad { color: #b00020; font-weight: 600; }
.scroll { overflow-x: auto; } img { max-width: 100%; height: auto; } p.note { color: #555; }
"""
WEAK = 0.9
"""Of the prior's variance: where more is left, the prior alone decides."""


def quality_table(fits: Mapping[str, InverseDynamicsFit], recordings: Recordings, title: str) -> str:
    """Root mean square torque errors of fits on recordings, for each joint and for all, as text for a terminal."""
    rows = _quality_rows(fits, _evaluations(fits, recordings))
    width = max(len(row[0]) for row in rows) + 2
    lines = [title, f"{'joint':{width}}" + "".join(f"{name:>16}" for name in fits)]
    lines += [f"{row[0]:{width}}" + "".join(f"{cell:>16}" for cell in row[1:]) for row in rows]
    return "\n".join(lines)


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
    """Write a page about fits of one model: what was identified, how certain it is, how well it predicts.

    One file of HTML without links, scripts or other files. It has the errors of each joint on the data of the fit and
    on held-out data, parameters before and after with confidence intervals, links with their masses, centers of mass
    and principal moments, the combinations of parameters that the data determine, what the prior alone decides, and
    plots of measured and predicted torques and of the masses (by matplotlib; without it the page says so).

    **Arguments**

    - `fits`: by name, in the order of columns; the last is the one that the page is about. To compare with the model as
      it was, put `InverseDynamicsFit.unfitted(model)` first.
    - `train`, `test`: recordings, one or several; the plots are of the first of `test`, or of `train` without one.
    - `notes`: sentences at the top.
    - `level`: of the intervals.
    - `bootstrap`: of the last fit (`bootstrap(fit, train)`), whose intervals stand beside the others.

    **Raises** `DataError` for no fits, fits of different models, and recordings that do not fit them.
    """
    if not fits:
        raise DataError("there is nothing to report: give at least one fit")
    name, fit = list(fits.items())[-1]
    if any(x.model.joint_names != fit.model.joint_names for x in fits.values()):
        raise DataError("the fits are of models with different joints; a report is about one robot")
    parts = [*(f"<p>{escaped(note)}</p>" for note in notes), _summary(name, fit)]
    quality = [("the data of the fit", train)] + ([("held-out data", test)] if test is not None else [])
    parts.append("<h2>Torque errors</h2>")
    for what, recordings in quality:
        evaluations = _evaluations(fits, recordings)
        rows = _quality_rows(fits, evaluations)
        last = evaluations[name]
        r2 = [f"{x:.4f}" for x in last.r2] + [""]
        caption = f"Root mean square error on {what}, N m or N; R² of {name}"
        parts.append(table(["joint", *fits, "R²"], [[*row, x] for row, x in zip(rows, r2, strict=True)], caption))
    parts.append(_figures(fits, as_recordings(train if test is None else test)[0]))
    parts += [
        links_section(fits),
        _parameters(name, fit, level, bootstrap),
        _identifiability(name, fit, level, bootstrap),
    ]
    Path(path).write_text(page(title, parts), encoding="utf-8")


def page(title: str, parts: Sequence[str]) -> str:
    """A page of HTML, from parts of it."""
    return (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{escaped(title)}</title><style>{_STYLE}</style>"
        f"</head><body><h1>{escaped(title)}</h1>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _evaluations(fits: Mapping[str, InverseDynamicsFit], recordings: Recordings) -> dict[str, Evaluation]:
    return {name: fit.evaluate(recordings) for name, fit in fits.items()}


def _quality_rows(fits: Mapping[str, InverseDynamicsFit], evaluations: Mapping[str, Evaluation]) -> list[list[str]]:
    model = next(iter(fits.values())).model
    columns = [[*x.rms_error, x.total_rms] for x in evaluations.values()]
    rows = zip((*dof_names(model), "all joints"), *columns, strict=True)
    return [[str(row[0]), *(f"{x:.4f}" for x in row[1:])] for row in rows]


def _summary(name: str, fit: InverseDynamicsFit) -> str:
    bad = [body for body, ok in zip(fit.model.body_names, fit.physical, strict=True) if not ok]
    links = f"not physical: {', '.join(bad)}" if bad else "every link is physical"
    message = f" {escaped(fit.message[:1].upper() + fit.message[1:])}." if fit.message else ""
    return (
        f"<p><b>{escaped(name)}</b>: {escaped(fit.status)}, {fit.iterations} steps in {fit.rounds} rounds of "
        f"re-weighting, {fit.samples} equations; {escaped(links)}.{message}</p>"
    )


def links_section(fits: Mapping[str, InverseDynamicsFit]) -> str:
    rows = []
    for i, body in enumerate(next(iter(fits.values())).model.body_names):
        for name, fit in fits.items():
            p = np.asarray(fit.model.inertial_parameters, np.float64)[i]
            if p[0] != 0:
                com = " ".join(f"{x:.4f}" for x in p[1:4] / p[0])
                moments = " ".join(f"{x:.4g}" for x in np.linalg.eigvalsh(rotational_about_center(p)))
            else:
                com, moments = "", ""
            rows.append([body, name, f"{p[0]:.4f}", com, moments, "yes" if fit.physical[i] else "NO"])
    caption = "Mass, kg; center of mass, m; principal moments of inertia about it, kg m²"
    head = ["link", "of", "mass", "center of mass", "principal moments", "physical"]
    return "<h2>Links</h2>" + table(head, rows, caption)


def _parameters(name: str, fit: InverseDynamicsFit, level: float, bootstrap: Bootstrap | None) -> str:
    title = f"<h2>Parameters of {escaped(name)}</h2>"
    if fit.tangent is None:
        return title + "<p class='note'>Linear least squares determines combinations only; see below.</p>"
    intervals = fit.intervals(level=level)
    before = _before(fit)
    extra, drawn = _drawn(fit, bootstrap, None, level)
    rows, weak = [], []
    for k, row in enumerate(zip(*intervals[:6], strict=True)):
        label, value, error, lower, upper, share = row
        was = "" if np.isnan(before[k]) else f"{before[k]:.5g}"
        found = [f"{value:.5g}", f"{error:.2g}", f"{lower:.5g}", f"{upper:.5g}"]
        rows.append([label, was, *found, *drawn[k], f"{share:.0%}"])
        weak.append(share > WEAK)
    caption = (
        f"In SI, inertias about the origin of each body's frame; {level:.0%} intervals. Prior: variance over that of "
        "the prior alone; gray where the data say next to nothing"
    )
    if bootstrap is not None:
        caption += ". The bootstrap of blocks in time holds the prior where it is"
    head = ["parameter", "before", "after", "std. error", "lower", "upper", *extra, "prior"]
    return title + table(head, rows, caption, weak)


def _before(fit: InverseDynamicsFit) -> np.ndarray:
    """`[P]`: the parameters that the fit began with, NaN for what no model has."""
    model: Model = fit.before
    leaves = {"armature": model.armature, "viscous": model.damping, "coulomb": model.friction}
    out = np.full(len(fit.parameters), np.nan)
    out[: 10 * model.nb] = np.asarray(model.inertial_parameters, np.float64).ravel()
    names = dof_names(model)
    for k, label in enumerate(fit.names[10 * model.nb :], 10 * model.nb):
        kind, _, joint = label.rstrip(")").partition("(")
        if kind in leaves:
            out[k] = float(leaves[kind][names.index(joint)])
    return out


def _identifiability(name: str, fit: InverseDynamicsFit, level: float, bootstrap: Bootstrap | None) -> str:
    base = fit.base_parameters()
    intervals = fit.intervals(base, level=level)
    extra, drawn = _drawn(fit, bootstrap, base, level)
    rows, weak = [], []
    for label, value, error, lower, upper, share, more in zip(*intervals[:6], drawn, strict=True):
        rows.append([label, f"{value:.5g}", f"{error:.2g}", f"{lower:.5g}", f"{upper:.5g}", *more, f"{share:.0%}"])
        weak.append(share > WEAK)
    lines = [
        f"{base.rank} of {len(base.names)} parameters are independent in the data of {name}; condition number of their "
        f"columns {base.condition_number:.3g}, gap to the rest {base.gap:.2g}."
    ]
    if base.unidentifiable:
        lines.append(f"No torque depends on {', '.join(base.unidentifiable)}.")
    if fit.tangent is not None:
        decided = fit.intervals(level=level).decided_by_prior(WEAK)
        lines.append(f"Decided by the prior alone, one by one: {', '.join(decided) or 'none'}.")
    head = ["combination", "value", "std. error", "lower", "upper", *extra, "prior"]
    text = "".join(f"<p>{escaped(line)}</p>" for line in lines)
    caption = f"What the data determine, {level:.0%} intervals"
    return f"<h2>Identifiability</h2>{text}" + table(head, rows, caption, weak)


def _drawn(
    fit: InverseDynamicsFit, bootstrap: Bootstrap | None, base: BaseParameters | None, level: float
) -> tuple[list[str], list[list[str]]]:
    """Columns of a table: their heads, and the cells of each row."""
    if bootstrap is None:
        return [], [[] for _ in (fit.names if base is None else base.independent)]
    x = bootstrap.intervals(fit, base, level=level)
    cells = [[f"{a:.5g}", f"{b:.5g}"] for a, b in zip(x.lower, x.upper, strict=True)]
    return [f"lower, {bootstrap.blocks} blocks", f"upper, {bootstrap.blocks} blocks"], cells


def _figures(fits: Mapping[str, InverseDynamicsFit], recording: Recording) -> str:
    # `import jaxdyn` does without pictures.
    from jaxdyn.viz import plot_masses, plot_torques

    (tau,) = recording.require("tau")
    model = next(iter(fits.values())).model
    masses = {name: fit.model.mass for name, fit in fits.items()}
    intervals = {}
    for name, fit in fits.items():
        if fit.tangent is not None:
            x = fit.intervals()
            intervals[name] = (x.lower[: 10 * model.nb : 10], x.upper[: 10 * model.nb : 10])
    try:
        torques = plot_torques(model, recording.t, tau, {name: fit.predict(recording) for name, fit in fits.items()})
        bars = plot_masses(model, masses, intervals)
    except ImportError as error:
        return f"<p class='note'>No plots: {escaped(str(error))}.</p>"
    shown = image(torques, f"measured and predicted torques, {recording.name}")
    return f"<h2>Plots</h2>{shown}{image(bars, 'masses of the links, with 95 % intervals')}"


def image(figure, caption: str) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    encoded = base64.b64encode(data.getvalue()).decode()
    text = escaped(caption[:1].upper() + caption[1:])
    return f"<figure><img alt='{text}' src='data:image/png;base64,{encoded}'><figcaption>{text}</figcaption></figure>"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, weak: Sequence[bool] | None = None) -> str:
    cells = "".join(f"<th>{escaped(x)}</th>" for x in head)
    lines = []
    for k, row in enumerate(rows):
        kind = " class='weak'" if weak and weak[k] else ""
        inner = "".join(f"<td{' class=bad' if x == 'NO' else ''}>{escaped(x)}</td>" for x in row)
        lines.append(f"<tr{kind}>{inner}</tr>")
    body = "\n".join(lines)
    return (
        f"<div class='scroll'><table><caption>{escaped(caption)}</caption><thead><tr>{cells}</tr></thead>"
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def escaped(x: str) -> str:
    return html.escape(str(x), quote=True)
