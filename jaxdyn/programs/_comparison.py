"""Comparison with other libraries: random states, a model's dynamics, and relative errors."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from jaxdyn.algorithms import aba, crba, nonlinear_effects
from jaxdyn.model import Model

ANSWERS = ("mass matrix", "bias", "acceleration")
# Each model is compiled once, and that is most of the time: the compiler need not try hard for a few states.
_QUICK_COMPILATION = {"xla_backend_optimization_level": 0}


@dataclasses.dataclass(frozen=True)
class States:
    """`q [n, nq]`, and `v, tau [n, nv]`."""

    q: np.ndarray
    v: np.ndarray
    tau: np.ndarray


def random_states(model: Model, count: int, seed: int) -> States:
    """Draw states: coordinates uniform between finite limits, otherwise normal; rotations of any angle."""
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(count, model.nq))
    lower, upper = np.asarray(model.position_lower), np.asarray(model.position_upper)
    limited = np.isfinite(lower) & np.isfinite(upper)
    q[:, limited] = rng.uniform(lower[limited], upper[limited], (count, limited.sum()))
    for joint, kind in zip(model.joint_names, model.topology.joint_types, strict=True):
        if kind in ("ball", "free"):
            quaternion = slice(model.q_index(joint).stop - 4, model.q_index(joint).stop)
            q[:, quaternion] = rng.normal(size=(count, 4))
            q[:, quaternion] /= np.linalg.norm(q[:, quaternion], axis=1, keepdims=True)
    v, tau = rng.normal(size=(2, count, model.nv))
    return States(q, v, 10 * tau)


def dynamics(model: Model, states: States) -> dict[str, np.ndarray]:
    """Compute `mass matrix [n, nv, nv]`, `bias [n, nv]` (Coriolis, gravity, springs) and `acceleration [n, nv]`,
    without friction."""

    def compute(model, q, v, tau):
        return crba(model, q), nonlinear_effects(model, q, v), aba(model, q, v, tau, joint_friction=False)

    arguments = (model, states.q, states.v, states.tau)
    program = jax.jit(compute).lower(*arguments).compile(_QUICK_COMPILATION)
    return dict(zip(ANSWERS, map(np.asarray, program(*arguments)), strict=True))


def gradient_is_finite(model: Model, states: States) -> bool:
    """Tell whether the derivatives of forward dynamics with respect to `q`, `v`, `tau` and every array of the model are
    finite, joint friction included."""
    arguments = (model, states.q, states.v, states.tau)
    lowered = jax.jit(jax.grad(lambda arguments: aba(*arguments).sum())).lower(arguments)
    gradient = lowered.compile(_QUICK_COMPILATION)(arguments)
    return all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def largest_errors(values: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, float]:
    """Return for each answer the largest difference relative to the largest number of the state, at the worst state.

    A bias is compared with at least the torque of unit accelerations: below that it may consist of rounding only.
    """
    errors = {}
    for name, value in values.items():
        axes = tuple(range(1, value.ndim))
        difference = np.abs(value - expected[name]).max(axis=axes)
        scale = np.maximum(np.abs(expected[name]).max(axis=axes), 1e-12)
        if name == "bias":
            scale = np.maximum(scale, np.abs(expected["mass matrix"]).max(axis=(1, 2)))
        worst = (difference / scale).max()
        errors[name] = float(worst) if np.isfinite(worst) else float("inf")
    return errors


def allowed_errors(errors: dict[str, float], mass_matrices: np.ndarray, tolerance: float) -> dict[str, float]:
    """Return the largest error of each answer that counts as equal: the tolerance; for accelerations at least the
    change that rounding of the mass matrices `[n, nv, nv]` alone may cause."""
    solutions = max(tolerance, largest_condition(mass_matrices) * float(np.finfo(np.float64).eps))
    return {name: solutions if name == "acceleration" else tolerance for name in errors}


def largest_condition(mass_matrices: np.ndarray) -> float:
    """The largest condition number of the matrices `[n, nv, nv]`."""
    return float(np.linalg.cond(mass_matrices).max())
