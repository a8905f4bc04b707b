"""The text of an MJCF file, with those that it includes, and the elements of it that MuJoCo's compiler has numbered."""

from __future__ import annotations

import os
from pathlib import Path

from jaxdyn._errors import ModelError
from jaxdyn.io.robot_files import EditedText, Place, decoded, read_robot_file, robot_text

_JOINTS = ("joint", "freejoint")
# Parts that make elements which no element of the text stands for, so that numbers of elements do not tell which.
_MAKERS = ("replicate", "attach", "composite", "flexcomp", "model")


class Document:
    """The elements of an MJCF file, in the order of MuJoCo's numbers."""

    def __init__(self, path_or_text: str | os.PathLike):
        text = robot_text(path_or_text)
        self.main = "" if text is not None else os.fspath(path_or_text)
        self.texts = {self.main: EditedText(str(path_or_text) if text is not None else _read(self.main))}
        """The texts of the file and of those that it includes, by their paths."""
        self.elements: dict[str, list[tuple[EditedText, Place]]] = {
            x: [] for x in ("body", "joint", "geom", "tendon", "actuator", "option")
        }
        self.compiler: dict[str, str] = {}
        self.numbered = True
        root = self.texts[self.main].root
        self._read(self.main, root)

    def _read(self, path: str, parent: Place) -> None:
        """Read the children of an element: those of one body before those of its children."""
        inner = []
        for place in parent.children:
            tag = place.tag
            self.numbered &= tag not in _MAKERS
            if tag == "include":
                self._include(path, place)
            elif tag == "compiler":
                self.compiler |= place.attributes
            elif tag in ("option", "geom", *_JOINTS) and parent.tag not in ("pair", "default"):
                kind = "joint" if tag in _JOINTS else tag
                if kind == "option" or parent.tag in ("body", "worldbody", "frame"):
                    self._add(kind, path, place)
            elif tag in ("worldbody", "frame"):
                self._read(path, place)
            elif tag == "body":
                inner.append(place)
            elif tag in ("tendon", "actuator"):
                for x in place.children:
                    if x.tag == "include":
                        self._include(path, x)
                    else:
                        self._add(tag, path, x)
        for place in inner:
            self._add("body", path, place)
            self._read(path, place)

    def _include(self, path: str, place: Place) -> None:
        file = str(Path(self.main).parent / place.attributes["file"])
        if file not in self.texts:
            self.texts[file] = EditedText(_read(file))
        self._read(file, self.texts[file].root)

    def _add(self, kind: str, path: str, place: Place) -> None:
        self.elements[kind].append((self.texts[path], place))

    def find(self, kind: str, name: str, number: int, count: int) -> tuple[EditedText, Place]:
        """Return the element of a kind with a name, or else with this number of `count`. **Raises** `ModelError`."""
        every = self.elements[kind]
        named = [x for x in every if x[1].attributes.get("name") == name] if name else []
        if len(named) == 1:
            return named[0]
        if not named and not name and self.numbered and len(every) == count:
            return every[number]
        raise ModelError(
            f"patch_mjcf: the file has no element for {kind} {name or number} with a name of its own: parts such as "
            "<replicate> or <attach> make it, or it lacks a name; write the text with to_mjcf"
        )

    def changed(self) -> dict[str, str]:
        """Return the texts that have changed, and that of the file itself, by their paths."""
        return {path: x.text() for path, x in self.texts.items() if x.changes or path == self.main}


def _read(path: str) -> str:
    return decoded(read_robot_file(path, "an MJCF"))
