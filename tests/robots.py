"""Paths of the robots' files that the tests read, in the package `example-robot-data`."""

import importlib.metadata
from pathlib import Path

_FILES = {
    "panda": "panda_description/urdf/panda.urdf",
    "ur5": "ur_description/urdf/ur5_robot.urdf",
    "kinova": "kinova_description/robots/kinova.urdf",
    "solo12": "solo_description/robots/solo12.urdf",
    "anymal": "anymal_b_simple_description/robots/anymal.urdf",
    "talos_reduced": "talos_data/robots/talos_reduced.urdf",
    "double_pendulum": "double_pendulum_description/urdf/double_pendulum.urdf",
}
NAMES = tuple(_FILES)


def robot_path(name: str) -> Path:
    """The URDF file of one of `NAMES`."""
    return _folder() / _FILES[name]


def cassie_path() -> Path:
    """The file of Cassie in SDF, with its closed loops."""
    return _folder() / "cassie_description/robots/cassie_v2.sdf"


def all_urdf_files() -> dict[str, Path]:
    """Every URDF file of the package, by its path below the folder of robots, sorted."""
    folder = _folder()
    return {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.urdf"))}


def _folder() -> Path:
    distribution = importlib.metadata.distribution("example-robot-data")
    return Path(str(distribution.locate_file("cmeel.prefix/share/example-robot-data/robots")))
