"""What a robot carries, from recordings without and with it."""

from __future__ import annotations

from statistics import NormalDist
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn._errors import DataError, ModelError
from jaxdyn._types import ArrayLike
from jaxdyn.model import BodyInertia, Model
from jaxdyn.model._inertia import moved_parameters
from jaxdyn.sysid.parameters._base_parameters import base_parameters_of
from jaxdyn.sysid.parameters._log_cholesky import (
    inertial_parameters_from_pseudo_inertia,
    is_physical,
    log_cholesky_factor,
    log_cholesky_from_inertial_parameters,
)
from jaxdyn.sysid.torques._effect_search import shape_of
from jaxdyn.sysid.torques._effects import JointEffects
from jaxdyn.sysid.torques._intervals import Intervals
from jaxdyn.sysid.torques._torque_fit import Recordings
from jaxdyn.sysid.torques._torque_model import Samples

_NAMES = ("mass", "cx", "cy", "cz", "Ixx", "Ixy", "Iyy", "Ixz", "Iyz", "Izz")
_STEPS, _TOLERANCE = 100, 1e-6


class PayloadFit(NamedTuple):
    """A rigid body that was carried, in the axes of a frame."""

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
    """Of the mass, the center of mass and the inertia about it (`mass, cx, cy, cz, Ixx, ...`)."""
    model: Model
    """The given model with the payload at the frame (as by `with_payload`, without a name)."""
    unconstrained: np.ndarray
    """`[10]`: the parameters by linear least squares, of least norm, physical or not."""
    rms_error: tuple[np.ndarray, np.ndarray]
    """`[nv]` each: root mean square of the residual torques without and with the payload, N m or N."""
    rms_unexplained: np.ndarray
    """`[nv]`: with the payload, if the robot carried nothing."""
    correlation: np.ndarray
    """`[nv]`: over how many samples the residuals are alike; the intervals count those as one."""
    status: str
    """In words: `"converged"`, or what stopped the search."""


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
    """The inertia of what is fixed at a frame, from motions with it and without it. They need not be the same motions.

    The robot's own parameters, friction and offsets are free in both, and the same; what differs is ten parameters of a
    body at `frame` (Khalil, Gautier & Lemoine, Identification of the payload inertial parameters of industrial
    manipulators, ICRA 2007). So nothing need be known of the robot but its kinematics. The robot's parameters are
    eliminated by QR; the payload's are found by Gauss-Newton steps in log-Cholesky coordinates, so that they are
    physical, weakly pulled toward a prior, which decides what the motion does not excite (see
    `PayloadFit.intervals.prior_share`). The noise of each joint is estimated from its residuals, and counted as many
    times as neighboring residuals are alike, so that filtering does not make intervals narrow.

    **Arguments**

    - `without`, `with_`: one recording or several, with velocities, accelerations and torques, prepared alike.
    - `frame`: where the payload is fixed; a body, a merged link, or a frame, which a joint moves.
    - `joint_effects`, `friction_velocity`: as in `fit_inverse_dynamics`, of the robot; no drive gain, no load friction.
    - `prior`: a `BodyInertia` or ten parameters in the frame; by default a ball with the mass and center of mass of the
      linear solution and a radius of gyration of 0.1 m (where that mass is not positive: 0.1 kg at the origin).

    **Raises** `UnknownNameError` for the frame; `ModelError` for one that is fixed in the world and for a prior that is
    not physical; `DataError` for recordings that do not fit the model.

    The inertial parameters of the payload are `[10]`, about the origin of the frame.
    """
    topology = model.topology
    number = topology.frame(frame)
    body = topology.frame_bodies[number]
    if body < 0:
        raise ModelError(f"frame {frame!r} is fixed in the world: what is there has no effect; give a frame that moves")
    effects = joint_effects or JointEffects()
    shape = shape_of(model, without, effects, friction_velocity)
    empty, loaded = (Samples(model, x, effects, shape) for x in (without, with_))
    layout = empty.layout
    if layout.gains or layout.by_load:
        raise DataError("a payload is identified without drive gains and load friction: choose other joint_effects")
    if not (prior_weight > 0 and rounds >= 1):
        raise DataError(f"prior_weight is {prior_weight} and rounds {rounds}; positive numbers are needed")
    # Columns: the body's parameters for one unit of each of the payload's.
    X = moved_parameters(np.eye(10), np.asarray(model.frame_placement[number], np.float64))
    P, columns = layout.size, slice(10 * body, 10 * body + 10)

    def triangle(sigma: np.ndarray) -> np.ndarray:
        """`[k, P + 11]`: all weighted rows of the robot's parameters, the payload's, and the torque."""
        blocks = []
        for data, carries in zip(data_of, (False, True), strict=True):
            rows = data.stacked(sigma)
            Y, tau = rows[:, :P], rows[:, -1:] - rows[:, -2:-1]
            payload = Y[:, columns] @ X if carries else np.zeros((len(rows), 10))
            blocks.append(np.concatenate([Y, payload, tau], axis=-1))
        return np.linalg.qr(np.concatenate(blocks), mode="r")

    data_of = [x.compressed()[0] for x in (empty, loaded)]
    sigma = np.maximum(empty.torque_scale, loaded.torque_scale)
    floor = 1e-9 * sigma
    names = layout.names(model)
    for _ in range(rounds):
        R = triangle(sigma)
        independent = base_parameters_of(R[:, :P], names, None, layout.nb).independent
        A = np.concatenate([R[:, independent], R[:, P : P + 10]], axis=-1)
        length = np.maximum(np.linalg.norm(A, axis=0), 1e-300)
        solution = np.linalg.lstsq(A / length, R[:, -1], rcond=1e-9)[0] / length
        robot = np.zeros(P)
        robot[independent] = solution[:-10]
        phi = solution[-10:]
        carried = robot.copy()
        carried[columns] += X @ phi
        residuals = [x.residuals(p) for x, p in zip((empty, loaded), (robot, carried), strict=True)]
        alike = np.maximum.reduce([_alike(r) for r in residuals])
        together = np.concatenate(residuals)
        sigma = np.maximum(np.sqrt(np.mean(together**2, axis=0) * alike), floor)
    # The robot's parameters eliminated: |T phi - z|^2 is what is left of the sum of squares.
    R = triangle(sigma)
    r = len(independent)
    T = np.linalg.qr(np.concatenate([R[:, independent], R[:, P:]], axis=-1), mode="r")[r:, r:]
    T, z = T[:10, :10], T[:10, 10]
    start = _prior(prior, phi, frame)
    parameters, status = _physical(T, z, start, prior_weight)
    carried[columns] = robot[columns] + X @ parameters
    bare = np.sqrt(np.mean(loaded.residuals(robot) ** 2, axis=0))
    errors = (np.sqrt(np.mean(x.residuals(p) ** 2, axis=0)) for x, p in ((empty, robot), (loaded, carried)))
    described = np.asarray(_described(jnp.asarray(parameters)), np.float64)
    return PayloadFit(
        frame=frame,
        parameters=parameters,
        mass=float(described[0]),
        center_of_mass=described[1:4],
        inertia=described[[4, 5, 7, 5, 6, 8, 7, 8, 9]].reshape(3, 3),
        intervals=_intervals(T, parameters, prior_weight, level),
        model=model.with_payload(frame, parameters),
        unconstrained=phi,
        rms_error=(next(errors), next(errors)),
        rms_unexplained=bare,
        correlation=alike,
        status=status,
    )


def _alike(residual: np.ndarray) -> np.ndarray:
    """`[nv]`: the integrated autocorrelation, `1 + 2 sum rho_k` up to the first `rho_k` below 0.05."""
    n = len(residual)
    x = residual - residual.mean(axis=0)
    spectrum = np.abs(np.fft.rfft(x, 2 * n, axis=0)) ** 2
    rho = np.fft.irfft(spectrum, axis=0)[: n // 4]
    rho = rho / np.maximum(rho[:1], 1e-300)
    counted = np.cumprod(rho > 0.05, axis=0)
    return np.maximum(1.0, 2 * np.sum(rho * counted, axis=0) - 1)


def _prior(given, phi: np.ndarray, frame: str) -> np.ndarray:
    if given is not None:
        out = np.asarray(given.parameters() if isinstance(given, BodyInertia) else given, np.float64)
        if out.shape != (10,) or not bool(is_physical(out)):
            raise ModelError(f"the prior of the payload at {frame!r} is not physical: {out}")
        return out
    m, h = (phi[0], phi[1:4]) if phi[0] > 0 else (0.1, np.zeros(3))
    c = h / m if np.linalg.norm(h) < m else np.zeros(3)
    about_origin = m * (0.1**2 * np.eye(3) + (c @ c) * np.eye(3) - np.outer(c, c))
    return np.concatenate([[m], m * c, about_origin[[0, 0, 1, 0, 1, 2], [0, 1, 1, 2, 2, 2]]])


def _moved(U, x):
    """The parameters at log-Cholesky coordinates `x` about the pseudo-inertia `U U^T`."""
    V = U @ log_cholesky_factor(x)
    return inertial_parameters_from_pseudo_inertia(V @ V.T)


def _divergence(U0, U, x):
    """`tr(J0^-1 J) - log det(J0^-1 J) - 4` (Lee, Wensing & Park 2020)."""
    W = jax.scipy.linalg.solve_triangular(U0, U @ log_cholesky_factor(x))
    return jnp.sum(W**2) - 2 * jnp.sum(jnp.log(jnp.diagonal(W))) - 4


@jax.jit
def _local(U0, U):
    """At `x = 0` about `U`: parameters, their Jacobian, and gradient and Hessian of the divergence."""
    x = jnp.zeros(10, U.dtype)
    divergence = lambda y: _divergence(U0, U, y)  # noqa: E731
    at_prior = jax.hessian(lambda y: _divergence(U, U, y))(x)
    return _moved(U, x), jax.jacfwd(_moved, 1)(U, x), divergence(x), jax.grad(divergence)(x), at_prior


def _physical(T: np.ndarray, z: np.ndarray, start: np.ndarray, weight: float) -> tuple[np.ndarray, str]:
    """The physical parameters of least `1/2 |T phi - z|^2 + weight D`, by steps about the present point, damped."""
    U0 = U = np.asarray(log_cholesky_factor(log_cholesky_from_inertial_parameters(jnp.asarray(start))), np.float64)
    status = f"stopped after {_STEPS} steps"
    for _ in range(_STEPS):
        phi, jacobian, divergence, slope, metric = (np.asarray(x, np.float64) for x in _local(U0, U))
        r, J = T @ phi - z, T @ jacobian
        H, g = J.T @ J + weight * metric, J.T @ r + weight * slope
        x = -np.linalg.solve(H, g)
        expected = -0.5 * float(g @ x)
        if not np.isfinite(x).all():
            return phi, "diverged"
        if expected < _TOLERANCE:
            status = "converged"
            break
        cost = 0.5 * r @ r + weight * divergence
        fraction = min(1.0, 1.0 / float(np.abs(x).max()))
        while fraction > 1e-8:
            new = U @ np.asarray(log_cholesky_factor(jnp.asarray(fraction * x)), np.float64)
            there = np.asarray(inertial_parameters_from_pseudo_inertia(jnp.asarray(new @ new.T)), np.float64)
            W = solve_triangular(U0, new)
            D = np.sum(W**2) - 2 * np.sum(np.log(np.diagonal(W))) - 4
            if 0.5 * np.sum((T @ there - z) ** 2) + weight * D <= cost - 1e-4 * fraction * expected:
                U = new
                break
            fraction *= 0.5
        else:
            status = "converged" if expected < 1e-3 else f"stalled with an expected decrease of {expected:.2g}"
            break
    return np.asarray(inertial_parameters_from_pseudo_inertia(jnp.asarray(U @ U.T)), np.float64), status


def _described(phi):
    """`[10]`: mass, center of mass, inertia about it, of parameters about the origin."""
    m, c = phi[0], phi[1:4] / phi[0]
    shift = m * ((c @ c) * jnp.eye(3) - jnp.outer(c, c))
    return jnp.concatenate([phi[:1], c, phi[4:] - shift[np.array([0, 0, 1, 0, 1, 2]), np.array([0, 1, 1, 2, 2, 2])]])


def _intervals(T: np.ndarray, phi: np.ndarray, weight: float, level: float) -> Intervals:
    if not 0 < level < 1:
        raise DataError(f"the level of an interval is {level}; a number between 0 and 1 is needed")
    z = NormalDist().inv_cdf(0.5 + 0.5 * level)
    U = log_cholesky_factor(log_cholesky_from_inertial_parameters(jnp.asarray(phi)))
    _, jacobian, _, _, metric = (np.asarray(x, np.float64) for x in _local(U, U))
    J = T @ jacobian
    G = np.asarray(jax.jacfwd(_described)(jnp.asarray(phi)), np.float64) @ jacobian
    both, alone = (
        np.einsum("ik,kl,il->i", G, np.linalg.inv(H), G) for H in (J.T @ J + weight * metric, weight * metric)
    )
    value, error = np.asarray(_described(jnp.asarray(phi)), np.float64), np.sqrt(both)
    return Intervals(_NAMES, value, error, value - z * error, value + z * error, both / alone, level)
