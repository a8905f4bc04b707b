"""Viscous friction."""

from jaxdyn.friction._abstract_friction import AbstractFriction, Values, array_module


class Viscous(AbstractFriction):
    """Viscous friction, `torque = damping v`."""

    damping: Values
    """N m s/rad or N s/m."""

    @property
    def coefficients(self):
        return (self.damping,)

    def columns(self, v: Values):
        return (v,)

    def slope(self, v: Values):
        return self.damping + array_module(v).zeros_like(v)

    def secant(self, v: Values):
        return self.slope(v)
