"""Identification in one call: preparation, choice of effects and prior, fit, and a verdict in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxdyn import _printing as printing
from jaxdyn._errors import naming_arguments
from jaxdyn._types import ArrayLike
from jaxdyn.model import Model
from jaxdyn.sysid.parameters import nearest_physical_model
from jaxdyn.sysid.recordings import Recording, Recordings, as_recordings, require_plausible, signals, unchecked_torques
from jaxdyn.sysid.torques._choices import (
    BESIDE,
    PRIOR_WEIGHT,
    Choice,
    Progress,
    ProgressReport,
    Trials,
    choose_effects,
    choose_prior_weight,
    without_bias,
)
from jaxdyn.sysid.torques._effect_search import without_resting_joints
from jaxdyn.sysid.torques._effects import CAUSES, JointEffects, Joints
from jaxdyn.sysid.torques._fit_result import Evaluation, InverseDynamicsFit
from jaxdyn.sysid.torques._fit_weights import Loss
from jaxdyn.sysid.torques._layout import require_one_robot, with_lengths_of
from jaxdyn.sysid.torques._recorded_motions import driven_joints
from jaxdyn.sysid.torques._residual_causes import Cause, horizontal_axes, residual_causes
from jaxdyn.sysid.torques._torque_fit import Step, fit_inverse_dynamics, ordinary_least_squares
from jaxdyn.sysid.torques._torque_model import EffectShape, Samples
from jaxdyn.sysid.torques._verdict import verdict

_TILT_ROUNDS = 4
# The causes of residuals (`residual_causes`) that the choices of effects have tried, by the names of these.
_CAUSES = {" and ".join(names).replace("_", " "): cause for cause, names in CAUSES.items()}


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

    def prepare(self, recording: Recording, *, raw: bool = False) -> Recording:
        """Prepare another recording as those of the fit were; `raw`: with the torques as they were measured, for a
        motion that is low-passed below the cutoff."""
        if not raw:
            return recording.prepared(self.cutoff, model=self.start)
        smooth = recording.prepared(self.cutoff, motion_cutoff=self.cutoff, model=self.start)
        tau = signals.interpolate(recording.t, recording.require("tau")[0], smooth.t, "linear")
        return dataclasses.replace(smooth, cutoff=None, tau=tau)

    def identify(
        self,
        *,
        friction_velocity: ArrayLike | None = None,
        tilt: bool = False,
        loss: Loss = "squared",
        report: Callable[[Step], None] | None = None,
        progress: ProgressReport = True,
        **options: Any,
    ) -> Identification:
        """Fit the recordings as planned, and search for what the residuals come from. The arguments are those of
        `identify`, which makes the plan first; `options`: `rounds` and `max_iterations` of `fit_inverse_dynamics`."""
        say = progress if isinstance(progress, Progress) else Progress(progress, "identify")
        model, common = self.start, dict[str, Any](friction_velocity=friction_velocity, loss=loss)
        for turns_left in reversed(range((_TILT_ROUNDS if tilt else 0) + 1)):
            # Samples of a model with another gravity have other columns, for which no search was made.
            samples, common["shape"] = Samples(model, self.recordings), self.shape if model is self.start else None
            fit = fit_inverse_dynamics(
                model,
                samples,
                joint_effects=self.joint_effects,
                prior_weight=self.prior_weight,
                report=_saying(say, "physical fit", report),
                **common,
                **options,
            )
            say("searching for causes of the residuals")
            causes = residual_causes(fit, samples)
            found = [x.parameters for x in causes if x.name == "tilt"]
            if turns_left and found:
                gravity = model.gravity + jnp.asarray(found[0] @ horizontal_axes(model), model.dtype)
                size = jnp.linalg.norm(model.gravity) / jnp.linalg.norm(gravity)
                model = dataclasses.replace(model, gravity=size * gravity)
        if self.joint_effects.dofs("gain", model).any():
            return Identification(fit, None, self, causes)
        say("least squares, for comparison")
        effects = dataclasses.replace(self.joint_effects, length=False)
        if self.joint_effects.length:
            model, samples, common["shape"] = with_lengths_of(model, fit.model), self.recordings, None
        linear = ordinary_least_squares(model, samples, joint_effects=effects, **common)
        return Identification(fit, linear, self, causes)


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
        return self.plan.prepare(recording)

    def evaluate(self, recordings: Recordings, *, raw: bool = False) -> Evaluation:
        """The errors of predicted torques on recordings as they were measured, preferably held-out ones: of what is
        below the cutoff, or with `raw` of the torques as they were measured, for a motion that is low-passed there."""
        return self.fit.evaluate([self.plan.prepare(x, raw=raw) for x in as_recordings(recordings)])

    def verdict(self) -> list[str]:
        """Sentences: how the fit ended, which constraints bind and what they cost, what data, prior or nothing
        determine, and what the residuals point to."""
        tried = ((_CAUSES.get(x.name.removesuffix(BESIDE)), x) for x in self.plan.choices if not x.taken)
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
    return plan.identify(friction_velocity=friction_velocity, tilt=tilt, loss=loss, report=report, progress=say)


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
    2. The effects of the joints are armature, viscous and Coulomb friction and offsets. Of the others, but for drive
       gains and torque delays, those three are tried that the residuals show most (a score test: `residual_causes`).
       The best one is added, as long as it lowers the mean square on held-out parts by at least 2 %, and significantly:
       by Student's test at a level of 5 % for all effects together. One that lowers it by less beside those that came
       later is taken away again, and so is Stribeck friction unless it is significantly better than another width of
       the sign alone, where both are searched for finely. There are five parts, each of motions that the others do not
       have (other positions, directions and speeds), or one for each recording. (An improvement by one standard error,
       a common rule, comes too often by chance: there are several candidates, and an effect that is not there makes
       statements false.) None is tried where another cause explains most of what a fit without them leaves
       (`residual_causes`), and none is taken that explains less than another cause would.
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
    rates = (x.rate or 1 / float(np.median(np.diff(x.t))) for x in measured)
    chosen = min(10.0, *(0.1 * rate for rate in rates)) if cutoff is None else cutoff
    prepared = [x.prepared(chosen, model=model) for x in measured]
    if cutoff is None:
        chosen, prepared, lowered = without_bias(model, measured, prepared, chosen, friction_velocity)
        notes += lowered
    if lengths:
        first = dataclasses.replace(joint_effects or JointEffects(), length=lengths)
        options = {"friction_velocity": friction_velocity, "prior_weight": PRIOR_WEIGHT}
        options["report"] = _saying(say, "first fit of lengths")
        model = with_lengths_of(model, fit_inverse_dynamics(model, prepared, joint_effects=first, **options).model)
    trials = Trials(model, prepared, friction_velocity, say)
    if joint_effects is None:
        joint_effects, choices, found = choose_effects(trials)
        notes += found
        joint_effects, still = without_resting_joints(joint_effects, model, measured)
        if still:
            notes.append(
                f"The armature and friction of {', '.join(still)} were not fitted, since these joints hardly move. "
                "Friction that holds them at rest counts as their gravity or offset."
            )
    if prior_weight is None:
        prior_weight, more, warned = choose_prior_weight(trials, joint_effects)
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
