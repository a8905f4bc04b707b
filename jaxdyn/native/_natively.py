"""Functions of users, such as costs and dynamics, as single calls with native programs.

XLA compiles the operations of such a function and of its derivatives into many loops over a batch, each of which takes
about as long as any other to compile, however short it is. A native program of the whole function compiles in less
time, and runs faster unless the function is short, because intermediate results stay in registers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.extend import core

from jaxdyn.native._batched_functions import Single
from jaxdyn.native._batching import call
from jaxdyn.native._jaxprs import flattened, jaxprs_of, tracing


def natively(function: Callable, *, one_by_one: bool = False) -> Callable:
    """The function of pytrees of arrays, as one call where it is traced. It may close over traced arrays.

    On a CPU, `jax.vmap` of it is a native program for all elements. Where there is none, XLA's program takes many
    elements at once, or `one_by_one`, which compiles in half the time. What depends on integers, such as the row of an
    array that belongs to a stage, is computed outside of the program. A function with effects, or with several
    precisions, is called as it is."""

    @functools.wraps(function)
    def called(*args):
        if not tracing():
            return function(*args)
        leaves, structure = jax.tree.flatten(args)
        flat, structures = flattened(function, structure)
        closed = jax.make_jaxpr(flat)(*(jax.ShapeDtypeStruct(jnp.shape(x), jnp.result_type(x)) for x in leaves))
        out = None if closed.effects else _called(closed, leaves, one_by_one)
        return function(*args) if out is None else jax.tree.unflatten(structures[-1], out)

    return called


def _called(closed: Any, leaves: Sequence, one_by_one: bool) -> list | None:
    """The results of a traced function by a single call, or None where there is no such call."""
    jaxpr = closed.jaxpr
    consts = list(zip(jaxpr.constvars, closed.consts, strict=True))
    constants: dict[Any, Any] = {v: c for v, c in consts if not isinstance(c, Tracer)}
    shared = {v: c for v, c in consts if isinstance(c, Tracer)}
    given = shared | dict(zip(jaxpr.invars, leaves, strict=True))
    results = [v for v in jaxpr.outvars if v.aval.size]
    parts = _split(jaxpr, [v for v in given if not _is_float(v)])
    # A program has numbers of one precision.
    precisions = {v.aval.dtype for v in (*given, *constants, *results) if _is_float(v)} | _precisions(jaxpr)
    keys = any(jnp.issubdtype(v.aval.dtype, jax.dtypes.extended) for v in constants)
    if len(precisions) != 1 or not all(map(_is_float, results)) or keys:
        return None
    (dtype,) = precisions
    if not all(_is_exact(v.aval.dtype, dtype) for v in parts.between):
        return None
    before = _evaluator(jaxpr, parts.before, [*constants, *given], parts.between)
    between = before(*constants.values(), *given.values()) if parts.between else []
    operands = {v: x for v, x in given.items() if _is_float(v)} | dict(zip(parts.between, between, strict=True))
    # Native programs have no empty arrays.
    constants |= {v: np.zeros(v.aval.shape, v.aval.dtype) for v in operands if not v.aval.size}
    operands = {v: jnp.asarray(x, dtype) for v, x in operands.items() if v.aval.size}
    if not operands:
        return None
    rest = _evaluator(jaxpr, parts.rest, [*operands, *constants], results)

    def body(*values):
        typed = (x.astype(v.aval.dtype) for v, x in zip(operands, values, strict=True))
        return rest(*typed, *constants.values())

    cores, shapes = tuple(v.aval.ndim for v in operands), tuple(v.aval.shape for v in results)
    single = Single(body, cores, shapes, shared=sum(v in shared for v in operands), one_by_one=one_by_one)
    out = iter(call(single, *operands.values()))
    return [next(out) if v.aval.size else jnp.zeros(v.aval.shape, v.aval.dtype) for v in jaxpr.outvars]


def _is_float(v) -> bool:
    return jnp.issubdtype(v.aval.dtype, jnp.floating)


def _is_exact(dtype, of_program) -> bool:
    """Whether numbers of a type are among those of a program."""
    if jnp.issubdtype(dtype, jnp.integer):
        return jnp.iinfo(dtype).bits <= jnp.finfo(of_program).nmant
    return dtype in (of_program, jnp.bool_)


def _precisions(jaxpr) -> set:
    """The precisions of all that a jaxpr and those in it compute."""
    found = {v.aval.dtype for eqn in jaxpr.eqns for v in eqn.outvars if _is_float(v)}
    return found.union(*(_precisions(p) for eqn in jaxpr.eqns for p in jaxprs_of(eqn)))


class _Parts(NamedTuple):
    """The equations of a function in two parts."""

    before: list
    """These equations need constants and numbers other than floats only."""
    rest: list
    """These equations also need floats. Equations that need constants only are in both parts."""
    between: list
    """The variables that the second part needs from the first."""


def _split(jaxpr, discrete: Sequence) -> _Parts:
    """The two parts, from the variables that are no floats."""
    known, fixed = dict.fromkeys(discrete), set(jaxpr.constvars) - set(discrete)
    before, rest = [], []
    for eqn in jaxpr.eqns:
        inputs = _variables(eqn.invars)
        is_fixed, is_known = inputs <= fixed, all(v in fixed or v in known for v in inputs)
        if is_known:
            before.append(eqn)
        if is_fixed:
            fixed.update(eqn.outvars)
        elif is_known:
            known.update(dict.fromkeys(eqn.outvars))
        if is_fixed or not is_known:
            rest.append(eqn)
    used = _variables(jaxpr.outvars).union(*(_variables(eqn.invars) for eqn in rest))
    return _Parts(before, rest, [v for v in known if v in used])


def _variables(atoms: Sequence) -> set:
    return {v for v in atoms if not isinstance(v, core.Literal)}


def _evaluator(jaxpr, eqns: list, inputs: Sequence, outputs: Sequence) -> Callable[..., list]:
    """The function that evaluates some equations of a jaxpr."""
    part = jaxpr.replace(constvars=[], invars=list(inputs), outvars=list(outputs), eqns=eqns)
    return core.jaxpr_as_fun(core.ClosedJaxpr(part, ()))  # pyright: ignore[reportPrivateImportUsage]
