"""Comparison with Pinocchio (URDF) and MuJoCo (MJCF): states, the dynamics of each library, and relative errors.

The answers of the others are in the coordinates of a model that was loaded from the same file.
"""

# pyright: reportAttributeAccessIssue=false
# (Pinocchio and MuJoCo are compiled modules without type stubs.)

from __future__ import annotations

import contextlib
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxdyn.algorithms import aba, crba, nonlinear_effects
from jaxdyn.model import Model

ANSWERS = ("mass matrix", "bias", "acceleration")


class States(NamedTuple):
    """`q [n, nq]`, and `v, tau [n, nv]`."""

    q: np.ndarray
    v: np.ndarray
    tau: np.ndarray


def random_states(model: Model, count: int, seed: int) -> States:
    """Draw states: coordinates uniform between finite limits, otherwise normal; rotations of any angle."""
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(count, model.nq))
    lower, upper = np.asarray(model.position_lower), np.asarray(model.position_upper)
    limited = np.isfinite(lower) & np.isfinite(upper)
    q[:, limited] = rng.uniform(lower[limited], upper[limited], (count, limited.sum()))
    for start in model.topology.quaternion_starts:
        quaternion = rng.normal(size=(count, 4))
        q[:, start : start + 4] = quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True)
    v, tau = rng.normal(size=(2, count, model.nv))
    return States(q, v, 10 * tau)


def dynamics(model: Model, states: States) -> dict[str, np.ndarray]:
    """Compute `mass matrix [n, nv, nv]`, `bias [n, nv]` (Coriolis, gravity, springs) and `acceleration [n, nv]`,
    without friction and without loops: MuJoCo holds them by springs, which random states would stretch."""

    def compute(model, q, v, tau):
        return crba(model, q), nonlinear_effects(model, q, v), aba(model, q, v, tau, joint_friction=False)

    return _answers(evaluate_once(compute, model.without_loops(), *states))


def evaluate_once(function: Callable, *arguments: Any) -> Any:
    """Return the values of a function that is compiled for one call. The compiler need not try hard: for a few states,
    most of the time is its own."""
    return jax.jit(function).lower(*arguments).compile({"xla_backend_optimization_level": 0})(*arguments)


def _answers(columns: Iterable) -> dict[str, np.ndarray]:
    return dict(zip(ANSWERS, map(np.asarray, columns), strict=True))


def largest_errors(values: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, float]:
    """Return for each answer the largest difference relative to the largest number of the state, at the worst state. A
    bias is compared with at least the torque of unit accelerations: below that it may consist of rounding only."""
    errors = {}
    for name, value in values.items():
        axes = tuple(range(1, value.ndim))
        difference = np.abs(value - expected[name]).max(axis=axes)
        scale = np.maximum(np.abs(expected[name]).max(axis=axes), 1e-12)
        if name == "bias":
            scale = np.maximum(scale, np.abs(expected["mass matrix"]).max(axis=(1, 2)))
        worst = (difference / scale).max()
        errors[name] = float(worst) if np.isfinite(worst) else float("inf")
    return errors


def allowed_errors(errors: dict[str, float], mass_matrices: np.ndarray, tolerance: float) -> dict[str, float]:
    """Return the largest error of each answer that counts as equal: the tolerance; for accelerations at least the
    change that rounding of the mass matrices `[n, nv, nv]` alone may cause."""
    solutions = max(tolerance, largest_condition(mass_matrices) * float(np.finfo(np.float64).eps))
    return {name: solutions if name == "acceleration" else tolerance for name in errors}


def largest_condition(mass_matrices: np.ndarray) -> float:
    """The largest condition number of the matrices `[n, nv, nv]`."""
    return float(np.linalg.cond(mass_matrices).max())


@contextlib.contextmanager
def without_mujoco_warnings() -> Iterator[None]:
    """Drop MuJoCo's warnings, which it would write into a file of the working directory, and give them back to whoever
    had them before."""
    import mujoco

    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def mujoco_model(path: Path) -> Any:
    """Load MuJoCo's model without constraints, contacts, friction and motors, which a model here does not have."""
    import mujoco

    with without_mujoco_warnings():
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
    """Compute mass matrix, bias and acceleration by MuJoCo, as `dynamics` returns them. `q` is `qpos`, number for
    number."""
    import mujoco

    data, rows = mujoco.MjData(mj), []
    for q, v, tau in zip(*states, strict=True):
        J = free_joint_axes(model, q)
        c = free_joint_turning(model, v)
        data.qpos[:], data.qvel[:], data.qfrc_applied[:] = q, J.T @ v, J.T @ tau
        with without_mujoco_warnings():
            mujoco.mj_forward(mj, data)
        M = np.zeros((mj.nv, mj.nv))
        mujoco.mj_fullM(mj, data, M)
        M = J @ M @ J.T
        rows.append((M, J @ (data.qfrc_bias - data.qfrc_passive) - M @ c, J @ data.qacc + c))
    return _answers(zip(*rows, strict=True))


def free_joint_axes(model: Model, q: np.ndarray) -> np.ndarray:
    """Return the matrix `J` with `v = J v_mujoco`. MuJoCo has the linear velocity of a free joint in world axes, so
    `J = diag(R^T, 1)` for each free joint. Forces turn with `J`, and accelerations are `J a_mujoco + c` with `c` of
    `free_joint_turning`."""
    import mujoco

    J = np.eye(model.nv)
    for k, i in _free_joints(model):
        R = np.zeros(9)
        mujoco.mju_quat2Mat(R, np.ascontiguousarray(q[k + 3 : k + 7]))
        J[i : i + 3, i : i + 3] = R.reshape(3, 3).T
    return J


def free_joint_turning(model: Model, v: np.ndarray) -> np.ndarray:
    """Return `[-w x v_linear, 0]` for each free joint, from its velocity in body axes."""
    c = np.zeros(model.nv)
    for _, i in _free_joints(model):
        c[i : i + 3] = -np.cross(v[i + 3 : i + 6], v[i : i + 3])
    return c


def _free_joints(model: Model) -> list[tuple[int, int]]:
    joints = model.topology
    return [(joints.q_starts[i], joints.v_starts[i]) for i, x in enumerate(joints.joint_types) if x == "free"]


def pinocchio_model(path: Path, free_base: bool) -> Any:
    """Load Pinocchio's model, whose joints have the same names; those that mimic others are independent."""
    import pinocchio as pin

    root = [pin.JointModelFreeFlyer()] if free_base else []
    return pin.buildModelFromUrdf(str(path), *root)


def pinocchio_answers(model: Model, reference: Any, path: Path, states: States) -> dict[str, np.ndarray]:
    """Compute mass matrix, bias and acceleration by Pinocchio, as `dynamics` returns them. Where joints mimic others,
    Pinocchio's independent joints are projected on the leaders: with `v_all = G v` and a constant `G`, the mass matrix
    is `G^T M G` and the bias `G^T h(q_all, G v)`."""
    import pinocchio as pin

    leaders = mimic_leaders(path)
    data, joints = reference.createData(), {x: reference.joints[reference.getJointId(x)] for x in reference.names}
    G = np.zeros((reference.nv, model.nv))
    for i, name in enumerate(model.joint_names):
        if i not in model.topology.leaders:
            G[joints[name].idx_v :][: joints[name].nv, model.v_index(name)] = np.eye(joints[name].nv)
    for name, (leader, multiplier, _) in leaders.items():
        G[joints[name].idx_v] = multiplier * G[joints[leader].idx_v]
    armature = np.diag(np.asarray(model.armature))
    rows = []
    for q, v, tau in zip(*states, strict=True):
        q_all = _configuration(model, reference, leaders, q)
        M = pin.crba(reference, data, q_all)
        M = G.T @ (np.triu(M) + np.triu(M, 1).T) @ G + armature
        h = G.T @ pin.nonLinearEffects(reference, data, q_all, G @ v)
        if model.topology.mimics or armature.any():
            a = np.linalg.solve(M, tau - h)
        else:
            a = G.T @ pin.aba(reference, data, q_all, G @ v, G @ tau)
        rows.append((M, h, a))
    return _answers(zip(*rows, strict=True))


def _configuration(model: Model, reference: Any, leaders: dict, q: np.ndarray) -> np.ndarray:
    """Convert `q`: quaternions become `x y z w`, the angle of a continuous joint becomes cosine and sine, and joints
    that mimic others get their coordinates."""
    import pinocchio as pin

    out = pin.neutral(reference)
    for i, joint in enumerate(model.joint_names):
        leader, multiplier, offset = leaders[joint] if i in model.topology.leaders else (joint, 1.0, 0.0)
        part = multiplier * q[model.q_index(leader)] + offset
        peer = reference.joints[reference.getJointId(joint)]
        if model.topology.joint_types[i] == "free":
            part = np.concatenate([part[:3], part[4:], part[3:4]])
        elif peer.nq == 2:
            part = np.array([np.cos(part[0]), np.sin(part[0])])
        out[peer.idx_q : peer.idx_q + peer.nq] = part
    return out


def mimic_leaders(path: Path) -> dict[str, tuple[str, float, float]]:
    """Read for each joint that mimics another the independent joint at the end of the line, multiplier and offset."""
    direct: dict[str, tuple[str, float, float]] = {}
    for joint in ET.parse(path).getroot().findall("joint"):
        if (mimic := joint.find("mimic")) is not None and joint.get("type") != "fixed":
            line = float(mimic.get("multiplier", 1)), float(mimic.get("offset", 0))
            direct[str(joint.get("name"))] = str(mimic.get("joint")), *line
    leaders = {}
    for name, (leader, multiplier, offset) in direct.items():
        # A circle, which the loader refuses, must end, too.
        for _ in direct:
            if leader in direct:
                leader, m, o = direct[leader]
                multiplier, offset = multiplier * m, multiplier * o + offset
        leaders[name] = leader, multiplier, offset
    return leaders
