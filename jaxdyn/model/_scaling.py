"""The model with other units of length and mass: the same robot, larger or heavier."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn._types import ArrayLike, Float
from jaxdyn.model._fields import ModelFields
from jaxdyn.model._restructure import in_numpy_if_known, library
from jaxdyn.model._topology import PRIMITIVES
from jaxdyn.model._validation import as_array, in_numpy, require_batches


def scaled[M: ModelFields](
    model: M, *, length: Float[ArrayLike, "*batch"] = 1.0, mass: Float[ArrayLike, "*batch"] = 1.0
) -> M:
    """The model with every length times `length` and every mass times `mass`; time stays.

    Every leaf but gravity is scaled by its unit in m, kg and s: placements of joints and frames and the pitch of screws
    by `length`; first moments by `mass length`; rotational inertias by `mass length^2`; and where a coordinate is a
    length, limits, velocities, mimic offsets and spring references by `length`. Armature, damping and stiffness scale
    with `mass length^2` at an angle and `mass` at a length; effort limits and Coulomb friction with `mass length^2` and
    `mass length`. **Gravity is not scaled**: the larger robot stands in the same field. With gravity times `length` the
    motions of both would be the same, the lengths in them times `length`.

    **Raises** `ModelError` for a factor that is not positive and finite.
    """
    factors = []
    for what, factor in (("length", length), ("mass", mass)):
        factors.append(as_array(model, factor, what))
        known = in_numpy(factors[-1])
        if known is not None and not (np.isfinite(known) & (known > 0)).all():
            raise ModelError(f"{what} is {known}; a positive, finite factor is needed")
    require_batches(model, {"length": factors[0].shape, "mass": factors[1].shape})
    return _scaled(model, *factors)


# Scaling


@in_numpy_if_known()
def _scaled[M: ModelFields](model: M, length, mass) -> M:
    topology = model.topology
    # Whether each coordinate is a length: P, and the first three of F.
    of_q: list[bool] = []
    of_v: list[bool] = []
    for i, kind in enumerate(topology.joint_types):
        word = PRIMITIVES[kind]
        if i in topology.leaders:
            continue
        of_q += {"F": [True] * 3 + [False] * 4, "B": [False] * 4}.get(word, [p == "P" for p in word])
        of_v += {"F": [True] * 3 + [False] * 3, "B": [False] * 3}.get(word, [p == "P" for p in word])
    linear_v = np.array(of_v, int)
    linear = [PRIMITIVES[kind] == "P" for kind in topology.joint_types]
    # A multiplier is in the unit of the follower over that of the leader.
    follower, leader = (np.array([linear[pair[k]] for pair in topology.mimics], int) for k in (0, 1))
    L, M, lib = length[..., None], mass[..., None], library(length, mass)
    by_length = (L ** np.array([1] * 3 + [0] * 4))[..., None, :]
    inertia = (M * L ** np.array([0] + [1] * 3 + [2] * 6))[..., None, :]
    coordinate_q, coordinate_v = L ** np.array(of_q, int), L**linear_v
    per_rate, force = M * L ** (2 - 2 * linear_v), M * L ** (2 - linear_v)
    factors = {
        "joint_placement": by_length,
        "frame_placement": by_length,
        "joint_pitch": L,
        "inertial_parameters": inertia,
        "attached_parameters": inertia,
        "armature": per_rate,
        "damping": per_rate,
        "stiffness": per_rate,
        "friction": force,
        "effort_limit": force,
        "friction_velocity": coordinate_v,
        "velocity_limit": coordinate_v,
        "position_lower": coordinate_q,
        "position_upper": coordinate_q,
        "spring_reference": coordinate_q,
        "mimic_multiplier": L ** (follower - leader),
        "mimic_offset": L**follower,
    }
    changed = {}
    for field, factor in factors.items():
        value = getattr(model, field)
        if value is not None:
            # Infinite limits stay, and out of the product: its derivative would be infinite times zero.
            finite = lib.isfinite(value)
            changed[field] = lib.where(finite, lib.where(finite, value, 0) * factor, value)
    return dataclasses.replace(model, **changed)
