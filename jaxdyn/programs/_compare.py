"""Comparison with other libraries: random states, a model's answers, compiled once for all, and errors."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np

from jaxdyn.algorithms import aba, crba, nonlinear_effects
from jaxdyn.model import Model

ANSWERS = ("mass matrix", "bias", "acceleration")


@dataclasses.dataclass(frozen=True)
class States:
    """`q [n, nq]`, and `v, tau [n, nv]`."""

    q: np.ndarray
    v: np.ndarray
    tau: np.ndarray


def random_states(model: Model, count: int, seed: int) -> States:
    """Uniform between limits where they are finite, otherwise normal; rotations of any angle."""
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(count, model.nq))
    lower, upper = np.asarray(model.position_lower), np.asarray(model.position_upper)
    limited = np.isfinite(lower) & np.isfinite(upper)
    q[:, limited] = rng.uniform(lower[limited], upper[limited], (count, limited.sum()))
    for joint, kind in zip(model.joint_names, model.topology.joint_types, strict=True):
        if kind in ("ball", "free"):
            at = slice(model.q_index(joint).stop - 4, model.q_index(joint).stop)
            q[:, at] = rng.normal(size=(count, 4))
            q[:, at] /= np.linalg.norm(q[:, at], axis=1, keepdims=True)
    v, tau = rng.normal(size=(2, count, model.nv))
    return States(q, v, 10 * tau)


def answers(model: Model, states: States) -> dict[str, np.ndarray]:
    """`mass matrix [n, nv, nv]`, `bias [n, nv]` (Coriolis, gravity, springs), `acceleration [n, nv]`; no friction."""

    def all_of_them(model, q, v, tau):
        found = (crba(model, q), nonlinear_effects(model, q, v))
        return *found, aba(model, q, v, tau, joint_friction=False)

    # One compilation for each model is most of the time: the compiler need not try hard for five states.
    arguments = (model, states.q, states.v, states.tau)
    compiled = jax.jit(all_of_them).lower(*arguments).compile({"xla_backend_optimization_level": 0})
    return dict(zip(ANSWERS, map(np.asarray, compiled(*arguments)), strict=True))


def gradient_is_finite(model: Model, states: States) -> bool:
    """Whether all derivatives of forward dynamics are, by `q`, `v`, `tau` and every array of the model, joint friction
    included."""

    def total(arguments):
        return aba(*arguments).sum()

    arguments = (model, states.q, states.v, states.tau)
    lowered = jax.jit(jax.grad(total)).lower(arguments)
    gradient = lowered.compile({"xla_backend_optimization_level": 0})(arguments)
    return all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))


def largest_errors(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> dict[str, float]:
    """Of each answer: the largest difference, relative to the largest number of the state; the worst state.

    Of a bias that is smaller than the torque for accelerations of one: relative to that, as it may be but rounding.
    """
    errors = {}
    for name, value in found.items():
        axes = tuple(range(1, value.ndim))
        difference = np.abs(value - expected[name]).max(axis=axes)
        scale = np.maximum(np.abs(expected[name]).max(axis=axes), 1e-12)
        if name == "bias":
            scale = np.maximum(scale, np.abs(expected["mass matrix"]).max(axis=(1, 2)))
        worst = (difference / scale).max()
        errors[name] = float(worst) if np.isfinite(worst) else float("inf")
    return errors


def allowed_errors(errors: dict[str, float], mass_matrices: np.ndarray, tolerance: float) -> dict[str, float]:
    """The largest error of each answer that counts as equal: the tolerance, and of accelerations what the rounding of
    the mass matrix `[n, nv, nv]` alone may change in its solutions."""
    solutions = max(tolerance, condition(mass_matrices) * float(np.finfo(np.float64).eps))
    return {name: solutions if name == "acceleration" else tolerance for name in errors}


def condition(mass_matrices: np.ndarray) -> float:
    """The largest condition number."""
    return float(np.linalg.cond(mass_matrices).max())
