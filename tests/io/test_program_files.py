"""Files of programs: locks, durable writes, and damage, which is named and set aside and never ends in a traceback."""

import contextlib
import errno
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxdyn
from experiments import _job_files
from experiments._resuming import Pieces
from jaxdyn import DataError, cli, samples, viz
from jaxdyn.sysid import (
    Parametrization,
    Positive,
    Recording,
    RolloutFitOptions,
    ShootingState,
    fit_rollouts,
)
from tests.mutations import mutated

ARRAYS = {"a": np.arange(6.0).reshape(2, 3), "n": np.int64(3), "text": np.array("words"), "none": np.zeros((0, 2))}


def python(code: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_killed_process_holds_nothing_and_leaves_nothing(tmp_path):
    code = f"""
import pathlib, time
from jaxdyn import cli
def forever(path):
    path.write_text("half")
    print("writing", flush=True)
    time.sleep(60)
with cli.alone_in(pathlib.Path({str(tmp_path)!r})):
    cli.write_durably(pathlib.Path({str(tmp_path)!r}) / "x.json", forever)
"""
    child = python(code)
    assert child.stdout.readline() == "writing\n"
    with pytest.raises(DataError, match=rf"process {child.pid} on {socket.gethostname()}, since 20"):
        cli.alone_in(tmp_path).__enter__()
    child.send_signal(signal.SIGKILL)
    child.communicate()
    assert any(".partial" in x.name for x in tmp_path.iterdir())
    with cli.alone_in(tmp_path):
        assert {x.name for x in tmp_path.iterdir()} == {".lock", ".lock-holder.json"}
    assert {x.name for x in tmp_path.iterdir()} == {".lock"}


def test_processes_that_write_one_file_at_a_time_do_not_disturb_each_other(tmp_path):
    """Each sees the file as a whole, its own or the other's, and no temporary name is used twice."""
    path, seen = tmp_path / "x.json", []

    def write(k: int) -> None:
        for _ in range(20):
            cli.write_durably(path, lambda temporary: (seen.append(temporary), temporary.write_text(str(k) * 999)))
            assert path.read_text() in {str(j) * 999 for j in range(3)}

    threads = [threading.Thread(target=write, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == len(seen) == 60
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("code", "advice"), [("ENOSPC", "free some space"), ("EDQUOT", "quota"), ("EROFS", "can only be read")]
)
def test_a_full_disk_is_told_with_advice(code, advice, tmp_path, monkeypatch, capsys):
    number = getattr(errno, code)

    def fail(descriptor):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", fail)
    model, page = samples.pendulum(), viz.Viewer(samples.pendulum(), port=8300)
    writers = {
        "a.npz": lambda path: jaxdyn.save_model(path, model),
        "a.json": lambda path: cli.write_json(path, {}),
        "a.png": lambda path: viz.save_png(path, model, width=32, height=24),
        "a.gif": lambda path: viz.save_video(path, model, [0.0, 0.1], [[0.0], [0.1]], width=32, height=24),
        "a.html": page.save_html,
    }
    with page:
        for name, write in writers.items():
            path = tmp_path / name
            path.write_text("before")
            with pytest.raises((OSError, jaxdyn.RobotFileError), match=advice) as caught:
                write(path)
            assert name in str(caught.value)
            assert path.read_text() == "before"
    assert len(list(tmp_path.iterdir())) == len(writers)
    # Programs say it of folders that they cannot make, too.
    assert cli.exit_code(lambda: fail(0)) == cli.MISTAKE
    assert advice in capsys.readouterr().err


def test_one_file_is_held_by_one(tmp_path):
    path = tmp_path / "x.npz"
    (tmp_path / ".x.77-0abc.partial.npz").write_bytes(b"half")
    (tmp_path / ".x.y.77-0abc.partial.npz").write_bytes(b"of another file")
    with _job_files.holding(path, forget=True) as first, _job_files.holding(path) as second:
        assert (first, second) == (True, False)
    assert {x.name for x in tmp_path.iterdir()} == {".x.y.77-0abc.partial.npz"}


def test_what_is_set_aside_replaces_nothing(tmp_path):
    path = tmp_path / "x.npz"
    for k in range(3):
        path.write_text(str(k))
        with pytest.warns(UserWarning, match=r"x\.npz: torn; it is kept as x\.npz\.damaged"):
            cli.set_aside(path, "torn")
    assert [(tmp_path / f"x.npz.damaged{end}").read_text() for end in ("", "-2", "-3")] == ["0", "1", "2"]


def test_a_file_that_may_not_be_read_is_left_alone(tmp_path, monkeypatch):
    path = tmp_path / "x.npz"
    _job_files.write_npz(path, ARRAYS)

    def forbidden(*_, **__):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(np, "load", forbidden)
    with pytest.raises(PermissionError):
        _job_files.read_npz(path)
    assert path.exists()


@contextlib.contextmanager
def any_warning():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield seen


class Readers:
    """The readers of a job's files, each with an undamaged file: name, content, and a function that reads the file with
    this content and returns bytes that stand for the outcome."""

    def __init__(self, folder: Path):
        self.folder = folder

        def made() -> bytes:
            pieces = Pieces(folder, "pieces", ["a.npz", "b.npz"], {"seed": 1}, "why")
            pieces.make(pieces.check(), lambda i: {"x": np.full(3, i)}, lambda arrays: "")
            return b"".join((folder / name).read_bytes() for name in ("a.npz", "b.npz"))

        self.all = {"manifest.json": made, "b.npz": made}
        made()
        self.content = {name: (folder / name).read_bytes() for name in self.all}
        self.expected = {name: read() for name, read in self.all.items()}

    def check(self, name: str, damaged: bytes) -> str:
        """Read the damaged file, and return how that ended. Nothing else than a warning, an error of the library, or
        the undamaged content may come of it, and a file set aside keeps its bytes."""
        path = self.folder / name
        path.write_bytes(damaged)
        try:
            with any_warning() as seen:
                result = self.all[name]()
        except DataError as error:
            return "refused" if path.name in str(error) else f"{path.name} is not named: {error}"
        finally:
            path.unlink(missing_ok=True)
            path.write_bytes(self.content[name])
        aside = list(path.parent.glob("*.damaged*"))
        assert len(aside) <= 1
        for x in aside:
            assert x.read_bytes() == damaged
            assert any(path.name in str(w.message) and x.name in str(w.message) for w in seen)
            x.unlink()
        assert result == self.expected[name]
        return "set aside" if aside else "as before"


def flat(tree) -> bytes | None:
    """Return the numbers of a pytree as bytes."""
    return None if tree is None else b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(tree) if np.ndim(x) >= 0)


@pytest.fixture(scope="module")
def readers(tmp_path_factory) -> Readers:
    return Readers(tmp_path_factory.mktemp("files"))


def outcomes(readers: Readers, count: int, seed: int) -> dict[str, dict[str, int]]:
    """Damage all files, `count` times in all, and count how reading them ends."""
    rng, out = random.Random(seed), {name: {} for name in readers.all}
    for k in range(count):
        name = list(readers.all)[k % len(readers.all)]
        began = time.monotonic()
        end = readers.check(name, mutated(readers.content[name], rng))
        assert time.monotonic() - began < 2.0
        out[name][end] = out[name].get(end, 0) + 1
    return out


def test_damaged_files_are_set_aside(readers):
    ends = outcomes(readers, 72, 0)
    for name in readers.all:
        # Most damage changes the content; what is not part of it, such as spaces, may change.
        assert ends[name].get("set aside", 0) > 20, ends[name]
        # An earlier beginning without a checksum is compared with the present one.
        refused = {"refused"} if name == "manifest.json" else set()
        assert set(ends[name]) <= {"set aside", "as before"} | refused


@pytest.mark.slow
def test_thousands_of_damaged_files(readers, capsys):
    ends = outcomes(readers, 6000, 1)
    with capsys.disabled():
        print(json.dumps(ends, indent=1))


@pytest.mark.slow
def test_states_of_fits_from_wrong_arrays_are_refused():
    """Arrays that are missing, of other shapes and types, or not finite."""
    model = jaxdyn.samples.pendulum().with_joint_friction(0.1, 0.1, 0.1)
    t = np.arange(40) / 20
    recording = Recording(t, np.sin(t)[:, None], np.cos(t)[:, None], None, np.zeros((40, 1)))
    fit = fit_rollouts(
        Parametrization(model, Positive("damping")),
        recording,
        segment=0.5,
        position_noise=0.01,
        velocity_noise=0.01,
        options=RolloutFitOptions(max_iterations=1),
    )
    require_refusals(fit.state, ShootingState)


def require_refusals(state, kind) -> None:
    rng = random.Random(0)
    arrays = {name: np.asarray(x) for name, x in state.arrays().items()}
    assert flat(kind.from_arrays(arrays)) == flat(state)
    for name in arrays:
        with pytest.raises(DataError, match="not the state of a fit"):
            kind.from_arrays({k: x for k, x in arrays.items() if k != name})
    for name, x in arrays.items():
        not_finite = [x * np.nan] if x.size else []
        for y in (x.astype(object), x.astype(complex), np.array("text"), x[None], *not_finite):
            with pytest.raises(DataError, match="not the state of a fit"):
                kind.from_arrays({**arrays, name: y})
    for _ in range(100):
        damaged = dict(arrays)
        for name in rng.sample(sorted(arrays), 2):
            data = np.frombuffer(mutated(arrays[name].tobytes(), rng)[: arrays[name].nbytes], np.uint8)
            if data.size % arrays[name].dtype.itemsize == 0:
                damaged[name] = data.view(arrays[name].dtype)
        with contextlib.suppress(DataError):
            kind.from_arrays(damaged)


def test_ctrl_c_ends_a_program_within_two_seconds_of_compiled_code():
    """The call neither returns nor notices signals, as a compilation does."""
    code = """
import hashlib, signal, sys
# A job in the background may have been started with interruptions ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv[0] = "jaxdyn"
from jaxdyn.cli import exit_code
def work():
    print("working", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
sys.exit(exit_code(work))
"""
    child = python(code)
    assert child.stdout.readline() == "working\n"
    time.sleep(0.2)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    try:
        _, printed = child.communicate(timeout=20)
    finally:
        child.kill()
    assert time.monotonic() - began < 2.0
    assert child.returncode == 130
    assert "interrupted" in printed


def test_ctrl_c_leaves_a_process_that_only_calls_a_program(monkeypatch):
    """A test or a notebook goes on."""
    monkeypatch.setattr(os, "_exit", lambda code: pytest.fail("the process was ended"))

    def interrupted():
        raise KeyboardInterrupt

    assert cli.exit_code(interrupted) == 130


@pytest.mark.slow
def test_importing_computes_nothing():
    """Processes must be connected before the first computation."""
    code = """
import jaxdyn, jaxdyn.sysid, jaxdyn.simulate, jaxdyn.trajopt, jaxdyn.viz, jaxdyn.samples
import experiments.generate_dataset, experiments.identify_fleet
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized())
"""
    printed, errors = python(code).communicate()
    assert printed == "False\n", errors
