"""Poses, quaternions and inertial parameters as arrays with trailing axes, in NumPy or JAX.

A pose is `[..., 7]`: position (m) and quaternion `w x y z`. A quaternion stands for its direction, whatever its length.
Leading axes are batch axes and broadcast. Each function computes in JAX if one of its arguments is a JAX array, and
otherwise in NumPy in double precision, so that models are built without compiling anything.

Each function is a few operations on whole arrays, which compile fast; the component classes of this package
(`Pose`, `Inertia`) are many small operations, which run fast inside a compiled recursion.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ShapeError, naming_arguments
from jaxdyn._types import ArrayLike
from jaxdyn.spatial._quaternion import Quaternion, scale_of_squares
from jaxdyn.spatial._vectors import Mat3

IDENTITY_POSE = np.array([0.0, 0, 0, 1, 0, 0, 0])
"""The pose of a frame in itself."""
IDENTITY_POSE.flags.writeable = False

# The product of quaternions is `(a b)_i = sum_jk _PRODUCT[i, j, k] a_j b_k`.
_UNITS = np.eye(4)
_PRODUCT = np.stack(jax.tree.leaves(Quaternion.from_array(_UNITS[:, None]).multiply(Quaternion.from_array(_UNITS))))
SKEW = _PRODUCT[1:, 1:, 1:].swapaxes(1, 2)
"""The matrices of cross products are `[v x]_ij = sum_k SKEW[i, j, k] v_k`."""
ROTATION = np.einsum("ial,akj,l->ijkl", _PRODUCT[1:], _PRODUCT[:, :, 1:], [1, -1, -1, -1])
"""The rotation matrix of a unit quaternion, for which `R v = q v q*`, has the elements
`R_ij = sum_kl ROTATION[i, j, k, l] q_k q_l`."""
SKEW.flags.writeable = ROTATION.flags.writeable = False

# Where the elements xx, xy, yy, xz, yz, zz of a symmetric matrix stand in it, and their numbers by row and column.
_ROWS, _COLUMNS = (0, 0, 1, 0, 1, 2), (0, 1, 1, 2, 2, 2)
_ELEMENTS = np.array([[0, 1, 3], [1, 2, 4], [3, 4, 5]])


@naming_arguments
def pose_array(position: ArrayLike, quaternion: ArrayLike) -> Any:
    """The pose `[..., 7]` of a position `[..., 3]` and a quaternion `[..., 4]`, which is not normalized."""
    return concatenate(*_in_one_library(position, quaternion))


@naming_arguments
def compose_poses(outer: ArrayLike, inner: ArrayLike) -> Any:
    """The poses `outer inner`, `[..., 7]`: of a frame at `inner` in a frame that itself is at `outer`."""
    X, Y = _in_one_library(outer, inner)
    return concatenate(transform_points(X, Y[..., :3]), multiply_quaternions(X[..., 3:], Y[..., 3:]))


@naming_arguments
def invert_pose(pose: ArrayLike) -> Any:
    """The poses `[..., 7]` of the parent frames in the frames at `pose`."""
    (X,) = _in_one_library(pose)
    position = -matrix_times_vector(quaternion_to_rotation(X[..., 3:]).swapaxes(-1, -2), X[..., :3])
    return concatenate(position, X[..., 3:4], -X[..., 4:])


@naming_arguments
def transform_points(pose: ArrayLike, points: ArrayLike) -> Any:
    """Points `[..., 3]` of the frames at `pose` `[..., 7]`, in the axes of the parent frames (m)."""
    X, x = _in_one_library(pose, points)
    return X[..., :3] + matrix_times_vector(quaternion_to_rotation(X[..., 3:]), x)


@naming_arguments
def multiply_quaternions(a: ArrayLike, b: ArrayLike) -> Any:
    """The quaternions `a b`, `[..., 4]`: the rotation by `b`, followed by that by `a`."""
    p, q = _in_one_library(a, b)
    return _contract(_PRODUCT, p[..., None, :, None] * q[..., None, None, :], 2)


@naming_arguments
def quaternion_to_rotation(quaternion: ArrayLike) -> Any:
    """The rotation matrices `[..., 3, 3]` of quaternions `[..., 4]`, which need not have unit length."""
    q = _scaled(quaternion)
    squares = q[..., :, None] * q[..., None, :] / (q * q).sum(axis=-1)[..., None, None]
    return _contract(ROTATION, squares[..., None, None, :, :], 2)


@naming_arguments
def unit_quaternion(quaternion: ArrayLike) -> Any:
    """The unit quaternions `[..., 4]` of the directions of quaternions `[..., 4]`; NaN for zero, which has none."""
    q = _scaled(quaternion)
    return q / _library(q).sqrt((q * q).sum(axis=-1, keepdims=True))


def _scaled(quaternion: ArrayLike) -> Any:
    """The quaternions, or multiples of them whose squares the precision has; see `scale_of_squares`."""
    (q,) = _in_one_library(quaternion)
    if isinstance(q, jax.Array):
        return q * scale_of_squares((q * q).sum(axis=-1, keepdims=True))
    with np.errstate(over="ignore", under="ignore"):
        squares = (q * q).sum(axis=-1, keepdims=True)
    return q * np.where(squares > 2.0**768, 2.0**-640, np.where(squares < 2.0**-768, 2.0**640, 1.0))


@naming_arguments
def rotation_to_quaternion(rotation: ArrayLike) -> Any:
    """The unit quaternions `[..., 4]`, `w >= 0`, of rotation matrices `[..., 3, 3]`.

    NumPy matrices need to be rotations up to 1e-4 only: their quaternion is that of the nearest rotation, the dominant
    eigenvector of a symmetric 4x4 matrix (Bar-Itzhack 2000). JAX arrays must be rotations and are not checked.

    **Raises** `ShapeError` for NumPy arrays that are not rotation matrices.
    """
    (R,) = _in_one_library(rotation)
    if isinstance(R, jax.Array):
        return Quaternion.from_rotation(Mat3.from_array(R)).to_array()
    is_rotation = R.shape[-2:] == (3, 3) and np.allclose(R @ R.swapaxes(-1, -2), np.eye(3), atol=1e-4)
    if not is_rotation or (np.linalg.det(R) < 0).any():
        raise ShapeError(f"not a rotation matrix: {rotation!r}; its rows are to be orthonormal and right-handed")
    K = np.empty((*R.shape[:-2], 4, 4))
    trace = np.trace(R, axis1=-2, axis2=-1)
    K[..., 0, 0] = trace
    K[..., 0, 1:] = K[..., 1:, 0] = np.einsum("ijk,...ij->...k", SKEW, R)
    K[..., 1:, 1:] = R + R.swapaxes(-1, -2) - trace[..., None, None] * np.eye(3)
    q = np.linalg.eigh(K)[1][..., -1]
    return np.where(q[..., :1] < 0, -q, q)


@naming_arguments
def rpy_to_quaternion(rpy: ArrayLike) -> Any:
    """The unit quaternions `[..., 4]` of roll, pitch and yaw `[..., 3]` (rad). These turn about the fixed axes x, y and
    z, in this order, as in URDF: `R = Rz(yaw) Ry(pitch) Rx(roll)`."""
    (angles,) = _in_one_library(rpy)
    lib = _library(angles)
    (cr, cp, cy), (sr, sp, sy) = (lib.moveaxis(f(0.5 * angles), -1, 0) for f in (lib.cos, lib.sin))
    w, x = cy * cp * cr + sy * sp * sr, cy * cp * sr - sy * sp * cr
    y, z = cy * sp * cr + sy * cp * sr, sy * cp * cr - cy * sp * sr
    return lib.stack([w, x, y, z], axis=-1)


@naming_arguments
def quaternion_to_rpy(quaternion: ArrayLike) -> Any:
    """Roll, pitch and yaw `[..., 3]` (rad, about the fixed axes x, y, z in this order) of quaternions `[..., 4]`.

    Undoing the yaw takes the image of x into the plane of x and z, and leaves a pitch and a roll. So the angles give
    the rotation back up to rounding also where the image of x is z or -z, where any yaw would do.
    """
    R = quaternion_to_rotation(quaternion)
    lib = _library(R)
    yaw = lib.arctan2(R[..., 1, 0], R[..., 0, 0])
    c, s = lib.cos(yaw)[..., None], lib.sin(yaw)[..., None]
    x, y = c * R[..., 0, :] + s * R[..., 1, :], c * R[..., 1, :] - s * R[..., 0, :]
    roll, pitch = lib.arctan2(-y[..., 2], y[..., 1]), lib.arctan2(-R[..., 2, 0], x[..., 0])
    return lib.stack([roll, pitch, yaw], axis=-1)


@naming_arguments
def axis_angle_to_quaternion(axis: ArrayLike, angle: ArrayLike) -> Any:
    """The unit quaternions `[..., 4]` of turns by `angle` `[...]` (rad) about the directions `axis` `[..., 3]`."""
    u, turn = _in_one_library(axis, angle)
    lib, half = _library(u), 0.5 * turn[..., None]
    return concatenate(lib.cos(half), lib.sin(half) * u / lib.sqrt((u * u).sum(axis=-1, keepdims=True)))


@naming_arguments
def quaternion_from_z(direction: ArrayLike) -> Any:
    """The unit quaternions `[..., 4]` of the shortest turns that take z to directions `[..., 3]` of any length; the
    identity for vectors of length zero."""
    (v,) = _in_one_library(direction)
    lib, square = _library(v), (v * v).sum(axis=-1)
    known = square > 0
    x, y, z = lib.moveaxis(v / lib.sqrt(lib.where(known, square, 1.0))[..., None], -1, 0)
    z = lib.where(known, z, 1.0)
    # Any half turn about an axis across z takes z to -z. Nearer to it, rounding of `1 + z` would decide on the axis.
    turn = lib.stack([1 + z, lib.where(z < -1 + 1e-9, 1.0, -y), x, 0 * z], axis=-1)
    return turn / lib.sqrt((turn * turn).sum(axis=-1, keepdims=True))


@naming_arguments
def transform_inertial_parameters(parameters: ArrayLike, pose: ArrayLike) -> Any:
    """Inertial parameters `[..., 10]` that are given in the frames at `pose` `[..., 7]`, in the parent frames.

    Each row is a parameter vector `m, mcx, mcy, mcz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz`, the moments about the frame's
    origin. The map is linear in it: applied to the rows of the identity matrix, with one pose, it returns the transpose
    of its matrix. With `h` the rotated first moment and `p` the position, the rotational inertia grows by
    `-([p x][h x] + [h x][p x] + m [p x][p x])`: the parallel-axis theorem, as in `Inertia.moved`.
    """
    phi, X = _in_one_library(parameters, pose)
    m, p, R = phi[..., :1], X[..., :3], quaternion_to_rotation(X[..., 3:])
    h = matrix_times_vector(R, phi[..., 1:4])
    P, H = (_contract(SKEW, v[..., None, None, :], 1) for v in (p, h))
    J = matrix_product(matrix_product(R, inertia_matrix(phi)), R.swapaxes(-1, -2))
    J = J - matrix_product(P, H + m[..., None] * P) - matrix_product(H, P)
    return concatenate(m, h + m * p, inertia_elements(J))


@naming_arguments
def inertia_matrix(parameters: ArrayLike) -> Any:
    """The rotational inertias `[..., 3, 3]` about the origin (kg m^2) of inertial parameters `[..., 10]`."""
    (phi,) = _in_one_library(parameters)
    return phi[..., 4 + _ELEMENTS]


@naming_arguments
def inertia_elements(matrix: ArrayLike) -> Any:
    """The elements `xx, xy, yy, xz, yz, zz`, `[..., 6]`, of symmetric matrices `[..., 3, 3]`."""
    (I,) = _in_one_library(matrix)
    return I[..., _ROWS, _COLUMNS]


def _in_one_library(*values) -> tuple[Any, ...]:
    """The values as floating-point arrays: of JAX if one of them is a JAX array, else of NumPy in double precision."""
    if not any(isinstance(x, jax.Array) for x in values):
        return tuple(np.asarray(x, np.float64) for x in values)
    arrays = [jnp.asarray(x) for x in values]
    dtype = jnp.result_type(*arrays)
    dtype = dtype if jnp.issubdtype(dtype, jnp.floating) else jnp.result_type(float)
    return tuple(x.astype(dtype) for x in arrays)


def _library(array) -> Any:
    return jnp if isinstance(array, jax.Array) else np


# Sums of products are written out: they are one operation to the compiler, and no library's matrix product rounds them
# to less than their precision.


def _contract(table: np.ndarray, x, axes: int):
    """Contract the last `axes` axes of `table` with those of `x`."""
    return (_library(x).asarray(table, x.dtype) * x).sum(axis=tuple(range(-axes, 0)))


def matrix_product(A, B):
    """`A B` of matrices `[..., m, n]` and `[..., n, k]`."""
    return (A[..., :, :, None] * B[..., None, :, :]).sum(axis=-2)


def matrix_times_vector(A, b):
    """`A b` of matrices `[..., m, n]` and vectors `[..., n]`."""
    return (A * b[..., None, :]).sum(axis=-1)


def concatenate(*parts):
    """Join arrays of one library along the last axis; batch axes broadcast."""
    batch, lib = jnp.broadcast_shapes(*(x.shape[:-1] for x in parts)), _library(parts[0])
    return lib.concatenate([lib.broadcast_to(x, (*batch, x.shape[-1])) for x in parts], axis=-1)
