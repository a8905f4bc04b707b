"""Effects of friction and drive that a fit identifies, and the torques of a model without them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, look_up
from jaxdyn.algorithms import motion_map, rnea, spring_torque
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import transmissions

SEARCHED = {
    "friction_velocity": "friction velocity",
    "stribeck": "Stribeck velocity",
    "presliding": "presliding distance, rad or m",
    "warm_up": "warm-up time, s",
    "friction_delay": "friction delay, s",
    "torque_delay": "torque delay, s",
}
"""The effects in which the torque is not linear, in the order of `EffectShape`, and what they search for."""

CAUSES = {
    "load friction": ("load",),
    "Stribeck friction": ("stribeck", "friction_velocity"),
    "friction delay": ("friction_delay",),
    "presliding friction": ("presliding",),
    "asymmetric friction": ("asymmetry",),
    "position-dependent friction": ("position",),
    "warm-up": ("warm_up",),
    "springs": ("spring",),
    "flexibility": ("flexibility",),
    "backlash": ("backlash",),
}
"""Causes of residuals that are effects of joints, and the fields of `JointEffects` that describe them together."""

# What belongs to a drive: at joints that closed loops move passively it is not there, or is not known.
_OF_DRIVES = ("offset", "gain", "load", "asymmetry", "position", "flexibility", "backlash", *SEARCHED)

type Joints = bool | Sequence[str]
"""All joints (True), no joints (False), or the joints of these names."""


@dataclasses.dataclass(frozen=True)
class JointEffects:
    """The effects of friction, drive and geometry that a fit identifies: for all joints (True), none (False), or those
    named.

    With the torque `L = rnea` without friction (armature and springs count), the velocity `u(t) = v(t - friction
    delay)` and `s = tanh(u / w)`, the measured torque of a joint is

        tau(t + torque delay) = 1/g (L + f + offset),
        f = d u + [F_c + (F_s - F_c) exp(-(u / v_s)^2)] s + mu |L| s
            + d_a u s + F_a s^2 + sum_n [A_n cos(n q) + B_n sin(n q)] s + c(t) (d_w u + F_w s)

    With `presliding`, `s` is the state of `jaxdyn.friction.Dahl`. Effects that are not chosen are not fitted: armature,
    damping, friction and friction velocity keep the model's values, and the others are absent (`g = 1`, no delay,
    `F_s = F_c`).

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
    asymmetry: Joints = False
    """`d_a` and `F_a`: friction that is different in the two directions. Beside an offset, which says as much, there is
    no `F_a`."""
    position: Joints = False
    """`A_n` and `B_n` of the `harmonics`: friction that changes with the position. Only for joints with one
    coordinate."""
    harmonics: tuple[float, ...] = (1.0, 2.0)
    """The numbers `n` of `position`, for all joints: periods in a turn, or the ratio of a gear, rad/rad or rad/m."""
    warm_up: Joints = False
    """`d_w` and `F_w`: friction in proportion to `c(t) = exp(-t / T)`, with a warm-up time `T` and times since the
    first sample of the fit; where recordings have a `temperature`, to the difference from its mean."""
    presliding: Joints = False
    """The distance over which friction builds up after a reversal."""
    flexibility: Joints = False
    """The compliance of a joint behind an encoder at its motor: links are behind by the compliance times `L`. To first
    order in the compliance, and below a quarter of the cutoff. Damping of the joint counts near its resonance only, and
    is not identified."""
    backlash: Joints = False
    """The play of a joint behind an encoder at its motor: links are behind by half of it in the direction of `L`."""
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
                object.__setattr__(self, name, tuple(map(float if name == "harmonics" else str, value)))

    @classmethod
    def all(cls) -> JointEffects:
        """Load and Stribeck friction, and all velocities and delays that can be searched for together."""
        return cls(stribeck=True, load=True, friction_velocity=True, friction_delay=True, torque_delay=True)

    @property
    def chosen(self) -> tuple[str, ...]:
        """The names of the effects that some joint has."""
        return tuple(name for name, x in vars(self).items() if x and name != "harmonics")

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
        """The effects for a robot with closed loops that some joints drive: what belongs to a drive, at these only.
        **Raises** `DataError` where another joint is named for it."""
        changed = {}
        for name in _OF_DRIVES:
            chosen = getattr(self, name)
            passive = [] if isinstance(chosen, bool) else [x for x in chosen if x not in joints]
            if passive:
                raise DataError(f"effects: {name} at {', '.join(passive)}, which no drive moves; leave it out")
            changed[name] = joints if chosen is True else chosen
        return dataclasses.replace(self, **changed)

    def coordinates(self, name: str, model: Model) -> np.ndarray:
        """The coordinate of each degree of freedom with the effect `name`, -1 for the others, `[nv]` of int. **Raises**
        `DataError` for a joint that is named and does not have exactly one coordinate."""
        out, chosen = np.full(model.nv, -1), self.dofs(name, model)
        for i, joint in enumerate(model.joint_names):
            q, v = model.q_index(joint), model.v_index(joint)
            if i in model.topology.leaders or not chosen[v].any():
                continue
            if q.stop - q.start == v.stop - v.start == 1:
                out[v] = q.start
            elif not isinstance(getattr(self, name), bool):
                raise DataError(f"effects: {name} at joint {joint!r}, which does not have one coordinate; leave it out")
        return out


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
