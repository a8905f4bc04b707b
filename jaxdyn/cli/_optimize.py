"""`jaxdyn optimize`: find the motion of a robot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jaxdyn.programs import OptimizeConfig, double_precision, optimize, parse_command, print_json

HELP = """Find the motion of a robot: swing-ups, an arm that reaches past an obstacle, a quadrotor.

The same problem is solved by differential dynamic programming or by samples. Writes trajectory.npz, summary.json,
motion.png and motion.gif into RESULTS/NAME."""
EXAMPLES = """
  jaxdyn optimize --name swing-up --task pendulum
  jaxdyn optimize --name flight --task quadrotor --no-animation --json
  jaxdyn optimize --name sampled --task pendulum --solver mppi --samples 512

  The same in a file, motion.toml, whose keys are the options:
    name = "reach"
    task = "arm"
    horizon = 100

    jaxdyn optimize motion.toml --iterations 500"""


def main(arguments: Sequence[str]) -> None:
    """Run the command with its arguments."""
    # Hard constraints and swing-ups need double precision.
    double_precision()
    config, as_json = parse_command(OptimizeConfig, arguments, "jaxdyn optimize", HELP, EXAMPLES)
    print_json(lambda: {"folder": str(Path(config.results) / config.name), **optimize(config)}, as_json)
