"""The experiment of one robot in four ways runs a small case from its configuration to pictures."""

import json

import pytest

from experiments import four_ways

pytest.importorskip("mujoco")


@pytest.mark.experiments
@pytest.mark.parametrize("task", ["gripper", "quadruped", "half_cheetah"])
def test_a_small_case(task, tmp_path):
    pytest.importorskip("gymnasium" if task == "half_cheetah" else "mujoco")
    small = ["--seeds", "1", "--duration", "1", "--steps", "10", "--batch", "8", "--samples", "16", "--iterations", "5"]
    assert four_ways.main(["--task", task, *small, "--results", str(tmp_path)]) == 0
    out = json.loads((tmp_path / "four_ways" / "summary.json").read_text())
    for law in ("MujocoLaw", "ContactLaw"):
        assert out["simulated"][law]["difference_of_modes"] < 1e-6
    assert out["identified"]["median_error"] < 0.1
    assert out["moved"]["ddp"]["cost"] <= out["moved"]["samples"]["cost"]
    assert abs(out["moved"]["ddp"]["left"] - out["moved"]["ddp"]["left_in_mujoco"]) < 1e-2
    assert (tmp_path / "four_ways" / "motion.html").stat().st_size > 1000
