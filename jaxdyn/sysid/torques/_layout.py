"""The order of the parameters of a torque model, and lengths of links among them: where joints and the frames of loops
stand in their bodies.

The torque is not linear in lengths. A fit takes the torque's derivatives at the positions that it has found so far, and
again after each of its rounds, which are Gauss-Newton steps therefore.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, ModelError
from jaxdyn.algorithms import complete_motion, project_configuration
from jaxdyn.model import Model, require_inertias
from jaxdyn.sysid.parameters import Place, leaves
from jaxdyn.sysid.recordings import transmissions
from jaxdyn.sysid.torques._effects import SEARCHED, JointEffects, frictionless_torque

SCALES = ("friction velocity", "Stribeck velocity", "presliding distance", "warm-up time")
DELAYS = ("friction delay", "torque delay")
"""Kinds of parameters in which the torque is not linear, in the order of `EffectShape`: positive ones, and delays."""
POSITIVE = ("armature", "viscous", "coulomb", "static", "load", "spring", "compliance", "backlash", *SCALES)
"""Kinds of positive parameters, in their order."""
SIGNED = ("viscous asymmetry", "coulomb asymmetry", "warm-up viscous", "warm-up coulomb")
"""Kinds of parameters of either sign, beside those of `waves` and offsets."""
INERTIAL_NAMES = ("m", "m*cx", "m*cy", "m*cz", "Ixx", "Ixy", "Iyy", "Ixz", "Iyz", "Izz")
# Step of the differences that give the torque's derivatives: central, so that the torque of a tree, quadratic in
# lengths, has no error but rounding.
_STEP = 1e-3


@dataclasses.dataclass(frozen=True)
class Layout:
    """The order of the parameters `[P]`: all bodies' inertial ones, positive ones of joints, those of either sign,
    offsets, delays, positions of joints. Hashable."""

    nb: int
    nv: int
    joints: tuple[tuple[str, int], ...]
    """Kind and degree of freedom of each parameter of the joints: of `POSITIVE`, of `SIGNED`, of `waves`, then
    `"offset"`, then of `DELAYS`."""
    gains: tuple[int, ...]
    """Degrees of freedom with an unknown drive gain, in which the torque is not linear: they are not in the vector."""
    springs: tuple[int, ...]
    """`[nv]`: the coordinate of each degree of freedom with an unknown spring, -1 for the others."""
    harmonics: tuple[float, ...]
    """The harmonics of friction that depends on the position."""
    places: tuple[Place, ...]
    """The joints, and frames of loops, whose positions are parameters, three each."""
    coupled: tuple[int, ...] = ()
    """The degrees of freedom in whose places stand motors that drive joints together."""

    @classmethod
    def of(
        cls,
        model: Model,
        effects: JointEffects,
        refined: np.ndarray | None = None,
        transmission: np.ndarray | None = None,
    ) -> Self:
        """The layout for a model and the chosen effects. The numbers of the shape that are `refined` `[6, nv]`, in the
        order of `EffectShape`, are parameters too. **Raises** `ModelError` for a model with batch axes, `DataError` for
        Stribeck's effect without Coulomb friction, and for springs with a transmission."""
        require_one_robot(model)
        springs = effects.coordinates("spring", model)
        fields = {"static": "stribeck", "compliance": "flexibility"}
        fields |= {kind: kind for kind in ("armature", "viscous", "coulomb", "load", "backlash", "offset")}
        chosen = {kind: effects.dofs(name, model) for kind, name in fields.items()} | {"spring": springs >= 0}
        # An offset is half of the difference of Coulomb friction between both directions, and more than that.
        asymmetry, warm_up = effects.dofs("asymmetry", model), effects.dofs("warm_up", model)
        chosen |= {"viscous asymmetry": asymmetry, "coulomb asymmetry": asymmetry & ~chosen["offset"]}
        chosen |= dict.fromkeys(("warm-up viscous", "warm-up coulomb"), warm_up)
        harmonics = effects.harmonics if effects.position else ()
        chosen |= dict.fromkeys(waves(harmonics), effects.coordinates("position", model) >= 0)
        refined = np.zeros((len(SEARCHED), model.nv), bool) if refined is None else np.asarray(refined, bool)
        chosen |= dict(zip((*SCALES, *DELAYS), refined, strict=True))
        missing = chosen["static"] & ~chosen["coulomb"]
        if missing.any():
            raise DataError(
                f"effects: stribeck without coulomb at the degrees of freedom {np.flatnonzero(missing).tolist()}; "
                "Stribeck's law falls from break-away to Coulomb friction: choose both"
            )
        kinds = (*POSITIVE, *SIGNED, *waves(harmonics), "offset", *DELAYS)
        joints = tuple((kind, j) for kind in kinds for j in np.flatnonzero(chosen[kind]).tolist())
        gains = tuple(np.flatnonzero(effects.dofs("gain", model)).tolist())
        freed = leaves.chosen_places(model, None if effects.length is True else effects.length or ())
        if transmission is None:
            return cls(model.nb, model.nv, joints, gains, tuple(springs.tolist()), harmonics, freed)
        if (springs >= 0).any():
            raise DataError("effects: spring does not go with a transmission; leave it out")
        coupled = tuple(np.flatnonzero(~transmissions.alone(transmission)).tolist())
        return cls(model.nb, model.nv, joints, gains, tuple(springs.tolist()), harmonics, freed, coupled)

    def dofs(self, *kinds: str) -> list[int]:
        """The degrees of freedom that have parameters of these kinds."""
        return [j for kind, j in self.joints if kind in kinds]

    @property
    def by_load(self) -> bool:
        """Whether columns depend on the transmitted torque: those of load friction, flexibility and backlash."""
        return bool(self.dofs("load", "compliance", "backlash"))

    @property
    def size(self) -> int:
        return 10 * self.nb + len(self.joints) + 3 * len(self.places)

    @property
    def positive(self) -> int:
        """The number of positive parameters of joints, the first ones."""
        return len(self.dofs(*POSITIVE))

    @property
    def nonlinear(self) -> bool:
        """Whether the torque is not linear in some parameters: lengths, deflections, or those of `EffectShape`."""
        return bool(self.places or self.dofs(*SCALES, *DELAYS, "compliance", "backlash"))

    def names(self, model: Model) -> list[str]:
        inertial = [f"{x}({body})" for body in model.body_names for x in INERTIAL_NAMES]
        owners = [f"motor {x}" if j in self.coupled else x for j, x in enumerate(model.topology.dof_names)]
        joints = [f"{kind}({owners[j]})" for kind, j in self.joints]
        positions = [f"position {x}({leaves.place_label(model, place)})" for place in self.places for x in "xyz"]
        return [*inertial, *joints, *positions]

    def positions(self, parameters: np.ndarray) -> np.ndarray:
        """The positions `[3 places]` in the vector."""
        return np.asarray(parameters)[self.size - 3 * len(self.places) :]

    def joint_values(self, parameters: np.ndarray) -> dict[str, np.ndarray]:
        """The values `[nv]` of each kind; NaN where the vector has none."""
        kinds = (*POSITIVE, *SIGNED, *waves(self.harmonics), "offset", *DELAYS)
        out = {kind: np.full(self.nv, np.nan) for kind in kinds}
        for (kind, j), x in zip(self.joints, np.asarray(parameters)[10 * self.nb :], strict=False):
            out[kind][j] = x
        return out

    def drive_gains(self, scale: np.ndarray) -> np.ndarray:
        """The drive gains `[nv]`, 1 where they are known, from the inverses `scale` of the unknown ones."""
        out = np.ones(self.nv)
        out[list(self.gains)] = 1 / scale
        return out


def kind_of(name: str) -> str:
    """The kind of parameter that a field of `JointEffectValues` with this name has."""
    return name.replace("_", " ").replace("warm up", "warm-up")


def waves(harmonics: tuple[float, ...]) -> tuple[str, ...]:
    """The kinds of parameters of friction that depends on the position, two for each harmonic."""
    return tuple(f"{wave} {n!r}" for n in harmonics for wave in ("cosine", "sine"))


def require_one_robot(model: Model) -> None:
    """Raise `ModelError` for a model with batch axes, and for one that lacks inertias."""
    guess = "Give a guess of each by model.with_link_parameters(link, BodyInertia.sphere(...)), which a fit improves"
    require_inertias(model.topology, "an identification", f"{guess}; torque_regressor needs no inertias")
    if model.inertial_parameters.ndim != 2:
        raise ModelError(f"the model has batch axes {model.inertial_parameters.shape[:-2]}: take one element first")


def place_positions(model: Model, chosen: tuple[Place, ...]) -> np.ndarray:
    """The positions `[3 places]` of a model, m."""
    return np.array([getattr(model, leaf)[i, :3] for leaf, i in chosen], np.float64).reshape(-1)


def with_positions(model: Model, chosen: tuple[Place, ...], values: np.ndarray) -> Model:
    """The model with other positions `[3 places]`."""
    new = {leaf: np.array(getattr(model, leaf)) for leaf in {leaf for leaf, _ in chosen}}
    for (leaf, i), x in zip(chosen, np.reshape(values, (-1, 3)), strict=True):
        new[leaf][i, :3] = x
    return dataclasses.replace(model, **{leaf: jnp.asarray(x, model.dtype) for leaf, x in new.items()})


def with_lengths_of(model: Model, other: Model) -> Model:
    """The model with all lengths of another model of the robot."""
    return dataclasses.replace(model, **{leaf: getattr(other, leaf) for leaf in leaves.LEAVES})


def torque_slopes(
    model: Model, entries: list[tuple[str, tuple[Any, ...], np.ndarray]], torque: Callable[[Model], np.ndarray]
) -> np.ndarray:
    """The derivatives `[..., k]` of a model's torque along directions of entries of its leaves."""
    out = []
    for leaf, at, direction in entries:
        x = getattr(model, leaf)
        ends = (x.at[at].add(s * _STEP * jnp.asarray(direction, x.dtype)) for s in (1, -1))
        above, below = (torque(dataclasses.replace(model, **{leaf: end})) for end in ends)
        out.append((above - below) / (2 * _STEP))
    return np.stack(out, axis=-1)


def length_slopes(
    model: Model,
    chosen: tuple[Place, ...],
    motion,
    joints: tuple[str, ...] | None,
    transmission: np.ndarray | None = None,
) -> np.ndarray:
    """The derivatives `[n, nv, 3 places]` of the torque without friction with respect to positions, in a motion `q, v,
    a`, in which the `joints` that drive closed loops move as they were recorded; with a transmission, of the motors'
    torque."""
    entries = [(leaf, (i, slice(0, 3)), e) for leaf, i in chosen for e in np.eye(3)]

    def torque(changed: Model) -> np.ndarray:
        return frictionless_torque(changed, *motion_of(changed, motion, joints), joints, transmission)

    return torque_slopes(model, entries, torque)


def motion_of(model: Model, motion, joints: tuple[str, ...] | None) -> tuple[Any, Any, Any]:
    """The motion `q, v, a` of a model with other lengths, in which the `joints` that drive closed loops move as they
    were recorded. Loops that it cannot close, as out of the plane of a planar mechanism, stay open."""
    q, v, a = (jnp.asarray(x, model.dtype) for x in motion)
    if joints is None:
        return q, v, a
    q = project_configuration(model, q, kept=joints).q
    out = complete_motion(model, q, v, a, joints)
    return q, out.v, out.a
