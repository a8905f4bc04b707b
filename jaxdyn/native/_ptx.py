"""The modules of programs as kernels for NVIDIA GPUs in PTX, the text that their driver compiles: one thread for each
element of the batch, and one launch for the whole batch.

A kernel reads and writes users' arrays, which have the batch first. Its text depends on the program only: the length of
the batch and the strides of the operands come in an array of their own. LLVM compiles the same functions as for a CPU.
What one function leaves to the next waits in memory of the thread, which for all threads of a warp lies side by side.
"""

from __future__ import annotations

import functools

from jaxdyn.native._emit import Backend
from jaxdyn.native._specialize import Program

THREADS = 64
"""The threads in a block. On an H100, blocks of 32, 64, 128 and 256 threads took the same time within the scatter for
batches of 4096 to 262144 elements of Panda, Solo12 and Talos."""

TRIPLE = "nvptx64-nvidia-cuda"
# Drivers compile text for these for all later devices, so for all that JAX supports.
DEVICE, FEATURES = "sm_60", "+ptx60"
# Addresses and integers of 64 bits; memory of a thread has addresses of its own.
_LAYOUT = "e-p6:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
_REGISTERS = ("ctaid.x", "ntid.x", "tid.x")


KERNEL = "kernel"
"""The name of the function in the text of a module."""


class KernelEntry:
    """The function of a module that XLA launches.

    Its parameters are the addresses of an array of integers, of the operands and of the results. The integers are the
    length of the batch and, for each operand, the numbers from one of its elements to the next.
    """

    def __init__(self, backend: Backend):
        self.backend = backend

    def handlers(self, program: Program, common: int, piece: int, totals: str) -> str:
        """Return the text of the function."""
        assert not common, "a thread computes what is the same for the whole batch, too"
        assert not totals, "XLA computes sums over the batch"
        n, m = len(program.inputs), len(program.outputs)
        read = [
            "ptr addrspace(1) noalias readonly %sizes",
            *(f"ptr addrspace(1) noalias readonly %a{k}" for k in range(n)),
        ]
        written = [f"ptr addrspace(1) noalias %a{n + k}" for k in range(m)]
        lines = [f"define ptx_kernel void @{KERNEL}({', '.join([*read, *written])}) #1 {{"]
        lines += [f"  %r{i} = call i32 @llvm.nvvm.read.ptx.sreg.{x}()" for i, x in enumerate(_REGISTERS)]
        lines += [
            "  %first = mul i32 %r0, %r1",
            "  %number = add i32 %first, %r2",
            "  %batch = load i32, ptr addrspace(1) %sizes",
            "  %inside = icmp ult i32 %number, %batch",
            "  br i1 %inside, label %work, label %done",
            "work:",
            "  %index = zext i32 %number to i64",
            f"  %call = alloca i64, i64 {2 * n + m}",
        ]
        for k in range(n):
            lines += [
                f"  %size{k} = getelementptr i32, ptr addrspace(1) %sizes, i64 {1 + k}",
                f"  %s{k} = load i32, ptr addrspace(1) %size{k}",
                f"  %stride{k} = zext i32 %s{k} to i64",
            ]
        for k, output in enumerate(program.outputs):
            lines.append(f"  %stride{n + k} = add i64 0, {len(output) * program.result_rows(k)}")
        # The addresses of the thread's element of each array: seen from there it is the first of a batch of one.
        for k in range(n + m):
            lines += [
                f"  %before{k} = mul i64 %index, %stride{k}",
                f"  %start{k} = getelementptr {self.backend.float}, ptr addrspace(1) %a{k}, i64 %before{k}",
                f"  %any{k} = addrspacecast ptr addrspace(1) %start{k} to ptr",
                f"  %slot{k} = getelementptr i64, ptr %call, i64 {k}",
                f"  store ptr %any{k}, ptr %slot{k}",
            ]
        for k in range(n + m, 2 * n + m):
            lines += [f"  %slot{k} = getelementptr i64, ptr %call, i64 {k}", f"  store i64 0, ptr %slot{k}"]
        lines += [
            "  call void @blocks(ptr %call, ptr %call, i64 0, i64 1)",
            "  br label %done",
            "done:",
            "  ret void",
            "}",
            "",
            *(f"declare i32 @llvm.nvvm.read.ptx.sreg.{x}()" for x in _REGISTERS),
            f'attributes #1 = {{ nounwind "nvvm.maxntid"="{THREADS}" "nvvm.minctasm"="1" }}',
        ]
        return "\n".join(lines)


@functools.lru_cache(maxsize=2048)
def assembled(name: str, text: str) -> str:
    """Return the PTX of a module, in which the function has a name, which must stand for the text of the module."""
    from jaxdyn.native._compiler import kept_on_disk

    text = f'target triple = "{TRIPLE}"\ntarget datalayout = "{_LAYOUT}"\n{text}'
    return kept_on_disk(f"{name}.ptx", lambda: _assembled(text.replace(f"@{KERNEL}(", f"@{name}(")).encode()).decode()


def _assembled(text: str) -> str:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(TRIPLE).create_target_machine(cpu=DEVICE, features=FEATURES, opt=2)
    module = llvm.parse_assembly(text)
    passes = llvm.create_new_module_pass_manager()
    passes.add_always_inliner_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_sroa_pass()
    passes.add_simplify_cfg_pass()
    passes.add_instruction_combine_pass()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return machine.emit_assembly(module)
