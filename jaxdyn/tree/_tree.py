"""The order in which a tree is walked, and where its values wait meanwhile."""

from __future__ import annotations

import dataclasses
import functools
import heapq

import numpy as np


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
    def is_chain(self) -> bool:
        """Whether every node is the child of the node before it."""
        return self.parents == tuple(range(-1, self.size - 1))

    @functools.cached_property
    def roots(self) -> np.ndarray:
        """The root of every node's tree: `[1]` for one tree, else `[size]`."""
        out: list[int] = []
        for node, parent in enumerate(self.parents):
            out.append(node if parent < 0 else out[parent])
        return np.array(out[:1] if len(set(out)) == 1 else out, dtype=int)

    @functools.cached_property
    def last_child(self) -> np.ndarray:
        """`[size]`: whether a node is the last child of its parent (or the last of the roots)."""
        last = {parent: node for node, parent in enumerate(self.parents)}
        return np.array([last[parent] == node for node, parent in enumerate(self.parents)], dtype=bool)

    @functools.cached_property
    def places(self) -> np.ndarray:
        """`[size]`: the place in which a node keeps a value for its children, or collects one from them; -1 for a leaf.

        Another node takes a place over at its node's last child, so there are only as many as branches open at a time.
        A last child may have its parent's place, so a step of a walk reads before it writes.
        """
        children = np.bincount([p for p in self.parents if p >= 0], minlength=self.size)
        out, vacant, count = np.full(self.size, -1), [], 0
        for node, parent in enumerate(self.parents):
            if parent >= 0 and self.last_child[node]:
                heapq.heappush(vacant, int(out[parent]))
            if children[node]:
                if not vacant:
                    heapq.heappush(vacant, count)
                    count += 1
                out[node] = heapq.heappop(vacant)
        return out

    @functools.cached_property
    def paths(self) -> np.ndarray:
        """`[depth, size]`: every node, its parent, its parent's parent and so on; -1 beyond the root."""
        lines = [np.arange(self.size)]
        parents = np.array(self.parents, dtype=int)
        while (above := np.where(lines[-1] >= 0, parents[lines[-1]], -1)).max(initial=-1) >= 0:
            lines.append(above)
        return np.stack(lines)

    @functools.cached_property
    def ancestors(self) -> np.ndarray:
        """`[size, size]`: whether node `j` is node `i` or one of its ancestors."""
        out = np.eye(self.size, dtype=bool)
        for i, p in enumerate(self.parents):
            if p >= 0:
                out[i] |= out[p]
        return out
