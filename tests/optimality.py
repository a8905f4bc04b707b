"""The judge of solutions that experiments and tests share."""

from experiments._optimal_control._optimality import Optimality, stationarity  # noqa: F401
