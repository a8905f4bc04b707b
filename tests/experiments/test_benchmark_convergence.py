"""The benchmark of convergence solves small problems, keeps IPOPT's results, and tells mistakes."""

import json

import pytest

from experiments import benchmark_convergence


@pytest.mark.slow
def test_both_solvers_find_the_same(tmp_path, capsys):
    arguments = ["--problems", "double_integrator,steered_car", "--guesses", "2", "--results", str(tmp_path)]
    assert benchmark_convergence.main(arguments) == 0
    assert "| double_integrator | 3 of 3 | 3 |" in capsys.readouterr().out
    folder = tmp_path / "benchmark_convergence"
    first = json.loads((folder / "summary.json").read_text())["problems"]["double_integrator"]
    assert abs(first["best"] - 0.744087) < 1e-6
    assert len(first["ddp"]) == len(first["ipopt"]) == 3
    assert all(r["residual"] < 1e-3 for r in (*first["ddp"], *first["ipopt"]))
    # IPOPT is not run again.
    kept = (folder / "ipopt.json").read_text()
    arguments = ["--problems", "double_integrator", "--guesses", "2", "--ipopt-guesses", "1", "--results"]
    arguments.append(str(tmp_path))
    assert benchmark_convergence.main(arguments) == 0
    assert (folder / "ipopt.json").read_text() == kept
    again = json.loads((folder / "summary.json").read_text())["problems"]["double_integrator"]
    assert (len(again["ddp"]), again["ipopt"]) == (3, first["ipopt"][:2])


def test_mistakes_are_told(tmp_path, capsys):
    assert benchmark_convergence.main(["--problems", "nowhere", "--results", str(tmp_path)]) == 2
    assert "problems has nowhere; there are double_integrator" in capsys.readouterr().err
    assert benchmark_convergence.main(["--guesses", "-1", "--results", str(tmp_path)]) == 2
    assert "guesses is -1" in capsys.readouterr().err
