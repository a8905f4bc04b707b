"""Comparison of a world with MuJoCo at states of several kinds: accelerations, sensors and the state after a time step;
a roll-out; and what differs first.

What MuJoCo answers at a state may hang on rounding: where a contact begins, in a stiff constraint, or where its search
ends near the place of a contact. So the state is changed by 1e-12, the search ends at other tolerances, and the
contacts that it finds are turned and moved by what it can resolve; a difference counts where it exceeds both the
tolerance and ten times what that changes.

Where bodies only just touch in most states, nothing is learned from these: rounding says whether there is a contact. So
the world is compared with margins of contacts and limits that are a little larger and a little smaller than the file's.
"""

# pyright: reportAttributeAccessIssue=false
# (MuJoCo is a compiled module without type stubs.)

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np

from jaxdyn.cli._comparison import free_joint_axes, free_joint_turning, without_mujoco_warnings
from jaxdyn.cli._world_contacts import contacts_of, forward_with_contacts, unoptimized
from jaxdyn.cli._world_contacts import stages_of as stages_of
from jaxdyn.cli._world_states import (
    MujocoState,
    displace,
    drawn_states,
    forward_with_turned_contacts,
    perturbed,
    place,
    random_controls,
    state_of,
)
from jaxdyn.io import RobotFileWarning
from jaxdyn.io.mjcf import compile_mjcf, enum_name, object_name
from jaxdyn.worlds import World, accelerations_step_and_sensors, load_world

PERTURBATION = 1e-12
_DRAWS = 3
"""How often the roll-outs of MuJoCo are perturbed."""
_DRAWS_OF_STATES = 12
"""How often its states are. Where a body only just touches, half of the draws have a contact."""
_SEARCH = 1e-14
"""The tolerance of this routine, with which its distances are exact but for rounding."""
_SWITCH = 1e-4
"""The change of MuJoCo's own accelerations from which on a state hangs on rounding."""
_MARGIN = 1e-6
"""The change of margins (m, rad) with which worlds are compared in which most states hang on rounding."""


@dataclasses.dataclass(frozen=True)
class StatesCompared:
    """States of one kind."""

    states: int
    error: float
    """The largest relative error of accelerations, relative to the largest one and to at least 1, of the states that do
    not hang on rounding."""
    step_error: float
    """The same of configurations, velocities and activations after one time step."""
    sensor_error: float
    """The same of the values of sensors."""
    own_change: float
    """The largest change of MuJoCo's own accelerations under the perturbations, relative in the same way."""
    different: int
    """How many states differ, also if MuJoCo has the world's contacts."""
    on_switches: int
    """How many states hang on rounding: MuJoCo's own accelerations change by more than 1e-4. These are not compared."""
    by_contacts: int = 0
    """How many states differ by contacts alone: MuJoCo has the same answers with those of the world."""
    crowded: int = 0
    """How many of the others have more contacts than the world has room for, so that their accelerations are not
    numbers. These are not compared either."""


@dataclasses.dataclass(frozen=True)
class RolloutCompared:
    """A roll-out with random controls from near the initial state."""

    steps: int
    first_step: float
    """The difference of coordinates after one step, relative to the largest coordinate, and to at least 1."""
    error: float
    """The largest difference up to the horizon."""
    horizon: int
    """The steps up to which MuJoCo's own roll-outs, perturbed, differ by at most 1e-7."""
    agree: int
    """The steps up to which the difference is at most 1e-5."""
    own_agree: int
    """The same for the perturbed roll-outs of MuJoCo."""
    by_contacts: bool = False
    """Whether the difference is small up to the horizon from a roll-out of MuJoCo with the contacts of the world."""

    @property
    def equal(self) -> bool:
        """Whether the difference is small up to the horizon."""
        return self.agree >= self.horizon


@dataclasses.dataclass(frozen=True)
class FirstDifference:
    """The first quantity that differs."""

    quantity: str
    where: str
    """The part of the file from which it comes: a joint, an actuator, a sensor, ..."""
    error: float
    """Relative to the largest number of the quantity, and to at least 1; infinite for numbers of rows."""
    state: str
    """The kind of the state in which it was found."""


type Explanation = Callable[[World, Any, MujocoState, float], FirstDifference]
"""Called with a world, its `mjModel`, a state at which accelerations differ, and the tolerance; returns what of their
causes differs first."""


@dataclasses.dataclass(frozen=True)
class WorldComparison:
    """A world beside MuJoCo."""

    nv: int
    nu: int
    tolerance: float
    accelerations: dict[str, StatesCompared]
    rollout: RolloutCompared | None
    left_out: list[str]
    """The warnings of the loader: of what it leaves out, and where MuJoCo is off the geometry."""
    first: FirstDifference | None = None
    """The first quantity that differs in the worst state; None where all are equal."""
    other_contacts: tuple[str, ...] = ()
    """Pairs of geoms that have other contacts here, no less deep than MuJoCo's, by which alone it moves otherwise."""
    margin_change: float = 0.0
    """The margins of contacts and limits were larger and smaller by this (m, rad) than in the file, because most of its
    states hang on rounding; zero if they do not."""

    @property
    def comparable(self) -> bool:
        """Whether at least half of the states are compared."""
        states = self.accelerations.values()
        return 2 * sum(x.on_switches + x.crowded for x in states) <= sum(x.states for x in states)

    @property
    def equal(self) -> bool:
        """Whether accelerations and the roll-out are equal, where they are compared."""
        return not self.other_contacts and self.equal_with_contacts

    @property
    def equal_with_contacts(self) -> bool:
        """Whether they are, if MuJoCo has the world's contacts of the pairs in `other_contacts`."""
        same = not any(x.different for x in self.accelerations.values())
        return same and (self.rollout is None or self.rollout.equal or self.rollout.by_contacts)


def compare_world(
    source: Any,
    world: World | None = None,
    *,
    states: int = 5,
    steps: int = 300,
    tolerance: float = 1e-8,
    seed: int = 0,
    explain: Explanation | None = None,
) -> WorldComparison:
    """Compare the world of an MJCF file, text or `mujoco.MjModel` with MuJoCo, with its Newton solver to rounding
    and the file's integrator. Double precision must be on.

    `world`: what is compared, if not what `load_world` makes of the source. `states`: of each random kind; `steps`: of
    the roll-out, none if 0. `explain`: says where accelerations that differ come from; by default they are the first
    quantity. **Raises** as `load_world`, so `RobotFileError` where the world is refused.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RobotFileWarning)
        m, _ = compile_mjcf(source)
        world = load_world(source) if world is None else world
    # The file is compiled twice, with the same warnings.
    left_out = list(dict.fromkeys(str(x.message) for x in caught if issubclass(x.category, RobotFileWarning)))
    m = solved_to_the_end(m)
    with without_mujoco_warnings():
        options = states, steps, tolerance, seed, explain
        found = _compared([(world, m)], *options)
        if not found.comparable:
            changed = [_with_margins(world, m, change) for change in (_MARGIN, -_MARGIN)]
            found = dataclasses.replace(_compared(changed, *options), margin_change=_MARGIN)
        return dataclasses.replace(found, left_out=left_out)


def _with_margins(world: World, m, change: float) -> tuple[World, Any]:
    """Return a world and its `mjModel` with all margins changed."""
    m = copy.copy(m)
    # The margin of a pair is the sum of those of its geoms.
    m.geom_margin[:] += change / 2
    for margins in (m.body_margin, m.pair_margin, m.jnt_margin, m.tendon_margin):
        margins[:] += change
    m.opt.o_margin += change

    def margins_of(world: World) -> list[Any]:
        constraints = world.parts.constraints
        return [*(pairs.margin for pairs in constraints.contacts.pairs), constraints.limits.margin]

    return eqx.tree_at(margins_of, world, replace_fn=lambda x: x + change), m


def _compared(
    worlds: list[tuple[World, Any]], states: int, steps: int, tolerance: float, seed: int, explain: Explanation | None
) -> WorldComparison:
    """Compare one world, or the same with several margins, each with its `mjModel`."""
    parts, rollouts, others, first = [], [], set(), None
    for world, m in worlds:
        rng = np.random.default_rng(seed)
        cases = list(drawn_states(m, states, rng))
        found, expected, changes = _answers(world, m, cases, rng)
        errors = np.array([[_relative(*x) for x in zip(*y, strict=True)] for y in zip(found, expected, strict=True)])
        allowed = np.maximum(tolerance, 10 * changes)
        switches = changes[:, 0] > _SWITCH
        crowded = _crowded(world, cases, [x[0] for x in found]) & ~switches
        counted = (changes <= _SWITCH) & ~(switches | crowded)[:, None]
        different = ~(errors <= allowed) & counted
        by_contacts = np.zeros(len(cases), bool)
        for i in np.flatnonzero(different.any(axis=1)):
            answers, pairs = _answers_with_contacts(world, m, cases[i])
            errors_left = np.array([_relative(*x) for x in zip(found[i], answers, strict=True)])
            by_contacts[i] = bool(pairs) and not (~(errors_left <= allowed[i]) & counted[i]).any()
            others.update(pairs if by_contacts[i] else ())
        different[by_contacts] = False
        kinds, largest = np.array([x.kind for x in cases]), np.where(counted, errors, 0.0)
        parts.append((kinds, largest, changes[:, 0], different.any(axis=1), switches, by_contacts, crowded))
        if steps:
            rollout, pairs = compare_rollout(world, m, steps, rng)
            rollouts.append(rollout)
            others.update(pairs)
        if first is None and different.any():
            # Accelerations, the first of the answers, are at the root of the others.
            block = int(np.argmax(different.any(axis=0)))
            excess = np.nan_to_num(errors[:, block] / allowed[:, block], nan=np.inf)
            worst = int(np.argmax(np.where(different[:, block], excess, -1)))
            where = _where(world, m, block, np.abs(found[worst][block] - expected[worst][block]))
            first = FirstDifference(*where, float(errors[worst, block]), cases[worst].kind)
            if block == 0 and explain is not None:
                first = explain(world, m, cases[worst], tolerance)
    rollout = max(rollouts, key=lambda x: (not x.equal, not x.by_contacts, x.error), default=None)
    m = worlds[0][1]
    return WorldComparison(m.nv, m.nu, tolerance, _by_kind(parts), rollout, [], first, tuple(sorted(others)))


def _by_kind(parts: list[tuple[np.ndarray, ...]]) -> dict[str, StatesCompared]:
    """Return the states of each kind: the largest numbers of the first arrays, and the sums of the others."""
    kinds, errors, changes, *flags = (np.concatenate(x) for x in zip(*parts, strict=True))
    compared = {}
    for kind in dict.fromkeys(kinds):
        own = kinds == kind
        largest = np.split(errors[own].max(axis=0), (1, 1 + len(_AFTER)))
        error, step, sensors, change = (float(x.max(initial=0.0)) for x in (*largest, changes[own]))
        counts = [int(x[own].sum()) for x in flags]
        compared[str(kind)] = StatesCompared(int(own.sum()), error, step, sensors, change, *counts)
    return compared


def _crowded(world: World, cases: list[MujocoState], accelerations: list[np.ndarray]) -> np.ndarray:
    """Return whether states have more contacts than the world has room for. Only those with accelerations that are not
    numbers can, so that no other world needs another program."""
    crowded = np.zeros(len(cases), bool)
    for i in [i for i, a in enumerate(accelerations) if not np.isfinite(a).all()]:
        number = _report(world, state_of(world, cases[i]), cases[i].ctrl).crowded
        crowded[i] = number is not None and number > 0
    return crowded


_AFTER = ("velocities", "configurations", "activations")
"""The parts of the state that are compared after a time step."""


def _where(world: World, m, block: int, differences: np.ndarray) -> tuple[str, str]:
    """Return the name of an answer, and the object with the largest difference."""
    worst = int(np.argmax(np.nan_to_num(differences, nan=np.inf)))
    if block > len(_AFTER):
        name = world.parts.sensors.names[block - len(_AFTER) - 1]
        return "the values of sensors", f"sensor {name!r}"
    rows = (m.jnt_dofadr, m.jnt_dofadr, m.jnt_qposadr, m.actuator_actadr)[block]
    kind = "actuator" if block == len(_AFTER) else "joint"
    owner = int(np.argmax(np.where(rows <= worst, rows, -1)))
    answer = f"{_AFTER[block - 1]} after a time step" if block else "accelerations"
    return answer, f"{kind} {object_name(m, kind, owner)!r}"


def solved_to_the_end(m) -> Any:
    """Return a copy of an `mjModel` whose constraints MuJoCo solves by Newton's method until rounding ends it, and
    likewise its iterations for the contacts of convex geoms."""
    import mujoco

    m = copy.copy(m)
    m.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    m.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    # Any other tolerance ends the search where the cost no longer decreases by more than its rounding. Accelerations
    # then miss up to 1e-7 where some inertias are 1e7 times others: they follow from the gradient, which still falls.
    # Newton's method takes fewer than ten iterations mostly, and goes on to the last one of these.
    m.opt.tolerance, m.opt.iterations = 0.0, 50
    m.opt.ccd_tolerance, m.opt.ccd_iterations = _SEARCH, 500
    m.opt.ls_tolerance, m.opt.ls_iterations = 1e-10, 200
    return m


def _answers(world: World, m, cases: list[MujocoState], rng) -> tuple[list, list, np.ndarray]:
    """Return the answers found and expected at each state, as MuJoCo has them, and the relative changes of MuJoCo's
    own, `[n, answers]`: accelerations, `_AFTER`, and each sensor."""
    import mujoco

    d, expected, found, changes = mujoco.MjData(m), [], [], []
    ends = np.cumsum(world.parts.sensors.sizes)[:-1]
    for case in cases:
        place(m, d, case)
        mujoco.mj_forward(m, d)
        expected.append(_mujoco_answers(world, m, d))
        change = np.zeros(len(expected[-1]))
        for _ in perturbed(m, _DRAWS_OF_STATES):
            place(m, d, case)
            displace(m, d, PERTURBATION * rng.normal(size=m.nv))
            d.qvel[:] += PERTURBATION * rng.normal(size=m.nv)
            forward_with_turned_contacts(m, d, rng)
            own = _mujoco_answers(world, m, d)
            change = np.maximum(change, [_relative(*x) for x in zip(own, expected[-1], strict=True)])
        changes.append(change)
        state = state_of(world, case)
        a, after, values = _advanced(world, state, case.ctrl)
        T, v = free_joint_axes(world.model, case.qpos), np.asarray(state.v)
        q = _nearest(world, np.array(after.q), expected[-1][2])
        before = T.T @ (np.asarray(a) - free_joint_turning(world.model, v))
        speed = free_joint_axes(world.model, q).T @ np.asarray(after.v)
        sensors = np.split(np.asarray(values), ends) if len(values) else []
        found.append([before, speed, q, np.asarray(after.activation), *sensors])
    return found, expected, np.array(changes)


def _answers_with_contacts(world: World, m, case: MujocoState, d: Any = None) -> tuple[list, list[str]]:
    """Return the answers of MuJoCo with the contacts of the world, and the pairs of geoms whose contacts differ; none
    where these are missing or worse than MuJoCo's. Data `d` go on by a time step."""
    import mujoco

    d = mujoco.MjData(m) if d is None else d
    place(m, d, case)
    pairs = forward_with_contacts(m, d, contacts_of(world, state_of(world, case), case.ctrl))
    # Later stages of this integrator would have MuJoCo's contacts.
    if pairs is None or enum_name("mjtIntegrator", m.opt.integrator) == "rk4":
        mujoco.mj_forward(m, d)
        pairs = []
    return _mujoco_answers(world, m, d), pairs


def _mujoco_answers(world: World, m, d) -> list[np.ndarray]:
    """Return the answers of MuJoCo's data after its forward dynamics, and go on by a time step."""
    import mujoco

    known = {object_name(m, "sensor", i): i for i in range(m.nsensor)}
    read = [known[name] for name in world.parts.sensors.names]
    sensors = [d.sensordata[m.sensor_adr[i] :][: m.sensor_dim[i]].copy() for i in read]
    accelerations, integrator = d.qacc.copy(), enum_name("mjtIntegrator", m.opt.integrator)
    if integrator == "rk4":
        mujoco.mj_RungeKutta(m, d, 4)
    else:
        (mujoco.mj_Euler if integrator == "euler" else mujoco.mj_implicit)(m, d)
    return [accelerations, d.qvel.copy(), d.qpos.copy(), d.act.copy(), *sensors]


def _nearest(world: World, q: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return a configuration with the signs of quaternions, which say nothing, that are nearest to another one."""
    for start in world.model.topology.quaternion_starts:
        own = slice(start, start + 4)
        q[own] *= 1 if q[own] @ other[own] >= 0 else -1
    return q


# One program does for the whole comparison.
_advanced = unoptimized(accelerations_step_and_sensors)
_report = unoptimized(lambda world, state, control: world.report(state, control))


def _relative(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return differences relative to the largest number expected, and to at least 1; infinite if they are none."""
    error = np.abs(found - expected).max(axis=-1, initial=0) / np.maximum(1, np.abs(expected).max(axis=-1, initial=0))
    return np.where(np.isfinite(error), error, np.inf)


def compare_rollout(world: World, m, steps: int, rng) -> tuple[RolloutCompared, set[str]]:
    """Compare a roll-out with random controls, held for some steps each, and MuJoCo's with its own, perturbed. Return
    also the pairs of geoms by whose contacts alone they differ."""
    import mujoco

    d = mujoco.MjData(m)
    # Files often begin where bodies only just touch.
    displace(m, d, 1e-3 * rng.normal(size=m.nv))
    d.qvel[:] = 0.1 * rng.normal(size=m.nv)
    start = MujocoState("initial", *(x.copy() for x in (d.qpos, d.qvel, d.act, d.ctrl, d.eq_active)))
    controls = random_controls(m, steps, rng)

    def moved(size: float) -> np.ndarray:
        place(m, d, start)
        displace(m, d, size * rng.normal(size=m.nv))
        d.qvel[:] += size * rng.normal(size=m.nv)
        rows = []
        for control in controls:
            d.ctrl[:] = control
            mujoco.mj_step(m, d)
            if d.warning[mujoco.mjtWarning.mjWARN_BADQACC].number:
                # It begins anew from the initial state where it diverges.
                break
            rows.append(d.qpos.copy())
        return np.array(rows).reshape(-1, m.nq)

    expected = moved(0.0)
    own = np.zeros(len(expected))
    for _ in perturbed(m, _DRAWS):
        other = moved(PERTURBATION)
        short = np.full(len(expected), np.inf)
        n = min(len(other), len(expected))
        short[:n] = _relative(other[:n], expected[:n])
        own = np.maximum(own, short)
    state, reached = state_of(world, start), []
    for control in controls[: len(expected)]:
        state = _advanced(world, state, control)[1]
        reached.append(state.q)
    error = _relative(np.array(reached).reshape(expected.shape), expected)
    horizon = _until(own, 1e-7)
    largest = float(error[:horizon].max(initial=0.0))
    first = float(error[0]) if len(error) else np.inf
    rollout = RolloutCompared(len(expected), first, largest, horizon, _until(error, 1e-5), _until(own, 1e-5))
    if rollout.equal:
        return rollout, set()
    place(m, d, start)
    others, again = set(), []
    for control in controls[:horizon]:
        now = MujocoState("roll-out", *(x.copy() for x in (d.qpos, d.qvel, d.act, control, d.eq_active)))
        others.update(_answers_with_contacts(world, m, now, d)[1])
        again.append(d.qpos.copy())
    apart = _relative(np.array(reached[:horizon]).reshape(-1, m.nq), np.array(again))
    explained = bool(others) and _until(apart, 1e-5) >= horizon
    return dataclasses.replace(rollout, by_contacts=explained), others if explained else set()


def _until(errors: np.ndarray, limit: float) -> int:
    """Return the steps before the first error above a limit."""
    beyond = np.flatnonzero(~(errors <= limit))
    return int(beyond[0]) if len(beyond) else len(errors)
