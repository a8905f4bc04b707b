"""The component types match plain 3x3 and 6x6 matrices (angular part first, as in Featherstone 2008)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.spatial import ArticulatedInertia, Force, Inertia, Mat3, Motion, Pose, Sym3, Vec3

BATCH = (5,)
TIGHT: dict[str, Any] = {"rtol": 1e-13, "atol": 1e-13}


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def random_vec(rng) -> Vec3:
    return Vec3(*rng.normal(size=(3, *BATCH)))


def random_mat(rng) -> Mat3:
    return Mat3(random_vec(rng), random_vec(rng), random_vec(rng))


def random_sym(rng) -> Sym3:
    return Sym3(*rng.normal(size=(6, *BATCH)))


def random_motion(rng) -> Motion:
    return Motion(angular=random_vec(rng), linear=random_vec(rng))


def random_force(rng) -> Force:
    return Force(moment=random_vec(rng), force=random_vec(rng))


def random_rotation(rng) -> Mat3:
    Q = np.linalg.qr(rng.normal(size=(*BATCH, 3, 3)))[0]
    return Mat3.from_array(Q * np.linalg.det(Q)[:, None, None])


def random_inertia(rng) -> Inertia:
    return Inertia(rng.uniform(0.5, 2, BATCH), random_vec(rng), random_sym(rng))


def vec(v: Vec3) -> np.ndarray:
    """Return the vectors as an array, `[batch, 3]`."""
    return np.stack(np.broadcast_arrays(v.x, v.y, v.z, np.zeros(BATCH))[:3], axis=-1)


def mat(M: Mat3) -> np.ndarray:
    """Return the matrices as an array, `[batch, 3, 3]`."""
    return np.stack([vec(M.x), vec(M.y), vec(M.z)], axis=-1)


def sym(S: Sym3) -> np.ndarray:
    rows = [Vec3(S.xx, S.xy, S.xz), Vec3(S.xy, S.yy, S.yz), Vec3(S.xz, S.yz, S.zz)]
    return np.stack([vec(r) for r in rows], axis=-2)


def six(x: Motion | Force) -> np.ndarray:
    """Return the spatial vectors as an array with the angular part first, `[batch, 6]`."""
    parts = (x.angular, x.linear) if isinstance(x, Motion) else (x.moment, x.force)
    return np.concatenate([vec(p) for p in parts], axis=-1)


def skew(v: np.ndarray) -> np.ndarray:
    return np.cross(np.eye(3), v[..., None, :])


def blocks(a, b, c, d) -> np.ndarray:
    return np.concatenate([np.concatenate([a, b], axis=-1), np.concatenate([c, d], axis=-1)], axis=-2)


def motion_cross(v: np.ndarray) -> np.ndarray:
    w, u = skew(v[..., :3]), skew(v[..., 3:])
    return blocks(w, np.zeros_like(w), u, w)


def inertia6(inertia: Inertia) -> np.ndarray:
    H = skew(vec(inertia.first_moment))
    mass = np.broadcast_to(inertia.mass, BATCH)[:, None, None] * np.eye(3)
    return blocks(sym(inertia.rotational), H, np.swapaxes(H, -1, -2), mass)


def articulated6(A: ArticulatedInertia) -> np.ndarray:
    C = mat(A.coupling)
    return blocks(sym(A.angular), C, np.swapaxes(C, -1, -2), sym(A.linear))


def motion_transform(R: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return the 6x6 matrix that transforms motions from a frame to the one in which its pose is `R, p`."""
    return blocks(R, np.zeros_like(R), skew(p) @ R, R)


def times(M: np.ndarray, v: np.ndarray) -> np.ndarray:
    return np.einsum("...ij,...j->...i", M, v)


def test_vec3_matches_numpy(rng):
    a, b = random_vec(rng), random_vec(rng)
    A, B, k = vec(a), vec(b), rng.normal(size=BATCH)
    np.testing.assert_allclose(vec(a + b), A + B, **TIGHT)
    np.testing.assert_allclose(vec(a - b), A - B, **TIGHT)
    np.testing.assert_allclose(vec(-a), -A, **TIGHT)
    np.testing.assert_allclose(vec(a * k), A * k[:, None], **TIGHT)
    np.testing.assert_allclose(a.dot(b), (A * B).sum(-1), **TIGHT)
    np.testing.assert_allclose(vec(a.cross(b)), np.cross(A, B), **TIGHT)
    np.testing.assert_allclose(a.squared_norm(), (A * A).sum(-1), **TIGHT)
    np.testing.assert_array_equal(vec(Vec3.zero()), np.zeros((*BATCH, 3)))


@pytest.mark.parametrize("make", [random_vec, random_mat, random_sym, random_motion, random_force])
def test_scalars_multiply_from_both_sides(rng, make):
    """A NumPy array as the left factor does not iterate over the components."""
    x, k = make(rng), rng.normal(size=BATCH)
    left, right = k * x, x * k
    assert type(left) is type(right) is type(x)
    for a, b, c in zip(*map(jax.tree.leaves, (left, right, x)), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_allclose(a, c * k, **TIGHT)


@pytest.mark.parametrize("make", [random_vec, random_mat, random_sym, random_motion, random_force, random_inertia])
def test_sums_are_by_component(rng, make):
    x, y = make(rng), make(rng)
    for s, a, b in zip(*map(jax.tree.leaves, (x + y, x, y)), strict=True):
        np.testing.assert_array_equal(s, a + b)
    if make is not random_inertia:
        for d, a, b in zip(*map(jax.tree.leaves, (x - y, x, y)), strict=True):
            np.testing.assert_array_equal(d, a - b)


def test_mat3_matches_numpy(rng):
    a, b, v = random_mat(rng), random_mat(rng), random_vec(rng)
    A, B, V = mat(a), mat(b), vec(v)
    np.testing.assert_allclose(mat(a.compose(b)), A @ B, **TIGHT)
    np.testing.assert_allclose(vec(a.apply(v)), times(A, V), **TIGHT)
    np.testing.assert_allclose(vec(a.apply_transpose(v)), times(np.swapaxes(A, -1, -2), V), **TIGHT)
    np.testing.assert_array_equal(mat(a.T), np.swapaxes(A, -1, -2))
    np.testing.assert_allclose(mat(a.compose(Mat3.identity())), A, **TIGHT)
    np.testing.assert_array_equal(mat(Mat3.zero()), np.zeros((*BATCH, 3, 3)))


def test_skew_is_the_cross_product(rng):
    a, b = random_vec(rng), random_vec(rng)
    np.testing.assert_allclose(mat(Mat3.skew(a)), skew(vec(a)), **TIGHT)
    np.testing.assert_allclose(vec(Mat3.skew(a).apply(b)), np.cross(vec(a), vec(b)), **TIGHT)


def test_sym3_matches_numpy(rng):
    s, v, w = random_sym(rng), random_vec(rng), random_vec(rng)
    S, V, W = sym(s), vec(v), vec(w)
    k = rng.normal(size=BATCH)
    np.testing.assert_array_equal(S, np.swapaxes(S, -1, -2))
    np.testing.assert_allclose(vec(s.apply(v)), times(S, V), **TIGHT)
    np.testing.assert_allclose(mat(s.to_mat3()), S, **TIGHT)
    np.testing.assert_allclose(sym(Sym3.isotropic(k)), k[:, None, None] * np.eye(3), **TIGHT)
    np.testing.assert_allclose(sym(Sym3.outer(v, v * k)), k[:, None, None] * V[:, :, None] * V[:, None], **TIGHT)
    pair = V[:, :, None] * W[:, None] + W[:, :, None] * V[:, None]
    np.testing.assert_allclose(sym(Sym3.outer_pair(v, w)), pair, **TIGHT)
    np.testing.assert_array_equal(sym(Sym3.zero()), np.zeros((*BATCH, 3, 3)))


def test_sym3_rotated(rng):
    s, r = random_sym(rng), random_rotation(rng)
    S, R = sym(s), mat(r)
    np.testing.assert_allclose(sym(s.rotated(r)), R @ S @ np.swapaxes(R, -1, -2), **TIGHT)
    general = random_mat(rng)
    G = mat(general)
    np.testing.assert_allclose(sym(s.rotated(general)), G @ S @ np.swapaxes(G, -1, -2), **TIGHT)


def test_array_round_trips(rng):
    A, V = rng.normal(size=(2, 4, 3, 3)), rng.normal(size=(2, 4, 3))
    np.testing.assert_array_equal(Mat3.from_array(A).to_array(), A)
    np.testing.assert_array_equal(Mat3.from_array(A).to_array(axis=0), np.moveaxis(A, (-2, -1), (0, 1)))
    np.testing.assert_array_equal(Mat3.from_array(A).to_array(axis=1), np.moveaxis(A, (-2, -1), (1, 2)))
    np.testing.assert_array_equal(Vec3.from_array(V).to_array(), V)
    np.testing.assert_array_equal(Vec3.from_array(V).to_array(axis=0), np.moveaxis(V, -1, 0))
    # Components need not be broadcast: the zeros of a skew matrix are plain numbers.
    np.testing.assert_allclose(Mat3.skew(Vec3.from_array(V)).to_array(), skew(V), **TIGHT)


def test_motion_cross_products(rng):
    v, m, f = random_motion(rng), random_motion(rng), random_force(rng)
    X = motion_cross(six(v))
    np.testing.assert_allclose(six(v.cross(m)), times(X, six(m)), **TIGHT)
    np.testing.assert_allclose(six(v.cross_force(f)), times(-np.swapaxes(X, -1, -2), six(f)), **TIGHT)
    np.testing.assert_allclose(m.dot(f), (six(m) * six(f)).sum(-1), **TIGHT)


def test_motion_and_force_cross_products_are_dual(rng):
    v, m, f = random_motion(rng), random_motion(rng), random_force(rng)
    np.testing.assert_allclose(v.cross(m).dot(f), -m.dot(v.cross_force(f)), **TIGHT)
    assert np.abs(v.cross(m).dot(f)).min() > 1e-3
    np.testing.assert_allclose(six(v.cross(v)), 0, atol=1e-14)


def test_jacobi_identity(rng):
    u, v, m = random_motion(rng), random_motion(rng), random_motion(rng)
    np.testing.assert_allclose(six(u.cross(v.cross(m)) - v.cross(u.cross(m))), six(u.cross(v).cross(m)), **TIGHT)


def test_changes_of_the_point_of_reference(rng):
    """The velocity of a displaced point gains `w x p`, and the power does not depend on the point."""
    v, f, p = random_motion(rng), random_force(rng), random_vec(rng)
    V, F, P = six(v), six(f), vec(p)
    moved = v.at(p)
    np.testing.assert_allclose(vec(moved.angular), V[:, :3], **TIGHT)
    np.testing.assert_allclose(vec(moved.linear), V[:, 3:] + np.cross(V[:, :3], P), **TIGHT)
    back = f.moved_from(p)
    np.testing.assert_allclose(vec(back.moment), F[:, :3] + np.cross(P, F[:, 3:]), **TIGHT)
    np.testing.assert_allclose(vec(back.force), F[:, 3:], **TIGHT)
    np.testing.assert_allclose(v.dot(back), moved.dot(f), **TIGHT)


def test_zeros():
    np.testing.assert_array_equal(six(Motion.zero()), np.zeros((*BATCH, 6)))
    np.testing.assert_array_equal(six(Force.zero()), np.zeros((*BATCH, 6)))


def test_inertia_apply_is_the_6x6_product(rng):
    inertia, v = random_inertia(rng), random_motion(rng)
    np.testing.assert_allclose(six(inertia.apply(v)), times(inertia6(inertia), six(v)), **TIGHT)


def test_inertia_from_parameters(rng):
    p = rng.normal(size=(*BATCH, 10))
    inertia = Inertia.from_parameters(p)
    np.testing.assert_array_equal(inertia.mass, p[:, 0])
    np.testing.assert_array_equal(vec(inertia.first_moment), p[:, 1:4])
    upper = sym(inertia.rotational)[:, [0, 0, 1, 0, 1, 2], [0, 1, 1, 2, 2, 2]]
    np.testing.assert_array_equal(upper, p[:, 4:])


def test_inertia_moved_is_the_congruence(rng):
    """`moved` is the congruence `I' = X^-T I X^-1` with the 6x6 transform `X` of motions."""
    inertia, pose = random_inertia(rng), Pose(random_rotation(rng), random_vec(rng))
    Xi = np.linalg.inv(motion_transform(mat(pose.rotation), vec(pose.translation)))
    expected = np.swapaxes(Xi, -1, -2) @ inertia6(inertia) @ Xi
    np.testing.assert_allclose(inertia6(inertia.moved(pose)), expected, rtol=1e-12, atol=1e-12)


def test_inertia_moved_there_and_back(rng):
    inertia, pose = random_inertia(rng), Pose(random_rotation(rng), random_vec(rng))
    back = inertia.moved(pose).moved(pose.inverse())
    np.testing.assert_allclose(inertia6(back), inertia6(inertia), rtol=1e-12, atol=1e-12)


def test_inertia_of_point_masses(rng):
    """The inertia of a cloud of points equals the directly summed moments before and after a motion of the cloud."""
    r, m = rng.normal(size=(8, 3)), rng.uniform(0.1, 1, 8)
    R, p = mat(random_rotation(rng))[0], rng.normal(size=3)

    def direct(r):
        J = sum(mk * (rk @ rk * np.eye(3) - np.outer(rk, rk)) for mk, rk in zip(m, r, strict=True))
        return np.array([m.sum(), *(m @ r), J[0, 0], J[0, 1], J[1, 1], J[0, 2], J[1, 2], J[2, 2]])

    moved = Inertia.from_parameters(direct(r)).moved(Pose(Mat3.from_array(R), Vec3.from_array(p)))
    expected = Inertia.from_parameters(direct(r @ R.T + p))
    np.testing.assert_allclose(inertia6(moved), inertia6(expected), rtol=1e-12, atol=1e-12)


def test_articulated_form(rng):
    inertia, v = random_inertia(rng), random_motion(rng)
    A = inertia.articulated()
    np.testing.assert_allclose(articulated6(A), inertia6(inertia), **TIGHT)
    np.testing.assert_allclose(six(A.apply(v)), six(inertia.apply(v)), **TIGHT)


def test_articulated_inertia_operations(rng):
    A = ArticulatedInertia(random_sym(rng), random_mat(rng), random_sym(rng))
    B = ArticulatedInertia(random_sym(rng), random_mat(rng), random_sym(rng))
    v, f, k = random_motion(rng), random_force(rng), rng.normal(size=BATCH)
    np.testing.assert_allclose(six(A.apply(v)), times(articulated6(A), six(v)), **TIGHT)
    np.testing.assert_allclose(articulated6(A + B), articulated6(A) + articulated6(B), **TIGHT)
    F = six(f)
    expected = articulated6(A) - k[:, None, None] * F[:, :, None] * F[:, None]
    np.testing.assert_allclose(articulated6(A.minus_outer(f, f * k)), expected, **TIGHT)


def test_elimination_of_a_joint(rng):
    """`IA - U U^T / D` with `U = IA S` and `D = S^T U` annihilates `S` and is symmetric."""
    root = rng.normal(size=(*BATCH, 6, 6))
    M = root @ np.swapaxes(root, -1, -2)

    def upper(B: np.ndarray) -> Sym3:
        return Sym3(*(B[:, i, j] for i, j in [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (2, 2)]))

    A = ArticulatedInertia(upper(M[:, :3, :3]), Mat3.from_array(M[:, :3, 3:]), upper(M[:, 3:, 3:]))
    np.testing.assert_allclose(articulated6(A), M, **TIGHT)
    S = random_motion(rng)
    U = A.apply(S)
    remainder = A.minus_outer(U, U * (1 / S.dot(U)))
    np.testing.assert_allclose(six(remainder.apply(S)), 0, atol=1e-11)
    np.testing.assert_allclose(articulated6(remainder), np.swapaxes(articulated6(remainder), -1, -2), atol=1e-13)


def test_pose_matches_homogeneous_matrices(rng):
    def homogeneous(X: Pose):
        M = np.zeros((*BATCH, 4, 4))
        M[:, :3, :3], M[:, :3, 3], M[:, 3, 3] = mat(X.rotation), vec(X.translation), 1
        return M

    X = Pose(random_rotation(rng), random_vec(rng))
    Y = Pose(random_rotation(rng), random_vec(rng))
    p = random_vec(rng)
    np.testing.assert_allclose(homogeneous(X.compose(Y)), homogeneous(X) @ homogeneous(Y), **TIGHT)
    np.testing.assert_allclose(homogeneous(X.inverse()), np.linalg.inv(homogeneous(X)), **TIGHT)
    np.testing.assert_allclose(homogeneous(Pose.identity().compose(X)), homogeneous(X), **TIGHT)
    ends = times(homogeneous(X), np.concatenate([vec(p), np.ones((*BATCH, 1))], axis=-1))[:, :3]
    np.testing.assert_allclose(vec(X.apply(p)), ends, **TIGHT)


def test_components_are_a_pytree_that_jit_and_grad_take(rng):
    inertia, v = random_inertia(rng), random_motion(rng)
    assert len(jax.tree.leaves(inertia)) == 10
    assert len(jax.tree.leaves(inertia.articulated())) == 21

    def kinetic_energy(inertia, v):
        return 0.5 * jnp.sum(v.dot(inertia.apply(v)))

    energy, momentum = jax.jit(jax.value_and_grad(kinetic_energy, argnums=1))(inertia, v)
    V = six(v)
    np.testing.assert_allclose(energy, 0.5 * (V * times(inertia6(inertia), V)).sum(), rtol=1e-12)
    # The gradient of the kinetic energy with respect to the velocity is the momentum.
    np.testing.assert_allclose(six(momentum), six(inertia.apply(v)), rtol=1e-12, atol=1e-12)


def test_single_precision_stays_single(rng):
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), (random_inertia(rng), random_motion(rng)))

    @jax.jit
    def f(inertia, v):
        moved = inertia.moved(Pose(Mat3.identity(), v.linear))
        return moved.apply(v), moved.articulated().minus_outer(moved.apply(v), moved.apply(v) * 0.5), v.cross(v)

    assert {leaf.dtype for leaf in jax.tree.leaves(f(*single))} == {np.dtype(np.float32)}
