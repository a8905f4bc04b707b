"""Friction laws agree with their formulas, with JAX's derivatives, and between array modules."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn.friction import Coulomb, ExactCoulomb, FrictionSum, JointFriction, LoadProportional, Stribeck, Viscous

V = np.array([-2.0, -0.3, -0.02, -1e-6, 0.0, 1e-9, 0.004, 0.02, 0.3, 2.0])
F, D, W = np.linspace(0.5, 2.0, len(V)), np.linspace(0.1, 0.4, len(V)), np.full(len(V), 0.02)
STRIBECK = Stribeck(F, 1.7 * F, 0.1 + W, W)
SMOOTH = {
    "viscous": (Viscous(D), D * V),
    "coulomb": (Coulomb(F, W), F * np.tanh(V / W)),
    "stribeck": (STRIBECK, (F + 0.7 * F * np.exp(-((V / (0.1 + W)) ** 2))) * np.tanh(V / W)),
    "load": (LoadProportional(D, -3 * F, W), 3 * D * F * np.tanh(V / W)),
    "joint": (JointFriction(D, F, W), D * V + F * np.tanh(V / W)),
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
    np.testing.assert_allclose(secant_slope[at_rest], 0, atol=1e-12)


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
