"""The places of joints and of the two frames of loops in their bodies: rows of the model's leaves of placements."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxdyn._errors import look_up
from jaxdyn.model import Model

type Place = tuple[str, int]
"""A leaf of placements of a model, and a row of it."""

LEAVES = ("joint_placement", "loop_placement1", "loop_placement2")


def chosen_places(model: Model, names: Sequence[str] | None = None) -> tuple[Place, ...]:
    """Return the places of joints and loops of these names; all for None. **Raises** `UnknownNameError`."""
    places = list(_labelled(model))
    for name in names or ():
        look_up(name, tuple(dict.fromkeys(x for *_, x, _ in places)), "joint or loop")
    return tuple(place for place, name, _ in places if names is None or name in names)


def place_label(model: Model, place: Place) -> str:
    """Return the name of a place: that of the joint, or of the loop with the number of its frame."""
    return next(label for x, _, label in _labelled(model) if x == place)


def _labelled(model: Model) -> Iterator[tuple[Place, str, str]]:
    """Yield places, the names of their joints or loops, and their own names."""
    joints, *loops = LEAVES
    for i, name in enumerate(model.joint_names):
        yield (joints, i), name, name
    for number, leaf in enumerate(loops, 1):
        for i, loop in enumerate(model.topology.loops):
            yield (leaf, i), loop.name, f"{loop.name}, frame {number}"
