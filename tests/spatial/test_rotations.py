"""Rotations and rigid motions match SciPy at all angles in both precisions, and their derivatives are right."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from scipy.spatial.transform import Rotation

from jaxdyn import ShapeError
from jaxdyn.spatial import (
    IDENTITY_POSE,
    SE3,
    Inertia,
    Mat3,
    Pose,
    Quaternion,
    Vec3,
    axis_angle_to_quaternion,
    compose_poses,
    inertia_elements,
    inertia_matrix,
    invert_pose,
    multiply_quaternions,
    pose_array,
    quaternion_from_z,
    quaternion_to_rotation,
    quaternion_to_rpy,
    rotation_to_quaternion,
    rpy_to_quaternion,
    so3_exp,
    so3_left_jacobian_apply,
    so3_left_jacobian_solve,
    so3_log,
    transform_inertial_parameters,
    transform_points,
)

# Series replace exp below an angle of 1/2 (1 for half angles) and log below 2 atan(1/100).
THRESHOLDS = [0.5, 1.0, 2 * np.arctan(0.01)]
ANGLES = np.array(
    [0.0, 1e-12, 1e-8, 1e-4, 1e-2, 0.3, 1.5, 2.5, np.pi - 1e-4, np.pi - 1e-9]
    + [t + d for t in THRESHOLDS for d in (-1e-9, 0.0, 1e-9)]
)
_OBLIQUE = np.array([[1, 2, 3], [-1, 1, 0], [0, -1, 2], [-3, 0, -1], [-1, -1, -1]], dtype=float)
AXES = np.concatenate([np.eye(3), -np.eye(3), _OBLIQUE / np.linalg.norm(_OBLIQUE, axis=-1, keepdims=True)])
# [angles * axes, 3]
VECTORS = (ANGLES[:, None, None] * AXES).reshape(-1, 3)
LENGTHS = np.repeat(ANGLES, len(AXES))

vec = Vec3.from_array
exp = jax.jit(lambda w: so3_exp(vec(w)).to_array())
log = jax.jit(lambda R: so3_log(Mat3.from_array(R)).to_array())
quaternion_exp = jax.jit(lambda w: Quaternion.exp(vec(w)).to_array())
quaternion_log = jax.jit(lambda q: Quaternion.from_array(q).log().to_array())
quaternion_of = jax.jit(lambda R: Quaternion.from_rotation(Mat3.from_array(R)).to_array())
rotation_of = jax.jit(lambda q: Quaternion.from_array(q).to_rotation().to_array())
product = jax.jit(lambda p, q: Quaternion.from_array(p).multiply(Quaternion.from_array(q)).to_array())


def skew(w: np.ndarray) -> np.ndarray:
    return np.cross(np.eye(3), w[..., None, :])


def random_rotations(n: int, seed: int = 0) -> np.ndarray:
    return Rotation.random(n, rng=np.random.default_rng(seed)).as_matrix()


def half_turn(axis: np.ndarray) -> np.ndarray:
    """Return half turns that are exact up to one rounding, unlike the exponential at the number nearest to pi."""
    return 2 * axis[..., :, None] * axis[..., None, :] - np.eye(3)


# SO(3)


def test_exp_matches_scipy():
    R = exp(VECTORS)
    np.testing.assert_allclose(R, Rotation.from_rotvec(VECTORS).as_matrix(), rtol=0, atol=2e-15)
    np.testing.assert_allclose(R[::7], [scipy.linalg.expm(skew(w)) for w in VECTORS[::7]], rtol=0, atol=5e-15)


def test_exp_is_a_rotation_beyond_a_turn():
    w = AXES * np.linspace(3.2, 40, len(AXES))[:, None]
    np.testing.assert_allclose(exp(w), Rotation.from_rotvec(w).as_matrix(), rtol=0, atol=1e-13)


def test_log_matches_scipy():
    R = random_rotations(200)
    np.testing.assert_allclose(log(R), Rotation.from_matrix(R).as_rotvec(), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(log(R[:10]), [unskew(scipy.linalg.logm(r)) for r in R[:10]], rtol=1e-9, atol=1e-10)


def unskew(W: np.ndarray) -> np.ndarray:
    return np.array([W[2, 1], W[0, 2], W[1, 0]])


def test_log_of_exp_returns_the_vector():
    """The error is relative to the vector's length, so a tiny rotation keeps its digits."""
    error = np.linalg.norm(np.asarray(log(exp(VECTORS))) - VECTORS, axis=-1)
    assert (error <= 5e-15 * np.maximum(LENGTHS, 1e-300)).all(), np.max(error / np.maximum(LENGTHS, 1e-300))


def test_half_turns():
    R = half_turn(AXES)
    w = np.asarray(log(R))
    np.testing.assert_allclose(np.linalg.norm(w, axis=-1), np.pi, rtol=1e-15)
    np.testing.assert_allclose(np.abs((w * AXES).sum(-1)), np.pi, rtol=1e-15)
    np.testing.assert_allclose(exp(w), R, rtol=0, atol=5e-15)
    np.testing.assert_allclose(exp(np.pi * AXES), R, rtol=0, atol=5e-15)


def test_just_beyond_half_a_turn_comes_back_from_the_other_side():
    w = (np.pi + 1e-6) * AXES
    np.testing.assert_allclose(log(exp(w)), -(np.pi - 1e-6) * AXES, rtol=0, atol=1e-14)


def test_left_jacobian_and_its_inverse():
    """The left Jacobian `V(w)` is the integral of the exponential over unit time, and `solve` undoes `apply`."""
    v = np.random.default_rng(1).normal(size=VECTORS.shape)
    apply = jax.jit(lambda w, v: so3_left_jacobian_apply(vec(w), vec(v)).to_array())
    solve = jax.jit(lambda w, v: so3_left_jacobian_solve(vec(w), vec(v)).to_array())
    there = np.asarray(apply(VECTORS, v))
    nodes, weights = np.polynomial.legendre.leggauss(20)
    turns = Rotation.from_rotvec((VECTORS[None] * (0.5 + 0.5 * nodes)[:, None, None]).reshape(-1, 3))
    moved = turns.apply(np.broadcast_to(v, (20, *v.shape)).reshape(-1, 3)).reshape(20, *v.shape)
    np.testing.assert_allclose(there, np.einsum("k,kij->ij", 0.5 * weights, moved), rtol=0, atol=1e-13)
    np.testing.assert_allclose(solve(VECTORS, there), v, rtol=0, atol=5e-14)


# Quaternions


def scipy_quaternion(w: np.ndarray) -> np.ndarray:
    return np.roll(Rotation.from_rotvec(w).as_quat(), 1, axis=-1)


def test_quaternion_exp_and_log():
    q = np.asarray(quaternion_exp(VECTORS))
    np.testing.assert_allclose(q, scipy_quaternion(VECTORS), rtol=0, atol=1e-15)
    np.testing.assert_allclose(np.linalg.norm(q, axis=-1), 1, rtol=0, atol=1e-15)
    error = np.linalg.norm(np.asarray(quaternion_log(q)) - VECTORS, axis=-1)
    # Near half a turn the quaternion's w and the angle's distance from pi are of the order of rounding.
    assert (error <= 2e-15 * np.maximum(LENGTHS, 1e-300)).all(), np.max(error / np.maximum(LENGTHS, 1e-300))


def test_quaternion_log_looks_at_the_direction_only():
    q = quaternion_exp(VECTORS)
    for scale in (-1.0, 3.0, -0.2):
        np.testing.assert_allclose(quaternion_log(scale * q), VECTORS, rtol=1e-14, atol=1e-15)


def test_quaternion_log_at_exactly_half_a_turn():
    q = np.concatenate([np.zeros((len(AXES), 1)), AXES], axis=-1)
    np.testing.assert_allclose(quaternion_log(q), np.pi * AXES, rtol=1e-15, atol=1e-15)
    np.testing.assert_allclose(np.abs(quaternion_log(-q)), np.abs(np.pi * AXES), rtol=1e-15, atol=1e-15)


def test_quaternion_to_rotation_and_product():
    rng = np.random.default_rng(2)
    p, q = rng.normal(size=(2, 50, 4))
    P, Q = (Rotation.from_quat(np.roll(x, -1, axis=-1)) for x in (p, q))
    np.testing.assert_allclose(rotation_of(q), Q.as_matrix(), rtol=0, atol=5e-15)
    np.testing.assert_allclose(rotation_of(product(p, q)), (P * Q).as_matrix(), rtol=0, atol=1e-14)
    conjugate = jax.jit(lambda q: Quaternion.from_array(q).conjugate().to_array())
    np.testing.assert_allclose(rotation_of(conjugate(q)), Q.inv().as_matrix(), rtol=0, atol=5e-15)
    normalized = jax.jit(lambda q: Quaternion.from_array(q).normalized().to_array())(q)
    np.testing.assert_allclose(normalized, q / np.linalg.norm(q, axis=-1, keepdims=True), rtol=1e-15)


def same_up_to_sign(a, b, atol: float) -> None:
    a, b = np.asarray(a), np.asarray(b)
    sign = np.sign((a * b).sum(axis=-1, keepdims=True))
    np.testing.assert_allclose(a * sign, b, rtol=0, atol=atol)


def test_quaternion_of_a_rotation():
    """All four formulas are right: for random rotations, and for nearly and exactly half a turn about each axis."""
    R = np.concatenate([random_rotations(100), Rotation.from_rotvec(VECTORS).as_matrix(), half_turn(AXES)])
    q = np.asarray(quaternion_of(R))
    assert (q[:, 0] >= 0).all()
    np.testing.assert_allclose(np.linalg.norm(q, axis=-1), 1, rtol=0, atol=1e-15)
    same_up_to_sign(q, np.roll(Rotation.from_matrix(R).as_quat(), 1, axis=-1), atol=2e-15)
    np.testing.assert_allclose(rotation_of(q), R, rtol=0, atol=5e-15)


def test_rotation_to_quaternion_in_numpy():
    R = np.concatenate([random_rotations(30), Rotation.from_rotvec(VECTORS[::5]).as_matrix(), half_turn(AXES)])
    q = rotation_to_quaternion(R)
    assert isinstance(q, np.ndarray)
    assert q.dtype == np.float64
    assert (q[:, 0] >= 0).all()
    same_up_to_sign(q, np.roll(Rotation.from_matrix(R).as_quat(), 1, axis=-1), atol=5e-15)
    np.testing.assert_allclose(rotation_to_quaternion(R[0]), q[0], rtol=0, atol=1e-15)
    same_up_to_sign(rotation_to_quaternion(jnp.asarray(R)), q, atol=5e-15)


def test_rotation_to_quaternion_takes_the_nearest_rotation():
    """A matrix of six printed digits gives a unit quaternion close to the exact one."""
    R = random_rotations(1)[0]
    q = rotation_to_quaternion(np.round(R, 6))
    np.testing.assert_allclose(np.linalg.norm(q), 1, rtol=1e-15)
    np.testing.assert_allclose(rotation_of(q), R, rtol=0, atol=2e-6)


@pytest.mark.parametrize(
    "bad",
    [np.eye(4), np.zeros((3, 3)), 1.01 * np.eye(3), np.diag([1.0, 1, -1]), np.full((3, 3), np.nan), np.eye(3)[0]],
    ids=["4x4", "zero", "scaled", "mirror", "nan", "row"],
)
def test_rotation_to_quaternion_refuses_what_is_no_rotation(bad):
    with pytest.raises(ShapeError, match="not a rotation matrix"):
        rotation_to_quaternion(bad)


# Arrays with trailing axes, in NumPy and in JAX


def in_both(function, *arrays):
    """Return the result for NumPy arrays after asserting that JAX arrays give the same."""
    result = function(*arrays)
    assert isinstance(result, np.ndarray)
    assert result.dtype == np.float64
    compiled = jax.jit(function)(*arrays)
    assert isinstance(compiled, jax.Array)
    np.testing.assert_allclose(compiled, result, rtol=0, atol=1e-14)
    return result


def homogeneous(poses) -> np.ndarray:
    out = np.zeros((*poses.shape[:-1], 4, 4))
    out[..., :3, :3] = (
        Rotation.from_quat(np.roll(poses[..., 3:], -1, axis=-1).reshape(-1, 4))
        .as_matrix()
        .reshape(*poses.shape[:-1], 3, 3)
    )
    out[..., :3, 3], out[..., 3, 3] = poses[..., :3], 1
    return out


def test_poses_as_arrays_compose_like_homogeneous_matrices():
    a, b = random_poses(20, 1), random_poses(20, 2)
    composed = in_both(compose_poses, a, b)
    np.testing.assert_allclose(homogeneous(composed), homogeneous(a) @ homogeneous(b), rtol=0, atol=1e-14)
    inverse = in_both(invert_pose, a)
    np.testing.assert_allclose(homogeneous(inverse), np.linalg.inv(homogeneous(a)), rtol=0, atol=1e-14)
    product = in_both(multiply_quaternions, a[:, 3:], b[:, 3:])
    np.testing.assert_allclose(composed, pose_array(composed[:, :3], product), rtol=0, atol=0)
    points = in_both(transform_points, a[:, None], b[:5, :3])
    expected = homogeneous(a)[:, None] @ np.append(b[:5, :3], np.ones((5, 1)), axis=1)[..., None]
    np.testing.assert_allclose(points, expected[..., :3, 0], rtol=0, atol=1e-14)


def test_composition_with_the_identity_is_exact():
    a = random_poses(5, 3)
    np.testing.assert_array_equal(compose_poses(IDENTITY_POSE, a), a)
    np.testing.assert_array_equal(compose_poses(a, IDENTITY_POSE), a)


def test_quaternions_whose_squares_the_precision_does_not_have():
    """In double precision the squares of 1e200 and 1e-200 are infinite and zero."""
    quaternions = random_poses(3, 4)[:, 3:]
    expected = in_both(quaternion_to_rotation, quaternions)
    for length in (1e200, 1e-200):
        np.testing.assert_allclose(in_both(quaternion_to_rotation, length * quaternions), expected, atol=1e-14)
        q = Quaternion.from_array(jnp.asarray(length * quaternions))
        np.testing.assert_allclose(q.normalized().to_array(), quaternions, atol=1e-14)
        np.testing.assert_allclose(rotation_of(length * quaternions), expected, atol=1e-14)


def test_quaternions_as_arrays_are_rotations():
    q = np.random.default_rng(4).normal(size=(3, 6, 4))
    R = in_both(quaternion_to_rotation, q)
    np.testing.assert_allclose(R, np.asarray(rotation_of(q)), rtol=0, atol=2e-15)
    single = quaternion_to_rotation(jnp.asarray(q, jnp.float32))
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, R, rtol=0, atol=2e-6)
    whole = quaternion_to_rotation([1, 0, 0, 1])
    np.testing.assert_allclose(whole, [[0, -1, 0], [1, 0, 0], [0, 0, 1]], rtol=0, atol=1e-15)


def test_roll_pitch_yaw_as_arrays():
    rpy = np.random.default_rng(5).uniform(-4, 4, size=(20, 3))
    q = in_both(rpy_to_quaternion, rpy)
    same_up_to_sign(q, np.roll(Rotation.from_euler("xyz", rpy).as_quat(), 1, axis=-1), atol=2e-15)
    same_up_to_sign(rpy_to_quaternion(in_both(quaternion_to_rpy, q)), q, atol=2e-15)
    # At this pitch roll and yaw are not unique.
    for pitch in (0.5 * np.pi, -0.5 * np.pi):
        q = rpy_to_quaternion([0.3, pitch, -0.8])
        same_up_to_sign(rpy_to_quaternion(quaternion_to_rpy(q)), q, atol=2e-15)


def test_axis_and_angle_as_arrays():
    angles = np.linspace(-4, 4, len(AXES))
    q = in_both(axis_angle_to_quaternion, 3.0 * AXES, angles)
    expected = Rotation.from_rotvec(angles[:, None] * AXES).as_matrix()
    np.testing.assert_allclose(quaternion_to_rotation(q), expected, rtol=0, atol=2e-15)


def test_turns_from_z_as_arrays():
    directions = np.concatenate([5.0 * AXES, np.eye(3), -np.eye(3), [[1e-6, 0, -1], [1e-12, 0, -1]]])
    turned = quaternion_to_rotation(in_both(quaternion_from_z, directions))[..., 2]
    expected = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    np.testing.assert_allclose(turned, expected, rtol=0, atol=2e-15)
    np.testing.assert_array_equal(quaternion_from_z(np.zeros(3)), [1, 0, 0, 0])


def test_inertial_parameters_as_arrays():
    rng = np.random.default_rng(6)
    parameters, poses = rng.normal(size=(7, 10)), random_poses(7, 8)
    moved = in_both(transform_inertial_parameters, parameters, poses)
    expected = Inertia.from_parameters(parameters).moved(Pose.from_vector(poses))
    np.testing.assert_allclose(moved[:, 1:4], expected.first_moment.to_array(), rtol=0, atol=1e-14)
    J = expected.rotational.to_mat3().to_array()
    np.testing.assert_allclose(inertia_matrix(moved), J, rtol=0, atol=3e-14)
    np.testing.assert_array_equal(inertia_elements(inertia_matrix(parameters)), parameters[:, 4:])


# SE(3)

_ANGULAR = np.concatenate([VECTORS, np.pi * AXES, np.zeros((1, 3))])
TWISTS = np.concatenate([np.random.default_rng(3).normal(size=_ANGULAR.shape), _ANGULAR], axis=-1)
TWISTS[-1] = 0
SHORT = np.linalg.norm(_ANGULAR, axis=-1) < np.pi - 1e-12
se3_matrix = jax.jit(lambda x: SE3.exp(x).as_matrix())
se3_round_trip = jax.jit(lambda x: SE3.exp(x).log())


def random_poses(n: int, seed: int) -> np.ndarray:
    """Return random poses, `[n, 7]`."""
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(n, 4))
    return np.concatenate([rng.normal(size=(n, 3)), q / np.linalg.norm(q, axis=-1, keepdims=True)], axis=-1)


def twist_matrix(x: np.ndarray) -> np.ndarray:
    M = np.zeros((*x.shape[:-1], 4, 4))
    M[..., :3, :3], M[..., :3, 3] = skew(x[..., 3:]), x[..., :3]
    return M


def test_se3_exp_matches_expm():
    np.testing.assert_allclose(se3_matrix(TWISTS), [scipy.linalg.expm(twist_matrix(x)) for x in TWISTS], atol=2e-14)


def test_se3_log_matches_logm():
    rows = np.flatnonzero(np.linalg.norm(TWISTS[:, 3:], axis=-1) < 3)[::7]
    logs, matrices = np.asarray(se3_round_trip(TWISTS))[rows], np.asarray(se3_matrix(TWISTS))[rows]
    for X, x in zip(matrices, logs, strict=True):
        np.testing.assert_allclose(twist_matrix(x), scipy.linalg.logm(X), rtol=1e-7, atol=1e-8)


def test_se3_log_of_exp():
    back = np.asarray(se3_round_trip(TWISTS))
    np.testing.assert_allclose(back[SHORT], TWISTS[SHORT], rtol=0, atol=1e-14)
    # At half a turn the opposite rotation vector may result, which is the same displacement.
    np.testing.assert_allclose(se3_matrix(back), se3_matrix(TWISTS), rtol=0, atol=2e-14)


def test_from_rpy_matches_scipy():
    rpy = np.random.default_rng(5).uniform(-4, 4, size=(20, 3))
    X = jax.jit(SE3.from_rpy)(rpy, np.arange(3.0))
    np.testing.assert_allclose(X.rotation, Rotation.from_euler("xyz", rpy).as_matrix(), rtol=0, atol=1e-15)
    np.testing.assert_array_equal(X.translation, np.arange(3.0))


def test_whole_numbers_are_taken_as_reals():
    X = SE3.from_rpy((0, 0, 0), (0.1, 0.2, 0.3))
    np.testing.assert_allclose(X.translation, (0.1, 0.2, 0.3), rtol=1e-6)
    for X in (
        SE3.from_translation((1, 2, 3)),
        SE3.from_vector(jnp.array([1, 2, 3, 1, 0, 0, 0])),
        SE3.from_rpy((0, 0, 1)),
    ):
        assert jnp.issubdtype(X.rotation.dtype, jnp.floating)
        assert jnp.issubdtype(X.translation.dtype, jnp.floating)


def test_vector_round_trip():
    v = random_poses(50, 6)
    v[:, 3:] *= np.sign(v[:, 3:4])
    X = jax.jit(SE3.from_vector)(v)
    np.testing.assert_allclose(X.rotation, Rotation.from_quat(np.roll(v[:, 3:], -1, -1)).as_matrix(), atol=5e-15)
    np.testing.assert_allclose(jax.jit(SE3.to_vector)(X), v, rtol=0, atol=1e-15)


def test_inverse_matmul_and_apply():
    X, Y = (jax.jit(SE3.from_vector)(random_poses(6, seed)) for seed in (7, 8))
    points = np.random.default_rng(9).normal(size=(6, 3))

    @jax.jit
    def f(X, Y, points):
        return X.as_matrix(), Y.as_matrix(), X.inverse().as_matrix(), (X @ Y).as_matrix(), X.apply(points)

    MX, MY, inverse, both, moved = map(np.asarray, f(X, Y, points))
    np.testing.assert_allclose(inverse, np.linalg.inv(MX), atol=1e-14)
    np.testing.assert_allclose(both, MX @ MY, atol=1e-14)
    expected = np.einsum("nij,nj->ni", MX, np.concatenate([points, np.ones((6, 1))], -1))[:, :3]
    np.testing.assert_allclose(moved, expected, atol=1e-14)


def test_identity_and_pure_translation():
    np.testing.assert_array_equal(SE3.identity().as_matrix(), np.eye(4))
    X = SE3.from_translation(np.arange(6.0).reshape(2, 3))
    assert X.rotation.shape == (2, 3, 3)
    np.testing.assert_array_equal(X.apply(jnp.ones(3)), np.arange(6.0).reshape(2, 3) + 1)


def test_batch_axes_broadcast():
    X = jax.jit(SE3.from_vector)(random_poses(4, 10).reshape(4, 1, 7))
    Y = jax.jit(SE3.from_vector)(random_poses(3, 11))

    @jax.jit
    def f(X, Y):
        return (X @ Y).as_matrix(), X.apply(Y.translation), SE3(X.rotation, Y.translation).as_matrix()

    composed, moved, mixed = f(X, Y)
    assert composed.shape == (4, 3, 4, 4)
    assert moved.shape == (4, 3, 3)
    assert mixed.shape == (4, 3, 4, 4)
    i, j = 2, 1
    single = f(jax.tree.map(lambda a: a[i, 0], X), jax.tree.map(lambda a: a[j], Y))
    for batch, expected in zip((composed, moved, mixed), single, strict=True):
        np.testing.assert_allclose(batch[i, j], expected, atol=1e-15)


@pytest.mark.parametrize(
    ("rotation", "translation", "batch"), [((4, 1), (3,), (4, 3)), ((2,), (), (2,)), ((), (3,), (3,))]
)
def test_batch_axes_of_one_pose_broadcast(rotation, translation, batch):
    def f(R, p):
        X = SE3(R, p)
        return X.log(), X.to_vector(), X.inverse().as_matrix(), X.as_matrix()

    shapes = jax.ShapeDtypeStruct((*rotation, 3, 3), float), jax.ShapeDtypeStruct((*translation, 3), float)
    log, vector, inverse, matrix = jax.eval_shape(f, *shapes)
    assert log.shape == (*batch, 6)
    assert vector.shape == (*batch, 7)
    assert inverse.shape == (*batch, 4, 4)
    assert matrix.shape == (*batch, 4, 4)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: SE3(jnp.eye(4), jnp.zeros(3)), "rotation"),
        (lambda: SE3(jnp.eye(3), jnp.zeros(4)), "translation"),
        (lambda: SE3(jnp.eye(3), jnp.zeros(())), "translation"),
        (lambda: SE3.from_rpy(jnp.zeros(2)), "rpy"),
        (lambda: SE3.from_rpy(jnp.zeros(3), jnp.zeros(2)), "translation"),
        (lambda: SE3.from_vector(jnp.zeros(6)), "vector"),
        (lambda: SE3.from_translation(jnp.zeros(2)), "translation"),
        (lambda: SE3.exp(jnp.zeros((6, 1))), "twist"),
        (lambda: SE3.identity().apply(jnp.zeros(2)), "points"),
        (lambda: SE3.identity().apply(jnp.zeros((3, 4))), "points"),
        (lambda: jax.jit(SE3.exp)(jnp.zeros(5)), "twist"),
    ],
)
def test_bad_shapes_are_errors_that_name_the_argument(make, what):
    with pytest.raises(ShapeError, match=what):
        make()


# Derivatives. The functions are elementwise over the batch, so derivatives in several directions are one evaluation on
# a longer batch. The batch is cut into chunks of one length, so that each operation compiles only once.

CHUNK = 8192


def rotation_and_quaternion_exp(w):
    """Return the exponential of a rotation vector as a matrix and as a quaternion, `[3] -> [13]`."""
    return [so3_exp(Vec3(*w)), Quaternion.exp(Vec3(*w))]


def left_jacobians(wv):
    """Return `V v` and `V^-1 v` for a rotation vector and a vector `v`, `[6] -> [6]`."""
    w, v = Vec3(*wv[:3]), Vec3(*wv[3:])
    return [so3_left_jacobian_apply(w, v), so3_left_jacobian_solve(w, v)]


def log_of_exp(w):
    """Return the logarithm and the quaternion of `exp(w)`, `[3] -> [7]`; derivatives stay tangent to the rotations."""
    R = so3_exp(Vec3(*w))
    return [so3_log(R), Quaternion.from_rotation(R)]


def log_of_matrix(R):
    """Return the logarithm and the quaternion of a matrix of nine free numbers, column by column, `[9] -> [7]`."""
    M = Mat3(Vec3(*R[:3]), Vec3(*R[3:6]), Vec3(*R[6:]))
    return [so3_log(M), Quaternion.from_rotation(M)]


def quaternion_functions(q):
    """Return the logarithm, matrix and normalized quaternion of four free numbers, whose length has no meaning,
    `[4] -> [16]`."""
    a = Quaternion(*q)
    return [a.log(), a.to_rotation(), a.normalized()]


class Derivatives:
    """First and second derivatives at `n` points of a function from rows `[k, n]` to components of shape `[n]`."""

    def __init__(self, f, x, dtype: Any = np.float64):
        self.f, self.dtype = f, np.dtype(dtype)
        self.x = np.asarray(x, dtype).T
        self.k, self.n = self.x.shape
        self.m = len(self._run(self._leaves, self.x))

    def _leaves(self, x):
        return jax.tree.leaves(self.f(x))

    def _jvp(self, x, a):
        return jax.jvp(self._leaves, (x,), (a,))[1]

    def _vjp(self, x, c):
        return jax.vjp(self._leaves, x)[1](c)[0]

    def _run(self, g, *args) -> np.ndarray:
        """Evaluate `g`, a function of lists of components, for arrays `[components, points]`."""
        length = args[0].shape[1]
        padding = -length % CHUNK
        # Padding repeats the last point, because zeros could hide or create values that are not finite.
        args = [np.concatenate([a, np.repeat(a[:, -1:], padding, axis=1)], axis=1) for a in args]
        parts = []
        for start in range(0, length, CHUNK):
            out = g(*([jnp.asarray(row[start : start + CHUNK]) for row in a] for a in args))
            assert {leaf.dtype for leaf in out} == {self.dtype}
            parts.append(np.stack(out))
        return np.concatenate(parts, axis=1)[:, :length]

    def _tile(self, *sizes: int):
        """Return the repeated points and, for every size, the matching unit vectors `[size, n * product(sizes)]`."""
        tiles = [np.broadcast_to(self.x.reshape(self.k, self.n, *(1 for _ in sizes)), (self.k, self.n, *sizes))]
        for axis, size in enumerate(sizes):
            shape = [size] + [1] * (1 + len(sizes))
            shape[2 + axis] = size
            tiles.append(np.broadcast_to(np.eye(size, dtype=self.dtype).reshape(shape), (size, self.n, *sizes)))
        return [tile.reshape(len(tile), -1) for tile in tiles]

    def _untile(self, y: np.ndarray, *sizes: int) -> np.ndarray:
        return np.moveaxis(y.reshape(len(y), self.n, *sizes), 0, 1)

    def values(self) -> np.ndarray:
        """Return the values, `[n, m]`."""
        return self._run(self._leaves, self.x).T

    def forward(self) -> np.ndarray:
        """Return the Jacobians by forward mode, `[n, m, k]`."""
        return self._untile(self._run(self._jvp, *self._tile(self.k)), self.k)

    def reverse(self) -> np.ndarray:
        """Return the Jacobians by reverse mode, `[n, m, k]`."""
        return np.swapaxes(self._untile(self._run(self._vjp, *self._tile(self.m)), self.m), 1, 2)

    def forward_over_reverse(self) -> np.ndarray:
        """Return the second derivatives, forward over reverse, `[n, m, k, k]`."""

        def second(x, c, b):
            return jax.jvp(lambda x: self._vjp(x, c), (x,), (b,))[1]

        return np.swapaxes(self._untile(self._run(second, *self._tile(self.m, self.k)), self.m, self.k), 1, 2)

    def central(self, step: float = 1e-5) -> np.ndarray:
        """Return the Jacobians by central differences, `[n, m, k]`."""
        x, a = self._tile(self.k)
        ends = [self._run(self._leaves, x + h * a) for h in (step, -step)]
        return self._untile((ends[0] - ends[1]) / (2 * step), self.k)

    def central_second(self, step: float = 1e-5) -> np.ndarray:
        """Return central differences (last axis) of the first derivatives, `[n, m, k, k]`."""
        x, a, b = self._tile(self.k, self.k)
        ends = [self._run(self._jvp, x + h * b, a) for h in (step, -step)]
        return self._untile((ends[0] - ends[1]) / (2 * step), self.k, self.k)

    def check(self, differences: bool = True):
        """Return first and second derivatives after asserting that they are finite and symmetric and that forward mode,
        reverse mode and central differences agree."""
        first, second = self.forward(), self.forward_over_reverse()
        assert np.isfinite(first).all()
        assert np.isfinite(second).all()
        first_scale, second_scale = 1 + np.abs(first).max(), 1 + np.abs(second).max()
        np.testing.assert_allclose(first, self.reverse(), rtol=0, atol=1e-12 * first_scale)
        np.testing.assert_allclose(second, np.swapaxes(second, -1, -2), rtol=0, atol=1e-11 * second_scale)
        if differences:
            np.testing.assert_allclose(first, self.central(), rtol=0, atol=2e-9 * second_scale)
            np.testing.assert_allclose(second, self.central_second(), rtol=0, atol=1e-8 * second_scale)
        return first, second


def columns_first(R: np.ndarray) -> np.ndarray:
    return np.swapaxes(R, -1, -2).reshape(-1, 9)


# EVERY has some axes at all angles. SMOOTH leaves out angles where a difference of 1e-5 crosses the cut at half a turn.
EVERY = (ANGLES[:, None, None] * AXES[[0, 4, 2, 6, 7, 8]]).reshape(-1, 3)
SMOOTH = (ANGLES[ANGLES < 3.14, None, None] * AXES[[0, 4, 2, 6, 7, 8]]).reshape(-1, 3)
BEFORE_HALF_TURN = LENGTHS < 3.14
AT_HALF_TURN = np.concatenate([half_turn(AXES), Rotation.from_rotvec(VECTORS[~BEFORE_HALF_TURN]).as_matrix()])


@pytest.mark.slow
def test_derivatives_of_exp():
    Derivatives(rotation_and_quaternion_exp, np.concatenate([EVERY, np.pi * AXES])).check()


@pytest.mark.slow
def test_second_derivatives_of_exp_at_zero():
    """The derivatives are those of `exp(w) = 1 + [w x] + [w x]^2 / 2 + ...`."""
    first, second = Derivatives(rotation_and_quaternion_exp, np.zeros((1, 3))).check()
    generators = np.stack([skew(e) for e in np.eye(3)])
    np.testing.assert_allclose(first[0, :9], columns_first(generators).T, atol=1e-15)
    products = np.einsum("aij,bjk->abik", generators, generators)
    products = 0.5 * (products + np.swapaxes(products, 0, 1))
    np.testing.assert_allclose(second[0, :9], np.moveaxis(np.swapaxes(products, -1, -2).reshape(3, 3, 9), -1, 0))
    np.testing.assert_allclose(first[0, 9:], np.concatenate([np.zeros((1, 3)), 0.5 * np.eye(3)]), atol=1e-15)
    np.testing.assert_allclose(second[0, 9], -0.25 * np.eye(3), atol=1e-15)
    np.testing.assert_allclose(second[0, 10:], 0, atol=1e-15)


@pytest.mark.slow
def test_derivatives_of_left_jacobians():
    w = np.concatenate([EVERY, np.pi * AXES])
    Derivatives(left_jacobians, np.concatenate([w, np.random.default_rng(1).normal(size=w.shape)], axis=-1)).check()


def test_derivatives_of_the_logarithm():
    """`log(exp(w)) = w`, so the first derivative is the identity and the second is zero."""
    first, second = Derivatives(log_of_exp, np.concatenate([SMOOTH, np.zeros((1, 3))])).check()
    np.testing.assert_allclose(first[:, :3], np.broadcast_to(np.eye(3), (len(first), 3, 3)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(second[:, :3], 0, rtol=0, atol=1e-11)


def test_derivatives_of_the_logarithm_at_half_turns():
    """On the cut the derivatives are those of the branch that the logarithm takes: `w`, or `w - 2 pi w/|w|`."""
    w = np.pi * AXES
    d = Derivatives(log_of_exp, w)
    first, _ = d.check(differences=False)
    opposite = ((d.values()[:, :3] * w).sum(axis=-1) < 0)[:, None, None]
    across = np.eye(3) - AXES[:, :, None] * AXES[:, None]
    np.testing.assert_allclose(first[:, :3], np.eye(3) - 2 * across * opposite, rtol=0, atol=1e-12)


def test_derivatives_of_the_logarithm_by_every_element_of_a_half_turn():
    Derivatives(log_of_matrix, columns_first(AT_HALF_TURN)).check(differences=False)


def test_derivatives_of_quaternion_functions():
    q = scipy_quaternion(SMOOTH)
    q = np.concatenate([q, -q, 3 * q[::5], [[1.0, 0, 0, 0], [-1, 0, 0, 0]]])
    Derivatives(quaternion_functions, q).check()


def test_derivatives_of_the_quaternion_logarithm_at_half_turns():
    q = np.concatenate([np.zeros((len(AXES), 1)), AXES], axis=-1)
    first, _ = Derivatives(quaternion_functions, np.concatenate([q, -q])).check(differences=False)
    first = first[: len(AXES), :3]
    # At a half turn d log / dw = -2 v, and log changes by pi times a change of v's direction.
    np.testing.assert_allclose(first[..., 0], -2 * AXES, rtol=0, atol=1e-14)
    across = np.eye(3) - AXES[:, :, None] * AXES[:, None]
    np.testing.assert_allclose(first[..., 1:], np.pi * across, rtol=0, atol=1e-14)


def test_derivatives_are_continuous_across_the_thresholds():
    """The two branches agree at the thresholds up to second derivatives."""
    w = np.concatenate([(t + np.array([[-1e-13], [1e-13]])) * AXES[7] for t in [*THRESHOLDS, 2 * THRESHOLDS[1]]])
    v = np.broadcast_to([0.3, -1.0, 0.7], w.shape)
    for f, x in (
        (rotation_and_quaternion_exp, w),
        (left_jacobians, np.concatenate([w, v], axis=-1)),
        (quaternion_functions, scipy_quaternion(w)),
    ):
        for d in Derivatives(f, x).check(differences=False):
            np.testing.assert_allclose(d[::2], d[1::2], rtol=0, atol=1e-10)


@pytest.mark.slow
def test_gradient_of_the_se3_round_trip():
    """`log(exp(x)) = x`, so every gradient equals the weights, at zero and up to half a turn."""
    weights = np.random.default_rng(12).normal(size=TWISTS.shape)
    gradient = np.asarray(jax.jit(jax.grad(lambda x: jnp.sum(weights * SE3.exp(x).log())))(TWISTS))
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(gradient[SHORT], weights[SHORT], rtol=0, atol=1e-10)


# Single precision

SINGLE = VECTORS[LENGTHS < 3.1].astype(np.float32)
EPS = float(np.finfo(np.float32).eps)


def test_single_precision_round_trips():
    R = exp(SINGLE)
    assert R.dtype == jnp.float32
    np.testing.assert_allclose(R, Rotation.from_rotvec(SINGLE).as_matrix(), rtol=0, atol=4 * EPS)
    length = np.linalg.norm(SINGLE.astype(float), axis=-1)
    for back in (log(R), quaternion_log(quaternion_exp(SINGLE))):
        assert back.dtype == jnp.float32
        error = np.linalg.norm(np.asarray(back, float) - SINGLE, axis=-1)
        assert (error <= 10 * EPS * length + 1e-30).all()


def test_single_precision_half_turns():
    w = np.asarray(log(half_turn(AXES).astype(np.float32)))
    np.testing.assert_allclose(np.abs((w * AXES).sum(-1)), np.pi, rtol=4 * EPS)
    np.testing.assert_allclose(exp(w), half_turn(AXES), rtol=0, atol=10 * EPS)


@pytest.mark.slow
def test_single_precision_se3():
    x = TWISTS.astype(np.float32)
    back = se3_round_trip(x)
    assert back.dtype == jnp.float32
    near = np.linalg.norm(TWISTS[:, 3:], axis=-1) < 3.1
    np.testing.assert_allclose(back[near], x[near], rtol=0, atol=30 * EPS)
    np.testing.assert_allclose(se3_matrix(x), se3_matrix(x.astype(float)), rtol=0, atol=10 * EPS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("f", "x"),
    [
        (left_jacobians, np.concatenate([EVERY, np.tile([0.3, -1, 0.7], (len(EVERY), 1))], axis=-1)),
        (log_of_exp, SMOOTH),
    ],
    ids=lambda a: getattr(a, "__name__", ""),
)
def test_single_precision_derivatives_match_double(f, x):
    x = x.astype(np.float32)
    single, double = Derivatives(f, x, np.float32), Derivatives(f, x.astype(float))
    for derivative in ("forward", "forward_over_reverse"):
        s, d = getattr(single, derivative)(), getattr(double, derivative)()
        assert np.isfinite(s).all()
        np.testing.assert_allclose(s, d, rtol=0, atol=3e-5 * (1 + np.abs(d).max()), err_msg=derivative)


@pytest.mark.slow
def test_single_precision_derivatives_are_finite_at_half_turns():
    q = np.concatenate([np.zeros((len(AXES), 1)), AXES], axis=-1)
    for f, x in ((log_of_matrix, columns_first(AT_HALF_TURN)), (quaternion_functions, np.concatenate([q, -q]))):
        d = Derivatives(f, x, np.float32)
        for array in (d.forward(), d.forward_over_reverse()):
            assert np.isfinite(array).all()


def test_dtypes_are_those_of_the_input():
    def f(x, v):
        return (
            SE3.exp(x).log(),
            SE3.from_rpy(x[:3]).to_vector(),
            SE3.from_vector(v).inverse(),
            SE3.from_translation(x[:3]),
        )

    for dtype in (jnp.float32, jnp.float64):
        shapes = jax.ShapeDtypeStruct((6,), dtype), jax.ShapeDtypeStruct((7,), dtype)
        assert {leaf.dtype for leaf in jax.tree.leaves(jax.eval_shape(f, *shapes))} == {np.dtype(dtype)}
