"""MuJoCo's law of contact, as a description."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, require_choice, require_last_axes
from jaxdyn._types import Array, Float, float_leaf, leaf_of

_TORSION_AND_ROLLING = 0.005, 0.0001
"""MuJoCo's default coefficients of torsional and rolling friction (manual, XML reference, geom: friction)."""


def _friction(x: Any) -> Array:
    """Return three coefficients, from these or from that of sliding alone."""
    x = float_leaf(x, "MujocoLaw: `friction`")
    if x.ndim == 0:
        return float_leaf([x, *_TORSION_AND_ROLLING])
    require_last_axes(x, (3,), "MujocoLaw: `friction`", "a number, or those of sliding, turning and rolling")
    return x


class MujocoLaw(eqx.Module):
    """MuJoCo's soft constraints as the law of the contacts of a `World`, or of its limits.

    Accelerations minimize a convex function, in which each contact has a spring and a damper (`solref`), an impedance
    (`solimp`) and a cone of friction. Its numbers and their defaults are MuJoCo's (manual, chapters Computation,
    Constraint model, and Modeling, Solver parameters); all are arrays, which gradients reach.

    **Raises** `ModelError` for an unknown number of directions or cone, and, where the values are known, for numbers
    that are not finite, a negative friction or `impratio`, and a `solref` whose numbers differ in sign; `ShapeError`
    where a shape does not fit.
    """

    friction: Float[Array, "*batch 3"] = eqx.field(converter=_friction, default=1.0)
    """The coefficients of sliding, turning (m) and rolling (m); one number is that of sliding, with MuJoCo's defaults
    of the others."""
    solref: Float[Array, "*batch 2"] = eqx.field(converter=leaf_of("MujocoLaw: `solref`"), default=(0.02, 1.0))
    """A time constant (s) and a damping ratio, or minus a stiffness and minus a damping."""
    solimp: Float[Array, "*batch 5"] = eqx.field(
        converter=leaf_of("MujocoLaw: `solimp`"), default=(0.9, 0.95, 0.001, 0.5, 2.0)
    )
    """The impedance at the surface and at the depth `width`, `width` (m), and the middle and the power of the curve
    between these."""
    solreffriction: Float[Array, "*batch 2"] = eqx.field(
        converter=leaf_of("MujocoLaw: `solreffriction`"), default=(0.0, 0.0)
    )
    """The same as `solref` for friction, with elliptic cones; zeros for `solref`."""
    margin: Float[Array, "*batch"] = eqx.field(converter=leaf_of("MujocoLaw: `margin`"), default=0.0)
    """m. Forces act where the distance is smaller."""
    impratio: Float[Array, "*batch"] = eqx.field(converter=leaf_of("MujocoLaw: `impratio`"), default=1.0)
    """The stiffness of friction over that of the normal direction; a world has that of its common law."""
    condim: int = eqx.field(static=True, default=3)
    """The directions in which a contact acts: 1, 3 (sliding), 4 (and turning) or 6 (and rolling)."""
    cone: str = eqx.field(static=True, default="pyramidal")
    """`"pyramidal"` or `"elliptic"`; a world has that of its common law."""

    def __check_init__(self) -> None:
        require_choice(self.cone, ("pyramidal", "elliptic"), "MujocoLaw: cone")
        require_choice(self.condim, (1, 3, 4, 6), "MujocoLaw: condim")
        for name, length in (("solref", 2), ("solimp", 5), ("solreffriction", 2)):
            require_last_axes(getattr(self, name), (length,), f"MujocoLaw: `{name}`", "the numbers of MuJoCo")
        for name in ("friction", "solref", "solimp", "solreffriction", "margin", "impratio"):
            x = getattr(self, name)
            if isinstance(x, Tracer):
                continue
            x = np.asarray(x)
            nonnegative = name in ("friction", "impratio")
            if not np.isfinite(x).all() or (nonnegative and (x < 0).any()):
                raise ModelError(
                    f"MujocoLaw: {name} is {x}; finite numbers are needed" + ", none negative" * nonnegative
                )
            # MuJoCo replaces these by its default.
            if name.startswith("solref") and ((x[..., 0] > 0) != (x[..., 1] > 0)).any():
                needed = "two positive numbers, or two that are not, are needed"
                raise ModelError(f"MujocoLaw: {name} is {x}; {needed}")
