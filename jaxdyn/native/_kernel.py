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

from jaxdyn.native._arrays import UnsupportedError
from jaxdyn.native._ptx import THREADS, kernel_text
from jaxdyn.native._specialize import specialize
from jaxdyn.native._target import wanted


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
        own = [x for x, uniform in zip(operands, self.uniform, strict=True) if not uniform]
        sizes = [batch, *(4 * math.prod(x.shape[1:]) if len(x) > 1 else 0 for x in own)]
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
    """Return the kernel of a function of arrays, or None where there is none, as for a repetition. The arguments are
    those of `target`."""
    without = any(getattr(function, name, None) is not None for name in ("repetition", "collection"))
    if not wanted() or np.dtype(dtype) != np.float32 or without:
        return None
    return _kernel(function, shapes, uniform)


@functools.cache
def _kernel(function: Callable, shapes, uniform) -> Kernel | None:
    inputs = [jax.ShapeDtypeStruct(shape, "float32") for shape in shapes]
    try:
        program = specialize(function, inputs, uniform, 32)
        text = kernel_text(program, "jaxdyn")
    except UnsupportedError:
        return None
    # The name in a profile tells programs apart.
    name = f"jaxdyn_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return Kernel(name, text.replace(".entry jaxdyn(", f".entry {name}("), uniform)
