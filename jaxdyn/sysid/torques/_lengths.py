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

from jaxdyn.algorithms import complete_motion, project_configuration
from jaxdyn.model import Model
from jaxdyn.sysid.parameters import Place, places
from jaxdyn.sysid.torques._effects import Joints, frictionless_torque

# The part of a typical length by which positions are expected to be wrong, before the weight of the prior.
_EXPECTED = 0.1
# Step of the differences that give the torque's derivatives: central, so that the torque of a tree, quadratic in
# lengths, has no error but rounding.
_STEP = 1e-3


def freed_places(model: Model, joints: Joints) -> tuple[Place, ...]:
    """The places of joints and loops: of all (True), none (False), or those named. **Raises** `UnknownNameError`."""
    if isinstance(joints, bool):
        return places.chosen_places(model) if joints else ()
    return places.chosen_places(model, joints)


def position_names(model: Model, chosen: tuple[Place, ...]) -> list[str]:
    """The names `[3 places]` of positions, such as `"position x(joint2)"`."""
    return [f"position {axis}({places.place_label(model, x)})" for x in chosen for axis in "xyz"]


def positions(model: Model, chosen: tuple[Place, ...]) -> np.ndarray:
    """The positions `[3 places]` of a model, m."""
    return np.array([getattr(model, leaf)[i, :3] for leaf, i in chosen], np.float64).reshape(-1)


def with_positions(model: Model, chosen: tuple[Place, ...], values: np.ndarray) -> Model:
    """The model with other positions `[3 places]`."""
    new = {leaf: np.array(getattr(model, leaf)) for leaf in {leaf for leaf, _ in chosen}}
    for (leaf, i), x in zip(chosen, np.reshape(values, (-1, 3)), strict=True):
        new[leaf][i, :3] = x
    return dataclasses.replace(model, **{leaf: jnp.asarray(x, model.dtype) for leaf, x in new.items()})


def with_lengths_of(model: Model, other: Model) -> Model:
    """The model with all lengths of another model of the robot."""
    return dataclasses.replace(model, **{leaf: getattr(other, leaf) for leaf in places.LEAVES})


def expected_error(model: Model) -> float:
    """The expected error of positions, m, before the weight of the prior: a tenth of a typical distance."""
    distance = np.linalg.norm(positions(model, places.chosen_places(model)).reshape(-1, 3), axis=1)
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


def length_slopes(model: Model, chosen: tuple[Place, ...], motion, joints: tuple[str, ...] | None) -> np.ndarray:
    """The derivatives `[n, nv, 3 places]` of the torque without friction with respect to positions, in a motion `q, v,
    a`, in which the `joints` that drive closed loops move as they were recorded."""
    entries = [(leaf, (i, slice(0, 3)), e) for leaf, i in chosen for e in np.eye(3)]
    return torque_slopes(
        model, entries, lambda changed: frictionless_torque(changed, *motion_of(changed, motion, joints), joints)
    )


def motion_of(model: Model, motion, joints: tuple[str, ...] | None) -> tuple[Any, Any, Any]:
    """The motion `q, v, a` of a model with other lengths, in which the `joints` that drive closed loops move as they
    were recorded. Loops that it cannot close, as out of the plane of a planar mechanism, stay open."""
    q, v, a = (jnp.asarray(x, model.dtype) for x in motion)
    if joints is None:
        return q, v, a
    q = project_configuration(model, q, kept=joints).q
    out = complete_motion(model, q, v, a, joints)
    return q, out.v, out.a
