"""Derivatives of a step with contact, by state, torque, inertia, law and geometry: forward, reverse and central
differences, where a contact sticks, slips, strikes, and where nothing touches."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import jaxdyn
from jaxdyn import ContactLaw, Contacts, ContactShape, State
from jaxdyn.geometry import Box, Plane, Sphere

CASES = ("stick", "slip", "impact", "flight")
HALF = 0.0524


def setting():
    """Return states of a cube, flat on the plane with different velocities, tilted and falling, and in the air."""
    q = np.tile([0.0, 0, HALF - 1e-4, 1, 0, 0, 0], (4, 1))
    v = np.zeros((4, 6))
    v[0, :2] = 2e-4, 1e-4
    v[1, :2], v[1, 5] = (0.5, 0.3), 1.0
    tilt = np.array([0.9, 0.3, 0.25, 0.1])
    q[2, 2:] = [0.07, *tilt / np.linalg.norm(tilt)]
    v[2] = [0.5, -0.2, -1.0, 1.0, 2.0, -3.0]
    q[3, 2] = 0.3
    v[3] = v[2]
    return q, v


@functools.cache
def problem():
    """Return a function from all numbers of a step, as one vector, to the state after it, and these vectors."""
    model = jaxdyn.samples.cube()
    law = ContactLaw(stiffness=5e3, dissipation=0.7, friction=0.4, stiction_velocity=1e-2)
    ball = ContactShape("cube", Sphere(0.01), (0.0, 0.0, -HALF + 0.01))
    contacts = Contacts(model, [ContactShape("cube", Box((HALF,) * 3)), ball], Plane((0.0, 0.0, 1.0), 0.0), law)
    q, v = setting()

    def numbers(q, v):
        return q, v, jnp.zeros(6), model.inertial_parameters, model.gravity, eqx.filter(contacts, eqx.is_array)

    unravel = ravel_pytree(numbers(q[0], v[0]))[1]
    vectors = np.stack([ravel_pytree(numbers(*x))[0] for x in zip(q, v, strict=True)])

    def after(x):
        q, v, tau, inertia, gravity, arrays = unravel(x)
        robot = eqx.tree_at(lambda m: (m.inertial_parameters, m.gravity), model, (inertia, gravity))
        touching = eqx.combine(arrays, contacts)
        state = jaxdyn.step(robot, State(q, v), tau, 5e-3, contacts=touching)
        return jnp.concatenate([state.q, state.v])

    return after, vectors


@pytest.mark.parametrize("case", range(4), ids=CASES)
def test_forward_reverse_and_differences_agree(case):
    vectors = problem()[1]
    x = jnp.asarray(vectors[case])
    forward, reverse, evaluate = derivatives()
    J = np.asarray(forward(x))
    np.testing.assert_allclose(J, reverse(x), rtol=1e-8, atol=1e-8 * np.abs(J).max(axis=1, keepdims=True).max())
    rng = np.random.default_rng(case)
    # Each number changes by a part of its size, so that those of 1e-4 and those of 1e4 count alike.
    sizes = np.maximum(np.abs(vectors[case]), 1e-3)
    for _ in range(4):
        direction = rng.normal(size=x.shape) * sizes
        h = 1e-6 if case != 0 else 1e-7
        difference = np.asarray(evaluate(x + h * direction) - evaluate(x - h * direction)) / (2 * h)
        np.testing.assert_allclose(J @ direction, difference, rtol=1e-5, atol=1e-5 * np.abs(difference).max())


@functools.cache
def derivatives():
    after = problem()[0]
    return jax.jit(jax.jacfwd(after)), jax.jit(jax.jacrev(after)), jax.jit(after)
