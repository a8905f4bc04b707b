"""MuJoCo's sweeps against slip (`noslip_iterations`): after the constraints are solved, friction is found anew as if it
were rigid, row by row, so that soft friction cones do not creep.

Each sweep takes the friction losses and then the contacts, one after the other, and minimizes `1/2 f^T A f + f^T (J a0
- aref)` over the friction of one row or contact, with `A = J M^-1 J^T` and without regularization; normal forces stay
as they are. Sweeps end after a number of them, or where one improves that cost by less than a limit, in each island:
the trees that constraints connect. They end before they converge, so their order counts: contacts have MuJoCo's.

Source: `mj_solNoSlip` in `engine_solver.c` and `mju_QCQP` in `engine_util_solve.c` of MuJoCo 4.0.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.linalg import cho_factor, cho_solve

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot, RobotAndParts
from jaxdyn.io.mjcf import is_disabled
from jaxdyn.solve import MatrixForm, Problem
from jaxdyn.worlds._constraints import Constraints, RowKinds
from jaxdyn.worlds._contact_rows import Contacts
from jaxdyn.worlds._equations import balance, problem
from jaxdyn.worlds._parts import SMALL, Part, PartRows

SINGULAR = 1e-10
"""Smaller pivots and determinants of the matrix of a contact's friction count as zero."""
STEPS = 19
"""The most steps of Newton's method for the multiplier of a cone. Cones with little rolling friction need more, but get
no more in MuJoCo either."""
CLOSE = 1e-10
"""A square of the friction, and a step of the multiplier, that close to the cone's ends this."""


class NoSlip(Part):
    """The sweeps of a world."""

    iterations: int = eqx.field(static=True)
    order: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """The contacts with friction in MuJoCo's order: the number of their directions, and their number among those."""
    losses: tuple[int, ...] = eqx.field(static=True)
    """The rows of friction losses in MuJoCo's order, from the first one on."""
    trees: tuple[int, ...] = eqx.field(static=True)
    """The number of the tree of each degree of freedom; the same for all where there are no islands."""
    islands: bool = eqx.field(static=True)
    least: Float[Array, "*batch"]
    """The improvement of the cost below which sweeps end; of islands, in parts of the trace of their mass matrix."""

    @classmethod
    def of(cls, m, constraints: Constraints) -> Self | None:
        """Return the sweeps of an `mjModel`, None where it has none."""
        if m.opt.noslip_iterations <= 0:
            return None
        islands = not is_disabled(m, "island")
        trees = tuple(np.unique(m.dof_treeid, return_inverse=True)[1].tolist()) if islands else (0,) * m.nv
        size = 1.0 if islands else float(m.stat.meaninertia) * max(1, m.nv)
        least = float_leaf(float(m.opt.noslip_tolerance) * size)
        order, dofs = _order(m, constraints.contacts), np.array(constraints.losses.dofs, int)
        losses = (*np.argsort(dofs).tolist(), *(len(dofs) + k for k in range(len(constraints.losses.tendons))))
        return cls(int(m.opt.noslip_iterations), order, losses, trees, islands, least)


def _order(m, contacts: Contacts) -> tuple[tuple[int, int], ...]:
    """Return the contacts with friction in MuJoCo's order: by their bodies, those of `<pair>` first, and by geoms."""
    named = {
        frozenset(pair): i for i, pair in enumerate(zip(m.pair_geom1.tolist(), m.pair_geom2.tolist(), strict=True))
    }
    found: list[tuple[tuple, tuple[int, int]]] = []
    counts: dict[int, int] = {}
    for pairs in contacts.pairs:
        candidates = range(pairs.count())
        for first, second, dim in zip(pairs.first, pairs.second, pairs.dims, strict=True):
            geoms = contacts.numbers[first], contacts.numbers[second]
            bodies = sorted(int(m.geom_bodyid[g]) for g in geoms)
            name = named.get(frozenset(geoms))
            place = (1, *geoms) if name is None else (0, name, 0)
            for k in candidates:
                number = counts.setdefault(dim, 0)
                counts[dim] += 1
                if dim > 1:
                    found.append(((*bodies, *place, k), (dim, number)))
    return tuple(contact for _, contact in sorted(found))


class _RowNumbers(NamedTuple):
    """The numbers of the laws of all rows, in their order."""

    D: Any
    loss: Any
    friction: Any
    mu: Any

    @classmethod
    def of(cls, laws: tuple[Any, ...], none: Any) -> Self:
        """Return them from the laws, and from an array without elements."""

        def joined(name: str):
            return jnp.concatenate([none, *(getattr(law, name) for law in laws if hasattr(law, name))])

        return cls(*map(joined, cls._fields))


class _SweepPlan(NamedTuple):
    """The static part of the sweeps of a world."""

    kinds: RowKinds
    iterations: int
    order: tuple[tuple[int, int], ...]
    losses: tuple[int, ...]
    trees: tuple[int, ...]
    islands: bool


def without_slip(bound: RobotAndParts, operands: list[Any], arguments: dict[str, Any], parts: Any, a: Any):
    """Return the accelerations after the sweeps, and the forces of all rows, from the solution `a` `[*batch, nv]`."""
    found: Problem = bound.call(_problem_at, operands, **arguments)
    batch = a.shape[:-1]
    everything = found, a - found.free
    inputs = [jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in jax.tree.leaves(everything)]
    structure = jax.tree.structure(everything)
    least = jnp.broadcast_to(parts.no_slip.least.astype(a.dtype), batch)
    own = parts.no_slip
    static = _SweepPlan(parts.constraints.kinds, own.iterations, own.order, own.losses, own.trees, own.islands)

    def one(least, *leaves):
        return _swept(static, *jax.tree.unflatten(structure, leaves), least)

    for _ in batch:
        one = jax.vmap(one)
    y, pushes = one(least, *inputs)
    return found.free + y, pushes


def _problem_at(robot: Robot, world: PartRows, **state: Any) -> Problem:
    """Return the problem of a state, as rows."""
    return jax.tree.map(robot.broadcast, problem(robot, world, balance(robot, world, **state)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _swept(static: _SweepPlan, problem: Problem, y, least):
    """Return the accelerations beyond `a0` and the forces of all rows, of one state."""
    return _sweeps(static, problem, y, least, ends=True)


@_swept.defjvp
def _swept_jvp(static: _SweepPlan, primals, tangents):
    # A loop whose length depends on the state has no transpose: derivatives are those of one over all contacts.
    _, dots = jax.jvp(functools.partial(_sweeps, static, ends=False), primals, tangents)
    return _swept(static, *primals), dots


class _Table(NamedTuple):
    """The contacts with friction in their order, padded to the most directions."""

    normals: np.ndarray
    """`[contacts]`: the rows of their normals."""
    rubbing: np.ndarray
    """`[contacts, directions]`: those of the other directions; padding has the normal's."""
    friction: np.ndarray
    """`[contacts, directions]`: the places of their frictions."""
    exists: np.ndarray
    """`[contacts, directions]`: which are not padding."""

    @classmethod
    def of(cls, kinds: RowKinds, order: tuple[tuple[int, int], ...]) -> _Table:
        starts, sliding = {}, 0
        for (dim, n), start in zip(kinds.cones, kinds.cone_starts, strict=True):
            starts[dim] = n, start, sliding
            sliding += (dim - 1) * n
        most = max((dim for dim, _ in kinds.cones), default=1) - 1
        normals, rubbing, friction, exists = [], [], [], []
        for dim, number in order:
            n, start, first = starts[dim]
            ks = np.arange(most)
            there = ks < dim - 1
            normals.append(start + number)
            rubbing.append(np.where(there, start + (ks + 1) * n + number, start + number))
            friction.append(np.where(there, first + ks * n + number, first + number))
            exists.append(there)
        shape = len(order), most
        return cls(np.array(normals, int), *(np.reshape(x, shape) for x in (rubbing, friction, exists)))


class _Sweep(NamedTuple):
    """The quantities that a sweep changes."""

    y: Any
    f: Any
    improved: Any
    """`[islands]`: the improvement of the cost so far; an island has the number of one of its trees."""


def _sweeps(static: _SweepPlan, problem: Problem, y, least, *, ends: bool):
    """Return the result of all sweeps; with `ends` only over contacts that act, and only as long as they are needed."""
    kinds, numbers, form = static.kinds, _RowNumbers.of(problem.laws, y[:0]), problem.form
    assert isinstance(form, MatrixForm)
    J, M, b = form.J, form.M, -jnp.concatenate([y[:0], *problem.residuals])
    x = J @ y - b
    residuals = problem.residuals_at(form.of_terms(J @ y))
    f = jnp.concatenate([y[:0], *(law.force(r) for law, r in zip(problem.laws, residuals, strict=True))])
    table = _Table.of(kinds, static.order)
    moves = form.jacobian_entries.table
    trees = np.zeros((kinds.count, max(static.trees) + 1), bool)
    for dof, tree in enumerate(static.trees):
        trees[:, tree] |= moves[:, dof]
    islands = _islands(trees, numbers.D > 0)
    # Rows that no joint moves, of which there are no forces either, count to any island.
    island = islands[np.argmax(trees, axis=1)]
    traces = jnp.zeros(trees.shape[1], y.dtype).at[islands[np.array(static.trees, int)]].add(jnp.diagonal(M))
    enough = least * traces if static.islands else least
    B = cho_solve(cho_factor(M), J.T)
    limits, costs = _limits_and_costs(kinds, numbers, table, x, f)
    sweep = _Sweep(B @ f, f, jnp.zeros(trees.shape[1], f.dtype))
    acts = f[table.normals] > 0
    turn = jnp.argsort(~acts, stable=True)
    count = acts.sum()
    solver = _Rows(kinds, numbers, table, J, B, b, limits, island, ends)

    def swept(sweep: _Sweep, done) -> _Sweep:
        if kinds.frictions:
            rows = jnp.asarray(kinds.equalities + np.array(static.losses))
            sweep = lax.fori_loop(0, kinds.frictions, lambda k, at: solver.loss(at, rows[k], done), sweep)
        if not len(table.normals):
            return sweep
        if ends:
            return lax.fori_loop(0, count, lambda k, at: solver.contact(at, turn[k], done, True), sweep)
        return lax.scan(
            lambda at, k: (solver.contact(at, turn[k], done, k < count), None), sweep, np.arange(len(turn))
        )[0]

    def again(carried):
        sweep, done, first = carried
        start = jnp.zeros_like(sweep.improved).at[island].add(jnp.where(first, costs, 0))
        after = swept(sweep._replace(improved=start), done)
        return after, done | (after.improved < enough), jnp.zeros((), bool)

    begin = sweep, jnp.zeros(trees.shape[1], bool), jnp.ones((), bool)
    if ends:
        carried = lax.while_loop(
            lambda at: (at[1] < static.iterations) & ~at[0][1].all(),
            lambda at: (again(at[0]), at[1] + 1),
            (begin, 0),
        )[0]
    else:
        carried = lax.scan(lambda at, _: (again(at), None), begin, length=static.iterations)[0]
    return carried[0].y, carried[0].f


def _islands(trees: np.ndarray, acts):
    """Return for each tree the first one that active rows connect it with."""
    count = trees.shape[1]
    touched = jnp.where(acts[:, None], trees, False).astype(float)
    connected = (touched.T @ touched > 0) | np.eye(count, dtype=bool)
    for _ in range(max(count - 1, 1).bit_length()):
        connected = connected.astype(float) @ connected.astype(float) > 0
    return jnp.argmax(connected, axis=1)


def _limits_and_costs(kinds: RowKinds, numbers: _RowNumbers, table: _Table, x, f):
    """Return the largest friction of each contact's directions where cones are pyramids, `[contacts, directions]`, and
    what each row's regularization costs, `[n]`."""
    R = jnp.where(numbers.D > 0, 1 / jnp.where(numbers.D > 0, numbers.D, 1), 0)
    costs = 0.5 * f * f * R
    if kinds.elliptic or not len(table.normals):
        return None, costs
    friction, normal, tangent = numbers.friction[table.friction], x[table.normals][:, None], x[table.rubbing]
    stiffness = numbers.D[table.normals][:, None]
    edges = [-stiffness * jnp.minimum(normal + way * friction * tangent, 0) for way in (1, -1)]
    total = jnp.where(table.exists, edges[0] + edges[1], 0)
    squares = jnp.where(table.exists, edges[0] ** 2 + edges[1] ** 2, 0).sum(axis=1)
    costs = costs.at[kinds.scalars :].set(0).at[table.normals].add(0.5 * squares * R[table.normals])
    return friction * total, costs


class _Rows(NamedTuple):
    """The rows of a problem, as sweeps need them."""

    kinds: RowKinds
    numbers: _RowNumbers
    table: _Table
    J: Any
    B: Any
    """`M^-1 J^T`"""
    b: Any
    limits: Any
    island: Any
    """`[n]`"""
    ends: bool
    """Whether loops end as soon as they can; without, they have derivatives."""

    def loss(self, at: _Sweep, row, done) -> _Sweep:
        """Return a sweep after the row of a friction loss."""
        most = self.numbers.loss[row - self.kinds.equalities]
        slip, A = self.J[row] @ at.y - self.b[row], self.J[row] @ self.B[:, row]
        change = jnp.clip(at.f[row] - slip / jnp.maximum(A, SMALL), -most, most) - at.f[row]
        change = jnp.where(done[self.island[row]], 0, change)
        better = -(0.5 * change * change * A + change * slip)
        return _Sweep(
            at.y + self.B[:, row] * change,
            at.f.at[row].add(change),
            at.improved.at[self.island[row]].add(better),
        )

    def contact(self, at: _Sweep, number, done, needed) -> _Sweep:
        """Return a sweep after a contact, by its place in the order, where it is needed."""
        table = self.table
        normal = jnp.asarray(table.normals)[number]
        own = jnp.asarray(table.rubbing)[number]
        island = self.island[normal]
        live = jnp.asarray(table.exists)[number] & needed & ~done[island]
        J, B, b = self.J[own], self.B[:, own], self.b[own]
        friction = self.numbers.friction[jnp.asarray(table.friction)[number]]
        if self.kinds.elliptic:
            change, better = _on_ellipse(J @ B, J @ at.y - b, at.f[own], friction, at.f[normal], live, self.ends)
        else:
            change, better = _on_edges(J @ B, J @ at.y - b, at.f[own], friction, self.limits[number], live)
        return _Sweep(at.y + B @ change, at.f.at[own].add(change), at.improved.at[island].add(better))


def _on_edges(A, slip, f, friction, limits, live) -> tuple[Any, Any]:
    """Return the change of the friction of a pyramid, one direction after the other, and the improvement."""
    changes, better = jnp.zeros_like(f), jnp.zeros((), f.dtype)
    for k in range(len(f)):
        now, stiff = slip[k] + A[k] @ changes, A[k, k]
        moves = 4 * friction[k] ** 2 * stiff >= SMALL
        goal = jnp.where(moves, jnp.clip(f[k] - now / jnp.where(moves, stiff, 1), -limits[k], limits[k]), 0)
        change = jnp.where(live[k], goal - f[k], 0)
        better = better - (0.5 * change * change * stiff + change * now)
        changes = changes.at[k].set(change)
    return changes, better


def _on_ellipse(A, slip, f, friction, normal, live, ends: bool) -> tuple[Any, Any]:
    """Return the change of the friction of an elliptic cone, and the improvement."""
    count = len(f)
    eye = np.eye(count)
    inside = live[:, None] & live[None]
    A = jnp.where(inside, A, eye)
    A = jnp.where(eye > 0, jnp.maximum(A, SINGULAR), A)
    slip, f = jnp.where(live, slip, 0), jnp.where(live, f, 0)
    friction = jnp.where(live, friction, 1)
    goal = _least_on_ellipse(A, slip - A @ f, friction, normal, live.sum(), ends)
    change = jnp.where(live, jnp.where(normal < SMALL, 0, goal) - f, 0)
    cost = 0.5 * change @ A @ change + change @ slip
    change = jnp.where(cost > CLOSE, 0, change)
    return change, jnp.where(cost > CLOSE, 0, -cost)


def _least_on_ellipse(A, b, d, radius, count, ends: bool):
    """Return the `x` with the least `1/2 x^T A x + b^T x` and `sum (x / d)^2 <= radius^2` (`mju_QCQP`)."""
    problem = A * d[:, None] * d[None], b * d, radius, count

    def newton(carried):
        multiplier, steps, _ = carried
        at = _at_multiplier(*problem, multiplier)
        going = at.regular & (at.beyond >= CLOSE) & (at.further >= CLOSE)
        return jnp.where(going, multiplier + at.further, multiplier), steps + 1, going

    start = jnp.zeros_like(radius), 0, jnp.ones((), bool)
    if ends:
        multiplier = lax.while_loop(lambda at: (at[1] < STEPS) & at[2], newton, start)[0]
    else:
        multiplier = lax.scan(lambda at, _: (newton(at), None), start, length=STEPS)[0][0]
    at, active = _at_multiplier(*problem, multiplier), multiplier > 0
    square = at.x @ at.x
    x = at.x * jnp.where(active, radius / jnp.sqrt(jnp.where(active, square, 1)), 1)
    return jnp.where(at.regular, x * d, 0)


class _AtMultiplier(NamedTuple):
    """The least `1/2 x^T (A + multiplier) x + b^T x`."""

    x: Any
    beyond: Any
    """The square of its length minus that of the radius."""
    further: Any
    """Newton's step of the multiplier to the radius."""
    regular: Any
    """Whether the matrix counts as regular."""


def _at_multiplier(A, b, radius, count, multiplier) -> _AtMultiplier:
    L = jnp.linalg.cholesky(A + multiplier * np.eye(len(b)))
    pivots = jnp.diagonal(L) ** 2
    # MuJoCo looks at the determinant for two and three directions, and at the pivots for five.
    regular = jnp.where(count > 3, pivots.min(), pivots.prod()) >= SINGULAR
    L = jnp.where(regular, L, np.eye(len(b)))
    x = -cho_solve((L, True), b)
    beyond, slope = x @ x - radius * radius, x @ cho_solve((L, True), x)
    return _AtMultiplier(x, beyond, 0.5 * beyond / jnp.where(slope > 0, slope, 1), regular)
