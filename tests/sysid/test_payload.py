"""An arm's payload is recovered from simulated recordings with and without it."""

import dataclasses
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

from jaxdyn import BodyInertia, DataError, JaxdynError, Joint, ModelBuilder, ModelError, load_urdf, rnea, samples
from jaxdyn.sysid import JointEffects, Recording, RecordingWarning, identify_payload
from jaxdyn.sysid.torques._payload import PayloadSamples
from jaxdyn.sysid.torques._torque_model import EffectShape
from tests.robots import robot_path

PAYLOAD = BodyInertia(1.3, (0.02, -0.01, 0.06), ((4e-3, 3e-4, -2e-4), (3e-4, 5e-3, 1e-4), (-2e-4, 1e-4, 2e-3)))


HEAVY = BodyInertia(2.8, (0.03, -0.02, 0.07), ((12e-3, 8e-4, -5e-4), (8e-4, 15e-3, 3e-4), (-5e-4, 3e-4, 9e-3)))
LOAD = 0.12
"""Friction for a unit of transmitted torque."""


def arm():
    builder = ModelBuilder()
    builder.add_body("base", "world", Joint(axis=(0, 0, 1), name="turn"), (0, 0, 0.1), BodyInertia.sphere(2.0, 0.1))
    builder.add_body(
        "upper", "base", Joint(axis=(0, 1, 0), name="lift"), (0, 0, 0.2), BodyInertia.rod(1.5, (0, 0, 0), (0.3, 0, 0.1))
    )
    builder.add_body(
        "lower", "upper", Joint(axis=(1, 0, 0), name="twist"), (0.3, 0, 0.1), BodyInertia.sphere(0.8, 0.05, (0.1, 0, 0))
    )
    return builder.add_frame("tool", "lower", (0.15, 0.02, -0.03, 0.6, 0.0, 0.8, 0.0)).build()


def record(
    model, seed: int, noise: float = 0.0, n: int = 400, correlated: int = 1, load: float = 0.0, held: int = 1
) -> Recording:
    """Return unrelated states, each `held` for some samples, and torques that have offsets and noise; `noise` is its
    share of each joint's torque, `correlated` the number of consecutive samples that share it, and `load` the friction
    for a unit of torque."""
    rng = np.random.default_rng(seed)
    states = rng.uniform(-2, 2, (n // held, 3)), rng.normal(0, 1, (n // held, 3)), rng.normal(0, 5, (n // held, 3))
    q, v, a = (np.repeat(x, held, axis=0) for x in states)
    tau = np.asarray(rnea(model, *(jnp.asarray(x) for x in (q, v, a))))
    tau = tau + 0.2 * v + (0.3 + load * np.abs(tau)) * np.tanh(v / 0.05) + [0.1, -0.2, 0.05]
    white = np.repeat(rng.standard_normal((n // correlated, 3)), correlated, axis=0)
    return Recording(np.arange(n) / 100, q, v, a, tau + noise * tau.std(axis=0) * white)


def measure(model, rng: np.random.Generator, preparation: str) -> Recording:
    """Return a random periodic motion of 10 s of a robot whose joints have armature, offsets, and all friction. Torques
    have white noise of 3 %. Positions are exact, with exact derivatives, or have white noise of 2e-4 rad; then all is
    `"prepared"`, or `"filtered"` without the torque model."""
    t = np.arange(0, 10, 2e-2 if preparation == "exact" else 1e-3)
    lower, upper = (np.clip(x, -2.5, 2.5) for x in (model.position_lower, model.position_upper))
    w = 0.2 * np.pi * np.arange(1, 6)
    S, C, (A, B) = np.sin(np.outer(t, w)), np.cos(np.outer(t, w)), rng.normal(0, 1, (2, 5, model.nv))
    q, v, a = S @ A + C @ B, (C * w) @ A - (S * w) @ B, -(S * w**2) @ A - (C * w**2) @ B
    size = np.minimum(0.9 * (upper - lower) / np.ptp(q, axis=0), 1.5 / np.abs(v).max(axis=0))
    q, v, a = (upper + lower) / 2 + size * (q - (q.max(axis=0) + q.min(axis=0)) / 2), size * v, size * a
    effort = np.asarray(model.effort_limit)
    geared = dataclasses.replace(model, armature=jnp.asarray(0.004 * effort))
    tau = np.asarray(rnea(geared, *(jnp.asarray(x) for x in (q, v, a))))
    tau = tau + 0.015 * effort * v + (0.02 * effort + LOAD * np.abs(tau)) * np.tanh(v / 0.05) + 0.005 * effort
    tau = tau + 0.03 * tau.std(axis=0) * rng.normal(size=tau.shape)
    if preparation == "exact":
        return Recording(t, q, v, a, tau)
    noisy = Recording(t, q + 2e-4 * rng.normal(size=q.shape), tau=tau)
    if preparation == "prepared":
        return noisy.prepared(10.0)
    return noisy.filtered(10.0).differentiated().resampled(50.0)


def flatten(payload: BodyInertia) -> np.ndarray:
    I = np.asarray(payload.rotational)
    upper = I[[0, 0, 1, 0, 1, 2], [0, 1, 1, 2, 2, 2]]
    return np.concatenate([[payload.mass], np.asarray(payload.center_of_mass), upper])


def pair(noise: float, seed: int = 0, **options):
    bare = arm()
    # The inertias of the nominal robot are wrong, because only its kinematics count.
    believed = dataclasses.replace(bare, inertial_parameters=1.5 * bare.inertial_parameters)
    recordings = record(bare, seed, noise), record(bare.with_payload("tool", PAYLOAD), seed + 1, noise)
    return identify_payload(believed, *recordings, frame="tool", friction_velocity=0.05, **options), recordings


def test_gains_of_drives_that_are_wrong_are_named():
    """A factor of all torques is one of all masses, which the print says; factors of single joints leave residuals."""
    bare = arm()
    runs = record(bare, 0, 0.01), record(bare.with_payload("tool", HEAVY), 1, 0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        alike = [dataclasses.replace(x, tau=1.09 * x.require("tau")[0]) for x in runs]
        fit = identify_payload(bare, *alike, frame="tool", friction_velocity=0.05)
    np.testing.assert_allclose(fit.mass, 1.09 * HEAVY.mass, rtol=0.02)
    assert "a drive gain wrong by a part makes masses and inertias wrong by that part" in str(fit)
    unlike = [dataclasses.replace(x, tau=x.tau * [1.0, 1.1, 0.9]) for x in runs]
    with pytest.warns(RecordingWarning, match="wrong from joint to joint would explain"):
        identify_payload(bare, *unlike, frame="tool", friction_velocity=0.05)


def test_exact_torques_give_the_payload():
    fit, _ = pair(0.0)
    assert fit.converged
    np.testing.assert_allclose(fit.parameters, PAYLOAD.parameters(), atol=2e-5)
    np.testing.assert_allclose(fit.unconstrained, PAYLOAD.parameters(), atol=1e-7)
    assert fit.mass == pytest.approx(1.3, abs=1e-5)
    np.testing.assert_allclose(fit.center_of_mass, PAYLOAD.center_of_mass, atol=1e-5)
    np.testing.assert_allclose(fit.inertia, PAYLOAD.rotational, atol=2e-5)
    assert np.all(fit.rms_error[1] < 1e-3 * fit.rms_unexplained)
    # The fitted model carries the payload.
    link = fit.model.inertial_parameters - arm().inertial_parameters * 1.5
    expected = arm().with_payload("tool", PAYLOAD).inertial_parameters - arm().inertial_parameters
    np.testing.assert_allclose(link, expected, atol=1e-4)


def test_friction_that_grows_with_the_load_is_told_from_the_payload():
    bare, carrying = arm(), arm().with_payload("tool", PAYLOAD)
    runs = [record(m, k, load=LOAD) for k, m in enumerate((bare, carrying))]
    effects = JointEffects(load=True)
    believed = dataclasses.replace(bare, inertial_parameters=1.5 * bare.inertial_parameters)
    fit = identify_payload(believed, *runs, frame="tool", joint_effects=effects, friction_velocity=0.05)
    np.testing.assert_allclose(fit.unconstrained, PAYLOAD.parameters(), atol=1e-7)
    np.testing.assert_allclose(fit.parameters, PAYLOAD.parameters(), atol=2e-5)
    assert np.all(fit.rms_error[1] < 1e-3 * fit.rms_unexplained)
    # A model without this friction takes a part of it for the payload.
    ignoring = identify_payload(believed, *runs, frame="tool", friction_velocity=0.05)
    assert np.abs(ignoring.unconstrained - PAYLOAD.parameters()).max() > 1e-3


def test_linearized_load_friction_is_that_of_the_equations_of_a_low_pass():
    """The residuals that the columns give are the exact ones for parameters nearby."""
    rng, model, t = np.random.default_rng(0), arm(), np.arange(400) / 100
    s, c = np.sin(np.outer(t, (2, 5, 9))), np.cos(np.outer(t, (2, 5, 9)))
    q, v, a = s, c * (2, 5, 9), -s * (4, 25, 81)
    tau = np.asarray(rnea(model, *(jnp.asarray(x) for x in (q, v, a))))
    recording = Recording(t, q, v, a, tau * (1 + LOAD * np.sign(tau) * np.tanh(v / 0.05)), cutoff=8.0)
    shape = EffectShape.default(np.full(3, 0.05))
    added = np.zeros((45, 10))
    added[20:30] = np.eye(10)
    samples = PayloadSamples(model, [recording], [recording], JointEffects(load=True), shape, added)
    p, payload = np.concatenate([np.ravel(model.inertial_parameters), np.full(15, 0.1)]), PAYLOAD.parameters()
    exact, step = [samples.residuals_at(p, payload)], 1e-6 * rng.normal(size=55)
    (data,) = samples.compressed()
    p = np.concatenate([p, payload])
    exact.append(samples.residuals_at(*np.split(p + step, [45])))
    assert len(exact[0]) < 400
    # Factors have the sums of squares of the residuals.
    before, after = (np.sum((data.factors @ np.concatenate([x, [1, -1]])) ** 2, axis=1) for x in (p, p + step))
    squares = [np.sum(x**2, axis=0) for x in exact]
    np.testing.assert_allclose(before, squares[0], rtol=1e-9)
    np.testing.assert_allclose(after - before, squares[1] - squares[0], rtol=1e-3)


@pytest.mark.slow
def test_noisy_torques_give_it_within_its_intervals():
    covered, width = [], []
    for seed in range(0, 24, 2):
        fit, _ = pair(0.02, seed)
        covered.append((fit.intervals.lower <= flatten(PAYLOAD)) & (flatten(PAYLOAD) <= fit.intervals.upper))
        width.append(fit.intervals.standard_error)
    # 12 repetitions of 10 parameters give 120 intervals of 95 %; the number of them that cover lies between the bounds
    # in 99.9 % of such tests. The standard errors below show that the intervals are not too wide.
    low, high = binom.interval(0.999, 120, 0.95)
    assert low <= np.sum(covered) <= high
    assert np.mean(width, axis=0)[0] < 0.02
    assert np.all(np.mean(width, axis=0)[1:4] < 4e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("robot", "preparation", "repetitions"),
    [("panda", "exact", 100), ("panda", "prepared", 40), ("panda", "filtered", 100), ("ur5", "exact", 40)],
)
def test_the_payload_of_an_arm_with_friction_by_load_lies_within_its_intervals(robot, preparation, repetitions):
    model = samples.arm() if robot == "panda" else load_urdf(robot_path(robot))
    frame = "flange" if robot == "panda" else "tool0"
    covered, error = [], []
    for seed in range(repetitions):
        rng = np.random.default_rng(seed)
        runs = [measure(x, rng, preparation) for x in (model, model.with_payload(frame, HEAVY))]
        wrong = model.inertial_parameters * rng.uniform(0.5, 1.5, (model.nb, 1))
        believed = dataclasses.replace(model, inertial_parameters=wrong)
        effects = JointEffects(load=True)
        fit = identify_payload(believed, *runs, frame=frame, joint_effects=effects, friction_velocity=0.05)
        covered.append((fit.intervals.lower <= flatten(HEAVY)) & (flatten(HEAVY) <= fit.intervals.upper))
        error.append(fit.intervals.standard_error)
    # Mass and center of mass. Intervals that hold in 95 % of all cases hold so often in 99.9 % of such tests.
    least = 0.95 * repetitions if preparation == "filtered" else binom.ppf(0.001, repetitions, 0.95)
    assert np.all(np.sum(covered, axis=0)[:4] >= least)
    if preparation != "filtered":  # Filters of the recording alone make errors at reversals, of changing signs.
        assert 0.90 <= np.mean(covered) <= 0.985
    assert np.all(np.mean(error, axis=0)[:4] < [0.01, 1e-3, 1e-3, 1e-3])


def test_residuals_that_are_alike_widen_the_intervals():
    bare, carrying = arm(), arm().with_payload("tool", PAYLOAD)
    errors = {}
    for held, correlated in ((8, 1), (8, 8), (1, 8)):
        runs = [record(m, k, 0.02, 1600, correlated, held=held) for k, m in enumerate((bare, carrying))]
        fit = identify_payload(bare, *runs, frame="tool", friction_velocity=0.05)
        errors[held, correlated] = fit.intervals.standard_error[0]
        assert np.all(fit.correlation < 1.5 * correlated)
    assert errors[8, 8] > 1.8 * errors[8, 1]
    # Alike noise averages out where the motion is not alike.
    assert errors[1, 8] < 1.5 * errors[8, 1]


def test_residuals_that_recur_with_the_motion_widen_the_intervals():
    fits = []
    for recurring in (False, True):
        runs = []
        for seed, model in enumerate((arm(), arm().with_payload("tool", PAYLOAD))):
            exact, noisy = record(model, seed), record(model, seed, 0.02)
            period = np.tile(np.arange(100), 4)
            noise = (noisy.tau - exact.tau)[period if recurring else slice(None)]
            motion = {x: getattr(exact, x)[period] for x in ("q", "v", "a", "tau")}
            runs.append(dataclasses.replace(exact, **motion | {"tau": motion["tau"] + noise}))
        fits.append(identify_payload(arm(), *runs, frame="tool", friction_velocity=0.05))
    # Four periods with the same noise say as much as one.
    assert np.all(fits[0].correlation < 1.5)
    assert np.all((fits[1].correlation > 2.8) & (fits[1].correlation < 5.6))
    assert fits[1].intervals.standard_error[0] > 1.5 * fits[0].intervals.standard_error[0]


def test_few_independent_samples_are_reported():
    runs = [record(m, k, 0.02, correlated=50) for k, m in enumerate((arm(), arm().with_payload("tool", PAYLOAD)))]
    with pytest.warns(RecordingWarning, match="few independent samples remain.*Record for longer"):
        identify_payload(arm(), *runs, frame="tool", friction_velocity=0.05)


def test_what_a_motion_does_not_excite_the_prior_decides():
    bare, carrying = arm(), arm().with_payload("tool", PAYLOAD)
    resting = []
    for seed, model in enumerate((bare, carrying)):
        r = record(model, seed)
        q, zero = jnp.asarray(r.q), np.zeros_like(r.q)
        resting.append(dataclasses.replace(r, v=zero, a=zero, tau=np.asarray(rnea(model, q, zero, zero))))
    effects = JointEffects(armature=False, viscous=False, coulomb=False, offset=False)
    fit = identify_payload(bare, *resting, frame="tool", joint_effects=effects)
    assert fit.mass == pytest.approx(1.3, rel=1e-3)
    np.testing.assert_allclose(fit.center_of_mass, PAYLOAD.center_of_mass, atol=1e-3)
    # A robot at rest reveals only the weight and the center of mass.
    assert np.all(fit.intervals.prior_share[4:] > 0.9)
    assert np.all(fit.intervals.prior_share[:4] < 0.1)
    # Intervals of positive quantities lie about them and do not reach zero.
    lower, value, upper = (x[[0, 4, 6, 9]] for x in (fit.intervals.lower, fit.intervals.value, fit.intervals.upper))
    assert np.all((lower > 0) & (lower < value) & (value < upper))
    assert np.any(fit.intervals.value[4:] < 1.96 * fit.intervals.standard_error[4:])
    assert fit.intervals.decided_by_prior() == ("Ixx", "Ixy", "Iyy", "Ixz", "Iyz", "Izz")


def test_mistakes_are_named():
    bare = arm()
    post = ModelBuilder().add_fixed_body("post", "world", (0, 0, 0), PAYLOAD)
    on_a_post = post.add_body("x", "post", Joint(name="j"), (0, 0, 0), PAYLOAD).build()
    r = record(bare, 0, n=60)
    with pytest.raises(JaxdynError, match="no frame named 'tol': did you mean 'tool'"):
        identify_payload(bare, r, r, frame="tol")
    with pytest.raises(DataError, match="there are no accelerations"):
        identify_payload(bare, r, dataclasses.replace(r, a=None), frame="tool")
    with pytest.raises(DataError, match="without drive gains"):
        identify_payload(bare, r, r, frame="tool", joint_effects=JointEffects(gain=True))
    with pytest.raises(ModelError, match="the prior of the payload at 'tool' is not physical"):
        identify_payload(bare, r, r, frame="tool", prior=-PAYLOAD.parameters())
    with pytest.raises(DataError, match="prior_weight is 0"):
        identify_payload(bare, r, r, frame="tool", prior_weight=0)
    with pytest.raises(ModelError, match="fixed in the world"):
        identify_payload(on_a_post, r, r, frame="post")


def test_exchanged_recordings_are_named():
    """A payload whose recordings are exchanged has a negative mass by least squares, which is said."""
    robot = arm()
    bare, loaded = record(robot, 1, noise=0.02), record(robot.with_payload("tool", PAYLOAD), 2, noise=0.02)
    with pytest.warns(RecordingWarning, match=r"the mass -1\.\d+ kg.*Are the two exchanged\?"):
        identify_payload(robot, loaded, bare, frame="tool")
