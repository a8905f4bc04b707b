"""The command line, `jaxdyn`, and its parts that the experiments share: configurations, files, exit codes, comparisons
with other libraries, and identification.

A name is loaded with its module when it is first used, so that a program loads only what it needs.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxdyn.cli._main import main

if TYPE_CHECKING:
    from jaxdyn.cli._application import *
    from jaxdyn.cli._comparison import *
    from jaxdyn.cli._config import *
    from jaxdyn.cli._identification import *
    from jaxdyn.cli._identification_data import *
    from jaxdyn.cli._progress import *
    from jaxdyn.cli._result_files import *
    from jaxdyn.cli._simulated_recording import *
    from jaxdyn.cli._world_check import *

# Where names are looked for, in this order: the modules that load little come first. Nothing may be computed before
# processes are connected (`jax.distributed.initialize`), and importing the last ones takes seconds.
_SOURCES = (
    *("application", "config", "result_files", "progress", "comparison"),
    *("world_check", "simulated_recording", "identification_data", "identification"),
)

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        for source in () if name.startswith("_") else _SOURCES:
            value = getattr(importlib.import_module(f"jaxdyn.cli._{source}"), name, None)
            if value is not None:
                globals()[name] = value
                return value
        raise AttributeError(f"module 'jaxdyn.cli' has no attribute {name!r}")
