"""States of MuJoCo's at which scenes are compared with it."""

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
    """`"initial"`, `"keyframe"`, `"random"`, or `"in motion"`."""
    qpos: np.ndarray
    qvel: np.ndarray
    act: np.ndarray
    ctrl: np.ndarray


def drawn_states(m, count: int, rng) -> Iterator[MujocoState]:
    """Yield the initial state and the keyframes of an `mjModel`, then `count` random states and as many in motion."""
    import mujoco

    d = mujoco.MjData(m)

    def now(kind: str) -> MujocoState:
        return MujocoState(kind, *(x.copy() for x in (d.qpos, d.qvel, d.act, d.ctrl)))

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
        mujoco.mj_resetData(m, d)
        if m.nkey and rng.random() < 0.5:
            mujoco.mj_resetDataKeyframe(m, d, int(rng.integers(m.nkey)))
        d.qvel[:] += 0.3 * rng.normal(size=m.nv)
        for control in random_controls(m, int(rng.integers(20, 200)), rng):
            d.ctrl[:] = control
            mujoco.mj_step(m, d)
        yield now("in motion")


def random_controls(m, steps: int, rng) -> np.ndarray:
    """Draw controls `[steps, nu]`, held for 20 steps each: uniform in their ranges, or within one where they have
    none."""
    limited = np.asarray(m.actuator_ctrllimited, bool)
    low, high = np.where(limited[:, None], m.actuator_ctrlrange, (-1.0, 1.0)).T
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
    d.qpos[:], d.qvel[:], d.act[:], d.ctrl[:] = case.qpos, case.qvel, case.act, case.ctrl
