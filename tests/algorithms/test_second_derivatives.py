"""Second derivatives of inverse and forward dynamics equal central differences of the first derivatives."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import algorithms as alg
from tests.small_robots import robot

# The step is short because the smooth Coulomb friction changes its sign within a hundredth of a radian per second.
STEP = 1e-6


@functools.cache
def case(free: bool):
    """Return a model with a free base and ball, universal and mimic joints, or an arm, with states."""
    if free:
        model, q, _ = robot()
    else:
        model = jaxdyn.samples.arm()
        q = model.random_configuration(jax.random.key(1))
    v, x, weights, *direction = jax.random.normal(jax.random.key(6), (6, model.nv))
    return model, q, v, x, weights, tuple(direction)


def slopes(name: str, model, q, v, x, direction):
    """Return central differences of the first-order matrices along one or several directions."""
    dq, dv, dx = direction

    def matrices_at(s):
        q1 = model.integrate(jnp.broadcast_to(q, (*dq.shape[:-1], model.nq)), s * dq)
        return jax.jit(getattr(alg, f"{name}_derivatives"))(model, q1, v + s * dv, x + s * dx)

    return [(up - down) / (2 * STEP) for up, down in zip(matrices_at(STEP), matrices_at(-STEP), strict=True)]


def close(got, want) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-7 * np.abs(want).max())


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("rnea", False),
        pytest.param("rnea", True, marks=pytest.mark.slow),
        pytest.param("aba", True, marks=pytest.mark.slow),
        pytest.param("aba", False, marks=pytest.mark.slow),
    ],
)
def test_hessian_vector_products(name, free):
    model, q, v, x, weights, direction = case(free)
    product = getattr(alg, f"{name}_hessian_vector_product")
    # When only one argument has batch axes, the products keep them.
    got = product(model, q, v, x, jnp.stack([weights, 2 * weights]), direction)
    for value, matrix in zip(got, slopes(name, model, q, v, x, direction), strict=True):
        close(value, jnp.stack([weights @ matrix, 2 * weights @ matrix]))


@pytest.mark.slow
@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("name", ["rnea", "aba"])
def test_full_tensors(name, free):
    model, q, v, x, *_ = case(free)
    got = getattr(alg, f"{name}_second_derivatives")(model, q, v, x)
    eye, none = jnp.eye(model.nv), jnp.zeros((model.nv, model.nv))
    by_q = slopes(name, model, q, v, x, (eye, none, none))
    by_v = slopes(name, model, q, v, x, (none, eye, none))
    # The differences have the direction as their first axis.
    want = (by_q[0], by_v[0], by_v[1], by_q[2])
    for value, matrix in zip(got, want, strict=True):
        close(value, jnp.moveaxis(matrix, 0, -1))
    # Mixed derivatives do not depend on their order.
    close(got[1], jnp.transpose(by_q[1], (1, 0, 2)))
