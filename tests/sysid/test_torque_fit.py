"""Fits to torques identify joint effects and drives, resist outliers, and report how certain the result is."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, ModelError, Status, World
from jaxdyn.friction import Dahl
from jaxdyn.simulate import ActuatorState
from jaxdyn.sysid import (
    CandidateWeights,
    JointEffects,
    JointEffectValues,
    Recording,
    RecursiveFit,
    base_parameters,
    bootstrap,
    cross_validate,
    fit_inverse_dynamics,
    ordinary_least_squares,
)
from jaxdyn.sysid.torques._effect_values import FrictionMotion
from jaxdyn.sysid.torques._physical_fit import minimize, start_at
from jaxdyn.sysid.torques._torque_model import EffectShape, Samples
from tests.sysid.convex_optimum import convex_optimum
from tests.sysid.test_identify import V_SCALE, motion, rms, truth_and_prior

EFFECTS = JointEffects(stribeck=True, load=["joint1"], spring=["joint2"])


def robot_with_effects(**changes):
    """Return the robot and values for every effect; `changes` replaces some of them."""
    truth, prior, offset = truth_and_prior()
    stiffness, reference = jnp.array([0.0, 0.0, 0.5]), jnp.zeros(3)
    truth = eqx.tree_at(
        lambda m: (m.stiffness, m.spring_reference), truth, (stiffness, reference), is_leaf=lambda x: x is None
    )
    values = JointEffectValues(
        offset=offset,
        static=np.asarray(truth.friction) * 1.8,
        stribeck_velocity=np.full(3, 0.25),
        load=np.array([0.0, 0.08, 0.0]),
        gain=np.ones(3),
        friction_delay=np.zeros(3),
        torque_delay=np.zeros(3),
    )
    return truth, prior, dataclasses.replace(values, **changes)


def smooth_motion(model, values, seed: int, n: int = 600, rate: float = 100.0) -> Recording:
    rng = np.random.default_rng(seed)
    t = np.arange(n) / rate
    w, phase, size = rng.uniform(0.8, 4, (4, 3)), rng.uniform(0, 6, (4, 3)), rng.uniform(0.3, 0.8, (4, 3))
    angle = t[:, None, None] * w + phase
    q, v, a = ((x * size).sum(axis=1) for x in (np.sin(angle), w * np.cos(angle), -(w**2) * np.sin(angle)))
    return Recording(t, q, v, a, values.torque(model, t, q, v, a))


def test_chosen_effects_are_found_and_predict():
    truth, prior, values = robot_with_effects(friction_delay=np.array([0.03, 0.0, 0.0]))
    train, test = smooth_motion(truth, values, 1), smooth_motion(truth, values, 2)
    effects = dataclasses.replace(EFFECTS, friction_delay=["joint0"], friction_velocity=True)
    fit = fit_inverse_dynamics(prior, train, joint_effects=effects, prior_weight=0.01, effects_weight=0.01)
    quality = fit.evaluate(test)
    assert fit.physical.all()
    assert np.all(quality.rms_error < 0.01 * quality.rms_torque), quality
    assert np.all(quality.r2 > 0.9995)
    np.testing.assert_allclose(fit.values.friction_delay, [0.03, 0, 0], atol=0.004)
    np.testing.assert_allclose(fit.values.load, values.load, atol=0.01)
    assert float(fit.model.stiffness[2]) == pytest.approx(0.5, rel=0.02)  # pyright: ignore[reportOptionalSubscript]
    np.testing.assert_allclose(fit.values.static, values.static, rtol=0.25)
    # A fit without the effects predicts the same motion an order of magnitude worse.
    plain = fit_inverse_dynamics(prior, train, friction_velocity=V_SCALE).evaluate(test)
    assert plain.total_rms > 10 * quality.total_rms


def test_identified_effects_simulate():
    """The recorded torque, sent through the identified actuators, gives the model the recorded accelerations."""
    truth, _, values = robot_with_effects(gain=np.array([2.0, 0.5, 1.0]))
    q, v, a = np.random.default_rng(3).normal(0, 1, (3, 50, 3))
    tau = values.torque(truth, np.arange(50.0), q, v, a)
    world = World(truth, actuators=values.actuators(truth))
    assert world.actuator_names == truth.joint_names
    np.testing.assert_allclose(world.accelerations(world.state(q, v), tau), a, rtol=1e-8, atol=1e-8)
    late = dataclasses.replace(values, friction_delay=np.full(3, 0.02))
    with pytest.raises(ModelError, match="without_delays"):
        late.actuators(truth)
    assert len(late.actuators(truth, without_delays=True)) == 3


OF_STATE = {
    "friction": {
        "presliding": np.array([0.03, 0.0, 0.05]),
        "viscous_asymmetry": np.array([0.05, -0.04, 0.0]),
        "harmonics": (1.0, 3.0),
        "cosine": np.array([[0.1, 0.0, 0.05], [0.0, 0.05, 0.0]]),
        "sine": np.array([[0.0, 0.1, -0.05], [0.05, 0.0, 0.0]]),
    },
    "time": {
        "warm_up": np.array([2.0, 2.0, 2.0]),
        "warm_up_viscous": np.array([0.05, 0.1, 0.05]),
        "warm_up_coulomb": np.array([0.2, 0.1, 0.1]),
    },
    "temperature": {
        "temperature": np.full(3, 30.0),
        "warm_up_viscous": np.array([-0.01, -0.01, 0.0]),
        "warm_up_coulomb": np.array([-0.02, 0.0, 0.02]),
    },
    "deflection": {"compliance": np.array([0.0, 0.002, 0.002]), "backlash": np.array([0.0, 0.02, 0.0])},
}


@pytest.mark.parametrize("kind", OF_STATE)
def test_effects_that_depend_on_more_than_the_velocity_are_found_and_predict(kind):
    truth, prior, values = robot_with_effects()
    plain = dataclasses.replace(JointEffectValues.none(truth), offset=values.offset)
    values = dataclasses.replace(plain, **OF_STATE[kind])
    recordings = []
    for seed in (1, 2):
        motion = smooth_motion(truth, plain, seed)
        t, q, v, a = motion.t, *motion.require("q", "v", "a")
        temperature = 30.0 + 10.0 * np.cos(0.5 * t)[:, None] * [1.0, 0.8, 0.6] if kind == "temperature" else None
        tau = values.torque(truth, t, q, v, a, temperature=temperature)
        recordings.append(Recording(t, q, v, a, tau, temperature=temperature))
    chosen = {
        "friction": {"presliding": ["joint0", "joint2"], "asymmetry": True, "position": True, "harmonics": (1, 3)},
        "deflection": {"flexibility": ["joint1", "joint2"], "backlash": ["joint1"]},
    }
    effects = JointEffects(spring=["joint2"], **chosen.get(kind, {"warm_up": True}))
    weights = {"prior_weight": 0.01, "effects_weight": 0.01}
    fit = fit_inverse_dynamics(prior, recordings[0], joint_effects=effects, friction_velocity=V_SCALE, **weights)
    without = fit_inverse_dynamics(
        prior, recordings[0], joint_effects=JointEffects(spring=["joint2"]), friction_velocity=V_SCALE, **weights
    )
    error = fit.evaluate(recordings[1]).relative
    assert error < 0.003
    assert without.evaluate(recordings[1]).relative > 5 * error
    found = dict(zip(fit.names, fit.parameters, strict=True))
    true = dict(zip(fit.names, fit.parameters_of(truth, values), strict=True))
    for name in (x for x in fit.names if x.startswith(("presliding", "viscous asym", "warm-up", "compliance", "back"))):
        assert found[name] == pytest.approx(true[name], rel=0.1, abs=0.02 if name.startswith("warm-up") else 0.003)
    if kind == "temperature":
        with pytest.raises(DataError, match="changes with temperature, but the recording has none"):
            fit.predict(dataclasses.replace(recordings[1], temperature=None))
    if kind == "deflection":
        with pytest.raises(ModelError, match="these actuators are rigid"):
            fit.values.actuators(fit.model)
        with pytest.raises(DataError, match="does not take the effects flexibility"):
            jaxdyn.sysid.optimize_excitation(truth, duration=1.0, joint_effects=JointEffects(flexibility=True))


@jax.jit
def advance(block, signal, at, memory):
    return block.advance(signal, at, memory)


def test_friction_with_a_state_simulates():
    """Along a velocity, blocks of actuators have the friction of the identified law, step by step."""
    truth, _, plain = robot_with_effects(load=np.zeros(3))
    kinds = OF_STATE["friction"] | OF_STATE["time"] | {"presliding": np.array([0.03, 0.01, 0.05])}
    values = dataclasses.replace(plain, **kinds)
    t = 0.01 * np.arange(80)
    q = np.sin(np.outer(t, [5.0, 9.0, 14.0]))
    v = q / 2
    d, f, w = (np.asarray(x) for x in (truth.damping, truth.friction, truth.friction_velocity))
    states = Dahl(1.0, values.presliding, w).along(v, np.full(len(t), 0.01), 0.0)[1:]
    change = np.exp(-t[:, None] / values.warm_up)
    law = values.friction(d, f, FrictionMotion(v, states, 0.0, q, change))
    expected = law.torque(v) - (d * v + f * np.tanh(v / w))
    for j, actuator in enumerate(values.actuators(truth)):
        (block,) = actuator.force_path
        memory = block.start()
        for k in range(len(t)):
            out, memory = advance(block, 0.0, ActuatorState(q[k, j], v[k, j], 0.01), memory)
            assert out == pytest.approx(-expected[k, j], abs=1e-10)
    world = World(truth, actuators=values.actuators(truth), timestep=0.01)
    motion = world.rollout(world.state(np.zeros(3)), np.ones((20, 3)))
    assert motion.activation.shape[-1] == 6
    assert np.isfinite(motion.q).all()


def test_a_torque_that_is_late_and_drives_with_unknown_gains():
    truth, _, _ = truth_and_prior()
    values = dataclasses.replace(
        JointEffectValues.none(truth), gain=np.array([1.0, 1.3, 1.0]), torque_delay=np.array([0.0, 0.0, 0.04])
    )
    train = smooth_motion(truth, values, 4)
    effects = JointEffects(gain=["joint1"], torque_delay=["joint2"])
    fit = fit_inverse_dynamics(truth, train, joint_effects=effects, friction_velocity=V_SCALE, prior_weight=1.0)
    np.testing.assert_allclose(fit.values.gain, values.gain, rtol=0.01)
    np.testing.assert_allclose(fit.values.torque_delay, values.torque_delay, atol=0.003)
    with pytest.raises(DataError, match="drive gain"):
        ordinary_least_squares(truth, train, joint_effects=effects)


def test_what_is_not_chosen_stays_as_the_model_has_it():
    truth, prior, _ = truth_and_prior()
    train = motion(truth, 5)
    prior = eqx.tree_at(lambda m: (m.armature, m.damping), prior, (truth.armature, truth.damping))
    effects = JointEffects(armature=False, viscous=["joint1"], offset=False)
    for fit in (
        fit_inverse_dynamics(prior, train, joint_effects=effects, friction_velocity=V_SCALE),
        ordinary_least_squares(prior, train, joint_effects=effects, friction_velocity=V_SCALE),
    ):
        np.testing.assert_array_equal(fit.model.armature, truth.armature)
        np.testing.assert_array_equal(fit.offset, 0)
        assert np.all(fit.sigma < 1e-4)
        assert len(fit.parameters) == 30 + 1 + 3 == len(fit.names)


def test_several_recordings_are_one_fit():
    truth, prior, offset = truth_and_prior()
    long = motion(truth, 6, offset=offset)
    noisy = dataclasses.replace(long, tau=long.tau + 0.1 * np.random.default_rng(7).normal(size=long.tau.shape))
    parts = [noisy.between(0, 1), noisy.between(1, 9)]
    whole, split = (ordinary_least_squares(prior, x, friction_velocity=V_SCALE) for x in (noisy, parts))
    np.testing.assert_allclose(split.parameters, whole.parameters, atol=1e-9)
    assert split.evaluate(parts).total_rms == pytest.approx(whole.evaluate(noisy).total_rms, rel=1e-9)


def test_robust_losses_do_not_mind_outliers():
    truth, prior, offset = truth_and_prior()
    clean, test = motion(truth, 8, offset=offset), motion(truth, 9, offset=offset)
    rng = np.random.default_rng(10)
    tau = clean.tau + 0.01 * rng.normal(size=(300, 3)) + np.where(rng.random((300, 3)) < 0.05, 20.0, 0.0)
    data = dataclasses.replace(clean, tau=tau)
    fits = {
        loss: fit_inverse_dynamics(prior, data, friction_velocity=V_SCALE, loss=loss, rounds=30)
        for loss in ("squared", "huber", "cauchy")
    }
    error = {loss: fit.evaluate(test).total_rms for loss, fit in fits.items()}
    assert error["cauchy"] < 0.005, error
    assert error["huber"] < 0.005, error
    assert error["squared"] > 0.5, error
    linear = ordinary_least_squares(prior, data, friction_velocity=V_SCALE, loss="cauchy", rounds=30)
    assert linear.evaluate(test).total_rms < 0.01
    with pytest.raises(DataError, match="loss is 'hubber'"):
        ordinary_least_squares(prior, data, loss="hubber")  # pyright: ignore[reportArgumentType]


def test_base_parameters_in_words():
    truth, prior, offset = truth_and_prior()
    base = base_parameters(prior)
    assert base.rank == 25
    assert base.gap > 1e6
    words = base.describe()
    # The second link hangs 0.2 m below the first, so its mass adds to the first moment of the first link.
    assert "m*cz(link1) - 0.2 m(link2)" in words
    assert "m(link0)" in base.unidentifiable
    # A change of parameters that changes no base parameter changes no torque.
    p = np.zeros(42)
    p[base.dependent] = np.random.default_rng(11).normal(size=len(base.dependent))
    p[base.independent] = -base.relations @ p[base.dependent]
    assert np.abs(base.matrix @ p).max() < 1e-12
    data = motion(truth, 12, offset=offset)
    fit = ordinary_least_squares(prior, data, friction_velocity=V_SCALE)
    moved = fit.model.inertial_parameters + p[:30].reshape(3, 10)
    leaves = (moved, fit.model.armature + p[30:33], fit.model.damping + p[33:36], fit.model.friction + p[36:39])
    model = eqx.tree_at(lambda m: (m.inertial_parameters, m.armature, m.damping, m.friction), fit.model, leaves)
    tau = fit.values.torque(model, data.t, data.q, data.v, data.a) + p[39:]
    np.testing.assert_allclose(tau, fit.predict(data), atol=1e-9)
    # The data excite the same number of combinations; a robot at rest excites fewer.
    assert fit.base_parameters().rank == 25
    resting = dataclasses.replace(data, v=0 * data.q, a=0 * data.q)
    assert base_parameters(prior, resting).rank < 12
    with pytest.raises(DataError, match="threshold"):
        base_parameters(prior, threshold=2.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "physical"])
def test_intervals_cover_the_truth(kind):
    """In 200 data sets 90 to 98 % of the 95 % intervals of the base parameters contain the true ones."""
    truth, prior, offset = truth_and_prior()
    clean = motion(truth, 13, n=150, offset=offset)
    rng = np.random.default_rng(14)
    noise = np.array([0.5, 0.2, 0.05])
    base = base_parameters(prior)
    effects = (truth.armature, truth.damping, truth.friction, offset)
    true = base.matrix @ np.concatenate([np.asarray(truth.inertial_parameters).ravel(), *effects])
    inside = []
    for _ in range(200):
        data = dataclasses.replace(clean, tau=clean.tau + noise * rng.normal(size=(150, 3)))
        fit = (fit_inverse_dynamics if kind == "physical" else ordinary_least_squares)(
            prior, data, friction_velocity=V_SCALE
        )
        intervals = fit.intervals(base)
        inside.append((intervals.lower <= true) & (true <= intervals.upper))
    assert 0.90 <= np.mean(inside) <= 0.98, np.mean(inside, axis=0)


@pytest.mark.slow
def test_bootstrap_and_intervals_agree_for_residuals_that_are_independent_or_not():
    truth, prior, offset = truth_and_prior()
    clean = motion(truth, 15, n=2000, offset=offset)
    rng = np.random.default_rng(16)
    white = 0.2 * rng.normal(size=(2000, 3))
    # Noise that is constant over 20 samples leaves one independent sample in 20, so standard errors grow by sqrt(20).
    alike = np.repeat(0.2 * rng.normal(size=(100, 3)), 20, axis=0)
    found = []
    for noise in (white, alike):
        data = dataclasses.replace(clean, tau=clean.tau + noise)
        for fit in (
            fit_inverse_dynamics(prior, data, friction_velocity=V_SCALE),
            ordinary_least_squares(prior, data, friction_velocity=V_SCALE),
        ):
            base = base_parameters(prior)
            expected = fit.intervals(base).standard_error[-3:]
            errors = bootstrap(fit, data, blocks=50, draws=400).intervals(fit, base).standard_error[-3:]
            np.testing.assert_allclose(np.mean(errors / expected), 1.0, rtol=0.3)
            found.append(expected)
    np.testing.assert_allclose(np.mean(np.divide(found[2:], found[:2])), np.sqrt(20), rtol=0.3)


def test_what_the_prior_decides_is_told():
    truth, prior, offset = truth_and_prior()
    data = motion(truth, 17, offset=offset)
    fit = fit_inverse_dynamics(
        prior, dataclasses.replace(data, tau=data.tau + 0.05), friction_velocity=V_SCALE, prior_weight=1.0
    )
    decided = fit.intervals().decided_by_prior()
    # The first link turns about a vertical axis, so its mass does not affect any torque.
    assert "m(link0)" in decided
    assert not any(name in decided for name in ("m*cz(link2)", "coulomb(joint1)", "offset(joint2)"))
    assert "prior" in fit.intervals().table()


@pytest.mark.slow
def test_cross_validation_trusts_a_prior_that_is_right():
    truth, wrong, offset = truth_and_prior()
    few = motion(truth, 18, n=40, offset=offset)
    few = dataclasses.replace(few, tau=few.tau + 2.0 * np.random.default_rng(19).normal(size=(40, 3)))
    many = motion(truth, 20, offset=offset)
    many = dataclasses.replace(many, tau=many.tau + 0.02 * np.random.default_rng(24).normal(size=(300, 3)))
    weights = (0.01, 1.0, 1e5)
    right = cross_validate(truth, few, friction_velocity=V_SCALE, prior_weights=weights, folds=4)
    assert right.errors.shape == (4, 3)
    assert right.best >= 1.0
    assert right.largest_within_one_standard_error >= right.best
    assert cross_validate(wrong, many, friction_velocity=V_SCALE, prior_weights=weights).best < 1e5
    fit = fit_inverse_dynamics(wrong, many, friction_velocity=V_SCALE, prior_weight=CandidateWeights(weights))
    assert fit.prior_weight in weights[:2]
    assert "cross-validation" in fit.message


def test_the_fit_is_the_optimum_of_the_semidefinite_program():
    """An interior-point solver finds the same optimum: the cost with its log-det prior is convex in pseudo-inertias."""
    truth, prior, offset = truth_and_prior()
    data = motion(truth, 21, n=100, offset=offset)
    data = dataclasses.replace(data, tau=data.tau + np.random.default_rng(22).normal(size=(100, 3)))
    samples = Samples(prior, data, JointEffects(), EffectShape.default(np.full(3, V_SCALE)))
    problem = start_at(prior, samples, 0.3, 0.2).with_data(samples.compressed()[0], np.full(3, 0.5), samples.layout)
    optimum = minimize(problem, problem.prior, 100)
    assert optimum.status == Status.CONVERGED
    assert optimum.steps < 100
    assert optimum.cost == pytest.approx(convex_optimum(problem), rel=1e-6)


def test_errors_of_effects():
    truth, prior, _ = truth_and_prior()
    data = motion(truth, 23, n=50)
    with pytest.raises(jaxdyn.UnknownNameError, match="joint9"):
        fit_inverse_dynamics(prior, data, joint_effects=JointEffects(viscous=["joint9"]))
    with pytest.raises(DataError, match="stribeck without coulomb"):
        fit_inverse_dynamics(prior, data, joint_effects=JointEffects(coulomb=False, stribeck=True))
    with pytest.raises(DataError, match="list of names"):
        JointEffects(load="joint1")
    with pytest.raises(DataError, match="prior_weight is 'guess'"):
        fit_inverse_dynamics(prior, data, prior_weight="guess")  # pyright: ignore[reportArgumentType]
    linear = ordinary_least_squares(prior, data)
    with pytest.raises(ModelError, match="base_parameters"):
        linear.intervals()
    assert hash(JointEffects(load=["joint1"])) == hash(JointEffects(load=("joint1",)))
    assert rms(np.ones(3)) == 1


def test_the_regressor_with_joint_columns_is_inverse_dynamics():
    truth, _, offset = truth_and_prior()
    data = motion(truth, 25, n=20)
    assert data.v is not None
    # Batch axes broadcast: here one velocity serves all configurations.
    v = jnp.asarray(data.v[:1])
    Y = jaxdyn.torque_regressor(truth, data.q, v, data.a, armature=True, viscous=True, coulomb=True, offset=True)
    p = jnp.concatenate([truth.inertial_parameters.ravel(), truth.armature, truth.damping, truth.friction, offset])
    expected = jaxdyn.rnea(truth, jnp.asarray(data.q), v, jnp.asarray(data.a)) + offset
    np.testing.assert_allclose(Y @ p, expected, atol=1e-10)
    assert jaxdyn.torque_regressor(truth, data.q, v, data.a, coulomb=True).shape == (20, 3, 33)


COUPLED = np.array([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [0.0, -1.0, 0.5]])
"""The second motor turns two joints; both last motors count in other units than their joints."""


def recording_of_motors(links, motors: dict[str, np.ndarray], noise: float, seed: int) -> Recording:
    """Torques of motors, with friction and inertia that act on the motions of motors."""
    motion = smooth_motion(links, JointEffectValues.none(links), 3, n=400)
    q, v, a = motion.require("q", "v", "a")
    tau = np.asarray(jaxdyn.rnea(links, q @ COUPLED.T, v @ COUPLED.T, a @ COUPLED.T)) @ COUPLED
    tau = tau + motors["armature"] * a + motors["viscous"] * v + motors["coulomb"] * np.tanh(v / V_SCALE)
    tau = tau + noise * tau.std(axis=0) * np.random.default_rng(seed).normal(size=tau.shape)
    return Recording(motion.t, q, v, a, tau, transmission=COUPLED)


def test_friction_of_motors_that_drive_joints_together():
    truth, *_ = truth_and_prior()
    links = truth.with_joint_friction(0.0, 0.0, V_SCALE).with_armature(0.0)
    motors = {name: np.array(x) for name, x in (("armature", [0.1, 0.3, 0.05]), ("viscous", [0.5, 0.8, 0.3]))}
    motors["coulomb"] = np.array([1.0, 2.0, 0.7])
    inside = []
    for seed in range(15):
        recording = recording_of_motors(links, motors, 0.02, seed)
        fit = ordinary_least_squares(links, recording)
        base = fit.base_parameters()
        true = [motors[kind][j] if kind in motors else 0.0 for kind, j in fit.layout.joints]
        value = base.matrix @ np.concatenate([np.asarray(links.inertial_parameters).ravel(), true])
        found = fit.intervals(base)
        inside.append((found.lower < value) & (value < found.upper))
    assert 0.9 < np.mean(inside) < 0.99
    assert "coulomb(motor joint2)" in fit.names
    assert "coulomb(joint0)" in fit.names
    scatter = 0.02 * recording_of_motors(links, motors, 0.0, 0).tau.std(axis=0)
    np.testing.assert_allclose(fit.sigma, scatter, rtol=0.1)
    np.testing.assert_allclose(fit.values.motors.friction, motors["coulomb"], rtol=0.1)
    # The model has what belongs to one joint alone.
    assert fit.model.friction[0] == fit.values.motors.friction[0]
    np.testing.assert_array_equal(fit.model.friction[1:], 0)
    exact = recording_of_motors(links, motors, 0.0, 0)
    assert np.all(rms(fit.predict(exact) - exact.tau) < 0.3 * scatter)
    # In the torques of joints the friction of a motor is spread over several.
    without = ordinary_least_squares(links, recording.of_joints())
    noise = np.sqrt(np.linalg.inv(COUPLED).T ** 2 @ scatter**2)
    assert (without.sigma / noise)[1:].max() > 3


def test_a_physical_fit_of_motors_and_what_does_not_go_with_them():
    truth, prior, _ = truth_and_prior()
    links = truth.with_joint_friction(0.0, 0.0, V_SCALE).with_armature(0.0)
    motors = {name: np.array([0.2, 0.4, 0.1]) for name in ("armature", "viscous", "coulomb")}
    recording = recording_of_motors(links, motors, 0.0, 0)
    fit = fit_inverse_dynamics(prior, recording, prior_weight=1e-3, joint_effects=JointEffects(load=True))
    assert fit.evaluate(recording).relative < 0.02
    with pytest.raises(DataError, match="not that of the fit"):
        fit.evaluate(recording.of_joints())
    with pytest.raises(ModelError, match="drive joints together"):
        fit.values.actuators(fit.model)
    with pytest.raises(DataError, match="spring does not go"):
        ordinary_least_squares(links, recording, joint_effects=JointEffects(spring=True))
    with pytest.raises(DataError, match="different transmissions"):
        ordinary_least_squares(links, [recording, recording.of_joints()])
    with pytest.raises(DataError, match="no inverse"):
        dataclasses.replace(recording, transmission=np.ones((3, 3)))
    back = recording.of_joints()
    np.testing.assert_allclose(back.q, recording.q @ COUPLED.T)
    np.testing.assert_allclose(np.sum(back.tau * back.v, 1), np.sum(recording.tau * recording.v, 1), atol=1e-9)


def test_base_parameters_follow_a_payload_and_friction_that_changes():
    truth, _, offset = truth_and_prior()
    links = truth.with_joint_friction(truth.damping, truth.friction, V_SCALE)
    body = links.body_names[-1]
    load = jaxdyn.BodyInertia.box(1.5, (0.1, 0.15, 0.2), (0.05, 0.02, 0.1))
    carrying = links.with_payload(body, load)
    rubbing = dataclasses.replace(carrying, friction=1.5 * carrying.friction)
    calm, loaded = (
        smooth_motion(model, dataclasses.replace(JointEffectValues.none(model), offset=offset), seed, n)
        for model, seed, n in ((links, 1, 600), (rubbing, 2, 3000))
    )
    noise = 0.02 * calm.tau.std(axis=0)
    inside, masses = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        before = dataclasses.replace(calm, tau=calm.tau + noise * rng.normal(size=calm.tau.shape))
        tracker = RecursiveFit(ordinary_least_squares(links, before), dt=0.01, memory=3.0)
        tau = loaded.tau + noise * rng.normal(size=loaded.tau.shape)

        def follow(state, x, tracker=tracker):
            return tracker.update(state, *x), None

        samples = tuple(map(jnp.asarray, (*loaded.require("q", "v", "a"), tau)))
        state, _ = jax.lax.scan(follow, tracker.start(), samples)
        base = tracker.fit.base_parameters()
        kinds = {
            "armature": rubbing.armature,
            "viscous": rubbing.damping,
            "coulomb": rubbing.friction,
            "offset": offset,
        }
        own = [float(kinds[kind][j]) for kind, j in tracker.fit.layout.joints]
        value = base.matrix @ np.concatenate([np.asarray(rubbing.inertial_parameters).ravel(), own])
        found = tracker.intervals(state)
        inside.append((found.lower < value) & (value < found.upper))
        payload = tracker.payload(state, body)
        masses.append((payload.value[0], payload.standard_error[0]))
    assert 0.88 < np.mean(inside) < 0.99
    # The memory of 300 samples tells the mass of the payload, with the friction that changed at the same time.
    mass, error = np.array(masses).T
    assert error.max() < 0.1
    assert np.sqrt(np.mean(((mass - 1.5) / error) ** 2)) < 2
    with pytest.raises(DataError, match="fit again with fewer effects"):
        RecursiveFit(ordinary_least_squares(links, before, joint_effects=JointEffects(load=True)), dt=0.01, memory=3.0)
