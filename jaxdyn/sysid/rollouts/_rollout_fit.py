"""Identification from roll-outs, by multiple shooting: for chaotic robots, and for torques too poor to be fitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import (
    DataError,
    ModelError,
    naming_arguments,
    require_positive,
)
from jaxdyn._status import Status
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn._waits import saying
from jaxdyn.model import require_no_loops
from jaxdyn.sysid.parameters import Parametrization, leaves
from jaxdyn.sysid.recordings import Recordings, as_recordings
from jaxdyn.sysid.rollouts import _average_slopes as average_slopes
from jaxdyn.sysid.rollouts import _descent as descent
from jaxdyn.sysid.rollouts import _shooting as shooting
from jaxdyn.sysid.rollouts._arrow import ArrowSystem, compress
from jaxdyn.sysid.rollouts._average_slopes import Average
from jaxdyn.sysid.rollouts._descent import far_segments
from jaxdyn.sysid.rollouts._recorded_rollouts import Measured, Segments, cut_recordings, steps_between
from jaxdyn.sysid.rollouts._rollout_options import RolloutFitOptions, RolloutStep
from jaxdyn.sysid.rollouts._rollout_result import RolloutFit, covariances
from jaxdyn.sysid.rollouts._shooting import RobustLoss, ShootingProblem, ShootingResiduals, ShootingState

# Exact matching: the standard deviation of defects in the steps, in units of the noise, and their size at the end.
_EXACT_SCALE, _EXACT_TOLERANCE = 0.1, 1e-3
# Rounds of re-weighting end when no noise changes by more than this part.
_NOISE_TOLERANCE = 1e-2
# The part by which the cost must fall for another minimum to be one: less is left where steps end.
_LOWER = 1e-3
# The number of steps in a row, with much damping, that lower the cost by less than this part, after which averages are
# tried.
_SLOW, _LITTLE = 3, 1e-2
# Steps are averaged when they promise to lower the cost by less than this part of it: draws change it by a few percent.
_NEARLY = 0.05
# The number of steps that are averaged. Each scatters by about half of a standard error, by four draws for each number.
_AVERAGED = 20
# The largest root mean square, over the directions, of the mean step, in standard errors: it widens no interval by
# more than 2 %.
_STATIONARY_ON_AVERAGE = 0.2


@naming_arguments
@saying("fitting roll-outs")
def fit_rollouts(
    parametrization: Parametrization,
    recordings: Recordings,
    *,
    segment: float,
    position_noise: ArrayLike,
    velocity_noise: ArrayLike | None = None,
    options: RolloutFitOptions | None = None,
    start: Float[Array | np.ndarray, "P"] | None = None,
    report: Callable[[RolloutStep], None] | None = None,
    state: ShootingState | None = None,
) -> RolloutFit:
    """Identify the free numbers of a robot with which its roll-outs follow recordings.

    Recordings are cut into segments, and the state at the start of each is an unknown as well (multiple shooting: Bock,
    Recent advances in parameter identification techniques for ODE, 1983): short roll-outs stay near the measurement
    where a long one of a chaotic robot, or of a robot with wrong parameters, departs from it. The fit minimizes half of
    the sum of squares of

    - the positions' and velocities' residuals at all samples, over their noise;
    - the defects between the end of a segment and the start of the next, over `options.matching` times the noise;
    - the pull toward the parametrization's reference, `options.prior_weight` times its `divergence`.

    Steps are Gauss-Newton steps, damped after Levenberg and Marquardt, and bent by the geodesic acceleration (Transtrum
    & Sethna, arXiv:1201.5885, 2012) where that helps, with derivatives through the integrator. The linear system has
    the shape of an arrow (a state couples to the next one and to the parameters), and is solved by orthogonal
    elimination of one state after the other, at a cost linear in the number of segments.

    Residuals jump where a contact is made or lost. Where steps are held back, as beside such a jump, or some segments
    stay far from their samples, the fit goes on with slopes that hold on average over draws from the posterior, whose
    scatter counts as noise (Garcia-Fernandez, Svensson & Sarkka, Iterated posterior linearization smoother, IEEE
    Transactions on Automatic Control 62, 2017), and steps go on from its end. If they do not converge and residuals
    jump within the posterior, the result is that on average, and its `message` says so.

    **Arguments**

    - `recordings`: one or several, uniform in time at the same rate, of any lengths; `q`, `tau`, and `v` if
      `velocity_noise` is given. The end of a recording that is shorter than a segment is not used. For a `World`,
      `control` instead of `tau`, samples that are a whole number of its time steps apart, and `activation` where its
      actuators do not begin as the first controls would hold them; later activations follow from the controls.
    - `segment`: duration, s; for chaotic robots less than the time in which errors grow by a factor of ten or so.
    - `position_noise`, `velocity_noise`: standard deviations, one number or `[nv]`; rad, m and their rates. Without
      the latter velocities are not compared. For recordings of some joints of a robot with closed loops
      (`Recording.joints`) one number for each of these; only they are compared.
    - `options`: `RolloutFitOptions`. `start`: free numbers to start from; by default the reference.
    - `report`: called after every step; an exception from it, such as `KeyboardInterrupt`, ends the fit.
    - `state`: state of an earlier fit with the same arguments to continue (`RolloutStep.state`, `RolloutFit.state`).

    **Returns** a `RolloutFit`; look at its `status`, and at `undetermined` for what the recordings do not tell.
    **Raises** `DataError` for recordings that do not fit, `ModelError` for arguments out of range.
    """
    options = options or RolloutFitOptions()
    model, recordings = leaves.model_of(parametrization.reference), as_recordings(recordings)
    if model.inertial_parameters.ndim != 2:
        raise ModelError("the parametrization's reference has batch axes; fit_fleet identifies many robots")
    require_positive(segment, "segment (s)")
    joints, measured = recordings[0].joints, Measured.of(model, recordings)
    link = options.matching is not None
    segments, dt = cut_recordings(parametrization.reference, measured.recordings, segment, options.hold, link=link)

    def noise_of(noise: ArrayLike, name: str) -> np.ndarray:
        return measured.noise(model, noise_of_dofs(noise, len(measured.dofs), name), joints)

    position = noise_of(position_noise, "position_noise")
    if velocity_noise is None:
        velocity, segments = position / (dt * (segments.q.shape[1] - 1)), segments._replace(v=None)
    elif segments.v is None:
        raise DataError("velocity_noise is given, but the recordings have no velocities; leave it out")
    else:
        velocity = noise_of(velocity_noise, "velocity_noise")
    problem = shooting_problem(parametrization, segments, dt, options, measured)
    free = parametrization.zeros() if start is None else jnp.asarray(start)
    if free.shape != (parametrization.size,):
        raise ModelError(f"start has shape {free.shape}, but the parametrization has {parametrization.size} numbers")
    first = _first(problem, free, position, velocity)
    begin = first if state is None else _require_same_fit(state, first)
    now, averaged = _searched(problem, begin, options, report)
    return _result(problem, now, free, options.max_iterations, averaged)


def _searched(
    problem: ShootingProblem,
    begin: ShootingState,
    options: RolloutFitOptions,
    report: Callable[[RolloutStep], None] | None,
) -> tuple[ShootingState, _Averaged | None]:
    """Return the state in which a fit ends, and the averages if it has converged on average."""
    # Averages have no multipliers, which exact matching needs.
    exact = options.matching == 0
    now = _descended(problem, begin, options, report, patient=exact)
    if exact or _followed(problem, now):
        return now, None
    averaged = _averaged(problem, dataclasses.replace(begin, iteration=now.iteration), options, report)
    if averaged is not None:
        again = _evaluate(problem, dataclasses.replace(averaged.state, damping=begin.damping))
        other = _descended(problem, again, options, report, patient=False)
        lower = int(now.status) != Status.CONVERGED or float(other.cost) < float(now.cost) * (1 - _LOWER)
        if lower and _followed(problem, other):
            return other, None
        if averaged.jumping.any() and not far_segments(averaged.segment_residuals(problem)).any():
            return averaged.state, averaged
        best = other if float(other.cost) < float(now.cost) else now
        now = dataclasses.replace(best, iteration=other.iteration)
    return _descended(problem, now, options, report), None


def _descended(
    problem: ShootingProblem,
    now: ShootingState,
    options: RolloutFitOptions,
    report: Callable[[RolloutStep], None] | None,
    *,
    patient: bool = True,
) -> ShootingState:
    """Return the state in which steps from a state end, or unless `patient` the one in which damping holds them back,
    as beside the jumps of contacts."""
    slow = 0
    while patient or slow < _SLOW:
        if int(now.status) == Status.CONVERGED:
            # Convergence of the innermost loop may begin another round: of multipliers, and then of noise.
            now = _next_round(problem, now, options)
        if int(now.status) != Status.RUNNING or int(now.iteration) >= options.max_iterations:
            break
        tolerance, before = jnp.asarray(options.tolerance, now.q.dtype), float(now.cost)
        now = _step(problem, now, _linearize(problem, now), tolerance)
        if report is not None:
            report(RolloutStep(int(now.iteration), int(now.round), float(now.cost), float(now.expected), now))
        slow = slow + 1 if float(now.damping) > 1 and float(now.cost) > before * (1 - _LITTLE) else 0
    return now


def _followed(problem: ShootingProblem, state: ShootingState) -> bool:
    """Whether steps have converged, and all segments follow their samples about as well."""
    far = far_segments(shooting.segment_residuals(problem, _residuals(problem, state)[1]))
    return int(state.status) == Status.CONVERGED and not far.any()


class _Averaged(NamedTuple):
    """The end of a fit to average residuals."""

    state: ShootingState
    average: Average
    step_left: float

    @property
    def jumping(self) -> np.ndarray:
        """Whether the scatter of a segment's residuals is beyond their noise, `[segments]`."""
        return np.asarray(self.average.scatter) > 1

    def segment_residuals(self, problem: ShootingProblem) -> np.ndarray:
        """The root mean square of each segment's residuals over their noise and scatter, `[segments]`."""
        squares = (np.asarray(self.average.system.data, np.float64)[..., -1] ** 2).sum(axis=-1)
        return np.sqrt(squares / shooting.counts(problem))


def _averaged(
    problem: ShootingProblem,
    state: ShootingState,
    options: RolloutFitOptions,
    report: Callable[[RolloutStep], None] | None,
) -> _Averaged | None:
    """Return the end of a fit to average residuals, or None where it does not converge.

    When steps promise little, their lengths fall as 1/2, 1/3, ..., so that the states are averages of those to which
    whole steps lead, which scatter as the draws do (Polyak & Juditsky, Acceleration of stochastic approximation by
    averaging, SIAM Journal on Control and Optimization 30, 1992).
    """
    draws, count, total = _first_draws(problem, state), 0, jnp.zeros(())
    while True:
        now = _average(problem, state, draws)
        cost = float(now.cost)
        if not np.isfinite(cost):
            return None
        if count == _AVERAGED:
            left = float(_length(problem, state, now, 2 * total / _AVERAGED))
            if left > _STATIONARY_ON_AVERAGE * np.sqrt(problem.shared):
                return None
            data = now.value.after(problem.loss).data
            status = jnp.asarray(int(Status.CONVERGED), state.status.dtype)
            state = dataclasses.replace(state, status=status, cost=now.cost)
            after = _with_new_noise(problem, state, options, data)
            if after is state:
                return _Averaged(state, now, left)
            state, count, total = after, 0, jnp.zeros(())
        if int(state.iteration) >= options.max_iterations:
            return None
        # An array: a number would be compiled into the program.
        new, draws, x = _average_step(problem, state, now, jnp.asarray(1 / (count + 1), state.q.dtype))
        if report is not None:
            report(RolloutStep(int(new.iteration), int(new.round), cost, float(new.expected), new))
        if count or float(new.expected) < _NEARLY * cost:
            total = total + x if count >= _AVERAGED // 2 else total  # Those from near the average.
            count += 1
        state = new


def shooting_problem(
    parametrization, segments: Segments, dt: float, options: RolloutFitOptions, measured: Measured | None = None
) -> ShootingProblem:
    """Return the problem of some segments with these options."""
    topology = leaves.model_of(parametrization.reference).topology
    if measured is None:
        require_no_loops(topology, "fit_fleet", "fit one robot after the other with fit_rollouts")
    if options.zero_deviation is not None:
        require_no_loops(topology, "zero_deviation", "correct the zeros of the sensors before")
    dtype = segments.q.dtype
    matching = _EXACT_SCALE if options.matching == 0 else options.matching or 1.0
    zeros = 0 if options.zero_deviation is None else segments.recording.max() + 1
    return ShootingProblem(
        parametrization=parametrization,
        segments=segments,
        dt=jnp.asarray(dt, dtype),
        matching=jnp.asarray(matching, dtype),
        prior_weight=jnp.asarray(options.prior_weight, dtype),
        loss=RobustLoss(options.loss, jnp.asarray(options.loss_scale, dtype)),
        integrator=options.integrator,
        substeps=steps_between(parametrization.reference, dt, options.integrator, options.substeps),
        owner=jnp.asarray(segments.recording[:, None] == np.arange(zeros), dtype),
        zero_deviation=jnp.asarray(options.zero_deviation or 1.0, dtype),
        measured=measured.dofs if measured is not None and len(measured.dofs) < topology.nv else None,
        mobility=measured.mobility if measured is not None and topology.has_loops else None,
    )


def noise_of_dofs(noise: ArrayLike, nv: int, name: str) -> np.ndarray:
    """Return a standard deviation for each degree of freedom, `[nv]`. **Raises** `ModelError`."""
    out = np.asarray(noise, np.float64)
    if out.shape not in ((), (nv,)) or not np.all(np.isfinite(out) & (out > 0)):
        raise ModelError(f"{name} is {noise!r}; a positive number or [{nv}] of them are needed")
    return np.broadcast_to(out, (nv,)).copy()


_first = eqx.filter_jit(shooting.first_state)
# A program of its own, since the covariances need it, too.
_linearize = eqx.filter_jit(shooting.linearize)
_step = eqx.filter_jit(descent.levenberg_marquardt)
_first_draws = eqx.filter_jit(average_slopes.first_draws)
_average = eqx.filter_jit(average_slopes.average)
_average_step = eqx.filter_jit(average_slopes.step)
_length = eqx.filter_jit(average_slopes.length)
_evaluate = eqx.filter_jit(shooting.evaluate)


@eqx.filter_jit
def _residuals(problem, state) -> tuple[ShootingResiduals, ShootingResiduals, jax.Array]:
    """Return the residuals before and after the loss, and the number of intervals between samples in which contacts
    were not solved to their tolerance."""
    plain, motion = shooting.residuals_and_motion(problem, state)
    unsolved = jnp.zeros((), jnp.int32) if motion.contact is None else (~motion.contact.converged).sum()
    return plain, plain.after(problem.loss), unsolved


@eqx.filter_jit
def _at_solution(problem, state, plain, rows) -> tuple[ArrowSystem, jax.Array, jax.Array]:
    """Return the linear system with the curvature of the loss, the size of the residuals, and the step left."""
    system, variance = descent.system_of_loss(problem, state, plain, rows)
    return compress(system), variance, descent.step_left(problem, state, rows)


@eqx.filter_jit
def _at_average(problem, state, now) -> tuple[ArrowSystem, jax.Array]:
    """Return the linear system on average, with the curvature of the loss, and the size of the residuals."""
    system, variance = descent.system_of_loss(problem, state, now.value, now.system, averaged=True)
    return compress(system), variance


def _require_same_fit(state: ShootingState, first: ShootingState) -> ShootingState:
    """Return the state as JAX arrays. **Raises** `DataError` if it belongs to another problem."""
    ours, theirs = (jax.tree.map(lambda x: (jnp.shape(x), jnp.asarray(x).dtype), s) for s in (first, state))
    if jax.tree.structure(first) != jax.tree.structure(state) or ours != theirs:
        raise DataError(
            "the state belongs to another fit: its arrays have other shapes than these recordings, segments and "
            "parametrization need. Give the arguments of that fit, or start without a state"
        )
    return jax.tree.map(jnp.asarray, state)


def _next_round(problem: ShootingProblem, state: ShootingState, options: RolloutFitOptions) -> ShootingState:
    """Return the converged state with new multipliers or new noise, or the same state if none are needed."""
    if options.matching == 0:
        r = _residuals(problem, state)[0]
        gap = (r.match - problem.segments.linked[:, None] * state.multiplier) * problem.matching
        if float(jnp.abs(gap).max()) > _EXACT_TOLERANCE:
            # The method of multipliers (Nocedal & Wright, Numerical Optimization, 2006, section 17.3).
            return _evaluate(problem, dataclasses.replace(state, multiplier=r.match))
    return _with_new_noise(problem, state, options, _residuals(problem, state)[1].data)


def _with_new_noise(problem: ShootingProblem, state: ShootingState, options: RolloutFitOptions, data) -> ShootingState:
    """Return the converged state with the noise of the residuals `data`, after the loss, or the same state if no round
    is left or the noise is the same."""
    if int(state.round) >= options.rounds:
        return state
    position, velocity = _noise_of_residuals(problem, state, data)
    velocity = np.asarray(state.velocity_noise) if velocity is None else velocity
    new = np.concatenate([position, velocity])
    ratio = new / np.concatenate([state.position_noise, state.velocity_noise])
    if np.all(np.abs(ratio - 1) < _NOISE_TOLERANCE):
        return state
    dtype = state.q.dtype
    state = dataclasses.replace(
        state,
        position_noise=jnp.asarray(position, dtype),
        velocity_noise=jnp.asarray(velocity, dtype),
        # Multipliers are forces over the noise, and the forces stay.
        multiplier=state.multiplier * jnp.asarray(ratio, dtype),
        round=state.round + 1,
    )
    return _evaluate(problem, state)


def _noise_of_residuals(problem: ShootingProblem, state: ShootingState, data) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the root mean squares of the residuals `data`, after the loss, of positions and of velocities (None if
    these are not compared), each `[nv]`, over the samples that count, in their units."""
    weight, nv = problem.segments.weight, len(state.position_noise)
    columns = np.asarray(data, np.float64).reshape(weight.size, -1)
    # No sensor is exact.
    rms = np.maximum(np.sqrt((columns**2).sum(axis=0) / float(weight.sum())), 1e-12)
    dofs = np.arange(nv) if problem.measured is None else np.array(problem.measured)
    out = [np.array(x, np.float64) for x in (state.position_noise, state.velocity_noise)]
    for noise, ratio in zip(out, rms.reshape(-1, len(dofs)), strict=False):
        noise[dofs] *= ratio
    return out[0], out[1] if len(rms) > len(dofs) else None


def _result(
    problem: ShootingProblem, state: ShootingState, free, max_iterations: int, averaged: _Averaged | None = None
) -> RolloutFit:
    plain, r, unsolved = _residuals(problem, state)
    if averaged is None:
        system, variance, left = _at_solution(problem, state, plain, _linearize(problem, state))
        per_segment = shooting.segment_residuals(problem, r)
    else:
        system, variance = _at_average(problem, state, averaged.average)
        r, left, per_segment = averaged.average.value, averaged.step_left, averaged.segment_residuals(problem)
        r = r.after(problem.loss)
    status = Status(int(state.status))
    status = Status.OUT_OF_ITERATIONS if status == Status.RUNNING else status
    far = f"by the linearized residuals, the minimum is {left:.2g} standard errors away"
    decrease = f"an expected decrease of {state.expected:.2g} in a cost of {state.cost:.6g}"
    message = {
        Status.OUT_OF_ITERATIONS: f"out of iterations: {max_iterations} were too few; {far}",
        Status.DIVERGED: "diverged: the cost is not finite; take shorter segments, or another start",
        Status.STALLED: f"stalled with {decrease}; {far}",
    }.get(status, "converged")
    if averaged is not None:
        jumping = averaged.jumping
        message += (
            f" on average: the data leave open in which time steps contacts begin and end in {jumping.sum()} of "
            f"{len(jumping)} segments, and count less there"
        )
    if unsolved:
        message += f"; contacts were not solved to their tolerance in {unsolved} intervals between samples"
    position, velocity = _noise_of_residuals(problem, state, r.data)
    segments = problem.segments
    far = np.flatnonzero(np.asarray(far_segments(per_segment)))
    if len(far):
        worst = far[np.argmax(per_segment[far])]
        message += (
            f"; the residuals of {len(far)} of {len(per_segment)} segments are far beyond the others', most in that of "
            f"recording {segments.recording[worst]} from {segments.start[worst]:.4g} s on, and no other start led to "
            "less: impacts make them hard to follow (take shorter segments, or loss='huber'), or the robot lacks "
            "something"
        )
    scale = np.concatenate([state.position_noise, state.velocity_noise]) * float(problem.matching)
    gap = np.asarray(r.match, np.float64) - np.asarray(segments.linked)[:, None] * np.asarray(state.multiplier)
    P = len(state.free)
    finite = bool(np.isfinite(gap).all() and np.isfinite(per_segment).all())
    covariance, clustered = covariances(system, float(variance), P) if finite else (np.full((P, P), np.nan),) * 2
    zeros = np.asarray(state.zeros) if len(state.zeros) else np.zeros((segments.recording.max() + 1, len(position)))
    return RolloutFit(
        robot=problem.parametrization.model(state.free),
        before=problem.parametrization.model(free),
        parametrization=problem.parametrization,
        free=np.asarray(state.free),
        covariance=covariance,
        clustered_covariance=clustered,
        status=status,
        message=message,
        step_left=float(left),
        cost=float(state.cost),
        iterations=int(state.iteration),
        rounds=int(state.round),
        unsolved=int(unsolved),
        position_noise=position,
        velocity_noise=velocity,
        segment_residuals=per_segment,
        segment_recordings=segments.recording,
        segment_times=segments.start,
        defects=gap * scale,
        zeros=zeros,
        rows=system,
        state=state,
    )
