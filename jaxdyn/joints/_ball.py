"""The ball joint: a quaternion `w x y z`, and the angular velocity in the axes of the body. Source: Sola, Deray &
Atchuthan, A micro Lie theory for state estimation in robotics, 2018, section V."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn.joints._primitive import ChartJacobians, Components, Matrix, Primitive
from jaxdyn.spatial import (
    Quaternion,
    Vec3,
    matrix_rows,
    pose_array,
    scale_of_squares,
    so3_exp,
    so3_left_jacobian,
    so3_left_jacobian_inverse,
    so3_left_jacobian_solve,
    so3_left_jacobian_solve_slope,
    unit_quaternion,
)


class Ball(Primitive):
    """A joint with all rotations about one point. A quaternion stands for its direction, whatever its length."""

    def pose(self, axis, pitch, q):
        return pose_array(0 * q[..., 1:], unit_quaternion(q))

    def integrate(self, q: Components, dv: Components) -> Components:
        return jax.tree.leaves(Quaternion(*q).multiply(Quaternion.exp(Vec3(*dv))).normalized())

    def difference(self, q0: Components, q1: Components) -> Components:
        return jax.tree.leaves(Quaternion(*q0).scaled().conjugate().multiply(Quaternion(*q1).scaled()).log())

    def integrate_jacobians(self, q: Components, dv: Components) -> tuple[Matrix, Matrix]:
        w = Vec3(*dv)
        return matrix_rows(so3_exp(w).T), matrix_rows(so3_left_jacobian(-w))

    def difference_jacobians(self, q0: Components, q1: Components) -> tuple[Matrix, Matrix]:
        w = Vec3(*self.difference(q0, q1))
        return matrix_rows(-so3_left_jacobian_inverse(w)), matrix_rows(so3_left_jacobian_inverse(-w))

    def chart_jacobians(self, q0: Components, x: Components, v: Components) -> ChartJacobians:
        w = Vec3(*x)
        turned, moved = self.integrate_jacobians(q0, x)
        # The rate is V(-w)^-1 v.
        rate_by_x = matrix_rows(-so3_left_jacobian_solve_slope(-w, Vec3(*v)))
        rate_by_v = matrix_rows(so3_left_jacobian_inverse(-w))
        return ChartJacobians(turned, moved, np.zeros((3, 3)).tolist(), rate_by_x, rate_by_v)

    def chart_rate(self, q: Components, x: Components, v: Components) -> Components:
        """The inverse of the right Jacobian of SO(3) at `x` times the angular velocity (Munthe-Kaas 1999)."""
        # The right Jacobian at x is the left one at -x.
        return jax.tree.leaves(so3_left_jacobian_solve(-Vec3(*x), Vec3(*v)))

    def coordinate_rate(self, q: Components, v: Components) -> Components:
        """`q (0, w) / 2` for the angular velocity `w`, also where `q` is not unit."""
        x, y, z = (0.5 * row for row in v)
        return jax.tree.leaves(Quaternion(*q).multiply(Quaternion(jnp.zeros_like(x), x, y, z)))

    def coordinate_cotangent(self, q: Components, g: Components) -> Components:
        # 4 q / |q|^2, by a multiple of q whose square the precision has.
        scale = scale_of_squares(Quaternion(*q).squared_norm())
        scaled = Quaternion(*q) * scale
        factor = 4 * scale / scaled.squared_norm()
        return self.coordinate_rate(jax.tree.leaves(scaled), [row * factor for row in g])

    def spring_torque(self, stiffness: Components, q0: Components, q: Components) -> Components:
        """The transposed inverse of the right Jacobian at the deflection `x`, which is the inverse of the left one,
        times `stiffness x`."""
        x = self.deflection(q0, q)
        moment = Vec3(*(k * c for k, c in zip(stiffness, x, strict=True)))
        return jax.tree.leaves(so3_left_jacobian_solve(Vec3(*x), moment))


BALL = Ball("ball", units=("1",) * 4, rotates=(True,) * 3, translates=(False,) * 3, quaternion=0)
