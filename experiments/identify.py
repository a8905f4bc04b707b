"""Identify a robot's inertias, friction and rotor inertias from recordings of its motion and torques.

    python -m experiments.identify [CONFIG] [--key value ...]

The same as `jaxdyn identify`, with a default configuration.
"""

from __future__ import annotations

import sys

from experiments._main import CONFIGS, experiment
from jaxdyn.cli import IdentifyConfig, identify

DEFAULT_CONFIG = CONFIGS / "identify_simulated_arm.toml"
main = experiment("identify", IdentifyConfig, identify, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
