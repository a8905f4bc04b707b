"""Kernels for GPUs that run on this processor, one thread after the other: the same LLVM text, in which all memory has
addresses of one kind and the numbers of a thread come from variables."""

import ctypes
import re

import llvmlite.binding as llvm
import numpy as np

_REGISTERS = "ctaid.x", "ntid.x", "tid.x"


def _on_processor(text: str, name: str, arrays: int) -> str:
    """The text of a module in which the function `all_threads` runs a kernel."""
    text = "\n".join(line for line in text.splitlines() if not line.startswith("target "))
    # A cast between kinds of addresses becomes the address itself.
    text = re.sub(
        r"addrspacecast ptr(?: addrspace\(\d\))? (\S+) to ptr(?: addrspace\(\d\))?",
        r"getelementptr i8, ptr \1, i64 0",
        text,
    )
    text = re.sub(r" addrspace\(\d\)", "", text).replace("ptx_kernel ", "")
    for register in _REGISTERS:
        read = f"@llvm.nvvm.read.ptx.sreg.{register}()"
        text = text.replace(f"declare i32 {read}", f"@{register} = internal global i32 0")
        text = text.replace(f"call i32 {read}", f"load i32, ptr @{register}")
    operands = ", ".join(f"ptr %a{k}" for k in range(arrays))
    loops = f"""
define void @all_threads(i32 %blocks, i32 %threads, {operands}) {{
entry:
  store i32 %threads, ptr @ntid.x
  br label %block
block:
  %b = phi i32 [ 0, %entry ], [ %next_b, %thread ]
  store i32 %b, ptr @ctaid.x
  br label %thread
thread:
  %t = phi i32 [ 0, %block ], [ %next_t, %thread ]
  store i32 %t, ptr @tid.x
  call void @{name}({operands})
  %next_t = add i32 %t, 1
  %more = icmp ult i32 %next_t, %threads
  %next_b = add i32 %b, 1
  %last = icmp uge i32 %next_b, %blocks
  br i1 %more, label %thread, label %after
after:
  br i1 %last, label %done, label %block
done:
  ret void
}}
"""
    return text + loops.replace("[ %next_b, %thread ]", "[ %next_b, %after ]")


def launch(text: str, name: str, arrays: list[np.ndarray], blocks: int, threads: int) -> None:
    """Run all threads of a kernel."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=0
    )
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_on_processor(text, name, len(arrays))), machine)
    engine.finalize_object()
    types = [ctypes.c_int32, ctypes.c_int32, *[ctypes.c_void_p] * len(arrays)]
    function = ctypes.CFUNCTYPE(None, *types)(engine.get_function_address("all_threads"))
    function(blocks, threads, *(x.ctypes.data for x in arrays))
