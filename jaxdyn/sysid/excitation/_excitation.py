"""Optimal excitation: the motion, within a robot's limits, from which its parameters can be identified best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdyn import _printing as printing
from jaxdyn._errors import (
    DataError,
    ModelError,
    naming_arguments,
    require_choice,
    require_positive,
    require_positive_integer,
)
from jaxdyn._status import Status
from jaxdyn._types import ArrayLike
from jaxdyn._waits import saying
from jaxdyn.algorithms import rnea
from jaxdyn.model import Model, require_no_loops
from jaxdyn.sysid.excitation import _smooth_motions as motions
from jaxdyn.sysid.excitation._smooth_motions import JointTrajectory, Kind, LimitArrays, MotionLimits
from jaxdyn.sysid.torques import JointEffects, base_parameters, torque_layout, torque_model

type Criterion = Literal["log_det", "condition"]

# The points of the optimizer's grid for each harmonic or piece, and the part of each limit that it keeps free.
_POINTS, _MARGIN = 12, 0.02
# The grid on which limits are checked has this many times the points of the optimizer's grid.
_FINER = 10
# The augmented Lagrangian: updates of the penalty, its first value, and its growth.
_OUTER, _PENALTY, _GROWTH = 8, 20.0, 1.6


class Quality(NamedTuple):
    """The excitation of the base parameters by a motion."""

    log_det: float
    """`log det` of the information matrix of the base parameters, divided by their number."""
    condition: float
    """Condition number of the weighted regressor."""

    def loss(self, criterion: Criterion) -> float:
        """The number that a search with the criterion minimizes."""
        return -self.log_det if criterion == "log_det" else self.condition


class Excitation(NamedTuple):
    """An optimized motion, and the excitation that it achieves."""

    trajectory: JointTrajectory
    start: JointTrajectory
    """The random feasible motion from which the optimized one was reached."""
    before: Quality
    """The quality of `start`."""
    after: Quality
    """The quality of `trajectory`."""
    random: tuple[Quality, ...]
    """The qualities of all random feasible starts."""
    parameters: int
    """The number of base parameters."""
    margins: dict[str, np.ndarray]
    """`[nv]` for each of `"position"`, `"velocity"`, `"acceleration"` and `"torque"`: the smallest distance from the
    limit, as a part of it (for positions, of the range), on a tenfold finer grid; infinite where there is no limit."""
    steps: int
    """The number of optimizer steps."""
    status: Status
    message: str
    """How the search ended, and what to try."""

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        facts = {
            "condition number": f"{self.after.condition:.4g}, before {self.before.condition:.4g}",
            "base parameters": str(self.parameters),
            "motion": f"{self.trajectory.kind}, {self.trajectory.duration:g} s",
            "steps": str(self.steps),
        }
        margins = {f"margin of {name}": printing.percent(np.min(x)) for name, x in self.margins.items()}
        return self.message, facts | {name: x for name, x in margins.items() if "inf" not in x}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


@naming_arguments
@saying("optimizing the excitation")
def optimize_excitation(
    model: Model,
    *,
    duration: float = 10.0,
    kind: Kind = "fourier",
    size: int = 5,
    criterion: Criterion = "log_det",
    joint_effects: JointEffects | None = None,
    torque_noise: ArrayLike | None = None,
    limits: MotionLimits | None = None,
    starts: int = 8,
    steps: int = 400,
    seed: int = 0,
    report: Callable[[int, float], None] | None = None,
) -> Excitation:
    """Find the motion from which the base parameters of `model` can be identified best, within its limits.

    Maximizes `log det` of the information matrix `sum_t W^T W` (D-optimal: the smallest ellipsoid of confidence), or
    minimizes the condition number of `W` (Gautier & Khalil, Exciting trajectories for the identification of base
    inertial parameters of robots, IJRR 1992; Swevers et al. 1997). `W` has the columns of the independent parameters in
    the torque regressor with joint effects, divided by the torques' noise and scaled to unit size over the random
    starts. Gradients are exact; an augmented Lagrangian keeps the limits on a grid, and all starts run as one batch.
    Motions that exceed a limit between the points of the grid are shrunk about their middle. The best is returned.

    **Arguments**

    - `duration`: s. `kind`, `size`: see `JointTrajectory`.
    - `joint_effects`: the effects to be fitted; by default armature, viscous and Coulomb friction, and offsets.
    - `torque_noise`: scalar or `[nv]`, N m or N; by default in proportion to the torque limits (without them, equal).
    - `limits`: by default the model's, see `MotionLimits`. Positions need limits.
    - `starts`: the number of random feasible starts, by `seed`. `steps`: the number of steps of the optimizer (Adam).
    - `report`: called with the number of steps so far and the best value of the criterion.

    **Raises** `ModelError` for a model with free or ball joints, or batch axes; `DataError` for impossible arguments,
    and where the torque limits can hold none of the random postures at rest.
    """
    torque_model.require_known_lengths(joint_effects, "optimize_excitation", "leave them out")
    torque_model.require_effects_of_state(joint_effects, "optimize_excitation")
    _require_arguments(model, duration, kind, size, criterion)
    for name, x in (("starts", starts), ("steps", steps)):
        require_positive_integer(x, name, error=DataError)
    arrays = (limits or MotionLimits()).of(model)
    points = _POINTS * size
    times = (np.linspace(0, duration, n, endpoint=kind == "spline") for n in (points, _FINER * points))
    grid, fine = (motions.basis(kind, duration, size, t) for t in times)
    feasible = motions.FeasibleMotions(model, kind, arrays, fine)
    first = feasible.random(starts, np.random.default_rng(seed))
    effects = joint_effects or JointEffects()
    independent = tuple(base_parameters(model, effects=effects).independent.tolist())
    dtype = jnp.result_type(model.dtype, jnp.zeros(()))
    numbers = (grid, arrays.tighten(_MARGIN), _torque_noise(torque_noise, arrays.torque))
    numbers = jax.tree.map(lambda x: jnp.asarray(x, dtype), (*numbers, np.ones(len(independent))))
    objective = _Objective(model, torque_layout.Layout.of(model, effects), criterion, independent, *numbers)
    # Columns have unit size over the starts.
    columns = objective.weighted_columns(jnp.asarray(first, dtype))
    objective = eqx.tree_at(lambda x: x.scale, objective, jnp.sqrt(jnp.mean(columns**2, axis=(0, 1, 2))))
    c, values = _search_from_starts(objective, first, 0.5 * arrays.span, steps, report)
    c = feasible.shrink(c)
    before, after = _qualities(objective, first), _qualities(objective, c)
    # A start that shrinking has spoiled, or could not bring within its limits, stays as it was.
    worse = np.array([a.loss(criterion) > b.loss(criterion) for a, b in zip(after, before, strict=True)])
    worse |= ~feasible.keep_limits(c)
    c = np.where(worse[:, None, None], first, c)
    after = [b if w else a for a, b, w in zip(after, before, worse, strict=True)]
    best = int(np.argmin([a.loss(criterion) for a in after]))
    last = values[-1][best]
    status, message = Status.OUT_OF_ITERATIONS, f"still improving after {steps} steps: take more steps"
    if worse[best]:
        status, message = Status.STALLED, f"no motion better than the random ones was found in {steps} steps"
    elif len(values) > 1 and abs(last - values[-2][best]) < 0.01 * max(1.0, abs(last)):
        status, message = Status.CONVERGED, Status.CONVERGED.text
    return Excitation(
        trajectory=JointTrajectory(kind, duration, size, c[best]),
        start=JointTrajectory(kind, duration, size, first[best]),
        before=before[best],
        after=after[best],
        random=tuple(before),
        parameters=len(objective.independent),
        margins={name: x[0] for name, x in feasible.margins(c[best : best + 1]).items()},
        steps=steps,
        status=status,
        message=message,
    )


class _Objective(eqx.Module):
    """The criterion and the limits as functions of the coefficients of motions, `[starts, K, nv]`."""

    model: Model
    layout: torque_layout.Layout = eqx.field(static=True)
    criterion: Criterion = eqx.field(static=True)
    independent: tuple[int, ...] = eqx.field(static=True)
    grid: tuple[jax.Array, ...]
    limits: LimitArrays
    noise: jax.Array
    scale: jax.Array

    @eqx.filter_jit
    def weighted_columns(self, coefficients):
        """The weighted columns of the independent parameters, `[starts, n, nv, parameters]`."""
        q, v, a = (B @ coefficients for B in self.grid)
        ones: Any = jnp.ones_like(self.noise)
        friction_velocity: Any = self.model.friction_velocity
        shape = torque_model.EffectShape(friction_velocity, 0.5 * ones, 0 * ones, ones, 0 * ones, 0 * ones)
        load = jnp.abs(rnea(self.model, q, v, a)) if self.layout.by_load else jnp.zeros_like(v)
        Y = torque_model.torque_columns(self.model, (q, v, a, load), shape, self.layout)
        return Y[..., np.array(self.independent)] / (self.noise[:, None] * self.scale)

    def value_and_excess(self, coefficients):
        """The loss `[starts]`, and the excess `[starts, n, 5, nv]` over each limit, as a part of it."""
        q, v, a = (B @ coefficients for B in self.grid)
        excess = self.limits.excess(q, v, a, rnea(self.model, q, v, a))
        W = self.weighted_columns(coefficients)
        flat = W.reshape(*W.shape[:-3], -1, W.shape[-1])
        information = jnp.swapaxes(flat, -1, -2) @ flat
        if self.criterion == "log_det":
            value = -jnp.linalg.slogdet(information)[1] / information.shape[-1]
        else:
            eigenvalues = jnp.linalg.eigvalsh(information)
            value = 0.5 * jnp.log(eigenvalues[..., -1] / eigenvalues[..., 0])
        return value, jnp.stack(excess, axis=-2)


def _qualities(objective: _Objective, coefficients: np.ndarray) -> list[Quality]:
    W = np.asarray(objective.weighted_columns(jnp.asarray(coefficients, objective.noise.dtype)), np.float64)
    singular = (np.linalg.svd(w, compute_uv=False) for w in W.reshape(len(W), -1, W.shape[-1]))
    return [Quality(float(2 * np.mean(np.log(s))), float(s[0] / s[-1])) for s in singular]


def _search_from_starts(
    objective: _Objective, first: np.ndarray, unit: np.ndarray, steps: int, report: Callable[[int, float], None] | None
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the coefficients at the minima, in a `unit` `[nv]`, and every start's criterion after each penalty."""
    dtype = objective.noise.dtype
    units = jnp.asarray(unit, dtype)
    x: Any = jnp.asarray(first, dtype) / units
    multipliers = jnp.zeros((len(first), len(objective.grid[0]), 5, objective.model.nv), dtype)
    state = _optimizer(steps).init(x)
    penalty, done, values = jnp.asarray(_PENALTY, dtype), 0, []
    while done < steps:
        count = min(max(1, steps // _OUTER), steps - done)
        x, state, multipliers, value = _penalty_steps(objective, units, x, state, multipliers, penalty, count, steps)
        done, penalty = done + count, penalty * _GROWTH
        values.append(np.asarray(value, np.float64))
        if report is not None:
            report(done, float((-1 if objective.criterion == "log_det" else 1) * values[-1].min()))
    return np.asarray(x * units, np.float64), values


def _optimizer(steps: int) -> optax.GradientTransformation:
    return optax.adam(optax.cosine_decay_schedule(0.03, steps, 0.02))


@eqx.filter_jit
def _penalty_steps(objective: _Objective, unit, x, state, multipliers, penalty, steps: int, total: int):
    """Take `steps` steps with one penalty, each with the multipliers of the point before it."""
    optimizer = _optimizer(total)

    def lagrangian(x, multipliers):
        value, excess = objective.value_and_excess(x * unit)
        active = jnp.maximum(0.0, multipliers + penalty * excess)
        return jnp.sum(value) + jnp.sum(active**2 - multipliers**2) / (2 * penalty), (value, active)

    def step(carry, _):
        x, state, _, _ = carry
        gradient, (value, active) = jax.grad(lagrangian, has_aux=True)(x, multipliers)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(x, updates), state, value, active), None

    start = (x, state, jnp.zeros(x.shape[0], x.dtype), multipliers)
    (x, state, value, multipliers), _ = jax.lax.scan(step, start, None, length=steps)
    return x, state, multipliers, value if objective.criterion == "log_det" else jnp.exp(value)


def _torque_noise(noise: ArrayLike | None, limit: np.ndarray) -> np.ndarray:
    """The noise of each torque `[nv]`; see `optimize_excitation`."""
    if noise is None:
        finite = np.isfinite(limit)
        noise = 0.01 * np.where(finite, limit, limit[finite].mean() if finite.any() else 1.0)
    require_positive(noise, "torque_noise", error=DataError)
    return np.broadcast_to(noise, limit.shape)


def _require_arguments(model: Model, duration: float, kind: Kind, size: int, criterion) -> None:
    torque_layout.require_one_robot(model)
    advice = "choose motions of its driven joints, and look at base_parameters(...).condition_number"
    require_no_loops(model.topology, "optimize_excitation", advice)
    if model.nq != model.nv:
        raise ModelError(
            "the model has free or ball joints, whose motion cannot be commanded: lock them with with_locked_joints, "
            "or load the robot with a fixed base"
        )
    require_choice(kind, ("fourier", "spline"), "kind", error=DataError)
    require_choice(criterion, ("log_det", "condition"), "criterion", error=DataError)
    require_positive(duration, "duration", error=DataError)
    if size < motions.least_size(kind):
        raise DataError(f"size is {size}; a {kind} trajectory needs at least {motions.least_size(kind)}")
