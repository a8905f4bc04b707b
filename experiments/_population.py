"""Random models of one structure, and random motions for them."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp

from jaxdyn import DataError, Model, State, crba, rnea
from jaxdyn._errors import require_positive
from jaxdyn.model import with_payload
from jaxdyn.sysid import inertial_parameters_from_pseudo_inertia, pseudo_inertia


@dataclasses.dataclass(frozen=True)
class Range:
    """A uniform distribution between `low` and `high`."""

    low: float
    high: float

    def draw(self, key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Draw an array."""
        return jax.random.uniform(key, shape, minval=self.low, maxval=self.high)


@dataclasses.dataclass(frozen=True)
class Population:
    """The distribution of models. Their inertias stay physical."""

    mass: Range
    """Factor of the density of each body."""
    deformation: float
    """Standard deviation of the entries of `E`, by which the mass of a body moves: `x -> (1 + E) x + e`."""
    shift: float
    """Standard deviation of the components of `e`, m."""
    damping: Range
    """Viscous friction added to each joint, s/rad or s/m times its effort limit."""
    friction: Range
    """Coulomb friction added to each joint, as a part of its effort limit."""
    friction_velocity: float
    """Velocity over which Coulomb friction changes its sign, rad/s or m/s."""
    payload_frame: str
    """Frame or body that carries a payload; empty for none."""
    payload: Range
    """Mass of the payload, kg."""
    payload_radius: float
    """Radius of the payload, a solid ball, m."""
    gravity: Range
    """Magnitude, m/s^2."""
    gravity_tilt: float
    """Largest angle between gravity and its direction in the nominal model, rad."""

    def check(self) -> None:
        """Raise `DataError` for ranges from which no model can be drawn."""
        for name, least in (("mass", 0.0), ("damping", 0.0), ("friction", 0.0), ("payload", 0.0), ("gravity", 0.0)):
            x: Range = getattr(self, name)
            if not least <= x.low <= x.high < math.inf or (name == "mass" and x.low == 0):
                raise DataError(
                    f"population.{name} is from {x.low:g} to {x.high:g}; 0 {'<' if name == 'mass' else '<='} low <= "
                    "high is needed"
                )
        for name in ("deformation", "shift", "payload_radius", "gravity_tilt"):
            require_positive(getattr(self, name), f"population.{name}", zero=True, error=DataError)
        require_positive(self.friction_velocity, "population.friction_velocity", error=DataError)


@dataclasses.dataclass(frozen=True)
class Controls:
    """The controls of the roll-outs."""

    kind: Literal["servo", "sines", "noise"]
    """`servo`: position servos follow random sums of sines, with the nominal model's torques as feed-forward; `sines`:
    sums of sines of torque; `noise`: torques of low-pass filtered noise."""
    effort: float = 0.0
    """Effort limit of each joint, N m or N; 0 for the limit of the model."""
    amplitude: float = 0.5
    """Amplitude of a `servo` as part of half the joint's range, in rad or m if that is infinite; otherwise as a part
    of the effort."""
    frequency: float = 1.0
    """Highest frequency of the sines, or corner of the noise's filter, Hz."""
    harmonics: int = 5
    """Number of sines in each sum."""
    bandwidth: float = 15.0
    """Bandwidth of the servos, rad/s; they damp the least inertia of each joint critically."""

    def check(self) -> None:
        """Raise `DataError` for settings without a meaning."""
        for name in ("effort", "amplitude", "frequency", "harmonics", "bandwidth"):
            zero = name in ("effort", "amplitude")
            require_positive(getattr(self, name), f"controls.{name}", zero=zero, error=DataError)


def effort_limits(model: Model, controls: Controls) -> jax.Array:
    """Return the finite effort limits `[nv]`. **Raises** `DataError` with the joints that have none."""
    limit = jnp.full(model.nv, controls.effort, model.dtype) if controls.effort else model.effort_limit
    bad = [
        name
        for name in model.joint_names
        if not bool(jnp.isfinite(limit[model.v_index(name)]).all())
    ]  # fmt: skip
    if bad:
        raise DataError(f"joints without an effort limit: {', '.join(bad)}; give controls.effort")
    return limit


def draw_models(
    key: jax.Array, nominal: Model, population: Population, effort: jax.Array, n: int
) -> tuple[Model, dict[str, jax.Array]]:
    """Draw `n` models. Returns the nominal model with a leading axis of the drawn leaves, and the drawn arrays."""
    keys = iter(jax.random.split(key, 9))
    dtype, nb, nv = nominal.dtype, nominal.nb, nominal.nv
    density = population.mass.draw(next(keys), (n, nb))
    # An affine map of a body's points gives another distribution of mass: J -> A J A^T is positive (semi-)definite if J
    # is. This also works for thin rods, which have no log-Cholesky coordinates.
    E = population.deformation * jax.random.normal(next(keys), (n, nb, 3, 3))
    e = population.shift * jax.random.normal(next(keys), (n, nb, 3))
    affine = jnp.zeros((n, nb, 4, 4)).at[..., :3, :3].set(jnp.eye(3) + E).at[..., :3, 3].set(e).at[..., 3, 3].set(1.0)
    J = density[..., None, None] * affine @ pseudo_inertia(nominal.inertial_parameters) @ jnp.swapaxes(affine, -1, -2)
    damping = nominal.damping + effort * population.damping.draw(next(keys), (n, nv))
    friction = nominal.friction + effort * population.friction.draw(next(keys), (n, nv))
    payload = population.payload.draw(next(keys), (n,)) * bool(population.payload_frame)
    # The direction is uniform on the cap of the sphere around the nominal direction.
    cosine = jax.random.uniform(next(keys), (n,), minval=math.cos(population.gravity_tilt), maxval=1.0)
    around = jax.random.uniform(next(keys), (n,), maxval=2 * math.pi)
    sine = jnp.sqrt(1 - cosine**2)
    down = nominal.gravity / jnp.maximum(jnp.linalg.norm(nominal.gravity), 1e-9)
    across = _perpendicular(down)
    direction = (
        cosine[:, None] * down
        + (sine * jnp.cos(around))[:, None] * across
        + (sine * jnp.sin(around))[:, None] * jnp.cross(down, across)
    )
    gravity = population.gravity.draw(next(keys), (n, 1)) * direction
    models = dataclasses.replace(
        nominal,
        inertial_parameters=inertial_parameters_from_pseudo_inertia(J).astype(dtype),
        damping=damping.astype(dtype),
        friction=friction.astype(dtype),
        friction_velocity=jnp.full(nv, population.friction_velocity, dtype),
        gravity=gravity.astype(dtype),
    )
    if population.payload_frame:
        moment = 0.4 * payload * population.payload_radius**2
        zero = jnp.zeros_like(payload)
        ball = jnp.stack([payload, zero, zero, zero, moment, zero, moment, zero, zero, moment], axis=-1)
        models = with_payload(models, population.payload_frame, ball.astype(dtype))
    drawn = {
        "inertial_parameters": models.inertial_parameters,
        "damping": models.damping,
        "friction": models.friction,
        "friction_velocity": models.friction_velocity,
        "gravity": models.gravity,
        "payload": payload.astype(dtype),
    }
    return models, drawn


class Servos(eqx.Module):
    """Servos of joints along a motion, with feed-forward and limited torques; called as a policy whose carry counts the
    steps."""

    q: jax.Array
    v: jax.Array
    feedforward: jax.Array
    """`[n, steps, nv]` each"""
    kp: jax.Array
    kd: jax.Array
    effort: jax.Array

    def __call__(self, step: jax.Array, state: State, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        q, v, torque = (jnp.take(x, step, axis=-2) for x in (self.q, self.v, self.feedforward))
        torque = torque + self.kp * (q - state.q) + self.kd * (v - state.v)
        return step + 1, jnp.clip(torque, -self.effort, self.effort)


def draw_motion(
    key: jax.Array, nominal: Model, controls: Controls, effort: jax.Array, n: int, steps: int, dt: float
) -> tuple[State, Servos | jax.Array]:
    """Return the starts of `n` roll-outs, and the policy or the torques `[n, steps, nv]` that drive them."""
    first, second, third = jax.random.split(key, 3)
    nv, dtype = nominal.nv, nominal.dtype
    t = dt * jnp.arange(steps, dtype=dtype)
    if controls.kind == "servo":
        finite = jnp.isfinite(nominal.position_lower) & jnp.isfinite(nominal.position_upper)
        lower, upper = (jnp.where(finite, x, 0.0) for x in (nominal.position_lower, nominal.position_upper))
        size = controls.amplitude * jnp.where(finite, 0.5 * (upper - lower), 1.0)
        q, v, a = _sines(first, second, third, controls, n, nv, t)
        q, v, a = 0.5 * (lower + upper) + size * q, size * v, size * a
        feedforward = rnea(nominal, q, v, a, joint_friction=False)
        inertia = _least_inertia(nominal, lower, upper)
        kp, kd = controls.bandwidth**2 * inertia, 2 * controls.bandwidth * inertia
        return State(q[:, 0], v[:, 0]), Servos(q, v, feedforward, kp, kd, effort)
    if controls.kind == "sines":
        torque = _sines(first, second, third, controls, n, nv, t)[0]
    else:
        decay = math.exp(-2 * math.pi * controls.frequency * dt)
        white = jax.random.normal(first, (steps, n, nv), dtype)

        def advance(x, w):
            x = decay * x + math.sqrt(1 - decay**2) * w
            return x, x

        torque = jnp.moveaxis(jax.lax.scan(advance, white[0], white)[1], 0, 1)
    q = nominal.random_configuration(jax.random.fold_in(key, 1), (n,)).astype(dtype)
    return State(q, jnp.zeros((n, nv), dtype)), jnp.clip(controls.amplitude * effort * torque, -effort, effort)


def _least_inertia(model: Model, lower: jax.Array, upper: jax.Array) -> jax.Array:
    """Return the inertia of each joint with the others free, `1 / (M^-1)_ii [nv]`, the least of some configurations.

    The torque of a servo is held over a sample. With the diagonal of `M`, an arm whose first and third axes are nearly
    in line would chatter: it has little inertia when they turn against each other.
    """
    share = jax.random.uniform(jax.random.key(0), (64, model.nq), model.dtype)
    M = crba(model, lower + share * (upper - lower))
    return (1 / jnp.diagonal(jnp.linalg.inv(M), axis1=-2, axis2=-1)).min(axis=0)


def _sines(first, second, third, controls: Controls, n: int, nv: int, t: jax.Array) -> tuple[jax.Array, ...]:
    """Return sums of sines within [-1, 1] with their first and second derivatives, `[n, steps, nv]` each."""
    shape = (n, 1, nv, controls.harmonics)
    weight = jax.random.uniform(first, shape, t.dtype, minval=0.2)
    weight = weight / weight.sum(axis=-1, keepdims=True)
    omega = 2 * math.pi * controls.frequency * jax.random.uniform(second, shape, t.dtype, minval=0.05)
    phase = omega * t[:, None, None] + jax.random.uniform(third, shape, t.dtype, maxval=2 * math.pi)
    return tuple(
        (weight * x).sum(axis=-1) for x in (jnp.sin(phase), omega * jnp.cos(phase), -(omega**2) * jnp.sin(phase))
    )


def _perpendicular(x: jax.Array) -> jax.Array:
    """Return a unit vector perpendicular to a unit vector."""
    y = jnp.cross(x, jnp.eye(3, dtype=x.dtype)[jnp.argmin(jnp.abs(x))])
    return y / jnp.linalg.norm(y)
