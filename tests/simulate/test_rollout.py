"""Roll-outs support policies, thinned outputs, sensors and checkpoints, and report divergence."""

import dataclasses
import time
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ModelError, ShapeError, State, _waits
from jaxdyn.simulate import DivergenceError, RolloutOptions, rk4_step, semi_implicit_euler_step
from jaxdyn.simulate._checkpointed_scan import scan_in_segments, segment_length
from tests.compilations import compilations

MODEL = jaxdyn.samples.cartpole()
CHECK = RolloutOptions(check=True)
START = State(jnp.array([0.0, 0.1]), jnp.array([[0.1, 0.0], [0.0, 0.2], [0.3, 0.0]]))
CONTROLS = jnp.asarray(np.random.default_rng(0).normal(size=(3, 12, 2)))


def same(got, want, rtol=1e-11):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=1e-13), got, want)


@pytest.fixture(scope="module")
def plain():
    return jaxdyn.rollout(MODEL, START, CONTROLS, 0.01)


def test_policy_that_plays_back_is_the_array(plain):
    def playback(k, state, t):
        return k + 1, jnp.take(CONTROLS, k, axis=1)

    trajectory = jaxdyn.rollout(MODEL, START, playback, 0.01, steps=12, policy_state=0)
    same((trajectory.t, trajectory.q, trajectory.v, trajectory.tau), (plain.t, plain.q, plain.v, plain.tau))
    assert int(trajectory.policy_state) == 12
    same(plain.tau, CONTROLS)
    assert plain.policy_state is None
    assert plain.sensors is None


def test_thinned_samples_are_some_of_all(plain):
    def energy(model, state, t):
        return {"energy": jaxdyn.kinetic_energy(model, state.q, state.v), "time": t + 0 * state.v}

    few = jaxdyn.rollout(MODEL, START, CONTROLS, 0.01, sensors=energy, options=RolloutOptions(save_every=4))
    same((few.t, few.q, few.v, few.tau), (plain.t[::4], plain.q[:, ::4], plain.v[:, ::4], CONTROLS[:, ::4]))
    same(few.sensors["energy"], jaxdyn.kinetic_energy(MODEL, few.q, few.v))
    assert few.sensors["time"].shape == (3, 4, 2)
    same(few.sensors["time"][0, :, 0], few.t)
    same(few.final.q, plain.final.q)


def test_substeps_hold_the_torques():
    u = CONTROLS[:, :3]
    fine = jaxdyn.rollout(MODEL, START, u, 0.04, substeps=4)
    expected = jaxdyn.rollout(MODEL, START, jnp.repeat(u, 4, axis=1), 0.01)
    same((fine.q, fine.v), (expected.q[:, ::4], expected.v[:, ::4]))


class Network(eqx.Module):
    """A policy with weights, which is written for one robot."""

    mlp: eqx.nn.MLP
    scale: float = eqx.field(static=True, default=0.5)

    def __call__(self, carry, state, t):
        observed = jnp.concatenate([state.q, state.v], axis=-1)
        return carry, self.scale * jax.vmap(self.mlp)(observed)


@pytest.mark.slow
def test_network_learns_without_compiling_again():
    start = State(jnp.broadcast_to(START.q, (3, 2)), START.v)
    network = Network(eqx.nn.MLP(4, 2, 8, 1, key=jax.random.key(0)))

    def loss(network):
        return jnp.sum(jaxdyn.rollout(MODEL, start, network, 0.02, steps=12).final.q ** 2)

    value = loss(network)
    changed = jax.tree.map(lambda x: x * 1.1 if eqx.is_array(x) else x, network)
    with compilations() as compiled:
        assert not np.allclose(loss(changed), value)
    assert not compiled

    gradient = eqx.filter_jit(eqx.filter_grad(loss))(network)
    direction = jax.tree.map(lambda g: jnp.cos(jnp.arange(g.size)).reshape(g.shape), gradient)
    h = 1e-5
    up, down = (loss(eqx.apply_updates(network, jax.tree.map(lambda d, s=s: s * h * d, direction))) for s in (1, -1))
    slope = sum(jnp.vdot(g, d) for g, d in zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True))
    assert float(slope) == pytest.approx(float(up - down) / (2 * h), rel=1e-6)


def test_keys_are_carried():
    def noise(key, state, t):
        key, now = jax.random.split(key)
        return key, jax.random.normal(now, state.v.shape)

    trajectory = jaxdyn.rollout(MODEL, START, noise, 0.01, steps=3, policy_state=jax.random.key(0))
    replayed = jaxdyn.rollout(MODEL, START, trajectory.tau, 0.01)
    same(trajectory.q, replayed.q)


def test_batches_of_models_and_maps():
    models = eqx.tree_at(lambda m: m.damping, MODEL, jnp.array([[0.0, 0.0], [0.1, 0.2], [1.0, 0.5]]))
    state = State(START.q, START.v[0])
    together = jaxdyn.rollout(models, state, CONTROLS[0], 0.01)
    assert together.q.shape == (3, 13, 2)
    axes = eqx.tree_at(lambda m: m.damping, jax.tree.map(lambda _: None, MODEL), 0, is_leaf=lambda x: x is None)
    mapped = jax.vmap(lambda m: jaxdyn.rollout(m, state, CONTROLS[0], 0.01).q, in_axes=(axes,))(models)
    same(together.q, mapped)


def gradient(save_every, checkpoint):
    """Return the gradient of a function of the last sample with respect to the start and the torques."""

    def loss(start, u):
        options = RolloutOptions(checkpoint=checkpoint, save_every=save_every)
        trajectory = jaxdyn.rollout(MODEL, start, u, 0.02, sensors=lambda m, s, t: t * s.q * s.v, options=options)
        return jnp.sum(trajectory.final.q**2) + jnp.sum(trajectory.sensors[:, -1])

    return jax.jit(jax.grad(loss, (0, 1)))(START, CONTROLS)


@pytest.fixture(scope="module")
def gradient_without_segments():
    return gradient(1, "none")


@pytest.mark.parametrize(
    ("save_every", "checkpoint"),
    [pytest.param(1, 5, marks=pytest.mark.slow), pytest.param(12, "sqrt", marks=pytest.mark.slow), (2, 3)],
)
def test_checkpoints_change_no_gradient(save_every, checkpoint, gradient_without_segments):
    """The gradient is the same for segments between samples and within intervals, of equal and unequal lengths."""
    same(gradient(save_every, checkpoint), gradient_without_segments, rtol=1e-9)


@pytest.mark.slow
def test_checkpoints_bound_the_memory():
    start = State(jnp.zeros((64, 2)), jnp.zeros((64, 2)))

    def push(carry, state, t):
        return carry, -state.v

    def temporary(checkpoint):
        def loss(start):
            options = RolloutOptions(checkpoint=checkpoint, save_every=900)
            final = jaxdyn.rollout(MODEL, start, push, 0.01, steps=900, options=options).final
            return jnp.sum(final.q**2)

        analysis = jax.jit(jax.grad(loss)).lower(start).compile().memory_analysis()
        assert analysis is not None
        return analysis.temp_size_in_bytes

    everything, few = temporary("none"), temporary("sqrt")
    # Memory holds 900 steps, or 30 segments and the 30 steps of one, and a part that does not grow with the steps.
    assert everything > 900 * 64 * 4 * 8
    assert few < 0.25 * everything


def test_scan_in_segments_is_scan():
    def body(carry, x):
        return carry + jnp.sin(x) * carry, carry * x

    xs = jnp.linspace(0.1, 1, 13)
    want = jax.lax.scan(body, jnp.array(1.0), xs)
    for segment in (1, 3, 5, 13, 20):
        same(scan_in_segments(body, jnp.array(1.0), xs, 13, segment), want)
    assert segment_length("sqrt", 1000) in (25, 40)
    # A prime number of steps has no divisor near its square root.
    assert segment_length("sqrt", 997) == 31
    assert segment_length(4, 10) == 3
    assert segment_length("none", 10) is None


def test_divergence_names_the_element_and_the_step():
    bad_start = dataclasses.replace(START, v=START.v.at[2, 0].set(jnp.nan))
    with pytest.raises(DivergenceError) as caught:
        jaxdyn.rollout(MODEL, bad_start, CONTROLS, 0.01, options=CHECK)
    for word in ("1 of 3", "batch element 2", "initial state"):
        assert word in str(caught.value)

    bad_torques = CONTROLS.at[1, 7, 0].set(jnp.inf)
    with pytest.raises(DivergenceError) as caught:
        jaxdyn.rollout(MODEL, START, bad_torques, 0.01, options=CHECK)
    for word in ("batch element 1", "step 7", "t = 0.08", "torques"):
        assert word in str(caught.value)
    # The numbers grow until they overflow.
    with pytest.raises(DivergenceError) as caught:
        jaxdyn.rollout(MODEL, START, lambda c, s, t: (c, 1e30 * s.v**3), 0.01, steps=9, options=CHECK)
    assert "3 of 3" in str(caught.value)
    assert "initial" not in str(caught.value)
    # Without a check the roll-out returns numbers that are not finite.
    assert not np.isfinite(jaxdyn.rollout(MODEL, START, bad_torques, 0.01).q).all()


def test_divergence_is_reported_from_within_transformations():
    def last(u):
        return jaxdyn.rollout(MODEL, START, u, 0.01, options=CHECK).final.q

    good, bad = CONTROLS, CONTROLS.at[1, 7, 0].set(jnp.nan)
    program = jax.jit(last)
    assert np.isfinite(program(good)).all()
    with pytest.raises(Exception, match=r"batch element 1: .* step 7"):
        jax.block_until_ready(program(bad))
    mapped = jax.jit(jax.vmap(jax.grad(lambda u: last(u).sum())))
    assert np.isfinite(mapped(jnp.stack([good, good]))).all()
    with pytest.raises(Exception, match=r"batch element \(1, 1\): .* step 7"):
        jax.block_until_ready(mapped(jnp.stack([good, bad])))


def test_single_precision_stays_single():
    with jax.enable_x64(False):
        model = MODEL.astype(jnp.float32)
        state = State(jnp.zeros(2, jnp.float32), jnp.ones(2, jnp.float32))
        out = jaxdyn.rollout(model, state, jnp.zeros((4, 2), jnp.float32), 0.01, options=RolloutOptions(save_every=2))
    assert {x.dtype for x in jax.tree.leaves(out)} == {jnp.dtype(jnp.float32)}


def test_roll_outs_that_are_not_finite_at_their_end_are_named():
    bad = CONTROLS.at[1, 7, 0].set(jnp.nan)
    with pytest.warns(jaxdyn.DivergenceWarning, match=r"1 of 3 .*\n.*element 1: .* step 7 .*; the torques") as caught:
        jaxdyn.rollout(MODEL, START, bad, 0.01)
    assert caught[0].filename == __file__ or "jaxtyping" in caught[0].filename
    with pytest.warns(jaxdyn.DivergenceWarning, match=r"step 8 (.|\n)*Samples are 3 steps apart"):
        jaxdyn.rollout(MODEL, START, bad, 0.01, options=RolloutOptions(save_every=3))
    # Steps of 1 s are too long for this pole.
    with pytest.warns(jaxdyn.DivergenceWarning, match="the roll-out: first not finite after step"):
        jaxdyn.rollout(MODEL, State(START.q), jnp.full((400, 2), 1e3), 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jaxdyn.rollout(MODEL, START, CONTROLS, 0.01)
        jax.jit(lambda u: jaxdyn.rollout(MODEL, START, u, 0.01).q)(bad)


def test_a_state_without_velocity_is_at_rest():
    rest = State(START.q, jnp.zeros(2))
    same(jaxdyn.rollout(MODEL, State(START.q), CONTROLS, 0.01).q, jaxdyn.rollout(MODEL, rest, CONTROLS, 0.01).q)
    for step in (jaxdyn.step, rk4_step, semi_implicit_euler_step):
        same(step(MODEL, State(START.q), CONTROLS[0, 0], 0.01), step(MODEL, rest, CONTROLS[0, 0], 0.01))


CONSTANT = jnp.zeros((4, 2))
WRONG = RolloutOptions("all"), RolloutOptions(sharding=jax.devices()[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda s: jaxdyn.rollout(MODEL, s, CONSTANT[:, :1], 0.1), ShapeError, ["controls", "(4, 1)", "nv = 2"]),
        (lambda s: jaxdyn.rollout(MODEL, s, CONSTANT, 0.1, steps=5), ShapeError, ["5", "4 rows"]),
        (
            lambda s: jaxdyn.rollout(MODEL, s, CONSTANT, 0.1, options=RolloutOptions(save_every=3)),
            ModelError,
            ["save_every", "3", "4 steps"],
        ),
        (
            lambda s: jaxdyn.rollout(MODEL, s, CONSTANT, 0.1, options=RolloutOptions("all")),
            ModelError,
            ["'all'", "'sqrt'"],
        ),
        (lambda s: jaxdyn.rollout(MODEL, s, CONSTANT, 0.1, policy_state=0), ModelError, ["policy_state", "array"]),
        (lambda s: jaxdyn.rollout(MODEL, s, lambda c, s, t: (c, s.v), 0.1), ModelError, ["steps"]),
        (lambda s: jaxdyn.rollout(MODEL, s, lambda c, s, t: s.v, 0.1, steps=2), ShapeError, ["pair"]),
        (
            lambda s: jaxdyn.rollout(MODEL, s, lambda state, t: state.v, 0.1, steps=2),
            ModelError,
            ["policy", "(carry, state, t)", "(state, t)"],
        ),
        (
            lambda s: jaxdyn.rollout(MODEL, s, CONSTANT, 0.1, sensors=lambda state: state.q),
            ModelError,
            ["sensors", "(model, state, t)", "(state)"],
        ),
        (lambda s: jaxdyn.rollout(MODEL, s, lambda c, s, t: (c, s.v[:1]), 0.1, steps=2), ShapeError, ["tau", "(1,)"]),
        (
            lambda s: jaxdyn.rollout(MODEL, s, lambda c, s, t: (c + 0.5, s.v), 0.1, steps=2, policy_state=0),
            ShapeError,
            ["policy_state", "float", "int"],
        ),
        (lambda s: jaxdyn.rollout(MODEL, State(s.q[:1], s.v), CONSTANT, 0.1), ShapeError, ["state.q", "nq = 2"]),
        (
            lambda s: jaxdyn.rollout(MODEL, s, CONSTANT, 0.1, options=RolloutOptions(sharding=jax.devices()[0])),
            ModelError,
            ["NamedSharding"],
        ),
        (
            lambda s: jaxdyn.rollout(MODEL, State(s.q, s.v[None]), CONSTANT, 0.1, sensors=lambda m, s, t: jnp.zeros(7)),
            ShapeError,
            ["sensors", "(7,)", "[1]"],
        ),
    ],
)
def test_errors_name_the_thing(call, error, words):
    with pytest.raises(error) as caught:
        call(State(jnp.zeros(2), jnp.zeros(2)))
    for word in words:
        assert word in str(caught.value)


def test_a_roll_out_that_takes_long_says_so(monkeypatch, caplog):
    monkeypatch.setattr("jaxdyn._waits.PATIENCE", 0.3)
    monkeypatch.setattr("jaxdyn._waits._threads", _waits._Threads())
    monkeypatch.setattr("jaxdyn.simulate._rollout._LONG", 1)
    asleep = []

    def nap(x):
        if asleep:
            time.sleep(asleep.pop())
        return x

    def policy(carry, state, t):
        return carry, 0 * jax.pure_callback(nap, state.v, state.v)

    model, start = jaxdyn.samples.pendulum(), State(np.zeros(1))
    jaxdyn.rollout(model, start, policy, 0.01, steps=3)
    time.sleep(0.6)
    caplog.clear()
    asleep.append(0.7)
    jaxdyn.rollout(model, start, policy, 0.01, steps=3)
    (message,) = caplog.messages
    assert message.startswith("jaxdyn has been rolling out 3 steps")
