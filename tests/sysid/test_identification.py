"""Identification in one call: honest intervals, chosen effects, and what it says about its data."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, sysid
from jaxdyn.cli import simulate_recording
from jaxdyn.cli._simulated_recording import Simulation, _change_parameters, _excitation
from jaxdyn.sysid.torques._residual_noise import SlopeNoise, independent_share, without_leverage
from jaxdyn.sysid.torques._torque_model import EffectShape, Samples
from jaxdyn.sysid.torques._verdict import verdict
from tests.sysid.faulty_joints import FAULTS, recording_with

FRICTION = {"damping": 0.8, "friction": 1.5, "friction_velocity": 0.05}


def _arm():
    """The two joints of the sample arm that the README's tour moves."""
    return jaxdyn.samples.arm().with_locked_joints({f"joint{i}": 0.0 for i in (1, 3, 5, 6, 7)})


def _recording(truth, seed=0, *, duration=10.0, rate=200.0, noise=0.05, encoder=0.0, offset=0.0, gravity=None):
    """A motion of sines, with exact derivatives unless the encoders have noise, and torques with white noise (N m)."""
    rng = np.random.default_rng(seed)
    t = np.arange(0.0, duration, 1 / rate)
    w, phase = np.array([[1.3, 1.9], [4.1, 5.3]]), rng.uniform(0, 2 * np.pi, (2, 2))
    size = np.array([[1.0, 1.0], [0.4, 0.4]])
    angle = w[:, None] * t[:, None] + phase[:, None]
    q = np.sum(size[:, None] * np.sin(angle), axis=0) - np.array([0.0, 1.5])
    v = np.sum((size * w)[:, None] * np.cos(angle), axis=0)
    a = -np.sum((size * w**2)[:, None] * np.sin(angle), axis=0)
    robot = truth if gravity is None else dataclasses.replace(truth, gravity=jnp.asarray(gravity))
    tau = np.asarray(jaxdyn.rnea(robot, jnp.asarray(q), jnp.asarray(v), jnp.asarray(a))) + offset
    tau = tau + noise * rng.normal(size=tau.shape)
    if encoder:
        return sysid.Recording(t, q + encoder * rng.normal(size=q.shape), tau=tau)
    return sysid.Recording(t, q, v, a, tau)


def _true_parameters(fit, truth):
    """The truth of every parameter of a fit, 0 for effects that the truth does not have."""
    return np.nan_to_num(fit.parameters_of(truth))


def _covered(fit, truth, offset):
    """Whether the interval of each base parameter has the truth."""
    base, p = fit.base_parameters(), _true_parameters(fit, truth)
    p[-truth.nv :] = offset
    intervals, y = fit.intervals(base), base.matrix @ p
    return (intervals.lower <= y) & (y <= intervals.upper)


def test_a_low_pass_of_torque_and_torque_model_alike_leaves_friction_unbiased():
    truth = _arm().with_joint_friction(**FRICTION)
    exact = _recording(truth, noise=0.0, rate=1000.0)
    raw = sysid.Recording(exact.t, exact.q, tau=exact.tau)
    errors = {}
    for name, recording in (("both", raw.prepared(3.0)), ("motion", raw.filtered(3.0).differentiated())):
        fit = sysid.ordinary_least_squares(truth, recording, friction_velocity=0.05)
        errors[name] = np.abs(np.asarray(fit.model.friction) / 1.5 - 1).max()
    assert errors["both"] < 2e-4
    assert errors["motion"] > 0.01  # what filters of the motion alone cost


def test_prepared_recordings_say_what_is_wrong():
    recording = _recording(_arm(), rate=100.0)
    with pytest.raises(DataError, match=r"neither above 0.4 times the rate, 40 Hz"):
        recording.prepared(50.0)
    with pytest.raises(DataError, match=r"too short for a low pass at 0.3 Hz"):
        sysid.fit_inverse_dynamics(_arm(), recording.between(0, 5).prepared(0.3, motion_cutoff=5.0))
    bent = dataclasses.replace(recording, t=recording.t + 0.001 * np.sin(recording.t), cutoff=5.0)
    with pytest.raises(DataError, match=r"uniform samples; call prepared\(\)"):
        sysid.fit_inverse_dynamics(_arm(), bent)


def test_the_low_pass_is_the_same_in_parts_and_at_once(monkeypatch):
    truth = _arm().with_joint_friction(**FRICTION)
    recordings = [_recording(truth, seed, duration=4.0 + seed).prepared(5.0) for seed in range(2)]
    shape, effects = EffectShape.default(np.full(2, 0.05)), sysid.JointEffects()
    whole = np.concatenate([B for _, B in Samples(truth, recordings, effects, shape).chunks()])
    monkeypatch.setattr("jaxdyn.sysid.torques._torque_model._CHUNK", 200)
    samples = Samples(truth, recordings, effects, shape)
    parts = list(samples.chunks())
    assert len(parts) > 4
    np.testing.assert_allclose(np.concatenate([B for _, B in parts]), whole, atol=1e-12)
    by_hand = [f.apply(x.tau) for f, x in zip(samples.filters, recordings, strict=True)]
    np.testing.assert_allclose(whole[..., -1], np.concatenate(by_hand), atol=1e-12)


@pytest.mark.slow
def test_the_covariance_of_scores_is_that_of_repeated_noise():
    """Noise with a known spectrum, drawn many times: the covariance of X^T r against its estimate from one draw."""
    truth = _arm().with_joint_friction(**FRICTION)
    recording = _recording(truth, noise=0.0, rate=50.0, duration=40.0)
    samples = Samples(truth, recording, sysid.JointEffects(), EffectShape.default(np.full(2, 0.05)))
    rng, ones = np.random.default_rng(0), np.ones(2)

    def draw():
        white = rng.normal(size=(len(samples) + 50, 2))
        out = np.zeros_like(white)
        for k in range(1, len(white)):  # first order, correlated over about ten samples
            out[k] = 0.9 * out[k - 1] + white[k]
        return out[50:]

    X = np.concatenate([B[..., :-2] for _, B in samples.chunks()])
    scores = np.array([np.einsum("njp,nj->p", X, draw()) for _ in range(400)])
    hat = np.zeros((X.shape[-1], 1))
    estimates = [SlopeNoise(samples, draw(), ones, ones, hat).by_spectra() for _ in range(5)]
    expected = np.sqrt(np.mean([np.sum(K**2, axis=0) for K in estimates], axis=0))
    measured = scores.std(axis=0)
    seen = measured > 0
    np.testing.assert_allclose(expected[seen], measured[seen], rtol=0.25)
    assert independent_share(draw()[:, 0]) == pytest.approx((1 - 0.9**2) / (1 + 0.9**2), rel=0.3)


def test_intervals_never_leave_out_their_value_or_reach_below_zero():
    truth = _arm().with_joint_friction(damping=0.0, friction=0.001)
    start = _arm().scaled(mass=1.3)
    recording = _recording(truth, noise=0.5, duration=6.0)
    fit = sysid.fit_inverse_dynamics(start, recording, friction_velocity=0.05)
    draws = sysid.bootstrap(fit, recording, draws=20, blocks=15)
    assert draws.converged.all()
    positive = fit.positive(np.eye(len(fit.parameters)))
    assert positive.sum() == 4 * 2 + 6  # m, Ixx, Iyy, Izz of two bodies; armature, viscous and Coulomb friction
    for intervals in (fit.intervals(), draws.intervals(fit)):
        assert ((intervals.lower <= intervals.value) & (intervals.value <= intervals.upper)).all()
        assert (intervals.lower[positive] >= 0).all()
        assert np.isfinite(intervals.upper).all()
    assert 0 < fit.intervals().prior_share.max() <= 1
    # What the data push far below the start is decided by the data, whatever its share of the prior's variance.
    table, decided = fit.intervals(), fit.decided_by_start()
    others = np.isin(table.names, sorted(set(table.decided_by_prior()) - set(decided)))
    assert decided
    assert (others <= positive).all()


def test_bootstrap_of_least_squares_agrees_with_its_intervals():
    truth = _arm().with_joint_friction(**FRICTION)
    recording = _recording(truth, noise=0.2)
    fit = sysid.ordinary_least_squares(truth, recording, friction_velocity=0.05)
    base = fit.base_parameters()
    by_blocks = sysid.bootstrap(fit, recording, draws=200).intervals(fit, base)
    ratio = by_blocks.standard_error / fit.intervals(base).standard_error
    assert 0.7 < np.median(ratio) < 1.2


def test_bootstrap_of_a_robust_fit_gives_outliers_their_small_weights():
    truth, rng = _arm().with_joint_friction(**FRICTION), np.random.default_rng(0)
    exact = _recording(truth, noise=0.0, rate=50.0, duration=20.0)
    size = 0.1 * np.where(rng.uniform(size=exact.tau.shape) < 0.05, 20, 1)
    recording = dataclasses.replace(exact, tau=exact.tau + size * rng.normal(size=exact.tau.shape))
    errors = {}
    for loss in ("squared", "huber"):
        fit = sysid.ordinary_least_squares(truth, recording, friction_velocity=0.05, loss=loss)
        base = fit.base_parameters()
        errors[loss] = sysid.bootstrap(fit, recording, draws=100).intervals(fit, base).standard_error
        assert 0.7 < np.median(errors[loss] / fit.intervals(base).standard_error) < 1.2
    assert np.median(errors["huber"] / errors["squared"]) < 0.5
    with pytest.raises(DataError, match="has weights of 1000: give bootstrap the recordings of the fit"):
        sysid.bootstrap(fit, recording.between(0, 10))


def test_residuals_of_a_block_without_leverage_have_the_covariance_of_the_noise():
    X = np.random.default_rng(0).normal(size=(40, 6))
    hat = np.linalg.inv(np.linalg.cholesky(X.T @ X)).T
    block = X[:10]
    left = np.eye(10) - block @ np.linalg.solve(X.T @ X, block.T)  # of the residuals, for noise of unit variance
    enlarged = np.stack([without_leverage(block, x, hat) for x in np.eye(10)], axis=1)
    np.testing.assert_allclose(enlarged @ left @ enlarged.T, np.eye(10), atol=1e-12)


def _periodic(truth, seed, *, degrees=0.0, gain=0.0, spring=0.0):
    """A recording of two periods of an arm, with an error that no effect of the joints describes, or with springs."""
    rng, t, w = np.random.default_rng(seed), np.arange(0.0, 12.0, 0.004), 2 * np.pi / 6
    size, k = rng.normal(size=(5, 2, truth.nv)) * 0.25 / np.arange(1, 6)[:, None, None] ** 0.7, w * np.arange(1, 6)
    s, c = np.sin(k[:, None] * t), np.cos(k[:, None] * t)
    q = np.einsum("hj,ht->tj", size[:, 0], s) + np.einsum("hj,ht->tj", size[:, 1], c)
    v, a = (np.einsum("hj,h,ht->tj", size[:, 0], k**n, x) for n, x in ((1, c), (2, -s)))
    v, a = (x + np.einsum("hj,h,ht->tj", size[:, 1], -(k**n), y) for x, n, y in ((v, 1, s), (a, 2, c)))
    tilted = np.array([np.sin(np.radians(degrees)), 0, -np.cos(np.radians(degrees))]) * 9.81
    robot = dataclasses.replace(truth, gravity=jnp.asarray(tilted))
    middle = np.asarray(truth.position_lower + truth.position_upper) / 2
    tau = np.asarray(jaxdyn.rnea(robot, *(jnp.asarray(x) for x in (q + middle, v, a)))) + spring * q
    tau = tau * (1 + gain * rng.choice([-1, 1], truth.nv))
    return sysid.Recording(t, q + middle, tau=tau + 0.015 * tau.std(axis=0) * rng.normal(size=tau.shape))


def test_parts_that_are_held_out_have_other_motions():
    """A periodic motion repeats itself: parts in time would be predicted as well as those of the fit, whatever the
    model lacks."""
    truth = _arm().with_joint_friction(**FRICTION)
    recording = _periodic(truth, 0, spring=2.0).prepared(10.0)
    found = sysid.cross_validate(truth, recording, friction_velocity=0.05, prior_weights=(1.0,))
    assert found.errors.shape == (5, 1)
    # The noise by which errors are divided is what least squares leave of the fit's own data. Parts in time have twice
    # as much, since the ends of the recording differ.
    assert found.errors.mean() > 2.5


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("gain", {"gain": 0.1}),
        ("tilt", {"degrees": 3.0}),
        ("length", {}),
        ("spring", {"spring": 4.0}),
    ],
)
def test_effects_that_do_not_exist_do_not_make_up_for_other_errors(cause, change):
    """Of an arm of seven joints, with errors of other kinds, and with springs that exist."""
    truth = jaxdyn.samples.arm().with_joint_friction(0.5, 0.4, 0.02).with_armature(0.1)
    start = truth.scaled(mass=1.2)
    if cause == "length":
        start = dataclasses.replace(start, joint_placement=start.joint_placement.at[1:, :3].multiply(1.03))
    for seed in range(3):
        effects = sysid.plan_identification(start, _periodic(truth, seed, **change)).joint_effects
        assert effects == sysid.JointEffects(spring=cause == "spring")


@pytest.mark.slow
def test_identify_finds_what_is_there_and_nothing_else():
    truth = _arm().with_joint_friction(**FRICTION)
    found = sysid.identify(_arm().scaled(mass=1.2), _recording(truth, offset=0.3), friction_velocity=0.05)
    assert found.fit.converged
    effects = found.plan.joint_effects
    assert effects == sysid.JointEffects()
    np.testing.assert_allclose(found.model.friction, 1.5, rtol=0.03)
    assert _covered(found.fit, truth, 0.3).mean() > 0.8
    text = str(found)
    assert "The residuals point to none of these causes" in text
    assert "decided by the start alone" in text
    choice, cause = sysid.Choice("load", -0.01, 0.02, False), sysid.Cause("load friction", 0.3, 50.0, (), np.zeros(2))
    refused = dataclasses.replace(found, plan=found.plan._replace(choices=(choice,)), causes=(cause,))
    assert "for load friction, and not taken: with it the mean square on parts that were held out is 1 % larger" in str(
        refused
    )
    later = _recording(truth, seed=1, offset=0.3)
    assert found.evaluate(later).relative < found.evaluate(later, raw=True).relative < 0.02


@pytest.mark.slow
def test_an_unknown_width_of_the_sign_is_not_taken_for_stribeck_friction():
    """The model says 0.01 rad/s, the truth is 0.05 rad/s."""
    truth = _arm().with_joint_friction(**FRICTION)
    found = sysid.identify(_arm().with_joint_friction(0.1, 0.1, 0.01), _recording(truth, noise=0.02), prior_weight=1.0)
    assert found.plan.joint_effects == sysid.JointEffects(friction_velocity=True)
    refused = {x.name: x.taken for x in found.plan.choices if x.name.startswith("stribeck, beside")}
    assert refused in ({}, {"stribeck, beside the others": False})
    table = found.fit.intervals()
    for name, true in (
        ("friction velocity(joint2)", 0.05),
        ("friction velocity(joint4)", 0.05),
        ("coulomb(joint2)", 1.5),
    ):
        at = table.names.index(name)
        assert abs(table.value[at] - true) < 4 * table.standard_error[at]
        assert table.upper[at] - table.lower[at] < 0.1 * true


@pytest.mark.slow
def test_intervals_know_that_a_width_was_searched_for():
    """Over 12 recordings: the intervals of friction, offsets and of the width itself."""
    inside = []
    for seed in range(12):
        truth = _arm().with_joint_friction(**FRICTION)
        recording = _recording(truth, seed, noise=0.05, rate=100.0)
        effects = sysid.JointEffects(friction_velocity=True)
        fit = sysid.fit_inverse_dynamics(_arm(), recording, joint_effects=effects, prior_weight=1.0)
        assert fit.converged
        assert fit.refined[0].all()
        inside.append(_covered(fit, truth, 0.0)[-8:])
    assert np.mean(inside) >= 0.9
    draws = sysid.bootstrap(fit, recording, draws=40)
    ratio = draws.intervals(fit).standard_error / fit.intervals().standard_error
    assert 0.6 < ratio[fit.names.index("friction velocity(joint2)")] < 1.6


def test_what_leaves_the_range_of_a_search_counts_as_known():
    """Friction without delay: a Gauss-Newton step of some delay goes below zero."""
    truth = _arm().with_joint_friction(**FRICTION)
    effects = sysid.JointEffects(friction_delay=True)
    for seed in range(6):
        fit = sysid.fit_inverse_dynamics(
            truth, _recording(truth, seed, rate=100.0), joint_effects=effects, friction_velocity=0.05
        )
        assert fit.converged
        assert (fit.values.friction_delay >= 0).all()
        if not fit.refined[2].all():
            break
    assert not fit.refined[2].all()
    said = verdict(fit, None, _recording(truth, seed, rate=100.0), (), {})
    assert any("Of these, steps of the fit did not settle friction delay of" in x for x in said)


@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("lengths", {"scaled": 1.2}),
        ("tilt", {"gravity": [0.5, 0.2, -9.79]}),
        ("torque delay", {"delay": 0.03}),
    ],
)
def test_residuals_point_to_what_is_wrong(cause, change):
    truth = _arm()
    recording = _recording(truth, noise=0.02, rate=100.0, gravity=change.get("gravity"))
    start = truth.scaled(length=change["scaled"]) if "scaled" in change else truth
    if "delay" in change:
        recording = recording.aligned(-change["delay"])
    fit = sysid.fit_inverse_dynamics(start, recording)
    first = sysid.residual_causes(fit, recording)[0]
    assert first.name == cause
    assert first.evident
    if cause == "tilt":
        np.testing.assert_allclose(first.parameters[0], 0.5, rtol=0.2)
    found = sysid.identify(start, recording, joint_effects=sysid.JointEffects(), prior_weight=0.1, force=True)
    assert any(f"point to {cause}" in line for line in found.verdict())


def _structured_torques(kind, q, v, t):
    """Friction without a parameter here (N m), and what of a position the encoder sees beyond that of the link."""
    sign = np.tanh(v / 0.05)
    if kind == "time":
        return -sign * (1 - np.exp(-t / 4))[:, None]
    if kind == "other joints":
        return np.stack([0 * t, np.tanh((v[:, 0] + v[:, 1]) / 0.05)], axis=1)
    if kind == "position":
        return 0.5 * np.sin(6 * q)
    z, x = np.zeros_like(v), np.zeros(2)
    for k in range(len(t)):  # Dahl's law, with a way of 0.03 rad
        for _ in range(4):
            x = x + 0.25 * (t[1] - t[0]) * (v[k] - np.abs(v[k]) * x / 0.03)
        z[k] = x / 0.03
    return 1.5 * (z - sign)


@pytest.mark.parametrize("kind", ["time", "position", "direction", "other joints", "none"])
def test_structure_without_a_name_is_something_else(kind):
    truth = _arm().with_joint_friction(**FRICTION)
    r = _recording(truth, noise=0.02, rate=100.0, duration=16.0)
    if kind != "none":
        r = dataclasses.replace(r, tau=r.tau + _structured_torques(kind, r.q, r.v, r.t))
    options = {"joint_effects": sysid.JointEffects(), "prior_weight": 1.0, "force": True}
    found = sysid.identify(truth.scaled(mass=1.2), r, friction_velocity=0.05, **options)
    evident, text = [x for x in found.causes if x.evident], str(found)
    if kind == "none":
        assert not evident
        assert "Nor do they show structure in time, position, direction" in text
        assert "The torques of gravity" not in text
        return
    assert evident[0].name == {"time": "warm-up", "direction": "presliding friction"}.get(kind, kind)
    if kind in ("time", "direction"):
        assert f"The residuals point to {evident[0].name}, which would explain" in text
        assert "choose it among the joint_effects" in text
        return
    assert evident[0].structure
    assert "Something else is left in the residuals, which no parameter here describes" in text
    assert "Nor do they show" not in text


@pytest.mark.slow
def test_the_first_cause_is_the_effect_that_is_there():
    """Twenty changes of joints, of seven kinds and none, ten recordings each."""
    right = {}
    for cause, changes in FAULTS.items():
        for change in changes:
            for seed in range(10):
                start, *_, recording = recording_with(change, seed)
                prepared = recording.prepared(10.0, model=start)
                fit = sysid.fit_inverse_dynamics(start, prepared, prior_weight=1.0)
                evident = [x.name for x in sysid.residual_causes(fit, prepared) if x.evident]
                right.setdefault(cause, []).append((evident or ["none"])[0] == cause)
    assert sum(map(len, FAULTS.values())) == 20
    assert {cause: np.mean(x) >= 0.9 for cause, x in right.items()} == dict.fromkeys(FAULTS, True)


COVERED = {
    "asymmetry": {"viscous_asymmetry": np.array([0.2, -0.1, 0.15])},
    "position": {"harmonics": (1.0, 2.0), "cosine": np.full((2, 3), 0.2), "sine": np.full((2, 3), -0.1)},
    "warm_up": {"warm_up": np.full(3, 4.0), "warm_up_viscous": np.full(3, 0.2), "warm_up_coulomb": np.full(3, 0.3)},
    "presliding": {"presliding": np.array([0.03, 0.05, 0.08])},
    "flexibility": {"compliance": np.array([1.0, 1.5, 2.0]) / 1000},
    "backlash": {"backlash": np.array([0.0, 0.03, 0.03])},
}


@pytest.mark.slow
@pytest.mark.parametrize("effect", COVERED)
def test_coverage_with_effects_of_joints(effect):
    """Over 100 recordings of an arm of three joints, with white noise of the torque on exact motion."""
    inside = []
    for seed in range(100):
        start, truth, values, recording = recording_with(COVERED[effect], seed, rate=100.0, exact=True)
        effects = sysid.JointEffects(**{effect: ("joint2", "joint3") if effect == "backlash" else True})
        fit = sysid.fit_inverse_dynamics(start, recording, joint_effects=effects)
        base, p = fit.base_parameters(), np.nan_to_num(fit.parameters_of(truth, values))
        intervals, y = fit.intervals(base), base.matrix @ p
        inside.append((intervals.lower <= y) & (y <= intervals.upper))
    assert 0.90 <= np.mean(np.concatenate(inside)) <= 0.98


def test_lengths_that_leave_no_residuals_are_named():
    """Joint 3 slides along its own axis, which changes no torque; joint 4 stands beside its axis."""
    arm = jaxdyn.samples.arm().with_locked_joints({f"joint{i}": 0.0 for i in (5, 6, 7)} | {"joint4": -1.0})
    truth = arm.with_joint_friction(**FRICTION)
    start = dataclasses.replace(truth, joint_placement=truth.joint_placement.at[1:, :3].multiply(1.08))
    found = sysid.identify(start, _periodic(truth, 0), joint_effects=sysid.JointEffects(), prior_weight=1.0)
    (lengths,) = (x for x in found.causes if x.name == "lengths")
    assert not lengths.evident
    assert "joint3" in lengths.hidden
    assert any("would not show, even by a tenth" in x and "joint3" in x for x in found.verdict())


def test_flexible_joints_and_gravity_upside_down_are_named():
    truth = _arm().with_joint_friction(**FRICTION)
    r = _recording(truth, noise=0.02, rate=100.0)
    start = truth.scaled(mass=1.2)
    options = {"joint_effects": sysid.JointEffects(), "prior_weight": 1.0, "friction_velocity": 0.05, "force": True}
    transmitted = np.asarray(jaxdyn.rnea(truth, r.q, r.v, r.a, joint_friction=False))
    flexible = sysid.Recording(r.t, r.q + transmitted / 1500, tau=r.tau)
    found = sysid.identify(start, flexible, **options)
    assert found.causes[0].name == "flexibility"
    assert found.causes[0].evident
    upside_down = dataclasses.replace(start, gravity=-start.gravity)
    text = str(sysid.identify(upside_down, r, **options))
    assert "The torques of gravity that were found are opposite to those of the start" in text


def test_a_tilted_mount_brings_no_effects():
    arm = jaxdyn.samples.arm().with_locked_joints({f"joint{i}": 0.0 for i in (4, 5, 6, 7)})
    truth, t = arm.with_joint_friction(0.5, 0.4, 0.02).with_armature(0.1), np.arange(0.0, 12.0, 0.01)
    rng, w = np.random.default_rng(0), np.arange(1, 6) * np.pi / 3
    q = np.sin(np.outer(t, w)) @ rng.normal(size=(5, 3)) + np.cos(np.outer(t, w)) @ rng.normal(size=(5, 3))
    x = sysid.Recording(t, 0.25 * q + [0.0, 0.5, 0.2]).differentiated()
    tilted = dataclasses.replace(truth, gravity=jnp.asarray([0.855, 0.0, -9.773]))
    tau = np.asarray(jaxdyn.rnea(tilted, x.q, x.v, x.a)) + 0.02 * rng.normal(size=x.q.shape)
    found = sysid.identify(truth.scaled(mass=1.2), sysid.Recording(x.t, x.q, tau=tau), prior_weight=1.0, force=True)
    assert found.plan.joint_effects == sysid.JointEffects()
    assert any("No further effects were tried, since tilt would explain" in x for x in found.verdict())


def test_a_joint_that_turns_one_way_or_never_or_whose_torque_is_clipped():
    truth, t = _arm().with_joint_friction(0.1, 0.5, 0.02), np.arange(0.0, 10.0, 0.01)
    rng = np.random.default_rng(0)
    q = np.stack([0.25 * t - 1.5 + 0.1 * np.sin(t), 0.5 * np.sin(1.7 * t) + 0.3 * np.sin(4 * t) - 1.5], axis=1)

    def identified(q, clip=np.inf):
        x = sysid.Recording(t, q).differentiated()
        tau = np.asarray(jaxdyn.rnea(truth, x.q, x.v, x.a)) + 0.02 * rng.normal(size=x.q.shape)
        recording = sysid.Recording(x.t, x.q, tau=np.clip(tau, -clip, clip))
        return sysid.identify(_arm().scaled(mass=0.8), recording, prior_weight=1.0, force=True, friction_velocity=0.02)

    found = identified(q)
    x = found.fit.intervals()
    for name, true in (("coulomb(joint2)", 0.5), ("offset(joint2)", 0.0), ("coulomb(joint4)", 0.5)):
        at = x.names.index(name)
        assert x.lower[at] <= true <= x.upper[at]
    assert any(
        "one direction only: joint2. Their Coulomb friction and offset are known only together" in y
        for y in found.verdict()
    )
    still = identified(q * [1, 0] + [0, 0.3] + 2e-5 * rng.normal(size=q.shape))
    assert still.plan.joint_effects.coulomb == still.plan.joint_effects.armature == ("joint2",)
    assert any("armature and friction of joint4 were not fitted" in y for y in still.verdict())
    assert any("largest values or limits" in y and "joint4 (" in y for y in identified(q, clip=15.0).verdict())


@pytest.mark.parametrize("limited", [False, True])
def test_clipped_torques_are_left_out(limited):
    """Values that repeat show a limit, and so does the model's limit, with noise after it."""
    truth, rng = _arm().with_joint_friction(0.8, 1.5, 0.05), np.random.default_rng(0)
    exact = _recording(truth, noise=0.0, offset=np.array([0.3, -0.2]))
    limit = 0.6 * np.abs(exact.tau).max(axis=0)
    noise = 0.05 * rng.normal(size=exact.tau.shape)
    tau = np.clip(exact.tau, -limit, limit) + noise if limited else np.clip(exact.tau + noise, -limit, limit)
    start = truth.scaled(mass=0.8)
    if limited:
        start = dataclasses.replace(start, effort_limit=jnp.asarray(limit))
    recording = sysid.Recording(exact.t, exact.q, tau=tau)
    found = sysid.identify(start, recording, friction_velocity=0.05, prior_weight=1.0, force=True)
    assert not any(x.taken for x in found.plan.choices)
    assert not any(x.evident for x in found.causes)
    assert np.mean(_covered(found.fit, truth, np.array([0.3, -0.2]))) > 0.9
    np.testing.assert_allclose(found.fit.model.friction, 1.5, rtol=0.1)
    # Other things than the torque at these samples stay: the other joint's torque, and the motion.
    clipped, left_out = recording.clipped_torques(start), found.plan.recordings[0].clipped_torques()
    assert clipped.mean(axis=0).min() > 0.1
    assert (left_out.mean(axis=0) < 1.3 * clipped.mean(axis=0)).all()
    (sentence,) = (x for x in found.verdict() if "largest values or limits" in x)
    assert f"joint2 ({clipped[:, 0].sum()} of {len(clipped)} samples)" in sentence
    # The errors of held-out torques do not count clipped ones, which the model cannot predict.
    assert found.evaluate(recording).relative < 0.02


def test_wrong_lengths_are_found():
    """The start's are a fifth too long. What no torque depends on stays there."""
    truth = _arm().with_joint_friction(**FRICTION)
    start, recording = truth.scaled(length=1.2), _recording(truth, offset=0.3)
    effects = sysid.JointEffects()
    found = sysid.identify(start, recording, joint_effects=effects, prior_weight=1.0, lengths=True, force=True)
    assert found.fit.converged
    assert found.plan.joint_effects == sysid.JointEffects(length=True)
    base, p = found.fit.base_parameters(), found.fit.parameters_of(truth)
    assert [x for x in base.describe() if "position" in x] == ["position x(joint4)", "position y(joint4)"]
    table = found.fit.intervals()
    lower, upper, share = (
        dict(zip(table.names, x, strict=True)) for x in (table.lower, table.upper, table.prior_share)
    )
    for name in ("position x(joint4)", "position y(joint4)", "coulomb(joint2)", "m*cy(link4)", "Izz(link4)"):
        true = p[table.names.index(name)]
        assert lower[name] <= true <= upper[name]
        assert upper[name] - lower[name] < 0.02 * abs(true)
    np.testing.assert_allclose(found.model.joint_placement[0, :3], [0, 0, 1.2 * 0.333], atol=1e-9)
    np.testing.assert_allclose([share["position z(joint2)"], share["position z(joint4)"]], 1.0, rtol=1e-12)
    text = str(found)
    assert "Of lengths the data determine, in m: position x(joint4) = 0.08" in text
    assert "The residuals point to none of these causes" in text
    assert found.linear is not None
    assert found.linear.evaluate(found.plan.recordings).relative < 0.001
    draws = sysid.bootstrap(found.fit, found.plan.recordings, draws=20).intervals(found.fit, base)
    at = draws.names.index("position x(joint4)")
    assert draws.lower[at] < draws.value[at] < draws.upper[at]
    assert draws.standard_error[at] < 0.001


def test_lengths_are_refused_where_they_must_be_known():
    truth, effects = _arm(), sysid.JointEffects(length=("joint4",))
    recording = _recording(truth, rate=100.0)
    calls = (
        lambda: sysid.ordinary_least_squares(truth, recording, joint_effects=effects),
        lambda: sysid.identify_payload(truth, recording, recording, frame="flange", joint_effects=effects),
        lambda: sysid.optimize_excitation(truth, joint_effects=effects),
    )
    for call in calls:
        with pytest.raises(DataError, match="does not take unknown lengths"):
            call()
    with pytest.raises(jaxdyn.UnknownNameError, match="no joint or loop named 'joint5'"):
        sysid.fit_inverse_dynamics(truth, recording, joint_effects=sysid.JointEffects(length=("joint5",)))


def test_a_tilted_mount_is_found():
    truth = _arm()
    gravity = np.array([0.6, 0.0, -np.sqrt(9.81**2 - 0.6**2)])
    recording = _recording(truth, noise=0.02, rate=100.0, gravity=gravity)
    found = sysid.identify(truth, recording, joint_effects=sysid.JointEffects(), prior_weight=0.1, tilt=True)
    np.testing.assert_allclose(found.model.gravity[0], 0.6, atol=0.03)
    np.testing.assert_allclose(np.linalg.norm(found.model.gravity), 9.81, rtol=1e-6)


def test_no_cause_is_named_for_exact_data():
    truth = _arm()
    recording = _recording(truth, noise=0.0, rate=100.0)
    fit = sysid.fit_inverse_dynamics(truth.scaled(mass=1.2), recording, prior_weight=0.01)
    assert fit.evaluate(recording).relative < 1e-6
    assert not any(x.evident for x in sysid.residual_causes(fit, recording))


def test_correlated_noise_points_to_no_cause():
    """By chance the statistic of a cause is about 1, also where a tenth of the residuals is independent."""
    truth, statistics = _arm().with_joint_friction(**FRICTION), []
    for seed in range(6):
        exact = _recording(truth, seed, noise=0.0, rate=50.0, duration=20.0)
        noise = np.random.default_rng(100 + seed).normal(size=exact.tau.shape)
        for k in range(1, len(noise)):
            noise[k] += 0.9 * noise[k - 1]
        recording = dataclasses.replace(exact, tau=exact.tau + 0.05 * noise)
        fit = sysid.ordinary_least_squares(truth, recording, friction_velocity=0.05)
        causes = sysid.residual_causes(fit, recording)
        assert not any(x.evident for x in causes)
        statistics += [x.statistic for x in causes]
    assert 0.4 < np.mean(statistics) < 2


def test_wrong_data_are_refused():
    recording = _recording(_arm())
    with pytest.raises(DataError, match="negative factor"):
        sysid.identify(_arm(), dataclasses.replace(recording, tau=-recording.tau))


def _random_arm_and_recording(seed, encoder):
    """The sample arm with random inertias, friction and offsets, and a recording of a random motion: exact, at 200 Hz,
    or with noise of the encoders, at 1 kHz."""
    nominal, rng = jaxdyn.samples.arm(), np.random.default_rng(1000 + seed)
    truth, offset = _change_parameters(nominal, 0.25, 0.05, rng)
    rate = 1000.0 if encoder else 200.0
    plan = Simulation(duration=14.0, timestep=1 / rate)
    q, v, a = _excitation(nominal, plan, rng)
    tau = np.asarray(jaxdyn.rnea(truth, jnp.asarray(q), jnp.asarray(v), jnp.asarray(a))) + offset
    tau = tau + 0.002 * np.asarray(nominal.effort_limit) * rng.normal(size=tau.shape)
    t = np.arange(len(q)) / rate
    if encoder:
        return nominal, truth, offset, sysid.Recording(t, q + encoder * rng.normal(size=q.shape), tau=tau)
    return nominal, truth, offset, sysid.Recording(t, q, v, a, tau)


@pytest.mark.slow
@pytest.mark.parametrize("encoder", [0.0, 2e-4])
def test_coverage_of_the_intervals(encoder):
    """Over 60 recordings: white noise of the torque on exact motion, and noisy encoders through the whole of it."""
    inside = {}
    for seed in range(60):
        nominal, truth, offset, recording = _random_arm_and_recording(seed, encoder)
        identified = sysid.identify if encoder else sysid.fit_inverse_dynamics
        found = identified(nominal, recording, friction_velocity=0.05)
        fit = found.fit if encoder else found
        names = fit.base_parameters().describe()
        for name, x in zip(names, _covered(fit, truth, offset), strict=True):
            inside.setdefault(name.split()[0], []).append(x)
    covered = np.concatenate(list(inside.values())).mean()
    assert 0.90 <= covered <= 0.98 if encoder else 0.92 <= covered <= 0.98
    assert min(np.mean(x) for x in inside.values() if len(x) >= 30) >= 0.8


@pytest.mark.slow
def test_coverage_of_the_bootstrap():
    covered = []
    for seed in range(12):
        nominal, truth, offset, recording = _random_arm_and_recording(seed, 0.0)
        fit = sysid.fit_inverse_dynamics(nominal, recording, friction_velocity=0.05)
        base, p = fit.base_parameters(), _true_parameters(fit, truth)
        p[-7:] = offset
        intervals, y = sysid.bootstrap(fit, recording, draws=100).intervals(fit, base), base.matrix @ p
        covered.append((intervals.lower <= y) & (y <= intervals.upper))
    assert 0.92 <= np.mean(covered) <= 0.98


@pytest.mark.slow
def test_both_columns_of_the_first_example_cover_the_truth():
    """The recording of `python -m experiments.identify`, as `identify` prepares and fits it."""
    nominal = jaxdyn.samples.arm()
    made = simulate_recording(nominal, Simulation(), 0.05)
    recording = made.measured.between(0.0, 14.0).prepared(10.0, model=nominal)
    fit = sysid.fit_inverse_dynamics(nominal, recording, friction_velocity=0.05, prior_weight=1.0)
    base, p = fit.base_parameters(), _true_parameters(fit, made.truth)
    p[-7:] = made.offset
    y = base.matrix @ p
    assert len(y) == 69
    for intervals in (fit.intervals(base), sysid.bootstrap(fit, recording).intervals(fit, base)):
        assert np.mean((intervals.lower <= y) & (y <= intervals.upper)) >= 0.9


@pytest.mark.slow
def test_lengths_and_inertias_without_gravity():
    """Positions are determined beside all inertias only where gravity is."""
    model, effects = _arm(), sysid.JointEffects(length=True)
    weightless = dataclasses.replace(model, gravity=jnp.zeros(3))
    with_, without = (sysid.base_parameters(x, effects=effects) for x in (model, weightless))
    assert (with_.rank, without.rank) == (15, 11)
    assert min(with_.gap, without.gap) > 1e9
    assert [x for x in with_.describe() if x.startswith("position")] == ["position x(joint4)", "position y(joint4)"]
    assert not any(x.startswith("position") for x in without.describe())
    assert "m*cx(link4) - 5.151 position x(joint4) - 0.294 position y(joint4)" in without.describe()


@pytest.mark.slow
def test_coverage_of_lengths():
    """An arm of seven joints whose lengths are a fifth off, over 12 recordings with white noise of the torque."""
    inside = []
    for seed in range(12):
        nominal, truth, _, recording = _random_arm_and_recording(seed, 0.0)
        effects, start = sysid.JointEffects(length=True), nominal.scaled(length=1.2)
        fit = sysid.fit_inverse_dynamics(start, recording, joint_effects=effects, friction_velocity=0.05)
        assert fit.converged
        base = fit.base_parameters()
        rows = [i for i, x in enumerate(base.describe()) if x.startswith("position")]
        intervals, y = fit.intervals(base), base.matrix @ np.nan_to_num(fit.parameters_of(truth))
        assert len(rows) == 11
        inside.append(((intervals.lower <= y) & (y <= intervals.upper))[rows])
    assert 0.88 <= np.mean(inside) <= 0.99


def test_a_plan_says_what_it_does(capsys):
    """A function gets what is done now; lines on stderr are for waits only."""
    recording, texts = _recording(_arm().with_joint_friction(**FRICTION), duration=8.0), []
    options = {"joint_effects": sysid.JointEffects(), "cutoff": 5.0}
    plans = [sysid.plan_identification(_arm(), recording, progress=x, **options) for x in (texts.append, False)]
    assert texts[0] == "preparing the recordings"
    assert texts[-1].startswith("choosing the prior by cross-validation: weight ")
    assert plans[0].prior_weight == plans[1].prior_weight
    assert capsys.readouterr().err == ""
