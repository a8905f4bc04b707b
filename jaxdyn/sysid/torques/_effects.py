"""Friction and drive: which effects each joint has, and the values that were found."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, ModelError, look_up
from jaxdyn.algorithms import rnea
from jaxdyn.model import Model
from jaxdyn.simulate import AbstractActuator, AbstractMemorylessActuator, Gear, State, StribeckFriction

type Joints = bool | Sequence[str]
"""All joints, none, or those that are named."""


@dataclasses.dataclass(frozen=True)
class JointEffects:
    """Which effects of friction and drive a fit identifies, for all joints (True), none (False), or those named.

    With the torque `L = rnea` without friction (armature and springs count), the velocity `u(t) = v(t - friction
    delay)` and `s = tanh(u / w)`, the measured torque of a joint is

        tau(t + torque delay) = 1/g (L + d u + [F_c + (F_s - F_c) exp(-(u / v_s)^2)] s + mu |L| s + offset)

    What is not chosen is not fitted: armature, damping, friction and friction velocity stay as the model has them, and
    the rest is absent (`g = 1`, no delay, `F_s = F_c`).

    Sources: Swevers, Verdonck & De Schutter, Dynamic model identification for industrial robots, IEEE Control Systems
    2007 (viscous, Coulomb, offset); Armstrong-Helouvry, Dupont & Canudas de Wit, Automatica 1994, section 3.1
    (Stribeck, and the friction's lag as a pure delay); Hamon, Gautier & Garrec, Dynamic identification of robots with a
    dry friction model depending on load and velocity, IROS 2010 (load); Gautier & Briot, Global identification of joint
    drive gains and dynamic parameters of robots, JDSMC 2014 (gain).

    **Raises** `DataError` for a choice that is neither True, False nor names.
    """

    armature: Joints = True
    """Inertia of the rotor, reflected to the joint."""
    viscous: Joints = True
    """`d`."""
    coulomb: Joints = True
    """`F_c`, and with `stribeck` as the friction of fast motion."""
    offset: Joints = True
    """A constant of the sensor or the drive."""
    stribeck: Joints = False
    """Break-away friction `F_s` and the Stribeck velocity `v_s`; needs `coulomb`."""
    load: Joints = False
    """`mu`: friction in proportion to the transmitted torque."""
    gain: Joints = False
    """`g`: N m for each unit of what was recorded. Known as far as the prior knows the inertias (or by joints without
    this effect): the torque of an arm twice as heavy, read by half, is the same."""
    spring: Joints = False
    """Stiffness of what pulls a joint back, such as cables and hoses: `k (q - spring_reference)`, in `L`; the reference
    is the model's, or zero, and `offset` moves it. For joints with one coordinate."""
    friction_velocity: Joints = False
    """`w`, over which Coulomb friction changes its sign."""
    friction_delay: Joints = False
    """Of friction behind the velocity."""
    torque_delay: Joints = False
    """Of the recorded torque behind the motion."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                raise DataError(f"effects: {field.name} is {value!r}; give True, False, or a list of names of joints")
            # Hashable, and one program for one choice.
            object.__setattr__(
                self, field.name, value if isinstance(value, bool) else tuple(str(name) for name in value)
            )

    @classmethod
    def all(cls) -> JointEffects:
        """Every effect but springs and the drive gain, which only data with known inertias can tell."""
        return cls(stribeck=True, load=True, friction_velocity=True, friction_delay=True, torque_delay=True)

    def q_indices(self, model: Model) -> np.ndarray:
        """`[nv]`: the coordinate of each degree of freedom with the effect `spring`, -1 for the others.

        **Raises** `DataError` for a joint that is named and has more than one coordinate.
        """
        out = np.full(model.nv, -1)
        mimics = model.topology.leaders
        for i, joint in enumerate(model.joint_names):
            if i in mimics or not self.dofs("spring", model)[model.v_index(joint)].any():
                continue
            q, v = model.q_index(joint), model.v_index(joint)
            if q.stop - q.start == v.stop - v.start == 1:
                out[v] = q.start
            elif not isinstance(self.spring, bool):
                raise DataError(f"effects: spring at joint {joint!r}, which has not one coordinate; leave it out")
        return out

    def dofs(self, name: str, model: Model) -> np.ndarray:
        """`[nv]` of bool: which degrees of freedom have the effect `name`. **Raises** `UnknownNameError`."""
        chosen = getattr(self, name)
        if isinstance(chosen, bool):
            return np.full(model.nv, chosen)
        out = np.zeros(model.nv, bool)
        for joint in chosen:
            look_up(joint, model.joint_names, "joint")
            index = model.v_index(joint)
            out[index] = True
        return out


class JointEffectValues(eqx.Module):
    """What a fit found of friction and drive besides the leaves of the model (armature, damping, friction)."""

    offset: np.ndarray
    """`[nv]`, N m or N (before the division by `gain`)."""
    static: np.ndarray
    """`[nv]`: break-away friction `F_s`, N m or N; the model's `friction` where there is no Stribeck effect."""
    stribeck_velocity: np.ndarray
    """`[nv]`: `v_s`, rad/s or m/s; 1 where there is no Stribeck effect."""
    load: np.ndarray
    """`[nv]`: `mu`."""
    gain: np.ndarray
    """`[nv]`: `g`, N m or N for each unit of the recorded torque."""
    friction_delay: np.ndarray
    """`[nv]`, s."""
    torque_delay: np.ndarray
    """`[nv]`, s."""

    @classmethod
    def none(cls, model: Model) -> JointEffectValues:
        """No effects but those of the model."""
        zero, one = np.zeros(model.nv), np.ones(model.nv)
        return cls(zero, np.asarray(model.friction, np.float64), one, zero, one, zero, zero)

    def torque(self, model: Model, t, q, v, a) -> np.ndarray:
        """`[n, nv]`: what would be recorded at the times `t` `[n]` (s) for a motion `q, v, a` `[n, ...]`."""
        u = delayed(t, v, a, self.friction_delay)
        L = frictionless_torque(model, q, v, a)
        damping, friction, w = (
            np.asarray(x, np.float64) for x in (model.damping, model.friction, model.friction_velocity)
        )
        level = friction + (self.static - friction) * np.exp(-((u / self.stribeck_velocity) ** 2))
        friction_torque = damping * u + (level + self.load * np.abs(L)) * np.tanh(u / w)
        return delayed(t, (L + friction_torque + self.offset) / self.gain, None, self.torque_delay)

    def actuators(self, model: Model, *, without_delays: bool = False) -> tuple[AbstractActuator, ...]:
        """Blocks for `jaxdyn.simulate.Actuation`, from what a drive is commanded (in the unit that was recorded) to the
        joints' torques, with the identified model: drive gain and offset, Stribeck's part of the friction, friction by
        load. The rest is in the model itself.

        **Raises** `ModelError` where a delay was identified, which these blocks do not have, unless `without_delays`
        says to leave them out (a drive's dead time is `jaxdyn.simulate.Delay`, a whole number of time steps).
        """
        if not without_delays and (self.friction_delay.any() or self.torque_delay.any()):
            raise ModelError(
                f"the identified effects have delays (friction {self.friction_delay.tolist()}, torque "
                f"{self.torque_delay.tolist()} s), and these actuators are without memory: fit without them, or leave "
                "them out with without_delays=True"
            )
        blocks: list[AbstractActuator] = [Gear(self.gain), Bias(jnp.asarray(self.offset))]
        extra = self.static - np.asarray(model.friction, np.float64)
        stribeck = StribeckFriction(0.0, extra, self.stribeck_velocity, friction_velocity=model.friction_velocity)
        if self.load.any():
            blocks.append(LoadFriction(jnp.asarray(self.load), stribeck, model))
        if extra.any():
            blocks.append(stribeck)
        return tuple(blocks)


class Bias(AbstractMemorylessActuator):
    """A constant of the drive: of what is commanded, `offset` (N m or N) does not reach the joint."""

    offset: jnp.ndarray

    def apply(self, command, state: State):
        return jnp.asarray(command) - self.offset.astype(state.v.dtype)


class LoadFriction(AbstractMemorylessActuator):
    """Friction in proportion to the transmitted torque `L`: `tau = mu |L| tanh(v / w)` is taken off.

    With the other friction `f` (the model's, and `stribeck`), `u = L + f + mu |L| s` is solved for `L`, which has the
    sign of `u - f` while `mu < 1`.
    """

    load: jnp.ndarray
    stribeck: StribeckFriction
    model: Model

    def apply(self, command, state: State):
        m, v, dtype = self.model, state.v, state.v.dtype
        s = jnp.tanh(v / m.friction_velocity.astype(dtype))
        f = m.damping.astype(dtype) * v + m.friction.astype(dtype) * s - self.stribeck.torque(state)
        rest = command - f
        mu = self.load.astype(dtype) * s
        return command - mu * jnp.abs(rest) / (1 + jnp.sign(rest) * mu)


def delayed(t, x, rate, delay: np.ndarray) -> np.ndarray:
    """`x(t - delay)` `[n, nv]`, by linear interpolation; before the first sample by its `rate`, or held."""
    t, x = np.asarray(t, np.float64), np.asarray(x, np.float64)
    if not np.any(delay):
        return x
    # Times since the start: epochs would cost digits.
    t = t - t[0]
    out = np.stack([np.interp(t - d, t, column) for d, column in zip(delay, x.T, strict=True)], axis=-1)
    if rate is not None:
        out = out + np.asarray(rate)[:1] * np.minimum(t[:, None] - delay, 0.0)
    return out


def frictionless_torque(model: Model, q, v, a) -> np.ndarray:
    """`[n, nv]`: the torque that the joints transmit, with armature and springs, without friction."""
    return np.asarray(_frictionless(model, *(jnp.asarray(x) for x in (q, v, a))), np.float64)


@eqx.filter_jit
def _frictionless(model: Model, q, v, a):
    return rnea(model, q, v, a, joint_friction=False)
