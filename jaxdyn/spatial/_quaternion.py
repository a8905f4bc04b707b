"""Unit quaternions `w x y z` by components (Sola, Deray & Atchuthan, A micro Lie theory, 2018, example 7)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from jaxdyn.spatial._components import Row, pytree
from jaxdyn.spatial._series import cosc, sinc
from jaxdyn.spatial._vectors import Mat3, Vec3


@pytree
class Quaternion(Row):
    """A quaternion. The rotation that it stands for depends on its direction only; its length must not be zero."""

    w: Any
    x: Any
    y: Any
    z: Any

    @property
    def vector(self) -> Vec3:
        """Its vector part `(x, y, z)`."""
        return Vec3(self.x, self.y, self.z)

    def conjugate(self) -> Quaternion:
        """The quaternion of the inverse rotation."""
        return Quaternion(self.w, -self.x, -self.y, -self.z)

    def multiply(self, other: Quaternion) -> Quaternion:
        """The product, which is the rotation by `other` followed by this one."""
        a, b = self.vector, other.vector
        v = other.vector * self.w + self.vector * other.w + a.cross(b)
        return Quaternion(self.w * other.w - a.dot(b), v.x, v.y, v.z)

    def squared_norm(self):
        """The sum of the squares of its components."""
        return self.w * self.w + self.vector.squared_norm()

    def scaled(self) -> Quaternion:
        """The quaternion, or a multiple of it whose square neither overflows nor underflows. See `scale_of_squares`."""
        return self * scale_of_squares(self.squared_norm())

    def normalized(self) -> Quaternion:
        """The unit quaternion of the same direction."""
        scaled = self.scaled()
        return scaled * (1 / jnp.sqrt(scaled.squared_norm()))

    def to_rotation(self) -> Mat3:
        """The rotation matrix of the quaternion's direction: no square root, smooth everywhere but at zero."""
        scaled = self.scaled()
        w, x, y, z = scaled.w, scaled.x, scaled.y, scaled.z
        s = 2 / scaled.squared_norm()
        xs, ys, zs = x * s, y * s, z * s
        wx, wy, wz = w * xs, w * ys, w * zs
        xx, xy, xz = x * xs, x * ys, x * zs
        yy, yz, zz = y * ys, y * zs, z * zs
        return Mat3(
            Vec3(1 - (yy + zz), xy + wz, xz - wy),
            Vec3(xy - wz, 1 - (xx + zz), yz + wx),
            Vec3(xz + wy, yz - wx, 1 - (xx + yy)),
        )

    @staticmethod
    def exp(rotation_vector: Vec3) -> Quaternion:
        """The rotation by `|rotation_vector|` about its direction."""
        quarter = rotation_vector.squared_norm() / 4
        v = rotation_vector * (0.5 * sinc(quarter))
        # cos(t/2) = 1 - (t/2)^2 cosc: finite derivatives at zero.
        return Quaternion(1 - quarter * cosc(quarter), v.x, v.y, v.z)

    def log(self) -> Vec3:
        """The rotation vector, of length at most pi, of the quaternion's direction (the inverse of `exp`). The squares
        of its components must be numbers that the precision has, as those of products of `scaled` quaternions are."""
        # q and -q are the same rotation; the one with w >= 0 has the shorter rotation vector.
        sign = _sign(self.w)
        w, v = self.w * sign, self.vector * sign
        n2 = v.squared_norm()
        # Near the identity 2 atan(n/w)/n by its series in (n/w)^2, where n itself has no derivative.
        small = n2 < 1e-4 * w * w
        ratio2 = jnp.where(small, n2 / jnp.where(small, w * w, 1), 0)
        series = 1 + ratio2 * (-1 / 3 + ratio2 * (1 / 5 + ratio2 * (-1 / 7 + ratio2 * (1 / 9 - ratio2 / 11))))
        near = 2 * series / jnp.where(small, w, 1)
        n = jnp.sqrt(jnp.where(small, 1, n2))
        far = 2 * jnp.arctan2(n, jnp.where(small, 1, w)) / n
        return v * jnp.where(small, near, far)

    @staticmethod
    def from_rotation(R: Mat3) -> Quaternion:
        """The unit quaternion, `w >= 0` where it is not zero, of a rotation matrix. It is computed in the one of four
        forms that has the largest denominator (Shepperd 1978), so every derivative is finite, at half turns too."""
        xx, yy, zz = R.x.x, R.y.y, R.z.z
        squares = (1 + xx + yy + zz, 1 + xx - yy - zz, 1 - xx + yy - zz, 1 - xx - yy + zz)
        wx, wy, wz = R.y.z - R.z.y, R.z.x - R.x.z, R.x.y - R.y.x
        xy, xz, yz = R.x.y + R.y.x, R.x.z + R.z.x, R.y.z + R.z.y
        forms = (
            (squares[0], wx, wy, wz),
            (wx, squares[1], xy, xz),
            (wy, xy, squares[2], yz),
            (wz, xz, yz, squares[3]),
        )
        w, x, y, z = forms[0]
        largest = squares[0]
        for square, form in zip(squares[1:], forms[1:], strict=True):
            w, x, y, z = (jnp.where(square > largest, b, a) for a, b in zip((w, x, y, z), form, strict=True))
            largest = jnp.maximum(square, largest)
        return (Quaternion(w, x, y, z) * _sign(w)).normalized()


def scale_of_squares(squared_norm):
    """The power of two, mostly 1, by which to multiply a quaternion with this squared norm, so that the precision has
    the square of the multiple. It has no derivative: what depends on the direction only does not depend on it.
    """
    dtype = jnp.asarray(squared_norm).dtype
    exponent = int(jnp.finfo(dtype).maxexp)
    extreme, shift = 3 * exponent // 4, 5 * exponent // 8
    up, one, down = (jnp.asarray(2.0**k, dtype) for k in (shift, 0, -shift))
    small = jnp.where(squared_norm < 2.0**-extreme, up, one)
    return jnp.where(squared_norm > 2.0**extreme, down, small)


def _sign(w):
    return jnp.where(w < 0, -1.0, 1.0).astype(jnp.result_type(w))
