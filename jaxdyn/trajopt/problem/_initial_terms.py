"""Costs and constraints that act on stage 0 alone."""

import jax
import jax.numpy as jnp

from jaxdyn.trajopt.problem._bounded_residuals import Constraint
from jaxdyn.trajopt.problem._costs import AbstractCost


class InitialCost(AbstractCost):
    """A cost that counts at stage 0 alone."""

    cost: AbstractCost

    def value(self, dynamics, x, u, k):
        return self._at_start(self.cost.value(dynamics, x, u, k), k)

    def gauss_newton(self, dynamics, x, u, k):
        return self._at_start(self.cost.gauss_newton(dynamics, x, u, k), k)

    def full(self, dynamics, x, u, k):
        return self._at_start(self.cost.full(dynamics, x, u, k), k)

    @staticmethod
    def _at_start(tree, k):
        return jax.tree.map(lambda a: jnp.where(k == 0, a, jnp.zeros_like(a)), tree)


class InitialConstraint(Constraint):
    """A constraint that acts on stage 0 alone."""

    def bounds(self, r, stage=None, free_start=False):
        low, high = super().bounds(r)
        return jnp.where(stage == 0, low, -jnp.inf), jnp.where(stage == 0, high, jnp.inf)

    @staticmethod
    def of(constraint: Constraint) -> "InitialConstraint":
        """The constraint at stage 0 alone."""
        return InitialConstraint(constraint.residual, constraint.lower, constraint.upper)
