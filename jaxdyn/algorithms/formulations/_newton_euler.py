"""The Newton-Euler form: the motion of every body, the forces at its center of mass, the reactions in its joint."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError
from jaxdyn._types import Array, Configuration, Float, Torque, Velocity, Wrenches
from jaxdyn.algorithms._aba import aba
from jaxdyn.algorithms._kinematics import forward_kinematics
from jaxdyn.algorithms.recursions import (
    Robot,
    algorithm,
    centers,
    external_forces,
    force_from,
    force_in,
    kinematics,
    motion_in,
    product,
    row_vectors,
    velocities,
    velocity_accelerations,
)
from jaxdyn.model import Model, require_no_loops
from jaxdyn.spatial import Force, Motion
from jaxdyn.tree import sum_down, sum_up, take_rows


class NewtonEuler(NamedTuple):
    """The outward and inward iterations of Newton and Euler (Craig, Introduction to Robotics, 3rd edition, eqs. 6.45 to
    6.53): vectors of body `i` in the axes of its own frame, `[*batch, nb, 3]`. In brackets Craig's symbols.

    As there, gravity is an acceleration of the base, `-gravity`: linear accelerations are less that of free fall, what
    an accelerometer reads.
    """

    angular_velocity: Float[Array, "*batch nb 3"]
    """`omega`, rad/s."""
    angular_acceleration: Float[Array, "*batch nb 3"]
    """`omega'`, rad/s^2."""
    linear_acceleration: Float[Array, "*batch nb 3"]
    """`v'`, of the origin of the body's frame, less gravity, m/s^2."""
    center_acceleration: Float[Array, "*batch nb 3"]
    """`v'_C`, of the center of mass, less gravity, m/s^2."""
    force: Float[Array, "*batch nb 3"]
    """`F = m v'_C`, N: the force that moves the center of mass and carries the weight."""
    moment: Float[Array, "*batch nb 3"]
    """`N = I_C omega' + omega x I_C omega`, N m, about the center of mass."""
    joint_force: Float[Array, "*batch nb 3"]
    """`f`, N: what the body before exerts on this one through their joint, drive included."""
    joint_moment: Float[Array, "*batch nb 3"]
    """`n`, N m, about the origin of the body's frame."""
    tau: Float[Array, "*batch nv"]
    """The parts of `f` and `n` along the degrees of freedom: `rnea` without armature, friction and springs."""


@algorithm()
def newton_euler(
    robot: Robot, q: Configuration, v: Velocity, a: Velocity, f_ext: Wrenches | None = None
) -> NewtonEuler:
    """Inverse dynamics with all that the iterations of Newton and Euler compute for every body, as `NewtonEuler`.

    **Arguments** and errors as for `rnea`; a body without mass has its center of mass at the origin of its frame.

    Source: Craig, Introduction to Robotics, 3rd edition, 2005, section 6.5.
    """
    topology = robot.topology
    poses, S = kinematics(robot, q)
    joint, velocity = velocities(robot, S, v)
    acceleration = sum_down(robot.tree, S * a + velocity_accelerations(robot, joint, velocity))
    acceleration = Motion(acceleration.angular, acceleration.linear - robot.gravity_vector)
    placed, velocity, acceleration = take_rows((poses, velocity, acceleration), topology.body_dofs)
    velocity, acceleration = motion_in(placed, velocity), motion_in(placed, acceleration)
    # The acceleration of the origin, v' = a + omega x v, from the spatial one.
    w, dw = velocity.angular, acceleration.angular
    dv = acceleration.linear + w.cross(velocity.linear)
    m, c, I = centers(robot)
    dv_c = dv + dw.cross(c) + w.cross(w.cross(c))
    F = dv_c * m
    N = I.apply(dw) + w.cross(I.apply(w))
    # The reactions carry what moves all bodies behind the joint, less what else acts on them.
    inertial = force_from(placed, Force(N + c.cross(F), F))
    total = take_rows(inertial, topology.body_of_dof)
    if f_ext is not None:
        total = total - external_forces(robot, poses, f_ext)
    total = sum_up(robot.tree, total)
    across = force_in(placed, take_rows(total, topology.body_dofs))
    fields = (row_vectors(robot, x) for x in (w, dw, dv, dv_c, F, N, across.force, across.moment))
    return NewtonEuler(*fields, tau=S.dot(total))


@compiled("joint_friction")
def joint_reactions(
    model: Model,
    q: Configuration,
    v: Velocity,
    *,
    a: Velocity | None = None,
    tau: Torque | None = None,
    f_ext: Wrenches | None = None,
    joint_friction: bool = True,
) -> Float[Array, "*batch nb 6"]:
    """The wrench `[force, moment]` `[*batch, nb, 6]`, N and N m, that each body gets through its joint from the body
    before it, drive included: in the axes and about the origin of the body's own frame.

    Either for the accelerations `a` or under the actuator torques `tau`, of which `aba` makes accelerations (with or
    without `joint_friction`). `rnea` adds to their parts along the degrees of freedom armature, friction and springs.
    The reaction on the body before is the opposite wrench.

    **Raises** `ModelError` unless just one of `a` and `tau` is given, and for a model with closed loops; `ShapeError`
    where a shape does not fit.
    """
    form = newton_euler(model, q, v, _accelerations_of(model, q, v, a, tau, f_ext, joint_friction), f_ext)
    return jnp.concatenate([form.joint_force, form.joint_moment], axis=-1)


@compiled("joint_friction")
def base_reaction(
    model: Model,
    q: Configuration,
    v: Velocity,
    *,
    a: Velocity | None = None,
    tau: Torque | None = None,
    f_ext: Wrenches | None = None,
    joint_friction: bool = True,
) -> Float[Array, "*batch 6"]:
    """The wrench `[force, moment]` `[*batch, 6]`, N and N m, that the world exerts on the robot through the joints that
    hold it there: in world axes, moment about the world's origin. Zero for a free base that nothing drives.

    **Arguments** and errors as for `joint_reactions`.
    """
    reactions = joint_reactions(model, q, v, a=a, tau=tau, f_ext=f_ext, joint_friction=joint_friction)
    poses = forward_kinematics(model, q)
    roots = [i for i, parent in enumerate(model.topology.parents) if parent < 0]
    R, p = poses.rotation[..., roots, :, :], poses.translation[..., roots, :]
    force, moment = (product("...ij,...j->...i", R, reactions[..., roots, x]) for x in (slice(3), slice(3, 6)))
    moment = moment + jnp.cross(p, force)
    return jnp.concatenate([force.sum(axis=-2), moment.sum(axis=-2)], axis=-1)


def _accelerations_of(model: Model, q, v, a, tau, f_ext, joint_friction: bool):
    require_no_loops(model.topology, "joint_reactions", "its joints also hold the forces of the loops")
    if (a is None) == (tau is None):
        count = "both" if tau is not None else "none"
        raise ModelError(f"either a, accelerations, or tau, actuator torques, is needed; {count} of them given")
    return a if tau is None else aba(model, q, v, tau, f_ext, joint_friction=joint_friction)
