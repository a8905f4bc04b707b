"""The choice of effects of the joints and of the prior's weight, by predictions of motions that were held out."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from scipy.stats import t as student_t

from jaxdyn._printing import percent
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import Recording, signals
from jaxdyn.sysid.torques._effect_columns import searched_numbers
from jaxdyn.sysid.torques._effect_search import effect_shape
from jaxdyn.sysid.torques._effect_values import EffectShape
from jaxdyn.sysid.torques._effects import CAUSES, SEARCHED, JointEffects, has_redundant_drives
from jaxdyn.sysid.torques._fit_weights import first_noise, held_out_errors
from jaxdyn.sysid.torques._physical_fit import Physical
from jaxdyn.sysid.torques._residual_causes import Cause, best_rival, residual_causes, what_explains_most
from jaxdyn.sysid.torques._torque_fit import fit_inverse_dynamics, ordinary_least_squares
from jaxdyn.sysid.torques._torque_model import Samples

type ProgressReport = bool | Callable[[str], None]
"""True for lines on stderr, a function that gets each text, or False for silence."""

# A wait of so many s, from the call or from the last line, is long enough for a line.
_WAIT = 3.0


class Progress:
    """Called with what is done now, as often as there is something to say. A function of the caller gets each text; on
    stderr, there is a line every few seconds, and none for a job that takes less."""

    def __init__(self, report: ProgressReport, job: str):
        self._report, self._job, self._began = report, job, time.monotonic()
        self._last = self._began

    def __call__(self, doing: str) -> None:
        """Say what is done now."""
        if callable(self._report):
            self._report(doing)
        elif self._report and (now := time.monotonic()) - self._last >= _WAIT:
            self._last = now
            print(f"{self._job}, {now - self._began:.0f} s: {doing} ...", file=sys.stderr, flush=True)


# The prior is a statement about the start, that its inertias are right within a factor of about 1.6: to second order,
# `4 (e^x - x - 1)` is the cost of a normal `x` with the standard deviation 1/2. Predictions may show that it claims too
# much, but not that more is known.
PRIOR_WEIGHT = 1.0
_WEIGHTS = (0.01, 0.1, 1.0)
_FOLDS = 5
_CONFIDENCE = 0.95
# The part of the held-out mean square below which an improvement is not worth an effect: one percent of the error.
_WORTHWHILE = 0.02
# The number of effects that are tried together, and the probability by chance above which none is.
_TRIED, _BY_CHANCE = 3, 0.01
_USUAL = JointEffects()
BESIDE = ", beside the others"
"""Ends the name of an effect that was compared again beside those that came later."""


class Choice(NamedTuple):
    """A comparison by cross-validation, and its outcome."""

    name: str
    """An effect of the joints, or a prior weight."""
    improvement: float
    """The decrease of the held-out mean square against the choice so far, as a part of that: the geometric mean over
    the parts that were held out."""
    standard_error: float
    """Its standard error, from these parts."""
    taken: bool
    """Whether the improvement is worthwhile, at least 2 %, and significant, by Student's one-sided test at a level of
    5 % for all effects that there are together. An effect that was taken stays if it is worthwhile beside those that
    came later, and Stribeck friction if it is significantly better than another width of the sign."""


class Trials:
    """Prepared recordings with several choices of effects, of which each is searched for and fitted once."""

    def __init__(self, model: Model, prepared: list[Recording], friction_velocity, say: Progress):
        self.model, self.friction_velocity, self.say = model, friction_velocity, say
        self._shapes: dict[tuple[JointEffects, bool], EffectShape] = {}
        self._errors: dict[tuple[JointEffects, bool], np.ndarray] = {}
        # All other samples share the columns of the bodies with these.
        self.plain = Samples(model, prepared)
        self._causes: dict[JointEffects, tuple[Cause, ...]] = {}
        self._first_noise: np.ndarray | None = None
        # What the latest searches have found, and the latest fit: good starts for the next ones.
        self._found = np.full((len(SEARCHED), model.nv), np.nan)
        self.near: list[Physical] = []

    def shape(self, effects: JointEffects, *, finely: bool = False) -> EffectShape:
        """The velocities and delays that a search finds, or `finely`, a fine one."""
        if (effects, finely) not in self._shapes:
            options = {"finely": finely, "found": self._found, "near": next(iter(self.near), None)}
            found = effect_shape(self.model, self.plain, effects, self.friction_velocity, **options)
            self._shapes[effects, finely] = found
            searched = searched_numbers(effects, self.model)
            self._found = np.where(searched, found, self._found)
        return self._shapes[effects, finely]

    def samples(self, effects: JointEffects, *, finely: bool = False) -> Samples:
        """The samples with the effects, linear about the start."""
        samples = Samples(self.model, self.plain, effects, self.shape(effects, finely=finely))
        if samples.layout.by_load:
            samples.linearize(self.model)
        return samples

    def causes(self, effects: JointEffects) -> tuple[Cause, ...]:
        """The causes that the residuals of a fit with the effects may have."""
        if effects not in self._causes:
            self.say("searching for causes of the residuals that no effect describes")
            options = {"joint_effects": effects, "friction_velocity": self.friction_velocity}
            options |= {"prior_weight": PRIOR_WEIGHT, "shape": self.shape(effects)}
            fit = fit_inverse_dynamics(self.model, self.plain, **options)
            self._causes[effects] = residual_causes(fit, self.plain)
        return self._causes[effects]

    def errors(self, effects: JointEffects, *, finely: bool = False) -> np.ndarray:
        """The errors `[folds]` on held-out parts, by the noise that a fit without further effects leaves."""
        if self._first_noise is None:
            self._first_noise = first_noise(self.samples(JointEffects()))
        if (effects, finely) not in self._errors:
            more = ", ".join(x.replace("_", " ") for x in effects.chosen if x not in _USUAL.chosen)
            self.say(f"choosing effects by cross-validation: {more or 'the usual ones'}")
            samples, weights = self.samples(effects, finely=finely), (PRIOR_WEIGHT,)
            errors, self.near = held_out_errors(samples, self._first_noise, weights, _FOLDS, near=self.near)
            self._errors[effects, finely] = errors[:, 0]
        return self._errors[effects, finely]


def choose_effects(trials: Trials) -> tuple[JointEffects, list[Choice], list[str]]:
    """Add the effect that lowers the held-out error most, as long as it does so significantly, and more than a cause
    that is no such effect would; then take away what is not worth it beside those that came later. Only effects are
    tried whose causes the residuals show. Also returns sentences about causes for which effects were not taken."""
    effects, notes = JointEffects(), []
    if explained := what_explains_most(trials.causes(effects)):
        return effects, [], [explained]
    choices: list[Choice] = []
    refused: dict[str, Choice] = {}
    chosen: list[dict[str, bool]] = []
    while groups := _promising(trials, effects, chosen):
        candidates = [dataclasses.replace(effects, **group) for group in groups]
        errors = trials.errors(effects)
        compared = [
            _compare(_named(x), errors, trials.errors(y), len(CAUSES)) for x, y in zip(groups, candidates, strict=True)
        ]
        refused |= {x.name: x for x in compared}
        taken = [i for i, x in enumerate(compared) if x.taken]
        if not taken:
            break
        best = max(taken, key=lambda i: compared[i].improvement)
        rival = best_rival(trials.causes(effects))
        if rival is not None and rival.part > compared[best].improvement:
            notes.append(
                f"Further effects were not taken, since {rival.name} would explain {percent(rival.part)} of what is "
                f"left, more than any of them (the best, {compared[best].name}, explains "
                f"{percent(compared[best].improvement)} of held-out parts): they may only make up for it."
            )
            break
        choices.append(refused.pop(compared[best].name))
        effects = candidates[best]
        chosen.append(groups[best])
    effects, again = _without_needless(trials, effects, chosen)
    return effects, choices + again + [x._replace(taken=False) for x in refused.values()], notes


def _promising(trials: Trials, effects: JointEffects, chosen: list[dict[str, bool]]) -> list[dict[str, bool]]:
    """Return the effects to try: those that the residuals show most, by a score test after all parameters of the fit.

    Without constraints and prior an effect cannot help by giving way to these, as it may on held-out parts. And to
    first order an effect explains no more of held-out parts than of those of the fit, so that one that explains little
    of these need not be fitted."""
    model, samples = trials.model, trials.plain
    found = []
    for cause in trials.causes(effects):
        group = dict.fromkeys(CAUSES.get(cause.name, ()), True)
        if group and group not in chosen and cause.part > _WORTHWHILE and cause.chance < _BY_CHANCE:
            found.append((cause.part, group))
    impossible = set() if samples.transmission is None else {"spring"}
    redundant = samples.joints is not None and has_redundant_drives(model, samples.q[:1], samples.joints)
    if redundant or samples.forces is not None:
        impossible |= set(SEARCHED)
    found = [x for x in found if not impossible.intersection(x[1])]
    found.sort(key=lambda x: -x[0])
    return [group for _, group in found[:_TRIED]]


def _named(group: dict[str, bool]) -> str:
    return " and ".join(x.replace("_", " ") for x in group)


def _without_needless(
    trials: Trials, effects: JointEffects, chosen: list[dict[str, bool]]
) -> tuple[JointEffects, list[Choice]]:
    """Return the effects without those of the groups, in the order of their choice, that are not worth it beside those
    that came later, and the comparisons."""
    choices = []
    for group in chosen[:-1]:
        trial = dataclasses.replace(effects, **dict.fromkeys(group, False))
        again = _compare(_named(group) + BESIDE, trials.errors(trial), trials.errors(effects))
        again = again._replace(taken=again.improvement > _WORTHWHILE)
        choices.append(again)
        if not again.taken:
            effects = trial
    if effects.stribeck:
        # Another width of the sign may do as well: a coarse search takes one for the other.
        trial = dataclasses.replace(effects, stribeck=False)
        old, new = (trials.errors(x, finely=True) for x in (trial, effects))
        beside = _compare("stribeck" + BESIDE, old, new)
        choices.append(beside)
        effects = effects if beside.taken else trial
    return effects, choices


def choose_prior_weight(trials: Trials, effects: JointEffects) -> tuple[float, list[Choice], list[str]]:
    """The weight 1, or the best smaller one if that is significantly better."""
    samples = trials.samples(effects)
    noise, near, columns = first_noise(samples), trials.near, []
    # From the default on, as long as a smaller weight predicts better: light weights take most steps.
    for weight in reversed(_WEIGHTS):
        trials.say(f"choosing the prior by cross-validation: weight {weight:g}")
        errors, near = held_out_errors(samples, noise, (weight,), _FOLDS, near=near)
        columns.insert(0, errors[:, 0])
        if len(columns) > 1 and _logarithms(columns[0]).mean() >= _logarithms(columns[1]).mean():
            break
    errors, tried = np.stack(columns, axis=-1), _WEIGHTS[len(_WEIGHTS) - len(columns) :]
    default, best = tried.index(PRIOR_WEIGHT), int(np.argmin(_logarithms(errors).mean(axis=0)))
    # An edge of the candidates is no choice: better ones may lie beyond.
    at_edge = tried[best] == _WEIGHTS[0]
    best += at_edge
    if best == default:
        return PRIOR_WEIGHT, [], []
    choice = _compare(f"prior weight {tried[best]:g}", errors[:, default], errors[:, best])
    if not choice.taken:
        return PRIOR_WEIGHT, [choice], []
    edge = (
        f"The prior weight {_WEIGHTS[0]:g}, the least of the candidates {list(_WEIGHTS)}, predicts better still: the "
        "data want to be far from the start, whose inertias may be wrong by factors."
    )
    return tried[best], [choice], [edge] if at_edge else []


def _compare(name: str, old: np.ndarray, new: np.ndarray, candidates: int = 1) -> Choice:
    """Whether the held-out errors `new` `[folds]` are lower than `old`: by enough, and by Student's test, whose level
    is shared by so many candidates (Bonferroni's correction)."""
    # Parts of other motions have errors of other sizes, and an effect decreases each by a part of it.
    decrease = _logarithms(old) - _logarithms(new)
    error = float(decrease.std(ddof=1) / np.sqrt(len(decrease)))
    mean, left = float(decrease.mean()), float(np.exp(-decrease.mean()))
    significant = mean > student_t.ppf(1 - (1 - _CONFIDENCE) / candidates, len(decrease) - 1) * error
    return Choice(name, 1 - left, left * error, bool(1 - left > _WORTHWHILE and significant))


def _logarithms(errors: np.ndarray) -> np.ndarray:
    """The logarithms of held-out errors, which may be zero for exact torques."""
    return np.log(np.maximum(errors, np.finfo(float).tiny))


# The part of its standard error by which noise in accelerations may bias a base parameter, the number of times that the
# cutoff is lowered to reach it, and the least part of the first cutoff that it may get to.
_BIAS, _LOWERINGS, _LOWEST = 0.5, 3, 0.25


def without_bias(
    model: Model, measured: tuple[Recording, ...], prepared: list[Recording], cutoff: float, friction_velocity
) -> tuple[float, list[Recording], list[str]]:
    """Lower the cutoff until noise in accelerations biases no base parameter by more than half of a standard error."""
    if model.nq != model.nv and measured[0].joints is None:
        return cutoff, prepared, ["Noise in accelerations was not looked at: some positions are quaternions."]
    # Jumps of wrapped angles are no noise.
    measured = tuple(
        dataclasses.replace(x, q=signals.continuous_coordinates(x.t, x.q, model, x.joints, x.name)) for x in measured
    )
    first, lowered = cutoff, 0
    ratio = _bias(model, measured, prepared, cutoff, friction_velocity)
    while ratio > _BIAS and lowered < _LOWERINGS and cutoff > _LOWEST * first:
        # The noise's variance below the cutoff grows with its fifth power if positions are differentiated twice.
        power = 5 if measured[0].v is None else 3
        cutoff, lowered = max(0.8 * cutoff * (_BIAS / ratio) ** (1 / power), _LOWEST * first), lowered + 1
        prepared = [x.prepared(cutoff, model=model) for x in measured]
        ratio = _bias(model, measured, prepared, cutoff, friction_velocity)
    if not lowered:
        return cutoff, prepared, []
    note = (
        f"Torques were compared below {cutoff:.3g} Hz instead of {first:g} Hz, since noise in the accelerations biases "
        f"inertias; the largest bias is about {ratio:.2g} standard errors now."
    )
    return cutoff, prepared, [note]


def _bias(
    model: Model, measured: tuple[Recording, ...], prepared: list[Recording], cutoff: float, friction_velocity
) -> float:
    """The largest bias of a base parameter, in standard errors, that noise in the accelerations causes in least
    squares: `H^-1 N^T N p` for the regressor `N` of accelerations that are only noise."""
    fit = ordinary_least_squares(model, prepared, friction_velocity=friction_velocity)
    rng, noise = np.random.default_rng(0), []
    for raw, x in zip(measured, prepared, strict=True):
        drawn = {
            name: rng.normal(size=y.shape) * signals.noise_level(raw.t, y)
            for name, y in (("q", raw.q), ("v", raw.v))
            if y is not None
        }
        (a,) = dataclasses.replace(raw, **drawn, a=None).prepared(cutoff).require("a")
        noise.append(dataclasses.replace(x, v=np.zeros_like(a), a=a))
    weightless = dataclasses.replace(model, gravity=jnp.zeros_like(model.gravity))
    samples = Samples(weightless, noise, fit.effects, EffectShape.default(fit.shape.friction_velocity))
    P = len(fit.parameters)
    N = np.concatenate([B[..., :P] for _, B in samples.chunks()]) / np.maximum(fit.sigma, 1e-300)[:, None]
    # Offsets have a column without any motion.
    N[..., P - len(fit.layout.dofs("offset")) :] = 0.0
    N = N.reshape(-1, P)
    base, root = fit.base_parameters(), fit.posterior.covariance_root()
    bias = (root @ (root.T @ (N.T @ (N @ fit.parameters))))[base.independent]
    return float(np.max(np.abs(bias) / fit.intervals(base).standard_error))
