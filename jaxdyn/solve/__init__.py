"""The convex problem of accelerations under laws of what holds and pushes, and its solution."""

from jaxdyn.solve._convex_problem import Problem, problem_of
from jaxdyn.solve._derivative import Equations, Solution, Unknown, solve
from jaxdyn.solve._listed import ListedTerm, apart
from jaxdyn.solve._matrix_form import Held, MatrixFactors, MatrixForm, mass_matrix
from jaxdyn.solve._newton import Line, first_guess, searcher
from jaxdyn.solve._options import SolverOptions, SolverReport
from jaxdyn.solve._terms import Term, added, forces_of, push_on_dofs, pushes_at
from jaxdyn.solve._tree_form import MovingBodies, TreeForm

__all__ = ["SolverOptions", "SolverReport"]
