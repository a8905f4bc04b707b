"""Identification of robots with closed loops from recordings of their driven joints, against the simulated robot."""

import dataclasses
import functools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom

import jaxdyn
from jaxdyn import DataError, ModelError, sysid
from jaxdyn.sysid import JointEffects, Recording
from tests.loop_robots import DRIVES, five_bar

COLUMNS = [0, 2]
EFFECTS = JointEffects(armature=DRIVES, viscous=DRIVES, coulomb=DRIVES, offset=DRIVES)


@functools.cache
def recorded(count: int = 1000, offset: tuple[float, float] = (0.3, -0.2)) -> Recording:
    """A motion of the two cranks by sums of sines, with the torques that it takes and an offset."""
    t, rng, model = np.arange(count) * (10.0 / count), np.random.default_rng(0), five_bar()
    w, (A, B) = 2 * np.pi / 5 * np.arange(1, 6), 0.12 * rng.normal(size=(2, 5, 2))
    s, c = np.sin(np.outer(t, w)), np.cos(np.outer(t, w))
    q, v, a = s @ A + c @ B, (c * w) @ A - (s * w) @ B, -(s * w * w) @ A - (c * w * w) @ B
    motion = Recording(t, q, v, a, joints=DRIVES).completed(model)
    found = jaxdyn.constrained_inverse_dynamics(model, motion.q, motion.v, motion.a, actuated=DRIVES)
    assert np.abs(found.residual).max() < 1e-10
    return Recording(t, q, v, a, np.asarray(found.tau)[:, COLUMNS] + offset, joints=DRIVES)


def under(model: jaxdyn.Model, load: float = 0.0) -> Recording:
    """The motion of `recorded` with the torques that another model takes, with friction that grows with the load."""
    recording = recorded()
    motion = dataclasses.replace(recording, tau=None).completed(model)

    def torques(joint_friction: bool) -> np.ndarray:
        found = jaxdyn.constrained_inverse_dynamics(
            model, motion.q, motion.v, motion.a, actuated=DRIVES, joint_friction=joint_friction
        )
        return np.asarray(found.tau)[:, COLUMNS]

    width = np.asarray(model.friction_velocity)[COLUMNS]
    tau = torques(True) + (0.3, -0.2) + load * np.abs(torques(False)) * np.tanh(recording.v / width)
    return dataclasses.replace(recording, tau=tau)


@pytest.mark.slow
def test_a_payload_is_identified():
    """What moves in the plane, from exact torques with friction that grows with the load."""
    model, payload = five_bar(), jaxdyn.BodyInertia(0.7, (0.02, -0.01, 0.06), np.diag([4e-3, 5e-3, 2e-3]))
    carrying = model.with_payload("tip", payload)
    effects = dataclasses.replace(EFFECTS, load=True)
    fit = sysid.identify_payload(model, under(model, 0.1), under(carrying, 0.1), frame="tip", joint_effects=effects)
    assert fit.converged
    # Mass, moments of mass along x and z, and the moment of inertia about y.
    expected = payload.parameters()[[0, 1, 3, 6]]
    np.testing.assert_allclose(fit.unconstrained[[0, 1, 3, 6]], expected, atol=1e-7)
    np.testing.assert_allclose(fit.parameters[[0, 1, 3, 6]], expected, atol=2e-5)
    np.testing.assert_array_equal(fit.unconstrained[[2, 4, 5, 7, 8, 9]], 0)


@pytest.mark.slow
def test_causes_of_residuals_are_named():
    """A bar that is 4 mm longer than in the model, from its elbow to the pin, and a mount that is tilted."""
    model = five_bar()
    short = dataclasses.replace(model, loop_placement2=model.loop_placement2.at[0, 0].add(-0.004))
    g = 9.81 * np.array([np.sin(0.03), 0, -np.cos(0.03)])
    tilted = dataclasses.replace(model, gravity=jnp.asarray(g))
    causes = []
    for start in (short, tilted):
        fit = sysid.fit_inverse_dynamics(start, recorded(), joint_effects=EFFECTS, prior_weight=1e-3)
        causes.append(sysid.residual_causes(fit, recorded()))
    lengths = causes[0][0]
    assert lengths.name == "lengths"
    assert lengths.part > 0.99
    (tilt,) = (x for x in causes[1] if x.name == "tilt")
    assert tilt.part > 0.99
    # The axes of four joints and of both frames of the pin; the last frame is that of the bar.
    x = lengths.parameters.reshape(6, 3)
    assert np.argmax(np.abs(x)) == 15
    np.testing.assert_allclose(x[5, 0], 0.004, rtol=0.1)
    np.testing.assert_allclose(tilt.parameters, [-g[0], 0], atol=0.02)


@pytest.mark.slow
def test_passive_joints_follow_from_the_loop():
    """At every sample; velocities and accelerations are the rates of positions and velocities."""
    model, measured = five_bar(), recorded()
    motion = measured.completed(model)
    assert motion.joints is None
    assert np.abs(jaxdyn.constraint_error(model, motion.q)).max() < 1e-11
    np.testing.assert_allclose(motion.q[:, COLUMNS], measured.q, atol=1e-12)
    np.testing.assert_array_equal(motion.tau[:, [1, 3]], 0)
    assert np.ptp(motion.q, axis=0).min() > 0.4
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


@pytest.mark.slow
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
    with pytest.raises(DataError, match="stribeck at left_elbow, which no drive moves"):
        fit(recording, joint_effects=JointEffects(stribeck=("left_elbow",)))
    with pytest.raises(DataError, match="offset at left_elbow, which no drive moves"):
        fit(recording, joint_effects=JointEffects(offset=("left_elbow",)))
    every = dataclasses.replace(recording.completed(model), joints=model.joint_names)
    for effects in (JointEffects(gain=DRIVES), JointEffects(friction_delay=DRIVES)):
        with pytest.raises(DataError, match=r"(gain|delay), but the joints .* are more than the robot's degrees of"):
            sysid.fit_inverse_dynamics(model, every, joint_effects=effects)
    with pytest.raises(DataError, match="name them by Recording"):
        sysid.identify(model, recording.completed(model))
    with pytest.raises(ModelError, match="base_parameters without recordings does not take closed loops"):
        sysid.base_parameters(model)


@pytest.mark.slow
def test_searched_effects():
    """Friction velocities, Stribeck velocities and delays of the drives, with friction at the passive joints, too."""
    model = five_bar().with_joint_friction(0.05, 0.04)
    exact, width, slip, lag = recorded(), np.array([0.04, 0.08]), np.array([0.2, 0.3]), 0.03
    motion = dataclasses.replace(exact, tau=None).completed(model)
    still = model.with_joint_friction(dict.fromkeys(DRIVES, 0.0), dict.fromkeys(DRIVES, 0.0))
    found = jaxdyn.constrained_inverse_dynamics(still, motion.q, motion.v, motion.a, actuated=DRIVES)
    u = np.stack([np.interp(exact.t - lag, exact.t, x) for x in exact.v.T], axis=-1)
    friction = 0.3 * u + (0.2 + 0.15 * np.exp(-((u / slip) ** 2))) * np.tanh(u / width)
    recording = dataclasses.replace(exact, tau=np.asarray(found.tau)[:, COLUMNS] + friction)
    effects = JointEffects(stribeck=True, friction_velocity=True, friction_delay=True, armature=DRIVES, offset=DRIVES)
    fit = sysid.fit_inverse_dynamics(model, recording, joint_effects=effects, prior_weight=1e-2)
    assert fit.evaluate(recording).relative < 0.01
    np.testing.assert_allclose(fit.shape.friction_delay[COLUMNS], lag, atol=2e-3)
    np.testing.assert_allclose(fit.shape.friction_velocity[COLUMNS], width, rtol=0.1)
    np.testing.assert_allclose(fit.shape.stribeck_velocity[COLUMNS], slip, rtol=0.15)
    np.testing.assert_array_equal(fit.shape.friction_delay[[1, 3]], 0)


@pytest.mark.slow
def test_a_tilted_mount_is_found():
    model, angle = five_bar(), 0.05
    gravity = 9.81 * np.array([np.sin(angle), 0, -np.cos(angle)])
    recording = under(dataclasses.replace(model, gravity=jnp.asarray(gravity)))
    found = sysid.identify(model, recording, tilt=True, joint_effects=EFFECTS, prior_weight=1e-3, cutoff=10.0)
    np.testing.assert_allclose(found.model.gravity, gravity, atol=0.01)


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


@pytest.mark.slow
def test_lengths_of_a_five_bar_are_found():
    """From noisy torques, with cranks and bars that are wrong by 3 and 4 cm."""
    model, recording = five_bar(), recorded()
    noise = 0.002 * recording.tau.std(axis=0) * np.random.default_rng(0).normal(size=recording.tau.shape)
    noisy = dataclasses.replace(recording, tau=recording.tau + noise)
    wrong = dataclasses.replace(
        model,
        joint_placement=model.joint_placement.at[1, 0].add(0.03).at[3, 0].add(-0.03),
        loop_placement1=model.loop_placement1.at[0, 0].add(0.04),
    )
    before = sysid.fit_inverse_dynamics(wrong, noisy, joint_effects=EFFECTS, prior_weight=1.0)
    assert sysid.residual_causes(before, noisy)[0].name == "lengths"
    effects = dataclasses.replace(EFFECTS, length=True)
    fit = sysid.fit_inverse_dynamics(wrong, noisy, joint_effects=effects, prior_weight=1.0)
    assert fit.converged
    intervals, truth = fit.intervals(), fit.parameters_of(model)
    at = [i for i, x in enumerate(intervals.names) if x.startswith("position")]
    assert (intervals.lower[at] <= truth[at]).all()
    assert (intervals.upper[at] >= truth[at]).all()
    error = dict(zip(intervals.names, intervals.standard_error, strict=True))
    assert max(error["position x(left_elbow)"], error["position x(right_elbow)"]) < 0.01
    # What happens out of the plane is not seen.
    base = fit.base_parameters()
    assert all(f"position y({x})" in base.unidentifiable for x in ("left_elbow", "right_elbow", "pin, frame 1"))
