"""Coulomb friction with the exact sign."""

from jaxdyn.friction._law import AbstractFriction, Values, array_module


class ExactCoulomb(AbstractFriction):
    """Coulomb friction with the exact sign, `torque = friction sign(v)`, which is zero at rest.

    The torque jumps at `v = 0`. `slope` is zero everywhere, and `secant` is zero at rest and unbounded near it.
    """

    friction: Values
    """N m or N."""

    @property
    def coefficients(self):
        return (self.friction,)

    def columns(self, v: Values):
        return (array_module(v).sign(v),)

    def slope(self, v: Values):
        return 0 * self.friction + array_module(v).zeros_like(v)

    def secant(self, v: Values):
        xp = array_module(v)
        speed = abs(v)
        return self.friction * xp.where(speed > 0, 1 / xp.where(speed > 0, speed, 1), 0)
