"""Fits to roll-outs of robots with closed loops, whose passive joints are not measured."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, DataError, Joint, ModelBuilder, ModelError, State
from jaxdyn.simulate.integrators import closed
from jaxdyn.sysid import (
    InertiaScale,
    LinkLength,
    Parametrization,
    Placement,
    Positive,
    Recording,
    RolloutFitOptions,
    fit_fleet,
    fit_rollouts,
    rollout_errors,
)
from jaxdyn.sysid.rollouts._recorded_rollouts import Measured, cut_recordings
from jaxdyn.sysid.rollouts._rollout_fit import shooting_problem
from jaxdyn.sysid.rollouts._shooting import displace, first_state, linearize, residuals
from tests.loop_robots import DRIVES, close_four_bar, five_bar, four_bar

NOISE = 1e-4


@functools.cache
def coupled_pendulums() -> jaxdyn.Model:
    """Two pendulums whose ends a rod without mass joins."""
    builder, y = ModelBuilder(), functools.partial(Joint, axis=(0.0, 1.0, 0.0), damping=0.1)
    builder.add_body("one", "world", y(name="one"), inertia=BodyInertia.rod(1.0, (0, 0, 0), (0.4, 0, 0)))
    builder.add_body("two", "world", y(name="two"), (0.6, 0, 0), BodyInertia.rod(1.5, (0, 0, 0), (0.5, 0, 0)))
    return builder.add_loop("rod", "distance", "one", "two", (0.4, 0, 0), (0.5, 0, 0), length=0.7).build()


def swinging() -> Recording:
    """The first pendulum's angle after the robot was let go."""
    model, dt = coupled_pendulums(), 0.01
    q = jaxdyn.project_configuration(model, np.array([0.6, 0.9])).q
    run = jaxdyn.rollout(model, State(q, np.zeros(2)), np.zeros((60, 2)), dt, integrator="semi_implicit_euler")
    return Recording(dt * np.arange(61), run.q[:, :1], tau=np.zeros((61, 1)), joints=("one",), assembly=np.asarray(q))


@pytest.mark.slow
def test_derivatives_of_the_projection():
    """By states whose loops are open, and by the place of the pin: forward and reverse, against differences."""
    model, q = four_bar(), close_four_bar(0.7) + np.array([0.01, -0.02, 0.015])

    def projected(x):
        place = model.loop_placement2.at[0, 0].add(x[-1])
        after = closed(dataclasses.replace(model, loop_placement2=place), State(x[:3], x[3:6]))
        return jnp.concatenate([after.q, after.v])

    x, eye, h = jnp.concatenate([q, jnp.array([1.0, -2.0, 0.5, 0.0])]), jnp.eye(7), 1e-5
    forward, reverse, up, down = jax.jit(
        lambda x: (
            jax.jacfwd(projected)(x),
            jax.jacrev(projected)(x),
            jax.vmap(projected)(x + h * eye),
            jax.vmap(projected)(x - h * eye),
        )
    )(x)
    np.testing.assert_allclose(forward, reverse, atol=1e-10)
    np.testing.assert_allclose(forward, (up - down).T / (2 * h), atol=1e-7)


@pytest.mark.slow
def test_what_fits_to_rollouts_say_about_loops():
    recording, model = swinging(), coupled_pendulums()
    free = Parametrization(model, Positive("damping"))
    options = {"segment": 0.2, "position_noise": NOISE}
    with pytest.raises(ModelError, match="zero_deviation does not take closed loops"):
        fit_rollouts(free, recording, options=RolloutFitOptions(zero_deviation=0.1), **options)
    with pytest.raises(DataError, match="recordings are of different joints"):
        fit_rollouts(free, [recording, recording.completed(model)], **options)
    with pytest.raises(ModelError, match=r"position_noise is .* \[1\] of them"):
        fit_rollouts(free, recording, segment=0.2, position_noise=[NOISE, NOISE])
    full = dataclasses.replace(recording.completed(model), v=None)
    arrays = (x[None] for x in (full.q, np.zeros_like(full.q), full.tau))
    with pytest.raises(ModelError, match="fit_fleet does not take closed loops"):
        fit_fleet(free, *arrays, 0.01, **options, velocity_noise=0.01)


def test_passive_joints_have_the_noise_that_follows_from_the_measured_ones():
    model, recording = coupled_pendulums(), swinging()
    measured = Measured.of(model, (recording,))
    assert (measured.dofs, measured.mobility) == ((0,), 1)
    q = measured.recordings[0].q
    ratio = np.gradient(q[:, 1], q[:, 0])[5:-5]
    noise = measured.noise(model, np.array([NOISE]), recording.joints)
    assert noise[0] == NOISE
    np.testing.assert_allclose(noise[1], NOISE * np.sqrt(np.mean(ratio**2)), rtol=0.1)


@pytest.mark.slow
def test_derivatives_of_the_residuals():
    """By states whose loops are open, and by the free numbers, of which one is the length of the rod."""
    model, recording = coupled_pendulums(), swinging()
    free = Parametrization(model, Positive("damping"), Positive("loop_length"))
    measured = Measured.of(model, (recording,))
    segments, dt = cut_recordings(model, measured.recordings, 0.2, "start")
    options = RolloutFitOptions(integrator="semi_implicit_euler")
    problem = shooting_problem(free, segments._replace(v=None), dt, options, measured)
    state = first_state(problem, np.full(3, 0.05), np.full(2, NOISE), np.full(2, 1e-2))
    rows = eqx.filter_jit(linearize)(problem, state)
    S, n, P, h = 3, 4, 3, 1e-6
    value = eqx.filter_jit(lambda z, x: residuals(problem, displace(problem, state, z, x)))
    for k in range(n + P):
        z, x = jnp.zeros((S, n)), jnp.zeros(P)
        z, x = (z.at[1, k].set(h), x) if k < n else (z, x.at[k - n].set(h))
        up, down = value(z, x), value(-z, -x)
        data, closure, match = (
            (getattr(up, name) - getattr(down, name)) / (2 * h) for name in ("data", "closure", "match")
        )
        found = rows.data[..., k] if k >= n else jnp.zeros(rows.data.shape[:2]).at[1].set(rows.data[1, :, k])
        np.testing.assert_allclose(found, jnp.concatenate([data, closure], axis=1), rtol=1e-4, atol=1e-2)
        if k >= n:
            np.testing.assert_allclose(rows.match[..., n + k], match, rtol=1e-4, atol=1e-2)


def cranking() -> Recording:
    """The noisy angles of the cranks of a five-bar that turn under torques."""
    model, dt, n, rng = five_bar(), 0.01, 200, np.random.default_rng(0)
    q, t = model.neutral(), 0.01 * np.arange(201)
    still = jaxdyn.constrained_inverse_dynamics(model, q, np.zeros(4), np.zeros(4), actuated=DRIVES)
    tau = np.tile(np.asarray(still.tau), (n + 1, 1))
    for j, phase in ((0, 0.0), (2, 1.0)):
        tau[:, j] += 0.5 * np.sin(2 * np.pi * 1.3 * t + phase) + 0.4 * np.sin(2 * np.pi * 2.1 * t + 2 * phase)
    run = jaxdyn.rollout(model, State(q, np.zeros(4)), tau[:-1], dt, integrator="rk4")
    angles = np.asarray(run.q)[:, [0, 2]] + NOISE * rng.normal(size=(n + 1, 2))
    return Recording(t, angles, tau=tau[:, [0, 2]], joints=DRIVES)


@pytest.mark.slow
def test_a_five_bar_is_identified_from_two_joints():
    """Masses and damping, from the angles of the cranks."""
    model, recording = five_bar(), cranking()
    wrong = dataclasses.replace(model, inertial_parameters=1.2 * model.inertial_parameters, damping=0.7 * model.damping)
    free = Parametrization(wrong, InertiaScale(), Positive("damping", joints=DRIVES))
    options = RolloutFitOptions(max_iterations=30, rounds=2, hold="start")
    fit = fit_rollouts(free, recording, segment=0.25, position_noise=2 * NOISE, options=options)
    assert fit.converged
    np.testing.assert_allclose(fit.position_noise[[0, 2]], NOISE, rtol=0.15)
    quantities = {"mass": lambda m: m.inertial_parameters[:, 0], "damping": lambda m: m.damping[jnp.array([0, 2])]}
    found = fit.intervals(quantities)
    error = (found.value - np.array([1, 0.6, 1, 0.6, 0.3, 0.3])) / found.standard_error
    assert np.abs(error).max() < 3
    assert found.standard_error.max() < 3e-3
    with_rates = dataclasses.replace(recording, v=np.gradient(recording.q, recording.t, axis=0))
    errors = rollout_errors(fit.robot, with_rates, 0.2, every=0.5, hold="start")
    assert errors.position.shape[-1] == 4
    assert errors.rmse().max() < 0.02


@pytest.mark.slow
def test_lengths_of_a_five_bar_are_found():
    """The lengths of a crank and of a bar up to the pin, and the masses, from the angles of the cranks."""
    model = five_bar()
    wrong = dataclasses.replace(
        model,
        joint_placement=model.joint_placement.at[1, 0].multiply(1.05),
        loop_placement2=model.loop_placement2.at[0, 0].multiply(0.95),
    )
    places = Parametrization(wrong, Placement(["left_elbow", "pin"], rotation=False))
    assert places.size == 9
    expected = [[-0.15, 0, 0], [0, 0, 0], [0.25, 0, 0]]
    np.testing.assert_allclose(places.free(model).reshape(3, 3), expected, atol=1e-9)
    free = Parametrization(wrong, InertiaScale(), LinkLength(["left_elbow", "pin"]))
    assert free.names[-3:] == tuple(f"log length to {x}" for x in ("left_elbow", "pin, frame 1", "pin, frame 2"))
    options = RolloutFitOptions(max_iterations=40, rounds=2, hold="start", prior_weight=1.0)
    fit = fit_rollouts(free, cranking(), segment=0.25, position_noise=2 * NOISE, options=options)
    assert fit.converged
    found, true = fit.intervals(), {"left_elbow": 0.3, "pin, frame 1": 0.5, "pin, frame 2": 0.5}
    for name, length in true.items():
        i = found.names.index(f"position x({name})")
        assert found.lower[i] <= length <= found.upper[i]
        assert found.standard_error[i] < 0.02
