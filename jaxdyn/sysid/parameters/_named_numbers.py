"""Choices of free numbers by their names: `"damping of x"`, `"gear"`, `"friction of floor"`, `"mass of pole"`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxdyn._errors import ModelError, look_up
from jaxdyn.model import LEAVES
from jaxdyn.sysid.parameters import _world_arrays as world_arrays
from jaxdyn.sysid.parameters._contact_blocks import COMPLIANCES, LAW_NUMBERS, ContactNumbers, ContactPlane
from jaxdyn.sysid.parameters._inertia_blocks import InertiaScale, LogCholesky
from jaxdyn.sysid.parameters._leaf_blocks import LinkLength, Positive
from jaxdyn.sysid.parameters._parametrization import AbstractChoice
from jaxdyn.worlds import World

_OF_BODIES = {"mass": InertiaScale, "inertia": LogCholesky}
_BETWEEN = " and "


def named_choices(robot: Any, names: Sequence[str | AbstractChoice]) -> list[AbstractChoice]:
    """Return the choices that names stand for, each `"NUMBER of OWNER"`, or `"NUMBER"` for all owners where it is not
    zero: joints, actuators and tendons, and contacts if none of these has it. Choices stay as they are.

    - `mass` and `inertia` of bodies: a factor of all ten inertial parameters, or all of them; `length` to joints;
    - numbers of joints, actuators and tendons by the attributes of their files, as in `Positive`;
    - `friction`, `torsion`, `rolling`, `solref`, `solimp`, `stiffness` and `damping` of geoms, or of two, `"friction of
      ball and floor"`, and the numbers of a `ContactLaw`, as in `ContactNumbers`; `height` of the plane.

    **Raises** `ModelError`, `UnknownNameError` for names that the robot does not have.
    """
    if isinstance(names, str):
        raise ModelError(f"free is the string {names!r}, but a sequence of names is needed: [{names!r}]")
    return [y for x in names for y in ([x] if isinstance(x, AbstractChoice) else _choices(robot, str(x)))]


def _choices(robot: Any, name: str) -> list[AbstractChoice]:
    number, _, owner = name.partition(" of ")
    if owner or number in (*_OF_BODIES, "length", "height") or not isinstance(robot, World):
        return [_choice(robot, name, number, owner)]
    of_contacts = _numbers_of_contacts(robot) if robot.contact_names else ()
    every = world_arrays.attributes(robot)
    look_up(number, tuple(dict.fromkeys((*_OF_BODIES, "length", "height", *every, *of_contacts))), "number of a world")
    arrays, out = [np.asarray(x).reshape(-1) for x in jax.tree.leaves(robot)], []
    for kind in ("joint", "actuator", "tendon") if number != "armature" else ("joint", "tendon"):
        found = world_arrays.numbers_of(robot, kind, number) or ()
        # The world of a model has the numbers of joints in the model, and tables without rows for them.
        entries = [(x.owner, arrays[leaf], place) for x in found for leaf, place in x.entries]
        owners = [owner for owner, array, place in entries if place < array.size and array[place] != 0]
        if owners:
            chosen: dict[str, Any] = {f"{kind}s": list(dict.fromkeys(owners))}
            out.append(Positive(number, **chosen))
    if not out and number not in of_contacts:
        raise ModelError(f"{name!r}: no element of the world has a {number} other than zero")
    return out or [ContactNumbers([number])]


def _numbers_of_contacts(world: World) -> tuple[str, ...]:
    if not world.parts.as_mujoco:
        return LAW_NUMBERS
    if world.parts.constraints.compliance is not None:
        return ("friction", *world_arrays.COMPLIANCE)
    return (*world_arrays.LAW, *COMPLIANCES)


def _choice(robot: Any, name: str, number: str, owner: str) -> AbstractChoice:
    if number in _OF_BODIES:
        return _OF_BODIES[number]([owner] if owner else None)
    if number == "length":
        return LinkLength([owner] if owner else None)
    if not isinstance(robot, World):
        look_up(number, (*_OF_BODIES, "length", *LEAVES), "number of a model")
        return Positive(number, [owner] if owner else None)
    if number == "height" and owner in ("", "the plane", "plane"):
        return ContactPlane(tilt=False)
    contacts = robot.parts.constraints.contacts.names
    of_contacts = _numbers_of_contacts(robot)
    elements = world_arrays.elements(robot)
    owner, tendon = owner.removeprefix("tendon "), owner.startswith("tendon ")
    kinds = [kind for kind, known in elements.items() if owner in known and (kind == "tendon" or not tendon)]
    with_number = [kind for kind in kinds if number in _numbers_of_kind(robot, kind, of_contacts)]
    if len(with_number) > 1:
        raise ModelError(
            f"{name!r} is a number of {' and of '.join(with_number)} {owner}; give a choice such as "
            f"Positive({number!r}, actuators=[{owner!r}]) in its place"
        )
    if _BETWEEN in owner and not with_number:
        first, second = owner.split(_BETWEEN, 1)
        if first in contacts and second in contacts:
            return ContactNumbers([number], geoms=[(first, second)])
    if not with_number:
        known = sorted({x for kind in kinds for x in _numbers_of_kind(robot, kind, of_contacts)})
        if kinds:
            raise ModelError(f"{name!r}: {kinds[0]} {owner} has no {number}; it has {', '.join(known)}")
        look_up(owner, tuple(x for y in elements.values() for x in y), f"owner of {number}")
    kind = with_number[0]
    if kind == "geom":
        return ContactNumbers([number], geoms=[owner]) if robot.parts.as_mujoco else ContactNumbers([number])
    owners: dict[str, Any] = {f"{kind}s": [owner]}
    return Positive(number, **owners)


def _numbers_of_kind(world: World, kind: str, of_contacts: tuple[str, ...]) -> tuple[str, ...]:
    return of_contacts if kind == "geom" else world_arrays.attributes(world, kind)
