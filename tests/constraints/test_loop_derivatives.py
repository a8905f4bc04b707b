"""Derivatives of dynamics with closed loops: forward, reverse, central differences, and the analytic matrices."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn.model import LEAVES
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


def weighted(weights):
    """The accelerations and forces as one number, of the state and the arrays of the model."""

    def f(model, arrays, q, v, tau):
        changed = dataclasses.replace(model, **arrays)
        a = jaxdyn.aba(changed, q, v, tau)
        J = jaxdyn.constraint_jacobian(changed, q)
        return weights @ a + 0.1 * weights @ (J.T @ jaxdyn.constraint_forces(changed, q, v, tau))

    return f


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["connect", "revolute"])
def test_forward_reverse_and_differences(kind):
    """By the state, the torques and all arrays; also where equations say the same twice. In the plane, in which such
    equations keep doing so when values change."""
    model, q, v, tau, weights = case(kind)
    f = jax.jit(functools.partial(weighted(weights), model))
    point = (arrays_of(model), q, v, tau)
    reverse = jax.jit(jax.grad(weighted(weights), (1, 2, 3, 4)))(model, *point)
    rng = np.random.default_rng(1)

    def direction(x, name):
        out = rng.normal(size=np.shape(x))
        if "placement" in name:
            # Positions in the plane, and turns about its normal where the frames have the world's axes.
            out[..., [k for k in range(7) if k not in ((0, 2) if "loop" in name else (0, 2, 5))]] = 0
        if name == "joint_axis":
            out[..., [0, 2]] = 0
        return out

    along = jax.jit(lambda t: jax.jvp(functools.partial(weighted(weights), model), point, t)[1])
    directions = {name: direction(x, name) for name, x in point[0].items()}
    zeros = jax.tree.map(np.zeros_like, point)
    tangents = {name: ({**zeros[0], name: d}, *zeros[1:]) for name, d in directions.items()}
    for k, name in enumerate(("q", "v", "tau"), start=1):
        tangents[name] = (*zeros[:k], direction(point[k], name), *zeros[k + 1 :])
    for name, t in tangents.items():
        forward = float(along(t))
        backward = float(sum(jax.tree.leaves(jax.tree.map(lambda g, d: (g * d).sum(), reverse, t))))
        assert forward == pytest.approx(backward, rel=1e-8, abs=1e-8), name
        h = 1e-4
        ends = [f(*jax.tree.map(lambda x, d, s=s, h=h: x + s * h * d, point, t)) for s in (-2, -1, 1, 2)]
        difference = float((ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * h))
        assert forward == pytest.approx(difference, rel=1e-6, abs=1e-6), name


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
    """The derivative of the gradient along a direction, against differences of the gradient."""
    model, q, v, tau, weights = case("connect")
    f = weighted(weights)
    gradient = jax.jit(lambda q, v: jax.grad(f, (2, 3))(model, {}, q, v, tau))
    d = np.array([[0.3, -0.2, 0.5], [0.1, 0.4, -0.6]])
    forward = jax.jit(lambda: jax.jvp(gradient, (q, v), (d[0], d[1]))[1])()
    h = 1e-4
    ends = [gradient(q + s * h * d[0], v + s * h * d[1]) for s in (-1, 1)]
    for k in range(2):
        np.testing.assert_allclose(forward[k], (ends[1][k] - ends[0][k]) / (2 * h), rtol=1e-5, atol=1e-4)


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
