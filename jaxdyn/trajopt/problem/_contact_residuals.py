"""Residuals of the forces of contacts of `PhasedDynamics`, and of distances from terrain."""

import abc
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import ModelError, require_choice, require_last_axes, require_shape
from jaxdyn._types import Array, Float, leaf_of
from jaxdyn.algorithms import frame_jacobian, frame_pose
from jaxdyn.geometry import AbstractSurface
from jaxdyn.spatial import Vec3
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics
from jaxdyn.trajopt.problem._phased_dynamics import PhasedDynamics
from jaxdyn.trajopt.problem._residuals import (
    AbstractResidual,
    Linear,
    StateOnlyResidual,
    jacobian_by_state,
    robot_state,
)


class _ForceResidual(AbstractResidual):
    """A function of the forces of contacts and of the configuration."""

    @abc.abstractmethod
    def of_forces(self, dynamics: PhasedDynamics, forces, q, k) -> Float[Array, "m"]:
        """The residual for forces `[contacts, 6]` of `PhasedDynamics.contact_forces`."""

    def __call__(self, dynamics, x, u, k):
        phased = _phased(dynamics, self, u)
        return self.of_forces(phased, phased.contact_forces(x, u, k), x[: phased.model.nq], k)

    def linearize(self, dynamics, x, u, k):
        phased = _phased(dynamics, self, u)
        (forces, by_x, by_u), q = phased.linearized_contact_forces(x, u, k), x[: phased.model.nq]
        slopes = jax.jacrev(lambda forces: self.of_forces(phased, forces, q, k))(forces)
        by_x, by_u = (jnp.tensordot(slopes, J, 2) for J in (by_x, by_u))
        turned = self.by_configuration(phased, forces, q, k)
        r = self.of_forces(phased, forces, q, k)
        return Linear(r, by_x if turned is None else by_x + jacobian_by_state(phased, turned), by_u)

    def by_configuration(self, dynamics: PhasedDynamics, forces, q, k) -> Float[Array, "m nv"] | None:
        """The derivative by the displacement of the configuration with the forces held, if it is not zero."""
        return None


def _phased(dynamics: AbstractDynamics, residual: AbstractResidual, u) -> PhasedDynamics:
    name = type(residual).__name__
    if not isinstance(dynamics, PhasedDynamics):
        raise ModelError(
            f"{name} needs PhasedDynamics, not {type(dynamics).__name__}; put it into an InnerResidual where other "
            "dynamics are around them"
        )
    if u is None:
        raise ModelError(f"{name} cannot stand at the end of the horizon, where no forces act")
    return dynamics


class ContactForceResidual(_ForceResidual):
    """`matrix @ wrench - target` for the wrench `[force, moment]` of a contact of `PhasedDynamics`, N and N m, in world
    axes; zero at stages at which the contact does not hold.

    `matrix` `[m, 6]` is the identity by default, and `target` `[m]` zero.
    """

    frame: str = eqx.field(static=True)
    target: Float[Array, "m"] | None = eqx.field(
        default=None, converter=leaf_of("ContactForceResidual: `target`", optional=True)
    )
    matrix: Float[Array, "m 6"] | None = eqx.field(
        default=None, converter=leaf_of("ContactForceResidual: `matrix`", optional=True)
    )

    def __check_init__(self):
        if self.matrix is not None:
            require_last_axes(self.matrix, (6,), "the matrix of a ContactForceResidual", "force (3) and moment (3)")

    def of_forces(self, dynamics, forces, q, k):
        number = dynamics.contact(self.frame)
        wrench = forces[number]
        r = wrench if self.matrix is None else self.matrix.astype(wrench.dtype) @ wrench
        if self.target is None:
            return r
        require_shape(self.target, r.shape, "the target of a ContactForceResidual", f"{len(r)} components")
        # Forces are zero where the contact does not hold.
        return r - self.target.astype(r.dtype) * dynamics.holding(k)[number].astype(r.dtype)


class FrictionConeResidual(_ForceResidual):
    """How far the forces of all contacts of `PhasedDynamics` are inside of their friction cones, N: at least zero where
    contacts neither slip nor pull, so `Constraint(FrictionConeResidual(0.7), 0.0, jnp.inf)` keeps them there, and
    `SoftConstraintCost(FrictionConeResidual(0.7), lower=0.0)` is its price.

    With the force's parts `n` along the normal and `t1`, `t2` across it, a contact has the components
    `mu n - t1, mu n + t1, mu n - t2, mu n + t2, n` (`"pyramid"`), or `mu n + width - sqrt(t1^2 + t2^2 + width^2), n`
    (`"cone"`, smooth at the tip). Those of a contact that does not hold are 1, which is inside and has no derivative.

    - `friction`: the coefficient, a number or `[contacts]`.
    - `normal` `[3]` or `[contacts, 3]`: the normals of the terrain, of any length; they point up, `z > 0`.
    - `width`: N.
    """

    friction: Float[Array, "*contacts"] = eqx.field(converter=leaf_of("FrictionConeResidual: `friction`"))
    normal: Float[Array, "*contacts 3"] = eqx.field(
        default=(0.0, 0.0, 1.0), converter=leaf_of("FrictionConeResidual: `normal`")
    )
    shape: str = eqx.field(default="pyramid", static=True)
    width: Float[Array, ""] = eqx.field(default=1.0, converter=leaf_of("FrictionConeResidual: `width`"))

    def __check_init__(self):
        require_choice(self.shape, ("pyramid", "cone"), "shape of a FrictionConeResidual")
        require_last_axes(self.normal, (3,), "the normal of a FrictionConeResidual", "a direction")

    def of_forces(self, dynamics, forces, q, k):
        count, dtype = len(forces), forces.dtype
        require_shape(self.friction, (count,) if self.friction.ndim else (), "friction", "a number for each contact")
        mu = jnp.broadcast_to(self.friction, (count,)).astype(dtype)
        t1, t2, n = _components(forces[:, :3], jnp.broadcast_to(self.normal, (count, 3)).astype(dtype))
        if self.shape == "pyramid":
            rows = jnp.stack([mu * n - t1, mu * n + t1, mu * n - t2, mu * n + t2, n], axis=1)
        else:
            width = self.width.astype(dtype)
            rows = jnp.stack([mu * n + width - jnp.sqrt(t1 * t1 + t2 * t2 + width * width), n], axis=1)
        return _inside(rows, dynamics.holding(k)[:, None]).ravel()


class CenterOfPressureResidual(_ForceResidual):
    """How far the center of pressure of a surface of `PhasedDynamics` is inside of a rectangle, times the normal force,
    N m: at least zero inside. With the force `n` along the frame's z axis, the moments `m1`, `m2` about its x and y
    axes, and half the sides `a`, `b` of the rectangle around its origin: `n a - m2, n a + m2, n b - m1, n b + m1`.
    Components of a surface that does not hold are 1, which is inside.

    `half_sizes` `[2]`: along the frame's x and y axes, m. For the yaw moment and others, see `ContactForceResidual`.
    """

    frame: str = eqx.field(static=True)
    half_sizes: Float[Array, "2"] = eqx.field(converter=leaf_of("CenterOfPressureResidual: `half_sizes`"))

    def __check_init__(self):
        require_shape(self.half_sizes, (2,), "half_sizes of a CenterOfPressureResidual", "along x and y, m")

    def of_forces(self, dynamics, forces, q, k):
        return self._of_axes(dynamics, forces, frame_pose(dynamics.model, q, self.frame).rotation, k)

    def by_configuration(self, dynamics, forces, q, k):
        R = frame_pose(dynamics.model, q, self.frame).rotation
        by_axes = jax.jacrev(lambda R: self._of_axes(dynamics, forces, R, k))(R)
        turning = frame_jacobian(dynamics.model, q, self.frame)[3:]
        # A turn by w moves the axes, which are the columns of R, by w x R.
        turned = jnp.cross(turning.T[:, None, :], R.T[None], axis=-1)
        return jnp.einsum("mij,kji->mk", by_axes, turned)

    def _of_axes(self, dynamics, forces, R, k):
        number = dynamics.contact(self.frame)
        if dynamics.contacts[number][1] != "surface":
            raise ModelError(f"CenterOfPressureResidual: the contact {self.frame!r} is a point; a surface is needed")
        a, b = self.half_sizes.astype(forces.dtype)
        n, m1, m2 = R[:, 2] @ forces[number, :3], R[:, 0] @ forces[number, 3:], R[:, 1] @ forces[number, 3:]
        rows = jnp.stack([n * a - m2, n * a + m2, n * b - m1, n * b + m1])
        return _inside(rows, dynamics.holding(k)[number])


def _inside(rows, holds):
    """Components that are zero at the bounds of what is allowed, or 1 where a contact does not hold."""
    return jnp.where(holds > 0, rows, 1.0)


def _components(forces, normals) -> tuple[Any, Any, Any]:
    """The parts of forces across the normals, in two directions, and along them."""
    n = normals / jnp.sqrt((normals * normals).sum(axis=-1, keepdims=True))
    # The turn by the least angle that takes z to the normal takes x and y to these.
    x, y, z = n[:, 0], n[:, 1], n[:, 2]
    along = (x * forces[:, 0] + y * forces[:, 1]) / (1 + z) + forces[:, 2]
    return forces[:, 0] - x * along, forces[:, 1] - y * along, (forces * n).sum(axis=-1)


class TerrainClearanceResidual(StateOnlyResidual):
    """The distances `[len(frames)]` (m) of the origins of frames from a terrain, a `Plane`, `HeightField` or
    `SignedDistance`; negative below it. `TimeVarying` constraints with other lower bounds at each stage lift feet that
    swing."""

    frames: tuple[str, ...] = eqx.field(static=True, converter=lambda x: (x,) if isinstance(x, str) else tuple(x))
    terrain: AbstractSurface

    def __init__(self, frames: str | Sequence[str], terrain: AbstractSurface):
        """**Raises** `ModelError` for a terrain that is no surface."""
        if not isinstance(terrain, AbstractSurface):
            raise ModelError(
                f"the terrain of a TerrainClearanceResidual is {type(terrain).__name__}; give a surface, such as "
                "jaxdyn.Plane or jaxdyn.HeightField"
            )
        self.frames, self.terrain = frames, terrain  # pyright: ignore[reportAttributeAccessIssue]

    def __call__(self, dynamics, x, u, k):
        model, q, _ = robot_state(dynamics, self, x)
        return jnp.stack([self._distance(frame_pose(model, q, frame).translation) for frame in self.frames])

    def linearize(self, dynamics, x, u, k):
        model, q, _ = robot_state(dynamics, self, x)
        value, slope = zip(
            *(jax.value_and_grad(self._distance)(frame_pose(model, q, frame).translation) for frame in self.frames),
            strict=True,
        )
        J = jnp.stack([g @ frame_jacobian(model, q, frame)[:3] for g, frame in zip(slope, self.frames, strict=True)])
        return Linear(jnp.stack(value), jacobian_by_state(dynamics, J), None)

    def _distance(self, point):
        terrain = jax.tree.map(lambda a: jnp.asarray(a).astype(point.dtype), self.terrain)
        return terrain.distance(Vec3(*point))[0].reshape(())
