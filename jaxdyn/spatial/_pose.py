"""Rotations and rigid motions by components, with exponential and logarithm. Sola, Deray & Atchuthan, A micro Lie
theory for state estimation in robotics, 2018: SO(3) eqs. 132-147, SE(3) 172-174."""

from __future__ import annotations

from jaxdyn.spatial._components import pytree
from jaxdyn.spatial._motion import Motion
from jaxdyn.spatial._quaternion import Quaternion
from jaxdyn.spatial._series import cosc, cotangent_deficit, sincc
from jaxdyn.spatial._vectors import Mat3, Vec3


@pytree
class Pose:
    """Rotation and translation of a frame: `x_parent = rotation x_frame + translation`."""

    rotation: Mat3
    translation: Vec3

    @staticmethod
    def identity() -> Pose:
        """The pose of the frame itself."""
        return Pose(Mat3.identity(), Vec3.zero())

    @staticmethod
    def from_vector(array) -> Pose:
        """From `[..., 7]`: position, quaternion `w x y z`."""
        return Pose(Quaternion.from_array(array[..., 3:]).to_rotation(), Vec3.from_array(array))

    def compose(self, other: Pose) -> Pose:
        """The pose, in the parent of this frame, of a frame at `other` in this frame."""
        return Pose(self.rotation.compose(other.rotation), self.apply(other.translation))

    def inverse(self) -> Pose:
        """The pose of the parent in this frame."""
        return Pose(self.rotation.T, -self.rotation.apply_transpose(self.translation))

    def apply(self, point: Vec3) -> Vec3:
        """A point of the frame, in the axes of its parent."""
        return self.rotation.apply(point) + self.translation


def so3_exp(rotation_vector: Vec3) -> Mat3:
    """The rotation matrix of a rotation vector."""
    return Quaternion.exp(rotation_vector).to_rotation()


def so3_log(R: Mat3) -> Vec3:
    """The rotation vector, of length at most pi."""
    return Quaternion.from_rotation(R).log()


def se3_exp(twist: Motion) -> Pose:
    """The displacement of a constant body twist over unit time."""
    w = twist.angular
    return Pose(so3_exp(w), so3_left_jacobian_apply(w, twist.linear))


def se3_log(pose: Pose) -> Motion:
    """The body twist whose displacement over unit time is `pose`."""
    w = so3_log(pose.rotation)
    return Motion(w, so3_left_jacobian_solve(w, pose.translation))


def so3_left_jacobian_apply(w: Vec3, v: Vec3) -> Vec3:
    """`V(w) v` with `V = 1 + cosc [w x] + sincc [w x]^2`: the translation of a twist `(v, w)` over unit time."""
    x = w.squared_norm()
    wv = w.cross(v)
    return v + wv * cosc(x) + w.cross(wv) * sincc(x)


def so3_left_jacobian_solve(w: Vec3, v: Vec3) -> Vec3:
    """`V(w)^-1 v = v - 1/2 w x v + cotangent_deficit w x (w x v)`."""
    wv = w.cross(v)
    return v - wv * 0.5 + w.cross(wv) * cotangent_deficit(w.squared_norm())
