"""Published problems of optimal control with constraints, with their constants, horizons and guesses."""

from __future__ import annotations

from experiments._optimal_control._altro import ALTRO, acrobot, cartpole
from experiments._optimal_control._altro_quadrotors import QUADROTORS
from experiments._optimal_control._benchmark import Benchmark, Guess
from experiments._optimal_control._casadi import CASADI
from experiments._optimal_control._gaits import Gait as Gait
from experiments._optimal_control._gaits import gait_of as gait_of
from experiments._optimal_control._others import OTHERS
from experiments._optimal_control._robots import ROBOTS
from experiments._optimal_control._trajax import TRAJAX

PROBLEMS: dict[str, Benchmark] = {**ALTRO, **QUADROTORS, **CASADI, **TRAJAX, **OTHERS, **ROBOTS}
"""All problems by their names."""
