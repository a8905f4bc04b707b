"""Methods with one evaluation of the dynamics: explicit, semi-implicit and velocity-implicit Euler."""

import equinox as eqx

from jaxdyn._errors import naming_arguments, require_time_step
from jaxdyn.algorithms import aba
from jaxdyn.friction import JointFriction
from jaxdyn.model import Model
from jaxdyn.simulate._state import State, with_velocity
from jaxdyn.simulate.integrators._closed_loops import symplectic_step


def euler_step(model: Model, state: State, tau, dt, f_ext=None) -> State:
    """`v1 = v0 + dt a(q0, v0, tau)`, `q1 = q0 (+) dt v0`: first order, one evaluation of the dynamics.

    Oscillations gain energy (Hairer, Lubich & Wanner, Geometric Numerical Integration, 2006, section I.1.2). It serves
    for comparisons, and where a single explicit step should be linearized."""
    v = state.v + dt * aba(model, state.q, state.v, tau, f_ext)
    return State(model.integrate(state.q, dt * state.v), v)


@naming_arguments
def semi_implicit_euler_step(model: Model, state: State, tau, dt, f_ext=None) -> State:
    """`v1 = v0 + dt a(q0, v0, tau)`, `q1 = q0 (+) dt v1`: first order, one evaluation of the dynamics.

    `tau` `[*batch, nv]`, N m or N; `dt` a number, s; `f_ext` `[*batch, nb, 6]` as in `step`. With closed loops it is
    `symplectic_step`, whose Coriolis forces and impulses of the loops act within the step.
    """
    require_time_step(dt)
    state = with_velocity(model, state)
    if model.topology.has_loops:
        return symplectic_step(model, state, tau - _friction(model).torque(state.v), dt, f_ext)
    v = state.v + dt * aba(model, state.q, state.v, tau, f_ext)
    return State(model.integrate(state.q, dt * v), v)


def velocity_implicit_euler_step(model: Model, state: State, tau, dt, f_ext=None) -> State:
    """`(M + dt D) (v1 - v0) = dt (tau - bias - friction(v0))`, `q1 = q0 (+) dt v1`: first order, one evaluation.

    `D` is diagonal: the secant of the joint friction. Stable for any damping. Without Coulomb friction this is the step
    of MuJoCo's integrators `implicitfast` and `Euler` (MuJoCo's documentation, Computation, Numerical integration).

    With the tangent of Coulomb friction, flat at speed, a step could carry a joint through zero and back for ever. With
    the secant the friction is a positive multiple of the velocity at the end of the step, and always takes energy."""
    # A torque that is linear in the velocity at the end of the step, D v1 = D v0 + dt D a, acts on `a` like an
    # additional armature dt D.
    heavier = eqx.tree_at(lambda m: m.armature, model, model.armature + dt * joint_resistance(model, state.v))
    if model.topology.has_loops:
        tau = tau - _friction(model).torque(state.v)
        return symplectic_step(model, state, tau, dt, f_ext, inertial=heavier)
    v = state.v + dt * aba(heavier, state.q, state.v, tau, f_ext)
    return State(model.integrate(state.q, dt * v), v)


def joint_resistance(model: Model, v):
    """The secant of the joint friction at the velocity `v`, `[*batch, nv]`, N m s/rad or N s/m."""
    return _friction(model).secant(v)


def _friction(model: Model) -> JointFriction:
    return JointFriction(model.damping, model.friction, model.friction_velocity)
