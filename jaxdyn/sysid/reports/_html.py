"""Pieces of HTML reports that need no other file: the page, tables, and images."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._durable_files import write_durably
from jaxdyn._printing import percent
from jaxdyn.model import Model, rotational_about_center
from jaxdyn.sysid.parameters import is_physical
from jaxdyn.sysid.torques import Intervals

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
WEAK = 0.9
"""Values that keep more than this part of the prior's variance are gray: the data hardly determine them."""
UNITS_CAPTION = (
    "In SI, inertias about the origin of each body's frame. Prior: the variance divided by that of the prior alone; "
    "gray where the data hardly determine the value"
)


def write_page(path: str | Path, title: str, notes: Sequence[str], parts: Sequence[str]) -> None:
    """Write a page with sentences at its top and then parts that are HTML."""
    body = "\n".join([*(f"<p>{escape(note)}</p>" for note in notes), *parts])
    page = (
        "<!DOCTYPE html>\n<html lang='en'><head><meta charset='utf-8'>"
        f"<meta name='viewport' content='width=device-width'><title>{escape(title)}</title><style>{_STYLE}</style>"
        f"</head><body><h1>{escape(title)}</h1>\n{body}\n</body></html>\n"
    )
    write_durably(Path(path), lambda temporary: temporary.write_text(page, encoding="utf-8"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str, weak: Sequence[bool] | None = None) -> str:
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


def interval_table(kind: str, intervals: Intervals, columns: Mapping[str, Sequence[str]], caption: str) -> str:
    """A table of the names of intervals, further columns, and the prior's share."""
    share = intervals.prior_share
    columns = {kind: intervals.names, **columns, "prior": [percent(round(x, 3)) for x in share]}
    return table(list(columns), list(zip(*columns.values(), strict=True)), caption, [x > WEAK for x in share])


def format_numbers(values: np.ndarray, form: str = ".5g") -> list[str]:
    """Numbers as text, empty where they are NaN."""
    return ["" if np.isnan(x) else f"{x:{form}}" for x in values]


def links_section(models: Mapping[str, Model]) -> str:
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
    return "<h2>Links</h2>" + table(head, rows, caption)


def image(figure, caption: str) -> str:
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=110)
    encoded = base64.b64encode(data.getvalue()).decode()
    text = escape(caption[:1].upper() + caption[1:])
    return f"<figure><img alt='{text}' src='data:image/png;base64,{encoded}'><figcaption>{text}</figcaption></figure>"


def plots_section(draw: Callable[[], Mapping[str, Any]]) -> str:
    """The figures that `draw` returns, by their captions; a note where it finds no matplotlib."""
    try:
        figures = draw()
    except ImportError as error:
        return f"<p class='note'>No plots: {escape(str(error))}.</p>"
    return "<h2>Plots</h2>" + "".join(image(figure, caption) for caption, figure in figures.items())


def escape(x: str) -> str:
    return html.escape(str(x), quote=True)
