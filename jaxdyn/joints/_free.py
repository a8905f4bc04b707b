"""The free joint: position and quaternion `w x y z`, and the linear and angular velocity in the axes of the body."""

from __future__ import annotations

import jax

from jaxdyn.joints._ball import BALL
from jaxdyn.joints._primitive import ChartJacobians, Components, Matrix, Primitive
from jaxdyn.spatial import (
    Mat3,
    Motion,
    Quaternion,
    Vec3,
    matrix_rows,
    pose_array,
    se3_exp_jacobian,
    se3_inverse_adjoint,
    se3_log_jacobian,
    se3_log_jacobian_before,
    so3_left_jacobian_apply,
    so3_left_jacobian_solve,
)


def _rotation(q: Components) -> Mat3:
    return Quaternion(*q[3:]).to_rotation()


def _in_parent(q: Components, v: Components) -> Components:
    """The linear part of a velocity or force in the axes of the parent."""
    return jax.tree.leaves(_rotation(q).apply(Vec3(*v[:3])))


_ZERO = [[0.0] * 3] * 3


def _blocks(linear: Matrix, angular: Matrix, corner: Matrix = _ZERO) -> Matrix:
    """The matrix `[[linear, corner], [0, angular]]`."""
    above = [[*a, *b] for a, b in zip(linear, corner, strict=True)]
    return above + [[*a, *b] for a, b in zip(_ZERO, angular, strict=True)]


class Free(Primitive):
    """A body that moves freely. The components of `q` are position and quaternion, those of `v` linear and angular."""

    def pose(self, axis, pitch, q):
        return pose_array(q[..., :3], BALL.pose(axis, pitch, q[..., 3:])[..., 3:])

    def integrate(self, q: Components, dv: Components) -> Components:
        shift = so3_left_jacobian_apply(Vec3(*dv[3:]), Vec3(*dv[:3]))
        position = super().integrate(q[:3], jax.tree.leaves(_rotation(q).apply(shift)))
        return [*position, *BALL.integrate(q[3:], dv[3:])]

    def difference(self, q0: Components, q1: Components) -> Components:
        turn, shift = self._turn_and_shift(q0, q1)
        return jax.tree.leaves((so3_left_jacobian_solve(turn, shift), turn))

    def _turn_and_shift(self, q0: Components, q1: Components) -> tuple[Vec3, Vec3]:
        """The rotation vector and the translation from `q0` to `q1` in the axes of the body at `q0`."""
        turn = BALL.difference(q0[3:], q1[3:])
        return Vec3(*turn), _rotation(q0).apply_transpose(Vec3(*super().difference(q0[:3], q1[:3])))

    def integrate_jacobians(self, q: Components, dv: Components) -> tuple[Matrix, Matrix]:
        twist = Motion(Vec3(*dv[3:]), Vec3(*dv[:3]))
        return se3_inverse_adjoint(twist).rows(), se3_exp_jacobian(twist).rows()

    def difference_jacobians(self, q0: Components, q1: Components) -> tuple[Matrix, Matrix]:
        motion = self._turn_and_shift(q0, q1)
        return se3_log_jacobian_before(*motion).rows(), se3_log_jacobian(*motion).rows()

    def chart_jacobians(self, q0: Components, x: Components, v: Components) -> ChartJacobians:
        of_turn = BALL.chart_jacobians(q0[3:], x[3:], v[3:])
        rotation = _rotation(self.chart_point(q0, x))
        # The rate of the position is R v: R turns with the body.
        turning = -rotation.compose(Mat3.skew(Vec3(*v[:3])))
        return ChartJacobians(
            _blocks(of_turn.q_by_q0, of_turn.q_by_q0),
            _blocks(matrix_rows(rotation.T), of_turn.q_by_x),
            _blocks(_ZERO, of_turn.rate_by_q, matrix_rows(turning)),
            _blocks(_ZERO, of_turn.rate_by_x),
            _blocks(matrix_rows(rotation), of_turn.rate_by_v),
        )

    def chart_point(self, q0: Components, x: Components) -> Components:
        return [*super().integrate(q0[:3], x[:3]), *BALL.chart_point(q0[3:], x[3:])]

    def chart_rate(self, q: Components, x: Components, v: Components) -> Components:
        return [*_in_parent(q, v), *BALL.chart_rate(q[3:], x[3:], v[3:])]

    def coordinate_rate(self, q: Components, v: Components) -> Components:
        return [*_in_parent(q, v), *BALL.coordinate_rate(q[3:], v[3:])]

    def coordinate_cotangent(self, q: Components, g: Components) -> Components:
        return [*_in_parent(q, g), *BALL.coordinate_cotangent(q[3:], g[3:])]

    def deflection(self, q0: Components, q: Components) -> Components:
        """The shift in the axes of the parent, and the rotation vector in the axes of the body at `q0`."""
        return [*super().difference(q0[:3], q[:3]), *BALL.deflection(q0[3:], q[3:])]

    def spring_torque(self, stiffness: Components, q0: Components, q: Components) -> Components:
        force = Vec3(*(k * x for k, x in zip(stiffness[:3], self.deflection(q0, q)[:3], strict=True)))
        turning = BALL.spring_torque(stiffness[3:], q0[3:], q[3:])
        return [*jax.tree.leaves(_rotation(q).apply_transpose(force)), *turning]


FREE = Free(
    "free",
    units=("m",) * 3 + ("1",) * 4,
    rotates=(False,) * 3 + (True,) * 3,
    translates=(True,) * 3 + (False,) * 3,
    position=0,
    quaternion=3,
)
