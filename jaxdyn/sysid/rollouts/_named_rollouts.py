"""Identification from roll-outs in one call: free numbers by their names, noise and segments from the recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, naming_arguments, require_positive, require_positive_integer
from jaxdyn._status import Status
from jaxdyn._types import ArrayLike
from jaxdyn.sysid.parameters import Parametrization, leaves, named_choices
from jaxdyn.sysid.recordings import Recordings, as_recordings
from jaxdyn.sysid.rollouts._recorded_rollouts import Measured, uniform_rate
from jaxdyn.sysid.rollouts._rollout_fit import fit_rollouts
from jaxdyn.sysid.rollouts._rollout_options import RolloutFitOptions, RolloutStep
from jaxdyn.sysid.rollouts._rollout_result import RolloutFit

# Samples of a segment, of a recording that has so many: short enough for impacts, and long beside noise.
_SAMPLES = 20
# Rounds in which the noise is estimated, beginning at the scatter of neighboring samples.
_ROUNDS = 5
# The ratio of a normal distribution's standard deviation to its median absolute value.
_MEDIAN = 1.4826


@naming_arguments
def identify_rollouts(
    robot: Any,
    recordings: Recordings,
    free: Parametrization | Sequence[Any],
    *,
    segment: float | None = None,
    position_noise: ArrayLike | None = None,
    velocity_noise: ArrayLike | None = None,
    starts: int = 1,
    spread: float = 0.3,
    seed: int = 0,
    options: RolloutFitOptions | None = None,
    report: Callable[[RolloutStep], None] | None = None,
) -> RolloutFit:
    """Identify a robot or a world with which roll-outs follow recordings: `fit_rollouts` with free numbers by their
    names, and with segments and noise from the recordings.

    **Arguments**

    - `robot`: a `Model` or a `World`, whose numbers are the start. `recordings`: as in `fit_rollouts`.
    - `free`: names such as `"damping of x"`, `"gear"` (of all), `"friction of floor"`, `"stiffness of ball and floor"`,
      `"mass of pole"` (`named_choices`), or choices such as `ContactNumbers()`, in any mixture; or a `Parametrization`.
    - `segment`: s; by default 20 samples, or as many as the shortest recording has.
    - `position_noise`, `velocity_noise`: as in `fit_rollouts`; by default estimated from second differences of
      neighboring samples, and again from the residuals of each of up to five fits.
    - `starts`: fits from so many starts, the first of which is the robot itself; others are drawn with a standard
      deviation of `spread` in free numbers, about that part of most numbers. The fit with the least cost is returned,
      and its `message` says how many others came to the same.

    **Returns** a `RolloutFit`: print its `intervals()`, and look at its `status` and `message`. **Raises** as
    `fit_rollouts`, and `UnknownNameError` for names that the robot does not have.
    """
    require_positive_integer(starts, "starts")
    require_positive(spread, "spread (in free numbers)")
    if isinstance(free, Parametrization):
        free = free.about(robot)
    else:
        free = Parametrization(robot, *named_choices(robot, free))
    recordings = as_recordings(recordings)
    rate = uniform_rate(free.reference, recordings[0])
    if segment is None:
        segment = min(_SAMPLES, *(len(x) - 1 for x in recordings)) / rate
    if options is None:
        estimated = position_noise is None or (velocity_noise is None and recordings[0].v is not None)
        options = RolloutFitOptions(rounds=_ROUNDS if estimated else 1)
    noise = position_noise, velocity_noise
    if position_noise is None:
        noise = _scatter(free.reference, recordings, noise)
    arguments: dict[str, Any] = {"segment": segment, "options": options, "report": report}
    arguments |= {"position_noise": noise[0], "velocity_noise": noise[1]}
    rng, fits = np.random.default_rng(seed), []
    for k in range(starts):
        begin = spread * rng.normal(size=free.size) * (k > 0)
        start = jnp.asarray(begin, free.zeros().dtype)
        fits.append(fit_rollouts(free, recordings, start=start, **arguments))
    return _best(fits)


def _best(fits: list[RolloutFit]) -> RolloutFit:
    """Return the fit with the least misfit, in the noise that it has found itself."""
    # Costs of fits that have estimated noise are in different units; the likelihood is not.
    costs = np.array([_misfit(x) for x in fits])
    k = int(np.nanargmin(np.where(np.isfinite(costs), costs, np.inf)))
    best = fits[k]
    if len(fits) == 1:
        return best
    ended = np.array([x.status == Status.CONVERGED for x in fits])
    apart = [np.abs(x.free - best.free) / np.maximum(best.standard_errors, 1e-300) for x in fits]
    same = sum(bool(ok and np.nanmax(x) < 1) for ok, x in zip(ended, apart, strict=True))
    words = f"{same} of {len(fits)} starts came to these numbers within a standard error"
    return dataclasses.replace(best, message=f"{best.message}; {words}")


def _misfit(fit: RolloutFit) -> float:
    """Return the sum of logarithms of the noise that a fit has left, over positions and velocities."""
    noise = [x for x in (fit.position_noise, fit.velocity_noise) if x is not None]
    return float(np.sum([np.log(x).sum() for x in noise])) if np.isfinite(fit.cost) else np.inf


def _scatter(robot: Any, recordings, given: tuple) -> tuple[np.ndarray, Any]:
    """Return the noise of positions and velocities by second differences of neighboring samples. **Raises**
    `DataError` for recordings that are too short."""
    model, joints = leaves.model_of(robot), recordings[0].joints
    measured = Measured.of(model, recordings)
    steps, rates = [], []
    for x in measured.recordings:
        if len(x) < 4:
            raise DataError(f"{x.name}: {len(x)} samples are too few to estimate their noise; give position_noise")
        q = jnp.asarray(x.q, model.dtype)
        steps.append(np.diff(np.asarray(model.difference(q[:-1], q[1:]), np.float64), axis=0))
        if x.v is not None:
            rates.append(np.diff(x.v, 2, axis=0))
    # A second difference of white noise has six times its variance.
    dofs = slice(None) if joints is None else list(measured.dofs)

    def noise(differences: list[np.ndarray]) -> np.ndarray:
        out = _MEDIAN * np.median(np.abs(np.concatenate(differences)), axis=0) / np.sqrt(6)
        return np.maximum(out, max(1e-3 * out.max(), 1e-9))[dofs]

    return noise(steps), noise(rates) if given[1] is None and rates else given[1]
