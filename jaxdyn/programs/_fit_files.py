"""Fits, finished and unfinished, kept in files, so that an experiment that was interrupted goes on where it was."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.model import Model
from jaxdyn.programs._files import digest_of_arrays, require_same, write_durably, write_json, write_npz
from jaxdyn.sysid import InverseDynamicsFit, JointEffects, JointEffectValues, Recording, TorqueFitState

_LEAVES = ("inertial_parameters", "armature", "damping", "friction", "friction_velocity")
_SPRINGS = ("stiffness", "spring_reference")
_ARRAYS = ("parameters", "sigma", "triangle", "tangent", "precision_factor", "prior_factor")
_SCALARS = ("cost", "iterations", "rounds", "status", "message", "samples", "prior_weight")


class Kept:
    """Fits of an experiment in a folder, by name, and states of unfinished ones. They count for one configuration and
    one set of data."""

    def __init__(self, folder: Path, configuration: dict, recordings: list[Recording]):
        self.folder = folder
        arrays = {
            f"{k}.{name}": x
            for k, r in enumerate(recordings)
            for name, x in (("t", r.t), ("q", r.q), ("tau", r.tau))
            if x is not None
        }
        begun = {"configuration": configuration, "data": digest_of_arrays(arrays)}
        path = folder / "begun.json"
        if path.is_file():
            why = "what was computed counts for that only"
            require_same(path, json.loads(path.read_text()), begun, why, f"Delete {folder} to begin anew")
        else:
            folder.mkdir(parents=True, exist_ok=True)
            write_json(path, begun)

    def load(self, name: str, before: Model, effects: JointEffects) -> InverseDynamicsFit | None:
        """The fit that was kept as `name`, or None."""
        path = self.folder / f"{name}.npz"
        if not path.is_file():
            return None
        try:
            arrays = _arrays(path)
            names = (*_LEAVES, *(x for x in _SPRINGS if f"model.{x}" in arrays))
            leaves = tuple(jnp.asarray(arrays[f"model.{x}"], before.dtype) for x in names)
            fields = [x.name for x in dataclasses.fields(JointEffectValues)]
            return InverseDynamicsFit(
                model=eqx.tree_at(
                    lambda m: tuple(getattr(m, x) for x in names), before, leaves, is_leaf=lambda x: x is None
                ),
                before=before,
                effects=effects,
                values=JointEffectValues(**{x: arrays[f"values.{x}"] for x in fields}),
                **{x: arrays.get(x) for x in _ARRAYS},
                **json.loads(str(arrays["scalars"])),
            )
        except (OSError, ValueError, KeyError, EOFError) as error:
            raise DataError(f"{path}: cannot be read ({error}); delete {self.folder} to begin anew") from None

    def load_state(self, name: str) -> TorqueFitState | None:
        """Of the unfinished fit that was kept as `name`, or None."""
        path = self._state(name)
        if not path.is_file():
            return None
        try:
            return TorqueFitState.from_arrays(_arrays(path))
        except (OSError, ValueError, EOFError, DataError) as error:
            raise DataError(f"{path}: cannot be read ({error}); delete {self.folder} to begin anew") from None

    def save_state(self, name: str, state: TorqueFitState) -> None:
        write_durably(self._state(name), lambda path: write_npz(path, state.arrays()))

    def _state(self, name: str) -> Path:
        return self.folder / f"{name}, unfinished.npz"

    def save(self, name: str, fit: InverseDynamicsFit) -> None:
        leaves = {x: getattr(fit.model, x) for x in (*_LEAVES, *_SPRINGS)}
        arrays = {f"model.{x}": np.asarray(value) for x, value in leaves.items() if value is not None}
        arrays |= {f"values.{x.name}": np.asarray(getattr(fit.values, x.name)) for x in dataclasses.fields(fit.values)}
        arrays |= {x: getattr(fit, x) for x in _ARRAYS if getattr(fit, x) is not None}
        arrays["scalars"] = np.array(json.dumps({x: getattr(fit, x) for x in _SCALARS}))
        write_durably(self.folder / f"{name}.npz", lambda path: write_npz(path, arrays))

    def remove(self) -> None:
        """All is done."""
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


def _arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in archive.files}
