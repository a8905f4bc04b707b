"""The command line, `jaxdyn`, and what it shares with the experiments: configurations, files, exit codes."""

from jaxdyn.cli._main import main

__all__ = ["main"]
