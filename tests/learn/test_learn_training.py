"""Policies are trained, continue after kills to the last bit, and are the same on several devices."""

import functools
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, ModelError, ShapeError
from jaxdyn.cli import main
from jaxdyn.learn import (
    AHAC,
    APG,
    SHAC,
    AbstractTask,
    Environment,
    Policy,
    environment,
    evaluate,
    load_policy,
    save_policy,
    train,
)
from jaxdyn.learn._critic_fit import RecentSteps, lambda_returns
from jaxdyn.learn._episodes import Episodes
from jaxdyn.learn._gradient_gate import gradient_gate
from jaxdyn.learn._networks import Critic, RunningNormalization
from jaxdyn.learn._policy_gradient import Steps, policy_gradient
from jaxdyn.learn._training_log import TrainingLog

ROOT = Path(__file__).parents[2]
SCENE = """<mujoco><option timestep="0.05"/><worldbody><body><joint name="x" type="slide" axis="1 0 0" damping="0.1"/>
<geom size="0.1" mass="1"/></body></worldbody>
<actuator><motor joint="x" ctrllimited="true" ctrlrange="-1 1"/></actuator></mujoco>"""
SMALL = {"actors": 16, "rollout": 8, "horizon": 4, "kept": 4, "policy_widths": (8,), "critic_widths": (8,)}
STEPS = 12800


class Reach(AbstractTask):
    """A mass on a rail is pulled to the middle; beyond `edge` an episode ends."""

    edge: float = 1.5

    def start(self, world, key):
        return world.state(jax.random.uniform(key, (1,), world.start.dtype, -1, 1))

    def observe(self, world, state, memory):
        return jnp.concatenate([state.q, state.v])

    def reward(self, world, step, memory):
        reward = -(step.after.q[0] ** 2) - 0.1 * step.after.v[0] ** 2
        return reward, {"distance": jnp.abs(step.after.q[0])}

    def ended(self, world, state, memory):
        return jnp.abs(state.q[0]) > self.edge


# Programs belong to an environment, so one of them serves all tests.
@functools.cache
def reach(dtype=jnp.float32) -> Environment:
    return Environment(jaxdyn.load_world(SCENE).astype(dtype), Reach())


def leaves(tree) -> list[np.ndarray]:
    def plain(x):
        return np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x)

    return [plain(x) for x in jax.tree.leaves(tree)]


def same(got, want) -> None:
    for x, y in zip(leaves(got), leaves(want), strict=True):
        np.testing.assert_array_equal(x, y)


def test_a_policy_is_one_of_one_element_and_its_file_has_all_of_it(tmp_path):
    policy = Policy(3, 2, widths=(8, 4), dtype=jnp.float32, key=jax.random.key(0))
    obs = np.array([0.5, -1.0, 2.0], np.float32)
    action = policy(obs)
    assert action.shape == (2,)
    assert action.dtype == jnp.float32
    assert np.abs(policy(obs, jax.random.key(1)) - action).min() > 1e-3
    np.testing.assert_array_equal(policy({"state": obs, "privileged_state": obs[:1]}), action)
    with pytest.raises(ShapeError, match=r"\[3\] is needed; jax.vmap"):
        policy(np.zeros((4, 3)))
    save_policy(tmp_path / "p.npz", policy)
    same(load_policy(tmp_path / "p.npz"), policy)
    data = bytearray((tmp_path / "p.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "p.npz").write_bytes(data)
    with pytest.raises(DataError, match="cannot be read"):
        load_policy(tmp_path / "p.npz")


def test_normalization_is_that_of_all_observations_together():
    x = np.random.default_rng(0).normal(3.0, 2.0, (60, 2))
    found = RunningNormalization.zeros(2, jnp.float64)
    for part in np.split(x, [10, 15]):
        found = found.seen(part.mean(0), part.var(0), len(part))
    np.testing.assert_allclose(found.mean, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(found.variance, x.var(0), rtol=1e-12)


def test_a_critic_keeps_its_values_when_it_is_rescaled():
    critic = Critic(2, widths=(4,), dtype=jnp.float64, key=jax.random.key(0))
    obs = np.array([0.3, 0.7])
    again = critic.rescaled(jnp.asarray(5.0), jnp.asarray(20.0))
    np.testing.assert_allclose(again(obs), critic(obs), rtol=1e-12)
    assert abs(again.normalized(obs) - critic.normalized(obs)) > 0.1


def test_the_gate_scales_bounds_and_measures_gradients():
    def gated(x, factor, limit, weight, probe):
        return jnp.sum(weight * gradient_gate(x, factor, limit, probe))

    slope = jax.jit(jax.grad(gated, (0, 4)))
    x, weight = np.zeros(2), np.array([3.0, 4.0])
    for factor, limit, want in ((1.0, 10.0, [3.0, 4.0]), (0.5, 10.0, [1.5, 2.0]), (1.0, 1.0, [0.6, 0.8])):
        gradient, norm = slope(x, factor, limit, weight, 0.0)
        np.testing.assert_allclose(gradient, want, rtol=1e-12)
        assert norm == pytest.approx(5.0)
    gradient, norm = slope(x, 1.0, 10.0, np.array([np.nan, 1.0]), 0.0)
    np.testing.assert_array_equal(gradient, 0.0)
    assert np.isnan(norm)


def test_lambda_returns_are_those_of_the_sums():
    rng = np.random.default_rng(1)
    reward, value = rng.normal(size=(2, 6))
    done = np.array([False, False, True, False, False, False])
    discount, trace = 0.9, 0.7
    want = np.zeros(6)
    for t in range(6):
        end = next((k for k in range(t, 6) if done[k]), 5)
        # The returns of n steps with the weights (1 - lambda) lambda^(n - 1), the last one with what is left of 1.
        sums = [
            sum(discount**k * reward[t + k] for k in range(n)) + discount**n * value[t + n - 1]
            for n in range(1, end - t + 2)
        ]
        weights = [(1 - trace) * trace**n for n in range(len(sums))]
        weights[-1] = trace ** (len(sums) - 1)
        want[t] = np.dot(weights, sums)
    np.testing.assert_allclose(lambda_returns(reward, value, done, discount, trace), want, rtol=1e-12)


def test_the_gradient_of_the_policy_is_that_of_the_rewards():
    """Without critics and without a discount it is the plain derivative of the mean reward, here by differences."""
    env = reach(jnp.float64)
    episodes = Episodes(env, 100)
    algorithm = APG(actors=3, rollout=6, horizon=6, discount_time=np.inf, policy_widths=(4,), minibatches=1)
    policy = Policy(2, 1, widths=(4,), dtype=jnp.float64, key=jax.random.key(0))
    start = jax.vmap(episodes.reset)(jax.random.split(jax.random.key(1), 3))
    keys = jax.vmap(lambda k: jax.random.split(k, 6))(jax.random.split(jax.random.key(2), 3))

    @jax.jit
    def found(policy):
        free = jnp.asarray(np.inf)
        horizon, trace = jnp.asarray(6.0), jnp.asarray(1.0)
        out = policy_gradient(episodes, algorithm, policy, (), start, keys, horizon, trace, free)
        return out.gradient, jnp.mean(out.steps.reward), out.norms

    gradient, _, norms = found(policy)
    assert norms.shape == (6, 3)
    h = 1e-5
    for place in (lambda p: p.network.layers[-1].bias, lambda p: p.log_std):
        up, down = (shifted(policy, place, step) for step in (h, -h))
        slope = (found(up)[1] - found(down)[1]) / (2 * h)
        assert -float(place(gradient)[0]) == pytest.approx(float(slope), rel=1e-6)


def shifted(policy, place, step):
    return eqx.tree_at(place, policy, place(policy) + step)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return a training of SHAC, and its folder."""
    folder = tmp_path_factory.mktemp("training") / "whole"
    # The mean of the last ten policies or so: there are a hundred in all.
    algorithm = SHAC(**SMALL, policy_rate=1e-2, critic_rate=1e-2, average=0.9)
    done = train(reach(), algorithm, steps=STEPS, folder=folder, episode_length=50, evaluations=4, progress=False)
    return done, folder, algorithm


def test_training_finds_the_middle_and_writes_what_it_found(whole):
    done, folder, _ = whole
    first, last = done.records[0], done.records[-1]
    # Doing nothing has a return of -50 / 3. With these few updates it reached -5.7.
    assert last["return"] > max(-8.0, first["return"])
    assert last["steps"] == STEPS
    assert last["falls"] == 0
    lines = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert lines == list(done.records)
    assert {"seconds", "gradient_norm", "agreement", "skipped", "horizon", "length"} <= set(lines[0])
    same(load_policy(folder / "policy.npz"), done.policy)
    same(load_policy(folder / "best.npz"), done.best)
    best = max(range(4), key=lambda i: done.records[i]["return"])
    judged = evaluate(reach(), done.best, jax.random.split(jax.random.key(0))[1], length=50)
    assert float(judged.returned.mean()) == pytest.approx(done.records[best]["return"], rel=1e-5)
    assert (folder / "curve.png").read_bytes().startswith(b"\x89PNG")
    again = evaluate(reach(), done.policy, jax.random.key(7), episodes=8, length=50)
    assert again.returned.shape == (8,)
    assert float(again.returned.mean()) > -8


def log_of(*intervals: tuple[float, float]) -> TrainingLog:
    """Return a log with an evaluation after each mean of growth and agreement, over a horizon of 32 steps."""
    log = TrainingLog()
    for growth, agreement in intervals:
        numbers = {"growth": growth, "agreement": agreement, "horizon": 32.0, "episodes": 0.0}
        log.add(numbers | {"episode_return_sum": 0.0})
        log.evaluated(0, {"return": 0.0})
        log.warn_of_noise(3.0)
    return log


def test_gradients_that_are_noise_are_told_once():
    with pytest.warns(jaxdyn.DivergenceWarning, match=r"gradients grow 56\.6 times .* Take horizon=9, ") as told:
        log_of((12.6, 0.057), (56.6, -0.005), (93.7, -0.06))
    assert [str(x.message) for x in told if "jaxdyn.learn.gradient_growth(" in str(x.message)] == [str(told[0].message)]
    with pytest.warns(jaxdyn.DivergenceWarning, match="Take horizon=1, "):
        log_of((math.inf, 0.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Those of the half cheetah: by the default settings, which learn, and noise without growth.
        log_of((2.23, 0.543), (2.14, 0.225), (2.5, 0.0763), (3.29, 0.0833), (3.0, 0.0))


@pytest.mark.slow
def test_gradients_of_the_half_cheetah_help_with_the_default_settings():
    env, options = environment("half_cheetah"), {"steps": 100 * 2048, "evaluations": 5, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("error", jaxdyn.DivergenceWarning)
        train(env, "shac", **options)
    with pytest.warns(jaxdyn.DivergenceWarning, match="gradient_growth"):
        train(env, SHAC(policy_lambda=1.0, lambda_rate=0.0), **options)


def test_an_interrupted_training_ends_with_the_same_bits(whole, tmp_path, monkeypatch):
    done, _, algorithm = whole
    from jaxdyn.learn import _training_files

    written, write = [], _training_files.write_tree

    def stop_at_the_third(path, tree, facts):
        written.append(path.name)
        if len(written) == 3:
            raise KeyboardInterrupt
        write(path, tree, facts)

    options = {"steps": STEPS, "folder": tmp_path / "t", "episode_length": 50, "evaluations": 4, "progress": False}
    monkeypatch.setattr(_training_files, "write_tree", stop_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        train(reach(), algorithm, **options)
    monkeypatch.undo()
    with pytest.raises(DataError, match="a training was begun here; continue it"):
        train(reach(), algorithm, **options)
    with pytest.raises(DataError, match=r"seed was 0 and is 1"):
        train(reach(), algorithm, seed=1, resume=True, **options)
    again = train(reach(), algorithm, resume=True, **options)
    same(again.state, done.state)
    same(again.policy, done.policy)
    same(again.best, done.best)
    timeless = [[{k: v for k, v in r.items() if k != "seconds"} for r in x.records] for x in (again, done)]
    assert timeless[0] == timeless[1]


def test_exploration_fades_and_the_mean_policy_is_returned(whole):
    _, _, algorithm = whole
    options = {"steps": STEPS // 10, "episode_length": 50, "evaluations": 10, "progress": False}
    last = train(reach(), eqx.tree_at(lambda x: x.average, algorithm, 0.0), **options)
    same(last.policy, last.state.policy)
    mean = train(reach(), eqx.tree_at(lambda x: x.average, algorithm, 0.99), **options)
    # The mean has no part in the training.
    same(mean.state.policy, last.state.policy)
    weights = [np.asarray(x.policy.network.layers[0].weight) for x in (last, mean)]
    assert 1e-4 < np.abs(weights[0] - weights[1]).max() < 0.1
    deviations = [record["deviation"] for record in last.records]
    assert deviations[-1] < 0.3 * deviations[0]


def test_lambda_falls_where_gradients_grow(whole):
    _, _, algorithm = whole
    options = {"steps": 512, "episode_length": 50, "evaluations": 1, "progress": False}
    for limit, rate, want in ((1e3, 1.0, 1.0), (1e-3, 1.0, 0.5), (1e-3, 0.0, 1.0)):
        settings = eqx.tree_at(lambda x: (x.growth_limit, x.lambda_rate), algorithm, (limit, rate))
        assert float(train(reach(), settings, **options).state.trace) == want


def test_rewards_are_discounted_by_time():
    # The steps of this environment last 0.05 s.
    episodes = Episodes(reach(), 50)
    np.testing.assert_allclose(SHAC(discount_time=2.5).discount(episodes), np.exp(-0.02), rtol=1e-6)
    assert float(SHAC(discount_time=np.inf).discount(episodes)) == 1


def test_critics_are_fitted_to_the_last_roll_outs():
    def steps(x):
        obs = jnp.full((3, 2, 4), x)
        return Steps(obs, obs + 1, obs[..., 0], obs[..., 0] > 1, obs[..., 0] > 2, obs[..., 0] > 3)

    none = jnp.zeros((2, 2, 3))
    recent = RecentSteps(jnp.zeros((2, 2, 3, 4)), jnp.zeros((2, 2, 3, 4)), none, none > 0, none > 0)
    for x, first, want in ((1.0, True, [1, 1]), (2.0, False, [1, 2]), (3.0, False, [2, 3])):
        recent = recent.with_steps(steps(x), jnp.asarray(first))
        np.testing.assert_array_equal(recent.reward[1, :, 2], want)
        np.testing.assert_array_equal(recent.seen[0, :, 1, 3] + 1, recent.last_seen[0, :, 1, 3])
        np.testing.assert_array_equal(recent.ended[0, :, 0], np.array(want) > 1)
        np.testing.assert_array_equal(recent.done[0, :, 0], np.array(want) > 2)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [AHAC(**SMALL), APG(**SMALL)], ids=["ahac", "apg"])
def test_variations_of_the_loop_train(algorithm):
    done = train(reach(), algorithm, steps=512, episode_length=50, evaluations=1, progress=False)
    last = done.records[-1]
    assert np.isfinite(last["return"])
    assert ("critic_loss" in last) == (algorithm.critics > 0)
    assert (float(done.state.horizon) != 4) == (algorithm.horizon_rate > 0)


def test_mistakes_are_named(tmp_path):
    env = reach()
    for algorithm, options, message in (
        ("ppo", {}, "algorithm"),
        ("shac", {"steps": 0}, "steps is 0"),
        ("shac", {"seed": -1}, "seed is -1"),
    ):
        with pytest.raises(ModelError, match=message):
            train(env, algorithm, **options)
    with pytest.raises(ModelError, match="3 minibatches cannot share a rollout of 32"):
        SHAC(minibatches=3)
    with pytest.raises(DataError, match="no such file"):
        load_policy(tmp_path / "nothing.npz")


def test_the_command_line_trains_continues_and_films(tmp_path, capsys):
    out, film = tmp_path / "out", tmp_path / "film.gif"
    small = ("actors=4", "rollout=4", "kept=2", "policy_widths=(4,)", "critic_widths=(4,)")
    command = [
        "train",
        "cartpole_swingup",
        "--steps",
        "32",
        "--out",
        str(out),
        "--evaluations",
        "1",
        "--settings",
        *small,
    ]
    assert main(command) == 0
    assert f"jaxdyn play {out}" in capsys.readouterr().out
    assert main(command) == 2
    assert "a training was begun here; continue it (--resume" in capsys.readouterr().err
    assert main([*command, "--resume"]) == 0
    assert main(["play", str(out), "--film", str(film), "--seconds", "0.2"]) == 0
    assert "0.20 s, return" in capsys.readouterr().out
    assert film.read_bytes().startswith(b"GIF")
    for arguments, message in (
        (["train", "antt"], "did you mean 'ant'"),
        (["train", "ant", "--settings", "actor=3"], "did you mean 'actors'"),
        (["train", "ant", "--settings", "actors=x"], "a number, True, False"),
        (["play", str(tmp_path / "nowhere")], "no such file"),
    ):
        assert main(arguments) == 2
        assert message in capsys.readouterr().err


PROGRAM = """
import sys
import jax
if sys.argv[2] != "-":
    jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(sys.argv[3]))
import jax.numpy as jnp
jax.config.update("jax_enable_x64", True)
from tests.learn.test_learn_training import SMALL, reach
from jaxdyn.learn import SHAC, train
updates = int(sys.argv[4])
done = train(reach(jnp.float64), SHAC(**SMALL), steps=128 * updates, folder=sys.argv[1], resume=True, episode_length=50,
             evaluations=1, checkpoint_seconds=0.0, progress=False)
print("passed", done.records[-1]["return"], jax.device_count())
"""


def start(folder: Path, devices: int, updates: int = 4, address: str = "-", process: int = 0) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0"
    paths = {"PYTHONPATH": str(ROOT), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    variables = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", **paths}
    command = [sys.executable, "-c", PROGRAM, str(folder), address, str(process), str(updates)]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen) -> str:
    try:
        out, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert "passed" in out, out[-3000:]
    return out


def weights(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "policy.npz") as archive:
        return {name: archive[name] for name in archive.files if name not in ("sha256", "facts")}


def close(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    for name, x in want.items():
        # Sums over the devices have another order. Four updates amplify its rounding.
        np.testing.assert_allclose(got[name], x, rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.slow
def test_eight_devices_train_the_policy_of_one(tmp_path):
    for devices in (1, 8):
        finish(start(tmp_path / str(devices), devices))
    close(weights(tmp_path / "8"), weights(tmp_path / "1"))


@pytest.mark.slow
def test_two_processes_train_the_policy_of_one(tmp_path):
    finish(start(tmp_path / "one", 4))
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        address = f"localhost:{probe.getsockname()[1]}"
    both = [start(tmp_path / "two", 2, 4, address, i) for i in range(2)]
    assert all("passed" in finish(process) for process in both)
    close(weights(tmp_path / "two"), weights(tmp_path / "one"))


@pytest.mark.slow
def test_ten_kills_change_no_bit(tmp_path):
    updates = 300
    finish(start(tmp_path / "whole", 1, updates))
    folder, rng, killed = tmp_path / "killed", random.Random(0), 0
    for _ in range(10):
        child, checkpoint = start(folder, 1, updates), folder / "checkpoint.npz"
        before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0
        began = time.monotonic()
        while child.poll() is None and (not checkpoint.exists() or checkpoint.stat().st_mtime_ns == before):
            assert time.monotonic() - began < 200
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, 0.15))
        child.send_signal(signal.SIGKILL)
        child.communicate()
        killed += child.returncode == -signal.SIGKILL
    assert killed == 10
    finish(start(folder, 1, updates))
    for name, x in weights(tmp_path / "whole").items():
        np.testing.assert_array_equal(weights(folder)[name], x)
    assert not [x.name for x in folder.iterdir() if ".partial" in x.name or ".damaged" in x.name]
