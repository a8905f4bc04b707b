"""A function of JAX arrays as a program of scalar operations: its jaxpr is interpreted with arrays of graph nodes.

An array is either static, a NumPy array of numbers, or a NumPy array of objects, nodes and constants. Indices must be
static. What only moves data then leaves no operation behind, and loops whose length is known are unrolled. A
`lax.while_loop` that ends depending on data is a loop of the program.
"""

from __future__ import annotations

import functools
import math
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxdyn.native._arrays import UnsupportedError, objects
from jaxdyn.native._graph import Graph, Node, Scalar, live
from jaxdyn.native._interpreter import Interpreter, traced


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


def specialize(function: Callable, inputs: Sequence, uniform: Sequence[bool], bits: int) -> Program:
    """Return the program of a function of arrays of the given shapes and dtypes, in arithmetic of so many bits.

    **Raises** `UnsupportedError` where there is none, with a warning where that was not expected.
    """
    graph = Graph()
    interpreter = Interpreter(graph, 2.0 ** (-23 if bits == 32 else -52))
    arrays = []
    for number, (x, same) in enumerate(zip(inputs, uniform, strict=True)):
        nodes = [graph.input(number, i, same) for i in range(math.prod(x.shape))]
        arrays.append(objects(nodes, x.shape))
    # An error of the function itself is the user's; only one that comes later is a fault of this package.
    closed = traced(lambda *x: jax.tree.leaves(function(*x)), inputs)
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
    needed = live(x for output in outputs for x in output)
    nodes = [n for n in graph.nodes if n.number in needed]
    return Program(nodes, tuple(x.shape for x in inputs), tuple(uniform), outputs)


def _number(x) -> Scalar:
    return x if type(x) is Node else float(x)


def _with_lost_nans(graph: Graph, outputs):
    """Add to the outputs the terms `0 x` for inputs `x` that they lost when products with zero were folded: they are
    zero, or NaN where the input is not finite."""
    dropped = [graph.nodes[i] for i in sorted(live(graph.dropped)) if graph.nodes[i].op == "input"]
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
    nan = functools.reduce(lambda a, b: graph.node("add", a, b), (graph.node("mul", x, 0.0) for x in dropped))

    def complete(x: Scalar) -> Scalar:
        if type(x) is not Node:
            return x if computed else graph.node("add", nan, x)
        return graph.node("add", x, nan) if lost & ~reached[x.number] else x

    return tuple([complete(x) for x in output] for output in outputs)
