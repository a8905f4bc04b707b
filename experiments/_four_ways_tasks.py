"""The robots of `four_ways`: their worlds under both laws of contact, and the same robot in MuJoCo."""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jaxdyn
from jaxdyn import Actuator, BodyInertia, ContactLaw, ContactShape, Joint, Mimic, MujocoLaw, Sensor, World, samples
from jaxdyn.sysid import ContactNumbers, Positive


class Task(NamedTuple):
    """A robot, what of it is unknown, and where it shall go."""

    native: Any
    """The `mjModel`."""
    worlds: dict[str, World]
    """The worlds by the names of their laws of contact. Recordings and motions are of the first one."""
    free: tuple[Any, ...]
    """The numbers that are identified."""
    start: np.ndarray
    """The configuration."""
    middle: np.ndarray
    """Controls about which it is moved, `[nu]`."""
    reach: float
    """The largest difference of the controls of recordings from `middle`."""
    substeps: int
    """Time steps in a period of the control."""
    periods: int
    """The length of the motion."""
    goal: Callable[[Any, Any, float], Any]
    """`goal(q, v, distance)`: what is to be zero at the end; its first element is the distance that is left, m."""
    distance: float
    """m"""
    native_q: Callable[[np.ndarray], np.ndarray] = np.asarray
    """MuJoCo's `qpos` for a configuration."""
    own: tuple[int, ...] = ()
    """The coordinates of MuJoCo's that the world has; empty for all."""


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
    """Solo12 of a URDF file, with servos and an IMU, trots forward."""
    shapes = samples.quadruped_shapes()
    model = jaxdyn.load_urdf(jaxdyn.to_urdf(samples.quadruped()), free_base=True)
    legs = [name for name in model.joint_names if name[:2] in ("FL", "FR", "HL", "HR")]
    model = model.with_joint_friction(damping=dict.fromkeys(legs, 0.02)).with_armature(dict.fromkeys(legs, 5e-4))
    servos = [Actuator(joint, "position", kp=5.0, kv=0.1, control_range=(-3, 3)) for joint in legs]
    imu = [Sensor("accelerometer", link="base"), Sensor("gyro", link="base")]
    parts = {"actuators": servos, "sensors": imu, "timestep": 0.002}
    laws = {"MujocoLaw": MujocoLaw(), "ContactLaw": _firm()}
    bent = np.array([{"HAA": 0.0, "HFE": 0.7, "KFE": -1.4}[joint[3:]] for joint in legs])

    def goal(q: Any, v: Any, distance: float) -> Any:
        return jnp.concatenate([jnp.stack([q[0] - distance, 3 * (q[2] - 0.25)]), q[4:7], 0.05 * v[:6]])

    return Task(
        _native(model, servos, shapes, 0.002),
        {name: World(model, shapes, law=law, **parts) for name, law in laws.items()},
        (Positive("kp"), Positive("kv"), Positive("damping", legs)),
        np.concatenate([[0, 0, 0.26, 1, 0, 0, 0], bent]),
        bent,
        0.2,
        10,
        40,
        goal,
        0.3,
    )


def gripper() -> Task:
    """An arm of two joints reaches with a hand, whose fingers are coupled, over a table."""
    builder = jaxdyn.ModelBuilder()
    rod = BodyInertia.box(1.0, (0.05, 0.05, 0.4), (0, 0, -0.2))
    finger = BodyInertia.box(0.1, (0.02, 0.02, 0.08), (0, 0, -0.04))
    turn = {"axis": (0, 1, 0), "damping": 0.5, "armature": 0.01}
    slide = {"type": "prismatic", "axis": (1, 0, 0), "damping": 1.0}
    builder.add_body("upper", joint=Joint(name="shoulder", **turn), placement=(0, 0, 0.85), inertia=rod)
    builder.add_body("hand", "upper", Joint(name="elbow", **turn), (0, 0, -0.4), rod)
    builder.add_body("left", "hand", Joint(name="grip", lower=-0.05, upper=0.05, **slide), (0.05, 0, -0.4), finger)
    follower = Joint(name="follower", mimic=Mimic("grip", -1.0), **slide)
    model = builder.add_body("right", "hand", follower, (-0.05, 0, -0.4), finger).build()
    shapes = [ContactShape(side, jaxdyn.Sphere(0.015), (0, 0, -0.08)) for side in ("left", "right")]
    kinds = {"shoulder": (60.0, 3.0), "elbow": (30.0, 1.5), "grip": (100.0, 5.0)}
    servos = [Actuator(joint, "position", kp=kp, kv=kv, control_range=(-2, 2)) for joint, (kp, kv) in kinds.items()]
    parts = {"actuators": servos, "sensors": [Sensor("jointpos", joint="grip")], "limits": True, "timestep": 0.002}
    native = _native(model.spanning_tree(), servos, shapes, 0.002, joint=("follower", "grip", -1.0))

    def goal(q: Any, v: Any, distance: float) -> Any:
        x = -0.4 * jnp.sin(q[0]) - 0.48 * jnp.sin(q[0] + q[1])
        return jnp.concatenate([jnp.stack([x - distance, q[2] - 0.03]), 0.1 * v])

    return Task(
        native,
        {
            "MujocoLaw": World(model, shapes, law=MujocoLaw(), **parts),
            "ContactLaw": World(model, shapes, law=_firm(), **parts),
        },
        (Positive("kp"), Positive("kv"), Positive("damping", ["shoulder", "elbow", "grip"])),
        np.array([0.3, -0.6, 0.0]),
        np.array([0.3, -0.6, 0.0]),
        0.3,
        10,
        40,
        goal,
        0.2,
        lambda q: np.append(q, -q[..., -1:], axis=-1),
        (0, 1, 2),
    )


def _native(model: Any, servos: Any, shapes: Any, timestep: float, joint: tuple[str, str, float] | None = None) -> Any:
    """Return the robot on a plane in MuJoCo, with one joint that follows another, as stiffly as it can."""
    mujoco = importlib.import_module("mujoco")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", jaxdyn.RobotFileWarning)
        text = jaxdyn.to_mjcf(model, timestep, actuators=servos, shapes=shapes)
    text = text.replace("<worldbody>", '<worldbody><geom type="plane" size="9 9 1"/>')
    text = re.sub('integrator="Euler"', 'integrator="implicitfast"', text)
    if joint is not None:
        follower, leader, factor = joint
        stiff = f'polycoef="0 {factor} 0 0 0" solref="0.004 1" solimp="0.9999 0.9999 0.001"'
        row = f'<equality><joint joint1="{follower}" joint2="{leader}" {stiff}/></equality>'
        text = text.replace("</mujoco>", f"{row}</mujoco>")
    return mujoco.MjModel.from_xml_string(text)


TASKS: dict[str, Callable[[], Task]] = {"half_cheetah": half_cheetah, "quadruped": quadruped, "gripper": gripper}
