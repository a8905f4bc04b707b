"""What a fit to recorded torques returns."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn._errors import ModelError
from jaxdyn.model import Model
from jaxdyn.sysid.parameters._base_parameters import BaseParameters, base_parameters_of
from jaxdyn.sysid.parameters._log_cholesky import is_physical
from jaxdyn.sysid.recordings._recording import Recording, as_recordings
from jaxdyn.sysid.torques._effects import JointEffects, JointEffectValues
from jaxdyn.sysid.torques._intervals import Intervals, quantile
from jaxdyn.sysid.torques._torque_model import Layout, Shape, checked


class Evaluation(NamedTuple):
    """How well predicted torques fit recorded ones; the arrays are `[nv]`."""

    rms_error: np.ndarray
    """Root mean square of the residual, in the unit of the recording (N m or N)."""
    rms_torque: np.ndarray
    """Of the recorded torque."""
    r2: np.ndarray
    """1 - (residual's sum of squares) / (torque's, about its mean); NaN for a torque that is constant."""
    total_rms: float
    """Root mean square of the residuals of all joints together."""
    relative: float
    """Norm of all residuals over the norm of all torques."""
    residual: tuple[np.ndarray, ...]
    """`[n, nv]` for each recording: predicted minus recorded."""


class InverseDynamicsFit(eqx.Module):
    """A model identified from torques. What it predicts is in `JointEffects`, with `values` and leaves of `model`."""

    model: Model
    """The model with its identified `inertial_parameters`, `armature`, `damping`, `friction`, `friction_velocity`."""
    before: Model
    """The model from which the fit started, its prior."""
    effects: JointEffects = eqx.field(static=True)
    """What was chosen to be identified at the joints."""
    values: JointEffectValues
    """Offsets, and what else was identified besides the model."""
    parameters: np.ndarray
    """`[P]`: as identified, in the order of `names`."""
    sigma: np.ndarray
    """`[nv]`: root mean square of the torque residual on the data of the fit, N m or N; for a robust loss the scale."""
    cost: float
    """Half the sum of squares that was minimized, at the last weights: residuals over `sigma`, and the prior's."""
    iterations: int
    """Steps of Levenberg-Marquardt, or linear solves, over all rounds of re-weighting."""
    rounds: int
    status: str
    """In words: `"converged"`, or what stopped the fit."""
    message: str
    """What else one should know: the rank, what was searched and chosen."""
    samples: int
    """Equations: samples times degrees of freedom, as far as they count."""
    triangle: np.ndarray
    """`[k, P]`: `R`, with `R^T R` the data's information about the parameters (gains taken as known)."""
    tangent: np.ndarray | None = None
    """`[P, size]`: the parameters' derivative by the coordinates of the physical fit; None for linear least squares."""
    precision_factor: np.ndarray | None = None
    """`[size, size]`, lower: the coordinates' inverse covariance, of data and prior together, is its square."""
    prior_factor: np.ndarray | None = None
    """`[size, size]`, lower: of the prior alone."""
    prior_weight: float = 0.0

    @classmethod
    def unfitted(cls, model: Model) -> InverseDynamicsFit:
        """A model as it is, for comparison: it predicts and is evaluated as a fit."""
        effects = JointEffects(armature=False, viscous=False, coulomb=False, offset=False)
        return cls(
            model=model,
            before=model,
            effects=effects,
            values=JointEffectValues.none(model),
            parameters=np.asarray(model.inertial_parameters, np.float64).ravel(),
            sigma=np.full(model.nv, np.nan),
            cost=np.nan,
            iterations=0,
            rounds=0,
            status="not fitted",
            message="",
            samples=0,
            triangle=np.zeros((0, 10 * model.nb)),
        )

    @property
    def converged(self) -> bool:
        """Whether `status` says so."""
        return self.status == "converged"

    @property
    def offset(self) -> np.ndarray:
        """`[nv]`: constant torque of each sensor or drive, N m or N."""
        return self.values.offset

    @property
    def physical(self) -> np.ndarray:
        """`[nb]` of bool: whether some distribution of mass has each body's parameters (`is_physical`)."""
        return np.asarray(is_physical(self.model.inertial_parameters))

    @property
    def layout(self) -> Layout:
        """Where each parameter stands in `parameters`."""
        return Layout.of(self.before, self.effects)

    @property
    def names(self) -> list[str]:
        """`[P]`: what the `parameters` are called."""
        return self.layout.names(self.before)

    @property
    def shape(self) -> Shape:
        """What the torque is not linear in: friction velocities, Stribeck friction, gains and delays."""
        x = self.values
        return Shape(
            np.asarray(self.model.friction_velocity, np.float64),
            x.stribeck_velocity,
            x.friction_delay,
            x.torque_delay,
        )

    def predict(self, recording: Recording) -> np.ndarray:
        """`[n, nv]`: the torques (N m or N) for a recording's `q, v, a`, as they would be recorded.

        **Raises** `DataError`, as the fit does.
        """
        q, v, a = checked(self.model, recording, torques=False)
        return self.values.torque(self.model, recording.t, q, v, a)

    def evaluate(self, recordings) -> Evaluation:
        """The quality of the fit on one recording or several, best on those that no fit has seen."""
        recordings = as_recordings(recordings)
        tau = [x.require("tau")[0] for x in recordings]
        residual = tuple(self.predict(x) - y for x, y in zip(recordings, tau, strict=True))
        r, y = np.concatenate(residual), np.concatenate(tau)
        spread = np.mean((y - y.mean(axis=0)) ** 2, axis=0)
        return Evaluation(
            rms_error=np.sqrt(np.mean(r**2, axis=0)),
            rms_torque=np.sqrt(np.mean(y**2, axis=0)),
            r2=np.where(spread > 0, 1 - np.mean(r**2, axis=0) / np.where(spread > 0, spread, 1.0), np.nan),
            total_rms=float(np.sqrt(np.mean(r**2))),
            relative=float(np.linalg.norm(r) / max(np.linalg.norm(y), np.finfo(float).tiny)),
            residual=residual,
        )

    def base_parameters(self, *, threshold: float | None = None) -> BaseParameters:
        """Which combinations of the parameters the data of this fit excite; for those that any motion could, see
        `jaxdyn.sysid.base_parameters`."""
        return base_parameters_of(self.triangle[:, : len(self.parameters)], self.names, threshold, self.layout.nb)

    def intervals(self, base: BaseParameters | None = None, *, level: float = 0.95) -> Intervals:
        """Values, standard errors and confidence intervals: of the parameters one by one, or of the combinations of
        `base` (`base_parameters()`).

        Gauss-Newton: the inverse of the information, of the residuals at `sigma` and, for the physical fit, of the
        prior. The residuals are taken for independent; filtered ones are not, and have wider intervals by about the
        square root of the samples that are alike (`bootstrap` finds out).

        **Raises** `ModelError` for linear least squares without `base`: single parameters have no interval there.
        """
        if self.tangent is None and base is None:
            raise ModelError(
                "linear least squares determines combinations of parameters only: ask for fit.intervals("
                "fit.base_parameters())"
            )
        return _gauss_newton(self, base, level)


def _gauss_newton(fit: InverseDynamicsFit, base: BaseParameters | None, level: float) -> Intervals:
    z = quantile(level)
    P = len(fit.parameters)
    B = np.eye(P) if base is None else base.matrix
    names = tuple(fit.names) if base is None else tuple(base.describe())
    if fit.tangent is None:
        assert base is not None
        R = np.linalg.qr(fit.triangle[:, base.independent], mode="r")
        length = np.linalg.norm(R, axis=0)
        inverse = solve_triangular(R / length, np.eye(len(R))) / length[:, None]
        variance = np.sum(inverse**2, axis=1)
        share = np.zeros(len(variance))
        counted = len(R)
    else:
        assert fit.precision_factor is not None
        assert fit.prior_factor is not None
        T = B @ fit.tangent
        variance, prior = (
            np.sum(solve_triangular(L, T.T, lower=True) ** 2, axis=0) for L in (fit.precision_factor, fit.prior_factor)
        )
        share = variance / prior
        # Degrees of freedom that the data have spent: the trace of the hat matrix.
        counted = len(fit.precision_factor) - np.sum(
            solve_triangular(fit.precision_factor, fit.prior_factor, lower=True) ** 2
        )
    error = np.sqrt(variance * fit.samples / max(fit.samples - counted, 1.0))
    value = B @ fit.parameters
    return Intervals(names, value, error, value - z * error, value + z * error, share, level)
