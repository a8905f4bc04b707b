"""Parts of the experiments that continue after an interruption, and that many processes can share."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from tqdm import tqdm

from jaxdyn import DataError, programs
from jaxdyn._errors import warn


def require_seed(seed: int) -> None:
    """Raise `DataError` unless a seed is one that JAX takes."""
    if not 0 <= seed < 2**32:
        raise DataError(f"seed is {seed}, but it must be in 0 ... {2**32 - 1}")


def arrays_by_path(tree: Any) -> dict[str, np.ndarray]:
    """Return the arrays of a pytree by their places in it, as names in an archive."""
    named = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array))
    # Slashes would make folders in an archive.
    return {jax.tree_util.keystr(path).replace("/", "|"): np.asarray(x) for path, x in named}


@dataclasses.dataclass(frozen=True)
class Processes:
    """The processes that share a job, on one or many hosts (`jax.distributed`)."""

    coordinator: str = ""
    """Address of the first process, `host:port`; `auto` where JAX can ask the scheduler, such as SLURM; empty for a
    process that does not know of others."""
    count: int = 0
    """Number of processes; 0 with `auto`."""
    id: int = -1
    """Number of this process, from 0; -1 with `auto`."""

    def begin(self) -> None:
        """Connect the processes. To be called before any computation. **Raises** `DataError`."""
        automatic = (self.count, self.id) == (0, -1)
        if not self.coordinator:
            if not automatic:
                raise DataError("processes.count and processes.id need processes.coordinator, host:port of the first")
            return
        if jax.distributed.is_initialized():
            return
        # The pieces of a job do not depend on each other: the end of one process is no reason to end the others.
        jax.config.update("jax_enable_recoverability", True)
        try:
            if self.coordinator == "auto":
                if not automatic:
                    raise DataError("processes.coordinator is 'auto': leave processes.count and processes.id out")
                jax.distributed.initialize()
            else:
                if not 0 <= self.id < self.count:
                    raise DataError(
                        f"processes.id is {self.id} and processes.count is {self.count}; 0 <= id < count is needed"
                    )
                jax.distributed.initialize(self.coordinator, self.count, self.id)
        except (RuntimeError, ValueError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(
                f"processes.coordinator is {self.coordinator!r}, but the processes cannot be connected ({error}); give "
                "host:port, count and id, or 'auto' under a scheduler that JAX knows"
            ) from None
        print(f"process {jax.process_index()} of {jax.process_count()}")


class Pieces:
    """The files of a job, each made once, by any number of processes that share the folder.

    `manifest.json` says how the job was begun and lists the files with their SHA-256. Every process takes its share by
    `jax.process_index()` and `jax.process_count()`, and then what nobody has begun. It holds a lock on the piece that
    it makes, so processes that know nothing of each other can share a folder as well, and a process that is killed
    loses only that piece.
    """

    def __init__(
        self, folder: Path, unit: str, names: list[str], content: dict[str, Any], why: str, notes: Mapping[str, Any]
    ):
        """`unit`: what the pieces are, in the plural, which is their key in the manifest; `content`: what all processes
        and all earlier runs must agree on, for otherwise `why`; `notes`: further entries of the manifest. **Raises**
        `DataError` if the folder was begun otherwise."""
        self.folder, self.unit, self.names = folder, unit, names
        self._manifest = folder / "manifest.json"
        self._content, self._why, self._notes = content, why, notes
        self._listed = self._update({})
        first, step = jax.process_index(), jax.process_count()
        share = range(first, len(names), step)
        self._damaged = {i for i in share if self._is_damaged(i)}
        # Whoever is done takes what is left from the end, where its owner comes last.
        self._order = [*share, *(i for i in reversed(range(len(names))) if i not in share)]

    def missing(self) -> list[int]:
        """The numbers of the pieces that are not there."""
        return [i for i, name in enumerate(self.names) if name not in self._listed or i in self._damaged]

    def make(self, make: Callable[[int], dict[str, Any]], facts: Callable[[dict[str, Any]], str]) -> None:
        """Make all missing pieces that no other process makes: archives of `make(i)`. `facts` shows a piece."""
        missing = self.missing()
        with tqdm(total=len(missing), unit=f" {self.unit}", mininterval=0.1) as bar:
            for i in (i for i in self._order if i in missing):
                path = self.folder / self.names[i]
                with programs.holding(path, forget=True) as held:
                    if held and (i in self._damaged or path.name not in self._read()):
                        arrays = make(i)
                        # Something else under this name, such as a file of a job whose manifest was lost, is kept.
                        programs.write_npz(path, arrays, keep_other=True)
                        # The manifest is written after the piece: a piece that is not listed is made again.
                        self._listed = self._update({path.name: programs.digest_of_file(path)})
                        self._damaged.discard(i)
                        bar.set_postfix_str(facts(arrays))
                bar.update()
        self._listed = self._read()
        if left := self.missing():
            print(f"{len(left)} of {len(self.names)} {self.unit} are being made by other processes")

    def _is_damaged(self, i: int) -> bool:
        name = self.names[i]
        if name not in self._listed:
            return False
        path = self.folder / name
        if path.is_file() and programs.digest_of_file(path) == self._listed[name]:
            return False
        what = "is damaged" if os.path.lexists(path) else "is missing"
        warn(f"{path} {what} and is made again", UserWarning)
        return True

    def _read(self) -> dict[str, str]:
        return programs.read_json(self._manifest, self._digests) if self._manifest.exists() else {}

    def _update(self, new: dict[str, str]) -> dict[str, str]:
        """Add pieces to the manifest, and return all that it lists."""
        with programs.holding(self._manifest, wait=60.0) as held:
            if not held:
                raise DataError(f"{self._manifest}: another process has held it for a minute; end that process")
            begun = programs.begin(self._manifest, self._content, self._why)
            listed = dict(sorted((self._digests(begun) | new).items()))
            if new or any(begun.get(key) != value for key, value in self._notes.items()):
                programs.write_json(self._manifest, {**begun, **self._notes, self.unit: listed})
        return listed

    def _digests(self, manifest: Any) -> dict[str, str]:
        """Return the digests of the pieces by name. Entries that are none count as missing."""
        listed = manifest.get(self.unit, {}) if isinstance(manifest, dict) else {}
        listed = listed if isinstance(listed, dict) else {}
        return {name: x for name, x in listed.items() if isinstance(x, str)}
