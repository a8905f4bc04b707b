"""Log-Cholesky coordinates: a bijection with the physical inertial parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, ModelError, ShapeError
from jaxdyn.sysid import (
    inertial_parameters_from_log_cholesky,
    inertial_parameters_from_pseudo_inertia,
    is_physical,
    log_cholesky_factor,
    log_cholesky_from_inertial_parameters,
    nearest_physical,
    pseudo_inertia,
)


def random_theta(seed: int, n: int, size: float = 1.0) -> np.ndarray:
    return size * np.random.default_rng(seed).standard_normal((n, 10))


def parameters_of_points(masses: np.ndarray, points: np.ndarray) -> np.ndarray:
    """The ten parameters of point masses, summed by definition."""
    out = np.zeros(10)
    for m, r in zip(masses, points, strict=True):
        I = m * (r @ r * np.eye(3) - np.outer(r, r))
        out += [m, *(m * r), I[0, 0], I[0, 1], I[1, 1], I[0, 2], I[1, 2], I[2, 2]]
    return out


def test_pseudo_inertia_is_the_second_moment_of_the_mass():
    rng = np.random.default_rng(0)
    masses, points = rng.uniform(0.1, 1, 6), rng.standard_normal((6, 3))
    homogeneous = np.column_stack([points, np.ones(6)])
    expected = np.einsum("i,ij,ik->jk", masses, homogeneous, homogeneous)
    parameters = parameters_of_points(masses, points)
    np.testing.assert_allclose(pseudo_inertia(parameters), expected, atol=1e-12)
    np.testing.assert_allclose(inertial_parameters_from_pseudo_inertia(expected), parameters, atol=1e-12)


def test_the_factor_is_triangular_and_squares_to_the_pseudo_inertia():
    theta = random_theta(1, 20)
    U = np.asarray(log_cholesky_factor(theta))
    assert np.all(np.tril(U, -1) == 0)
    assert np.all(np.diagonal(U, axis1=-2, axis2=-1) > 0)
    parameters = inertial_parameters_from_log_cholesky(theta)
    np.testing.assert_allclose(pseudo_inertia(parameters), U @ U.swapaxes(-1, -2), rtol=1e-12, atol=1e-12)


def test_mass_and_center_of_mass_are_what_the_coordinates_say():
    theta = random_theta(2, 5)
    parameters = np.asarray(inertial_parameters_from_log_cholesky(theta))
    np.testing.assert_allclose(parameters[:, 0], np.exp(2 * theta[:, 0]))
    np.testing.assert_allclose(parameters[:, 1:4] / parameters[:, :1], theta[:, 7:], atol=1e-12)


def test_round_trips():
    theta = random_theta(3, 200)
    parameters = inertial_parameters_from_log_cholesky(theta)
    np.testing.assert_allclose(log_cholesky_from_inertial_parameters(parameters), theta, atol=1e-8)
    arm = jaxdyn.samples.arm().inertial_parameters
    back = inertial_parameters_from_log_cholesky(log_cholesky_from_inertial_parameters(arm))
    np.testing.assert_allclose(back, arm, rtol=1e-12, atol=1e-14)


def test_random_coordinates_are_physical():
    parameters = np.asarray(inertial_parameters_from_log_cholesky(random_theta(4, 2000, 1.5)))
    assert np.all(is_physical(parameters))
    # By definition the principal moments about the center of mass obey the triangle inequality.
    for p in parameters[:200]:
        c = p[1:4] / p[0]
        I = np.array([[p[4], p[5], p[7]], [p[5], p[6], p[8]], [p[7], p[8], p[9]]])
        moments = np.linalg.eigvalsh(I - p[0] * (c @ c * np.eye(3) - np.outer(c, c)))
        assert moments[0] > 0
        assert moments[0] + moments[1] > moments[2] * (1 - 1e-9)


@pytest.mark.slow
def test_single_precision():
    theta = random_theta(5, 100, 0.5).astype(np.float32)
    parameters = inertial_parameters_from_log_cholesky(theta)
    assert parameters.dtype == np.float32
    assert np.all(is_physical(parameters))
    np.testing.assert_allclose(log_cholesky_from_inertial_parameters(parameters), theta, atol=2e-4)


def test_gradients():
    theta = jnp.asarray(random_theta(6, 1)[0])
    forward = jax.jit(jax.jacfwd(inertial_parameters_from_log_cholesky))(theta)
    reverse = jax.jit(jax.jacrev(inertial_parameters_from_log_cholesky))(theta)
    np.testing.assert_allclose(forward, reverse, atol=1e-12)
    h = 1e-6
    steps = h * np.eye(10)
    central = (
        inertial_parameters_from_log_cholesky(theta + steps) - inertial_parameters_from_log_cholesky(theta - steps)
    ) / (2 * h)
    np.testing.assert_allclose(forward, central.T, rtol=1e-6, atol=1e-7)
    inverse = jax.jit(jax.jacfwd(log_cholesky_from_inertial_parameters))(inertial_parameters_from_log_cholesky(theta))
    np.testing.assert_allclose(inverse @ forward, np.eye(10), atol=1e-8)


@pytest.mark.parametrize(
    ("parameters", "physical"),
    [
        (BodyInertia.box(1.0, (0.1, 0.2, 0.3)).parameters(), True),
        (BodyInertia(1.0, (3.0, 0, 0), (0.1, 0.1, 0.1)).parameters(), True),
        (BodyInertia(1.0, (0, 0, 0), (1.0, 1.0, 2.5)).parameters(), False),  # triangle inequality
        (BodyInertia(1.0, (0, 0, 0), (1.0, 1.0, -0.1)).parameters(), False),
        (-BodyInertia.sphere(1.0, 0.1).parameters(), False),
        (np.zeros(10), False),
        (np.full(10, np.nan), False),
        (np.array([1.0, 1.0, 0, 0, 0.1, 0, 0.1, 0, 0, 0.1]), False),  # first moment too large for the inertia
    ],
)
def test_is_physical(parameters, physical):
    assert bool(is_physical(parameters)) is physical
    if not physical:
        with pytest.raises(ModelError, match="nearest_physical"):
            log_cholesky_from_inertial_parameters(parameters)


def test_not_physical_is_nan_under_jit():
    parameters = BodyInertia(1.0, (0, 0, 0), (1.0, 1.0, 2.5)).parameters()
    assert np.isnan(jax.jit(log_cholesky_from_inertial_parameters)(parameters)).any()


def test_constants_under_jit():
    parameters = BodyInertia.box(1.0, (0.1, 0.2, 0.3)).parameters()
    constant = jax.jit(lambda: log_cholesky_from_inertial_parameters(parameters))()
    np.testing.assert_allclose(constant, log_cholesky_from_inertial_parameters(parameters), rtol=1e-12)


def test_the_error_says_which_body():
    both = np.stack([BodyInertia.sphere(1.0, 0.1).parameters(), np.zeros(10)])
    with pytest.raises(ModelError, match=r"\(1,\)"):
        log_cholesky_from_inertial_parameters(both)


def test_nearest_physical():
    rng = np.random.default_rng(7)
    bad = np.concatenate([rng.standard_normal((50, 10)), np.zeros((1, 10))])
    good = np.asarray(nearest_physical(bad, margin=0.02))
    assert np.all(is_physical(good))
    heavy = bad[:, 0] > 1e-3
    np.testing.assert_allclose(good[heavy, :4], bad[heavy, :4], atol=1e-12)
    # The lower bound holds about the center of mass, and a second projection changes nothing.
    J = np.asarray(pseudo_inertia(good))
    c = J[:, :3, 3] / J[:, 3, 3, None]
    spread = J[:, :3, :3] / J[:, 3, 3, None, None] - c[:, :, None] * c[:, None, :]
    assert np.all(np.linalg.eigvalsh(spread) > 0.999 * 0.02**2)
    np.testing.assert_allclose(nearest_physical(good, margin=0.0199), good, atol=1e-12)
    box = BodyInertia.box(1.0, (0.1, 0.2, 0.3)).parameters()
    np.testing.assert_array_equal(nearest_physical(box), box)


def test_shapes_are_checked():
    for function in (pseudo_inertia, is_physical, nearest_physical, inertial_parameters_from_log_cholesky):
        with pytest.raises(ShapeError, match="10"):
            function(np.zeros(9))
