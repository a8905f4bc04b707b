"""New values and new models of the same structure never trace or compile a function again; exported programs take
batches of any size."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
import jaxdyn.sysid
from jaxdyn import ModelBuilder, ModelError, ShapeError, State, UnknownNameError, _waits
from tests.compilations import compilations


def test_one_trace_serves_two_models_of_one_structure():
    first = jaxdyn.samples.arm()
    second = jax.tree.map(lambda x: x * 1.01, jaxdyn.samples.arm())
    assert first.topology == second.topology
    assert hash(first.topology) == hash(second.topology)
    traces = 0

    @jax.jit
    def accelerate(model, q, v, tau):
        nonlocal traces
        traces += 1
        return jaxdyn.aba(model, q, v, tau)

    x = jnp.full(7, 0.3)
    results = [accelerate(m, x, x, x) for m in (first, second, eqx.tree_at(lambda m: m.gravity, first, jnp.ones(3)))]
    assert traces == 1
    assert not np.allclose(results[0], results[1])
    assert not np.allclose(results[0], results[2])


def test_casts_and_links_of_models_compile_nothing_and_functions_of_inertias_once():
    model = jaxdyn.samples.random_tree(jax.random.key(3), 9)
    inertias = np.tile([1.0, 0, 0, 0, 1, 0, 1, 0, 0, 1], (11, 1))
    with compilations() as compiled:
        single, link = model.astype(jnp.float32), model.link_parameters(model.body_names[2])
    assert not compiled
    assert {x.dtype for x in jax.tree.leaves(single)} == {np.dtype(np.float32)}
    np.testing.assert_allclose(link, model.inertial_parameters[2])
    with compilations() as compiled:
        physical = np.asarray(jaxdyn.sysid.is_physical(jax.device_put(inertias)))
    assert physical.all()
    assert len(compiled) == 1


def test_public_functions_compile_once_for_a_structure():
    model, x = jaxdyn.samples.double_pendulum(), jnp.ones(2)
    other = jax.tree.map(lambda y: y * 1.1, model)
    first = jaxdyn.rnea(model, x, x, x)
    with compilations() as compiled:
        second = jaxdyn.rnea(other, x, x, x)
    assert not compiled
    assert not np.allclose(first, second)


@pytest.mark.parametrize("function", [jaxdyn.aba, jaxdyn.rnea, lambda m, q, *_: jaxdyn.crba(m, q)])
def test_no_unrolling_over_bodies(function):
    """XLA's program has the same size for any number of joints."""

    def size(n):
        model, x = jaxdyn.samples.chain(n), jnp.zeros(n)
        with jaxdyn.native.disabled():
            return jax.jit(function).lower(model, x, x, x).as_text().count("stablehlo.")

    assert 100 < size(20) == size(40)


def test_batches_broadcast():
    model = jaxdyn.samples.arm()
    q = model.random_configuration(jax.random.key(0), (3, 1))
    v, tau = jnp.ones((4, 7)), jnp.ones(7)
    a = jaxdyn.aba(model, q, v, tau)
    assert a.shape == (3, 4, 7)
    np.testing.assert_allclose(a[2, 1], jaxdyn.aba(model, q[2, 0], v[1], tau), rtol=1e-10)
    # A result that does not depend on every argument still has all batch axes.
    assert jaxdyn.rnea(model, q[0, 0], v, tau).shape == (4, 7)
    assert jaxdyn.generalized_gravity(model, q).shape == (3, 1, 7)


@pytest.mark.parametrize(
    "leaf", ["gravity", "armature", "damping", "friction", "friction_velocity", "inertial_parameters", "joint_axis"]
)
def test_each_physical_array_may_have_batch_axes(leaf):
    model, x = jaxdyn.samples.double_pendulum(), jnp.array([0.3, 0.002])
    value = getattr(model, leaf)
    batch = jnp.stack([value, 1.5 * value])
    models = eqx.tree_at(lambda m: getattr(m, leaf), model, batch)
    tau = jaxdyn.rnea(models, x, x, x)
    assert tau.shape == (2, 2)
    np.testing.assert_allclose(tau[0], jaxdyn.rnea(model, x, x, x), rtol=1e-12)
    # The length of an axis has no effect; all other changes change the torques.
    assert np.allclose(tau[0], tau[1], rtol=1e-12) == (leaf == "joint_axis")


def test_rollout_matches_steps_and_broadcasts():
    model = jaxdyn.samples.cartpole()
    start = State(jnp.array([0.0, 0.1]), jnp.zeros(2))
    controls = jax.random.normal(jax.random.key(0), (3, 5, 2))
    trajectory = jaxdyn.rollout(model, start, controls, 0.01)
    assert trajectory.q.shape == (3, 6, 2)
    state = start
    for k in range(5):
        state = jaxdyn.step(model, state, controls[1, k], 0.01)
    np.testing.assert_allclose(trajectory.final.q[1], state.q, rtol=1e-12)
    np.testing.assert_allclose(trajectory.t, 0.01 * np.arange(6))
    # The gradient through a roll-out equals central differences.

    def reach(u):
        return jaxdyn.rollout(model, start, u, 0.01).final.q.sum()

    gradient, step = jax.jit(jax.grad(reach))(controls[0]), 1e-5
    direction = np.random.default_rng(0).normal(size=(5, 2))
    up, down = (reach(controls[0] + s * step * direction) for s in (1, -1))
    assert float(jnp.vdot(gradient, direction)) == pytest.approx(float(up - down) / (2 * step), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda m, x: jaxdyn.rnea(m, x[:6], x, x), ShapeError, ["q", "(6,)", "nq = 7"]),
        (lambda m, x: jaxdyn.aba(m, x, x, x[None, :3]), ShapeError, ["tau", "(1, 3)", "nv = 7"]),
        (lambda m, x: jaxdyn.rnea(m, x, x, x, jnp.zeros((7, 3))), ShapeError, ["f_ext", "(7, 3)"]),
        (lambda m, x: jaxdyn.rnea(m, jnp.zeros((2, 7)), jnp.zeros((3, 7)), x), ShapeError, ["broadcast", "q", "v"]),
        (lambda m, x: jaxdyn.crba(m, x.astype(complex)), ShapeError, ["complex"]),
        (lambda m, x: jaxdyn.frame_pose(m, x, "flnge"), UnknownNameError, ["flnge", "'flange'"]),
        (lambda m, x: jaxdyn.frame_jacobian(m, x, "flange", "global"), ModelError, ["global", "'world'"]),
        (lambda m, x: m.q_index("joint9"), UnknownNameError, ["joint9", "'joint"]),
        (lambda m, x: jaxdyn.crba(x, x), ShapeError, ["Model"]),
        (lambda m, x: jaxdyn.step(m, State(x, x), x, 0.1, integrator="rk5"), ModelError, ["rk5", "rk4"]),
        (lambda m, x: jaxdyn.rollout(m, State(x, x), x, 0.1), ShapeError, ["controls", "steps"]),
        (lambda m, x: ModelBuilder().build(), ModelError, ["no moving body"]),
    ],
)
def test_errors_name_the_thing(call, error, words):
    with pytest.raises(error) as caught:
        call(jaxdyn.samples.arm(), jnp.zeros(7))
    for word in words:
        assert word in str(caught.value)


def test_exported_programs_take_batches_of_any_size():
    """`jax.export` with a symbolic batch has the values of calls with as many elements."""
    model = jaxdyn.samples.pendulum()

    def function(q, v):
        return jaxdyn.rnea(model, q, v, v), jax.grad(lambda q: jaxdyn.aba(model, q, v, q).sum())(q)

    specs = jax.export.symbolic_args_specs((jnp.zeros((1, 1)),) * 2, ("b, 1", "b, 1"))
    exported = jax.export.export(jax.jit(function))(*specs)
    # The larger batch takes several chunks where its size is known.
    for size in (2, 300):
        q, v = np.random.default_rng(0).normal(size=(2, size, 1)).astype(specs[0].dtype)
        for found, expected in zip(exported.call(q, v), function(q, v), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
    # Batches of which it is not known whether they are the same are refused.
    specs = jax.export.symbolic_args_specs((jnp.zeros((1, 1)),) * 2, ("b, 1", "c, 1"))
    with pytest.raises(ShapeError, match="do not broadcast"):
        jax.export.export(jax.jit(lambda q, v: jaxdyn.rnea(model, q, v, v)))(*specs)


def test_waits_are_told_once(monkeypatch, caplog):
    """Compilations of programs with a function of the library, and its own work, are told after a while; other
    programs, and what is quick, are not."""
    monkeypatch.setattr("jaxdyn._waits.PATIENCE", 0.3)
    # The work of tests before may be watched still.
    monkeypatch.setattr("jaxdyn._waits._threads", _waits._Threads())
    model, x = jaxdyn.samples.pendulum(), jnp.ones(1)

    def slow(q):
        time.sleep(0.6)
        return jaxdyn.rnea(model, q, q, q).sum()

    def of_others(q):
        time.sleep(0.6)
        return q.sum()

    jax.jit(jax.grad(slow))(x)
    (message,) = caplog.messages
    assert message.startswith("jaxdyn has been compiling slow for ")
    caplog.clear()
    # A wait ends where nothing goes on for half a second.
    time.sleep(0.6)
    jax.jit(of_others)(x)
    assert not caplog.messages
    time.sleep(0.6)
    with _waits.saying("drawing"):
        time.sleep(0.1)
    time.sleep(0.6)
    assert not caplog.messages
    with _waits.saying("drawing"):
        jax.jit(of_others)(x + jnp.ones(1, x.dtype))
        jax.jit(lambda q: of_others(q))(x)
    (message,) = caplog.messages
    assert message.startswith("jaxdyn has been drawing ")
