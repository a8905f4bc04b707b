"""Analytic derivatives of inverse and forward dynamics: full matrices, and products with a row vector from the left.

Singh, Russo & Wensing, RA-L 2022, in world axes; see `_sensitivities.py`. The derivatives of forward dynamics are
`M^-1` times those of inverse dynamics at its solution (Carpentier & Mansard, RSS 2018, section III).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxdyn._compile import once
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms._mimic import constraints, multipliers, product
from jaxdyn.algorithms.recursions._algorithm import Own, batched, full, on_spanning_tree, rows
from jaxdyn.algorithms.recursions._dof_matrices import Pairs
from jaxdyn.algorithms.recursions._equations_of_motion import (
    Terms,
    before,
    passive_torque,
    spring_torque_rows,
    terms_and_motion,
)
from jaxdyn.algorithms.recursions._forward_dynamics import forward, inverse_root, solve
from jaxdyn.algorithms.recursions._sensitivities import Sensitivities, sensitivities
from jaxdyn.model import Model, Topology
from jaxdyn.model._configuration import coordinate_cotangent, integrate
from jaxdyn.model._spanning_tree import coordinates, independent_forces, tree_forces
from jaxdyn.tree._rows import rows_of, to_leading
from jaxdyn.tree._walks import sum_down, sum_up


def _matrices(topology: Topology, terms: Terms, at: Sensitivities, pairs: Pairs):
    """As `pairs` has them: the derivatives by `q` and `v` of inverse dynamics, and the mass matrix."""
    S, dS, ddS, rate, *_ = at
    inertia, B, force = sum_up(topology.dofs, (at.inertia, at.B, at.force))
    # Of a joint behind j, or j's own, moved by j: its S turns with what it carries.
    w, u = inertia.apply(S), B.apply_transpose(S)
    # Of a joint before j.
    by_q = B.apply(dS.angular) + inertia.apply(ddS) + S.cross_force(force)
    by_v = B.apply(S.angular) + inertia.apply(rate)
    S, dS, ddS, rate, w, u, by_q, by_v = once((S, dS, ddS, rate, w, u, by_q, by_v))
    dq = pairs.triangular(pairs.products((u, w), (dS.angular, ddS)), pairs.products(S, by_q))
    dv = pairs.triangular(pairs.products((u, w), (S.angular, rate)), pairs.products(S, by_v))
    return dq, dv, pairs.symmetric(once(pairs.products(w, S))) + pairs.diagonal(terms.armature)


def _spring_slope(model: Model, q, pairs: Pairs, rank: int):
    """As `pairs` has them: the derivative by `q` of the springs' torque."""

    def along(direction):
        def displaced(dv):
            return spring_torque_rows(model, integrate(model.topology, *_widened(q, dv)), rank)

        zero = jnp.zeros((model.nv,) + (1,) * rank, q.dtype)
        return full(jax.jvp(displaced, (zero,), (direction,))[1], pairs.batch)

    eye = jnp.eye(model.nv, dtype=q.dtype).reshape((model.nv, model.nv) + (1,) * rank)
    return pairs.of(jax.vmap(along, out_axes=1)(eye))


def _widened(q, dv):
    batch = jnp.broadcast_shapes(q.shape[1:], dv.shape[1:])
    return jnp.broadcast_to(q, (len(q), *batch)), jnp.broadcast_to(dv, (len(dv), *batch))


def _friction_slope(model: Model, v, rank: int):
    """Rows `[nv]`: `d friction / d v`."""
    damping, friction, scale = (rows_of(x, rank) for x in (model.damping, model.friction, model.friction_velocity))
    return damping + friction * (1 - jnp.tanh(v / scale) ** 2) / scale


@batched(lambda model: ((model.nv, model.nv),) * 3, "joint_friction", forces=(-2, -1))
def rnea_derivatives(
    model: Model, q: Configuration, v: Velocity, a: Velocity, *, joint_friction: bool = True
) -> tuple[Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"]]:
    """The derivatives of inverse dynamics, `(dtau_dq, dtau_dv, M)`, each `[*batch, nv, nv]`.

    Derivatives by `q` are on the tangent space: column `j` is the rate of `tau` along `model.integrate(q, s e_j)`, with
    `v` and `a` of a free or ball joint fixed in body axes. `dtau_dv` has the slope of joint friction in it, `M` (the
    derivative by `a`) the armature. Analytic (Singh, Russo & Wensing, RA-L 2022), in O(nv depth).

    **Arguments** and errors as for `rnea`.
    """
    (q, v, a), batch, rank = rows(model, q=q, v=v, a=a)
    terms, moving = terms_and_motion(model, q, v, None, rank)
    pairs = Pairs(model, batch)
    dq, dv, M = _matrices(model.topology, terms, sensitivities(model.topology, terms, moving, a), pairs)
    dq, dv = _with_passive(model, dq, dv, q, v, pairs, rank, joint_friction)
    return pairs.result(dq), pairs.result(dv), pairs.result(M)


def _with_passive(model: Model, dq, dv, q, v, pairs: Pairs, rank: int, joint_friction: bool):
    """The derivatives of inverse dynamics with those of springs and friction in them."""
    if model.stiffness is not None:
        dq = dq + _spring_slope(model, q, pairs, rank)
    if joint_friction:
        dv = dv + pairs.diagonal(_friction_slope(model, v, rank))
    return dq, dv


def _aba_derivatives_with_mimics(function: Callable, model: Model, q, v, tau, joint_friction: bool):
    """By those of the spanning tree, under the forces `-C^T l` that hold the constraints: with these fixed, a change
    of the free tree's acceleration is projected, `P = 1 - M^-1 C^T (C M^-1 C^T)^-1 C`."""
    tree = model.spanning_tree()
    on_tree = on_spanning_tree(model, {"q": jnp.asarray(q), "v": jnp.asarray(v)})
    tau = tree_forces(model, jnp.asarray(tau))
    a = _free_acceleration(tree, **on_tree, tau=tau, joint_friction=joint_friction)
    C = constraints(model, a.dtype)
    W = product("...ki,...ij->...kj", C, function(tree, **on_tree, tau=tau, joint_friction=joint_friction)[2])
    held = tau - product("...k,...ki->...i", multipliers(C, W, a), C)
    dq, dv, Minv = function(tree, **on_tree, tau=held, joint_friction=joint_friction)
    at = coordinates(model.topology, velocity=True)

    def projected(x):
        l = jax.vmap(lambda column: multipliers(C, W, column), in_axes=-1, out_axes=-1)(x)
        return (x - product("...ki,...kj->...ij", W, l))[..., at.own, :]

    dq, dv = (independent_forces(model, projected(x), -1, 2) for x in (dq, dv))
    return dq, dv, projected(Minv)[..., at.own]


def _free_acceleration(model: Model, q, v, tau, joint_friction: bool):
    (q, v, tau), batch, rank = rows(model, q=q, v=v, tau=tau)
    tau = tau - passive_torque(model, q, v, rank, joint_friction=joint_friction)
    return to_leading(full(forward(model.topology, terms_and_motion(model, q, v, None, rank)[0], tau)[0], batch))


@batched(lambda model: ((model.nv, model.nv),) * 3, "joint_friction", mimic=_aba_derivatives_with_mimics)
def aba_derivatives(
    model: Model, q: Configuration, v: Velocity, tau: Velocity, *, joint_friction: bool = True
) -> tuple[Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"]]:
    """The derivatives of forward dynamics, `(da_dq, da_dv, Minv)`, each `[*batch, nv, nv]`.

    Derivatives by `q` are on the tangent space, as those of `rnea_derivatives`; `Minv` is the derivative by `tau`, the
    inverse of the mass matrix. They are `-M^-1` times the derivatives of inverse dynamics at the solution (Carpentier &
    Mansard, RSS 2018), with `M^-1` applied by the articulated-body recursion.

    **Arguments** and errors as for `aba`.
    """
    (q, v, tau), batch, rank = rows(model, q=q, v=v, tau=tau)
    topology = model.topology
    terms, moving = terms_and_motion(model, q, v, None, rank)
    tau = tau - passive_torque(model, q, v, rank, joint_friction=joint_friction)
    a, factors = forward(topology, terms, tau)
    pairs = Pairs(model, batch)
    dq, dv, M = _matrices(topology, terms, sensitivities(topology, terms, moving, a), pairs)
    dq, dv = _with_passive(model, dq, dv, q, v, pairs, rank, joint_friction)
    W = pairs.of(inverse_root(topology, terms.S, factors))
    Minv = pairs.inverse(M, pairs.multiply(pairs.transpose(W), pairs.scale_rows(factors.Dinv, W)))
    Minv, dq, dv = once((Minv, dq, dv))
    return pairs.result(-pairs.multiply(Minv, dq)), pairs.result(-pairs.multiply(Minv, dv)), pairs.result(Minv)


def _products(model: Model, terms: Terms, at: Sensitivities, y, q):
    """Rows: `y` times the derivatives of inverse dynamics by the coordinates of `q`, by `v` and by `a`.

    With `Y` the sum of `S y` down the tree, every body adds `Y . (2 B x + I z)` for the `x`, `z` of each dof that moves
    it: two sums up the tree, and no matrix.
    """
    topology = model.topology
    S, dS, ddS, rate, inertia, B, force = at
    across = S * y
    Y = once(sum_down(topology.dofs, across))
    P, Q, force = sum_up(topology.dofs, (B.apply_transpose(Y), inertia.apply(Y), force))
    dq = P.dot(dS.angular) + ddS.dot(Q) + before(topology, Y, across).dot(S.cross_force(force))
    dq = coordinate_cotangent(topology, q, dq)
    if model.stiffness is not None:
        rank = q.ndim - 1
        dq = dq + jax.vjp(lambda q: full(spring_torque_rows(model, q, rank), y.shape[1:]), q)[1](y)[0]
    dv = P.dot(S.angular) + rate.dot(Q)
    return dq, dv, S.dot(Q) + terms.armature * y


def _rnea_pullback(model: Model, cotangent, q, v, a, joint_friction: bool):
    (q, v, a, y), batch, rank = rows(model, q=q, v=v, a=a, tau=cotangent)
    terms, moving = terms_and_motion(model, q, v, None, rank)
    dq, dv, da = _products(model, terms, sensitivities(model.topology, terms, moving, a), y, q)
    if joint_friction:
        dv = dv + _friction_slope(model, v, rank) * y
    return tuple(to_leading(full(x, batch)) for x in (dq, dv, da))


def _aba_pullback(model: Model, cotangent, q, v, tau, joint_friction: bool):
    (q, v, tau, y), batch, rank = rows(model, q=q, v=v, tau=tau, a=cotangent)
    topology = model.topology
    terms, moving = terms_and_motion(model, q, v, None, rank)
    tau = tau - passive_torque(model, q, v, rank, joint_friction=joint_friction)
    a, factors = forward(topology, terms, tau)
    y = solve(topology, terms, factors, full(y, batch))
    dq, dv, _ = _products(model, terms, sensitivities(topology, terms, moving, a), y, q)
    if joint_friction:
        dv = dv + _friction_slope(model, v, rank) * y
    return tuple(to_leading(full(x, batch)) for x in (-dq, -dv, y))


def _by_coordinates(model: Model, q, matrices):
    """The first of the matrices, `[*batch, nv, nv]` by the tangent space, as `[*batch, nv, nq]` by the coordinates."""
    if model.nq == model.nv:
        return matrices
    batch = matrices[0].shape[:-2]
    (q,), _, _ = rows(model, q=jnp.broadcast_to(q, (*batch, model.nq)))
    by_dof = jnp.moveaxis(matrices[0], (-1, -2), (0, 1))
    dq = jnp.moveaxis(coordinate_cotangent(model.topology, q[:, None], by_dof), (0, 1), (-1, -2))
    return dq, *matrices[1:]


def _rnea_jacobian(model: Model, q, v, a, joint_friction: bool):
    return _by_coordinates(model, q, rnea_derivatives(model, q, v, a, joint_friction=joint_friction))


def _aba_jacobian(model: Model, q, v, tau, joint_friction: bool):
    return _by_coordinates(model, q, aba_derivatives(model, q, v, tau, joint_friction=joint_friction))


OF_RNEA = Own(("q", "v", "a"), _rnea_jacobian, _rnea_pullback)
OF_ABA = Own(("q", "v", "tau"), _aba_jacobian, _aba_pullback)
