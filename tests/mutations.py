"""Damaged versions of files from a seeded generator: bytes, words, numbers, lines, elements, members of archives."""

from __future__ import annotations

import contextlib
import io
import random
import re
import signal
import zipfile
from collections.abc import Callable, Iterator

import numpy as np

# fmt: off
NUMBERS = (
    "nan", "NaN", "-nan", "inf", "-inf", "Infinity", "1e400", "-1e400", "1e308", "-1e308", "1e200", "1e39", "1e20",
    "1e12", "-1e12", "1e-400", "1e-320", "1e-30", "0", "-0", "-1", "1", ".5", "180", "0x10", "1_0", "1,2", "1.2.3",
    "1e", "+", "1+2j", "true", "None", "one", "𝟙", "１", "٣", "2147483648", "18446744073709551616", "", " ",
    "9" * 400, "7" * 40, "0." + "0" * 60 + "1", "1 0 0", "0 0 0", "nan nan nan",
)
"""What may stand in the place of a number: what is none, is not finite, is huge, tiny, or empty; and words."""

WORDS = (
    "'", '"', "<", ">", "&", "&amp;", "&#0;", "&#x10FFFF;", "&x;", "]]>", "<![CDATA[", "<!--", "-->", "<?xml?>", "é",
    "\ud800", "\ufeff", '"/>', "xmlns", "%s", "{0}", "</link>", "</robot>", "<robot>", "</mujoco>", "<worldbody>",
    "<!DOCTYPE r>", "xacro:", "jaxdyn:", "drake:", "../../..", "/dev/null", "[", "]", "{", "}", "[]", "{}", '""', "=",
    "#", ";", ",", "\\", "\x00", "\t", "\r", "\n\n", "null", "true", "world", "root_joint", "base", "shoulder",
    "fixed", "floating", "planar", "ball", "free",
)
"""What may stand in the place of any word or tag."""
# fmt: on

_PIECES = re.compile(rb"<[^<>]*>|[\w.+-]+=\"[^\"]*\"|[\w.+-]+|\s+|.", re.DOTALL)
_NUMBER = re.compile(rb"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_TAG = re.compile(rb"<(/?)([\w:.-]+)[^<>]*?(/?)>")


def mutated(content: bytes, generator: random.Random | np.random.Generator | int) -> bytes:
    """Return the content with one to twenty damages, which the generator, or a seed alone, determines. It may be the
    content itself, when a damage hits nothing. Archives (`.npz`) are damaged as they are, or in one of their members.
    """
    if isinstance(generator, np.random.Generator):
        generator = int(generator.integers(2**62))
    rng = generator if isinstance(generator, random.Random) else random.Random(generator)
    if content.startswith(b"PK\x03\x04") and rng.random() < 0.6:
        return _in_archive(content, rng)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 2, 5, 20))):
        content = rng.choice(_WAYS)(content, rng)
    return content


@contextlib.contextmanager
def patience(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` if the block takes longer than `seconds`."""

    def stop(*_):
        raise TimeoutError(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _in_archive(content: bytes, rng: random.Random) -> bytes:
    """Return the archive with one member damaged, and a checksum that fits."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    chosen = rng.randrange(len(members))
    name, data = members[chosen]
    way = rng.randrange(8)
    if way == 0:
        del members[chosen]
    elif way == 1:
        members[chosen] = (rng.choice(("x.npy", "", "q", "../q.npy", "q.npy" * 50)), data)
    elif way == 2:
        members[chosen] = (name, members[rng.randrange(len(members))][1])
    elif way == 3:
        # The header of an array: its type, order and shape.
        members[chosen] = (name, _number(data[:128], rng) + data[128:])
    else:
        members[chosen] = (name, mutated(data, rng))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return out.getvalue()


# Bytes


def _span(data: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(data) + 1)
    return start, min(len(data), start + rng.randrange(1, 200))


def _truncated(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _without_bytes(data: bytes, rng: random.Random) -> bytes:
    start, stop = _span(data, rng)
    return data[:start] + data[stop:]


def _doubled_bytes(data: bytes, rng: random.Random) -> bytes:
    start, stop = _span(data, rng)
    return data[:stop] + data[start:]


def _swapped_bytes(data: bytes, rng: random.Random) -> bytes:
    (a, b), (c, d) = sorted((_span(data, rng), _span(data, rng)))
    b, c = min(b, c), max(b, c)
    return data[:a] + data[c:d] + data[b:c] + data[a:b] + data[d:]


def _flipped_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 5) if data else 0):
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _inserted_bytes(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.randbytes(rng.randrange(1, 4)) + data[start + rng.randrange(2) :]


def _filled(data: bytes, rng: random.Random) -> bytes:
    """Zeros, as a file system leaves them after a crash; or ones, which make binary numbers NaN and lengths enormous.
    Seldom everything: an empty file, or one of zeros, is one case only."""
    if rng.random() < 0.1:
        return bytes(rng.choice((0, len(data))))
    start, stop = _span(data, rng)
    return data[:start] + rng.choice((b"\x00", b"\xff")) * (stop - start) + data[stop:]


def _encoded(data: bytes, rng: random.Random) -> bytes:
    """Another encoding of the text, seldom: nearly nothing is left to read."""
    if rng.random() < 0.7:
        return _flipped_bits(data, rng)
    return data.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-8-sig", "utf-32", "latin-1")), "replace")


# Words, numbers and lines


def _pieces(data: bytes, rng: random.Random) -> bytes:
    """Tags, attributes and words removed, doubled, swapped or replaced."""
    pieces = _PIECES.findall(data) or [b""]
    i, k, way = rng.randrange(len(pieces)), rng.randrange(len(pieces)), rng.randrange(4)
    if way == 0:
        del pieces[i]
    elif way == 1:
        pieces.insert(i, pieces[k])
    elif way == 2:
        pieces[i], pieces[k] = pieces[k], pieces[i]
    else:
        pieces[i] = rng.choice(WORDS + NUMBERS).encode("utf-8", "surrogatepass")
    return b"".join(pieces)


def _number(data: bytes, rng: random.Random) -> bytes:
    """A number replaced by another, or by what is none."""
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return data
    number = rng.choice(numbers)
    way = rng.randrange(4)
    if way == 0:
        new = b"-" + number[0]
    elif way == 1:
        new = number[0] + f"e{rng.choice((-300, -40, -8, 8, 19, 38, 300))}".encode()
    else:
        new = rng.choice(NUMBERS).encode()
    return data[: number.start()] + new + data[number.end() :]


def _lines(data: bytes, rng: random.Random) -> bytes:
    """Lines removed, doubled or swapped."""
    lines = data.splitlines(keepends=True) or [b""]
    i, k, way = rng.randrange(len(lines)), rng.randrange(len(lines)), rng.randrange(3)
    if way == 0:
        del lines[i]
    elif way == 1:
        lines.insert(i, lines[k])
    else:
        lines[i], lines[k] = lines[k], lines[i]
    return b"".join(lines)


# Elements of XML


def _elements(data: bytes, rng: random.Random) -> bytes:
    """An element removed, doubled, nested in itself many times, or moved into another."""
    spans = _element_spans(data)
    if not spans:
        return _lines(data, rng)
    (a, b), (c, d) = rng.choice(spans), rng.choice(spans)
    element, way = data[a:b], rng.randrange(4)
    if way == 0:
        return data[:a] + data[b:]
    if way == 1:
        return data[:b] + element + data[b:]
    if way == 2:
        opening = _TAG.match(element)
        if opening is None or opening[3] or len(element) > 2000:
            return data[:a] + data[b:]
        closing = b"</" + opening[2] + b">"
        depth = rng.choice((1, 2, 5, 50))
        return data[:a] + opening[0] * depth + element + closing * depth + data[b:]
    # Behind the opening tag of the other element, or behind all of it.
    opening = _TAG.match(data, c)
    place = d if opening is None or opening[3] else opening.end()
    return data[:place] + element + data[place:]


def _element_spans(data: bytes) -> list[tuple[int, int]]:
    spans, stack = [], []
    for tag in _TAG.finditer(data):
        if tag[3]:
            spans.append(tag.span())
        elif not tag[1]:
            stack.append((tag[2], tag.start()))
        elif stack and stack[-1][0] == tag[2]:
            spans.append((stack.pop()[1], tag.end()))
    return spans


_WAYS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    _truncated,
    _without_bytes,
    _doubled_bytes,
    _swapped_bytes,
    _flipped_bits,
    _inserted_bytes,
    _filled,
    _encoded,
    *(_pieces,) * 4,
    *(_number,) * 5,
    _lines,
    *(_elements,) * 3,
)
