"""The equations of a world at a state, on rows: what acts without constraints, and the convex problem of the rest.

Accelerations here are MuJoCo's but for the axes: those of free joints are the rates of world velocities, turned into
body axes, so that `turning_accelerations` is what they have more than this library's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn.algorithms.recursions import (
    EquationsOfMotion,
    Robot,
    constant_elimination,
    equations_and_velocities,
)
from jaxdyn.algorithms.recursions import solve as solve_tree
from jaxdyn.contact import end_of_step
from jaxdyn.rows import rates_of
from jaxdyn.solve import (
    Equations,
    Held,
    ListedTerm,
    MatrixFactors,
    MatrixForm,
    MovingBodies,
    Problem,
    Term,
    Unknown,
    added,
    apart,
    forces_of,
    mass_matrix,
    problem_of,
    push_on_dofs,
    pushes_at,
)
from jaxdyn.tree import sum_down
from jaxdyn.worlds._actuators import Actuated, actuated, next_activation
from jaxdyn.worlds._constraints import constraint_terms
from jaxdyn.worlds._contact_rows import contact_normals
from jaxdyn.worlds._free_bodies import with_gyroscopic
from jaxdyn.worlds._parts import Instant, PartRows, instant
from jaxdyn.worlds._passive import PassiveForces, passive_forces
from jaxdyn.worlds._slopes import bias_force, bias_slopes, damper_slopes, eliminated, resistance_terms, smooth_slopes
from jaxdyn.worlds._tendons import TendonInertia, TendonRows, tendon_inertia, tendon_rows


class Acting(NamedTuple):
    """All that acts at a state but constraints."""

    at: Instant
    equations: EquationsOfMotion
    tendons: TendonRows | None
    passive: PassiveForces
    actuators: Actuated
    activation: Any
    torque: Any
    """On the degrees of freedom, without constraints, rows `[nv]`."""
    along: TendonInertia | None = None
    """The inertia along tendons."""


def acting(robot: Robot, world: PartRows, q, v, control, activation, applied, contacts=None) -> Acting:
    """Return what acts at a state, without constraints; `contacts` are those that a world has searched for."""
    at = instant(robot, q, robot.broadcast(v))._replace(found=None if contacts is None else robot.broadcast(contacts))
    tendons = tendon_rows(robot, world.tendons, at) if world.tendons.names else None
    passive = passive_forces(robot, world.passive, at, tendons)
    dt = world.timestep
    normals = contact_normals(robot, world.constraints.contacts, at) if world.actuators.adhering else ()
    actuators = actuated(robot, world.actuators, at, tendons, control, activation, dt, passive.compensation, normals)
    equations, _ = equations_and_velocities(robot, *at.at, at.v)
    torque = robot.broadcast(passive.torque + actuators.torque + applied)
    along = tendon_inertia(robot, world.tendons, at, tendons)
    return Acting(at, equations, tendons, passive, actuators, activation, torque, along)


class Balance(NamedTuple):
    """All that acts at a state."""

    now: Acting
    terms: tuple[Term | ListedTerm, ...]
    """The constraints."""
    held: Held | None
    """The equations of loops, couplings and joints that mimic others, which hold exactly."""
    resistances: tuple[Term, ...] = ()
    """The rows of what dampers resist more at the end of a step, for laws of what acts there."""

    @property
    def all_terms(self) -> tuple[Term | ListedTerm, ...]:
        """All that depends on the accelerations."""
        return self.terms + self.resistances

    def pushes(self, robot: Robot, a) -> list:
        """Return the forces of the rows of all constraints at the accelerations `a`."""
        motion = sum_down(robot.tree, self.now.equations.S * a)
        return [
            x.pushes(robot, a) if isinstance(x, ListedTerm) else pushes_at(robot, [x], motion, a)[0] for x in self.terms
        ]


def balance(robot: Robot, world: PartRows, q, v, control, activation, applied, contacts=None) -> Balance:
    """Return what acts at a state."""
    now, constraints = acting(robot, world, q, v, control, activation, applied, contacts), world.constraints
    terms, dt = constraint_terms(robot, constraints, now.at, now.tendons, world.timestep), world.timestep
    held = held_at(robot, now)
    if constraints.compliance is None:
        return Balance(now, terms, held)
    return Balance(now, terms, held, tuple(resistance_terms(robot, *_smooth_parts(world, now), dt=dt)))


def balance_at_state(robot: Robot, world: PartRows, q, v, control, activation, applied) -> Balance:
    """Return the same where contacts and dampers that push by what is at the end of a step push by the state."""
    now = acting(robot, world, q, v, control, activation, applied)
    parts = world.constraints, now.at, now.tendons, world.timestep
    return Balance(now, constraint_terms(robot, *parts, at_state=True), held_at(robot, now))


def held_at(robot: Robot, now: Acting) -> Held | None:
    """Return the equations that hold exactly at a state."""
    at = now.at
    return Held.of(robot, at.at, at.q, robot.broadcast(at.v), at.velocity, now.equations.c)


def _smooth_parts(world: PartRows, now: Acting) -> tuple:
    return now.at, world.passive, now.passive, world.actuators, now.actuators, now.tendons


def bodies_of(now: Acting) -> MovingBodies:
    """Return the inertia of a world."""
    equations = now.equations
    along = None if now.along is None else now.along.matrix
    return MovingBodies(equations.S, equations.inertia, equations.armature, along)


def bias_of(robot: Robot, now: Acting):
    """Return the forces without acceleration, rows `[nv]`: MuJoCo's `qfrc_bias`."""
    bias = bias_force(robot, now.equations, now.at.v)
    return bias if now.along is None else bias + now.along.bias


def problem(robot: Robot, world: PartRows, at: Balance) -> Problem:
    """Return the convex problem of a state."""
    now = at.now
    equations = now.equations
    rest = now.torque - bias_of(robot, now)
    bodies, held = bodies_of(now), at.held
    if held is None and bodies.coupling is None:
        a0 = solve_tree(robot, equations, constant_elimination(robot, equations).factors, rest)
    else:
        factors = MatrixForm.of(robot, bodies, (), held).step(robot, (), rest)[1]
        a0 = factors.solve(robot, rest, None if held is None else -held.gamma)[0]
    # Sweeps against slip need the matrices.
    return problem_of(robot, bodies, at.all_terms, a0, held=held, dense=world.no_slip is not None)


def residual(robot: Robot, world: PartRows, at: Balance, unknown: Unknown) -> Unknown:
    """Return what is out of balance at accelerations; zero at the solution."""
    now, a = at.now, unknown.a
    terms, lists = apart(at.all_terms)
    motion = sum_down(robot.tree, now.equations.S * a)
    wrench, torque = forces_of(robot, [term.rows for term in terms], pushes_at(robot, terms, motion, a))
    for own in lists:
        torque = added(torque, own.torque(robot, a))
    equations = now.equations
    pushed = equations if wrench is None else equations._replace(p=equations.p - wrench)
    unbalanced = bias_force(robot, pushed, now.at.v, a) - now.torque
    if now.along is not None:
        unbalanced = unbalanced + bodies_of(now).coupled(a) + now.along.bias
    unbalanced = unbalanced if torque is None else unbalanced - torque
    if at.held is None:
        return Unknown(unbalanced)
    pull, rates = at.held.unbalanced(a, unknown.multipliers)
    return Unknown(unbalanced + pull, rates)


EQUATIONS = Equations(balance, problem, residual)
"""The equations of a world."""
AT_STATE = Equations(balance_at_state, problem, residual)
"""The same without a step, for contacts of a law that is of the end of a step."""


def constraint_torque(robot: Robot, at: Balance, pushes: list):
    """Return the forces of all constraints on the degrees of freedom."""
    pairs = list(zip(at.terms, pushes, strict=True))
    own = [(term.rows, push) for term, push in pairs if isinstance(term, Term)]
    total = push_on_dofs(robot, at.now.equations.S, *zip(*own, strict=True)) if own else robot.broadcast(robot.zeros())
    return sum((term.torque_of(robot, push) for term, push in pairs if isinstance(term, ListedTerm)), total)


def after_step(robot: Robot, world: PartRows, now: Acting, a) -> tuple[Any, Any, Any]:
    """Return the configuration, velocity and activations after a step of an integrator other than `rk4`."""
    a, activation = step_accelerations(robot, world, now, a)
    end = end_of_step(robot.topology, now.at.q, robot.broadcast(now.at.v + world.timestep * a), world.timestep[None])
    nq = robot.topology.nq
    return end[:nq], end[nq:], activation


def step_accelerations(robot: Robot, world: PartRows, now: Acting, a) -> tuple[Any, Any]:
    """Return the accelerations with which a step of MuJoCo's integrator goes on, and the activations at its end."""
    after = robot.broadcast(next_activation(robot, world.actuators, now.activation, now.actuators.rate, world.timestep))
    # The accelerations of compliant contacts have the resistance of dampers.
    slope = None if world.constraints.compliance is not None else _slope(robot, world, now)
    if slope is None:
        return robot.broadcast(a), after
    # (M - dt slope) x = M a: the forces are those of the accelerations a, but for those that hold loops.
    M = _whole(robot, mass_matrix(robot, bodies_of(now)))
    damped = M - world.timestep * slope
    acting_force = rates_of(M, a)
    if world.integrator == "implicit":
        return robot.broadcast(eliminated(damped, acting_force)), after
    held = held_at(robot, now)
    factors = MatrixFactors.of(damped, held)
    x = factors.solve(robot, acting_force, None if held is None else -held.gamma)[0]
    if world.integrator == "implicitfast" and world.free_bodies:
        x = with_gyroscopic(robot, now.at, world.free_bodies, damped, acting_force, x, world.timestep)
    return x, after


def _whole(robot: Robot, M):
    """Return the symmetric matrix whose lower triangle is given, with the zeros of a tree's mass matrix."""
    lower = jnp.where(robot.constant(np.tril(robot.topology.dof_ancestors)) > 0, M, jnp.zeros((), M.dtype))
    strict = robot.constant(np.tri(robot.nv, k=-1))
    return lower + jnp.swapaxes(lower * strict, 0, 1)


def _slope(robot: Robot, world: PartRows, now: Acting):
    """Return the derivative of forces by velocities that the integrator takes implicitly, `[nv, nv]`, or None."""
    if world.integrator == "euler":
        return damper_slopes(robot, now.at, now.passive) if world.damped else None
    parts = _smooth_parts(world, now)
    if world.integrator == "implicitfast":
        return smooth_slopes(robot, *parts, symmetric=True)
    return smooth_slopes(robot, *parts, symmetric=False) - bias_slopes(robot, now.at)


def activation_rates(robot: Robot, world: PartRows, q, v, control, activation, applied):
    """Return the rates of the activations, which need no constraints."""
    return robot.broadcast(acting(robot, world, q, v, control, activation, applied).actuators.rate)


def activations(robot: Robot, world: PartRows, activation, rate):
    """Return the activations after a time step with these rates."""
    return robot.broadcast(next_activation(robot, world.actuators, activation, rate, world.timestep))
