"""`jaxdyn COMMAND`: the list of commands. Their modules are imported when they are called."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import sys
from collections.abc import Sequence

from jaxdyn._errors import DataError
from jaxdyn.cli._application import MISTAKE, exit_code

COMMANDS = {
    "info": "the content of a robot's file: bodies, joints, limits, masses, and likely mistakes",
    "view": "show a robot in the browser",
    "check": "compare the dynamics with Pinocchio (URDF) or MuJoCo (MJCF)",
    "identify": "identify inertias, friction and rotor inertias from recordings of motion and torques",
    "train": "train a policy by gradients through the simulation",
    "play": "show what a trained policy does",
}
"""The commands, and what they do. The command `x` is the function `main` of the module `_x_command`."""
HELP = f"""usage: jaxdyn COMMAND [...]

Rigid-body dynamics, system identification and learning for a robot's URDF or MJCF file.

commands:
{"\n".join(f"  {name:<10} {text}" for name, text in COMMANDS.items())}

examples:
  jaxdyn info robot.urdf
  jaxdyn check robot.urdf --free-base
  jaxdyn identify --name try --robot arm --recording simulated --fit-start 0 --fit-stop 14 --test-stop 20
  jaxdyn train half_cheetah

`jaxdyn COMMAND --help` explains each command, `jaxdyn --version` prints the version.
Exit codes: 0 success, 1 a check found a difference, 2 a mistake in the arguments or files, 130 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program `jaxdyn` and return its exit code.

    `arguments` are those of the command line without the program's name; None takes them from `sys.argv`. Raises
    `SystemExit` after the `--help` of a command (0) and for an unknown or missing option (2).
    """
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments:
        print(HELP, file=sys.stderr)
        return MISTAKE
    return exit_code(lambda: _run(*arguments), (ImportError,))


def _run(command: str, *arguments: str) -> int | None:
    if command in ("-h", "--help", "help"):
        print(HELP)
        return None
    if command == "--version":
        print(f"jaxdyn {importlib.metadata.version('jaxdyn')}")
        return None
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(COMMANDS)}"
        raise DataError(f"no command {command!r}: {hint}")
    return importlib.import_module(f"jaxdyn.cli._{command}_command").main(list(arguments))
