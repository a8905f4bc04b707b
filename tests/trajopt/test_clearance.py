"""Distances between capsules, spheres and boxes are compared with MuJoCo, their derivatives with automatic ones."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import jaxdyn
from jaxdyn import Box, Capsule, ContactShape, Cylinder, ModelError, ShapeError, Sphere
from jaxdyn.geometry import pair_witnesses
from jaxdyn.spatial import Pose
from jaxdyn.trajopt import AbstractResidual, ClearanceResidual, ModelDynamics

CAPSULES = (
    ContactShape("lower", *Capsule.between((0, 0, 0), (-0.01, 0.02, -0.2), 0.03)),
    ContactShape("tip", *Capsule.between((0, 0, -0.1), (0, 0.02, 0), 0.05)),
)


def rows(pairs, dtype=float):
    """Sizes and poses of some capsules, each given as the results of `Capsule.between`."""
    sizes, placements = np.array([x.sizes for x, _ in pairs], dtype), np.array([pose for _, pose in pairs], dtype)
    return jnp.asarray(sizes), Pose.from_vector(jnp.asarray(placements))


@jax.jit
def capsule_gaps(one, two):
    return pair_witnesses(Capsule, *one, Capsule, *two, "nearest").gap


@pytest.fixture(scope="module")
def dynamics():
    return ModelDynamics(jaxdyn.samples.double_pendulum(), 0.01)


def test_distances_are_those_of_mujoco():
    """Distances between capsules and spheres in general position equal MuJoCo's."""
    rng = np.random.default_rng(0)
    ends = rng.uniform(-1, 1, (20, 4, 3))
    radii = rng.uniform(0.02, 0.08, (20, 2))
    # Spheres are segments of zero length.
    ends[:4, 1], ends[2:6, 3] = ends[:4, 0], ends[2:6, 2]
    sides = [[Capsule.between(*ends[i, k : k + 2], radii[i, k // 2]) for i in range(20)] for k in (0, 2)]
    ours = np.asarray(capsule_gaps(*map(rows, sides)))
    for i in range(20):
        geoms = ""
        for j in range(2):
            a, b, r = ends[i, 2 * j], ends[i, 2 * j + 1], radii[i, j]
            text = " ".join(map(repr, map(float, (*a, *b))))
            place = f'type="capsule" fromto="{text}"' if (a != b).any() else f'pos="{" ".join(map(str, a))}"'
            geoms += f'<body><geom {place} size="{r}" mass="1"/></body>'
        model = mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{geoms}</worldbody></mujoco>")
        data = mujoco.MjData(model)
        mujoco.mj_forward(model, data)
        assert ours[i] == pytest.approx(mujoco.mj_geomDistance(model, data, 0, 1, 10.0, None), abs=1e-6)


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        # The segments are parallel, in a row, crossing, or one is a point on the other.
        ([(0, 0, 0), (1, 0, 0)], [(0.2, 1, 0), (3, 1, 0)], 1.0),
        ([(0, 0, 0), (1, 0, 0)], [(3, 0, 0), (2, 0, 0)], 1.0),
        ([(-1, 0, 0), (1, 0, 0)], [(0, -1, 0), (0, 1, 0)], 0.0),
        ([(0.5, 0, 0), (0.5, 0, 0)], [(0, 0, 0), (1, 0, 0)], 0.0),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_special_positions(first, second, distance, dtype):
    gap = capsule_gaps(*(rows([Capsule.between(*ends, 0.1)], dtype) for ends in (first, second)))
    assert float(gap[0]) == pytest.approx(distance - 0.2, abs=1e-6)
    assert gap.dtype == dtype


@pytest.mark.slow
def test_derivatives_and_order(dynamics):
    """Analytic derivatives of distances to the world's obstacles and to the robot's own parts equal JAX's."""
    obstacles = [
        ContactShape("world", Sphere(0.1), (0.3, 0.3, 0.4)),
        ContactShape("upper", *Capsule.between((0.1, 0, -0.1), (0, 0, 0), 0.02)),
        ContactShape("world", Box((0.1, 0.2, 0.1)), (-0.4, 0.1, 0.3, 0.9, 0.1, 0.3, 0.2)),
    ]
    residual = ClearanceResidual(CAPSULES, obstacles)
    x = jnp.asarray(np.random.default_rng(1).uniform(-1, 1, 4))
    value, by_x, by_u = jax.jit(lambda x: residual.linearize(dynamics, x, None, 0))(x)
    generic = jax.jit(lambda x: AbstractResidual.linearize(residual, dynamics, x, None, 0))(x)
    assert value.shape == (6,)
    assert by_u is None
    np.testing.assert_allclose(value, generic.value, rtol=1e-12)
    np.testing.assert_allclose(by_x, generic.by_x, atol=1e-12)
    assert float(jnp.abs(by_x).max()) > 0.05
    alone = jax.jit(lambda x: ClearanceResidual(CAPSULES[1:], obstacles[1:])(dynamics, x, None, 0))(x)
    np.testing.assert_allclose(alone, value[4:])


def test_distances_to_a_box(dynamics):
    """A capsule beside, above and through a box; the distance is that of its nearest point."""
    box = ContactShape("world", Box((0.2, 0.3, 0.1)), (1.0, 0.0, 0.0))
    for start, end, distance in (
        ((1.5, -0.1, 0.0), (1.3, 0.1, 0.0), 0.1),
        ((0.7, 0.0, 0.25), (1.3, 0.0, 0.25), 0.15),
        ((1.0, 0.0, -1.0), (1.0, 0.0, 1.0), -0.1),
    ):
        capsule = ContactShape("world", *Capsule.between(start, end, 0.05))
        (value,) = ClearanceResidual([capsule], [box])(dynamics, jnp.zeros(4), None, 0)
        assert float(value) == pytest.approx(distance - 0.05, abs=1e-9)


def test_mistakes_are_named(dynamics):
    with pytest.raises(ModelError, match="at least one shape and one obstacle"):
        ClearanceResidual(CAPSULES, [])
    with pytest.raises(ModelError, match=r"one of its obstacles is no jaxdyn\.ContactShape"):
        ClearanceResidual(CAPSULES, [Sphere(0.1)])
    with pytest.raises(ModelError, match="Cylinder has pairs with Sphere only, not with Capsule"):
        ClearanceResidual(CAPSULES, [ContactShape("world", Cylinder(0.1, 0.2))])
    with pytest.raises(ShapeError, match=r"Capsule\.between: `end`"):
        Capsule.between((0, 0, 0), (0, 0), 0.1)
    with pytest.raises(ShapeError, match="placement of the Sphere on 'world'"):
        ClearanceResidual(CAPSULES, [ContactShape("world", Sphere(0.1), (0.0, 0.0))])
