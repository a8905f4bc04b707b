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
from jaxdyn import ContactLaw, ContactShape, State, World
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
    shapes, plane = [ContactShape("cube", Box((HALF,) * 3)), ball], Plane((0.0, 0.0, 1.0), 0.0)
    world = World(model, shapes, plane, law=law, timestep=5e-3)
    q, v = setting()

    def numbers(q, v):
        arrays = eqx.filter(world.parts.touching, eqx.is_array)
        return q, v, jnp.zeros(6), model.inertial_parameters, model.gravity, arrays

    unravel = ravel_pytree(numbers(q[0], v[0]))[1]
    vectors = np.stack([ravel_pytree(numbers(*x))[0] for x in zip(q, v, strict=True)])

    def after(x):
        q, v, tau, inertia, gravity, arrays = unravel(x)
        robot = eqx.tree_at(lambda m: (m.inertial_parameters, m.gravity), model, (inertia, gravity))
        touching = eqx.combine(arrays, world.parts.touching)
        changed = eqx.tree_at(lambda w: (w.model, w.parts.touching), world, (robot, touching))
        state = changed.step(State(q, v), torque=tau)
        return jnp.concatenate([state.q, state.v])

    return after, vectors


@pytest.mark.slow
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


def tumbling_cube(law: ContactLaw):
    """Return the cube of Paulus et al., Hard contacts with soft gradients, 2025, on a plane, and a function from its
    vertical speed to its state at the start: half a width of 0.05 m, 0.1 kg, gravity of 2 m/s^2, turned by 60 degrees
    about x, at a height of 0.2 m. It falls on an edge and tumbles."""
    inertia = jaxdyn.BodyInertia.box(0.1, (0.1, 0.1, 0.1))
    model = jaxdyn.ModelBuilder().add_body("cube", "world", jaxdyn.Joint("free"), inertia=inertia).build()
    model = eqx.tree_at(lambda m: m.gravity, model, jnp.asarray([0.0, 0.0, -2.0]))
    world = World(model, [ContactShape("cube", Box((0.05,) * 3))], law=law)
    c, s = np.cos(np.pi / 3), np.sin(np.pi / 3)
    q = jnp.asarray([0, 0, 0.2, np.cos(np.pi / 6), np.sin(np.pi / 6), 0, 0])

    def start(speed):
        # Velocities are in the axes of the cube.
        v = jnp.concatenate([jnp.stack([0 * speed, -0.1 * c + s * speed, 0.1 * s + c * speed]), jnp.zeros(3)])
        return State(q, v)

    return world, start


def tumbled(dt: float, law: ContactLaw):
    """Return a function from the vertical speed of `tumbling_cube` at the start to its place `y` after 1 s."""
    world, start = tumbling_cube(law)

    def place(speed):
        return world.with_timestep(dt).rollout(start(speed), steps=round(1 / dt)).q[-1, 1]

    return place


@pytest.mark.slow
def test_gradients_of_a_tumbling_cube_are_those_of_its_steps():
    """Gradients of roll-outs are the slopes of what the steps compute, to 1e-4, at any step. As the step shrinks they
    tend to that of the motion, as slowly as the steps do: 3 % from it at 1e-4 s, and a factor of 2 at 1e-3 s, where the
    place itself is 0.1 m off after several impacts on edges."""
    law, found = ContactLaw(stiffness=4e3, dissipation=0.2, friction=1.0, stiction_velocity=0.01), {}
    for dt in (1e-2, 1e-3, 1e-4):
        place = tumbled(dt, law)
        forward, evaluate = jax.jit(jax.jacfwd(place)), jax.jit(place)
        found[dt] = float(forward(-2.0))
        # Creases of a coarse step are close to each other.
        h = {1e-2: 1e-8, 1e-3: 1e-6, 1e-4: 1e-6}[dt]
        difference = float(evaluate(-2.0 + h) - evaluate(-2.0 - h)) / (2 * h)
        np.testing.assert_allclose(found[dt], difference, rtol=1e-4)
    # Differences at steps of 1e-5 s say 0.3107.
    np.testing.assert_allclose(found[1e-4], 0.3107, rtol=0.03)


@pytest.mark.slow
def test_forward_and_reverse_mode_agree_over_a_tumble():
    law = ContactLaw(stiffness=4e3, dissipation=0.2, friction=1.0, stiction_velocity=0.01)
    place = tumbled(1e-3, law)
    forward, reverse = jax.jit(jax.jacfwd(place))(-2.0), jax.jit(jax.grad(place))(-2.0)
    np.testing.assert_allclose(forward, reverse, rtol=1e-8)
