"""`Leaf`: the facts about one array of a model, declared together with its field."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import equinox as eqx
import numpy as np

from jaxdyn.joints import Topology

type Rows = Literal["joint", "axis", "pitch", "q", "v", "frame", "link", "mimic"]
"""An array of a model has a row for each joint, axis of `Topology.axis_dofs`, pitch of `Topology.helical_dofs`,
coordinate, degree of freedom, frame, merged link, or joint that mimics another."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The facts about one array of a model that functions of all arrays need.

    If lengths grow by the factor `l` and masses by `m` (`jaxdyn.scaled`), an entry grows by `m^mass l^length`; also by
    `l^coordinate` if its coordinate is a length, and by `l^leader` if the coordinate that its joint follows is one.
    """

    rows: Rows | None = None
    columns: int | None = None
    """The length of a row; None for one number."""
    unit: str = "1"
    mass: int = 0
    length: int | tuple[int, ...] = 0
    """One power, or one for each column."""
    coordinate: int = 0
    leader: int = 0
    default: float = 0.0
    """The value without effect; zero stands for the neutral configuration."""
    sign: Literal["any", "nonnegative", "positive"] = "any"
    dynamics: bool = False
    """Whether the motion, or a quantity computed from it, depends on the array."""
    identified: bool = False
    """Whether system identification estimates the array, and files of fits contain it."""
    column: str = ""
    """The title of the array's column in a model's summary, if it has one."""
    beside: str = ""
    """The name of the array next to whose column this one stands."""

    @property
    def axes(self) -> int:
        """The number of axes without batch axes."""
        return (self.rows is not None) + (self.columns is not None)

    @property
    def finite(self) -> bool:
        """Whether entries must be finite; limits may be infinite."""
        return bool(np.isfinite(self.default))

    def shape(self, topology: Topology) -> tuple[int, ...]:
        """Return the shape without batch axes."""
        counts = {
            "joint": topology.nb,
            "axis": len(topology.axis_dofs),
            "pitch": len(topology.helical_dofs),
            "q": topology.nq,
            "v": topology.nv,
            "frame": len(topology.frame_names),
            "link": len(topology.attached_links),
            "mimic": len(topology.mimics),
        }
        return tuple(n for n in (counts[self.rows] if self.rows else None, self.columns) if n is not None)


def leaf(*, optional: bool = False, **facts: Any) -> Any:
    """Declare a field of a model that holds an array; `facts` are the fields of `Leaf`."""
    metadata = {"leaf": Leaf(**facts)}
    return eqx.field(default=None, metadata=metadata) if optional else eqx.field(metadata=metadata)
