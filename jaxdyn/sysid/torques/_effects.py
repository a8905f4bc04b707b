"""Effects of friction and drive: those that a fit identifies, and their identified values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, ModelError, look_up
from jaxdyn.algorithms import motion_map, rnea, spring_torque
from jaxdyn.friction import FrictionSum, LoadProportional, Stribeck, Viscous
from jaxdyn.model import Actuator, Model
from jaxdyn.simulate import AbstractDriveBlock, AbstractMemorylessBlock, ActuatorState, StribeckFriction
from jaxdyn.sysid.recordings import transmissions

SEARCHED = {
    "friction_velocity": "friction velocity",
    "stribeck": "Stribeck velocity",
    "friction_delay": "friction delay, s",
    "torque_delay": "torque delay, s",
}
"""The effects in which the torque is not linear, in the order of `EffectShape`, and what they search for."""

type Joints = bool | Sequence[str]
"""All joints (True), no joints (False), or the joints of these names."""


@dataclasses.dataclass(frozen=True)
class JointEffects:
    """The effects of friction, drive and geometry that a fit identifies: for all joints (True), none (False), or those
    named.

    With the torque `L = rnea` without friction (armature and springs count), the velocity `u(t) = v(t - friction
    delay)` and `s = tanh(u / w)`, the measured torque of a joint is

        tau(t + torque delay) = 1/g (L + d u + [F_c + (F_s - F_c) exp(-(u / v_s)^2)] s + mu |L| s + offset)

    Effects that are not chosen are not fitted: armature, damping, friction and friction velocity keep the model's
    values, and the others are absent (`g = 1`, no delay, `F_s = F_c`).

    Of a recording with a `transmission`, the torques and velocities are those of the motors, which all effects but
    springs and lengths belong to: `L` is `T^T rnea` with the armature at the motors' accelerations, and a motor has the
    name of the joint in its place.

    Sources: Swevers, Verdonck & De Schutter, Dynamic model identification for industrial robots, IEEE Control Systems
    2007 (viscous, Coulomb, offset); Armstrong-Helouvry, Dupont & Canudas de Wit, Automatica 1994, section 3.1
    (Stribeck, and the friction's lag as a pure delay); Hamon, Gautier & Garrec, Dynamic identification of robots with a
    dry friction model depending on load and velocity, IROS 2010 (load); Gautier & Briot, Global identification of joint
    drive gains and dynamic parameters of robots, JDSMC 2014 (gain).

    **Raises** `DataError` for a choice that is a single string.
    """

    armature: Joints = True
    """Inertia of the rotor, reflected to the joint."""
    viscous: Joints = True
    """`d`."""
    coulomb: Joints = True
    """`F_c`; with `stribeck`, the friction of fast motion."""
    offset: Joints = True
    """A constant error of the torque sensor or the drive."""
    stribeck: Joints = False
    """Break-away friction `F_s` and the Stribeck velocity `v_s`; needs `coulomb`."""
    load: Joints = False
    """`mu`: friction in proportion to the transmitted torque."""
    gain: Joints = False
    """`g`, N m for each recorded unit. Only the prior of the inertias, or joints without this effect, can determine it:
    an arm twice as heavy whose torque is read by half gives the same data."""
    spring: Joints = False
    """The stiffness `k` of cables and hoses that pull a joint back: `k (q - spring_reference)`, in `L`. The reference
    is the model's, or zero; `offset` shifts it. Only for joints with one coordinate."""
    friction_velocity: Joints = False
    """`w`, the velocity over which Coulomb friction changes its sign."""
    friction_delay: Joints = False
    """The delay of friction behind the velocity."""
    torque_delay: Joints = False
    """The delay of the recorded torque behind the motion."""
    length: Joints = False
    """The position of the joint in the body before it, three numbers, m, which Gauss-Newton steps find. A loop that is
    named, and with True each loop, has the positions of both of its frames. Torques determine combinations of them,
    across the axes of joints; without gravity they do so only together with inertias."""

    def __post_init__(self):
        for name, value in list(vars(self).items()):
            if isinstance(value, str):
                raise DataError(f"effects: {name} is {value!r}; give True, False, or a list of names of joints")
            if not isinstance(value, bool):
                # Tuples are hashable, so equal choices share a compiled program.
                object.__setattr__(self, name, tuple(map(str, value)))

    @classmethod
    def all(cls) -> JointEffects:
        """Every effect of friction and drive except springs and drive gains, which need data with known inertias."""
        return cls(stribeck=True, load=True, friction_velocity=True, friction_delay=True, torque_delay=True)

    def dofs(self, name: str, model: Model) -> np.ndarray:
        """Whether each degree of freedom has the effect `name`, `[nv]` of bool. **Raises** `UnknownNameError`."""
        return self.dofs_of(getattr(self, name), model)

    @staticmethod
    def dofs_of(joints: Joints, model: Model) -> np.ndarray:
        """Whether each degree of freedom belongs to the joints, `[nv]` of bool. **Raises** `UnknownNameError`."""
        if isinstance(joints, bool):
            return np.full(model.nv, joints)
        out = np.zeros(model.nv, bool)
        for joint in joints:
            look_up(joint, model.joint_names, "joint")
            out[model.v_index(joint)] = True
        return out

    def of_driven(self, model: Model, joints: tuple[str, ...]) -> JointEffects:
        """The effects for a robot with closed loops that some joints drive: what belongs to a drive, offset, gain, load
        friction and the effects that are searched for, at these only. **Raises** `DataError` where another joint is
        named for it."""
        changed = {}
        for name in ("offset", "gain", "load", *SEARCHED):
            chosen = getattr(self, name)
            passive = [] if isinstance(chosen, bool) else [x for x in chosen if x not in joints]
            if passive:
                raise DataError(f"effects: {name} at {', '.join(passive)}, which no drive moves; leave it out")
            changed[name] = joints if chosen is True else chosen
        return dataclasses.replace(self, **changed)

    def spring_coordinates(self, model: Model) -> np.ndarray:
        """The coordinate of each degree of freedom with the effect `spring`, -1 for the others, `[nv]` of int.
        **Raises** `DataError` for a joint that is named and does not have exactly one coordinate."""
        out, chosen = np.full(model.nv, -1), self.dofs("spring", model)
        for i, joint in enumerate(model.joint_names):
            q, v = model.q_index(joint), model.v_index(joint)
            if i in model.topology.leaders or not chosen[v].any():
                continue
            if q.stop - q.start == v.stop - v.start == 1:
                out[v] = q.start
            elif not isinstance(self.spring, bool):
                raise DataError(f"effects: spring at joint {joint!r}, which does not have one coordinate; leave it out")
        return out


class MotorEffects(eqx.Module):
    """Inertia and friction of motors that drive joints together, which no leaf of a model holds; all `[nv]`."""

    transmission: np.ndarray
    """`[nv, nv]`: `Recording.transmission`."""
    armature: np.ndarray
    """Rotor inertias, in the units of the motors' positions and torques."""
    damping: np.ndarray
    friction: np.ndarray
    friction_velocity: np.ndarray

    @property
    def coupled(self) -> np.ndarray:
        """`[nv]` of bool: the motors that do not simply drive the joint in their place."""
        return ~transmissions.alone(self.transmission)


_OF_MOTORS = ("armature", "damping", "friction", "friction_velocity")


class JointEffectValues(eqx.Module):
    """Identified friction and drive values that the model's leaves (armature, damping, friction) do not hold."""

    offset: np.ndarray
    """`[nv]`, N m or N (before the division by `gain`)."""
    static: np.ndarray
    """`[nv]`: break-away friction `F_s`, N m or N; the model's `friction` where there is no Stribeck effect."""
    stribeck_velocity: np.ndarray
    """`[nv]`: `v_s`, rad/s or m/s; 1 where there is no Stribeck effect."""
    load: np.ndarray
    """`[nv]`: `mu`, the ratio of friction to transmitted torque."""
    gain: np.ndarray
    """`[nv]`: `g`, N m or N for each unit of the recorded torque."""
    friction_delay: np.ndarray
    """`[nv]`: the delay of friction behind the velocity, s."""
    torque_delay: np.ndarray
    """`[nv]`: the delay of the recorded torque behind the motion, s."""
    motors: MotorEffects | None = None
    """Inertia and friction of all motors, for recordings of motors with a transmission; None for others. At motors that
    drive joints together the model has none; at the others it has the same."""

    def split(self, model: Model, transmission: np.ndarray | None) -> tuple[Model, JointEffectValues]:
        """Move inertia and friction of motors that drive joints together from the rows of a model to `motors`."""
        if transmission is None:
            return model, self
        leaves = {name: np.asarray(getattr(model, name), np.float64) for name in _OF_MOTORS}
        motors = MotorEffects(transmission, **leaves)
        none = {name: jnp.where(motors.coupled, 0.0, getattr(model, name)) for name in _OF_MOTORS[:-1]}
        return dataclasses.replace(model, **none), dataclasses.replace(self, motors=motors)

    def with_motors(self, model: Model) -> Model:
        """The model with the inertia and friction of motors in the rows of the joints in their places, as fits have
        them: the inverse of `split`."""
        if self.motors is None:
            return model
        leaves = {name: jnp.asarray(getattr(self.motors, name), model.dtype) for name in _OF_MOTORS}
        return dataclasses.replace(model, **leaves)

    @classmethod
    def none(cls, model: Model) -> JointEffectValues:
        """The values of a robot without effects besides those of its model."""
        zeros, ones = np.zeros(model.nv), np.ones(model.nv)
        return cls(zeros, np.asarray(model.friction, np.float64), ones, zeros, ones, zeros, zeros)

    def torque(self, model: Model, t, q, v, a, joints: tuple[str, ...] | None = None) -> np.ndarray:
        """The torques `[n, nv]` that would be recorded at the times `t` `[n]` (s) for a motion `q, v, a` `[n, ...]`;
        with closed loops those of `joints`, which drive the robot, and with a transmission those of the motors."""
        T, model = None if self.motors is None else self.motors.transmission, self.with_motors(model)
        speed, rate = (transmissions.motor_motion(T, np.asarray(x, np.float64)) for x in (v, a))
        u = delay_signal(t, speed, rate, self.friction_delay)
        L = frictionless_torque(model, q, v, a, joints, T)
        d, f, w = (np.asarray(x, np.float64) for x in (model.damping, model.friction, model.friction_velocity))
        friction = FrictionSum(
            Viscous(d), Stribeck(f, self.static, self.stribeck_velocity, w), LoadProportional(self.load, L, w)
        )
        resisting = friction.torque(u) + self.offset
        if joints is not None:
            resisting = on_driven_joints(model, q, resisting[..., None], joints)[..., 0]
        return delay_signal(t, (L + resisting) / self.gain, None, self.torque_delay)

    def actuators(self, model: Model, *, without_delays: bool = False) -> tuple[Actuator, ...]:
        """Actuators for `World(model, actuators=...)` that simulate the effects together with the identified model.

        There is one for each degree of freedom, in their order. It takes a drive's command, in the recorded unit, to
        the joint's torque, by drive gain, offset, load friction and the Stribeck part of the friction. The model itself
        holds the other effects.

        **Raises** `ModelError` where a delay was identified, which these actuators do not have, unless `without_delays`
        leaves it out (`jaxdyn.simulate.Delay` delays a control by a whole number of time steps); and for motors that
        drive joints together, which these actuators do not.
        """
        if self.motors is not None and self.motors.coupled.any():
            raise ModelError(
                "the motors drive joints together by a transmission, but these actuators drive one joint each: write "
                "the robot as MJCF with a fixed tendon for each such motor, which may have armature and friction"
            )
        if not without_delays and (self.friction_delay.any() or self.torque_delay.any()):
            raise ModelError(
                f"the identified effects have delays (friction {self.friction_delay.tolist()}, torque "
                f"{self.torque_delay.tolist()} s), but these actuators have no memory: fit without delays, or leave "
                "them out by without_delays=True"
            )
        out = []
        for number, joint in enumerate(model.joint_names):
            dofs = range(model.nv)[model.v_index(joint)] if number not in model.topology.leaders else ()
            for k, i in enumerate(dofs):
                gear, name = (1.0, joint) if len(dofs) == 1 else (np.eye(len(dofs))[k], f"{joint}[{k}]")
                path, gain, bias = self._force_path(model, i), self.gain[i], -self.offset[i]
                out.append(Actuator(joint, "general", gear=gear, gain=gain, bias=bias, name=name, force_path=path))
        return tuple(out)

    def _force_path(self, model: Model, i: int) -> tuple[AbstractDriveBlock, ...]:
        """Return the friction of a degree of freedom that the model does not hold."""
        d, f, w = (float(x[i]) for x in (model.damping, model.friction, model.friction_velocity))
        blocks: list[AbstractDriveBlock] = []
        stribeck = StribeckFriction(0.0, self.static[i] - f, self.stribeck_velocity[i], friction_velocity=w)
        if self.load.any():
            others = FrictionSum(Viscous(d), Stribeck(f, self.static[i], self.stribeck_velocity[i], w))
            blocks.append(LoadFriction(self.load[i], others, w))
        if (self.static != np.asarray(model.friction, np.float64)).any():
            blocks.append(stribeck)
        return tuple(blocks)


class LoadFriction(AbstractMemorylessBlock):
    """Friction `mu |L| tanh(v / w)` in proportion to the transmitted force `L`, subtracted from the motor's force.

    With the motor's force `u` and all other friction `f`, `u = L + f + mu |L| s` is solved for `L`, which has the sign
    of `u - f` while `mu < 1`.
    """

    load: Any
    others: FrictionSum
    friction_velocity: Any

    def apply(self, signal: Any, at: ActuatorState) -> Any:
        remaining = signal - self.others.torque(at.velocity)
        # The friction for a unit of transmitted force.
        mu = LoadProportional(self.load, 1.0, self.friction_velocity).torque(at.velocity)
        return signal - mu * jnp.abs(remaining) / (1 + jnp.sign(remaining) * mu)


def delay_signal(t, x, rate, delay: np.ndarray) -> np.ndarray:
    """Return `x(t - delay)`, `[n, nv]`, by linear interpolation. Before the first sample, `x` changes by its initial
    `rate` `[n, nv]`, or is constant where that is None."""
    t, x = np.asarray(t, np.float64), np.asarray(x, np.float64)
    if not np.any(delay):
        return x
    # Times count from the first sample: times since an epoch would cost digits.
    t = t - t[0]
    out = np.stack([np.interp(t - d, t, column) for d, column in zip(delay, x.T, strict=True)], axis=-1)
    if rate is not None:
        out = out + np.asarray(rate)[:1] * np.minimum(t[:, None] - delay, 0.0)
    return out


def frictionless_torque(
    model: Model, q, v, a, joints: tuple[str, ...] | None = None, transmission: np.ndarray | None = None
) -> np.ndarray:
    """The torque that the joints transmit, `[n, nv]`: armature and springs count, friction does not. With closed loops
    it is what `joints`, which drive the robot, transmit, and zero elsewhere; with a transmission what the motors do,
    whose armature the model has."""
    # A model with springs has other leaves, for which `rnea` would be compiled again.
    plain = model if model.stiffness is None else dataclasses.replace(model, stiffness=None, spring_reference=None)
    if transmission is not None:
        plain = dataclasses.replace(plain, armature=jnp.zeros_like(plain.armature))
    torque = np.asarray(rnea(plain, *(jnp.asarray(x) for x in (q, v, a)), joint_friction=False), np.float64)
    if model.stiffness is not None:
        torque = torque + np.asarray(spring_torque(model, jnp.asarray(q)), np.float64)
    if transmission is not None:
        rotors = np.asarray(model.armature, np.float64) * transmissions.motor_motion(transmission, np.asarray(a))
        return torque @ transmission + rotors
    return torque if joints is None else on_driven_joints(model, q, torque[..., None], joints)[..., 0]


def require_no_redundant_drives(model: Model, q: np.ndarray, joints: tuple[str, ...], effects: JointEffects) -> None:
    """Raise `DataError` where a robot with closed loops has more drives `joints` than degrees of freedom, so that only
    sums of their torques, and no gain or searched effect of one, follow from the motion."""
    chosen = [x for x in ("gain", *SEARCHED) if effects.dofs(x, model).any()]
    if chosen and has_redundant_drives(model, q, joints):
        raise DataError(
            f"effects: {', '.join(chosen)}, but the joints {', '.join(joints)} are more than the robot's degrees of "
            "freedom, so the motion determines sums of their torques only; leave it out"
        )


def has_redundant_drives(model: Model, q: np.ndarray, joints: tuple[str, ...]) -> bool:
    """Whether a robot with closed loops has more drives `joints` than degrees of freedom at a configuration `q`
    `[1, nq]`."""
    driven = JointEffects.dofs_of(joints, model)
    torque = on_driven_joints(model, q, np.eye(model.nv)[None][..., driven], joints)[0, driven]
    return bool(np.abs(torque - np.eye(len(torque))).max() > 1e-6)


def on_driven_joints(model: Model, q: np.ndarray, torques: np.ndarray, joints: tuple[str, ...]) -> np.ndarray:
    """Torques `[n, nv, k]` of all joints of a robot with closed loops as those `E^T tau` of `joints` that do the same
    (`motion_map`), at the configurations `q` `[n, nq]`."""
    E = np.asarray(motion_map(model, jnp.asarray(q, model.dtype), joints), np.float64)
    return np.swapaxes(E, -1, -2) @ torques
