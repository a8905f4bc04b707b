"""Functions as kernels for NVIDIA GPUs. They run on a GPU where JAX has one; elsewhere their LLVM text runs on this
processor, one thread after the other, and what LLVM makes of it for GPUs is compiled by XLA, and assembled."""

import contextlib
import functools
import importlib.metadata
import importlib.util
import math
import re
import subprocess
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxdyn
from jaxdyn import native
from jaxdyn.native import _batching, _kernel
from jaxdyn.native._emit import PI
from jaxdyn.native._gpu import GpuBackend
from jaxdyn.native._graph import Graph
from jaxdyn.native._kernel import Kernel
from jaxdyn.native._module import module_of
from jaxdyn.native._ptx import KERNEL, THREADS, KernelEntry, assembled
from jaxdyn.native._specialize import Program
from tests import draws, programs
from tests.native.kernels_on_processor import launch
from tests.native.loops_of_programs import logarithms
from tests.robots import robot_path

pytestmark = pytest.mark.skipif(not native.wanted(), reason="native code is turned off")

PTX = "__gpu$xla.gpu.ptx"
F32 = np.float32
GPU = jax.default_backend() == "gpu"
TARGET, FFI_CALL = native.target, jax.ffi.ffi_call


def interpreted(*operands, attributes: dict, types: list) -> list:
    """The results of a launch."""
    operands = [np.asarray(x) for x in operands]
    results = [np.full(t.shape, np.nan, t.dtype) for t in types]
    assert attributes["kernel_type"] == "ptx"
    assert attributes["name"] in attributes["kernel_data"]
    arrays = [np.ascontiguousarray(x) for x in (*operands, *results)]
    launch(attributes["kernel_data"], attributes["name"], arrays, int(attributes["grid_x"]), int(attributes["block_x"]))
    results = arrays[len(operands) :]
    return results


@pytest.fixture
def launches(monkeypatch):
    """Functions are kernels, which run on this processor where there is no GPU; the list gets the attributes of each
    call."""
    calls = []
    on_device = jax.ffi.ffi_call

    def ffi_call(target: str, types: list):
        def call(*operands, **attributes):
            assert target == PTX
            calls.append(attributes)
            if GPU:
                return on_device(target, types)(*operands, **attributes)
            run = functools.partial(interpreted, attributes=attributes, types=types)
            return jax.pure_callback(run, types, *operands)

        return call

    monkeypatch.setattr(jax.ffi, "ffi_call", ffi_call)
    if not GPU:
        monkeypatch.setattr("jaxdyn.native._target.target", native.kernel)
        monkeypatch.setattr(_kernel, "assembled", lambda name, text: text.replace(f"@{KERNEL}(", f"@{name}("))
        _kernel.made.cache_clear()
    yield calls
    if not GPU:
        _kernel.made.cache_clear()


@functools.cache
def double_pendulum() -> jaxdyn.Model:
    return jaxdyn.load_urdf(robot_path("double_pendulum")).astype(F32)


def single(x):
    """The arrays of a tree in single precision."""
    return jax.device_put(jax.tree.map(lambda a: np.asarray(a, F32), x))


def run(f, *args):
    """Compile `f` as a new function, and call it."""
    return jax.jit(lambda *args: f(*args))(*args)


def expected(f, *args):
    """The results in double precision by native code for the processor, or on a GPU by XLA's code."""
    args = jax.tree.map(lambda a: np.asarray(a, np.float64), args)
    with native.disabled() if GPU else on_processor():
        return run(f, *args)


@contextlib.contextmanager
def on_processor():
    """Run the body without the changes of `launches`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxdyn.native._target.target", TARGET)
        patch.setattr(jax.ffi, "ffi_call", FFI_CALL)
        yield


def close(actual, wanted, rtol=2e-5):
    """Assert that errors are small against the largest number of each array."""
    for got, want in zip(jax.tree.leaves(actual), jax.tree.leaves(wanted), strict=True):
        assert got.shape == want.shape
        assert got.dtype == F32
        np.testing.assert_allclose(got, want, rtol=0, atol=rtol * max(1.0, np.abs(want).max(initial=0)))


def states(model: jaxdyn.Model, *batch: int):
    return single(draws.states(model, 3, *batch)[:3])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["arm", "tree", "quadruped"])
def test_results_of_kernels_with_the_model_as_argument(name, launches):
    model = programs.model_named(name)
    inputs = programs.states_of(model)
    got = run(programs.evaluate.__wrapped__, single(model), *single(inputs))
    assert len(launches) > 10
    with on_processor():
        wanted = programs.evaluated(model, inputs)
    # Large wrenches and torques cancel in this result.
    close(got.pop("aba with wrenches"), wanted.pop("aba with wrenches"), rtol=5e-3)
    close(got, wanted, rtol=2e-4)


ARM_AND_QUADRUPED = jaxdyn.samples.arm, pytest.param(jaxdyn.samples.quadruped, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "robot",
    [
        double_pendulum,
        *(pytest.param(x, marks=pytest.mark.slow) for x in (jaxdyn.samples.arm, jaxdyn.samples.quadruped)),
    ],
)
def test_results_of_kernels_with_the_model_as_constant(robot, launches):
    model = single(robot())

    def functions(q, v, tau):
        results = jaxdyn.aba(model, q, v, tau), jaxdyn.rnea(model, q, v, tau), jaxdyn.crba(model, q)
        return *results, jaxdyn.forward_kinematics(model, q)

    close(run(functions, *states(model, 3, 11)), expected(functions, *states(model, 3, 11)), rtol=1e-4)
    assert len(launches) == 4
    assert all(a["grid_x"] == 1 and a["block_x"] == THREADS for a in launches)


@pytest.mark.parametrize("robot", ARM_AND_QUADRUPED)
def test_reverse_gradient(robot, launches):
    model = single(robot())

    def loss(q, v, tau):
        return (jaxdyn.aba(model, q, v, tau) ** 2).sum()

    gradient = jax.grad(loss, (0, 1, 2))
    close(run(gradient, *states(model, 5)), expected(gradient, *states(model, 5)), rtol=2e-4)
    assert len(launches) == 2


@pytest.mark.slow
def test_operands_without_a_batch_and_the_sum_over_it(launches):
    model = single(jaxdyn.samples.double_pendulum())
    q, v, tau = states(model, 4, 3)
    close(run(jaxdyn.aba, model, q[0, 0], v, tau[:, :1]), expected(jaxdyn.aba, model, q[0, 0], v, tau[:, :1]))
    close(run(jaxdyn.aba, model, q[0, 0], v[0, 0], tau[0, 0]), expected(jaxdyn.aba, model, q[0, 0], v[0, 0], tau[0, 0]))

    model = single(jaxdyn.samples.pendulum())
    q, v, tau = states(model, 4, 3)

    def loss(model, q, v, tau):
        return jnp.sum(jnp.cos(jaxdyn.aba(model, q, v, tau)))

    for argument in (0, 1):
        gradient = jax.grad(loss, argument, allow_int=True)
        close(run(gradient, model, q[0, 0], v, tau), expected(gradient, model, q[0, 0], v, tau), rtol=1e-4)
    assert launches


def test_loops_that_end_depending_on_data(launches):
    """Each thread takes as many turns as it needs."""
    program = _batching.Plain(logarithms, (1,), ((2,),))
    x = 10 ** np.random.default_rng(0).uniform(-1, 6, (70, 2)).astype(F32)
    close(run(lambda x: _batching.call(program, x)[0], x), np.where(x > 1, np.log(x), x), rtol=1e-4)
    assert len(launches) == 1


SCENE = """<mujoco><worldbody><geom type="plane" size="1 1 1"/><body pos="0 0 0.19"><freejoint/>
<geom type="box" size="0.1 0.1 0.1"/><body pos="0 0 0.2"><joint axis="0 1 0"/><geom type="sphere" size="0.1"/></body>
</body></worldbody></mujoco>"""


@pytest.mark.parametrize("rows", [0, 200])
def test_a_step_with_contacts_is_one_kernel(rows, launches, monkeypatch):
    """The search for contacts and the iterations of the solver with their loops, with contacts in lists or not."""
    monkeypatch.setattr("jaxdyn.worlds._contact_rows.MOST_CANDIDATES", rows)
    scene = jaxdyn.load_world(SCENE).astype(F32)
    random = np.random.default_rng(0)
    v = random.normal(0, 0.3, (5, scene.model.nv)).astype(F32)
    q = np.tile(np.asarray(scene.state().q), (5, 1)).astype(F32)
    q[:, 2] -= random.uniform(0, 0.1, 5).astype(F32)

    def step(q, v):
        after = scene.step(scene.state(q, v))
        return after.q, after.v

    got = run(step, q, v)
    count = len(launches)
    assert count == 1 if rows else count > 1
    close(got, expected(step, q, v), rtol=1e-5)


BETWEEN_STOPS = """<mujoco><compiler angle="radian"/><option integrator="{}" timestep="0.02"/><worldbody>
<body><joint name="first" axis="0 1 0" limited="true" range="-0.1 0.1"/><geom size="0.1" pos="0 0 -0.5"/>
<body pos="0 0 -1"><joint axis="0 1 0" limited="true" range="-0.1 0.1"/><geom size="0.1" pos="0 0 -0.5"/></body></body>
</worldbody><actuator><motor joint="first"/></actuator></mujoco>"""


@pytest.mark.parametrize("integrator", ["Euler", pytest.param("RK4", marks=pytest.mark.slow)])
def test_a_control_step_is_one_kernel_and_its_reverse_pass_another(integrator, launches):
    """All time steps for which a control is held, with their stages, what is read after them, and iterations of the
    solver that depend on data."""
    scene = jaxdyn.load_world(BETWEEN_STOPS.format(integrator)).astype(F32)
    q, v, u = (np.random.default_rng(0).normal(0, 0.3, (5, n)).astype(F32) for n in (2, 2, 1))

    def step(q, v, u):
        names = "q", "actuator_torque"
        after, readings = scene.step_and_read(scene.state(q, v), u, names=names, substeps=3)
        return after.q, after.v, readings

    def one_by_one(q, v, u):
        state = scene.state(q, v)
        for _ in range(3):
            state, readings = scene.step_and_read(state, u, names=("q", "actuator_torque"))
        return state.q, state.v, readings

    def gradient(function):
        return jax.grad(lambda *x: sum((y**2).sum() for y in jax.tree.leaves(function(*x))), (0, 1, 2))

    close(run(step, q, v, u), expected(one_by_one, q, v, u), rtol=1e-5)
    assert len(launches) == 1
    close(run(gradient(step), q, v, u), expected(gradient(one_by_one), q, v, u), rtol=2e-4)
    assert len(launches) == 3


def test_a_roll_out_is_one_kernel(launches):
    model = single(jaxdyn.samples.double_pendulum())
    q, v, _ = states(model, 5)
    tau = np.random.default_rng(0).normal(size=(5, 12, 2)).astype(F32)

    def rolled(q, v, tau):
        options = jaxdyn.simulate.RolloutOptions(save_every=4)
        states = jaxdyn.rollout(model, jaxdyn.State(q, v), tau, 0.01, integrator="semi_implicit_euler", options=options)
        return states.q, states.v

    close(run(rolled, q, v, tau), expected(rolled, q, v, tau), rtol=1e-4)
    assert len(launches) == 1


def test_double_precision(launches):
    model = jaxdyn.samples.double_pendulum()
    q, v, tau = draws.states(model, 3, 4)[:3]
    with on_processor():
        wanted = run(jaxdyn.aba, model, q, v, tau)
    np.testing.assert_allclose(run(jaxdyn.aba, model, q, v, tau), wanted, rtol=1e-12, atol=1e-12)
    assert len(launches) == 1


def random_program(seed: int):
    """A function of four numbers: random operations, some of them in loops whose rounds depend on data, also in loops
    of loops."""
    rng = np.random.default_rng(seed)
    one = (jnp.sin, jnp.cos, jnp.tanh, jnp.abs, lambda a: jnp.sqrt(1 + a * a), lambda a: jnp.exp(-a * a), jnp.negative)
    two = (jnp.add, jnp.multiply, jnp.subtract, jnp.maximum, jnp.arctan2, lambda a, b: jnp.where(a > b, 0.5 * a, b))

    def plan(depth: int) -> list:
        kinds = rng.choice(["one", "two", "loop"] if depth < 2 else ["one", "two"], rng.integers(5, 25))
        numbers = rng.integers(0, 1000, (len(kinds), 4))
        return [
            (kind, tuple(n), plan(depth + 1) if kind == "loop" else None)
            for kind, n in zip(kinds, numbers, strict=True)
        ]

    def evaluated(steps: list, xs: list) -> list:
        for kind, (a, b, c, d), inner in steps:
            if kind == "one":
                xs = [*xs, one[a % len(one)](xs[b % len(xs)])]
            elif kind == "two":
                xs = [*xs, two[a % len(two)](xs[b % len(xs)], xs[c % len(xs)])]
            else:
                last = jnp.minimum(jnp.abs(xs[d % len(xs)]), 1.0)
                outer = xs

                def going(state, last=last):
                    return state[0] < 4 * last

                def turn(state, inner=inner, outer=outer):
                    count, *carried = state
                    made = evaluated(inner, [*carried, *outer])[-2:]
                    return (count + 1, *(jnp.tanh(x) for x in made))

                xs = [*xs, *lax.while_loop(going, turn, (jnp.zeros_like(xs[0]), xs[a % len(xs)], xs[b % len(xs)]))[1:]]
        return xs

    steps = plan(0)
    return lambda x: jnp.stack(evaluated(steps, list(x))[-6:])


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 508), marks=pytest.mark.slow)])
def test_random_programs_with_loops_and_short_functions(seeds, launches, monkeypatch):
    """Short functions hand more values to each other."""
    monkeypatch.setattr(GpuBackend, "whole", 40)
    monkeypatch.setattr(GpuBackend, "longest", 15)
    for seed in seeds:
        program = _batching.Plain(random_program(seed), (1,), ((6,),))
        x = np.random.default_rng(seed).normal(size=(5, 4)).astype(F32)
        got = run(lambda x, program=program: _batching.call(program, x)[0], x)
        with on_processor():
            wanted = run(lambda x, program=program: _batching.call(program, x)[0], x)
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4, err_msg=f"seed {seed}")
    assert len(launches) == len(seeds)


def test_batched_model_and_map(launches):
    model = single(jaxdyn.samples.double_pendulum())
    q, v, tau = states(model, 3, 2)
    many = jax.tree.map(lambda x: jnp.stack([x, 1.1 * x, 0.9 * x]), model)
    function = jax.vmap(jaxdyn.aba)
    close(run(function, many, q, v, tau), expected(function, many, q, v, tau), rtol=1e-4)
    assert len(launches) == 1


def test_the_last_block_may_have_idle_threads(launches):
    model = single(jaxdyn.samples.pendulum())
    q, v, tau = states(model, 3 * THREADS + 1)
    close(run(jaxdyn.aba, model, q, v, tau), expected(jaxdyn.aba, model, q, v, tau))
    (attributes,) = launches
    assert (attributes["grid_x"], attributes["block_x"]) == (4, THREADS)


def test_empty_batch(launches):
    model = single(jaxdyn.samples.pendulum())
    q, v, tau = states(model, 0)
    assert run(jaxdyn.aba, model, q, v, tau).shape == (0, 1)
    assert not launches


def test_one_text_serves_all_batches(launches):
    model = single(jaxdyn.samples.pendulum())
    q, v, tau = states(model, 9)
    for n in (1, 9):
        run(jaxdyn.aba, model, q[:n], v[:1], tau)
    assert len({a["kernel_data"] for a in launches}) == 1


def test_nan_of_a_state_stays_in_its_result(launches):
    model = single(jaxdyn.samples.arm())
    q, v, tau = states(model, 6)
    q, v, tau = q.at[1, 0].set(jnp.nan), v.at[2, 3].set(jnp.inf), tau.at[4, 6].set(jnp.nan)
    a = run(jaxdyn.aba, model, q, v, tau)
    assert np.isfinite(a).all(axis=1).tolist() == [True, False, False, True, False, True]


def computed(op: str, *xs: np.ndarray, bits: int = 32) -> np.ndarray:
    """An operation on arrays in a kernel of its own."""
    graph = Graph()
    inputs = [graph.input(k, 0, False) for k in range(len(xs))]
    result = graph.apply(op, *inputs)
    if op in ("lt", "le", "gt", "ge", "eq", "ne", "is_finite"):
        result = graph.select(result, 0.0, 1.0)
    shapes, uniform = ((),) * len(xs), (False,) * len(xs)
    dtype = np.float64 if bits == 64 else F32
    backend = GpuBackend(bits)
    text = module_of(Program(graph.nodes, shapes, uniform, ([result],)), backend, KernelEntry(backend)).text
    n, xs = len(xs[0]), tuple(x.astype(dtype) for x in xs)
    if GPU:
        name = f"kernel_{op}_{bits}"
        kernel = Kernel(name, _kernel.assembled(name, text), uniform)
        return np.asarray(kernel([jax.ShapeDtypeStruct((n, 1), dtype)], *(x[:, None] for x in xs))[0][:, 0])
    out = np.full(n, np.nan, dtype)
    sizes = np.array([n] + [1] * len(xs), np.int32)
    launch(text, KERNEL, [sizes, *xs, out], -(-n // 64), 64)
    return out


def units_in_the_last_place(got: np.ndarray, wanted: np.ndarray, dtype: type = F32) -> float:
    wanted = np.asarray(wanted, np.float64)
    return float((np.abs(got - wanted) / np.spacing(np.abs(wanted).astype(dtype))).max())


RANDOM = np.random.default_rng(0).uniform(size=5000)
NORMAL = np.random.default_rng(1).normal(size=(2, 5000))
FINITE = [0.0, -0.0, 1.0, -1.0, 0.25, 1e-40, -1e-40, 3e38, -3e38]
SPECIAL = np.array([*FINITE, math.inf, -math.inf, math.nan])
ONE_OPERAND = {
    "sin": (np.sin, 20 * RANDOM - 10, 2),
    "cos": (np.cos, 2e5 * RANDOM - 1e5, 2),
    "tan": (np.tan, 20 * RANDOM - 10, 4),
    "asin": (np.arcsin, 2 * RANDOM - 1, 4),
    "acos": (np.arccos, 2 * RANDOM - 1, 4),
    "atan": (np.arctan, 3 * NORMAL[0], 4),
    "tanh": (np.tanh, 2 * NORMAL[0], 2),
    "sinh": (np.sinh, 4 * NORMAL[0], 4),
    "cosh": (np.cosh, 4 * NORMAL[0], 4),
    "exp": (np.exp, 180 * RANDOM - 95, 2),
    "expm1": (np.expm1, 4 * RANDOM - 2, 2),
    "log": (np.log, 10 ** (76 * RANDOM - 38), 2),
    "log1p": (np.log1p, 2 * RANDOM - 1, 2),
    "sqrt": (np.sqrt, 10 * RANDOM, 0.5),
    "abs": (np.abs, NORMAL[0], 0),
    "floor": (np.floor, 10 * NORMAL[0], 0),
    "ceil": (np.ceil, 10 * NORMAL[0], 0),
    "is_finite": (np.isfinite, NORMAL[0], 0),
}


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("op", ONE_OPERAND)
def test_functions(op, bits):
    function, x, limit = ONE_OPERAND[op]
    dtype = F32 if bits == 32 else np.float64
    x = x.astype(dtype)
    # In double precision the values that they are compared with have errors of their own.
    limit += bits == 64
    assert units_in_the_last_place(computed(op, x, bits=bits), function(x.astype(np.float64)), dtype) <= limit
    with np.errstate(all="ignore"):
        wanted = function(SPECIAL.astype(dtype).astype(np.float64)).astype(dtype)
    finite_angle = np.abs(SPECIAL) < 1e38 if op in ("sin", "cos", "tan") else np.full(len(SPECIAL), True)
    got = computed(op, SPECIAL, bits=bits)
    np.testing.assert_allclose(got[finite_angle], wanted[finite_angle], rtol=3e-7 if bits == 32 else 1e-15)


@pytest.mark.parametrize("op", ["atan2", "max", "min", "lt", "le", "gt", "ge", "eq", "ne"])
def test_functions_of_two_numbers(op):
    names = {"atan2": "arctan2", "max": "maximum", "min": "minimum", "lt": "less", "le": "less_equal", "gt": "greater"}
    names |= {"ge": "greater_equal", "eq": "equal", "ne": "not_equal"}
    function = getattr(np, names[op])
    y, x = NORMAL.astype(F32)
    assert units_in_the_last_place(computed(op, y, x), function(y.astype(np.float64), x)) <= 4
    y, x = (a.ravel().astype(F32) for a in np.meshgrid(SPECIAL, SPECIAL))
    np.testing.assert_allclose(computed(op, y, x), function(y, x), rtol=3e-7)


@pytest.mark.parametrize("bits", [32, 64])
def test_powers(bits):
    dtype = F32 if bits == 32 else np.float64
    x, y = 10 ** (6 * RANDOM - 3), 4 * NORMAL[0]
    x, y = x.astype(dtype), y.astype(dtype)
    wanted = (np.float64(x) ** np.float64(y)).astype(dtype)
    # The error of the logarithm's product with the exponent counts that often.
    np.testing.assert_allclose(computed("pow", x, y, bits=bits), wanted, rtol=1e-7 if bits == 32 else 3e-14)
    x, y = (a.ravel().astype(dtype) for a in np.meshgrid([*SPECIAL, -2.0, -2.5], [*SPECIAL, 2.0, 3.0, -3.0, 0.5]))
    with np.errstate(all="ignore"):
        wanted = np.power(np.float64(x), np.float64(y)).astype(dtype)
    np.testing.assert_allclose(computed("pow", x, y, bits=bits), wanted, rtol=1e-6 if bits == 32 else 1e-12)


def sine_and_cosine(x: float) -> tuple[float, float]:
    """The values for any angle, from its exact distance to the nearest multiple of a quarter turn."""
    quarter = PI / 2
    number = round(Fraction(x) / quarter)
    rest = float(Fraction(x) - number * quarter)
    s, c = math.sin(rest), math.cos(rest)
    return ((s, c), (c, -s), (-s, -c), (-c, s))[number % 4]


def test_large_angles():
    x = (10 ** (4.5 + 34 * RANDOM[:1000]) * np.sign(NORMAL[0, :1000])).astype(F32)
    # The last one is the number of single precision that is nearest to a multiple of a quarter turn.
    x = np.array([*x, np.finfo(F32).max, 16367173 * 2.0**72], F32)
    wanted = np.array([sine_and_cosine(float(a)) for a in x]).T
    assert np.abs(wanted[:, -1]).min() < 2e-9
    for op, values in zip(("sin", "cos"), wanted, strict=True):
        # Such angles are reduced before sine and cosine are computed, with an absolute error, as on CPUs.
        np.testing.assert_allclose(computed(op, x), values, rtol=0, atol=3e-7)
        assert np.isnan(computed(op, np.array([math.inf, -math.inf, math.nan]))).all()


def lowered(f, *args) -> str:
    """The program that JAX hands to XLA for a GPU."""
    return jax.jit(lambda *args: f(*args)).trace(*args).lower(lowering_platforms=("cuda",)).as_text()


def test_where_kernels_are_used():
    model = jaxdyn.samples.pendulum()
    x = np.ones((4, 1), F32)
    model = single(model)
    assert lowered(jaxdyn.aba, model, x, x, x).count(PTX) == 1
    with native.disabled():
        assert PTX not in lowered(jaxdyn.aba, model, x, x, x)
    exported = jax.export.export(jax.jit(lambda *args: jaxdyn.aba(*args)), platforms=("cuda",))(model, x, x, x)
    assert PTX not in exported.mlir_module()


H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84942979072
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 1 patch: 1 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def h100(count: int = 1) -> list:
    """Descriptions of devices, for which XLA compiles without one."""
    if not any(importlib.util.find_spec(f"jax_cuda{n}_plugin") for n in (12, 13)):
        pytest.skip("compilation for a GPU needs the wheels jax-cuda13-plugin and jax-cuda13-pjrt")
    from jax.experimental import topologies

    return topologies.get_topology_desc(platform="cuda", target_config=H100, topology=f"1x1x{count}").devices


@pytest.mark.parametrize("function", [jaxdyn.aba, jaxdyn.crba])
def test_compiled_program_is_one_launch(function):
    sharding = jax.sharding.SingleDeviceSharding(h100()[0])
    model = single(jaxdyn.samples.arm())
    shape = jax.ShapeDtypeStruct((4096, 7), F32, sharding=sharding)
    arguments = (shape,) * (3 if function is jaxdyn.aba else 1)
    text = jax.jit(lambda *x: function(model, *x)).trace(*arguments).lower().compile().as_text()
    entry = text[text.index("ENTRY") :]
    operations = {name.rstrip("0123456789.-") for name in re.findall(r"= \S+ ([a-z][\w-]*)\(", entry)}
    assert operations <= {"parameter", "constant", "custom-call"}, entry
    assert entry.count(PTX) == 1


def test_sharded_batches_use_kernels_inside_shard_map():
    mesh = jax.sharding.Mesh(np.array(h100(2)), ("batch",))
    parts = jax.sharding.PartitionSpec("batch")
    model = single(jaxdyn.samples.pendulum())
    q = jax.ShapeDtypeStruct((8, 1), F32, sharding=jax.sharding.NamedSharding(mesh, parts))

    def aba(q):
        return jaxdyn.aba(model, q, q, q)

    assert PTX not in jax.jit(aba).trace(q).lower().as_text()
    mapped = jax.shard_map(aba, mesh=mesh, in_specs=parts, out_specs=parts)
    text = jax.jit(mapped).trace(q).lower().compile().as_text() or ""
    assert text.count(PTX) == 1
    assert "all-gather" not in text


def ptxas() -> str:
    """The path of NVIDIA's assembler."""
    try:
        distribution = importlib.metadata.distribution("nvidia-cuda-nvcc-cu12")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("the assembler is in the wheel nvidia-cuda-nvcc-cu12, which is not installed")
    return str(distribution.locate_file("nvidia/cuda_nvcc/bin/ptxas"))


def test_kernels_assemble(launches, tmp_path):
    assembler = ptxas()
    for robot in (jaxdyn.samples.arm, jaxdyn.samples.quadruped):
        model = single(robot())
        for function in (jaxdyn.aba, jaxdyn.rnea, jaxdyn.crba):
            arguments = states(model, 2)[: 1 if function is jaxdyn.crba else 3]
            run(functools.partial(function, model), *arguments)
            file = tmp_path / "kernel.ptx"
            file.write_text(assembled(launches[-1]["name"], launches[-1]["kernel_data"]))
            report = subprocess.run(
                [assembler, "-v", "-arch", "sm_90", str(file), "-o", str(tmp_path / "kernel.cubin")],
                capture_output=True,
                text=True,
            )
            assert report.returncode == 0, report.stderr
            used = re.findall(r"Used \d+ registers|\d+ bytes spill \w+", report.stderr)
            print(f"{robot.__name__} {function.__name__}: {', '.join(used)}")


@pytest.mark.parametrize("bits", [32, 64])
def test_every_function_assembles(bits, tmp_path):
    assembler = ptxas()
    graph = Graph()
    x, y = graph.input(0, 0, False), graph.input(1, 0, False)
    out = [graph.apply(op, x) for op in ONE_OPERAND if op != "is_finite"]
    out += [graph.apply(op, x, y) for op in ("atan2", "max", "min", "pow")]
    truth = graph.apply("is_finite", x)
    for op in ("lt", "le", "gt", "ge", "eq", "ne"):
        truth = graph.logical_or(graph.logical_not(graph.logical_and(truth, graph.apply(op, x, y))), truth)
    out += [graph.select(truth, 0.0, y), graph.neg(x), graph.div(x, y), graph.div(1.0, x), x, 2.0]
    file = tmp_path / "kernel.ptx"
    backend = GpuBackend(bits)
    text = module_of(Program(graph.nodes, ((), ()), (False, False), (out, [y])), backend, KernelEntry(backend)).text
    file.write_text(_kernel.assembled(f"every_function_{bits}", text))
    for capability in ("sm_60", "sm_75", "sm_90", "sm_120"):
        command = [assembler, "-arch", capability, str(file), "-o", str(tmp_path / "kernel.cubin")]
        report = subprocess.run(command, capture_output=True, text=True)
        assert report.returncode == 0, report.stderr
