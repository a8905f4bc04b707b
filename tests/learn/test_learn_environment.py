"""Environments: the protocol of reset and step, episodes, derivatives, divergence, readings, randomization, errors."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import learn, sysid
from jaxdyn.learn import AbstractTask, Environment, Episodes

SCENE = """
<mujoco>
  <option timestep="0.01" integrator="implicitfast"/>
  <worldbody>
    <body>
      <joint name="slide" type="slide" axis="1 0 0" damping="0.5"/>
      <geom size="0.1" mass="2" contype="0" conaffinity="0"/>
    </body>
  </worldbody>
  <actuator><motor name="push" joint="slide" ctrllimited="true" ctrlrange="-3 5"/></actuator>
  <sensor><jointpos name="where" joint="slide"/></sensor>
</mujoco>
"""


class Reach(AbstractTask):
    """A mass reaches a target, and an episode ends beyond 1 m."""

    limit: float = 1.0

    def start(self, world, key):
        return world.state(jax.random.uniform(key, (1,), world.start.dtype, -0.5, 0.5))

    def remember(self, world, key):
        return {"target": jax.random.normal(key, (), world.start.dtype), "where": jnp.zeros(1, world.start.dtype)}

    def after_step(self, world, step, memory):
        return {"where": step.readings["sensors"]["where"]}

    def reads(self):
        return ("sensors",)

    def observe(self, world, state, memory):
        return jnp.concatenate([state.q, state.v, memory["target"][None]])

    def reward(self, world, step, memory):
        error = step.after.q[0] - memory["target"]
        return -(error**2) - 0.1 * step.action[0] ** 2, {"error": error}

    def ended(self, world, state, memory):
        return jnp.abs(state.q[0]) > self.limit


@functools.cache
def env() -> Environment:
    return Environment(jaxdyn.load_world(SCENE), Reach(), substeps=3, scene=SCENE)


@functools.cache
def programs(length: int = 4):
    """Reset and step of a batch of episodes, compiled."""
    episodes = Episodes(env(), length)
    return jax.jit(jax.vmap(episodes.reset)), jax.jit(jax.vmap(episodes.step))


def shapes(state):
    return jax.tree.map(lambda x: (jnp.shape(x), x.dtype), state)


def test_steps_are_those_of_the_world_with_the_control_held():
    reset = jax.jit(env().reset)
    # Methods can be compiled within other transformations.
    one = jax.tree.map(lambda x: x[1], jax.jit(jax.vmap(reset))(jnp.stack([jax.random.key(2), jax.random.key(3)])))
    after = jax.jit(env().step)(one, jnp.array([0.5]))
    assert shapes(one) == shapes(after)
    state, control = one.data, jnp.array([3.0])
    for _ in range(3):
        last, state = state, env().world.step(state, control)
    np.testing.assert_allclose(after.data.q, state.q, rtol=1e-14)
    # Sensors are read at the start of the last time step.
    np.testing.assert_allclose(after.info["where"], last.q, rtol=1e-14)
    assert after.info["target"] == one.info["target"]
    assert (env().action_size, env().observation_size, float(env().dt)) == (1, 3, 0.03)
    assert "obs [3]" in repr(after)
    assert "1 of 3" in str(jax.tree.map(lambda x: jnp.stack([x] * 3), after).replace(done=jnp.array([1, 0, 0])))


def test_episodes_start_again_where_they_end_and_tell_ends_from_time_limits():
    reset, step = programs()
    states = reset(jax.random.split(jax.random.key(0), 20))
    # The second of twenty is about to end by the task.
    states = eqx.tree_at(lambda s: s.data.q, states, states.data.q.at[1].set(0.9999).at[2:].set(0.0))
    push = jnp.zeros((20, 1)) - 0.25
    states = eqx.tree_at(lambda s: s.data.v, states, states.data.v.at[1].set(2.0))
    now = step(states, push)
    done = np.zeros(20)
    done[1] = 1
    np.testing.assert_array_equal(now.done, done)
    np.testing.assert_array_equal(now.info["truncation"], 0)
    assert now.info["last_obs"][1, 0] > 1
    # The start is the one that the key of the episode draws, and others keep what they have.
    fresh = env().reset(jax.random.split(states.info["key"][1])[1])
    np.testing.assert_allclose(now.obs[1], fresh.obs, rtol=1e-14)
    np.testing.assert_allclose(now.data.q[1], fresh.data.q, rtol=1e-14)
    np.testing.assert_array_equal(now.obs[2:], now.info["last_obs"][2:])
    assert now.info["target"][1] == fresh.info["target"]
    for _ in range(3):
        before, now = now, step(now, push)
    # The first steps of the second episode do not reach its limit of time.
    np.testing.assert_array_equal(now.info["truncation"], 1 - done)
    np.testing.assert_array_equal(now.info["steps"], 3 * done)
    assert len(np.unique(now.data.q[2:])) == 18
    keys = jax.random.key_data(before.info["key"]) != jax.random.key_data(now.info["key"])
    np.testing.assert_array_equal(np.asarray(keys).any(axis=1), done == 0)


def test_episodes_of_one_element_are_those_of_a_batch():
    _, step = programs(2)
    episodes = Episodes(env(), 2)
    single = jax.jit(episodes.step)
    # Keys of the older kind are arrays of integers.
    states = jax.vmap(episodes.reset)(jax.random.split(jax.random.PRNGKey(1), 3))
    one = jax.tree.map(lambda x: x[2], states)
    for _ in range(3):
        states, one = step(states, jnp.full((3, 1), 0.2)), single(one, jnp.full(1, 0.2))
    np.testing.assert_allclose(one.obs, states.obs[2], rtol=1e-14)
    np.testing.assert_allclose(one.info["last_obs"], states.info["last_obs"][2], rtol=1e-14)


def test_derivatives_forward_and_reverse_agree_and_stop_where_episodes_end():
    keys, base = jax.random.split(jax.random.key(0), 2), env()

    def rewards(actions, mass):
        world = eqx.tree_at(lambda w: w.model.inertial_parameters, base.world, replace_fn=lambda x: mass * x)
        episodes = Episodes(Environment(world, base.task, substeps=3), 3)

        def body(states, action):
            states = jax.vmap(episodes.step)(states, action)
            return states, states.reward

        return jax.lax.scan(body, jax.vmap(episodes.reset)(keys), actions)[1]

    @jax.jit
    def derivatives(actions, mass, moved, weights):
        _, forward = jax.jvp(rewards, (actions, mass), moved)
        value, pull = jax.vjp(rewards, actions, mass)
        return value, forward, pull(weights)

    at, moved = (0.3 * jax.random.normal(jax.random.key(i), (5, 2, 1)) for i in range(2))
    one, weights = jnp.array(1.0), jax.random.normal(jax.random.key(2), (5, 2))
    _, forward, (by_action, by_mass) = derivatives(at, one, (moved, one), weights)
    np.testing.assert_allclose((forward * weights).sum(), (by_action * moved).sum() + by_mass, rtol=1e-12)
    step = 1e-5
    ends = [derivatives(at + x * moved, one + x, (moved, one), weights)[0] for x in (step, -step)]
    np.testing.assert_allclose(forward, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-8)
    # Episodes end after three steps: no action before counts for what follows.
    later = weights.at[:3].set(0)
    assert np.all(np.asarray(derivatives(at, one, (moved, one), later)[2][0])[:3] == 0)
    assert np.all(np.asarray(by_action)[:3] != 0)


def test_an_element_that_diverges_ends_and_does_not_spoil_the_gradient_of_others():
    # A velocity that no number holds after a step of a body with so little damping.
    states = jax.vmap(env().reset)(jax.random.split(jax.random.key(0), 2))
    wild = eqx.tree_at(lambda s: s.data.v, states, states.data.v.at[0].set(1e308))

    def total(actions, states):
        def body(states, action):
            states = jax.vmap(env().step)(states, action)
            return states, (states.reward, states.done, states.metrics["diverged"], states.data.q)

        return jax.lax.scan(body, states, actions)[1]

    actions = jnp.full((2, 2, 1), 0.3)
    reward, done, diverged, q = jax.jit(total)(actions, wild)
    np.testing.assert_array_equal(diverged[0], [1, 0])
    np.testing.assert_array_equal(done[0], [1, 0])
    assert reward[0, 0] == 0
    assert np.isfinite(q).all()
    for gradient in (jax.grad, jax.jacfwd):
        compiled = jax.jit(gradient(lambda actions, states: total(actions, states)[0].sum()))
        mixed, fine = compiled(actions, wild), compiled(actions, states)
        np.testing.assert_array_equal(mixed[:, 0], 0)
        np.testing.assert_allclose(mixed[:, 1], fine[:, 1], rtol=1e-12)
        assert np.abs(fine[:, 1]).min() > 0


def test_readings_in_batches_need_no_native_code():
    world = jaxdyn.load_world(SCENE.replace('damping="0.5"', 'damping="0.5" frictionloss="1"'))
    with jaxdyn.native.disabled():
        states = jax.vmap(world.state)(jnp.arange(3.0)[:, None])
        read = jax.vmap(lambda state: world.step_and_read(state, jnp.ones(1), names=("sensors", "actuator_torque"))[1])
        found = jax.jit(read)(states)
    np.testing.assert_allclose(found["sensors"]["where"][:, 0], [0, 1, 2])
    np.testing.assert_allclose(found["actuator_torque"], 1)


def test_randomized_worlds_share_what_is_not_drawn():
    episodes = Episodes(env(), 2)
    keys = jax.random.split(jax.random.key(0), 4)
    envs, axes = learn.randomized(episodes, {"body.mass": (0.5, 2.0), "actuator.gear": (0.9, 0.9)}, keys)
    mass = envs.unwrapped.world.model.inertial_parameters
    assert mass.shape == (4, 1, 10)
    assert mass[:, 0, 0].min() >= 1.0
    assert mass[:, 0, 0].max() <= 4.0
    assert len(np.unique(mass[:, 0, 0])) == 4
    assert envs.unwrapped.world.start.shape == (1,)
    reset = jax.vmap(lambda env, key: env.reset(key), in_axes=(axes, 0))
    step = jax.jit(jax.vmap(lambda env, state, action: env.step(state, action), in_axes=(axes, 0, 0)))
    states = eqx.tree_at(lambda s: s.data.q, reset(envs, keys), jnp.zeros((4, 1)))
    states = step(envs, states, jnp.ones((4, 1)))
    # 5 N by a gear of 0.9, the damping taken at the end of each step.
    v = 0.0
    for _ in range(3):
        v = (v + 0.01 * 4.5 / mass[:, 0, 0]) / (1 + 0.01 * 0.5 / mass[:, 0, 0])
    np.testing.assert_allclose(states.data.v[:, 0], v, rtol=1e-12)
    states = step(envs, states, jnp.ones((4, 1)))
    np.testing.assert_array_equal(states.info["truncation"], 1)
    assert len(np.unique(states.data.q)) == 4


def test_what_a_function_changes_in_all_worlds_is_not_lost():
    def drawn(world, key):
        lighter = learn.randomly_scaled(world, {"body.mass": (0.5, 1.0)}, key)
        return eqx.tree_at(lambda w: w.model.gravity, lighter, np.array([0.0, 0.0, -1.0]))

    envs, axes = learn.randomized(env(), drawn, jax.random.split(jax.random.key(0), 3))
    np.testing.assert_array_equal(envs.world.model.gravity, [0, 0, -1])
    assert axes.world.model.gravity is None
    # The function is called with a world that is not traced, wherever the environment is.
    drawing = learn.randomized(env(), drawn)
    starts = [jax.jit(lambda env, key: env.reset(key))(drawing, key(0)) for key in (jax.random.key, jax.random.PRNGKey)]
    for x, y in zip(*(jax.tree.leaves(start.info["randomized"]) for start in starts), strict=True):
        np.testing.assert_array_equal(x, y)


def test_each_episode_has_a_world_of_its_own():
    drawing = learn.randomized(env(), {"body.mass": (0.5, 2.0)})
    episodes = Episodes(drawing, 2)
    keys = jax.random.split(jax.random.key(0), 4)
    start = jax.vmap(episodes.reset)(keys)
    start = eqx.tree_at(lambda s: s.data.q, start, jnp.zeros((4, 1)))

    def masses(states):
        (found,) = (x for x in states.info["randomized"] if x.shape == (4, 1, 10))
        return np.asarray(found)[:, 0, 0]

    @jax.jit
    def moved(start, action):
        def position(action):
            first = jax.vmap(episodes.step)(start, action)
            return first.data.q.sum(), (first, jax.vmap(episodes.step)(first, action))

        return jax.grad(position, has_aux=True)(action)

    slope, (first, second) = moved(start, jnp.full((4, 1), 0.5))
    mass, v, x = masses(start), 0.0, 0.0
    for _ in range(3):
        v = (v + 0.01 * 3 / mass) / (1 + 0.01 * 0.5 / mass)
        x = x + 0.01 * v
    assert len(np.unique(mass)) == 4
    np.testing.assert_allclose(first.data.v[:, 0], v, rtol=1e-12)
    # -1 to 1 stand for -3 to 5 N, so that the force is 3 N and its slope 4 N.
    np.testing.assert_allclose(slope[:, 0], 4 / 3 * x, rtol=1e-9)
    np.testing.assert_array_equal(masses(first), mass)
    np.testing.assert_array_equal(second.info["truncation"], 1)
    assert not np.isin(masses(second), mass).any()
    assert drawing.unwrapped.world.model.mass[0] == 2.0
    assert all(isinstance(x, jax.Array | np.ndarray) for x in jax.tree.leaves(drawing.draws))
    traces = []

    @jax.jit
    def slopes(env, key):
        def drawn_mass(ranges):
            there = eqx.tree_at(lambda e: e.draws.ranges, env, ranges)
            (found,) = (x for x in there.reset(key).info["randomized"] if x.shape == (1, 10))
            return found[0, 0]

        traces.append(None)
        return jax.value_and_grad(drawn_mass)(env.draws.ranges)

    for env_of, (low, high) in (
        (drawing, (0.5, 2.0)),
        (learn.randomized(env(), {"body.mass": (0.8, 1.2)}), (0.8, 1.2)),
    ):
        value, slope = slopes(env_of, keys[0])
        share = (value / 2 - low) / (high - low)
        np.testing.assert_allclose(slope, [[2 * (1 - share), 2 * share]], rtol=1e-9)
    assert len(traces) == 1
    with pytest.raises(jaxdyn.ModelError, match="already"):
        learn.randomized(episodes, {"body.mass": (0.5, 2.0)})
    with pytest.raises(jaxdyn.ModelError, match=r"env\.unwrapped"):
        learn.return_gradient(drawing, lambda obs: jnp.zeros(1), jax.vmap(drawing.reset)(keys), 2)


def fitted(world, covariance) -> sysid.RolloutFit:
    """Return a fit of damping and mass with this covariance, as if there had been recordings."""
    p = sysid.Parametrization(world, sysid.Positive("damping"), sysid.InertiaScale())
    free, none = np.array([0.5, -0.5]), np.zeros(1)
    ended = {"status": jaxdyn.Status.CONVERGED, "message": "", "step_left": 0.0, "cost": 0.0, "iterations": 1}
    ended |= {"rounds": 1, "unsolved": 0, "position_noise": none, "velocity_noise": none, "zeros": none[None]}
    ended |= {"segment_residuals": none, "segment_recordings": none, "segment_times": none, "defects": none[None]}
    fit = {"robot": p.model(free), "before": world, "parametrization": p, "free": free, "covariance": covariance}
    return sysid.RolloutFit(**fit, clustered_covariance=covariance, **ended, rows=None, state=None)


def test_worlds_are_drawn_from_what_a_fit_knows():
    covariance = np.array([[0.04, 0.018], [0.018, 0.01]])
    fit, single = fitted(env().world, covariance), eqx.tree_at(lambda e: e.world, env(), env().world.astype("float32"))
    envs, axes = learn.randomized(single, fit, jax.random.split(jax.random.key(0), 2000))
    damping, mass = envs.world.parts.passive.damping[:, 0, 0], envs.world.model.mass[:, 0]
    logs = np.log(np.stack([damping, mass]) / np.array([[0.5 * np.exp(0.5)], [2 * np.exp(-0.5)]]))
    assert damping.dtype == jnp.float32
    # The standard errors of 2000 draws are 2 and 3 % of the standard deviations and variances.
    np.testing.assert_allclose(logs.mean(axis=1), 0, atol=0.02)
    np.testing.assert_allclose(np.cov(logs), covariance, rtol=0.1)
    assert axes.world.model.gravity is None
    assert axes.world.start is None
    np.testing.assert_allclose(learn.randomized(single, fit).unwrapped.world.model.mass, 2 * np.exp(-0.5), rtol=1e-6)
    with pytest.raises(jaxdyn.ModelError, match="do not bound"):
        learn.randomized(env(), fitted(env().world, np.diag([0.1, np.inf])))


def replaced(**methods):
    return type("Faulty", (Reach,), methods)()


FAULTS = {
    "Faulty.reward: the reward has the shape": {"reward": lambda self, world, step, memory: (step.after.q, {})},
    "the part 'x' has the shape": {"reward": lambda self, world, step, memory: (step.dt, {"x": step.after.q})},
    "Faulty.reward returns": {"reward": lambda self, world, step, memory: step.dt},
    "after_step: 'new' is new": {"after_step": lambda self, world, step, memory: {"new": step.dt}},
    "'target' changes its shape": {"after_step": lambda self, world, step, memory: {"target": step.after.q}},
    "Faulty.ended returns": {"ended": lambda self, world, state, memory: state.q > 0},
    "Faulty.remember returns": {"remember": lambda self, world, key: 3},
    "quantity of a step": {"reads": lambda self: ("sensor",)},
}


@pytest.mark.parametrize("words", FAULTS)
def test_faulty_tasks_are_told_when_they_are_traced(words):
    faulty = Environment(env().world, replaced(**FAULTS[words]))
    with pytest.raises(jaxdyn.JaxdynError, match=words):
        jax.eval_shape(lambda: faulty.step(faulty.reset(jax.random.key(0)), jnp.zeros(1)))


def test_wrong_arguments():
    world = env().world
    with pytest.raises(jaxdyn.ModelError, match="substeps"):
        Environment(world, Reach(), substeps=0)
    with pytest.raises(jaxdyn.ShapeError, match="task"):
        Environment(world, Reach)
    endless = jaxdyn.load_world(SCENE.replace('ctrllimited="true" ctrlrange="-3 5"', ""))
    with pytest.raises(jaxdyn.ModelError, match="push do not have"):
        Environment(endless, Reach())
    Environment(endless, replaced(control=lambda self, world, state, action: action))
    state = env().reset(jax.random.key(0))
    with pytest.raises(jaxdyn.ShapeError, match="vmap"):
        env().step(state, jnp.zeros((3, 1)))
    with pytest.raises(jaxdyn.ModelError, match="nonsense"):
        state.replace(nonsense=1)
    with pytest.raises(jaxdyn.ModelError, match="length"):
        Episodes(env(), 0)
    with pytest.raises(jaxdyn.UnknownNameError, match=r"body\.mass"):
        learn.randomly_scaled(world, {"body.mas": (1, 2)}, jax.random.key(0))
    with pytest.raises(jaxdyn.ModelError, match="range"):
        learn.randomly_scaled(world, {"body.mass": (2, 1)}, jax.random.key(0))
    with pytest.raises(jaxdyn.ModelError, match="no numbers"):
        learn.randomly_scaled(world, {"tendon.damping": (1, 2)}, jax.random.key(0))
