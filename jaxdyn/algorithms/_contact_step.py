"""The step of velocities in which contacts hold, or an impulse where its length is zero, and its derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._compile import once
from jaxdyn._types import Array, Configuration, Float, Numbers, Torque, Velocity, Wrenches
from jaxdyn.algorithms.recursions import (
    AnalyticDerivatives,
    ConstraintRows,
    ContactFrames,
    DofMatrices,
    EquationsOfMotion,
    Factors,
    Kinematics,
    Robot,
    Sensitivities,
    Sizes,
    Velocities,
    algorithm,
    body_matrices,
    body_products,
    constrained_inverse,
    constraint_errors,
    constraint_rows,
    contact_rate_derivatives,
    equations_and_velocities,
    external_forces,
    forward,
    joint_friction_law,
    kinematics_and_poses,
    passive_torque,
    rows_alike,
    sensitivities,
    solve_held,
    spring_products,
    spring_slope,
    turning,
)
from jaxdyn.constraints import least_opening, mimic_rows
from jaxdyn.joints import coordinate_cotangent
from jaxdyn.model import Model, Topology, mimic_coordinates
from jaxdyn.tree import sum_down

type Contacts = tuple[tuple[str, str], ...]
"""The frame and the kind, `"point"` or `"surface"`, of each contact."""


class ContactStep(NamedTuple):
    """The result of `contact_step`."""

    change: Float[Array, "*batch nv"]
    """The change of the velocity."""
    impulses: Float[Array, "*batch m"]
    """The impulses of the contacts on the robot, N s and N m s, in world axes; zero where they do not hold."""


class ContactStepDerivatives(NamedTuple):
    """The result of `contact_step`, and its derivatives by the tangent space of `q`, by `v`, and by `tau`."""

    step: ContactStep
    of_change: tuple[Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"]]
    of_impulses: tuple[Float[Array, "*batch m nv"], Float[Array, "*batch m nv"], Float[Array, "*batch m nv"]]


def contact_step(
    model: Model,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    rule: Numbers,
    holds: Numbers,
    drift_shares: Numbers,
    targets: Numbers | None = None,
    f_ext: Wrenches | None = None,
    *,
    contacts: Contacts,
) -> ContactStep:
    """The change of the velocity over a step in which contacts hold points or surfaces of bodies to the world.

    `M dv = h (tau - friction - springs - bias) + J^T p` with `J (v + dv) = (1 - c) J v - w h Jdot v - s (x - targets)`
    for the rows of the contacts that hold, and impulses `p` of zero for the others. With a length `h` of zero and
    `c = 1` it is an impact without restitution. Loops and couplings of the model are closed at the end of the step to
    second order, and by an impulse at their velocities; joints that mimic others follow them.

    **Arguments**

    - `rule` `[*batch, 3]`: `h` (s), `c` and `s` (1/s).
    - `holds` `[*batch, m]`: 1 for rows that hold and 0 for others, a row for each component of a contact: the velocity
      of the frame's origin in world axes, and for surfaces the angular velocity.
    - `drift_shares` `[*batch, m]`: `w`.
    - `targets` `[*batch, m]`: the positions `x` where origins should be, m; rows of angular velocities have none.
      Left out, `s` has no effect.
    - `contacts`: frames on moving bodies, each with `"point"` or `"surface"`.

    Redundant rows have the multipliers of least norm. Where rows contradict each other, as those of several points of
    one body do if it turns, the motion meets them in the sense of least squares (`contact_errors` has what remains),
    and derivatives leave out how this remainder changes. **Raises** `ShapeError`, `UnknownNameError`.
    """
    solution = _contact_solution(model, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts=contacts)
    change, impulses = _split(model, solution, -1)
    return ContactStep(change, impulses)


@algorithm(sizes=lambda topology, lengths: {"rows": lengths["holds"]})
def contact_errors(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    rule: Numbers,
    holds: Numbers,
    drift_shares: Numbers,
    targets: Numbers | None = None,
    f_ext: Wrenches | None = None,
    *,
    contacts: Contacts,
) -> Float[Array, "*batch rows"]:
    """The errors of the equations of contacts that hold after the step of `contact_step`, m/s and rad/s: rounding,
    unless they contradict each other or those of loops. Arguments and errors are those of `contact_step`."""
    solved = _solve(robot, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts)
    missed = _times(solved.rows.J, solved.change) + solved.rows.gamma
    return missed[len(missed) - len(holds) :]


def contact_step_derivatives(
    model: Model,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    rule: Numbers,
    holds: Numbers,
    drift_shares: Numbers,
    targets: Numbers | None = None,
    f_ext: Wrenches | None = None,
    *,
    contacts: Contacts,
) -> ContactStepDerivatives:
    """The step of `contact_step` and its derivatives, with the same arguments and errors.

    They solve the equations of the step once more, with the derivatives of inverse dynamics (Singh, Russo & Wensing,
    RA-L 2022) and of the rows, both in closed form. For a model with loops or couplings JAX differentiates the step.
    """
    linearized = _by_jax if model.topology.has_loops else _linearized_solution
    solution, *matrices = linearized(model, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts=contacts)
    change, impulses = zip(*(_split(model, x, -2) for x in matrices), strict=True)
    return ContactStepDerivatives(ContactStep(*_split(model, solution, -1)), change, impulses)


def _split(model: Model, x, axis: int):
    """The change of the velocity, in the model's degrees of freedom, and the impulses."""
    topology = model.topology
    change, impulses = jnp.split(x, [topology.spanning.nv], axis)
    if topology.mimics:
        change = jnp.take(change, mimic_coordinates(topology, velocity=True).own, axis)
    return change, impulses


def _by_jax(
    model: Model, q, v, tau, rule, holds, drift_shares, targets, f_ext, *, contacts: Contacts
) -> tuple[Any, ...]:
    def solution(dq, v, tau):
        return _contact_solution(
            model, model.integrate(q, dq), v, tau, rule, holds, drift_shares, targets, f_ext, contacts=contacts
        )

    batch = jnp.broadcast_shapes(*(x.shape[:-1] for x in (q, v, tau, rule, holds)))
    zero, v, tau = (jnp.broadcast_to(x, (*batch, model.nv)) for x in (jnp.zeros_like(v), v, tau))
    solved, along = jax.linearize(solution, zero, v, tau)
    eye, none = jnp.eye(model.nv, dtype=v.dtype), jnp.zeros_like(zero)

    def column(unit, k: int):
        moved = [jnp.broadcast_to(unit, none.shape) if i == k else none for i in range(3)]
        return along(*moved)

    by_q, by_v, by_tau = (jax.vmap(lambda unit, k=k: column(unit, k), out_axes=-1)(eye) for k in range(3))
    return solved, by_q, by_v, by_tau


class _Solution(NamedTuple):
    """The equations of a step, and what solves them."""

    at: Kinematics
    equations: EquationsOfMotion
    """Those in which accelerations are changes of velocity."""
    moving: Velocities
    frames: ContactFrames
    rows: ConstraintRows
    change: Any
    factors: Factors
    impulses: Any
    """The impulses of the contacts, rows `[m]`."""


def _solve(
    robot: Robot, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts: Contacts, root=None
) -> _Solution:
    """Solve for the change of the velocity and the impulses.

    In the unit `h` of time, velocities are `sqrt(h) v` and gravity is `h g`. With the `root` of `h`, the equations are
    those of these, of which derivatives by the state consist. Otherwise what depends on velocities is multiplied by
    `h`, so that the step can be differentiated by `h` where that is zero, too."""
    h, to_rest, of_place = rule
    at, poses = kinematics_and_poses(robot, q)
    frames = ContactFrames.of(robot, at.poses, contacts)
    wrenches = None if f_ext is None else h * f_ext
    equations, moving = equations_and_velocities(robot, *at, v if root is None else root * v)
    drift = frames.drift(robot, moving.velocity, sum_down(robot.tree, equations.c))
    others = _other_rows(robot, q, v, h, at, equations, moving)
    if root is None:
        drift = h * drift
        equations = equations._replace(c=equations.c * h, p=equations.p * h)
    p = equations.p if wrenches is None else equations.p - external_forces(robot, at.poses, wrenches)
    equations = equations._replace(p=p, gravity=equations.gravity * h)
    J = frames.jacobian(robot, at.S)
    rate = to_rest * _times(J, v) + drift_shares * drift
    if targets is not None:
        rate = rate + of_place * frames.lengths(robot) * (frames.positions(robot, poses) - targets)
    rows = _joined(robot, others, J * holds[:, None], rate * holds, frames.alike())
    change, factors, multipliers = forward(robot, equations, h * (tau - passive_torque(robot, q, v, True)), rows)
    impulses = -holds * multipliers[len(rows.J) - len(J) :]
    return _Solution(at, equations, moving, frames, rows, change, factors, impulses)


def _other_rows(robot: Robot, q, v, h, at, equations: EquationsOfMotion, moving: Velocities) -> ConstraintRows | None:
    """Return the rows of loops, couplings and joints that mimic others, which are closed at the end of the step."""
    rows = constraint_rows(robot, q, at, v, moving.velocity, equations.c)
    if rows is None:
        if robot.mimics is None:
            return None
        J = robot.broadcast(mimic_rows(robot.mimics, robot.mimic_multiplier))
        return ConstraintRows(J, _times(J, v), Sizes(J[:0], rows_alike(robot.topology, len(J))))
    # 0 = phi + h J v+ + h^2 / 2 gamma, where the last two are the displacement of closed loops to second order.
    errors = robot.broadcast(constraint_errors(robot, q))
    inverse = jnp.where(h > 0, 1 / jnp.where(h > 0, h, 1.0), 0.0)
    opened = jnp.concatenate([inverse * errors, jnp.zeros_like(rows.gamma[len(errors) :])])
    return rows._replace(gamma=_times(rows.J, v) + 0.5 * h * rows.gamma + opened)


def _joined(robot: Robot, others: ConstraintRows | None, J, rate, alike: np.ndarray) -> ConstraintRows:
    """Return the rows of contacts after others. Rows that do not hold are zero, and so are their multipliers."""
    J, rate = robot.broadcast(J), robot.broadcast(rate)
    opening = jnp.full_like(rate[0], least_opening(rate.dtype))
    if others is None:
        return ConstraintRows(J, rate, Sizes(lax.stop_gradient(J[:0]), alike), opening)
    n, m = len(others.J), len(J)
    before = rows_alike(robot.topology, n)
    alike = np.concatenate([np.where(before < n, before, before + m), n + alike])
    sizes = others.sizes._replace(alike=alike)
    opening = opening if others.opening is None else jnp.maximum(others.opening, opening)
    return ConstraintRows(jnp.concatenate([others.J, J]), jnp.concatenate([others.gamma, rate]), sizes, opening)


def _length_of(topology: Topology, lengths: dict[str, int]) -> dict[str, int]:
    return {"solution": topology.nv + lengths["holds"]}


class _Changes(NamedTuple):
    """The parts of the derivatives of a solution."""

    solved: _Solution
    root: Any
    sensitivities: Sensitivities
    equations: EquationsOfMotion
    """With the impulses of contacts among the external forces."""
    by_q: Any
    """The derivatives of the rows' rates, `[m, nv, *batch]`."""
    by_v: Any


def _changes(robot: Robot, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts: Contacts) -> _Changes:
    h, to_rest, of_place = rule
    # The root of zero has no derivative, and none is needed: a length of zero stays so in every scale of time.
    root = jnp.where(h > 0, jnp.sqrt(jnp.where(h > 0, h, 1.0)), 0.0)
    solved = _solve(robot, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts, root)
    at, equations, moving, frames, rows = solved[:5]
    force, E = frames.forces(robot, solved.impulses)
    external = turning(robot, at.poses, None if f_ext is None else h * f_ext)
    E = E if external is None else jax.tree.map(jnp.add, E, external)
    equations = equations._replace(p=equations.p - force)
    x = sensitivities(robot, equations, moving, solved.change, E)
    z = solved.change + to_rest * v
    rates = contact_rate_derivatives(robot, frames, at, moving, equations.c, z, drift_shares)
    J = frames.jacobian(robot, at.S)
    by_q, by_v = rates.by_q, root * rates.by_v + to_rest * J
    if targets is not None:
        by_q = by_q + of_place * frames.lengths(robot)[:, None] * J
    others = jnp.zeros_like(rows.J[: len(rows.J) - len(J)])
    by_q, by_v = (jnp.concatenate([others, robot.broadcast(holds[:, None] * y)]) for y in (by_q, by_v))
    return _Changes(solved, root, x, equations, by_q, by_v)


def _linearized(robot: Robot, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts: Contacts) -> tuple:
    """Return the solution, rows `[nv + m]`, and its derivatives by the tangent space of `q`, by `v` and by `tau`."""
    h, pairs = rule[0], DofMatrices(robot)
    solved, root, x, equations, rates_q, rates_v = _changes(
        robot, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts
    )
    dq, dv, M = body_matrices(pairs, equations, x)
    dv = pairs.scale_rows(robot.zeros() + root, dv) + pairs.diagonal(h * joint_friction_law(robot).slope(v))
    if robot.stiffness is not None:
        dq = dq + pairs.scale_rows(robot.zeros() + h, spring_slope(robot, q, pairs))
    Minv, to_rates = constrained_inverse(robot, pairs, equations, solved.factors, M, solved.rows)
    rates_q, rates_v = pairs.from_rows(rates_q), pairs.from_rows(rates_v)
    Minv, to_rates, dq, dv = once((Minv, to_rates, dq, dv))
    # M dx + J^T dl = -b, J dx = -r: dx = -Minv b - T r and dl = -T^T b + T^T M T r, for T = M^-1 J^T (J M^-1 J^T)^+.
    from_rates = pairs.transpose(to_rates)
    of_rates = pairs.multiply(from_rates, pairs.multiply(M, to_rates))
    out = []
    for b, r in ((dq, rates_q), (dv, rates_v)):
        x = -pairs.multiply(Minv, b) - pairs.multiply(to_rates, r)
        l = pairs.multiply(of_rates, r) - pairs.multiply(from_rates, b)
        out.append((pairs.to_rows(x), pairs.to_rows(l)))
    out.append((h * pairs.to_rows(Minv), h * pairs.to_rows(from_rates)))
    solution = jnp.concatenate([robot.broadcast(solved.change), robot.broadcast(solved.impulses)])
    return solution, *(jnp.concatenate([x, -holds[:, None] * l[len(l) - len(holds) :]]) for x, l in out)


@algorithm(motion_axes=((), (), (), (-1,)), sizes=_length_of)
def _linearized_solution(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    rule: Numbers,
    holds: Numbers,
    drift_shares: Numbers,
    targets: Numbers | None = None,
    f_ext: Wrenches | None = None,
    *,
    contacts: Contacts,
) -> tuple[
    Float[Array, "*batch solution"],
    Float[Array, "*batch solution nv"],
    Float[Array, "*batch solution nv"],
    Float[Array, "*batch solution nv"],
]:
    return _linearized(robot, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts)


def _jacobian(robot: Robot, q, v, tau, rule, holds, drift_shares, targets=None, f_ext=None, *, contacts: Contacts):
    _, dq, dv, last = _linearized(robot, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts)
    if robot.topology.nq != robot.nv:
        dq = coordinate_cotangent(robot.topology, robot.broadcast(q)[:, None], jnp.swapaxes(dq, 0, 1))
        dq = jnp.swapaxes(dq, 0, 1)
    return dq, dv, last


def _pullback(robot: Robot, y, q, v, tau, rule, holds, drift_shares, targets=None, f_ext=None, *, contacts: Contacts):
    h, y = rule[0], robot.broadcast(y)
    solved, root, x, equations, rates_q, rates_v = _changes(
        robot, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts
    )
    none = jnp.zeros_like(rates_q[: len(rates_q) - len(holds), 0])
    right = jnp.concatenate([none, -robot.broadcast(holds) * y[robot.nv :]])
    # With M w + J^T l = y of the change and J w = -(y of the multipliers), the products are -w b + l r: the matrix of
    # the equations is symmetric.
    w, l = solve_held(robot.tree, equations, solved.factors, solved.rows, y[: robot.nv], right)
    dq, dv, _ = body_products(robot, equations, x, w)
    dq = coordinate_cotangent(robot.topology, q, -dq - (l[:, None] * rates_q).sum(axis=0))
    if robot.stiffness is not None:
        dq = dq - h * spring_products(robot, q, w)
    dv = root * dv + h * joint_friction_law(robot).slope(v) * w
    return dq, -dv - (l[:, None] * rates_v).sum(axis=0), h * w


@algorithm(derivatives=AnalyticDerivatives(("q", "v", "tau"), _jacobian, _pullback, with_loops=False), sizes=_length_of)
def _contact_solution(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    rule: Numbers,
    holds: Numbers,
    drift_shares: Numbers,
    targets: Numbers | None = None,
    f_ext: Wrenches | None = None,
    *,
    contacts: Contacts,
) -> Float[Array, "*batch solution"]:
    solved = _solve(robot, q, v, tau, rule, holds, drift_shares, targets, f_ext, contacts)
    return jnp.concatenate([robot.broadcast(solved.change), robot.broadcast(solved.impulses)])


def _times(J, x):
    return (J * x[None]).sum(axis=1)
