"""The numbers of friction in which the torque is not linear, found joint by joint by variable projection."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn._types import ArrayLike
from jaxdyn.algorithms import torque_regressor
from jaxdyn.model import Model
from jaxdyn.sysid.parameters._log_cholesky import is_physical, nearest_physical
from jaxdyn.sysid.recordings._recording import as_recordings
from jaxdyn.sysid.torques._effects import JointEffects, JointEffectValues, delayed, frictionless_torque
from jaxdyn.sysid.torques._physical_fit import minimize, start_at
from jaxdyn.sysid.torques._torque_model import Samples, Shape, TorqueData, with_parameters

_SEARCHED = ("friction_velocity", "stribeck", "friction_delay", "torque_delay")
# As parts of the joint's largest velocity.
_FRICTION_VELOCITY = np.geomspace(0.01, 0.3, 5)
_STRIBECK_VELOCITY = np.geomspace(0.03, 0.6, 5)
_DELAYS = np.array([0.0, 0.015, 0.03, 0.045, 0.06, 0.09])
_ROUNDS = 3
# Re-weightings of the fit in a pass.
_FITS = 3
# Rows that are looked at; neighboring samples of a filtered recording say the same.
_ROWS = 1500


def shape_of(model: Model, recordings, effects: JointEffects, friction_velocity: ArrayLike | None) -> Shape:
    """What the torque of a fit is not linear in: as given, and where `effects` chooses so as found by `search_shape`.

    **Raises** `DataError` for a friction velocity (by default the model's) that is not positive.
    """
    w = np.asarray(model.friction_velocity if friction_velocity is None else friction_velocity, np.float64)
    if w.shape not in ((), (model.nv,)) or not np.all(np.isfinite(w) & (w > 0)):
        raise DataError(f"friction_velocity is {w}; a positive number or [{model.nv}] of them are needed, rad/s")
    one = np.ones(model.nv)
    values = JointEffectValues.none(model)
    start = Shape(w * one, values.stribeck_velocity, values.friction_delay, values.torque_delay)
    return search_shape(model, recordings, effects, start)


def search_shape(
    model: Model, recordings, effects: JointEffects, start: Shape, prior_weight: float = 0.1, passes: int = 2
) -> Shape:
    """Friction velocity, Stribeck velocity and delays where `effects` chooses them; elsewhere as in `start`.

    For every candidate the best linear parameters are eliminated (variable projection: Golub & Pereyra 1973), so that
    the search is over at most four numbers of each joint: a grid, then finer ones about the best, joint after joint,
    `passes` times. The inertias are free as far as the other joints' torques and the prior leave them: those of a
    physical fit with the shape so far, linearized. Delays are searched up to 90 ms.
    """
    recordings = as_recordings(recordings)
    searched = np.stack([effects.dofs(name, model) for name in _SEARCHED])
    if not searched.any():
        return start
    inertial = np.asarray(model.inertial_parameters)
    inertial = np.where(np.asarray(is_physical(inertial))[:, None], inertial, np.asarray(nearest_physical(inertial)))
    model = eqx.tree_at(lambda m: m.inertial_parameters, model, jnp.asarray(inertial, model.dtype))
    for _ in range(passes):
        start = _pass(model, recordings, effects, start, prior_weight, searched)
    return start


def _pass(model: Model, recordings, effects: JointEffects, start: Shape, prior_weight: float, searched) -> Shape:
    samples = Samples(model, recordings, effects, start)
    layout, n, nv = samples.layout, 10 * model.nb, model.nv
    problem = start_at(model, samples, prior_weight, prior_weight)
    point, sigma, gain = problem.prior, samples.torque_scale, np.ones(nv)
    (data,) = samples.compressed()
    found = model
    for _ in range(_FITS):
        problem = problem.with_data(data, sigma, layout)
        point = minimize(problem, point, 100, lambda *_: None).point
        gain[list(layout.gains)] = 1 / point.scale
        sigma = np.maximum(data.residual_rms(point.parameters(), gain), 1e-6 * samples.torque_scale)
        found, _ = with_parameters(model, layout, point.parameters(), start, gain)
    transmitted = frictionless_torque(found, samples.q, samples.v, samples.a)
    stride = max(1, len(samples) // _ROWS)
    rows = slice(None, None, stride)
    q, v, a = (jnp.asarray(x[rows]) for x in (samples.q, samples.v, samples.a))
    Y = np.asarray(torque_regressor(model, q, v, a), np.float64)
    parts = [slice(i, k) for i, k in itertools.pairwise(samples.starts)]
    out = [np.array(x, np.float64) for x in start]
    names = ("armature", "viscous", "coulomb", "stribeck", "load", "offset", "spring")
    has = {name: effects.dofs(name, model) for name in names}
    has["spring"] = np.array(layout.springs) >= 0
    metric = problem.metric()
    for j in np.flatnonzero(searched.any(axis=0)):
        speed, acceleration, L = samples.v[:, j], samples.a[:, j], transmitted[:, j]
        top = float(np.abs(speed).max())
        if top == 0:
            continue
        # The bodies' coordinates x without this joint's torque: |R x + c|^2, all joints' effects eliminated.
        others = problem.with_data(TorqueData(np.delete(data.factors, j, 0), data.samples), np.delete(sigma, j), layout)
        if layout.gains:
            others = others._replace(row_scale=np.delete(_owners(data, layout), j, 0).reshape(-1, len(layout.gains)))
        b = np.concatenate([others.residual(point), np.linalg.solve(metric, others.slope(point))])
        A = np.concatenate([others.jacobian(point), metric.T])
        T = np.linalg.qr(np.column_stack([A[:, n:], A[:, :n], b]), mode="r")
        k = A.shape[1] - n
        # This joint's torque for whitened coordinates z = R x, which lie about -c with unit covariance.
        white = np.linalg.solve(T[k : k + n, k : k + n].T, (Y[:, j] @ point.tangent(problem.offset_scale)[:n, :n]).T).T
        center = -white @ T[k : k + n, -1]
        U, size, _ = np.linalg.svd(white * (np.sqrt(stride) / sigma[j] / gain[j]), full_matrices=False)
        # Residuals have the covariance 1 + A A^T: its inverse square root takes this much of the directions U away.
        taken = 1 - 1 / np.sqrt(1 + size**2)
        coordinate = samples.q[:, max(layout.springs[j], 0)]
        columns = {"armature": acceleration, "offset": np.ones_like(speed), "spring": coordinate}
        known = L
        if has["armature"][j]:
            known = known - float(found.armature[j]) * acceleration
        if has["spring"][j] and found.stiffness is not None and found.spring_reference is not None:
            known = known - float(found.stiffness[j]) * (coordinate - float(found.spring_reference[layout.springs[j]]))
        joint = _Joint(
            has={name: bool(x[j]) for name, x in has.items()},
            times=tuple(x.t for x in samples.recordings),
            parts=parts,
            speed=speed,
            acceleration=acceleration,
            torque=samples.measured[:, j] * gain[j],
            transmitted=L,
            known=known,
            damping=float(model.damping[j]),
            friction=float(model.friction[j]),
            rows=rows,
            center=center,
            U=U,
            taken=taken,
            columns={name: x for name, x in columns.items() if has[name][j]},
        )
        best = _grid_search(joint.misfit, searched[:, j], [float(x[j]) for x in out], top)
        for x, value in zip(out, best, strict=True):
            x[j] = value
    return Shape(*out)


class _Joint(NamedTuple):
    """The torques of one joint, and what the others and the prior say of its part of the inertias."""

    has: dict[str, bool]
    times: tuple[np.ndarray, ...]
    parts: list[slice]
    speed: np.ndarray
    acceleration: np.ndarray
    torque: np.ndarray
    transmitted: np.ndarray
    known: np.ndarray
    damping: float
    friction: float
    rows: slice
    center: np.ndarray
    U: np.ndarray
    taken: np.ndarray
    columns: dict[str, np.ndarray]

    def misfit(self, w: float, v_s: float, lag: float, torque_lag: float) -> float:
        """The sum of squares that no linear parameters take away."""
        u, tau = np.empty_like(self.speed), np.empty_like(self.speed)
        for t, part in zip(self.times, self.parts, strict=True):
            u[part] = delayed(t, self.speed[part, None], self.acceleration[part, None], np.array([lag]))[:, 0]
            tau[part] = delayed(t, self.torque[part, None], None, np.array([-torque_lag]))[:, 0]
        s = np.tanh(u / w)
        near_rest = np.exp(-((u / v_s) ** 2)) * s
        given = {"viscous": u, "coulomb": s, "stribeck": near_rest, "load": np.abs(self.transmitted) * s}
        columns = [*self.columns.values(), *(x for name, x in given.items() if self.has[name])]
        rest = tau - self.known
        if not self.has["viscous"]:
            rest = rest - self.damping * u
        if not self.has["coulomb"]:
            rest = rest - self.friction * s
        y = rest[self.rows] - self.center
        y = y - self.U @ (self.taken * (self.U.T @ y))
        if columns:
            F = np.stack(columns, axis=-1)[self.rows]
            F = F - self.U @ (self.taken[:, None] * (self.U.T @ F))
            length = np.linalg.norm(F, axis=0)
            F = F / np.where(length > 0, length, 1.0)
            # Few columns: normal equations, with a ridge for those that the inertias take.
            y = y - F @ np.linalg.solve(F.T @ F + 1e-9 * np.eye(F.shape[1]), F.T @ y)
        return float(np.sum(y**2))


def _grid_search(misfit, searched: np.ndarray, start: list[float], top: float) -> list[float]:
    """The best of a grid for the two velocities, and for each delay in turn; then of finer ones about it."""
    full = (_FRICTION_VELOCITY * top, _STRIBECK_VELOCITY * top, _DELAYS, _DELAYS)
    grids = [np.append(x, y) if on else np.array([y]) for x, y, on in zip(full, start, searched, strict=True)]
    groups = [g for g in ([0, 1], [2], [3]) if searched[g].any()]
    best, width, step = list(start), [x[1] / x[0] for x in full[:2]], _DELAYS[1]
    for number in range(_ROUNDS):
        for group in groups * (2 if number == 0 else 1):
            axes = [grids[k] if k in group else np.array([best[k]]) for k in range(4)]
            best = [float(x) for x in min(itertools.product(*axes), key=lambda x: misfit(*x))]
        width, step = [w**0.5 for w in width], step / 2
        around = [best[k] * np.array([1 / width[k], 1.0, width[k]]) for k in range(2)]
        around += [np.maximum(0.0, best[k] + step * np.array([-1, 0, 1])) for k in (2, 3)]
        grids = [x if on else np.array([y]) for x, y, on in zip(around, best, searched, strict=True)]
    return best


def _owners(data: TorqueData, layout) -> np.ndarray:
    """`[nv, k, l]`: ones where a row belongs to a degree of freedom with an unknown gain."""
    owner = np.arange(layout.nv)[:, None, None] == np.array(layout.gains)
    return np.broadcast_to(owner, (layout.nv, data.factors.shape[1], len(layout.gains))).astype(float)
