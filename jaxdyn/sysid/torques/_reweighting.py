"""The rounds of a fit: its state, and the noise, weights and transmitted torques that are estimated between them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Literal, NamedTuple, Self

import jax
import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn._errors import DataError, require_choice
from jaxdyn.sysid._states import array_of_state
from jaxdyn.sysid.torques._base_parameters import BaseParameters, base_parameters_of
from jaxdyn.sysid.torques._layout import Layout
from jaxdyn.sysid.torques._physical_fit import Physical, PhysicalProblem
from jaxdyn.sysid.torques._torque_data import TorqueData
from jaxdyn.sysid.torques._torque_model import EffectShape, Samples, with_parameters

type Loss = Literal["squared", "huber", "cauchy"]

# No sensor is better than this part of the torque's size; without the floor, weights of exact data would overflow.
_SIGMA_FLOOR = 1e-6
# Rounds of re-weighting end when the noise of every joint changes by less than this part.
_SIGMA_TOLERANCE = 1e-3
# Tuning constants of 95 % efficiency for normal noise (Holland & Welsch 1977), and the ratio of a normal distribution's
# standard deviation to its median absolute value.
_HUBER, _CAUCHY, _MEDIAN = 1.345, 2.385, 1.4826


class TorqueFitState(NamedTuple):
    """All that `fit_inverse_dynamics` needs to resume: the choices made before its first round, the round of
    re-weighting with its weights, and the last point."""

    shape: EffectShape
    refined: np.ndarray
    """`[4, nv]`: 1 for the numbers of the shape that are parameters."""
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
        refined = samples.refined.astype(np.int64)
        return cls(samples.shape, refined, problem.weight, 1, 1, 0, samples.torque_scale, None, None, problem.prior)

    def arrays(self) -> dict[str, np.ndarray]:
        """The state as arrays by name, to be saved."""
        leaves = jax.tree_util.tree_leaves_with_path(self)
        return {jax.tree_util.keystr(path).removeprefix("."): np.asarray(x) for path, x in leaves}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> TorqueFitState:
        """The state from its `arrays()`. **Raises** `DataError` for arrays that are missing, not finite, or of other
        shapes or types than those of a state."""
        get = functools.partial(array_of_state, arrays)
        weight, *counts = get("prior_weight"), *(get(name, whole=True) for name in ("round", "step", "iterations"))
        sigma = get("sigma", (None,), positive=True)
        shape = EffectShape(*(get(f"shape.{name}", sigma.shape) for name in EffectShape._fields))
        axes = {"U": (None, 4, 4), "positive": (None,), "offset": (None,), "scale": (None,)}
        signs = {"positive": True, "scale": True}
        point = Physical(**{name: get(f"point.{name}", x, positive=signs.get(name, False)) for name, x in axes.items()})
        weights = get("weights", (None, len(sigma))) if "weights" in arrays else None
        previous = get("previous", point.parameters().shape) if "previous" in arrays else None
        round_, step, iterations = (int(x) for x in counts)
        refined = get("refined", (len(shape), len(sigma)), whole=True)
        return cls(shape, refined, float(weight), round_, step, iterations, sigma, weights, previous, point)

    def refining(self, samples: Samples, before: Layout) -> Self:
        """The same state for samples that have fewer velocities and delays among the parameters than `before`."""
        layout, point = samples.layout, self.point
        positive = [x in layout.positive for x in before.positive]
        n, m = len(before.offsets), len(before.delays)
        offset = [*[True] * n, *(x in layout.delays for x in before.delays), *[True] * (len(point.offset) - n - m)]
        point = point._replace(positive=point.positive[positive], offset=point.offset[offset])
        previous = None if self.previous is None else point.parameters()
        refined = samples.refined.astype(np.int64)
        return self._replace(shape=samples.shape, refined=refined, previous=previous, point=point, step=1)

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


class Reweighting:
    """The weights of joints and samples, estimated from the residuals after each round."""

    def __init__(self, samples: Samples, loss: Loss, state: TorqueFitState | None = None):
        require_choice(loss, ("squared", "huber", "cauchy"), "loss", error=DataError)
        self.samples, self.loss = samples, loss
        self.noise: np.ndarray = samples.torque_scale if state is None else state.sigma
        """`[nv]`: the noise of each joint as estimated."""
        self.sigma = self.noise
        """`[nv]`: the same with a floor, by which the next round weights the joints."""
        self.weights = None if state is None else state.weights
        """`[n, nv]`: the weights of the samples' squares for a robust loss, from the second round on."""
        self.settled = False
        self._at: np.ndarray | None = None
        if state is not None and state.previous is not None:
            self.linearize(state.previous)
        self._data: TorqueData | None = None

    @property
    def data(self) -> TorqueData:
        """The samples with their present weights."""
        if self._data is None:
            (self._data,) = self.samples.compressed(self.weights)
        return self._data

    def update(self, parameters: np.ndarray, gain: np.ndarray | float = 1.0) -> None:
        """Estimate all weights from the residuals at the parameters `[P]` and the drive gains `[nv]`."""
        samples = self.samples
        floor = _SIGMA_FLOOR * samples.torque_scale
        if samples.layout.nonlinear:
            self.linearize(parameters)
        if self.loss == "squared":
            self.noise = self.data.residual_rms(parameters, gain)
        else:
            residual = np.abs(samples.residuals(parameters, gain))
            self.noise = _MEDIAN * np.nanmedian(np.where(samples.valid, residual, np.nan), axis=0)
            x = residual / np.maximum(self.noise, floor)
            self.weights = 1 / np.maximum(1, x / _HUBER) if self.loss == "huber" else 1 / (1 + (x / _CAUCHY) ** 2)
        sigma = np.maximum(self.noise, floor)
        self.settled = bool(np.all(np.abs(sigma / self.sigma - 1) < _SIGMA_TOLERANCE))
        self.sigma = sigma
        if samples.layout.by_load and not samples.layout.nonlinear:
            self.linearize(parameters)
        if self.weights is not None:
            self._data = None

    def linearize(self, parameters: np.ndarray) -> None:
        """Take the columns that depend on parameters at these."""
        if self.samples.layout.changes_with_the_fit and (self._at is None or not np.array_equal(parameters, self._at)):
            self.samples.linearize(*with_parameters(self.samples, parameters, np.ones(self.samples.layout.nv)))
            self._at, self._data = parameters, None


def first_noise(samples: Samples) -> np.ndarray:
    """A first estimate of the joints' noise `[nv]`, by linear least squares, for weights that no fit has found yet."""
    (data,) = samples.compressed()
    sigma = samples.torque_scale
    for _ in range(3):
        parameters, _ = least_norm_solution(samples, data.weighted(sigma))
        sigma = np.maximum(data.residual_rms(parameters), _SIGMA_FLOOR * samples.torque_scale)
    return sigma


def least_norm_solution(
    samples: Samples, rows: np.ndarray, threshold: float | None = None
) -> tuple[np.ndarray, BaseParameters]:
    """Solve weighted rows `[k, P + 1]`: of all parameters `[P]` with the best base parameters, return those of least
    norm in columns of unit length, and the base parameters."""
    A, b = rows[:, :-1], rows[:, -1]
    base = base_parameters_of(A, samples.layout.names(samples.model), threshold)
    Q, T = np.linalg.qr(A[:, base.independent])
    best = solve_triangular(T, Q.T @ b)
    length = np.linalg.norm(A, axis=0)
    length = np.where(length > 0, length, 1.0)
    # matrix @ (x / length) = best, with rows scaled to the length of their own column.
    M = base.matrix / length * length[base.independent][:, None]
    return np.linalg.lstsq(M, best * length[base.independent], rcond=None)[0] / length, base
