"""`save_model` and `load_model`: models in files of their own format, which holds all that a model has.

A file is a NumPy archive without pickled objects: the arrays of the model by name, as they are, and `structure`, a text
of JSON with the version of the format, the fields of the topology, and a checksum.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._digests import digest_of_arrays
from jaxdyn._durable_files import write_durably
from jaxdyn._errors import (
    ModelError,
    RobotFileError,
    broadcast_batches,
    naming_arguments,
    require_kind,
    require_last_axes,
)
from jaxdyn.io.robot_files import enumerate_names, quote
from jaxdyn.joints import JOINT_TYPES, LOOP_ROWS, Coupling, Loop, Topology
from jaxdyn.model import LEAVES, Model

_FORMAT, _VERSION = "jaxdyn model", 1
_STRUCTURE = "structure"


@naming_arguments
def save_model(path: str | os.PathLike, model: Model) -> None:
    """Write a model to a file, from which `load_model` returns the same: names, structure, and every array with its
    precision and its batch axes. A gradient by a model is a model, too.

    The file is a NumPy archive (`.npz`) without pickled objects; `path` is used as it is. A file that exists is
    replaced at once, when the new one is complete and on the disk.

    **Raises** `ModelError` for anything but a model, within `jit` or another transformation, and for arrays in a
    precision that NumPy's files do not have, such as bfloat16; `RobotFileError` if the file cannot be written.
    """
    advice = "for other pytrees, such as policies, use equinox.tree_serialise_leaves"
    require_kind(model, Model, "save_model: `model`", advice=advice, error=ModelError)
    arrays = {}
    for name in LEAVES:
        value = getattr(model, name)
        if isinstance(value, Tracer):
            raise ModelError(f"{name} of the model has no values within jit or another transformation: save it outside")
        if value is None:
            continue
        arrays[name] = np.asarray(value)
        if arrays[name].dtype.kind != "f":
            dtype = arrays[name].dtype
            raise ModelError(
                f"{name} of the model has {dtype}, which a file cannot hold: model.astype(jnp.float32) can"
            )
    topology = {field.name: getattr(model.topology, field.name) for field in dataclasses.fields(Topology)}
    content = {"format": _FORMAT, "version": _VERSION, "topology": topology}
    structure = json.dumps(content | {"sha256": _checksum(topology, arrays)})
    contents = io.BytesIO()
    np.savez(contents, allow_pickle=False, **{_STRUCTURE: np.array(structure)}, **arrays)
    try:
        write_durably(Path(path), lambda temporary: temporary.write_bytes(contents.getvalue()))
    except OSError as error:
        raise RobotFileError(f"cannot write the model {quote(str(path), 300)}: {error.strerror}") from None


@naming_arguments
def load_model(path: str | os.PathLike) -> Model:
    """Return the model that `save_model` has written.

    Arrays have the precision of the file; double precision becomes single unless JAX's double precision is on
    (`jax_enable_x64`).

    **Raises** `RobotFileError` for a file that is missing, damaged, not of this format, or of a later version of it.
    """
    name = quote(str(path), 300)
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except FileNotFoundError as error:
        raise RobotFileError(f"cannot read the model {name}: {error.strerror}") from None
    except Exception as error:  # zipfile.BadZipFile and zlib.error, among others, have no common base.
        advice = "load_model reads files of save_model; for robots' files there are load_urdf and load_mjcf"
        # NumPy takes all that is not its format for pickled objects, and advises to read them.
        what = "it is no archive of NumPy" if "pickle" in str(error) else str(error)
        raise RobotFileError(f"the model {name} is damaged, or not a file of save_model: {what}. {advice}") from None
    if _STRUCTURE not in arrays:
        found = enumerate_names(sorted(arrays)) or "nothing"
        raise RobotFileError(f"{name} is an archive, but no model that save_model has written: it has {found}")
    try:
        return _model(json.loads(str(arrays.pop(_STRUCTURE)[()])), arrays)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise RobotFileError(f"the model {name} cannot be read: {error}") from None


def _model(structure: Any, arrays: dict[str, np.ndarray]) -> Model:
    """Return the model of a file. **Raises** `ValueError` and others where the file makes none."""
    if not isinstance(structure, dict) or structure.get("format") != _FORMAT:
        raise ValueError("save_model has not written it")
    version = structure.get("version")
    if not isinstance(version, int) or version < 1:
        raise ValueError(f"its version is {version!r}")
    fields = {field.name for field in dataclasses.fields(Topology)}
    if version > _VERSION or not fields.issuperset(structure["topology"]) or not LEAVES.keys() >= arrays.keys():
        new = enumerate_names(sorted((set(structure["topology"]) - fields) | (arrays.keys() - LEAVES.keys())))
        what = f"its format has version {version}, and this version of jaxdyn reads {_VERSION}"
        raise ValueError((f"this version of jaxdyn does not know {new}" if new else what) + ": use a newer jaxdyn")
    topology = Topology(**{key: _field(key, value) for key, value in structure["topology"].items()})
    _check(topology)
    # A model without springs lacks their arrays, and one without loops or couplings theirs.
    optional = {field.name for field in dataclasses.fields(Model) if field.default is None}
    for key, leaf in LEAVES.items():
        if key in arrays:
            if arrays[key].dtype.kind != "f":
                raise ValueError(f"{key} has {arrays[key].dtype}, but floating-point numbers are needed")
            require_last_axes(arrays[key], leaf.shape(topology), key, "with batch axes before these")
        elif key not in optional or {"loop": topology.loops, "coupling": topology.couplings}.get(leaf.rows or ""):
            raise ValueError(f"it lacks the array {key!r}")
    broadcast_batches({key: x.shape[: x.ndim - LEAVES[key].axes] for key, x in arrays.items()})
    if structure.get("sha256") != _checksum(structure["topology"], arrays):
        raise ValueError("it is damaged: its checksum is not that of its content")
    return Model(topology, **{key: jnp.asarray(x) for key, x in arrays.items()})


def _checksum(topology: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    """Return the SHA-256 of what a file holds."""
    return digest_of_arrays({"topology": np.array(json.dumps(topology))} | dict(sorted(arrays.items())))


def _field(name: str, value: Any) -> Any:
    """Return a field of a topology as `Topology` has it."""
    kind = {"loops": Loop, "couplings": Coupling}.get(name)
    return tuple(kind(*x) for x in value) if kind else _tuples(value)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _check(topology: Topology) -> None:
    """Raise `ValueError` unless the fields of a topology fit each other."""
    n, names = len(topology.parents), ("body_names", "joint_names", "joint_types")
    if any(len(getattr(topology, key)) != n for key in names):
        raise ValueError(f"{', '.join(names)} and parents differ in length")
    bodies = {"parents": topology.parents, "frame_bodies": topology.frame_bodies, "merged": topology.attached_bodies}
    for key, numbers in bodies.items():
        if not all(type(i) is int and -1 <= i < (k if key == "parents" else n) for k, i in enumerate(numbers)):
            raise ValueError(f"{key} has a number that is no body")
    if topology.frame_names[:n] != topology.body_names or len(topology.frame_names) != len(topology.frame_bodies):
        raise ValueError("the frames do not begin with the bodies, or some have no body")
    if len(topology.attached_links) != len(topology.attached_bodies):
        raise ValueError("some merged links have no body")
    if unknown := set(topology.joint_types) - set(JOINT_TYPES):
        raise ValueError(f"this version of jaxdyn does not have the joint type {enumerate_names(sorted(unknown))}")
    if not all(type(i) is int and 0 <= i < n for pair in topology.mimics for i in pair):
        raise ValueError("mimics has a number that is no joint")
    if unknown := {loop.kind for loop in topology.loops} - set(LOOP_ROWS):
        raise ValueError(f"this version of jaxdyn does not have the kind of loop {enumerate_names(sorted(unknown))}")
    ends = [x[-2:] for x in (*topology.loops, *topology.couplings)]
    if not all(type(i) is int and -1 <= i < n for pair in ends for i in pair):
        raise ValueError("loops or couplings have a number that is no body or joint")
