"""Gradients of returns: they are right, how they grow and through what, and by which parameter."""

import functools
import json
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from experiments import benchmark_learning, learning_gradients
from jaxdyn import ModelError, ShapeError, learn
from jaxdyn.sysid import AllScales, InertiaScale, Parametrization, Positive
from jaxdyn.worlds import cause_names, changes_by_cause

pytest.importorskip("mujoco")

LEG = """<mujoco><option timestep=".01"/>{flags}<default><geom contype="0" conaffinity="0" density="50"/>
</default><worldbody><geom name="floor" type="plane" size="9 9 1" conaffinity="1"/><body name="torso" pos="0 0 .3">
<joint name="z" type="slide" axis="0 0 1"/><geom size=".2"/><body pos=".2 0 0">
<joint name="hip" axis="0 1 0" limited="true" range="-30 30" armature=".1"/>
<geom type="capsule" size=".05" fromto="0 0 0 .2 0 0"/><body pos=".2 0 0"><joint name="knee" axis="0 1 0" limited="true"
range="-5 80" armature=".1"/><geom name="foot" type="capsule" size=".05" fromto="0 0 0 .3 0 -.2" contype="1"/></body>
</body></body></worldbody><actuator><motor name="hip" joint="hip" gear="20" ctrllimited="true" ctrlrange="-1 1"/>
<position name="knee" joint="knee" kp="20" kv="1" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>"""
"""A torso on a vertical slide with one leg, whose foot is near the ground."""
BALL = """<mujoco><option timestep=".01"/><worldbody><geom name="floor" type="plane" size="9 9 1"/><body pos="0 0 .11">
<joint name="z" type="slide" axis="0 0 1"/><geom name="ball" size=".1"/></body></worldbody><actuator>
<motor joint="z" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>"""
"""A ball on a vertical slide above the ground."""


@functools.cache
def loaded(text: str = LEG, flags: str = "") -> jaxdyn.World:
    return jaxdyn.load_world(text.format(flags=flags)).astype(jnp.float64)


class Run(learn.AbstractTask):
    """Vertical speed, from random velocities near the ground."""

    def start(self, world, key):
        return world.state(v=0.3 * jax.random.normal(key, (world.model.nv,), world.start.dtype))

    def observe(self, world, state, memory):
        return jnp.concatenate([state.q, state.v])

    def reward(self, world, step, memory):
        return step.after.v[0] - 0.1 * jnp.sum(step.control**2), {}


def linear_policy(env: learn.Environment, seed: int = 0) -> eqx.Module:
    return eqx.nn.Linear(env.observation_size, env.action_size, dtype=jnp.float64, key=jax.random.key(seed))


def starts(env: Any, count: int) -> learn.EnvironmentState:
    return jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(0), count))


@functools.cache
def pole() -> tuple[learn.Environment, eqx.Module, learn.EnvironmentState]:
    env = learn.environment("cartpole_swingup", dtype=jnp.float64)
    return env, linear_policy(env), starts(env, 3)


def returns(env: learn.Environment, policy: Any, states: Any, steps: int) -> jax.Array:
    """The returns of roll-outs, `[worlds]`."""

    def one(state):
        def step(state, _):
            state = env.step(state, policy(state.obs))
            return state, state.reward

        return jax.lax.scan(step, state, length=steps)[1].sum()

    return jax.vmap(one)(states)


def require_right_gradient(env: learn.Environment, worlds: int, steps: int, rtol: float, *, smooth: bool) -> None:
    """Compare forward mode, reverse mode and, where the return is smooth, central differences along one direction."""
    arrays, rest = eqx.partition(linear_policy(env), eqx.is_inexact_array)
    states = starts(env, worlds)
    leaves, structure = jax.tree.flatten(arrays)
    random = np.random.default_rng(0)
    direction = jax.tree.unflatten(structure, [jnp.asarray(random.normal(size=x.shape)) for x in leaves])

    def value(arrays):
        return returns(env, eqx.combine(arrays, rest), states, steps).mean()

    forward = float(jax.jit(lambda t: jax.jvp(value, (arrays,), (t,))[1])(direction))
    gradient = jax.jit(jax.grad(value))(arrays)
    pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(direction), strict=True)
    assert abs(forward) > 0.1
    np.testing.assert_allclose(sum(float((x * y).sum()) for x, y in pairs), forward, rtol=rtol)
    if smooth:
        run = jax.jit(value)
        # Truncation errors go with the square of the step, rounding errors with its inverse.
        h = 1e-6
        high, low = (float(run(jax.tree.map(lambda x, t, h=h: x + h * t, arrays, direction))) for h in (h, -h))
        np.testing.assert_allclose((high - low) / (2 * h), forward, rtol=1e-5)


def test_gradient_of_a_return_forward_reverse_and_by_differences():
    require_right_gradient(learn.Environment(loaded(), Run(), substeps=2), 3, 5, 1e-9, smooth=True)


@pytest.mark.slow
@pytest.mark.parametrize(("worlds", "steps", "smooth"), [(4, 4, True), (64, 32, False)])
def test_gradient_of_the_ants_return(worlds, steps, smooth):
    """Over 32 steps the return may jump where a world strikes the ground, so no differences are taken."""
    pytest.importorskip("gymnasium")
    require_right_gradient(learn.environment("ant", dtype=jnp.float64), worlds, steps, 1e-6, smooth=smooth)


# Growth


def test_growth_is_that_of_the_product_of_jacobians():
    """With as many directions as the state has numbers it is exact."""
    world, controls = loaded(BALL), np.sin(np.arange(12.0))[:, None]
    heights, speeds = jnp.array([[0.0], [-0.005]]), jnp.array([[-1.0], [0.3]])
    found = learn.gradient_growth(world, controls, world.state(heights, speeds), 12, probes=2, causes=False)

    @jax.jit
    @jax.vmap
    def products(x):
        def after(x, control):
            moved = world.step(world.state(x[:1], x[1:]), control)
            return jnp.concatenate([moved.q, moved.v])

        def step(carry, control):
            x, P = carry
            x, P = after(x, control), jax.jacfwd(after)(x, control) @ P
            return (x, P), jnp.linalg.norm(P) / 2**0.5

        return jax.lax.scan(step, (x, jnp.eye(2)), jnp.asarray(controls))[1]

    expected = products(jnp.concatenate([heights, speeds], axis=1)).T
    assert expected.max() > 5
    np.testing.assert_allclose(found.growth, expected, rtol=1e-9)
    size = np.sqrt((np.asarray(expected) ** 2).mean(axis=1))
    for limit in (1.5, 4.0, 1e9):
        above = np.flatnonzero(size > limit)
        assert found.horizon(limit) == (above[0] if len(above) else 12)
    assert found.gradient is None
    assert found.causes == ()
    with pytest.raises(ModelError, match="causes=True"):
        found.main_causes()


def test_gradients_by_actions_and_their_noise():
    env, _, states = pole()
    actions = 0.1 * np.sin(np.arange(8.0))[:, None]
    found = learn.gradient_growth(env, actions, states, 8, probes=2000, causes=False)

    def rewards(actions, state):
        def step(state, action):
            state = env.step(state, action)
            return state, state.reward

        return jnp.cumsum(jax.lax.scan(step, state, actions)[1])

    each = jax.jit(jax.vmap(jax.jacfwd(rewards), (None, 0)))(jnp.asarray(actions), states)[..., 0]
    norms = np.linalg.norm(each, axis=-1).T
    # The estimates have a relative standard error of 1 / sqrt(2 probes), 0.016.
    np.testing.assert_allclose(found.gradient, norms, rtol=0.08)
    error = each.var(axis=0, ddof=1).sum(axis=-1) / 3
    square = (each.mean(axis=0) ** 2).sum(axis=-1) - error
    np.testing.assert_allclose(found.noise[:6], np.sqrt(error / square)[:6], rtol=0.15)
    assert found.clip(8) == np.median(found.gradient[7])
    with pytest.raises(ModelError, match="1 to 8"):
        found.clip(9)


def test_growth_ends_where_an_episode_does():
    env, policy, _ = pole()
    episodes = learn.Episodes(env, 3)
    found = learn.gradient_growth(episodes, policy, starts(episodes, 2), 5, causes=False)
    assert (np.asarray(found.growth[:2]) > 0).all()
    assert not np.asarray(found.growth[2:]).any()


def test_wrong_arguments_of_growth():
    env, policy, states = pole()
    with pytest.raises(ShapeError, match="one batch axis"):
        learn.gradient_growth(env, policy, env.reset(jax.random.key(0)), 3)
    with pytest.raises(ShapeError, match="actions"):
        learn.gradient_growth(env, np.zeros((2, 1)), states, 3)
    with pytest.raises(ModelError, match="no observations"):
        learn.gradient_growth(env.world, policy, states.data, 3)
    with pytest.raises(ModelError, match="Environment"):
        learn.gradient_growth(policy, policy, states, 3)


# Causes


def test_changes_pass_through_contacts_limits_and_the_rest():
    """The leg pushes on the ground with its knee, which has a servo, at its limit. The rest is what a leg without
    constraints and actuators, on which their forces act as they are, does to the balance of that with them."""
    world = loaded()
    bare = loaded(flags='<option><flag constraint="disable" actuation="disable"/></option>')
    n = world.model.nv
    q, v = jnp.array([-0.07, 0.2, jnp.deg2rad(-6.0)]), jnp.array([-1.0, -0.2, 0.1])
    state, control = world.state(q, v), jnp.array([0.3, -0.2])
    directions = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2 * n)))
    driven = jnp.array([0.0, 20 * control[0], 20 * (control[1] - q[2]) - v[2]])
    held = world.constraint_forces(state, control) + driven

    @jax.jit
    def measured(directions):
        def moved(direction):
            return world.state(world.model.integrate(q, direction[:n]), v + direction[n:])

        tangents = jax.vmap(lambda d: jax.jvp(moved, (jnp.zeros(2 * n),), (d,))[1])(directions)
        parts = changes_by_cause(world, state, control, tangents, jnp.zeros((2, 2)))
        total = jax.vmap(lambda t: jax.jvp(lambda x: world.step(x, control).v, (state,), (t,))[1])(tangents)
        free = jax.vmap(lambda t: jax.jvp(lambda x: bare.accelerations(x, control, held), (state,), (t,))[1])(tangents)
        push = jax.jacfwd(lambda torque: world.step(state, control, torque).v)(jnp.zeros(n))
        return parts, total, free, push

    parts, total, free, push = map(np.asarray, measured(directions))
    names = cause_names(world)
    assert names == (
        *("limit of hip", "limit of knee", "contact of floor with foot"),
        *("actuator hip", "actuator knee", "bodies and passive forces"),
    )
    np.testing.assert_allclose(parts.sum(axis=1), total, rtol=1e-9, atol=1e-9)
    size = np.linalg.norm(parts, axis=-1)
    assert (size[:, 1:3] > 0.1).all()
    # The hip is within its limits, and its motor does not see the state.
    assert not size[:, [0, 3]].any()
    servo = np.zeros((2, n))
    servo[:, 2] = -20 * np.asarray(directions[:, 2]) - np.asarray(directions[:, n + 2])
    np.testing.assert_allclose(parts[:, 4], servo @ push.T, rtol=1e-9, atol=1e-12)
    mass = np.asarray(jaxdyn.crba(world.model, q))
    rest = np.asarray(directions[:, n:]) + free @ (push @ mass).T
    np.testing.assert_allclose(parts[:, -1], rest, rtol=1e-8, atol=1e-8)


def test_growth_names_the_stiff_contact():
    env = learn.Environment(loaded(BALL), Run(), substeps=2)
    policy = linear_policy(env)
    found = learn.gradient_growth(env, policy, starts(env, 4), 8)
    assert found.through.shape == (4, 3)
    assert found.main_causes() == {"contact of floor with ball": 4}
    assert "through contact of floor with ball" in str(found)
    assert "8 steps of 4 worlds" in repr(found)


# Parameters


def test_return_by_parameters_of_the_cart_pole():
    env, policy, states = pole()
    found = learn.return_gradient(env, policy, states, 20, checked=2)
    assert set(found.names) == {
        *("inertia of cart: log scale", "inertia of pole: log scale"),
        *("log damping of slider", "log damping of hinge", "log gear of force"),
    }
    parameters = Parametrization(env.world, AllScales())
    run = jax.jit(
        lambda free: returns(eqx.tree_at(lambda env: env.world, env, parameters.model(free)), policy, states, 20).mean()
    )
    h = 1e-5
    steps = h * np.eye(parameters.size)
    slopes = np.array([(float(run(x)) - float(run(-x))) / (2 * h) for x in steps])
    np.testing.assert_allclose(found.change, 0.01 * slopes, rtol=1e-5, atol=1e-11)
    assert list(found.order) == np.argsort(-np.abs(slopes)).tolist()
    np.testing.assert_allclose(found.differences, np.asarray(found.change)[list(found.order[:2])], rtol=1e-3)
    assert found.names[found.order[0]] in str(found)
    with pytest.raises(ModelError, match="another world"):
        learn.return_gradient(env, policy, states, 2, parameters=Parametrization(loaded(), AllScales()))


def test_all_scales():
    parameters = Parametrization(loaded(), AllScales())
    assert "log friction of floor and foot" in parameters.names
    assert "log armature of hip" in parameters.names
    assert not any("damping" in name or "dynprm" in name for name in parameters.names)
    free = np.random.default_rng(0).normal(size=parameters.size)
    np.testing.assert_allclose(parameters.free(parameters.model(free)), free, atol=1e-9)
    model = jaxdyn.samples.cartpole()
    model = model.with_joint_friction(damping=jnp.array([0.5, 0.0]))
    world = jaxdyn.World(model)
    assert Parametrization(world, AllScales()).names == Parametrization(model, AllScales()).names
    one = Parametrization(model, InertiaScale(), Positive("damping", at=[0]))
    assert Parametrization(model, AllScales()).names == one.names


# Experiments


@pytest.mark.experiments
def test_gradients_against_differences(tmp_path):
    arguments = ["--environments", "cartpole_swingup", "--horizons", "1,4", "--starts", "64", "--differences", "1"]
    assert learning_gradients.main([*arguments, "--results", str(tmp_path)]) == 0
    lines = (tmp_path / "learning_gradients" / "measurements.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert [x["steps"] for x in records] == [1, 4]
    # The swing-up is smooth: both means are those of the same gradient.
    assert all(x["bias"] < 4 * x["bias_error"] < 2 for x in records)


@pytest.mark.experiments
def test_benchmark_of_the_ant(tmp_path):
    pytest.importorskip("gymnasium")
    small = ["--libraries", "forward", "--worlds", "2", "--steps", "1", "--seconds", "0.01", "--repeats", "1"]
    assert benchmark_learning.main([*small, "--alone", "--results", str(tmp_path)]) == 0
    (record,) = json.loads((tmp_path / "benchmark_learning" / "measurements.json").read_text())
    assert record["steps_per_s"] > 0
