"""Stretches of a long program that compute the same with other numbers, such as the steps of a recursion along a chain
or the legs of a robot. They become parts that share one function, so that the compiler has less to do, and the
processor reads less code.

The order of a program is cut where the operations before a place look as nowhere else nearby, so that alike stretches
are cut alike wherever they stand (content-defined chunks; Muthitacharoen, Chen & Mazieres 2001).
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxdyn.native._graph import Node
from jaxdyn.native._operations import CONDITIONS
from jaxdyn.native._order import KernelPart, Rounds
from jaxdyn.native._values import angle_of_input

LEAST = 10_000
"""The fewest operations of a program in which alike stretches are looked for."""
WINDOW = 16
"""The operations before a place that decide whether the order is cut there."""
REACH = 200
"""The operations on each side of a place among which no other place may look the same or come first."""
LONGEST = 3000
"""The most operations in a stretch that is joined from several."""
WORTHWHILE = 0.67
"""Alike stretches share functions where at most this part of the operations is left."""


class Keys(NamedTuple):
    """Properties of operations beside their operands."""

    kept: Mapping[int, tuple]
    """The ways in which the values of nodes are kept as results, by their numbers."""
    paired: set[int]
    """The angles of which both sine and cosine may be needed."""


class Stretch(NamedTuple):
    """Operations that follow each other."""

    begin: int
    end: int
    shape: int
    """A number that is the same for alike stretches."""
    others: list[int]
    """The nodes from outside that it uses, in the order in which it does."""


def with_alike_parts(steps: Sequence[KernelPart | Rounds], keys: Keys) -> list[KernelPart | Rounds]:
    """Return the steps of a program, cut so that many parts are alike where that pays."""
    out: list[KernelPart | Rounds] = []
    run: list[KernelPart] = []
    for step in steps:
        if isinstance(step, KernelPart):
            run.append(step)
            continue
        condition, body = (with_alike_parts(x, keys) for x in (step.condition, step.body))
        out += [*_cut(run, keys), Rounds(step.loop, condition, body)]
        run = []
    return [*out, *_cut(run, keys)]


def _cut(run: list[KernelPart], keys: Keys) -> list[KernelPart]:
    """Return the parts of a program without loops."""
    order = [n for part in run for n in part.nodes]
    if len(order) < LEAST:
        return run
    stretches = _joined(_stretches(order, keys), {n.number: k for k, n in enumerate(order)})
    first: dict[int, Stretch] = {}
    for s in stretches:
        first.setdefault(s.shape, s)
    if sum(s.end - s.begin for s in first.values()) > WORTHWHILE * len(order):
        return run
    parts = [KernelPart(order[s.begin : s.end], []) for s in stretches]
    parts[-1].stored += [x for part in run for x in part.stored]
    # The first part also keeps results that need no operation, the last one what a loop carries.
    like: dict[int, KernelPart] = {}
    for part, s in list(zip(parts, stretches, strict=True))[1:-1]:
        other = like.setdefault(s.shape, part)
        part.like = None if other is part else other
    return parts


def _stretches(order: Sequence[Node], keys: Keys) -> list[Stretch]:
    """Return stretches of an order of operations."""
    cuts = _cuts(order)
    numbers: dict[tuple, int] = {}
    out = []
    for begin, end in zip([0, *cuts], [*cuts, len(order)], strict=True):
        shape, others = _shape(order[begin:end], keys)
        out.append(Stretch(begin, end, numbers.setdefault(shape, len(numbers)), others))
    return out


def _cuts(order: Sequence[Node]) -> list[int]:
    """Return the places at which a number that depends on the operations before it is the smallest within reach."""
    kinds: dict[tuple, int] = {}
    tokens = []
    for n in order:
        kind = (n.op, *[(2 if a.op == "input" else 3 if a.uniform else 4) if type(a) is Node else 1 for a in n.args])
        tokens.append(kinds.setdefault(kind, len(kinds)))
    values = np.array(tokens, np.uint64)
    values = _mixed(values + np.uint64(1))
    windows = np.zeros(len(values), np.uint64)
    for k in range(WINDOW):
        windows[k:] = windows[k:] * np.uint64(3) + values[: len(values) - k]
    windows = _mixed(windows)
    smallest, reach = windows, 1
    while reach < 2 * REACH + 1:
        step = min(reach, 2 * REACH + 1 - reach)
        smallest, reach = np.minimum(smallest[: len(smallest) - step], smallest[step:]), reach + step
    middle = windows[REACH : len(windows) - REACH]
    cuts, last = [], 0
    for k in (np.flatnonzero(middle == smallest) + REACH).tolist():
        if k - last >= REACH // 2:
            cuts.append(k)
            last = k
    return cuts


def _mixed(x: np.ndarray) -> np.ndarray:
    """Return numbers in which each bit depends on all bits of others (splitmix64; Steele, Lea & Flood 2014)."""
    x = x * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _shape(nodes: Sequence[Node], keys: Keys) -> tuple[tuple, list[int]]:
    """Return what is the same for alike stretches, all but numbers and places in memory, and the nodes from outside."""
    place: dict[int, int] = {}
    others: dict[int, int] = {}
    out: list = []

    def outside(a: Node) -> int:
        kind = a.uniform + 2 * (a.op == "input") + 4 * (a.op in CONDITIONS)
        return -8 - kind - 8 * others.setdefault(a.number, len(others))

    for k, n in enumerate(nodes):
        op = n.op
        out.append(op)
        for a in n.args:
            if type(a) is not Node:
                out.append(-2 - a if type(a) is bool else -1)
            else:
                own = place.get(a.number)
                out.append(outside(a) if own is None else own)
        if n.number in keys.kept:
            out.append(keys.kept[n.number])
        if op in ("sin", "cos"):
            factor, root = angle_of_input(n.args[0])
            out += [factor, root and outside(root), n.args[0].number in keys.paired]
        place[n.number] = k
    return tuple(out), list(others)


def _joined(stretches: list[Stretch], at: Mapping[int, int]) -> list[Stretch]:
    """Return stretches of which those are joined that always follow each other in the same way. `at` has the places of
    nodes in the order."""
    numbers: dict[tuple, int] = {}
    while True:
        count = collections.Counter(s.shape for s in stretches)
        following = collections.Counter((a.shape, b.shape) for a, b in itertools.pairwise(stretches))
        out: list[Stretch] = []
        for b in stretches:
            a = out[-1] if out else b
            if (
                a.end == b.begin
                and count[a.shape] == count[b.shape] == following[a.shape, b.shape]
                and a.shape != b.shape
                and b.end - a.begin <= LONGEST
            ):
                out[-1] = _both(a, b, at, numbers)
            else:
                out.append(b)
        if len(out) == len(stretches):
            return out
        stretches = out


def _both(a: Stretch, b: Stretch, at: Mapping[int, int], numbers: dict[tuple, int]) -> Stretch:
    """Return two stretches as one."""
    others = {number: k for k, number in enumerate(a.others)}
    # Where the second uses what the first computes, or what it uses, too.
    links = []
    for number in b.others:
        place = at.get(number, -1)
        links.append(place - a.begin if place >= a.begin else -1 - others.setdefault(number, len(others)))
    shape = -1 - numbers.setdefault((a.shape, b.shape, *links), len(numbers))
    return Stretch(a.begin, b.end, shape, list(others))
