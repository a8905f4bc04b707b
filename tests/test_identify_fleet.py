"""The experiment that identifies many robots at once runs on a few."""

import json

import pytest

from experiments import identify_fleet


@pytest.mark.experiments
def test_a_small_fleet(tmp_path, capsys):
    small = ("--robot", "pendulum", "--robots", "5", "--chunk", "3", "--duration", "1", "--segment", "0.25")

    def summary(*more: str) -> dict:
        assert identify_fleet.main([*small, *more, "--results", str(tmp_path)]) == 0
        return json.loads((tmp_path / "identify_fleet" / "summary.json").read_text())

    out = summary()
    assert out["converged"] == 5
    errors = out["median_relative_error"]
    assert errors["after"] < errors["before"]
    # With a hundredth of the noise, errors that come from noise fall with it.
    exact = summary("--position-noise", "1e-5", "--velocity-noise", "1e-4")["median_relative_error"]
    assert exact["before"] == errors["before"]
    assert exact["after"] < 0.05 * errors["after"]
    assert "robots/s" in capsys.readouterr().out


def test_mistakes_are_named(tmp_path, capsys):
    assert identify_fleet.main(["--robot", "cart", "--results", str(tmp_path)]) == 2
    assert "one of 'acrobot'" in capsys.readouterr().err
    assert identify_fleet.main(["--robots", "0", "--results", str(tmp_path)]) == 2
    assert "robots is 0" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
