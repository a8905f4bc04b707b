"""States of MuJoCo's at which worlds are compared with it."""

# pyright: reportAttributeAccessIssue=false
# (MuJoCo is a compiled module without type stubs.)

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

_HELD = 20
"""The time steps for which random controls are held."""


class MujocoState(NamedTuple):
    """A state as MuJoCo has it."""

    kind: str
    """`"initial"`, `"keyframe"`, `"random"`, `"in motion"`, or `"at limits"`."""
    qpos: np.ndarray
    qvel: np.ndarray
    act: np.ndarray
    ctrl: np.ndarray
    active: np.ndarray
    """True for the equalities that act."""


def drawn_states(m, count: int, rng) -> Iterator[MujocoState]:
    """Yield the initial state and the keyframes of an `mjModel`, then `count` random states, as many in motion, and as
    many at limits."""
    import mujoco

    d = mujoco.MjData(m)

    def now(kind: str) -> MujocoState:
        return MujocoState(kind, *(x.copy() for x in (d.qpos, d.qvel, d.act, d.ctrl, d.eq_active)))

    yield now("initial")
    for i in range(m.nkey):
        mujoco.mj_resetDataKeyframe(m, d, i)
        mujoco.mj_normalizeQuat(m, d.qpos)
        yield now("keyframe")
    for _ in range(count):
        mujoco.mj_resetData(m, d)
        displace(m, d, 0.1 * rng.normal(size=m.nv))
        d.qvel[:] = rng.normal(size=m.nv)
        d.ctrl[:] = random_controls(m, 1, rng)[0]
        yield now("random")
    for _ in range(count):
        _move(m, d, rng, int(rng.integers(20, 200)))
        yield now("in motion")
    for _ in range(count):
        # Bodies touch in motion; afterwards nothing is near balance.
        _move(m, d, rng, int(rng.integers(0, 100)))
        _push_to_limits(m, d, rng)
        yield now("at limits")


def _move(m, d, rng, steps: int) -> None:
    """Move from the initial state or a keyframe under random controls."""
    import mujoco

    mujoco.mj_resetData(m, d)
    if m.nkey and rng.random() < 0.5:
        mujoco.mj_resetDataKeyframe(m, d, int(rng.integers(m.nkey)))
    d.qvel[:] += 0.3 * rng.normal(size=m.nv)
    for control in random_controls(m, steps, rng):
        d.ctrl[:] = control
        mujoco.mj_step(m, d)


def _push_to_limits(m, d, rng) -> None:
    """Move joints up to their limits and a little beyond, which violates equalities, too; draw fast and slow motions,
    controls and activations at their limits, beyond and far from them, and equalities that act."""
    size = np.full(m.nv, 0.2)
    # Contacts that overlap deeply are not unique.
    size[[i for j in np.flatnonzero(m.jnt_type == 0) for i in range(m.jnt_dofadr[j], m.jnt_dofadr[j] + 6)]] = 0.01
    displace(m, d, size * rng.normal(size=m.nv))
    limited = np.flatnonzero(np.asarray(m.jnt_limited, bool) & (m.jnt_type >= 2) & (rng.random(m.njnt) < 0.5))
    low, high = m.jnt_range[limited].T
    # At a limit itself, rounding would say whether it acts.
    d.qpos[m.jnt_qposadr[limited]] = _beyond(low, high, 0.05, rng, ends=False)
    d.qvel[:] = 10 ** rng.uniform(-1, 1) * rng.normal(size=m.nv)
    low, high = _ranges(m.actuator_ctrllimited, m.actuator_ctrlrange, 10 ** rng.uniform(-1, 2))
    d.ctrl[:] = _beyond(low, high, 0.5, rng)
    low, high = _ranges(m.actuator_actlimited, m.actuator_actrange, 1.0)
    stateful = np.flatnonzero(m.actuator_actnum == 1)
    d.act[m.actuator_actadr[stateful]] = _beyond(low, high, 0.0, rng)[stateful]
    d.eq_active[:] = rng.random(m.neq) < 0.7


def _beyond(low: np.ndarray, high: np.ndarray, share: float, rng, *, ends: bool = True) -> np.ndarray:
    """Draw numbers of ranges: their `ends`, beyond them by up to a share of their lengths, or any."""
    kind, more = rng.integers(0 if ends else 2, 5, size=low.shape), rng.random(low.shape)
    beyond = share * more * (high - low)
    return np.choose(kind, [low, high, low - beyond, high + beyond, low + more * (high - low)])


def _ranges(limited, ranges: np.ndarray, size: float) -> np.ndarray:
    """Return the lower and the upper ends of ranges; minus and plus a size of those that do not limit."""
    return np.where(np.asarray(limited, bool)[:, None], ranges, (-size, size)).T


def random_controls(m, steps: int, rng) -> np.ndarray:
    """Draw controls `[steps, nu]`, held for 20 steps each: uniform in their ranges, or within one where they have
    none."""
    low, high = _ranges(m.actuator_ctrllimited, m.actuator_ctrlrange, 1.0)
    return rng.uniform(low, high, (steps // _HELD + 1, m.nu)).repeat(_HELD, axis=0)[:steps]


def displace(m, d, displacement: np.ndarray) -> None:
    """Move the positions of MuJoCo's data by a displacement in the tangent space."""
    import mujoco

    qpos = d.qpos.copy()
    mujoco.mj_integratePos(m, qpos, np.ascontiguousarray(displacement), 1.0)
    d.qpos[:] = qpos


def place(m, d, case: MujocoState) -> None:
    """Set MuJoCo's data to a state, with nothing from before."""
    import mujoco

    mujoco.mj_resetData(m, d)
    d.qpos[:], d.qvel[:], d.act[:], d.ctrl[:], d.eq_active[:] = case[1:]
