"""Scans whose reverse pass keeps little."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
from jax import lax

from jaxdyn._errors import ModelError


def segment_length(checkpoint: str | int, steps: int) -> int | None:
    """How many steps a segment has, or None for no segments. **Raises** `ModelError` for what is no choice.

    Near the root of `steps`, a divisor of it is preferred: a shorter last segment would be compiled by itself.
    """
    if checkpoint == "none":
        return None
    if checkpoint == "sqrt":
        root = max(1, math.isqrt(steps))
        near = [n for n in range(max(1, (root + 1) // 2), 2 * root + 1) if steps % n == 0]
        return min(near, key=lambda n: abs(math.log(n / root))) if near else root
    if isinstance(checkpoint, bool) or not isinstance(checkpoint, int) or checkpoint < 1:
        raise ModelError(f"checkpoint is {checkpoint!r}; known: 'none', 'sqrt', or the number of segments")
    return -(-steps // min(checkpoint, steps))


def scan_in_segments(body: Callable, carry, xs, length: int, segment: int | None):
    """`lax.scan` over `length` steps; in the reverse pass, segments of that many are computed anew from what was
    carried into them (Griewank & Walther, Evaluating Derivatives, 2008, chapter 12)."""
    if segment is None:
        return lax.scan(body, carry, xs, length=length)

    # Inside a scan nothing is computed twice that the barrier against it would guard.
    def part(carry, xs, steps: int):
        return lax.scan(body, carry, xs, length=steps)

    remade = jax.checkpoint(part, prevent_cse=False, static_argnums=2)
    if segment >= length:
        return jax.checkpoint(part, static_argnums=2)(carry, xs, length)
    whole, rest = divmod(length, segment)
    many = jax.tree.map(lambda x: x[: whole * segment].reshape(whole, segment, *x.shape[1:]), xs)
    carry, ys = lax.scan(lambda carry, xs: remade(carry, xs, segment), carry, many, length=whole)
    ys = jax.tree.map(lambda y: y.reshape(whole * segment, *y.shape[2:]), ys)
    if rest:
        last = jax.tree.map(lambda x: x[whole * segment :], xs)
        carry, more = remade(carry, last, rest)
        ys = jax.tree.map(lambda *y: jax.numpy.concatenate(y), ys, more)
    return carry, ys
