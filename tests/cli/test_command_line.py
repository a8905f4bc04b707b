"""The command line: the output and the files of each command, exit codes, JSON, and messages for mistakes."""

import functools
import json
import re
import shlex
import shutil
import subprocess
import sys
import types
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import jaxdyn
from jaxdyn import BodyInertia, Joint, ModelBuilder, cli, samples, to_urdf
from jaxdyn.cli import (
    CsvColumns,
    IdentifyConfig,
    ProgressBar,
    _check_command,
    _identify_command,
    _info_command,
    _main,
    _play_command,
    _train_command,
    _view_command,
    load_from_zero,
    main,
    parse_command,
)
from tests.urdf_texts import joint, link, robot

IDENTIFY = ("--name", "x", "--robot", "arm.urdf", "--fit-start", "0", "--fit-stop", "1", "--test-stop", "2")
BALL = BodyInertia.box(1.0, (0.1, 0.2, 0.3))
SWING = """<mujoco><worldbody><body name="ball" pos="0 0 1"><freejoint name="base"/><geom size="0.1"/>
  <body name="plate" pos="0.3 0 0"><joint name="hinge" axis="0 1 0" stiffness="2" damping="1" armature="0.1"/>
  <geom type="box" size="0.1 0.2 0.3"/></body></body></worldbody></mujoco>"""


def inertial(moment: float) -> str:
    inertia = f'<inertia ixx="{moment}" ixy="0" ixz="0" iyy="0.1" iyz="0" izz="0.1"/>'
    return f'<inertial><origin xyz="0.1 0.2 0.3"/><mass value="2"/>{inertia}</inertial>'


def two_links(moment: float = 0.1) -> str:
    limit = '<limit lower="-1" upper="2" effort="5" velocity="3"/>'
    return robot(
        link("ground"),
        link("upper", inertial(0.1)),
        link("lower", inertial(moment)),
        joint("shoulder", "ground", "upper", f'<axis xyz="0 1 0"/>{limit}'),
        joint("elbow", "upper", "lower", '<origin xyz="0 0 1"/><axis xyz="1 0 0"/>', "continuous"),
    )


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, which holds two robots."""
    (tmp_path / "arm.urdf").write_text(two_links())
    (tmp_path / "swing.xml").write_text(SWING)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_names_the_commands(capsys):
    assert main(["--help"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for command in ("info", "view", "check", "identify", "train", "play"):
        assert re.search(rf"^  {command} +\w", printed.out, re.MULTILINE)
    assert main([]) == 2
    printed = capsys.readouterr()
    assert (printed.out, "usage: jaxdyn COMMAND" in printed.err) == ("", True)
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"jaxdyn {version('jaxdyn')}\n"


@pytest.mark.parametrize("command", ["info", "view", "check", "identify", "train", "play"])
def test_the_help_of_each_command_has_examples(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert re.search(rf"Examples:\n(.*\n)*? +jaxdyn {command} ", printed.out)
    assert f"usage: jaxdyn {command}" in printed.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["inof"], "error: no command 'inof': did you mean info?"),
        (["info", "nowhere.urdf"], "cannot read the robot's file 'nowhere.urdf'"),
        (["info", "swing.xml", "--free-base"], "swing.xml: --free-base is for URDF files"),
        (["check", "arm.urdf", "--states", "0"], "states is 0; a positive, finite number is needed"),
        (["identify", "nowhere.toml"], "nowhere.toml: no such file"),
        (["view", "arm.urdf", "--compare", "run.npz"], "--compare is shown beside --motion"),
        (["view", "arm.urdf", "--png", "x.png", "--html", "x.html"], "--html and --png are different results"),
        (["view", "arm.urdf", "--png", "x.png", "--time", "1"], "--time is the moment of a --motion"),
        (["view", "arm.urdf", "--video", "x.gif"], "--video is a film of --motion, which is missing"),
        (["view", "arm.urdf", "--motion", "run.npz", "--video", "x.avi"], "the film 'x.avi' ends with '.avi'"),
        (["identify", *IDENTIFY, "--recording", "simulated", "--rate", "nan"], "--rate is nan, but a finite number is"),
        (["identify", *IDENTIFY, "--recording", "simulated", "--csv.t", "x", "--scale.q", "inf"], "--scale.q is inf"),
        (["check", "arm.urdf", "--tolerance", "inf"], "--tolerance is inf, but a finite number is needed"),
        (["view", "swing.xml", "--package-dirs", "x"], "swing.xml: --package-dirs is for URDF files"),
    ],
)
def test_mistakes_are_messages(folder, arguments, message, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.err.startswith("error: ")
    assert "Traceback" not in printed.err
    assert printed.out == ""


def test_options_that_are_wrong_are_told_before_a_robot_is_looked_up_by_its_name(capsys, monkeypatch):
    def looked_up(*_):
        raise AssertionError("the name of the robot was looked up")

    monkeypatch.setattr("jaxdyn.cli._robot_file.named_robot", looked_up)
    assert main(["view", "go1", "--compare", "run.npz"]) == 2
    assert "--compare is shown beside --motion" in capsys.readouterr().err


def test_where_an_error_comes_from_is_said(folder, capsys):
    (folder / "arm.urdf").write_text(robot(link("l0"), link("l1", ""), joint("massless", "l0", "l1", "", "continuous")))
    assert main(["check", "arm.urdf"]) == 2
    assert re.search(r"error: .*massless(.*\n)+\(while loading arm.urdf\)", capsys.readouterr().err)


def test_an_unknown_option_and_a_missing_one_end_with_code_2(capsys):
    for arguments in (["info"], ["info", "arm.urdf", "--jsno"], ["identify", "--name", "x"]):
        with pytest.raises(SystemExit) as stopped:
            main(arguments)
        assert stopped.value.code == 2
        assert capsys.readouterr().out == ""


def test_an_interruption_is_130(monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(_info_command, "main", interrupted)
    assert main(["info", "arm.urdf"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_info_is_the_summary(folder, capsys):
    assert main(["info", "arm.urdf", "--free-base"]) == 0
    printed = capsys.readouterr()
    summary = jaxdyn.load_urdf("arm.urdf", free_base=True).summary()
    assert printed.out.startswith(f"arm.urdf (URDF)\n\n{summary}\n\nleft out, and without effect on the motion:\n")
    assert printed.err == ""


def test_info_as_json(folder, capsys):
    assert main(["info", "arm.urdf", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["format"], out["nb"], out["nq"], out["nv"], out["mass"]) == ("URDF", 2, 2, 2, 4.0)
    assert [(x["name"], x["parent"], x["joint"], x["type"]) for x in out["bodies"]] == [
        ("upper", "world", "shoulder", "revolute"),
        ("lower", "upper", "elbow", "continuous"),
    ]
    assert [x["v"] for x in out["bodies"]] == [[0, 1], [1, 2]]
    assert out["bodies"][1]["placement"] == [0, 0, 1, 1, 0, 0, 0]
    # JSON has no infinity.
    assert (out["position_lower"], out["effort_limit"]) == ([-1, None], [5, None])
    assert out["merged_links"] == {"ground": "world"}
    assert out["frames"] == ["upper", "lower", "ground"]
    assert out["warnings"] == []
    assert main(["info", "swing.xml", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["format"], out["nq"], out["nv"]) == ("MJCF", 8, 7)
    assert out["stiffness"][6] == 2


LOOPS = """<mujoco><worldbody>
  <body name="crank"><joint name="a" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 .4 0 0" size=".02"/>
    <body name="rod" pos=".4 0 0"><joint name="b" axis="0 1 0"/><geom type="capsule" fromto="0 0 0 1 0 0" size=".02"/>
    </body></body>
  <body name="rocker" pos="0 0 1"><joint name="c" axis="0 1 0"/>
    <geom type="capsule" fromto="0 0 0 1.4 0 0" size=".02"/></body>
</worldbody><equality><connect name="pin" body1="rod" body2="rocker" anchor="1 0 0"/>
  <joint name="gear" joint1="c" joint2="a" polycoef="0 .5"/></equality></mujoco>"""


def test_info_has_loops_and_couplings(folder, capsys):
    (folder / "loops.xml").write_text(LOOPS)
    assert main(["info", "loops.xml"]) == 0
    printed = capsys.readouterr().out
    assert "loop pin: connect between rod and rocker, 3 equations" in printed
    assert "coupling gear: q(c) - 0 = 0 + 0.5 (q(a) - 0)" in printed
    assert "springs of equality constraints (solref, solimp) (2): 'pin', 'gear'" in printed
    assert main(["info", "loops.xml", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    (loop,), (coupling,) = out["loops"], out["couplings"]
    assert [loop[key] for key in ("name", "kind", "body1", "body2", "equations", "length")] == [
        *("pin", "connect", "rod", "rocker", 3, None)
    ]
    np.testing.assert_allclose(loop["placement2"], [1.4, 0, -1, 1, 0, 0, 0], atol=1e-12)
    assert [coupling[key] for key in ("name", "joint1", "joint2")] == ["gear", "c", "a"]
    assert coupling["coefficients"] == [0, 0.5, 0, 0, 0]
    mobility = out["mobility"]
    assert (mobility["equations"], mobility["redundant"], mobility["degrees_of_freedom"]) == (4, 1, 0)
    assert f"{mobility['where']}\n" in printed
    assert main(["info", "arm.urdf", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["loops"], out["couplings"], out["mobility"]) == ([], [], None)


def test_info_says_each_warning_once(folder, capsys):
    (folder / "arm.urdf").write_text(two_links(moment=0.9).replace('xyz="0 0 1"', 'xyz="0, 0, 1"'))
    assert main(["info", "arm.urdf"]) == 2
    assert "--lenient" in capsys.readouterr().err
    assert main(["info", "arm.urdf", "--lenient"]) == 0
    printed = capsys.readouterr()
    assert printed.out.count("link 'lower'") == 1
    assert printed.out.count("warning: ") == 2
    assert printed.err == ""
    assert main(["info", "arm.urdf", "--lenient", "--json"]) == 0
    warned = json.loads(capsys.readouterr().out)["warnings"]
    assert len(warned) == 2
    assert sum("link 'lower'" in text for text in warned) == 1


SCENE = """<mujoco><option timestep=".005" integrator="implicitfast"/>
<worldbody><geom name="floor" type="plane" size="3 3 .1"/><site name="hook" pos="0 0 1"/>
<body name="target" mocap="true" pos="1 0 1"><geom size=".05" contype="0" conaffinity="0"/></body>
<body name="ball" pos="0 0 .5"><freejoint name="base"/><geom name="skin" size=".1"/><site name="top" pos="0 0 .1"/>
<body name="arm" pos=".1 0 0"><joint name="hinge" axis="0 1 0" range="-1 1" limited="true" damping=".1"/>
<geom type="capsule" fromto="0 0 0 .3 0 0" size=".03"/></body></body></worldbody>
<tendon><spatial name="rope" stiffness="3"><site site="hook"/><site site="top"/></spatial></tendon>
<actuator><position name="servo" joint="hinge" kp="4" ctrlrange="-.5 .5" ctrllimited="true"/></actuator>
<sensor><gyro name="turn" site="top"/></sensor>
<keyframe><key name="up" qpos="0 0 1 1 0 0 0 .2" ctrl=".3"/></keyframe></mujoco>"""


def test_info_shows_the_world(folder, capsys):
    pytest.importorskip("mujoco")
    Path("scene.xml").write_text(SCENE)
    jaxdyn.save_world("scene.npz", jaxdyn.load_world("scene.xml"))
    for name in ("scene.xml", "scene.npz"):
        assert main(["info", name]) == 0
        printed = capsys.readouterr()
        assert printed.err == ""
        for line in (
            "world: steps of 0.005 s, implicitfast",
            "pairs of geoms that may touch: 1 of plane and sphere, 1 of plane and capsule",
            "actuators (1):\n  servo: on joint hinge, gear 1, gain fixed 4, bias affine 0 -4, control -0.5 to 0.5",
            "sensors (1):\n  turn: gyro, 3",
            "tendons (1):\n  rope: spatial",
            "limits (1):\n  hinge",
            "mocap bodies (1):\n  target",
            "keyframes (1):\n  up: at 0 s",
        ):
            assert f"{line}\n" in printed.out, line
        assert main(["info", name, "--json"]) == 0
        world = json.loads(capsys.readouterr().out)["world"]
        assert (world["timestep"], world["mocap_bodies"], world["limited_joints"]) == (0.005, ["target"], ["hinge"])
        assert world["keyframes"]["up"]["control"] == [0.3]
        (servo,) = world["actuators"]
        assert (servo["target"], servo["control_range"], servo["force_range"]) == (
            *("joint hinge", [-0.5, 0.5], [None, None]),
        )
    Path("scene.xml").write_text(SCENE.replace("<option", '<option><flag diagexact="enable"/></option><option'))
    assert main(["info", "scene.xml", "--lenient", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["world"] is None
    assert "'diagexact'" in out["no_world"]
    assert main(["info", "arm.urdf", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["world"] is None
    assert main(["info", "scene.npz", "--free-base"]) == 2
    assert "this is a saved world" in capsys.readouterr().err


def test_view_shows_and_simulates_worlds(folder, capsys, monkeypatch):
    pytest.importorskip("mujoco")
    pytest.importorskip("embreex")
    from jaxdyn.viz import Viewer, _images

    Path("scene.xml").write_text(SCENE)
    played, drawn = [], []
    monkeypatch.setattr(Viewer, "save_video", lambda viewer, path: played.append(viewer._player.clip))
    monkeypatch.setattr(_images, "draw_robots", lambda drawing, poses, *_, **__: drawn.append((drawing, poses[0])))
    monkeypatch.setattr(_images, "write_image", lambda *_: None)
    assert main(["view", "scene.xml", "--simulate", "0.3", "--keyframe", "up", "--video", "fall.gif"]) == 0
    assert main(["view", "arm.urdf", "--simulate", "0.3", "--video", "fall.gif"]) == 0
    world = jaxdyn.load_world("scene.xml")
    state, control = world.state(keyframe="up"), np.tile(world.keyframes["up"].control, (60, 1))
    np.testing.assert_allclose(played[0].q[-1], world.rollout(state, control).q[-1], atol=1e-5)
    assert (len(played[0].t), played[0].t[-1]) == (21, pytest.approx(0.3))
    assert (len(played[1].t), np.ptp(played[1].q, axis=0).max() > 0.05) == (19, True)
    assert main(["view", "scene.xml", "--keyframe", "up", "--png", "up.png"]) == 0
    ((drawing, poses),) = drawn
    assert {"tendons", "meshes"} <= set(drawing.shown)
    np.testing.assert_allclose(poses[0][:3], [0, 0, 1])
    capsys.readouterr()
    for arguments, message in (
        (["scene.xml", "--simulate", "1", "--motion", "run.npz"], "different motions"),
        (["scene.xml", "--simulate", "-1"], "simulate is -1"),
        (["scene.xml", "--keyframe", "down"], "named 'down': known: 'up'"),
        (["arm.urdf", "--keyframe", "up"], "keyframes are those of MJCF files"),
    ):
        assert main(["view", *arguments]) == 2
        assert message in capsys.readouterr().err


OWN_ANSWERS = "compiling, and computing the answers of jaxdyn ..."


def test_check_of_a_urdf_file(folder, capsys, monkeypatch):
    pytest.importorskip("pinocchio")
    arguments = ["check", "arm.urdf", "--states", "3"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert err.splitlines() == ["computing the answers of the other library ...", OWN_ANSWERS]
    printed = out
    assert f"against Pinocchio {version('pin')}" in printed
    assert printed.splitlines()[-1] == "equal"

    def off(model, states):
        values = real(model, states)
        return values | {"bias": values["bias"] * (1 + 1e-6)}

    real = _check_command.dynamics
    monkeypatch.setattr(_check_command, "dynamics", off)
    assert main([*arguments, "--json"]) == 1
    out = json.loads(capsys.readouterr().out)
    assert set(out["errors"]) == {"mass matrix", "bias", "acceleration", "inverse dynamics"}
    assert out["errors"]["bias"] == pytest.approx(1e-6, rel=0.9)
    assert all(error < 1e-12 for name, error in out["errors"].items() if name != "bias")
    assert out["equal"] is False
    assert main(arguments) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "DIFFERENT: bias"

    monkeypatch.setitem(sys.modules, "pinocchio", None)
    assert main(arguments) == 2
    assert "pip install pin" in capsys.readouterr().err


def test_check_of_an_mjcf_file(folder, capsys):
    pytest.importorskip("mujoco")
    assert main(["check", "swing.xml", "--states", "2", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["nv"], out["states"], out["equal"]) == (7, 2, True)
    assert out["against"].startswith("MuJoCo")
    assert all(0 < error < 1e-12 for error in out["errors"].values())


@pytest.mark.slow
def test_identify_from_files_of_the_working_directory(folder, capsys):
    model = jaxdyn.samples.chain(2).with_joint_friction(damping=0.2, friction=0.1, friction_velocity=0.05)
    own = '<!-- calibrated by hand --><gazebo reference="link0"><mu1>0.3</mu1></gazebo>'
    (folder / "chain.urdf").write_text(jaxdyn.to_urdf(jaxdyn.samples.chain(2)).replace("</robot>", own + "</robot>"))
    t = np.arange(600) / 100
    w, phase = np.array([1.0, 2.7, 4.4])[:, None, None], np.random.default_rng(0).uniform(0, 6, (3, 1, 2))
    angle = w * t[:, None] + phase
    q, v, a = (x.sum(axis=0) for x in (np.sin(angle), w * np.cos(angle), -(w**2) * np.sin(angle)))
    tau = np.asarray(jaxdyn.rnea(model, q, v, a))
    np.savetxt("run.csv", np.c_[t, q, tau], delimiter=",", header="t,q1,q2,tau1,tau2", comments="")
    recording = load_from_zero("run.csv", CsvColumns(q="q2,q1"))
    np.testing.assert_allclose(recording.q, q[:, ::-1])
    np.testing.assert_allclose(recording.tau, tau)
    (folder / "chain.toml").write_text(
        'name = "chain"\nrobot = "chain.urdf"\nrecording = "run.csv"\nfit_start = 0.0\nfit_stop = 4.0\n'
        "test_stop = 6.0\nrate = 100.0\ncutoff = 12.0\nplot = false\nreport = false\n"
    )
    assert main(["identify", "chain.toml", "--urdf", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["folder"] == "results/chain"
    assert out["fits"]["physical fit"] == {"status": "converged", "links_not_physical": []}
    assert out["held_out_relative"]["physical fit"] < 0.1 * out["held_out_relative"]["before"]
    assert out["held_out_relative_raw"]["physical fit"] < 0.1 * out["held_out_relative_raw"]["before"]
    written = sorted(x.name for x in Path(out["folder"]).glob("[!.]*"))
    assert written == ["identified.urdf", "parameters.json"]
    identified = (folder / "results" / "chain" / "identified.urdf").read_text()
    assert own in identified
    fitted = json.loads((folder / "results" / "chain" / "parameters.json").read_text())["fits"]["physical fit"]
    model = jaxdyn.load_urdf(identified)
    np.testing.assert_allclose(model.inertial_parameters, fitted["inertial_parameters"], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_view_writes_a_page_or_serves_one(folder, capsys, monkeypatch):
    pytest.importorskip("viser")
    pytest.importorskip("embreex")
    from jaxdyn.viz import Viewer, _ray_images

    # Few pixels with one ray each: how smooth the pictures are does not matter here.
    monkeypatch.setattr(_ray_images, "_SAMPLES", 1)
    for name in ("save_png", "save_video"):
        small = functools.partialmethod(getattr(Viewer, name), width=240, height=180)
        monkeypatch.setattr(Viewer, name, small)
    np.savez("run.npz", t=np.arange(3) / 10, q=np.zeros((3, 2)))
    np.savez("later.npz", t=np.arange(1, 4) / 10, q=np.zeros((3, 2)))
    assert main(["view", "arm.urdf", "--motion", "run.npz", "--compare", "run.npz", "--html", "arm.html"]) == 0
    assert capsys.readouterr().out == "wrote arm.html\n"
    assert "<html" in (folder / "arm.html").read_text()[:2000]
    assert main(["view", "arm.urdf", "--motion", "run.npz", "--compare", "later.npz"]) == 2
    assert "later.npz: its times t are not those of run.npz" in capsys.readouterr().err
    assert main(["view", "arm.urdf", "--png", "arm.png"]) == 0
    assert capsys.readouterr().out == "wrote arm.png\n"
    assert (folder / "arm.png").read_bytes().startswith(b"\x89PNG")
    seen = []
    still, moved = Path("still.png"), Path("moved.png")
    np.savez("turn.npz", t=np.arange(3) / 10, q=np.linspace(0, 1.5, 6).reshape(3, 2))
    for moment, path in (("0", still), ("0.2", moved)):
        assert main(["view", "arm.urdf", "--motion", "turn.npz", "--png", str(path), "--time", moment]) == 0
    assert still.read_bytes() != moved.read_bytes()
    assert main(["view", "arm.urdf", "--motion", "turn.npz", "--png", "late.png", "--time", "9"]) == 2
    assert main(["view", "arm.urdf", "--motion", "turn.npz", "--video", "turn.gif"]) == 0
    assert Path("turn.gif").read_bytes().startswith(b"GIF89a")
    assert "drawing the pictures of the film" in capsys.readouterr().err
    shape = '<collision><geometry><box size="0.3 0.3 0.3"/></geometry></collision></link>'
    Path("solid.urdf").write_text(two_links().replace("</link>", shape, 1))
    for options, path in (([], still), (["--collisions"], moved)):
        assert main(["view", "solid.urdf", "--png", str(path), *options]) == 0
    assert still.read_bytes() != moved.read_bytes()
    monkeypatch.setattr(Viewer, "wait", lambda viewer: seen.append(viewer.model.nv))
    assert main(["view", "arm.urdf", "--free-base", "--port", "8123"]) == 0
    assert re.search(r"open http://127.0.0.1:8\d+ in a browser", capsys.readouterr().out)
    assert seen == [8]


def script() -> str:
    path = shutil.which("jaxdyn", path=str(Path(sys.executable).parent))
    if path is None:
        pytest.skip("the program is not installed beside Python")
    return path


def test_the_installed_program_and_a_reader_that_leaves():
    done = subprocess.run([script(), "--help"], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: jaxdyn COMMAND")
    leaving = subprocess.Popen([script(), "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert leaving.stdout is not None
    assert leaving.stderr is not None
    leaving.stdout.close()
    assert leaving.stderr.read() == ""
    assert leaving.wait(300) == 0


def examples() -> list[str]:
    """The commands in the help texts and on the documentation's page."""
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
    texts = [
        x.EXAMPLES
        for x in (_info_command, _view_command, _check_command, _identify_command, _train_command, _play_command)
    ]
    texts += [_main.HELP.partition("examples:")[2], *re.findall(r"```sh\n(.*?)```", page, re.DOTALL)]
    return re.findall(r"^ *jaxdyn ([a-z].*)$", "\n".join(texts), re.MULTILINE)


OPTIONS = {
    "info": _info_command.ModelOptions,
    "view": _view_command.ViewOptions,
    "check": _check_command.CheckOptions,
    "train": _train_command.TrainOptions,
    "play": _play_command.PlayOptions,
}


def test_the_examples_are_understood(folder):
    (folder / "arm.toml").write_text(
        'name = "a"\nrobot = "arm"\nrecording = "simulated"\nfit_start = 0.0\nfit_stop = 4.0\ntest_stop = 6.0\n'
    )
    (folder / "motion.toml").write_text('name = "a"\ntask = "arm"\n')
    # Where no robots are installed, a name is that of a file.
    (folder / "go1").touch()
    commands = examples()
    assert len(commands) > 30
    for line in commands:
        command, *options = shlex.split(line.partition(" > ")[0], comments=True)
        if command == "identify":
            parse_command(IdentifyConfig, options, command, "", "")
        else:
            cli.parse_options(OPTIONS[command], options, f"jaxdyn {command}", "", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["view", "arm.urdf", "--png", "a.gif"], r"--png 'a\.gif' ends with '\.gif'; it must end with \.png, "),
        (["view", "arm.urdf", "--png", "a"], r"--png 'a' has no ending such as \.png"),
        (["view", "arm.urdf", "--png", "nowhere/a.png"], "there is no folder 'nowhere'"),
        (["view", "arm.urdf", "--html", "a.txt"], r"--html 'a\.txt' ends with '\.txt'; it must end with \.html"),
        (
            ["view", "arm.urdf", "--motion", "."],
            r"is a folder; give the file of a recording.*\n.*--motion takes",
        ),
        (["view", "arm.urdf", "--motion", "run.csv"], r"it begins like a text.*\n.*--motion takes a NumPy archive"),
        (["identify", *IDENTIFY, "--recording", "."], r"is a folder; give the file of a recording\. \. has .*run\.csv"),
        (["identify", *IDENTIFY, "--recording", "run.csv"], r"no column 't' for t .*\n.*--csv\.q 1-7"),
    ],
)
def test_wrong_files_and_endings_are_named_before_any_work(tmp_path, monkeypatch, arguments, message, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arm.urdf").write_text(to_urdf(samples.arm()))
    (tmp_path / "run.csv").write_text("0.5,1\n0.6,2\n")

    def draw(*_, **__):
        raise AssertionError("drawn before the check")

    monkeypatch.setattr("jaxdyn.viz._images.drawing_of", draw)
    assert main(arguments) == 2
    assert re.search(message, capsys.readouterr().err)


def test_info_cuts_no_names(tmp_path, capsys):
    body = "a_body_whose_name_is_longer_than_any_column_of_a_table_could_be_on_a_screen"
    builder = ModelBuilder().add_body(body, joint=Joint("revolute", lower=-1.234567, upper=2.345678), inertia=BALL)
    for k in range(60):
        builder.add_frame(f"frame_{k}_of_many", body)
    (tmp_path / "long.urdf").write_text(to_urdf(builder.build()))
    assert main(["info", str(tmp_path / "long.urdf")]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in (body, f"{body}_joint", "frame_0_of_many", "frame_59_of_many"))
    assert not any(word in text for word in ("...", "more"))
    assert "..." in builder.build().summary()


def test_info_lists_what_is_left_out_and_takes_robots_without_inertias(folder, capsys):
    shown = "<visual><geometry><sphere radius='0.1'/></geometry></visual>"
    bare = robot(link("ground", shown), link("upper", ""), joint("shoulder", "ground", "upper", '<axis xyz="0 1 0"/>'))
    (folder / "bare.urdf").write_text(bare)
    assert main(["info", "bare.urdf"]) == 0
    text = capsys.readouterr().out
    assert "kinematics only, as these links have no inertia: upper" in text
    assert "kg in motion" not in text
    assert "- <visual> of links (1): 'ground'" in text
    assert main(["info", "bare.urdf", "--json"]) == 0
    (part, *_) = [x for x in json.loads(capsys.readouterr().out)["left_out"] if "visual" in x["kind"]]
    assert part["names"] == ["'ground'"]
    assert not part["acts"]


def test_progress_is_plain_lines_where_there_is_no_terminal(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("jaxdyn.cli._progress.time", types.SimpleNamespace(monotonic=lambda: now[0]))
    with ProgressBar(total=100, unit=" robots", desc="fit") as bar:
        for k in range(100):
            now[0] += 1.0
            bar.update()
            bar.set_postfix(steps=k)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "fit: 30 of 100 robots in 30 s, steps=29"
    assert len(lines) == 3
    list(ProgressBar(range(5), desc="short"))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    list(ProgressBar(range(5), desc="drawn"))
    assert "\r" in capsys.readouterr().err
