"""A straight-line program as a kernel for NVIDIA GPUs in PTX, the text that their driver compiles: one thread for each
element of the batch, and one launch for the whole batch.

A kernel reads and writes users' arrays, which have the batch first. Its text depends on the program only: the length of
the batch and the strides of the operands come in an array of their own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

from jaxdyn.native._arrays import UnsupportedError
from jaxdyn.native._emit import LARGEST_ANGLE, PI, Body, Kind
from jaxdyn.native._graph import Node
from jaxdyn.native._order import KernelPart, Rounds, divided, each_part, operands
from jaxdyn.native._specialize import Program
from jaxdyn.native._values import Values

MAX_OPERATIONS = 25_000
"""A program of more operations is not made a kernel. Its values no longer fit a thread's 255 registers by far, and the
driver compiles it at the first call, in a time that grows faster than the program: on an H100 0.3 s for 3,000
operations, 5 to 11 s for 13,000 to 19,000, and 23 to 49 s for 35,000, where it would be 1.6 to 10 times faster than
XLA's code."""

THREADS = 64
"""The threads in a block. On an H100, blocks of 32, 64, 128 and 256 threads took the same time within the scatter for
batches of 4096 to 262144 elements of Panda, Solo12 and Talos."""

# Drivers compile this version for this and all later devices, so for all that JAX supports.
_HEAD = """.version 6.0
.target sm_50
.address_size 64
"""

_REGISTERS = {"f": "f32", "p": "pred", "r": "b32", "d": "b64", "g": "f64"}
"""The types of registers by the letters that their names begin with."""

_RELATIONS = {"olt": "lt", "ole": "le", "ogt": "gt", "oge": "ge", "oeq": "eq", "une": "neu", "uno": "nan"}
_ARITHMETIC = {"fadd": "add", "fsub": "sub", "fmul": "mul"}
_INTEGERS = {"and": "b32", "xor": "b32", "shl": "b32", "add": "s32", "sub": "s32", "lshr": "u32", "ashr": "s32"}
_INTRINSICS = {"fabs": "abs.f32", "sqrt": "sqrt.rn.f32", "floor": "cvt.rmi.f32.f32", "ceil": "cvt.rpi.f32.f32"}

# From Cephes 2.8: atan(x) = x + x^3 P(x^2) up to tan(pi / 8).
_ARC_TANGENT = [8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1]

# The bits of 1 / (2 pi) after the point, with 32 zeros before them.
_TURNS = int(2**224 / (2 * PI))
_TABLE = ", ".join(f"0x{_TURNS >> 32 * (7 - i) & 0xFFFFFFFF:08X}" for i in range(8))
_DECLARED_TURNS = f".const .align 4 .b32 turns[8] = {{{_TABLE}}};"


class ThreadKind(Kind):
    """The type of a thread's values. The lanes are the threads of a warp, which run together."""

    def __init__(self):
        super().__init__(bits=32, lanes=32)

    def constant(self, x: float) -> str:
        return f"0f{struct.unpack('>I', struct.pack('>f', self.rounded(x)))[0]:08X}"

    def integer(self, x: int) -> str:
        return str(x)


class Thread(Body):
    """The text of a thread: its methods append an instruction and return the register of the result."""

    def __init__(self):
        super().__init__(ThreadKind(), set())
        self.counts = dict.fromkeys(_REGISTERS, 0)

    def put(self, letter: str, instruction: str, *args: str) -> str:
        """Append an instruction whose result is in a new register of the type with this letter."""
        self.counts[letter] += 1
        register = f"%{letter}{self.counts[letter]}"
        self.line(f"{instruction} {', '.join([register, *args])};")
        return register

    def intrinsic(self, name: str, *args: str) -> str:
        if name in ("maximum", "minimum"):
            # The instruction's own operand for NaN exists from compute capability 8.0 on.
            extreme = self.put("f", f"{name[:3]}.f32", *args)
            return self.select(self.compare("uno", *args), self.kind.constant(math.nan), extreme)
        if name == "copysign":
            size, sign = args
            return self.put("f", "copysign.f32", sign, size)
        return self.put("f", _INTRINSICS[name], *args)

    def binary(self, op: str, a: str, b: str) -> str:
        if op == "fdiv":
            return self.exact(op, a, b)
        return self.put("f", f"{_ARITHMETIC[op]}.f32", a, b)

    def exact(self, op: str, a: str, b: str) -> str:
        if op == "fdiv":
            if a == self.kind.constant(1.0):
                return self.put("f", "rcp.rn.f32", b)
            return self.put("f", "div.rn.f32", a, b)
        # With the rounding said, the compiler does not contract it.
        return self.put("f", f"{_ARITHMETIC[op]}.rn.f32", a, b)

    def fma(self, a: str, b: str, c: str) -> str:
        return self.put("f", "fma.rn.f32", a, b, c)

    def select(self, condition: str, then: str, otherwise: str) -> str:
        return self.put("f", "selp.f32", then, otherwise, condition)

    def compare(self, relation: str, a: str, b: str) -> str:
        return self.put("p", f"setp.{_RELATIONS[relation]}.f32", a, b)

    def bits(self, x: str) -> str:
        return self.put("r", "mov.b32", x)

    def from_bits(self, x: str) -> str:
        return self.put("f", "mov.b32", x)

    def to_float(self, integer: str) -> str:
        return self.put("f", "cvt.rn.f32.s32", integer)

    def integers(self, op: str, a: str, b: str) -> str:
        return self.put("r", f"{op.removeprefix('l').replace('ashr', 'shr')}.{_INTEGERS[op]}", a, b)

    def nonzero(self, a: str) -> str:
        return self.put("p", "setp.ne.s32", a, "0")

    def negate(self, x: str) -> str:
        return self.put("f", "neg.f32", x)

    def logical(self, op: str, a: str, b: str) -> str:
        return self.put("p", f"{op}.pred", a, b)

    def invert(self, condition: str) -> str:
        return self.put("p", "not.pred", condition)

    def nearest_multiple(self, x: str, unit: Fraction) -> tuple[str, str]:
        rest, number = super().nearest_multiple(x, unit)
        limit = self.kind.constant(LARGEST_ANGLE[self.kind.bits])
        large = self.compare("ogt", self.intrinsic("fabs", x), limit)
        after = self.block()
        self.line(f"@!{large} bra {after};")
        large_rest, large_number = self.nearest_multiple_to_large(x, unit)
        self.line(f"mov.f32 {rest}, {large_rest};")
        self.line(f"mov.b32 {number}, {large_number};")
        self.lines.append(f"{after}:")
        return rest, number

    def nearest_multiple_to_large(self, x: str, unit: Fraction) -> tuple[str, str]:
        """Return the same as `nearest_multiple` for a number above 256 (Payne & Hanek).

        `x = m 2^e` with an integer `m` of 24 bits, and those 96 bits of `1 / (2 pi)` that `2^e` shifts to the point,
        times `m`, are the fraction of a turn.
        """
        self.declared.add(_DECLARED_TURNS)
        bits = self.bits(x)
        exponent = self.integer("and", self.integer("lshr", bits, 23), 255)
        m = self.put("r", "or.b32", self.integer("and", bits, 0x7FFFFF), str(0x800000))
        place = self.integer("sub", exponent, 118)
        start = self.put("d", "mad.wide.u32", self.integer("lshr", place, 5), "4", self.put("d", "mov.u64", "turns"))
        words = [self.put("r", "ld.const.b32", f"[{start}+{4 * i}]") for i in range(4)]
        shift = self.integer("and", place, 31)
        high, middle, low = (self.put("r", "shf.l.wrap.b32", words[i + 1], words[i], shift) for i in range(3))
        turn = self.put("d", "cvt.u64.u32", self.put("r", "mul.lo.u32", m, high))
        turn = self.put("d", "shl.b64", turn, "32")
        turn = self.put("d", "add.s64", turn, self.put("d", "mul.wide.u32", m, middle))
        turn = self.put("d", "add.s64", turn, self.put("d", "cvt.u64.u32", self.put("r", "mul.hi.u32", m, low)))
        # The fraction has 64 bits; the first of them are the number of the nearest multiple.
        below = 64 - round(math.log2(2 * PI / unit))
        number = self.put("d", "add.s64", turn, str(1 << below - 1))
        number = self.put("d", "shr.u64", number, str(below))
        rest = self.put("d", "sub.s64", turn, self.put("d", "shl.b64", number, str(below)))
        rest = self.put("g", "mul.rn.f64", self.put("g", "cvt.rn.f64.s64", rest), _double(float(2 * PI / 2**64)))
        rest = self.put("f", "cvt.rn.f32.f64", rest)
        # NaN where `x` is infinite.
        rest = self.fma(x, self.kind.constant(0.0), rest)
        number = self.put("r", "cvt.u32.u64", number)
        negative = self.put("p", "setp.lt.s32", bits, "0")
        opposite = self.put("r", "neg.s32", number)
        return self.select(negative, self.negate(rest), rest), self.put("r", "selp.b32", opposite, number, negative)

    def library(self, name: str, *args: str) -> str:
        if name not in FUNCTIONS:
            raise UnsupportedError(f"the operation {name} on a GPU")
        return FUNCTIONS[name](self, *args)

    def tangent(self, x: str) -> str:
        return self.exact("fdiv", *self.sine_and_cosine(x))

    def arc_tangent(self, y: str, x: str) -> str:
        """Return the angle of the direction `(x, y)`."""
        constant, zero = self.kind.constant, self.kind.constant(0.0)
        width, height = self.intrinsic("fabs", x), self.intrinsic("fabs", y)
        larger, smaller = self.intrinsic("maximum", width, height), self.intrinsic("minimum", width, height)
        slope = self.exact("fdiv", smaller, larger)
        slope = self.select(self.compare("oeq", smaller, constant(math.inf)), constant(1.0), slope)
        slope = self.select(self.compare("oeq", larger, zero), zero, slope)
        steep = self.compare("ogt", slope, constant(math.tan(math.pi / 8)))
        less = self.exact("fsub", slope, constant(1.0))
        more = self.exact("fadd", slope, constant(1.0))
        slope = self.select(steep, self.exact("fdiv", less, more), slope)
        square = self.exact("fmul", slope, slope)
        angle = self.fma(self.polynomial(square, _ARC_TANGENT), self.exact("fmul", square, slope), slope)
        angle = self.exact("fadd", angle, self.select(steep, constant(math.pi / 4), zero))
        above = self.exact("fsub", constant(math.pi / 2), angle)
        angle = self.select(self.compare("ogt", height, width), above, angle)
        left = self.put("p", "setp.lt.s32", self.bits(x), "0")
        angle = self.select(left, self.exact("fsub", constant(math.pi), angle), angle)
        return self.intrinsic("copysign", angle, y)

    def cofactor(self, x: str) -> str:
        """Return `sqrt(1 - x^2)`, the cosine of an angle with the sine `x`."""
        one = self.kind.constant(1.0)
        return self.intrinsic("sqrt", self.exact("fmul", self.exact("fsub", one, x), self.exact("fadd", one, x)))

    def logarithm(self, x: str) -> str:
        """Return the natural logarithm, also of numbers that have fewer digits because they are so small."""
        constant = self.kind.constant
        tiny = self.compare("olt", x, constant(2.0**-126))
        out = super().logarithm(self.select(tiny, self.exact("fmul", x, constant(2.0**23)), x))
        return self.select(tiny, self.exact("fsub", out, constant(23 * math.log(2))), out)

    def logarithm_of_sum(self, x: str) -> str:
        """Return the natural logarithm of `1 + x`."""
        one = self.kind.constant(1.0)
        total = self.exact("fadd", x, one)
        lost = self.exact("fdiv", self.exact("fsub", x, self.exact("fsub", total, one)), total)
        # There is no rounding error to correct at infinity and at the pole.
        finite = self.compare("olt", self.intrinsic("fabs", lost), one)
        lost = self.select(finite, lost, self.kind.constant(0.0))
        return self.exact("fadd", self.logarithm(total), lost)

    def exponential_less_one(self, x: str) -> str:
        """Return `exp(x) - 1`."""
        series = self.polynomial(x, [1 / math.factorial(n) for n in range(9, 1, -1)])
        small = self.fma(self.exact("fmul", x, x), series, x)
        large = self.exact("fsub", self.exponential(x), self.kind.constant(1.0))
        near = self.compare("olt", self.intrinsic("fabs", x), self.kind.constant(0.5))
        return self.select(near, small, large)


FUNCTIONS: dict[str, Callable[..., str]] = {
    "tan": Thread.tangent,
    "asin": lambda thread, x: thread.arc_tangent(x, thread.cofactor(x)),
    "acos": lambda thread, x: thread.arc_tangent(thread.cofactor(x), x),
    "atan": lambda thread, x: thread.arc_tangent(x, thread.kind.constant(1.0)),
    "atan2": Thread.arc_tangent,
    "log1p": Thread.logarithm_of_sum,
    "expm1": Thread.exponential_less_one,
}
"""The functions that a thread computes besides those that it shares with the code for CPUs."""


class ThreadValues(Values):
    """Emits the nodes of a program."""

    def _small_angle(self, x: Node) -> str:
        # The reduction is right for all angles.
        return self.name(x)


def _double(x: float) -> str:
    return f"0d{struct.unpack('>Q', struct.pack('>d', x))[0]:016X}"


def kernel_text(program: Program, name: str) -> str:
    """Return the text of a program's kernel.

    Its parameters are the addresses of an array of integers, of the operands and of the results. The integers are the
    length of the batch and, for each operand that is not the same for the whole batch, the bytes from one of its
    elements to the next.

    **Raises** `UnsupportedError` where a GPU lacks an operation or the program is too long.
    """
    if len(program.nodes) > MAX_OPERATIONS:
        raise UnsupportedError(f"more than {MAX_OPERATIONS} operations on a GPU")
    thread = Thread()
    inputs, outputs = _addresses(thread, program)

    def load(node: Node) -> str:
        array, place = node.args
        return thread.put("f", "ld.global.nc.f32", f"[{inputs[array]}+{4 * place}]")

    values = ThreadValues(thread, load)
    stores: dict[int, list[str]] = {}
    for start, output in zip(outputs, program.outputs, strict=True):
        for i, x in enumerate(output):
            at = f"[{start}+{4 * i}]"
            if type(x) is Node and x.op != "input":
                stores.setdefault(x.number, []).append(at)
            else:
                thread.line(f"st.global.f32 {at}, {values.name(x)};")
    _write(thread, values, _steps_of(program), stores)
    parameters = ", ".join(f".param .u64 a{k}" for k in range(1 + len(inputs) + len(outputs)))
    registers = [f"  .reg .{_REGISTERS[k]} %{k}<{n + 1}>;" for k, n in thread.counts.items()]
    begin = [f".visible .entry {name}({parameters})", f".maxntid {THREADS}, 1, 1", "{"]
    return "\n".join([_HEAD, *sorted(thread.declared), *begin, *registers, *thread.lines, "done:", "  ret;", "}", ""])


def _steps_of(program: Program) -> list[KernelPart | Rounds]:
    """Return the parts and loops of a program."""
    if not any(node.op == "result" for node in program.nodes):
        return [KernelPart(program.nodes, [])]
    uniform = KernelPart([node for node in program.nodes if node.uniform], [])
    return [uniform, *divided([x for output in program.outputs for x in output])]


def _write(
    thread: Thread, values: ThreadValues, steps: Sequence[KernelPart | Rounds], stores: dict[int, list[str]]
) -> None:
    """Append the instructions of parts and loops; `stores` has the addresses of results by the numbers of their nodes.

    Operations stand in the order in which the function computes: the assembler reorders anyway, and for forward
    dynamics moves half as many values to memory as from the order by results.
    """

    def store(node: Node) -> None:
        for at in stores.get(node.number, ()):
            thread.line(f"st.global.f32 {at}, {values.names[node.number]};")

    for step in steps:
        if isinstance(step, Rounds):
            _write_loop(thread, values, step, stores)
            for node in step.loop.results:
                store(node)
            continue
        paired = {n.args[0].number for n in step.nodes if n.op == "cos"}
        for node in sorted(step.nodes, key=lambda n: n.number):
            if node.op != "input":
                values.emit(node, paired)
                store(node)
        carried = [(values.name(x), to) for x, to in step.stored if isinstance(to, Node)]
        # All are read before any is changed.
        copies = [(thread.put("f", "mov.f32", name), to) for name, to in carried]
        for copy, to in copies:
            if to.number in values.names:
                thread.line(f"mov.f32 {values.names[to.number]}, {copy};")
            else:
                values.names[to.number] = copy


def _write_loop(thread: Thread, values: ThreadValues, step: Rounds, stores: dict[int, list[str]]) -> None:
    loop, parts = step.loop, list(each_part([step]))
    values.names |= {r.number: values.names[c.number] for r, c in zip(loop.results, loop.carried, strict=True)}
    # What is loaded where it is first used must be there also where the loop has no rounds.
    for node in {a for part in parts for n in part.nodes for a in operands(n)}:
        if node.op == "input":
            values.name(node)
    head, after = thread.block(), thread.block()
    thread.lines.append(f"{head}:")
    _write(thread, values, step.condition, stores)
    thread.line(f"@!{values.name(loop.again)} bra {after};")
    _write(thread, values, step.body, stores)
    thread.line(f"bra {head};")
    thread.lines.append(f"{after}:")


def _addresses(thread: Thread, program: Program) -> tuple[list[str], list[str]]:
    """Append the instructions that end threads beyond the batch; return the registers with the addresses of this
    thread's elements of the operands and the results."""
    block, size, place = (thread.put("r", "mov.u32", f"%{x}") for x in ("ctaid.x", "ntid.x", "tid.x"))
    index = thread.put("r", "mad.lo.s32", block, size, place)

    def parameter(k: int) -> str:
        return thread.put("d", "cvta.to.global.u64", thread.put("d", "ld.param.u64", f"[a{k}]"))

    sizes = parameter(0)
    batch = thread.put("r", "ld.global.nc.b32", f"[{sizes}+0]")
    outside = thread.put("p", "setp.ge.u32", index, batch)
    thread.line(f"@{outside} bra done;")
    inputs, strides = [], 0
    for k, uniform in enumerate(program.uniform):
        start = parameter(1 + k)
        if not uniform:
            strides += 1
            stride = thread.put("r", "ld.global.nc.b32", f"[{sizes}+{4 * strides}]")
            start = thread.put("d", "mad.wide.u32", index, stride, start)
        inputs.append(start)
    outputs = [
        thread.put("d", "mad.wide.u32", index, str(4 * len(output)), parameter(1 + len(inputs) + k))
        for k, output in enumerate(program.outputs)
    ]
    return inputs, outputs
