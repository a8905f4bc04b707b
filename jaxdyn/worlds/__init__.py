"""Worlds: models with contacts, limits, actuators and sensors, and MJCF files, moving as in MuJoCo, in JAX."""

from jaxdyn.worlds._appearance import Appearance, VisualFile
from jaxdyn.worlds._bodies import BodyMotion
from jaxdyn.worlds._causes import cause_names, changes_by_cause
from jaxdyn.worlds._control_steps import no_readings
from jaxdyn.worlds._description import describe
from jaxdyn.worlds._load_world import load_world
from jaxdyn.worlds._model_sensors import Sensor
from jaxdyn.worlds._save import save_world
from jaxdyn.worlds._stages import Stages, accelerations_step_and_sensors, world_stages
from jaxdyn.worlds._steps import next_activation
from jaxdyn.worlds._to_mjcf import write_world
from jaxdyn.worlds._world import World

__all__ = ["BodyMotion", "Sensor", "World", "load_world", "save_world"]
