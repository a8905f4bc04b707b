"""The Euler step that is implicit in what resists the velocity."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp

from jaxdyn.algorithms import aba
from jaxdyn.model import Model
from jaxdyn.simulate._state import State


def implicit_velocity_step(model: Model, state: State, tau, dt, actuator_damping=None) -> State:
    """`(M + dt D) (v1 - v0) = dt (tau - bias - friction(v0))`, `q1 = q0 (+) dt v1`: first order, one evaluation.

    `D` is diagonal: `Model.damping`, the slope of the Coulomb friction, and `actuator_damping` `[*batch, nv]`, by how
    much the actuators' torques fall with the velocity (`tau` is what they are at `v0`). Stable for any damping. Without
    Coulomb friction it is what MuJoCo's integrators `implicitfast` and `Euler` do (MuJoCo's documentation,
    Computation, Numerical integration).
    """
    resistance = model.damping + friction_secant(model, state.v)
    if actuator_damping is not None:
        resistance = resistance + actuator_damping
    # What is linear in the velocity at the end of the step, D v1 = D v0 + dt D a, adds dt D to the inertia that `a`
    # meets: an armature.
    heavier = eqx.tree_at(lambda m: m.armature, model, model.armature + dt * resistance)
    v = state.v + dt * aba(heavier, state.q, state.v, tau)
    return State(model.integrate(state.q, dt * v), v)


def friction_secant(model: Model, v):
    """`[*batch, nv]`: the Coulomb friction at `v` over `v`.

    Not the tangent: that is flat at speed, so a step could carry a joint through zero and back for ever. With the
    secant the friction at the end of the step is a positive multiple of the velocity there: it takes energy, always.
    """
    x = v / model.friction_velocity
    # tanh(x) / x, which is 1 - x^2 / 3 to double precision where it is used; both branches are differentiated.
    small = jnp.abs(x) < 1e-4
    far = jnp.where(small, 1, x)
    return model.friction / model.friction_velocity * jnp.where(small, 1 - x * x / 3, jnp.tanh(far) / far)
