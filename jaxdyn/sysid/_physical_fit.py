"""Weighted least squares over physical parameters only: Levenberg-Marquardt in re-centred log-Cholesky coordinates."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular

from jaxdyn.model import Model
from jaxdyn.sysid._log_cholesky import (
    inertial_parameters_from_pseudo_inertia,
    log_cholesky_factor,
    log_cholesky_from_inertial_parameters,
)
from jaxdyn.sysid._torque_model import TorqueData

# A step may change a length by a factor of e at most: farther off, the linearisation says nothing.
_LONGEST_STEP = 1.0
# The predicted decrease of the cost, in units of chi^2, below which a step is no news.
_TOLERANCE = 1e-4


class Physical(eqx.Module):
    """A point among the physical parameters. Not unknowns: those are the coordinates of a step away from it."""

    U: jax.Array
    """`[nb, 4, 4]`: upper-triangular factors of the pseudo-inertias, `J = U U^T`."""
    joint: jax.Array
    """`[3, nv]`: armature, damping, friction, all positive."""
    offset: jax.Array
    """`[nv]`."""

    def moved(self, x: jax.Array, offset_scale: jax.Array) -> Self:
        """The point at the coordinates `x` `[P]` about this one: ten log-Cholesky coordinates for each body, in the
        axes and units of its present pseudo-inertia; logarithms of armature, damping, friction; offsets."""
        n = 10 * self.U.shape[0]
        joint = x[n:].reshape(4, -1)
        return type(self)(
            U=self.U @ log_cholesky_factor(x[:n].reshape(-1, 10)),
            joint=self.joint * jnp.exp(joint[:3]),
            offset=self.offset + offset_scale * joint[3],
        )

    def parameters(self) -> jax.Array:
        """`[P]`, as the torque model has them."""
        inertial = inertial_parameters_from_pseudo_inertia(self.U @ jnp.swapaxes(self.U, -1, -2))
        return jnp.concatenate([inertial.ravel(), self.joint.ravel(), self.offset])


class PhysicalProblem(NamedTuple):
    """`1/2 |R [p, -1]|^2 + weight D(p || prior)`."""

    R: jax.Array
    prior: Physical
    offset_scale: jax.Array
    weight: jax.Array

    def divergence(self, point: Physical) -> jax.Array:
        """`D`: for each body `tr(J0^-1 J) - log det(J0^-1 J) - 4`, for each positive number the same in one dimension,
        for offsets half their square (the Bregman divergence of `-log det`: Lee, Wensing & Park, Geometric robot
        dynamic identification, T-RO 2020, section IV). Convex in `p`, infinite at the edge of what is physical.
        """
        W = jax.scipy.linalg.solve_triangular(self.prior.U, point.U)
        log_det = 2 * jnp.log(jnp.diagonal(W, axis1=-2, axis2=-1)).sum()
        ratio = point.joint / self.prior.joint
        offset = (point.offset - self.prior.offset) / self.offset_scale
        return jnp.sum(W**2) - log_det - 4 * W.shape[0] + jnp.sum(ratio - jnp.log(ratio) - 1) + 0.5 * jnp.sum(offset**2)


class Step(NamedTuple):
    """Progress of a fit: the round of re-weighting, the step in it, the cost, the decrease it still expected."""

    round: int
    step: int
    cost: float
    expected_decrease: float


class Minimum(NamedTuple):
    point: Physical
    cost: float
    steps: int
    status: str


def start_at(model: Model, data: TorqueData, torque: np.ndarray, weight: float) -> PhysicalProblem:
    """The problem whose prior is the model, still without data. `torque` `[nv]`: the size of each joint's torques."""
    dtype = jnp.result_type(model.dtype, jnp.zeros(()))
    one = np.ones_like(torque)
    motion = [np.maximum(x, 1e-3 * x.max() or 1.0) for x in (data.acceleration_scale, data.velocity_scale, one)]
    # A prior that says "none" cannot be meant as a logarithm: 1 % of the torque is nearly none.
    least = np.stack([0.01 * torque / x for x in motion])
    given = np.stack([np.asarray(x, np.float64) for x in (model.armature, model.damping, model.friction)])
    prior = Physical(
        U=log_cholesky_factor(log_cholesky_from_inertial_parameters(model.inertial_parameters)).astype(dtype),
        joint=jnp.asarray(np.maximum(given, least), dtype),
        offset=jnp.zeros(model.nv, dtype),
    )
    empty = jnp.zeros((0, data.factors.shape[-1]), dtype)
    return PhysicalProblem(empty, prior, jnp.asarray(0.1 * torque, dtype), jnp.asarray(weight, dtype))


def minimise(
    problem: PhysicalProblem, point: Physical, max_steps: int, report: Callable[[int, float, float], None]
) -> Minimum:
    """The minimum of the problem's cost, from `point`.

    The cost is convex in `p`, and the coordinates are a smooth one-to-one map onto the physical `p`: its only
    stationary point is the global minimum. Near the edge of what is physical, coordinates about the *start* become a
    bent, ever narrower valley (thousands of steps were seen); about the *present* point they are as round as the
    barrier is, and tens of steps do.
    """
    metric = _barrier_metric(point)
    weight = float(problem.weight)
    cost = float(_cost(problem, point, jnp.zeros(problem.R.shape[-1] - 1, problem.R.dtype)))
    for step in range(1, max_steps + 1):
        residual, jacobian, slope = (np.asarray(x, np.float64) for x in _linearised(problem, point))
        # The linear least-squares problem whose normal equations are the (generalised) Gauss-Newton ones: with
        # H = Jr^T Jr + weight G, gradient = Jr^T r + weight slope, and G = L L^T.
        A = np.concatenate([jacobian, np.sqrt(weight) * metric.T])
        b = np.concatenate([residual, np.sqrt(weight) * solve_triangular(metric, slope, lower=True)])
        T = np.linalg.qr(np.column_stack([A, b]), mode="r")
        x = -solve_triangular(T[:-1, :-1], T[:-1, -1])
        expected = 0.5 * float(np.sum(T[:-1, -1] ** 2))
        if not (np.isfinite(x).all() and np.isfinite(cost)):
            return Minimum(point, cost, step, "diverged")
        report(step, cost, expected)
        if expected < _TOLERANCE:
            return Minimum(point, cost, step, "converged")
        fraction = min(1.0, _LONGEST_STEP / float(np.abs(x).max()))
        while True:
            new = float(_cost(problem, point, jnp.asarray(fraction * x, problem.R.dtype)))
            if new <= cost - 1e-4 * fraction * expected:
                break
            fraction *= 0.5
            if fraction < 1e-8:
                # The direction descends, so that only rounding can have hidden it.
                rounding = float(np.sqrt(jnp.finfo(problem.R.dtype).eps)) * max(1.0, cost)
                stalled = f"stalled with an expected decrease of {expected:.2g} in a cost of {cost:.6g}"
                return Minimum(point, cost, step, "converged" if expected < rounding else stalled)
        point, cost = _moved(problem, point, jnp.asarray(fraction * x, problem.R.dtype)), new
    return Minimum(point, cost, max_steps, f"out of steps: {max_steps} in one round were too few")


def _barrier_metric(point: Physical) -> np.ndarray:
    """`[P, P]`, lower `L` with `L L^T` the second derivative of `D` by `p`, seen in the coordinates about any point:
    `tr(J^-1 dJ J^-1 dJ) = |E + E^T|^2` for `dJ = U (E + E^T) U^T`, the same everywhere."""
    tangent = np.asarray(jax.jacfwd(log_cholesky_factor)(jnp.zeros(10)), np.float64)
    symmetric = (tangent + tangent.swapaxes(0, 1)).reshape(16, 10)
    L = np.linalg.cholesky(symmetric.T @ symmetric)
    nb, nv = point.U.shape[0], point.offset.shape[0]
    out = np.eye(10 * nb + 4 * nv)
    out[: 10 * nb, : 10 * nb] = np.kron(np.eye(nb), L)
    return out


@eqx.filter_jit
def _linearised(problem: PhysicalProblem, point: Physical):
    """Residual, its Jacobian, and the gradient of the divergence, all by the coordinates about `point`."""
    zero = jnp.zeros(problem.R.shape[-1] - 1, problem.R.dtype)

    def parameters(x):
        return point.moved(x, problem.offset_scale).parameters()

    residual = problem.R[:, :-1] @ parameters(zero) - problem.R[:, -1]
    jacobian = problem.R[:, :-1] @ jax.jacfwd(parameters)(zero)
    slope = jax.grad(lambda x: problem.divergence(point.moved(x, problem.offset_scale)))(zero)
    return residual, jacobian, slope


@eqx.filter_jit
def _cost(problem: PhysicalProblem, point: Physical, x: jax.Array):
    new = point.moved(x, problem.offset_scale)
    residual = problem.R[:, :-1] @ new.parameters() - problem.R[:, -1]
    return 0.5 * jnp.sum(residual**2) + problem.weight * problem.divergence(new)


@eqx.filter_jit
def _moved(problem: PhysicalProblem, point: Physical, x: jax.Array) -> Physical:
    return point.moved(x, problem.offset_scale)
