"""Options of fits to roll-outs, and what a fit reports after each step."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple

from jaxdyn._errors import require_choice, require_positive, require_positive_integer
from jaxdyn.simulate.integrators import Integrator, require_integrator
from jaxdyn.sysid.rollouts._shooting import LossName, ShootingState


@dataclasses.dataclass(frozen=True)
class RolloutFitOptions:
    """Options of `fit_rollouts` and `fit_fleet`. **Raises** `ModelError` for a value out of range."""

    matching: float | None = 1.0
    """Standard deviation of the defects between segments, in units of the noise: small values trust the model, larger
    ones let it err. 0: segments are joined exactly, by the method of multipliers, as one roll-out of each recording.
    None: segments are independent. Without velocity noise, it is the positions' over the duration of a segment."""
    prior_weight: float = 0.0
    """Weight of the parametrization's `divergence` from its reference."""
    loss: LossName = "squared"
    """`"huber"` (smooth here: the pseudo-Huber loss) and `"cauchy"` count residuals beyond `loss_scale` less."""
    loss_scale: float = 3.0
    """Scale of the loss, in units of the noise."""
    zero_deviation: float | None = None
    """Standard deviation of the position sensors' zeros, rad or m, which are then unknown for each recording and degree
    of freedom, as of encoders that are set to zero where the robot came to rest. None: the zeros are right."""
    hold: Literal["mean", "start"] = "mean"
    """Torque between two samples: their mean, or that of the earlier one (a command that is held). The controls of a
    world are always held."""
    integrator: Integrator | None = None
    """Integrator, as in `rollout`; a step lasts from a sample to the next. None: `"rk4"`; a world has its own."""
    substeps: int = 1
    """Equal steps of the integrator from a sample to the next; worlds have their own time step."""
    rounds: int = 1
    """Largest number of fits; after each but the last, the noise is estimated from the residuals."""
    max_iterations: int = 100
    """Number of steps in all."""
    tolerance: float = 1e-6
    """The fit ends where a step promises to lower the cost by less than this part of it, and where the step without
    damping is shorter than 0.03 standard errors in every direction (`RolloutFit.step_left`)."""

    def __post_init__(self):
        require_integrator(self.integrator or "rk4", self.substeps)
        require_choice(self.loss, ("squared", "huber", "cauchy"), "loss")
        require_choice(self.hold, ("mean", "start"), "hold")
        require_positive(self.loss_scale, "loss_scale (in units of the noise)")
        for name in ("rounds", "max_iterations"):
            require_positive_integer(getattr(self, name), name)
        for name in ("prior_weight", "tolerance"):
            require_positive(getattr(self, name), name, zero=True)
        if self.matching is not None:
            require_positive(self.matching, "matching (in units of the noise, or None)", zero=True)
        if self.zero_deviation is not None:
            require_positive(self.zero_deviation, "zero_deviation (rad or m, or None)")


class RolloutStep(NamedTuple):
    """Progress of a fit, reported after every step."""

    iteration: int
    round: int
    cost: float
    """Half of the sum of squares that is minimized."""
    expected_decrease: float
    """Decrease of the cost that the step promised."""
    state: ShootingState
    """State from which `fit_rollouts(..., state=...)` continues: a pytree of arrays, to be saved."""
