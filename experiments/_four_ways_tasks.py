"""The robots of `four_ways`: their worlds under both laws of contact, and the same robot in MuJoCo."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn import Actuator, ContactLaw, ContactShape, MujocoLaw, Sensor, World
from jaxdyn.sysid import ContactNumbers, Positive


class Task(NamedTuple):
    """A robot, what of it is unknown, and where it shall go."""

    native: Any
    """The `mjModel`."""
    worlds: dict[str, World]
    """The worlds by the names of their laws of contact. Recordings and motions are of the first one."""
    free: tuple[Any, ...]
    """The numbers that are identified. A gear that is wrong would move the zero of a servo."""
    start: np.ndarray
    """The configuration."""
    middle: np.ndarray
    """Controls about which it is moved, `[nu]`."""
    reach: float | np.ndarray
    """The largest difference of the controls of recordings from `middle`."""
    substeps: int
    """Time steps in a period of the control."""
    periods: int
    """The length of the motion."""
    goal: Callable[[Any, Any, float], Any]
    """`goal(q, v, distance)`: what is to be zero at the end; its first element is the distance that is left, m."""
    distance: float
    """m"""
    drawn: World | None = None
    """The world that is drawn, if that is another one."""


def _firm() -> ContactLaw:
    return ContactLaw(stiffness=3e4, dissipation=1.0, stiction_velocity=1e-2)


def half_cheetah() -> Task:
    """Gymnasium's half cheetah runs."""
    import gymnasium

    mujoco = importlib.import_module("mujoco")

    path = f"{gymnasium.__path__[0]}/envs/mujoco/assets/half_cheetah.xml"
    world = jaxdyn.load_world(path)
    legs = world.model.joint_names[3:]
    free = Positive("damping", legs), Positive("armature", legs), Positive("gear"), ContactNumbers(geoms=["floor"])

    def goal(q: Any, v: Any, distance: float) -> Any:
        return jnp.stack([q[0] - distance, 0.3 * q[2]])

    return Task(
        mujoco.MjModel.from_xml_path(path),
        {"MujocoLaw": world, "ContactLaw": jaxdyn.load_world(path, law=_firm())},
        free,
        np.zeros(9),
        np.zeros(6),
        0.3,
        5,
        40,
        goal,
        2.0,
    )


def quadruped() -> Task:
    """Solo12 of its URDF file, with servos and an IMU, trots forward."""
    model = jaxdyn.load_urdf(robot_file("solo12"), free_base=True)
    legs, feet = model.joint_names[1:], [f"{leg}_FOOT" for leg in ("FL", "FR", "HL", "HR")]
    model = model.with_joint_friction(damping=dict.fromkeys(legs, 0.02)).with_armature(dict.fromkeys(legs, 5e-4))
    servos = [Actuator(joint, "position", kp=5.0, kv=0.1, control_range=(-3, 3)) for joint in legs]
    shapes = [ContactShape(foot, jaxdyn.Sphere(0.016)) for foot in feet]
    imu = [Sensor("accelerometer", link="base_link"), Sensor("gyro", link="base_link")]
    parts = {"actuators": servos, "sensors": imu, "timestep": 0.002}
    laws = {"MujocoLaw": MujocoLaw(), "ContactLaw": _firm()}
    bent = np.array([{"HAA": 0.0, "HFE": 0.7, "KFE": -1.4}[joint[3:]] for joint in legs])
    free = Positive("damping", legs), Positive("armature", legs), Positive("kp")
    text = _text(model, servos, shapes, '<geom type="plane"')

    def goal(q: Any, v: Any, distance: float) -> Any:
        return jnp.concatenate([jnp.stack([q[0] - distance, 3 * (q[2] - 0.25)]), q[4:7], 0.05 * v[:6]])

    return Task(
        importlib.import_module("mujoco").MjModel.from_xml_string(text),
        {name: World(model, shapes, law=law, **parts) for name, law in laws.items()},
        # In a world of a model each pair has its friction.
        (*free, ContactNumbers(geoms=[(foot, "ground") for foot in feet])),
        np.concatenate([[0, 0, 0.26, 1, 0, 0, 0], bent]),
        bent,
        0.2,
        10,
        40,
        goal,
        0.3,
        jaxdyn.load_world(text),
    )


def gripper() -> Task:
    """Franka's Panda, whose fingers an equality of the file couples, lifts its hand from a table and opens it."""
    mujoco = importlib.import_module("mujoco")

    with warnings.catch_warnings():
        # Of the attributes of <dynamics> that URDF does not have.
        warnings.simplefilter("ignore", jaxdyn.LeftOutWarning)
        model = jaxdyn.load_urdf(robot_file("panda")).spanning_tree()
    first, second = "panda_finger_joint1", "panda_finger_joint2"
    arm = model.joint_names[:7]
    model = model.with_coupling("fingers", second, first).with_joint_friction(damping=dict.fromkeys(arm, 1.0))
    model = model.with_armature(dict.fromkeys(arm, 0.1) | {first: 0.05, second: 0.05})
    model = model.with_joint_friction(damping={first: 1.0, second: 1.0})
    servos = [
        Actuator(joint, "position", kp=kp, kv=kp / 20, control_range=(-4, 4))
        for joint, kp in zip((*arm, first), (800.0,) * 4 + (200.0,) * 4, strict=True)
    ]
    # The inside of a finger's tip; the fingers of the file are meshes and boxes.
    shapes = [
        ContactShape(f"panda_{side}finger", jaxdyn.Sphere(0.012), (0, y, 0.042))
        for side, y in (("left", 0.012), ("right", -0.012))
    ]
    start = np.array([0, 0.2, 0, -2.1, 0, 2.3, 0.8, 0.02, 0.02])
    bare = mujoco.MjModel.from_xml_string(_text(model, servos, shapes, "<geom size='0.01'"))
    data = mujoco.MjData(bare)
    data.qpos = start
    mujoco.mj_kinematics(bare, data)
    # Links that are drawn touch nothing.
    tip = data.geom_xpos[np.flatnonzero(bare.geom_contype)[-1]]
    # The tips are 1 mm deep in the table.
    table = f'<geom name="table" type="box" size="0.3 0.3 0.02" pos="{tip[0]} {tip[1]} {tip[2] - 0.012 - 0.019}"'
    text = _text(model, servos, shapes, table, f'<sensor><jointpos joint="{first}"/></sensor>')
    worlds = {"MujocoLaw": jaxdyn.load_world(text), "ContactLaw": jaxdyn.load_world(text, law=_firm())}
    hand = model.body_names.index("panda_leftfinger")
    place = jaxdyn.forward_kinematics(model, start).translation[hand]

    def goal(q: Any, v: Any, distance: float) -> Any:
        now = jaxdyn.forward_kinematics(model, q).translation[hand]
        aim = place + jnp.array([0.0, distance, 0.5 * distance])
        return jnp.concatenate([jnp.linalg.norm(now - aim)[None], now - aim, q[7:8] - 0.03, 0.1 * v])

    return Task(
        mujoco.MjModel.from_xml_string(text),
        worlds,
        (Positive("damping"), Positive("armature", arm), Positive("kp"), ContactNumbers(geoms=["table"])),
        start,
        start[:8],
        np.append(np.full(7, 0.1), 0.01),
        10,
        40,
        goal,
        0.2,
    )


def robot_file(name: str) -> Path:
    """Return the URDF file of a robot in the package `example-robot-data`."""
    folder = importlib.metadata.distribution("example-robot-data").locate_file("cmeel.prefix/share/example-robot-data")
    files = {"solo12": "solo_description/robots/solo12.urdf", "panda": "panda_description/urdf/panda.urdf"}
    return Path(str(folder)) / "robots" / files[name]


def _text(model: Any, servos: Any, shapes: Any, ground: str, more: str = "") -> str:
    """Return a robot with 2 ms of `implicitfast` as an MJCF file, with a geom of the world that begins with `ground`,
    and more parts."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jaxdyn.RobotFileWarning)
        text = jaxdyn.to_mjcf(model, 0.002, actuators=servos, shapes=shapes)
    size = "" if "size" in ground else ' size="9 9 1"'
    text = text.replace("<worldbody>", f"<worldbody>{ground}{size}/>").replace("</mujoco>", f"{more}</mujoco>")
    return _with_links(text.replace('integrator="Euler"', 'integrator="implicitfast"'))


def _with_links(text: str) -> str:
    """Return a file with a capsule, which touches nothing, from each body to those that it carries, and to shapes that
    touch, to be drawn."""
    root = ElementTree.fromstring(text)
    for body in root.findall("worldbody//body"):
        for child in (*body.findall("body"), *body.findall("geom[@pos]")):
            place = child.get("pos", "0 0 0")
            length = np.linalg.norm(np.array(place.split(), float))
            if length > 0.03:
                capsule = {"type": "capsule", "fromto": f"0 0 0 {place}", "size": str(min(0.03, 0.1 * length))}
                ElementTree.SubElement(body, "geom", capsule | {"contype": "0", "conaffinity": "0", "mass": "0"})
    return ElementTree.tostring(root, encoding="unicode")


TASKS: dict[str, Callable[[], Task]] = {"half_cheetah": half_cheetah, "quadruped": quadruped, "gripper": gripper}
