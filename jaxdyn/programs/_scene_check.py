"""Comparison of a scene with MuJoCo: accelerations at states of several kinds, a roll-out, and what differs first.

What MuJoCo answers at a state may hang on rounding: where a contact begins, in a stiff constraint, or where its search
ends near the place of a contact. So the state is changed by 1e-12, the search ends at other tolerances, and the
contacts that it finds are turned and moved by what it can resolve; a difference counts where it exceeds both the
tolerance and ten times what that changes.

Where bodies only just touch in most states, nothing is learned from these: rounding says whether there is a contact. So
the scene is compared with margins of contacts and limits that are a little larger and a little smaller than the file's.
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

from jaxdyn.io import RobotFileWarning
from jaxdyn.io.mjcf import compile_mjcf, enum_name
from jaxdyn.programs._comparison import free_joint_axes, free_joint_turning, without_mujoco_warnings
from jaxdyn.programs._scene_stages import FirstDifference, first_difference, unoptimized
from jaxdyn.programs._scene_states import MujocoState, displace, drawn_states, place, random_controls
from jaxdyn.scenes import Scene, SceneState, accelerations_and_step, load_scene

PERTURBATION = 1e-12
_DRAWS = 3
"""How often the roll-outs of MuJoCo are perturbed."""
_DRAWS_OF_STATES = 12
"""How often its states are. Where a body only just touches, half of the draws have a contact."""
_SEARCH = 1e-14
"""The tolerance of this routine, with which its distances are exact but for rounding."""
_OTHER_SEARCHES = (1e-15, 1e-13, 1e-12)
"""The tolerances with which it may end at another place of the same contact."""
_RESOLVED = 1e-7
"""The root of this tolerance: the angle up to which this routine resolves the directions of contacts (rad), because
distances change by its square. Places move by this angle times the size of the smaller geom."""
_SEARCHED = ("ellipsoid", "cylinder", "mesh", "hfield")
"""The types of geoms whose contacts with others than planes that routine finds."""
_ROUND = ("sphere", "capsule")
"""The types whose contacts with height fields it finds to rounding, while their centers and axes are outside."""
_SWITCH = 1e-4
"""The change of MuJoCo's own accelerations from which on a state hangs on rounding."""
_MARGIN = 1e-6
"""The change of margins (m, rad) with which scenes are compared in which most states hang on rounding."""


@dataclasses.dataclass(frozen=True)
class StatesCompared:
    """States of one kind."""

    states: int
    error: float
    """The largest relative error of accelerations, relative to the largest one and to at least 1, of the states that do
    not hang on rounding."""
    own_change: float
    """The largest change of MuJoCo's own accelerations under the perturbations, relative in the same way."""
    different: int
    """How many states differ."""
    on_switches: int
    """How many states hang on rounding: MuJoCo's own accelerations change by more than 1e-4. These are not compared."""


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

    @property
    def equal(self) -> bool:
        """Whether the difference is small up to the horizon."""
        return self.agree >= self.horizon


@dataclasses.dataclass(frozen=True)
class SceneComparison:
    """A scene beside MuJoCo."""

    nv: int
    nu: int
    tolerance: float
    accelerations: dict[str, StatesCompared]
    rollout: RolloutCompared | None
    left_out: list[str]
    """The warnings of the loader: of what it leaves out, and where MuJoCo is off the geometry."""
    first: FirstDifference | None = None
    """The first quantity that differs in the worst state; None where all are equal."""
    margin_change: float = 0.0
    """The margins of contacts and limits were larger and smaller by this (m, rad) than in the file, because most of its
    states hang on rounding; zero if they do not."""

    @property
    def comparable(self) -> bool:
        """Whether at least half of the states do not hang on rounding."""
        states = self.accelerations.values()
        return 2 * sum(x.on_switches for x in states) <= sum(x.states for x in states)

    @property
    def equal(self) -> bool:
        """Whether accelerations and the roll-out are equal, where they are compared."""
        same = not any(x.different for x in self.accelerations.values())
        return same and (self.rollout is None or self.rollout.equal)


def compare_scene(
    source: Any,
    scene: Scene | None = None,
    *,
    states: int = 5,
    steps: int = 300,
    tolerance: float = 1e-8,
    seed: int = 0,
) -> SceneComparison:
    """Compare the scene of an MJCF file, text or `mujoco.MjModel` with MuJoCo, with its Newton solver to rounding
    and the file's integrator. Double precision must be on.

    `scene`: what is compared, if not what `load_scene` makes of the source. `states`: of each random kind; `steps`: of
    the roll-out, none if 0. **Raises** as `load_scene`, so
    `RobotFileError` where the scene is refused.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RobotFileWarning)
        m, _ = compile_mjcf(source)
        scene = load_scene(source) if scene is None else scene
    # The file is compiled twice, with the same warnings.
    left_out = list(dict.fromkeys(str(x.message) for x in caught if issubclass(x.category, RobotFileWarning)))
    m = solved_to_the_end(m)
    with without_mujoco_warnings():
        found = _compared(scene, m, states, steps, tolerance, seed)
        if not found.comparable:
            changed = [_with_margins(scene, m, change) for change in (_MARGIN, -_MARGIN)]
            found = _together([_compared(*each, states, steps, tolerance, seed) for each in changed])
        return dataclasses.replace(found, left_out=left_out)


def _with_margins(scene: Scene, m, change: float) -> tuple[Scene, Any]:
    """Return a scene and its `mjModel` with all margins changed."""
    m = copy.copy(m)
    # The margin of a pair is the sum of those of its geoms.
    m.geom_margin[:] += change / 2
    for margins in (m.body_margin, m.pair_margin, m.jnt_margin, m.tendon_margin):
        margins[:] += change
    m.opt.o_margin += change

    def margins_of(scene: Scene) -> list[Any]:
        constraints = scene.parts.constraints
        return [*(pairs.margin for pairs in constraints.contacts.pairs), constraints.limits.margin]

    return eqx.tree_at(margins_of, scene, replace_fn=lambda x: x + change), m


def _together(found: list[SceneComparison]) -> SceneComparison:
    """Return comparisons of one scene with different margins as one."""
    kinds = {}
    for kind in found[0].accelerations:
        own = [x.accelerations[kind] for x in found]
        errors = max(x.error for x in own), max(x.own_change for x in own)
        counts = (sum(getattr(x, name) for x in own) for name in ("different", "on_switches"))
        kinds[kind] = StatesCompared(sum(x.states for x in own), *errors, *counts)
    rollouts = [x.rollout for x in found if x.rollout is not None]
    return dataclasses.replace(
        found[0],
        accelerations=kinds,
        rollout=max(rollouts, key=lambda x: (not x.equal, x.error), default=None),
        first=next((x.first for x in found if x.first is not None), None),
        margin_change=_MARGIN,
    )


def _compared(scene: Scene, m, states: int, steps: int, tolerance: float, seed: int) -> SceneComparison:
    rng = np.random.default_rng(seed)
    cases = list(drawn_states(m, states, rng))
    found, expected, changes = _accelerations(scene, m, cases, rng)
    errors = _relative(found, expected)
    allowed = np.maximum(tolerance, 10 * changes)
    switches = changes > _SWITCH
    different = ~(errors <= allowed) & ~switches
    kinds, compared = np.array([x.kind for x in cases]), {}
    for kind in dict.fromkeys(kinds):
        own = kinds == kind
        compared[str(kind)] = StatesCompared(
            int(own.sum()),
            float(errors[own & ~switches].max(initial=0.0)),
            float(changes[own].max()),
            int(different[own].sum()),
            int((own & switches).sum()),
        )
    rollout = compare_rollout(scene, m, steps, rng) if steps else None
    first = None
    if different.any():
        worst = int(np.argmax(np.where(different, np.nan_to_num(errors / allowed, nan=np.inf), 0)))
        first = _first(scene, m, cases[worst], tolerance)
    return SceneComparison(m.nv, m.nu, tolerance, compared, rollout, [], first)


def solved_to_the_end(m) -> Any:
    """Return a copy of an `mjModel` whose constraints MuJoCo solves by Newton's method until rounding ends it, and
    likewise its iterations for the contacts of convex geoms."""
    import mujoco

    m = copy.copy(m)
    m.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    m.opt.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    m.opt.tolerance, m.opt.iterations = 1e-15, 200
    m.opt.ccd_tolerance, m.opt.ccd_iterations = _SEARCH, 500
    m.opt.ls_tolerance, m.opt.ls_iterations = 1e-10, 200
    return m


def state_of(scene: Scene, case: MujocoState) -> SceneState:
    """Return a state of MuJoCo as the scene has it."""
    return scene.state(case.qpos, free_joint_axes(scene.model, case.qpos) @ case.qvel, case.act)


def _first(scene: Scene, m, case: MujocoState, tolerance: float) -> FirstDifference:
    import mujoco

    d = mujoco.MjData(m)
    place(m, d, case)
    mujoco.mj_forward(m, d)
    return first_difference(scene, m, d, state_of(scene, case), case.kind, tolerance)


def _accelerations(scene: Scene, m, cases: list[MujocoState], rng) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the accelerations found and expected, `[n, nv]`, both as the scene has them, and the relative changes of
    MuJoCo's own."""
    import mujoco

    d, expected, changes, states = mujoco.MjData(m), [], [], []
    perturbed = _perturbed(m, _DRAWS_OF_STATES)
    for case in cases:
        T = free_joint_axes(scene.model, case.qpos)
        v = T @ case.qvel
        place(m, d, case)
        mujoco.mj_forward(m, d)
        qacc, change = d.qacc.copy(), 0.0
        for other in perturbed:
            place(other, d, case)
            displace(other, d, PERTURBATION * rng.normal(size=m.nv))
            d.qvel[:] += PERTURBATION * rng.normal(size=m.nv)
            _forward_with_turned_contacts(other, d, rng)
            change = max(change, float(_relative(d.qacc, qacc)))
        expected.append(T @ qacc + free_joint_turning(scene.model, v))
        changes.append(change)
        states.append((case.qpos, v, case.act, case.ctrl))
    found = [np.asarray(_advanced(scene, scene.state(q, v, act), ctrl)[0]) for q, v, act, ctrl in states]
    return np.array(found), np.array(expected), np.array(changes)


# One program does for the whole comparison.
_advanced = unoptimized(accelerations_and_step)


def _searched(m) -> np.ndarray:
    """Return which geoms have contacts that MuJoCo's general routine looks for."""
    return np.array([enum_name("mjtGeom", x) in _SEARCHED for x in m.geom_type], bool)


def _perturbed(m, draws: int) -> list[Any]:
    """Return the models whose states are changed: some times the `mjModel` itself, and copies in which the search for
    contacts ends at other tolerances."""
    models = [m] * draws
    for tolerance in _OTHER_SEARCHES if _searched(m).any() else ():
        other = copy.copy(m)
        other.opt.ccd_tolerance = tolerance
        models.append(other)
    return models


def _forward_with_turned_contacts(m, d, rng) -> None:
    """Compute accelerations as `mj_forward` does, with the contacts of the general routine turned at random by the
    angle that it resolves."""
    import mujoco

    mujoco.mj_fwdPosition(m, d)
    types, searched = [enum_name("mjtGeom", x) for x in m.geom_type], _searched(m)
    turned = False

    def is_searched(contact) -> bool:
        if (contact.geom < 0).any() or not searched[contact.geom].any():
            return False
        one, two = (types[g] for g in contact.geom)
        shallow = one == "hfield" and two in _ROUND and contact.dist > -m.geom_size[contact.geom[1], 0]
        return "plane" not in (one, two) and not shallow

    for contact in d.contact[: d.ncon]:
        if is_searched(contact):
            turn = _RESOLVED * rng.normal(size=3)
            contact.frame[:] += np.cross(turn, contact.frame.reshape(3, 3)).ravel()
            contact.pos[:] += _RESOLVED * m.geom_rbound[contact.geom].min() * rng.normal(size=3)
            turned = True
    if turned:
        mujoco.mj_makeConstraint(m, d)
        # Sweeps against slip need the islands of these constraints.
        mujoco.mj_island(m, d)
        mujoco.mj_projectConstraint(m, d)
    mujoco.mj_fwdVelocity(m, d)
    mujoco.mj_fwdActuation(m, d)
    mujoco.mj_fwdAcceleration(m, d)
    mujoco.mj_fwdConstraint(m, d)


def _relative(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return differences relative to the largest number expected, and to at least 1; infinite if they are none."""
    error = np.abs(found - expected).max(axis=-1) / np.maximum(1, np.abs(expected).max(axis=-1))
    return np.where(np.isfinite(error), error, np.inf)


def compare_rollout(scene: Scene, m, steps: int, rng) -> RolloutCompared:
    """Compare a roll-out with random controls, held for some steps each, and MuJoCo's with its own, perturbed."""
    import mujoco

    d = mujoco.MjData(m)
    # Files often begin where bodies only just touch.
    displace(m, d, 1e-3 * rng.normal(size=m.nv))
    d.qvel[:] = 0.1 * rng.normal(size=m.nv)
    start = MujocoState("initial", *(x.copy() for x in (d.qpos, d.qvel, d.act, d.ctrl)))
    controls = random_controls(m, steps, rng)

    def moved(m, size: float) -> np.ndarray:
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

    expected = moved(m, 0.0)
    own = np.zeros(len(expected))
    for model in _perturbed(m, _DRAWS):
        other = moved(model, PERTURBATION)
        short = np.full(len(expected), np.inf)
        n = min(len(other), len(expected))
        short[:n] = _relative(other[:n], expected[:n])
        own = np.maximum(own, short)
    state, reached = state_of(scene, start), []
    for control in controls[: len(expected)]:
        state = _advanced(scene, state, control)[1]
        reached.append(state.q)
    error = _relative(np.array(reached).reshape(expected.shape), expected)
    horizon = _until(own, 1e-7)
    largest = float(error[:horizon].max(initial=0.0))
    first = float(error[0]) if len(error) else np.inf
    return RolloutCompared(len(expected), first, largest, horizon, _until(error, 1e-5), _until(own, 1e-5))


def _until(errors: np.ndarray, limit: float) -> int:
    """Return the steps before the first error above a limit."""
    beyond = np.flatnonzero(~(errors <= limit))
    return int(beyond[0]) if len(beyond) else len(errors)


def why_refused(error: Exception) -> list[str]:
    """Return the reasons in the message of a refused scene; all of it where it has none."""
    lines = [line.removeprefix("- ") for line in str(error).splitlines() if line.startswith("- ")]
    return lines or [" ".join(str(error).split())]


def why_no_scene(source: Any) -> str | None:
    """Return why an MJCF file is no scene, in MuJoCo's words, or because nothing in it moves; None if it is one."""
    import mujoco

    try:
        m = mujoco.MjModel.from_xml_path(str(source))
    except ValueError as error:
        return " ".join(str(error).split())
    return None if m.nv else "nothing moves"
