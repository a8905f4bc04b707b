"""Distances between capsules are compared with MuJoCo, their derivatives with automatic ones."""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ModelError, ShapeError
from jaxdyn.trajopt import AbstractResidual, Capsule, ClearanceResidual, ModelDynamics
from jaxdyn.trajopt.problem import closest_points

CAPSULES = (
    ("lower", Capsule((0, 0, 0), (-0.01, 0.02, -0.2), 0.03)),
    ("tip", Capsule((0, 0, -0.1), (0, 0.02, 0), 0.05)),
)


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
    nearest = jax.tree.map(np.asarray, jax.jit(jax.vmap(closest_points))(*np.moveaxis(ends, 1, 0)))
    ours = np.linalg.norm(nearest.first - nearest.second, axis=1) - radii.sum(axis=1)
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
    p1, q1, p2, q2 = (np.array(x, dtype) for x in (*first, *second))
    nearest = jax.tree.map(np.asarray, jax.jit(closest_points)(p1, q1, p2, q2))
    assert float(np.linalg.norm(nearest.first - nearest.second)) == pytest.approx(distance, abs=1e-6)
    assert nearest.first.dtype == dtype


@pytest.mark.slow
def test_derivatives_and_order(dynamics):
    """Analytic derivatives of distances to the world's obstacles and to the robot's own parts equal JAX's."""
    obstacles = [Capsule.sphere((0.3, 0.3, 0.4), 0.1), ("upper", Capsule((0.1, 0, -0.1), (0, 0, 0), 0.02))]
    residual = ClearanceResidual(CAPSULES, obstacles)
    x = jnp.asarray(np.random.default_rng(1).uniform(-1, 1, 4))
    value, by_x, by_u = jax.jit(lambda x: residual.linearize(dynamics, x, None, 0))(x)
    generic = jax.jit(lambda x: AbstractResidual.linearize(residual, dynamics, x, None, 0))(x)
    assert value.shape == (4,)
    assert by_u is None
    np.testing.assert_allclose(value, generic.value, rtol=1e-12)
    np.testing.assert_allclose(by_x, generic.by_x, atol=1e-12)
    assert float(jnp.abs(by_x).max()) > 0.05
    alone = jax.jit(lambda x: ClearanceResidual(CAPSULES[1:], obstacles[1:])(dynamics, x, None, 0))(x)
    np.testing.assert_allclose(alone, value[3:])


def test_mistakes_are_named():
    with pytest.raises(ModelError, match="at least one capsule and one obstacle"):
        ClearanceResidual(CAPSULES, [])
    with pytest.raises(ModelError, match="pairs of a frame's name"):
        ClearanceResidual([CAPSULES[0][1]], [CAPSULES[0][1]])
    with pytest.raises(ShapeError, match="the end of a capsule"):
        Capsule((0, 0, 0), (0, 0), 0.1)
