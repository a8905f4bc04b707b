"""Kernels for NVIDIA GPUs by function, and how XLA launches them."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.native._gpu import GpuBackend
from jaxdyn.native._ptx import THREADS, KernelEntry, assembled
from jaxdyn.native._target import lock, module_for, wanted

MAX_OPERATIONS = 200_000
"""A longer program is not made a kernel: the assembler of CUDA 13.0 took 32 s of processor time for 137,000 operations
(derivatives of Talos' forward dynamics), which the driver needs, too, at the first call."""


class Kernel(NamedTuple):
    """The kernel of a program, which XLA launches."""

    name: str
    text: str
    uniform: tuple[bool, ...]
    """Whether an operand is the same for the whole batch and comes without batch axes."""

    def __call__(self, types: Sequence[jax.ShapeDtypeStruct], *operands) -> Sequence[jax.Array]:
        """Launch the kernel; the results have the given types. Other operands have one batch axis, of the length of the
        batch or 1."""
        batch = types[0].shape[0]
        if not sum(math.prod(t.shape) for t in types):
            return [jnp.zeros(t.shape, t.dtype) for t in types]
        pairs = zip(operands, self.uniform, strict=True)
        sizes = [batch, *(0 if uniform or len(x) == 1 else math.prod(x.shape[1:]) for x, uniform in pairs)]
        launch = {
            "grid_x": -(-batch // THREADS),
            "grid_y": 1,
            "grid_z": 1,
            "block_x": THREADS,
            "block_y": 1,
            "block_z": 1,
        }
        return jax.ffi.ffi_call("__gpu$xla.gpu.ptx", types)(
            np.array(sizes, np.int32),
            *operands,
            name=self.name,
            kernel_type="ptx",
            kernel_data=self.text,
            shared_mem_bytes=np.int32(0),
            **{k: np.int32(n) for k, n in launch.items()},
        )


def kernel(
    function: Callable, shapes: tuple[tuple[int, ...], ...], uniform: tuple[bool, ...], dtype, _batch: int
) -> Kernel | None:
    """Return the kernel of a function of arrays, or None where there is none. The arguments are those of `target`."""
    if not wanted() or np.dtype(dtype) not in (np.float32, np.float64):
        return None
    with lock:
        return made(function, shapes, uniform, np.dtype(dtype).itemsize * 8)


@functools.lru_cache(maxsize=2048)
def made(function: Callable, shapes, uniform, bits: int) -> Kernel | None:
    """Return the kernel of `kernel`, made once in a process for each precision."""
    backend = GpuBackend(bits)
    # Each thread computes what is the same for the whole batch, and XLA sums over the batch.
    within = (False,) * len(shapes)
    found = module_for(function, shapes, within, backend, KernelEntry(backend), most=MAX_OPERATIONS)
    if found is None:
        return None
    # The name in a profile tells programs apart.
    name = f"jaxdyn_{hashlib.sha256(found[0].text.encode()).hexdigest()[:16]}"
    return Kernel(name, assembled(name, found[0].text), uniform)
