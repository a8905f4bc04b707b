"""Find the motion of a robot: swing-ups, an arm that reaches past an obstacle, a quadrotor.

    python -m experiments.optimize [CONFIG] [--key value ...]

The same as `jaxdyn optimize`, with a configuration of its own where none is given: see `jaxdyn/cli/_optimize.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments._main import CONFIGS, experiment
from jaxdyn.cli._optimize import Config, run

DEFAULT_CONFIG = CONFIGS / "optimize_pendulum.toml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; the exit code is 2 for a mistake in what was given, with a message on stderr."""
    return experiment(Config, run, arguments, DEFAULT_CONFIG, "optimize", __doc__)


if __name__ == "__main__":
    sys.exit(main())
