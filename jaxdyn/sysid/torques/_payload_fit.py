"""The result of the identification of a payload."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._status import Status
from jaxdyn.model import Model
from jaxdyn.sysid.torques._intervals import Intervals


class PayloadFit(NamedTuple):
    """An identified payload, in the axes of a frame."""

    frame: str
    parameters: np.ndarray
    """`[10]`: its inertial parameters about the frame's origin: kg, kg m, kg m^2. Physical."""
    mass: float
    """kg."""
    center_of_mass: np.ndarray
    """`[3]`, m, in the frame."""
    inertia: np.ndarray
    """`[3, 3]`, kg m^2, about the center of mass, in the axes of the frame."""
    intervals: Intervals
    """Intervals of the mass, the center of mass and the inertia about it (`mass, cx, cy, cz, Ixx, ...`). Those of the
    mass and of `Ixx`, `Iyy`, `Izz` are symmetric in the logarithm, so that they are positive."""
    model: Model
    """The given model with the payload at the frame (as by `with_payload`, without a name)."""
    unconstrained: np.ndarray
    """`[10]`: the parameters by linear least squares, of least norm, physical or not."""
    rms_error: tuple[np.ndarray, np.ndarray]
    """`[nv]` each: root mean square of the residual torques without and with the payload, N m or N."""
    rms_unexplained: np.ndarray
    """`[nv]`: the same with the payload, if the model ignored it."""
    correlation: np.ndarray
    """`[nv]`: the number of samples with similar residuals, neighbors or a period of the motion apart; they count as
    one where joints are weighted."""
    status: Status

    @property
    def converged(self) -> bool:
        """Whether `status` is `Status.CONVERGED`."""
        return self.status == Status.CONVERGED

    def printed(self) -> printing.Facts:
        """The facts that `print` shows: the mass, the center of mass and the inertia with their intervals."""
        found, level = printing.intervals(self.intervals, 10), printing.percent(self.intervals.level)
        ellipsis = {name: found[name] for name in ("Ixx", "Iyy", "Izz")}
        facts = {"mass, kg": found["mass"], **{f"center {x[1]}, m": found[x] for x in ("cx", "cy", "cz")}}
        facts |= {f"{name}, kg m^2": x for name, x in ellipsis.items()}
        before, after = self.rms_error
        facts["residual"] = f"{printing.numbers(before)} without, {printing.numbers(after)} with it, N m or N"
        facts["gains"] = "taken as right: a drive gain wrong by a part makes masses and inertias wrong by that part"
        return f"{printing.status(self.status)}; at {self.frame!r}, intervals of {level}", facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table
