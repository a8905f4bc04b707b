"""The choice of postures that determine a robot's geometry best."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError, naming_arguments, require_positive_integer
from jaxdyn._types import ArrayLike
from jaxdyn._waits import saying
from jaxdyn.model import Model
from jaxdyn.sysid.calibration._calibration import FIRST_NOISE, checked_measurements, chosen_numbers
from jaxdyn.sysid.calibration._geometry_fit import GeometryProblem
from jaxdyn.sysid.calibration._geometry_measurements import AbstractGeometryMeasurement
from jaxdyn.sysid.parameters import Parametrization, blocks

# Random candidates where none are given, and rounds of exchanges; few rounds are needed (Fedorov 1972).
_CANDIDATES, _SWEEPS = 500, 10

type Measure = Callable[[Model, np.ndarray], AbstractGeometryMeasurement | Sequence[AbstractGeometryMeasurement]]


class PostureChoice(NamedTuple):
    """Postures that determine a robot's geometry, each with what it adds."""

    q: np.ndarray
    """`[count, nq]`: the configurations, those that add most first."""
    rows: np.ndarray
    """`[count]`: their rows among the candidates."""
    shares: np.ndarray
    """`[count]`: what each adds to half of the logarithm of the determinant of the information, as long as all others
    are measured: the logarithm of the factor by which it shrinks the volume of the errors."""
    log_det: float
    """Half of the logarithm of the determinant of the information, of expected errors and measurements, less that of
    expected errors alone: the logarithm of the factor by which the measurements shrink the volume of the errors."""
    random_log_det: float
    """The same for as many random candidates, the best of ten draws."""

    def printed(self) -> printing.Facts:
        """The facts that `print` shows."""
        facts = {"rows": printing.numbers(self.rows), "shares": printing.numbers(self.shares)}
        gain = self.log_det - self.random_log_det
        return f"{len(self.q)} postures; volume of the errors e^{-gain:.3g} of that of random ones", facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


@naming_arguments
@saying("choosing postures")
def select_postures(
    model: Model,
    count: int,
    measure: Measure,
    candidates: ArrayLike | None = None,
    *,
    free: blocks.AbstractChoice | Sequence[blocks.AbstractChoice] | None = None,
    seed: int = 0,
) -> PostureChoice:
    """Return the postures among candidates whose measurement determines the geometry best.

    Maximizes the determinant of the information (D-optimal: the smallest ellipsoid of confidence; Borm & Menq,
    Determination of optimal measurement configurations for robot calibration, IJRR 1991) by adding the best candidate
    and then exchanging one at a time (Fedorov 1972). Expected errors of the numbers count as information, so that
    numbers without effect do not matter. Collisions are not considered: give candidates without.

    **Arguments**

    - `measure`: called as `measure(model, q)` with configurations `[m, nq]`; returns the measurements of that model in
      them, such as `lambda model, q: MeasuredPoses("tool0", frame_pose(model, q, "tool0"))`. Where they state no noise,
      it is 1e-3 m and 1e-3 rad.
    - `candidates` `[m, nq]`: by default 500 random configurations between the limits (`random_configuration`).
    - `free`: as in `calibrate`.

    **Raises** `DataError` for a number of postures above that of the candidates, and as `calibrate` does.
    """
    require_positive_integer(count, "count", error=DataError)
    if candidates is None:
        candidates = model.random_configuration(jax.random.key(seed), (_CANDIDATES,))
    q, measurements = checked_measurements(model, candidates, measure(model, np.asarray(candidates)))
    if count > len(q):
        raise DataError(f"{count} postures are wanted, and there are {len(q)} candidates")
    p = Parametrization(model, *chosen_numbers(model, measurements, free))
    problem = GeometryProblem(model, blocks.JoinedBlocks.of(p.blocks), measurements, q)
    _, J = problem.linearized(np.zeros(len(problem.names)))
    noise = np.array([FIRST_NOISE if x.noise is None else x.noise for x in problem.rows.parts])
    rows = _by_posture(J / noise[problem.rows.part][:, None], problem.rows.posture, len(q))
    chosen = _exchange(rows, count)
    rng = np.random.default_rng(seed)
    drawn = max(_log_det(rows, rng.choice(len(q), count, replace=False)) for _ in range(10))
    best = _log_det(rows, np.array(chosen))
    shares = np.array([best - _log_det(rows, np.setdiff1d(chosen, [k])) for k in chosen])
    order = np.argsort(-shares, kind="stable")
    rows_of = np.array(chosen)[order]
    return PostureChoice(q[rows_of], rows_of, shares[order], best, drawn)


def _by_posture(J: np.ndarray, posture: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of derivatives `[R, P]` by posture, `[count, d, P]`, filled up with zeros."""
    numbers = np.bincount(posture, minlength=count)
    out = np.zeros((count, numbers.max(), J.shape[1]))
    order = np.argsort(posture, kind="stable")
    within = np.arange(len(order)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    out[posture[order], within] = J[order]
    return out


def _log_det(rows: np.ndarray, chosen: np.ndarray) -> float:
    return 0.5 * float(np.linalg.slogdet(_information(rows, chosen))[1])


def _information(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the information `[P, P]`: one for each number's expected error, and that of the postures."""
    J = rows[chosen].reshape(-1, rows.shape[-1])
    return np.eye(rows.shape[-1]) + J.T @ J


def _exchange(rows: np.ndarray, count: int) -> list[int]:
    """Return the postures with the largest determinant that adding and exchanging one at a time finds."""
    chosen: list[int] = []
    for sweep in range(_SWEEPS + 1):
        before = list(chosen)
        for k in range(count):
            others = chosen[:k] + chosen[k + 1 :] if sweep else chosen
            covariance = np.linalg.inv(_information(rows, np.array(others, int)))
            # det(A + J^T J) = det(A) det(1 + J A^-1 J^T)
            gain = np.eye(rows.shape[1]) + np.einsum("mip,pr,mjr->mij", rows, covariance, rows, optimize=True)
            logarithms = np.linalg.slogdet(gain)[1]
            logarithms[others] = -np.inf
            best = int(np.argmax(logarithms))
            if not sweep:
                chosen.append(best)
            elif logarithms[best] > logarithms[chosen[k]] + 1e-9:
                chosen[k] = best
        if chosen == before:
            break
    return chosen
