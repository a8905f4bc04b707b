"""The numbers of the law of contact."""

from __future__ import annotations

import equinox as eqx
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError
from jaxdyn._types import Array, Float, leaf_of

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
