"""The memory of a program's intermediate arrays."""

from __future__ import annotations

ALIGNMENT = 64
"""The alignment of arrays, in bytes: that of the longest vectors."""


class Allocation:
    """A part of the memory, which is given back when nothing needs it any more."""

    def __init__(self, memory: Memory, start: int, length: int):
        self.memory, self.start, self.length = memory, start, length
        self.users = 0

    def keep(self) -> None:
        self.users += 1

    def release(self) -> None:
        self.users -= 1
        if not self.users:
            self.memory.give_back(self.start, self.length)


class Memory:
    """Gives out the first part that is free and long enough."""

    def __init__(self):
        self.size = 0
        """The most bytes that were in use at once."""
        self._free: list[tuple[int, int]] = []

    def take(self, size: int) -> Allocation:
        """Return a part of so many bytes."""
        length = -(-size // ALIGNMENT) * ALIGNMENT
        for k, (start, free) in enumerate(self._free):
            if free >= length:
                self._free[k : k + 1] = [(start + length, free - length)] if free > length else []
                return Allocation(self, start, length)
        start = self.size
        if self._free and sum(self._free[-1]) == self.size:
            start = self._free.pop()[0]
        self.size = start + length
        return Allocation(self, start, length)

    def give_back(self, start: int, length: int) -> None:
        """Make a part free, and join it to its neighbors."""
        parts = sorted([*self._free, (start, length)])
        self._free = []
        for start, length in parts:
            if self._free and sum(self._free[-1]) == start:
                self._free[-1] = self._free[-1][0], self._free[-1][1] + length
            else:
                self._free.append((start, length))
