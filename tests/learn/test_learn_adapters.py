"""Environments in the training loops of Brax, Gymnasium and PyTorch."""

import functools
import importlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdyn import ModelError, ShapeError, learn
from tests.learn.learn_environments import Roll, rolling

ENV = rolling()
EPISODES = learn.Episodes(ENV, 14)


def alike(one, other, place=""):
    """Require that what Gymnasium's loops return is the same, dictionaries and arrays of objects included."""
    assert type(one) is type(other), place
    if isinstance(one, dict):
        assert one.keys() == other.keys(), place
        for name in one:
            alike(one[name], other[name], f"{place}/{name}")
    elif isinstance(one, np.ndarray) and one.dtype == object:
        for x, y in zip(one, other, strict=True):
            alike(x, y, place)
    elif one is not None:
        assert one.dtype == other.dtype, place
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12, err_msg=place)


def test_gymnasium_accepts_the_environment():
    pytest.importorskip("gymnasium")
    from gymnasium.utils.env_checker import check_env

    with warnings.catch_warnings():
        # Observations have no bounds, and an environment without a registered name cannot be made again.
        warnings.filterwarnings("ignore")
        check_env(learn.as_gymnasium(EPISODES))


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_vector_environment_is_single_environments_side_by_side(mode):
    vector = pytest.importorskip("gymnasium").vector
    ours = learn.as_gymnasium(EPISODES, 3, autoreset_mode=mode)
    theirs = vector.SyncVectorEnv([lambda: learn.as_gymnasium(EPISODES)] * 3, autoreset_mode=mode)
    assert ours.metadata["autoreset_mode"] == theirs.metadata["autoreset_mode"]
    assert ours.observation_space == theirs.observation_space
    assert ours.action_space == theirs.action_space
    alike(ours.reset(seed=5)[0], theirs.reset(seed=5)[0])
    random, ended = np.random.default_rng(0), np.zeros(2, int)
    for i in range(40):
        # The first arm is driven out of its range.
        action = np.vstack([np.ones(2), random.uniform(-1, 1, (2, 2))])
        one, other = ours.step(action), theirs.step(action)
        for x, y in zip(one, other, strict=True):
            alike(x, y, f"step {i}")
        ended += one[2].sum(), one[3].sum()
        mask = one[2] | one[3]
        if mode == "Disabled" and mask.any():
            again, expected = (x.reset(options={"reset_mask": mask.copy()}) for x in (ours, theirs))
            alike(again[0], expected[0])
            alike(again[1], expected[1])
    assert (ended > 0).all(), "the task ended some episodes, and the time limit others"


def test_gymnasium_starts_are_those_of_their_seeds():
    pytest.importorskip("gymnasium")
    env = learn.as_gymnasium(ENV, 3)
    first, again = env.reset(seed=3)[0], env.reset()[0]
    assert (first != again).any()
    np.testing.assert_array_equal(env.reset(seed=[3, 4, 5])[0], first)
    np.testing.assert_array_equal(env.reset()[0], again)
    mixed = env.reset(seed=[3, None, 5])[0]
    np.testing.assert_array_equal(mixed[[0, 2]], first[[0, 2]])
    assert (mixed[1] != first[1]).any()


def test_gymnasium_observations_may_be_dictionaries():
    pytest.importorskip("gymnasium")
    env = learn.as_gymnasium(learn.Episodes(rolling(jnp.float32, dictionary=True), 1), 2, autoreset_mode="SameStep")
    obs, _ = env.reset(seed=0)
    assert obs in env.observation_space
    obs, _, terminated, truncated, infos = env.step(np.zeros((2, 2), np.float32))
    assert obs in env.observation_space
    assert truncated.all()
    assert not terminated.any()
    assert infos["final_obs"][1] in env.single_observation_space
    assert infos["final_obs"][1]["state"].dtype == np.float32


def test_gymnasium_refuses_wrong_steps():
    error = pytest.importorskip("gymnasium").error
    env = learn.as_gymnasium(learn.Episodes(ENV, 1), 3, autoreset_mode="Disabled")
    with pytest.raises(error.ResetNeeded, match="reset before step"):
        env.step(np.zeros((3, 2)))
    env.reset(seed=0)
    with pytest.raises(ShapeError, match=r"\[3, 2\]"):
        env.step(np.zeros((3, 1)))
    env.step(np.zeros((3, 2)))
    with pytest.raises(error.ResetNeeded, match=r"\[0, 1, 2\] have ended"):
        env.step(np.zeros((3, 2)))
    with pytest.raises(ShapeError, match="reset_mask"):
        env.reset(options={"reset_mask": np.ones(2, bool)})
    with pytest.raises(ModelError, match="num_envs"):
        learn.as_gymnasium(ENV, 0)
    with pytest.raises(ModelError, match="autoreset_mode"):
        learn.as_gymnasium(ENV, 3, autoreset_mode="SomeStep")


def squared(obs, reward):
    return (reward + (obs**2).sum(-1)).sum()


@pytest.mark.parametrize("env", [ENV, learn.Episodes(ENV, 3)], ids=["environment", "episodes"])
def test_torch_has_the_gradients_of_jax(env):
    torch = pytest.importorskip("torch")
    view = learn.as_torch(env)
    start = view.reset(4, seed=1)
    actions = torch.tensor(np.random.default_rng(0).uniform(-1, 1, (5, 4, 2)), requires_grad=True)
    state, total = start, 0
    for action in actions:
        state = view.step(state, action)
        total = total + squared(state.obs, state.reward)
    (by_steps,) = torch.autograd.grad(total, actions)
    _, obs, reward, _ = view.rollout(start, actions)
    (by_rollout,) = torch.autograd.grad(squared(obs, reward), actions)

    def loss(actions):
        def step(state, action):
            state = jax.vmap(env.step)(state, action)
            return state, squared(state.obs, state.reward)

        first = jax.vmap(env.reset)(jax.random.split(jax.random.key(1), 4))
        return jax.lax.scan(step, first, actions)[1].sum()

    value, gradient = jax.jit(jax.value_and_grad(loss))(jnp.asarray(actions.detach().numpy()))
    # Both differentiate the same program. XLA orders sums differently in a scan and in single steps.
    scale = np.abs(gradient).max()
    np.testing.assert_allclose(total.item(), value, rtol=1e-12)
    for found in (by_steps, by_rollout):
        np.testing.assert_allclose(found.numpy(), gradient, rtol=0, atol=1e-12 * scale)


def test_torch_shares_memory_and_refuses_spoiled_derivatives():
    torch = pytest.importorskip("torch")
    view = learn.as_torch(ENV)
    state = view.reset(4)
    # JAX reads the tensor where it is, and PyTorch the array.
    assert jnp.from_dlpack(state.data.q).unsafe_buffer_pointer() == state.data.q.data_ptr()
    with torch.no_grad():
        after = view.step(state, torch.zeros(4, 2, dtype=torch.float64))
    assert not after.obs.requires_grad
    for spoil in ("action", "obs"):
        action = torch.zeros(4, 2, dtype=torch.float64, requires_grad=True) * 1
        after = view.step(state, action)
        {"action": action, "obs": after.obs}[spoil].add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            after.reward.sum().backward()
    with pytest.raises(ShapeError, match="float32"):
        view.step(state, torch.zeros(4, 2, dtype=torch.float32))
    with pytest.raises(ShapeError, match=r"\[4, 2\]"):
        view.step(state, torch.zeros(4, 1, dtype=torch.float64))


def replicated(tree, devices):
    """JAX's removed `device_put_replicated`, for Brax."""
    return jax.tree.map(lambda x: jnp.stack([x] * len(devices)), tree)


@pytest.fixture
def brax(monkeypatch):
    """Brax in single precision, with the function of JAX 0.9 that Brax 0.14 calls."""
    brax = pytest.importorskip("brax")
    monkeypatch.setattr(jax, "device_put_replicated", replicated, raising=False)
    jax.config.update("jax_enable_x64", False)
    yield brax
    jax.config.update("jax_enable_x64", True)


def randomized(world, rng):
    """Worlds with other gears of motors, and which axes they have."""
    envs, axes = learn.randomized(learn.Environment(world, Roll()), {"parts.actuators.gear": (0.5, 1.5)}, rng)
    return envs.unwrapped.world, axes.unwrapped.world


SMALL = {"num_timesteps": 64, "episode_length": 6, "num_envs": 4, "num_eval_envs": 4, "num_evals": 2, "batch_size": 4}
PPO = SMALL | {"num_minibatches": 2, "unroll_length": 4, "num_updates_per_batch": 1, "normalize_observations": True}


def ppo(env, **more):
    from brax.training.agents.ppo.networks import make_ppo_networks
    from brax.training.agents.ppo.train import train

    factory = functools.partial(make_ppo_networks, policy_hidden_layer_sizes=(8,), value_hidden_layer_sizes=(8,))
    return train(env, network_factory=factory, **PPO, **more)


@pytest.mark.parametrize("kind", ["environment", "dictionary", "randomized"])
def test_brax_trains_by_ppo(brax, kind):
    env, more = rolling(jnp.float32, dictionary=kind == "dictionary"), {}
    if kind == "randomized":
        env, more = learn.as_brax(env), {"randomization_fn": randomized}
    make_policy, params, metrics = ppo(env, **more)
    assert 1 <= metrics["eval/avg_episode_length"] <= 6
    assert np.isfinite(metrics["eval/episode_reward"])
    assert np.isfinite(metrics["eval/episode_speed"])
    if kind == "environment":
        policy = make_policy(params, deterministic=True)
        judged = learn.judge(lambda obs: policy(obs, None)[0], env, starts=2, steps=6)
        assert np.isfinite(judged.returns).all()


def test_randomized_environments_of_brax_differ(brax):
    from brax.envs.wrappers.training import DomainRandomizationVmapWrapper

    env = learn.as_brax(rolling(jnp.float32))
    keys = jax.random.split(jax.random.key(0), 3)
    wrapped = DomainRandomizationVmapWrapper(env, functools.partial(randomized, rng=keys))
    start = wrapped.reset(jnp.broadcast_to(jax.random.key_data(keys)[0], (3, 2)))
    after = wrapped.step(start, jnp.ones((3, 2), jnp.float32))
    speed = np.asarray(after.data.v[:, -1])
    assert len(set(np.asarray(start.data.v[:, -1]).tolist())) == 1
    assert np.ptp(speed) > 1e-3
    # The wrapper has put the world back.
    assert env.sys.start.ndim == 1
    assert env.dt == pytest.approx(0.008)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sac", "apg"])
def test_brax_trains_by_other_algorithms(brax, algorithm):
    train = importlib.import_module(f"brax.training.agents.{algorithm}.train").train
    env = learn.as_brax(rolling(jnp.float32))
    if algorithm == "sac":
        sizes = {"min_replay_size": 8, "max_replay_size": 64, "grad_updates_per_step": 1, "batch_size": 8}
        _, _, metrics = train(env, **SMALL | {"num_timesteps": 32} | sizes)
    else:
        sizes = {name: SMALL[name] for name in ("episode_length", "num_envs", "num_eval_envs", "num_evals")}
        _, _, metrics = train(env, policy_updates=2, horizon_length=3, **sizes)
    assert np.isfinite(metrics["eval/episode_reward"])
