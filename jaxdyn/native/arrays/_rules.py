"""The operations that array programs have, and the conditions under which they do."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jax import lax
from jax.core import Tracer

from jaxdyn.native._jaxprs import ArrayConstant, Operation, flat_jaxpr, jaxprs_of
from jaxdyn.native._operations import COMPOSITES, OPERATIONS
from jaxdyn.native.arrays._text import TYPES

FLOATS_ONLY = {"rsqrt", "logistic", *(name for name, x in OPERATIONS.items() if not x.integer)} - {"pow"}
ELEMENTWISE = {*OPERATIONS, *COMPOSITES, "rem", "select_n", "convert_element_type"}
IDENTITIES = {"copy", "stop_gradient", "optimization_barrier"}
RESHAPES = {"reshape", "squeeze", "expand_dims"}
VIEWS = {*RESHAPES, *IDENTITIES, "broadcast_in_dim", "transpose", "slice", "dynamic_slice", "unstack", "split", "rev"}
REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "reduce_prod"}
JOINS = {"concatenate", "stack", "pad"}
CHEAP = VIEWS | {"iota"}
"""The operations that compute nothing."""
FREE = RESHAPES | IDENTITIES
"""The operations that XLA does without copying."""
CONTROL = {"while", "scan", "cond"}
OTHERS = {"iota", "dot_general", "gather", "scatter", "dynamic_update_slice", "argmax", "argmin", "cumsum"}
OTHERS |= {"cholesky", "triangular_solve"}
LARGE = 100**3
"""The most multiplications of a product, without axes of a batch: those of Talos in a Riccati recursion, 76 * 76 * 109,
take no longer than XLA's (measured); longer ones were not measured."""
KNOWN = ELEMENTWISE | VIEWS | REDUCTIONS | JOINS | CONTROL | OTHERS


def has_rule(operation: Operation) -> bool:
    """Return whether an operation can be a part of an array program."""
    name, inputs = operation.name, operation.inputs
    atoms = (*inputs, *operation.outputs)
    if name not in KNOWN or not all(a.dtype in TYPES for a in atoms):
        return False
    if any(isinstance(a, ArrayConstant) and isinstance(a.value, Tracer) for a in atoms):
        return False
    if name in CONTROL:
        inside = (o for jaxpr in jaxprs_of(operation) for o in flat_jaxpr(jaxpr).operations)
        return not operation.has_effects and all(map(has_rule, inside))
    kinds = {np.dtype(a.dtype).kind for a in inputs}
    if name in FLOATS_ONLY:
        return kinds == {"f"}
    return name not in _CONDITIONS or _CONDITIONS[name](operation, kinds)


def _multiplications(operation: Operation) -> int:
    """The number of multiplications of a product for one element of its batch."""
    a, b = operation.inputs
    (contracted, _), (batch, _) = operation.params["dimension_numbers"]
    of_sums, of_batch = (math.prod(a.shape[i] for i in axes) for axes in (contracted, batch))
    return a.size * b.size // max(1, of_sums * of_batch**2)


def _sets_rows(operation: Operation) -> bool:
    """Whether a scatter writes whole elements or rows along the first axes of an array."""
    array, indices, update = operation.inputs
    d, axes = operation.params["dimension_numbers"], indices.shape[-1]
    rows, window = indices.shape[:-1], array.shape[axes:]
    return (
        update.shape == (*rows, *window)
        and tuple(d.update_window_dims) == tuple(range(len(rows), len(update.shape)))
        and tuple(d.inserted_window_dims) == tuple(d.scatter_dims_to_operand_dims) == tuple(range(axes))
        and not d.operand_batching_dims
    )


def _is_a_product_of_floats(operation: Operation, kinds: set[str]) -> bool:
    same = len({a.dtype for a in (*operation.inputs, *operation.outputs)}) == 1
    return kinds == {"f"} and same and _multiplications(operation) <= LARGE


_CONDITIONS: dict[str, Callable[[Operation, set[str]], bool]] = {
    "pow": lambda o, kinds: np.dtype(o.inputs[0].dtype).kind == "f",
    "integer_pow": lambda o, kinds: kinds == {"f"} or o.params["y"] >= 0,
    "select_n": lambda o, kinds: np.dtype(o.inputs[0].dtype) == bool and len(o.inputs) == 3,
    "pad": lambda o, kinds: all(a >= 0 and b >= 0 and not inner for a, b, inner in o.params["padding_config"]),
    "dot_general": _is_a_product_of_floats,
    "cholesky": lambda o, kinds: kinds == {"f"},
    "triangular_solve": lambda o, kinds: kinds == {"f"} and o.params["left_side"] and not o.params["unit_diagonal"],
    **dict.fromkeys(("argmax", "argmin"), lambda o, kinds: len(o.inputs[0].shape) == 1),
    "cumsum": lambda o, kinds: len(o.inputs[0].shape) == 1 and "b" not in kinds,
    "scatter": lambda o, kinds: _sets_rows(o),
    "gather": lambda o, kinds: o.params["mode"] in _MODES,
    **dict.fromkeys(("reduce_sum", "reduce_prod"), lambda o, kinds: "b" not in kinds),
    **dict.fromkeys(("reduce_and", "reduce_or"), lambda o, kinds: kinds == {"b"}),
}
"""The conditions of operations that do not always have a rule, on them and the kinds of their operands' types."""
_MODES = (
    *(lax.GatherScatterMode.CLIP, lax.GatherScatterMode.PROMISE_IN_BOUNDS),
    lax.GatherScatterMode.FILL_OR_DROP,
)
