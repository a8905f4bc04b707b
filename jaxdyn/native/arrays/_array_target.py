"""The LLVM modules of array programs, and their registration with XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxdyn.native._emit import Backend
from jaxdyn.native._interface import interface
from jaxdyn.native._jaxprs import FlatJaxpr
from jaxdyn.native._module import module_text
from jaxdyn.native._target import enabled, lock, registered_name, without_garbage_collection
from jaxdyn.native.arrays._array_values import Array, Buffer, Scalar
from jaxdyn.native.arrays._emission import Emission
from jaxdyn.native.arrays._text import ArrayText


class ArrayTarget(NamedTuple):
    """An array program that is registered with XLA."""

    name: str
    memory: int
    """The bytes of memory that it needs."""

    def __call__(self, types: Sequence[jax.ShapeDtypeStruct], *operands) -> Sequence[jax.Array]:
        """Call the program; the results have the given types."""
        memory = jax.ShapeDtypeStruct((self.memory,), np.uint8)
        return jax.ffi.ffi_call(self.name, [*types, memory])(*operands)[:-1]


def array_target(program: FlatJaxpr) -> ArrayTarget | None:
    """Return an array program, registered with XLA, or None where native code is turned off."""
    if not enabled():
        return None
    from jaxdyn.native._compiler import host

    with lock, without_garbage_collection():
        text, memory = _module(program, host().vector_bits)
        return ArrayTarget(registered_name(text, ["handler"]), memory)


def _module(program: FlatJaxpr, vector_bits: int) -> tuple[str, int]:
    """Return the text of a program's module, and the bytes of memory that it needs for intermediate results. Its
    handler leaves these in one more result."""
    widest = max((8 * v.dtype.itemsize for v in (*program.inputs, *program.outputs) if v.dtype.kind == "f"), default=64)
    lanes = vector_bits // widest
    declared: set[str] = set()
    text = ArrayText(lanes, declared)
    n, m = len(program.inputs), len(program.outputs)
    emission = Emission(text, "%memory")
    inputs: list[Array] = []
    for k, v in enumerate(program.inputs):
        address = f"%operand{k}"
        inputs.append(Buffer(address, v.shape, v.dtype) if v.shape else Scalar(text.load(address, 0, v.dtype), v.dtype))
    emission.write(program, inputs, [f"%result{k}" for k in range(m)])
    names = [*(f"%operand{k}" for k in range(n)), *(f"%result{k}" for k in range(m)), "%memory"]
    header = f"define internal void @program({', '.join(f'ptr {x}' for x in names)}) noinline #0 {{"
    function = "\n".join([header, "entry:", *text.lines, "  ret void", "}"])
    data = [*(f"%operand{k}_data" for k in range(n)), *(f"%result{k}_data" for k in range(m + 1))]
    handler = interface().plain_handler("program", n, m + 1, data)
    return module_text(declared, [function, handler], Backend(64, vector_bits // 64)), emission.memory.size
