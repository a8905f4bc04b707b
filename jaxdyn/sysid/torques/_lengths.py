"""Lengths of links among the parameters of a torque model: where joints and the frames of loops stand in their bodies.

The torque is not linear in them. A fit takes the torque's derivatives at the positions that it has found so far, and
again after each of its rounds, which are Gauss-Newton steps therefore.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import look_up
from jaxdyn.algorithms import complete_motion, project_configuration
from jaxdyn.model import Model
from jaxdyn.sysid.torques._effects import Joints, frictionless_torque

type Place = tuple[str, int]
"""A leaf of placements of the model, and a row of it."""

_LEAVES = ("joint_placement", "loop_placement1", "loop_placement2")
# The part of a typical length by which positions are expected to be wrong, before the weight of the prior.
_EXPECTED = 0.1
# Step of the differences that give the torque's derivatives: central, so that the torque of a tree, quadratic in
# lengths, has no error but rounding.
_STEP = 1e-3


def chosen_places(model: Model, names: Joints) -> tuple[Place, ...]:
    """The places of joints and loops: of all (True), none (False), or those named. **Raises** `UnknownNameError`."""
    loops = [x.name for x in model.topology.loops]
    named = [(leaf, i, x) for leaf, known in zip(_LEAVES, (model.joint_names, loops, loops), strict=True) for i, x in enumerate(known)]
    if isinstance(names, bool):
        return tuple((leaf, i) for leaf, i, _ in named if names)
    for name in names:
        look_up(name, (*model.joint_names, *loops), "joint or loop")
    return tuple((leaf, i) for leaf, i, x in named if x in names)


def place_names(model: Model, places: tuple[Place, ...]) -> list[str]:
    """The names `[3 places]` of positions, such as `"position x(joint2)"`."""
    out = []
    for leaf, i in places:
        of_loop = leaf != _LEAVES[0]
        name = f"{model.topology.loops[i].name}, frame {leaf[-1]}" if of_loop else model.joint_names[i]
        out += [f"position {axis}({name})" for axis in "xyz"]
    return out


def positions(model: Model, places: tuple[Place, ...]) -> np.ndarray:
    """The positions `[3 places]` of a model, m."""
    return np.array([getattr(model, leaf)[i, :3] for leaf, i in places], np.float64).reshape(-1)


def with_positions(model: Model, places: tuple[Place, ...], values: np.ndarray) -> Model:
    """The model with other positions `[3 places]`."""
    new = {leaf: np.array(getattr(model, leaf)) for leaf in {leaf for leaf, _ in places}}
    for (leaf, i), x in zip(places, np.reshape(values, (-1, 3)), strict=True):
        new[leaf][i, :3] = x
    return dataclasses.replace(model, **{leaf: jnp.asarray(x, model.dtype) for leaf, x in new.items()})


def expected_error(model: Model) -> float:
    """The expected error of positions, m, before the weight of the prior: a tenth of a typical distance."""
    distance = np.linalg.norm(positions(model, chosen_places(model, True)).reshape(-1, 3), axis=1)
    return _EXPECTED * float(np.sqrt(np.mean(distance[distance > 0] ** 2))) if distance.any() else _EXPECTED


def torque_slopes(
    model: Model, entries: list[tuple[str, tuple[Any, ...], np.ndarray]], torque: Callable[[Model], np.ndarray]
) -> np.ndarray:
    """The derivatives `[..., k]` of a model's torque along directions of entries of its leaves."""
    out = []
    for leaf, at, direction in entries:
        x = getattr(model, leaf)
        ends = (x.at[at].add(s * _STEP * jnp.asarray(direction, x.dtype)) for s in (1, -1))
        above, below = (torque(dataclasses.replace(model, **{leaf: end})) for end in ends)
        out.append((above - below) / (2 * _STEP))
    return np.stack(out, axis=-1)


def length_slopes(model: Model, places: tuple[Place, ...], motion, joints: tuple[str, ...] | None) -> np.ndarray:
    """The derivatives `[n, nv, 3 places]` of the torque without friction with respect to positions, in a motion `q, v,
    a`, in which the `joints` that drive closed loops move as they were recorded."""
    entries = [(leaf, (i, slice(0, 3)), e) for leaf, i in places for e in np.eye(3)]
    return torque_slopes(model, entries, lambda changed: frictionless_torque(changed, *motion_of(changed, motion, joints), joints))


def motion_of(model: Model, motion, joints: tuple[str, ...] | None) -> tuple[Any, Any, Any]:
    """The motion `q, v, a` of a model with other lengths, in which the `joints` that drive closed loops move as they
    were recorded. Loops that it cannot close, as out of the plane of a planar mechanism, stay open."""
    q, v, a = (jnp.asarray(x, model.dtype) for x in motion)
    if joints is None:
        return q, v, a
    q = project_configuration(model, q, kept=joints).q
    out = complete_motion(model, q, v, a, joints)
    return q, out.v, out.a
