"""Changes of MuJoCo's states, and of how it searches for contacts, that say how much its answers hang on rounding."""

# pyright: reportAttributeAccessIssue=false
# (MuJoCo is a compiled module without type stubs.)

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from jaxdyn.io.mjcf import enum_name

_OTHER_SEARCHES = (1e-15, 1e-13, 1e-12)
"""The tolerances with which MuJoCo's general routine for contacts may end at another place of the same contact."""
_RESOLVED = 1e-7
"""The root of its tolerance in comparisons, 1e-14: the angle up to which it resolves the directions of contacts (rad),
because distances change by its square. Places move by this angle times the size of the smaller geom."""
_SEARCHED = ("ellipsoid", "cylinder", "mesh", "hfield")
"""The types of geoms whose contacts with others than planes this routine finds."""
_ROUND = ("sphere", "capsule")
"""The types whose contacts with height fields it finds to rounding, while their centers and axes are outside."""


def _searched(m) -> np.ndarray:
    """Return which geoms have contacts that MuJoCo's general routine looks for."""
    return np.array([enum_name("mjtGeom", x) in _SEARCHED for x in m.geom_type], bool)


def perturbed(m, draws: int) -> Iterator[None]:
    """Yield once for each time that a state is to be changed: `draws` times, and with each of the other tolerances of
    the search for contacts, which an `mjModel` has until the next one."""
    # Not in copies of the model: each takes a second where meshes and textures are large.
    own = float(m.opt.ccd_tolerance)
    try:
        for tolerance in [own] * draws + list(_OTHER_SEARCHES if _searched(m).any() else ()):
            m.opt.ccd_tolerance = tolerance
            yield
    finally:
        m.opt.ccd_tolerance = own


def forward_with_turned_contacts(m, d, rng) -> None:
    """Compute accelerations and sensors as `mj_forward` does, with the contacts of the general routine turned at random
    by the angle that it resolves."""
    import mujoco

    mujoco.mj_fwdPosition(m, d)
    mujoco.mj_sensorPos(m, d)
    types, searched = [enum_name("mjtGeom", x) for x in m.geom_type], _searched(m)
    turned = False

    def is_searched(contact) -> bool:
        if (contact.geom < 0).any() or not searched[contact.geom].any():
            return False
        one, two = (types[g] for g in contact.geom)
        shallow = one == "hfield" and two in _ROUND and contact.dist > -m.geom_size[contact.geom[1], 0]
        return "plane" not in (one, two) and not shallow

    for contact in d.contact[: d.ncon]:
        if is_searched(contact):
            turn = _RESOLVED * rng.normal(size=3)
            contact.frame[:] += np.cross(turn, contact.frame.reshape(3, 3)).ravel()
            contact.pos[:] += _RESOLVED * m.geom_rbound[contact.geom].min() * rng.normal(size=3)
            turned = True
    if turned:
        mujoco.mj_makeConstraint(m, d)
        # Sweeps against slip need the islands of these constraints.
        mujoco.mj_island(m, d)
        mujoco.mj_projectConstraint(m, d)
    forward_from_positions(m, d)


def forward_from_positions(m, d) -> None:
    """Compute what `mj_forward` does once all that depends on positions alone is there."""
    import mujoco

    mujoco.mj_fwdVelocity(m, d)
    mujoco.mj_sensorVel(m, d)
    mujoco.mj_fwdActuation(m, d)
    mujoco.mj_fwdAcceleration(m, d)
    mujoco.mj_fwdConstraint(m, d)
    mujoco.mj_sensorAcc(m, d)
