"""LLVM text of loops over arrays of several types."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jaxdyn.native._emit import Backend, Body
from jaxdyn.native._operations import COMPOSITES, OPERATIONS
from jaxdyn.native._values import Values

TYPES = {
    np.dtype(name): text
    for name, text in (("float64", "double"), ("float32", "float"), ("int32", "i32"), ("int64", "i64"), ("bool", "i1"))
}
"""The types of numbers in a program."""

type Number = int | str
"""An integer: a number, or the name of a value."""


def is_float(dtype) -> bool:
    return np.dtype(dtype).kind == "f"


def is_truth(dtype) -> bool:
    return np.dtype(dtype).kind == "b"


def in_memory(dtype) -> str:
    """The type of a number in memory."""
    return "i8" if is_truth(dtype) else TYPES[np.dtype(dtype)]


def type_of(dtype, lanes: int = 1) -> str:
    """The type of a number, or of a vector of numbers."""
    name = TYPES[np.dtype(dtype)]
    return name if lanes == 1 else f"<{lanes} x {name}>"


class ArrayText(Body):
    """The text of a function's body with loops over arrays. Numbers have a dtype and a number of lanes."""

    def __init__(self, lanes: int, declared: set[str]):
        super().__init__(Backend(64, lanes), declared)
        self.lanes = lanes
        self._current = "entry"
        self._operations = Values(self, lambda node: "")

    @contextlib.contextmanager
    def floats(self, dtype, lanes: int) -> Iterator[None]:
        """Let the methods for floats append operations on vectors of this type."""
        before, self.backend = self.backend, Backend(8 * np.dtype(dtype).itemsize, lanes)
        try:
            yield
        finally:
            self.backend = before

    def lanes_within(self, length: int) -> int:
        """Return the most lanes, at most those of a whole vector, that so many numbers fill."""
        lanes = self.lanes
        while lanes > max(1, length):
            lanes //= 2
        return lanes

    def splat(self, x: str, dtype, lanes: int) -> str:
        """Return a vector that has a number in all lanes."""
        if lanes == 1:
            return x
        whole = type_of(dtype, lanes)
        first = self.value(f"insertelement {whole} poison, {type_of(dtype)} {x}, i64 0")
        return self.value(f"shufflevector {whole} {first}, {whole} poison, <{lanes} x i32> zeroinitializer")

    def lane(self, x: str, dtype, lanes: int, k: int) -> str:
        """Return the number in a lane of a vector."""
        return self.value(f"extractelement {type_of(dtype, lanes)} {x}, i64 {k}")

    def literal(self, value, dtype, lanes: int = 1) -> str:
        """Return the text of a number in all lanes."""
        dtype = np.dtype(dtype)
        if dtype.kind == "f":
            return Backend(8 * dtype.itemsize, lanes).constant(float(value))
        text = ("true" if value else "false") if is_truth(dtype) else str(int(value))
        return text if lanes == 1 else f"splat ({type_of(dtype)} {text})"

    def stored_literal(self, value, dtype) -> str:
        """Return the text of a number in memory."""
        return str(int(value)) if is_truth(dtype) else self.literal(value, dtype)

    def place(self, start: str, offset: Number, dtype) -> str:
        """Return the address of a number, so many numbers behind `start`."""
        return start if offset == 0 else self.value(f"getelementptr {in_memory(dtype)}, ptr {start}, i64 {offset}")

    def load(self, start: str, offset: Number, dtype, lanes: int = 1) -> str:
        """Return the number, or the vector, behind an address."""
        address, name = self.place(start, offset, dtype), in_memory(dtype)
        whole = name if lanes == 1 else f"<{lanes} x {name}>"
        x = self.value(f"load {whole}, ptr {address}, align {self.alignment(dtype)}")
        if not is_truth(dtype):
            return x
        return self.value(f"icmp ne {whole} {x}, {'0' if lanes == 1 else 'zeroinitializer'}")

    def store(self, x: str, start: str, offset: Number, dtype, lanes: int = 1) -> None:
        """Append the storing of a number, or of a vector, behind an address."""
        address, name = self.place(start, offset, dtype), in_memory(dtype)
        whole = name if lanes == 1 else f"<{lanes} x {name}>"
        if is_truth(dtype):
            x = self.value(f"zext {type_of(dtype, lanes)} {x} to {whole}")
        self.line(f"store {whole} {x}, ptr {address}, align {self.alignment(dtype)}")

    def alignment(self, dtype) -> int:
        return np.dtype(dtype).itemsize

    def integer_of(self, x: str, dtype) -> str:
        """Return an integer as an index."""
        return x if np.dtype(dtype).itemsize == 8 else self.value(f"sext {type_of(dtype)} {x} to i64")

    def between(self, x: Number, low: Number, high: Number) -> Number:
        """Return an index, or the nearest one between two others."""
        if isinstance(x, int) and isinstance(low, int) and isinstance(high, int):
            return min(max(x, low), high)
        return self.least(self._index_choice("sgt", x, low), high)

    def least(self, a: Number, b: Number) -> Number:
        """Return the smaller of two indices."""
        return min(a, b) if isinstance(a, int) and isinstance(b, int) else self._index_choice("slt", a, b)

    def _index_choice(self, relation: str, a: Number, b: Number) -> str:
        first = self.value(f"icmp {relation} i64 {a}, {b}")
        return self.value(f"select i1 {first}, i64 {a}, i64 {b}")

    def choose(self, condition: str, then: str, otherwise: str, dtype, lanes: int, scalar: bool = False) -> str:
        """Return one of two values; with a `scalar` condition, for all lanes."""
        whole, of_condition = type_of(dtype, lanes), type_of(bool, 1 if scalar else lanes)
        return self.value(f"select {of_condition} {condition}, {whole} {then}, {whole} {otherwise}")

    def operate(self, name: str, args: Sequence[str], dtype, lanes: int, **params) -> str:
        """Return the result of an elementwise operation on values of one type, with the name of JAX's primitive and its
        parameters."""
        if name == "select":
            condition, otherwise, then = args
            return self.choose(condition, then, otherwise, dtype, lanes)
        if name in COMPOSITES:

            def operated(name: str, *xs: Any) -> str:
                texts = [x if isinstance(x, str) else self.literal(x, dtype, lanes) for x in xs]
                return self.operate(name, texts, dtype, lanes)

            return COMPOSITES[name](operated, *args, **params)
        if not is_float(dtype):
            return self._of_integers(name, args, dtype, lanes)
        with self.floats(dtype, lanes):
            return self.exact("frem", *args) if name == "rem" else self._operations.operation(name, args)

    def _of_integers(self, name: str, args: Sequence[str], dtype, lanes: int) -> str:
        whole, zero = type_of(dtype, lanes), self.literal(0, dtype, lanes)
        if is_truth(dtype):
            name = {"max": "or", "min": "and", "add": "or", "mul": "and"}.get(name, name)
        if name in ("div", "rem"):
            return self._quotient_or_rest(name, args[0], args[1], dtype, lanes)
        instruction = OPERATIONS[name].integer
        if OPERATIONS[name].of_comparison:
            # Of truth values, true is the larger one.
            relation = instruction.replace("s", "u") if is_truth(dtype) else instruction
            return self.value(f"icmp {relation} {whole} {args[0]}, {args[1]}")
        match name:
            case "not":
                return self.value(f"xor {whole} {args[0]}, {self.literal(is_truth(dtype) or -1, dtype, lanes)}")
            case "neg":
                return self.value(f"sub {whole} {zero}, {args[0]}")
            case "max" | "min" | "abs":
                a, b = args if len(args) > 1 else (args[0], self.value(f"sub {whole} {zero}, {args[0]}"))
                return self.choose(self.value(f"icmp {instruction} {whole} {a}, {b}"), a, b, dtype, lanes)
        return self.value(f"{instruction} {whole} {args[0]}, {args[1]}")

    def _quotient_or_rest(self, name: str, a: str, b: str, dtype, lanes: int) -> str:
        """Return a quotient or a remainder of integers; by zero, those are -1 and `a` in XLA."""
        whole, no = type_of(dtype, lanes), self.literal(0, dtype, lanes)
        one, less = (self.literal(n, dtype, lanes) for n in (1, -1))
        by_zero, by_less = (self.value(f"icmp eq {whole} {b}, {x}") for x in (no, less))
        # The processor traps where the quotient has no value, or is too large by one.
        b = self.choose(by_zero, one, self.choose(by_less, one, b, dtype, lanes), dtype, lanes)
        if name == "rem":
            return self.choose(by_zero, a, self.value(f"srem {whole} {a}, {b}"), dtype, lanes)
        quotient, negative = self.value(f"sdiv {whole} {a}, {b}"), self.value(f"sub {whole} {no}, {a}")
        return self.choose(by_zero, less, self.choose(by_less, negative, quotient, dtype, lanes), dtype, lanes)

    def convert(self, x: str, source, target, lanes: int) -> str:
        """Return a value of another type."""
        source, target = np.dtype(source), np.dtype(target)
        if source == target:
            return x
        a, b = type_of(source, lanes), type_of(target, lanes)
        if is_truth(target):
            relation, zero = ("fcmp une" if is_float(source) else "icmp ne"), self.literal(0, source, lanes)
            return self.value(f"{relation} {a} {x}, {zero}")
        if is_float(source) and not is_float(target):
            suffix = f"{_suffix(target, lanes)}.{_suffix(source, lanes)}"
            self.declared.add(f"declare {b} @llvm.fptosi.sat.{suffix}({a})")
            return self.value(f"call {b} @llvm.fptosi.sat.{suffix}({a} {x})")
        if is_float(target) and not is_float(source):
            return self.value(f"{'uitofp' if is_truth(source) else 'sitofp'} {a} {x} to {b}")
        smaller = target.itemsize < source.itemsize and not is_truth(source)
        how = ("fptrunc" if smaller else "fpext") if is_float(source) else "trunc" if smaller else "sext"
        return self.value(f"{'zext' if is_truth(source) else how} {a} {x} to {b}")

    def plus(self, a: Number, b: Number) -> Number:
        """Return a sum of integers."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return b if a == 0 else a if b == 0 else self.value(f"add i64 {a}, {b}")

    def times(self, a: Number, b: Number) -> Number:
        """Return a product of integers."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        return 0 if 0 in (a, b) else b if a == 1 else a if b == 1 else self.value(f"mul i64 {a}, {b}")

    def minus(self, a: Number, b: Number) -> Number:
        """Return a difference of integers."""
        return a - b if isinstance(a, int) and isinstance(b, int) else self.value(f"sub i64 {a}, {b}")

    def loop(
        self,
        count: Number,
        inside: Callable[..., Sequence[str] | None],
        carried: Sequence[str] = (),
        type: str = "",
    ) -> list[str]:
        """Append a loop over the indices below `count`. `inside` gets an index and values of a type, at first
        `carried`, and returns those for the next index. Returns the last ones."""

        def step(names: Sequence[str]) -> list[str]:
            results = inside(*names) or ()
            return [self.value(f"add i64 {names[0]}, 1"), *results]

        state = [("i64", "0"), *((type, x) for x in carried)]
        return self.repeat(state, lambda names: self.value(f"icmp ult i64 {names[0]}, {count}"), step)[1:]

    def _label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self._current = name

    def repeat(self, state: Sequence[tuple[str, str]], condition: Callable, inside: Callable) -> list[str]:
        """Append a loop that goes on while `condition` returns a true number. Both get the values of the state, which
        begins with the given types and values, and `inside` returns the next ones. Returns the last ones."""
        top, within, end = (self.block() for _ in range(3))
        before = self._current
        self.line(f"br label %{top}")
        self._label(top)
        place, names = len(self.lines), [self.name() for _ in state]
        self.line(f"br i1 {condition(names)}, label %{within}, label %{end}")
        self._label(within)
        after = inside(names)
        pairs = zip(names, state, after, strict=True)
        self.lines[place:place] = [
            f"  {name} = phi {kind} [ {first}, %{before} ], [ {following}, %{self._current} ]"
            for name, (kind, first), following in pairs
        ]
        self.line(f"br label %{top}")
        self._label(end)
        return names

    def branch(
        self, index: str, dtype, branches: Sequence[Callable[[], Sequence[str]]], types: Sequence[str]
    ) -> list[str]:
        """Append a choice between branches by a number, the last one for larger numbers, and return its values."""
        labels, end = [self.block() for _ in branches], self.block()
        kind = type_of(dtype)
        cases = " ".join(f"{kind} {self.literal(k, dtype)}, label %{label}" for k, label in enumerate(labels[:-1]))
        self.line(f"switch {kind} {index}, label %{labels[-1]} [ {cases} ]")
        ends = []
        for label, inside in zip(labels, branches, strict=True):
            self._label(label)
            values = inside()
            ends.append((values, self._current))
            self.line(f"br label %{end}")
        self._label(end)
        return [
            self.value(f"phi {kind} " + ", ".join(f"[ {values[k]}, %{label} ]" for values, label in ends))
            for k, kind in enumerate(types)
        ]


def _suffix(dtype, lanes: int) -> str:
    """The suffix of the name of an intrinsic function for vectors of a type."""
    name = {"double": "f64", "float": "f32"}.get(TYPES[np.dtype(dtype)], TYPES[np.dtype(dtype)])
    return name if lanes == 1 else f"v{lanes}{name}"
