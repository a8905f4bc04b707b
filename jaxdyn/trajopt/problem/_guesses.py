"""Trajectories from which solvers start."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from jaxdyn._errors import (
    ModelError,
    ShapeError,
    naming_arguments,
    require_choice,
    require_positive_integer,
    require_shape,
)
from jaxdyn._least_squares import Damping, Iterate, damped_step
from jaxdyn._status import Status
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.algorithms import motion_map, rnea
from jaxdyn.friction import JointFriction
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics, ModelDynamics
from jaxdyn.trajopt.problem._problem import Problem
from jaxdyn.trajopt.problem._wrapped_dynamics import WrappedDynamics

type Timing = Literal["linear", "smooth"]

TIMINGS: dict[str, Callable[[Any], Any]] = {
    "linear": lambda s: s,
    # The polynomial of least jerk from rest to rest (Flash & Hogan, The coordination of arm movements, 1985).
    "smooth": lambda s: s**3 * (10 - 15 * s + 6 * s * s),
}

_DAMPING = Damping(first=1e-3, least=1e-12, most=1e8)
_STEPS = 50


class Guess(NamedTuple):
    """A trajectory to start from, in the order of solvers' arguments: `ddp(problem, *guess)`."""

    us: Float[Array, "horizon nu"]
    xs: Float[Array, "stages nx"]
    """The `horizon + 1` states."""


class _HasTrajectory(Protocol):
    @property
    def us(self) -> Any: ...
    @property
    def xs(self) -> Any: ...


@naming_arguments
def interpolated_guess(
    problem: Problem,
    goal: ArrayLike,
    *,
    stages: Sequence[int] | None = None,
    timing: Timing = "linear",
    velocities: Literal["differences", "interpolated"] = "differences",
    controls: Literal["zeros", "inverse_dynamics"] = "zeros",
) -> Guess:
    """A guess whose states go from `x0` to a goal, or through way points, along geodesics of the states' manifold.

    Its states are no roll-out of its controls in general: give both to a solver that closes gaps, such as `ddp`.

    - `goal`: a state `[nx]`, for robots also a configuration `[nq]`; or way points, `[n, nx]` or `[n, nq]`.
    - `stages`: the stage of each way point, ascending, from 1 to the horizon; by default spread evenly. The last way
      point is held to the end of the horizon.
    - `timing`: along each part `"linear"`, with a constant rate, or `"smooth"`, from rest to rest.
    - `velocities` of robots: `"differences"` of neighboring configurations over `dt`, with which positions have no gaps
      under semi-implicit Euler steps (the velocities of goals do not count), or `"interpolated"`, as the configuration.
    - `controls`: `"zeros"`; or by `"inverse_dynamics"` of a robot along the states, in the least-squares sense where
      the actuation cannot produce the torques. Both are clipped to the controls' bounds.

    **Raises** `ShapeError` for a goal of another length; `ModelError` for other stages and choices, a goal that is not
    finite, and inverse dynamics of other dynamics than `ModelDynamics`.
    """
    require_choice(timing, TIMINGS, "timing")
    require_choice(velocities, ("differences", "interpolated"), "velocities")
    require_choice(controls, ("zeros", "inverse_dynamics"), "controls")
    dynamics, horizon, model = problem.dynamics, problem.horizon, problem.dynamics.robot
    goals = _goals(problem, goal)
    places = np.concatenate([[0], _way_stages(len(goals), horizon, stages)])
    knots = jnp.concatenate([problem.x0[None].astype(problem.dtype), goals])
    numbers = np.arange(horizon + 1)
    part = np.clip(np.searchsorted(places, numbers, side="right") - 1, 0, len(goals) - 1)
    passed = np.clip((numbers - places[part]) / np.diff(places)[part], 0, 1)
    reach = jax.vmap(dynamics.difference)(knots[:-1], knots[1:])
    lengths = jnp.asarray(TIMINGS[timing](passed), problem.dtype)
    xs = jax.vmap(lambda x, dx, s: dynamics.integrate(x, s * dx))(knots[part], reach[part], lengths)
    if model is not None and velocities == "differences":
        q, nq, nv = xs[:, : model.nq], model.nq, model.nv
        xs = xs.at[1:, nq : nq + nv].set(model.difference(q[:-1], q[1:]) / dynamics.dt.astype(xs.dtype))
    if controls == "zeros":
        us = jnp.zeros((horizon, _core(dynamics).nu), problem.dtype)
    else:
        us = _inverse_dynamics(problem, xs)
    return _guess(problem, us, xs)


@naming_arguments
def static_guess(problem: Problem) -> Guess:
    """A guess that holds `x0`: for a robot, its configuration at rest, with the controls that balance gravity, springs
    and constant wrenches there; for other dynamics, with the controls under which a step leads back to `x0`.

    Where no controls within the bounds hold it (an actuation that does not drive all joints), they do so as well as
    possible in the least-squares sense: of the torques for robots, of the displacement otherwise, by a damped
    Gauss-Newton search from zero. States are `x0`, for robots with velocities of zero from stage 1 on; see
    `problem.gaps(guess.xs, guess.us)` for what remains.
    """
    dynamics, model = problem.dynamics, problem.dynamics.robot
    xs = jnp.broadcast_to(problem.x0, (problem.horizon + 1, dynamics.nx)).astype(problem.dtype)
    core = _core(dynamics)
    if model is not None:
        xs = xs.at[1:, model.nq : model.nq + model.nv].set(0)
    if isinstance(core, ModelDynamics):
        resting = xs.at[0].set(xs[1])
        return _guess(problem, _inverse_dynamics(problem, resting), xs)
    x0 = problem.x0.astype(problem.dtype)[: core.nx]

    def hold(k, low, high):
        def rate(u):
            return core.difference(x0, core.step(x0, u, k)) / core.dt.astype(x0.dtype)

        return _least_squares(rate, jnp.zeros(core.nu, x0.dtype), low, high)

    return _guess(problem, jax.vmap(hold)(problem.stages, *_core_box(problem)), xs)


@naming_arguments
def resampled_guess(problem: Problem, trajectory: _HasTrajectory, *, times: ArrayLike | None = None) -> Guess:
    """A guess for a problem with another horizon or time step, from a trajectory of the same kind of dynamics: states
    by interpolation along geodesics, and the controls that acted at the times of the stages.

    - `trajectory`: a `Solution`, a `Guess`, or anything else with states `xs` `[n + 1, nx]` and controls `us`
      `[n, nu]`.
    - `times` `[n + 1]`: the times of its states, s, ascending, with stage 0 at zero; the last state and control are
      held beyond the last time, and what comes after the horizon is left out. By default the trajectory is stretched
      to the duration of the horizon.

    **Raises** `ShapeError`; `ModelError` for times that do not ascend.
    """
    dynamics, horizon = problem.dynamics, problem.horizon
    xs, us = jnp.asarray(trajectory.xs, problem.dtype), jnp.asarray(trajectory.us, problem.dtype)
    n = us.shape[0]
    require_shape(us, (n, dynamics.nu), "us of the trajectory", f"nu = {dynamics.nu} controls for each stage")
    require_shape(xs, (n + 1, dynamics.nx), "xs of the trajectory", "a state more than controls")
    require_positive_integer(n, "the number of controls of the trajectory")
    dt = dynamics.dt.astype(problem.dtype)
    new = dt * jnp.arange(horizon + 1)
    old = jnp.linspace(0, 1, n + 1, dtype=new.dtype) * new[-1] if times is None else jnp.asarray(times, new.dtype)
    require_shape(old, (n + 1,), "times", f"a time for each of the {n + 1} states")
    if not isinstance(old, Tracer) and not (np.diff(np.asarray(old)) > 0).all():
        raise ModelError(f"times must ascend, in s: {old}")
    # The times of two grids that are equal but for rounding count as equal.
    part = jnp.clip(jnp.searchsorted(old, new + 1e-4 * dt, side="right") - 1, 0, n - 1)
    passed = jnp.clip((new - old[part]) / (old[part + 1] - old[part]), 0, 1)
    reach = jax.vmap(dynamics.difference)(xs[part], xs[part + 1])
    states = jax.vmap(lambda x, dx, s: dynamics.integrate(x, s * dx))(xs[part], reach, passed)
    us = jnp.clip(us[part[:-1]], *problem.control_box)
    return Guess(us, _outer_states(dynamics, states, us))


def _goals(problem: Problem, goal: ArrayLike) -> Array:
    """The way points as states, `[n, nx]`."""
    goals = jnp.asarray(goal, problem.dtype)
    if not isinstance(goals, Tracer) and not np.isfinite(np.asarray(goals)).all():
        raise ModelError("the goal has values that are not finite")
    nx, model = problem.dynamics.nx, problem.dynamics.robot
    goals = goals[None] if goals.ndim == 1 else goals
    if goals.ndim == 2 and len(goals) and goals.shape[1] == nx:
        return goals
    if model is not None and goals.ndim == 2 and len(goals) and goals.shape[1] == model.nq:
        rest = jnp.broadcast_to(problem.dynamics.neutral()[model.nq :], (len(goals), nx - model.nq))
        return jnp.concatenate([goals, rest.astype(goals.dtype)], axis=1)
    robot = "" if model is None else f", or [{model.nq}] for a configuration"
    raise ShapeError(
        f"the goal has shape {np.shape(goal)}, but [{nx}] is needed for a state{robot}, with a leading axis for "
        "several way points"
    )


def _way_stages(n: int, horizon: int, stages: Sequence[int] | None) -> np.ndarray:
    if stages is None:
        if n > horizon:
            raise ModelError(f"{n} way points are more than the horizon's {horizon} stages")
        return np.rint(np.arange(1, n + 1) * horizon / n).astype(int)
    places = np.asarray(stages)
    if places.shape != (n,):
        raise ModelError(f"stages has {places.size} numbers, but there are {n} way points")
    ascending = (np.diff(places) > 0).all() and places[0] >= 1 and places[-1] <= horizon
    if not (np.issubdtype(places.dtype, np.integer) and ascending):
        raise ModelError(f"stages is {list(stages)}, but ascending integers from 1 to {horizon} are needed")
    return places


def _core(dynamics: AbstractDynamics) -> Any:
    """The innermost dynamics."""
    inner = getattr(dynamics, "inner", None)
    return dynamics if inner is None else _core(inner)


def _core_box(problem: Problem) -> list[Array]:
    """The bounds of the innermost dynamics' controls, `[horizon, nu]` each; wrappers put theirs behind them."""
    return [bound[:, : _core(problem.dynamics).nu] for bound in problem.control_box]


def _guess(problem: Problem, us, xs) -> Guess:
    """The guess with controls `us` of the innermost dynamics and states `xs`."""
    us = jnp.clip(_outer_controls(problem.dynamics, us), *problem.control_box)
    return Guess(us, _outer_states(problem.dynamics, xs, us))


def _outer_controls(dynamics: AbstractDynamics, us):
    if not isinstance(dynamics, WrappedDynamics):
        return us
    return dynamics.outer_controls(_outer_controls(dynamics.inner, us))


def _outer_states(dynamics: AbstractDynamics, xs, us):
    if not isinstance(dynamics, WrappedDynamics):
        return xs
    inner = _outer_states(dynamics.inner, dynamics.inner_state(xs), dynamics.inner_control(us))
    return dynamics.outer_states(xs.at[:, : dynamics.inner.nx].set(inner), us)


def _inverse_dynamics(problem: Problem, xs) -> Array:
    """The controls of the innermost dynamics `[horizon, nu]` that lead from each of the states `xs` to the velocity of
    the next one, or as near as the actuation and the bounds allow."""
    dynamics = _core(problem.dynamics)
    if not isinstance(dynamics, ModelDynamics):
        raise ModelError(f"inverse dynamics are those of ModelDynamics, not of {type(dynamics).__name__}")
    xs = xs[:, : dynamics.nx]
    state = dynamics.split(xs)
    model, change = dynamics.model, state.v[1:] - state.v[:-1]
    a = change / dynamics.dt.astype(xs.dtype)
    taus = rnea(model, state.q[:-1], state.v[:-1], a, dynamics.f_ext)
    if dynamics.integrator == "implicit_velocity":
        # Its friction is that of the velocity at the end of the step.
        friction = JointFriction(model.damping, model.friction, model.friction_velocity)
        taus = taus + friction.secant(state.v[:-1]) * change
    taus = taus.astype(xs.dtype)
    box = _core_box(problem)
    allowed = None
    if dynamics.model.topology.has_loops:
        allowed = motion_map(dynamics.model, state.q[:-1], dynamics.model.joint_names).astype(xs.dtype)
    taus = _working(allowed, taus)
    if dynamics.actuation is None:
        return jnp.clip(taus, *box)

    def control(x, allowed, tau, low, high):
        start = jnp.zeros(dynamics.nu, x.dtype)
        return _least_squares(lambda u: _working(allowed, dynamics.torque(x, u)) - tau, start, low, high)

    return jax.vmap(control)(xs[:-1], allowed, taus, *box)


def _working(allowed, tau):
    """The part of torques `[..., nv]` that does work in the `allowed` motions of closed loops, which hold the rest; all
    of it for a tree, where that is None."""
    return tau if allowed is None else (jnp.swapaxes(allowed, -1, -2) * tau[..., None, :]).sum(axis=-1)


class _Search(Iterate):
    u: Array


def _least_squares(residual: Callable, u, low, high) -> Array:
    """The `u` between `low` and `high` with the least sum of squares of `residual(u)`, by damped Gauss-Newton steps of
    the components that are free to move, from the `u` given."""
    u = jnp.clip(u, low, high)
    eps = float(jnp.finfo(u.dtype).eps)
    unit = 1 + jnp.abs(residual(u)).max(initial=0.0)

    def scaled(u):
        return residual(u) / unit

    def advance(search: _Search) -> _Search:
        r, J = scaled(search.u), jax.jacfwd(scaled)(search.u)
        slope = J.T @ r
        free = ~((search.u <= low) & (slope > 0) | (search.u >= high) & (slope < 0))
        slope, H = jnp.where(free, slope, 0), (J * free).T @ (J * free)
        scale = jnp.trace(H) / len(u) + jnp.finfo(u.dtype).tiny

        def trial(damping) -> _Search:
            step = -jnp.linalg.solve(H + damping * scale * jnp.eye(len(u), dtype=u.dtype), slope)
            promised = 0.5 * step @ (damping * scale * step - slope)
            moved = jnp.clip(search.u + jnp.where(jnp.isinf(search.cost), 0, step), low, high)
            after = scaled(moved)
            return _Search(0.5 * after @ after, promised, search.damping, search.iteration, search.status, moved)

        return damped_step(search, trial, _DAMPING, relative=eps, absolute=eps**2, max_iterations=_STEPS)

    infinite = jnp.asarray(jnp.inf, u.dtype)
    zero = jnp.zeros((), jnp.int32)
    first = _Search(infinite, infinite, jnp.asarray(_DAMPING.first, u.dtype), zero, zero, u)
    return lax.while_loop(lambda s: s.status == Status.RUNNING, advance, first).u
