"""Roll-outs along held-out recordings, with zeros and start states estimated from what came before."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, ModelError, State, Status, rollout
from jaxdyn.sysid import Recording, RolloutErrors, RolloutFitOptions, judge_rollouts, rollout_errors

DT, POSITION, VELOCITY = 0.01, 1e-3, 2e-2
ZEROS = np.array([0.04, -0.03])
SETTINGS = {"every": 0.1, "calibrate": 1.0, "segment": 0.2, "position_noise": POSITION, "velocity_noise": VELOCITY}
OPTIONS = RolloutFitOptions(integrator="semi_implicit_euler", zero_deviation=0.1, matching=0.1)


@pytest.fixture(scope="module")
def truth():
    return jaxdyn.samples.double_pendulum().with_joint_friction(damping=0.05, friction=0.1, friction_velocity=0.2)


@pytest.fixture(scope="module")
def recording(truth) -> Recording:
    rng = np.random.default_rng(4)
    t = 3.0 + DT * np.arange(251)
    tau = 2 * np.sin(np.array([5.0, 7.0]) * t[:, None])
    motion = rollout(
        truth,
        State(jnp.array([0.5, -0.4]), jnp.zeros(2)),
        0.5 * (tau[:-1] + tau[1:]),
        DT,
        integrator=OPTIONS.integrator,
    )
    q, v = (np.asarray(x) for x in (motion.q, motion.v))
    q = q + ZEROS + POSITION * rng.standard_normal(q.shape)
    return Recording(t, q, v + VELOCITY * rng.standard_normal(v.shape), None, tau)


def median(errors: RolloutErrors) -> float:
    return float(np.median(errors.rmse()))


@pytest.mark.slow
def test_zeros_are_estimated_from_the_first_part_alone(truth, recording):
    judged = judge_rollouts(truth, recording, 0.5, **SETTINGS, options=OPTIONS)
    assert judged.status == Status.CONVERGED
    np.testing.assert_allclose(judged.zeros, ZEROS, atol=5e-3)
    np.testing.assert_allclose(judged.errors.start, 4.0 + 0.1 * np.arange(11), atol=1e-9)
    np.testing.assert_array_equal(judged.errors_as_read.start, judged.errors.start)
    assert median(judged.errors) < 0.5 * median(judged.errors_as_read)
    # The errors are those of roll-outs of the corrected recording from its measured states.
    later = dataclasses.replace(recording, q=recording.q - judged.zeros).trimmed(1.0, 0.0)
    expected = rollout_errors(truth, later, 0.5, every=0.1, integrator=OPTIONS.integrator)
    np.testing.assert_allclose(judged.errors.position, expected.position, atol=1e-12)
    # What comes after the first part does not change the zeros.
    q = recording.q.copy()
    q[100:] += 0.3
    changed = judge_rollouts(truth, dataclasses.replace(recording, q=q), 0.5, **SETTINGS, options=OPTIONS)
    np.testing.assert_array_equal(changed.zeros, judged.zeros)


@pytest.mark.slow
def test_start_states_from_the_time_before(truth, recording):
    exact = dataclasses.replace(OPTIONS, zero_deviation=None)
    known = dataclasses.replace(recording, q=recording.q - ZEROS)
    measured = judge_rollouts(truth, known, 0.5, **SETTINGS, options=exact)
    np.testing.assert_array_equal(measured.errors.position, measured.errors_as_read.position)
    assert not measured.zeros.any()
    smoothed = judge_rollouts(truth, known, 0.5, **SETTINGS, history=0.2, options=exact)
    assert smoothed.status == Status.CONVERGED
    # The model is right, so what came before tells the velocity better than one sample does.
    assert median(smoothed.errors) < 0.6 * median(measured.errors)
    # What comes after a start does not change its state: the first roll-out starts at 4 s. All starts are estimated in
    # one fit, so when it ends depends a little on the others.
    q = known.q.copy()
    q[101:] += 0.3
    changed = judge_rollouts(truth, dataclasses.replace(known, q=q), 0.5, **SETTINGS, history=0.2, options=exact)
    shift = changed.errors.position[0] - smoothed.errors.position[0]
    np.testing.assert_allclose(shift[0], 0, atol=1e-4)
    np.testing.assert_allclose(shift[1:], -0.3, atol=1e-3)
    # Without velocities, the start states come from positions alone.
    blind = Recording(known.t, known.q, None, None, known.tau)
    settings = SETTINGS | {"velocity_noise": None}
    assert median(judge_rollouts(truth, blind, 0.5, **settings, history=0.2, options=exact).errors) < 0.02
    with pytest.raises(DataError, match="no velocities"):
        judge_rollouts(truth, blind, 0.5, **settings, options=exact)


def test_errors_up_to_a_horizon():
    rng = np.random.default_rng(0)
    errors = RolloutErrors(np.arange(3.0), 0.1 * np.arange(6), rng.standard_normal((3, 6, 2)))
    expected = [np.sqrt(np.mean(errors.position[:, 1 : k + 1] ** 2, axis=(1, 2))) for k in range(1, 6)]
    np.testing.assert_allclose(errors.curves(), np.transpose(expected), rtol=1e-12)
    np.testing.assert_allclose(errors.rmse(0.3), expected[2], rtol=1e-12)


def test_mistakes_are_named(truth, recording):
    def attempt(robot=truth, recording=recording, options=OPTIONS, horizon=0.5, **changes):
        return judge_rollouts(robot, recording, horizon, **(SETTINGS | changes), options=options)

    exact = dataclasses.replace(OPTIONS, zero_deviation=None)
    box = jaxdyn.BodyInertia.box(1.0, (0.1, 0.2, 0.3))
    ball = jaxdyn.ModelBuilder().add_body("box", joint=jaxdyn.Joint("ball"), inertia=box).build()
    still = np.zeros((251, 3))
    turned = Recording(recording.t, np.tile([0.0, 0.0, 0.0, 1.0], (251, 1)), still, None, still)
    for arguments, error, message in (
        ({"calibrate": 0.1}, ModelError, "calibrate is 0.1 s and segment 0.2"),
        ({"segment": None}, ModelError, "segment None"),
        ({"position_noise": None}, ModelError, "position_noise is needed"),
        ({"robot": ball, "recording": turned}, ModelError, "quaternions"),
        ({"calibrate": 2.2}, DataError, "after the first 2.2 s"),
        ({"calibrate": -1.0}, ModelError, "calibrate"),
        ({"history": 0.001, "options": exact}, DataError, "shorter than a sample"),
        ({"recording": Recording(recording.t, recording.q, recording.v)}, DataError, "no torques"),
    ):
        with pytest.raises(error, match=message):
            attempt(**arguments)
    # Without zeros, joints may have quaternions: the box rests.
    assert not attempt(robot=ball, recording=turned, options=exact).errors.position.any()
