"""The command line, `jaxdyn`."""

from jaxdyn.cli._main import main

__all__ = ["main"]
