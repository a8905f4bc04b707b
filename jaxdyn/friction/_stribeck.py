"""Coulomb friction that is higher near rest."""

from jaxdyn.friction._abstract_friction import AbstractFriction, Values, array_module
from jaxdyn.friction._coulomb import Direction, smooth_sign, smooth_sign_secant, smooth_sign_slope


class Stribeck(AbstractFriction):
    """Coulomb friction that falls from `static`, near rest, to `coulomb` over the Stribeck velocity:

        torque = [coulomb + (static - coulomb) exp(-(v / stribeck_velocity)^2)] tanh(v / friction_velocity)

    Source: Olsson, Astrom, Canudas de Wit, Gafvert & Lischinsky, Friction models and friction compensation, European
    Journal of Control 1998, section 2, with the exponent 2 (Gaussian; Armstrong-Helouvry, Dupont & Canudas de Wit, A
    survey of models, analysis tools and compensation methods for the control of machines with friction, Automatica
    1994, section 3.1), which is smooth at rest, and with a smooth sign. The largest torque stays a little below
    `static` unless `friction_velocity` is much smaller than `stribeck_velocity`.
    """

    coulomb: Values
    """Friction of fast motion, N m or N."""
    static: Values
    """Break-away friction, N m or N."""
    stribeck_velocity: Values
    """rad/s or m/s; positive."""
    friction_velocity: Direction

    @property
    def coefficients(self):
        return self.coulomb, self.static

    def columns(self, v: Values):
        near_rest, sign = self._near_rest(v), smooth_sign(v, self.friction_velocity)
        return (1 - near_rest) * sign, near_rest * sign

    def slope(self, v: Values):
        near_rest, sign = self._near_rest(v), smooth_sign(v, self.friction_velocity)
        fall = -2 * v / self.stribeck_velocity**2 * near_rest
        level = self.coulomb + (self.static - self.coulomb) * near_rest
        return level * smooth_sign_slope(v, self.friction_velocity) + (self.static - self.coulomb) * fall * sign

    def secant(self, v: Values):
        level = self.coulomb + (self.static - self.coulomb) * self._near_rest(v)
        return level * smooth_sign_secant(v, self.friction_velocity)

    def _near_rest(self, v: Values):
        """The factor of the Stribeck effect: 1 at rest, 0 at speed."""
        return array_module(v, self.stribeck_velocity).exp(-((v / self.stribeck_velocity) ** 2))
