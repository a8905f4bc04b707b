"""Find the motion of a robot: swing-ups, an arm that reaches past an obstacle, a quadrotor.

    python -m experiments.optimize [CONFIG] [--key value ...]

The same as `jaxdyn optimize`, with a default configuration.
"""

from __future__ import annotations

import sys

from experiments._main import CONFIGS, experiment
from jaxdyn.programs import OptimizeConfig, optimize

DEFAULT_CONFIG = CONFIGS / "optimize_pendulum.toml"
main = experiment("optimize", OptimizeConfig, optimize, DEFAULT_CONFIG, __doc__)

if __name__ == "__main__":
    sys.exit(main())
