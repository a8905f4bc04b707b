"""Runge-Kutta methods: for any rate, and the classical one as a step of a robot."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn import native
from jaxdyn._errors import naming_arguments, require_time_step
from jaxdyn.algorithms import aba
from jaxdyn.model import Model
from jaxdyn.native import Plain, call, repeated
from jaxdyn.simulate._state import State, with_velocity
from jaxdyn.simulate.integrators._robot_operands import RobotOperands, differentiated_as

_NODES, _WEIGHTS = (0.0, 0.5, 0.5, 1.0), (1 / 6, 1 / 3, 1 / 3, 1 / 6)
"""The nodes and weights of the classical method (Hairer, Norsett & Wanner, Solving Ordinary Differential Equations I,
1993, section II.1): it evaluates each rate at a node, a part of the step along the rate before, and its step is the
weighted sum of the rates."""


def rk4(f, x, t, h):
    """The classical step from `x`, a pytree, with the rate `f(x, t)`."""
    return rk4_points(lambda x, i: f(x, t + _NODES[i] * h), x, h)[-1]


def rk4_points(f, x, h) -> list:
    """The four points at which the classical step from `x`, a pytree, evaluates the rate `f(x, i)` of point `i`, and
    then its end."""

    def displaced(x, rate, h):
        return jax.tree.map(lambda x, rate: x + h * rate, x, rate)

    points, end, rate = [], x, None
    for i, (node, weight) in enumerate(zip(_NODES, _WEIGHTS, strict=True)):
        points.append(x if rate is None else displaced(x, rate, node * h))
        rate = f(points[-1], i)
        end = displaced(end, rate, weight * h)
    return [*points, end]


RUNGE_KUTTA_STEPS: dict[str, Callable] = {
    "euler": lambda f, x, t, h: x + h * f(x, t),
    "rk2": lambda f, x, t, h: x + h * f(x + 0.5 * h * f(x, t), t + 0.5 * h),
    "rk4": rk4,
}
"""Steps of length `h` from `x` with the rate `f(x, t)`."""


@naming_arguments
def rk4_step(model: Model, state: State, tau, dt, f_ext=None) -> State:
    """The classical fourth-order Runge-Kutta step with `tau` held constant, four evaluations of the dynamics.

    It works in the chart around `state.q` (positions as they are, rotations by their exponential), where the equations
    are those of a vector space, and is of fourth order on free and ball joints too: Munthe-Kaas, High order Runge-Kutta
    methods on manifolds, 1999.

    `tau` `[*batch, nv]`, N m or N; `dt` a number, s; `f_ext` `[*batch, nb, 6]` as in `step`.
    """
    require_time_step(dt)
    state = with_velocity(model, state)
    points = chart_points_of_rk4(model, state, tau, dt, f_ext)
    return State(model.chart_point(state.q, points.q[-1]), points.v[-1])


def chart_points_of_rk4(model: Model, state: State, tau, dt, f_ext=None) -> State:
    """The five points of the classical step, `[5, *batch, nv]`: coordinates in the chart around `state.q`, and
    velocities."""
    arguments = model, state, tau, dt, f_ext
    if native.wanted() and not model.topology.has_loops:
        return differentiated_as(_points, _points_in_one_loop, arguments)
    return _points(arguments)


def _points(arguments) -> State:
    model, state, tau, dt, f_ext = arguments

    def rate(point, _):
        x, v = point
        return _rate(model, state.q, x, v, tau, f_ext)

    points = rk4_points(rate, (jnp.zeros_like(state.v), state.v), dt)
    # The state may have fewer batch axes than the torques or the model.
    x, v = (jnp.stack(jnp.broadcast_arrays(*part)) for part in zip(*points, strict=True))
    return State(x, v)


def _rate(model: Model, q0, x, v, tau, f_ext):
    """The rates of coordinates in the chart around `q0`, and of velocities."""
    q = model.chart_point(q0, x)
    return model.chart_rate(q, x, v), aba(model, q, v, tau, f_ext)


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """An evaluation of the rate, with what comes before the next one, as a function of arrays with leading batch axes.

    All evaluations have the model, the time step, the state before, the torques and perhaps the wrenches in common.
    Each one hands on the coordinates and velocities of the next point, and the weighted sums of the rates so far. Its
    own row holds its weight and the next node."""

    model: RobotOperands

    def __call__(self, *operands):
        given = iter(operands)
        model, h = self.model.robot(given), next(given)[..., None]
        q0, v0, tau, *f_ext, x, v, x_sum, v_sum, row = given
        x_rate, v_rate = _rate(model, q0, x, v, tau, *(f_ext or [None]))
        weight, node = row[..., :1], row[..., 1:]
        return node * h * x_rate, v0 + node * h * v_rate, x_sum + weight * h * x_rate, v_sum + weight * h * v_rate


def _points_in_one_loop(arguments) -> State:
    """The points by a native program of one evaluation in a loop."""
    model, state, tau, dt, f_ext = arguments
    q0, v0, wrenches = state.q, state.v, () if f_ext is None else (f_ext,)
    fixed = q0, v0, tau, *wrenches
    dtype = jnp.result_type(model.dtype, *fixed)
    static, leaves = RobotOperands.of_model(model, dtype, arguments)
    cores = *static.cores, 0, 1, 1, 1, *(2 for _ in wrenches), 1, 1, 1, 1, 1
    one = Plain(_Evaluation(static), cores, ((model.nv,),) * 4, shared=len(static.cores) + 1)
    zero = jnp.zeros_like(v0)
    rows = np.stack([_WEIGHTS, np.roll(_NODES, -1)], axis=-1)
    operands = *leaves, dt, *fixed, zero, v0, zero, v0, rows
    everything = call(repeated(one, len(rows), 4, 1), *(jnp.asarray(y, dtype) for y in operands))
    x, v, x_end, v_end = (jnp.moveaxis(y, -2, 0) for y in everything)
    return State(jnp.concatenate([x[:-1], x_end[-1:]]), jnp.concatenate([v[:-1], v_end[-1:]]))
