"""Identified values of friction and drive, the torques that they give a motion, and actuators that simulate them."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, ModelError
from jaxdyn.friction import (
    Asymmetric,
    Changing,
    Dahl,
    FrictionSum,
    GivenDirection,
    JointFriction,
    LoadProportional,
    PositionDependent,
    Stribeck,
    Viscous,
    smooth_sign,
)
from jaxdyn.model import Actuator, Model
from jaxdyn.simulate import AbstractDriveBlock, ActuatorState
from jaxdyn.sysid.recordings import transmissions
from jaxdyn.sysid.torques._deflections import deflection_torque
from jaxdyn.sysid.torques._effects import delay_signal, frictionless_torque, on_driven_joints
from jaxdyn.sysid.torques._layout import DELAYS, SCALES, kind_of, waves


class EffectShape(NamedTuple):
    """The numbers in which the torque is not linear, each `[nv]`."""

    friction_velocity: np.ndarray
    """rad/s or m/s."""
    stribeck_velocity: np.ndarray
    """rad/s or m/s."""
    presliding: np.ndarray
    """The presliding distance, rad or m; 0 where the sign of friction follows the velocity."""
    warm_up: np.ndarray
    """The warm-up time, s."""
    friction_delay: np.ndarray
    """s."""
    torque_delay: np.ndarray
    """s."""

    @classmethod
    def default(cls, friction_velocity, stribeck_velocity: float = 0.5) -> EffectShape:
        """Friction velocities `[nv]`, equal Stribeck velocities, and no presliding or delays."""
        w = np.asarray(friction_velocity, np.float64)
        zero = np.zeros_like(w)
        return cls(w, np.full_like(w, stribeck_velocity), zero, np.ones_like(w), zero, zero)


class FrictionMotion(NamedTuple):
    """The motion that the friction of joints depends on, `[..., nv]` each."""

    velocity: Any
    """`u`, with the delay of friction."""
    direction: Any
    """`s`, between -1 and 1."""
    load: Any
    """The transmitted torque."""
    position: Any
    change: Any
    """`c(t)`: the signal that friction changes with."""


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


VALUES = (
    "viscous_asymmetry",
    "coulomb_asymmetry",
    "warm_up_viscous",
    "warm_up_coulomb",
    "compliance",
    "backlash",
)
"""Values that are parameters with the same names, written in words."""
_OF_MOTORS = ("armature", "damping", "friction", "friction_velocity")


class JointEffectValues(eqx.Module):
    """Identified friction and drive values that the model's leaves (armature, damping, friction) do not hold, `[nv]`
    each. `JointEffects` has the equation. Numbers with a default are of effects that few fits have, and may be one
    number for all."""

    offset: np.ndarray
    """N m or N (before the division by `gain`)."""
    static: np.ndarray
    """Break-away friction `F_s`, N m or N; the model's `friction` where there is no Stribeck effect."""
    stribeck_velocity: np.ndarray
    """`v_s`, rad/s or m/s; 1 where there is no Stribeck effect."""
    load: np.ndarray
    """`mu`, the ratio of friction to transmitted torque."""
    gain: np.ndarray
    """`g`, N m or N for each unit of the recorded torque."""
    friction_delay: np.ndarray
    """The delay of friction behind the velocity, s."""
    torque_delay: np.ndarray
    """The delay of the recorded torque behind the motion, s."""
    motors: MotorEffects | None = None
    """Inertia and friction of all motors, for recordings of motors with a transmission; None for others. At motors that
    drive joints together the model has none; at the others it has the same."""
    presliding: Any = 0.0
    """The presliding distance, rad or m; 0 where the sign of friction follows the velocity."""
    viscous_asymmetry: Any = 0.0
    """`d_a`, N m s/rad or N s/m."""
    coulomb_asymmetry: Any = 0.0
    """`F_a`, N m or N."""
    cosine: Any = ()
    """`A_n`, N m or N, `[harmonics, nv]`."""
    sine: Any = ()
    """`B_n`, N m or N, `[harmonics, nv]`."""
    harmonics: tuple[float, ...] = eqx.field(static=True, default=())
    """`n`"""
    warm_up: Any = 1.0
    """`T`, s."""
    warm_up_viscous: Any = 0.0
    """`d_w`, N m s/rad or N s/m for each unit of `c`."""
    warm_up_coulomb: Any = 0.0
    """`F_w`, N m or N for each unit of `c`."""
    warm_up_start: Any = 0.0
    """The time at which `c = 1`, s; before, it is 1 as well."""
    temperature: Any = None
    """The temperature at which `c = 0`, where it is the difference from that; None where `c` is of time."""
    compliance: Any = 0.0
    """rad/(N m) or m/N."""
    backlash: Any = 0.0
    """rad or m."""
    deflection_cutoff: Any = np.inf
    """One number, Hz: deflections of joints are those of the transmitted torque below it."""

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

    def shape(self, friction_velocity) -> EffectShape:
        """The numbers in which the torque is not linear, for the friction velocities `[nv]` of what was recorded."""
        w = np.asarray(friction_velocity, np.float64)
        numbers = (np.asarray(x, np.float64) for x in (self.presliding, self.warm_up))
        presliding, warm_up = (np.broadcast_to(x, w.shape) for x in numbers)
        return EffectShape(w, self.stribeck_velocity, presliding, warm_up, self.friction_delay, self.torque_delay)

    def by_kind(self, model: Model) -> dict[str, np.ndarray]:
        """The values `[nv]` by the kinds of parameters that they are of (`Layout.joints`)."""
        found = {kind_of(name): getattr(self, name) for name in (*VALUES, "offset", "static", "load")}
        found |= dict(zip((*SCALES, *DELAYS), self.shape(model.friction_velocity), strict=True))
        found |= dict(zip(waves(self.harmonics)[::2], self.cosine, strict=True))
        found |= dict(zip(waves(self.harmonics)[1::2], self.sine, strict=True))
        return {kind: np.broadcast_to(np.asarray(x, np.float64), (model.nv,)) for kind, x in found.items()}

    def friction(self, damping, coulomb, motion: FrictionMotion) -> FrictionSum:
        """The law of friction in a motion, for the viscous and Coulomb friction that the model holds."""
        s = GivenDirection(motion.direction)
        harmonics = zip(self.cosine, self.sine, self.harmonics, strict=True)
        return FrictionSum(
            Viscous(damping),
            Stribeck(coulomb, self.static, self.stribeck_velocity, s),
            LoadProportional(self.load, motion.load, s),
            Asymmetric(self.viscous_asymmetry, self.coulomb_asymmetry, s),
            Changing(self.warm_up_viscous, self.warm_up_coulomb, motion.change, s),
            *(PositionDependent(a, b, motion.position, n, s) for a, b, n in harmonics),
        )

    def torque(
        self, model: Model, t, q, v, a, joints: tuple[str, ...] | None = None, temperature: np.ndarray | None = None
    ) -> np.ndarray:
        """The torques `[n, nv]` that would be recorded at the times `t` `[n]` (s) for a motion `q, v, a` `[n, ...]`;
        with closed loops those of `joints`, which drive the robot, and with a transmission those of the motors.
        `temperature` `[n, nv]` or `[n, 1]`: as recorded, for friction that changes with it."""
        T, model = None if self.motors is None else self.motors.transmission, self.with_motors(model)
        speed, rate = (transmissions.motor_motion(T, np.asarray(x, np.float64)) for x in (v, a))
        shape, L = self.shape(model.friction_velocity), frictionless_torque(model, q, v, a, joints, T)
        change = 0.0
        if np.any(self.warm_up_viscous) or np.any(self.warm_up_coulomb):
            change = change_signal(t, shape.warm_up, self.warm_up_start, temperature, self.temperature)
        u = delay_signal(t, speed, rate, self.friction_delay)
        position = drive_positions(model, q, T) if self.harmonics else 0.0
        motion = FrictionMotion(u, friction_directions(t, u, shape), L, position, change)
        d, f = (np.asarray(x, np.float64) for x in (model.damping, model.friction))
        resisting = self.friction(d, f, motion).torque(u) + self.offset
        if np.any(self.compliance) or np.any(self.backlash):
            numbers = (self.compliance, self.backlash, self.deflection_cutoff)
            resisting = resisting + deflection_torque(model, t, (q, v, a), *numbers)
        if joints is not None:
            resisting = on_driven_joints(model, q, resisting[..., None], joints)[..., 0]
        return delay_signal(t, (L + resisting) / self.gain, None, self.torque_delay)

    def actuators(self, model: Model, *, without_delays: bool = False) -> tuple[Actuator, ...]:
        """Actuators for `World(model, actuators=...)` that simulate the effects together with the identified model.

        There is one for each degree of freedom, in their order. It takes a drive's command, in the recorded unit, to
        the joint's torque, by drive gain, offset, and all friction that the model itself does not hold. The states of
        friction before sliding, and the time since the start, are among the activations of the world's `State`.
        Friction that changes with a temperature is that at the reference.

        **Raises** `ModelError` where a delay was identified, which these actuators do not have, unless `without_delays`
        leaves it out (`jaxdyn.simulate.Delay` delays a control by a whole number of time steps); for motors that drive
        joints together, which these actuators do not; and for flexible joints, which need links of their own.
        """
        if self.motors is not None and self.motors.coupled.any():
            raise ModelError(
                "the motors drive joints together by a transmission, but these actuators drive one joint each: write "
                "the robot as MJCF with a fixed tendon for each such motor, which may have armature and friction"
            )
        if np.any(self.compliance) or np.any(self.backlash):
            raise ModelError(
                "the joints are flexible or have backlash, but these actuators are rigid: add a link with the rotor's "
                "inertia in front of each such joint, and a joint with stiffness between both"
            )
        if not without_delays and (self.friction_delay.any() or self.torque_delay.any()):
            raise ModelError(
                f"the identified effects have delays (friction {self.friction_delay.tolist()}, torque "
                f"{self.torque_delay.tolist()} s), but these actuators have no delay: fit without delays, or leave "
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
        of_one = {x.name: _entry(getattr(self, x.name), i) for x in dataclasses.fields(self) if x.name not in _OF_ALL}
        values = dataclasses.replace(self, motors=None, temperature=None, **of_one)
        # Temperatures stay at their reference.
        change = self.temperature is None and (values.warm_up_viscous != 0 or values.warm_up_coulomb != 0)
        others = (values.load, values.viscous_asymmetry, values.coulomb_asymmetry, *values.cosine, *values.sine)
        if not (change or values.presliding or values.static != f or np.any(others)):
            return ()
        if not change:
            values = dataclasses.replace(values, warm_up_viscous=0.0, warm_up_coulomb=0.0)
        kind = DriveFrictionByLoad if values.load else DriveFriction
        return (kind(values, d, f, w, bool(change or values.presliding)),)


_OF_ALL = ("motors", "temperature", "harmonics", "warm_up_start", "deflection_cutoff")


def _entry(x: Any, i: int) -> Any:
    """The number of a degree of freedom among numbers `[nv]`, or one for all; those of each row of `[k, nv]`."""
    if isinstance(x, tuple) or np.ndim(x) == 2:
        return tuple(float(row[i]) for row in x)
    return float(x[i] if np.ndim(x) else x)


class DriveFriction(AbstractDriveBlock):
    """The identified friction of a degree of freedom beyond that of its model, with the law of `JointEffectValues`."""

    beyond_limits: ClassVar[bool] = True

    values: JointEffectValues
    """The values of one degree of freedom."""
    damping: Any
    friction: Any
    friction_velocity: Any
    """These three are the model's, which the dynamics have."""
    remembers: bool = eqx.field(static=True)
    """Whether there is a state: that of friction before sliding, and the time."""

    def start(self) -> tuple[Any, ...]:
        return (0.0, 0.0) if self.remembers else ()

    def advance(self, signal: Any, at: ActuatorState, memory: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        x, v = self.values, at.velocity
        s, change = smooth_sign(v, self.friction_velocity), 0.0
        if self.remembers:
            state, elapsed = memory
            slides = x.presliding > 0
            law = Dahl(1.0, jnp.where(slides, x.presliding, 1.0), self.friction_velocity)
            _, state = law.step(state, v, at.dt)
            s, change = jnp.where(slides, state, s), jnp.exp(-elapsed / x.warm_up)
            memory = state, elapsed + at.dt
        law = dataclasses.replace(x, load=0.0).friction(
            self.damping, self.friction, FrictionMotion(v, s, 0.0, at.length, change)
        )
        known = JointFriction(self.damping, self.friction, self.friction_velocity).torque(v)
        others = law.torque(v)
        # The force u = L + f + mu |L| s is solved for the transmitted L, which has the sign of u - f while mu < 1.
        by_load, remaining = x.load * s, signal - others
        by_load = by_load * jnp.abs(remaining) / (1 + jnp.sign(remaining) * by_load)
        return signal - by_load - (others - known), memory


class DriveFrictionByLoad(DriveFriction):
    """The same where friction grows with the motor's force, so that it is among the limits of forces."""

    beyond_limits: ClassVar[bool] = False


def change_signal(t, warm_up, start, temperature=None, reference=None) -> np.ndarray:
    """The signal `[n, nv]` with which friction changes at times `t` `[n]`: `exp(-(t - start) / warm_up)`, or the
    difference of temperatures `[n, nv]` from a `reference`. **Raises** `DataError` where a temperature is missing."""
    if reference is None:
        return np.exp(-np.maximum(np.asarray(t, np.float64)[:, None] - start, 0.0) / warm_up)
    if temperature is None:
        raise DataError(
            "the friction of the fit changes with temperature, but the recording has none: give it Recording(..., "
            "temperature=...), or fit without the effect warm_up"
        )
    return np.asarray(temperature, np.float64) - reference


def friction_directions(t, u, shape: EffectShape) -> np.ndarray:
    """The direction of friction `[n, nv]` at velocities `u` `[n, nv]` and times `t` `[n]`. Where a joint has a
    presliding distance, its friction is steady at the first sample."""
    out = np.array(smooth_sign(u, shape.friction_velocity))
    presliding = shape.presliding > 0
    if presliding.any():
        v, steps = u[:, presliding], np.diff(np.asarray(t, np.float64))
        law = Dahl(1.0, shape.presliding[presliding], shape.friction_velocity[presliding])
        out[:, presliding] = law.along(0.5 * (v[1:] + v[:-1]), steps, out[0, presliding])
    return out


def drive_positions(model: Model, q, transmission: np.ndarray | None) -> np.ndarray:
    """The positions `[n, nv]` of motors, or of joints; zero for degrees of freedom that are not one coordinate."""
    q = transmissions.motor_motion(transmission, np.asarray(q, np.float64))
    coordinates, dofs = (np.asarray(x) for x in model.topology.scalar_coordinates)
    out = np.zeros((*q.shape[:-1], model.nv))
    out[..., dofs] = q[..., coordinates]
    return out
