"""Pinocchio and MuJoCo as independent implementations, with the exact change of conventions."""

import dataclasses

import jax
import mujoco
import numpy as np
import pinocchio as pin

from jaxdyn import Model
from jaxdyn.io import to_mjcf


def relative_error(value, expected) -> float:
    """The largest difference divided by the largest expected magnitude of the same state; the worst of all states."""
    value, expected = np.asarray(value, np.float64), np.asarray(expected, np.float64)
    assert value.shape == expected.shape, (value.shape, expected.shape)
    axes = tuple(range(1, expected.ndim))
    scale = np.abs(expected).max(axis=axes, initial=0.0) if axes else np.abs(expected)
    difference = np.abs(value - expected).max(axis=axes, initial=0.0) if axes else np.abs(value - expected)
    assert np.isfinite(difference).all()
    return float((difference / np.maximum(scale, 1e-12)).max())


def motion_to_se3(placement) -> pin.SE3:
    """Convert a position and a quaternion `w x y z`."""
    w, x, y, z = (float(c) for c in placement[3:])
    return pin.SE3(pin.Quaternion(w, x, y, z).matrix(), np.asarray(placement[:3], np.float64))


def to_pinocchio(model: Model, *, universal_as_chain: bool = False) -> pin.Model:
    """Return the same tree in Pinocchio, joint by joint and in the same order. Cylindrical and planar joints become
    chains; universal joints do with `universal_as_chain`."""
    # Rows of JAX arrays would each be a program.
    model = jax.tree.map(np.asarray, model)
    out, topology = pin.Model(), model.topology
    out.gravity.linear = np.asarray(model.gravity, np.float64)
    axes = np.zeros((model.nv, 3))
    axes[topology.axis_dofs] = np.asarray(model.joint_axis)
    axes /= np.maximum(np.linalg.norm(axes, axis=1, keepdims=True), 1e-300)
    ids, pitches = {-1: 0}, list(np.asarray(model.joint_pitch, np.float64))
    for i, name in enumerate(topology.joint_names):
        dofs = range(topology.v_starts[i], topology.v_starts[i + 1])
        a = [axes[d] for d in dofs]
        chains = {
            "revolute": lambda a=a: [pin.JointModelRevoluteUnaligned(a[0])],
            "continuous": lambda a=a: [pin.JointModelRevoluteUnaligned(a[0])],
            "prismatic": lambda a=a: [pin.JointModelPrismaticUnaligned(a[0])],
            "helical": lambda a=a: [pin.JointModelHelicalUnaligned(*a[0], pitches.pop(0))],
            "cylindrical": lambda a=a: [pin.JointModelPrismaticUnaligned(a[0]), pin.JointModelRevoluteUnaligned(a[1])],
            "universal": lambda a=a: (
                [pin.JointModelRevoluteUnaligned(axis) for axis in a]
                if universal_as_chain
                else [pin.JointModelUniversal(a[0], a[1])]
            ),
            "planar": lambda a=a: [
                pin.JointModelPrismaticUnaligned(a[0]),
                pin.JointModelPrismaticUnaligned(a[1]),
                pin.JointModelRevoluteUnaligned(a[2]),
            ],
            "ball": lambda: [pin.JointModelSpherical()],
            "free": lambda: [pin.JointModelFreeFlyer()],
        }
        parent, placement = ids[topology.parents[i]], motion_to_se3(model.joint_placement[i])
        for k, joint in enumerate(chains[topology.joint_types[i]]()):
            parent = out.addJoint(parent, joint, placement, f"{name}_{k}")
            placement = pin.SE3.Identity()
        ids[i] = parent
        p = np.asarray(model.inertial_parameters[i], np.float64)
        out.appendBodyToJoint(parent, pin.Inertia.FromDynamicParameters(p), pin.SE3.Identity())
        out.addFrame(pin.Frame(topology.body_names[i], parent, pin.SE3.Identity(), pin.FrameType.BODY))
    carried = zip(topology.frame_names, topology.frame_bodies, model.frame_placement, strict=True)
    for name, body, placement in carried:
        if not out.existFrame(name):
            out.addFrame(pin.Frame(name, ids[body], motion_to_se3(placement), pin.FrameType.OP_FRAME))
    out.armature = np.asarray(model.armature, np.float64)
    return out


@dataclasses.dataclass
class PinocchioOracle:
    """Pinocchio's results in the conventions and the order of `model`; joints are matched by name."""

    model: Model
    pin_model: pin.Model

    def __post_init__(self):
        self.data = self.pin_model.createData()
        names = list(self.pin_model.names)
        # Trees made by `to_pinocchio` keep the order; robots from files have joints of the same name.
        self.by_name = all(n in names for n in self.model.joint_names)
        if not self.by_name:
            assert self.pin_model.nv == self.model.nv
            self.v_rows = np.arange(self.model.nv)
            return
        rows = []
        for name in self.model.joint_names:
            joint = self.pin_model.joints[names.index(name)]
            rows.extend(range(joint.idx_v, joint.idx_v + joint.nv))
        self.v_rows = np.array(rows)
        assert len(rows) == self.pin_model.nv

    def q(self, q) -> np.ndarray:
        """Convert `w x y z` to `x y z w`, and an angle to cosine and sine where Pinocchio has them."""
        q = np.asarray(q, np.float64)
        topology, out, start = self.model.topology, pin.neutral(self.pin_model), 0
        for i, name in enumerate(topology.joint_names):
            part = q[topology.q_starts[i] : topology.q_starts[i + 1]]
            kind = topology.joint_types[i]
            if kind == "free":
                part = np.concatenate([part[:3], part[4:], part[3:4]])
            elif kind == "ball":
                part = np.concatenate([part[1:], part[:1]])
            if self.by_name:
                joint = self.pin_model.joints[list(self.pin_model.names).index(name)]
                start = joint.idx_q
                if joint.nq == 2 and joint.nv == 1:
                    part = np.array([np.cos(part[0]), np.sin(part[0])])
            out[start : start + len(part)] = part
            start += len(part)
        return out

    def v(self, v) -> np.ndarray:
        out = np.zeros(self.pin_model.nv)
        out[self.v_rows] = np.asarray(v, np.float64)
        return out

    def rnea(self, q, v, a):
        return pin.rnea(self.pin_model, self.data, self.q(q), self.v(v), self.v(a))[self.v_rows]

    def aba(self, q, v, tau):
        return pin.aba(self.pin_model, self.data, self.q(q), self.v(v), self.v(tau))[self.v_rows]

    def crba(self, q):
        M = pin.crba(self.pin_model, self.data, self.q(q))
        M = np.triu(M) + np.triu(M, 1).T
        return M[np.ix_(self.v_rows, self.v_rows)]

    def nonlinear_effects(self, q, v):
        return pin.nonLinearEffects(self.pin_model, self.data, self.q(q), self.v(v))[self.v_rows]

    def frame_jacobian(self, q, frame: str, reference):
        number = self.pin_model.getFrameId(frame)
        assert number < self.pin_model.nframes, frame
        return pin.computeFrameJacobian(self.pin_model, self.data, self.q(q), number, reference)[:, self.v_rows]

    def frame_placement(self, q, frame: str) -> pin.SE3:
        pin.framesForwardKinematics(self.pin_model, self.data, self.q(q))
        return self.data.oMf[self.pin_model.getFrameId(frame)].copy()

    def center_of_mass(self, q):
        return pin.centerOfMass(self.pin_model, self.data, self.q(q)).copy()

    def potential_energy(self, q):
        return pin.computePotentialEnergy(self.pin_model, self.data, self.q(q))


@dataclasses.dataclass
class MujocoOracle:
    """MuJoCo's results in the conventions of `model`; MuJoCo loads MJCF that the library writes."""

    model: Model

    def __post_init__(self):
        self.mj = mujoco.MjModel.from_xml_string(to_mjcf(self.model, limits=False, actuators=(), shapes=()))
        self.mj.opt.disableflags |= mujoco.mjtDisableBit.mjDSBL_CONTACT | mujoco.mjtDisableBit.mjDSBL_CONSTRAINT
        self.data = mujoco.MjData(self.mj)
        free = [i for i, t in enumerate(self.model.topology.joint_types) if t == "free"]
        self.free = [(self.model.topology.q_starts[i], self.model.topology.v_starts[i]) for i in free]

    def _set(self, q, v):
        """Set the state. MuJoCo has the linear velocity of a free joint in world axes: `v_ours = J v_theirs`, so forces
        change by `J^T`, and accelerations gain `[-w x R^T v; 0]`."""
        q, v = np.asarray(q, np.float64), np.asarray(v, np.float64)
        J, extra = np.eye(self.model.nv), np.zeros(self.model.nv)
        for at_q, at_v in self.free:
            w, x, y, z = q[at_q + 3 : at_q + 7]
            R = pin.Quaternion(w, x, y, z).matrix()
            J[at_v : at_v + 3, at_v : at_v + 3] = R.T
            extra[at_v : at_v + 3] = -np.cross(v[at_v + 3 : at_v + 6], v[at_v : at_v + 3])
        self.data.qpos[:] = q
        self.data.qvel[:] = J.T @ v
        return J, extra

    def crba(self, q):
        J, _ = self._set(q, np.zeros(self.model.nv))
        mujoco.mj_forward(self.mj, self.data)
        M = np.zeros((self.model.nv, self.model.nv))
        mujoco.mj_fullM(self.mj, self.data, M)
        # MuJoCo has the armature of a free joint in world axes, we in body axes: such tests must leave it out.
        return J @ M @ J.T

    def aba(self, q, v, tau):
        J, extra = self._set(q, v)
        self.data.qfrc_applied[:] = J.T @ np.asarray(tau, np.float64)
        mujoco.mj_forward(self.mj, self.data)
        return J @ self.data.qacc + extra

    def rnea(self, q, v, a):
        J, extra = self._set(q, v)
        self.data.qfrc_applied[:] = 0
        mujoco.mj_forward(self.mj, self.data)
        self.data.qacc[:] = J.T @ (np.asarray(a, np.float64) - extra)
        mujoco.mj_inverse(self.mj, self.data)
        return J @ self.data.qfrc_inverse
