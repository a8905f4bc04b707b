"""Recordings from files: NumPy archives, and tables of text."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import DataError
from jaxdyn._types import ArrayLike
from jaxdyn.sysid.recordings._recording import Recording

_MEANING = {
    "t": "time, s",
    "q": "positions",
    "v": "velocities",
    "a": "accelerations",
    "tau": "torques",
    "current": "motor currents",
}


def load_npz(
    path: str | Path,
    *,
    t: str = "t",
    q: str = "q",
    v: str | None = None,
    a: str | None = None,
    tau: str | None = "tau",
    current: str | None = None,
) -> Recording:
    """Return a `Recording` from a NumPy archive; the arguments name its arrays.

    If `v` or `a` is None, arrays named `"v"` and `"a"` are optional. `tau` may be None for a recording without torques.
    **Raises** `DataError` for a file that is missing or no archive, missing arrays, and arrays that make no recording.
    """
    path = _existing(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("one array, not an archive")
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: not a NumPy archive (.npz) of plain arrays: {error}") from None
    except Exception as error:  # zipfile.BadZipFile and zlib.error are not subclasses of anything above
        raise DataError(f"{path}: damaged archive: {error}") from None

    values: dict[str, Any] = {}
    for key, name in {"t": t, "q": q, "v": v, "a": a, "tau": tau, "current": current}.items():
        if name is None:
            values[key] = arrays.get(key) if key in ("v", "a") else None
        elif name in arrays:
            values[key] = arrays[name]
        else:
            have = ", ".join(sorted(arrays)) or "nothing"
            raise DataError(f"{path}: no array {name!r} ({_MEANING[key]}); it has {have}. Name it in load_npz()")
    return _recording(path, values)


def load_csv(
    path: str | Path,
    columns: Mapping[str, str | int | Sequence[str | int]],
    *,
    scale: Mapping[str, ArrayLike] | None = None,
    delimiter: str = ",",
) -> Recording:
    """Return a `Recording` from a table of text, one line for each sample, below an optional line of column names.

    **Arguments**

    - `columns`: the columns of `t`, `q`, `v`, `a`, `tau` and `current`, such as
      `{"t": "time", "q": ["shoulder", "elbow"], "tau": "torque_*"}`. Names, or numbers from 0; a name with one `*`
      stands for all columns with a number in its place, in the order of the numbers. `t` and `q` are needed.
    - `scale`: factors to SI, such as `{"t": 1e-3, "q": np.pi / 180}`: a number, or one for each column.
    - `delimiter`: between columns; `" "` for any white space.

    Empty lines and comments (`#`) are skipped; without a line of names, the last comment above the numbers gives the
    names if it has one for each column. **Raises** `DataError` for a missing file or column, a line of another length,
    a cell that is not a number, and columns that do not make a recording.
    """
    path = _existing(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read as text: {error}") from None
    names, rows = _table(path, lines, delimiter)
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
        array = np.empty((len(rows), len(indices)))
        for numbers, (line, row) in zip(array, rows.items(), strict=True):
            try:
                numbers[:] = [float(row[column]) for column in indices]
            except ValueError:
                column = next(k for k in indices if not _is_number(row[k]))
                what = f"column {repr(names[column]) if names else column} ({_MEANING[key]})"
                hint = _doubt(count, delimiter)
                raise DataError(f"{path}, line {line}: {what} is {row[column]!r}, not a number{hint}") from None
        try:
            array = array * np.asarray((scale or {}).get(key, 1.0), np.float64)
        except ValueError:
            raise DataError(f"{path}: the scale of {key} does not fit its {len(indices)} columns") from None
        values[key] = array[:, 0] if key == "t" else array
    return _recording(path, values)


def _existing(path: str | Path) -> Path:
    path = Path(path)
    if path.is_file():
        return path
    where = ""
    if path.parent.is_dir():
        have = sorted(x.name for x in path.parent.glob(f"*{path.suffix or '.*'}"))
        where = f"; {path.parent} has {', '.join(have) or 'nothing'}"
    raise DataError(f"{path}: no such file{where}")


def _table(path: Path, lines: list[str], delimiter: str) -> tuple[list[str], dict[int, list[str]]]:
    """Return the names of columns, if there are any, and the cells of each row by the number of its line."""
    names: list[str] = []
    comment: list[str] = []
    rows: dict[int, list[str]] = {}

    def cells_of(text: str) -> list[str]:
        return text.split() if delimiter == " " else [x.strip().strip('"').strip() for x in text.split(delimiter)]

    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith("#"):
            comment = cells_of(text.lstrip("# "))
        elif text:
            cells = cells_of(text)
            if not names and not rows:
                if not any(_is_number(cell) for cell in cells):
                    names = cells
                    continue
                names = comment if len(comment) == len(cells) else []
            expected = len(next(iter(rows.values()), names or cells))
            if len(cells) != expected:
                raise DataError(f"{path}, line {number}: {len(cells)} columns, but {expected} before")
            rows[number] = cells
    if not rows:
        raise DataError(f"{path}: no line of numbers; it begins with {lines[0][:60]!r}" if lines else f"{path}: empty")
    return names, rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _indices(path: Path, key: str, chosen, names: list[str], count: int, delimiter: str) -> list[int]:
    out: list[int] = []
    for column in [chosen] if isinstance(chosen, str | int) else list(chosen):
        if isinstance(column, str) and column.count("*") == 1:
            head, tail = (re.escape(part) for part in column.split("*"))
            matches = [(re.fullmatch(f"{head}([0-9]+){tail}", name), i) for i, name in enumerate(names)]
            numbered = sorted((int(match[1]), i) for match, i in matches if match)
            matching = [i for _, i in numbered]
        elif isinstance(column, str):
            matching = [names.index(column)] if names.count(column) == 1 else []
        else:
            matching = [column] if 0 <= column < count else []
        if not matching:
            raise _no_column(path, key, column, names, count, delimiter)
        out += matching
    if not out or (key == "t" and len(out) != 1):
        raise DataError(f"{path}: {key} ({_MEANING[key]}) is {len(out)} columns")
    return out


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
