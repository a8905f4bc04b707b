"""The result of a fit to recorded torques."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError, ModelError
from jaxdyn._status import Status
from jaxdyn.model import Model
from jaxdyn.sysid.parameters import is_physical
from jaxdyn.sysid.recordings import Recording, as_recordings
from jaxdyn.sysid.torques._base_parameters import BaseParameters, base_parameters_of
from jaxdyn.sysid.torques._effect_columns import effect_leaves
from jaxdyn.sysid.torques._effect_values import EffectShape, JointEffectValues
from jaxdyn.sysid.torques._effects import JointEffects
from jaxdyn.sysid.torques._intervals import Intervals, Posterior, normal_intervals
from jaxdyn.sysid.torques._layout import INERTIAL_NAMES, Layout, place_positions
from jaxdyn.sysid.torques._recorded_motions import (
    clipped_torques,
    drive_torques,
    driven_joints,
    is_unclipped,
    low_pass_of,
    motion_arrays,
)
from jaxdyn.sysid.torques._unknown_forces import contact_maps, has_contacts

# Two parameters are known only together if their sum or difference has at most this part of their standard errors.
_TOGETHER = 0.1
# A quantity is determined if what base parameters leave of its derivatives is at most this part of the largest.
_UNDETERMINED = 1e-6
# What the solutions of closed loops leave open is more than rounding in differences by lengths.
_DIFFERENCES_OF_LOOPS = 1e-6


class Evaluation(NamedTuple):
    """The errors of predicted torques; the arrays are `[nv]`."""

    rms_error: np.ndarray
    """Root mean square of the residual, in the unit of the recording (N m or N)."""
    rms_torque: np.ndarray
    """Root mean square of the recorded torque."""
    r2: np.ndarray
    """1 - (residual's sum of squares) / (torque's, about its mean); NaN for a torque that is constant."""
    total_rms: float
    """Root mean square of the residuals of all driven joints together."""
    relative: float
    """Norm of all residuals divided by the norm of all torques."""
    residual: tuple[np.ndarray, ...]
    """`[n, nv]` for each recording: predicted minus recorded, at the samples that its low pass keeps."""
    torque: tuple[np.ndarray, ...]
    """`[n, nv]` for each recording: the recorded torque at these samples, after the low pass."""
    t: tuple[np.ndarray, ...]
    """`[n]` for each recording: the times of these samples, s."""

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        first = f"relative error {self.relative:.4g}, rms {self.total_rms:.4g} N m or N"
        facts = {"rms error": printing.numbers(self.rms_error), "rms torque": printing.numbers(self.rms_torque)}
        return first, facts | {"R2": printing.numbers(self.r2), "samples": str(sum(map(len, self.residual)))}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


class InverseDynamicsFit(eqx.Module):
    """A model identified from torques. It predicts torques by the equation in `JointEffects`."""

    model: Model
    """The model with identified inertias, armature, damping, friction, friction velocity, and springs."""
    before: Model
    """The model from which the fit started, which is its prior."""
    effects: JointEffects = eqx.field(static=True)
    """The choice of identified effects."""
    values: JointEffectValues
    """Offsets and other identified values that are not leaves of the model."""
    parameters: np.ndarray
    """`[P]`: the identified parameters, in the order of `names`."""
    sigma: np.ndarray
    """`[nv]`: root mean square of the torque residual on the data of the fit, N m or N; for a robust loss the scale."""
    cost: float
    """Half of the minimized sum of squares with the last weights: residuals divided by `sigma`, and the prior."""
    iterations: int
    """The number of Levenberg-Marquardt steps, or of linear solves, in all rounds of re-weighting."""
    rounds: int
    """The number of rounds of re-weighting."""
    status: Status = eqx.field(converter=Status)
    message: str
    """How the fit ended, the number of parameters or the rank, and the searched and chosen numbers."""
    samples: int
    """The number of equations: samples (those that a low pass keeps) times degrees of freedom, or the sum of their
    weights."""
    triangle: np.ndarray
    """`[k, P]`: `R` for which `R^T R` is the data's information about the parameters, for the identified gains."""
    score_factors: tuple[np.ndarray, ...]
    """`[k, P + gains]` each: `K` for which `K^T K` is the covariance of the slope of the data's cost with respect to
    the parameters and the logarithms of unknown inverse gains, for residuals with the spectra that were found, and for
    residuals that are independent only from block to block in time."""
    posterior: Posterior
    """The covariance of the parameters; for the physical fit its coordinates are about the point halfway between the
    start and the solution."""
    refined: np.ndarray | None = None
    """`[6, nv]` of bool: which of the numbers in `shape` are among the parameters; the others count as known. None for
    a model that was not fitted."""
    weights: np.ndarray | None = None
    """`[n, nv]`: the weights of the equations' squares for a robust loss; None for squared errors."""
    prior_weight: float = 0.0
    """The weight of the inertias' prior; 0 for linear least squares."""
    effects_weight: float = 0.0
    """The weight of the prior of friction, armature, offsets and gains."""

    @classmethod
    def unfitted(cls, model: Model, transmission: np.ndarray | None = None) -> InverseDynamicsFit:
        """A model that was not fitted, which predicts torques and can be evaluated as a fit, for comparison; on
        recordings of motors with a transmission, if it is given."""
        before, (model, values) = model, JointEffectValues.none(model).split(model, transmission)
        effects = JointEffects(armature=False, viscous=False, coulomb=False, offset=False)
        return cls(
            model=model,
            before=before,
            effects=effects,
            values=values,
            parameters=np.asarray(model.inertial_parameters, np.float64).ravel(),
            sigma=np.full(model.nv, np.nan),
            cost=np.nan,
            iterations=0,
            rounds=0,
            status=Status.OUT_OF_ITERATIONS,
            message="not fitted",
            samples=0,
            triangle=np.zeros((0, 10 * model.nb)),
            score_factors=(np.zeros((0, 10 * model.nb)),),
            posterior=Posterior(np.zeros((10 * model.nb, 0)), np.zeros((0, 0))),
        )

    @property
    def converged(self) -> bool:
        """Whether `status` is `Status.CONVERGED`."""
        return self.status == Status.CONVERGED

    @property
    def offset(self) -> np.ndarray:
        """The constant error of each torque sensor or drive, `[nv]`, N m or N."""
        return self.values.offset

    @property
    def physical(self) -> np.ndarray:
        """Whether each body's parameters are physical (`is_physical`), `[nb]` of bool."""
        return np.asarray(is_physical(self.model.inertial_parameters))

    @property
    def layout(self) -> Layout:
        """The order of `parameters`."""
        motors = self.values.motors
        return Layout.of(self.before, self.effects, self.refined, None if motors is None else motors.transmission)

    @property
    def drive_model(self) -> Model:
        """The model whose armature and friction are those of what was recorded: of motors in the places of joints,
        where these are driven by a transmission, and `model` otherwise."""
        return self.values.with_motors(self.model)

    @property
    def names(self) -> list[str]:
        """The names of `parameters`, `[P]`."""
        return self.layout.names(self.before)

    def parameters_of(self, model: Model, values: JointEffectValues | None = None) -> np.ndarray:
        """The values `[P]` that another model of the robot, and other `values` of its effects, have for `names`; NaN
        for those that neither holds."""
        layout, leaves = self.layout, effect_leaves(model)
        missing = np.full(layout.nv, np.nan)
        leaves["friction velocity"] = np.asarray(model.friction_velocity, np.float64)
        leaves |= {} if values is None else values.by_kind(model)
        joints = [leaves.get(kind, missing)[j] for kind, j in layout.joints]
        inertial = np.asarray(model.inertial_parameters, np.float64).ravel()
        return np.concatenate([inertial, joints, place_positions(model, layout.places)])

    @property
    def shape(self) -> EffectShape:
        """The numbers in which the torque is not linear: friction and Stribeck velocities, presliding distances,
        warm-up times, and delays."""
        return self.values.shape(self.drive_model.friction_velocity)

    def predict(self, recording: Recording) -> np.ndarray:
        """The torques `[n, nv]` (N m or N) that would be recorded for the `q, v, a` of a recording; zero at the passive
        joints of closed loops, and without the forces of contacts. **Raises** `DataError` for a recording that does not
        fit the model, or has another transmission than those of the fit."""
        q, v, a = motion_arrays(self.model, recording, torques=False)
        self._require_transmission(recording)
        joints, temperature = driven_joints(self.model, (recording,)), recording.temperature
        return self.values.torque(self.model, recording.t, q, v, a, joints, temperature)

    def evaluate(self, recordings) -> Evaluation:
        """The errors of predicted torques on one recording or several, preferably held-out ones; of those with a
        `cutoff`, the errors that remain below it. Torques that were not measured, or that a limit has clipped, do not
        count, nor does what unknown forces of contacts may explain."""
        recordings = as_recordings(recordings)
        filters = [low_pass_of(x) for x in recordings]
        measured = [drive_torques(self.model, x) for x in recordings]
        predicted = [self.predict(x) for x in recordings]
        if has_contacts(recordings):
            maps = contact_maps(self.model, recordings, self.sigma)
            measured, predicted = (
                [np.einsum("nij,nj->ni", m, x) for m, x in zip(maps, y, strict=True)] for y in (measured, predicted)
            )
        tau = [f.apply(x) for x, f in zip(measured, filters, strict=True)]
        predicted = [f.apply(x) for x, f in zip(predicted, filters, strict=True)]
        residual = tuple(x - y for x, y in zip(predicted, tau, strict=True))
        pairs = zip(recordings, filters, strict=True)
        counted = np.concatenate([is_unclipped(clipped_torques(self.model, x), f) for x, f in pairs])
        counted |= has_contacts(recordings)
        r, y = np.concatenate(residual) * counted, np.concatenate(tau) * counted
        count = np.maximum(counted.sum(axis=0), 1)
        joints = driven_joints(self.model, recordings)
        driven = JointEffects.dofs_of(True if joints is None else joints, self.model)
        spread = np.sum((y - y.sum(axis=0) / count) ** 2 * counted, axis=0)
        squares = np.sum(r**2, axis=0)
        return Evaluation(
            rms_error=np.sqrt(squares / count),
            rms_torque=np.sqrt(np.sum(y**2, axis=0) / count),
            r2=np.where(spread > 0, 1 - squares / np.where(spread > 0, spread, 1.0), np.nan),
            total_rms=float(np.sqrt(squares[driven].sum() / count[driven].sum())),
            relative=float(np.linalg.norm(r) / max(np.linalg.norm(y), np.finfo(float).tiny)),
            residual=residual,
            torque=tuple(tau),
            t=tuple(f.apply(x.t) for x, f in zip(recordings, filters, strict=True)),
        )

    def _require_transmission(self, recording: Recording) -> None:
        """Raise `DataError` for a recording of motors where the fit has joints, and the other way around."""
        motors = self.values.motors
        own = np.eye(self.model.nv) if motors is None else motors.transmission
        other = np.eye(self.model.nv) if recording.transmission is None else recording.transmission
        if not np.array_equal(own, other):
            raise DataError(
                f"{recording.name}: its transmission is not that of the fit, whose friction and armature are those of "
                "other motors; give it the same matrix"
            )

    def base_parameters(self, *, threshold: float | None = None) -> BaseParameters:
        """The combinations of parameters that the data of this fit excite. `jaxdyn.sysid.base_parameters` has those
        that any motion can excite, and the meaning of `threshold`."""
        if threshold is None and self.layout.places and self.model.topology.has_loops:
            threshold = _DIFFERENCES_OF_LOOPS
        return base_parameters_of(self.triangle[:, : len(self.parameters)], self.names, threshold)

    def intervals(
        self, base: BaseParameters | Mapping[str, Callable[[Model], Any]] | None = None, *, level: float = 0.95
    ) -> Intervals:
        """Values, standard errors and intervals of the parameters, of the combinations `base` (`base_parameters()`), or
        of quantities: functions of the model by name, such as `{"mass": lambda model: model.mass}`, that return one
        number, and depend on inertias.

        The covariance is that of least squares whose residuals have, at each joint, the spectrum that they were found
        to have: neighboring samples may be alike, as filters and noisy accelerations make them. Where that gives a
        larger error, it is that of residuals which are independent only from one to another of forty blocks in time:
        noise may depend on the motion, as noise of velocities does in friction. For the physical fit the covariance
        counts the prior as what was known before. Intervals are right to first order in the errors. Those of masses,
        moments of inertia, armature and friction end where the cost has risen as much as at the ends of a normal
        distribution; the prior's logarithm keeps them above zero.

        The intervals hold for noise. An effect that the model lacks is no noise: `identify` looks for such effects.

        **Raises** `ModelError` for linear least squares without `base`, where single parameters have no interval, and
        for quantities that the data do not determine there.

        Sources: Hannan, Regression for time series, 1963; Bell & McCaffrey, Survey Methodology 2002.
        """
        if base is None and not self.prior_weight:
            raise ModelError(
                "linear least squares determines combinations of parameters only: ask for fit.intervals("
                "fit.base_parameters())"
            )
        if isinstance(base, Mapping):
            return self._of_quantities(base, level)
        B, names = (np.eye(len(self.parameters)), self.names) if base is None else (base.matrix, base.describe())
        out = self._intervals(names, B, level)
        return self._with_shared_friction(out) if base is None else out

    def _of_quantities(self, quantities: Mapping[str, Callable[[Model], Any]], level: float) -> Intervals:
        """The intervals of functions of the model, to first order."""
        model = self.model

        def values(inertial: jax.Array) -> jax.Array:
            changed = dataclasses.replace(model, inertial_parameters=inertial)
            return jnp.stack([jnp.asarray(f(changed)) for f in quantities.values()])

        value = np.asarray(values(model.inertial_parameters), np.float64)
        if value.ndim != 1:
            raise ModelError(f"the quantities {list(quantities)} have shapes {value.shape[1:]}; numbers are needed")
        slopes = np.asarray(jax.jacfwd(values)(model.inertial_parameters), np.float64).reshape(len(value), -1)
        B = np.pad(slopes, ((0, 0), (0, len(self.parameters) - slopes.shape[1])))
        if not self.prior_weight:
            base = self.base_parameters()
            left = np.abs(B - B[:, base.independent] @ base.matrix).max(axis=1)
            open_ = [x for x, y, row in zip(quantities, left, B, strict=True) if y > _UNDETERMINED * np.abs(row).max()]
            if open_:
                raise ModelError(f"the torques of these motions do not determine {', '.join(open_)}: a prior could")
        out = self._intervals(list(quantities), B, level)
        # To first order about the value, which is no linear function.
        shift = value - B @ self.parameters
        return out._replace(value=value, lower=out.lower + shift, upper=out.upper + shift)

    def _intervals(self, names: Sequence[str], B: np.ndarray, level: float) -> Intervals:
        """The intervals of combinations `B` `[k, P]` of the parameters."""
        value, errors = B @ self.parameters, self.posterior.errors(B, self.score_factors)
        if self.posterior.reference is None:
            return normal_intervals(names, value, *errors, level)
        options = {"positive": self.positive(B), "reference": B @ self.posterior.reference}
        return normal_intervals(names, value, *errors, level, **options)

    def _with_shared_friction(self, x: Intervals) -> Intervals:
        """The intervals of single parameters, wider where Coulomb friction and an offset are known only together, as at
        a joint that turns in one direction: either may be all of it, which no normal distribution says."""
        lower, upper, layout = x.lower.copy(), x.upper.copy(), self.layout
        index = {parameter: i for i, parameter in enumerate(layout.joints, 10 * layout.nb)}
        for j in set(layout.dofs("offset")).intersection(layout.dofs("coulomb")):
            o, c = index["offset", j], index["coulomb", j]
            rows = np.zeros((2, len(x.names)))
            rows[:, c], rows[:, o] = 1.0, (1.0, -1.0)
            both = self._intervals(("sum", "difference"), rows, x.level)
            k = int(np.argmin(both.standard_error))
            if both.standard_error[k] > _TOGETHER * min(x.standard_error[c], x.standard_error[o]):
                continue
            # The friction is between none and all, or what its own interval has.
            lower[c], upper[c] = min(lower[c], max(both.lower[k], 0.0)), max(upper[c], both.upper[k])
            ends = rows[k, o] * np.array([both.lower[k] - upper[c], both.upper[k]])
            lower[o], upper[o] = min(lower[o], ends.min()), max(upper[o], ends.max())
        return x._replace(lower=lower, upper=upper)

    def decided_by_start(self, share: float = 0.9) -> tuple[str, ...]:
        """The names of parameters that keep more than `share` of the prior's variance, and whose intervals have the
        start: data that push a friction to zero also hardly reduce its variance, but they decide it. Empty for linear
        least squares."""
        if self.posterior.reference is None:
            return ()
        x, start = self.intervals(), 2 * self.posterior.reference - self.parameters
        decided = (x.prior_share > share) & (x.lower <= start) & (start <= x.upper)
        return tuple(name for name, kept in zip(x.names, decided, strict=True) if kept)

    def positive(self, B: np.ndarray) -> np.ndarray:
        """Return which rows of `B` `[k, P]` are sums of positive parameters with positive coefficients."""
        layout = self.layout
        inertial = np.tile([x in ("m", "Ixx", "Iyy", "Izz") for x in INERTIAL_NAMES], layout.nb)
        joints = np.arange(layout.size - len(inertial)) < layout.positive
        positive = np.concatenate([inertial, joints])
        return (B[:, positive] >= 0).all(axis=1) & (B[:, ~positive] == 0).all(axis=1)

    def printed(self) -> printing.Facts:
        """The facts that `print` shows: how the fit ended, its errors, and the masses with their intervals."""
        if not self.samples:
            return self.message, {}
        bad = [name for name, ok in zip(self.model.body_names, self.physical, strict=True) if not ok]
        facts = {
            "cost": f"{self.cost:.6g} after {self.iterations} iterations in {self.rounds} rounds",
            "residual": f"{printing.numbers(self.sigma)} N m or N rms",
            "not physical": printing.names(bad) if bad else "no body",
        }
        if not self.prior_weight:
            return self.message, facts | {"parameters": "combinations: intervals(base_parameters())"}
        masses = printing.intervals(self.intervals(), 6, lambda name: name.startswith("m("))
        return self.message, facts | {f"{name}, kg": x for name, x in masses.items()}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table
