"""`jaxdyn COMMAND`: which commands there are. Their modules, and all they need, are imported when they are called."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence

from jaxdyn._errors import DataError
from jaxdyn.programs._application import MISTAKE, exit_code

COMMANDS = {
    "info": "what a robot's file says: bodies, joints, limits, masses, and what is likely to be wrong",
    "view": "a robot in the browser",
    "check": "whether the dynamics are those of Pinocchio (URDF) or MuJoCo (MJCF)",
    "identify": "inertias, friction and rotor inertias from recordings of motion and torques",
    "optimize": "motions: swing-ups, an arm that reaches past an obstacle, a quadrotor",
    "benchmark": "how fast a robot's dynamics are on this machine, and what they cost to compile",
}
HELP = f"""usage: jaxdyn COMMAND [...]

Rigid-body dynamics, system identification and trajectory optimization for a robot's URDF or MJCF file.

commands:
{"\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())}

examples:
  jaxdyn info robot.urdf
  jaxdyn check robot.urdf --free-base
  jaxdyn identify --name try --robot arm --recording simulated --fit-start 0 --fit-stop 14 --test-stop 20
  jaxdyn optimize --name swing-up --task pendulum

`jaxdyn COMMAND --help` says more of each, `jaxdyn --version` which version this is.
Exit codes: 0 all is well, 1 a check that differs, 2 a mistake in what was given, 130 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The program `jaxdyn`. **Arguments**: `arguments`, those of the command line without the program's name, or
    `sys.argv`'s. Returns the exit code; like all programs it ends by `SystemExit` after a command's `--help` (0), and
    for options that are none (2)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments:
        print(HELP, file=sys.stderr)
        return MISTAKE
    command, *rest = arguments
    return exit_code(lambda: _run(command, rest), (ImportError,))


def _run(command: str, rest: list[str]) -> int | None:
    if command in ("-h", "--help", "help"):
        print(HELP)
        return None
    if command == "--version":
        print(f"jaxdyn {importlib.metadata.version('jaxdyn')}")
        return None
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        raise DataError(f"no command {command!r}: {hint}")
    return importlib.import_module(f"jaxdyn.cli._{command}").main(rest)
