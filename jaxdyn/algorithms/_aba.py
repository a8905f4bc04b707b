"""Forward dynamics by the articulated-body algorithm, with its derivative by the implicit function theorem."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxdyn._compile import once
from jaxdyn._types import Array, Configuration, Float, Velocity, Wrenches
from jaxdyn.algorithms._boundary import batched, full, rows, with_wrenches
from jaxdyn.algorithms._rnea import inverse
from jaxdyn.algorithms._terms import Terms, friction_torque, terms
from jaxdyn.model import Model, Topology
from jaxdyn.model._layout import to_leading
from jaxdyn.model._traversal import scan_down, scan_up
from jaxdyn.spatial import ArticulatedInertia, Force, Mat3, Motion, Sym3, Vec3


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
    S, inertia, c, p, gravity, armature = terms
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

    def down(parent, x):
        S, U, Dinv, u, c = x
        # a' = a_parent + c,  qdd = D^-1 (u - U^T a'),  a = a' + S qdd
        a = parent + c
        qdd = Dinv * (u - a.dot(U))
        return a + S * qdd, qdd

    qdd = scan_down(dofs, down, Motion(Vec3.zero(), -gravity), (S, U, Dinv, u, c))
    return qdd, Factors(U, Dinv)


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


def mass_matrix_product(topology: Topology, terms: Terms, x):
    """`[nv]`: `M x`."""
    still = terms._replace(
        c=jax.tree.map(jnp.zeros_like, terms.c),
        p=jax.tree.map(jnp.zeros_like, terms.p),
        gravity=jax.tree.map(jnp.zeros_like, terms.gravity),
    )
    return inverse(topology, still, x)


# Not differentiated through the recursion: forward dynamics solves inverse(terms, a) = tau for a, so its derivative is
# M^-1 (dtau - dinverse), with the derivative of inverse dynamics at the solution and one more sweep with the factors
# at hand. Half the time of the derivative of the recursion, and it serves jvp, vjp and every higher order.
@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _forward(topology: Topology, terms: Terms, tau) -> tuple[Any, Factors]:
    return eliminate_and_substitute(topology, terms, tau)


@functools.partial(_forward.defjvp, symbolic_zeros=True)
def _forward_jvp(topology: Topology, primals, tangents):
    (terms, tau), (terms_dot, tau_dot) = primals, tangents
    a, factors = _forward(topology, terms, tau)
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
    a_dot = lax.custom_linear_solve(
        functools.partial(mass_matrix_product, topology, terms),
        rhs,
        lambda _, b: solve_mass_matrix(topology, terms.S, factors, b),
        symmetric=True,
    )
    # The factors only ever enter the solve above, whose derivative does not ask for theirs.
    return (a, factors), (a_dot, jax.tree.map(jnp.zeros_like, factors))


@batched(lambda model: (model.nv,), "joint_friction")
def aba(
    model: Model,
    q: Configuration,
    v: Velocity,
    tau: Velocity,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> Float[Array, "*batch nv"]:
    """Forward dynamics: the accelerations under the actuator torques `tau`.

    `a = M(q)^-1 (tau - friction(v) + J^T f_ext - C(q, v) v - g(q))`, by the articulated-body algorithm (Featherstone,
    Rigid Body Dynamics Algorithms, 2008, section 7.3), in O(n). Derivatives of every order, forward and reverse, with
    respect to all arguments and every array of the model, are taken through the equation that `a` solves, not through
    the recursion.

    **Arguments**

    - `q` `[*batch, nq]`, `v` and `tau` `[*batch, nv]`; batch axes broadcast. For a free joint `tau` is the wrench
      `[force, moment]` in body axes.
    - `f_ext` `[*batch, nb, 6]`: external wrenches `[force, moment]` on the bodies in N and N m, in world axes, acting
      at the origin of each body's frame.
    - `joint_friction`: whether `Model.damping` and `Model.friction` act. The armature always counts.

    **Returns** `a` `[*batch, nv]`, rad/s^2 or m/s^2: the rate of `v`.

    **Raises** `ShapeError`, while tracing, where a shape does not fit.
    """
    (q, v, tau), batch, rank = rows(model, q=q, v=v, tau=tau)
    f_ext, batch, rank, (q, v, tau) = with_wrenches(model, f_ext, batch, q, v, tau)
    topology = model.topology
    if joint_friction:
        tau = tau - friction_torque(model, v, rank)
    a, _ = _forward(topology, terms(model, q, v, f_ext, rank), tau)
    return to_leading(full(a, batch))
