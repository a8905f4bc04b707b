"""Instructions of LLVM for a thread of a GPU, with elementary functions of its own: a GPU has no C library."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from jaxdyn.native._arrays import UnsupportedError
from jaxdyn.native._emit import Backend, Body
from jaxdyn.native._operations import OPERATIONS
from jaxdyn.native._specialize import Program
from jaxdyn.native._values import angle_of_input

_MEMORY = {"%sums": "", "%table": " addrspace(1)"}
"""The memory that arguments point into where it is not the thread's own. `%common` is the record of the call."""


class GpuBackend(Backend):
    """A GPU, on which a thread has one lane."""

    inlining = "alwaysinline"
    ordered = False
    memory_of_arrays = " addrspace(1)"
    whole = 25000
    """The most operations of a program that is one function: on an H100 forward dynamics of Talos, 21,000 operations,
    took 0.45 ms for 65536 states and the driver 3.5 s to compile it, and 0.74 ms and 4.7 s in two functions."""
    longest = 12000
    """With parts of 6000 operations the gradient of these dynamics, 72,000 operations, took as long as with 12,000, and
    with 3000 forward dynamics of Solo12, 8000 operations, took three times as long as in one function."""

    def __init__(self, bits: int):
        super().__init__(bits, 1)
        self.by_library = False

    def body(self, declared: set[str]) -> Body:
        return GpuBody(self, declared)

    def longest_part(self, operations: int) -> int:
        return self.whole if operations <= self.whole else self.longest

    def read_in_place(self, program: Program) -> set[int]:
        # What a repetition carries, and its rows, change, and large angles are reduced first.
        angles = (angle_of_input(n.args[0])[1] for n in program.nodes if n.op in ("sin", "cos"))
        copied = {root.args[0] for root in angles if root is not None}
        return {k for k in range(len(program.inputs)) if not program.is_row(k)} - copied - set(program.carried)

    def one(self) -> Backend:
        return self

    def more_elements(self, following: str, end: str) -> str:
        # A thread has one element of the batch.
        return "and i1 false, false"

    def received(self, arguments: Sequence[str]) -> tuple[str, list[str]]:
        # LLVM finds out which memory an address is of in one function only; with the memory known, an instruction
        # needs no test of the address.
        parameters, lines = [], []
        for x in arguments:
            memory = _MEMORY.get(x, " addrspace(5)")
            if memory:
                parameters.append(f"ptr noalias {x}.given")
                lines.append(f"  {x}.own = addrspacecast ptr {x}.given to ptr{memory}")
                lines.append(f"  {x} = addrspacecast ptr{memory} {x}.own to ptr")
            else:
                parameters.append(f"ptr noalias {x}")
        return ", ".join(parameters), lines


class GpuBody(Body):
    """The text of a function for a thread."""

    def array_of_call(self, offset: str) -> str:
        at = self.value(f"getelementptr i8, ptr %common, i64 {offset}")
        return self.value(f"addrspacecast ptr {self.value(f'load ptr, ptr {at}')} to ptr addrspace(1)")

    def library(self, name: str, *args: str) -> str:
        method = OPERATIONS[name].gpu
        if not method:
            raise UnsupportedError(f"the operation {name} on a GPU")
        return getattr(self, method)(*args)

    def branch(self, condition: str, then: Callable[[], Sequence[str]], otherwise: Sequence[str], types: Sequence[str]):
        """Append a branch, rarely taken, and return its results where the condition holds, and others where not."""
        here, rare, end, after = (self.block() for _ in range(4))
        self.line(f"br label %{here}")
        self.lines.append(f"{here}:")
        self.line(f"br i1 {condition}, label %{rare}, label %{after}, !prof !0")
        self.lines.append(f"{rare}:")
        results = then()
        self.line(f"br label %{end}")
        self.lines.append(f"{end}:")
        self.line(f"br label %{after}")
        self.lines.append(f"{after}:")
        return [
            self.value(f"phi {kind} [ {x}, %{here} ], [ {y}, %{end} ]")
            for kind, x, y in zip(types, otherwise, results, strict=True)
        ]

    def doubled(self, x: str) -> str:
        """Return a number in double precision."""
        return x if self.backend.bits == 64 else self.value(f"fpext float {x} to double")

    def small_angle(self, x: str) -> str:
        return self.narrowed(self.value(f"call double @{_small_angle(self.declared)}(double {self.doubled(x)})"))

    def narrowed(self, x: str) -> str:
        """Return a number of double precision in that of the program."""
        return x if self.backend.bits == 64 else self.value(f"fptrunc double {x} to float")

    def tangent(self, x: str) -> str:
        return self.exact("fdiv", *self.sine_and_cosine(x))

    def is_negative(self, x: str) -> str:
        """Return whether the sign of a number is set."""
        return self.value(f"icmp slt {self.backend.int} {self.bits(x)}, 0")

    def arc_sine(self, x: str) -> str:
        return self.arc_tangent(x, self.cofactor(x))

    def arc_cosine(self, x: str) -> str:
        return self.arc_tangent(self.cofactor(x), x)

    def arc_tangent(self, y: str, x: str = "") -> str:
        """Return the angle of the direction `(x, y)`; without `x`, of `(1, y)`."""
        constant, zero = self.backend.constant, self.backend.constant(0.0)
        x = x or constant(1.0)
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
        upper, lower = ARC_TANGENT[self.backend.bits]
        series = self.polynomial(square, upper)
        if lower:
            series = self.exact("fdiv", series, self.polynomial(square, lower))
        angle = self.fma(series, self.exact("fmul", square, slope), slope)
        angle = self.exact("fadd", angle, self.select(steep, constant(math.pi / 4), zero))
        above = self.exact("fsub", constant(math.pi / 2), angle)
        angle = self.select(self.compare("ogt", height, width), above, angle)
        angle = self.select(self.is_negative(x), self.exact("fsub", constant(math.pi), angle), angle)
        return self.intrinsic("copysign", angle, y)

    def cofactor(self, x: str) -> str:
        """Return `sqrt(1 - x^2)`, the cosine of an angle with the sine `x`."""
        one = self.backend.constant(1.0)
        return self.intrinsic("sqrt", self.exact("fmul", self.exact("fsub", one, x), self.exact("fadd", one, x)))

    def logarithm(self, x: str) -> str:
        """Return the natural logarithm, also of numbers that have fewer digits because they are so small."""
        constant, digits = self.backend.constant, 23 if self.backend.bits == 32 else 52
        tiny = self.compare("olt", x, constant(2.0**-126 if self.backend.bits == 32 else 2.0**-1022))
        out = super().logarithm(self.select(tiny, self.exact("fmul", x, constant(2.0**digits)), x))
        return self.select(tiny, self.exact("fsub", out, constant(digits * math.log(2))), out)

    def logarithm_of_sum(self, x: str) -> str:
        """Return the natural logarithm of `1 + x`."""
        one = self.backend.constant(1.0)
        total = self.exact("fadd", x, one)
        lost = self.exact("fdiv", self.exact("fsub", x, self.exact("fsub", total, one)), total)
        # There is no rounding error to correct at infinity and at the pole.
        finite = self.compare("olt", self.intrinsic("fabs", lost), one)
        lost = self.select(finite, lost, self.backend.constant(0.0))
        return self.exact("fadd", self.logarithm(total), lost)

    def exponential_less_one(self, x: str) -> str:
        """Return `exp(x) - 1`."""
        # The next term of the series is below the rounding error up to 1/2.
        degree = 9 if self.backend.bits == 32 else 17
        series = self.polynomial(x, [1 / math.factorial(n) for n in range(degree, 1, -1)])
        small = self.fma(self.exact("fmul", x, x), series, x)
        large = self.exact("fsub", self.exponential(x), self.backend.constant(1.0))
        near = self.compare("olt", self.intrinsic("fabs", x), self.backend.constant(0.5))
        return self.select(near, small, large)

    def hyperbolic_sine(self, x: str) -> str:
        """Return `sinh(x)`."""
        # With m = exp(|x|) - 1, whose digits are there also where it is small.
        m = self.exponential_less_one(self.intrinsic("fabs", x))
        more = self.exact("fdiv", m, self.exact("fadd", m, self.backend.constant(1.0)))
        # Half of each term: their sum may be out of range where the result is not.
        half = self.backend.constant(0.5)
        # An infinite m has no quotient.
        more = self.select(self.compare("oeq", m, self.backend.constant(math.inf)), self.backend.constant(1.0), more)
        return self.intrinsic("copysign", self.fma(more, half, self.exact("fmul", m, half)), x)

    def hyperbolic_cosine(self, x: str) -> str:
        """Return `cosh(x)`."""
        power, half = self.exponential(self.intrinsic("fabs", x)), self.backend.constant(0.5)
        return self.fma(power, half, self.exact("fdiv", half, power))

    def power(self, x: str, y: str) -> str:
        """Return `x^y`. Squares are products, and other powers `exp(y log |x|)` in double precision: an error of a
        double's rounding times `1 + |y log |x||`."""
        backend = self.backend
        other = self.compare("une", y, backend.constant(2.0))

        def of_other() -> Sequence[str]:
            out = self.value(f"call double @power(double {self.doubled(x)}, double {self.doubled(y)})")
            return (self.narrowed(out),)

        self.declared.add(_power(self.declared))
        return self.branch(other, of_other, [self.exact("fmul", x, x)], (backend.float,))[0]


def _power(declared: set[str]) -> str:
    """The function of powers in double precision."""
    body = GpuBody(GpuBackend(64), declared)
    constant = body.backend.constant
    size = body.intrinsic("fabs", "%x")
    exponent = body.exact("fmul", "%y", body.logarithm(size))
    # An infinite power of one or minus one is one.
    exponent = body.select(body.compare("oeq", size, constant(1.0)), constant(0.0), exponent)
    out = body.exponential(exponent)
    # A negative number has a power where the exponent is an integer, which is negative where it is odd.
    whole = body.compare("oeq", body.intrinsic("floor", "%y"), "%y")
    half = body.exact("fmul", "%y", constant(0.5))
    odd = body.logical("and", whole, body.compare("une", body.intrinsic("floor", half), half))
    below = body.compare("olt", "%x", constant(0.0))
    below = body.logical("and", below, body.compare("olt", size, constant(math.inf)))
    out = body.select(body.logical("and", odd, body.is_negative("%x")), body.negate(out), out)
    out = body.select(body.logical("and", below, body.invert(whole)), constant(math.nan), out)
    for x in ("%x", "%y"):
        out = body.select(body.compare("uno", x, x), x, out)
    # One to any power, and any number to the power zero, are one.
    for x, value in (("%x", 1.0), ("%y", 0.0)):
        out = body.select(body.compare("oeq", x, constant(value)), constant(1.0), out)
    header = "define internal double @power(double %x, double %y) noinline cold #0 {"
    return "\n".join([header, "entry:", *body.lines, f"  ret double {out}", "}"])


@functools.cache
def _turns(words: int) -> list[int]:
    """Return the bits of `1 / (2 pi)` after the point in words of 64, after a word of zeros."""
    bits = 64 * words
    scale = 1 << bits + 64

    def arc_cotangent(n: int) -> int:
        total = term = scale // n
        k = 1
        while term:
            term //= n * n
            k += 2
            total += -(term // k) if k % 4 == 3 else term // k
        return total

    # Machin's formula.
    pi = 4 * (4 * arc_cotangent(5) - arc_cotangent(239))
    turn = (scale << bits) // (2 * pi)
    return [0, *(turn >> 64 * (words - 1 - i) & (1 << 64) - 1 for i in range(words))]


def _small_angle(declared: set[str]) -> str:
    """Return the name of the function that takes the nearest multiple of two turns from an angle (Payne & Hanek).

    `x = m 2^e` with an integer `m` of 53 bits, and those bits of `1 / (4 pi)` that `2^e` shifts to the point, times
    `m`, are the fraction of two turns, of which 128 bits are kept.
    """
    # The largest exponent of a double, 971, and the 64 bits of zeros, take 17 words; three are read behind them.
    table = _turns(20)
    entries = ", ".join(f"i64 {x}" for x in table)
    declared.add(f"@turns = internal constant [{len(table)} x i64] [{entries}]")
    declared.add("declare i64 @llvm.fshl.i64(i64, i64, i64)")
    body = GpuBody(GpuBackend(64), declared)
    bits = body.bits("%x")
    exponent = body.integer("and", body.integer("lshr", bits, 52), 2047)
    m = body.integer("or", body.integer("and", bits, (1 << 52) - 1), 1 << 52)
    # `e` is the exponent less 1075; 64 more for the zeros, and one less for two turns.
    place = body.integer("sub", exponent, 1075 - 64 + 1)
    start = body.value(f"getelementptr i64, ptr @turns, i64 {body.integer('lshr', place, 6)}")
    shift = body.integer("and", place, 63)
    read = [body.value(f"load i64, ptr {body.value(f'getelementptr i64, ptr {start}, i64 {i}')}") for i in range(4)]
    words = [body.value(f"call i64 @llvm.fshl.i64(i64 {read[i]}, i64 {read[i + 1]}, i64 {shift})") for i in range(3)]
    wide = [body.value(f"zext i64 {x} to i128") for x in (m, *words)]
    high, middle, low = (body.value(f"mul i128 {wide[0]}, {w}") for w in wide[1:])
    turn = body.value(f"add i128 {body.value(f'shl i128 {high}, 64')}, {middle}")
    # The upper half of this, as a signed number, is the distance from the nearest multiple.
    turn = body.value(f"add i128 {turn}, {body.value(f'lshr i128 {low}, 64')}")
    upper = body.value(f"trunc i128 {body.value(f'lshr i128 {turn}, 64')} to i64")
    lower = body.value(f"uitofp i64 {body.value(f'trunc i128 {turn} to i64')} to double")
    angle = body.fma(lower, body.backend.constant(2.0**-64), body.to_float(upper))
    angle = body.exact("fmul", angle, body.backend.constant(4 * math.pi / 2**64))
    # NaN where `x` is infinite.
    angle = body.fma("%x", body.backend.constant(0.0), angle)
    angle = body.select(body.is_negative("%x"), body.negate(angle), angle)
    angle = body.select(body.compare("olt", body.intrinsic("fabs", "%x"), body.backend.constant(1.0)), "%x", angle)
    header = "define internal double @small_angle(double %x) noinline cold #0 {"
    declared.add("\n".join([header, "entry:", *body.lines, f"  ret double {angle}", "}"]))
    return "small_angle"


# From Cephes 2.8: atan(x) = x + x^3 P(x^2) / Q(x^2) up to tan(pi / 8).
ARC_TANGENT = {
    32: ([8.05374449538e-2, -1.38776856032e-1, 1.99777106478e-1, -3.33329491539e-1], None),
    64: (
        [
            -8.750608600031904122785e-1,
            -1.615753718733365076637e1,
            -7.500855792314704667340e1,
            -1.228866684490136173410e2,
            -6.485021904942025371773e1,
        ],
        [
            1.0,
            2.485846490142306297962e1,
            1.650270098316988542046e2,
            4.328810604912902668951e2,
            4.853903996359136964868e2,
            1.945506571482613964425e2,
        ],
    ),
}
