"""`to_mjcf` of a world: the file of a world with the numbers that the world has now.

MuJoCo writes the text: numbers are put into the compiled model of the template, and its specification (`MjSpec`) takes
them back. What the text means is read again and compared with the world, so nothing is lost without a word.
"""

from __future__ import annotations

import collections
import os
import re
import warnings
from typing import Any

import jax
import numpy as np

from jaxdyn._errors import ModelError, RobotFileError, warn
from jaxdyn.io import LeftOutWarning
from jaxdyn.io.mjcf import mujoco, object_name, text_of_spec, text_with_numbers
from jaxdyn.io.robot_files import enumerate_items, enumerate_names, robot_text
from jaxdyn.worlds._load_world import load_world
from jaxdyn.worlds._mjcf_numbers import put, put_inertias, writers
from jaxdyn.worlds._world import World

_PAIR = "contact of geoms {} and {}"
_OF_PAIRS = "margin", "gap", "solref", "solreffriction", "solimp", "friction"
_INERTIAS = {"model.inertial_parameters", "model.attached_parameters"}


@text_with_numbers.register
def write_world(world: World, template: Any) -> str:
    """Return the text of the template with the numbers of a world. See `to_mjcf`."""
    if world.parts.constraints.compliance is not None:
        raise ModelError("to_mjcf: files have MuJoCo's law of contact, and this world has a ContactLaw; use save_world")
    spec = _spec_of(template)
    m = _compiled(spec)
    before = _loaded(m)
    if world.parts.actuators.control_path or world.parts.actuators.force_path:
        raise ModelError("to_mjcf: MuJoCo lacks blocks on the paths of actuators; write world.with_actuator_paths()")
    _require_same_structure(world, before)
    new, old = numbers_of(world), numbers_of(before)
    changed = [name for name in new if not np.array_equal(new[name], old[name])]
    if any(name.startswith("model.") for name in changed):
        # MuJoCo derives constants from the model, as `with_model` does. Whether it finds the same is compared below.
        followed = numbers_of(before.with_model(world.model))
        changed = [x for x in changed if x.startswith("model.") or np.array_equal(followed[x], old[x])]
    touched = {name.partition(":")[0] for name in changed if name.startswith(_PAIR[:8])}
    if touched:
        m = _with_pairs(spec, m, before, touched)
    if _INERTIAS & set(changed):
        m = _with_inertias(spec, m)
    known = writers(m, world) | _writers_of_pairs(m, touched)
    if unknown := [name for name in changed if name not in known and name not in _INERTIAS]:
        advice = "set them as they are in the file, or edit the file"
        raise ModelError(f"to_mjcf cannot write what has changed in {enumerate_names(unknown)}; {advice}")
    for name in changed:
        if name in known:
            known[name](new[name], old[name])
    if _INERTIAS & set(changed):
        put_inertias(m, world, before)
    try:
        spec.copy_back(m)
        _compiled(spec)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"to_mjcf: MuJoCo cannot write the numbers of the world: {reason}") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = text_of_spec(spec)
    again = mujoco().MjSpec.from_string(text)
    again.modelfiledir = spec.modelfiledir
    idle = _names_without_effect(world)
    acting = {name: x for name, x in new.items() if not name.startswith(idle)}
    _warn_of_differences(acting, numbers_of(_loaded(_compiled(again))))
    return text


def _spec_of(template: Any) -> Any:
    text, kind = robot_text(template), mujoco().MjSpec
    if not hasattr(kind, "copy_back"):
        raise ImportError(f"to_mjcf of a world needs MuJoCo 4 (pip install -U mujoco); this is {mujoco().__version__}")
    try:
        return kind.from_file(os.fspath(template)) if text is None else kind.from_string(text[0])
    except (ValueError, TypeError) as error:
        raise RobotFileError(f"to_mjcf: MuJoCo cannot read the template: {' '.join(str(error).split())}") from error


def _compiled(spec: Any) -> Any:
    with warnings.catch_warnings():
        # The world has been loaded before, and its user has seen them.
        warnings.simplefilter("ignore")
        return spec.compile()


def _loaded(m: Any) -> World:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return load_world(m)


def _require_same_structure(world: World, before: World) -> None:
    if any(np.ndim(x) > np.ndim(y) for x, y in zip(jax.tree.leaves(world), jax.tree.leaves(before), strict=False)):
        raise ModelError("the world has batch axes; choose one element, by jax.tree.map(lambda x: x[0], world)")
    one, two = (jax.tree.structure((x.model, x.parts, x.start, x.keys)) for x in (world, before))
    if one != two or world.key_names != before.key_names:
        raise ModelError(
            "to_mjcf: the template has other parts than the world (bodies, geoms, actuators, flags ...); give the file "
            "that load_world has read"
        )


def numbers_of(world: World) -> dict[str, np.ndarray]:
    """Return the arrays of a world by name, those of contacts by the pairs of geoms."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(world)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves]
    out = {name: np.asarray(x, np.float64) for name, (_, x) in zip(names, leaves, strict=True)}
    # Files have no numbers from which constants were derived but those of the model.
    out = {name: x for name, x in out.items() if ".contacts.pairs." not in name and name != "parts.derived_from"}
    contacts = world.parts.constraints.contacts
    for pairs in contacts.pairs:
        for k, ends in enumerate(zip(pairs.first, pairs.second, strict=True)):
            name = _PAIR.format(*sorted(contacts.numbers[i] for i in ends))
            out |= {f"{name}: {key}": np.asarray(getattr(pairs, key)[k], np.float64) for key in (*_OF_PAIRS, "weight")}
            out |= {} if pairs.heights is None else {f"{name}: heights": np.asarray(pairs.heights, np.float64)}
    return out


def _with_pairs(spec: Any, m: Any, before: World, touched: set[str]) -> Any:
    """Give pairs of geoms elements of their own, where they have none, and return the compiled model."""
    there = {_PAIR.format(*sorted(x)) for x in zip(m.pair_geom1, m.pair_geom2, strict=True)}
    geoms = {g.id: g for g in spec.geoms}
    contacts = before.parts.constraints.contacts
    for pairs in contacts.pairs:
        for k, ends in enumerate(zip(pairs.first, pairs.second, strict=True)):
            numbers = sorted(contacts.numbers[i] for i in ends)
            if (name := _PAIR.format(*numbers)) in there or name not in touched:
                continue
            pair = spec.add_pair()
            for side, i in enumerate(numbers, 1):
                geoms[i].name = geoms[i].name or object_name(m, "geom", i)
                setattr(pair, f"geomname{side}", geoms[i].name)
            pair.condim = pairs.dims[k]
            for key in _OF_PAIRS:
                value = np.asarray(getattr(pairs, key)[k], np.float64)
                setattr(pair, key, value if value.ndim else float(value))
    return _compiled(spec)


def _writers_of_pairs(m: Any, touched: set[str]) -> dict[str, Any]:
    out = {}
    for i, ends in enumerate(zip(m.pair_geom1, m.pair_geom2, strict=True)):
        name = _PAIR.format(*sorted(int(g) for g in ends))
        for key in _OF_PAIRS if name in touched else ():
            array = getattr(m, f"pair_{key}")
            out[f"{name}: {key}"] = lambda new, old, array=array, i=i: put(array, i, new, old)
    return out


def _with_inertias(spec: Any, m: Any) -> Any:
    """Give all bodies the inertias that they have, in place of those of their geoms, and return the compiled model."""
    spec.compiler.inertiafromgeom = mujoco().mjtInertiaFromGeom.mjINERTIAFROMGEOM_AUTO
    spec.compiler.settotalmass = -1
    for body in spec.bodies:
        i = body.id
        if i and m.body_mass[i] > 0:
            body.explicitinertial, body.mass, body.ipos = True, m.body_mass[i], m.body_ipos[i]
            body.iquat, body.inertia = m.body_iquat[i], m.body_inertia[i]
            # Marks that the inertia is given by its principal moments.
            body.fullinertia = np.full(6, np.nan)
            body.ialt.type = mujoco().mjtOrientation.mjORIENTATION_QUAT
    return _compiled(spec)


def _names_without_effect(world: World) -> tuple[str, ...]:
    """Return the beginnings of the names of numbers that nothing of this world reads."""
    actuators, types = world.parts.actuators, world.parts.sensors.types
    out = ["appearance."]
    out += [] if "muscle" in (*actuators.gains, *actuators.biases) else ["parts.actuators.unit_acceleration"]
    out += [] if types else ["parts.sensors."]
    if not any("limit" in kind for kind in types):
        out += [f"parts.sensors.{what}_{number}" for what in ("joint", "tendon") for number in ("range", "margin")]
    return tuple(out)


def _warn_of_differences(new: dict[str, np.ndarray], written: dict[str, np.ndarray]) -> None:
    """Warn of the numbers that the text gives otherwise than the world has them."""
    found: collections.defaultdict[str, list[float]] = collections.defaultdict(list)
    single = jax.dtypes.canonicalize_dtype(np.float64) == np.float32
    for name, x in new.items():
        # Bounds may be infinite.
        apart = np.abs(np.subtract(written[name], x, where=written[name] != x, out=np.zeros(x.shape)))
        error = apart.max(initial=0) / max(np.abs(x).max(initial=0), 1e-12)
        if not error <= (1e-5 if single else 1e-9):
            found[re.sub(r"geoms \d+ and \d+", "geoms", name)].append(float(error))
    if found:
        lines = (f"{name} ({len(x)}, by {max(x):.1g} of its size)" for name, x in found.items())
        warn(
            "to_mjcf: from the text MuJoCo computes other numbers than the world has, which keeps those that it was "
            f"loaded with: {enumerate_items(lines)}; load_world(text) is the world with MuJoCo's",
            LeftOutWarning,
        )
