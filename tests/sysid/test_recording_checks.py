"""Checks find likely errors of a recording and report nothing for a good one."""

import dataclasses
import itertools
import os
import re
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, rnea
from jaxdyn.sysid import (
    JointEffects,
    Recording,
    RecordingWarning,
    check_recording,
    load_npz,
    plan_identification,
    require_plausible,
    unchecked_torques,
)

MODEL = jaxdyn.samples.chain(2)
T = np.arange(1200) / 200


def motion(t: np.ndarray = T) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    w = np.array([[1.0, 2.3, 4.1], [1.4, 3.1, 5.2]])[:, :, None]
    size, phase = np.array([[0.6, 0.3, 0.2], [0.5, 0.4, 0.1]])[:, :, None], np.array([0.3, 1.0, 2.0])[:, None]
    s, c = np.sin(w * t + phase), np.cos(w * t + phase)
    q, v, a = (x.sum(axis=1).T for x in (size * s, size * w * c, -size * w**2 * s))
    return q, v, a


def good(noise: float = 1e-3) -> Recording:
    q, v, a = motion()
    tau = np.asarray(rnea(MODEL, *(jnp.asarray(x) for x in (q, v, a)))) + 0.1 * v + 0.05
    tau = tau + noise * tau.std(axis=0) * np.random.default_rng(0).standard_normal(tau.shape)
    return Recording(T, q, v, a, tau, name="run")


def late(delay: float) -> Recording:
    r = good()
    q, v, a = motion(T - delay)
    exact = np.asarray(rnea(MODEL, *(jnp.asarray(x) for x in (q, v, a)))) + 0.1 * v
    return dataclasses.replace(r, tau=exact + 1e-3 * np.random.default_rng(0).standard_normal(exact.shape))


def kinds(recording: Recording, model=MODEL, **options) -> set[str]:
    return {x.kind for x in check_recording(recording, model, warn=False, **options)}


def test_a_good_recording_has_no_findings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_recording(good(), MODEL) == ()
        assert check_recording(good()) == ()
        assert check_recording(dataclasses.replace(good(), a=None, tau=None), MODEL) == ()
    assert kinds(Recording(T, good().q), None) == set()


def test_a_gap():
    r = good()
    keep = (r.t < 1) | (r.t > 1.3)
    cut = dataclasses.replace(r, **{x: getattr(r, x)[keep] for x in ("t", "q", "v", "a", "tau")})
    (finding,) = check_recording(cut, MODEL, warn=False)
    assert finding.kind == "gap"
    assert finding.value == pytest.approx(0.31, abs=0.01)
    assert kinds(cut, max_gap=0.5) == set()
    with pytest.warns(RecordingWarning, match=r"run: 1 gaps of more than 0.1 s .* 0.31 s after t = 0.995 s"):
        check_recording(cut, MODEL)


@pytest.mark.parametrize(
    ("changes", "pattern"),
    [
        ({"q": 180 / np.pi, "v": 180 / np.pi, "a": 180 / np.pi}, "positions of .* look like degrees"),
        ({"q": 180 / np.pi}, "q looks like degrees"),
        ({"v": 180 / np.pi, "a": 180 / np.pi}, "v looks like degrees"),
        ({"a": 180 / np.pi}, "a looks like degrees"),
    ],
)
def test_degrees(changes, pattern):
    r = good()
    r = dataclasses.replace(r, **{name: getattr(r, name) * factor for name, factor in changes.items()})
    findings = [x for x in check_recording(r, MODEL, warn=False) if x.kind == "degrees"]
    assert findings
    assert any(re.search(pattern, x.message) for x in findings)


def test_rates_of_another_sign_or_clock():
    r = good()
    assert r.v is not None
    (finding,) = check_recording(dataclasses.replace(r, v=r.v * [1, -1], a=None), MODEL, warn=False)
    assert (finding.kind, finding.joints) == ("rates", ("joint1",))
    assert finding.value == pytest.approx(-1, abs=0.01)
    (finding,) = check_recording(dataclasses.replace(r, v=2 * r.v, a=None), MODEL, warn=False)
    assert "another order, sign, unit or clock?" in finding.message


@pytest.mark.parametrize(
    ("factor", "given", "message"),
    [
        (1e3, "qv", "the times look like milliseconds; divide them by 1000"),
        (1e6, "qva", "the times look like microseconds"),
        (1e-3, "qv", "the times are 1000 times too small"),
        (1e3, "q", "samples are 5 s apart, and yet .* milliseconds"),
        (1e6, "q", "microseconds; divide them by 1e[+]06"),
    ],
)
def test_times_in_another_unit(factor, given, message):
    r = good()
    r = Recording(factor * r.t, r.q, r.v if "v" in given else None, r.a if "a" in given else None, r.tau)
    (finding,) = check_recording(r, MODEL, warn=False)
    assert (finding.kind, finding.grave) == ("clock", True)
    assert re.search(message, finding.message)


def test_times_of_rare_samples():
    """Postures that are held, and a motion that is recorded once a second, are no mistake."""
    t, q = np.arange(100.0), np.random.default_rng(0).uniform(-1, 1, (100, 2))
    assert kinds(Recording(5 * t, q)) == set()
    assert kinds(Recording(t, 0.8 * np.sin(np.outer(t, [0.1, 0.15])))) == set()


def test_rates_of_other_joints():
    r = good()
    assert r.v is not None
    (finding,) = check_recording(dataclasses.replace(r, v=r.v[:, ::-1], a=None, tau=None), MODEL, warn=False)
    assert (finding.kind, finding.joints, finding.grave) == ("order", ("joint0", "joint1"), True)
    assert "columns of v stand in another order than those of q: joint1 in the place of joint0" in finding.message


def test_positions_beyond_limits_and_wrapped_angles():
    limited = dataclasses.replace(MODEL, position_lower=jnp.full(2, -1.5), position_upper=jnp.full(2, 1.5))
    assert kinds(good(), limited) == set()
    r = good()
    assert kinds(dataclasses.replace(r, q=r.q + [3.0, 0.0]), limited) == {"limits"}
    turning = Recording(T, np.stack([3 * T, np.sin(T)], axis=-1), name="run")
    assert kinds(turning, None) == {"degrees"}
    wrapped = dataclasses.replace(turning, q=(turning.q + np.pi) % (2 * np.pi) - np.pi)
    (finding,) = check_recording(wrapped, None, warn=False)
    assert (finding.kind, finding.joints) == ("wrapped", ("0",))
    assert kinds(wrapped.unwrapped([0]), None) == {"degrees"}
    for model, grave in ((MODEL, False), (dataclasses.replace(limited, position_upper=jnp.full(2, 30.0)), True)):
        found = [x for x in check_recording(wrapped, model, warn=False) if x.kind == "wrapped"]
        assert [x.grave for x in found] == [grave]
    rates = wrapped.unwrapped([0]).differentiated()
    assert "rates" not in kinds(Recording(rates.t, wrapped.q[2:-2], rates.v), None)


def test_a_joint_that_never_moves_and_a_sensor_that_never_speaks():
    r = good()
    assert r.tau is not None
    resting = dataclasses.replace(r, q=r.q * [1, 0], v=None, a=None, tau=None)
    (finding,) = check_recording(resting, MODEL, warn=False)
    assert (finding.kind, finding.joints) == ("still", ("joint1",))
    assert "no torque" in kinds(dataclasses.replace(r, tau=r.tau * [1, 0]))


@pytest.mark.parametrize("delay", [0.02, -0.013])
def test_a_late_torque_is_found_and_put_back(delay):
    (finding,) = check_recording(late(delay), MODEL, warn=False)
    assert finding.kind == "delay"
    assert finding.value == pytest.approx(delay, abs=1e-3)
    assert kinds(late(delay).aligned(finding.value)) == set()


def test_columns_that_do_not_fit_the_model():
    with pytest.raises(DataError, match="run: q has 2 columns, but the model needs 3"):
        check_recording(good(), jaxdyn.samples.chain(3))


ARM = jaxdyn.samples.arm()
NAMES = np.array(ARM.joint_names)


def recorded(seed: int = 0, *, friction: float = 0.5, payload: float = 0.0, noise: float = 0.02) -> Recording:
    """A motion of an arm whose masses differ from the model's by up to 30 %, and torques with friction and noise."""
    rng = np.random.default_rng(seed)
    t, w = np.arange(2000) / 200, 0.6 * np.arange(1, 6)
    amplitude = rng.standard_normal((2, 5, 7))
    s, c, w = np.sin(np.outer(t, w)), np.cos(np.outer(t, w)), w[:, None]
    q = s @ amplitude[0] + c @ amplitude[1]
    lower, upper = np.asarray(ARM.position_lower), np.asarray(ARM.position_upper)
    size = 0.35 * (upper - lower) / np.abs(q).max(axis=0)
    v = size * (c @ (w * amplitude[0]) - s @ (w * amplitude[1]))
    a = -size * (s @ (w**2 * amplitude[0]) + c @ (w**2 * amplitude[1]))
    q = 0.5 * (lower + upper) + size * q
    inertias = np.asarray(ARM.inertial_parameters) * rng.uniform(0.7, 1.3, (7, 1))
    # A point mass before the last body.
    inertias[-1, [0, 3, 4, 6]] += payload * np.array([1.0, 0.1, 0.01, 0.01])
    truth = dataclasses.replace(ARM, inertial_parameters=jnp.asarray(inertias))
    tau = np.asarray(rnea(truth, q, v, a))
    power = tau.std(axis=0)
    tau = tau + friction * power * (np.tanh(v / 0.03) + 0.3) + 0.1 * a + noise * power * rng.standard_normal(tau.shape)
    return Recording(t, q, v, None, tau, name="run")


def named(recording: Recording, kind: str, model=ARM) -> set[str]:
    """The joints in the findings of one kind; no other kind may be found."""
    findings = check_recording(recording, model, warn=False)
    assert {x.kind for x in findings} <= {kind, "limits"}, findings
    return {name for x in findings if x.kind == kind for name in x.joints}


@pytest.mark.parametrize(
    "options",
    [
        {"payload": 5.0},
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in ({}, {"friction": 1.0}, {"noise": 0.5}, {"friction": 0.0, "noise": 0.0})
        ),
    ],
)
def test_a_rough_model_causes_no_finding(options):
    for seed in range(6):
        assert kinds(recorded(seed, **options), ARM) == set()


SEEDS = (0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2)))


@pytest.mark.parametrize("seed", SEEDS)
def test_torques_of_another_sign_or_unit(seed):
    r = recorded(seed)
    assert {"joint2", "joint4"} <= named(dataclasses.replace(r, tau=-r.tau), "sign")
    for j in (1, 3):
        sign = np.where(np.arange(7) == j, -1.0, 1.0)
        assert named(dataclasses.replace(r, tau=sign * r.tau), "sign") == {NAMES[j]}
    units = {
        1000: "N mm",
        57.3: "degrees per radian",
        1 / 57.3: "radians per degree",
        1e-3: "kN m",
        0.01: "motor currents",
    }
    for factor, unit in units.items():
        (finding,) = check_recording(dataclasses.replace(r, tau=factor * r.tau), ARM, warn=False)
        assert (finding.kind, finding.grave) == ("scale", True)
        assert {"joint2", "joint4"} <= set(finding.joints)
        assert finding.value == pytest.approx(factor, rel=0.4)
        assert unit in finding.message
    gears = np.array([160, 160, 100, 100, 50, 50, 50])
    (sign, scale) = check_recording(dataclasses.replace(r, tau=-r.tau / gears), ARM, warn=False)
    assert (sign.kind, scale.kind) == ("sign", "scale")
    assert {"joint2", "joint4"} <= set(sign.joints) & set(scale.joints)


@pytest.mark.parametrize("friction", [1.0, 2.0])
def test_the_unit_of_one_joint_whose_friction_hides_its_torque(friction):
    """Its size shows it, beside the joints that follow the model and the joint's limit."""
    r = recorded(1, friction=friction)
    for j in (2, 5, 6):
        changed = np.where(np.arange(7) == j, 1000.0, 1.0)
        findings = check_recording(dataclasses.replace(r, tau=changed * r.tau), ARM, warn=False)
        assert [(x.kind, x.joints, x.grave) for x in findings if x.kind != "limits"] == [("scale", (NAMES[j],), True)]
    unlimited = dataclasses.replace(ARM, effort_limit=jnp.full(7, jnp.inf))
    findings = check_recording(dataclasses.replace(r, tau=changed * r.tau), unlimited, warn=False)
    assert [(x.joints, x.grave) for x in findings if x.kind == "scale"] == [(("joint7",), False)]
    changed = np.where(np.arange(7) == 2, 1e-3, 1.0)
    assert named(dataclasses.replace(r, tau=changed * r.tau), "scale") == {"joint3"}
    # A torque within the joint's limit may be all friction.
    large = dataclasses.replace(ARM, effort_limit=jnp.full(7, 1e4))
    changed = np.where(np.arange(7) == 6, 1000.0, 1.0)
    assert kinds(dataclasses.replace(r, tau=changed * r.tau), large) == set()


def test_the_sign_of_one_joint_whose_friction_hides_its_torque():
    """Friction that would drive the joint shows it; an order of columns is not taken for it."""
    r = recorded(1, friction=2.0)
    for j in (2, 5, 6):
        changed = np.where(np.arange(7) == j, -1.0, 1.0)
        (finding,) = check_recording(dataclasses.replace(r, tau=changed * r.tau), ARM, warn=False)
        assert (finding.kind, finding.joints, finding.grave) == ("sign", (NAMES[j],), True)
        assert "far better when these are negated" in finding.message
    for joints in ((2, 5), (5, 6)):
        assert named(exchange(r, ("tau",), joints), "order") == {*NAMES[list(joints)]}


@pytest.mark.parametrize("friction", [0.0, 0.2])
def test_true_torques_of_a_light_wrist_are_not_refused(friction):
    """The centers of mass of the last links lie on the other side of the joints, and farther away, than the model's."""
    r = recorded(4, friction=0.0)
    inertias = np.asarray(ARM.inertial_parameters).copy()
    inertias[4:, 1:4] *= -4
    truth = dataclasses.replace(ARM, inertial_parameters=jnp.asarray(inertias))
    tau = np.asarray(rnea(truth, r.q, r.v, np.gradient(r.require("v")[0], r.t, axis=0)))
    tau = tau + friction * tau.std(axis=0) * np.tanh(r.v / 0.03)
    findings = check_recording(dataclasses.replace(r, tau=tau), ARM, warn=False)
    assert any(x.kind == "sign" and "joint5" in x.joints for x in findings)
    assert not any(x.grave for x in findings)
    # Beside the others, a joint without a drive has a torque that is only an error.
    undriven = tau * np.where(NAMES == "joint4", -0.03, 1.0)
    findings = check_recording(dataclasses.replace(r, tau=undriven), truth, warn=False)
    assert {x.kind for x in findings} == {"sign", "scale"}
    assert not any(x.grave for x in findings)
    (finding,) = check_recording(
        dataclasses.replace(r, tau=tau * np.where(NAMES == "joint4", -1, 1)), truth, warn=False
    )
    assert (finding.kind, finding.joints, finding.grave) == ("sign", ("joint4",), True)


def test_torques_of_a_rotor_that_hides_a_light_link_are_not_refused():
    """About a vertical axis the torque follows the acceleration, whether the inertia is a rotor's or a link's."""
    builder = jaxdyn.ModelBuilder()
    light = jaxdyn.BodyInertia.box(0.5, (0.05, 0.05, 0.1))
    builder.add_body("wrist", "world", jaxdyn.Joint(name="turn", axis=(0, 0, 1)), (0, 0, 0), light)
    model, r = builder.build(), good()
    q, v, a = (x[:, :1] for x in (r.q, *r.require("v", "a")))
    truth = model.with_armature(100 * 0.5 * 0.05**2 / 6).with_joint_friction(0.001, 0.001, 0.02)
    tau = np.asarray(rnea(truth, *(jnp.asarray(x) for x in (q, v, a))))
    (finding,) = check_recording(Recording(r.t, q, v, a, tau), model, warn=False)
    assert (finding.kind, finding.grave) == ("scale", False)


def test_torques_far_smaller_than_the_model_s():
    r = recorded(1, friction=2.0)
    for j in (2, 5, 6):
        changed = np.where(np.arange(7) == j, 1e-3, 1.0)
        assert named(dataclasses.replace(r, tau=changed * r.tau), "scale") == {NAMES[j]}
        changed = np.where(np.arange(7) == j, 0.3, 1.0)
        assert kinds(dataclasses.replace(r, tau=changed * r.tau), ARM) == set()
    # A payload and friction could make a torque as small, but the model's is far larger.
    r = recorded(2, friction=2.0)
    tau = np.where(NAMES == "joint6", 0.02, 1.0) * r.tau
    (finding,) = check_recording(dataclasses.replace(r, tau=tau), ARM, warn=False)
    assert (finding.kind, finding.joints, finding.grave) == ("scale", ("joint6",), False)
    assert re.search(r"torques of joint6 \(\d+ times\) are far smaller than the model's", finding.message)


def test_torques_that_the_model_cannot_have():
    r = recorded()
    tau = np.asarray(r.tau).copy()
    tau[:, 3] = 30 * np.sign(np.sin(7 * r.t))
    (finding,) = check_recording(dataclasses.replace(r, tau=tau), ARM, warn=False)
    assert (finding.kind, finding.joints, finding.grave) == ("misfit", ("joint4",), False)
    (sentence,) = (x for x in unchecked_torques(dataclasses.replace(r, tau=tau), ARM) if "rough model" in x)
    assert "joint4" in sentence


def test_noise_where_nothing_moves_contradicts_no_model():
    r = recorded()
    noise = 1e-5 * np.random.default_rng(0).standard_normal((len(r), 7))
    upright = np.zeros((len(r), 7))
    floating = dataclasses.replace(ARM, gravity=jnp.zeros(3), effort_limit=jnp.full(7, jnp.inf))
    assert kinds(Recording(r.t, upright, tau=noise), floating) == {"still"}


def test_what_the_checks_cannot_see_is_said():
    r = recorded()
    r = dataclasses.replace(r, tau=np.asarray(rnea(ARM, r.q, r.v, np.gradient(r.v, r.t, axis=0))))
    assert unchecked_torques(r, ARM) == []
    (sentence,) = unchecked_torques(recorded(friction=0.5), ARM)
    assert sentence.endswith("a rough model does not explain them, or friction hides those of the links: joint7.")
    noise = np.asarray(r.tau).copy()
    noise[:, 6] = np.random.default_rng(0).standard_normal(len(r))
    (sentence,) = unchecked_torques([r, dataclasses.replace(r, tau=noise, name="noise")], ARM)
    assert sentence.endswith(": noise: joint7.")
    # Joints that move in proportion to each other.
    q = r.q.copy()
    q[:, [4, 6]] = q[:, [1]] * [0.5, -1.0]
    sentences = unchecked_torques(dataclasses.replace(r, q=q, v=None), ARM)
    assert any("in proportion" in x and x.endswith("may not show: joint2, joint5, joint7.") for x in sentences)
    (sentence,) = unchecked_torques(r.between(0, 0.5), ARM)
    assert "too short, too slow or of some joints only (0.495 s)" in sentence
    five_bar = jaxdyn.samples.five_bar()
    closed = Recording(r.t, r.q[:, :2], tau=r.q[:, :2], joints=five_bar.joint_names[:2])
    (sentence,) = unchecked_torques(closed, five_bar)
    assert "closed loops" in sentence


COLUMNS = {
    ("tau",): "torques",
    ("q", "v"): "positions and velocities",
    ("q", "v", "tau"): "positions, velocities and torques",
}


def exchange(recording: Recording, arrays: tuple[str, ...], joints: tuple[int, int]) -> Recording:
    order = np.arange(7)
    order[list(joints)] = joints[::-1]
    return dataclasses.replace(recording, **{x: getattr(recording, x)[:, order] for x in arrays})


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("arrays", [("tau",), *(pytest.param(x, marks=pytest.mark.slow) for x in list(COLUMNS)[1:])])
def test_columns_of_other_joints(seed, arrays):
    r = recorded(seed)
    for joints in ((1, 3), (0, 1), (4, 6)):
        wrong = exchange(r, arrays, joints)
        assert named(wrong, "order") == {*NAMES[list(joints)]}
        (finding,) = (x for x in check_recording(wrong, ARM, warn=False) if x.kind == "order")
        assert f"the columns of the {COLUMNS[arrays]} stand in another order" in finding.message
    order = np.array([2, 0, 1, 3, 4, 5, 6])
    mixed = dataclasses.replace(r, **{x: getattr(r, x)[:, order] for x in arrays})
    (finding,) = (x for x in check_recording(mixed, ARM, warn=False) if x.kind == "order")
    assert f"the columns of the {COLUMNS[arrays]} stand" in finding.message
    assert (
        "joint3 in the place of joint1, joint1 in the place of joint2, joint2 in the place of joint3" in finding.message
    )


def test_positions_in_degrees_without_limits():
    r = recorded()
    r = dataclasses.replace(r, q=np.rad2deg(r.q), v=np.rad2deg(r.v))
    free = dataclasses.replace(ARM, position_lower=jnp.full(7, -jnp.inf), position_upper=jnp.full(7, jnp.inf))
    (finding,) = check_recording(r, free, warn=False)
    assert (finding.kind, finding.grave) == ("degrees", True)
    assert "which the torques fit" in finding.message
    # A few degrees are no unusual number of radians, but the torques tell.
    v = 0.1 * r.require("v")[0]
    small = dataclasses.replace(r, q=0.1 * r.q, v=v)
    tau = np.asarray(rnea(ARM, np.deg2rad(small.q), np.deg2rad(v), 0 * v))
    assert kinds(dataclasses.replace(small, tau=tau), free) == {"degrees"}
    # Without torques, a wheel may have turned as far.
    (finding,) = check_recording(dataclasses.replace(r, tau=None), free, warn=False)
    assert (finding.kind, finding.grave) == ("degrees", False)


def test_a_joint_whose_friction_hides_its_torque_is_not_judged():
    r = recorded()
    hidden = np.asarray(r.tau).copy()
    hidden[:, 6] = 20 * hidden[:, 6].std() * np.sign(r.v[:, 6]) - hidden[:, 6]
    assert kinds(dataclasses.replace(r, tau=hidden), ARM) == set()
    # Noise alone follows no torque.
    hidden[:, 6] = np.random.default_rng(0).standard_normal(len(r))
    assert kinds(dataclasses.replace(r, tau=hidden), ARM) == set()


def test_the_verdict_says_what_the_checks_cannot_see():
    plan = plan_identification(ARM, recorded(), joint_effects=JointEffects(), prior_weight=1.0, cutoff=10.0)
    assert any("friction hides" in x and "joint7" in x for x in plan.warnings)


def test_grave_findings_are_refused_unless_forced():
    r = recorded()
    wrong = dataclasses.replace(r, tau=-r.tau, name="wrong")
    with pytest.raises(DataError, match=r"(?s)wrong: the torques of joint1 .* negative factor.*force=True") as refused:
        require_plausible([r, wrong], ARM)
    assert "run:" not in str(refused.value)
    with pytest.warns(RecordingWarning, match="wrong: the torques of joint1"):
        require_plausible([r, wrong], ARM, force=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        require_plausible(r, ARM)
    cut = r._map(lambda x: np.delete(x, slice(1000, 1060), axis=0))
    with pytest.warns(RecordingWarning, match="run: 1 gaps"):
        require_plausible(cut, ARM)


def test_torques_are_checked_beside_a_gap_and_without_rates():
    r = recorded()
    cut = r._map(lambda x: np.delete(x, slice(500, 560), axis=0))
    assert kinds(cut, ARM) == {"gap"}
    assert kinds(dataclasses.replace(cut, tau=-cut.tau), ARM) == {"gap", "sign"}
    assert kinds(dataclasses.replace(r, tau=-r.tau, v=None), ARM) == {"sign"}
    assert kinds(dataclasses.replace(r, tau=-r.tau, v=-r.v), ARM) == {"rates", "sign"}


def real(name: str) -> tuple[jaxdyn.Model, Recording]:
    folder = Path(os.environ["JAXDYN_DATA"])
    if name == "panda":
        panda = folder / "panda_exciting"
        return jaxdyn.load_urdf(panda / "panda_no_gripper.urdf"), load_npz(panda / "first_14s.npz")
    # The file gives this <origin> twice.
    text = (folder / "kuka_lwr4" / "kuka_lwr4.urdf").read_text()
    model = jaxdyn.load_urdf(text.replace('<origin rpy="0 0 0" xyz="-0.25 0 1"/>', ""))
    return model, load_npz(folder / "kuka_lwr4" / "run_1.npz")


@pytest.mark.skipif(not os.environ.get("JAXDYN_DATA"), reason="JAXDYN_DATA does not name the recorded data")
def test_real_recordings_are_well_aligned():
    folder = Path(os.environ["JAXDYN_DATA"]) / "panda_exciting"
    recording = load_npz(folder / "first_14s.npz").between(0, 8)
    assert kinds(recording, None) == set()
    assert recording.rate is None


@pytest.mark.skipif(not os.environ.get("JAXDYN_DATA"), reason="JAXDYN_DATA does not name the recorded data")
@pytest.mark.filterwarnings("ignore::jaxdyn.io.RobotFileWarning")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["panda", "kuka"])
def test_mistakes_in_real_recordings_are_named(name):
    model, r = real(name)
    wrong = {"sign", "scale", "order", "clock", "degrees", "rates"}
    assert not kinds(r, model) & wrong
    names = np.array(model.joint_names)
    r = dataclasses.replace(r, a=None)
    assert r.tau is not None
    assert r.v is not None
    assert set(names[[1, 3]]) <= named(dataclasses.replace(r, tau=-r.tau), "sign", model)
    for factor in (1000, 1e-3, 1 / 57.3):
        assert set(names[[1, 3]]) <= named(dataclasses.replace(r, tau=factor * r.tau), "scale", model)
    for joints in ((1, 3), (0, 1)):
        for arrays, what in COLUMNS.items():
            (finding,) = (x for x in check_recording(exchange(r, arrays, joints), model, warn=False) if x.grave)
            assert set(finding.joints) == {*names[list(joints)]}
            assert f"the columns of the {what} stand in another order" in finding.message
        # With velocities in the right order, they tell.
        assert {*names[list(joints)]} <= named(exchange(r, ("q",), joints), "order", model)
    if name == "kuka":
        # The model hardly explains the torques of the wrist, so either columns may be wrong.
        (finding,) = (x for x in check_recording(exchange(r, ("q", "v"), (4, 6)), model, warn=False) if x.grave)
        assert "lwr_6_joint in the place of lwr_4_joint" in finding.message
    one = np.where(np.arange(7) == 6, 1000.0, 1.0)
    assert named(dataclasses.replace(r, tau=one * r.tau), "scale", model) == {names[6]}
    assert kinds(dataclasses.replace(r, t=1000 * r.t), model) == {"clock"}
    assert kinds(dataclasses.replace(r, t=1000 * r.t, v=None), model) == {"clock"}
    assert kinds(dataclasses.replace(r, q=np.rad2deg(r.q), v=np.rad2deg(r.v)), model) == {"degrees"}
    free = dataclasses.replace(model, position_lower=jnp.full(7, -jnp.inf), position_upper=jnp.full(7, jnp.inf))
    findings = check_recording(dataclasses.replace(r, q=np.rad2deg(r.q), v=None), free, warn=False)
    assert [(x.kind, x.grave) for x in findings] == [("degrees", True)]


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("JAXDYN_DATA"), reason="JAXDYN_DATA does not name the recorded data")
@pytest.mark.filterwarnings("ignore::jaxdyn.io.RobotFileWarning")
@pytest.mark.parametrize("name", ["panda", "kuka"])
def test_no_mistake_in_a_real_recording_passes_without_a_word(name):
    """Each is found, or the verdict says that it would not show."""
    model, r = real(name)
    r, names = dataclasses.replace(r, a=None), model.joint_names
    wrong = [
        ((j,), dataclasses.replace(r, tau=np.where(np.arange(7) == j, factor, 1.0) * r.tau))
        for j in range(7)
        for factor in (-1.0, 1e-3, 0.01, 57.3, 1000.0)
    ]
    wrong += [(x, exchange(r, arrays, x)) for x in itertools.combinations(range(7), 2) for arrays in COLUMNS]
    found = 0
    for joints, recording in wrong:
        findings = check_recording(recording, model, warn=False)
        said = {x for finding in findings for x in finding.joints}
        found += bool(findings)
        sentences = " ".join(unchecked_torques(recording, model))
        assert all(names[j] in said or names[j] in sentences for j in joints), (joints, findings, sentences)
    assert found >= {"panda": 97, "kuka": 75}[name]
