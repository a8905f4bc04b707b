"""A function of JAX arrays as a program of scalar operations: its jaxpr is interpreted with arrays of graph nodes.

An array is either static, a NumPy array of numbers, or a NumPy array of objects, nodes and constants. Indices must be
static. What only moves data then leaves no operation behind, and loops whose length is known are unrolled. A
`lax.while_loop` that ends depending on data is a loop of the program.
"""

from __future__ import annotations

import contextvars
import functools
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn.native._arrays import UnsupportedError, objects
from jaxdyn.native._graph import Graph, Node, Scalar, live, nan_operands, spoiling_operands
from jaxdyn.native._interpreter import Interpreter, traced


class Repetition(NamedTuple):
    """The calls of one function that another consists of. The native program of the other has a loop over the calls,
    instead of all of them one after the other."""

    function: Callable
    """Called with operands that stay, then those that it carries, then a row of each of the others. Returns what is
    carried to the next call, and perhaps more."""
    length: int
    """The number of calls."""
    carried: int
    """The number of arrays that are carried. The results are these at the start and after calls, stacked along an axis
    behind the batch."""
    rows: int
    """The number of operands, the last ones, that have such an axis too."""
    every: int | None = 1
    """The number of calls from one row of the results to the next. It divides `length`. With None, the results are what
    is carried at the end, and what else the calls return, stacked along such an axis."""
    held: int = 1
    """The number of calls that get the same row. It divides `length`."""
    reverse: bool = False
    """Whether the first call has the last rows."""

    def one_call(self, shapes: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
        """Return the shapes of the operands of one call."""
        first = len(shapes) - self.rows
        return *shapes[:first], *(shape[1:] for shape in shapes[first:])


class Program(NamedTuple):
    """A program of scalar operations, and of loops over them."""

    nodes: list[Node]
    """All nodes that the outputs depend on, operands first."""
    inputs: tuple[tuple[int, ...], ...]
    """The shapes of the operands without batch axes."""
    uniform: tuple[bool, ...]
    """Whether an operand is the same for the whole batch."""
    outputs: tuple[list[Scalar], ...]
    """The elements of each result."""
    repetition: Repetition | None = None
    """The loop of which the program is the body; operands and results are those of one call."""
    summed: tuple[bool, ...] = ()
    """Whether a result is a sum over the batch; empty if none is."""
    linear: tuple[int, ...] = ()
    """The operands that, where they are zero, make all results zero."""
    one: bool = False
    """Whether each run is for one element of the batch, and vectors may hold several values of it in their lanes."""

    @property
    def length(self) -> int:
        """The number of times that the program runs in a call of its function."""
        return 1 if self.repetition is None else self.repetition.length

    def result_rows(self, result: int) -> int:
        """Return the number of rows of a result."""
        if self.repetition is None:
            return 1
        length, every = self.repetition.length, self.repetition.every
        if every is None:
            return 1 if result < self.repetition.carried else length
        return 1 + length // every

    @property
    def carried(self) -> range:
        """The operands that the results of one run replace for the next."""
        if self.repetition is None:
            return range(0)
        end = len(self.inputs) - self.repetition.rows
        return range(end - self.repetition.carried, end)

    def is_sum(self, result: int) -> bool:
        """Return whether a result is a sum over the batch."""
        return bool(self.summed) and self.summed[result]

    def is_row(self, operand: int) -> bool:
        """Return whether an operand has rows for the runs."""
        return self.repetition is not None and operand >= len(self.inputs) - self.repetition.rows

    def row_count(self, operand: int) -> int:
        """Return the number of rows of an operand, 1 for one that has none."""
        return self.repetition.length // self.repetition.held if self.repetition and self.is_row(operand) else 1


_specializing = contextvars.ContextVar("jaxdyn_specializing", default=False)


def specializing() -> bool:
    """Return whether a function is traced for a program of scalar operations. It may then go over the entries of arrays
    that are not zero, one by one, where XLA takes longer to compile the parts than the whole."""
    return _specializing.get()


def leave_to_xla(reason: str) -> None:
    """Raise `UnsupportedError` while a function is traced for a program of scalar operations, which it cannot be, so
    that no time is spent on it."""
    if specializing():
        raise UnsupportedError(reason)


def add_gram(M, A, B, entries: np.ndarray):
    """Return `M + A^T B` `[n, n, *batch]`, which is symmetric, and of which only the lower triangle is right.

    `A` and `B` are `[k, n, *batch]`, and `entries` `[k, n]` says which of their entries may be other than zero: a
    program of scalar operations goes over these, where XLA takes longer to compile the parts than the whole.
    """
    if not specializing():
        return M + jnp.einsum("ni...,nj...->ij...", A, B, precision=lax.Precision.HIGHEST)
    lines = []
    for i in range(M.shape[0]):
        rows, line = np.flatnonzero(entries[:, i]), M[i, : i + 1]
        if len(rows):
            line = line + (A[rows, i][:, None] * B[rows, : i + 1]).sum(axis=0)
        lines.append(jnp.concatenate([line, jnp.zeros((M.shape[0] - i - 1, *line.shape[1:]), line.dtype)]))
    return jnp.stack(lines)


def specialize(
    function: Callable, inputs: Sequence, uniform: Sequence[bool], bits: int, *, row_loops: bool = False
) -> Program:
    """Return the program of a function of arrays of the given shapes and dtypes, in arithmetic of so many bits; of a
    function that has a `repetition`, the program of one call. With `row_loops`, it may have loops over rows.

    **Raises** `UnsupportedError` where there is none, with a warning where that was not expected.
    """
    token = _specializing.set(True)
    try:
        return _specialized(function, inputs, uniform, bits, row_loops)
    finally:
        _specializing.reset(token)


def _specialized(function: Callable, inputs: Sequence, uniform: Sequence[bool], bits: int, row_loops: bool) -> Program:
    repetition = getattr(function, "repetition", None)
    # A result that has the batch axes of an operand without any is the sum over the batch.
    summed = tuple(i is not None and uniform[i] for i in getattr(function, "like", ()))
    linear = tuple(getattr(function, "linear", ()))
    if repetition is not None:
        shapes = repetition.one_call([x.shape for x in inputs])
        inputs = [jax.ShapeDtypeStruct(shape, x.dtype) for shape, x in zip(shapes, inputs, strict=True)]
        function = repetition.function
    # An error of the function itself is the user's; only one that comes later is a fault of this package. It is traced
    # first, because a function that is left to XLA may have millions of operands, such as the vertices of meshes.
    closed = traced(lambda *x: jax.tree.leaves(function(*x)), inputs)
    graph = Graph()
    interpreter = Interpreter(graph, 2.0 ** (-23 if bits == 32 else -52), row_loops=row_loops)
    arrays = []
    for number, (x, same) in enumerate(zip(inputs, uniform, strict=True)):
        nodes = [graph.input(number, i, same) for i in range(math.prod(x.shape))]
        arrays.append(objects(nodes, x.shape))
    try:
        results = interpreter.evaluate(closed, arrays)
    except UnsupportedError:
        raise
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
        warnings.warn(f"no native program could be made, so XLA compiles the function ({text})", stacklevel=2)
        raise UnsupportedError(text) from error
    outputs = tuple([_number(x) for x in np.asarray(r, object).ravel()] for r in results)
    outputs = _with_lost_nans(graph, outputs)
    nodes = live((x for output in outputs for x in output), graph.nodes)
    needed = {n.number for n in nodes}
    for loop in {n.args[0] for n in nodes if n.op == "result"}:
        loop.prune(lambda node: node.number in needed)
    shapes = tuple(x.shape for x in inputs)
    return Program(nodes, shapes, tuple(uniform), outputs, repetition, summed if any(summed) else (), linear)


def _number(x) -> Scalar:
    return x if type(x) is Node else float(x)


def _with_lost_nans(graph: Graph, outputs):
    """Add to the outputs the terms that they lost when products with zero were folded. Each belongs to an input, and is
    zero, or NaN where the input would have made such a product NaN: where it is NaN, or not finite."""
    dropped = [node for node in live(graph.dropped, graph.nodes, nan_operands) if node.op == "input"]
    if not dropped:
        return outputs
    bit = {node.number: 1 << k for k, node in enumerate(dropped)}
    reached = [0] * len(graph.nodes)
    for node in graph.nodes:
        if node.op == "input":
            reached[node.number] = bit.get(node.number, 0)
            continue
        for a in node.args:
            if type(a) is Node:
                reached[node.number] |= reached[a.number]
    # What reaches all outputs in another way needs no term.
    everything = (1 << len(bit)) - 1
    computed = [x for output in outputs for x in output if type(x) is Node]
    common = functools.reduce(operator.and_, (reached[x.number] for x in computed)) if computed else 0
    lost = everything & ~common
    dropped = [node for node in dropped if lost & bit[node.number]]
    if not dropped:
        return outputs
    # Terms of uniform inputs first, because their sum is computed once. A product and a sum are one instruction.
    dropped.sort(key=lambda node: not node.uniform)
    spoiling = {node.number for node in live(graph.dropped, graph.nodes, spoiling_operands)}

    def term(x: Node) -> Node:
        if x.number in spoiling:
            return graph.node("mul", x, 0.0)
        return graph.node("select", graph.node("ne", x, x), 0.0, x)

    nan = functools.reduce(lambda a, b: graph.node("add", a, b), map(term, dropped))

    def complete(x: Scalar) -> Scalar:
        if type(x) is not Node:
            return x if computed else graph.node("add", nan, x)
        return graph.node("add", x, nan) if lost & ~reached[x.number] else x

    return tuple([complete(x) for x in output] for output in outputs)
