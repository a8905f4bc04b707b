"""Files of finished and unfinished fits, from which an interrupted identification continues."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn.model import Model
from jaxdyn.programs._files import begin, digest_of_arrays, read_npz, write_npz
from jaxdyn.sysid import InverseDynamicsFit, JointEffects, JointEffectValues, Recording, TorqueFitState

LEAVES = ("inertial_parameters", "armature", "damping", "friction", "friction_velocity")
"""The fields of a model that a fit changes."""
_SPRINGS = ("stiffness", "spring_reference")
_ARRAYS = ("parameters", "sigma", "triangle", "tangent", "precision_factor", "prior_factor")
_SCALARS = ("cost", "iterations", "rounds", "status", "message", "samples", "prior_weight")


class FitFiles:
    """The fits of one configuration and one set of data in a folder, by name, and the states of unfinished fits.

    **Raises** `DataError` if the folder was begun with another configuration or other data.
    """

    def __init__(self, folder: Path, configuration: dict, recordings: list[Recording]):
        self.folder = folder
        arrays = {
            f"{k}.{name}": x
            for k, r in enumerate(recordings)
            for name, x in (("t", r.t), ("q", r.q), ("tau", r.tau))
            if x is not None
        }
        folder.mkdir(parents=True, exist_ok=True)
        content = {"configuration": configuration, "data": digest_of_arrays(arrays)}
        begin(folder / "begun.json", content, "its fits are of that only", f"Delete {folder} to start again")

    def load(self, name: str, before: Model, effects: JointEffects) -> InverseDynamicsFit | None:
        """Return the finished fit `name`, or None. **Raises** `DataError` for a file that is not one."""
        return self._read(f"{name}.npz", lambda arrays: _fit_of(arrays, before, effects))

    def load_state(self, name: str) -> TorqueFitState | None:
        """Return the state of the unfinished fit `name`, or None. **Raises** `DataError` for a file that is not one."""
        return self._read(f"{name}, unfinished.npz", TorqueFitState.from_arrays)

    def _read(self, file: str, build: Any) -> Any:
        path = self.folder / file
        return read_npz(path, build, f"delete {self.folder} to start again") if path.is_file() else None

    def save(self, name: str, fit: InverseDynamicsFit) -> None:
        """Write a finished fit."""
        leaves = {x: getattr(fit.model, x) for x in (*LEAVES, *_SPRINGS)}
        arrays = {f"model.{x}": np.asarray(value) for x, value in leaves.items() if value is not None}
        arrays |= {f"values.{x.name}": np.asarray(getattr(fit.values, x.name)) for x in dataclasses.fields(fit.values)}
        arrays |= {x: getattr(fit, x) for x in _ARRAYS if getattr(fit, x) is not None}
        arrays["scalars"] = np.array(json.dumps({x: getattr(fit, x) for x in _SCALARS}))
        write_npz(self.folder / f"{name}.npz", arrays)

    def save_state(self, name: str, state: TorqueFitState) -> None:
        """Write the state of an unfinished fit."""
        write_npz(self.folder / f"{name}, unfinished.npz", state.arrays())

    def remove(self) -> None:
        """Delete the folder, after the last fit."""
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


def _fit_of(arrays: dict[str, np.ndarray], before: Model, effects: JointEffects) -> InverseDynamicsFit:
    names = (*LEAVES, *(x for x in _SPRINGS if f"model.{x}" in arrays))
    leaves = tuple(jnp.asarray(arrays[f"model.{x}"], before.dtype) for x in names)
    fields = [x.name for x in dataclasses.fields(JointEffectValues)]
    return InverseDynamicsFit(
        model=eqx.tree_at(lambda m: tuple(getattr(m, x) for x in names), before, leaves, is_leaf=lambda x: x is None),
        before=before,
        effects=effects,
        values=JointEffectValues(**{x: arrays[f"values.{x}"] for x in fields}),
        **{x: arrays.get(x) for x in _ARRAYS},
        **json.loads(str(arrays["scalars"])),
    )
