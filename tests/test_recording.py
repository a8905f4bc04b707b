"""Recordings: what is checked, and what preparation does to signals that are known."""

import dataclasses

import numpy as np
import pytest

from jaxdyn import DataError
from jaxdyn.sysid import Recording, load_npz


def sines(t: np.ndarray, frequency: float = 1.0) -> Recording:
    w = 2 * np.pi * frequency
    q = np.stack([np.sin(w * t), np.cos(w * t)], axis=-1)
    return Recording(t, q, w * np.stack([np.cos(w * t), -np.sin(w * t)], axis=-1), None, 2 * q)


def close(actual: np.ndarray | None, desired: np.ndarray | None, atol: float) -> None:
    assert actual is not None
    assert desired is not None
    np.testing.assert_allclose(actual, desired, rtol=0, atol=atol)


def jittered(n: int = 3000, seed: int = 0) -> np.ndarray:
    return np.cumsum(np.random.default_rng(seed).uniform(5e-4, 1.5e-3, n))


def test_arrays_are_doubles_and_read_only():
    r = Recording(np.arange(3, dtype=np.float32), np.zeros((3, 1), np.float32), None, None, np.zeros((3, 1)))
    assert r.q.dtype == np.float64
    with pytest.raises(ValueError, match="read-only"):
        r.q[0] = 1
    assert (len(r), r.duration, r.rate) == (3, 2.0, 1.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"t": np.array([0.0, 1.0, 1.0, 2.0])}, "does not increase from row 1"),
        ({"t": np.array([0.0, 2.0, 1.0, 3.0])}, "does not increase from row 1"),
        ({"t": np.zeros(1)}, "at least two times"),
        ({"q": np.zeros((3, 2))}, r"q has shape \(3, 2\)"),
        ({"tau": np.zeros(4)}, "tau has shape"),
        ({"v": np.zeros((4, 3))}, "v has 3 columns, but tau has 2"),
        ({"tau": np.array([[0, 0], [0, np.nan], [0, 0], [0, 0.0]])}, "tau is not finite in 1 places.*row 1, column 1"),
        ({"t": np.array([0, 1, 2, np.inf])}, "t is not finite"),
        ({"q": "angles"}, "no array of real numbers"),
    ],
)
def test_bad_recordings_say_what_is_wrong(change, message):
    good = {"t": np.arange(4.0), "q": np.zeros((4, 2)), "v": np.zeros((4, 2)), "a": None, "tau": np.zeros((4, 2))}
    Recording(**good)
    with pytest.raises(DataError, match=message):
        Recording(**(good | change))


def test_between_shares_no_sample():
    r = sines(np.arange(100) / 100)
    first, second = r.between(0, 0.5), r.between(0.5, 1)
    assert len(first) + len(second) == 100
    assert first.t[-1] < second.t[0] == 0.5
    with pytest.raises(DataError, match=r"spans 0 to 0\.99 s"):
        r.between(3, 4)


@pytest.mark.parametrize(("kind", "tolerance"), [("cubic", 1e-8), ("linear", 2e-5)])
def test_resampling_jittered_times(kind, tolerance):
    r = sines(jittered())
    assert r.rate is None
    out = r.resampled(200, kind)
    assert out.rate == pytest.approx(200)
    assert r.t[-1] - out.t[-1] < 1 / 200
    inside = slice(5, -5)  # the ends of a spline are less accurate
    np.testing.assert_allclose(out.q[inside], sines(out.t).q[inside], atol=tolerance)


def test_resampling_onto_its_own_grid_changes_nothing():
    r = sines(np.arange(1000) / 200 + 3)
    out = r.resampled(200)
    assert len(out) == len(r)
    np.testing.assert_allclose(out.q, r.q, atol=1e-9)


def test_resampling_errors():
    r = sines(np.concatenate([np.arange(100), np.arange(300, 400)]) / 100)
    with pytest.raises(DataError, match=r"2.01 s without samples after t = 0.99"):
        r.resampled(100)
    assert len(r.resampled(100, max_gap=3)) == 400
    for rate in (0, -1, np.nan):
        with pytest.raises(DataError, match="positive rate"):
            r.resampled(rate)
    with pytest.raises(DataError, match="unknown interpolation"):
        r.resampled(100, "quintic", max_gap=3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="fewer than two samples"):
        r.resampled(0.1, max_gap=3)


def test_the_filter_has_no_delay_and_treats_all_signals_alike():
    r = sines(np.arange(2000) / 200, frequency=1.0)
    assert r.v is not None
    r = dataclasses.replace(r, a=r.v)
    out = r.filtered(10)
    clean = sines(out.t)
    close(out.q, clean.q, 2e-4)
    close(out.v, clean.v, 2e-3)
    close(out.a, clean.v, 2e-3)
    close(out.tau, 2 * clean.q, 4e-4)


def test_the_filter_passes_half_the_amplitude_at_the_cutoff_and_nothing_far_above():
    t = np.arange(4000) / 200
    for frequency, gain in ((10.0, 0.5), (40.0, 0.0)):
        out = sines(t, frequency).filtered(10)
        np.testing.assert_allclose(out.q, gain * sines(out.t, frequency).q, atol=5e-3)


def test_what_the_filter_made_up_at_the_ends_is_cut_off():
    # A ramp and noise: the extension at the ends is worst there, and must have died out in what is left.
    rng = np.random.default_rng(0)
    t = np.arange(4000) / 200
    x = np.cumsum(rng.standard_normal((len(t), 1)), axis=0)
    whole = Recording(t, x, None, None, x).filtered(10)
    part = Recording(t[1000:2000], x[1000:2000], None, None, x[1000:2000]).filtered(10)
    same = whole.between(part.t[0] - 1e-9, part.t[-1] + 1e-9)
    assert np.abs(same.q - part.q).max() < 2e-3 * np.abs(x).max()
    untrimmed = Recording(t[1000:2000], x[1000:2000], None, None, x[1000:2000]).filtered(10, trim=0)
    assert len(untrimmed) == 1000


def test_filter_errors():
    with pytest.raises(DataError, match="resampled"):
        sines(jittered()).filtered(10)
    r = sines(np.arange(1000) / 200)
    for cutoff in (0, 100, 300):
        with pytest.raises(DataError, match="half the rate"):
            r.filtered(cutoff)
    with pytest.raises(DataError, match="too few to filter"):
        r.between(0, 0.4).filtered(10)
    with pytest.raises(DataError, match="cannot trim"):
        r.filtered(10, trim=-1)


def test_differences():
    r = sines(np.arange(4000) / 1000)
    out = r.differentiated()
    assert len(out) == 3998
    close(out.a, -((2 * np.pi) ** 2) * out.q, 1e-3)
    no_velocity = dataclasses.replace(r, v=None).differentiated()
    assert len(no_velocity) == 3996
    close(no_velocity.v, sines(no_velocity.t).v, 1e-4)
    close(no_velocity.a, -((2 * np.pi) ** 2) * no_velocity.q, 3e-3)
    with pytest.raises(DataError, match="too few"):
        r.between(0, 0.002).differentiated()
    with pytest.raises(DataError, match="give v"):
        Recording(np.arange(9.0), np.zeros((9, 4)), None, None, np.zeros((9, 3))).differentiated()


def test_load_npz(tmp_path):
    path = tmp_path / "run.npz"
    t = np.arange(5.0)
    np.savez(path, t=t, q=np.zeros((5, 2)), tau_measured=np.ones((5, 2)), v=np.zeros((5, 2)))
    r = load_npz(path, tau="tau_measured")
    assert r.v is not None
    assert r.a is None
    assert r.tau.sum() == 10
    with pytest.raises(DataError, match=r"no array 'tau' \(torques\); it has q, t, tau_measured, v"):
        load_npz(path)
    with pytest.raises(DataError, match="no array 'acc'"):
        load_npz(path, tau="tau_measured", a="acc")
    with pytest.raises(DataError, match=r"no such file.*run\.npz"):
        load_npz(tmp_path / "walk.npz")
    with pytest.raises(DataError, match="no such file"):
        load_npz(tmp_path / "nowhere" / "walk.npz")
    for content in (b"", b"hello", b"PK\x03\x04broken"):
        (tmp_path / "bad.npz").write_bytes(content)
        with pytest.raises(DataError, match=r"bad\.npz"):
            load_npz(tmp_path / "bad.npz")
    np.savez(path, t=t[::-1], q=np.zeros((5, 2)), tau=np.ones((5, 2)))
    with pytest.raises(DataError, match=r"run\.npz: recording: time does not increase"):
        load_npz(path)
