"""The inverse and the factors of the mass matrix by recursion over the tree, and products with the inverse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn._compile import compiled, once
from jaxdyn._errors import ModelError
from jaxdyn._types import Array, Configuration, Float, Velocity
from jaxdyn.algorithms._kinematics import Reference, frame_jacobian
from jaxdyn.algorithms._mimic import constraints, multipliers
from jaxdyn.algorithms.formulations._articulated_bodies import Elimination, eliminate, no_mimics
from jaxdyn.algorithms.recursions._algorithm import batched, full, on_spanning_tree, rows
from jaxdyn.algorithms.recursions._body_frames import product
from jaxdyn.algorithms.recursions._dof_matrices import Pairs
from jaxdyn.algorithms.recursions._equations_of_motion import Terms, terms
from jaxdyn.algorithms.recursions._forward_dynamics import inverse_root, solve
from jaxdyn.model import Model
from jaxdyn.model._spanning_tree import coordinates, tree_forces
from jaxdyn.tree._rows import to_leading
from jaxdyn.tree._walks import sum_up

type Part = Literal["all", "linear", "angular"]
_PARTS = {"all": slice(0, 6), "linear": slice(0, 3), "angular": slice(3, 6)}


def _elimination(model: Model, at: Terms) -> Elimination:
    # What is made of it has the derivatives of the equations that it solves, not those of the recursion.
    S, inertia, armature = lax.stop_gradient((at.S, at.inertia, at.armature))
    return eliminate(model.topology, S, inertia, armature)


def _inverse_with_mimics(function: Callable, model: Model, q):
    """The inverse of `G^T M G` from that of the spanning tree's `M`, projected on the constraints `C v = 0`:
    `M^-1 - M^-1 C^T (C M^-1 C^T)^-1 C M^-1`, in the independent rows and columns."""
    Minv = function(model.spanning_tree(), **on_spanning_tree(model, {"q": q}))
    C = constraints(model, Minv.dtype)
    W = product("...ki,...ij->...kj", C, Minv)
    l = jax.vmap(lambda column: multipliers(C, W, column), in_axes=-1, out_axes=-1)(Minv)
    own = coordinates(model.topology, velocity=True).own
    return (Minv - product("...ki,...kj->...ij", W, l))[..., own, :][..., own]


@batched(lambda model: (model.nv, model.nv), mimic=_inverse_with_mimics)
def inverse_mass_matrix(model: Model, q: Configuration) -> Float[Array, "*batch nv nv"]:
    """`M(q)^-1` `[*batch, nv, nv]`, the derivative of accelerations by torques, without `M`.

    `M^-1 = W^T D^-1 W`, with the factors of the articulated-body recursion and unit upper triangular `W`, in
    O(nv depth), and a product of matrices (Rodriguez, Jain & Kreutz-Delgado, A spatial operator algebra for manipulator
    modeling and control, IJRR 1991, the innovations form). Its derivative is `-M^-1 dM M^-1`.

    **Raises** `ShapeError` where a shape does not fit.
    """
    (q,), batch, rank = rows(model, q=q)
    at = terms(model, q, None, None, rank)
    of = _elimination(model, at)
    pairs = Pairs(model, batch)
    W = pairs.of(inverse_root(model.topology, at.S, of.factors))
    Minv = pairs.multiply(pairs.transpose(W), pairs.scale_rows(1 / of.D, W))
    return pairs.result(pairs.inverse(_matrix(model, at, pairs), Minv))


def _matrix(model: Model, at: Terms, pairs: Pairs):
    """The mass matrix as `pairs` has it."""
    force = sum_up(model.topology.dofs, at.inertia).apply(at.S)
    return pairs.symmetric(once(pairs.products(force, at.S))) + pairs.diagonal(at.armature)


def _solve_with_mimics(function: Callable, model: Model, q, rhs):
    tree = model.spanning_tree()
    at = on_spanning_tree(model, {"q": q})["q"]
    x = function(tree, at, tree_forces(model, rhs))
    C = constraints(model, x.dtype)
    W = jax.vmap(lambda row: function(tree, at, row), in_axes=-2, out_axes=-2)(C)
    x = x - product("...k,...ki->...i", multipliers(C, W, x), W)
    return x[..., coordinates(model.topology, velocity=True).own]


@batched(lambda model: (model.nv,), mimic=_solve_with_mimics)
def solve_mass_matrix(model: Model, q: Configuration, rhs: Velocity) -> Float[Array, "*batch nv"]:
    """`M(q)^-1 rhs` `[*batch, nv]`, in O(nv), by the articulated-body recursion without velocities and gravity.

    `rhs` `[*batch, nv]`: torques; the result are the accelerations that they add. Several of them at one configuration
    are a batch axis that `q` has not, or `jax.vmap`: the elimination is done once. Derivatives of every order are those
    of the linear equation.

    **Raises** `ShapeError` where a shape does not fit.

    Torques in N m or N, accelerations in rad/s^2 or m/s^2. Source: Rodriguez, Jain & Kreutz-Delgado 1991 (see
    `inverse_mass_matrix`).
    """
    (q, rhs), batch, rank = rows(model, q=q, rhs=rhs)
    at = terms(model, q, None, None, rank)
    return to_leading(full(solve(model.topology, at, _elimination(model, at).factors, full(rhs, batch)), batch))


@batched(lambda model: ((model.nv, model.nv), (model.nv,)), mimic=no_mimics)
def mass_matrix_ltdl(model: Model, q: Configuration) -> tuple[Float[Array, "*batch nv nv"], Float[Array, "*batch nv"]]:
    """Factors `(L, D)` of the mass matrix, `M = L^T diag(D) L`: `L` `[*batch, nv, nv]` unit lower triangular, `D`
    `[*batch, nv]` positive.

    In this order no zero of `M` is lost: `L[i, j]` is other than zero only where degree of freedom `j` is an ancestor
    of `i` (Featherstone 2008, section 6.5). `D` are the diagonal inertias of the articulated-body recursion and
    `L[i, j] = S_j . U_i / D_i`, so `M` itself is never formed.

    **Raises** `ModelError` for a model with joints that mimic others, whose mass matrix has other zeros; `ShapeError`
    where a shape does not fit.
    """
    return _ltdl(model, q)


def _ltdl(model: Model, q):
    (q,), batch, rank = rows(model, q=q)
    topology = model.topology
    at = terms(model, q, None, None, rank)
    of = eliminate(topology, at.S, at.inertia, at.armature)
    pairs = Pairs(model, batch)
    L = pairs.products(of.U * (1 / of.D), at.S)
    ones = jnp.ones((model.nv,) + (1,) * rank, of.D.dtype)
    L = pairs.where(np.tril(topology.dofs.ancestors, -1), L) + pairs.diagonal(ones)
    return pairs.result(L), to_leading(full(of.D, batch))


@batched(lambda model: (model.nv, model.nv), mimic=no_mimics)
def mass_matrix_cholesky(model: Model, q: Configuration) -> Float[Array, "*batch nv nv"]:
    """The lower triangular `L` `[*batch, nv, nv]` with `M = L^T L`, which has the zeros of `M` below its diagonal.

    Not the textbook's `M = L L^T`, whose factor is full for a branched tree (Featherstone 2008, section 6.5). It is
    `sqrt(D) L` of `mass_matrix_ltdl`; errors as there.
    """
    L, D = _ltdl(model, q)
    return jnp.sqrt(D)[..., None] * L


@compiled("frames", "reference", "part")
def inverse_operational_space_inertia(
    model: Model,
    q: Configuration,
    frames: str | tuple[str, ...],
    reference: Reference = "local_world_aligned",
    part: Part = "all",
) -> Float[Array, "*batch n n"]:
    """`J M^-1 J^T` `[*batch, n, n]`: from wrenches on frames to the accelerations that they give to the frames.

    `frames`: the name of one, or a tuple of names, whose Jacobians (see `frame_jacobian` for `reference`) are stacked;
    `part`: `"all"` six rows of each, `[linear(3), angular(3)]`, or only its `"linear"` or `"angular"` three. For `k`
    frames `n` is `6 k` or `3 k`. Exists where the frames cannot move in every direction, too.

    **Raises** `UnknownNameError` for a frame, `ModelError` for `reference` and `part`.

    Source: Khatib, A unified approach for motion and force control of robot manipulators, IEEE Journal on Robotics and
    Automation 1987.
    """
    J = _stacked_jacobians(model, q, frames, reference, part)
    return product("...ai,...ij,...bj->...ab", J, inverse_mass_matrix(model, q), J)


@compiled("frames", "reference", "part")
def operational_space_inertia(
    model: Model,
    q: Configuration,
    frames: str | tuple[str, ...],
    reference: Reference = "local_world_aligned",
    part: Part = "all",
) -> Float[Array, "*batch n n"]:
    """The operational-space inertia `(J M^-1 J^T)^-1` `[*batch, n, n]` of frames: the inertia that the robot, free to
    move, shows there (Khatib, A unified approach for motion and force control of robot manipulators, 1987, eq. 52).

    **Arguments** as for `inverse_operational_space_inertia`. Where the frames cannot move in every direction, at a
    singular configuration, there is none: values grow without bound or are NaN.

    **Raises** `ModelError` where fewer degrees of freedom move the frames than `n`, so that there is none at any
    configuration; else errors as there.
    """
    names = _names(frames)
    n = len(names) * (_part(part).stop - _part(part).start)
    bodies = [model.topology.frame_bodies[model.topology.frame(name)] for name in names]
    tree = model.topology.spanning
    moving = np.zeros(tree.nv, bool)
    for body in bodies:
        moving |= tree.moves_body[body] if body >= 0 else False
    # Of joints that mimic others, those that are followed.
    movers = len(set(coordinates(model.topology, velocity=True).source[moving]))
    if movers < n:
        raise ModelError(
            f"the inertia of frames {', '.join(map(repr, names))} in {n} directions does not exist: {movers} degrees "
            "of freedom move them; ask for one part (part='linear'), or use inverse_operational_space_inertia"
        )
    inverse = inverse_operational_space_inertia(model, q, names, reference, part)
    factor = jnp.linalg.cholesky(inverse)
    eye = jnp.broadcast_to(jnp.eye(n, dtype=inverse.dtype), inverse.shape)
    return jax.scipy.linalg.cho_solve((factor, True), eye)


def _stacked_jacobians(model: Model, q, frames, reference: Reference, part: Part):
    rows = _part(part)
    return jnp.concatenate(
        [frame_jacobian(model, q, name, reference)[..., rows, :] for name in _names(frames)], axis=-2
    )


def _names(frames: str | tuple[str, ...]) -> tuple[str, ...]:
    return (frames,) if isinstance(frames, str) else frames


def _part(part: Part) -> slice:
    if part not in _PARTS:
        raise ModelError(f"part is {part!r}; known: {', '.join(map(repr, _PARTS))}")
    return _PARTS[part]
