"""Moving-horizon estimation: the most likely states of a window of readings, as a problem of optimal control."""

from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdyn import _printing as printing
from jaxdyn._errors import ModelError, naming_arguments, require_kind, require_positive_integer
from jaxdyn._types import Array, ArrayLike, Bool, Float, leaf_of
from jaxdyn.estimation._covariances import covariance_matrix, inverse_root, solve_covariance, square_root
from jaxdyn.estimation._kalman_filter import controls_of_readings
from jaxdyn.estimation._kalman_step import correct, displacement_rate, propagate
from jaxdyn.estimation._state_space import StateSpaceModel
from jaxdyn.trajopt import (
    AbstractResidual,
    Constraint,
    ControlResidual,
    DDPOptions,
    Linear,
    Problem,
    QuadraticCost,
    Solution,
    StateResidual,
    TimeVarying,
    ddp,
)
from jaxdyn.trajopt.problem import DynamicsAround


class NoiseDynamics(DynamicsAround):
    """The dynamics of a `StateSpaceModel` under known controls, whose control is the noise of the step: first that of
    the control and then that of the state, as far as the model has them, in standard deviations along independent
    directions. `noise` makes them what they are in the model."""

    system: StateSpaceModel
    us: Float[Array, "samples nu_inner"]
    first: Any
    """The number of the stage, in the model's count, at which the window begins."""
    active: Bool[Array, "samples"]
    """Stages with a step; at others the state stays, because the recording has not begun."""
    control_root: Float[Array, "nu_inner nu_inner"] | None
    process_root: Float[Array, "ndx ndx"] | None

    @property
    def inner(self) -> Any:
        """The dynamics of the model."""
        return self.system.dynamics

    @property
    def nu(self) -> int:
        """The number of components of the noise of a step."""
        return sum(len(root) for root in (self.control_root, self.process_root) if root is not None)

    def time(self, k):
        return self.inner.time(k + self.first)

    def require_horizon(self, horizon):
        """Nothing is required: stages are those of the recording, not of the window."""

    def noise(self, w: Float[Array, "nu"]) -> tuple[Any, Any]:
        """The noise of the control and the displacement of the state; None for one that the model does not have."""
        count = 0 if self.control_root is None else len(self.control_root)
        c = None if self.control_root is None else self.control_root @ w[:count]
        return c, None if self.process_root is None else self.process_root @ w[count:]

    def _without_displacement(self, x, w, k):
        c, shift = self.noise(w)
        u = self.us[k] if c is None else self.us[k] + c
        return u, self.inner.step(x, u, k + self.first), shift

    def step(self, x, u, k):
        _, after, shift = self._without_displacement(x, u, k)
        after = after if shift is None else self.integrate(after, shift)
        return jnp.where(self.active[k], after, x)

    def linearize(self, x, u, k, after):
        control, reached, shift = self._without_displacement(x, u, k)
        A, B = self.inner.linearize(x, control, k + self.first, reached)
        slopes = [] if self.control_root is None else [B @ self.control_root]
        if shift is not None and self.process_root is not None:
            if not self.euclidean:
                before = self.integrate_jacobian(reached, shift)
                A, slopes = before @ A, [before @ B for B in slopes]
            rate = displacement_rate(self, reached, self.integrate(reached, shift))
            slopes.append(rate @ self.process_root)
        active = self.active[k]
        return jnp.where(active, A, jnp.eye(self.ndx, dtype=A.dtype)), jnp.where(active, jnp.concatenate(slopes, 1), 0)


class InnovationResidual(AbstractResidual):
    """The innovation of a reading under `NoiseDynamics` in units of its noise: independent components of variance
    one, zero where nothing is observed."""

    of_state: ClassVar[bool] = True
    y: Float[Array, "ny"] = eqx.field(converter=leaf_of("InnovationResidual: `y`"))
    seen: Bool[Array, "m"]
    whitening: Float[Array, "m m"]
    """The inverse of the square root of the noise's covariance."""

    def __call__(self, dynamics, x, u, k):
        return self.linearize(dynamics, x, u, k).value

    def linearize(self, dynamics, x, u, k):
        outer: Any = dynamics
        system, at = outer.system, (x, outer.us[k], k + outer.first)
        y = jnp.where(system.seen_readings(self.seen), self.y.astype(x.dtype), system.measure(*at))
        e, H = system.linearize(*at, y)
        e, H = jnp.where(self.seen, e, 0), jnp.where(self.seen[:, None], H, 0)
        return Linear(self.whitening @ e, -self.whitening @ H, None)


class _Recording(eqx.Module):
    """The readings of a window whose shapes are checked, and the controls at them."""

    us: Float[Array, "samples nu"]
    ys: Float[Array, "samples ny"]
    seen: Bool[Array, "samples m"]
    first: Any
    active: Bool[Array, "samples"]


@naming_arguments
def smoothing_problem(
    model: StateSpaceModel,
    us: Float[Array | np.ndarray, "controls nu"] | None,
    ys: Any,
    x0: Float[Array | np.ndarray, "nx"],
    P0: ArrayLike,
    *,
    observed: ArrayLike | None = None,
    first: ArrayLike = 0,
    stage_constraints: Sequence[Constraint | TimeVarying] = (),
    terminal_constraints: Sequence[Constraint] = (),
    noise_lower: ArrayLike | None = None,
    noise_upper: ArrayLike | None = None,
) -> Problem:
    """The problem of `jaxdyn.trajopt.ddp` whose solution `xs` are the most likely states of a recording.

    Its initial state is free, with the cost of the prior; its controls are the noise of each step, in standard
    deviations (`NoiseDynamics`); the costs of stages are those of the noise of steps and of readings. So the cost is
    the negative logarithm of the density of states and readings, but for a constant.

    - `us`, `ys`, `x0`, `P0`, `observed`: as in `filter`, at least two readings; `P0` must be positive definite.
    - `first`: the number of the stage of the first reading.
    - `stage_constraints`, `terminal_constraints`: as in `Problem`, such as limits that states keep; a constraint has a
      row for each step, and acts on all states.
    - `noise_lower`, `noise_upper`: bounds of the noise in standard deviations, as bounds on controls in `Problem`.

    **Raises** `ShapeError`, `ModelError`; `DataError` for an observed reading that is not finite.
    """
    require_kind(model, StateSpaceModel, "the model")
    x0, P0 = model.prior(x0, P0)
    _require_definite(P0)
    ys, seen = model.join_readings(ys, observed)
    if len(ys) < 2:
        raise ModelError("a problem needs at least two readings; for one, take update")
    us = controls_of_readings(model, us, len(ys)).astype(x0.dtype)
    # Where nothing is observed readings may be NaN, which terms of a problem may not.
    ys = jnp.where(jax.vmap(model.seen_readings)(seen), ys.astype(x0.dtype), 0)
    recording = _Recording(us, ys, seen, jnp.asarray(first), jnp.ones(len(ys), bool))
    terms = {"stage_constraints": tuple(stage_constraints), "terminal_constraints": tuple(terminal_constraints)}
    return _problem(model, recording, x0, P0, terms | {"control_lower": noise_lower, "control_upper": noise_upper})


def _require_definite(P0) -> None:
    if printing.is_concrete(P0) and not np.linalg.eigvalsh(np.asarray(P0, float)).min(initial=1.0) > 0:
        raise ModelError(
            "the covariance of the prior is singular: give what is known exactly a small variance, or bound it by "
            "constraints"
        )


def _problem(model: StateSpaceModel, recording: _Recording, x0, P0, terms: dict[str, Any]) -> Problem:
    d, dtype = model.dynamics, x0.dtype
    roots = [
        None if C is None else square_root(covariance_matrix(C, n, dtype))
        for C, n in ((model.control_noise, d.nu), (model.process_noise, d.ndx))
    ]
    # Sizes and times are properties of the class, but type checkers take them for arguments.
    dynamics = NoiseDynamics(model, recording.us, recording.first, recording.active, *roots)  # type: ignore
    R = covariance_matrix(model.measurement_noise, model.m, dtype)
    whiten = jax.vmap(lambda s: inverse_root(jnp.where(s[:, None] & s, R, jnp.eye(model.m, dtype=dtype))))
    rows = InnovationResidual(recording.ys, recording.seen, whiten(recording.seen))
    before, last = jax.tree.map(lambda a: a[:-1], rows), jax.tree.map(lambda a: a[-1], rows)
    horizon = len(recording.ys) - 1
    return Problem(
        dynamics,
        x0,
        horizon,
        stage_costs=[
            TimeVarying(QuadraticCost(before, jnp.ones(horizon, dtype))),
            QuadraticCost(ControlResidual(), jnp.ones((), dtype)),
        ],
        terminal_costs=[QuadraticCost(last, jnp.ones((), dtype))],
        free_x0=True,
        initial_costs=[QuadraticCost(StateResidual(x0), solve_covariance(P0, jnp.eye(d.ndx, dtype=dtype)))],
        **terms,
    )


class Window(eqx.Module):
    """The memory of a `MovingHorizon` estimator: the last readings, and what is known of the state before them."""

    recording: _Recording
    mean: Float[Array, "nx"]
    """The mean of the first state of the window by the readings before it."""
    covariance: Float[Array, "ndx ndx"]
    xs: Float[Array, "samples nx"]
    """The last estimates, as a guess of the next."""
    ws: Float[Array, "steps nw"]
    """The last noise."""


class MovingHorizon(eqx.Module):
    """An estimator that solves `smoothing_problem` for the last readings, from the shifted last solution.

    Pure functions of arrays, compiled once: `window = estimator.start(x0, P0)`, then at every reading
    `x, window, solution = estimator.step(window, y, u_before)`. A reading that leaves the window goes into the prior
    of the next one (the arrival cost) by the extended Kalman filter: Rao, Rawlings & Mayne, Constrained state
    estimation for nonlinear discrete-time systems, IEEE Trans. Automatic Control 2003, whose approximation is exact for
    linear models without constraints. Works under `jit`, `scan` and `vmap`.
    """

    model: StateSpaceModel
    samples: int = eqx.field(static=True)
    """The number of readings of the window."""
    options: DDPOptions
    terms: dict[str, Any]

    @naming_arguments
    def __init__(
        self,
        model: StateSpaceModel,
        samples: int,
        options: DDPOptions | None = None,
        *,
        stage_constraints: Sequence[Constraint] = (),
        terminal_constraints: Sequence[Constraint] = (),
        noise_lower: ArrayLike | None = None,
        noise_upper: ArrayLike | None = None,
    ):
        """`samples`: the number of readings of the window, at least 2. Constraints and bounds are those of
        `smoothing_problem`. **Raises** `ModelError`."""
        require_kind(model, StateSpaceModel, "the model")
        require_positive_integer(samples, "samples", least=2)
        self.model, self.samples = model, int(samples)
        # As arrays, so that other numbers do not compile again.
        self.options = jax.tree.map(jnp.asarray, DDPOptions() if options is None else options)
        bounds = {"control_lower": noise_lower, "control_upper": noise_upper}
        constraints = {"stage_constraints": stage_constraints, "terminal_constraints": terminal_constraints}
        self.terms = {name: tuple(given) for name, given in constraints.items()}
        self.terms |= {name: None if given is None else jnp.asarray(given) for name, given in bounds.items()}

    @naming_arguments
    def start(self, x0: Float[Array | np.ndarray, "nx"], P0: ArrayLike) -> Window:
        """The window before the first reading, with the prior of the state at it. **Raises** `ShapeError`,
        `ModelError`."""
        model, n = self.model, self.samples
        x0, P0 = model.prior(x0, P0)
        _require_definite(P0)
        us, ys = (jnp.zeros((n, count), x0.dtype) for count in (model.dynamics.nu, model.ny))
        recording = _Recording(us, ys, jnp.zeros((n, model.m), bool), jnp.asarray(-n), jnp.zeros(n, bool))
        problem = _problem(model, recording, x0, P0, self.terms)
        xs, ws = jnp.broadcast_to(x0, (n, len(x0))), jnp.zeros((n - 1, problem.dynamics.nu), x0.dtype)
        return Window(recording, x0, P0, xs, ws)

    @naming_arguments
    def step(
        self,
        window: Window,
        y: Any,
        u_before: ArrayLike | None = None,
        *,
        observed: ArrayLike | None = None,
    ) -> tuple[Float[Array, "nx"], Window, Solution]:
        """The estimate at a new reading `y`, the window with it, and the solution, whose `xs` are the estimates of all
        states of the window.

        `u_before` is the control since the reading before, which the first call ignores; until the next call tells, it
        is also the control at this reading. `observed` is that of `filter`, for one reading. **Raises** `ShapeError`;
        `DataError` for an observed reading that is not finite.
        """
        model, dtype = self.model, window.xs.dtype
        y, seen = model.join_reading(y, observed)
        u = jnp.zeros(model.dynamics.nu, dtype) if u_before is None else model.control(u_before, dtype)
        return self._step(window, y.astype(dtype), seen, u)

    @eqx.filter_jit
    def _step(self, window: Window, y, seen, u) -> tuple[Float[Array, "nx"], Window, Solution]:
        model, old = self.model, window.recording
        us = old.us.at[-1].set(u)

        def leave():
            found = correct(model, window.mean, window.covariance, old.ys[0], old.seen[0], us[0], old.first, 1)
            return propagate(model, found.mean, found.covariance, us[0], old.first)

        mean, P = lax.cond(old.active[0], leave, lambda: (window.mean, window.covariance))

        def shifted(rows, last):
            return jnp.concatenate([rows[1:], jnp.asarray(last, rows.dtype)[None]])

        y = jnp.where(model.seen_readings(seen), y, 0)
        recording = _Recording(
            shifted(us, u), shifted(old.ys, y), shifted(old.seen, seen), old.first + 1, shifted(old.active, True)
        )
        problem = _problem(model, recording, mean, P, self.terms)
        ws = shifted(window.ws, jnp.zeros(problem.dynamics.nu))
        predicted = problem.step(window.xs[-1], ws[-1], problem.horizon - 1)
        xs = shifted(window.xs, predicted)
        solution = ddp(problem, ws, xs, options=self.options)
        after = Window(recording, mean, P, solution.xs, solution.us)
        return solution.xs[-1], after, solution
