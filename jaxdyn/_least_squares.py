"""Damped least squares: how a Levenberg-Marquardt step is damped, accepted and ended, for every solver of the library.

The linear algebra stays with each problem, which computes the step for a given damping. `damped_step` compares the
decrease of the cost with the one that the linearized residuals promise (the gain ratio: Nocedal & Wright, Numerical
Optimization, 2006, section 10.3; Marquardt 1963) and says whether to go on. It runs within `lax.while_loop`, under
`jax.vmap`, and in a host loop, where it also takes NumPy numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._status import Status


@dataclasses.dataclass(frozen=True)
class Damping:
    """The rule by which the damping changes from one step to the next, and when it ends the search."""

    first: float = 1e-2
    """Damping of the first step, in the problem's unit."""
    shrink: float = 0.2
    """Factor of the damping after a step with a gain ratio above `good`."""
    grow: float = 4.0
    """Factor of the damping after a step that is rejected, or has a gain ratio below `poor`."""
    good: float = 0.75
    """Gain ratio above which the linearization is trusted farther."""
    poor: float = 0.25
    """Gain ratio below which the linearization is trusted less."""
    least: float = 0.0
    """Smallest damping."""
    most: float = np.inf
    """A step that is rejected with this damping ends the search."""
    trusted: float = np.inf
    """Largest damping with which a small promised decrease counts as convergence: heavily damped steps promise little
    anywhere."""
    accepted: float = 0.0
    """Gain ratio above which a step is accepted."""
    trials: tuple[float, ...] = (1.0,)
    """Multiples of the damping, ascending, that are tried at once and of which the best is taken."""


class Search(Protocol):
    """The fields of a search's state that `damped_step` needs: those of an `Iterate`, or for one search in NumPy of any
    dataclass that has them."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def cost(self) -> Any:
        """Half of the sum of squares."""

    @property
    def expected(self) -> Any:
        """Decrease of the cost that the last step promised."""

    @property
    def damping(self) -> Any:
        """Damping of the next step."""

    @property
    def iteration(self) -> Any:
        """Number of steps so far."""

    @property
    def status(self) -> Any:
        """Integers of `Status`."""


class Iterate(eqx.Module):
    """The state of a search, apart from its point, which subclasses add. All leaves have the leading axes `[*batch]`.

    A state with an infinite `cost` has not been evaluated yet: its first step, of length zero, evaluates it.
    """

    cost: Any
    """Half of the sum of squares."""
    expected: Any
    """Decrease of the cost that the last step promised."""
    damping: Any
    """Damping of the next step."""
    iteration: Any
    """Number of steps so far."""
    status: Any
    """Integers of `Status`."""


def damped_step[S: Search](
    state: S,
    trial: Callable[[Any], S],
    rule: Damping,
    *,
    relative: float | jax.Array = 0.0,
    absolute: float = 0.0,
    max_iterations: float = np.inf,
) -> S:
    """Return the state after one step, or the same state where it is not `RUNNING`.

    **Arguments**

    - `trial`: called as `trial(damping)`; returns the state at the end of that step with its `cost` there and, as
      `expected`, the decrease that the linearized residuals promised. With several `rule.trials`, the state has no
      batch axes.
    - `relative`, `absolute`: the search has converged where a step promises at most `relative * cost + absolute`.
    - `max_iterations`: number of steps after which the search is out of iterations.

    Where a step is rejected with the largest damping, only rounding can hide the descent: the search has converged if
    the promised decrease is within the rounding of the cost, and is stalled otherwise.
    """
    xp: Any = jnp if isinstance(state.cost, jax.Array) else np
    dampings = [xp.maximum(state.damping * multiple, rule.least) for multiple in rule.trials]
    if len(dampings) == 1:
        candidate = trial(dampings[0])
        used, promised = dampings[0], candidate.expected
    else:
        candidates = jax.vmap(trial)(jnp.stack(dampings))
        best = jnp.argmin(jnp.where(jnp.isfinite(candidates.cost), candidates.cost, jnp.inf))
        candidate = jax.tree.map(lambda x: x[best], candidates)
        used, promised = jnp.stack(dampings)[best], candidates.expected[0]
    fresh, taken = xp.isinf(state.cost), candidate.cost < state.cost - rule.accepted * candidate.expected
    ratio = (state.cost - candidate.cost) / candidate.expected
    factor = xp.where(taken & (ratio >= rule.poor), xp.where(ratio > rule.good, rule.shrink, 1.0), rule.grow)
    damping = xp.clip(xp.where(taken, used, dampings[-1]) * factor, rule.least, rule.most)
    iteration = state.iteration + 1
    small = ~fresh & (promised <= relative * state.cost + absolute) & (dampings[0] <= rule.trusted)
    spent = ~taken & (dampings[-1] >= rule.most)
    hidden = promised <= np.sqrt(np.finfo(state.cost.dtype).eps) * state.cost
    ends = {
        Status.DIVERGED: fresh & ~xp.isfinite(candidate.cost),
        Status.CONVERGED: small | (spent & hidden),
        Status.STALLED: spent,
        Status.OUT_OF_ITERATIONS: iteration >= max_iterations,
    }
    status = state.status
    for end, holds in reversed(ends.items()):
        status = xp.where(holds, end, status).astype(state.status.dtype)
    after = dataclasses.replace(
        select(taken, candidate, state),
        expected=promised,
        damping=xp.where(fresh, state.damping, damping).astype(state.cost.dtype),
        iteration=iteration,
        status=status,
    )
    return select(state.status == Status.RUNNING, after, state)


def select[S](condition: Any, x: S, y: S) -> S:
    """The leaves of `x` where `condition` `[*batch]` holds, those of `y` elsewhere."""
    xp: Any = jnp if isinstance(condition, jax.Array) else np
    if xp is np and np.ndim(condition) == 0:
        return x if condition else y

    def choose(a, b):
        return xp.where(condition.reshape(condition.shape + (1,) * (np.ndim(b) - np.ndim(condition))), a, b)

    return jax.tree.map(choose, x, y)
