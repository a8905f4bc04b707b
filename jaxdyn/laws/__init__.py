"""The laws of what holds or pushes, one class each: forces from residuals, and the curvatures of their potentials.

A law knows nothing of bodies, of the rows that it acts on, or of how equations are solved.
"""

from jaxdyn.laws._abstract_law import AbstractLaw, Curvature, times
from jaxdyn.laws._constant import ConstantForce
from jaxdyn.laws._hunt_crossley import HuntCrossley, LawRows, normal_force
from jaxdyn.laws._joints import JointDryFriction, Stop
from jaxdyn.laws._mujoco import EllipticCone, PyramidalCone, SoftEquality, SoftFriction, SoftInequality
