"""The scatter of identified parameters when recordings are resampled block by block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.sysid.parameters import cholesky
from jaxdyn.sysid.torques._base_parameters import BaseParameters
from jaxdyn.sysid.torques._fit_result import InverseDynamicsFit
from jaxdyn.sysid.torques._intervals import Intervals
from jaxdyn.sysid.torques._physical_fit import Physical, start_at
from jaxdyn.sysid.torques._torque_model import Samples


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
        draws = self.parameters @ B.T
        lower, upper = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
        names = tuple(fit.names) if base is None else tuple(base.describe())
        share = np.full(len(names), np.nan)
        return Intervals(names, B @ fit.parameters, draws.std(axis=0, ddof=1), lower, upper, share, level)


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
    parts = samples.compressed(groups=samples.blocks(blocks))
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
