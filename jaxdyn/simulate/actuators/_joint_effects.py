"""Passive effects at the joints: friction and soft limits, as blocks that add their torque.

They see the state at the start of a step, and their torque is held over it, substeps included: an explicit treatment.
For a degree of freedom with the inertia `m`, friction that changes its torque by `F` within the velocity `w` is stable
for steps below about `2 m w / F`, a spring of stiffness `k` below `2 (m / k)^(1/2)`, a damper `c` below `2 m / c`;
beyond, velocities chatter or grow, and shorter substeps do not help, only a shorter `dt`. With substeps a spring whose
torque is held gains energy at any `dt`, unless it has a damper of at least `k dt / 2`. `Model.damping`,
`Model.friction` and `Model.stiffness` (joint springs, about `Model.spring_reference`) are evaluated by the dynamics
themselves, in every substep, and the integrator `"implicit_velocity"` takes damping and friction implicitly: prefer
them where they say what is meant.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, require_last_axes
from jaxdyn._types import Array, ArrayLike, Float
from jaxdyn.model import FRICTION_VELOCITY, Model
from jaxdyn.simulate._state import State
from jaxdyn.simulate.actuators._actuator import AbstractMemorylessActuator, as_leaf, gain, require_values, signal


class AbstractJointEffect(AbstractMemorylessActuator):
    """A block that adds a torque of its own to what the drive gives."""

    @abc.abstractmethod
    def torque(self, state: State) -> Float[Array, "*batch nv"]:
        """What the effect adds, N m or N."""

    def apply(self, command: Any, state: State) -> Float[Array, "*batch nv"]:
        n = state.v.shape[-1]
        u = signal(command, n, type(self).__name__, f"torques at the nv = {n} degrees of freedom", state)
        return u + self.torque(state)


class ViscousFriction(AbstractJointEffect):
    """`tau = -d v`. The model has the same in `Model.damping`, evaluated in every substep."""

    damping: Float[Array, "*#batch #nv"]
    """`d`, N m s/rad or N s/m."""

    def __init__(self, damping: ArrayLike):
        self.damping = as_leaf(damping)

    def torque(self, state: State) -> Float[Array, "*batch nv"]:
        return -gain(self.damping, state.v.shape[-1], "the damping", state) * state.v


class CoulombFriction(AbstractJointEffect):
    """`tau = -F tanh(v / w)`: Coulomb's law, smooth within the transition velocity `w`, so that at rest a joint creeps.

    The model has the same in `Model.friction` and `Model.friction_velocity`, evaluated in every substep.
    """

    friction: Float[Array, "*#batch #nv"]
    """`F`, N m or N."""
    friction_velocity: Float[Array, "*#batch #nv"]
    """`w`, rad/s or m/s."""

    def __init__(self, friction: ArrayLike, friction_velocity: ArrayLike = FRICTION_VELOCITY):
        self.friction, self.friction_velocity = as_leaf(friction), as_leaf(friction_velocity)
        require_values(lambda x: x > 0, self.friction_velocity, "the friction velocity", "positive")

    def torque(self, state: State) -> Float[Array, "*batch nv"]:
        n = state.v.shape[-1]
        w = gain(self.friction_velocity, n, "the friction velocity", state)
        return -gain(self.friction, n, "the friction", state) * jnp.tanh(state.v / w)


class StribeckFriction(AbstractJointEffect):
    """Coulomb, Stribeck and viscous friction:

        tau = -[F_c + (F_s - F_c) exp(-(v / v_s)^2)] tanh(v / w) - d v

    The friction falls from `F_s`, at break-away, to `F_c` over the Stribeck velocity `v_s`, and rises again with the
    viscous part. Equation: Olsson, Astrom, Canudas de Wit, Gafvert & Lischinsky, Friction models and friction
    compensation, European Journal of Control 1998, section 2, with the exponent 2 (Gaussian; Armstrong-Helouvry, Dupont
    & Canudas de Wit, A survey of models, analysis tools and compensation methods for the control of machines with
    friction, Automatica 1994, section 3.1), which is smooth at rest, and the sign of `v` made smooth by `tanh`. The
    largest torque stays a little below `F_s` unless `w` is much smaller than `v_s`.
    """

    coulomb: Float[Array, "*#batch #nv"]
    """`F_c`, N m or N."""
    static: Float[Array, "*#batch #nv"]
    """`F_s`, N m or N."""
    stribeck_velocity: Float[Array, "*#batch #nv"]
    """`v_s`, rad/s or m/s."""
    damping: Float[Array, "*#batch #nv"]
    """`d`, N m s/rad or N s/m."""
    friction_velocity: Float[Array, "*#batch #nv"]
    """`w`, rad/s or m/s."""

    def __init__(
        self,
        coulomb: ArrayLike,
        static: ArrayLike,
        stribeck_velocity: ArrayLike,
        damping: ArrayLike = 0.0,
        friction_velocity: ArrayLike = FRICTION_VELOCITY,
    ):
        self.coulomb, self.static, self.damping = as_leaf(coulomb), as_leaf(static), as_leaf(damping)
        self.stribeck_velocity, self.friction_velocity = as_leaf(stribeck_velocity), as_leaf(friction_velocity)
        require_values(lambda x: x > 0, self.stribeck_velocity, "the Stribeck velocity", "positive")
        require_values(lambda x: x > 0, self.friction_velocity, "the friction velocity", "positive")

    def torque(self, state: State) -> Float[Array, "*batch nv"]:
        v, n = state.v, state.v.shape[-1]
        coulomb, static = gain(self.coulomb, n, "the Coulomb friction", state), gain(self.static, n, "static", state)
        v_s = gain(self.stribeck_velocity, n, "the Stribeck velocity", state)
        w = gain(self.friction_velocity, n, "the friction velocity", state)
        level = coulomb + (static - coulomb) * jnp.exp(-((v / v_s) ** 2))
        return -level * jnp.tanh(v / w) - gain(self.damping, n, "the damping", state) * v


class SoftLimits(AbstractJointEffect):
    """Position limits as one-sided springs and dampers, which push a joint back and never pull it:

        tau = -max(0, k s(q - upper) + c s'(q - upper) v) + max(0, k s(lower - q) - c s'(lower - q) v)

    with the ramp `s(x) = 0` for `x <= 0`, `x^2 / (2 w)` up to the width `w`, `x - w / 2` beyond: the torque is zero
    inside the limits and continuous, the spring's with its derivative. (MuJoCo softens its limits over a width as well;
    there they are constraints.)

    Only joints whose coordinates are angles or lengths have such limits; ball and free joints are left alone. Infinite
    limits limit nothing.
    """

    lower: Float[Array, "*#batch nv"]
    upper: Float[Array, "*#batch nv"]
    stiffness: Float[Array, "*#batch #nv"]
    """`k`, N m/rad or N/m."""
    damping: Float[Array, "*#batch #nv"]
    """`c`, N m s/rad or N s/m."""
    width: Float[Array, "*#batch #nv"]
    """`w`, rad or m."""
    q_indices: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self,
        model: Model,
        stiffness: ArrayLike,
        damping: ArrayLike,
        width: ArrayLike = 0.01,
        *,
        lower: ArrayLike | None = None,
        upper: ArrayLike | None = None,
    ):
        """`lower` and `upper` `[*batch, nq]` are the model's where they are not given.

        **Raises** `ShapeError`; `ModelError` for a width that is not positive, and for a finite limit of a coordinate
        of a ball or free joint.
        """
        kinds, q_starts, v_starts = model.topology.blocks
        scalar = np.isin(kinds, list("RPH"))
        # Degrees of freedom without an angle or a length get any coordinate, and infinite limits.
        indices = np.zeros(model.nv, int)
        indices[v_starts[scalar]] = q_starts[scalar]
        limited = np.isin(np.arange(model.nv), v_starts[scalar])
        ends = []
        for given, own, name, none in (
            (lower, model.position_lower, "lower", -np.inf),
            (upper, model.position_upper, "upper", np.inf),
        ):
            end = as_leaf(own if given is None else given)
            require_last_axes(end, (model.nq,), f"the {name} limit", f"nq = {model.nq} for this model")
            others = np.setdiff1d(np.arange(model.nq), q_starts[scalar])
            if not isinstance(end, Tracer) and np.isfinite(np.asarray(end)[..., others]).any():
                raise ModelError(
                    f"the {name} limit is finite for a coordinate of a ball or free joint, among q{others.tolist()}; "
                    "soft limits are for angles and lengths: make it infinite"
                )
            ends.append(jnp.where(jnp.asarray(limited), end[..., indices], none))
        self.lower, self.upper = ends
        self.stiffness, self.damping, self.width = as_leaf(stiffness), as_leaf(damping), as_leaf(width)
        self.q_indices = tuple(indices.tolist())
        require_values(lambda x: x > 0, self.width, "the width", "positive")

    def torque(self, state: State) -> Float[Array, "*batch nv"]:
        n, v = len(self.q_indices), state.v
        q = state.q[..., np.array(self.q_indices)]
        k, c = gain(self.stiffness, n, "the stiffness", state), gain(self.damping, n, "the damping", state)
        w = gain(self.width, n, "the width", state)
        lower, upper = gain(self.lower, n, "the lower limit", state), gain(self.upper, n, "the upper limit", state)

        def push(depth, speed):
            # Infinitely far from a limit both parts are zero, with zero derivatives: no infinity is multiplied.
            inside_ramp = jnp.clip(depth, 0, w)
            s = inside_ramp**2 / (2 * w) + jnp.maximum(depth - w, 0)
            return jnp.maximum(k * s + c * (inside_ramp / w) * speed, 0)

        return push(lower - q, -v) - push(q - upper, v)
