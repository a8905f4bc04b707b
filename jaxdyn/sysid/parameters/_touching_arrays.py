"""The numbers of a world's contacts under a `ContactLaw`: of its laws, its shapes and its plane."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxdyn.geometry import Plane, Points
from jaxdyn.sysid.parameters._world_arrays import Arrays, Owned, entry_labels
from jaxdyn.worlds import World

_POSE = ("x", "y", "z", "qw", "qx", "qy", "qz")


def shape_labels(touching: Any) -> list[list[str]]:
    """Return a name for each shape of each group, with a number where a link has several of a kind."""
    found = [[f"{group.kind.__name__} on {link}" for link in group.links] for group in touching.groups]
    total = Counter(label for labels in found for label in labels)
    seen: Counter[str] = Counter()

    def numbered(label: str) -> str:
        seen[label] += 1
        kind, link = label.split(" ", 1)
        return label if total[label] == 1 else f"{kind} {seen[label]} {link}"

    return [[numbered(label) for label in labels] for labels in found]


def links_of_law(touching: Any, number: int) -> tuple[str, ...]:
    """Return the links with contacts that have a law, each once."""
    on_surface = touching.groups if touching.surface is not None else ()
    links = [k for group in on_surface for k, law in zip(group.links, group.laws, strict=True) if law == number]
    for pair in touching.pairs:
        for g, rows in zip(pair.groups, pair.shapes, strict=True):
            links += [touching.groups[g].links[i] for i, law in zip(rows, pair.laws, strict=True) if law == number]
    return tuple(dict.fromkeys(links))


def law_numbers(world: World, names: Sequence[str], laws: Sequence[int] | None = None) -> list[Owned]:
    """Return numbers of the laws of contact, of all laws for None."""
    touching: Any = world.parts.touching
    arrays, out = Arrays(world), []
    count = touching.laws.stiffness.shape[-1]
    for name in names:
        for k in range(count) if laws is None else laws:
            links = ", ".join(links_of_law(touching, k))
            owner = "contacts" if count == 1 else f"contacts on {links}" if links else f"contact law {k}"
            out.append(Owned(owner, f"{name} of {owner}", (arrays.entry(f"parts.touching.laws.{name}", k),)))
    return out


def shape_sizes(world: World, chosen: Callable[[str], bool] = lambda link: True) -> list[Owned]:
    """Return the sizes of the shapes of links, one number for all of a shape of `Points`."""
    arrays, out = Arrays(world), []
    for label, group, g, row in _shapes(world, chosen):
        width, path = group.sizes.shape[-1], f"parts.touching.groups[{g}].sizes"
        entries = tuple(arrays.entry(path, row, k) for k in range(width))
        if group.kind is Points:
            out.append(Owned(label, f"scale of {label}", entries, apart=True))
        else:
            titles = [f"size of {label}"] if width == 1 else [f"size {k} of {label}" for k in range(width)]
            out += [Owned(label, title, (entry,)) for title, entry in zip(titles, entries, strict=True)]
    return out


def _shapes(world: World, chosen: Callable[[str], bool]) -> Iterator[tuple[str, Any, int, int]]:
    """Yield the labels of shapes, their groups, the numbers of these, and the rows of the shapes there."""
    touching: Any = world.parts.touching
    for g, labels in enumerate(shape_labels(touching)):
        group = touching.groups[g]
        yield from ((labels[row], group, g, row) for row, link in enumerate(group.links) if chosen(link))


def _numbers(world: World) -> list[Owned]:
    """Return all numbers of contacts under a `ContactLaw`, each by itself."""
    touching: Any = world.parts.touching
    arrays = Arrays(world)
    numbers = law_numbers(world, [f.name for f in dataclasses.fields(touching.laws)])
    for x in shape_sizes(world):
        each = [f"size {k} of {x.owner}" for k in range(len(x.entries))] if x.apart else [x.label]
        numbers += [Owned(x.owner, label, (entry,)) for label, entry in zip(each, x.entries, strict=True)]
    for label, _, g, row in _shapes(world, lambda link: True):
        path = f"parts.touching.groups[{g}].placement"
        numbers += [Owned(label, f"{x} of {label}", (arrays.entry(path, row, k),)) for k, x in enumerate(_POSE)]
    if isinstance(touching.surface, Plane):
        for label, name, k in [("offset", "offset", 0), *((f"normal {x}", "normal", k) for k, x in enumerate("xyz"))]:
            entry = arrays.entry(f"parts.touching.surface.{name}", 0, k)
            numbers.append(Owned("plane", f"{label} of the plane", (entry,)))
    return numbers


def entry_name(tree: Any, number: int, place: int) -> str | None:
    """Return the name of an entry of a leaf that an element of a world owns; None for all others."""
    if not isinstance(tree, World):
        return None
    touching = [] if tree.parts.touching is None else _numbers(tree)
    return (entry_labels(tree) | {x.entries[0]: x.label for x in touching}).get((number, place))
