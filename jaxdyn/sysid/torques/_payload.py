"""Identification of a payload from recordings without and with it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn import _printing as printing
from jaxdyn._errors import (
    DataError,
    ModelError,
    naming_arguments,
    require_positive,
    require_positive_integer,
    warn,
)
from jaxdyn._types import ArrayLike
from jaxdyn._waits import saying
from jaxdyn.model import BodyInertia, Model
from jaxdyn.spatial import inertia_matrix, transform_inertial_parameters
from jaxdyn.sysid.parameters import cholesky, leaves
from jaxdyn.sysid.recordings import Recordings, RecordingWarning
from jaxdyn.sysid.torques._alike_residuals import Correlation
from jaxdyn.sysid.torques._base_parameters import base_parameters_of
from jaxdyn.sysid.torques._effect_search import effect_shape
from jaxdyn.sysid.torques._effects import JointEffects, frictionless_torque
from jaxdyn.sysid.torques._intervals import Posterior, posterior_intervals
from jaxdyn.sysid.torques._layout import POSITIVE
from jaxdyn.sysid.torques._payload_fit import PayloadFit
from jaxdyn.sysid.torques._physical_fit import Physical, PhysicalProblem, minimize, posterior
from jaxdyn.sysid.torques._residual_causes import LEAST_PART, LEAST_STATISTIC
from jaxdyn.sysid.torques._residual_noise import block_scores, score_factor
from jaxdyn.sysid.torques._torque_data import TorqueData, triangular_factors
from jaxdyn.sysid.torques._torque_model import Samples, friction_columns, require_known_lengths, with_parameters

_NAMES = ("mass", "cx", "cy", "cz", "Ixx", "Ixy", "Iyy", "Ixz", "Iyz", "Izz")
_POSITIVE = np.isin(_NAMES, ("mass", "Ixx", "Iyy", "Izz"))
_MAX_ITERATIONS = 100
# Where parameters fit more than this part of a joint's independent samples, its noise is hardly known; and the least
# part of them that counts as left over.
_MUCH_FITTED, _LEAST_LEFT = 0.5, 0.1
# A mass is negative beyond doubt if it is so by this many standard errors, and by this part of the robot's mass: errors
# of the model take a little away, too.
_SURE, _LEAST_PART = 4.0, 0.002


@naming_arguments
@saying("identifying the payload")
def identify_payload(
    model: Model,
    without: Recordings,
    with_: Recordings,
    *,
    frame: str,
    joint_effects: JointEffects | None = None,
    friction_velocity: ArrayLike | None = None,
    prior: BodyInertia | ArrayLike | None = None,
    prior_weight: float = 0.1,
    rounds: int = 5,
    level: float = 0.95,
) -> PayloadFit:
    """Identify the inertia of a body that is fixed at a frame, from motions without it and (other) motions with it.

    The robot's parameters, friction and offsets are free, and the same in both; the payload adds ten parameters at
    `frame` (Khalil, Gautier & Lemoine, Identification of the payload inertial parameters of industrial manipulators,
    ICRA 2007). Only the robot's kinematics must be known. QR eliminates the robot's parameters. The payload's stay
    physical by log-Cholesky coordinates; a weak prior determines what the motion does not excite (see
    `PayloadFit.intervals.prior_share`). Friction in proportion to the load is that of the transmitted torque, to which
    robot and payload contribute; every round linearizes it about the estimate of the round before.

    The noise of each joint is estimated from its residuals, less the part that the parameters fit. Residuals that are
    alike count as fewer samples, whether filters smoothed them or an error of the model recurs in a periodic motion.
    The intervals take the spectrum of the residuals of each joint into account, and noise that depends on the motion,
    like `InverseDynamicsFit.intervals`; residuals that recur with the motion widen them.

    Torques count as N m and N. Where they come from motor currents by gains that are wrong, the payload's mass and
    inertia are wrong by the same part, which no residual shows and no interval includes if all gains are. A payload of
    known mass `m` calibrates them: then the torques are too small by the factor `m / fit.mass`. Gains that are wrong
    from joint to joint show in the residuals.

    Prepare recordings by `Recording.prepared`, with a cutoff far above the motion. A filter of the recording alone
    smooths the torque at reversals, where the model's friction changes faster: Coulomb friction is estimated too small,
    viscous friction too large, and the payload's error grows, and its intervals with it.

    **Arguments**

    - `without`, `with_`: one recording or several, with velocities, accelerations and torques, prepared alike; for a
      robot with closed loops those of its driven joints (`Recording.joints`).
    - `frame`: where the payload is fixed; a body, a merged link, or a frame, which a joint moves.
    - `joint_effects`, `friction_velocity`: as in `fit_inverse_dynamics`, without drive gains. If the friction of the
      joints grows with the load, choose `load`; otherwise the payload absorbs a part of it.
    - `prior`: a `BodyInertia` or ten parameters in the frame; by default a ball with the mass and center of mass of the
      linear solution and a radius of gyration of 0.1 m (where that mass is not positive: 0.1 kg at the origin).
    - `rounds`: how often the noise is estimated and load friction linearized.

    Warns with `RecordingWarning` where residuals are alike for so long that the noise can hardly be estimated, where
    the mass by least squares is clearly negative, as if the recordings were exchanged, and where gains that are wrong
    from joint to joint explain residuals.

    **Returns** a `PayloadFit`; its parameters are `[10]`, about the origin of the frame.

    **Raises** `UnknownNameError` for the frame; `ModelError` for one that is fixed in the world and for a prior that is
    not physical; `DataError` for recordings that do not fit the model.
    """
    number = model.topology.frame(frame)
    body = model.topology.frame_bodies[number]
    if body < 0:
        raise ModelError(f"frame {frame!r} is fixed in the world, where a payload has no effect; give a moving frame")
    require_known_lengths(joint_effects, "identify_payload", "take the model of a fit that has found them")
    effects = joint_effects or JointEffects()
    shape = effect_shape(model, without, effects, friction_velocity)
    samples = [Samples(model, x, effects, shape) for x in (without, with_)]
    if samples[0].layout.gains:
        raise DataError("a payload is identified without drive gains, which hide its mass: choose other joint_effects")
    require_positive(prior_weight, "prior_weight", error=DataError)
    require_positive_integer(rounds, "rounds", error=DataError)
    placement = np.asarray(model.frame_placement[number], np.float64)
    runs = _Runs(samples, body, transform_inertial_parameters(np.eye(10), placement).T)
    linear = runs.solve(rounds)
    _warn_of_few_samples(model, linear)
    _warn_of_exchange(model, linear)
    _warn_of_gains(model, runs, linear)
    T = linear.equations
    start = Physical(cholesky.pseudo_factor(_prior(prior, linear.payload, frame)[None]), *np.zeros((3, 0)))
    none = np.zeros((len(T), 0))
    problem = PhysicalProblem(T[:, :10], np.zeros(len(T)), T[:, 10], none, start, none[0], prior_weight, 1.0)
    minimum = minimize(problem, start, _MAX_ITERATIONS, lambda *_: None)
    parameters = minimum.point.parameters()
    properties = np.asarray(_mass_properties(parameters), np.float64)
    _, by_coordinates, precision_factor, prior_factor = posterior(problem, minimum.point)
    slope = np.asarray(jax.jacfwd(_mass_properties)(jnp.asarray(parameters)), np.float64) @ by_coordinates
    bare, loaded = runs.residuals(linear.robot, parameters)
    return PayloadFit(
        frame=frame,
        parameters=parameters,
        mass=float(properties[0]),
        center_of_mass=properties[1:4],
        inertia=inertia_matrix(properties),
        intervals=posterior_intervals(
            _NAMES,
            properties,
            slope,
            Posterior(precision_factor, prior_factor, tuple(x @ by_coordinates for x in linear.score_factors)),
            level,
            positive=_POSITIVE,
        ),
        model=model.with_payload(frame, parameters),
        unconstrained=linear.payload,
        rms_error=(_root_mean_square(bare), _root_mean_square(loaded)),
        rms_unexplained=_root_mean_square(runs.residuals(linear.robot, np.zeros(10))[1]),
        correlation=linear.correlation,
        status=minimum.status,
    )


def _warn_of_few_samples(model: Model, solution: _Solution) -> None:
    """Warn where residuals are alike over so many samples that few independent ones remain."""
    names, share = model.topology.dof_names, solution.fitted_share
    few = np.flatnonzero(share > _MUCH_FITTED)
    if len(few):
        j = int(few[np.argmax(share[few])])
        warn(
            f"the residual torques of {[names[k] for k in few]} are alike over many samples (of {names[j]}, over "
            f"{solution.correlation[j]:.0f}), so few independent samples remain to estimate the noise from: the "
            f"parameters fit {printing.percent(float(share[j]))} of them, and the intervals are rough. Record for "
            "longer, or find the effect that is missing (joint_effects)",
            RecordingWarning,
        )


def _warn_of_exchange(model: Model, solution: _Solution) -> None:
    """Warn where the payload takes mass away from the robot, beyond what noise explains. The physical fit would end
    with a mass near zero, and a short interval."""
    inverse = np.linalg.pinv(solution.equations[:, :10], rcond=1e-9)
    error = max(float(np.linalg.norm(K @ (inverse @ inverse[0]))) for K in solution.score_factors)
    mass, whole = float(solution.payload[0]), float(np.sum(np.asarray(model.inertial_parameters)[:, 0]))
    if mass < -max(_SURE * error, _LEAST_PART * whole):
        warn(
            f"by least squares the payload has the mass {mass:.3g} kg, with a standard error of {error:.2g} kg: the "
            "robot carries less in the recordings with_ the payload than in those without it. Are the two exchanged? "
            "The mass of the physical fit, and its interval, mean nothing here",
            RecordingWarning,
        )


def _warn_of_gains(model: Model, runs: _Runs, solution: _Solution) -> None:
    """Warn where gains of the drives that differ from joint to joint explain a part of the residuals (a score test with
    the derivatives by gains, as of `residual_causes`). Gains that are all alike wrong leave no residuals."""
    nv, p, rows = model.nv, np.concatenate([solution.robot, solution.payload]), np.zeros((0, 0))
    residual = np.concatenate(runs.residuals(solution.robot, solution.payload))
    sigma = _root_mean_square(residual) * np.sqrt(solution.correlation)
    # Residuals of exact torques are rounding.
    sigma = np.maximum(sigma, 1e-6 * np.maximum(*(x.torque_scale for x in runs.samples)))
    for _, B in runs.columns(solution.robot, solution.payload):
        predicted = B[..., :-2] @ p + B[..., -2]
        parts = B[..., :-2], predicted[..., None] * np.eye(nv), (predicted - B[..., -1])[..., None]
        block = (np.concatenate(parts, axis=-1) / sigma[:, None]).reshape(-1, len(p) + nv + 1)
        rows = np.linalg.qr(np.concatenate([rows.reshape(-1, block.shape[1]), block]), mode="r")
    columns, rest = rows[:, :-1] / np.maximum(np.linalg.norm(rows[:, :-1], axis=0), 1e-300), rows[:, -1]
    left = []
    for A in (columns[:, :-nv], columns):
        left.append(float(np.sum((rest - A @ np.linalg.lstsq(A, rest, rcond=1e-9)[0]) ** 2)))
    part, statistic = 1 - left[1] / max(left[0], 1e-300), (left[0] - left[1]) / nv
    if part > LEAST_PART and statistic > LEAST_STATISTIC:
        warn(
            f"gains of the drives or torque sensors that are wrong from joint to joint would explain "
            f"{printing.percent(part)} of the residuals (F = {statistic:.3g}): the payload and its intervals hold for "
            "torques in N m and N alone. Calibrate the gains, as by a payload of known mass",
            RecordingWarning,
        )


class _Equations(NamedTuple):
    """Weighted linear equations of all joints, solved for the robot's and the payload's parameters."""

    parameters: np.ndarray
    """`[P + 10]`: the robot's, zero for those that are not independent, and the payload's."""
    fitted: np.ndarray
    """`[nv]`: how many parameters each joint's samples determine; their sum is the rank."""
    payload: np.ndarray
    """`[10, 11]`: the equations `[T, z]` for the payload that remain when the robot's parameters are eliminated."""
    root: np.ndarray
    """`[P + 10, k]`: `W` with `W W^T` the covariance of the parameters, for independent residuals of unit variance."""
    elimination: np.ndarray
    """`[P + 10, 10]`: `M`, which takes the slope `s` of half the sum of squares with respect to all parameters to that
    with respect to the payload's, `M^T s`, with the robot's at their best."""

    @classmethod
    def solve(cls, data: TorqueData, sigma: np.ndarray, names: list[str]) -> Self:
        """Solve for the robot's parameters with these names, and for the payload's, by weighted least squares."""
        P, R = len(names), data.weighted(sigma)
        independent = base_parameters_of(R[:, :P], names).independent
        columns = np.concatenate([independent, np.arange(P, P + 10)])
        length = np.linalg.norm(R[:, columns], axis=0)
        # Columns far shorter than the others, as of what does not move out of a plane, are rounding.
        length = np.where(length > 1e-12 * length.max(), length, np.inf)
        U, singular, V = np.linalg.svd(R[:, columns] / length, full_matrices=False)
        kept = singular > 1e-9 * singular[0]
        inverse = V[kept].T / singular[kept] / length[:, None]
        parameters = np.zeros(P + 10)
        parameters[columns] = inverse @ (U[:, kept].T @ R[:, -1])
        # The trace of each joint's part of the matrix that takes measured to fitted torques.
        leverage = data.factors[..., columns] / sigma[:, None, None] @ inverse
        rows = np.linalg.qr(np.concatenate([R[:, columns], R[:, -1:]], axis=-1), mode="r")
        rank = len(independent)
        root, elimination = np.zeros((P + 10, int(kept.sum()))), np.zeros((P + 10, 10))
        root[columns] = inverse
        # The robot's parameters that minimize |R11 r + R12 p|^2 for the payload's p are -R11^-1 R12 p.
        elimination[columns] = np.concatenate([-solve_triangular(rows[:rank, :rank], rows[:rank, rank:-1]), np.eye(10)])
        fitted = np.sum(leverage**2, axis=(1, 2))
        return cls(parameters, fitted, rows[rank : rank + 10, rank:], root, elimination)


class _Solution(NamedTuple):
    robot: np.ndarray
    """`[P]`."""
    payload: np.ndarray
    """`[10]`: by linear least squares."""
    correlation: np.ndarray
    """`[nv]`: see `PayloadFit`."""
    fitted_share: np.ndarray
    """`[nv]`: the part of the independent samples that parameters fit; 0 where the torques are exact."""
    equations: np.ndarray
    """`[10, 11]`: `[T, z]`; see `_Equations`."""
    score_factors: tuple[np.ndarray, ...]
    """`[k, 10]` each: estimates `K` for which `K^T K` is the covariance of the slope with respect to the payload."""


class _Runs(NamedTuple):
    """Samples without and with the payload, whose torques depend on the robot's and the payload's parameters."""

    samples: list[Samples]
    body: int
    X: np.ndarray
    """`[10, 10]`: the body's parameters for one unit of each of the payload's."""

    def solve(self, rounds: int) -> _Solution:
        """Solve by least squares, and estimate each joint's noise from the residuals, `rounds` times. With load
        friction, each round is a Gauss-Newton step."""
        bare, loaded = self.samples
        layout, names = bare.layout, bare.layout.names(bare.model)
        sigma = np.maximum(bare.torque_scale, loaded.torque_scale)
        floor = 1e-9 * sigma
        robot, payload = np.zeros(layout.size), np.zeros(10)
        data = self._linearized(robot, payload)
        for k in range(rounds):
            solved = _Equations.solve(data, sigma, names)
            robot, payload = np.split(solved.parameters, [layout.size])
            residuals = self.residuals(robot, payload)
            # Correlation counts at the end only: before, it would give little weight to a joint because its residuals
            # are alike, and they would stay alike because the joint has little weight.
            alike = Correlation(*np.ones((3, layout.nv)))
            if k == rounds - 1:
                alike = Correlation.largest(residuals)
            share = solved.fitted * alike.length / data.samples
            left = np.maximum(1 - share, _LEAST_LEFT)
            # The residuals lack the noise that the parameters fit, which is as slow as the motion.
            correlation = left * alike.length + (1 - left) * alike.span
            noise = _root_mean_square(np.concatenate(residuals)) * np.sqrt(correlation / left)
            sigma = np.maximum(noise, floor)
            if layout.by_load:
                data = self._linearized(robot, payload)
        solved = _Equations.solve(data, sigma, names)
        robot, payload = np.split(solved.parameters, [layout.size])
        residuals = np.concatenate(self.residuals(robot, payload))
        # Neither spectra of short lags nor blocks have what recurs much later.
        residuals = residuals * np.sqrt(alike.recurrence)
        noisy = (_BothMotions(self, robot, payload), residuals, sigma, np.ones(layout.nv), solved.root)
        factors = tuple(x @ solved.elimination for x in (score_factor(*noisy), block_scores(*noisy)))
        share = np.where(noise > floor, share, 0.0)
        return _Solution(robot, payload, correlation, share, solved.payload, factors)

    def residuals(self, robot: np.ndarray, payload: np.ndarray) -> list[np.ndarray]:
        """The residuals `[n, nv]` without and with the payload. Load friction then grows with the torques that the
        robot with these parameters transmits."""
        carrying = robot + self._added(payload)
        for samples, p in zip(self.samples, (robot, carrying), strict=True):
            if samples.layout.by_load:
                samples.linearize(_model(samples, p))
        return [x.residuals(p) for x, p in zip(self.samples, (robot, carrying), strict=True)]

    def _added(self, payload: np.ndarray) -> np.ndarray:
        """The change of the robot's parameters `[P]` by the payload."""
        out = np.zeros(self.samples[0].layout.size)
        out[10 * self.body : 10 * self.body + 10] = self.X @ payload
        return out

    def _linearized(self, robot: np.ndarray, payload: np.ndarray) -> TorqueData:
        """The data of both, with columns for the payload's parameters after the robot's."""
        bare, loaded = self.samples
        parts = _linearized(bare, robot), _linearized(loaded, robot + self._added(payload))
        rows = [self._with_payload(x.factors, k) for k, x in enumerate(parts)]
        return TorqueData.join([TorqueData(x, data.samples) for x, data in zip(rows, parts, strict=True)])

    def _with_payload(self, B: np.ndarray, carried: int) -> np.ndarray:
        """The columns `B` `[..., P + 2]` with the payload's after the robot's; those are zero where it is not
        carried."""
        P = self.samples[0].layout.size
        columns = carried * (B[..., 10 * self.body : 10 * self.body + 10] @ self.X)
        return np.concatenate([B[..., :P], columns, B[..., P:]], axis=-1)

    def columns(self, robot: np.ndarray, payload: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield rows and columns as `Samples.chunks` does, of the motions without and then of those with the payload,
        with load friction linear about these parameters."""
        first = 0
        for k, (samples, p) in enumerate(zip(self.samples, (robot, robot + self._added(payload)), strict=True)):
            for rows, B in _linear_columns(samples, p):
                yield slice(first + rows.start, first + rows.stop), self._with_payload(B, k)
            first += len(samples)


class _BothMotions:
    """The equations of both motions, as estimates of the noise need them (`TorqueEquations`)."""

    def __init__(self, runs: _Runs, robot: np.ndarray, payload: np.ndarray):
        self.layout = runs.samples[0].layout
        self.lengths = np.concatenate([x.lengths for x in runs.samples])
        self.chunks = functools.partial(runs.columns, robot, payload)

    def __len__(self) -> int:
        return int(self.lengths.sum())


def _linearized(samples: Samples, parameters: np.ndarray) -> TorqueData:
    """The data of samples, with load friction as in `_linear_columns`."""
    if not samples.layout.by_load:
        (data,) = samples.compressed()
        return data
    factors = np.zeros((samples.layout.nv, 0, samples.layout.size + 2))
    for _, B in _linear_columns(samples, parameters):
        factors = triangular_factors(np.concatenate([factors, B.swapaxes(0, 1)], axis=1))
    return TorqueData(factors, samples.valid.sum(axis=0))


def _linear_columns(samples: Samples, parameters: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """The chunks of samples, in which load friction `mu |L| s` is linear in all parameters about the given ones `[P]`.

    Its column for a parameter on which the transmitted torque `L` depends is `mu sign(L) s dL/dp`. Iterations with
    this column left out have the same solution for exact torques, but need not converge, and scatter more than their
    intervals say.
    """
    layout = samples.layout
    if not layout.by_load:
        return samples.chunks()
    mu = np.nan_to_num(layout.joint_values(parameters)["load"])
    motion = samples.q, samples.v, samples.a
    sign = np.sign(frictionless_torque(_model(samples, parameters), *motion, samples.joints))
    *_, direction = friction_columns(samples.u, 1.0, samples.shape.friction_velocity, samples.shape.stribeck_velocity)
    slope = mu * sign * np.asarray(direction)
    transmitted = np.array([POSITIVE[k] in ("armature", "spring") for k, _ in layout.positive], bool)
    transmitted = np.concatenate([np.ones(10 * layout.nb), transmitted, np.zeros(len(layout.offsets))])

    def extra(samples: np.ndarray, B: np.ndarray) -> np.ndarray:
        columns = slope[samples][..., None] * transmitted * B[..., :-2]
        # They do not change the residual at the given parameters.
        return np.concatenate([columns, np.zeros_like(B[..., :1]), (columns @ parameters)[..., None]], axis=-1)

    return samples.chunks(extra)


def _model(samples: Samples, parameters: np.ndarray) -> Model:
    return with_parameters(samples, parameters, np.ones(samples.layout.nv))[0]


def _root_mean_square(x: np.ndarray) -> np.ndarray:
    """The root mean squares `[nv]` of residuals `[n, nv]`, of which those that are zero were not recorded."""
    return np.sqrt(np.sum(x**2, axis=0) / np.maximum(np.count_nonzero(x, axis=0), 1))


def _prior(prior: BodyInertia | ArrayLike | None, linear: np.ndarray, frame: str) -> np.ndarray:
    """The parameters `[10]` of the prior; see `identify_payload`."""
    if prior is None:
        m, h = (linear[0], linear[1:4]) if linear[0] > 0 else (0.1, np.zeros(3))
        prior = BodyInertia(m, h / m if np.linalg.norm(h) < m else np.zeros(3), np.full(3, m * 0.1**2))
    return leaves.physical_parameters(prior, f"the prior of the payload at {frame!r}")


def _mass_properties(phi):
    """Mass, center of mass, and inertia about it, `[10]`, from parameters about the origin."""
    phi = jnp.asarray(phi)
    c = phi[1:4] / phi[0]
    about_center = transform_inertial_parameters(phi, jnp.concatenate([-c, jnp.array([1.0, 0, 0, 0])]))
    return jnp.concatenate([phi[:1], c, about_center[4:]])
