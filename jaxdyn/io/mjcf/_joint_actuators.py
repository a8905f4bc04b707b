"""`load_mjcf_actuators`: the actuators on joints of an MJCF file, as descriptions."""

from __future__ import annotations

import os
from typing import Any, Literal

import numpy as np

from jaxdyn.io.mjcf import _compiled as mj
from jaxdyn.io.mjcf._file_actuators import FileActuators, reasons_against_actuators
from jaxdyn.io.robot_files import LeftOut, warn_of_what_is_left_out
from jaxdyn.model import Actuator


def load_mjcf_actuators(
    path_or_text: str | os.PathLike | Any, *, unsupported: Literal["error", "warn"] = "error"
) -> tuple[Actuator, ...]:
    """Return the actuators on joints of an MJCF file, in its order, for `World(model, actuators=...)` and `to_mjcf`.

    One without a name is `actuator_i`, `i` MuJoCo's number. `path_or_text` is as in `load_mjcf`. Some actuators are
    refused, all by name (`unsupported="error"`), or left out with one warning (`"warn"`): those on tendons, sites,
    bodies and free joints, in parent axes on ball joints; muscles, models of direct-current motors, controllers with
    several inputs, user-defined ones, plugins, delays; and those that `<option>` disables.

    **Raises** `RobotFileError` for these and as `load_mjcf` does, `ImportError` without MuJoCo. **Warns**
    `LeftOutWarning` of those that are left out.
    """
    m, source = mj.compile_mjcf(path_or_text)
    numbers, against = FileActuators.of(m), reasons_against_actuators(m)
    reasons = [against.get(name) or _reason_against(m, numbers, i) for i, name in enumerate(numbers.names)]
    gaps = [
        mj.Gap(f"{name!r}, which {reason}", "take it out of the file")
        for name, reason in zip(numbers.names, reasons, strict=True)
        if reason
    ]
    mj.refuse(gaps, source, unsupported, "it has actuators that are not read")
    warn_of_what_is_left_out(source, [LeftOut("actuators that are not read", tuple(gap.what for gap in gaps), True)])
    joints = mj.Names.of(m).joints
    return tuple(_actuator(m, numbers, i, joints) for i, reason in enumerate(reasons) if not reason)


def _reason_against(m, numbers: FileActuators, i: int) -> str | None:
    """Return why `Actuator` cannot describe an actuator that worlds have, or None."""
    target, types = numbers.targets[i], (numbers.gains[i], numbers.biases[i], numbers.dynamics[i])
    if target not in ("joint", "jointinparent"):
        return f"acts on a {target}"
    kind = m.jnt_type[m.actuator_trnid[i, 0]]
    if kind == mj.FREE:
        return "acts on a free joint, along axes of the world; use an external force (f_ext)"
    if kind == mj.BALL and target == "jointinparent":
        return "acts on a ball joint along axes of the parent"
    if "muscle" in types:
        gain, bias, dynamics = types
        return f"has gain {gain!r}, bias {bias!r} and dynamics {dynamics!r}"
    return None if numbers.active[i] else "is disabled in <option>"


def _actuator(m, numbers: FileActuators, i: int, joints: list[str]) -> Actuator:
    gain, bias = (tuple(x[i, :3].tolist()) for x in (numbers.gain, numbers.bias))
    dynamics, joint = numbers.dynamics[i], int(m.actuator_trnid[i, 0])
    kind = _kind(gain, bias, dynamics)
    own = {
        "motor": {},
        "position": {"kp": gain[0], "kv": -bias[2]},
        "intvelocity": {"kp": gain[0], "kv": -bias[2]},
        "velocity": {"kv": gain[0]},
        "damper": {"kv": -gain[2]},
        "general": {"gain": gain, "bias": bias, "dynamics": dynamics},
    }[kind]
    if dynamics.startswith("filter"):
        own["time_constant"] = float(numbers.time[i, 0])
    for name in ("control_range", "force_range", "activation_range"):
        bounds = getattr(numbers, name)[i].tolist()
        own[name] = None if np.isinf(bounds).all() else tuple(bounds)
    gear = tuple(numbers.gear[i, : mj.NV[m.jnt_type[joint]]].tolist())
    return Actuator(joint=joints[joint], kind=kind, name=numbers.names[i], gear=gear, **own)


def _kind(gain: tuple, bias: tuple, dynamics: str) -> str:
    """Return the element of MJCF that has these parameters (the manual's table of each, chapter XML reference)."""
    still = dynamics in ("none", "filterexact")
    if gain == (1, 0, 0) and bias == (0, 0, 0) and dynamics == "none":
        return "motor"
    if gain[:2] == (0, 0) and gain[2] < 0 and bias == (0, 0, 0) and dynamics == "none":
        return "damper"
    if gain[0] > 0 and gain[1:] == (0, 0) and bias[0] == 0:
        if bias[1] == -gain[0] and dynamics == "integrator":
            return "intvelocity"
        if bias[1] == -gain[0] and still:
            return "position"
        if bias[1] == 0 and bias[2] == -gain[0] and still:
            return "velocity"
    return "general"
