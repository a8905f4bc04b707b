"""Models in files of the library's own format: exact round trips, and clear errors for files that hold no model."""

import dataclasses
import json
import os
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdyn
from jaxdyn import DataError, Joint, Mimic, ModelBuilder, ModelError, RobotFileError, load_model, save_model, sysid
from jaxdyn.model import BodyInertia
from tests.loop_robots import forest_with_loops
from tests.mutations import mutated


def gripper() -> jaxdyn.Model:
    """Two fingers, of which the second follows the first, with a spring and a merged link."""
    ball = BodyInertia.sphere(0.3, 0.05)
    builder = ModelBuilder()
    builder.add_body("left", joint=Joint("prismatic", name="slide", stiffness=3.0, friction=0.2), inertia=ball)
    builder.add_body("right", joint=Joint("prismatic", name="mirror", mimic=Mimic("slide", -1.0, 0.01)), inertia=ball)
    return builder.build().with_payload("left", ball, name="Fühler 1")


def batch() -> jaxdyn.Model:
    arm = jaxdyn.samples.arm()
    return dataclasses.replace(arm, damping=jnp.ones((3, 1, 7)), gravity=jnp.zeros((2, 3)))


def slopes() -> jaxdyn.Model:
    rod = jaxdyn.samples.pendulum()
    return jax.grad(lambda m: jaxdyn.aba(m, jnp.ones(1), jnp.ones(1), jnp.ones(1))[0])(rod)


MODELS = {
    "all joints": lambda: jaxdyn.samples.random_tree(jax.random.key(1), 14),
    "single precision": lambda: jaxdyn.samples.quadruped().astype(jnp.float32),
    "mimic": gripper,
    "batch": batch,
    "gradient": slopes,
    "loops": forest_with_loops,
    "kinematics": lambda: jaxdyn.from_dh([[0.3, 0, 0.4, 0]], convention="standard", kinematics_only=True),
}


@pytest.mark.parametrize("name", MODELS)
def test_everything_of_a_model_returns(name, tmp_path):
    model, path = MODELS[name](), tmp_path / "model of a robot"
    save_model(path, model)
    loaded = load_model(str(path))
    assert loaded.topology == model.topology
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(loaded))
    # In NumPy: JAX would compile the comparison for each shape.
    loaded, model = (jax.tree.map(np.asarray, x) for x in (loaded, model))
    assert eqx.tree_equal(loaded, model, typematch=True)
    assert [x.name for x in tmp_path.iterdir()] == [path.name]


@pytest.fixture
def saved(tmp_path):
    save_model(tmp_path / "robot.npz", gripper())
    return tmp_path / "robot.npz"


def rewritten(path, change) -> None:
    """Change the structure and the arrays of a file."""
    with np.load(path) as archive:
        arrays = dict(archive)
    structure = json.loads(str(arrays.pop("structure")))
    change(structure, arrays)
    with open(path, "wb") as file:
        np.savez(file, structure=np.array(json.dumps(structure)), **arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s, a: s.update(version=2), "version 2, .*newer jaxdyn"),
        (lambda s, a: s.update(version="1"), "its version is '1'"),
        (lambda s, a: s.update(format="other"), "save_model has not written it"),
        (lambda s, a: s["topology"].update(contacts=[]), "does not know 'contacts'.*newer jaxdyn"),
        (lambda s, a: a.update(backlash=np.zeros(1)), "does not know 'backlash'.*newer jaxdyn"),
        (lambda s, a: a.pop("gravity"), "lacks the array 'gravity'"),
        (lambda s, a: a.update(gravity=np.zeros(2)), r"gravity has shape \(2,\)"),
        (lambda s, a: a.update(gravity=np.zeros(3, int)), "gravity has int64"),
        (lambda s, a: a.update(gravity=np.zeros((2, 3)), damping=np.zeros((3, 1))), "batch axes do not broadcast"),
        (lambda s, a: s["topology"].update(parents=[-1, 1]), "parents has a number that is no body"),
        (lambda s, a: s["topology"].update(parents=[-1]), "differ in length"),
        (lambda s, a: s["topology"].update(parents=3), "cannot be read"),
        (lambda s, a: s["topology"].update(joint_types=["prismatic", "screw"]), "joint type 'screw'"),
        (lambda s, a: s["topology"].update(mimics=[[1, 2]]), "mimics has a number that is no joint"),
        (lambda s, a: s["topology"].update(frame_names=["a", "b"]), "frames"),
        (lambda s, a: s["topology"].update(attached_bodies=[]), "merged links"),
        (lambda s, a: s.pop("topology"), "cannot be read"),
        (lambda s, a: a.update(gravity=np.ones(3)), "checksum"),
    ],
)
def test_files_that_make_no_model_are_refused(saved, change, message):
    rewritten(saved, change)
    with pytest.raises(RobotFileError, match=f"robot.npz.*{message}"):
        load_model(saved)


def test_damaged_files_are_named_or_whole(saved):
    model, whole = gripper(), saved.read_bytes()
    refused = 0
    for seed in range(300):
        saved.write_bytes(mutated(whole, seed))
        try:
            loaded = load_model(saved)
        except RobotFileError:
            refused += 1
        else:
            assert eqx.tree_equal(loaded, model)
    assert refused > 200


def test_other_files_and_places_are_named(tmp_path):
    with pytest.raises(RobotFileError, match=r"nowhere.npz.*No such file"):
        load_model(tmp_path / "nowhere.npz")
    with pytest.raises(RobotFileError, match="not a file of save_model"):
        load_model(tmp_path)
    (tmp_path / "robot.urdf").write_text("<robot/>")
    with pytest.raises(RobotFileError, match=r"robot.urdf.*load_urdf"):
        load_model(tmp_path / "robot.urdf")
    np.savez(tmp_path / "recording.npz", t=np.zeros(3))
    with pytest.raises(RobotFileError, match="no model that save_model has written: it has 't'"):
        load_model(tmp_path / "recording.npz")
    with pytest.raises(RobotFileError, match="cannot write the model"):
        save_model(tmp_path / "folder" / "robot.npz", gripper())
    with pytest.raises(ModelError, match=r"is a dict; a Model is needed; .*tree_serialise_leaves"):
        save_model(tmp_path / "robot.npz", {})  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="bfloat16"):
        save_model(tmp_path / "robot.npz", gripper().astype(jnp.bfloat16))
    with pytest.raises(ModelError, match="within jit"):
        jax.jit(lambda m: save_model(tmp_path / "robot.npz", m))(gripper())
    assert not (tmp_path / "robot.npz").exists()


def test_a_file_of_a_model_is_on_the_disk_before_it_replaces_another(saved, monkeypatch):
    done, fsync, replace = [], os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda descriptor: (done.append("synchronized"), fsync(descriptor)))
    monkeypatch.setattr("os.replace", lambda *places: (done.append("replaced"), replace(*places)))
    save_model(saved, jaxdyn.samples.arm())
    assert done[:2] == ["synchronized", "replaced"]
    assert load_model(saved).topology == jaxdyn.samples.arm().topology


def test_a_file_of_a_model_is_replaced_as_a_whole(saved, monkeypatch):
    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", fails)
    with pytest.raises(RobotFileError, match="No space left"):
        save_model(saved, jaxdyn.samples.arm())
    assert load_model(saved).topology == gripper().topology
    assert len(list(saved.parent.iterdir())) == 1


def test_identified_parameters_in_files_by_names(tmp_path):
    arm = jaxdyn.samples.arm()
    found = arm.scaled(mass=1.2345678).with_joint_friction(0.3, 0.2, 0.05).with_armature(0.01)
    sysid.save_parameters(tmp_path / "arm.json", found, {"verdict": ["good"]})
    again = sysid.load_parameters(arm, tmp_path / "arm.json")
    for name in ("inertial_parameters", "armature", "damping", "friction", "friction_velocity"):
        np.testing.assert_allclose(getattr(again, name), getattr(found, name), rtol=1e-5, atol=1e-9)
    np.testing.assert_array_equal(again.joint_placement, arm.joint_placement)
    assert sysid.parameter_notes(tmp_path / "arm.json") == {"verdict": ["good"]}
    with pytest.raises(ModelError, match=r"no body or joint .*; it has the bodies"):
        sysid.load_parameters(gripper(), tmp_path / "arm.json")
    (tmp_path / "bad.json").write_text("{}")
    for path, message in ((tmp_path / "bad.json", "not a file of save_parameters"), ("panta", "or kuka_lwr4, panda")):
        with pytest.raises(DataError, match=message):
            sysid.load_parameters(arm, path)


@pytest.mark.parametrize("name", sysid.identified_robots())
def test_parameters_that_come_with_the_library(name):
    """Physical links, and notes about how they were found and how far off they are."""
    notes = sysid.parameter_notes(name)
    assert {"robot", "urdf", "recordings", "how", "error", "verdict"} <= notes.keys()
    content = json.loads((Path(sysid.__file__).parent / "parameters" / "identified" / f"{name}.json").read_text())
    assert sysid.is_physical(np.array(list(content["links"].values()))).all()
    assert len(content["joints"]) == 7


@pytest.mark.skipif("JAXDYN_DATA" not in os.environ, reason="needs the recordings, in $JAXDYN_DATA")
def test_parameters_that_come_with_the_library_predict_recorded_torques():
    folder = sysid.fetch_dataset("panda_exciting")
    panda = sysid.load_parameters(jaxdyn.load_urdf(folder / "panda_no_gripper.urdf"), "panda")
    recording = sysid.load_npz(folder / "first_14s.npz", v="v")
    held_out = recording.between(recording.t[0] + 10, recording.t[-1]).prepared(10.0)
    errors = [sysid.InverseDynamicsFit.unfitted(x).evaluate(held_out).relative for x in (panda, panda.scaled(mass=1.1))]
    # Without the offsets and the delay of friction, which no model holds.
    assert errors[0] < 0.05 < errors[1]
