"""Distances between a robot's capsules and obstacles."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import ModelError, require_shape
from jaxdyn._types import Array, ArrayLike, Float, leaf_of
from jaxdyn.algorithms import frame_jacobian, frame_pose
from jaxdyn.trajopt.problem._residuals import Linear, StateOnlyResidual, jacobian_by_state, robot_state


class Capsule(eqx.Module):
    """All points within `radius` of a segment from `start` to `end`, m; a sphere where both are the same point."""

    start: Float[Array, "3"] = eqx.field(converter=leaf_of("Capsule: `start`"))
    end: Float[Array, "3"] = eqx.field(converter=leaf_of("Capsule: `end`"))
    radius: Float[Array, ""] = eqx.field(converter=leaf_of("Capsule: `radius`"))

    def __check_init__(self):
        for name in ("start", "end"):
            require_shape(getattr(self, name), (3,), f"the {name} of a capsule", "a point in m")
        require_shape(self.radius, (), "the radius of a capsule", "a number in m")

    @staticmethod
    def sphere(center: ArrayLike, radius: ArrayLike) -> "Capsule":
        """The points within `radius` (m) of `center` `[3]` (m)."""
        return Capsule(center, center, radius)


class ClosestPoints(NamedTuple):
    """The nearest points on the first and on the second segment."""

    first: Float[Array, "3"]
    second: Float[Array, "3"]


def closest_points(p1, q1, p2, q2) -> ClosestPoints:
    """The points nearest to each other of the segments `p1 q1` and `p2 q2`, which may be points.

    Ericson, Real-Time Collision Detection, 2005, section 5.1.9. For parallel segments it is one of the nearest pairs.
    """
    d1, d2, r = q1 - p1, q2 - p2, p1 - p2
    a, e, f, c, b = d1 @ d1, d2 @ d2, d2 @ r, d1 @ r, d1 @ d2
    tiny = jnp.finfo(a.dtype).tiny
    determinant = a * e - b * b
    # Nearly parallel segments: any point of the first.
    slanted = determinant > 16 * jnp.finfo(a.dtype).eps * a * e
    s = jnp.where(slanted, jnp.clip((b * f - c * e) / jnp.where(slanted, determinant, 1.0), 0, 1), 0.0)
    t = jnp.clip((b * s + f) / jnp.where(e > tiny, e, 1.0), 0, 1)
    t = jnp.where(e > tiny, t, 0.0)
    s = jnp.where(a > tiny, jnp.clip((b * t - c) / jnp.where(a > tiny, a, 1.0), 0, 1), 0.0)
    return ClosestPoints(p1 + s * d1, p2 + t * d2)


class ClearanceResidual(StateOnlyResidual):
    """The distances `[len(capsules) * len(obstacles)]` (m) between the surfaces of every capsule and every obstacle, in
    the order of the capsules; negative where they overlap. Smooth except where the nearest point jumps (parallel axes),
    and where axes cross. `Constraint(ClearanceResidual(...), lower=0.02, upper=jnp.inf)` keeps 2 cm."""

    capsules: tuple[Capsule, ...]
    obstacles: tuple[Capsule, ...]
    frames: tuple[str, ...] = eqx.field(static=True)
    obstacle_frames: tuple[str | None, ...] = eqx.field(static=True)

    def __init__(self, capsules: Sequence[tuple[str, Capsule]], obstacles: Sequence[Capsule | tuple[str, Capsule]]):
        """`capsules`: pairs of a frame's name and a capsule in its axes. `obstacles`: capsules in the world's axes, or
        pairs as above, for a robot that must not hit itself. **Raises** `ModelError`."""
        pairs = [(o if isinstance(o, tuple) else (None, o)) for o in obstacles]
        if not capsules or not pairs:
            raise ModelError("a ClearanceResidual needs at least one capsule and one obstacle")
        for pair in (*capsules, *pairs):
            if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[1], Capsule):
                raise ModelError("a ClearanceResidual needs pairs of a frame's name and a Capsule")
        self.frames, self.capsules = (tuple(x) for x in zip(*capsules, strict=True))
        self.obstacle_frames, self.obstacles = (tuple(x) for x in zip(*pairs, strict=True))

    def __call__(self, dynamics, x, u, k):
        return self._distances(dynamics, x)[0]

    def linearize(self, dynamics, x, u, k):
        distances, normals, points, poses = self._distances(dynamics, x)
        model, q, _ = robot_state(dynamics, self, x)
        jacobians = {frame: frame_jacobian(model, q, frame) for frame in poses}

        def slope(frame, point, normal):
            """The derivative of `normal @ point` by `q`, for a point that is fixed in the frame."""
            if frame is None:
                return jnp.zeros(model.nv, x.dtype)
            J = jacobians[frame]
            return normal @ J[:3] + jnp.cross(point - poses[frame].translation, normal) @ J[3:]

        # Moving a nearest point along its segment changes the distance in second order only, unless it is an end: so
        # the distance has the derivative that it has for points fixed in their bodies.
        pairs = itertools.product(self.frames, self.obstacle_frames)
        rows = [
            slope(a, nearest.first, normal) - slope(b, nearest.second, normal)
            for (a, b), normal, nearest in zip(pairs, normals, points, strict=True)
        ]
        return Linear(distances, jacobian_by_state(dynamics, jnp.stack(rows)), None)

    def _distances(self, dynamics, x):
        """The distances, their gradients by the first point, the closest points, and the poses of the frames."""
        model, q, _ = robot_state(dynamics, self, x)
        poses = {f: frame_pose(model, q, f) for f in sorted({*self.frames, *self.obstacle_frames} - {None})}

        def in_world(frame, capsule):
            capsule = jax.tree.map(lambda a: a.astype(x.dtype), capsule)
            if frame is None:
                return capsule.start, capsule.end, capsule.radius
            R, p = poses[frame].rotation, poses[frame].translation
            return R @ capsule.start + p, R @ capsule.end + p, capsule.radius

        robot = [in_world(*x) for x in zip(self.frames, self.capsules, strict=True)]
        obstacles = [in_world(*x) for x in zip(self.obstacle_frames, self.obstacles, strict=True)]
        distances, normals, points = [], [], []
        for (p1, q1, r1), (p2, q2, r2) in itertools.product(robot, obstacles):
            nearest = closest_points(p1, q1, p2, q2)
            d = nearest.first - nearest.second
            square = d @ d
            apart = square > 0
            length = jnp.sqrt(jnp.where(apart, square, 1.0))
            distances.append(jnp.where(apart, length, 0.0) - r1 - r2)
            normals.append(jnp.where(apart, d / length, 0.0))
            points.append(nearest)
        return jnp.stack(distances), normals, points, poses
