"""Configurations and velocities that satisfy closed loops."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn._status import Status
from jaxdyn.constraints import proximal_solve
from tests.loop_robots import close_four_bar, four_bar


@pytest.mark.parametrize("kind", ["connect", "revolute"])
def test_a_four_bar_is_assembled(kind):
    model = four_bar(kind)
    exact = np.stack([close_four_bar(theta) for theta in (0.4, 1.2, -2.0)])
    guess = exact + np.random.default_rng(0).normal(size=exact.shape) * 0.1
    found = jaxdyn.project_configuration(model, guess)
    assert (found.status == Status.CONVERGED).all()
    assert found.error.max() < 1e-12
    # The triangles of the plane close it with the crank that was found.
    np.testing.assert_allclose(found.q, [close_four_bar(theta) for theta in np.asarray(found.q)[:, 0]], atol=1e-11)
    far = jaxdyn.project_configuration(model, model.random_configuration(jax.random.key(0), (20,)))
    assert (far.status == Status.CONVERGED).all()
    assert far.error.max() < 1e-12


def test_what_cannot_close_is_said():
    builder = jaxdyn.ModelBuilder()
    rod = jaxdyn.BodyInertia.rod(1.0, (0, 0, 0), (1, 0, 0))
    builder.add_body("rod", "world", jaxdyn.Joint(axis=(0, 1, 0)), inertia=rod)
    model = builder.add_loop("tip", "connect", "rod", "world", (1, 0, 0), (2.0, 0, 1.0)).build()
    found = jaxdyn.project_configuration(model, np.array([0.3]))
    assert found.status == Status.STALLED
    assert found.error > 0.5
    assert jaxdyn.project_configuration(model, np.array([np.nan])).status == Status.DIVERGED
    bare = jaxdyn.ModelBuilder().add_body("rod").add_loop("tip", "connect", "rod", "world", (1, 0, 0), (1.0, 0, 0))
    with pytest.raises(jaxdyn.ModelError, match="project_configuration needs inertias"):
        jaxdyn.project_configuration(bare.build(kinematics_only=True), np.array([0.3]))
    with pytest.raises(jaxdyn.ModelError, match="tolerance"):
        jaxdyn.project_configuration(model, np.array([0.3]), tolerance=-1.0)


def test_projected_velocity_is_the_nearest_in_the_metric_of_the_mass_matrix():
    model, q = four_bar("revolute"), close_four_bar(0.7)
    v = np.random.default_rng(0).normal(size=(5, 3))
    J, M = np.asarray(jaxdyn.constraint_jacobian(model, q)), np.asarray(jaxdyn.crba(model, q))
    N = np.linalg.svd(J)[2][2:].T
    nearest = (N @ np.linalg.solve(N.T @ M @ N, N.T @ M @ v.T)).T
    np.testing.assert_allclose(jaxdyn.project_velocity(model, q, v), nearest, atol=1e-12)
    tree = model.without_loops()
    np.testing.assert_array_equal(jaxdyn.project_velocity(tree, q, v), v)
    np.testing.assert_array_equal(jaxdyn.project_configuration(tree, q).q, q)


@pytest.mark.slow
def test_derivatives_of_the_assembly():
    """By the guess and the place of the pin, against differences."""
    model, q = four_bar(), close_four_bar(0.7)

    def assembled(guess, x):
        placement = model.loop_placement2.at[0, 0].add(x)
        return jaxdyn.project_configuration(dataclasses.replace(model, loop_placement2=placement), guess).q

    by_guess, by_x = jax.jit(jax.jacfwd(assembled, (0, 1)))(q, 0.0)
    reverse = jax.jit(jax.jacrev(assembled, (0, 1)))(q, 0.0)
    np.testing.assert_allclose(by_guess, reverse[0], atol=1e-10)
    np.testing.assert_allclose(by_x, reverse[1], atol=1e-10)
    h = 1e-5
    np.testing.assert_allclose(by_x, (assembled(q, h) - assembled(q, -h)) / (2 * h), atol=1e-6)
    columns = [(assembled(q + h * e, 0.0) - assembled(q - h * e, 0.0)) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(by_guess, jnp.stack(columns, axis=1), atol=1e-6)


def test_small_eigenvalues_cost_no_accuracy():
    """Of equations that say the same twice, and nearly the same: the solution of least norm."""
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    eigenvalues = np.array([1.0, 0.7, 0.5, 0.2, 1e-10, 0.0])
    A, x = (Q * eigenvalues) @ Q.T, Q[:, :5] @ rng.normal(size=(5, 2))
    # The equations are scaled to a unit diagonal, so the least norm is that of the scaled unknowns.
    scale = 1 / np.sqrt(np.diag(A))
    A = A * scale * scale[:, None]
    eigenvalues, Q = np.linalg.eigh(A)
    x = Q[:, 1:] @ (Q[:, 1:].T @ x)
    np.testing.assert_allclose(jax.jit(proximal_solve)(A, A @ x), x, atol=1e-5)
