"""Parts of MJCF files that models leave out: contacts, limits, servos, which MuJoCo's dynamics have; and the rest."""

from __future__ import annotations

import numpy as np

from jaxdyn.io.mjcf import _compiled as mj
from jaxdyn.io.mjcf._equality_constraints import acting_equalities
from jaxdyn.io.robot_files import LeftOut

_MANY = 2000
"""For more classes of geoms than this, pairs are not looked at one by one."""


def parts_left_out(m, names: mj.Names) -> list[LeftOut]:
    """Return what is left out besides the parts that `load_mjcf` refuses, by kind; some kinds may be empty."""
    constraints = not mj.is_disabled(m, "constraint")
    limits, rubs = (constraints and not mj.is_disabled(m, flag) for flag in ("limit", "frictionloss"))

    def of(kind: str, numbers) -> tuple[str, ...]:
        return tuple(repr(mj.object_name(m, kind, int(i))) for i in numbers)

    def joints(numbers) -> tuple[str, ...]:
        return tuple(repr(names.joints[int(i)]) for i in numbers)

    def equalities(numbers) -> tuple[str, ...]:
        return tuple(repr(names.equalities[int(i)]) for i in numbers)

    ranged = np.flatnonzero(np.asarray(m.jnt_limited, bool) & (m.jnt_type != mj.BALL)) if limits else ()
    rubbing = np.unique(m.dof_jntid[m.dof_frictionloss > 0]) if rubs else ()
    (rigid, refused), tendons = acting_equalities(m), range(m.ntendon)
    idle = np.setdiff1d(np.arange(m.neq), [*rigid, *refused])
    servos, given = _servos(m)
    why = "they start inactive, are disabled in <option>, or have both ends in one body"
    law = "the model has smooth Coulomb friction instead; see Model.friction_velocity"
    return [
        LeftOut(
            "geoms that may touch others", of("geom", _touching_geoms(m)), True, "jaxdyn.load_contact_shapes reads them"
        ),
        LeftOut("ranges of joints", joints(ranged), True, "position_lower and position_upper, which dynamics ignore"),
        LeftOut("actuators with torque at zero control", of("actuator", servos), True, f"servos and the like, {given}"),
        LeftOut("springs of equality constraints (solref, solimp)", equalities(rigid), True, "the model's are rigid"),
        LeftOut("actuators of other kinds", of("actuator", _others(m, servos)), False, given),
        LeftOut("friction loss as a constraint", joints(rubbing), False, law),
        LeftOut("equality constraints that do not act", equalities(idle), False, why),
        LeftOut("tendons", of("tendon", tendons), False, "unless they act they measure and transmit"),
        LeftOut("sensors", of("sensor", range(m.nsensor)), False),
        LeftOut("keyframes", of("key", range(m.nkey)), False),
        LeftOut("cameras", of("camera", range(m.ncam)), False),
        LeftOut("lights", of("light", range(m.nlight)), False),
    ]


def _servos(m) -> tuple[np.ndarray, str]:
    """Return the actuators that pull without control, and how their torque comes to the model."""
    count = mj.actuator_count(m)
    given = "the argument tau is the torque of all; load_mjcf_actuators reads them"
    if mj.is_disabled(m, "actuation") or not count:
        return np.zeros(0, int), given
    biased = [mj.actuator_types(m, i)[1] == "affine" and bool(np.any(m.actuator_biasprm[i][:3])) for i in range(count)]
    return np.flatnonzero(biased), given


def _others(m, servos: np.ndarray) -> np.ndarray:
    return np.setdiff1d(np.arange(mj.actuator_count(m)), servos)


def _touching_geoms(m) -> np.ndarray:
    """Return the geoms that contact of another body may push: by their bits `contype` and `conaffinity`, unless they
    are on the same body or on a body and its parent (MuJoCo's manual, chapter Computation, Collision detection); and
    those of explicit pairs."""
    pairs = np.unique(np.concatenate([m.pair_geom1, m.pair_geom2]))
    if mj.is_disabled(m, "contact") or mj.is_disabled(m, "constraint") or not m.ngeom:
        return np.zeros(0, int)
    weld = m.body_weldid[m.geom_bodyid]
    rows = np.stack([weld, m.geom_contype, m.geom_conaffinity], axis=1)
    classes, of_geom = np.unique(rows, axis=0, return_inverse=True)
    body, types, affinities = classes.T
    if len(classes) > _MANY:
        touches = (types != 0) | (affinities != 0)
    else:
        parent = m.body_weldid[m.body_parentid[body]]
        related = (body[:, None] == parent) & (body[:, None] != 0)
        if mj.is_disabled(m, "filterparent"):
            related[:] = False
        match = (types[:, None] & affinities) | (types & affinities[:, None])
        touches = ((match != 0) & (body[:, None] != body) & ~related & ~related.T).any(axis=1)
    return np.union1d(pairs, np.flatnonzero(touches[of_geom.ravel()]))
