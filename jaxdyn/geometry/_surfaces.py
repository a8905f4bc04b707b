"""Surfaces of the world. Their numbers are leaves, and points come as components with the batch axes last."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import (
    ModelError,
    ShapeError,
    broadcast_batches,
    require_choice,
    require_finite,
    require_last_axes,
    require_positive,
)
from jaxdyn._types import Array, Float, float_leaf, leaf_of
from jaxdyn.geometry._componentwise import length_and_direction
from jaxdyn.spatial import Vec3


class AbstractSurface(eqx.Module):
    """A surface of the world, with free space on one side.

    Its leaves may have leading batch axes. These meet the batch axes of points, which come last: a leaf of one number
    for each element is `[*batch]`, and coordinates of points are `[n, *batch]`.
    """

    normal_steps: ClassVar[int] = 3
    """How often a curved shape's nearest point is computed again with the normal at the one before."""

    @abstractmethod
    def distance(self, point: Vec3) -> tuple[Any, Vec3]:
        """The signed distances of points (m, positive in free space), and the unit normals of the surface at them."""

    @abstractmethod
    def shifted(self, origin: Vec3) -> Self:
        """The same surface in axes with another origin, `[*batch]` (m), so that coordinates near a robot far from the
        world's origin keep their digits."""

    def sphere_distance(self, center: Vec3, radius) -> tuple[Any, Vec3]:
        """The signed distances of spheres, and the normals of the surface towards them."""
        distance, normal = self.distance(center)
        return distance - radius, normal


class Plane(AbstractSurface):
    """The plane of the points `x` with `n . x = offset`, with free space on the side of `n`, the unit vector along
    `normal`.

    **Raises** `ModelError` for a normal that is zero or numbers that are not finite, `ShapeError` for other shapes.
    """

    normal: Float[Array, "*batch 3"] = eqx.field(converter=leaf_of("Plane: `normal`"), default=(0.0, 0.0, 1.0))
    """Its length does not matter."""
    offset: Float[Array, "*batch"] = eqx.field(converter=leaf_of("Plane: `offset`"), default=0.0)
    """The distance of the plane from the origin, along the normal, m."""
    normal_steps: ClassVar[int] = 0

    def __check_init__(self):
        require_last_axes(self.normal, (3,), "Plane: `normal`", "a direction x, y, z")
        broadcast_batches({"Plane: `normal`": self.normal.shape[:-1], "`offset`": self.offset.shape})
        for value, what in ((self.normal, "Plane: `normal`"), (self.offset, "Plane: `offset`")):
            if not isinstance(value, Tracer):
                require_finite(value, what)
        if not isinstance(self.normal, Tracer) and not np.asarray(self.normal).any(axis=-1).all():
            raise ModelError("Plane: `normal` is zero; a direction is needed, such as (0, 0, 1)")

    def distance(self, point: Vec3) -> tuple[Any, Vec3]:
        normal = self._unit_normal()
        return normal.dot(point) - self.offset, normal

    def shifted(self, origin: Vec3) -> Plane:
        return Plane(self.normal, self.offset - self._unit_normal().dot(origin))

    def _unit_normal(self) -> Vec3:
        normal = Vec3.from_array(self.normal)
        return normal * (1 / jnp.sqrt(normal.squared_norm()))


class SignedDistance(AbstractSurface):
    """The surface where a function of the user is zero.

    The function returns the signed distance of a point (m), positive in free space. The normal is along its gradient,
    which must be finite; where the gradient is zero, the normal is z. A function whose gradient does not have unit
    length is no distance: gaps are as wrong as that length. It is called with one point, and computed by `jax.vmap` for
    many. Functions of equal surfaces must be the same object, or programs are compiled again.

    **Raises** `ModelError` for what cannot be called, `ShapeError` if it does not return one number for a point.
    """

    function: Callable[[Any, Array], Any] = eqx.field(static=True)
    """`(parameters, point [3]) -> distance`."""
    parameters: Any = None
    """Any pytree; its leaves have no batch axes."""
    origin: Float[Array, "*batch 3"] = eqx.field(converter=leaf_of("SignedDistance: `origin`"), default=(0.0, 0.0, 0.0))
    """A point of these axes, plus `origin`, is what the function gets, m."""

    def __check_init__(self):
        if not callable(self.function):
            raise ModelError(
                f"SignedDistance: `function` is {self.function!r}; (parameters, point) -> distance is needed"
            )
        require_last_axes(self.origin, (3,), "SignedDistance: `origin`", "a point x, y, z (m)")

    def distance(self, point: Vec3) -> tuple[Any, Vec3]:
        points = (point + Vec3.from_array(self.origin)).to_array()

        def of_point(x):
            distance = jnp.asarray(self.function(self.parameters, x))
            if distance.shape != ():
                raise ShapeError(
                    f"SignedDistance: `function` returned shape {distance.shape} for a point; [] is needed"
                )
            return distance.astype(x.dtype)

        distance, gradient = jax.vmap(jax.value_and_grad(of_point))(points.reshape(-1, 3))
        batch = points.shape[:-1]
        return distance.reshape(batch), length_and_direction(Vec3.from_array(gradient.reshape(*batch, 3)))[1]

    def shifted(self, origin: Vec3) -> SignedDistance:
        return SignedDistance(self.function, self.parameters, shifted_point(self.origin, origin, 1.0))


class HeightField(AbstractSurface):
    """A terrain `z = height(x, y)` over a grid, with free space above.

    Between the nodes the height is cubic in x and y (Catmull and Rom 1974): it passes through the heights of the nodes
    and has no creases, but rises beside a step above it by up to 7 percent of the step. With `interpolation="linear"`
    it stays between the heights of the nodes and has creases, where normals jump. Outside the grid the border's heights
    continue.

    A point's distance is its height above the surface times the normal's z: exact for a slope, and close to the
    surface of first order. A sphere's distance is that of its point against the normal, found as for an `Ellipsoid`.

    **Raises** `ModelError` for spacings that are not positive, fewer than 2 x 2 nodes, or numbers that are not finite;
    `ShapeError` for other shapes.
    """

    heights: Float[Array, "*batch nx ny"] = eqx.field(converter=leaf_of("HeightField: `heights`"))
    """Above the origin, m; the first axis runs along x, the second along y."""
    spacing: Float[Array, "*batch 2"] = eqx.field(converter=lambda x: _spacing(x))
    """The distances of the nodes along x and y, m. One number counts for both."""
    origin: Float[Array, "*batch 3"] = eqx.field(converter=leaf_of("HeightField: `origin`"), default=(0.0, 0.0, 0.0))
    """The place of the first node, if its height is zero, m."""
    interpolation: str = eqx.field(static=True, default="cubic")
    """`"cubic"` or `"linear"`."""

    def __check_init__(self):
        require_choice(self.interpolation, ("cubic", "linear"), "HeightField: `interpolation`")
        require_last_axes(self.spacing, (2,), "HeightField: `spacing`", "the distances of the nodes along x and y (m)")
        require_last_axes(self.origin, (3,), "HeightField: `origin`", "the place of the first node (m)")
        if self.heights.ndim < 2 or min(self.heights.shape[-2:]) < 2:
            raise ModelError(f"HeightField: `heights` has shape {self.heights.shape}; at least 2 x 2 nodes are needed")
        if not isinstance(self.heights, Tracer):
            require_finite(self.heights, "HeightField: `heights`")
        if not isinstance(self.spacing, Tracer):
            require_positive(self.spacing, "HeightField: `spacing`")

    def distance(self, point: Vec3) -> tuple[Any, Vec3]:
        offset = point - Vec3.from_array(self.origin)
        height, slope_x, slope_y = self._height(offset.x, offset.y)
        normal = Vec3(-slope_x, -slope_y, 1.0)
        normal = normal * (1 / jnp.sqrt(normal.squared_norm()))
        return (offset.z - height) * normal.z, normal

    def sphere_distance(self, center: Vec3, radius) -> tuple[Any, Vec3]:
        return nearest_of_convex(self, center, lambda normal: normal * -radius)[:2]

    def shifted(self, origin: Vec3) -> HeightField:
        moved = shifted_point(self.origin, origin, -1.0)
        return HeightField(self.heights, self.spacing, moved, self.interpolation)

    def _height(self, x, y) -> tuple[Any, Any, Any]:
        """The height and its slopes along x and y."""
        x, y = jnp.broadcast_arrays(x, y)
        nx, ny = self.heights.shape[-2:]
        i, wx, dx = self._weights(x / self.spacing[..., 0], nx)
        j, wy, dy = self._weights(y / self.spacing[..., 1], ny)
        height = slope_x = slope_y = 0.0
        for k in range(len(wx)):
            row = [self._at(i[k] * ny + j[m]) for m in range(len(wy))]
            along = sum(w * h for w, h in zip(wy, row, strict=True))
            height, slope_x = height + wx[k] * along, slope_x + dx[k] * along
            slope_y = slope_y + wx[k] * sum(w * h for w, h in zip(dy, row, strict=True))
        return height, slope_x / self.spacing[..., 0], slope_y / self.spacing[..., 1]

    def _weights(self, u, n: int) -> tuple[list, list, list]:
        """The nodes around a place, counted in nodes, with their weights in the height and in its derivative."""
        inside = (u >= 0) & (u <= n - 1)
        u = jnp.clip(u, 0, n - 1)
        cell = jnp.clip(jnp.floor(jax.lax.stop_gradient(u)), 0, n - 2)
        t, first = u - cell, cell.astype(int)
        if self.interpolation == "linear":
            nodes, weights, slopes = [first, first + 1], [1 - t, t], [-jnp.ones_like(t), jnp.ones_like(t)]
        else:
            nodes = [jnp.clip(first + k, 0, n - 1) for k in (-1, 0, 1, 2)]
            weights = [
                t * (-0.5 + t * (1 - 0.5 * t)),
                1 + t * t * (-2.5 + 1.5 * t),
                t * (0.5 + t * (2 - 1.5 * t)),
                t * t * (-0.5 + 0.5 * t),
            ]
            slopes = [
                -0.5 + t * (2 - 1.5 * t),
                t * (-5 + 4.5 * t),
                0.5 + t * (4 - 4.5 * t),
                t * (-1 + 1.5 * t),
            ]
        return nodes, weights, [jnp.where(inside, slope, 0) for slope in slopes]

    def _at(self, index):
        """The heights of nodes `[n, ..., *batch]`, whose numbers count through the flattened grid."""
        nodes = self.heights.reshape(*self.heights.shape[:-2], -1)
        if nodes.ndim == 1:
            return nodes[index]
        rows = jnp.moveaxis(nodes, -1, 0)
        rank = index.ndim - (rows.ndim - 1)
        rows = rows.reshape(rows.shape[0], *(1,) * (rank - 1), *rows.shape[1:])
        return jnp.take_along_axis(rows, index, axis=0)


def _spacing(x) -> Array:
    spacing = float_leaf(x, "HeightField: `spacing`")
    return jnp.broadcast_to(spacing, (2,)) if spacing.ndim == 0 else spacing


def nearest_of_convex(surface: AbstractSurface, center: Vec3, nearest: Callable[[Vec3], Vec3]):
    """The distance of a convex shape around `center`, the normal, and the point of the shape that is nearest.

    `nearest(normal)` is the offset of the shape's point that is farthest against a normal. The normal is at first that
    at the center, and then that at the nearest point: a fixed point has the normals of shape and surface opposite.
    """
    point = center
    for _ in range(surface.normal_steps + 1):
        point = center + nearest(surface.distance(point)[1])
    distance, normal = surface.distance(point)
    return distance, normal, point


def shifted_point(point: Array, origin: Vec3, sign: float) -> Array:
    """`point + sign origin`, `[*batch, 3]`."""
    return (Vec3.from_array(point) + origin * sign).to_array().astype(point.dtype)
