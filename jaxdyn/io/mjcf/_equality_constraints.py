"""Equality constraints of MJCF files, as the loops and couplings of models.

MuJoCo's compiler resolves defaults and finds the second frames from the configuration `qpos0`. With the numbers `d` of
`eq_data`, its engine holds:

| constraint | here |
|---|---|
| connect, of bodies | `connect` of the point `d[0:3]` of the first body and the point `d[3:6]` of the second |
| weld, of bodies | `weld` of the pose `d[3:6], d[6:10]` in the first body and the point `d[0:3]` of the second |
| connect and weld, of sites | `connect` and `weld` of the sites |
| weld without `torquescale` `d[10]` | `connect`: its rotation is not held |
| joint | a coupling with the coefficients `d[0:5]`, about the coordinates of both joints in `qpos0` |
"""

from __future__ import annotations

import numpy as np

from jaxdyn.io.mjcf import _compiled as mj
from jaxdyn.model import ModelBuilder
from jaxdyn.spatial import pose_array


def acting_equalities(m) -> tuple[list[int], list[int]]:
    """Return the numbers of the equality constraints that act at first and that models have, and of those that act and
    that no model has."""
    disabled = mj.is_disabled(m, "equality", "constraint")
    active = [] if disabled else [int(i) for i in np.flatnonzero(m.eq_active0) if not _within_one_body(m, int(i))]
    known = [i for i in active if _kind(m, i) in ("connect", "weld", "joint")]
    return known, [i for i in active if i not in known]


def add_equalities(builder: ModelBuilder, m, names: mj.Names) -> None:
    """Add the loops and couplings of a file to the model of its tree."""
    for i in acting_equalities(m)[0]:
        name, kind, data = names.equalities[i], _kind(m, i), np.array(m.eq_data[i])
        first, second = int(m.eq_obj1id[i]), int(m.eq_obj2id[i])
        if kind == "joint":
            reference = [float(m.qpos0[m.jnt_qposadr[j]]) if j >= 0 else 0.0 for j in (first, second)]
            leader = names.joints[second] if second >= 0 else None
            builder.add_coupling(name, names.joints[first], leader, data[:5], reference)
            continue
        ends = (None, None)
        if not _of_sites(m, i):
            ends = (data[:3], data[3:6]) if kind == "connect" else (pose_array(data[3:6], data[6:10]), data[:3])
        links = names.sites if _of_sites(m, i) else names.bodies
        kind = "connect" if kind == "weld" and data[10] == 0 else kind
        builder.add_loop(name, kind, links[first], links[second], *ends)


def _kind(m, i: int) -> str:
    return mj.enum_name("mjtEq", m.eq_type[i])


def _of_sites(m, i: int) -> bool:
    return mj.enum_name("mjtObj", m.eq_objtype[i]) == "site"


def _within_one_body(m, i: int) -> bool:
    """Return whether both ends of a constraint are fixed in one moving body, or in the world."""
    if _kind(m, i) not in ("connect", "weld"):
        return False
    ends = np.array([m.eq_obj1id[i], m.eq_obj2id[i]])
    bodies = m.body_weldid[m.site_bodyid[ends] if _of_sites(m, i) else ends]
    # Mocap bodies are fixed in the world here.
    return bool(bodies[0] == bodies[1] or not m.body_dofnum[bodies].any())
