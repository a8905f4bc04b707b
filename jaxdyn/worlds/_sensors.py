"""Sensors of a world: what they read, as data, and their values at one state.

MuJoCo's documentation, chapter XML reference, section "sensor"; `engine_sensor.c` of MuJoCo 4.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from jaxdyn._errors import ModelError, RobotFileError, look_up
from jaxdyn._types import Array, Float, float_leaf
from jaxdyn.algorithms.recursions import Robot
from jaxdyn.io.mjcf import enum_name, object_name, with_actuators
from jaxdyn.tree import take_rows
from jaxdyn.worlds._parts import Instant, Part, PartRows, Places, disabled
from jaxdyn.worlds._rays import Targets, shapes_without_rays
from jaxdyn.worlds._readings import Readings
from jaxdyn.worlds._sensor_values import VALUES
from jaxdyn.worlds._turns import Turns
from jaxdyn.worlds._zones import ZONES

_FRAMES = {"xbody": "body", "body": "inertia", "geom": "geom", "site": "site"}
"""The kinds of frames (`Places.of`) of MuJoCo's types of objects."""
_WITH_BODIES = ("subtreecom", "subtreelinvel", "subtreeangmom", "force", "torque", "e_potential", "e_kinetic")
_CUTS = {"real": 2, "positive": 1}


class Sensors(Part):
    """Sensors of a world, in the order in which they are asked for."""

    names: tuple[str, ...] = eqx.field(static=True)
    types: tuple[str, ...] = eqx.field(static=True)
    objects: tuple[int, ...] = eqx.field(static=True)
    """MuJoCo's number of the object of each."""
    sizes: tuple[int, ...] = eqx.field(static=True)
    """How many numbers each returns."""
    silent: bool = eqx.field(static=True)
    """Whether `<option>` disables sensors, which are zero then."""
    cut: tuple[int, ...] = eqx.field(static=True)
    """How values are cut off: 0 for those that are not, 1 from above, 2 on both sides."""
    cutoff: Float[Array, "*batch n"]
    places: tuple[int, ...] = eqx.field(static=True)
    """The row of each in `frames`, -1 without."""
    references: tuple[int, ...] = eqx.field(static=True)
    """The row of the frame in which each measures, -1 for the world."""
    frames: Places
    carriers: tuple[int, ...] = eqx.field(static=True)
    """MuJoCo's body of each of `frames`."""
    zones: tuple[str, ...] = eqx.field(static=True)
    """The shape of each of `frames` that is a site, else empty."""
    zone_sizes: Float[Array, "*batch nf 3"]
    turned: tuple[int, ...] = eqx.field(static=True)
    """The rows of `frames` whose quaternions are read."""
    turns: Turns
    members: tuple[tuple[int, int], ...] = eqx.field(static=True)
    """For sensors of subtrees and of forces in bodies: the sensor, and a row in `bodies`."""
    bodies: Places
    """The frames of inertia of these bodies."""
    body_numbers: tuple[int, ...] = eqx.field(static=True)
    body_roots: tuple[int, ...] = eqx.field(static=True)
    """MuJoCo's numbers of these bodies, and of the first bodies of their trees."""
    mass: Float[Array, "*batch nb"]
    inertia: Float[Array, "*batch nb 3"]
    joints: tuple[tuple[str, int, int], ...] = eqx.field(static=True)
    """All joints: the type, the first coordinate, and the first degree of freedom."""
    limited: tuple[bool, ...] = eqx.field(static=True)
    joint_range: Float[Array, "*batch nj 2"]
    joint_margin: Float[Array, "*batch nj"]
    tendons_limited: tuple[bool, ...] = eqx.field(static=True)
    tendon_range: Float[Array, "*batch nt 2"]
    tendon_margin: Float[Array, "*batch nt"]
    pulled: tuple[int, ...] = eqx.field(static=True)
    """The tendon of each actuator, -1 for those on others."""
    magnetic: Float[Array, "*batch 3"]
    armature: Float[Array, "*batch nv"]
    targets: Targets

    @classmethod
    def of(cls, m, names: Sequence[str] | None = None, source: str = "the world") -> Self:
        """Return sensors of an `mjModel`, by default all.

        **Raises** `RobotFileError`, with all names, if some are not built; `UnknownNameError`.
        """
        known = [object_name(m, "sensor", i) for i in range(m.nsensor)]
        chosen = list(range(m.nsensor)) if names is None else [look_up(name, known, "sensor") for name in names]
        _require_built(m, [known[i] for i in chosen], source)
        types = tuple(_type(m, i) for i in chosen)
        objects = tuple(int(m.sensor_objid[i]) for i in chosen)
        limits = not {"limit", "constraint"} & disabled(m)
        armature = with_actuators(m, m.dof_armature, m.tendon_armature, m.actuator_armature)[0]
        return cls(
            names=tuple(known[i] for i in chosen),
            types=types,
            objects=objects,
            sizes=tuple(int(m.sensor_dim[i]) for i in chosen),
            silent="sensor" in disabled(m),
            cut=tuple(
                _CUTS.get(enum_name("mjtDataType", m.sensor_datatype[i]), 0) * int(m.sensor_cutoff[i] > 0)
                for i in chosen
            ),
            cutoff=float_leaf(m.sensor_cutoff[chosen]),
            **_frames(m, chosen, types),
            **_members(m, types, objects),
            joints=tuple(
                (enum_name("mjtJoint", m.jnt_type[j]), int(m.jnt_qposadr[j]), int(m.jnt_dofadr[j]))
                for j in range(m.njnt)
            ),
            limited=tuple(bool(x) and limits for x in m.jnt_limited),
            joint_range=float_leaf(m.jnt_range),
            joint_margin=float_leaf(m.jnt_margin),
            tendons_limited=tuple(bool(x) and limits for x in m.tendon_limited),
            tendon_range=float_leaf(m.tendon_range),
            tendon_margin=float_leaf(m.tendon_margin),
            pulled=tuple(
                int(m.actuator_trnid[i, 0]) if enum_name("mjtTrn", m.actuator_trntype[i]) == "tendon" else -1
                for i in range(m.nactuator)
            ),
            magnetic=float_leaf(np.array(m.opt.magnetic)),
            armature=float_leaf(armature),
            targets=Targets.of(m, "rangefinder" in types),
        )


def _type(m, i: int) -> str:
    return enum_name("mjtSensor", m.sensor_type[i])


def _frames(m, chosen: Sequence[int], types: Sequence[str]) -> dict[str, Any]:
    """Return the fields of `Sensors` that say where they are."""
    frames: dict[tuple[str, int], int] = {}

    def row(of_type: int, number: int) -> int:
        kind = _FRAMES.get(enum_name("mjtObj", of_type))
        return -1 if number < 0 or kind is None else frames.setdefault((kind, int(number)), len(frames))

    subtree = [x.startswith("subtree") for x in types]
    objects = zip(m.sensor_objtype[chosen], m.sensor_objid[chosen], subtree, strict=True)
    places = [-1 if whole else row(*rest) for *rest, whole in objects]
    references = [row(*x) for x in zip(m.sensor_reftype[chosen], m.sensor_refid[chosen], strict=True)]
    pairs = zip(places, references, types, strict=True)
    turned = sorted({x for *ends, kind in pairs if kind == "framequat" for x in ends if x >= 0})
    keys = list(frames)
    sites = [i if kind == "site" else -1 for kind, i in keys]
    return {
        "places": tuple(places),
        "references": tuple(references),
        "frames": Places.of_each(m, keys),
        "carriers": tuple(i if k in ("body", "inertia") else int(getattr(m, f"{k}_bodyid")[i]) for k, i in keys),
        "zones": tuple("" if i < 0 else enum_name("mjtGeom", m.site_type[i]) for i in sites),
        "zone_sizes": float_leaf(np.array([np.ones(3) if i < 0 else m.site_size[i] for i in sites]).reshape(-1, 3)),
        "turned": tuple(turned),
        "turns": Turns.of(m, [keys[i] for i in turned]),
    }


def _members(m, types: Sequence[str], objects: Sequence[int]) -> dict[str, Any]:
    """Return the fields of `Sensors` about the bodies whose momenta and forces are summed."""
    bodies: dict[int, int] = {}
    members = []
    for k, (kind, number) in enumerate(zip(types, objects, strict=True)):
        if kind in _WITH_BODIES:
            root = number if kind.startswith("subtree") else 0 if kind[:2] == "e_" else int(m.site_bodyid[number])
            inside = {root}
            for i in range(root + 1, m.nbody):
                if m.body_parentid[i] in inside:
                    inside.add(i)
            members += [(k, bodies.setdefault(i, len(bodies))) for i in sorted(inside)]
    numbers = list(bodies)
    return {
        "members": tuple(members),
        "bodies": Places.of(m, "inertia", numbers),
        "body_numbers": tuple(numbers),
        "body_roots": tuple(m.body_rootid[numbers].tolist()),
        "mass": float_leaf(m.body_mass[numbers]),
        "inertia": float_leaf(m.body_inertia[numbers]),
    }


def reasons_against_sensors(m) -> dict[str, str]:
    """Return, by the names of the sensors of an `mjModel` that are not built, why."""
    out = {}
    for i in range(m.nsensor):
        kind, reason = _type(m, i), None
        ends = [(m.sensor_objtype[i], m.sensor_objid[i]), (m.sensor_reftype[i], m.sensor_refid[i])]
        shape = enum_name("mjtGeom", m.site_type[ends[kind == "insidesite"][1]]) if kind in _ZONED else ""
        if kind not in VALUES:
            reason = f"sensors of type {kind!r} are not built"
        elif any(number >= 0 and enum_name("mjtObj", of_type) == "camera" for of_type, number in ends):
            reason = "it reads a camera"
        elif shape and shape not in ZONES:
            reason = f"its site is a {shape}"
        elif kind == "rangefinder" and (shapes_without_rays(m) or m.sensor_dim[i] != 1 or m.sensor_intprm[i, 0] != 1):
            reason = f"rays are not built for {', '.join(sorted(shapes_without_rays(m))) or 'its kind of data'}"
        elif m.sensor_delay[i] != 0 or m.sensor_interval[i, 0] != 0:
            reason = "it has a delay or an interval"
        if reason:
            out[object_name(m, "sensor", i)] = reason
    return out


_ZONED = ("touch", "insidesite")


def _require_built(m, names: Sequence[str], source: str) -> None:
    against = reasons_against_sensors(m)
    refused = [name for name in names if name in against]
    if refused:
        lines = "\n".join(f"- sensor {name!r}: {against[name]}" for name in refused)
        raise RobotFileError(f"{source}: it has sensors that are not built; ask for the others by name:\n{lines}")


def sensor_values(robot: Robot, sensors: PartRows, at: Instant, readings: Readings):
    """Return the values of the sensors, one after the other, `[n, *batch]`: MuJoCo's `sensordata`.

    **Raises** `ModelError` if a sensor reads what `readings` lacks.
    """
    starts = np.cumsum([0, *sensors.sizes])
    if sensors.silent or not sensors.types:
        return jnp.zeros((int(starts[-1]), *robot.batch), robot.dtype)
    found, owners = [], []
    for kind in dict.fromkeys(sensors.types):
        which = np.flatnonzero([x == kind for x in sensors.types])
        needed, function = VALUES[kind]
        for name in needed:
            if getattr(readings, name) is None:
                raise ModelError(f"sensors of type {kind!r} read {name!r}, which is not given")
        parts = function(robot, sensors, at, readings, which)
        found += [robot.broadcast(x) for x in parts]
        owners += [starts[which] + k for k in range(len(parts))]
    data = take_rows(jnp.concatenate(found), np.argsort(np.concatenate(owners)))
    return _cut_off(robot, sensors, data)


def _cut_off(robot: Robot, sensors: PartRows, data):
    of_value = np.repeat(np.arange(len(sensors.types)), sensors.sizes)
    cut = np.array(sensors.cut)[of_value]
    if not cut.any():
        return data
    limit = take_rows(sensors.cutoff, of_value)
    above, below = (robot.constant(x.astype(float)) > 0 for x in (cut > 0, cut == 2))
    data = jnp.where(above, jnp.minimum(data, limit), data)
    return jnp.where(below, jnp.maximum(data, -limit), data)
