"""Bounds of shapes, by which most pairs are seen to be apart before their contacts are computed."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax.numpy as jnp

from jaxdyn.geometry._shapes import AbstractShape, Box, Capsule, Cylinder, Ellipsoid, Sphere
from jaxdyn.geometry._surfaces import AbstractSurface, Plane
from jaxdyn.spatial import Pose, Vec3

WIDER = 1e-4
"""Bounds are wider than shapes by this part, so that rounding never excludes a contact."""


def may_touch(
    kind1: type[AbstractShape] | type[AbstractSurface],
    sizes1: Any,
    pose1: Pose,
    kind2: type[AbstractShape] | type[AbstractSurface],
    sizes2: Any,
    pose2: Pose,
    reach: Any,
    *,
    along_axes: bool = False,
) -> Any:
    """Return whether shapes may be within a distance `reach` of each other, `[n, *batch]`, or None for classes without
    bounds.

    A shape has a box along its own axes and a ball around it. Both balls must reach the other's box; of a plane and a
    shape, the shape's box must reach the plane. Arguments as for `candidates`.
    """
    box1, box2 = _half_sizes(kind1, sizes1), _half_sizes(kind2, sizes2)
    reach = jnp.maximum(reach, 0.0)
    if box2 is None or (box1 is None and kind1 is not Plane):
        return None
    between = pose2.translation - pose1.translation
    if box1 is None:
        normal = pose1.rotation.z
        along = pose2.rotation.apply_transpose(normal)
        depth = _sum(jnp.abs(a) * h for a, h in zip(_parts(along), box2, strict=True))
        return normal.dot(between) <= (depth + reach) * (1 + WIDER)
    near = _reaches(pose1, box1, between, ball_radius(kind2, sizes2) + reach)
    near = near & _reaches(pose2, box2, between, ball_radius(kind1, sizes1) + reach)
    return near & boxes_are_near(pose1, box1, pose2, box2, reach) if along_axes else near


def boxes_are_near(pose1: Pose, half1: Any, pose2: Pose, half2: Any, reach: Any) -> Any:
    """Return whether boxes with half sizes `[3, n, *batch]` are within a distance along each of their axes."""
    between = pose2.translation - pose1.translation
    columns1, columns2 = ([r.x, r.y, r.z] for r in (pose1.rotation, pose2.rotation))
    turn = [[jnp.abs(a.dot(b)) for b in columns2] for a in columns1]
    near = True
    for k in range(3):
        extents = (
            (columns1[k], half1[k] + _sum(turn[k][j] * half2[j] for j in range(3))),
            (columns2[k], half2[k] + _sum(turn[j][k] * half1[j] for j in range(3))),
        )
        for axis, extent in extents:
            near = near & (jnp.abs(axis.dot(between)) <= (extent + reach) * (1 + WIDER))
    return near


def _reaches(pose: Pose, half: list, between: Vec3, radius: Any) -> Any:
    """Return whether a ball around the middle of the other shape reaches a box."""
    beyond = [
        jnp.maximum(jnp.abs(x) - h, 0.0)
        for x, h in zip(_parts(pose.rotation.apply_transpose(between)), half, strict=True)
    ]
    radius = radius * (1 + WIDER)
    return _sum(x * x for x in beyond) <= radius * radius


def _half_sizes(kind, sizes) -> list | None:
    """Return the half sizes of the box of shapes along their axes."""
    if kind is Sphere:
        return [sizes[:, 0]] * 3
    if kind is Capsule:
        return [sizes[:, 0], sizes[:, 0], sizes[:, 0] + sizes[:, 1]]
    if kind is Cylinder:
        return [sizes[:, 0], sizes[:, 0], sizes[:, 1]]
    if kind in (Ellipsoid, Box):
        return [sizes[:, 0], sizes[:, 1], sizes[:, 2]]
    return None


def ball_radius(kind, sizes) -> Any:
    """Return the radii `[n, *batch]` of balls around shapes."""
    if kind is Sphere:
        return sizes[:, 0]
    if kind is Capsule:
        return sizes[:, 0] + sizes[:, 1]
    if kind is Ellipsoid:
        return functools.reduce(jnp.maximum, (sizes[:, i] for i in range(3)))
    return jnp.sqrt(_sum(sizes[:, i] * sizes[:, i] for i in range(3 if kind is Box else 2)))


def _parts(v: Vec3) -> tuple[Any, Any, Any]:
    return v.x, v.y, v.z


def _sum(terms) -> Any:
    return functools.reduce(operator.add, terms)
