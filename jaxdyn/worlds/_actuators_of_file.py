"""The actuators of the world of an MJCF file."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxdyn._types import Array, float_leaf
from jaxdyn.io.mjcf import FileActuators, enum_name, is_disabled
from jaxdyn.worlds._actuators import Actuators
from jaxdyn.worlds._parts import Places, bounded


def actuators_of_file(m: Any) -> Actuators:
    """Return the actuators of an `mjModel`, which must not have any that `reasons_against_actuators` names."""
    numbers, targets = FileActuators.of(m), _targets(m)
    out = np.asarray(m.actuator_outadr, int)
    return Actuators(
        names=numbers.names,
        **targets,
        circular=_circular(numbers, targets),
        gains=numbers.gains,
        biases=numbers.biases,
        dynamics=numbers.dynamics,
        states=tuple(np.asarray(m.actuator_actadr, int).tolist()),
        control_path=(),
        force_path=(),
        early=tuple(np.asarray(m.actuator_actearly, bool).tolist()),
        active=tuple(numbers.active.tolist()),
        idle=is_disabled(m, "actuation"),
        gear=float_leaf(numbers.gear),
        rod=float_leaf(m.actuator_cranklength),
        gain=float_leaf(numbers.gain),
        bias=float_leaf(numbers.bias),
        time=float_leaf(numbers.time),
        control_range=bounded(numbers.control_range),
        force_range=bounded(numbers.force_range),
        activation_range=bounded(numbers.activation_range),
        length_range=float_leaf(m.actuator_lengthrange[out]),
        unit_acceleration=float_leaf(m.actuator_acc0[out]),
        limits=(bool(m.jnt_actfrclimited.any()), bool(m.tendon_actfrclimited.any())),
        joint_range=_ranges(m.jnt_actfrclimited[m.dof_jntid], m.jnt_actfrcrange[m.dof_jntid]),
        tendon_range=_ranges(m.tendon_actfrclimited, m.tendon_actfrcrange),
    )


def _ranges(limited, values) -> Array:
    return bounded(np.where(np.asarray(limited, bool)[:, None], values, np.array([-np.inf, np.inf])))


def _targets(m) -> dict[str, Any]:
    """Return the fields of `Actuators` that say on what each acts."""
    scalars, turning, pulling, pushing, referred, cranks, adhering = [], [], [], [], [], [], []
    sites: dict[int, int] = {}
    for i in range(m.nactuator):
        target, (first, second) = enum_name("mjtTrn", m.actuator_trntype[i]), map(int, m.actuator_trnid[i])
        if target == "tendon":
            pulling.append((i, first))
        elif target == "body":
            adhering.append((i, first))
        elif target in ("site", "slidercrank"):
            rows = tuple(-1 if x < 0 else sites.setdefault(x, len(sites)) for x in (first, second))
            if target == "slidercrank":
                cranks.append((i, *rows))
            else:
                pushing.append(i)
                referred.append(rows)
        else:
            kind, q, v = enum_name("mjtJoint", m.jnt_type[first]), int(m.jnt_qposadr[first]), int(m.jnt_dofadr[first])
            if kind in ("slide", "hinge"):
                scalars.append((i, q, v))
            else:
                free = kind == "free"
                turning.append((i, q + 3 * free, v + 3 * free, target == "jointinparent", free))
    return {
        "axes_of_joints": tuple(scalars),
        "joined": (),
        "turning": tuple(turning),
        "pulling": tuple(pulling),
        "pushing": tuple(pushing),
        "sites": Places.of(m, "site", list(sites)),
        "referred": tuple(referred),
        "cranks": tuple(cranks),
        "adhering": tuple(adhering),
    }


def _circular(numbers: FileActuators, targets: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """Return the servos of `Actuators.circular`: those on ball joints, and on the rotation between two sites."""
    balls = [number for number, *_, free in targets["turning"] if not free]
    pairs, gear = zip(targets["pushing"], targets["referred"], strict=True), numbers.gear
    sites = [i for i, (_, reference) in pairs if reference >= 0 and not gear[i, :3].any()]
    found = [(i, 0) for i in balls] + [(i, 3) for i in sites]
    gain, bias = numbers.gain, numbers.bias
    kinds = [x == ("fixed", "affine") for x in zip(numbers.gains, numbers.biases, strict=True)]
    servo = np.array(kinds, bool) & (gain[:, 0] != 0) & (bias[:, 1] == -gain[:, 0])
    return tuple((i, k) for i, k in found if servo[i] and gear[i, k : k + 3].any())
