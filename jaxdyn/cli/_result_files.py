"""Files of results: where recorded data are, durable writes, figures, and folders that one process holds. How files are
written and held is in `jaxdyn._durable_files`."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import socket
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxdyn import _durable_files
from jaxdyn._durable_files import holding_folder, sync_folder
from jaxdyn._errors import DataError, warn

_LOCK, _HOLDER = ".lock", ".lock-holder.json"


def data_path(name: str) -> Path:
    """Return the path as given if it exists, otherwise the path below $JAXDYN_DATA."""
    path = Path(name).expanduser()
    if path.is_absolute() or path.exists():
        return path
    root = os.environ.get("JAXDYN_DATA")
    if not root:
        raise DataError(
            f"{name}: no such file here, and the environment variable JAXDYN_DATA, which names the directory of "
            "recorded data to look in, is not set; set it, or give the path of a file"
        )
    return Path(root).expanduser() / path


def write_durably(path: Path, write: Callable[[Path], object], *, announce: bool = False) -> None:
    """Write a file as `jaxdyn._durable_files` does: readers see the old or the new one, never half of one. `write` is
    called with a temporary file in the same folder. A folder in the place of the file is set aside. `announce` prints
    the path."""

    def write_and_keep(temporary: Path) -> None:
        write(temporary)
        if path.is_dir():
            set_aside(path, "in its place stands something else")

    _durable_files.write_durably(path, write_and_keep)
    if announce:
        print(f"wrote {path}")


def read_json(path: Path, build: Callable[[Any], Any] = lambda content: content, advice: str = "") -> Any:
    """Return `build` of the content of a JSON file. **Raises** `DataError` for a file from which it cannot be built."""
    return read_file(path, lambda: build(json.loads(path.read_text(encoding="utf-8"))), advice)


def read_file(path: Path, read: Callable[[], Any], advice: str = "") -> Any:
    """Return what `read` returns. **Raises** `DataError` where it cannot read the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read()
    except PermissionError:
        raise
    # Damaged bytes can make `zipfile`, `zlib`, `numpy` and `json` raise nearly anything: `BadZipFile`, `EOFError`,
    # `NotImplementedError` for a method of compression, `RecursionError`, `MemoryError`, `struct.error`, ...
    except Exception as error:
        what = str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
        raise DataError(f"{path}: cannot be read ({what}); {advice or 'delete it to start again'}") from None


def write_json(path: Path, content: Any, *, announce: bool = False) -> None:
    """Write a JSON file, as `write_durably` does."""
    text = json.dumps(content, indent=1) + "\n"
    write_durably(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), announce=announce)


def set_aside(path: Path, why: str) -> Path:
    """Rename a file or folder that cannot be used to `<name>.damaged`, or `<name>.damaged-2` where there is one
    already, with a warning that names it. Returns the new path."""
    new, k = path.with_name(f"{path.name}.damaged"), 2
    while os.path.lexists(new):
        new, k = path.with_name(f"{path.name}.damaged-{k}"), k + 1
    os.replace(path, new)
    sync_folder(path.parent)
    warn(f"{path}: {why}; it is kept as {new.name}, and this part begins anew", UserWarning)
    return new


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold a folder for this process, and remove what killed processes left of files in the making. **Raises**
    `DataError`, which says who holds it, if another process does. The lock is one of the operating system: it ends with
    the process, whatever ends that."""
    with holding_folder(folder / _LOCK) as held:
        if not held:
            raise DataError(
                f"{folder}: another process is writing here{_holder(folder)}; wait until it ends, end it, or give "
                "another name"
            )
        now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        write_json(folder / _HOLDER, {"pid": os.getpid(), "host": socket.gethostname(), "since": now})
        try:
            yield
        finally:
            (folder / _HOLDER).unlink(missing_ok=True)


def _holder(folder: Path) -> str:
    """Say who holds a folder, as far as it is known."""
    with contextlib.suppress(DataError):
        return read_json(folder / _HOLDER, lambda x: f" (process {x['pid']:d} on {x['host']:s}, since {x['since']:s})")
    return ""


def pyplot() -> Any:
    """Return Matplotlib's `pyplot` without a screen; None, after a message, where Matplotlib is not installed."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        print("no pictures: matplotlib is not installed (pip install 'jaxdyn[viz]')")
        return None
    return plt


def save_figure(path: Path, figure: Any, dpi: int = 100) -> None:
    """Write a figure into a file, close it, and print the path."""
    import matplotlib.pyplot as plt

    write_durably(path, lambda temporary: figure.savefig(temporary, dpi=dpi), announce=True)
    plt.close(figure)
