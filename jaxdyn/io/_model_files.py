"""`save_model` and `load_model`: models in files of their own format, which holds all that a model has."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, broadcast_batches, naming_arguments, require_kind, require_last_axes
from jaxdyn.io.robot_files import ArchiveFormat, enumerate_names, read_archive, write_archive
from jaxdyn.joints import JOINT_TYPES, LOOP_ROWS, Coupling, Loop, Topology
from jaxdyn.model import LEAVES, Model

_FORM = ArchiveFormat(
    "model",
    1,
    "save_model",
    "load_model reads files of save_model; for robots' files there are load_urdf and load_mjcf",
)


@naming_arguments
def save_model(path: str | os.PathLike, model: Model) -> None:
    """Write a model to a file, from which `load_model` returns the same: names, structure, and every array with its
    precision and its batch axes. A gradient by a model is a model, too. Worlds are written by `save_world`.

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
    write_archive(path, _FORM, {"topology": topology}, arrays)


@naming_arguments
def load_model(path: str | os.PathLike) -> Model:
    """Return the model that `save_model` has written.

    Arrays have the precision of the file; double precision becomes single unless JAX's double precision is on
    (`jax_enable_x64`).

    **Raises** `RobotFileError` for a file that is missing, damaged, not of this format, or of a later version of it.
    """
    return read_archive(path, _FORM, _model)


def _model(content: dict[str, Any], arrays: dict[str, np.ndarray]) -> Model:
    """Return the model of a file. **Raises** `ValueError` and others where the file makes none."""
    fields = {field.name for field in dataclasses.fields(Topology)}
    if new := (set(content["topology"]) - fields) | (arrays.keys() - LEAVES.keys()):
        raise ValueError(f"this version of jaxdyn does not know {enumerate_names(sorted(new))}: use a newer jaxdyn")
    topology = Topology(**{key: _field(key, value) for key, value in content["topology"].items()})
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
    return Model(topology, **{key: jnp.asarray(x) for key, x in arrays.items()})


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
