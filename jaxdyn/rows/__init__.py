"""The rows of what can hold or push: how fast each moves, and what a push on it does to the robot. Points of bodies,
degrees of freedom, and matrices."""

from jaxdyn.rows._abstract_rows import AbstractRows, rates_of, sums
from jaxdyn.rows._dof_rows import DofRows, MatrixRows, unit_rows
from jaxdyn.rows._point_rows import Ends, PointRows, between, moving
