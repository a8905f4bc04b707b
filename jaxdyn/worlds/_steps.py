"""Solutions of a world at a state, and what is made of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from jaxdyn import joints
from jaxdyn._compile import compiled
from jaxdyn._errors import ModelError
from jaxdyn.contact import ContactForces
from jaxdyn.geometry import FAR
from jaxdyn.model import independent_forces, mimic_coordinates
from jaxdyn.simulate import State
from jaxdyn.simulate.integrators import closed
from jaxdyn.solve import SolverReport, solve
from jaxdyn.worlds._contact_search import among_candidates, found_contacts, left_out
from jaxdyn.worlds._equations import AT_STATE, EQUATIONS, activation_rates, activations
from jaxdyn.worlds._model_sensors import require_no_loads_of_loops
from jaxdyn.worlds._model_steps import accelerations_as_model, contacts_at, solved_as_model
from jaxdyn.worlds._no_slip import without_slip
from jaxdyn.worlds._sensed import Quantities
from jaxdyn.worlds._states import Given, Solved, given_of

if TYPE_CHECKING:
    from jaxdyn.worlds._world import World

# RK4: the parts of the step at which its later stages stand, and the weights of all stages.
SHARES = 0.5, 0.5, 1.0
WEIGHTS = 1 / 6, 1 / 3, 1 / 3, 1 / 6


def solved(given: Given, *names: str, of_step: bool = True) -> Solved:
    """Return the solution of a state, and `Quantities` that are made of it, by one function where there are no sweeps
    against slip; with `of_step=False`, contacts that push by what is at the end of a step push by the state."""
    if not given.world.parts.as_mujoco:
        return solved_as_model(given, names)
    bound, operands = given.bound()
    parts, arguments, further = given.world.parts, given.on_tree(), {}
    if "sensors" in names:
        require_no_loads_of_loops(given.world.model, parts.sensors)
        further = {"time": jnp.broadcast_to(given.state.time, given.arguments.q.shape[:-1])[..., None]}
        further |= {} if given.wrenches is None else {"wrenches": given.wrenches}
    together, contacts, found_contact = parts.no_slip is None, parts.constraints.contacts, None
    if contacts.listed:
        found_contact = found_contacts(given)
        # Without one of its contacts a state would have other accelerations.
        crowded = (left_out(contacts, found_contact) > 0)[..., None]
        applied = jnp.where(crowded, jnp.nan, arguments["applied"])
        arguments |= {"applied": applied, "contacts": found_contact}
    at_state = not of_step and parts.constraints.compliance is not None
    equations = (AT_STATE if at_state else EQUATIONS)._replace(
        results=Quantities(names) if names and together else None
    )
    found = solve(equations, bound, operands, arguments, given.world.options, further if together else {})
    a, results = found.a, found.results
    if not together:
        a, pushes = without_slip(bound, operands, arguments, parts, found.a)
        results = bound.call(Quantities(names, alone=True), operands, a, pushes, further, **arguments)
    return _of_own_joints(given.world, Solved(a, found.error, found.iterations, results or {}, found_contact))


def _of_own_joints(world: World, found: Solved) -> Solved:
    """Return a solution of the tree of all joints in the coordinates of the model, in which joints that mimic others
    have none, with the loops of the model closed after the step."""
    model, results = world.model, dict(found.results)
    own_q, own_v = (mimic_coordinates(model.topology, velocity=x).own for x in (False, True))
    if model.topology.mimics:
        found = found._replace(a=found.a[..., own_v])
        for name in {"acceleration"} & results.keys():
            results[name] = results[name][..., own_v]
        for name in {"torque", "actuator_torque"} & results.keys():
            results[name] = independent_forces(model, results[name])
        if "step" in results:
            q, v, activation = results["step"]
            results["step"] = q[..., own_q], v[..., own_v], activation
    if model.topology.has_loops and "step" in results:
        q, v, activation = results["step"]
        end = closed(model, State(q, v))
        results["step"] = end.q, end.v, activation
    return found._replace(results=results)


def by_name(sensors: Any, values: Any) -> dict[str, Any]:
    """Return the values `[*batch, n]` of all sensors, one after the other, by the names of the sensors."""
    ends = np.cumsum(sensors.sizes)
    return {name: values[..., end - n : end] for name, n, end in zip(sensors.names, sensors.sizes, ends, strict=True)}


def rate_of(given: Given) -> State:
    """Return the rate of a state: see `World.rate`."""
    state, arguments, as_mujoco = given.state, given.arguments, given.world.parts.as_mujoco
    actuators = given.world.parts.actuators
    if actuators.activations > actuators.dynamic:
        raise ModelError("blocks of this world's actuators remember signals of time steps, not rates; use step")
    turned = joints.apply_to_rows(joints.coordinate_rate, given.world.model.topology, arguments.q, arguments.v)
    found = (
        solved(given, "acceleration", "rates", of_step=False).results if as_mujoco else accelerations_as_model(given)
    )
    held = (None if x is None else jnp.zeros_like(x) for x in (state.mocap, state.active))
    return State(turned, found["acceleration"], found["rates"], jnp.ones_like(state.time), *held)


def contacts_of(given: Given, of_step: bool) -> ContactForces:
    """Return the contacts of a state: see `World.contact_forces`."""
    if not (of_step or given.world.parts.as_mujoco):
        return contacts_at(given)
    solution = solved(given, "contacts", of_step=of_step)
    found = solution.results["contacts"]
    if isinstance(found, ContactForces):
        return found
    contacts = given.world.parts.constraints.contacts
    if contacts.listed:
        found = among_candidates(contacts, solution.found, found)
    # Infinite numbers have no place in the programs of states.
    gap = jnp.where(found.gap < 0.5 * FAR, found.gap, jnp.inf)
    return ContactForces(gap, *(x.to_array() for x in (found.normal, found.point, found.force)))


def constraint_torque_of(given: Given) -> Any:
    """Return the forces of all constraints on the degrees of freedom: see `World.constraint_forces`."""
    if not given.world.parts.as_mujoco:
        raise ModelError(
            "constraint_forces are those of MuJoCo's law, which this world does not have; contact_forces has the "
            "forces of its contacts"
        )
    return solved(given, "torque").results["torque"]


def report_of(given: Given, found: Solved) -> SolverReport:
    """Return how well the constraints were solved; with `deep` where this was asked for."""
    tolerance, deep = given.world.options.tolerance_of(found.error.dtype), found.results.get("deep")
    deep = None if deep is None else deep[..., 0]
    contacts = given.world.parts.constraints.contacts
    crowded = None if found.found is None else left_out(contacts, found.found)
    return SolverReport(found.error, found.iterations.astype(jnp.int32), tolerance, deep, crowded)


def empty_report(world: World, state: State) -> SolverReport:
    """Return a report for a state with nothing to solve: see `World.no_report`."""
    zero = jnp.zeros(state.v.shape[:-1], state.v.dtype)
    crowded = zero if world.parts.constraints.contacts.listed else None
    return SolverReport(zero, zero.astype(jnp.int32), world.options.tolerance_of(zero.dtype), crowded=crowded)


def takes_stages(world: World) -> bool:
    return world.parts.as_mujoco and world.parts.integrator == "rk4"


@compiled()
def next_activation(world: World, activation: Any, control: Any) -> Any:
    """The activations `[*batch, na]` after one time step. They depend on the controls `[*batch, nu]` alone."""
    given = given_of(world, State(world.start, activation=activation), control, None, None)
    bound, operands = given.bound()

    def rate(activation):
        now = dataclasses.replace(given.arguments, activation=activation)
        if not world.parts.as_mujoco:
            return solved_as_model(given._replace(arguments=now), ("rates",)).results["rates"]
        return bound.call(activation_rates, operands, **given._replace(arguments=now).on_tree())

    now, slope = given.arguments.activation, rate(given.arguments.activation)
    if takes_stages(world):
        slopes = [slope]
        for share in SHARES:
            slopes.append(rate(now + share * times(world.timestep, slopes[-1])))
        slope = sum(w * x for w, x in zip(WEIGHTS, slopes, strict=True))
    return bound.call(activations, operands, now, slope)


def times(dt, x):
    return dt.astype(x.dtype)[..., None] * x
