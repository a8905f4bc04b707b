"""The elementwise operations of native programs, under the names of JAX's primitives: one line says what an operation
is for numbers that are known, in LLVM's language, and on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

type Emitted = Callable[..., str]
"""Called with a `Body` and the names of operands. Appends instructions and returns the name of the result."""


class Elementary(NamedTuple):
    """An elementwise operation."""

    number: Callable | None = None
    """Its value for numbers; None for operations that `Graph` has a method for."""
    emit: Emitted | None = None
    """The instructions for floating-point numbers; None calls the C library's function of the operation's name."""
    array: Callable | None = None
    """NumPy's function, where that stands in for JAX on arrays of numbers."""
    operands: int = 1
    integer: str = ""
    """LLVM's instruction, or relation, for integers; empty for operations that these do not have."""
    gpu: str = ""
    """The method of `GpuBody` that a GPU has in place of the C library."""
    spoiled: bool = False
    """See `SPOILED`."""
    of_indices: bool = False
    """Whether it takes integers that depend on data. These are floating-point numbers of the same value: the rows'
    numbers of a factorization, which a shift makes positive."""
    is_condition: bool = False
    """Whether it returns a truth value."""

    @property
    def of_comparison(self) -> bool:
        """Whether it compares two numbers."""
        return self.is_condition and self.operands == 2 and self.number is not None


def _instruction(name: str) -> Emitted:
    return lambda body, a, b: body.binary(name, a, b)


def _logical(name: str) -> Emitted:
    return lambda body, a, b: body.logical(name, a, b)


def _intrinsic(name: str) -> Emitted:
    return lambda body, *args: body.intrinsic(name, *args)


def _of_vectors(name: str, method: str) -> Emitted:
    """A method of `Body` for vectors; single numbers have the function of the C library."""
    return lambda body, x: body.library(name, x) if body.backend.by_library else getattr(body, method)(x)


def _compared(function: Callable, array: Callable, relation: str, integer: str) -> Elementary:
    emit: Emitted = lambda body, a, b: body.compare(relation, a, b)  # noqa: E731
    return Elementary(function, emit, array, 2, integer, of_indices=True, is_condition=True)


def _truth(name: str, array: Callable) -> Elementary:
    return Elementary(None, _logical(name), array, 2, name, is_condition=name != "xor")


def _larger(function: Callable, name: str, array: Callable, integer: str) -> Elementary:
    number = lambda a, b: math.nan if math.isnan(a) or math.isnan(b) else function(a, b)  # noqa: E731
    return Elementary(number, _intrinsic(name), array, 2, integer)


def _is_finite(body: Any, x: str) -> str:
    return body.compare("olt", body.intrinsic("fabs", x), body.backend.constant(math.inf))


OPERATIONS: dict[str, Elementary] = {
    "add": Elementary(None, _instruction("fadd"), np.add, 2, "add", spoiled=True, of_indices=True),
    "sub": Elementary(None, _instruction("fsub"), np.subtract, 2, "sub", spoiled=True, of_indices=True),
    "mul": Elementary(None, _instruction("fmul"), np.multiply, 2, "mul", spoiled=True),
    "div": Elementary(None, _instruction("fdiv"), np.divide, 2, "sdiv"),
    "neg": Elementary(None, lambda body, x: body.negate(x), np.negative, 1, "sub", spoiled=True),
    "not": Elementary(None, lambda body, x: body.invert(x), np.logical_not, 1, "xor", is_condition=True),
    "and": _truth("and", np.logical_and),
    "or": _truth("or", np.logical_or),
    "xor": _truth("xor", np.logical_xor)._replace(array=None),
    "lt": _compared(lambda a, b: a < b, np.less, "olt", "slt"),
    "le": _compared(lambda a, b: a <= b, np.less_equal, "ole", "sle"),
    "gt": _compared(lambda a, b: a > b, np.greater, "ogt", "sgt"),
    "ge": _compared(lambda a, b: a >= b, np.greater_equal, "oge", "sge"),
    "eq": _compared(lambda a, b: a == b, np.equal, "oeq", "eq"),
    "ne": _compared(lambda a, b: a != b, np.not_equal, "une", "ne"),
    "is_finite": Elementary(math.isfinite, _is_finite, is_condition=True),
    "max": _larger(max, "maximum", np.maximum, "sgt"),
    "min": _larger(min, "minimum", np.minimum, "slt"),
    "abs": Elementary(abs, _intrinsic("fabs"), np.abs, 1, "sgt", spoiled=True),
    "sqrt": Elementary(math.sqrt, _intrinsic("sqrt"), np.sqrt, spoiled=True),
    "floor": Elementary(math.floor, _intrinsic("floor")),
    "ceil": Elementary(math.ceil, _intrinsic("ceil")),
    # JAX's primitive `round` has the way of rounding as a parameter.
    "round": Elementary(None, _intrinsic("round")),
    "roundeven": Elementary(None, _intrinsic("roundeven")),
    # `Values` emits sine and cosine together; single numbers have the C library's.
    "sin": Elementary(math.sin, None, np.sin, spoiled=True),
    "cos": Elementary(math.cos, None, np.cos, spoiled=True),
    "tan": Elementary(math.tan, gpu="tangent", spoiled=True),
    "asin": Elementary(math.asin, gpu="arc_sine"),
    "acos": Elementary(math.acos, gpu="arc_cosine"),
    "atan": Elementary(math.atan, gpu="arc_tangent"),
    "atan2": Elementary(math.atan2, operands=2, gpu="arc_tangent"),
    "sinh": Elementary(math.sinh, gpu="hyperbolic_sine"),
    "cosh": Elementary(math.cosh, gpu="hyperbolic_cosine"),
    "tanh": Elementary(math.tanh, _of_vectors("tanh", "hyperbolic_tangent")),
    "exp": Elementary(math.exp, _of_vectors("exp", "exponential")),
    "log": Elementary(lambda a: -math.inf if a == 0 else math.log(a), _of_vectors("log", "logarithm")),
    "expm1": Elementary(math.expm1, gpu="exponential_less_one"),
    "log1p": Elementary(lambda a: -math.inf if a == -1 else math.log1p(a), gpu="logarithm_of_sum"),
    "pow": Elementary(math.pow, operands=2, gpu="power"),
    "asinh": Elementary(math.asinh),
    "acosh": Elementary(math.acosh),
    "atanh": Elementary(math.atanh),
    "cbrt": Elementary(math.cbrt),
    "exp2": Elementary(math.exp2),
    "erf": Elementary(math.erf),
    "erfc": Elementary(math.erfc),
}

CONDITIONS = {name for name, operation in OPERATIONS.items() if operation.is_condition}
"""The operations that return a truth value."""
SPOILED = {name for name, operation in OPERATIONS.items() if operation.spoiled}
"""The operations whose results are infinite or NaN wherever an operand is. Others need not be: `1 / x`, `exp(x)` and
`atan(x)` are finite for an infinite `x`, and the smaller of two numbers is where the larger one is infinite."""


def _power(o: Callable, x: Any, exponent: int) -> Any:
    """Return an integer power by squares."""
    out, n = None, abs(exponent)
    while n:
        if n & 1:
            out = x if out is None else o("mul", out, x)
        n >>= 1
        x = o("mul", x, x) if n else x
    out = o("select", o("eq", x, x), 1, 1) if out is None else out
    return o("div", 1, out) if exponent < 0 else out


COMPOSITES: dict[str, Callable] = {
    "add_any": lambda o, a, b: o("add", a, b),
    "square": lambda o, x: o("mul", x, x),
    "one_minus_square": lambda o, x: o("mul", o("sub", 1, x), o("add", 1, x)),
    "integer_pow": lambda o, x, *, y: _power(o, x, y),
    "rsqrt": lambda o, x, **_: o("div", 1, o("sqrt", x)),
    "sign": lambda o, x: o("select", o("gt", x, 0), o("select", o("lt", x, 0), x, -1), 1),
    # 1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2, which does not overflow.
    "logistic": lambda o, x, **_: o("mul", 0.5, o("add", 1, o("tanh", o("mul", 0.5, x)))),
    "clamp": lambda o, low, x, high: o("min", o("max", low, x), high),
}
"""The operations that are made of others. They are called with a function of the name of an operation and its operands,
with their own operands, and with the parameters of JAX's primitive. `"select"` takes a condition, then the value where
it does not hold, and the value where it does."""
