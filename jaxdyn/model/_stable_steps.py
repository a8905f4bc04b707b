"""The longest time steps with which friction, damping and springs of joints are stable, in NumPy."""

from __future__ import annotations

import dataclasses
import weakref
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from jaxdyn.model._fields import LEAVES, ModelFields
from jaxdyn.model._mobility import closed_configuration
from jaxdyn.model._singular_motions import configurations, mass_matrices

_RUNGE_KUTTA = 4.0
"""A product of a rate and a step beyond the stability region of the classical Runge-Kutta method, whose points are
within 3 of zero (Hairer & Wanner, Solving Ordinary Differential Equations II, 1996, section IV.2)."""


class StableStep(NamedTuple):
    """The longest stable step of an integrator."""

    dt: float
    """s; infinite where no joint limits it."""
    joint: str
    """The name of the joint that limits it most; of several, the first."""


_KNOWN: dict[int, tuple[weakref.ref, dict[str, StableStep]]] = {}
"""The results for models that are in use, by their identity: models do not change, and steps ask each time."""


def stable_steps(model: ModelFields) -> dict[str, StableStep]:
    """Return the longest stable step of each integrator, by its name; none where no joint has friction, damping or a
    spring, where arrays are traced, or where the mass matrix is singular.

    The equations of motion are linearized at rest, where Coulomb friction is steepest: `M dv/dt = -C v - K x`, with
    `C = damping + friction / friction_velocity` and `K = stiffness`; gravity, contacts, actuators and velocities are
    left out. `M` is the mass matrix at the neutral and a few random configurations (with a fixed seed, within the
    limits), and the smallest step of them counts; with loops it is that of the motions that they leave, where they
    close. The model of a batch that has the most friction stands for all.

    The steps are those at which the linear equations cease to be stable: of the Euler methods and of `"midpoint"` the
    least root `h` of `det(4 M - 2 h C - h^2 K)`. Of `"midpoint"`, which is implicit in damping, `C` is Coulomb friction
    alone, for which it is the step beyond which its iterations need not converge; of `"implicit_velocity"` `C` has the
    other sign.
    """
    known = _KNOWN.get(id(model))
    if known is None or known[0]() is not model:
        number = id(model)
        with jax.ensure_compile_time_eval():
            known = weakref.ref(model, lambda _: _KNOWN.pop(number, None)), _stable_steps(model)
        _KNOWN[number] = known
    return known[1]


def _stable_steps(model: ModelFields) -> dict[str, StableStep]:
    arrays = {name: x for name in LEAVES if (x := getattr(model, name)) is not None}
    if model.topology.missing_inertias or any(
        isinstance(x, Tracer) or not isinstance(x, jax.Array | np.ndarray) or 0 in x.shape[: x.ndim - LEAVES[n].axes]
        for n, x in arrays.items()
    ):
        return {}
    if not any(np.asarray(arrays[name]).any() for name in ("damping", "friction", "stiffness") if name in arrays):
        return {}
    model = dataclasses.replace(model, **_one_of_batch(model, arrays))
    coulomb = np.asarray(model.friction) / np.asarray(model.friction_velocity)
    stiffness = np.zeros(model.nv) if model.stiffness is None else np.asarray(model.stiffness)
    laws = np.stack([coulomb + np.asarray(model.damping), coulomb, stiffness])
    # Numbers that no robot has, such as 1e300, overflow, and joints may move without moving anything with inertia.
    with np.errstate(all="ignore"):
        try:
            found = [_of_motions(model, motions, laws) for motions in _motions(model)]
        except np.linalg.LinAlgError:
            return {}
    return {name: min((steps[name] for steps in found), key=lambda x: x.dt) for name in found[0]}


def _one_of_batch(model: ModelFields, arrays: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the arrays of the model with the most friction of a batch, in double precision."""
    axes = {name: x.ndim - LEAVES[name].axes for name, x in arrays.items()}
    batch = np.broadcast_shapes(*(x.shape[: axes[name]] for name, x in arrays.items()))
    values = {name: np.asarray(x, np.float64) for name, x in arrays.items()}
    most = (values["friction"] / values["friction_velocity"] + values["damping"]).max(axis=-1)
    place = np.unravel_index(np.broadcast_to(most, batch).argmax(), batch)
    return {name: np.broadcast_to(x, batch + x.shape[axes[name] :])[place] for name, x in values.items()}


def _motions(model: ModelFields) -> list[np.ndarray]:
    """Return for each configuration the motions `[nv, n]` that loops leave, with the mass matrix 1 in them."""
    q, basis = configurations(model), np.eye(model.nv)
    if model.topology.has_loops:
        closed, J, _ = closed_configuration(model)
        _, values, rows = np.linalg.svd(J)
        q, basis = closed[None], rows[(values > 1e-8 * values.max()).sum() :].T
    matrices, _ = mass_matrices(model, q)
    return [basis @ np.linalg.inv(np.linalg.cholesky(basis.T @ M @ basis)).T for M in matrices]


def _of_motions(model: ModelFields, motions: np.ndarray, laws: np.ndarray) -> dict[str, StableStep]:
    """Return the longest stable steps for friction, Coulomb friction alone, and stiffness, the rows of `laws`."""
    total, coulomb, stiffness = laws
    C, C_coulomb, K = (motions.T * x @ motions for x in laws)
    n = len(C)
    rates = np.linalg.eigvals(np.block([[np.zeros((n, n)), np.eye(n)], [-K, -C]]))
    # Motions that nothing holds have rates of zero, but for rounding, the square root of that of the largest.
    rates = rates[np.abs(rates) > 1e-6 * np.abs(rates).max(initial=0.0)]
    steps = {
        "euler": (max(0.0, float((-2 * rates.real / np.abs(rates) ** 2).min(initial=np.inf))), total, stiffness),
        "semi_implicit_euler": (_least_root(C, K), total, stiffness),
        "implicit_velocity": (_least_root(-C, K), 0 * total, stiffness),
        "midpoint": (_least_root(C_coulomb, K), coulomb, stiffness),
        "rk4": (_runge_kutta(rates), total, stiffness),
    }
    mobilities, joints = (motions**2).sum(axis=1), model.topology.row_joints["v"]
    out = {}
    for name, (dt, friction, stiffness) in steps.items():
        h = dt if 0 < dt < np.inf else 1.0
        most = int(np.argmax(mobilities * (2 * h * friction + h**2 * stiffness)))
        out[name] = StableStep(dt, model.joint_names[int(joints[most])])
    return out


def _least_root(C: np.ndarray, K: np.ndarray) -> float:
    """Return the least positive `h` with `det(4 - 2 h C - h^2 K) = 0`, or infinity."""
    n = len(C)
    inverses = np.linalg.eigvals(np.block([[C / 2, K / 4], [np.eye(n), np.zeros((n, n))]]))
    real = inverses.real[np.abs(inverses.imag) < 1e-6 * np.abs(inverses)]
    largest = real.max(initial=0.0)
    # Zeros have rounding errors, of the square root of that of the largest.
    return float(1 / largest) if largest > 1e-6 * np.abs(inverses).max(initial=0.0) else np.inf


def _runge_kutta(rates: np.ndarray) -> float:
    """Return the longest step with which the classical Runge-Kutta method is stable for all rates, by bisection."""
    low, high = np.zeros(len(rates)), _RUNGE_KUTTA / np.abs(rates)
    for _ in range(50):
        z = rates * (middle := (low + high) / 2)
        growth = np.abs(1 + z * (1 + z / 2 * (1 + z / 3 * (1 + z / 4))))
        stable = growth < 1 + 1e-9
        low, high = np.where(stable, middle, low), np.where(stable, high, middle)
    return float(low.min(initial=np.inf))
