"""Scenes of MJCF files, moving as in MuJoCo: its soft constraints, actuators, tendons and integrators, in JAX."""

from jaxdyn.scenes._newton import SceneOptions
from jaxdyn.scenes._scene import Scene, SceneReport, load_scene
from jaxdyn.scenes._stages import Stages, accelerations_step_and_sensors, scene_stages
from jaxdyn.scenes._states import SceneState

__all__ = ["Scene", "SceneOptions", "SceneReport", "SceneState", "load_scene"]
