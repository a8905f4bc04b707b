"""`save_world`: worlds as files."""

from __future__ import annotations

import os

from jaxdyn._errors import ModelError, naming_arguments, require_kind
from jaxdyn.io.robot_files import write_archive
from jaxdyn.worlds._saved_values import WORLD_FORMAT, content_of
from jaxdyn.worlds._world import World


@naming_arguments
def save_world(path: str | os.PathLike, world: World) -> None:
    """Write a world to a file, from which `load_world` returns the same, without MuJoCo: names, structure, what is
    drawn of it, and every array with its precision and its batch axes. Steps of both are equal to the last bit.

    The file is a NumPy archive (`.npz`) without pickled objects; `path` is used as it is. A file that exists is
    replaced at once, when the new one is complete and on the disk.

    **Raises** `ModelError` for anything but a world, within `jit` or another transformation, and for arrays in a
    precision that NumPy's files do not have, such as bfloat16; `RobotFileError` if the file cannot be written.
    """
    advice = "for models use save_model, for other pytrees equinox.tree_serialise_leaves"
    require_kind(world, World, "save_world: `world`", advice=advice, error=ModelError)
    write_archive(path, WORLD_FORMAT, *content_of(world))
