"""Parametrizations: bijections between free numbers and robots, physical by construction."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, require_last_axes
from jaxdyn._types import Array, Float
from jaxdyn.sysid.parameters._block import AbstractBlock, AbstractChoice, leaf_name, model_of


class Parametrization(eqx.Module):
    """What of a robot is free, as a smooth bijection from `size` unconstrained numbers.

    ```python
    p = Parametrization(model, LogCholesky(), Positive("damping"), Additive("gravity", at=2))
    better = p.model(free)  # free: [p.size], any numbers at all
    free = p.free(better)
    ```

    The robot is a `Model`, or a pytree that has one as its attribute `model`, such as `Robot`. All zeros are the
    reference, the robot that is given here; numbers are without units and of about the size of relative changes. A
    pytree: `jax.vmap` maps over free numbers, and over parametrizations whose references differ
    (`equinox.filter_vmap(lambda model: Parametrization(model, ...))(models)`).

    **Arguments**

    - `reference`: the robot, without batch axes, from which what is not free is taken.
    - `choices`: `LogCholesky`, `FixedMass`, `InertiaScale`, `Payload`, `Positive`, `Additive`, `LinkLength`,
      `Placement`, `Symmetric`.

    **Raises** `ModelError` where two choices are about the same entry, where a reference has no coordinates (a body
    that no distribution of mass is, friction of zero), and for batch axes; `UnknownNameError` for names.
    """

    reference: Any
    blocks: tuple[AbstractBlock, ...]

    def __init__(self, reference: Any, *choices: AbstractChoice):
        model = model_of(reference)
        if model.inertial_parameters.ndim != 2:
            raise ModelError(
                f"the reference has batch axes {list(model.inertial_parameters.shape[:-2])}: take one element, or map "
                "over them with equinox.filter_vmap(lambda model: Parametrization(model, ...))"
            )
        if not choices:
            raise ModelError("no choices are given, so nothing is free; give LogCholesky(), for instance")
        for choice in choices:
            if not isinstance(choice, AbstractChoice):
                raise ModelError(
                    f"{choice!r} says not what is free; give choices such as LogCholesky() or Positive('damping')"
                )
        reference = jax.tree.map(jnp.asarray, reference)
        blocks = tuple(choice.bind(reference) for choice in choices)
        taken: dict[tuple[int, int], str] = {}
        for choice, block in zip(choices, blocks, strict=True):
            for claim in block.claims:
                if claim in taken:
                    leaf, place = claim
                    raise ModelError(
                        f"{taken[claim]} and {type(choice).__name__} are both about entry {place} of "
                        f"{leaf_name(reference, leaf)}, which can have one value only; divide the bodies or joints "
                        "among them"
                    )
                taken[claim] = type(choice).__name__
        self.reference, self.blocks = reference, blocks

    @property
    def size(self) -> int:
        """How many numbers are free."""
        return sum(block.size for block in self.blocks)

    @property
    def names(self) -> tuple[str, ...]:
        """What each of the free numbers is."""
        return tuple(name for block in self.blocks for name in block.names)

    def zeros(self) -> Float[Array, "size"]:
        """The free numbers of the reference."""
        return jnp.zeros(self.size, model_of(self.reference).dtype)

    def model(self, free: Float[Array | np.ndarray, "*batch size"]) -> Any:
        """The robot for free numbers `[*batch, size]`; its leaves have the batch axes. **Raises** `ShapeError`."""
        return self._batched(_model, free)

    def free(self, model: Any) -> Float[Array, "size"]:
        """The free numbers of a robot: the inverse of `model`.

        **Raises** `ModelError`, where values are known, for a robot that `model` cannot give: one that differs from the
        reference in what is not free.
        """
        if jax.tree.structure(model) != jax.tree.structure(self.reference):
            raise ModelError("the robot has another structure than the reference of the parametrization")
        x, again = _free(self, model)
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((x, model, self.reference))):
            return x
        eps = float(jnp.finfo(model_of(model).dtype).eps)
        for i, (ours, theirs) in enumerate(zip(jax.tree.leaves(again), jax.tree.leaves(model), strict=True)):
            a, b = np.asarray(ours), np.asarray(theirs)
            scale = np.abs(b[np.isfinite(b)]).max(initial=0.0)
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e3 * eps, atol=1e3 * eps * scale, equal_nan=True):
                raise ModelError(
                    f"no free numbers give this robot: its {leaf_name(self.reference, i)} is other than the "
                    "parametrization can make it. What is not free must be as in the reference"
                )
        return x

    def moved(self, free: Float[Array, "size"], step: Float[Array, "size"]) -> Float[Array, "size"]:
        """The free numbers of what has `step` for its numbers about the robot at `free`, as `about(...)` counts them:
        steps in the units that the present robot has."""
        return _moved(self, free, step)

    def about(self, model: Any) -> Parametrization:
        """The same choice with another reference, in its precision."""
        dtype = model_of(model).dtype
        new = jax.tree.map(jnp.asarray, model), jax.tree.map(lambda x: x.astype(dtype), self.blocks)
        return eqx.tree_at(lambda p: (p.reference, p.blocks), self, new)

    def pull(self, free: Float[Array, "*batch size"]) -> Float[Array, "*batch size"]:
        """Residuals whose sum of squares is `divergence(free)`: regularization for least squares. Smooth, with a
        derivative of full rank, so that with any weight no free number is left without an equation."""
        return self._batched(_pull, free)

    def divergence(self, free: Float[Array, "*batch size"]) -> Float[Array, "*batch"]:
        """How far a robot is from the reference: the sum over the choices, each of which says what its part is. For
        inertias it is the entropic divergence of pseudo-inertias, which depends on neither frames nor units (Lee,
        Wensing & Park, Geometric robot dynamic identification, T-RO 2020), infinite at the edge of what is physical."""
        return jnp.sum(self.pull(free) ** 2, axis=-1)

    def _parts(self, free: jax.Array) -> list[jax.Array]:
        ends = np.cumsum([block.size for block in self.blocks])
        return [free[end - block.size : end] for block, end in zip(self.blocks, ends, strict=True)]

    def _batched(self, function, free):
        free = jnp.asarray(free)
        require_last_axes(free, (self.size,), "free", f"one number for each of {self.size} in Parametrization.names")
        for _ in free.shape[:-1]:
            function = jax.vmap(function, in_axes=(None, 0))
        return function(self, free)


# Compiled by themselves, for eager use; inside a user's `jit` they are parts of its program.


@eqx.filter_jit
def _model(p: Parametrization, free: jax.Array) -> Any:
    tree = p.reference
    for block, x in zip(p.blocks, p._parts(free), strict=True):
        tree = block.apply(p.reference, tree, x)
    return tree


@eqx.filter_jit
def _free(p: Parametrization, model: Any) -> tuple[jax.Array, Any]:
    """The free numbers, and the robot that has them."""
    x = jnp.concatenate([block.coordinates(p.reference, model) for block in p.blocks])
    return x, _model(p, x)


@eqx.filter_jit
def _moved(p: Parametrization, free: jax.Array, step: jax.Array) -> jax.Array:
    parts = zip(p.blocks, p._parts(free), p._parts(step), strict=True)
    return jnp.concatenate([block.moved(x, dx) for block, x, dx in parts])


@eqx.filter_jit
def _pull(p: Parametrization, free: jax.Array) -> jax.Array:
    parts = zip(p.blocks, p._parts(free), strict=True)
    return jnp.concatenate([block.pull(x) for block, x in parts])
