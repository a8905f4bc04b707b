"""The torque regressor: inverse dynamics as a matrix times the inertial parameters."""

from __future__ import annotations

import jax.numpy as jnp

from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms._boundary import batched, full, rows
from jaxdyn.algorithms._terms import gravity_rows, kinematics, velocities, velocity_accelerations
from jaxdyn.model import Model
from jaxdyn.model._traversal import sum_down, take_rows
from jaxdyn.spatial import Force, Inertia, Mat3, Motion, Sym3, Vec3


@batched(lambda model: (model.nv, 10 * model.nb), forces=(-2,))
def torque_regressor(model: Model, q: Configuration, v: Velocity, a: Velocity) -> Float[Array, "*batch nv ten_nb"]:
    """`Y(q, v, a)` `[*batch, nv, 10 nb]` with `rnea = Y p` for the inertial parameters `p` of all bodies in order.

    `p` is `model.inertial_parameters` flattened; joint friction, springs and armature are not in it. For body `b` in
    the subtree of joint `j`, the block is `S_j . (I(p_b) a_b + v_b x* I(p_b) v_b)`, linear in `p_b`, with everything in
    the body's own axes (Atkeson, An & Hollerbach 1986, section 3).
    """
    (q, v, a), batch, rank = rows(model, q=q, v=v, a=a)
    topology = model.topology
    poses, S = kinematics(model, q, rank)
    joint, velocity = velocities(topology, S, v)
    acceleration = sum_down(topology.dofs, S * a + velocity_accelerations(topology, joint, velocity))
    acceleration = Motion(acceleration.angular, acceleration.linear - gravity_rows(model, rank))
    poses, velocity, acceleration = take_rows((poses, velocity, acceleration), topology.body_dofs)
    R = poses.rotation

    def local(motion: Motion) -> Motion:
        moved = motion.at(poses.translation)
        return Motion(R.apply_transpose(moved.angular), R.apply_transpose(moved.linear))

    velocity, acceleration = local(velocity), local(acceleration)
    mask = jnp.asarray(topology.moves_body.T.reshape((model.nv, model.nb) + (1,) * rank), q.dtype)

    # Every pair of a degree of freedom (first axis) and a body (second axis): S in the body's axes at its origin.
    def over_bodies(x: Vec3) -> Vec3:
        return Vec3(x.x[None], x.y[None], x.z[None])

    def over_dofs(x: Vec3) -> Vec3:
        return Vec3(x.x[:, None], x.y[:, None], x.z[:, None])

    axes = Mat3(over_bodies(R.x), over_bodies(R.y), over_bodies(R.z))
    column = Motion(over_dofs(S.angular), over_dofs(S.linear)).at(over_bodies(poses.translation))
    column = Motion(axes.apply_transpose(column.angular), axes.apply_transpose(column.linear)) * mask
    parts = []
    for k in range(10):
        m, hx, hy, hz, *moments = (1.0 if i == k else 0.0 for i in range(10))
        unit = Inertia(m, Vec3(hx, hy, hz), Sym3(*moments))
        force = unit.apply(acceleration) + velocity.cross_force(unit.apply(velocity))
        parts.append(column.dot(Force(over_bodies(force.moment), over_bodies(force.force))))
    Y = full(jnp.stack(parts, axis=2), batch)
    Y = jnp.moveaxis(Y, (0, 1, 2), (-3, -2, -1))
    return Y.reshape((*batch, model.nv, 10 * model.nb))
