"""The data set has the promised content; interruptions, changed settings and damage cannot corrupt it unnoticed."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from experiments import _job_files, generate_dataset
from experiments._job_files import write_npz
from experiments._population import Controls, draw_models, draw_motion
from jaxdyn import DataError, Model, cli, rnea
from jaxdyn.cli import read_config
from jaxdyn.sysid import is_physical

SMALL = (
    *("--robot", "double_pendulum", "--population.payload-frame", "tip", "--no-plot"),
    *("--shards", "3", "--rollouts", "4", "--duration", "0.2", "--substeps", "1"),
)


def generate(folder: Path, *more: str) -> int:
    return generate_dataset.main([*SMALL, "--results", str(folder), *more])


def content(folder: Path) -> dict[str, bytes]:
    return {x.name: x.read_bytes() for x in (folder / "dataset").iterdir() if not x.name.endswith(".lock")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """A data set that was generated without an interruption."""
    folder = tmp_path_factory.mktemp("whole")
    assert generate(folder) == 0
    return folder


def shards(folder: Path) -> list[dict[str, np.ndarray]]:
    return [dict(np.load(x)) for x in sorted((folder / "dataset").glob("shard-*.npz"))]


def test_shards_hold_what_is_said(whole):
    all_shards = shards(whole)
    assert len(all_shards) == 3
    for i, x in enumerate(all_shards):
        assert set(x) == set(generate_dataset.SHARD)
        assert x["q"].shape == x["v"].shape == (4, 21, 2)
        assert x["tau"].shape == (4, 20, 2)
        assert x["inertial_parameters"].shape == (4, 2, 10)
        assert x["shard"] == i
        np.testing.assert_allclose(x["t"], np.arange(21) / 100)
        assert np.all(np.abs(x["tau"]) <= 10.0)
        assert x["payload"].min() >= 0
        assert (
            9.78 <= np.linalg.norm(x["gravity"], axis=-1).min() <= np.linalg.norm(x["gravity"], axis=-1).max() <= 9.84
        )
    different = {x["q"].tobytes() for x in all_shards}
    assert len(different) == 3


def test_shards_obey_the_equations_of_motion(whole):
    (x, *_) = shards(whole)
    model = jaxdyn.samples.double_pendulum()
    leaves = ("inertial_parameters", "damping", "friction", "friction_velocity", "gravity")
    models = dataclasses.replace(model, **{k: jnp.asarray(x[k]) for k in leaves})
    # A sample is one semi-implicit Euler step, so the rate of v is the acceleration at the sample.
    a = np.diff(x["v"], axis=1) * 100
    for k in range(0, 20, 5):
        tau = rnea(models, x["q"][:, k], x["v"][:, k], a[:, k])
        np.testing.assert_allclose(tau, x["tau"][:, k], atol=1e-8)


@pytest.mark.slow
def test_inertias_are_physical_and_ranges_hold():
    config = read_config(generate_dataset.Config, generate_dataset.DEFAULT_CONFIG).population
    arm = jaxdyn.samples.arm()
    config = dataclasses.replace(config, deformation=0.3, shift=0.05)
    models, drawn = jax.jit(lambda key: draw_models(key, arm, config, arm.effort_limit, 50))(jax.random.key(0))
    assert np.all(is_physical(models.inertial_parameters))
    mass = np.asarray(models.mass - arm.mass)
    assert np.all(mass[:, :6] <= 0.25 * np.asarray(arm.mass)[:6] + 1e-12)
    tilt = np.arccos(-np.asarray(models.gravity)[:, 2] / np.linalg.norm(models.gravity, axis=-1))
    assert 0.04 < tilt.max() <= 0.05
    assert np.all(drawn["friction"] <= 0.02 * arm.effort_limit)
    # A thin rod, at the limit of physical inertias, stays valid. Models may have a batch axis where states have none.
    rod: Model = jaxdyn.samples.pendulum()
    config = dataclasses.replace(config, payload_frame="")
    rods, _ = draw_models(jax.random.key(1), rod, config, jnp.ones(1), 5)
    assert np.all(np.asarray(rods.mass) > 0)
    assert jaxdyn.aba(rods, jnp.ones(1), jnp.zeros(1), jnp.zeros(1)).shape == (5, 1)


def test_what_stopped_between_shards_goes_on_to_the_same_bytes(whole, tmp_path, monkeypatch, capsys):
    written = []

    def stop_at_the_second(path, arrays, **options):
        written.append(path.name)
        if written.count("shard-000001.npz") == 1:
            path.with_name(f".{path.stem}.123-0abc.partial.npz").write_bytes(b"half")
            raise KeyboardInterrupt
        write_npz(path, arrays, **options)

    monkeypatch.setattr(_job_files, "write_npz", stop_at_the_second)
    assert generate(tmp_path) == 130
    assert ".shard-000001.123-0abc.partial.npz" in content(tmp_path)
    monkeypatch.undo()
    assert generate(tmp_path) == 0
    assert "1 of 3 shards are there already" in capsys.readouterr().out
    assert content(tmp_path) == content(whole)


@pytest.mark.experiments
def test_what_was_killed_goes_on_to_the_same_bytes(tmp_path):
    """A process that SIGKILL ends at any moment within many shards resumes to the same bytes."""
    command = [sys.executable, "-m", "experiments.generate_dataset", *SMALL, "--results"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    child = subprocess.Popen(
        [*command, str(tmp_path), "--shards", "1000"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    folder, deadline = tmp_path / "dataset", time.monotonic() + 120
    while time.monotonic() < deadline and not (folder / "shard-000004.npz").exists():
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    before = {x.name: x.read_bytes() for x in folder.glob("shard-*.npz")}
    assert 4 < len(before) < 1000
    more = ("--shards", str(len(before) + 3))
    assert generate(tmp_path, *more) == 0
    after = content(tmp_path)
    assert {name: after[name] for name in before} == before
    again = tmp_path / "again"
    assert generate(again, *more) == 0
    assert content(again) == after


def test_another_configuration_is_refused(whole, capsys):
    before = content(whole)
    assert generate(whole, "--duration", "0.3", "--population.mass.high", "1.5") == 2
    error = capsys.readouterr().err
    assert "config.duration was 0.2 and is 0.3; config.population.mass.high was 1.25 and is 1.5" in error
    assert "another name" in error
    assert content(whole) == before
    # Only settings that change the content of the shards count.
    assert generate(whole, "--shards", "2") == 0
    assert content(whole) == before


@pytest.mark.parametrize("damage", ["cut", "bit", "gone"])
def test_a_damaged_shard_is_made_again(whole, damage, capsys):
    before = content(whole)
    path = whole / "dataset" / "shard-000001.npz"
    data = bytearray(path.read_bytes())
    if damage == "gone":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else data)
    damaged = path.read_bytes() if path.exists() else None
    assert generate(whole) == 0
    state = "missing" if damage == "gone" else "damaged"
    printed = capsys.readouterr().err
    assert f"shard-000001.npz is {state} and is made again" in printed
    after = content(whole)
    aside = path.with_name("shard-000001.npz.damaged")
    if damaged is not None:
        assert "it is kept as shard-000001.npz.damaged" in printed
        assert after.pop(aside.name) == damaged
        aside.unlink()
    assert after == before


def test_a_manifest_that_is_not_one_is_set_aside_and_nothing_is_lost(whole, tmp_path, capsys):
    shutil.copytree(whole / "dataset", tmp_path / "dataset")
    manifest = tmp_path / "dataset" / "manifest.json"
    manifest.write_text(manifest.read_text()[:-20])
    assert generate(tmp_path) == 0
    assert "manifest.json: cannot be read" in capsys.readouterr().err
    after = content(tmp_path)
    assert len(after.pop("manifest.json.damaged")) > 100
    # The shards were made again, and are the same, so none is set aside.
    assert after == content(whole)
    # With other settings they are not the same.
    manifest.write_text("[]")
    assert generate(tmp_path, "--seed", "7", "--shards", "1") == 0
    kept = (tmp_path / "dataset" / "shard-000000.npz.damaged").read_bytes()
    assert kept == (whole / "dataset" / "shard-000000.npz").read_bytes()


def test_processes_share_the_shards(whole, tmp_path, capsys):
    """Each begins with its share. What another one is making is left to it, until it is there or its maker is gone."""
    (tmp_path / "dataset").mkdir()
    order, made = [], threading.Event()

    def slow(path, arrays, **options):
        order.append(path.name)
        made.set()
        write_npz(path, arrays, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_job_files, "write_npz", slow)
        with _job_files.holding(tmp_path / "dataset" / "shard-000002.npz") as held:
            assert held
            other = threading.Thread(
                target=generate, args=(tmp_path, "--processes.count", "2", "--processes.id", "1"), daemon=True
            )
            other.start()
            assert made.wait(60)
            other.join(0.5)
            assert other.is_alive()
        other.join(60)
    # Its share is the second of three, and it takes the last one only when nobody holds it any more.
    assert order == ["shard-000001.npz", "shard-000000.npz", "shard-000002.npz"]
    assert "waiting for 1 shards of other processes" in capsys.readouterr().out
    assert content(tmp_path) == content(whole)


@pytest.mark.experiments
def test_sines_in_single_precision_and_the_plot(tmp_path):
    arguments = [x for x in SMALL if x != "--no-plot"]
    arguments += ["--precision", "float32", "--results", str(tmp_path), "--shards", "1"]
    assert generate_dataset.main([*arguments, "--controls.kind", "sines", "--controls.amplitude", "0.3"]) == 0
    (x,) = shards(tmp_path)
    assert {x[name].dtype for name in ("t", "q", "v", "tau", "gravity", "payload")} == {np.dtype(np.float32)}
    assert 0.5 < np.abs(x["tau"]).max() <= 3.0
    assert (tmp_path / "dataset" / "roll-outs.png").read_bytes().startswith(b"\x89PNG")


def test_noise_has_its_size_and_its_corner():
    model = jaxdyn.samples.double_pendulum()
    controls = Controls("noise", amplitude=0.2, frequency=2.0)
    state, torque = draw_motion(jax.random.key(0), model, controls, model.effort_limit, 200, 300, 0.01)
    torque = np.asarray(torque)
    assert torque.shape == (200, 300, 2)
    assert state.q.shape == (200, 2)
    assert torque.std() == pytest.approx(0.2 * 10, rel=0.05)
    neighbors = np.mean(torque[:, 1:] * torque[:, :-1]) / np.mean(torque**2)
    assert neighbors == pytest.approx(np.exp(-2 * np.pi * 2.0 * 0.01), rel=0.02)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--robot", "spider"], "robot is 'spider'; known: acrobot, arm"),
        (["--robot", "pendulum"], "joints without an effort limit: hinge; give controls.effort"),
        (["--population.payload-frame", "hand"], "no frame named 'hand'"),
        (["--population.mass.low", "2"], "population.mass is from 2 to 1.25"),
        (["--population.friction-velocity", "0"], "friction_velocity is 0"),
        (["--controls.harmonics", "0"], "controls.harmonics is 0"),
        (["--rate", "0"], "rate is 0.0; a positive, finite number"),
        (["--duration", "0.001"], "shorter than a sample"),
        (["--seed", "-1"], "seed is -1"),
        (["--processes.count", "2", "--processes.id", "2"], "0 <= id < count"),
        (["--processes.coordinator", "auto", "--processes.count", "2"], "leave processes.count"),
        (["--processes.coordinator", "here:1"], "needs processes.count and processes.id"),
    ],
)
def test_mistakes_are_named(tmp_path, capsys, arguments, message):
    assert generate(tmp_path, *arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_motion_that_diverges_is_not_written(tmp_path, monkeypatch, capsys):
    model = cli.load_robot("double_pendulum")
    broken = dataclasses.replace(model, armature=jnp.array([jnp.nan, 0.0]))
    monkeypatch.setattr(cli, "load_robot", lambda name: broken)
    assert generate(tmp_path) == 2
    assert "shard 0: roll-outs [0, 1, 2, 3] diverged; take more substeps" in capsys.readouterr().err
    assert not list(tmp_path.glob("dataset/*.npz"))


def test_archives_are_the_same_at_any_time(tmp_path, monkeypatch):
    arrays = {"a": np.arange(3.0), "b": np.float32(2)}
    write_npz(tmp_path / "one.npz", arrays)
    monkeypatch.setattr(time, "localtime", lambda *_: time.gmtime(0))
    write_npz(tmp_path / "two.npz", arrays)
    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    with np.load(tmp_path / "one.npz") as file:
        np.testing.assert_array_equal(file["a"], arrays["a"])


def test_the_manifest_describes_the_arrays(whole):
    manifest = json.loads((whole / "dataset" / "manifest.json").read_text())
    assert manifest["arrays"] == generate_dataset.SHARD
    assert list(manifest["shards"]) == [f"shard-{i:06d}.npz" for i in range(3)]


def test_a_range_that_is_no_table_is_named(tmp_path):
    path = tmp_path / "config.toml"
    text = generate_dataset.DEFAULT_CONFIG.read_text()
    path.write_text(text.replace("mass = { low = 0.8, high = 1.25 }", "mass = 0.8"))
    with pytest.raises(DataError, match=r"population\.mass is 0\.8, but a table"):
        read_config(generate_dataset.Config, path)
