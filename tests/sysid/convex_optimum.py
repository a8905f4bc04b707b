"""The physically consistent fit as a convex program; an interior-point method finds the cost that it must reach."""

import numpy as np
import pytest

from jaxdyn.sysid import pseudo_inertia
from jaxdyn.sysid.torques._physical_fit import PhysicalProblem


def convex_optimum(problem: PhysicalProblem) -> float:
    """The least `1/2 |R p - b|^2 + weight D_bodies + effects_weight D_joints` over semidefinite pseudo-inertias
    (Wensing, Kim & Slotine 2018) and positive joint parameters, for a problem without unknown gains."""
    cp = pytest.importorskip("cvxpy")
    prior, free = problem.prior, problem.unit > 0
    positive, unit = prior.joints[~free], problem.unit[free]
    # The unknowns are in units of the prior, to suit the solver's tolerances: J = U W U^T, joints = prior * ratio.
    bodies = [cp.Variable((4, 4), PSD=True) for _ in prior.U]
    ratio, offset = cp.Variable(len(positive)), cp.Variable(len(unit))
    # The pseudo-inertia's linear map to the ten parameters, column by column.
    to_J = np.stack([np.asarray(pseudo_inertia(e)) for e in np.eye(10)]).reshape(10, 16)
    to_p = np.linalg.pinv(to_J).T
    inertial = [to_p @ np.kron(U, U) @ cp.vec(W, order="C") for U, W in zip(prior.U, bodies, strict=True)]
    p = cp.hstack([*inertial, cp.multiply(positive, ratio), cp.multiply(unit, offset)])
    cost = 0.5 * cp.sum_squares(problem.R @ p - problem.b)
    for W in bodies:
        cost += problem.weight * (cp.trace(W) - cp.log_det(W) - 4)
    cost += problem.effects_weight * (cp.sum(ratio - cp.log(ratio) - 1) + 0.5 * cp.sum_squares(offset))
    return cp.Problem(cp.Minimize(cost)).solve(solver=cp.CLARABEL)
