"""The identification experiment resumes after interruptions, reads several recordings, and writes its files."""

import dataclasses
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

import jaxdyn
from experiments import identify
from jaxdyn import DataError, cli, to_urdf
from jaxdyn.cli import _identification, _identification_data, alone_in
from jaxdyn.sysid import JointEffects, Recording, plan_identification
from jaxdyn.sysid.reports._fit_reports import _torque_figures

ROBOT = jaxdyn.samples.chain(2)


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """A folder with a robot, two runs to fit, and one held-out run."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "robot.urdf").write_text(to_urdf(ROBOT).replace("</robot>", "<oops></robot>"))
    truth = ROBOT.with_joint_friction(damping=0.2, friction=0.1, friction_velocity=0.05)
    for k, name in enumerate(("run_1", "run_2", "test")):
        np.savez(folder / f"{name}.npz", **recorded(truth, k))
    monkeypatch.setenv("JAXDYN_DATA", str(folder))
    return folder


def recorded(model, seed: int, shift: float = 0.0) -> dict[str, np.ndarray]:
    t = np.arange(600) / 100
    w, phase = np.array([1.0, 2.7, 4.4]), np.random.default_rng(seed).uniform(0, 6, (3, 2))
    angle = w[:, None] * t[:, None, None] + phase
    q, v, a = (x.sum(axis=1) for x in (np.sin(angle), w[:, None] * np.cos(angle), -(w[:, None] ** 2) * np.sin(angle)))
    q = q + shift
    tau = np.asarray(jaxdyn.rnea(model, q, v, a))
    return {"t": t, "q": q, "v": v, "tau": tau + 0.02 * np.random.default_rng(seed).standard_normal(tau.shape)}


def command(data: Path, *more: str) -> list[str]:
    config = data / "config.toml"
    config.write_text(
        'name = "small"\nrobot = "robot.urdf"\nrobot_without = "<oops>"\nrecording = "run_1.npz"\n'
        'more_recordings = ["run_2.npz"]\ntest_recording = "test.npz"\nfit_start = 0.0\nfit_stop = 6.0\n'
        "test_stop = 6.0\nrate = 100.0\ncutoff = 12.0\nplot = false\nreport = false\n"
    )
    return [str(config), "--results", str(data / "results"), *more]


@pytest.mark.experiments
def test_an_experiment_is_interrupted_and_begins_again(data, capsys, monkeypatch):
    folder = data / "results" / "small"

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_identification.sysid, "fit_inverse_dynamics", interrupted)
        assert identify.main(command(data)) == 130
    assert "interrupted" in capsys.readouterr().err
    assert sorted(x.name for x in folder.iterdir()) == [".lock"]
    assert identify.main(command(data, "--urdf")) == 0
    assert sorted(x.name for x in folder.iterdir()) == [".lock", "identified.urdf", "parameters.json"]
    whole = json.loads((folder / "parameters.json").read_text())
    # The fit uses both runs and is tested on the third, where only the noise of the torques remains.
    assert whole["fits"]["physical fit"]["status"] == "converged"
    assert whole["held_out_rmse"]["raw torque"]["physical fit"]["all"] < 0.03
    assert whole["held_out_relative"]["physical fit"] < 0.1 * whole["held_out_relative"]["before"]
    # The filter takes a part of the noise away.
    raw = whole["held_out_relative_raw"]["physical fit"]
    assert whole["held_out_relative"]["physical fit"] < raw < 0.1 * whole["held_out_relative_raw"]["before"]
    assert "1172 samples" in capsys.readouterr().out

    identified = jaxdyn.load_urdf(folder / "identified.urdf")
    np.testing.assert_allclose(
        identified.inertial_parameters, whole["fits"]["physical fit"]["inertial_parameters"], rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(identified.damping, whole["fits"]["physical fit"]["damping"], rtol=1e-9)


def test_two_identifications_do_not_share_a_folder(data, capsys):
    (data / "results" / "small").mkdir(parents=True)
    with alone_in(data / "results" / "small"):
        assert identify.main(command(data)) == 2
    assert f"another process is writing here (process {os.getpid()} on " in capsys.readouterr().err


def test_mistakes_are_named(data, capsys):
    assert identify.main(command(data, "--robot-without", "<robot>")) == 2
    assert "is in it 0 times; once is needed" in capsys.readouterr().err
    assert identify.main(command(data, "--more-recordings", "run_9.npz")) == 2
    assert "run_9.npz: no such file" in capsys.readouterr().err
    assert identify.main(["--test-recording", "run_9.npz", "--simulation.duration", "2"]) == 2
    assert "do not go with a simulated recording" in capsys.readouterr().err


def written(data: Path, monkeypatch) -> list[tuple]:
    """What reaches the fits, in the place of which the program is interrupted."""
    seen = []

    def stop(config, model, loaded):
        seen.append((model, loaded))
        raise KeyboardInterrupt

    monkeypatch.setattr(_identification, "_run_fits", stop)
    return seen


OTHER_UNITS = (
    *("--csv.t", "0", "--csv.q", "1-2", "--csv.current", "4,3", "--csv.delimiter", "tab", "--torque-gain", "50", "20"),
    *("--scale.t", "1e-3", "--scale.q", str(np.pi / 180)),
)


@pytest.mark.slow
def test_files_of_other_units_with_currents_and_without_names(data, monkeypatch):
    seen = written(data, monkeypatch)
    for name in ("run_1", "run_2", "test"):
        x = np.load(data / f"{name}.npz")
        columns = 1000 * x["t"], np.rad2deg(x["q"]), x["tau"][:, 1:] / 20, x["tau"][:, :1] / 50
        np.savetxt(data / f"{name}.csv", np.column_stack(columns), delimiter="\t", fmt="%.17g")
        np.savez(data / f"{name}_si.npz", t=x["t"], q=x["q"], tau=x["tau"])
        np.savez(data / f"{name}_current.npz", t=x["t"], q=-x["q"], current=x["tau"] / 7)
    for kind, options in (
        ("_si.npz", ()),
        (".csv", OTHER_UNITS),
        ("_current.npz", ("--torque-gain", "7", "--scale.q", "-1")),
        ("_si.npz", ("--trim", "0.5", "--fit-stop", "5", "--test-stop", "5")),
    ):
        names = ("--recording", "run_1", "--more-recordings", "run_2", "--test-recording", "test")
        files = [x if x.startswith("--") else x + kind for x in names]
        assert identify.main(command(data, *files, *options, "--name", f"run {len(seen)}")) == 130
    si, *others, trimmed = [loaded for _, loaded in seen]
    for loaded in others:
        for x, y in zip(*([*r.plan.recordings, r.raw] for r in (loaded, si)), strict=True):
            for array in ("t", "q", "v", "a", "tau"):
                np.testing.assert_allclose(getattr(x, array), getattr(y, array), rtol=1e-6, atol=1e-6)
    # Half a second is gone at both ends, and times begin anew.
    assert trimmed.plan.recordings[0].t[0] == pytest.approx(si.plan.recordings[0].t[0])
    assert trimmed.plan.recordings[0].t[-1] == pytest.approx(si.plan.recordings[0].t[-1] - 1, abs=0.02)
    held_out = trimmed.raw
    first = round(100 * (0.5 + held_out.t[0]))
    raw = np.load(data / "test.npz")["tau"][first : first + len(held_out)]
    np.testing.assert_allclose(held_out.tau, raw, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--csv.q", "2-1"), "csv.q is '2-1'; names between commas"),
        (("--csv.q", "1,,2"), "csv.q is '1,,2'"),
        (("--csv.q", "1-9"), "no column 5 for q .* columns 0 to 4 without names: give numbers"),
        (("--csv.delimiter", ","), "is the delimiter really ','"),
        (("--csv.delimiter", ""), "csv.delimiter is empty"),
        (("--csv.current", ""), "csv.current names no columns"),
        (("--torque-gain", "1", "2", "3"), "gain has shape .3,. .* there are 2 currents"),
        (("--torque-gain", "0", "2"), "the size of torque_gain is 0.0"),
        (("--torque-gain",), "give torque_gain, N m/A"),
        (("--scale.t", "-1"), "scale.t is -1.0"),
        (("--scale.q", "0"), "the size of scale.q is 0.0"),
        (("--scale.tau", "2"), "scale.tau does not go with torque_gain"),
        (("--transmission", "1", "0", "0"), "3 numbers; 2 x 2 are needed"),
        (("--trim", "4"), "0 samples after trimming 4 and 4 s"),
    ],
)
def test_mistakes_about_columns_and_units_are_named(data, capsys, options, message):
    x = np.load(data / "run_1.npz")
    columns = 1000 * x["t"], np.rad2deg(x["q"]), x["tau"][:, 1:] / 20, x["tau"][:, :1] / 50
    np.savetxt(data / "run_1.csv", np.column_stack(columns), delimiter="\t", fmt="%.17g")
    one = ("--recording", "run_1.csv", "--more-recordings", "--test-recording", "", "--fit-stop", "4")
    assert identify.main(command(data, *one, *OTHER_UNITS, *options)) == 2
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fit-stop", "9", "--test-stop", "9"), r"fit_stop is 9 s, but run_1.npz ends after 5.99 s"),
        (("--fit-start", "5.9"), "5.9.*|too few to filter"),
        (("--cutoff", "70"), "0.4 times the rate"),
        (("--joint-effects", "springs"), "no joint effect named 'springs'"),
        (("--bootstrap", "1"), "bootstrap is 1"),
        (("--rounds", "0"), "rounds"),
        (("--prior-weight", "-1"), "prior_weight is -1"),
    ],
)
def test_options_are_checked_before_any_work(data, capsys, monkeypatch, options, message):
    """What the recordings cannot fulfill is refused before the checks of torques and the fits, which take long."""
    monkeypatch.setattr(_identification_data, "require_plausible", lambda *_, **__: pytest.fail("work has begun"))
    assert identify.main(command(data, *options)) == 2
    assert re.search(message, capsys.readouterr().err)


def test_joints_that_did_not_move_are_locked(data, capsys, monkeypatch):
    seen = written(data, monkeypatch)
    gripper = jaxdyn.samples.chain(3)
    text = to_urdf(gripper).replace("</robot>", "<oops></robot>")
    (data / "robot.urdf").write_text(text)
    assert identify.main(command(data)) == 2
    printed = capsys.readouterr().err
    assert (
        "q has 2 columns, but the model needs 3: joint0, joint1, joint2; joints that were not recorded can" in printed
    )
    assert "--locked joint 0.0 as an option" in printed
    arguments = command(data, "--force")
    path = Path(arguments[0])
    path.write_text(path.read_text() + "\n[locked]\njoint2 = 0.3\n")
    assert identify.main(arguments) == 130
    assert identify.main([*command(data, "--force"), "--locked", "joint2", "0.3"]) == 130
    locked = gripper.with_locked_joints({"joint2": 0.3})
    for model, _ in seen:
        np.testing.assert_allclose(model.inertial_parameters, locked.inertial_parameters, rtol=1e-6)
    assert identify.main([*command(data), "--locked", "joint3", "0.3"]) == 2
    assert "no joint named 'joint3': did you mean" in capsys.readouterr().err
    path.write_text(path.read_text() + "\nlocked = 3\n")
    assert identify.main([str(path)]) == 2
    assert "locked is 3, but a table is needed" in capsys.readouterr().err


def test_joints_that_follow_others_need_no_column():
    recording = Recording(np.arange(3.0), np.zeros((3, 1)))
    follower = '<joint name="{}" type="prismatic"><parent link="hand"/><child link="{}"/>{}</joint>'
    finger = '<link name="{}"><inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>'
    fingers = "".join(finger.format(x) + "</inertial></link>" for x in ("left", "right"))
    mimic = '<mimic joint="opens"/>'
    joints = follower.format("opens", "left", "") + follower.format("follows", "right", mimic)
    model = jaxdyn.load_urdf(f'<robot name="gripper"><link name="hand"/>{fingers}{joints}</robot>')
    recording.require_columns(model)
    two = dataclasses.replace(recording, q=np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"needs 1: opens; follows follows opens and has no column$"):
        two.require_columns(model)


def test_wrong_data_are_refused_unless_forced(data, capsys, monkeypatch):
    seen = written(data, monkeypatch)
    x = dict(np.load(data / "test.npz"))
    np.savez(data / "test.npz", **(x | {"tau": -x["tau"]}))
    assert identify.main(command(data)) == 2
    printed = capsys.readouterr().err
    assert "test.npz: the torques of joint1 (-1) follow the model's with a negative factor" in printed
    assert "run_1.npz" not in printed
    assert "--force, or force = true, goes on" in printed
    assert not seen
    assert identify.main(command(data, "--force")) == 130
    assert (
        "warning: test.npz: the torques of joint1 (-1) follow the model's with a negative factor"
        in capsys.readouterr().err
    )
    assert len(seen) == 1


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("JAXDYN_DATA"), reason="JAXDYN_DATA does not name the recorded data")
def test_kuka(tmp_path, capsys):
    config = str(identify.DEFAULT_CONFIG.with_name("identify_kuka.toml"))
    assert identify.main([config, "--results", str(tmp_path)]) == 0
    with capsys.disabled():
        print(capsys.readouterr().out[-1500:])
    out = json.loads((tmp_path / "kuka" / "parameters.json").read_text())
    assert all(out["fits"]["physical fit"]["physical"])
    assert out["held_out_relative"]["physical fit"] < 1.1 * out["held_out_relative"]["least squares"]
    assert out["held_out_relative"]["physical fit"] < 0.025


def test_the_verdict_compares_held_out_data_with_those_of_the_fit():
    first, second = (Recording(**recorded(ROBOT, k), name=f"run {k}") for k in range(2))
    plan = plan_identification(ROBOT, first, joint_effects=JointEffects(), prior_weight=1.0, cutoff=5.0)
    found = plan.identify(progress=False)
    assert found.linear is not None
    fits = {_identification.PHYSICAL: found.fit, _identification.LINEAR: found.linear}
    assert second.tau is not None
    said = []
    for extra in (0.0, 3.0):
        test = dataclasses.replace(second, tau=second.tau + extra * np.sin(5 * second.t)[:, None]).prepared(5.0)
        said.append(_identification._verdict(found, found.fit.evaluate(test))[1])
        # Pictures of the page show the errors that its tables have.
        (figure, _) = _torque_figures(fits, test).values()
        drawn = figure.axes[1].lines[1].get_ydata()
        expected = fits[_identification.PHYSICAL].evaluate(test).rms_error[0]
        assert np.sqrt(np.mean(np.square(drawn))) == pytest.approx(expected)
    assert re.fullmatch(r"On the held-out data the error is [\d.]+ % of the torque's norm[.]", said[0])
    assert re.search(r"Its root mean square is [\d.e+]+ times that on the fit's own data", said[1])


@pytest.mark.filterwarnings("ignore:.*jump by a turn; they are unwrapped:jaxdyn.sysid.RecordingWarning")
@pytest.mark.parametrize("rate", [0.0, 100.0])
def test_angles_of_joints_without_limits_may_jump_by_a_turn_where_they_are_held_out(data, rate):
    for k, name in enumerate(("run_1", "test")):
        x = recorded(ROBOT, k, shift=2.0)
        wrapped = (x["q"] + np.pi) % (2 * np.pi) - np.pi
        assert (np.abs(np.diff(wrapped, axis=0)) > 6).any()
        np.savez(data / f"{name}.npz", **x | {"q": wrapped})
    options = {"test_recording": "test.npz", "joint_effects": ("viscous",), "prior_weight": 1.0, "cutoff": 12.0}
    config = cli.IdentifyConfig("x", "robot.urdf", "run_1.npz", 0.0, 6.0, 6.0, rate=rate, **options)
    loaded = cli.load_data(config, ROBOT)
    for recording in (*loaded.plan.recordings, loaded.held_out, loaded.raw):
        assert np.abs(np.diff(recording.q, axis=0)).max() < 1


def test_a_robot_that_its_file_cannot_have_is_written_anew(data, capsys):
    times = {"fit_start": 0.0, "fit_stop": 1.0, "test_stop": 2.0}
    config = cli.IdentifyConfig("x", "robot.urdf", "run_1.npz", robot_without="<oops>", **times)
    own = cli.identified_urdf(config, ROBOT)
    assert own == (data / "robot.urdf").read_text().replace("<oops>", "")
    assert capsys.readouterr().out == ""
    locked = ROBOT.with_locked_joints({ROBOT.joint_names[0]: 0.3})
    assert jaxdyn.load_urdf(cli.identified_urdf(config, locked)).joint_names == locked.joint_names
    assert "identified.urdf is written anew, without meshes and comments: " in capsys.readouterr().out
