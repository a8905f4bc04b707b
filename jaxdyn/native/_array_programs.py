"""Functions of arrays whose operations run as native loops on a CPU.

XLA takes about as long for each loop that it compiles, however short it is, and a solver's algebra has hundreds of
them. Here, operations that follow each other become one native program, also across calls of functions. Loops and
branches that call what has no such program, such as a robot's dynamics, remain XLA's, with programs inside.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend import core
from jax.interpreters import batching, mlir

from jaxdyn.native._batching import is_for_this_process
from jaxdyn.native._jaxprs import (
    ArrayConstant,
    Atom,
    FlatJaxpr,
    Operation,
    Variable,
    flat_jaxpr,
    flattened,
    scan_counts,
    tracing,
)
from jaxdyn.native._target import enabled
from jaxdyn.native.arrays import CHEAP, FREE, array_target, has_rule


def with_array_programs(function: Callable) -> Callable:
    """The function of pytrees of arrays, with its operations in native programs where it is traced for a CPU.

    Derivatives and `jax.vmap` of it are not defined: give it to what defines them."""

    @functools.wraps(function)
    def called(*args):
        if not enabled() or not tracing():
            return function(*args)
        leaves, structure = jax.tree.flatten(args)
        flat, structures = flattened(function, structure)
        closed = jax.make_jaxpr(flat)(*leaves)
        return jax.tree.unflatten(structures[-1], _evaluate(closed, leaves))

    return called


def _evaluate(closed: Any, args: Sequence) -> list:
    """Evaluate a jaxpr with its operations in programs."""
    program = flat_jaxpr(closed, constants_given=True)
    values: dict[Atom, Any] = dict(zip(program.inputs, [*closed.consts, *args], strict=True))

    def value(atom: Atom):
        if isinstance(atom, ArrayConstant):
            return jnp.asarray(atom.value, atom.dtype)
        if atom not in values:
            # What XLA does without copying is done outside of programs.
            (operation,) = (o for o in program.operations if atom in o.outputs)
            values.update(zip(operation.outputs, _bound(operation, map(value, operation.inputs)), strict=True))
        return values[atom]

    for step in _steps(program):
        if isinstance(step, Operation):
            values.update(zip(step.outputs, _with_programs(step, [*map(value, step.inputs)]), strict=True))
        else:
            values.update(zip(step.outputs, _program_p.bind(*map(value, step.inputs), program=step), strict=True))
    return [value(atom) for atom in program.outputs]


def _bound(operation: Operation, args: Iterable) -> Sequence:
    """The results of one operation."""
    out = operation.primitive.bind(*args, **operation.params)
    return out if operation.primitive.multiple_results else [out]


def _steps(program: FlatJaxpr) -> list[Operation | FlatJaxpr]:
    """The steps of a program: operations without a rule, and programs of the others between them."""
    available = set(program.inputs)
    groups: list[list[Operation] | Operation] = []
    waiting = _live(program)
    ruled = {id(o): has_rule(o) for o in waiting}

    def ready(operation: Operation) -> bool:
        return all(isinstance(a, ArrayConstant) or a in available for a in operation.inputs)

    while waiting:
        group, later = [], []
        for operation in waiting:
            if ruled[id(operation)] and ready(operation):
                group.append(operation)
                available.update(operation.outputs)
            else:
                later.append(operation)
        groups += [group] if group else []
        calls, waiting, in_order = [], [], True
        for operation in later:
            has_effects = operation.has_effects
            if not ruled[id(operation)] and ready(operation) and (in_order or not has_effects):
                calls.append(operation)
            else:
                waiting.append(operation)
                in_order = in_order and not has_effects
        for operation in calls:
            available.update(operation.outputs)
        groups += calls
    return _programs(program, groups)


def _live(program: FlatJaxpr) -> list[Operation]:
    """The operations that have effects, or that something needs."""
    needed, out = set(program.outputs), []
    for operation in reversed(program.operations):
        if operation.has_effects or any(v in needed for v in operation.outputs):
            needed.update(operation.inputs)
            out.append(operation)
    return out[::-1]


def _programs(program: FlatJaxpr, groups: Sequence[list[Operation] | Operation]) -> list[Operation | FlatJaxpr]:
    """The programs of groups of operations. Cheap operations are repeated in each program that needs them, and free
    ones are done outside of programs."""
    inside = {v: o for g in groups if isinstance(g, list) for o in g for v in o.outputs}

    def outside(atoms: Iterable[Atom]) -> set[Variable]:
        """The variables that are needed outside of programs."""
        found = set()
        for a in atoms:
            while isinstance(a, Variable) and a in inside and inside[a].name in FREE:
                a = inside[a].inputs[inside[a].outputs.index(a)]
            if isinstance(a, Variable):
                found.add(a)
        return found

    needed = outside(program.outputs)
    for group in groups:
        if isinstance(group, Operation):
            needed |= outside(group.inputs)
    # The operations of each group, from the last one back, with cheap ones of earlier groups.
    steps: list[Operation | FlatJaxpr] = []
    for k in reversed(range(len(groups))):
        group = groups[k]
        if isinstance(group, Operation):
            steps.append(group)
            continue
        own = {v for o in group for v in o.outputs}
        outputs = [v for o in group for v in o.outputs if v in needed]
        if not outputs:
            continue
        chosen, inputs = _traced_back(outputs, own, inside)
        needed |= set(inputs)
        ordered = [o for o in program.operations if id(o) in chosen]
        steps.append(FlatJaxpr(list(inputs), ordered, outputs))
    return steps[::-1]


def _traced_back(
    outputs: Sequence[Variable], own: set[Variable], made_by: Mapping[Variable, Operation]
) -> tuple[set[int], dict[Variable, None]]:
    """The `id`s of the operations that make the outputs, those of a group's own variables and cheap ones, and the
    variables that they need and that none of them makes, in the order in which these are found."""
    chosen: set[int] = set()
    stack, inputs = list(outputs), {}
    while stack:
        v = stack.pop()
        operation = made_by.get(v)
        if operation is None or not (v in own or operation.name in CHEAP):
            inputs[v] = None
        elif id(operation) not in chosen:
            chosen.add(id(operation))
            stack += [a for a in operation.inputs if isinstance(a, Variable)]
    return chosen, inputs


def _with_programs(operation: Operation, args: list) -> Sequence:
    """The results of an operation of XLA's, with programs in its loops and branches."""
    params = dict(operation.params)
    match operation.name:
        case "while":
            params |= {name: _traced(params[name]) for name in ("cond_jaxpr", "body_jaxpr")}
        case "cond":
            params["branches"] = tuple(_traced(branch) for branch in params["branches"])
        case "scan":
            return _scan(operation, args)
    return _bound(operation._replace(params=params), args)


def _traced(closed: Any) -> Any:
    """The jaxpr with its operations in programs."""
    return jax.make_jaxpr(lambda *args: _evaluate(closed, args))(*_shapes(closed.jaxpr.invars))


def _shapes(variables: Iterable) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type) for v in variables]


def _scan(operation: Operation, args: list) -> list:
    """The results of a scan, whose programs take the rows of each round from the arrays that it scans over."""
    params, body = operation.params, operation.params["jaxpr"]
    fixed, carried = scan_counts(operation)
    first, start, arrays = args[:fixed], args[fixed : fixed + carried], args[fixed + carried :]

    def step(carry, _):
        def once(first, i, carried_in, arrays):
            at = params["length"] - 1 - i if params["reverse"] else i
            rows = [lax.dynamic_index_in_dim(x, at, keepdims=False) for x in arrays]
            out = core.jaxpr_as_fun(body)(*first, *carried_in, *rows)  # pyright: ignore[reportPrivateImportUsage]
            return [i + 1, *out[:carried]], out[carried:]

        return with_array_programs(once)(first, carry[0], carry[1:], arrays)

    start = [jnp.zeros((), jnp.int32), *start]
    reverse, unroll = params["reverse"], params["unroll"]
    (_, *end), stacks = lax.scan(step, start, None, params["length"], reverse=reverse, unroll=unroll)
    return [*end, *stacks]


_program_p = core.Primitive("jaxdyn_array_program")
_program_p.multiple_results = True


@_program_p.def_abstract_eval
def _results(*_, program: FlatJaxpr):
    return [ShapedArray(v.shape, v.dtype) for v in program.outputs]


def _by_xla(*args, program: FlatJaxpr) -> list:
    """The results of a program, operation by operation."""
    values: dict[Atom, Any] = dict(zip(program.inputs, args, strict=True))

    def value(atom: Atom):
        return jnp.asarray(atom.value, atom.dtype) if isinstance(atom, ArrayConstant) else values[atom]

    for operation in program.operations:
        values.update(zip(operation.outputs, _bound(operation, map(value, operation.inputs)), strict=True))
    return [value(atom) for atom in program.outputs]


def _lowered_on_cpu(context, *operands, program: FlatJaxpr):
    target = array_target(program) if is_for_this_process(context) else None
    if target is None:
        return mlir.lower_fun(functools.partial(_by_xla, program=program), multiple_results=True)(context, *operands)
    types = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in program.outputs]
    return mlir.lower_fun(lambda *args: target(types, *args), multiple_results=True)(context, *operands)


mlir.register_lowering(_program_p, mlir.lower_fun(_by_xla, multiple_results=True))
mlir.register_lowering(_program_p, _lowered_on_cpu, platform="cpu")


AT_ONCE, PART = 16, 8
"""Where there are no native programs, `of_wanted` computes so many numbers at a time, or an eighth of all where that is
more: all of a group take as many steps as the one that takes most."""


def only_where(condition: Any, function: Callable[[], Any], fill: float = 0) -> Any:
    """Return the result of a function where it is needed, and else arrays of one number. It is traced once."""
    closed, shapes = jax.make_jaxpr(function, return_shape=True)()

    def result():
        return jax.tree.unflatten(jax.tree.structure(shapes), core.jaxpr_as_fun(closed)())  # pyright: ignore

    return lax.cond(condition, result, lambda: jax.tree.map(lambda x: jnp.full(x.shape, fill, x.dtype), shapes))


def of_wanted(function: Callable, wanted: Any) -> Any:
    """Return the results of a function of the numbers below `len(wanted)`, one after the other along a first axis, and
    zeros where it is not wanted.

    On a CPU it is one native program, which takes one number after the other, if all operations have rules; elsewhere
    numbers go in groups. The results have no derivatives: what the function closes over must not have any."""
    number = jax.ShapeDtypeStruct((), jnp.int32)
    closed, shapes = jax.make_jaxpr(function, return_shape=True)(number)
    out = _of_wanted_p.bind(wanted, *closed.consts, jaxpr=closed.jaxpr)
    return jax.tree.unflatten(jax.tree.structure(shapes), out)


_of_wanted_p = core.Primitive("jaxdyn_of_wanted")
_of_wanted_p.multiple_results = True


@_of_wanted_p.def_abstract_eval
def _of_wanted_results(wanted, *_, jaxpr):
    return [ShapedArray((wanted.shape[0], *v.aval.shape), v.aval.dtype) for v in jaxpr.outvars]


def _at(jaxpr, consts, number) -> list:
    return core.jaxpr_as_fun(core.ClosedJaxpr(jaxpr, consts))(number)  # pyright: ignore[reportPrivateImportUsage]


def _one_by_one(wanted, *consts, jaxpr) -> list:
    def one(_, row):
        number, wants = row
        zeros = [jnp.zeros(v.aval.shape, v.aval.dtype) for v in jaxpr.outvars]
        return None, lax.cond(wants, lambda: _at(jaxpr, consts, number), lambda: zeros)

    return lax.scan(one, None, (jnp.arange(len(wanted), dtype=jnp.int32), wanted))[1]


def _in_groups(wanted, *consts, jaxpr) -> list:
    """The results of those that are wanted first and in groups."""
    count = len(wanted)
    size = min(max(AT_ONCE, count // PART), count)
    order = jnp.argsort(~wanted, stable=True).astype(jnp.int32)
    order = jnp.concatenate([order, jnp.full(size, count, jnp.int32)])
    zeros = [jnp.zeros((count, *v.aval.shape), v.aval.dtype) for v in jaxpr.outvars]
    total = jnp.sum(wanted)

    def step(carried):
        start, found = carried
        numbers = lax.dynamic_slice_in_dim(order, start, size)
        new = jax.vmap(lambda number: _at(jaxpr, consts, number))(numbers)
        # Those behind the last one that is wanted are dropped.
        place = jnp.where(start + jnp.arange(size) < total, numbers, count)
        return start + size, [x.at[place].set(y, mode="drop") for x, y in zip(found, new, strict=True)]

    return lax.while_loop(lambda carried: carried[0] < total, step, (jnp.zeros((), total.dtype), zeros))[1]


@_of_wanted_p.def_impl
def _of_wanted_now(*operands, jaxpr):
    return jax.jit(functools.partial(_of_wanted_p.bind, jaxpr=jaxpr))(*operands)


def _of_wanted_in_batches(operands, dims, *, jaxpr):
    out = jax.vmap(functools.partial(_in_groups, jaxpr=jaxpr), in_axes=dims)(*operands)
    return out, [0] * len(out)


def _of_wanted_on_cpu(context, *operands, jaxpr):
    natively = enabled() and is_for_this_process(context)
    function = functools.partial(_one_by_one if natively else _in_groups, jaxpr=jaxpr)
    rule = with_array_programs(function) if natively else function
    return mlir.lower_fun(rule, multiple_results=True)(context, *operands)


batching.primitive_batchers[_of_wanted_p] = _of_wanted_in_batches
mlir.register_lowering(_of_wanted_p, mlir.lower_fun(_in_groups, multiple_results=True))
mlir.register_lowering(_of_wanted_p, _of_wanted_on_cpu, platform="cpu")
