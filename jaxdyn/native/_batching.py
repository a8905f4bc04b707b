"""Functions of arrays with leading batch axes as one JAX primitive.

`jax.vmap` of such a call is the same call with one more leading batch axis, so that `vmap` and batch axes run the same
code. On a CPU a large batch is processed in chunks that stay in cache. Derivatives are calls too: the primitive's JVP
rule binds `Jvp` of its function, whose transpose is `Vjp`, and so on to any order. Between the forward and the backward
pass they keep only the arguments.

This needs a primitive, made with JAX's extension interfaces, because no public transformation does all of this:
`jax.custom_vjp` has no forward mode, `jax.custom_jvp` keeps the intermediate results of its rule for the backward pass,
and `jax.custom_batching.custom_vmap` has no reverse mode.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from jaxdyn._waits import takes_part
from jaxdyn.native import _kernel, _target
from jaxdyn.native._batched_functions import (
    Call,
    Jvp,
    Plain,
    Single,
    Vjp,
    batch_axes,
    followed_operands,
    linear_operands,
    plain_of,
    result_batches,
    result_cores,
    summed_to,
)
from jaxdyn.native._interpreter import expand
from jaxdyn.native._repeated_functions import OperandKinds, Repeated, linearized, transposed

# The elements of the batch in one chunk: the arrays of one node then fit the nearest cache of a CPU, and a loop's fixed
# costs are small against its work.
CHUNK = 128
# Long results take fewer elements, so that a sweep over all nodes stays in the next cache (measured, float64: 25 us an
# evaluation against 40 for a chain of 128 joints, 136 against 170 for 512), but not so few that loops are short.
CHUNK_ROWS = 5120
CHUNK_SHORT = 32
# Matrices take fewer still.
CHUNK_NUMBERS = 65536
CHUNK_LEAST = 16


def call(function: Plain, *operands):
    """Return the list of results of `function`."""
    return _call_p.bind(*operands, function=function)


_call_p = core.Primitive("jaxdyn_call")
_call_p.multiple_results = True


@functools.cache
def _compiled(function: Call, natively: bool):
    # `natively` only tells apart what is compiled with native code and without.
    return jax.jit(functools.partial(_call_p.bind, function=function))


@_call_p.def_impl
def _impl(*operands, function: Call):
    if jax.config.jax_disable_jit:
        return function(*operands)
    return _compiled(function, _target.wanted())(*operands)


@_call_p.def_abstract_eval
def _results(*avals, function: Call):
    takes_part()
    batches = [batch_axes(a.shape, c) for a, c in zip(avals, function.cores, strict=True)]
    cores = result_cores(function, avals)
    dtype = jnp.result_type(*(a.dtype for a in avals))
    own = result_batches(function, batches)
    return [ShapedArray((*batch, *last), dtype) for batch, last in zip(own, cores, strict=True)]


def _jvp(primals, tangents, *, function: Call):
    out = _call_p.bind(*primals, function=function)
    perturbed = tuple(i for i, t in enumerate(tangents) if type(t) is not ad.Zero)
    if set(perturbed) <= set(function.linear):
        pairs = enumerate(zip(primals, tangents, strict=True))
        changed = [ad.instantiate_zeros(t) if i in function.linear else x for i, (x, t) in pairs]
        return out, _call_p.bind(*changed, function=function)
    if isinstance(function, Repeated) and function.every is None:
        return _jvp_of_loop(primals, tangents, function, perturbed)
    dots = [tangents[i] for i in perturbed]
    return out, _call_p.bind(*primals, *dots, function=Jvp(function, perturbed))


def _jvp_of_loop(primals, tangents, function: Repeated, perturbed: tuple[int, ...]):
    shapes, dtype = _core_shapes(primals, function), jnp.result_type(*primals)
    derivative = linearized(function, perturbed, shapes, dtype)
    *out, residuals = _call_p.bind(*primals, function=derivative.forward)
    dots = [ad.instantiate_zeros(x) if i in derivative.moving else None for i, x in enumerate(tangents)]
    return out, _call_p.bind(*derivative.operands(primals, dots, residuals), function=derivative.linear)


def _core_shapes(operands, function: Call) -> list[tuple[int, ...]]:
    """Return the shapes of operands without batch axes."""
    shapes = [x.aval.shape if ad.is_undefined_primal(x) else x.shape for x in operands]
    return [shape[len(shape) - c :] for shape, c in zip(shapes, function.cores, strict=True)]


def _transpose_of_loop(cotangents, operands, function: Repeated):
    shapes, kinds = _core_shapes(operands, function), OperandKinds.of(function, len(operands))
    cotangents = [ad.instantiate_zeros(c) for c in cotangents]
    ends, more = cotangents[: function.carried], cotangents[function.carried :]
    dtype = cotangents[0].dtype
    sums = [jnp.zeros(shapes[i], dtype) for i in kinds.linear_fixed]
    known = [[operands[i] for i in part] for part in (kinds.fixed, kinds.rows)]
    results = _call_p.bind(*known[0], *ends, *sums, *known[1], *more, function=transposed(function, shapes, dtype))
    out: list[Any] = [None] * len(operands)
    for i, result in zip(kinds.linear, results, strict=True):
        if ad.is_undefined_primal(operands[i]):
            out[i] = summed_to(result, operands[i].aval.shape)
    return out


def _transpose(cotangents, *operands, function: Jvp | Vjp | Repeated):
    if isinstance(function, Repeated):
        return _transpose_of_loop(cotangents, operands, function)
    # By the rule above, linear operands that are not to be transposed are zeros.
    n = len(function.of.cores)
    known, linear = list(operands[:n]), operands[n:]
    out: list[Any] = [None] * len(operands)
    if isinstance(function, Jvp):
        asked = [k for k, x in enumerate(linear) if ad.is_undefined_primal(x)]
        wrt = tuple(function.perturbed[k] for k in asked)
        for k, i in zip(asked, wrt, strict=True):
            # A cotangent has the shape of its operand: without this, it would be summed over a map of the tangent.
            known[i] = jnp.broadcast_to(known[i], jnp.broadcast_shapes(known[i].shape, linear[k].aval.shape))
        results = _call_p.bind(*known, *map(ad.instantiate_zeros, cotangents), function=Vjp(function.of, wrt))
        for k, result in zip(asked, results, strict=True):
            out[n + k] = summed_to(result, linear[k].aval.shape)
        return out
    given = [k for k, c in enumerate(cotangents) if type(c) is not ad.Zero]
    wrt = tuple(function.wrt[k] for k in given)
    results = _call_p.bind(*known, *(cotangents[k] for k in given), function=Jvp(function.of, wrt))
    for k, (result, x) in enumerate(zip(results, linear, strict=True)):
        if ad.is_undefined_primal(x):
            out[n + k] = summed_to(result, x.aval.shape)
    return out


def _batching(operands, dims, *, function: Call):
    mapped = [d is not None for d in dims]
    size = next(x.shape[d] for x, d in zip(operands, dims, strict=True) if d is not None)
    if isinstance(function, Jvp | Vjp) and not any(m for i, m in enumerate(mapped) if i not in function.linear):
        many = _by_jacobian(operands, dims, function, size)
        if many is not None:
            return many
    rank = max(x.ndim - c - m for x, c, m in zip(operands, function.cores, mapped, strict=True))
    followed = followed_operands(function)
    moved = []
    for i, (x, d, c) in enumerate(zip(operands, dims, function.cores, strict=True)):
        if d is None and i not in followed:
            moved.append(x)
            continue
        x = jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        moved.append(x.reshape((size,) + (1,) * (rank - (x.ndim - 1 - c)) + x.shape[1:]))
    one = [
        x if d is None else jax.ShapeDtypeStruct(x.shape[:d] + x.shape[d + 1 :], x.dtype)
        for x, d in zip(operands, dims, strict=True)
    ]
    out = _call_p.bind(*moved, function=function)
    shapes = [(size, *aval.shape) for aval in _results(*one, function=function)]
    return [x.reshape(shape) for x, shape in zip(out, shapes, strict=True)], [0] * len(out)


def _by_jacobian(operands, dims, function, size: int):
    """Return derivatives in many directions at one point, or None if the function has no formula for its Jacobian."""
    of = function.of
    own = of.derivatives if isinstance(of, Plain) else None
    wrt = function.perturbed if isinstance(function, Jvp) else function.wrt
    if own is None or not set(wrt) <= set(own.operands):
        return None
    n = len(of.cores)
    primals, linear = operands[:n], operands[n:]
    matrices = dict(zip(own.operands, call(own.jacobian, *primals), strict=True))
    rank = max(x.ndim - 2 for x in matrices.values())

    def directions(x, d):
        # The batch axes of the call come next; an operand may have fewer.
        x = jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
        return x.reshape((size,) + (1,) * (rank + 2 - x.ndim) + x.shape[1:])

    linear = [directions(x, d) for x, d in zip(linear, dims[n:], strict=True)]
    if isinstance(function, Jvp):
        return [sum(_product("...ij,...j->...i", matrices[i], x) for i, x in zip(wrt, linear, strict=True))], [0]
    out = []
    for i in wrt:
        x = _product("...ij,...i->...j", matrices[i], linear[0])
        # An operand with fewer batch axes than the call has the sum over them.
        out.append(jax.vmap(functools.partial(summed_to, shape=primals[i].shape))(x))
    return out, [0] * len(out)


def _product(subscripts: str, a, b):
    return jnp.einsum(subscripts, a, b, precision=lax.Precision.HIGHEST)


def _chunked(*operands, function: Call, devices: int):
    """Call `function` on one piece of the batch after another; on several devices, on a piece of each device's part."""
    shapes = [batch_axes(x.shape, c) for x, c in zip(operands, function.cores, strict=True)]
    batch = jnp.broadcast_shapes(*shapes)
    size = math.prod(batch)
    limit = _chunk(plain_of(function)) * devices
    # The size that `jax.export` has as a symbol is known when the program is called.
    if not isinstance(size, int) or size <= limit:
        return function(*operands)
    pieces = -(-size // limit)
    length = -(-size // pieces)
    if length * pieces != size or length % devices:
        # The length is a multiple of a vector register's; the last chunk is filled up.
        length = -(-length // (8 * devices)) * 8 * devices
    fill = length * pieces - size
    fixed, mapped = {}, {}
    for i, (x, shape) in enumerate(zip(operands, shapes, strict=True)):
        core_shape = x.shape[len(shape) :]
        if math.prod(shape) == 1:
            fixed[i] = x.reshape(core_shape)
            continue
        x = jnp.broadcast_to(x, (*batch, *core_shape)).reshape((size, *core_shape))
        if fill:
            # Linear operands are filled with zeros, which add nothing to a sum over the batch.
            rest = [(0, fill)] + [(0, 0)] * len(core_shape)
            x = jnp.pad(x, rest) if i in linear_operands(function) else jnp.pad(x, rest, mode="edge")
        mapped[i] = _pieces(x, pieces, length, devices)
    of_chunk = result_batches(function, [() if i in fixed else (length,) for i in range(len(operands))])
    results = _results(*operands, function=function)
    summed = [k for k, shape in enumerate(of_chunk) if not shape]

    def one(total, chunk):
        out = function(*(chunk[i] if i in chunk else fixed[i] for i in range(len(operands))))
        return [t + out[k] for t, k in zip(total, summed, strict=True)], [x for k, x in enumerate(out) if of_chunk[k]]

    # A result with the batch axes of an operand that has none is a sum over the batch.
    zeros = [jnp.zeros(fixed[function.like[k]].shape, results[k].dtype) for k in summed]
    total, stacked = lax.scan(one, zeros, mapped)
    total, stacked, out = iter(total), iter(stacked), []
    for shape, result in zip(of_chunk, results, strict=True):
        if not shape:
            out.append(next(total).reshape(result.shape))
            continue
        x = next(stacked)
        x = _joined(x, devices)[:size]
        # The result of an operand that was broadcast to the batch is the sum over its copies.
        out.append(summed_to(x.reshape((*batch, *x.shape[1:])), result.shape))
    return out


def _pieces(x, pieces: int, length: int, devices: int):
    """Return `[pieces, length, ...]`, in which each piece has an equal share of every device's part of `x`. Pieces in
    the order of `x` would each lie on a few devices and be sent to all others."""
    parts = x.reshape((devices, pieces, length // devices, *x.shape[1:]))
    return jnp.moveaxis(parts, 0, 1).reshape((pieces, length, *x.shape[1:]))


def _joined(x, devices: int):
    """The inverse of `_pieces`."""
    pieces, length, *rest = x.shape
    parts = x.reshape((pieces, devices, length // devices, *rest))
    return jnp.moveaxis(parts, 1, 0).reshape((pieces * length, *rest))


def _chunk(function: Plain) -> int:
    """The largest number of elements in a chunk."""
    if isinstance(function, Single) and function.one_by_one:
        return 1
    results = function.results
    longest = max((n for shape in results for n in shape), default=1)
    of_rows = max(CHUNK_SHORT, min(CHUNK, CHUNK_ROWS // max(longest, 1)))
    return max(CHUNK_LEAST, min(of_rows, CHUNK_NUMBERS // max(1, sum(map(math.prod, results)))))


ad.primitive_jvps[_call_p] = _jvp
ad.primitive_transposes[_call_p] = _transpose
batching.primitive_batchers[_call_p] = _batching
mlir.register_lowering(_call_p, mlir.lower_fun(lambda *x, function: function(*x), multiple_results=True))


def _natively(*operands, function: Call, program: _target.Target | _kernel.Kernel):
    """Call a native program of `function`, which takes operands with one batch axis of length 1 or of the batch."""
    shapes = [batch_axes(x.shape, c) for x, c in zip(operands, function.cores, strict=True)]
    batch = jnp.broadcast_shapes(*shapes)
    flat = []
    for x, shape, uniform in zip(operands, shapes, program.uniform, strict=True):
        core_shape = x.shape[len(shape) :]
        if uniform:
            flat.append(x.reshape(core_shape))
            continue
        if math.prod(shape) != 1:
            x = jnp.broadcast_to(x, (*batch, *core_shape))
        flat.append(x.reshape((math.prod(x.shape[: x.ndim - len(core_shape)]), *core_shape)))
    results = _results(*operands, function=function)
    cores = result_cores(function, operands)
    size = math.prod(batch)
    types = [jax.ShapeDtypeStruct((size, *last), r.dtype) for last, r in zip(cores, results, strict=True)]
    out = program(types, *flat)
    # The result of an operand that was broadcast to the batch is the sum over its copies; the program may have it.
    return [
        x.reshape(r.shape) if x.size == r.size else summed_to(x.reshape((*batch, *core_shape)), r.shape)
        for x, core_shape, r in zip(out, cores, results, strict=True)
    ]


def _device_count(context) -> int:
    """Return the number of devices that the program being lowered runs on: inside shard_map it is one."""
    over = context.module_context.axis_context
    return (over.num_devices if isinstance(over, mlir.ShardingContext) else 1) or 1


def is_for_this_process(context) -> bool:
    """Return whether what is lowered runs on one device of this process, in which native programs are registered."""
    return not context.module_context.lowering_parameters.for_export and _device_count(context) == 1


def _native_program[T](context, function: Call, find: Callable[..., T | None]) -> T | None:
    """Return what `find`, `target` or `kernel`, has for a call, or None where XLA compiles it."""
    takes_part()
    if not is_for_this_process(context):
        return None
    operands = context.avals_in
    cores = [x.shape[x.ndim - c :] for x, c in zip(operands, function.cores, strict=True)]
    shared = plain_of(function).shared
    uniform = tuple(
        k < shared and math.prod(batch_axes(x.shape, c)) == 1
        for k, (x, c) in enumerate(zip(operands, function.cores, strict=True))
    )
    (dtype,) = {x.dtype for x in operands}
    batch = jnp.broadcast_shapes(*(batch_axes(x.shape, c) for x, c in zip(operands, function.cores, strict=True)))
    return find(function, tuple(cores), uniform, dtype, math.prod(batch))


def _lowered_on_cpu(context, *operands, function: Call):
    program = _native_program(context, function, _target.target)
    if program is None and isinstance(function, Repeated):
        # Each call takes the batch in chunks of its own.
        rule = function
    elif program is None:
        rule = functools.partial(_chunked, function=function, devices=_device_count(context))
    else:
        rule = functools.partial(_natively, function=function, program=program)
    return mlir.lower_fun(rule, multiple_results=True)(context, *operands)


def _lowered_on_gpu(context, *operands, function: Call):
    program = _native_program(context, function, _kernel.kernel)
    rule = function if program is None else functools.partial(_natively, function=function, program=program)
    return mlir.lower_fun(rule, multiple_results=True)(context, *operands)


mlir.register_lowering(_call_p, _lowered_on_cpu, platform="cpu")
mlir.register_lowering(_call_p, _lowered_on_gpu, platform="cuda")
expand(_call_p, lambda *operands, function: function(*operands))
