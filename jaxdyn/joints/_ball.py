"""The ball joint: a quaternion `w x y z`, and the angular velocity in the axes of the body. Source: Sola, Deray &
Atchuthan, A micro Lie theory for state estimation in robotics, 2018, section V."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxdyn.joints._primitive import Components, Primitive
from jaxdyn.spatial import Quaternion, Vec3, pose_array, so3_left_jacobian_solve


class Ball(Primitive):
    """A joint with all rotations about one point. A quaternion stands for its direction, whatever its length."""

    def pose(self, axis, pitch, q):
        return pose_array(0 * q[..., 1:], q / (q * q).sum(axis=-1, keepdims=True) ** 0.5)

    def integrate(self, q: Components, dv: Components) -> Components:
        return jax.tree.leaves(Quaternion(*q).multiply(Quaternion.exp(Vec3(*dv))).normalized())

    def difference(self, q0: Components, q1: Components) -> Components:
        return jax.tree.leaves(Quaternion(*q0).conjugate().multiply(Quaternion(*q1)).log())

    def chart_rate(self, q: Components, x: Components, v: Components) -> Components:
        """The inverse of the right Jacobian of SO(3) at `x` times the angular velocity (Munthe-Kaas 1999)."""
        # The right Jacobian at x is the left one at -x.
        return jax.tree.leaves(so3_left_jacobian_solve(-Vec3(*x), Vec3(*v)))

    def coordinate_rate(self, q: Components, v: Components) -> Components:
        """`q (0, w) / 2` for the angular velocity `w`, also where `q` is not unit."""
        x, y, z = (0.5 * row for row in v)
        return jax.tree.leaves(Quaternion(*q).multiply(Quaternion(jnp.zeros_like(x), x, y, z)))

    def coordinate_cotangent(self, q: Components, g: Components) -> Components:
        norm = Quaternion(*q).squared_norm()
        return self.coordinate_rate(q, [row * (4 / norm) for row in g])

    def spring_torque(self, stiffness: Components, q0: Components, q: Components) -> Components:
        """The transposed inverse of the right Jacobian at the deflection `x`, which is the inverse of the left one,
        times `stiffness x`."""
        x = self.deflection(q0, q)
        moment = Vec3(*(k * c for k, c in zip(stiffness, x, strict=True)))
        return jax.tree.leaves(so3_left_jacobian_solve(Vec3(*x), moment))


BALL = Ball("ball", units=("1",) * 4, rotates=(True,) * 3, translates=(False,) * 3, quaternion=0)
