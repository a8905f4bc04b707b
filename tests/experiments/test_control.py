"""Model predictive control of a robot that differs from the model, simulated by MuJoCo and by this library."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from experiments import control
from experiments._main import parse_arguments
from experiments._motion_tasks import HOME
from experiments._payload import identify_payload, with_cube
from experiments._plants import jaxdyn_plant, mujoco_plant, wrong_masses

CONFIGS = control.DEFAULT_CONFIG.parent
SMALL = ("--solver", "predictive_sampling", "--samples", "16", "--iterations", "2", "--horizon", "15")


@pytest.mark.experiments
def test_a_small_case_with_plots(tmp_path, capsys):
    small = (*SMALL, "--seeds", "2", "--duration", "0.6", "--results", str(tmp_path))
    assert control.main([str(CONFIGS / "control_cartpole.toml"), *small]) == 0
    folder = tmp_path / "control_cartpole"
    out = json.loads((folder / "summary.json").read_text())["nominal"]
    assert out["of"] == 2
    # Half a second is too short for a swing-up.
    assert out["success"] == 0
    assert out["compilations"] == 0
    assert 0 < out["latency_p50"] <= out["latency_p99"]
    assert out["iterations_mean"] == 2
    assert "0 of 2 within" in capsys.readouterr().out
    for name in ("motion.png", "loops.png", "motion.gif"):
        assert (folder / name).read_bytes()[:4] in (b"\x89PNG", b"GIF8")
    with np.load(folder / "trajectory.npz") as file:
        assert file["xs"].shape == (21, 4)
        assert np.abs(file["us"]).max() <= 10


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["mujoco", "jaxdyn"])
@pytest.mark.parametrize("task", ["cartpole", "arm"])
def test_success_with_masses_thirty_percent_wrong(tmp_path, task, engine):
    arguments = [str(CONFIGS / f"control_{task}.toml"), "--engine", engine, "--no-plot", "--no-animation"]
    arguments += ["--results", str(tmp_path)]
    out = control.run(parse_arguments(control.Config, arguments, control.DEFAULT_CONFIG, "control", ""))["nominal"]
    assert out["of"] == 20
    assert out["success"] >= 18
    assert out["compilations"] == 0


@pytest.mark.slow
def test_the_payload_is_identified_and_then_the_path_is_kept(tmp_path):
    arguments = [str(CONFIGS / "control_payload.toml"), "--seeds", "2", "--results", str(tmp_path), "--no-animation"]
    out = control.run(parse_arguments(control.Config, arguments, control.DEFAULT_CONFIG, "control", ""))
    errors = {name: out[name]["error_rms_median"] for name in ("without the payload", "identified", "true payload")}
    assert errors["without the payload"] > 1.5 * errors["identified"]
    assert errors["identified"] < 1.05 * errors["true payload"]


@pytest.mark.experiments
def test_a_payload_is_found_from_a_recorded_motion():
    nominal = jaxdyn.samples.arm()
    payload = identify_payload(nominal, with_cube(nominal, 2.0), "mujoco", seed=0)
    error = np.array(payload.numbers["identified"]) - np.array(payload.numbers["true"])
    assert abs(error[0]) < 0.02
    assert np.abs(error[1:4]).max() < 0.01
    assert "kg (true 2.0000)" in payload.report
    body = nominal.body_names.index("link7")
    np.testing.assert_allclose(
        payload.model.inertial_parameters[body] - nominal.inertial_parameters[body], payload.numbers["identified"]
    )


def test_the_plants_agree():
    """Two simulators of one robot with friction agree; each holds the torque for a period."""
    model = jaxdyn.samples.arm()
    model = dataclasses.replace(model, friction=jnp.full(7, 0.05), damping=jnp.full(7, 0.02))
    x = np.concatenate([HOME, np.full(7, 0.2)])
    tau = np.asarray(jaxdyn.generalized_gravity(model, jnp.asarray(HOME))) + 0.05
    ours, theirs = jaxdyn_plant(model, 0.02), mujoco_plant(model, 0.02, substeps=400)
    start = x
    for _ in range(3):
        x, other = ours(x, tau), theirs(x, tau)
        np.testing.assert_allclose(x, other, atol=1e-4)
    assert np.abs(x - start).max() > 0.02


def test_wrong_masses_are_wrong_by_as_much():
    model = jaxdyn.samples.arm()
    other = wrong_masses(model, 0.3, np.random.default_rng(0))
    factor = np.asarray(other.mass / model.mass)
    assert set(np.round(factor, 6)) == {0.7, 1.3}
    np.testing.assert_allclose(other.inertial_parameters, model.inertial_parameters * jnp.asarray(factor)[:, None])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "seeds is 0; a positive, finite number is needed"),
        (["--payload", "1"], "a payload is for the arm"),
        (["nowhere.toml"], "no such file"),
    ],
)
def test_mistakes_are_named(tmp_path, capsys, arguments, message):
    assert control.main([*arguments, "--results", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
