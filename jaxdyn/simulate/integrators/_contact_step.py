"""The step with contact."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import lax

from jaxdyn._errors import ModelError
from jaxdyn.contact import Contacts, accelerations_of_contact, contact_step, require_contact
from jaxdyn.model import Model
from jaxdyn.simulate._state import State
from jaxdyn.simulate.integrators._closed_loops import symplectic_step
from jaxdyn.solve import SolverReport


def require_contact_integrator(
    model: Model, contacts: Contacts | None, integrator: str, *, actuator_damping: bool = False
) -> None:
    """Raise `ModelError` for contacts with an integrator that does not take them, or with a model that has what steps
    with contact do not take."""
    if contacts is None:
        return
    require_contact(model, contacts)
    if integrator not in ("semi_implicit_euler", "implicit_velocity"):
        either = "'semi_implicit_euler' or 'implicit_velocity', whose steps with contact are the same"
        raise ModelError(f"integrator {integrator!r} takes no contacts; use {either}")
    if actuator_damping:
        raise ModelError("steps with contact take no actuator_damping; add it to Model.damping, or leave out contacts")


def contact_steps(
    model: Model, state: State, tau, dt, f_ext, contacts: Contacts, substeps: int
) -> tuple[State, SolverReport]:
    """The state after `substeps` steps of the length `dt`, and the largest error and the sum of the iterations in
    them."""

    def one(state: State) -> tuple[State, SolverReport]:
        arguments = model, contacts, state.q, state.v, tau, dt, f_ext
        if model.topology.has_loops:
            gained, report = accelerations_of_contact(*arguments)
            return symplectic_step(model, state, tau, dt, f_ext, gained=gained), report
        q, v, report = contact_step(*arguments)
        return State(q, v), report

    def further(carry, _: Any):
        state, before = carry
        state, report = one(state)
        return (state, worst(before, report)), None

    first = one(state)
    return first if substeps == 1 else lax.scan(further, first, length=substeps - 1)[0]


def worst(x: SolverReport, y: SolverReport) -> SolverReport:
    """The report of two steps."""
    both = jnp.maximum(x.error, y.error), x.iterations + y.iterations
    return eqx.tree_at(lambda r: (r.error, r.iterations), x, both)
