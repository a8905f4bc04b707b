"""A published problem of optimal control: how it is made, where it is from, and from which guesses it is solved."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn.trajopt import Problem


class Guess(NamedTuple):
    """Controls and states from which a solver starts."""

    us: Any
    """A number, a control `[nu]`, or `[horizon, nu]`."""
    xs: Any = None
    """States `[horizon + 1, nx]`; None for the roll-out of the controls."""


@dataclasses.dataclass(frozen=True)
class Benchmark:
    """A problem with constraints, its source, and its guesses."""

    make: Callable[[], Problem]
    """Makes the problem; its docstring says what was chosen where the source leaves a choice."""
    source: str
    """Repository and file, or paper."""
    guess: Callable[[Problem], Guess] = lambda problem: Guess(0.0)
    """Returns the published guess."""
    scale: Any = 1.0
    """Size of random constant controls where they have no bounds: a number or `[nu]`."""
    best: float | None = None
    """The lowest cost that is known: what ddp or IPOPT found from all guesses of `benchmark_convergence`."""

    def random_guesses(self, problem: Problem, number: int, seed: int) -> np.ndarray:
        """Return controls `[number, horizon, nu]`, each constant over the horizon and uniform within the bounds, or
        within `scale` of zero where there is no bound. Bounds that differ between stages are filled in proportion."""
        low, high = (np.asarray(bound) for bound in problem.control_box)
        scale = np.broadcast_to(self.scale, low.shape)
        low = np.where(np.isfinite(low), low, np.minimum(-scale, high - scale))
        high = np.where(np.isfinite(high), high, np.maximum(scale, low + scale))
        share = np.random.default_rng(seed).uniform(size=(number, 1, problem.dynamics.nu))
        return low + share * (high - low)


def constant(us: Any) -> Callable[[Problem], Guess]:
    """Return the guess of the same control at all stages, and its roll-out."""
    return lambda problem: Guess(us)


def interpolated(points, horizon: int) -> np.ndarray:
    """Return states `[horizon + 1, nx]` on the straight lines between points `[n, nx]` at equal distances in time."""
    points = np.asarray(points, float)
    at = np.linspace(0, len(points) - 1, horizon + 1)
    return np.stack([np.interp(at, np.arange(len(points)), column) for column in points.T], axis=1)


def constants(*numbers: float) -> tuple:
    """Return numbers as arrays, so that a problem's parameters are leaves."""
    return tuple(jnp.asarray(float(x)) for x in numbers)


def squared_clearances(x, u, t, circles):
    """Return the squared distances from circles `[n, 3]` (center and radius, m) minus the squared radii, `[n]`; the
    position is the beginning of the state."""
    return (x[0] - circles[:, 0]) ** 2 + (x[1] - circles[:, 1]) ** 2 - circles[:, 2] ** 2
