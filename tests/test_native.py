"""Native code gives the results of the programs that XLA compiles: every public function, every kind of batch, not
finite numbers, very large angles, several threads, and random trees."""

import functools
import inspect
import itertools
import os
import subprocess
import sys
import typing
from pathlib import Path

import draws
import jax
import jax.numpy as jnp
import native_results
import numpy as np
import pytest
from jax import lax
from loops_of_programs import logarithms, rounds_over_lists, sums_over_lists

import jaxdyn
from jaxdyn import native, samples, simulate
from jaxdyn._types import Configuration, Torque, Velocity, Wrenches
from jaxdyn.native import _batching
from jaxdyn.native._interpreter import Interpreter
from jaxdyn.native._specialize import specialize

pytestmark = pytest.mark.skipif(not native.status().enabled, reason=native.status().reason)

ROOT = Path(__file__).parents[1]
PRECISIONS = {"float32": 2e-4, "float64": 1e-11}


@pytest.fixture
def programs(monkeypatch):
    """The native programs that a test asks for, in a list; None for a function that has none."""
    asked, original = [], native.target

    def target(*args):
        program = original(*args)
        if native.enabled():
            asked.append(program)
        return program

    monkeypatch.setattr("jaxdyn.native._target.target", target)
    return asked


def both(function, *args):
    """The results of a function of arrays, compiled with native code and without."""
    natively = jax.jit(lambda *args: function(*args))(*args)
    with native.disabled():
        quickly = {"xla_backend_optimization_level": 0}
        by_xla = jax.jit(lambda *args: function(*args)).lower(*args).compile(quickly)(*args)
    return jax.tree.leaves(natively), jax.tree.leaves(by_xla)


def agree(function, *args, rtol=1e-11, together=False):
    """Compare the results with and without native code, relative to the largest number of each array, or of all arrays.

    Arrays of numbers below 1e-3 are compared as if that were the largest: some are zero up to the rounding of terms of
    the order of one. Parts of a gradient are sums of the same terms: small ones have the rounding of large ones.
    """
    pairs = list(zip(*both(function, *args), strict=True))
    scales = [np.abs(b).max(initial=0.0) for _, b in pairs]
    for (a, b), scale in zip(pairs, [max(scales)] * len(scales) if together else scales, strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=0, atol=rtol * max(scale, 1e-3))


def states(model, *shape, seed=0):
    """A configuration, two velocities and wrenches with batch axes."""
    return jax.device_put([x.astype(model.dtype) for x in draws.states(model, seed, *shape)])


# Every public function

KINDS = {Configuration: 0, Velocity: 1, Torque: 1, Wrenches: 3}


OTHER_ARGUMENTS = {
    "base_reaction": (lambda model, q, v, a: jaxdyn.base_reaction(model, q, v, a=a), [0, 1, 1]),
    "joint_reactions": (lambda model, q, v, a: jaxdyn.joint_reactions(model, q, v, a=a), [0, 1, 1]),
}


def algorithms():
    """The public functions of a model and arrays, by name, each with the places of its arrays in `states`."""
    out = {}
    for name in dir(jaxdyn):
        function = getattr(jaxdyn, name)
        if not inspect.isfunction(function):
            continue
        inner = inspect.unwrap(function)
        parameters = list(inspect.signature(function).parameters.values())
        if not inner.__module__.startswith("jaxdyn.algorithms") or parameters[0].name != "model":
            continue
        if name in OTHER_ARGUMENTS:
            out[name] = OTHER_ARGUMENTS[name]
            continue
        hints = typing.get_type_hints(inner)
        places = []
        for parameter in parameters[1:]:
            if hints.get(parameter.name) in KINDS:
                places.append(KINDS[hints[parameter.name]])
            elif parameter.name == "frame":
                places.append("frame")
            elif parameter.default is inspect.Parameter.empty:
                break
        else:
            out[name] = function, places
    return out


ALGORITHMS = algorithms()


def arguments(model, places, *shape):
    """The arguments at some places, arrays with batch axes or the name of a frame."""
    arrays = states(model, *shape)
    return [model.topology.frame_names[-1] if p == "frame" else arrays[p] for p in places]


def of_arrays(function, args):
    """A function of the model and of those arguments that are arrays."""

    def call(model, *arrays):
        arrays = iter(arrays)
        return function(model, *(a if isinstance(a, str) else next(arrays) for a in args))

    return call, [a for a in args if not isinstance(a, str)]


def test_there_are_many_algorithms():
    assert len(ALGORITHMS) > 35
    assert {"aba", "rnea", "crba", "aba_derivatives", "frame_jacobian", "torque_regressor"} <= set(ALGORITHMS)


SECOND = {"aba_second_derivatives", "rnea_second_derivatives"}
OF_LOOPS = {"project_configuration"}
"""Algorithms that compute nothing for a model without loops."""


def floating():
    """A tree with a floating base and several kinds of joints."""
    return jaxdyn.samples.random_tree(jax.random.key(1), 3, ("free", "revolute", "ball"), branching=2)


def small():
    """A ball joint and a hinge, which make small programs."""
    return jaxdyn.samples.random_tree(jax.random.key(1), 2, ("ball", "revolute"))


NATIVELY = sorted(set(ALGORITHMS) - SECOND - OF_LOOPS)
OFTEN = {
    "aba", "aba_derivatives", "center_of_mass", "centroidal_momentum", "constraint_forces", "coriolis_matrix", "crba",
    "frame_jacobian", "inverse_mass_matrix", "rnea", "torque_regressor",
}  # fmt: skip
"""Algorithms of all kinds, whose programs every run of the tests makes."""


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x not in OFTEN)) for x in NATIVELY])
def test_every_algorithm_runs_natively(name, programs):
    """With the model as an argument. Other tests compare the results with those of other libraries."""
    function, places = ALGORITHMS[name]
    model = small()
    call, arrays = of_arrays(function, arguments(model, places, 5))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.jit(call)(model, *arrays)))
    assert programs
    assert None not in programs


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_every_algorithm_as_compiled_by_xla(name):
    function, places = ALGORITHMS[name]
    model = floating()
    call, arrays = of_arrays(function, arguments(model, places, 5))
    agree(call, model, *arrays)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_gradient_runs_natively(name, precision, programs):
    function, places = ALGORITHMS[name]
    model = floating().astype(precision)
    call, arrays = of_arrays(function, arguments(model, places, 5))

    def value(model, *arrays):
        return sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(call(model, *arrays)))

    everything = tuple(range(1 + len(arrays)))
    agree(jax.grad(value, argnums=everything), model, *arrays, rtol=PRECISIONS[precision], together=True)
    assert None not in programs


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
def test_a_known_model_is_folded(precision, programs):
    """A model that the user's function closes over is part of the program, one that is an argument is not."""
    model = samples.double_pendulum().astype(precision)
    q, v, a, f_ext = states(model, 33)

    def torques(model, q, v, a, f_ext):
        return jaxdyn.rnea(model, q, v, a, f_ext)

    agree(lambda *x: torques(model, *x), q, v, a, f_ext, rtol=PRECISIONS[precision])
    agree(torques, model, q, v, a, f_ext, rtol=PRECISIONS[precision])
    closed, argument = programs
    assert len(closed.uniform) == 4
    assert sum(argument.uniform) == len(argument.uniform) - 4 > 5


@pytest.mark.slow
def test_manifold_of_a_floating_base():
    model = jaxdyn.samples.random_tree(jax.random.key(1), 4, ("free", "ball", "revolute"))
    q, v, x, _ = states(model, 19)
    agree(lambda q, v, x: (model.integrate(q, v), model.difference(q, model.integrate(q, 0.3 * x))), q, v, x)


# Batches


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 9, 16, 17, 31, 33])
@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
def test_batches_of_all_sizes_have_the_same_rows(size, precision):
    """A row does not depend on its neighbors, nor on its place in a vector."""
    model = jaxdyn.samples.random_tree(jax.random.key(0), 5).astype(precision)
    q, v, tau, _ = states(model, 40)
    whole = jaxdyn.aba(model, q, v, tau)
    np.testing.assert_array_equal(jaxdyn.aba(model, q[:size], v[:size], tau[:size]), whole[:size])


SINES = _batching.Plain(lambda p, x: [jnp.sin(p * x)], (1, 1), ((3,),), shared=1)


@pytest.mark.parametrize("size", [0, 1, 13, 300_001])
def test_derivatives_by_shared_operands_are_summed(size, programs):
    """The derivative by an operand without the batch is one sum over the batch, whatever its length, the same in every
    run; only what depends on an element that is not finite is not finite."""
    rng = np.random.default_rng(0)
    p, x, w = rng.normal(size=3), rng.normal(size=(size, 3)), rng.normal(size=(size, 3))
    slope = jax.jit(jax.grad(lambda p, x: (w * _batching.call(SINES, p, x)[0]).sum()))
    found = np.asarray(slope(p, x))
    np.testing.assert_allclose(found, (w * x * np.cos(p * x)).sum(axis=0), rtol=1e-10, atol=1e-12)
    assert any(program.summed for program in programs)
    np.testing.assert_array_equal(slope(p, x), found)
    if size:
        x[size // 2, 1] = np.inf
        assert (np.isnan(slope(p, x)) == [False, True, False]).all()


@pytest.mark.parametrize("length", [2, 5000])
def test_what_is_the_same_for_the_batch_is_cut_into_functions(length, programs, monkeypatch):
    """Numbers and truth values that one function leaves to the next wait in memory."""
    monkeypatch.setattr("jaxdyn.native._order.COMMON_PART", length)
    monkeypatch.setattr("jaxdyn.native._kernel_functions.BLOCK", 3)

    def function(p, x):
        large = p > 0.5
        y = jnp.where(large, jnp.tanh(p), p * p).cumsum()
        return [jnp.where(large, y, -y) * x]

    program = _batching.Plain(function, (1, 1), ((5,),), shared=1)
    rng = np.random.default_rng(0)
    agree(lambda p, x: _batching.call(program, p, x)[0], rng.uniform(0, 1, 5), rng.normal(size=(37, 5)))
    assert None not in programs


@pytest.mark.parametrize("exponent", [2.0, 1.0, -1.5])
def test_powers(exponent):
    """Squares and numbers themselves, for all elements that a vector has, need no library; others do."""
    x = np.random.default_rng(0).uniform(0.1, 3, (37, 1)).astype("float32")
    p = np.full_like(x, exponent)
    p[-1] = 0.5
    program = _batching.Plain(lambda x, p: [x**p], (1, 1), ((1,),))
    out = jax.jit(lambda x, p: _batching.call(program, x, p)[0])(x, p)
    np.testing.assert_allclose(out, x.astype(np.longdouble) ** p, rtol=2e-7)


AXES = [((3, 1), (4,), ()), ((), (), ()), ((2, 3), (1, 3), (2, 1)), ((1,), (6,), (6,)), ((0, 2), (2,), ())]


@pytest.mark.slow
@pytest.mark.parametrize("axes", AXES, ids=str)
def test_batch_axes_broadcast(axes):
    model = small()
    q, v, tau = (states(model, *shape, seed=k)[k] for k, shape in enumerate(axes))
    gradient = jax.grad(lambda *x: jnp.sum(jaxdyn.aba(model, *x) ** 2), (0, 1, 2))
    agree(lambda *x: (jaxdyn.aba(model, *x), gradient(*x)), q, v, tau, rtol=1e-9)


@pytest.mark.slow
def test_a_batch_of_models():
    models = [small().scaled(length=s, mass=2 * s) for s in (0.8, 1.0, 1.3)]
    many = jax.tree.map(lambda *x: jnp.stack(x), *models)
    q, v, tau, _ = states(models[0], 3)
    agree(jaxdyn.aba, many, q, v, tau)
    agree(jax.vmap(jaxdyn.aba, (0, None, None, None)), many, q[0], v[0], tau[0])


TRANSFORMS = {
    "vmap": lambda f: jax.vmap(f),
    "gradient": lambda f: jax.grad(lambda *x: jnp.sum(f(*x) ** 2), (0, 1)),
    "forward": lambda f: jax.jacfwd(f, 1),
    "reverse": lambda f: jax.jacrev(f, 1),
    "Hessian": lambda f: jax.hessian(lambda *x: jnp.sum(f(*x) ** 2), 1),
    "checkpoint": lambda f: jax.grad(jax.checkpoint(lambda *x: jnp.sum(f(*x) ** 2)), (0, 1)),
    "scan": lambda f: lambda q, v: jax.lax.scan(lambda v, _: (v + 1e-3 * f(q, v), None), v, length=3)[0],
}


# Gradients and maps of native programs are also in `test_batching.py`.
LONG = ("Hessian", "checkpoint", "forward", "reverse", "gradient", "vmap")


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.slow] * (x in LONG)) for x in TRANSFORMS])
def test_transformations(name):
    model = jaxdyn.samples.pendulum() if name == "Hessian" else jaxdyn.samples.double_pendulum()
    q, v, *_ = states(model, 3)
    agree(TRANSFORMS[name](lambda q, v: jaxdyn.aba(model, q, v, jnp.sin(v))), q, v, rtol=1e-9)


# Numbers that are not finite, and large ones


def test_numbers_that_are_not_finite_show():
    """Products with zero are folded, but an argument that is not finite spoils its own element of the batch only."""
    model = floating()
    args = states(model, 20)[:3]
    functions = (jaxdyn.aba, jaxdyn.rnea, lambda m, q, v, _: jaxdyn.generalized_gravity(m, q))
    for function in functions:
        run = jax.jit(lambda *x, f=function: f(model, *x))
        expected = run(*args)
        reads = 1 if function is functions[2] else 3
        places = [(k, j) for k in range(reads) for j in range(args[k].shape[-1])]
        for bad, (k, j) in itertools.product((np.nan, np.inf, -np.inf), places):
            spoiled = [np.array(x) for x in args]
            spoiled[k][7, j] = bad
            out = run(*spoiled)
            assert not np.isfinite(out[7]).all(), (bad, k, j)
            np.testing.assert_array_equal(np.delete(out, 7, 0), np.delete(expected, 7, 0))


@pytest.mark.parametrize(
    ("precision", "turn"), [pytest.param("float32", 1e30, marks=pytest.mark.slow), ("float64", 1e12)]
)
def test_very_large_angles(precision, turn):
    """The sine of a very large angle is as exact as XLA's; all other rows keep their values."""
    model = jaxdyn.samples.arm().astype(precision)
    q, *_ = states(model, 35)
    large = q.at[4:9].multiply(turn).at[30, 2].set(-turn)
    (native_rows,), (expected,) = both(lambda q: jaxdyn.crba(model, q), large)
    np.testing.assert_allclose(native_rows, expected, rtol=0, atol=PRECISIONS[precision])
    (unchanged,), _ = both(lambda q: jaxdyn.crba(model, q), q)
    others = np.setdiff1d(np.arange(35), [*range(4, 9), 30])
    np.testing.assert_array_equal(native_rows[others], unchanged[others])


FUNCTIONS = {
    "sin": (-50, 50), "cos": (-50, 50), "tan": (-1.5, 1.5), "tanh": (-20, 20), "exp": (-80, 80), "log": (1e-30, 1e30),
    "sqrt": (0, 1e10), "arctan": (-100, 100), "arcsin": (-1, 1), "arccos": (-1, 1), "sinh": (-10, 10),
    "cosh": (-10, 10), "expm1": (-2, 2), "log1p": (-0.9, 10), "abs": (-3, 3), "sign": (-3, 3), "floor": (-9, 9),
    "ceil": (-9, 9), "square": (-3, 3), "reciprocal": (0.1, 9), "isfinite": (-1, 1),
}  # fmt: skip


@pytest.mark.parametrize("precision", PRECISIONS)
def test_elementary_functions(precision):
    """They are exact to a few units in the last place, also at zero and at very small arguments."""
    rng = np.random.default_rng(0)
    low, high = np.array(list(FUNCTIONS.values())).T
    x = rng.uniform(low, high, (4000, len(FUNCTIONS)))
    small = np.sign(x[:200]) * 10.0 ** rng.uniform(-18, -1, (200, len(FUNCTIONS)))
    x[:200] = np.clip(np.where(np.abs(small) < 1e-15, 0, small), low, high)
    x = x.astype(precision)

    def each(x):
        return jnp.stack([getattr(jnp, name)(x[..., k]).astype(x.dtype) for k, name in enumerate(FUNCTIONS)], axis=-1)

    program = _batching.Plain(each, (1,), ((len(FUNCTIONS),),))
    out = np.asarray(jax.jit(lambda x: _batching.call(program, x)[0])(x))
    exact = np.stack([getattr(np, name)(x[:, k].astype(np.longdouble)) for k, name in enumerate(FUNCTIONS)], axis=-1)
    for k, name in enumerate(FUNCTIONS):
        error = np.abs(out[:, k] - exact[:, k]) / np.spacing(np.abs(exact[:, k]).astype(precision))
        assert error.max() < 4, (name, float(error.max()), x[error.argmax(), k])


# Threads, processes, fallbacks

THREADS = """
import os, threading, time
import jax, jax.numpy as jnp, numpy as np, jaxdyn
model = jaxdyn.samples.chain(3)
q = model.random_configuration(jax.random.key(0), (30011,))
run = jax.jit(lambda q: jaxdyn.aba(model, q, q, q))
whole = np.asarray(run(q))
for _ in range(20):
    np.testing.assert_array_equal(run(q), whole)
parts = np.concatenate([run(q[i : i + 500]) for i in range(0, len(q), 500)])
np.testing.assert_array_equal(parts, whole)
"""


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 3])
def test_results_do_not_depend_on_threads(devices):
    """A large batch is shared between the threads: each element has the value that it has in a small batch."""
    flags = {"XLA_FLAGS": f"--xla_cpu_parallel_codegen_split_count=1 --xla_force_host_platform_device_count={devices}"}
    subprocess.run([sys.executable, "-c", THREADS], env=os.environ | flags, check=True)


@pytest.mark.slow
def test_optimized_programs_give_the_results_of_quick_ones(tmp_path):
    """The tests compile without optimizations, users with them."""
    file = tmp_path / "results.npz"
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    flags = {"XLA_FLAGS": "", "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
    subprocess.run([sys.executable, native_results.__file__, str(file)], env=os.environ | flags, check=True)
    optimized, quick = dict(np.load(file)), native_results.results()
    assert optimized.pop("optimization") > 0
    assert optimized.keys() == quick.keys()
    for name, values in quick.items():
        tolerance = PRECISIONS[str(values.dtype)] * np.abs(values).max()
        assert optimized[name].dtype == values.dtype
        np.testing.assert_allclose(optimized[name], values, rtol=0, atol=tolerance, err_msg=name)


CACHED = """
import sys, jax, jaxdyn, numpy as np
from jaxdyn.native import _compiler
jax.config.update("jax_compilation_cache_dir", sys.argv[1])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
model = jaxdyn.samples.double_pendulum()
q = model.random_configuration(jax.random.key(0), (3,))
print(repr(np.asarray(jax.jit(lambda q: jaxdyn.aba(model, q, q, q))(q)).tobytes()))
"""


@pytest.mark.slow
def test_programs_are_kept_on_disk(tmp_path):
    """Another process reads JAX's compiled program and the machine code that it calls from the cache."""
    printed, kept = [], []
    for _ in range(2):
        run = subprocess.run([sys.executable, "-c", CACHED, str(tmp_path)], capture_output=True, text=True, check=True)
        printed.append(run.stdout)
        kept.append({file.name: file.stat().st_mtime_ns for file in tmp_path.glob("jaxdyn_*.o")})
    assert kept[0]
    assert kept[0] == kept[1]
    assert printed[0] == printed[1]


def test_it_can_be_turned_off(programs):
    model = jaxdyn.samples.double_pendulum()
    q, v, tau, _ = states(model, 3)
    with native.disabled():
        assert not native.enabled()
        assert "disabled" in native.status().reason
        text = jax.jit(lambda *x: jaxdyn.aba(model, *x)).lower(q, v, tau).as_text()
    assert "@jaxdyn_" not in text
    assert not programs
    assert native.enabled()
    assert "@jaxdyn_" in jax.jit(lambda *x: jaxdyn.aba(model, *x)).lower(q, v, tau).as_text()


def test_the_environment_turns_it_off():
    code = "import jaxdyn; assert not jaxdyn.native.enabled(); print(jaxdyn.native.status().reason)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"JAXDYN_NATIVE": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "JAXDYN_NATIVE=0" in run.stdout


def test_functions_without_a_program_are_left_to_xla(programs):
    """An index that depends on the data has no place in a straight-line program."""
    chosen = _batching.Plain(lambda x: jnp.sort(x), (1,), ((5,),))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(9, 5)))
    agree(lambda x: _batching.call(chosen, x)[0], x)
    assert programs == [None]


def test_truth_values_are_compared(programs):
    function = _batching.Plain(
        lambda x: (
            jnp.where((x > 0) == (x > 1), 1.0, 2.0)
            + jnp.where((x > 0) != (x < 2), 4.0, 8.0)
            + jnp.where((x > 0) ^ (x > 0.5), 16.0, 32.0)
        ),
        (1,),
        ((5,),),
    )
    agree(lambda x: _batching.call(function, x)[0], jnp.array([[-1.0, 0.3, 0.7, 1.5, 3.0]]))
    assert None not in programs
    assert programs


@pytest.mark.parametrize(("precision", "part"), [("float32", 25000), ("float64", 25000), ("float64", 4)])
def test_loops_that_end_depending_on_data(precision, part, programs, monkeypatch):
    """Each element has its own number of turns, whatever the others need; also where each function of a kernel has few
    operations, so that most values wait in memory."""
    monkeypatch.setattr("jaxdyn.native._emit.Backend.longest", part)
    program = _batching.Plain(lambda x: logarithms(x), (1,), ((2,),))
    run = jax.jit(lambda x: _batching.call(program, x)[0])
    x = 10 ** np.random.default_rng(0).uniform(-1, 6, (37, 2)).astype(precision)
    out = np.asarray(run(x))
    assert None not in programs
    np.testing.assert_allclose(out, np.where(x > 1, np.log(x), x), rtol=1e-4)
    np.testing.assert_array_equal(out, np.concatenate([run(row[None]) for row in x]))
    agree(lambda x: _batching.call(program, x)[0], x, rtol=PRECISIONS[precision])


def on_rows(function, results):
    """A function of rows `[n, *batch]` as a call with batch axes in front."""

    def with_batch_last(*operands):
        return [jnp.moveaxis(x, 0, -1) for x in function(*(jnp.moveaxis(x, -1, 0) for x in operands))]

    return lambda *operands: _batching.call(_batching.Plain(with_batch_last, (1, 1), results), *operands)


@functools.cache
def lists():
    """How many rows of each list there are beside two numbers, and the rows."""
    random = np.random.default_rng(0)
    x = random.normal(size=(11, 3))
    x[:, 0] = np.arange(11) % 6
    return jnp.array(x), jnp.array(random.normal(size=(11, 15)))


@pytest.mark.parametrize("part", [25000, 4])
def test_loops_over_the_rows_of_lists_that_count(part, programs, monkeypatch):
    monkeypatch.setattr("jaxdyn.native._emit.Backend.longest", part)
    agree(on_rows(lambda *x: rounds_over_lists(*x), ((5,), (20,))), *lists())
    assert None not in programs


def derivatives_over_lists(x, numbers):
    """Tangents of all sums over lists, and the gradient of one number of them and its derivative."""
    function = on_rows(sums_over_lists, ((4,), (20,)))

    def of_numbers(y, numbers):
        return function(jnp.concatenate([x[:, :1], y], axis=-1), numbers)

    def number(y, numbers):
        return sum((z * jnp.cos(jnp.arange(z.size)).reshape(z.shape)).sum() for z in of_numbers(y, numbers))

    at, change = (x[:, 1:], numbers), (jnp.ones_like(x[:, 1:]), numbers * numbers)
    gradient = jax.grad(number, (0, 1))
    return jax.jvp(of_numbers, at, change)[1], *jax.jvp(gradient, at, change)


def test_derivatives_of_loops_over_the_rows_of_lists(programs):
    natively, by_xla = both(derivatives_over_lists, *lists())
    assert None not in programs
    for a, b in zip(natively, by_xla, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)
    (x, numbers), step = lists(), 1e-6 * np.eye(15)[4]
    function = jax.jit(on_rows(sums_over_lists, ((4,), (20,))))
    ends = [function(x, numbers + sign * step) for sign in (1, -1)]
    change = [np.asarray(a - b) / 2e-6 for a, b in zip(*ends, strict=True)]
    weighted = sum((z * np.cos(np.arange(z.size)).reshape(z.shape)).sum() for z in change)
    assert float(natively[3][:, 4].sum()) == pytest.approx(weighted, rel=1e-6)


def test_programs_do_not_grow_with_the_room_of_lists():
    def operations(length):
        shapes = [jax.ShapeDtypeStruct(shape, "float64") for shape in ((3,), (3 * length,))]
        program = specialize(lambda *x: rounds_over_lists(*x, length)[0], shapes, (False, False), 64, row_loops=True)
        return sum(node.op not in ("input", "result", "carried", "row") for node in program.nodes)

    # Of each row twice the first loop's three numbers plus those of the list are made outside of loops.
    assert operations(20) - operations(10) <= 10 * 6


def test_a_loop_that_counts_in_integers_is_left_to_xla(programs):
    def count(x):
        return lax.while_loop(lambda s: (s[0] > 1).any() & (s[1] < 9), lambda s: (0.5 * s[0], s[1] + 1), (x, 0))[0]

    agree(lambda x: _batching.call(_batching.Plain(count, (1,), ((2,),)), x)[0], jnp.array([[3.0, 0.5], [9.0, 1.0]]))
    assert programs == [None]


def test_padding_adds_rows_and_takes_them_away(programs):
    """Also between rows, for arrays that depend on data and for known ones."""

    def padded(x):
        out = jax.lax.pad(x, 2.5, [*[(0, 0, 0)] * (x.ndim - 2), (2, -1, 1), (-1, 3, 0)])
        known = jax.lax.pad(np.arange(12.0).reshape(3, 4), 0.5, [(-1, 2, 1), (2, 0, 0)])
        return out * known

    function = _batching.Plain(padded, (2,), ((6, 6),))
    agree(lambda x: _batching.call(function, x)[0], draws.normal(0, 5, 3, 4))
    assert programs
    assert None not in programs


def test_a_fault_of_the_specializer_is_a_warning(monkeypatch):
    """The function then runs as XLA compiles it."""

    def fail(*_):
        raise KeyError("a parameter of another version of JAX")

    monkeypatch.setattr(Interpreter, "evaluate", fail)
    function = _batching.Plain(lambda x: jnp.sin(x), (1,), ((5,),))
    x = jnp.arange(10.0).reshape(2, 5)
    with pytest.warns(UserWarning, match="no native program could be made.*KeyError"):
        np.testing.assert_allclose(jax.jit(lambda x: _batching.call(function, x)[0])(x), jnp.sin(x))


def test_exported_programs_do_not_call_native_code():
    """An exported program runs in processes that know nothing of this one."""
    model = jaxdyn.samples.double_pendulum()
    q, v, tau, _ = states(model, 3)
    function = jax.jit(lambda *x: jaxdyn.aba(model, *x))
    exported = jax.export.export(function)(q, v, tau)
    assert "@jaxdyn_" not in exported.mlir_module()
    np.testing.assert_allclose(exported.call(q, v, tau), function(q, v, tau), rtol=1e-11)


# Random trees

OPERATIONS = ("aba", "rnea", "crba", "aba_derivatives", "forward_kinematics", "centroidal_momentum", "torque_regressor")


def compare_random_tree(seed: int) -> None:
    """Compare one function of a random tree, or its gradient, for operands with random batch axes."""
    rng = np.random.default_rng(seed)
    types = [t for t in jaxdyn.samples.JOINT_TYPES if t not in ("fixed",) and rng.random() < 0.5] or ["revolute"]
    model = jaxdyn.samples.random_tree(
        jax.random.key(seed), int(rng.integers(1, 6)), tuple(types), int(rng.integers(1, 4))
    )
    precision = str(rng.choice(list(PRECISIONS)))
    model = model.astype(precision)
    name = str(rng.choice(OPERATIONS))
    function, places = ALGORITHMS[name]
    batch = tuple(int(n) for n in rng.integers(1, 5, rng.integers(0, 3)))
    args = []
    for k, place in enumerate(places):
        own = [n if rng.random() < 0.7 else 1 for n in batch]
        args.append(states(model, *own[int(rng.integers(0, len(own) + 1)) :], seed=seed + k)[place])
    call = (lambda *x: function(model, *x)) if rng.random() < 0.5 else (lambda *x: function(x[0], *x[1:]))
    args = args if call.__code__.co_freevars == ("function", "model") else [model, *args]
    if name != "aba_derivatives" and rng.random() < 0.4:
        value = call
        call = jax.grad(lambda *x: sum(jnp.sum(jnp.sin(y)) for y in jax.tree.leaves(value(*x))), len(args) - 1)
    agree(call, *args, rtol=20 * PRECISIONS[precision])


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_random_trees(seed):
    compare_random_tree(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_two_thousand_random_trees(block):
    for seed in range(2 + 100 * block, 102 + 100 * block):
        compare_random_tree(seed)
        if seed % 20 == 0:
            jax.clear_caches()


@pytest.mark.parametrize(
    ("batch", "save_every", "substeps"),
    [((), 1, 1), *(pytest.param(*x, marks=pytest.mark.slow) for x in (((3,), 2, 3), ((2, 9), 3, 1)))],
)
def test_a_roll_out_is_one_program(batch, save_every, substeps, programs):
    """The steps of a roll-out run in one native program with a loop over them, and give what the loop of XLA gives."""
    model, rng = floating().with_joint_friction(damping=0.3), np.random.default_rng(0)
    q, v, *_ = draws.states(model, 0, *batch)
    tau = rng.normal(size=(*batch, 6, model.nv))
    f_ext = rng.normal(size=(6, model.nb, 6))

    def roll_out(model, q, v, tau, f_ext):
        options = simulate.RolloutOptions(save_every=save_every)
        scheme = {"integrator": "implicit_velocity", "substeps": substeps, "options": options}
        out = simulate.rollout(model, jaxdyn.State(q, v), tau, 1e-3, f_ext=f_ext, **scheme)
        return out.q, out.v, out.tau, out.t

    agree(roll_out, model, q, v, tau, f_ext, rtol=1e-11)
    assert len(programs) == 1
    assert programs[0] is not None
    if batch:
        # One row of wrenches acts in all steps, and a model that is known while tracing is a constant of the program.
        agree(lambda *x: roll_out(model, *x, f_ext[0]), q, v, tau, rtol=1e-11)
        assert all(programs)
        # Its operands are only the time step, the wrenches, the state and the torques.
        assert len(programs[-1].uniform) == 5


@pytest.mark.slow
def test_mapped_time_steps_and_derivatives_of_a_roll_out(programs):
    model = samples.double_pendulum().astype(jnp.float64)
    q, tau = 0.1 * np.arange(model.nv), np.ones((4, model.nv))

    def end(model, q, dt, checkpoint="none"):
        start = jaxdyn.State(q, 0.2 * np.ones(model.nv))
        return simulate.rollout(model, start, tau, dt, options=simulate.RolloutOptions(checkpoint=checkpoint)).q[-1]

    times = jnp.array([1e-3, 5e-3])
    mapped = jax.jit(jax.vmap(lambda dt: end(model, q, dt)))(times)
    assert programs == [programs[0]]
    np.testing.assert_allclose(mapped, [end(model, q, float(dt)) for dt in times], rtol=1e-12)

    def total(model, q, dt):
        return jnp.sum(end(model, q, dt, "sqrt") ** 2)

    gradient = jax.jit(jax.grad(total, (0, 1, 2)))
    with native.disabled():
        expected = jax.jit(jax.grad(total, (0, 1, 2)))(model, q, 1e-2)
    for a, b in zip(jax.tree.leaves(gradient(model, q, 1e-2)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)
    along = jax.jvp(lambda q: total(model, q, 1e-2), (jnp.asarray(q),), (jnp.ones(model.nq),))[1]
    np.testing.assert_allclose(along, expected[1].sum(), rtol=1e-9)


def test_a_roll_out_that_is_not_finite_stays_so():
    model = samples.pendulum()
    start = jaxdyn.State(jnp.zeros(1), jnp.zeros(1))
    out = simulate.rollout(model, start, jnp.array([[0.0], [jnp.nan], [0.0]]), 1e-2)
    assert np.isnan(out.v[2:]).all()
    assert np.isfinite(out.v[:2]).all()
