"""The experiment of one robot in four ways runs a small case from its configuration to pictures."""

import json

import numpy as np
import pytest

from experiments import four_ways

pytest.importorskip("mujoco")


@pytest.mark.experiments
@pytest.mark.parametrize("task", ["gripper", "quadruped", "half_cheetah"])
def test_a_small_case(task, tmp_path):
    pytest.importorskip("gymnasium" if task == "half_cheetah" else "mujoco")
    ways = "simulate,identify,move" if task == "half_cheetah" else "simulate,move"
    small = ["--seeds", "1", "--steps", "10", "--batch", "8", "--samples", "16", "--iterations", "5", "--ways", ways]
    assert four_ways.main(["--task", task, *small, "--results", str(tmp_path)]) == 0
    out = json.loads((tmp_path / "four_ways" / "summary.json").read_text())
    for law in ("MujocoLaw", "ContactLaw"):
        assert out["simulated"][law]["difference_of_modes"] < 1e-6
    if "identify" in ways:
        # At least 15 of 19 independent intervals of 95 % hold the truth in 998 of 1000 cases.
        assert out["identified"]["coverage"] > 0.78
    # After five iterations `ddp` may have gaps between its states, which a roll-out does not have.
    assert np.isfinite(out["moved"]["ddp"]["cost"])
    assert abs(out["moved"]["samples"]["left"] - out["moved"]["samples"]["left_in_mujoco"]) < 1e-3
    assert (tmp_path / "four_ways" / "motion.html").stat().st_size > 1000


@pytest.mark.experiments
def test_a_fit_goes_on_beyond_the_jumps_of_contacts(tmp_path):
    """The fingertips of the gripper meet a table again and again, and steps that must lower the cost stall beside the
    nearest jump of a residual: without others, 22 of 25 intervals hold the truth, and the minimum is 3.2 standard
    errors away."""
    arguments = ["--task", "gripper", "--ways", "identify", "--seeds", "1", "--results", str(tmp_path)]
    assert four_ways.main(arguments) == 0
    out = json.loads((tmp_path / "four_ways" / "summary.json").read_text())
    assert out["identified"]["steps_left"][0] < 1
    assert out["identified"]["coverage"] > 0.9
