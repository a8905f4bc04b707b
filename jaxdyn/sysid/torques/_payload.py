"""Identification of a payload from recordings without and with it."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, ModelError, require_positive, require_positive_integer
from jaxdyn._status import Status
from jaxdyn._types import ArrayLike
from jaxdyn.model import BodyInertia, Model
from jaxdyn.spatial import inertia_matrix, transform_inertial_parameters
from jaxdyn.sysid.parameters import cholesky, leaves
from jaxdyn.sysid.recordings import Recordings
from jaxdyn.sysid.torques._base_parameters import base_parameters_of
from jaxdyn.sysid.torques._effect_search import effect_shape
from jaxdyn.sysid.torques._effects import JointEffects
from jaxdyn.sysid.torques._intervals import Intervals, Posterior, posterior_intervals
from jaxdyn.sysid.torques._physical_fit import Physical, PhysicalProblem, minimize, posterior
from jaxdyn.sysid.torques._torque_model import Samples, TorqueData

_NAMES = ("mass", "cx", "cy", "cz", "Ixx", "Ixy", "Iyy", "Ixz", "Iyz", "Izz")
_MAX_ITERATIONS = 100


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
    """Intervals of the mass, the center of mass and the inertia about it (`mass, cx, cy, cz, Ixx, ...`)."""
    model: Model
    """The given model with the payload at the frame (as by `with_payload`, without a name)."""
    unconstrained: np.ndarray
    """`[10]`: the parameters by linear least squares, of least norm, physical or not."""
    rms_error: tuple[np.ndarray, np.ndarray]
    """`[nv]` each: root mean square of the residual torques without and with the payload, N m or N."""
    rms_unexplained: np.ndarray
    """`[nv]`: the same with the payload, if the model ignored it."""
    correlation: np.ndarray
    """`[nv]`: the number of neighboring samples with similar residuals; the intervals count them as one."""
    status: Status

    @property
    def converged(self) -> bool:
        """Whether `status` is `Status.CONVERGED`."""
        return self.status == Status.CONVERGED


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
    `PayloadFit.intervals.prior_share`). The noise of each joint is estimated from its residuals, and correlated
    residuals count as fewer samples, so filters do not make intervals narrow.

    **Arguments**

    - `without`, `with_`: one recording or several, with velocities, accelerations and torques, prepared alike.
    - `frame`: where the payload is fixed; a body, a merged link, or a frame, which a joint moves.
    - `joint_effects`, `friction_velocity`: as in `fit_inverse_dynamics`, without drive gains and load friction.
    - `prior`: a `BodyInertia` or ten parameters in the frame; by default a ball with the mass and center of mass of the
      linear solution and a radius of gyration of 0.1 m (where that mass is not positive: 0.1 kg at the origin).

    **Returns** a `PayloadFit`; its parameters are `[10]`, about the origin of the frame.

    **Raises** `UnknownNameError` for the frame; `ModelError` for one that is fixed in the world and for a prior that is
    not physical; `DataError` for recordings that do not fit the model.
    """
    number = model.topology.frame(frame)
    body = model.topology.frame_bodies[number]
    if body < 0:
        raise ModelError(f"frame {frame!r} is fixed in the world, where a payload has no effect; give a moving frame")
    effects = joint_effects or JointEffects()
    shape = effect_shape(model, without, effects, friction_velocity)
    samples = [Samples(model, x, effects, shape) for x in (without, with_)]
    if samples[0].layout.gains or samples[0].layout.by_load:
        raise DataError("a payload is identified without drive gains and load friction: choose other joint_effects")
    require_positive(prior_weight, "prior_weight", error=DataError)
    require_positive_integer(rounds, "rounds", error=DataError)
    placement = np.asarray(model.frame_placement[number], np.float64)
    runs = _Runs(samples, body, transform_inertial_parameters(np.eye(10), placement).T)
    robot, linear, correlation, T = runs.solve(rounds)
    start = Physical(cholesky.pseudo_factor(_prior(prior, linear, frame)[None]), *np.zeros((3, 0)))
    none = np.zeros((len(T), 0))
    problem = PhysicalProblem(T[:, :10], np.zeros(len(T)), T[:, 10], none, start, none[0], prior_weight, 1.0)
    minimum = minimize(problem, start, _MAX_ITERATIONS, lambda *_: None)
    parameters = minimum.point.parameters()
    properties = np.asarray(_mass_properties(parameters), np.float64)
    _, tangent, *factors = posterior(problem, minimum.point)
    slope = np.asarray(jax.jacfwd(_mass_properties)(jnp.asarray(parameters)), np.float64) @ tangent
    bare, loaded = runs.residuals(robot, parameters)
    return PayloadFit(
        frame=frame,
        parameters=parameters,
        mass=float(properties[0]),
        center_of_mass=properties[1:4],
        inertia=inertia_matrix(properties),
        intervals=posterior_intervals(_NAMES, properties, slope, Posterior(*factors), level),
        model=model.with_payload(frame, parameters),
        unconstrained=linear,
        rms_error=(_root_mean_square(bare), _root_mean_square(loaded)),
        rms_unexplained=_root_mean_square(runs.residuals(robot, np.zeros(10))[1]),
        correlation=correlation,
        status=minimum.status,
    )


class _Runs(NamedTuple):
    """Samples without and with the payload, whose torques are linear in the robot's and the payload's parameters."""

    samples: list[Samples]
    body: int
    X: np.ndarray
    """`[10, 10]`: the body's parameters for one unit of each of the payload's."""

    def solve(self, rounds: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Solve by least squares, and estimate each joint's noise from the residuals, `rounds` times. Returns the
        parameters of the robot `[P]` and of the payload `[10]`, the correlation lengths `[nv]`, and the equations
        `[T, z]` for the payload, `[10, 11]`, that remain when the robot's parameters are eliminated."""
        bare, loaded = self.samples
        layout, P = bare.layout, bare.layout.size
        data = TorqueData.join([self._with_columns(bare, 0 * self.X), self._with_columns(loaded, self.X)])
        sigma = np.maximum(bare.torque_scale, loaded.torque_scale)
        floor = 1e-9 * sigma
        for _ in range(rounds):
            R = data.weighted(sigma)
            independent = base_parameters_of(R[:, :P], layout.names(bare.model)).independent
            A = np.concatenate([R[:, independent], R[:, P:-1]], axis=-1)
            length = np.maximum(np.linalg.norm(A, axis=0), 1e-300)
            solution = np.linalg.lstsq(A / length, R[:, -1], rcond=1e-9)[0] / length
            robot = np.zeros(P)
            robot[independent] = solution[:-10]
            residuals = self.residuals(robot, solution[-10:])
            correlation = np.maximum.reduce([_correlation_length(x) for x in residuals])
            sigma = np.maximum(_root_mean_square(np.concatenate(residuals)) * np.sqrt(correlation), floor)
        R, rank = data.weighted(sigma), len(independent)
        rows = np.linalg.qr(np.concatenate([R[:, independent], R[:, P:]], axis=-1), mode="r")
        return robot, solution[-10:], correlation, rows[rank : rank + 10, rank:]

    def residuals(self, robot: np.ndarray, payload: np.ndarray) -> list[np.ndarray]:
        """The residuals `[n, nv]` without and with the payload."""
        carrying = robot.copy()
        carrying[10 * self.body : 10 * self.body + 10] += self.X @ payload
        return [x.residuals(p) for x, p in zip(self.samples, (robot, carrying), strict=True)]

    def _with_columns(self, samples: Samples, X: np.ndarray) -> TorqueData:
        """The data of samples, with columns for the payload's parameters after the robot's."""
        ((factors, counts),), P = samples.compressed(), samples.layout.size
        columns = factors[..., 10 * self.body : 10 * self.body + 10] @ X
        return TorqueData(np.concatenate([factors[..., :P], columns, factors[..., P:]], axis=-1), counts)


def _root_mean_square(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.mean(x**2, axis=0))


def _correlation_length(residual: np.ndarray) -> np.ndarray:
    """The integrated autocorrelation `[nv]`: `1 + 2 sum rho_k` up to the first `rho_k` below 0.05."""
    n = len(residual)
    x = residual - residual.mean(axis=0)
    spectrum = np.abs(np.fft.rfft(x, 2 * n, axis=0)) ** 2
    rho = np.fft.irfft(spectrum, axis=0)[: n // 4]
    rho = rho / np.maximum(rho[:1], 1e-300)
    counted = np.cumprod(rho > 0.05, axis=0)
    return np.maximum(1.0, 2 * np.sum(rho * counted, axis=0) - 1)


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
