"""Coulomb friction, with the exact and with a smooth sign, and the smooth sign that other laws share."""

from jaxdyn.friction._abstract_friction import AbstractFriction, Values, array_module


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


class Coulomb(AbstractFriction):
    """Coulomb friction with a smooth sign, `torque = friction tanh(v / friction_velocity)`."""

    friction: Values
    """N m or N."""
    friction_velocity: Values
    """The velocity over which the torque changes its sign, rad/s or m/s; positive."""

    @property
    def coefficients(self):
        return (self.friction,)

    def columns(self, v: Values):
        return (smooth_sign(v, self.friction_velocity),)

    def slope(self, v: Values):
        return self.friction * smooth_sign_slope(v, self.friction_velocity)

    def secant(self, v: Values):
        return self.friction * smooth_sign_secant(v, self.friction_velocity)


def smooth_sign(v: Values, width: Values):
    """`tanh(v / width)`."""
    return array_module(v, width).tanh(v / width)


def smooth_sign_slope(v: Values, width: Values):
    """The derivative of `smooth_sign` with respect to `v`."""
    return (1 - smooth_sign(v, width) ** 2) / width


def smooth_sign_secant(v: Values, width: Values):
    """`smooth_sign(v, width) / v`, which is `1 / width` at `v = 0`."""
    xp = array_module(v, width)
    x = v / width
    # Near zero tanh(x) / x is 1 - x^2 / 3 to double precision. JAX differentiates both branches, so neither may divide
    # by zero.
    small = abs(x) < 1e-4
    divisor = xp.where(small, 1, x)
    return xp.where(small, 1 - x * x / 3, xp.tanh(divisor) / divisor) / width
