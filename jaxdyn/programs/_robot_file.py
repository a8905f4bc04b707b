"""A robot's file on the command line: what all commands that read one have in common."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxdyn._errors import DataError, RobotFileError
from jaxdyn.io import load_mjcf, load_urdf
from jaxdyn.model import Model
from jaxdyn.programs._config import described, parse_options
from jaxdyn.viz._visuals import is_mjcf

File = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclasses.dataclass(frozen=True)
class FileOptions:
    """How a robot's file is read."""

    free_base: Flag = False
    """URDF: the root link moves freely. (An MJCF file says itself whether it does.)"""
    lenient: Flag = False
    """Warn, instead of refusing the file, where it has what the format forbids but has one obvious meaning (URDF), or
    parts that act and no model has (MJCF), which are left out."""
    package_dirs: tuple[str, ...] = ()
    """URDF: folders with the packages of names like package://name/path."""

    def kind(self, path: str) -> str:
        """`MJCF` or `URDF`; what cannot be read is left to the loader of URDF to refuse."""
        return "MJCF" if is_mjcf(path) else "URDF"

    def load(self, path: str) -> Model:
        only_for_urdf(path, self.free_base, self.package_dirs)
        try:
            if self.kind(path) == "MJCF":
                return load_mjcf(path, unsupported="warn" if self.lenient else "error")
            return load_urdf(path, free_base=self.free_base, strict=not self.lenient, package_dirs=self.package_dirs)
        except RobotFileError as error:
            for argument in ("strict=False", "unsupported='warn'"):
                if argument in str(error):
                    error.add_note(f"({argument} is --lenient on the command line)")
            raise


def only_for_urdf(path: str, free_base: bool, package_dirs: Sequence[str]) -> None:
    """**Raises** `DataError` for an MJCF file with options that mean nothing there."""
    if (free_base or package_dirs) and is_mjcf(path):
        option = "--free-base" if free_base else "--package-dirs"
        raise DataError(f"{path}: {option} is for URDF files, and this is an MJCF file; leave it out")


def parse[T](kind: type[T], arguments, command: str, description: str, examples: str) -> T:
    """The options of a command."""
    return parse_options(kind, arguments, f"jaxdyn {command}", described(description, examples))
