"""The model and the visual geometry of a robot from its file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from jaxdyn.io import is_mjcf, load_mjcf, load_urdf
from jaxdyn.model import Model
from jaxdyn.viz._geometry import Visual
from jaxdyn.viz._mjcf_visuals import mjcf_visuals
from jaxdyn.viz._urdf_visuals import urdf_visuals


def load_visuals(
    path_or_text: str | os.PathLike | Any, *, package_dirs: Sequence[str | os.PathLike] = (), skip_missing: bool = False
) -> list[Visual]:
    """Return the visual geometry of a robot's links, from its URDF or MJCF file, in the frames of the loaded model.

    From a URDF file it is `<visual>` of every link: meshes (STL, OBJ, COLLADA, PLY, GLB), boxes, cylinders, spheres,
    capsules. The colors and images of a mesh's file come before the `<material>` of the link. From an MJCF file it is
    the geoms of the groups 0 to 2 in MuJoCo's compiled model, which its viewer shows; images on them are not read.

    **Arguments**

    - `path_or_text`: as in `load_urdf` and `load_mjcf`; a root element `<mujoco>`, or a `mujoco.MjModel`, is MJCF.
    - `package_dirs`: folders with the packages of `package://name/path`. A package that holds the robot's file is found
      without them.
    - `skip_missing`: whether missing files of meshes are left out, with one warning that lists them.

    **Raises** `RobotFileError` for a file that cannot be read, for missing files of meshes (all of them, with the lines
    that name them), and for any other geometry; `ImportError` without trimesh, pycollada (for COLLADA)
    or MuJoCo (for MJCF).
    """
    if is_mjcf(path_or_text):
        return mjcf_visuals(path_or_text)
    return urdf_visuals(path_or_text, package_dirs, skip_missing)


def load_robot(source: Any, package_dirs: Sequence[str | os.PathLike], **options) -> Model:
    """Return the model of a URDF or MJCF file; `options` are its loader's. Faults of the file, and parts that models do
    not have, only warn unless the options say otherwise: they do not matter for a picture."""
    if is_mjcf(source):
        return load_mjcf(source, **{"unsupported": "warn", **options})
    return load_urdf(source, package_dirs=package_dirs, **{"strict": False, **options})
