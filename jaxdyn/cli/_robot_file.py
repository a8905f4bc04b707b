"""The options of all commands that read a robot's file."""

from __future__ import annotations

import dataclasses
import functools
from typing import Annotated

import tyro

from jaxdyn._errors import DataError, RobotFileError
from jaxdyn.io import is_mjcf, load_mjcf, load_urdf
from jaxdyn.io.robot_files import is_archive, named_robot
from jaxdyn.model import Model
from jaxdyn.worlds import World, load_world

File = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RobotFile:
    """A robot's file, and the options that are for URDF."""

    file: File
    """A URDF or MJCF file, a world that save_world has written, or the name of a robot in robot_descriptions or
    MuJoCo Menagerie, such as go1."""
    free_base: Flag = False
    """URDF: the root link moves freely. (An MJCF file says itself whether it does.)"""
    package_dirs: tuple[str, ...] = ()
    """URDF: folders with the packages of names like package://name/path; `view` also looks in those that hold the
    file."""

    @functools.cached_property
    def path(self) -> str:
        """The path of the file, also of a robot that is given by its name. It is looked up where it is first used:
        a command names wrong options first."""
        return named_robot(self.file, ("MJCF", "URDF"))

    @property
    def kind(self) -> str:
        """`MJCF`, `URDF` or `saved world`; the loader of URDF refuses files that cannot be read."""
        if is_archive(self.path):
            return "saved world"
        return "MJCF" if is_mjcf(self.path) else "URDF"

    def require_matching_options(self) -> None:
        """Raise `DataError` if options for URDF are given with another file."""
        if (self.free_base or self.package_dirs) and self.kind != "URDF":
            option = "--free-base" if self.free_base else "--package-dirs"
            kind = "an MJCF file" if self.kind == "MJCF" else "a saved world"
            raise DataError(f"{self.path}: {option} is for URDF files, and this is {kind}; leave it out")

    def load_world(self) -> World | RobotFileError | None:
        """Return the world of the file, or why the file makes none; None for a URDF file."""
        if self.kind == "URDF":
            return None
        try:
            return load_world(self.path)
        except RobotFileError as error:
            if self.kind != "MJCF":
                raise
            return error


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions(RobotFile):
    """The options of the commands that load a model and can print JSON."""

    lenient: Flag = False
    """Warn instead of refusing the file: of content that the format forbids but that has one obvious meaning (URDF),
    and of active parts that a model cannot have, which are left out (MJCF)."""
    json: Flag = False
    """Print JSON on stdout, with every number."""

    def load(self, kinematics_only: bool = False) -> Model:
        """Load the file, with hints for the command line in errors. `kinematics_only`: as in `load_urdf`."""
        self.require_matching_options()
        try:
            if self.kind == "saved world":
                return load_world(self.path).model
            if self.kind == "MJCF":
                return load_mjcf(
                    self.path, unsupported="warn" if self.lenient else "error", kinematics_only=kinematics_only
                )
            urdf = {"free_base": self.free_base, "package_dirs": self.package_dirs, "kinematics_only": kinematics_only}
            return load_urdf(self.path, strict=not self.lenient, **urdf)
        except RobotFileError as error:
            for argument in ("strict=False", "unsupported='warn'"):
                if argument in str(error):
                    error.add_note(f"({argument} is --lenient on the command line)")
            raise
