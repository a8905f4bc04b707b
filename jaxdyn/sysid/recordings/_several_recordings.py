"""One or several recordings, as functions accept them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jaxdyn._errors import DataError
from jaxdyn.sysid.recordings._recording import Recording

type Recordings = Recording | Sequence[Recording]


def as_recordings(recordings: Recording | Iterable[Recording]) -> tuple[Recording, ...]:
    """Return one or several recordings as a tuple. **Raises** `DataError` for none, and for other objects."""
    if not isinstance(recordings, Iterable | Recording):
        raise DataError(f"recordings is {type(recordings).__name__}; a Recording, or a list of them, is needed")
    out = (recordings,) if isinstance(recordings, Recording) else tuple(recordings)
    if not out:
        raise DataError("no recordings are given")
    for k, x in enumerate(out):
        if not isinstance(x, Recording):
            raise DataError(f"recordings[{k}] is {type(x).__name__}; a Recording is needed")
    return out
