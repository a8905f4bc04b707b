"""The articulated-body form: the inertias, bias forces and factors that forward dynamics goes through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._compile import once
from jaxdyn._errors import ModelError
from jaxdyn._types import Array, Configuration, Float, Velocity, Wrenches
from jaxdyn.algorithms.recursions._algorithm import batched, full, rows, with_wrenches
from jaxdyn.algorithms.recursions._body_frames import components, force_in, motion_from, vectors
from jaxdyn.algorithms.recursions._equations_of_motion import Terms, kinematics, node_inertias, passive_torque, terms_at
from jaxdyn.algorithms.recursions._forward_dynamics import Factors, substitute
from jaxdyn.model import Model, Topology
from jaxdyn.spatial import ArticulatedInertia, Force, Inertia, Mat3, Motion, Pose, Sym3, Vec3
from jaxdyn.tree._rows import rows_of, to_leading
from jaxdyn.tree._walks import scan_up, take_rows


class Elimination(NamedTuple):
    """What the recursion from the leaves leaves of inertias, rows `[nv, *batch]`."""

    IA: ArticulatedInertia
    U: Force
    """`I^A S`"""
    D: Any
    """`S^T U + armature`"""

    @property
    def factors(self) -> Factors:
        return Factors(self.U, 1 / self.D)


def eliminate(topology: Topology, S: Motion, inertia: Inertia, armature) -> Elimination:
    """Featherstone 2008, table 7.1, in world axes, without velocities and forces."""

    def up(children, x):
        S, inertia, armature = x
        IA = inertia.articulated() + children
        U = IA.apply(S)
        D = S.dot(U) + armature
        U, D = once((U, D))
        return IA.minus_outer(U, U * (1 / D)), Elimination(IA, U, D)

    none = ArticulatedInertia(Sym3.zero(), Mat3.zero(), Sym3.zero())
    return scan_up(topology.dofs, up, none, (S, inertia, armature))


def eliminate_forces(topology: Topology, terms: Terms, tau, of: Elimination) -> tuple[Force, Any]:
    """Rows `[nv, *batch]`: the bias forces `pA`, and `u = tau - S^T pA`."""
    # What the bias acceleration takes: Ia c = IA c - U D^-1 (U . c).
    Dinv = 1 / of.D
    shifted = of.IA.apply(terms.c) - of.U * (Dinv * terms.c.dot(of.U))

    def up(children, x):
        S, p, shifted, U, Dinv, tau = x
        pA = p + children
        u = tau - S.dot(pA)
        return pA + shifted + U * (Dinv * u), (pA, u)

    return scan_up(topology.dofs, up, Force.zero(), (terms.S, terms.p, shifted, of.U, Dinv, tau))


class ArticulatedBodies(NamedTuple):
    """What the articulated-body algorithm computes on the way from the leaves to the root, and the accelerations on the
    way back (Featherstone, Rigid Body Dynamics Algorithms, 2008, section 7.3 and table 7.1; his symbols).

    Motions are `[linear, angular]`, forces `[force, moment]`, and `6 x 6` operators have that order, too. Everything is
    in the axes and at the origin of the frame of the body that the joint moves. As there, gravity is an acceleration of
    the base and no force in `pA`. A joint of several degrees of freedom is eliminated one at a time, the last one
    first, so that `D` and `u` are numbers.
    """

    IA: Float[Array, "*batch nb 6 6"]
    """The articulated-body inertia of each body: of it and all that hangs from it by joints that are free to move."""
    pA: Float[Array, "*batch nb 6"]  # noqa: N815
    """The bias force of each body: the force of the articulated body at acceleration zero."""
    U: Float[Array, "*batch nv 6"]
    """`I^A S` of each degree of freedom."""
    D: Float[Array, "*batch nv"]
    """`S^T U + armature`, the inertia that its actuator feels."""
    u: Float[Array, "*batch nv"]
    """`tau - S^T p^A`, less friction and springs."""
    a: Float[Array, "*batch nv"]
    """The accelerations, those of `aba`."""


def _bodies_shapes(model: Model) -> ArticulatedBodies:
    n, m = model.nb, model.nv
    return ArticulatedBodies((n, 6, 6), (n, 6), (m, 6), (m,), (m,), (m,))  # type: ignore[arg-type]


def no_mimics(function: Callable, model: Model, **_):
    followers = ", ".join(repr(model.joint_names[i]) for i, _ in model.topology.mimics)
    raise ModelError(
        f"{function.__name__} is of trees of independent joints, and {followers} mimic others; the quantities of the "
        "tree in which they are independent are those of model.spanning_tree(), at model.spanning_configuration(q)"
    )


@batched(lambda model: (model.nb, 6, 6), mimic=no_mimics)
def articulated_inertias(model: Model, q: Configuration) -> Float[Array, "*batch nb 6 6"]:
    """The articulated-body inertia `I^A` `[*batch, nb, 6, 6]` of every body: the inertia that it shows when everything
    that hangs from it moves freely, armature in its joints (Featherstone 2008, section 7.1).

    From an acceleration `[linear, angular]` to a force `[force, moment]`, in the axes and at the origin of the body's
    frame. Symmetric and positive semidefinite.

    **Raises** `ModelError` for a model with joints that mimic others; `ShapeError` where a shape does not fit.
    """
    (q,), batch, rank = rows(model, q=q)
    poses, S = kinematics(model, q, rank)
    IA = eliminate(model.topology, S, node_inertias(model, poses, rank), rows_of(model.armature, rank)).IA
    poses, IA = take_rows((poses, IA), model.topology.body_dofs)
    return _operators(poses, IA, batch)


def _operators(poses: Pose, IA: ArticulatedInertia, batch: tuple[int, ...]):
    """`[*batch, n, 6, 6]`, in the axes of the frames and at their origins: what becomes of the six unit motions."""
    unit = jnp.eye(6, dtype=IA.linear.xx.dtype).reshape((6, 1, 6) + (1,) * len(batch))
    poses, IA = jax.tree.map(lambda x: x[:, None], (poses, IA))
    columns = Motion(linear=Vec3(*unit[:3]), angular=Vec3(*unit[3:]))
    force = force_in(poses, IA.apply(motion_from(poses, columns)))
    table = jnp.stack([full(x, batch) for x in components(force)], axis=1)
    return jnp.moveaxis(table, (0, 1, 2), (-3, -2, -1))


@batched(_bodies_shapes, "joint_friction", mimic=no_mimics)
def articulated_bodies(
    model: Model,
    q: Configuration,
    v: Velocity,
    tau: Velocity,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> ArticulatedBodies:
    """Forward dynamics with all that the articulated-body algorithm computes, as `ArticulatedBodies`.

    **Arguments** as for `aba`, which is faster where only accelerations are wanted, and has faster derivatives.

    **Raises** `ModelError` for a model with joints that mimic others; `ShapeError` where a shape does not fit.
    """
    (q, v, tau), batch, rank = rows(model, q=q, v=v, tau=tau)
    f_ext, batch, rank, (q, v, tau) = with_wrenches(model, f_ext, batch, q, v, tau)
    topology = model.topology
    at = kinematics(model, q, rank)
    terms, _ = terms_at(model, at, v, f_ext, rank)
    tau = tau - passive_torque(model, q, v, rank, joint_friction=joint_friction)
    of = eliminate(topology, terms.S, terms.inertia, terms.armature)
    pA, u = eliminate_forces(topology, terms, tau, of)
    a = substitute(topology, terms, of.factors, u)
    # Every degree of freedom by the body that its joint moves.
    joint_of_dof = np.repeat(np.arange(model.nb), np.diff(topology.v_starts))
    of_dofs = take_rows(at.poses, topology.body_dofs[joint_of_dof])
    poses, IA, pA = take_rows((at.poses, of.IA, pA), topology.body_dofs)
    return ArticulatedBodies(
        _operators(poses, IA, batch),
        vectors(force_in(poses, pA), batch),
        vectors(force_in(of_dofs, of.U), batch),
        *(to_leading(full(x, batch)) for x in (of.D, u, a)),
    )
