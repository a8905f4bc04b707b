"""The pairs of shapes of a URDF file, which itself does not say what touches what."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn.algorithms import forward_kinematics
from jaxdyn.contact._pairs import ContactShape, joined
from jaxdyn.contact._reading import Reading
from jaxdyn.geometry import pair_witness_count, pair_witnesses
from jaxdyn.io.urdf import Element
from jaxdyn.model import Model, pose_in_body
from jaxdyn.spatial import Pose, compose_poses

OVERLAP = 1e-3
"""The depth from which shapes count as overlapping by construction, m."""


def read_urdf_pairs(reading: Reading, robot: Element) -> None:
    """Add the pairs of shapes on bodies that no joint connects, but for those that overlap at zero."""
    model, shapes = reading.model, reading.in_pairs()
    joints = [joint for joint in robot.all("joint") if joint.attribute("type").lower() != "floating"]
    connected = {frozenset(joint.require(tag).attribute("link") for tag in ("parent", "child")) for joint in joints}
    bodies = [reading.body(shape.link) for shape in shapes]
    pairs = [
        (i, j)
        for i, j in itertools.combinations(range(len(shapes)), 2)
        if not joined(model, bodies[i], bodies[j]) and {shapes[i].link, shapes[j].link} not in connected
    ]
    kept = []
    for (i, j), depth in zip(pairs, depths_at_zero(model, shapes, pairs), strict=True):
        if depth > OVERLAP and _placed_by_joints(model, bodies[i], bodies[j]):
            names = f"{reading.names[i]!r} with {reading.names[j]!r} by {1000 * depth:.2g} mm"
            note = "they would push each other apart for good"
            reading.leave_out("pairs that overlap where all joints are at zero", names, True, note)
        else:
            kept.append((i, j, None))
    reading.pair(kept, shapes)


def depths_at_zero(model: Model, shapes: Sequence[ContactShape], pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return by how much pairs of shapes, given by their numbers, overlap in the neutral configuration, m; negative
    where they are apart, and -inf for shapes that have no pairs."""
    world = np.asarray(forward_kinematics(model, model.neutral()).to_vector(), np.float64)
    poses, sizes = [], [np.asarray(shape.shape.sizes, np.float64) for shape in shapes]
    for shape in shapes:
        body, pose = pose_in_body(model, shape.link, shape.placement, "placement")
        poses.append(np.asarray(pose if body < 0 else compose_poses(world[body], np.asarray(pose, np.float64))))
    out, groups = np.full(len(pairs), -np.inf), {}
    for number, pair in enumerate(pairs):
        key = tuple((type(shapes[k].shape), sizes[k].shape[-1]) for k in pair)
        groups.setdefault(key, []).append(number)
    for ((kind1, n1), (kind2, n2)), numbers in groups.items():
        try:
            pair_witness_count(kind1, n1, kind2, n2)
        except ModelError:
            continue
        one, two = np.array([pairs[number] for number in numbers]).T
        rows = [np.stack([x[k] for k in which]) for which in (one, two) for x in (sizes, poses)]
        gaps = np.asarray(_gaps(kind1, kind2, *(jnp.asarray(x, model.dtype) for x in rows)))
        out[numbers] = -gaps.reshape(len(numbers), -1).min(axis=1)
    return out


@functools.partial(jax.jit, static_argnums=(0, 1))
def _gaps(kind1, kind2, sizes1, poses1, sizes2, poses2):
    one, two = Pose.from_vector(poses1), Pose.from_vector(poses2)
    return pair_witnesses(kind1, sizes1, one, kind2, sizes2, two).gap


def _placed_by_joints(model: Model, body1: int, body2: int) -> bool:
    """Return whether no free joint is between two bodies: how a free body lies in the neutral configuration says
    nothing."""
    topology = model.topology

    def carriers(body: int) -> set[int]:
        return set() if body < 0 else {body} | carriers(topology.parents[body])

    return all(topology.joint_types[body] != "free" for body in carriers(body1) ^ carriers(body2))
