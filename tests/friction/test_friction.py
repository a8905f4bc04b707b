"""Friction laws agree with their formulas, with JAX's derivatives, and between array modules."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.friction import (
    Asymmetric,
    Changing,
    Coulomb,
    Dahl,
    ExactCoulomb,
    FrictionSum,
    GivenDirection,
    JointFriction,
    LoadProportional,
    PositionDependent,
    Stribeck,
    Viscous,
)

V = np.array([-2.0, -0.3, -0.02, -1e-6, 0.0, 1e-9, 0.004, 0.02, 0.3, 2.0])
F, D, W = np.linspace(0.5, 2.0, len(V)), np.linspace(0.1, 0.4, len(V)), np.full(len(V), 0.02)
STRIBECK = Stribeck(F, 1.7 * F, 0.1 + W, W)
SMOOTH = {
    "viscous": (Viscous(D), D * V),
    "coulomb": (Coulomb(F, W), F * np.tanh(V / W)),
    "stribeck": (STRIBECK, (F + 0.7 * F * np.exp(-((V / (0.1 + W)) ** 2))) * np.tanh(V / W)),
    "load": (LoadProportional(D, -3 * F, W), 3 * D * F * np.tanh(V / W)),
    "joint": (JointFriction(D, F, W), D * V + F * np.tanh(V / W)),
    "asymmetric": (Asymmetric(D, F, W), D * V * np.tanh(V / W) + F * np.tanh(V / W) ** 2),
    "position": (
        PositionDependent(F, D, 3 * D, 2.0, W),
        (F * np.cos(6 * D) + D * np.sin(6 * D)) * np.tanh(V / W),
    ),
    "changing": (Changing(D, F, -D, W), -D * (D * V + F * np.tanh(V / W))),
    "sum": (FrictionSum(Viscous(D), STRIBECK), D * V + STRIBECK.torque(V)),
}
EXACT = ExactCoulomb(F), F * np.sign(V)
METHODS = ("torque", "slope", "secant", "columns")


def jax_law(law):
    return jax.tree.map(jnp.asarray, law)


@pytest.mark.parametrize(("law", "expected"), [*SMOOTH.values(), EXACT], ids=[*SMOOTH, "exact"])
def test_torque_columns_and_array_modules(law, expected):
    np.testing.assert_allclose(law.torque(V), expected, rtol=1e-13)
    products = [c * x for c, x in zip(law.coefficients, law.columns(V), strict=True)]
    np.testing.assert_allclose(sum(products), expected, rtol=1e-13)
    np.testing.assert_allclose(law.secant(V) * V, expected, rtol=1e-13)
    compiled = eqx.filter_jit(lambda law, v: {method: getattr(law, method)(v) for method in METHODS})(jax_law(law), V)
    for method, traced in compiled.items():
        plain = getattr(law, method)(V)
        assert all(isinstance(x, np.ndarray) for x in jax.tree.leaves(plain))
        assert all(isinstance(x, jax.Array) and x.shape == V.shape for x in jax.tree.leaves(traced))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12), plain, traced)


@pytest.mark.parametrize(("law", "expected"), SMOOTH.values(), ids=list(SMOOTH))
def test_slope_and_secant_against_jax(law, expected):
    law = jax_law(law)
    v = jnp.asarray(V)

    along = lambda f: jax.jvp(f, (v,), (jnp.ones_like(v),))[1]  # noqa: E731
    np.testing.assert_allclose(law.slope(v), along(law.torque), rtol=1e-8)
    at_rest = V == 0
    np.testing.assert_allclose(law.secant(v)[at_rest], along(law.torque)[at_rest], rtol=1e-12)
    secant_slope = np.asarray(along(law.secant))
    second = jax.jvp(lambda x: jax.jvp(law.secant, (x,), (jnp.ones_like(x),))[1], (v,), (jnp.ones_like(v),))[1]
    assert np.isfinite(secant_slope).all()
    assert np.isfinite(second).all()
    # d(torque / v) / dv = (slope - secant) / v where v is not too small for the quotient.
    far = np.abs(V) > 1e-3
    np.testing.assert_allclose(secant_slope[far], ((law.slope(v) - law.secant(v)) / v)[far], rtol=1e-6, atol=1e-9)
    # At rest it is half of the torque's second derivative, which is zero for a law that is alike in both directions.
    curvature = np.asarray(along(law.slope))
    np.testing.assert_allclose(secant_slope[at_rest], 0.5 * curvature[at_rest], rtol=1e-9, atol=1e-12)


def test_coefficients_have_the_columns_as_derivatives():
    law = jax_law(SMOOTH["sum"][0])
    names = [lambda x: x.laws[0].damping, lambda x: x.laws[1].coulomb, lambda x: x.laws[1].static]
    gradient = jax.grad(lambda law: law.torque(jnp.asarray(V)).sum())(law)
    for leaf, column in zip(names, law.columns(jnp.asarray(V)), strict=True):
        np.testing.assert_allclose(leaf(gradient), column, rtol=1e-12)


def test_rows_and_numbers_broadcast():
    v = V.reshape(2, 5)
    by_rows = JointFriction(D[:2, None], F[:2, None], 0.05).torque(v)
    by_batch = JointFriction(D[:2], F[:2], 0.05).torque(v.T)
    np.testing.assert_array_equal(by_rows, by_batch.T)
    assert Coulomb(1.0, 0.05).columns(v)[0].shape == v.shape
    assert Coulomb(np.float32(1), np.float32(0.05)).torque(v.astype(np.float32)).dtype == np.float32


def test_a_direction_that_is_given_takes_the_place_of_the_sign():
    z = np.linspace(-1, 1, len(V))
    law = FrictionSum(
        Viscous(D), Stribeck(F, 1.7 * F, 0.1, GivenDirection(z)), LoadProportional(D, F, GivenDirection(z))
    )
    expected = D * V + (F + 0.7 * F * np.exp(-((V / 0.1) ** 2)) + D * F) * z
    np.testing.assert_allclose(law.torque(V), expected, rtol=1e-13)
    moving = V != 0
    np.testing.assert_allclose((law.secant(V) * V)[moving], expected[moving], rtol=1e-12)


@pytest.mark.parametrize("width", [0.0, 0.05])
def test_friction_before_sliding_follows_its_equation(width):
    """The states of a whole motion, single steps and a fine integration of the law's equation agree."""
    t = np.linspace(0, 4, 401)
    v = np.stack([np.sin(3 * t) + 0.5 * np.sin(11 * t), np.where(t % 1 < 0.4, 0.0, np.cos(20 * t))], axis=1)
    distance, dt = np.array([1e-4, 0.05]), np.diff(t)
    law = Dahl(np.array([2.0, 3.0]), distance, width)
    states = law.along(v[:-1], dt, 0.3)
    z = np.full(2, 0.3)
    for k, step in enumerate(dt):
        torque, z = law.step(z, v[k], step)
        np.testing.assert_allclose(z, states[k + 1], atol=1e-12)
        np.testing.assert_allclose(torque, [2.0, 3.0] * z, atol=1e-12)
    k, fine = 37, states[37]
    s = np.tanh(v[k] / width) if width else np.sign(v[k])
    for _ in range(20000):
        fine = fine + dt[k] / 20000 * np.abs(v[k]) * (s - fine) / distance
    np.testing.assert_allclose(states[k + 1], fine, atol=1e-4)
    jitted = jax.jit(lambda z, v, dt: jax.tree.map(jnp.asarray, law).step(z, v, dt))
    np.testing.assert_allclose(jitted(states[k], v[k], dt[k])[1], states[k + 1], atol=1e-12)
    assert np.abs(states).max() < 1 + 1e-12
    # A short distance leaves the smooth sign, and a reversal a spring.
    np.testing.assert_allclose(states[2:, 0], np.tanh(v[1:-1, 0] / width) if width else np.sign(v[1:-1, 0]), atol=0.6)
    slope = jax.grad(lambda v: law.step(0.0, jnp.stack([v, v]), 0.01)[0].sum())(0.0 if width else 1e-6)
    expected = 0.0 if width else 0.01 * np.sum([2.0, 3.0] / distance)
    np.testing.assert_allclose(slope, expected, rtol=1e-2, atol=1e-12)
