"""Models with other parameters: payloads, links, friction and armature.

Each function, like those that lock joints and attach models, returns a new model and works under `jit`, `vmap` and
`grad` in everything that is a number; names decide on the structure and are static. Numbers take the precision of the
model and may have leading batch axes, which the leaves of the result then have. Values are not checked while tracing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxdyn._errors import ModelError, look_up
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.model._edit_arguments import as_inertial_parameters, as_per_dof, require_batches, require_new_names
from jaxdyn.model._fields import ModelFields
from jaxdyn.model._inertia import BodyInertia
from jaxdyn.model._resistance import require_resistance
from jaxdyn.model._row_tables import add_rows, append, numpy_unless_tracing, set_row, take
from jaxdyn.spatial import transform_inertial_parameters


def with_payload[M: ModelFields](
    model: M, frame: str, inertia: BodyInertia | Float[ArrayLike, "*batch 10"], name: str | None = None
) -> M:
    """The model that carries a further rigid body, fixed at a frame.

    Without a name the structure of the model stays the same, so nothing is compiled anew, and the payload counts as
    part of the link that `frame` names, or, for a frame that is no link, of the link that has the body's name. With one
    there is a new link and frame of this name at `frame`, as from `ModelBuilder.add_fixed_body`.

    **Arguments**

    - `frame`: a body, a merged link, or a frame, which a joint moves.
    - `inertia`: in the axes of the frame; a `BodyInertia`, or the ten inertial parameters about the frame's origin, kg,
      kg m and kg m^2. Differentiable.

    **Raises** `UnknownNameError` for the frame; `ShapeError`; `ModelError` for a frame that is fixed in the world, for
    what is not finite, a negative mass, or a name that exists. **Warns** `PhysicalityWarning` of an inertia that no
    distribution of mass has.
    """
    topology = model.topology
    number = topology.frame(frame)
    body = topology.frame_bodies[number]
    if body < 0:
        raise ModelError(
            f"frame {frame!r} is fixed in the world: a payload there has no effect; give a frame that moves"
        )
    added = as_inertial_parameters(model, inertia, f"payload at frame {frame!r}")
    require_batches(model, {"payload": added.shape[:-1]})
    link = topology.attached_links.index(frame) if frame in topology.attached_links else None
    if name is not None:
        require_new_names([name], topology.frame_names, "a payload", "give another name")
        topology = dataclasses.replace(
            topology,
            frame_names=(*topology.frame_names, name),
            frame_bodies=(*topology.frame_bodies, body),
            attached_links=(*topology.attached_links, name),
            attached_bodies=(*topology.attached_bodies, body),
        )
    changed = _payload_leaves(model, added, number, link, name is not None)
    return dataclasses.replace(model, topology=topology, **changed)


def with_link_parameters[M: ModelFields](
    model: M, link: str, parameters: BodyInertia | Float[ArrayLike, "*batch 10"]
) -> M:
    """The model in which one link has other inertial parameters, also where it was merged into a body.

    The inverse of `Model.link_parameters`: a `BodyInertia`, or the ten inertial parameters about the origin, in the
    frame of the link itself. Differentiable; the structure stays the same. A link that is fixed in the world has them,
    too, to no effect on the motion.

    **Raises** `UnknownNameError` for the link; `ShapeError`; `ModelError` for what is not finite or a negative mass,
    and if a joint then moves nothing with inertia. **Warns** `PhysicalityWarning` of an inertia that no distribution of
    mass has.
    """
    topology = model.topology
    look_up(link, (*topology.body_names, *topology.attached_links), "link")
    new = as_inertial_parameters(model, parameters, f"link {link!r}")
    require_batches(model, {"parameters": new.shape[:-1]})
    number = topology.frame(link)
    k = topology.attached_links.index(link) if link in topology.attached_links else None
    out = dataclasses.replace(model, **_link_leaves(model, new, number, k))
    require_resistance(out.topology, vars(out))
    return out


def with_joint_friction[M: ModelFields](
    model: M,
    damping: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float | None = None,
    friction: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float | None = None,
    friction_velocity: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float | None = None,
) -> M:
    """The model with other friction in its joints: viscous `damping` (N m s/rad, N s/m), Coulomb `friction` (N m, N),
    and the `friction_velocity` (rad/s, m/s) over which that changes its sign.

    Each is an array `[*batch, nv]`, one number for all degrees of freedom, or a mapping from names of joints to a
    number or `[*batch, n]` with as many as the joint has in `v`; joints that are not named keep theirs.

    **Raises** `UnknownNameError` for a joint; `ShapeError`; `ModelError` for a joint that mimics another, for what is
    not finite, negative, or a `friction_velocity` that is not positive.
    """
    given = {"damping": damping, "friction": friction, "friction_velocity": friction_velocity}
    changed = {field: as_per_dof(model, field, value) for field, value in given.items() if value is not None}
    return dataclasses.replace(model, **changed)


def with_armature[M: ModelFields](
    model: M, armature: Mapping[str, ArrayLike] | Float[ArrayLike, "*batch nv"] | float
) -> M:
    """The model with other rotor inertias, reflected to the joints (kg m^2, kg): given as in `with_joint_friction`.

    **Raises** what `with_joint_friction` does, and `ModelError` if a joint then moves nothing with inertia.

    An array is `[*batch, nv]`, a number for all.
    """
    out = dataclasses.replace(model, armature=as_per_dof(model, "armature", armature))
    require_resistance(out.topology, vars(out))
    return out


# Inertias


@numpy_unless_tracing("frame", "link", "new")
def _payload_leaves(model: ModelFields, added, frame: int, link: int | None, new: bool) -> dict[str, Array]:
    """The leaves that change where ten parameters, in a frame, are added to its body."""
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
    """The leaves that change where a link, with its frame and perhaps its number among the merged ones, has other
    parameters."""
    topology, bodies, links = model.topology, model.inertial_parameters, model.attached_parameters
    body = topology.frame_bodies[frame]
    at_body = transform_inertial_parameters(new, model.frame_placement[..., frame, :])
    if link is not None:
        change = at_body - links[..., link, :]
        return {
            "attached_parameters": set_row(links, link, at_body),
            "inertial_parameters": add_rows(bodies, [body], change[..., None, :]),
        }
    merged = [k for k, b in enumerate(topology.attached_bodies) if b == body]
    if merged:
        at_body = at_body + take(links, merged, 2).sum(axis=-2)
    return {"inertial_parameters": set_row(bodies, body, at_body)}
