"""Scans whose reverse pass keeps the carry of a few steps only."""

import math
from collections.abc import Callable

import jax
from jax import lax

from jaxdyn._errors import ModelError


def segment_length(checkpoint: str | int, steps: int) -> int | None:
    """The number of steps in a segment, or None for no segments. **Raises** `ModelError` for another `checkpoint`."""
    if checkpoint == "none":
        return None
    if checkpoint == "sqrt":
        # A divisor of the steps near their root, if there is one: a shorter last segment would be compiled by itself.
        root = max(1, math.isqrt(steps))
        near = [n for n in range(max(1, (root + 1) // 2), 2 * root + 1) if steps % n == 0]
        return min(near, key=lambda n: abs(math.log(n / root))) if near else root
    if isinstance(checkpoint, bool) or not isinstance(checkpoint, int) or checkpoint < 1:
        raise ModelError(f"checkpoint is {checkpoint!r}; it must be 'none', 'sqrt', or the number of segments")
    return -(-steps // min(checkpoint, steps))


def scan_in_segments(body: Callable, carry, xs, length: int, segment: int | None):
    """`lax.scan` over `length` steps. The reverse pass computes one segment of steps at a time again from the carry at
    its start (Griewank & Walther, Evaluating Derivatives, 2008, chapter 12)."""
    if segment is None:
        return lax.scan(body, carry, xs, length=length)

    def part(carry, xs, steps: int):
        return lax.scan(body, carry, xs, length=steps)

    if segment >= length:
        return jax.checkpoint(part, static_argnums=2)(carry, xs, length)
    # Inside a scan the compiler cannot merge the two computations, so they need no barrier between them.
    recomputed = jax.checkpoint(part, prevent_cse=False, static_argnums=2)
    whole, remainder = divmod(length, segment)
    many = jax.tree.map(lambda x: x[: whole * segment].reshape(whole, segment, *x.shape[1:]), xs)
    carry, ys = lax.scan(lambda carry, xs: recomputed(carry, xs, segment), carry, many, length=whole)
    ys = jax.tree.map(lambda y: y.reshape(whole * segment, *y.shape[2:]), ys)
    if remainder:
        last = jax.tree.map(lambda x: x[whole * segment :], xs)
        carry, more = recomputed(carry, last, remainder)
        ys = jax.tree.map(lambda *y: jax.numpy.concatenate(y), ys, more)
    return carry, ys
