"""Forces that act in a world without control: springs and dampers of joints and tendons, and gravity compensation.

MuJoCo's documentation, chapter Computation, section "Passive forces"; `engine_passive.c` of MuJoCo 4.0.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import enum_name, object_name, with_actuators
from jaxdyn.spatial import Force, Quaternion, Vec3
from jaxdyn.tree import columns_of, take_rows
from jaxdyn.worlds._fluid import Fluid, fluid_forces
from jaxdyn.worlds._parts import (
    FreeJoints,
    Instant,
    Part,
    PartRows,
    Places,
    disabled,
    length_of,
    sums,
    wrenches_on_dofs,
)
from jaxdyn.worlds._tendons import TendonRows


class PassiveForces(NamedTuple):
    """Forces that act without control."""

    torque: Any
    """On the degrees of freedom, rows `[nv, *batch]`: MuJoCo's `qfrc_passive`."""
    compensation: Any
    """Gravity compensation that actuators of joints produce, rows `[nv, *batch]`."""
    tension: Any
    """The forces of springs and dampers along the tendons, `[nt, *batch]`; None without tendons."""
    slope: Any
    """The derivative of the damping of each degree of freedom by its velocity, rows `[nv, *batch]`; for the linear
    velocities of free joints along axes of the world."""
    tendon_slope: Any
    """The same of tendons, `[nt, *batch]`; None without tendons."""


class Passive(Part):
    """The passive forces of a world. Polynomials have the factors of first, second and third order."""

    springs: tuple[int, ...] = eqx.field(static=True)
    """The coordinates of slides and hinges with springs."""
    spring_dofs: tuple[int, ...] = eqx.field(static=True)
    stiffness: Float[Array, "*batch n 3"]
    reference: Float[Array, "*batch n"]
    balls: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """First coordinates and degrees of freedom of quaternions with springs."""
    ball_stiffness: Float[Array, "*batch nb 3"]
    ball_reference: Float[Array, "*batch nb 4"]
    shifts: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """First coordinates and degrees of freedom of free joints with springs."""
    shift_stiffness: Float[Array, "*batch nf 3"]
    shift_reference: Float[Array, "*batch nf 3"]
    damped: bool = eqx.field(static=True)
    damping: Float[Array, "*batch nv 3"]
    """All degrees of freedom's, with that of actuators; free joints' is along axes of the world."""
    tendons: tuple[bool, bool] = eqx.field(static=True)
    """Whether tendons have springs, and dampers."""
    tendon_stiffness: Float[Array, "*batch nt 3"]
    tendon_rest: Float[Array, "*batch nt 2"]
    """The lengths between which the spring of a tendon does not act."""
    tendon_damping: Float[Array, "*batch nt 3"]
    compensated: Places
    """The centers of mass of the bodies with gravity compensation."""
    weight: Float[Array, "*batch nc"]
    """The mass that is compensated, kg."""
    by_actuators: tuple[bool, ...] = eqx.field(static=True)
    """Whether the actuators of a degree of freedom produce its gravity compensation."""
    fluid: Fluid | None

    @classmethod
    def of(cls, m) -> Self:
        """Return the passive forces of an `mjModel`, which must not have any that `reasons_against_passive` names."""
        no_springs, no_dampers = ("spring" in disabled(m)), ("damper" in disabled(m))
        stiffness = np.column_stack([m.jnt_stiffness, m.jnt_stiffnesspoly]) * (not no_springs)
        damping = np.column_stack([m.dof_damping, m.dof_dampingpoly])
        tendon_damping = np.column_stack([m.tendon_damping, m.tendon_dampingpoly])
        of_actuators = np.column_stack([m.actuator_damping, m.actuator_dampingpoly])
        damping, tendon_damping = (
            x * (not no_dampers) for x in with_actuators(m, damping, tendon_damping, of_actuators)
        )
        tendon_stiffness = np.column_stack([m.tendon_stiffness, m.tendon_stiffnesspoly]) * (not no_springs)
        kinds: dict[str, list[int]] = {"free": [], "ball": [], "slide": [], "hinge": []}
        for j in np.flatnonzero(stiffness.any(axis=1)):
            kinds[enum_name("mjtJoint", m.jnt_type[j])].append(int(j))
        scalars, frees = sorted(kinds["slide"] + kinds["hinge"]), kinds["free"]
        q, v = m.jnt_qposadr, m.jnt_dofadr
        turning = [(j, int(q[j]), int(v[j])) for j in kinds["ball"]]
        turning += [(j, int(q[j]) + 3, int(v[j]) + 3) for j in frees]
        # Without springs and dampers MuJoCo computes no passive force at all.
        idle = no_springs and no_dampers
        massive = np.flatnonzero((m.body_gravcomp != 0) & (m.body_weldid > 0) & (not idle))
        bare = [j for j, _, _ in turning]
        return cls(
            springs=tuple(int(q[j]) for j in scalars),
            spring_dofs=tuple(int(v[j]) for j in scalars),
            stiffness=float_leaf(stiffness[scalars]),
            reference=float_leaf(m.qpos_spring[q[scalars]]),
            balls=tuple((a, b) for _, a, b in turning),
            ball_stiffness=float_leaf(stiffness[bare]),
            ball_reference=float_leaf(np.array([m.qpos_spring[a : a + 4] for _, a, _ in turning]).reshape(-1, 4)),
            shifts=tuple((int(q[j]), int(v[j])) for j in frees),
            shift_stiffness=float_leaf(stiffness[frees]),
            shift_reference=float_leaf(np.array([m.qpos_spring[q[j] : q[j] + 3] for j in frees]).reshape(-1, 3)),
            damped=bool(damping.any()),
            damping=float_leaf(damping),
            tendons=(bool(tendon_stiffness.any()), bool(tendon_damping.any())),
            tendon_stiffness=float_leaf(tendon_stiffness),
            tendon_rest=float_leaf(m.tendon_lengthspring),
            tendon_damping=float_leaf(tendon_damping),
            compensated=Places.of(m, "inertia", massive),
            weight=float_leaf(m.body_mass[massive] * m.body_gravcomp[massive]),
            by_actuators=tuple(m.jnt_actgravcomp[m.dof_jntid].astype(bool).tolist()),
            fluid=None if idle else Fluid.of(m),
        )


def reasons_against_passive(m) -> dict[str, str]:
    """Return, by what in an `mjModel` has passive forces that are not built, why."""
    out = {}
    for j in np.flatnonzero(m.jnt_springyield > 0):
        out[f"joint {object_name(m, 'joint', int(j))!r}"] = "its spring yields (springyield)"
    for i in range(m.nflex):
        out[f"flex {object_name(m, 'flex', i)!r}"] = "it is flexible"
    return out


def passive_forces(robot: Robot, passive: PartRows, at: Instant, tendons: TendonRows | None) -> PassiveForces:
    """Return the passive forces at a state."""
    torque = robot.broadcast(robot.zeros()) + _springs(robot, passive, at)
    slope, frees = torque * 0, FreeJoints.of(robot)
    if passive.damped:
        v = frees.to_world(at, at.v)
        force, slope = _damping(passive.damping, robot.broadcast(v))
        torque = torque + frees.to_body(at, force)
    tendon_slope, pull = None, None if tendons is None else tendons.length * 0
    if tendons is not None and pull is not None and any(passive.tendons):
        if passive.tendons[0]:
            stretch = _stretch_of_tendons(passive, tendons)
            pull = pull - _polynomial(passive.tendon_stiffness, stretch, stretch)
        if passive.tendons[1]:
            force, tendon_slope = _damping(passive.tendon_damping, tendons.velocity)
            pull = pull + force
        torque = torque + (tendons.jacobian * pull[:, None]).sum(axis=0)
    if passive.fluid is not None:
        torque = torque + fluid_forces(robot, passive.fluid, at)
    compensation = torque * 0
    if len(passive.compensated.dofs):
        lift = _compensation(robot, passive, at)
        active = robot.constant(np.array(passive.by_actuators, float))
        torque, compensation = torque + lift * (1 - active), lift * active
    return PassiveForces(torque, compensation, pull, slope, tendon_slope)


def spring_energy(robot: Robot, passive: PartRows, at: Instant, tendons: TendonRows | None):
    """Return the potential energy of the springs, `[*batch]`."""
    total: Any = jnp.zeros(robot.batch, robot.dtype)
    for factors, stretch in _stretches(passive, at):
        total = total + _potential(factors, length_of(stretch) if isinstance(stretch, Vec3) else stretch)
    if tendons is not None and passive.tendons[0]:
        total = total + _potential(passive.tendon_stiffness, _stretch_of_tendons(passive, tendons))
    return total


def _potential(factors, x):
    a, b, c = columns_of(factors)
    return (x * x * (a / 2 + x * (b / 3 + x * (c / 4)))).sum(axis=0)


def _stretch_of_tendons(passive: PartRows, tendons: TendonRows):
    lower, upper = columns_of(passive.tendon_rest)
    return jnp.maximum(tendons.length - upper, 0) + jnp.minimum(tendons.length - lower, 0)


def _stretches(passive: PartRows, at: Instant) -> list[tuple[Any, Any]]:
    """Return the factors of the springs of joints and how far they are stretched: of slides and hinges, of quaternions,
    and of the positions of free joints, along axes of the world; those that there are."""
    out = []
    if passive.springs:
        stretch = take_rows(at.q, np.array(passive.springs)) - passive.reference
        out.append((passive.stiffness, stretch))
    if passive.balls:
        coordinates, _ = np.array(passive.balls).T
        turn = Quaternion(*(take_rows(at.q, coordinates + k) for k in range(4))).normalized()
        rest = Quaternion(*columns_of(passive.ball_reference)).normalized()
        out.append((passive.ball_stiffness, rest.conjugate().multiply(turn).log()))
    if passive.shifts:
        coordinates, _ = np.array(passive.shifts).T
        here = Vec3(*(take_rows(at.q, coordinates + k) for k in range(3)))
        out.append((passive.shift_stiffness, here - Vec3(*columns_of(passive.shift_reference))))
    return out


def _polynomial(factors, x, size):
    """Return `(a + b size + c size^2) x` for factors `[n, 3, *batch]`."""
    a, b, c = columns_of(factors)
    return (a + size * (b + size * c)) * x


def _damping(factors, v):
    """Return the force of dampers and its derivative by the velocity."""
    a, b, c = columns_of(factors)
    speed = jnp.abs(v)
    return -(a + speed * (b + speed * c)) * v, -(a + speed * (2 * b + speed * (3 * c)))


def _springs(robot: Robot, passive: PartRows, at: Instant):
    """Return the torque of the springs of joints, rows `[nv]`; 0 without any."""
    torque: Any = 0.0
    stretches = iter(_stretches(passive, at))
    if passive.springs:
        factors, stretch = next(stretches)
        torque = torque - sums(_polynomial(factors, stretch, stretch), np.array(passive.spring_dofs), robot.nv)
    if passive.balls:
        torque = torque - _on_axes(_pull(*next(stretches)), np.array(passive.balls)[:, 1], robot.nv)
    if passive.shifts:
        dofs = np.array(passive.shifts)[:, 1]
        # The last degree of freedom of the joint carries its body.
        R = take_rows(at.world.rotation, dofs + 5)
        torque = torque - _on_axes(R.apply_transpose(_pull(*next(stretches))), dofs, robot.nv)
    return torque


def _pull(factors, stretch: Vec3) -> Vec3:
    size = length_of(stretch)
    return Vec3(*(_polynomial(factors, x, size) for x in (stretch.x, stretch.y, stretch.z)))


def _on_axes(x: Vec3, dofs: np.ndarray, nv: int):
    """Return rows `[nv]` with the components of vectors from these degrees of freedom on."""
    return sum(sums(c, dofs + k, nv) for k, c in enumerate((x.x, x.y, x.z)))


def _compensation(robot: Robot, passive: PartRows, at: Instant):
    place = Places.located(passive.compensated, at)
    force = robot.gravity_vector * (-passive.weight)
    force = jax.tree.map(lambda x: robot.broadcast(x + 0 * passive.weight), force)
    zero = jnp.zeros_like(force.x)
    return wrenches_on_dofs(robot, at, place, Force(Vec3(zero, zero, zero), force))
