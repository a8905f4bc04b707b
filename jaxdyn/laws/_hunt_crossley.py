"""The law of Hunt and Crossley with regularized dry friction: forces from gaps and velocities, and their derivative,
which is symmetric."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from jaxdyn.laws._abstract_law import AbstractLaw, Curvature, parts_of
from jaxdyn.spatial import Sym3, Vec3


class LawRows(NamedTuple):
    """The numbers of the law of each contact, rows `[n, *batch]`."""

    stiffness: Any
    dissipation: Any
    friction: Any
    stiction_velocity: Any
    width: Any


def ramp(x, width) -> tuple[Any, Any]:
    """Return the smooth `max(0, x)` and its derivative."""
    smooth = width > 0
    root = jnp.sqrt(jnp.where(smooth, x * x + width * width, 1.0))
    value = jnp.where(smooth, 0.5 * (x + root), jnp.maximum(x, 0.0))
    slope = jnp.where(smooth, 0.5 + 0.5 * x / root, jnp.where(x > 0, 1.0, 0.0))
    return value, slope


def normal_force(law: LawRows, gap, speed, dt) -> tuple[Any, Any]:
    """Return the normal force at the end of a step in which the bodies part with `speed`, and minus its derivative by
    that speed."""
    depth, slope = ramp(-gap - dt * speed, law.width)
    damping = 1 - law.dissipation * speed
    damping, damped = jnp.maximum(damping, 0.0), jnp.where(damping > 0, law.dissipation, 0.0)
    return law.stiffness * depth * damping, law.stiffness * (dt * slope * damping + damped * depth)


class HuntCrossley(AbstractLaw):
    """Contacts at the velocities at the end of a step, along the axes of the world: their residuals."""

    numbers: LawRows
    gap: Any
    """The distances at the start of the step."""
    normal: Vec3
    lagged: Any
    """The normal forces at the start of the step, from which friction is: forces of friction then have a potential."""
    dt: Any
    """The length of the step."""

    def force(self, x):
        return jnp.concatenate(jnp.broadcast_arrays(*_components(self.push(Vec3(*parts_of(x, 3))))))

    def push(self, velocity: Vec3) -> Vec3:
        """Return the force on the shape, or on the second body of a pair, N."""
        speed = self.normal.dot(velocity)
        sliding = velocity - self.normal * speed
        force, _ = normal_force(self.numbers, self.gap, speed, self.dt)
        return self.normal * force - sliding * (self.numbers.friction * self.lagged * self._inverse(sliding))

    def _inverse(self, sliding: Vec3):
        least = self.numbers.stiction_velocity * self.numbers.stiction_velocity
        return lax.rsqrt(sliding.squared_norm() + least)

    def curvature(self, x) -> Curvature:
        velocity, normal = Vec3(*parts_of(x, 3)), self.normal
        speed = normal.dot(velocity)
        sliding = velocity - normal * speed
        _, slope = normal_force(self.numbers, self.gap, speed, self.dt)
        inverse = self._inverse(sliding)
        friction, direction = self.numbers.friction * self.lagged * inverse, sliding * inverse
        across = Sym3.isotropic(1.0) - Sym3.outer(normal, normal) - Sym3.outer(direction, direction)
        G = Sym3.outer(normal, normal) * slope + across * friction
        return [[G.xx, G.xy, G.xz], [G.xy, G.yy, G.yz], [G.xz, G.yz, G.zz]]

    def along(self, x, shift) -> Callable[[Any], tuple[Any, Any, Any]]:
        # It only needs products of the two velocities, which are computed once.
        velocity, shift = (Vec3(*parts_of(a, 3)) for a in (x, shift))
        law, normal = self.numbers, self.normal
        speed, change = normal.dot(velocity), normal.dot(shift)
        sliding, across = velocity - normal * speed, shift - normal * change
        square, mixed, curve = sliding.squared_norm(), sliding.dot(across), across.squared_norm()
        least = law.stiction_velocity * law.stiction_velocity

        def at(length):
            force, slope = normal_force(law, self.gap, speed + length * change, self.dt)
            inverse = lax.rsqrt(square + length * (2 * mixed + length * curve) + least)
            friction, along = law.friction * self.lagged * inverse, mixed + length * curve
            power = force * change - friction * along
            return power, slope * change * change + friction * (curve - (along * inverse) ** 2), jnp.abs(power)

        return at


def _components(x: Vec3) -> tuple[Any, Any, Any]:
    return x.x, x.y, x.z
