"""`load_world`: worlds of MJCF and URDF files."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np

from jaxdyn._errors import ModelError, naming_arguments, warn
from jaxdyn._types import float_leaf
from jaxdyn._waits import saying
from jaxdyn.contact import ContactLaw, MujocoLaw, load_contact_shapes
from jaxdyn.io import LeftOutWarning, load_urdf
from jaxdyn.io.mjcf import compile_mjcf, enum_name, geom_pairs, is_disabled, is_mjcf, object_name
from jaxdyn.io.robot_files import is_archive, named_robot
from jaxdyn.solve import SolverOptions
from jaxdyn.worlds._actuators_of_file import actuators_of_file
from jaxdyn.worlds._appearance import Appearance, VisualFile
from jaxdyn.worlds._bodies import Bodies
from jaxdyn.worlds._compliance import Compliance, compliant_contacts, warn_of_what_is_left_out
from jaxdyn.worlds._constraints import Constraints
from jaxdyn.worlds._free_bodies import free_bodies
from jaxdyn.worlds._inertia_constants import derived_from
from jaxdyn.worlds._no_slip import NoSlip
from jaxdyn.worlds._parts import ENDLESS
from jaxdyn.worlds._passive import Passive
from jaxdyn.worlds._refusals import refuse_what_is_not_built, warn_of_what_differs, warn_of_what_is_not_simulated
from jaxdyn.worlds._saved_values import read_world
from jaxdyn.worlds._sensors import Sensors, reasons_against_sensors
from jaxdyn.worlds._states import keyframes_of
from jaxdyn.worlds._tendons import Tendons, across_branches
from jaxdyn.worlds._tree_of_file import tree_of
from jaxdyn.worlds._world import World
from jaxdyn.worlds._world_parts import WorldParts


@naming_arguments
def load_world(
    path_or_text: Any,
    *,
    law: ContactLaw | MujocoLaw | None = None,
    options: SolverOptions | None = None,
    ground: bool = False,
    free_base: bool = False,
    links: Collection[str] | None = None,
    package_dirs: Sequence[str | os.PathLike] = (),
    **attached: Any,
) -> World:
    """Return the world that an MJCF or URDF file, the text of one, a compiled `mujoco.MjModel`, or a file of
    `save_world` describes. A name that is no file is that of a robot of the packages robot_descriptions (`"go1"`, with
    or without `_description` or `_mj_description`; MJCF before URDF) or mujoco_menagerie (`"unitree_go1"`; also in a
    copy of its repository), which fetch its files when they are first used.

    **MJCF.** It moves as in MuJoCo: contacts, limits, friction losses and equality constraints are MuJoCo's soft
    constraints, and `step` is the integrator of the file (Euler, implicit, implicitfast or RK4) with its time step.
    `options` say how the constraints are solved; MuJoCo's own solver settings have no part here, because they are
    solved to the end. What a file has and worlds do not have is refused by name.

    With `law`, a `ContactLaw`, its contacts have that law in the place of MuJoCo's: pairs of geoms, their margins and
    their coefficients of sliding friction are those of the file, so `ContactLaw.friction` is not to be given. Limits,
    friction losses, equality constraints, tendons, actuators and sensors stay what they are. Whatever integrator the
    file names, steps are then the first-order ones of `jaxdyn.step` (`"implicit_velocity"`): contacts, dampers and the
    velocity feedback of actuators push by what is at the end of the step. Places of contacts move smoothly where
    `jaxdyn.geometry.pair_witnesses` has such pairs, else they are MuJoCo's, found within the margin and the gap.

    All other arguments are of URDF files.

    **URDF.** It is `World(load_urdf(...), ...)` with further arguments `attached`: `law`, `limits`, `actuators`,
    `sensors`, `timestep`, `integrator`. With `ground` the shapes in `<collision>`, of all `links` or of these, touch
    the plane `z = 0` (`load_contact_shapes`). By default joints stop at the limits of the file with MuJoCo's law, and
    with a `ContactLaw` where there are contacts; `limits=True` has stops in any case. `free_base` and `package_dirs`
    are those of `load_urdf`. A URDF file has no actuators: its efforts limit those that are given.

    **Warns** `LeftOutWarning` of sensors that are not built, with a `ContactLaw` also of torsional and rolling friction
    (`condim` above 3), of a second coefficient of sliding friction and of sweeps against slip; without one
    `RobotFileWarning` of boxes that touch height fields without a margin, for which MuJoCo's contacts are off the
    geometry; and as `load_urdf` and `load_contact_shapes` do.

    **Raises** `RobotFileError` for what it refuses and for a file that cannot be read or is damaged; `ModelError` for a
    model without a moving body, and for arguments that the format does not take; `ImportError` without MuJoCo, which
    files of `save_world` do not need; as `World` does.
    """
    path_or_text = named_robot(path_or_text, ("MJCF", "URDF"))
    given: dict[str, Any] = {"ground": ground, "free_base": free_base, "links": links, "package_dirs": package_dirs}
    mjcf, saved = is_mjcf(path_or_text), is_archive(path_or_text)
    given |= attached if mjcf else attached | {"law": law}
    if (mjcf or saved) and (wrong := [name for name, value in given.items() if value not in (None, False, ())]):
        kind = "a saved world" if saved else "an MJCF file"
        raise ModelError(f"{kind} says by itself what {', '.join(wrong)} would: these are for URDF files")
    if saved:
        world = read_world(path_or_text, World)
        return world if options is None else _with(world, options=options)
    if mjcf:
        with saying("loading a world"):
            return _world_of_mjcf(path_or_text, law, options)
    if links is not None and not ground:
        raise ModelError("links say whose shapes touch the ground: give ground=True as well")
    model = load_urdf(path_or_text, free_base=free_base, package_dirs=package_dirs)
    shapes = ()
    if ground:
        shapes = load_contact_shapes(model, path_or_text, links=links, package_dirs=package_dirs).shapes
    limits: dict[str, Any] = {"limits": bool(shapes) or isinstance(law, MujocoLaw)}
    world = World(model, shapes, law=law, options=options, **(limits | attached))
    source = path_or_text if isinstance(path_or_text, str) and "<" in path_or_text else os.path.abspath(path_or_text)
    return _with(world, appearance=VisualFile(source, tuple(os.path.abspath(x) for x in package_dirs)))


def _world_of_mjcf(path_or_text: Any, law: Any, options: SolverOptions | None) -> World:
    """Return the world that an MJCF file describes."""
    compliance = None if law is None else Compliance.of(law)
    m, source = compile_mjcf(path_or_text)
    pairs = geom_pairs(m)
    refuse_what_is_not_built(m, source, pairs, as_mujoco=compliance is None)
    if compliance is None:
        warn_of_what_differs(m, source, pairs)
    else:
        warn_of_what_is_left_out(m, source, pairs)
    model = tree_of(m)
    passive = Passive.of(m)
    integrator = enum_name("mjtIntegrator", m.opt.integrator)
    constraints = Constraints.of(m, pairs)
    parts = WorldParts(
        Bodies.of(m),
        constraints,
        Tendons.of(m),
        actuators_of_file(m),
        passive,
        _sensors(m, source),
        float_leaf(float(m.opt.timestep)),
        integrator,
        passive.damped and not is_disabled(m, "eulerdamp"),
        free_bodies(m),
        NoSlip.of(m, constraints),
        derived_from=derived_from(model),
    )
    warn_of_what_is_not_simulated(m, source, across_branches(model, parts.tendons))
    if compliance is not None:
        contacts = compliant_contacts(constraints.contacts)
        constraints = dataclasses.replace(constraints, contacts=contacts, compliance=compliance)
        steps: dict[str, Any] = {"integrator": "implicit_velocity", "free_bodies": (), "no_slip": None}
        parts = dataclasses.replace(parts, constraints=constraints, **steps)
    # `jnp.clip` would compile a program for each shape.
    parts = jax.tree.map(lambda x: jax.device_put(np.clip(np.asarray(x), -ENDLESS, ENDLESS)), parts)
    start, options = float_leaf(np.array(m.qpos0)), SolverOptions() if options is None else options
    names = tuple(object_name(m, "key", i) for i in range(m.nkey))
    fields = {"start": start, "keys": keyframes_of(model, m), "key_names": names, "options": options}
    return _world_of(model=model, parts=parts, **fields, appearance=Appearance.of(m))


def _with(world: World, **changed: Any) -> World:
    """Return the world with other fields."""
    return _world_of(**{f.name: getattr(world, f.name) for f in dataclasses.fields(world)} | changed)


def _sensors(m, source: str) -> Sensors:
    """Return the sensors that are built, with a warning of the others."""
    against = reasons_against_sensors(m)
    if against:
        lines = "\n".join(f"- {name!r}: {reason}" for name, reason in against.items())
        warn(f"{source}: the world leaves out sensors that are not built:\n{lines}", LeftOutWarning)
    names = [object_name(m, "sensor", i) for i in range(m.nsensor)]
    return Sensors.of(m, [name for name in names if name not in against], source)


def _world_of(**fields: Any) -> World:
    """Return a world with these fields, which `World.__init__` makes of a model."""
    world = object.__new__(World)
    for name, value in fields.items():
        # As `equinox` sets the fields of a module when it unflattens one.
        object.__setattr__(world, name, value)
    return world
