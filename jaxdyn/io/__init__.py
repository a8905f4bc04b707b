"""Robots' files: reading them as models, and writing models."""

from jaxdyn.io._denavit_hartenberg import DHRow, from_dh
from jaxdyn.io.mjcf import MjcfActuator, is_mjcf, load_mjcf, load_mjcf_actuators, to_mjcf
from jaxdyn.io.robot_files import RobotFileWarning
from jaxdyn.io.urdf import load_urdf, to_urdf

__all__ = [
    "DHRow",
    "MjcfActuator",
    "RobotFileWarning",
    "from_dh",
    "is_mjcf",
    "load_mjcf",
    "load_mjcf_actuators",
    "load_urdf",
    "to_mjcf",
    "to_urdf",
]
