"""Identification recovers the parameters of simulated robots, and the experiments run."""

import dataclasses
import json
import os
import sys
import types
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from experiments import identify
from experiments._main import parse_arguments
from jaxdyn import DataError, Model, ModelError, Status, rnea
from jaxdyn.cli import (
    IdentifyConfig,
    Simulation,
    physical_start,
    read_config,
    simulate_recording,
)
from jaxdyn.cli._identification import draw_torques
from jaxdyn.cli._identification_data import IdentificationData
from jaxdyn.sysid import JointEffects, Recording, fit_inverse_dynamics, ordinary_least_squares

V_SCALE = 0.05


def truth_and_prior() -> tuple[Model, Model, np.ndarray]:
    """A small robot, the same robot with other parameters as prior, and sensor offsets."""
    prior = jaxdyn.samples.chain(3)
    rng = np.random.default_rng(0)
    leaves = (
        prior.inertial_parameters * jnp.asarray(1 + 0.2 * rng.uniform(-1, 1, (3, 1))),
        *(jnp.asarray(rng.uniform(0.1, 0.3, 3)) for _ in range(3)),
        jnp.full(3, V_SCALE),
    )
    truth = eqx.tree_at(
        lambda m: (m.inertial_parameters, m.armature, m.damping, m.friction, m.friction_velocity), prior, leaves
    )
    return truth, prior, np.array([0.1, -0.2, 0.3])


def motion(model: Model, seed: int, n: int = 300, offset: np.ndarray | float = 0.0) -> Recording:
    """Return independent random samples, which suffice for least squares."""
    rng = np.random.default_rng(seed)
    q, v, a = rng.uniform(-2, 2, (n, model.nq)), rng.normal(0, 1, (n, model.nv)), rng.normal(0, 5, (n, model.nv))
    tau = np.asarray(rnea(model, jnp.asarray(q), jnp.asarray(v), jnp.asarray(a))) + offset
    return Recording(np.arange(n) / 100, q, v, a, tau)


def shape():
    from jaxdyn.sysid.torques._torque_model import EffectShape

    return EffectShape.default(np.full(3, V_SCALE), stribeck_velocity=1.0)


def rms(x) -> np.ndarray:
    return np.sqrt(np.mean(np.square(x), axis=0))


def test_noise_free_torques_are_recovered_exactly():
    truth, prior, offset = truth_and_prior()
    train, test = motion(truth, 1, offset=offset), motion(truth, 2, offset=offset)
    seen = []
    physical = fit_inverse_dynamics(prior, train, friction_velocity=V_SCALE, report=seen.append)
    linear = ordinary_least_squares(prior, train, friction_velocity=V_SCALE)
    assert physical.physical.all()
    assert len(seen) == physical.iterations > 0
    # Only the pull toward the prior keeps the fit from being exact, and the weights by the noise make it tiny.
    assert np.all(rms(physical.predict(test) - test.tau) < 1e-5 * rms(test.tau))
    assert np.all(rms(linear.predict(test) - test.tau) < 1e-9 * rms(test.tau))
    for fit in (physical, linear):
        np.testing.assert_allclose(fit.offset, offset, atol=1e-4)
        np.testing.assert_allclose(fit.model.damping, truth.damping, atol=1e-4)
        np.testing.assert_allclose(fit.model.friction, truth.friction, atol=1e-4)
        # Motion cannot separate the first joint's rotor from its link's inertia about the same axis.
        total = np.asarray(fit.model.armature)[0] + np.asarray(fit.model.inertial_parameters)[0, 9]
        assert total == pytest.approx(float(truth.armature[0] + truth.inertial_parameters[0, 9]), abs=0.5)


def test_noisy_torques_are_recovered_far_below_the_noise():
    truth, prior, offset = truth_and_prior()
    clean, test = motion(truth, 3, offset=offset), motion(truth, 4, offset=offset)
    noise = np.array([0.5, 0.2, 0.05])
    noisy = dataclasses.replace(clean, tau=clean.tau + noise * np.random.default_rng(5).standard_normal((300, 3)))
    fit = fit_inverse_dynamics(prior, noisy, friction_velocity=V_SCALE)
    assert fit.converged, fit.message
    np.testing.assert_allclose(fit.sigma, noise, rtol=0.15)
    # With 900 equations and at most 42 parameters, 42 / 900 of the noise's power remains on average.
    assert np.all(rms(fit.predict(test) - test.tau) < 0.4 * noise)


def test_what_the_data_do_not_determine_stays_at_the_prior():
    truth, prior, _ = truth_and_prior()
    static = dataclasses.replace(motion(truth, 6), v=np.zeros((300, 3)), a=np.zeros((300, 3)))
    tau = rnea(truth, jnp.asarray(static.q), jnp.zeros((300, 3)), jnp.zeros((300, 3)))
    prior = eqx.tree_at(lambda m: (m.armature, m.damping, m.friction), prior, (jnp.full(3, 0.2),) * 3)
    fit = fit_inverse_dynamics(prior, dataclasses.replace(static, tau=np.asarray(tau)), friction_velocity=V_SCALE)
    for leaf in ("armature", "damping", "friction"):
        np.testing.assert_allclose(getattr(fit.model, leaf), 0.2, rtol=1e-4)


def test_re_weighting_finds_the_quiet_joints():
    truth, prior, _ = truth_and_prior()
    clean = motion(truth, 7)
    noise = np.array([3.0, 0.1, 0.01])
    noisy = dataclasses.replace(clean, tau=clean.tau + noise * np.random.default_rng(8).standard_normal((300, 3)))
    fit = ordinary_least_squares(prior, noisy, friction_velocity=V_SCALE)
    assert fit.converged
    np.testing.assert_allclose(fit.sigma, noise, rtol=0.15)


def test_the_compressed_problem_is_the_full_one():
    from jaxdyn.sysid.torques._torque_model import Samples

    truth, prior, offset = truth_and_prior()
    data = motion(truth, 9, n=5000, offset=offset)  # more than one chunk
    (factors,) = Samples(prior, data, JointEffects(), shape()).compressed()
    fit = ordinary_least_squares(prior, data, friction_velocity=V_SCALE)
    parameters = np.concatenate(
        [
            np.asarray(prior.inertial_parameters).ravel(),
            fit.model.armature,
            fit.model.damping,
            fit.model.friction,
            [1] * 3,
        ]
    )
    model = eqx.tree_at(lambda m: m.inertial_parameters, fit.model, prior.inertial_parameters)
    full = np.asarray(rnea(model, *(jnp.asarray(x) for x in (data.q, data.v, data.a) if x is not None))) + 1
    np.testing.assert_allclose(factors.residual_rms(parameters), rms(full - data.tau), rtol=1e-9)


def test_the_gradient_vanishes_at_the_solution():
    """The fit is a minimum of the cost that is summed over the samples with the model's inverse dynamics."""
    from jaxdyn.sysid.torques._physical_fit import minimize, start_at
    from jaxdyn.sysid.torques._torque_model import Samples, with_parameters

    truth, prior, offset = truth_and_prior()
    data = motion(truth, 10, n=100, offset=offset)
    samples = Samples(prior, data, JointEffects(), shape())
    layout = samples.layout
    problem = start_at(prior, samples, 1.0, 1.0).with_data(samples.compressed()[0], np.ones(3), layout)
    point = minimize(problem, problem.prior, 200).point

    def cost(base, x):
        new = base.moved(x, problem.unit)
        model, values = with_parameters(samples, new.parameters(), np.ones(3))
        tau = values.torque(model, data.t, data.q, data.v, data.a)
        return 0.5 * np.sum((tau - data.tau) ** 2) + problem.divergence(new)

    def gradient(base):
        h = 1e-5 * np.eye(42)
        return np.array([(cost(base, x) - cost(base, -x)) / 2e-5 for x in h])

    start = gradient(problem.prior)
    assert np.linalg.norm(gradient(point)) < 1e-3 * np.linalg.norm(start)
    # The fit's derivatives are those of the cost.
    base = problem.prior
    np.testing.assert_allclose(
        problem.jacobian(base).T @ problem.residual(base) + problem.slope(base),
        start,
        rtol=1e-5,
        atol=1e-6 * abs(start).max(),
    )


def test_errors():
    truth, prior, _ = truth_and_prior()
    data = motion(truth, 11, n=50)
    with pytest.raises(DataError, match="differentiated"):
        fit_inverse_dynamics(prior, dataclasses.replace(data, a=None))
    with pytest.raises(DataError, match="q has 3 columns, but the model needs 7"):
        fit_inverse_dynamics(jaxdyn.samples.arm(), data)
    with pytest.raises(DataError, match="prior_weight"):
        fit_inverse_dynamics(prior, data, prior_weight=0)
    with pytest.raises(DataError, match="friction_velocity"):
        ordinary_least_squares(prior, data, friction_velocity=-1)
    with pytest.raises(DataError, match="all zero"):
        fit_inverse_dynamics(prior, dataclasses.replace(data, tau=np.zeros((50, 3))))
    bad = eqx.tree_at(lambda m: m.inertial_parameters, prior, prior.inertial_parameters.at[1, 9].set(9.0))
    with pytest.raises(ModelError, match=r"link1.*nearest_physical"):
        fit_inverse_dynamics(bad, data)
    starved = fit_inverse_dynamics(prior, data, max_iterations=1, rounds=1)
    assert starved.status == Status.OUT_OF_ITERATIONS
    assert "max_iterations was too few in round 1" in starved.message
    assert starved.physical.all()


def test_both_engines_simulate_the_same_motion():
    pytest.importorskip("mujoco")
    arm = jaxdyn.samples.arm()
    config = Simulation(duration=0.3, harmonics=2)
    ours, mujoco = (
        simulate_recording(arm, dataclasses.replace(config, engine=engine), V_SCALE) for engine in ("jaxdyn", "mujoco")
    )
    assert (ours.engine, mujoco.engine) == ("jaxdyn", "MuJoCo")
    np.testing.assert_allclose(ours.exact.q, mujoco.exact.q, atol=1e-8)
    np.testing.assert_allclose(ours.exact.tau, mujoco.exact.tau, atol=1e-5)
    # What is recorded belongs to one time. Half a step between position and velocity would be an error of 0.5 here.
    q, v, a = mujoco.exact.require("q", "v", "a")
    for x, rate in ((q, v), (v, a)):
        error = np.gradient(x, mujoco.exact.t, axis=0) - rate
        assert np.linalg.norm(error[2:-2]) < 0.2 * np.linalg.norm(np.diff(rate, axis=0))


SHORT = (
    *("--simulation.duration", "6", "--fit-stop", "4", "--test-stop", "6", "--simulation.harmonics", "6"),
    *("--rounds", "5"),
)


@pytest.mark.experiments
def test_the_simulated_experiment_runs_end_to_end(tmp_path, capsys):
    assert identify.main([*SHORT, "--results", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "simulated by" in printed
    assert "physical fit: every link is physical" in printed
    assert "verdict on the physical fit" in printed
    written = sorted(x.name for x in (tmp_path / "simulated_arm").glob("[!.]*"))
    assert written == ["parameters.json", "report.html", "torque.png"]
    page = (tmp_path / "simulated_arm" / "report.html").read_text()
    assert page.count("<img") == 2
    assert "held-out data" in page
    assert (tmp_path / "simulated_arm" / "torque.png").read_bytes().startswith(b"\x89PNG")
    out = json.loads((tmp_path / "simulated_arm" / "parameters.json").read_text())
    assert np.array(out["fits"]["physical fit"]["inertial_parameters"]).shape == (7, 10)
    assert all(out["fits"]["physical fit"]["physical"])
    errors = out["held_out_rmse"]
    assert errors["raw torque"]["physical fit"]["all"] < 0.1 * errors["raw torque"]["before"]["all"]
    # The torque sensors' noise is 1e-3 of the limits, 87 and 12 N m; errors from noise-free torques are smaller.
    assert errors["noise-free torque"]["physical fit"]["all"] < 0.05


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("JAXDYN_DATA"), reason="JAXDYN_DATA does not name the recorded data")
def test_panda(tmp_path, capsys):
    config = str(identify.DEFAULT_CONFIG.with_name("identify_panda.toml"))
    assert identify.main([config, "--results", str(tmp_path)]) == 0
    capsys.readouterr()
    out = json.loads((tmp_path / "panda" / "parameters.json").read_text())
    assert all(out["fits"]["physical fit"]["physical"])
    assert not all(out["fits"]["least squares"]["physical"])
    assert out["fits"]["physical fit"]["status"] == "converged"
    raw = out["held_out_rmse"]["raw torque"]
    physical, linear, before = (raw[name] for name in ("physical fit", "least squares", "before"))
    assert np.all(np.array(physical["joints"]) <= 1.15 * np.array(linear["joints"]))
    assert physical["all"] <= 1.02 * linear["all"]
    assert physical["all"] < 0.25 * before["all"]
    filtered = out["held_out_rmse"]["filtered torque"]
    assert filtered["physical fit"]["all"] <= 1.15 * filtered["least squares"]["all"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("fit_stop", "cutof"), "unknown key 'cutof'; did you mean cutoff"),
        (("seed =", "sed ="), "unknown key 'simulation.sed'; did you mean seed"),
        (("fit_stop = 14.0", 'fit_stop = "fast"'), "fit_stop is 'fast', but a value of type float"),
        (("seed = 0", "seed = 1.5"), "simulation.seed is 1.5"),
        (("[simulation]", 'more_recordings = "run.npz"\n[simulation]'), "more_recordings is 'run.npz', but a list"),
        (('robot = "arm"', ""), "key 'robot' is missing"),
        (("fit_stop = 14.0", "fit_stop = nan"), "fit_stop is nan, but a finite number is needed"),
        (("fit_stop = 14.0", "fit_stop = -inf"), "fit_stop is -inf, but a finite number is needed"),
        (("[simulation]", "[simulation"), "cannot be read as TOML"),
        (("[simulation]", 'simulation.engine = "bullet"\n[x]'), "unknown key 'x'"),
    ],
)
def test_mistakes_in_a_configuration_are_named(tmp_path, capsys, change, message):
    path = tmp_path / "config.toml"
    text = identify.DEFAULT_CONFIG.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    assert identify.main([str(path)]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("error: ")
    assert "Traceback" not in printed.err


def test_a_choice_that_is_none_is_named(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text(identify.DEFAULT_CONFIG.read_text().replace("seed = 0", 'engine = "bullet"'))
    with pytest.raises(DataError, match=r"simulation\.engine is 'bullet', but one of 'auto', 'mujoco', 'jaxdyn'"):
        read_config(IdentifyConfig, path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere.toml"], "nowhere.toml: no such file"),
        (["--robot", "spider"], "robot is 'spider'"),
        (["--joint-effects", "gain"], "joint_effects has gain"),
        (["--fit-stop", "-1"], "fit_start 0 < fit_stop -1"),
        (["--recording", "/nowhere/run.npz"], "no such file"),
        (["--cutoff", "450", *SHORT], "0.4 times the rate"),
    ],
)
def test_mistakes_on_the_command_line_end_without_a_traceback(capsys, arguments, message):
    assert identify.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_an_unknown_option_ends_with_code_2(capsys):
    with pytest.raises(SystemExit) as stopped:
        identify.main(["--cutof", "3"])
    assert stopped.value.code == 2
    printed = capsys.readouterr()
    assert "cutof" in printed.err + printed.out


def test_data_without_its_directory(monkeypatch, capsys):
    monkeypatch.delenv("JAXDYN_DATA", raising=False)
    assert identify.main([str(identify.DEFAULT_CONFIG.with_name("identify_panda.toml"))]) == 2
    assert "JAXDYN_DATA" in capsys.readouterr().err


def test_the_command_line_overrides_the_file():
    arguments = ["--cutoff", "12.5", "--simulation.seed", "7", "--no-plot"]
    config = parse_arguments(IdentifyConfig, arguments, identify.DEFAULT_CONFIG, "identify", "")
    assert (config.cutoff, config.simulation.seed, config.plot, config.rate) == (12.5, 7, False, 0.0)


def test_a_start_that_is_not_physical_is_named(capsys):
    chain = jaxdyn.samples.chain(3)
    bad = eqx.tree_at(lambda m: m.inertial_parameters, chain, chain.inertial_parameters.at[1, 9].set(9.0))
    start = physical_start(bad)
    assert "link1" in capsys.readouterr().out
    np.testing.assert_array_equal(start.inertial_parameters[0], chain.inertial_parameters[0])
    assert physical_start(chain) is chain


def test_without_matplotlib_there_is_no_plot_but_advice(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    data = Recording(np.arange(3.0), np.zeros((3, 1)), tau=np.zeros((3, 1)))
    config: Any = types.SimpleNamespace(name="")
    plan: Any = types.SimpleNamespace(cutoff=10.0)
    drawn = IdentificationData(plan, data, data, None)
    draw_torques(tmp_path / "torque.png", config, jaxdyn.samples.pendulum(), drawn, {})
    assert "pip install 'jaxdyn[viz]'" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
