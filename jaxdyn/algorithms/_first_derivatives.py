"""Analytic derivatives of inverse and forward dynamics: full matrices, and products with a row vector from the left.

Singh, Russo & Wensing, RA-L 2022, in world axes; see `recursions/_sensitivities.py`. The derivatives of forward
dynamics are `M^-1` times those of inverse dynamics at its solution (Carpentier & Mansard, RSS 2018, section III).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxdyn._compile import once
from jaxdyn._types import Array, Configuration, Float, Torque, Velocity, Wrenches
from jaxdyn.algorithms.recursions import (
    AnalyticDerivatives,
    DofMatrices,
    EquationsOfMotion,
    Kinematics,
    Robot,
    Sensitivities,
    Turning,
    Velocities,
    algorithm,
    constrained_inverse,
    constraint_derivatives,
    constraint_rows,
    equations_and_velocities,
    forward,
    inverse_matrices,
    inverse_products,
    kinematics,
    passive_torque,
    sensitivities,
    solve,
    turning,
)
from jaxdyn.joints import coordinate_cotangent


@algorithm()
def rnea_derivatives(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    a: Velocity,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> tuple[Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"]]:
    """The derivatives of inverse dynamics, `(dtau_dq, dtau_dv, M)`, each `[*batch, nv, nv]`.

    Derivatives by `q` are on the tangent space: column `j` is the rate of `tau` along `model.integrate(q, s e_j)`, with
    `v` and `a` of a free or ball joint fixed in body axes. `dtau_dv` includes the slope of joint friction, and `M`, the
    derivative by `a`, the armature. The external wrenches `f_ext` are constant in world axes and move with the bodies'
    origins. Analytic (Singh, Russo & Wensing, RA-L 2022), in O(nv depth).

    **Arguments** and errors as for `rnea`.
    """
    pairs = DofMatrices(robot)
    dq, dv, M = _inverse_derivatives(robot, pairs, q, v, a, f_ext, joint_friction)
    return pairs.result(dq), pairs.result(dv), pairs.result(M)


@algorithm(motion_axes=((-2,), (-2,), (-2, -1)))
def aba_derivatives(
    robot: Robot,
    q: Configuration,
    v: Velocity,
    tau: Torque,
    f_ext: Wrenches | None = None,
    *,
    joint_friction: bool = True,
) -> tuple[Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"], Float[Array, "*batch nv nv"]]:
    """The derivatives of forward dynamics, `(da_dq, da_dv, Minv)`, each `[*batch, nv, nv]`.

    Derivatives by `q` are on the tangent space, as those of `rnea_derivatives`; `Minv` is the derivative by `tau`, the
    inverse of the mass matrix. They are `-M^-1` times the derivatives of inverse dynamics at the solution (Carpentier &
    Mansard, RSS 2018), with `M^-1` applied by the articulated-body recursion. For a model with loops or couplings they
    are those of `aba` with its constraints.

    **Arguments** and errors as for `aba`.
    """
    pairs = DofMatrices(robot)
    dq, dv, Minv = _forward_derivatives(robot, pairs, q, v, tau, f_ext, joint_friction)
    return pairs.result(dq), pairs.result(dv), pairs.result(Minv)


class _EquationsAtState(NamedTuple):
    """The equations of motion, and what their derivatives need."""

    placed: Kinematics
    equations: EquationsOfMotion
    velocities: Velocities
    turning: Turning | None

    @staticmethod
    def at(robot: Robot, q, v, f_ext) -> _EquationsAtState:
        at = kinematics(robot, q)
        return _EquationsAtState(at, *equations_and_velocities(robot, *at, v, f_ext), turning(robot, at.poses, f_ext))

    def sensitivities(self, robot: Robot, a) -> Sensitivities:
        return sensitivities(robot, self.equations, self.velocities, a, self.turning)


def _inverse_derivatives(robot: Robot, pairs: DofMatrices, q, v, a, f_ext, joint_friction: bool):
    e = _EquationsAtState.at(robot, q, v, f_ext)
    return inverse_matrices(robot, pairs, e.equations, e.sensitivities(robot, a), q, v, joint_friction)


def _forward_derivatives(robot: Robot, pairs: DofMatrices, q, v, tau, f_ext, joint_friction: bool):
    e = _EquationsAtState.at(robot, q, v, f_ext)
    tau = tau - passive_torque(robot, q, v, joint_friction)
    rows = constraint_rows(robot, q, e.placed, v, e.velocities.velocity, e.equations.c)
    a, factors, multipliers = forward(robot, e.equations, tau, rows)
    dq, dv, M = inverse_matrices(robot, pairs, e.equations, e.sensitivities(robot, a), q, v, joint_friction)
    Minv, to_rates = constrained_inverse(robot, pairs, e.equations, factors, M, rows)
    if rows is None:
        Minv, dq, dv = once((Minv, dq, dv))
        return -pairs.multiply(Minv, dq), -pairs.multiply(Minv, dv), Minv
    # M da = -dID - d(J^T) l - J^T dl  with  J da = -dJ a - dgamma.
    turned, rates_by_q, rates_by_v = map(pairs.from_rows, constraint_derivatives(robot, q, v, a, multipliers))
    Minv, dq, dv = once((Minv, dq + turned, dv))
    da_dq = -pairs.multiply(Minv, dq) - pairs.multiply(to_rates, rates_by_q)
    return da_dq, -pairs.multiply(Minv, dv) - pairs.multiply(to_rates, rates_by_v), Minv


def _rnea_pullback(robot: Robot, y, q, v, a, f_ext=None, *, joint_friction: bool):
    e = _EquationsAtState.at(robot, q, v, f_ext)
    return inverse_products(robot, e.equations, e.sensitivities(robot, a), y, q, v, joint_friction)


def _aba_pullback(robot: Robot, y, q, v, tau, f_ext=None, *, joint_friction: bool):
    e = _EquationsAtState.at(robot, q, v, f_ext)
    tau = tau - passive_torque(robot, q, v, joint_friction)
    a, factors, _ = forward(robot, e.equations, tau)
    y = solve(robot, e.equations, factors, y)
    dq, dv, _ = inverse_products(robot, e.equations, e.sensitivities(robot, a), y, q, v, joint_friction)
    return -dq, -dv, y


def _by_coordinates(robot: Robot, pairs: DofMatrices, q, matrices: tuple) -> tuple[Any, ...]:
    """Return matrices as results, the first by the coordinates of `q`, `[nv, nq]`, in place of its tangent space."""
    dq, dv, last = matrices
    dv, last = pairs.result(dv), pairs.result(last)
    if robot.topology.nq == robot.nv:
        return pairs.result(dq), dv, last
    rows = jnp.swapaxes(pairs.to_rows(dq), 0, 1)
    q = robot.broadcast(q)[:, None]
    return jnp.swapaxes(coordinate_cotangent(robot.topology, q, rows), 0, 1), dv, last


def _rnea_jacobian(robot: Robot, q, v, a, f_ext=None, *, joint_friction: bool):
    pairs = DofMatrices(robot)
    return _by_coordinates(robot, pairs, q, _inverse_derivatives(robot, pairs, q, v, a, f_ext, joint_friction))


def _aba_jacobian(robot: Robot, q, v, tau, f_ext=None, *, joint_friction: bool):
    pairs = DofMatrices(robot)
    return _by_coordinates(robot, pairs, q, _forward_derivatives(robot, pairs, q, v, tau, f_ext, joint_friction))


OF_RNEA = AnalyticDerivatives(("q", "v", "a"), _rnea_jacobian, _rnea_pullback)
OF_ABA = AnalyticDerivatives(("q", "v", "tau"), _aba_jacobian, _aba_pullback, with_loops=False)
