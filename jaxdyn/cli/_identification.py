"""Identification of a robot's inertias, friction and rotor inertias from recordings of its motion and torques.

On held-out data it compares the parameters of the robot's file, ordinary least squares, and the physically consistent
fit. It writes parameters.json, torque.png, report.html and, on request, identified.urdf.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxdyn import sysid
from jaxdyn._printing import percent
from jaxdyn.cli._identification_data import (
    IdentificationData,
    IdentifyConfig,
    identified_urdf,
    load_data,
    load_robot,
    physical_start,
)
from jaxdyn.cli._progress import ProgressBar, announce
from jaxdyn.cli._result_files import alone_in, pyplot, save_figure, write_durably, write_json
from jaxdyn.model import Model
from jaxdyn.viz import plot_torques

BEFORE, LINEAR, PHYSICAL = "before", "least squares", "physical fit"

_RELATIVE = {"held_out_relative": "filtered torque", "held_out_relative_raw": "raw torque"}
"""The keys of the held-out errors relative to the torque's norm, with the torque of each."""
# The fit does not carry over to held-out data where its error is this many times larger, and not just rounding.
_TIMES_LARGER, _EXACT = 2.0, 1e-6
LEAVES = ("inertial_parameters", "armature", "damping", "friction", "friction_velocity")
"""The fields of a model that every fit changes."""
_LENGTHS = ("joint_placement", "loop_placement1", "loop_placement2")

type Fits = dict[str, sysid.InverseDynamicsFit]
type Errors = dict[str, dict[str, np.ndarray]]
"""The root mean square error of each joint, N m, by the torque compared with and by the fit."""


def identify(config: IdentifyConfig) -> dict[str, Any]:
    """Identify, print, and write `<results>/<name>/`; returns the content of `parameters.json`. **Raises** `DataError`
    if another process is writing there."""
    model = load_robot(config.robot, ("arm",), without=config.robot_without).with_locked_joints(config.locked)
    data = load_data(config, physical_start(model))
    folder = config.make_folder()
    with alone_in(folder):
        return _identify(config, folder, model, data)


def _identify(config: IdentifyConfig, folder: Path, model: Model, data: IdentificationData) -> dict[str, Any]:
    found, fits, seconds = _run_fits(config, model, data)
    held_out = {"raw torque": data.raw, "filtered torque": data.held_out}
    if data.simulated is not None:
        held_out["noise-free torque"] = data.simulated.exact.between(config.fit_stop, config.test_stop)
    evaluated = {
        kind: {name: x.evaluate(recording) for name, x in fits.items()} for kind, recording in held_out.items()
    }
    errors = {kind: {name: x.rms_error for name, x in by_fit.items()} for kind, by_fit in evaluated.items()}
    relative = {key: {name: x.relative for name, x in evaluated[kind].items()} for key, kind in _RELATIVE.items()}
    _print_errors(model, data, fits, errors, relative)
    verdict = _verdict(found, evaluated["filtered torque"][PHYSICAL])
    print("\nverdict on the physical fit", *verdict, sep="\n- ")
    out = _summary(config, model, fits, errors, seconds) | relative | {"verdict": verdict}
    _write(folder, config, data, fits, out)
    if config.plot:
        draw_torques(folder / "torque.png", config, model, data, evaluated["filtered torque"])
    return out


def _run_fits(
    config: IdentifyConfig, model: Model, data: IdentificationData
) -> tuple[sysid.Identification, Fits, dict[str, float]]:
    """Return the identification, and its fits and their wall times (s) by name."""
    announce("compiling, and fitting with physical links and by least squares")
    began, at = time.perf_counter(), {}
    with ProgressBar(desc=PHYSICAL, unit=" steps", mininterval=0.1) as bar:

        def report(step: sysid.Step) -> None:
            decrease = f"{step.expected_decrease:.1e}"
            bar.set_postfix(round=step.round, cost=f"{step.cost:.6g}", expected_decrease=decrease, refresh=False)
            bar.update()

        found = data.plan.identify(
            friction_velocity=config.friction_velocity,
            rounds=config.rounds,
            max_iterations=config.max_iterations,
            report=report,
            progress=lambda doing: at.setdefault(doing.split(",")[0].split(" for ")[0], time.perf_counter()),
        )
    seconds = {LINEAR: time.perf_counter() - at[LINEAR], PHYSICAL: at["searching"] - began}
    times = ", ".join(f"{name} {x:.1f} s" for name, x in seconds.items())
    before = sysid.InverseDynamicsFit.unfitted(model, data.plan.recordings[0].transmission)
    assert found.linear is not None, "a drive gain is refused before"
    fits, physical = {BEFORE: before, LINEAR: found.linear, PHYSICAL: found.fit}, found.fit
    print(
        f"physical fit: {physical.status.text}; {physical.iterations} steps, {physical.rounds} rounds; least squares: "
        f"{found.linear.status.text}\nwall time, compilation included: {times}"
    )
    return found, fits, seconds


def _verdict(found: sysid.Identification, held_out: sysid.Evaluation) -> list[str]:
    """Sentences about the physical fit."""
    first, *others = found.verdict()
    sentence = f"On the held-out data the error is {percent(held_out.relative)} of the torque's norm."
    times = held_out.total_rms / max(found.fit.evaluate(found.plan.recordings).total_rms, 1e-300)
    if times > _TIMES_LARGER and held_out.relative > _EXACT:
        sentence += (
            f" Its root mean square is {times:.2g} times that on the fit's own data: the model or these data lack "
            "something that the held-out torques have, and the intervals do not show it."
        )
    return [first, sentence, *others]


def _print_errors(
    model: Model, data: IdentificationData, fits: Fits, errors: Errors, relative: dict[str, dict[str, float]]
) -> None:
    noise_free = errors.get("noise-free torque")
    for kind in ("raw torque", "filtered torque"):
        _print_table(f"held-out RMSE against the {kind}, N m", model.joint_names, errors[kind])
    print(sysid.quality_table(fits, data.plan.recordings, "RMSE on the data of the fit, N m") + "\n")
    if noise_free is not None:
        title = "held-out RMSE against the noise-free torque on the noise-free motion, N m"
        _print_table(title, model.joint_names, noise_free)
    for key, kind in _RELATIVE.items():
        shown = ", ".join(f"{name} {percent(x)}" for name, x in relative[key].items())
        print(f"held-out error over the norm of the {kind}: {shown}")
    for name in (LINEAR, PHYSICAL):
        bad = [body for body, ok in zip(model.body_names, fits[name].physical, strict=True) if not ok]
        verdict = f"{len(bad)} of {model.nb} links not physical: {', '.join(bad)}" if bad else "every link is physical"
        print(f"{name}: {verdict}")


def _print_table(title: str, joints: Sequence[str], by_fit: dict[str, np.ndarray]) -> None:
    width = max(len("all joints"), *(len(name) for name in joints)) + 2
    print(f"\n{title}\n{'joint':{width}}" + "".join(f"{x:>15}" for x in (*by_fit, "physical / ls")))
    totals = {name: np.append(values, _over_all(values)) for name, values in by_fit.items()}
    for i, joint in enumerate((*joints, "all joints")):
        values = [*(x[i] for x in totals.values())]
        ratio = totals[PHYSICAL][i] / totals[LINEAR][i]
        print(f"{joint:{width}}" + "".join(f"{x:15.4f}" for x in values) + f"{ratio:15.3f}")
    print()


def _over_all(by_joint: np.ndarray) -> float:
    return float(np.sqrt(np.mean(by_joint**2)))


def _summary(config: IdentifyConfig, model: Model, fits: Fits, errors: Errors, seconds: dict[str, float]) -> dict:
    def content(fit: sysid.InverseDynamicsFit) -> dict:
        found = (*LEAVES, *_LENGTHS) if config.lengths else LEAVES
        values = {name: x for name in found if (x := getattr(fit.model, name)) is not None}
        values |= {
            name: getattr(fit, name) for name in ("offset", "sigma", "physical", "message", "cost", "iterations")
        }
        out = {name: np.asarray(x).tolist() for name, x in values.items()} | {"status": fit.status.name.lower()}
        if (motors := fit.values.motors) is not None:
            out["motors"] = {name: x.tolist() for name, x in vars(motors).items()}
        return out

    return {
        "config": dataclasses.asdict(config),
        "bodies": list(model.body_names),
        "joints": list(model.joint_names),
        "order": "m, mcx, mcy, mcz, Ixx, Ixy, Iyy, Ixz, Iyz, Izz about the origin of the body's frame; SI",
        "fits": {name: content(fit) for name, fit in fits.items()},
        "held_out_rmse": {
            kind: {name: {"joints": x.tolist(), "all": _over_all(x)} for name, x in by_fit.items()}
            for kind, by_fit in errors.items()
        },
        "seconds": seconds,
    }


def _write(folder: Path, config: IdentifyConfig, data: IdentificationData, fits: Fits, out: dict[str, Any]) -> None:
    write_json(folder / "parameters.json", out, announce=True)
    physical, held_out, plan = fits[PHYSICAL], data.held_out, data.plan
    if config.urdf:
        text = identified_urdf(config, physical.model).encode()
        write_durably(folder / "identified.urdf", lambda path: path.write_bytes(text), announce=True)
    if config.report:
        note = (
            f"Robot {config.robot}; recordings {', '.join(x.name for x in plan.recordings)}; torques are compared "
            f"below {plan.cutoff:.3g} Hz; held out {held_out.name}, {held_out.t[0]:.2f} to {held_out.t[-1]:.2f} s."
        )
        title = f"Identification: {config.name}"
        announce("resampling the recordings, and writing the report" if config.bootstrap else "writing the report")
        draws = sysid.bootstrap(physical, plan.recordings, draws=config.bootstrap) if config.bootstrap else None
        options: dict[str, Any] = {"title": title, "notes": [note, *out["verdict"]], "bootstrap": draws}
        report = functools.partial(sysid.write_report, fits=fits, train=plan.recordings, test=held_out, **options)
        write_durably(folder / "report.html", report, announce=True)


def draw_torques(
    path: Path, config: IdentifyConfig, model: Model, data: IdentificationData, found: dict[str, sysid.Evaluation]
) -> None:
    """Draw the predicted torques over the measured ones of the held-out data, as `found` has them."""
    if pyplot() is None:
        return
    title = f"{config.name}: torques held out, below {data.plan.cutoff:.3g} Hz"
    (t,), (tau,) = next((x.t, x.torque) for x in found.values())
    raw = np.stack([np.interp(t, data.raw.t, x) for x in data.raw.require("tau")[0].T], axis=-1)
    predicted = {name: tau + x.residual[0] for name, x in found.items()}
    save_figure(path, plot_torques(model, t, tau, predicted, raw=raw, title=title), dpi=110)
