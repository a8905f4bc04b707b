"""Shared by the parts of a world: modules of arrays as rows, the motion of the tree at one state, and frames fixed in
its bodies."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import (
    Kinematics,
    Robot,
    kinematics_and_poses,
    velocities,
    velocity_accelerations,
)
from jaxdyn.io.mjcf import enum_name
from jaxdyn.model import Model, Placement, pose_in_body
from jaxdyn.rows import sums
from jaxdyn.spatial import (
    IDENTITY_POSE,
    Force,
    Mat3,
    Motion,
    Pose,
    Vec3,
    compose_poses,
    pose_array,
)
from jaxdyn.tree import packed_rows, rows_of, sum_down, sum_up, take_rows

ENDLESS = 1e30
"""The bound that stands for none, since native programs take numbers that are not finite for errors, and products of
infinite ones with zero are NaN."""
SMALL = 1e-15
"""The length below which MuJoCo has no direction (`mjMINVAL`)."""


class Part(eqx.Module):
    """A part of a world: arrays with leading batch axes, whose annotations have the axes that are not; and other parts.

    It fits the protocol `Parts` of the recursions.
    """

    @classmethod
    def without(cls, **given: Any) -> Self:
        """Return the part with nothing but what is given: no names, arrays without rows, parts that are empty."""
        hints = typing.get_type_hints(cls)
        names = [f.name for f in dataclasses.fields(cls)]
        return cls(**{name: given[name] if name in given else _nothing(hints[name]) for name in names})

    def axes(self) -> list[int]:
        """Return for each array, in the order of the leaves, the number of axes that are not batch axes."""
        axes: list[int] = []
        for name, count in _axes_of_fields(type(self)).items():
            value = getattr(self, name)
            for x in value if isinstance(value, tuple) else (value,):
                axes += x.axes() if hasattr(x, "axes") else [] if x is None else [count]
        return axes

    def leaves_of_model(self) -> tuple[str, ...]:
        """Return the names of the model's arrays that functions of the part read, besides those of the dynamics."""
        return ()

    def on_rows(self, robot: Robot) -> Any:
        """Return what functions of rows see of the part: the same names, with arrays as rows."""
        return PartRows(self, robot)


@functools.cache
def _axes_of_fields(kind: type[Part]) -> dict[str, int]:
    """Return for each field with arrays or parts the number of axes that are not batch axes; 0 for parts."""
    hints = typing.get_type_hints(kind)
    fields = [f.name for f in dataclasses.fields(kind) if not f.metadata.get("static")]
    return {name: _axes_of_hint(hints[name]) for name in fields}


def _axes_of_hint(hint: Any) -> int:
    for kind in typing.get_args(hint) or (hint,):
        if hasattr(kind, "dim_str"):
            return len(kind.dim_str.split()) - 1
    return 0


def _nothing(hint: Any) -> Any:
    """Return the empty value of a field of a part."""
    options = typing.get_args(hint)
    if type(None) in options:
        return None
    if typing.get_origin(hint) is tuple:
        return () if Ellipsis in options else tuple(_nothing(x) for x in options)
    if hasattr(hint, "dim_str"):
        return float_leaf(np.zeros([int(n) if n.isdigit() else 0 for n in hint.dim_str.split()[1:]]))
    return hint.without() if issubclass(hint, Part) else hint()


def stacked(arrays: Sequence[Any], core: tuple[int, ...] = ()) -> Array:
    """Return arrays `[*batch, *core]` along a new axis, `[*batch, n, *core]`, with NumPy unless they are traced."""
    if not arrays:
        return float_leaf(np.zeros((0, *core)))
    lib = jnp if any(isinstance(x, Tracer) for x in jax.tree.leaves(arrays)) else np
    return float_leaf(lib.stack(lib.broadcast_arrays(*map(lib.asarray, arrays)), axis=-1 - len(core)))


def bounded(x: Any) -> Array:
    """Return numbers with large ones in the place of infinite ones."""
    lib: Any = jnp if any(isinstance(part, Tracer) for part in jax.tree.leaves(x)) else np
    return float_leaf(lib.clip(lib.asarray(x, float if lib is np else None), -ENDLESS, ENDLESS))


class PartRows:
    """A part as functions of rows see it: `[n, *batch]`, tables `[n, k, *batch]`, and numbers `[*batch]`."""

    def __init__(self, part: Part, robot: Robot):
        self.part, self.robot = part, robot
        self.elsewhere: dict[str, Callable[[], Any]] = {}
        """The functions of the rows that stand in the model, called for those that are read."""

    def __getattr__(self, name: str) -> Any:
        there = self.elsewhere.get(name)
        self.__dict__[name] = value = self.rows_of_part(name) if there is None else there()
        return value

    def rows_of_part(self, name: str) -> Any:
        """Return a field of the part itself, as rows."""
        value: Any = getattr(self.part, name)
        count = _axes_of_fields(type(self.part)).get(name)
        if isinstance(value, Part):
            return value.on_rows(self.robot)
        if isinstance(value, tuple) and count is not None:
            return tuple(x.on_rows(self.robot) for x in value)
        return value if count is None or value is None else self._rows(value, count)

    def _rows(self, value: Any, count: int) -> Any:
        rank = self.robot.rank
        if count == 0:
            return value.reshape((1,) * (rank - value.ndim) + value.shape)
        return (rows_of if count == 1 else packed_rows)(value, rank)


class Instant(NamedTuple):
    """The tree at one state: rows `[nq]` or `[nv, *batch]`."""

    q: Any
    v: Any
    world: Pose
    """The poses in the world of the frames behind the degrees of freedom."""
    at: Kinematics
    """The same from the point of reference of each tree, and the motion subspaces."""
    velocity: Motion
    """The velocity behind each degree of freedom, about the point of reference."""
    found: Any = None
    """The contacts that there are, as rows of `found_contacts`, where a world searches for them."""


def instant(robot: Robot, q, v) -> Instant:
    """Return the tree at a state."""
    at, world = kinematics_and_poses(robot, q)
    return Instant(q, v, world, at, velocities(robot, at.S, v)[1])


class Located(NamedTuple):
    """Frames at one state, rows `[n, *batch]`."""

    pose: Pose
    """In the world."""
    arm: Vec3
    """Their origins from the point of reference of their tree."""
    dofs: np.ndarray
    """The degree of freedom that carries each, -1 for the world."""

    def velocity(self, at: Instant) -> Motion:
        """Return the velocity of each frame at its origin, in world axes."""
        return take_rows(at.velocity, self.dofs).at(self.arm)

    def take(self, rows) -> Located:
        """Return some of the frames."""
        rows = np.asarray(rows, int)
        pose, arm = take_rows((self.pose, self.arm), rows)
        return Located(pose, arm, self.dofs[rows])


class Loads(NamedTuple):
    """Forces on bodies from outside the tree, rows `[n, *batch]`, in world axes."""

    bodies: np.ndarray
    """`[n]`: MuJoCo's number of the body that each acts on."""
    point: Vec3
    """The points at which they act, in the world."""
    force: Vec3
    moment: Vec3


class Places(Part):
    """Frames that are fixed in bodies of a world, or in the world."""

    dofs: tuple[int, ...] = eqx.field(static=True)
    """The degree of freedom that carries each, -1 for the world."""
    placement: Float[Array, "*batch n 7"]
    """The poses in the frames behind these degrees of freedom."""
    mocap: tuple[int, ...] = eqx.field(static=True, default=())
    """The mocap body to which each is fixed, or -1; empty if none is fixed to one."""

    @classmethod
    def of(cls, m, kind: str, numbers) -> Self:
        """Return frames of an `mjModel`, by their numbers. `kind`: `"body"`, `"inertia"` (at the center of mass of a
        body, along its principal axes), `"site"` or `"geom"`."""
        return cls.of_each(m, [(kind, int(i)) for i in numbers])

    @classmethod
    def on(cls, model: Model, places: Sequence[tuple[str, Placement]]) -> Self:
        """Return places of links of a model, by the names of the links and the poses in them. **Raises**
        `UnknownNameError` and `ModelError` as `pose_in_body`."""
        found = [pose_in_body(model, link, pose, f"the placement on {link!r}") for link, pose in places]
        dofs = [int(model.topology.body_dofs[body]) if body >= 0 else -1 for body, _ in found]
        return cls(tuple(dofs), stacked([pose for _, pose in found], (7,)))

    @classmethod
    def of_each(cls, m, frames: Sequence[tuple[str, int]]) -> Self:
        """Return frames by their kinds, as in `of`, and numbers."""
        tables = {kind: frames_of(m, kind) for kind in {kind for kind, _ in frames}}
        poses = np.array([tables[kind][1][i] for kind, i in frames]).reshape(-1, 7)
        bodies = [i if kind in ("body", "inertia") else int(getattr(m, f"{kind}_bodyid")[i]) for kind, i in frames]
        return cls.fixed_to(m, [int(tables[kind][0][i]) for kind, i in frames], poses, bodies)

    @classmethod
    def fixed_to(cls, m, dofs: Sequence[int], poses: np.ndarray, bodies: Sequence[int]) -> Self:
        """Return frames of an `mjModel`, as `frames_of` has them, that are fixed to bodies."""
        mocap = tuple(m.body_mocapid[m.body_weldid[np.asarray(bodies, int)]].tolist())
        return cls(tuple(dofs), float_leaf(poses), mocap if max(mocap, default=-1) >= 0 else ())

    @staticmethod
    def located(rows: PartRows, at: Instant) -> Located:
        """Return the frames at a state."""
        robot, dofs = rows.robot, np.array(rows.dofs, int)
        fixed = robot.constant(np.where(dofs < 0, 1.0, 0.0))
        carrier, beyond = take_rows((at.world, at.at.poses.translation), dofs)
        # The row of a degree of freedom -1 is zero; the world's frame has the identity for its rotation.
        carrier = Pose(carrier.rotation + Mat3.identity() * fixed, carrier.translation)
        table = rows.placement
        placement = Pose.from_vector(jnp.moveaxis(table, 1, -1))
        turned = carrier.rotation.apply(placement.translation)
        pose = Pose(carrier.rotation.compose(placement.rotation), turned + carrier.translation)
        pose, arm = jax.tree.map(robot.broadcast, (pose, turned + beyond))
        return Located(pose, arm, dofs)


def frames_of(m, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return for all frames of a kind (`Places.of`) the degree of freedom that carries each, `[n]`, and the pose in the
    frame behind it, `[n, 7]`: in the frames of the model that `load_mjcf` makes of an `mjModel`."""
    dofs, poses = _bodies(m)
    if kind == "body":
        return dofs, poses
    inertias = compose_poses(poses, _effective(m.body_ipos, m.body_iquat, m.body_sameframe))
    if kind == "inertia":
        return dofs, inertias
    body = np.asarray(getattr(m, f"{kind}_bodyid"))
    same = [enum_name("mjtSameFrame", x) for x in getattr(m, f"{kind}_sameframe")]
    own = compose_poses(poses[body], _effective(*(getattr(m, f"{kind}_{x}") for x in ("pos", "quat", "sameframe"))))
    for i, x in enumerate(same):
        if x in ("inertia", "inertiarot"):
            own[i, 3:] = inertias[body[i], 3:]
            if x == "inertia":
                own[i] = inertias[body[i]]
    return dofs[body], own


def _bodies(m) -> tuple[np.ndarray, np.ndarray]:
    """Return the same for all bodies."""
    dofs, poses = np.full(m.nbody, -1), np.tile(IDENTITY_POSE, (m.nbody, 1))
    for i in range(1, m.nbody):
        parent = m.body_parentid[i]
        dofs[i], poses[i] = dofs[parent], compose_poses(poses[parent], pose_array(m.body_pos[i], m.body_quat[i]))
        if m.body_jntnum[i]:
            # The model's frame is that of the last joint, which stands off the origin of the body by `jnt_pos`.
            last = m.body_jntadr[i] + m.body_jntnum[i] - 1
            dofs[i] = m.body_dofadr[i] + m.body_dofnum[i] - 1
            turns = enum_name("mjtJoint", m.jnt_type[last]) in ("ball", "hinge")
            poses[i] = pose_array(-m.jnt_pos[last] if turns else np.zeros(3), IDENTITY_POSE[3:])
    return dofs, poses


def _effective(position, quaternion, same_frame) -> np.ndarray:
    """Return the poses in their bodies that MuJoCo computes with: the body's own if they agree within 1e-6 (m, rad)."""
    poses = pose_array(position, quaternion)
    for i, x in enumerate(same_frame):
        name = enum_name("mjtSameFrame", x)
        if name in ("body", "bodyrot"):
            poses[i, 3:] = IDENTITY_POSE[3:]
            if name == "body":
                poses[i] = IDENTITY_POSE
    return poses


def point_rows(robot: Robot, at: Instant, place: Located) -> Motion:
    """Return the derivatives of the motion of frames, at their origins in world axes, by the velocities: components
    `[n, nv, *batch]`."""
    S = jax.tree.map(lambda x: robot.broadcast(x)[None], at.at.S)
    moves = robot.constant(_moves(robot)[place.dofs].astype(float))
    arm = jax.tree.map(lambda x: x[:, None], place.arm)
    return S.at(arm) * moves


def _moves(robot: Robot) -> np.ndarray:
    """Return, `[nv + 1, nv]`, whether a degree of freedom moves the frame behind another; none moves the world, -1."""
    topology = robot.topology
    moves = np.zeros((robot.nv + 1, robot.nv), bool)
    moves[topology.body_dofs] = topology.moves_body
    return moves


def wrenches_on_dofs(robot: Robot, at: Instant, place: Located, wrench: Force):
    """Return the generalized forces, rows `[nv]`, of wrenches at the origins of frames, in world axes."""
    on_dofs = sums(wrench.moved_from(place.arm), place.dofs, robot.nv)
    return at.at.S.dot(sum_up(robot.tree, on_dofs))


def accelerations_of(robot: Robot, at: Instant, acceleration, place: Located) -> Motion:
    """Return the accelerations of frames at their origins, in world axes, less that of gravity."""
    joint, velocity = velocities(robot, at.at.S, at.v)
    total = sum_down(robot.tree, at.at.S * acceleration + velocity_accelerations(robot, joint, velocity))
    own, moving = take_rows(total, place.dofs).at(place.arm), place.velocity(at)
    # The acceleration of a point of the body, from the spatial one.
    return Motion(own.angular, own.linear + moving.angular.cross(moving.linear) - robot.gravity_vector)


class FreeJoints(NamedTuple):
    """The free joints of a world, whose linear velocities MuJoCo has in world axes, and this library in body axes."""

    rows: np.ndarray
    """`[n]`: the first degree of freedom of each."""

    @classmethod
    def of(cls, robot: Robot) -> Self:
        """Return the free joints of a robot."""
        topology = robot.topology
        return cls(
            np.array([topology.v_starts[i] for i, kind in enumerate(topology.joint_types) if kind == "free"], int)
        )

    def to_world(self, at: Instant, x):
        """Return velocities or forces, rows `[nv]`, with the linear parts in world axes."""
        return self._turned(at, x, lambda R, u: R.apply(u))

    def to_body(self, at: Instant, x):
        """Return the inverse of `to_world`."""
        return self._turned(at, x, lambda R, u: R.apply_transpose(u))

    def _turned(self, at: Instant, x, turn):
        if not len(self.rows):
            return x
        R = take_rows(at.world.rotation, self.rows + 5)
        linear = turn(R, Vec3(*(take_rows(x, self.rows + k) for k in range(3))))
        count = x.shape[0]
        where = np.full((3, count), -1)
        for k in range(3):
            where[k, self.rows + k] = np.arange(len(self.rows))
        keep = (where < 0).all(axis=0)
        kept = jnp.where(keep.reshape((-1,) + (1,) * (x.ndim - 1)), x, jnp.zeros((), x.dtype))
        return sum((take_rows(c, w) for c, w in zip((linear.x, linear.y, linear.z), where, strict=True)), kept)


def translations_of_free_joints(m) -> np.ndarray:
    """Return the degrees of freedom `[n, 3]` of the translations of the free joints of an `mjModel`."""
    free = [j for j in range(m.njnt) if enum_name("mjtJoint", m.jnt_type[j]) == "free"]
    return np.asarray(m.jnt_dofadr, int)[free][:, None] + np.arange(3)


def disabled(m) -> set[str]:
    """Return the names of the standard features that `<option><flag>` of an `mjModel` disables."""
    return {enum_name("mjtDisableBit", 1 << k) for k in range(32) if m.opt.disableflags >> k & 1}


def length_of(x: Vec3):
    """Return the length of vectors, with the derivative 0 where it is 0."""
    square = x.squared_norm()
    there = square > 0
    return jnp.where(there, jnp.sqrt(jnp.where(there, square, 1)), 0)
