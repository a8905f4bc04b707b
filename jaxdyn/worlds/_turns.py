"""Quaternions of frames as MuJoCo has them: products along the chain of joints, whose signs follow from the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import enum_name
from jaxdyn.model import Model, Topology
from jaxdyn.spatial import IDENTITY_POSE, Quaternion, multiply_quaternions
from jaxdyn.tree import columns_of, take_rows
from jaxdyn.worlds._parts import Instant, Part, PartRows, stacked

_ONE = IDENTITY_POSE[3:]


class Turns(Part):
    """The rotations along the chains from the world to frames: at each link of a chain a fixed one, and that of a
    joint."""

    links: tuple[tuple[tuple[str, int], ...], ...] = eqx.field(static=True)
    """For each link of the chains, from the world on, and each frame: the type of the joint (empty for none), and its
    first coordinate of rotation."""
    fixed: Float[Array, "*batch n 4"]
    """The fixed rotation before each of these joints, link after link."""
    axis: Float[Array, "*batch n 3"]
    reference: Float[Array, "*batch n"]
    own: tuple[tuple[int, int], ...] = eqx.field(static=True, default=())
    """In the world of a model, for each of `fixed`: the joint whose placement turns before it, and the row of the
    joint's axis among those of the model, -1 for none. `axis` is then that of the model."""

    @classmethod
    def of_model(cls, model: Model, frames: Sequence[int], poses: Sequence[Any]) -> Self:
        """Return the chains of frames on bodies of a model, -1 for the world, at their poses `[*batch, 7]`."""
        chains = [[*_links_to(model.topology, body), ("", -1, -1, -1)] for body in frames]
        longest = max((len(x) for x in chains), default=0)
        links = [[x[k] if k < len(x) else ("", -1, -1, -1) for x in chains] for k in range(longest)]
        fixed = [
            p[..., 3:] if k == len(x) - 1 else _ONE for k in range(longest) for x, p in zip(chains, poses, strict=True)
        ]
        flat = [x for link in links for x in link]
        return cls.without(
            links=tuple(tuple((kind, q) for kind, q, _, _ in link) for link in links),
            fixed=stacked(fixed, (4,)),
            reference=float_leaf(np.zeros(len(flat))),
            own=tuple((joint, axis) for _, _, joint, axis in flat),
        )

    @classmethod
    def of(cls, m, frames: Sequence[tuple[str, int]]) -> Self:
        """Return the chains of frames by their kinds, as in `Places.of`, and numbers."""
        chains = [_chain(m, kind, i) for kind, i in frames]
        longest = max((len(x) for x in chains), default=0)
        nothing = ("", -1, np.zeros(3), 0.0)
        padded = [[*x, *[(_ONE, *nothing)] * (longest - len(x))] for x in chains]
        links = [[x[k] for x in padded] for k in range(longest)]
        flat = [x for link in links for x in link]
        return cls(
            tuple(tuple((kind, q) for _, kind, q, _, _ in link) for link in links),
            float_leaf(np.array([x[0] for x in flat]).reshape(-1, 4)),
            float_leaf(np.array([x[3] for x in flat]).reshape(-1, 3)),
            float_leaf(np.array([x[4] for x in flat], float)),
        )


def _links_to(topology: Topology, body: int) -> list[tuple[str, int, int, int]]:
    """Return for each primitive joint from the world to a body: its type, its first coordinate of rotation, the joint
    whose placement stands before it, and its axis."""
    path = []
    while body >= 0:
        path.append(body)
        body = topology.parents[body]
    axes = {int(dof): row for row, dof in enumerate(topology.axis_dofs)}
    out = []
    for i in reversed(path):
        for node in range(topology.joint_nodes[i], topology.body_nodes[i] + 1):
            primitive, q = topology.node_joints[node], int(topology.node_q[node])
            turned = primitive.quaternion is not None
            turns, v = turned or primitive.rotates[0], int(topology.node_v[node])
            kind = "ball" if turned else "hinge" if turns else ""
            placed = i if node == topology.joint_nodes[i] else -1
            out.append((kind, q + (primitive.quaternion or 0), placed, axes.get(v, -1) if kind == "hinge" else -1))
    return out


def _chain(m, kind: str, number: int) -> list[tuple]:
    """Return the links from the world to a frame: the fixed rotation, and the joint's type, coordinate, axis and
    reference."""
    own = {"body": _ONE, "inertia": m.body_iquat, "site": m.site_quat, "geom": m.geom_quat}[kind]
    body = number if kind in ("body", "inertia") else int(getattr(m, f"{kind}_bodyid")[number])
    path = [body]
    while path[-1] > 0:
        path.append(int(m.body_parentid[path[-1]]))
    chain, fixed = [], _ONE
    for i in reversed(path):
        fixed = multiply_quaternions(fixed, m.body_quat[i]) if i else fixed
        for j in range(m.body_jntadr[i], m.body_jntadr[i] + m.body_jntnum[i]):
            joint, q = enum_name("mjtJoint", m.jnt_type[j]), int(m.jnt_qposadr[j])
            if joint == "slide":
                continue
            if joint == "free":
                # The quaternion of a free joint is that of its body in the world.
                joint, q, fixed = "ball", q + 3, _ONE
            chain.append((fixed, joint, q, m.jnt_axis[j], m.qpos0[q]))
            fixed = _ONE
    last = fixed if kind == "body" else multiply_quaternions(fixed, own[number])
    return [*chain, (last, "", -1, np.zeros(3), 0.0)]


def quaternions(robot: Robot, turns: PartRows, at: Instant) -> Quaternion:
    """Return the quaternions of the frames, rows `[n, *batch]`."""
    out, first = None, 0
    for link in turns.links:
        rows = np.arange(first, first + len(link))
        first += len(link)
        turn = Quaternion(*columns_of(take_rows(turns.fixed, rows)))
        kinds, coordinates = np.array([x[0] for x in link]), np.array([x[1] for x in link])
        if (kinds == "hinge").any():
            angle = take_rows(at.q, np.where(kinds == "hinge", coordinates, -1)) - take_rows(turns.reference, rows)
            half = 0.5 * angle * robot.constant((kinds == "hinge").astype(float))
            x, y, z = (jnp.sin(half) * c for c in columns_of(take_rows(turns.axis, rows)))
            turn = turn.multiply(Quaternion(jnp.cos(half), x, y, z))
        if (kinds == "ball").any():
            where = np.where(kinds == "ball", coordinates, -1)
            other = robot.constant((kinds != "ball").astype(float))
            own = [take_rows(at.q, np.where(where >= 0, where + k, -1)) for k in range(4)]
            turn = turn.multiply(Quaternion(own[0] + other, *own[1:]).normalized())
        out = turn if out is None else out.multiply(turn)
    assert out is not None
    return jax.tree.map(robot.broadcast, out)
