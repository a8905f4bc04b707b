"""`Model`: a tree of rigid bodies as a pytree whose every physical quantity is an array leaf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import joints
from jaxdyn._errors import require_last_axes
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.model import _attaching, _locking, _parameter_edits, _scaling, _summary
from jaxdyn.model._edit_arguments import independent_joint
from jaxdyn.model._fields import ModelFields
from jaxdyn.model._inertia import BodyInertia
from jaxdyn.model._spanning_tree import spanning_coordinates, spanning_tree
from jaxdyn.spatial import SE3, Inertia, invert_pose, transform_inertial_parameters


class Frame(NamedTuple):
    """A frame fixed in a body, or in the world."""

    name: str
    body: str
    placement: Float[Array, "7"]


class Model(ModelFields):
    """A rigid-body model: a static `topology`, and arrays.

    Every array may have leading batch axes (as under `jax.vmap` over models), which broadcast with those of the states.
    Replace leaves with `equinox.tree_at`: programs are compiled for the structure, not for values.
    """

    @property
    def frames(self) -> dict[str, Frame]:
        """Every frame by name: bodies, links merged into bodies, and other frames."""
        bodies = (*self.body_names, "world")
        return {
            name: Frame(name, bodies[body], self.frame_placement[..., i, :])
            for i, (name, body) in enumerate(zip(self.topology.frame_names, self.topology.frame_bodies, strict=True))
        }

    def q_index(self, joint: str) -> slice:
        """The slice of a joint in `q`. **Raises** `UnknownNameError`; `ModelError` for one that mimics."""
        return self._slice(joint, self.topology.q_starts)

    def v_index(self, joint: str) -> slice:
        """The slice of a joint in `v`. **Raises** `UnknownNameError`; `ModelError` for one that mimics."""
        return self._slice(joint, self.topology.v_starts)

    def _slice(self, joint: str, starts: tuple[int, ...]) -> slice:
        advice = "its motion is in model.spanning_configuration(q) and spanning_velocity(v), at the indices of "
        i = independent_joint(self.topology, joint, advice + "model.spanning_tree()")
        return slice(starts[i], starts[i + 1])

    def spanning_tree(self) -> Model:
        """The model in which joints that mimic others are independent (Featherstone 2008, section 8.3). Armature,
        friction and springs stay with the joints that are followed."""
        return spanning_tree(self)

    def spanning_configuration(self, q: Float[Array, "*batch nq"]) -> Float[Array, "*batch nq_tree"]:
        """The configuration of `spanning_tree()`, which includes the joints that mimic others."""
        return spanning_coordinates(self, self._check(q, "q", "nq"), velocity=False)

    def spanning_velocity(self, v: Float[Array, "*batch nv"]) -> Float[Array, "*batch nv_tree"]:
        """The velocity of `spanning_tree()`, or its acceleration from an acceleration: multipliers are constant."""
        return spanning_coordinates(self, self._check(v, "v", "nv"), velocity=True)

    def neutral(self) -> Float[Array, "nq"]:
        """The configuration of zeros and identity rotations."""
        return jnp.asarray(joints.neutral(self.topology), self.dtype)

    def random_configuration(self, key: jax.Array, shape: tuple[int, ...] = ()) -> Float[Array, "*shape nq"]:
        """Random configurations: uniform between limits where they are finite, otherwise angles in [-pi, pi], shifts
        in [-1, 1] m, and rotations uniform over SO(3)."""
        return joints.random_configuration(self.topology, key, self.position_lower, self.position_upper, shape)

    def integrate(self, q: Float[Array, "*batch nq"], dv: Float[Array, "*batch nv"]) -> Float[Array, "*batch nq"]:
        """`q` displaced by `dv`, a velocity times a time: the sum for vector coordinates, the exponential of the body
        twist for ball and free joints (Pinocchio's `integrate`). Quaternions stay unit."""
        return self._apply_to_rows(joints.integrate, q=q, dv=dv)

    def difference(self, q0: Float[Array, "*batch nq"], q1: Float[Array, "*batch nq"]) -> Float[Array, "*batch nv"]:
        """The `dv` for which `integrate(q0, dv)` is `q1`, with rotations of at most half a turn."""
        return self._apply_to_rows(joints.difference, q0=q0, q1=q1)

    def chart_point(self, q0: Float[Array, "*batch nq"], x: Float[Array, "*batch nv"]) -> Float[Array, "*batch nq"]:
        """The configuration with coordinates `x` in the chart around `q0`: sums for vector coordinates and the
        positions of free joints (parent axes), exponentials for rotations. Integrators step in this chart."""
        return self._apply_to_rows(joints.chart_point, q0=q0, x=x)

    def chart_rate(
        self, q: Float[Array, "*batch nq"], x: Float[Array, "*batch nv"], v: Float[Array, "*batch nv"]
    ) -> Float[Array, "*batch nv"]:
        """The rate of the coordinates `x` of `q = chart_point(q0, x)` under the velocity `v`."""
        return self._apply_to_rows(joints.chart_rate, q=q, x=x, v=v)

    def checked(self, q: Float[Array, "*batch nq"]) -> Float[Array, "*batch nq"]:
        """`q`, with a run-time error where it has NaN, an infinite value, or a quaternion that is not unit (to 1e-3).

        Other functions of the library do not check values (a quaternion stands for its direction). Works under `jit`
        and `vmap`.
        """
        q = self._check(q, "q", "nq")
        names = ", ".join(self.joint_names)
        q = eqx.error_if(q, ~jnp.isfinite(q), f"q has NaN or infinite values; its coordinates are those of {names}")
        for start in self.topology.quaternion_starts.tolist():
            joint = self.joint_names[np.searchsorted(self.topology.q_starts, start, side="right") - 1]
            norm = jnp.linalg.norm(q[..., start : start + 4], axis=-1)
            q = eqx.error_if(
                q,
                jnp.abs(norm - 1) > 1e-3,
                f"the quaternion of joint {joint!r}, q[{start}:{start + 4}], is not unit; normalize it, "
                "or start from model.neutral()",
            )
        return q

    def link_parameters(self, link: str) -> Float[Array, "*batch 10"]:
        """Inertial parameters of one link of the robot's file about the origin of the link's frame, in its axes, also
        if it was merged into a body. **Raises** `UnknownNameError` if no link with that name moves."""
        topology = self.topology
        if link in topology.attached_links:
            inertia = self.attached_parameters[..., topology.attached_links.index(link), :]
        else:
            i = topology.body(link)
            merged = [k for k, b in enumerate(topology.attached_bodies) if b == i]
            inertia = self.inertial_parameters[..., i, :]
            if merged:
                inertia = inertia - self.attached_parameters[..., np.array(merged), :].sum(axis=-2)
        return transform_inertial_parameters(inertia, invert_pose(self.frame_placement[..., topology.frame(link), :]))

    # Edits, documented with the functions.

    def with_locked_joints(self, joints: Mapping[str, ArrayLike]) -> Model:
        """Return the model with joints fixed at coordinates, as `jaxdyn.with_locked_joints`."""
        return _locking.with_locked_joints(self, joints)

    def with_payload(self, frame: str, inertia: BodyInertia | ArrayLike, name: str | None = None) -> Model:
        """Return the model with a further inertia fixed at a frame, as `jaxdyn.with_payload`."""
        return _parameter_edits.with_payload(self, frame, inertia, name)

    def with_link_parameters(self, link: str, parameters: BodyInertia | ArrayLike) -> Model:
        """Return the model with another inertia of one link, as `jaxdyn.with_link_parameters`."""
        return _parameter_edits.with_link_parameters(self, link, parameters)

    def with_attached(self, other: Model, frame: str, placement: SE3 | ArrayLike | None = None, prefix: str = ""):
        """Return the model with another one fixed at a frame, as `jaxdyn.attach`."""
        return _attaching.attach(self, other, frame, placement, prefix)

    def with_joint_friction(self, damping=None, friction=None, friction_velocity=None) -> Model:
        """Return the model with other friction, as `jaxdyn.with_joint_friction`."""
        return _parameter_edits.with_joint_friction(self, damping, friction, friction_velocity)

    def with_armature(self, armature) -> Model:
        """Return the model with other armature, as `jaxdyn.with_armature`."""
        return _parameter_edits.with_armature(self, armature)

    def scaled(self, *, length: ArrayLike = 1.0, mass: ArrayLike = 1.0) -> Model:
        """Return the model with all lengths and masses times a factor, as `jaxdyn.scaled`."""
        return _scaling.scaled(self, length=length, mass=mass)

    def summary(self) -> str:
        """A table of bodies, joints, limits and masses, with warnings of likely errors."""
        return _summary.summary(self)

    def __repr__(self) -> str:
        return _summary.short(self)

    def _apply_to_rows(self, function, **arrays):
        """Apply a function of rows to arrays with leading batch axes; names that begin with q are configurations."""
        checked = [self._check(x, name, "nq" if name.startswith("q") else "nv") for name, x in arrays.items()]
        return joints.apply_to_rows(function, self.topology, *checked)

    def _check(self, x, name: str, size: str):
        x = jnp.asarray(x)
        n = getattr(self, size)
        require_last_axes(x, (n,), name, f"{size} = {n} for this model")
        return x


def parameters_of(inertia: Inertia) -> Float[Array, "*batch 10"]:
    """The ten inertial parameters of an inertia, in the order of `Model.inertial_parameters`."""
    h, J = inertia.first_moment, inertia.rotational
    parts = (inertia.mass, h.x, h.y, h.z, J.xx, J.xy, J.yy, J.xz, J.yz, J.zz)
    return jnp.stack(jnp.broadcast_arrays(*parts), axis=-1)
