"""The text of an array program, operation by operation."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable, Sequence
from typing import Any

from jaxdyn.native._jaxprs import ArrayConstant, Atom, FlatJaxpr, Operation, Variable, flat_jaxpr, scan_counts
from jaxdyn.native.arrays._array_values import Array, Buffer, Chosen, Counted, Gathered, Literal, Mapped, Scalar
from jaxdyn.native.arrays._element_loops import fill
from jaxdyn.native.arrays._reductions import Sums
from jaxdyn.native.arrays._rules import ELEMENTWISE, IDENTITIES, JOINS, REDUCTIONS, RESHAPES, VIEWS
from jaxdyn.native.arrays._text import Number, type_of
from jaxdyn.native.arrays._workspace import keep, release, release_all

ONCE = ELEMENTWISE | REDUCTIONS | JOINS | {"scatter", "dynamic_update_slice"}
"""The operations that read each element of their operands once."""
COMPUTED = Mapped, Chosen, Counted, Gathered
"""The expressions that are evaluated once: where they are read more often, their values are kept in memory."""
OFTEN = 2
"""The number of reads that an operation counts as that reads elements of its operands again and again."""
DEEPEST = 40
"""The most expressions within each other; deeper ones are kept in memory, because writing them is a recursion."""


class Emission(Sums):
    """Writes programs, with loops and branches in them."""

    def run[T](self, program: FlatJaxpr, inputs: Sequence[Array], then: Callable[[list[Array]], T]) -> T:
        """Append a program, and what `then` appends, which gets the results and may use them; returns what it does."""
        arrays: dict[Atom, Array] = dict(zip(program.inputs, inputs, strict=True))
        reads, users = _reads(program), _users(program)
        self._held.append([])
        for v in program.inputs:
            if users[v]:
                keep(arrays[v])

        def array(atom: Atom) -> Array:
            return self.constant(atom) if isinstance(atom, ArrayConstant) else arrays[atom]

        for operation in program.operations:
            if any(reads[v] for v in operation.outputs):
                results = self._results(operation, [array(a) for a in operation.inputs])
                for v, x in zip(operation.outputs, results, strict=True):
                    arrays[v] = self._kept(v, x, reads[v])
                    if users[v]:
                        keep(arrays[v])
                self._put_moved(arrays)
                release_all(self._held[-1])
                self._held[-1].clear()
            for a in operation.inputs:
                users[a] -= 1
                if not users[a] and a in arrays:
                    release(arrays[a])
        result = then([array(a) for a in program.outputs])
        release_all(arrays[a] for a in set(program.outputs) if a in arrays)
        release_all(self._held.pop())
        return result

    def _put_moved(self, arrays: dict[Atom, Array]) -> None:
        """Put the arrays that an operation has moved in the place of those before."""
        for atom, x in self._moved.items():
            if atom in arrays and arrays[atom] is not x:
                keep(x)
                release(arrays[atom])
                arrays[atom] = x
        self._moved = {}

    def write(self, program: FlatJaxpr, inputs: Sequence[Array], addresses: Sequence[str]) -> None:
        """Append a program whose results are arrays at the given addresses."""
        for atom, address in zip(program.outputs, addresses, strict=True):
            if isinstance(atom, Variable) and atom.shape and atom not in program.inputs:
                self._targets.setdefault(atom, address)

        def finish(arrays: Sequence[Array]) -> None:
            for array, address in zip(arrays, addresses, strict=True):
                if getattr(array, "address", "") != address:
                    fill(self.writer, array, address)

        self.run(program, inputs, finish)

    def _kept(self, v: Variable, x: Array, reads: int) -> Array:
        if not v.size:
            return Literal(0, v.shape, v.dtype)
        if not v.shape:
            return x if isinstance(x, Literal | Scalar) else Scalar(self.scalar(x), v.dtype)
        if (isinstance(x, COMPUTED) and (reads > 1 or v in self._targets)) or x.depth > DEEPEST:
            return self.in_memory(x, v)
        return x

    def _results(self, operation: Operation, arrays: Sequence[Array]) -> Sequence[Array]:
        name = operation.name
        if not any(v.size for v in operation.outputs):
            return [Literal(0, v.shape, v.dtype) for v in operation.outputs]
        rule: Callable[..., Any]
        if name in IDENTITIES:
            return arrays
        if name in ELEMENTWISE:
            rule = self._elementwise
        elif name in RESHAPES:
            rule = self._reshaped
        elif name in REDUCTIONS:
            rule = self._reduction
        else:
            rule = getattr(self, f"_{name}")
        out = rule(operation, *arrays)
        return [out] if isinstance(out, Array) else out

    # Loops and branches.

    def _carried(self, arrays: Sequence[Array]) -> tuple[list[Buffer | None], list]:
        """Memory for the arrays that a loop carries, which has the first ones, and the numbers that it carries."""
        memory = [self.hold(self.new(a.shape, a.dtype)) if a.shape and a.size else None for a in arrays]
        numbers = []
        for array, buffer in zip(arrays, memory, strict=True):
            if buffer is not None:
                fill(self.writer, array, buffer.address)
            elif array.size:
                numbers.append((type_of(array.dtype), self.scalar(array)))
        return memory, numbers

    def _state(
        self, variables: Sequence[Variable], memory: Sequence[Buffer | None], names: Sequence[str]
    ) -> list[Array]:
        """The arrays that a loop carries."""
        given = iter(names)
        return [
            buffer or (Scalar(next(given), v.dtype) if v.size else Literal(0, v.shape, v.dtype))
            for v, buffer in zip(variables, memory, strict=True)
        ]

    def _carry(self, memory: Sequence[Buffer | None], after: Sequence[Array]) -> list[str]:
        """Append what makes the results of a round those that the next one begins with; returns the numbers."""
        own = frozenset().union(*(m.memory for m in memory if m is not None))
        pairs, numbers = [], []
        for buffer, x in zip(memory, after, strict=True):
            if buffer is None:
                numbers += [self.scalar(x)] if x.size else []
            elif getattr(x, "address", "") != buffer.address:
                # What depends on what the loop carries is computed before any of that changes.
                safe = isinstance(x, Literal | Buffer) and not x.memory & own
                pairs.append((x if safe else self._copied(x), buffer))
        for x, buffer in pairs:
            fill(self.writer, x, buffer.address)
        return numbers

    def _copied(self, array: Array) -> Buffer:
        out = self.hold(self.new(array.shape, array.dtype))
        fill(self.writer, array, out.address)
        return out

    def _while(self, operation: Operation, *arrays: Array) -> list[Array]:
        params, text = operation.params, self.text
        n, m = params["cond_nconsts"], params["body_nconsts"]
        condition, body = flat_jaxpr(params["cond_jaxpr"]), flat_jaxpr(params["body_jaxpr"])
        memory, numbers = self._carried(arrays[n + m :])

        def again(names: Sequence[str]) -> str:
            state = self._state(operation.outputs, memory, names)
            return self.writer.within(
                lambda: self.run(condition, [*arrays[:n], *state], lambda out: self.scalar(out[0]))
            )

        def step(names: Sequence[str]) -> list[str]:
            state = self._state(operation.outputs, memory, names)
            inputs = [*arrays[n : n + m], *state]
            return self.writer.within(lambda: self.run(body, inputs, lambda out: self._carry(memory, out)))

        return self._state(operation.outputs, memory, text.repeat(numbers, again, step))

    def _scan(self, operation: Operation, *arrays: Array) -> list[Array]:
        params, text = operation.params, self.text
        body, length = flat_jaxpr(params["jaxpr"]), params["length"]
        n, m = scan_counts(operation)
        memory, numbers = self._carried(arrays[n : n + m])
        stacked = [self.hold(self.new(v.shape, v.dtype, v)) if v.size else None for v in operation.outputs[m:]]

        def step(names: Sequence[str]) -> list[str]:
            i, *carried = names
            row = text.minus(length - 1, i) if params["reverse"] else i
            state = self._state(operation.outputs[:m], memory, carried)
            rows = [self._row_of(x, row, v) for x, v in zip(arrays[n + m :], body.inputs[n + m :], strict=True)]

            def finish(out: Sequence[Array]) -> list[str]:
                for stack, x in zip(stacked, out[m:], strict=True):
                    if stack is not None:
                        fill(self.writer, x, text.place(stack.address, text.times(row, x.size), x.dtype))
                return [text.value(f"add i64 {i}, 1"), *self._carry(memory, out[:m])]

            return self.run(body, [*arrays[:n], *state, *rows], finish)

        _, *names = text.repeat(
            [("i64", "0"), *numbers],
            lambda names: text.value(f"icmp ult i64 {names[0]}, {length}"),
            lambda names: self.writer.within(lambda: step(names)),
        )
        stacks = [x or Literal(0, v.shape, v.dtype) for x, v in zip(stacked, operation.outputs[m:], strict=True)]
        return [*self._state(operation.outputs[:m], memory, names), *stacks]

    def _row_of(self, array: Array, row: Number, v: Variable) -> Array:
        if not v.size:
            return Literal(0, v.shape, v.dtype)
        x = self._row(array, 0, row, v)
        return x if v.shape else Scalar(self.scalar(x), v.dtype)

    def _cond(self, operation: Operation, index: Array, *arrays: Array) -> list[Array]:
        variables = operation.outputs
        memory = [self.hold(self.new(v.shape, v.dtype, v)) if v.shape and v.size else None for v in variables]
        programs = [flat_jaxpr(branch) for branch in operation.params["branches"]]

        def finish(out: Sequence[Array]) -> list[str]:
            for x, buffer in zip(out, memory, strict=True):
                if buffer is not None:
                    fill(self.writer, x, buffer.address)
            return [self.scalar(x) for x in out if not x.shape]

        def branch(program: FlatJaxpr) -> list[str]:
            return self.writer.within(lambda: self.run(program, arrays, finish))

        inside = [functools.partial(branch, p) for p in programs]
        types = [type_of(v.dtype) for v in variables if not v.shape]
        return self._state(variables, memory, self.text.branch(self.scalar(index), index.dtype, inside, types))


def _users(program: FlatJaxpr) -> collections.Counter[Atom]:
    """How often each array is an operand or a result."""
    users: collections.Counter[Atom] = collections.Counter(program.outputs)
    for operation in program.operations:
        users.update(operation.inputs)
    return users


def _reads(program: FlatJaxpr) -> collections.Counter[Atom]:
    """How often each array is read, from the results back; an array that no result needs is never read."""
    reads: collections.Counter[Atom] = collections.Counter(program.outputs)
    for operation in reversed(program.operations):
        own = sum(reads[v] for v in operation.outputs)
        if not own:
            continue
        name = operation.name
        for k, a in enumerate(operation.inputs):
            if name in VIEWS:
                larger = k == 0 and operation.outputs[0].size > a.size
                reads[a] += OFTEN if larger else own
            else:
                larger = name in ELEMENTWISE and operation.outputs[0].size > a.size
                reads[a] += 1 if name in ONCE and not larger else OFTEN
    return reads
