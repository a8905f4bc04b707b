"""How identified parameters scatter where recordings are drawn anew, block by block."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.sysid.parameters._base_parameters import BaseParameters
from jaxdyn.sysid.torques._effects import frictionless_torque
from jaxdyn.sysid.torques._fit_result import InverseDynamicsFit
from jaxdyn.sysid.torques._intervals import Intervals
from jaxdyn.sysid.torques._physical_fit import Physical, factor_of
from jaxdyn.sysid.torques._torque_model import Samples


class Bootstrap(NamedTuple):
    """Parameters of data sets drawn from blocks of the recording."""

    parameters: np.ndarray
    """`[draws, P]`."""
    blocks: int

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
    """Resample the recordings of a fit by blocks in time, and see how the parameters scatter.

    Blocks keep what neighboring samples have in common (noise that a filter has smeared, friction that the model does
    not have), so that intervals are honest where residuals are correlated, if a block is longer than that lasts
    (Kunsch, The jackknife and the bootstrap for general stationary observations, Annals of Statistics 1989). Each draw
    is solved by one Gauss-Newton step from the fit, at the fit's weights: exact for linear least squares.

    `recordings`: those of the fit. `blocks`: how many, over all recordings. **Raises** `DataError`.

    The parameters of the draws are `[draws, P]`.
    """
    if blocks < 2 or draws < 2:
        raise DataError(f"bootstrap with {blocks} blocks and {draws} draws; two of each are the least")
    samples = Samples(fit.before, recordings, fit.effects, fit.shape)
    samples.set_load(frictionless_torque(fit.model, samples.q, samples.v, samples.a))
    parts = samples.compressed(groups=samples.blocks(blocks))
    sigma, p = fit.sigma, fit.parameters
    scale = 1 / fit.values.gain
    layout = fit.layout
    base = fit.base_parameters() if fit.tangent is None else None
    # The coordinates: those of the physical fit, or the combinations that the data determine.
    if base is not None:
        T = np.zeros((len(p), base.rank))
        T[base.independent] = np.eye(base.rank)
        prior, slope = 0.0, 0.0
    else:
        assert fit.tangent is not None
        assert fit.prior_factor is not None
        T = fit.tangent
        prior, slope = fit.prior_factor @ fit.prior_factor.T, None
    H, g = [], []
    for part in parts:
        Hb, gb = np.zeros((T.shape[1],) * 2), np.zeros(T.shape[1])
        for j in range(layout.nv):
            F, s = part.factors[j] / sigma[j], scale[j]
            jacobian = s * F[:, :-2] @ T
            if j in layout.gains:
                jacobian[:, T.shape[1] - len(layout.gains) + layout.gains.index(j)] = s * F[:, :-1] @ np.append(p, 1.0)
            residual = s * F[:, :-1] @ np.append(p, 1.0) - F[:, -1]
            Hb += jacobian.T @ jacobian
            gb += jacobian.T @ residual
        H.append(Hb)
        g.append(gb)
    H, g = np.array(H), np.array(g)
    # At the solution the prior's slope holds that of the data.
    slope = -g.sum(axis=0) if slope is None else slope * np.ones(T.shape[1])
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(len(H), np.full(len(H), 1 / len(H)), size=draws).astype(float)
    matrix = np.tensordot(counts, H, 1) + prior
    unit = 1 / np.sqrt(np.einsum("kk->k", H.sum(axis=0)) + np.diag(prior * np.eye(T.shape[1])))
    matrix = matrix * unit[:, None] * unit
    matrix += 1e-12 * np.eye(len(unit))
    right = (counts @ g + slope) * unit
    x = -np.linalg.solve(matrix, right[..., None])[..., 0] * unit
    return Bootstrap(_moved(fit, x) if base is None else p + x @ T.T, len(H))


def _moved(fit: InverseDynamicsFit, x: np.ndarray) -> np.ndarray:
    """The parameters at the coordinates `x` `[draws, size]` about the fit's: physical, all of them."""
    layout, p = fit.layout, fit.parameters
    n, k = 10 * layout.nb, 10 * layout.nb + len(layout.positive)
    gains = 1 / fit.values.gain[list(layout.gains)]
    point = Physical(factor_of(p[:n].reshape(layout.nb, 10)), p[n:k], p[k:], gains)
    assert fit.tangent is not None
    # The scale of the offsets' coordinates, from the derivative.
    scale = np.diagonal(fit.tangent[k:, k : k + len(layout.offsets)])
    return np.array([point.moved(y, scale).parameters() for y in x])
