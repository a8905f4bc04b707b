"""The equations of motion with closed loops: with Lagrange multipliers, and with as many unknowns as the mechanism has
degrees of freedom.

Both are made with the DeNOC matrices of the tree and of the cut joints, and solved as dense systems. `aba` solves the
same by recursions.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError, naming_arguments
from jaxdyn._types import Array, Configuration, Float, Torque, Velocity, Wrenches
from jaxdyn.algorithms._rnea import spring_torque
from jaxdyn.algorithms.formulations._cut_joints import cut_joints
from jaxdyn.algorithms.formulations._denoc import denoc
from jaxdyn.algorithms.formulations._lagrangian import friction_torque
from jaxdyn.algorithms.recursions import product
from jaxdyn.model import Model


class AugmentedEquations(NamedTuple):
    """The equations of motion of the tree together with those of the cut joints, and their solution.

    In the accelerations `a` and the forces `f` they are one symmetric system:

        M a - J^T f = force,   J a = -gamma
    """

    M: Float[Array, "*batch nv nv"]
    """The generalized inertia of the tree, `crba`."""
    J: Float[Array, "*batch nc nv"]
    """The Jacobian of the cut joints, `constraint_jacobian`."""
    force: Float[Array, "*batch nv"]
    """All generalized forces but those of the cut joints: torques, less friction and springs, weights, external
    wrenches, and less the velocity terms."""
    gamma: Float[Array, "*batch nc"]
    """The rate of `J v` at `a = 0`."""
    a: Float[Array, "*batch nv"]
    """The accelerations, those of `aba`."""
    f: Float[Array, "*batch nc"]
    """The forces of the cut joints, `constraint_forces`; the multipliers are `-f`. Where equations say the same twice,
    only `J^T f` is determined."""


@compiled("joint_friction")
def augmented_equations(
    model: Model,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> AugmentedEquations:
    """Forward dynamics with closed loops by Lagrange multipliers, as `AugmentedEquations`: the loops are cut, and the
    forces of the cut joints are unknowns beside the accelerations.

    One dense symmetric system of `nv + nc` equations, whose pseudo-inverse leaves out what redundant equations repeat.
    Singular values of about 1e-6 of the largest count as zero (in single precision 2e-3). `aba` is faster.

    **Arguments** and errors as for `aba`.

    Source: Bae & Haug, A recursive formulation for constrained mechanical system dynamics, part II, Mechanics of
    Structures and Machines 1987; Saha & Schiehlen, Recursive kinematics and dynamics for parallel structured
    closed-loop multibody systems, Mechanics of Structures and Machines 2001.
    """
    M, J, gamma, force = _equations(model, q, v, tau, f_ext, joint_friction)
    nv, nc = model.nv, model.topology.nc
    transposed = jnp.swapaxes(J, -1, -2)
    zero = jnp.zeros((*J.shape[:-2], nc, nc), J.dtype)
    K = jnp.concatenate([jnp.concatenate([M, transposed], -1), jnp.concatenate([J, zero], -1)], -2)
    x = _solve_symmetric(K, jnp.concatenate([force, -gamma], -1), _scales(M, J))
    return AugmentedEquations(M, J, force, gamma, x[..., :nv], -x[..., nv:])


class MinimalEquations(NamedTuple):
    """The equations of motion of a mechanism with closed loops without multipliers: with velocities `y`, `[n]`, of its
    own, `n` degrees of freedom, and a basis `N` of the null space of the cut joints' Jacobian, `J N = 0`,

        v = N y,   a = N dy/dt + N_dot y,   (N^T M N) dy/dt = N^T (force - M N_dot y)
    """

    N: Float[Array, "*batch nv n"]
    """The basis of the velocities that the loops allow."""
    N_dot_y: Float[Array, "*batch nv"]
    """`N_dot y`: the accelerations at `dy/dt = 0`, with which `J a + gamma = 0`."""
    inertia: Float[Array, "*batch n n"]
    """`N^T M N`"""
    force: Float[Array, "*batch n"]
    """`N^T (force - M N_dot y)`"""
    y: Float[Array, "*batch n"]
    """The velocities: `N^+ v`, or those of the named joints."""
    y_rate: Float[Array, "*batch n"]
    """Their rates."""
    a: Float[Array, "*batch nv"]
    """The accelerations of all joints, those of `aba`."""
    constraint_rank: Array
    """`[*batch]` integers, the rank of `J`. Where it is not `nv - n`, the other results are NaN."""


@naming_arguments
def minimal_equations(
    model: Model,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    f_ext: Wrenches | None = None,
    *,
    independent: int | str | Sequence[str],
    joint_friction: bool = True,
) -> MinimalEquations:
    """Forward dynamics with closed loops on the null space of their Jacobian, as `MinimalEquations`.

    **Arguments** as for `aba`, and

    - `independent`: either the number of degrees of freedom `n` that the loops leave, as in `summary()`, or the joints
      whose velocities are `y`, for instance the driven ones. A shape cannot depend on the rank of `J`, so the number is
      given; `constraint_rank` says where it is wrong, and the results are NaN there.

    With a number, `N` is an orthonormal basis by the singular value decomposition of `J`, and `N_dot = -J^+ J_dot N`,
    the rate of the basis that does not turn within the null space. The basis itself may jump between two
    configurations; the accelerations do not. With joints, `N` is the identity in their rows, and depends smoothly on
    the configuration wherever these joints determine the motion of the others; where they do not, results are NaN.
    Singular values below 1.5e-8 of the largest count as zero (in single precision 3.5e-4), so the configuration
    has to be closed much better than that, as `project_configuration` does.

    **Raises** `ModelError` for a number that the equations of the loops cannot leave, and for a joint that mimics
    another; `UnknownNameError` for a joint; `ShapeError` where a shape does not fit.

    Source: Mani, Haug & Atkinson, Application of singular value decomposition for analysis of mechanical system
    dynamics, ASME Journal of Mechanisms, Transmissions, and Automation in Design 1985; with joints: Wehage & Haug,
    Generalized coordinate partitioning for dimension reduction in analysis of constrained dynamic systems, ASME Journal
    of Mechanical Design 1982.
    """
    columns = _independent_columns(model, independent)
    return _minimal_equations(model, q, v, tau, f_ext, independent=columns, joint_friction=joint_friction)


def _independent_columns(model: Model, independent: int | str | Sequence[str]) -> int | tuple[int, ...]:
    """Return the number of degrees of freedom, or those of the named joints. **Raises** `ModelError` for a number that
    cannot be."""
    nv, nc = model.nv, model.topology.nc
    if isinstance(independent, str):
        independent = (independent,)
    columns = None
    if isinstance(independent, Sequence):
        columns = tuple(i for name in independent for i in range(nv)[model.v_index(name)])
        if len(set(columns)) < len(columns):
            raise ModelError(f"independent names a joint twice: {', '.join(map(repr, independent))}")
    try:
        n = len(columns) if columns is not None else operator.index(independent)  # type: ignore[arg-type]
    except TypeError:
        raise ModelError(
            f"independent is the number of degrees of freedom or names of joints, not {independent!r}"
        ) from None
    if not max(nv - nc, 0) <= n <= nv:
        given = f"independent is {n}" if columns is None else f"the joints of independent have {n} degrees of freedom"
        reason = f"{nc} equations on {nv} degrees of freedom leave from {max(nv - nc, 0)} to {nv}"
        raise ModelError(f"{given}, but {reason}; model.summary() says how many")
    return n if columns is None else columns


@compiled("independent", "joint_friction")
def _minimal_equations(
    model: Model, q, v, tau, f_ext, *, independent: int | tuple[int, ...], joint_friction: bool
) -> MinimalEquations:
    M, J, gamma, force = _equations(model, q, v, tau, f_ext, joint_friction)
    nv = model.nv
    # Rows of zeros, so that there are as many singular values as unknowns.
    more = max(nv - model.topology.nc, 0)
    J = jnp.concatenate([J, jnp.zeros((*J.shape[:-2], more, nv), J.dtype)], -2)
    gamma = jnp.concatenate([gamma, jnp.zeros((*gamma.shape[:-1], more), J.dtype)], -1)
    U, s, Vt = jnp.linalg.svd(lax.stop_gradient(J), full_matrices=False)
    limit = jnp.finfo(J.dtype).eps ** 0.5 * s[..., :1]
    constraint_rank = (s > limit).sum(axis=-1)
    if isinstance(independent, tuple):
        N, N_dot_y, determined = _by_partition(J, gamma, independent, limit[..., 0])
        y = jnp.broadcast_to(v, N_dot_y.shape)[..., independent]
    else:
        N, N_dot_y = _by_singular_values(J, gamma, independent, (U, s > limit, s, Vt))
        determined = jnp.ones_like(constraint_rank, bool)
        y = product("...ji,...j->...i", N, jnp.broadcast_to(v, N_dot_y.shape))
        y = jnp.linalg.solve(product("...ji,...jk->...ik", N, N), y[..., None])[..., 0]
    right = (constraint_rank == nv - N.shape[-1]) & determined
    N = jnp.where(right[..., None, None], N, jnp.nan)
    y, N_dot_y = (jnp.where(right[..., None], x, jnp.nan) for x in (y, N_dot_y))
    inertia = product("...ji,...jk,...kl->...il", N, M, N)
    reduced = product("...ji,...j->...i", N, force - product("...ij,...j->...i", M, N_dot_y))
    y_rate = jnp.linalg.solve(inertia, reduced[..., None])[..., 0]
    a = product("...ij,...j->...i", N, y_rate) + N_dot_y
    return MinimalEquations(N, N_dot_y, inertia, reduced, y, y_rate, a, constraint_rank)


def _by_singular_values(J, gamma, n: int, decomposition):
    """Return the last `n` right singular vectors, which span the null space of `J`, and `-J^+ gamma`."""
    U, kept, s, Vt = decomposition
    nv = J.shape[-1]
    inverse = jnp.where(kept, 1 / jnp.where(kept, s, 1), 0)

    def least(b):
        """The least `x` with `J x = b` for columns `b`. Its derivatives are those of this equation."""

        def squared(_, b):
            return product("...ik,...k,...jk,...jl->...il", U, inverse * inverse, U, b)

        def on(x):
            return product("...ik,...jk,...jl->...il", J, J, x)

        z = lax.custom_linear_solve(on, b, squared, symmetric=True)
        return product("...ji,...jk->...ik", J, z)

    # The product is zero. Its derivative is the rate of the basis that does not turn within the null space, whereas the
    # derivative of the decomposition does not exist.
    basis = jnp.swapaxes(Vt[..., nv - n :, :], -1, -2)
    N = basis - least(product("...ij,...jk->...ik", J, basis))
    return N, -least(gamma[..., None])[..., 0]


def _by_partition(J, gamma, columns: tuple[int, ...], limit):
    """Return the null space of `J` with the identity in the rows of the independent `columns`, the accelerations at
    which their rates are zero, and whether the columns determine the others."""
    others = np.setdiff1d(np.arange(J.shape[-1]), columns)
    Jd, Ji = J[..., others], J[..., np.array(columns, int)]
    rhs = jnp.concatenate([Ji, gamma[..., None]], -1)
    least = jnp.linalg.svd(lax.stop_gradient(Jd), compute_uv=False).min(axis=-1, initial=jnp.inf)
    Q, R = jnp.linalg.qr(Jd)
    x = -jax.scipy.linalg.solve_triangular(R, product("...ji,...jk->...ik", Q, rhs))
    N = jnp.zeros((*J.shape[:-2], J.shape[-1], len(columns)), J.dtype)
    N = N.at[..., np.array(columns, int), np.arange(len(columns))].set(1.0).at[..., others, :].set(x[..., :-1])
    N_dot_y = jnp.zeros(N.shape[:-1], J.dtype).at[..., others].set(x[..., -1])
    return N, N_dot_y, least > limit


def _equations(model: Model, q, v, tau, f_ext, joint_friction: bool):
    """Return `M`, `J`, `gamma` and all forces but those of the cut joints, with the same batch axes."""
    tree, cut = denoc(model, q, v, f_ext), cut_joints(model, q, v)
    M, J, gamma = tree.generalized_inertia, cut.J, cut.gamma
    force = tau - spring_torque(model, q) + tree.generalized_force
    force = force - product("...ij,...j->...i", tree.convective_inertia, jnp.asarray(v, M.dtype))
    if joint_friction:
        force = force - friction_torque(model, v)
    batch = jnp.broadcast_shapes(M.shape[:-2], J.shape[:-2], force.shape[:-1])
    J, gamma = jnp.broadcast_to(J, (*batch, *J.shape[-2:])), jnp.broadcast_to(gamma, (*batch, *gamma.shape[-1:]))
    return jnp.broadcast_to(M, (*batch, *M.shape[-2:])), J, gamma, jnp.broadcast_to(force, (*batch, model.nv))


def _scales(M, J):
    """Return factors of the unknowns with which all diagonal blocks of the augmented equations are about one."""
    of_M = lax.rsqrt(jnp.diagonal(M, axis1=-2, axis2=-1))
    norm = jnp.linalg.norm(J * of_M[..., None, :], axis=-1)
    # An equation that nothing can change has zeros, or their rounding errors: it is left out.
    kept = norm > jnp.finfo(J.dtype).eps ** 0.75 * norm.max(axis=-1, initial=0.0, keepdims=True)
    return lax.stop_gradient(jnp.concatenate([of_M, jnp.where(kept, 1 / jnp.where(kept, norm, 1), 0)], -1))


def _solve_symmetric(K, b, scale):
    """Return the solution of least norm, in scaled unknowns, of a consistent symmetric system, which may be singular.
    Its derivatives are those of the equation."""
    scaled = lax.stop_gradient(K * scale[..., None] * scale[..., None, :])
    values, vectors = jnp.linalg.eigh(scaled)
    size = jnp.abs(values)
    kept = size > jnp.finfo(K.dtype).eps ** 0.75 * size.max(axis=-1, keepdims=True)
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)

    def pseudo_inverse(_, b):
        return scale * product("...ik,...k,...jk,...j->...i", vectors, inverse, vectors, scale * b)

    times = functools.partial(product, "...ij,...j->...i", K)
    return lax.custom_linear_solve(times, b, pseudo_inverse, symmetric=True)
