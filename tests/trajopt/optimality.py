"""The judge of solutions that experiments and tests share."""

import numpy as np

from experiments._optimal_control._optimality import Optimality, stationarity
from jaxdyn.trajopt import Problem, Solution, Status


def assert_optimal(problem: Problem, solution: Solution) -> Optimality:
    """Require that a solution in double precision converged and meets the first-order conditions; returns how well."""
    assert solution.status == Status.CONVERGED, solution.message
    judged = stationarity(problem, solution)
    assert judged.residual < 1e-5, judged
    # The solver's own tolerances are relative to the sizes of constraints and states, which differ between problems.
    size = 1 + np.abs(solution.xs).max() + np.abs(solution.us).max()
    assert judged.violation <= 1e-6 * size, judged
    assert judged.gap <= 1e-6 * size, judged
    return judged
