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
from jaxdyn.algorithms.recursions._constraint_rows import ConstraintRows, constraint_rows
from jaxdyn.algorithms.recursions._dof_matrices import DofMatrices
from jaxdyn.algorithms.recursions._equations_of_motion import (
    EquationsOfMotion,
    equations_and_velocities,
    kinematics,
    passive_torque,
)
from jaxdyn.algorithms.recursions._inverse_dynamics import inverse, mass_matrix_product
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.constraints import (
    ACCELERATIONS,
    ProximalFactors,
    mimic_rows,
    project_accelerations,
    proximal_solve,
)
from jaxdyn.spatial import ArticulatedInertia, Force, Mat3, Motion, Sym3, Vec3
from jaxdyn.tree import Tree, scan_down, scan_up, take_rows


class Factors(NamedTuple):
    """The factors of the mass matrix that the elimination computes, rows `[nv]`."""

    U: Force
    """`I^A S`"""
    Dinv: Any
    """`1 / (S^T I^A S + armature)`"""


def eliminate_and_substitute(tree: Tree, equations: EquationsOfMotion, tau) -> tuple[Any, Factors]:
    """Return the accelerations, rows `[nv]`, and the factors (Featherstone 2008, table 7.1, in world axes).

    A joint of k degrees of freedom is k nodes of one, with massless bodies between them: exact, and every division is
    by a scalar.
    """
    S, inertia, c, p, _, armature = equations

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

    leaf = ArticulatedInertia(Sym3.zero(), Mat3.zero(), Sym3.zero()), Force.zero()
    U, Dinv, u = scan_up(tree, up, leaf, (S, inertia, c, p, tau, armature))
    factors = Factors(U, Dinv)
    return substitute(tree, equations, factors, u), factors


def substitute(tree: Tree, equations: EquationsOfMotion, factors: Factors, u):
    """Return the accelerations, rows `[nv]`, from the results of the elimination."""

    def down(parent, x):
        S, U, Dinv, u, c = x
        # a' = a_parent + c,  qdd = D^-1 (u - U^T a'),  a = a' + S qdd
        a = parent + c
        qdd = Dinv * (u - a.dot(U))
        return a + S * qdd, qdd

    world = Motion(Vec3.zero(), -equations.gravity)
    return scan_down(tree, down, world, (equations.S, *factors, u, equations.c))


def substitute_forces(tree: Tree, S: Motion, factors: Factors, tau):
    """Return `M^-1 tau`, rows `[nv]`, by one sweep up and one down."""
    return _substitute_down(tree, S, factors, _substitute_up(tree, S, factors, tau))


def _substitute_up(tree: Tree, S: Motion, factors: Factors, tau):
    """Return `W tau`, rows `[nv]`, with the `W` of `inverse_root`."""

    def up(p, x):
        S, U, Dinv, tau = x
        u = tau - S.dot(p)
        return p + U * (Dinv * u), u

    return scan_up(tree, up, Force.zero(), (S, *factors, tau))


def _substitute_down(tree: Tree, S: Motion, factors: Factors, u):
    """Return `W^T D^-1 u`, rows `[nv]`."""

    def down(a, x):
        S, U, Dinv, u = x
        qdd = Dinv * (u - a.dot(U))
        return a + S * qdd, qdd

    return scan_down(tree, down, Motion.zero(), (S, *factors, u))


def inverse_root(tree: Tree, S: Motion, factors: Factors):
    """Return `W` `[nv, nv, *batch]` with `M^-1 = W^T D^-1 W` (Rodriguez, Jain & Kreutz-Delgado 1991, the innovations
    form).

    Column `k` holds what a unit torque at `k` leaves to itself and to each of its ancestors on the way up. All columns
    climb at once, a level a step.
    """
    nv, path = tree.size, tree.paths
    U, Dinv = factors

    def up(p, step):
        ancestor, inside = step
        S_k, U_k, Dinv_k = jax.tree.map(lambda x: x[ancestor], (S, U, Dinv))
        u = jnp.where(inside.reshape((nv,) + (1,) * (Dinv.ndim - 1)), -S_k.dot(p), 0)
        return p + U_k * (Dinv_k * u), u

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


def solve_tree(tree: Tree, equations: EquationsOfMotion, factors: Factors, b):
    """Return `M^-1 b`, rows `[nv]`, for the tree without constraints, with the derivatives of that equation."""
    # The derivative of a solve does not depend on how the factors change, and JAX fails at their tangent of zero.
    factors = lax.stop_gradient(factors)
    return lax.custom_linear_solve(
        functools.partial(mass_matrix_product, tree, equations),
        b,
        lambda _, b: substitute_forces(tree, equations.S, factors, b),
        symmetric=True,
    )


class HeldFactors(NamedTuple):
    """The factors of the equations `M x + J^T l = b`, `J x = c`, which are not differentiated."""

    tree: Factors
    u: Any
    """`W J^T`, rows `[nv, m]`, with the `W` of `inverse_root`: with `D^-1` its square is `J M^-1 J^T`."""
    left: Any
    """Its two factors, `[*batch, m, nv]` and `[*batch, nv, m]`."""
    right: Any
    proximal: ProximalFactors

    @classmethod
    def of(cls, tree: Tree, S: Motion, factors: Factors, rows: ConstraintRows, single: float) -> HeldFactors:
        """Return the factors; one sweep up takes all rows. `single` as for `ProximalFactors`."""
        S, factors, rows = lax.stop_gradient((S, factors, rows))
        J, sizes = rows.J, rows.sizes
        many, of_many = jax.tree.map(lambda x: x[:, None], (S, factors))
        u = _substitute_up(tree, many, of_many, jnp.swapaxes(jnp.concatenate([J, sizes.others]), 0, 1))
        squares = sizes.of(jnp.moveaxis((u * u * of_many.Dinv).sum(axis=0), 0, -1))
        u = u[:, : len(J)]
        left, right = jnp.moveaxis(u, (0, 1), (-1, -2)), jnp.moveaxis(u * of_many.Dinv, (0, 1), (-2, -1))
        return cls(factors, u, left, right, ProximalFactors.of(_matmul(left, right), squares, rows.opening, single))


def solve_held(
    tree: Tree,
    equations: EquationsOfMotion,
    factors: Factors,
    rows: ConstraintRows,
    b,
    c,
    *,
    single: float = ACCELERATIONS,
    held: HeldFactors | None = None,
) -> tuple[Any, Any]:
    """Return the `x`, rows `[nv]`, and the multipliers `l`, rows `[m]`, with `M x + J^T l = b` and `J x = c` for the
    `J` of `rows`, with the derivatives of these equations, to every order. What `l` has in the null space of `J^T` does
    not reach `x`. `single` as for `ProximalFactors`; `held` has the factors where they are at hand."""
    J, S = rows.J, lax.stop_gradient(equations.S)
    held = HeldFactors.of(tree, S, factors, rows, single) if held is None else held

    def product(unknowns):
        x, l = unknowns
        return mass_matrix_product(tree, equations, x) + _on_joints(J, l), _rates(J, x)

    def solution(_, right):
        b, c = right
        x = substitute_forces(tree, S, held.tree, b)
        return _hold(tree, S, held, _rates(lax.stop_gradient(J), x) - c, x)

    return lax.custom_linear_solve(product, (b, c), solution, symmetric=True)


def _hold(tree: Tree, S: Motion, held: HeldFactors, rates, a) -> tuple[Any, Any]:
    """Return the accelerations `a - M^-1 J^T l`, rows `[nv]`, with `J M^-1 J^T l` the `rates` that shall vanish, rows
    `[m]`, and `l`, solved for as in `proximal_solve`. One sweep down has what all multipliers do together."""
    b = jnp.moveaxis(rates, 0, -1)[..., None]
    x = held.proximal.steps(b, lambda x: _matmul(held.left, _matmul(held.right, x)))
    l = jnp.moveaxis(x[..., 0], -1, 0)
    return a - _substitute_down(tree, S, held.tree, (held.u * l[None]).sum(axis=1)), l


def _on_joints(J, l):
    return (J * l[:, None]).sum(axis=0)


def _rates(J, x):
    return (J * x[None]).sum(axis=1)


class Forward(NamedTuple):
    """The solution of forward dynamics."""

    a: Any
    """The accelerations, rows `[nv]`."""
    factors: Factors
    """The factors of the mass matrix of the tree."""
    multipliers: Any = None
    """With loops and couplings, the `l` with which all constraints hold the tree by the torques `-J^T l`, rows
    `[m]`."""


# Not differentiated through the recursion: forward dynamics solves inverse(equations, a) + J^T l = tau, J a + gamma = 0
# for a and l, so their derivatives solve the same linear equations, with the derivatives of inverse dynamics and of the
# rows at the solution, by one more sweep with the factors at hand. Half the time of the derivative of the recursion,
# and it serves jvp, vjp and every higher order.
@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def forward_tree(tree: Tree, equations: EquationsOfMotion, tau, rows: ConstraintRows | None) -> Forward:
    """Solve for the accelerations of the tree, held by the constraints `rows` if there are any."""
    a, factors = eliminate_and_substitute(tree, equations, tau)
    if rows is None:
        return Forward(a, factors)
    held = HeldFactors.of(tree, equations.S, factors, rows, ACCELERATIONS)
    a, multipliers = _hold(tree, equations.S, held, _rates(rows.J, a) + rows.gamma, a)
    return Forward(a, factors, multipliers)


@functools.partial(forward_tree.defjvp, symbolic_zeros=True)
def _forward_jvp(tree: Tree, primals, tangents):
    (equations, tau, rows), (equations_dot, tau_dot, rows_dot) = primals, tangents
    solution = forward_tree(tree, equations, tau, rows)
    a, factors, l = solution
    leaves, structure = jax.tree.flatten((equations, rows))
    dots = jax.tree.leaves((equations_dot, rows_dot), is_leaf=lambda x: isinstance(x, SymbolicZero))
    # Only what is perturbed is differentiated; a zero tangent made explicit would be computed with.
    perturbed = [i for i, dot in enumerate(dots) if not isinstance(dot, SymbolicZero)]

    def residual(*values):
        changed = list(leaves)
        for i, value in zip(perturbed, values, strict=True):
            changed[i] = value
        equations, rows = jax.tree.unflatten(structure, changed)
        forces = inverse(tree, equations, a)
        return (forces,) if rows is None else (forces + _on_joints(rows.J, l), _rates(rows.J, a) + rows.gamma)

    b = jnp.zeros_like(a) if isinstance(tau_dot, SymbolicZero) else jnp.broadcast_to(tau_dot, a.shape)
    right = (b,) if rows is None else (b, jnp.zeros_like(l))
    if perturbed:
        turned = jax.jvp(residual, [leaves[i] for i in perturbed], [dots[i] for i in perturbed])[1]
        right = tuple(x - y for x, y in zip(right, turned, strict=True))
    if rows is None:
        a_dot, l_dot = solve_tree(tree, equations, factors, *right), None
    else:
        a_dot, l_dot = solve_held(tree, equations, factors, rows, *right)
    # The factors only enter solves and inverses, whose derivatives do not depend on how they change.
    return solution, Forward(a_dot, jax.tree.map(jnp.zeros_like, factors), l_dot)


def forward(robot: Robot, equations: EquationsOfMotion, tau, rows: ConstraintRows | None = None) -> Forward:
    """Solve the equations of motion, and the constraints, for the accelerations; `rows` are those of a robot with loops
    or couplings."""
    found = forward_tree(robot.tree, equations, tau if rows is None else robot.broadcast(tau), rows)
    return found if rows is not None else found._replace(a=hold_followers(robot, equations, found.factors, found.a))


def forward_at(robot: Robot, q, v, tau, f_ext, joint_friction: bool) -> Forward:
    """Solve for the accelerations at a state, under the torques of actuators and external wrenches."""
    at = kinematics(robot, q)
    equations, moving = equations_and_velocities(robot, *at, v, f_ext)
    tau = tau - passive_torque(robot, q, v, joint_friction)
    return forward(robot, equations, tau, constraint_rows(robot, q, at, v, moving.velocity, equations.c))


def solve(robot: Robot, equations: EquationsOfMotion, factors: Factors, b, rows: ConstraintRows | None = None):
    """Return the accelerations, rows `[nv]`, that the generalized forces `b` add: `M^-1 b` less the part of it that the
    constraints take away."""
    b = robot.broadcast(b)
    if rows is None:
        return hold_followers(robot, equations, factors, solve_tree(robot.tree, equations, factors, b))
    return solve_held(robot.tree, equations, factors, rows, b, jnp.zeros_like(rows.gamma))[0]


class ConstrainedInverse(NamedTuple):
    """The response of the accelerations to what acts, as `DofMatrices` holds it."""

    Minv: Any
    """The derivative by generalized forces."""
    to_rates: Any = None
    """`[nv, m]`: with loops and couplings, the accelerations `M^-1 J^T (J M^-1 J^T)^+` that answer to `-gamma`."""


def constrained_inverse(
    robot: Robot, pairs: DofMatrices, equations: EquationsOfMotion, factors: Factors, M, rows: ConstraintRows | None
) -> ConstrainedInverse:
    """Return `M^-1` less the part that the constraints take away, from the mass matrix `M`. Times a generalized force,
    it is the acceleration that the force adds."""
    W = pairs.from_rows(inverse_root(robot.tree, equations.S, factors))
    Minv = pairs.inverse(M, pairs.multiply(pairs.transpose(W), pairs.scale_rows(factors.Dinv, W)))
    if rows is not None:
        J = jnp.concatenate([rows.J, rows.sizes.others])
    elif robot.mimics is not None:
        J = mimic_rows(robot.mimics, robot.mimic_multiplier)
    else:
        return ConstrainedInverse(Minv)
    J, Minv = (jnp.moveaxis(robot.broadcast(x), (0, 1), (-2, -1)) for x in (J, pairs.to_rows(Minv)))
    Y = _matmul(Minv, jnp.swapaxes(J, -1, -2))

    def held(x):
        return pairs.from_rows(jnp.moveaxis(x, (-2, -1), (0, 1)))

    if rows is None:
        return ConstrainedInverse(held(project_accelerations(J, Y, Minv)))
    sizes = lax.stop_gradient(rows.sizes.of((J * jnp.swapaxes(Y, -1, -2)).sum(axis=-1)))
    J, Y = J[..., : len(rows.J), :], Y[..., : len(rows.J)]
    to_rates = jnp.swapaxes(proximal_solve(_matmul(J, Y), jnp.swapaxes(Y, -1, -2), sizes, rows.opening), -1, -2)
    return ConstrainedInverse(held(Minv - _matmul(to_rates, jnp.swapaxes(Y, -1, -2))), held(to_rates))


def hold_followers(robot: Robot, equations: EquationsOfMotion, factors: Factors, a):
    """Return the accelerations `a - M^-1 C^T (C M^-1 C^T)^-1 C a`, rows `[nv]`, with which joints that mimic others
    follow them: `C a = 0` (Featherstone 2008, section 8.2). The forces do no work, and `C` is constant."""
    if robot.mimics is None:
        return a
    C = mimic_rows(robot.mimics, robot.mimic_multiplier)
    Y = _responses(robot, equations, factors, C)
    C, Y, a = (jnp.moveaxis(robot.broadcast(x), (0, 1), (-2, -1)) for x in (C, Y, a[:, None]))
    return jnp.moveaxis(project_accelerations(C, Y, a)[..., 0], -1, 0)


def _responses(robot: Robot, equations: EquationsOfMotion, factors: Factors, J):
    """Return `M^-1 J^T` `[nv, m, *batch]` for rows `J` `[m, nv, *batch]`, which are the first batch axis of one
    solve."""
    many, factors = jax.tree.map(lambda x: x[:, None], (equations, factors))
    rows = robot.with_batch_axis(len(J)).broadcast(jnp.swapaxes(J, 0, 1))
    return solve_tree(robot.tree, many, factors, rows)


def _matmul(x, y):
    return jnp.matmul(x, y, precision=lax.Precision.HIGHEST)
