"""MJCF files: models from them and models as them, and MuJoCo's compiled model for those who read more of it."""

from jaxdyn.io.mjcf._compiled import (
    Names,
    compile_mjcf,
    enum_name,
    geom_mesh,
    geom_pose,
    is_disabled,
    is_enabled,
    is_mjcf,
    mujoco,
    object_name,
    with_actuators,
)
from jaxdyn.io.mjcf._drawn_geoms import DrawnGeom, DrawnSurface, drawn_geoms
from jaxdyn.io.mjcf._file_actuators import FileActuators, reasons_against_actuators
from jaxdyn.io.mjcf._geom_pairs import GEOM_SHAPES, SMALLEST_FRICTION, GeomPair, GeomType, geom_pairs, mixed_pair
from jaxdyn.io.mjcf._geom_shapes import hulls_of_geoms, shape_of, shapes_of_pair
from jaxdyn.io.mjcf._joint_actuators import load_mjcf_actuators
from jaxdyn.io.mjcf._massless import compile_massless_mjcf
from jaxdyn.io.mjcf._mjcf_reader import left_out_of_mjcf, load_mjcf
from jaxdyn.io.mjcf._mjcf_writer import text_with_numbers, to_mjcf
from jaxdyn.io.mjcf._spec_text import text_of_spec
