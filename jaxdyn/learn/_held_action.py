"""The simulation in a step of an environment, with nothing to spoil a batch where it diverges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.custom_derivatives import SymbolicZero

from jaxdyn._compile import tracing
from jaxdyn.simulate import State
from jaxdyn.worlds import World

_LARGEST = 1e10
"""The number beyond which coordinates and velocities count as diverged, as in MuJoCo (`mjMAXVAL`)."""


def held_action(
    world: World, before: State, control: Any, substeps: int, reads: tuple[str, ...]
) -> tuple[State, dict[str, Any], Any]:
    """Return the state after some time steps with one control, what `World.step_and_read` reads in the last of them,
    and whether that diverged. If so, the state is that before, readings are zero, and all derivatives are."""

    def advanced(world: World, before: State, control: Any):
        after, readings = world.step_and_read(before, control, names=reads, substeps=substeps)
        fine = jnp.stack([(jnp.abs(x) < _LARGEST).all() for x in (after.q, after.v)]).all()
        # A comparison with NaN is false.
        after = jax.tree.map(lambda x, y: jnp.where(fine, x, y), after, before)
        return after, jax.tree.map(lambda x: jnp.where(fine, x, 0), readings), fine

    after, readings, fine = _without_derivatives_unless(advanced, world, before, control)
    return after, readings, ~fine


def _without_derivatives_unless(function: Callable, *operands: Any) -> Any:
    """Return `function(*operands)`, whose last result says whether the derivatives of all are right; where they are
    not, they are zero.

    A choice by `jnp.where` after the function would not do: its reverse pass multiplies zeros by derivatives that are
    not finite. So the tangents of the operands are set to zero as well, which in the reverse pass stand at its end.
    """
    leaves, structure = jax.tree.flatten(operands)
    # Constants, such as a world that is not traced, stay constants: programs are specialized to them.
    traced = [i for i, x in enumerate(leaves) if isinstance(x, Tracer)]
    results = []

    def flat(*some):
        whole = list(leaves)
        for i, x in zip(traced, some, strict=True):
            whole[i] = x
        found, of_results = jax.tree.flatten(function(*jax.tree.unflatten(structure, whole)))
        results[:] = [of_results]
        return found

    if tracing():
        # The derivative then is that of the operations, for which the steps are not traced again.
        flat = jax.jit(flat)

    def derivative(primals, tangents):
        moved = [i for i, x in enumerate(tangents) if type(x) is not SymbolicZero]

        def by_moved(*some):
            whole = list(primals)
            for i, x in zip(moved, some, strict=True):
                whole[i] = x
            return flat(*whole)

        found, linear = jax.linearize(by_moved, *(primals[i] for i in moved))
        # The truth value is the last result, so that it is known before the tangents are used.
        fine = found[-1]

        def cleaned(x):
            return jnp.where(fine, x, jnp.zeros_like(x)) if jnp.issubdtype(x.dtype, jnp.floating) else x

        return found, [cleaned(x) for x in linear(*(cleaned(tangents[i]) for i in moved))]

    guarded = jax.custom_jvp(flat)
    guarded.defjvp(derivative, symbolic_zeros=True)
    found = guarded(*(leaves[i] for i in traced))
    return jax.tree.unflatten(results[0], found)
