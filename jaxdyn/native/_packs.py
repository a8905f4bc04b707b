"""Packs of alike operations: where a program is for one element of the batch, the lanes of a vector hold operations of
different branches of a robot, or of other parts of the program that compute the same with different numbers.

The search begins with operations such as divisions, of which each step of a recursion has one. It shares these out to
the lanes, those first on which the longest chain of others waits, and then packs what they use and what uses them, as
far as operations are alike (superword parallelism; Larsen & Amarasinghe 2000). Products and sums of which lanes differ
in sign are alike. An order of the program in which packs are single operations exists at all times.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TypeGuard

from jaxdyn.native._graph import Node, Scalar
from jaxdyn.native._joined_order import JoinedOrder

COMMUTATIVE = {"add", "sub", "mul", "max", "min"}
"""The operations whose two operands may be exchanged, for differences with the opposite sign."""
PACKED = COMMUTATIVE | {"div", "sqrt", "abs", "sin", "cos", "tanh", "exp", "input"}
"""The operations that packs are made of. The others are rare."""
SEEDS = {"div", "sqrt", "sin", "cos", "tanh", "exp"}
"""The operations that the search begins with: a step of a recursion has few of them."""
LENGTHS = {"sin": 14, "cos": 14, "exp": 14, "tanh": 20, "input": 0}
"""About the number of instructions of operations that have several."""
WORTHWHILE = 0.9
"""Packs are used where at most this part of the instructions is left: at 0.97 a step of a Panda took 1.13 us with packs
and 1.04 us without."""

type Lanes = dict[int, Node]
"""The operations in the lanes of a vector that have one."""


class Pack:
    """Alike operations."""

    __slots__ = ("lanes", "number", "swapped")

    def __init__(self, number: int):
        self.number = number
        """The number of one of the operations, which stands for all in `JoinedOrder`."""
        self.lanes: Lanes = {}
        self.swapped: set[int] = set()
        """The lanes whose operations have their two operands in the opposite order."""

    @property
    def first(self) -> Node:
        """The operation in the first lane that has one."""
        return self.lanes[min(self.lanes)]

    def operand(self, lane: int, place: int) -> tuple[Scalar, int]:
        """Return an operand in a lane without its signs, and its sign."""
        node = self.lanes[lane]
        k = 1 - place if lane in self.swapped else place
        value, sign = unsigned(node.args[k])
        return value, -sign if node.op == "sub" and k == 1 else sign


def unsigned(x: Scalar) -> tuple[Scalar, int]:
    """Return a value without the changes of its sign, and its sign."""
    sign = 1
    while type(x) is Node and x.op == "neg" and not x.uniform:
        x, sign = x.args[0], -sign
    return x, sign


def is_value(x: Scalar) -> TypeGuard[Node]:
    """Return whether a value is another one for each element of the batch."""
    return type(x) is Node and not x.uniform


def find_packs(nodes: Sequence[Node], lanes: int) -> list[Pack]:
    """Return packs of the operations of a part of a program, which are in an order; none where they save little."""
    own = {n.number for n in nodes}
    loaded = {a.number: a for n in nodes for a in n.args if is_value(a) and a.number not in own}
    inputs = [a for a in loaded.values() if a.op == "input"]
    packs = _PackSearch([*inputs, *(n for n in nodes if n.op != "neg")], lanes).packs()
    return packs if _instructions(nodes, packs) < WORTHWHILE * _instructions(nodes, []) else []


def _instructions(nodes: Sequence[Node], packs: Sequence[Pack]) -> int:
    """Return about how many instructions there are, with those that put lanes together and take values out of packs."""
    place = {n.number: (pack, lane) for pack in packs for lane, n in pack.lanes.items()}
    alone = [n for n in nodes if n.number not in place and n.op != "neg"]
    operations = [n.op for n in alone] + [pack.first.op for pack in packs]
    taken: set[int] = set()
    blends: set[tuple] = set()

    def source(x: Scalar, lane: int | None) -> int | str:
        """Return what is the same for lanes that come from one vector."""
        if not is_value(x) or x.number not in place:
            return str(x) if type(x) is Node else ""
        pack, own = place[x.number]
        if own == lane:
            return pack.number
        taken.add(x.number)
        return str(x)

    for n in alone:
        for a in n.args:
            source(unsigned(a)[0], None)
    for pack in packs:
        for place_of_operand in range(len(pack.first.args) if pack.first.op != "input" else 0):
            blends.add(tuple(source(pack.operand(k, place_of_operand)[0], k) for k in sorted(pack.lanes)))
    inputs = sum(len(pack.lanes) for pack in packs if pack.first.op == "input")
    moves = len(taken) + inputs + sum(len(set(lanes)) - 1 for lanes in blends)
    return moves + sum(LENGTHS.get(op, 1) for op in operations)


class _PackSearch:
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
        """Return numbers that are the same for operations whose neighbors look alike: those that they need, and those
        that use them, too. With neighbors of neighbors, up to the third, 73 instead of 51 % of the instructions of a
        step of Talos were left: branches differ a little, so less is alike the farther one looks."""
        kinds: dict[str | tuple, int] = {}
        own = {n.number: kinds.setdefault(_kind(n), len(kinds)) for n in self.nodes}
        above = {}
        for n in self.nodes:
            known = self.needed[n.number]
            if n.op in COMMUTATIVE:
                # Sums do not depend on an order.
                above[n.number] = hash((own[n.number], len(known), sum([own[k] for k in known])))
            else:
                above[n.number] = hash((own[n.number], *[own.get(_number(a), -1) for a in self.operands[n.number]]))
        around = {
            number: hash((above[number], sum([above[u.number] * (1 + _role(u, k)) for u, k in users])))
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
        if not pack.lanes or pack.first.op == "input":
            return
        own = min(pack.lanes)
        a = self.operands[pack.lanes[own].number]
        pack.swapped.discard(own)
        if pack.first.op in COMMUTATIVE:
            for lane, n in pack.lanes.items():
                b = self.operands[n.number]
                if lane == own or (self._similar(a[0], b[0]) and self._similar(a[1], b[1])):
                    continue
                straight = self._likeness(a[0], b[0], own, lane) + self._likeness(a[1], b[1], own, lane)
                crossed = self._likeness(a[0], b[1], own, lane) + self._likeness(a[1], b[0], own, lane)
                (pack.swapped.add if crossed > straight else pack.swapped.discard)(lane)
        for place in range(len(a)):
            values = ((lane, pack.operand(lane, place)[0]) for lane in pack.lanes)
            self._join({lane: x for lane, x in values if is_value(x)})

    def _similar(self, a: Scalar, b: Scalar) -> bool:
        """Return whether operands are the same, or operations that look alike."""
        return a is b or (self.around.get(_number(a), 0) == self.around.get(_number(b), 1))

    def _likeness(self, a: Scalar, b: Scalar, lane_a: int, lane_b: int) -> int:
        """Return how well two operands fit together in two lanes; larger is better."""
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
        for lane, node in pack.lanes.items():
            table: dict = {}
            for user, k in self.users[node.number]:
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
            users = {lane: table[key] for lane, table in tables if key in table}
            if max(map(len, users.values())) == 1:
                self._join({lane: found[0] for lane, found in users.items()})
                continue
            # Where a lane has several, their surroundings tell them apart, and then their order does.
            for color in dict.fromkeys(self.around[n.number] for found in users.values() for n in found):
                rows = {k: [n for n in found if self.around[n.number] == color] for k, found in users.items()}
                for k in range(max(map(len, rows.values()))):
                    self._join({lane: found[k] for lane, found in rows.items() if k < len(found)})

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
        kinds: dict[str | tuple, Lanes] = {}
        nodes = list(found.values())
        for lane, n in found.items():
            if n.op in PACKED and n.number in self.users and nodes.count(n) == 1:
                kinds.setdefault(_kind(n), {})[lane] = n
        for members in kinds.values():
            if len(members) > 1:
                self._join_alike(members)

    def _join_alike(self, members: Lanes) -> None:
        """Join operations of one kind to a pack that some of them are in, with all their packs, or make a new one."""
        existing: list[Pack] = []
        vacant: Lanes = {}
        for lane, n in members.items():
            pack, place = self.place.get(n.number, (None, lane))
            if pack is None:
                vacant[lane] = n
            elif place == lane and pack not in existing:
                existing.append(pack)
        if not existing:
            self._make(vacant)
            return
        pack = existing[0]
        for other in existing[1:]:
            if pack.lanes.keys().isdisjoint(other.lanes) and self.order.join([pack.number, other.number]):
                self._put(pack, other.lanes)
                other.lanes = {}
        self._put(
            pack,
            {
                lane: n
                for lane, n in vacant.items()
                if lane not in pack.lanes and self.order.join([pack.number, n.number])
            },
        )

    def _make(self, members: Lanes) -> None:
        if len(members) < 2:
            return
        numbers = [n.number for n in members.values()]
        if not self.order.join(numbers):
            joined = {numbers[0], *(k for k in numbers[1:] if self.order.join([numbers[0], k]))}
            members = {lane: n for lane, n in members.items() if n.number in joined}
        if len(members) > 1:
            self._put(Pack(numbers[0]), members)

    def _put(self, pack: Pack, members: Lanes) -> None:
        for lane, n in members.items():
            pack.lanes[lane] = n
            self.place[n.number] = pack, lane
        if members:
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
        group: Lanes = {}
        others = []
        for n in now:
            wanted = (lane_of[m] for m in sorted(before[n.number]))
            lane = next((k for k in wanted if k not in group), None)
            if lane is None:
                others.append(n)
            else:
                group[lane] = n
        group |= zip((k for k in range(lanes) if k not in group), others, strict=False)
        out.append(group)
        for lane, n in group.items():
            lane_of[n.number] = lane
            for m in after[n.number]:
                left[m.number] -= 1
                if not left[m.number]:
                    ready.append(m)
    return out
