"""The actuators of an MJCF file: their numbers, and which of them this library has."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxdyn.io.mjcf import _compiled as mj

# The parameters that a type of gain or bias uses; MuJoCo's manual, `gaintype` and `biastype` of actuator/general.
_OF_GAINS = {"fixed": 1, "affine": 3, "muscle": 9}
_OF_BIASES = {"none": 0, "affine": 3, "muscle": 9}
_DYNAMICS = ("none", "integrator", "filter", "filterexact", "muscle")
_TARGETS = ("joint", "jointinparent", "tendon", "site", "slidercrank", "body")


class FileActuators(NamedTuple):
    """The numbers of the actuators of an `mjModel`, in its order. Infinite ranges are none."""

    names: tuple[str, ...]
    targets: tuple[str, ...]
    """The kind of object on which each acts."""
    gains: tuple[str, ...]
    biases: tuple[str, ...]
    dynamics: tuple[str, ...]
    active: np.ndarray
    """Whether `<option>` does not disable it."""
    gain: np.ndarray
    """`[n, 9]`: the parameters that its type uses, and zeros."""
    bias: np.ndarray
    time: np.ndarray
    """`[n, 3]`: parameters of the dynamics."""
    gear: np.ndarray
    """`[n, 6]`"""
    control_range: np.ndarray
    """`[n, 2]`, like the others"""
    force_range: np.ndarray
    activation_range: np.ndarray

    @classmethod
    def of(cls, m: Any) -> FileActuators:
        """Return the actuators of a compiled model, of which the first control and output counts where one has several
        (`reasons_against_actuators`)."""
        every = range(mj.actuator_count(m))
        types = [mj.actuator_types(m, i) for i in every]
        gain, bias = (np.array(x[:, :9]) for x in (m.actuator_gainprm, m.actuator_biasprm))
        for i, (of_gain, of_bias, _) in enumerate(types):
            gain[i, _OF_GAINS.get(of_gain, 0) :] = 0
            bias[i, _OF_BIASES.get(of_bias, 0) :] = 0
        off = [0 <= group < 31 and m.opt.disableactuator >> int(group) & 1 for group in m.actuator_group]
        controls = np.asarray(getattr(m, "actuator_ctrladr", every), int)
        kinds = [tuple(x[k] for x in types) for k in range(3)]
        return cls(
            tuple(mj.object_name(m, "actuator", i) for i in every),
            tuple(mj.transmission(m, i) for i in every),
            kinds[0],
            kinds[1],
            kinds[2],
            ~np.array(off, bool) & (not mj.is_disabled(m, "actuation")),
            gain,
            bias,
            np.array(m.actuator_dynprm[:, :3]),
            np.array([mj.gear(m, i) for i in every]).reshape(-1, 6),
            _ranges(m.actuator_ctrllimited & (not mj.is_disabled(m, "clampctrl")), m.actuator_ctrlrange)[controls],
            _ranges(m.actuator_forcelimited, m.actuator_forcerange),
            _ranges(m.actuator_actlimited, m.actuator_actrange),
        )


def _ranges(limited: Any, values: Any) -> np.ndarray:
    return np.where(np.asarray(limited, bool)[:, None], values, np.array([-np.inf, np.inf]))


def reasons_against_actuators(m: Any) -> dict[str, str]:
    """Return, by the names of the actuators of an `mjModel` that this library does not have, why."""
    numbers, out = FileActuators.of(m), {}
    delays = mj.field(m, "actuator_delay", len(numbers.names))
    sizes = [np.asarray(getattr(m, f"actuator_{x}num", 1)) for x in ("ctrl", "out")]
    several = (sizes[0] != 1) | (sizes[1] != 1) | (np.asarray(m.actuator_actnum) > 1)
    several = np.broadcast_to(several, len(numbers.names))
    for i, (name, target) in enumerate(zip(numbers.names, numbers.targets, strict=True)):
        gain, bias, dynamics = numbers.gains[i], numbers.biases[i], numbers.dynamics[i]
        if target not in _TARGETS:
            out[name] = f"acts on a {target}"
        elif gain not in _OF_GAINS or bias not in _OF_BIASES or dynamics not in _DYNAMICS:
            out[name] = f"has gain {gain!r}, bias {bias!r} and dynamics {dynamics!r}"
        elif m.actuator_plugin[i] >= 0:
            out[name] = "is a plugin"
        elif delays[i] != 0:
            out[name] = "has a delay"
        elif several[i]:
            out[name] = "has several controls, forces or activations"
    return out
