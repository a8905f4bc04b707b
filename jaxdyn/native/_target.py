"""Programs by function, and their registration with XLA."""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import functools
import gc
import hashlib
import math
import os
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from jaxdyn.native._arrays import UnsupportedError
from jaxdyn.native._emit import Backend
from jaxdyn.native._interface import interface
from jaxdyn.native._specialize import specialize

if TYPE_CHECKING:
    from jaxdyn.native._module import Handlers, Module


class Target(NamedTuple):
    """A native program that is registered with XLA."""

    name: str
    uniform: tuple[bool, ...]
    """Whether an operand is the same for the whole batch and comes without batch axes."""
    common: int
    """The number of values that depend on these operands only. They are computed by a call of their own, which XLA
    takes out of loops, and which is the first operand of the other."""
    summed: tuple[bool, ...]
    """Whether a result is a sum over the batch, for which the axis of the batch has length 1; empty if none is."""
    piece: int
    """The number of elements of the batch in a piece, for which the program needs memory of its own for its sums."""
    piece_row: int
    """The numbers in this memory for each piece, or 0."""

    def __call__(self, types: Sequence[jax.ShapeDtypeStruct], *operands) -> Sequence[jax.Array]:
        """Call the program; the results have the given types, but for those that are sums over the batch. Operands that
        are not uniform have one batch axis, of the length of the batch or 1."""
        same = [x for x, uniform in zip(operands, self.uniform, strict=True) if uniform]
        others = [x for x, uniform in zip(operands, self.uniform, strict=True) if not uniform]
        if self.common:
            common = jax.ShapeDtypeStruct((self.common,), types[0].dtype)
            others = [jax.ffi.ffi_call(f"{self.name}_common", common)(*same), *others]
        if not self.piece_row:
            return jax.ffi.ffi_call(self.name, types)(*others)
        pieces = max(1, -(-types[0].shape[0] // self.piece))
        types = [
            jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype) if summed else x
            for x, summed in zip(types, self.summed, strict=True)
        ]
        memory = jax.ShapeDtypeStruct((pieces, self.piece_row), types[0].dtype)
        return jax.ffi.ffi_call(self.name, [*types, memory])(*others)[:-1]


class NativeStatus(NamedTuple):
    """Whether functions run as native code."""

    enabled: bool
    reason: str
    """The reason where they do not, else a description of the processor."""


lock = threading.RLock()
"""Programs are made and registered by one thread at a time."""
_wanted = contextvars.ContextVar("jaxdyn_native", default=os.environ.get("JAXDYN_NATIVE", "1") != "0")


@contextlib.contextmanager
def disabled() -> Iterator[None]:
    """Run the body without native code: jaxdyn's functions that are called or compiled in it are compiled by XLA.

    A function that the user has compiled with `jax.jit` before stays as it is.
    """
    token = _wanted.set(False)
    try:
        yield
    finally:
        _wanted.reset(token)


def wanted() -> bool:
    """Return whether native code is not turned off."""
    return _wanted.get()


def enabled() -> bool:
    """Return whether functions run as native code on this machine's processor where they can."""
    return wanted() and not _missing()


def status() -> NativeStatus:
    """Return whether functions run as native code on this machine's processor, and if not, why."""
    if not _wanted.get():
        return NativeStatus(False, "turned off, by JAXDYN_NATIVE=0 or disabled()")
    missing = _missing()
    if missing:
        return NativeStatus(False, missing)
    from jaxdyn.native._compiler import host

    here = host()
    return NativeStatus(True, f"{here.cpu}, vectors of {here.vector_bits} bits")


@functools.cache
def _missing() -> str:
    """Return why there is no native code on this machine, or an empty text."""
    try:
        from jaxdyn.native._compiler import host
    except ImportError as error:
        return f"llvmlite cannot be imported ({error}); pip install llvmlite"
    version = interface()
    if not version.known:
        return f"version {version.major}.{version.minor} of XLA's foreign function interface is not known"
    if not host().vector_bits:
        return f"the processor {host().cpu} has no fused multiply-add"
    return ""


SHORT = 128
"""The bits of the vectors of a program for a batch that fits into one of them. Operations on short vectors end sooner,
and in a single roll-out each step waits for the one before."""


LANES = 4
"""The most lanes of the vectors of a program for a single roll-out, which hold alike operations of several branches."""


def target(
    function: Callable, shapes: tuple[tuple[int, ...], ...], uniform: tuple[bool, ...], dtype, batch: int
) -> Target | None:
    """Return the native program of a function of arrays, registered with XLA, or None where there is none.

    `shapes` are those of the operands without batch axes, `uniform` says which are the same for the whole batch.
    `batch` is the length of the batch that the program is for; only programs of repetitions depend on it, so that
    others are made once.
    """
    if not enabled() or np.dtype(dtype) not in (np.float32, np.float64):
        return None
    bits = np.dtype(dtype).itemsize * 8
    repeated = getattr(function, "repetition", None) is not None
    with lock:
        return cached_target(
            function, shapes, uniform, bits, repeated and batch <= SHORT // bits, repeated and batch == 1
        )


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Run the body without Python's search for cycles, which would go over all nodes of a program again and again, and
    find none: it took a third of the time to specialize a function."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@functools.lru_cache(maxsize=2048)
def cached_target(function: Callable, shapes, uniform, bits: int, short: bool, one: bool) -> Target | None:
    """Return the program of `target`, made once in a process for each precision and length of vectors, and for `one`
    element of the batch. Functions of users are new ones each time that a program with them is traced, so the oldest
    are forgotten."""
    from jaxdyn.native._compiler import host

    longest = host().vector_bits // bits
    backend = Backend(bits, min(LANES, longest) if one else SHORT // bits if short else longest)
    made = module_for(function, shapes, uniform, backend, interface(), one=one)
    if made is None:
        return None
    module, summed = made
    name = registered_name(module.text, ["handler", "prepare_handler"] if module.common else ["handler"])
    return Target(name, uniform, module.common, summed, module.piece, module.piece_row)


def module_for(
    function: Callable, shapes, uniform, backend: Backend, handlers: Handlers, *, one=False, most: float = math.inf
) -> tuple[Module, tuple[bool, ...]] | None:
    """Return the module of a function of arrays, and which of its results are sums over the batch; or None where it has
    none of at most so many operations. With `one`, it is for one element of the batch."""
    from jaxdyn.native._collection import collection_module
    from jaxdyn.native._module import module_of

    try:
        with without_garbage_collection():
            if (collection := getattr(function, "collection", None)) is not None:
                return collection_module(collection, shapes, backend, handlers), ()
            inputs = [jax.ShapeDtypeStruct(shape, f"float{backend.bits}") for shape in shapes]
            program = specialize(function, inputs, uniform, backend.bits, row_loops=True)._replace(one=one)
            if len(program.nodes) > most:
                raise UnsupportedError(f"more than {most} operations")
            return module_of(program, backend, handlers), program.summed
    except UnsupportedError as error:
        name_slow(function, error)
        return None


def registered_name(text: str, handlers: Sequence[str]) -> str:
    """Compile a module, register its handlers with XLA, and return the name of the first. The `lock` is held."""
    from jaxdyn.native._compiler import host, load_functions

    here = host()
    # The name is the program's, so that a compiled XLA program from JAX's cache on disk finds it in another process.
    parts = text, here.cpu, here.features, str(here.optimization)
    name = f"jaxdyn_{hashlib.sha256('|'.join(parts).encode()).hexdigest()[:32]}"
    if name not in _registered:
        capsule = ctypes.pythonapi.PyCapsule_New
        capsule.restype, capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        names = [name, f"{name}_common"]
        for registered, address in zip(names, load_functions(name, text, handlers), strict=False):
            handler = capsule(address, b"xla._CUSTOM_CALL_TARGET", None)
            jax.ffi.register_ffi_target(registered, handler, platform="cpu", api_version=1)
        _registered.add(name)
    return name


def name_slow(function: Callable, error: UnsupportedError) -> None:
    """Warn once in a process of an operation that keeps a user's function from having a native program."""
    while hasattr(function, "of"):
        function = function.of
    operation = error.operation
    if getattr(function, "of_user", False) and operation is not None and operation not in _slow:
        _slow.add(operation)
        warnings.warn(
            f"JAX's primitive '{operation}' keeps a function of this problem from running as native code, so XLA "
            "compiles it, and it may run many times slower: write the function without it if time matters",
            UserWarning,
            stacklevel=2,
        )


_slow: set[str] = set()
_registered: set[str] = set()
