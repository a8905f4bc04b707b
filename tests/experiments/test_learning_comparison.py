"""The comparison of trainers judges, reports, and does not repeat runs that have ended."""

import json

import pytest

from experiments import learning_comparison
from experiments.learning_comparison import main, report

SMALL = (
    *("--tasks", "cartpole_swingup", "--seeds", "1", "--steps", "64", "--minutes", "0.0001", "--points", "1"),
    *("--starts", "3", "--curve-starts", "2", "--episode-length", "5"),
)


def test_the_report_has_medians_and_quartiles_over_seeds():
    def record(seed, steps, *returns):
        points = [{"steps": steps, "seconds": 10.0 + seed, "cpu_seconds": 8.0, "returns": [returns[0]], "falls": 0}]
        final = {"returns": list(returns), "falls": 1}
        return {"task": "ant", "method": "ppo", "seed": seed, "steps": steps, "points": points, "final": final}

    lines = report([record(0, 100, 1.0, 3.0), record(1, 100, 4.0, 6.0), record(2, 100, 10.0, 30.0)])
    assert "| ant | ppo | 100 | 11 | 8 | 4 [2, 7] |" in lines
    assert "| ant | ppo | 3 | 100 | 5 [4, 12] | 50 |" in lines


@pytest.mark.experiments
@pytest.mark.parametrize("method", ["shac", "ppo"])
def test_a_run_is_judged_and_not_repeated(method, tmp_path, monkeypatch, capsys):
    if method == "ppo":
        pytest.importorskip("brax")
    arguments = [*SMALL, "--methods", method, "--results", str(tmp_path)]
    assert main(arguments) == 0
    out = json.loads((tmp_path / "learning_comparison" / "summary.json").read_text())
    (run,) = out["runs"]
    assert len(run["final"]["returns"]) == 3
    assert run["points"]
    assert "return at the end" in capsys.readouterr().out
    monkeypatch.setattr(learning_comparison, "by_ppo", None)
    monkeypatch.setattr(learning_comparison, "by_gradients", None)
    assert main(arguments) == 0
    again = json.loads((tmp_path / "learning_comparison" / "summary.json").read_text())
    assert again["runs"] == out["runs"]
    assert main([*arguments, "--starts", "4"]) == 2
    assert "has other settings" in capsys.readouterr().err
