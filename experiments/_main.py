"""The `main` of the experiments."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tyro

from jaxdyn.cli import double_precision, exit_code, read_config, require_finite_options, split_file

CONFIGS = Path(__file__).parent.parent / "configs"


def version_of(distribution: str, missing: str = "") -> str:
    """Return the version of a distribution, or `missing` if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return missing


def parse_arguments[T](kind: type[T], arguments: Sequence[str], default: Path, program: str, description: str) -> T:
    """Return the configuration of a command line `[CONFIG] [--key value ...]`; keys override the file CONFIG, which is
    `default` where none is given."""
    path, arguments = split_file(arguments)
    path = path or default
    config = read_config(kind, path)
    usage = f"{description}\n\nUsage: {program} [CONFIG] [--key value ...]; the defaults below are those of {path}."
    options = tyro.cli(kind, args=arguments, default=config, prog=program, description=usage)
    require_finite_options(options)
    return options


def experiment[T](
    name: str,
    kind: type[T],
    run: Callable[[T], Any],
    default: Path,
    doc: str | None,
    *,
    x64: bool = True,
    mistakes: tuple[type[Exception], ...] = (),
    status: Callable[[Any], int] = lambda result: 0,
) -> Callable[..., int]:
    """Return the `main` of `python -m experiments.<name> [CONFIG] [--key value ...]`.

    It takes the arguments of the command line (`sys.argv`'s if None) and returns the exit code, which is 2, with a
    message on stderr, for a mistake in the arguments or files.

    - `kind`: class of the configuration, which `run` takes; `default`: its file where no other one is given.
    - `doc`: the module's docstring; `--help` shows its first line.
    - `x64`: whether to set JAX to double precision.
    - `mistakes`: further errors that end with a message and code 2.
    - `status`: function from the result of `run` to the exit code.
    """

    def main(arguments: Sequence[str] | None = None) -> int:
        def work() -> int:
            text = (doc or "").partition("\n")[0]
            line = sys.argv[1:] if arguments is None else arguments
            return status(run(parse_arguments(kind, line, default, f"python -m experiments.{name}", text)))

        if x64:
            double_precision()
        return exit_code(work, mistakes)

    return main
