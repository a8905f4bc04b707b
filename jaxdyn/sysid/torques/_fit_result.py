"""The result of a fit to recorded torques, and the scatter of its parameters when recordings are resampled."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn._errors import DataError, ModelError
from jaxdyn._status import Status
from jaxdyn.model import Model
from jaxdyn.sysid.parameters import cholesky, is_physical
from jaxdyn.sysid.recordings import Recording, as_recordings
from jaxdyn.sysid.torques._base_parameters import BaseParameters, base_parameters_of
from jaxdyn.sysid.torques._effects import JointEffects, JointEffectValues
from jaxdyn.sysid.torques._intervals import Intervals, normal_intervals, posterior_intervals, with_draws
from jaxdyn.sysid.torques._physical_fit import Physical, start_at
from jaxdyn.sysid.torques._torque_model import EffectShape, Layout, Samples, motion_arrays


class Evaluation(NamedTuple):
    """The errors of predicted torques; the arrays are `[nv]`."""

    rms_error: np.ndarray
    """Root mean square of the residual, in the unit of the recording (N m or N)."""
    rms_torque: np.ndarray
    """Root mean square of the recorded torque."""
    r2: np.ndarray
    """1 - (residual's sum of squares) / (torque's, about its mean); NaN for a torque that is constant."""
    total_rms: float
    """Root mean square of the residuals of all joints together."""
    relative: float
    """Norm of all residuals divided by the norm of all torques."""
    residual: tuple[np.ndarray, ...]
    """`[n, nv]` for each recording: predicted minus recorded."""


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
    """The number of equations: samples times degrees of freedom, or the sum of their weights."""
    triangle: np.ndarray
    """`[k, P]`: `R` for which `R^T R` is the data's information about the parameters, for the identified gains."""
    tangent: np.ndarray | None = None
    """`[P, size]`: the parameters' derivative by the coordinates of the physical fit; None for linear least squares."""
    precision_factor: np.ndarray | None = None
    """`[size, size]`: the lower factor `L` of the coordinates' inverse covariance `L L^T`, of data and prior."""
    prior_factor: np.ndarray | None = None
    """`[size, size]`: the same for the prior alone."""
    prior_weight: float = 0.0
    """The weight of the inertias' prior."""

    @classmethod
    def unfitted(cls, model: Model) -> InverseDynamicsFit:
        """A model that was not fitted, which predicts torques and can be evaluated as a fit, for comparison."""
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
            status=Status.OUT_OF_ITERATIONS,
            message="not fitted",
            samples=0,
            triangle=np.zeros((0, 10 * model.nb)),
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
        return Layout.of(self.before, self.effects)

    @property
    def names(self) -> list[str]:
        """The names of `parameters`, `[P]`."""
        return self.layout.names(self.before)

    @property
    def shape(self) -> EffectShape:
        """The numbers in which the torque is not linear: friction and Stribeck velocities, and delays."""
        w, x = np.asarray(self.model.friction_velocity, np.float64), self.values
        return EffectShape(w, x.stribeck_velocity, x.friction_delay, x.torque_delay)

    def predict(self, recording: Recording) -> np.ndarray:
        """The torques `[n, nv]` (N m or N) that would be recorded for the `q, v, a` of a recording. **Raises**
        `DataError` for a recording that does not fit the model."""
        q, v, a = motion_arrays(self.model, recording, torques=False)
        return self.values.torque(self.model, recording.t, q, v, a)

    def evaluate(self, recordings) -> Evaluation:
        """The errors of predicted torques on one recording or several, preferably held-out ones."""
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
        """The combinations of parameters that the data of this fit excite. `jaxdyn.sysid.base_parameters` has those
        that any motion can excite, and the meaning of `threshold`."""
        return base_parameters_of(self.triangle[:, : len(self.parameters)], self.names, threshold)

    def intervals(self, base: BaseParameters | None = None, *, level: float = 0.95) -> Intervals:
        """Values, standard errors and intervals of the parameters, or of the combinations `base` (`base_parameters()`).

        The covariance is that of Gauss-Newton: the inverse of the information in the residuals, weighted by `sigma`,
        and for the physical fit in the prior. Residuals count as independent. Filtered residuals are not: their
        intervals are wider by about the square root of the number of samples that are alike (`bootstrap` finds out).

        **Raises** `ModelError` for linear least squares without `base`: single parameters have no interval there.
        """
        B = np.eye(len(self.parameters)) if base is None else base.matrix
        names, value = self.names if base is None else base.describe(), B @ self.parameters
        if self.tangent is not None and self.precision_factor is not None and self.prior_factor is not None:
            # The trace of the hat matrix is the number of degrees of freedom that the fit takes from the data.
            shares = solve_triangular(self.precision_factor, self.prior_factor, lower=True)
            inflation = self._inflation(len(shares) - np.sum(shares**2))
            factors = (self.precision_factor, self.prior_factor)
            return posterior_intervals(names, value, B @ self.tangent, *factors, level, inflation)
        if base is None:
            raise ModelError(
                "linear least squares determines combinations of parameters only: ask for fit.intervals("
                "fit.base_parameters())"
            )
        R = np.linalg.qr(self.triangle[:, base.independent], mode="r")
        length = np.linalg.norm(R, axis=0)
        inverse = solve_triangular(R / length, np.eye(len(R))) / length[:, None]
        error = np.sqrt(self._inflation(len(R)) * np.sum(inverse**2, axis=1))
        return normal_intervals(names, value, error, np.zeros(len(R)), level)

    def _inflation(self, fitted: float) -> float:
        """The ratio of the residuals' variance to `sigma^2`, for this number of fitted degrees of freedom."""
        return self.samples / max(self.samples - fitted, 1.0)


class Bootstrap(NamedTuple):
    """The parameters of data sets drawn from blocks of the recordings."""

    parameters: np.ndarray
    """`[draws, P]`."""
    blocks: int
    """The number of blocks."""

    def intervals(
        self, fit: InverseDynamicsFit, base: BaseParameters | None = None, *, level: float = 0.95
    ) -> Intervals:
        """Standard errors over the draws, and intervals between their quantiles."""
        B = np.eye(self.parameters.shape[1]) if base is None else base.matrix
        names, value = fit.names if base is None else base.describe(), B @ fit.parameters
        share = np.full(len(names), np.nan)
        return with_draws(normal_intervals(names, value, share, share, level), self.parameters @ B.T)


def bootstrap(fit: InverseDynamicsFit, recordings, *, draws: int = 500, blocks: int = 40, seed: int = 0) -> Bootstrap:
    """Resample the recordings of a fit by blocks in time, to see how the parameters scatter.

    A block keeps what neighboring samples have in common (noise that a filter smeared, friction that the model lacks),
    so intervals are right for correlated residuals if a block is longer than their correlation (Kunsch, The jackknife
    and the bootstrap for general stationary observations, Annals of Statistics 1989). Each draw is solved by one
    Gauss-Newton step from the fit, with the fit's weights: exact for linear least squares.

    `recordings` are those of the fit; `blocks` is their number over all recordings. The parameters of the draws are
    `[draws, P]`. **Raises** `DataError` for fewer than two blocks or draws.
    """
    if blocks < 2 or draws < 2:
        raise DataError(f"bootstrap with {blocks} blocks and {draws} draws; at least two of each are needed")
    samples = Samples(fit.before, recordings, fit.effects, fit.shape)
    samples.transmit(fit.model)
    parts = samples.compressed(blocks=blocks)
    layout, p = fit.layout, fit.parameters
    n, k = 10 * layout.nb, 10 * layout.nb + len(layout.positive)
    if fit.prior_factor is None:
        base = fit.base_parameters()
        factors = [part.weighted(fit.sigma) for part in parts]
        equations = [(rows[:, base.independent], rows[:, :-1] @ p - rows[:, -1]) for rows in factors]
        x = np.zeros((draws, len(p)))
        x[:, base.independent] = _solutions(equations, None, draws, seed)
        return Bootstrap(p + x, len(parts))
    problem = start_at(fit.before, samples, fit.prior_weight, 1.0)
    gains = 1 / fit.values.gain[list(layout.gains)]
    point = Physical(cholesky.pseudo_factor(p[:n].reshape(layout.nb, 10)), p[n:k], p[k:], gains)
    problems = [problem.with_data(part, fit.sigma, layout) for part in parts]
    x = _solutions([(y.jacobian(point), y.residual(point)) for y in problems], fit.prior_factor, draws, seed)
    return Bootstrap(np.array([point.moved(y, problem.offset_scale).parameters() for y in x]), len(parts))


def _solutions(
    equations: list[tuple[np.ndarray, np.ndarray]], prior_factor: np.ndarray | None, draws: int, seed: int
) -> np.ndarray:
    """Gauss-Newton steps `[draws, size]` for random counts of blocks with these Jacobians and residuals, from the
    solution, where the prior's slope balances that of the data."""
    H, g = np.array([A.T @ A for A, _ in equations]), np.array([A.T @ r for A, r in equations])
    prior, slope = (0.0, 0.0) if prior_factor is None else (prior_factor @ prior_factor.T, -g.sum(axis=0))
    counts = np.random.default_rng(seed).multinomial(len(H), np.full(len(H), 1 / len(H)), size=draws).astype(float)
    total = H.sum(axis=0) + prior
    unit = 1 / np.sqrt(np.diagonal(total))
    matrix = (np.tensordot(counts, H, 1) + prior) * unit[:, None] * unit + 1e-12 * np.eye(len(unit))
    return -np.linalg.solve(matrix, ((counts @ g + slope) * unit)[..., None])[..., 0] * unit
