"""The XML of a URDF file: elements that know where they stand, and the numbers in their attributes."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import string
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from jaxdyn._errors import RobotFileError, UnknownNameError, look_up

UNLIMITED = sys.float_info.max
"""The largest number stands for none at all: of a limit, as the format has no infinity."""

# Of anything but a limit. No length, mass or inertia comes near, and products of a few such numbers are still finite.
LARGEST = 1e12

# No two ways to match the same digits, so that the time is proportional to the length.
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_INFINITY = re.compile(r"([+-]?)inf(inity)?", re.ASCII | re.IGNORECASE)

# They say nothing about the motion; what is inside them need not be kept.
PASSED_OVER = frozenset({"visual", "collision", "gazebo", "material"})


class RobotFileWarning(UserWarning):
    """Something in a robot's file that the model does not reproduce, or that the format forbids."""


@dataclasses.dataclass
class Source:
    """Where a robot comes from, how strictly it is read, and what was read although the format forbids it."""

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

    def named(self, tag: str) -> list[Element]:
        return [child for child in self.children if child.tag == tag]

    def below(self) -> Iterator[Element]:
        """All elements inside, in the order of the file. Without recursion: files may be nested deeply."""
        stack = self.children[::-1]
        while stack:
            element = stack.pop()
            yield element
            stack.extend(element.children[::-1])

    def child(self, tag: str) -> Element | None:
        """The only one with this tag."""
        found = self.named(tag)
        if len(found) > 1:
            said = [[(e.tag, e.attributes, e.text, len(e.children)) for e in (x, *x.below())] for x in found]
            if any(other != said[0] for other in said[1:]):
                fail(found[1], f"<{tag}> is given twice, and differently; remove one")
            forgive(found[1], f"<{tag}> is given twice", "the same said once")
        return found[0] if found else None

    def required(self, tag: str) -> Element:
        found = self.child(tag)
        if found is None:
            fail(self, f"<{tag}> is missing in <{self.tag}>; add it")
        return found

    def attribute(self, name: str) -> str:
        value = self.attributes.get(name)
        if not value:
            fail(self, f"<{self.tag}> has no {name}; add the attribute {name}=...")
        return value

    def number(self, attribute: str, minimum: float = -math.inf) -> float:
        (value,) = self.numbers(attribute, 1)
        return self._at_least(value, minimum, attribute)

    def limit(self, attribute: str, minimum: float = -math.inf) -> float:
        """A number that may be infinite: written as the largest there is, or, if not strict, as `inf`."""
        infinite = _INFINITY.fullmatch(self.attribute(attribute).strip())
        if infinite:
            forgive(self, f"{attribute}={shown(self.attributes[attribute])} of <{self.tag}> is not finite", "no limit")
            value = -math.inf if infinite[1] == "-" else math.inf
        else:
            (value,) = self.limits(attribute, 1)
        return self._at_least(value, minimum, attribute)

    def limits(self, attribute: str, count: int) -> list[float]:
        values = self.numbers(attribute, count, largest=UNLIMITED)
        return [math.copysign(math.inf, x) if abs(x) >= UNLIMITED else x for x in values]

    def _at_least(self, value: float, minimum: float, attribute: str) -> float:
        if value < minimum:
            fail(self, f"negative {attribute} of <{self.tag}>: {value}; it must be zero or more")
        return value

    def numbers(self, attribute: str, count: int, largest: float = LARGEST) -> list[float]:
        return self._parsed(self.attribute(attribute), f"{attribute}=", f" of <{self.tag}>", count, largest)

    def text_number(self, minimum: float = -math.inf) -> float:
        """The number that stands between the tags."""
        (value,) = self._parsed(self.text, "the text ", f" in <{self.tag}>", 1, LARGEST)
        return self._at_least(value, minimum, "number")

    def _parsed(self, given: str, before: str, after: str, count: int, largest: float) -> list[float]:
        what = f"{before}{shown(given)}{after}"
        value = given
        if "," in value and count > 1:
            value = value.replace(",", " ")
            if len(_floats(value)) == count:
                forgive(
                    self, f"{what}, but {count} numbers separated by spaces are needed", "numbers without the commas"
                )
        numbers = _floats(value)
        if len(numbers) != count or not all(math.isfinite(x) for x in numbers):
            needed = "a finite number" if count == 1 else f"{count} finite numbers separated by spaces"
            fail(self, f"{what}, but {needed} is needed")
        if max(map(abs, numbers)) > largest:
            fail(self, f"{what} is beyond {largest:g}, which no quantity in SI units is; correct it")
        return numbers


def _floats(value: str) -> list[float]:
    # Only ASCII has white space that the format knows; numbers longer than any that is meant are none.
    if not value.isascii():
        return []
    return [float(w) if len(w) < 1000 and _NUMBER.fullmatch(w) else math.nan for w in value.split()]


def fail(element: Element, message: str) -> NoReturn:
    raise RobotFileError(f"{element.where}: {element.owner}: {message}")


def forgive(element: Element, problem: str, reading: str) -> None:
    """What the format forbids, though it has one obvious meaning: an error if strict."""
    if element.source.strict:
        fail(element, f"{problem}; correct it, or have it read as {reading} by strict=False")
    element.source.forgiven.append(f"line {element.line}, {element.owner}: {problem}, read as {reading}")


def warn(message: str, category: type[Warning] = RobotFileWarning) -> None:
    package = os.path.dirname(os.path.dirname(__file__))
    warnings.warn(message, category, skip_file_prefixes=(package,))


def listed(names: Iterable[str], most: int = 20) -> str:
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shown(name) for name in names[:most]) + more


def unknown(name: str, names: Iterable[str], kind: str) -> str:
    """What to say of a name that is none of `names`: the nearest ones. Long ones take the comparison too long."""
    if len(name) > 200:
        return f"no {kind} named {shown(name)}"
    try:
        look_up(name, [other for other in names if len(other) <= 200], kind)
    except UnknownNameError as error:
        return str(error)
    raise AssertionError(f"{name} is known")


def shown(text: str) -> str:
    """A piece of the file as it appears in messages."""
    return repr(text) if len(text) <= 100 else f"{text[:100]!r}..."


def read(
    path_or_text: str | os.PathLike,
    package_dirs: Sequence[str | os.PathLike],
    strict: bool,
    passed_over: frozenset[str] = PASSED_OVER,
) -> Element:
    """The root element, `<robot>`, without the elements that are passed over."""
    if isinstance(path_or_text, str):
        text = path_or_text.lstrip("\ufeff" + string.whitespace)
        if text.startswith("<"):
            skipped = path_or_text.count("\n", 0, len(path_or_text) - len(text))
            return _parse(text, Source("URDF text", strict), skipped, passed_over)
        if path_or_text.startswith("package://"):
            path_or_text = in_package(path_or_text, package_dirs)
    source = Source(str(path_or_text), strict)
    try:
        data = Path(path_or_text).read_bytes()
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        name = repr(source.name) if len(source.name) < 300 else repr(f"{source.name[:300]}...")
        advice = "give the path of a URDF file, or its text, which must begin with '<'"
        raise RobotFileError(f"cannot read the robot's file {name}: {reason}; {advice}") from error
    # XML allows nothing before its declaration.
    stripped = data.lstrip(b" \t\r\n")
    skipped = data.count(b"\n", 0, len(data) - len(stripped))
    if len(stripped) < len(data) and stripped.startswith(b"<?xml"):
        problem = f"white space before the XML declaration in line {skipped + 1}"
        if strict:
            raise RobotFileError(f"{source.name}: {problem}; remove it, or have it passed over by strict=False")
        source.forgiven.append(f"{problem}, passed over")
        return _parse(stripped, source, skipped, passed_over)
    return _parse(data, source, 0, passed_over)


def in_package(url: str, package_dirs: Sequence[str | os.PathLike]) -> Path:
    """The file of a URL `package://name/path`: `path` in the folder `name` below one of `package_dirs`, or in one of
    them that itself is called so."""
    name, _, path = url.removeprefix("package://").partition("/")
    if isinstance(package_dirs, str | os.PathLike):
        package_dirs = (package_dirs,)
    tried = []
    for folder in (Path(x).resolve() for x in package_dirs):
        for package in (folder / name, folder):
            if package.name == name:
                tried.append(package / path)
                if tried[-1].is_file():
                    return tried[-1]
    reason = f"no such file: {listed(map(str, tried))}" if tried else "package_dirs, where packages are, is empty"
    advice = f"give package_dirs=[...] with the folder in which the package {name!r} lies"
    raise RobotFileError(f"cannot find {shown(url)}: {reason}; {advice}")


def _parse(data: str | bytes, source: Source, skipped: int, passed_over: frozenset[str]) -> Element:
    parser = expat.ParserCreate()
    stack = [Element("", {}, source, 0, "")]
    ignored = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal ignored
        line = parser.CurrentLineNumber + skipped
        if tag.startswith("xacro:"):
            advice = "xacro robot.urdf.xacro > robot.urdf"
            reason = f"<{tag}> belongs to xacro, which writes URDF; expand it first"
            raise RobotFileError(f"{source.name}, line {line}: {reason}: {advice}")
        if ignored or tag in passed_over:
            ignored += 1
            return
        name = attributes.get("name")
        own = f"{tag} {shown(name)}" if name else f"a {tag} without a name"
        element = Element(tag, attributes, source, line, stack[2].owner if len(stack) > 2 else own)
        stack[-1].children.append(element)
        stack.append(element)

    def end(_: str) -> None:
        nonlocal ignored
        if ignored:
            ignored -= 1
        else:
            stack.pop()

    def text(part: str) -> None:
        if not ignored and not part.isspace():
            stack[-1].parts.append(part)

    def doctype(*_) -> NoReturn:
        reason = "the entities it may declare can make a small file huge, or read others"
        line = parser.CurrentLineNumber + skipped
        raise RobotFileError(
            f"{source.name}, line {line}: a <!DOCTYPE> is refused: {reason}; URDF needs none: remove it"
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text
    parser.StartDoctypeDeclHandler = doctype
    parser.buffer_text = True
    try:
        parser.Parse(data, True)
    except RobotFileError:
        raise
    except expat.ExpatError as error:
        at = f"{source.name}, line {error.lineno + skipped}, column {error.offset + 1}"
        reason = expat.ErrorString(error.code)
        raise RobotFileError(f"{at}: malformed XML: {reason}; correct the file there or shortly before") from error
    except (LookupError, ValueError) as error:
        at = f"{source.name}, line {parser.CurrentLineNumber + skipped}"
        raise RobotFileError(f"{at}: {error}; save the file as UTF-8") from error
    if not stack[0].children:
        raise RobotFileError(f"{source.name}: the root element is no <robot>, as that of a URDF file is")
    (root,) = stack[0].children
    if root.tag != "robot":
        raise RobotFileError(f"{root.where}: the root element is <{root.tag}>, but that of a URDF file is <robot>")
    return root
