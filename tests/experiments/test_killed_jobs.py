"""Long jobs that are killed at random moments continue, and end with the results of a job that nobody disturbed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

KILLS = 10


class Job(NamedTuple):
    """A long job in a small configuration."""

    arguments: tuple[str, ...]
    """Of `python -m experiments.<name>`, without `--results`."""
    spell: float
    """Longest time from the first file that a run writes to its end, s. Ten of these are shorter than the job."""


def numbers(folder: Path) -> dict[str, bytes]:
    """The bytes of all archives, and of the manifest, which lists them."""
    kept = {x.name: x.read_bytes() for x in folder.iterdir() if x.suffix == ".npz" and not x.name.startswith(".")}
    return kept | {"manifest": (folder / "manifest.json").read_bytes()}


JOBS = {
    "generate_dataset": Job(
        (
            *("--robot", "double_pendulum", "--population.payload-frame", "tip", "--no-plot", "--shards", "300"),
            *("--rollouts", "8", "--duration", "0.5", "--substeps", "1"),
        ),
        0.2,
    ),
    "identify_fleet": Job(
        (
            *("--robot", "pendulum", "--robots", "160", "--block", "4", "--chunk", "4"),
            *("--duration", "1", "--segment", "0.25"),
        ),
        0.2,
    ),
}


def start(name: str, results: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", f"experiments.{name}", *JOBS[name].arguments, "--results", str(results)]
    # Compiled programs are kept, so that the time goes to the work.
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def finish(child: subprocess.Popen, results: Path) -> Path:
    printed, _ = child.communicate(timeout=600)
    assert child.returncode == 0, printed[-3000:]
    (folder,) = results.iterdir()
    return folder


def files(folder: Path) -> dict[Path, int]:
    """The files below a folder that are whole, with their times. Files come and go meanwhile."""
    out = {}
    for path in folder.rglob("*"):
        if not path.name.startswith("."):
            try:
                out[path] = path.stat().st_mtime_ns
            except FileNotFoundError:
                continue
    return out


def kill(child: subprocess.Popen, results: Path, rng: random.Random, spell: float) -> str:
    """Kill a job at a random moment: three in ten anywhere in its first seconds, the others in the midst of its work.
    Returns what it was killed after."""
    before, began = files(results), time.monotonic()
    anywhere = rng.uniform(0.0, 8.0) if rng.random() < 0.3 else np.inf
    while child.poll() is None and time.monotonic() - began < min(anywhere, 300.0) and files(results) == before:
        time.sleep(0.005)
    if anywhere == np.inf:
        time.sleep(rng.uniform(0.0, spell))
    new = len(set(files(results).items()) - set(before.items()))
    child.send_signal(signal.SIGKILL)
    child.communicate()
    state = "killed" if child.returncode == -signal.SIGKILL else "ended before"
    return f"{state} after {time.monotonic() - began:.1f} s with {new} new files"


def killed_and_resumed(name: str, folder: Path, kills: int, seed: int) -> list[str]:
    """Run a job without a disturbance and with kills, compare the results, and return how the kills went."""
    whole = numbers(finish(start(name, folder / "whole"), folder / "whole"))
    rng, disturbed = random.Random(seed), folder / "disturbed"
    disturbed.mkdir()
    ends = [kill(start(name, disturbed), disturbed, rng, JOBS[name].spell) for _ in range(kills)]
    done = finish(start(name, disturbed), disturbed)
    assert numbers(done) == whole
    # Nothing is left of the killed processes, and nothing was damaged.
    rest = [x.name for x in done.rglob("*") if ".partial" in x.name or ".damaged" in x.name]
    assert not rest
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_ten_kills_change_no_bit(name, tmp_path, capsys):
    ends = killed_and_resumed(name, tmp_path, KILLS, seed=0)
    with capsys.disabled():
        print(f"\n{name}", *ends, sep="\n  ")
    # The job is long enough for the kills to hit it.
    assert sum(x.startswith("killed") for x in ends) == KILLS


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_ctrl_c_ends_a_job_within_two_seconds(name, tmp_path):
    """And what it had written is used by the next run."""
    rng, results = random.Random(1), tmp_path / "results"
    results.mkdir()
    for _ in range(3):
        before = files(results)
        child = start(name, results)
        while files(results) == before:
            assert child.poll() is None
            time.sleep(0.005)
        time.sleep(rng.uniform(0.0, JOBS[name].spell))
        kept = set(files(results))
        began = time.monotonic()
        child.send_signal(signal.SIGINT)
        printed, _ = child.communicate(timeout=60)
        assert time.monotonic() - began < 2.0
        assert child.returncode == 130, printed
        assert "interrupted" in printed
        assert kept <= set(files(results))
