"""An interpreter of the PTX that the library writes, in NumPy, for all threads of a launch at once."""

import re
import struct

import numpy as np

_TYPES = {"f": np.float32, "p": np.bool_, "r": np.uint32, "d": np.uint64, "g": np.float64}
"""The types of registers by the letters that their names begin with."""
_ARRAY = 40
"""The number of an array is above these bits of an address, the offset in bytes below."""


def _fma(a, b, c):
    # A product of single-precision numbers is exact in double precision.
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


def _signed(x):
    return x.astype(np.int32) if x.dtype == np.uint32 else x.astype(np.int64)


def _wide(a, b):
    return a.astype(np.uint64) * b.astype(np.uint64)


def _funnel(low, high, shift):
    both = (high.astype(np.uint64) << 32 | low.astype(np.uint64)) << (shift & 31).astype(np.uint64)
    return (both >> 32).astype(np.uint32)


_OPERATIONS = {
    "abs.f32": np.abs,
    "neg.f32": np.negative,
    "sqrt.rn.f32": np.sqrt,
    "rcp.rn.f32": lambda a: np.float32(1) / a,
    "div.rn.f32": np.divide,
    "max.f32": np.fmax,
    "min.f32": np.fmin,
    "fma.rn.f32": _fma,
    "mul.rn.f64": np.multiply,
    "copysign.f32": lambda sign, size: np.copysign(size, sign),
    "cvt.rmi.f32.f32": np.floor,
    "cvt.rpi.f32.f32": np.ceil,
    "selp.f32": lambda a, b, p: np.where(p, a, b),
    "selp.b32": lambda a, b, p: np.where(p, a, b),
    "and.pred": np.logical_and,
    "or.pred": np.logical_or,
    "not.pred": np.logical_not,
    "setp.nan.f32": lambda a, b: np.isnan(a) | np.isnan(b),
    "setp.ne.s32": np.not_equal,
    "setp.ge.u32": np.greater_equal,
    "setp.lt.s32": lambda a, b: _signed(a) < _signed(b),
    "and.b32": np.bitwise_and,
    "or.b32": np.bitwise_or,
    "xor.b32": np.bitwise_xor,
    "shl.b32": np.left_shift,
    "shl.b64": np.left_shift,
    "shr.u32": np.right_shift,
    "shr.u64": np.right_shift,
    "shr.s32": lambda a, n: _signed(a) >> n.astype(np.int32),
    "shf.l.wrap.b32": _funnel,
    "add.s32": np.add,
    "add.s64": np.add,
    "sub.s32": np.subtract,
    "sub.s64": np.subtract,
    "neg.s32": np.negative,
    "mul.lo.u32": np.multiply,
    "mul.hi.u32": lambda a, b: _wide(a, b) >> 32,
    "mul.wide.u32": _wide,
    "mad.lo.s32": lambda a, b, c: a * b + c,
    "mad.wide.u32": lambda a, b, c: _wide(a, b) + c,
    "cvt.u64.u32": lambda a: a,
    "cvt.u32.u64": lambda a: a & 0xFFFFFFFF,
    "cvt.rn.f32.s32": lambda a: _signed(a),
    "cvt.rn.f64.s64": lambda a: _signed(a),
    "cvt.rn.f32.f64": lambda a: a,
    "cvta.to.global.u64": lambda a: a,
}
_OPERATIONS |= {
    f"{name}{rounding}.f32": f
    for name, f in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply))
    for rounding in ("", ".rn")
}
_OPERATIONS |= {
    f"setp.{name}.f32": f
    for name, f in (
        ("lt", np.less),
        ("le", np.less_equal),
        ("gt", np.greater),
        ("ge", np.greater_equal),
        ("eq", np.equal),
        ("neu", np.not_equal),
    )
}


class Launch:
    """A launch of a kernel: `blocks` blocks of `size` threads, with arrays as parameters, of which it writes some."""

    def __init__(self, text: str, arrays: list, blocks: int, size: int):
        self.memory = [x.reshape(-1) for x in arrays]
        self.registers = {
            "%ctaid.x": np.repeat(np.arange(blocks, dtype=np.uint32), size),
            "%ntid.x": np.uint32(size),
            "%tid.x": np.tile(np.arange(size, dtype=np.uint32), blocks),
        }
        self.running = np.ones(blocks * size, bool)
        self.jumps: dict = {}
        for name, words in re.findall(r"\.const \.align 4 \.b32 (\w+)\[\d+\] = \{(.*)\};", text):
            self.registers[name] = np.uint64(len(self.memory) << _ARRAY)
            self.memory.append(np.array([int(w, 16) for w in words.split(", ")], np.uint32))
        with np.errstate(all="ignore"):
            body = text[text.index("{\n", text.index(".entry")) + 2 :]
            lines, at = [line.strip().removesuffix(";") for line in body.splitlines()], 0
            while at < len(lines):
                if not lines[at].startswith("bra "):
                    self.step(lines[at])
                elif self.running.any():
                    # The way back to the head of a loop, for the threads that still run.
                    at = lines.index(lines[at].removeprefix("bra ") + ":")
                at += 1

    def step(self, line: str) -> None:
        if line.endswith(":"):
            self.running = self.running | self.jumps.pop(line[:-1], False)
        elif jump := re.fullmatch(r"@(!?)(%p\d+) bra (\w+)", line):
            leaves = self.running & (self.registers[jump[2]] ^ (jump[1] == "!"))
            self.jumps[jump[3]] = self.jumps.get(jump[3], False) | leaves
            self.running = self.running & ~leaves
        elif line and line != "}" and line != "ret" and not line.startswith(".reg"):
            self.execute(*line.split(" ", 1))

    def execute(self, operation: str, rest: str) -> None:
        target, *args = rest.split(", ")
        if operation == "st.global.f32":
            memory, places = self.place(target)
            values = np.broadcast_to(self.value(args[0], np.float32), self.running.shape)
            memory[places[self.running]] = values[self.running]
            return
        dtype = _TYPES[target[1]]
        if operation == "ld.param.u64":
            value = np.uint64(int(args[0][2:-1]) << _ARRAY)
        elif operation.startswith("ld."):
            memory, places = self.place(args[0])
            # Threads that do not run have addresses beyond the array.
            value = memory[np.where(self.running, places, 0)]
        elif operation.startswith("mov."):
            x = self.value(args[0], np.float32 if args[0].startswith("0f") else dtype)
            value = x.view(dtype) if x.dtype.itemsize == np.dtype(dtype).itemsize else x
        else:
            # The constants of an operation have the type of its other operands.
            kinds = [_TYPES[a[1]] for a in args if a.startswith("%")]
            value = _OPERATIONS[operation](*(self.value(a, kinds[0] if kinds else np.float32) for a in args))
        value = np.broadcast_to(np.asarray(value).astype(dtype), self.running.shape)
        self.registers[target] = np.where(self.running, value, self.registers.get(target, value))

    def place(self, address: str):
        """The array of an address in brackets, and the threads' places in it."""
        register, offset = address[1:-1].split("+")
        bytes_ = np.broadcast_to(self.registers[register], self.running.shape) + np.uint64(offset)
        (array,) = set((bytes_[self.running] >> _ARRAY).tolist()) or {0}
        return self.memory[array], ((bytes_ & ((1 << _ARRAY) - 1)) // 4).astype(np.int64)

    def value(self, text: str, dtype):
        if text in self.registers:
            return self.registers[text]
        if text.startswith("0f"):
            return np.float32(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
        if text.startswith("0d"):
            return np.float64(struct.unpack(">d", bytes.fromhex(text[2:]))[0])
        return dtype(int(text))
