"""Programs of operations on arrays: jaxprs in which calls are replaced by what they call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend import core


@dataclasses.dataclass(frozen=True, eq=False)
class Variable:
    """An array that a program reads or computes."""

    shape: tuple[int, ...]
    dtype: Any

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """An array that is known when the program is made."""

    value: Any
    dtype: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.value)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


type Atom = Variable | Constant


class Operation(NamedTuple):
    """An equation of a jaxpr."""

    primitive: core.Primitive
    params: Mapping[str, Any]
    inputs: Sequence[Atom]
    outputs: Sequence[Variable]

    @property
    def name(self) -> str:
        return self.primitive.name


@dataclasses.dataclass(frozen=True, eq=False)
class ArrayProgram:
    """Operations in order, with the arrays that they need and those that are asked for."""

    inputs: Sequence[Variable]
    operations: Sequence[Operation]
    outputs: Sequence[Atom]


CALLS = {
    "jit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "custom_vmap_call": "call",
    "checkpoint": "jaxpr",
}
"""The primitives that call a jaxpr, and the parameter that has it."""


def array_program(jaxpr: Any, *, constants_given: bool = False) -> ArrayProgram:
    """Return the program of a jaxpr, whose constants may be its first operands. Rules for derivatives and batches of
    functions in it are lost."""
    jaxpr, consts = _parts(jaxpr)
    inputs, operations = [_variable(v) for v in jaxpr.invars], []
    if constants_given:
        consts = [_variable(v) for v in jaxpr.constvars]
        return ArrayProgram([*consts, *inputs], operations, _inlined(jaxpr, consts, inputs, operations))
    return ArrayProgram(inputs, operations, _inlined(jaxpr, _constants(jaxpr, consts), inputs, operations))


def jaxprs_of(operation: Operation) -> list[Any]:
    """Return the jaxprs among the parameters of an operation."""
    values = (x for p in operation.params.values() for x in (p if isinstance(p, tuple | list) else (p,)))
    return [x for x in values if hasattr(x, "eqns")]


def _constants(jaxpr: Any, consts: Sequence) -> list[Atom]:
    return [Constant(c, v.aval.dtype) for v, c in zip(jaxpr.constvars, consts, strict=True)]


def _inlined(jaxpr: Any, consts: Sequence[Atom], inputs: Sequence[Atom], operations: list[Operation]) -> list[Atom]:
    """Append the operations of a jaxpr, and return its results."""
    atoms: dict[Any, Atom] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

    def atom(v: Any) -> Atom:
        return atoms[v] if not isinstance(v, core.Literal) else Constant(v.val, v.aval.dtype)  # pyright: ignore

    for eqn in jaxpr.eqns:
        of_eqn = [atom(v) for v in eqn.invars]
        name = eqn.primitive.name
        if name in CALLS:
            inner, known = _parts(eqn.params[CALLS[name]])
            outputs = _inlined(inner, _constants(inner, known), of_eqn, operations)
        else:
            outputs = [_variable(v) for v in eqn.outvars]
            operations.append(Operation(eqn.primitive, eqn.params, of_eqn, outputs))
        atoms |= dict(zip(eqn.outvars, outputs, strict=True))
    return [atom(v) for v in jaxpr.outvars]


def _parts(jaxpr: Any) -> tuple[Any, Sequence]:
    """A jaxpr with and without constants of its own."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def _variable(v: Any) -> Variable:
    return Variable(getattr(v.aval, "shape", ()), getattr(v.aval, "dtype", None))
