"""The XML of a URDF file: elements that know where they stand, and the numbers in their attributes."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from jaxdyn._errors import RobotFileError, UnknownNameError, look_up
from jaxdyn.io.robot_files import LARGEST, decoded, enumerate_names, quote, read_robot_file, robot_text
from jaxdyn.model import depth_first

UNLIMITED = sys.float_info.max
"""The largest number, which stands for an infinite limit: the format has no infinity."""

# No two ways to match the same digits, so that the time is proportional to the length.
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INFINITY = re.compile(r"([+-]?)inf(inity)?", re.ASCII | re.IGNORECASE)

# These elements say nothing about the motion; their contents are not kept.
SKIPPED_TAGS = frozenset({"visual", "collision", "gazebo", "material"})


@dataclasses.dataclass
class Source:
    """The name of a robot's file, whether it is read strictly, and what was read although the format forbids it."""

    name: str
    strict: bool
    forgiven: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, eq=False)
class Element:
    """An XML element that knows where it stands: file and line, and the link or joint (or so) that it describes."""

    tag: str
    attributes: dict[str, str]
    source: Source
    line: int
    owner: str
    children: list[Element] = dataclasses.field(default_factory=list)
    parts: list[str] = dataclasses.field(default_factory=list)

    @property
    def where(self) -> str:
        return f"{self.source.name}, line {self.line}"

    @property
    def text(self) -> str:
        return "".join(self.parts).strip()

    def all(self, tag: str) -> list[Element]:
        """Return the children with this tag."""
        return [child for child in self.children if child.tag == tag]

    def below(self) -> Iterator[Element]:
        """Yield all elements inside, in the order of the file."""
        return depth_first(self.children, lambda element: element.children)

    def child(self, tag: str) -> Element | None:
        """Return the only child with this tag, or None."""
        children = self.all(tag)
        if len(children) > 1:
            contents = [[(e.tag, e.attributes, e.text, len(e.children)) for e in (x, *x.below())] for x in children]
            if any(content != contents[0] for content in contents[1:]):
                fail(children[1], f"<{tag}> is given twice, and differently; remove one")
            forgive(children[1], f"<{tag}> is given twice", "the same said once")
        return children[0] if children else None

    def require(self, tag: str) -> Element:
        """Return the only child with this tag. **Raises** `RobotFileError` if there is none."""
        child = self.child(tag)
        if child is None:
            fail(self, f"<{tag}> is missing in <{self.tag}>; add it")
        return child

    def attribute(self, name: str) -> str:
        value = self.attributes.get(name)
        if not value:
            fail(self, f"<{self.tag}> has no {name}; add the attribute {name}=...")
        return value

    def number(self, attribute: str, minimum: float = -math.inf) -> float:
        return self._at_least(self.numbers(attribute, 1)[0], minimum, attribute)

    def limit(self, attribute: str, minimum: float = -math.inf) -> float:
        """Return a number that may be infinite: written as the largest there is, or, if not strict, as `inf`."""
        infinite = _INFINITY.fullmatch(self.attribute(attribute).strip())
        if infinite:
            forgive(self, f"{attribute}={quote(self.attributes[attribute])} of <{self.tag}> is not finite", "no limit")
            value = -math.inf if infinite[1] == "-" else math.inf
        else:
            value = self.limits(attribute, 1)[0]
        return self._at_least(value, minimum, attribute)

    def limits(self, attribute: str, count: int) -> list[float]:
        values = self.numbers(attribute, count, largest=UNLIMITED)
        return [math.copysign(math.inf, x) if abs(x) >= UNLIMITED else x for x in values]

    def numbers(self, attribute: str, count: int, largest: float = LARGEST) -> list[float]:
        return self._parse(self.attribute(attribute), f"{attribute}=", f" of <{self.tag}>", count, largest)

    def text_number(self, minimum: float = -math.inf) -> float:
        """Return the number that stands between the tags."""
        (value,) = self._parse(self.text, "the text ", f" in <{self.tag}>", 1, LARGEST)
        return self._at_least(value, minimum, "number")

    def _at_least(self, value: float, minimum: float, attribute: str) -> float:
        if value < minimum:
            fail(self, f"negative {attribute} of <{self.tag}>: {value}; it must be zero or more")
        return value

    def _parse(self, text: str, before: str, after: str, count: int, largest: float) -> list[float]:
        what = f"{before}{quote(text)}{after}"
        if "," in text and count > 1:
            text = text.replace(",", " ")
            if len(_floats(text)) == count:
                problem = f"{what}, but {count} numbers separated by spaces are needed"
                forgive(self, problem, "numbers without the commas")
        numbers = _floats(text)
        if len(numbers) != count or not all(math.isfinite(x) for x in numbers):
            needed = "a finite number" if count == 1 else f"{count} finite numbers separated by spaces"
            fail(self, f"{what}, but {needed} is needed")
        if max(map(abs, numbers)) > largest:
            fail(self, f"{what} is beyond {largest:g}, which no quantity in SI units is; correct it")
        return numbers


def _floats(text: str) -> list[float]:
    # Only ASCII has white space that the format knows; numbers longer than any that is meant are none.
    if not text.isascii():
        return []
    return [float(w) if len(w) < 1000 and _NUMBER.fullmatch(w) else math.nan for w in text.split()]


def fail(element: Element, message: str) -> NoReturn:
    """Raise `RobotFileError` with the place of an element."""
    raise RobotFileError(f"{element.where}: {element.owner}: {message}")


def forgive(element: Element, problem: str, reading: str) -> None:
    """Note something that the format forbids but that has one obvious meaning; if strict, raise `RobotFileError`."""
    if element.source.strict:
        fail(element, f"{problem}; correct it, or have it read as {reading} by strict=False")
    element.source.forgiven.append(f"line {element.line}, {element.owner}: {problem}, read as {reading}")


def unknown_name(name: str, names: Iterable[str], kind: str) -> str:
    """Return the message for a name that is not among `names`, with the nearest ones."""
    # The comparison takes a time that is proportional to this product, and too long for long names.
    candidates = [candidate for candidate in names if len(candidate) <= 200]
    if len(name) > 200 or len(name) * sum(map(len, candidates)) > 10**7:
        return f"no {kind} named {quote(name)}"
    try:
        look_up(name, candidates, kind)
    except UnknownNameError as error:
        return str(error)
    raise AssertionError(f"{name} is one of the names")


def read_robot(
    path_or_text: str | os.PathLike,
    package_dirs: Sequence[str | os.PathLike],
    strict: bool,
    skipped_tags: frozenset[str] = SKIPPED_TAGS,
) -> Element:
    """Return the root element, `<robot>`, without the elements with `skipped_tags`. **Raises** `RobotFileError`."""
    text = robot_text(path_or_text)
    if text is not None:
        return _Parser(Source("URDF text", strict), text[1], skipped_tags).root(text[0])
    if isinstance(path_or_text, str) and path_or_text.startswith("package://"):
        path_or_text = find_in_packages(path_or_text, package_dirs)
    source = Source(str(path_or_text), strict)
    data = read_robot_file(path_or_text, "a URDF")
    # XML allows nothing before its declaration.
    stripped = data.lstrip(b" \t\r\n")
    lines = data.count(b"\n", 0, len(data) - len(stripped))
    if len(stripped) == len(data) or not stripped.startswith(b"<?xml"):
        return _Parser(source, 0, skipped_tags).root(data)
    problem = f"white space before the XML declaration in line {lines + 1}"
    if strict:
        raise RobotFileError(f"{source.name}: {problem}; remove it, or have it passed over by strict=False")
    source.forgiven.append(f"{problem}, passed over")
    return _Parser(source, lines, skipped_tags).root(stripped)


def urdf_text(path_or_text: str | os.PathLike, package_dirs: Sequence[str | os.PathLike] = ()) -> str:
    """Return the text of a URDF file, given as in `load_urdf`, byte order mark and white space in front included."""
    if robot_text(path_or_text) is not None:
        return str(path_or_text)
    if isinstance(path_or_text, str) and path_or_text.startswith("package://"):
        path_or_text = find_in_packages(path_or_text, package_dirs)
    return decoded(read_robot_file(path_or_text, "a URDF"))


def find_in_packages(url: str, package_dirs: Sequence[str | os.PathLike]) -> Path:
    """Return the file of a URL `package://name/path`: `path` in the folder `name` below one of `package_dirs`, or in
    one of them that has this name itself. **Raises** `RobotFileError` if there is none."""
    name, _, path = url.removeprefix("package://").partition("/")
    if isinstance(package_dirs, str | os.PathLike):
        package_dirs = (package_dirs,)
    folders = [Path(x).resolve() for x in package_dirs]
    candidates = [package / path for x in folders for package in (x / name, x) if package.name == name]
    for file in candidates:
        if file.is_file():
            return file
    missing = f"no such file: {enumerate_names(map(str, candidates))}"
    reason = missing if candidates else "package_dirs, where packages are, is empty"
    advice = f"give package_dirs=[...] with the folder in which the package {name!r} lies"
    raise RobotFileError(f"cannot find {quote(url)}: {reason}; {advice}")


class _Parser:
    """Makes elements of XML. `lines` is the number of lines of the file before what is parsed."""

    def __init__(self, source: Source, lines: int, skipped_tags: frozenset[str]):
        self.source, self.lines, self.skipped_tags = source, lines, skipped_tags
        self.stack = [Element("", {}, source, 0, "")]
        self.depth_skipped = 0
        self.parser = parser = expat.ParserCreate()
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = self._text, self._doctype
        parser.buffer_text = True

    def root(self, data: str | bytes) -> Element:
        document = self.stack[0]
        try:
            self.parser.Parse(data, True)
        except RobotFileError:
            raise
        except expat.ExpatError as error:
            place = f"{self.source.name}, line {error.lineno + self.lines}, column {error.offset + 1}"
            reason = f"malformed XML: {expat.ErrorString(error.code)}"
            raise RobotFileError(f"{place}: {reason}; correct the file there or shortly before") from error
        except (LookupError, ValueError) as error:
            raise RobotFileError(f"{self._place()}: {error}; save the file as UTF-8") from error
        if not document.children:
            raise RobotFileError(f"{self.source.name}: the root element must be <robot> in a URDF file")
        (root,) = document.children
        if root.tag != "robot":
            raise RobotFileError(f"{root.where}: the root element is <{root.tag}>, but that of a URDF file is <robot>")
        return root

    def _place(self) -> str:
        return f"{self.source.name}, line {self.parser.CurrentLineNumber + self.lines}"

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag.startswith("xacro:"):
            reason = f"<{tag}> belongs to xacro, which writes URDF; expand it first"
            raise RobotFileError(f"{self._place()}: {reason}: xacro robot.urdf.xacro > robot.urdf")
        if self.depth_skipped or tag in self.skipped_tags:
            self.depth_skipped += 1
            return
        name = attributes.get("name")
        owner = f"{tag} {quote(name)}" if name else f"a {tag} without a name"
        owner = self.stack[2].owner if len(self.stack) > 2 else owner
        element = Element(tag, attributes, self.source, self.parser.CurrentLineNumber + self.lines, owner)
        self.stack[-1].children.append(element)
        self.stack.append(element)

    def _end(self, _: str) -> None:
        if self.depth_skipped:
            self.depth_skipped -= 1
        else:
            self.stack.pop()

    def _text(self, part: str) -> None:
        if not self.depth_skipped and not part.isspace():
            self.stack[-1].parts.append(part)

    def _doctype(self, *_) -> NoReturn:
        reason = "the entities it may declare can make a small file huge, or read others"
        raise RobotFileError(f"{self._place()}: a <!DOCTYPE> is refused: {reason}; URDF needs none: remove it")
