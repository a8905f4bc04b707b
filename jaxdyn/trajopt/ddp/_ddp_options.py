"""The options of differential dynamic programming."""

import dataclasses
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn._errors import ModelError, require_choice, require_positive, require_positive_integer
from jaxdyn.trajopt._history import Progress

_POSITIVE = (
    "tolerance",
    "constraint_tolerance",
    "complementarity_tolerance",
    "decrease_tolerance",
    "max_regularization",
    "time_limit",
)

type Hessian = Literal["gauss_newton", "finishing", "full", "adaptive"]


class DDPOptions(eqx.Module):
    """The options of `ddp`. Numbers are leaves: other values do not compile again. **Raises** `ModelError` for options
    that contradict each other."""

    max_iterations: Any = 500
    """Number of backward passes, over all updates of the multipliers."""
    time_limit: Any = None
    """Time of a solve in s, by the clock of the host. No iteration but the first begins that would end later if it took
    as long as the longest so far, and none tries another regularization when the time is up; the status is then
    `OUT_OF_TIME`. None for no limit."""
    tolerance: Any = None
    """Largest derivative of the Lagrangian by a control at a solution, relative to the size of the terms that cancel in
    it. By default 1e-6 in double and 1e-3 in single precision; at least 1000 roundings. Without constraints,
    6e-7 in double and 2e-3 in single precision are enough where the next step promises no decrease above rounding. With
    constraints, derivatives by controls and states with the solver's own multipliers of the steps are enough there."""
    constraint_tolerance: Any = None
    """Largest violation of a constraint and largest gap at a solution, relative to the size of the constraint's values
    and bounds, and to how far the state moves. By default 1e-7 in double and 1e-4 in single precision."""
    complementarity_tolerance: Any = None
    """Sum of the products of multipliers and distances from bounds at a solution, relative to the cost's scale: how
    much the costs of the stages and of the end differ from their own least values. By default 1e-9 in double and 1e-4
    in single precision."""
    decrease_tolerance: Any = None
    """Decrease that the next step may still promise at a solution of a problem without constraints, relative to the
    cost's scale. By default 1e-9 in double and 1e-6 in single precision."""
    regularization: Any = 1e-9
    """Regularization at the start, and its lower bound, of problems without constraints; relative to the curvatures of
    the costs."""
    max_regularization: Any = 1e9
    """Regularization beyond which a solve is stalled, relative to the same curvatures; of problems with constraints
    relative to the cost's scale."""
    regularize_below: Any = None
    """Step length up to which regularization grows tenfold, in problems without constraints. By default 0.3. With
    `"finishing"` and `"gauss_newton"` it is 0.01, as in Crocoddyl, while gaps are open."""
    sufficient_decrease: Any = None
    """Part of the expected decrease that a step has to reach, in problems without constraints. By default 0.1, as in
    Crocoddyl; for `"adaptive"` and `"full"` 1e-4."""
    second_order_below: Any = None
    """Promised decrease, relative to the cost's scale, below which `"adaptive"` (0.2 by default) and `"finishing"`
    (1e-6 by default) take all second derivatives."""
    hessian: Hessian | None = eqx.field(default=None, static=True)
    """`"gauss_newton"` leaves out second derivatives of costs' residuals, dynamics and constraints (iLQR), `"full"` has
    them (DDP). `"adaptive"` has them near a solution, which takes fewer iterations and a longer compilation;
    `"finishing"` has them by differences of first derivatives for the last few iterations, so that these converge
    quadratically, and, in problems with constraints, where ten iterations have not solved the problem of one barrier
    (25 for `"adaptive"`). Where such a curvature is not positive, Gauss-Newton or regularization takes over. By
    default `"finishing"` for robots, `"adaptive"` for functions."""
    backward: Literal["scan", "associative"] = eqx.field(default="scan", static=True)
    """`"associative"`: a parallel scan, for problems with constraints or without bounds on controls, on devices where a
    short program counts more than few operations; on a CPU it is several times slower."""
    history: int = eqx.field(default=0, static=True)
    """Number of iterations that are recorded in `Solution.history`; none for 0."""
    progress: Progress | None = eqx.field(default=None, static=True)
    """Called on the host after each iteration, as `jaxdyn.trajopt.progress_line`."""
    step_lengths: tuple[float, ...] = eqx.field(default=tuple(0.5**i for i in range(10)), static=True)
    step_lengths_at_once: int = eqx.field(default=1, static=True)
    """Number of step lengths that the line search tries in one batch: more on devices where a few take as long as one;
    on a CPU, two take three times as long."""

    def with_defaults(self, dtype, robot: bool) -> "DDPOptions":
        """The options as arrays, with the defaults for a precision and for a robot or functions."""
        hessian = self.hessian or ("finishing" if robot else "adaptive")
        second_order = hessian in ("adaptive", "full")
        single = float(jnp.finfo(dtype).eps) > 1e-10
        defaults = {
            "second_order_below": 1e-6 if hessian == "finishing" else 0.2,
            "tolerance": 1e-3 if single else 1e-6,
            "constraint_tolerance": 1e-4 if single else 1e-7,
            "complementarity_tolerance": 1e-4 if single else 1e-9,
            "decrease_tolerance": 1e-6 if single else 1e-9,
            "regularize_below": 0.3,
            "sufficient_decrease": 1e-4 if second_order else 0.1,
        }
        missing = {name: value for name, value in defaults.items() if getattr(self, name) is None}
        reals = jax.tree.map(lambda x: jnp.asarray(x, dtype), dataclasses.replace(self, **missing))
        reals = dataclasses.replace(reals, tolerance=jnp.maximum(reals.tolerance, 1e3 * jnp.finfo(dtype).eps))
        return dataclasses.replace(reals, hessian=hessian, max_iterations=jnp.asarray(self.max_iterations))

    @property
    def drops_second_order(self) -> bool:
        """Whether second derivatives are left out far from a solution."""
        return self.hessian in ("adaptive", "finishing")

    def __check_init__(self):
        require_choice(self.hessian, (None, "gauss_newton", "finishing", "full", "adaptive"), "hessian")
        require_choice(self.backward, ("scan", "associative"), "backward")
        n, total = self.step_lengths_at_once, len(self.step_lengths)
        if not total or n < 1 or total % n:
            raise ModelError(f"step_lengths_at_once is {n}, but it must divide the number of step lengths, {total}")
        # Arrays may be traced; Python's numbers are what a user writes.
        if isinstance(self.max_iterations, int | float):
            require_positive_integer(self.max_iterations, "max_iterations")
        if self.history:
            require_positive_integer(self.history, "history")
        for name in _POSITIVE:
            if isinstance(value := getattr(self, name), int | float):
                require_positive(value, name)
