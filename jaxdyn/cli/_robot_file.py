"""The options of all commands that read a robot's file."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import tyro

from jaxdyn._errors import DataError, RobotFileError
from jaxdyn.io import is_mjcf, load_mjcf, load_urdf
from jaxdyn.model import Model

File = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FILE")]
Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


@dataclasses.dataclass(frozen=True)
class FileOptions:
    """Options for reading a robot's file."""

    free_base: Flag = False
    """URDF: the root link moves freely. (An MJCF file says itself whether it does.)"""
    lenient: Flag = False
    """Warn instead of refusing the file: of content that the format forbids but that has one obvious meaning (URDF),
    and of active parts that a model cannot have, which are left out (MJCF)."""
    package_dirs: tuple[str, ...] = ()
    """URDF: folders with the packages of names like package://name/path."""

    def kind(self, path: str) -> str:
        """Return `MJCF` or `URDF`; the loader of URDF refuses files that cannot be read."""
        return "MJCF" if is_mjcf(path) else "URDF"

    def load(self, path: str) -> Model:
        """Load the file, with hints for the command line in errors."""
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
    """Raise `DataError` if options for URDF are given with an MJCF file."""
    if (free_base or package_dirs) and is_mjcf(path):
        option = "--free-base" if free_base else "--package-dirs"
        raise DataError(f"{path}: {option} is for URDF files, and this is an MJCF file; leave it out")
