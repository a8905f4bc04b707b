"""Base parameters: the combinations of inertial and joint parameters that torques determine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.linalg import qr, solve_triangular

from jaxdyn._errors import DataError
from jaxdyn.model import Model
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.torques._effects import JointEffects
from jaxdyn.sysid.torques._torque_model import Samples, Shape

# Which of two dependent parameters stands for both: first moments and moments of inertia before masses, what lies
# nearer to the base before what it carries. Far from one, so that no pivot turns on rounding.
_MASS_LAST = 0.05
_COEFFICIENT = 1e-8


class BaseParameters(NamedTuple):
    """Independent combinations of parameters, `p[independent] + relations @ p[dependent]`, and how well data fix them.

    From a QR decomposition with column pivoting of the regressor, columns scaled to unit length (Gautier, Numerical
    calculation of the base inertial parameters of robots, Journal of Robotic Systems 1991).
    """

    names: tuple[str, ...]
    """`[P]`: of all parameters."""
    independent: np.ndarray
    """`[rank]` of int: the parameters that stand for their combinations."""
    dependent: np.ndarray
    """`[P - rank]` of int: parameters that count only within combinations, or not at all (`unidentifiable`)."""
    relations: np.ndarray
    """`[rank, P - rank]`."""
    pivots: np.ndarray
    """`[P]`: diagonal of the triangle in the order of the pivots, over the largest."""
    threshold: float
    """Pivots below it are zero."""
    condition_number: float
    """Of the independent columns, scaled to unit length."""

    @property
    def rank(self) -> int:
        """How many combinations there are."""
        return len(self.independent)

    @property
    def matrix(self) -> np.ndarray:
        """`[rank, P]`: the combinations are `matrix @ parameters`."""
        out = np.zeros((self.rank, len(self.names)))
        out[np.arange(self.rank), self.independent] = 1.0
        out[:, self.dependent] = self.relations
        return out

    @property
    def unidentifiable(self) -> tuple[str, ...]:
        """The parameters that no torque depends on."""
        return tuple(
            self.names[k] for k, column in zip(self.dependent, self.relations.T, strict=True) if not column.any()
        )

    @property
    def gap(self) -> float:
        """The smallest pivot that counts over the largest that does not: the rank is certain where it is large."""
        if self.rank == len(self.pivots):
            return np.inf
        return float(self.pivots[self.rank - 1] / max(self.pivots[self.rank], np.finfo(float).tiny))

    def describe(self) -> list[str]:
        """`[rank]`: the combinations in words, such as `"m*cx(link3) + 0.0825 m(link4)"`."""
        out = []
        for row, k in enumerate(self.independent):
            text = self.names[k]
            for c, other in zip(self.relations[row], self.dependent, strict=True):
                if c:
                    number = "" if abs(abs(c) - 1) < 1e-6 else f"{abs(c):.4g} "
                    text += f" {'-' if c < 0 else '+'} {number}{self.names[other]}"
            out.append(text)
        return out


def base_parameters(
    model: Model,
    recordings: Recording | Sequence[Recording] | None = None,
    *,
    effects: JointEffects | None = None,
    threshold: float | None = None,
    samples: int = 400,
    seed: int = 0,
) -> BaseParameters:
    """The combinations of parameters that torques can determine: by any motion, or by that of `recordings`.

    Without recordings the structure is asked: `samples` random states and accelerations, the same for a `seed`. The
    rank for a recording is at most that, and less where its motion leaves something at rest.

    `threshold`: pivots below this part of the largest are zero; by default the precision of the regressor to the power
    0.6, for structure and data alike, so that everything counts that is excited at all. See `condition_number`, and
    raise it to say from where on excitation is too poor. `effects` are those of a fit.

    **Raises** `DataError`, `ModelError`.

    Source: Gautier 1991 (see `BaseParameters`).
    """
    effects = effects or JointEffects()
    if recordings is None:
        rng = np.random.default_rng(seed)
        q = rng.uniform(-np.pi, np.pi, (samples, model.nq))
        q = np.asarray(model.integrate(jnp.asarray(q), jnp.zeros((samples, model.nv))))
        v, a = rng.normal(0, 1, (2, samples, model.nv))
        recordings = Recording(np.arange(samples) * 1.0, q, v, a, np.ones_like(v))
    one = np.ones(model.nv)
    shape = Shape(np.asarray(model.friction_velocity, np.float64), 0.5 * one, 0 * one, 0 * one)
    data = Samples(model, recordings, effects, shape)
    (compressed,) = data.compressed()
    sigma = data.torque_scale
    rows = compressed.stacked(sigma)[:, :-2]
    return base_parameters_of(rows, data.layout.names(model), threshold, model.nb)


def base_parameters_of(
    rows: np.ndarray, names: Sequence[str], threshold: float | None = None, bodies: int = 0
) -> BaseParameters:
    """The base parameters of a regressor `[rows, P]`, or of a triangle with the same products of columns."""
    threshold = np.finfo(np.float64).eps ** 0.6 if threshold is None else threshold
    if not 0 < threshold < 1:
        raise DataError(f"the threshold is {threshold}; a number between 0 and 1 is needed")
    length = np.linalg.norm(rows, axis=0)
    if not length.any():
        raise DataError("the regressor is zero: the recording excites nothing")
    # A column far below the largest of its joint is rounding.
    seen = length > threshold * np.median(length[length > 0])
    scale = np.where(seen, length, np.inf)
    preference = np.where([x.startswith("m(") for x in names], _MASS_LAST, 1.0) * 0.99 ** (np.arange(len(names)) // 10)
    _, R, order = qr(rows / scale * preference, mode="economic", pivoting=True)  # pyright: ignore[reportAssignmentType]
    pivots = np.abs(np.diagonal(R))
    pivots = np.concatenate([pivots, np.zeros(len(names) - len(pivots))]) / pivots[0]
    rank = int(np.sum(pivots > threshold))
    weight = preference[order] / scale[order]
    relations = solve_triangular(R[:rank, :rank], R[:rank, rank:])
    # Columns of unit length Y_d = Y_b K: with their lengths back, base = p_b + (w_b K / w_d) p_d.
    relations = relations * weight[:rank, None] / np.where(weight[None, rank:] > 0, weight[None, rank:], np.inf)
    relations = np.where(np.abs(relations) < _COEFFICIENT * max(1.0, np.abs(relations).max(initial=0.0)), 0, relations)
    sort = np.argsort(order[:rank])
    singular = np.linalg.svd((rows / scale)[:, order[:rank]], compute_uv=False)
    return BaseParameters(
        names=tuple(names),
        independent=order[:rank][sort],
        dependent=order[rank:],
        relations=relations[sort],
        pivots=pivots,
        threshold=threshold,
        condition_number=float(singular[0] / singular[-1]),
    )
