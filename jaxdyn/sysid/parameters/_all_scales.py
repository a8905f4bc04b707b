"""The physical numbers of a robot together: a factor of each."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn.model import LEAVES
from jaxdyn.sysid.parameters import _leaves as leaves
from jaxdyn.sysid.parameters._inertia_blocks import InertiaScale
from jaxdyn.sysid.parameters._leaf_blocks import Positive, scaled_numbers
from jaxdyn.sysid.parameters._leaves import model_of
from jaxdyn.sysid.parameters._parametrization import AbstractBlock, AbstractChoice, JoinedBlocks
from jaxdyn.sysid.parameters._world_arrays import Owned, contact_numbers, numbers_of
from jaxdyn.worlds import World

_OF_JOINTS = "damping", "friction", "armature"
"""The arrays of a model, apart from inertias, that scale forces."""
_OF_WORLDS = (
    *(("joint", name) for name in ("damping", "armature", "stiffness", "frictionloss")),
    *(("tendon", name) for name in ("damping", "stiffness", "frictionloss")),
    *(("actuator", name) for name in ("gear", "kp", "kv")),
)
"""Elements and their attributes that scale forces."""


@dataclasses.dataclass(frozen=True)
class AllScales(AbstractChoice):
    """One positive factor `e^x` for each physical number that is not zero, so that a change of 0.01 is one of 1 %: the
    inertias of bodies as in `InertiaScale`; damping, dry friction, armature and springs of joints and tendons; gears,
    gains and time constants of actuators; and the friction of each pair of geoms of a world that may touch.

    The pull toward the reference is that of `InertiaScale` and `Positive`."""

    def bind(self, tree: Any) -> AbstractBlock:
        model = model_of(tree)
        inertias = leaves.number_of(tree, "inertial_parameters")
        masses = leaves.known_entries(tree, inertias, 10 * np.arange(model.nb))
        if masses is None:
            raise ModelError("AllScales: which numbers are zero depends on their values, which are traced")
        bodies = [name for name, mass in zip(model.body_names, masses, strict=True) if mass > 0]
        blocks = [InertiaScale(bodies).bind(tree)] if bodies else []
        numbers = _numbers_of_world(tree) if isinstance(tree, World) else []
        if numbers:
            blocks.append(scaled_numbers(type(self).__name__, tree, numbers))
        taken = frozenset().union(*(block.claims for block in blocks))
        for name in _OF_JOINTS:
            if (block := _of_model(tree, name, taken)) is not None:
                blocks.append(block)
        if not blocks:
            raise ModelError("AllScales: the robot has no masses, friction or gains other than zero")
        return JoinedBlocks.of(blocks)


def _numbers_of_world(world: World) -> list[Owned]:
    """Return what elements of a world own, but for zeros."""
    contacts = world.parts.constraints.contacts
    touching = [
        (contacts.names[first], contacts.names[second])
        for pairs in contacts.pairs
        for first, second, dim in zip(pairs.first, pairs.second, pairs.dims, strict=True)
        # A contact with one direction has no friction.
        if dim > 1
    ]
    dynamics = dict(zip(world.actuator_names, world.parts.actuators.dynamics, strict=True))
    numbers = [x for kind, attribute in _OF_WORLDS for x in numbers_of(world, kind, attribute) or ()]
    # The file gives time constants to actuators without dynamics, too.
    times = numbers_of(world, "actuator", "dynprm") or ()
    numbers += [x for x in times if dynamics[x.owner] not in ("none", "integrator")]
    if touching:
        numbers += contact_numbers(world, "friction", touching, "AllScales")
    arrays = [np.asarray(x).reshape(-1) for x in jax.tree.leaves(world)]

    def scales(number: Owned) -> bool:
        leaf, place = number.entries[0]
        # The world of a model has the numbers of joints in the model, and tables without rows for them.
        return place < arrays[leaf].size and arrays[leaf][place] != 0

    return [x for x in numbers if scales(x)]


def _of_model(tree: Any, name: str, taken: frozenset) -> AbstractBlock | None:
    """Return the block of the entries of an array of the model that are not zero and that no other block has."""
    array = getattr(model_of(tree), name)
    if array is None:
        return None
    leaf = leaves.number_of(tree, name)
    chosen = [int(i) for i in np.flatnonzero(np.asarray(array)) if (leaf, int(i)) not in taken]
    assert LEAVES[name].columns is None
    return Positive(lambda robot: getattr(model_of(robot), name), at=chosen).bind(tree) if chosen else None
