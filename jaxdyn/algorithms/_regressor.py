"""Regressors: matrices whose products with the inertial parameters of the bodies are torques, momenta or energies."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from jaxdyn._errors import naming_arguments
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions import (
    Robot,
    absolute_poses,
    algorithm,
    bodies_axes,
    kinematics,
    project_on_dofs,
    unit_momenta,
    unit_wrenches,
    velocities,
    velocity_accelerations,
    wrenches_by_body,
)
from jaxdyn.friction import JointFriction
from jaxdyn.model import Model
from jaxdyn.spatial import Motion
from jaxdyn.tree import sum_down, take_rows


@naming_arguments
def torque_regressor(
    model: Model,
    q: Configuration,
    v: Velocity,
    a: Velocity,
    *,
    armature: bool = False,
    viscous: bool = False,
    coulomb: bool = False,
    offset: bool = False,
) -> Float[Array, "*batch nv columns"]:
    """`Y(q, v, a)` `[*batch, nv, 10 nb]` with `rnea = Y p` for the inertial parameters `p` of all bodies in order.

    `p` is `model.inertial_parameters` flattened; joint friction, springs and armature are not in it. For body `b` in
    the subtree of joint `j`, the block is `S_j . (I(p_b) a_b + v_b x* I(p_b) v_b)`, linear in `p_b` (Atkeson, An &
    Hollerbach 1986, section 3).

    `armature`, `viscous`, `coulomb`, `offset`: whether `nv` more columns each follow, in this order, diagonal: the
    torque's derivatives `a`, `v`, `tanh(v / friction_velocity)` and 1 by the model's `armature`, `damping`, `friction`,
    and by a constant torque of each degree of freedom.
    """
    Y = _inertial_regressor(model, q, v, a)
    v, a = jnp.asarray(v), jnp.asarray(a)
    friction = JointFriction(model.damping, model.friction, model.friction_velocity).columns(v)
    chosen = zip((armature, viscous, coulomb, offset), (a, *friction, jnp.ones_like(v)), strict=True)
    eye = jnp.eye(model.nv, dtype=Y.dtype)
    columns = [x[..., None].astype(Y.dtype) * eye for included, x in chosen if included]
    return jnp.concatenate([Y, *(jnp.broadcast_to(x, (*Y.shape[:-1], model.nv)) for x in columns)], axis=-1)


@algorithm()
def _inertial_regressor(robot: Robot, q: Configuration, v: Velocity, a: Velocity) -> Float[Array, "*batch nv ten_nb"]:
    poses, S = kinematics(robot, q)
    velocity, acceleration = _accelerations(robot, S, v, a)
    poses, velocity, acceleration = bodies_axes(robot, poses, velocity, acceleration)
    return project_on_dofs(robot, S, poses, unit_wrenches(velocity, velocity, acceleration))


@algorithm()
def slotine_li_regressor(
    robot: Robot, q: Configuration, v: Velocity, v_r: Velocity, a_r: Velocity
) -> Float[Array, "*batch nv ten_nb"]:
    """`Y(q, v, v_r, a_r)` `[*batch, nv, 10 nb]` with `M(q) a_r + C(q, v) v_r + g(q) = Y p`, for adaptive control.

    `v_r` and `a_r` `[*batch, nv]` are the reference velocity and acceleration, `p` is `model.inertial_parameters`
    flattened, and `C` is `coriolis_matrix`, for which `dM/dt - 2 C` is skew, as the proof of stability needs (Slotine &
    Li, On the adaptive control of robot manipulators, 1987; by recursion: Niemeyer & Slotine 1991). Joint friction,
    springs and armature are not in it. With `v_r = v` and `a_r = a` it is `torque_regressor`.
    """
    poses, S = kinematics(robot, q)
    _, velocity = velocities(robot, S, v)
    across, reference = velocities(robot, S, v_r)
    # The reference velocity's rate, with the columns S moving as the robot does: S a_r + dS/dt v_r.
    acceleration = sum_down(robot.tree, S * a_r + take_rows(velocity, robot.topology.mover).cross(across))
    poses, *motions = bodies_axes(robot, poses, velocity, reference, _less_gravity(robot, acceleration))
    return project_on_dofs(robot, S, poses, unit_wrenches(*motions))


@algorithm()
def body_regressor(robot: Robot, q: Configuration, v: Velocity, a: Velocity) -> Float[Array, "*batch nb 6 10"]:
    """`Y` `[*batch, nb, 6, 10]`: for each body, `Y p` is the wrench `[force, moment]` that its motion takes against
    gravity, `I a + v x* I v - I g`, in its axes about its frame's origin, N and N m, for its ten inertial parameters.

    The sum over a subtree is what the joint before it transmits (Atkeson, An & Hollerbach 1986, section 3).
    """
    poses, S = kinematics(robot, q)
    velocity, acceleration = _accelerations(robot, S, v, a)
    _, velocity, acceleration = bodies_axes(robot, poses, velocity, acceleration)
    return wrenches_by_body(robot, unit_wrenches(velocity, velocity, acceleration))


@algorithm()
def momentum_regressor(robot: Robot, q: Configuration, v: Velocity) -> Float[Array, "*batch nv ten_nb"]:
    """`Y(q, v)` `[*batch, nv, 10 nb]` with the generalized momentum `M(q) v = Y p + armature v`, for
    `model.inertial_parameters` flattened, `p`.

    Its rate gives a regressor of torques without accelerations: `tau + C(q, v)^T v - g(q) = d(M v)/dt`, with the `C` of
    `coriolis_matrix`. The rows of a free base are the momentum of all that it carries, in the base's axes.

    In kg m^2/s, or kg m/s, for a unit of each parameter. The rate of the momentum: De Luca, Albu-Schaffer, Haddadin &
    Hirzinger, Collision detection and safe reaction with the DLR-III lightweight manipulator arm, IROS 2006.
    """
    poses, S = kinematics(robot, q)
    poses, velocity = bodies_axes(robot, poses, velocities(robot, S, v)[1])
    return project_on_dofs(robot, S, poses, unit_momenta(velocity))


def _accelerations(robot: Robot, S: Motion, v, a) -> tuple[Motion, Motion]:
    """Return velocities, and accelerations relative to free fall, rows `[nv]`."""
    joint, velocity = velocities(robot, S, v)
    acceleration = sum_down(robot.tree, S * a + velocity_accelerations(robot, joint, velocity))
    return velocity, _less_gravity(robot, acceleration)


def _less_gravity(robot: Robot, acceleration: Motion) -> Motion:
    return Motion(acceleration.angular, acceleration.linear - robot.gravity_vector)


class EnergyRegressors(NamedTuple):
    """The regressors of the energies, each `[*batch, 10 nb]`."""

    kinetic: Float[Array, "*batch ten_nb"]
    potential: Float[Array, "*batch ten_nb"]


@algorithm()
def energy_regressors(robot: Robot, q: Configuration, v: Velocity) -> EnergyRegressors:
    """The regressors `kinetic` and `potential`, each `[*batch, 10 nb]`, whose products with the inertial parameters of
    all bodies are the energies in J, without those of rotors (armature) and springs.

    `v . I(p) v / 2` and `-g . (m x + R h)`, zero for a mass at the world's origin, are linear in the parameters
    (Gautier & Khalil, On the identification of the inertial parameters of robots, 1988). With `tau . v` for their rate
    they identify a robot without accelerations.
    """
    poses, S = kinematics(robot, q)
    _, velocity = bodies_axes(robot, poses, velocities(robot, S, v)[1])
    kinetic = [0.5 * velocity.dot(momentum) for momentum in unit_momenta(velocity)]
    # The mass raised at the origin, and the first moment along gravity in the body's axes.
    pose = take_rows(absolute_poses(robot, q), robot.topology.body_dofs)
    g = robot.gravity_vector
    local = pose.rotation.apply_transpose(g)
    zero = jnp.zeros_like(local.x)
    potential = [-pose.translation.dot(g), -local.x, -local.y, -local.z, *[zero] * 6]

    def by_parameter(parts):
        table = jnp.stack(jnp.broadcast_arrays(*parts), axis=1)
        return table.reshape((-1, *table.shape[2:]))

    return EnergyRegressors(by_parameter(kinetic), by_parameter(potential))
