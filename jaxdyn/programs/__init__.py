"""The parts of programs: configurations, files, exit codes, comparisons with other libraries, and the jobs that the
commands share with the experiments.

A name is loaded with its module when it is first used, so that a program loads only what it needs.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxdyn.programs._application import *
    from jaxdyn.programs._comparison import *
    from jaxdyn.programs._config import *
    from jaxdyn.programs._files import *
    from jaxdyn.programs._identification import *
    from jaxdyn.programs._identification_data import *
    from jaxdyn.programs._motions import *
    from jaxdyn.programs._pictures import *
    from jaxdyn.programs._progress import *
    from jaxdyn.programs._simulated_recording import *
    from jaxdyn.programs._timing import *
    from jaxdyn.programs._world_check import *

# Where names are looked for, in this order: the modules that load little come first. The last one computes when it is
# imported, and nothing may be computed before processes are connected (`jax.distributed.initialize`).
_SOURCES = (
    *("application", "config", "files", "timing", "progress", "pictures", "comparison"),
    *("world_check", "simulated_recording", "identification_data", "identification", "motions"),
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        for source in () if name.startswith("_") else _SOURCES:
            value = getattr(importlib.import_module(f"jaxdyn.programs._{source}"), name, None)
            if value is not None:
                globals()[name] = value
                return value
        raise AttributeError(f"module 'jaxdyn.programs' has no attribute {name!r}")
