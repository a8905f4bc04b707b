"""The part of friction that is different in the two directions of motion."""

from jaxdyn.friction._abstract_friction import AbstractFriction, Values
from jaxdyn.friction._coulomb import Direction, smooth_sign, smooth_sign_secant, smooth_sign_slope


class Asymmetric(AbstractFriction):
    """The part of friction that is different in the two directions, `torque = damping v s + friction s^2` with `s =
    tanh(v / friction_velocity)`.

    Beside viscous friction `d` and Coulomb friction `F` a joint has `d + damping` and `F + friction` in the positive
    direction, and `d - damping` and `F - friction` in the negative one (Kermani, Patel & Moallem, Friction
    identification and compensation in robotic manipulators, IEEE TIM 2007).
    """

    damping: Values
    """Half of the difference of viscous friction, N m s/rad or N s/m."""
    friction: Values
    """Half of the difference of Coulomb friction, N m or N."""
    friction_velocity: Direction

    @property
    def coefficients(self):
        return self.damping, self.friction

    def columns(self, v: Values):
        s = smooth_sign(v, self.friction_velocity)
        return v * s, s * s

    def slope(self, v: Values):
        s, slope = smooth_sign(v, self.friction_velocity), smooth_sign_slope(v, self.friction_velocity)
        return self.damping * (s + v * slope) + 2 * self.friction * s * slope

    def secant(self, v: Values):
        s = smooth_sign(v, self.friction_velocity)
        return self.damping * s + self.friction * s * smooth_sign_secant(v, self.friction_velocity)
