"""Recordings are checked, and preparation gives the right result for analytic signals."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

import jaxdyn
from jaxdyn import BodyInertia, DataError, Joint, ModelBuilder
from jaxdyn.sysid import Recording, as_recordings


def sines(t: np.ndarray, frequency: float = 1.0) -> Recording:
    w = 2 * np.pi * frequency
    q = np.stack([np.sin(w * t), np.cos(w * t)], axis=-1)
    return Recording(t, q, w * np.stack([np.cos(w * t), -np.sin(w * t)], axis=-1), None, 2 * q)


def close(actual: np.ndarray | None, desired: np.ndarray | None, atol: float) -> None:
    assert actual is not None
    assert desired is not None
    np.testing.assert_allclose(actual, desired, rtol=0, atol=atol)


def jittered_times(n: int = 3000, seed: int = 0) -> np.ndarray:
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
        ({"q": "angles"}, "q is str; an array of real numbers"),
        ({"q": [["1_0", "2"]] * 4}, "q is str; an array of real numbers"),
        ({"q": np.ones((4, 2)) * 1j}, r"q is complex \(complex128\); .* real part"),
        ({"q": np.ones((4, 2), bool)}, "q has the type bool"),
        ({"q": [[1.0, 2.0], [3.0]]}, "q is list; an array of real numbers"),
        ({"q": np.array([[1, object()]] * 4)}, "q has an element of type object"),
        ({"q": [[1.0, None]] * 4}, "q is not finite in 4 places"),
        ({"q": np.ma.masked_equal([[1.0, 2.0]] * 4, 2.0)}, "q is not finite in 4 places, .* column 1"),
        ({"q": np.zeros((4, 2), "timedelta64[ms]")}, r"q has the type timedelta64\[ms\]"),
        ({"t": np.arange(4).astype("timedelta64")}, "t is timedelta64 without a unit"),
        ({"t": np.array(["2024-01-01", "NaT", "2024-01-02", "2024-01-03"], "datetime64[ns]")}, "t is not finite"),
        ({"t": np.arange(4) + 1j}, "t is complex"),
    ],
)
def test_bad_recordings_say_what_is_wrong(change, message):
    good = {"t": np.arange(4.0), "q": np.zeros((4, 2)), "v": np.zeros((4, 2)), "a": None, "tau": np.zeros((4, 2))}
    Recording(**good)
    with pytest.raises(DataError, match=message):
        Recording(**(good | change))


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s"])
def test_durations_and_dates_become_seconds(unit):
    """As `DataFrame.index` has them. Dates count from the first sample, to the last nanosecond."""
    ticks = np.array([0, 10, 25]) * np.timedelta64(1, unit)
    expected = np.array([0, 10, 25]) / {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}[unit]
    for t in (ticks, np.datetime64("2024-05-01T12:00:00.000000001") + ticks):
        np.testing.assert_allclose(Recording(t, np.zeros((3, 1))).t, expected, rtol=1e-15)
    late = np.timedelta64(3, "s") + ticks.astype("timedelta64[ns]")
    np.testing.assert_allclose(Recording(late, np.zeros((3, 1))).t, 3 + expected, rtol=1e-15)


def test_between_shares_no_sample():
    r = sines(np.arange(100) / 100)
    first, second = r.between(0, 0.5), r.between(0.5, 1)
    assert len(first) + len(second) == 100
    assert first.t[-1] < second.t[0] == 0.5
    with pytest.raises(DataError, match=r"spans 0 to 0\.99 s"):
        r.between(3, 4)


@pytest.mark.parametrize(("kind", "tolerance"), [("cubic", 1e-8), ("linear", 2e-5)])
def test_resampling_jittered_times(kind, tolerance):
    r = sines(jittered_times())
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
    with pytest.raises(DataError, match=r"interpolation is .* one of 'cubic', 'linear'"):
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
    # Extending the ends is worst for a ramp with noise; its effect must have decayed in the samples that remain.
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
        sines(jittered_times()).filtered(10)
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
    with pytest.raises(DataError, match="give the model"):
        Recording(np.arange(9.0), np.zeros((9, 4)), None, None, np.zeros((9, 3))).differentiated()


def smooth(seed: int = 0, n: int = 2000, rate: float = 200.0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return times `[n]`, and a signal below 1.5 Hz with its two derivatives, each `[n, 2]`."""
    rng = np.random.default_rng(seed)
    t, w = np.arange(n) / rate, 2 * np.pi * np.linspace(0.2, 1.5, 6)
    sine, cosine = rng.standard_normal((2, 6, 2)) / w[:, None]
    s, c = np.sin(np.outer(t, w)), np.cos(np.outer(t, w))
    w = w[:, None]
    return t, s @ sine + c @ cosine, c @ (w * sine) - s @ (w * cosine), -s @ (w**2 * sine) - c @ (w**2 * cosine)


def relative(actual: np.ndarray | None, desired: np.ndarray) -> float:
    assert actual is not None
    return float(np.sqrt(np.mean((actual - desired) ** 2) / np.mean(desired**2)))


@pytest.mark.parametrize(
    ("options", "of_v", "of_a"),
    [
        ({"method": "savitzky_golay", "window": 0.2}, 5e-3, 5e-2),
        ({"method": "spline"}, 3e-3, 1.5e-2),
        ({"method": "spline", "noise": [1e-3, 1e-3]}, 3e-3, 1.5e-2),
    ],
)
def test_derivatives_of_noisy_positions(options, of_v, of_a):
    t, q, v, a = smooth()
    noisy = q + 1e-3 * np.random.default_rng(1).standard_normal(q.shape)
    assert relative(np.gradient(noisy, t, axis=0), v) > 0.05
    out = Recording(t, noisy, tau=q).differentiated(**options)
    inside = out.trimmed(0.2, 0.2)
    keep = np.isin(t, inside.t)
    assert relative(inside.v, v[keep]) < of_v
    assert relative(inside.a, a[keep]) < of_a
    # Accelerations from recorded velocities leave the velocities unchanged.
    again = Recording(t, q, v + 1e-3 * np.random.default_rng(2).standard_normal(q.shape)).differentiated(**options)
    close(again.v, v[np.isin(t, again.t)], 1e-2)
    inside = again.trimmed(0.2, 0.2)
    assert relative(inside.a, a[np.isin(t, inside.t)]) < of_v


def test_a_spline_takes_samples_that_are_not_uniform():
    t = jittered_times()
    r = Recording(t, np.sin(6 * t)[:, None] + 1e-5 * np.random.default_rng(0).standard_normal((len(t), 1)))
    out = r.differentiated("spline").trimmed(0.1, 0.1)
    assert relative(out.a, -36 * np.sin(6 * out.t)[:, None]) < 2e-2
    with pytest.raises(DataError, match=r"a Savitzky-Golay filter needs a uniform one; call resampled"):
        r.differentiated("savitzky_golay", window=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "fourier"}, "method is 'fourier'; it must be one of 'central', 'savitzky_golay', 'spline'"),
        ({"method": "savitzky_golay"}, "give the window"),
        ({"method": "savitzky_golay", "window": 0.01}, "polynomial of degree 4 needs at least 5"),
        ({"method": "savitzky_golay", "window": 6.0}, "twice as many"),
        ({"method": "central", "window": 0.1}, "'central' does not take the option window"),
        ({"method": "spline", "noise": 0.0}, "noise is 0.0, but"),
        ({"method": "spline", "noise": 1e-9}, "scatter by .* give a larger noise"),
    ],
)
def test_mistakes_in_derivatives_are_named(options, message):
    t, q, _, _ = smooth()
    noisy = q + 1e-3 * np.random.default_rng(0).standard_normal(q.shape)
    with pytest.raises(DataError, match=message):
        Recording(t, noisy).differentiated(**options)


def test_quaternions_are_prepared_with_the_model():
    """Quaternions with random signs of a free body on a known path are resampled and differentiated on the manifold."""
    inertia = BodyInertia(1.0, (0, 0, 0), (1, 1, 1))
    model = ModelBuilder().add_body("body", joint=Joint("free", name="root"), inertia=inertia).build()
    t = np.arange(400) / 200
    # The body turns about a fixed axis at a growing rate and moves along a parabola.
    axis, rate, growth, p = np.array([1.0, -2.0, 0.7]), 1 + 0.4 * t, 0.4, np.outer(t**2, [0.3, -0.2, 0.5])
    angle = t + 0.2 * t**2
    turned = np.asarray(model.integrate(model.neutral(), jnp.asarray(np.pad(np.outer(angle, axis), ((0, 0), (3, 0))))))
    q = np.concatenate([p, turned[:, 3:]], axis=-1)
    rotation = np.stack([Rotation.from_quat(x, scalar_first=True).as_matrix() for x in q[:, 3:]])
    w = np.outer(rate, axis)
    linear = np.einsum("nji,nj->ni", rotation, np.outer(2 * t, [0.3, -0.2, 0.5]))
    pull = np.einsum("nji,j->ni", rotation, [0.6, -0.4, 1.0]) - np.cross(w, linear)
    v = np.concatenate([linear, w], axis=-1)
    a = np.concatenate([pull, np.tile(growth * axis, (400, 1))], axis=-1)
    flipped = q.copy()
    flipped[:, 3:] *= np.random.default_rng(0).choice([-1.0, 1.0], 400)[:, None]
    r = Recording(t, flipped, tau=np.zeros((400, 6)))
    for out in (
        r.differentiated(model=model),
        r.differentiated("spline", model=model).trimmed(0.1, 0.1),
        r.resampled(200, model=model).differentiated("savitzky_golay", window=0.1, model=model),
    ):
        keep = np.isin(np.round(t * 200), np.round(out.t * 200))
        assert len(out) == keep.sum() > 350
        close(out.v, v[keep], 3e-4)
        close(out.a, a[keep], 3e-3)
    np.testing.assert_allclose(np.linalg.norm(r.resampled(150, model=model).q[:, 3:], axis=1), 1, atol=1e-12)
    for prepare in (lambda: r.resampled(100), lambda: r.filtered(10), lambda: r.differentiated()):
        with pytest.raises(DataError, match="not plain numbers; give the model"):
            prepare()
    with pytest.raises(DataError, match=r"q has 6 columns, but the model needs 7: root\[0\], "):
        Recording(t, q[:, :6]).resampled(100, model=model)


def test_torque_from_currents():
    t = np.arange(4.0)
    r = Recording(t, np.zeros((4, 2)), current=np.array([[1.0, 2.0]]) * t[:, None], name="run 7")
    with pytest.raises(DataError, match=r"run 7: there are no torques tau: .* torque_from_current"):
        r.require("q", "tau")
    close(r.torque_from_current([3.0, 0.5]).tau, np.array([[3.0, 1.0]]) * t[:, None], 0)
    close(r.torque_from_current(2.0).tau, np.array([[2.0, 4.0]]) * t[:, None], 0)
    coupled = r.torque_from_current([[1.0, 1.0], [0.0, 2.0]])
    close(coupled.tau, np.array([[3.0, 4.0]]) * t[:, None], 0)
    assert coupled.name == "run 7"
    with pytest.raises(DataError, match="there are 2 currents"):
        r.torque_from_current([1.0, 2.0, 3.0])
    with pytest.raises(DataError, match="there are no motor currents"):
        Recording(t, np.zeros((4, 2))).torque_from_current(1.0)


def test_a_late_torque_is_put_back():
    t, q, v, a = smooth()
    late = smooth_at(t - 0.013)
    out = Recording(t, q, v, a, late, current=late).aligned(0.013)
    keep = slice(3, -3)
    for late in out.require("tau", "current"):
        close(late[keep], out.q[keep], 1e-6)
    assert out.t[0] == t[0]
    assert out.t[-1] <= t[-1] - 0.013 + 1e-12
    early = Recording(t, q, v, a, smooth_at(t + 0.013)).aligned(-0.013)
    (tau,) = early.require("tau")
    close(tau[keep], early.q[keep], 1e-6)
    with pytest.raises(DataError, match="too long for a recording of"):
        out.aligned(20)


def smooth_at(t: np.ndarray) -> np.ndarray:
    """Return the signal of `smooth` at the times `t`."""
    rng = np.random.default_rng(0)
    w = 2 * np.pi * np.linspace(0.2, 1.5, 6)
    sine, cosine = rng.standard_normal((2, 6, 2)) / w[:, None]
    return np.sin(np.outer(t, w)) @ sine + np.cos(np.outer(t, w)) @ cosine


def test_trimming_and_unwrapping():
    r = sines(np.arange(101) / 100)
    assert r.trimmed(0.2, 0.3).t[[0, -1]].tolist() == [0.2, 0.7]
    assert len(r.trimmed()) == 101
    for cut in ((0.6, 0.6), (-1, 0)):
        with pytest.raises(DataError, match="trim"):
            r.trimmed(*cut)
    t = np.arange(100) / 20
    angle = np.stack([3 * t, 3 * t], axis=-1)
    wrapped = Recording(t, (angle + np.pi) % (2 * np.pi) - np.pi)
    out = wrapped.unwrapped([1])
    np.testing.assert_allclose(out.q[:, 1], angle[:, 1], atol=1e-12)
    np.testing.assert_array_equal(out.q[:, 0], wrapped.q[:, 0])


def test_one_or_several_recordings():
    r = sines(np.arange(10) / 10)
    assert as_recordings(r) == (r,)
    assert len(as_recordings(x for x in (r, r))) == 2
    with pytest.raises(DataError, match="no recordings are given"):
        as_recordings([])
    with pytest.raises(DataError, match=r"recordings\[1\] is str"):
        as_recordings([r, "run"])


def test_angles_that_jump_by_a_turn_are_unwrapped_or_refused():
    """A wrapped angle is prepared as the angle itself where the model's joint has no limits, and refused elsewhere."""
    pendulum = jaxdyn.samples.pendulum()
    assert not np.isfinite(pendulum.position_upper).any()
    t = np.arange(0, 6, 0.01)
    angle = (8 * np.sin(t) + 0.5 * np.sin(5 * t))[:, None]
    wrapped = Recording(t, (angle + np.pi) % (2 * np.pi) - np.pi, name="run")
    got, expected = (x.prepared(model=pendulum).require("v", "a") for x in (wrapped, Recording(t, angle)))
    np.testing.assert_allclose(got, expected, atol=1e-9)
    limited = dataclasses.replace(pendulum, position_lower=-4 * jnp.ones(1), position_upper=4 * jnp.ones(1))
    for model in (limited, None):
        with pytest.raises(DataError, match=r"run: column 0 of q jumps by a turn after t = .*unwrapped\(\[0\]\)"):
            wrapped.prepared(model=model)
    # Steps of six degrees side by side are a fast motion.
    Recording(t, np.cumsum(6.2 + 0.2 * np.sin(t))[:, None]).prepared()
