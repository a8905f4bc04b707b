"""The options of solvers by samples, their methods, and their splines of controls."""

import abc
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import numpy as np
from scipy.interpolate import make_interp_spline

from jaxdyn._errors import ModelError, require_choice, require_positive_integer
from jaxdyn._types import Array, Float

type Spline = Literal["zero", "linear", "cubic"]

SPLINE_DEGREES = {"zero": 0, "linear": 1, "cubic": 3}


class Gaussian(NamedTuple):
    """A normal distribution of knots with independent components."""

    mean: Float[Array, "knots nu"]
    sigma: Float[Array, "*knots nu"]
    """Standard deviations."""


type SamplingMethod = Callable[[Gaussian, Array, Array, Array], Gaussian]
"""Called as `method(gaussian, samples, costs, best)` with `samples` `[samples, knots, nu]`, their costs, of which at
least one is finite, infinite where a trajectory is not, and the `best` knots `[knots, nu]` so far; returns the
distribution of the next samples."""


class SamplingOptions(eqx.Module):
    """The options that all solvers by samples share. Numbers are leaves: other values do not compile again. **Raises**
    `ModelError` for options that contradict each other."""

    samples: int = eqx.field(default=256, static=True)
    """Number of trajectories in each iteration."""
    max_iterations: Any = 100
    sigma: Any = None
    """Standard deviation of the first samples (of the knots where there are some), in the units of the controls: a
    number, or `[nu]`; by default a quarter of the width of the controls' bounds, 1 where there are none."""
    penalty: Any = 1e3
    """Weight of half the squared violations of constraints; bounds on controls always hold."""
    constraint_tolerance: Any = 1e-3
    """Largest violation of a constraint with which a solve may converge."""
    tolerance: Any = 1e-4
    """An improvement of the cost counts if it is more than this, relative to `1 + |cost|`."""
    patience: Any = 20
    """Iterations without an improvement that counts after which the solve ends."""
    knots: int | None = eqx.field(default=None, static=True)
    """Number of knots of the splines that are drawn; None draws the control of each stage."""
    spline: Spline = eqx.field(default="linear", static=True)
    """`"zero"` (steps), `"linear"` or `"cubic"`, from the first stage to the last."""

    def __check_init__(self):
        require_positive_integer(self.samples, "samples", least=2)
        require_choice(self.spline, SPLINE_DEGREES, "spline")
        degree = SPLINE_DEGREES[self.spline]
        if self.knots is not None and self.knots <= degree:
            raise ModelError(f"knots is {self.knots}, but a {self.spline} spline needs {degree + 1}")

    @abc.abstractmethod
    def method(self, sigma: Float[Array, "nu"]) -> SamplingMethod:
        """The method with these options, for samples that begin with the standard deviation `sigma`."""


def spline_matrix(horizon: int, knots: int | None, spline: Spline) -> np.ndarray:
    """The matrix `[horizon, knots]` from values at knots to the controls of all stages; the identity without knots.

    Knots are spread evenly from the first stage to the last. `"cubic"` is the natural spline.
    """
    if knots is None:
        return np.eye(horizon)
    if knots > horizon:
        raise ModelError(f"{knots} knots are more than the horizon's {horizon} stages")
    if spline == "zero":
        return np.eye(knots)[np.minimum(np.arange(horizon) * knots // horizon, knots - 1)]
    ends = "natural" if spline == "cubic" else None
    interpolant = make_interp_spline(np.arange(knots), np.eye(knots), SPLINE_DEGREES[spline], bc_type=ends)
    return interpolant(np.linspace(0, knots - 1, horizon))
