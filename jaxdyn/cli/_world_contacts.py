"""The contacts of a world in the place of MuJoCo's, where those of the world are no worse.

For a cylinder that lies on a face, for example, MuJoCo takes corners of a polygon and a world places of the circle.
Where several faces meet at the deepest place, or shapes only just touch, MuJoCo's contacts hang on the last digits of
its search. Then MuJoCo with the world's contacts answers as the world does, which shows that nothing else differs.
Points and vertices of the shapes say which contacts are right, with neither of both searches.
"""

# pyright: reportAttributeAccessIssue=false
# (MuJoCo is a compiled module without type stubs.)

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.optimize import nnls

from jaxdyn.cli._world_perturbations import forward_from_positions
from jaxdyn.cli._world_stages import stages_of
from jaxdyn.geometry import FAR
from jaxdyn.io.mjcf import enum_name, object_name
from jaxdyn.simulate import State
from jaxdyn.worlds import World

type Pair = tuple[int, int]
"""MuJoCo's numbers of two geoms."""

_SAME = 1e-7
"""Up to this difference of distances and places (m) and of normals contacts are the same: MuJoCo's search resolves
directions to that."""
_DEPTH = 1e-6
"""The difference of depths (m) up to which neither of two sets of contacts is better: MuJoCo's contacts of sides of
cylinders miss the deepest place by that."""
_MOVED, _MOTIONS = 1e-8, 24
"""The distance by which a geom is moved (m), and the number of such motions, to see whether MuJoCo's contacts hang on
its search. With the tolerance 1e-14, MuJoCo saw two meshes 3e-9 m apart whose flat faces overlap by 1e-10 m."""
_ROUNDING = 1e-13
"""The distance, as a part of the size of the shapes, up to which a point is in both of them."""
_NONE = np.zeros((0, 10))
"""The contacts of a pair that has none."""


def contacts_of(world: World, state: State, control: Any) -> dict[Pair, np.ndarray]:
    """Return the contacts of a world by their geoms, each `[n, 10]`: distance, place, normal and first tangent."""
    parts, found = world.parts.constraints.contacts, {}
    pairs = parts.candidate_geoms()
    for number, *row in stages_of(world, state, control).contacts:
        if row[0] < 0.5 * FAR:
            pair = tuple(parts.numbers[g] for g in pairs[int(number)])
            found.setdefault(pair, []).append(row)
    return {pair: np.array(rows) for pair, rows in found.items()}


def forward_with_contacts(m, d, contacts: dict[Pair, np.ndarray], rng) -> list[str] | None:
    """Compute accelerations and sensors as `mj_forward` does, with the contacts of a world for the pairs of geoms whose
    contacts differ, and return these pairs in words. None where MuJoCo's contacts are the better ones."""
    import mujoco

    mujoco.mj_fwdPosition(m, d)
    mujoco.mj_sensorPos(m, d)
    # The memory behind contacts is free to add some until there are constraints.
    mujoco.mj_collision(m, d)
    found = _contacts_of_mujoco(d)
    differing = [
        pair
        for pair in sorted({*contacts, *found})
        if not _are_same(contacts.get(pair, _NONE), [_row(x) for x in found.get(pair, [])])
    ]
    said, templates = [], {}
    for pair in differing:
        rows = contacts.get(pair, _NONE)
        why, template = _why_either(m, d, pair, rows, found.get(pair, []), rng)
        if not why or (len(rows) and template is None):
            return None
        templates[pair] = template
        one, two = (f"geom {object_name(m, 'geom', g)!r} ({enum_name('mjtGeom', m.geom_type[g])})" for g in pair)
        said.append(f"{one} and {two} ({why})")
    # Contacts of moved geoms were looked for in the same memory.
    mujoco.mj_collision(m, d)
    for pair in differing:
        _replace(m, d, pair, templates[pair], contacts.get(pair, _NONE))
    mujoco.mj_makeConstraint(m, d)
    mujoco.mj_island(m, d)
    mujoco.mj_projectConstraint(m, d)
    forward_from_positions(m, d)
    return said


def _contacts_of_mujoco(d) -> dict[Pair, list[Any]]:
    """Return copies of the contacts of MuJoCo's data by their geoms."""
    found: dict[Pair, list[Any]] = {}
    for contact in d.contact[: d.ncon]:
        found.setdefault((int(contact.geom[0]), int(contact.geom[1])), []).append(copy.copy(contact))
    return found


def _why_either(m, d, pair: Pair, rows: np.ndarray, theirs: list[Any], rng) -> tuple[str, Any]:
    """Return why the contacts of a world are no worse than MuJoCo's, in words, or nothing; and a contact of MuJoCo's
    with the numbers of the pair, if there is one."""
    others = np.array([_row(x) for x in theirs]).reshape(-1, 10)
    if len(rows) and len(others) and _as_deep(m, d, pair, rows, others):
        return "no less deep than MuJoCo's", theirs[0]
    # A contact comes and goes where shapes touch within what MuJoCo's search resolves.
    moved = list(_when_moved(m, d, pair, rng))
    template = next((x[0] for x in (theirs, *moved) if x), None)
    if any(_are_same(rows, [_row(x) for x in each], 1e-7 + 20 * _MOVED) for each in moved):
        return f"MuJoCo's own when a geom moves by {_MOVED:g} m", template
    if not len(rows) or not len(others):
        # Contacts push within this distance.
        margin = template.includemargin if template is not None else 0.0
        if len(rows) and not len(others) and _within(m, d, pair, rows[np.argmin(rows[:, 0])], margin):
            return "whose shapes touch where MuJoCo has no contact", template
        if not len(rows) and max(_separation(m, d, pair, x[4:7]) for x in others) >= margin:
            return "whose shapes are apart where MuJoCo has a contact", template
    return "", template


def _when_moved(m, d, pair: Pair, rng) -> Iterator[list[Any]]:
    """Yield MuJoCo's contacts of two geoms after small motions of one of them."""
    import mujoco

    for k in range(_MOTIONS):
        geom = pair[k % 2]
        place, axes = d.geom_xpos[geom].copy(), d.geom_xmat[geom].copy()
        radius = m.geom_rbound[geom]
        # That of planes, which have no end, is zero.
        turn = (_MOVED / radius if radius > 0 else 0.0) * rng.normal(size=3)
        d.geom_xpos[geom] += _MOVED * rng.normal(size=3)
        d.geom_xmat[geom] += np.cross(turn, axes.reshape(3, 3), axisb=0, axisc=0).ravel()
        mujoco.mj_collision(m, d)
        yield _contacts_of_mujoco(d).get(pair, [])
        d.geom_xpos[geom], d.geom_xmat[geom] = place, axes


def _row(contact) -> np.ndarray:
    return np.concatenate([[contact.dist], contact.pos, contact.frame[:6]])


def _are_same(rows: np.ndarray, others: list[np.ndarray], tolerance: float = _SAME) -> bool:
    if len(rows) != len(others):
        return False
    # Tangents may be any.
    return all(min(np.abs(x - y)[:7].max() for y in others) <= tolerance for x in rows)


def _as_deep(m, d, pair: Pair, rows: np.ndarray, others: np.ndarray) -> bool:
    """Whether the deepest of some contacts is at least as deep as that of others, and not deeper than the shapes
    overlap along its normal, along which they overlap no more than along the normal of the others."""
    deepest, other = (x[np.argmin(x[:, 0])] for x in (rows, others))
    along, along_other = (_separation(m, d, pair, x[4:7]) for x in (deepest, other))
    is_deepest = along - _DEPTH <= deepest[0] <= other[0] + _DEPTH
    return bool(is_deepest and along >= along_other - _DEPTH)


def _separation(m, d, pair: Pair, normal: np.ndarray) -> float:
    """The distance of two convex shapes along a normal from the first to the second, m; NaN if one is no such shape."""
    (first,), (second,) = _farthest(m, d, pair[0], normal[None]), _farthest(m, d, pair[1], -normal[None])
    return float((second - first) @ normal)


def _within(m, d, pair: Pair, row: np.ndarray, margin: float) -> bool:
    """Whether two convex shapes are within a margin of each other by their own points: whether some point is in the
    convex hulls of both, the second one's moved back by the margin along the contact's normal."""
    normal, place = row[4:7], row[1:4]
    # Directions all over the sphere, and some near the normal, in which round shapes touch.
    spread = np.random.default_rng(0).normal(size=(512, 3))
    near = normal + np.outer(10.0 ** -np.arange(1, 9), [1, 1]).reshape(-1, 1) * spread[:16]
    directions = np.concatenate([normal[None], near, spread])
    first, second = (_farthest(m, d, g, s * directions) - place for g, s in zip(pair, (1, -1), strict=True))
    second = second - margin * normal
    size = max(np.abs(first).max(), np.abs(second).max())
    points = np.concatenate([first, -second]).T / size
    ones = np.repeat(np.eye(2), [len(first), len(second)], axis=1)
    # Shares of both, not negative, that sum to one each and give the same point.
    _, rest = nnls(np.concatenate([points, ones]), np.array([0.0, 0.0, 0.0, 1.0, 1.0]))
    return bool(rest <= _ROUNDING)


def _farthest(m, d, geom: int, directions: np.ndarray) -> np.ndarray:
    """The points of a shape that are farthest along directions `[n, 3]`, m; of meshes all of their vertices where there
    are several directions. NaN for shapes that are not convex, or have no end."""
    kind, size = enum_name("mjtGeom", m.geom_type[geom]), m.geom_size[geom]
    u = directions @ d.geom_xmat[geom].reshape(3, 3)
    unit = u / np.linalg.norm(u, axis=1, keepdims=True)
    ends = np.where(u < 0, -1.0, 1.0)
    points = np.full(u.shape, np.nan)
    if kind in ("sphere", "capsule"):
        points = size[0] * unit
        points[:, 2] += size[1] * ends[:, 2] if kind == "capsule" else 0.0
    elif kind == "ellipsoid":
        points = size**2 * u / np.linalg.norm(size * u, axis=1, keepdims=True)
    elif kind == "cylinder":
        across = np.maximum(np.hypot(u[:, 0], u[:, 1]), np.finfo(float).tiny)[:, None]
        points = np.concatenate([size[0] * u[:, :2] / across, size[1] * ends[:, 2:]], axis=1)
    elif kind == "box":
        points = size * ends
    elif kind == "mesh":
        mesh = m.geom_dataid[geom]
        points = m.mesh_vert[m.mesh_vertadr[mesh] :][: m.mesh_vertnum[mesh]].astype(float)
        points = points[np.argmax(points @ u.T, axis=0)] if len(u) == 1 else points
    return d.geom_xpos[geom] + points @ d.geom_xmat[geom].reshape(3, 3).T


def _replace(m, d, pair: Pair, template: Any, rows: np.ndarray) -> None:
    """Put contacts in the place of those of one pair of geoms."""
    import mujoco

    for contact in d.contact[: d.ncon]:
        if tuple(contact.geom) == pair:
            # As those in a gap, which make no constraints.
            contact.exclude = 1
    for row in rows:
        contact = copy.copy(template)
        contact.dist, contact.pos[:] = row[0], row[1:4]
        contact.frame[:] = np.concatenate([row[4:], np.cross(row[4:7], row[7:])])
        contact.exclude = int(row[0] >= contact.includemargin)
        mujoco.mj_addContact(m, d, contact)
