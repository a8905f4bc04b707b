"""The step with contact, and the forces in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn import joints
from jaxdyn._types import Array, Float
from jaxdyn.algorithms import forward_kinematics
from jaxdyn.algorithms.recursions import RobotAndParts
from jaxdyn.contact._contacts import ShapeContacts
from jaxdyn.contact._step_equations import STEP, forces
from jaxdyn.model import Model, Topology, mimic_coordinates, spanning_coordinates, tree_forces
from jaxdyn.solve import SolverReport, solve
from jaxdyn.spatial import Vec3, so3_exp, so3_left_jacobian_solve
from jaxdyn.tree import rows_of, to_leading


class ContactForces(eqx.Module):
    """The contacts of a world, in the order of `World.contact_names`."""

    gap: Float[Array, "*batch nc"]
    """The distance to the surface, m; negative where they overlap, infinite for what MuJoCo does not report."""
    normal: Float[Array, "*batch nc 3"]
    """The unit normal of the surface, of a pair from the first link to the second, in world axes."""
    point: Float[Array, "*batch nc 3"]
    """The point at which the force acts, in the world, m."""
    force: Float[Array, "*batch nc 3"]
    """The force on the robot, of a pair on the second link, in world axes, N."""


def moved_straight(model: Model, q: Any, v: Any, a: Any, dt: Any) -> tuple[Any, Any]:
    """Return the configuration and the velocity after a step with the accelerations `a` in the axes of its start."""
    # One primitive: XLA computes the rotation of a free joint again for each number of its derivative.
    end = joints.apply_to_rows(end_of_step, model.topology, q, v + dt * a, jnp.reshape(dt, (1,)))
    return end[..., : model.nq], end[..., model.nq :]


def end_of_step(topology: Topology, q: Any, v: Any, dt: Any) -> Any:
    """Return the configuration and the velocity at the end of a step, rows `[nq + nv, *batch]`, from the configuration
    at its start, the velocity at its end in the axes of its start, and the time, rows `[1, *batch]`."""
    v, dt = to_leading(v), dt[0]
    straight = dt[..., None] * straight_motion(topology, v, dt)
    turned = _with_linear(topology, v, dt, lambda angle, linear: so3_exp(angle).apply_transpose(linear))
    rank = dt.ndim
    return jnp.concatenate([joints.integrate(topology, q, rows_of(straight, rank)), rows_of(turned, rank)])


def straight_motion(topology: Topology, v: Any, dt: Any) -> Any:
    """Return the velocity for `Model.integrate` with which the origins of free bodies move straight on for a time, at
    the velocity `v` in the axes at its start; `integrate` moves them along screws."""
    return _with_linear(topology, v, dt, so3_left_jacobian_solve)


def _with_linear(topology: Topology, v: Any, dt: Any, function: Callable[[Vec3, Vec3], Vec3]) -> Any:
    """Return velocities `[*batch, nv]` with other linear velocities of free joints, a function of the angle that the
    body turns by in a step, and of the linear velocity."""
    for start, kind in zip(topology.v_starts, topology.joint_types, strict=False):
        if kind == "free":
            linear, angular = (Vec3.from_array(v[..., start + k : start + k + 3]) for k in (0, 3))
            v = with_vector(v, start, function(angular * dt, linear))
    return v


def with_vector(x: Any, start: int, vector: Vec3) -> Any:
    """Return an array `[*batch, n]` with three other elements from `start` on.

    Not by `x.at[...].set(...)`: where the new elements depend on each other's old ones, XLA has overwritten some before
    it read them (JAX 0.12 on a CPU, within larger programs).
    """
    return jnp.concatenate([x[..., :start], vector.to_array(), x[..., start + 3 :]], axis=-1)


def contact_accelerations(
    model: Model, contacts: ShapeContacts, q: Any, v: Any, tau: Any, dt: Any
) -> tuple[Any, SolverReport]:
    """Return the accelerations `[*batch, nv]` of a step, with which `v + dt a` is the velocity at its end, in the axes
    of its start, and how its contacts were solved.

    The arguments are arrays in one precision, with all batch axes.
    """
    bound, operands = RobotAndParts.of(model, contacts, v.dtype, "contact", (q, v, tau))
    q, v = (spanning_coordinates(model, x, velocity=y) for x, y in ((q, False), (v, True)))
    tau = tree_forces(model, tau) if model.topology.mimics else tau
    arguments = {"q": q, "v": v, "tau": tau, "dt": dt}
    solved = solve(STEP, bound, operands, arguments, contacts.options)
    a = solved.a[..., mimic_coordinates(model.topology, velocity=True).own] if model.topology.mimics else solved.a
    return a, SolverReport(solved.error, solved.iterations.astype(jnp.int32), contacts.options.tolerance_of(v.dtype))


def turning_rate(model: Model, v: Any) -> Any:
    """Return what accelerations in the axes of the start have more than those in the turning axes: `w x v` for the
    linear velocity `v` of a free joint."""
    return _with_linear(model.topology, v, 1.0, lambda angular, linear: linear + angular.cross(linear)) - v


def forces_of_step(model: Model, contacts: ShapeContacts | None, q: Any, v: Any, a: Any, dt: Any) -> ContactForces:
    """Return the gaps, normals, points and forces of all contacts at a state, in the step of the length `dt` with the
    accelerations `a` in the axes of its start; zeros for both give the forces of the law at the state.

    The arguments are arrays in one precision, with all batch axes.
    """
    if contacts is None or not contacts.names:
        none = jnp.zeros((*v.shape[:-1], 0), v.dtype)
        return ContactForces(none, *(jnp.zeros((*none.shape, 3), none.dtype) for _ in range(3)))
    bound, operands = RobotAndParts.of(model, contacts, v.dtype, "contact_forces", (q, v))
    a, q, v = (spanning_coordinates(model, x, velocity=y) for x, y in ((a, True), (q, False), (v, True)))
    gap, *vectors = bound.call(forces, operands, a, q, v, dt)
    return ContactForces(gap, *(jnp.stack(jax.tree.leaves(x), axis=-1) for x in vectors))


def contact_wrenches(model: Model, contacts: ShapeContacts, q: Any, v: Any) -> Any:
    """Return the wrenches `[force, moment]` of all contacts on the bodies at a state, `[*batch, nb, 6]`, in world axes
    at the origins of the bodies' frames."""
    found = forces_of_step(model, contacts, q, v, jnp.zeros_like(v), jnp.zeros((), v.dtype))
    touching, origins = contacts.touching, forward_kinematics(model, q).translation
    total = jnp.zeros((*found.gap.shape[:-1], model.nb, 6), found.force.dtype)
    for bodies, sign in ((touching.bodies2, 1), (touching.bodies1, -1)):
        moving = bodies >= 0
        on, force = bodies[moving], sign * found.force[..., moving, :]
        moment = jnp.cross(found.point[..., moving, :] - origins[..., on, :], force)
        total = total.at[..., on, :].add(jnp.concatenate([force, moment], axis=-1))
    return total
