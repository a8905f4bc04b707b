"""The list of all that robots' files have and their models leave out, whatever the format."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from jaxdyn.io.mjcf import is_mjcf, left_out_of_mjcf
from jaxdyn.io.robot_files import LeftOut
from jaxdyn.io.urdf import left_out_of_urdf


def left_out(
    path_or_text: str | os.PathLike | Any, *, package_dirs: Sequence[str | os.PathLike] = ()
) -> tuple[LeftOut, ...]:
    """Return all that a URDF or MJCF file has and its model leaves out, by kind.

    `acts` says which of it the dynamics of the format have: contacts, limits of joints, servos, constraints and the
    like, of which loading warns. The rest are shapes, sensors, materials, cameras and so on. `path_or_text` and
    `package_dirs` are as in `load_urdf` and `load_mjcf`; faults that `strict=False` and `unsupported="warn"` pass over
    are passed over here.

    **Raises** `RobotFileError` for a file that cannot be read; `ImportError` without MuJoCo (MJCF).
    """
    return left_out_of_mjcf(path_or_text) if is_mjcf(path_or_text) else left_out_of_urdf(path_or_text, package_dirs)
