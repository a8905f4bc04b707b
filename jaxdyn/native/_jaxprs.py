"""Jaxprs as native programs read them: calls are replaced by what they call, and nothing is computed twice."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
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
class ArrayConstant:
    """An array that is known when the program is made."""

    value: Any
    dtype: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return np.shape(self.value)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


type Atom = Variable | ArrayConstant


class Operation(NamedTuple):
    """An equation of a jaxpr."""

    primitive: core.Primitive
    params: Mapping[str, Any]
    inputs: Sequence[Atom]
    outputs: Sequence[Variable]
    has_effects: bool

    @property
    def name(self) -> str:
        return self.primitive.name

    @property
    def kinds(self) -> set[str]:
        """The kinds of the types of the operands, as in NumPy."""
        return {np.dtype(a.dtype).kind for a in self.inputs if a.dtype is not None}


@dataclasses.dataclass(frozen=True, eq=False)
class FlatJaxpr:
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
    "remat2": "jaxpr",
}
"""The primitives that call a jaxpr, and the parameter that has it."""


def flat_jaxpr(jaxpr: Any, *, constants_given: bool = False) -> FlatJaxpr:
    """Return the operations of a jaxpr, whose constants may be its first operands. What is computed twice with the same
    operands is computed once. Rules for derivatives and batches of functions in it are lost."""
    jaxpr, consts = _parts(jaxpr)
    inputs, inliner = [_variable(v) for v in jaxpr.invars], _Inliner()
    if constants_given:
        consts = [_variable(v) for v in jaxpr.constvars]
        outputs = inliner.results(jaxpr, consts, inputs)
        return FlatJaxpr([*consts, *inputs], inliner.operations, outputs)
    outputs = inliner.results(jaxpr, _constants(jaxpr, consts), inputs)
    return FlatJaxpr(inputs, inliner.operations, outputs)


def jaxprs_of(operation: Operation) -> list[Any]:
    """Return the jaxprs among the parameters of an operation."""
    values = (x for p in operation.params.values() for x in (p if isinstance(p, tuple | list) else (p,)))
    return [x for x in values if hasattr(x, "eqns")]


def _constants(jaxpr: Any, consts: Sequence) -> list[Atom]:
    return [ArrayConstant(c, v.aval.dtype) for v, c in zip(jaxpr.constvars, consts, strict=True)]


class _Inliner:
    """Collects the operations of jaxprs."""

    def __init__(self):
        self.operations: list[Operation] = []
        self._known: dict[tuple, list[Variable]] = {}

    def results(self, jaxpr: Any, consts: Sequence[Atom], inputs: Sequence[Atom]) -> list[Atom]:
        """Append the operations of a jaxpr, and return its results."""
        atoms: dict[Any, Atom] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *inputs], strict=True))

        def atom(v: Any) -> Atom:
            return atoms[v] if not isinstance(v, core.Literal) else ArrayConstant(v.val, v.aval.dtype)  # pyright: ignore

        for eqn in jaxpr.eqns:
            of_eqn = [atom(v) for v in eqn.invars]
            if eqn.primitive.name in CALLS:
                inner, known = _parts(eqn.params[CALLS[eqn.primitive.name]])
                outputs = self.results(inner, _constants(inner, known), of_eqn)
            elif eqn.primitive.name == "custom_linear_solve":
                lengths, (inner, known) = eqn.params["const_lengths"], _parts(eqn.params["jaxprs"].solve)
                before = lengths.matvec + lengths.vecmat
                own = [*of_eqn[before : before + lengths.solve], *of_eqn[sum(lengths) :]]
                outputs = self.results(inner, _constants(inner, known), own)
            else:
                outputs = self._outputs(eqn, of_eqn)
            atoms |= dict(zip(eqn.outvars, outputs, strict=True))
        return [atom(v) for v in jaxpr.outvars]

    def _outputs(self, eqn: Any, inputs: list[Atom]) -> Sequence[Atom]:
        outputs = [_variable(v) for v in eqn.outvars]
        changes_nothing = eqn.primitive.name in ("convert_element_type", "reshape", "broadcast_in_dim", "copy")
        if changes_nothing and (outputs[0].shape, outputs[0].dtype) == (inputs[0].shape, inputs[0].dtype):
            return inputs[:1]
        key = _key(eqn, inputs)
        if key is not None:
            known = self._known.setdefault(key, outputs)
            if known is not outputs:
                return known
        self.operations.append(Operation(eqn.primitive, eqn.params, inputs, outputs, bool(eqn.effects)))
        return outputs


def _key(eqn: Any, inputs: Sequence[Atom]) -> tuple | None:
    """Return what the results of an operation depend on, or None for calls, loops and effects."""
    if eqn.effects or eqn.primitive.multiple_results:
        return None
    operands = tuple(_value_key(a) if isinstance(a, ArrayConstant) else a for a in inputs)
    key = eqn.primitive, tuple(eqn.params.items()), operands
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _value_key(constant: ArrayConstant) -> Any:
    """Return what constants are compared by: shape and bits of a single number, or which array it is."""
    if constant.size > 1 or isinstance(constant.value, jax.Array):
        return id(constant.value)
    return str(constant.dtype), constant.shape, np.asarray(constant.value, constant.dtype).tobytes()


def _parts(jaxpr: Any) -> tuple[Any, Sequence]:
    """A jaxpr with and without constants of its own."""
    return getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())


def _variable(v: Any) -> Variable:
    return Variable(getattr(v.aval, "shape", ()), getattr(v.aval, "dtype", None))


def tracing() -> bool:
    """Whether operations, also those on constants, are recorded for a program."""
    return isinstance(jnp.zeros(()), Tracer)


def flattened(function: Callable, structure: Any) -> tuple[Callable[..., list], list]:
    """Return the function of the leaves of its arguments, which have this structure as a tuple, that returns the leaves
    of the result; and a list that gets the structure of the result with each call."""
    structures = []

    def flat(*leaves):
        out, of_result = jax.tree.flatten(function(*jax.tree.unflatten(structure, leaves)))
        structures.append(of_result)
        return out

    return flat, structures


def scan_counts(operation: Operation) -> tuple[int, int]:
    """Return how many operands of a scan are the same in each round, and how many it carries."""
    body = operation.params["jaxpr"].jaxpr
    # What a scan carries has the shape of a round's; what it scans over has one axis more.
    pairs = (operation.inputs, body.invars), (operation.outputs, body.outvars)
    mapped, stacked = ([len(a.shape) > len(b.aval.shape) for a, b in zip(*pair, strict=True)] for pair in pairs)
    carried = stacked.index(True) if True in stacked else len(stacked)
    return (mapped.index(True) if True in mapped else len(mapped)) - carried, carried
