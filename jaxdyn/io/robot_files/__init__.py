"""Reading of robots' files in any format: text or path, and the wording of messages and warnings."""

from jaxdyn.io.robot_files._sources import (
    RobotFileWarning,
    enumerate_items,
    enumerate_names,
    quote,
    read_robot_file,
    robot_text,
    root_tag,
    warn,
)
