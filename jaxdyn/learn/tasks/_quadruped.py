"""A quadruped that follows commanded velocities: Unitree's Go1 with position servos.

The robot is that of the URDF file of `example-robot-data`. Gains of the servos, the rotors' inertia and the pose in
which it stands are those of Zakka et al., MuJoCo Playground (2025), and of its robot, `unitree_go1` of MuJoCo
Menagerie.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import RobotFileError, require_arguments, require_choice, require_positive
from jaxdyn._types import Array, Float
from jaxdyn.io.mjcf import mujoco
from jaxdyn.learn._environment import AbstractTask, Environment, Transition
from jaxdyn.simulate import State
from jaxdyn.worlds import World, load_world

_URDF = "cmeel.prefix/share/example-robot-data/robots/go1_description/urdf/go1.urdf"
_LEGS = "FR", "FL", "RR", "RL"
_SWINGS = (0.0, np.pi, np.pi, 0.0)
"""The phase of each leg in a trot: the legs of a diagonal swing together."""
_STANDING = (0.0, 0.9, -1.8) * 4
"""The angles of hip, thigh and calf of each leg, rad."""
_HEIGHT = 0.285
"""The height of the trunk when it stands so on the plane `z = 0`, m: two links of 0.213 m, and the radius of a foot."""
_FOOT, _LINK = 0.02, 0.213
"""The radius of a foot, and the length of thigh and calf, m."""
_KP, _KD, _ARMATURE = 35.0, 0.5, 0.005
_FRICTION = 0.8
_ROUGHNESS, _CELL, _CELLS = 0.05, 0.2, 60
"""The height of the rough terrain between its lowest and its highest node, the distance of the nodes, m, and their
number along each side."""


class Quadruped(AbstractTask):
    """A quadruped follows a command: velocities along x and y and a yaw rate in axes of its trunk, drawn at the start.

    Actions are offsets of the servos' targets from those of a trot in place, whose clock is the time of the state, much
    as in Lee et al., Learning quadrupedal locomotion over challenging terrain, Science Robotics 2020. So feet take
    steps from the start: a gradient says how to change a step, but nothing of one that no foot has taken yet.

    The observation is what the robot measures: the angular velocity of the trunk, the direction of gravity in its axes,
    the positions (from the standing pose) and velocities of the joints, the last action, the command, and the cosine
    and the sine of the clock's phase; and by `base_velocity` the linear velocity. All rewards are smooth. An episode
    ends when the trunk tilts by more than 60 degrees or sinks.
    """

    forward_range: tuple[float, float] = (-1.0, 1.0)
    """The range of commands along x, m/s."""
    sideways_range: tuple[float, float] = (-0.5, 0.5)
    """The range of commands along y, m/s."""
    yaw_range: tuple[float, float] = (-1.0, 1.0)
    """The range of commanded yaw rates, rad/s."""
    gait_frequency: float = 2.5
    """The steps of each foot in a second, 1/s."""
    swing_height: float = 0.08
    """How far the targets of a trot in place lift a foot, m."""
    action_scale: float = 0.5
    """The offset of a target for the action 1, rad."""
    tracking_width: float = 0.25
    """The square of the error of a velocity at which the reward for it falls to 1/e."""
    tracking_weight: float = 1.0
    yaw_weight: float = 0.5
    vertical_weight: float = 0.5
    tilting_weight: float = 0.05
    """The weight of the squares of roll and pitch rates."""
    orientation_weight: float = 1.0
    height_weight: float = 10.0
    pose_weight: float = 0.05
    torque_weight: float = 2e-4
    action_rate_weight: float = 0.01
    height: float = 0.25
    """The height of the trunk that is rewarded, m."""
    least_height: float = 0.15
    """The height of the trunk at which an episode ends, m."""
    pushes: float = 0.0
    """The greatest horizontal velocity that a push adds to that of the trunk, m/s."""
    push_interval: int = eqx.field(static=True, default=150)
    """The steps between two pushes."""
    pushed: bool = eqx.field(static=True, default=False)
    """Whether there are pushes."""
    base_velocity: str = eqx.field(static=True, default="observed")
    """`"observed"`: the linear velocity is observed as well. `"privileged"`: the observation is a dictionary of
    `"state"` without it and `"privileged_state"` with it. `"none"`: it is not observed."""

    def __check_init__(self) -> None:
        require_choice(self.base_velocity, ("observed", "privileged", "none"), "base_velocity")

    def start(self, world: World, key: Array) -> State:
        """Draw a state near standing at rest."""
        of_q, of_v, of_time = jax.random.split(key, 3)
        dtype = world.start.dtype
        angles = jnp.asarray(_STANDING, dtype) + jax.random.uniform(of_q, (12,), dtype, -0.1, 0.1)
        # Feet start free of the ground, also where a noisy pose or the terrain lifts it.
        above = 0.02 + self._terrain_height(world)
        base = jnp.stack([0.0, 0.0, _HEIGHT + above, 1.0, 0.0, 0.0, 0.0]).astype(dtype)
        state = world.state(jnp.concatenate([base, angles]), jax.random.uniform(of_v, (18,), dtype, -0.1, 0.1))
        time = jax.random.uniform(of_time, (), state.time.dtype) / self.gait_frequency
        return eqx.tree_at(lambda x: x.time, state, time)

    def _terrain_height(self, world: World) -> float:
        return _ROUGHNESS if "terrain" in world.parts.constraints.contacts.names else 0.0

    def remember(self, world: World, key: Array) -> dict[str, Any]:
        """Draw the command, and return the memory of the start."""
        key, push = jax.random.split(key)
        lower, upper = jnp.array([self.forward_range, self.sideways_range, self.yaw_range], world.start.dtype).T
        command = jax.random.uniform(key, (3,), lower.dtype, lower, upper)
        memory = {"command": command, "last_action": jnp.zeros(12, lower.dtype)}
        return memory | ({"push_key": push, "push_step": jnp.zeros((), jnp.int32)} if self.pushed else {})

    def disturb(self, world: World, state: State, memory: dict[str, Any]) -> State:
        """Return the state after a push, if there is one at this step."""
        if not self.pushed:
            return state
        step = memory["push_step"]
        kick = (
            jax.random.uniform(jax.random.fold_in(memory["push_key"], step), (2,), state.v.dtype, -1, 1) * self.pushes
        )
        now = (step % self.push_interval == self.push_interval - 1).astype(kick.dtype)
        return eqx.tree_at(lambda x: x.v, state, state.v.at[:2].add(now * kick))

    def after_step(self, world: World, step: Transition, memory: dict[str, Any]) -> dict[str, Any]:
        """Return the memory after a step."""
        pushed = {"push_step": memory["push_step"] + 1} if self.pushed else {}
        return {"last_action": step.action, **pushed}

    def reads(self) -> tuple[str, ...]:
        """Return what is read in a step."""
        return ("actuator_torque",)

    def control(self, world: World, state: State, action: Float[Array, "nu"]) -> Float[Array, "nu"]:
        """Return the targets of the servos."""
        swing = jnp.maximum(0, jnp.sin(self._phase(state) + jnp.asarray(_SWINGS, state.q.dtype)))
        return trotting(self.swing_height * swing).astype(action.dtype) + self.action_scale * action

    def _phase(self, state: State) -> Array:
        return 2 * np.pi * self.gait_frequency * state.time.astype(state.q.dtype)

    def observe(self, world: World, state: State, memory: dict[str, Any]) -> Any:
        """Return what the robot measures."""
        angles = state.q[7:] - jnp.asarray(_STANDING, state.q.dtype)
        parts = [state.v[3:6], gravity_direction(state.q[3:7]), angles, state.v[6:], memory["last_action"]]
        phase = self._phase(state)
        measured = jnp.concatenate([*parts, memory["command"], jnp.cos(phase)[None], jnp.sin(phase)[None]])
        if self.base_velocity == "none":
            return measured
        whole = jnp.concatenate([state.v[:3], measured])
        return whole if self.base_velocity == "observed" else {"state": measured, "privileged_state": whole}

    def reward(self, world: World, step: Transition, memory: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Return the reward for following the command less costs, and these parts."""
        q, v = step.after.q, step.after.v
        tilt = gravity_direction(q[3:7])
        excess = jnp.stack([v[0], v[1], v[5]]) - memory["command"]
        error, yaw_error = jnp.sum(excess[:2] ** 2), excess[2] ** 2
        angles = q[7:] - jnp.asarray(_STANDING, q.dtype)
        parts = {
            "reward_tracking": self.tracking_weight * jnp.exp(-error / self.tracking_width),
            "reward_yaw": self.yaw_weight * jnp.exp(-yaw_error / self.tracking_width),
            "reward_vertical": -self.vertical_weight * v[2] ** 2,
            "reward_tilting": -self.tilting_weight * jnp.sum(v[3:5] ** 2),
            "reward_orientation": -self.orientation_weight * jnp.sum(tilt[:2] ** 2),
            "reward_height": -self.height_weight * (q[2] - self.height) ** 2,
            "reward_pose": -self.pose_weight * jnp.sum(angles**2),
            "reward_torque": -self.torque_weight * jnp.sum(step.readings["actuator_torque"] ** 2),
            "reward_action_rate": -self.action_rate_weight * jnp.sum((step.action - memory["last_action"]) ** 2),
        }
        said = {"velocity_error": _length(error), "yaw_error": _length(yaw_error)}
        said |= dict(zip(("forward_excess", "sideways_excess", "yaw_excess"), excess, strict=True))
        said["commanded_speed"] = _length(jnp.sum(memory["command"][:2] ** 2))
        return sum(parts.values()), parts | said

    def ended(self, world: World, state: State, memory: dict[str, Any]) -> Array:
        """Return whether the trunk tilts by more than 60 degrees, or is too low."""
        return (gravity_direction(state.q[3:7])[2] > -0.5) | (state.q[2] < self.least_height)


def trotting(heights: Float[Array, "4"]) -> Float[Array, "12"]:
    """Return the angles of all joints that lift each foot straight up from the standing pose by a height, m."""
    # Thigh and calf have equal lengths, so the foot is below the hip where the calf's angle is -2 times the thigh's.
    stretched = 2 * _LINK * np.cos(_STANDING[1])
    thigh = jnp.arccos((stretched - heights) / (2 * _LINK))
    return jnp.stack([jnp.zeros_like(thigh), thigh, -2 * thigh], axis=1).ravel()


def gravity_direction(quaternion: Float[Array, "4"]) -> Float[Array, "3"]:
    """Return the direction of gravity in axes of a body with the unit quaternion `w x y z`."""
    w, x, y, z = quaternion
    return -jnp.stack([2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)])


def _length(square: Any) -> Any:
    # A metric is not differentiated, but its derivative at zero would be NaN all the same.
    return jnp.sqrt(jax.lax.stop_gradient(square))


def quadruped(*, terrain: str = "flat", **options: Any) -> Environment:
    """Return the environment of `Quadruped`. `terrain` is `"flat"` or `"rough"`, whose nodes lie up to 5 cm apart in
    height; there the height of the trunk is not rewarded by default."""
    require_arguments(Quadruped, (), options)
    require_choice(terrain, ("flat", "rough"), "terrain")
    if "pushes" in options:
        require_positive(options["pushes"], "pushes", zero=True)
        options = {"pushed": options["pushes"] > 0, **options}
    if terrain == "rough":
        options = {"height_weight": 0.0, "least_height": 0.12, **options}
    scene = _scene(terrain)
    return Environment(load_world(scene), Quadruped(**options), substeps=5, scene=scene)


def _scene(terrain: str) -> str:
    """Return the MJCF text of the robot on a terrain. Only its feet touch the ground."""
    kinds = mujoco()
    urdf = re.sub(r"<(visual|collision)>.*?</\1>", "", _urdf().read_text(), flags=re.DOTALL)
    # The root link has an inertia tensor that no body has, of a milligram; it is one with the trunk.
    urdf = re.sub(r'(<link name="base">).*?(</link>)', r"\1\2", urdf, count=1, flags=re.DOTALL)
    spec = kinds.MjSpec.from_string(urdf)
    spec.modelname = "go1"
    # Those that are only shown would be dropped, as in all URDF files.
    spec.compiler.discardvisual = False
    spec.option.timestep = 0.004
    spec.option.integrator = kinds.mjtIntegrator.mjINT_IMPLICITFAST
    base = spec.body("base")
    base.pos = (0, 0, _HEIGHT)
    base.add_freejoint()
    shown = {"contype": 0, "conaffinity": 0, "mass": 0, "rgba": (0.6, 0.6, 0.65, 1)}
    spec.body("trunk").add_geom(type=kinds.mjtGeom.mjGEOM_BOX, size=(0.188, 0.0468, 0.057), **shown)
    for leg in _LEGS:
        for part in ("thigh", "calf"):
            link = kinds.mjtGeom.mjGEOM_CAPSULE
            spec.body(f"{leg}_{part}").add_geom(type=link, fromto=(0, 0, 0, 0, 0, -_LINK), size=(0.015, 0, 0), **shown)
        foot = {"contype": 1, "conaffinity": 0, "condim": 3, "friction": (_FRICTION, 0.005, 0.0001), "mass": 0}
        place = {"pos": (0, 0, -_LINK), "size": (_FOOT, 0, 0), "type": kinds.mjtGeom.mjGEOM_SPHERE}
        spec.body(f"{leg}_calf").add_geom(name=f"{leg}_foot", **place, **foot)
        for joint in (f"{leg}_{part}_joint" for part in ("hip", "thigh", "calf")):
            _add_servo(kinds, spec, joint)
    _add_ground(kinds, spec, terrain)
    spec.compile()
    return spec.to_xml()


def _add_servo(kinds: Any, spec: Any, name: str) -> None:
    joint = spec.joint(name)
    joint.armature = _ARMATURE
    servo = spec.add_actuator(name=name, trntype=kinds.mjtTrn.mjTRN_JOINT, target=name)
    servo.set_to_position(kp=_KP, kv=_KD)
    servo.ctrllimited, servo.ctrlrange = True, joint.range
    servo.forcelimited, servo.forcerange = True, joint.actfrcrange


def _add_ground(kinds: Any, spec: Any, terrain: str) -> None:
    touches = {"contype": 0, "conaffinity": 1, "condim": 3, "friction": (_FRICTION, 0.005, 0.0001)}
    if terrain == "flat":
        spec.worldbody.add_geom(name="floor", type=kinds.mjtGeom.mjGEOM_PLANE, size=(20, 20, 0.1), **touches)
        return
    # Always the same terrain: it is a part of the scene, as the robot is.
    heights = np.random.default_rng(0).uniform(size=_CELLS * _CELLS)
    side = _CELL * (_CELLS - 1) / 2
    size = (side, side, _ROUGHNESS, 0.1)
    spec.add_hfield(name="terrain", nrow=_CELLS, ncol=_CELLS, size=size, userdata=heights.round(3))
    spec.worldbody.add_geom(name="terrain", type=kinds.mjtGeom.mjGEOM_HFIELD, hfieldname="terrain", **touches)


def _urdf() -> Path:
    """Return the path of the robot's file. **Raises** `ImportError` without the package that has it."""
    try:
        distribution = importlib.metadata.distribution("example-robot-data")
    except importlib.metadata.PackageNotFoundError as error:
        words = "example-robot-data is not installed; to read the robot Go1, pip install 'jaxdyn[learn]'"
        raise ImportError(words) from error
    path = Path(str(distribution.locate_file(_URDF)))
    if not path.exists():
        raise RobotFileError(f"{path} does not exist; newer releases have it: pip install -U example-robot-data")
    return path
