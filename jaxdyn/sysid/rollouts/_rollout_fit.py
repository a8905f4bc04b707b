"""Identification from roll-outs, by multiple shooting: for chaotic robots, and for torques too poor to be fitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, ModelError
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.simulate.integrators._step import Integrator, checked_scheme
from jaxdyn.sysid.parameters._block import model_of
from jaxdyn.sysid.parameters._parametrization import Parametrization
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.rollouts._arrow import Rows, compressed, eliminated, influence
from jaxdyn.sysid.rollouts._rollout_result import RolloutFit
from jaxdyn.sysid.rollouts._shooting import (
    CONVERGED,
    DIVERGED,
    LOSSES,
    RUNNING,
    STALLED,
    Residuals,
    ShootingProblem,
    ShootingState,
    after_loss,
    at_rest,
    descend,
    first_state,
    levenberg_marquardt,
    linearized,
    loss_curvature,
    loss_weight,
    plain_residuals,
    segments_of,
    started_anew,
)

# Of exact matching: the standard deviation of defects in the steps, in units of the noise, and what is left of them.
_EXACT_SCALE, _EXACT_TOLERANCE = 0.1, 1e-3
# Rounds of re-weighting end when no noise changes by more than this part.
_NOISE_TOLERANCE = 1e-2


class RolloutStep(NamedTuple):
    """Progress of a fit, once for every step."""

    iteration: int
    round: int
    cost: float
    """Half of the sum of squares that is minimized."""
    expected_decrease: float
    """What a step from here was expected to gain."""
    state: ShootingState
    """From which `fit_rollouts(..., state=...)` goes on: a pytree of arrays, to be saved."""


def fit_rollouts(
    parametrization: Parametrization,
    recordings: Recording | Sequence[Recording],
    *,
    segment: float,
    position_noise: ArrayLike,
    velocity_noise: ArrayLike | None = None,
    matching: float | None = 1.0,
    prior_weight: float = 0.0,
    loss: Literal["squares", "pseudo_huber", "cauchy"] = "squares",
    loss_scale: float = 3.0,
    zero_deviation: float | None = None,
    hold: Literal["mean", "start"] = "mean",
    integrator: Integrator = "rk4",
    substeps: int = 1,
    start: Float[Array | np.ndarray, "P"] | None = None,
    rounds: int = 1,
    max_iterations: int = 100,
    tolerance: float = 1e-6,
    optimizer: Any = None,
    report: Callable[[RolloutStep], None] | None = None,
    state: ShootingState | None = None,
) -> RolloutFit:
    """Identify what of a robot is free, so that roll-outs follow recordings.

    Recordings are cut into segments, and the state at the start of each is an unknown as well (multiple shooting: Bock,
    Recent advances in parameter identification techniques for ODE, 1983): short roll-outs stay near the measurement
    where a long one of a chaotic robot, or of a robot with wrong parameters, has lost it. What is minimized is half of
    the sum of squares of

    - the positions' and velocities' residuals at all samples, over their noise;
    - the defects between the end of a segment and the start of the next, over `matching` times the noise;
    - the pull toward the parametrization's reference, `prior_weight` times its `divergence`.

    Steps are those of Gauss and Newton, damped after Levenberg and Marquardt, with derivatives through the integrator.
    The linear system has the shape of an arrow (a state couples to the next one and to the parameters), and is solved
    by orthogonal elimination of one state after the other, at a cost linear in the number of segments.

    **Arguments**

    - `recordings`: one or several, uniform in time at the same rate, of any lengths; `q`, `tau`, and `v` if
      `velocity_noise` is given. What is left over at the end of a recording, less than a segment, is not used.
    - `segment`: duration, s; for chaotic robots less than the time in which errors grow by a factor of ten or so.
    - `position_noise`, `velocity_noise`: standard deviations, one number or `[nv]`; rad, m and their rates. Without
      the latter velocities are not compared.
    - `matching`: standard deviation of the defects in units of the noise: small values trust the model, larger ones
      let it err. `0.0`: segments are joined exactly, by the method of multipliers, as if each recording was one
      roll-out. None: segments are independent. Without velocity noise, that of velocities is the positions' over the
      duration of a segment.
    - `loss`: `"squares"`; `"pseudo_huber"` and `"cauchy"` count residuals beyond `loss_scale` times the noise less.
    - `zero_deviation`: if sensors' zeros may be wrong, and otherwise in each recording (encoders that are set to zero
      where the robot came to rest), the standard deviation of that, rad or m: each recording then has its own, one
      for each degree of freedom, which are unknowns, too.
    - `hold`: what torque acts between two samples: that of the earlier one (a command that is held), or their mean.
    - `integrator`, `substeps`: as in `rollout`; a step lasts from a sample to the next.
    - `start`: free numbers to start from; by default the reference.
    - `rounds`: with more than one, the noise is estimated from the residuals, and the fit repeated with it.
    - `max_iterations`: in all.
    - `tolerance`: the fit ends where a step is expected to lower the cost by less than this part of it.
    - `optimizer`: an optax transformation, which then takes its steps down the gradient, instead; `tolerance` is then
      about the change in a step.
    - `report`: called after every step; what it raises, such as `KeyboardInterrupt`, ends the fit.
    - `state`: of an earlier fit with the same arguments (`RolloutStep.state`, `RolloutFit.state`), to go on from.

    **Returns** a `RolloutFit`; look at its `status`. **Raises** `DataError` for recordings that do not fit,
    `ModelError` for arguments that mean nothing.
    """
    reference = model_of(parametrization.reference)
    if reference.inertial_parameters.ndim != 2:
        raise ModelError("the parametrization's reference has batch axes; fit_fleet identifies many robots")
    checked_scheme(integrator, substeps, False)
    if loss not in LOSSES:
        raise ModelError(f"unknown loss {loss!r}; known: {', '.join(LOSSES)}")
    for name, x in (
        ("loss_scale", loss_scale),
        ("max_iterations", max_iterations),
        ("rounds", rounds),
        ("segment", segment),
    ):
        if not 0 < x < np.inf:
            raise ModelError(f"{name} is {x}; a positive number is needed")
    for name, x in (("prior_weight", prior_weight), ("tolerance", tolerance), ("matching", matching or 0.0)):
        if not 0 <= x < np.inf:
            raise ModelError(f"{name} is {x}; zero or a positive number is needed")
    given = (recordings,) if isinstance(recordings, Recording) else tuple(recordings)
    segments, dt, origin, times = segments_of(reference, given, segment, hold)
    position = _noise(position_noise, reference.nv, "position_noise")
    if velocity_noise is None:
        velocity, segments = position / (dt * segments.tau.shape[1]), segments._replace(v=None)
    elif segments.v is None:
        raise DataError("velocity_noise is given, but the recordings have no velocities; leave it out")
    else:
        velocity = _noise(velocity_noise, reference.nv, "velocity_noise")
    exact = matching == 0
    if matching is None:
        segments = segments._replace(linked=jnp.zeros_like(segments.linked))
    dtype = segments.q.dtype
    if zero_deviation is not None and not 0 < zero_deviation < np.inf:
        raise ModelError(f"zero_deviation is {zero_deviation}; a positive number or None is needed")
    owner = origin[:, None] == np.arange(len(given))
    problem = ShootingProblem(
        parametrization=parametrization,
        segments=segments,
        dt=jnp.asarray(dt, dtype),
        matching=jnp.asarray(_EXACT_SCALE if exact else matching or 1.0, dtype),
        prior_weight=jnp.asarray(prior_weight, dtype),
        loss_scale=jnp.asarray(loss_scale, dtype),
        loss=loss,
        integrator=integrator,
        substeps=substeps,
        owner=jnp.asarray(owner[:, : 0 if zero_deviation is None else None], dtype),
        zero_deviation=jnp.asarray(zero_deviation or 1.0, dtype),
    )
    free = parametrization.zeros() if start is None else jnp.asarray(start)
    if free.shape != (parametrization.size,):
        raise ModelError(f"start has shape {free.shape}, but the parametrization has {parametrization.size} numbers")
    first = _first(problem, free, position, velocity)
    if optimizer is not None:
        memory = optimizer.init(at_rest(problem, first))
        first = eqx.tree_at(lambda s: s.optimizer, first, memory, is_leaf=lambda x: x is None)
    now: ShootingState = first if state is None else _resumed(state, first)
    status = int(now.status)
    while True:
        if status == CONVERGED:
            # What ends the innermost loop may begin another round: of multipliers, and then of noise.
            now, status = _next_round(problem, now, exact, rounds, velocity_noise is not None)
        if status != RUNNING or int(now.iteration) >= max_iterations:
            break
        if optimizer is None:
            now = _step(problem, now, _linearized(problem, now), jnp.asarray(tolerance, dtype))
        else:
            now = _descent(problem, now, jnp.asarray(tolerance, dtype), _Static(optimizer))
        status = int(now.status)
        if report is not None:
            expected = float(now.expected)
            report(RolloutStep(int(now.iteration), int(now.round), float(now.cost), expected, now))
    gain = f"{float(now.expected):.2g} in a cost of {float(now.cost):.6g}"
    words = {
        CONVERGED: "converged",
        RUNNING: f"out of steps: {max_iterations} were too few",
        DIVERGED: "diverged: the cost is not finite; take shorter segments, or another start",
        STALLED: f"stalled with an expected decrease of {gain}",
    }
    return _result(problem, now, words[status], free, origin, times, velocity_noise is not None)


def _noise(given: ArrayLike, nv: int, name: str) -> np.ndarray:
    out = np.asarray(given, np.float64)
    if out.shape not in ((), (nv,)) or not np.all(np.isfinite(out) & (out > 0)):
        raise ModelError(f"{name} is {given!r}; a positive number or [{nv}] of them are needed")
    return np.broadcast_to(out, (nv,)).copy()


class _Static:
    """An optimizer, which is functions: part of what a program is compiled for."""

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Static) and self.value == other.value


_first = eqx.filter_jit(first_state)
# Apart from the step, since the covariances need it, too.
_linearized = eqx.filter_jit(linearized)
_step = eqx.filter_jit(levenberg_marquardt)


@eqx.filter_jit
def _descent(problem, state, tolerance, optimizer: _Static):
    return descend(problem, state, tolerance, optimizer.value)


@eqx.filter_jit
def _restarted(problem, state):
    return started_anew(problem, state)


def _resumed(state: ShootingState, first: ShootingState) -> ShootingState:
    """**Raises** `DataError` for a state of another problem."""
    ours, theirs = (jax.tree.map(lambda x: (jnp.shape(x), jnp.asarray(x).dtype), s) for s in (first, state))
    if jax.tree.structure(first) != jax.tree.structure(state) or ours != theirs:
        raise DataError(
            "the state is of another fit: its arrays have other shapes than these recordings, segments, "
            "parametrization and optimizer need. Give the arguments that it was made with, or start anew"
        )
    return jax.tree.map(jnp.asarray, state)


def _next_round(problem, state: ShootingState, exact: bool, rounds: int, with_v: bool) -> tuple[ShootingState, int]:
    if exact:
        r, _ = _residuals(problem, state)
        gap = (r.match - problem.segments.linked[:, None] * state.multiplier) * problem.matching
        if float(jnp.abs(gap).max()) > _EXACT_TOLERANCE:
            # The method of multipliers (Nocedal & Wright, Numerical Optimization, 2006, section 17.3).
            state = eqx.tree_at(lambda s: s.multiplier, state, r.match)
            state = _restarted(problem, state)
            return state, int(state.status)
    if int(state.round) >= rounds:
        return state, CONVERGED
    position, velocity = _rms(problem, state, _residuals(problem, state)[1].data, with_v)
    old = np.concatenate([state.position_noise, state.velocity_noise])
    new = np.concatenate([position, np.asarray(state.velocity_noise) if velocity is None else velocity])
    if np.all(np.abs(new / old - 1) < _NOISE_TOLERANCE):
        return state, CONVERGED
    nv = len(position)
    # The multipliers are forces over the noise: the forces stay.
    ratio = jnp.asarray(new / old, state.multiplier.dtype)
    state = eqx.tree_at(
        lambda s: (s.position_noise, s.velocity_noise, s.multiplier, s.round),
        state,
        (*(jnp.asarray(x, state.q.dtype) for x in (new[:nv], new[nv:])), state.multiplier * ratio, state.round + 1),
    )
    state = _restarted(problem, state)
    return state, int(state.status)


@eqx.filter_jit
def _residuals(problem, state) -> tuple[Residuals, Residuals]:
    """Before and after the loss."""
    r = plain_residuals(problem, state)
    return r, after_loss(problem, r)


def _rms(problem: ShootingProblem, state: ShootingState, data, with_v: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """Root mean squares of the residuals `data`, after the loss, over the samples that count, in their units."""
    parts, count = _split(problem, data)
    rms = [np.sqrt((x**2).sum(axis=(0, 1)) / count) for x in parts]
    # No sensor is exact.
    position = np.maximum(rms[0], 1e-12) * np.asarray(state.position_noise, np.float64)
    velocity = np.maximum(rms[1], 1e-12) * np.asarray(state.velocity_noise, np.float64) if with_v else None
    return position, velocity


def _split(problem: ShootingProblem, data) -> tuple[list[np.ndarray], float]:
    """The residuals of positions, and of velocities, `[segments, samples, nv]`; and the number of samples."""
    S, samples = problem.segments.weight.shape
    nv = problem.segments.tau.shape[-1]
    x = np.asarray(data, np.float64).reshape(S, samples, -1)
    return [x[..., i : i + nv] for i in range(0, x.shape[-1], nv)], float(problem.segments.weight.sum())


class _Curvature(NamedTuple):
    inverse: jax.Array
    """`[P, P]`"""
    scores: jax.Array
    """`[segments, P]`: by how much each segment's residuals move the parameters."""
    border: jax.Array
    norms: jax.Array


@eqx.filter_jit
def _curvature(rows: Rows) -> _Curvature:
    S, n = rows.match.shape[:2]
    P = rows.border.shape[-1] - 1
    dtype = rows.match.dtype
    factor = eliminated(compressed(rows), jnp.zeros((S, n), dtype), jnp.zeros(P, dtype))
    z, inverse = influence(factor)
    ahead = jnp.roll(z, -1, axis=0)
    # H^-1 times the gradient of each segment's own residuals.
    data, match = rows.data, rows.match
    along = jnp.einsum("smn,snp->smp", data[..., :n], z) + jnp.einsum("smn,np->smp", data[..., n:-1], inverse)
    scores = jnp.einsum("sm,smp->sp", data[..., -1], along)
    along = jnp.einsum("smn,snp->smp", match[..., :n], z) + jnp.einsum("smn,snp->smp", match[..., n : 2 * n], ahead)
    along += jnp.einsum("smn,np->smp", match[..., 2 * n : -1], inverse)
    scores += jnp.einsum("sm,smp->sp", match[..., -1], along)
    norms = jnp.sqrt(jnp.sum(factor.border[:, :-1] ** 2, axis=0))
    return _Curvature(inverse, scores, factor.border[:, :-1], norms)


def _rows_of_result(problem: ShootingProblem, state: ShootingState, plain: Residuals) -> tuple[Rows, float]:
    """The linear system at the solution, and the size `s^2` of the residuals.

    A robust loss counts as in Huber, Robust statistics, 1981, section 7.6: with the mean of its curvature, which is
    less than the weights that the steps take, and the mean square of its slope.
    """
    rows = compressed(_linearized(problem, state))
    S, n = state.multiplier.shape
    samples = problem.segments.weight
    counts = jnp.repeat(samples, plain.data.shape[-1] // samples.shape[-1], axis=-1) > 0
    r = plain.data[counts]
    weight = loss_weight(problem, r) ** 2
    # Where most residuals are outliers, the curvature is none or less, and nothing is certain.
    curvature = max(float(loss_curvature(problem, r).mean()), 1e-3 * float(weight.mean()))
    root = np.sqrt(curvature / float(weight.mean()))
    rows = rows._replace(data=jnp.concatenate([root * rows.data[..., :-1], rows.data[..., -1:] / root], axis=-1))
    # Every defect is an equation as well, and every state an unknown.
    freedom = len(r) + float(problem.segments.linked.sum()) * n - S * n - problem.shared
    gap = plain.match - problem.segments.linked[:, None] * state.multiplier
    squares = float(((weight * r) ** 2).sum()) / curvature + float((gap**2).sum())
    return rows, squares / max(freedom, 1.0)


def _covariances(rows: Rows, variance: float, own: int) -> tuple[np.ndarray, np.ndarray]:
    """Of the `own` free numbers, with residuals as if they were independent, and from segment to segment only.
    **Infinite** variances where the rows say nothing of a parameter.

    With `H` the Gauss-Newton matrix of data and prior `K^T K` together, `H^-1 (s^2 (H - K^T K) + K^T K) H^-1`: the
    prior is what it is, however small the residuals are.
    """
    curvature = _curvature(rows)
    S, P = len(rows.match), rows.border.shape[-1] - 1
    border, norms = (np.asarray(x, np.float64) for x in (curvature.border, curvature.norms))
    pull = np.asarray(rows.border, np.float64)[:, :-1]
    used = norms > 0
    unit = np.where(used, norms, 1.0)
    _, sizes, directions = np.linalg.svd(border / unit)
    seen = sizes > P * np.finfo(np.dtype(rows.border.dtype)).eps * max(sizes.max(initial=0), 1e-300)
    if seen.all() and used.all():
        inverse = np.asarray(curvature.inverse, np.float64)
        of_prior = inverse @ (pull.T @ pull) @ inverse
        scores = np.asarray(curvature.scores, np.float64)
        clustered = np.asarray(S / max(S - 1, 1) * (scores.T @ scores) + of_prior)
        covariance = np.asarray(variance * inverse + (1 - variance) * of_prior)
        return covariance[:own, :own], clustered[:own, :own]
    known = (directions[seen].T / sizes[seen] ** 2) @ directions[seen] / np.outer(unit, unit)
    covariance = np.asarray(variance * known + (1 - variance) * known @ (pull.T @ pull) @ known)
    unseen = ~used | (np.abs(directions[~seen]) > 1e-6).any(axis=0)
    covariance[unseen, :] = covariance[:, unseen] = 0.0
    covariance[np.diag_indices(P)] = np.where(unseen, np.inf, np.diagonal(covariance))
    return covariance[:own, :own], covariance[:own, :own]


def _result(problem, state: ShootingState, status: str, free, origin, times, with_v: bool) -> RolloutFit:
    plain, r = _residuals(problem, state)
    position, velocity = _rms(problem, state, r.data, with_v)
    parts, _ = _split(problem, r.data)
    weight = np.asarray(problem.segments.weight, np.float64).sum(axis=1)
    squares = sum((x**2).sum(axis=(1, 2)) for x in parts)
    per_segment = np.sqrt(squares / (weight * sum(x.shape[-1] for x in parts)))
    scale = np.concatenate([state.position_noise, state.velocity_noise]) * float(problem.matching)
    linked = np.asarray(problem.segments.linked)[:, None]
    gap = np.asarray(r.match, np.float64) - linked * np.asarray(state.multiplier, np.float64)
    finite = bool(np.isfinite(gap).all() and np.isfinite(per_segment).all())
    nothing = np.full((len(state.free),) * 2, np.nan)
    rows, variance = _rows_of_result(problem, state, plain)
    covariance, clustered = _covariances(rows, variance, len(state.free)) if finite else (nothing, nothing)
    return RolloutFit(
        robot=problem.parametrization.model(state.free),
        before=problem.parametrization.model(free),
        parametrization=problem.parametrization,
        free=np.asarray(state.free),
        covariance=covariance,
        clustered_covariance=clustered,
        status=status,
        cost=float(state.cost),
        iterations=int(state.iteration),
        rounds=int(state.round),
        position_noise=position,
        velocity_noise=velocity,
        segment_residuals=per_segment,
        segment_recordings=origin,
        segment_times=times,
        defects=gap * scale,
        zeros=np.asarray(state.zeros) if len(state.zeros) else np.zeros((int(origin.max()) + 1, len(position))),
        rows=rows,
        state=state,
    )
