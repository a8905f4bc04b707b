"""Models with constraints beside the tree: closed loops, and couplings of joints."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from jaxdyn._errors import ModelError, look_up, require_choice, require_last_axes
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.joints import LOOP_ROWS, Coupling, Loop, Topology, joint_nv
from jaxdyn.model import _edit_arguments as arguments
from jaxdyn.model._edit_arguments import Placement
from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._row_tables import constant, join, numpy_unless_tracing, take
from jaxdyn.spatial import IDENTITY_POSE, compose_poses

_LOOP_LEAVES = ("loop_placement1", "loop_placement2", "loop_length")
_COUPLING_LEAVES = ("coupling_coefficients", "coupling_reference")


def with_loop[M: ModelFields](
    model: M,
    name: str,
    kind: str,
    link1: str,
    link2: str,
    placement1: Placement = None,
    placement2: Placement = None,
    length: Float[ArrayLike, "*batch"] | None = None,
) -> M:
    """The model with a closed loop: a constraint between a frame in one body and a frame in another, or in the world.

    `aba`, steps and roll-outs honor it; functions of the tree alone (`rnea`, `crba`, kinematics) do not see it.

    | kind | equations | what it holds |
    |---|---|---|
    | `connect` | 3 | the origins of the frames together: a ball joint |
    | `weld` | 6 | the frames together |
    | `revolute` | 5 | the origins and the axes z together: a hinge about z |
    | `cylindrical` | 4 | the axes z on one line, along which the frames slide |
    | `distance` | 1 | the origins at a distance `length`: a rod without mass |

    Equations that say the same twice, as those across the plane of a planar mechanism, are allowed.

    **Arguments**

    - `link1`, `link2`: a body, a merged link, a frame, or `"world"`.
    - `placement1`, `placement2`: the poses of the loop's frames in these: an `SE3`, position (m) and quaternion
      `w x y z`, a position, or None for the identity. Differentiable.
    - `length`: the distance, m, positive; of the kind `distance` only.

    **Raises** `UnknownNameError` for a link; `ShapeError`; `ModelError` for a kind, a name that another loop or
    coupling has, two frames in one body, a placement that is not a pose, and a length that is missing or out of place.
    """
    topology = model.topology
    _require_new_name(topology, name)
    require_choice(kind, LOOP_ROWS, f"the kind of loop {name!r}")
    frames = [-1 if isinstance(link, str) and link == "world" else topology.frame(link) for link in (link1, link2)]
    bodies = [-1 if i < 0 else topology.frame_bodies[i] for i in frames]
    if bodies[0] == bodies[1]:
        where = "the world" if bodies[0] < 0 else f"body {topology.body_names[bodies[0]]!r}"
        raise ModelError(f"loop {name!r}: {link1!r} and {link2!r} are both fixed in {where}, so it could hold nothing")
    if (length is not None) != (kind == "distance"):
        raise ModelError(
            f"loop {name!r}: length (m) belongs to loops of the kind 'distance', which need it; not {kind!r}"
        )
    poses = {}
    for number, placement in ((1, placement1), (2, placement2)):
        what = f"placement{number} of loop {name!r}"
        poses[what] = arguments.as_pose(model, IDENTITY_POSE if placement is None else placement, what)
    distance = arguments.as_array(model, 0.0 if length is None else length, f"length of loop {name!r}")
    if length is not None and (numbers := arguments.in_numpy(distance)) is not None and not (numbers > 0).all():
        raise ModelError(f"length of loop {name!r} is {numbers}; a positive number (m) is needed")
    batches = {what: pose.shape[:-1] for what, pose in poses.items()} | {f"length of loop {name!r}": distance.shape}
    arguments.require_batches(model, batches)
    loops = (*topology.loops, Loop(name, kind, bodies[0], bodies[1]))
    changed = _loop_leaves(model, tuple(poses.values()), distance, tuple(frames))
    return dataclasses.replace(model, topology=dataclasses.replace(topology, loops=loops), **changed)


def with_coupling[M: ModelFields](
    model: M,
    name: str,
    joint1: str,
    joint2: str | None = None,
    coefficients: Float[ArrayLike, "*batch n"] = (0.0, 1.0),
    reference: Float[ArrayLike, "*batch 2"] = (0.0, 0.0),
) -> M:
    """The model in which the coordinate `q1` of one joint follows that of another, `q2`, by a polynomial.

    `q1 - r1 = sum_k c_k (q2 - r2)^k`, with up to five `coefficients` `c` (k from 0 to 4) and the `reference` `r1, r2`.
    Without `joint2`, `q1 - r1 = c_0` holds the joint. Unlike a joint that mimics another (`Mimic`), `joint1` keeps its
    coordinate. Units are rad or m. All numbers are differentiable.

    A joint that mimics another, which is a coupling of the first degree without a coordinate, may be coupled with a
    third one, or be held.

    **Raises** `UnknownNameError` for a joint; `ShapeError`; `ModelError` for a joint with several coordinates, a joint
    that is coupled with itself, two of which one mimics the other or both a third, and a name that another loop or
    coupling has.
    """
    topology = model.topology
    _require_new_name(topology, name)
    joints = [topology.joint(joint1), -1 if joint2 is None else topology.joint(joint2)]
    for joint in joints:
        if joint >= 0 and joint_nv(topology.joint_types[joint]) != 1:
            kind = f"joint {topology.joint_names[joint]!r} is {topology.joint_types[joint]}"
            raise ModelError(f"coupling {name!r}: {kind}; joints with one coordinate are needed")
    if joints[0] == joints[1]:
        raise ModelError(f"coupling {name!r} couples joint {joint1!r} with itself; give another joint2, or none")
    if len({topology.leaders.get(joint, joint) for joint in joints}) == 1:
        reason = "one mimics the other, or both mimic a third, which the coupling would repeat or contradict"
        advice = "couple them in model.spanning_tree(), in which they are independent"
        raise ModelError(f"coupling {name!r} of the joints {joint1!r} and {joint2!r}: {reason}; {advice}")
    c = arguments.as_array(model, coefficients, f"coefficients of coupling {name!r}")
    r = arguments.as_array(model, reference, f"reference of coupling {name!r}")
    if c.ndim == 0 or not 1 <= c.shape[-1] <= 5:
        require_last_axes(c, (5,), f"coefficients of coupling {name!r}", "one to five numbers c_0, c_1, ...")
    require_last_axes(r, (2,), f"reference of coupling {name!r}", "the numbers r1, r2")
    for what, value in (("coefficients", c), ("reference", r)):
        if (numbers := arguments.in_numpy(value)) is not None:
            arguments.require_values(LEAVES[f"coupling_{what}"], numbers, f"{what} of coupling {name!r}")
    arguments.require_batches(model, {"coefficients": c.shape[:-1], "reference": r.shape[:-1]})
    couplings = (*topology.couplings, Coupling(name, joints[0], joints[1]))
    changed = _coupling_leaves(model, c, r)
    return dataclasses.replace(model, topology=dataclasses.replace(topology, couplings=couplings), **changed)


def without_loops[M: ModelFields](model: M, names: Collection[str] | None = None) -> M:
    """The model without the loops and couplings of these names, by default without any: the tree alone.

    **Raises** `UnknownNameError` for a name.
    """
    topology = model.topology
    if isinstance(names, str):
        names = [names]
    known = [x.name for x in (*topology.loops, *topology.couplings)]
    for name in [] if names is None else names:
        look_up(name, known, "loop or coupling")
    changed: dict[str, Any] = {}
    for field, leaves in (("loops", _LOOP_LEAVES), ("couplings", _COUPLING_LEAVES)):
        old = getattr(topology, field)
        rows = [k for k, x in enumerate(old) if names is not None and x.name not in names]
        topology = dataclasses.replace(topology, **{field: tuple(old[k] for k in rows)})
        for leaf in leaves:
            value = getattr(model, leaf)
            changed[leaf] = take(value, rows, LEAVES[leaf].axes) if rows else None
    return dataclasses.replace(model, topology=topology, **changed)


def require_no_loops(topology: Topology, user: str, advice: str) -> None:
    """Raise `ModelError` for a structure with loops or couplings, which `user` does not take."""
    if topology.has_loops:
        names = ", ".join(repr(x.name) for x in (*topology.loops, *topology.couplings))
        raise ModelError(f"{user} does not take closed loops yet, and the model has {names}; {advice}")


def _require_new_name(topology: Topology, name: str) -> None:
    taken = [x.name for x in (*topology.loops, *topology.couplings)]
    arguments.require_new_names([name], taken, "a loop or coupling", "give another name")


@numpy_unless_tracing("frames")
def _loop_leaves(model: ModelFields, poses: tuple, length, frames: Sequence[int]) -> dict[str, Array]:
    """The arrays of the loops with one more, whose placements are in two frames (-1: the world)."""
    rows = []
    for frame, pose in zip(frames, poses, strict=True):
        rows.append(pose if frame < 0 else compose_poses(model.frame_placement[..., frame, :], pose))
    return _appended(model, dict(zip(_LOOP_LEAVES, (*rows, length), strict=True)))


@numpy_unless_tracing()
def _coupling_leaves(model: ModelFields, coefficients, reference) -> dict[str, Array]:
    """The arrays of the couplings with one more."""
    missing = constant(np.zeros(5 - coefficients.shape[-1]), coefficients)
    rows = (join([coefficients, missing], 1), reference)
    return _appended(model, dict(zip(_COUPLING_LEAVES, rows, strict=True)))


def _appended(model: ModelFields, rows: dict[str, Any]) -> dict[str, Array]:
    """Arrays of the model, by name, with one more row each."""
    out = {}
    for name, row in rows.items():
        value, core = getattr(model, name), LEAVES[name].axes
        row = row[..., None, :] if core == 2 else row[..., None]
        out[name] = row if value is None else join([value, row], core)
    return out
