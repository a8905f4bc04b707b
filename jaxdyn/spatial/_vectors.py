"""3-vectors, 3x3 matrices and symmetric 3x3 matrices as separate component arrays.

Every component is an array of one common shape, or broadcasts to it. All operations are elementwise, so that the
compiler fuses long expressions into one loop over the batch; there is no contraction and no stacking inside.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxdyn.spatial._components import LinearComponents, Row, pytree


@pytree
class Vec3(Row):
    """A 3-vector `(x, y, z)`."""

    x: Any
    y: Any
    z: Any

    def dot(self, other: Vec3):
        """The scalar product."""
        return self.x * other.x + self.y * other.y + self.z * other.z

    def cross(self, other: Vec3) -> Vec3:
        """The vector product."""
        return Vec3(
            self.y * other.z - self.z * other.y,
            self.z * other.x - self.x * other.z,
            self.x * other.y - self.y * other.x,
        )

    def squared_norm(self):
        """The square of its length."""
        return self.dot(self)


@pytree
class Mat3(LinearComponents):
    """A 3x3 matrix by its columns."""

    x: Vec3
    y: Vec3
    z: Vec3

    @staticmethod
    def identity() -> Mat3:
        """The identity matrix."""
        return Mat3(Vec3(1.0, 0.0, 0.0), Vec3(0.0, 1.0, 0.0), Vec3(0.0, 0.0, 1.0))

    @staticmethod
    def zero() -> Mat3:
        """The matrix of zeros."""
        return Mat3(Vec3.zero(), Vec3.zero(), Vec3.zero())

    @staticmethod
    def skew(v: Vec3) -> Mat3:
        """The matrix `[v x]` with `[v x] u = v x u`."""
        return Mat3(Vec3(0.0, v.z, -v.y), Vec3(-v.z, 0.0, v.x), Vec3(v.y, -v.x, 0.0))

    @staticmethod
    def from_array(array) -> Mat3:
        """From `[..., 3, 3]`."""
        return Mat3(*(Vec3.from_array(array[..., j]) for j in range(3)))

    def to_array(self, axis: int = -1):
        """To `[..., 3, 3]`; `axis` is the place of the columns, the rows stand before it."""
        columns = jnp.broadcast_arrays(*jax.tree.leaves(self))
        rows = [jnp.stack([columns[3 * j + i] for j in range(3)], axis=axis) for i in range(3)]
        return jnp.stack(rows, axis=axis - 1 if axis < 0 else axis)

    @property
    def T(self) -> Mat3:
        """Its transpose."""
        x, y, z = self.x, self.y, self.z
        return Mat3(Vec3(x.x, y.x, z.x), Vec3(x.y, y.y, z.y), Vec3(x.z, y.z, z.z))

    def apply(self, v: Vec3) -> Vec3:
        """`self v`."""
        return self.x * v.x + self.y * v.y + self.z * v.z

    def apply_transpose(self, v: Vec3) -> Vec3:
        """`self^T v`."""
        return Vec3(self.x.dot(v), self.y.dot(v), self.z.dot(v))

    def compose(self, other: Mat3) -> Mat3:
        """`self other`."""
        return Mat3(self.apply(other.x), self.apply(other.y), self.apply(other.z))


@pytree
class Sym3(Row):
    """A symmetric 3x3 matrix by its upper triangle."""

    xx: Any
    xy: Any
    yy: Any
    xz: Any
    yz: Any
    zz: Any

    @staticmethod
    def isotropic(value) -> Sym3:
        """`value` times the identity."""
        return Sym3(value, 0.0, value, 0.0, 0.0, value)

    @staticmethod
    def outer(v: Vec3, w: Vec3) -> Sym3:
        """The upper triangle of `v w^T`, which must be symmetric (as in `v v^T`)."""
        return Sym3(v.x * w.x, v.x * w.y, v.y * w.y, v.x * w.z, v.y * w.z, v.z * w.z)

    @staticmethod
    def outer_pair(v: Vec3, w: Vec3) -> Sym3:
        """`v w^T + w v^T`."""
        return Sym3.outer(v, w) + Sym3.outer(w, v)

    def apply(self, v: Vec3) -> Vec3:
        """`self v`."""
        return self.to_mat3().apply(v)

    def to_mat3(self) -> Mat3:
        """The same matrix with all nine elements."""
        return Mat3(Vec3(self.xx, self.xy, self.xz), Vec3(self.xy, self.yy, self.yz), Vec3(self.xz, self.yz, self.zz))

    def rotated(self, R: Mat3) -> Sym3:
        """`R self R^T`."""
        # Columns of the transposes are rows; (R self R^T)_ij is the product of row i of R self and row j of R.
        B, Q = R.compose(self.to_mat3()).T, R.T
        return Sym3(B.x.dot(Q.x), B.x.dot(Q.y), B.y.dot(Q.y), B.x.dot(Q.z), B.y.dot(Q.z), B.z.dot(Q.z))
