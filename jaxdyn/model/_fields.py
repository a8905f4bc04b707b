"""The fields of a model, and what can be read off them: all that functions of models need to know of the class."""

from __future__ import annotations

from typing import Self

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._types import Array, Float
from jaxdyn.model._topology import Topology


class ModelFields(eqx.Module):
    """The static `topology`, and arrays, of a `Model`."""

    topology: Topology = eqx.field(static=True)
    joint_placement: Float[Array, "*batch nb 7"]
    """Pose of each joint (of the body, at `q = 0`) in the parent body's frame: position (m), quaternion `w x y z`."""
    joint_axis: Float[Array, "*batch na 3"]
    """Axis of each degree of freedom of every joint but ball and free, in the joint's frame; its direction counts."""
    joint_pitch: Float[Array, "*batch nh"]
    """Advance of each helical joint along its axis, m/rad."""
    inertial_parameters: Float[Array, "*batch nb 10"]
    """`m, mcx, mcy, mcz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz` of each body: mass (kg), first moment (kg m) and rotational
    inertia (kg m^2) about the origin of the body's frame, in its axes. The dynamics are linear in them."""
    armature: Float[Array, "*batch nv"]
    """Rotor inertia reflected to the joint; adds to the diagonal of the mass matrix. kg m^2 or kg."""
    damping: Float[Array, "*batch nv"]
    """Viscous friction, N m s/rad or N s/m."""
    friction: Float[Array, "*batch nv"]
    """Coulomb friction, N m or N: the torque `friction * tanh(v / friction_velocity)`."""
    friction_velocity: Float[Array, "*batch nv"]
    """Velocity over which Coulomb friction changes its sign, rad/s or m/s."""
    gravity: Float[Array, "*batch 3"]
    """Acceleration of gravity in world axes, m/s^2."""
    frame_placement: Float[Array, "*batch nf 7"]
    """Pose of each frame in its body's frame."""
    attached_parameters: Float[Array, "*batch nl 10"]
    """Inertial parameters, in the body's frame, of each link that was merged into a body (counted in
    `inertial_parameters`; kept to tell the links apart)."""
    position_lower: Float[Array, "*batch nq"]
    position_upper: Float[Array, "*batch nq"]
    velocity_limit: Float[Array, "*batch nv"]
    effort_limit: Float[Array, "*batch nv"]
    mimic_multiplier: Float[Array, "*batch nm"]
    """For each joint that mimics another, in the order of `Topology.mimics`: its coordinate is `mimic_multiplier` times
    that of the joint it follows, plus `mimic_offset`."""
    mimic_offset: Float[Array, "*batch nm"]
    stiffness: Float[Array, "*batch nv"] | None = None
    """Of joint springs, N m/rad or N/m; None where there is none."""
    spring_reference: Float[Array, "*batch nq"] | None = None
    """The configuration in which no spring acts; None where there is none."""

    @property
    def nq(self) -> int:
        """Length of a configuration `q`."""
        return self.topology.nq

    @property
    def nv(self) -> int:
        """Number of degrees of freedom, the length of `v`, `a` and `tau`."""
        return self.topology.nv

    @property
    def nb(self) -> int:
        """Number of moving bodies, which is the number of joints."""
        return self.topology.nb

    @property
    def joint_names(self) -> tuple[str, ...]:
        return self.topology.joint_names

    @property
    def body_names(self) -> tuple[str, ...]:
        return self.topology.body_names

    @property
    def dtype(self):
        """The common dtype of the physical arrays."""
        return jnp.result_type(self.inertial_parameters, self.joint_placement, self.gravity)

    @property
    def mass(self) -> Float[Array, "*batch nb"]:
        """Mass of each body, kg."""
        return self.inertial_parameters[..., 0]

    @property
    def center_of_mass(self) -> Float[Array, "*batch nb 3"]:
        """Center of mass of each body in its frame, m (NaN for a massless body)."""
        return self.inertial_parameters[..., 1:4] / self.inertial_parameters[..., :1]

    def astype(self, dtype) -> Self:
        """The same model with every array in `dtype`."""
        return jax.tree.map(lambda x: x.astype(dtype), self)
