"""Mechanical energy, its gradient, and the power of everything that changes it."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from jaxdyn._compile import compiled
from jaxdyn._types import Array, Configuration, Float, Velocity, Wrenches
from jaxdyn.algorithms._energy import kinetic_energy, potential_energy
from jaxdyn.algorithms._rnea import generalized_gravity, spring_torque
from jaxdyn.algorithms.recursions._algorithm import batched, full, rows, with_wrenches
from jaxdyn.algorithms.recursions._equations_of_motion import external_forces, friction_torque, kinematics, velocities
from jaxdyn.model import Model


@compiled()
def mechanical_energy(model: Model, q: Configuration, v: Velocity) -> Float[Array, "*batch"]:
    """`kinetic_energy + potential_energy` `[*batch]`, J; its rate is `power(...).total`."""
    return kinetic_energy(model, q, v) + potential_energy(model, q)


@compiled()
def potential_energy_gradient(model: Model, q: Configuration) -> Float[Array, "*batch nv"]:
    """The gradient of `potential_energy` on the tangent space, `generalized_gravity + spring_torque`, `[*batch, nv]`,
    N m or N: component `j` is the rate of the energy along `model.integrate(q, s e_j)`."""
    return generalized_gravity(model, q) + spring_torque(model, q)


class Power(NamedTuple):
    """Each `[*batch]`, W: what flows into the robot."""

    actuators: Float[Array, "*batch"]
    """`tau . v`"""
    friction: Float[Array, "*batch"]
    """`-friction(v) . v`, never positive."""
    external: Float[Array, "*batch"]
    """Of the external wrenches on the bodies."""

    @property
    def total(self) -> Float[Array, "*batch"]:
        """The rate of `mechanical_energy`."""
        return self.actuators + self.friction + self.external


@compiled("joint_friction")
def power(
    model: Model,
    q: Configuration,
    v: Velocity,
    tau: Velocity,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> Power:
    """The power of the actuators, of joint friction and of external wrenches, `[*batch]` each, W.

    Their sum is the rate of `mechanical_energy` where `v` changes at the rate `aba(model, q, v, tau, f_ext)`. Arguments
    and errors as for `aba`.
    """
    rows(model, q=q, v=v, tau=tau)
    friction, external = _losses(model, q, v, f_ext, joint_friction=joint_friction)
    actuators = jnp.broadcast_to((jnp.asarray(tau) * jnp.asarray(v)).sum(axis=-1), friction.shape)
    return Power(actuators, friction, external)


@batched(lambda _: ((), ()), "joint_friction")
def _losses(model: Model, q: Configuration, v: Velocity, f_ext: Wrenches | None = None, *, joint_friction: bool = True):
    """`[*batch]` twice: the power of friction and of the external wrenches."""
    (q, v), batch, rank = rows(model, q=q, v=v)
    f_ext, batch, rank, (q, v) = with_wrenches(model, f_ext, batch, q, v)
    friction = external = jnp.zeros((1,) * rank, q.dtype)
    if joint_friction:
        friction = -(friction_torque(model, v, rank) * v).sum(axis=0)
    if f_ext is not None:
        poses, S = kinematics(model, q, rank)
        _, velocity = velocities(model.topology, S, v)
        external = velocity.dot(external_forces(model, poses, f_ext, rank)).sum(axis=0)
    return full(friction, batch), full(external, batch)
