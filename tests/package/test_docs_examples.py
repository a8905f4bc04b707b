"""The scripts in docs/examples run to their end and print the numbers that they claim."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
DATA = Path(os.environ.get("JAXDYN_DATA", "")) / "panda_exciting"


def output(name: str, folder: Path, **environment: str) -> str:
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    out = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert out.returncode == 0, out.stderr
    return out.stdout


def number(pattern: str, text: str) -> float:
    match = re.search(pattern.replace("#", r"(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"), text)
    assert match, text
    return float(match[1])


def test_every_example_has_a_test():
    tested = set(re.findall(r'output\("(\w+)"', Path(__file__).read_text()))
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested


@pytest.mark.docs
def test_dynamics_and_gradients(tmp_path):
    text = output("dynamics_and_gradients", tmp_path)
    assert number(r"torques of # N m instead of zero", text) < 1e-9
    assert number(r"off by # of it", text) < 1e-5
    assert number(r"inverse mass matrix, to #", text) < 1e-8


@pytest.mark.docs
@pytest.mark.skipif(not DATA.is_dir(), reason="needs the recording of the Panda below the directory in JAXDYN_DATA")
def test_identify_panda(tmp_path):
    text = output("identify_panda", tmp_path)
    assert number(r"fit +error #", text) < 1.02 * number(r"least squares +error #", text)
    assert number(r"fit +error #", text) < 0.5 * number(r"drawing +error #", text)
    assert "physically possible links: 7 of 7" in text.split("fit  ")[-1]


@pytest.mark.docs
def test_identify_panda_says_what_it_needs(tmp_path):
    assert output("identify_panda", tmp_path, JAXDYN_DATA=str(tmp_path)).startswith("skipped: set JAXDYN_DATA")


@pytest.mark.docs
def test_double_pendulum_from_chaos(tmp_path):
    text = output("double_pendulum_from_chaos", tmp_path)
    wrong, identified, true = (
        number(rf"{name} +median error of roll-outs after 0.5 s: #", text) for name in ("wrong", "identified", "true")
    )
    assert identified < 0.2 * wrong
    assert identified < 1.5 * true


@pytest.mark.docs
def test_swing_up(tmp_path):
    text = output("swing_up", tmp_path)
    assert "plan: converged" in text
    assert number(r"at most # degrees", text) < 5.0


@pytest.mark.docs
def test_randomized_robots(tmp_path):
    text = output("randomized_robots", tmp_path, XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert text.startswith("4 devices")
    before, after = (number(pattern, text) for pattern in (r"error # ->", r"-> # rad"))
    assert after < 0.8 * before
