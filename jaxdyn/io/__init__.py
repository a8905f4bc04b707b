"""Robots' files: reading them as models, and writing models."""

from jaxdyn.io._dh import DHRow, from_dh
from jaxdyn.io._mjcf import load_mjcf
from jaxdyn.io._mjcf_actuators import MjcfActuator, load_mjcf_actuators
from jaxdyn.io._mjcf_writer import to_mjcf
from jaxdyn.io._urdf import RobotFileWarning, load_urdf
from jaxdyn.io._urdf_writer import to_urdf

__all__ = [
    "DHRow",
    "MjcfActuator",
    "RobotFileWarning",
    "from_dh",
    "load_mjcf",
    "load_mjcf_actuators",
    "load_urdf",
    "to_mjcf",
    "to_urdf",
]
