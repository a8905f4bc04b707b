"""Actuators of a world: from controls and activations to torques, and the rates of the activations.

MuJoCo's documentation, chapter Computation, section "Actuation model"; muscles: section "Muscle actuators";
`engine_forward.c` (`mj_fwdActuation`), `engine_core_smooth.c` (`mj_transmission`) and `engine_util_misc.c` of MuJoCo
4.0.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import enum_name, object_name
from jaxdyn.spatial import Vec3
from jaxdyn.tree import columns_of, take_rows
from jaxdyn.worlds._muscles import activation_rate, muscle_bias, muscle_gain
from jaxdyn.worlds._parts import SMALL, Instant, Part, PartRows, Places, disabled, length_of, sums
from jaxdyn.worlds._tendons import TendonRows
from jaxdyn.worlds._transmission import Transmission, transmission

_GAINS, _BIASES = ("fixed", "affine", "muscle"), ("none", "affine", "muscle")
_DYNAMICS = ("none", "integrator", "filter", "filterexact", "muscle")
_PARAMETERS = 9
"""The parameters of a gain or bias that are used: those of muscles."""

_UNLIMITED = 1e30
_ROUNDED = 1e-10
"""How near to the limits of a tendon, relatively, the sum of forces counts as limited by it."""


class Actuated(NamedTuple):
    """Forces of the actuators at one state and control."""

    force: Any
    """The scalar force of each, `[nu, *batch]`."""
    torque: Any
    """On the degrees of freedom, rows `[nv, *batch]`: MuJoCo's `qfrc_actuator`."""
    rate: Any
    """The rates of the activations, `[na, *batch]`."""
    transmission: Transmission
    slope: Any
    """The derivative of each force by the actuator's velocity, `[nu, *batch]`, as MuJoCo's implicit integrators have
    it: zero where the force is at its limits, or the joint or tendon on which it acts limits it."""


class Actuators(Part):
    """The actuators of a world, in the file's order; each has one control and one force."""

    names: tuple[str, ...] = eqx.field(static=True)
    axes_of_joints: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    """Each actuator on a slide or hinge: its number, the coordinate, and the degree of freedom."""
    turning: tuple[tuple[int, int, int, bool, bool], ...] = eqx.field(static=True)
    """Each on a ball or free joint: its number, the first coordinate of the quaternion and its first degree of
    freedom, whether its gear is in axes of the parent, and whether the joint is free."""
    pulling: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """Each on a tendon: its number, and that of the tendon."""
    pushing: tuple[int, ...] = eqx.field(static=True)
    """The numbers of those on sites."""
    sites: Places
    referred: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """Each of `pushing`: the rows of its site and of its reference site in `sites`, -1 without one."""
    cranks: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    """Each on a slider-crank: its number, and the rows of the crank and of the slider in `sites`."""
    circular: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """Each servo of an angle about an axis that turns freely: its number, and the first of the three gears of the axis.
    Such a servo goes the shorter way round."""
    gains: tuple[str, ...] = eqx.field(static=True)
    biases: tuple[str, ...] = eqx.field(static=True)
    dynamics: tuple[str, ...] = eqx.field(static=True)
    states: tuple[int, ...] = eqx.field(static=True)
    """The activation of each, -1 without."""
    early: tuple[bool, ...] = eqx.field(static=True)
    """Whether the force takes the activation at the end of the step."""
    active: tuple[bool, ...] = eqx.field(static=True)
    """False for those that `<option>` disables."""
    idle: bool = eqx.field(static=True)
    """Whether `<option>` disables actuation; the lengths then have no velocities either."""
    gear: Float[Array, "*batch nu 6"]
    rod: Float[Array, "*batch nu"]
    """The lengths of the rods of slider-cranks, m."""
    gain: Float[Array, "*batch nu 9"]
    bias: Float[Array, "*batch nu 9"]
    time: Float[Array, "*batch nu 3"]
    """Parameters of the dynamics."""
    control_range: Float[Array, "*batch nu 2"]
    force_range: Float[Array, "*batch nu 2"]
    activation_range: Float[Array, "*batch nu 2"]
    length_range: Float[Array, "*batch nu 2"]
    """The ranges of muscles' lengths."""
    unit_acceleration: Float[Array, "*batch nu"]
    """The acceleration at rest under a unit force, for muscles."""
    limits: tuple[bool, bool] = eqx.field(static=True)
    """Whether joints, and tendons, limit the forces of actuators."""
    joint_range: Float[Array, "*batch nv 2"]
    tendon_range: Float[Array, "*batch nt 2"]

    @property
    def coupled(self) -> tuple[int, ...]:
        """The numbers of the actuators that are not on slides and hinges."""
        return (
            *(x[0] for x in self.turning),
            *(x[0] for x in self.pulling),
            *self.pushing,
            *(x[0] for x in self.cranks),
        )

    @classmethod
    def of(cls, m) -> Self:
        """Return the actuators of an `mjModel`, which must not have any that `reasons_against_actuators` names."""
        flags, count = disabled(m), m.nactuator
        types = [actuator_types(m, i) for i in range(count)]
        out = np.asarray(m.actuator_outadr, int)
        gain, bias = (np.array(x[:, :_PARAMETERS]) for x in (m.actuator_gainprm, m.actuator_biasprm))
        for i, (of_gain, of_bias, _) in enumerate(types):
            # What a type does not use is zero.
            gain[i, {"fixed": 1, "affine": 3, "muscle": _PARAMETERS}[of_gain] :] = 0
            bias[i, {"none": 0, "affine": 3, "muscle": _PARAMETERS}[of_bias] :] = 0
        group = np.asarray(m.actuator_group)
        off = np.array([0 <= g < 31 and m.opt.disableactuator >> int(g) & 1 for g in group], bool)
        targets = _targets(m)
        return cls(
            names=tuple(object_name(m, "actuator", i) for i in range(count)),
            **targets,
            circular=_circular(m, targets, gain, bias),
            gains=tuple(x[0] for x in types),
            biases=tuple(x[1] for x in types),
            dynamics=tuple(x[2] for x in types),
            states=tuple(np.asarray(m.actuator_actadr, int).tolist()),
            early=tuple(np.asarray(m.actuator_actearly, bool).tolist()),
            active=tuple((~off & ("actuation" not in flags)).tolist()),
            idle="actuation" in flags,
            gear=float_leaf(m.actuator_gear[out]),
            rod=float_leaf(m.actuator_cranklength),
            gain=float_leaf(gain),
            bias=float_leaf(bias),
            time=float_leaf(m.actuator_dynprm[:, :3]),
            control_range=_ranges(m.actuator_ctrllimited & ("clampctrl" not in flags), m.actuator_ctrlrange),
            force_range=_ranges(m.actuator_forcelimited, m.actuator_forcerange),
            activation_range=_ranges(m.actuator_actlimited, m.actuator_actrange),
            length_range=float_leaf(m.actuator_lengthrange[out]),
            unit_acceleration=float_leaf(m.actuator_acc0[out]),
            limits=(bool(m.jnt_actfrclimited.any()), bool(m.tendon_actfrclimited.any())),
            joint_range=_ranges(m.jnt_actfrclimited[m.dof_jntid], m.jnt_actfrcrange[m.dof_jntid]),
            tendon_range=_ranges(m.tendon_actfrclimited, m.tendon_actfrcrange),
        )


def _ranges(limited, values) -> Array:
    """Return ranges `[n, 2]`, beyond any number of a world where they do not limit: native programs take numbers that
    are not finite for errors."""
    limited = np.asarray(limited, bool)[:, None]
    return float_leaf(np.where(limited, values, np.array([-_UNLIMITED, _UNLIMITED])))


def actuator_types(m, i: int) -> tuple[str, str, str]:
    """Return the types of an actuator's gain, bias and dynamics."""
    values = (m.actuator_gaintype[i], m.actuator_biastype[i], m.actuator_dyntype[i])
    gain, bias, dynamics = (enum_name(e, x) for e, x in zip(("mjtGain", "mjtBias", "mjtDyn"), values, strict=True))
    return gain, bias, dynamics


def _targets(m) -> dict[str, Any]:
    """Return the fields of `Actuators` that say on what each acts."""
    scalars, turning, pulling, pushing, referred, cranks = [], [], [], [], [], []
    sites: dict[int, int] = {}
    for i in range(m.nactuator):
        target, (first, second) = enum_name("mjtTrn", m.actuator_trntype[i]), map(int, m.actuator_trnid[i])
        if target == "tendon":
            pulling.append((i, first))
        elif target in ("site", "slidercrank"):
            rows = tuple(-1 if x < 0 else sites.setdefault(x, len(sites)) for x in (first, second))
            if target == "slidercrank":
                cranks.append((i, *rows))
            else:
                pushing.append(i)
                referred.append(rows)
        else:
            kind, q, v = enum_name("mjtJoint", m.jnt_type[first]), int(m.jnt_qposadr[first]), int(m.jnt_dofadr[first])
            if kind in ("slide", "hinge"):
                scalars.append((i, q, v))
            else:
                free = kind == "free"
                turning.append((i, q + 3 * free, v + 3 * free, target == "jointinparent", free))
    return {
        "axes_of_joints": tuple(scalars),
        "turning": tuple(turning),
        "pulling": tuple(pulling),
        "pushing": tuple(pushing),
        "sites": Places.of(m, "site", list(sites)),
        "referred": tuple(referred),
        "cranks": tuple(cranks),
    }


def _circular(m, targets: dict[str, Any], gain: np.ndarray, bias: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Return the servos of `Actuators.circular`: those on ball joints, and on the rotation between two sites."""
    balls = [number for number, *_, free in targets["turning"] if not free]
    pairs = zip(targets["pushing"], targets["referred"], strict=True)
    gear = m.actuator_gear[np.asarray(m.actuator_outadr, int)]
    sites = [i for i, (_, reference) in pairs if reference >= 0 and not gear[i, :3].any()]
    found = [(i, 0) for i in balls] + [(i, 3) for i in sites]
    fixed = [enum_name("mjtGain", x) == "fixed" for x in m.actuator_gaintype]
    affine = [enum_name("mjtBias", x) == "affine" for x in m.actuator_biastype]
    servo = np.array(fixed, bool) & np.array(affine, bool) & (gain[:, 0] != 0) & (bias[:, 1] == -gain[:, 0])
    return tuple((i, k) for i, k in found if servo[i] and gear[i, k : k + 3].any())


def reasons_against_actuators(m) -> dict[str, str]:
    """Return, by the names of the actuators of an `mjModel` that are not built, why."""
    out = {}
    for i in range(m.nactuator):
        target, (gain, bias, dynamics) = enum_name("mjtTrn", m.actuator_trntype[i]), actuator_types(m, i)
        reason = None
        if target not in ("joint", "jointinparent", "tendon", "site", "slidercrank"):
            reason = f"it acts on a {target}" + " (adhesion)" * (target == "body")
        elif gain not in _GAINS or bias not in _BIASES or dynamics not in _DYNAMICS:
            reason = f"it has gain {gain!r}, bias {bias!r} and dynamics {dynamics!r}"
        elif m.actuator_plugin[i] >= 0:
            reason = "it is a plugin"
        elif m.actuator_delay[i] != 0:
            reason = "it has a delay"
        elif m.actuator_ctrlnum[i] != 1 or m.actuator_outnum[i] != 1 or m.actuator_actnum[i] > 1:
            reason = "it has several controls, forces or activations"
        if reason:
            out[object_name(m, "actuator", i)] = reason
    return out


def actuated(
    robot: Robot,
    actuators: PartRows,
    at: Instant,
    tendons: TendonRows | None,
    control,
    activation,
    dt,
    compensation=None,
) -> Actuated:
    """Return what the actuators do.

    `control`: `[nu, *batch]`; `activation`: `[na, *batch]`; `dt`: the time step, for those that take the activation at
    its end; `compensation`: the gravity compensation that actuators of joints produce, rows `[nv, *batch]`.
    """
    count = len(actuators.names)
    states = np.array(actuators.states, int)
    by = transmission(robot, actuators, at, tendons)
    if actuators.idle:
        by = by._replace(velocity=by.velocity * 0)
    nothing = robot.broadcast(robot.zeros())
    if not count or actuators.idle:
        rate = jnp.zeros((int((states >= 0).sum()), *robot.batch), robot.dtype)
        none = jnp.zeros((count, *robot.batch), robot.dtype)
        return Actuated(none, nothing, rate, by, none)
    control = jnp.clip(control, *columns_of(actuators.control_range))
    rate = _rates(robot, actuators, control, activation)
    drive = _drive(robot, actuators, control, activation, rate, dt)
    gain, slope_of_gain = _affine(actuators.gain, by)
    bias, slope_of_bias = _affine(actuators.bias, by)
    gain, slope_of_gain, bias, slope_of_bias = _with_muscles(actuators, by, gain, slope_of_gain, bias, slope_of_bias)
    force, slope = gain * drive + bias, slope_of_gain * drive + slope_of_bias
    if actuators.circular:
        force = force - _whole_turns(robot, actuators, drive, by)
    active = robot.constant(np.array(actuators.active, float))
    force, slope = force * active, slope * active
    pulled = actuators.limits[1] and bool(actuators.pulling)
    if pulled:
        force = _within_tendons(actuators, force)
    lower, upper = columns_of(actuators.force_range)
    slope = jnp.where((force <= lower) | (force >= upper), 0.0, slope)
    force = jnp.clip(force, lower, upper)
    if pulled:
        slope = _unless_limited_by_tendons(actuators, force, slope)
    torque = nothing
    numbers, _, dofs = np.array(actuators.axes_of_joints, int).reshape(-1, 3).T
    if actuators.axes_of_joints:
        torque = torque + sums(take_rows(actuators.gear[:, 0] * force, numbers), dofs, robot.nv)
    if by.moment is not None:
        torque = torque + (by.moment * take_rows(force, np.array(actuators.coupled))[:, None]).sum(axis=0)
    if compensation is not None:
        torque = torque + compensation
    if actuators.limits[0]:
        lower, upper = columns_of(actuators.joint_range)
        if actuators.axes_of_joints:
            # MuJoCo asks only for actuators on slides and hinges themselves, and for all forces on these together.
            held = jnp.where((torque <= lower) | (torque >= upper), 1.0, 0.0)
            slope = slope * (1 - sums(take_rows(held, dofs), numbers, count))
        torque = jnp.clip(torque, lower, upper)
    return Actuated(force, torque, rate, by, slope)


def _drive(robot: Robot, actuators: PartRows, control, activation, rate, dt):
    """Return what gains multiply: controls, or activations, now or at the end of the step."""
    states = np.array(actuators.states, int)
    if not (states >= 0).any():
        return control
    early = np.array(actuators.early, bool)[_stateful(actuators)]
    if early.any():
        after = next_activation(robot, actuators, activation, rate, dt)
        activation = jnp.where(robot.constant(early.astype(float)) > 0, after, activation)
    stateful = robot.constant(np.where(states >= 0, 1.0, 0.0))
    return jnp.where(stateful > 0, take_rows(activation, states), control)


def _whole_turns(robot: Robot, actuators: PartRows, drive, by: Transmission):
    """Return what servos of `Actuators.circular` pull too much: their errors are angles up to half a turn."""
    numbers, first = np.array(actuators.circular).T
    gear, gain, error = take_rows((actuators.gear, actuators.gain[:, 0], drive - by.length), numbers)
    columns = columns_of(gear)
    axis = Vec3(
        *(sum(columns[j + k] * robot.constant(np.where(first == j, 1.0, 0.0)) for j in (0, 3)) for k in range(3))
    )
    turn = 2 * jnp.pi * length_of(axis)
    count = jnp.floor(jnp.abs(error) / turn + 0.5) * jnp.sign(error)
    return sums(gain * turn * count, numbers, len(actuators.names))


def actuator_tension(robot: Robot, actuators: PartRows, force, count: int):
    """Return the forces of actuators along `count` tendons, `[nt, *batch]`, from their scalar forces."""
    numbers, which = np.array(actuators.pulling, int).reshape(-1, 2).T
    gear = take_rows(actuators.gear[:, 0], numbers)
    return robot.broadcast(sums(gear * take_rows(force, numbers), which, count))


def _affine(parameters, by: Transmission) -> tuple[Any, Any]:
    """Return affine functions of length and velocity, and their derivatives by the velocity."""
    a, b, c = columns_of(parameters[:, :3])
    return a + b * by.length + c * by.velocity, c + 0 * by.velocity


def _with_muscles(actuators: PartRows, by: Transmission, gain, slope, bias, bias_slope) -> tuple[Any, Any, Any, Any]:
    """Return gains and biases, each with its derivative by the velocity, with those of muscles in their places."""
    count = len(actuators.names)
    muscles = np.flatnonzero([x == "muscle" for x in actuators.gains])
    if len(muscles):
        own, rates = muscle_gain(*_of_muscles(actuators, muscles, by, actuators.gain))
        others = _others(muscles, count, gain)
        gain, slope = gain * others + sums(own, muscles, count), slope * others + sums(rates, muscles, count)
    muscles = np.flatnonzero([x == "muscle" for x in actuators.biases])
    if len(muscles):
        own = muscle_bias(*_of_muscles(actuators, muscles, by, actuators.bias))
        others = _others(muscles, count, bias)
        bias, bias_slope = bias * others + sums(own, muscles, count), bias_slope * others
    return gain, slope, bias, bias_slope


def _others(numbers: np.ndarray, count: int, like):
    """Return, as rows `[count]`, 0 for these numbers, else 1."""
    out = np.ones(count)
    out[numbers] = 0
    return jnp.asarray(out, like.dtype).reshape((-1,) + (1,) * (like.ndim - 1))


def _of_muscles(actuators: PartRows, muscles: np.ndarray, by: Transmission, parameters) -> tuple:
    return take_rows((by.length, by.velocity, actuators.length_range, actuators.unit_acceleration, parameters), muscles)


def _on_tendons(actuators: PartRows, force) -> tuple[np.ndarray, Any, Any, Any]:
    """Return the actuators on tendons, and for each the sum of all forces on its tendon, and the limits of this."""
    numbers, which = np.array(actuators.pulling).T
    lower, upper = columns_of(take_rows(actuators.tendon_range, which))
    return numbers, take_rows(sums(take_rows(force, numbers), which, int(which.max()) + 1), which), lower, upper


def _unless_limited_by_tendons(actuators: PartRows, force, slope):
    """Return the slopes of forces, with zeros where the sum of the forces on a tendon is at its limits."""
    numbers, total, lower, upper = _on_tendons(actuators, force)
    # MuJoCo 4.0's allowance for rounding, because the sum is one of forces that were scaled down to it.
    near = _ROUNDED * jnp.abs(lower), _ROUNDED * jnp.abs(upper)
    held = jnp.where((total <= lower + near[0]) | (total >= upper - near[1]), 1.0, 0.0)
    return slope * (1 - sums(held, numbers, len(actuators.names)))


def _within_tendons(actuators: PartRows, force):
    """Return the forces, those on a tendon scaled down where their sum exceeds what it limits."""
    numbers, total, lower, upper = _on_tendons(actuators, force)
    there = total != 0
    safe = jnp.where(there, total, 1)
    scale = jnp.where(total < lower, lower / safe, jnp.where(total > upper, upper / safe, 1.0))
    scale = jnp.where(there, scale, 1.0)
    count = len(actuators.names)
    return force * (_others(numbers, count, force) + sums(scale, numbers, count))


# Activations


def _stateful(actuators: PartRows) -> np.ndarray:
    """Return the actuators with activations, in the order of these."""
    states = np.array(actuators.states, int)
    order = np.flatnonzero(states >= 0)
    return order[np.argsort(states[order])]


def _rates(robot: Robot, actuators: PartRows, control, activation):
    """Return the rates of the activations."""
    order = _stateful(actuators)
    if not len(order):
        return jnp.zeros((0, *robot.batch), robot.dtype)
    kinds = np.array(actuators.dynamics)[order]
    control, time = take_rows((control, actuators.time), order)
    is_filter = np.isin(kinds, ("filter", "filterexact"))
    rate = jnp.where(
        robot.constant(is_filter.astype(float)) > 0, (control - activation) / jnp.maximum(time[:, 0], SMALL), control
    )
    muscles = np.flatnonzero(kinds == "muscle")
    if len(muscles):
        own = activation_rate(*take_rows((control, activation, time), muscles))
        rate = rate * _others(muscles, len(order), rate) + sums(own, muscles, len(order))
    return robot.broadcast(rate)


def next_activation(robot: Robot, actuators: PartRows, activation, rate, dt):
    """Return the activations, `[na, *batch]`, after a time step with these rates; actuators that are disabled keep
    theirs."""
    order = _stateful(actuators)
    kinds, active = np.array(actuators.dynamics)[order], np.array(actuators.active)[order]
    time, bounds = take_rows((actuators.time[:, 0], actuators.activation_range), order)
    time = jnp.maximum(time, SMALL)
    exact = -jnp.expm1(-dt / time) * time
    span = jnp.where(robot.constant((kinds == "filterexact").astype(float)) > 0, exact, dt)
    moved = activation + rate * span * robot.constant(active.astype(float))
    return jnp.clip(moved, *columns_of(bounds))
