"""Regressors: what is linear in the inertial parameters of the bodies, as a matrix times the parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions._algorithm import batched, full, rows
from jaxdyn.algorithms.recursions._equations_of_motion import (
    absolute_poses,
    gravity_rows,
    kinematics,
    velocities,
    velocity_accelerations,
)
from jaxdyn.algorithms.recursions._unit_wrenches import (
    by_body,
    in_bodies,
    less_gravity,
    on_dofs,
    unit_momenta,
    unit_wrenches,
)
from jaxdyn.model import Model
from jaxdyn.spatial import Motion
from jaxdyn.tree._rows import matrix_to_leading
from jaxdyn.tree._walks import sum_down, take_rows


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
    chosen = (
        (armature, lambda: a),
        (viscous, lambda: v),
        (coulomb, lambda: jnp.tanh(v / model.friction_velocity)),
        (offset, lambda: jnp.ones_like(v)),
    )
    eye = jnp.eye(model.nv, dtype=Y.dtype)
    columns = [x()[..., None].astype(Y.dtype) * eye for on, x in chosen if on]
    return jnp.concatenate([Y, *(jnp.broadcast_to(x, (*Y.shape[:-1], model.nv)) for x in columns)], axis=-1)


@batched(lambda model: (model.nv, 10 * model.nb), forces=(-2,))
def _inertial_regressor(model: Model, q: Configuration, v: Velocity, a: Velocity) -> Float[Array, "*batch nv ten_nb"]:
    (q, v, a), batch, rank = rows(model, q=q, v=v, a=a)
    poses, S = kinematics(model, q, rank)
    velocity, acceleration = _accelerations(model, S, v, a, rank)
    poses, velocity, acceleration = in_bodies(model, poses, velocity, acceleration)
    return on_dofs(model, S, poses, unit_wrenches(velocity, velocity, acceleration), batch)


@batched(lambda model: (model.nv, 10 * model.nb), forces=(-2,))
def slotine_li_regressor(
    model: Model, q: Configuration, v: Velocity, v_r: Velocity, a_r: Velocity
) -> Float[Array, "*batch nv ten_nb"]:
    """`Y(q, v, v_r, a_r)` `[*batch, nv, 10 nb]` with `M(q) a_r + C(q, v) v_r + g(q) = Y p`, for adaptive control.

    `v_r` and `a_r` `[*batch, nv]` are the reference velocity and acceleration, `p` is `model.inertial_parameters`
    flattened, and `C` is `coriolis_matrix`, for which `dM/dt - 2 C` is skew, as the proof of stability needs (Slotine &
    Li, On the adaptive control of robot manipulators, 1987; by recursion: Niemeyer & Slotine 1991). Joint friction,
    springs and armature are not in it. With `v_r = v` and `a_r = a` it is `torque_regressor`.
    """
    (q, v, v_r, a_r), batch, rank = rows(model, q=q, v=v, v_r=v_r, a_r=a_r)
    poses, S = kinematics(model, q, rank)
    topology = model.topology
    _, velocity = velocities(topology, S, v)
    across, reference = velocities(topology, S, v_r)
    # The reference velocity's rate, with the columns S moving as the robot does: S a_r + dS/dt v_r.
    acceleration = sum_down(topology.dofs, S * a_r + take_rows(velocity, topology.mover).cross(across))
    poses, *motions = in_bodies(model, poses, velocity, reference, less_gravity(model, acceleration, rank))
    return on_dofs(model, S, poses, unit_wrenches(*motions), batch)


@batched(lambda model: (model.nb, 6, 10))
def body_regressor(model: Model, q: Configuration, v: Velocity, a: Velocity) -> Float[Array, "*batch nb 6 10"]:
    """`Y` `[*batch, nb, 6, 10]`: for each body, `Y p` is the wrench `[force, moment]` that its motion takes against
    gravity, `I a + v x* I v - I g`, in its axes about its frame's origin, N and N m, for its ten inertial parameters.

    The sum over a subtree is what the joint before it transmits (Atkeson, An & Hollerbach 1986, section 3).
    """
    (q, v, a), batch, rank = rows(model, q=q, v=v, a=a)
    poses, S = kinematics(model, q, rank)
    velocity, acceleration = _accelerations(model, S, v, a, rank)
    _, velocity, acceleration = in_bodies(model, poses, velocity, acceleration)
    return by_body(unit_wrenches(velocity, velocity, acceleration), batch)


@batched(lambda model: (model.nv, 10 * model.nb), forces=(-2,))
def momentum_regressor(model: Model, q: Configuration, v: Velocity) -> Float[Array, "*batch nv ten_nb"]:
    """`Y(q, v)` `[*batch, nv, 10 nb]` with the generalized momentum `M(q) v = Y p + armature v`, for
    `model.inertial_parameters` flattened, `p`.

    Its rate gives a regressor of torques without accelerations: `tau + C(q, v)^T v - g(q) = d(M v)/dt`, with the `C` of
    `coriolis_matrix`. The rows of a free base are the momentum of all that it carries, in the base's axes.

    In kg m^2/s, or kg m/s, for a unit of each parameter. The rate of the momentum: De Luca, Albu-Schaffer, Haddadin &
    Hirzinger, Collision detection and safe reaction with the DLR-III lightweight manipulator arm, IROS 2006.
    """
    (q, v), batch, rank = rows(model, q=q, v=v)
    poses, S = kinematics(model, q, rank)
    poses, velocity = in_bodies(model, poses, velocities(model.topology, S, v)[1])
    return on_dofs(model, S, poses, unit_momenta(velocity), batch)


def _accelerations(model: Model, S: Motion, v, a, rank: int) -> tuple[Motion, Motion]:
    """Rows `[nv]`: velocities, and accelerations relative to free fall."""
    topology = model.topology
    joint, velocity = velocities(topology, S, v)
    acceleration = sum_down(topology.dofs, S * a + velocity_accelerations(topology, joint, velocity))
    return velocity, less_gravity(model, acceleration, rank)


class EnergyRegressors(NamedTuple):
    """Each `[*batch, 10 nb]`."""

    kinetic: Float[Array, "*batch ten_nb"]
    potential: Float[Array, "*batch ten_nb"]


def _energy_shapes(model: Model) -> Any:
    return jax.tree.map(lambda _: (10 * model.nb,), EnergyRegressors(*jnp.zeros(2)))


@batched(_energy_shapes)
def energy_regressors(model: Model, q: Configuration, v: Velocity) -> EnergyRegressors:
    """The regressors `kinetic` and `potential`, each `[*batch, 10 nb]`, whose products with the inertial parameters of
    all bodies are the energies in J, without those of rotors (armature) and springs.

    `v . I(p) v / 2` and `-g . (m x + R h)`, zero for a mass at the world's origin, are linear in the parameters
    (Gautier & Khalil, On the identification of the inertial parameters of robots, 1988). With `tau . v` for their rate
    they identify a robot without accelerations.
    """
    (q, v), batch, rank = rows(model, q=q, v=v)
    poses, S = kinematics(model, q, rank)
    _, velocity = in_bodies(model, poses, velocities(model.topology, S, v)[1])
    kinetic = [0.5 * velocity.dot(momentum) for momentum in unit_momenta(velocity)]
    # The mass raised at the origin, and the first moment along gravity in the body's axes.
    at = take_rows(absolute_poses(model, q, rank), model.topology.body_dofs)
    g = gravity_rows(model, rank)
    local = at.rotation.apply_transpose(g)
    zero = jnp.zeros_like(local.x)
    potential = [-at.translation.dot(g), -local.x, -local.y, -local.z, *[zero] * 6]

    def flat(parts):
        table = matrix_to_leading(jnp.stack([full(x, batch) for x in parts], axis=1))
        return table.reshape((*batch, 10 * model.nb))

    return EnergyRegressors(flat(kinetic), flat(potential))
