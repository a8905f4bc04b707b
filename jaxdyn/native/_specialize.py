"""A function of JAX arrays as a straight-line program: its jaxpr is interpreted with arrays of graph nodes.

An array is either static, a NumPy array of numbers, or a NumPy array of objects, nodes and constants. Indices and loop
counts must be static. What only moves data then leaves no operation behind, and scans are unrolled.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend import core

from jaxdyn.native._graph import FOLDED, Graph, Node, Scalar, live

MAX_OPERATIONS = 250_000
"""A function of more operations is not specialized."""


class Unsupported(Exception):
    """A function has an operation, or an index that depends on data, that a straight-line program does not have."""


class Program(NamedTuple):
    """A straight-line program."""

    nodes: list[Node]
    """All nodes that the outputs depend on, operands first."""
    inputs: tuple[tuple[int, ...], ...]
    """The shapes of the operands without batch axes."""
    uniform: tuple[bool, ...]
    """Whether an operand is the same for the whole batch."""
    outputs: tuple[list[Scalar], ...]
    """The elements of each result."""


_EXPANSIONS: dict[str, Callable] = {}


def expand(primitive: core.Primitive, function: Callable) -> None:
    """Let the specializer read a primitive as a function of arrays, which is called with the primitive's parameters."""
    _EXPANSIONS[primitive.name] = function


def specialize(function: Callable, inputs: Sequence, uniform: Sequence[bool], bits: int) -> Program:
    """Return the program of a function of arrays of the given shapes and dtypes, in arithmetic of so many bits.

    **Raises** `Unsupported` where there is none.
    """
    graph = Graph()
    interpreter = _Interpreter(graph, 2.0 ** (-23 if bits == 32 else -52))
    arrays = []
    for number, (x, same) in enumerate(zip(inputs, uniform, strict=True)):
        nodes = [graph.input(number, i, same) for i in range(math.prod(x.shape))]
        arrays.append(_objects(nodes, x.shape))
    results = interpreter.call(lambda *x: jax.tree.leaves(function(*x)), arrays, inputs)
    outputs = tuple([_number(x) for x in np.asarray(r, object).ravel()] for r in results)
    outputs = _with_lost_nans(graph, outputs)
    needed = live(x for output in outputs for x in output)
    nodes = [n for n in graph.nodes if n.number in needed]
    return Program(nodes, tuple(x.shape for x in inputs), tuple(uniform), outputs)


def _number(x) -> Scalar:
    return x if type(x) is Node else float(x)


def _with_lost_nans(graph: Graph, outputs):
    """Add to the outputs the terms `x - x` for inputs `x` that they lost when products with zero were folded: they are
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
    # Terms of uniform inputs first, because their sum is computed once.
    dropped.sort(key=lambda node: not node.uniform)
    nan = functools.reduce(lambda a, b: graph.node("add", a, b), (graph.node("sub", x, x) for x in dropped))
    everything = (1 << len(bit)) - 1
    constant = not any(type(x) is Node for output in outputs for x in output)

    def complete(x: Scalar) -> Scalar:
        if type(x) is not Node:
            return graph.node("add", nan, x) if constant else x
        return x if reached[x.number] == everything else graph.node("add", x, nan)

    return tuple([complete(x) for x in output] for output in outputs)


def _objects(values: list, shape) -> np.ndarray:
    out = np.empty(len(values), object)
    out[:] = values
    return out.reshape(shape)


def _is_static(x: np.ndarray) -> bool:
    return x.dtype != object


def _static_again(x) -> np.ndarray:
    """Return an array without nodes as numbers."""
    x = np.asarray(x)
    if x.dtype != object or any(type(e) is Node for e in x.flat):
        return x
    values = x.ravel().tolist()
    return np.array(values).reshape(x.shape) if values else np.zeros(x.shape)


def _common(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return all arrays static, or all of objects."""
    if all(map(_is_static, arrays)):
        return list(arrays)
    return [x.astype(object) if _is_static(x) else x for x in arrays]


def _mapped(function: Callable, operands: int) -> Callable[..., np.ndarray]:
    """Return a function of scalars as one of arrays that broadcast."""
    over = np.frompyfunc(function, operands, 1)
    return lambda *xs: np.asarray(over(*xs))


class _Interpreter:
    """Evaluates jaxprs on arrays of nodes."""

    def __init__(self, graph: Graph, precision: float):
        self.graph, self.precision = graph, precision
        g = graph
        unary = {"neg": g.neg, "not": g.logical_not}
        binary = {"add": g.add, "sub": g.sub, "mul": g.mul, "div": g.div, "and": g.logical_and, "or": g.logical_or}
        binary["add_any"] = g.add
        self.elementwise = {name: _mapped(f, 1) for name, f in unary.items()}
        self.elementwise |= {name: _mapped(f, 2) for name, f in binary.items()}
        for name in FOLDED:
            self.elementwise[name] = _mapped(functools.partial(g.apply, name), 2 if name in TWO_OPERANDS else 1)
        self.select = _mapped(g.select, 3)

    def call(self, function: Callable, arrays: Sequence[np.ndarray], avals: Sequence) -> list[np.ndarray]:
        """Trace a function of arrays and interpret it."""
        shapes = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
        closed = jax.make_jaxpr(function)(*shapes)
        return self.run(closed.jaxpr, closed.consts, arrays)

    def run(self, jaxpr, consts, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        values: dict[Any, np.ndarray] = dict(zip(jaxpr.invars, arrays, strict=True))
        values.update((v, _constant(c)) for v, c in zip(jaxpr.constvars, consts, strict=True))

        def read(v) -> np.ndarray:
            return _constant(v.val) if isinstance(v, core.Literal) else values[v]

        for eqn in jaxpr.eqns:
            out = self.equation(eqn, [read(v) for v in eqn.invars])
            if not eqn.primitive.multiple_results:
                out = [out]
            for v, x in zip(eqn.outvars, out, strict=True):
                values[v] = np.asarray(x)
        return [read(v) for v in jaxpr.outvars]

    def equation(self, eqn, xs: list[np.ndarray]):
        name, params = eqn.primitive.name, eqn.params
        if len(self.graph.nodes) > MAX_OPERATIONS:
            raise Unsupported(f"more than {MAX_OPERATIONS} operations")
        for dtype in {np.dtype(v.aval.dtype) for v in eqn.invars if hasattr(v.aval, "dtype")}:
            if dtype.kind not in "fbiu":
                raise Unsupported(f"an array of dtype {dtype}")
        rule = getattr(self, "_" + name.replace("-", "_"), None)
        if name in self.elementwise:
            return self.map(eqn, xs)
        if rule is not None:
            return rule(eqn, xs)
        if name in _EXPANSIONS:
            function = functools.partial(_EXPANSIONS[name], **params)
            out = self.call(function, xs, [v.aval for v in eqn.invars])
            return out if eqn.primitive.multiple_results else out[0]
        inner = [p for p in params.values() if isinstance(p, (core.ClosedJaxpr, core.Jaxpr))]
        if name not in ("while", "cond") and len(inner) == 1:
            closed = inner[0]
            jaxpr, consts = (closed.jaxpr, closed.consts) if isinstance(closed, core.ClosedJaxpr) else (closed, ())
            if len(jaxpr.invars) == len(xs) and len(jaxpr.outvars) == len(eqn.outvars):
                return self.run(jaxpr, consts, xs)
        if all(map(_is_static, xs)):
            return self.by_jax(eqn, xs)
        raise Unsupported(f"the operation {name}")

    def by_jax(self, eqn, xs):
        """Evaluate an operation on numbers by JAX itself."""
        with jax.ensure_compile_time_eval():
            arrays = [np.asarray(x, v.aval.dtype) for x, v in zip(xs, eqn.invars, strict=True)]
            out = eqn.primitive.bind(*map(jax.numpy.asarray, arrays), **eqn.params)
        return [_constant(x) for x in out] if eqn.primitive.multiple_results else _constant(out)

    def map(self, eqn, xs):
        name, aval = eqn.primitive.name, eqn.outvars[0].aval
        if all(map(_is_static, xs)):
            if name in STATIC and (aval.dtype.kind == "f" or name in STATIC_INTEGERS or aval.dtype == bool):
                with np.errstate(all="ignore"):
                    out = STATIC[name](*xs)
                return self.cleared(out, *xs) if name in ("add", "sub") and aval.dtype.kind == "f" else out
            return self.by_jax(eqn, xs)
        kinds = {np.dtype(v.aval.dtype).kind for v in eqn.invars}
        if kinds & set("iu"):
            raise Unsupported(f"the operation {name} on integers that depend on data")
        return _static_again(self.elementwise[name](*_common(xs)))

    def cleared(self, total, a, b):
        """Return a sum of constants that is 0 or 1 up to rounding as that: a rotation by a quarter turn has such
        entries, and products with them vanish from the program."""
        close = 4 * self.precision * np.maximum(np.abs(a), np.abs(b))
        for exact in (-1.0, 0.0, 1.0):
            total = np.where(np.abs(total - exact) <= close, exact, total)
        return total

    # Functions and loops.

    def _scan(self, eqn, xs):
        params, (body, consts) = eqn.params, _parts(eqn.params["jaxpr"])
        length = params["length"]
        # What a scan carries has the body's shape; what it scans over has one axis more.
        mapped = [x.ndim > v.aval.ndim for x, v in zip(xs, body.invars, strict=True)]
        stacked = [v.aval.ndim > w.aval.ndim for v, w in zip(eqn.outvars, body.outvars, strict=True)]
        carried = stacked.index(True) if True in stacked else len(stacked)
        fixed = (mapped.index(True) if True in mapped else len(mapped)) - carried
        first, carry, rows = xs[:fixed], xs[fixed : fixed + carried], xs[fixed + carried :]
        out: list[Any] = [None] * length
        for i in reversed(range(length)) if params["reverse"] else range(length):
            result = self.run(body, consts, [*first, *carry, *(x[i, ...] for x in rows)])
            carry, out[i] = result[:carried], result[carried:]
        stacks = []
        for k, v in enumerate(eqn.outvars[carried:]):
            parts = _common([np.asarray(y[k]) for y in out])
            stacks.append(np.stack(parts) if parts else np.zeros(v.aval.shape))
        return [*carry, *stacks]

    def _while(self, eqn, xs):
        params = eqn.params
        n, m = params["cond_nconsts"], params["body_nconsts"]
        go, body = _parts(params["cond_jaxpr"]), _parts(params["body_jaxpr"])
        of_go, of_body, state = xs[:n], xs[n : n + m], xs[n + m :]
        while True:
            (again,) = self.run(*go, [*of_go, *state])
            if not _is_static(again):
                raise Unsupported("a loop that ends depending on data")
            if not again:
                return state
            state = self.run(*body, [*of_body, *state])

    def _cond(self, eqn, xs):
        index, *operands = xs
        branches = eqn.params["branches"]
        if _is_static(index):
            return self.run(*_parts(branches[int(np.clip(int(index), 0, len(branches) - 1))]), operands)
        if len(branches) != 2 or np.dtype(eqn.invars[0].aval.dtype) != bool:
            raise Unsupported("a choice between more than two branches")
        otherwise, then = (self.run(*_parts(b), operands) for b in branches)
        pairs = zip(otherwise, then, strict=True)
        return [_static_again(self.select(index, *_common([a, b]))) for a, b in pairs]

    def _custom_linear_solve(self, eqn, xs):
        lengths, jaxprs = eqn.params["const_lengths"], eqn.params["jaxprs"]
        before = lengths.matvec + lengths.vecmat
        total = before + lengths.solve + lengths.transpose_solve
        return self.run(*_parts(jaxprs.solve), [*xs[before : before + lengths.solve], *xs[total:]])

    def _custom_vjp_call(self, eqn, xs):
        return self.run(*_parts(eqn.params["call_jaxpr"]), xs)

    def _optimization_barrier(self, eqn, xs):
        return xs

    # Operations that keep the values.

    def _copy(self, eqn, xs):
        return xs[0]

    _stop_gradient = _copy_p = _name = _reduce_precision = _copy

    def _convert_element_type(self, eqn, xs):
        (x,) = xs
        source, target = np.dtype(eqn.invars[0].aval.dtype), np.dtype(eqn.params["new_dtype"])
        if _is_static(x):
            return x.astype(np.float64 if target.kind == "f" else target)
        if source == target or (source.kind == "f" and target.kind == "f"):
            return x
        if source == bool and target.kind == "f":
            return _static_again(self.select(x, 0.0, 1.0))
        if source.kind == "f" and target == bool:
            return self.elementwise["ne"](x, 0.0)
        raise Unsupported(f"a conversion of {source} to {target}")

    # Moving data.

    def _reshape(self, eqn, xs):
        return xs[0].reshape(eqn.params["new_sizes"])

    def _squeeze(self, eqn, xs):
        return np.squeeze(xs[0], tuple(eqn.params["dimensions"]))

    def _expand_dims(self, eqn, xs):
        return np.expand_dims(xs[0], tuple(eqn.params["dimensions"]))

    def _broadcast_in_dim(self, eqn, xs):
        shape = [1] * len(eqn.params["shape"])
        for axis, n in zip(eqn.params["broadcast_dimensions"], xs[0].shape, strict=True):
            shape[axis] = n
        return np.broadcast_to(xs[0].reshape(shape), eqn.params["shape"])

    def _transpose(self, eqn, xs):
        return np.transpose(xs[0], eqn.params["permutation"])

    def _rev(self, eqn, xs):
        return np.flip(xs[0], eqn.params["dimensions"])

    def _slice(self, eqn, xs):
        p = eqn.params
        strides = p["strides"] or (1,) * xs[0].ndim
        window = zip(p["start_indices"], p["limit_indices"], strides, strict=True)
        return _static_again(xs[0][tuple(slice(*w) for w in window)])

    def _concatenate(self, eqn, xs):
        return np.concatenate(_common(xs), eqn.params["dimension"])

    def _stack(self, eqn, xs):
        return np.stack(_common(xs), eqn.params["axis"])

    def _split(self, eqn, xs):
        ends = np.cumsum(eqn.params["sizes"])[:-1]
        return [_static_again(x) for x in np.split(xs[0], ends, eqn.params["axis"])]

    def _unstack(self, eqn, xs):
        return [_static_again(x) for x in np.moveaxis(xs[0], eqn.params["axis"], 0)]

    def _dynamic_slice(self, eqn, xs):
        x, *starts = xs
        sizes = eqn.params["slice_sizes"]
        return _static_again(x[_window(x, starts, sizes)])

    def _dynamic_update_slice(self, eqn, xs):
        x, update, *starts = xs
        x, update = _common([x, update])
        x = x.copy()
        x[_window(x, starts, update.shape)] = update
        return x

    def _iota(self, eqn, xs):
        p = eqn.params
        shape = [1] * len(p["shape"])
        shape[p["dimension"]] = -1
        return np.broadcast_to(np.arange(p["shape"][p["dimension"]], dtype=p["dtype"]).reshape(shape), p["shape"])

    def _gather(self, eqn, xs):
        x, index = xs
        if not _is_static(index):
            raise Unsupported("an index that depends on data")
        p = eqn.params
        numbers = p["dimension_numbers"]
        places = _places(
            x.shape,
            index,
            numbers.offset_dims,
            numbers.collapsed_slice_dims,
            numbers.start_index_map,
            numbers.operand_batching_dims,
            numbers.start_indices_batching_dims,
            p["slice_sizes"],
            clip=p["mode"] == lax.GatherScatterMode.CLIP,
        )
        fill = p["fill_value"]
        if (places < 0).any() and fill is None:
            fill = math.nan if x.dtype.kind in "fO" else 0
        if _is_static(x):
            return np.append(x.ravel(), x.dtype.type(0 if fill is None else fill))[places]
        return _static_again(_objects([*x.ravel(), fill], (-1,))[places])

    def _pad(self, eqn, xs):
        x, value = xs
        config = eqn.params["padding_config"]
        places = np.arange(1, x.size + 1, dtype=np.int32).reshape(x.shape)
        with jax.ensure_compile_time_eval():
            places = np.asarray(lax.pad(places, np.int32(0), config))
        x, value = _common([x, np.asarray(value)])
        return _static_again(np.concatenate([value.reshape(1), x.ravel()])[places])

    def _scatter(self, eqn, xs):
        return self.scattered(eqn, xs, lambda old, new: new)

    def _scatter_add(self, eqn, xs):
        return self.scattered(eqn, xs, self.graph.add)

    def scattered(self, eqn, xs, combine: Callable):
        x, index, update = xs
        if not _is_static(index):
            raise Unsupported("an index that depends on data")
        if all(map(_is_static, xs)):
            return self.by_jax(eqn, xs)
        numbers = eqn.params["dimension_numbers"]
        window = iter(update.shape[i] for i in numbers.update_window_dims)
        dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        landing = _places(
            x.shape,
            index,
            numbers.update_window_dims,
            numbers.inserted_window_dims,
            numbers.scatter_dims_to_operand_dims,
            numbers.operand_batching_dims,
            numbers.scatter_indices_batching_dims,
            tuple(1 if i in dropped else next(window) for i in range(x.ndim)),
            clip=eqn.params["mode"] == lax.GatherScatterMode.CLIP,
        ).ravel()
        out, values = x.astype(object).ravel(), update.astype(object).ravel()
        for k, place in enumerate(landing):
            if place >= 0:
                out[place] = combine(out[place], values[k])
        return _static_again(out.reshape(x.shape))

    # Arithmetic.

    def _square(self, eqn, xs):
        return self.product(xs[0], xs[0])

    def _one_minus_square(self, eqn, xs):
        (x,) = xs
        if _is_static(x):
            return 1.0 - x * x
        g = self.elementwise
        return g["mul"](g["sub"](1.0, x), g["add"](1.0, x))

    def _integer_pow(self, eqn, xs):
        return self.power(xs[0], eqn.params["y"])

    def _rsqrt(self, eqn, xs):
        root = self.elementwise["sqrt"](xs[0].astype(object))
        return _static_again(self.elementwise["div"](1.0, root))

    def _sign(self, eqn, xs):
        if _is_static(xs[0]):
            return np.sign(xs[0])
        x = xs[0].astype(object)
        compare = self.elementwise
        out = self.select(compare["gt"](x, 0.0), self.select(compare["lt"](x, 0.0), x, -1.0), 1.0)
        return _static_again(out)

    def _logistic(self, eqn, xs):
        # 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2, which does not overflow.
        g, x = self.elementwise, xs[0].astype(object)
        return _static_again(g["mul"](0.5, g["add"](1.0, g["tanh"](g["mul"](0.5, x)))))

    def _clamp(self, eqn, xs):
        low, x, high = _common(xs)
        if _is_static(x):
            return np.clip(x, low, high)
        return _static_again(self.elementwise["min"](self.elementwise["max"](low, x), high))

    def _select_n(self, eqn, xs):
        which, *cases = xs
        if _is_static(which):
            if all(map(_is_static, cases)):
                return np.choose(which.astype(int), cases) if cases[0].ndim else cases[int(which)]
            index = np.broadcast_to(which.astype(int), cases[0].shape)
            stack = np.stack(_common(cases)).reshape(len(cases), -1)
            return _static_again(stack[index.ravel(), np.arange(index.size)].reshape(cases[0].shape))
        if np.dtype(eqn.invars[0].aval.dtype) != bool:
            raise Unsupported("a choice by an integer that depends on data")
        if np.dtype(eqn.invars[1].aval.dtype).kind in "iu":
            raise Unsupported("a choice between integers that depends on data")
        return _static_again(self.select(which, *_common(cases)))

    def _reduce_sum(self, eqn, xs):
        return self.reduce(eqn, xs[0], "add", np.sum)

    def _reduce_max(self, eqn, xs):
        return self.reduce(eqn, xs[0], "max", np.max)

    def _reduce_min(self, eqn, xs):
        return self.reduce(eqn, xs[0], "min", np.min)

    def _reduce_and(self, eqn, xs):
        return self.reduce(eqn, xs[0], "and", np.all)

    def _reduce_or(self, eqn, xs):
        return self.reduce(eqn, xs[0], "or", np.any)

    def _reduce_prod(self, eqn, xs):
        return self.reduce(eqn, xs[0], "mul", np.prod)

    def reduce(self, eqn, x, op: str, static: Callable):
        axes = tuple(eqn.params["axes"])
        if _is_static(x):
            return static(x, axis=axes)
        if np.dtype(eqn.invars[0].aval.dtype).kind in "iu":
            raise Unsupported("a sum of integers that depend on data")
        kept = [i for i in range(x.ndim) if i not in axes]
        parts = np.transpose(x, [*axes, *kept]).reshape((-1, *(x.shape[i] for i in kept)))
        if not len(parts):
            return static(np.zeros(x.shape), axis=axes)
        return _static_again(_summed(list(parts), self.elementwise[op]))

    def _cumsum(self, eqn, xs):
        x, axis = xs[0], eqn.params["axis"]
        if _is_static(x):
            return self.by_jax(eqn, xs)
        rows = list(np.moveaxis(x, axis, 0))
        if eqn.params["reverse"]:
            rows = rows[::-1]
        for i in range(1, len(rows)):
            rows[i] = self.elementwise["add"](rows[i - 1], rows[i])
        return np.moveaxis(np.stack(rows[::-1] if eqn.params["reverse"] else rows), 0, axis)

    def _dot_general(self, eqn, xs):
        a, b = xs
        (ca, cb), (ba, bb) = eqn.params["dimension_numbers"]
        fa = [i for i in range(a.ndim) if i not in (*ca, *ba)]
        fb = [i for i in range(b.ndim) if i not in (*cb, *bb)]
        batch, rows, columns = ([x.shape[i] for i in axes] for x, axes in ((a, ba), (a, fa), (b, fb)))
        a, b = _common(xs)
        depth = math.prod(a.shape[i] for i in ca)
        a = np.transpose(a, [*ba, *fa, *ca]).reshape((math.prod(batch), math.prod(rows), depth))
        b = np.transpose(b, [*bb, *fb, *cb]).reshape((math.prod(batch), math.prod(columns), depth))
        if _is_static(a):
            return np.einsum("nik,njk->nij", a, b).reshape((*batch, *rows, *columns))
        terms = [self.product(a[:, :, None, k], b[:, None, :, k]) for k in range(depth)]
        out = _summed(terms, self.elementwise["add"]) if terms else np.zeros((len(a), a.shape[1], b.shape[1]))
        return _static_again(out).reshape((*batch, *rows, *columns))

    def product(self, a, b):
        return self.elementwise["mul"](a, b) if not (_is_static(a) and _is_static(b)) else a * b

    def power(self, x, n: int):
        if n < 0:
            return _static_again(self.elementwise["div"](1.0, self.power(x, -n).astype(object)))
        out = None
        while n:
            if n & 1:
                out = x if out is None else self.product(out, x)
            n >>= 1
            x = self.product(x, x) if n else x
        return np.ones(x.shape) if out is None else out

    def _cholesky(self, eqn, xs):
        (A,) = xs
        if _is_static(A):
            return np.linalg.cholesky(A)
        g, n = self.elementwise, A.shape[-1]
        L = np.zeros(A.shape, object)
        L[...] = 0.0
        for j in range(n):
            rest = A[..., j:, j]
            for k in range(j):
                rest = g["sub"](rest, g["mul"](L[..., j:, k], L[..., j : j + 1, k]))
            root = g["sqrt"](rest[..., :1].astype(object))
            L[..., j, j] = root[..., 0]
            L[..., j + 1 :, j] = g["mul"](rest[..., 1:], g["div"](1.0, root))
        return L

    def _triangular_solve(self, eqn, xs):
        p = eqn.params
        a, b = _common(xs)
        if _is_static(a):
            return self.by_jax(eqn, xs)
        if p["transpose_a"]:
            a = a.swapaxes(-1, -2)
        if not p["left_side"]:
            a, b = a.swapaxes(-1, -2), b.swapaxes(-1, -2)
        lower = p["lower"] ^ p["transpose_a"] ^ (not p["left_side"])
        g, n = self.elementwise, a.shape[-1]
        x = b.copy()
        for i in range(n) if lower else reversed(range(n)):
            row = x[..., i, :]
            for k in range(i) if lower else range(i + 1, n):
                row = g["sub"](row, g["mul"](a[..., i : i + 1, k], x[..., k, :]))
            x[..., i, :] = row if p["unit_diagonal"] else g["mul"](row, g["div"](1.0, a[..., i : i + 1, i]))
        return x if p["left_side"] else x.swapaxes(-1, -2)


STATIC: dict[str, Callable] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "sin": np.sin,
    "cos": np.cos,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "add_any": np.add,
    "and": np.logical_and,
    "or": np.logical_or,
    "not": np.logical_not,
}
"""The operations on arrays of numbers for which NumPy stands in for JAX."""

STATIC_INTEGERS = {"add", "sub", "mul", "max", "min", "neg", "abs"}
"""Those of them that also take integers."""

TWO_OPERANDS = {"lt", "le", "gt", "ge", "eq", "ne", "max", "min", "atan2", "pow"}


def _constant(x) -> np.ndarray:
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _parts(closed) -> tuple[Any, Any]:
    return closed.jaxpr, closed.consts


def _window(x, starts, sizes) -> tuple[slice, ...]:
    if not all(map(_is_static, starts)):
        raise Unsupported("an index that depends on data")
    first = [int(np.clip(int(i), 0, d - n)) for i, d, n in zip(starts, x.shape, sizes, strict=True)]
    return tuple(slice(i, i + n) for i, n in zip(first, sizes, strict=True))


def _summed(parts: list, add: Callable):
    return functools.reduce(add, parts)


def _places(shape, index, offset_axes, collapsed, mapped, batching, index_batching, sizes, *, clip: bool) -> np.ndarray:
    """Return for each element of a gather's result, or of a scatter's update, its place in the flat operand, or -1
    outside of it. The arguments are those of XLA's operation."""
    starts = np.moveaxis(index, -1, 0)
    rank = len(offset_axes) + starts.ndim - 1
    batch_axes = [i for i in range(rank) if i not in offset_axes]
    kept = [i for i in range(len(shape)) if i not in (*collapsed, *batching)]
    length = dict(zip(offset_axes, (sizes[i] for i in kept), strict=True))
    length |= dict(zip(batch_axes, starts.shape[1:], strict=True))
    out_shape = [length[i] for i in range(rank)]

    def along(values, axes):
        """Return an array whose axes are the given ones of the result."""
        expanded = [1] * rank
        for axis, n in zip(axes, np.shape(values), strict=True):
            expanded[axis] = n
        return np.reshape(values, expanded)

    place, inside = np.zeros(out_shape, int), np.ones(out_shape, bool)
    stride = 1
    for axis in reversed(range(len(shape))):
        at = np.zeros([1] * rank, int)
        if axis in mapped:
            start = starts[mapped.index(axis)]
            if clip:
                start = np.clip(start, 0, shape[axis] - sizes[axis])
            inside = inside & along((start >= 0) & (start <= shape[axis] - sizes[axis]), batch_axes)
            at = at + along(start, batch_axes)
        if axis in batching:
            where = index_batching[batching.index(axis)]
            at = at + along(np.arange(shape[axis]), [batch_axes[where]])
        if axis in kept:
            at = at + along(np.arange(sizes[axis]), [offset_axes[kept.index(axis)]])
        place, stride = place + at * stride, stride * shape[axis]
    return np.where(inside, place, -1)
