"""The LLVM module of an array program."""

from __future__ import annotations

from jaxdyn.native._emit import Kind
from jaxdyn.native._interface import Interface
from jaxdyn.native._module import function_attributes
from jaxdyn.native.arrays._array_values import Array, Buffer, Scalar
from jaxdyn.native.arrays._emission import Emission
from jaxdyn.native.arrays._program import ArrayProgram
from jaxdyn.native.arrays._text import ArrayText


def array_module(program: ArrayProgram, vector_bits: int, interface: Interface) -> tuple[str, int]:
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
    handler = interface.plain_handler("program", n, m + 1, data)
    parts = [*sorted(declared), function, handler, function_attributes(Kind(64, vector_bits // 64))]
    return "\n\n".join(parts) + "\n", emission.memory.size
