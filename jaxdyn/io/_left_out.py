"""Parts of robots' files that models leave out: one rule, and one warning, for all formats."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Any

from jaxdyn import _errors
from jaxdyn.io.robot_files import RobotFileWarning, enumerate_items


class LeftOutWarning(RobotFileWarning):
    """A robot's file has parts that act, or may act, on its motion, and that the model leaves out.

    Each loading warns once, of all of them. `warnings.simplefilter("ignore", jaxdyn.LeftOutWarning)` silences it.
    """


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Parts of a robot's file, of one kind, that the model leaves out.

    - `kind`: what they are.
    - `names`: the name, or the place in the file, of each.
    - `acts`: whether the dynamics that the file's format describes have them. Loading warns of these only.
    - `note`: what the model does instead, or where the parts can be read.
    """

    kind: str
    names: tuple[str, ...]
    acts: bool
    note: str = ""

    def __str__(self) -> str:
        return self.text(8)

    def text(self, most: int | None = None) -> str:
        """One line: the kind, the number, the first `most` names or all of them, and the note."""
        names = enumerate_items(self.names, len(self.names) if most is None else most, ", ", " and")
        return f"{self.kind} ({len(self.names)}): {names}" + (f"; {self.note}" if self.note else "")


def present(parts: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Return the kinds of which the file has any."""
    return tuple(part for part in parts if part.names)


def warn_of_what_is_left_out(source: str, parts: Iterable[LeftOut]) -> None:
    """Warn, once, of all parts of a file that act and that the model leaves out, by kind, number and name."""
    lines = [f"- {part}" for part in present(parts) if part.acts]
    if lines:
        what = "the model leaves out what the file has (jaxdyn.io.left_out lists all, LeftOutWarning silences this)"
        _errors.warn("\n".join((f"{source}: {what}:", *lines)), LeftOutWarning)


def left_out(
    path_or_text: str | os.PathLike | Any, *, package_dirs: Sequence[str | os.PathLike] = ()
) -> tuple[LeftOut, ...]:
    """Return all that a URDF or MJCF file has and its model leaves out, by kind.

    `acts` says which of it the dynamics of the format have: contacts, limits of joints, servos, constraints and the
    like, of which loading warns. The rest are shapes, sensors, materials, cameras and so on. `path_or_text` and
    `package_dirs` are as in `load_urdf` and `load_mjcf`; faults that `strict=False` and `unsupported="warn"` pass over
    are passed over here.

    **Raises** `RobotFileError` for a file that cannot be read; `ImportError` without MuJoCo (MJCF).
    """
    # The readers of the formats import the rule above.
    from jaxdyn.io.mjcf import is_mjcf, left_out_of_mjcf
    from jaxdyn.io.urdf import left_out_of_urdf

    return left_out_of_mjcf(path_or_text) if is_mjcf(path_or_text) else left_out_of_urdf(path_or_text, package_dirs)
