"""The articulated-body recursion: accelerations from generalized forces, with the derivative of what it solves."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxdyn._compile import once
from jaxdyn.algorithms.recursions._equations_of_motion import Terms
from jaxdyn.algorithms.recursions._inverse_dynamics import inverse, mass_matrix_product
from jaxdyn.model import Topology
from jaxdyn.spatial import ArticulatedInertia, Force, Mat3, Motion, Sym3, Vec3
from jaxdyn.tree._walks import scan_down, scan_up, take_rows


class Factors(NamedTuple):
    """What the elimination leaves: the factors of the mass matrix, `[nv]`."""

    U: Force
    """`I^A S`"""
    Dinv: Any
    """`1 / (S^T I^A S + armature)`"""


def eliminate_and_substitute(topology: Topology, terms: Terms, tau) -> tuple[Any, Factors]:
    """`[nv]`: accelerations, and the factors (Featherstone 2008, table 7.1, in world axes).

    A joint of k degrees of freedom is k nodes of one, with massless bodies between them: exact, and every division is
    by a scalar.
    """
    S, inertia, c, p, _, armature = terms
    dofs = topology.dofs

    def up(children, x):
        (IA_children, pA_children), (S, inertia, c, p, tau, armature) = children, x
        IA = inertia.articulated() + IA_children
        pA = p + pA_children
        U = IA.apply(S)
        Dinv = 1 / (S.dot(U) + armature)
        u = tau - S.dot(pA)
        U, Dinv, u = once((U, Dinv, u))
        # Ia = IA - U D^-1 U^T,  pa = pA + Ia c + U D^-1 u
        Ia = IA.minus_outer(U, U * Dinv)
        pa = pA + Ia.apply(c) + U * (Dinv * u)
        return (Ia, pa), (U, Dinv, u)

    none = ArticulatedInertia(Sym3.zero(), Mat3.zero(), Sym3.zero())
    xs = (S, inertia, c, p, tau, armature)
    U, Dinv, u = scan_up(dofs, up, (none, Force.zero()), xs)
    factors = Factors(U, Dinv)
    return substitute(topology, terms, factors, u), factors


def substitute(topology: Topology, terms: Terms, factors: Factors, u):
    """`[nv]`: accelerations, from what the elimination leaves."""

    def down(parent, x):
        S, U, Dinv, u, c = x
        # a' = a_parent + c,  qdd = D^-1 (u - U^T a'),  a = a' + S qdd
        a = parent + c
        qdd = Dinv * (u - a.dot(U))
        return a + S * qdd, qdd

    start = Motion(Vec3.zero(), -terms.gravity)
    return scan_down(topology.dofs, down, start, (terms.S, *factors, u, terms.c))


def solve_mass_matrix(topology: Topology, S: Motion, factors: Factors, tau):
    """`[nv]`: `M^-1 tau` from the factors, by one sweep up and one down."""

    def up(p, x):
        S, U, Dinv, tau = x
        u = tau - S.dot(p)
        return p + U * (Dinv * u), u

    def down(a, x):
        S, U, Dinv, u = x
        qdd = Dinv * (u - a.dot(U))
        return a + S * qdd, qdd

    u = scan_up(topology.dofs, up, Force.zero(), (S, *factors, tau))
    return scan_down(topology.dofs, down, Motion.zero(), (S, *factors, u))


def inverse_root(topology: Topology, S: Motion, factors: Factors):
    """`[nv, nv, *batch]`: `W` with `M^-1 = W^T D^-1 W` (Rodriguez, Jain & Kreutz-Delgado 1991, the innovations form).

    Column `k` has what a unit torque at `k` leaves to itself and to each of its ancestors on the way up. All columns
    climb at once, a level a step.
    """
    nv = topology.nv
    path = topology.dofs.paths
    U, Dinv = factors

    def up(p, step):
        at, inside = step
        S_at, U_at, Dinv_at = jax.tree.map(lambda x: x[at], (S, U, Dinv))
        u = jnp.where(inside.reshape((nv,) + (1,) * (Dinv.ndim - 1)), -S_at.dot(p), 0)
        return p + U_at * (Dinv_at * u), u

    ancestors = jnp.asarray(np.maximum(path[1:], 0)), jnp.asarray(path[1:] >= 0)
    climbed = lax.scan(up, U * Dinv, ancestors)[1]
    batch = climbed.shape[2:]
    rows = jnp.concatenate([jnp.ones((1, *batch), climbed.dtype), climbed.reshape((-1, *batch))])
    # Row 0 is the one of the diagonal; a row of zeros for all that are not on one path.
    where = np.full((nv, nv), -1)
    for step, line in enumerate(path):
        for k, i in enumerate(line):
            if i >= 0:
                where[i, k] = 0 if step == 0 else 1 + (step - 1) * nv + k
    return take_rows(rows, where.ravel()).reshape((nv, nv, *batch))


def solve(topology: Topology, terms: Terms, factors: Factors, b):
    """`[nv]`: `M^-1 b`, with the derivatives of the equation that it solves."""
    return lax.custom_linear_solve(
        functools.partial(mass_matrix_product, topology, terms),
        b,
        lambda _, b: solve_mass_matrix(topology, terms.S, factors, b),
        symmetric=True,
    )


# Not differentiated through the recursion: forward dynamics solves inverse(terms, a) = tau for a, so its derivative is
# M^-1 (dtau - dinverse), with the derivative of inverse dynamics at the solution and one more sweep with the factors
# at hand. Half the time of the derivative of the recursion, and it serves jvp, vjp and every higher order.
@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def forward(topology: Topology, terms: Terms, tau) -> tuple[Any, Factors]:
    return eliminate_and_substitute(topology, terms, tau)


@functools.partial(forward.defjvp, symbolic_zeros=True)
def _forward_jvp(topology: Topology, primals, tangents):
    (terms, tau), (terms_dot, tau_dot) = primals, tangents
    a, factors = forward(topology, terms, tau)
    leaves, structure = jax.tree.flatten(terms)
    dots = jax.tree.flatten(terms_dot, is_leaf=lambda x: isinstance(x, SymbolicZero))[0]
    # Only what is perturbed is differentiated; a zero tangent made explicit would be computed with.
    perturbed = [i for i, dot in enumerate(dots) if not isinstance(dot, SymbolicZero)]

    def residual(*values):
        changed = list(leaves)
        for i, value in zip(perturbed, values, strict=True):
            changed[i] = value
        return inverse(topology, jax.tree.unflatten(structure, changed), a)

    rhs = jnp.zeros_like(a) if isinstance(tau_dot, SymbolicZero) else jnp.broadcast_to(tau_dot, a.shape)
    if perturbed:
        rhs = rhs - jax.jvp(residual, [leaves[i] for i in perturbed], [dots[i] for i in perturbed])[1]
    a_dot = solve(topology, terms, factors, rhs)
    # The factors only ever enter a solve or an inverse, whose derivatives do not ask for theirs.
    return (a, factors), (a_dot, jax.tree.map(jnp.zeros_like, factors))
