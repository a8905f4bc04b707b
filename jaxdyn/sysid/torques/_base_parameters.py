"""Base parameters: the combinations of inertial and joint parameters that torques determine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.linalg import qr, solve_triangular

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError, naming_arguments
from jaxdyn.model import Model, require_no_loops
from jaxdyn.sysid.recordings import Recording
from jaxdyn.sysid.torques._effects import JointEffects
from jaxdyn.sysid.torques._torque_model import Samples

# Of two dependent parameters, the one with the larger preference is independent: moments before masses and positions of
# joints, links nearer to the base before the links that they carry. The factors are far from 1, so that rounding
# changes no pivot.
_LAST, _MASSES_AND_POSITIONS = 0.05, ("m(", "position ")
_COEFFICIENT = 1e-8


class BaseParameters(NamedTuple):
    """Independent combinations of parameters, `p[independent] + relations @ p[dependent]`, and how well data fix them.

    They come from a QR decomposition with column pivoting of the regressor, columns scaled to unit length (Gautier,
    Numerical calculation of the base inertial parameters of robots, Journal of Robotic Systems 1991).
    """

    names: tuple[str, ...]
    """The names of all parameters, `[P]`."""
    independent: np.ndarray
    """`[rank]` of int: one parameter of each combination, with coefficient 1."""
    dependent: np.ndarray
    """`[P - rank]` of int: parameters that count only within combinations, or not at all (`unidentifiable`)."""
    relations: np.ndarray
    """`[rank, P - rank]`: the coefficients of the dependent parameters in the combinations."""
    pivots: np.ndarray
    """`[P]`: the diagonal of the triangular factor in the order of the pivots, divided by its largest element."""
    threshold: float
    """Pivots below this count as zero."""
    condition_number: float
    """The condition number of the independent columns, scaled to unit length."""

    @property
    def rank(self) -> int:
        """The number of combinations."""
        return len(self.independent)

    @property
    def matrix(self) -> np.ndarray:
        """The matrix `[rank, P]` for which `matrix @ parameters` are the combinations."""
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
        """The smallest pivot that counts over the largest that does not; where it is large, the rank is certain."""
        if self.rank == len(self.pivots):
            return np.inf
        return float(self.pivots[self.rank - 1] / max(self.pivots[self.rank], np.finfo(float).tiny))

    def describe(self) -> list[str]:
        """The combinations in words, `[rank]`, such as `"m*cx(link3) + 0.0825 m(link4)"`."""
        out = []
        for row, independent in zip(self.relations, self.independent, strict=True):
            text = self.names[independent]
            for c, dependent in zip(row, self.dependent, strict=True):
                if c:
                    number = "" if abs(abs(c) - 1) < 1e-6 else f"{abs(c):.4g} "
                    text += f" {'-' if c < 0 else '+'} {number}{self.names[dependent]}"
            out.append(text)
        return out

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        first = f"{len(self.independent)} combinations of {len(self.names)} parameters"
        facts = {"condition number": f"{self.condition_number:.3g}", "threshold": f"{self.threshold:.2g}"}
        return first, facts | {"first": printing.names([self.names[i] for i in self.independent])}

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


@naming_arguments
def base_parameters(
    model: Model,
    recordings: Recording | Sequence[Recording] | None = None,
    *,
    effects: JointEffects | None = None,
    threshold: float | None = None,
    samples: int = 400,
    seed: int = 0,
) -> BaseParameters:
    """The combinations of parameters that torques can determine: by any motion, or by the motion of `recordings`.

    Without recordings, `samples` random states and accelerations are used, the same for the same `seed`. The rank for a
    recording is at most the rank for any motion, and less where its motion leaves something at rest.

    Pivots below `threshold` times the largest count as zero; the default is the precision of the regressor to the power
    0.6, so that everything counts that is excited at all. Look at `condition_number`, and raise the threshold to leave
    out what is excited too little. `effects` are those of a fit.

    **Raises** `DataError`, `ModelError` for recordings that do not fit the model.

    Source: Gautier 1991 (see `BaseParameters`).
    """
    if recordings is None:
        advice = "give recordings, with the names of the driven joints (Recording.joints)"
        require_no_loops(model.topology, "base_parameters without recordings", advice)
        rng = np.random.default_rng(seed)
        q = rng.uniform(-np.pi, np.pi, (samples, model.nq))
        q = np.asarray(model.integrate(jnp.asarray(q), jnp.zeros((samples, model.nv))))
        v, a = rng.normal(0, 1, (2, samples, model.nv))
        recordings = Recording(np.arange(samples) * 1.0, q, v, a, np.ones_like(v))
    data = Samples(model, recordings, effects)
    (compressed,) = data.compressed()
    rows = compressed.stacked(data.torque_scale)[:, :-2]
    return base_parameters_of(rows, data.names, threshold)


def base_parameters_of(rows: np.ndarray, names: Sequence[str], threshold: float | None = None) -> BaseParameters:
    """The base parameters of a regressor `[rows, P]`, or of a triangular factor with the same products of columns."""
    threshold = np.finfo(np.float64).eps ** 0.6 if threshold is None else threshold
    if not 0 < threshold < 1:
        raise DataError(f"the threshold is {threshold}; a number between 0 and 1 is needed")
    length = np.linalg.norm(rows, axis=0)
    if not length.any():
        raise DataError("the regressor is zero: the recording excites nothing")
    # A column far shorter than the others is rounding.
    seen = length > threshold * np.median(length[length > 0])
    scale = np.where(seen, length, np.inf)
    preference = np.where([x.startswith(_MASSES_AND_POSITIONS) for x in names], _LAST, 1.0)
    preference = preference * 0.99 ** (np.arange(len(names)) // 10)
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
