"""Derivatives of dynamics with closed loops: forward, reverse, central differences, and the analytic matrices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn.model import LEAVES
from tests.derivatives import check_derivatives
from tests.loop_robots import admissible_velocity, close_four_bar, four_bar


@functools.cache
def case(kind: str):
    """A four-bar in its plane, with friction, springs and armature; `revolute` has three
    equations that say nothing new."""
    model = four_bar(kind).with_armature(0.05).with_joint_friction(friction=0.1)
    model = dataclasses.replace(model, stiffness=jnp.array([0.5, 0.0, 1.0]), spring_reference=jnp.zeros(3))
    q, rng = close_four_bar(0.7), np.random.default_rng(0)
    v, tau, weights = rng.normal(size=(3, 3))
    return model, q, admissible_velocity(model, q, v), tau, weights


def arrays_of(model):
    return {n: getattr(model, n) for n, leaf in LEAVES.items() if leaf.dynamics and getattr(model, n) is not None}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["connect", "revolute"])
def test_forward_reverse_and_differences(kind):
    """By the state, the torques and all arrays; also where equations say the same twice. In the plane, in which such
    equations keep doing so when values change."""
    model, q, v, tau, _ = case(kind)
    arrays, rng = arrays_of(model), np.random.default_rng(1)

    def results(arrays, q, v, tau):
        changed = dataclasses.replace(model, **arrays)
        forces = jaxdyn.constraint_jacobian(changed, q).T @ jaxdyn.constraint_forces(changed, q, v, tau)
        return jaxdyn.aba(changed, q, v, tau), forces

    def direction(x, name):
        out = rng.normal(size=np.shape(x))
        if "placement" in name:
            # Positions in the plane, and turns about its normal where the frames have the world's axes.
            out[..., [k for k in range(7) if k not in ((0, 2) if "loop" in name else (0, 2, 5))]] = 0
        if name == "joint_axis":
            out[..., [0, 2]] = 0
        return out

    along = {name: direction(x, name) for name, x in arrays.items()}, *(direction(x, "") for x in (q, v, tau))
    check_derivatives(results, arrays, q, v, tau, along=along, each=True, step=1e-5, reverse_rtol=1e-8, dependent=False)


@pytest.mark.parametrize("kind", ["connect", pytest.param("revolute", marks=pytest.mark.slow)])
def test_matrices_are_the_derivatives_of_forward_dynamics(kind):
    model, q, v, tau, _ = case(kind)
    by_q, by_v, Minv = jaxdyn.aba_derivatives(model, q, v, tau)
    expected = jax.jit(jax.jacfwd(functools.partial(jaxdyn.aba, model), (0, 1, 2)))(q, v, tau)
    for value, jacobian in zip((by_q, by_v, Minv), expected, strict=True):
        np.testing.assert_allclose(value, jacobian, atol=1e-8 * np.abs(jacobian).max())
    np.testing.assert_allclose(Minv, jaxdyn.inverse_mass_matrix(model, q), atol=1e-10)


@pytest.mark.slow
def test_second_derivatives():
    model, q, v, tau, weights = case("connect")

    def weighted(q, v):
        forces = jaxdyn.constraint_jacobian(model, q).T @ jaxdyn.constraint_forces(model, q, v, tau)
        return weights @ (jaxdyn.aba(model, q, v, tau) + 0.1 * forces)

    check_derivatives(jax.grad(weighted, (0, 1)), q, v, modes=["forward"], step=1e-4, rtol=1e-5)


@pytest.mark.slow
def test_second_derivative_tensors():
    """Against differences of the matrices."""
    model, q, v, tau, _ = case("revolute")
    found, h = jaxdyn.aba_second_derivatives(model, q, v, tau), 1e-5
    for value, move in ((found.dq_dq, lambda e: (q + e, v)), (found.dv_dv, lambda e: (q, v + e))):
        part = 0 if value is found.dq_dq else 1
        ends = [[jaxdyn.aba_derivatives(model, *move(s * h * e), tau)[part] for s in (1, -1)] for e in np.eye(3)]
        expected = np.stack([(np.asarray(a) - np.asarray(b)) / (2 * h) for a, b in ends], axis=-1)
        np.testing.assert_allclose(value, expected, atol=1e-6 * np.abs(expected).max())
