"""Splines of controls."""

from typing import Literal

import numpy as np

from jaxdyn._errors import ModelError

type Spline = Literal["zero", "linear", "cubic"]

SPLINE_DEGREES = {"zero": 0, "linear": 1, "cubic": 3}


def spline_matrix(horizon: int, knots: int | None, spline: Spline) -> np.ndarray:
    """The matrix `[horizon, knots]` from values at knots to the controls of all stages; the identity without knots.

    Knots are spread evenly from the first stage to the last. `"cubic"` is the natural spline.
    """
    if knots is None:
        return np.eye(horizon)
    if knots > horizon:
        raise ModelError(f"{knots} knots are more than the horizon's {horizon} stages")
    t, eye = np.linspace(0, knots - 1, horizon), np.eye(knots)
    if spline == "zero":
        return eye[np.minimum(np.arange(horizon) * knots // horizon, knots - 1)]
    low = np.minimum(t.astype(int), knots - 2)
    b = (t - low)[:, None]
    a = 1 - b
    linear = a * eye[low] + b * eye[low + 1]
    if spline == "linear":
        return linear
    # Second derivatives at the knots: M_(i-1) + 4 M_i + M_(i+1) = 6 (y_(i-1) - 2 y_i + y_(i+1)), zero at both ends.
    second = np.zeros((knots, knots))
    inner = 4 * np.eye(knots - 2) + np.eye(knots - 2, k=1) + np.eye(knots - 2, k=-1)
    second[1:-1] = np.linalg.solve(inner, 6 * (eye[:-2] - 2 * eye[1:-1] + eye[2:]))
    return linear + ((a**3 - a) * second[low] + (b**3 - b) * second[low + 1]) / 6
