"""Contacts against closed forms of mechanics, a fine solution of the law, and the minimum of the convex problem."""

import functools
import itertools

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp

import jaxdyn
from jaxdyn import BodyInertia, ContactLaw, ContactShape, Joint, ModelBuilder, State, World
from jaxdyn.geometry import Box, Plane, Points, Sphere
from jaxdyn.spatial import quaternion_to_rotation
from tests.contact.contact_oracle import one_body_step

G, DT = 9.81, 1e-3
LAW = ("stiffness", "dissipation", "friction", "stiction_velocity")


@functools.cache
def block():
    """A block of 1 kg that slides along x, y and z without turning, and touches at one point."""
    builder, parent = ModelBuilder(), "world"
    for name, axis in (("x", (1, 0, 0)), ("y", (0, 1, 0)), ("z", (0, 0, 1))):
        inertia = BodyInertia.box(1.0 if name == "z" else 0.0, (0.1, 0.1, 0.1))
        builder.add_body(name, parent, Joint("prismatic", axis=axis), inertia=inertia)
        parent = name
    return builder.build()


def on_a_surface(law, surface="ground", model=None):
    return World(block() if model is None else model, [ContactShape("z", Points(((0.0, 0.0, 0.0),)))], surface, law=law)


def moved(world, q, v, dt, steps):
    """Return the trajectory without actuators."""
    return world.with_timestep(dt).rollout(State(jnp.asarray(q), jnp.asarray(v)), steps=steps)


@pytest.mark.slow
def test_what_rests_sinks_by_its_weight_over_the_stiffness():
    stiffness = np.array([1e3, 1e4, 1e6])
    world = on_a_surface(ContactLaw(stiffness=stiffness, dissipation=1.0))
    motion = moved(world, np.zeros((3, 3)), np.zeros((3, 3)), DT, 3000)
    np.testing.assert_allclose(motion.q[:, -1, 2], -G / stiffness, rtol=1e-6)
    np.testing.assert_allclose(motion.v[:, -1], 0.0, atol=1e-7)


def test_a_block_on_an_incline_creeps_below_the_angle_of_friction_and_slides_above_it():
    angle, mu, creep = np.array([0.2, 0.4, 0.6, 0.8]), 0.5, 1e-4
    normal = np.stack([np.sin(angle), np.zeros(4), np.cos(angle)], -1)
    downhill = np.stack([np.cos(angle), np.zeros(4), -np.sin(angle)], -1)
    law = ContactLaw(stiffness=1e4, dissipation=0.5, friction=mu, stiction_velocity=creep)
    world = on_a_surface(law, Plane(normal, np.zeros(4)))
    depth = G * np.cos(angle) / 1e4
    steps = 400
    motion = moved(world, -depth[:, None] * normal, np.zeros((4, 3)), DT, steps)
    speed = (np.asarray(motion.v[:, -1]) * downhill).sum(-1)
    sticks = np.tan(angle) < mu
    expected = creep * np.tan(angle[sticks]) / np.sqrt(mu**2 - np.tan(angle[sticks]) ** 2)
    np.testing.assert_allclose(speed[sticks], expected, rtol=1e-6)
    # Above the angle the friction is mu N up to the square of creep over speed.
    acceleration = np.diff((np.asarray(motion.v) * downhill[:, None]).sum(-1), axis=1)[:, -1] / DT
    slides = G * (np.sin(angle) - mu * np.cos(angle))
    np.testing.assert_allclose(acceleration[~sticks], slides[~sticks], rtol=1e-6)


def bounced(dt, speed, dissipation):
    """Return the velocity after impacts of 1 kg on 1e4 N/m, whose loss does not depend on the weight here."""
    law = ContactLaw(stiffness=1e4, dissipation=dissipation)
    v = np.zeros((len(speed), 3))
    v[:, 2] = -speed
    weightless = eqx.tree_at(lambda m: m.gravity, block(), jnp.zeros(3))
    return np.asarray(moved(on_a_surface(law, model=weightless), np.zeros_like(v), v, dt, round(0.08 / dt)).v[:, -1, 2])


@pytest.mark.slow
def test_impacts_lose_what_hunt_and_crossley_say_to_first_order_in_the_step():
    speed, dissipation = np.array([0.1, 0.5, 1.0, 1.0]), np.array([0.5, 0.5, 0.5, 0.0])

    def exact(v0, d):
        def rate(_, x):
            depth, w = max(0.0, -x[0]), x[1]
            return [w, 1e4 * depth * max(0.0, 1 - d * w)]

        return solve_ivp(rate, (0, 0.08), [0.0, -v0], rtol=1e-10, atol=1e-13, max_step=1e-4).y[1, -1]

    reference = np.array([exact(*x) for x in zip(speed, dissipation, strict=True)])
    # The book's approximation for slow impacts.
    np.testing.assert_allclose(reference[0], 0.1 * (1 - 2 / 3 * 0.5 * 0.1), rtol=2e-3)
    coarse, fine = (bounced(dt, speed, dissipation) - reference for dt in (2e-4, 1e-4))
    assert (np.abs(fine) < 0.02 * speed).all()
    np.testing.assert_allclose(coarse / fine, 2.0, rtol=0.1)
    np.testing.assert_allclose(2 * fine - coarse, 0.0, atol=2e-3 * speed.max())


@functools.cache
def ball(joints):
    """A ball of 0.1 m and 1 kg; `joints`: `planar` in the vertical plane, or `free`."""
    joint = Joint("free") if joints == "free" else Joint("planar", axis=(0, -1, 0))
    return ModelBuilder().add_body("ball", joint=joint, inertia=BodyInertia.sphere(1.0, 0.1)).build()


def rolled(joints, dt):
    """Return the speed of a ball that slid at 1 m/s, long after it began to roll."""
    model = ball(joints)
    height = 0.1 - G / 1e5
    q = model.neutral().at[2 if joints == "free" else 1].set(height)
    v = jnp.zeros(model.nv).at[0].set(1.0)
    law = ContactLaw(stiffness=1e5, dissipation=1.0, friction=0.5)
    world = World(model, [ContactShape("ball", Sphere(0.1))], law=law)
    motion = moved(world, q, v, dt, round(0.3 / dt))
    return np.asarray(motion.q[-1, 0] - motion.q[-2, 0]) / dt


def test_a_sliding_ball_ends_rolling_at_five_sevenths_of_its_speed():
    np.testing.assert_allclose(rolled("planar", DT), 5 / 7, rtol=1e-6)


@pytest.mark.slow
def test_a_free_ball_rolls_at_five_sevenths_to_first_order_in_the_step():
    coarse, fine = (rolled("free", dt) - 5 / 7 for dt in (DT, DT / 2))
    assert abs(fine) < 0.01
    assert abs(fine) < 0.7 * abs(coarse) or abs(coarse) < 1e-6


def random_tosses(rng, count):
    """Return random states of the cube near the plane, and laws."""
    rotation = rng.normal(size=(count, 4))
    rotation /= np.linalg.norm(rotation, axis=-1, keepdims=True)
    q = np.concatenate([np.zeros((count, 2)), rng.uniform(0.04, 0.12, (count, 1)), rotation], -1)
    v = np.concatenate([rng.normal(size=(count, 3)), 5 * rng.normal(size=(count, 3))], -1)
    law = ContactLaw(
        stiffness=10 ** rng.uniform(3, 5, count),
        dissipation=rng.uniform(0, 2, count),
        friction=rng.uniform(0, 1.5, count),
        stiction_velocity=10 ** rng.uniform(-4, -2, count),
    )
    return q, v, law


def energies(model, trajectory, stiffness, gaps):
    """Return kinetic, gravitational and elastic energy, `[count, steps + 1]`."""
    elastic = 0.5 * stiffness[:, None] * (np.maximum(0.0, -gaps) ** 2).sum(-1)
    kinetic = jaxdyn.kinetic_energy(model, trajectory.q, trajectory.v)
    return np.asarray(kinetic + jaxdyn.potential_energy(model, trajectory.q)) + elastic


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_energy_never_rises(count):
    # Points without rotation: here the linear gap of the step is the gap, so every step loses energy.
    rng = np.random.default_rng(1)
    _, _, law = random_tosses(rng, count)
    q, v = np.zeros((count, 3)), rng.normal(size=(count, 3))
    q[:, 2] = rng.uniform(-0.01, 0.05, count)
    motion = moved(on_a_surface(law), q, v, DT, 200)
    stored = energies(block(), motion, np.asarray(law.stiffness), np.asarray(motion.q)[..., 2:])
    assert np.diff(stored, axis=1).max() < 1e-9


@functools.cache
def tumbling():
    """A cube of 0.1 m and 1 kg whose velocity is in world axes: on three slides and a ball joint."""
    builder, parent = ModelBuilder(), "world"
    for name, axis in (("x", (1, 0, 0)), ("y", (0, 1, 0)), ("z", (0, 0, 1))):
        builder.add_body(name, parent, Joint("prismatic", axis=axis), inertia=BodyInertia.sphere(1e-9, 0.01))
        parent = name
    return builder.add_body("cube", parent, Joint("ball"), inertia=BodyInertia.box(1.0, (0.1,) * 3)).build()


@pytest.mark.slow
@pytest.mark.parametrize("joints", ["slides", "free"])
def test_energy_never_rises_where_cubes_tumble(joints):
    q, v, law = random_tosses(np.random.default_rng(2), 100)
    model, half = ball("free") if joints == "free" else tumbling(), 0.05
    corners = half * np.array(list(itertools.product((-1, 1), repeat=3)))

    def gaps(q):
        upward = quaternion_to_rotation(q[..., 3:])[..., 2, :]
        return np.asarray(q[..., 2:3] + upward @ corners.T)

    q[:, 2] -= np.minimum(0.0, gaps(q).min(axis=-1))
    world = World(model, [ContactShape(model.body_names[-1], Box((half,) * 3))], law=law)
    motion = moved(world, q, v, DT, 300)
    assert motion.contact.converged.all()
    stored = energies(model, motion, np.asarray(law.stiffness), gaps(np.asarray(motion.q)))
    assert np.diff(stored, axis=1).max() < 1e-9
    assert (stored[:, -1] < stored[:, 0] - 0.1).mean() > 0.8


@pytest.mark.slow
def test_a_hopper_comes_to_rest_on_its_spring():
    model = jaxdyn.samples.hopper()
    world = World(model, jaxdyn.samples.hopper_shapes(), law=ContactLaw(stiffness=1e4))
    shortening, sinking = 10 * G / 1000, 11 * G / 1e4
    q = np.array([0.0, 1 - shortening - sinking + 1e-3, 0.0, 0.0, shortening])
    motion = moved(world, q, np.zeros(5), 5e-3, 2000)
    np.testing.assert_allclose(motion.q[-1], [0, 1 - shortening - sinking, 0, 0, shortening], atol=1e-5)


def test_the_pads_of_the_gripper_are_as_far_apart_as_it_says():
    model, shapes = jaxdyn.samples.gripper(), jaxdyn.samples.gripper_shapes()
    wall = Plane((0.0, -1.0, 0.0), -0.05)
    gap = World(model, shapes, wall).contact_forces(State(np.array([0.3, 0.01, 0.0]))).gap
    # The free space of the wall y = 0.05 is at smaller y; the spheres reach 0.02 m beyond the pads.
    np.testing.assert_allclose(gap, [0.05 - 0.08, 0.05 - 0.08, 0.05 + 0.07, 0.05 + 0.07], atol=1e-12)


def test_a_step_is_the_minimum_of_the_convex_problem():
    # SciPy minimizes the problem of each step, written with dense matrices.
    rng, count = np.random.default_rng(0), 12
    q, v, law = random_tosses(rng, count)
    model, half = ball("free"), 0.05
    world = World(model, [ContactShape("ball", Box((half,) * 3))], law=law, timestep=5e-3)
    state = world.step(State(jnp.asarray(q), jnp.asarray(v)))
    touching = 0
    for i in range(count):
        numbers = [float(np.asarray(getattr(law, name))[i]) for name in LAW]
        expected, touches = one_body_step(q[i], v[i], 1.0, 0.004 * np.eye(3), half, 5e-3, *numbers)
        np.testing.assert_allclose(state.v[i], expected, rtol=1e-6, atol=1e-6)
        touching += touches
    assert touching >= 4


def test_newtons_method_converges_where_sliding_corners_begin_to_stick():
    # The friction changes its sign within 1e-4 to 1e-2 m/s here, and within a small part of Newton's step.
    q, v, law = random_tosses(np.random.default_rng(0), 3000)
    model = ball("free")
    world = World(model, [ContactShape("ball", Box((0.05,) * 3))], law=law)
    motion = moved(world, q, v, 5e-3, 1)
    assert motion.contact.converged.all()
    assert motion.contact.iterations.max() > 5
