"""The torque model of identification, linear in its parameters, and its data compressed to triangular factors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import DataError, ModelError
from jaxdyn.algorithms import spring_torque, torque_regressor
from jaxdyn.model import Model
from jaxdyn.sysid.recordings._recording import Recording, as_recordings
from jaxdyn.sysid.torques._effects import JointEffects, JointEffectValues, delayed

_CHUNK = 4096
# Bytes of regressor that are kept between passes over the samples; more is computed anew in each.
_KEPT = 2**28
POSITIVE = ("armature", "viscous", "coulomb", "static", "load", "spring")
"""Kinds of positive parameters, in their order."""
INERTIAL_NAMES = ("m", "m*cx", "m*cy", "m*cz", "Ixx", "Ixy", "Iyy", "Ixz", "Iyz", "Izz")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The parameter vector `[P]`: inertial parameters of all bodies, positive numbers of joints, offsets. Hashable."""

    nb: int
    nv: int
    positive: tuple[tuple[int, int], ...]
    """Kind (index in `POSITIVE`) and degree of freedom."""
    offsets: tuple[int, ...]
    """Degrees of freedom."""
    gains: tuple[int, ...]
    """Degrees of freedom with an unknown drive gain; not in the vector, since the torque is not linear in them."""
    springs: tuple[int, ...]
    """`[nv]`: the coordinate of each degree of freedom with an unknown spring, -1 for the others."""

    @classmethod
    def of(cls, model: Model, effects: JointEffects) -> Self:
        if model.inertial_parameters.ndim != 2:
            raise ModelError(f"the model has batch axes {model.inertial_parameters.shape[:-2]}: take one element first")
        names = {"static": "stribeck"}
        chosen = {kind: effects.dofs(names.get(kind, kind), model) for kind in POSITIVE}
        springs = effects.q_indices(model)
        chosen["spring"] = springs >= 0
        missing = chosen["static"] & ~chosen["coulomb"]
        if missing.any():
            raise DataError(
                f"effects: stribeck without coulomb at the degrees of freedom {np.flatnonzero(missing).tolist()}; "
                "Stribeck's law falls from break-away to Coulomb friction: choose both"
            )
        positive = tuple((k, int(j)) for k, kind in enumerate(POSITIVE) for j in np.flatnonzero(chosen[kind]))
        offsets, gains = (tuple(np.flatnonzero(effects.dofs(x, model)).tolist()) for x in ("offset", "gain"))
        return cls(model.nb, model.nv, positive, offsets, gains, tuple(springs.tolist()))

    @property
    def by_load(self) -> bool:
        """Whether some friction grows with the transmitted torque."""
        return any(POSITIVE[k] == "load" for k, _ in self.positive)

    @property
    def size(self) -> int:
        """`P`."""
        return 10 * self.nb + len(self.positive) + len(self.offsets)

    def names(self, model: Model) -> list[str]:
        """`[P]`: what each parameter is called."""
        inertial = [f"{x}({body})" for body in model.body_names for x in INERTIAL_NAMES]
        dofs = dof_names(model)
        effects = [f"{POSITIVE[k]}({dofs[j]})" for k, j in self.positive]
        return [*inertial, *effects, *(f"offset({dofs[j]})" for j in self.offsets)]

    def joint_values(self, parameters: np.ndarray) -> dict[str, np.ndarray]:
        """By kind and `"offset"`: `[nv]`, NaN where it is not among the parameters."""
        out = {kind: np.full(self.nv, np.nan) for kind in (*POSITIVE, "offset")}
        rest = np.asarray(parameters)[10 * self.nb :]
        for (k, j), x in zip(self.positive, rest, strict=False):
            out[POSITIVE[k]][j] = x
        out["offset"][list(self.offsets)] = rest[len(self.positive) :]
        return out


class Shape(NamedTuple):
    """What the torque is not linear in, each `[nv]`: friction velocity, Stribeck velocity, delays (s)."""

    friction_velocity: np.ndarray
    stribeck_velocity: np.ndarray
    friction_delay: np.ndarray
    torque_delay: np.ndarray


class TorqueData(NamedTuple):
    """All that least squares needs to know of recordings."""

    factors: np.ndarray
    """`[nv, k, P + 2]`: triangular `R_j` with `R_j^T R_j = B_j^T B_j`, `B_j = [Y_j, known torque, measured torque]`,
    for each degree of freedom `j`."""
    samples: np.ndarray
    """`[nv]`: how many (or the sum of their weights)."""

    def stacked(self, sigma: np.ndarray) -> np.ndarray:
        """`[nv k, P + 2]`: all joints' rows, each weighted with `1 / sigma`."""
        return (self.factors / sigma[:, None, None]).reshape(-1, self.factors.shape[-1])

    def weighted(self, sigma: np.ndarray) -> np.ndarray:
        """`[k, P + 1]`: one triangular factor for all joints, the known torque subtracted."""
        rows = self.stacked(sigma)
        rows = np.concatenate([rows[:, :-2], rows[:, -1:] - rows[:, -2:-1]], axis=-1)
        return np.linalg.qr(rows, mode="r")

    def residual_rms(self, parameters: np.ndarray, gain: np.ndarray | float = 1.0) -> np.ndarray:
        """`[nv]`: root mean square of `(Y p + known) / g - tau` over the samples, in the unit of the recording."""
        gain = np.broadcast_to(np.asarray(gain, np.float64), self.samples.shape)[:, None]
        residual = self.factors[..., :-1] @ np.append(parameters, 1.0) / gain - self.factors[..., -1]
        return np.sqrt(np.sum(residual**2, axis=-1) / self.samples)

    @staticmethod
    def joined(parts: Sequence[TorqueData]) -> TorqueData:
        """The data of all parts together."""
        rows = np.concatenate([x.factors for x in parts], axis=1)
        return TorqueData(np.linalg.qr(rows, mode="r"), np.sum([x.samples for x in parts], axis=0))


class Samples:
    """Recordings with the columns of the torque model, chunk by chunk."""

    def __init__(self, model: Model, recordings, effects: JointEffects, shape: Shape):
        self.model, self.layout, self.shape = model, Layout.of(model, effects), shape
        self.recordings = as_recordings(recordings)
        parts = [checked(model, x) for x in self.recordings]
        self.t = np.concatenate([x.t - x.t[0] for x in self.recordings])
        self.q, self.v, self.a, self.measured = (np.concatenate([x[k] for x in parts]) for k in range(4))
        self.starts = np.cumsum([0, *(len(x) for x in self.recordings)])
        lag = shape.friction_delay
        self.u = np.concatenate(
            [delayed(x.t, v, a, lag) for x, (_, v, a, _) in zip(self.recordings, parts, strict=True)]
        )
        # The torque of the motion at t is recorded at t + delay, where the recording has not ended.
        lag = shape.torque_delay
        self.tau = np.concatenate(
            [delayed(x.t, tau, None, -lag) for x, (*_, tau) in zip(self.recordings, parts, strict=True)]
        )
        self.valid = np.concatenate([x.t[:, None] + lag <= x.t[-1] for x in self.recordings])
        self.load = np.abs(self.tau)
        """`[n, nv]`: the transmitted torque, by which friction may grow: at first the measured one."""
        size = np.sqrt(np.mean(self.tau**2, axis=0))
        if not size.max() > 0:
            raise DataError("the recording's torques are all zero: nothing can be identified from them")
        # A floor for joints that carry no torque.
        self.torque_scale = np.maximum(size, 1e-3 * size.max())
        self.velocity_scale, self.acceleration_scale = (np.sqrt(np.mean(x**2, axis=0)) for x in (self.v, self.a))
        self._kept: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.q)

    def set_load(self, load: np.ndarray) -> None:
        self.load = np.abs(load)
        self._kept = []

    def chunks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Rows, and `[rows, nv, P + 2]`: the columns `Y`, the known torque, the measured one; zero where not valid."""
        n, size = len(self), min(len(self), _CHUNK)
        keep = n * self.layout.nv * (self.layout.size + 2) * 8 <= _KEPT
        # Chunks bound the memory; the last is filled up with repeats, which are dropped: one program serves all.
        for k, start in enumerate(range(0, n, size)):
            kept = slice(start, min(start + size, n))
            if k < len(self._kept):
                yield kept, self._kept[k]
                continue
            rows = np.minimum(np.arange(start, start + size), n - 1)
            motion = tuple(jnp.asarray(x[rows]) for x in (self.q, self.v, self.a, self.u, self.load))
            Y, known = torque_columns(self.model, motion, self.shape, self.layout)
            B = np.concatenate([Y, known[..., None], self.tau[rows][..., None]], axis=-1, dtype=np.float64)
            B = (B * self.valid[rows][..., None])[: kept.stop - kept.start]
            if keep:
                self._kept.append(B)
            yield kept, B

    def compressed(self, weights: np.ndarray | None = None, groups: np.ndarray | None = None) -> list[TorqueData]:
        """The samples as triangular factors: the data part of the problem is linear, so that
        `|Y_j p + known_j - tau_j|^2 = |R_j [p, 1, -1]|^2` exactly for every `p`, and no step of a fit touches the
        samples again. `weights` `[n, nv]` of squares; `groups` `[n]` of int: one `TorqueData` for each group."""
        groups = np.zeros(len(self), int) if groups is None else groups
        width = self.layout.size + 2
        counts = self.valid if weights is None else self.valid * weights
        out = []
        for group in range(int(groups.max()) + 1):
            factors = np.zeros((self.layout.nv, 0, width))
            for rows, B in self.chunks():
                mine = groups[rows] == group
                if not mine.any():
                    continue
                block = B[mine] if weights is None else B[mine] * np.sqrt(weights[rows][mine])[..., None]
                factors = np.linalg.qr(np.concatenate([factors, block.swapaxes(0, 1)], axis=1), mode="r")
            out.append(TorqueData(factors, np.maximum(counts[groups == group].sum(axis=0), 1.0)))
        return out

    def residuals(self, parameters: np.ndarray, gain: np.ndarray | float = 1.0) -> np.ndarray:
        """`[n, nv]`: `(Y p + known) / g - tau`, zero where not valid."""
        p = np.append(parameters, 1.0)
        return np.concatenate([B[..., :-1] @ p / gain - B[..., -1] for _, B in self.chunks()])

    def blocks(self, count: int) -> np.ndarray:
        """`[n]` of int: `count` blocks of consecutive samples of about equal length, none across two recordings."""
        lengths = np.diff(self.starts)
        shares = np.maximum(1, np.round(count * lengths / len(self))).astype(int)
        out, first = [], 0
        for n, k in zip(lengths, shares, strict=True):
            out.append(first + np.arange(n) * k // n)
            first += k
        return np.concatenate(out)


@eqx.filter_jit
def torque_columns(model: Model, motion: tuple[jax.Array, ...], shape: Shape, layout: Layout):
    """`[*batch, nv, P]`: the torque's derivative by the parameters, and `[*batch, nv]`: what is known of it (springs,
    and the model's armature and friction where they are not among the parameters)."""
    q, v, a, u, load = motion
    w, v_s = (jnp.asarray(x, u.dtype) for x in shape[:2])
    s = jnp.tanh(u / w)
    slow = np.zeros(model.nv)
    slow[[j for k, j in layout.positive if POSITIVE[k] == "static"]] = 1
    near_rest = slow * jnp.exp(-((u / v_s) ** 2))
    springs = np.array(layout.springs)
    displacement = q[..., np.maximum(springs, 0)]
    if model.spring_reference is not None:
        displacement = displacement - model.spring_reference[np.maximum(springs, 0)]
    terms = jnp.stack([a, u, (1 - near_rest) * s, near_rest * s, load * s, displacement])
    Y = torque_regressor(model, q, v, a)
    kinds, dofs = np.array(layout.positive, int).reshape(-1, 2).T
    offsets = np.array(layout.offsets, int)
    values = jnp.concatenate([terms[kinds, ..., dofs], jnp.ones((len(offsets), *u.shape[:-1]), u.dtype)])
    on = np.concatenate([dofs, offsets])
    effects = jnp.moveaxis(values, 0, -1)[..., None, :] * (on == np.arange(model.nv)[:, None])
    if model.stiffness is not None:
        model = eqx.tree_at(lambda m: m.stiffness, model, jnp.where(jnp.asarray(springs < 0), model.stiffness, 0.0))
    known = spring_torque(model, q)
    for k, leaf in enumerate((model.armature, model.damping, model.friction)):
        fixed = np.setdiff1d(np.arange(model.nv), dofs[kinds == k])
        known = known.at[..., fixed].add((leaf * terms[k])[..., fixed])
    return jnp.concatenate([Y, effects.astype(Y.dtype)], axis=-1), known


def checked(model: Model, recording: Recording, *, torques: bool = True) -> tuple[np.ndarray, ...]:
    """`q, v, a` and `tau` of a recording that fits the model. **Raises** `DataError`, `ModelError`."""
    if model.inertial_parameters.ndim != 2:
        raise ModelError(f"the model has batch axes {model.inertial_parameters.shape[:-2]}: take one element first")
    arrays = recording.require("q", "v", "a", *(("tau",) if torques else ()))
    for name, x, size in zip(("q", "v", "a", "tau"), arrays, (model.nq, *(model.nv,) * 3), strict=False):
        if x.shape[1] != size:
            raise DataError(
                f"{recording.name}: {name} has {x.shape[1]} columns, but the model needs {size}: joints "
                f"{', '.join(model.joint_names)}"
            )
    return arrays


def with_parameters(model: Model, layout: Layout, parameters: np.ndarray, shape: Shape, gain: np.ndarray):
    """The model with the leaves that a parameter vector `[P]` names, and the values that have no place in it."""
    found = layout.joint_values(np.asarray(parameters))
    own = {"armature": model.armature, "viscous": model.damping, "coulomb": model.friction}
    leaves = {k: np.where(np.isnan(found[k]), np.asarray(x, np.float64), found[k]) for k, x in own.items()}
    values = JointEffectValues(
        offset=np.nan_to_num(found["offset"]),
        static=np.where(np.isnan(found["static"]), leaves["coulomb"], found["static"]),
        stribeck_velocity=np.where(np.isnan(found["static"]), 1.0, shape.stribeck_velocity),
        load=np.nan_to_num(found["load"]),
        gain=gain,
        friction_delay=shape.friction_delay,
        torque_delay=shape.torque_delay,
    )
    inertial = np.asarray(parameters)[: 10 * layout.nb].reshape(layout.nb, 10)
    new = (inertial, *leaves.values(), shape.friction_velocity)
    model = eqx.tree_at(
        lambda m: (m.inertial_parameters, m.armature, m.damping, m.friction, m.friction_velocity),
        model,
        tuple(jnp.asarray(x, model.dtype) for x in new),
    )
    if any(i >= 0 for i in layout.springs):
        old = np.zeros(layout.nv) if model.stiffness is None else np.asarray(model.stiffness, np.float64)
        reference = np.zeros(model.nq) if model.spring_reference is None else model.spring_reference
        springs = np.where(np.isnan(found["spring"]), old, found["spring"])
        model = eqx.tree_at(
            lambda m: (m.stiffness, m.spring_reference),
            model,
            (jnp.asarray(springs, model.dtype), jnp.asarray(reference, model.dtype)),
            is_leaf=lambda x: x is None,
        )
    return model, values


def dof_names(model: Model) -> list[str]:
    """`[nv]`: the joint's name, with a number where it has several degrees of freedom."""
    out = []
    starts = model.topology.v_starts
    for i, joint in enumerate(model.joint_names):
        n = starts[i + 1] - starts[i]
        out += [joint] if n == 1 else [f"{joint}[{k}]" for k in range(n)]
    return out
