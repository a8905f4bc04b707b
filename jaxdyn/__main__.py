"""Runs the command line: `python -m jaxdyn` does what the program `jaxdyn` does."""

import sys

from jaxdyn.cli import main

if __name__ == "__main__":
    sys.exit(main())
