"""The check of derivatives that the tests share finds wrong rules and names what they are wrong by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.derivatives import check_derivatives


def product(x, y):
    return {"sum": x.sum() + y, "product": jnp.sin(x) * y}


@jax.custom_jvp
def forward(x, y):
    return jnp.sin(x) * y


forward.defjvp(lambda at, along: (forward(*at), jnp.cos(at[0]) * at[1] * along[0] + 1.001 * jnp.sin(at[0]) * along[1]))


@jax.custom_vjp
def reverse(x, y):
    return jnp.sin(x) * y


reverse.defvjp(
    lambda x, y: (reverse(x, y), (x, y)),
    lambda at, w: (jnp.cos(at[0]) * at[1] * w, 1.001 * (jnp.sin(at[0]) * w).sum()),
)
X, Y = np.linspace(0.1, 1, 4), 0.7


@pytest.mark.parametrize("each", [False, True])
def test_right_derivatives_pass(each):
    value, gradient = check_derivatives(product, X, Y, each=each)
    np.testing.assert_allclose(value["product"], np.sin(X) * Y, rtol=1e-12)
    assert jax.tree.map(np.shape, gradient) == ((4,), ())
    single = X.astype(np.float32)
    check_derivatives(product, single, np.float32(Y), each=each, step=1e-2, rtol=1e-3, reverse_rtol=1e-5)


def test_wrong_rules_are_found_and_named():
    with pytest.raises(AssertionError, match=r"forward mode by \[1\]"):
        check_derivatives(forward, X, Y, each=True)
    with pytest.raises(AssertionError, match=r"reverse mode by \[1\]"):
        check_derivatives(reverse, X, Y, each=True, modes=["reverse"])
    with pytest.raises(AssertionError, match="forward mode by all arguments"):
        check_derivatives(lambda x: x * jax.lax.stop_gradient(x), X)
    with pytest.raises(AssertionError, match=r"by all arguments: .*nan"):
        check_derivatives(lambda x: jnp.sqrt(x * x), 0 * X, step=1e-3)
    with pytest.raises(AssertionError, match=r"by \[1\]: the result does not depend on it"):
        check_derivatives(lambda x, y: jnp.sin(x), X, Y, each=True)
