"""Identification from recorded torques: ordinary least squares, and a physically consistent fit by gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np

from jaxdyn._errors import DataError, naming_arguments, require_positive, require_positive_integer
from jaxdyn._status import Status
from jaxdyn._types import ArrayLike
from jaxdyn._waits import saying
from jaxdyn.model import Model
from jaxdyn.sysid.parameters import leaves
from jaxdyn.sysid.recordings import Recordings
from jaxdyn.sysid.torques._base_parameters import base_parameters_of
from jaxdyn.sysid.torques._effect_search import effect_shape, searched_range
from jaxdyn.sysid.torques._effect_values import EffectShape
from jaxdyn.sysid.torques._effects import SEARCHED, JointEffects
from jaxdyn.sysid.torques._fit_result import InverseDynamicsFit
from jaxdyn.sysid.torques._fit_weights import (
    PRIOR_WEIGHTS,
    CandidateWeights,
    CrossValidation,
    Loss,
    Reweighting,
    choose_weight,
    least_norm_solution,
)
from jaxdyn.sysid.torques._intervals import Posterior
from jaxdyn.sysid.torques._layout import DELAYS, SCALES, Layout, require_one_robot
from jaxdyn.sysid.torques._physical_fit import Physical, PhysicalMinimum, PhysicalProblem, minimize, start_at
from jaxdyn.sysid.torques._recorded_motions import TorqueData
from jaxdyn.sysid.torques._residual_noise import SlopeNoise
from jaxdyn.sysid.torques._torque_model import Samples, require_known_lengths, with_parameters

# A Gauss-Newton step of lengths is shortened down to the last part until the cost falls by the first part of what was
# promised. They end where that is less than a step by 3 % of a standard error would bring. Each is a round, so that
# there are more rounds, as with unknown forces of contacts, beside which noise is found slowly.
_ENOUGH, _SHORTEST, _STEP_LEFT = 0.1, 0.125, 0.5 * 0.03**2
_NONLINEAR_ROUNDS = 4
# Velocities and delays that have not settled after so many rounds stay where they are.
_ROUNDS_OF_SEARCH = 12
# A step may change a velocity of friction by this factor, and a delay by this many s: farther off, the linearization
# says nothing.
_FARTHEST_FACTOR, _FARTHEST_DELAY = 3.0, 0.03


class Step(NamedTuple):
    """The progress of a fit, before one of its steps."""

    round: int
    """The number of the round of re-weighting."""
    step: int
    """The number of the step in its round."""
    cost: float
    expected_decrease: float
    """The decrease of the cost that the step promises."""


@naming_arguments
def ordinary_least_squares(
    model: Model,
    recordings: Recordings | Samples,
    *,
    joint_effects: JointEffects | None = None,
    friction_velocity: ArrayLike | None = None,
    loss: Loss = "squared",
    rounds: int = 10,
    threshold: float | None = None,
    shape: EffectShape | None = None,
) -> InverseDynamicsFit:
    """Identify all parameters by linear least squares, physical or not: the baseline for other fits.

    Weighted least squares on the torque regressor with the columns of the joint effects (Atkeson, An & Hollerbach 1986;
    Swevers et al. 1997); the weight of a joint is the inverse root mean square of its residual, estimated in up to
    `rounds` rounds. The base parameters are determined (see `base_parameters`); of all parameters with these, which
    predict the same torques, the result has the least norm in columns of unit length.

    **Arguments**

    - `joint_effects`: by default armature, viscous and Coulomb friction, and offsets. Effects in which the torque is
      not linear are searched for first, on a grid, and count as known. Drive gains are impossible: only a prior can
      distinguish them from inertias.
    - `friction_velocity`: rad/s or m/s, scalar or `[nv]`; by default the model's. A search for it starts there.
    - `loss`: `"huber"` and `"cauchy"` give outliers less weight (iteratively re-weighted least squares; Holland &
      Welsch 1977), and estimate the noise of each joint by the median of its residuals.
    - `threshold`: see `base_parameters`.
    - `shape`: the velocities and delays that an earlier search has found (`Plan.shape`, `fit.shape`), instead of a
      search.

    **Raises** `DataError`, `ModelError` for a recording that does not fit the model.
    """
    require_positive_integer(rounds, "rounds", error=DataError)
    require_known_lengths(joint_effects, "ordinary_least_squares", "take the model of a fit that has found them")
    samples = _samples(model, recordings, joint_effects, friction_velocity, shape)
    if samples.layout.gains:
        raise DataError(
            "ordinary least squares cannot tell a drive gain from heavier links: use fit_inverse_dynamics, whose "
            "prior can, or scale the recorded torques"
        )
    weighting, solves = Reweighting(samples, loss), 0
    rounds *= 1 if samples.forces is None else _NONLINEAR_ROUNDS
    while solves < rounds and not weighting.settled:
        data, sigma, solves = weighting.data, weighting.sigma, solves + 1
        parameters, base = least_norm_solution(samples, data.weighted(sigma), threshold)
        weighting.update(parameters)
    return _fit_result(
        weighting,
        data,
        parameters,
        np.ones(model.nv),
        Status.CONVERGED,
        f"{base.rank} of {samples.layout.size} parameters are independent in the data (pivots above "
        f"{base.threshold:.1e} of the largest, gap {base.gap:.1e}), condition number {base.condition_number:.3g}",
        cost=0.5 * float(np.sum(data.samples * (data.residual_rms(parameters) / sigma) ** 2)),
        iterations=solves,
        rounds=solves,
    )


@naming_arguments
@saying("fitting torques")
def fit_inverse_dynamics(
    model: Model,
    recordings: Recordings | Samples,
    *,
    joint_effects: JointEffects | None = None,
    friction_velocity: ArrayLike | None = None,
    prior_weight: float | Literal["cross-validated"] | CandidateWeights = 0.1,
    effects_weight: float = 0.1,
    loss: Loss = "squared",
    rounds: int = 10,
    max_iterations: int = 200,
    report: Callable[[Step], None] | None = None,
    shape: EffectShape | None = None,
) -> InverseDynamicsFit:
    """Identify a model whose every body is physical, by gradients, starting from the parameters of `model`.

    Minimizes `1/2 sum_j |tau_j - model_j|^2 / sigma_j^2 + prior_weight D_bodies + effects_weight D_joints` by
    Levenberg-Marquardt steps with exact Jacobians; `JointEffects` has the torque model. The unknowns are
    unconstrained: ten log-Cholesky coordinates of each body's pseudo-inertia (Rucker & Wensing, RA-L 2022), logarithms
    of armatures and frictions, and offsets. `sigma_j`, the root mean square residual of each joint, is estimated again
    after each solution, up to `rounds` times. Each round is convex in the parameters unless drive gains are unknown.

    `D` is the pull toward the start: `tr(J0^-1 J) - log det(J0^-1 J) - 4` for each body, `x/x0 - log(x/x0) - 1` for
    armature, frictions and gains, half the square of an offset over a tenth of the RMS torque (Lee, Wensing & Park,
    T-RO 2020). It does not depend on frames or units, and keeps bodies physical and undetermined parameters at the
    start. Where the model's armature or friction is zero, the start is 1 % of the torque.

    **Arguments**

    - `joint_effects`, `friction_velocity`, `loss`: as in `ordinary_least_squares`, and drive gains. Load
      friction uses the transmitted torque of the round before. Velocities and delays are searched for first. Then each
      round is a Gauss-Newton step of them, shortened where the cost does not fall, and there are up to `4 rounds`. A
      velocity or delay that would leave the range of the search, or does not settle, stays where it is, and counts as
      known from then on (`refined`). The effect `length` has the same steps. The start of lengths is expected to be
      wrong by a tenth of a typical distance, over the root of `effects_weight`.
    - `prior_weight`: the weight of the inertias' prior. Samples count as independent; filtered recordings, whose
      neighboring samples are alike, need a larger weight. `"cross-validated"` takes the candidate that best predicts
      each part of the recordings from the other parts (`cross_validate`); `CandidateWeights` sets candidates and parts.
    - `max_iterations`: the largest number of steps in one round.
    - `report`: called at each step; exceptions that it raises, such as `KeyboardInterrupt`, end the fit.
    - `shape`: as in `ordinary_least_squares`.

    **Returns** an `InverseDynamicsFit`; check its `status`. **Raises** `ModelError` where the start is not physical
    (`nearest_physical` makes it so), `DataError` for a recording that does not fit the model.
    """
    _require_physical_start(model)
    require_positive_integer(rounds, "rounds", error=DataError)
    require_positive(effects_weight, "effects_weight", error=DataError)
    samples, chosen = _samples(model, recordings, joint_effects, friction_velocity, shape), ""
    if prior_weight == "cross-validated" or isinstance(prior_weight, CandidateWeights):
        candidates = prior_weight if isinstance(prior_weight, CandidateWeights) else CandidateWeights()
        weight = choose_weight(samples, effects_weight, candidates).best
        chosen = f"; prior weight {weight:g} by {candidates.folds}-fold cross-validation"
        if weight in (min(candidates.weights), max(candidates.weights)):
            chosen += f", at the edge of the candidates {list(candidates.weights)}: the best may lie beyond"
    elif isinstance(prior_weight, str) or not prior_weight > 0:
        raise DataError(f"prior_weight is {prior_weight!r}; a positive number or 'cross-validated' is needed")
    else:
        weight = float(prior_weight)
    if samples.searched.any():
        samples = samples.refining(samples.searched)
    problem, weighting = start_at(model, samples, weight, effects_weight), Reweighting(samples, loss)
    now = _Rounds(problem, weighting.data, problem.prior)
    while True:
        most = rounds * (_NONLINEAR_ROUNDS if samples.layout.nonlinear or samples.forces is not None else 1)
        now, minimum, astray = _fit_rounds(now, weighting, most, max_iterations, report)
        if not astray.any():
            break
        before, samples = samples.layout, samples.refining(samples.refined & ~astray)
        weighting = Reweighting(samples, loss, weighting)
        now = now._replace(
            problem=start_at(model, samples, weight, effects_weight), point=_held(now.point, before, samples.layout)
        )
        if now.number > 1:
            weighting.linearize(now.point.parameters())
    gain = samples.layout.drive_gains(minimum.point.scale)
    return _fit_result(
        weighting,
        now.data,
        minimum.point.parameters(),
        gain,
        minimum.status,
        f"{samples.layout.size} parameters{chosen}",
        cost=minimum.cost,
        iterations=now.iterations,
        rounds=now.number,
        posterior=now.problem.posterior(minimum.point),
        prior_weight=weight,
        effects_weight=effects_weight,
    )


@naming_arguments
@saying("cross-validating")
def cross_validate(
    model: Model,
    recordings: Recordings,
    *,
    joint_effects: JointEffects | None = None,
    friction_velocity: ArrayLike | None = None,
    effects_weight: float = 0.1,
    prior_weights: Sequence[float] = PRIOR_WEIGHTS,
    folds: int = 5,
) -> CrossValidation:
    """Measure how well fits with each prior weight predict held-out data: each of `folds` parts of the recordings from
    all other parts. A part has motions that are alike and that other parts do not have; several recordings, if there
    are as many, are a part each.

    Arguments and exceptions are those of `fit_inverse_dynamics`. The errors are `[folds, k]`, for `k` weights.
    """
    _require_physical_start(model)
    samples = _samples(model, recordings, joint_effects, friction_velocity)
    return choose_weight(samples, effects_weight, CandidateWeights(tuple(prior_weights), folds))


def _samples(
    model: Model, recordings, effects: JointEffects | None, friction_velocity, shape: EffectShape | None = None
) -> Samples:
    effects = effects or JointEffects()
    if shape is None:
        # The search and the fit share the columns of the bodies.
        recordings = Samples(model, recordings)
        shape = effect_shape(model, recordings, effects, friction_velocity)
    return Samples(model, recordings, effects, shape)


class _Rounds(NamedTuple):
    """The progress of a fit: the number of its round, and where that begins."""

    problem: PhysicalProblem
    data: TorqueData
    point: Physical
    number: int = 1
    iterations: int = 0
    """The number of steps in the rounds before."""


def _fit_rounds(
    now: _Rounds, weighting: Reweighting, rounds: int, max_iterations: int, report: Callable[[Step], None] | None
) -> tuple[_Rounds, PhysicalMinimum, np.ndarray]:
    """Alternate between the parameters for fixed weights and the weights for fixed parameters. Also returns which
    velocities and delays `[6, nv]` went astray, before the rounds have ended: these can only be held."""
    samples, layout = weighting.samples, weighting.samples.layout

    def report_step(*step) -> None:
        if report is not None:
            report(Step(now.number, *step))

    while True:
        data = weighting.data
        problem = now.problem.with_data(data, weighting.sigma, layout)
        minimum, left = minimize(problem, now.point, max_iterations, report_step), 0.0
        if layout.nonlinear and minimum.status != Status.DIVERGED:
            astray = _astray(samples, minimum.point.parameters())
            if not astray.any():
                minimum, left, falls = _shortened(problem, weighting, now.point, minimum)
                astray = samples.refined & (not falls or now.number > _ROUNDS_OF_SEARCH)
            if astray.any():
                return now, minimum, astray
        now = _Rounds(problem, data, minimum.point, now.number, now.iterations + minimum.steps)
        if minimum.status != Status.DIVERGED:
            weighting.update(minimum.point.parameters(), layout.drive_gains(minimum.point.scale))
            weighting.settled &= left < _STEP_LEFT
        if minimum.status == Status.DIVERGED or weighting.settled or now.number >= rounds:
            if layout.nonlinear:
                # What the result says of itself holds where it is.
                data = weighting.data
                now = now._replace(problem=problem.with_data(data, weighting.sigma, layout), data=data)
            return now, minimum, np.zeros_like(samples.refined)
        now = now._replace(number=now.number + 1)


def _held(point: Physical, before: Layout, layout: Layout) -> Physical:
    """Return a point with the velocities and delays of the layout `before` that are also in another one."""
    kept = [x in layout.joints for x in before.joints] + (3 * len(before.places) + point.gains) * [True]
    return point._replace(joints=point.joints[np.array(kept, bool)])


def _astray(samples: Samples, parameters: np.ndarray) -> np.ndarray:
    """`[6, nv]` of bool: whether a Gauss-Newton step takes a number of the shape out of the range of the search, or so
    far that its linearization says nothing."""
    old, values = np.array(samples.shape), samples.layout.joint_values(parameters)
    new = np.array([values[kind] for kind in (*SCALES, *DELAYS)])
    new = np.where(np.isnan(new), old, new)
    lower, upper = searched_range(samples)
    far, n = np.empty(new.shape, bool), len(SCALES)
    far[:n] = np.abs(np.log(np.maximum(new[:n], 1e-300) / np.maximum(old[:n], 1e-300))) > np.log(_FARTHEST_FACTOR)
    far[n:] = np.abs(new[n:] - old[n:]) > _FARTHEST_DELAY
    return samples.refined & (far | (new < lower) | (new > upper))


def _shortened(
    problem: PhysicalProblem, weighting: Reweighting, start: Physical, minimum: PhysicalMinimum
) -> tuple[PhysicalMinimum, float, bool]:
    """The minimum for the columns at `start`, or the half, quarter or eighth of the way to it, so that the cost with
    the columns of its own parameters falls by a part of what was promised; what was promised; and whether it fell."""
    layout, before = weighting.samples.layout, problem.cost(start)
    promised, part = before - minimum.cost, 1.0
    while True:
        point = minimum.point.toward(start, 1 - part)
        weighting.linearize(point.parameters())
        cost = problem.with_data(weighting.data, weighting.sigma, layout).cost(point)
        falls = before - cost >= _ENOUGH * part * promised or promised <= _STEP_LEFT
        if falls or part <= _SHORTEST:
            return minimum._replace(point=point, cost=cost), promised, falls
        part *= 0.5


def _fit_result(
    weighting: Reweighting,
    data: TorqueData,
    parameters: np.ndarray,
    gain: np.ndarray,
    status: Status,
    message: str,
    posterior: Posterior | None = None,
    **fields,
) -> InverseDynamicsFit:
    """The result of a fit whose last round ended with `status`; its message also says what was searched for."""
    samples, ending = weighting.samples, status.text
    if status == Status.CONVERGED and not weighting.settled:
        status = Status.OUT_OF_ITERATIONS
        unsettled = "the noise has"
        if samples.layout.nonlinear:
            unsettled = f"the noise and {'lengths' if samples.layout.places else 'what was searched for'} have"
        ending = f"out of iterations: {unsettled} not settled after {fields['rounds']} rounds of re-weighting"
    elif status == Status.OUT_OF_ITERATIONS:
        ending = f"out of iterations: max_iterations was too few in round {fields['rounds']} of re-weighting"
    searched = [
        f"{words} {np.round(x, 4).tolist()}"
        for (name, words), x in zip(SEARCHED.items(), samples.shape, strict=True)
        if getattr(samples.effects, name)
    ]
    fitted, values = with_parameters(samples, parameters, gain)
    fitted, values = values.split(fitted, samples.transmission)
    triangle = data.weighted(weighting.sigma * gain)[:, :-1]
    if posterior is None:
        independent = base_parameters_of(triangle, samples.names).independent
        factor = np.linalg.qr(triangle[:, independent], mode="r").T
        posterior = Posterior(np.eye(triangle.shape[1])[:, independent], factor)
    residual, hat = samples.residuals(parameters, gain), posterior.covariance_root()
    noise = SlopeNoise(samples, residual, weighting.sigma, gain, hat, weighting.weights)
    return InverseDynamicsFit(
        model=fitted,
        before=samples.before,
        effects=samples.effects,
        refined=samples.refined,
        values=values,
        parameters=parameters,
        sigma=weighting.noise,
        status=status,
        message=f"{ending}; {message}" + (f"; found by search: {', '.join(searched)}" if searched else ""),
        samples=round(float(data.samples[samples.driven].sum())),
        triangle=triangle,
        score_factors=(noise.by_spectra(), noise.by_blocks()),
        posterior=posterior,
        weights=weighting.weights,
        **fields,
    )


def _require_physical_start(model: Model) -> None:
    require_one_robot(model)
    advice = "start from dataclasses.replace(model, inertial_parameters=nearest_physical(model.inertial_parameters))"
    leaves.require_physical(model, range(model.nb), "the fit cannot start", advice)
