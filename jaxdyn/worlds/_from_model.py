"""The parts of a world that is made of a model and descriptions of what is attached to it."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxdyn._errors import ModelError, require_choice, require_time_step
from jaxdyn._types import float_leaf
from jaxdyn.contact import ContactLaw, MujocoLaw, ShapeContacts
from jaxdyn.model import Model
from jaxdyn.simulate.integrators import require_integrator, warn_of_long_step
from jaxdyn.solve import SolverOptions
from jaxdyn.worlds._bodies import Bodies
from jaxdyn.worlds._inertia_constants import derived_from, inverse_weights
from jaxdyn.worlds._model_actuators import actuators_of
from jaxdyn.worlds._model_constraints import Touching, constraints_of
from jaxdyn.worlds._model_sensors import sensors_of
from jaxdyn.worlds._parts import ENDLESS, Places
from jaxdyn.worlds._passive import Passive
from jaxdyn.worlds._world_parts import WorldParts

_MUJOCO = ("implicitfast", "euler", "implicit", "rk4")
"""MuJoCo's integrators, the default first."""
_WITH_CONTACT = ("semi_implicit_euler", "implicit_velocity")
"""The integrators of worlds that move as their model and have contacts or limits."""


@dataclasses.dataclass(frozen=True)
class Attached:
    """The arguments of `World` besides the model."""

    touching: Touching
    law: Any
    limits: Any
    actuators: Any
    sensors: Any
    timestep: Any
    integrator: str | None
    options: SolverOptions


def parts_of_model(model: Model, given: Attached) -> WorldParts:
    """Return the parts of the world of a model. **Raises** as `World`."""
    require_time_step(given.timestep, "timestep")
    as_mujoco = isinstance(given.law, MujocoLaw)
    names = ("world", *model.body_names)
    dofs = (-1, *model.topology.body_dofs.tolist())
    actuators = actuators_of(model, given.actuators)
    parts = WorldParts.without(
        bodies=Bodies.without(names=names, centers=Places(dofs, float_leaf(np.zeros((0, 7))))),
        actuators=actuators,
        sensors=sensors_of(model, given.sensors, actuators),
        timestep=float_leaf(given.timestep),
        of_model=True,
        as_mujoco=as_mujoco,
    )
    return _with_mujocos_law(model, parts, given) if as_mujoco else _with_contacts(model, parts, given)


def _limits[Law](given: Attached, kind: type[Law]) -> Law | None:
    """Return the law of the joints' limits, or None."""
    if isinstance(given.limits, bool | np.bool_):
        return kind() if given.limits else None
    if not isinstance(given.limits, kind):
        found = type(given.limits).__name__
        raise ModelError(f"limits is {found}; True, False or a {kind.__name__} is needed with this law")
    return given.limits


def _with_contacts(model: Model, parts: WorldParts, given: Attached) -> WorldParts:
    """Return the parts of a world that moves as `jaxdyn.step` moves the model."""
    integrator = "implicit_velocity" if given.integrator is None else given.integrator
    if integrator in _MUJOCO and integrator not in ("euler", "rk4"):
        raise ModelError(f"integrator {integrator!r} is MuJoCo's; give law=jaxdyn.MujocoLaw(), or 'implicit_velocity'")
    require_integrator(integrator)
    limits = _limits(given, ContactLaw)
    contacts = None
    shapes, surface, pairs, apart = given.touching
    if shapes or limits is not None:
        surface = surface if shapes else None
        contacts = ShapeContacts(model, shapes, surface, given.law, limits, given.options, pairs, apart)
    if contacts is not None and integrator not in _WITH_CONTACT:
        either = "'semi_implicit_euler' or 'implicit_velocity', whose steps with contact are the same"
        raise ModelError(f"integrator {integrator!r} takes no contacts and no limits; use {either}")
    # Steps with contact are implicit in friction.
    warn_of_long_step(model, given.timestep, integrator if contacts is None else "implicit_velocity", 1)
    return dataclasses.replace(parts, integrator=integrator, touching=contacts)


def _with_mujocos_law(model: Model, parts: WorldParts, given: Attached) -> WorldParts:
    """Return the parts of a world that moves by MuJoCo's law."""
    integrator = _MUJOCO[0] if given.integrator is None else given.integrator
    require_choice(integrator, _MUJOCO, "with MuJoCo's law, integrator")
    limits = _limits(given, MujocoLaw)
    _require_expressible(model, integrator)
    weights, numbers = inverse_weights(parts, model, model.neutral()), derived_from(model)
    # Rows are those of the tree in which joints that mimic others are joints like the rest.
    model = model.spanning_tree()
    constraints = constraints_of(model, given.touching, given.law, limits, weights)
    passive, topology = _passive(model), model.topology
    carriers = set(topology.parents)
    # The only joints of their trees.
    alone = [i for i, parent in enumerate(topology.parents) if parent < 0 and i not in carriers]
    free = [i for i in alone if topology.joint_types[i] == "free" and not topology.has_loops]
    parts = dataclasses.replace(
        parts,
        constraints=constraints,
        passive=passive,
        integrator=integrator,
        damped=passive.damped,
        free_bodies=tuple(topology.v_starts[i] for i in free),
        derived_from=numbers,
    )
    return jax.tree.map(lambda x: jnp.clip(x, -ENDLESS, ENDLESS), parts)


def _passive(model: Model) -> Passive:
    """Return the dampers and springs of a model; where these are traced, those that it may have."""
    coordinates, dofs = model.topology.scalar_coordinates
    balls = [(q, v) for joint, q, v in model.topology.blocks if joint.name == "ball"]
    if model.stiffness is None:
        coordinates, dofs, balls = coordinates[:0], dofs[:0], []
    return Passive.without(
        damped=isinstance(model.damping, Tracer) or bool(np.asarray(model.damping).any()),
        springs=tuple(coordinates.tolist()),
        spring_dofs=tuple(dofs.tolist()),
        balls=tuple(balls),
    )


def _require_expressible(model: Model, integrator: str) -> None:
    """Raise `ModelError` with what of a model MuJoCo's law does not have here."""
    topology, gaps = model.topology, []
    if integrator == "implicit" and (topology.has_loops or topology.mimics):
        gaps.append("loops, couplings or joints that mimic others with the integrator 'implicit'; use 'implicitfast'")
    of_dof = np.array(topology.joint_types)[topology.row_joints["v"]]
    for name, allowed in (("friction", None), ("damping", 3), ("armature", 3), ("stiffness", None)):
        values = getattr(model, name)
        if values is None or isinstance(values, Tracer) or not len(of_dof):
            continue
        rows = np.asarray(values).reshape(-1, model.nv)
        # Along axes of the world in MuJoCo, and along those of the body in the model: the same where all are equal.
        free = rows[:, of_dof == "free"].reshape(-1, 6)
        uneven = free.any() if allowed is None else np.ptp(free[:, :allowed], axis=1).any()
        if uneven:
            gaps.append(f"{name} of free joints" + " that differs by axis" * (allowed is not None))
        balls = rows[:, of_dof == "ball"].reshape(-1, 3)
        if name == "stiffness" and np.ptp(balls, axis=1).any():
            gaps.append("stiffness of ball joints that differs by axis")
    if gaps:
        raise ModelError("MuJoCo's law is not built for models with " + ", and ".join(gaps))
