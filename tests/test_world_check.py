"""Worlds are compared with MuJoCo, and the first quantity that differs is named with where it comes from."""

import json
import re
import sys

import numpy as np
import pytest
from world_oracle import LOCOMOTION, SMALL, path_of

from experiments.model_zoo import compiled_or_why_not, why_refused
from jaxdyn import cli, load_world
from jaxdyn.cli import _world_contacts, main

mujoco = pytest.importorskip("mujoco")
TEXT = SMALL.format(cone="elliptic", integrator="Euler")
CHANGES = {
    "mass": ('size=".05" condim="4"', 'size=".05" condim="4" mass="3"', "the mass matrix", "joint 'joint_0'"),
    "gear": ('gear="2"', 'gear="2.1"', "the torques of actuators", "joint 'h' of body 'b'"),
    "damping": ('damping=".2"', 'damping=".3"', "passive forces", "joint 'h' of body 'b'"),
    "limit": ('"-80 -3"', '"-81 -3"', "the reference accelerations of limits", "joint 'h'"),
    "impedance": ('.004 .4 3"', '.004 .4 2"', "the regularization of contacts", "geom"),
    "dry friction": ('frictionloss=".05"', "", "the number of friction losses: 0 here, 1 in MuJoCo", "joint 'h'"),
    "gain": ('gainprm="3"', 'gainprm="4"', "the forces of actuators", "actuator 'actuator_1'"),
}


def test_models_of_mujoco_leave_its_warnings_to_whoever_heard_them(tmp_path):
    path = tmp_path / "world.xml"
    path.write_text(TEXT)
    heard = []
    mujoco.set_mju_user_warning(heard.append)
    try:
        cli.mujoco_model(path)
        assert mujoco.get_mju_user_warning() == heard.append
    finally:
        mujoco.set_mju_user_warning(None)


@pytest.mark.slow
def test_a_world_is_equal_by_itself_and_names_what_is_changed(tmp_path, capsys):
    path = tmp_path / "world.xml"
    path.write_text(TEXT)
    arguments = ["check", str(path), "--against", "mujoco", "--states", "2", "--steps", "60"]
    assert main([*arguments, "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["equal"] is True
    assert out["first"] is None
    assert {kind: x["states"] for kind, x in out["accelerations"].items()} == {
        "initial": 1,
        "keyframe": 1,
        "random": 2,
        "in motion": 2,
        "at limits": 2,
    }
    assert all(x["error"] < 1e-8 for x in out["accelerations"].values())
    assert out["rollout"]["steps"] == out["rollout"]["agree"] == 60
    assert 0 < out["rollout"]["error"] < 1e-6
    # The law of one joint, which a new world of the same structure compiles nothing for.
    found = cli.compare_world(path, load_world(changed("damping")), states=2, steps=0)
    assert not found.equal
    require(found.first, "damping")


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_each_change_is_named(what):
    found = cli.compare_world(TEXT, load_world(changed(what)), states=10, steps=0)
    assert not found.equal
    require(found.first, what)


def changed(what: str) -> str:
    old, new, *_ = CHANGES[what]
    assert old in TEXT
    return TEXT.replace(old, new)


def require(first, what: str) -> None:
    *_, quantity, where = CHANGES[what]
    assert first.quantity.startswith(quantity)
    assert where in first.where
    assert first.error > 1e-8


@pytest.mark.slow
def test_a_difference_is_the_exit_code_and_is_printed(tmp_path, capsys, monkeypatch):
    path = tmp_path / "world.xml"
    path.write_text(TEXT)
    module = sys.modules[cli.compare_world.__module__]
    monkeypatch.setattr(module, "load_world", lambda source: load_world(changed("damping")))
    assert main(["check", str(path), "--against", "mujoco", "--states", "2", "--steps", "100"]) == 1
    out = capsys.readouterr().out
    assert "DIFFERENT at" in out
    assert re.search("the first quantity that differs.*passive forces", out)
    assert "from joint 'h' of body 'b'" in out
    assert out.splitlines()[-1] == "DIFFERENT"


# A world whose programs compile quickly.
SWING = """<mujoco><option integrator="implicitfast" timestep=".004"/><worldbody><body name="a"><joint name="a"/>
<geom size=".05" pos=".2 0 0"/><site name="s" pos=".1 0 0"/><body name="b" pos=".3 0 0"><joint name="b" range="-50 60"
 actuatorfrcrange="-2 2"/><geom size=".05" pos=".1 0 0"/></body></body></worldbody>
<equality><joint joint1="a" joint2="b" active="false"/></equality>
<actuator><motor joint="a" ctrlrange="-1 1"/><velocity name="v" joint="b" kv="2" forcerange="-3 3"/></actuator>
<sensor><gyro name="turn" site="s"/><actuatorfrc actuator="v"/></sensor></mujoco>"""
OF_SWING = {
    "control range": ('ctrlrange="-1 1"', 'ctrlrange="-1 1.1"', "the forces of actuators"),
    "force range": ('forcerange="-3 3"', 'forcerange="-3 90"', "the values of sensors"),
    "equality": ('joint2="b"', 'joint2="b" polycoef="0 1 .1"', "the Jacobian of rows of equalities"),
    "integrator": ("implicitfast", "Euler", "velocities after a time step"),
    "sensor": ('pos=".1 0 0"/><body', 'pos=".1 0 0" euler="30 0 0"/><body', "the values of sensors"),
}


@pytest.mark.parametrize("what", OF_SWING)
def test_differences_that_show_at_limits_in_steps_or_in_sensors_are_found(what):
    old, new, quantity = OF_SWING[what]
    assert old in SWING
    found = cli.compare_world(SWING, load_world(SWING.replace(old, new)), states=8, steps=0)
    different = {kind: x.different for kind, x in found.accelerations.items()}
    assert different["at limits"]
    if what in ("control range", "equality"):
        assert different["random"] == different["in motion"] == 0
    assert found.first is not None
    assert found.first.quantity.startswith(quantity)
    if quantity == "the values of sensors":
        assert found.first.where == ("sensor 'turn'" if what == "sensor" else "sensor 'sensor_1'")


def test_the_text_says_that_a_roll_out_ends_where_mujocos_own_motion_diverges(tmp_path, capsys):
    path = tmp_path / "stiff.xml"
    path.write_text(
        """<mujoco><option timestep=".01"/><worldbody><body><joint stiffness="1e9"/><geom size=".1" pos="1 0 0"/></body>
        </worldbody></mujoco>"""
    )
    assert main(["check", str(path), "--against", "mujoco", "--states", "2", "--steps", "60"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"roll-out of \d of the 60 steps asked for, after which MuJoCo's own motion diverges", out)
    assert out.splitlines()[-1].startswith("equal")


def test_a_world_is_equal_in_all_states():
    found = cli.compare_world(SWING, states=8, steps=20)
    assert found.equal
    assert found.rollout is not None
    assert all(max(x.step_error, x.sensor_error) < 1e-12 for x in found.accelerations.values())


@pytest.mark.slow
def test_states_that_hang_on_rounding_are_set_apart():
    text = """<mujoco><worldbody><geom type="plane" size="1 1 1"/>
    <body pos="0 0 .1"><freejoint/><geom size=".1"/></body></worldbody></mujoco>"""
    found = cli.compare_world(text, states=2, steps=20)
    start = found.accelerations["initial"]
    assert (start.states, start.on_switches, start.different) == (1, 1, 0)
    assert start.own_change > 0.1
    assert (found.comparable, found.equal) == (True, True)


@pytest.mark.slow
def test_a_world_that_only_ever_just_touches_is_compared_with_other_margins():
    text = """<mujoco><worldbody><body euler="30 20 10"><geom type="plane" size="1 1 1" friction="{0}"/>
    <body pos="0 0 .1"><joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/>
    <geom size=".1" friction="{0}"/></body>
    </body></worldbody></mujoco>"""
    found = cli.compare_world(text.format(1), states=2, steps=20)
    assert (found.margin_change, found.comparable, found.equal) == (1e-6, True, True)
    assert [x.states for x in found.accelerations.values()] == [2, 4, 4, 4]
    assert all(x.on_switches == 0 for x in found.accelerations.values())
    other = cli.compare_world(text.format(1), load_world(text.format(0.5)), states=2, steps=20)
    assert (other.comparable, other.equal) == (True, False)
    assert other.first is not None


@pytest.mark.slow
@pytest.mark.parametrize(("package", "name"), LOCOMOTION)
def test_rollouts_of_1000_steps_agree_up_to_their_horizon(package, name):
    """The horizon is how long MuJoCo's own roll-outs, shifted by 1e-12, stay together."""
    found = cli.compare_world(path_of(package, name), states=2, steps=1000)
    assert found.rollout is not None
    print(f"{package} {name}: {found.rollout}")
    assert found.rollout.steps == 1000
    assert found.equal


def test_what_is_refused_is_told(tmp_path, capsys):
    path = tmp_path / "world.xml"
    path.write_text(
        '<mujoco><option><flag diagexact="enable"/></option>'
        '<worldbody><body><freejoint/><geom size=".1"/></body></worldbody></mujoco>'
    )
    assert main(["check", str(path), "--against", "mujoco"]) == 2
    assert "diagexact" in capsys.readouterr().err
    with pytest.raises(Exception, match="diagexact") as caught:
        cli.compare_world(path)
    assert why_refused(caught.value) == ["the flag 'diagexact' in <option>"]


def test_mistakes(tmp_path, capsys):
    path = tmp_path / "arm.urdf"
    path.write_text('<robot name="r"><link name="a"/></robot>')
    assert main(["check", str(path), "--against", "mujoco"]) == 2
    assert "--against mujoco compares scenes of MJCF files" in capsys.readouterr().err
    path = tmp_path / "world.xml"
    path.write_text(TEXT)
    assert main(["check", str(path), "--against", "mujoco", "--steps", "-1"]) == 2
    assert "steps is -1" in capsys.readouterr().err
    path.write_text("<mujoco/>")
    assert compiled_or_why_not(str(path)) == "nothing moves"
    assert "nowhere.xml" in compiled_or_why_not(str(tmp_path / "nowhere.xml"))


@pytest.mark.slow
def test_states_with_too_many_contacts_are_named_and_not_compared():
    """Cubes side by side have 80 contacts with the floor, where a list has room for 64."""
    cube = " ".join(f"{x} {y} {z}" for x in (-0.1, 0.1) for y in (-0.1, 0.1) for z in (-0.1, 0.1))
    geoms = "".join(f'<geom type="mesh" mesh="m" pos="{0.3 * i} 0 0"/>' for i in range(20))
    found = cli.compare_world(
        f"""<mujoco><asset><mesh name="m" vertex="{cube}"/></asset><worldbody><geom type="plane" size="1 1 1"/>
        <body pos="0 0 .099"><joint type="slide" axis="0 0 1"/>{geoms}</body></worldbody></mujoco>""",
        states=1,
        steps=0,
    )
    assert found.equal
    assert found.accelerations["initial"].crowded == found.accelerations["initial"].states


@pytest.mark.slow
def test_a_scene_that_differs_by_contacts_alone_is_told_from_others(tmp_path, capsys):
    """A cylinder lies on a box, where MuJoCo takes corners of a polygon in the place of its circle."""
    text = """<mujoco><worldbody><geom name="table" type="box" size=".5 .5 .1" pos="0 0 -.1"/>
    <body pos="0 0 .098" euler="1 0.7 0"><joint type="slide" axis="0 0 1" damping="{0}"/>
    <joint axis="1 0 0" damping="1" stiffness="50"/><joint axis="0 1 0" damping="1" stiffness="50"/>
    <geom name="can" type="cylinder" size=".1 .1"/></body></worldbody></mujoco>"""
    found = cli.compare_world(text.format(1), states=3, steps=0)
    kinds = found.accelerations.values()
    assert sum(x.by_contacts for x in kinds) > 0
    assert sum(x.different for x in kinds) == 0
    assert (found.equal, found.equal_with_contacts, found.first) == (False, True, None)
    assert found.other_contacts == ("geom 'can' (cylinder) and geom 'table' (box) (no less deep than MuJoCo's)",)
    other = cli.compare_world(text.format(1), load_world(text.format(1.1)), states=3, steps=0)
    assert sum(x.different for x in other.accelerations.values()) > 0
    assert not other.equal_with_contacts
    path = tmp_path / "can.xml"
    path.write_text(text.format(1))
    assert main(["check", str(path), "--against", "mujoco", "--states", "3", "--steps", "0"]) == 1
    out = capsys.readouterr().out
    assert "different at 1 by contacts alone" in out
    assert "MuJoCo does the same with the contacts of this world" in out
    assert out.splitlines()[-1] == "different by contacts alone"


def test_contacts_that_mujoco_misses_are_judged_by_the_vertices_of_the_shapes(monkeypatch):
    """MuJoCo had flat faces of two meshes apart by 3e-9 m that overlap by 1e-10 m; its search is made to miss them."""
    cube = " ".join(f"{x} {y} {z}" for x in (-0.1, 0.1) for y in (-0.1, 0.1) for z in (-0.1, 0.1))
    m = mujoco.MjModel.from_xml_string(
        f"""<mujoco><asset><mesh name="m" vertex="{cube}"/></asset><worldbody><geom type="mesh" mesh="m"/>
        <body pos="0 0 .2"><joint type="slide" axis="0 0 1"/><geom type="mesh" mesh="m"/></body></worldbody></mujoco>"""
    )
    d, rng = mujoco.MjData(m), np.random.default_rng(0)
    found = _world_contacts._contacts_of_mujoco

    def answer(height: float, rows, misses: bool) -> tuple[list[str] | None, int]:
        calls = []

        def contacts(d):
            calls.append(d.qpos)
            return {} if misses and len(calls) == 1 else found(d)

        monkeypatch.setattr(_world_contacts, "_contacts_of_mujoco", contacts)
        d.qpos[:] = height
        return _world_contacts.forward_with_contacts(m, d, {(0, 1): rows} if len(rows) else {}, rng), d.nefc

    rows = np.array([[-1e-10, 0.05, 0.05, 0.1, 0, 0, 1, 1, 0, 0]])
    words, constraints = answer(-1e-10, rows, True)
    assert words == ["geom 'geom_0' (mesh) and geom 'geom_1' (mesh) (whose shapes touch where MuJoCo has no contact)"]
    assert constraints == 4
    assert answer(1e-7, rows, False)[0] is None
    # Contacts that are there are not to be left out, and those of shapes that are apart are.
    assert answer(-1e-6, rows[:0], False)[0] is None
    m.geom_margin[:] = 1e-3
    assert answer(1e-3, rows[:0], False)[0] is None
