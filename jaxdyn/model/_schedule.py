"""The order in which a tree's nodes are laid out and walked: levels, gathered into rectangular runs.

All of it is plain Python on the static structure, done once for each structure.

A *run* is a range of consecutive levels, stored as a rectangle `[length, width]` of slots. A node keeps the slot of its
parent where it can, so that a run without branches inside is a bundle of parallel chains: its scan needs no index at
all, and branching happens between runs, at static positions. Levels are cut into runs by dynamic programming, which
weighs the slots that padding would waste against what a further run costs.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

# What one more run costs, and what a branching level inside a run costs for each of its slots, both in slots.
RUN_COST = 8
BRANCH_COST = 3
# Every run is traced and compiled apart, so their number is bounded.
MAX_RUNS = 8


@dataclasses.dataclass(frozen=True)
class Run:
    """Consecutive levels in a rectangle: `parents[l, w]` is the slot, one level up, of slot `w`'s parent.

    `parents[0]` points into the last level of the run before (all zero in the first run, whose parent is the world);
    -1 marks padding there. `straight`: no indices are needed inside, `parents[l, w] = w` for `l > 0`.
    """

    start: int
    length: int
    width: int
    parents: np.ndarray
    straight: bool

    @property
    def stop(self) -> int:
        return self.start + self.length * self.width


@dataclasses.dataclass(frozen=True)
class Tree:
    """A forest in topological order: `parents[i] < i`, or -1 for a child of the world."""

    parents: tuple[int, ...]

    def __post_init__(self):
        if any(not -1 <= p < i for i, p in enumerate(self.parents)):
            raise ValueError(f"parents {self.parents} are not in topological order")

    @property
    def size(self) -> int:
        return len(self.parents)

    @functools.cached_property
    def _schedule(self) -> tuple[tuple[Run, ...], np.ndarray]:
        return _schedule(self.parents)

    @property
    def runs(self) -> tuple[Run, ...]:
        return self._schedule[0]

    @property
    def node_of_slot(self) -> np.ndarray:
        """`[slots]`: the node in each slot, -1 where the slot is padding."""
        return self._schedule[1]

    @functools.cached_property
    def slot_of_node(self) -> np.ndarray:
        """`[size]`."""
        slots = np.empty(self.size, dtype=int)
        filled = self.node_of_slot >= 0
        slots[self.node_of_slot[filled]] = np.flatnonzero(filled)
        return slots

    @functools.cached_property
    def padding(self) -> np.ndarray:
        """`[slots]`: 1 where a slot is padding, else 0."""
        return (self.node_of_slot < 0).astype(float)

    @functools.cached_property
    def ancestors(self) -> np.ndarray:
        """`[size, size]`: whether node `j` is node `i` or one of its ancestors, in node order."""
        out = np.eye(self.size, dtype=bool)
        for i, p in enumerate(self.parents):
            if p >= 0:
                out[i] |= out[p]
        return out


def _levels(parents: tuple[int, ...]) -> list[list[int]]:
    depth: list[int] = []
    for p in parents:
        depth.append(0 if p < 0 else depth[p] + 1)
    levels: list[list[int]] = [[] for _ in range(max(depth, default=-1) + 1)]
    for node, d in enumerate(depth):
        levels[d].append(node)
    return levels


def _cut(widths: list[int], branches: list[bool], run_cost: float) -> list[int]:
    """The first levels of the runs of least cost; `branches[l]`: some node of level `l - 1` has two children."""
    n = len(widths)
    best, choice = [0.0] + [np.inf] * n, [0] * (n + 1)
    for stop in range(1, n + 1):
        width, branching = 0, 0
        for start in range(stop - 1, -1, -1):
            width = max(width, widths[start])
            cost = best[start] + run_cost + (stop - start) * width + BRANCH_COST * width * branching
            if cost < best[stop]:
                best[stop], choice[stop] = cost, start
            branching += branches[start]
    starts, stop = [], n
    while stop > 0:
        stop = choice[stop]
        starts.append(stop)
    return starts[::-1]


def _schedule(parents: tuple[int, ...]) -> tuple[tuple[Run, ...], np.ndarray]:
    levels = _levels(parents)
    widths = [len(level) for level in levels]
    branches = [len({parents[i] for i in level}) < len(level) for level in levels]
    run_cost = float(RUN_COST)
    starts = _cut(widths, branches, run_cost)
    while len(starts) > MAX_RUNS:
        run_cost *= 1.5
        starts = _cut(widths, branches, run_cost)

    runs, layout, start_slot = [], [], 0
    slot: dict[int, int] = {-1: 0}
    for first, after in zip(starts, starts[1:] + [len(levels)], strict=True):
        width = max(widths[first:after])
        table = np.tile(np.arange(width), (after - first, 1))
        table[0] = -1
        for row, level in enumerate(levels[first:after]):
            nodes = sorted(level, key=lambda i: (slot[parents[i]], i))
            places: dict[int, int] = {}
            if row == 0:
                places = {node: w for w, node in enumerate(nodes)}
            else:
                # The first child of a parent inherits its slot, the others take what is left.
                for node in nodes:
                    if slot[parents[node]] not in places.values():
                        places[node] = slot[parents[node]]
                free = iter(sorted(set(range(width)) - set(places.values())))
                places |= {node: next(free) for node in nodes if node not in places}
            line = np.full(width, -1)
            for node, w in places.items():
                table[row, w] = slot[parents[node]]
                line[w] = node
            # Only once the level is complete: its nodes' slots are looked up by the level below.
            slot.update(places)
            layout.append(line)
        runs.append(
            Run(
                start=start_slot,
                length=after - first,
                width=width,
                parents=table,
                straight=bool((table[1:] == np.arange(width)).all()),
            )
        )
        start_slot = runs[-1].stop
    return tuple(runs), np.concatenate(layout) if layout else np.zeros(0, dtype=int)
