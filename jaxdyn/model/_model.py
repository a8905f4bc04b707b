"""`Model`: a tree of rigid bodies as a pytree whose every physical quantity is an array leaf."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import joints
from jaxdyn._errors import naming_arguments, require_last_axes
from jaxdyn._types import Array, Float
from jaxdyn.model import _loop_edits, _parameter_edits, _structure_edits, _summary
from jaxdyn.model._edit_arguments import independent_joint
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._plausible_configurations import require_plausible
from jaxdyn.model._row_tables import numpy_unless_tracing
from jaxdyn.model._spanning_tree import spanning_coordinates, spanning_tree
from jaxdyn.spatial import Inertia, invert_pose, transform_inertial_parameters


class Frame(NamedTuple):
    """A frame fixed in a body, or in the world."""

    name: str
    body: str
    placement: Float[Array, "7"]


class Model(ModelFields):
    """A rigid-body model: a static `topology`, and arrays.

    Every array may have leading batch axes (as under `jax.vmap` over models), which broadcast with those of the states.
    Functions that call the algorithms under `jax.vmap` take a model without batch axes by `in_axes=None`, and one with
    some by `in_axes=model.vmap_axes()`; JAX's default maps the rows of every array, and JAX itself refuses
    that ("vmap got inconsistent sizes for array axes to be mapped") before any function of the library is called.
    Replace leaves with `equinox.tree_at`: programs are compiled for the structure, not for values. The functions that
    edit a model are methods, too: `model.with_payload(...)` is `jaxdyn.with_payload(model, ...)`, and `with_attached`
    is `jaxdyn.attach`.
    """

    @property
    def frames(self) -> dict[str, Frame]:
        """Every frame by name: bodies, links merged into bodies, and other frames."""
        bodies = (*self.body_names, "world")
        return {
            name: Frame(name, bodies[body], self.frame_placement[..., i, :])
            for i, (name, body) in enumerate(zip(self.topology.frame_names, self.topology.frame_bodies, strict=True))
        }

    def vmap_axes(self) -> Model:
        """The axes of this model for `jax.vmap(function, in_axes=(model.vmap_axes(), 0))`: 0 for the arrays that have
        batch axes, and None for the others, which all calls share. For a model without batch axes give `None` itself;
        the algorithms need no `vmap` at all, as batch axes of models and states broadcast."""
        arrays = {name: x for name in LEAVES if (x := getattr(self, name)) is not None}
        return dataclasses.replace(self, **{n: 0 if jnp.ndim(x) > LEAVES[n].axes else None for n, x in arrays.items()})

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

    @naming_arguments
    def spanning_configuration(self, q: Float[Array, "*batch nq"]) -> Float[Array, "*batch nq_tree"]:
        """The configuration of `spanning_tree()`, which includes the joints that mimic others."""
        return spanning_coordinates(self, self._check(q, "q", "nq"), velocity=False)

    @naming_arguments
    def spanning_velocity(self, v: Float[Array, "*batch nv"]) -> Float[Array, "*batch nv_tree"]:
        """The velocity of `spanning_tree()`, or its acceleration from an acceleration: multipliers are constant."""
        return spanning_coordinates(self, self._check(v, "v", "nv"), velocity=True)

    def neutral(self) -> Float[Array, "nq"]:
        """The configuration of zeros and identity rotations."""
        return jnp.asarray(joints.neutral(self.topology), self.dtype)

    @naming_arguments
    def random_configuration(self, key: jax.Array, shape: tuple[int, ...] = ()) -> Float[Array, "*shape nq"]:
        """Random configurations: uniform between limits where they are finite, otherwise angles in [-pi, pi], shifts
        in [-1, 1] m, and rotations uniform over SO(3)."""
        return joints.random_configuration(self.topology, key, self.position_lower, self.position_upper, shape)

    @naming_arguments
    def integrate(self, q: Float[Array, "*batch nq"], dv: Float[Array, "*batch nv"]) -> Float[Array, "*batch nq"]:
        """`q` displaced by `dv`, a velocity times a time: the sum for vector coordinates, the exponential of the body
        twist for ball and free joints (Pinocchio's `integrate`). Quaternions stay unit."""
        return self._apply_to_rows(joints.integrate, q=q, dv=dv)

    @naming_arguments
    def difference(self, q0: Float[Array, "*batch nq"], q1: Float[Array, "*batch nq"]) -> Float[Array, "*batch nv"]:
        """The `dv` for which `integrate(q0, dv)` is `q1`, with rotations of at most half a turn.

        The angles of continuous joints, also, differ by at most half a turn, so `integrate(q0, dv)` is `q1` but for
        whole turns of them. Angles of all other joints are numbers: a revolute joint, with limits or without, differs
        by all of its turns."""
        return self._apply_to_rows(joints.difference, q0=q0, q1=q1)

    @naming_arguments
    def integrate_jacobians(
        self, q: Float[Array, "*batch nq"], dv: Float[Array, "*batch nv"]
    ) -> tuple[Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"]]:
        """The derivatives of `integrate(q, dv)` by `q` and by `dv`, `[*batch, nv, nv]` each: the displacements of the
        result, per displacement of `q` and per change of `dv` (Pinocchio's `dIntegrate`).

        Closed forms, finite everywhere: the identity for vector coordinates; the adjoint of `exp(-dv)` and the right
        Jacobian for ball and free joints (Sola, Deray & Atchuthan, A micro Lie theory, 2018, eqs. 143-146, 174-180).
        Batch axes broadcast. **Raises** `ShapeError`."""
        by_q, by_dv = self._jacobians(joints.integrate_jacobians, 2, q=q, dv=dv)
        return by_q, by_dv

    @naming_arguments
    def difference_jacobians(
        self, q0: Float[Array, "*batch nq"], q1: Float[Array, "*batch nq"]
    ) -> tuple[Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"]]:
        """The derivatives of `difference(q0, q1)` by the displacements of `q0` and of `q1`, `[*batch, nv, nv]` each
        (Pinocchio's `dDifference`).

        Closed forms, as for `integrate_jacobians`. They are finite for all rotations; at exactly half a turn, where the
        difference jumps to its negative, they belong to the half turn that `difference` returns. Batch axes broadcast.
        **Raises** `ShapeError`."""
        by_q0, by_q1 = self._jacobians(joints.difference_jacobians, 2, q0=q0, q1=q1)
        return by_q0, by_q1

    @naming_arguments
    def chart_jacobians(
        self, q0: Float[Array, "*batch nq"], x: Float[Array, "*batch nv"], v: Float[Array, "*batch nv"]
    ) -> joints.ChartJacobians:
        """The derivatives `[*batch, nv, nv]` of `q = chart_point(q0, x)`, by the displacement of `q0` and by `x`, and
        of `chart_rate(q, x, v)`, by the displacement of `q`, by `x` and by `v`. Changes of `q` are displacements.
        **Raises** `ShapeError`."""
        return joints.ChartJacobians(*self._jacobians(joints.chart_jacobians, 5, q0=q0, x=x, v=v))

    @naming_arguments
    def chart_point(self, q0: Float[Array, "*batch nq"], x: Float[Array, "*batch nv"]) -> Float[Array, "*batch nq"]:
        """The configuration with coordinates `x` in the chart around `q0`: sums for vector coordinates and the
        positions of free joints (parent axes), exponentials for rotations. Integrators step in this chart."""
        return self._apply_to_rows(joints.chart_point, q0=q0, x=x)

    @naming_arguments
    def chart_rate(
        self, q: Float[Array, "*batch nq"], x: Float[Array, "*batch nv"], v: Float[Array, "*batch nv"]
    ) -> Float[Array, "*batch nv"]:
        """The rate of the coordinates `x` of `q = chart_point(q0, x)` under the velocity `v`."""
        return self._apply_to_rows(joints.chart_rate, q=q, x=x, v=v)

    @naming_arguments
    def checked(self, q: Float[Array, "*batch nq"]) -> Float[Array, "*batch nq"]:
        """`q`, with a run-time error where it has NaN, an infinite value, or a quaternion that is not unit (to 1e-3).

        Other functions of the library take a quaternion for its direction. Where they are called outside of `jit`, and
        values are known without waiting for a device, they raise `ModelError` for one of zeros, and warn of angles that
        are more than a turn beyond the limits of their joint. This check also works under `jit` and `vmap`.
        """
        q = self._check(q, "q", "nq")
        names = ", ".join(self.joint_names)
        q = eqx.error_if(q, ~jnp.isfinite(q), f"q has NaN or infinite values; its coordinates are those of {names}")
        for start in self.topology.quaternion_starts.tolist():
            joint = self.joint_names[np.searchsorted(self.topology.q_starts, start, side="right") - 1]
            norm = jnp.linalg.norm(q[..., start : start + 4], axis=-1)
            what = f"the quaternion of joint {joint!r}, q[{start}:{start + 4}]"
            advice = "normalize it, or start from model.neutral()"
            q = eqx.error_if(q, jnp.abs(norm - 1) > 1e-3, f"{what}, is not unit; {advice}")
        return q

    @naming_arguments
    def link_parameters(self, link: str) -> Float[Array, "*batch 10"]:
        """Inertial parameters of one link of the robot's file about the origin of the link's frame, in its axes, also
        if it was merged into a body. **Raises** `UnknownNameError` if no link with that name moves."""
        return _link_parameters(self, link)

    with_locked_joints = _structure_edits.with_locked_joints
    with_payload = _parameter_edits.with_payload
    with_link_parameters = _parameter_edits.with_link_parameters
    with_attached = _structure_edits.attach
    with_loop = _loop_edits.with_loop
    with_coupling = _loop_edits.with_coupling
    without_loops = _loop_edits.without_loops
    with_joint_friction = _parameter_edits.with_joint_friction
    with_armature = _parameter_edits.with_armature
    scaled = _parameter_edits.scaled
    summary = _summary.summary
    # Called by the decorators of public functions, which stand below this package.
    _require_plausible = require_plausible

    def __repr__(self) -> str:
        return _summary.short(self)

    def _repr_html_(self) -> str:
        return _summary.as_html(self)

    def _apply_to_rows(self, function, **arrays):
        return joints.apply_to_rows(function, self.topology, *self._checked_arrays(arrays))

    def _jacobians(self, function, count: int, **arrays):
        return joints.jacobians(function, self.topology, count, *self._checked_arrays(arrays))

    def _checked_arrays(self, arrays: dict) -> list:
        # Names that begin with q are configurations.
        return [self._check(x, name, "nq" if name.startswith("q") else "nv") for name, x in arrays.items()]

    def _check(self, x, name: str, size: str):
        x = jnp.asarray(x)
        n = getattr(self, size)
        require_last_axes(x, (n,), name, f"{size} = {n} for this model")
        return x


def parameters_of(inertia: Inertia) -> Float[Array, "*batch 10"]:
    """The ten inertial parameters of an inertia, in the order of `Model.inertial_parameters`."""
    return jnp.stack(jnp.broadcast_arrays(*jax.tree.leaves(inertia)), axis=-1)


@numpy_unless_tracing("link")
def _link_parameters(model: Model, link: str):
    topology, links = model.topology, model.attached_parameters
    if link in topology.attached_links:
        inertia = links[..., topology.attached_links.index(link), :]
    else:
        i = topology.body(link)
        inertia = model.inertial_parameters[..., i, :]
        if merged := topology.links_of(i):
            inertia = inertia - links[..., np.array(merged), :].sum(axis=-2)
    return transform_inertial_parameters(inertia, invert_pose(model.frame_placement[..., topology.frame(link), :]))
