"""The state of a fit to torques, from which an interrupted fit resumes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.sysid.torques._physical_fit import Physical, PhysicalProblem
from jaxdyn.sysid.torques._torque_model import EffectShape, Samples

_TUPLES: dict[str, Any] = {"shape": EffectShape, "point": Physical}


class TorqueFitState(NamedTuple):
    """All that `fit_inverse_dynamics` needs to resume: the choices made before its first round, the round of
    re-weighting with its weights, and the last point."""

    shape: EffectShape
    prior_weight: float
    round: int
    step: int
    """The number of the next step in this round."""
    iterations: int
    """The number of steps in the rounds before."""
    sigma: np.ndarray
    """`[nv]`: the noise by which this round weights the joints."""
    weights: np.ndarray | None
    """`[n, nv]`: the weights of the samples' squares for a robust loss, from the second round on."""
    previous: np.ndarray | None
    """`[P]`: the parameters at the end of the round before, which give the transmitted torques."""
    point: Physical

    @classmethod
    def first(cls, samples: Samples, problem: PhysicalProblem) -> TorqueFitState:
        """The state before the first step."""
        return cls(samples.shape, problem.weight, 1, 1, 0, samples.torque_scale, None, None, problem.prior)

    def arrays(self) -> dict[str, np.ndarray]:
        """The state as arrays by name, to be saved."""
        leaves = jax.tree_util.tree_leaves_with_path(self)
        return {jax.tree_util.keystr(path).removeprefix("."): np.asarray(x) for path, x in leaves}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> TorqueFitState:
        """The state from its `arrays()`. **Raises** `DataError` for a missing name."""
        try:
            fields: dict[str, Any] = {x: arrays[x] for x in ("prior_weight", "round", "step", "iterations", "sigma")}
            fields |= {name: t(*(arrays[f"{name}.{x}"] for x in t._fields)) for name, t in _TUPLES.items()}
        except KeyError as error:
            raise DataError(f"these arrays are not the state of a fit: {error.args[0]} is missing") from None
        fields |= {x: int(fields[x]) for x in ("round", "step", "iterations")}
        fields["prior_weight"] = float(fields["prior_weight"])
        return cls(**fields, weights=arrays.get("weights"), previous=arrays.get("previous"))

    def require_like(self, first: TorqueFitState, samples: int) -> None:
        """Raise `DataError` unless the state fits the problem whose state before its first step is `first`."""
        shapes, needed = ({name: x.shape for name, x in state.arrays().items()} for state in (self, first))
        if self.weights is not None:
            needed["weights"] = (samples, len(first.sigma))
        if any(shapes[name] != shape for name, shape in needed.items()):
            raise DataError(
                "the state is of another fit: its arrays have other shapes than this model, these joint effects and "
                "recordings need. Give the arguments of that fit, or start without a state"
            )
