"""The scatter of identified parameters when recordings are re-sampled by blocks in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError
from jaxdyn._status import Status
from jaxdyn._waits import saying
from jaxdyn.sysid.parameters import cholesky
from jaxdyn.sysid.torques._base_parameters import BaseParameters
from jaxdyn.sysid.torques._fit_result import InverseDynamicsFit
from jaxdyn.sysid.torques._intervals import Intervals, around_draws, normal_intervals
from jaxdyn.sysid.torques._physical_fit import Physical, minimize, start_at
from jaxdyn.sysid.torques._recorded_motions import TorqueData, consecutive_blocks
from jaxdyn.sysid.torques._residual_noise import without_leverage
from jaxdyn.sysid.torques._torque_model import Samples

_MAX_ITERATIONS = 100


class Bootstrap(NamedTuple):
    """The parameters of data sets drawn from blocks of the recordings."""

    parameters: np.ndarray
    """`[draws, P]`."""
    blocks: int
    """The number of blocks."""
    converged: np.ndarray
    """`[draws]` of bool: whether the fit to the drawn blocks has converged."""

    def intervals(
        self, fit: InverseDynamicsFit, base: BaseParameters | None = None, *, level: float = 0.95
    ) -> Intervals:
        """Standard errors over the draws that have converged, and intervals as far above and below the fit's values as
        the draws' quantiles lie above and below their median: of the logarithm for positive parameters."""
        B = np.eye(self.parameters.shape[1]) if base is None else base.matrix
        names, value = fit.names if base is None else base.describe(), B @ fit.parameters
        share = np.full(len(names), np.nan)
        whole = normal_intervals(names, value, share, share, level)
        return around_draws(whole, self.parameters[self.converged] @ B.T, fit.positive(B))

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        draws, count = self.parameters.shape
        first = f"{int(np.sum(self.converged))} of {draws} draws converged"
        return first, {"blocks": str(self.blocks), "parameters": str(count), "next": "intervals(fit)"}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


@saying("resampling the recordings")
def bootstrap(fit: InverseDynamicsFit, recordings, *, draws: int = 200, blocks: int = 40, seed: int = 0) -> Bootstrap:
    """Resample the recordings of a fit by blocks in time and fit each draw again, to see how the parameters scatter.

    A block keeps what neighboring samples have in common (noise that a filter smeared, friction that the model lacks),
    so intervals are right for correlated residuals if a block is longer than their correlation (Kunsch, The jackknife
    and the bootstrap for general stationary observations, Annals of Statistics 1989). Each draw is a whole fit, which
    starts from `fit` and keeps its weights of joints, and the weights that a robust loss has given to samples.
    Velocities of friction, delays and lengths that are parameters scatter to first order. The prior stays where it is,
    so what only the prior determines does not scatter.

    A fit takes noise out of the residuals, and a draw of the residuals that are left scatters too little. So the
    residuals of each block are first enlarged by what the fit takes out of a block of independent ones (Bell &
    McCaffrey, Bias reduction in standard errors for linear regression with multi-stage samples, Survey Methodology
    2002).

    `recordings` are those of the fit; `blocks` is their number over all recordings. The parameters of the draws are
    `[draws, P]`. **Raises** `DataError` for fewer than two blocks or draws, and for recordings of another length than
    those of a fit with a robust loss.
    """
    if blocks < 2 or draws < 2:
        raise DataError(f"bootstrap with {blocks} blocks and {draws} draws; at least two of each are needed")
    samples = Samples(fit.before, recordings, fit.effects, fit.shape, fit.refined)
    samples.linearize(fit.drive_model, fit.values)
    if fit.weights is not None and len(fit.weights) != len(samples):
        raise DataError(
            f"the recordings have {len(samples)} samples below their cutoff, but the fit has weights of "
            f"{len(fit.weights)}: give bootstrap the recordings of the fit, prepared alike"
        )
    # Passive joints have no torque and no noise.
    sigma = np.where(samples.driven, fit.sigma, 1.0)
    samples.take_noise(sigma)
    hat = fit.posterior.covariance_root()
    groups = consecutive_blocks(samples.lengths, blocks)
    parts = [_enlarged(x, fit, sigma, hat) for x in samples.compressed(fit.weights, groups)]
    counts = np.random.default_rng(seed).multinomial(len(parts), np.full(len(parts), 1 / len(parts)), size=draws)
    if not fit.prior_weight:
        independent, p = fit.base_parameters().independent, np.tile(fit.parameters, (draws, 1))
        for row, data in zip(p, _drawn(parts, counts), strict=True):
            R = data.weighted(sigma)
            row[independent] += np.linalg.lstsq(R[:, independent], R[:, -1] - R[:, :-1] @ fit.parameters, rcond=None)[0]
        return Bootstrap(p, len(parts), np.ones(draws, bool))
    layout, p = fit.layout, fit.parameters
    n = 10 * layout.nb
    problem = start_at(fit.before, samples, fit.prior_weight, fit.effects_weight)
    joints = np.concatenate([p[n:], 1 / fit.values.gain[list(layout.gains)]])
    point = Physical(cholesky.pseudo_factor(p[:n].reshape(layout.nb, 10)), joints, len(layout.gains))
    draw = (problem.with_data(data, sigma, layout) for data in _drawn(parts, counts))
    solutions = [minimize(x, point, _MAX_ITERATIONS) for x in draw]
    parameters = np.array([x.point.parameters() for x in solutions])
    return Bootstrap(parameters, len(parts), np.array([x.status == Status.CONVERGED for x in solutions]))


def _enlarged(part: TorqueData, fit: InverseDynamicsFit, sigma: np.ndarray, hat: np.ndarray) -> TorqueData:
    """The data of a block with torques that leave the residuals `without_leverage`."""
    layout, gain = fit.layout, fit.values.gain[:, None]
    Y, known, tau = part.factors[..., : layout.size], part.factors[..., -2], part.factors[..., -1]
    predicted = (Y @ fit.parameters + known) / gain
    by_gain = predicted[..., None] * (np.arange(layout.nv)[:, None] == np.array(layout.gains, int))[:, None]
    X = np.concatenate([Y / gain[..., None], by_gain], axis=-1) / sigma[:, None, None]
    residual = (predicted - tau) / sigma[:, None]
    enlarged = without_leverage(X.reshape(residual.size, -1), residual.ravel(), hat).reshape(residual.shape)
    tau = predicted - sigma[:, None] * enlarged
    return part._replace(factors=np.concatenate([part.factors[..., :-1], tau[..., None]], axis=-1))


def _drawn(parts: list[TorqueData], counts: np.ndarray) -> Iterator[TorqueData]:
    """Yield the data in which each part counts as often as a row of `counts` `[draws, parts]` says."""
    length = np.sqrt(sum(np.sum(x.factors**2, axis=(0, 1)) for x in parts))
    length = np.where(length > 0, length, 1.0)
    # Products of columns of unit length: roots of their sums take less time than factors of all rows would.
    units = [x.factors / length for x in parts]
    products = np.stack([np.swapaxes(x, -1, -2) @ x for x in units])
    samples = np.stack([x.samples for x in parts])
    for row in counts.astype(float):
        sizes, directions = np.linalg.eigh(np.tensordot(row, products, 1))
        root = np.sqrt(np.maximum(sizes, 0.0))[..., None] * np.swapaxes(directions, -1, -2)
        yield TorqueData(root * length, row @ samples)
