"""Shapes on bodies. Their sizes are leaves."""

from __future__ import annotations

import os
from abc import abstractmethod
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, broadcast_batches, require_finite, require_last_axes, require_positive
from jaxdyn._types import Array, ArrayLike, Float, float_leaf, leaf_of
from jaxdyn.geometry._componentwise import along_candidates, length_and_direction
from jaxdyn.spatial import Vec3, pose_array, quaternion_from_z


def check_sizes(value, what: str, *, zero: bool = True) -> None:
    """Raise `ModelError` for sizes that are negative or not finite; nothing is known about sizes that are traced."""
    if not isinstance(value, Tracer):
        require_positive(value, what, zero=zero)


def check_radius_and_half_length(radius, half_length, kind: str) -> None:
    """Raise `ModelError` for sizes that are negative or not finite, `ShapeError` for batch axes that do not fit."""
    for value, name in ((radius, "radius"), (half_length, "half_length")):
        check_sizes(value, f"{kind}: `{name}`")
    broadcast_batches({f"{kind}: `radius`": radius.shape, "`half_length`": half_length.shape})


class AbstractShape(eqx.Module):
    """A shape in its own frame. The leaves may have leading batch axes, which broadcast."""

    @property
    @abstractmethod
    def sizes(self) -> Float[Array, "*batch k"]:
        """All numbers of the shape in one array, m. Shapes of one class with equally many are computed together."""

    @staticmethod
    @abstractmethod
    def witness_count(size_count: int) -> int:
        """The number of witnesses of a shape of so many sizes against a surface."""


class AbstractRoundedPoints(AbstractShape):
    """A shape that meets a surface with spheres around some of its points."""

    @staticmethod
    @abstractmethod
    def spheres(sizes: Array) -> tuple[Vec3, Any]:
        """The centers, components `[n, count, *batch]`, and the radii of the spheres, of sizes `[n, k, *batch]`."""


class Sphere(AbstractRoundedPoints):
    """A sphere around the frame's origin.

    **Raises** `ModelError` for a radius that is negative or not finite, `ShapeError` for what is not a number.
    """

    radius: Float[Array, "*batch"] = eqx.field(converter=leaf_of("Sphere: `radius`"))
    """m; zero makes it a point."""

    def __check_init__(self):
        check_sizes(self.radius, "Sphere: `radius`")

    @property
    def sizes(self) -> Array:
        return self.radius[..., None]

    @staticmethod
    def witness_count(size_count: int) -> int:
        return 1

    @staticmethod
    def spheres(sizes: Array) -> tuple[Vec3, Any]:
        return Vec3.zero(), sizes[:, :1]


class Capsule(AbstractRoundedPoints):
    """All points within `radius` of a segment of the z-axis, whose middle is the frame's origin.

    It meets a surface with its two end spheres: this is exact for a plane.

    **Raises** `ModelError` for sizes that are negative or not finite, `ShapeError` for what are not numbers.
    """

    radius: Float[Array, "*batch"] = eqx.field(converter=leaf_of("Capsule: `radius`"))
    """m."""
    half_length: Float[Array, "*batch"] = eqx.field(converter=leaf_of("Capsule: `half_length`"))
    """Half the length of the segment, without the caps, m."""

    def __check_init__(self):
        check_radius_and_half_length(self.radius, self.half_length, "Capsule")

    @staticmethod
    def between(start: ArrayLike, end: ArrayLike, radius: ArrayLike) -> tuple[Capsule, Array]:
        """Return the capsule around a segment from `start` to `end` `[*batch, 3]` (m) in a link's axes, and its
        placement `[*batch, 7]` there: `ContactShape(link, *Capsule.between(start, end, radius))`. It is a sphere where
        both are the same point."""
        for name, value in (("start", start), ("end", end)):
            require_last_axes(float_leaf(value, name), (3,), f"Capsule.between: `{name}`", "a point x, y, z (m)")
        # Without arrays of JAX, NumPy computes this: JAX would compile a program for each operation.
        lib: Any = jnp if any(isinstance(x, jax.Array) for x in (start, end)) else np
        first, last = lib.asarray(start) * 1.0, lib.asarray(end) * 1.0
        along = last - first
        # A segment of length zero has no slope of its length.
        square = (along * along).sum(axis=-1)
        length = lib.where(square > 0, lib.sqrt(lib.where(square > 0, square, 1.0)), 0.0)
        return Capsule(radius, 0.5 * length), pose_array(0.5 * (first + last), quaternion_from_z(along))

    @property
    def sizes(self) -> Array:
        return jnp.stack(jnp.broadcast_arrays(self.radius, self.half_length), axis=-1)

    @staticmethod
    def witness_count(size_count: int) -> int:
        return 2

    @staticmethod
    def spheres(sizes: Array) -> tuple[Vec3, Any]:
        return Vec3(0.0, 0.0, sizes[:, 1:2] * along_candidates([-1, 1], sizes)), sizes[:, :1]


class Cylinder(AbstractShape):
    """A cylinder around the z-axis with flat ends, whose middle is the frame's origin.

    It meets a surface with three points on the rim of either end: the one that is farthest against the surface's
    normal, and those a third of a turn beside it. This is exact for a plane, on which it rolls, stands, and tips over
    any place of its rim. Where its axis is along the normal, to 1e-8 rad in double and 3e-4 rad in single precision,
    no point is the farthest, and the three are fixed to the body; the springs of three such points resist all tilts
    equally. A curved surface that touches the side between the ends is not found.

    **Raises** `ModelError` for sizes that are negative or not finite, `ShapeError` for what are not numbers.
    """

    radius: Float[Array, "*batch"] = eqx.field(converter=leaf_of("Cylinder: `radius`"))
    """m."""
    half_length: Float[Array, "*batch"] = eqx.field(converter=leaf_of("Cylinder: `half_length`"))
    """Half the distance of the ends, m."""

    def __check_init__(self):
        check_radius_and_half_length(self.radius, self.half_length, "Cylinder")

    @property
    def sizes(self) -> Array:
        return jnp.stack(jnp.broadcast_arrays(self.radius, self.half_length), axis=-1)

    @staticmethod
    def witness_count(size_count: int) -> int:
        return 6

    @staticmethod
    def farthest_of_rim(sizes: Array, direction: Vec3) -> Vec3:
        """The offset from the middle of an end to the point of its rim that is farthest along a unit vector, both in
        the cylinder's axes; `[n, 1, *batch]`."""
        shortest = float(jnp.finfo(sizes.dtype).eps) ** 0.5
        outwards = Vec3(direction.x, direction.y, 0.0)
        return length_and_direction(outwards, Vec3(1.0, 0.0, 0.0), shortest)[1] * sizes[:, :1]


class Box(AbstractRoundedPoints):
    """A box around the frame's origin with its edges along the axes.

    It meets a surface with its eight corners: this is exact for a plane. A surface with bumps smaller than the box can
    pass between the corners.

    **Raises** `ModelError` for sizes that are negative or not finite, `ShapeError` unless there are three.
    """

    half_sizes: Float[Array, "*batch 3"] = eqx.field(converter=leaf_of("Box: `half_sizes`"))
    """Half the lengths of the edges along x, y and z, m."""

    def __check_init__(self):
        require_last_axes(self.half_sizes, (3,), "Box: `half_sizes`", "half the lengths of the edges along x, y, z (m)")
        check_sizes(self.half_sizes, "Box: `half_sizes`")

    @property
    def sizes(self) -> Array:
        return self.half_sizes

    @staticmethod
    def witness_count(size_count: int) -> int:
        return 8

    @staticmethod
    def spheres(sizes: Array) -> tuple[Vec3, Any]:
        signs = np.stack(np.meshgrid([-1, 1], [-1, 1], [-1, 1], indexing="ij")).reshape(3, 8)
        return Vec3(*(sizes[:, i : i + 1] * along_candidates(signs[i], sizes) for i in range(3))), 0.0


class Points(AbstractRoundedPoints):
    """Points of a body, such as the vertices of a mesh; nothing of the surface between them touches anything.

    **Raises** `ModelError` for positions that are not finite or for none, `ShapeError` unless they are `[n, 3]`.
    """

    positions: Float[Array, "*batch n 3"] = eqx.field(converter=leaf_of("Points: `positions`"))
    """m."""

    def __check_init__(self):
        meaning = "the coordinates x, y, z (m) of every point"
        require_last_axes(self.positions, (3,), "Points: `positions`", meaning)
        require_last_axes(self.positions, (*self.positions.shape[-2:-1], 3), "Points: `positions`", meaning)
        if self.positions.ndim < 2 or self.positions.shape[-2] == 0:
            raise ModelError(
                f"Points: `positions` has shape {self.positions.shape}; at least one point, [n, 3], is needed"
            )
        if not isinstance(self.positions, Tracer):
            require_finite(self.positions, "Points: `positions`")

    @staticmethod
    def of_mesh(path: str | os.PathLike, *, scale: float = 1.0, hull: bool = True) -> Points:
        """Return the vertices of a mesh's convex hull, which are all that can touch a plane, or with `hull=False` all
        vertices, times `scale` (m per unit of the file). The package `trimesh` reads the file.

        **Raises** `ImportError` without trimesh, `ModelError` for a file that cannot be read or has no vertices.
        """
        try:
            import trimesh
        except ImportError as error:
            raise ImportError("trimesh reads meshes: pip install 'jaxdyn[viz]'") from error
        try:
            mesh = trimesh.load(Path(path), force="mesh", process=True)
            vertices = np.asarray(mesh.convex_hull.vertices if hull else mesh.vertices)  # type: ignore[reportAttributeAccessIssue]
        except Exception as error:  # trimesh raises errors of many libraries
            raise ModelError(f"the mesh {str(path)!r} cannot be read: {error}") from error
        return Points(scale * vertices)

    @property
    def sizes(self) -> Array:
        return self.positions.reshape(*self.positions.shape[:-2], -1)

    @staticmethod
    def witness_count(size_count: int) -> int:
        return size_count // 3

    @staticmethod
    def spheres(sizes: Array) -> tuple[Vec3, Any]:
        positions = sizes.reshape(sizes.shape[0], -1, 3, *sizes.shape[2:])
        return Vec3(positions[:, :, 0], positions[:, :, 1], positions[:, :, 2]), 0.0


class Ellipsoid(AbstractShape):
    """An ellipsoid around the frame's origin with its semi-axes along the axes.

    It meets a surface with the point that is farthest against the surface's normal, which is exact for a plane. For
    other surfaces a few steps of a fixed-point iteration for the normal approximate it. They converge where the surface
    is flatter than the ellipsoid, slowly where it is hardly flatter.

    **Raises** `ModelError` for semi-axes that are not positive and finite, `ShapeError` unless there are three.
    """

    semi_axes: Float[Array, "*batch 3"] = eqx.field(converter=leaf_of("Ellipsoid: `semi_axes`"))
    """m."""

    def __check_init__(self):
        require_last_axes(self.semi_axes, (3,), "Ellipsoid: `semi_axes`", "the semi-axes along x, y and z (m)")
        check_sizes(self.semi_axes, "Ellipsoid: `semi_axes`", zero=False)

    @property
    def sizes(self) -> Array:
        return self.semi_axes

    @staticmethod
    def witness_count(size_count: int) -> int:
        return 1

    @staticmethod
    def farthest(sizes: Array, direction: Vec3) -> Vec3:
        """The point that is farthest along a unit vector, both in the ellipsoid's axes; `[n, 1, *batch]`."""
        a = Vec3(sizes[:, :1], sizes[:, 1:2], sizes[:, 2:3])
        stretched = Vec3(a.x * direction.x, a.y * direction.y, a.z * direction.z)
        unit = length_and_direction(stretched)[1]
        return Vec3(a.x * unit.x, a.y * unit.y, a.z * unit.z)
