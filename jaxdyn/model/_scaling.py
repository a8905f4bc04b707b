"""`scaled`: the same robot, larger or heavier."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxdyn._errors import require_positive
from jaxdyn._types import ArrayLike, Float
from jaxdyn.joints import JOINT_TYPES
from jaxdyn.model._edit_arguments import as_array, in_numpy, require_batches
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._row_tables import library, numpy_unless_tracing


def scaled[M: ModelFields](
    model: M, *, length: Float[ArrayLike, "*batch"] = 1.0, mass: Float[ArrayLike, "*batch"] = 1.0
) -> M:
    """The model with every length times `length` and every mass times `mass`; time stays.

    Every leaf but gravity is scaled by its unit in m, kg and s: positions and the pitch of screws by `length`; first
    moments by `mass length`; rotational inertias by `mass length^2`; limits, velocities, mimic offsets and spring
    references by `length` if the coordinate is a length. Armature, damping and stiffness scale with `mass length^2` for
    an angle and `mass` for a length; effort limits and Coulomb friction with `mass length^2` and `mass length`.
    **Gravity is not scaled**; with gravity times `length` too, the motions would be the same with lengths scaled.

    **Raises** `ModelError` for a factor that is not positive and finite.
    """
    factors = []
    for what, factor in (("length", length), ("mass", mass)):
        factors.append(as_array(model, factor, what))
        numbers = in_numpy(factors[-1])
        if numbers is not None:
            require_positive(numbers, what)
    require_batches(model, {"length": factors[0].shape, "mass": factors[1].shape})
    return _scaled(model, *factors)


@numpy_unless_tracing()
def _scaled[M: ModelFields](model: M, length, mass) -> M:
    topology = model.topology
    # Joints that mimic others, and those that they follow, have one coordinate.
    linear = [JOINT_TYPES[t][0].units[0] == "m" for t in topology.joint_types]
    follower, leader = (np.array([linear[pair[k]] for pair in topology.mimics], int) for k in (0, 1))
    units = {"q": topology.coordinate_units, "v": topology.dof_units}
    is_length = {space: (unit == "m").astype(int) for space, unit in units.items()} | {"mimic": follower}
    L, M, lib = length[..., None], mass[..., None], library(length, mass)
    changed = {}
    for field, leaf in LEAVES.items():
        value, powers = getattr(model, field), np.array(leaf.length)
        if leaf.coordinate:
            powers = powers + leaf.coordinate * is_length[str(leaf.rows)]
        if leaf.leader:
            powers = powers + leaf.leader * leader
        if value is not None and (leaf.mass or powers.any()):
            factor = M**leaf.mass * L**powers
            factor = factor[..., None, :] if leaf.axes == 2 else factor
            # Infinite limits stay out of the product, whose derivative would be infinite times zero.
            finite = lib.isfinite(value)
            changed[field] = lib.where(finite, lib.where(finite, value, 0) * factor, value)
    return dataclasses.replace(model, **changed)
