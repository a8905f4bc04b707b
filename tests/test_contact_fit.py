"""Fits to roll-outs with contact recover the law, the shapes and the plane."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import Capsule, ContactLaw, Contacts, ContactShape, ModelError, Plane, Points, Sphere, State, UnknownNameError
from jaxdyn.sysid import (
    Additive,
    ContactNumbers,
    ContactPlacement,
    ContactPlane,
    ContactSizes,
    InertiaScale,
    Parametrization,
    Positive,
    Recording,
    Robot,
    RolloutFit,
    RolloutFitOptions,
    fit_rollouts,
    rollout_errors,
)

DT = 5e-3
POSITION, VELOCITY = 1e-3, 1e-2
TRUE = {"stiffness": 2e3, "dissipation": 0.4, "friction": 0.3}
WRONG = {"stiffness": 3e3, "dissipation": 0.2, "friction": 0.2}
HEIGHT = 0.01


def law(**numbers) -> ContactLaw:
    return ContactLaw(**{**TRUE, "stiction_velocity": 0.02, **numbers})


@functools.cache
def block() -> jaxdyn.Model:
    """A block of 1 kg that moves in a vertical plane and does not turn."""
    builder, parent = jaxdyn.ModelBuilder(), "world"
    for name, axis in (("x", (1, 0, 0)), ("z", (0, 0, 1))):
        inertia = jaxdyn.BodyInertia.box(1.0 if name == "z" else 0.0, (0.1, 0.1, 0.1))
        builder.add_body(name, parent, jaxdyn.Joint("prismatic", axis=axis), inertia=inertia)
        parent = name
    return builder.build()


def scene(height: float = 0.0, **numbers) -> Robot:
    plane = Plane((0.0, 0.0, 1.0), height)
    contacts = Contacts(block(), [ContactShape("z", Sphere(0.0))], plane, law(**numbers))
    return Robot(block(), contacts=contacts)


def recorded(robot: Robot, *, above: float = 0.05, noise: float = 0.0, seed: int = 0, n: int = 121) -> Recording:
    """A throw: the block bounces and slides, and comes to rest."""
    start = State(jnp.array([0.0, above]), jnp.array([0.8, 0.0]))
    tau = np.zeros((n, 2))
    motion = jaxdyn.rollout(robot.model, start, tau[:-1], DT, contacts=robot.contacts)
    rng = np.random.default_rng(seed)
    q, v = (np.asarray(x, np.float64) for x in (motion.q, motion.v))
    q, v = q + noise * POSITION * rng.standard_normal(q.shape), v + noise * VELOCITY * rng.standard_normal(v.shape)
    return Recording(DT * np.arange(n), q, v, None, tau)


@functools.cache
def free() -> Parametrization:
    return Parametrization(scene(**WRONG), ContactNumbers(list(TRUE)), ContactPlane(tilt=False))


def fit(recording: Recording, parametrization: Parametrization | None = None, **options) -> RolloutFit:
    """With common settings, so that most tests share one compiled program."""
    return fit_rollouts(
        free() if parametrization is None else parametrization,
        recording,
        segment=0.15,
        position_noise=POSITION,
        velocity_noise=VELOCITY,
        options=RolloutFitOptions(**{"matching": 0.02, **options}),
    )


def numbers(robot: Robot) -> jax.Array:
    laws = robot.contacts.laws
    return jnp.append(jnp.stack([getattr(laws, name)[0] for name in TRUE]), robot.contacts.surface.offset)


EXPECTED = np.array([*TRUE.values(), HEIGHT])


def test_the_law_and_the_height_of_the_plane_are_recovered():
    recording = recorded(scene(HEIGHT))
    out = fit(recording)
    assert out.converged, out.message
    assert out.unsolved == 0
    np.testing.assert_allclose(numbers(out.robot), EXPECTED, rtol=1e-4)
    assert out.undetermined == ()
    assert out.intervals().names == (
        *(f"{name} of contacts" for name in ("dissipation", "friction", "stiffness")), "contacts.surface.offset"
    ) or set(out.intervals().names) == {*(f"{name} of contacts" for name in TRUE), "contacts.surface.offset"}  # fmt: skip
    # The robot that was identified predicts a roll-out over the whole recording.
    errors = [rollout_errors(robot, recording, 0.6, every=1.0).rmse()[0] for robot in (out.before, out.robot)]
    assert errors[1] < 1e-5 < 1e-2 < errors[0]


def test_intervals_contain_the_truth():
    inside = []
    for seed in range(8):
        out = fit(recorded(scene(HEIGHT), noise=1.0, seed=seed))
        assert out.converged, out.message
        _, low, high = out.interval(numbers, level=0.95)
        inside += list((low <= EXPECTED) & (EXPECTED <= high))
    assert np.mean(inside) > 0.8, inside
    np.testing.assert_allclose(out.position_noise, POSITION, rtol=0.2)


def test_a_flight_says_nothing_of_contacts():
    out = fit(recorded(scene(HEIGHT), above=50.0))
    assert out.undetermined == free().names
    assert "log friction of contacts" in str(out)
    assert "undetermined" in str(out)
