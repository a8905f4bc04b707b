"""Multiple shooting: the unknowns, the residuals, their losses, and their derivatives.

Everything here is a pure function of pytrees: `jax.vmap` fits many robots at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn._least_squares import Damping, Iterate
from jaxdyn._status import Status
from jaxdyn.model import Model
from jaxdyn.simulate import State, Trajectory
from jaxdyn.simulate.integrators import Integrator
from jaxdyn.sysid.parameters import Parametrization, leaves
from jaxdyn.sysid.rollouts._arrow import ArrowSystem
from jaxdyn.sysid.rollouts._recorded_rollouts import Segments, closure, simulate_robot, start_activations


class ShootingProblem(eqx.Module):
    """The cost to minimize, apart from the noise, which `ShootingState` has."""

    parametrization: Parametrization
    segments: Segments
    dt: jax.Array
    """s, from a sample to the next."""
    matching: jax.Array
    """Standard deviation of the defects between segments, in units of the measurement noise."""
    prior_weight: jax.Array
    loss: RobustLoss
    """Loss of the data's residuals, its scale in units of the noise."""
    integrator: Integrator | None = eqx.field(static=True)
    substeps: int = eqx.field(static=True)
    """Steps from a sample to the next."""
    owner: jax.Array
    """`[segments, recordings]`: 1 where a segment belongs to a recording whose sensor zeros are unknown."""
    zero_deviation: jax.Array
    """Prior standard deviation of those zeros, rad or m."""
    measured: tuple[int, ...] | None = eqx.field(static=True, default=None)
    """The degrees of freedom that are measured; None for all."""
    mobility: int | None = eqx.field(static=True, default=None)
    """The number of degrees of freedom that closed loops leave; None for a tree."""

    @property
    def model(self) -> Model:
        """The model of the parametrization's reference."""
        return leaves.model_of(self.parametrization.reference)

    @property
    def shared(self) -> int:
        """How many unknowns segments share: the free numbers, and the zeros."""
        return self.parametrization.size + self.owner.shape[-1] * self.model.nv


class ShootingState(Iterate):
    """The state of a fit, from which it can continue. A pytree of arrays."""

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
    """`[segments, 2 nv]`: multipliers of the matching constraints, where they are exact."""
    round: jax.Array
    zeros: jax.Array
    """`[recordings, nv]`: offset of each recording's position sensors, reading minus position."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, to be saved."""
        return {name: np.asarray(x) for name, x in vars(self).items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> ShootingState:
        """Return the state that has these `arrays()`. **Raises** `DataError` for arrays that are missing, not finite,
        or of other shapes or types than those of a state."""
        lengths: dict[str, int] = {}
        for name, axes in _AXES.items():
            x, whole = np.asarray(arrays.get(name)), name in ("iteration", "status", "round")
            fits = x.dtype.kind in ("iu" if whole else "fiu") and x.ndim == len(axes)
            fits = fits and all(lengths.setdefault(axis, n) == n for axis, n in zip(axes, x.shape, strict=True))
            # The cost before the first step, and what it promised, are infinite.
            fits = fits and not np.isnan(x).any() and (not axes or np.isfinite(x).all())
            if not fits or ("noise" in name and not (x > 0).all()) or (whole and x < 0):
                what = f"{x.dtype}{list(x.shape)}" if name in arrays else "missing"
                raise DataError(
                    f"these arrays are not the state of a fit: {name} is {what}; {'whole' if whole else 'real'} "
                    f"numbers, finite and as many as those of the others, {list(axes)}, are needed"
                )
        if lengths["2 nv"] != 2 * lengths["nv"] or int(arrays["status"]) not in list(Status):
            raise DataError("these arrays are not the state of a fit: another length of multiplier, or unknown status")
        return cls(**{name: jnp.asarray(arrays[name]) for name in _AXES})


# The axes of a state's arrays; those with the same name have the same length.
_AXES = {
    **dict.fromkeys(("cost", "expected", "damping", "iteration", "status", "round"), ()),
    **{"free": ("P",), "q": ("segments", "nq"), "v": ("segments", "nv"), "multiplier": ("segments", "2 nv")},
    **{"position_noise": ("nv",), "velocity_noise": ("nv",), "zeros": ("recordings", "nv")},
}


def first_state(problem: ShootingProblem, free, position_noise, velocity_noise) -> ShootingState:
    """Return the state at which a fit starts: segments begin at the measured states."""
    segments, model = problem.segments, problem.model
    q = segments.q[:, 0]
    if segments.v is not None:
        v = segments.v[:, 0]
    else:
        # Only a start: over a few samples, since noise over a time step is large.
        ahead = min(4, segments.q.shape[1] - 1)
        v = model.difference(q, segments.q[:, ahead]) / (ahead * problem.dt)
    numbers = {
        **{"cost": 0.0, "expected": np.inf, "damping": Damping.first, "free": free},
        **{"position_noise": position_noise, "velocity_noise": velocity_noise},
        "multiplier": np.zeros((q.shape[0], 2 * model.nv)),
        "zeros": np.zeros((problem.owner.shape[-1], model.nv)),
    }
    counts = {"iteration": 0, "status": int(Status.RUNNING), "round": 1}
    arrays = {name: jnp.asarray(x, q.dtype) for name, x in numbers.items()}
    arrays |= {name: jnp.asarray(x, jnp.int32) for name, x in counts.items()}
    return evaluate(problem, ShootingState(q=q, v=v, **arrays))


def evaluate(problem: ShootingProblem, state: ShootingState) -> ShootingState:
    """Return the state with its cost for the present noise and multipliers, ready to continue."""
    total = cost(problem, state)
    status = jnp.where(jnp.isfinite(total), int(Status.RUNNING), int(Status.DIVERGED)).astype(jnp.int32)
    return dataclasses.replace(state, cost=total, status=status)


def displace(problem: ShootingProblem, state: ShootingState, z, x) -> ShootingState:
    """Return the state displaced by `z` `[segments, 2 nv]`, in the tangent spaces of the segments' states, and by `x`
    `[problem.shared]`, in the units of the present robot and of the zeros' deviation.

    Changing a sensor zero shifts the states with it, so the predicted readings stay the same. Otherwise step damping on
    the states would damp the zeros too.
    """
    nv, P = problem.model.nv, problem.parametrization.size
    zeros = problem.zero_deviation * x[P:].reshape(state.zeros.shape)
    return dataclasses.replace(
        state,
        free=problem.parametrization.moved(state.free, x[:P]),
        q=problem.model.integrate(state.q, z[:, :nv] - problem.owner @ zeros),
        v=state.v + z[:, nv:],
        zeros=state.zeros + zeros,
    )


class ShootingResiduals(NamedTuple):
    """The terms of the cost."""

    data: jax.Array
    """`[segments, m]`: positions, then velocities, over their noise."""
    match: jax.Array
    """`[segments, 2 nv]`: defects over their standard deviations, plus the multipliers."""
    pull: jax.Array
    """`[k]`: terms of the parametrization's pull, and the zeros of sensors."""
    closure: jax.Array
    """`[segments, c]`: what closed loops do not allow in the states; zero at the minimum, whatever the data are."""

    def after(self, loss: RobustLoss) -> ShootingResiduals:
        """Return the residuals with the loss applied to the data: half the sum of their squares is the cost."""
        return self._replace(data=loss.residual(self.data))


def segment_residuals(problem: ShootingProblem, r: ShootingResiduals) -> np.ndarray:
    """Return the root mean square of each segment's residuals, after the loss, in units of the noise, `[segments]`."""
    return np.sqrt((np.asarray(r.data, np.float64) ** 2).sum(axis=1) / counts(problem))


def counts(problem: ShootingProblem) -> np.ndarray:
    """Return the number of readings that count in each segment, `[segments]`."""
    dofs = problem.model.nv if problem.measured is None else len(problem.measured)
    kinds = 1 if problem.segments.v is None else 2
    return np.asarray(problem.segments.weight, np.float64).sum(axis=1) * dofs * kinds


def residuals(problem: ShootingProblem, state: ShootingState) -> ShootingResiduals:
    """Return the residuals before the loss."""
    return residuals_and_motion(problem, state)[0]


def cost(problem: ShootingProblem, state: ShootingState) -> jax.Array:
    """Half of the sum of squares, after the loss."""
    return 0.5 * jnp.stack([jnp.sum(x**2) for x in residuals(problem, state).after(problem.loss)]).sum()


def residuals_and_motion(
    problem: ShootingProblem, state: ShootingState, target: State | None = None
) -> tuple[ShootingResiduals, Trajectory]:
    """Return the residuals before the loss and the roll-outs of the segments, which should end at `target`, by default
    where the next ones start."""
    target = target or next_starts(state)
    robot = problem.parametrization.model(state.free)
    start = starts_of(problem, robot, state)
    motion = simulate_robot(robot, start, problem.segments.inputs, problem.dt, problem.integrator, problem.substeps)
    match = _match(problem, state, motion.final, target)
    open_loops = closure(leaves.model_of(robot), start, state.position_noise, state.velocity_noise)
    return ShootingResiduals(_misfit(problem, state, motion), match, pull_of(problem, state), open_loops), motion


def pull_of(problem: ShootingProblem, state: ShootingState) -> jax.Array:
    """Return the residuals of the prior, `[k]`."""
    pull = jnp.sqrt(2 * problem.prior_weight) * problem.parametrization.pull(state.free)
    return jnp.concatenate([pull, (state.zeros / problem.zero_deviation).ravel()])


def starts_of(problem: ShootingProblem, robot: Any, state: ShootingState) -> State:
    """Return the states at which segments start."""
    segments = problem.segments
    if segments.activation is None:
        return State(state.q, state.v)
    owner, control = segments.recording, segments.inputs.control
    return State(state.q, state.v, start_activations(robot, control, segments.activation, owner, problem.substeps))


def _misfit(problem: ShootingProblem, state: ShootingState, motion: Trajectory) -> jax.Array:
    """The residuals of the data, `[segments, m]`."""
    segments = problem.segments
    zeros = (problem.owner @ state.zeros)[:, None]
    parts = [(problem.model.difference(segments.q, motion.q) + zeros) / state.position_noise]
    if segments.v is not None:
        parts.append((motion.v - segments.v) / state.velocity_noise)
    if problem.measured is not None:
        parts = [x[..., list(problem.measured)] for x in parts]
    data = jnp.concatenate([x * segments.weight[..., None] for x in parts], axis=-1)
    return data.reshape(data.shape[0], -1)


def _match(problem: ShootingProblem, state: ShootingState, end: State, target: State) -> jax.Array:
    """The residuals of the matching constraints, `[segments, 2 nv]`."""
    gap = jnp.concatenate([problem.model.difference(target.q, end.q), end.v - target.v], axis=-1)
    scale = problem.matching * jnp.concatenate([state.position_noise, state.velocity_noise])
    return problem.segments.linked[:, None] * (gap / scale + state.multiplier)


def next_starts(state: ShootingState) -> State:
    """Return the states at which the segments after each start."""
    return State(jnp.roll(state.q, -1, axis=0), jnp.roll(state.v, -1, axis=0))


type Slopes = tuple[ShootingResiduals, ShootingResiduals, Trajectory]
"""Residuals, their derivatives `[..., n + P]` by a segment's state and the free numbers, and roll-outs."""


def linearize(problem: ShootingProblem, state: ShootingState, slopes: Slopes | None = None) -> ArrowSystem:
    """Return the residuals and their derivatives with respect to the segments' states and the shared unknowns, by
    default at the state.

    Forward tangents through the integrator; those of the states for all segments at once. A robust loss weighs the rows
    of the data: their squares are the parabola that has the loss's value and slope and lies above it everywhere, as in
    iteratively re-weighted least squares (Holland & Welsch 1977). The derivatives of `RobustLoss.residual` would have
    half the curvature far out, and steps twice too long.
    """
    n, P = state.multiplier.shape[-1], problem.parametrization.size
    value, slope, motion = slopes or _tangents(problem, state)
    E = _match_by_next_start(problem, state)

    def misfit_of_zeros(x):
        free = jnp.zeros(P, x.dtype)
        return _misfit(problem, displace(problem, state, jnp.zeros_like(state.multiplier), jnp.append(free, x)), motion)

    # The zeros change the readings, and move the states against them; a linked segment shares its zeros with the next.
    data_by_zeros = jax.jacfwd(misfit_of_zeros)(jnp.zeros(problem.shared - P, state.q.dtype))
    data_by_zeros += _against_zeros(problem, slope.data)
    match_by_zeros = _against_zeros(problem, slope.match) + _against_zeros(problem, E)
    data = jnp.concatenate([slope.data, data_by_zeros, value.data[..., None]], axis=-1)
    match = [slope.match[..., :n], E, slope.match[..., n:], match_by_zeros, value.match[..., None]]
    # A choice may have more terms than numbers, as the inertia of a body whose mass is known.
    zeros = jnp.eye(problem.shared - P, dtype=state.q.dtype)
    zeros = jnp.pad(zeros, ((len(slope.pull) - len(zeros), 0), (0, 0)))
    pull = jnp.concatenate([slope.pull[..., n:], zeros], axis=-1)
    none = jnp.zeros((*value.closure.shape, problem.shared - P), state.q.dtype)
    loops = jnp.concatenate([slope.closure, none, value.closure[..., None]], axis=-1)
    return ArrowSystem(
        data=jnp.concatenate([problem.loss.weight(value.data)[..., None] * data, loops], axis=-2),
        match=jnp.concatenate(match, axis=-1),
        border=jnp.concatenate([pull, value.pull[..., None]], axis=-1),
    )


def _tangents(problem: ShootingProblem, state: ShootingState) -> Slopes:
    (S, n), P, dtype = state.multiplier.shape, problem.parametrization.size, state.q.dtype
    target, zeros = next_starts(state), jnp.zeros(problem.shared - P, dtype)

    def function(z, x):
        return residuals_and_motion(problem, displace(problem, state, z, jnp.append(x, zeros)), target)

    def tangent(direction):
        dz, dx = jnp.broadcast_to(direction[:n], (S, n)), direction[n:]
        return jax.jvp(function, (jnp.zeros((S, n), dtype), jnp.zeros(P, dtype)), (dz, dx), has_aux=True)

    return jax.vmap(tangent, out_axes=(None, -1, None))(jnp.eye(n + P, dtype=dtype))


def _match_by_next_start(problem: ShootingProblem, state: ShootingState) -> jax.Array:
    """The derivative of the match with respect to the next segment's start, `[segments, 2 nv, 2 nv]`.

    The end of a segment does not depend on it. Taken without a gap: on rotations the derivative changes with the gap,
    and at the solution there is next to none.
    """
    n, end = state.multiplier.shape[-1], next_starts(state)

    def match(z):
        target = State(problem.model.integrate(end.q, z[:, : n // 2]), end.v + z[:, n // 2 :])
        return _match(problem, state, end, target)

    zero = jnp.zeros_like(state.multiplier)
    tangent = jax.linearize(match, zero)[1]
    return jax.vmap(lambda x: tangent(jnp.broadcast_to(x, zero.shape)), out_axes=-1)(jnp.eye(n, dtype=zero.dtype))


def _against_zeros(problem: ShootingProblem, slope: jax.Array) -> jax.Array:
    """The derivative with respect to the zeros, through the positions that they move, `[segments, m, zeros]`."""
    by_recording = problem.owner[:, None, :, None] * slope[..., None, : problem.model.nv]
    return -problem.zero_deviation * by_recording.reshape(*slope.shape[:2], -1)


type LossName = Literal["squared", "huber", "cauchy"]


class RobustLoss(eqx.Module):
    """A smooth loss `rho(r)` of a residual `r`, which is `r^2` where `r` is small against the scale `c`.

    `"huber"` is the pseudo-Huber loss `2 c^2 (sqrt(1 + (r/c)^2) - 1)`, `"cauchy"` is `c^2 log(1 + (r/c)^2)`.
    """

    name: LossName = eqx.field(static=True)
    scale: jax.Array
    """`c`, in the unit of the residuals."""

    def residual(self, r: jax.Array) -> jax.Array:
        """Return the root of the loss with the sign of `r`."""
        if self.name == "squared":
            return r
        u = (r / self.scale) ** 2
        if self.name == "huber":
            return r * jnp.sqrt(2 / (1 + jnp.sqrt(1 + u)))
        small = u < 1e-4
        far = jnp.where(small, 1.0, u)
        return r * jnp.sqrt(jnp.where(small, 1 - u / 2 + u * u / 3, jnp.log1p(far) / far))

    def weight(self, r: jax.Array) -> jax.Array:
        """Return the `w` of re-weighted least squares: `(w r)^2`, with `w` held, has the slope of the loss."""
        if self.name == "squared":
            return jnp.ones_like(r)
        return (1 + (r / self.scale) ** 2) ** (-0.25 if self.name == "huber" else -0.5)

    def curvature(self, r: jax.Array) -> jax.Array:
        """Return half of the second derivative of the loss."""
        if self.name == "squared":
            return jnp.ones_like(r)
        u = (r / self.scale) ** 2
        return (1 + u) ** -1.5 if self.name == "huber" else (1 - u) / (1 + u) ** 2
