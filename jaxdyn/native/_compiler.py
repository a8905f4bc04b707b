"""LLVM text to machine code in this process."""

from __future__ import annotations

import functools
from typing import NamedTuple

import llvmlite.binding as llvm


class Host(NamedTuple):
    """The processor that programs are compiled for."""

    triple: str
    cpu: str
    features: str
    vector_bits: int


@functools.cache
def host() -> Host:
    """Return this processor."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    triple = llvm.get_process_triple()
    vector_bits = 512 if features.get("avx512f") else 256 if features.get("avx2") and features.get("fma") else 128
    if triple.startswith(("x86", "i686")) and not features.get("fma"):
        vector_bits = 0
    return Host(triple, llvm.get_host_cpu_name(), features.flatten(), vector_bits)


_ENGINES = []


def compile_module(text: str) -> int:
    """Return the address of the function `handler` of a module, which stays loaded."""
    here = host()
    module = llvm.parse_assembly(text)
    target = llvm.Target.from_triple(here.triple)
    machine = target.create_target_machine(cpu=here.cpu, features=here.features, opt=1)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    _ENGINES.append(engine)
    return engine.get_function_address("handler")
