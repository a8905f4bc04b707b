"""The experiment that finds motions runs a small case from its configuration to pictures and solves all tasks."""

import json

import jax.numpy as jnp
import numpy as np
import pytest

from experiments import optimize
from experiments._motion_tasks import TASKS, motion_task, quadrotor_actuation, quadrotor_model
from jaxdyn import aba
from jaxdyn.cli import read_config

CONFIGS = sorted(optimize.DEFAULT_CONFIG.parent.glob("optimize_*.toml"))


@pytest.mark.experiments
def test_a_small_case(tmp_path, capsys):
    arguments = ["--horizon", "40", "--solver", "predictive_sampling", "--samples", "32", "--iterations", "60"]
    assert optimize.main([*arguments, "--results", str(tmp_path)]) == 0
    folder = tmp_path / "optimize_pendulum"
    out = json.loads((folder / "summary.json").read_text())
    task = motion_task("pendulum", 40)
    guess = float(task.problem.total_cost(task.problem.rollout(jnp.asarray(task.us)), jnp.asarray(task.us)))
    assert out["cost"] < 0.7 * guess
    with np.load(folder / "trajectory.npz") as file:
        assert file["xs"].shape == (41, 2)
        again = float(task.problem.total_cost(jnp.asarray(file["xs"]), jnp.asarray(file["us"])))
    assert again == pytest.approx(out["cost"], rel=1e-6)
    assert f"cost {out['cost']:.6g} after {out['iterations']} iterations" in capsys.readouterr().out
    assert (folder / "motion.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "motion.gif").read_bytes().startswith(b"GIF8")


def test_every_configuration_names_a_task():
    tasks = {read_config(optimize.Config, path).task for path in CONFIGS}
    assert tasks == set(TASKS)


def test_a_hovering_quadrotor_stays():
    model = quadrotor_model()
    wrench = quadrotor_actuation() @ np.full(4, 9.81 / 4)
    zero = jnp.zeros(6)
    np.testing.assert_allclose(aba(model, model.neutral(), zero, jnp.asarray(wrench)), zero, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_goals_are_reached(tmp_path, path):
    assert optimize.main([str(path), "--results", str(tmp_path)]) == 0
    out = json.loads((tmp_path / path.stem / "summary.json").read_text())
    assert out["status"] == "CONVERGED"
    assert out["error_at_the_end"] < 0.02
    assert out["violation"] < 1e-6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--task", "walker"], "task is 'walker'"), (["--iterations", "0"], "iterations is 0")],
)
def test_mistakes_are_named(tmp_path, capsys, arguments, message):
    assert optimize.main([*arguments, "--results", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
