"""Identification in one call: preparation, choice of effects and prior, fit, and a verdict in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.stats import t as student_t

from jaxdyn import _printing as printing
from jaxdyn._errors import naming_arguments
from jaxdyn._types import ArrayLike
from jaxdyn.model import Model
from jaxdyn.sysid._progress_lines import Progress, ProgressReport
from jaxdyn.sysid.parameters import nearest_physical_model
from jaxdyn.sysid.recordings import (
    Recording,
    Recordings,
    as_recordings,
    require_plausible,
    signals,
    unchecked_torques,
)
from jaxdyn.sysid.torques._acceleration_noise import without_bias
from jaxdyn.sysid.torques._cross_validation import held_out_errors
from jaxdyn.sysid.torques._effect_search import effect_shape, without_resting_joints
from jaxdyn.sysid.torques._effects import SEARCHED, JointEffects, Joints, has_redundant_drives
from jaxdyn.sysid.torques._fit_result import Evaluation, InverseDynamicsFit
from jaxdyn.sysid.torques._layout import require_one_robot
from jaxdyn.sysid.torques._lengths import with_lengths_of
from jaxdyn.sysid.torques._physical_fit import Physical
from jaxdyn.sysid.torques._recorded_motions import driven_joints
from jaxdyn.sysid.torques._residual_causes import Cause, horizontal_axes, residual_causes, what_explains_most
from jaxdyn.sysid.torques._reweighting import Loss, first_noise
from jaxdyn.sysid.torques._torque_fit import Step, fit_inverse_dynamics, ordinary_least_squares
from jaxdyn.sysid.torques._torque_model import EffectShape, Samples
from jaxdyn.sysid.torques._verdict import verdict

# The prior is a statement about the start, that its inertias are right within a factor of about 1.6: to second order,
# `4 (e^x - x - 1)` is the cost of a normal `x` with the standard deviation 1/2. Predictions may show that it claims too
# much, but not that more is known.
_PRIOR_WEIGHT = 1.0
_WEIGHTS = (0.01, 0.1, 1.0)
_FOLDS = 5
_CONFIDENCE = 0.95
# The part of the held-out mean square below which an improvement is not worth an effect: one percent of the error.
_WORTHWHILE = 0.02
_TILT_ROUNDS = 4
_USUAL = JointEffects()
_BESIDE = ", beside the others"
# The causes of residuals (`residual_causes`) that the choices of effects have tried, by the names of these.
_CAUSES = {"load": "load friction", "stribeck and friction velocity": "Stribeck friction", "spring": "springs"}


class Choice(NamedTuple):
    """A comparison by cross-validation, and its outcome."""

    name: str
    """An effect of the joints, or a prior weight."""
    improvement: float
    """The decrease of the held-out mean square against the choice so far, as a part of that."""
    standard_error: float
    """Its standard error, from the parts that were held out."""
    taken: bool
    """Whether the improvement is worthwhile, at least 2 %, and significant, by Student's one-sided test at a level of
    5 %. An effect that was taken stays if it is worthwhile beside those that came later."""


class Plan(NamedTuple):
    """How recordings are prepared and fitted: what was chosen, and why."""

    start: Model
    """The model that the fit starts from, with physical inertias, and with the lengths that a first fit has found if
    lengths are not known."""
    recordings: tuple[Recording, ...]
    """The prepared recordings."""
    cutoff: float
    """Hz, below which torques are compared."""
    joint_effects: JointEffects
    prior_weight: float
    choices: tuple[Choice, ...]
    """The comparisons by cross-validation, in order."""
    warnings: tuple[str, ...]
    """Sentences about the choices: torques that could not be compared with the model's (`unchecked_torques`), a prior
    weight at the edge of the candidates, a cutoff that was lowered."""
    shape: EffectShape
    """The velocities and delays that were searched for, with which a fit from `start` begins."""


@dataclasses.dataclass(frozen=True)
class Identification:
    """An identified robot, how it was found, and what its data say about it. `print` shows the verdict."""

    fit: InverseDynamicsFit
    """The physical fit, with its model, intervals and predictions."""
    linear: InverseDynamicsFit | None
    """Linear least squares with the same effects and the lengths of the fit, physical or not; None where a drive gain
    is unknown."""
    plan: Plan
    """The prepared recordings, and the choices."""
    causes: tuple[Cause, ...]
    """Possible causes of the residuals (`residual_causes`), the most convincing one first."""

    @property
    def model(self) -> Model:
        """The identified robot; with `tilt=True` its gravity has the direction that was found."""
        return self.fit.model

    def prepare(self, recording: Recording) -> Recording:
        """Prepare another recording as those of the fit were."""
        return recording.prepared(self.plan.cutoff, model=self.model)

    def evaluate(self, recordings: Recordings, *, raw: bool = False) -> Evaluation:
        """The errors of predicted torques on recordings as they were measured, preferably held-out ones: of what is
        below the cutoff, or with `raw` of the torques as they were measured, for a motion that is low-passed there."""
        if not raw:
            return self.fit.evaluate([self.prepare(x) for x in as_recordings(recordings)])
        out = []
        for measured in as_recordings(recordings):
            smooth = measured.prepared(self.plan.cutoff, motion_cutoff=self.plan.cutoff, model=self.model)
            tau = signals.interpolate(measured.t, measured.require("tau")[0], smooth.t, "linear")
            out.append(dataclasses.replace(smooth, cutoff=None, tau=tau))
        return self.fit.evaluate(out)

    def verdict(self) -> list[str]:
        """Sentences: how the fit ended, which constraints bind and what they cost, what data, prior or nothing
        determine, and what the residuals point to."""
        tried = ((_CAUSES.get(x.name.removesuffix(_BESIDE)), x) for x in self.plan.choices if not x.taken)
        refused = {name: (x.improvement, x.standard_error) for name, x in tried if name}
        return [*verdict(self.fit, self.linear, self.plan.recordings, self.causes, refused), *self.plan.warnings]

    def __str__(self) -> str:
        return "\n".join(f"- {x}" for x in self.verdict())

    def printed(self) -> printing.Facts:
        """The facts that `repr` shows; `print` has the verdict."""
        return f"{self.fit.message}; cutoff {self.plan.cutoff:.3g} Hz", {}

    __repr__ = printing.one_line

    def _repr_html_(self) -> str:
        return printing.lines_as_table("Identification", self.verdict())


@naming_arguments
def identify(
    model: Model,
    recordings: Recordings,
    *,
    joint_effects: JointEffects | None = None,
    prior_weight: float | None = None,
    friction_velocity: ArrayLike | None = None,
    cutoff: float | None = None,
    tilt: bool = False,
    lengths: Joints = False,
    loss: Loss = "squared",
    report: Callable[[Step], None] | None = None,
    force: bool = False,
    progress: ProgressReport = True,
) -> Identification:
    """Identify a robot from recordings as they were measured, and say what the result is worth.

    The recordings are checked (`require_plausible`). Then `plan_identification` prepares them and chooses the cutoff,
    the effects of the joints and the weight of the prior. The physical fit follows (`fit_inverse_dynamics`), linear
    least squares for comparison, and a search for what the residuals come from (`residual_causes`).

    **Arguments**

    - `model`: the start. For inertias that are not physical the nearest physical ones are taken, and named.
    - `recordings`: one or several, as they were measured, with torques.
    - `joint_effects`, `prior_weight`, `cutoff` (Hz): a choice of yours instead.
    - `tilt`: also find the direction of gravity, for a robot whose mount may be tilted.
    - `lengths`: also find where joints stand in the bodies before them, of all joints (True) or those named: the effect
      `length` of `JointEffects`.
    - `friction_velocity`, `loss`, `report`: as in `fit_inverse_dynamics`.
    - `force`: go on with recordings that look wrong.
    - `progress`: whether a line on stderr says every few seconds what is done now (none for a call that takes less), or
      a function that gets each of these texts.

    For a robot with closed loops the recordings are those of its driven joints (`Recording.joints`); then torques are
    not compared with the model's before, and effects that are searched for are tried only where there are no more
    drives than degrees of freedom.

    **Returns** an `Identification`; print it. **Raises** `DataError` for recordings that look wrong (torques negated,
    in other units or of other joints, degrees, milliseconds), and `DataError`, `ModelError` as `fit_inverse_dynamics`.
    """
    say = Progress(progress, "identify")
    require_one_robot(model)
    driven_joints(model, as_recordings(recordings))
    say("checking the recordings")
    require_plausible(recordings, model, force=force)
    plan = plan_identification(
        model,
        recordings,
        joint_effects=joint_effects,
        prior_weight=prior_weight,
        friction_velocity=friction_velocity,
        cutoff=cutoff,
        lengths=lengths,
        progress=say,
    )
    model = plan.start
    options = {"joint_effects": plan.joint_effects, "friction_velocity": friction_velocity, "loss": loss}
    rounds = _TILT_ROUNDS if tilt else 0
    for round_ in range(rounds + 1):
        # The search was made for the start, not for another direction of gravity.
        options["shape"] = plan.shape if model is plan.start else None
        options["report"] = _saying(say, "physical fit", report)
        fit = fit_inverse_dynamics(model, plan.recordings, prior_weight=plan.prior_weight, **options)
        say("searching for causes of the residuals")
        causes = residual_causes(fit, plan.recordings)
        found = [x.parameters for x in causes if x.name == "tilt"]
        if round_ < rounds and found:
            gravity = model.gravity + jnp.asarray(found[0] @ horizontal_axes(model), model.dtype)
            size = jnp.linalg.norm(model.gravity) / jnp.linalg.norm(gravity)
            model = dataclasses.replace(model, gravity=size * gravity)
    say("least squares, for comparison")
    known = not plan.joint_effects.dofs("gain", model).any()
    del options["report"]
    if known:
        options["joint_effects"] = dataclasses.replace(plan.joint_effects, length=False)
        if plan.joint_effects.length:
            model, options["shape"] = with_lengths_of(model, fit.model), None
    linear = ordinary_least_squares(model, plan.recordings, **options) if known else None
    return Identification(fit, linear, plan, causes)


@naming_arguments
def plan_identification(
    model: Model,
    recordings: Recordings,
    *,
    joint_effects: JointEffects | None = None,
    prior_weight: float | None = None,
    friction_velocity: ArrayLike | None = None,
    cutoff: float | None = None,
    lengths: Joints = False,
    progress: ProgressReport = True,
) -> Plan:
    """Prepare recordings as they were measured, and choose how to fit them.

    1. `Recording.prepared` low-passes torques and torque model alike. The cutoff is 10 Hz or a tenth of the rate,
       whichever is less. It is lowered where noise in the accelerations would bias a base parameter by more than half
       of its standard error (errors in variables).
    2. The effects of the joints are armature, viscous and Coulomb friction and offsets. Of load friction, Stribeck
       friction with a searched width of the sign, delayed friction, and springs, the best one is added, as long as it
       lowers the mean square on held-out parts by at least 2 %, and significantly: by Student's test at a level of 5 %.
       Of these, one that lowers it by less beside those that came later is taken away again, and so is Stribeck
       friction if another width of the sign does without it, where both are searched for finely. The parts are
       consecutive in time, five, or one for each recording. (An improvement by one standard error, a common rule, comes
       too often by chance: there are several candidates, and an effect that is not there makes statements false.) None
       is tried where another cause explains most of what a fit without them leaves (`residual_causes`).
    3. The weight of the prior is 1, which says that a link's inertia, its shape kept, is known within a factor of about
       1.6, unless 0.1 predicts significantly better. A larger weight may predict better as well, but would claim
       to know the start.

    What is given is not chosen. With `lengths`, a first fit finds them, and the choices are made with them. The
    arguments are those of `identify`.
    """
    say = progress if isinstance(progress, Progress) else Progress(progress, "plan_identification")
    measured, choices = as_recordings(recordings), []
    say("preparing the recordings")
    notes = unchecked_torques(measured, model)
    model, changed = nearest_physical_model(model)
    if changed:
        names = ", ".join(changed)
        notes.append(
            f"The start's inertias of {names} are not physical, so the fit starts from the nearest physical ones."
        )
    chosen = min(10.0, *(0.1 * _rate(x) for x in measured)) if cutoff is None else cutoff
    prepared = [x.prepared(chosen, model=model) for x in measured]
    if cutoff is None:
        chosen, prepared, lowered = without_bias(model, measured, prepared, chosen, friction_velocity)
        notes += lowered
    if lengths:
        first = dataclasses.replace(joint_effects or JointEffects(), length=lengths)
        options = {"friction_velocity": friction_velocity, "prior_weight": _PRIOR_WEIGHT}
        options["report"] = _saying(say, "first fit of lengths")
        model = with_lengths_of(model, fit_inverse_dynamics(model, prepared, joint_effects=first, **options).model)
    trials = _Trials(model, prepared, friction_velocity, say)
    if joint_effects is None:
        explained = what_explains_most(model, prepared, friction_velocity, _PRIOR_WEIGHT)
        joint_effects, choices = (JointEffects(), []) if explained else _choose_effects(trials)
        notes += [explained] if explained else []
        joint_effects, still = without_resting_joints(joint_effects, model, measured)
        if still:
            notes.append(
                f"The armature and friction of {', '.join(still)} were not fitted, since these joints hardly move. "
                "Friction that holds them at rest counts as their gravity or offset."
            )
    if prior_weight is None:
        prior_weight, more, warned = _choose_weight(trials, joint_effects)
        choices, notes = choices + more, notes + warned
    shape = trials.shape(joint_effects)
    if lengths:
        joint_effects = dataclasses.replace(joint_effects, length=lengths)
    return Plan(model, tuple(prepared), chosen, joint_effects, prior_weight, tuple(choices), tuple(notes), shape)


def _saying(say: Progress, what: str, report: Callable[[Step], None] | None = None) -> Callable[[Step], None]:
    """A report of a fit that says where it is, and calls another report."""

    def both(step: Step) -> None:
        say(f"{what}, round {step.round}, step {step.step}")
        if report is not None:
            report(step)

    return both


def _rate(recording: Recording) -> float:
    return recording.rate or 1 / float(np.median(np.diff(recording.t)))


class _Trials:
    """Prepared recordings with several choices of effects, of which each is searched for and fitted once."""

    def __init__(self, model: Model, prepared: list[Recording], friction_velocity, say: Progress):
        self.model, self.prepared, self.friction_velocity, self.say = model, prepared, friction_velocity, say
        self._shapes: dict[tuple[JointEffects, bool], EffectShape] = {}
        self._errors: dict[tuple[JointEffects, bool], np.ndarray] = {}
        # All other samples share the columns of the bodies with these.
        self.plain = Samples(model, prepared, JointEffects(), EffectShape.default(np.ones(model.nv)))
        self._first_noise: np.ndarray | None = None
        # What the latest searches have found, and the latest fit: good starts for the next ones.
        self._found = np.full((len(SEARCHED), model.nv), np.nan)
        self.near: Physical | None = None

    def shape(self, effects: JointEffects, *, finely: bool = False) -> EffectShape:
        """The velocities and delays that a search finds, or `finely`, a fine one."""
        if (effects, finely) not in self._shapes:
            options = {"finely": finely, "like": self.plain, "found": self._found, "near": self.near}
            found = effect_shape(self.model, self.prepared, effects, self.friction_velocity, **options)
            self._shapes[effects, finely] = found
            searched = np.stack([effects.dofs(name, self.model) for name in SEARCHED])
            self._found = np.where(searched, found, self._found)
        return self._shapes[effects, finely]

    def samples(self, effects: JointEffects, *, finely: bool = False) -> Samples:
        """The samples with the effects, linear about the start."""
        shape = self.shape(effects, finely=finely)
        samples = Samples(self.model, self.prepared, effects, shape, like=self.plain)
        if samples.layout.by_load:
            samples.linearize(self.model)
        return samples

    def errors(self, effects: JointEffects, *, finely: bool = False) -> np.ndarray:
        """The errors `[folds]` on held-out parts, by the noise that a fit without further effects leaves."""
        if self._first_noise is None:
            self._first_noise = first_noise(self.samples(JointEffects()))
        if (effects, finely) not in self._errors:
            more = ", ".join(x.replace("_", " ") for x, y in vars(effects).items() if y and not vars(_USUAL)[x])
            self.say(f"choosing effects by cross-validation: {more or 'the usual ones'}")
            samples, weights = self.samples(effects, finely=finely), (_PRIOR_WEIGHT,)
            errors, self.near = held_out_errors(samples, self._first_noise, weights, _FOLDS, near=self.near)
            self._errors[effects, finely] = errors[:, 0]
        return self._errors[effects, finely]


def _choose_effects(trials: _Trials) -> tuple[JointEffects, list[Choice]]:
    """Add the effect that lowers the held-out error most, as long as it does so significantly; then take away what is
    not worth it beside those that came later."""
    effects, choices = JointEffects(), []
    model, samples = trials.model, trials.plain
    groups = [{"load": True}]
    if samples.joints is None or not has_redundant_drives(model, samples.q[:1], samples.joints):
        groups += [{"stribeck": True, "friction_velocity": True}, {"friction_delay": True}]
    if (JointEffects(spring=True).spring_coordinates(model) >= 0).any():
        groups.append({"spring": True})

    def named(group: dict[str, bool]) -> str:
        return " and ".join(x.replace("_", " ") for x in group)

    chosen, refused = [], []
    while groups:
        candidates = [dataclasses.replace(effects, **group) for group in groups]
        errors = trials.errors(effects)
        refused = [_compare(named(x), errors, trials.errors(y)) for x, y in zip(groups, candidates, strict=True)]
        taken = [i for i, x in enumerate(refused) if x.taken]
        if not taken:
            break
        best = max(taken, key=lambda i: refused[i].improvement)
        choices.append(refused.pop(best))
        effects = candidates[best]
        chosen.append(groups.pop(best))
    for group in chosen[:-1]:
        trial = dataclasses.replace(effects, **dict.fromkeys(group, False))
        again = _compare(named(group) + _BESIDE, trials.errors(trial), trials.errors(effects))
        again = again._replace(taken=again.improvement > _WORTHWHILE)
        choices.append(again)
        if not again.taken:
            effects = trial
    if effects.stribeck:
        # Another width of the sign may do as well: a coarse search takes one for the other.
        trial = dataclasses.replace(effects, stribeck=False)
        errors = [trials.errors(x, finely=True) for x in (trial, effects)]
        beside = _compare("stribeck" + _BESIDE, *errors)
        beside = beside._replace(taken=beside.improvement > _WORTHWHILE)
        choices.append(beside)
        effects = effects if beside.taken else trial
    return effects, choices + refused


def _choose_weight(trials: _Trials, effects: JointEffects) -> tuple[float, list[Choice], list[str]]:
    """The weight 1, or the best smaller one if that is significantly better."""
    samples = trials.samples(effects)
    noise, near, columns = first_noise(samples), trials.near, []
    # From the default on, as long as a smaller weight predicts better: light weights take most steps.
    for weight in reversed(_WEIGHTS):
        trials.say(f"choosing the prior by cross-validation: weight {weight:g}")
        errors, near = held_out_errors(samples, noise, (weight,), _FOLDS, near=near)
        columns.insert(0, errors[:, 0])
        if len(columns) > 1 and columns[0].mean() >= columns[1].mean():
            break
    errors, tried = np.stack(columns, axis=-1), _WEIGHTS[len(_WEIGHTS) - len(columns) :]
    default, best = tried.index(_PRIOR_WEIGHT), int(np.argmin(errors.mean(axis=0)))
    # An edge of the candidates is no choice: better ones may lie beyond.
    at_edge = tried[best] == _WEIGHTS[0]
    best += at_edge
    if best == default:
        return _PRIOR_WEIGHT, [], []
    choice = _compare(f"prior weight {tried[best]:g}", errors[:, default], errors[:, best])
    if not choice.taken:
        return _PRIOR_WEIGHT, [choice], []
    edge = (
        f"The prior weight {_WEIGHTS[0]:g}, the least of the candidates {list(_WEIGHTS)}, predicts better still: the "
        "data want to be far from the start, whose inertias may be wrong by factors."
    )
    return tried[best], [choice], [edge] if at_edge else []


def _compare(name: str, old: np.ndarray, new: np.ndarray) -> Choice:
    """Whether the held-out errors `new` `[folds]` are lower than `old`: by enough, and by Student's test."""
    decrease = old - new
    error = float(decrease.std(ddof=1) / np.sqrt(len(decrease)))
    mean = float(decrease.mean())
    least = max(_WORTHWHILE * float(old.mean()), student_t.ppf(_CONFIDENCE, len(decrease) - 1) * error)
    return Choice(name, mean / float(old.mean()), error / float(old.mean()), bool(mean > least))
