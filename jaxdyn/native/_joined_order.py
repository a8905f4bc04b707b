"""An order of operations, of which some are joined to one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence


class JoinedOrder:
    """A topological order that is kept while items are joined (after Pearce & Kelly 2006)."""

    def __init__(self, before: Mapping[int, Sequence[int]]):
        """`before` has the items in an order, with the items that each of them depends on."""
        self.limit = max(1000, len(before) // 10)
        """Items are not joined where more others than this have to move: it would take long."""
        depth: dict[int, int] = {}
        self.item = {item: item for item in before}
        """The item to which one is joined."""
        self.members = {item: [item] for item in before}
        self.before = {item: list(needed) for item, needed in before.items()}
        self.after: dict[int, list[int]] = {item: [] for item in before}
        for item, needed in before.items():
            depth[item] = 1 + max([depth[k] for k in needed], default=0)
            for k in needed:
                self.after[k].append(item)
        # Alike items have about the same depth, so few lie between them.
        self.rank = {item: k for k, item in enumerate(sorted(depth, key=lambda item: (depth[item], item)))}

    def join(self, items: Sequence[int]) -> bool:
        """Join items to the first of them, and return whether that was possible: not if one depends on another."""
        rank = self.rank
        first, last = min(rank[x] for x in items), max(rank[x] for x in items)
        later = self._reached(items, self.after, lambda r: r < last)
        earlier = None if later is None else self._reached(items, self.before, lambda r: r > first)
        if later is None or earlier is None:
            return False
        slots = sorted(rank[x] for x in (*earlier, *items, *later))
        for x, slot in zip(sorted(earlier, key=rank.__getitem__), slots, strict=False):
            rank[x] = slot
        for x, slot in zip(sorted(later, key=rank.__getitem__), slots[len(slots) - len(later) :], strict=True):
            rank[x] = slot
        one = items[0]
        for x in items[1:]:
            for y in self.members.pop(x):
                self.item[y] = one
                self.members[one].append(y)
            self.after[one] += self.after.pop(x)
            self.before[one] += self.before.pop(x)
            del rank[x]
        rank[one] = slots[len(earlier)]
        return True

    def _reached(self, items: Iterable[int], following: Mapping, inside: Callable[[int], bool]) -> set[int] | None:
        """Return the items of some ranks that are reached from others, or None if these reach each other."""
        ends = set(items)
        found: set[int] = set()
        stack = list(ends)
        while stack:
            for x in following[stack.pop()]:
                x = self.item[x]
                if x in ends:
                    return None
                if x not in found and inside(self.rank[x]):
                    found.add(x)
                    stack.append(x)
            if len(found) > self.limit:
                return None
        return found
