"""A model as the recursions see it: rows with the batch last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn.model import LEAVES, Topology, require_inertias
from jaxdyn.spatial import Vec3
from jaxdyn.tree import packed_rows, rows_of


class BatchFirst(NamedTuple):
    """A result of an algorithm that has its batch axes in front already."""

    array: Any


class Robot:
    """The tree of a robot's degrees of freedom, and the arrays of its `Model` as rows.

    Rows are arrays `[n, *batch]`, and tables `[n, k, *batch]`, with the batch last and length 1 along the batch axes
    that a value does not depend on. An attribute with the name of a field of `Model` holds the rows of that field, or
    None where the field is None. All joints of the tree are independent; `mimics` says which of them follow others.
    Reading the inertias of a model that lacks some is an error, which says that `user`, an algorithm, needs them.
    """

    def __init__(self, topology: Topology, arrays: Mapping[str, Any], batch: tuple[int, ...], user: str):
        self.topology = topology.spanning
        """The structure in which all joints are independent."""
        self.tree = self.topology.dofs
        """The tree that the recursions walk, a node for each degree of freedom."""
        self.mimics = topology if topology.mimics else None
        """The structure that couples joints, or None."""
        self.arrays = arrays
        """The arrays of the model with their batch axes in front, as users have them."""
        self.batch, self.user = batch, user
        self.nv, self.nb = self.topology.nv, self.topology.nb
        self.zero: frozenset[str] = frozenset()
        """The arrays that are known to be zero."""
        self.dtype = jnp.result_type(*arrays.values())
        self._rows: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in LEAVES:
            raise AttributeError(f"a robot has no rows named {name!r}")
        if name == "inertial_parameters":
            require_inertias(self.topology, self.user)
        if name not in self._rows:
            array = self.arrays.get(name)
            axes = 0 if array is None else LEAVES[name].axes
            rows = (None, rows_of, packed_rows)[axes]
            self._rows[name] = None if rows is None else rows(array, self.rank)
        return self._rows[name]

    @property
    def rank(self) -> int:
        """The number of batch axes."""
        return len(self.batch)

    @property
    def gravity_vector(self) -> Vec3:
        """The acceleration of gravity, `[1, *batch]`."""
        return Vec3(*(self.gravity[i : i + 1] for i in range(3)))

    def with_batch_axis(self, size: int) -> Robot:
        """Return the robot with one more batch axis in front of the others."""
        return Robot(self.mimics or self.topology, self.arrays, (size, *self.batch), self.user)

    def constant(self, values: np.ndarray):
        """Return constants, such as `[n]`, as rows, `[n, 1, ...]`."""
        return jnp.asarray(values, self.dtype).reshape(values.shape + (1,) * self.rank)

    def zeros(self):
        """Return zero for every degree of freedom, rows `[nv, 1, ...]`."""
        return self.constant(np.zeros(self.nv))

    def broadcast(self, rows):
        """Return rows with every batch axis at its whole length."""
        return jnp.broadcast_to(rows, (*rows.shape[: rows.ndim - self.rank], *self.batch))
