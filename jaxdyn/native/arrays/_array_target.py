"""The registration of array programs with XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxdyn.native._interface import interface
from jaxdyn.native._target import enabled, lock, registered_name, without_garbage_collection
from jaxdyn.native.arrays._array_module import array_module
from jaxdyn.native.arrays._program import ArrayProgram


class ArrayTarget(NamedTuple):
    """An array program that is registered with XLA."""

    name: str
    memory: int
    """The bytes of memory that it needs."""

    def __call__(self, types: Sequence[jax.ShapeDtypeStruct], *operands) -> Sequence[jax.Array]:
        """Call the program; the results have the given types."""
        memory = jax.ShapeDtypeStruct((self.memory,), np.uint8)
        return jax.ffi.ffi_call(self.name, [*types, memory])(*operands)[:-1]


def array_target(program: ArrayProgram) -> ArrayTarget | None:
    """Return an array program, registered with XLA, or None where native code is turned off."""
    if not enabled():
        return None
    from jaxdyn.native._compiler import host

    with lock, without_garbage_collection():
        text, memory = array_module(program, host().vector_bits, interface())
        return ArrayTarget(registered_name(text, ["handler"]), memory)
