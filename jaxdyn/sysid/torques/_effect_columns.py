"""The columns of the effects of joints: the torque's derivatives with respect to their parameters."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError
from jaxdyn.algorithms import torque_regressor
from jaxdyn.friction import (
    Asymmetric,
    Changing,
    GivenDirection,
    LoadProportional,
    PositionDependent,
    Stribeck,
    smooth_sign,
)
from jaxdyn.model import Model
from jaxdyn.sysid.recordings import Recording
from jaxdyn.sysid.torques._effect_values import EffectShape, FrictionMotion
from jaxdyn.sysid.torques._effects import SEARCHED, JointEffects
from jaxdyn.sysid.torques._layout import SIGNED, Layout, waves


def temperatures(recordings: tuple[Recording, ...], nv: int) -> np.ndarray | None:
    """The temperatures `[n, nv]` of recordings; None without. **Raises** `DataError` where some have none."""
    found = [x.temperature for x in recordings]
    if all(x is None for x in found):
        return None
    if any(x is None or x.shape[1] not in (1, nv) for x in found):
        raise DataError(f"some recordings have no temperature, or not one column or {nv}; give all of them one")
    return np.concatenate([np.broadcast_to(np.asarray(x), (len(np.asarray(x)), nv)) for x in found])


def searched_numbers(effects: JointEffects, model: Model, temperature: bool = False) -> np.ndarray:
    """`[6, nv]` of bool: whether the effects search for a number of the shape. Friction that changes with a temperature
    has no warm-up time."""
    out = np.stack([effects.dofs(name, model) for name in SEARCHED])
    out[list(SEARCHED).index("warm_up")] &= not temperature
    return out


def torque_columns(model: Model, motion: tuple[jax.Array, ...], shape: EffectShape, layout: Layout) -> jax.Array:
    """The derivative `[*batch, nv, P]` of the torque with respect to the parameters in which it is linear, in a motion
    `q, v, a` without delays, with transmitted torques `load`."""
    q, v, a, _ = motion
    terms = momentary_terms(model, motion, shape, layout) | {"offset": jnp.ones_like(v)}
    order = tuple(terms)
    kinds, dofs = np.array([(order.index(kind), j) for kind, j in layout.joints], int).reshape(-1, 2).T
    columns = jnp.moveaxis(jnp.stack([jnp.asarray(terms[x]) for x in order])[kinds, ..., dofs], 0, -1)
    effects = columns[..., None, :] * (dofs == np.arange(model.nv)[:, None])
    Y = torque_regressor(model, q, v, a)
    return jnp.concatenate([Y, effects.astype(Y.dtype)], axis=-1)


def momentary_terms(model: Model, motion: tuple[Any, ...], shape: EffectShape, layout: Layout) -> dict[str, Any]:
    """`effect_terms` in a motion `q, v, a, load` whose friction depends on the present velocity alone."""
    q, v, a, load = motion
    coordinates, dofs = model.topology.scalar_coordinates
    position = jnp.zeros_like(v).at[..., np.asarray(dofs)].set(q[..., np.asarray(coordinates)])
    direction = smooth_sign(v, shape.friction_velocity)
    friction_motion = FrictionMotion(v, direction, load, position, jnp.zeros_like(v))
    return effect_terms(model, q, a, friction_motion, shape.stribeck_velocity, layout)


def effect_terms(model: Model, q, a, motion: FrictionMotion, stribeck_velocity, layout: Layout) -> dict[str, Any]:
    """The columns `[*batch, nv]` of armature, friction and springs, by kind; NumPy's or JAX's, as the motion is."""
    stribeck = np.zeros(model.nv)
    stribeck[layout.dofs("static")] = 1
    springs = np.maximum(np.array(layout.springs), 0)
    displacement = q[..., springs]
    if model.spring_reference is not None:
        reference = model.spring_reference[springs]
        displacement = displacement - (reference if isinstance(q, jax.Array) else np.asarray(reference, np.float64))
    kinds = {"viscous", "coulomb"} | {kind for kind, _ in layout.joints}.intersection(friction_kinds(layout.harmonics))
    out = {kind: friction_column(kind, motion, stribeck_velocity, stribeck) for kind in sorted(kinds)}
    return out | {"armature": a, "spring": displacement}


def friction_kinds(harmonics: tuple[float, ...]) -> tuple[str, ...]:
    """The kinds of parameters in which friction is linear."""
    return "viscous", "coulomb", "static", "load", *SIGNED, *waves(harmonics)


def friction_column(kind: str, motion: FrictionMotion, stribeck_velocity, stribeck: Any = 0.0) -> Any:
    """The friction in a motion for one unit of a kind of parameter. Where `stribeck` is 1, Coulomb friction is that of
    fast motion."""
    u, s = motion.velocity, GivenDirection(motion.direction)
    if kind == "viscous":
        return u
    if kind in ("coulomb", "static"):
        fast, near_rest = Stribeck(1.0, 1.0, stribeck_velocity, s).columns(u)
        return near_rest if kind == "static" else fast + (1 - stribeck) * near_rest
    if kind == "load":
        return LoadProportional(1.0, motion.load, s).columns(u)[0]
    if kind in SIGNED:
        law = Asymmetric(1.0, 1.0, s) if kind.endswith("asymmetry") else Changing(1.0, 1.0, motion.change, s)
        return law.columns(u)["coulomb" in kind]
    wave, n = kind.split()
    return PositionDependent(1.0, 1.0, motion.position, float(n), s).columns(u)[wave == "sine"]


def effect_leaves(model: Model) -> dict[str, np.ndarray]:
    """The model's leaves `[nv]` by the kinds of effects that they hold."""
    leaves = {"armature": model.armature, "viscous": model.damping, "coulomb": model.friction}
    return {kind: np.asarray(x, np.float64) for kind, x in leaves.items()}
