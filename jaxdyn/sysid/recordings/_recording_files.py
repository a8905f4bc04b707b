"""Recordings from files: NumPy archives, and tables of text."""

from __future__ import annotations

import csv
import dataclasses
import difflib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxdyn._errors import DataError, naming_arguments
from jaxdyn._types import ArrayLike
from jaxdyn.sysid.recordings._recording import Recording

# More broken lines than this are not listed: another delimiter is more likely.
_MOST_BROKEN = 20
_MEANING = {
    "t": "time, s",
    "q": "positions",
    "v": "velocities",
    "a": "accelerations",
    "tau": "torques",
    "current": "motor currents",
    "control": "controls of actuators",
}


# Names of columns for what is not named, of which the first that a table has are taken. They differ in one number.
_GUESSES = {
    "t": ("t", "time", "time_s"),
    "q": ("q*", "q_*", "q[*]", "position*", "position_*", "position[*]"),
    "v": ("v*", "v_*", "v[*]", "dq*", "qd*", "velocity*", "velocity_*", "velocity[*]"),
    "a": ("a*", "a_*", "a[*]", "acceleration*", "acceleration_*", "acceleration[*]"),
    "tau": ("tau*", "tau_*", "tau[*]", "torque*", "torque_*", "torque[*]", "effort*", "effort_*", "effort[*]"),
    "current": ("current*", "current_*", "current[*]", "i*"),
    "control": ("control*", "control_*", "control[*]", "ctrl*", "ctrl_*", "ctrl[*]", "u*"),
}


@naming_arguments
def load_npz(
    path: str | Path,
    *,
    t: str = "t",
    q: str = "q",
    v: str | None = None,
    a: str | None = None,
    tau: str | None = "tau",
    current: str | None = None,
    control: str | None = None,
) -> Recording:
    """Return a `Recording` from a NumPy archive; the arguments name its arrays.

    Where `v`, `a` or `control` is None, an array of this name is read if there is one. `tau` may be None for a
    recording without torques.
    **Raises** `DataError` for a file that is missing or no archive, missing arrays, and arrays that make no recording.
    """
    path = _existing(path)
    arrays = _archive(path)
    values: dict[str, Any] = {}
    named = {"t": t, "q": q, "v": v, "a": a, "tau": tau, "current": current, "control": control}
    for key, name in named.items():
        if name is None:
            values[key] = arrays.get(key) if key in ("v", "a", "control") else None
        elif name in arrays:
            values[key] = arrays[name]
        else:
            have = ", ".join(sorted(arrays)) or "nothing"
            raise DataError(f"{path}: no array {name!r} ({_MEANING[key]}); it has {have}. Name it in load_npz()")
    return _recording(path, values)


@naming_arguments
def load_csv(
    path: str | Path,
    columns: Mapping[str, str | int | Sequence[str | int] | None] | None = None,
    *,
    scale: Mapping[str, ArrayLike] | None = None,
    delimiter: str = ",",
    decimal: str = ".",
    header: bool | None = None,
    skip_lines: Collection[int] = (),
) -> Recording:
    """Return a `Recording` from a table of text, one line for each sample, below an optional line of column names.

    **Arguments**

    - `columns`: the columns of `t`, `q`, `v`, `a`, `tau`, `current` and `control`, such as
      `{"t": "time", "q": ["shoulder", "elbow"], "tau": "torque_*"}`. Names, or numbers from 0; a name with one `*`
      stands for all columns with a number in its place, in the order of the numbers. `t` and `q` are needed. None
      guesses: names such as `t` or `time`, `q1` or `position_1`, `tau1`, `torque1` or `effort1`. Without `columns`,
      those of `t`, `q` and `tau` are guessed, as `jaxdyn identify` does.
    - `scale`: factors to SI, such as `{"t": 1e-3, "q": np.pi / 180}`: a number, or one for each column.
    - `delimiter`: between columns; `" "` for any white space. Cells may stand in double quotes.
    - `decimal`: the sign before the decimals of a number, `"."` or `","`.
    - `header`: whether the first line has names. By default it has if no cell in it is a number, or if a text stands
      above a number and all numbers beside it are whole. A first line of the numbers 0, 1, 2, ... or 1, 2, 3, ...,
      which pandas writes for columns without names, may be names or a sample: it is refused until `header` says which.
    - `skip_lines`: the numbers, from 1, of broken lines to leave out, which the error about them names.

    Empty lines and comments (`#`) are skipped; without a line of names, the last comment above the numbers gives the
    names if it has one for each column. **Raises** `DataError` for a missing file or column, a line of another length,
    a cell that is not a number, a first line that could be names, and columns that do not make a recording.
    """
    _require_signs(delimiter, decimal)
    path = _existing(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text: {error}") from None
    columns = dict.fromkeys(("t", "q", "tau")) if columns is None else columns
    names, rows = _table(path, lines, _Format(delimiter, decimal, header), frozenset(skip_lines))
    unknown = [key for key in (*columns, *(scale or {})) if key not in _MEANING]
    if unknown or not {"t", "q"} <= set(columns):
        raise DataError(
            f"{path}: columns and scale are keyed by {', '.join(_MEANING)}, with t and q at least; got "
            f"{', '.join(map(repr, unknown or columns))}"
        )
    count = len(next(iter(rows.values())))
    values: dict[str, Any] = {}
    for key, chosen in columns.items():
        indices = _indices(path, key, chosen, names, count, delimiter)
        try:
            array = np.array([[_number(row[k], decimal) for k in indices] for row in rows.values()])
        except ValueError:
            broken = [n for n, row in rows.items() if not all(_is_number(row[k], decimal) for k in indices)]
            row = rows[broken[0]]
            column = next(k for k in indices if not _is_number(row[k], decimal))
            what = f"column {repr(names[column]) if names else column} ({_MEANING[key]})"
            hint = (_doubt(count, delimiter) or _advice(row[column], decimal)) + _skipping(broken, len(rows))
            raise DataError(f"{path}, line {broken[0]}: {what} is {row[column]!r}, not a number{hint}") from None
        try:
            array = array * np.asarray((scale or {}).get(key, 1.0), np.float64)
        except ValueError:
            raise DataError(f"{path}: the scale of {key} does not fit its {len(indices)} columns") from None
        values[key] = array[:, 0] if key == "t" else array
    return _recording(path, values)


def _archive(path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a NumPy archive. **Raises** `DataError`."""
    with path.open("rb") as file:
        beginning = file.read(64)
    if not beginning.startswith(b"PK"):
        what = "it is empty" if not beginning else "its beginning is not that of one"
        if beginning.startswith(b"\x93NUMPY"):
            what = "it has one array (.npy); write t, q and the others with numpy.savez"
        elif beginning and beginning.isascii():
            what = "it begins like a text. Tables are read by load_csv (programs do so for names that end with .csv)"
        raise DataError(f"{path}: not a NumPy archive (.npz): {what}")
    try:
        # NumPy leaves a file open that it opened and could not read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: not a NumPy archive (.npz) of plain arrays: {error}") from None
    except Exception as error:  # zipfile.BadZipFile and zlib.error are not subclasses of anything above
        raise DataError(f"{path}: damaged archive: {error}") from None


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if path.is_file():
        return path
    folder = path if path.is_dir() else path.parent
    where = ""
    if folder.is_dir():
        pattern = "*" if path.is_dir() else f"*{path.suffix or '.*'}"
        have = sorted(x.name for x in folder.glob(pattern) if x.is_file())
        where = f"{folder} has {', '.join(have[:20]) + (', ...' if len(have) > 20 else '') or 'no files'}"
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the file of a recording. {where}")
    raise DataError(f"{path}: no such file{'; ' + where if where else ''}")


def _require_signs(delimiter: str, decimal: str) -> None:
    if not isinstance(delimiter, str) or not delimiter or delimiter in '"#\r\n':
        raise DataError(
            f"load_csv: delimiter is {delimiter!r}; give the text between columns, such as ',', ';' or '\\t', or ' ' "
            "for any white space"
        )
    if decimal not in (".", ",") or decimal == delimiter:
        raise DataError(f"load_csv: decimal is {decimal!r}; it must be '.' or ',', and not the delimiter {delimiter!r}")


class _Format(NamedTuple):
    """How a table of text is to be read, as in `load_csv`."""

    delimiter: str
    decimal: str
    header: bool | None

    def cells(self, text: str) -> list[str]:
        if self.delimiter == " ":
            return [x.strip('"') for x in text.split()]
        if len(self.delimiter) > 1:
            return [x.strip().strip('"').strip() for x in text.split(self.delimiter)]
        (cells,) = csv.reader([text], delimiter=self.delimiter, skipinitialspace=True)
        return [x.strip() for x in cells]

    def is_header(self, path: Path, line: int, cells: list[str], below: list[str]) -> bool:
        """Whether the first line of a table has names. **Raises** `DataError` where that cannot be known."""
        if self.header is not None:
            return self.header
        numbers = [_is_number(x, self.decimal) for x in cells]
        if not any(numbers):
            return True
        digits = [x for x in cells if x]
        if len(digits) > 1 and digits in ([str(i + k) for i in range(len(digits))] for k in (0, 1)):
            raise DataError(
                f"{path}, line {line}: {self.delimiter.join(cells)[:60]!r} may be the names of the columns, as pandas "
                "writes for columns without names, or the first sample; give header=True if these are names, and "
                "header=False if they are a sample"
            )
        # A sample may lack a value. A text above a number is a name; numbers beside it that are names are whole.
        over = [
            x and not number and _is_number(y, self.decimal)
            for x, number, y in zip(cells, numbers, below, strict=False)
        ]
        return any(over) and all(x.isdecimal() for x, number in zip(cells, numbers, strict=True) if number)


def _table(
    path: Path, lines: list[str], form: _Format, skipped: frozenset[int]
) -> tuple[list[str], dict[int, list[str]]]:
    """Return the names of columns, if there are any, and the cells of each row by the number of its line."""
    names: list[str] = []
    comment: list[str] = []
    rows: dict[int, list[str]] = {}
    texts = [(number, line.strip(" \r\n" if form.delimiter == "\t" else None)) for number, line in enumerate(lines, 1)]
    texts = [(number, text) for number, text in texts if text.strip() and number not in skipped]
    broken: list[tuple[int, int, int]] = []
    for k, (number, text) in enumerate(texts):
        if text.startswith("#"):
            comment = form.cells(text.lstrip("# "))
            continue
        cells = form.cells(text)
        if not names and not rows:
            below = next((form.cells(x) for _, x in texts[k + 1 :] if not x.startswith("#")), [])
            # Whole numbers below a comment that names each column are a sample.
            named = len(comment) == len(cells) and all(_is_number(x, form.decimal) for x in cells)
            if form.header or (not named and form.is_header(path, number, cells, below)):
                names = cells
                continue
            names = comment if len(comment) == len(cells) else []
        expected = len(next(iter(rows.values()), names or cells))
        if len(cells) != expected:
            broken.append((number, len(cells), expected))
        rows[number] = cells
    if broken:
        number, found, expected = broken[0]
        advice = _skipping([x for x, _, _ in broken], len(rows))
        raise DataError(f"{path}, line {number}: {found} columns, but {expected} before{advice}")
    if not rows:
        raise DataError(f"{path}: no line of numbers; it begins with {lines[0][:60]!r}" if lines else f"{path}: empty")
    return names, rows


def _number(cell: str, decimal: str) -> float:
    """Return the number that a cell has. **Raises** `ValueError`, also for an underscore, which Python allows."""
    if "_" in cell or (decimal == "," and "." in cell):
        raise ValueError
    return float(cell.replace(",", ".") if decimal == "," else cell)


def _is_number(cell: str, decimal: str) -> bool:
    try:
        _number(cell, decimal)
    except ValueError:
        return False
    return True


def _skipping(broken: list[int], count: int) -> str:
    """Return how to leave out broken lines, or nothing where most of the `count` lines look broken."""
    if 2 * len(broken) > count or len(broken) > _MOST_BROKEN:
        return ""
    return f"; correct the file, or leave the broken lines out by skip_lines={broken}"


def _advice(cell: str, decimal: str) -> str:
    """Return what may help with a cell that is not a number, or nothing."""
    other = "," if decimal == "." else "."
    if _is_number(cell, other):
        return f"; if {other!r} stands before decimals, give decimal={other!r}"
    if not cell:
        return ": it is empty; remove the line, or fill it in"
    try:
        np.datetime64(cell)
    except ValueError:
        return ""
    return ": it is a date; give times in s"


def _indices(path: Path, key: str, chosen, names: list[str], count: int, delimiter: str) -> list[int]:
    out: list[int] = []
    if chosen is None:
        chosen = next((x for x in _GUESSES[key] if _matches(x, names)), _GUESSES[key][0])
    for column in [chosen] if isinstance(chosen, str | int) else list(chosen):
        if isinstance(column, str) and column.count("*") == 1:
            numbered = _matches(column, names)
            matching = [i for _, i in numbered]
            if len({number for number, _ in numbered}) < len(numbered):
                shown = ", ".join(repr(names[i]) for i in matching)
                raise DataError(
                    f"{path}: {column!r} for {key} ({_MEANING[key]}) has a number twice: {shown}; list names"
                )
        elif isinstance(column, str):
            matching = [names.index(column)] if names.count(column) == 1 else []
        else:
            matching = [column] if 0 <= column < count else []
        if not matching:
            raise _no_column(path, key, column, names, count, delimiter)
        out += matching
    if not out or (key == "t" and len(out) != 1):
        raise DataError(f"{path}: {key} ({_MEANING[key]}) is {len(out)} columns")
    if twice := {names[i] if names else i for i in out if out.count(i) > 1}:
        raise DataError(f"{path}: {key} ({_MEANING[key]}) has a column twice: {', '.join(map(repr, twice))}")
    return out


def _matches(pattern: str, names: list[str]) -> list[tuple[int, int]]:
    """Return the numbers in the place of `*`, or 0 where there is none, with the columns of these names, in order."""
    expression = re.escape(pattern).replace(r"\*", "([0-9]+)")
    found = [(re.fullmatch(expression, name), i) for i, name in enumerate(names)]
    return sorted((int(match[1]) if "*" in pattern else 0, i) for match, i in found if match)


def _no_column(path: Path, key: str, column, names: list[str], count: int, delimiter: str) -> DataError:
    if not names:
        have = f"it has columns 0 to {count - 1} without names: give numbers"
    elif isinstance(column, str) and names.count(column) > 1:
        have = f"the name stands {names.count(column)} times: give numbers"
    else:
        near = difflib.get_close_matches(str(column), names, n=3, cutoff=0.6)
        shown = ", ".join(f"{name[:40]!r}{'...' if len(name) > 40 else ''}" for name in names)
        have = f"did you mean {' or '.join(map(repr, near))}?" if near else f"it has {shown}"
    return DataError(f"{path}: no column {column!r} for {key} ({_MEANING[key]}); {have}{_doubt(count, delimiter)}")


def _doubt(count: int, delimiter: str) -> str:
    return f" (is the delimiter really {delimiter!r}?)" if count == 1 else ""


def _recording(path: Path, values: dict[str, Any]) -> Recording:
    return dataclasses.replace(Recording(**values, name=str(path)), name=path.name)
