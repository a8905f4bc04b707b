"""Problems in the form of matrices: rows that couple bodies, and equations that hold exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import solve_triangular

from jaxdyn import native
from jaxdyn._compile import once
from jaxdyn.algorithms.recursions import Kinematics, Robot, constraint_rows, turning_accelerations
from jaxdyn.constraints import mimic_rows, proximal_steps
from jaxdyn.laws import Curvature, times
from jaxdyn.rows import AbstractRows, rates_of
from jaxdyn.solve._tree_form import Moved, MovingBodies, TreeForm
from jaxdyn.spatial import Motion
from jaxdyn.tree import sum_up, take_rows


class Held(NamedTuple):
    """The equations `J a + gamma = 0` of loops, couplings and joints that mimic others on the accelerations `a` in the
    axes at the start, as rows."""

    J: Any
    """`[m * nv, *batch]`"""
    gamma: Any
    """`[m, *batch]`"""

    @classmethod
    def of(cls, robot: Robot, at: Kinematics, q, v, velocity: Motion, c: Motion) -> Held | None:
        """Return the equations of a robot's loops, couplings and joints that mimic others; None without any. `velocity`
        is behind the degrees of freedom, and `c` of the equations of motion."""
        rows = constraint_rows(robot, q, at, v, velocity, c)
        if rows is not None:
            J, gamma = robot.broadcast(rows.J), robot.broadcast(rows.gamma)
        elif robot.mimics is not None:
            J = robot.broadcast(mimic_rows(robot.mimics, robot.mimic_multiplier))
            gamma = jnp.zeros_like(J[:, 0])
        else:
            return None
        return cls(J.reshape(-1, *J.shape[2:]), gamma - rates_of(J, jnp.asarray(turning_accelerations(robot, v))))

    def unbalanced(self, a, multipliers) -> tuple[Any, Any]:
        """Return `J^T l` and `J a + gamma`."""
        J = self.matrix()
        return (J * multipliers[:, None]).sum(axis=0), rates_of(J, a) + self.gamma

    def matrix(self):
        """Return `J` as `[m, nv, *batch]`."""
        return self.J.reshape(self.gamma.shape[0], -1, *self.gamma.shape[1:])

    def part(self, factors: MatrixFactors, y, e=None) -> tuple[Any, Any]:
        """Return `x` and `l` with `H x + J^T l = y` and `J x = e`, zero by default, from the factors of `H`."""
        J = self.matrix()
        both = factors.substitute(jnp.concatenate([y[:, None], jnp.swapaxes(J, 0, 1)], axis=1))
        x, Y = both[:, 0], both[:, 1:]
        e = rates_of(J, x) if e is None else rates_of(J, x) - e
        C, Y, b = (jnp.moveaxis(z, (0, 1), (-2, -1)) for z in (J, Y, e[:, None]))
        l = proximal_steps(jnp.matmul(C, Y, precision=lax.Precision.HIGHEST), b)
        taken = jnp.matmul(Y, l, precision=lax.Precision.HIGHEST)
        return x - jnp.moveaxis(taken[..., 0], -1, 0), jnp.moveaxis(l[..., 0], -1, 0)


class MatrixFactors(NamedTuple):
    """The factors of the equations."""

    packed: Any
    """`[nv * nv, *batch]`: Cholesky's factor of `H` with its rows and columns in reverse order, in which those of a
    tree have no fill-in (Featherstone 2008, section 6.5)."""
    held: Held | None = None

    @classmethod
    def of(cls, H, held: Held | None) -> MatrixFactors:
        """Return the factors of a symmetric matrix `[nv, nv, *batch]`, of which only the lower triangle is read."""
        reversed_ = jnp.moveaxis(H[::-1, ::-1], (0, 1), (-1, -2))
        L = jnp.moveaxis(jnp.linalg.cholesky(reversed_, symmetrize_input=False), (-2, -1), (0, 1))
        return cls(L.reshape(-1, *L.shape[2:]), held)

    def substitute(self, y):
        """Return `H^-1 y` for `y` `[nv, k, *batch]`."""
        nv = len(y)
        L = jnp.moveaxis(self.packed.reshape(nv, nv, *self.packed.shape[1:]), (0, 1), (-2, -1))
        y = jnp.moveaxis(y[::-1], (0, 1), (-2, -1))
        x = solve_triangular(L, solve_triangular(L, y, lower=True), lower=True, trans=1)
        return jnp.moveaxis(x, (-2, -1), (0, 1))[::-1]

    def solve(self, robot: Robot, y, e=None) -> tuple[Any, Any]:
        """Return `x` with `H x = y`, rows `[nv]`; with equations that hold, `x` and their multipliers `l` with `H x +
        J^T l = y` and `J x = e`, zero by default."""
        y = robot.broadcast(y)
        return (self.substitute(y[:, None])[:, 0], None) if self.held is None else self.held.part(self, y, e)


class Pattern(eqx.Module):
    """The entries of a matrix that may be other than zero. Its packed array has these alone."""

    shape: tuple[int, int] = eqx.field(static=True)
    entries: bytes = eqx.field(static=True)
    """A truth value for each entry."""

    @classmethod
    def of(cls, entries: np.ndarray) -> Pattern:
        """Return the pattern of an array of truth values."""
        return cls(entries.shape, entries.astype(bool).tobytes())

    @property
    def table(self) -> np.ndarray:
        """The truth values."""
        return np.frombuffer(self.entries, bool).reshape(self.shape)

    def pack(self, A):
        """Return the packed array `[k, *batch]` of a matrix `[m, n, *batch]`."""
        return take_rows(A.reshape(-1, *A.shape[2:]), np.flatnonzero(self.table.ravel()))

    def unpack(self, packed, *, symmetric: bool = False):
        """Return the matrix of a packed array, or of that of its lower triangle."""
        places = np.where(self.table, np.cumsum(self.table.ravel()).reshape(self.shape) - 1, -1)
        places = np.maximum(places, places.T) if symmetric else places
        return take_rows(packed, places.ravel()).reshape(*self.shape, *packed.shape[1:])


class MatrixForm(TreeForm):
    """Rows that may couple bodies, for which the mass matrix and the Jacobian of all rows are made.

    Products with vectors go over the motions of the bodies here, too: with matrices, Newton's steps of a hand that
    holds a cube ended at relative errors of up to 1e-9 instead of 1e-11.
    """

    mass: Any
    """Packed, the lower triangle of the mass matrix."""
    jacobian: Any
    """Packed."""
    mass_entries: Pattern
    jacobian_entries: Pattern
    counts: tuple[int, ...] = eqx.field(static=True)
    """The number of rows of each term."""
    held: Held | None

    @classmethod
    def of(cls, robot: Robot, bodies: MovingBodies, rows: Sequence[AbstractRows], held: Held | None) -> MatrixForm:
        """Return the matrices of rows."""
        none = np.zeros((0, robot.nv), bool)
        moves = [x.moves(robot) for x in rows]
        jacobian_entries = Pattern.of(np.concatenate([none, *moves]))
        mass_entries = Pattern.of(np.tril(robot.topology.dof_ancestors))
        J = [robot.broadcast(robot.constant(none.astype(float)))]
        J = jnp.concatenate([*J, *(robot.broadcast(x.jacobian(robot, bodies.S)) for x in rows)])
        packed = mass_entries.pack(mass_matrix(robot, bodies)), jacobian_entries.pack(J)
        return cls(bodies, tuple(rows), *packed, mass_entries, jacobian_entries, tuple(map(len, moves)), held)

    @property
    def J(self):
        """The Jacobian of all rows, `[n, nv, *batch]`."""
        return self.jacobian_entries.unpack(self.jacobian)

    @property
    def M(self):
        """The mass matrix, `[nv, nv, *batch]`."""
        return self.mass_entries.unpack(self.mass, symmetric=True)

    def of_terms(self, rows) -> list:
        """Return the rows of each term."""
        return jnp.split(rows, np.cumsum(self.counts)[:-1]) if self.counts else []

    def step(self, robot: Robot, curvatures: Sequence[Curvature], tau, *more) -> tuple[Moved, MatrixFactors]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return `H^-1 tau` with `H = M + J^T C J`, to which `more` matrices are added, with equations that hold the
        part of it that they allow, and the factors of `H`."""
        J, H = self.J, self.M
        if self.counts:
            stiff = [times(G, rows) for G, rows in zip(curvatures, self.of_terms(J), strict=True)]
            H = native.add_gram(H, once(jnp.concatenate(stiff)), J, self.jacobian_entries.table)
        factors = MatrixFactors.of(sum(more, H), self.held)
        return self.moved(robot, once(factors.solve(robot, tau)[0])), factors


def mass_matrix(robot: Robot, bodies: MovingBodies):
    """Return the mass matrix `[nv, nv, *batch]`; only its lower triangle is right, and only where a column moves the
    body of the row."""
    force = sum_up(robot.tree, bodies.inertia).apply(bodies.S)
    S, force = (jax.tree.map(robot.broadcast, x) for x in (bodies.S, force))
    M = jax.tree.map(lambda x: x[None], S).dot(jax.tree.map(lambda x: x[:, None], force))
    M = M + robot.constant(np.eye(robot.nv)) * robot.broadcast(bodies.armature)[:, None]
    return M if bodies.coupling is None else M + bodies.coupling.reshape(robot.nv, robot.nv, *bodies.coupling.shape[1:])
