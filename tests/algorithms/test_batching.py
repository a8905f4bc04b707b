"""The primitive behind the public functions, and their decorator: batches, maps, chunks and derivatives of all orders.

Most tests compare the primitive with the plain function that it calls, for functions that compile quickly.
"""

import contextlib
import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import native
from jaxdyn._types import Array, Configuration, Float, Velocity, Wrenches
from jaxdyn.algorithms.recursions import Robot, algorithm
from jaxdyn.native import Derivatives, Plain, _batching, call
from jaxdyn.native._repeated_functions import repeated


def toy(x, A, s):
    """A function of `[*batch, 3]`, `[*batch, 2, 3]` and `[*batch]` that is linear in none of them. One of its results
    does not depend on `A`."""
    y = jnp.sin(jnp.einsum("...ij,...j->...i", A, x)) * s[..., None]
    z = x[..., :, None] * jnp.cos(x * s[..., None])[..., None, :]
    batch = jnp.broadcast_shapes(x.shape[:-1], A.shape[:-2], s.shape)
    return jnp.broadcast_to(y, (*batch, 2)), jnp.broadcast_to(z, (*batch, 3, 3))


TOY = Plain(toy, (1, 2, 0), ((2,), (3, 3)))
CORES = ((3,), (2, 3), ())


def primitive(x, A, s):
    return tuple(call(TOY, x, A, s))


def states(*batches: tuple[int, ...]):
    """Return `x`, `A` and `s` with these batch axes."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(*b, *core))) for b, core in zip(batches, CORES, strict=True)]


CHUNKED = 8


def set_chunk(monkeypatch, size: int) -> None:
    """Set the chunk size. No program with the old size is used, because each test compiles new functions."""
    for name in ("CHUNK", "CHUNK_SHORT", "CHUNK_LEAST"):
        monkeypatch.setattr(_batching, name, size)


@pytest.fixture
def chunks(monkeypatch):
    """Set a chunk size that most batches of the tests do not fill."""
    set_chunk(monkeypatch, CHUNKED)


@pytest.fixture(params=["native", "xla"], autouse=True)
def lowering(request):
    """Run a test with native code, and once more with the program that XLA compiles."""
    with native.disabled() if request.param == "xla" else contextlib.nullcontext():
        yield request.param


MOSTLY_NATIVE = pytest.mark.parametrize(
    "lowering", ["native", pytest.param("xla", marks=pytest.mark.slow)], indirect=True
)
"""The mark of tests of rules that a lowering does not change."""


def run(f, *args):
    """Compile `f` as a new function, and call it."""
    return jax.jit(lambda *args: f(*args))(*args)


def loops(f, *args) -> int:
    """The number of loops in XLA's own program for the CPU."""
    with native.disabled():
        return jax.jit(lambda *args: f(*args)).lower(*args).as_text().count("stablehlo.while")


def same(actual, expected, atol=1e-12):
    actual, expected = jax.tree.leaves(actual), jax.tree.leaves(expected)
    for got, want in zip(actual, expected, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=atol)


def as_without(*transforms, of=None):
    """Assert that transformations of the primitive give the same values as transformations of the plain function.

    Each of `transforms` is a transformation followed by its arguments.
    """
    function, plain = of or (primitive, toy)
    arguments = [args for _, *args in transforms]

    def every(f):
        return lambda arguments: [t(f)(*args) for (t, *_), args in zip(transforms, arguments, strict=True)]

    same(run(every(function), arguments), run(every(plain), arguments))


def gradient(f):
    return jax.grad(scalar(f), argnums=(0, 1, 2))


def scalar(f):
    """Return a smooth scalar function in which every element of both results has a different weight."""

    def value(*args):
        out = f(*args)
        return sum(jnp.vdot(jnp.cos(jnp.arange(y.size)).reshape(y.shape), y + y * y) for y in out)

    return value


# Batch axes


def often(first, *others) -> list:
    """Return cases of which the others are slow tests."""
    return [*first, *(pytest.param(case, marks=pytest.mark.slow) for case in others)]


BATCHES = often(
    [((), (19,), (1,)), ((2, 3, 4), (4,), (3, 1))],
    ((), (), ()),
    ((16,), (16,), ()),
    ((11,), (11,), (11,)),
    ((19,), (), ()),
    ((3, 1), (7,), ()),
    ((1, 1), (5,), (5, 1)),
)


@MOSTLY_NATIVE
@pytest.mark.parametrize("batches", BATCHES, ids=str)
def test_batch_axes_broadcast(chunks, batches):
    """Gradients have the shapes of the arguments: they are sums over the axes along which the arguments broadcast."""
    args = states(*batches)
    batch = np.broadcast_shapes(*batches)
    assert [y.shape for y in jax.eval_shape(primitive, *args)] == [(*batch, 2), (*batch, 3, 3)]
    as_without((lambda f: f, *args), (gradient, *args))


def test_only_large_batches_are_chunked(chunks):
    small, large = states((8,), (8,), (8,)), states((9,), (9,), (9,))
    for f, calls in ((primitive, 1), (gradient(primitive), 2)):
        assert loops(f, *small) == 0
        assert loops(f, *large) == calls


def test_results_that_are_large_are_chunked_smaller(monkeypatch):
    """Chunks are smaller for long results and for results of many numbers, down to a least size."""
    args = states((40,), (40,), (40,))
    assert loops(primitive, *args) == 0
    for name, numbers in (("CHUNK_ROWS", 3), ("CHUNK_NUMBERS", 11)):
        with monkeypatch.context() as patch:
            patch.setattr(_batching, name, numbers * 40)
            assert loops(primitive, *args) == 0
            patch.setattr(_batching, name, numbers * 40 - 1)
            assert loops(primitive, *args) == 1
            patch.setattr(_batching, "CHUNK_LEAST", 40)
            assert loops(primitive, *args) == 0


def test_one_by_one(chunks):
    args = states((11,), (11,), (11,))
    singly = jax.jit(primitive)
    expected = [jnp.stack(y) for y in zip(*(singly(*a) for a in zip(*args, strict=True)), strict=True)]
    whole, mapped = run(lambda *args: (primitive(*args), jax.vmap(primitive)(*args)), *args)
    same(whole, expected)
    same(mapped, expected)


# Maps

AXES = {
    "first": (0, 0, 0),
    "last": (1, 2, 0),
    "middle and negative": (-1, 1, 0),
    "x alone": (0, None, None),
    "A alone": (None, 1, None),
    "s alone": (None, None, 0),
    "without s": (1, 0, None),
}


def mapped_states(axes, size: int, *batches):
    """Return `size` states along the mapped axes."""
    stacked = states(*((size, *b) if a is not None else b for a, b in zip(axes, batches, strict=True)))
    return [x if a is None else jnp.moveaxis(x, 0, a) for a, x in zip(axes, stacked, strict=True)]


@MOSTLY_NATIVE
@pytest.mark.parametrize(
    "name", often(["middle and negative", "A alone", "without s"], "first", "last", "x alone", "s alone")
)
def test_vmap_of_any_axis(chunks, name):
    axes = AXES[name]
    args = mapped_states(axes, 11, (), (), ())
    as_without(
        (lambda f: jax.vmap(f, axes, (1, 2)), *args),
        (lambda f: jax.vmap(f, axes, -1), *args),
        (lambda f: jax.vmap(gradient(f), axes, 0), *args),
    )


@MOSTLY_NATIVE
@pytest.mark.parametrize("axes", often([(None, 1, 0)], (0, None, None), (1, 0, None)), ids=str)
def test_vmap_over_batch_axes(chunks, axes):
    args = mapped_states(axes, 3, (5,), (4, 1), ())
    as_without(
        (lambda f: jax.vmap(f, axes, -1), *args),
        (lambda f: gradient(jax.vmap(f, axes)), *args),
        (lambda f: jax.vmap(gradient(f), axes), *args),
    )


NESTED = {
    "both": (lambda f: jax.vmap(jax.vmap(f)), ((3, 7), (3, 7), (3, 7))),
    "one each": (lambda f: jax.vmap(jax.vmap(f, (None, 0, None)), (0, None, None)), ((3,), (7,), ())),
    "crossed": (lambda f: jax.vmap(jax.vmap(f, (1, 0, None), 1), (0, None, 0), 2), ((3, 7), (7,), (3,))),
    "three": (
        lambda f: jax.vmap(jax.vmap(jax.vmap(f, (0, None, 0)), (None, 0, 0)), (0, None, 0)),
        ((3, 2), (4,), (3, 4, 2)),
    ),
}


@MOSTLY_NATIVE
@pytest.mark.parametrize("name", often(["crossed", "three"], "both", "one each"))
def test_nested_vmap(chunks, name):
    nested, batches = NESTED[name]
    args = states(*batches)
    if name == "crossed":
        # The inner map takes the second of the axes that the outer map leaves of `x`.
        args[0] = jnp.moveaxis(args[0], 1, 2)
    as_without((nested, *args), (lambda f: gradient(nested(f)), *args))


@MOSTLY_NATIVE
def test_batch_axes_equal_maps(chunks):
    """The results are bitwise equal: both run the same program over all elements."""
    args = states((3, 7), (3, 7), (3, 7))
    nested = jax.vmap(jax.vmap(primitive))
    for a, b in zip(run(primitive, *args), run(nested, *args), strict=True):
        np.testing.assert_array_equal(a, b)
    assert loops(primitive, *args) == loops(nested, *args) == 1


# Derivatives


@MOSTLY_NATIVE
def test_gradients_of_what_is_not_mapped(chunks):
    """The gradients are sums over a batch that does not fill its chunks; the padding adds nothing to them."""
    args = states((19,), (), ())
    as_without(
        (gradient, *args),
        (lambda f: gradient(jax.vmap(f, (0, None, None))), *args),
        # The gradient of one result only has a symbolic zero among its cotangents.
        (lambda f: jax.grad(lambda *a: jnp.vdot(f(*a)[1], f(*a)[1]), argnums=(1, 2)), *args),
    )


@MOSTLY_NATIVE
def test_grad_of_vmap_is_vmap_of_grad(chunks):
    args = states((11,), (11,), (11,))

    def single(x, A, s):
        return sum(jnp.sum(y + y * y) for y in primitive(x, A, s))

    def run_all(*args):
        of_map = jax.grad(lambda *a: jax.vmap(single)(*a).sum(), argnums=(0, 1, 2))
        by_one = jax.grad(single, argnums=(0, 1, 2))
        return of_map(*args), jax.vmap(by_one)(*args), by_one(*args)

    of_map, mapped, whole = run(run_all, *args)
    same(of_map, mapped)
    same(whole, mapped)


JACOBIANS = {"forward": jax.jacfwd, "reverse": jax.jacrev}


@MOSTLY_NATIVE
def test_jacobians(chunks):
    args = states((11,), (1,), ())

    def mapped(jacobian):
        return lambda f: jax.vmap(jacobian(f, argnums=(1, 2)), (0, None, None), 1)

    def unmapped(jacobian):
        return lambda f: jacobian(f, argnums=(0, 1, 2))

    as_without(*((kind(jacobian), *args) for kind in (mapped, unmapped) for jacobian in JACOBIANS.values()))


@pytest.mark.slow
@MOSTLY_NATIVE
def test_second_derivatives(chunks):
    args = states((9,), (), (9,))

    def second(outer):
        return lambda f: outer(jax.grad(scalar(f), argnums=(0, 1, 2)), argnums=(0, 1, 2))

    as_without(*((second(outer), *args) for outer in JACOBIANS.values()))


@pytest.mark.slow
@pytest.mark.parametrize("outer", JACOBIANS.values(), ids=JACOBIANS)
def test_mixed_second_derivatives(outer):
    """The second argument of differentiation has more batch axes than the first, or fewer."""
    args = states((3,), (), (3,))

    def mixed(first, second):
        return lambda f: outer(jax.grad(scalar(f), argnums=first), argnums=second)

    as_without(*((mixed(*pair), *args) for pair in ((0, 1), (1, 2), (2, 0))))


@pytest.mark.slow
def test_third_derivatives(chunks):
    args = states((9,), (), (9,))

    def third(f):
        return jax.grad(lambda *a: jnp.sum(jax.hessian(scalar(f), argnums=2)(*a) ** 2), argnums=(0, 1, 2))

    as_without((third, *args))


@pytest.mark.slow
@MOSTLY_NATIVE
def test_directions_that_are_mapped(chunks):
    """Tangents and cotangents have a batch axis, at one point and at many points."""
    args = tuple(states((5,), (), ()))
    dots = states((3, 5), (3,), (3,))
    bars = [jnp.stack([y, -2 * y, y * y]) for y in toy(*args)]

    def by_x(f, x_dot):
        return jax.jvp(lambda x: f(x, *args[1:]), args[:1], (x_dot,))[1]

    as_without(
        (lambda f: jax.vmap(lambda *dots: jax.jvp(f, args, dots)[1]), *dots),
        (lambda f: jax.vmap(lambda *bars: jax.vjp(f, *args)[1](bars)), *bars),
        (lambda f: jax.vmap(functools.partial(by_x, f)), dots[0]),
        (lambda f: jax.vmap(lambda s, *bars: jax.vjp(f, *args[:2], s)[1](bars)), jnp.arange(3.0), *bars),
    )


@pytest.mark.slow
@MOSTLY_NATIVE
def test_linear_maps_and_their_transposes(chunks):
    """The derivative as a linear map, its transpose and the transpose of that are correct, also under `vmap`."""
    args = tuple(states((11,), (1,), ()))
    dots = tuple(2 * x for x in args)
    bars = toy(*args)

    def maps(f):
        _, linear = jax.linearize(f, *args)
        transposed = jax.linear_transpose(linear, *dots)
        twice_transposed = jax.linear_transpose(transposed, bars)
        return linear, transposed, lambda *dots: twice_transposed(tuple(dots))[0]

    def values(f):
        def run(*dots):
            linear, transposed, twice_transposed = maps(f)
            many = [jnp.stack([x, -x]) for x in dots]
            out = [
                linear(*dots),
                transposed(bars),
                twice_transposed(*dots),
                jax.vmap(linear)(*many),
                jax.vmap(twice_transposed)(*many),
            ]
            return out, jax.vmap(transposed)(tuple(jnp.stack([y, 3 * y]) for y in bars))

        return run

    def part(f):
        """The derivative of one result by one argument."""

        def run(bar):
            def pushed(x_dot):
                return jax.jvp(lambda x: f(x, *args[1:])[0], args[:1], (x_dot,))[1]

            return jax.linear_transpose(pushed, dots[0])(bar)

        return run

    as_without((values, *dots), (part, bars[0]))
    # The transpose of the transpose is the map itself.
    same(run(maps(primitive)[2], *dots), jax.jvp(toy, args, dots)[1])


@pytest.mark.slow
def test_derivatives_of_linear_maps(chunks):
    """The derivatives are by the point and by the direction at the same time."""
    args = tuple(states((11,), (), (11,)))

    def pushed(f):
        return jax.grad(lambda args, dots: scalar(lambda: jax.jvp(f, args, dots)[1])(), argnums=(0, 1))

    def pulled(f):
        return jax.grad(lambda args, bars: scalar(lambda: jax.vjp(f, *args)[1](bars))(), argnums=(0, 1))

    as_without((pushed, args, tuple(jnp.sin(x) for x in args)), (pulled, args, toy(*args)))
    as_without((lambda f: lambda *a: jax.jvp(pulled(f), a, a)[1], args, toy(*args)))


@MOSTLY_NATIVE
def test_without_jit():
    """Calls, maps and derivatives that run operation by operation are correct."""
    args = tuple(states((5,), (), (5,)))
    dots, bars = tuple(jnp.cos(x) for x in args), toy(*args)
    same(primitive(*args), toy(*args))
    same(jax.vmap(primitive, (0, None, 0))(*args), toy(*args))
    same(jax.jvp(primitive, args, dots), jax.jvp(toy, args, dots))
    same(jax.vjp(primitive, *args)[1](bars), jax.vjp(toy, *args)[1](bars))


@MOSTLY_NATIVE
def test_single_precision_stays_single(chunks):
    args = [x.astype(jnp.float32) for x in states((11,), (), ())]
    for x in jax.tree.leaves(run(lambda *a: (primitive(*a), gradient(primitive)(*a)), *args)):
        assert x.dtype == np.float32


# A function with custom derivatives. In `marked` they have factors that show which of them was used.

JACOBIAN, PULLBACK = 1 + 1e-3, 1 + 1e-6


def smooth(x, A, u):
    """A smooth function `[2]` of arguments `[3]`, `[2, 3]` and `[2]`."""
    y = jnp.sin(jnp.einsum("...ij,...j->...i", A, x)) * u * u
    return jnp.broadcast_to(y, (*jnp.broadcast_shapes(x.shape[:-1], A.shape[:-2], u.shape[:-1]), 2))


def matrices(x, A, u):
    y = jnp.einsum("...ij,...j->...i", A, x)
    by_x = jnp.cos(y)[..., None] * A * (u * u)[..., None]
    by_u = (2 * u * jnp.sin(y))[..., None] * jnp.eye(2)
    batch = jnp.broadcast_shapes(x.shape[:-1], A.shape[:-2], u.shape[:-1])
    return jnp.broadcast_to(by_x, (*batch, 2, 3)), jnp.broadcast_to(by_u, (*batch, 2, 2))


def marked_matrices(x, A, u):
    return tuple(JACOBIAN * m for m in matrices(x, A, u))


def pullback(x, A, u, bar):
    return tuple(jnp.einsum("...i,...ij->...j", bar, m) for m in matrices(x, A, u))


def marked_pullback(*args):
    return tuple(PULLBACK * product for product in pullback(*args))


def with_custom(jacobian, pullback) -> Plain:
    cores = (1, 2, 1)
    matrices_of = Plain(jacobian, cores, ((2, 3), (2, 2)))
    return Plain(smooth, cores, ((2,),), Derivatives((0, 2), matrices_of, pullback))


def custom(x, A, u):
    return call(with_custom(matrices, pullback), x, A, u)[0]


def marked(x, A, u):
    return call(with_custom(marked_matrices, marked_pullback), x, A, u)[0]


def smooth_states(*batches):
    rng = np.random.default_rng(1)
    return [jnp.asarray(rng.normal(size=(*b, *c))) for b, c in zip(batches, ((3,), (2, 3), (2,)), strict=True)]


@MOSTLY_NATIVE
def test_which_derivatives_are_used():
    """One cotangent uses the pullback, many directions at one point use the matrices, all else generic derivatives."""
    args = smooth_states((), (), ())
    bar, dot = jnp.array([1.0, -2]), jnp.ones(3)

    def pulled(wrt):
        def value_of(f, values):
            changed = list(args)
            for i, value in zip(wrt, values, strict=True):
                changed[i] = value
            return f(*changed)

        return lambda f: jax.vjp(functools.partial(value_of, f), [args[i] for i in wrt])[1](bar)[0]

    def pushed(f):
        return jax.jvp(lambda x: f(x, *args[1:]), (args[0],), (dot,))[1]

    def at_many_points(f):
        return jax.vmap(jax.grad(lambda x: f(x, *args[1:]) @ bar))(args[0][None])

    cases = [
        (pulled((0, 2)), PULLBACK),
        (pulled((2,)), PULLBACK),
        # The custom derivatives do not include A.
        (pulled((0, 1, 2)), 1),
        (pushed, 1),
        # Here each direction has its own point, so there is one cotangent at each point.
        (at_many_points, PULLBACK),
    ]
    for jacobian in JACOBIANS.values():
        cases += [
            (lambda f, jacobian=jacobian: jacobian(f, argnums=(0, 2))(*args), JACOBIAN),
            (lambda f, jacobian=jacobian: jacobian(f, argnums=2)(*args), JACOBIAN),
            (lambda f, jacobian=jacobian: jacobian(f, argnums=1)(*args), 1),
        ]
    values, plain = (run(lambda f=f: [case(f) for case, _ in cases]) for f in (marked, smooth))
    same(
        values,
        [jax.tree.map(lambda x, factor=factor: factor * x, y) for y, (_, factor) in zip(plain, cases, strict=True)],
    )


def custom_value(f):
    def value(*args):
        return jnp.vdot(f(*args), jnp.cos(f(*args)))

    return value


CUSTOM_BATCHES = often([((), (), ()), ((3, 1), (), (5,))], ((11,), (), (11,)), ((11,), (1,), ()))


@MOSTLY_NATIVE
@pytest.mark.parametrize("batches", CUSTOM_BATCHES, ids=str)
def test_gradients_by_the_pullback(chunks, batches):
    """The gradient of an argument with fewer batch axes is a sum over the batch."""
    args = smooth_states(*batches)
    as_without(
        (lambda f: jax.grad(custom_value(f), argnums=(0, 2)), *args),
        (lambda f: jax.grad(custom_value(f)), *args),
        (lambda f: jax.grad(custom_value(f), argnums=(0, 1, 2)), *args),
        of=(custom, smooth),
    )


@MOSTLY_NATIVE
@pytest.mark.parametrize("jacobian", JACOBIANS.values(), ids=JACOBIANS)
@pytest.mark.parametrize("batches", CUSTOM_BATCHES, ids=str)
def test_jacobians_by_the_matrices(batches, jacobian):
    """The Jacobians are correct also for arguments with fewer batch axes."""
    args = smooth_states(*batches)
    as_without(
        (lambda f: jacobian(f, argnums=(0, 2)), *args),
        (lambda f: jacobian(f, argnums=2), *args),
        of=(custom, smooth),
    )


@MOSTLY_NATIVE
@pytest.mark.parametrize("size", [2, 3])
def test_as_many_directions_as_states(size):
    """Directions and batches are not confused when an argument without batch axis is differentiated."""
    x, A, _ = smooth_states((), (), ())
    u = jnp.asarray(np.random.default_rng(2).normal(size=(size, 2)))
    as_without((jax.jacfwd, x, A, u), (jax.jacrev, x, A, u), of=(custom, smooth))


@pytest.mark.slow
@pytest.mark.parametrize("inner", JACOBIANS.values(), ids=JACOBIANS)
def test_second_derivatives_of_own(inner):
    """Derivatives of the matrices and of the pullback are correct, by arguments with and without custom derivatives."""
    args = smooth_states((3,), (), (3,))

    def of_matrices(outer):
        return lambda f: outer(inner(f, argnums=(0, 2)), argnums=(0, 1))

    def of_pullback(f):
        return inner(jax.grad(custom_value(f), argnums=(0, 2)), argnums=(0, 1))

    as_without(*((t, *args) for t in (*map(of_matrices, JACOBIANS.values()), of_pullback)), of=(custom, smooth))


@pytest.mark.slow
def test_maps_of_own_jacobians(chunks):
    """Maps over points with many directions each, and over arguments that are not differentiated, are correct."""
    x, A, u = smooth_states((11,), (), (11,))
    as_without(
        (lambda f: jax.vmap(jax.jacrev(f, argnums=(0, 2)), (0, None, 0), 1), x, A, u),
        (lambda f: jax.vmap(lambda s: jax.jacfwd(f)(x[0], s * A, u[0])), jnp.arange(9.0)),
        (lambda f: jax.vmap(jax.hessian(f), (0, None, 0)), x, A, u),
        of=(custom, smooth),
    )


# Within other transformations


@MOSTLY_NATIVE
def test_checkpoint(chunks):
    args = states((11,), (), ())
    policies = (None, jax.checkpoint_policies.everything_saveable)

    def kept(policy):
        def transform(f):
            again = jax.checkpoint(scalar(f), policy=policy)
            return jax.grad(lambda *a: jnp.sin(again(*a)), argnums=(0, 1, 2))

        return transform

    as_without(*((kept(policy), *args) for policy in policies))


@MOSTLY_NATIVE
def test_control_flow(chunks):
    """Values and gradients are correct; a loop of unknown length is differentiated in forward mode."""
    args = states((11,), (), ())

    def scanned(f):
        def total(x, A, s):
            def step(x, s):
                y, z = f(x, A, s)
                return x + 0.1 * z.sum(axis=-1), y

            last, ys = jax.lax.scan(step, x, s + jnp.arange(3.0))
            return jnp.vdot(last, last) + jnp.sum(jnp.sin(ys))

        return jax.value_and_grad(total, argnums=(0, 1, 2))

    def branched(f):
        def total(x, A, s):
            y = jax.lax.cond(s > 0, lambda: f(x, A, s)[0], lambda: f(x, 2 * A, s * s)[0])
            return jnp.sum(jnp.sin(y))

        return jax.value_and_grad(total, argnums=(0, 1, 2))

    def repeated(f):
        def total(x, A, s):
            def step(carry):
                i, x = carry
                return i + 1, x + 0.1 * f(x, A, s)[1].sum(axis=-1)

            return jax.lax.while_loop(lambda c: c[0] < 3, step, (0, x))[1]

        return lambda *a: jax.jvp(total, a, a)

    as_without(
        (scanned, *args),
        (branched, *args),
        (branched, *args[:2], -args[2]),
        (repeated, *args),
        # Under `vmap` a branch that differs between elements becomes a selection.
        (lambda f: jax.vmap(branched(f), (None, None, 0)), *args[:2], jnp.array([0.5, -1.0])),
    )


def turned(a, b, x, y):
    """A function of two operands that stay and two that its results replace."""
    return jnp.sin(x * b) + y[..., None] * a, jnp.cos(y) + 0.1 * (x * a).sum(axis=-1)


def test_a_loop_of_which_the_end_counts_has_derivatives_of_all_orders():
    loop = repeated(Plain(turned, (1, 1, 1, 0), ((2,), ())), 3, 2, every=None)

    def one_by_one(a, b, x, y):
        for _ in range(3):
            x, y = turned(a, b, x, y)
        return x, y

    rng = np.random.default_rng(0)
    a, b, x, y = rng.normal(size=2), rng.normal(size=2), rng.normal(size=(4, 2)), rng.normal(size=4)

    def results(f):
        def loss(*operands):
            end = f(*operands)
            return (end[0] ** 2).sum() + (end[1] ** 3).sum()

        def of_first(x, y):
            return f(a, b, x, y)[0]

        def function(*operands):
            first = tuple(f(*operands)), jax.jvp(lambda *p: tuple(f(*p)), operands, operands)[1]
            gradient = jax.grad(loss, (0, 1, 2, 3))(*operands)
            second = jax.hessian(loss, 2)(*operands), jax.jacrev(jax.grad(loss, 1), 0)(*operands)
            mapped = [jax.vmap(jac(of_first, (0, 1)))(x, y) for jac in (jax.jacfwd, jax.jacrev)]
            return first, gradient, second, mapped

        return function

    got, wanted = (jax.jit(results(f))(a, b, x, y) for f in (lambda *x: call(loop, *x), one_by_one))
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("batches", [((0,), (0,), (0,)), ((0,), (), (1,)), ((3, 1), (0,), ())], ids=str)
def test_empty_batches(batches):
    """Empty batches give empty results, and zero gradients of arguments without batch axes."""
    args = states(*batches)
    batch = np.broadcast_shapes(*batches)
    assert [y.shape for y in run(primitive, *args)] == [(*batch, 2), (*batch, 3, 3)]
    same(run(gradient(primitive), *args), [jnp.zeros_like(x) for x in args])


def test_empty_maps():
    args = states((0,), (), ())
    assert [y.shape for y in run(jax.vmap(primitive, (0, None, None)), *args)] == [(0, 2), (0, 3, 3)]
    gradients = run(jax.vmap(gradient(primitive), (0, None, None)), *args)
    assert [g.shape for g in gradients] == [(0, 3), (0, 2, 3), (0,)]


@pytest.mark.parametrize("lowering", ["xla"], indirect=True)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_other_platforms_take_the_whole_batch(platform):
    """The program for a CPU has one loop over chunks for each call; the program for an accelerator has no loop."""
    args = states((1000,), (1000,), (1000,))
    for f, calls in ((primitive, 1), (gradient(primitive), 2)):
        traced = jax.jit(lambda *a, f=f: f(*a)).trace(*args)
        text = {name: traced.lower(lowering_platforms=(name,)).as_text() for name in ("cpu", platform)}
        assert text["cpu"].count("stablehlo.while") == calls
        assert text[platform].count("stablehlo.while") == 0
        assert text[platform].count("stablehlo.sine") >= calls


# The decorator, on a function that is quick to compile


class Quick(NamedTuple):
    energy: Float[Array, "*batch"]
    torque: Float[Array, "*batch nv"]
    each: tuple[Float[Array, "*batch nb"], Float[Array, "*batch 3 nb"]]


@algorithm()
def quick(robot: Robot, q: Configuration, v: Velocity, f_ext: Wrenches | None = None, *, power: int = 2) -> Quick:
    """A function that is smooth in every argument, and in many arrays of the model."""
    mass = robot.inertial_parameters[:, 0]
    torque = robot.damping * v**power + robot.armature * jnp.sin(q).sum(axis=0)
    if f_ext is not None:
        torque = torque + jnp.sin(f_ext).sum(axis=(0, 1))
    each = mass * q[:1]
    return Quick(mass.sum(axis=0) * (v * v).sum(axis=0), torque, (each, jnp.stack([each, each**2, -each])))


def expected(model, q, v, f_ext=None, power: int = 2):
    """The same function of one state, without the decorator."""
    torque = model.damping * v**power + model.armature * jnp.sin(q).sum()
    if f_ext is not None:
        torque = torque + jnp.sin(f_ext).sum()
    each = model.inertial_parameters[:, 0] * q[0]
    energy = model.inertial_parameters[:, 0].sum() * (v @ v)
    return Quick(energy, torque, (each, jnp.stack([each, each**2, -each])))


LEAVES = ("damping", "armature", "inertial_parameters")


def with_leaves(model, values: dict):
    return eqx.tree_at(lambda m: [getattr(m, name) for name in values], model, list(values.values()))


@functools.cache
def robot():
    """A robot, arrays of many robots with the same structure, and states."""
    model = jaxdyn.samples.random_tree(jax.random.key(1), 3, ("ball", "revolute", "prismatic"), branching=2)
    rng = np.random.default_rng(0)
    n = 11
    many = {name: getattr(model, name) * rng.uniform(0.5, 2, (n, *getattr(model, name).shape)) for name in LEAVES}
    q, v = rng.normal(size=(n, model.nq)), rng.normal(size=(n, model.nv))
    return model, many, jnp.asarray(q), jnp.asarray(v), jnp.asarray(rng.normal(size=(n, model.nb, 6)))


@MOSTLY_NATIVE
def test_states_models_and_wrenches_in_batches(chunks):
    """Native axes, maps over states, models and both, and single calls give the same values."""
    model, many, q, v, f = robot()
    models = with_leaves(model, many)
    axes = jax.tree.map(lambda many, single: 0 if many.ndim > single.ndim else None, models, model)

    def every(function, by_values, q, v, f):
        return [
            by_values(function)(many, q, v, f),
            jax.vmap(function, (axes, 0, 0, 0))(models, q, v, f),
            jax.vmap(function, (axes, 1, 1, 2), -1)(models, q.T, v.T, jnp.moveaxis(f, 0, 2)),
            # This evaluates every model at every state.
            jax.vmap(jax.vmap(function, (None, 0, 0)), (axes, None, None))(models, q, v),
        ]

    def plainly(function):
        return lambda values, *states: function(with_leaves(model, values), *states)

    actual = run(functools.partial(every, quick, plainly), q, v, f)
    reference = run(functools.partial(every, expected, lambda function: jax.vmap(plainly(function))), q, v, f)
    same(actual, reference)
    wide = {name: x[:, None] for name, x in many.items()}
    same(run(plainly(quick), wide, q, v), reference[-1])
    for k in (0, 10):
        single = run(plainly(quick), {name: x[k] for name, x in many.items()}, q[k], v[k], f[k])
        same(single, jax.tree.map(lambda x, k=k: x[k], actual[0]))


@MOSTLY_NATIVE
def test_gradients_by_everything_over_a_batch(chunks):
    """Gradients by the model and by arguments without batch axes are correct if the batch does not fill its chunks."""
    model, _, q, v, f = robot()
    leaves = {name: getattr(model, name) for name in LEAVES}

    def total(function, values, q, v, f):
        out = function(with_leaves(model, values), q, v, f)
        return sum(jnp.sum(jnp.sin(x) * (1 + jnp.arange(x.size).reshape(x.shape))) for x in jax.tree.leaves(out))

    def reference(model, q, v, f):
        q = jnp.broadcast_to(q, (11, model.nq))
        return jax.vmap(lambda *s: expected(model, *s))(q, v, jnp.broadcast_to(f, (11, model.nb, 6)))

    actual, summed = (
        run(jax.grad(functools.partial(total, function), argnums=(0, 1, 2, 3)), leaves, q[0], v, f[0])
        for function in (quick, reference)
    )
    same(actual, summed)
    assert all(float(jnp.abs(x).max()) > 1e-3 for x in jax.tree.leaves(actual))


@pytest.mark.slow
def test_second_derivatives_by_the_model():
    model, _, q, v, _ = robot()

    def both(function):
        def total(damping, v):
            return jnp.sum(jnp.sin(function(with_leaves(model, {"damping": damping}), q[0], v).torque))

        def run(*args):
            reverse_twice = jax.jacrev(jax.jacrev(total, argnums=(0, 1)), argnums=(0, 1))
            return jax.hessian(total, argnums=(0, 1))(*args), reverse_twice(*args)

        return run

    same(run(both(quick), model.damping, v[0]), run(both(expected), model.damping, v[0]))


@pytest.mark.slow
@MOSTLY_NATIVE
def test_derivatives_without_jit():
    """Eager derivatives, as at a prompt, are correct."""
    model, _, q, v, _ = robot()

    def torque(function):
        return lambda model, v: function(model, q[0], v).torque

    args = (model, v[0])
    dots = jax.tree.map(jnp.cos, args)
    same(jax.jvp(torque(quick), args, dots), jax.jvp(torque(expected), args, dots))
    (value, back), (value_expected, back_expected) = (
        jax.vjp(torque(function), *args) for function in (quick, expected)
    )
    same(value, value_expected)
    same(back(jnp.sin(value)), back_expected(jnp.sin(value)))


@MOSTLY_NATIVE
def test_options_and_keywords():
    model, _, q, v, f = robot()
    # The default of `power` is that of the signature.
    same(quick(model, q[0], v[0]), expected(model, q[0], v[0]))
    cubed = expected(model, q[0], v[0], f[0], 3)
    same(quick(model=model, f_ext=f[0], v=v[0], q=q[0], power=3), cubed)
    mapped = jax.vmap(functools.partial(quick, power=3), (None, 0, 0, 0))(model, q[:1], v[:1], f[:1])
    same(jax.tree.map(lambda x: x[0], mapped), cubed)


def nested(model, q, v):
    """A function that calls `quick` twice, once with a changed model."""
    changed = eqx.tree_at(lambda m: m.damping, model, 3 * model.damping)
    return quick(model, q, v).torque + quick(changed, q, v, power=1).torque


@MOSTLY_NATIVE
def test_functions_of_functions(chunks):
    model, many, q, v, _ = robot()

    def reference(model, q, v):
        changed = with_leaves(model, {"damping": 3 * model.damping})
        return expected(model, q, v).torque + expected(changed, q, v, power=1).torque

    def both(function):
        def total(values, q, v):
            value = jax.vmap(lambda *s: function(with_leaves(model, values), *s))(q, v)
            return jnp.sum(jnp.sin(value)), value

        return jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True)

    values = {name: x[0] for name, x in many.items()}
    same(run(both(nested), values, q, v), run(both(reference), values, q, v))


@MOSTLY_NATIVE
def test_calls_leave_their_arguments():
    model, _, q, v, f = robot()
    for function in (quick, jax.jit(lambda *args: quick(*args))):
        function(model, q, v, f)
        assert not any(x.is_deleted() for x in jax.tree.leaves((model, q, v, f)))


# The functions of the library

FUNCTIONS = {
    "rnea": lambda m, q, v, x: jaxdyn.rnea(m, q, v, x),
    "aba": lambda m, q, v, x: jaxdyn.aba(m, q, v, x),
    "crba": lambda m, q, v, x: jaxdyn.crba(m, q),
    "rnea_derivatives": lambda m, q, v, x: jaxdyn.rnea_derivatives(m, q, v, x),
    "aba_derivatives": lambda m, q, v, x: jaxdyn.aba_derivatives(m, q, v, x),
    "nonlinear_effects": lambda m, q, v, x: jaxdyn.nonlinear_effects(m, q, v),
    "generalized_gravity": lambda m, q, v, x: jaxdyn.generalized_gravity(m, q),
    "torque_regressor": lambda m, q, v, x: jaxdyn.torque_regressor(m, q, v, x),
    "forward_kinematics": lambda m, q, v, x: jaxdyn.forward_kinematics(m, q),
    "frame_pose": lambda m, q, v, x: jaxdyn.frame_pose(m, q, "body2"),
    "frame_jacobian": lambda m, q, v, x: jaxdyn.frame_jacobian(m, q, "body2", "local"),
    "frame_velocity": lambda m, q, v, x: jaxdyn.frame_velocity(m, q, v, "body2"),
    "center_of_mass": lambda m, q, v, x: jaxdyn.center_of_mass(m, q),
    "kinetic_energy": lambda m, q, v, x: jaxdyn.kinetic_energy(m, q, v),
    "potential_energy": lambda m, q, v, x: jaxdyn.potential_energy(m, q),
}


@MOSTLY_NATIVE
@pytest.mark.parametrize("name", FUNCTIONS)
def test_shapes_of_batches(name):
    """Native axes, maps, both, and empty batches give the shape of a single result with the batch axes before it."""
    model, _, q, v, _ = robot()
    function = functools.partial(FUNCTIONS[name], model)
    unbatched = jax.eval_shape(function, q[0], v[0], v[0])

    def check(f, batch, *args):
        for got, single in zip(jax.tree.leaves(jax.eval_shape(f, *args)), jax.tree.leaves(unbatched), strict=True):
            assert got.shape == (*batch, *single.shape)

    for batch in ((11,), (0,), (2, 0), (3, 11)):
        args = [jax.ShapeDtypeStruct((*batch, x.shape[-1]), x.dtype) for x in (q, v, v)]
        check(function, batch, *args)
        check(jax.vmap(function), batch, *args)
    check(jax.vmap(jax.vmap(function)), batch, *args)
    check(jax.vmap(function, in_axes=1, out_axes=0), batch[::-1], *args)


def calls(jaxpr) -> list:
    """Every use of the primitive, also within functions that are compiled separately."""
    inner = [calls(e.params["jaxpr"].jaxpr) for e in jaxpr.eqns if e.primitive.name == "jit"]
    return sum(inner, [e for e in jaxpr.eqns if e.primitive.name == "jaxdyn_call"])


@MOSTLY_NATIVE
@pytest.mark.parametrize("name", FUNCTIONS)
def test_declared_shapes_are_those_of_the_function(name):
    """The results have the batch axes of every argument and of the model, whether or not the value depends on them."""
    model, many, q, v, _ = robot()
    models = with_leaves(model, {"inertial_parameters": many["inertial_parameters"][:2]})
    q, v = q[:6].reshape(3, 2, -1), v[:5].reshape(5, 1, 1, -1)
    used = calls(jax.make_jaxpr(functools.partial(FUNCTIONS[name], models))(q, v, v).jaxpr)
    assert len(used) == 1
    for used_call in used:
        out = jax.eval_shape(used_call.params["function"].__call__, *(x.aval for x in used_call.invars))
        assert [(x.shape, x.dtype) for x in out] == [(x.aval.shape, x.aval.dtype) for x in used_call.outvars]


@MOSTLY_NATIVE
def test_dynamics_in_batches(chunks):
    """Inverse dynamics over batches of states, wrenches and models equals single calls."""
    model, many, q, v, f = robot()

    def torques(values, q, v, f):
        return jaxdyn.rnea(with_leaves(model, values), q, v, jnp.sin(v), f)

    singly = jax.jit(torques)
    one_by_one = [singly({name: x[k] for name, x in many.items()}, q[k], v[k], f[k]) for k in range(11)]
    turned = {name: jnp.moveaxis(x, 0, 1) for name, x in many.items()}
    mapped = jax.vmap(torques, (dict.fromkeys(many, 1), 1, 0, 2), 1)
    whole, mapped = run(
        lambda *args: (torques(*args[:4]), mapped(*args[4:])), many, q, v, f, turned, q.T, v, f.transpose(1, 2, 0)
    )
    same(whole, jnp.stack(one_by_one))
    same(mapped, jnp.stack(one_by_one, axis=1))


@pytest.mark.slow
def test_gradients_of_energy_over_a_batch(monkeypatch):
    """The chunked gradients by the model and by an argument without batch axes are the sums over single states."""
    model, _, q, v, _ = robot()

    def total(parameters, q, v):
        changed = with_leaves(model, {"inertial_parameters": parameters})
        return jnp.sum(jnp.sin(jaxdyn.kinetic_energy(changed, q, v)))

    by_all = jax.grad(total, argnums=(0, 1, 2))
    each = run(jax.vmap(by_all, (None, None, 0)), model.inertial_parameters, q[0], v)
    set_chunk(monkeypatch, CHUNKED)
    actual = run(by_all, model.inertial_parameters, q[0], v)
    for got, reference in zip(actual, (each[0].sum(axis=0), each[1].sum(axis=0), each[2]), strict=True):
        scale = float(jnp.abs(reference).max())
        assert scale > 1e-3
        same(got, reference, atol=1e-10 * scale)


def test_empty_batches_of_dynamics():
    model, _, q, v, _ = robot()
    assert jaxdyn.rnea(model, q[:0], v[:0], v[:0]).shape == (0, model.nv)


@pytest.mark.parametrize("lowering", ["xla"], indirect=True)
@pytest.mark.parametrize("name", ["value", pytest.param("gradient", marks=pytest.mark.slow)])
def test_dynamics_on_other_platforms(name):
    """The program for a large batch has as many loops as that for one state; on a CPU it has one more."""
    model = robot()[0]

    def value(q, v):
        return jaxdyn.rnea(model, q, v, v)

    function = value if name == "value" else jax.grad(lambda *args: jnp.sum(value(*args)))

    def loops(batch, platform):
        states = [jax.ShapeDtypeStruct((*batch, n), float) for n in (model.nq, model.nv)]
        traced = jax.jit(lambda *states: function(*states)).trace(*states)
        return traced.lower(lowering_platforms=(platform,)).as_text().count("stablehlo.while")

    count = loops((), "cpu")
    assert count > 0
    assert loops((1000,), "cuda") == count
    # The gradient does not need the value, so it is one call as well.
    assert loops((1000,), "cpu") == count + 1
