"""Contact shapes, and which of them touch each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxdyn._errors import ModelError
from jaxdyn.contact._law import ContactLaw
from jaxdyn.contact._mujoco_law import MujocoLaw
from jaxdyn.geometry import AbstractShape, pair_witness_count
from jaxdyn.model import Model, Placement

_NAMED = 3
"""The most pairs that an error names."""


class ContactShape(NamedTuple):
    """A shape that is fixed on a link and touches the world."""

    link: str
    """A body, a merged link, a frame, or `"world"`."""
    shape: AbstractShape
    placement: Placement = None
    """The pose of the shape in the link: an `SE3`, position (m) and quaternion `w x y z`, a position, or None for the
    identity."""
    law: ContactLaw | MujocoLaw | None = None
    """The law of its contacts; None for the one that the `World` has for all others."""
    on_surface: bool = True
    """Whether it touches the surface of the world. If not, its only contacts are those of pairs."""


class ContactPair(NamedTuple):
    """Two links, or two shapes, that touch each other."""

    link1: str | ContactShape
    """A link, for all shapes that `ContactShape.link` puts there, or one of the shapes, which must be the same object.
    One of the two may be fixed in the world."""
    link2: str | ContactShape
    law: ContactLaw | MujocoLaw | None = None
    """The law of its contacts; None for the one that the `World` has for all others."""


class Member(NamedTuple):
    """A shape with its place among the groups of `ShapeContacts`."""

    group: int
    index: int
    body: int
    """-1 for the world."""
    shape: ContactShape


class PairGroup(NamedTuple):
    """The pairs of shapes of two groups; the second shape of each moves."""

    groups: tuple[int, int]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    laws: tuple[int, ...]
    of_each: int
    """The number of contacts of each pair."""


type _Three = tuple[Member, Member, Any]


def chosen_pairs(
    model: Model, members: Sequence[Member], pairs: Any, apart: Any
) -> tuple[list[_Three], set[tuple[int, int]]]:
    """Return the pairs of shapes with their laws, and the group and index of the shapes of pairs that `apart` leaves
    out. **Raises** `ModelError` as `World`."""
    if isinstance(pairs, str):
        if pairs != "all":
            raise ModelError(f"pairs is {pairs!r}; 'all', or pairs of the names of links, are needed")
        found = [(a, b, None) for a, b in itertools.combinations(members, 2) if not joined(model, a.body, b.body)]
    else:
        found = []
        for number, pair in enumerate(pairs):
            found += [(a, b, ContactPair(*pair).law) for a, b in _members_of_pair(members, pair, f"pairs[{number}]")]
    alone, separate = _apart(members, apart)
    kept, lost = [], set()
    for a, b, law in found:
        links = {a.shape.link, b.shape.link}
        if links & alone or links in separate:
            lost |= {(a.group, a.index), (b.group, b.index)}
        else:
            kept.append((a, b, law))
    return kept, lost


def grouped_pairs(
    pairs: Sequence[_Three], kind_of: Callable[[int], tuple[type[AbstractShape], int]], place: Callable[[Any], int]
) -> tuple[PairGroup, ...]:
    """Return pairs of shapes in groups that are computed together. `kind_of` has the class and the number of sizes of a
    group, and `place` the number of a law. **Raises** `ModelError` that names shapes that have no pairs."""
    found: dict[tuple[int, int], list[_Three]] = {}
    for one, two, law in pairs:
        if two.body < 0:
            one, two = two, one
        found.setdefault((one.group, two.group), []).append((one, two, law))
    out, missing = [], []
    for (g1, g2), rows in found.items():
        try:
            count = pair_witness_count(*kind_of(g1), *kind_of(g2))
        except ModelError as error:
            missing.append(f"- {_shown(rows)}: {error}")
            continue
        indices = tuple(a.index for a, _, _ in rows), tuple(b.index for _, b, _ in rows)
        out.append(PairGroup((g1, g2), indices, tuple(place(law) for _, _, law in rows), count))
    if missing:
        lines = "\n".join(missing)
        advice = "other shapes (load_contact_shapes has pairs='capsules') have more; apart=[...] leaves links out"
        raise ModelError(f"some pairs of shapes have no contacts with each other:\n{lines}\n{advice}")
    return tuple(out)


def joined(model: Model, body1: int, body2: int) -> bool:
    """Return whether two bodies are one, or joined by a joint that is not free; -1 is the world, to which no joint
    counts."""
    parents, kinds = model.topology.parents, model.topology.joint_types
    if body1 == body2 or min(body1, body2) < 0:
        return body1 == body2
    return any(
        parents[child] == parent and kinds[child] != "free" for parent, child in ((body1, body2), (body2, body1))
    )


def _shown(rows: Sequence[_Three]) -> str:
    """Return two classes of shapes, and the links of some pairs of them."""
    kinds = " with ".join(type(x.shape.shape).__name__ for x in rows[0][:2])
    links = list(dict.fromkeys(f"{a.shape.link!r} with {b.shape.link!r}" for a, b, _ in rows))
    more = f", and {len(links) - _NAMED} more" if len(links) > _NAMED else ""
    return f"{kinds}, on {', '.join(links[:_NAMED])}{more}"


def _members_of_pair(members: Sequence[Member], pair: Any, what: str) -> list[tuple[Member, Member]]:
    """Return the pairs of shapes of two links, or of two shapes."""
    if isinstance(pair, str | ContactShape) or not 2 <= len(pair) <= 3:
        raise ModelError(f"{what} is {pair!r}; jaxdyn.ContactPair(link1, link2) is needed")
    if not isinstance(law := ContactPair(*pair).law, ContactLaw | MujocoLaw | None):
        raise ModelError(f"{what} has the law {law!r}; a jaxdyn.ContactLaw or MujocoLaw is needed")
    one, two = (_members_of(members, end, what) for end in pair[:2])
    if one[0].body == two[0].body:
        reason = "one body" if one[0].body >= 0 else "the world, where both are fixed"
        links = [x[0].shape.link for x in (one, two)]
        raise ModelError(f"{what}: {links[0]!r} and {links[1]!r} belong to {reason}, so they cannot touch")
    return [(a, b) for a in one for b in two]


def _members_of(members: Sequence[Member], end: Any, what: str) -> list[Member]:
    """Return the shapes on a link, or one shape."""
    if isinstance(end, ContactShape):
        if found := [x for x in members if x.shape is end]:
            return found
        kind = type(end.shape).__name__
        raise ModelError(f"{what}: the {kind} on {end.link!r} is not one of `contacts`; give the same object in both")
    if found := [x for x in members if x.shape.link == end]:
        return found
    known = ", ".join(dict.fromkeys(x.shape.link for x in members))
    raise ModelError(f"{what}: no shape is on {end!r}; the shapes are on {known}")


def _apart(members: Sequence[Member], apart: Any) -> tuple[set[str], list[set[str]]]:
    """Return the links that touch no other one, and the links two of which do not touch each other."""
    if isinstance(apart, str):
        raise ModelError(f"apart is the text {apart!r}; a list of links is needed, such as [{apart!r}]")
    alone, separate = set(), []
    for number, each in enumerate(apart):
        links = [each] if isinstance(each, str) else list(each)
        for link in links:
            _members_of(members, link, f"apart[{number}]")
        if len(links) not in (1, 2):
            raise ModelError(f"apart[{number}] is {each!r}; the name of a link, or those of two, are needed")
        if len(links) == 1:
            alone.add(links[0])
        else:
            separate.append(set(links))
    return alone, separate
