"""Forces that are applied to bodies from outside, and motions of mocap bodies."""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import object_name
from jaxdyn.spatial import Force, Quaternion, Vec3, compose_poses, invert_pose, pose_array
from jaxdyn.worlds._parts import Instant, Loads, Part, PartRows, Places, instant, wrenches_on_dofs


class Bodies(Part):
    """The bodies of a world, in MuJoCo's order, and those among them that are moved by hand."""

    names: tuple[str, ...] = eqx.field(static=True)
    centers: Places
    """The centers of mass."""
    mocap_names: tuple[str, ...] = eqx.field(static=True)
    mocap_carries: bool = eqx.field(static=True)
    """Whether bodies with joints hang on mocap bodies."""
    sliding: tuple[int, ...] = eqx.field(static=True)
    """The bodies that MuJoCo takes for points on slides (`body_simple`), whose inverse weight is that of their mass."""
    mocap: Float[Array, "*batch nm 7"]
    """The poses of mocap bodies in the file."""

    @classmethod
    def of(cls, m) -> Self:
        """Return the bodies of an `mjModel`."""
        moved = sorted(np.flatnonzero(m.body_mocapid >= 0), key=lambda i: m.body_mocapid[i])
        poses = pose_array(m.body_pos[moved].reshape(-1, 3), m.body_quat[moved].reshape(-1, 4))
        roots = m.body_rootid[np.flatnonzero(m.body_dofnum)]
        names = tuple(object_name(m, "body", i) for i in range(m.nbody))
        return cls(
            names,
            Places.of(m, "inertia", range(m.nbody)),
            tuple(names[i] for i in moved),
            bool(np.isin(moved, roots).any()),
            tuple(np.flatnonzero(m.body_simple == 2).tolist()),
            float_leaf(poses),
        )


class BodyMotion(NamedTuple):
    """The poses and velocities of the bodies of a world, in MuJoCo's order, the world's first, along its axes."""

    center: Any
    """The centers of mass `[*batch, nbody, 3]`, m: MuJoCo's `xipos`."""
    axes: Any
    """The principal axes of inertia as columns, `[*batch, nbody, 3, 3]`: MuJoCo's `ximat`."""
    velocity: Any
    """The velocities of the centers of mass, m/s, and the angular velocities, rad/s, `[*batch, nbody, 6]`."""


def body_motion(robot: Robot, world: PartRows, q, v) -> BodyMotion:
    """Return the motion of the bodies, each part as rows one after the other."""
    at = instant(robot, q, robot.broadcast(v))
    place = Places.located(world.bodies.centers, at)
    R, velocity = place.pose.rotation, place.velocity(at)
    rows = (Vec3(*(getattr(column, name) for column in (R.x, R.y, R.z))) for name in "xyz")
    parts = (place.pose.translation,), rows, (velocity.linear, velocity.angular)
    return BodyMotion(*(packed_vectors(*jax.tree.map(robot.broadcast, tuple(part))) for part in parts))


def packed_vectors(*vectors: Vec3):
    """Return vectors `[n, *batch]`, for each row one after the other, `[3 k n, *batch]`."""
    x = jnp.stack([c for vector in vectors for c in (vector.x, vector.y, vector.z)], axis=1)
    return x.reshape(-1, *x.shape[2:])


def with_mocap_bodies(parts: Any, poses: Any) -> Any:
    """Return the parts of a world with its mocap bodies at poses `[*batch, nm, 7]`."""
    quaternion = Quaternion.from_array(poses[..., 3:]).normalized()
    poses = jnp.stack([*(poses[..., i] for i in range(3)), *jax.tree.leaves(quaternion)], axis=-1)
    change = compose_poses(poses, invert_pose(parts.bodies.mocap))

    def moved(part: Any) -> Any:
        if not isinstance(part, Places) or not part.mocap:
            return part
        rows = np.flatnonzero(np.array(part.mocap) >= 0)
        own = compose_poses(change[..., np.array(part.mocap)[rows], :], part.placement[..., rows, :])
        whole = jnp.broadcast_to(part.placement, (*own.shape[:-2], *part.placement.shape[-2:]))
        return eqx.tree_at(lambda x: x.placement, part, whole.at[..., rows, :].set(own))

    return jax.tree.map(moved, parts, is_leaf=lambda x: isinstance(x, Places))


def applied_torque(robot: Robot, world: PartRows, q, wrenches):
    """Return the forces on the degrees of freedom of wrenches on bodies, rows `[6 nbody]` as `loads_of` has them."""
    at = instant(robot, q, robot.broadcast(robot.zeros()))
    place, wrench = _placed(robot, world, at, wrenches)
    return robot.broadcast(wrenches_on_dofs(robot, at, place, wrench))


def loads_of(robot: Robot, world: PartRows, at: Instant, wrenches) -> Loads:
    """Return wrenches on bodies, rows `[6 nbody]`: for each a force and a moment at its center of mass, in world
    axes."""
    place, wrench = _placed(robot, world, at, wrenches)
    return Loads(np.arange(len(place.dofs)), place.pose.translation, wrench.force, wrench.moment)


def _placed(robot: Robot, world: PartRows, at: Instant, wrenches):
    parts = [robot.broadcast(wrenches[k::6]) for k in range(6)]
    return Places.located(world.bodies.centers, at), Force(Vec3(*parts[3:]), Vec3(*parts[:3]))
