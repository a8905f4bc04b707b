"""Parts of the experiments that continue after an interruption, and that many processes can share."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax._src import distributed

from experiments import _job_files
from jaxdyn import DataError, cli
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
    """The processes that share a job, on one or many hosts. By default one, or those of `jax.distributed` where it is
    initialized."""

    count: int = 0
    """Number of processes; 0 where it is not given."""
    id: int = -1
    """Number of this process, from 0; -1 where it is not given."""
    coordinator: str = ""
    """Address of process 0, `host:port`, to connect the processes by `jax.distributed`; `auto` where JAX can ask the
    scheduler, such as SLURM, also for `count` and `id`. Empty leaves them unconnected, which suffices."""

    def begin(self) -> tuple[int, int]:
        """Connect the processes if they are to be. Returns the number of this process and that of all. To be called
        before any computation. **Raises** `DataError`."""
        given = (self.count, self.id) != (0, -1)
        if given and self.coordinator == "auto":
            raise DataError("processes.coordinator is 'auto': leave processes.count and processes.id out")
        if not given and self.coordinator not in ("", "auto"):
            raise DataError("processes.coordinator needs processes.count and processes.id, or is 'auto'")
        if given and not 0 <= self.id < self.count:
            raise DataError(f"processes.id is {self.id} and processes.count {self.count}; 0 <= id < count is needed")
        if given and not self.coordinator:
            return self.id, self.count
        if self.coordinator and not jax.distributed.is_initialized():
            self._connect(given)
        return jax.process_index(), jax.process_count()

    def _connect(self, given: bool) -> None:
        # The pieces of a job do not depend on each other: the end of one process is no reason to end the others.
        jax.config.update("jax_enable_recoverability", True)
        try:
            if given:
                jax.distributed.initialize(self.coordinator, self.count, self.id)
            else:
                jax.distributed.initialize()
        except (RuntimeError, ValueError) as error:
            raise DataError(
                f"processes.coordinator is {self.coordinator!r}, but the processes cannot be connected ({error}); give "
                "host:port, count and id, 'auto' under a scheduler that JAX knows, or count and id alone"
            ) from None
        atexit.register(_disconnect)


def _disconnect() -> None:
    """End the connection of the processes, that of process 0 last: without it the others would be aborted."""
    client: Any = distributed.global_state.client
    if client is None:
        return
    # A process that died and was not started again does not come.
    with contextlib.suppress(RuntimeError):
        client.wait_at_barrier("job ends", timeout_in_ms=30_000)
    if jax.process_index() == 0:
        time.sleep(1.0)
    with contextlib.suppress(RuntimeError):
        jax.distributed.shutdown()


class Pieces:
    """The files of a job, each made once, by any number of processes that share the folder.

    `manifest.json` says how the job was begun and lists the files with their SHA-256. Every process takes its share,
    each `processes`-th piece, and then what nobody has begun. It holds a lock on the piece that it makes, so processes
    that know nothing of each other can share a folder as well, and a process that is killed loses only that piece.
    """

    def __init__(self, folder: Path, unit: str, names: list[str], content: dict[str, Any], why: str):
        """`unit`: what the pieces are, in the plural, which is their key in the manifest; `content`: what all processes
        and all earlier runs must agree on, for otherwise `why`. **Raises** `DataError` if the folder was begun
        otherwise."""
        self.folder, self.unit, self.names = folder, unit, names
        self._manifest, self._content, self._why = folder / "manifest.json", content, why
        self._listed = self._update({}, {})
        self._damaged: set[int] = set()

    def missing(self) -> list[int]:
        """The numbers of the pieces that are not there."""
        return [i for i, name in enumerate(self.names) if name not in self._listed or i in self._damaged]

    def check(self, share: tuple[int, int] = (0, 1), notes: Mapping[str, Any] | None = None) -> list[int]:
        """Compare the files of this process's share, its number and that of all processes, with the manifest, add
        entries to it, and return the numbers of all missing pieces in the order in which this process makes them."""
        own = range(share[0], len(self.names), share[1])
        self._listed = self._update({}, notes or {})
        self._damaged = {i for i in own if self._is_damaged(i)}
        # Whoever is done takes what is left from the end, where its owner comes last.
        order = [*own, *(i for i in reversed(range(len(self.names))) if i not in own)]
        missing = set(self.missing())
        return [i for i in order if i in missing]

    def make(
        self, missing: list[int], make: Callable[[int], dict[str, Any]], facts: Callable[[dict[str, Any]], str]
    ) -> None:
        """Make the missing pieces, archives of `make(i)`, and return when all are there. `facts` shows a piece."""
        made = 0
        with cli.ProgressBar(total=len(missing), unit=f" {self.unit}", mininterval=0.1) as bar:
            # First what nobody has begun. Then what others had begun, if they ended before it was there.
            for wait in (0.0, -1.0):
                left = []
                for i in missing:
                    path = self.folder / self.names[i]
                    with _job_files.holding(path, wait=wait, forget=True) as held:
                        if not held:
                            left.append(i)
                            continue
                        if i in self._damaged or path.name not in self._read():
                            arrays = make(i)
                            # Something else under this name, as of a job whose manifest was lost, is kept.
                            _job_files.write_npz(path, arrays, keep_other=True)
                            # The manifest is written after the piece: a piece that is not listed is made again.
                            self._listed = self._update({path.name: _job_files.digest_of_file(path)}, {})
                            self._damaged.discard(i)
                            made += 1
                            bar.set_postfix_str(facts(arrays))
                    bar.update()
                missing = left
                if missing and wait == 0.0:
                    print(f"waiting for {len(missing)} {self.unit} of other processes", flush=True)
        self._listed = self._read()
        print(f"{made} of {len(self.names)} {self.unit} made here")

    def _is_damaged(self, i: int) -> bool:
        name = self.names[i]
        if name not in self._listed:
            return False
        path = self.folder / name
        if path.is_file() and _job_files.digest_of_file(path) == self._listed[name]:
            return False
        what = "is damaged" if os.path.lexists(path) else "is missing"
        warn(f"{path} {what} and is made again", UserWarning)
        return True

    def _read(self) -> dict[str, str]:
        return cli.read_json(self._manifest, self._digests) if self._manifest.exists() else {}

    def _update(self, new: dict[str, str], notes: Mapping[str, Any]) -> dict[str, str]:
        """Add pieces and further entries to the manifest, and return all pieces that it lists."""
        with _job_files.holding(self._manifest, wait=60.0) as held:
            if not held:
                raise DataError(f"{self._manifest}: another process has held it for a minute; end that process")
            begun = _job_files.begin(self._manifest, self._content, self._why)
            listed = dict(sorted((self._digests(begun) | new).items()))
            if new or any(begun.get(key) != value for key, value in notes.items()):
                cli.write_json(self._manifest, {**begun, **notes, self.unit: listed})
        return listed

    def _digests(self, manifest: Any) -> dict[str, str]:
        """Return the digests of the pieces by name. Entries that are none count as missing."""
        listed = manifest.get(self.unit, {}) if isinstance(manifest, dict) else {}
        listed = listed if isinstance(listed, dict) else {}
        return {name: x for name, x in listed.items() if isinstance(x, str)}
