"""Stretches of a program that are alike share one function, and the program gives the results that it gives without."""

import draws
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdyn
from jaxdyn import native, samples
from jaxdyn.native import _alike, _batching, _module, _target

pytestmark = pytest.mark.skipif(not native.status().enabled, reason=native.status().reason)

PRECISIONS = {"float32": 1e-4, "float64": 1e-12}
STEPS = 40


@pytest.fixture
def modules(monkeypatch):
    """The texts of the modules that a test makes, with short stretches, and no programs from earlier tests."""
    texts, original = [], _module.module_of

    def module_of(*args):
        module = original(*args)
        texts.append(module.text)
        return module

    monkeypatch.setattr(_module, "module_of", module_of)
    monkeypatch.setattr(_alike, "LEAST", 0)
    monkeypatch.setattr(_alike, "REACH", 12)
    monkeypatch.setattr(_alike, "WINDOW", 6)
    _target.cached_target.cache_clear()
    yield texts
    _target.cached_target.cache_clear()


def calls_and_functions(text: str) -> tuple[int, int]:
    """The calls of parts in a module, and the functions of parts."""
    return text.count("call void @part"), text.count("define internal void @part")


def separately(function, *args):
    """The results of a program whose parts share nothing."""
    worthwhile, _alike.WORTHWHILE = _alike.WORTHWHILE, -1.0
    _target.cached_target.cache_clear()
    out = jax.jit(lambda *args: function(*args))(*args)
    _alike.WORTHWHILE = worthwhile
    _target.cached_target.cache_clear()
    return jax.tree.leaves(out)


def chain_of_steps(p, x, y):
    """Steps with numbers of their own, truth values that one leaves to the next, sines of inputs and of halves of them,
    and values that do not depend on the batch. Every third one is a result. Some take an operand, others a value that
    was computed before."""
    numbers = np.random.default_rng(0).uniform(0.5, 1.5, (STEPS, 3))
    squares = y * y
    others = jnp.where(np.arange(STEPS) % 5 < 2, y, squares)

    def step(carry, row):
        total, large = carry
        (a, b, c), x, y, z, p = row
        turned = a * jnp.sin(x) * total + b * jnp.cos(0.5 * y) * jnp.cos(x)
        total = jnp.where(large, turned * p - c, turned + p * jnp.tanh(c * total)) + z
        return (total / (1 + total * total), total > 0.3), total

    start = (jnp.ones((), x.dtype), jnp.zeros((), bool))
    totals = lax.scan(step, start, (jnp.asarray(numbers, x.dtype), x, y, others, p))[1]
    return [squares, totals[::3], totals[-1:]]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_steps_with_other_numbers_share_functions(precision, modules):
    rng = np.random.default_rng(1)
    p, x, y = (rng.uniform(-2, 2, shape).astype(precision) for shape in ((STEPS,), (37, STEPS), (37, STEPS)))
    x[5, 7], y[9, 30] = 3e9, np.nan
    shapes = (STEPS,), (len(range(0, STEPS, 3)),), (1,)
    together, alone = (_batching.Plain(chain_of_steps, (1, 1, 1), shapes, shared=1) for _ in range(2))
    found = jax.jit(lambda *args: _batching.call(together, *args))(p, x, y)
    calls, functions = calls_and_functions(modules[-1])
    assert calls > 2 * functions
    expected = separately(lambda *args: _batching.call(alone, *args), p, x, y)
    calls, functions = calls_and_functions(modules[-1])
    assert calls == functions
    assert np.isfinite(np.delete(expected[0], 9, axis=0)).all()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=PRECISIONS[precision])


@pytest.mark.slow
def test_gradients_that_are_sums_over_the_batch(modules):
    """By the arrays of a model, with the legs of a robot."""
    model = samples.quadruped().astype("float64")
    q, v, tau, _ = draws.states(model, 0, 19)

    def gradient(model, q):
        return jax.grad(lambda m: jnp.sum(jaxdyn.rnea(m, q, v, tau) ** 2))(model).inertial_parameters

    found = jax.jit(gradient)(model, q)
    assert any(calls > functions for calls, functions in map(calls_and_functions, modules))
    (expected,) = separately(gradient, model, q)
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


def test_a_loop_that_ends_depending_on_data(modules):
    """Alike stretches inside of a loop, and before and after it."""
    numbers = np.random.default_rng(0).uniform(0.2, 0.4, (STEPS, 2))

    def several(total):
        def step(total, row):
            return jnp.sqrt(1 + (row[0] * total) ** 2) - row[1] * jnp.tanh(total), None

        return lax.scan(step, total, jnp.asarray(numbers, total.dtype))[0]

    def function(x):
        first = several(x[0])
        second = lax.while_loop(lambda y: y > 0.5, lambda y: 0.5 * several(y), first)
        return [several(second)[None]]

    x = np.random.default_rng(1).uniform(0, 9, (21, 1))
    together, alone = (_batching.Plain(function, (1,), ((1,),)) for _ in range(2))
    found = jax.jit(lambda x: _batching.call(together, x)[0])(x)
    calls, functions = calls_and_functions(modules[-1])
    assert calls > functions
    (expected,) = separately(lambda x: _batching.call(alone, x)[0], x)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_programs_without_alike_stretches_stay_as_they_are(modules):
    """A sum of powers whose terms are all different has one part."""
    coefficients = np.random.default_rng(0).integers(0, 4, 300)
    operations = (jnp.tanh, jnp.sqrt, jnp.exp, lambda x: 1 / (1 + x * x))

    def function(x):
        y = x
        for k in coefficients:
            y = operations[k](abs(y) + x) * x
        return [y]

    program = _batching.Plain(function, (1,), ((1,),))
    jax.jit(lambda x: _batching.call(program, x)[0])(np.ones((3, 1)))
    assert calls_and_functions(modules[-1]) == (1, 1)


def test_stretches_are_joined_only_where_they_use_the_same_of_each_other():
    at = {k: k for k in range(12)}

    def joined(second: int, third: int) -> list[int]:
        pairs = [(0, []), (1, [0]), (0, []), (1, [second]), (0, []), (1, [third])]
        stretches = [_alike.Stretch(2 * k, 2 * k + 2, shape, others) for k, (shape, others) in enumerate(pairs)]
        return [s.shape for s in _alike._joined(stretches, at)]

    a, b, c = joined(4, 9)
    assert a == b != c
    assert len(set(joined(4, 8))) == 1
