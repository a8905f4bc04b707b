"""The law of contact: forces from gaps and velocities, and their derivative, which is symmetric."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxdyn._errors import ModelError
from jaxdyn._types import Array, Float, leaf_of
from jaxdyn.spatial import Sym3, Vec3

_FIELDS = {
    "stiffness": ("N/m", True),
    "dissipation": ("s/m", False),
    "friction": ("1", False),
    "stiction_velocity": ("m/s", True),
    "width": ("m", False),
}
"""For each number of a law its unit, and whether it must be positive; others may be zero."""


class ContactLaw(eqx.Module):
    """The compliance and friction of a contact: a spring with Hunt and Crossley's dissipation, and regularized dry
    friction.

    With the depth `x = -gap` and the normal velocity `w` (positive where the bodies part) the normal force is
    `stiffness max(0, x) max(0, 1 - dissipation w)`, and the friction `friction` times the normal force at the start of
    the step, against the tangential velocity `u`, times `|u| / sqrt(|u|^2 + stiction_velocity^2)`. All numbers may have
    batch axes, and all are differentiable.

    **Raises** `ModelError` for numbers that are NaN, infinite or negative, and for a stiffness or a stiction velocity
    of zero, where the values are known.

    Source: Castro, Permenter & Han, An unconstrained convex formulation of compliant contact, IEEE Transactions on
    Robotics 2023; Hunt & Crossley, Coefficient of restitution interpreted as damping in vibroimpact, Journal of Applied
    Mechanics 1975.
    """

    stiffness: Float[Array, "*batch"] = eqx.field(default=1e4, converter=leaf_of("ContactLaw: `stiffness`"))
    """N/m. A body of mass `m` at rest on one contact sinks by `m g / stiffness`."""
    dissipation: Float[Array, "*batch"] = eqx.field(default=0.5, converter=leaf_of("ContactLaw: `dissipation`"))
    """s/m. A slow impact at speed `v` loses about the share `2/3 dissipation v` of that speed."""
    friction: Float[Array, "*batch"] = eqx.field(default=0.8, converter=leaf_of("ContactLaw: `friction`"))
    """The coefficient of dry friction."""
    stiction_velocity: Float[Array, "*batch"] = eqx.field(
        default=1e-3, converter=leaf_of("ContactLaw: `stiction_velocity`")
    )
    """m/s. Friction grows with the velocity up to about this one, so what sticks creeps slower than it."""
    width: Float[Array, "*batch"] = eqx.field(default=0.0, converter=leaf_of("ContactLaw: `width`"))
    """m. With a width the spring's `max(0, x)` is the smooth `(x + sqrt(x^2 + width^2)) / 2`, so that forces begin
    before touch, and gradients feel what is near."""

    def __check_init__(self) -> None:
        for name, (unit, positive) in _FIELDS.items():
            value = getattr(self, name)
            if isinstance(value, Tracer):
                continue
            x = np.asarray(value)
            if not (np.isfinite(x).all() and (x > 0 if positive else x >= 0).all()):
                needed = "positive" if positive else "zero or positive"
                raise ModelError(f"ContactLaw: {name} is {x}; finite numbers that are {needed} are needed ({unit})")


class LawRows(NamedTuple):
    """The numbers of the law of each contact, rows `[n, *batch]`."""

    stiffness: Any
    dissipation: Any
    friction: Any
    stiction_velocity: Any
    width: Any


class Push(NamedTuple):
    """The action of contacts, rows `[n, *batch]`, in world axes."""

    force: Vec3
    """The force on the shape, or on the second body of a pair, N."""
    resistance: Sym3
    """`G`, minus the derivative of the force by the velocity, N s/m: symmetric and positive semidefinite."""


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


def push(law: LawRows, gap, normal: Vec3, velocity: Vec3, lagged, dt) -> Push:
    """Return the force of a contact at the velocity at the end of the step, with friction from the normal force
    `lagged` at its start."""
    speed = normal.dot(velocity)
    sliding = velocity - normal * speed
    force, slope = normal_force(law, gap, speed, dt)
    inverse = lax.rsqrt(sliding.squared_norm() + law.stiction_velocity * law.stiction_velocity)
    friction = law.friction * lagged * inverse
    direction = sliding * inverse
    across = Sym3.isotropic(1.0) - Sym3.outer(normal, normal) - Sym3.outer(direction, direction)
    return Push(normal * force - sliding * friction, Sym3.outer(normal, normal) * slope + across * friction)


def line_of(law: LawRows, gap, normal: Vec3, velocity: Vec3, shift: Vec3, lagged, dt):
    """Return the function of a length `l` that has the power of the forces on `shift`, at the velocities `velocity + l
    shift`, and minus its derivative.

    It only needs products of the two velocities, which are computed once.
    """
    speed, change = normal.dot(velocity), normal.dot(shift)
    sliding, across = velocity - normal * speed, shift - normal * change
    square, mixed, curve = sliding.squared_norm(), sliding.dot(across), across.squared_norm()
    least = law.stiction_velocity * law.stiction_velocity

    def along(length):
        force, slope = normal_force(law, gap, speed + length * change, dt)
        inverse = lax.rsqrt(square + length * (2 * mixed + length * curve) + least)
        friction, along = law.friction * lagged * inverse, mixed + length * curve
        power = force * change - friction * along
        return power, slope * change * change + friction * (curve - (along * inverse) ** 2)

    return along
