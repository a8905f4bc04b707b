"""Identified numbers decide in which worlds policies are trained."""

import json

import jax
import numpy as np
import pytest

pytest.importorskip("mujoco")

from experiments import learning_from_identification as experiment


def test_the_report_has_medians_and_quartiles():
    def record(seed, *returns):
        return {"kind": "wide", "seed": seed, "returns": list(returns), "distances": [0.1, 0.1]}

    lines = experiment.report([record(0, -1.0, -3.0), record(1, -5.0, -7.0)])
    assert "| wide | -2.0, -6.0 | -4.0 [-5.5, -2.5] | -4.00 | -7.0 | 100 |" in lines


def test_the_hand_is_where_the_world_has_it():
    world = experiment.environment(experiment.FILE).world
    q = np.array([0.3, -1.1], np.float32)
    centers = np.asarray(world.body_motion(world.state(q)).center)
    np.testing.assert_allclose(experiment.hand(q), centers[world.body_names.index("hand"), [0, 2]], atol=1e-6)


@pytest.mark.experiments
def test_policies_are_trained_and_judged_on_the_identified_robot(tmp_path, capsys):
    small = ("--steps", "64", "--seeds", "1", "--starts", "2", "--episode-length", "5", "--duration", "4")
    with jax.enable_x64(True):
        assert experiment.main([*small, "--results", str(tmp_path)]) == 0
    out = json.loads((tmp_path / "learning_from_identification" / "summary.json").read_text())
    assert [x["kind"] for x in out["runs"]] == ["file", "wide", "identified", "true"]
    true = {"load": "load", "damping": "damping", "frictionloss": "friction"}
    for name, (value, lower, upper) in out["identified"].items():
        # Of 10 s, all are within 0.2 %.
        assert value == pytest.approx(experiment.TRUE[true[name.split(" ")[0]]], rel=0.02), name
        assert lower < value < upper < 1.05 * value
    assert "identified" in capsys.readouterr().out
