"""The search for the friction velocities, Stribeck velocities and delays of joints, by variable projection."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import minimize as minimize_function

from jaxdyn._errors import DataError
from jaxdyn._types import ArrayLike
from jaxdyn.friction import Coulomb, JointFriction, LoadProportional, Stribeck
from jaxdyn.model import Model
from jaxdyn.sysid.parameters import nearest_physical_model
from jaxdyn.sysid.recordings import Recording, Recordings, check_recording
from jaxdyn.sysid.torques._effects import SEARCHED, JointEffects, delay_signal
from jaxdyn.sysid.torques._physical_fit import Physical, minimize, start_at
from jaxdyn.sysid.torques._recorded_motions import driven_joints
from jaxdyn.sysid.torques._torque_model import EffectShape, Samples, recordings_of, with_parameters
from jaxdyn.sysid.torques._unknown_forces import driven_effects, has_contacts

# Velocities of the first grid, as parts of the joint's largest velocity.
_FRICTION_VELOCITY = np.geomspace(0.01, 0.3, 5)
_STRIBECK_VELOCITY = np.geomspace(0.03, 0.6, 5)
_DELAYS = np.array([0.0, 0.015, 0.03, 0.045, 0.06, 0.09])
_ROUNDS = 3
# The longest delay that the finer grids may reach, s.
_LONGEST = 0.115
# The simplex of a fine search: its size and resolution, in logarithms of velocities and parts of the grid's spacing of
# delays, and the most evaluations.
_SIMPLEX, _RESOLUTION, _EVALUATIONS = 0.3, 0.003, 200
# Passes over all joints, re-weightings of the fit in a pass, and the weight of its prior.
_PASSES, _FITS, _PRIOR_WEIGHT = 2, 3, 0.1
# The number of samples that a search uses: neighboring samples of a filtered recording say the same.
_ROWS = 1500
# Numbers in the friction columns that are computed at once: they stay in the processor's cache.
_AT_ONCE = 2**17
_FRICTIONS = ("viscous", "coulomb", "stribeck", "load")


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
    """Return the numbers in which the torque is not linear: the velocities and delays that `effects` chooses are
    searched for, the others are as given or by default.

    For every candidate the best linear parameters are eliminated (variable projection: Golub & Pereyra 1973), so each
    joint has at most four numbers to search for: on a grid, then on finer ones about the best, joint after joint, in
    several passes. The last grid has steps of about a tenth; `finely`, a simplex follows. The inertias are free as far
    as the other joints' torques and the prior allow, by the linearization of a physical fit with the shape so far, and
    lengths are the model's. Delays are searched up to about 0.1 s. `found` `[4, nv]`: what searches with other effects
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
    searched = np.stack([effects.dofs(name, model) for name in SEARCHED])
    if not searched.any():
        return out
    if has_contacts(recordings_of(recordings)):
        chosen = ", ".join(name for name, x in zip(SEARCHED, searched, strict=True) if x.any())
        raise DataError(
            f"effects: {chosen} are searched for in the torque of one joint after the other, which unknown forces of "
            "contacts hide: find them from motions in the air, and give their fit.shape as shape"
        )
    model, _ = nearest_physical_model(model)
    known = searched & np.isfinite(np.full_like(out, np.nan) if found is None else found)
    out = EffectShape(*np.where(known, 0.0 if found is None else found, out))
    linearization, passes = None, 1 if (known == searched).all() else _PASSES
    for number in range(passes):
        recordings = Samples(model, recordings, effects, out)
        linearization = _Linearization(recordings, linearization, near)
        shape = np.array(out, np.float64)
        for j in np.flatnonzero(searched.any(axis=0)).tolist():
            top = float(np.abs(linearization.samples.drive_motion[1][:, j]).max())
            if top > 0:
                misfits = _JointTorque(linearization, j).misfits
                shape[:, j] = _grid_search(misfits, searched[:, j], shape[:, j].tolist(), top)
                if finely and number == passes - 1:
                    shape[:, j] = _simplex_search(misfits, searched[:, j], shape[:, j].tolist(), top)
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
    shown = ("armature", "viscous", "coulomb", "load", *SEARCHED)
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
        names = ("armature", *_FRICTIONS, "offset")
        chosen = {x for x in names if samples.effects.dofs(x, model)[j]}
        self.frictions = [x for x in _FRICTIONS if x in chosen]
        leaves = {"viscous": samples.model.damping, "coulomb": samples.model.friction}
        leaves = {name: float(x[j]) for name, x in leaves.items() if name not in chosen}
        self.known_frictions = {name: x for name, x in leaves.items() if x}
        self.torque = samples.measured[:, j] * fit.gain[j]
        self.transmitted = fit.transmitted[:, j]
        self.fixed = self.transmitted + fit.passive[:, j]
        # The columns that do not depend on what is searched for; `fixed` is the torque without their effects.
        columns = [np.ones_like(self.torque)] if "offset" in chosen else []
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
        # Values by what they depend on: a grid asks for the same ones many times.
        self._velocities: dict[float, np.ndarray] = {}
        self._residuals: dict[float, np.ndarray] = {}
        self._columns: dict[_Key, tuple[np.ndarray, float]] = {}
        self._misfits: dict[tuple[float, ...], float] = {}

    def misfits(self, candidates: Sequence[tuple[float, ...]]) -> np.ndarray:
        """The sums of squares `[m]` that remain after the best linear parameters, for `m` candidates: a friction
        velocity, a Stribeck velocity, a friction delay and a torque delay each."""
        new = [x for x in candidates if x not in self._misfits]
        for name in (*self.frictions, *self.known_frictions):
            self._add_columns(name, new)
        self._misfits |= {x: self._misfit(*x) for x in new}
        return np.array([self._misfits[x] for x in candidates])

    def _misfit(self, w: float, v_s: float, friction_delay: float, torque_delay: float) -> float:
        y, columns = self._residual(torque_delay), list(self.unchanged)
        for name in self.frictions:
            column, length = self._columns[_key(name, w, v_s, friction_delay)]
            columns.append(column / length)
        for name, coefficient in self.known_frictions.items():
            y = y - coefficient * self._columns[_key(name, w, v_s, friction_delay)][0]
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
        missing = sorted({_key(name, *x[:3]) for x in candidates} - self._columns.keys())
        count = max(1, _AT_ONCE // len(self.torque))
        for delay, same in itertools.groupby(missing, key=lambda x: x[0]):
            keys = list(same)
            if delay not in self._velocities:
                self._velocities[delay] = self._delayed(self.velocity, self.acceleration, delay)
            for some in (keys[k : k + count] for k in range(0, len(keys), count)):
                w, v_s = (np.array([x[k] for x in some]) for k in (2, 3))
                values = self._whiten(self._low_passed(self._law(name, self._velocities[delay][:, None], w, v_s)))
                for key, column in zip(some, np.ascontiguousarray(values.T), strict=True):
                    self._columns[key] = column, max(float(np.linalg.norm(column)), 1e-300)

    def _law(self, name: str, u: np.ndarray, w: np.ndarray, v_s: np.ndarray) -> np.ndarray:
        """The torques `[n, m]` of a kind of friction at the velocities `u` `[n, 1]`."""
        if name == "viscous":
            return u
        if name == "stribeck":
            return Stribeck(1.0, 1.0, v_s, w).columns(u)[1]
        law = Coulomb(1.0, w) if name == "coulomb" else LoadProportional(1.0, self.transmitted[:, None], w)
        return law.columns(u)[0]

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


type _Key = tuple[float, str, float, float]


def _key(name: str, w: float, v_s: float, delay: float) -> _Key:
    """Return the delay, the kind and the velocities on which a column of friction depends."""
    return delay, name, (0.0 if name == "viscous" else w), (v_s if name == "stribeck" else 0.0)


def searched_range(top: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The least and the largest friction velocity, Stribeck velocity, friction delay and torque delay that a search may
    find for joints with the largest velocities `top`: arrays `[4, ...]`."""
    zero, one = np.zeros_like(top), np.ones_like(top)
    lower = np.array([_FRICTION_VELOCITY[0] / 3 * top, _STRIBECK_VELOCITY[0] / 3 * top, zero, zero])
    upper = np.array([3 * _FRICTION_VELOCITY[-1] * top, 3 * _STRIBECK_VELOCITY[-1] * top, *2 * [_LONGEST * one]])
    return lower, upper


def _grid_search(
    misfits: Callable[[list[tuple[float, ...]]], np.ndarray], searched: np.ndarray, start: list[float], top: float
) -> list[float]:
    """Return the best of a grid for both velocities together and for each delay in turn, refined by finer grids."""
    full = (_FRICTION_VELOCITY * top, _STRIBECK_VELOCITY * top, _DELAYS, _DELAYS)
    grids = [np.append(x, y) if on else np.array([y]) for x, y, on in zip(full, start, searched, strict=True)]
    groups = [g for g in ([0, 1], [2], [3]) if searched[g].any()]
    best, width, step = list(start), [x[1] / x[0] for x in full[:2]], _DELAYS[1]
    for number in range(_ROUNDS):
        for group in groups * (2 if number == 0 else 1):
            axes = [grids[k] if k in group else np.array([best[k]]) for k in range(4)]
            candidates = list(itertools.product(*(x.tolist() for x in axes)))
            best = list(candidates[int(np.argmin(misfits(candidates)))])
        width, step = [w**0.5 for w in width], step / 2
        around = [best[k] * np.array([1 / width[k], 1.0, width[k]]) for k in range(2)]
        around += [np.maximum(0.0, best[k] + step * np.array([-1, 0, 1])) for k in (2, 3)]
        grids = [x if on else np.array([y]) for x, y, on in zip(around, best, searched, strict=True)]
    return best


def _simplex_search(
    misfits: Callable[[list[tuple[float, ...]]], np.ndarray], searched: np.ndarray, start: list[float], top: float
) -> list[float]:
    """Return a minimum near the start (Nelder & Mead 1965)."""
    free, bounds = np.flatnonzero(searched), searched_range(top)
    (least,) = misfits([tuple(start)])

    def moved(x: np.ndarray) -> np.ndarray:
        out = np.array(start)
        velocities, delays = free < 2, free >= 2
        out[free[velocities]] *= np.exp(x[velocities])
        out[free[delays]] += _DELAYS[1] * x[delays]
        return np.clip(out, *bounds)

    simplex = np.vstack([np.zeros(free.size), _SIMPLEX * np.eye(free.size)])
    options = {"initial_simplex": simplex, "xatol": _RESOLUTION, "fatol": 1e-6 * least, "maxfev": _EVALUATIONS}

    def misfit(x: np.ndarray) -> float:
        return float(misfits([tuple(moved(x).tolist())])[0])

    found = minimize_function(misfit, simplex[0], method="Nelder-Mead", options=options)
    return moved(found.x).tolist() if found.fun < least else start
