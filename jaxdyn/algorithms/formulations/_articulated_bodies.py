"""The articulated-body form: the inertias, bias forces and factors that forward dynamics goes through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Configuration, Float, Torque, Velocity, Wrenches
from jaxdyn.algorithms.recursions import (
    Robot,
    algorithm,
    components,
    eliminate,
    eliminate_forces,
    equations_and_velocities,
    force_in,
    kinematics,
    motion_from,
    node_inertias,
    passive_torque,
    row_vectors,
    substitute,
)
from jaxdyn.spatial import ArticulatedInertia, Force, Motion, Pose, Vec3
from jaxdyn.tree import take_rows


class ArticulatedBodies(NamedTuple):
    """The quantities of the articulated-body algorithm on the way from the leaves to the root, and the accelerations on
    the way back (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 7.3 and table 7.1; his symbols).

    Motions are `[linear, angular]`, forces `[force, moment]`, and `6 x 6` operators have that order, too. Everything is
    in the axes and at the origin of the frame of the body that the joint moves. As there, gravity is an acceleration of
    the base and no force in `pA`. A joint of several degrees of freedom is eliminated one at a time, the last one
    first, so that `D` and `u` are numbers.
    """

    IA: Float[Array, "*batch nb 6 6"]
    """The articulated-body inertia of each body: its own and that of all bodies behind it, whose joints move freely."""
    pA: Float[Array, "*batch nb 6"]  # noqa: N815
    """The bias force of each body: the force of the articulated body at acceleration zero."""
    U: Float[Array, "*batch nv 6"]
    """`I^A S` of each degree of freedom."""
    D: Float[Array, "*batch nv"]
    """`S^T U + armature`, the inertia that its actuator feels."""
    u: Float[Array, "*batch nv"]
    """`tau - S^T p^A`, less friction and springs."""
    a: Float[Array, "*batch nv"]
    """The accelerations, those of `aba`."""


@algorithm(independent_joints=True)
def articulated_inertias(robot: Robot, q: Configuration) -> Float[Array, "*batch nb 6 6"]:
    """The articulated-body inertia `I^A` `[*batch, nb, 6, 6]` of every body: the inertia that it shows when everything
    that hangs from it moves freely, armature in its joints (Featherstone 2008, section 7.1).

    From an acceleration `[linear, angular]` to a force `[force, moment]`, in the axes and at the origin of the body's
    frame. Symmetric and positive semidefinite.

    **Raises** `ModelError` for a model with joints that mimic others; `ShapeError` where a shape does not fit.
    """
    poses, S = kinematics(robot, q)
    IA = eliminate(robot.tree, S, node_inertias(robot, poses), robot.armature).IA
    return _in_frames(robot, *take_rows((poses, IA), robot.topology.body_dofs))


def _in_frames(robot: Robot, poses: Pose, IA: ArticulatedInertia):
    """Return inertias, rows `[n]`, as `[n, 6, 6, *batch]` in the axes of the frames and at their origins."""
    return matrices(robot, lambda x, poses, IA: force_in(poses, IA.apply(motion_from(poses, x))), poses, IA)


def matrices(robot: Robot, operator: Callable[..., Motion | Force], *rows: Any):
    """Return the matrices `[n, 6, 6, *batch]` of a linear operator, `operator(motion, *rows)`, linear parts first."""
    unit = robot.constant(np.eye(6)[:, None])
    columns = operator(Motion(Vec3(*unit[3:]), Vec3(*unit[:3])), *jax.tree.map(lambda x: x[:, None], rows))
    return robot.broadcast(jnp.stack(jnp.broadcast_arrays(*components(columns)), axis=1))


def by_dof(robot: Robot, x):
    """Return for each degree of freedom the row, of rows `[nb]`, of the body that its joint moves."""
    return take_rows(x, np.repeat(np.arange(robot.nb), np.diff(robot.topology.v_starts)))


@algorithm(independent_joints=True)
def articulated_bodies(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> ArticulatedBodies:
    """Forward dynamics with all that the articulated-body algorithm computes, as `ArticulatedBodies`.

    **Arguments** as for `aba`, which is faster for accelerations alone, and has faster derivatives.

    **Raises** `ModelError` for a model with joints that mimic others; `ShapeError` where a shape does not fit.
    """
    poses, S = kinematics(robot, q)
    equations, _ = equations_and_velocities(robot, poses, S, v, f_ext)
    tau = tau - passive_torque(robot, q, v, joint_friction)
    elimination = eliminate(robot.tree, equations.S, equations.inertia, equations.armature)
    pA, u = eliminate_forces(robot.tree, equations, tau, elimination)
    a = substitute(robot.tree, equations, elimination.factors, u)
    poses, IA, pA = take_rows((poses, elimination.IA, pA), robot.topology.body_dofs)
    return ArticulatedBodies(
        IA=_in_frames(robot, poses, IA),
        pA=row_vectors(robot, force_in(poses, pA)),
        U=row_vectors(robot, force_in(by_dof(robot, poses), elimination.U)),
        D=elimination.D,
        u=u,
        a=a,
    )
