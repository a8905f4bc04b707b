"""`load_mjcf_actuators`: the actuators on joints of an MJCF file, as descriptions."""

from __future__ import annotations

import os
from typing import Any, Literal

from jaxdyn.io.mjcf import _compiled as mj
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
    names = mj.Names.of(m)
    reasons = [_reason_against(m, i) for i in range(mj.actuator_count(m))]
    gaps = [
        mj.Gap(f"{mj.object_name(m, 'actuator', i)!r}, which {reason}", "take it out of the file")
        for i, reason in enumerate(reasons)
        if reason
    ]
    mj.refuse(gaps, source, unsupported, "it has actuators that are not read")
    warn_of_what_is_left_out(source, [LeftOut("actuators that are not read", tuple(gap.what for gap in gaps), True)])
    return tuple(_actuator(m, i, names) for i, reason in enumerate(reasons) if not reason)


_READ = ("fixed", "affine"), ("none", "affine"), ("none", "integrator", "filter", "filterexact")


def _reason_against(m, i: int) -> str | None:
    """Return why `Actuator` cannot describe an actuator, or None."""
    target, group = mj.transmission(m, i), int(m.actuator_group[i])
    if target not in ("joint", "jointinparent"):
        return f"acts on a {target}"
    kind = m.jnt_type[m.actuator_trnid[i, 0]]
    if kind == mj.FREE:
        return "acts on a free joint, along axes of the world; use an external force (f_ext)"
    if kind == mj.BALL and target == "jointinparent":
        return "acts on a ball joint along axes of the parent"
    gain, bias, dynamics = mj.actuator_types(m, i)
    if any(x not in names for x, names in zip((gain, bias, dynamics), _READ, strict=True)):
        return f"has gain {gain!r}, bias {bias!r} and dynamics {dynamics!r}"
    if m.actuator_plugin[i] >= 0:
        return "is a plugin"
    if mj.field(m, "actuator_delay", mj.actuator_count(m))[i] != 0:
        return "has a delay"
    if mj.is_disabled(m, "actuation") or (0 <= group < 31 and m.opt.disableactuator >> group & 1):
        return "is disabled in <option>"
    return None


def _actuator(m, i: int, names: mj.Names) -> Actuator:
    gain_type, bias_type, dynamics = mj.actuator_types(m, i)
    gain, bias = (tuple(x[i, :3].tolist()) for x in (m.actuator_gainprm, m.actuator_biasprm))
    # What a type does not use is zero.
    gain = gain if gain_type == "affine" else (gain[0], 0.0, 0.0)
    bias = bias if bias_type == "affine" else (0.0, 0.0, 0.0)
    kind = _kind(gain, bias, dynamics)
    numbers = {
        "motor": {},
        "position": {"kp": gain[0], "kv": -bias[2]},
        "intvelocity": {"kp": gain[0], "kv": -bias[2]},
        "velocity": {"kv": gain[0]},
        "damper": {"kv": -gain[2]},
        "general": {"gain": gain, "bias": bias, "dynamics": dynamics},
    }[kind]
    if dynamics.startswith("filter"):
        numbers["time_constant"] = float(m.actuator_dynprm[i, 0])
    joint, control = int(m.actuator_trnid[i, 0]), m.actuator_ctrladr[i] if hasattr(m, "actuator_ctrladr") else i

    def bounds(limited, values, row: int) -> tuple[float, ...] | None:
        return tuple(values[row].tolist()) if limited[row] else None

    return Actuator(
        joint=names.joints[joint],
        kind=kind,
        name=mj.object_name(m, "actuator", i),
        gear=tuple(mj.gear(m, i)[: mj.NV[m.jnt_type[joint]]].tolist()),
        control_range=bounds(m.actuator_ctrllimited, m.actuator_ctrlrange, control),
        force_range=bounds(m.actuator_forcelimited, m.actuator_forcerange, i),
        activation_range=bounds(m.actuator_actlimited, m.actuator_actrange, i),
        **numbers,
    )


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
