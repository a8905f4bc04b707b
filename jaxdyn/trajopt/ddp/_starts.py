"""Several guesses of one problem, and the best of their solutions."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array
from jaxdyn.trajopt._solution import Solution
from jaxdyn.trajopt.problem import Problem

WAY = 3.0
"""The change of a state by a constant control without bounds over the whole horizon, relative to one plus the size of
the states. For an angle it is about half a turn."""


def several_guesses(problem: Problem, us, xs, number: int) -> tuple[Array, Array]:
    """A number of guesses, as controls `[number, horizon, nu]` and states: the given one; its controls with `x0`
    repeated; controls of zero; and constant controls, spread evenly over their ranges."""
    first = problem.guess(us, xs)
    others = [problem.guess(us, rolled_out=False), problem.guess()]
    low, high = (bound.mean(axis=0) for bound in problem.control_box)
    zero = jnp.zeros_like(low)
    x0 = problem.x0.astype(problem.dtype)
    _, B = problem.dynamics.linearize(x0, zero, 0, problem.step(x0, zero, 0))
    reach = problem.horizon * jnp.abs(B).max(axis=0)
    size = WAY * (1 + jnp.abs(x0).max()) / jnp.where(reach > 0, reach, 1.0)
    low, high = (jnp.where(jnp.isfinite(b), b, c) for b, c in ((low, jnp.minimum(high, 0) - size), (high, size)))
    high = jnp.maximum(high, low)
    for point in _spread(number - 3, problem.dynamics.nu):
        others.append(problem.guess(low + jnp.asarray(point, problem.dtype) * (high - low)))
    guesses = [first, *others][:number]
    all_xs, all_us = (jnp.stack(arrays) for arrays in zip(*guesses, strict=True))
    return all_us, all_xs


def _spread(number: int, dimension: int) -> np.ndarray:
    """Points in the unit cube, `[number, dimension]`, the more evenly the more there are: multiples of powers of the
    generalized golden ratio, without their integer parts (Roberts, The unreasonable effectiveness of quasirandom
    sequences, 2018)."""
    ratio = 2.0
    for _ in range(50):
        ratio = (1 + ratio) ** (1 / (dimension + 1))
    steps = ratio ** -np.arange(1.0, dimension + 1)
    return (0.5 + np.arange(1, max(number, 0) + 1)[:, None] * steps) % 1


def best_solution(solutions: Solution) -> Solution:
    """The solution with the lowest cost of those of a batch that have converged, or the first one if none has."""
    best = jnp.argmin(jnp.where(solutions.success, solutions.cost, jnp.inf))
    return jax.tree.map(lambda x: x[best], solutions)
