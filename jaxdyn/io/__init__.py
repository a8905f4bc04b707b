"""Files of robots and models: reading and writing them."""

import inspect as _inspect

from jaxdyn.io._denavit_hartenberg import DHRow, from_dh
from jaxdyn.io._left_out_of_files import left_out
from jaxdyn.io._model_files import load_model, save_model
from jaxdyn.io.mjcf import is_mjcf, load_mjcf, load_mjcf_actuators, patch_mjcf, to_mjcf
from jaxdyn.io.robot_files import LeftOut, LeftOutWarning, RobotFileWarning
from jaxdyn.io.urdf import load_urdf, patch_urdf, to_urdf

# The names that are imported above, without the modules that Python sets beside them.
__all__ = [  # pyright: ignore[reportUnsupportedDunderAll]
    name for name, value in list(globals().items()) if name[0] != "_" and not _inspect.ismodule(value)
]
