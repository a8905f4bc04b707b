"""The interpreter of jaxprs with arrays of nodes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend import core

from jaxdyn.native._arrays import UnsupportedError, common, constant, is_static, objects, static_again
from jaxdyn.native._data_movement import DataMovement
from jaxdyn.native._each_row import over_all_rows
from jaxdyn.native._graph import Graph, GraphLoop, Node
from jaxdyn.native._jaxprs import ArrayConstant, FlatJaxpr, Operation, flat_jaxpr, jaxprs_of, scan_counts
from jaxdyn.native._operations import COMPOSITES

MAX_OPERATIONS = 400_000
"""A function of more operations is not specialized."""
MAX_REPETITIONS = 400
"""Nor is one of more operations, counted before any are folded, than this times its equations, of which equal ones
count once: derivatives of a box's contacts, which shall be specialized, have 316 times as many. XLA
compiles an equation once, however often a loop repeats it, but LLVM compiles each operation, so a program would take
several times as long."""

_EXPANSIONS: dict[str, Callable] = {}


def expand(primitive: core.Primitive, function: Callable) -> None:
    """Let the specializer read a primitive as a function of arrays, which is called with the primitive's parameters."""
    _EXPANSIONS[primitive.name] = function


def expansion(primitive: core.Primitive) -> Callable | None:
    """Return the function of arrays as which `expand` lets a primitive be read, or None."""
    return _EXPANSIONS.get(primitive.name)


def traced(function: Callable, avals: Sequence):
    """Return the jaxpr of a function of arrays, with its constants."""
    return jax.make_jaxpr(function)(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals))


def count_operations(flat: FlatJaxpr) -> tuple[int, int]:
    """Return the number of operations on numbers in a jaxpr, with loops unrolled, and the number of its equations."""
    operations = 0
    equations = len(flat.operations)
    for operation in flat.operations:
        inner = jaxprs_of(operation)
        size = sum(v.size for v in operation.outputs)
        if inner:
            within, more = count_operations(flat_jaxpr(inner[-1]))
            operations += within * operation.params.get("length", 1)
            equations += more
        elif operation.name == "dot_general":
            contracted = operation.params["dimension_numbers"][0][0]
            operations += 2 * size * math.prod(operation.inputs[0].shape[i] for i in contracted)
        elif f"_{operation.name.replace('-', '_')}" not in vars(DataMovement):
            operations += size
    return operations, equations


class Interpreter(DataMovement):
    """Evaluates jaxprs on arrays of nodes."""

    loop: GraphLoop | None = None
    """The loop whose round is evaluated."""

    def __init__(self, graph: Graph, precision: float, *, row_loops: bool = False):
        """With `row_loops`, functions of the rows of a list are loops, else they are called for each row."""
        super().__init__(graph, precision)
        self.row_loops = row_loops
        self._known: dict[int, _Read] = {}

    def call(self, function: Callable, arrays: Sequence[np.ndarray], avals: Sequence) -> list[np.ndarray]:
        """Trace a function of arrays and interpret it."""
        return self.evaluate(traced(function, avals), arrays)

    def evaluate(self, closed, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Interpret a traced function."""
        operations, equations = count_operations(self._read(closed).flat)
        if operations > MAX_REPETITIONS * equations:
            raise UnsupportedError(f"{operations} operations in {equations} equations")
        return self.run(closed, arrays)

    def run(self, jaxpr, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        flat, rules, _ = self._read(jaxpr)
        values: dict[Any, np.ndarray] = dict(zip(flat.inputs, arrays, strict=True))
        for operation, rule, constants in rules:
            if len(self.graph.nodes) > MAX_OPERATIONS:
                raise UnsupportedError(f"more than {MAX_OPERATIONS} operations")
            xs = [values[v] if x is None else x for v, x in zip(operation.inputs, constants, strict=True)]
            out = rule(operation, xs)
            if not operation.primitive.multiple_results:
                out = [out]
            for v, x in zip(operation.outputs, out, strict=True):
                values[v] = x if type(x) is np.ndarray else np.asarray(x)
        return [constant(v.value) if isinstance(v, ArrayConstant) else values[v] for v in flat.outputs]

    def _read(self, jaxpr) -> _Read:
        """Return the operations of a jaxpr with their rules, and the operands that are constants."""
        known = self._known.get(id(jaxpr))
        if known is None:
            flat = flat_jaxpr(jaxpr)
            rules = []
            for operation in flat.operations:
                constants = [constant(a.value) if isinstance(a, ArrayConstant) else None for a in operation.inputs]
                rules.append((operation, self.rule(operation), constants))
            known = self._known[id(jaxpr)] = _Read(flat, rules, jaxpr)
        return known

    def rule(self, operation: Operation) -> Callable:
        """Return the function of an operation and the values of its operands that returns its results."""
        name = operation.name
        if kinds := operation.kinds - set("fbiu"):
            raise UnsupportedError(f"an array of a type of kind {kinds}")
        if name in self.elementwise:
            return self.elementwise_rule(operation)
        if name in COMPOSITES:
            return self.composite
        rule = getattr(self, "_" + name.replace("-", "_"), None)
        if rule is not None:
            return rule
        function = expansion(operation.primitive)
        return self._numbers if function is None else functools.partial(self._expanded, function)

    def _expanded(self, function: Callable, operation: Operation, xs):
        out = self.call(functools.partial(function, **operation.params), xs, operation.inputs)
        return out if operation.primitive.multiple_results else out[0]

    def _numbers(self, operation, xs):
        if all(map(is_static, xs)):
            return self.by_jax(operation, xs)
        raise UnsupportedError(f"the operation {operation.primitive.name}", operation.primitive.name)

    # Functions and loops.

    def _scan(self, operation, xs):
        params, body = operation.params, operation.params["jaxpr"]
        length = params["length"]
        fixed, carried = scan_counts(operation)
        first, carry, rows = xs[:fixed], xs[fixed : fixed + carried], xs[fixed + carried :]
        out: list[Any] = [None] * length
        for i in reversed(range(length)) if params["reverse"] else range(length):
            result = self.run(body, [*first, *carry, *(x[i, ...] for x in rows)])
            carry, out[i] = result[:carried], result[carried:]
        stacks = []
        for k, v in enumerate(operation.outputs[carried:]):
            parts = common([np.asarray(y[k]) for y in out])
            stacks.append(np.stack(parts) if parts else np.zeros(v.shape))
        return [*carry, *stacks]

    def _while(self, operation, xs):
        params = operation.params
        n, m = params["cond_nconsts"], params["body_nconsts"]
        go, body = params["cond_jaxpr"], params["body_jaxpr"]
        of_go, of_body, state = xs[:n], xs[n : n + m], xs[n + m :]
        if self._depends_on_data(go, of_go, body, of_body, state):
            return self._repeated(operation, (go, of_go), (body, of_body), state)
        while True:
            (again,) = self.run(go, [*of_go, *state])
            if not is_static(again):
                raise UnsupportedError("a loop that ends depending on data")
            if not again:
                return state
            state = self.run(body, [*of_body, *state])

    def _repeated(self, operation: Operation, go: tuple, body: tuple, state):
        """Return the end of a loop whose number of rounds depends on data."""
        shapes = [np.shape(x) for x in state]
        if any(np.dtype(v.dtype).kind != "f" for v in operation.outputs):
            raise UnsupportedError("a loop that ends depending on data, and carries other numbers than floats")
        starts = [_scalar(x) for array in state for x in np.asarray(array, object).ravel()]
        outer, self.loop = self.loop, self.graph.loop(self.loop, starts)
        carried = _arrays(self.loop.carried, shapes)
        (again,), ends = (self.run(jaxpr, [*given, *carried]) for jaxpr, given in (go, body))
        loop, self.loop = self.loop, outer
        again = np.asarray(again, object).item()
        if type(again) is not Node:
            raise UnsupportedError("a loop whose condition is always the same")
        ends = [_scalar(x) for array in ends for x in np.asarray(array, object).ravel()]
        return _arrays(self.graph.close(loop, again, ends), shapes)

    def _depends_on_data(self, go, of_go, body, of_body, state) -> bool:
        """Return whether the condition `go` of a loop depends on data."""
        known = [not is_static(x) for x in state]
        of_go, of_body = ([not is_static(x) for x in xs] for xs in (of_go, of_body))
        while True:
            after = [a or b for a, b in zip(known, self._reached(body, [*of_body, *known]), strict=True)]
            if after == known:
                return self._reached(go, [*of_go, *known])[0]
            known = after

    def _reached(self, jaxpr, given: Sequence[bool]) -> list[bool]:
        """Return which results of a jaxpr depend on the given operands."""
        flat = self._read(jaxpr).flat
        found: set[Any] = {v for v, depends in zip(flat.inputs, given, strict=True) if depends}
        for operation in flat.operations:
            if not found.isdisjoint(operation.inputs):
                found.update(operation.outputs)
        return [v in found for v in flat.outputs]

    def _jaxdyn_each_row(self, operation, xs):
        (count, *operands), params = xs, operation.params
        body, shared, sums, length = (params[name] for name in ("jaxpr", "shared", "sums", "length"))
        floats = all(np.dtype(v.dtype).kind == "f" for v in (*operation.inputs[1 + shared :], *operation.outputs))
        if not self.row_loops or is_static(count) or not floats:
            return self._expanded(over_all_rows, operation, xs)
        outer, self.loop = self.loop, self.graph.row_loop(self.loop, count.item())
        rows = [self._row_of(x) for x in operands[shared:]]
        out = [np.asarray(x, object) for x in self.run(body, [*operands[:shared], *rows])]
        loop, self.loop = self.loop, outer
        totals, row = ([_scalar(x) for array in part for x in array.ravel()] for part in (out[:sums], out[sums:]))
        totals, columns = self.graph.close_rows(loop, length, totals, row)
        shapes, given = [x.shape for x in out], iter(columns)
        stacks = []
        for shape in shapes[sums:]:
            own = [next(given) for _ in range(math.prod(shape))]
            stacks.append(objects([column[k] for k in range(length) for column in own], (length, *shape)))
        return [*_arrays(totals, shapes[:sums]), *stacks]

    def _row_of(self, x):
        """Return the row of an array that belongs to a round of the loop over rows that is evaluated."""
        columns = zip(*(np.asarray(line, object).ravel() for line in x), strict=True)
        own = [self.graph.read_row(self.loop, [*map(_scalar, column)]) for column in columns]
        return static_again(objects(own, x.shape[1:]))

    def _cond(self, operation, xs):
        index, *operands = xs
        branches = operation.params["branches"]
        if is_static(index):
            return self.run(branches[int(np.clip(int(index), 0, len(branches) - 1))], operands)
        if len(branches) != 2:
            raise UnsupportedError("a choice between more than two branches")
        if np.dtype(operation.inputs[0].dtype) != bool:
            index = self.elementwise["gt"](index, 0.0)
        otherwise, then = (self.run(b, operands) for b in branches)
        pairs = zip(otherwise, then, strict=True)
        return [static_again(self.select(index, *common([a, b]))) for a, b in pairs]

    def _optimization_barrier(self, operation, xs):
        return xs


class _Read(NamedTuple):
    """The operations of a jaxpr."""

    flat: FlatJaxpr
    rules: list[tuple[Operation, Callable, list[np.ndarray | None]]]
    """The operations with their rules, and those of the operands that are constants."""
    jaxpr: Any
    """The jaxpr, which is kept so that its number stays its own."""


def _scalar(x):
    return x if type(x) in (Node, bool) else float(x)


def _arrays(nodes: Sequence[Node], shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    given = iter(nodes)
    return [objects([next(given) for _ in range(math.prod(s))], s) for s in shapes]
