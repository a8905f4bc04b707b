"""The equations of loops and couplings: their Jacobian and its rate, against JAX's derivatives of the errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from loop_robots import close_four_bar, forest_with_loops, four_bar

import jaxdyn


@jax.jit
def along_motion(model, q, v, a):
    """The errors along a motion with velocity `v` and acceleration `a` at `q`: value, rate and second rate."""

    def error(t):
        return jaxdyn.constraint_error(model, model.integrate(q, t * v + 0.5 * t * t * a))

    def rate(t):
        return jax.jvp(error, (t,), (jnp.ones_like(t),))

    (value, first), (_, second) = jax.jvp(rate, (jnp.zeros(()),), (jnp.ones(()),))
    return value, first, second


def test_rows_are_derivatives_of_the_errors():
    """In a forest of all joint types, for all kinds of loops within a tree, between trees and to the world.

    For free and ball joints, `integrate(q, t v + t^2 a / 2)` has the velocity `v + t a` up to the second order, so the
    second rate is `J a + gamma`.
    """
    model = forest_with_loops()
    q = np.asarray(model.random_configuration(jax.random.key(3)))
    v, a = np.asarray(jax.random.normal(jax.random.key(4), (2, model.nv)))
    J = np.asarray(jaxdyn.constraint_jacobian(model, q))
    assert J.shape == (model.topology.nc, model.nv) == (3 * 19 + 2, model.nv)
    _, first, second = along_motion(model, q, v, a)
    exact = rows_without_welds(model)
    np.testing.assert_allclose((J @ v)[exact], first[exact], atol=1e-12)
    # The accelerations of the loops themselves: with forces that leave nothing free, J a + gamma is zero.
    gamma = np.asarray(second) - J @ a
    np.testing.assert_allclose(rates_by_forward_dynamics(model, q, v)[exact], gamma[exact], atol=1e-10)


def rows_without_welds(model):
    rows = np.ones(model.topology.nc, bool)
    for loop, start in zip(model.topology.loops, model.topology.loop_starts, strict=False):
        rows[start + 3 : start + 6] &= loop.kind != "weld"
    return rows


def rates_by_forward_dynamics(model, q, v):
    """`gamma`, from the rows that the recursions make."""
    from jaxdyn.algorithms.recursions import algorithm, constraint_rows, equations_and_velocities, kinematics

    def gamma(robot, q, v):
        at = kinematics(robot, q)
        equations, moving = equations_and_velocities(robot, *at, v)
        return constraint_rows(robot, q, at, v, moving, equations.c).gamma

    from jaxdyn._types import Array, Configuration, Float, Velocity
    from jaxdyn.algorithms.recursions import Robot

    gamma.__annotations__ = {"robot": Robot, "q": Configuration, "v": Velocity, "return": Float[Array, "*batch nc"]}
    return np.asarray(algorithm()(gamma)(model, q, v))


@pytest.mark.parametrize("kind", ["connect", "revolute", "weld"])
def test_errors_of_a_closed_four_bar_are_zero(kind):
    q = close_four_bar(0.6)
    error = np.asarray(jaxdyn.constraint_error(four_bar(kind), q))
    assert np.abs(error[:3]).max() < 1e-12
    assert np.abs(error[3:5]).max(initial=0) < 1e-12 or kind == "weld"


def test_errors_and_rows_of_batches():
    model = forest_with_loops()
    q = model.random_configuration(jax.random.key(5), (2, 3))
    for function in (jaxdyn.constraint_error, jaxdyn.constraint_jacobian):
        many = function(model, q)
        np.testing.assert_allclose(many[1, 2], function(model, q[1, 2]), atol=1e-12)
