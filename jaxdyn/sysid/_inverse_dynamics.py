"""Identification from recorded torques: ordinary least squares, and a physically consistent fit by gradients."""

from __future__ import annotations

from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, ModelError
from jaxdyn._types import ArrayLike
from jaxdyn.algorithms import rnea
from jaxdyn.model import Model
from jaxdyn.sysid._log_cholesky import is_physical
from jaxdyn.sysid._physical_fit import Step, minimise, start_at
from jaxdyn.sysid._recording import Recording
from jaxdyn.sysid._torque_model import TorqueData, checked, compress, split, with_parameters

# No sensor is better than this part of the torque's size; without the floor, weights of exact data would overflow.
_SIGMA_FLOOR = 1e-6
# Rounds of re-weighting end when no joint's noise changes by more than this part.
_SIGMA_TOLERANCE = 1e-3


class InverseDynamicsFit(eqx.Module):
    """A model identified from torques, `tau = rnea(model, q, v, a) + offset`, with joint friction in `rnea`."""

    model: Model
    """The model with its identified `inertial_parameters`, `armature`, `damping`, `friction`, `friction_velocity`."""
    offset: np.ndarray
    """`[nv]`: constant torque of each sensor or drive, N m or N."""
    sigma: np.ndarray
    """`[nv]`: root mean square of the torque residual on the data of the fit, N m or N."""
    cost: float
    """Half the sum of squares that was minimised, at the last weights: residuals over `sigma`, and the prior's."""
    iterations: int
    """Steps of Levenberg-Marquardt, or linear solves, over all rounds of re-weighting."""
    rounds: int
    status: str
    """In words: `"converged"`, or what stopped the fit."""

    @property
    def converged(self) -> bool:
        return self.status == "converged"

    @property
    def physical(self) -> np.ndarray:
        """`[nb]` of bool: whether some distribution of mass has each body's parameters (`is_physical`)."""
        return np.asarray(is_physical(self.model.inertial_parameters))

    def predict(self, recording: Recording) -> np.ndarray:
        """`[n, nv]`: the torques (N m or N) for a recording's `q, v, a`. **Raises** `DataError`, as the fit does."""
        q, v, a, _ = checked(self.model, recording)
        return np.asarray(_torques(self.model, *(jnp.asarray(x) for x in (q, v, a))), np.float64) + self.offset


def ordinary_least_squares(
    model: Model, recording: Recording, *, friction_velocity: ArrayLike | None = None, rounds: int = 10
) -> InverseDynamicsFit:
    """The linear baseline: every parameter free, physical or not.

    Weighted least squares on the torque regressor with armature, viscous, Coulomb and offset columns (Atkeson, An &
    Hollerbach 1986; Swevers et al. 1997), each joint weighted with the inverse of its residual's root mean square, for
    up to `rounds` rounds. The columns are dependent; the solution of least norm in columns of unit length is taken,
    for which the torques are the same as for any other.

    `friction_velocity` (rad/s or m/s; scalar or `[nv]`) defaults to the model's. **Raises** `DataError`, `ModelError`
    for a recording that does not fit the model.
    """
    friction_velocity = _friction_velocity(model, friction_velocity)
    data = compress(model, recording, friction_velocity)
    # Structural dependence is exact to rounding, in the precision in which the regressor was computed; what the motion
    # hardly excites lies far above.
    cutoff = float(jnp.finfo(jnp.result_type(model.dtype, jnp.zeros(()))).eps) ** 0.6
    sigma, parameters, settled = _torque_size(data), np.zeros(data.factors.shape[-1] - 1), False
    sigma_used, solves = sigma, 0
    while solves < rounds and not settled:
        solves += 1
        R = data.weighted(sigma)
        length = np.linalg.norm(R[:, :-1], axis=0)
        length = np.where(length > 0, length, 1.0)
        parameters = np.linalg.lstsq(R[:, :-1] / length, R[:, -1], rcond=cutoff)[0] / length
        sigma_used, sigma = sigma, _noise(data, parameters)
        settled = bool(np.all(np.abs(sigma / sigma_used - 1) < _SIGMA_TOLERANCE))
    cost = 0.5 * data.samples * float(np.sum((data.residual_rms(parameters) / sigma_used) ** 2))
    status = "converged" if settled else f"stopped after {rounds} rounds of re-weighting, noise not settled"
    return _result(model, data, parameters, friction_velocity, cost, solves, solves, status)


def fit_inverse_dynamics(
    model: Model,
    recording: Recording,
    *,
    friction_velocity: ArrayLike | None = None,
    prior_weight: float = 0.1,
    rounds: int = 10,
    max_steps: int = 200,
    report: Callable[[Step], None] | None = None,
) -> InverseDynamicsFit:
    """Identify a model whose every body is physical, by gradients, starting from the parameters that `model` has.

    Minimises `1/2 sum_j |tau_j - rnea_j - offset_j|^2 / sigma_j^2 + prior_weight D` by Levenberg-Marquardt steps with
    exact Jacobians. The unknowns are unconstrained: ten log-Cholesky coordinates of each body's pseudo-inertia (Rucker
    & Wensing, RA-L 2022), logarithms of each joint's armature, damping and friction, and the offsets. `sigma_j`, each
    joint's root mean square residual, is estimated anew after each solution, up to `rounds` times.

    `D` is the pull towards the start: `tr(J0^-1 J) - log det(J0^-1 J) - 4` for each body, `x/x0 - log(x/x0) - 1` for
    armature, damping and friction, half the square of an offset over a tenth of the RMS torque (Lee, Wensing & Park,
    T-RO 2020). It does not depend on frames or units, holds what the data do not determine where it started, and keeps
    the solution off the edge of what is physical, at the price of about `prior_weight (4 nb + 3 nv)` in the sum of
    squares over `sigma^2`. What the model gives as zero armature, damping or friction starts at 1 % of the torque.

    **Arguments**

    - `friction_velocity`: rad/s or m/s, scalar or `[nv]`, held fixed; by default the model's.
    - `max_steps`: steps in one round.
    - `report`: called at each step.

    **Returns** an `InverseDynamicsFit`; look at its `status`. **Raises** `ModelError` where the start is not physical
    (make it so with `nearest_physical`), `DataError` for a recording that does not fit the model.
    """
    if not prior_weight > 0:
        raise DataError(
            f"prior_weight is {prior_weight}; it must be positive, or some unknowns have no equation at all"
        )
    physical = np.asarray(is_physical(model.inertial_parameters))
    if not physical.all():
        bad = ", ".join(name for name, ok in zip(model.body_names, physical, strict=True) if not ok)
        raise ModelError(
            f"the fit cannot start: no distribution of mass has the inertial parameters of {bad}. Start from "
            "equinox.tree_at(lambda m: m.inertial_parameters, model, nearest_physical(model.inertial_parameters))"
        )
    friction_velocity = _friction_velocity(model, friction_velocity)
    data = compress(model, recording, friction_velocity)
    sigma = torque = _torque_size(data)
    problem = start_at(model, data, torque, prior_weight)
    point = problem.prior
    iterations, number, cost, settled, status = 0, 0, np.inf, False, "no round was allowed"
    for number in range(1, rounds + 1):
        # The triangular factor has the samples' sum of squares for every parameter vector, in at most P + 1 rows.
        problem = problem._replace(R=jnp.asarray(data.weighted(sigma), point.offset.dtype))

        def report_step(step: int, cost: float, expected: float, number: int = number) -> None:
            if report is not None:
                report(Step(number, step, cost, expected))

        point, cost, steps, status = minimise(problem, point, max_steps, report_step)
        iterations += steps
        if status == "diverged":
            break
        previous, sigma = sigma, _noise(data, np.asarray(point.parameters(), np.float64))
        settled = bool(np.all(np.abs(sigma / previous - 1) < _SIGMA_TOLERANCE))
        if settled:
            break
    if status == "converged" and not settled:
        status = f"stopped after {rounds} rounds of re-weighting, noise not settled"
    parameters = np.asarray(point.parameters(), np.float64)
    return _result(model, data, parameters, friction_velocity, cost, iterations, number, status)


@eqx.filter_jit
def _torques(model: Model, q, v, a):
    return rnea(model, q, v, a)


def _torque_size(data: TorqueData) -> np.ndarray:
    """`[nv]`: RMS torques, with a floor for joints that carry none."""
    largest = float(data.torque_scale.max())
    if largest == 0:
        raise DataError("the recording's torques are all zero: nothing can be identified from them")
    return np.maximum(data.torque_scale, 1e-3 * largest)


def _noise(data: TorqueData, parameters: np.ndarray) -> np.ndarray:
    return np.maximum(data.residual_rms(parameters), _SIGMA_FLOOR * _torque_size(data))


def _friction_velocity(model: Model, given: ArrayLike | None) -> np.ndarray:
    out = np.asarray(model.friction_velocity if given is None else given, np.float64)
    if out.shape not in ((), (model.nv,)) or not np.all(np.isfinite(out) & (out > 0)):
        raise DataError(f"friction_velocity is {out}; a positive number or [{model.nv}] of them are needed, rad/s")
    return np.broadcast_to(out, (model.nv,)).copy()


def _result(model, data, parameters, friction_velocity, cost, iterations, rounds, status) -> InverseDynamicsFit:
    offset = np.array(split(model, parameters)[4])
    return InverseDynamicsFit(
        model=with_parameters(model, parameters, friction_velocity),
        offset=offset,
        sigma=data.residual_rms(parameters),
        cost=cost,
        iterations=iterations,
        rounds=rounds,
        status=status,
    )
