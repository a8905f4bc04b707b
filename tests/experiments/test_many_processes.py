"""Jobs that several processes share: each piece is made once, by whichever process, and any process may be killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

SHARDS = 40
JOBS = {
    "generate_dataset": (
        *("--robot", "double_pendulum", "--population.payload-frame", "tip", "--no-plot", "--shards", str(SHARDS)),
        *("--rollouts", "1000", "--duration", "1", "--substeps", "1"),
    ),
    "identify_fleet": (
        *("--robot", "pendulum", "--robots", "160", "--block", "4", "--chunk", "4"),
        *("--duration", "1", "--segment", "0.25"),
    ),
}


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def start(name: str, results: Path, *more: str) -> subprocess.Popen:
    command = [sys.executable, "-m", f"experiments.{name}", *JOBS[name], "--results", str(results), *more]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)


def printed(child: subprocess.Popen) -> str:
    out, _ = child.communicate(timeout=280)
    assert child.returncode == 0, out
    return out


def content(results: Path) -> dict[str, bytes]:
    (folder,) = results.iterdir()
    files = [x for x in folder.iterdir() if not x.name.endswith(".lock") and x.name != "summary.json"]
    return {x.name: x.read_bytes() for x in files}


def pieces(results: Path) -> int:
    return len(list(results.glob("*/[sr]*-*.npz")))


def made(out: str) -> int:
    found = re.search(r"(\d+) of \d+ \w+ made here", out)
    return int(found[1]) if found else 0


def processes(k: int, coordinator: str = "") -> tuple[str, ...]:
    connected = ("--processes.coordinator", coordinator) if coordinator else ()
    return ("--processes.count", "2", "--processes.id", str(k), *connected)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("connected", [False, True], ids=["unconnected", "connected"])
def test_two_processes_make_each_piece_once(name, connected, tmp_path):
    """Also where `jax.distributed` connects them: the same bytes as by one process."""
    address = f"127.0.0.1:{free_port()}" if connected else ""
    outs = [printed(child) for child in [start(name, tmp_path / "two", *processes(k, address)) for k in range(2)]]
    printed(start(name, tmp_path / "one"))
    assert content(tmp_path / "two") == content(tmp_path / "one")
    counts = [made(out) for out in outs]
    assert sum(counts) == pieces(tmp_path / "two") == SHARDS
    assert min(counts) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "connected"), [(0, False), (1, False), (1, True)], ids=["first", "second", "connected"]
)
def test_a_killed_process_is_started_again(victim, connected, tmp_path):
    """The other one goes on meanwhile."""
    name, results = "generate_dataset", tmp_path / "two"
    address = f"127.0.0.1:{free_port()}" if connected else ""
    children = [start(name, results, *processes(k, address)) for k in range(2)]
    while pieces(results) < 5:
        assert all(child.poll() is None for child in children)
        time.sleep(0.01)
    children[victim].send_signal(signal.SIGKILL)
    children[victim].communicate()
    assert pieces(results) < SHARDS
    children[victim] = start(name, results, *processes(victim, address))
    for child in children:
        printed(child)
    printed(start(name, tmp_path / "one"))
    assert content(results) == content(tmp_path / "one")


FLEET = """
import json, sys
import jax
jax.config.update("jax_enable_x64", True)
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
import numpy as np
import jaxdyn
from jaxdyn.sysid import Parametrization, Positive, RolloutFitOptions, fit_fleet
model = jaxdyn.samples.pendulum().with_joint_friction(0.1, 0.1, 0.1)
p, rng, t = Parametrization(model, Positive("damping")), np.random.default_rng(0), np.arange(20) / 20
q = np.sin(t)[:, None] + 0.01 * rng.standard_normal((5, 20, 1))
v, tau = np.cos(t)[:, None] + 0 * q, 0 * q
noise = {"segment": 0.25, "position_noise": 0.01, "velocity_noise": 0.1}
options = {"options": RolloutFitOptions(max_iterations=5), "chunk": 2}
all_robots = fit_fleet(p, q, v, tau, 0.05, **noise, **options)
alone = fit_fleet(p, q, v, tau, 0.05, **noise, **options, share=False)
off = max(float(np.abs(a - b).max()) for a, b in zip(all_robots[1:], alone[1:]))
out = {"off": off, "robots": len(all_robots.free), "types": [str(x.dtype) for x in all_robots[1:]],
       "damping": np.asarray(all_robots.robot.damping).tolist(), "alone": np.asarray(alone.robot.damping).tolist()}
try:
    fit_fleet(p, q + jax.process_index(), v, tau, 0.05, **noise, **options)
except jaxdyn.DataError as error:
    out["error"] = str(error)
print(json.dumps(out))
"""


@pytest.mark.slow
def test_two_processes_share_a_fleet():
    """Every process returns the fits of all robots, those of one process to rounding."""
    address = f"127.0.0.1:{free_port()}"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", FLEET, address, str(k)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )
        for k in range(2)
    ]
    for child in children:
        out, errors = child.communicate(timeout=280)
        assert child.returncode == 0, errors
        result = json.loads(out.splitlines()[-1])
        assert result["robots"] == 5
        assert result["types"] == ["float64", "float64", "int32", "int32"]
        assert result["off"] < 1e-9
        assert np.allclose(result["damping"], result["alone"], rtol=1e-9)
        assert "different recordings" in result["error"]
