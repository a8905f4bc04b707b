"""XML text with changes at their places: all bytes between them stay as they are."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

_ATTRIBUTE = re.compile(rb"""\s+([^\s=/>]+)\s*=\s*("[^"]*"|'[^']*')""")
_DECLARED_ENCODING = re.compile(rb"""<\?xml[^>]*\bencoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
_MARKS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))


@dataclasses.dataclass(eq=False)
class Place:
    """An element and where it stands in the text, in bytes of UTF-8."""

    tag: str
    attributes: dict[str, str]
    start: int
    opened: int = 0
    """The place at which the start tag ends."""
    closed: int = 0
    """The place at which the end tag begins; `opened` for an element without one."""
    end: int = 0
    children: list[Place] = dataclasses.field(default_factory=list)

    def all(self, tag: str) -> list[Place]:
        """Return the children with this tag."""
        return [child for child in self.children if child.tag == tag]


def decoded(data: bytes) -> str:
    """Return the text of an XML file, in the encoding that its byte order mark or its declaration names."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding)
    declared = _DECLARED_ENCODING.match(data.lstrip())
    return data.decode(declared[1].decode() if declared else "utf-8")


class EditedText:
    """An XML text, its elements, and changes of it."""

    def __init__(self, text: str):
        self.data = text.encode()
        self.changes: list[tuple[int, int, bytes]] = []
        # XML allows nothing before its declaration but a byte order mark.
        self._before = len(self.data) - len(text.lstrip("\ufeff \t\r\n").encode())
        document = Place("", {}, 0)
        self._stack = [document]
        self._parser = expat.ParserCreate("utf-8")
        self._parser.StartElementHandler, self._parser.EndElementHandler = self._start, self._end
        self._parser.Parse(self.data[self._before :], True)
        (self.root,) = document.children

    def text(self) -> str:
        """Return the text with the changes."""
        out, position = [], 0
        for start, end, new in sorted(self.changes, key=lambda change: change[:2]):
            out += [self.data[position:start], new]
            position = end
        return b"".join([*out, self.data[position:]]).decode()

    def value(self, place: Place, attribute: str) -> str:
        """Return an attribute as it is written."""
        start, end = self._values(place)[attribute]
        return self.data[start:end].decode()

    def set(self, place: Place, attribute: str, value: str) -> None:
        """Write the value of an attribute, which is added where the element has none."""
        values = self._values(place)
        if attribute in values:
            self.changes.append((*values[attribute], value.encode()))
            return
        # Behind the other attributes; each value ends with a quotation mark.
        at = max((end + 1 for _, end in values.values()), default=place.start + 1 + len(place.tag.encode()))
        self.changes.append((at, at, f' {attribute}="{value}"'.encode()))

    def set_text(self, place: Place, text: str) -> None:
        """Write the text of an element without children; white space around it stays."""
        old = self.data[place.opened : place.closed]
        start = place.opened + len(old) - len(old.lstrip())
        self.changes.append((start, start + len(old.strip()), text.encode()))

    def add(self, place: Place, tag: str, attributes: Mapping[str, str], inside: str = "") -> None:
        """Add an element behind the children of another one, indented as these are."""
        shown = "".join(f" {name}={quoteattr(value)}" for name, value in attributes.items())
        self.append(place, [f"<{tag}{shown}>{inside}</{tag}>" if inside else f"<{tag}{shown}/>"])

    def replace(self, place: Place, element: str) -> None:
        """Write another element in the place of one."""
        self.changes.append((place.start, place.end, element.encode()))

    def piece(self, place: Place) -> str:
        """Return the text of an element."""
        return self.data[place.start : place.end].decode()

    def append(self, place: Place, elements: Sequence[str]) -> None:
        """Add elements, given as text, behind the children of another one, indented as these are."""
        if place.children:
            first, last = place.children[0], place.children[-1]
            indent = self._white_space_before(first.start, place.opened)
            self.changes.append((last.end, last.end, "".join(indent + x for x in elements).encode()))
            return
        own = self._white_space_before(place.start, 0)
        inner = own + "  " if "\n" in own else own
        element = inner.join(elements)
        if place.closed > place.opened or not self.data[: place.opened].endswith(b"/>"):
            self.changes.append((place.opened, place.opened, (inner + element).encode()))
            return
        # `<link name="a"/>` gets an end tag.
        slash = place.opened - 2
        start = slash - (len(self.data[:slash]) - len(self.data[:slash].rstrip()))
        self.changes.append((start, place.opened, f">{inner}{element}{own}</{place.tag}>".encode()))

    def _white_space_before(self, position: int, since: int) -> str:
        before = self.data[since:position]
        return before[len(before.rstrip()) :].decode()

    def _values(self, place: Place) -> dict[str, tuple[int, int]]:
        """Return where the value of each attribute stands, without its quotation marks."""
        found = _ATTRIBUTE.finditer(self.data, place.start, place.opened)
        return {match[1].decode(): (match.start(2) + 1, match.end(2) - 1) for match in found}

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        start = self._before + self._parser.CurrentByteIndex
        opened = start + 1 + len(tag.encode())
        while match := _ATTRIBUTE.match(self.data, opened):
            opened = match.end()
        opened = self.data.index(b">", opened) + 1
        place = Place(tag, attributes, start, opened)
        self._stack[-1].children.append(place)
        self._stack.append(place)

    def _end(self, tag: str) -> None:
        place = self._stack.pop()
        position = self._before + self._parser.CurrentByteIndex
        if position <= place.start or self.data[: place.opened].endswith(b"/>"):
            place.closed = place.end = place.opened
            return
        place.closed, place.end = position, self.data.index(b">", position) + 1
