"""Checks find likely errors of a recording and report nothing for a good one."""

import dataclasses
import os
import re
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, rnea
from jaxdyn.sysid import Recording, RecordingWarning, check_recording, load_npz

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
    (finding, _) = check_recording(dataclasses.replace(r, t=1e-3 * r.t), MODEL, warn=False)
    assert "clock" in finding.message


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


@pytest.mark.skipif(not os.environ.get("JAXDYN_DATA"), reason="JAXDYN_DATA does not name the recorded data")
def test_real_recordings_are_well_aligned():
    folder = Path(os.environ["JAXDYN_DATA"]) / "panda_exciting"
    recording = load_npz(folder / "first_14s.npz").between(0, 8)
    assert kinds(recording, None) == set()
    assert recording.rate is None
