"""The batch over several devices: every device rolls out its own part without communication."""

import dataclasses
import math

import equinox as eqx
import jax
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from jaxdyn._errors import ModelError, ShapeError
from jaxdyn.model import LEAVES, Model
from jaxdyn.simulate._systems import AbstractWorld


@dataclasses.dataclass(frozen=True)
class Split:
    """The axes of the mesh that split each axis of the batch."""

    mesh: Mesh | AbstractMesh
    batch: tuple[int, ...]
    entries: tuple
    """The mesh axes of each batch axis, or None."""

    @staticmethod
    def of(sharding: NamedSharding, batch: tuple[int, ...]) -> "Split":
        """**Raises** `ModelError` unless `sharding` is a named sharding, `ShapeError` if it cannot split the batch."""
        if not isinstance(sharding, NamedSharding):
            raise ModelError(
                f"sharding is a {type(sharding).__name__}; a jax.sharding.NamedSharding is needed, whose spec has the "
                "mesh axes that split each leading batch axis"
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
        """The spec of an array with `core` axes after its batch axes, which broadcast to the batch."""
        axes = shape[: len(shape) - core]
        skipped = len(self.batch) - len(axes)
        entries = [self.entries[skipped + i] if n == self.batch[skipped + i] else None for i, n in enumerate(axes)]
        return PartitionSpec(*entries, *(None,) * core)

    def specs(self, tree, core: int):
        """The specs of arrays with `core` axes after their batch axes."""
        return jax.tree.map(lambda x: self.spec(x.shape, core), tree)

    def of_system(self, system: Model | AbstractWorld):
        """The specs of the arrays of a model or a world."""
        if isinstance(system, AbstractWorld):
            leaves, structure = jax.tree.flatten(system)
            specs = [self.spec(x.shape, core) for x, core in zip(leaves, system.axes(), strict=True)]
            return jax.tree.unflatten(structure, specs)
        arrays = {name: x for name in LEAVES if (x := getattr(system, name)) is not None}
        specs = [self.spec(x.shape, LEAVES[name].axes) for name, x in arrays.items()]
        return eqx.tree_at(lambda m: [getattr(m, name) for name in arrays], system, specs)

    def of_leading(self, tree):
        """The specs of arrays that are split if they begin with all batch axes, otherwise whole on every device."""
        n = len(self.batch)
        whole = PartitionSpec()
        return jax.tree.map(lambda x: self.spec(x.shape, x.ndim - n) if x.shape[:n] == self.batch else whole, tree)

    def put(self, tree, specs):
        """`tree` with its concrete arrays on the devices. Within a transformation the compiler moves arrays, but for
        those axes of the mesh that are explicit: how they split an array is a part of its type."""

        def place(x, spec):
            if not isinstance(x, Tracer):
                return jax.device_put(x, NamedSharding(self.mesh, spec))
            explicit = PartitionSpec(*map(self._explicit, spec))
            return jax.sharding.reshard(x, NamedSharding(self.mesh, explicit)) if self._explicit_axes else x

        return jax.tree.map(place, tree, specs)

    @property
    def _explicit_axes(self) -> tuple[str, ...]:
        pairs = zip(self.mesh.axis_names, self.mesh.axis_types, strict=True)
        return tuple(name for name, kind in pairs if kind == AxisType.Explicit)

    def _explicit(self, entry):
        """The explicit axes among those of an entry of a spec, or None."""
        names = () if entry is None else entry if isinstance(entry, tuple) else (entry,)
        return tuple(name for name in names if name in self._explicit_axes) or None


def sharding_of(x, axes: int) -> NamedSharding | None:
    """The sharding of the leading axes of a concrete array, or None if they are not split."""
    if isinstance(x, Tracer) or not isinstance(x, jax.Array) or not isinstance(x.sharding, NamedSharding):
        return None
    spec = tuple(x.sharding.spec)[:axes]
    if all(entry is None for entry in spec) or x.sharding.mesh.size == 1:
        return None
    return NamedSharding(x.sharding.mesh, PartitionSpec(*spec))
