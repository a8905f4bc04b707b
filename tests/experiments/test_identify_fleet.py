"""The experiment that identifies many robots at once runs on a few."""

import json

import pytest

from experiments import identify_fleet


@pytest.mark.experiments
def test_a_small_fleet(tmp_path, capsys):
    small = ("--robot", "pendulum", "--robots", "5", "--chunk", "3", "--duration", "1", "--segment", "0.25")

    def summary(*more: str, name: str = "first") -> dict:
        assert identify_fleet.main([*small, *more, "--results", str(tmp_path), "--name", name]) == 0
        return json.loads((tmp_path / name / "summary.json").read_text())

    out = summary()
    assert out["converged"] == 5
    errors = out["median_relative_error"]
    assert errors["after"] < errors["before"]
    # With a hundredth of the noise, errors that come from noise fall with it.
    exact = summary("--position-noise", "1e-5", "--velocity-noise", "1e-4", name="exact")["median_relative_error"]
    assert exact["before"] == errors["before"]
    assert exact["after"] < 0.05 * errors["after"]
    assert "robots/s" in capsys.readouterr().out
    # Blocks are not fitted twice, and belong to one configuration.
    again = summary()
    assert (again["robots_fitted_here"], again["median_relative_error"]) == (0, errors)
    assert "1 of 1 blocks are there already" in capsys.readouterr().out
    assert identify_fleet.main([*small, "--results", str(tmp_path), "--name", "first", "--spread", "0.1"]) == 2
    assert "config.spread was 0.3 and is 0.1" in capsys.readouterr().err


def test_mistakes_are_named(tmp_path, capsys):
    assert identify_fleet.main(["--robot", "cart", "--results", str(tmp_path)]) == 2
    assert "one of 'acrobot'" in capsys.readouterr().err
    assert identify_fleet.main(["--robots", "0", "--results", str(tmp_path)]) == 2
    assert "robots is 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
