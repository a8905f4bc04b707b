"""Instructions of LLVM on vectors, with one lane for each element of the batch, and elementary functions."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxdyn.native._specialize import Program

# 100 digits of pi: large angles need 224 bits.
PI = Fraction(
    31415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170679, 10**100
)


class Backend:
    """The machine that a program is written for: a processor, with vectors of floats, or single ones where there is one
    lane."""

    inlining = "noinline"
    """Whether LLVM puts a function that is called once into the one that calls it."""
    memory_of_arrays = ""
    """The kind of address of users' arrays where these are read and written in place."""
    ordered = True
    """Whether long functions are cut into basic blocks."""
    longest = 25000
    """The most operations in one function of a longer kernel. The compiler's time grows faster than the length of a
    function, but what one function leaves to the next goes through memory."""

    def __init__(self, bits: int, lanes: int):
        self.bits, self.lanes = bits, lanes
        self.by_library = lanes == 1
        """Whether elementary functions are those of the C library, as for single numbers."""
        self.index = "i64" if lanes * bits >= 64 else "i32"
        """The type of the number of a row, which has room in the place of a value."""
        self.scalar = {32: "float", 64: "double"}[bits]
        self.float = self._of(self.scalar)
        self.int = self._of(f"i{bits}")
        self.bool = self._of("i1")
        self.suffix = f"f{bits}" if lanes == 1 else f"v{lanes}f{bits}"
        self.bytes = lanes * bits // 8

    def _of(self, scalar: str) -> str:
        return scalar if self.lanes == 1 else f"<{self.lanes} x {scalar}>"

    def longest_part(self, operations: int) -> int:
        """Return the most operations in one function of a kernel of so many."""
        return self.longest

    def read_in_place(self, _program: Program) -> set[int]:
        """Return the operands of a program that are read from users' arrays where they are used."""
        return set()

    def body(self, declared: set[str]) -> Body:
        """Return the empty body of a function."""
        return Body(self, declared)

    def one(self) -> Backend:
        """Return the type of a single value."""
        return Backend(self.bits, 1)

    def more_elements(self, following: str, end: str) -> str:
        """Return the test of whether a function that goes over a stretch of the batch has not come to its end."""
        return f"icmp ult i64 {following}, {end}"

    def received(self, arguments: Sequence[str]) -> tuple[str, list[str]]:
        """Return the parameters of a function for addresses of memory that others do not point into, and the lines that
        its body begins with."""
        return ", ".join(f"ptr noalias {x}" for x in arguments), []

    def rounded(self, x: float) -> float:
        """The nearest number of this precision."""
        if self.bits == 64 or not math.isfinite(x):
            return x
        try:
            return struct.unpack("f", struct.pack("f", x))[0]
        except OverflowError:
            return math.copysign(math.inf, x)

    def number(self, x: float) -> str:
        """The text of a number in one lane."""
        return f"0x{struct.unpack('>Q', struct.pack('>d', self.rounded(x)))[0]:016X}"

    def constant(self, x: float) -> str:
        """The text of a number in all lanes."""
        return self.number(x) if self.lanes == 1 else f"splat ({self.scalar} {self.number(x)})"

    def integer(self, x: int) -> str:
        return str(x) if self.lanes == 1 else f"splat (i{self.bits} {x})"

    def truth(self, x: bool) -> str:
        text = "true" if x else "false"
        return text if self.lanes == 1 else f"splat (i1 {text})"

    def parts(self, x: Fraction, count: int) -> list[float]:
        """Numbers of this precision whose sum is nearest to `x`."""
        out = []
        for _ in range(count):
            out.append(self.rounded(float(x)))
            x -= Fraction(out[-1])
        return out


class Body:
    """The text of a function's body: its methods append an instruction and return the name of the result."""

    def __init__(self, backend: Backend, declared: set[str]):
        self.backend = backend
        self.lines: list[str] = []
        self.declared = declared
        self._count = 0
        self._block = 0

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def name(self) -> str:
        """Return a new name of a value."""
        self._count += 1
        return f"%t{self._count}"

    def value(self, text: str) -> str:
        name = self.name()
        self.lines.append(f"  {name} = {text}")
        return name

    def element(self, start: str, place: int, size: Backend | None = None) -> str:
        """Append the address of an element behind another one, and return its name."""
        return self.value(f"getelementptr {(size or self.backend).float}, ptr {start}, i64 {place}") if place else start

    def block(self) -> str:
        """Return a new label."""
        self._block += 1
        return f"b{self._block}"

    def intrinsic(self, name: str, *args: str) -> str:
        backend = self.backend
        self.declared.add(
            f"declare {backend.float} @llvm.{name}.{backend.suffix}({', '.join([backend.float] * len(args))})"
        )
        return self.value(
            f"call {backend.float} @llvm.{name}.{backend.suffix}({', '.join(f'{backend.float} {a}' for a in args)})"
        )

    def binary(self, op: str, a: str, b: str) -> str:
        return self.value(f"{op} contract {self.backend.float} {a}, {b}")

    def exact(self, op: str, a: str, b: str) -> str:
        """An operation that is not contracted with others."""
        return self.value(f"{op} {self.backend.float} {a}, {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.intrinsic("fma", a, b, c)

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's scheme, the highest power first."""
        out = self.backend.constant(coefficients[0])
        for c in coefficients[1:]:
            out = self.fma(x, out, self.backend.constant(c))
        return out

    def select(self, condition: str, then: str, otherwise: str) -> str:
        backend = self.backend
        return self.value(f"select {backend.bool} {condition}, {backend.float} {then}, {backend.float} {otherwise}")

    def compare(self, relation: str, a: str, b: str) -> str:
        return self.value(f"fcmp {relation} {self.backend.float} {a}, {b}")

    def bits(self, x: str) -> str:
        return self.value(f"bitcast {self.backend.float} {x} to {self.backend.int}")

    def from_bits(self, x: str) -> str:
        return self.value(f"bitcast {self.backend.int} {x} to {self.backend.float}")

    def to_float(self, integer: str) -> str:
        return self.value(f"sitofp {self.backend.int} {integer} to {self.backend.float}")

    def integer(self, op: str, a: str, b: int) -> str:
        return self.integers(op, a, self.backend.integer(b))

    def integers(self, op: str, a: str, b: str) -> str:
        return self.value(f"{op} {self.backend.int} {a}, {b}")

    def nonzero(self, a: str) -> str:
        """Return whether an integer is not zero."""
        return self.value(f"icmp ne {self.backend.int} {a}, {self.backend.integer(0)}")

    def negate(self, x: str) -> str:
        return self.value(f"fneg {self.backend.float} {x}")

    def logical(self, op: str, a: str, b: str) -> str:
        return self.value(f"{op} {self.backend.bool} {a}, {b}")

    def invert(self, condition: str) -> str:
        return self.logical("xor", condition, self.backend.truth(True))

    def flip_sign(self, x: str, bits: str) -> str:
        """Return `x`, negated where the lowest of the given bits is set."""
        sign = self.integer("shl", bits, self.backend.bits - 1)
        return self.from_bits(self.integers("xor", self.bits(x), sign))

    def nearest_multiple(self, x: str, unit: Fraction) -> tuple[str, str]:
        """Return `x` less the nearest multiple of `unit`, and the bits of the multiple's number (Cody & Waite)."""
        backend = self.backend
        # 1.5 * 2^23 or 1.5 * 2^52: a sum with it has the number in its lowest bits.
        shift = backend.constant(1.5 * 2 ** (23 if backend.bits == 32 else 52))
        shifted = self.fma(x, backend.constant(float(1 / unit)), shift)
        number = self.exact("fsub", shifted, shift)
        for part in backend.parts(unit, 3):
            x = self.fma(number, backend.constant(-part), x)
        return x, self.bits(shifted)

    def array_of_call(self, offset: str) -> str:
        """Append the address of a user's array, from a place in the record of a call."""
        raise NotImplementedError

    def small_angle(self, x: str) -> str:
        """Return a smaller angle with the same sine and cosine, also of its half, where an angle is very large."""
        backend = self.backend
        inner = backend.body(self.declared)
        half = inner.exact("fmul", "%x", backend.constant(0.5))
        angle = inner.library("atan2", inner.library("sin", half), inner.library("cos", half))
        large = inner.compare("ogt", inner.intrinsic("fabs", "%x"), backend.constant(LARGEST_ANGLE[backend.bits]))
        out = inner.select(large, inner.exact("fadd", angle, angle), "%x")
        lines = [f"define internal {backend.float} @small_angle({backend.float} %x) noinline cold {{"]
        self.declared.add("\n".join([*lines, *inner.lines, f"  ret {backend.float} {out}", "}"]))
        return self.value(f"call {backend.float} @small_angle({backend.float} {x})")

    def sine(self, x: str) -> str:
        r, bits = self.nearest_multiple(x, PI)
        square = self.exact("fmul", r, r)
        cube = self.exact("fmul", square, r)
        return self.flip_sign(self.fma(cube, self.polynomial(square, SINE_OF_HALF_TURN[self.backend.bits]), r), bits)

    def sine_and_cosine(self, x: str) -> tuple[str, str]:
        backend = self.backend
        r, bits = self.nearest_multiple(x, PI / 2)
        square = self.exact("fmul", r, r)
        cube = self.exact("fmul", square, r)
        sine = self.fma(cube, self.polynomial(square, SINE_OF_QUARTER_TURN[backend.bits]), r)
        fourth = self.exact("fmul", square, square)
        cosine = self.fma(square, backend.constant(-0.5), backend.constant(1.0))
        cosine = self.fma(fourth, self.polynomial(square, COSINE_OF_QUARTER_TURN[backend.bits]), cosine)
        odd = self.nonzero(self.integer("and", bits, 1))
        half, next_half = self.integer("lshr", bits, 1), self.integer("lshr", self.integer("add", bits, 1), 1)
        return (
            self.flip_sign(self.select(odd, cosine, sine), half),
            self.flip_sign(self.select(odd, sine, cosine), next_half),
        )

    def exponential(self, x: str) -> str:
        backend = self.backend
        low, high, digits = (-104.0, 89.0, 23) if backend.bits == 32 else (-746.0, 710.0, 52)
        # These propagate NaN.
        x = self.intrinsic("maximum", self.intrinsic("minimum", x, backend.constant(high)), backend.constant(low))
        out, bits = self._exponential_and_power(x)
        # Two factors, because 2^k may be out of range where the result is not.
        integer = self.integers("sub", bits, self.bits(backend.constant(1.5 * 2**digits)))
        half = self.integer("ashr", integer, 1)
        for power in (half, self.integers("sub", integer, half)):
            out = self.exact("fmul", out, self._power_of_two(power))
        return out

    def _exponential_and_power(self, x: str) -> tuple[str, str]:
        """Return the exponential of what is left of `x` without the nearest multiple of log 2, and the bits of the
        multiple's number, of which the lowest count."""
        backend = self.backend
        shift = backend.constant(1.5 * 2 ** (23 if backend.bits == 32 else 52))
        shifted = self.fma(x, backend.constant(1 / math.log(2)), shift)
        number = self.exact("fsub", shifted, shift)
        for part in LOG_2[backend.bits]:
            x = self.fma(number, backend.constant(-part), x)
        degree = 7 if backend.bits == 32 else 13
        return self.polynomial(x, [1 / math.factorial(n) for n in range(degree, -1, -1)]), self.bits(shifted)

    def _power_of_two(self, integer: str) -> str:
        bias, digits = (127, 23) if self.backend.bits == 32 else (1023, 52)
        return self.from_bits(self.integer("shl", self.integer("add", integer, bias), digits))

    def logarithm(self, x: str) -> str:
        """The natural logarithm, as in FDLIBM: of `m 2^k` with `m` between the roots of 1/2 and 2, from
        `log m = 2 artanh(s)` with `s = (m - 1) / (m + 1)`."""
        backend = self.backend
        bits, digits = self.bits(x), 23 if backend.bits == 32 else 52
        # The bits of the root of 1/2 are taken off, so that the exponent changes where `m` would be larger.
        root = self.bits(backend.constant(backend.rounded(math.sqrt(0.5))))
        shifted = self.integers("sub", bits, root)
        number = self.integer("ashr", shifted, digits)
        m = self.from_bits(self.integers("sub", bits, self.integer("shl", number, digits)))
        k = self.to_float(number)
        f = self.exact("fsub", m, backend.constant(1.0))
        s = self.exact("fdiv", f, self.exact("fadd", f, backend.constant(2.0)))
        square = self.exact("fmul", s, s)
        rest = self.exact("fmul", square, self.polynomial(square, LOG[backend.bits]))
        half = self.exact("fmul", self.exact("fmul", backend.constant(0.5), f), f)
        high, low = LOG_2[backend.bits]
        small = self.fma(s, self.exact("fadd", half, rest), self.exact("fmul", k, backend.constant(low)))
        out = self.fma(k, backend.constant(high), self.exact("fsub", f, self.exact("fsub", half, small)))
        # Of zero (as which XLA takes numbers with fewer digits, too), negative numbers, infinity and NaN.
        out = self.select(self.compare("olt", x, backend.constant(math.inf)), out, x)
        out = self.select(self.compare("olt", x, backend.constant(0.0)), backend.constant(math.nan), out)
        return self.select(self.compare("oeq", x, backend.constant(0.0)), backend.constant(-math.inf), out)

    def hyperbolic_tangent(self, x: str) -> str:
        backend = self.backend
        square = self.exact("fmul", x, x)
        upper, lower = TANH[backend.bits]
        small = self.polynomial(square, upper)
        if lower:
            small = self.exact("fdiv", small, self.polynomial(square, lower))
        small = self.fma(self.exact("fmul", x, square), small, x)
        size = self.intrinsic("fabs", x)
        # 1 - 2 e / (1 + e) with e = exp(-2 |x|); from 20 on it is 1, and NaN stays what it is.
        limit = backend.constant(20.0)
        limited = self.select(self.compare("ogt", size, limit), limit, size)
        power, bits = self._exponential_and_power(self.exact("fmul", limited, backend.constant(-2.0)))
        power = self.exact("fmul", power, self._power_of_two(bits))
        quotient = self.exact(
            "fdiv", self.exact("fadd", power, power), self.exact("fadd", power, backend.constant(1.0))
        )
        large = self.intrinsic("copysign", self.exact("fsub", backend.constant(1.0), quotient), x)
        return self.select(self.compare("ogt", size, backend.constant(0.625)), large, small)

    def library(self, name: str, *args: str) -> str:
        """Call a function of the C library, which has the operation's name and takes doubles, lane by lane."""
        backend = self.backend
        doubles = ", ".join(["double"] * len(args))
        self.declared.add(f"declare double @{name}({doubles})")
        if backend.lanes > 1:
            self.declared.add(_lane_by_lane(backend, name, len(args)))
            return self.value(f"call {backend.float} @each.{name}({', '.join(f'{backend.float} {a}' for a in args)})")
        if backend.bits == 32:
            args = tuple(self.value(f"fpext float {a} to double") for a in args)
        out = self.value(f"call double @{name}({', '.join(f'double {a}' for a in args)})")
        return self.value(f"fptrunc double {out} to float") if backend.bits == 32 else out


def _lane_by_lane(backend: Backend, name: str, count: int) -> str:
    """The definition of a function of vectors that calls one of doubles for each lane."""
    arguments = ", ".join(f"{backend.float} %a{i}" for i in range(count))
    lines = [f"define internal {backend.float} @each.{name}({arguments}) noinline {{"]
    lines += _usual_powers(backend) if name == "pow" else []
    lines += ["entry:", "  br label %loop", "loop:"]
    lines.append("  %i = phi i64 [ 0, %entry ], [ %next, %loop ]")
    lines.append(f"  %out = phi {backend.float} [ zeroinitializer, %entry ], [ %more, %loop ]")
    one = Body(Backend(backend.bits, 1), set())
    parts = [one.value(f"extractelement {backend.float} %a{i}, i64 %i") for i in range(count)]
    result = one.library(name, *parts)
    lines += one.lines
    lines.append(f"  %more = insertelement {backend.float} %out, {backend.scalar} {result}, i64 %i")
    lines += ["  %next = add i64 %i, 1", f"  %again = icmp ult i64 %next, {backend.lanes}"]
    lines += ["  br i1 %again, label %loop, label %done", "done:", f"  ret {backend.float} %more", "}"]
    return "\n".join(lines)


def _usual_powers(backend: Backend) -> list[str]:
    """The beginning of the function of powers: squares, or the numbers themselves, where all exponents are 2 or 1."""
    lines, mask = ["usual:"], f"i{backend.lanes}"
    for exponent, after in ((2.0, "not_squares"), (1.0, "entry")):
        lines += [
            f"  %{after}_lanes = fcmp une {backend.float} %a1, {backend.constant(exponent)}",
            f"  %{after}_mask = bitcast {backend.bool} %{after}_lanes to {mask}",
            f"  %{after}_any = icmp ne {mask} %{after}_mask, 0",
            f"  br i1 %{after}_any, label %{after}, label %instead_of_{after}",
            f"instead_of_{after}:",
        ]
        lines += [f"  %square = fmul {backend.float} %a0, %a0"] if exponent == 2 else []
        lines += [f"  ret {backend.float} {'%square' if exponent == 2 else '%a0'}", f"{after}:"]
    return lines[:-1]


# sin(r) = r + r^3 P(r^2) on [-pi/2, pi/2]: minimax in the relative error (32 bits: 6e-9); for 64 bits, SLEEF 3.6.
SINE_OF_HALF_TURN = {
    32: [2.605779959920667e-06, -1.9809602578677032e-04, 8.333066241302214e-03, -1.6666659550215382e-01],
    64: [
        -7.97255955009037868891952e-18,
        2.81009972710863200091251e-15,
        -7.64712219118158833288484e-13,
        1.60590430605664501629054e-10,
        -2.50521083763502045810755e-08,
        2.75573192239198747630416e-06,
        -0.000198412698412696162806809,
        0.00833333333333332974823815,
        -0.166666666666666657414808,
    ],
}
# On [-pi/4, pi/4]; cos(r) = 1 - r^2 / 2 + r^4 P(r^2). From Cephes 2.8 (32 bits) and FDLIBM 5.3 (64 bits).
SINE_OF_QUARTER_TURN = {
    32: [-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1],
    64: [
        1.58969099521155010221e-10,
        -2.50507602534068634195e-08,
        2.75573137070700676789e-06,
        -1.98412698298579493134e-04,
        8.33333333332248946124e-03,
        -1.66666666666666324348e-01,
    ],
}
COSINE_OF_QUARTER_TURN = {
    32: [2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2],
    64: [
        -1.13596475577881948265e-11,
        2.08757232129817482790e-09,
        -2.75573143513906633035e-07,
        2.48015872894767294178e-05,
        -1.38888888888741095749e-03,
        4.16666666666666019037e-02,
    ],
}
# tanh(x) = x + x^3 P(x^2) / Q(x^2) up to 0.625, from Cephes 2.8.
TANH = {
    32: (
        [-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1],
        None,
    ),
    64: (
        [-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3],
        [1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3],
    ),
}
# The natural logarithm of 2 in two parts, the first with few digits, so that its products with integers are exact.
LOG_2 = {32: (0.693359375, -2.12194440e-4), 64: (6.93145751953125e-1, 1.42860682030941723212e-6)}
# log m = f - (f^2 / 2 - s (f^2 / 2 + s^2 P(s^2))) with f = m - 1 and s = f / (2 + f), from FDLIBM 5.3.
LOG = {
    32: [0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693],
    64: [
        1.479819860511658591e-01,
        1.531383769920937332e-01,
        1.818357216161805012e-01,
        2.222219843214978396e-01,
        2.857142874366239149e-01,
        3.999999999940941908e-01,
        6.666666666666735130e-01,
    ],
}

LARGEST_ANGLE = {32: 1e5, 64: 1e9}
"""The largest angle for which the reduction by multiples of pi keeps its digits."""
