"""The contacts of a robot, and names for the entries of their arrays."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import jax
import numpy as np

from jaxdyn._errors import ModelError
from jaxdyn.contact import Contacts
from jaxdyn.sysid.parameters._leaves import leaf_name
from jaxdyn.sysid.parameters._world_arrays import entry_labels
from jaxdyn.worlds import World

_POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")


def contacts_of(tree: Any, what: str) -> Contacts:
    """Return the contacts of a robot. **Raises** `ModelError` for a robot without, and for contacts with batch axes."""
    contacts = getattr(tree, "contacts", None)
    if isinstance(tree, World):
        raise ModelError(f"{what}: the surfaces of a world are geoms; take ContactPlacement(geoms=[...])")
    if contacts is None:
        raise ModelError(
            f"{what}: the reference has no contacts; give the parametrization sysid.Robot(model, contacts=...)"
        )
    require_no_batch(contacts)
    return contacts


def require_no_batch(contacts: Contacts) -> None:
    """Raise `ModelError` for contacts with batch axes."""
    arrays = jax.tree.leaves(contacts)
    if any(np.ndim(x) > axes for x, axes in zip(arrays, contacts.axes(), strict=True)):
        raise ModelError("the contacts have batch axes; a fit takes those of one robot")


def shape_labels(contacts: Contacts) -> list[list[str]]:
    """Return a name for each shape of each group, with a number where a link has several of a kind."""
    found = [[f"{group.kind.__name__} on {link}" for link in group.links] for group in contacts.groups]
    total = Counter(label for labels in found for label in labels)
    seen: Counter[str] = Counter()

    def numbered(label: str) -> str:
        seen[label] += 1
        kind, link = label.split(" ", 1)
        return label if total[label] == 1 else f"{kind} {seen[label]} {link}"

    return [[numbered(label) for label in labels] for labels in found]


def links_of_law(contacts: Contacts, number: int) -> tuple[str, ...]:
    """Return the links with contacts that have a law, each once."""
    on_surface = contacts.groups if contacts.surface is not None else ()
    links = [k for group in on_surface for k, law in zip(group.links, group.laws, strict=True) if law == number]
    for pair in contacts.pairs:
        for g, rows in zip(pair.groups, pair.shapes, strict=True):
            links += [contacts.groups[g].links[i] for i, law in zip(rows, pair.laws, strict=True) if law == number]
    return tuple(dict.fromkeys(links))


def entry_name(tree: Any, number: int, place: int) -> str | None:
    """Return the name of an entry of a robot's leaf that belongs to a law or a shape of its contacts, or to a joint, an
    actuator or a tendon of a world; None for all other leaves."""
    if isinstance(tree, World):
        return entry_labels(tree).get((number, place))
    name, contacts = leaf_name(tree, number), getattr(tree, "contacts", None)
    if contacts is None:
        return None
    if law := re.fullmatch(r"contacts\.laws\.(\w+)", name):
        if contacts.laws.stiffness.shape[-1] == 1:
            return f"{law[1]} of contacts"
        links = ", ".join(links_of_law(contacts, place))
        return f"{law[1]} of contacts on {links}" if links else f"{law[1]} of contact law {place}"
    if not (shape := re.fullmatch(r"contacts\.groups\[(\d+)\]\.(sizes|placement)", name)):
        return None
    group = int(shape[1])
    row, column = divmod(place, jax.tree.leaves(tree)[number].shape[-1])
    label = shape_labels(contacts)[group][row]
    if shape[2] == "placement":
        return f"{_POSE[column]} of {label}"
    return f"size of {label}" if contacts.groups[group].sizes.shape[-1] == 1 else f"size {column} of {label}"
