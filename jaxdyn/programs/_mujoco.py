"""MuJoCo's answers for an MJCF file, in the coordinates of a model that was loaded from it."""

# pyright: reportAttributeAccessIssue=false
# (MuJoCo is a compiled module without type stubs.)

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn.model import Model
from jaxdyn.programs._compare import States


def reference(path: Path) -> Any:
    """MuJoCo's model, without what a model here leaves to others: contacts and other constraints, friction, motors."""
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
        # Under this one accelerations are difference quotients of a time step.
        mj.opt.integrator = mujoco.mjtIntegrator.mjINT_EULER
    return mj


def expected(model: Model, mj: Any, states: States) -> dict[str, np.ndarray]:
    """`q` is `qpos` number for number. MuJoCo has the linear velocity of a free joint in world axes: with
    `v = J v_mujoco`, `J = diag(R^T, 1)` of each, forces turn with `J`, and accelerations are `J a_mujoco + c`,
    `c = [-w x v_linear, 0]`.
    """
    import mujoco

    data = mujoco.MjData(mj)
    free = [i for i, kind in enumerate(model.topology.joint_types) if kind == "free"]
    at = [(model.topology.q_starts[i], model.topology.v_starts[i]) for i in free]
    found: dict[str, list] = {"mass matrix": [], "bias": [], "acceleration": []}
    for q, v, tau in zip(states.q, states.v, states.tau, strict=True):
        J, c = np.eye(model.nv), np.zeros(model.nv)
        for at_q, at_v in at:
            R = np.zeros(9)
            mujoco.mju_quat2Mat(R, q[at_q + 3 : at_q + 7])
            J[at_v : at_v + 3, at_v : at_v + 3] = R.reshape(3, 3).T
            c[at_v : at_v + 3] = -np.cross(v[at_v + 3 : at_v + 6], v[at_v : at_v + 3])
        data.qpos[:], data.qvel[:], data.qfrc_applied[:] = q, J.T @ v, J.T @ tau
        mujoco.mj_forward(mj, data)
        M = np.zeros((mj.nv, mj.nv))
        mujoco.mj_fullM(mj, data, M)
        M = J @ M @ J.T
        found["mass matrix"].append(M)
        found["bias"].append(J @ (data.qfrc_bias - data.qfrc_passive) - M @ c)
        found["acceleration"].append(J @ data.qacc + c)
    return {name: np.array(values) for name, values in found.items()}
