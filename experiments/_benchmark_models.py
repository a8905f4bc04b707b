"""The robots of the benchmark: one canonical tree each, from which every library's own description is made.

A tree keeps the bodies, joints and numbers; `to_urdf`, `to_sdf` and `to_mujoco` write them down for others. States are
in this project's conventions (free joint: quaternion `w x y z`, velocities in body axes); `WorldLinear` converts to and
from those of libraries that have the linear velocity of a free joint in world axes.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import json
import re
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

FILES = {
    # Name: file in the package example-robot-data, whether the base is free, joints that are made fixed.
    "panda": ("panda_description/urdf/panda.urdf", False, ("panda_finger_joint1", "panda_finger_joint2")),
    "solo12": ("solo_description/robots/solo12.urdf", True, ()),
    "go2": ("go2_description/urdf/go2.urdf", True, ()),
    "talos_reduced": ("talos_data/robots/talos_reduced.urdf", True, ()),
    "ur5": ("ur_description/urdf/ur5_robot.urdf", False, ()),
    "hector": ("hector_description/robots/quadrotor_base.urdf", True, ()),
}
_CHAIN = re.compile(r"chain([1-9][0-9]*)")
GRAVITY = 9.81
TIMESTEP = 1e-3


class RobotError(ValueError):
    """A robot is unknown to the benchmark, or its file is missing."""


class UnsupportedError(Exception):
    """A library does not offer an operation."""


@dataclasses.dataclass(frozen=True)
class Inertial:
    """Mass, center of mass in the body's frame, rotational inertia about it (`xx, yy, zz, xy, xz, yz`)."""

    mass: float
    center: tuple[float, ...]
    inertia: tuple[float, ...]


@dataclasses.dataclass(frozen=True)
class Body:
    """A body behind a joint of one degree of freedom, placed in its parent (-1: the base)."""

    parent: int
    position: tuple[float, ...]
    quaternion: tuple[float, ...]
    joint: str
    axis: tuple[float, ...]
    inertial: Inertial

    def rotation(self) -> np.ndarray:
        return rotations(np.array([self.quaternion]))[0]


@dataclasses.dataclass(frozen=True)
class Tree:
    """A robot. Without a free base, the base is the world."""

    name: str
    base: Inertial | None
    bodies: tuple[Body, ...]

    @property
    def free(self) -> bool:
        return self.base is not None

    @property
    def nq(self) -> int:
        return len(self.bodies) + 7 * self.free

    @property
    def nv(self) -> int:
        return len(self.bodies) + 6 * self.free


# The inertia of a fixed base: some libraries do not read a link without inertia.
_FIXED_BASE = Inertial(1.0, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0, 0.0, 0.0))


class States(NamedTuple):
    """Arrays `[batch, n]`, float64 with values that single precision represents exactly."""

    q: np.ndarray
    v: np.ndarray
    tau: np.ndarray
    a: np.ndarray


def library(name: str) -> Any:
    """Import a module that may be absent and whose types checkers cannot see."""
    return importlib.import_module(name)


def is_robot(name: str) -> bool:
    """Tell whether a name is one of `FILES`, a chain, or the path of a URDF file."""
    return name in FILES or _CHAIN.fullmatch(name) is not None or _is_urdf(name)


def _is_urdf(name: str) -> bool:
    return name.endswith(".urdf") and Path(name).is_file()


def load_tree(name: str) -> Tree:
    """Return the tree of a robot of `FILES`, of `chainN`, N links in a row, or of a URDF file, with a fixed base."""
    if name in FILES or _is_urdf(name):
        return tree_of(name, model_of(name))
    match = _CHAIN.fullmatch(name)
    if match is None:
        raise RobotError(f"robot {name!r} is not known; there are {', '.join(FILES)}, and chainN with N joints")
    return chain(int(match[1]))


def tree_as_text(tree: Tree) -> str:
    """Return a tree as JSON, in which numbers keep all of their digits."""
    return json.dumps(dataclasses.asdict(tree))


def tree_from_text(text: str) -> Tree:
    """Return the tree that `tree_as_text` wrote."""

    def made(kind: type, fields: dict | None, **inner: Any) -> Any:
        # JSON has lists only.
        values = {k: tuple(x) if isinstance(x, list) else x for k, x in (fields or {}).items()}
        return None if fields is None else kind(**(values | inner))

    found = json.loads(text)
    bodies = tuple(made(Body, x, inertial=made(Inertial, x["inertial"])) for x in found["bodies"])
    return Tree(found["name"], made(Inertial, found["base"]), bodies)


def chain(n: int) -> Tree:
    """Return `n` boxes in a row, 0.1 m apart, hinged about z, y, x in turn, with random masses and sides."""
    rng = np.random.default_rng(1000 + n)
    axes = ((0.0, 0.0, 1.0), (0.0, 1.0, 0.0), (1.0, 0.0, 0.0))
    bodies = []
    for i in range(n):
        mass = float(rng.uniform(0.5, 1.5))
        sides = rng.uniform(0.04, 0.1, 3)
        moments = mass / 12 * (np.sum(sides**2) - sides**2)
        center = np.array([0.0, 0.0, 0.05]) + rng.uniform(-0.01, 0.01, 3)
        inertial = Inertial(mass, _floats(center), (*_floats(moments), 0.0, 0.0, 0.0))
        bodies.append(Body(i - 1, (0.0, 0.0, 0.1 if i else 0.0), (1.0, 0, 0, 0), "revolute", axes[i % 3], inertial))
    return Tree(f"chain{n}", None, tuple(bodies))


def model_of(name: str) -> Any:
    """Return one of `FILES`, or a URDF file, as a `jaxdyn.Model`. **Raises** `RobotError` where the file is not
    there."""
    import jaxdyn

    if _is_urdf(name):
        return jaxdyn.load_urdf(name)
    file, free, fixed = FILES[name]
    try:
        distribution = importlib.metadata.distribution("example-robot-data")
    except importlib.metadata.PackageNotFoundError:
        raise RobotError(f"the file of {name} is in the package example-robot-data, which is not installed") from None
    path = Path(str(distribution.locate_file("cmeel.prefix/share/example-robot-data/robots"))) / file
    if not path.is_file():
        raise RobotError(f"{path}: no such file; the installed example-robot-data has no {name}")
    root = ET.parse(path).getroot()
    for joint in root.iter("joint"):
        if joint.get("name") in fixed:
            joint.set("type", "fixed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return jaxdyn.load_urdf(ET.tostring(root, encoding="unicode"), free_base=free)


def tree_of(name: str, model: Any) -> Tree:
    """Return the tree of a `jaxdyn.Model` whose joints are revolute, continuous or prismatic; the first may be free."""
    kinds = list(model.topology.joint_types)
    free = kinds[0] == "free"
    placements = np.asarray(model.joint_placement, np.float64)
    parameters = np.asarray(model.inertial_parameters, np.float64)
    axes = np.asarray(model.joint_axis, np.float64)
    bodies = []
    for i in range(int(free), model.nb):
        if kinds[i] not in ("revolute", "continuous", "prismatic"):
            raise RobotError(f"{name}: joint {model.joint_names[i]!r} is {kinds[i]}, which the benchmark does not have")
        axis = axes[i - free]
        bodies.append(
            Body(
                int(model.topology.parents[i]) - int(free),
                _floats(placements[i, :3]),
                _floats(placements[i, 3:] / np.linalg.norm(placements[i, 3:])),
                "prismatic" if kinds[i] == "prismatic" else "revolute",
                _floats(axis / np.linalg.norm(axis)),
                _inertial(parameters[i]),
            )
        )
    return Tree(name, _inertial(parameters[0]) if free else None, tuple(bodies))


def _inertial(p: np.ndarray) -> Inertial:
    """Convert `m, mc, Ixx, Ixy, Iyy, Ixz, Iyz, Izz` about the frame's origin by the parallel axes."""
    m, c = p[0], p[1:4] / p[0]
    xx, xy, yy, xz, yz, zz = p[4:]
    I = np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]]) - m * (c @ c * np.eye(3) - np.outer(c, c))
    return Inertial(float(m), _floats(c), _floats((I[0, 0], I[1, 1], I[2, 2], I[0, 1], I[0, 2], I[1, 2])))


def _floats(values) -> tuple[float, ...]:
    return tuple(float(x) for x in values)


def states(tree: Tree, batch: int) -> States:
    """Return random states: angles, velocities, torques and accelerations in [-1, 1], and uniform rotations. Chains
    have half the angles, so that they do not fold up, and from 60 joints on a twentieth of the other numbers.

    A larger batch begins with the states of a smaller one.
    """
    is_chain = _CHAIN.fullmatch(tree.name) is not None
    reach = 0.5 if is_chain else 1.0
    rate = 0.05 if is_chain and tree.nv >= 60 else 1.0

    def uniform(seed: int, size: int, scale: float) -> np.ndarray:
        return scale * np.random.default_rng((seed, tree.nv)).uniform(-1, 1, (batch, size))

    q = uniform(0, tree.nq, reach)
    if tree.free:
        quaternion = np.random.default_rng((4, tree.nv)).normal(size=(batch, 4))
        q[:, 3:7] = quaternion / np.linalg.norm(quaternion, axis=1, keepdims=True)
    return States(*(_single(x) for x in (q, *(uniform(seed, tree.nv, rate) for seed in (1, 2, 3)))))


def rollout_states(tree: Tree, batch: int) -> States:
    """Return the states at which roll-outs begin: small velocities, no torques."""
    s = states(tree, batch)
    return States(s.q, _single(0.1 * s.v), np.zeros_like(s.tau), s.a)


def _single(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32).astype(np.float64)


def rotations(quaternions: np.ndarray) -> np.ndarray:
    """Return the rotation matrices `[n, 3, 3]` of unit quaternions `w x y z` `[n, 4]`."""
    w, u = quaternions[:, 0, None, None], quaternions[:, 1:]
    # R = (w^2 - u.u) 1 + 2 u u^T + 2 w [u]x
    cross = np.stack([np.cross(u, e) for e in np.eye(3)], axis=-1)
    return (w**2 - np.sum(u**2, axis=1)[:, None, None]) * np.eye(3) + 2 * u[:, :, None] * u[:, None] + 2 * w * cross


class WorldLinear:
    """Conversion of batches for libraries in which a free joint's velocity is `[linear, world; angular, body]`.

    It computes in NumPy: a process that times another library does not import this one.
    """

    def __init__(self, tree: Tree):
        self.free = tree.free

    def states(self, s: States) -> States:
        s = s._replace(q=unit(self.free, s.q))
        if not self.free:
            return s
        R = rotations(s.q[:, 3:7])
        v, tau, a = s.v.copy(), s.tau.copy(), s.a.copy()
        v[:, :3] = _apply(R, s.v[:, :3])
        tau[:, :3] = _apply(R, s.tau[:, :3])
        # d/dt (R v) = R (dv/dt + w x v)
        a[:, :3] = _apply(R, s.a[:, :3] + np.cross(s.v[:, 3:6], s.v[:, :3]))
        return States(s.q, v, tau, a)

    def acceleration(self, s: States, a: np.ndarray) -> np.ndarray:
        if not self.free:
            return a
        a, R = a.copy(), self._rotations(s.q)
        a[:, :3] = _apply(R.transpose(0, 2, 1), a[:, :3]) - np.cross(s.v[:, 3:6], s.v[:, :3])
        return a

    def torque(self, s: States, tau: np.ndarray) -> np.ndarray:
        if not self.free:
            return tau
        tau = tau.copy()
        tau[:, :3] = _apply(self._rotations(s.q).transpose(0, 2, 1), tau[:, :3])
        return tau

    def mass_matrix(self, s: States, M: np.ndarray) -> np.ndarray:
        if not self.free:
            return M
        M, R = M.copy(), self._rotations(s.q)
        M[:, :3] = R.transpose(0, 2, 1) @ M[:, :3]
        M[:, :, :3] = M[:, :, :3] @ R
        return M

    def _rotations(self, q: np.ndarray) -> np.ndarray:
        return rotations(unit(True, q)[:, 3:7])


def unit(free: bool, q: np.ndarray) -> np.ndarray:
    """Normalize quaternions to the last digit of double precision."""
    if not free:
        return q
    q = q.copy()
    q[:, 3:7] /= np.linalg.norm(q[:, 3:7], axis=1, keepdims=True)
    return q


def _apply(R: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.einsum("nij,nj->ni", R, x)


def link_name(i: int) -> str:
    """Return the name of a link. It has leading zeros, since some libraries order joints by name."""
    return "base" if i < 0 else f"link{i:04d}"


def joint_name(i: int) -> str:
    return f"joint{i:04d}"


def to_urdf(tree: Tree) -> str:
    robot = ET.Element("robot", name=tree.name)
    _urdf_link(robot, -1, tree.base or _FIXED_BASE)
    for i, body in enumerate(tree.bodies):
        _urdf_link(robot, i, body.inertial)
        joint = ET.SubElement(robot, "joint", name=joint_name(i), type=body.joint)
        ET.SubElement(joint, "parent", link=link_name(body.parent))
        ET.SubElement(joint, "child", link=link_name(i))
        ET.SubElement(joint, "origin", xyz=_text(body.position), rpy=_text(_roll_pitch_yaw(body.rotation())))
        ET.SubElement(joint, "axis", xyz=_text(body.axis))
        # Wide limits: some libraries refuse a revolute joint without them.
        ET.SubElement(joint, "limit", lower="-1000", upper="1000", effort="1000000", velocity="1000000")
    return ET.tostring(robot, encoding="unicode")


def _urdf_link(robot: ET.Element, i: int, inertial: Inertial) -> None:
    link = ET.SubElement(robot, "link", name=link_name(i))
    element = ET.SubElement(link, "inertial")
    ET.SubElement(element, "origin", xyz=_text(inertial.center), rpy="0 0 0")
    ET.SubElement(element, "mass", value=repr(inertial.mass))
    names = ("ixx", "iyy", "izz", "ixy", "ixz", "iyz")
    ET.SubElement(element, "inertia", {n: repr(x) for n, x in zip(names, inertial.inertia, strict=True)})


def to_sdf(tree: Tree) -> str:
    root = ET.Element("sdf", version="1.7")
    model = ET.SubElement(root, "model", name=tree.name)
    _sdf_link(model, -1, tree.base or _FIXED_BASE, None)
    if not tree.free:
        joint = ET.SubElement(model, "joint", name="to_world", type="fixed")
        ET.SubElement(joint, "parent").text = "world"
        ET.SubElement(joint, "child").text = link_name(-1)
    for i, body in enumerate(tree.bodies):
        joint = ET.SubElement(model, "joint", name=joint_name(i), type=body.joint)
        pose = ET.SubElement(joint, "pose", relative_to=link_name(body.parent))
        pose.text = f"{_text(body.position)} {_text(_roll_pitch_yaw(body.rotation()))}"
        ET.SubElement(joint, "parent").text = link_name(body.parent)
        ET.SubElement(joint, "child").text = link_name(i)
        axis = ET.SubElement(joint, "axis")
        ET.SubElement(axis, "xyz").text = _text(body.axis)
        limit = ET.SubElement(axis, "limit")
        ET.SubElement(limit, "lower").text, ET.SubElement(limit, "upper").text = "-1000", "1000"
        _sdf_link(model, i, body.inertial, joint_name(i))
    return ET.tostring(root, encoding="unicode")


def _sdf_link(model: ET.Element, i: int, inertial: Inertial, joint: str | None) -> None:
    link = ET.SubElement(model, "link", name=link_name(i))
    ET.SubElement(link, "pose", {} if joint is None else {"relative_to": joint}).text = "0 0 0 0 0 0"
    element = ET.SubElement(link, "inertial")
    ET.SubElement(element, "pose").text = f"{_text(inertial.center)} 0 0 0"
    ET.SubElement(element, "mass").text = repr(inertial.mass)
    moments = ET.SubElement(element, "inertia")
    for name, value in zip(("ixx", "iyy", "izz", "ixy", "ixz", "iyz"), inertial.inertia, strict=True):
        ET.SubElement(moments, name).text = repr(value)


def to_mujoco(tree: Tree) -> Any:
    """Return a compiled `mujoco.MjModel` without contacts and constraints; text would have a limit of depth."""
    mujoco = library("mujoco")
    spec = mujoco.MjSpec()
    spec.option.timestep = TIMESTEP
    spec.option.gravity = (0, 0, -GRAVITY)
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_EULER
    off = mujoco.mjtDisableBit
    spec.option.disableflags = int(off.mjDSBL_CONSTRAINT | off.mjDSBL_CONTACT | off.mjDSBL_EULERDAMP)
    spec.compiler.degree = False
    spec.compiler.autolimits = True
    handles = {-1: spec.worldbody}
    if tree.base is not None:
        handles[-1] = spec.worldbody.add_body(name=link_name(-1))
        handles[-1].add_freejoint(name="root")
        _mujoco_inertial(handles[-1], tree.base)
    for i, body in enumerate(tree.bodies):
        handle = handles[body.parent].add_body(name=link_name(i), pos=body.position, quat=body.quaternion)
        kind = mujoco.mjtJoint.mjJNT_SLIDE if body.joint == "prismatic" else mujoco.mjtJoint.mjJNT_HINGE
        handle.add_joint(name=joint_name(i), type=kind, axis=body.axis)
        _mujoco_inertial(handle, body.inertial)
        handles[i] = handle
    return spec.compile()


def _mujoco_inertial(handle: Any, inertial: Inertial) -> None:
    handle.explicitinertial = True
    handle.mass, handle.ipos, handle.fullinertia = inertial.mass, inertial.center, inertial.inertia


def _roll_pitch_yaw(R: np.ndarray) -> tuple[float, float, float]:
    """Return the angles of `R = Rz(yaw) Ry(pitch) Rx(roll)`."""
    cosine = float(np.hypot(R[0, 0], R[1, 0]))
    pitch = float(np.arctan2(-R[2, 0], cosine))
    if cosine > 1e-9:
        return float(np.arctan2(R[2, 1], R[2, 2])), pitch, float(np.arctan2(R[1, 0], R[0, 0]))
    return float(np.arctan2(-R[1, 2], R[1, 1])), pitch, 0.0


def _text(values) -> str:
    return " ".join(repr(float(x)) for x in values)
