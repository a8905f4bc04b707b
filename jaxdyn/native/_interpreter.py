"""The interpreter of jaxprs with arrays of nodes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaxdyn.native._arrays import UnsupportedError, common, constant, is_static, objects, static_again
from jaxdyn.native._data_movement import DataMovement
from jaxdyn.native._each_row import over_all_rows
from jaxdyn.native._graph import Graph, GraphLoop, Node

MAX_OPERATIONS = 400_000
"""A function of more operations is not specialized."""
MAX_REPETITIONS = 300
"""Nor is one of more operations, counted before any are folded, than this times its equations. XLA compiles an equation
once, however often a loop repeats it, but LLVM compiles each operation, so a program would take several times as long.
"""

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


def count_operations(jaxpr) -> tuple[int, int]:
    """Return the number of operations on numbers in a jaxpr, with loops unrolled, and the number of its equations."""
    operations = equations = 0
    for eqn in jaxpr.eqns:
        name, equations = eqn.primitive.name, equations + 1
        solver = [eqn.params["jaxprs"].solve] if name == "custom_linear_solve" else []
        inner = solver or [p for p in eqn.params.values() if isinstance(p, core.Jaxpr)]
        size = sum(math.prod(v.aval.shape) for v in eqn.outvars)
        if inner:
            within, more = count_operations(parts_of(inner[-1])[0])
            operations += within * (eqn.params["length"] if name == "scan" else 1)
            equations += more
        elif name == "dot_general":
            contracted = eqn.params["dimension_numbers"][0][0]
            operations += 2 * size * math.prod(eqn.invars[0].aval.shape[i] for i in contracted)
        elif f"_{name.replace('-', '_')}" not in vars(DataMovement):
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
        self._known: dict[int, tuple[Any, list]] = {}
        """The rules of the equations of each jaxpr."""

    def call(self, function: Callable, arrays: Sequence[np.ndarray], avals: Sequence) -> list[np.ndarray]:
        """Trace a function of arrays and interpret it."""
        return self.evaluate(traced(function, avals), arrays)

    def evaluate(self, closed, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Interpret a traced function."""
        operations, equations = count_operations(closed.jaxpr)
        if operations > MAX_REPETITIONS * equations:
            raise UnsupportedError(f"{operations} operations in {equations} equations")
        return self.run(closed.jaxpr, closed.consts, arrays)

    def run(self, jaxpr, consts, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        values: dict[Any, np.ndarray] = dict(zip(jaxpr.invars, arrays, strict=True))
        values.update((v, constant(c)) for v, c in zip(jaxpr.constvars, consts, strict=True))
        for eqn, rule, literals in self._rules(jaxpr):
            if len(self.graph.nodes) > MAX_OPERATIONS:
                raise UnsupportedError(f"more than {MAX_OPERATIONS} operations")
            xs = [values[v] if x is None else x for v, x in zip(eqn.invars, literals, strict=True)]
            out = rule(eqn, xs)
            if not eqn.primitive.multiple_results:
                out = [out]
            for v, x in zip(eqn.outvars, out, strict=True):
                values[v] = x if type(x) is np.ndarray else np.asarray(x)
        return [constant(v.val) if isinstance(v, core.Literal) else values[v] for v in jaxpr.outvars]

    def _rules(self, jaxpr) -> list[tuple[Any, Callable, list[np.ndarray | None]]]:
        """Return the equations of a jaxpr with their rules, and the operands that are literals."""
        known = self._known.get(id(jaxpr))
        if known is None:
            rules = [
                (eqn, self.rule(eqn), [constant(v.val) if isinstance(v, core.Literal) else None for v in eqn.invars])
                for eqn in jaxpr.eqns
            ]
            # The jaxpr is kept, so that its number stays its own.
            known = self._known[id(jaxpr)] = jaxpr, rules
        return known[1]

    def rule(self, eqn) -> Callable:
        """Return the function of an equation and the values of its operands that returns its results."""
        name, params = eqn.primitive.name, eqn.params
        for dtype in {np.dtype(v.aval.dtype) for v in eqn.invars if hasattr(v.aval, "dtype")}:
            if dtype.kind not in "fbiu":
                raise UnsupportedError(f"an array of dtype {dtype}")
        if name in self.elementwise:
            return self.elementwise_rule(eqn)
        rule = getattr(self, "_" + name.replace("-", "_"), None)
        if rule is not None:
            return rule
        function = expansion(eqn.primitive)
        if function is not None:
            return functools.partial(self._expanded, function)
        inner = [p for p in params.values() if isinstance(p, core.Jaxpr)]
        if name not in ("while", "cond") and len(inner) == 1:
            jaxpr, consts = parts_of(inner[0])
            if len(jaxpr.invars) == len(eqn.invars) and len(jaxpr.outvars) == len(eqn.outvars):
                return lambda eqn, xs: self.run(jaxpr, consts, xs)
        return self._numbers

    def _expanded(self, function: Callable, eqn, xs):
        out = self.call(functools.partial(function, **eqn.params), xs, [v.aval for v in eqn.invars])
        return out if eqn.primitive.multiple_results else out[0]

    def _numbers(self, eqn, xs):
        if all(map(is_static, xs)):
            return self.by_jax(eqn, xs)
        raise UnsupportedError(f"the operation {eqn.primitive.name}", eqn.primitive.name)

    # Functions and loops.

    def _scan(self, eqn, xs):
        params, (body, consts) = eqn.params, parts_of(eqn.params["jaxpr"])
        length = params["length"]
        shapes = ([v.aval.shape for v in variables] for variables in (body.invars, eqn.outvars, body.outvars))
        fixed, carried = scan_counts([x.shape for x in xs], *shapes)
        first, carry, rows = xs[:fixed], xs[fixed : fixed + carried], xs[fixed + carried :]
        out: list[Any] = [None] * length
        for i in reversed(range(length)) if params["reverse"] else range(length):
            result = self.run(body, consts, [*first, *carry, *(x[i, ...] for x in rows)])
            carry, out[i] = result[:carried], result[carried:]
        stacks = []
        for k, v in enumerate(eqn.outvars[carried:]):
            parts = common([np.asarray(y[k]) for y in out])
            stacks.append(np.stack(parts) if parts else np.zeros(v.aval.shape))
        return [*carry, *stacks]

    def _while(self, eqn, xs):
        params = eqn.params
        n, m = params["cond_nconsts"], params["body_nconsts"]
        go, body = parts_of(params["cond_jaxpr"]), parts_of(params["body_jaxpr"])
        of_go, of_body, state = xs[:n], xs[n : n + m], xs[n + m :]
        if _depends_on_data(go[0], of_go, body[0], of_body, state):
            return self._repeated(eqn, (go, of_go), (body, of_body), state)
        while True:
            (again,) = self.run(*go, [*of_go, *state])
            if not is_static(again):
                raise UnsupportedError("a loop that ends depending on data")
            if not again:
                return state
            state = self.run(*body, [*of_body, *state])

    def _repeated(self, eqn, go: tuple, body: tuple, state):
        """Return the end of a loop whose number of rounds depends on data."""
        shapes = [np.shape(x) for x in state]
        if any(np.dtype(v.aval.dtype).kind != "f" for v in eqn.outvars):
            raise UnsupportedError("a loop that ends depending on data, and carries other numbers than floats")
        starts = [_scalar(x) for array in state for x in np.asarray(array, object).ravel()]
        outer, self.loop = self.loop, self.graph.loop(self.loop, starts)
        carried = _arrays(self.loop.carried, shapes)
        (go, go_consts), of_go = go
        (body, body_consts), of_body = body
        (again,) = self.run(go, go_consts, [*of_go, *carried])
        ends = self.run(body, body_consts, [*of_body, *carried])
        loop, self.loop = self.loop, outer
        again = np.asarray(again, object).item()
        if type(again) is not Node:
            raise UnsupportedError("a loop whose condition is always the same")
        ends = [_scalar(x) for array in ends for x in np.asarray(array, object).ravel()]
        return _arrays(self.graph.close(loop, again, ends), shapes)

    def _jaxdyn_each_row(self, eqn, xs):
        (count, *operands), params = xs, eqn.params
        body, consts = parts_of(params["jaxpr"])
        shared, sums, length = params["shared"], params["sums"], params["length"]
        floats = all(np.dtype(v.aval.dtype).kind == "f" for v in (*body.invars[shared:], *body.outvars))
        if not self.row_loops or is_static(count) or not floats:
            return self._expanded(over_all_rows, eqn, xs)
        outer, self.loop = self.loop, self.graph.row_loop(self.loop, count.item())
        rows = [self._row_of(x) for x in operands[shared:]]
        out = [np.asarray(x, object) for x in self.run(body, consts, [*operands[:shared], *rows])]
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

    def _cond(self, eqn, xs):
        index, *operands = xs
        branches = eqn.params["branches"]
        if is_static(index):
            return self.run(*parts_of(branches[int(np.clip(int(index), 0, len(branches) - 1))]), operands)
        if len(branches) != 2:
            raise UnsupportedError("a choice between more than two branches")
        if np.dtype(eqn.invars[0].aval.dtype) != bool:
            index = self.elementwise["gt"](index, 0.0)
        otherwise, then = (self.run(*parts_of(b), operands) for b in branches)
        pairs = zip(otherwise, then, strict=True)
        return [static_again(self.select(index, *common([a, b]))) for a, b in pairs]

    def _custom_linear_solve(self, eqn, xs):
        lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
        before = lengths.matvec + lengths.vecmat
        total = before + lengths.solve + lengths.transpose_solve
        return self.run(*parts_of(jaxprs.solve), [*xs[before : before + lengths.solve], *xs[total:]])

    def _custom_vjp_call(self, eqn, xs):
        return self.run(*parts_of(eqn.params["call_jaxpr"]), xs)

    def _optimization_barrier(self, eqn, xs):
        return xs


def _depends_on_data(go, of_go, body, of_body, state) -> bool:
    """Return whether the condition `go` of a loop depends on data."""
    known = [not is_static(x) for x in state]
    of_go, of_body = ([not is_static(x) for x in xs] for xs in (of_go, of_body))
    while True:
        after = [a or b for a, b in zip(known, _reached(body, [*of_body, *known]), strict=True)]
        if after == known:
            return _reached(go, [*of_go, *known])[0]
        known = after


def _reached(jaxpr, given: Sequence[bool]) -> list[bool]:
    """Return which results of a jaxpr depend on the given operands."""
    found = {v for v, depends in zip(jaxpr.invars, given, strict=True) if depends}
    for eqn in jaxpr.eqns:
        if any(v in found for v in eqn.invars if not isinstance(v, core.Literal)):
            found.update(eqn.outvars)
    return [not isinstance(v, core.Literal) and v in found for v in jaxpr.outvars]


def _scalar(x):
    return x if type(x) in (Node, bool) else float(x)


def _arrays(nodes: Sequence[Node], shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray]:
    given = iter(nodes)
    return [objects([next(given) for _ in range(math.prod(s))], s) for s in shapes]


def scan_counts(given: Sequence, of_round: Sequence, results: Sequence, results_of_round: Sequence) -> tuple[int, int]:
    """Return how many operands of a scan are the same in each round, and how many it carries, from the shapes of its
    operands and results, and those of a round."""
    # What a scan carries has the shape of a round's; what it scans over has one axis more.
    mapped = [len(a) > len(b) for a, b in zip(given, of_round, strict=True)]
    stacked = [len(a) > len(b) for a, b in zip(results, results_of_round, strict=True)]
    carried = stacked.index(True) if True in stacked else len(stacked)
    return (mapped.index(True) if True in mapped else len(mapped)) - carried, carried


def parts_of(closed) -> tuple[Any, Any]:
    return closed.jaxpr, closed.consts
