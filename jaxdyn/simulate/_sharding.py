"""The batch over several devices: every device rolls out its own part, and they exchange nothing."""

from __future__ import annotations

import dataclasses
import math

import equinox as eqx
import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn.model import Model

_MATRICES = ("joint_placement", "joint_axis", "inertial_parameters", "frame_placement", "attached_parameters")
"""The arrays of a model with two axes that are not batch axes; the others have one."""


@dataclasses.dataclass(frozen=True)
class Split:
    """Which axes of the mesh split which axes of the batch."""

    mesh: Mesh | AbstractMesh
    batch: tuple[int, ...]
    entries: tuple
    """One for each axis of the batch."""

    @staticmethod
    def of(sharding: NamedSharding, batch: tuple[int, ...]) -> Split:
        """**Raises** `ModelError` for what is no named sharding, `ShapeError` where the batch cannot be split so."""
        if not isinstance(sharding, NamedSharding):
            raise ModelError(
                f"sharding is a {type(sharding).__name__}; a jax.sharding.NamedSharding is needed, whose spec says "
                "which mesh axes split the leading batch axes"
            )
        spec = tuple(sharding.spec)
        while spec and spec[-1] is None:
            spec = spec[:-1]
        if len(spec) > len(batch):
            raise ShapeError(
                f"sharding.spec has {len(spec)} entries, but the roll-out has the batch axes {list(batch)}: one entry "
                "for each leading batch axis, none for samples, coordinates or degrees of freedom"
            )
        entries = (*spec, *(None,) * (len(batch) - len(spec)))
        for i, (n, entry) in enumerate(zip(batch, entries, strict=True)):
            names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
            parts = math.prod(sharding.mesh.shape[name] for name in names)
            if n % parts:
                raise ShapeError(
                    f"batch axis {i} has {n} elements, which {parts} devices (mesh axes {', '.join(map(str, names))}) "
                    f"cannot share evenly; pad the batch to a multiple of {parts}"
                )
        return Split(sharding.mesh, batch, entries)

    def spec(self, shape: tuple[int, ...], core: int) -> PartitionSpec:
        """Of an array `[*own, *core]` with `core` axes after its batch axes, which broadcast to the batch."""
        own = shape[: len(shape) - core]
        skipped = len(self.batch) - len(own)
        entries = [self.entries[skipped + i] if n == self.batch[skipped + i] else None for i, n in enumerate(own)]
        return PartitionSpec(*entries, *(None,) * core)

    def specs(self, tree, core: int):
        """Of arrays that all have as many axes after their batch axes."""
        return jax.tree.map(lambda x: self.spec(x.shape, core), tree)

    def of_model(self, model: Model) -> Model:
        """The specs of a model's arrays."""
        names = [f.name for f in dataclasses.fields(model) if not f.metadata.get("static", False)]
        specs = {
            name: self.spec(x.shape, 2 if name in _MATRICES else 1)
            for name in names
            if (x := getattr(model, name)) is not None
        }
        return eqx.tree_at(lambda m: [getattr(m, name) for name in specs], model, list(specs.values()))

    def of_leading(self, tree):
        """Of arrays that are split where they begin with all batch axes, and whole on every device otherwise."""
        n = len(self.batch)

        def one(x):
            begins = x.shape[:n] == self.batch
            return PartitionSpec(*self.entries, *(None,) * (x.ndim - n)) if begins else PartitionSpec()

        return jax.tree.map(one, tree)

    def whole(self, tree):
        """Of arrays that are whole on every device."""
        return jax.tree.map(lambda _: PartitionSpec(), tree)

    def put(self, tree, specs):
        """Concrete arrays on the devices; arrays within a transformation are moved by the compiler."""

        def one(x, spec):
            if isinstance(x, Tracer):
                return x
            return jax.device_put(x, NamedSharding(self.mesh, spec))

        return jax.tree.map(one, tree, specs)


def sharding_of(x, axes: int) -> NamedSharding | None:
    """How the leading axes of a concrete array are split, or None where they are not."""
    if isinstance(x, Tracer) or not isinstance(x, jax.Array) or not isinstance(x.sharding, NamedSharding):
        return None
    spec = tuple(x.sharding.spec)[:axes]
    if all(entry is None for entry in spec) or x.sharding.mesh.size == 1:
        return None
    return NamedSharding(x.sharding.mesh, PartitionSpec(*spec))
