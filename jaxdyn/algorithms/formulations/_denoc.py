"""The DeNOC form: the decoupled natural orthogonal complement of a tree, and the equations of motion made with it.

Saha, Dynamics of serial multibody systems using the decoupled natural orthogonal complement matrices, Journal of
Applied Mechanics 1999; Shah, Saha & Dutt, Dynamics of Tree-Type Robotic Systems, 2013, chapters 4 and 5. Each body's
reference point is the origin of its frame, which lies on its joint.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Configuration, Float, Velocity, Wrenches
from jaxdyn.algorithms.recursions._algorithm import batched, full, on_spanning_tree, rows, with_wrenches
from jaxdyn.algorithms.recursions._body_frames import product, vectors
from jaxdyn.algorithms.recursions._equations_of_motion import kinematics, velocities
from jaxdyn.model import Model, Topology
from jaxdyn.model._spanning_tree import independent_forces
from jaxdyn.spatial import Motion, Sym3, Vec3
from jaxdyn.tree._rows import columns_of, packed_rows, to_leading
from jaxdyn.tree._tree import Tree
from jaxdyn.tree._walks import take_rows


class DeNOC(NamedTuple):
    """The matrices of the DeNOC form at one state. Twists `[linear, angular]` of the bodies' origins and wrenches
    `[force, moment]` about them, in world axes, body after body: `6 nb` numbers. (The literature has angular parts
    first: rows and columns of each body then change places in threes.)

    With them the equations of motion are

        t = N v,   N = N_l N_d,   dt/dt = N a + N_dot v,   M dt/dt + Omega M E t = w
        generalized_inertia a + convective_inertia v = tau + generalized_force
    """

    N_l: Float[Array, "*batch six_nb six_nb"]
    """Twist propagation from each body to those that it carries, lower block triangular."""
    N_d: Float[Array, "*batch six_nb nv"]
    """Motion propagation of the joints, block diagonal."""
    N_l_dot: Float[Array, "*batch six_nb six_nb"]
    N_d_dot: Float[Array, "*batch six_nb nv"]
    twist: Float[Array, "*batch six_nb"]
    """`t`"""
    M: Float[Array, "*batch nb 6 6"]
    """The blocks of the extended mass matrix."""
    OmegaME: Float[Array, "*batch nb 6 6"]
    """The blocks of `Omega M E`, with `Omega` the cross product with the angular velocity, and `E` the angular part."""
    wrench: Float[Array, "*batch six_nb"]
    """`w`: weights and external wrenches; those of constraints and drives are not in it."""
    generalized_inertia: Float[Array, "*batch nv nv"]
    """`N^T M N`, armature included: the mass matrix, as of `crba`."""
    convective_inertia: Float[Array, "*batch nv nv"]
    """`N^T (M N_dot + Omega M E N)`: times `v` the velocity terms of `rnea`. Another matrix than `coriolis_matrix`."""
    generalized_force: Float[Array, "*batch nv"]
    """`N^T w`: minus `generalized_gravity`, and what external wrenches do."""


def _matrices_shapes(model: Model):
    return (6 * model.nb, 6 * model.nb), (6 * model.nb, model.nv)


def _matrices_with_mimics(function: Callable, model: Model, **arrays):
    N_l, N_d = function(model.spanning_tree(), **on_spanning_tree(model, arrays))
    return N_l, independent_forces(model, N_d, -1, 2)


@batched(_matrices_shapes, mimic=_matrices_with_mimics)
def denoc_matrices(
    model: Model, q: Configuration
) -> tuple[Float[Array, "*batch six_nb six_nb"], Float[Array, "*batch six_nb nv"]]:
    """The decoupled natural orthogonal complement `(N_l, N_d)` `[*batch, 6 nb, 6 nb]`, `[*batch, 6 nb, nv]`.

    `N_l N_d v` are the twists of all bodies, `[linear, angular]` of the origins of their frames in world axes. `N_l`
    has the geometry between the bodies' origins, `N_d` the joints' axes alone (see `DeNOC`). Columns of joints that
    mimic others are added to those of the joints that they follow.

    **Raises** `ShapeError` where a shape does not fit.
    """
    (q,), batch, rank = rows(model, q=q)
    topology = model.topology
    poses, S = kinematics(model, q, rank)
    origins = take_rows(poses.translation, topology.body_dofs)
    return _propagation(topology, vectors(origins, batch)), _joints(topology, S.at(_of_dofs(topology, origins)), batch)


def _equations_shapes(model: Model) -> DeNOC:
    n, m = 6 * model.nb, model.nv
    blocks = (model.nb, 6, 6)
    shapes: Any = ((n, n), (n, m), (n, n), (n, m), (n,), blocks, blocks, (n,), (m, m), (m, m), (m,))
    return DeNOC(*shapes)


def _equations_with_mimics(function: Callable, model: Model, **arrays) -> DeNOC:
    out = function(model.spanning_tree(), **on_spanning_tree(model, arrays))

    def columns(x):
        return independent_forces(model, x, -1, 2)

    def both(x):
        return columns(independent_forces(model, x, -2, 2))

    return out._replace(
        N_d=columns(out.N_d),
        N_d_dot=columns(out.N_d_dot),
        generalized_inertia=both(out.generalized_inertia),
        convective_inertia=both(out.convective_inertia),
        generalized_force=independent_forces(model, out.generalized_force),
    )


@batched(_equations_shapes, mimic=_equations_with_mimics)
def denoc(model: Model, q: Configuration, v: Velocity, f_ext: Wrenches | None = None) -> DeNOC:
    """The equations of motion in the DeNOC form at one state, as `DeNOC`: dense matrices of `6 nb` rows, to look at and
    to compare with. `crba` and `rnea` are what computes.

    **Arguments**: `q` `[*batch, nq]`, `v` `[*batch, nv]`, and `f_ext` `[*batch, nb, 6]` as for `rnea`.

    **Raises** `ShapeError` where a shape does not fit.
    """
    (q, v), batch, rank = rows(model, q=q, v=v)
    f_ext, batch, rank, (q, v) = with_wrenches(model, f_ext, batch, q, v)
    topology, nb, nv = model.topology, model.nb, model.nv
    poses, S = kinematics(model, q, rank)
    _, velocity = velocities(topology, S, v)
    placed, moving = take_rows((poses, velocity), topology.body_dofs)
    twist = moving.at(placed.translation)
    # A column's rate at a fixed point, and that its reference, the origin of its body, moves.
    rate = take_rows(velocity, topology.mover).cross(S).at(_of_dofs(topology, placed.translation))
    rate = Motion(rate.angular, rate.linear + S.angular.cross(_of_dofs(topology, twist.linear)))

    N_l, N_l_dot = (
        _propagation(topology, vectors(x, batch), rate=is_rate)
        for x, is_rate in ((placed.translation, False), (twist.linear, True))
    )
    N_d = _joints(topology, S.at(_of_dofs(topology, placed.translation)), batch)
    N_d_dot = _joints(topology, rate, batch)
    N = product("...ij,...jk->...ik", N_l, N_d)
    N_dot = product("...ij,...jk->...ik", N_l_dot, N_d) + product("...ij,...jk->...ik", N_l, N_d_dot)

    m, h, I = _inertias(model, placed.rotation, rank)
    mass, first, rotational, omega = full(m, batch), vectors(h, batch), _matrix(I, batch), vectors(twist.angular, batch)
    mass, cross, turn = to_leading(mass)[..., None, None], _skew(first), _skew(omega)
    eye, zero = jnp.eye(3, dtype=q.dtype), jnp.zeros_like(cross)
    M = _blocks(mass * eye, -cross, cross, rotational)
    OmegaME = _blocks(
        zero, -product("...ij,...jk->...ik", turn, cross), zero, product("...ij,...jk->...ik", turn, rotational)
    )
    gravity = jnp.broadcast_to(model.gravity.astype(q.dtype)[..., None, :], first.shape)
    wrench = jnp.concatenate([mass[..., 0] * gravity, jnp.cross(first, gravity)], axis=-1)
    if f_ext is not None:
        wrench = wrench + f_ext

    def by_body(x):
        return x.reshape((*batch, nb, 6, nv))

    force = product("...bij,...bjk->...bik", M, by_body(N_dot)) + product("...bij,...bjk->...bik", OmegaME, by_body(N))
    inertia = product("...bki,...bkl,...blj->...ij", by_body(N), M, by_body(N))
    inertia = inertia + model.armature[..., None] * jnp.eye(nv, dtype=model.armature.dtype)
    return DeNOC(
        N_l,
        N_d,
        N_l_dot,
        N_d_dot,
        vectors(twist, batch).reshape((*batch, 6 * nb)),
        M,
        OmegaME,
        wrench.reshape((*batch, 6 * nb)),
        jnp.broadcast_to(inertia, (*batch, nv, nv)),
        product("...bki,...bkj->...ij", by_body(N), force),
        product("...bki,...bk->...i", by_body(N), wrench),
    )


def _joint_of_dof(topology: Topology) -> np.ndarray:
    return np.repeat(np.arange(topology.nb), np.diff(topology.v_starts))


def _of_dofs(topology: Topology, x):
    """For each degree of freedom what belongs to the body that its joint moves."""
    return take_rows(x, _joint_of_dof(topology))


def _propagation(topology: Topology, origins, *, rate: bool = False):
    """`N_l` from the bodies' origins `[*batch, nb, 3]`, or its rate from their velocities.

    The block from `j` to `i`, `j` carrying `i`, is `[[1, -[r x]], [0, 1]]` with `r = o_i - o_j`.
    """
    r = origins[..., :, None, :] - origins[..., None, :, :]
    shift = -_skew(r)
    zero = jnp.zeros_like(shift)
    same = zero if rate else zero + jnp.eye(3, dtype=r.dtype)
    carries = Tree(topology.parents).ancestors[:, :, None, None]
    blocks = jnp.where(carries, _blocks(same, shift, zero, same), 0)
    return jnp.swapaxes(blocks, -3, -2).reshape((*r.shape[:-3], 6 * topology.nb, 6 * topology.nb))


def _joints(topology: Topology, motions: Motion, batch: tuple[int, ...]):
    """`N_d` from its columns, rows `[nv, *batch]`."""
    columns = jnp.swapaxes(vectors(motions, batch), -1, -2)
    own = np.equal.outer(np.arange(topology.nb), _joint_of_dof(topology))
    blocks = jnp.where(own[:, None, :], columns[..., None, :, :], 0)
    return blocks.reshape((*batch, 6 * topology.nb, topology.nv))


def _inertias(model: Model, R, rank: int):
    """`[nb, *batch]`: mass, first moment and rotational inertia about the bodies' origins in world axes."""
    m, x, y, z, *moments = columns_of(packed_rows(model.inertial_parameters, rank))
    return m, R.apply(Vec3(x, y, z)), Sym3(*moments).rotated(R)


def _matrix(x: Sym3, batch: tuple[int, ...]):
    """Rows `[n, *batch]` as `[*batch, n, 3, 3]`."""
    x = jax.tree.map(lambda c: to_leading(full(c, batch)), x)
    return x.to_mat3().to_array()


def _skew(x):
    """`[x x]` `[..., 3, 3]` of vectors `[..., 3]`."""
    return jnp.swapaxes(jnp.cross(x[..., None, :], jnp.eye(3, dtype=x.dtype)), -1, -2)


def _blocks(a, b, c, d):
    """`[[a, b], [c, d]]` of `[..., 3, 3]`."""
    a, b, c, d = jnp.broadcast_arrays(a, b, c, d)
    return jnp.concatenate([jnp.concatenate([a, b], axis=-1), jnp.concatenate([c, d], axis=-1)], axis=-2)
