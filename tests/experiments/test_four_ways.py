"""The experiment of one robot in four ways runs a small case from its configuration to pictures."""

import json

import numpy as np
import pytest

from experiments import four_ways

pytest.importorskip("mujoco")


def summary(folder, *arguments: str) -> dict:
    """What the experiment writes."""
    assert four_ways.main([*arguments, "--results", str(folder)]) == 0
    return json.loads((folder / "four_ways" / "summary.json").read_text())


@pytest.mark.experiments
@pytest.mark.parametrize("task", ["gripper", "quadruped", "half_cheetah"])
def test_a_robot_is_simulated_moved_and_drawn(task, tmp_path):
    pytest.importorskip("gymnasium" if task == "half_cheetah" else "mujoco")
    small = ["--steps", "10", "--batch", "8", "--samples", "16", "--iterations", "5", "--ways", "simulate,move"]
    out = summary(tmp_path, "--task", task, *small)
    for law in ("MujocoLaw", "ContactLaw"):
        assert out["simulated"][law]["difference_of_modes"] < 1e-6
    for found in out["moved"].values():
        assert np.isfinite(found["cost"])
        # After five iterations the states of `ddp` may have gaps, which a roll-out of its controls does not have.
        assert abs(found["left_in_rollout"] - found["left_in_mujoco"]) < 1e-3
    assert abs(out["moved"]["samples"]["left"] - out["moved"]["samples"]["left_in_rollout"]) < 1e-3
    assert (tmp_path / "four_ways" / "motion.html").stat().st_size > 1000


@pytest.mark.experiments
@pytest.mark.parametrize("task", ["gripper", "quadruped"])
def test_a_fit_averages_over_when_contacts_begin(task, tmp_path):
    """A foot that touches down a time step later changes velocities by far more than their noise, and steps that must
    lower the cost stall beside the nearest jump: then 17 of 40 intervals of the quadruped hold the truth, and 22 of 25
    of the gripper, whose fingertips meet a table again and again."""
    out = summary(tmp_path, "--task", task, "--ways", "identify", "--seeds", "1")["identified"]
    assert out["steps_left"][0] < 0.2 * np.sqrt(out["numbers"])
    assert out["coverage"] > 0.9


@pytest.mark.experiments
def test_the_half_cheetah_is_identified(tmp_path):
    pytest.importorskip("gymnasium")
    arguments = ["--task", "half_cheetah", "--ways", "identify", "--seeds", "4"]
    # Intervals of one recording depend on each other: 14 of 19 hold the truth in the first, 69 of 76 in all four.
    assert summary(tmp_path, *arguments)["identified"]["coverage"] > 0.85
