"""Multiple shooting: segments, residuals and their derivatives, and one step of Levenberg-Marquardt or of a descent.

Everything here is a pure function of pytrees: `jax.vmap` fits many robots at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn._types import Array, Float
from jaxdyn.model import Model
from jaxdyn.simulate import State
from jaxdyn.simulate.integrators._step import Integrator
from jaxdyn.sysid.parameters._block import model_of
from jaxdyn.sysid.parameters._parametrization import Parametrization
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.rollouts._actuated_robot import checked_rate, held_torques, simulated
from jaxdyn.sysid.rollouts._arrow import Rows, column_norms, compressed, eliminated, solution

LOSSES = ("squares", "pseudo_huber", "cauchy")
# Tried at once after each linearization, which costs far more than a trial: multiples of the present damping.
_TRIALS = (0.1, 1.0, 10.0, 100.0)
_LEAST_DAMPING, _MOST_DAMPING = 1e-9, 1e6
RUNNING, CONVERGED, STALLED, DIVERGED = range(4)


class Segments(NamedTuple):
    """Recordings in pieces of equal length, one after the other."""

    tau: Float[Array, "segments steps nv"]
    """Torques that act from each sample to the next."""
    q: Float[Array, "segments samples nq"]
    """Measured, `samples = steps + 1`: the last of a segment is the first of the next."""
    v: Float[Array, "segments samples nv"] | None
    weight: Float[Array, "segments samples"]
    """1 where a sample counts: each of a recording does once."""
    linked: Float[Array, "segments"]
    """1 where the next segment goes on with the same recording."""


class ShootingProblem(eqx.Module):
    """What is minimized, apart from the noise, which `ShootingState` has."""

    parametrization: Parametrization
    segments: Segments
    dt: jax.Array
    """s, from a sample to the next."""
    matching: jax.Array
    """Standard deviation of the defects between segments, in units of the measurement noise."""
    prior_weight: jax.Array
    loss_scale: jax.Array
    """In units of the noise."""
    loss: str = eqx.field(static=True)
    integrator: Integrator = eqx.field(static=True)
    substeps: int = eqx.field(static=True)
    owner: jax.Array
    """`[segments, recordings]`: 1 where a segment is of a recording whose sensors' zeros are unknown."""
    zero_deviation: jax.Array
    """Prior standard deviation of those zeros, rad or m."""

    @property
    def shared(self) -> int:
        """How many unknowns segments share: the free numbers, and the zeros."""
        return self.parametrization.size + self.owner.shape[-1] * model_of(self.parametrization.reference).nv


class ShootingState(eqx.Module):
    """Where a fit is: all that it needs to go on. A pytree of arrays."""

    free: jax.Array
    """`[P]`"""
    q: jax.Array
    """`[segments, nq]`: configurations at the starts of the segments."""
    v: jax.Array
    """`[segments, nv]`"""
    position_noise: jax.Array
    """`[nv]`: standard deviations, rad or m."""
    velocity_noise: jax.Array
    """`[nv]`, rad/s or m/s."""
    multiplier: jax.Array
    """`[segments, 2 nv]`: of the matching constraints, where they are exact."""
    damping: jax.Array
    cost: jax.Array
    expected: jax.Array
    """By how much a step is still expected to lower the cost."""
    iteration: jax.Array
    round: jax.Array
    status: jax.Array
    zeros: jax.Array
    """`[recordings, nv]`: what each recording's sensors read more than the positions are."""
    optimizer: Any = None
    """What an optax optimizer remembers."""

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, to be saved; without what an optimizer remembers."""
        return {f.name: np.asarray(getattr(self, f.name)) for f in dataclasses.fields(self) if f.name != "optimizer"}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> ShootingState:
        """**Raises** `DataError` for a missing name."""
        names = [f.name for f in dataclasses.fields(cls) if f.name != "optimizer"]
        missing = [name for name in names if name not in arrays]
        if missing:
            raise DataError(f"no state of a fit: {', '.join(missing)} is missing")
        return cls(**{name: jnp.asarray(arrays[name]) for name in names})


def segments_of(model: Model, recordings: tuple[Recording, ...], seconds: float, hold: str):
    """The segments, the time step, and for each segment its recording and its time. **Raises** `DataError`."""
    if not recordings:
        raise DataError("no recordings are given")
    rates = [checked_rate(model, recording) for recording in recordings]
    if max(rates) > min(rates) * (1 + 1e-6):
        raise DataError(f"the recordings have {rates} samples per second; resample them to the same rate")
    steps = round(seconds * rates[0])
    if steps < 1:
        raise DataError(f"a segment of {seconds:g} s is shorter than a sample at {rates[0]:g} Hz")
    with_v = [recording.v is not None for recording in recordings]
    if any(with_v) and not all(with_v):
        raise DataError("some recordings have velocities and others have none; give them all, or none")
    parts, origin, times = [], [], []
    for number, recording in enumerate(recordings):
        count = (len(recording) - 1) // steps
        if count < 1:
            raise DataError(
                f"recording {number} lasts {recording.duration:g} s, less than a segment of {seconds:g} s; take "
                "shorter segments"
            )
        rows = steps * np.arange(count)[:, None] + np.arange(steps + 1)
        weight = np.ones((count, steps + 1))
        weight[:-1, -1] = 0
        linked = np.ones(count)
        linked[-1] = 0
        v = None if recording.v is None else recording.v[rows]
        (tau,) = recording.require("tau")
        parts.append((held_torques(tau, hold)[rows[:, :-1]], recording.q[rows], v, weight, linked))
        origin += [number] * count
        times.append(recording.t[rows[:, 0]])
    columns = zip(*parts, strict=True)
    arrays = [None if x[0] is None else jnp.asarray(np.concatenate(x), model.dtype) for x in columns]
    segments = Segments(*arrays)  # pyright: ignore[reportArgumentType]  (only `v` may be None)
    return segments, 1 / rates[0], np.array(origin), np.concatenate(times)


def first_state(problem: ShootingProblem, free, position_noise, velocity_noise) -> ShootingState:
    """The state at which a fit starts: segments begin where they were measured to."""
    segments = problem.segments
    model = model_of(problem.parametrization.reference)
    q = segments.q[:, 0]
    if segments.v is not None:
        v = segments.v[:, 0]
    else:
        # Only to start from: over a few samples, since noise over a time step is large.
        ahead = min(4, segments.q.shape[1] - 1)
        v = model.difference(q, segments.q[:, ahead]) / (ahead * problem.dt)
    zero = jnp.zeros((), q.dtype)
    state = ShootingState(
        free=jnp.asarray(free, q.dtype),
        q=q,
        v=v,
        position_noise=jnp.asarray(position_noise, q.dtype),
        velocity_noise=jnp.asarray(velocity_noise, q.dtype),
        multiplier=jnp.zeros((q.shape[0], 2 * model.nv), q.dtype),
        damping=jnp.asarray(1e-2, q.dtype),
        cost=zero,
        expected=zero + jnp.inf,
        iteration=jnp.zeros((), jnp.int32),
        round=jnp.ones((), jnp.int32),
        status=jnp.full((), RUNNING, jnp.int32),
        zeros=jnp.zeros((problem.owner.shape[-1], model.nv), q.dtype),
    )
    return started_anew(problem, state)


def started_anew(problem: ShootingProblem, state: ShootingState) -> ShootingState:
    """The state with the cost that it has for its present noise and multipliers, to go on from there."""
    total = cost(problem, state)
    status = jnp.where(jnp.isfinite(total), RUNNING, DIVERGED).astype(jnp.int32)
    return eqx.tree_at(lambda s: (s.cost, s.status), state, (total, status))


def moved(problem: ShootingProblem, state: ShootingState, z, x) -> ShootingState:
    """The state displaced by `z` `[segments, 2 nv]`, in the tangent spaces of the segments' states, and by `x`
    `[problem.shared]`, in the units of the present robot and of the zeros' deviation. Zeros take the
    states along, which so stay as they were read: damping of the states' steps would else hold the zeros, too."""
    model = model_of(problem.parametrization.reference)
    nv, P = model.nv, problem.parametrization.size
    zeros = problem.zero_deviation * x[P:].reshape(state.zeros.shape)
    new = (
        problem.parametrization.moved(state.free, x[:P]),
        model.integrate(state.q, z[:, :nv] - problem.owner @ zeros),
        state.v + z[:, nv:],
        state.zeros + zeros,
    )
    return eqx.tree_at(lambda s: (s.free, s.q, s.v, s.zeros), state, new)


class Residuals(NamedTuple):
    data: jax.Array
    """`[segments, m]`: positions, then velocities, over their noise."""
    match: jax.Array
    """`[segments, 2 nv]`: defects over their standard deviations, plus the multipliers."""
    pull: jax.Array
    """`[problem.shared]`"""


def residuals(problem: ShootingProblem, state: ShootingState) -> Residuals:
    """Half the sum of their squares is the cost: those of the data are after the loss."""
    return after_loss(problem, plain_residuals(problem, state))


def after_loss(problem: ShootingProblem, r: Residuals) -> Residuals:
    return r._replace(data=_lossy(problem, r.data))


def plain_residuals(problem: ShootingProblem, state: ShootingState) -> Residuals:
    """Those of the data before the loss."""
    return _residuals_and_motion(problem, state, following(state))[0]


def _residuals_and_motion(problem: ShootingProblem, state: ShootingState, next_state: State):
    """`next_state`: where each segment should end."""
    segments = problem.segments
    robot = problem.parametrization.model(state.free)
    motion = simulated(robot, State(state.q, state.v), segments.tau, problem.dt, problem.integrator, problem.substeps)
    match = matching(problem, state, motion.final, next_state)
    pull = jnp.sqrt(2 * problem.prior_weight) * problem.parametrization.pull(state.free)
    pull = jnp.concatenate([pull, (state.zeros / problem.zero_deviation).ravel()])
    return Residuals(_misfit(problem, state, motion), match, pull), motion


def _misfit(problem: ShootingProblem, state: ShootingState, motion) -> jax.Array:
    """`[segments, m]`"""
    segments = problem.segments
    model = model_of(problem.parametrization.reference)
    zeros = (problem.owner @ state.zeros)[:, None]
    parts = [(model.difference(segments.q, motion.q) + zeros) / state.position_noise]
    if segments.v is not None:
        parts.append((motion.v - segments.v) / state.velocity_noise)
    data = jnp.concatenate([x * segments.weight[..., None] for x in parts], axis=-1)
    return data.reshape(data.shape[0], -1)


def following(state: ShootingState) -> State:
    """Where the segments after each start."""
    return State(jnp.roll(state.q, -1, axis=0), jnp.roll(state.v, -1, axis=0))


def matching(problem: ShootingProblem, state: ShootingState, end: State, next_state: State) -> jax.Array:
    model = model_of(problem.parametrization.reference)
    gap = jnp.concatenate([model.difference(next_state.q, end.q), end.v - next_state.v], axis=-1)
    scale = problem.matching * jnp.concatenate([state.position_noise, state.velocity_noise])
    return problem.segments.linked[:, None] * (gap / scale + state.multiplier)


def cost(problem: ShootingProblem, state: ShootingState) -> jax.Array:
    """Half of the sum of squares."""
    return 0.5 * jnp.stack([jnp.sum(x**2) for x in residuals(problem, state)]).sum()


def linearized(problem: ShootingProblem, state: ShootingState) -> Rows:
    """The residuals and their derivatives by the segments' states and the parameters: forward tangents through the
    integrator, those of the states for all segments at once.

    A robust loss weighs the rows of the data (`loss_weight`): their squares are the parabola that has the value's slope
    and lies above the loss everywhere, as in iteratively re-weighted least squares (Holland & Welsch 1977). The
    derivatives of what `_lossy` gives would have half the curvature far out, and steps twice too long.
    """
    S, n, P = state.q.shape[0], state.multiplier.shape[-1], state.free.shape[-1]
    dtype = state.q.dtype
    ahead = following(state)
    still = jnp.zeros(problem.shared - P, dtype)

    def function(z, x):
        there = moved(problem, state, z, jnp.concatenate([x, still]))
        return _residuals_and_motion(problem, there, ahead)

    zero = jnp.zeros((S, n), dtype), jnp.zeros(P, dtype)
    of_z = jnp.concatenate([jnp.eye(n, dtype=dtype), jnp.zeros((P, n), dtype)])
    of_x = jnp.concatenate([jnp.zeros((n, P), dtype), jnp.eye(P, dtype=dtype)])

    def tangent(dz, dx):
        return jax.jvp(function, zero, (jnp.broadcast_to(dz, (S, n)), dx), has_aux=True)

    value, slope, motion = jax.vmap(tangent, out_axes=(None, -1, None))(of_z, of_x)

    def of_zeros(x):
        # Of the readings alone; that the states move against the zeros is added below.
        return _misfit(problem, moved(problem, state, zero[0], jnp.concatenate([zero[1], x])), motion)

    def of_next(z):
        # Of the match alone: where a segment ends does not depend on where the next one starts. Taken without a gap:
        # on rotations the derivative changes with it, and at the solution there is next to none.
        model = model_of(problem.parametrization.reference)
        nv = n // 2
        there = State(model.integrate(ahead.q, z[:, :nv]), ahead.v + z[:, nv:])
        return matching(problem, state, ahead, there)

    _, E = jax.vmap(lambda dz: jax.jvp(of_next, zero[:1], (jnp.broadcast_to(dz, (S, n)),)), out_axes=(None, -1))(
        jnp.eye(n, dtype=dtype)
    )

    def against(slope):
        own = problem.owner[:, None, :, None] * slope[..., None, : n // 2]
        return -problem.zero_deviation * own.reshape(*slope.shape[:2], -1)

    weight = loss_weight(problem, value.data)[..., None]
    # A segment that another follows shares its zeros with that.
    of_match = against(slope.match) + against(E)
    data = jnp.concatenate([slope.data, jax.jacfwd(of_zeros)(still) + against(slope.data), value.data[..., None]], -1)
    data = weight * data
    match = jnp.concatenate([slope.match[..., :n], E, slope.match[..., n:], of_match, value.match[..., None]], axis=-1)
    of_pull = jnp.eye(problem.shared, dtype=dtype).at[:, :P].set(slope.pull[..., n:])
    border = jnp.concatenate([of_pull, value.pull[..., None]], axis=-1)
    return Rows(data, match, border)


def levenberg_marquardt(problem: ShootingProblem, state: ShootingState, rows: Rows, tolerance) -> ShootingState:
    """The best of a few steps with different damping, from `linearized` rows, and whether to go on.

    Damping is relative to the norms of the columns (Marquardt 1963), which no choice of units changes.
    """
    rows = compressed(rows)
    norm_z, norm_x = column_norms(rows)
    # What no residual depends on is damped like the rest, and so stays.
    norm_x = jnp.maximum(norm_x, 1e-6 * jnp.maximum(norm_x.max(initial=0), jnp.finfo(norm_x.dtype).tiny))

    def trial(damping):
        root = jnp.sqrt(damping)
        factor = eliminated(rows, root * norm_z, root * norm_x)
        new = moved(problem, state, *solution(factor))
        return new, cost(problem, new), factor.decrease

    dampings = jnp.clip(state.damping * jnp.asarray(_TRIALS, state.q.dtype), _LEAST_DAMPING)
    news, costs, expected = jax.vmap(trial)(dampings)
    costs = jnp.where(jnp.isfinite(costs), costs, jnp.inf)
    best = jnp.argmin(costs)
    new = jax.tree.map(lambda x: x[best], news)
    better = costs[best] < state.cost
    small = expected[0] <= tolerance * state.cost
    # Heavily damped steps expect little wherever they are.
    converged = small & (dampings[0] <= 1)
    # The direction descends, so that only rounding can hide it.
    rounding = jnp.sqrt(jnp.finfo(state.q.dtype).eps)
    hidden = jnp.where(expected[0] <= rounding * state.cost, CONVERGED, STALLED)
    failed = jnp.where(dampings[-1] >= _MOST_DAMPING, hidden, RUNNING)
    status = jnp.where(converged, CONVERGED, jnp.where(better, RUNNING, failed)).astype(jnp.int32)
    out = eqx.tree_at(
        lambda s: (s.cost, s.expected, s.damping, s.iteration, s.status),
        jax.tree.map(lambda a, b: jnp.where(better, a, b), new, state),
        (
            jnp.where(better, costs[best], state.cost),
            expected[0],
            jnp.where(better, dampings[best], 100 * dampings[-1]),
            state.iteration + 1,
            status,
        ),
    )
    # In a batch, those that are done wait for the others.
    running = state.status == RUNNING
    return jax.tree.map(lambda a, b: jnp.where(running, a, b), out, state)


def at_rest(problem: ShootingProblem, state: ShootingState) -> tuple[jax.Array, jax.Array]:
    """The arguments `z, x` of `moved` that move nothing."""
    return jnp.zeros_like(state.multiplier), jnp.zeros(problem.shared, state.free.dtype)


def descend(problem: ShootingProblem, state: ShootingState, tolerance, optimizer: Any) -> ShootingState:
    """One step of an optax optimizer, by the gradient through the roll-outs in reverse mode. The unknowns are in units
    of the noise, and in those of the present robot."""
    scale = jnp.concatenate([state.position_noise, state.velocity_noise])
    zero = at_rest(problem, state)

    def total(unknown):
        return cost(problem, moved(problem, state, scale * unknown[0], unknown[1]))

    value, gradient = jax.value_and_grad(total)(zero)
    memory = optimizer.init(zero) if state.optimizer is None else state.optimizer
    # Adaptive optimizers take any multiple of the gradient; per sample it does not depend on the recordings' length.
    count = jnp.maximum(problem.segments.weight.sum(), 1)
    gradient = jax.tree.map(lambda g: g / count, gradient)
    updates, memory = optimizer.update(gradient, memory, zero)
    new = moved(problem, state, scale * updates[0], updates[1])
    after = cost(problem, new)
    change = jnp.abs(value - after)
    status = jnp.where(jnp.isfinite(after), jnp.where(change <= tolerance * value, CONVERGED, RUNNING), DIVERGED)
    return eqx.tree_at(
        lambda s: (s.cost, s.expected, s.iteration, s.status, s.optimizer),
        new,
        (after, change, state.iteration + 1, status.astype(jnp.int32), memory),
        is_leaf=lambda x: x is None,
    )


def loss_weight(problem: ShootingProblem, r: jax.Array) -> jax.Array:
    """The root of the loss's slope by half of `r^2`, 1 where `r` is small: `w r` has as the slope of half its square,
    `w` held, that of the loss."""
    if problem.loss == "squares":
        return jnp.ones_like(r)
    power = -0.25 if problem.loss == "pseudo_huber" else -0.5
    return (1 + (r / problem.loss_scale) ** 2) ** power


def loss_curvature(problem: ShootingProblem, r: jax.Array) -> jax.Array:
    """The second derivative of half of `_lossy(r)^2`."""
    if problem.loss == "squares":
        return jnp.ones_like(r)
    u = (r / problem.loss_scale) ** 2
    return (1 + u) ** -1.5 if problem.loss == "pseudo_huber" else (1 - u) / (1 + u) ** 2


def _lossy(problem: ShootingProblem, r: jax.Array) -> jax.Array:
    """Residuals whose squares are the loss of `r`: `2 c^2 (sqrt(1 + (r/c)^2) - 1)` for `"pseudo_huber"`,
    `c^2 log(1 + (r/c)^2)` for `"cauchy"`. Smooth, and `r` itself where it is small."""
    if problem.loss == "squares":
        return r
    u = (r / problem.loss_scale) ** 2
    if problem.loss == "pseudo_huber":
        return r * jnp.sqrt(2 / (1 + jnp.sqrt(1 + u)))
    small = u < 1e-4
    far = jnp.where(small, 1.0, u)
    return r * jnp.sqrt(jnp.where(small, 1 - u / 2 + u * u / 3, jnp.log1p(far) / far))
