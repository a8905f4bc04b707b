"""URDF files: models from them and models as them, and the elements of a file for those who read more of it."""

from jaxdyn.io.urdf._left_out import left_out_of_urdf
from jaxdyn.io.urdf._patch import patch_urdf
from jaxdyn.io.urdf._reader import MimicMode, load_urdf
from jaxdyn.io.urdf._tree import format_version, pose_of
from jaxdyn.io.urdf._writer import to_urdf
from jaxdyn.io.urdf._xml import Element, fail, find_in_packages, read_robot
