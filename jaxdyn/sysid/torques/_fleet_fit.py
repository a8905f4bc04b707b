"""Many robots of one structure identified at once, each from a recording of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, ModelError
from jaxdyn._types import Array, Float
from jaxdyn.simulate.integrators._step import Integrator, checked_scheme
from jaxdyn.sysid.parameters._block import model_of
from jaxdyn.sysid.parameters._parametrization import Parametrization
from jaxdyn.sysid.recordings._recording import Recording
from jaxdyn.sysid.rollouts._shooting import (
    CONVERGED,
    RUNNING,
    ShootingProblem,
    ShootingState,
    first_state,
    levenberg_marquardt,
    linearized,
    segments_of,
)


class FleetFit(NamedTuple):
    """Robots identified together."""

    robot: Any
    """Identified, with a leading axis `[robots]`."""
    free: np.ndarray
    """`[robots, P]`"""
    cost: np.ndarray
    """`[robots]`: half of the sums of squares."""
    converged: np.ndarray
    """`[robots]` of bool."""
    iterations: np.ndarray
    """`[robots]`"""


def fit_fleet(
    parametrization: Parametrization,
    q: Float[Array | np.ndarray, "robots samples nq"],
    v: Float[Array | np.ndarray, "robots samples nv"],
    tau: Float[Array | np.ndarray, "robots samples nv"],
    dt: float,
    *,
    segment: float,
    position_noise: float,
    velocity_noise: float,
    matching: float = 1.0,
    prior_weight: float = 0.0,
    integrator: Integrator = "rk4",
    substeps: int = 1,
    max_iterations: int = 50,
    tolerance: float = 1e-6,
    chunk: int = 128,
    report: Callable[[int, int], None] | None = None,
) -> FleetFit:
    """`fit_rollouts` for many robots of one structure at once, by `jax.vmap` over recordings and models.

    Every robot has its own damping and accepts its own steps. One that is done leaves its place to the next: those that
    take many steps hold up none but the last.

    **Arguments**

    - `parametrization`: one for all, or one for each robot, whose references have a leading axis `[robots]`
      (`equinox.filter_vmap(lambda model: Parametrization(model, ...))(models)`).
    - `q`, `v`, `tau`: measured every `dt` (s); the mean of two torques acts between their samples.
    - `chunk`: robots at a time, which bounds the memory of a step.
    - `max_iterations`: of each robot.
    - `report`: called after every step with the number of robots that are done with and the number of steps.
    - the others as in `fit_rollouts`.

    **Raises** `DataError`, `ModelError`.
    """
    checked_scheme(integrator, substeps, False)
    q, v, tau = (np.asarray(x) for x in (q, v, tau))
    if q.ndim != 3 or v.ndim != 3 or not q.shape[:2] == v.shape[:2] == tau.shape[:2]:
        raise DataError(f"q, v and tau have shapes {q.shape}, {v.shape}, {tau.shape}; [robots, samples, n] is needed")
    for name, x in (("position_noise", position_noise), ("velocity_noise", velocity_noise), ("matching", matching)):
        if not 0 < x < np.inf:
            raise ModelError(f"{name} is {x}; a positive number is needed")
    robots, samples = q.shape[:2]
    reference = model_of(parametrization.reference)
    own = reference.inertial_parameters.ndim == 3
    if own and reference.inertial_parameters.shape[0] != robots:
        raise ModelError(
            f"the parametrization has references for {reference.inertial_parameters.shape[0]} robots, but there are "
            f"recordings of {robots}"
        )
    one = jax.tree.map(lambda x: x[0], parametrization) if own else parametrization
    t = dt * np.arange(samples)

    def segments(i: int):
        out, *_ = segments_of(model_of(one.reference), (Recording(t, q[i], v[i], None, tau[i]),), segment, "mean")
        return out

    dtype = model_of(one.reference).dtype
    static = ("squares", integrator, substeps)
    numbers = [jnp.asarray(x, dtype) for x in (dt, matching, prior_weight, 1.0)]
    noise = [jnp.full(reference.nv, x, dtype) for x in (position_noise, velocity_noise)]
    width = min(chunk, robots)
    data = jax.tree.map(lambda *x: np.stack([np.asarray(y) for y in x]), *(segments(i) for i in range(robots)))

    def chosen(rows: np.ndarray):
        return _rows(parametrization, rows) if own else parametrization, _rows(data, rows)

    # The last chunk is filled up with repeats, so that one program serves all.
    chunks = [np.minimum(np.arange(begin, begin + width), robots - 1) for begin in range(0, robots, width)]
    first = [_first(*chosen(rows), numbers, noise, static, own) for rows in chunks]
    states = jax.tree.map(lambda *x: np.concatenate(x)[:robots], *first)
    waiting = np.flatnonzero(states.status == RUNNING)
    active, waiting = waiting[:width], waiting[width:]
    steps, rows, now = 0, active[:0], None
    while len(active):
        before, rows = rows, np.resize(active, width)
        if now is None or not np.array_equal(before, rows):
            now = chosen(rows)
        found = _step(*now, numbers, static, own, _rows(states, rows), jnp.asarray(tolerance, dtype))
        steps += 1
        for all_of_them, x in zip(jax.tree.leaves(states), jax.tree.leaves(found), strict=True):
            all_of_them[active] = np.asarray(x)[: len(active)]
        running = (states.status[active] == RUNNING) & (states.iteration[active] < max_iterations)
        more = waiting[: len(active) - int(running.sum())]
        active, waiting = np.concatenate([active[running], more]), waiting[len(more) :]
        if report is not None:
            report(robots - len(active) - len(waiting), steps)
    models = [_robots(chosen(rows)[0], _rows(states, rows), own) for rows in chunks]
    robot = jax.tree.map(lambda *x: jnp.concatenate(x)[:robots], *models)
    return FleetFit(robot, states.free, states.cost, states.status == CONVERGED, states.iteration)


def _rows(tree: Any, rows: np.ndarray) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x[rows]), tree)


def _mapped(function: Callable, own: bool) -> Callable:
    """Over `(parametrization, segments, state)`."""
    return jax.vmap(function, in_axes=(0 if own else None, 0, 0))


def _problem(p, segments, numbers, static) -> ShootingProblem:
    dt, matching, prior_weight, loss_scale = numbers
    loss, integrator, substeps = static
    none = jnp.zeros((segments.linked.shape[0], 0), dt.dtype)
    return ShootingProblem(
        p, segments, dt, matching, prior_weight, loss_scale, loss, integrator, substeps, none, jnp.ones_like(dt)
    )


@eqx.filter_jit
def _first(p, segments, numbers, noise, static, own: bool) -> ShootingState:
    def start(p, segments, _):
        return first_state(_problem(p, segments, numbers, static), jnp.zeros(p.size, numbers[0].dtype), *noise)

    return _mapped(start, own)(p, segments, segments.linked)


@eqx.filter_jit
def _step(p, segments, numbers, static, own: bool, state: ShootingState, tolerance) -> ShootingState:
    def step(p, segments, state):
        problem = _problem(p, segments, numbers, static)
        return levenberg_marquardt(problem, state, linearized(problem, state), tolerance)

    return _mapped(step, own)(p, segments, state)


@eqx.filter_jit
def _robots(p, state: ShootingState, own: bool) -> Any:
    return jax.vmap(lambda p, free: p.model(free), in_axes=(0 if own else None, 0))(p, state.free)
