"""Where a fit to torques is, to be saved and gone on from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.sysid.torques._physical_fit import Physical
from jaxdyn.sysid.torques._torque_model import Shape


class TorqueFitState(NamedTuple):
    """All that `fit_inverse_dynamics` needs to go on: what was searched and chosen, the round of re-weighting with its
    weights, and the point that the steps have come to."""

    shape: Shape
    prior_weight: float
    round: int
    step: int
    """The next one of this round."""
    iterations: int
    """In the rounds before."""
    sigma: np.ndarray
    """`[nv]`: by which this round weighs the joints."""
    weights: np.ndarray | None
    """`[n, nv]`: of the samples' squares, for a robust loss from the second round on."""
    previous: np.ndarray | None
    """`[P]`: parameters that the round before found, from which transmitted torques are."""
    point: Physical

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, to be saved."""
        out = {f"shape.{name}": np.asarray(x) for name, x in self.shape._asdict().items()}
        out |= {f"point.{name}": np.asarray(x) for name, x in self.point._asdict().items()}
        rest = {name: x for name, x in self._asdict().items() if name not in ("shape", "point") and x is not None}
        return out | {name: np.asarray(x) for name, x in rest.items()}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> TorqueFitState:
        """**Raises** `DataError` for a missing name."""
        try:
            return cls(
                shape=Shape(*(arrays[f"shape.{name}"] for name in Shape._fields)),
                prior_weight=float(arrays["prior_weight"]),
                round=int(arrays["round"]),
                step=int(arrays["step"]),
                iterations=int(arrays["iterations"]),
                sigma=arrays["sigma"],
                weights=arrays.get("weights"),
                previous=arrays.get("previous"),
                point=Physical(*(arrays[f"point.{name}"] for name in Physical._fields)),
            )
        except KeyError as error:
            raise DataError(f"no state of a fit: {error.args[0]} is missing") from None

    def require_like(self, prior: Physical, samples: int, nv: int) -> None:
        """**Raises** `DataError` for a state of another problem."""
        same = [(x.shape, y.shape) for x, y in zip(self.point, prior, strict=True)]
        same += [(np.shape(x), (nv,)) for x in (self.sigma, *self.shape)]
        if self.weights is not None:
            same.append((self.weights.shape, (samples, nv)))
        if any(x != y for x, y in same):
            raise DataError(
                "the state is of another fit: its arrays have other shapes than this model, these joint effects and "
                "recordings need. Give the arguments that it was made with, or start anew"
            )
