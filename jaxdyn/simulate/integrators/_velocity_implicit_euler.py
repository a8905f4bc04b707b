"""The Euler step that is implicit in the forces that resist the velocity."""

import equinox as eqx

from jaxdyn.algorithms import aba
from jaxdyn.friction import JointFriction
from jaxdyn.model import Model
from jaxdyn.simulate._state import State


def velocity_implicit_euler_step(model: Model, state: State, tau, dt, f_ext=None, actuator_damping=None) -> State:
    """`(M + dt D) (v1 - v0) = dt (tau - bias - friction(v0))`, `q1 = q0 (+) dt v1`: first order, one evaluation.

    `D` is diagonal: the secant of the joint friction, plus `actuator_damping` `[*batch, nv]`, the rate at which the
    actuators' torques fall with the velocity (`tau` is their value at `v0`). Stable for any damping. Without Coulomb
    friction this is the step of MuJoCo's integrators `implicitfast` and `Euler` (MuJoCo's documentation, Computation,
    Numerical integration).

    The tangent of Coulomb friction is flat at speed, so with it a step could carry a joint through zero and back for
    ever. With the secant the friction at the end of the step is a positive multiple of the velocity there, and always
    takes energy.
    """
    resistance = JointFriction(model.damping, model.friction, model.friction_velocity).secant(state.v)
    if actuator_damping is not None:
        resistance = resistance + actuator_damping
    # A torque that is linear in the velocity at the end of the step, D v1 = D v0 + dt D a, acts on `a` like an
    # additional armature dt D.
    heavier = eqx.tree_at(lambda m: m.armature, model, model.armature + dt * resistance)
    v = state.v + dt * aba(heavier, state.q, state.v, tau, f_ext)
    return State(model.integrate(state.q, dt * v), v)
