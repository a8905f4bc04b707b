"""Sums of friction laws, and the friction that a model has in its joints."""

from jaxdyn.friction._abstract_friction import AbstractFriction, Values
from jaxdyn.friction._coulomb import Coulomb, Direction
from jaxdyn.friction._viscous import Viscous


class FrictionSum(AbstractFriction):
    """Several friction laws that act at the same time. The coefficients and columns of the laws follow each other."""

    laws: tuple[AbstractFriction, ...]

    def __init__(self, *laws: AbstractFriction):
        self.laws = laws

    @property
    def coefficients(self):
        return tuple(c for law in self.laws for c in law.coefficients)

    def columns(self, v: Values):
        return tuple(x for law in self.laws for x in law.columns(v))

    def slope(self, v: Values):
        return sum(law.slope(v) for law in self.laws)

    def secant(self, v: Values):
        return sum(law.secant(v) for law in self.laws)


class JointFriction(FrictionSum):
    """The friction of a model's joints, `torque = damping v + friction tanh(v / friction_velocity)`.

    The arguments are the model's leaves of the same names. The coefficients are `(damping, friction)`.
    """

    def __init__(self, damping: Values, friction: Values, friction_velocity: Direction):
        super().__init__(Viscous(damping), Coulomb(friction, friction_velocity))
