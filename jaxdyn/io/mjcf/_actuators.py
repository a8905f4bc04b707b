"""`load_mjcf_actuators`: how the actuators of an MJCF file make the torques of its joints, as data."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any, Literal

from jaxdyn.io.mjcf import _compiled as mj
from jaxdyn.io.robot_files import LeftOut, warn_of_what_is_left_out


@dataclasses.dataclass(frozen=True)
class MjcfActuator:
    """An actuator on a joint, as an MJCF file has it.

    `gear` has one number `g` for every velocity of the joint. With the control `u`, cut to `control_range`, the length
    `l = g . q` (of a ball joint: of its rotation vector) and the velocity `s = g . v`, the actuator adds to `tau` of
    the joint

        g clip((gain_0 + gain_1 l + gain_2 s) w + bias_0 + bias_1 l + bias_2 s, force_range)

    (MuJoCo's manual, chapter Computation, Actuation model), where `gain_1` and `gain_2` count for the gain type
    `"affine"` only, the bias for the bias type `"affine"` only, and `w = u` unless the dynamics are a state: its
    integral (cut to `activation_range`), or `u` through a low-pass filter whose time constant (s) is `dynamics[0]`.

    - `kind`: the element of MJCF that has such parameters: `motor`, `position`, `velocity`, `intvelocity`, `damper`,
      else `general`.
    - `joint`: the joint's name in the model of `load_mjcf`.
    - `control_range`, `force_range`, `activation_range`: infinite where the file does not limit them.
    - `gain`, `bias`, `dynamics`: all parameters as compiled. Their types are `"fixed"` or `"affine"`; `"none"` or
      `"affine"`; `"none"`, `"integrator"`, `"filter"` or `"filterexact"`.

    Units are SI, angles in rad.
    """

    name: str
    kind: str
    joint: str
    gear: tuple[float, ...]
    control_range: tuple[float, float]
    force_range: tuple[float, float]
    gain_type: str
    gain: tuple[float, ...]
    bias_type: str
    bias: tuple[float, ...]
    dynamics_type: str
    dynamics: tuple[float, ...]
    activation_range: tuple[float, float]


def load_mjcf_actuators(
    path_or_text: str | os.PathLike | Any, *, unsupported: Literal["error", "warn"] = "error"
) -> tuple[MjcfActuator, ...]:
    """Return the actuators on joints of an MJCF file, in its order.

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
    """Return why `MjcfActuator` cannot describe an actuator, or None."""
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


def _actuator(m, i: int, names: mj.Names) -> MjcfActuator:
    gain, bias, dynamics = (tuple(x[i].tolist()) for x in (m.actuator_gainprm, m.actuator_biasprm, m.actuator_dynprm))
    gain_type, bias_type, dynamics_type = mj.actuator_types(m, i)
    joint = int(m.actuator_trnid[i, 0])
    control = m.actuator_ctrladr[i] if hasattr(m, "actuator_ctrladr") else i

    def bounds(limited, values, row: int) -> tuple[float, float]:
        lower, upper = values[row].tolist() if limited[row] else (-math.inf, math.inf)
        return lower, upper

    return MjcfActuator(
        name=mj.object_name(m, "actuator", i),
        kind=_kind(gain_type, gain, bias_type, bias, dynamics_type),
        joint=names.joints[joint],
        gear=tuple(mj.gear(m, i)[: mj.NV[m.jnt_type[joint]]].tolist()),
        control_range=bounds(m.actuator_ctrllimited, m.actuator_ctrlrange, control),
        force_range=bounds(m.actuator_forcelimited, m.actuator_forcerange, i),
        gain_type=gain_type,
        gain=gain,
        bias_type=bias_type,
        bias=bias,
        dynamics_type=dynamics_type,
        dynamics=dynamics,
        activation_range=bounds(m.actuator_actlimited, m.actuator_actrange, i),
    )


def _kind(gain_type: str, gain: tuple, bias_type: str, bias: tuple, dynamics: str) -> str:
    """Return the element of MJCF that has these parameters (the manual's table of each, chapter XML reference)."""
    plain = bias_type == dynamics == "none"
    if plain and gain_type == "fixed" and gain[0] == 1:
        return "motor"
    if plain and gain_type == "affine" and gain[:2] == (0, 0) and gain[2] < 0:
        return "damper"
    if gain_type == "fixed" and gain[0] > 0 and bias_type == "affine" and bias[0] == 0:
        if bias[1] == -gain[0] and dynamics == "integrator":
            return "intvelocity"
        if bias[1] == -gain[0] and dynamics in ("none", "filterexact"):
            return "position"
        if bias[1] == 0 and bias[2] == -gain[0] and dynamics in ("none", "filterexact"):
            return "velocity"
    return "general"
