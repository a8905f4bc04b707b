"""Actuators of a world: from controls and activations to torques, and the rates of the activations.

MuJoCo's documentation, chapter Computation, section "Actuation model"; muscles: section "Muscle actuators";
`engine_forward.c` (`mj_fwdActuation`), `engine_core_smooth.c` (`mj_transmission`) and `engine_util_misc.c` of MuJoCo
4.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.simulate import ActuatorState
from jaxdyn.spatial import Vec3
from jaxdyn.tree import columns_of, take_rows
from jaxdyn.worlds._actuator_blocks import StackedBlocks, passed, starts
from jaxdyn.worlds._muscles import activation_rate, muscle_bias, muscle_gain
from jaxdyn.worlds._parts import ENDLESS, SMALL, Instant, Part, PartRows, Places, length_of, sums
from jaxdyn.worlds._tendons import TendonRows
from jaxdyn.worlds._transmission import ContactNormals, Transmission, transmission

_ROUNDED = 1e-10
"""How near to the limits of a tendon, relatively, the sum of forces counts as limited by it."""


class Actuated(NamedTuple):
    """Forces of the actuators at one state and control."""

    force: Any
    """The scalar force of each, `[nu, *batch]`, within its limits."""
    effect: Any
    """The force that joint effects, such as friction, add to it beyond limits; None without such effects."""
    torque: Any
    """On the degrees of freedom, rows `[nv, *batch]`: MuJoCo's `qfrc_actuator`."""
    rate: Any
    """The rates of the activations, `[na, *batch]`."""
    transmission: Transmission
    slope: Any
    """The derivative of each force by the actuator's velocity, `[nu, *batch]`, as MuJoCo's implicit integrators have
    it: zero where the force is at its limits, or the joint or tendon on which it acts limits it."""

    @property
    def pull(self) -> Any:
        """The scalar force with which each acts on joints, tendons and bodies, `[nu, *batch]`."""
        return self.force if self.effect is None else self.force + self.effect


class Actuators(Part):
    """The actuators of a world, in the file's order; each has one control and one force."""

    names: tuple[str, ...] = eqx.field(static=True)
    axes_of_joints: tuple[tuple[int, int, int], ...] = eqx.field(static=True)
    """Each actuator on a slide or hinge: its number, the coordinate, and the degree of freedom."""
    joined: tuple[tuple[int, int, int, int], ...] = eqx.field(static=True)
    """For each on several slides and hinges, each of these: the actuator's number, the coordinate, the degree of
    freedom, and which of the gears."""
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
    adhering: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """Each that pulls a body to what it touches (adhesion): its number, and MuJoCo's number of the body."""
    circular: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """Each servo of an angle about an axis that turns freely: its number, and the first of the three gears of the axis.
    Such a servo goes the shorter way round."""
    gains: tuple[str, ...] = eqx.field(static=True)
    biases: tuple[str, ...] = eqx.field(static=True)
    dynamics: tuple[str, ...] = eqx.field(static=True)
    states: tuple[int, ...] = eqx.field(static=True)
    """The activation of each, -1 without. Behind those of all actuators stands what their blocks remember."""
    control_path: tuple[StackedBlocks, ...]
    """The blocks on the way of the controls."""
    force_path: tuple[StackedBlocks, ...]
    """The blocks on the way of the forces, in front of their limits."""
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
    def dynamic(self) -> int:
        """The number of actuators with dynamics, whose activations stand in front of what blocks remember."""
        return sum(x >= 0 for x in self.states)

    @property
    def activations(self) -> int:
        """The number of activations."""
        return self.dynamic + sum(path.remembered for path in (*self.control_path, *self.force_path))

    def at_rest(self, dtype: Any) -> Array:
        """Return the activations `[*batch, na]` at the start: zeros, and what blocks remember."""
        zeros = jnp.zeros(self.dynamic, dtype)
        remembered = starts((*self.control_path, *self.force_path), dtype)
        if not remembered:
            return zeros
        batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in remembered))
        return jnp.concatenate([jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in (zeros, *remembered)], axis=-1)

    @property
    def control_bounds(self) -> tuple[Array, Array]:
        """The least and the greatest controls, `[*batch, nu]`; infinite without limits."""
        lower, upper = jnp.moveaxis(self.control_range, -1, 0)
        return jnp.where(lower <= -ENDLESS, -jnp.inf, lower), jnp.where(upper >= ENDLESS, jnp.inf, upper)

    @property
    def coupled(self) -> tuple[int, ...]:
        """The numbers of the actuators that are not on one slide or hinge each."""
        return (
            *dict.fromkeys(x[0] for x in self.joined),
            *(x[0] for x in self.turning),
            *(x[0] for x in self.pulling),
            *self.pushing,
            *(x[0] for x in self.cranks),
            *(x[0] for x in self.adhering),
        )


def actuated(
    robot: Robot,
    actuators: PartRows,
    at: Instant,
    tendons: TendonRows | None,
    control,
    activation,
    dt,
    compensation=None,
    normals: Sequence[ContactNormals] = (),
) -> Actuated:
    """Return what the actuators do.

    `control`: `[nu, *batch]`; `activation`: `[na, *batch]`; `dt`: the time step, for those that take the activation at
    its end; `compensation`: the gravity compensation that actuators of joints produce, rows `[nv, *batch]`;
    `normals`: those of contacts, for adhesion.
    """
    count = len(actuators.names)
    by = transmission(robot, actuators, at, tendons, normals)
    if actuators.idle:
        by = by._replace(velocity=by.velocity * 0)
    if not count or actuators.idle:
        none = jnp.zeros((count, *robot.batch), robot.dtype)
        part: Any = actuators.part
        rate = jnp.zeros((part.activations, *robot.batch), robot.dtype)
        return Actuated(none, None, robot.broadcast(robot.zeros()), rate, by, none)
    motion = ActuatorState(by.length, by.velocity, dt)
    control = jnp.clip(control, *columns_of(actuators.control_range))
    # Integrators take the derivatives of forces by velocities at given controls, whatever blocks make of these.
    control, _, remembered = passed(robot, actuators.control_path, control, by.velocity * 0, motion, activation)
    rate = _rates(robot, actuators, control, activation)
    drive = _drive(robot, actuators, control, activation, rate, dt)
    gain, slope_of_gain = _affine(actuators.gain, by)
    bias, slope_of_bias = _affine(actuators.bias, by)
    gain, slope_of_gain, bias, slope_of_bias = _with_muscles(actuators, by, gain, slope_of_gain, bias, slope_of_bias)
    force, slope = gain * drive + bias, slope_of_gain * drive + slope_of_bias
    if actuators.circular:
        force = force - _whole_turns(robot, actuators, drive, by)
    inner, beyond = ([x for x in actuators.force_path if x.block.beyond_limits is limit] for limit in (False, True))
    force, slope, found = passed(robot, inner, force, slope, motion, activation)
    remembered |= found
    active = robot.constant(np.array(actuators.active, float))
    force, slope = _within_limits(actuators, force * active, slope * active)
    torque, effect = _on_dofs(robot, actuators, by, force), None
    if compensation is not None:
        torque = torque + compensation
    if actuators.limits[0]:
        torque, slope = _within_joints(actuators, torque, slope)
    if beyond:
        nothing = jnp.zeros_like(robot.broadcast(force))
        effect, falling, found = passed(robot, beyond, nothing, nothing, motion, activation)
        torque, slope, remembered = torque + _on_dofs(robot, actuators, by, effect), slope + falling, remembered | found
    rates = [rate, *(remembered[first] for first in sorted(remembered))]
    return Actuated(force, effect, torque, jnp.concatenate(rates) if remembered else rate, by, slope)


def _within_limits(actuators: PartRows, force, slope) -> tuple[Any, Any]:
    """Return the forces within their limits and those of tendons, and their slopes, which are zero at limits."""
    pulled = actuators.limits[1] and bool(actuators.pulling)
    if pulled:
        force = _within_tendons(actuators, force)
    lower, upper = columns_of(actuators.force_range)
    slope = jnp.where((force <= lower) | (force >= upper), 0.0, slope)
    force = jnp.clip(force, lower, upper)
    return force, _unless_limited_by_tendons(actuators, force, slope) if pulled else slope


def _on_dofs(robot: Robot, actuators: PartRows, by: Transmission, force):
    """Return the forces of actuators on the degrees of freedom, rows `[nv, *batch]`."""
    torque = robot.broadcast(robot.zeros())
    if actuators.axes_of_joints:
        numbers, _, dofs = np.array(actuators.axes_of_joints, int).T
        torque = torque + sums(take_rows(actuators.gear[:, 0] * force, numbers), dofs, robot.nv)
    if by.moment is not None:
        torque = torque + (by.moment * take_rows(force, np.array(actuators.coupled))[:, None]).sum(axis=0)
    return torque


def _within_joints(actuators: PartRows, torque, slope) -> tuple[Any, Any]:
    """Return the torques within the limits of joints, and the slopes of forces, which are zero at these."""
    lower, upper = columns_of(actuators.joint_range)
    if actuators.axes_of_joints:
        # MuJoCo asks only for actuators on slides and hinges themselves, and for all forces on these together.
        numbers, _, dofs = np.array(actuators.axes_of_joints, int).T
        held = jnp.where((torque <= lower) | (torque >= upper), 1.0, 0.0)
        slope = slope * (1 - sums(take_rows(held, dofs), numbers, len(actuators.names)))
    return jnp.clip(torque, lower, upper), slope


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
    theirs. What blocks remember changes by its rate times the step."""
    order = _stateful(actuators)
    if not len(order):
        return activation + rate * dt
    remembered = (activation + rate * dt)[len(order) :]
    activation, rate = activation[: len(order)], rate[: len(order)]
    kinds, active = np.array(actuators.dynamics)[order], np.array(actuators.active)[order]
    time, bounds = take_rows((actuators.time[:, 0], actuators.activation_range), order)
    time = jnp.maximum(time, SMALL)
    exact = -jnp.expm1(-dt / time) * time
    span = jnp.where(robot.constant((kinds == "filterexact").astype(float)) > 0, exact, dt)
    moved = jnp.clip(activation + rate * span * robot.constant(active.astype(float)), *columns_of(bounds))
    return jnp.concatenate([robot.broadcast(moved), robot.broadcast(remembered)]) if remembered.shape[0] else moved
