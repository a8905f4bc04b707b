"""The check of derivatives that all tests share: forward mode, reverse mode and central differences agree."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

BOTH = ("forward", "reverse")


def check_derivatives(
    function: Callable,
    *args: Any,
    along: Any = None,
    each: bool = False,
    modes: Sequence[str] = BOTH,
    step: float = 1e-6,
    rtol: float | None = 1e-6,
    reverse_rtol: float = 1e-9,
    dependent: bool = True,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Assert that forward mode, reverse mode and central differences of a function agree along a direction.

    The function takes pytrees and returns one of arrays. All of their floating point numbers change, by a random normal
    direction or by `along`, which has the structure of `args`. With `each` they change one leaf after the other, so
    that a failure names it, and the result has to depend on each leaf unless `dependent` is False. A single compiled
    program gives the value and the derivatives.

    `rtol` bounds the deviation of central differences with steps of `step`, relative to the largest derivative of an
    array; the rounding of the values is allowed in addition. None leaves differences out. `reverse_rtol` bounds the
    difference of the two modes, relative to the sum of the magnitudes of its terms.

    Returns the value, and the gradient of the sum of the results with random weights (None without reverse mode).
    """
    rng = np.random.default_rng(seed)
    numbers, static = eqx.partition(args, eqx.is_inexact_array_like)
    # In NumPy: JAX would compile a program for each operation on an array of another shape.
    numbers = jax.tree.map(np.asarray, numbers)
    if along is None:
        along = jax.tree.map(lambda x: rng.normal(size=x.shape), numbers)
    along = jax.tree.map(lambda x, d: np.broadcast_to(d, x.shape).astype(x.dtype), numbers, tuple(along))
    weights = []

    @jax.jit
    def run(numbers, along):
        def f(numbers):
            return function(*eqx.combine(numbers, static))

        if "forward" in modes:
            value, forward = jax.jvp(f, (numbers,), (along,))
        if "reverse" in modes:
            value, pull = jax.vjp(f, numbers)
            weights[:] = [rng.normal(size=y.shape) for y in jax.tree.leaves(value)]
            cotangents = [jnp.asarray(w, y.dtype) for w, y in zip(weights, jax.tree.leaves(value), strict=True)]
            gradient = pull(jax.tree.unflatten(jax.tree.structure(value), cotangents))[0]
        return value, forward if "forward" in modes else None, gradient if "reverse" in modes else None

    for name, direction in directions_of(along).items() if each else [("all arguments", along)]:
        value, forward, gradient = run(numbers, direction)
        derivatives = None if forward is None else [np.asarray(x) for x in jax.tree.leaves(forward)]
        # Allows a few units in the last place of the values.
        rounding = [4 * np.finfo(y.dtype).eps * np.abs(y).max(initial=0) / step for y in jax.tree.leaves(value)]
        if rtol is not None:
            moved = [jax.tree.map(lambda x, d, s=s: x + s * d, numbers, direction) for s in (step, -step)]
            ends = [[np.asarray(y) for y in jax.tree.leaves(run(x, direction)[0])] for x in moved]
            differences = [(up - down) / (2 * step) for up, down in zip(*ends, strict=True)]
            derivatives = differences if derivatives is None else derivatives
            for found, expected, least in zip(derivatives, differences, rounding, strict=True):
                bound = rtol * np.abs(expected).max(initial=0) + least
                assert np.isfinite(found).all(), f"by {name}: {found}"
                np.testing.assert_allclose(found, expected, rtol=0, atol=bound, err_msg=f"forward mode by {name}")
        assert derivatives is not None, "reverse mode alone has to be compared with differences"
        assert not dependent or any(np.any(d) for d in derivatives), f"by {name}: the result does not depend on it"
        if gradient is not None:
            pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
            terms = [np.where(d == 0, 0, np.asarray(g) * d) for g, d in pairs]
            others = [w * x for w, x in zip(weights, derivatives, strict=True)]
            error = sum(float(x.sum()) for x in terms) - sum(float(x.sum()) for x in others)
            size = sum(float(np.abs(x).sum()) for x in (*others, *terms))
            noise = sum(float(np.abs(w).sum() * least) for w, least in zip(weights, rounding, strict=True))
            # Derivatives have no rounding that is divided by a step.
            bound = reverse_rtol * size + step * noise
            if forward is None and rtol is not None:
                bound = rtol * size + noise
            assert abs(error) <= bound, f"reverse mode by {name}: its error is {error:.3g}, more than {bound:.3g}"
    return value, gradient


def directions_of(along: Any) -> dict[str, Any]:
    """The parts of a direction that change a single leaf, by its path."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(along)
    zeros = [np.zeros_like(x) for _, x in leaves]
    return {
        jax.tree_util.keystr(path): jax.tree.unflatten(structure, [*zeros[:i], x, *zeros[i + 1 :]])
        for i, (path, x) in enumerate(leaves)
        if x.size
    }
