"""Robots' files: reading them as models, and writing models."""

from jaxdyn.io._mjcf_writer import to_mjcf
from jaxdyn.io._urdf import RobotFileWarning, load_urdf

__all__ = ["RobotFileWarning", "load_urdf", "to_mjcf"]
