"""Figures of Matplotlib as files, without a screen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxdyn.cli._result_files import write_durably


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
