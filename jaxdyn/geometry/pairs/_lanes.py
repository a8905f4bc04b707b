"""Meshes of all pairs at all elements of a batch, one after the other: arrays `[lanes, ...]`, in which what differs
between lanes is found by numbers of vertices and faces."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import native
from jaxdyn._array_programs import of_wanted
from jaxdyn.geometry.pairs._candidates import Placed
from jaxdyn.geometry.pairs._expanding_polytope import Solid
from jaxdyn.geometry.pairs._hull_tables import HullTables, hulls_of, normals_of
from jaxdyn.spatial import Vec3


def common_shape(*arrays: Any) -> tuple[int, ...]:
    """Return the number of pairs and the batch axes of numbers and components `[n, 1, *batch]`."""
    n, _, *batch = jnp.broadcast_shapes(*(jnp.shape(x) for x in jax.tree.leaves(arrays) if jnp.ndim(x)))
    return n, *batch


def flat_number(x: Any, shape: tuple[int, ...]) -> Any:
    """Return numbers `[n, 1, *batch]` as `[lanes]`."""
    return jnp.broadcast_to(x, (shape[0], 1, *shape[1:])).reshape(-1)


def flat_vector(v: Vec3, shape: tuple[int, ...]) -> Any:
    """Return vectors `[n, 1, *batch]` as `[lanes, 3]`."""
    return jnp.stack([flat_number(x, shape) for x in (v.x, v.y, v.z)], axis=-1)


def vec3(a: Any) -> Vec3:
    """Return vectors `[lanes, 3]` by their components."""
    return Vec3(*(a[:, k] for k in range(3)))


def as_rows(x: Any, shape: tuple[int, ...]) -> Any:
    """Return numbers `[lanes]` as `[n, 1, *batch]`, and vectors `[lanes, 3]` by their components."""
    if x.ndim > 1:
        return Vec3(*(as_rows(x[:, k], shape) for k in range(3)))
    return x.reshape(shape[0], 1, *shape[1:])


class Side(NamedTuple):
    """The shapes on one side of all pairs."""

    rotation: Any
    """`[lanes, 3, 3]`: of each pair at each element of the batch."""
    position: Any
    """`[lanes, 3]`, from the first shape."""
    vertices: Any
    """`[rows, n, 3]`"""
    row: Any
    """`[lanes]`: the row of the vertices."""
    hull: Any
    """`[lanes]`: the row of the tables."""
    tables: HullTables | None
    """None for shapes without faces."""
    columns: Any
    """`[rows, 3, n]`: the vertices, coordinate by coordinate, without derivatives."""

    @classmethod
    def of(cls, shape: Placed, lanes: tuple[int, ...], position: Any, vertices: Any = None, tables: Any = None) -> Side:
        """Return shapes with vertices `[n, k, 3, *batch]`, all of one hull, or meshes, at positions `[lanes, 3]`."""
        native.leave_to_xla("meshes are looked up by numbers that depend on data")
        n, *batch = lanes
        size = math.prod(batch)
        rows, hull, columns = np.arange(n), np.zeros(n, int), None
        if vertices is None:
            hulls = hulls_of(shape)
            rows, hull, columns = hulls.rows, hulls.members, hulls.columns
            vertices, tables = shape.sizes.reshape(shape.sizes.shape[0], -1, 3, *shape.sizes.shape[2:]), hulls.tables
        R = shape.pose.rotation
        rotation = jnp.stack([flat_vector(v, lanes) for v in (R.x, R.y, R.z)], axis=-1)
        table, row = _rows(vertices, rows, batch)
        if columns is None:
            columns = jnp.swapaxes(jax.lax.stop_gradient(table), 1, 2)
        return cls(rotation, position, table, row, _repeated(hull, size), tables, columns)

    def constant(self) -> Side:
        """The same without derivatives."""
        rotation, position, vertices, columns = jax.lax.stop_gradient(
            (self.rotation, self.position, self.vertices, self.columns)
        )
        return Side(rotation, position, vertices, self.row, self.hull, self.tables, columns)

    def solid(self, lane) -> Solid:
        """The shape of one pair."""
        # Not by indices, with which native programs would copy all vertices.
        row = jnp.asarray(self.row)[lane]
        vertices, columns = (
            jax.lax.dynamic_index_in_dim(x, row, keepdims=False) for x in (self.vertices, self.columns)
        )
        count = jnp.asarray(len(vertices), jnp.int32)
        if self.tables is not None:
            count = jnp.asarray(self.tables.sizes)[jnp.asarray(self.hull)[lane]]
        return Solid(self.rotation[lane], self.position[lane], vertices, count, columns)

    def box(self) -> tuple[Any, Any]:
        """The middles `[lanes, 3]`, from the first shape, and half sizes of boxes around shapes along their axes."""
        # Vertices that fill up a row are copies of its first one.
        low, high = jnp.min(self.columns, axis=2), jnp.max(self.columns, axis=2)
        middle, half = (0.5 * (high + way * low)[self.row] for way in (1, -1))
        return jnp.einsum("lij,lj->li", self.rotation, middle) + self.position, half

    def place(self, numbers) -> Any:
        """The places `[lanes, *k, 3]` of vertices `[lanes, *k]`."""
        shape = numbers.shape
        numbers = numbers.reshape(len(numbers), -1)
        found = jnp.einsum("lij,lkj->lki", self.rotation, self.vertices[self.row[:, None], numbers])
        return (found + self.position[:, None]).reshape(*shape, 3)

    def normal(self, faces) -> Any:
        """The normals `[lanes, 3]` of faces `[lanes]`."""
        tables = self.tables
        assert tables is not None
        corners = self.vertices[self.row[:, None], tables.last_corners(self.hull, faces)]
        local = normals_of(corners, tables.normal_offset(self.hull, faces))
        return jnp.einsum("lij,lj->li", self.rotation, local)


def _rows(vertices, rows: np.ndarray, batch: list[int]) -> tuple[Any, np.ndarray]:
    """Vertices `[m, k, 3, *batch]` as `[rows, k, 3]`, and the row of each lane, of which the batch comes last."""
    size = math.prod(batch)
    if vertices.size == vertices.shape[0] * vertices.shape[1] * 3:
        return vertices.reshape(*vertices.shape[:3]), _repeated(rows, size)
    vertices = jnp.broadcast_to(vertices, (*vertices.shape[:3], *batch)).reshape(*vertices.shape[:3], size)
    row = rows[:, None] * size + np.arange(size)
    return jnp.moveaxis(vertices, 3, 1).reshape(-1, *vertices.shape[1:3]), row.reshape(-1)


def of_near(function: Callable, near: Callable[[], Any], which: Any, alone: bool) -> Any:
    """Return the results of a function of the numbers of lanes, where shapes are near each other: `which`, or, if that
    is None, as `near` says. With `alone` there is one lane, in a loop over pairs that are near each other."""
    if alone:
        return jax.tree.map(lambda x: jnp.asarray(x)[None], function(jnp.zeros((), jnp.int32)))
    return of_wanted(function, near() if which is None else which)


def _repeated(x, size: int) -> Any:
    """Numbers of pairs as those of lanes."""
    return x if size == 1 else np.repeat(x, size)
