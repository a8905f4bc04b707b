"""Identify a robot's inertias, friction and rotor inertias from recordings of its motion and torques.

    python -m experiments.identify [CONFIG] [--key value ...]

The same as `jaxdyn identify`, with a configuration of its own where none is given: see `jaxdyn/cli/_identify.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from experiments._main import CONFIGS, experiment
from jaxdyn.cli._identify import Config, run

DEFAULT_CONFIG = CONFIGS / "identify_embedded.toml"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the experiment; the exit code is 2 for a mistake in what was given, with a message on stderr."""
    return experiment(Config, run, arguments, DEFAULT_CONFIG, "identify", __doc__)


if __name__ == "__main__":
    sys.exit(main())
