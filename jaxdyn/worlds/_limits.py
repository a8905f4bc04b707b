"""Limits and friction losses of the joints and tendons of a world, as rows of constraints."""

from __future__ import annotations

import functools
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import enum_name, is_disabled
from jaxdyn.laws import SoftFriction, SoftInequality
from jaxdyn.rows import AbstractRows, DofRows, Ends, MatrixRows, PointRows, unit_rows
from jaxdyn.solve import Term
from jaxdyn.spatial import Quaternion, Vec3
from jaxdyn.tree import columns_of, take_rows
from jaxdyn.worlds._parts import FreeJoints, Instant, Part, PartRows, translations_of_free_joints
from jaxdyn.worlds._rows import Timing, coherent, regularization, soft_term, softness
from jaxdyn.worlds._tendons import TendonRows


class Limits(Part):
    """The limits of joints with one axis, of ball joints, and of tendons, in this order; those of one axis and of
    tendons have a row at each side."""

    joints: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """For each limited joint with one axis the coordinate and the degree of freedom."""
    balls: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """For each limited ball joint the first coordinate and degree of freedom."""
    tendons: tuple[int, ...] = eqx.field(static=True)
    range: Float[Array, "*batch n 2"]
    """For balls the second number counts."""
    margin: Float[Array, "*batch n"]
    solref: Float[Array, "*batch n 2"]
    solimp: Float[Array, "*batch n 5"]
    weight: Float[Array, "*batch n"]
    """The estimate of the diagonal of `J M^-1 J^T`."""

    @classmethod
    def of(cls, m) -> Self:
        """Return the limits of an `mjModel`."""
        off = is_disabled(m, "limit", "constraint")
        kinds = np.array([enum_name("mjtJoint", x) for x in m.jnt_type])
        limited = [i for i in range(m.njnt) if m.jnt_limited[i] and not off]
        single = [i for i in limited if kinds[i] in ("hinge", "slide")]
        balls = [i for i in limited if kinds[i] == "ball"]
        tendons = [i for i in range(m.ntendon) if m.tendon_limited[i] and not off]
        joints = np.array(single + balls, int)
        ranges = np.array(m.jnt_range[joints]).reshape(-1, 2)
        ranges[len(single) :, 1] = ranges[len(single) :].max(axis=1)
        first = m.jnt_dofadr[joints]
        of_joints = ranges, m.jnt_margin[joints], m.jnt_solref[joints], m.jnt_solimp[joints], m.dof_invweight0[first]
        of_tendons = (
            m.tendon_range[tendons],
            m.tendon_margin[tendons],
            m.tendon_solref_lim[tendons],
            m.tendon_solimp_lim[tendons],
            m.tendon_invweight0[tendons],
        )
        ranges, margin, solref, solimp, weight = (np.concatenate(x) for x in zip(of_joints, of_tendons, strict=True))
        places = [tuple((int(m.jnt_qposadr[i]), int(m.jnt_dofadr[i])) for i in x) for x in (single, balls)]
        return cls(
            joints=places[0],
            balls=places[1],
            tendons=tuple(tendons),
            range=float_leaf(ranges),
            margin=float_leaf(margin),
            solref=float_leaf(coherent(solref)),
            solimp=float_leaf(solimp),
            weight=float_leaf(weight),
        )


def limit_terms(robot: Robot, limits: PartRows, at: Instant, tendons: TendonRows | None, timing: Timing) -> list[Term]:
    """Return the rows of the limits at a state."""
    singles, balls, pulled = len(limits.joints), len(limits.balls), len(limits.tendons)
    lower, upper = columns_of(limits.range)
    out = []
    if singles:
        coordinates, dofs = np.array(limits.joints).T
        q = take_rows(at.q, coordinates)
        rows = DofRows(tuple(dofs.tolist()) * 2, (1.0,) * singles + (-1.0,) * singles)
        distance = jnp.concatenate([robot.broadcast(x) for x in (q - lower[:singles], upper[:singles] - q)])
        out.append(_soft(robot, limits, rows, distance, np.tile(np.arange(singles), 2), at, timing))
    if balls:
        jacobian, moves, angle = _balls(robot, limits, at)
        owners = np.arange(singles, singles + balls)
        distance = robot.broadcast(take_rows(upper, owners) - angle)
        out.append(_soft(robot, limits, MatrixRows.of(jacobian, moves), distance, owners, at, timing))
    if pulled:
        assert tendons is not None
        which, owners = np.array(limits.tendons), np.arange(singles + balls, singles + balls + pulled)
        length, rows = take_rows(tendons.length, which), tendons.rows(which, (1.0, -1.0))
        sides = length - take_rows(lower, owners), take_rows(upper, owners) - length
        distance = jnp.concatenate([robot.broadcast(x) for x in sides])
        out.append(_soft(robot, limits, rows, distance, np.tile(owners, 2), at, timing))
    return out


def _soft(
    robot: Robot, limits: PartRows, rows: AbstractRows, distance, owners: np.ndarray, at: Instant, timing: Timing
) -> Term:
    margin, solref, solimp, weight = take_rows((limits.margin, limits.solref, limits.solimp, limits.weight), owners)
    beyond = distance - margin
    soft = softness(solref, solimp, beyond, timing)
    aref = -soft.damping * rows.rates(robot, at.velocity, at.v) - soft.stiffness * beyond
    return soft_term(robot, SoftInequality, rows, aref, regularization(soft.share, weight), beyond < 0)


def _balls(robot: Robot, limits: PartRows, at: Instant) -> tuple[Any, np.ndarray, Any]:
    """Return the rows of the limits of ball joints, and their angles."""
    coordinates, dofs = np.array(limits.balls).T
    quaternion = Quaternion(*(take_rows(at.q, coordinates + k) for k in range(4)))
    vector = quaternion.normalized().log()
    square = vector.squared_norm()
    turned = square > 0
    angle = jnp.sqrt(jnp.where(turned, square, 1.0))
    # A ball that is not turned has the axis x, as MuJoCo normalizes zero.
    parts = zip((vector.x, vector.y, vector.z), (1.0, 0.0, 0.0), strict=True)
    axis = [jnp.where(turned, x / angle, default) for x, default in parts]
    jacobian, mask = 0.0, np.zeros((len(dofs), robot.nv), bool)
    for k, x in enumerate(axis):
        rows, own = unit_rows(robot, dofs + k, -1.0)
        jacobian, mask = jacobian + rows * robot.broadcast(x)[:, None], mask | own
    return jacobian, mask, jnp.where(turned, angle, 0.0)


class FrictionLosses(Part):
    """The dry friction of degrees of freedom and of tendons, in this order. The first ones of `dofs` are translations
    of free joints along axes of the world."""

    dofs: tuple[int, ...] = eqx.field(static=True)
    free: int = eqx.field(static=True)
    """How many of `dofs` are translations of free joints."""
    tendons: tuple[int, ...] = eqx.field(static=True)
    loss: Float[Array, "*batch n"]
    solref: Float[Array, "*batch n 2"]
    solimp: Float[Array, "*batch n 5"]
    weight: Float[Array, "*batch n"]

    @classmethod
    def of(cls, m) -> Self:
        """Return the friction losses of an `mjModel`."""
        off = is_disabled(m, "frictionloss", "constraint")
        free = [i for i in translations_of_free_joints(m).ravel().tolist() if m.dof_frictionloss[i] and not off]
        others = [] if off else [i for i in np.flatnonzero(m.dof_frictionloss).tolist() if i not in free]
        dofs = free + others
        tendons = [] if off else np.flatnonzero(m.tendon_frictionloss > 0).tolist()
        arrays = [
            np.concatenate([of_dofs[dofs], of_tendons[tendons]])
            for of_dofs, of_tendons in (
                (m.dof_frictionloss, m.tendon_frictionloss),
                (m.dof_solref, m.tendon_solref_fri),
                (m.dof_solimp, m.tendon_solimp_fri),
                (m.dof_invweight0, m.tendon_invweight0),
            )
        ]
        arrays[1] = coherent(arrays[1])
        return cls(tuple(dofs), len(free), tuple(tendons), *map(float_leaf, arrays))


def friction_terms(
    robot: Robot, losses: PartRows, at: Instant, tendons: TendonRows | None, timing: Timing
) -> list[Term]:
    """Return the rows of the friction losses at a state."""
    of_dofs, of_tendons, free = len(losses.dofs), len(losses.tendons), losses.free
    kinds: list[tuple[AbstractRows, np.ndarray]] = []
    if free:
        kinds.append((_translations(robot, np.array(losses.dofs[:free]), at), np.arange(free)))
    if of_dofs > free:
        kinds.append((DofRows(losses.dofs[free:], (1.0,) * (of_dofs - free)), np.arange(free, of_dofs)))
    if of_tendons:
        assert tendons is not None
        kinds.append((tendons.rows(np.array(losses.tendons)), of_dofs + np.arange(of_tendons)))
    out = []
    for rows, owners in kinds:
        loss, solref, solimp, weight = take_rows((losses.loss, losses.solref, losses.solimp, losses.weight), owners)
        soft = softness(solref, solimp, jnp.zeros_like(weight), timing)
        aref = -soft.damping * rows.rates(robot, at.velocity, at.v)
        law = functools.partial(SoftFriction, loss=robot.broadcast(loss))
        out.append(soft_term(robot, law, rows, aref, regularization(soft.share, weight)))
    return out


def _translations(robot: Robot, dofs: np.ndarray, at: Instant) -> PointRows:
    """Return the rows of translations of free joints along axes of the world, each by its degree of freedom."""
    first = FreeJoints.of(robot).rows
    starts = first[np.searchsorted(first, dofs, side="right") - 1]
    # The last degree of freedom of a joint carries its body, whose frame has its origin at the joint.
    arm = take_rows(at.at.poses.translation, starts + 5)
    axes = Vec3(*(robot.broadcast(robot.constant((dofs - starts == k).astype(float))) for k in range(3)))
    return PointRows(Ends.of(np.full(len(dofs), -1), None, starts + 5, arm, shared=True), (axes,))
