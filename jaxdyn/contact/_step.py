"""The step with contact, and the forces in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn import joints
from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError, require_time_step
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms import aba, forward_kinematics
from jaxdyn.algorithms.recursions import RobotAndParts, check_arrays
from jaxdyn.contact._contacts import Contacts
from jaxdyn.contact._step_equations import STEP, forces
from jaxdyn.model import Model, Topology, mimic_coordinates, spanning_coordinates, tree_forces
from jaxdyn.solve import SolverReport, solve
from jaxdyn.spatial import Vec3, so3_exp, so3_left_jacobian_solve
from jaxdyn.tree import rows_of, to_leading


class ContactForces(eqx.Module):
    """The contacts of a robot, in the order of `Contacts.names`."""

    gap: Float[Array, "*batch nc"]
    """The distance to the surface, m; negative where they overlap."""
    normal: Float[Array, "*batch nc 3"]
    """The unit normal of the surface, in world axes."""
    point: Float[Array, "*batch nc 3"]
    """The point at which the force acts, in the world, m."""
    force: Float[Array, "*batch nc 3"]
    """The force on the robot, in world axes, N."""


def require_contact(model: Model, contacts: Contacts) -> None:
    """Raise `ModelError` for a model that steps with contact do not take, or for contacts of another model."""
    last = contacts.touching.bodies2.max()
    if last >= model.nb:
        raise ModelError(
            f"contacts have a shape on body {last}, and the model has {model.nb} bodies: make them for this model"
        )


def contact_step(
    model: Model, contacts: Contacts, q: Any, v: Any, tau: Any, dt: Any, f_ext: Any = None
) -> tuple[Any, Any, SolverReport]:
    """Return the configuration and the velocity after a step, and how its contacts were solved.

    The arguments are arrays in one precision, with all batch axes.
    """
    a, report = contact_accelerations(model, contacts, q, v, tau, dt, f_ext)
    # One primitive: XLA computes the rotation of a free joint again for each number of its derivative.
    end = joints.apply_to_rows(end_of_step, model.topology, q, v + dt * a, jnp.reshape(dt, (1,)))
    return end[..., : model.nq], end[..., model.nq :], report


def end_of_step(topology: Topology, q: Any, v: Any, dt: Any) -> Any:
    """Return the configuration and the velocity at the end of a step, rows `[nq + nv, *batch]`, from the configuration
    at its start, the velocity at its end in the axes of its start, and the time, rows `[1, *batch]`."""
    v, dt = to_leading(v), dt[0]
    straight = dt[..., None] * _with_linear(topology, v, dt, so3_left_jacobian_solve)
    turned = _with_linear(topology, v, dt, lambda angle, linear: so3_exp(angle).apply_transpose(linear))
    rank = dt.ndim
    return jnp.concatenate([joints.integrate(topology, q, rows_of(straight, rank)), rows_of(turned, rank)])


def straight_motion(model: Model, v: Any, dt: Any) -> Any:
    """Return the velocity for `Model.integrate` with which the origins of free bodies move straight on for a time, at
    the velocity `v` in the axes at its start; `integrate` moves them along screws."""
    return _with_linear(model.topology, v, dt, so3_left_jacobian_solve)


def in_axes_of_start(model: Model, v: Any, dt: Any) -> Any:
    """Return velocities at the end of a step in the axes of its start."""
    return _with_linear(model.topology, v, dt, lambda angle, linear: so3_exp(angle).apply(linear))


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
    model: Model, contacts: Contacts, q: Any, v: Any, tau: Any, dt: Any, f_ext: Any = None
) -> tuple[Any, SolverReport]:
    """Return the accelerations `[*batch, nv]` of a step, with which `v + dt a` is the velocity at its end, in the axes
    of its start.

    The arguments are arrays in one precision, with all batch axes.
    """
    require_contact(model, contacts)
    bound, operands = RobotAndParts.of(model, contacts, v.dtype, "contact", (q, v, tau))
    q, v = (spanning_coordinates(model, x, velocity=y) for x, y in ((q, False), (v, True)))
    tau = tree_forces(model, tau) if model.topology.mimics else tau
    arguments = {"q": q, "v": v, "tau": tau, "dt": dt} | ({} if f_ext is None else {"f_ext": f_ext})
    solved = solve(STEP, bound, operands, arguments, contacts.options)
    a = solved.a[..., mimic_coordinates(model.topology, velocity=True).own] if model.topology.mimics else solved.a
    return a, SolverReport(solved.error, solved.iterations.astype(jnp.int32), contacts.options.tolerance_of(v.dtype))


def accelerations_of_contact(
    model: Model, contacts: Contacts, q: Any, v: Any, tau: Any, dt: Any, f_ext: Any = None
) -> tuple[Any, SolverReport]:
    """Return the part of `contact_accelerations` that contacts and joint friction add, and how they were solved."""
    a, report = contact_accelerations(model, contacts, q, v, tau, dt, f_ext)
    free = aba(model, q, v, tau, f_ext, joint_friction=False)
    return a - (free + turning_rate(model, v)), report


def turning_rate(model: Model, v: Any) -> Any:
    """Return what accelerations in the axes of the start have more than those in the turning axes: `w x v` for the
    linear velocity `v` of a free joint."""
    return _with_linear(model.topology, v, 1.0, lambda angular, linear: linear + angular.cross(linear)) - v


@compiled()
def contact_forces(
    model: Model,
    contacts: Contacts,
    q: Configuration,
    v: Velocity,
    *,
    after: Velocity | None = None,
    dt: float | None = None,
) -> ContactForces:
    """The gaps, normals, points and forces of all contacts at a state.

    By default the forces are those of the law at this configuration and velocity. With `after` and `dt` they are those
    of the step of length `dt` (s) that began at this state and ended with the velocity `after` `[*batch, nv]`; they act
    on the robot for that time.

    **Raises** `ModelError` where only one of `after` and `dt` is given, and as `step` does; `ShapeError` where a shape
    does not fit.
    """
    require_contact(model, contacts)
    if (after is None) != (dt is None):
        raise ModelError("the forces of a step need both after and dt; leave out both for those at the state")
    if dt is not None:
        require_time_step(dt)
    arrays = {"q": (Configuration, q), "v": (Velocity, v)} | ({} if after is None else {"after": (Velocity, after)})
    batch = check_arrays(model, arrays)
    dtype = jnp.result_type(model.dtype, *(x for _, x in arrays.values()))
    q, v = (jnp.broadcast_to(jnp.asarray(x, dtype), (*batch, x.shape[-1])) for x in map(jnp.asarray, (q, v)))
    a, length = jnp.zeros_like(v), jnp.asarray(0.0 if dt is None else dt, dtype)
    if after is not None:
        a = (in_axes_of_start(model, jnp.broadcast_to(jnp.asarray(after, dtype), v.shape), length) - v) / length
    bound, operands = RobotAndParts.of(model, contacts, dtype, "contact_forces", (q, v))
    a, q, v = (spanning_coordinates(model, x, velocity=y) for x, y in ((a, True), (q, False), (v, True)))
    gap, *vectors = bound.call(forces, operands, a, q, v, length)
    return ContactForces(gap, *(jnp.stack(jax.tree.leaves(x), axis=-1) for x in vectors))


def contact_wrenches(model: Model, contacts: Contacts, q: Any, v: Any) -> Any:
    """Return the wrenches `[force, moment]` of all contacts on the bodies at a state, `[*batch, nb, 6]`, in world axes
    at the origins of the bodies' frames."""
    found, touching = contact_forces(model, contacts, q, v), contacts.touching
    origins = forward_kinematics(model, q).translation
    total = jnp.zeros((*found.gap.shape[:-1], model.nb, 6), found.force.dtype)
    for bodies, sign in ((touching.bodies2, 1), (touching.bodies1, -1)):
        moving = bodies >= 0
        on, force = bodies[moving], sign * found.force[..., moving, :]
        moment = jnp.cross(found.point[..., moving, :] - origins[..., on, :], force)
        total = total.at[..., on, :].add(jnp.concatenate([force, moment], axis=-1))
    return total
