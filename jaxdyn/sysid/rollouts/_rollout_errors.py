"""Errors of roll-outs along recordings, and how well a robot predicts one that its fit has not seen."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError, ModelError, naming_arguments, require_positive
from jaxdyn._status import Status
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.model import Model
from jaxdyn.simulate import State
from jaxdyn.simulate.integrators import Integrator
from jaxdyn.sysid.parameters import Parametrization, leaves
from jaxdyn.sysid.recordings import Recording
from jaxdyn.sysid.rollouts._recorded_rollouts import (
    held_inputs,
    recorded_activations,
    simulate_robot,
    steps_between,
    uniform_rate,
)
from jaxdyn.sysid.rollouts._rollout_fit import fit_rollouts
from jaxdyn.sysid.rollouts._rollout_options import RolloutFitOptions


class RolloutErrors(NamedTuple):
    """Position errors of roll-outs from measured states."""

    start: np.ndarray
    """`[starts]`: times at which they begin, s."""
    horizon: np.ndarray
    """`[steps + 1]`: time since then, s."""
    position: np.ndarray
    """`[starts, steps + 1, nv]`: `difference(measured, simulated)`, rad or m."""

    def curves(self) -> np.ndarray:
        """Return the root mean square of each roll-out's errors up to each horizon after the start, `[starts, steps]`,
        over all degrees of freedom and all samples after the start."""
        sums = np.cumsum(np.mean(self.position[:, 1:] ** 2, axis=2), axis=1)
        return np.sqrt(sums / np.arange(1, sums.shape[1] + 1))

    def rmse(self, horizon: float | None = None) -> np.ndarray:
        """Return the root mean square of each roll-out's errors, `[starts]`, over all degrees of freedom and all
        samples after the start up to a horizon (s; None: the whole).

        **Raises** `DataError` for a horizon without samples.
        """
        last = self.horizon[-1] if horizon is None else horizon
        # A horizon is a whole number of samples, apart from rounding.
        upto = int(np.searchsorted(self.horizon, last * (1 + 1e-9), side="right"))
        if upto < 2 or last > self.horizon[-1] * (1 + 1e-9):
            first, end = self.horizon[[1, -1]]
            raise DataError(f"horizon is {last:g} s; the roll-outs have samples from {first:g} to {end:g} s")
        return self.curves()[:, upto - 2]


class Starts(NamedTuple):
    """The samples of a recording at which roll-outs begin, and the length of the roll-outs."""

    rows: np.ndarray
    """`[starts]`: the samples at which they begin."""
    steps: int
    dt: float
    """s"""


@naming_arguments
def rollout_errors(
    robot: Any,
    recording: Recording,
    horizon: float,
    *,
    every: float,
    hold: str = "mean",
    integrator: Integrator | None = None,
    substeps: int = 1,
) -> RolloutErrors:
    """Roll out a `Model` or `World` from the measured states `q, v` at many times of a recording, with its
    torques or controls.

    On a recording that a fit has not seen, the errors say how good the fit is.

    **Arguments**

    - `recording`: uniform in time, with velocities.
    - `horizon`: duration of each roll-out, s.
    - `every`: time from one start to the next, s.
    - `hold`, `integrator`, `substeps`: as in `fit_rollouts`.

    **Raises** `DataError` for a recording that is too short, not uniform, or without velocities.
    """
    model = leaves.model_of(robot)
    recording = recording.completed(model)
    starts = choose_starts(robot, recording, horizon, every)
    states = measured_states(robot, recording, starts)
    return errors_from(robot, recording, starts, states, hold, integrator, substeps)


def choose_starts(robot: Any, recording: Recording, horizon: float, every: float, begin: float = 0.0) -> Starts:
    """Return the starts from `begin` (s after the first sample) on. **Raises** `DataError` if there are none."""
    require_positive(horizon, "horizon (s)", error=DataError)
    require_positive(every, "every (s)", error=DataError)
    rate = uniform_rate(robot, recording)
    steps, stride = round(horizon * rate), max(1, round(every * rate))
    rows = np.arange(int(np.ceil(begin * rate - 1e-6)), len(recording) - steps, stride)
    if steps < 1 or not len(rows):
        after = f" after the first {begin:g} s" if begin else ""
        raise DataError(f"a horizon of {horizon:g} s does not fit into {recording.duration:g} s of recording{after}")
    return Starts(rows, steps, 1 / rate)


def measured_states(robot: Any, recording: Recording, starts: Starts) -> State:
    """Return the measured states at the starts. **Raises** `DataError` without velocities."""
    if recording.v is None:
        raise DataError("the recording has no velocities, and roll-outs start from measured ones; differentiate first")
    dtype, activation = leaves.model_of(robot).dtype, recorded_activations(robot, recording, starts.dt)
    arrays = recording.q, recording.v, activation
    return State(*(None if x is None else jnp.asarray(x[starts.rows], dtype) for x in arrays))  # pyright: ignore[reportArgumentType]


def errors_from(
    robot: Any,
    recording: Recording,
    starts: Starts,
    states: State,
    hold: str,
    integrator: Integrator | None,
    substeps: int,
) -> RolloutErrors:
    """Return the errors of the roll-outs from `states` along the recording."""
    model = leaves.model_of(robot)
    rows = starts.rows[:, None] + np.arange(starts.steps + 1)
    inputs = jax.tree.map(lambda x: jnp.asarray(x[rows[:, :-1]], model.dtype), held_inputs(robot, recording, hold))
    substeps = steps_between(robot, starts.dt, integrator, substeps)
    q = _positions(robot, states, inputs, starts.dt, integrator, substeps)
    error = model.difference(jnp.asarray(recording.q[rows], model.dtype), q)
    horizon = np.arange(starts.steps + 1) * starts.dt
    return RolloutErrors(recording.t[starts.rows], horizon, np.asarray(error, np.float64))


@eqx.filter_jit
def _positions(robot, start, inputs, dt, integrator: Any, substeps: int) -> Float[Array, "starts samples nq"]:
    return simulate_robot(robot, start, inputs, dt, integrator, substeps).q


class RolloutJudgment(NamedTuple):
    """Errors of the roll-outs of a robot along a recording, from the end of its first part on."""

    errors: RolloutErrors
    """Errors against the readings corrected by `zeros`."""
    errors_as_read: RolloutErrors
    """Errors of roll-outs from the same times with the readings as they are."""
    zeros: np.ndarray
    """`[nv]`: reading minus position of the sensors, rad or m, estimated from the first part; 0 if they are known."""
    status: Status
    """How the estimates of zeros and start states ended: `CONVERGED`, or what the first that did not converge says."""

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        return printing.status(self.status), {"zeros": f"{printing.numbers(self.zeros)} rad or m"}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


@naming_arguments
def judge_rollouts(
    robot: Any,
    recording: Recording,
    horizon: float,
    *,
    every: float,
    calibrate: float = 0.0,
    history: float = 0.0,
    segment: float | None = None,
    position_noise: ArrayLike | None = None,
    velocity_noise: ArrayLike | None = None,
    options: RolloutFitOptions | None = None,
) -> RolloutJudgment:
    """Roll out a `Model` or `World` along a recording that its fit has not seen, and return the errors.

    The robot is never changed. With `options.zero_deviation`, the zeros of the recording's position sensors are
    estimated from its first `calibrate` s, by multiple shooting as in `fit_rollouts`. No roll-out starts before the end
    of that part, whether zeros are estimated or not, so that the errors of several robots compare. Roll-outs start from
    the measured states `q, v`, or with `history` from estimated ones.

    **Arguments**

    - `recording`: uniform in time, with torques; with velocities unless `history` is given.
    - `horizon`: duration of each roll-out, s. `every`: time from one start to the next, s.
    - `calibrate`: duration of the first part, s.
    - `history`: time before each start, s; the start state is the end of the roll-out that fits best to the samples of
      this time, up to the start. 0: the measured state.
    - `segment`, `position_noise`, `velocity_noise`, `options`: as in `fit_rollouts`, best those of the fit; needed for
      zeros and for `history`. The latter needs no `segment`.

    **Raises** `DataError` for a recording that is too short, not uniform, or without the arrays that are needed, and
    where the roll-outs that tell the zeros diverge; `ModelError` for arguments out of range, and for zeros of joints
    whose coordinates are quaternions.
    """
    options = options or RolloutFitOptions()
    model = leaves.model_of(robot)
    recording = recording.completed(model)
    for name, value in (("calibrate", calibrate), ("history", history)):
        require_positive(value, f"{name} (s)", zero=True)
    starts = choose_starts(robot, recording, horizon, every, begin=max(calibrate, history))
    noise: dict[str, Any] = {"position_noise": position_noise, "velocity_noise": velocity_noise}
    if position_noise is None and (history > 0 or options.zero_deviation is not None):
        raise ModelError("position_noise is needed to estimate zeros or start states; give that of the fit")
    zeros, status, readings = np.zeros(model.nv), Status.CONVERGED, [recording]
    if options.zero_deviation is not None:
        segment = _require_zeros(model, calibrate, segment)
        first = recording.between(float(recording.t[0]), float(recording.t[0]) + calibrate)
        fit = fit_rollouts(_FixedRobot(robot), first, segment=segment, **noise, options=options)
        zeros, status = fit.zeros[0], fit.status
        if status == Status.DIVERGED:
            raise DataError(f"zeros cannot be estimated: {fit.message}")
        readings = [dataclasses.replace(recording, q=recording.q - zeros), recording]
    judged = []
    for reading in readings:
        if history > 0:
            states, ended = _states_after(robot, reading, starts, history, noise, options)
            status = ended if status == Status.CONVERGED else status
        else:
            states = measured_states(robot, reading, starts)
        judged.append(errors_from(robot, reading, starts, states, options.hold, options.integrator, options.substeps))
    return RolloutJudgment(judged[0], judged[-1], zeros, status)


class _FixedRobot(Parametrization):
    """A parametrization in which nothing is free: fits with it estimate zeros and states."""

    def __init__(self, robot: Any):
        self.reference, self.blocks = robot, ()

    def model(self, free: Float[Array | np.ndarray, "*batch size"]) -> Any:
        return self.reference

    def moved(self, free: Float[Array, "size"], step: Float[Array, "size"]) -> Float[Array, "size"]:
        return free

    def pull(self, free: Float[Array, "*batch size"]) -> Float[Array, "*batch terms"]:
        return free


def _require_zeros(model: Model, calibrate: float, segment: float | None) -> float:
    """Return the segment's duration. **Raises** `ModelError` unless zeros can be estimated."""
    if segment is None or calibrate < segment:
        raise ModelError(
            f"calibrate is {calibrate:g} s and segment {segment}: zeros are estimated from segments of the first part, "
            "so calibrate must last one at least; give both, or options without zero_deviation"
        )
    if len(model.topology.scalar_coordinates[0]) < model.nq:
        raise ModelError(
            "zero_deviation is given, but the model has joints whose coordinates are quaternions, and zeros are "
            "subtracted from numbers; give options without zero_deviation"
        )
    return segment


def _states_after(
    robot: Any, recording: Recording, starts: Starts, history: float, noise: dict[str, Any], options: RolloutFitOptions
) -> tuple[State, Status]:
    """Return the states at the starts, each from the samples of the time `history` before it, and how their fit
    ended."""
    steps = round(history / starts.dt)
    if steps < 1:
        raise DataError(
            f"history is {history:g} s, shorter than a sample of {starts.dt:g} s; give 0 or several samples"
        )
    rows = starts.rows[:, None] + np.arange(-steps, 1)
    arrays = {name: getattr(recording, name) for name in ("t", "q", "v", "tau", "control")}
    arrays["activation"] = recorded_activations(robot, recording, starts.dt)
    arrays = {name: x for name, x in arrays.items() if x is not None}
    windows = [Recording(**{name: x[i] for name, x in arrays.items()}) for i in rows]
    # Each window is a segment of its own, and nothing else is unknown.
    alone = dataclasses.replace(options, matching=None, zero_deviation=None, prior_weight=0.0, rounds=1)
    fit = fit_rollouts(_FixedRobot(robot), windows, segment=steps * starts.dt, **noise, options=alone)
    held = [held_inputs(robot, x, options.hold) for x in windows]
    inputs = jax.tree.map(lambda *x: jnp.asarray(np.stack(x), fit.state.q.dtype), *held)
    substeps = steps_between(robot, starts.dt, options.integrator, options.substeps)
    begin, ends = State(fit.state.q, fit.state.v), None
    if "activation" in arrays:
        first, ends = (jnp.asarray(arrays["activation"][rows[:, k]], fit.state.q.dtype) for k in (0, -1))
        begin = dataclasses.replace(begin, activation=first)
    motion = simulate_robot(robot, begin, inputs, starts.dt, options.integrator, substeps)
    return dataclasses.replace(motion.final, activation=ends), fit.status
