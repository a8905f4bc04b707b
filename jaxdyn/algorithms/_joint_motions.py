"""Motions and torques of robots with closed loops in terms of some of their joints: the actuated or measured ones."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, look_up, naming_arguments
from jaxdyn._types import Array, Configuration, Float, Velocity, Wrenches
from jaxdyn.algorithms.recursions import (
    Robot,
    algorithm,
    all_rows,
    constraint_rows,
    equations_and_velocities,
    forward,
    inverse,
    kinematics,
    motions_from_joints,
    passive_torque,
    velocities,
    velocity_accelerations,
    with_batch_first,
)
from jaxdyn.model import Model


class ActuatedTorques(NamedTuple):
    """The result of `constrained_inverse_dynamics`."""

    tau: Float[Array, "*batch nv"]
    """The torques of the actuated joints, N m or N; zero at all others."""
    forces: Float[Array, "*batch nc"]
    """The forces of loops and couplings, as `constraint_forces`."""
    residual: Float[Array, "*batch nv"]
    """The accelerations that were asked for, less those that `tau` gives (`aba`), rad/s^2 or m/s^2. Zero, up to
    rounding, where the loops allow `a` and the actuated joints can bring it about."""


class JointMotion(NamedTuple):
    """The result of `complete_motion`."""

    v: Float[Array, "*batch nv"]
    a: Float[Array, "*batch nv"]


@naming_arguments
def constrained_inverse_dynamics(
    model: Model,
    q: Configuration,
    v: Velocity,
    a: Velocity,
    f_ext: Wrenches | None = None,
    *,
    actuated: Collection[str] | None = None,
    joint_friction: bool = True,
) -> ActuatedTorques:
    """The torques of the actuated joints of a robot with closed loops for which the accelerations are `a`.

    `rnea(q, v, a) = S tau + J^T f`, with the unit vectors `S` of the actuated degrees of freedom and the Jacobian `J`
    of loops and couplings. Where more joints are actuated than the robot has degrees of freedom, the torques are those
    of least norm, in the units of the joints.

    Accelerations that the loops do not allow are replaced by the nearest ones in the metric of the mass matrix: the
    part of `rnea` that they add lies in `J^T f`, so it needs no torque. To ask for the accelerations of some joints
    only, complete them first (`complete_motion`). The state should satisfy the constraints (`project_configuration`,
    `project_velocity`).

    **Arguments**

    - `q`, `v`, `a`, `f_ext` and `joint_friction` as for `rnea`.
    - `actuated`: the names of the actuated joints, all of whose degrees of freedom are; by default all joints.

    **Returns** `ActuatedTorques`. Look at its `residual`: where the actuated joints are too few, or cannot move the
    robot as at a singular configuration, it is not zero. Differentiable, forward and reverse, where they are enough.

    **Raises** `UnknownNameError` for a joint; `ModelError` for a joint that mimics another, for joints with fewer
    degrees of freedom than the robot keeps if all equations of its loops are independent, and for a model that lacks
    inertias; `ShapeError` where a shape does not fit.

    Source: Featherstone, Rigid Body Dynamics Algorithms, 2008, chapter 8 (inverse dynamics of closed loops); Nakamura &
    Ghodoussi, Dynamics computation of closed-link robot mechanisms with nonredundant and redundant actuators, IEEE
    Transactions on Robotics and Automation 1989.
    """
    dofs = dofs_of_joints(model, model.joint_names if actuated is None else actuated, "actuated")
    needed = model.nv - model.topology.nc
    if len(dofs) < needed:
        raise ModelError(
            f"{len(dofs)} degrees of freedom are actuated, but the robot has at least {needed}: {model.nv} of its tree "
            f"less {model.topology.nc} equations of loops and couplings. Actuate {needed - len(dofs)} more"
        )
    return _actuated_torques(model, q, v, a, f_ext, dofs=dofs, joint_friction=joint_friction)


@algorithm(motion_axes=((), (), (-1,)))
def _actuated_torques(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    a: Velocity,
    f_ext: Wrenches | None = None,
    *,
    dofs: tuple[int, ...],
    joint_friction: bool,
) -> ActuatedTorques:
    at = kinematics(robot, q)
    equations, moving = equations_and_velocities(robot, *at, v, f_ext)
    rows = constraint_rows(robot, q, at, v, moving.velocity, equations.c)
    driven = robot.broadcast(inverse(robot.tree, equations, a))
    passive = passive_torque(robot, q, v, joint_friction)
    # Forces S tau + J^T f do the work of tau alone in the motions E with S^T E = 1 and J E = 0.
    tau = (rows_of_map(robot, rows, dofs) * (driven + passive)[:, None]).sum(axis=0)
    found = forward(robot, equations, tau - passive, rows)
    forces = robot.zeros()[:0] if found.multipliers is None else -found.multipliers[: robot.topology.nc]
    return ActuatedTorques(tau, forces, a - found.a)


def rows_of_map(robot: Robot, rows, dofs: tuple[int, ...]):
    """Return the map `E` `[nv, nv, *batch]` from motions of some degrees of freedom to those of all."""
    J = with_batch_first(robot.broadcast(all_rows(robot, rows).J), 2)
    given = jnp.asarray(np.eye(robot.nv)[list(dofs)], J.dtype)
    rates = jnp.zeros((J.shape[-2], robot.nv), J.dtype)
    return jnp.moveaxis(motions_from_joints(J, dofs, given, rates), (-2, -1), (0, 1))


@naming_arguments
def motion_map(model: Model, q: Configuration, joints: Collection[str]) -> Float[Array, "*batch nv nv"]:
    """The map `E` `[*batch, nv, nv]` from the velocities of some joints to those of all: `v = E v` for a velocity that
    loops and couplings allow. The columns of all other joints are zero.

    `J E = 0`. By `E^T`, torques of all joints become those of the named joints that do the same: `E^T rnea(q, v, a)`
    are the torques of `constrained_inverse_dynamics`. Where the named joints have more degrees of freedom than the
    robot, `E v` is the allowed velocity nearest to `v` at these joints; where they have fewer, one of small norm.
    Differentiable where they determine the motion.

    **Raises** `UnknownNameError` for a joint; `ModelError` for a joint that mimics another; `ShapeError`.
    """
    return _motion_map(model, q, dofs=dofs_of_joints(model, joints, "joints"))


@algorithm(motion_axes=((-2, -1),))
def _motion_map(robot: Robot, q: Configuration, *, dofs: tuple[int, ...]) -> Float[Array, "*batch nv nv"]:
    return rows_of_map(robot, constraint_rows(robot, q, kinematics(robot, q)), dofs)


@naming_arguments
def complete_motion(model: Model, q: Configuration, v: Velocity, a: Velocity, joints: Collection[str]) -> JointMotion:
    """The velocities and accelerations of all joints of a robot with closed loops, from those of the named joints.

    Of `v` and `a` `[*batch, nv]` only the components of the named joints count: those of the robot's drives, or of the
    joints that are measured. The result satisfies `J v = 0` and `J a + gamma = 0`. Where the named joints have more
    degrees of freedom than the robot, it is the nearest at these joints; where they have fewer, one of small norm.
    `q` should close the loops (`project_configuration(..., kept=joints)`). Differentiable where the joints determine
    the motion.

    **Raises** `UnknownNameError` for a joint; `ModelError` for a joint that mimics another; `ShapeError`.
    """
    return _complete_motion(model, q, v, a, dofs=dofs_of_joints(model, joints, "joints"))


@algorithm(motion_axes=((-1,), (-1,)))
def _complete_motion(robot: Robot, q: Configuration, v: Velocity, a: Velocity, *, dofs: tuple[int, ...]) -> JointMotion:
    at = kinematics(robot, q)
    rows = all_rows(robot, constraint_rows(robot, q, at))
    v = from_joints(robot, rows.J, dofs, v, jnp.zeros_like(rows.gamma))
    joint, velocity = velocities(robot, at.S, v)
    c = velocity_accelerations(robot, joint, velocity)
    gamma = all_rows(robot, constraint_rows(robot, q, at, v, velocity, c)).gamma
    return JointMotion(v, from_joints(robot, rows.J, dofs, a, gamma))


def from_joints(robot: Robot, J, dofs: tuple[int, ...], given, rates):
    """Return the motion `x`, rows `[nv]`, with `J x = -rates` and the components `dofs` of `given`, rows `[nv]`."""
    J, given, rates = (robot.broadcast(x) for x in (J, given[np.array(dofs, int)], rates))
    columns = (with_batch_first(x)[..., None] for x in (given, rates))
    return jnp.moveaxis(motions_from_joints(with_batch_first(J, 2), dofs, *columns)[..., 0], -1, 0)


def dofs_of_joints(model: Model, joints: Collection[str], what: str) -> tuple[int, ...]:
    """Return the degrees of freedom of named joints in the tree of independent joints. **Raises** `UnknownNameError`
    for a joint; `ModelError` for none, and for one that is named and mimics another."""
    topology, tree = model.topology, model.topology.spanning
    names, followers = [joints] if isinstance(joints, str) else list(joints), [i for i, _ in topology.mimics]
    by_default = tuple(names) == tuple(topology.joint_names)
    out = []
    for name in names:
        look_up(name, topology.joint_names, "joint")
        i = topology.joint(name)
        if i in followers:
            if by_default:
                continue
            raise ModelError(f"{what}: joint {name!r} mimics another and moves with it; name that one")
        out += range(tree.v_starts[i], tree.v_starts[i + 1])
    if not out:
        raise ModelError(f"{what} names no joint; give at least one")
    return tuple(sorted(set(out)))
