"""The first quantity in which a state of a world differs from MuJoCo's, in the order in which MuJoCo computes them."""

# pyright: reportAttributeAccessIssue=false
# (MuJoCo is a compiled module without type stubs.)

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment

from jaxdyn.cli._comparison import free_joint_axes
from jaxdyn.io.mjcf import enum_name, object_name
from jaxdyn.simulate import State
from jaxdyn.worlds import Stages, World, world_stages

unoptimized = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
"""`jax.jit` for programs that run a few times: most of their time is that of the compiler."""
_stages = unoptimized(world_stages)
SOLUTION = "the solution of the constraints"


@dataclasses.dataclass(frozen=True)
class FirstDifference:
    """The first quantity that differs."""

    quantity: str
    where: str
    """The part of the file from which it comes: a joint, an actuator, a pair of geoms, ..."""
    error: float
    """Relative to the largest number of the quantity, and to at least 1; infinite for numbers of rows."""
    state: str
    """The kind of the state in which it was found."""


class _Block(NamedTuple):
    """The rows of one limit, equality or contact."""

    kind: str
    owner: str
    J: np.ndarray
    D: np.ndarray
    aref: np.ndarray


def first_difference(world: World, m, d, state: State, kind: str, tolerance: float) -> FirstDifference:
    """Return what differs first by more than the tolerance, relatively, between a world and MuJoCo's data `d` after
    `mj_forward`, both in the same state, whose kind is given."""
    T = free_joint_axes(world.model, np.asarray(state.q))
    found = stages_of(world, state, d.ctrl)
    for quantity, where, error in _differences(world, m, d, T, found, tolerance):
        if not error <= tolerance:
            return FirstDifference(quantity, where, float(error), kind)
    return FirstDifference(SOLUTION, "its solver, as all that it solves is equal", float("nan"), kind)


def stages_of(world: World, state: State, control: Any) -> Stages:
    """Return the stages of one state, as NumPy arrays."""
    batched = jax.tree.map(lambda x: x[None], state)
    return jax.tree.map(lambda x: np.asarray(x)[0], _stages(world, batched, jnp.asarray(control)[None]))


def _differences(world: World, m, d, T, found, tolerance: float) -> Iterator[tuple[str, str, float]]:
    """Yield each quantity, the part where its error is largest, and the error."""
    import mujoco

    def joint(i: int) -> str:
        j = int(m.dof_jntid[i])
        return f"{_name(m, 'joint', j)} of {_name(m, 'body', m.jnt_bodyid[j])}"

    def named(kind: str) -> Callable[[int], str]:
        return lambda i: _name(m, kind, i)

    M = np.zeros((m.nv, m.nv))
    mujoco.mj_fullM(m, d, M)
    M = np.tril(T @ M @ T.T)
    own = np.where(np.tril(world.model.topology.dof_ancestors), found.mass_matrix, 0.0)
    yield _worst("the lengths of tendons", found.tendon_lengths, d.ten_length, named("tendon"))
    yield _worst("the mass matrix", own.ravel(), M.ravel(), lambda k: joint(k // m.nv))
    blocks, others = list(_blocks(world, found)), list(_mujoco_blocks(m, d, T))
    for name in dict.fromkeys(x.kind for x in (*others, *blocks)):
        own, theirs = ([x for x in xs if x.kind == name] for xs in (blocks, others))
        yield from _rows(name, own, theirs, tolerance, joint)
    yield _worst("passive forces", found.passive, T @ d.qfrc_passive, joint)
    yield _worst("bias forces", found.bias, T @ d.qfrc_bias, joint)
    yield _worst("the forces of actuators", found.actuator_forces, d.actuator_force, named("actuator"))
    yield _worst("the torques of actuators", found.actuator_torque, T @ d.qfrc_actuator, joint)
    owners = [i for i in range(m.nu) for _ in range(m.actuator_actnum[i])]
    yield _worst("the rates of activations", found.activation_rates, d.act_dot, lambda k: named("actuator")(owners[k]))


def _worst(quantity: str, found, expected, name: Callable[[int], str]) -> tuple[str, str, float]:
    found, expected = np.asarray(found), np.asarray(expected)
    if not expected.size:
        return quantity, "", 0.0
    errors = np.abs(found - expected) / max(1.0, np.abs(expected).max())
    errors = np.where(np.isfinite(errors), errors, np.inf)
    worst = int(np.argmax(errors))
    return quantity, name(worst), float(errors[worst])


def _rows(kind: str, blocks: list, others: list, tolerance: float, joint) -> Iterator[tuple[str, str, float]]:
    """Yield the differences of the constraints of one kind, each with the one that is most like it."""
    costs = np.array([[max(_errors(x, y)) for y in others] for x in blocks]).reshape(len(blocks), len(others))
    rows, columns = linear_sum_assignment(np.minimum(np.nan_to_num(costs, nan=1e6), 1e6))
    counts = f"the number of {kind}: {len(blocks)} here, {len(others)} in MuJoCo"
    if len(others) > len(blocks):
        missing = sorted(set(range(len(others))) - set(columns.tolist()))
        yield counts, others[missing[0]].owner, float("inf")
    if len(blocks) > len(others):
        more = blocks[sorted(set(range(len(blocks))) - set(rows.tolist()))[0]]
        moved = [joint(i) for i in np.flatnonzero(np.abs(more.J).max(axis=0) > tolerance)]
        yield counts, f"one of the bodies that these move: {', '.join(dict.fromkeys(moved))}", float("inf")
    names = (
        f"the Jacobian of {kind} (place and directions)",
        f"the regularization of {kind} (solimp, inverse weights, impratio)",
        f"the reference accelerations of {kind} (distance, solref, solimp)",
    )
    for k, name in enumerate(names):
        for i, j in zip(rows, columns, strict=True):
            yield name, others[j].owner, _errors(blocks[i], others[j])[k]


def _errors(block: _Block, other: _Block) -> tuple[float, float, float]:
    """Return the relative errors of the Jacobian, the regularization and the reference acceleration."""
    J = np.abs(block.J - other.J).max(initial=0) / max(1.0, np.abs(other.J).max(initial=0))
    D = (np.abs(block.D - other.D) / np.abs(other.D)).max()
    aref = np.abs(block.aref - other.aref).max() / max(1.0, np.abs(other.aref).max())
    return float(J), float(D), float(aref)


def _contact(directions: int) -> str:
    return f"contacts with condim {directions}"


def _blocks(world: World, found) -> Iterator[_Block]:
    """Yield the constraints of a world that act."""
    constraints = world.parts.constraints
    kinds, limits = constraints.kinds, constraints.limits
    sides = 2 * len(limits.joints) + len(limits.balls) + 2 * len(limits.tendons)
    names = ["rows of equalities"] * kinds.equalities + ["friction losses"] * kinds.frictions
    names += ["limits"] * sides + [_contact(1)] * (kinds.inequalities - sides)
    numbers = [(name, np.array([i])) for i, name in enumerate(names)]
    for start, (dim, count) in zip(kinds.cone_starts, kinds.cones, strict=True):
        numbers += [(_contact(dim), start + i + count * np.arange(dim)) for i in range(count)]
    for name, rows in numbers:
        if found.D[rows[0]] > 0:
            yield _Block(name, "", found.J[rows], found.D[rows], found.aref[rows])


def _mujoco_blocks(m, d, T) -> Iterator[_Block]:
    """Yield MuJoCo's constraints, with their owners; pyramids as their normals and tangents."""
    J_all = d.efc_J.reshape(-1, m.nv)[: d.nefc] @ T.T
    for row in range(d.nefc):
        kind = enum_name("mjtConstraint", d.efc_type[row])
        number = int(d.efc_id[row])
        rows = np.array([row])
        J, D, aref = J_all[rows], d.efc_D[rows], d.efc_aref[rows]
        if kind == "equality":
            yield _Block("rows of equalities", _name(m, "equality", number), J, D, aref)
        elif kind in ("friction_dof", "friction_tendon"):
            joint = kind == "friction_dof"
            owner = _name(m, "joint", m.dof_jntid[number]) if joint else _name(m, "tendon", number)
            yield _Block("friction losses", owner, J, D, aref)
        elif kind in ("limit_joint", "limit_tendon"):
            yield _Block("limits", _name(m, kind.removeprefix("limit_"), number), J, D, aref)
        elif d.contact[number].efc_address == row:
            yield _contact_block(m, d, number, J_all)


def _contact_block(m, d, number: int, J_all) -> _Block:
    contact = d.contact[number]
    owner = " and ".join(f"{_name(m, 'geom', g)} ({enum_name('mjtGeom', m.geom_type[g])})" for g in contact.geom)
    dim, first = int(contact.dim), int(contact.efc_address)
    pyramid = enum_name("mjtConstraint", d.efc_type[first]) == "contact_pyramidal"
    rows = first + np.arange(2 * (dim - 1) if pyramid else dim)
    J, aref, D = J_all[rows], d.efc_aref[rows], d.efc_D[rows]
    if pyramid:
        friction = np.asarray(contact.friction[: dim - 1])
        J = np.concatenate([(J[:1] + J[1:2]) / 2, (J[::2] - J[1::2]) / 2 / friction[:, None]])
        aref = np.concatenate([(aref[:1] + aref[1:2]) / 2, (aref[::2] - aref[1::2]) / 2 / friction])
        D = np.full(dim, D[0])
    return _Block(_contact(dim), owner, J, D, aref)


def _name(m, kind: str, number) -> str:
    return f"{kind} {object_name(m, kind, int(number))!r}"
