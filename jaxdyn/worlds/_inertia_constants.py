"""Constants that MuJoCo derives from the inertias of a file at its reference configuration: inverse weights of bodies,
degrees of freedom and tendons, and the accelerations of muscles.

Source: `engine_setconst.c` of MuJoCo 4.0 (`set0`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import PhysicalityWarning, warn
from jaxdyn._types import float_leaf
from jaxdyn.algorithms import crba
from jaxdyn.algorithms.recursions import Robot, RobotAndParts
from jaxdyn.model import Model, spanning_coordinates
from jaxdyn.worlds._parts import PartRows, Places, instant, point_rows
from jaxdyn.worlds._tendons import tendon_rows
from jaxdyn.worlds._transmission import transmission


class _Moments(NamedTuple):
    """Derivatives by the velocities at the reference configuration, as flat rows."""

    centers: Any
    """The motions of the bodies' centers of mass, `[nbody, 6, nv]`, angular components first."""
    tendons: Any
    """The lengths of tendons, `[nt, nv]`."""
    actuators: Any
    """The lengths of actuators, `[nu, nv]`."""


class InverseWeights(NamedTuple):
    """Accelerations under unit forces, on the average over axes: MuJoCo's `invweight0`."""

    turns: Any
    """`[*batch, nbody]`"""
    shifts: Any
    """`[*batch, nbody]`"""
    dofs: Any
    """`[*batch, nv]`"""
    tendons: Any
    """`[*batch, nt]`"""
    actuators: Any
    """`[*batch, nu]`: the norm of the accelerations under a unit force (`actuator_acc0`)."""


_DERIVED_FROM = {"inertial_parameters": 2, "armature": 1, "joint_placement": 2}
"""The arrays of a model from which constants are derived and which users replace, with their axes."""


def derived_from(model: Model) -> Any:
    """Return the numbers `[*batch, n]` of a model from which the constants of its world are derived."""
    arrays = [(getattr(model, name), axes) for name, axes in _DERIVED_FROM.items()]
    traced = any(isinstance(x, Tracer) for x, _ in arrays)
    xp: Any = jnp if traced else np
    rows = [xp.asarray(x).reshape(*x.shape[: x.ndim - axes], -1) for x, axes in arrays]
    batch = np.broadcast_shapes(*(x.shape[:-1] for x in rows))
    joined = xp.concatenate([xp.broadcast_to(x, (*batch, x.shape[-1])) for x in rows], axis=-1)
    return joined if traced else float_leaf(joined).astype(model.dtype)


def look_at_constants(world: Any) -> None:
    """Warn where the inertias of a world were replaced in its model, so that constants are those of the former ones:
    once for each object. Within transformations this is seen where only the inertias are traced."""
    model, parts = world.model, world.parts
    former = parts.derived_from
    if former is None or "_looked_at" in world.__dict__ or not any(x.size for x in _constants(parts)):
        return
    # Not a field, so copies with other arrays do not have it.
    object.__setattr__(world, "_looked_at", True)
    traced = any(isinstance(getattr(model, name), Tracer) for name in _DERIVED_FROM)
    if isinstance(former, Tracer) or (not traced and np.array_equal(former, derived_from(model))):
        return
    warn(
        "the inertias, armature or placements of the world's model were replaced, but the constants that MuJoCo "
        "derives from them, such as invweight0, are those of the former ones; world.with_model(model) computes them "
        "anew",
        PhysicalityWarning,
    )


def with_inertias_of(parts: Any, before: Model, after: Model, start: Any) -> Any:
    """Return the parts of a world with the constants that follow from the inertias of a model, for those of another.

    Constants change by the ratio of their formula's values, so those of the file stay exactly what they are where
    nothing changes, whatever MuJoCo makes of special cases. The centers of mass of bodies that are one with others
    shift with their common center, and the mass that gravity compensation lifts changes in the common proportion.
    """
    bodies, compensated = parts.bodies.centers, parts.passive.compensated
    shift, ratio = _change(before, after)
    moved = [_shifted(place, shift) for place in (bodies, compensated)]
    lifted = parts.passive.weight * ratio[..., np.array(compensated.dofs, int)]
    changed = eqx.tree_at(
        lambda x: (x.bodies.centers, x.passive.compensated, x.passive.weight), parts, (*moved, lifted)
    )
    old, new = (inverse_weights(p, m, start) for p, m in ((parts, before), (changed, after)))
    ratios = [_ratio(a, b) for a, b in zip(_sums(parts, old), _sums(parts, new), strict=True)]
    # Not by `equinox.tree_at`, in which the empty tuple of pairs of a world without contacts stands for a leaf.
    leaves, structure = jax.tree.flatten(changed)
    for i, ratio in zip(_constants(jax.tree.unflatten(structure, range(len(leaves)))), ratios, strict=True):
        # Actuators of a model have no muscles, and no accelerations under a unit force.
        leaves[i] = leaves[i] * ratio if leaves[i].shape[-1] else leaves[i]
    return jax.tree.unflatten(structure, leaves)


def _ratio(old, new):
    """Return `new / old`; 1 where MuJoCo's constant is zero, as those of the world's own body are."""
    there = old > 0
    return jnp.where(there, new / jnp.where(there, old, 1), 1)


def _change(before: Model, after: Model) -> tuple[Any, Any]:
    """Return the shift of the centers of mass, `[*batch, nv + 1, 3]`, and the ratio of the masses, `[*batch, nv + 1]`,
    of what each degree of freedom carries; neither changes where it carries no mass, as in the last row, the world."""
    dofs = np.array(before.topology.body_dofs, int)
    old, new = before.inertial_parameters, after.inertial_parameters
    there = ((old[..., :1] > 0) & (new[..., :1] > 0))[..., 0]
    m0, m1 = (jnp.where(there, x[..., 0], 1) for x in (old, new))
    shift = jnp.where(there[..., None], new[..., 1:4] / m1[..., None] - old[..., 1:4] / m0[..., None], 0)
    none = jnp.zeros((*shift.shape[:-2], before.topology.spanning.nv + 1, 3), shift.dtype)
    return none.at[..., dofs, :].set(shift), (none[..., 0] + 1).at[..., dofs].set(m1 / m0)


def _shifted(place: Places, shift) -> Places:
    if not place.dofs:
        return place
    shifted = place.placement.at[..., :3].add(shift[..., np.array(place.dofs), :])
    return eqx.tree_at(lambda x: x.placement, place, shifted)


def _constants(parts: Any) -> list:
    """Return the arrays of constants, in the order of `_sums`."""
    constraints, equalities = parts.constraints, parts.constraints.equalities
    held, coupled = equalities.held, (equalities.joints, equalities.tendons)
    out = [*(x.weight for x in constraints.contacts.pairs), constraints.limits.weight, constraints.losses.weight]
    out += [] if held is None else [held.weight, held.turning_weight]
    return [*out, *(x.weight for x in coupled if x is not None), parts.actuators.unit_acceleration]


def _sums(parts: Any, of: InverseWeights) -> list:
    """Return the values of the formulas of `_constants`: inverse weights, and their sums over both sides."""
    constraints, contacts, limits = parts.constraints, parts.constraints.contacts, parts.constraints.limits
    losses, equalities = constraints.losses, constraints.equalities
    out = []
    for pairs in contacts.pairs:
        ends = [np.array(contacts.bodies)[np.array(rows)] for rows in (pairs.first, pairs.second)]
        out.append(sum(of.shifts[..., end] for end in ends))
    dofs = [dof for _, dof in (*limits.joints, *limits.balls)]
    for rows, tendons in ((dofs, limits.tendons), (losses.dofs, losses.tendons)):
        both = of.dofs[..., np.array(rows, int)], of.tendons[..., np.array(tendons, int)]
        out.append(jnp.concatenate(both, axis=-1))
    if equalities.held is not None:
        ends = np.array(equalities.held.bodies).T
        out.append(sum(of.shifts[..., end] for end in ends))
        out.append(sum(of.turns[..., end] for end in ends))
    for coupled in (equalities.joints, equalities.tendons):
        if coupled is not None:
            values, ends = (of.tendons, (0, 1)) if coupled.tendons else (of.dofs, (2, 3))
            values = jnp.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, 1)])
            out.append(sum(values[..., np.array(coupled.pairs)[:, k]] for k in ends))
    return [*out, of.actuators]


def inverse_weights(parts: Any, model: Model, start: Any) -> InverseWeights:
    """Return the inverse weights of a model with the parts of a world in a configuration, on the tree of all joints, as
    if nothing else held them: MuJoCo's constraints have no part in its constants."""
    q = spanning_coordinates(model, start.astype(model.dtype), velocity=False)
    model = model.spanning_tree().without_loops()
    bound, operands = RobotAndParts.of(model, parts, q.dtype, "World.with_model", q)
    flat = bound.call(_moments, operands, q)
    nv = model.nv
    centers, tendons, actuators = (x.reshape(*x.shape[:-1], -1, nv) for x in flat)
    # As in `TendonInertia`.
    related = model.topology.dof_ancestors | model.topology.dof_ancestors.T
    along = jnp.einsum("...ti,...t,...tj->...ij", tendons, parts.tendons.armature, tendons)
    inverse = jnp.linalg.inv(crba(model, q) + jnp.where(related, along, 0.0))

    def diagonal(J):
        return jnp.einsum("...ij,...jk,...ik->...i", J, inverse, J)

    axes = diagonal(centers).reshape(*inverse.shape[:-2], -1, 2, 3).mean(axis=-1)
    turns, shifts = axes[..., 0], axes[..., 1]
    if parts.bodies.sliding:
        sliding, dofs = np.array(parts.bodies.sliding), np.array(model.topology.body_dofs).tolist()
        carried = [dofs.index(parts.bodies.centers.dofs[i]) for i in sliding]
        shifts = shifts.at[..., sliding].set(1 / model.inertial_parameters[..., np.array(carried), 0])
    dofs = jnp.diagonal(inverse, axis1=-2, axis2=-1) @ _means(model)
    accelerations = jnp.linalg.norm(actuators @ inverse, axis=-1)
    return InverseWeights(turns, shifts, dofs, diagonal(tendons), accelerations)


def _means(model: Model) -> np.ndarray:
    """Return the matrix `[nv, nv]` of the means over the degrees of freedom of balls, and over the translations and the
    rotations of free joints, which share one constant."""
    out = np.eye(model.nv)
    for kind, start in zip(model.topology.joint_types, model.topology.v_starts, strict=False):
        for first in {"ball": (start,), "free": (start, start + 3)}.get(kind, ()):
            out[first : first + 3, first : first + 3] = 1 / 3
    return out


def _moments(robot: Robot, world: PartRows, q) -> _Moments:
    at = instant(robot, q, robot.broadcast(robot.zeros()))
    motion = point_rows(robot, at, Places.located(world.bodies.centers, at))
    axes = [x for part in (motion.angular, motion.linear) for x in (part.x, part.y, part.z)]
    centers = jnp.stack([robot.broadcast(x) for x in axes], axis=1)
    tendons = tendon_rows(robot, world.tendons, at) if world.tendons.names else None
    moved = robot.constant(np.zeros((0, robot.nv))) if tendons is None else tendons.jacobian
    actuators = world.actuators
    pulled = robot.broadcast(robot.constant(np.zeros((len(actuators.names), robot.nv))))
    if actuators.axes_of_joints:
        numbers, _, dofs = np.array(actuators.axes_of_joints).T
        pulled = pulled.at[numbers, dofs].set(robot.broadcast(actuators.gear[:, 0])[numbers])
    coupled = transmission(robot, actuators, at, tendons).moment
    if coupled is not None:
        pulled = pulled.at[np.array(actuators.coupled)].add(coupled)
    parts = (robot.broadcast(x) for x in (centers, moved, pulled))
    return _Moments(*(x.reshape(-1, *robot.batch) for x in parts))
