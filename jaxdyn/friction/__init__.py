"""Laws of joint friction, each a class with the same interface; nothing about robots."""

from jaxdyn.friction._coulomb import Coulomb
from jaxdyn.friction._exact_coulomb import ExactCoulomb
from jaxdyn.friction._joint_friction import FrictionSum, JointFriction
from jaxdyn.friction._law import AbstractFriction
from jaxdyn.friction._load_proportional import LoadProportional
from jaxdyn.friction._stribeck import Stribeck
from jaxdyn.friction._viscous import Viscous

__all__ = [
    "AbstractFriction",
    "Coulomb",
    "ExactCoulomb",
    "FrictionSum",
    "JointFriction",
    "LoadProportional",
    "Stribeck",
    "Viscous",
]
