"""The instructions of a program for one element of the batch, whose vectors hold alike operations in their lanes.

A value that is in no pack has the same number in all lanes of its vector. So it needs no instruction to become an
operand of a pack, and one instruction takes a value out of a pack. Where lanes differ in sign, vectors hold the
negative numbers in some lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any

from jaxdyn.native._emit import Body
from jaxdyn.native._graph import Node, Scalar
from jaxdyn.native._order import by_results
from jaxdyn.native._packs import Pack, find_packs, is_value, unsigned
from jaxdyn.native._values import Values

type Signs = tuple[int, ...]


class PackedValues(Values):
    """Emits packs, and nodes that are in none."""

    def __init__(self, body: Body, load: Callable[[Node], str], angle: Callable[[Node], str] | None = None):
        super().__init__(body, load, angle)
        self.place: dict[int, tuple[Pack, int]] = {}
        """The packs of nodes, and their lanes."""
        self._vectors: dict[Pack, tuple[str, Signs]] = {}
        self._blends: dict[tuple[str, ...], str] = {}

    def items(self, nodes: Sequence[Node]) -> Sequence[Any]:
        for pack in find_packs(nodes, self.body.backend.lanes):
            self.place |= {n.number: (pack, lane) for lane, n in pack.lanes.items()}
        own = {n.number for n in nodes}

        def first(node: Node) -> Node:
            return self.place[node.number][0].first if node.number in self.place else node

        def before(node: Node) -> list[Node]:
            members = [node] if node.number not in self.place else self.place[node.number][0].lanes.values()
            operands = (unsigned(x)[0] for n in members if n.op != "input" for x in n.args)
            return [first(x) for x in operands if is_value(x) and (x.number in own or x.number in self.place)]

        order = by_results((first(n) for n in nodes), set(), before)
        return [self.place[n.number][0] if n.number in self.place else n for n in order]

    def name(self, x: Scalar) -> str:
        """Return the vector with a value in all lanes."""
        if is_value(x) and x.number not in self.names:
            if x.op == "neg":
                value, sign = unsigned(x)
                name = self.name(value)
                self.names[x.number] = self.body.negate(name) if sign < 0 else name
            elif x.number in self.place and x.op != "input":
                pack, lane = self.place[x.number]
                vector, signs = self._vectors[pack]
                name = self._shuffled(vector, "poison", [lane] * len(signs))
                self.names[x.number] = self.body.negate(name) if signs[lane] < 0 else name
        return super().name(x)

    def emit(self, node: Node | Pack, paired: Container[int] = ()) -> Sequence[Node]:
        if isinstance(node, Pack):
            self._vectors[node] = self._pack(node, paired)
            return list(node.lanes.values())
        # The sign of a value changes where it is needed.
        return [node] if node.op == "neg" else super().emit(node, paired)

    def _pack(self, pack: Pack, paired: Container[int]) -> tuple[str, Signs]:
        body, op = self.body, pack.first.op
        plus = (1,) * body.backend.lanes
        if op == "input":
            return self._blend({lane: self.name(n) for lane, n in pack.lanes.items()}), plus
        if op in ("sin", "cos"):
            return self._sines_or_cosines(pack, paired), plus
        if op in ("mul", "div"):
            (a, signs_a), (b, signs_b) = self._operand(pack, 0), self._operand(pack, 1)
            return self.operation(op, [a, b]), _products(signs_a, signs_b)
        if op in ("add", "sub"):
            (a, signs_a), (b, signs_b) = self._operand(pack, 0), self._operand(pack, 1)
            differ = _products(signs_a, signs_b)
            different = {differ[k] for k in pack.lanes}
            if len(different) > 1:
                b = body.binary("fmul", b, self._numbers(differ))
            return body.binary("fsub" if different == {-1} else "fadd", a, b), signs_a
        return self.operation(op, [self._with_signs(pack, place) for place in range(len(pack.first.args))]), plus

    def _operand(self, pack: Pack, place: int) -> tuple[str, Signs]:
        """Return the vector of an operand of a pack, and the signs that its lanes still have to get."""
        sources: dict[int, str] = {}
        signs = [1] * self.body.backend.lanes
        for lane in pack.lanes:
            x, sign = pack.operand(lane, place)
            if type(x) is not Node:
                sources[lane] = self.body.backend.number(x * sign)
                continue
            other, at = self.place.get(x.number, (None, lane))
            if other is None or at != lane:
                sources[lane], signs[lane] = self.name(x), sign
            else:
                vector, signs_there = self._vectors[other]
                sources[lane], signs[lane] = vector, sign * signs_there[lane]
        return self._blend(sources), tuple(signs)

    def _blend(self, lanes: dict[int, str]) -> str:
        """Return the vector whose lanes are those of some vectors, or numbers; vacant ones are of the first of them."""
        sources = tuple(lanes.get(k, lanes[min(lanes)]) for k in range(self.body.backend.lanes))
        if sources not in self._blends:
            numbers = [x for x in sources if not _is_vector(x)]
            out = self._vector([numbers[0] if _is_vector(x) else x for x in sources]) if numbers else ""
            for vector in dict.fromkeys(x for x in sources if _is_vector(x)):
                order = [k + len(sources) if x == vector else k for k, x in enumerate(sources)]
                out = self._shuffled(out, vector, order) if out else vector
            self._blends[sources] = out
        return self._blends[sources]

    def _shuffled(self, a: str, b: str, lanes: Sequence[int]) -> str:
        backend = self.body.backend
        order = ", ".join(f"i32 {k}" for k in lanes)
        return self.body.value(
            f"shufflevector {backend.float} {a}, {backend.float} {b}, <{backend.lanes} x i32> <{order}>"
        )

    def _vector(self, numbers: Sequence[str]) -> str:
        """Return the text of a vector of numbers."""
        backend = self.body.backend
        if len(set(numbers)) == 1:
            return f"splat ({backend.scalar} {numbers[0]})"
        return f"<{', '.join(f'{backend.scalar} {x}' for x in numbers)}>"

    def _numbers(self, numbers: Sequence[float]) -> str:
        return self._vector([self.body.backend.number(x) for x in numbers])

    def _with_signs(self, pack: Pack, place: int) -> str:
        """Return the vector of an operand of a pack, with its signs."""
        name, signs = self._operand(pack, place)
        return name if set(signs) == {1} else self.body.exact("fmul", name, self._numbers(signs))

    def _sines_or_cosines(self, pack: Pack, paired: Container[int]) -> str:
        arguments = {lane: n.args[0] for lane, n in pack.lanes.items()}

        def angle() -> str:
            roots = {lane: self.root_of_angle(x) for lane, x in arguments.items()}
            small = {lane: self.angle(root) for lane, (_, root) in roots.items() if root is not None and self.angle}
            if len(small) < len(roots):
                return self.limited_angle(self._with_signs(pack, 0))
            factors = self._blend({lane: self.body.backend.number(factor) for lane, (factor, _) in roots.items()})
            return self.body.exact("fmul", self._blend(small), factors)

        both = any(x.number in paired for x in arguments.values())
        of = tuple(arguments[k].number if k in arguments else -1 for k in range(self.body.backend.lanes))
        return self.trigonometry(pack.first.op, of, angle, both)


def _is_vector(text: str) -> bool:
    return text.startswith("%")


def _products(a: Signs, b: Signs) -> Signs:
    return tuple(x * y for x, y in zip(a, b, strict=True))
