"""Derivatives of time steps: the chain rule, from the derivatives of forward dynamics and the Jacobians of the
configuration manifold."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax

from jaxdyn._compile import compiled
from jaxdyn._types import Array, Float, Velocity, Wrenches
from jaxdyn.algorithms import aba_derivatives
from jaxdyn.model import Model, Topology
from jaxdyn.simulate._state import State
from jaxdyn.simulate.integrators._closed_loops import differentiated_step
from jaxdyn.simulate.integrators._one_step import joint_resistance
from jaxdyn.simulate.integrators._runge_kutta import chart_points_of_rk4, rk4_points
from jaxdyn.simulate.integrators._step import (
    INTEGRATORS,
    Integrator,
    advance,
    common_form,
    require_integrator,
    time_step,
    with_time_step,
)
from jaxdyn.simulate.integrators._variational_midpoint import variational_midpoint_derivatives


class StepDerivatives(NamedTuple):
    """The derivatives of the state after a step. Changes of states are `[displacement of q, change of v]`."""

    by_state: Float[Array, "*batch two_nv two_nv"]
    """Derivatives by the change of the state before."""
    by_torque: Float[Array, "*batch two_nv nv"]
    """Derivatives by the actuator torques."""


@with_time_step
@compiled("integrator", "substeps")
def step_derivatives(
    model: Model,
    state: State,
    tau: Velocity,
    dt: float,
    *,
    integrator: Integrator = "implicit_velocity",
    substeps: int = 1,
    f_ext: Wrenches | None = None,
    after: State | None = None,
) -> StepDerivatives:
    """The derivatives of `step(model, state, tau, dt, ...)` by the state and by the torques.

    They are analytic: `aba_derivatives` (Carpentier & Mansard, RSS 2018) at each evaluation of the dynamics and
    `Model.integrate_jacobians`, joined by the chain rule. A Runge-Kutta step is differentiated by the same step of the
    linearized equations (Hairer, Norsett & Wanner, Solving Ordinary Differential Equations I, 1993, section I.14), and
    the variational midpoint rule by the implicit function theorem. JAX differentiates the steps of a model with loops
    or couplings.

    **Arguments** as for `step`. `after` is the state after the step where it is known, and saves its computation where
    `substeps` is 1.

    **Returns** the matrices `[*batch, 2 nv, 2 nv]` and `[*batch, 2 nv, nv]`. Displacements of `q` are those of
    `Model.integrate`. **Raises** `ModelError`, `ShapeError` as `step`.
    """
    require_integrator(integrator, substeps)
    inputs = {"tau": (tau, (model.nv,)), "f_ext": (f_ext, (model.nb, 6))}
    start, (tau, f_ext) = common_form(model, state, inputs)
    tau, h = jnp.broadcast_to(tau, start.v.shape), time_step(dt, start) / substeps
    if model.topology.has_loops:

        def stepped(state: State, tau) -> State:
            return advance(model, state, tau, h * substeps, f_ext, integrator, substeps)

        total = differentiated_step(stepped, model, start, tau)
        return StepDerivatives(total[..., : 2 * model.nv], total[..., 2 * model.nv :])
    one_step, linearize = INTEGRATORS[integrator], STEP_DERIVATIVES[integrator]
    two_nv = 2 * model.nv

    def substep(carry, _):
        state, total = carry
        end = one_step(model, state, tau, h, f_ext)
        one = linearize(model, state, tau, h, f_ext, end)
        own_torque = one.at[..., :two_nv].set(0)
        return (end, _matmul(one[..., :two_nv], total) + own_torque), None

    if substeps == 1:
        end = one_step(model, start, tau, h, f_ext) if after is None else after
        total = linearize(model, start, tau, h, f_ext, end)
    else:
        unit = jnp.eye(two_nv, 3 * model.nv, dtype=start.v.dtype)
        unit = jnp.broadcast_to(unit, (*start.v.shape[:-1], *unit.shape))
        (_, total), _ = lax.scan(substep, (start, unit), length=substeps)
    return StepDerivatives(total[..., :two_nv], total[..., two_nv:])


# Functions `(model, state, tau, dt, f_ext, after)` of states with all batch axes return the derivatives
# `[*batch, 2 nv, 3 nv]` of `[displacement of q1, v1]` by `[displacement of q0, v0, tau]`.


def _euler(model: Model, state: State, tau, dt, f_ext, after: State):
    v1 = _velocity_after(dt, aba_derivatives(model, state.q, state.v, tau, f_ext))
    of_v = _units(state)[1]
    return jnp.concatenate([displaced(model, state.q, dt * state.v, dt * of_v), v1], axis=-2)


def _semi_implicit_euler(model: Model, state: State, tau, dt, f_ext, after: State):
    v1 = _velocity_after(dt, aba_derivatives(model, state.q, state.v, tau, f_ext))
    return jnp.concatenate([displaced(model, state.q, dt * after.v, dt * v1), v1], axis=-2)


def _velocity_implicit_euler(model: Model, state: State, tau, dt, f_ext, after: State):
    resistance, slope = jax.jvp(lambda v: joint_resistance(model, v), (state.v,), (jnp.ones_like(state.v),))
    heavier = eqx.tree_at(lambda m: m.armature, model, model.armature + dt * resistance)
    by_q, by_v, Minv = aba_derivatives(heavier, state.q, state.v, tau, f_ext)
    # The armature grows by dt slope, and resists the acceleration by that times it.
    by_v = by_v - Minv * (slope * (after.v - state.v))[..., None, :]
    v1 = _velocity_after(dt, (by_q, by_v, Minv))
    return jnp.concatenate([displaced(model, state.q, dt * after.v, dt * v1), v1], axis=-2)


def _rk4(model: Model, state: State, tau, dt, f_ext, after: State):
    # The same step of the linearized equations, in the chart around `state.q`, with the matrices of the equations at
    # all points of the step together.
    points = chart_points_of_rk4(model, state, tau, dt, f_ext)
    charts = model.chart_jacobians(state.q, points.q, points.v)
    q = model.chart_point(state.q, points.q[:-1])
    accelerations = aba_derivatives(model, q, points.v[:-1], tau, f_ext)

    def moved(i: int, X):
        """The displacement of point `i`, from the change `X` of its coordinates."""
        return _added(_replaced(model.topology, X, (charts.q_by_x[i],), (X,)), charts.q_by_q0[i], 0)

    def rate(values, i: int):
        X, V = values
        by_q, by_v, Minv = (x[i] for x in accelerations)
        if i == 0:
            # At the origin of the chart X = 0, V = [0, 1, 0] and Q = [1, 0, 0].
            parts = charts.rate_by_q[0], charts.rate_by_v[0], jnp.zeros_like(Minv)
            return jnp.concatenate(parts, axis=-1), jnp.concatenate([by_q, by_v, Minv], axis=-1)
        Q = moved(i, X)
        changes = _matmul(jnp.concatenate([by_q, by_v], axis=-1), jnp.concatenate([Q, V], axis=-2))
        x_rate = _replaced(model.topology, V, tuple(x[i] for x in charts[2:]), (Q, X, V))
        return x_rate, _added(changes, Minv, 2)

    V = _units(state)[1]
    *_, (X, V) = rk4_points(rate, (jnp.zeros_like(V), V), dt)
    return jnp.concatenate([moved(-1, X), V], axis=-2)


STEP_DERIVATIVES: dict[str, Callable[..., Array]] = {
    "euler": _euler,
    "semi_implicit_euler": _semi_implicit_euler,
    "implicit_velocity": _velocity_implicit_euler,
    "midpoint": variational_midpoint_derivatives,
    "rk4": _rk4,
}


def _units(state: State) -> tuple[Array, Array]:
    """The derivatives `[*batch, nv, 3 nv]` of a displacement of `q`, and of `v`, by `[displacement of q, v, tau]`."""
    n = state.v.shape[-1]
    unit = jnp.eye(2 * n, 3 * n, dtype=state.v.dtype)
    rows = jnp.broadcast_to(unit, (*state.v.shape[:-1], *unit.shape))
    return rows[..., :n, :], rows[..., n:, :]


def _velocity_after(dt, accelerations) -> Array:
    """The derivatives of `v + dt a` from the three of `a`."""
    by_q, by_v, Minv = accelerations
    eye = jnp.eye(by_v.shape[-1], dtype=by_v.dtype)
    return jnp.concatenate([dt * by_q, eye + dt * by_v, dt * Minv], axis=-1)


def displaced(model: Model, q, w, slopes) -> Array:
    """The derivatives of the displacement of `integrate(q, w)` from those of `w`; the first columns are those of the
    displacement of `q`."""
    by_q, by_w = model.integrate_jacobians(q, w)
    return _added(_replaced(model.topology, slopes, (by_w,), (slopes,)), by_q, 0)


def _added(x, block, k: int) -> Array:
    """The matrix `x` `[*batch, nv, 3 nv]`, with a square block added to its columns from `k nv` on."""
    n = block.shape[-1]
    parts = [x[..., i * n : (i + 1) * n] for i in range(3)]
    parts[k] = parts[k] + block
    return jnp.concatenate(parts, axis=-1)


def _replaced(topology: Topology, x, matrices: tuple, factors: tuple) -> Array:
    """The rows `x` `[*batch, nv, n]`, with the sum of products of `matrices` and `factors` in those of ball and free
    joints. In one product, because small ones cost more in their calls than in their sums."""
    dofs = topology.quaternion_dofs
    if not len(dofs):
        return x
    # The rows between, if there are any, are those of other joints, in which the matrices say what the rows of `x` do.
    part = slice(dofs[0], dofs[-1] + 1)
    left = jnp.concatenate([matrix[..., part, part] for matrix in matrices], axis=-1)
    rows = _matmul(left, jnp.concatenate([factor[..., part, :] for factor in factors], axis=-2))
    return jnp.concatenate([x[..., : part.start, :], rows, x[..., part.stop :, :]], axis=-2)


def _matmul(a, b) -> Array:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
