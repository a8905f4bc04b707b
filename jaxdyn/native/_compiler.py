"""LLVM text to machine code in this process, and machine code on disk."""

from __future__ import annotations

import functools
import os
import pathlib
import tempfile
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import llvmlite.binding as llvm


class Host(NamedTuple):
    """The processor that programs are compiled for."""

    triple: str
    cpu: str
    features: str
    vector_bits: int
    """The length of a vector register, or 0 where there is no fused multiply-add, which programs need."""
    optimization: int
    """LLVM's level of optimization: 0 where `XLA_FLAGS` has XLA's backend compile without optimizations, else 1."""


@functools.cache
def host() -> Host:
    """Return this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    triple = llvm.get_process_triple()
    vector_bits = 512 if features.get("avx512f") else 256 if features.get("avx2") else 128
    if triple.startswith(("x86", "i686")) and not features.get("fma"):
        vector_bits = 0
    # Tests turn off XLA's optimizations to compile quickly; without its own, LLVM takes a fifth of the time.
    quick = "--xla_backend_optimization_level=0" in os.environ.get("XLA_FLAGS", "").split()
    return Host(triple, llvm.get_host_cpu_name(), features.flatten(), vector_bits, 0 if quick else 1)


def load_functions(name: str, text: str, functions: Sequence[str]) -> list[int]:
    """Return the addresses of functions of a module, which stays loaded.

    With JAX's cache of compiled programs on disk, the machine code is kept there, too, under a name that stands for
    the text and the processor.
    """
    here = host()
    target = llvm.Target.from_triple(here.triple)
    machine = target.create_target_machine(cpu=here.cpu, features=here.features, opt=here.optimization)
    code = kept_on_disk(f"{name}.o", lambda: machine.emit_object(llvm.parse_assembly(text)))
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _loaded.append(engine)
    return [engine.get_function_address(function) for function in functions]


_loaded: list[llvm.ExecutionEngine] = []


def kept_on_disk(name: str, make: Callable[[], bytes]) -> bytes:
    """Return what `make` returns, which with JAX's cache of compiled programs on disk is kept in a file there."""
    file = _cache_file(name)
    if file is not None and file.exists():
        return file.read_bytes()
    code = make()
    if file is not None:
        _write(file, code)
    return code


def _cache_file(name: str) -> pathlib.Path | None:
    folder = jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    if not folder or "://" in folder or not jax.config.jax_enable_compilation_cache:  # type: ignore[attr-defined]
        return None
    return pathlib.Path(folder) / name


def _write(file: pathlib.Path, code: bytes) -> None:
    """Write a file as a whole: another process never sees a part of it."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as temporary:
            temporary.write(code)
        os.replace(temporary.name, file)
    except OSError:
        # A folder that cannot be written to only costs time, as with JAX's own cache.
        pass
