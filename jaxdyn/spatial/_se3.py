"""`SE3`, the rigid motion as arrays with leading batch axes, which functions of the library take and return."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import naming_arguments, require_last_axes
from jaxdyn._types import Array, ArrayLike, Float, Real
from jaxdyn.spatial import _pose_arrays as arrays
from jaxdyn.spatial._motion import Motion
from jaxdyn.spatial._pose import Pose, se3_exp, se3_log
from jaxdyn.spatial._vectors import Mat3, Vec3


class SE3(eqx.Module):
    """A rigid motion, or the pose of a frame: `x_parent = rotation x_frame + translation`. Leading axes are batch axes
    and broadcast, also in `X @ Y` and `X.apply(points)`. Lengths in m."""

    rotation: Float[Array | np.ndarray, "*#batch 3 3"]
    translation: Float[Array | np.ndarray, "*#batch 3"]

    def __check_init__(self):
        # Tree transformations put placeholders into the fields, which have no shape.
        if hasattr(self.rotation, "shape") and hasattr(self.translation, "shape"):
            require_last_axes(self.rotation, (3, 3), "rotation", "a rotation matrix")
            require_last_axes(self.translation, (3,), "translation", "a position in m")

    @staticmethod
    def identity() -> SE3:
        """No motion."""
        return SE3(jnp.eye(3), jnp.zeros(3))

    @staticmethod
    @naming_arguments
    def from_translation(translation: ArrayLike) -> SE3:
        """A shift by `[*batch, 3]` m, without rotation."""
        translation = _real(translation, 3, "translation", "a position in m")
        return SE3(jnp.broadcast_to(jnp.eye(3, dtype=translation.dtype), (*translation.shape, 3)), translation)

    @staticmethod
    @naming_arguments
    def from_rpy(rpy: ArrayLike, translation: ArrayLike = (0.0, 0.0, 0.0)) -> SE3:
        """Roll, pitch, yaw about the fixed axes x, y, z, in this order, as URDF has them (rad)."""
        r = _real(rpy, 3, "rpy", "roll, pitch, yaw in rad")
        return SE3(arrays.quaternion_to_rotation(arrays.rpy_to_quaternion(r)), jnp.asarray(translation, r.dtype))

    @staticmethod
    @naming_arguments
    def from_vector(vector: Real[Array | np.ndarray, "*batch 7"]) -> SE3:
        """From position and quaternion `w x y z`, the configuration of a free joint."""
        vector = _real(vector, 7, "vector", "position (3) and quaternion w x y z (4)")
        return SE3(arrays.quaternion_to_rotation(vector[..., 3:]), vector[..., :3])

    def to_vector(self) -> Float[Array, "*batch 7"]:
        """Position and unit quaternion `w x y z` with `w >= 0`."""
        return arrays.pose_array(self.translation, arrays.rotation_to_quaternion(jnp.asarray(self.rotation)))

    @staticmethod
    @naming_arguments
    def exp(twist: Real[Array | np.ndarray, "*batch 6"]) -> SE3:
        """The displacement of a constant body twist `[linear, angular]` over unit time."""
        twist = _real(twist, 6, "twist", "linear (3) and angular (3)")
        pose = se3_exp(Motion(linear=Vec3.from_array(twist), angular=Vec3.from_array(twist[..., 3:])))
        return SE3(pose.rotation.to_array(), pose.translation.to_array())

    def log(self) -> Float[Array, "*batch 6"]:
        """The body twist `[linear, angular]`, of angle at most pi, whose exponential this is."""
        twist = se3_log(Pose(Mat3.from_array(self.rotation), Vec3.from_array(self.translation)))
        return arrays.concatenate(twist.linear.to_array(), twist.angular.to_array())

    def inverse(self) -> SE3:
        """The motion back."""
        R = jnp.asarray(self.rotation).swapaxes(-1, -2)
        return SE3(R, -arrays.matrix_times_vector(R, self.translation))

    def __matmul__(self, other: SE3) -> SE3:
        return SE3(arrays.matrix_product(jnp.asarray(self.rotation), other.rotation), self.apply(other.translation))

    @naming_arguments
    def apply(self, points: Float[Array | np.ndarray, "*#batch 3"]) -> Float[Array, "*#batch 3"]:
        """Points of the frame, in the axes of its parent; batch axes broadcast."""
        points = jnp.asarray(points)
        require_last_axes(points, (3,), "points", "positions in m")
        return jnp.asarray(self.translation) + arrays.matrix_times_vector(self.rotation, points)

    def as_matrix(self) -> Float[Array, "*batch 4 4"]:
        """The homogeneous matrix."""
        rows = arrays.concatenate(jnp.asarray(self.rotation), self.translation[..., None])
        last = jnp.broadcast_to(jnp.array([0, 0, 0, 1], rows.dtype), (*rows.shape[:-2], 1, 4))
        return jnp.concatenate([rows, last], axis=-2)


def _real(x, n: int, what: str, meaning: str) -> Array:
    """Return an array `[*batch, n]` of real numbers; integers become the default floating-point type."""
    x = jnp.asarray(x)
    require_last_axes(x, (n,), what, meaning)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))
