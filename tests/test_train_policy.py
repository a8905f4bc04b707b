"""The training of a policy lowers the cost, continues after an interruption and reports mistakes."""

import dataclasses
import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import _job_files, train_policy
from experiments._job_files import write_checkpoint
from jaxdyn import State
from jaxdyn.cli import read_config

# The motor can lift the rod, so a training that runs for half a second suffices to show that the policy learns.
SMALL = (
    *("--torque-limit", "8", "--duration", "2", "--timestep", "0.05", "--iterations", "60", "--batch", "32"),
    *("--width", "16", "--learning-rate", "0.01", "--checkpoint-every", "20"),
    *("--test-starts", "50", "--test-duration", "4", "--no-plot"),
)


def train(folder: Path, *more: str) -> int:
    return train_policy.main([*SMALL, "--results", str(folder), *more])


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return the folder of a training that ran without interruption."""
    folder = tmp_path_factory.mktemp("whole")
    assert train(folder) == 0
    return folder / "train_policy"


def content(folder: Path) -> dict[str, bytes]:
    return {x.name: x.read_bytes() for x in folder.iterdir() if x.suffix == ".npz"}


@pytest.mark.experiments
def test_training_lowers_the_cost_and_saves_the_policy(whole):
    out = json.loads((whole / "summary.json").read_text())
    assert out["cost"]["final"] < 0.6 * out["cost"]["initial"]
    assert out["success"]["initial"] == 0
    assert set(content(whole)) == {"policy.npz", "checkpoint.npz"}
    with np.load(whole / "checkpoint.npz") as file:
        assert file["costs"].shape == (60,)
        assert file["costs"][-10:].mean() < 0.8 * file["costs"][:10].mean()


@pytest.mark.experiments
def test_a_saved_policy_is_the_one_that_was_trained(whole):
    model, policy = train_policy.load_policy(whole)
    out = json.loads((whole / "summary.json").read_text())
    config = train_policy.Config(**out["config"])
    again = train_policy.evaluate(config, model, policy)
    assert again.cost == pytest.approx(out["cost"]["final"], rel=1e-6)
    assert again.motion.tau is not None
    assert float(jnp.abs(again.motion.tau).max()) <= 8.0
    state = State(jnp.zeros((3, 1), jnp.float32), jnp.zeros((3, 1), jnp.float32))
    _, torque = policy(None, state, 0.0)
    assert torque.shape == (3, 1)
    assert torque.dtype == jnp.float32


@pytest.mark.experiments
def test_an_interrupted_training_ends_with_the_same_bytes(whole, tmp_path, monkeypatch, capsys):
    written = []

    def stop_at_the_second(path, arrays, job):
        written.append(path.name)
        if written.count("checkpoint.npz") == 2:
            path.with_name(f".{path.stem}.123-0abc.partial.npz").write_bytes(b"half")
            raise KeyboardInterrupt
        write_checkpoint(path, arrays, job)

    monkeypatch.setattr(_job_files, "write_checkpoint", stop_at_the_second)
    assert train(tmp_path) == 130
    monkeypatch.undo()
    assert not (tmp_path / "train_policy" / "policy.npz").exists()
    assert train(tmp_path) == 0
    assert "continues after iteration 20" in capsys.readouterr().out
    assert content(tmp_path / "train_policy") == content(whole)


@pytest.mark.experiments
def test_a_finished_training_is_not_repeated(whole, capsys):
    before = content(whole)
    assert train(whole.parent) == 0
    printed = capsys.readouterr().out
    assert "continues after iteration 60" in printed
    assert "% of 50 random starts" in printed
    assert content(whole) == before


@pytest.mark.experiments
def test_another_configuration_is_refused(whole, capsys):
    assert train(whole.parent, "--learning-rate", "0.1") == 2
    assert "config.learning_rate was 0.01 and is 0.1" in capsys.readouterr().err


@pytest.mark.experiments
@pytest.mark.parametrize("damage", ["cut", "bit", "other"])
def test_a_damaged_checkpoint_is_set_aside(whole, tmp_path, damage, capsys):
    folder = tmp_path / "train_policy"
    folder.mkdir()
    for path in whole.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    checkpoint = folder / "checkpoint.npz"
    data = bytearray(checkpoint.read_bytes())
    with np.load(checkpoint) as file:
        numbers = data.find(file["costs"].tobytes())
    if damage == "other":
        np.savez(checkpoint, iteration=3, costs=np.zeros(3))
    else:
        data[numbers + 5] ^= 1
        checkpoint.write_bytes(data[: len(data) // 2] if damage == "cut" else data)
    damaged = checkpoint.read_bytes()
    assert train(tmp_path) == 0
    assert "checkpoint.npz: cannot be read" in capsys.readouterr().err
    after = content(folder)
    assert (folder / "checkpoint.npz.damaged").read_bytes() == damaged
    assert after == content(whole)


@pytest.mark.experiments
def test_the_plot(whole, tmp_path):
    model, policy = train_policy.load_policy(whole)
    config = train_policy.Config(**json.loads((whole / "summary.json").read_text())["config"])
    motion = train_policy.evaluate(config, model, policy).motion
    training = train_policy.initial_training(config)._replace(costs=np.ones(5))
    train_policy.draw(tmp_path / "swing-up.png", config, training, motion)
    assert (tmp_path / "swing-up.png").read_bytes().startswith(b"\x89PNG")


def test_success_is_upright_and_still():
    angle, speed = np.array([0.0, 0.05, 0.2, 0.05]), np.array([0.0, 0.05, 0.0, 0.5])
    nothing = train_policy.initial_training(read_config(train_policy.Config, train_policy.DEFAULT_CONFIG))
    test = train_policy.Test(0.0, nothing, angle, speed)
    np.testing.assert_array_equal(test.success, [True, True, False, False])
    assert test.success_rate == pytest.approx(1 / 3)


@pytest.mark.experiments
def test_the_gradient_of_the_roll_out_is_that_of_differences(whole):
    model, policy = train_policy.load_policy(whole)
    config = train_policy.Config(**json.loads((whole / "summary.json").read_text())["config"])
    model = model.astype(jnp.float64)
    start = State(jnp.array([[0.3]]), jnp.array([[0.1]]))
    bias = jnp.asarray(policy.network.layers[-1].bias, jnp.float64)

    @jax.jit
    def value(bias):
        changed = eqx.tree_at(lambda p: p.network.layers[-1].bias, policy, bias)
        changed = jax.tree.map(lambda x: x.astype(jnp.float64) if eqx.is_array(x) else x, changed)
        motor = train_policy.actuate(changed, model)
        motion = train_policy.rollout(model, start, motor, 0.05, steps=20, policy_state=motor.init(start))
        return train_policy.cost(config, motion)

    h = 1e-5
    slope = float(value(bias + h) - value(bias - h)) / (2 * h)
    assert float(jax.grad(value)(bias)[0]) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--torque-limit", "0"], "torque_limit is 0.0; a positive, finite number"),
        (["--duration", "0.01"], "shorter than a step"),
        (["--test-duration", "0.5"], "its last second is judged"),
        (["--seed", "-1"], "seed is -1"),
        (["nowhere.toml"], "no such file"),
    ],
)
def test_mistakes_are_named(tmp_path, capsys, arguments, message):
    assert train_policy.main([*arguments, "--results", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.experiments
def test_a_cost_that_is_not_finite_ends_the_training(tmp_path, monkeypatch, capsys):
    model = train_policy.pendulum
    monkeypatch.setattr(
        train_policy, "pendulum", lambda c: dataclasses.replace(model(c), armature=jnp.full(1, jnp.nan, jnp.float32))
    )
    assert train(tmp_path) == 2
    assert "the cost is not finite in iteration 0" in capsys.readouterr().err
    assert not (tmp_path / "train_policy" / "checkpoint.npz").exists()
