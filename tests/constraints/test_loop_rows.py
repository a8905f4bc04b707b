"""The equations of loops and couplings: their Jacobian and its rate, against derivatives of the errors."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from tests.loop_robots import bias, close_four_bar, forest_with_loops, four_bar, rows_of


@functools.cache
def state():
    model = forest_with_loops()
    q = np.asarray(model.random_configuration(jax.random.key(3)))
    v, a = np.asarray(jax.random.normal(jax.random.key(4), (2, model.nv)))
    assert model.topology.nc == 3 * 19 + 2
    return model, q, v, a


@pytest.mark.slow
def test_rows_are_derivatives_of_the_errors():
    """In a forest of all joint types, for all kinds of loops within a tree, between trees and to the world. The errors
    along `integrate` are differentiated by central differences of the sixth order."""
    model, q, v, _ = state()
    h, weights = 1e-2, np.array([-1, 9, -45, 45, -9, 1]) / 60
    t = np.array([-3, -2, -1, 1, 2, 3]) * h
    path = model.integrate(np.broadcast_to(q, (6, model.nq)), t[:, None] * v)
    rate = weights @ np.asarray(jaxdyn.constraint_error(model, path)) / h
    exact = ~rows_of(model, "weld", slice(3, 6))
    J, *along = np.asarray(jaxdyn.constraint_jacobian(model, np.concatenate([q[None], path])))
    assert J.shape == (model.topology.nc, model.nv)
    np.testing.assert_allclose((J @ v)[exact], rate[exact], atol=1e-8 * np.abs(rate).max())
    # The constraints' own accelerations at a = 0, in the dynamics, are the rate of J v at constant v.
    rate = weights @ (np.array(along) @ v) / h
    np.testing.assert_allclose(bias(model, q, v), rate, atol=1e-8 * np.abs(rate).max())


@pytest.mark.slow
def test_rows_are_derivatives_of_the_errors_by_forward_mode():
    """For free and ball joints, `integrate(q, t v + t^2 a / 2)` has the velocity `v + t a` up to the second order, so
    the second rate is `J a + gamma`."""
    model, q, v, a = state()

    def error(t):
        return jaxdyn.constraint_error(model, model.integrate(q, t * v + 0.5 * t * t * a))

    def rate(t):
        return jax.jvp(error, (t,), (jnp.ones_like(t),))

    (_, first), (_, second) = jax.jit(lambda t: jax.jvp(rate, (t,), (jnp.ones_like(t),)))(jnp.zeros(()))
    exact = ~rows_of(model, "weld", slice(3, 6))
    J = np.asarray(jaxdyn.constraint_jacobian(model, q))
    np.testing.assert_allclose((J @ v)[exact], first[exact], atol=1e-12)
    np.testing.assert_allclose((J @ a + bias(model, q, v))[exact], second[exact], atol=1e-10)


@pytest.mark.parametrize("kind", ["connect", "revolute"])
def test_errors_of_a_closed_four_bar_are_zero(kind):
    assert np.abs(jaxdyn.constraint_error(four_bar(kind), close_four_bar(0.6))).max() < 1e-12


@pytest.mark.slow
def test_errors_and_rows_of_batches():
    model = forest_with_loops()
    q = model.random_configuration(jax.random.key(5), (6,)).reshape((2, 3, model.nq))
    for function in (jaxdyn.constraint_error, jaxdyn.constraint_jacobian):
        many = function(model, q)
        np.testing.assert_allclose(many[1, 2], function(model, q[1, 2]), atol=1e-12)


def test_followers_move_the_loops_of_their_leaders():
    """The rows of a model with a joint that mimics another are those of its spanning tree, times the map of joints."""
    builder = jaxdyn.ModelBuilder()
    inertia = jaxdyn.BodyInertia.box(1.0, (0.1, 0.2, 0.3))
    builder.add_body("a", "world", jaxdyn.Joint(name="a"), inertia=inertia)
    builder.add_body("b", "a", jaxdyn.Joint(name="b", mimic=jaxdyn.Mimic("a", -2.0, 0.1)), (0.3, 0, 0), inertia)
    builder.add_loop("rod", "distance", "b", "world", (0.2, 0.1, 0), (1.0, 0, 0), length=0.8)
    builder.add_coupling("held", "b", None, (0.4,))
    model = builder.build()
    q = np.array([0.3])
    on_tree = jaxdyn.constraint_jacobian(model.spanning_tree(), model.spanning_configuration(q))
    np.testing.assert_allclose(jaxdyn.constraint_jacobian(model, q), on_tree @ np.array([[1.0], [-2.0]]), atol=1e-14)
    assert jaxdyn.constraint_error(model, q)[1] == pytest.approx(-2 * 0.3 + 0.1 - 0.4)
