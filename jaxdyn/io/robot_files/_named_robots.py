"""Robots by the names that packages of robots' files give them: robot_descriptions and MuJoCo Menagerie.

Sources: https://github.com/robot-descriptions/robot_descriptions.py (a module for each robot, with the paths of its
files, which it fetches when it is first imported), and https://github.com/google-deepmind/mujoco_menagerie (a folder
for each robot).
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pkgutil
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxdyn._errors import RobotFileError, UnknownNameError, look_up

_NAME = re.compile(r"[A-Za-z]\w*", re.ASCII)
"""Names have neither separators of paths nor endings of files."""
_SUFFIXES = {"MJCF": "_mj_description", "URDF": "_description"}
"""The ends of the names of robot_descriptions' modules. `_description` is an end of all."""


def named_robot(path_or_text: Any, formats: Sequence[str]) -> Any:
    """Return the path of the file of a robot that is given by its name, and anything else as it is.

    Names are those of modules of robot_descriptions, with or without `_description` or `_mj_description`, and of
    folders of MuJoCo Menagerie, whose scene is taken. A file or folder with the name wins. `formats`: `"MJCF"`,
    `"URDF"` or both, the preferred one first.

    **Raises** `RobotFileError` for a name that no installed package has, with the nearest ones, and where a package
    cannot fetch the files.
    """
    if not isinstance(path_or_text, str) or not _NAME.fullmatch(path_or_text) or os.path.exists(path_or_text):
        return path_or_text
    modules = _described_robots()
    for module in (path_or_text, *(path_or_text + _SUFFIXES[x] for x in formats)):
        if module in modules:
            return _described(module, formats)
    folders = _folders_of_menagerie() if "MJCF" in formats else {}
    if path_or_text in folders:
        return _scene(path_or_text, folders[path_or_text])
    raise RobotFileError(_unknown(path_or_text, formats, modules, list(folders)))


def _unknown(name: str, formats: Sequence[str], modules: list[str], folders: list[str]) -> str:
    problem = f"cannot read the robot's file {name!r}: there is no such file"
    ends = [_SUFFIXES[x] for x in formats]
    short = [next((x.removesuffix(end) for end in ends if x.endswith(end)), x) for x in modules]
    known = sorted({*short, *folders})
    if not known:
        return (
            f"{problem}; give the path of a file, or its text, which must begin with '<'; to load robots by name "
            '("go1"), pip install robot_descriptions'
        )
    try:
        look_up(name, known, "robot")
    except UnknownNameError as error:
        problem = f"{problem}, and {error}"
    return problem


def _described_robots() -> list[str]:
    """Return the names of the modules of robot_descriptions; none where it is not installed."""
    spec = importlib.util.find_spec("robot_descriptions")
    folders = [] if spec is None else spec.submodule_search_locations or []
    names = [module.name for module in pkgutil.iter_modules(folders)]
    return [name for name in names if name.endswith("_description") and not name.startswith("_")]


def _described(module: str, formats: Sequence[str]) -> str:
    """Return the path of the file of a module of robot_descriptions."""
    found = _fetched(module, "robot_descriptions", lambda: importlib.import_module(f"robot_descriptions.{module}"))
    for name in formats:
        if path := getattr(found, f"{name}_PATH", None):
            return path
    others = [name for name in (*_SUFFIXES, "XACRO") if hasattr(found, f"{name}_PATH")]
    kinds = " or ".join(formats)
    raise RobotFileError(
        f"robot_descriptions.{module} has no {kinds} file, but {' and '.join(others) or 'none at all'}"
    )


def _fetched(name: str, package: str, fetch: Any) -> Any:
    try:
        return fetch()
    except Exception as error:
        # The package may fail in any way in which Git, the network or the disk does.
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise RobotFileError(
            f"{package} cannot fetch the files of {name!r}: {reason}; load a file by its path"
        ) from error


def _folders_of_menagerie() -> dict[str, Path | ModuleType]:
    """Return the names of robots of MuJoCo Menagerie, each with the package or the copy of the repository that has it:
    in the working directory, or where robot_descriptions keeps it."""
    found: dict[str, Path | ModuleType] = {}
    cache = os.environ.get("ROBOT_DESCRIPTIONS_CACHE", "~/.cache/robot_descriptions")
    for parent in (Path(cache).expanduser(), Path()):
        for file in sorted((parent / "mujoco_menagerie").glob("*/*.xml")):
            found[file.parent.name] = file.parent
    # A copy of the repository in the working directory is a package without a file for Python.
    spec = importlib.util.find_spec("mujoco_menagerie")
    if spec is not None and spec.origin is not None:
        package = importlib.import_module("mujoco_menagerie")
        found |= dict.fromkeys(package.names(), package)
    return found


def _scene(name: str, place: Path | ModuleType) -> str:
    """Return the path of the scene of a robot of MuJoCo Menagerie, or of its only file."""
    if isinstance(place, ModuleType):
        return str(_fetched(name, "mujoco_menagerie", lambda: place.get(name).xml()))
    files = sorted(place.glob("*.xml"))
    scenes = [file for file in files if file.name == "scene.xml"] or files
    if len(scenes) > 1:
        raise RobotFileError(f"{place} has no scene.xml, but several files: give one of {', '.join(map(str, files))}")
    return str(scenes[0])
