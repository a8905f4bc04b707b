"""Gaps, normals and points of shapes against surfaces, compared with samples of the shapes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn.geometry import surface_witnesses
from jaxdyn.native._specialize import specialize
from jaxdyn.spatial import Pose, Vec3, transform_points

RNG = np.random.default_rng(0)
SHAPES = {
    "sphere": jaxdyn.Sphere(0.11),
    "capsule": jaxdyn.Capsule(0.07, 0.2),
    "box": jaxdyn.Box((0.1, 0.2, 0.15)),
    "ellipsoid": jaxdyn.Ellipsoid((0.1, 0.25, 0.15)),
    "points": jaxdyn.Points(RNG.normal(size=(5, 3))),
}
GRID = 0.05 * RNG.normal(size=(6, 7))


def distance_from_ball(radius, x):
    return jnp.sqrt(x @ x) - radius


SURFACES = {
    "plane": jaxdyn.Plane((0.2, -0.4, 1.3), 0.3),
    "terrain": jaxdyn.HeightField(GRID, 0.5, (-1.2, -1.4, 0.1)),
    "ball": jaxdyn.SignedDistance(distance_from_ball, 0.7),
}


def rows(shape, n: int):
    """The sizes of `n` equal shapes."""
    return jnp.broadcast_to(shape.sizes, (n, *shape.sizes.shape))


def samples(shape, count: int = 40) -> np.ndarray:
    """Points of a shape's surface, among them its extreme ones."""
    directions = RNG.normal(size=(count**2, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    match shape:
        case jaxdyn.Sphere():
            return np.asarray(shape.radius) * directions
        case jaxdyn.Capsule():
            ends = np.sign(directions[:, 2:]) * [0, 0, 1] * np.asarray(shape.half_length)
            return ends + np.asarray(shape.radius) * directions
        case jaxdyn.Box():
            inside = RNG.uniform(-1, 1, (count**2, 3))
            corners = np.stack(np.meshgrid(*[[-1, 1]] * 3), axis=-1).reshape(8, 3)
            return np.concatenate([corners, inside]) * np.asarray(shape.half_sizes)
        case jaxdyn.Ellipsoid():
            return np.asarray(shape.semi_axes) * directions
        case jaxdyn.Points():
            return np.asarray(shape.positions)
    raise AssertionError(shape)


def random_poses(n: int, scale: float = 0.5) -> np.ndarray:
    poses = RNG.normal(size=(n, 7))
    poses[:, :3] *= scale
    return poses


def array_of(witness) -> jax.Array:
    """`[n, 7]`: gap, normal, point."""
    return jnp.concatenate([witness.gap[..., None], witness.normal.to_array(), witness.point.to_array()], axis=-1)


@functools.partial(jax.jit, static_argnums=0)
def against(kind, sizes, poses, surface):
    return array_of(surface_witnesses(kind, sizes, Pose.from_vector(poses), surface))


@pytest.mark.parametrize("name", SHAPES)
def test_a_plane_meets_the_lowest_of_many_samples(name):
    shape, plane, poses = SHAPES[name], SURFACES["plane"], random_poses(6)
    normal = np.asarray(plane.normal) / np.linalg.norm(plane.normal)
    out = np.asarray(against(type(shape), rows(shape, 6), poses, plane)).reshape(6, -1, 7)
    assert out.shape[1] == shape.witness_count(shape.sizes.shape[-1])
    points = transform_points(poses[:, None], samples(shape, 200))
    lowest = (points @ normal).min(axis=1) - float(plane.offset)
    gap = out[..., 0].min(axis=1)
    assert (gap <= lowest + 1e-12).all()
    np.testing.assert_allclose(gap, lowest, atol=2e-3)
    np.testing.assert_allclose(out[..., 1:4], np.broadcast_to(normal, (*out.shape[:2], 3)), atol=1e-14)
    np.testing.assert_allclose(out[..., 4:] @ normal - float(plane.offset), out[..., 0], atol=1e-13)


@pytest.mark.parametrize("name", SHAPES)
def test_witnesses_have_native_programs(name):
    """Only operations that native code has; also the derivatives."""
    shape = SHAPES[name]

    def outputs(sizes, poses, normal, offset):
        w = surface_witnesses(type(shape), sizes, Pose.from_vector(poses), jaxdyn.Plane(normal, offset))
        return jax.tree.leaves(w)

    args = rows(shape, 2), jnp.asarray(random_poses(2)), jnp.asarray([0.0, 0.6, 0.8]), jnp.asarray(0.1)
    assert specialize(outputs, args, [False] * 4, 64).nodes
    assert specialize(jax.jacrev(outputs, argnums=(0, 1, 2, 3)), args, [False] * 4, 64).nodes


def test_far_from_the_origin():
    """A surface with another origin loses no digits."""
    origin, pose = (
        np.array([4096.0, -8192.0, 1.0]),
        Pose.from_vector(jnp.asarray([[0, 0, 0.3, 1, 0, 0, 0]], np.float32)),
    )
    plane = jaxdyn.Plane((0.0, 0.6, 0.8), np.float32(0.6 * -8192 + 0.8))
    near = plane.shifted(Vec3(*origin.astype(np.float32)))
    gap = surface_witnesses(jaxdyn.Sphere, jnp.full((1, 1), 0.1, jnp.float32), pose, near).gap
    np.testing.assert_allclose(gap, [0.8 * 0.3 - 0.1], atol=2e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: jaxdyn.Sphere(-1.0), "Sphere: `radius` is -1"),
        (lambda: jaxdyn.Sphere(np.nan), "Sphere: `radius`"),
        (lambda: jaxdyn.Sphere("big"), "Sphere: `radius`"),
        (lambda: jaxdyn.Capsule(0.1, np.inf), "Capsule: `half_length`"),
        (lambda: jaxdyn.Box((1, 2)), "Box: `half_sizes` has shape"),
        (lambda: jaxdyn.Box((1, 2, -3)), "Box: `half_sizes`"),
        (lambda: jaxdyn.Ellipsoid((1, 2, 0)), "Ellipsoid: `semi_axes`"),
        (lambda: jaxdyn.Points((1, 2, 3)), "Points: `positions`"),
        (lambda: jaxdyn.Points(np.zeros((0, 3))), "Points: `positions`"),
        (lambda: jaxdyn.Points([[0, 0, np.nan]]), "Points: `positions`"),
        (lambda: jaxdyn.Plane((0, 0, 0)), "Plane: `normal` is zero"),
        (lambda: jaxdyn.Plane((0, 0)), "Plane: `normal` has shape"),
        (lambda: jaxdyn.Plane(offset=np.nan), "Plane: `offset`"),
        (lambda: jaxdyn.HeightField(np.zeros((1, 5)), 0.1), "2 x 2 nodes"),
        (lambda: jaxdyn.HeightField(np.zeros((3, 5)), 0.0), "HeightField: `spacing`"),
        (lambda: jaxdyn.HeightField(np.zeros((3, 5)), (1, 2, 3)), "HeightField: `spacing`"),
        (lambda: jaxdyn.HeightField(np.zeros((3, 5)), 0.1, interpolation="bilinear"), "interpolation"),
        (lambda: jaxdyn.SignedDistance(3.0), "SignedDistance: `function`"),
    ],
)
def test_bad_sizes_are_refused_by_name(make, message):
    with pytest.raises(jaxdyn.JaxdynError, match=message):
        make()
