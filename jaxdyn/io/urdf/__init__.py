"""URDF files: models from them and models as them, and the elements of a file for those who read more of it."""

from jaxdyn.io.urdf._left_out_of_urdf import left_out_of_urdf
from jaxdyn.io.urdf._patch import patch_urdf
from jaxdyn.io.urdf._shape_elements import UrdfShape, missing_meshes, read_shapes
from jaxdyn.io.urdf._urdf_reader import MimicMode, load_urdf
from jaxdyn.io.urdf._urdf_writer import to_urdf
from jaxdyn.io.urdf._xml import Element
