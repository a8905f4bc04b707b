"""`Leaf`, the description of one array of a model, which is declared together with the array's field."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import equinox as eqx
import numpy as np

from jaxdyn.joints import Topology

type Rows = Literal["joint", "axis", "pitch", "q", "v", "frame", "link", "mimic"]
"""The things that an array of a model has one row for: joints, the axes of `Topology.axis_dofs`, the pitches of
`Topology.helical_dofs`, coordinates, degrees of freedom, frames, merged links, or joints that mimic others."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """The facts about one array of a model that functions of all arrays need.

    With all lengths times `l` and all masses times `m` (`jaxdyn.scaled`), an entry is multiplied by `m^mass l^length`;
    where the coordinate that it belongs to is a length, also by `l^coordinate`, and where the coordinate that a joint
    follows is a length, by `l^leader`.
    """

    rows: Rows | None = None
    columns: int | None = None
    """The length of a row; None if it is one number."""
    unit: str = "1"
    mass: int = 0
    length: int | tuple[int, ...] = 0
    """One power, or one for each column."""
    coordinate: int = 0
    leader: int = 0
    default: float = 0.0
    """The value at which an entry has no effect. For coordinates, zero stands for the neutral configuration."""
    sign: Literal["any", "nonnegative", "positive"] = "any"
    dynamics: bool = False
    """Whether the motion, or what is computed from it, depends on the array."""
    identified: bool = False
    """Whether system identification estimates the array, so that files of fits have it."""
    column: str = ""
    """The title of the array's column in the summary of a model, if it has one."""
    beside: str = ""
    """The name of the array that the column explains, and next to which it stands."""

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
        rows = () if self.rows is None else (counts[self.rows],)
        return rows if self.columns is None else (*rows, self.columns)


def leaf(*, optional: bool = False, **facts: Any) -> Any:
    """Declare a field of a model that holds an array; `facts` are the fields of `Leaf`."""
    metadata = {"leaf": Leaf(**facts)}
    return eqx.field(default=None, metadata=metadata) if optional else eqx.field(metadata=metadata)
