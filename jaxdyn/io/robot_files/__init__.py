"""Facts that all formats of robots' files share, the parts that are left out, and files of meshes."""

from jaxdyn.io.robot_files._archives import ArchiveFormat, is_archive, read_archive, write_archive
from jaxdyn.io.robot_files._facts import (
    LARGEST,
    RobotFileWarning,
    enumerate_items,
    enumerate_names,
    quote,
    read_robot_file,
    robot_text,
    root_tag,
    unbatched_leaves,
    warn,
)
from jaxdyn.io.robot_files._left_out import LeftOut, LeftOutWarning, present, warn_of_what_is_left_out
from jaxdyn.io.robot_files._mesh_files import read_meshes
from jaxdyn.io.robot_files._named_robots import named_robot
from jaxdyn.io.robot_files._xml_edits import EditedText, Place, decoded
