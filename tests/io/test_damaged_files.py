"""Damaged files of every format are read, or refused by errors of the library, in a short time.

Nothing else may come out: no exception of another library, no warning of NumPy, no NaN in a model.
"""

import dataclasses
import io
import math
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxdyn import DataError, JaxdynError, Model, PhysicalityWarning
from jaxdyn.cli import IdentifyConfig, read_config
from jaxdyn.io import RobotFileWarning, left_out, load_mjcf, load_mjcf_actuators, load_urdf
from jaxdyn.model import LEAVES
from jaxdyn.sysid import Recording, load_csv, load_npz
from tests.io.test_urdf_fuzz import FULL
from tests.mutations import mutated, patience
from tests.robots import robot_path

SLOWEST = 2.0
"""The longest time that a file may take, s of the processor: other programs may be at work."""

MJCF = """<mujoco model="r"><compiler angle="degree"/><option timestep="0.002" gravity="0 0 -9.81"/>
  <default><joint armature=".1" damping=".3"/><geom density="500"/>
    <default class="soft"><joint stiffness="3" springref="30"/></default></default>
  <asset><mesh name="wedge" vertex="0 0 0  .4 0 0  0 .3 0  0 0 .5"/><material name="gray" rgba=".5 .5 .5 1"/></asset>
  <worldbody><geom name="floor" type="plane" size="1 1 .1"/><light pos="0 0 3"/><camera name="eye" pos="0 0 2"/>
    <body name="base" pos="1 2 3" euler="10 20 30"><freejoint name="root"/>
      <geom type="box" size=".1 .2 .3" pos=".1 .02 -.3" mass="1.5"/>
      <body name="arm" pos=".3 0 0" quat=".6 .5 .4 .3"><joint name="shoulder" type="ball" range="0 90"
          limited="false"/><inertial pos=".1 0 .2" mass=".7" fullinertia=".02 .03 .04 .001 .002 -.003"/>
        <body name="hand" pos="0 .2 0" childclass="soft"><joint name="elbow" axis="0 1 0" range="-90 90" ref="15"
            frictionloss=".1"/><geom type="capsule" fromto="0 0 0 .1 .2 .4" size=".05"/><site name="tip" pos="0 0 1"/>
          <body name="finger"><joint name="slide" type="slide" axis="1 0 0"/><geom type="mesh" mesh="wedge"/></body>
        </body></body></body>
    <frame pos="0 0 1"><replicate count="2" offset="0 0 .2"><body name="r"><joint/><geom size=".1"/></body></replicate>
    </frame></worldbody>
  <contact><exclude body1="base" body2="hand"/></contact>
  <tendon><fixed name="cord"><joint joint="elbow" coef="1"/></fixed></tendon>
  <equality><joint joint1="elbow" joint2="slide" active="false"/></equality>
  <actuator><motor name="m" joint="elbow" gear="50" ctrlrange="-1 1"/><position name="p" joint="slide" kp="7"/>
    <general joint="elbow" gainprm="1 2 3" biastype="affine" biasprm="4 5 6"/></actuator>
  <sensor><jointpos joint="elbow"/></sensor></mujoco>
"""


def check_model(model: Model) -> None:
    """Assert that no array has NaN, and that those of the dynamics are finite."""
    for name, leaf in LEAVES.items():
        array = getattr(model, name)
        if array is not None:
            assert not np.isnan(array).any(), name
            assert np.isfinite(array).all() or not leaf.finite, name


def read_urdf(path: Path) -> None:
    left_out(path)
    check_model(load_urdf(path, strict=False))


def read_mjcf(path: Path) -> None:
    # What is left out, and actuators, are read first: a file whose model is refused may still have them.
    left_out(path)
    load_mjcf_actuators(path, unsupported="warn")
    check_model(load_mjcf(path, unsupported="warn"))


def read_csv(path: Path) -> None:
    check_recording(load_csv(path, {"t": "time", "q": ["shoulder", "elbow"], "tau": "torque_*"}))


def read_npz(path: Path) -> None:
    check_recording(load_npz(path))


def check_recording(recording: Recording) -> None:
    assert recording.q.shape[0] == recording.t.shape[0]


def read_toml(path: Path) -> None:
    read_config(IdentifyConfig, path)


def csv() -> bytes:
    rows = "\n".join(f"{0.01 * k:.2f},{math.sin(k)!r},{math.cos(k):.3e},{k % 7},{-k}" for k in range(60))
    return f"# recorded by hand\ntime,shoulder,elbow,torque_1,torque_2\n{rows}\n".encode()


def npz() -> bytes:
    t = np.arange(60) * 0.01
    file = io.BytesIO()
    np.savez(file, t=t, q=np.sin(np.outer(t, [1, 2])), v=np.ones((60, 2), np.float32), tau=np.ones((60, 2), int))
    return file.getvalue()


CONFIGS = Path(__file__).parents[2] / "configs"
FORMATS: dict[str, tuple[Callable[[Path], None], Callable[[], list[bytes]]]] = {
    "urdf": (read_urdf, lambda: [FULL.encode(), robot_path("double_pendulum").read_bytes()]),
    "mjcf": (read_mjcf, lambda: [MJCF.encode()]),
    "csv": (read_csv, lambda: [csv()]),
    "npz": (read_npz, lambda: [npz()]),
    "toml": (read_toml, lambda: [(CONFIGS / f"identify_{name}.toml").read_bytes() for name in ("kuka", "panda")]),
}


def attempt(read: Callable[[Path], None], path: Path) -> tuple[bool, float]:
    """Return whether the library read the file, and the time. Anything but an error of the library is an error here."""
    begin = time.process_time()
    with warnings.catch_warnings(), patience(30):
        warnings.simplefilter("error")
        for category in (RobotFileWarning, PhysicalityWarning):
            warnings.simplefilter("ignore", category)
        try:
            read(path)
        except JaxdynError as error:
            assert 0 < len(str(error)) < 20_000  # noqa: PT017
            return False, time.process_time() - begin
    return True, time.process_time() - begin


def check_damaged(name: str, seeds: range, folder: Path) -> None:
    """Assert that the files of all seeds are read or refused in time; each second one in single precision."""
    read, contents = FORMATS[name]
    texts = contents()
    path = folder / "file"
    for text in texts:
        path.write_bytes(text)
        # The first file of a kind compiles some programs.
        assert attempt(read, path)[0], f"the {name} file itself is refused"
    count, slowest = 0, (0.0, 0)
    for seed in seeds:
        path.write_bytes(mutated(texts[seed % len(texts)], seed))
        try:
            with jax.enable_x64(seed % 2 == 0):
                was_read, seconds = attempt(read, path)
        except BaseException as error:
            error.add_note(f"(damaged {name}, seed {seed})")
            raise
        count, slowest = count + was_read, max(slowest, (seconds, seed))
    print(f"{name}: {count} of {len(seeds)} read, the slowest {slowest[0]:.2f} s (seed {slowest[1]})")
    assert slowest[0] < SLOWEST, f"{name}, seed {slowest[1]}: {slowest[0]:.1f} s"
    # Some damages do not matter, but most do.
    assert 0.02 * len(seeds) < count < 0.9 * len(seeds)


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_or_refused(name, tmp_path):
    check_damaged(name, range(80), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_many_damaged_files_are_read_or_refused(name, tmp_path):
    """These are 20,000 files."""
    check_damaged(name, range(100, 4100), tmp_path)


@dataclasses.dataclass(frozen=True)
class Numbers:
    x: float


@pytest.mark.parametrize("value", ["9" * 5000, "1" + "0" * 400, "[" * 5000, "0000-00-00", "{" * 999, "true"])
def test_configurations_with_numbers_and_nesting_that_no_parser_likes(value, tmp_path):
    path = tmp_path / "c.toml"
    path.write_text(f"x = {value}")
    with pytest.raises(DataError):
        read_config(Numbers, path)
