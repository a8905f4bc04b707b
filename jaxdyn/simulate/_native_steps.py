"""The steps of a roll-out as one function of arrays, whose native program has one loop over all of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp

from jaxdyn.model import Model
from jaxdyn.native import Plain, call, repeated
from jaxdyn.simulate._state import State
from jaxdyn.simulate.integrators import RobotOperands, advance

INTEGRATORS_AT_ONCE = ("euler", "semi_implicit_euler", "implicit_velocity")
"""Those with one evaluation of the dynamics in a step: the program is not longer than that of the dynamics."""


@dataclasses.dataclass(frozen=True)
class _Step:
    """A step as a function of arrays with leading batch axes: of the model, of the time step, of what else is the same
    for all steps, of the configuration and the velocity, and of what is another one for each step."""

    model: RobotOperands
    integrator: str
    fixed: tuple[str, ...]
    """The names of the arguments that are the same for all steps."""
    rows: tuple[str, ...]
    """The names of the others."""

    def __call__(self, *operands):
        given = iter(operands)
        model, dt = self.model.robot(given), next(given)
        named = {name: next(given) for name in self.fixed}
        state = State(next(given), next(given))
        named |= {name: next(given) for name in self.rows}
        # Elements of a batch may have their own time step, where it is mapped.
        after = advance(model, state, named["tau"], dt[..., None], named.get("f_ext"), self.integrator)
        return after.q, after.v


_CORES = {"tau": 1, "f_ext": 2}


def steps_at_once(
    model: Model, start: State, dt, integrator: str, fixed: dict[str, Any], rows: dict[str, Any], every: int, held: int
) -> State:
    """Return the states `[*batch, samples, ...]` at the start and after `every` steps of `dt` each.

    Among `rows` are the torques `tau` `[*batch, n, nv]`, each held for `held` steps, and perhaps wrenches `f_ext`
    `[*batch, n, nb, 6]`; what is `fixed` are perhaps wrenches `[*batch, nb, 6]`.
    """
    dtype = start.q.dtype
    inputs = start, dt, fixed, rows
    static, leaves = RobotOperands.of_model(model, dtype, inputs)
    step = _Step(static, integrator, tuple(fixed), tuple(rows))
    cores = *static.cores, 0, *(_CORES[n] for n in fixed), 1, 1, *(_CORES[n] for n in rows)
    operands = *leaves, dt, *fixed.values(), start.q, start.v, *rows.values()
    plain = Plain(step, cores, ((model.nq,), (model.nv,)), shared=len(leaves) + 1)
    length = held * rows["tau"].shape[-2]
    everything = repeated(plain, length, 2, len(rows), every, held)
    return State(*call(everything, *(jnp.asarray(x, dtype) for x in operands)))
