"""Friction that changes with the position of a joint, or with time."""

from jaxdyn.friction._abstract_friction import AbstractFriction, Values, array_module
from jaxdyn.friction._coulomb import Direction, smooth_sign, smooth_sign_secant, smooth_sign_slope
from jaxdyn.friction._joint_friction import JointFriction


class PositionDependent(AbstractFriction):
    """A harmonic of friction along the position, `torque = [cosine cos(n q) + sine sin(n q)] tanh(v /
    friction_velocity)`, as of a gear whose wheels are eccentric (Armstrong, Friction: experimental determination,
    modeling and compensation, ICRA 1988)."""

    cosine: Values
    """N m or N."""
    sine: Values
    """N m or N."""
    position: Values
    """`q`, rad or m."""
    harmonic: Values
    """`n`, rad/rad or rad/m: 1 for one period in a turn of the joint, the ratio of the gear for one in a turn of the
    motor."""
    friction_velocity: Direction

    @property
    def coefficients(self):
        return self.cosine, self.sine

    def columns(self, v: Values):
        cosine, sine = self._waves()
        s = smooth_sign(v, self.friction_velocity)
        return cosine * s, sine * s

    def slope(self, v: Values):
        return self._level() * smooth_sign_slope(v, self.friction_velocity)

    def secant(self, v: Values):
        return self._level() * smooth_sign_secant(v, self.friction_velocity)

    def _waves(self):
        xp, angle = array_module(self.position, self.harmonic), self.harmonic * self.position
        return xp.cos(angle), xp.sin(angle)

    def _level(self):
        cosine, sine = self._waves()
        return self.cosine * cosine + self.sine * sine


class Changing(AbstractFriction):
    """Friction in proportion to a signal, `torque = change [damping v + friction tanh(v / friction_velocity)]`: the
    signal is `exp(-t / T)` for joints that warm up, or a temperature about its reference."""

    damping: Values
    """N m s/rad or N s/m for each unit of the signal."""
    friction: Values
    """N m or N for each unit of the signal."""
    change: Values
    """The signal."""
    friction_velocity: Direction

    @property
    def coefficients(self):
        return self.damping, self.friction

    def columns(self, v: Values):
        return tuple(self.change * x for x in self._law().columns(v))

    def slope(self, v: Values):
        return self.change * self._law().slope(v)

    def secant(self, v: Values):
        return self.change * self._law().secant(v)

    def _law(self):
        return JointFriction(self.damping, self.friction, self.friction_velocity)
