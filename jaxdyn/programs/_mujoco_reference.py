"""MuJoCo's dynamics for an MJCF file, in the coordinates of a model that was loaded from it."""

# pyright: reportAttributeAccessIssue=false
# (MuJoCo is a compiled module without type stubs.)

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn.model import Model
from jaxdyn.programs._comparison import ANSWERS, States


def mujoco_model(path: Path) -> Any:
    """Load MuJoCo's model without constraints, contacts, friction and motors, which a model here does not have."""
    import mujoco

    # It would write its warnings into a file of the working directory.
    mujoco.set_mju_user_warning(lambda text: None)
    mj = mujoco.MjModel.from_xml_path(str(path))
    bits = mujoco.mjtDisableBit
    mj.opt.disableflags |= bits.mjDSBL_CONTACT | bits.mjDSBL_CONSTRAINT | bits.mjDSBL_ACTUATION
    mj.dof_damping[:] = 0
    for field in ("actuator_damping", "tendon_damping"):
        if hasattr(mj, field):
            getattr(mj, field)[:] = 0
    if mj.opt.integrator == getattr(mujoco.mjtIntegrator, "mjINT_DISCRETE", -1):
        # Under this integrator accelerations are difference quotients of a time step.
        mj.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
    return mj


def mujoco_answers(model: Model, mj: Any, states: States) -> dict[str, np.ndarray]:
    """Compute mass matrix, bias and acceleration by MuJoCo, as `dynamics` returns them.

    `q` is `qpos` number for number. MuJoCo has the linear velocity of a free joint in world axes: with `v = J v_mujoco`
    and `J = diag(R^T, 1)` for each free joint, forces turn with `J`, and accelerations are `J a_mujoco + c`,
    `c = [-w x v_linear, 0]`.
    """
    import mujoco

    data = mujoco.MjData(mj)
    topology = model.topology
    free = [
        (topology.q_starts[i], topology.v_starts[i]) for i, kind in enumerate(topology.joint_types) if kind == "free"
    ]
    rows = []
    for q, v, tau in zip(states.q, states.v, states.tau, strict=True):
        J, c = np.eye(model.nv), np.zeros(model.nv)
        for k, i in free:
            R = np.zeros(9)
            mujoco.mju_quat2Mat(R, q[k + 3 : k + 7])
            J[i : i + 3, i : i + 3] = R.reshape(3, 3).T
            c[i : i + 3] = -np.cross(v[i + 3 : i + 6], v[i : i + 3])
        data.qpos[:], data.qvel[:], data.qfrc_applied[:] = q, J.T @ v, J.T @ tau
        mujoco.mj_forward(mj, data)
        M = np.zeros((mj.nv, mj.nv))
        mujoco.mj_fullM(mj, data, M)
        M = J @ M @ J.T
        rows.append((M, J @ (data.qfrc_bias - data.qfrc_passive) - M @ c, J @ data.qacc + c))
    return dict(zip(ANSWERS, map(np.array, zip(*rows, strict=True)), strict=True))
