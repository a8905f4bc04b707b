"""Pairs of shapes: distances by MuJoCo, derivatives, and places where directions are not unique."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn.geometry import pair_witness_count, pair_witnesses
from jaxdyn.native._specialize import specialize
from jaxdyn.spatial import Pose
from tests.geometry.test_geometry import array_of, compare_derivatives, random_poses, rows

SHAPES = {
    "sphere": jaxdyn.Sphere(0.1),
    "capsule": jaxdyn.Capsule(0.1, 0.3),
    "box": jaxdyn.Box((0.2, 0.2, 0.2)),
    "cylinder": jaxdyn.Cylinder(0.2, 0.2),
    "points": jaxdyn.Points([[0, 0, 0], [0.2, 0.2, 0.2]]),
}
PAIRS = [
    ("sphere", "sphere"),
    ("sphere", "capsule"),
    ("sphere", "box"),
    ("sphere", "cylinder"),
    ("capsule", "capsule"),
    ("capsule", "box"),
    ("box", "box"),
]
QUARTER = np.sqrt(0.5)
UPRIGHT, ABOUT_X, ABOUT_Y = (1, 0, 0, 0), (QUARTER, QUARTER, 0, 0), (QUARTER, 0, QUARTER, 0)
ABOUT_Z = (np.cos(np.pi / 8), 0, 0, np.sin(np.pi / 8))
SINGULAR = {
    ("sphere", "sphere"): [(0, 0, 0, *UPRIGHT)],
    ("sphere", "capsule"): [(0, 0, z, *UPRIGHT) for z in (0, 0.2, 0.3, 0.5)],
    ("sphere", "box"): [
        (*x, *UPRIGHT) for x in [(0, 0, 0), (0, 0, 0.2), (0, 0.2, 0.2), (0.2, 0.2, 0.2), (0.1, 0.1, 0.1), (0, 0.1, 0.1)]
    ],
    ("sphere", "cylinder"): [
        (*x, *UPRIGHT) for x in [(0, 0, 0), (0, 0, 0.2), (0.2, 0, 0), (0.2, 0, 0.2), (0.1, 0, 0.1), (0, 0, 0.5)]
    ],
    ("capsule", "capsule"): [
        *[(*x, *UPRIGHT) for x in [(0, 0, 0), (0.2, 0, 0), (0.2, 0, 0.1), (0, 0, 0.6), (0, 0, 0.8)]],
        *[(0.2, 0, z, *q) for z in (0, 0.3) for q in (ABOUT_X, ABOUT_Y)],
        (0, 0, 0, *ABOUT_X),
    ],
    ("capsule", "box"): [
        *[(*x, *ABOUT_X) for x in [(0, 0, 0.3), (0.2, 0, 0.2), (0.25, 0, 0.25), (0, 0, 0)]],
        *[(*x, *UPRIGHT) for x in [(0, 0, 0), (0, 0, 0.6), (0.2, 0.2, 0.2)]],
    ],
    ("box", "box"): [
        *[(*x, *UPRIGHT) for x in [(0, 0, 0), (0, 0, 0.39), (0.1, 0.1, 0.39), (0.4, 0.4, 0), (0.4, 0.4, 0.4)]],
        (0, 0, 0.4, *ABOUT_Z),
    ],
    ("points", "sphere"): [(0, 0, 0, *UPRIGHT)],
    ("points", "box"): [(0, 0, 0, *UPRIGHT)],
}
SIZES = {"sphere": (0.1,), "capsule": (0.07, 0.3), "box": (0.1, 0.2, 0.3)}
OTHERS = {"sphere": (0.2,), "capsule": (0.12, 0.15), "box": (0.15, 0.25, 0.2), "cylinder": (0.2, 0.15)}


def of_arrays(kind1, kind2):
    """The witnesses of a pair as one array, of two poses and two tables of sizes."""

    def witnesses(pose1, pose2, sizes1, sizes2):
        poses = Pose.from_vector(pose1), Pose.from_vector(pose2)
        return array_of(pair_witnesses(kind1, sizes1, poses[0], kind2, sizes2, poses[1]))

    return witnesses


def shape_of(name: str, sizes: tuple[float, ...]):
    kind = type(SHAPES[name])
    return kind(sizes) if name == "box" else kind(*sizes)


def mujoco_distances(kinds, sizes, poses) -> np.ndarray:
    mujoco = pytest.importorskip("mujoco")
    body = "<body><freejoint/><geom type='{}' size='{}'/></body>"
    bodies = "".join(body.format(kind, " ".join(map(str, size))) for kind, size in zip(kinds, sizes, strict=True))
    model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{bodies}</worldbody></mujoco>")
    data, out = mujoco.MjData(model), []
    for pair in poses:
        data.qpos[:] = pair.ravel()
        mujoco.mj_kinematics(model, data)
        out.append(mujoco.mj_geomDistance(model, data, 0, 1, 100.0, np.zeros(6)))
    return np.array(out)


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_distances_by_mujoco(kinds):
    """The smallest gap of a pair. Where a capsule's axis is inside a box, the two measure other depths."""
    n, sizes = 300, (SIZES[kinds[0]], OTHERS[kinds[1]])
    one, two = (shape_of(kind, size) for kind, size in zip(kinds, sizes, strict=True))
    poses = np.stack([random_poses(n, 0.25), random_poses(n, 0.25)], axis=1)
    poses[..., 3:] /= np.linalg.norm(poses[..., 3:], axis=-1, keepdims=True)
    out = of_arrays(type(one), type(two))(poses[:, 0], poses[:, 1], rows(one, n), rows(two, n))
    counts = [x.sizes.shape[-1] for x in (one, two)]
    out = np.asarray(out).reshape(n, pair_witness_count(type(one), counts[0], type(two), counts[1]), 7)
    gap, expected = out[..., 0].min(axis=1), mujoco_distances(kinds, sizes, poses)
    # A gap of more than minus the radius is that of an axis outside the box.
    compared = {("capsule", "box"): gap > -sizes[0][0] + 1e-6, ("box", "box"): expected < 0.02}
    gap, expected = (x[compared.get(kinds, np.isfinite(gap))] for x in (gap, expected))
    assert (expected < 0).sum() > 5
    tolerance = {"capsule": 0.005 * sizes[0][0], "box": 0.02 * 0.1}.get(kinds[0], 0.0)
    differences = np.abs(gap - expected)
    assert differences.max() < tolerance + 1e-7
    assert np.median(differences) < 1e-8
    np.testing.assert_allclose(np.linalg.norm(out[..., 1:4], axis=-1), 1, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("sphere", "box")], ids="-".join)
def test_derivatives_are_finite_at_singular_places(kinds):
    check_singular(kinds, np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("kinds", SINGULAR, ids="-".join)
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "single"])
def test_derivatives_of_all_pairs_are_finite_at_singular_places(kinds, dtype):
    check_singular(kinds, dtype)


def check_singular(kinds, dtype):
    """Values, first and second derivatives are finite, and forward mode agrees with reverse mode."""
    shapes = [SHAPES[kind] for kind in kinds]
    poses = np.array(SINGULAR[kinds], float)
    n, rng = len(poses), np.random.default_rng(1)
    others = np.tile([0.0, 0, 0, 1, 0, 0, 0], (n, 1))
    args = [jnp.asarray(x, dtype) for x in (poses, others, rows(shapes[0], n), rows(shapes[1], n))]
    witnesses = of_arrays(*map(type, shapes))
    tangents = [jnp.asarray(rng.normal(size=x.shape), dtype) for x in args]
    out, forward = jax.jvp(witnesses, args, tangents)
    assert out.dtype == dtype
    weights = jnp.asarray(rng.normal(size=out.shape), dtype)

    def gradient(*x):
        return jax.vjp(witnesses, *x)[1](weights)

    backward, second = jax.jvp(gradient, args, tangents)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((out, forward, backward, second)))
    total = sum(float((x * y).sum()) for x, y in zip(backward, tangents, strict=True))
    scale = max(1.0, float(np.abs(forward).max()))
    np.testing.assert_allclose(
        float((forward * weights).sum()), total, atol=(1e-11 if dtype == np.float64 else 1e-3) * scale
    )


@pytest.mark.parametrize("first", ["sphere", pytest.param("capsule", marks=pytest.mark.slow)])
@pytest.mark.parametrize("second", [pytest.param("capsule", marks=pytest.mark.slow), "box"])
def test_derivatives(first, second):
    check_derivatives(first, second)


@pytest.mark.slow
def test_derivatives_of_boxes():
    check_derivatives("box", "box")


def check_derivatives(first, second):
    shapes = shape_of(first, SIZES[first]), shape_of(second, OTHERS[second])
    args = random_poses(4, 0.2), random_poses(4, 0.2), rows(shapes[0], 4), rows(shapes[1], 4)
    compare_derivatives(jax.jit(of_arrays(*map(type, shapes))), args)


@pytest.mark.parametrize("kinds", [*PAIRS, ("points", "box")], ids="-".join)
def test_pairs_have_native_programs(kinds):
    shapes = [SHAPES[kind] for kind in kinds]
    args = [*jnp.asarray(np.stack([random_poses(1), random_poses(1)])), rows(shapes[0], 1), rows(shapes[1], 1)]
    assert specialize(of_arrays(*map(type, shapes)), args, [False] * 4, 64).nodes


def test_the_other_order_has_the_opposite_normals():
    one, two, poses = SHAPES["box"], SHAPES["sphere"], random_poses(2)
    args = poses[:1], poses[1:], rows(one, 1), rows(two, 1)
    out = np.asarray(of_arrays(jaxdyn.Box, jaxdyn.Sphere)(*args))
    other = of_arrays(jaxdyn.Sphere, jaxdyn.Box)(*(args[i] for i in (1, 0, 3, 2)))
    np.testing.assert_allclose(out * [1, -1, -1, -1, 1, 1, 1], other, atol=1e-14)


@pytest.mark.slow
def test_batch_axes_are_those_of_vmap():
    one, two = SHAPES["capsule"], SHAPES["box"]
    poses = np.stack([random_poses(6), random_poses(6)]).reshape(2, 2, 3, 7)

    def witnesses(a, b):
        sizes = (
            jnp.broadcast_to(x.sizes[:, *(None,) * (a.ndim - 2)], (2, 2 + i, *(1,) * (a.ndim - 2)))
            for i, x in enumerate((one, two))
        )
        first, second = sizes
        out = pair_witnesses(type(one), first, Pose.from_vector(a), type(two), second, Pose.from_vector(b))
        return array_of(out)

    batched = jax.jit(witnesses)(*poses)
    np.testing.assert_allclose(batched, jax.jit(jax.vmap(witnesses, 1, 1))(*poses), atol=1e-13)


@pytest.mark.slow
def test_boxes_on_each_other_touch_all_around():
    """Boxes of one size, exactly aligned or shifted, touch with their faces, at places around the middle."""
    depth = 1e-3
    shifts = np.array(list(itertools.product([0, 0.1], [0, -0.15])))
    upper = np.concatenate([shifts, np.full((4, 1), 0.4 - depth), np.tile(UPRIGHT, (4, 1))], axis=1)
    lower, box = np.tile([0.0, 0, 0, *UPRIGHT], (4, 1)), SHAPES["box"]
    out = np.asarray(of_arrays(jaxdyn.Box, jaxdyn.Box)(lower, upper, rows(box, 4), rows(box, 4))).reshape(4, 13, 7)
    for places, shift in zip(out, shifts, strict=True):
        touching = places[places[:, 0] < -0.5 * depth]
        np.testing.assert_allclose(touching[:, 0], -depth, atol=1e-12)
        np.testing.assert_allclose(touching[:, 1:4], np.tile([0, 0, 1], (len(touching), 1)), atol=1e-12)
        corners = np.array(list(itertools.product([-1, 1], [-1, 1]))) * (0.2 - np.abs(shift) / 2) + shift / 2
        gaps = np.linalg.norm(touching[:, None, 4:6] - corners, axis=-1)
        assert (gaps.min(axis=0) < 1e-9).all(), "each corner of the overlap has a place"
        assert (gaps.min(axis=1) < 1e-9).all(), "and there is no other"


def test_pairs_without_contact_are_refused():
    pose = Pose.identity()
    with pytest.raises(jaxdyn.ModelError, match="Ellipsoid touches surfaces only"):
        pair_witnesses(jaxdyn.Ellipsoid, jnp.ones((1, 3)), pose, jaxdyn.Sphere, jnp.ones((1, 1)), pose)
    with pytest.raises(jaxdyn.ModelError, match="Cylinder has pairs with Sphere, Points only, not with Box"):
        pair_witness_count(jaxdyn.Box, 3, jaxdyn.Cylinder, 2)
    with pytest.raises(jaxdyn.ModelError, match=r"Points has pairs with .* only, not with Points"):
        pair_witness_count(jaxdyn.Points, 3, jaxdyn.Points, 3)
