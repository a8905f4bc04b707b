"""The equations of loops and couplings: their errors, and the rows `J v` of their rates with `J a + gamma` of theirs.

A loop's row is a spatial force `F` with the rate `F . (V2 - V1)` of its error, for the velocities of its two bodies
about one point, so `gamma = dF/dt . (V2 - V1) + F . (A2 - A1)` with the accelerations at `a = 0`. The point is the
origin of the second frame, to which the motions of each body are moved from the point of reference of its own tree.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn.algorithms.recursions._equations_of_motion import (
    Kinematics,
    kinematics,
    poses_and_roots,
    velocities,
    velocity_accelerations,
)
from jaxdyn.algorithms.recursions._robot import Robot
from jaxdyn.constraints import mimic_rows
from jaxdyn.joints import (
    FREE_ROWS,
    LOOP_ROWS,
    POSITION_ROWS,
    LoopFrames,
    Topology,
    free_forces,
    integrate,
    loop_errors,
    loop_force_rates,
    loop_forces,
    rotation_sines,
)
from jaxdyn.spatial import Mat3, Motion, Pose, Vec3
from jaxdyn.tree import sum_down, take_rows


class Sizes(NamedTuple):
    """The rows with which each equation is compared: those of its loop and unit. Where it is small beside them, the
    mechanism is near a singular configuration."""

    others: Any
    """Rows `[k, nv, *batch]` for directions that loops leave free."""
    alike: Any
    """`[m, 4]`: for each row of `J` the numbers of the rows like it, itself among them, in `J` followed by `others`."""

    def of(self, squares):
        """Return the greatest of the squares `[*batch, m + k]` of the rows like each one, `[*batch, m]`."""
        return squares[..., self.alike].max(axis=-1)


class ConstraintRows(NamedTuple):
    """The constraints `J a + gamma = 0` on the accelerations of the tree of independent joints: the equations of loops,
    of couplings, and of joints that mimic others."""

    J: Any
    """`[m, nv, *batch]`"""
    gamma: Any
    """`[m, *batch]`; zero at rest."""
    sizes: Any = None
    """`Sizes`, for forward dynamics."""
    opening: Any = None
    """How far the loops and couplings are open, `[*batch]`: the greatest error, as a part of its lever, the velocity of
    the frame by a unit of that of the joints. So it is an angle by which joints would have to turn to close it, about.
    It is not differentiated."""


class LoopGroup(NamedTuple):
    """The loops of one kind, all within trees or all between."""

    kind: str
    loops: np.ndarray
    bodies: tuple[np.ndarray, np.ndarray]
    one_tree: bool


@functools.cache
def loop_groups(topology: Topology) -> tuple[LoopGroup, ...]:
    """Return the loops in groups whose equations are computed together."""

    def tree(body: int) -> int:
        return topology.body_roots[body] if body >= 0 else -1

    members: dict[tuple[str, bool], list[int]] = {}
    for k, loop in enumerate(topology.loops):
        members.setdefault((loop.kind, tree(loop.body1) == tree(loop.body2)), []).append(k)
    return tuple(
        LoopGroup(kind, np.array(loops), (_ends(topology, loops, 2), _ends(topology, loops, 3)), one_tree)
        for (kind, one_tree), loops in members.items()
    )


def _ends(topology: Topology, loops: list[int], k: int) -> np.ndarray:
    return np.array([topology.loops[i][k] for i in loops])


@functools.cache
def loop_order(topology: Topology) -> np.ndarray:
    """The places, in the order of `Topology.loop_starts`, of the equations that stand group by group, those of one kind
    equation by equation."""
    places = [
        topology.loop_starts[k] + row
        for g in loop_groups(topology)
        for row in range(LOOP_ROWS[g.kind])
        for k in g.loops
    ]
    return np.argsort(np.array(places, int))


class LoopEnds(NamedTuple):
    """The frames of the loops of a group, rows `[n, *batch]`."""

    frames: LoopFrames
    r1: Vec3
    """From the point of reference of the first body's tree to the first origin."""
    r2: Vec3
    """From that of the second body's tree to the second origin."""


def loop_ends(robot: Robot, group: LoopGroup, poses: Pose, q) -> LoopEnds:
    """Return where the frames of the loops of a group are, with the poses of `kinematics` at `q`."""
    n, bodies = len(group.loops), np.concatenate(group.bodies)
    # Both frames of all loops at once.
    tables = [take_rows(getattr(robot, f"loop_placement{k}"), group.loops) for k in (1, 2)]
    batch = jnp.broadcast_shapes(*(x.shape[2:] for x in tables))
    table = jnp.concatenate([jnp.broadcast_to(x, (*x.shape[:2], *batch)) for x in tables])
    placements = Pose.from_vector(jnp.moveaxis(table, 1, -1))
    ends = body_poses(robot, poses, bodies).compose(placements)
    places, roots = ends.translation, jax.tree.map(jnp.zeros_like, ends.translation)
    if not group.one_tree:
        # The places of the roots are subtracted first, so that a distance from the world's origin costs no digits.
        moving = robot.constant((bodies >= 0).astype(float))
        poses, roots = poses_and_roots(robot, q)
        places = body_poses(robot, poses, bodies).apply(placements.translation) * moving
        roots = take_rows(roots, _rows_of_bodies(robot, bodies))
        roots = roots + placements.translation * (1.0 - moving)

    def half(x, k: int):
        return jax.tree.map(lambda x: robot.broadcast(lax.slice_in_dim(x, k * n, (k + 1) * n)), x)

    (one, place1, root1), (two, place2, root2) = (half((ends, places, roots), k) for k in range(2))
    length = robot.broadcast(take_rows(robot.loop_length, group.loops))
    frames = LoopFrames(one.rotation, two.rotation, (root2 - root1) + (place2 - place1), length)
    return LoopEnds(frames, one.translation, two.translation)


def body_poses(robot: Robot, poses: Pose, bodies: np.ndarray) -> Pose:
    """Return the poses of bodies, rows `[n]`; the identity for the world."""
    R, p = (x := take_rows(poses, _rows_of_bodies(robot, bodies))).rotation, x.translation
    if (bodies >= 0).all():
        return x
    one = robot.constant((bodies < 0).astype(float))
    return Pose(R + Mat3(Vec3(one, 0.0, 0.0), Vec3(0.0, one, 0.0), Vec3(0.0, 0.0, one)), p)


def _rows_of_bodies(robot: Robot, bodies: np.ndarray) -> np.ndarray:
    return np.where(bodies >= 0, robot.topology.body_dofs[np.maximum(bodies, 0)], -1)


def constraint_errors(robot: Robot, q):
    """Return the errors of the loops and couplings, `[nc, *batch]`."""
    poses, topology = kinematics(robot, q).poses, robot.topology
    errors = [e for g in loop_groups(topology) for e in loop_errors(g.kind, loop_ends(robot, g, poses, q).frames)]
    parts = [take_rows(jnp.concatenate(errors), loop_order(topology))] if errors else []
    if topology.couplings:
        parts.append(coupling_errors(robot, q))
    return jnp.concatenate(parts) if parts else robot.broadcast(robot.constant(np.zeros(0)))


def coupling_errors(robot: Robot, q):
    """Return the errors of the couplings, `[n, *batch]`."""
    y1, y2, c = _coupled(robot, q, robot.topology.q_starts)
    return robot.broadcast(y1 - _polynomial(c, y2))


def constraint_rows(
    robot: Robot, q, at: Kinematics, v=None, velocity: Motion | None = None, c: Motion | None = None
) -> ConstraintRows | None:
    """Return the rows of all constraints at `q`, and with `v`, the bodies' velocities and `c` of the equations of
    motion the `gamma` of their rates; None for a robot without loops and couplings."""
    topology = robot.topology
    if not topology.has_loops:
        return None
    J, gamma, others, errors = [], [], [robot.broadcast(robot.constant(np.zeros((0, robot.nv))))], []
    acceleration = None if c is None else sum_down(robot.tree, c)
    for group in loop_groups(topology):
        ends = loop_ends(robot, group, at.poses, q)
        forces = loop_forces(group.kind, ends.frames), free_forces(group.kind, ends.frames)
        along, free = (_loop_rows(robot, group, ends, at.S, x) for x in forces)
        J, others = J + along, others + free
        errors += loop_errors(group.kind, ends.frames, rotation_sines)
        if velocity is not None:
            gamma += _loop_rates(robot, group, ends, velocity, acceleration)
    J, gamma, errors = ([take_rows(jnp.concatenate(x), loop_order(topology))] if x else [] for x in (J, gamma, errors))
    if topology.couplings:
        rows, rates = coupling_rows(robot, q, v)
        J, gamma, errors = [*J, rows], [*gamma, rates], [*errors, coupling_errors(robot, q)]
    if robot.mimics is not None:
        rows = robot.broadcast(mimic_rows(robot.mimics, robot.mimic_multiplier))
        J, gamma = [*J, rows], [*gamma, jnp.zeros_like(rows[:, 0])]
    J = jnp.concatenate(J)
    sizes = Sizes(lax.stop_gradient(jnp.concatenate(others)), jnp.asarray(rows_alike(topology, len(J))))
    opening = _opening(sizes, *lax.stop_gradient((at.S, J, jnp.concatenate([robot.broadcast(x) for x in errors]))))
    return ConstraintRows(J, jnp.zeros_like(J[:, 0]) if velocity is None else jnp.concatenate(gamma), sizes, opening)


def _opening(sizes: Sizes, S: Motion, J, errors):
    """Return `ConstraintRows.opening`, for the first rows of `J`, which have errors."""
    squares = jnp.concatenate([J, sizes.others]) ** 2
    # Rows change as the joints that turn do. The others only count where those have no lever, of a part that is
    # without meaning beside theirs.
    turning, all_joints = ((squares * x).sum(axis=1) for x in (S.angular.squared_norm(), 1.0))
    levers = jnp.where(turning > 1e-6 * all_joints, turning, all_joints)
    levers = jnp.moveaxis(sizes.of(jnp.moveaxis(levers, 0, -1)), -1, 0)[: len(errors)]
    part = jnp.abs(errors) * lax.rsqrt(jnp.maximum(levers, jnp.finfo(levers.dtype).tiny))
    # An equation that no joint can change has no lever.
    return jnp.where(levers > 0, part, 0.0).max(axis=0)


@functools.cache
def rows_alike(topology: Topology, m: int) -> np.ndarray:
    """Return the numbers of `Sizes.alike`, for `m` rows."""
    # A row stands again where there are fewer.
    alike, others = np.tile(np.arange(m)[:, None], (1, 4)), m
    for kind, loops, _, _ in loop_groups(topology):
        for place, loop in enumerate(loops):
            start, end = topology.loop_starts[loop], topology.loop_starts[loop] + LOOP_ROWS[kind]
            middle = start + POSITION_ROWS[kind]
            free = others + place + len(loops) * np.arange(FREE_ROWS[kind])
            for rows in (np.append(np.arange(start, middle), free), np.arange(middle, end)):
                alike[rows[rows < m], : len(rows)] = rows
        others += len(loops) * FREE_ROWS[kind]
    return alike


def _loop_rows(robot: Robot, group: LoopGroup, ends: LoopEnds, S: Motion, forces: list) -> list:
    """Return the rows `[n, nv, *batch]` of each of some forces of the loops of a group."""
    S = jax.tree.map(lambda x: robot.broadcast(x)[None], S)
    own, at = [S * _moves(robot, bodies) for bodies in group.bodies], jax.tree.map(lambda x: x[:, None], ends)
    relative = _relative(group, at, *own)
    return [relative.dot(jax.tree.map(lambda x: x[:, None], force)) for force in forces]


def _moves(robot: Robot, bodies: np.ndarray):
    """Return 1 where a degree of freedom moves a body, `[n, nv, 1, ...]`."""
    moves = robot.topology.moves_body[np.maximum(bodies, 0)] & (bodies >= 0)[:, None]
    return robot.constant(moves.astype(float))


def _relative(group: LoopGroup, ends: LoopEnds, first: Motion, second: Motion) -> Motion:
    """Return the motions of the second bodies less those of the first, at the origins of the second frames."""
    if group.one_tree:
        # What moves both bodies drops out exactly.
        return (second - first).at(ends.r2)
    return second.at(ends.r2) - first.at(ends.r1 + ends.frames.d)


def _loop_rates(robot: Robot, group: LoopGroup, ends: LoopEnds, velocity: Motion, acceleration: Motion | None) -> list:
    """Return the `gamma` `[n, *batch]` of each equation of the loops of a group."""
    rows = [_rows_of_bodies(robot, bodies) for bodies in group.bodies]
    (V1, A1), (V2, A2) = (jax.tree.map(robot.broadcast, take_rows((velocity, acceleration), bodies)) for bodies in rows)
    p1_rate, p2_rate = V1.at(ends.r1).linear, V2.at(ends.r2).linear
    V, A = _relative(group, ends, V1, V2), _relative(group, ends, A1, A2)
    # The origin of the second frame moves, so the velocities there have rates of their own.
    A = Motion(A.angular, A.linear + V.angular.cross(p2_rate))
    forces = loop_forces(group.kind, ends.frames)
    rates = loop_force_rates(group.kind, ends.frames, V1.angular, V2.angular, p2_rate - p1_rate)
    return [V.dot(rate) + A.dot(force) for force, rate in zip(forces, rates, strict=True)]


def _coupled(robot: Robot, x, starts: tuple[int, ...], *, displaced: bool = True):
    """Return the coordinates (or velocities) of both joints of each coupling, rows `[n]`, from their references where
    `displaced`, with the coefficients. The second is zero where a joint is held."""
    pairs = robot.topology.couplings
    first = np.array([starts[pair.joint1] for pair in pairs])
    second = np.array([starts[pair.joint2] if pair.joint2 >= 0 else -1 for pair in pairs])
    y1, y2 = take_rows(x, first), take_rows(x, second)
    c = [robot.coupling_coefficients[:, k] for k in range(5)]
    if not displaced:
        return y1, y2, c
    r1, r2 = robot.coupling_reference[:, 0], robot.coupling_reference[:, 1]
    return y1 - r1, (y2 - r2) * robot.constant((second >= 0).astype(float)), c


def _polynomial(c: list, x):
    out = c[-1]
    for coefficient in reversed(c[:-1]):
        out = out * x + coefficient
    return out


def _slope(c: list) -> list:
    return [k * coefficient for k, coefficient in enumerate(c)][1:]


def coupling_rows(robot: Robot, q, v):
    """Return the rows `[n, nv, *batch]` of the couplings, and their `gamma`, or zero at rest."""
    topology = robot.topology
    _, y, c = _coupled(robot, q, topology.q_starts)
    follower, leader = np.zeros((2, len(topology.couplings), robot.nv))
    for k, pair in enumerate(topology.couplings):
        follower[k, topology.v_starts[pair.joint1]] = 1
        if pair.joint2 >= 0:
            leader[k, topology.v_starts[pair.joint2]] = 1
    slope = _polynomial(_slope(c), y)
    J = robot.broadcast(robot.constant(follower) - robot.constant(leader) * slope[:, None])
    if v is None:
        return J, jnp.zeros_like(J[:, 0])
    rate = _coupled(robot, v, topology.v_starts, displaced=False)[1]
    return J, robot.broadcast(-_polynomial(_slope(_slope(c)), y) * rate * rate)


class ConstraintDerivatives(NamedTuple):
    """The derivatives of constraints, with the accelerations and multipliers held; by the tangent space of `q`."""

    torque_by_q: Any
    """The derivatives of `J^T l`, `[nv, nv, *batch]`."""
    rate_by_q: Any
    """The derivatives of `J a + gamma`, `[m, nv, *batch]`."""
    rate_by_v: Any


def constraint_derivatives(robot: Robot, q, v, a, multipliers) -> ConstraintDerivatives:
    """Return the derivatives of the constraints at a state, by JAX."""

    def held(dq, dv):
        moved, rate = integrate(robot.topology, robot.broadcast(q), dq), v + dv
        at = kinematics(robot, moved)
        joint, velocity = velocities(robot, at.S, rate)
        rows = constraint_rows(robot, moved, at, rate, velocity, velocity_accelerations(robot, joint, velocity))
        assert rows is not None
        torque = (rows.J * multipliers[:, None]).sum(axis=0)
        return torque, (rows.J * a[None]).sum(axis=1) + rows.gamma

    zero = robot.broadcast(robot.zeros())
    v, eye = robot.broadcast(v), robot.constant(np.eye(robot.nv))
    by_q = jax.vmap(lambda x: jax.jvp(lambda x: held(x, zero), (zero,), (robot.broadcast(x),))[1], out_axes=1)(eye)
    by_v = jax.vmap(lambda x: jax.jvp(lambda x: held(zero, x)[1], (zero,), (robot.broadcast(x),))[1], out_axes=1)(eye)
    return ConstraintDerivatives(by_q[0], by_q[1], by_v)
