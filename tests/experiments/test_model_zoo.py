"""The model zoo compares a few small files, refuses invalid ones, and writes its page."""

import json
import os
import re
import time

import numpy as np
import pytest

from experiments import model_zoo
from experiments._worker import Worker
from jaxdyn import cli, load_world
from jaxdyn.cli import largest_errors, mimic_leaders
from tests.urdf_texts import arm, joint, link, robot

LIMIT = '<limit lower="-1" upper="2" effort="1" velocity="1"/>'
FOLLOWING = robot(
    link("l0"),
    *(
        link(f"l{i}", f"<inertial><origin xyz='0.{i} 0.2 0.3'/>{mass}</inertial>")
        for i, mass in enumerate(
            ['<mass value="2"/><inertia ixx="1" ixy="0.1" ixz="0" iyy="1" iyz="0" izz="1"/>'] * 3, start=1
        )
    ),
    joint("j1", "l0", "l1", f'<mimic joint="j2" multiplier="-2" offset="0.3"/><axis xyz="1 1 0"/>{LIMIT}'),
    joint("j2", "l1", "l2", f'<origin xyz="1 0 0"/><axis xyz="0 1 0"/><mimic joint="j3" multiplier="0.5"/>{LIMIT}'),
    joint("j3", "l2", "l3", '<origin xyz="0 1 0" rpy="1 2 3"/><axis xyz="0 0 2"/>', "continuous"),
)
SWING = """<mujoco><worldbody><body pos="0 0 1"><freejoint/><geom size="0.1"/>
  <body pos="0.3 0 0"><joint axis="0 1 0" stiffness="2" damping="1" armature="0.1" ref="20"/>
  <geom type="box" size="0.1 0.2 0.3"/></body></body></worldbody></mujoco>"""
STICKY = SWING.replace("<mujoco>", '<mujoco><option><flag diagexact="enable"/></option>')
MESHES = """<mujoco><option><flag nativeccd="disable"/></option>
  <asset><mesh name="m" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/></asset><worldbody>
  <body pos="0 0 1"><joint type="hinge" stiffness="2"/><geom type="mesh" mesh="m"/></body>
  <body pos="0 3 1"><joint type="slide"/><geom type="mesh" mesh="m"/></body></worldbody></mujoco>"""
PART = "<mujoco><worldbody><geom size='1'/></worldbody></mujoco>"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a folder with files of all outcomes."""
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "urdf").mkdir()
    (folder / "mjcf").mkdir()
    (folder / "urdf" / "following.urdf").write_text(FOLLOWING)
    (folder / "urdf" / "refused.urdf").write_text(arm(kind="hinge"))
    # Pinocchio's parser requires limits.
    (folder / "urdf" / "unlimited.urdf").write_text(arm())
    (folder / "mjcf" / "swing.xml").write_text(SWING)
    (folder / "mjcf" / "sticky.xml").write_text(STICKY)
    (folder / "mjcf" / "part.xml").write_text(PART)
    (folder / "mjcf" / "meshes.xml").write_text(MESHES)
    (folder / "mjcf" / "other.xml").write_text("<sdf/>")
    return folder


@pytest.fixture(scope="module")
def zoo(files):
    """Return the folder and the exit code of a run over its files."""
    return files, model_zoo.main(options(files))


def options(folder, *more: str) -> list[str]:
    sources = f"{folder / 'urdf'}, {folder / 'mjcf'}, nothing-of-this-name:here, /nowhere"
    written = ["--report", str(folder / "page.md"), "--results", str(folder)]
    # In this process, so that the tests can change the library.
    return ["--folder", sources, "--steps", "20", "--states", "2", "--no-gradients", "--seconds", "0", *written, *more]


def outcomes_in(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "model_zoo" / "outcomes.jsonl").read_text().splitlines()]


@pytest.mark.experiments
def test_every_case_has_an_outcome(zoo):
    folder, status = zoo
    outcomes = outcomes_in(folder)
    verdicts = {(x["case"]["name"], x["case"]["free_base"]): x["verdict"] for x in outcomes}
    assert verdicts == {
        ("following.urdf", False): "equal",
        ("following.urdf", True): "equal",
        ("refused.urdf", False): "refused",
        ("refused.urdf", True): "refused",
        ("unlimited.urdf", False): "not compared",
        ("unlimited.urdf", True): "not compared",
        ("meshes.xml", False): "refused",
        ("part.xml", False): "no scene",
        ("sticky.xml", False): "refused",
        ("swing.xml", False): "equal",
    }
    assert status == 0
    assert all(str(folder) not in " ".join(x["reasons"]) for x in outcomes)
    assert [x["nv"] for x in outcomes if x["case"]["name"] == "following.urdf"] == [1, 7]
    apart = {x["case"]["name"]: x["apart_from_contacts"] for x in outcomes}
    assert (apart["meshes.xml"], apart["sticky.xml"]) == ("equal", "")
    for outcome in outcomes:
        robot = {"mass matrix", "bias", "acceleration"}
        names = robot if outcome["case"]["kind"] == "urdf" else {"acceleration", "step", "sensors", "roll-out"}
        compared = "equal" in (outcome["verdict"], outcome["apart_from_contacts"])
        assert set(outcome["errors"]) == (names if compared else set())
        assert all(0 <= error < 1e-12 for error in outcome["errors"].values())


@pytest.mark.experiments
def test_the_page_says_what_and_why(zoo):
    folder, _ = zoo
    page = (folder / "page.md").read_text()
    assert re.search(r"\| following.urdf \| 1 \(2 more follow\) \| \de-\d\d \|", page)
    assert "| refused.urdf |  | refused: joint 'wrist': unknown joint type 'hinge'" in page
    assert "| 2 | joint ...: unknown joint type ...; " in page
    assert "| unlimited.urdf, free base | 7 | not compared: ValueError" in page
    assert re.search(r"\| swing.xml \| 7 \| \de-\d\d \(20 of 20 steps\) \|", page)
    assert "| 1 | pairs of geoms of the types mesh and mesh, with <flag nativeccd" in page
    assert "Refused scenes without contacts: 1 equal." in page
    assert "| 1 | the flag ... in <option> |" in page
    assert "| mjcf | 4 | 1 | 2 | 0 | 0 | 0 | 0 | 1 | 0 |" in page
    assert "| all | 10 | 3 | 4 | 0 | 0 | 0 | 2 | 1 | 0 |" in page
    assert "left out: nothing-of-this-name, /nowhere." in page
    assert str(folder) not in page


@pytest.mark.experiments
def test_a_run_that_ends_by_its_time_says_what_it_has_not_reached(files, tmp_path, monkeypatch):
    monkeypatch.setattr(model_zoo, "outcome_of", lambda case, config: pytest.fail(f"{case} is compared"))
    more = ["--limit", "1e-9", "--report", str(tmp_path / "page.md"), "--results", str(tmp_path)]
    assert model_zoo.main(options(files, *more)) == 0
    page = (tmp_path / "page.md").read_text()
    assert "| mjcf | 4 | 0 | 0 | 0 | 0 | 0 | 0 | 0 | 4 |" in page
    assert "swing.xml" not in page
    assert "in random order" in page
    assert outcomes_in(tmp_path) == []


@pytest.mark.experiments
def test_a_run_goes_on_where_another_one_was_interrupted(zoo, monkeypatch):
    folder, _ = zoo
    path = folder / "model_zoo" / "outcomes.jsonl"
    before = path.read_text()
    compared = []
    monkeypatch.setattr(model_zoo, "outcome_of", lambda case, config: compared.append(case.name))
    path.write_text(before[:-20])
    with pytest.raises(AttributeError):
        model_zoo.main(options(folder, "--resume"))
    path.write_text(before)
    assert compared == ["swing.xml"]


def test_a_process_that_takes_too_long_or_ends_is_replaced():
    worker = Worker(time.sleep, int)
    with pytest.raises(TimeoutError, match=r"0\.5 s"):
        worker(100.0, 0.5)
    assert worker(0.0, 30.0) is None
    worker.end()
    worker = Worker(os._exit, int)
    with pytest.raises(ChildProcessError, match="has ended"):
        worker(3, 30.0)


@pytest.mark.experiments
def test_an_error_that_is_no_refusal_is_a_failure(zoo, monkeypatch, capsys):
    folder, _ = zoo
    monkeypatch.setattr(model_zoo, "load_world", lambda path: 1 / 0)
    assert model_zoo.main(options(folder, "--only", "swing")) == 1
    assert re.search(r"FAILED +mjcf swing.xml: ZeroDivisionError: division by zero, in ", capsys.readouterr().out)


@pytest.mark.experiments
def test_a_difference_is_the_exit_status(zoo, monkeypatch, capsys):
    folder, _ = zoo
    monkeypatch.setattr(cli, "dynamics", lambda model, states: {"bias": np.ones((2, model.nv))})
    assert model_zoo.main(options(folder, "--only", "following")) == 1
    assert re.search(r"DIFFERENT +urdf following.urdf: bias", capsys.readouterr().out)


@pytest.mark.experiments
def test_a_scene_that_differs_is_the_exit_status(zoo, monkeypatch, capsys):
    folder, _ = zoo
    stiffer = load_world(SWING.replace('stiffness="2"', 'stiffness="3"'))
    monkeypatch.setattr(model_zoo, "load_world", lambda path: stiffer)
    assert model_zoo.main(options(folder, "--only", "swing")) == 1
    assert re.search(r"DIFFERENT +mjcf swing.xml: .*passive forces, from joint", capsys.readouterr().out)


@pytest.mark.experiments
def test_a_gradient_that_is_not_finite_is_a_difference(zoo, monkeypatch, capsys):
    folder, _ = zoo
    monkeypatch.setattr(model_zoo, "gradient_is_finite", lambda model, states: False)
    assert model_zoo.main(options(folder, "--only", "following", "--gradients")) == 1
    assert re.search(r"DIFFERENT +urdf following.urdf: .*gradient inf", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--only", "nobody"], "no files to compare"),
        (["--folder", "/nowhere/at/all"], "; not there: /nowhere/at/all"),
        (["--processes", "0"], "processes is 0"),
        (["--states", "0"], "states is 0"),
        (["--limit", "1", "--seconds", "2"], "limit is 1 s, not longer than the 2 s"),
    ],
)
def test_mistakes_are_named(files, more, message, capsys):
    assert model_zoo.main(options(files, *more)) == 2
    assert message in capsys.readouterr().err


def test_errors_are_relative_and_nothing_is_no_number():
    value = {"acceleration": np.array([[1.0, 2.0], [0.1, 0.0]])}
    assert largest_errors(value, {"acceleration": np.array([[1.0, 4.0], [0.1, 0.0]])}) == {"acceleration": 0.5}
    assert largest_errors(value, {"acceleration": np.array([[1.0, np.nan], [0.1, 0.0]])}) == {"acceleration": np.inf}


def test_a_bias_may_be_but_rounding():
    expected = {"mass matrix": np.array([[[2.0]], [[0.5]]]), "bias": np.array([[1e-17], [1.0]])}
    assert largest_errors({"bias": np.array([[3e-17], [1.0]])}, expected)["bias"] == pytest.approx(1e-17)
    assert largest_errors({"bias": np.array([[1e-17], [1.5]])}, expected)["bias"] == 0.5


def test_lines_of_followers_are_read_without_the_library(tmp_path):
    path = tmp_path / "following.urdf"
    path.write_text(FOLLOWING)
    assert mimic_leaders(path) == {"j1": ("j3", -1.0, 0.3), "j2": ("j3", 0.5, 0.0)}


@pytest.mark.slow
def test_no_robot_differs(tmp_path):
    assert model_zoo.main(["--report", "", "--results", str(tmp_path)]) == 0
