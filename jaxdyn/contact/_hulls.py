"""Few points that stand for a mesh, vertices of its convex hull, and capsules around points."""

from __future__ import annotations

import itertools

import numpy as np

from jaxdyn._extras import import_extra


def hull_points(points: np.ndarray, most: int) -> tuple[np.ndarray, int, float]:
    """Return at most `most` corners `[k, 3]` of the convex hull of points `[n, 3]`, the number of all its corners, and
    by how much at most the other ones stand out of the hull of these (m).

    Where there are too many, they are chosen one after the other, each the one that stands out most. Points in a plane
    or in a line have the hull there.
    """
    points = np.unique(np.asarray(points, np.float64), axis=0)
    center = points.mean(axis=0)
    _, sizes, axes = np.linalg.svd(points - center, full_matrices=False)
    dimension = int((sizes > 1e-6 * max(float(np.abs(points).max()), sizes[0])).sum())
    # The coordinates in the line, plane or space that the points span.
    flat = (points - center) @ axes[:dimension].T
    corners = _corners(flat)
    if len(corners) <= most:
        return points[corners], len(corners), 0.0
    flat = flat[corners]
    chosen = _simplex(flat)
    while len(chosen) < most:
        chosen.append(int(np.argmax(_heights(flat, chosen))))
    return points[corners[chosen]], len(corners), _distance(flat, chosen)


def capsule_around(points: np.ndarray) -> tuple[float, float, np.ndarray, np.ndarray]:
    """Return the radius, half the length without caps, the middle and the axis (unit vectors, m) of a capsule that
    contains points `[n, 3]`: the one with the least volume whose axis is a principal axis of the points, in the middle
    between the outermost of them."""
    points = np.asarray(points, np.float64)
    offsets = points - points.mean(axis=0)
    axes = np.linalg.eigh(offsets.T @ offsets)[1].T
    best = None
    for k in range(3):
        turned = points @ np.roll(axes, -k, axis=0).T
        along, across = turned[:, 0], turned[:, 1:]
        center = (across.min(axis=0) + across.max(axis=0)) / 2
        distance = np.linalg.norm(across - center, axis=1)
        radius = float(distance.max())
        cap = np.sqrt(np.maximum(radius**2 - distance**2, 0.0))
        high, low = float((along - cap).max()), float((along + cap).min())
        half, middle = max(high - low, 0.0) / 2, (high + low) / 2
        volume = radius**2 * (2 * half + 4 / 3 * radius)
        if best is None or volume < best[0]:
            place = np.array([middle, *center]) @ np.roll(axes, -k, axis=0)
            best = volume, (radius, half, place, axes[k])
    assert best is not None
    return best[1]


def _corners(flat: np.ndarray) -> np.ndarray:
    """Return the numbers of the corners of the hull of points `[n, d]`."""
    from scipy.spatial import ConvexHull

    if flat.shape[1] < 2:
        return np.unique([flat.argmin(), flat.argmax()]) if flat.shape[1] else np.zeros(1, int)
    return np.sort(ConvexHull(flat).vertices)


def _simplex(flat: np.ndarray) -> list[int]:
    """Return the numbers of `d + 1` points that span the space, each far from what those before it span."""
    chosen = [int(np.argmax(np.linalg.norm(flat, axis=1)))]
    away = flat - flat[chosen[0]]
    for _ in range(flat.shape[1]):
        chosen.append(int(np.argmax(np.linalg.norm(away, axis=1))))
        along = away[chosen[-1]] / np.linalg.norm(away[chosen[-1]])
        away = away - np.outer(away @ along, along)
    return chosen


def _heights(flat: np.ndarray, chosen: list[int]) -> np.ndarray:
    """Return how high each point stands over the facets of the hull of the chosen ones."""
    from scipy.spatial import ConvexHull

    equations = ConvexHull(flat[chosen]).equations
    return (flat @ equations[:, :-1].T + equations[:, -1]).max(axis=1)


def _distance(flat: np.ndarray, chosen: list[int]) -> float:
    """Return the largest distance of the points from the hull of the chosen ones."""
    from scipy.spatial import ConvexHull

    trimesh = import_extra("trimesh", "measure how well few points stand for a mesh")
    hull = ConvexHull(flat[chosen])
    corners = np.pad(flat[chosen], ((0, 0), (0, 3 - flat.shape[1])))
    facets = hull.simplices
    if flat.shape[1] == 2:
        around = hull.vertices
        facets = np.array([[around[0], a, b] for a, b in itertools.pairwise(around[1:])])
    points = np.pad(flat, ((0, 0), (0, 3 - flat.shape[1])))
    points = points[_heights(flat, chosen) > 0]
    if not len(points):
        return 0.0
    triangles = np.tile(corners[facets], (len(points), 1, 1))
    points = np.repeat(points, len(facets), axis=0)
    nearest = trimesh.triangles.closest_point(triangles, points)
    return float(np.linalg.norm(nearest - points, axis=1).reshape(-1, len(facets)).min(axis=1).max())
