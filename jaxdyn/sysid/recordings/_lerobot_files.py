"""Recordings from data sets of LeRobot: tables in Parquet, with the names of their columns in a file beside them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn._errors import DataError, naming_arguments
from jaxdyn._extras import import_extra
from jaxdyn._types import ArrayLike
from jaxdyn.sysid.recordings._recording import Recording

_COLUMNS = {"q": "observation.state", "control": "action"}


@naming_arguments
def load_lerobot(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    episodes: Sequence[int] | None = None,
    joints: Sequence[str] | None = None,
    scale: Mapping[str, ArrayLike] | None = None,
) -> tuple[Recording, ...]:
    """Return the episodes of a data set of LeRobot (versions 2 and 3), a `Recording` each. The package `pyarrow` is
    needed: `pip install 'jaxdyn[bags]'`.

    **Arguments**

    - `path`: the folder of the data set, with `meta` and `data`, or one Parquet file.
    - `columns`: the features of `q`, `v`, `tau`, `current` and `control`; by default `observation.state` as `q`, and
      `action` as `control` if there is one.
    - `episodes`: their numbers, in the order that is wanted; None: all.
    - `joints`: names of motors in the order that the columns get, with or without an ending such as `.pos`, from the
      data set's `meta/info.json`; None: all, in its order.
    - `scale`: factors to SI for each array, such as `{"q": np.pi / 180}`. Many data sets have positions in degrees or
      in percent of a range, which no field of the file says.

    **Raises** `DataError` for a folder or file that is none, missing features, episodes and names, rows that are out of
    order, and times that do not increase; `ImportError` without the package.
    """
    path = Path(path)
    parquet: Any = import_extra("pyarrow.parquet", "read data sets of LeRobot", "bags")
    folder = path if path.is_dir() else None
    files = sorted(path.glob("data/**/*.parquet")) if folder else [path]
    if not files or not all(x.is_file() for x in files):
        raise DataError(f"{path}: {'no data/**/*.parquet in this folder' if folder else 'no such file or folder'}")
    info = _info(folder)
    try:
        available = parquet.read_schema(files[0]).names
    except Exception as error:  # pyarrow raises errors of its own and of the operating system
        raise DataError(f"{files[0]}: not a Parquet file: {error}") from None
    chosen = dict(columns) if columns is not None else {k: x for k, x in _COLUMNS.items() if k == "q" or x in available}
    needed = ["timestamp", "episode_index", "frame_index", *chosen.values()]
    if missing := [x for x in needed if x not in available]:
        raise DataError(f"{files[0]}: no column {', '.join(missing)}; it has {', '.join(available)}")
    if "q" not in chosen or not set(chosen) <= {"q", "v", "a", "tau", "current", "control"}:
        raise DataError(f"{path}: columns has {', '.join(chosen)}; q is needed, and v, a, tau, current, control may be")
    tables = [parquet.read_table(x, columns=needed) for x in files]
    rows = {x: np.concatenate([_array(t.column(x), f"{path}: {x}") for t in tables]) for x in dict.fromkeys(needed)}
    numbers = list(dict.fromkeys(rows["episode_index"].astype(int).tolist()))
    wanted = numbers if episodes is None else list(episodes)
    if unknown := [x for x in wanted if x not in numbers]:
        raise DataError(f"{path}: no episode {', '.join(map(str, unknown))}; there are {_range(numbers)}")
    return tuple(_episode(path, x, rows, chosen, info, joints, scale or {}) for x in wanted)


def _episode(
    path: Path,
    number: int,
    rows: dict[str, np.ndarray],
    chosen: dict[str, str],
    info: dict[str, Any],
    joints: Sequence[str] | None,
    scale: Mapping[str, ArrayLike],
) -> Recording:
    mine = np.flatnonzero(rows["episode_index"] == number)
    frames, what = rows["frame_index"][mine], f"{path}, episode {number}"
    if not np.array_equal(frames, np.arange(len(frames)) + frames[0]):
        k = int(np.flatnonzero(np.diff(frames) != 1)[0])
        raise DataError(
            f"{what}: frame {int(frames[k + 1])} follows frame {int(frames[k])}; frames that are missing or out of "
            "order are no uniform recording: repair the data set, or leave the episode out by episodes=[...]"
        )
    arrays = {}
    for key, feature in chosen.items():
        x = rows[feature][mine]
        x = x[:, None] if x.ndim == 1 else x
        if joints is not None:
            x = x[:, _places(what, feature, info, joints)]
        try:
            arrays[key] = x * np.asarray(scale.get(key, 1.0), np.float64)
        except ValueError:
            raise DataError(f"{what}: the scale of {key} does not fit its {x.shape[1]} columns") from None
    t = rows["timestamp"][mine]
    # Times are float32 in many data sets; where they are those of a uniform rate, they get the digits that it has.
    rate = float(info.get("fps") or 0.0)
    if rate and np.allclose(t, frames / rate, rtol=1e-6, atol=1e-4):
        t = frames / rate
    return Recording(t, **arrays, name=f"{path.name}, episode {number}")


def _places(what: str, feature: str, info: dict[str, Any], joints: Sequence[str]) -> list[int]:
    names = info.get("features", {}).get(feature, {}).get("names")
    # Some versions have the names in a list below one key, such as "motors".
    names = [y for x in names.values() for y in x] if isinstance(names, dict) else names
    if not names:
        raise DataError(f"{what}: meta/info.json does not name the columns of {feature}; leave out joints")
    short = [str(x).partition(".")[0] for x in names]
    places = [names.index(x) if x in names else short.index(x) if short.count(x) == 1 else -1 for x in joints]
    if -1 in places:
        absent = ", ".join(x for x, k in zip(joints, places, strict=True) if k < 0)
        raise DataError(f"{what}: {feature} has no column {absent}, or several; it has {', '.join(map(str, names))}")
    return places


def _info(folder: Path | None) -> dict[str, Any]:
    file = None if folder is None else folder / "meta" / "info.json"
    if file is None or not file.is_file():
        return {}
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: not a file of JSON: {error}") from None


def _array(column: Any, what: str) -> np.ndarray:
    """Return a column of numbers, or of lists of equal lengths, as an array."""
    try:
        return np.array(column.to_pylist(), np.float64)
    except (TypeError, ValueError):
        raise DataError(f"{what} has no numbers, or lists of different lengths") from None


def _range(numbers: list[int]) -> str:
    return f"{min(numbers)} to {max(numbers)}" if numbers else "none"
