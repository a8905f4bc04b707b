"""The legend of the page: what colors mean, and the size of the grid."""

from __future__ import annotations

import html
from collections.abc import Collection, Sequence

from jaxdyn.viz._drawing import (
    AXES,
    COLLISIONS,
    COMPARED,
    COMPARED_PATH,
    CONTACTS,
    ELLIPSOIDS,
    FORCE,
    FORCES,
    FRAMES,
    GROUND,
    GROUND_OPACITY,
    INERTIA,
    INERTIA_OPACITY,
    LOOP,
    LOOPS,
    MESHES,
    PATH,
    SHAPE,
    SHAPE_OPACITY,
    SLIDES,
    TENDON,
    TENDONS,
    TRIAD,
    TURNS,
    UNPHYSICAL,
    Drawing,
    rgba,
)

_OWN = "linear-gradient(135deg, #f4f4f5 50%, #52525b 50%)"
_ROWS: dict[str, tuple[tuple[tuple[str, ...], float, str], ...]] = {
    ELLIPSOIDS: (((INERTIA,), INERTIA_OPACITY, "inertia"), ((UNPHYSICAL,), INERTIA_OPACITY, "impossible inertia")),
    FRAMES: ((TRIAD, 1.0, "x, y, z of frames"),),
    AXES: (((TURNS,), 1.0, "axis, turns"), ((SLIDES,), 1.0, "axis, slides")),
    LOOPS: (((LOOP,), 1.0, "both ends of a loop"),),
    CONTACTS: (((SHAPE,), SHAPE_OPACITY, "contact shape"),),
}
"""The colors of layers, their opacity, and what they mean."""


def legend(
    drawing: Drawing,
    layers: Collection[str],
    names: Sequence[str],
    path_of: str | None,
    cell: float,
    newtons_per_meter: float | None = None,
) -> str:
    """Return the legend as HTML, for the layers that are shown, the names of one or two robots, the frame whose path is
    drawn, the size of the grid's cells, m, and the scale of the arrows of forces, if there are any."""
    used = {tuple(x.color) for x in drawing.surfaces}
    own = _OWN if MESHES in layers else "#6b7280"
    rows: list[tuple[tuple[str, ...], str]] = [
        (("own",), names[0]),
        *([((COMPARED + "73",), names[1])] if names[1:] else []),
    ]
    rows += [(("#0d998c80",), "collision geometry")] if COLLISIONS in layers else []
    for layer in (x for x in _ROWS if x in layers):
        for colors, opacity, text in _ROWS[layer]:
            if tuple(rgba(colors[0], opacity)) in used:
                rows.append((tuple(f"{c}{round(255 * opacity):02x}" for c in colors), text))
    rows += [((TENDON,), "tendon")] if TENDONS in layers and drawing.cables else []
    if CONTACTS in layers and drawing.contacts is not None and drawing.contacts.surface is not None:
        rows.append(((f"{GROUND}{round(255 * GROUND_OPACITY):02x}",), "surface of the world"))
    if FORCES in layers and newtons_per_meter is not None:
        rows.append(((FORCE,), f"contact force, {newtons_per_meter:g} N per m of arrow"))
    if path_of is not None:
        rows += [((PATH,), f"path of {path_of}, {names[0]}")]
        rows += [((COMPARED_PATH,), f"path of {path_of}, {names[1]}")] if names[1:] else []
    lines = []
    for colors, text in rows:
        swatches = "".join(
            f'<span style="display:inline-block;width:0.8em;height:0.8em;margin-right:0.2em;border-radius:2px;'
            f'border:1px solid #0002;vertical-align:-0.1em;background:{own if c == "own" else c}"></span>'
            for c in colors
        )
        lines.append(f"<div>{swatches} {html.escape(text)}</div>")
    unit = f"{cell:g} m" if cell >= 1 else f"{100 * cell:g} cm" if cell >= 0.01 else f"{1000 * cell:g} mm"
    lines.append(f"<div>cells of the grid: {unit}; x, y, z in m, angles in rad</div>")
    return f'<div style="font-size:0.8em;line-height:1.55;padding:0.3em 0.8em">{"".join(lines)}</div>'


def with_legend(page: str, content: str) -> str:
    """Return a page that needs no server with a legend in a corner."""
    style = "position:fixed;left:0.6em;bottom:3.6em;z-index:5;background:#fffd;border-radius:4px;font-family:sans-serif"
    before, end, after = page.rpartition("</body>")
    return f'{before}<div style="{style};pointer-events:none">{content}</div>{end}{after}'
