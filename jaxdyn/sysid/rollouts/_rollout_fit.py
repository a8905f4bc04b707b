"""Identification from roll-outs, by multiple shooting: for chaotic robots, and for torques too poor to be fitted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import (
    DataError,
    ModelError,
    naming_arguments,
    require_choice,
    require_positive,
    require_positive_integer,
)
from jaxdyn._status import Status
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn._waits import saying
from jaxdyn.model import require_no_loops
from jaxdyn.simulate.integrators import Integrator, require_integrator
from jaxdyn.sysid.parameters import Parametrization, leaves
from jaxdyn.sysid.recordings import Recordings, as_recordings
from jaxdyn.sysid.rollouts import _descent as descent
from jaxdyn.sysid.rollouts import _shooting as shooting
from jaxdyn.sysid.rollouts._arrow import ArrowSystem, compress
from jaxdyn.sysid.rollouts._descent import beyond_jumps, far_segments, other_starts
from jaxdyn.sysid.rollouts._recorded_rollouts import Measured, Segments, cut_recordings, steps_between
from jaxdyn.sysid.rollouts._rollout_result import RolloutFit, covariances
from jaxdyn.sysid.rollouts._shooting import LossName, RobustLoss, ShootingProblem, ShootingResiduals, ShootingState

# Exact matching: the standard deviation of defects in the steps, in units of the noise, and their size at the end.
_EXACT_SCALE, _EXACT_TOLERANCE = 0.1, 1e-3
# Rounds of re-weighting end when no noise changes by more than this part.
_NOISE_TOLERANCE = 1e-2
# The part by which the cost must fall for another minimum to be one: less is left where steps end.
_LOWER = 1e-3


@dataclasses.dataclass(frozen=True)
class RolloutFitOptions:
    """Options of `fit_rollouts` and `fit_fleet`. **Raises** `ModelError` for a value out of range."""

    matching: float | None = 1.0
    """Standard deviation of the defects between segments, in units of the noise: small values trust the model, larger
    ones let it err. 0: segments are joined exactly, by the method of multipliers, as one roll-out of each recording.
    None: segments are independent. Without velocity noise, it is the positions' over the duration of a segment."""
    prior_weight: float = 0.0
    """Weight of the parametrization's `divergence` from its reference."""
    loss: LossName = "squared"
    """`"huber"` (smooth here: the pseudo-Huber loss) and `"cauchy"` count residuals beyond `loss_scale` less."""
    loss_scale: float = 3.0
    """Scale of the loss, in units of the noise."""
    zero_deviation: float | None = None
    """Standard deviation of the position sensors' zeros, rad or m, which are then unknown for each recording and degree
    of freedom, as of encoders that are set to zero where the robot came to rest. None: the zeros are right."""
    hold: Literal["mean", "start"] = "mean"
    """Torque between two samples: their mean, or that of the earlier one (a command that is held). The controls of a
    world are always held."""
    integrator: Integrator | None = None
    """Integrator, as in `rollout`; a step lasts from a sample to the next. None: `"rk4"`; a world has its own."""
    substeps: int = 1
    """Equal steps of the integrator from a sample to the next; worlds have their own time step."""
    rounds: int = 1
    """Largest number of fits; after each but the last, the noise is estimated from the residuals."""
    max_iterations: int = 100
    """Number of steps in all."""
    tolerance: float = 1e-6
    """The fit ends where a step promises to lower the cost by less than this part of it, and where the step without
    damping is shorter than 0.03 standard errors in every direction (`RolloutFit.step_left`)."""

    def __post_init__(self):
        require_integrator(self.integrator or "rk4", self.substeps)
        require_choice(self.loss, ("squared", "huber", "cauchy"), "loss")
        require_choice(self.hold, ("mean", "start"), "hold")
        require_positive(self.loss_scale, "loss_scale (in units of the noise)")
        for name in ("rounds", "max_iterations"):
            require_positive_integer(getattr(self, name), name)
        for name in ("prior_weight", "tolerance"):
            require_positive(getattr(self, name), name, zero=True)
        if self.matching is not None:
            require_positive(self.matching, "matching (in units of the noise, or None)", zero=True)
        if self.zero_deviation is not None:
            require_positive(self.zero_deviation, "zero_deviation (rad or m, or None)")


class RolloutStep(NamedTuple):
    """Progress of a fit, reported after every step."""

    iteration: int
    round: int
    cost: float
    """Half of the sum of squares that is minimized."""
    expected_decrease: float
    """Decrease of the cost that the step promised."""
    state: ShootingState
    """State from which `fit_rollouts(..., state=...)` continues: a pytree of arrays, to be saved."""


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
    now = _descended(problem, first if state is None else _require_same_fit(state, first), options, report)
    # Exact matching has multipliers of the old states.
    improved = options.matching != 0
    while improved:
        improved = False
        far = far_segments(_segment_residuals(problem, _residuals(problem, now)[1])).any()
        begins = _other_starts(problem, now, first) if far else []
        if int(now.status) == Status.STALLED:
            begins = begins + _beyond_jumps(problem, now)
        for begin in begins:
            other = _descended(problem, begin, options, None)
            if float(other.cost) < float(now.cost) * (1 - _LOWER):
                now, improved = other, True
                break
            now = dataclasses.replace(now, iteration=other.iteration)
    return _result(problem, now, free, options.max_iterations)


def _descended(
    problem: ShootingProblem,
    now: ShootingState,
    options: RolloutFitOptions,
    report: Callable[[RolloutStep], None] | None,
) -> ShootingState:
    """Return the state in which steps from a state end."""
    while True:
        if int(now.status) == Status.CONVERGED:
            # Convergence of the innermost loop may begin another round: of multipliers, and then of noise.
            now = _next_round(problem, now, options)
        if int(now.status) != Status.RUNNING or int(now.iteration) >= options.max_iterations:
            return now
        tolerance = jnp.asarray(options.tolerance, now.q.dtype)
        now = _step(problem, now, _linearize(problem, now), tolerance)
        if report is not None:
            report(RolloutStep(int(now.iteration), int(now.round), float(now.cost), float(now.expected), now))


def _segment_residuals(problem: ShootingProblem, r: ShootingResiduals) -> np.ndarray:
    """Return the root mean square of each segment's residuals, after the loss, in units of the noise, `[segments]`."""
    segments, data = problem.segments, np.asarray(r.data, np.float64)
    counts = np.asarray(segments.weight, np.float64).sum(axis=1) * (data.shape[1] // segments.weight.shape[1])
    return np.sqrt((data**2).sum(axis=1) / counts)


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
_other_starts = eqx.filter_jit(other_starts)
_beyond_jumps = eqx.filter_jit(beyond_jumps)
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
    if int(state.round) >= options.rounds:
        return state
    position, velocity = _noise_of_residuals(problem, state, _residuals(problem, state)[1].data)
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


def _result(problem: ShootingProblem, state: ShootingState, free, max_iterations: int) -> RolloutFit:
    plain, r, unsolved = _residuals(problem, state)
    system, variance, left = _at_solution(problem, state, plain, _linearize(problem, state))
    status = Status(int(state.status))
    status = Status.OUT_OF_ITERATIONS if status == Status.RUNNING else status
    far = f"by the linearized residuals, the minimum is {left:.2g} standard errors away"
    decrease = f"an expected decrease of {state.expected:.2g} in a cost of {state.cost:.6g}"
    message = {
        Status.OUT_OF_ITERATIONS: f"out of iterations: {max_iterations} were too few; {far}",
        Status.DIVERGED: "diverged: the cost is not finite; take shorter segments, or another start",
        Status.STALLED: f"stalled with {decrease}; {far}",
    }.get(status, "converged")
    if unsolved:
        message += f"; contacts were not solved to their tolerance in {unsolved} intervals between samples"
    position, velocity = _noise_of_residuals(problem, state, r.data)
    segments, per_segment = problem.segments, _segment_residuals(problem, r)
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
