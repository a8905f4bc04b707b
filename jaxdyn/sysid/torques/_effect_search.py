"""The search for the numbers of joints in which the torque is not linear, by variable projection."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize as minimize_function

from jaxdyn._errors import DataError
from jaxdyn._types import ArrayLike
from jaxdyn.friction import JointFriction
from jaxdyn.model import Model
from jaxdyn.sysid.parameters import nearest_physical_model
from jaxdyn.sysid.recordings import Recording, Recordings, check_recording
from jaxdyn.sysid.torques._effect_columns import friction_column, friction_kinds
from jaxdyn.sysid.torques._effect_values import EffectShape, FrictionMotion, change_signal, friction_directions
from jaxdyn.sysid.torques._effects import SEARCHED, JointEffects, delay_signal
from jaxdyn.sysid.torques._physical_fit import Physical, minimize, start_at
from jaxdyn.sysid.torques._recorded_motions import driven_joints
from jaxdyn.sysid.torques._torque_model import Samples, recordings_of, with_parameters
from jaxdyn.sysid.torques._unknown_forces import driven_effects, has_contacts

# The first grid of the friction velocity, the Stribeck velocity, the presliding distance and the warm-up time, as parts
# of the joint's largest velocity, its way and the time (`Samples.shape_scales`).
_SCALES = (
    np.geomspace(0.01, 0.3, 5),
    np.geomspace(0.03, 0.6, 5),
    np.geomspace(0.001, 0.1, 6),
    np.array([0.1, 0.3, 0.9]),
)
_DELAYS = np.array([0.0, 0.015, 0.03, 0.045, 0.06, 0.09])
_ROUNDS = 3
# The longest delay that the finer grids may reach, s.
_LONGEST = 0.115
# The simplex of a fine search: its size and resolution, in logarithms of velocities and parts of the grid's spacing of
# delays, and the most evaluations.
_SIMPLEX, _RESOLUTION, _EVALUATIONS = 0.3, 0.003, 200
# Groups of numbers that are searched for together.
_GROUPS = ([0, 1], [2], [3], [4], [5])
# Passes over all joints, re-weightings of the fit in a pass, and the weight of its prior.
_PASSES, _FITS, _PRIOR_WEIGHT = 2, 3, 0.1
# The number of samples that a search uses: neighboring samples of a filtered recording say the same.
_ROWS = 1500
# Numbers in the friction columns that are computed at once: they stay in the processor's cache.
_AT_ONCE = 2**17


def effect_shape(
    model: Model,
    recordings: Recordings | Samples,
    effects: JointEffects,
    friction_velocity: ArrayLike | None = None,
    *,
    finely: bool = False,
    found: np.ndarray | None = None,
    near: Physical | None = None,
) -> EffectShape:
    """Return the numbers in which the torque is not linear: those that `effects` chooses are searched for, the others
    are as given or by default.

    For every candidate the best linear parameters are eliminated (variable projection: Golub & Pereyra 1973), so each
    joint has at most six numbers to search for: on a grid, then on finer ones about the best, joint after joint, in
    several passes. The last grid has steps of about a tenth; `finely`, a simplex follows. The inertias are free as far
    as the other joints' torques and the prior allow, by the linearization of a physical fit with the shape so far, and
    lengths are the model's. Delays are searched up to about 0.1 s. `found` `[6, nv]`: what searches with other effects
    have found, NaN for nothing; one pass is enough where all that is searched for has been found before. `near`: a fit
    to these samples, perhaps with other effects, to start fits from.

    **Raises** `DataError` for a friction velocity (by default the model's) that is not positive.
    """
    w = np.asarray(model.friction_velocity if friction_velocity is None else friction_velocity, np.float64)
    if w.shape not in ((), (model.nv,)) or not np.all(np.isfinite(w) & (w > 0)):
        raise DataError(f"friction_velocity is {w}; a positive number or [{model.nv}] of them are needed, rad/s")
    out = EffectShape.default(w * np.ones(model.nv), stribeck_velocity=1.0)
    effects = driven_effects(dataclasses.replace(effects, length=False), model, recordings_of(recordings))
    if (joints := driven_joints(model, recordings_of(recordings))) is not None:
        effects = effects.of_driven(model, joints)
    if not np.any([effects.dofs(name, model) for name in SEARCHED]):
        return out
    if has_contacts(recordings_of(recordings)):
        chosen = ", ".join(name for name in SEARCHED if effects.dofs(name, model).any())
        raise DataError(
            f"effects: {chosen} are searched for in the torque of one joint after the other, which unknown forces of "
            "contacts hide: find them from motions in the air, and give their fit.shape as shape"
        )
    model, _ = nearest_physical_model(model)
    samples = Samples(model, recordings, effects, out)
    searched, scales = samples.searched, samples.shape_scales
    # The search for distances begins in the middle of their grid.
    middle = out._replace(presliding=_SCALES[2][2] * scales[2])
    known = searched & np.isfinite(np.full_like(out, np.nan) if found is None else found)
    out = EffectShape(*np.where(known, 0.0 if found is None else found, np.where(searched, middle, out)))
    linearization, passes = None, 1 if (known == searched).all() else _PASSES
    for number in range(passes):
        samples = Samples(model, samples, effects, out)
        linearization = _Linearization(samples, linearization, near)
        shape, ranges = np.array(out, np.float64), searched_range(samples)
        for j in np.flatnonzero(searched.any(axis=0) & (scales[0] > 0)).tolist():
            misfits = _JointTorque(linearization, j).misfits
            grids = [x * scale for x, scale in zip(_SCALES, scales[:, j].tolist(), strict=True)]
            shape[:, j] = _grid_search(misfits, searched[:, j], shape[:, j].tolist(), [*grids, _DELAYS, _DELAYS])
            if finely and number == passes - 1:
                bounds = [x[:, j] for x in ranges]
                shape[:, j] = _simplex_search(misfits, searched[:, j], shape[:, j].tolist(), bounds)
        out = EffectShape(*shape)
    return out


def without_resting_joints(
    effects: JointEffects, model: Model, recordings: tuple[Recording, ...]
) -> tuple[JointEffects, tuple[str, ...]]:
    """Return the effects of all joints that only motion shows for those joints alone that are not at rest in every
    recording (`check_recording`), and the names of the others."""
    if recordings[0].joints is not None or model.nq != model.nv:
        return effects, ()
    resting = [{x for f in check_recording(r, warn=False) if f.kind == "still" for x in f.joints} for r in recordings]
    columns = set.intersection(*resting)
    still = tuple(x for j, x in enumerate(model.topology.dof_names) if str(j) in columns)
    moving = tuple(x for x in model.joint_names if x not in still)
    shown = ("armature", "viscous", "coulomb", "load", "asymmetry", "position", *SEARCHED)
    changed = {x: moving for x in shown if still and getattr(effects, x) is True}
    return dataclasses.replace(effects, **changed), still


class _Linearization:
    """The physical fit of samples, from which the torque of each joint is predicted by the others."""

    def __init__(self, samples: Samples, before: _Linearization | None = None, near: Physical | None = None):
        """`before`: that of the pass before, with the same effects. `near`: as in `effect_shape`."""
        self.samples, layout = samples, samples.layout
        (self.data,) = samples.compressed()
        problem = start_at(samples.model, samples, _PRIOR_WEIGHT, _PRIOR_WEIGHT)
        point, self.sigma = problem.prior, samples.torque_scale
        if before is not None:
            point, self.sigma = before.point, before.sigma
        elif near is not None:
            point = point._replace(U=near.U)
        for _ in range(_FITS):
            problem = problem.with_data(self.data, self.sigma, layout)
            point = minimize(problem, point, 100).point
            gain = layout.drive_gains(point.scale)
            rms = self.data.residual_rms(point.parameters(), gain)
            self.sigma = np.maximum(rms, 1e-6 * samples.torque_scale)
        self.problem, self.point, self.gain = problem, point, gain
        self.model, _ = with_parameters(samples, point.parameters(), gain)
        self.transmitted = samples.frictionless_torque(self.model)
        self.passive = self._passive_friction()
        self.rows = slice(None, None, max(1, len(samples) // _ROWS))
        bodies = 10 * layout.nb
        self.regressor = np.concatenate([B[..., :bodies] for _, B in samples.chunks()])[self.rows]

    def _passive_friction(self) -> np.ndarray:
        """The torque `[n, nv]` with which the drives overcome the friction of joints that closed loops move."""
        samples = self.samples
        if samples.joints is None:
            return np.zeros_like(self.transmitted)
        model = self.model
        leaves = (np.asarray(x, np.float64) for x in (model.damping, model.friction, model.friction_velocity))
        friction = np.asarray(JointFriction(*leaves).torque(samples.u)) * ~samples.driven
        return samples.friction_on_drives(slice(None), friction[..., None])[..., 0]

    def compared(self, j: int) -> np.ndarray:
        """Whether each of the `[rows]` has a torque of joint `j` that was recorded, whatever delay is tried."""
        samples = self.samples
        delays = _DELAYS if samples.effects.dofs("torque_delay", samples.before)[j] else samples.shape.torque_delay[[j]]
        return np.all([samples.valid_at(np.full(samples.layout.nv, x))[self.rows, j] for x in delays], axis=0)

    def prediction(self, j: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The correction `[rows]` of joint `j`'s torque that the other joints' torques predict, and what whitens its
        residuals `x`: the matrices `A` `[rows, k]` and `M` `[k, k]` for which they are `x - A M A^T x`."""
        n, point = 10 * self.samples.layout.nb, self.point
        # Without the joint's rows, |R x + c|^2 remains for the bodies' coordinates x, with all effects eliminated.
        factors = self.data.factors.copy()
        factors[j] = 0
        local = self.problem.with_data(self.data._replace(factors=factors), self.sigma, self.samples.layout)
        A, b = local.linearized(point)
        T = np.linalg.qr(np.column_stack([A[:, n:], A[:, :n], b]), mode="r")
        k = A.shape[1] - n
        # The torque for whitened coordinates z = R x, which lie about -c with unit covariance.
        tangent = point.tangent(self.problem.unit)[:n, :n]
        regressor = self.regressor[:, j] * self.compared(j)[:, None]
        white = np.linalg.solve(T[k : k + n, k : k + n].T, (regressor @ tangent).T).T
        scale = np.sqrt(self.rows.step) / self.sigma[j] / self.gain[j]
        # Residuals have the covariance 1 + A A^T, whose inverse square root takes the part 1 - (1 + s)^(-1/2) away from
        # the direction with the eigenvalue s of A^T A.
        A = white * scale
        s, V = np.linalg.eigh(A.T @ A)
        root = np.sqrt(1 + np.maximum(s, 0.0))
        return -white @ T[k : k + n, -1], A, (V / (root * (1 + root))) @ V.T


class _JointTorque:
    """The torque of degree of freedom `j`, with the columns and the prediction that explain it."""

    def __init__(self, fit: _Linearization, j: int):
        self.samples, self.rows, model = fit.samples, fit.rows, fit.model
        samples, spring = fit.samples, fit.samples.layout.springs[j]
        _, v, a = samples.drive_motion
        self.velocity, self.acceleration = v[:, j], a[:, j]
        self.position, self.change = (x[:, j] for x in samples.friction_motion[3:])
        chosen = [kind for kind, dof in samples.layout.joints if dof == j]
        self.frictions = [x for x in chosen if x in friction_kinds(samples.layout.harmonics)]
        leaves = {"viscous": samples.model.damping, "coulomb": samples.model.friction}
        leaves = {name: float(x[j]) for name, x in leaves.items() if name not in chosen}
        self.known_frictions = {name: x for name, x in leaves.items() if x}
        self.torque = samples.measured[:, j] * fit.gain[j]
        self.transmitted = fit.transmitted[:, j]
        self.fixed = self.transmitted + fit.passive[:, j]
        # The columns that do not depend on what is searched for; `fixed` is the torque without their effects.
        columns = [np.ones_like(self.torque)] if "offset" in chosen else []
        columns += [x[:, j] for x in samples.deflections.values()]
        if "armature" in chosen:
            columns.append(self.acceleration)
            self.fixed = self.fixed - float(model.armature[j]) * self.acceleration
        if spring >= 0 and model.stiffness is not None and model.spring_reference is not None:
            columns.append(samples.q[:, spring])
            displacement = samples.q[:, spring] - float(model.spring_reference[spring])
            self.fixed = self.fixed - float(model.stiffness[j]) * displacement
        self.center, self.factor, self.middle = fit.prediction(j)
        self.compared = fit.compared(j)
        low_passed = [self._whiten(self._low_passed(x)) for x in columns]
        self.unchanged = [x / max(float(np.linalg.norm(x)), 1e-300) for x in low_passed]
        # The warm-up times belong to a signal of time.
        self.by_time = samples.temperature is None
        # Values by what they depend on: a grid asks for the same ones many times.
        self._velocities: dict[float, np.ndarray] = {}
        self._residuals: dict[float, np.ndarray] = {}
        self._columns: dict[_Key, tuple[np.ndarray, float]] = {}
        self._misfits: dict[tuple[float, ...], float] = {}

    def misfits(self, candidates: Sequence[tuple[float, ...]]) -> np.ndarray:
        """The sums of squares `[m]` that remain after the best linear parameters, for `m` candidates: the six numbers
        of an `EffectShape` each."""
        new = [x for x in candidates if x not in self._misfits]
        for name in (*self.frictions, *self.known_frictions):
            self._add_columns(name, new)
        self._misfits |= {x: self._misfit(x) for x in new}
        return np.array([self._misfits[x] for x in candidates])

    def _misfit(self, candidate: tuple[float, ...]) -> float:
        y, columns = self._residual(candidate[5]), list(self.unchanged)
        for name in self.frictions:
            column, length = self._columns[_key(name, candidate)]
            columns.append(column / length)
        for name, coefficient in self.known_frictions.items():
            y = y - coefficient * self._columns[_key(name, candidate)][0]
        if columns:
            F = np.stack(columns, axis=-1)
            # The normal equations of a few columns, with a ridge for columns that the inertias explain as well.
            y = y - F @ np.linalg.solve(F.T @ F + 1e-9 * np.eye(F.shape[1]), F.T @ y)
        return float(y @ y)

    def _residual(self, torque_delay: float) -> np.ndarray:
        """The residuals `[rows]` of the search without friction."""
        if torque_delay not in self._residuals:
            tau = self._delayed(self.torque, None, -torque_delay)
            self._residuals[torque_delay] = self._whiten(self._low_passed(tau - self.fixed) - self.center)
        return self._residuals[torque_delay]

    def _add_columns(self, name: str, candidates: Sequence[tuple[float, ...]]) -> None:
        """Compute the columns `[rows]` of a kind of friction, as the residuals have it, and their lengths."""
        missing = sorted({_key(name, x) for x in candidates} - self._columns.keys())
        count = max(1, _AT_ONCE // len(self.torque))
        for delay, same in itertools.groupby(missing, key=lambda x: x[0]):
            keys = list(same)
            if delay not in self._velocities:
                self._velocities[delay] = self._delayed(self.velocity, self.acceleration, delay)
            for some in (keys[k : k + count] for k in range(0, len(keys), count)):
                w, v_s, distance, T = (np.array([x[k] for x in some]) for k in range(2, 6))
                values = self._whiten(self._low_passed(self._friction(name, delay, w, v_s, distance, T)))
                for key, column in zip(some, np.ascontiguousarray(values.T), strict=True):
                    self._columns[key] = column, max(float(np.linalg.norm(column)), 1e-300)

    def _friction(self, name: str, delay: float, *numbers: np.ndarray) -> np.ndarray:
        """The torques `[n, m]` of a kind of friction for friction velocities, Stribeck velocities, presliding distances
        and warm-up times, `[m]` each."""
        (w, v_s, distance, T), u = numbers, self._velocities[delay][:, None]
        shape, change = EffectShape.default(np.where(w > 0, w, 1.0))._replace(presliding=distance), self.change[:, None]
        u = np.broadcast_to(u, (len(u), len(w)))
        direction = self.samples.on_recordings(lambda t, x: friction_directions(t, u[x], shape))
        if name.startswith("warm-up") and self.by_time:
            start = self.samples.clock_start
            change = self.samples.on_recordings(lambda t, _: change_signal(t, T, start))
        motion = FrictionMotion(u, direction, self.transmitted[:, None], self.position[:, None], change)
        return friction_column(name, motion, np.where(v_s > 0, v_s, 1.0))

    def _delayed(self, x: np.ndarray, rate: np.ndarray | None, delay: float) -> np.ndarray:
        """A signal `[n]` of all recordings, later by `delay`."""

        def later(t: np.ndarray, part: slice) -> np.ndarray:
            return delay_signal(t, x[part, None], None if rate is None else rate[part, None], np.array([delay]))

        return self.samples.on_recordings(later)[:, 0]

    def _low_passed(self, x: np.ndarray) -> np.ndarray:
        """The values `[rows]` of the search for a signal `[n]`, zero where torques are not compared."""
        return self.samples.low_passed(x)[self.rows] * self.compared.reshape(-1, *[1] * (x.ndim - 1))

    def _whiten(self, x: np.ndarray) -> np.ndarray:
        return x - self.factor @ (self.middle @ (self.factor.T @ x))


type _Key = tuple[float, str, float, float, float, float]


def _key(name: str, candidate: tuple[float, ...]) -> _Key:
    """Return the delay, the kind and the numbers on which a column of friction depends, zero for others."""
    w, v_s, distance, T, delay, _ = candidate
    if name == "viscous":
        return delay, name, 0.0, 0.0, 0.0, 0.0
    by_stribeck, by_time = (v_s if name == "static" else 0.0), (T if name.startswith("warm-up") else 0.0)
    return delay, name, w, by_stribeck, distance, by_time


def searched_range(samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest numbers `[6, nv]` of an `EffectShape` that a search may find."""
    scales, zero = samples.shape_scales, np.zeros((2, samples.layout.nv))
    least, most = (np.array([x[k] for x in _SCALES])[:, None] * scales for k in (0, -1))
    return np.concatenate([least / 3, zero]), np.concatenate([3 * most, zero + _LONGEST])


def _grid_search(
    misfits: Callable[[list[tuple[float, ...]]], np.ndarray],
    searched: np.ndarray,
    start: list[float],
    full: list[np.ndarray],
) -> list[float]:
    """Return the best of the `full` grid for both velocities together and for each other number in turn, refined by
    finer grids."""
    grids = [np.append(x, y) if on else np.array([y]) for x, y, on in zip(full, start, searched, strict=True)]
    groups = [g for g in _GROUPS if searched[g].any()]
    best, width, step = list(start), [x[1] / x[0] for x in full[:4]], _DELAYS[1]
    for number in range(_ROUNDS):
        for group in groups * (2 if number == 0 else 1):
            axes = [grids[k] if k in group else np.array([best[k]]) for k in range(6)]
            candidates = list(itertools.product(*(x.tolist() for x in axes)))
            best = list(candidates[int(np.argmin(misfits(candidates)))])
        width, step = [w**0.5 for w in width], step / 2
        around = [best[k] * np.array([1 / width[k], 1.0, width[k]]) for k in range(4)]
        around += [np.maximum(0.0, best[k] + step * np.array([-1, 0, 1])) for k in (4, 5)]
        grids = [x if on else np.array([y]) for x, y, on in zip(around, best, searched, strict=True)]
    return best


def _simplex_search(
    misfits: Callable[[list[tuple[float, ...]]], np.ndarray],
    searched: np.ndarray,
    start: list[float],
    bounds: list[np.ndarray],
) -> list[float]:
    """Return a minimum near the start (Nelder & Mead 1965)."""
    free = np.flatnonzero(searched)
    (least,) = misfits([tuple(start)])

    def moved(x: np.ndarray) -> np.ndarray:
        out = np.array(start)
        scales, delays = free < 4, free >= 4
        out[free[scales]] *= np.exp(x[scales])
        out[free[delays]] += _DELAYS[1] * x[delays]
        return np.where(searched, np.clip(out, *bounds), out)

    simplex = np.vstack([np.zeros(free.size), _SIMPLEX * np.eye(free.size)])
    options = {"initial_simplex": simplex, "xatol": _RESOLUTION, "fatol": 1e-6 * least, "maxfev": _EVALUATIONS}

    def misfit(x: np.ndarray) -> float:
        return float(misfits([tuple(moved(x).tolist())])[0])

    found = minimize_function(misfit, simplex[0], method="Nelder-Mead", options=options)
    return moved(found.x).tolist() if found.fun < least else start
