"""Identification of robots with closed loops from recordings of their driven joints, against the simulated robot."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from loop_robots import FIVE_BAR_GUESS, five_bar
from scipy.stats import binom

import jaxdyn
from jaxdyn import DataError, ModelError, sysid
from jaxdyn.sysid import JointEffects, Recording

DRIVES = ("left", "right")
COLUMNS = [0, 2]
EFFECTS = JointEffects(armature=DRIVES, viscous=DRIVES, coulomb=DRIVES, offset=DRIVES)


@functools.cache
def recorded(count: int = 1000, offset: tuple[float, float] = (0.3, -0.2)) -> Recording:
    """A motion of the two cranks by sums of sines, with the torques that it takes and an offset."""
    t, rng, model = np.arange(count) * (10.0 / count), np.random.default_rng(0), five_bar()
    w, (A, B) = 2 * np.pi / 5 * np.arange(1, 6), 0.12 * rng.normal(size=(2, 5, 2))
    s, c = np.sin(np.outer(t, w)), np.cos(np.outer(t, w))
    q, v, a = (-2.0, -1.1) + s @ A + c @ B, (c * w) @ A - (s * w) @ B, -(s * w * w) @ A - (c * w * w) @ B
    motion = Recording(t, q, v, a, joints=DRIVES, assembly=FIVE_BAR_GUESS).completed(model)
    found = jaxdyn.constrained_inverse_dynamics(model, motion.q, motion.v, motion.a, actuated=DRIVES)
    assert np.abs(found.residual).max() < 1e-10
    return Recording(t, q, v, a, np.asarray(found.tau)[:, COLUMNS] + offset, joints=DRIVES, assembly=FIVE_BAR_GUESS)


def test_passive_joints_follow_from_the_loop():
    """At every sample; velocities and accelerations are the rates of positions and velocities."""
    model, measured = five_bar(), recorded()
    motion = measured.completed(model)
    assert motion.joints is None
    assert np.abs(jaxdyn.constraint_error(model, motion.q)).max() < 1e-11
    np.testing.assert_allclose(motion.q[:, COLUMNS], measured.q, atol=1e-12)
    np.testing.assert_array_equal(motion.tau[:, [1, 3]], 0)
    assert np.ptp(motion.q, axis=0).min() > 0.5
    for x, rate in ((motion.q, motion.v), (motion.v, motion.a)):
        np.testing.assert_allclose(np.gradient(x, motion.t, axis=0)[5:-5], rate[5:-5], atol=0.02)


def test_base_parameters_are_recovered_from_exact_torques():
    """By linear least squares, and by the physical fit from a start with other masses."""
    model, recording = five_bar(), recorded()
    base = sysid.base_parameters(model, recording, effects=EFFECTS)
    assert base.rank == 17
    assert base.gap > 1e6
    linear = sysid.ordinary_least_squares(model, recording, joint_effects=EFFECTS)
    truth = np.where(np.isnan(x := linear.parameters_of(model)), [*np.zeros(len(x) - 2), 0.3, -0.2], x)
    assert linear.samples == 2 * len(recording)
    np.testing.assert_allclose(base.matrix @ linear.parameters, base.matrix @ truth, atol=1e-10)
    wrong = dataclasses.replace(
        model, inertial_parameters=model.inertial_parameters * jnp.array([[1.3, 0.7, 0.8, 1.2]]).T
    )
    fit = sysid.fit_inverse_dynamics(wrong, recording, joint_effects=EFFECTS, prior_weight=1e-6, effects_weight=1e-6)
    assert fit.converged
    assert fit.evaluate(recording).relative < 1e-4
    np.testing.assert_allclose(fit.predict(recording)[:, COLUMNS], recording.tau, atol=1e-3)
    np.testing.assert_array_equal(fit.predict(recording)[:, [1, 3]], 0)


def test_what_identification_says_about_loops():
    model, recording = five_bar(), recorded()
    plain = dataclasses.replace(recording, joints=None, assembly=None)
    fit, one = functools.partial(sysid.ordinary_least_squares, model), ("q", "v", "a", "tau")
    for unnamed in (plain, recording.completed(model)):
        with pytest.raises(DataError, match="name them by Recording"):
            fit(unnamed)
    with pytest.raises(ModelError, match="leave 1 degrees of freedom of the robot undetermined"):
        fit(dataclasses.replace(recording, joints=("left",), **{x: getattr(recording, x)[:, :1] for x in one}))
    with pytest.raises(DataError, match=r"do not close at .* samples, the first at t = 0 s"):
        recording.completed(dataclasses.replace(model, loop_placement1=model.loop_placement1.at[0, 0].set(0.05)))
    with pytest.raises(DataError, match="stribeck cannot be searched for"):
        fit(recording, joint_effects=JointEffects(stribeck=True))
    with pytest.raises(DataError, match="offset at left elbow, which no drive moves"):
        fit(recording, joint_effects=JointEffects(offset=("left elbow",)))
    every = dataclasses.replace(recording.completed(model), assembly=FIVE_BAR_GUESS, joints=model.joint_names)
    with pytest.raises(DataError, match=r"gain, but the joints .* are more than the robot's degrees of freedom"):
        sysid.fit_inverse_dynamics(model, every, joint_effects=JointEffects(gain=DRIVES))
    with pytest.raises(DataError, match="name them by Recording"):
        sysid.identify(model, recording.completed(model))
    with pytest.raises(ModelError, match="identify with tilt does not take closed loops"):
        sysid.identify(model, recording, tilt=True)
    with pytest.raises(ModelError, match="base_parameters without recordings does not take closed loops"):
        sysid.base_parameters(model)


@pytest.mark.slow
def test_identification_in_one_call():
    """From measured positions and torques with noise, and a start with other masses and friction."""
    exact, rng, model = recorded(4000), np.random.default_rng(1), five_bar()
    q = exact.q + 2e-5 * rng.normal(size=exact.q.shape)
    tau = exact.tau + 0.05 * rng.normal(size=exact.tau.shape)
    measured = dataclasses.replace(exact, q=q, v=None, a=None, tau=tau)
    factor = jnp.array([[1.3, 0.7, 0.8, 1.2]]).T
    start = dataclasses.replace(model, inertial_parameters=factor * model.inertial_parameters)
    found = sysid.identify(start.with_joint_friction(0.1, 0.1), measured)
    assert found.fit.converged
    assert found.evaluate(measured).relative < 0.01
    np.testing.assert_allclose(found.model.damping, model.damping, atol=5e-3)
    np.testing.assert_allclose(found.model.friction, model.friction, atol=5e-3)


@pytest.mark.slow
def test_intervals_cover_the_parameters_of_a_five_bar():
    """Over 100 repetitions with noise on the torques, intervals of 95 % contain each base parameter as often as they
    say, and intervals of 95 % for all together contain all as often."""
    model, exact = five_bar(), recorded()
    inside, together = [], 0
    for seed in range(100):
        noise = 0.1 * np.random.default_rng(seed).normal(size=exact.tau.shape)
        recording = dataclasses.replace(exact, tau=exact.tau + noise)
        fit = sysid.ordinary_least_squares(model, recording, joint_effects=EFFECTS)
        base = fit.base_parameters()
        truth = np.where(np.isnan(x := fit.parameters_of(model)), [*np.zeros(len(x) - 2), 0.3, -0.2], x)
        one = fit.intervals(base)
        inside.append((one.lower < base.matrix @ truth) & (base.matrix @ truth < one.upper))
        # Bonferroni's inequality.
        every = fit.intervals(base, level=1 - 0.05 / base.rank)
        together += bool(((every.lower < base.matrix @ truth) & (base.matrix @ truth < every.upper)).all())
    by_parameter = np.sum(inside, axis=0)
    print("inside, of 100:", dict(zip(base.describe(), by_parameter.tolist(), strict=True)), "all together:", together)
    assert len(by_parameter) == 17
    # What a fair coin of 95 % gives in 100 throws, but for one case in a thousand for all 17.
    assert by_parameter.min() >= binom.ppf(0.001 / 17, 100, 0.95)
    assert together >= binom.ppf(0.01, 100, 0.95)
