"""Parts of robots' files that models leave out: one rule, and one warning, for all formats."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from jaxdyn import _errors
from jaxdyn.io.robot_files._facts import RobotFileWarning, enumerate_items


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


def warn_of_what_is_left_out(
    source: str,
    parts: Iterable[LeftOut],
    what: str = "the model leaves out what the file has (jaxdyn.io.left_out lists all",
) -> None:
    """Warn, once, of all parts of a file that act and that are left out, by kind, number and name."""
    lines = [f"- {part}" for part in present(parts) if part.acts]
    if lines:
        _errors.warn("\n".join((f"{source}: {what}, LeftOutWarning silences this):", *lines)), LeftOutWarning)
