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
from typing import Any

import equinox as eqx
import numpy as np

from jaxdyn.cli._comparison import free_joint_axes, without_mujoco_warnings
from jaxdyn.cli._world_answers import (
    AFTER,
    PERTURBATION,
    advanced,
    answers_of,
    answers_with_contacts,
    relative,
    state_of,
    world_answers,
)
from jaxdyn.cli._world_perturbations import perturbed
from jaxdyn.cli._world_stages import FirstDifference, first_difference, unoptimized
from jaxdyn.cli._world_states import MujocoState, displace, drawn_states, place, random_controls
from jaxdyn.io import RobotFileWarning
from jaxdyn.io.mjcf import compile_mjcf, object_name
from jaxdyn.simulate import State
from jaxdyn.worlds import World, load_world

_DRAWS = 3
"""How often the roll-outs of MuJoCo are perturbed."""
_SEARCH = 1e-14
"""The tolerance of MuJoCo's general routine for contacts, with which its distances are exact but for rounding."""
_SWITCH = 1e-4
"""The change of MuJoCo's own accelerations from which on a state hangs on rounding."""
_AGREE = 1e-5
"""The relative difference up to which roll-outs agree, and steps with the contacts of the world."""
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
    """Whether MuJoCo makes the same steps with the contacts of the world, from its states up to the horizon."""

    @property
    def equal(self) -> bool:
        """Whether the difference is small up to the horizon."""
        return self.agree >= self.horizon


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
    """Pairs of geoms that have other contacts here, by which alone MuJoCo moves otherwise, each with the reason why
    these are no worse than MuJoCo's."""
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
) -> WorldComparison:
    """Compare the world of an MJCF file, text or `mujoco.MjModel` with MuJoCo, with its Newton solver to rounding
    and the file's integrator. Double precision must be on.

    `world`: what is compared, if not what `load_world` makes of the source. `states`: of each random kind; `steps`: of
    the roll-out, none if 0. **Raises** as `load_world`, so
    `RobotFileError` where the world is refused.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RobotFileWarning)
        m, _ = compile_mjcf(source)
        world = load_world(source) if world is None else world
    # The file is compiled twice, with the same warnings.
    left_out = list(dict.fromkeys(str(x.message) for x in caught if issubclass(x.category, RobotFileWarning)))
    m = solved_to_the_end(m)
    with without_mujoco_warnings():
        found = _compared(world, m, states, steps, tolerance, seed)
        if not found.comparable:
            changed = [_with_margins(world, m, change) for change in (_MARGIN, -_MARGIN)]
            found = _together([_compared(*each, states, steps, tolerance, seed) for each in changed])
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


def _together(found: list[WorldComparison]) -> WorldComparison:
    """Return comparisons of one world with different margins as one."""
    kinds = {}
    for kind in found[0].accelerations:
        own = [x.accelerations[kind] for x in found]
        names = "error", "step_error", "sensor_error", "own_change"
        errors = (max(getattr(x, name) for x in own) for name in names)
        names = "different", "on_switches", "by_contacts", "crowded"
        counts = (sum(getattr(x, name) for x in own) for name in names)
        kinds[kind] = StatesCompared(sum(x.states for x in own), *errors, *counts)
    rollouts = [x.rollout for x in found if x.rollout is not None]
    return dataclasses.replace(
        found[0],
        accelerations=kinds,
        rollout=max(rollouts, key=lambda x: (not x.equal, not x.by_contacts, x.error), default=None),
        other_contacts=tuple(sorted({pair for x in found for pair in x.other_contacts})),
        first=next((x.first for x in found if x.first is not None), None),
        margin_change=_MARGIN,
    )


def _compared(world: World, m, states: int, steps: int, tolerance: float, seed: int) -> WorldComparison:
    rng = np.random.default_rng(seed)
    cases = list(drawn_states(m, states, rng))
    found, expected, changes = answers_of(world, m, cases, rng)
    errors = np.array([[relative(*x) for x in zip(*pair, strict=True)] for pair in zip(found, expected, strict=True)])
    allowed = np.maximum(tolerance, 10 * changes)
    switches = changes[:, 0] > _SWITCH
    crowded = _crowded(world, cases, [x[0] for x in found]) & ~switches
    counted = (changes <= _SWITCH) & ~(switches | crowded)[:, None]
    different = ~(errors <= allowed) & counted
    by_contacts, others = np.zeros(len(cases), bool), set()
    for i in np.flatnonzero(different.any(axis=1)):
        answers, pairs = answers_with_contacts(world, m, cases[i], rng)
        errors_left = np.array([relative(*x) for x in zip(found[i], answers, strict=True)])
        by_contacts[i] = bool(pairs) and not (~(errors_left <= allowed[i]) & counted[i]).any()
        others.update(pairs if by_contacts[i] else ())
    different[by_contacts] = False
    kinds, compared = np.array([x.kind for x in cases]), {}
    for kind in dict.fromkeys(kinds):
        own = kinds == kind
        largest = np.where(counted[own], errors[own], 0.0).max(axis=0)
        parts = [float(x.max(initial=0.0)) for x in np.split(largest, (1, 1 + len(AFTER)))]
        compared[str(kind)] = StatesCompared(
            int(own.sum()),
            parts[0],
            parts[1],
            parts[2],
            float(changes[own, 0].max()),
            int(different[own].any(axis=1).sum()),
            int((own & switches).sum()),
            int((own & by_contacts).sum()),
            int((own & crowded).sum()),
        )
    rollout, pairs = compare_rollout(world, m, steps, rng) if steps else (None, ())
    others.update(pairs)
    first = None
    if different.any():
        # Accelerations, the first of the answers, are at the root of the others.
        block = int(np.argmax(different.any(axis=0)))
        excess = np.nan_to_num(errors[:, block] / allowed[:, block], nan=np.inf)
        worst = int(np.argmax(np.where(different[:, block], excess, -1)))
        if block == 0:
            first = _first(world, m, cases[worst], tolerance)
        else:
            where = _where(world, m, block, np.abs(found[worst][block] - expected[worst][block]))
            first = FirstDifference(*where, float(errors[worst, block]), cases[worst].kind)
    return WorldComparison(m.nv, m.nu, tolerance, compared, rollout, [], first, tuple(sorted(others)))


def _crowded(world: World, cases: list[MujocoState], accelerations: list[np.ndarray]) -> np.ndarray:
    """Return whether states have more contacts than the world has room for. Only those with accelerations that are not
    numbers can, so that no other world needs another program."""
    crowded = np.zeros(len(cases), bool)
    for i in [i for i, a in enumerate(accelerations) if not np.isfinite(a).all()]:
        number = _report(world, state_of(world, cases[i]), cases[i].ctrl).crowded
        crowded[i] = number is not None and number > 0
    return crowded


def _where(world: World, m, block: int, differences: np.ndarray) -> tuple[str, str]:
    """Return the name of an answer that is not accelerations, and the object with the largest difference."""
    worst = int(np.argmax(np.nan_to_num(differences, nan=np.inf)))
    if block > len(AFTER):
        name = world.parts.sensors.names[block - len(AFTER) - 1]
        return "the values of sensors", f"sensor {name!r}"
    rows = (m.jnt_dofadr, m.jnt_qposadr, m.actuator_actadr)[block - 1]
    kind = "actuator" if block == len(AFTER) else "joint"
    owner = int(np.argmax(np.where(rows <= worst, rows, -1)))
    return f"{AFTER[block - 1]} after a time step", f"{kind} {object_name(m, kind, owner)!r}"


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


def _first(world: World, m, case: MujocoState, tolerance: float) -> FirstDifference:
    import mujoco

    d = mujoco.MjData(m)
    place(m, d, case)
    mujoco.mj_forward(m, d)
    return first_difference(world, m, d, state_of(world, case), case.kind, tolerance)


# One program does for the whole comparison.
_report = unoptimized(lambda world, state, control: world.report(state, control))


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
        short[:n] = relative(other[:n], expected[:n])
        own = np.maximum(own, short)
    states = [state_of(world, start)]
    for control in controls[: len(expected)]:
        states.append(advanced(world, states[-1], control)[1])
    error = relative(np.array([state.q for state in states[1:]]).reshape(expected.shape), expected)
    horizon = _until(own, 1e-7)
    largest = float(error[:horizon].max(initial=0.0))
    first = float(error[0]) if len(error) else np.inf
    rollout = RolloutCompared(len(expected), first, largest, horizon, _until(error, _AGREE), _until(own, _AGREE))
    if rollout.equal:
        return rollout, set()
    others = _other_contacts_of_steps(world, m, states[:horizon], controls, start, rng)
    return dataclasses.replace(rollout, by_contacts=bool(others)), others


def _other_contacts_of_steps(
    world: World, m, states: list[State], controls: np.ndarray, start: MujocoState, rng
) -> set[str]:
    """Return the pairs of geoms by whose contacts alone MuJoCo's steps differ from those of the world, from the states
    of its roll-out; none where steps differ otherwise.

    Errors of single steps do not grow, as those of a second roll-out would, in which other contacts come and go within
    rounding."""
    others = set()
    for state, control in zip(states, controls, strict=False):
        q = np.asarray(state.q)
        qvel = free_joint_axes(world.model, q).T @ np.asarray(state.v)
        now = MujocoState("roll-out", q, qvel, np.asarray(state.activation), control, start.active)
        expected, pairs = answers_with_contacts(world, m, now, rng)
        others.update(pairs)
        found = world_answers(world, state, control, expected)
        # Without sensors, which have no effect on steps.
        steps = zip(found[: 1 + len(AFTER)], expected, strict=False)
        if not all(relative(*each) <= _AGREE for each in steps):
            return set()
    return others


def _until(errors: np.ndarray, limit: float) -> int:
    """Return the steps before the first error above a limit."""
    beyond = np.flatnonzero(~(errors <= limit))
    return int(beyond[0]) if len(beyond) else len(errors)
