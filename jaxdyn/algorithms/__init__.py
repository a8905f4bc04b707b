"""The algorithms of rigid-body dynamics, one a file."""

from jaxdyn.algorithms._aba import aba
from jaxdyn.algorithms._crba import crba
from jaxdyn.algorithms._rnea import generalized_gravity, nonlinear_effects, rnea

__all__ = ["aba", "crba", "generalized_gravity", "nonlinear_effects", "rnea"]
