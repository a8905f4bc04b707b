"""What the experiments' `main` have in common."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxdyn.programs._application import double_precision, exit_code
from jaxdyn.programs._config import parse_arguments

CONFIGS = Path(__file__).parent.parent / "configs"


def experiment[T](
    kind: type[T],
    run: Callable[[T], Any],
    arguments: Sequence[str] | None,
    default: Path,
    name: str,
    doc: str | None,
    *,
    x64: bool = True,
    mistakes: tuple[type[Exception], ...] = (),
    status: Callable[[Any], int] = lambda result: 0,
) -> int:
    """Run `python -m experiments.<name> [CONFIG] [--key value ...]`, and return the exit code.

    - `kind`: of the configuration, which `run` takes; `default`: the file of it where no other one is given.
    - `arguments`: of the command line, or `sys.argv`'s if None.
    - `doc`: the module's; its first line is what `--help` says.
    - `x64`: whether JAX is set to double precision. A program may choose; where rounding is no matter, it need not.
    - `mistakes`: errors that end with a message and code 2, besides those of the library and of files.
    - `status`: the exit code, of what `run` returns.
    """

    def work() -> int:
        given = sys.argv[1:] if arguments is None else arguments
        first = (doc or "").partition("\n")[0]
        return status(run(parse_arguments(kind, given, default, f"python -m experiments.{name}", first)))

    if x64:
        double_precision()
    return exit_code(work, mistakes)
