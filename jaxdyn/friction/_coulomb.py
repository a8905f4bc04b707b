"""Coulomb friction, with the exact and with a smooth sign, and the direction of friction that other laws share."""

import equinox as eqx

from jaxdyn.friction._abstract_friction import AbstractFriction, Values, array_module


class GivenDirection(eqx.Module):
    """The direction of friction where the velocity alone does not tell it, as before sliding (`Dahl`). Laws take it in
    the place of `friction_velocity`."""

    direction: Values
    """Between -1 and 1, in the shape of a torque."""


type Direction = Values | GivenDirection
"""The velocity over which friction changes its sign, rad/s or m/s, positive; or the direction itself."""


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
    friction_velocity: Direction

    @property
    def coefficients(self):
        return (self.friction,)

    def columns(self, v: Values):
        return (smooth_sign(v, self.friction_velocity),)

    def slope(self, v: Values):
        return self.friction * smooth_sign_slope(v, self.friction_velocity)

    def secant(self, v: Values):
        return self.friction * smooth_sign_secant(v, self.friction_velocity)


def smooth_sign(v: Values, width: Direction):
    """`tanh(v / width)`, or the direction that is given."""
    if isinstance(width, GivenDirection):
        return width.direction
    return array_module(v, width).tanh(v / width)


def smooth_sign_slope(v: Values, width: Direction):
    """The derivative of `smooth_sign` with respect to `v`."""
    if isinstance(width, GivenDirection):
        return 0 * width.direction
    return (1 - smooth_sign(v, width) ** 2) / width


def smooth_sign_secant(v: Values, width: Direction):
    """`smooth_sign(v, width) / v`, which is `1 / width` at `v = 0`; there 0 for a direction that is given."""
    if isinstance(width, GivenDirection):
        xp = array_module(v, width.direction)
        return width.direction * xp.where(v == 0, 0, 1 / xp.where(v == 0, 1, v))
    xp = array_module(v, width)
    x = v / width
    # Near zero tanh(x) / x is 1 - x^2 / 3 to double precision. JAX differentiates both branches, so neither may divide
    # by zero.
    small = abs(x) < 1e-4
    divisor = xp.where(small, 1, x)
    return xp.where(small, 1 - x * x / 3, xp.tanh(divisor) / divisor) / width
