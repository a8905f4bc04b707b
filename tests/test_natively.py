"""Users' functions as single calls: values, derivatives, maps, and what has no such call."""

import contextlib
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from numpy.testing import assert_allclose

from jaxdyn import native
from jaxdyn.native._natively import natively
from jaxdyn.trajopt import (
    ContinuousDynamics,
    FunctionCost,
    Problem,
    QuadraticCost,
    SoftConstraintCost,
    StateResidual,
    ddp,
)

STAGES = 5
TABLE = np.linspace(1.0, 2.0, STAGES)


@pytest.fixture(params=["native", pytest.param("xla", marks=pytest.mark.slow)])
def lowering(request):
    """Run a test with native code, and once more with the program that XLA compiles, which functions without a native
    program have anyway."""
    with native.disabled() if request.param == "xla" else contextlib.nullcontext():
        yield request.param


def rows(x, u, k, params):
    """Rows of arrays by the number of the stage, one known and one traced."""
    return x * jnp.asarray(TABLE)[k] + params["rows"][k], u * params["gain"]


def masks(x, u, k, params):
    """Bounds that one stage does not have, as constraints have them."""
    return jnp.where(k == 0, -jnp.inf, params["gain"] * jnp.sin(x)), jnp.where(k > 2, x, 2 * x)


def times(x, u, k, params):
    """Functions of time, and of parameters and time."""
    t = 0.1 + params["gain"] * k
    return jnp.sin(t) * x, jnp.cos(3 * t) + 0 * u


def branches(x, u, k, params):
    """A choice by the number of the stage, and one by the state."""
    first = lax.cond(k == 1, lambda: jnp.sin(x), lambda: x**2)
    return lax.cond(x[0] > 0, lambda: first, lambda: u[0] * first)


def loops(x, u, k, params):
    """A loop, a function that is compiled by itself, and a solution of linear equations."""
    doubled = jax.jit(lambda x, t: params["gain"] * x + t)(x, 0.1 * k)
    moved, _ = lax.scan(lambda y, i: (jnp.tanh(y + i * u[0]), None), doubled, jnp.arange(3))
    return jax.scipy.linalg.solve(jnp.eye(2) * 3 + jnp.outer(x, x), moved, assume_a="pos")


def solves(x, u, k, params):
    """Solutions of linear equations that need an exchange of rows, and an inverse."""
    A = jnp.array([[0.0, 1.0, 2.0], [1.0, 0.0, 0.0], [0.0, 3.0, 1.0]]) * params["gain"] + x[0] * jnp.eye(3)
    return jnp.linalg.solve(A, jnp.concatenate([x, u])), jnp.linalg.inv(A[:2, :2])


def empty(x, u, k, params):
    """Results that are empty, some that depend on nothing, and the sum of no numbers."""
    none = 1 + x[:0].sum()
    return {"none": jnp.zeros((0, 2), x.dtype), "one": jnp.ones(3, x.dtype), "value": x @ x * none}


@jax.custom_jvp
def clipped_root(x):
    return jnp.sqrt(jnp.maximum(x, 0.0))


@clipped_root.defjvp
def _(primals, tangents):
    (x,), (dx,) = primals, tangents
    return clipped_root(x), jnp.where(x > 1e-3, 0.5 * dx / jnp.sqrt(jnp.maximum(x, 1e-3)), 0.0)


def custom(x, u, k, params):
    """A function with a derivative of its own."""
    return clipped_root(x - 0.2) * params["gain"]


def integers(x, u, k, params):
    """Conversions to integers, which drop what is behind the point, and of conditions."""
    whole = (3 * x).astype(jnp.int32)
    return whole.astype(x.dtype) * x, (x > 0).astype(jnp.int32).astype(jnp.int64).astype(x.dtype) + x


def no_program(x, u, k, params):
    """A function that has no native program."""
    return jnp.sort(x) * u, jnp.fft.fft(x).real


NATIVE = [rows, masks, times, branches, loops, solves, empty, custom, integers]


def arguments(dtype=jnp.float64):
    """States, controls, numbers of stages, and parameters."""
    rng = np.random.default_rng(1)
    x, u = (jnp.asarray(rng.normal(size=(STAGES, n)), dtype) for n in (2, 1))
    params = {"gain": jnp.asarray(0.7, dtype), "rows": jnp.asarray(rng.normal(size=(STAGES, 2)), dtype)}
    return x, u, jnp.arange(STAGES), params


def over_stages(function: Callable, wrap: Callable) -> Callable:
    """The function of `arguments`, mapped over the stages; it closes over the parameters."""

    def mapped(x, u, k, params):
        return jax.vmap(wrap(lambda x, u, k: function(x, u, k, params)))(x, u, k)

    return mapped


def plain(function: Callable) -> Callable:
    return function


def total(function: Callable, wrap: Callable) -> Callable:
    """The sum of the squares of all finite results."""
    mapped = over_stages(function, wrap)

    def summed(x, u, params):
        leaves = jax.tree.leaves(mapped(x, u, jnp.arange(len(x)), params))
        return sum((jnp.where(jnp.isfinite(leaf), leaf, 0.0) ** 2).sum() for leaf in leaves)

    return summed


def assert_equal(found, expected, **tolerance):
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert a.dtype == b.dtype
        assert_allclose(a, b, **tolerance)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("function", [*NATIVE, no_program])
def test_values_are_those_of_the_function(function, dtype, lowering):
    args = arguments(dtype)
    found = jax.jit(over_stages(function, natively))(*args)
    expected = jax.jit(over_stages(function, plain))(*args)
    eps = float(jnp.finfo(dtype).eps)
    assert_equal(found, expected, rtol=20 * eps, atol=20 * eps)


@pytest.mark.parametrize("function", [*NATIVE, no_program])
def test_which_functions_have_a_native_program(function):
    if not native.enabled():
        pytest.skip(f"no native code: {native.status().reason}")
    text = jax.jit(over_stages(function, natively)).lower(*arguments()).as_text()
    assert ("@jaxdyn_" in text) == (function is not no_program)


@pytest.mark.parametrize(
    "function", [*(pytest.param(f, marks=[pytest.mark.slow] * (f not in (rows, loops))) for f in NATIVE), no_program]
)
def test_derivatives_of_both_modes(function, lowering):
    """By what is mapped, and by what the function closes over."""
    x, u, _, params = arguments()
    ours, theirs = total(function, natively), total(function, plain)
    expected = jax.jit(jax.grad(theirs, (0, 1, 2)))(x, u, params)
    for mode in (jax.grad, jax.jacfwd):
        assert_equal(jax.jit(mode(ours, (0, 1, 2)))(x, u, params), expected, rtol=1e-12, atol=1e-12)
    second = jax.jit(jax.jacfwd(jax.grad(theirs)))(x, u, params)
    assert_equal(jax.jit(jax.jacfwd(jax.grad(ours)))(x, u, params), second, rtol=1e-11, atol=1e-11)


def test_differences_agree_with_derivatives():
    x, u, _, params = arguments()
    value = jax.jit(total(loops, natively))
    slope = jax.jit(jax.grad(total(loops, natively)))(x, u, params)
    for i in np.ndindex(x.shape):
        step = jnp.zeros_like(x).at[i].set(1e-6)
        difference = (value(x + step, u, params) - value(x - step, u, params)) / 2e-6
        assert_allclose(slope[i], difference, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("function", [rows, loops])
def test_maps_over_what_the_function_closes_over(function, lowering):
    """A batch of parameters, then one of states as well; gradients in a batch."""
    x, u, k, params = arguments()
    many = jax.tree.map(lambda a: jnp.stack([a, 2 * a, -a]), params)
    ours, theirs = (over_stages(function, wrap) for wrap in (natively, plain))
    for axes, states in (((None, None, None, 0), x), ((0, None, None, 0), jnp.stack([x, x + 1, x - 1]))):
        found, expected = (jax.jit(jax.vmap(f, in_axes=axes))(states, u, k, many) for f in (ours, theirs))
        assert_equal(found, expected, rtol=1e-13, atol=1e-13)
    slopes = (jax.jit(jax.vmap(jax.grad(total(function, wrap), 2), (None, None, 0))) for wrap in (natively, plain))
    found, expected = (slope(x, u, many) for slope in slopes)
    assert_equal(found, expected, rtol=1e-12, atol=1e-12)


def test_a_call_traces_the_function_once_and_its_program_not_again():
    traces = []

    def function(x):
        traces.append(None)
        return jnp.sin(x)

    mapped = jax.jit(jax.vmap(natively(function)))
    for value in (1.0, 2.0):
        mapped(jnp.full(4, value))
    assert len(traces) == 1


def test_without_a_program_to_be_traced_for_the_function_is_called_as_it_is():
    seen = []

    def function(x):
        seen.append(x)
        return 2 * x

    assert natively(function)(3.0) == 6.0
    assert seen == [3.0]


@pytest.mark.parametrize("one_by_one", [False, True])
def test_batches_without_a_native_program(one_by_one):
    """They go in pieces, or one by one: in a loop in both cases."""
    x = jnp.asarray(np.random.default_rng(2).normal(size=(300, 2)))
    mapped = jax.jit(jax.vmap(natively(jnp.sort, one_by_one=one_by_one)))
    assert_allclose(mapped(x), np.sort(x, axis=1))
    alone = jax.jit(jax.vmap(natively(jnp.sort, one_by_one=one_by_one))).lower(x[:8]).as_text()
    assert ("stablehlo.while" in alone) == one_by_one


def test_effects_take_place():
    seen = []

    def function(x):
        jax.debug.callback(lambda x: seen.append(float(x)), x)
        return 2 * x

    jax.block_until_ready(jax.jit(jax.vmap(natively(function)))(jnp.arange(3.0)))
    jax.effects_barrier()
    assert sorted(seen) == [0.0, 1.0, 2.0]


def test_functions_of_several_precisions_keep_them():
    """Of arguments, and inside."""

    def function(x, y):
        return x.astype(jnp.float32) * 2, y

    found = jax.jit(natively(function))(jnp.ones(2), jnp.ones(2, jnp.float32))
    assert [a.dtype for a in found] == [jnp.float32, jnp.float32]

    def difference(x):
        exact = jax.jit(lambda x: (x.astype(jnp.float64) + 1e-12) - x)(x)
        return exact.astype(jnp.float32)

    x = jnp.ones(2, jnp.float32)
    assert_allclose(jax.jit(natively(difference))(x), 1e-12, rtol=1e-3)


def test_integers_that_are_no_numbers_of_the_precision_are_kept():
    """The number of a stage that a function is called with, where it is too large for a float."""

    @jax.jit
    def remainder(x, k):
        return x * (k % 10)

    k = jnp.asarray([2**24 + 1, 2**24 + 3], jnp.int32)
    x = jnp.ones(2, jnp.float32)
    assert_equal(jax.jit(jax.vmap(natively(remainder)))(x, k), x * (k % 10))


def test_functions_of_integers_keep_them():
    found = jax.jit(jax.vmap(natively(lambda k: (k + 1, k > 1))))(jnp.arange(3))
    assert_equal(found, (jnp.arange(1, 4), jnp.arange(3) > 1))


@pytest.mark.parametrize(
    ("function", "given", "finite"),
    [
        (lambda x, a: x - jnp.clip(x, -jnp.inf, a), jnp.inf, True),
        (lambda x, a: jnp.where(jnp.isfinite(a), x - a, 0.0), jnp.nan, True),
        (lambda x, a: x / a, jnp.inf, True),
        (lambda x, a: x * jnp.exp(-a), jnp.inf, True),
        (lambda x, a: x - a, jnp.nan, False),
        (lambda x, a: x * jnp.sin(a), jnp.inf, False),
    ],
    ids=["bound", "missing", "ratio", "decay", "unknown", "sine"],
)
def test_numbers_that_are_not_finite_reach_what_they_reach_by_jax(function, given, finite, lowering):
    # A product with a zero of the matrix has no operation in a program, but NaN where its factor is not finite.
    xs, given = jnp.array([[0.3, -0.7], [1.1, 0.2]]), jnp.array([0.5, given])
    matrix = jnp.array([[1.0, 0.0], [0.0, 1.0], [2.0, 1.0]])

    def results(x, a):
        return matrix @ function(x, a), jnp.diag(jnp.full(2, 2.0)) @ jax.jacfwd(function)(x, a)

    out = jax.jit(lambda a: jax.vmap(natively(lambda x: results(x, a)))(xs))(given)
    values, slopes = jax.vmap(lambda x: results(x, given))(xs)
    assert_allclose(out[0], values, rtol=1e-14)
    assert np.isfinite(values).all() == finite
    # XLA leaves out products with zeros that it knows, too.
    if finite:
        assert_allclose(out[1], slopes, rtol=1e-14)


@pytest.mark.slow
def test_a_soft_constraint_without_one_of_its_bounds():
    def solved():
        bound = SoftConstraintCost(StateResidual(), [-jnp.inf, -0.6], [jnp.inf, 0.6], weight=100.0)
        rate = ContinuousDynamics(lambda x, u, t, params: jnp.array([x[1], u[0]]), 2, 1, dt=0.1)
        goal = QuadraticCost(StateResidual(np.array([1.0, 0.0])), 10.0)
        return ddp(Problem(rate, np.zeros(2), 20, stage_costs=[bound, goal], control_lower=-3.0, control_upper=3.0))

    found = solved()
    assert found.success
    with native.disabled():
        assert_allclose(found.cost, solved().cost, rtol=1e-10)


def test_the_largest_of_no_numbers(lowering):
    found = jax.jit(jax.vmap(natively(lambda x: x[:0].max(initial=-1.0) * x)))(jnp.ones((3, 2)))
    assert_allclose(found, -np.ones((3, 2)))


def test_keys_of_random_numbers():
    """One that the function closes over, and one that is an argument."""
    key = jax.random.key(0)

    def function(x, other):
        return x + jax.random.normal(key, x.shape) * jax.random.uniform(other)

    x, keys = arguments()[0], jax.random.split(jax.random.key(1), STAGES)
    expected = jax.vmap(function)(x, keys)
    assert_allclose(jax.jit(jax.vmap(natively(function)))(x, keys), expected, rtol=1e-14)


def test_complex_numbers_are_kept():
    def function(x, z):
        return (x * jnp.exp(z)).real

    x, z = jnp.ones(3), jnp.arange(3) * 1j
    assert_allclose(jax.jit(jax.vmap(natively(function)))(x, z), np.cos(np.arange(3.0)), rtol=1e-14)


def test_a_traced_index_that_the_function_closes_over(lowering):
    def chosen(x, index):
        return jax.vmap(natively(lambda x: x[index] * jnp.sin(x)))(x)

    x = arguments()[0]
    assert_allclose(jax.jit(chosen)(x, 1), x[:, 1:] * jnp.sin(x), rtol=1e-14)


def pendulum(gain) -> Problem:
    """A pendulum that follows a moving target."""

    def rate(x, u, t, gain):
        return jnp.stack([x[1], gain * u[0] - 9.81 * jnp.sin(x[0])])

    return Problem(
        ContinuousDynamics(rate, 2, 1, gain, dt=0.05),
        jnp.array([0.1, 0.0]),
        20,
        stage_costs=[FunctionCost(lambda x, u, t, _: 1e-2 * u @ u + (x[0] - jnp.sin(t)) ** 2)],
        terminal_costs=[FunctionCost(lambda x, u, t, _: 10 * (x @ x))],
        control_lower=-8.0,
        control_upper=8.0,
    )


@pytest.mark.slow
def test_a_solve_and_its_derivative_do_not_depend_on_native_code():
    def first_control(gain):
        return ddp(pendulum(gain)).us[0, 0]

    gain = jnp.asarray(1.3)
    with native.disabled():
        expected = eqx.filter_jit(lambda g: jax.value_and_grad(first_control)(g))(gain)
    found = eqx.filter_jit(lambda g: jax.value_and_grad(first_control)(g))(gain)
    assert_allclose(found, expected, rtol=1e-6)
    step = 1e-4
    difference = (first_control(gain + step) - first_control(gain - step)) / (2 * step)
    assert_allclose(found[1], difference, rtol=1e-4)


def test_an_operation_without_a_native_program_is_named():
    def function(x):
        return jnp.linalg.svd(jnp.outer(x, x), compute_uv=False)

    x = arguments()[0]
    with pytest.warns(UserWarning, match="JAX's primitive 'svd' keeps a function"):
        jax.jit(jax.vmap(natively(function)))(x)
