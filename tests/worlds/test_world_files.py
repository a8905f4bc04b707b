"""Worlds in files of the library's own format: exact round trips, and clear errors for files that hold no world."""

import functools
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import ModelError, RobotFileError, load_world, save_world
from tests.mutations import mutated
from tests.worlds.world_oracle import MIXED, with_sensors

mujoco = pytest.importorskip("mujoco")

FALLING = """
<mujoco><asset><mesh name="corner" vertex="0 0 0  .2 0 0  0 .2 0  0 0 .2"/>
<hfield name="hills" nrow="3" ncol="4" size="2 1 .3 .1" elevation="0 1 0 0 .2 .4 1 0 0 0 .5 1"/></asset>
<worldbody><geom type="plane" size="1 1 1"/>
<geom type="hfield" hfield="hills" pos="5 0 0" contype="2" conaffinity="0"/>
<body pos="0 0 .3"><freejoint/><geom type="mesh" mesh="corner"/>
 <geom size=".05" rgba="1 0 0 1" group="4" conaffinity="3"/></body>
</worldbody><keyframe><key name="up" qpos="0 0 1 1 0 0 0"/></keyframe></mujoco>"""

PENDULUM = """
<mujoco><worldbody><body><joint axis="0 1 .1" damping=".1" range="-1 .01" limited="true"/><geom size=".1" pos="1 0 0"/>
</body></worldbody></mujoco>"""


@functools.cache
def falling():
    return load_world(FALLING)


@pytest.fixture
def saved(tmp_path):
    save_world(tmp_path / "world.npz", falling())
    return tmp_path / "world.npz"


def test_everything_of_a_world_returns(saved, tmp_path):
    worlds = [falling(), load_world(with_sensors(MIXED).format(cone="elliptic", integrator="implicitfast"))]
    worlds.append(jax.tree.map(lambda x: jax.device_put(np.stack([x, 2 * x]).astype(np.float32)), worlds[0]))
    for world in worlds:
        save_world(tmp_path / "a world", world)
        loaded = load_world(str(tmp_path / "a world"))
        assert jax.tree.structure(loaded) == jax.tree.structure(world)
        # A compiled function of the one is that of the other.
        assert hash(jax.tree.structure(loaded)) == hash(jax.tree.structure(world))
        assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(loaded))
        assert eqx.tree_equal(*(jax.tree.map(np.asarray, x) for x in (loaded, world)), typematch=True)
    assert load_world(saved, options=jaxdyn.SolverOptions(iterations=7)).options.iterations == 7


def test_steps_of_a_loaded_world_are_equal_to_the_last_bit_without_mujoco(tmp_path):
    saved, world = tmp_path / "world.npz", load_world(PENDULUM)
    save_world(saved, world)
    state = world.state(v=np.ones(1))
    for _ in range(3):
        state = world.step(state)
    program = f"""
import sys
sys.modules["mujoco"] = None
import jax
jax.config.update("jax_enable_x64", True)
import jaxdyn, numpy as np
world = jaxdyn.load_world({str(saved)!r})
state = world.state(v=np.ones(1))
for _ in range(3):
    state = world.step(state)
print(np.concatenate([state.q, state.v]).tobytes().hex())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert found.strip() == np.concatenate([state.q, state.v]).tobytes().hex()


def rewritten(path, change) -> None:
    """Change the structure and the arrays of a file."""
    with np.load(path) as archive:
        arrays = dict(archive)
    structure = json.loads(str(arrays.pop("structure")))
    change(structure, structure["world"]["fields"], arrays)
    with open(path, "wb") as file:
        np.savez(file, structure=np.array(json.dumps(structure)), **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, w, a: s.update(version=2), "version 2, .*newer jaxdyn"),
        (lambda s, w, a: s.update(format="jaxdyn model"), "save_world has not written it; read it with load_model"),
        (lambda s, w, a: w["parts"].update({"class": "os.system"}), "no class 'os.system' .*save it again"),
        (lambda s, w, a: w["parts"].update({"class": "jaxdyn.Path"}), "no class .*save it again"),
        (lambda s, w, a: w.update(weather=3), "worlds.World differs in 'weather': .*save it again"),
        (lambda s, w, a: w["parts"]["fields"].pop("sensors"), "differs in 'sensors'"),
        (lambda s, w, a: s.update(world=w["model"]), "holds a Model in the place of a world"),
        (lambda s, w, a: a.pop("world.start"), "cannot be read"),
        (lambda s, w, a: a.update({"world.start": np.ones(7)}), "checksum"),
        (lambda s, w, a: w.update(key_names=["down"]), "checksum"),
    ],
)
def test_files_that_make_no_world_are_refused(saved, change, message):
    rewritten(saved, change)
    with pytest.raises(RobotFileError, match=f"world.npz.*{message}"):
        load_world(saved)


def test_damaged_files_are_named_or_whole(saved):
    world, whole = falling(), saved.read_bytes()
    refused = 0
    for seed in range(60):
        saved.write_bytes(mutated(whole, seed))
        try:
            loaded = load_world(saved)
        except RobotFileError:
            refused += 1
        else:
            assert eqx.tree_equal(loaded, world)
    assert refused > 40


def test_other_files_and_places_are_named(saved, tmp_path, monkeypatch):
    with pytest.raises(RobotFileError, match=r"world.npz.*read it with load_world"):
        jaxdyn.load_model(saved)
    with pytest.raises(RobotFileError, match=r"nowhere.npz.*No such file"):
        load_world(tmp_path / "nowhere.npz")
    np.savez(tmp_path / "recording.npz", t=np.zeros(3))
    with pytest.raises(RobotFileError, match="no world that save_world has written: it has 't'"):
        load_world(tmp_path / "recording.npz")
    with pytest.raises(ModelError, match=r"is a Model; a World is needed; .*save_model"):
        save_world(saved, falling().model)
    with pytest.raises(ModelError, match="bfloat16"):
        save_world(saved, falling().astype(jnp.bfloat16))
    with pytest.raises(ModelError, match="within jit"):
        jax.jit(lambda w: save_world(saved, w))(falling())
    with pytest.raises(RobotFileError, match="cannot write the world"):
        save_world(tmp_path / "folder" / "world.npz", falling())

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(RobotFileError, match=r"No space left.*the disk is full"):
        save_world(saved, falling().astype(jnp.float32))
    assert load_world(saved).start.dtype == falling().start.dtype


# Robots by name


ARM = '<mujoco><worldbody><body><joint name="{}"/><geom size=".1"/></body></worldbody></mujoco>'
LINKS = """<robot name="r"><link name="base"/><link name="arm"><inertial><mass value="1"/>
<inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/></inertial></link>
<joint name="in_urdf" type="continuous"><parent link="base"/><child link="arm"/></joint></robot>"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Stand-ins for robot_descriptions and for a copy of MuJoCo Menagerie, in another working directory."""
    folder = tmp_path / "robot_descriptions"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    for name, text in (("arm.xml", ARM.format("in_mjcf")), ("arm.urdf", LINKS)):
        (tmp_path / name).write_text(text)
    for module, paths in (
        ("arm_mj_description", {"MJCF_PATH": "arm.xml"}),
        ("arm_description", {"URDF_PATH": "arm.urdf"}),
        ("hand_description", {"URDF_PATH": "arm.urdf", "XACRO_PATH": "none"}),
        ("_empty_description", {}),
    ):
        lines = [f"{name} = {str(tmp_path / path)!r}" for name, path in paths.items()]
        (folder / f"{module}.py").write_text("\n".join(lines))
    (folder / "far_description.py").write_text('raise OSError("no network")')
    robot = tmp_path / "mujoco_menagerie" / "maker_leg"
    robot.mkdir(parents=True)
    (robot / "scene.xml").write_text(ARM.format("in_menagerie"))
    (robot / "leg.xml").write_text(ARM.format("alone"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROBOT_DESCRIPTIONS_CACHE", str(tmp_path / "none"))
    for name in [x for x in sys.modules if x.partition(".")[0] == "robot_descriptions"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in [x for x in sys.modules if x.partition(".")[0] == "robot_descriptions"]:
        del sys.modules[name]


def test_robots_are_found_by_their_names_in_packages(packages):
    for name, joint in (
        *(("arm", "in_mjcf"), ("arm_mj_description", "in_mjcf"), ("arm_description", "in_urdf")),
        *(("hand", "in_urdf"), ("maker_leg", "in_menagerie")),
    ):
        assert load_world(name).model.joint_names == (joint,)
    assert jaxdyn.load_urdf("arm").joint_names == ("in_urdf",)
    assert jaxdyn.load_mjcf("arm").joint_names == ("in_mjcf",)
    with pytest.raises(RobotFileError, match=r"(?s)'amr'.*no such file.*did you mean .*'arm'"):
        load_world("amr")
    with pytest.raises(RobotFileError, match=r"'far_description'.*OSError: no network"):
        load_world("far")
    with pytest.raises(RobotFileError, match="hand_description has no MJCF file, but URDF and XACRO"):
        jaxdyn.load_mjcf("hand_description")
    Path("arm").write_text(ARM.format("here"))
    assert load_world("arm").model.joint_names == ("here",)


def test_robots_of_the_package_of_menagerie_are_found_by_their_names(packages, tmp_path, monkeypatch):
    folder = tmp_path / "packages" / "mujoco_menagerie"
    folder.mkdir(parents=True)
    (folder / "leg.xml").write_text(ARM.format("in_package"))
    (folder / "__init__.py").write_text(
        "from pathlib import Path\n"
        "class Robot:\n"
        "    def __init__(self, name): self.name = name\n"
        "    def xml(self): return Path(__file__).parent / f'{self.name}.xml'\n"
        "def names(): return ['leg']\n"
        "def get(name): return Robot(name)\n"
    )
    monkeypatch.syspath_prepend(folder.parent)
    monkeypatch.delitem(sys.modules, "mujoco_menagerie", raising=False)
    assert load_world("leg").model.joint_names == ("in_package",)
    assert load_world("maker_leg").model.joint_names == ("in_menagerie",)
    del sys.modules["mujoco_menagerie"]


def test_commands_and_pictures_take_robots_by_name(packages, capsys):
    from jaxdyn.cli import main

    main(["info", "maker_leg"])
    assert "in_menagerie" in capsys.readouterr().out
    main(["check", "arm_description"])
    assert "arm.urdf: 1 degree of freedom" in capsys.readouterr().out
    pytest.importorskip("trimesh")
    assert jaxdyn.viz.load_visuals("maker_leg") != []
    main(["view", "maker_leg", "--html", "leg.html"])
    assert Path("leg.html").stat().st_size > 1000


def test_without_packages_of_robots_one_is_named(packages, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    shutil.rmtree("mujoco_menagerie")
    with pytest.raises(RobotFileError, match=r"no such file.*pip install robot_descriptions"):
        load_world("go1")
