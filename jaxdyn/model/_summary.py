"""A model as text: a table, and one line for `repr`."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from contextvars import ContextVar

import jax
import numpy as np
from jax.core import Tracer

from jaxdyn._printing import is_concrete, lines_as_table
from jaxdyn.joints import JOINT_TYPES, LOOP_ROWS
from jaxdyn.model._body_inertia import far_masses, rounding, unphysical_beyond_rounding
from jaxdyn.model._edit_arguments import batches_of
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._mobility import mobility
from jaxdyn.model._singular_motions import in_double_precision, singular_motions
from jaxdyn.model._stable_steps import stable_steps

WIDTH = 118
_UNKNOWN = "?"
_SHOWN = 40
"""How many names are listed at most."""
_UNIT = 1e-3
"""The error of the length of a quaternion that is one; models of single precision have errors of 1e-7."""
_WHOLE: ContextVar[bool] = ContextVar("whole", default=False)
"""Whether nothing is cut."""


NO_VALUES = "arrays in the shape of its own that are not its values, such as derivatives by them"
"""The words for objects whose arrays cannot be those of a model."""


def may_be_values(model: ModelFields) -> bool:
    """Return whether the arrays may be those of a model: the quaternions of its placements have length one, which those
    of derivatives or differences do not. True for arrays without values."""
    placements = model.joint_placement
    if not is_concrete(placements):
        return True
    return bool((np.abs(np.linalg.norm(np.asarray(placements)[..., 3:], axis=-1) - 1) < _UNIT).all())


def short(model: ModelFields) -> str:
    """One line for `repr`: the number of bodies, the first and last, the lengths of `q` and `v`, the mass,
    dtype and batch axes.
    Leaves may be arrays, tracers, `jax.ShapeDtypeStruct` or None."""
    topology = model.topology
    names = topology.body_names
    shown = ", ".join(names) if len(names) < 4 else f"{names[0]}, ..., {names[-1]}"
    parts = [_count(topology.nb, "body", "bodies") + f": {shown}; nq={topology.nq}, nv={topology.nv}"]
    if not may_be_values(model):
        return f"Model({parts[0]}; {NO_VALUES})"
    kinds = sorted({str(x.dtype) for x in (getattr(model, field) for field in LEAVES) if hasattr(x, "dtype")})
    has_mass = _has_values(model) and not topology.missing_inertias
    parts += [f"mass {float(model.inertial_parameters[:, 0].sum()):.6g} kg"] if has_mass else []
    parts += ["/".join(kinds)] if kinds else []
    batch = _batch(model)
    parts += [f"batch {batch}"] if batch else []
    parts += ["kinematics only"] if topology.missing_inertias else []
    return f"Model({', '.join(parts)})"


def _has_values(model: ModelFields) -> bool:
    """Whether the inertias are those of one model, and have values."""
    return is_concrete(model.inertial_parameters) and np.ndim(model.inertial_parameters) == 2


def as_html(model: ModelFields) -> str:
    """The summary for notebooks."""
    return lines_as_table(short(model), summary(model).splitlines())


def summary(model: ModelFields, *, whole: bool = False) -> str:
    """A table of a model: gravity; bodies and joints with their places in `q` and `v`, limits, masses; friction,
    springs and other limits, and the longest stable time steps that follow from them; joints that mimic others; loops
    and couplings, with the degrees of freedom that they leave; merged links; frames; and warnings of likely errors.

    Units are m, rad, kg, N, N m and s. Numbers that are traced, or have batch axes, are shown as `?`. Lines have at
    most 118 characters, for which long names are cut and long lists end early, unless the `whole` text is wanted.
    """
    if not may_be_values(model):
        return short(model)
    sections = (_head, _bodies, _effects, _steps, _mimics, _loops, _links, _frames, _warnings)
    token = _WHOLE.set(whole)
    try:
        return _joined(model, sections)
    finally:
        _WHOLE.reset(token)


def _joined(model: ModelFields, sections: Sequence[Callable[[ModelFields], list[str]]]) -> str:
    return "\n\n".join("\n".join(lines) for section in sections if (lines := section(model)))


# Sections: lists of lines


def _head(model: ModelFields) -> list[str]:
    topology = model.topology
    mass, gravity = _numbers(model, "inertial_parameters"), _numbers(model, "gravity")
    roots = [i for i, parent in enumerate(topology.parents) if parent < 0]
    trees = "" if len(roots) == 1 else f", {len(roots)} trees"
    base = "free base" if topology.joint_types[roots[0]] == "free" else "fixed base"
    total = "" if mass is None or topology.missing_inertias else f", {_number(mass[:, 0].sum())} kg in motion"
    lines = [f"{short(model)}: {base}{trees}{total}"]
    if missing := topology.missing_inertias:
        lines += _lines("kinematics only, as these links have no inertia: ", missing)
    lines.append(f"gravity {_UNKNOWN if gravity is None else _vector(gravity)} m/s^2")
    unknown = [f for f in LEAVES if getattr(model, f) is not None and _numbers(model, f) is None]
    if unknown:
        every = len(unknown) == sum(getattr(model, f) is not None for f in LEAVES)
        lines += _lines(f"{_UNKNOWN} stands for what is traced or has batch axes: ", ["all"] if every else unknown)
    return lines


def _bodies(model: ModelFields) -> list[str]:
    topology = model.topology
    mass, axes, pitches = (_numbers(model, f) for f in ("inertial_parameters", "joint_axis", "joint_pitch"))
    lower, upper = _numbers(model, "position_lower"), _numbers(model, "position_upper")
    rows = []
    for i, name in enumerate(topology.body_names):
        parent, kind = topology.parents[i], topology.joint_types[i]
        own_axes = None if axes is None else axes[topology.rows("axis", [i])]
        pitch = None if pitches is None else pitches[topology.rows("pitch", [i])]
        names = [name, topology.body_names[parent] if parent >= 0 else "world", topology.joint_names[i], kind]
        places = [_span(topology.q_starts, i), _span(topology.v_starts, i)]
        limits = _limits(lower, upper, slice(topology.q_starts[i], topology.q_starts[i + 1]))
        rows.append([str(i), *names, _axis(kind, own_axes, pitch), *places, limits, _entry(mass, i, 0)])
    head = ["#", "body", "parent", "joint", "type", "axis", "q", "v", "limits of q", "mass"]
    return _table(head, rows, right={0, 9})


def _effects(model: ModelFields) -> list[str]:
    """A table of friction, springs and limits of the joints, with a column for each that some joint has."""
    topology = model.topology
    present: dict[str, list[str]] = {}
    # Limits stand last.
    for field in sorted(LEAVES, key=lambda field: not LEAVES[field].finite):
        values, leaf = _numbers(model, field), LEAVES[field]
        if not leaf.column or leaf.beside or values is None or (values == leaf.default).all():
            continue
        here = [i for i in range(topology.nb) if (values[topology.rows("v", [i])] != leaf.default).any()]
        for other, detail in {field: leaf, **LEAVES}.items():
            numbers = _numbers(model, other)
            if field in (other, detail.beside) and numbers is not None:
                cells = {i: _same(numbers[topology.rows(str(detail.rows), [i])]) for i in here}
                present[detail.column] = [cells.get(i, "") for i in range(topology.nb)]
    rows = [list(row) for row in zip(topology.joint_names, *present.values(), strict=True) if any(row[1:])]
    return _table(["joint", *present], rows, right=set(range(1, len(present) + 1))) if rows else []


def _steps(model: ModelFields) -> list[str]:
    """The longest stable steps of the integrators, of a model with friction, damping or springs."""
    known = all(_numbers(model, field) is not None for field in LEAVES if getattr(model, field) is not None)
    steps = stable_steps(model) if known else {}
    if not steps:
        return []
    words = {0.0: "none", np.inf: "any"}
    shown = [f"{name} {words.get(x.dt) or _number(x.dt)}" for name, x in steps.items()]
    joint = min(steps.values(), key=lambda x: x.dt).joint
    lines = _lines(f"longest stable steps (s), for the friction and springs of joint {joint!r}: ", shown)
    where = "where the loops close" if model.topology.has_loops else "of the neutral and three random configurations"
    return [*lines, f"  (estimated at rest, with the mass matrix {where}, without gravity)"]


def _mimics(model: ModelFields) -> list[str]:
    names, pairs = model.topology.joint_names, model.topology.mimics
    multiplier, offset = _numbers(model, "mimic_multiplier"), _numbers(model, "mimic_offset")
    return [
        f"joint {names[i]} mimics {names[j]}: q = {_entry(multiplier, k)} q({names[j]}) + {_entry(offset, k)}"
        for k, (i, j) in enumerate(pairs)
    ]


def _loops(model: ModelFields) -> list[str]:
    topology = model.topology
    if not topology.has_loops:
        return []
    length, c, r = (_numbers(model, f) for f in ("loop_length", "coupling_coefficients", "coupling_reference"))
    bodies, lines = (*topology.body_names, "world"), []
    for k, (name, kind, body1, body2) in enumerate(topology.loops):
        held = f" of {_entry(length, k)} m" if kind == "distance" else ""
        count = _count(LOOP_ROWS[kind], "equation", "equations")
        lines.append(f"loop {name}: {kind}{held} between {bodies[body1]} and {bodies[body2]}, {count}")
    for k, (name, joint1, joint2) in enumerate(topology.couplings):
        powers = range(5) if c is None else [i for i in range(5) if c[k, i] or i == 0][: 5 if joint2 >= 0 else 1]
        other = "" if joint2 < 0 else f"(q({topology.joint_names[joint2]}) - {_entry(r, k, 1)})"
        terms = [_entry(c, k, i) + (f" {other}^{i}" if i > 1 else f" {other}" * i) for i in powers]
        lines.append(f"coupling {name}: q({topology.joint_names[joint1]}) - {_entry(r, k, 0)} = {' + '.join(terms)}")
    arrays = {field: _numbers(model, field) for field in LEAVES}
    if all(values is not None or getattr(model, field) is None for field, values in arrays.items()):
        found = mobility(model)
        redundant = found.equations - found.rank
        extra = f", {redundant} of which say what others do" if redundant else ""
        total = f"{_count(found.equations, 'equation', 'equations')}{extra}"
        left = _count(found.mobility, "degree", "degrees") + f" of freedom of {model.nv}"
        lines.append(f"{total}: they leave {left} {found.where}")
    return lines


def _links(model: ModelFields) -> list[str]:
    topology, parameters = model.topology, _numbers(model, "attached_parameters")
    lines = []
    for body, name in enumerate(("world", *topology.body_names), start=-1):
        links = [f"{topology.attached_links[k]} ({_entry(parameters, k, 0)} kg)" for k in topology.links_of(body)]
        lines += _lines(f"links fixed in {name}: ", links) if links else []
    return lines


def _frames(model: ModelFields) -> list[str]:
    topology = model.topology
    names = [n for n in topology.frame_names if n not in topology.body_names and n not in topology.attached_links]
    return _lines(f"{_count(len(names), 'frame', 'frames')} besides bodies and links: ", names) if names else []


def zero_limits(model: ModelFields) -> str:
    """Return a sentence about joints whose effort or velocity is limited to zero, or nothing."""
    found = []
    for field in ("effort_limit", "velocity_limit"):
        values = _numbers(model, field)
        zero = [] if values is None else np.flatnonzero(values == 0).tolist()
        if zero:
            names = [model.topology.dof_names[j] for j in zero]
            shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
            found.append(f"{field} of {shown}")
    if not found:
        return ""
    return (
        f"limits of zero ({'; '.join(found)}): no motor can drive these joints where limits count. Files have zeros "
        "where nobody has set limits; replace them by dataclasses.replace(model, effort_limit=...), infinite for none"
    )


def _warnings(model: ModelFields) -> list[str]:
    topology = model.topology
    bodies, links = _numbers(model, "inertial_parameters"), _numbers(model, "attached_parameters")
    if bodies is None or links is None:
        return []
    lines = []

    def check(link: str, parameters: np.ndarray, size: np.ndarray) -> None:
        reason = unphysical_beyond_rounding(parameters, rounding(size, model.inertial_parameters.dtype))
        lines.extend([f"warning: link {link!r}: {reason}"] if reason else [])

    for i in (*range(topology.nb), -1):
        merged = topology.links_of(i)
        if i >= 0:
            name, mass, inside = topology.body_names[i], bodies[i, 0], links[merged]
            if mass <= 0 and name not in topology.unknown_inertias:
                what = "no mass" if mass == 0 else f"a negative mass, {_number(mass)} kg"
                lines.append(f"warning: body {name!r} has {what}")
            # A difference has the errors of its terms.
            check(name, bodies[i] - inside.sum(axis=0), np.abs(bodies[i]) + np.abs(inside).sum(axis=0))
        for k in merged:
            check(topology.attached_links[k], links[k], links[k])
    numbers = in_double_precision(model)
    for text in filter(None, [zero_limits(model), far_masses(numbers) if numbers is not None else ""]):
        lines += textwrap.wrap(f"warning: {text}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    if numbers is not None:
        lines += [f"warning: {motion}" for motion in singular_motions(numbers)]
    return lines


# Cells


def _table(head: Sequence[str], rows: list[list[str]], right: set[int]) -> list[str]:
    """Aligned columns, the longest ones cut until a line fits."""
    columns = [[title, *(row[k] for row in rows)] for k, title in enumerate(head)]
    used = [k for k, column in enumerate(columns) if any(column[1:])]
    columns, right = [columns[k] for k in used], {used.index(k) for k in right if k in used}
    widths = [max(map(len, column)) for column in columns]
    while not _WHOLE.get() and sum(widths) + 2 * (len(widths) - 1) > WIDTH and max(widths) > 8:
        widths[widths.index(max(widths))] -= 1
    lines = []
    for cells in zip(*columns, strict=True):
        cut = [c if len(c) <= w else c[: w - 3] + "..." for c, w in zip(cells, widths, strict=True)]
        put = [c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(zip(cut, widths, strict=True))]
        lines.append("  ".join(put).rstrip())
    return lines


def _lines(start: str, words: Sequence[str]) -> list[str]:
    """A list of words in one line, or in several, the further ones indented."""
    most = len(words) if _WHOLE.get() else _SHOWN
    more = [f"and {len(words) - most} more"] if len(words) > most else []
    # Spaces inside a word, which do not break lines, are another character meanwhile.
    text = start + ", ".join(word.replace(" ", "\0") for word in [*words[:most], *more])
    wrapper = textwrap.TextWrapper(WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in wrapper.wrap(text)]


def _number(x: float) -> str:
    return f"{float(x):.4g}"


def _entry(values: np.ndarray | None, *index: int) -> str:
    return _UNKNOWN if values is None else _number(values[index])


def _vector(values: np.ndarray) -> str:
    return f"({', '.join(_number(x + 0.0) for x in values)})"


def _same(values: np.ndarray) -> str:
    """One number if all are the same, else all."""
    return _number(values[0]) if (values == values[0]).all() else _vector(values)


def _span(starts: tuple[int, ...], i: int) -> str:
    first, last = starts[i], starts[i + 1]
    if first == last:
        return "-"
    return str(first) if last == first + 1 else f"{first}:{last}"


def _axis(kind: str, axes: np.ndarray | None, pitch: np.ndarray | None) -> str:
    chain = JOINT_TYPES[kind]
    if not chain[0].has_axis:
        return ""
    if axes is None:
        return _UNKNOWN
    # A planar joint has its normal last, a cylindrical one its axis twice.
    shown = {"planar": axes[2:], "cylindrical": axes[:1]}.get(kind, axes)
    out = ", ".join(_direction(axis) for axis in shown)
    if kind == "planar":
        return f"normal {out}"
    if chain[0].has_pitch:
        return f"{out}, {_UNKNOWN if pitch is None else _number(pitch[0])} m/rad"
    return out


def _direction(axis: np.ndarray) -> str:
    norm = np.linalg.norm(axis)
    if not norm > 0:
        return _vector(axis)
    axis = axis / norm
    k = np.abs(axis).argmax()
    if np.abs(axis - np.sign(axis[k]) * np.eye(3)[k]).max() < 1e-6:
        return "-" * bool(axis[k] < 0) + "xyz"[k]
    return f"({', '.join(f'{x:.3g}' for x in axis)})"


def _limits(lower: np.ndarray | None, upper: np.ndarray | None, rows: slice) -> str:
    if rows.start == rows.stop:
        return ""
    if lower is None or upper is None:
        return _UNKNOWN
    pairs = list(zip(lower[rows], upper[rows], strict=True))
    if not np.isfinite(pairs).any():
        return ""
    shown = [f"{_number(a)} to {_number(b)}" if np.isfinite([a, b]).any() else "none" for a, b in pairs]
    return shown[0] if len(set(shown)) == 1 else ", ".join(shown)


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"


def _numbers(model: ModelFields, field: str) -> np.ndarray | None:
    """A leaf's numbers in double precision; None if it has batch axes, is traced, or no array."""
    leaf = getattr(model, field)
    if isinstance(leaf, Tracer) or not isinstance(leaf, jax.Array | np.ndarray) or leaf.ndim != LEAVES[field].axes:
        return None
    return np.asarray(leaf, np.float64)


def _batch(model: ModelFields) -> tuple[int, ...]:
    batches = batches_of(model)
    try:
        return np.broadcast_shapes(*batches)
    except (TypeError, ValueError):
        return max(batches, key=len)
