"""`Primitive`, the base of the joints of which all others are chains."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

type Components = Sequence[Any]
"""The coordinates, or the velocities, of all joints of one class: an array `[n, *batch]` for each component."""

type Matrix = Sequence[Components]
"""Rows of a matrix `[nv, nv]` for all joints of one class; an element is an array `[n, *batch]` or a number."""


class ChartJacobians(NamedTuple):
    """The derivatives of a chart's point `q` and of the `rate` of its coordinates `x` under a velocity `v`. Changes of
    configurations are displacements; `rate_by_x` is at fixed `q`."""

    q_by_q0: Any
    q_by_x: Any
    rate_by_q: Any
    rate_by_x: Any
    rate_by_v: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Primitive(abc.ABC):
    """A joint with one kind of motion. Its fields are static facts; each method computes for many joints at once.
    Joints of one class share their methods: rotations, translations and screws are one computation. The methods here
    but `pose` are those of coordinates that are numbers, whose rates are the velocities."""

    name: str
    units: tuple[str, ...]
    """The unit of each coordinate in `q`: `rad`, `m`, or `1` for elements of a quaternion."""
    rotates: tuple[bool, ...]
    """Whether each degree of freedom turns the body."""
    translates: tuple[bool, ...]
    """Whether each degree of freedom shifts the body by its coordinate."""
    has_axis: bool = False
    """Whether the joint has an axis in `Model.joint_axis`. Without one, its directions are x, y and z."""
    has_pitch: bool = False
    """Whether the joint also shifts the body by its angle times a pitch in `Model.joint_pitch`."""
    position: int | None = None
    """The index of the first coordinate of its position, if it has one."""
    quaternion: int | None = None
    """The index of the first coordinate of its quaternion, if it has one."""

    @property
    def nq(self) -> int:
        """The length of `q`."""
        return len(self.units)

    @property
    def nv(self) -> int:
        """The length of `v`."""
        return len(self.rotates)

    @property
    def neutral(self) -> np.ndarray:
        """`[nq]`: the coordinates without displacement."""
        return (np.arange(self.nq) == self.quaternion).astype(float)

    @property
    def reach(self) -> np.ndarray:
        """`[nq]`: how far random coordinates without limits are from zero: half a turn, or one meter."""
        return np.array([np.pi if unit == "rad" else 1.0 for unit in self.units])

    @abc.abstractmethod
    def pose(self, axis: Any, pitch: Any, q: Any) -> Any:
        """Return the poses `[*batch, 7]` at coordinates `q` `[*batch, nq]`, in NumPy or JAX. `axis` is `[*batch, 3]`
        and `pitch` `[*batch]`; joints without them ignore them."""

    def integrate(self, q: Components, dv: Components) -> Components:
        """Return `q` displaced by the body twist `dv` over unit time."""
        return [x + dx for x, dx in zip(q, dv, strict=True)]

    def difference(self, q0: Components, q1: Components) -> Components:
        """Return the `dv`, with a rotation of at most half a turn, for which `integrate(q0, dv)` is `q1`."""
        return [b - a for a, b in zip(q0, q1, strict=True)]

    def integrate_jacobians(self, q: Components, dv: Components) -> tuple[Matrix, Matrix]:
        """Return the derivatives of the displacement of `integrate(q, dv)` by that of `q` and by `dv`."""
        return self._identity, self._identity

    def difference_jacobians(self, q0: Components, q1: Components) -> tuple[Matrix, Matrix]:
        """Return the derivatives of `difference(q0, q1)` by the displacements of `q0` and of `q1`."""
        return (-np.eye(self.nv)).tolist(), self._identity

    @property
    def _identity(self) -> Matrix:
        return np.eye(self.nv).tolist()

    def chart_point(self, q0: Components, x: Components) -> Components:
        """Return the coordinates of the point `x` in the chart around `q0`."""
        return self.integrate(q0, x)

    def chart_rate(self, q: Components, x: Components, v: Components) -> Components:
        """Return the rate of the chart coordinates `x` of `q` under the velocity `v`."""
        return v

    def chart_jacobians(self, q0: Components, x: Components, v: Components) -> ChartJacobians:
        """Return the derivatives of `chart_point(q0, x)` and of the `chart_rate` there, each a `Matrix`."""
        zero = np.zeros((self.nv, self.nv)).tolist()
        return ChartJacobians(self._identity, self._identity, zero, zero, self._identity)

    def coordinate_rate(self, q: Components, v: Components) -> Components:
        """Return the time derivative of the coordinates `q` under the velocity `v`."""
        return v

    def coordinate_cotangent(self, q: Components, g: Components) -> Components:
        """Return the derivative by the coordinates `q` from the derivative `g` by the tangent space."""
        return g

    def deflection(self, q0: Components, q: Components) -> Components:
        """Return by how much a spring at rest at `q0` is deflected at `q`, for each degree of freedom."""
        return self.difference(q0, q)

    def spring_torque(self, stiffness: Components, q0: Components, q: Components) -> Components:
        """Return the gradient, by the motion of `v`, of half the sum of `stiffness deflection^2`."""
        return [k * x for k, x in zip(stiffness, self.deflection(q0, q), strict=True)]
