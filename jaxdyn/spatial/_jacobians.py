"""Jacobians of the exponentials and logarithms of rotations and rigid motions, in closed form. Sola, Deray & Atchuthan,
A micro Lie theory for state estimation in robotics, 2018: SO(3) eqs. 143-146, SE(3) eqs. 179-180."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxdyn.spatial._components import LinearComponents, pytree
from jaxdyn.spatial._motion import Motion
from jaxdyn.spatial._pose import so3_exp, so3_left_jacobian_apply
from jaxdyn.spatial._series import cosc, cosc_slope, cotangent_deficit, cotangent_deficit_slope, sincc, sincc_slope
from jaxdyn.spatial._vectors import Mat3, Vec3


@pytree
class TwistMatrix(LinearComponents):
    """A matrix `[[A, B], [0, A]]` that maps one twist `[linear, angular]` to another."""

    diagonal: Mat3
    """`A`"""
    coupling: Mat3
    """`B`"""

    def rows(self) -> list[list]:
        """Its six rows of six elements."""
        A, B = matrix_rows(self.diagonal), matrix_rows(self.coupling)
        return [a + b for a, b in zip(A, B, strict=True)] + [[0.0] * 3 + a for a in A]

    def to_array(self):
        """To `[..., 6, 6]`."""
        A, B = self.diagonal.to_array(), self.coupling.to_array()
        return jnp.block([[A, B], [jnp.zeros_like(A), A]])


def matrix_rows(matrix: Mat3) -> list[list]:
    """The three rows of three elements of a matrix."""
    return [jax.tree.leaves(row) for row in (matrix.T.x, matrix.T.y, matrix.T.z)]


def so3_left_jacobian(w: Vec3) -> Mat3:
    """`V(w) = 1 + cosc [w x] + sincc [w x]^2`: a change `dw` turns the rotation `exp(w)` by `V(w) dw`, in the axes
    before it. The right Jacobian, for axes behind it, is `V(-w)`."""
    return _polynomial(w, cosc(w.squared_norm()), sincc(w.squared_norm()))


def so3_left_jacobian_inverse(w: Vec3) -> Mat3:
    """`V(w)^-1`, for rotations by less than a whole turn."""
    return _polynomial(w, -0.5, cotangent_deficit(w.squared_norm()))


def so3_left_jacobian_apply_slope(w: Vec3, v: Vec3) -> Mat3:
    """The derivative of `V(w) v` by `w`."""
    x = w.squared_norm()
    return _product_slope(w, v, cosc(x), sincc(x), cosc_slope(x), sincc_slope(x))


def so3_left_jacobian_solve_slope(w: Vec3, v: Vec3) -> Mat3:
    """The derivative of `V(w)^-1 v` by `w`, for rotations by less than a whole turn."""
    x = w.squared_norm()
    return _product_slope(w, v, -0.5, cotangent_deficit(x), 0.0, cotangent_deficit_slope(x))


def se3_exp_jacobian(twist: Motion) -> TwistMatrix:
    """The right Jacobian of SE(3): a change `d` of the twist displaces `exp(twist)` by the body twist `J d`."""
    w = twist.angular
    slope = so3_left_jacobian_apply_slope(w, twist.linear)
    return TwistMatrix(so3_left_jacobian(-w), so3_exp(w).T.compose(slope))


def se3_log_jacobian(w: Vec3, translation: Vec3) -> TwistMatrix:
    """The inverse of the right Jacobian of SE(3), at the motion with the rotation vector `w` and a translation: a small
    body twist `d` behind the motion changes its logarithm by `J d`.

    Right at rotations of up to half a turn, also at half a turn, where the logarithm itself jumps to its negative."""
    # V(w)^-1 R = V(-w)^-1, for both the translation and the rotation.
    inverse = so3_left_jacobian_inverse(-w)
    return TwistMatrix(inverse, so3_left_jacobian_solve_slope(w, translation).compose(inverse))


def se3_log_jacobian_before(w: Vec3, translation: Vec3) -> TwistMatrix:
    """The negative inverse of the left Jacobian of SE(3), at the same motion: a small twist `d` of the frame before the
    motion, which the frame behind it does not follow, changes the motion's logarithm by `J d`."""
    inverse = so3_left_jacobian_inverse(w)
    # The translation changes by -d_linear + translation x d_angular, and w by -V(w)^-1 d_angular.
    slope = so3_left_jacobian_solve_slope(w, translation)
    return TwistMatrix(-inverse, inverse.compose(Mat3.skew(translation)) - slope.compose(inverse))


def se3_inverse_adjoint(twist: Motion) -> TwistMatrix:
    """The adjoint of `exp(-twist)`: how the displacement before `exp(twist)` displaces the motion behind it."""
    w = twist.angular
    turned = so3_exp(w).T
    return TwistMatrix(turned, -turned.compose(Mat3.skew(so3_left_jacobian_apply(w, twist.linear))))


def _polynomial(w: Vec3, a, b) -> Mat3:
    """`1 + a [w x] + b [w x]^2`."""
    return _combined(1 - b * w.squared_norm(), w * b, w, w * -a)


def _product_slope(w: Vec3, v: Vec3, a, b, a_slope, b_slope) -> Mat3:
    """The derivative of `v + a w x v + b w x (w x v)` by `w`; `a` and `b` are functions of `w . w` with these
    slopes."""
    u = w.cross(v)
    along = (u * a_slope + w.cross(u) * b_slope) * 2 - v * b
    return _combined(b * w.dot(v), along, w, v * a + u * b)


def _combined(d, s: Vec3, w: Vec3, m: Vec3) -> Mat3:
    """`d 1 + s w^T - [m x]`."""
    x, y, z = s * w.x, s * w.y, s * w.z
    return Mat3(
        Vec3(x.x + d, x.y - m.z, x.z + m.y),
        Vec3(y.x + m.z, y.y + d, y.z - m.x),
        Vec3(z.x - m.y, z.y + m.x, z.z + d),
    )
