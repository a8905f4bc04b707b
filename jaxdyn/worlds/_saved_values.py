"""The values of a world in files of their own format, which hold all that it has; MuJoCo is not needed to read them."""

from __future__ import annotations

import dataclasses
import functools
import os
import typing
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError
from jaxdyn.geometry import Grid, Hull, Hulls
from jaxdyn.io.robot_files import ArchiveFormat, enumerate_names, read_archive

WORLD_FORMAT = ArchiveFormat(
    "world", 1, "save_world", "load_world reads files of save_world and MJCF files, load_model those of save_model"
)
_OTHER_VERSION = "it is from another version of jaxdyn; load the robot's file with load_world, and save it again"
_HASHABLE = (Grid, Hull, Hulls)
"""Classes of the structures of shapes, which the fields of worlds call hashable and no more."""


def content_of(world: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what JSON can hold of a world, and its arrays by names. **Raises** `ModelError` for what files do not
    have."""
    arrays: dict[str, np.ndarray] = {}
    return {"world": _written(world, "world", arrays, _classes(type(world)))}, arrays


def read_world(path: str | os.PathLike, kind: type) -> Any:
    """Return the world, of the class `kind`, in a file of `save_world`. **Raises** `RobotFileError`."""

    def build(content: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
        world = _read(content["world"], arrays, _classes(kind))
        if not isinstance(world, kind):
            raise ValueError(f"it holds a {type(world).__name__} in the place of a world")
        return world

    return read_archive(path, WORLD_FORMAT, build)


def _name_of(kind: type) -> str:
    """Return the name of a class in files: its package in the library, and its own."""
    return f"{kind.__module__.split('.')[1]}.{kind.__name__}" if kind.__module__.startswith("jaxdyn.") else ""


@functools.cache
def _classes(kind: type) -> dict[str, type]:
    """Return the classes that a file may name: those of the library that the fields of a world name, one in the other,
    with the classes that are derived from them."""
    found: dict[str, type] = {}
    left: list[Any] = [kind, *_HASHABLE]
    while left:
        one: Any = left.pop()
        left += [one.__value__] if isinstance(one, typing.TypeAliasType) else typing.get_args(one)
        if isinstance(one, type) and (name := _name_of(one)) and name not in found:
            found[name] = one
            left += [*one.__subclasses__(), *typing.get_type_hints(one).values()]
    return found


def _names_of_fields(kind: type) -> tuple[str, ...]:
    named: Any = kind
    return named._fields if issubclass(kind, tuple) else tuple(f.name for f in dataclasses.fields(named))


def _written(x: Any, name: str, arrays: dict[str, np.ndarray], classes: dict[str, type]) -> Any:
    """Return what JSON can hold of a value, and put its arrays into `arrays` by their names."""
    if x is None:
        return None
    # Truth values are integers in Python, and members of enumerations can be.
    for plain in (bool, int, float, str):
        if isinstance(x, plain):
            return plain(x)
    if isinstance(x, bytes):
        return {"bytes": x.hex()}
    if isinstance(x, type) and classes.get(_name_of(x)) is x:
        return {"type": _name_of(x)}
    if isinstance(x, Tracer):
        raise ModelError(f"{name} has no values within jit or another transformation: save the world outside")
    if isinstance(x, jax.Array | np.ndarray):
        arrays[name] = np.asarray(x)
        if arrays[name].dtype.kind not in "fiub":
            advice = "world.astype(jnp.float32) can"
            raise ModelError(f"{name} has {arrays[name].dtype}, which a file cannot hold: {advice}")
        return {"array": name, "device": isinstance(x, jax.Array)}
    if type(x) is tuple:
        return [_written(part, f"{name}.{k}", arrays, classes) for k, part in enumerate(x)]
    if classes.get(_name_of(type(x))) is not type(x):
        raise ModelError(f"{name} is of the class {type(x).__qualname__}, which files of worlds do not have")
    fields = {key: _written(getattr(x, key), f"{name}.{key}", arrays, classes) for key in _names_of_fields(type(x))}
    return {"class": _name_of(type(x)), "fields": fields}


def _read(x: Any, arrays: dict[str, np.ndarray], classes: dict[str, type]) -> Any:
    """Return the value that `_written` has written. **Raises** `ValueError` and others for anything else."""
    if isinstance(x, list):
        return tuple(_read(part, arrays, classes) for part in x)
    if not isinstance(x, dict):
        return x
    if "bytes" in x:
        return bytes.fromhex(x["bytes"])
    if "array" in x:
        return jax.device_put(arrays[x["array"]]) if x["device"] else arrays[x["array"]]
    name = x["type"] if "type" in x else x["class"]
    kind = classes.get(name)
    if kind is None:
        raise ValueError(f"there is no class {name!r} of worlds: {_OTHER_VERSION}")
    if "type" in x:
        return kind
    fields = x["fields"]
    if differing := fields.keys() ^ set(_names_of_fields(kind)):
        raise ValueError(f"{x['class']} differs in {enumerate_names(sorted(differing))}: {_OTHER_VERSION}")
    values = {key: _read(value, arrays, classes) for key, value in fields.items()}
    if issubclass(kind, tuple):
        return kind(**values)
    # Not by its constructor, which may take something else and compute the fields.
    made = object.__new__(kind)
    for key, value in values.items():
        object.__setattr__(made, key, value)
    return made
