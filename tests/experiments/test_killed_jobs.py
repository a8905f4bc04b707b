"""Long jobs that are killed at random moments continue, and end with the results of a job that nobody disturbed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from tests.experiments.test_identify_double_pendulum import write_recordings

KILLS = 10


class Job(NamedTuple):
    """A long job in a small configuration."""

    arguments: tuple[str, ...]
    """Of `python -m experiments.<name>`, without `--results`."""
    results: Callable[[Path], Any]
    """What must be the same, from the folder of the results."""
    spell: float
    """Longest time from the first file that a run writes to its end, s. Ten of these are shorter than the job."""


def numbers(folder: Path) -> dict[str, bytes]:
    """The bytes of all archives, and of the manifest, which lists them."""
    kept = {x.name: x.read_bytes() for x in folder.iterdir() if x.suffix == ".npz" and not x.name.startswith(".")}
    return kept | {"manifest": (folder / "manifest.json").read_bytes()}


def without_seconds(content: Any) -> Any:
    """The content of a JSON file without the times that the work took, and without its place."""
    if not isinstance(content, dict):
        return content
    return {key: without_seconds(x) for key, x in content.items() if key not in ("seconds", "results")}


def summary(file: str) -> Callable[[Path], Any]:
    return lambda folder: without_seconds(json.loads((folder / file).read_text()))


JOBS = {
    "generate_dataset": Job(
        (
            *("--robot", "double_pendulum", "--population.payload-frame", "tip", "--no-plot", "--shards", "300"),
            *("--rollouts", "8", "--duration", "0.5", "--substeps", "1"),
        ),
        numbers,
        0.2,
    ),
    "identify_fleet": Job(
        (
            *("--robot", "pendulum", "--robots", "160", "--block", "4", "--chunk", "4"),
            *("--duration", "1", "--segment", "0.25"),
        ),
        numbers,
        0.2,
    ),
    "identify_double_pendulum": Job(
        (
            *("--rate", "100", "--segment", "0.1", "--horizon", "0.4", "--start-every", "0.1", "--calibrate", "0.6"),
            *("--max-iterations", "60", "--tolerance", "1e-12", "--no-plot", "--no-report"),
            *("--position-noise", "0.001", "--velocity-noise", "0.02", "--held-out", "each"),
        ),
        summary("summary.json"),
        1.0,
    ),
}


def start(name: str, results: Path, data: Path) -> subprocess.Popen:
    more = ("--recordings", str(data)) if name == "identify_double_pendulum" else ()
    command = [sys.executable, "-m", f"experiments.{name}", *JOBS[name].arguments, *more, "--results", str(results)]
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
    data = folder / "data"
    data.mkdir()
    write_recordings(data)
    whole = JOBS[name].results(finish(start(name, folder / "whole", data), folder / "whole"))
    rng, disturbed = random.Random(seed), folder / "disturbed"
    disturbed.mkdir()
    ends = [kill(start(name, disturbed, data), disturbed, rng, JOBS[name].spell) for _ in range(kills)]
    done = finish(start(name, disturbed, data), disturbed)
    assert JOBS[name].results(done) == whole
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
@pytest.mark.parametrize("name", ["generate_dataset", "identify_fleet"])
def test_ctrl_c_ends_a_job_within_two_seconds(name, tmp_path):
    """And what it had written is used by the next run."""
    rng, data = random.Random(1), tmp_path / "data"
    results = tmp_path / "results"
    results.mkdir()
    for _ in range(3):
        before = files(results)
        child = start(name, results, data)
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
