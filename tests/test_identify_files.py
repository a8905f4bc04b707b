"""The identification experiment resumes after interruptions, reads several recordings, and writes its files."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import jaxdyn
from experiments import identify
from jaxdyn import DataError, to_urdf
from jaxdyn.programs import FitFiles, _identification
from jaxdyn.sysid import JointEffects, Recording, fit_inverse_dynamics

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


def recorded(model, seed: int) -> dict[str, np.ndarray]:
    t = np.arange(600) / 100
    w, phase = np.array([1.0, 2.7, 4.4]), np.random.default_rng(seed).uniform(0, 6, (3, 2))
    angle = w[:, None] * t[:, None, None] + phase
    q, v, a = (x.sum(axis=1) for x in (np.sin(angle), w[:, None] * np.cos(angle), -(w[:, None] ** 2) * np.sin(angle)))
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
def test_an_interrupted_experiment_goes_on(data, capsys, monkeypatch):
    folder = data / "results" / "small"

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_identification.sysid, "fit_inverse_dynamics", interrupted)
        assert identify.main(command(data)) == 130
    assert "the same command continues" in capsys.readouterr().err
    assert sorted(x.name for x in (folder / "unfinished").iterdir()) == ["begun.json", "least squares.npz"]
    # The next run stops in the middle of a fit.
    with monkeypatch.context() as patch:

        def stopping(self, name, state) -> None:
            save(self, name, state)
            if state.round == 2:
                raise KeyboardInterrupt

        save = FitFiles.save_state
        patch.setattr(_identification, "SAVE_EVERY", 0.0)
        patch.setattr(FitFiles, "save_state", stopping)
        assert identify.main(command(data)) == 130
    capsys.readouterr()
    # Other settings are refused, so that results do not mix.
    assert identify.main(command(data, "--cutoff", "10")) == 2
    assert "configuration.cutoff was 12.0 and is 10.0" in capsys.readouterr().err

    with monkeypatch.context() as patch:
        patch.setattr(_identification.sysid, "ordinary_least_squares", interrupted)
        assert identify.main(command(data, "--urdf")) == 0
    assert "physical fit: continues in round 2 at step 1" in capsys.readouterr().out
    assert sorted(x.name for x in folder.iterdir()) == ["identified.urdf", "parameters.json"]
    gone_on = json.loads((folder / "parameters.json").read_text())
    assert identify.main(command(data, "--no-urdf")) == 0
    whole = json.loads((folder / "parameters.json").read_text())
    assert gone_on["fits"] == whole["fits"]
    assert gone_on["held_out_rmse"] == whole["held_out_rmse"]
    # The fit uses both runs and is tested on the third, where only the noise of the torques remains.
    assert whole["fits"]["physical fit"]["status"] == "converged"
    assert whole["held_out_rmse"]["raw torque"]["physical fit"]["all"] < 0.03
    assert whole["held_out_relative"]["physical fit"] < 0.1 * whole["held_out_relative"]["before"]
    assert "1128 samples" in capsys.readouterr().out

    identified = jaxdyn.load_urdf(folder / "identified.urdf")
    np.testing.assert_allclose(
        identified.inertial_parameters, gone_on["fits"]["physical fit"]["inertial_parameters"], rtol=1e-9, atol=1e-12
    )
    np.testing.assert_allclose(identified.damping, gone_on["fits"]["physical fit"]["damping"], rtol=1e-9)


@pytest.mark.parametrize("effects", [JointEffects(), JointEffects(spring=True)])
def test_a_kept_fit_is_the_same(effects, tmp_path):
    arrays = recorded(ROBOT, 0)
    recording = Recording(**arrays).differentiated()
    fit = fit_inverse_dynamics(ROBOT, recording, joint_effects=effects, rounds=2)
    kept = FitFiles(tmp_path / "kept", {"a": 1}, [recording])
    assert kept.load("fit", ROBOT, effects) is None
    kept.save("fit", fit)
    again = kept.load("fit", ROBOT, effects)
    assert again is not None
    np.testing.assert_array_equal(again.predict(recording), fit.predict(recording))
    np.testing.assert_array_equal(again.intervals().standard_error, fit.intervals().standard_error)
    assert (again.status, again.message, again.samples) == (fit.status, fit.message, fit.samples)
    changed = Recording(**(arrays | {"tau": arrays["tau"] + 1})).differentiated()
    with pytest.raises(DataError, match=r"data was .*Delete"):
        FitFiles(tmp_path / "kept", {"a": 1}, [changed])
    (tmp_path / "kept" / "fit.npz").write_bytes(b"half")
    with pytest.raises(DataError, match=r"fit\.npz: cannot be read .* to start again"):
        kept.load("fit", ROBOT, effects)
    kept.remove()
    assert not (tmp_path / "kept").exists()


def test_mistakes_are_named(data, capsys):
    assert identify.main(command(data, "--robot-without", "<robot>")) == 2
    assert "is in it 0 times; once is needed" in capsys.readouterr().err
    assert identify.main(command(data, "--more-recordings", "run_9.npz")) == 2
    assert "run_9.npz: no such file" in capsys.readouterr().err
    assert identify.main(["--test-recording", "run_9.npz", "--simulation.duration", "2"]) == 2
    assert "do not go with a simulated recording" in capsys.readouterr().err


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
