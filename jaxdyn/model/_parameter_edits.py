"""Models with other parameters: payloads, links, friction, armature and scale.

All edits return a new model and work under `jit`, `vmap` and `grad` in all numbers; names are static. Numbers take the
model's precision and may have leading batch axes. Values are not checked while tracing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from jaxdyn._errors import ModelError, look_up, naming_arguments, require_positive
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.joints import JOINT_TYPES
from jaxdyn.model import _edit_arguments as arguments
from jaxdyn.model._body_inertia import BodyInertia, require_resistance
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._row_tables import add_rows, append, library, numpy_unless_tracing, set_row, take
from jaxdyn.model._singular_motions import warn_of_new_singular_motions
from jaxdyn.spatial import transform_inertial_parameters


def with_payload[M: ModelFields](
    model: M, frame: str, inertia: BodyInertia | Float[ArrayLike, "*batch 10"], name: str | None = None
) -> M:
    """The model that carries a further rigid body, fixed at a frame.

    Without a name the structure stays the same, so nothing is compiled anew, and the payload counts as part of the link
    that `frame` names, or else of its body's link. With a name there is a new link and frame at `frame`, as from
    `ModelBuilder.add_fixed_body`.

    **Arguments**

    - `frame`: a moving body, merged link, or frame.
    - `inertia`: in the axes of the frame; a `BodyInertia`, or the ten inertial parameters about the frame's origin, kg,
      kg m and kg m^2. Differentiable.

    **Raises** `UnknownNameError` for the frame; `ShapeError`; `ModelError` for a frame that is fixed in the world,
    numbers that are not finite, a negative mass, or a name that exists. **Warns** `PhysicalityWarning` of an inertia
    that no distribution of mass has.
    """
    topology = model.topology
    number = topology.frame(frame)
    body = topology.frame_bodies[number]
    if body < 0:
        reason = "is fixed in the world: a payload there has no effect"
        raise ModelError(f"frame {frame!r} {reason}; give a frame that moves")
    added = arguments.as_inertial_parameters(model, inertia, f"payload at frame {frame!r}")
    arguments.require_batches(model, {"payload": added.shape[:-1]})
    link = topology.attached_links.index(frame) if frame in topology.attached_links else None
    if name is not None:
        arguments.require_new_names([name], topology.frame_names, "a payload", "give another name")
        topology = topology.extended({name: body}, {name: body})
    changed = _payload_leaves(model, added, number, link, name is not None)
    return dataclasses.replace(model, topology=topology, **changed)


def with_link_parameters[M: ModelFields](
    model: M, link: str, parameters: BodyInertia | Float[ArrayLike, "*batch 10"]
) -> M:
    """The model in which one link has other inertial parameters, also if it was merged into a body.

    This is the inverse of `Model.link_parameters`: `parameters` is a `BodyInertia`, or the ten inertial parameters
    about the origin of the link's frame, in its axes. Differentiable; the structure stays the same, but for a model
    loaded with `kinematics_only`, which has dynamics when each link that lacked an inertia was given one.

    **Raises** `UnknownNameError` for the link; `ShapeError`; `ModelError` for numbers that are not finite, a negative
    mass, and if a joint then moves nothing with inertia. **Warns** `PhysicalityWarning` of an inertia that no
    distribution of mass has, and of joints that then can move together without moving anything with inertia.
    """
    topology = model.topology
    look_up(link, (*topology.body_names, *topology.attached_links), "link")
    new = arguments.as_inertial_parameters(model, parameters, f"link {link!r}")
    arguments.require_batches(model, {"parameters": new.shape[:-1]})
    number = topology.frame(link)
    k = topology.attached_links.index(link) if link in topology.attached_links else None
    if link in topology.unknown_inertias:
        unknown = tuple(name for name in topology.unknown_inertias if name != link)
        topology = dataclasses.replace(topology, unknown_inertias=unknown)
    out = dataclasses.replace(model, topology=topology, **_link_leaves(model, new, number, k))
    require_resistance(out.topology, vars(out))
    warn_of_new_singular_motions(model, out)
    return out


def with_joint_friction[M: ModelFields](
    model: M,
    damping: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float | None = None,
    friction: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float | None = None,
    friction_velocity: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float | None = None,
) -> M:
    """The model with other viscous `damping` (N m s/rad, N s/m) and Coulomb `friction` (N m, N) in its joints, and
    another `friction_velocity` (rad/s, m/s) over which the latter changes its sign.

    Each is an array `[*batch, nv]`, one number for all degrees of freedom, or a mapping from names of joints to a
    number or `[*batch, n]` with as many as the joint has in `v`; other joints keep theirs.

    **Raises** `UnknownNameError` for a joint; `ShapeError`; `ModelError` for a joint that mimics another, for numbers
    that are negative or not finite, and for a `friction_velocity` of zero.
    """
    values = {"damping": damping, "friction": friction, "friction_velocity": friction_velocity}
    changed = {field: arguments.as_per_dof(model, field, value) for field, value in values.items() if value is not None}
    return dataclasses.replace(model, **changed)


def with_armature[M: ModelFields](
    model: M, armature: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float
) -> M:
    """The model with other rotor inertias, reflected to the joints (kg m^2, kg), as arrays `[*batch, nv]`, a number, or
    a mapping as in `with_joint_friction`.

    **Raises** the errors of `with_joint_friction`, and `ModelError` if a joint then moves nothing with inertia.
    **Warns** `PhysicalityWarning` of joints that then can move together without moving anything with inertia.
    """
    out = dataclasses.replace(model, armature=arguments.as_per_dof(model, "armature", armature))
    require_resistance(out.topology, vars(out))
    warn_of_new_singular_motions(model, out)
    return out


@naming_arguments
def scaled[M: ModelFields](
    model: M, *, length: Float[ArrayLike, "*batch"] = 1.0, mass: Float[ArrayLike, "*batch"] = 1.0
) -> M:
    """The model with every length times `length` and every mass times `mass`; time stays.

    Every leaf but gravity is scaled by its unit in m, kg and s: positions and the pitch of screws by `length`; first
    moments by `mass length`; rotational inertias by `mass length^2`; limits, velocities, mimic offsets and spring
    references by `length` if the coordinate is a length. Armature, damping and stiffness scale with `mass length^2` for
    an angle and `mass` for a length; effort limits and Coulomb friction with `mass length^2` and `mass length`.
    **Gravity is not scaled**; with gravity times `length` too, the motions would be the same with lengths scaled.

    **Raises** `ModelError` for a factor that is not positive and finite.
    """
    factors = {what: arguments.as_array(model, factor, what) for what, factor in (("length", length), ("mass", mass))}
    for what, factor in factors.items():
        if (numbers := arguments.in_numpy(factor)) is not None:
            require_positive(numbers, what)
    arguments.require_batches(model, {what: factor.shape for what, factor in factors.items()})
    return _scaled(model, **factors)


@numpy_unless_tracing("frame", "link", "new")
def _payload_leaves(model: ModelFields, added, frame: int, link: int | None, new: bool) -> dict[str, Array]:
    """The leaves that change if ten parameters in a frame are added to its body."""
    body, placement = model.topology.frame_bodies[frame], model.frame_placement[..., frame, :]
    at_body = transform_inertial_parameters(added, placement)
    changed = {"inertial_parameters": add_rows(model.inertial_parameters, [body], at_body[..., None, :])}
    if new:
        changed["attached_parameters"] = append(model.attached_parameters, at_body)
        changed["frame_placement"] = append(model.frame_placement, placement)
    elif link is not None:
        changed["attached_parameters"] = add_rows(model.attached_parameters, [link], at_body[..., None, :])
    return changed


@numpy_unless_tracing("frame", "link")
def _link_leaves(model: ModelFields, new, frame: int, link: int | None) -> dict[str, Array]:
    """The leaves that change if the link with a frame, the `link`-th merged one or a body, has other parameters."""
    topology, bodies, links = model.topology, model.inertial_parameters, model.attached_parameters
    body = topology.frame_bodies[frame]
    at_body = transform_inertial_parameters(new, model.frame_placement[..., frame, :])
    if link is not None:
        change = at_body - links[..., link, :]
        return {
            "attached_parameters": set_row(links, link, at_body),
            "inertial_parameters": add_rows(bodies, [body], change[..., None, :]),
        }
    if merged := topology.links_of(body):
        at_body = at_body + take(links, merged, 2).sum(axis=-2)
    return {"inertial_parameters": set_row(bodies, body, at_body)}


@numpy_unless_tracing()
def _scaled[M: ModelFields](model: M, length, mass) -> M:
    topology = model.topology
    # Joints that mimic others, and those that they follow, have one coordinate.
    linear = [JOINT_TYPES[t][0].units[0] == "m" for t in topology.joint_types]
    follower, leader = (np.array([linear[pair[k]] for pair in topology.mimics], int) for k in (0, 1))
    units = {"q": topology.coordinate_units, "v": topology.dof_units}
    is_length = {space: (unit == "m").astype(int) for space, unit in units.items()} | {"mimic": follower}
    first, second = (
        np.array([joint >= 0 and linear[joint] for joint in joints], int)
        for joints in ([pair.joint1 for pair in topology.couplings], [pair.joint2 for pair in topology.couplings])
    )
    is_length, leaders = is_length | {"coupling": first}, {"mimic": leader, "coupling": second}
    L, M, lib = length[..., None], mass[..., None], library(length, mass)
    changed = {}
    for field, leaf in LEAVES.items():
        value, powers = getattr(model, field), np.array(leaf.length)
        for power, lengths in ((leaf.coordinate, is_length), (leaf.leader, leaders)):
            if np.any(power):
                own = lengths[str(leaf.rows)]
                powers = powers + np.array(power) * (own if leaf.columns is None else own[:, None])
        if value is not None and (leaf.mass or powers.any()):
            per_row = powers.ndim == 2
            factor = (M[..., None] if per_row else M) ** leaf.mass * (L[..., None] if per_row else L) ** powers
            factor = factor[..., None, :] if leaf.axes == 2 and not per_row else factor
            # Infinite limits stay out of the product, whose derivative would be infinite times zero.
            finite = lib.isfinite(value)
            changed[field] = lib.where(finite, lib.where(finite, value, 0) * factor, value)
    return dataclasses.replace(model, **changed)
