"""Laws of joint friction, each a class with the same interface; nothing about robots."""

from jaxdyn.friction._abstract_friction import AbstractFriction
from jaxdyn.friction._asymmetric import Asymmetric
from jaxdyn.friction._coulomb import Coulomb, Direction, ExactCoulomb, GivenDirection, smooth_sign
from jaxdyn.friction._dahl import Dahl
from jaxdyn.friction._joint_friction import FrictionSum, JointFriction
from jaxdyn.friction._load_proportional import LoadProportional
from jaxdyn.friction._modulated import Changing, PositionDependent
from jaxdyn.friction._stribeck import Stribeck
from jaxdyn.friction._viscous import Viscous
