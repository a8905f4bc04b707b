"""`jaxdyn identify`: a robot's inertias, friction and rotor inertias from recordings of its motion and torques."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxdyn.cli._application import double_precision, print_json
from jaxdyn.cli._config import parse_command
from jaxdyn.cli._identification import identify
from jaxdyn.cli._identification_data import IdentifyConfig

HELP = """Identify a robot's inertias, friction and rotor inertias from recordings of its motion and torques.

On a part of the data that no fit sees, compares the robot's file, ordinary least squares, and a fit whose every link is
physical. Writes parameters.json, torque.png and report.html into RESULTS/NAME."""
EXAMPLES = """
  A simulated arm, which needs no file:
    jaxdyn identify --name try --robot arm --recording simulated --fit-start 0 --fit-stop 14 --test-stop 20

  A robot: a URDF file, and a recording with the columns t, q1, ..., tau1, ... (or a NumPy archive of t, q, tau).
  arm.toml:
    name = "arm"
    robot = "arm.urdf"
    recording = "run.csv"
    fit_start = 0.0    # s; fitted from here
    fit_stop = 14.0    # to here;
    test_stop = 20.0   # the part from fit_stop to here is held out

    jaxdyn identify arm.toml
    jaxdyn identify arm.toml --cutoff 8 --urdf --json

  Motor currents, N m/A, in the place of torques; a gripper that was not recorded; times in ms:
    jaxdyn identify arm.toml --csv.current "i*" --torque-gain 10.5 8.2 --locked finger_joint1 0.0 --scale.t 1e-3"""


def main(arguments: Sequence[str]) -> None:
    """Run the command with its arguments."""
    # Identification subtracts nearly equal sums, and single precision costs digits here.
    double_precision()
    config, as_json = parse_command(IdentifyConfig, arguments, "jaxdyn identify", HELP, EXAMPLES)
    print_json(lambda: _short_summary(identify(config)), as_json)


def _short_summary(out: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome of the fits without their parameters, which are in a file."""
    return {
        "folder": str(Path(out["config"]["results"]) / out["config"]["name"]),
        "fits": {
            name: {
                "status": fit["status"],
                "links_not_physical": [b for b, ok in zip(out["bodies"], fit["physical"], strict=True) if not ok],
            }
            for name, fit in out["fits"].items()
        },
        **{key: out[key] for key in ("held_out_relative", "held_out_relative_raw", "held_out_rmse", "seconds")},
    }
