"""Parts of MJCF files that worlds do not have, refused by name."""

from __future__ import annotations

import collections

import numpy as np

from jaxdyn._errors import RobotFileError, warn
from jaxdyn.geometry import MOST_PRISMS, Grid, has_flat_disks, has_several_contacts, is_built, is_searched
from jaxdyn.io import RobotFileWarning
from jaxdyn.io.mjcf import (
    GeomPair,
    GeomType,
    enum_name,
    is_disabled,
    is_enabled,
    object_name,
    reasons_against_actuators,
    shapes_of_pair,
)
from jaxdyn.io.robot_files import enumerate_names
from jaxdyn.worlds._equalities import reasons_against_equalities
from jaxdyn.worlds._free_bodies import free_bodies
from jaxdyn.worlds._parts import translations_of_free_joints
from jaxdyn.worlds._passive import reasons_against_passive
from jaxdyn.worlds._tendons import reasons_against_tendons

_INTEGRATORS = ("euler", "rk4", "implicitfast", "implicit")
_ENABLED = ("diagexact", "ipc", "speculative")
"""Additional features of MuJoCo that change how a world moves."""
_SHOWN = 3
"""The most pairs of geoms that a warning names."""


def refuse_what_is_not_built(m, source: str, pairs: list[GeomPair], *, as_mujoco: bool) -> None:
    """Raise `RobotFileError` with all that an `mjModel` with these pairs of geoms has and worlds, with MuJoCo's law of
    contact or without, do not."""
    gaps = [f"{kind} {name!r}: {reason}" for kind, reasons in _by_kind(m).items() for name, reason in reasons.items()]
    gaps += [f"{name}: {reason}" for name, reason in reasons_against_passive(m).items()]
    gaps += _options(m) + _joints(m) + _geoms(m, pairs)
    if not as_mujoco:
        adhering = [i for i, x in enumerate(m.actuator_trntype) if enum_name("mjtTrn", x) == "body"]
        names = [object_name(m, "actuator", i) for i in adhering]
        gaps += [
            f"actuator {name!r}: it acts on contacts (adhesion), which law=ContactLaw(...) does not have"
            for name in names
        ]
    if gaps:
        lines = "\n".join(f"- {gap}" for gap in gaps)
        raise RobotFileError(
            f"{source}: worlds do not have all that it has:\n{lines}\n"
            "take these out of the file, or change them, to load it"
        )


def warn_of_what_differs(m, source: str, pairs: list[GeomPair]) -> None:
    """Warn of pairs of geoms of an `mjModel` for which MuJoCo's contacts are off their geometry or depend on the last
    digits of a search, and of those whose contacts it sweeps in an order of its own."""
    if m.opt.noslip_iterations > 0:
        _warn_of_orders(m, source, pairs)
    flat = [pair for pair in pairs if has_flat_disks(*pair.kinds)]
    if flat:
        warn(
            f"{source}: where an end of a cylinder lies flat on a box or on another cylinder, MuJoCo takes up to four "
            f"corners of polygons, which ones by the last digits of their areas. The world takes up to four places of "
            f"the same shared part, so forces differ within it: {_shown(m, flat)}",
            RobotFileWarning,
        )
    over = [pair for pair in pairs if (pair.type1, pair.type2) == (GeomType.HFIELD, GeomType.BOX)]
    geoms = {pair.geom2 for pair in over if not pair.margin + pair.gap > 0}
    if geoms:
        names = ", ".join(repr(object_name(m, "geom", g)) for g in sorted(geoms))
        warn(
            f"{source}: without a margin, MuJoCo ends its search for contacts of boxes with height fields early and "
            f"finds too little overlap; the world has the contacts of the geometry. With a margin, such as "
            f'margin="1e-6", MuJoCo has the same: {names}',
            RobotFileWarning,
        )


def warn_of_what_is_not_simulated(m, source: str, across: list[str]) -> None:
    """Warn of what worlds do not simulate of an `mjModel`, by name; `across` are tendons (`across_branches`)."""
    if across:
        warn(
            f"{source}: MuJoCo leaves the inertia along tendons out of the mass matrix between degrees of freedom of "
            f"which neither moves the other, and so does the world: tendons {enumerate_names(across)}",
            RobotFileWarning,
        )
    if sleepy := _sleeping(m, "auto_allowed", "allowed"):
        warn(
            f"{source}: with the flag 'sleep', MuJoCo stops trees whose velocities stay below sleep_tolerance, until "
            f"something wakes them. The world moves these on, as without the flag: bodies {enumerate_names(sleepy)}",
            RobotFileWarning,
        )


def _warn_of_orders(m, source: str, pairs: list[GeomPair]) -> None:
    pairs = [pair for pair in pairs if pair.condim > 1 and has_several_contacts(*pair.kinds)]
    if pairs:
        warn(
            f"{source}: with noslip_iterations, accelerations depend on the order of contacts. MuJoCo's order of "
            f"several contacts of one pair follows its search where it has no formulas, so states with such contacts "
            f"can differ from it: {_shown(m, pairs)}",
            RobotFileWarning,
        )


def _shown(m, pairs: list[GeomPair]) -> str:
    """Return the names of some pairs of geoms."""
    shown = [" and ".join(repr(object_name(m, "geom", g)) for g in (x.geom1, x.geom2)) for x in pairs[:_SHOWN]]
    return "; ".join(shown) + (f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else "")


def _by_kind(m) -> dict[str, dict[str, str]]:
    return {
        "actuator": {name: f"it {reason}" for name, reason in reasons_against_actuators(m).items()},
        "tendon": reasons_against_tendons(m),
        "equality": reasons_against_equalities(m),
    }


def _options(m) -> list[str]:
    out = []
    integrator = enum_name("mjtIntegrator", m.opt.integrator)
    if integrator not in _INTEGRATORS:
        out.append(f"the integrator {integrator!r}; those built are {', '.join(_INTEGRATORS)}")
    out += [f"the flag {name!r} in <option>" for name in _ENABLED if is_enabled(m, name)]
    if starting := _sleeping(m, "init"):
        out.append(f'sleep="init", with which trees start asleep: bodies {enumerate_names(starting)}')
    fluid = m.opt.density > 0 or m.opt.viscosity > 0
    if integrator == "implicitfast" and fluid and free_bodies(m):
        out.append("a fluid around free bodies that carry no joints, with the integrator 'implicitfast'; use 'Euler'")
    if m.nplugin:
        out.append("plugins, which only MuJoCo runs: <extension>, and what refers to it")
    return out


def _sleeping(m, *policies: str) -> list[str]:
    """Return the roots of the trees of an `mjModel` that may sleep, or do from the start, by their policies."""
    if not is_enabled(m, "sleep"):
        return []
    trees = [i for i in range(m.ntree) if enum_name("mjtSleepPolicy", m.tree_sleep_policy[i]) in policies]
    return [object_name(m, "body", np.flatnonzero(np.asarray(m.body_treeid) == i)[0]) for i in trees]


def _joints(m) -> list[str]:
    """Return the inertias of free joints along axes of the world that body axes would not have."""
    out = []
    for rows in translations_of_free_joints(m):
        name = object_name(m, "joint", m.dof_jntid[rows[0]])
        if np.ptp(m.dof_armature[rows]) > 0:
            out.append(f"free joint {name!r}: uneven armature (along axes of the world in MuJoCo); set it to 0")
    return out


def _geoms(m, pairs: list[GeomPair]) -> list[str]:
    """Return the pairs of geoms whose contacts are not built."""
    missing = collections.Counter(what_is_missing(m, pair) for pair in pairs)
    out = [
        f"{count} pair{'s' * (count > 1)} of geoms of the types {types} that can touch"
        for types, count in missing.items()
        if types is not None
    ]
    if any(pair.adhesion for pair in pairs):
        out.append("adhesion of geoms")
    touching = sorted({g for pair in pairs for g in (pair.geom1, pair.geom2)})
    for name in ("geom_surfacevel",):
        if hasattr(m, name) and np.any(getattr(m, name)[touching]):
            out.append("surface velocity of geoms")
    return out


def what_is_missing(m, pair: GeomPair) -> str | None:
    """Return the types of a pair of geoms of an `mjModel` whose contacts cannot be those of MuJoCo, with the flag for
    which they cannot; None if they are."""
    names = f"{pair.type1.name.lower()} and {pair.type2.name.lower()}"
    if not is_built(*pair.kinds):
        return names
    for flag, concerns in (("nativeccd", is_searched), ("multiccd", has_several_contacts)):
        if concerns(*pair.kinds) and is_disabled(m, flag):
            return f'{names}, with <flag {flag}="disable"/>,'
    grid = shapes_of_pair(m, pair)[0][0] if pair.type1 == GeomType.HFIELD else None
    if isinstance(grid, Grid) and grid.prisms > MOST_PRISMS:
        return f"{names}, of which the second can be over more than {MOST_PRISMS} triangles,"
    return None
