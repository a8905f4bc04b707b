"""Height fields: the prisms below the triangles of their grid that a geom can reach (mjc_ConvexHField of MuJoCo 4).

Each cell of the grid has two triangles, and each triangle is the top of a prism down to the field's base. A geom has a
contact with every prism that it touches, so the candidates of a pair are the prisms of a window of the grid, of fixed
size, that moves with the geom.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._compile import once
from jaxdyn._errors import ModelError
from jaxdyn.geometry._componentwise import direction, side_by_side
from jaxdyn.geometry.pairs._candidates import Placed
from jaxdyn.spatial import Pose, Vec3

MOST_CONTACTS = 50
"""MuJoCo reports at most so many contacts of a pair of geoms, the first ones in the grid's order (mjMAXCONPAIR)."""
MOST_PRISMS = 2048
"""A shape that can reach more prisms is refused."""
_NUMBERS = 4
"""The numbers before the heights: half lengths along x and y, the height of a point with the elevation 1, the depth of
the base (`hfield_size`)."""


@dataclasses.dataclass(frozen=True)
class Grid:
    """The grid of a height field, and how much of it a shape can reach."""

    number: int
    """The number of the field, which tells fields with different heights apart."""
    rows: int
    """Points along y."""
    columns: int
    """Points along x."""
    window: tuple[int, int]
    """The cells along y and along x that the shape can reach at once."""

    @property
    def prisms(self) -> int:
        """The number of prisms in the window."""
        return 2 * self.window[0] * self.window[1]

    @classmethod
    def reached(cls, number: int, rows: int, columns: int, half_lengths: np.ndarray, reach: float) -> Grid:
        """Return the grid of a field with such half lengths along x and y, for a shape that reaches so far from its
        center (m)."""
        # An interval of this length, in cells, overlaps up to one cell more than it covers, and one where it begins.
        cells = [(reach * (n - 1) / half, n - 1) for n, half in ((rows, half_lengths[1]), (columns, half_lengths[0]))]
        window = tuple(int(min(np.floor(length) + 2, most)) for length, most in cells)
        return cls(number, rows, columns, (window[0], window[1]))


class Prisms(NamedTuple):
    """The prisms in the window of each pair, in the field's frame: components `[n, 1, prisms, *batch]`."""

    corners: tuple[Vec3, Vec3, Vec3]
    """The corners of the triangle on top. The first two are on the diagonal of the cell."""
    base: Any
    """The height of the lower triangle."""
    faces: list[Vec3]
    """The outward normals."""

    def support(self, normal: Vec3):
        """How far they reach in a direction."""
        lower = self.base * normal.z
        far = [
            corner.x * normal.x + corner.y * normal.y + jnp.maximum(corner.z * normal.z, lower)
            for corner in self.corners
        ]
        return jnp.maximum(jnp.maximum(far[0], far[1]), far[2])

    def edges(self) -> tuple[Vec3, Vec3]:
        """The middles and the half lengths of the nine edges, `[n, 9, prisms, *batch]`."""
        upper = list(self.corners)
        lower = [Vec3(corner.x, corner.y, self.base + 0 * corner.z) for corner in upper]
        around = [(0, 1), (1, 2), (2, 0)]
        pairs = [(level[i], level[j]) for level in (upper, lower) for i, j in around]
        pairs += list(zip(upper, lower, strict=True))
        return along_second([(a + b) * 0.5 for a, b in pairs]), along_second([(b - a) * 0.5 for a, b in pairs])


def along_second(vectors: Sequence[Vec3]) -> Vec3:
    """Return vectors `[n, k, prisms, *batch]`, which broadcast, one after the other along the second axis."""
    return once(side_by_side(vectors))


def prisms_near(field: Placed, pose: Pose, reach: tuple[Any, Any]) -> tuple[Prisms, Any]:
    """Return the prisms in the window around geoms whose poses in the field's frame are rows `[n, 1, *batch]`, and
    whether all that a geom reaches, so far along x and y from its center, are in the window."""
    grid = field.structure
    if not isinstance(grid, Grid):
        raise ModelError("a height field needs a Grid as its structure, and its heights as sizes")
    size, heights = field.sizes[0, :_NUMBERS], field.sizes[0, _NUMBERS:]
    half = size[0], size[1]
    counts = grid.columns - 1, grid.rows - 1
    steps = [2 * h / n for h, n in zip(half, counts, strict=True)]
    firsts, inside = [], True
    for center, far, h, step, count, window in zip(
        (pose.translation.x, pose.translation.y), reach, half, steps, counts, grid.window[::-1], strict=True
    ):
        low, high = (jax.lax.stop_gradient(jnp.floor((center + way * far + h) / step)) for way in (-1, 1))
        # Numbers that are not finite have no index.
        low = jnp.clip(jnp.nan_to_num(low), 0, count - window)
        inside = inside & (jnp.minimum(high, count - 1) < low + window)
        firsts.append(low.astype(jnp.int32))
    # The prisms in MuJoCo's order: row by row, and above the diagonal of a cell before below it.
    r, c, below = np.meshgrid(*(np.arange(n) for n in (*grid.window, 2)), indexing="ij")
    r, c, below = (x.reshape(1, -1, *(1,) * (firsts[0].ndim - 2)).astype(np.int32) for x in (r, c, below))
    corners = []
    for over, beyond in ((0, 0), (1, 1), (1 - below, below)):
        x, y = firsts[0] + (c + beyond), firsts[1] + (r + over)
        z = _taken(heights, y * grid.columns + x) * size[2]
        x, y = (i.astype(z.dtype) * step - h for i, step, h in zip((x, y), steps, half, strict=True))
        corners.append(jax.tree.map(lambda v: v[:, None], Vec3(x, y, z)))
    first, second, third = corners
    right, left = (jnp.asarray(x[:, None], third.z.dtype) for x in (below, 1 - below))
    upward = (second - first).cross(third - first) * (left - right)
    diagonal = direction(Vec3(steps[1], -steps[0], 0.0)) * (left - right)
    sides = [Vec3(-left, -right, 0.0), Vec3(right, left, 0.0)]
    down = Vec3(0.0, 0.0, -1.0)
    return Prisms((first, second, third), -size[3], [direction(upward), down, diagonal, *sides]), inside


def _taken(heights, index):
    """Elements of rows `[points, *batch]` by numbers `[n, count, *batch]`."""
    if heights[0].size == 1:
        return heights.reshape(-1)[index]
    batch = jnp.broadcast_shapes(heights.shape[1:], index.shape[2:])
    flat = jnp.broadcast_to(index, (*index.shape[:2], *batch)).reshape(-1, *batch)
    rows = jnp.broadcast_to(heights, (heights.shape[0], *batch))
    return jnp.take_along_axis(rows, flat, axis=0).reshape(*index.shape[:2], *batch)
