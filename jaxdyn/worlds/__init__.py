"""Worlds of MJCF files, moving as in MuJoCo: its soft constraints, actuators, tendons and integrators, in JAX."""

from jaxdyn.worlds._newton import SolverOptions
from jaxdyn.worlds._stages import Stages, accelerations_step_and_sensors, world_stages
from jaxdyn.worlds._steps import next_activation
from jaxdyn.worlds._world import SolverReport, World, load_world

__all__ = ["SolverOptions", "SolverReport", "World", "load_world"]
