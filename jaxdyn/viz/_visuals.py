"""The looks of a robot from its file."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jaxdyn.io import load_mjcf, load_urdf
from jaxdyn.model import Model
from jaxdyn.viz._geometry import Visual
from jaxdyn.viz._mjcf_visuals import mjcf_visuals
from jaxdyn.viz._urdf_visuals import urdf_visuals


def load_visuals(
    path_or_text: str | os.PathLike | Any,
    *,
    package_dirs: Sequence[str | os.PathLike] = (),
    skip_missing: bool = False,
) -> list[Visual]:
    """What the links of a robot look like, from its URDF or MJCF file, in the frames that the loaded model has.

    Of a URDF file: `<visual>` of every link: meshes (STL, OBJ, COLLADA, PLY, GLB), boxes, cylinders, spheres,
    capsules. The colors and images of a mesh's file come before the `<material>` of the link. Of an MJCF file: the
    geoms of the groups 0 to 2 in MuJoCo's compiled model, which its viewer shows; images on them are not read.

    **Arguments**

    - `path_or_text`: as in `load_urdf` and `load_mjcf`; a root element `<mujoco>`, or a `mujoco.MjModel`, is MJCF.
    - `package_dirs`: folders with the packages of `package://name/path`. The folders in which the robot's file lies are
      looked at, too: a package that holds both is found.
    - `skip_missing`: leave out what a missing file shows, with one warning that lists these files.

    **Raises** `RobotFileError` for a file that cannot be read, for missing files of meshes (all of them, with the lines
    that name them), and for a geometry that is none of those; `ImportError` without trimesh, pycollada (for COLLADA)
    or MuJoCo (for MJCF).
    """
    if is_mjcf(path_or_text):
        return mjcf_visuals(path_or_text)
    return urdf_visuals(path_or_text, package_dirs, skip_missing)


def load_robot(source: Any, package_dirs: Sequence[str | os.PathLike], **options) -> Model:
    """The model of a URDF or MJCF file; `options` are its loader's. Neither parts that act and no model has nor slips
    of the pen bear on a picture: they are warned of, unless the options say otherwise."""
    if is_mjcf(source):
        return load_mjcf(source, **{"unsupported": "warn", **options})
    return load_urdf(source, package_dirs=package_dirs, **{"strict": False, **options})


def is_mjcf(source: Any) -> bool:
    """Whether a path, text or compiled model is MJCF; what cannot be read is left to the loader of URDF to refuse."""
    if not isinstance(source, str | os.PathLike):
        return True
    text = source if isinstance(source, str) else os.fsdecode(source)
    if not text.lstrip("\ufeff \t\r\n").startswith("<"):
        try:
            text = Path(text).read_bytes().decode(errors="replace")
        except (OSError, ValueError):
            return False
    root = re.search(r"<([A-Za-z_][\w.:-]*)", re.sub(r"<!--.*?-->|<[?!].*?>", "", text, flags=re.DOTALL))
    return root is not None and root[1] in ("mujoco", "mujocoinclude")
