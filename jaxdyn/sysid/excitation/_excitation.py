"""Motions from which parameters can be identified best: optimal excitation within the limits of the robot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdyn._errors import DataError, ModelError
from jaxdyn._types import ArrayLike
from jaxdyn.algorithms import rnea
from jaxdyn.model import Model
from jaxdyn.sysid.excitation._joint_motions import JointTrajectory, Kind, basis, least_size, middle
from jaxdyn.sysid.parameters._base_parameters import base_parameters
from jaxdyn.sysid.torques._effects import JointEffects
from jaxdyn.sysid.torques._torque_model import Layout, Shape, torque_columns

type Criterion = Literal["log_det", "condition"]

# The grid on which limits are checked has this many times the points of the one on which they are optimized.
_FINER = 10
# Part of a limit that may be exceeded between the points of the finer grid, and is kept free.
_UNSEEN = 1e-3
_OUTER, _PENALTY, _GROWTH = 8, 20.0, 1.6


class Limits(NamedTuple):
    """Of a motion, each `[nv]`; infinite where there is none. JAX arrays within the optimizer's programs."""

    lower: Any
    upper: Any
    velocity: Any
    acceleration: Any
    torque: Any


class Quality(NamedTuple):
    """How well a motion excites the base parameters."""

    log_det: float
    """`log det` of the information matrix of the base parameters, over their number."""
    condition: float
    """Condition number of the weighted regressor."""


class Excitation(NamedTuple):
    """An optimized motion, and what it is good for."""

    trajectory: JointTrajectory
    start: JointTrajectory
    """The random feasible one from which it was reached."""
    before: Quality
    """Of `start`."""
    after: Quality
    random: tuple[Quality, ...]
    """Of all random feasible starts."""
    parameters: int
    """Number of base parameters."""
    margins: dict[str, np.ndarray]
    """By `"position"`, `"velocity"`, `"acceleration"` and `"torque"` `[nv]`: how far the motion stays from the limit,
    as a part of it (of the range, for positions), at worst, on a grid ten times finer than the optimizer's. Infinite
    where there is no limit; never negative."""
    steps: int
    status: str
    """In words: `"converged"`, or what stopped the search."""


def optimize_excitation(
    model: Model,
    *,
    duration: float = 10.0,
    kind: Kind = "fourier",
    size: int = 5,
    criterion: Criterion = "log_det",
    joint_effects: JointEffects | None = None,
    torque_noise: ArrayLike | None = None,
    position_limits: tuple[ArrayLike, ArrayLike] | None = None,
    velocity_limit: ArrayLike | None = None,
    acceleration_limit: ArrayLike | None = None,
    torque_limit: ArrayLike | None = None,
    starts: int = 8,
    steps: int = 400,
    samples: int | None = None,
    margin: float = 0.02,
    seed: int = 0,
    report: Callable[[int, float], None] | None = None,
) -> Excitation:
    """The motion from which the base parameters of `model` can be identified best, within its limits.

    Maximizes `log det` of the information matrix `sum_t W^T W` (D-optimal: the smallest ellipsoid of confidence), or
    minimizes the condition number of `W` (Gautier & Khalil, Exciting trajectories for the identification of base
    inertial parameters of robots, IJRR 1992; Swevers et al. 1997), where `W` are the columns of the independent
    parameters in the torque regressor with joint effects, over the noise of the torques, scaled to unit size over the
    random motions from which the search starts. Gradients are exact, through the regressor and through inverse
    dynamics for the torque limits, which are kept by an augmented Lagrangian; all starts run as one batch. What is left
    of violations between the points of the grid is removed by shrinking the motion about its middle, and the best is
    returned.

    **Arguments**

    - `duration`: s. `kind`, `size`: see `JointTrajectory`.
    - `joint_effects`: those that will be fitted; by default armature, viscous and Coulomb friction, and offsets.
    - `torque_noise`: scalar or `[nv]`, N m or N; by default in proportion to the torque limits (without them, equal).
    - `position_limits`, `velocity_limit`, `torque_limit`: scalars or `[nv]`; by default the model's. Positions need
      limits: give them for continuous joints. `acceleration_limit`: none by default, models have none.
    - `starts`: random feasible motions. `steps`: of the optimizer (Adam), for all.
    - `samples`: points of the optimizer's grid; by default 12 for each harmonic or piece.
    - `margin`: part of each limit that the optimizer stays away from it.
    - `report`: called with the steps done and the best criterion so far.

    **Raises** `ModelError` for a model with free or ball joints, or batch axes; `DataError` for arguments that cannot
    be, and where no posture at rest is found that the torque limits can hold.
    """
    _check(model, duration, kind, size, criterion, starts, steps, margin)
    limits = _limits(model, position_limits, velocity_limit, acceleration_limit, torque_limit)
    effects = joint_effects or JointEffects()
    layout = Layout.of(model, effects)
    finite = np.isfinite(limits.torque)
    size_of_torque = np.where(finite, limits.torque, limits.torque[finite].mean() if finite.any() else 1.0)
    noise = np.broadcast_to(0.01 * size_of_torque if torque_noise is None else torque_noise, (model.nv,))
    if not np.all(np.asarray(noise) > 0):
        raise DataError(f"torque_noise is {torque_noise}; positive numbers are needed")
    independent = base_parameters(model, effects=effects).independent

    count = samples or 12 * size
    dtype = jnp.result_type(model.dtype, jnp.zeros(()))
    grid, fine = (
        basis(kind, duration, size, np.linspace(0, duration, n, endpoint=kind == "spline"))
        for n in (count, _FINER * count)
    )
    task = _Task(
        model=model,
        layout=layout,
        criterion=criterion,
        independent=tuple(int(k) for k in independent),
        grid=tuple(jnp.asarray(x, dtype) for x in grid),
        limits=Limits(*(jnp.asarray(x, dtype) for x in _tightened(limits, margin))),
        noise=jnp.asarray(noise, dtype),
        scale=jnp.ones(len(independent), dtype),
    )
    feasible = _Feasible(model, kind, limits, fine)
    first = feasible.random(starts, np.random.default_rng(seed))
    rows = _regressor(task, jnp.asarray(first, dtype))
    task = eqx.tree_at(lambda x: x.scale, task, jnp.sqrt(jnp.mean(rows**2, axis=(0, 1, 2))))
    before = _qualities(task, first)

    # Unknowns in units of half the range of positions.
    unit = jnp.asarray(0.5 * (limits.upper - limits.lower), dtype)
    x: Any = jnp.asarray(first, dtype) / unit
    multipliers = jnp.zeros((starts, count, 5, model.nv), dtype)
    optimizer = optax.adam(optax.cosine_decay_schedule(0.03, steps, 0.02))
    state = optimizer.init(x)
    inner = max(1, steps // _OUTER)
    penalty, done, values = jnp.asarray(_PENALTY, dtype), 0, []
    while done < steps:
        todo = min(inner, steps - done)
        x, state, multipliers, value = _improved(task, unit, x, state, multipliers, penalty, todo, steps)
        done, penalty = done + todo, penalty * _GROWTH
        values.append(np.asarray(value, np.float64))
        if report is not None:
            report(done, float(_sign(criterion) * values[-1].min()))
    found = feasible.shrunk(np.asarray(x * unit, np.float64))
    after = _qualities(task, found)
    # A start that shrinking has spoilt, or has not brought within its limits, is kept as it was.
    kept = feasible.ok(found)
    worse = [not k or _value(a, criterion) > _value(b, criterion) for k, a, b in zip(kept, after, before, strict=True)]
    found = np.where(np.array(worse)[:, None, None], first, found)
    after = [b if w else a for a, b, w in zip(after, before, worse, strict=True)]
    best = int(np.argmin([_value(a, criterion) for a in after]))
    settled = len(values) > 1 and abs(values[-1][best] - values[-2][best]) < 0.01 * max(1.0, abs(values[-1][best]))
    status = "converged" if settled else f"stopped after {steps} steps, still improving: take more steps"
    if worse[best]:
        status = f"no motion better than the random ones was found in {steps} steps"
    return Excitation(
        trajectory=JointTrajectory(kind, duration, size, found[best]),
        start=JointTrajectory(kind, duration, size, first[best]),
        before=before[best],
        after=after[best],
        random=tuple(before),
        parameters=len(independent),
        margins=feasible.margins(found[best]),
        steps=done,
        status=status,
    )


class _Task(eqx.Module):
    """What the optimizer's programs need."""

    model: Model
    layout: Layout = eqx.field(static=True)
    criterion: str = eqx.field(static=True)
    independent: tuple[int, ...] = eqx.field(static=True)
    grid: tuple[jax.Array, ...]
    limits: Limits
    noise: jax.Array
    scale: jax.Array


@eqx.filter_jit
def _regressor(task: _Task, coefficients):
    """`[starts, n, nv, parameters]`: the weighted columns of the independent parameters."""
    return _weighted(task, _motion(task, coefficients))


def _motion(task: _Task, coefficients):
    return tuple(B @ coefficients for B in task.grid)


def _weighted(task: _Task, motion):
    q, v, a = motion
    one: Any = jnp.ones_like(task.noise)
    friction_velocity: Any = task.model.friction_velocity
    shape = Shape(friction_velocity, 0.5 * one, 0 * one, 0 * one)
    load = jnp.abs(rnea(task.model, q, v, a)) if task.layout.by_load else jnp.zeros_like(v)
    Y, _ = torque_columns(task.model, (q, v, a, v, load), shape, task.layout)
    return Y[..., np.array(task.independent)] / (task.noise[:, None] * task.scale)


def _information(W):
    flat = W.reshape(*W.shape[:-3], -1, W.shape[-1])
    return jnp.swapaxes(flat, -1, -2) @ flat


def _qualities(task: _Task, coefficients) -> list[Quality]:
    W = np.asarray(_regressor(task, jnp.asarray(coefficients, task.noise.dtype)), np.float64)
    out = []
    for w in W.reshape(len(W), -1, W.shape[-1]):
        singular = np.linalg.svd(w, compute_uv=False)
        out.append(Quality(float(2 * np.mean(np.log(singular))), float(singular[0] / singular[-1])))
    return out


def _value(quality: Quality, criterion: str) -> float:
    return -quality.log_det if criterion == "log_det" else quality.condition


def _sign(criterion: str) -> float:
    return -1.0 if criterion == "log_det" else 1.0


@eqx.filter_jit
def _improved(task: _Task, unit, x, state, multipliers, penalty, steps: int, total: int):
    optimizer = optax.adam(optax.cosine_decay_schedule(0.03, total, 0.02))

    def parts(x):
        q, v, a = motion = _motion(task, x * unit)
        limits = task.limits
        span = limits.upper - limits.lower
        # One where there is no limit: never active.
        g = jnp.stack(
            [
                (q - limits.upper) / span,
                (limits.lower - q) / span,
                jnp.abs(v) / limits.velocity - 1,
                jnp.abs(a) / limits.acceleration - 1,
                jnp.abs(rnea(task.model, q, v, a)) / limits.torque - 1,
            ],
            axis=-2,
        )
        information = _information(_weighted(task, motion))
        if task.criterion == "log_det":
            value = -jnp.linalg.slogdet(information)[1] / information.shape[-1]
        else:
            eigenvalues = jnp.linalg.eigvalsh(information)
            value = 0.5 * jnp.log(eigenvalues[..., -1] / eigenvalues[..., 0])
        return value, g

    def lagrangian(x):
        value, g = parts(x)
        active = jnp.maximum(0.0, multipliers + penalty * g)
        return jnp.sum(value) + jnp.sum(active**2 - multipliers**2) / (2 * penalty), (value, active)

    # The multipliers are those of the last point at which there was a gradient: nothing is evaluated besides.
    def step(carry, _):
        x, state, _, _ = carry
        gradient, (value, active) = jax.grad(lagrangian, has_aux=True)(x)
        updates, state = optimizer.update(gradient, state)
        return (optax.apply_updates(x, updates), state, value, active), None

    start = (x, state, jnp.zeros(x.shape[0], x.dtype), multipliers)
    (x, state, value, multipliers), _ = jax.lax.scan(step, start, None, length=steps)
    return x, state, multipliers, value if task.criterion == "log_det" else jnp.exp(value)


class _Feasible:
    """Motions within limits, as seen on a fine grid."""

    def __init__(self, model: Model, kind: Kind, limits: Limits, grid: tuple[np.ndarray, ...]):
        self.model, self.limits, self.grid = model, limits, grid
        self.kind: Kind = kind
        dtype = jnp.result_type(model.dtype, jnp.zeros(()))
        fixed = tuple(jnp.asarray(x, dtype) for x in grid)

        @eqx.filter_jit
        def torque(model, c):
            return jnp.max(jnp.abs(rnea(model, *(B @ c for B in fixed))), axis=-2)

        self._torque = lambda c: np.asarray(torque(model, jnp.asarray(c, dtype)), np.float64)

    def slack(self, c: np.ndarray) -> dict[str, np.ndarray]:
        """`[starts, nv]` by limit, as parts of it."""
        q, v, a = (B @ c for B in self.grid)
        low, high = q.min(axis=-2), q.max(axis=-2)
        limits = self.limits
        span = limits.upper - limits.lower
        return {
            "position": np.minimum(low - limits.lower, limits.upper - high) / span,
            "velocity": _part(np.abs(v).max(axis=-2), limits.velocity),
            "acceleration": _part(np.abs(a).max(axis=-2), limits.acceleration),
            "torque": _part(self._torque(c), limits.torque),
        }

    def margins(self, c: np.ndarray) -> dict[str, np.ndarray]:
        return {name: x[0] for name, x in self.slack(c[None]).items()}

    def ok(self, c: np.ndarray) -> np.ndarray:
        """`[starts]` of bool: whether all limits are kept."""
        return np.min([x.min(axis=-1) for x in self.slack(c).values()], axis=0) >= _UNSEEN

    def random(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """`[count, K, nv]`: random motions about random postures, each joint as far as its limits allow, then all
        shrunk until the torques are within theirs."""
        limits = self.limits
        shape = (4 * count, self.grid[0].shape[1], self.model.nv)
        moving = rng.standard_normal(shape)
        moving -= middle(self.kind, moving)
        span = limits.upper - limits.lower
        center = 0.5 * (limits.lower + limits.upper) + 0.15 * span * rng.uniform(-1, 1, (shape[0], 1, shape[2]))
        still = middle(self.kind, np.broadcast_to(center, shape).copy())
        q, v, a = (B @ moving for B in self.grid)
        room = np.minimum(center - limits.lower, limits.upper - center)
        reach = np.stack(
            [
                room[:, 0] / np.abs(q).max(axis=1),
                limits.velocity / np.abs(v).max(axis=1),
                limits.acceleration / np.abs(a).max(axis=1),
            ]
        ).min(axis=0)
        usable = np.flatnonzero(self.ok(still))[:count]
        if len(usable) < count:
            raise DataError(
                f"only {len(usable)} of {shape[0]} random postures at rest, of {count} that are needed, can be held "
                "within the limits of the torques; give wider limits, or another gravity"
            )
        return self.shrunk((still + 0.95 * reach[:, None] * moving)[usable])

    def shrunk(self, c: np.ndarray) -> np.ndarray:
        """Each motion moved toward its middle, held within the positions' limits, until all limits are kept."""
        still = middle(self.kind, c)
        inside = 0.02 * (self.limits.upper - self.limits.lower)
        held = np.clip(self.grid[0][:1] @ still, self.limits.lower + inside, self.limits.upper - inside)
        still = middle(self.kind, np.broadcast_to(held, c.shape).copy())
        low, high = np.zeros(len(c)), np.ones(len(c))
        whole = self.ok(c)
        for _ in range(20):
            part = 0.5 * (low + high)
            ok = self.ok(still + part[:, None, None] * (c - still))
            low, high = np.where(ok, part, low), np.where(ok, high, part)
        return np.where(whole[:, None, None], c, still + low[:, None, None] * (c - still))


def _part(largest: np.ndarray, limit: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(limit), 1 - largest / np.where(np.isfinite(limit), limit, 1.0), np.inf)


def _tightened(limits: Limits, margin: float) -> Limits:
    span = limits.upper - limits.lower
    return Limits(
        limits.lower + margin * span, limits.upper - margin * span, *((1 - margin) * np.asarray(x) for x in limits[2:])
    )


def _limits(model: Model, position, velocity, acceleration, torque) -> Limits:
    def per_dof(x, what: str) -> np.ndarray:
        x = np.asarray(x, np.float64)
        if x.shape not in ((), (model.nv,)) or np.isnan(x).any():
            raise DataError(f"{what} has shape {x.shape} or is NaN; a number or [{model.nv}] of them are needed")
        return np.broadcast_to(x, (model.nv,)).copy()

    lower, upper = (model.position_lower, model.position_upper) if position is None else position
    out = Limits(
        per_dof(lower, "position_limits[0]"),
        per_dof(upper, "position_limits[1]"),
        per_dof(model.velocity_limit if velocity is None else velocity, "velocity_limit"),
        per_dof(np.inf if acceleration is None else acceleration, "acceleration_limit"),
        per_dof(model.effort_limit if torque is None else torque, "torque_limit"),
    )
    names = np.array(model.joint_names)[[i not in model.topology.leaders for i in range(model.nb)]]
    for wrong, what in (
        (~np.isfinite(out.upper - out.lower) | (out.upper <= out.lower), "no range of positions: give position_limits"),
        (out.velocity <= 0, "a velocity limit that is not positive: give velocity_limit"),
        (out.acceleration <= 0, "an acceleration limit that is not positive"),
        (out.torque <= 0, "an effort limit that is not positive: give torque_limit"),
        (
            ~np.isfinite(out.velocity) & ~np.isfinite(out.acceleration) & ~np.isfinite(out.torque),
            "no limit but of its positions: give velocity_limit",
        ),
    ):
        if wrong.any():
            raise DataError(f"joints {', '.join(names[wrong])}: {what}")
    return out


def _check(model: Model, duration, kind, size, criterion, starts, steps, margin) -> None:
    if model.inertial_parameters.ndim != 2:
        raise ModelError(f"the model has batch axes {model.inertial_parameters.shape[:-2]}: take one element first")
    if model.nq != model.nv:
        raise ModelError(
            "the model has free or ball joints, whose motion cannot be commanded: lock them with with_locked_joints, "
            "or load the robot with a fixed base"
        )
    if kind not in ("fourier", "spline"):
        raise DataError(f"kind is {kind!r}; known: 'fourier', 'spline'")
    if criterion not in ("log_det", "condition"):
        raise DataError(f"criterion is {criterion!r}; known: 'log_det', 'condition'")
    if size < least_size(kind):
        raise DataError(f"size is {size}; a {kind} trajectory needs at least {least_size(kind)}")
    if not (duration > 0 and starts >= 1 and steps >= 1 and 0 <= margin < 0.5):
        raise DataError(
            f"duration {duration}, starts {starts} and steps {steps} must be positive, margin {margin} between 0 and "
            "0.5"
        )
