"""Typed configurations: a frozen dataclass, filled from a TOML file, overridden on the command line."""

from __future__ import annotations

import dataclasses
import difflib
import math
import sys
import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxdyn._errors import DataError


@dataclasses.dataclass(frozen=True)
class ProgramConfig:
    """Keys of the configuration files of all programs that write results."""

    name: str
    """The folder below `results` that is written."""
    results: str = dataclasses.field(default="results", kw_only=True)
    """Directory of the results."""

    def make_folder(self) -> Path:
        """Make and return the folder `<results>/<name>`."""
        folder = Path(self.results) / self.name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def read_config[T](kind: type[T], path: Path) -> T:
    """Read the dataclass `kind` from a TOML file; tables are nested dataclasses. **Raises** `DataError` for a file that
    cannot be read, an unknown key, a missing one, a value of a wrong type, or a number that is not finite."""
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = ", ".join(sorted(str(x) for x in path.parent.glob("*.toml"))) if path.parent.is_dir() else ""
        raise DataError(f"{path}: no such file{f'; there are {near}' if near else ''}") from None
    except (OSError, ValueError, RecursionError) as error:
        # Besides its own error, a `ValueError`, the parser lets those of dates, long integers and deep nesting through.
        raise DataError(f"{path}: cannot be read as TOML: {error}") from None
    return _build(kind, values, str(path), "")


def split_file(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """Return the file at the beginning of a command line, if there is one, and the other arguments."""
    arguments = list(arguments)
    path = Path(arguments.pop(0)) if arguments and not arguments[0].startswith("-") else None
    return path, arguments


@dataclasses.dataclass(frozen=True)
class _Command[T]:
    config: Annotated[T, tyro.conf.arg(name="")]
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print a summary as JSON on stdout; everything else goes to stderr."""


def parse_command[T](
    kind: type[T], arguments: Sequence[str], program: str, description: str, examples: str
) -> tuple[T, bool]:
    """Return the configuration of a command line `[CONFIG] [--key value ...] [--json]`, and whether it has `--json`.
    Without a file, the defaults come from the dataclass, and keys without a default must be given."""
    path, arguments = split_file(arguments)
    default, source = None, "CONFIG is a TOML file of the keys below"
    if path is not None:
        default, source = _Command(read_config(kind, path)), f"the defaults below are those of {path}"
    description = f"{description}\n\n{program} [CONFIG] [--key value ...]: {source}."
    command = parse_options(_Command[kind], arguments, program, description, examples, default)
    return command.config, command.json


def parse_options[T](
    kind: type[T], arguments: Sequence[str], program: str, description: str, examples: str, default: T | None = None
) -> T:
    """Return an instance of a dataclass from its options; `--help` prints the description and the examples first."""
    if "--help" in arguments or "-h" in arguments:
        print(f"{description}\n\nExamples:\n{examples.strip(chr(10))}\n")
    defaults: dict[str, Any] = {} if default is None else {"default": default}
    options = tyro.cli(kind, args=list(arguments), prog=program, description="", **defaults)
    require_finite_options(options)
    return options


def require_finite_options(options: Any, path: tuple[str, ...] = ()) -> None:
    """Raise `DataError` for an option of a command line, in a dataclass or one in it, that is not finite."""
    if isinstance(options, float) and not math.isfinite(options):
        raise DataError(f"--{'.'.join(path)} is {options}, but a finite number is needed")
    if dataclasses.is_dataclass(options):
        # The configuration of a command has no name of its own.
        for field in dataclasses.fields(options):
            own = () if field.name == "config" and not path else (field.name.replace("_", "-"),)
            require_finite_options(getattr(options, field.name), (*path, *own))
    elif isinstance(options, list | tuple):
        for value in options:
            require_finite_options(value, path)
    elif isinstance(options, dict):
        for name, value in options.items():
            require_finite_options(value, (*path, str(name)))


def _build(kind: Any, values: dict[str, Any], path: str, prefix: str) -> Any:
    types = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(fields)}"
            raise DataError(f"{path}: unknown key {prefix + key!r}; {hint}")
    out = {}
    for name, field in fields.items():
        if name in values:
            out[name] = _value(types[name], values[name], path, prefix + name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DataError(f"{path}: the key {prefix + name!r} is missing")
    return kind(**out)


def _value(kind: Any, value: Any, path: str, key: str) -> Any:
    """Return a value of a file as the type that its key has. **Raises** `DataError` for one of another type."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if kind is float and _is_number(value) and abs(value) <= sys.float_info.max:
        return float(value)
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        return _build(kind, value, path, key + ".")
    if origin is dict and isinstance(value, dict):
        return {name: _value(inner[1], x, path, f"{key}.{name}") for name, x in value.items()}
    if origin is tuple and isinstance(value, list):
        kinds = inner[:1] * len(value) if inner[1:] == (...,) else inner
        if len(value) == len(kinds):
            return tuple(_value(k, x, path, f"{key}[{i}]") for i, (k, x) in enumerate(zip(kinds, value, strict=True)))
    if (origin is typing.Literal and value in inner) or (kind in (int, str, bool) and type(value) is kind):
        return value
    raise DataError(f"{path}: {key} is {value!r}, but {_expected(kind, value)} is needed")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _expected(kind: Any, value: Any) -> str:
    """Say what is needed in the place of a value."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind) or origin is dict:
        return "a table"
    if origin is typing.Literal:
        return "one of " + ", ".join(repr(x) for x in inner)
    if origin is tuple:
        return "a list" if inner[1:] == (...,) else f"a list of {len(inner)}"
    if kind is float and _is_number(value):
        return "a finite number"
    return f"a value of type {getattr(kind, '__name__', kind)}"
