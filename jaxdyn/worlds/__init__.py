"""Worlds of MJCF files, moving as in MuJoCo: its soft constraints, actuators, tendons and integrators, in JAX."""

from jaxdyn.worlds._stages import Stages, accelerations_step_and_sensors, world_stages
from jaxdyn.worlds._world import World, load_world

__all__ = ["World", "load_world"]
