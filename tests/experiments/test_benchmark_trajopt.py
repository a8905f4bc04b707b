"""The benchmark of trajectory optimization on a small robot writes its files, and the libraries agree."""

import importlib.util
import json

import numpy as np
import pytest

from experiments import benchmark_trajopt
from jaxdyn import samples, to_urdf


@pytest.mark.slow
def test_both_libraries_find_the_same(tmp_path, capsys):
    path = tmp_path / "arm.urdf"
    path.write_text(to_urdf(samples.arm()))
    frame = samples.arm().topology.frame_names[-1]
    arguments = ["--robot", str(path), "--frame", frame, "--horizon", "8", "--batch", "2", "--rounds", "1"]
    arguments += ["--iterations", "100", "--goal", "0.3", "0.1", "0.4", "--results", str(tmp_path)]
    assert benchmark_trajopt.main(arguments) == 0
    assert "ms an iteration" in capsys.readouterr().out
    entries = json.loads((tmp_path / "benchmark_trajopt" / "summary.json").read_text())["measurements"]
    peers = ["crocoddyl"] if importlib.util.find_spec("crocoddyl") else []
    assert [(e["solver"], e["problems"]) for e in entries] == [
        (name, n) for n in (1, 2) for name in ("jaxdyn float64", "jaxdyn float32", *peers)
    ]
    for e in entries:
        assert e["solved"] == e["problems"]
        assert e["ms_per_iteration"] > 0
        best = entries[0] if e["problems"] == 1 else entries[len(entries) // 2]
        np.testing.assert_allclose(e["cost"], best["cost"], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("integrator", ["semi_implicit_euler", "rk4"])
def test_a_free_base(tmp_path, integrator):
    config = str(benchmark_trajopt.DEFAULT_CONFIG.with_name("benchmark_trajopt_rigid_body.toml"))
    arguments = [config, "--integrator", integrator, "--batch", "2", "--rounds", "1", "--horizon", "12"]
    assert benchmark_trajopt.main([*arguments, "--iterations", "30", "--results", str(tmp_path)]) == 0
    summary = tmp_path / "benchmark_trajopt_rigid_body" / "summary.json"
    entries = json.loads(summary.read_text())["measurements"]
    # Crocoddyl integrates the running cost by the Runge-Kutta method, too.
    tolerance = 2e-3 if integrator == "semi_implicit_euler" else 2e-2
    for e in entries:
        best = entries[0] if e["problems"] == 1 else entries[len(entries) // 2]
        np.testing.assert_allclose(e["cost"], best["cost"], rtol=tolerance)


def test_mistakes_are_told(tmp_path, capsys):
    assert benchmark_trajopt.main(["--batch", "0", "--results", str(tmp_path)]) == 2
    assert "batch is 0; a positive, finite number is needed" in capsys.readouterr().err
    assert benchmark_trajopt.main(["--robot", "nowhere.urdf", "--results", str(tmp_path)]) == 2
    assert "nowhere.urdf" in capsys.readouterr().err
    gait = ["--gaits", "anymal trotting", "--crocoddyl", "/nowhere/python", "--results", str(tmp_path)]
    assert benchmark_trajopt.main(gait) == 2
    assert "crocoddyl = '/nowhere/python' cannot be run" in capsys.readouterr().err
