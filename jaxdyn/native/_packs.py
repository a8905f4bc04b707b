"""Packs of alike operations: where a program is for one element of the batch, the lanes of a vector hold operations of
different branches of a robot, or of other parts of the program that compute the same with different numbers.

The search begins with operations such as divisions, of which each step of a recursion has one. It shares these out to
the lanes, those first on which the longest chain of others waits, and then packs what they use and what uses them, as
far as operations are alike (superword parallelism; Larsen & Amarasinghe 2000). Products and sums of which lanes differ
in sign are alike. An order of the program in which packs are single operations exists at all times.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from jaxdyn.native._graph import Node, Scalar
from jaxdyn.native._joined_order import JoinedOrder

COMMUTATIVE = {"add", "sub", "mul", "max", "min"}
"""The operations whose two operands may be exchanged, for differences with the opposite sign."""
PACKED = COMMUTATIVE | {"div", "sqrt", "abs", "sin", "cos", "tanh", "exp", "input"}
"""The operations that packs are made of. The others are rare."""
SEEDS = {"div", "sqrt", "sin", "cos", "tanh", "exp"}
"""The operations that the search begins with: a step of a recursion has few of them."""
RADIUS = 3
"""The number of operations, in each direction, within which the surroundings of alike operations are compared."""

type Lanes = list[Node | None]


class Pack:
    """Alike operations."""

    __slots__ = ("lanes", "number", "swapped")

    def __init__(self, number: int, lanes: Lanes):
        self.number = number
        """The number of one of the operations, which stands for all in `JoinedOrder`."""
        self.lanes = lanes
        """The operation in each lane."""
        self.swapped = [False] * len(lanes)
        """Whether an operation has its two operands in the opposite order."""

    @property
    def filled(self) -> list[int]:
        """The lanes that have an operation."""
        return [k for k, node in enumerate(self.lanes) if node is not None]

    @property
    def first(self) -> Node:
        """The operation in the first lane that has one."""
        return next(node for node in self.lanes if node is not None)

    def operand(self, lane: int, place: int) -> tuple[Scalar, int]:
        """Return an operand in a lane without its signs, and its sign."""
        node = self.lanes[lane]
        assert node is not None
        k = 1 - place if self.swapped[lane] else place
        value, sign = unsigned(node.args[k])
        return value, -sign if node.op == "sub" and k == 1 else sign


def unsigned(x: Scalar) -> tuple[Scalar, int]:
    """Return a value without the changes of its sign, and its sign."""
    sign = 1
    while type(x) is Node and x.op == "neg" and not x.uniform:
        x, sign = x.args[0], -sign
    return x, sign


def is_value(x: Scalar) -> bool:
    """Return whether a value is another one for each element of the batch."""
    return type(x) is Node and not x.uniform


def find_packs(nodes: Sequence[Node], lanes: int) -> list[Pack]:
    """Return packs of the operations of a part of a program, which are in an order."""
    own = {n.number for n in nodes}
    loaded = {a.number: a for n in nodes for a in n.args if is_value(a) and a.number not in own}
    inputs = [a for a in loaded.values() if a.op == "input"]
    return _Search([*inputs, *(n for n in nodes if n.op != "neg")], lanes).packs()


class _Search:
    def __init__(self, nodes: Sequence[Node], lanes: int):
        self.nodes, self.lanes = nodes, lanes
        self.place: dict[int, tuple[Pack, int]] = {}
        """The pack of an operation, and its lane."""
        self.work: collections.deque[Pack] = collections.deque()
        self.operands: dict[int, list[Scalar]] = {}
        """The operands of an operation without their signs."""
        self.users: dict[int, list[tuple[Node, int]]] = {n.number: [] for n in nodes}
        """The operations that use one, each with the place among its operands, if they can be packed."""
        self.needed: dict[int, list[int]] = {}
        """The operations that one needs."""
        for n in nodes:
            operands = [] if n.op == "input" else [unsigned(a)[0] for a in n.args]
            self.operands[n.number] = operands
            self.needed[n.number] = [a.number for a in operands if is_value(a) and a.number in self.users]
            if n.op in PACKED:
                for k, a in enumerate(operands):
                    if is_value(a) and a.number in self.users:
                        self.users[a.number].append((n, k))
        self.order = JoinedOrder(self.needed)
        self.above, self.around = self._colors()

    def _colors(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return numbers that are the same for operations whose surroundings look alike: those above them, and those
        below, too."""
        kinds: dict[str | tuple, int] = {}
        own = {n.number: kinds.setdefault(_kind(n), len(kinds)) for n in self.nodes}
        above = own
        # Sums do not depend on an order.
        for _ in range(RADIUS):
            colors = {}
            for n in self.nodes:
                if n.op in COMMUTATIVE:
                    known = self.needed[n.number]
                    colors[n.number] = hash((own[n.number], len(known), sum([above[k] for k in known])))
                else:
                    operands = self.operands[n.number]
                    colors[n.number] = hash((own[n.number], *[above.get(_number(a), -1) for a in operands]))
            above = colors
        around = above
        for _ in range(RADIUS):
            around = {
                number: hash((above[number], sum([around[u.number] * (1 + _role(u, k)) for u, k in users])))
                for number, users in self.users.items()
            }
        return above, around

    def packs(self) -> list[Pack]:
        for group in self._seeds():
            self._join(group)
        self._follow()
        return list({pack.number: pack for pack, _ in self.place.values()}.values())

    def _seeds(self) -> list[Lanes]:
        """Return tuples of operations of that class which fills the most lanes, of those that depend on each other if
        there are some."""
        classes: dict[int, list[Node]] = {}
        for n in self.nodes:
            if n.op in SEEDS:
                classes.setdefault(self.above[n.number], []).append(n)
        best, groups = (False, 0), []
        for members in sorted(classes.values(), key=len, reverse=True):
            if (True, len(members) - -(-len(members) // self.lanes)) > best:
                before = self._predecessors(members)
                found = _scheduled(members, before, self.lanes)
                value = any(before.values()), len(members) - len(found)
                if value[1] and value > best:
                    best, groups = value, found
        return groups

    def _predecessors(self, members: Sequence[Node]) -> dict[int, set[int]]:
        """Return for each operation of a class those others that it depends on, but not through others."""
        bit = {n.number: 1 << k for k, n in enumerate(members)}
        reached: dict[int, int] = {}
        for n in self.nodes:
            found = 0
            for a in self.needed[n.number]:
                found |= bit.get(a) or reached[a]
            reached[n.number] = found
        return {n.number: {m.number for m in members if reached[n.number] & bit[m.number]} for n in members}

    def _follow(self) -> None:
        """Pack what the packs use and what uses them, where their other operands fit first."""
        settled: collections.deque[Pack] = collections.deque()
        while self.work or settled:
            if self.work:
                pack = self.work.popleft()
                self._pack_operands(pack)
                self._pack_users(pack, surely=True)
                settled.append(pack)
            else:
                self._pack_users(settled.popleft(), surely=False)

    def _pack_operands(self, pack: Pack) -> None:
        filled = pack.filled
        if not filled or pack.first.op == "input":
            return
        first = pack.first
        pack.swapped[filled[0]] = False
        a = self.operands[first.number]
        for lane in filled[1:]:
            b = self.operands[pack.lanes[lane].number]  # type: ignore[union-attr]
            if first.op in COMMUTATIVE and not (self._similar(a[0], b[0]) and self._similar(a[1], b[1])):
                straight = self._likeness(a[0], b[0], filled[0], lane) + self._likeness(a[1], b[1], filled[0], lane)
                crossed = self._likeness(a[0], b[1], filled[0], lane) + self._likeness(a[1], b[0], filled[0], lane)
                pack.swapped[lane] = crossed > straight
        for place in range(len(a)):
            found: Lanes = [None] * self.lanes
            for lane in filled:
                value = pack.operand(lane, place)[0]
                found[lane] = value if is_value(value) else None  # type: ignore[assignment]
            self._join(found)

    def _similar(self, a: Scalar, b: Scalar) -> bool:
        """Return whether operands are the same, or operations that look alike."""
        return a is b or (self.around.get(_number(a), 0) == self.around.get(_number(b), 1))

    def _likeness(self, a: Scalar, b: Scalar, lane_a: int, lane_b: int) -> int:
        if a is b:
            return 5
        if not is_value(a) or not is_value(b):
            return 3 * (is_value(a) == is_value(b))
        first, second = self.place.get(a.number), self.place.get(b.number)
        if first and second and first[0] is second[0] and (first[1], second[1]) == (lane_a, lane_b):
            return 6
        differ = (first is None) != (second is None)
        if a.number not in self.users or b.number not in self.users:
            return 0
        if self.around[a.number] == self.around[b.number]:
            return 4 - differ
        if self.above[a.number] == self.above[b.number]:
            return 3 - differ
        return _kind(a) == _kind(b)

    def _pack_users(self, pack: Pack, surely: bool) -> None:
        """Pack operations that use those of a pack: `surely` those whose other operands are in one pack, too, or the
        same, else those that look alike."""
        tables: list[tuple[int, dict]] = []
        for lane in pack.filled:
            table: dict = {}
            for user, k in self.users[pack.lanes[lane].number]:  # type: ignore[union-attr]
                if user.number in self.place:
                    continue
                key: tuple = (self.around[user.number],)
                if surely:
                    others = self.operands[user.number]
                    key = tuple(self._role(a, lane) for j, a in enumerate(others) if j != k)
                table.setdefault((_kind(user), _role(user, k), *key), []).append(user)
            tables.append((lane, table))
        keys = collections.Counter(key for _, table in tables for key in table)
        for key, count in keys.items():
            if count < 2:
                continue
            users = [(lane, table[key]) for lane, table in tables if key in table]
            if max(len(found) for _, found in users) == 1:
                self._join_in_lanes([(lane, found[0]) for lane, found in users])
                continue
            # Several in a lane are told apart by their surroundings, then by their order.
            for color in dict.fromkeys(self.around[n.number] for _, found in users for n in found):
                rows = [(lane, [n for n in found if self.around[n.number] == color]) for lane, found in users]
                for k in range(max(len(found) for _, found in rows)):
                    self._join_in_lanes([(lane, found[k]) for lane, found in rows if k < len(found)])

    def _join_in_lanes(self, members: Iterable[tuple[int, Node]]) -> None:
        found: Lanes = [None] * self.lanes
        for lane, n in members:
            found[lane] = n
        self._join(found)

    def _role(self, x: Scalar, lane: int) -> tuple[int, int, int]:
        """Return what is the same for operands that fit together in their lanes."""
        if not is_value(x):
            return 0, type(x) is Node, 0
        pack, place = self.place.get(x.number, (None, 0))
        if pack is None:
            return 1, x.number, 0
        return 2, pack.number, place - lane

    def _join(self, found: Lanes) -> None:
        """Pack the operations of the lanes that are of one kind and do not depend on each other."""
        kinds: dict[str | tuple, list[tuple[int, Node]]] = {}
        for lane, n in enumerate(found):
            if n is not None and n.op in PACKED and n.number in self.users and found.count(n) == 1:
                kinds.setdefault(_kind(n), []).append((lane, n))
        for members in kinds.values():
            if len(members) > 1:
                self._join_alike(members)

    def _join_alike(self, members: list[tuple[int, Node]]) -> None:
        existing: list[Pack] = []
        vacant = []
        for lane, n in members:
            pack, place = self.place.get(n.number, (None, lane))
            if pack is None:
                vacant.append((lane, n))
            elif place == lane and pack not in existing:
                existing.append(pack)
        if not existing:
            if len(vacant) < 2:
                return
            first = vacant[0][1].number
            if not self.order.join([n.number for _, n in vacant]):
                vacant = [vacant[0], *((k, n) for k, n in vacant[1:] if self.order.join([first, n.number]))]
            if len(vacant) > 1:
                self._put(Pack(first, [None] * self.lanes), vacant)
            return
        pack = existing[0]
        for other in existing[1:]:
            if all(a is None or b is None for a, b in zip(pack.lanes, other.lanes, strict=True)):
                if self.order.join([pack.number, other.number]):
                    self._put(pack, [(k, other.lanes[k]) for k in other.filled])  # type: ignore[misc]
                    other.lanes = [None] * self.lanes
        more = [(k, n) for k, n in vacant if pack.lanes[k] is None and self.order.join([pack.number, n.number])]
        if more:
            self._put(pack, more)

    def _put(self, pack: Pack, members: Iterable[tuple[int, Node]]) -> None:
        for lane, n in members:
            pack.lanes[lane] = n
            self.place[n.number] = pack, lane
        self.work.append(pack)


def _kind(node: Node) -> str | tuple:
    """Return what is the same for operations of one kind, and for elements of one operand."""
    return "add" if node.op == "sub" else node.op if node.op != "input" else ("input", node.args[0])


def _number(x: Scalar) -> int:
    """Return the number of a node, or -1."""
    return x.number if is_value(x) else -1


def _role(user: Node, place: int) -> int:
    """Return the place of an operand, 0 where it does not matter."""
    return 0 if user.op in COMMUTATIVE else place


def _scheduled(members: Sequence[Node], before: dict[int, set[int]], lanes: int) -> list[Lanes]:
    """Return an order of operations, in groups that fill the lanes, each after those that it depends on: of those that
    are ready the ones with the longest way to go (Hu 1961), in the lane of one that they depend on."""
    after: dict[int, list[Node]] = {n.number: [] for n in members}
    for n in members:
        for m in sorted(before[n.number]):
            after[m].append(n)
    height: dict[int, int] = {}
    for n in reversed(members):
        height[n.number] = 1 + max((height[m.number] for m in after[n.number]), default=0)
    left = {n.number: len(before[n.number]) for n in members}
    ready = [n for n in members if not left[n.number]]
    lane_of: dict[int, int] = {}
    out: list[Lanes] = []
    while ready:
        ready.sort(key=lambda n: (-height[n.number], n.number))
        now, ready = ready[:lanes], ready[lanes:]
        group: Lanes = [None] * lanes
        others = []
        for n in now:
            wanted = (lane_of[m] for m in sorted(before[n.number]))
            lane = next((k for k in wanted if group[k] is None), None)
            if lane is None:
                others.append(n)
            else:
                group[lane] = n
        for n in others:
            group[group.index(None)] = n
        out.append(group)
        for lane, n in enumerate(group):
            if n is None:
                continue
            lane_of[n.number] = lane
            for m in after[n.number]:
                left[m.number] -= 1
                if not left[m.number]:
                    ready.append(m)
    return out
