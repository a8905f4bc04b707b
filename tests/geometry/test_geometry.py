"""Gaps, normals and points of shapes against surfaces, compared with samples of the shapes."""

import functools
import itertools

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
    "cylinder": jaxdyn.Cylinder(0.15, 0.1),
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
    return np.broadcast_to(shape.sizes, (n, *shape.sizes.shape))


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
        case jaxdyn.Cylinder():
            rim = directions[:, :2] / np.linalg.norm(directions[:, :2], axis=1, keepdims=True)
            radius, height = np.asarray(shape.radius), np.asarray(shape.half_length) * np.sign(directions[:, 2:])
            return np.concatenate([radius * rim, height], axis=1)
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


def compare_derivatives(function, args) -> None:
    """Forward mode, reverse mode and central differences along a direction agree."""
    rng = np.random.default_rng(2)
    args = [np.asarray(x) for x in args]
    tangents = [rng.normal(size=x.shape) for x in args]
    weights = rng.normal(size=jax.eval_shape(function, *args).shape)

    @jax.jit
    def computed(args, tangents):
        return *jax.jvp(function, args, tangents), jax.vjp(function, *args)[1](weights)

    _, forward, backward = computed(args, tangents)
    h = 1e-6
    ends = [
        np.asarray(computed([x + way * h * t for x, t in zip(args, tangents, strict=True)], tangents)[0])
        for way in (-1, 1)
    ]
    scale = max(1.0, float(np.abs(forward).max()))
    np.testing.assert_allclose(forward, (ends[1] - ends[0]) / (2 * h), atol=1e-7 * scale)
    total = sum(np.vdot(x, y) for x, y in zip(backward, tangents, strict=True))
    np.testing.assert_allclose((np.asarray(forward) * weights).sum(), total, rtol=1e-9, atol=1e-9 * scale)


@functools.partial(jax.jit, static_argnums=0)
def against(kind, sizes, poses, surface):
    return array_of(surface_witnesses(kind, sizes, Pose.from_vector(poses), surface))


@jax.jit
def distance_at(surface, points) -> jax.Array:
    return surface.distance(Vec3.from_array(points))[0]


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


CHEAP = [("ellipsoid", "plane"), ("sphere", "ball")]
REST = [pair for pair in itertools.product(SHAPES, SURFACES) if pair not in CHEAP]


@pytest.mark.parametrize(("name", "surface"), [*CHEAP, *(pytest.param(*x, marks=pytest.mark.slow) for x in REST)])
def test_derivatives(name, surface):
    shape, structure = SHAPES[name], jax.tree.structure(SURFACES[surface])
    numbers = jax.tree.leaves(SURFACES[surface])

    def outputs(sizes, poses, *numbers):
        surface = jax.tree.unflatten(structure, numbers)
        return array_of(surface_witnesses(type(shape), sizes, Pose.from_vector(poses), surface))

    compare_derivatives(outputs, [rows(shape, 2), random_poses(2), *numbers])


@pytest.mark.slow
def test_a_cylinder_stands_and_its_forces_do_not_depend_on_the_places_on_the_rim():
    """Upright, and tilted by less and by more than the angle below which the places are fixed to the body: values and
    derivatives are finite, and springs at the places have the same force and torque to first order in the tilt."""
    cylinder, plane = SHAPES["cylinder"], jaxdyn.Plane()
    sizes = jnp.asarray(rows(cylinder, 1))
    radius, half = (float(x) for x in (cylinder.radius, cylinder.half_length))

    def springs(tilt, twist):
        """The force and the horizontal torque of springs of 1 N/m at the places, and the lowest gap."""
        (a, b), c, s = tilt / 2, jnp.cos(twist / 2), jnp.sin(twist / 2)
        pose = jnp.stack([0, 0, half - 0.01, c, a * c + b * s, b * c - a * s, s])
        found = surface_witnesses(jaxdyn.Cylinder, sizes, Pose.from_vector(pose[None]), plane)
        push = jnp.maximum(-found.gap, 0)
        torque = (found.point.y * push).sum(), -(found.point.x * push).sum()
        return jnp.stack([push.sum(), *torque, found.gap.min()])

    tilts = np.array([[0, 0], [1e-10, 0], [1e-6, 0], [0, -1e-5], [3e-6, 4e-6]])
    # Springs with the force 0.01 N each, whose middle moves below the center.
    stiff = 1.5 * radius**2 - 0.03 * half

    @jax.jit
    def derivatives(x, twist):
        return (
            jax.vmap(lambda y: springs(y, twist))(x),
            jax.vmap(jax.jacrev(lambda y: springs(y, twist)[:3]))(x),
            jax.jacfwd(jax.jacrev(lambda y: springs(y, twist)))(x[0]),
        )

    for twist in (0.0, 0.7):
        value, slope, second = derivatives(tilts, twist)
        assert np.isfinite(second).all()
        np.testing.assert_allclose(value[:, 0], 0.03, atol=1e-9)
        np.testing.assert_allclose(value[:, 1:3], -stiff * tilts, atol=1e-9)
        np.testing.assert_allclose(slope[:, 0], 0, atol=1e-4)
        np.testing.assert_allclose(slope[:, 1:], np.tile(-stiff * np.eye(2), (5, 1, 1)), atol=1e-4)
        np.testing.assert_allclose(value[2:, 3], -0.01 - radius * np.linalg.norm(tilts[2:], axis=1), rtol=1e-9)


@pytest.mark.parametrize("surface", [pytest.param("terrain", marks=pytest.mark.slow), "ball"])
@pytest.mark.parametrize("name", ["sphere", "ellipsoid"])
def test_round_shapes_on_curved_surfaces(name, surface):
    """The gap is that of the nearest of many samples of the shape, for shapes that touch."""
    shape, curved = SHAPES[name], SURFACES[surface]
    if surface == "terrain":
        curved = jaxdyn.HeightField(0.2 * GRID, 0.5, (-1.2, -1.4, 0.1))
    poses = random_poses(8, 0.7)
    for _ in range(3):
        # Along the normal until they overlap by 1 mm.
        start = np.asarray(against(type(shape), rows(shape, 8), poses, curved))
        poses[:, :3] -= (start[:, :1] + 1e-3) * start[:, 1:4]
    out = np.asarray(against(type(shape), rows(shape, 8), poses, curved))
    points = transform_points(poses[:, None], samples(shape, 150))
    distances = np.asarray(distance_at(curved, points))
    near = np.abs(out[:, 0]) < 0.01
    # The steps for the ellipsoid's normal converge slowly where it is nearly as flat as the surface.
    tolerance = 2e-4 if name == "sphere" else 1e-3
    assert near.sum() > 4
    np.testing.assert_allclose(out[near, 0], distances.min(axis=1)[near], atol=tolerance)
    at_point = np.asarray(distance_at(curved, out[:, 4:]))
    np.testing.assert_allclose(out[near, 0], at_point[near], atol=tolerance)


@pytest.mark.parametrize("interpolation", [pytest.param("cubic", marks=pytest.mark.slow), "linear"])
def test_a_height_field_passes_through_its_nodes_and_is_exact_for_a_slope(interpolation):
    x, y = np.meshgrid(0.5 * np.arange(6) - 1.2, 0.25 * np.arange(7) - 1.4, indexing="ij")
    field = jaxdyn.HeightField(GRID, (0.5, 0.25), (-1.2, -1.4, 0.1), interpolation)
    nodes = np.stack([x, y, GRID + 0.1], axis=-1)
    np.testing.assert_allclose(distance_at(field, nodes), 0, atol=1e-14)
    slope = jaxdyn.HeightField(0.3 * x - 0.2 * y, (0.5, 0.25), (-1.2, -1.4, 0.0), interpolation)
    plane, pose = jaxdyn.Plane((-0.3, 0.2, 1.0)), np.array([[0.3, -0.7, 0.4, 1, 0, 0, 0]])
    for shape in (SHAPES["sphere"], SHAPES["ellipsoid"]):
        expected = against(type(shape), rows(shape, 1), pose, plane)
        np.testing.assert_allclose(against(type(shape), rows(shape, 1), pose, slope), expected, atol=1e-13)


def test_height_fields_with_batch_axes():
    heights, poses = np.stack([GRID, 2 * GRID]), random_poses(2)
    points = np.repeat(poses[:, None, :3], 2, axis=1)
    distance = np.asarray(distance_at(jaxdyn.HeightField(heights, 0.5, (-1.2, -1.4, 0.0)), points))
    for k in range(2):
        single = jaxdyn.HeightField(heights[k], 0.5, (-1.2, -1.4, 0.0))
        np.testing.assert_allclose(distance[:, k], distance_at(single, points[:, k]), atol=1e-15)


def test_the_vertices_of_a_mesh(tmp_path):
    trimesh = pytest.importorskip("trimesh")
    inside = trimesh.creation.box((0.5, 0.5, 0.5))
    mesh = trimesh.util.concatenate([trimesh.creation.box((1, 2, 3)), inside])
    mesh.export(tmp_path / "box.stl")
    points = jaxdyn.Points.of_mesh(tmp_path / "box.stl", scale=0.1)
    corners = np.stack(np.meshgrid([-0.05, 0.05], [-0.1, 0.1], [-0.15, 0.15], indexing="ij"), axis=-1).reshape(8, 3)
    np.testing.assert_allclose(np.unique(np.round(points.positions, 9), axis=0), corners, atol=1e-7)
    assert len(jaxdyn.Points.of_mesh(tmp_path / "box.stl", hull=False).positions) == 16
    with pytest.raises(jaxdyn.ModelError, match="cannot be read"):
        jaxdyn.Points.of_mesh(tmp_path / "none.stl")


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
        (lambda: jaxdyn.Cylinder(0.1, -1.0), "Cylinder: `half_length`"),
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
