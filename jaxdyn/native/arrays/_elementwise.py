"""Rules of elementwise operations."""

from __future__ import annotations

import numpy as np
from jax import lax

from jaxdyn.native._jaxprs import Operation
from jaxdyn.native._operations import COMPOSITES
from jaxdyn.native.arrays._array_values import Array, Buffer, Chosen, Literal, Mapped
from jaxdyn.native.arrays._reindexing import Views


class Elementwise(Views):
    """The rules of operations on each element."""

    def _elementwise(self, operation: Operation, *given: Array) -> Array:
        (v,) = operation.outputs
        text, name, source = self.text, operation.name, given[0].dtype
        arrays = [self.broadcast(a, v.shape, range(len(v.shape))) if a.shape else a for a in given]
        last = text.lanes_within(v.shape[-1]) if v.shape and all(a.along_last for a in arrays) else 1
        # Rows that are shorter than a vector have shorter vectors, unless flat order takes no copies.
        vectors = last == text.lanes or (last > 1 and not all(a.flat for a in arrays))
        if v.size >= text.lanes and not vectors:
            # In flat order, several elements are taken at once, whatever the length of the last axis.
            arrays = [a if a.flat else self.in_memory(a) for a in arrays]
            moved = zip(operation.inputs, arrays, strict=True)
            self._moved = {atom: a for atom, a in moved if isinstance(a, Buffer) and a.shape == atom.shape}
        if name == "select_n":
            return self._choice(*arrays)
        if name == "convert_element_type":
            if source == v.dtype:
                return arrays[0]
            if isinstance(arrays[0], Literal):
                return Literal(np.asarray(arrays[0].value, v.dtype), v.shape, v.dtype)
            function = lambda lanes, x: text.convert(x, source, v.dtype, lanes)  # noqa: E731
        elif name == "round":
            half = {lax.RoundingMethod.TO_NEAREST_EVEN: "roundeven", lax.RoundingMethod.AWAY_FROM_ZERO: "round"}
            name = half[operation.params["rounding_method"]]
            function = lambda lanes, x: text.operate(name, [x], source, lanes)  # noqa: E731
        elif name == "pow" and arrays[1].dtype != source:
            of_power = arrays[1].dtype
            function = lambda lanes, x, n: text.operate(  # noqa: E731
                "pow", [x, text.convert(n, of_power, source, lanes)], source, lanes
            )
        else:
            params = operation.params if name in COMPOSITES else {}
            function = lambda lanes, *xs: text.operate(name, xs, source, lanes, **params)  # noqa: E731
        return Mapped(arrays, v.shape, v.dtype, function)

    def _choice(self, condition: Array, otherwise: Array, then: Array) -> Array:
        if condition.shape or not then.shape:
            dtype, text = then.dtype, self.text

            def function(lanes: int, which: str, otherwise: str, then: str) -> str:
                return text.choose(which, then, otherwise, dtype, lanes)

            return Mapped([condition, otherwise, then], then.shape, dtype, function)
        which = self.scalar(condition)
        if isinstance(then, Buffer) and isinstance(otherwise, Buffer):
            if then.address == otherwise.address:
                return then
            # The arrays stay where they are: only an address is chosen.
            address = self.text.value(f"select i1 {which}, ptr {then.address}, ptr {otherwise.address}")
            return Buffer(address, then.shape, then.dtype, then.memory | otherwise.memory)
        return Chosen(which, then, otherwise)
