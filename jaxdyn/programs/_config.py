"""Typed configurations: a frozen dataclass, filled from a TOML file, overridden on the command line."""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro

from jaxdyn._errors import DataError


def read_config[T](kind: type[T], path: Path) -> T:
    """The dataclass `kind` from a TOML file; tables are nested dataclasses.

    **Raises** `DataError` for a file that cannot be read, an unknown key, a missing one, or a value of a wrong type.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        near = ", ".join(sorted(str(x) for x in path.parent.glob("*.toml"))) if path.parent.is_dir() else ""
        raise DataError(f"{path}: no such file{f'; there are {near}' if near else ''}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(f"{path}: cannot be read as TOML: {error}") from None
    return _build(kind, values, str(path), "")


def parse_arguments[T](kind: type[T], arguments: Sequence[str], default: Path, program: str, description: str) -> T:
    """The configuration of a command line `[CONFIG] [--key value ...]`: keys override what the file says."""
    arguments = list(arguments)
    path = Path(arguments.pop(0)) if arguments and not arguments[0].startswith("-") else default
    config = read_config(kind, path)
    usage = f"{description}\n\nUsage: {program} [CONFIG] [--key value ...]; the defaults below are those of {path}."
    return tyro.cli(kind, args=arguments, default=config, prog=program, description=usage)


@dataclasses.dataclass(frozen=True)
class _Command[T]:
    config: Annotated[T, tyro.conf.arg(name="")]
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """A summary as JSON on stdout; everything else goes to stderr."""


def parse_command[T](
    kind: type[T], arguments: Sequence[str], program: str, description: str, examples: str
) -> tuple[T, bool]:
    """As `parse_arguments`, but without a file there are no defaults other than the dataclass's; and whether there is
    `--json`."""
    arguments = list(arguments)
    default, source = None, "CONFIG is a TOML file of the keys below"
    if arguments and not arguments[0].startswith("-"):
        path = Path(arguments.pop(0))
        default, source = _Command(read_config(kind, path)), f"the defaults below are those of {path}"
    text = described(f"{description}\n\n{program} [CONFIG] [--key value ...]: {source}.", examples)
    command = parse_options(_Command[kind], arguments, program, text, default)
    return command.config, command.json


def described(text: str, examples: str) -> str:
    """What `--help` begins with."""
    return f"{text}\n\nExamples:\n{examples.strip(chr(10))}\n"


def parse_options[T](kind: type[T], arguments: Sequence[str], program: str, text: str, default: T | None = None) -> T:
    """An instance of a dataclass by its options; `text` stands above what `--help` says of them, as it is."""
    if "--help" in arguments or "-h" in arguments:
        print(text)
    given: dict[str, Any] = {} if default is None else {"default": default}
    return tyro.cli(kind, args=list(arguments), prog=program, description="", **given)


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
    if dataclasses.is_dataclass(kind):
        if isinstance(value, dict):
            return _build(kind, value, path, key + ".")
        expected = "a table"
    elif typing.get_origin(kind) is typing.Literal:
        if value in typing.get_args(kind):
            return value
        expected = "one of " + ", ".join(repr(x) for x in typing.get_args(kind))
    elif typing.get_origin(kind) is tuple:
        kinds = typing.get_args(kind)
        if isinstance(value, list) and kinds[1:] == (...,):
            kinds = kinds[:1] * len(value)
        if isinstance(value, list) and len(value) == len(kinds):
            return tuple(_value(k, x, path, f"{key}[{i}]") for i, (k, x) in enumerate(zip(kinds, value, strict=True)))
        expected = "a list" if kinds[1:] == (...,) else f"a list of {len(kinds)}"
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif kind in (int, str, bool) and type(value) is kind:
        return value
    else:
        expected = f"a value of type {getattr(kind, '__name__', kind)}"
    raise DataError(f"{path}: {key} is {value!r}, but {expected} is needed")
