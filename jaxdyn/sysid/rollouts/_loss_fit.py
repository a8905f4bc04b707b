"""Fits to losses of whole recordings by the gradients of some of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdyn._errors import DataError, naming_arguments, require_positive, require_positive_integer
from jaxdyn._types import Array, Float
from jaxdyn.sysid.rollouts._loss_minimum import LossMinimum, loss_minimum

# Later stages begin at a fit, and need shorter steps; each ends with a twentieth of its first.
_LATER, _LAST = 0.5, 0.05


class LossStep(NamedTuple):
    """The progress of `fit_losses`, reported after every step."""

    stage: int
    iteration: int
    loss: float
    """The mean over the recordings that were drawn."""
    free: np.ndarray


@naming_arguments
def fit_losses(
    losses: Callable[[Any, Any], Any],
    start: Float[Array | np.ndarray, "P"],
    stages: Sequence[Any],
    *,
    batch: int | None = None,
    iterations: int = 150,
    learning_rate: float = 0.1,
    intervals: bool = True,
    seed: int = 0,
    report: Callable[[LossStep], object] | None = None,
) -> LossMinimum:
    """Return the minimum of the mean loss over recordings, such as errors of whole roll-outs that nothing corrects.

    Where impacts make roll-outs chaotic, the gradient of one recording may be huge and say little. So steps take the
    mean gradient of some recordings, drawn at random, at a length of at most 1, by Adam (Kingma & Ba, ICLR 2015) with a
    learning rate that falls along a cosine; each stage ends at the mean over its second half, in which the scatter of
    the draws is less. The last step is that of `loss_minimum`, with its intervals. Unlike `fit_rollouts`, this corrects
    no state along the way: choose it where the errors of whole roll-outs are what counts.

    **Arguments**

    - `losses`: a function of the numbers `[P]` and of the data that returns the loss of each recording, `[recordings]`;
      it is compiled, and derived. Numbers of about unit size, such as those of a `Parametrization`, suit its steps.
    - `stages`: the data of each stage, pytrees of arrays with a leading axis of recordings: first the beginnings of
      recordings, whose derivatives say most, and then more of them. Data of the same shapes, in which weights are zero
      for what does not count yet, share one program.
    - `batch`: recordings of each step; None: all. `iterations`: steps of each stage.
    - `intervals`: whether to take the last step, which costs about `P^2 + 12 P` losses of all recordings. Without it
      the covariance is infinite.
    - `report`: called after every step.

    **Raises** `DataError` for no stages and for data without recordings; as `loss_minimum`.
    """
    for name, x in (("iterations", iterations), ("batch", 1 if batch is None else batch)):
        require_positive_integer(x, name)
    require_positive(learning_rate, "learning_rate")
    counts = {np.shape(x)[0] if np.ndim(x) else 0 for stage in stages for x in jax.tree.leaves(stage)}
    if len(counts) != 1 or 0 in counts:
        raise DataError(f"stages have arrays with {sorted(counts)} recordings; one number, not zero, is needed")
    (n,) = counts
    x, rng = jnp.asarray(start), np.random.default_rng(seed)
    size = n if batch is None else min(batch, n)

    @eqx.filter_jit
    def value_and_gradient(x, data):
        return jax.value_and_grad(lambda x: losses(x, data).mean())(x)

    for number, stage in enumerate(stages):
        schedule = optax.cosine_decay_schedule(learning_rate * (_LATER if number else 1.0), iterations, _LAST)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))
        memory, order, seen = optimizer.init(x), np.zeros(0, int), []
        for iteration in range(iterations):
            if len(order) < size:
                order = np.concatenate([order, rng.permutation(n)])
            drawn, order = order[:size], order[size:]
            loss, gradient = value_and_gradient(x, jax.tree.map(lambda a, drawn=drawn: a[drawn], stage))
            update, memory = optimizer.update(gradient, memory)
            x = optax.apply_updates(x, update)
            seen.append(x)
            if report is not None:
                report(LossStep(number, iteration, float(loss), np.asarray(x)))
        x = jnp.stack(seen[len(seen) // 2 :]).mean(axis=0)
    each = eqx.filter_jit(losses)
    if not intervals:
        loss = float(each(x, stages[-1]).mean())
        return LossMinimum(np.asarray(x, np.float64), np.full((len(x), len(x)), np.inf), loss, loss, n, 0.0)
    return loss_minimum(lambda free: each(jnp.asarray(free, x.dtype), stages[-1]), np.asarray(x, np.float64))
