"""Mechanical energy, its gradient, and the power of everything that changes it."""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp

from jaxdyn._compile import compiled
from jaxdyn._types import Array, Configuration, Float, Torque, Velocity, Wrenches
from jaxdyn.algorithms._energy import kinetic_energy, potential_energy
from jaxdyn.algorithms._rnea import generalized_gravity, spring_torque
from jaxdyn.algorithms.recursions import Robot, algorithm, external_forces, joint_friction_law, kinematics, velocities
from jaxdyn.model import Model


@compiled()
def mechanical_energy(model: Model, q: Configuration, v: Velocity) -> Float[Array, "*batch"]:
    """The energy `kinetic_energy + potential_energy` `[*batch]`, J; its rate is `power(...).total`."""
    return kinetic_energy(model, q, v) + potential_energy(model, q)


@compiled()
def potential_energy_gradient(model: Model, q: Configuration) -> Float[Array, "*batch nv"]:
    """The gradient of `potential_energy` on the tangent space, `generalized_gravity + spring_torque`, `[*batch, nv]`,
    N m or N: component `j` is the rate of the energy along `model.integrate(q, s e_j)`."""
    return generalized_gravity(model, q) + spring_torque(model, q)


class Power(NamedTuple):
    """The power that flows into the robot, each part `[*batch]`, W."""

    actuators: Float[Array, "*batch"]
    """`tau . v`"""
    friction: Float[Array, "*batch"]
    """`-friction(v) . v`, never positive."""
    external: Float[Array, "*batch"]
    """The power of the external wrenches on the bodies."""

    @property
    def total(self) -> Float[Array, "*batch"]:
        """The rate of `mechanical_energy`."""
        return self.actuators + self.friction + self.external


@algorithm()
def power(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> Power:
    """The power of the actuators, of joint friction and of external wrenches, `[*batch]` each, W.

    Their sum is the rate of `mechanical_energy` where `v` changes at the rate `aba(model, q, v, tau, f_ext)`. Arguments
    and errors as for `aba`.
    """
    friction = external = robot.zeros().sum(axis=0)
    if joint_friction:
        friction = -(joint_friction_law(robot).torque(v) * v).sum(axis=0)
    if f_ext is not None:
        poses, S = kinematics(robot, q)
        _, velocity = velocities(robot, S, v)
        external = velocity.dot(external_forces(robot, poses, f_ext)).sum(axis=0)
    return Power(jnp.sum(tau * v, axis=0), friction, external)
