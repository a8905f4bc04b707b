"""Constraints and bounds on controls from the limits of a robot's model."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, naming_arguments, require_positive
from jaxdyn._types import Array, Float
from jaxdyn.model import Model
from jaxdyn.trajopt.problem._bounded_residuals import Constraint
from jaxdyn.trajopt.problem._dynamics import AbstractDynamics, TorqueDynamics
from jaxdyn.trajopt.problem._ensembles import EnsembleDynamics, EnsembleResidual
from jaxdyn.trajopt.problem._residuals import Linear, StateOnlyResidual, robot_state
from jaxdyn.trajopt.problem._world_dynamics import WorldDynamics
from jaxdyn.trajopt.problem._wrapped_dynamics import InnerResidual, WrappedDynamics, find_dynamics


class JointResidual(StateOnlyResidual):
    """Some coordinates of joints whose configuration is a number, rad or m, or some of the velocities, rad/s or m/s;
    made by `limit_constraints`."""

    names: tuple[str, ...] = eqx.field(static=True)
    """Names of the coordinates or of the degrees of freedom, for messages."""
    coordinates: tuple[int, ...] = eqx.field(static=True)
    """Indices in `q`, or in `v`."""
    dofs: tuple[int, ...] = eqx.field(static=True)
    """Indices in `v`, of the same joints."""
    velocity: bool = eqx.field(static=True)

    def __call__(self, dynamics, x, u, k):
        _, q, v = robot_state(dynamics, self, x)
        return (v if self.velocity else q)[jnp.asarray(self.coordinates, int)]

    def linearize(self, dynamics, x, u, k):
        model, _, _ = robot_state(dynamics, self, x)
        columns = np.asarray(self.dofs, int) + (model.nv if self.velocity else 0)
        by_x = jnp.zeros((len(columns), dynamics.ndx), x.dtype).at[np.arange(len(columns)), columns].set(1.0)
        return Linear(self(dynamics, x, u, k), by_x, None)


@naming_arguments
def limit_constraints(
    robot: Model | AbstractDynamics, *, positions: bool = True, velocities: bool = True, margin: float = 0.0
) -> tuple[Constraint, ...]:
    """Constraints that keep a robot's joints within the limits of its model: one for coordinates and one for
    velocities, with a row for each limited joint. Stands among `stage_constraints` and `terminal_constraints`.

    - `robot`: the model, or dynamics of a robot. Limits of `ParameterDynamics` and of members of
      `EnsembleDynamics` are those of the model before parameters are put into it.
    - `positions`, `velocities`: which of the limits.
    - `margin`: the part of each range, or of each velocity limit, to stay away from it, in [0, 1/2).

    Infinite limits, as of continuous and free joints, have no rows; a model without limits gives no constraints. The
    bounds are arrays, through which gradients reach the limits. **Raises** `ModelError` for limits of rotations in more
    than one axis, for limits that are traced (which of them are infinite must be known), and for a wrong margin.
    """
    if isinstance(robot, WrappedDynamics | EnsembleDynamics) and robot.robot is None:
        inner = limit_constraints(robot.inner, positions=positions, velocities=velocities, margin=margin)
        around, count = (EnsembleResidual, robot.members) if isinstance(robot, EnsembleDynamics) else (InnerResidual, 1)
        return tuple(
            Constraint(around(limit.residual), jnp.tile(limit.lower, count), jnp.tile(limit.upper, count))
            for limit in inner
        )
    model = robot.robot if isinstance(robot, AbstractDynamics) else robot
    if not isinstance(model, Model):
        raise ModelError(f"limits are those of a robot's model, but {type(robot).__name__} has none")
    require_positive(margin, "the margin of limits", zero=True)
    if margin >= 0.5:
        raise ModelError(f"the margin of limits is {margin}; at 1/2 nothing remains between them")
    constraints = []
    if positions and (limits := _position_limits(model)) is not None:
        constraints.append(_within(limits, margin * _finite_range(limits)))
    if velocities and (limits := _velocity_limits(model)) is not None:
        constraints.append(_within(limits, margin * limits.upper))
    return tuple(constraints)


class _Limits(NamedTuple):
    residual: JointResidual
    lower: Array
    upper: Array


def _within(limits: _Limits, margin) -> Constraint:
    return Constraint(limits.residual, limits.lower + margin, limits.upper - margin)


def _finite_range(limits: _Limits):
    """The distances between limits; zero where one is missing, for which no margin is known."""
    width = limits.upper - limits.lower
    return jnp.where(jnp.isfinite(width), width, 0.0)


def _position_limits(model: Model) -> _Limits | None:
    lower, upper = model.position_lower, model.position_upper
    finite = np.flatnonzero(_is_finite(lower) | _is_finite(upper))
    scalar_q, scalar_v = model.topology.scalar_coordinates
    names = model.topology.coordinate_names
    if len(others := np.setdiff1d(finite, scalar_q)):
        raise ModelError(
            f"the limits of {', '.join(names[i] for i in others)} are not those of a single coordinate: give a "
            "Constraint on a FunctionResidual of the state"
        )
    dof_of = dict(zip(scalar_q.tolist(), scalar_v.tolist(), strict=True))
    return _rows(names, finite, [dof_of[i] for i in finite.tolist()], lower, upper, velocity=False)


def _velocity_limits(model: Model) -> _Limits | None:
    upper = model.velocity_limit
    finite = np.flatnonzero(_is_finite(upper))
    return _rows(model.topology.dof_names, finite, finite.tolist(), -upper, upper, velocity=True)


def _rows(names, finite, dofs, lower, upper, *, velocity: bool) -> _Limits | None:
    if not len(finite):
        return None
    chosen = tuple(names[i] for i in finite)
    return _Limits(JointResidual(chosen, tuple(finite.tolist()), tuple(dofs), velocity), lower[finite], upper[finite])


def _is_finite(limits) -> np.ndarray:
    if isinstance(limits, Tracer):
        raise ModelError(
            "the limits are traced, but which of them are infinite must be known: make constraints outside"
        )
    return np.isfinite(np.asarray(limits))


@naming_arguments
def effort_bounds(dynamics: AbstractDynamics) -> tuple[Float[Array, "nu"], Float[Array, "nu"]]:
    """The bounds `control_lower` and `control_upper` that follow from the effort limits of a robot's model, or from the
    ranges of a world's controls.

    An entry of the control must drive one degree of freedom alone: `actuation` None, names of joints, or a matrix
    with one number other than zero in each column, and at most one in each row; its limit is divided by that number.
    Infinite limits give infinite bounds, as does the step length of `FreeTimeDynamics`. **Raises** `ModelError` for
    other actuations (bound the torques by a `Constraint` on a `FunctionResidual`) and for dynamics without a robot.
    """
    if isinstance(dynamics, WrappedDynamics | EnsembleDynamics):
        lower, upper = effort_bounds(dynamics.inner)
        free = jnp.full(dynamics.nu - dynamics.inner.nu, jnp.inf, upper.dtype)
        return jnp.concatenate([lower, -free]), jnp.concatenate([upper, free])
    if isinstance(dynamics, WorldDynamics):
        return dynamics.world.control_bounds
    inner = find_dynamics(dynamics, TorqueDynamics, "a bound by the effort limits of ModelDynamics or PhasedDynamics")
    limit, matrix = inner.model.effort_limit, inner.actuation
    if matrix is None:
        return -limit, limit
    if isinstance(matrix, Tracer):
        raise ModelError("the actuation is traced, but which joints it drives must be known: find bounds outside")
    drives = np.asarray(matrix) != 0
    if not ((drives.sum(axis=0) == 1).all() and (drives.sum(axis=1) <= 1).all()):
        raise ModelError(
            "effort limits are those of degrees of freedom, and the actuation mixes them: bound the torques by a "
            "Constraint on a FunctionResidual, or give control_lower and control_upper"
        )
    rows = drives.argmax(axis=0)
    upper = limit[rows] / jnp.abs(matrix[rows, np.arange(len(rows))])
    return -upper, upper
