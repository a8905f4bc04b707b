"""The step with contact, and the forces in it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError, require_time_step
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms.recursions import check_arrays
from jaxdyn.contact import _rows as rows
from jaxdyn.contact._binding import Scene
from jaxdyn.contact._contacts import Contacts
from jaxdyn.contact._solver import solve
from jaxdyn.model import Model, require_no_loops


class ContactReport(eqx.Module):
    """How well the contacts of steps were solved."""

    error: Float[Array, "*batch"]
    """The relative error of the accelerations before the last step of Newton's method: their distance to the solution,
    to first order, over the larger of the accelerations with and without contact, in the metric of the mass matrix. The
    error after that step is smaller."""
    iterations: Float[Array, "*batch"]
    """The steps of Newton's method."""
    tolerance: float = eqx.field(static=True)

    @property
    def converged(self) -> Any:
        """Whether the error was at most the tolerance; false where it is not a number."""
        return self.error <= self.tolerance


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
    last = contacts.bodies.max()
    if last >= model.nb:
        raise ModelError(
            f"contacts have a shape on body {last}, and the model has {model.nb} bodies: make them for this model"
        )
    if model.topology.mimics:
        raise ModelError("steps with contact do not take joints that mimic others yet; use model.spanning_tree()")
    require_no_loops(model.topology, "a step with contact", "use model.without_loops() for the tree alone")


def contact_accelerations(
    model: Model, contacts: Contacts, q: Any, v: Any, tau: Any, dt: Any, f_ext: Any = None
) -> tuple[Any, ContactReport]:
    """Return the accelerations `[*batch, nv]` of a step, with which `v + dt a` is the velocity at its end.

    The arguments are arrays in one precision, with all batch axes.
    """
    require_contact(model, contacts)
    scene, operands = Scene.of(model, contacts, v.dtype)
    arguments = {"q": q, "v": v, "tau": tau, "dt": dt} | ({} if f_ext is None else {"f_ext": f_ext})
    solved = solve(scene, operands, arguments, contacts.options)
    return solved.a, ContactReport(solved.error, solved.iterations, contacts.options.tolerance_of(v.dtype))


@compiled()
def contact_forces(
    model: Model,
    contacts: Contacts,
    q: Configuration,
    v: Velocity,
    *,
    a: Velocity | None = None,
    dt: float | None = None,
) -> ContactForces:
    """The gaps, normals, points and forces of all contacts at a state.

    By default the forces are those of the law at this configuration and velocity. With `a` and `dt` they are those of
    a step of length `dt` (s) from this state with the accelerations `a` `[*batch, nv]`, which are `(v1 - v) / dt` of
    the step; they act on the robot for that time.

    **Raises** `ModelError` where only one of `a` and `dt` is given, and as `step` does; `ShapeError` where a shape does
    not fit.
    """
    require_contact(model, contacts)
    if (a is None) != (dt is None):
        raise ModelError("the forces of a step need both a and dt; leave out both for those at the state")
    if dt is not None:
        require_time_step(dt)
    arrays = {"q": (Configuration, q), "v": (Velocity, v)} | ({} if a is None else {"a": (Velocity, a)})
    batch = check_arrays(model, arrays)
    dtype = jnp.result_type(model.dtype, *(x for _, x in arrays.values()))
    q, v = (jnp.broadcast_to(jnp.asarray(x, dtype), (*batch, x.shape[-1])) for x in map(jnp.asarray, (q, v)))
    a = jnp.zeros_like(v) if a is None else jnp.broadcast_to(jnp.asarray(a, dtype), v.shape)
    scene, operands = Scene.of(model, contacts, dtype)
    gap, *vectors = scene.call(rows.forces, operands, a, q, v, jnp.asarray(0.0 if dt is None else dt, dtype))
    return ContactForces(gap, *(jnp.stack(jax.tree.leaves(x), axis=-1) for x in vectors))
