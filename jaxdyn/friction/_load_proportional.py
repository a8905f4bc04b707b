"""Friction in proportion to the load."""

from jaxdyn.friction._abstract_friction import AbstractFriction, Values
from jaxdyn.friction._coulomb import Direction, smooth_sign, smooth_sign_secant, smooth_sign_slope


class LoadProportional(AbstractFriction):
    """Friction in proportion to the transmitted torque, `torque = ratio |load| tanh(v / friction_velocity)` (Hamon,
    Gautier & Garrec, Dynamic identification of robots with a dry friction model depending on load and velocity, IROS
    2010)."""

    ratio: Values
    """Friction per transmitted torque, dimensionless."""
    load: Values
    """The transmitted torque, N m or N; its sign does not matter."""
    friction_velocity: Direction

    @property
    def coefficients(self):
        return (self.ratio,)

    def columns(self, v: Values):
        return (abs(self.load) * smooth_sign(v, self.friction_velocity),)

    def slope(self, v: Values):
        return self.ratio * abs(self.load) * smooth_sign_slope(v, self.friction_velocity)

    def secant(self, v: Values):
        return self.ratio * abs(self.load) * smooth_sign_secant(v, self.friction_velocity)
