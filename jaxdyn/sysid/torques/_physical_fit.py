"""Weighted least squares over physical parameters only: Levenberg-Marquardt in re-centered log-Cholesky coordinates."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple, Self

import numpy as np
from scipy.linalg import block_diag, solve_triangular

from jaxdyn._least_squares import Damping, damped_step
from jaxdyn._status import Status
from jaxdyn.model import Model
from jaxdyn.sysid.parameters import cholesky, leaves
from jaxdyn.sysid.torques._deflections import DEFLECTED
from jaxdyn.sysid.torques._intervals import Posterior
from jaxdyn.sysid.torques._layout import DELAYS, POSITIVE, SCALES, Layout, place_positions
from jaxdyn.sysid.torques._recorded_motions import TorqueData
from jaxdyn.sysid.torques._torque_model import Samples, effect_leaves

# A step may change a length by a factor of e at most: farther off, the linearization says nothing.
_LONGEST_STEP = 1.0
# By about this many s a search for delays may be wrong, before the weight of the prior.
_LONGEST_DELAY = 0.03
# The part of a typical length by which positions are expected to be wrong, before the weight of the prior.
_EXPECTED = 0.1
# The predicted decrease of the cost, in units of chi^2, below which the fit has converged.
_TOLERANCE = 1e-4
# Damping multiplies the whole Gauss-Newton matrix: it shortens the step and keeps its direction, so steps in a barrier
# do not depend on the coordinates. Each step starts with light damping again, so a saved fit needs none.
_DAMPING = Damping(most=1e8, trusted=1.0, accepted=1e-4)


class Physical(NamedTuple):
    """A point among the physical parameters. Not unknowns: those are the coordinates of a step away from it.

    NumPy, double precision: matrices of a hundred rows, and derivatives that are simple in closed form, do not repay
    compilation.
    """

    U: np.ndarray
    """`[nb, 4, 4]`: upper-triangular factors of the pseudo-inertias, `J = U U^T`."""
    joints: np.ndarray
    """`[n]`: armatures and frictions, which are positive; offsets, delays, and positions of joints; and inverse drive
    gains, which are positive, too, and not among the parameters."""
    gains: int = 0
    """The number of inverse drive gains."""

    @property
    def size(self) -> int:
        return 10 * len(self.U) + len(self.joints)

    @property
    def scale(self) -> np.ndarray:
        """The inverse drive gains."""
        return self.joints[len(self.joints) - self.gains :]

    def moved(self, x: np.ndarray, unit: np.ndarray) -> Self:
        """The point at the coordinates `x` about this one: ten log-Cholesky coordinates for each body, in the axes and
        units of its present pseudo-inertia; logarithms of positive numbers; others in their `unit` `[n]`, which is 0
        for positive ones."""
        body, shift = np.split(x, [10 * len(self.U)])
        factor, free = cholesky.factor_from_coordinates(body.reshape(-1, 10)), unit > 0
        joints = np.where(free, self.joints + unit * shift, self.joints * np.exp(np.where(free, 0.0, shift)))
        return self._replace(U=self.U @ factor, joints=joints)

    def toward(self, other: Self, part: float) -> Self:
        """The point at this part of the line to another, which is physical as well; scales are this point's."""
        J = (1 - part) * (self.U @ self.U.swapaxes(-1, -2)) + part * (other.U @ other.U.swapaxes(-1, -2))
        n = len(self.joints) - self.gains
        joints = np.concatenate([(1 - part) * self.joints[:n] + part * other.joints[:n], self.scale])
        return self._replace(U=cholesky.pseudo_factor(cholesky.parameters_from_pseudo_inertia(J)), joints=joints)

    def parameters(self) -> np.ndarray:
        """`[P]`, as the torque model has them."""
        inertial = cholesky.parameters_from_pseudo_inertia(self.U @ self.U.swapaxes(-1, -2))
        return np.concatenate([inertial.ravel(), self.joints[: len(self.joints) - self.gains]])

    def tangent(self, unit: np.ndarray) -> np.ndarray:
        """`[P + gains, size]`: the derivative of `parameters`, and of the logarithms of the scales, with respect to the
        coordinates about this point."""
        slopes = self.slopes_of_joints(unit)
        slopes[len(slopes) - self.gains :] = 1.0
        return np.asarray(block_diag(*self.body_tangents(), np.diag(slopes)))

    def body_tangents(self) -> np.ndarray:
        """`[nb, 10, 10]`: the blocks of `tangent` that belong to the bodies: `dJ = U (E + E^T) U^T` for the derivative
        `E` of the log-Cholesky factor at zero."""
        symmetric = cholesky.FACTOR_TANGENT + cholesky.FACTOR_TANGENT.swapaxes(-1, -2)
        U = self.U[:, None]
        return cholesky.parameters_from_pseudo_inertia(U @ symmetric @ U.swapaxes(-1, -2)).swapaxes(-1, -2)

    def slopes_of_joints(self, unit: np.ndarray) -> np.ndarray:
        """The derivatives `[n]` of `joints` by their coordinates."""
        return np.where(unit > 0, unit, self.joints)


class PhysicalProblem(NamedTuple):
    """`1/2 |s (R p + known) - b|^2 + weight D_bodies(p || prior) + effects_weight D_joints(p || prior)`."""

    R: np.ndarray
    """`[rows, P]`."""
    known: np.ndarray
    b: np.ndarray
    row_scale: np.ndarray
    """`[rows, l]`: ones where a row belongs to a degree of freedom with an unknown gain."""
    prior: Physical
    unit: np.ndarray
    """`[n]`: see `Physical.moved`."""
    weight: float
    effects_weight: float

    def with_data(self, data: TorqueData, sigma: np.ndarray, layout: Layout) -> PhysicalProblem:
        """The same with the data, each joint weighted with `1 / sigma`."""
        if layout.gains:
            rows = data.stacked(sigma)
            owner = np.repeat(np.arange(len(data.factors)), data.factors.shape[1])
            R, known, b = rows[:, :-2], rows[:, -2], rows[:, -1]
            row_scale = (owner[:, None] == np.array(layout.gains)).astype(float)
        else:
            # The triangular factor has the samples' sum of squares for every parameter vector, in P + 1 rows.
            T = data.weighted(sigma)
            R, b = T[:, :-1], T[:, -1]
            known, row_scale = np.zeros(len(T)), np.zeros((len(T), 0))
        return PhysicalProblem(R, known, b, row_scale, *self[4:])

    def scales(self, point: Physical) -> np.ndarray:
        """The inverse gains `[rows]`."""
        return np.exp(self.row_scale @ np.log(point.scale))

    def residual(self, point: Physical) -> np.ndarray:
        return self.scales(point) * (self.R @ point.parameters() + self.known) - self.b

    def jacobian(self, point: Physical) -> np.ndarray:
        """`[rows, size]`: the residual's, by the coordinates about `point`."""
        rows, P = self.R.shape
        bodies, out = 10 * len(point.U), np.empty((rows, point.size))
        # `R @ point.tangent(...)`, whose blocks outside of the diagonal are zero.
        by_body = self.R[:, :bodies].reshape(rows, len(point.U), 10).swapaxes(0, 1) @ point.body_tangents()
        out[:, :bodies] = by_body.swapaxes(0, 1).reshape(rows, bodies)
        out[:, bodies:P] = self.R[:, bodies:] * point.slopes_of_joints(self.unit)[: P - bodies]
        if point.gains:
            out *= self.scales(point)[:, None]
            out[:, P:] = (self.residual(point) + self.b)[:, None] * self.row_scale
        return out

    def _joints(self, point: Physical) -> tuple[np.ndarray, np.ndarray]:
        """The shifts of numbers of joints from the prior in their unit, and the ratios of positive ones to it."""
        free = self.unit > 0
        unit, prior = np.where(free, self.unit, np.inf), np.where(free, 1.0, self.prior.joints)
        return (point.joints - self.prior.joints) / unit, np.where(free, 1.0, point.joints) / prior

    def slope(self, point: Physical) -> np.ndarray:
        """`[size]`: the derivative of `divergence` with respect to the coordinates about `point`."""
        bodies = cholesky.divergence_slope(np.linalg.solve(self.prior.U, point.U))
        shift, ratio = self._joints(point)
        return np.concatenate([self.weight * bodies.ravel(), self.effects_weight * (shift + ratio - 1)])

    def divergence(self, point: Physical) -> float:
        """The weighted pull toward the prior: `divergence_of_factor` for each body; for each positive number the same
        in one dimension, and for offsets half their square. Convex in `p`, infinite at the edge of what is physical."""
        bodies = cholesky.divergence_of_factor(np.linalg.solve(self.prior.U, point.U))
        shift, ratio = self._joints(point)
        joints = 0.5 * shift**2 + ratio - np.log(ratio) - 1
        return float(self.weight * bodies.sum() + self.effects_weight * joints.sum())

    def cost(self, point: Physical) -> float:
        return 0.5 * float(np.sum(self.residual(point) ** 2)) + self.divergence(point)

    def metric(self) -> tuple[np.ndarray, np.ndarray]:
        """`[size, size]`, lower `L` with `L L^T` the second derivative of `divergence` with respect to `p`, in the
        coordinates about any point (see `divergence_metric`); and the inverse of `L`."""
        return _metric(len(self.prior.U), self.prior.size, self.weight, self.effects_weight)

    def linearized(self, point: Physical) -> tuple[np.ndarray, np.ndarray]:
        """`A` `[rows, size]` and `b` of the linear least-squares problem `1/2 |A x + b|^2` for a step from `point`. It
        has the (generalized) Gauss-Newton normal equations: with the metric `G = L L^T` of the divergence, `H = Jr^T Jr
        + G` and the gradient `Jr^T r + slope`."""
        L, inverse = self.metric()
        b = np.concatenate([self.residual(point), inverse @ self.slope(point)])
        return np.concatenate([self.jacobian(point), L.T]), b

    def posterior(self, point: Physical) -> Posterior:
        """The covariance at a solution, about the point halfway between the prior and the solution.

        The data's information does not depend on the parameters, but the prior's curvature does: at the solution it
        would be far too large where noise drove a parameter close to zero, or a body close to what is not physical.
        """
        between = point.toward(self.prior, 0.5)
        tangent, metric, A = between.tangent(self.unit), self.metric()[0], self.jacobian(point)
        P = self.R.shape[1]
        A[:, :P] = self.scales(point)[:, None] * (self.R @ tangent[:P, :P])
        both = np.linalg.qr(np.concatenate([A, metric.T]), mode="r").T
        return Posterior(tangent, both, metric, between.parameters())


@functools.lru_cache(maxsize=8)
def _metric(bodies: int, size: int, weight: float, effects_weight: float) -> tuple[np.ndarray, np.ndarray]:
    """See `PhysicalProblem.metric`."""
    L = np.sqrt(weight) * np.linalg.cholesky(cholesky.divergence_metric())
    L = np.asarray(block_diag(*[L] * bodies, np.sqrt(effects_weight) * np.eye(size - 10 * bodies)))
    L.flags.writeable = False
    return L, np.linalg.inv(L)


class PhysicalMinimum(NamedTuple):
    point: Physical
    cost: float
    steps: int
    status: Status


def start_at(model: Model, samples: Samples, weight: float, effects_weight: float) -> PhysicalProblem:
    """The problem whose prior is the model, still without data."""
    layout, torque = samples.layout, samples.torque_scale
    scales = {"armature": samples.acceleration_scale, "viscous": samples.velocity_scale, "load": torque}
    springs = np.maximum(np.array(layout.springs), 0)
    scales["spring"] = np.sqrt(np.mean(samples.q[:, springs] ** 2, axis=0))
    scales |= {kind: samples.deflection_scale(kind) for kind in DEFLECTED}
    change = np.sqrt(np.mean(samples.friction_motion.change**2, axis=0))
    scales |= {"viscous asymmetry": samples.velocity_scale, "warm-up coulomb": change}
    scales["warm-up viscous"] = change * samples.velocity_scale
    held = effect_leaves(model)
    held["static"] = held["coulomb"]
    if model.stiffness is not None:
        held["spring"] = np.asarray(model.stiffness, np.float64)
    searched = dict(zip((*SCALES, *DELAYS), samples.shape, strict=True))
    distance = np.linalg.norm(place_positions(model, leaves.chosen_places(model)).reshape(-1, 3), axis=1)
    typical = np.sqrt(np.mean(distance[distance > 0] ** 2)) if distance.any() else 1.0
    start, unit = [], []
    for kind, j in layout.joints:
        scale = scales.get(kind, np.ones_like(torque))
        scale = np.maximum(scale, 1e-3 * scale.max() or 1.0)
        # A prior that says "none" cannot be meant as a logarithm: 1 % of the torque is nearly none.
        least = 0.01 * torque[j] / scale[j] if kind in POSITIVE else 0.0
        own = held[kind][j] if kind in held else 0.0
        start.append(searched[kind][j] if kind in searched else max(own, least))
        free = kind not in (*POSITIVE, *DELAYS)
        unit.append(0.1 * torque[j] / scale[j] if free else _LONGEST_DELAY if kind in DELAYS else 0.0)
    start += [*place_positions(model, layout.places), *np.ones(len(layout.gains))]
    unit += 3 * len(layout.places) * [_EXPECTED * typical] + len(layout.gains) * [0.0]
    inertias = cholesky.pseudo_factor(np.asarray(model.inertial_parameters, np.float64))
    prior = Physical(inertias, np.array(start, np.float64), len(layout.gains))
    empty = np.zeros((0, layout.size)), np.zeros(0), np.zeros(0), np.zeros((0, len(layout.gains)))
    return PhysicalProblem(*empty, prior, np.array(unit, np.float64), weight, effects_weight)


def minimize(
    problem: PhysicalProblem,
    point: Physical,
    max_iterations: int,
    report: Callable[[int, float, float], None] | None = None,
    tolerance: float = _TOLERANCE,
) -> PhysicalMinimum:
    """The minimum of the problem's cost, from `point`. `report` gets the number, cost and expected decrease of each
    step. `tolerance`: the predicted decrease of the cost, in units of chi^2, below which it ends.

    The cost is convex in `p` (where no gain is unknown), and the coordinates are a smooth one-to-one map onto the
    physical `p`: its only stationary point is the global minimum. Near the edge of what is physical, coordinates about
    the *start* become a bent, ever narrower valley (thousands of steps were seen); about the *present* point they are
    as round as the barrier is, and tens of steps do.
    """
    zero = np.float64(0.0)
    state = _Descent(np.float64(problem.cost(point)), zero, zero, np.int64(0), np.int64(Status.RUNNING), point)
    for step in range(1, max_iterations + 1):
        R = np.linalg.qr(np.column_stack(problem.linearized(state.point)), mode="r")[: point.size]
        # The undamped step, and the decrease of the cost that it promises.
        x, expected = -solve_triangular(R[:, :-1], R[:, -1], check_finite=False), 0.5 * float(np.sum(R[:, -1] ** 2))
        if not (np.isfinite(x).all() and np.isfinite(state.cost)):
            return PhysicalMinimum(state.point, float(state.cost), step, Status.DIVERGED)
        if report is not None:
            report(step, float(state.cost), expected)
        longest = float(np.abs(x).max()) / _LONGEST_STEP
        trial = functools.partial(_trial, problem, state, x, longest, expected)
        state, start = dataclasses.replace(state, damping=_first_damping(longest, expected, tolerance)), state.cost
        while state.status == Status.RUNNING and state.cost == start:
            state = damped_step(state, trial, _DAMPING, absolute=tolerance)
        if state.status != Status.RUNNING:
            return PhysicalMinimum(state.point, float(state.cost), step, Status(int(state.status)))
    return PhysicalMinimum(state.point, float(state.cost), max_iterations, Status.OUT_OF_ITERATIONS)


@dataclasses.dataclass(frozen=True)
class _Descent:
    """The state of `minimize`; see `Iterate`."""

    cost: np.float64
    expected: np.float64
    damping: np.float64
    iteration: np.int64
    status: np.int64
    point: Physical


def _first_damping(longest: float, expected: float, tolerance: float) -> np.float64:
    """The damping that a step begins with. All that leave it at the longest step that is allowed are alike, so it is
    the largest of these, unless the step may end the search."""
    damping = _DAMPING.first
    while expected > tolerance and 1 + _DAMPING.grow * damping <= longest:
        damping *= _DAMPING.grow
    return np.float64(damping)


def _trial(
    problem: PhysicalProblem, state: _Descent, x: np.ndarray, longest: float, expected: float, damping: float
) -> _Descent:
    fraction = 1 / max(1 + damping, longest)
    point = state.point.moved(fraction * x, problem.unit)
    promised = fraction * (2 - fraction) * expected
    return dataclasses.replace(state, point=point, cost=np.float64(problem.cost(point)), expected=np.float64(promised))
