"""The contacts of a world in the place of MuJoCo's, where shapes lie on each other and either are right.

Of a cylinder that lies on a face, for example, MuJoCo takes corners of a polygon and a world places of the circle. Then
MuJoCo with the world's contacts answers as the world does, which shows that nothing else differs.
"""

# pyright: reportAttributeAccessIssue=false
# (MuJoCo is a compiled module without type stubs.)

from __future__ import annotations

import copy
from typing import Any

import numpy as np

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


def contacts_of(world: World, state: State, control: Any) -> dict[Pair, np.ndarray]:
    """Return the contacts of a world by their geoms, each `[n, 10]`: distance, place, normal and first tangent."""
    parts, found = world.parts.constraints.contacts, {}
    pairs = parts.candidate_geoms()
    for number, *row in stages_of(world, state, control).contacts:
        if row[0] < 0.5 * FAR:
            pair = tuple(parts.numbers[g] for g in pairs[int(number)])
            found.setdefault(pair, []).append(row)
    return {pair: np.array(rows) for pair, rows in found.items()}


def forward_with_contacts(m, d, contacts: dict[Pair, np.ndarray]) -> list[str] | None:
    """Compute accelerations and sensors as `mj_forward` does, with the contacts of a world for the pairs of geoms whose
    contacts differ, and return these pairs in words. None where contacts are missing, or are worse than MuJoCo's."""
    import mujoco

    mujoco.mj_fwdPosition(m, d)
    mujoco.mj_sensorPos(m, d)
    # The memory behind contacts is free to add some until there are constraints.
    mujoco.mj_collision(m, d)
    numbers: dict[Pair, list[int]] = {}
    for k in range(d.ncon):
        numbers.setdefault((int(d.contact[k].geom[0]), int(d.contact[k].geom[1])), []).append(k)
    said = []
    for pair in sorted({*contacts, *numbers}):
        rows = contacts.get(pair, np.zeros((0, 10)))
        theirs = [_row(d.contact[k]) for k in numbers.get(pair, [])]
        if _are_same(rows, theirs):
            continue
        if not len(rows) or not theirs or not _as_deep(m, d, pair, rows, np.array(theirs)):
            return None
        one, two = (f"geom {object_name(m, 'geom', g)!r} ({enum_name('mjtGeom', m.geom_type[g])})" for g in pair)
        said.append(f"{one} and {two}")
        _replace(m, d, numbers[pair], rows)
    mujoco.mj_makeConstraint(m, d)
    mujoco.mj_island(m, d)
    mujoco.mj_projectConstraint(m, d)
    forward_from_positions(m, d)
    return said


def _row(contact) -> np.ndarray:
    return np.concatenate([[contact.dist], contact.pos, contact.frame[:6]])


def _are_same(rows: np.ndarray, others: list[np.ndarray]) -> bool:
    if len(rows) != len(others):
        return False
    # Tangents may be any.
    return all(min(np.abs(x - y)[:7].max() for y in others) <= _SAME for x in rows)


def _as_deep(m, d, pair: Pair, rows: np.ndarray, others: np.ndarray) -> bool:
    """Whether the deepest of some contacts is at least as deep as that of others, and not deeper than the shapes
    overlap along its normal, along which they overlap no more than along the normal of the others."""
    deepest, other = (x[np.argmin(x[:, 0])] for x in (rows, others))
    along, along_other = (_separation(m, d, pair, x[4:7]) for x in (deepest, other))
    is_deepest = along - _DEPTH <= deepest[0] <= other[0] + _DEPTH
    return bool(is_deepest and along >= along_other - _DEPTH)


def _separation(m, d, pair: Pair, normal: np.ndarray) -> float:
    """The distance of two convex shapes along a normal from the first to the second, m; NaN if one is no such shape."""
    return -_extent(m, d, pair[1], -normal) - _extent(m, d, pair[0], normal)


def _extent(m, d, geom: int, direction: np.ndarray) -> float:
    """How far a shape reaches along a direction, m."""
    kind, size = enum_name("mjtGeom", m.geom_type[geom]), m.geom_size[geom]
    u = d.geom_xmat[geom].reshape(3, 3).T @ direction
    reach = np.nan
    if kind in ("sphere", "capsule"):
        reach = size[0] + (size[1] * abs(u[2]) if kind == "capsule" else 0.0)
    elif kind == "ellipsoid":
        reach = np.linalg.norm(size * u)
    elif kind == "cylinder":
        reach = size[0] * np.hypot(u[0], u[1]) + size[1] * abs(u[2])
    elif kind == "box":
        reach = np.abs(size * u).sum()
    elif kind == "mesh":
        mesh = m.geom_dataid[geom]
        reach = (m.mesh_vert[m.mesh_vertadr[mesh] :][: m.mesh_vertnum[mesh]] @ u).max()
    return float(d.geom_xpos[geom] @ direction + reach)


def _replace(m, d, numbers: list[int], rows: np.ndarray) -> None:
    """Put contacts in the place of those of one pair of geoms."""
    import mujoco

    contact = copy.copy(d.contact[numbers[0]])
    for k in numbers:
        # As those in a gap, which make no constraints.
        d.contact[k].exclude = 1
    for row in rows:
        contact.dist, contact.pos[:] = row[0], row[1:4]
        contact.frame[:] = np.concatenate([row[4:], np.cross(row[4:7], row[7:])])
        contact.exclude = int(row[0] >= contact.includemargin)
        mujoco.mj_addContact(m, d, contact)
