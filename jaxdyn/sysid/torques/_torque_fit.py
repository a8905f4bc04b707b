"""Identification from recorded torques: ordinary least squares, and a physically consistent fit by gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn._errors import DataError, ModelError
from jaxdyn._types import ArrayLike
from jaxdyn.model import Model
from jaxdyn.sysid.parameters._base_parameters import base_parameters_of
from jaxdyn.sysid.parameters._log_cholesky import is_physical
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.torques._cross_validation import PRIOR_WEIGHTS, CrossValidation, choose_weight
from jaxdyn.sysid.torques._effect_search import shape_of
from jaxdyn.sysid.torques._effects import JointEffects, frictionless_torque
from jaxdyn.sysid.torques._fit_result import InverseDynamicsFit
from jaxdyn.sysid.torques._physical_fit import Physical, minimize, posterior, start_at
from jaxdyn.sysid.torques._torque_model import Layout, Samples, Shape, TorqueData, with_parameters
from jaxdyn.sysid.torques._torque_state import TorqueFitState

type Loss = Literal["squared", "huber", "cauchy"]
type Recordings = Recording | Sequence[Recording]

# No sensor is better than this part of the torque's size; without the floor, weights of exact data would overflow.
_SIGMA_FLOOR = 1e-6
# Rounds of re-weighting end when no joint's noise changes by more than this part.
_SIGMA_TOLERANCE = 1e-3
# Tuning constants of 95 % efficiency for normal noise (Holland & Welsch 1977), and what turns a median into a
# standard deviation.
_HUBER, _CAUCHY, _MEDIAN = 1.345, 2.385, 1.4826


class Step(NamedTuple):
    """Progress of a fit: the round of re-weighting, the step in it, the cost, the decrease it still expected."""

    round: int
    step: int
    cost: float
    expected_decrease: float
    state: TorqueFitState
    """From which `fit_inverse_dynamics(..., state=...)` goes on: arrays, to be saved."""


def ordinary_least_squares(
    model: Model,
    recordings: Recordings,
    *,
    joint_effects: JointEffects | None = None,
    friction_velocity: ArrayLike | None = None,
    loss: Loss = "squared",
    rounds: int = 10,
    threshold: float | None = None,
) -> InverseDynamicsFit:
    """The linear baseline: every parameter free, physical or not.

    Weighted least squares on the torque regressor with the columns of the joint effects (Atkeson, An & Hollerbach 1986;
    Swevers et al. 1997), each joint weighted with the inverse of its residual's root mean square, for up to `rounds`
    rounds. Solved for base parameters (QR with column pivoting, see `base_parameters`), of which the solution of least
    norm in columns of unit length is given, for which the torques are the same as for any other.

    **Arguments**

    - `joint_effects`: which effects of friction and drive are identified; by default armature, viscous and Coulomb
      friction, and offsets. Those in which the torque is not linear are searched for first. A drive gain cannot be
      among them: it is told from inertias by a prior only.
    - `friction_velocity` (rad/s or m/s; scalar or `[nv]`) defaults to the model's.
    - `loss`: `"huber"` and `"cauchy"` weigh down outliers (iteratively re-weighted least squares; Holland & Welsch
      1977), with the noise of each joint from the median of its residuals.
    - `threshold`: see `base_parameters`.

    **Raises** `DataError`, `ModelError` for a recording that does not fit the model.
    """
    effects = joint_effects or JointEffects()
    shape = shape_of(model, recordings, effects, friction_velocity)
    samples = Samples(model, recordings, effects, shape)
    layout = samples.layout
    if layout.gains:
        raise DataError(
            "ordinary least squares cannot tell a drive gain from heavier links: use fit_inverse_dynamics, whose "
            "prior can, or scale the recorded torques"
        )
    rounds_of = _Reweighting(samples, loss)
    parameters, base, solves = np.zeros(layout.size), None, 0
    sigma_used = rounds_of.sigma
    while solves < rounds and not rounds_of.settled:
        solves += 1
        data, sigma_used = rounds_of.data, rounds_of.sigma
        R = data.weighted(sigma_used)
        base = base_parameters_of(R[:, :-1], layout.names(model), threshold, layout.nb)
        parameters = _least_norm(R, base)
        rounds_of.update(parameters, np.ones(layout.nv), _load_model(model, layout, parameters, shape))
    if base is None:
        raise DataError(f"rounds is {rounds}; one is the least")
    data = rounds_of.used
    cost = 0.5 * float(np.sum(data.samples * (data.residual_rms(parameters) / sigma_used) ** 2))
    status = "converged" if rounds_of.settled else f"stopped after {rounds} rounds of re-weighting, noise not settled"
    fitted, values = with_parameters(model, layout, parameters, shape, np.ones(layout.nv))
    return InverseDynamicsFit(
        model=fitted,
        before=model,
        effects=effects,
        values=values,
        parameters=parameters,
        sigma=rounds_of.sigma_found,
        cost=cost,
        iterations=solves,
        rounds=solves,
        status=status,
        message=(
            f"{base.rank} of {layout.size} parameters are independent in the data (pivots above {base.threshold:.1e} "
            f"of the largest, gap {base.gap:.1e}), condition number {base.condition_number:.3g}{_said(effects, shape)}"
        ),
        samples=round(float(data.samples.sum())),
        triangle=data.weighted(rounds_of.sigma)[:, :-1],
    )


def fit_inverse_dynamics(
    model: Model,
    recordings: Recordings,
    *,
    joint_effects: JointEffects | None = None,
    friction_velocity: ArrayLike | None = None,
    prior_weight: float | Literal["cross-validated"] = 0.1,
    effects_weight: float = 0.1,
    prior_weights: Sequence[float] = PRIOR_WEIGHTS,
    folds: int = 5,
    loss: Loss = "squared",
    rounds: int = 10,
    max_iterations: int = 200,
    report: Callable[[Step], None] | None = None,
    state: TorqueFitState | None = None,
) -> InverseDynamicsFit:
    """Identify a model whose every body is physical, by gradients, starting from the parameters that `model` has.

    Minimizes `1/2 sum_j |tau_j - model_j|^2 / sigma_j^2 + prior_weight D_bodies + effects_weight D_joints` by
    Levenberg-Marquardt steps with exact Jacobians; the torque model is in `JointEffects`. The unknowns are
    unconstrained: ten log-Cholesky coordinates of each body's pseudo-inertia (Rucker & Wensing, RA-L 2022), logarithms
    of each joint's armature and frictions, and the offsets. `sigma_j`, each joint's root mean square residual, is
    estimated anew after each solution, up to `rounds` times. Where no drive gain is unknown, each round's problem is
    convex in the parameters.

    `D` is the pull toward the start: `tr(J0^-1 J) - log det(J0^-1 J) - 4` for each body, `x/x0 - log(x/x0) - 1` for
    armature, frictions and gains, half the square of an offset over a tenth of the RMS torque (Lee, Wensing & Park,
    T-RO 2020). It does not depend on frames or units, holds what the data do not determine where it started, and keeps
    the solution off the edge of what is physical. What the model gives as zero armature or friction starts at 1 % of
    the torque.

    **Arguments**

    - `recordings`: one or several, of any lengths and rates.
    - `joint_effects`: which effects of friction and drive are identified; by default armature, viscous and Coulomb
      friction, and offsets. Those in which the torque is not linear (Stribeck and friction velocity, delays) are found
      first (`search_shape`), and then held; load friction takes the transmitted torque of the round before.
    - `friction_velocity`: rad/s or m/s, scalar or `[nv]`; by default the model's.
    - `prior_weight`: of the inertias' prior; samples count as independent, so that filtered recordings, whose
      neighboring samples say the same, want more. `"cross-validated"` takes, of `prior_weights`, the one that predicts
      best each of `folds` parts of the recordings from the others (`cross_validate`).
    - `loss`: as in `ordinary_least_squares`.
    - `max_iterations`: steps in one round.
    - `report`: called at each step; what it raises, such as `KeyboardInterrupt`, ends the fit.
    - `state`: of an earlier fit with the same arguments (`Step.state`), to go on from: what was searched and the prior
      weight that was chosen are taken from there.

    **Returns** an `InverseDynamicsFit`; look at its `status`. **Raises** `ModelError` where the start is not physical
    (make it so with `nearest_physical`), `DataError` for a recording that does not fit the model.
    """
    effects = joint_effects or JointEffects()
    _check_start(model)
    shape = shape_of(model, recordings, effects, friction_velocity) if state is None else state.shape
    samples = Samples(model, recordings, effects, shape)
    chosen = ""
    if prior_weight == "cross-validated":
        if state is None:
            result = choose_weight(model, samples, effects_weight, prior_weights, folds, loss_sigma(samples, loss))
            prior_weight = result.best
        else:
            prior_weight = state.prior_weight
        chosen = f"; prior weight {prior_weight:g} by {folds}-fold cross-validation"
    for name, x in (("prior_weight", prior_weight), ("effects_weight", effects_weight)):
        if isinstance(x, str) or not x > 0:
            raise DataError(
                f"{name} is {x!r}; it must be positive, or some unknowns have no equation at all"
                + (", or 'cross-validated'" if name == "prior_weight" else "")
            )
    layout = samples.layout
    problem = start_at(model, samples, float(prior_weight), effects_weight)
    point, first, begin, previous = problem.prior, 1, 1, None
    iterations, number, cost, status = 0, 0, np.inf, "no round was allowed"
    rounds_of = _Reweighting(samples, loss)
    if state is not None:
        state.require_like(problem.prior, len(samples), layout.nv)
        point, first, begin, previous = state.point, state.step, state.round, state.previous
        iterations = state.iterations
        load_model = None if previous is None else _load_model(model, layout, previous, shape)
        rounds_of.go_on(state.sigma, state.weights, load_model)
    data, gain = rounds_of.data, np.ones(layout.nv)
    for number in range(begin, rounds + 1):
        data = rounds_of.data
        problem = problem.with_data(data, rounds_of.sigma, layout)

        begun = TorqueFitState(
            shape=shape,
            prior_weight=problem.weight,
            round=number,
            step=first,
            iterations=iterations,
            sigma=rounds_of.sigma,
            weights=rounds_of.weights,
            previous=previous,
            point=point,
        )
        point, cost, steps, status = minimize(problem, point, max_iterations, _reported(report, begun), first)
        iterations, first = iterations + steps, 1
        gain = np.ones(layout.nv)
        gain[list(layout.gains)] = 1 / point.scale
        if status == "diverged":
            break
        previous = point.parameters()
        rounds_of.update(previous, gain, _load_model(model, layout, previous, shape))
        if rounds_of.settled:
            break
    if status == "converged" and not rounds_of.settled:
        status = f"stopped after {rounds} rounds of re-weighting, noise not settled"
    parameters = point.parameters()
    tangent, both, prior = posterior(problem, point)
    fitted, values = with_parameters(model, layout, parameters, shape, gain)
    return InverseDynamicsFit(
        model=fitted,
        before=model,
        effects=effects,
        values=values,
        parameters=parameters,
        sigma=rounds_of.sigma_found,
        cost=cost,
        iterations=iterations,
        rounds=number,
        status=status,
        message=f"{layout.size} parameters{chosen}{_said(effects, shape)}",
        samples=round(float(data.samples.sum())),
        triangle=data.weighted(rounds_of.sigma * gain)[:, :-1],
        tangent=tangent,
        precision_factor=both,
        prior_factor=prior,
        prior_weight=float(prior_weight),
    )


def _reported(report: Callable[[Step], None] | None, begun: TorqueFitState):
    def step_of_round(step: int, cost: float, expected: float, point: Physical) -> None:
        if report is not None:
            report(Step(begun.round, step, cost, expected, begun._replace(step=step, point=point)))

    return step_of_round


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
    """How well fits with each prior weight predict what they have not seen: each of `folds` parts of the recordings,
    consecutive in time, from all others. Arguments as in `fit_inverse_dynamics`, which see for what is raised.

    The errors are `[folds, k]`, for `k` weights.
    """
    effects = joint_effects or JointEffects()
    _check_start(model)
    shape = shape_of(model, recordings, effects, friction_velocity)
    samples = Samples(model, recordings, effects, shape)
    return choose_weight(model, samples, effects_weight, prior_weights, folds, loss_sigma(samples, "squared"))


class _Reweighting:
    """The rounds in which noise, outliers' weights and transmitted torques are estimated anew."""

    def __init__(self, samples: Samples, loss: Loss):
        if loss not in ("squared", "huber", "cauchy"):
            raise DataError(f"loss is {loss!r}; known: 'squared', 'huber', 'cauchy'")
        self.samples, self.loss = samples, loss
        self.by_load = samples.layout.by_load
        (self.data,) = samples.compressed()
        self.used: TorqueData = self.data
        self.sigma = samples.torque_scale
        self.sigma_found = self.sigma
        self.weights: np.ndarray | None = None
        self.settled = False

    def go_on(self, sigma: np.ndarray, weights: np.ndarray | None, load_model: Model | None) -> None:
        """With what an earlier round has found."""
        samples = self.samples
        self.sigma = self.sigma_found = sigma
        self.weights = weights
        if self.by_load and load_model is not None:
            samples.set_load(frictionless_torque(load_model, samples.q, samples.v, samples.a))
        if (self.by_load and load_model is not None) or weights is not None:
            (self.data,) = samples.compressed(weights)

    def update(self, parameters: np.ndarray, gain: np.ndarray, load_model: Model) -> None:
        samples = self.samples
        floor = _SIGMA_FLOOR * samples.torque_scale
        self.used = self.data
        weights = None
        if self.loss == "squared":
            sigma = self.sigma_found = self.data.residual_rms(parameters, gain)
        else:
            residual = np.abs(samples.residuals(parameters, gain))
            inside = np.where(samples.valid, residual, np.nan)
            sigma = self.sigma_found = _MEDIAN * np.nanmedian(inside, axis=0)
            x = residual / np.maximum(sigma, floor)
            weights = 1 / np.maximum(1, x / _HUBER) if self.loss == "huber" else 1 / (1 + (x / _CAUCHY) ** 2)
        sigma = np.maximum(sigma, floor)
        self.settled = bool(np.all(np.abs(sigma / self.sigma - 1) < _SIGMA_TOLERANCE))
        self.sigma = sigma
        if self.by_load:
            samples.set_load(frictionless_torque(load_model, samples.q, samples.v, samples.a))
        self.weights = weights
        if not self.settled and (self.by_load or weights is not None):
            (self.data,) = samples.compressed(weights)


def loss_sigma(samples: Samples, loss: Loss) -> np.ndarray:
    """`[nv]`: a first estimate of the noise, by linear least squares, for what is weighed before there is a fit."""
    rounds_of = _Reweighting(samples, "squared")
    layout = samples.layout
    for _ in range(3):
        R = rounds_of.data.weighted(rounds_of.sigma)
        parameters = _least_norm(R, base_parameters_of(R[:, :-1], layout.names(samples.model), None, layout.nb))
        rounds_of.by_load = False
        rounds_of.update(parameters, np.ones(layout.nv), samples.model)
    return rounds_of.sigma


def _least_norm(R: np.ndarray, base) -> np.ndarray:
    """The parameters `[P]` of least norm, in columns of unit length, among those with the best base parameters."""
    A, b = R[:, :-1], R[:, -1]
    Q, T = np.linalg.qr(A[:, base.independent])
    best = solve_triangular(T, Q.T @ b)
    length = np.linalg.norm(A, axis=0)
    length = np.where(length > 0, length, 1.0)
    # matrix @ (x / length) = best, rows scaled to the length of their own column.
    M = base.matrix / length * length[base.independent][:, None]
    return np.linalg.lstsq(M, best * length[base.independent], rcond=None)[0] / length


def _load_model(model: Model, layout: Layout, parameters: np.ndarray, shape: Shape) -> Model:
    return with_parameters(model, layout, parameters, shape, np.ones(layout.nv))[0]


def _check_start(model: Model) -> None:
    physical = np.asarray(is_physical(model.inertial_parameters))
    if not physical.all() and physical.ndim == 1:
        bad = ", ".join(name for name, ok in zip(model.body_names, physical, strict=True) if not ok)
        raise ModelError(
            f"the fit cannot start: no distribution of mass has the inertial parameters of {bad}. Start from "
            "equinox.tree_at(lambda m: m.inertial_parameters, model, nearest_physical(model.inertial_parameters))"
        )


def _said(effects: JointEffects, shape: Shape) -> str:
    """What was searched for, in words."""
    names = ("friction_velocity", "stribeck", "friction_delay", "torque_delay")
    words = ("friction velocity", "Stribeck velocity", "friction delay, s", "torque delay, s")
    found = [
        f"{word} {np.round(x, 4).tolist()}"
        for name, word, x in zip(names, words, shape, strict=True)
        if getattr(effects, name)
    ]
    return f"; found by search: {', '.join(found)}" if found else ""
