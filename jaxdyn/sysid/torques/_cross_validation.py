"""The weight of the prior, chosen by how well fits predict parts of the recordings that they have not seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.model import Model
from jaxdyn.sysid.torques._physical_fit import minimize, start_at
from jaxdyn.sysid.torques._torque_model import Samples, TorqueData

PRIOR_WEIGHTS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""The candidates where none are given."""
_STEPS = 100


class CrossValidation(NamedTuple):
    """Held-out errors of fits with several prior weights."""

    prior_weights: np.ndarray
    """`[k]`, increasing."""
    errors: np.ndarray
    """`[folds, k]`: mean square of the held-out residuals over `sigma^2` of each joint."""
    folds: int

    @property
    def best(self) -> float:
        """The weight with the smallest error on average."""
        return float(self.prior_weights[np.argmin(self.errors.mean(axis=0))])

    @property
    def largest_within_one_standard_error(self) -> float:
        """The largest weight whose error is within one standard error of the best (Breiman et al. 1984): a choice for
        robots that will move otherwise than in the recordings."""
        mean = self.errors.mean(axis=0)
        k = int(np.argmin(mean))
        # Of the differences: what makes a part hard to predict does so for all weights.
        excess = self.errors - self.errors[:, [k]]
        error = excess.std(axis=0, ddof=1) / np.sqrt(len(self.errors))
        return float(self.prior_weights[np.flatnonzero(excess.mean(axis=0) <= error)[-1]])


def choose_weight(
    model: Model,
    samples: Samples,
    effects_weight: float,
    prior_weights: Sequence[float],
    folds: int,
    sigma: np.ndarray,
) -> CrossValidation:
    """See `cross_validate`. The parts are compressed once; the joints' weights `1 / sigma` are the same for all."""
    weights = np.sort(np.asarray(prior_weights, np.float64))
    if folds < 2 or not weights.size or not np.all(weights > 0):
        raise DataError(
            f"cross-validation with {folds} folds and the weights {weights.tolist()}: give two folds or "
            "more, and positive weights"
        )
    parts = samples.compressed(groups=samples.blocks(folds))
    errors = np.zeros((len(parts), len(weights)))
    layout = samples.layout
    for i, part in enumerate(parts):
        rest = TorqueData.joined([x for k, x in enumerate(parts) if k != i])
        point = None
        # From the stiffest on: each solution is a good start for the next.
        for k in reversed(range(len(weights))):
            problem = start_at(model, samples, weights[k], effects_weight).with_data(rest, sigma, layout)
            point = minimize(problem, point or problem.prior, _STEPS, lambda *_: None).point
            gain = np.ones(layout.nv)
            gain[list(layout.gains)] = 1 / point.scale
            rms = part.residual_rms(point.parameters(), gain)
            errors[i, k] = np.sum(part.samples * (rms / sigma) ** 2) / np.sum(part.samples)
    return CrossValidation(weights, errors, len(parts))
