"""Identification of a payload from recordings without and with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn import _printing as printing
from jaxdyn._errors import DataError, ModelError, naming_arguments, require_positive, require_positive_integer, warn
from jaxdyn._status import Status
from jaxdyn._types import ArrayLike
from jaxdyn._waits import saying
from jaxdyn.model import BodyInertia, Model
from jaxdyn.spatial import inertia_matrix, transform_inertial_parameters
from jaxdyn.sysid.parameters import cholesky, leaves
from jaxdyn.sysid.recordings import Recordings, RecordingWarning, as_recordings, signals
from jaxdyn.sysid.torques._effect_search import effect_shape
from jaxdyn.sysid.torques._effects import JointEffects
from jaxdyn.sysid.torques._fit_weights import least_norm_solution
from jaxdyn.sysid.torques._intervals import Intervals, Posterior, normal_intervals
from jaxdyn.sysid.torques._layout import INERTIAL_NAMES, Layout
from jaxdyn.sysid.torques._physical_fit import Physical, PhysicalProblem, minimize
from jaxdyn.sysid.torques._residual_causes import LEAST_PART, LEAST_STATISTIC
from jaxdyn.sysid.torques._residual_noise import Correlation, SlopeNoise
from jaxdyn.sysid.torques._torque_model import (
    EffectShape,
    Samples,
    require_effects_of_state,
    require_known_lengths,
    with_parameters,
)


class PayloadFit(NamedTuple):
    """An identified payload, in the axes of a frame."""

    frame: str
    parameters: np.ndarray
    """`[10]`: its inertial parameters about the frame's origin: kg, kg m, kg m^2. Physical."""
    mass: float
    """kg."""
    center_of_mass: np.ndarray
    """`[3]`, m, in the frame."""
    inertia: np.ndarray
    """`[3, 3]`, kg m^2, about the center of mass, in the axes of the frame."""
    intervals: Intervals
    """Intervals of the mass, the center of mass and the inertia about it (`mass, cx, cy, cz, Ixx, ...`). Those of the
    mass and of `Ixx`, `Iyy`, `Izz` are symmetric in the logarithm, so that they are positive."""
    model: Model
    """The given model with the payload at the frame (as by `with_payload`, without a name)."""
    unconstrained: np.ndarray
    """`[10]`: the parameters by linear least squares, of least norm, physical or not."""
    rms_error: tuple[np.ndarray, np.ndarray]
    """`[nv]` each: root mean square of the residual torques without and with the payload, N m or N."""
    rms_unexplained: np.ndarray
    """`[nv]`: the same with the payload, if the model ignored it."""
    correlation: np.ndarray
    """`[nv]`: the number of samples with similar residuals, neighbors or a period of the motion apart; they count as
    one where joints are weighted."""
    status: Status

    @property
    def converged(self) -> bool:
        """Whether `status` is `Status.CONVERGED`."""
        return self.status == Status.CONVERGED

    def printed(self) -> printing.Facts:
        """The facts that `print` shows: the mass, the center of mass and the inertia with their intervals."""
        found, level = printing.intervals(self.intervals, 10), printing.percent(self.intervals.level)
        ellipsis = {name: found[name] for name in ("Ixx", "Iyy", "Izz")}
        facts = {"mass, kg": found["mass"], **{f"center {x[1]}, m": found[x] for x in ("cx", "cy", "cz")}}
        facts |= {f"{name}, kg m^2": x for name, x in ellipsis.items()}
        before, after = self.rms_error
        facts["residual"] = f"{printing.numbers(before)} without, {printing.numbers(after)} with it, N m or N"
        facts["gains"] = "taken as right: a drive gain wrong by a part makes masses and inertias wrong by that part"
        return f"{printing.status(self.status)}; at {self.frame!r}, intervals of {level}", facts

    __repr__, __str__, _repr_html_ = printing.one_line, printing.text, printing.table


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
    require_effects_of_state(joint_effects, "identify_payload")
    effects = joint_effects or JointEffects()
    shape = effect_shape(model, without, effects, friction_velocity)
    placement = np.asarray(model.frame_placement[number], np.float64)
    added = np.zeros((Layout.of(model, effects).size, 10))
    added[10 * body : 10 * body + 10] = transform_inertial_parameters(np.eye(10), placement).T
    samples = PayloadSamples(model, as_recordings(without), as_recordings(with_), effects, shape, added)
    if samples.layout.gains:
        raise DataError("a payload is identified without drive gains, which hide its mass: choose other joint_effects")
    require_positive(prior_weight, "prior_weight", error=DataError)
    require_positive_integer(rounds, "rounds", error=DataError)
    linear = _solve(samples, rounds)
    robot, unconstrained = np.split(linear.parameters, [samples.layout.size])
    for doubt in _doubts(samples, linear):
        warn(doubt, RecordingWarning)
    T = linear.equations
    start = Physical(cholesky.pseudo_factor(_prior(prior, unconstrained, frame)[None]), np.zeros(0))
    none = np.zeros((len(T), 0))
    problem = PhysicalProblem(T[:, :10], np.zeros(len(T)), T[:, 10], none, start, none[0], prior_weight, 1.0)
    minimum = minimize(problem, start, _MAX_ITERATIONS)
    parameters = minimum.point.parameters()
    properties = np.asarray(_mass_properties(parameters), np.float64)
    slope = np.asarray(jax.jacfwd(_mass_properties)(jnp.asarray(parameters)), np.float64)
    bare, loaded = samples.without_and_with(samples.residuals_at(robot, parameters))
    ignored = samples.residuals_at(robot, np.zeros(10))
    errors = problem.posterior(minimum.point).errors(slope, linear.score_factors)
    return PayloadFit(
        frame=frame,
        parameters=parameters,
        mass=float(properties[0]),
        center_of_mass=properties[1:4],
        inertia=inertia_matrix(properties),
        intervals=normal_intervals(_NAMES, properties, *errors, level, positive=_POSITIVE),
        model=model.with_payload(frame, parameters),
        unconstrained=unconstrained,
        rms_error=(_root_mean_square(bare), _root_mean_square(loaded)),
        rms_unexplained=_root_mean_square(samples.without_and_with(ignored)[1]),
        correlation=linear.correlation,
        status=minimum.status,
    )


class PayloadSamples(Samples):
    """Samples of motions without and with a payload. The columns of the payload's parameters stand after the robot's,
    and are zero where it is not carried. Friction in proportion to the load is linear in all parameters."""

    def __init__(self, model: Model, without, with_, effects: JointEffects, shape: EffectShape, added: np.ndarray):
        """`added` `[P, 10]`: the robot's parameters for one unit of each of the payload's."""
        super().__init__(model, (*without, *with_), effects, shape)
        self.added = added
        self.names += [f"{x}(payload)" for x in INERTIAL_NAMES]
        self.carried = np.arange(len(self)) >= self.lengths[: len(without)].sum()
        """`[len(self)]`: whether an equation is of a motion with the payload."""
        self._carrying = np.arange(len(self.q)) >= self.starts[len(without)]
        # The robot's parameters about which load friction is linear, without and with the payload.
        self._about = 2 * [np.zeros(self.layout.size)]

    def without_and_with(self, equations: np.ndarray) -> list[np.ndarray]:
        """Values `[len(self), ...]` of the motions without the payload, and of those with it."""
        return [equations[~self.carried], equations[self.carried]]

    def residuals_at(self, robot: np.ndarray, payload: np.ndarray) -> np.ndarray:
        """The residuals at parameters `[P]` and `[10]`, about which load friction is linear from now on: it grows with
        the torques that the robot with these parameters transmits."""
        if self.layout.by_load:
            transmitted, self._about = np.zeros_like(self.tau), [robot, robot + self.added @ payload]
            for rows, p in zip((~self._carrying, self._carrying), self._about, strict=True):
                model, _ = with_parameters(self, p, np.ones(self.layout.nv))
                transmitted[rows] = self.frictionless_torque(model)[rows]
            self.take_transmitted(transmitted)
        return self.residuals(np.concatenate([robot, payload]))

    def low_passed_columns(self, part: int, samples: np.ndarray, low_pass: signals.Decimation) -> np.ndarray:
        if not self.layout.by_load:
            B = super().low_passed_columns(part, samples, low_pass)
        else:
            B = np.concatenate([self.regressor(samples), self.joint_columns(samples)], axis=-1)
            B = low_pass.apply(B + self.friction_on_drives(samples, self._slopes_by_load(samples, B)))
        columns = float(self._carrying[samples[0]]) * (B[..., :-2] @ self.added)
        return np.concatenate([B[..., :-2], columns, B[..., -2:]], axis=-1)

    def _slopes_by_load(self, samples: np.ndarray, B: np.ndarray) -> np.ndarray:
        """Return what makes load friction `mu |L| s` linear in all parameters, when added to columns `B` of samples.

        Its column for a parameter on which the transmitted torque `L` depends is `mu sign(L) s dL/dp`. Iterations with
        this column left out have the same solution for exact torques, but need not converge, and scatter more than
        their intervals say.
        """
        layout, about = self.layout, self._about[int(self._carrying[samples[0]])]
        mu = np.nan_to_num(layout.joint_values(about)["load"])
        slope = mu * np.sign(self.transmitted[samples]) * self.friction_motion.direction[samples]
        moved = np.array(10 * layout.nb * [True] + [kind in ("armature", "spring") for kind, _ in layout.joints])
        columns = slope[..., None] * moved * B[..., :-2]
        # They do not change the residual at the present parameters.
        unchanged = (columns @ about)[..., None]
        return np.concatenate([columns, np.zeros_like(unchanged), unchanged], axis=-1)


class _LinearPayload(NamedTuple):
    """The robot and the payload by linear least squares."""

    parameters: np.ndarray
    """`[P + 10]`: the robot's, of least norm, and the payload's."""
    residuals: np.ndarray
    """`[n, nv]`"""
    correlation: np.ndarray
    """`[nv]`: see `PayloadFit`."""
    fitted_share: np.ndarray
    """`[nv]`: the part of the independent samples that parameters fit; 0 where the torques are exact."""
    equations: np.ndarray
    """`[10, 11]`: the equations `[T, z]` for the payload that remain when the robot's parameters are eliminated."""
    score_factors: tuple[np.ndarray, ...]
    """`[k, 10]` each: estimates `K` for which `K^T K` is the covariance of the slope with respect to the payload, with
    the robot's parameters at their best."""


def _solve(samples: PayloadSamples, rounds: int) -> _LinearPayload:
    """Solve by least squares, and estimate each joint's noise from the residuals, `rounds` times. With load friction,
    each round is a Gauss-Newton step."""
    P, nv, sigma, (data,) = samples.layout.size, samples.layout.nv, samples.torque_scale, samples.compressed()
    floor = 1e-9 * sigma
    for k in range(rounds + 1):
        R = data.weighted(sigma)
        parameters, base = least_norm_solution(samples, R)
        residuals = samples.residuals_at(*np.split(parameters, [P]))
        covariance = Posterior(np.eye(P + 10)[:, base.independent], np.linalg.qr(R[:, base.independent], mode="r").T)
        root = covariance.covariance_root()
        if k == rounds:
            break
        # Correlation counts at the end only: before, it would give little weight to a joint because its residuals are
        # alike, and they would stay alike because the joint has little weight.
        last = k == rounds - 1
        alike = Correlation.largest(samples.without_and_with(residuals)) if last else Correlation(*np.ones((3, nv)))
        # The trace of each joint's part of the matrix that takes measured to fitted torques: how many parameters its
        # samples determine.
        fitted = np.sum((data.factors[..., :-2] / sigma[:, None, None] @ root) ** 2, axis=(1, 2))
        share = fitted * alike.length / data.samples
        left = np.maximum(1 - share, _LEAST_LEFT)
        # The residuals lack the noise that the parameters fit, which is as slow as the motion.
        correlation = left * alike.length + (1 - left) * alike.span
        noise = _root_mean_square(residuals) * np.sqrt(correlation / left)
        sigma = np.maximum(noise, floor)
        if samples.layout.by_load:
            (data,) = samples.compressed()
    robot = base.independent[base.independent < P]
    rows, n = np.linalg.qr(R[:, [*robot, *range(P, P + 11)]], mode="r"), len(robot)
    # The robot's parameters that minimize |R11 r + R12 p|^2 for the payload's p are -R11^-1 R12 p.
    elimination = np.zeros((P + 10, 10))
    elimination[robot], elimination[P:] = -solve_triangular(rows[:n, :n], rows[:n, n:-1]), np.eye(10)
    # Neither spectra of short lags nor blocks have what recurs much later.
    noisy = SlopeNoise(samples, residuals * np.sqrt(alike.recurrence), sigma, np.ones(nv), root)
    factors = noisy.by_spectra() @ elimination, noisy.by_blocks() @ elimination
    share = np.where(noise > floor, share, 0.0)
    return _LinearPayload(parameters, residuals, correlation, share, rows[n : n + 10, n:], factors)


def _doubts(samples: PayloadSamples, x: _LinearPayload) -> Iterator[str]:
    """Yield what is doubtful about a solution: residuals that are alike over so many samples that few independent ones
    remain; a payload that takes mass away from the robot, beyond what noise explains (the physical fit would end with a
    mass near zero, and a short interval); and gains of the drives that differ from joint to joint and explain a part of
    the residuals (a score test with the derivatives by gains, as of `residual_causes`)."""
    names, share, nv = samples.before.topology.dof_names, x.fitted_share, samples.layout.nv
    few = np.flatnonzero(share > _MUCH_FITTED)
    if len(few):
        j = int(few[np.argmax(share[few])])
        yield (
            f"the residual torques of {[names[k] for k in few]} are alike over many samples (of {names[j]}, over "
            f"{x.correlation[j]:.0f}), so few independent samples remain to estimate the noise from: the parameters "
            f"fit {printing.percent(float(share[j]))} of them, and the intervals are rough. Record for longer, or find "
            "the effect that is missing (joint_effects)"
        )
    inverse = np.linalg.pinv(x.equations[:, :10], rcond=1e-9)
    error = max(float(np.linalg.norm(K @ (inverse @ inverse[0]))) for K in x.score_factors)
    mass, whole = float(x.parameters[-10]), float(np.sum(np.asarray(samples.before.inertial_parameters)[:, 0]))
    if mass < -max(_SURE * error, _LEAST_PART * whole):
        yield (
            f"by least squares the payload has the mass {mass:.3g} kg, with a standard error of {error:.2g} kg: the "
            "robot carries less in the recordings with_ the payload than in those without it. Are the two exchanged? "
            "The mass of the physical fit, and its interval, mean nothing here"
        )
    # Residuals of exact torques are rounding.
    sigma = np.maximum(_root_mean_square(x.residuals) * np.sqrt(x.correlation), 1e-6 * samples.torque_scale)
    B = np.concatenate([B for _, B in samples.chunks()])
    by_gain = (x.residuals + B[..., -1])[..., None] * np.eye(nv)
    A = (np.concatenate([B[..., :-2], by_gain, x.residuals[..., None]], axis=-1) / sigma[:, None]).reshape(
        B[..., 0].size, -1
    )
    A = np.linalg.qr(A, mode="r")
    columns, rest = A[:, :-1] / np.maximum(np.linalg.norm(A[:, :-1], axis=0), 1e-300), A[:, -1]
    fits = (C @ np.linalg.lstsq(C, rest, rcond=1e-9)[0] for C in (columns[:, :-nv], columns))
    before, after = (float(np.sum((rest - fit) ** 2)) for fit in fits)
    part, statistic = 1 - after / max(before, 1e-300), (before - after) / nv
    # Gains that are all alike wrong leave no residuals.
    if part > LEAST_PART and statistic > LEAST_STATISTIC:
        yield (
            f"gains of the drives or torque sensors that are wrong from joint to joint would explain "
            f"{printing.percent(part)} of the residuals (F = {statistic:.3g}): the payload and its intervals hold for "
            "torques in N m and N alone. Calibrate the gains, as by a payload of known mass"
        )


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
